//! `ExposedWindows`: the memory that an endpoint's peers may use, and the registrations that let
//! them; and what they may still reach behind a registration that is closed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cuda::CudaError;
use crate::endpoint::error::{Refused, WindowError};
use crate::endpoint::link::RmaLimits;
use crate::endpoint::link::wait::EndpointWait;
use crate::endpoint::windows::unreleased::{Exposed, Unreleased};
use crate::endpoint::windows::window::{DropSignal, LocalWindow, WindowEvent, WindowMemory};
use crate::fabric::AccessEnds;
use crate::id::ConnectionId;
use crate::memory::{Access, AccessLedger, RawRegistration, RegisterError, Registrar, Watcher};
use crate::protocol::connection::Connection;
use crate::protocol::wire::{INDEX_MASK, WindowDescriptor, WindowId};

/// How often another mark is drawn where one is taken: with 65,536 of 16,777,216 in use, the last
/// of these fails once in 10^19.
const MARK_ATTEMPTS: u32 = 8;

/// Writes that name no window until everything is ended that somebody may be guessing at. A
/// completion does not say whose it is, and one guess in 16,777,216 finds a window: so few find
/// none.
const STRAYS_MAX: u32 = 16;

/// Why those connections end.
pub(crate) const STRAY_WRITES: &str =
    "somebody, this peer or another one, wrote 16 times to windows that there are not";

/// Marks of windows that are over are remembered, so many of them: what an honest peer had on its
/// way to one is no guess.
const RETIRED_MARKS_MAX: usize = 65_536;

/// What the mark of a write says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteMark {
    Window(ConnectionId, WindowId),
    /// One that is over: the write may have been on its way.
    Retired,
    Nothing,
}

/// The epoch of what is registered until the endpoint is closed: it has not begun.
const NOT_BEGUN: u64 = u64::MAX;

/// The windows of all connections of an endpoint.
///
/// A key is good over every connection of its domain, and nothing that a provider began ends with
/// the close of a registration. So the memory of a window that is over is kept as [`Unreleased`],
/// and is free when the domain's ledger says so ([`AccessEnds`] says when it does), or at once
/// where the close of the registration is enough. What is not released when the endpoint goes away
/// is the ledger's.
#[derive(Debug)]
pub(crate) struct ExposedWindows {
    windows: HashMap<(ConnectionId, WindowId), Exposed>,
    /// In the order of their epochs, but for those that have not begun.
    unreleased: VecDeque<Unreleased>,
    /// What peers name a window by in the immediate data of a write. Drawn at random: a peer that
    /// is told one can't guess another's. None: the window is over.
    marks: HashMap<u32, Option<(ConnectionId, WindowId)>>,
    retired_marks: VecDeque<u32>,
    /// Writes that named nothing, since the last time that there were too many.
    strays: u32,
    limit: u32,
    drops: Arc<DropSignal>,
    ends: AccessEnds,
    /// Registrations stay open until the endpoint is closed.
    hold: bool,
    /// The application was not told yet of something that is not released.
    has_untold: bool,
    /// The epoch that this endpoint is woken for.
    awaited: u64,
    watcher: Watcher,
}

