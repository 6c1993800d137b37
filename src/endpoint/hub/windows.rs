//! Windows at a receive endpoint: its own, which peers may use, and those of its peers, which it
//! writes and reads.

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use super::later::LaterOps;
use super::{Hub, Operation, Peer, RESERVE};
use crate::buffer::{LeaseError, LeasedPayload, Payload};
use crate::endpoint::core::outgoing;
use crate::endpoint::error::WindowError;
use crate::endpoint::event::{DeadlinePolicy, Level, ReceiveEvent};
use crate::endpoint::id::ConnectionId;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{Link, LinkConn, PostRefused, RemoteRange};
use crate::endpoint::protocol::connection::{
    CloseReason, Form, LONG_MESSAGES_MAX, Violation, WINDOW_MESSAGES_MAX,
};
use crate::endpoint::protocol::wire::{self, WindowDescriptor, WindowId};
use crate::endpoint::windows::destination::{Destination, DestinationRun, LeasedDestination};
use crate::endpoint::windows::exposed::{Named, STRAY_WRITES};
use crate::endpoint::windows::one_sided::{self, How, Local, OneSided, OneSidedRequest};
use crate::endpoint::windows::window::{
    LocalWindow, RemoteWindow, WindowEvent, WindowMemory, WindowPlace,
};
use crate::error::{Blocked, CompletionError, FabricErrno, Refused, SendErrorKind};
use crate::in_flight::ContextKind;
use crate::memory::{Access, Participant};

/// What a receive endpoint may do with windows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowSettings {
    /// Windows exposed at once; 0: peers are told that there are none, and none of theirs can be
    /// used.
    pub(crate) windows: u32,
    /// One-sided operations in flight at once.
    pub(crate) operations: u32,
    pub(crate) deadline: Option<Duration>,
    pub(crate) policy: DeadlinePolicy,
    /// Messages that are too long for a receive are taken, too.
    pub(crate) long: bool,
}

impl WindowSettings {
    /// No windows on either side.
    pub(crate) fn none() -> Self {
        Self {
            windows: 0,
            operations: 1,
            deadline: None,
            policy: DeadlinePolicy::FailConnection,
            long: false,
        }
    }

    pub(crate) fn enabled(&self) -> bool {
        self.windows > 0
    }

    /// Receives of each connection beyond its credits: [`RESERVE`], and those for what the peer
    /// says of windows and long messages.
    pub(crate) fn reserve(&self) -> u32 {
        let windows = u32::from(self.enabled()) * WINDOW_MESSAGES_MAX as u32;
        let long = u32::from(self.long) * LONG_MESSAGES_MAX as u32;
        RESERVE + windows + long
    }
}

/// The account of one-sided operations of a receive endpoint.
pub(super) struct Account {
    pub(super) posts: u64,
    /// While so many are in flight, none is posted at once: as many as there may be, or 0 while
    /// others wait.
    pub(super) limit: u32,
    pub(super) in_flight: u32,
    /// RDM form: operations of connections that are over, which the provider has not reported.
    given_up: u32,
    next_late: Option<Instant>,
    /// Connections on which an operation was refused for now.
    pub(super) blocked: Vec<ConnectionId>,
    pub(super) later: LaterOps,
}

impl Account {
    pub(super) fn new(operations: u32, contexts: ContextKind) -> Self {
        Self {
            posts: 0,
            limit: operations,
            in_flight: 0,
            given_up: 0,
            next_late: None,
            blocked: Vec::new(),
            later: LaterOps::new(contexts),
        }
    }

    /// As many as there may be have no outcome, or are not reported.
    pub(super) fn is_full(&self, operations: u32) -> bool {
        self.in_flight + self.given_up >= operations
    }
}

impl<L: Link> Hub<L> {
    // ---- windows of this side -------------------------------------------------------------------

    pub(crate) fn expose(
        &mut self,
        id: ConnectionId,
        memory: WindowMemory,
        access: Access,
    ) -> Result<LocalWindow, Refused<WindowMemory, WindowError>> {
        let Some(peer) = self.peers.get_mut(id) else {
            let kind = WindowError::NotConnected;
            return Err(Refused::without_key(kind, memory));
        };
        let own = peer.link.registrar();
        let registrar = own.unwrap_or_else(|| self.link.registrar());
        let rma = self.link.limits().rma.as_ref();
        self.exposed
            .expose(id, &mut peer.machine, registrar, rma, memory, access)
    }

