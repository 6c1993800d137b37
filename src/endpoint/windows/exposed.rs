//! `ExposedWindows`: the memory that an endpoint's peers may use, and the registrations that let them; the endpoint's quarantine.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cuda::CudaError;
use crate::endpoint::error::WindowError;
use crate::endpoint::id::ConnectionId;
use crate::endpoint::link::RmaLimits;
use crate::endpoint::link::wait::EndpointWait;
use crate::endpoint::protocol::connection::Connection;
use crate::endpoint::protocol::wire::{INDEX_MASK, WindowDescriptor, WindowId};
use crate::endpoint::windows::window::{Bell, ExposeError, LocalWindow, WindowEvent, WindowMemory};
use crate::memory::{Access, RawRegistration, RegisterError, Registrar};

/// How often another mark is drawn where one is taken: with 65,536 of 16,777,216 in use, the last of these fails once in 10^19.
const MARK_ATTEMPTS: u32 = 8;

/// One exposed window.
#[derive(Debug)]
struct Exposed {
    // Field order is drop order: the registration closes before the memory goes.
    /// `None` once it is closed.
    registration: Option<RawRegistration>,
    memory: WindowMemory,
    readable: bool,
    mark: u32,
    /// Its handle was dropped: nobody wants the memory back.
    abandoned: Arc<AtomicBool>,
    /// Its revocation was asked for.
    revoking: bool,
}

/// The windows of all connections of an endpoint. Each is freed by [`release`](Self::release), or when the endpoint's connection is
/// closed ([`release_all`](Self::release_all)), and never before.
///
/// Where connections share an endpoint, the end of one closes nothing: windows that its peer did not give back stay in quarantine until
/// the endpoint is closed ([`release_quarantine`](Self::release_quarantine)).
#[derive(Debug)]
pub(crate) struct ExposedWindows {
    windows: HashMap<(ConnectionId, WindowId), Exposed>,
    /// Of connections that are over.
    quarantine: Vec<((ConnectionId, WindowId), Exposed)>,
    /// What peers name a window by in the immediate data of a write. Drawn at random: a peer that is told one can't guess another's.
    marks: HashMap<u32, (ConnectionId, WindowId)>,
    limit: u32,
    bell: Arc<Bell>,
}

impl ExposedWindows {
    pub(crate) fn new(limit: u32, wait: &Arc<EndpointWait>) -> Self {
        Self {
            windows: HashMap::new(),
            quarantine: Vec::new(),
            marks: HashMap::new(),
            limit,
            bell: Arc::new(Bell::new(wait)),
        }
    }

    /// Registers memory for the peer of a connection, and takes it.
    pub(crate) fn expose(
        &mut self,
        connection: ConnectionId,
        machine: &mut Connection,
        registrar: &dyn Registrar,
        rma: Option<&RmaLimits>,
        mut memory: WindowMemory,
        access: Access,
    ) -> Result<LocalWindow, ExposeError> {
        match self.try_expose(connection, machine, registrar, rma, &mut memory, access) {
            Ok((registration, descriptor)) => {
                Ok(self.add(connection, memory, registration, descriptor))
            }
            Err(kind) => Err(ExposeError { kind, memory }),
        }
    }

    fn try_expose(
        &self,
        connection: ConnectionId,
        machine: &mut Connection,
        registrar: &dyn Registrar,
        rma: Option<&RmaLimits>,
        memory: &mut WindowMemory,
        access: Access,
    ) -> Result<(RawRegistration, WindowDescriptor), WindowError> {
        let rma = rma.ok_or(WindowError::Unsupported)?;
        if access.is_empty() || !memory.allows(access) {
            return Err(WindowError::Access {
                asked: access,
                has: if access.is_empty() {
                    Access::all()
                } else {
                    Access::READ
                },
            });
        }
        if self.len() >= self.limit as usize {
            return Err(WindowError::TooManyWindows { limit: self.limit });
        }
        if machine.peer().is_some() && !machine.has_windows() {
            return Err(WindowError::PeerWithoutWindows);
        }
        let len = memory.len();
        let base = memory
            .base()
            .filter(|_| len > 0)
            .ok_or(WindowError::Empty)?;
        let mark = self
            .draw_mark()
            .ok_or(WindowError::TooManyWindows { limit: self.limit })?;
        let registration = match memory.device_range().filter(|_| len > 0) {
            Some(range) => registrar
                .register_device(&range, Some(access))
                .map_err(not_direct)?,
            None => registrar.register_window(base, len, access)?,
        };
        // Numbered last: the peer's account of revoked windows has no gap for one that never was.
        let window = machine.expose_window().ok_or(WindowError::NotConnected)?;
        tracing::debug!(%connection, %window, len_bytes = len, %access, "window exposed");
        let address = base.as_ptr().addr() as u64;
        let descriptor = WindowDescriptor {
            access,
            connection: machine.local_connection(),
            incarnation: crate::endpoint::incarnation(),
            window,
            base: if rma.virtual_addresses { address } else { 0 },
            len: len as u64,
            key: registration.key,
            mark,
        };
        Ok((registration, descriptor))
    }

