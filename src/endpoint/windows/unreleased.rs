//! `Unreleased`: memory of a window that is over, and that peers may still reach; `Exposed`: the
//! same while the window stands.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::endpoint::windows::window::{WindowEvent, WindowMemory};
use crate::id::ConnectionId;
use crate::memory::RawRegistration;
use crate::protocol::wire::WindowId;

/// One exposed window.
#[derive(Debug)]
pub(super) struct Exposed {
    // Field order is drop order: the registration closes before the memory goes.
    /// `None` once it is closed.
    pub(super) registration: Option<RawRegistration>,
    pub(super) memory: WindowMemory,
    pub(super) mark: u32,
    /// Its handle was dropped: nobody wants the memory back.
    pub(super) abandoned: Arc<AtomicBool>,
    /// Its revocation was asked for.
    pub(super) revoking: bool,
}

/// Memory that peers may still reach, though its registration is closed.
#[derive(Debug)]
pub(super) struct Unreleased {
    /// When everybody has passed it, the memory is free.
    pub(super) epoch: u64,
    pub(super) connection: ConnectionId,
    pub(super) window: WindowId,
    /// The application knows that it is to wait, or does not care.
    pub(super) told: bool,
    pub(super) exposed: Exposed,
}

impl Unreleased {
    pub(super) fn of_nobody(
        connection: ConnectionId,
        epoch: u64,
        registration: Option<RawRegistration>,
        memory: WindowMemory,
    ) -> Self {
        Self {
            epoch,
            connection,
            // Windows are numbered from 1 on.
            window: WindowId(0),
            told: true,
            exposed: Exposed {
                registration,
                memory,
                mark: 0,
                abandoned: Arc::new(AtomicBool::new(true)),
                revoking: true,
            },
        }
    }
}

impl Exposed {
    /// Nobody can reach it: the event for the application, if it still has an interest.
    pub(super) fn release(self, window: WindowId) -> Option<WindowEvent> {
        let Self {
            registration,
            memory,
            abandoned,
            ..
        } = self;
        drop(registration);
        let wanted = !abandoned.load(Ordering::Relaxed);
        wanted.then_some(WindowEvent::Released { window, memory })
    }
}