    /// Begins to take a window back; false: there is nothing to take back any more.
    pub(crate) fn revoke(&mut self, window: LocalWindow, deadline: Instant) -> bool {
        let Some((id, window)) = self.exposed.begin_revoke(window) else {
            return false;
        };
        self.begin_revoke(id, window, Some(deadline));
        self.wait.wake();
        true
    }

    /// Takes back the windows whose handles were dropped.
    pub(super) fn revoke_abandoned(&mut self) {
        for (id, window) in self.exposed.take_abandoned() {
            self.begin_revoke(id, window, None);
        }
    }

    fn begin_revoke(&mut self, id: ConnectionId, window: WindowId, deadline: Option<Instant>) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.machine.revoke_window(window, deadline);
            self.touch(id);
        }
    }

    /// The peer says that it is done with a window.
    pub(super) fn retire_window(
        &mut self,
        id: ConnectionId,
        window: WindowId,
        events: &mut Vec<ReceiveEvent>,
    ) {
        self.exposed.retire(id, window);
        self.release_passed(events);
    }

    /// The connection is over: so are its windows.
    pub(super) fn retire_windows(&mut self, id: ConnectionId, events: &mut Vec<ReceiveEvent>) {
        self.exposed.retire_all(id);
        self.release_passed(events);
    }

    /// RDM form: the endpoint of all connections is closed.
    pub(super) fn release_quarantine(&mut self, events: &mut Vec<ReceiveEvent>) {
        self.exposed.close_held();
        self.release_passed(events);
    }

    /// The endpoint is closed, and others may still reach what it has.
    pub(super) fn leave_windows(&mut self, events: &mut Vec<ReceiveEvent>) {
        self.exposed.leave(|id, event| events.push(told(id, event)));
    }

    // ---- fences ---------------------------------------------------------------------------------

    /// Memory that peers could reach is to come back, here or at another endpoint of the domain:
    /// each peer is asked whether it is done.
    pub(super) fn ask_fences(&mut self) {
        let epoch = self.exposed.epoch();
        if self.fence_asked == epoch || self.shared.is_some() {
            return;
        }
        self.fence_asked = epoch;
        let now = self.clock.now();
        for (id, peer) in self.peers.iter_mut() {
            if let Some(epoch) = peer.link.participant().and_then(Participant::lags) {
                let nonce = crate::random::random_u64();
                peer.machine.fence(epoch, nonce, now);
                self.touched.push(id);
            }
        }
    }

    pub(super) fn on_fence_passed(&mut self, id: ConnectionId, epoch: u64) {
        let peer = self.peers.get(id);
        if let Some(participant) = peer.and_then(|peer| peer.link.participant()) {
            participant.pass(epoch);
        }
    }

    /// Gives back what nobody can reach any more, and hands out long messages whose senders can't
    /// write any more.
    pub(super) fn release_passed(&mut self, events: &mut Vec<ReceiveEvent>) {
        while let Some(&(epoch, id)) = self.fencing.front()
            && self.exposed.has_passed(epoch)
        {
            self.fencing.pop_front();
            self.hand_out_held(id, events);
        }
        let long = self.fencing.front().map(|(epoch, _)| *epoch);
        self.exposed
            .release_passed(long, |id, event| events.push(told(id, event)));
    }

    /// What polls have to do with fences: nothing, most of the time.
    #[inline]
    pub(super) fn mind_fences(&mut self, look_everywhere: bool, events: &mut Vec<ReceiveEvent>) {
        let waits = self.exposed.has_limbo() || !self.fencing.is_empty();
        if look_everywhere || waits {
            self.ask_fences();
            self.act_on_touched(events);
        }
        if waits {
            self.release_passed(events);
            self.act_on_touched(events);
        }
    }

    /// Registrations that belong to the provider's endpoint are closed before it; the memory stays
    /// until it is closed.
    pub(super) fn close_scoped_windows(&mut self, id: ConnectionId, conn: &L::Conn) {
        if conn.registrar().is_some() {
            self.exposed.close_all(id);
        }
    }

    /// A peer wrote with immediate data, for which nobody posted anything.
    pub(super) fn on_peer_wrote(&mut self, data: Option<u64>, events: &mut Vec<ReceiveEvent>) {
        let named = data.and_then(wire::split_written);
        let found = self.exposed.by_mark(named.map(|(mark, _)| mark));
        let (Named::Window(id, window), Some((_, data))) = (found, named) else {
            return self.on_stray_write(found);
        };
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        let held = peer.held.is_some();
        if peer.machine.on_peer_wrote().is_ok() {
            self.stats.peer_writes += 1;
            // It took no receive: its credit is free again.
            peer.count_reposted();
            match self.exposed.see_writes(id, window) {
                Ok(()) => {
                    let event = told(id, WindowEvent::PeerWrote { window, data });
                    match held {
                        false => events.push(event),
                        true => self.hold(id, event),
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "what a peer wrote can't be made visible");
                    peer.machine.on_lost(Some(FabricErrno::new(libc::EIO)));
                }
            }
        }
        self.take_late_bye(id, events);
        self.touch(id);
    }

    /// Nobody knows whose it was. Who guesses at marks finds one some time: before that, there are
    /// no windows any more.
    #[cold]
    fn on_stray_write(&mut self, named: Named) {
        self.stats.stray_writes += 1;
        if named != Named::Nothing {
            return;
        }
        for id in self.exposed.on_stray() {
            if let Some(peer) = self.peers.get_mut(id) {
                peer.machine.violate(Violation::OutOfTurn(STRAY_WRITES));
                self.touch(id);
            }
        }
    }

    /// How many windows are exposed, those that wait for their end included.
    pub(crate) fn windows(&self) -> usize {
        self.exposed.len()
    }

    // ---- windows of the peers -------------------------------------------------------------------

    pub(crate) fn open_window(
        &self,
        id: ConnectionId,
        descriptor: &WindowDescriptor,
    ) -> Result<RemoteWindow, WindowError> {
        let peer = self.peers.get(id).ok_or(WindowError::NotConnected)?;
        let rma = self.link.limits().rma.as_ref();
        one_sided::open_window(&peer.machine, id, rma, descriptor)
    }

    /// Bytes that one write may have; none: there are no windows.
    pub(crate) fn longest_write(&self) -> Option<u64> {
        let rma = self.link.limits().rma.as_ref();
        rma.filter(|_| self.settings.windows.enabled())
            .map(|rma| rma.max_bytes)
    }

    /// Posts a write, or gives everything back.
    pub(crate) fn write(
        &mut self,
        payload: Payload,
        place: WindowPlace<'_>,
        data: Option<u32>,
        level: Level,
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        let wanted = OneSidedRequest::write(place, &payload, data.is_some());
        let id = place.window.connection();
        match self.admit_one_sided(&wanted) {
            Ok(remote) => {
                let how = How::write(remote, place, data, level);
                self.post_write(id, payload, place.window.id(), &how, key)
            }
            Err(kind) => Err((kind, payload)),
        }
        .or_else(|(kind, payload)| self.write_later(kind, payload, (place, data, level), key))
        .map_err(|(kind, payload)| {
            let kind = self.refuse_one_sided(id, kind);
            Refused {
                kind,
                given: payload,
                key,
            }
        })
    }

    pub(super) fn post_write(
        &mut self,
        id: ConnectionId,
        payload: Payload,
        window: WindowId,
        how: &How,
        key: u64,
    ) -> Result<(), (SendErrorKind, Payload)> {
        let mut iov = IovList::new();
        let Some(scope) = self.scope_of(id) else {
            return Err((WindowError::NotConnected.into(), payload));
        };
        let mut lease = || payload.lease(scope, &mut |base, len, desc| iov.push(base, len, desc));
        let leases = match lease() {
            Ok(leases) => leases,
            Err(LeaseError::ForeignBuffer { segment }) => {
                return Err((SendErrorKind::ForeignBuffer { segment }, payload));
            }
            Err(LeaseError::NotRegistered { segment }) => {
                return Err((SendErrorKind::NotRegistered { segment }, payload));
            }
            Err(LeaseError::Staged { segment }) => {
                return Err((SendErrorKind::NotStaged { segment }, payload));
            }
        };
        // SAFETY: the leases are this payload's.
        let payload = unsafe { LeasedPayload::new(payload, leases) };
        let posted = self.post_one_sided(id, key, window, Local::Write(payload), &iov, how);
        posted.map_err(|(kind, op)| match op.local {
            Local::Write(payload) => (kind, payload.into_payload()),
            Local::Read(_) | Local::Passage(_) => unreachable!("it was a write"),
        })
    }

    /// Posts a read, or gives everything back.
    pub(crate) fn read(
        &mut self,
        into: Destination,
        place: WindowPlace<'_>,
        key: u64,
    ) -> Result<(), Refused<Destination>> {
        let wanted = OneSidedRequest::read(place, &into);
        let id = place.window.connection();
        match self.admit_one_sided(&wanted) {
            Ok(remote) => self.post_read(id, into, place.window.id(), remote, key),
            Err(kind) => Err((kind, into)),
        }
        .or_else(|(kind, into)| self.read_later(kind, into, place, key))
        .map_err(|(kind, into)| {
            let kind = self.refuse_one_sided(id, kind);
            Refused {
                kind,
                given: into,
                key,
            }
        })
    }

    pub(super) fn post_read(
        &mut self,
        id: ConnectionId,
        into: Destination,
        window: WindowId,
        remote: RemoteRange,
        key: u64,
    ) -> Result<(), (SendErrorKind, Destination)> {
        let (into, run) = self.lease_destination(id, into)?;
        let mut iov = IovList::new();
        iov.push(run.base, run.len, run.desc);
        let how = How::read(remote);
        let posted = self.post_one_sided(id, key, window, Local::Read(into), &iov, &how);
        posted.map_err(|(kind, op)| match op.local {
            Local::Read(into) => (kind, into.into_destination()),
            Local::Write(_) | Local::Passage(_) => unreachable!("it was a read"),
        })
    }

    /// Keeps the destination's registration open.
    pub(super) fn lease_destination(
        &self,
        id: ConnectionId,
        into: Destination,
    ) -> Result<(LeasedDestination, DestinationRun), (SendErrorKind, Destination)> {
        let leased = match self.scope_of(id) {
            Some(scope) => into.lease(scope),
            None => Err(into),
        };
        leased.map_err(|into| (outgoing::not_here(into.region(), 0), into))
    }

    pub(super) fn scope_of(&self, id: ConnectionId) -> Option<crate::memory::Scope> {
        self.peers.get(id).map(|peer| peer.scoped.scope())
    }

    /// Everything that can be said of an operation before anything is taken for it.
    fn admit_one_sided(&self, wanted: &OneSidedRequest<'_>) -> Result<RemoteRange, SendErrorKind> {
        let id = wanted.place.window.connection();
        let peer = self
            .peers
            .get(id)
            .ok_or(SendErrorKind::Window(WindowError::WrongConnection))?;
        let rma = self.link.limits().rma.as_ref();
        let blocked = may_use(peer, wanted.immediate);
        if let Err(refused @ (SendErrorKind::Closed(_) | SendErrorKind::Closing)) = blocked {
            return Err(refused);
        }
        // What can never be is said first: who is blocked tries again.
        let remote = one_sided::check(&peer.machine, id, rma, wanted)?;
        blocked?;
        if self.account.is_full(self.account.limit) {
            return Err(SendErrorKind::WouldBlock(Blocked::Depth));
        }
        Ok(remote)
    }

    fn refuse_one_sided(&mut self, id: ConnectionId, kind: SendErrorKind) -> SendErrorKind {
        if kind == SendErrorKind::WouldBlock(Blocked::Staging) {
            self.wait_for_slot(id);
        } else if matches!(kind, SendErrorKind::WouldBlock(_))
            && !self.account.blocked.contains(&id)
        {
            self.account.blocked.push(id);
        }
        kind
    }

    fn post_one_sided(
        &mut self,
        id: ConnectionId,
        key: u64,
        window: WindowId,
        local: Local,
        iov: &IovList,
        how: &How,
    ) -> Result<(), (SendErrorKind, OneSided)> {
        let op = self.one_sided_op(key, window, local);
        let Some(peer) = self.peers.get_mut(id) else {
            return Err((WindowError::NotConnected.into(), op));
        };
        let sent = one_sided::post(
            &mut self.link,
            &peer.link,
            &mut peer.machine,
            &mut self.operations,
            (id, Operation::OneSided(op)),
            iov,
            how,
        );
        let (refused, op) = match sent {
            Ok(()) => {
                self.count_one_sided_posted();
                return Ok(());
            }
            Err((refused, (_, Operation::OneSided(op)))) => (refused, op),
            Err(_) => unreachable!("what was given to the slab"),
        };
        self.retry |= refused == PostRefused::Again;
        Err((one_sided::refused_by_provider(refused, how.write), op))
    }

    /// An operation that is about to be posted, or to wait.
    pub(super) fn one_sided_op(&mut self, key: u64, window: WindowId, local: Local) -> OneSided {
        self.account.posts += 1;
        let posted = self.settings.windows.deadline.map(|deadline| {
            let now = self.clock.now();
            self.account.next_late.get_or_insert(now + deadline);
            now
        });
        OneSided {
            key,
            window,
            local,
            sequence: self.account.posts,
            posted,
            told: false,
            recent: false,
        }
    }

    pub(super) fn count_one_sided_posted(&mut self) {
        self.account.in_flight += 1;
        self.stats.posted += 1;
        let late = self.next_late();
        self.timer_stale |= late.is_some_and(|at| self.armed.is_none_or(|armed| at < armed));
    }

    /// An operation is over.
    pub(super) fn on_one_sided(
        &mut self,
        id: ConnectionId,
        op: OneSided,
        error: Option<CompletionError>,
        events: &mut Vec<ReceiveEvent>,
    ) {
        if op.told {
            // The outcome was told when its connection ended.
            if self.link.form() == Form::Rdm {
                self.account.given_up -= 1;
                self.on_orphan(id);
                events.extend(op.give_back(None).map(|event| told(id, event)));
            }
            return;
        }
        self.account.in_flight -= 1;
        if let Some(peer) = self.peers.get_mut(id) {
            peer.machine.on_window_done(op.window);
            if let Some(error) = &error {
                peer.machine.on_lost(Some(error.errno));
            }
            self.touch(id);
        }
        match &error {
            None => self.stats.completed += 1,
            Some(_) => self.stats.failed += 1,
        }
        events.push(told(id, op.finish(error)));
    }

    /// The peer revoked one of its windows: the application hears of it, the machine of who still
    /// uses it.
    pub(super) fn on_window_revoked(
        &mut self,
        id: ConnectionId,
        window: WindowId,
        events: &mut Vec<ReceiveEvent>,
    ) {
        let uses = |(peer, op): &&(_, Operation)| match op {
            Operation::OneSided(op) => *peer == id && op.window == window,
            Operation::Data { .. } => false,
        };
        let posted = self.operations.iter().filter(uses).count();
        let (over, passing) = self.account.later.revoke(id, window);
        events.push(told(id, WindowEvent::Revoked { window }));
        // Which are none of its users any more.
        self.on_line_over(id, over, events);
        if let Some(peer) = self.peers.get_mut(id) {
            let users = posted + passing;
            peer.machine.window_in_use(window, users as u32);
        }
    }

    /// The provider's endpoint is closed: what it did not report is over.
    pub(super) fn fail_one_sided(
        &mut self,
        id: ConnectionId,
        mut ops: Vec<OneSided>,
        reason: CloseReason,
        events: &mut Vec<ReceiveEvent>,
    ) {
        ops.sort_unstable_by_key(|op| op.sequence);
        for op in ops {
            let cancelled = CompletionError::ended(reason);
            self.on_one_sided(id, op, Some(cancelled), events);
        }
    }

    /// The provider's endpoint would not close: the operations stay in the slab, and their outcomes
    /// are told now. Peers may use the windows for ever. How many operations and windows were given
    /// up.
    pub(super) fn leak_one_sided(
        &mut self,
        id: ConnectionId,
        errno: FabricErrno,
        events: &mut Vec<ReceiveEvent>,
    ) -> u64 {
        let error = CompletionError {
            provider_message: "fi_close refused; the memory is leaked".to_owned(),
            ..CompletionError::new(errno.get())
        };
        self.tell_unfinished(id, &error, events);
        self.exposed.leak_all(id)
    }

    /// RDM form: the connection is over, but not its operations. Their outcomes are told now,
    /// though the provider has their memory until it reports them, or until the endpoint is closed.
    /// How many.
    pub(super) fn give_up_one_sided(
        &mut self,
        id: ConnectionId,
        events: &mut Vec<ReceiveEvent>,
    ) -> u32 {
        let error = CompletionError {
            provider_message: "the connection is over; the provider still has the memory"
                .to_owned(),
            ..CompletionError::new(libc::ECANCELED)
        };
        let operations = self.tell_unfinished(id, &error, events);
        self.account.given_up += operations;
        operations
    }

    /// The operations of a connection stay in the slab, and their outcomes are told. How many.
    fn tell_unfinished(
        &mut self,
        id: ConnectionId,
        error: &CompletionError,
        events: &mut Vec<ReceiveEvent>,
    ) -> u32 {
        let mut keys = Vec::new();
        for (peer, op) in self.operations.iter_mut() {
            if let Operation::OneSided(op) = op
                && *peer == id
                && !std::mem::replace(&mut op.told, true)
            {
                op.posted = None;
                keys.push((op.sequence, op.key, op.is_write()));
            }
        }
        keys.sort_unstable();
        let operations = keys.len() as u32;
        self.account.in_flight -= operations;
        self.stats.failed += u64::from(operations);
        for (_, key, write) in keys {
            events.push(told(id, OneSided::leaked(key, write, error.clone())));
        }
        operations
    }

    /// RDM form: the endpoint is closed, and what the provider did not report is over.
    pub(super) fn return_one_sided(
        &mut self,
        mut over: Vec<(ConnectionId, OneSided)>,
        events: &mut Vec<ReceiveEvent>,
    ) {
        let rma = self.link.limits().rma;
        over.sort_unstable_by_key(|(_, op)| op.sequence);
        for (id, op) in over {
            let returned = op.give_back(rma.as_ref());
            events.extend(returned.map(|event| told(id, event)));
        }
        self.account.given_up = 0;
    }

    /// Operations whose outcome nobody hears, because the endpoint is dropped.
    pub(super) fn abandon_one_sided(&mut self) {
        let abandoned = u64::from(std::mem::take(&mut self.account.in_flight));
        crate::stats::count_abandoned(abandoned);
    }

    // ---- time and wake-ups ----------------------------------------------------------------------

    /// When the oldest operation may be late.
    pub(super) fn next_late(&self) -> Option<Instant> {
        self.account
            .next_late
            .filter(|_| self.account.in_flight > 0)
    }

    /// Looks at each operation in flight when the oldest may be late.
    pub(super) fn check_one_sided_deadlines(
        &mut self,
        now: Instant,
        events: &mut Vec<ReceiveEvent>,
    ) {
        let WindowSettings {
            deadline, policy, ..
        } = self.settings.windows;
        let (Some(deadline), Some(next)) = (deadline, self.next_late()) else {
            return;
        };
        if now < next {
            return;
        }
        let mut earliest = None;
        let mut late = Vec::new();
        let posted = self.operations.iter_mut();
        let posted = posted.filter_map(|(peer, op)| match op {
            Operation::OneSided(op) => Some((*peer, op)),
            Operation::Data { .. } => None,
        });
        for (peer, op) in posted.chain(self.account.later.ops_mut()) {
            let Some(due) = op.posted.map(|posted| posted + deadline) else {
                continue;
            };
            if now < due {
                earliest = Some(earliest.map_or(due, |at: Instant| at.min(due)));
            } else {
                op.posted = None;
                late.push((peer, op.key));
            }
        }
        self.account.next_late = earliest;
        self.timer_stale = true;
        for (id, key) in late {
            if policy == DeadlinePolicy::Notify {
                events.push(ReceiveEvent::Late {
                    connection: id,
                    key,
                });
            } else if let Some(peer) = self.peers.get_mut(id) {
                peer.machine.abort(CloseReason::SendDeadline { deadline });
                self.touch(id);
            }
        }
    }

    /// Tells whose operations were refused for now that they may be taken.
    pub(super) fn tell_writable(&mut self, events: &mut Vec<ReceiveEvent>) {
        self.tell_starved(events);
        if self.account.blocked.is_empty() || self.account.is_full(self.settings.windows.operations)
        {
            return;
        }
        let mut blocked = std::mem::take(&mut self.account.blocked);
        blocked.retain(|id| {
            let Some(peer) = self.peers.get(*id) else {
                return false;
            };
            if may_use(peer, false).is_err() {
                return true;
            }
            events.push(ReceiveEvent::Writable { connection: *id });
            false
        });
        self.account.blocked = blocked;
    }

    pub(crate) fn one_sided_in_flight(&self) -> u32 {
        self.account.in_flight
    }
}

pub(super) fn told(connection: ConnectionId, event: WindowEvent) -> ReceiveEvent {
    ReceiveEvent::Window { connection, event }
}

pub(super) fn may_use<C>(peer: &Peer<C>, immediate: bool) -> Result<(), SendErrorKind> {
    let may = if immediate {
        peer.machine.may_send()
    } else {
        peer.machine.may_use_window()
    };
    may.map_err(|blocked| outgoing::refusal(blocked, peer.machine.close_reason()))
}