    fn draw_mark(&self) -> Option<u32> {
        (0..MARK_ATTEMPTS)
            .map(|_| crate::random::random_u64() as u32 & INDEX_MASK)
            .find(|mark| !self.marks.contains_key(mark))
    }

    fn add(
        &mut self,
        connection: ConnectionId,
        memory: WindowMemory,
        registration: RawRegistration,
        descriptor: WindowDescriptor,
    ) -> LocalWindow {
        let abandoned = Arc::new(AtomicBool::new(false));
        let handle = LocalWindow::new(descriptor, connection, &abandoned, &self.bell);
        let id = (connection, descriptor.window);
        self.marks.insert(descriptor.mark, id);
        let exposed = Exposed {
            registration: Some(registration),
            memory,
            readable: descriptor.access.contains(Access::READ),
            mark: descriptor.mark,
            abandoned,
            revoking: false,
        };
        self.windows.insert(id, exposed);
        handle
    }

    /// The application wants a window back: whether its revocation is to begin, and whether it is readable. `None`: it is back already, or
    /// another endpoint's.
    pub(crate) fn begin_revoke(
        &mut self,
        window: LocalWindow,
    ) -> Option<(ConnectionId, WindowId, bool)> {
        if !window.is_of(&self.bell) {
            return None;
        }
        let id = (window.connection(), window.id());
        window.settle();
        let exposed = self.windows.get_mut(&id)?;
        exposed.revoking = true;
        Some((id.0, id.1, exposed.readable))
    }

    /// The windows whose handles were dropped since the last look: their revocations are to begin.
    pub(crate) fn take_abandoned(&mut self) -> Vec<(ConnectionId, WindowId, bool)> {
        if !self.bell.take() {
            return Vec::new();
        }
        let mut found = Vec::new();
        for ((connection, window), exposed) in &mut self.windows {
            if exposed.abandoned.load(Ordering::Relaxed) && !exposed.revoking {
                exposed.revoking = true;
                found.push((*connection, *window, exposed.readable));
            }
        }
        found
    }

    /// The window that a peer's immediate data name. Any peer can send any number; only the one that knows the mark has a use for it.
    pub(crate) fn by_mark(&self, mark: u32) -> Option<(ConnectionId, WindowId)> {
        self.marks.get(&mark).copied()
    }

    /// Makes what the peer wrote visible, where the window is a device's memory.
    pub(crate) fn see_writes(
        &self,
        connection: ConnectionId,
        window: WindowId,
    ) -> Result<(), CudaError> {
        let exposed = self.windows.get(&(connection, window));
        match exposed.and_then(|exposed| exposed.memory.device_range()) {
            Some(range) => range.device.see_writes(),
            None => Ok(()),
        }
    }

    /// Nothing new may begin on a window. What began may still be under way: the memory stays.
    pub(crate) fn close(&mut self, connection: ConnectionId, window: WindowId) {
        if let Some(exposed) = self.windows.get_mut(&(connection, window)) {
            exposed.registration = None;
        }
    }

    /// The same for all windows of a connection.
    pub(crate) fn close_all(&mut self, connection: ConnectionId) {
        for window in self.of(connection) {
            self.close(connection, window);
        }
    }

