//! `HubBuffers`: what a hub receives into and sends its control messages from, and which
//! connections want some of it.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::peer::Descriptors;
use super::peer_receives::PeerReceives;
use super::received_frame::PlacedFrame;
use super::settings::{HubSettings, Receives};
use crate::Error;
use crate::buffer::{BufferMut, PoolShare, WakeFn};
use crate::endpoint::hub::control::ControlBuffers;
use crate::endpoint::hub::scoped::ScopedRegistrations;
use crate::endpoint::link::wait::EndpointWait;
use crate::endpoint::link::{Link, LinkConn};
use crate::id::ConnectionId;
use crate::protocol::connection::Form;

/// The buffers that all connections share.
pub(super) struct HubBuffers {
    /// What it may take of the receive pool.
    pub(super) share: PoolShare,
    /// Of the buffers that are reserved, so many are left for connections to come.
    pub(super) kept: usize,
    pub(super) control: ControlBuffers,
    /// The descriptors of the domain, as long as a connection uses them.
    descriptors: Weak<Descriptors>,
    /// The receives of a connection on which a credit stands for one receive.
    pub(super) receives: Receives,
    /// Connections that lack receive buffers, first come, first served. While the pool is empty,
    /// all but the newest few of them have been reported as starved.
    pub(super) hungry: VecDeque<ConnectionId>,
    /// Frames that came in this poll, where the layer above takes them as they are.
    pub(super) whole_frames: Option<Vec<PlacedFrame>>,
}

impl HubBuffers {
    pub(super) fn new<L: Link>(
        mut share: PoolShare,
        settings: &HubSettings,
        link: &L,
        wait: &Arc<EndpointWait>,
    ) -> Result<Self, Error> {
        let woken = Arc::clone(wait);
        let wake: WakeFn = Arc::new(move || woken.wake());
        share.wake_by(&wake);
        let controls = settings.controls(link);
        let control = match (link.form(), settings.has_one_pool()) {
            (_, true) => ControlBuffers::of(share.pool()),
            (Form::Msg, false) => ControlBuffers::new(controls)?,
            (Form::Rdm, false) => ControlBuffers::for_hellos(controls)?,
        };
        Ok(Self {
            share,
            kept: 0,
            control,
            descriptors: Weak::new(),
            receives: settings.receives(link.form()),
            hungry: VecDeque::new(),
            whole_frames: None,
        })
    }

    /// A buffer to receive into.
    #[inline]
    pub(super) fn try_acquire(&self) -> Option<BufferMut> {
        match self.kept {
            0 => self.share.try_acquire(),
            kept => self.share.try_acquire_beyond(kept),
        }
    }

    /// The pool is empty, or the share used up: the endpoint is woken when it may take a buffer.
    pub(super) fn arm(&self, wait: &EndpointWait) {
        if self.share.arm() {
            wait.wake();
        }
    }

    /// A connection wants receives.
    #[inline]
    pub(super) fn on_hungry(&mut self, id: ConnectionId, receives: &mut PeerReceives) {
        if !receives.hungry {
            receives.hungry = true;
            self.hungry.push_back(id);
        }
    }

    /// What a connection receives with and sends control messages with: what others of the domain
    /// use, unless the application has deregistered the pool since, or its endpoint's own.
    pub(super) fn descriptors<L: Link>(
        &mut self,
        link: &L,
        conn: &L::Conn,
        scoped: &mut ScopedRegistrations,
    ) -> Result<Arc<Descriptors>, Error> {
        let own = conn.registrar();
        let registrar = own.unwrap_or_else(|| link.registrar());
        let known = self.descriptors.upgrade().filter(|_| own.is_none());
        let is_registered = || self.share.pool().region().is_registered(registrar.scope());
        if let Some(known) = known.filter(|_| is_registered()) {
            return Ok(known);
        }
        let made = Arc::new(Descriptors {
            pool: scoped.hold(self.share.pool().region(), registrar)?,
            control: scoped.hold(self.control.region(), registrar)?,
        });
        if own.is_none() {
            self.descriptors = Arc::downgrade(&made);
        }
        Ok(made)
    }
}