impl ExposedWindows {
    pub(crate) fn new(
        limit: u32,
        wait: &Arc<EndpointWait>,
        ledger: &Arc<AccessLedger>,
        rma: Option<&RmaLimits>,
    ) -> Self {
        let wakes = Arc::clone(wait);
        Self {
            windows: HashMap::new(),
            unreleased: VecDeque::new(),
            marks: HashMap::new(),
            retired_marks: VecDeque::new(),
            strays: 0,
            limit,
            drops: Arc::new(DropSignal::new(wait)),
            ends: rma.map_or(AccessEnds::WithEndpoint, |rma| rma.access_ends),
            has_untold: false,
            hold: rma.is_some_and(|rma| rma.holds_registrations),
            awaited: 0,
            watcher: ledger.watch(Arc::new(move || wakes.wake())),
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
    ) -> Result<LocalWindow, Refused<WindowMemory, WindowError>> {
        match self.try_expose(connection, machine, registrar, rma, &mut memory, access) {
            Ok((registration, descriptor)) => {
                Ok(self.add(connection, memory, registration, descriptor))
            }
            Err(kind) => Err(Refused::without_key(kind, memory)),
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
        let handle = LocalWindow::new(descriptor, connection, &abandoned, &self.drops);
        let id = (connection, descriptor.window);
        self.marks.insert(descriptor.mark, Some(id));
        let exposed = Exposed {
            registration: Some(registration),
            memory,
            mark: descriptor.mark,
            abandoned,
            revoking: false,
        };
        self.windows.insert(id, exposed);
        handle
    }

    /// The application wants a window back: which one's revocation is to begin. `None`: it is back
    /// already. One of another endpoint is given back as it is.
    pub(crate) fn begin_revoke(
        &mut self,
        window: LocalWindow,
    ) -> Result<Option<(ConnectionId, WindowId)>, Refused<LocalWindow, WindowError>> {
        if !window.is_of(&self.drops) {
            return Err(Refused::without_key(WindowError::WrongConnection, window));
        }
        let id = (window.connection(), window.id());
        window.settle();
        let exposed = self.windows.get_mut(&id);
        Ok(exposed.map(|exposed| {
            exposed.revoking = true;
            id
        }))
    }

    /// The windows whose handles were dropped since the last look: their revocations are to begin.
    pub(crate) fn take_abandoned(&mut self) -> Vec<(ConnectionId, WindowId)> {
        if !self.drops.take() {
            return Vec::new();
        }
        let mut found = Vec::new();
        for (id, exposed) in &mut self.windows {
            if exposed.abandoned.load(Ordering::Relaxed) && !exposed.revoking {
                exposed.revoking = true;
                found.push(*id);
            }
        }
        found
    }

    /// What a peer's immediate data name. Any peer can send any number, and that somebody knows the
    /// mark is all that it says.
    pub(crate) fn by_mark(&self, mark: Option<u32>) -> WriteMark {
        match mark.and_then(|mark| self.marks.get(&mark)) {
            Some(Some((connection, window))) => WriteMark::Window(*connection, *window),
            Some(None) => WriteMark::Retired,
            None => WriteMark::Nothing,
        }
    }

    /// A write named nothing. Where there were too many of them: the connections that have windows,
    /// all of which are to be ended.
    pub(crate) fn on_stray(&mut self) -> Vec<ConnectionId> {
        self.strays += 1;
        if self.strays < STRAYS_MAX {
            return Vec::new();
        }
        self.strays = 0;
        self.connections()
    }

    fn retire_mark(&mut self, mark: u32) {
        self.marks.insert(mark, None);
        self.retired_marks.push_back(mark);
        if self.retired_marks.len() > RETIRED_MARKS_MAX
            && let Some(oldest) = self.retired_marks.pop_front()
        {
            self.marks.remove(&oldest);
        }
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

    /// Registrations that belong to an endpoint are closed before it. What began may still be under
    /// way: the memory stays.
    pub(crate) fn close_all(&mut self, connection: ConnectionId) {
        for window in self.of(connection) {
            if let Some(exposed) = self.windows.get_mut(&(connection, window)) {
                exposed.registration = None;
            }
        }
    }

    /// The peer says that it is done with a window: its registration is closed.
    /// [`release_passed`](Self::release_passed) gives it back.
    pub(crate) fn retire(&mut self, connection: ConnectionId, window: WindowId) {
        self.retire_these(connection, &[window]);
    }

    /// A connection is over: so are its windows.
    pub(crate) fn retire_all(&mut self, connection: ConnectionId) {
        let windows = self.of(connection);
        self.retire_these(connection, &windows);
    }

    fn retire_these(&mut self, connection: ConnectionId, windows: &[WindowId]) {
        let mut retired = Vec::new();
        for &window in windows {
            if let Some(exposed) = self.windows.remove(&(connection, window)) {
                self.retire_mark(exposed.mark);
                retired.push(Unreleased {
                    epoch: NOT_BEGUN,
                    connection,
                    window,
                    told: exposed.abandoned.load(Ordering::Relaxed),
                    exposed,
                });
            }
        }
        self.keep_unreleased(retired);
    }

    fn keep_unreleased(&mut self, mut retired: Vec<Unreleased>) {
        if !self.hold {
            for unreleased in &mut retired {
                unreleased.exposed.registration = None;
            }
            self.begin_for(&mut retired);
        }
        self.has_untold |= !retired.is_empty();
        self.unreleased.extend(retired);
    }

    /// Their registrations are closed: the next epoch is theirs, or none where that is enough.
    fn begin_for(&self, retired: &mut [Unreleased]) {
        if retired.is_empty() {
            return;
        }
        let epoch = match self.ends {
            AccessEnds::WithKey => 0,
            AccessEnds::BehindFence | AccessEnds::WithEndpoint => self.watcher.begin(),
        };
        retired
            .iter_mut()
            .for_each(|unreleased| unreleased.epoch = epoch);
    }

    /// Memory that was no window, and whose registration, if there is one, was told to a peer that
    /// can do no more about it.
    pub(crate) fn keep(
        &mut self,
        connection: ConnectionId,
        registration: Option<RawRegistration>,
        memory: WindowMemory,
    ) {
        let unreleased = Unreleased::of_nobody(connection, NOT_BEGUN, registration, memory);
        self.keep_unreleased(vec![unreleased]);
    }

    /// The same where the registration was closed before an epoch that has begun.
    pub(crate) fn keep_until(
        &mut self,
        connection: ConnectionId,
        epoch: u64,
        memory: WindowMemory,
    ) {
        let unreleased = Unreleased::of_nobody(connection, epoch, None, memory);
        let later = self
            .unreleased
            .iter()
            .rposition(|other| other.epoch <= epoch);
        self.unreleased
            .insert(later.map_or(0, |at| at + 1), unreleased);
    }

    /// A registration of no window was closed that a peer had been told. `None`: that is enough.
    /// Else the epoch from which on the memory is free.
    pub(crate) fn begin(&self) -> Option<u64> {
        (self.ends == AccessEnds::BehindFence).then(|| self.watcher.begin())
    }

    /// The domain's epoch, for connections to pass.
    pub(crate) fn epoch(&self) -> u64 {
        self.watcher.ledger().epoch()
    }

    /// The last epoch that everybody has passed.
    pub(crate) fn passed(&self) -> u64 {
        self.watcher.ledger().passed()
    }

    /// Whether everybody has passed it.
    pub(crate) fn has_passed(&self, epoch: u64) -> bool {
        self.passed() >= epoch
    }

    /// Whether everybody has passed it but for those that are leaving.
    pub(crate) fn has_passed_by_staying(&self, epoch: u64) -> bool {
        self.watcher.ledger().passed_by_staying() >= epoch
    }

    /// Has this endpoint woken when only those that are leaving have not passed an epoch; false:
    /// it is so now.
    pub(crate) fn wait_for_staying(&self, epoch: u64) -> bool {
        self.watcher.wait_for_staying(epoch)
    }

    /// Whether there is memory that waits for others.
    #[inline]
    pub(crate) fn has_unreleased(&self) -> bool {
        !self.unreleased.is_empty()
    }

    /// Gives back what nobody can reach any more. What else waits for an epoch of the domain's, is
    /// woken for, too: `also`.
    pub(crate) fn release_passed(
        &mut self,
        also: Option<u64>,
        mut tell: impl FnMut(ConnectionId, WindowEvent),
    ) {
        loop {
            let passed = self.watcher.ledger().passed();
            while self.unreleased.front().is_some_and(|it| it.epoch <= passed)
                && let Some(unreleased) = self.unreleased.pop_front()
            {
                if let Some(event) = unreleased.exposed.release(unreleased.window) {
                    tell(unreleased.connection, event);
                }
            }
            if self.ends == AccessEnds::WithEndpoint && std::mem::take(&mut self.has_untold) {
                self.tell_quarantined(&mut tell);
            }
            let first = self.unreleased.front().map(|unreleased| unreleased.epoch);
            let first = first.filter(|epoch| *epoch != NOT_BEGUN);
            let Some(next) = first.into_iter().chain(also).min() else {
                return;
            };
            if next == self.awaited || next <= passed {
                return;
            }
            self.awaited = next;
            if self.watcher.wait_for(next) {
                return;
            }
        }
    }

    /// What is not released comes back with the end of an endpoint only, which may be far: the
    /// application hears of each once.
    fn tell_quarantined(&mut self, mut tell: impl FnMut(ConnectionId, WindowEvent)) {
        for unreleased in self.unreleased.iter_mut().filter(|it| !it.told) {
            unreleased.told = true;
            let window = unreleased.window;
            tell(unreleased.connection, WindowEvent::Quarantined { window });
        }
    }

    /// The endpoint that connections shared is closed: nothing holds a registration open any more.
    pub(crate) fn close_held(&mut self) {
        let late = self.unreleased.iter().position(|it| it.epoch == NOT_BEGUN);
        let mut held: Vec<_> = self
            .unreleased
            .drain(late.unwrap_or(self.unreleased.len())..)
            .collect();
        for unreleased in &mut held {
            unreleased.exposed.registration = None;
        }
        self.begin_for(&mut held);
        self.unreleased.extend(held);
    }

    /// The endpoint goes away: what others may still reach is kept for them. `tell`: the
    /// application hears what does not come back.
    pub(crate) fn leave(&mut self, mut tell: impl FnMut(ConnectionId, WindowEvent)) {
        for connection in self.connections() {
            self.retire_all(connection);
        }
        self.close_held();
        self.release_passed(None, &mut tell);
        for unreleased in self.unreleased.drain(..) {
            if !unreleased.told {
                let window = unreleased.window;
                tell(unreleased.connection, WindowEvent::Quarantined { window });
            }
            let memory = Box::new(unreleased.exposed);
            self.watcher.ledger().keep(unreleased.epoch, memory);
        }
    }

    fn connections(&self) -> Vec<ConnectionId> {
        let mut all: Vec<_> = self.windows.keys().map(|(of, _)| *of).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The provider's endpoint would not close: its peer may use the memory for ever.
    pub(crate) fn leak_all(&mut self, connection: ConnectionId) -> u64 {
        let windows = self.of(connection);
        for window in &windows {
            if let Some(exposed) = self.windows.remove(&(connection, *window)) {
                self.retire_mark(exposed.mark);
                std::mem::forget(exposed);
            }
        }
        windows.len() as u64
    }

    /// The endpoint that connections shared would not close: peers may use all memory for ever.
    pub(crate) fn leak_everything(&mut self) -> u64 {
        let leaked = self.len() as u64;
        std::mem::take(&mut self.windows)
            .into_values()
            .for_each(std::mem::forget);
        self.unreleased.drain(..).for_each(std::mem::forget);
        self.marks.clear();
        leaked
    }

    /// How many windows are over, and what they had is not free.
    pub(crate) fn quarantined(&self) -> usize {
        self.unreleased.len()
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
        self.windows.len() + self.unreleased.len()
    }
}

impl Drop for ExposedWindows {
    fn drop(&mut self) {
        self.leave(|_, _| {});
    }
}

/// A window can't be staged.
fn not_direct(error: RegisterError) -> WindowError {
    match error {
        RegisterError::Device { kind, reason } => WindowError::NotDirect { kind, reason },
        error => error.into(),
    }
}