    /// Nobody can reach the window any more. The event for the application, if it still has an interest.
    pub(crate) fn release(
        &mut self,
        connection: ConnectionId,
        window: WindowId,
    ) -> Option<WindowEvent> {
        let exposed = self.windows.remove(&(connection, window))?;
        self.marks.remove(&exposed.mark);
        exposed.release(window)
    }

    /// The provider's endpoint of the connection is closed, which ends all use of its windows.
    pub(crate) fn release_all(
        &mut self,
        connection: ConnectionId,
        mut tell: impl FnMut(WindowEvent),
    ) {
        for window in self.of(connection) {
            if let Some(event) = self.release(connection, window) {
                tell(event);
            }
        }
    }

    /// The provider's endpoint would not close: its peer may use the memory for ever.
    pub(crate) fn leak_all(&mut self, connection: ConnectionId) -> u64 {
        let windows = self.of(connection);
        for window in &windows {
            if let Some(exposed) = self.windows.remove(&(connection, *window)) {
                self.marks.remove(&exposed.mark);
                std::mem::forget(exposed);
            }
        }
        windows.len() as u64
    }

    /// A connection is over, and its endpoint goes on serving others: its peer may reach the windows until that is closed. `hold`: their
    /// registrations stay open, too.
    pub(crate) fn quarantine(
        &mut self,
        connection: ConnectionId,
        hold: bool,
        mut tell: impl FnMut(WindowEvent),
    ) {
        for window in self.of(connection) {
            let Some(mut exposed) = self.windows.remove(&(connection, window)) else {
                continue;
            };
            self.marks.remove(&exposed.mark);
            if !hold {
                exposed.registration = None;
            }
            if !exposed.abandoned.load(Ordering::Relaxed) {
                tell(WindowEvent::Quarantined { window });
            }
            self.quarantine.push(((connection, window), exposed));
        }
    }

    /// Memory of a connection that is over that was no window, but that its peer may reach in the same way.
    pub(crate) fn keep(
        &mut self,
        connection: ConnectionId,
        registration: Option<RawRegistration>,
        memory: WindowMemory,
    ) {
        let exposed = Exposed {
            registration,
            memory,
            readable: false,
            mark: 0,
            abandoned: Arc::new(AtomicBool::new(true)),
            revoking: true,
        };
        // Windows are numbered from 1 on.
        self.quarantine.push(((connection, WindowId(0)), exposed));
    }

    /// The endpoint that connections shared is closed.
    pub(crate) fn release_quarantine(&mut self, mut tell: impl FnMut(ConnectionId, WindowEvent)) {
        for ((connection, window), exposed) in self.quarantine.drain(..) {
            if let Some(event) = exposed.release(window) {
                tell(connection, event);
            }
        }
    }

    /// The endpoint that connections shared would not close: peers may use all memory for ever.
    pub(crate) fn leak_everything(&mut self) -> u64 {
        let leaked = self.len() as u64;
        std::mem::take(&mut self.windows)
            .into_values()
            .for_each(std::mem::forget);
        self.quarantine.drain(..).for_each(std::mem::forget);
        self.marks.clear();
        leaked
    }

    /// How many windows of connections that are over wait for the end of the endpoint.
    pub(crate) fn quarantined(&self) -> usize {
        self.quarantine.len()
    }

    /// The windows of one connection, in the order in which they were exposed.
    fn of(&self, connection: ConnectionId) -> Vec<WindowId> {
        let all = self.windows.keys();
        let mut windows: Vec<_> = all
            .filter(|(of, _)| *of == connection)
            .map(|(_, window)| *window)
            .collect();
        windows.sort_unstable();
        windows
    }

    /// How many windows are exposed, those that wait for their end included.
    pub(crate) fn len(&self) -> usize {
        self.windows.len() + self.quarantine.len()
    }
}

/// A window can't be staged.
fn not_direct(error: RegisterError) -> WindowError {
    match error {
        RegisterError::Device { kind, reason } => WindowError::NotDirect { kind, reason },
        error => error.into(),
    }
}

impl Exposed {
    /// Nobody can reach it: the event for the application, if it still has an interest.
    fn release(self, window: WindowId) -> Option<WindowEvent> {
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
