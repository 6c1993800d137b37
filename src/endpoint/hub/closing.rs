//! How connections end, one or all, and what becomes of what they had in flight.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Hub;
use super::fencing::EndedConnection;
use super::long_receive::BehindFence;
use super::outbound::{Outbound, PeerOutbound};
use super::peer::{Descriptors, Peer};
use crate::Error;
use crate::contain::say;
use crate::endpoint::event::{ConnectionEvent, ReceiveEvent};
use crate::endpoint::hub::data_op::DataOp;
use crate::endpoint::hub::event::{HubEvent, Tell};
use crate::endpoint::hub::long_send::LongSend;
use crate::endpoint::hub::posted::{MessageOp, OrphanedLong};
use crate::endpoint::hub::scoped::ScopedRegistrations;
use crate::endpoint::link::{CloseFailed, Link, LinkConn};
use crate::endpoint::windows::one_sided::OneSided;
use crate::error::{CompletionError, FabricErrno};
use crate::fabric::PeerAddr;
use crate::id::ConnectionId;
use crate::in_flight::{ContextKind, InFlight};
use crate::protocol::connection::{CloseReason, Form};
use crate::protocol::wire::{ByeReason, HeaderMode, Refusal, RefusalCode};
use crate::stats;

/// Reads of the completion queue in one poll, beyond its first, for connections whose end waits for
/// what lies in it.
const MARK_READS_MAX: usize = 16;

/// What waits until the completions that lay in the queue were read.
pub(super) enum Mark {
    /// The peer is gone: its last messages, and its goodbye, may be among them.
    Gone(ConnectionId),
    /// The provider's endpoint is closed: what it still reports must be found in the slab.
    Closed(Box<Closed>),
}

/// A connection without an endpoint.
pub(super) struct Closed {
    id: ConnectionId,
    reason: CloseReason,
    addr: Option<PeerAddr>,
    established: bool,
    dialed: bool,
    header_mode: HeaderMode,
    /// Long messages that wait for fences, and what came behind them; until when, and what is told
    /// then.
    held: Option<VecDeque<BehindFence>>,
    until: (Instant, CloseReason),
    /// The descriptors that operations of the connection used.
    _descriptors: Arc<Descriptors>,
    _scoped: ScopedRegistrations,
    outbound: PeerOutbound,
}

/// What a connection that is over had waiting.
#[derive(Default)]
struct NeverPosted {
    messages: Vec<DataOp>,
    /// Behind those.
    long: Option<Box<LongSend>>,
    operations: Vec<OneSided>,
}

impl<L: Link, E: HubEvent> Hub<L, E> {
    /// Begins the polite close of one connection: true if there is such a connection.
    pub(crate) fn begin_close(&mut self, id: ConnectionId, deadline: Instant) -> bool {
        if let Some(mut sender) = self.sender(id) {
            sender.post_frame();
        }
        let Some(peer) = self.peers.get_mut(id) else {
            return false;
        };
        let reason = match self.settings.accepts {
            true => ByeReason::CLOSING,
            false => ByeReason::DONE,
        };
        peer.machine.close(reason, deadline);
        // It may be over before the timer runs out.
        self.timer.forget();
        self.touch(id);
        self.wait.wake();
        true
    }

    /// Begins the polite close of every connection; requests are refused from now on.
    pub(crate) fn begin_close_all(&mut self, deadline: Instant) {
        self.state.closing = true;
        if self.fencing.close_by(deadline) {
            self.timer.forget();
            self.wait.wake();
        }
        let waiting: Vec<_> = self.cm.requests.keys().copied().collect();
        for id in waiting {
            let refusal = Refusal::new(RefusalCode::CLOSING, [0, 0]);
            // A refusal has no event.
            self.answer(id, Some(refusal), &mut Vec::new());
        }
        let ids = self.peers.ids();
        for id in ids {
            self.begin_close(id, deadline);
        }
    }

    /// Polls until every connection is closed; requests are refused meanwhile.
    pub(crate) fn close(&mut self, deadline: Instant) -> Result<Vec<E>, Error> {
        let mut events = Vec::new();
        self.begin_close_all(deadline);
        while self.connections() > 0 {
            self.drive(&mut events);
            if self.connections() > 0 {
                self.wait
                    .sleep(self.timer.now() + Duration::from_millis(100))?;
            }
        }
        self.release_shared(&mut events);
        self.leave_windows(&mut events);
        Ok(events)
    }

    pub(super) fn close_conn(
        &mut self,
        id: ConnectionId,
        reason: CloseReason,
        events: &mut Vec<E>,
    ) {
        let Some(mut peer) = self.take_closed(id, reason) else {
            return;
        };
        let addr = peer.link.peer();
        if self.shared.is_some() {
            let never_posted = self.take_unposted(&mut peer.outbound);
            self.outbound.tell_kept(id, events);
            self.fail_unposted(never_posted, reason, events);
            self.retire_windows(id, events);
            let posts = peer.controls.posted() + self.outbound.posted.count_of(id);
            self.leave_shared(id, peer.receives.posted, posts, peer.link);
        } else {
            match self.link.close(peer.link) {
                Ok(()) => {
                    let until = peer.machine.hands_out_until(self.timer.now());
                    return self.cq.marks.leave(Mark::Closed(Box::new(Closed {
                        id,
                        reason,
                        addr,
                        established: peer.established,
                        dialed: peer.dialed,
                        header_mode: peer.header_mode,
                        held: peer.long.held,
                        until,
                        _descriptors: peer.descriptors,
                        _scoped: peer.scoped,
                        outbound: peer.outbound,
                    })));
                }
                Err(CloseFailed(errno)) => {
                    // Before code of others can be called, which may panic: the slabs are never
                    // freed.
                    self.state.leaked = true;
                    std::mem::forget(peer.descriptors);
                    peer.scoped.leak();
                    self.abandon_held(id, peer.long.held);
                    peer.outbound.leak();
                    let never_posted = self.take_unposted(&mut peer.outbound);
                    self.leak_ops_of(id, errno, events);
                    self.fail_unposted(never_posted, reason, events);
                }
            }
        }
        self.tell_end(id, addr, reason, (peer.established, peer.dialed), events);
    }

    /// Takes a connection out that is over: nobody looks at it any more, and what peers could use
    /// of it is closed, as far as its endpoint has to be open for that.
    fn take_closed(&mut self, id: ConnectionId, reason: CloseReason) -> Option<Box<Peer<L::Conn>>> {
        let mut peer = self.peers.remove(id)?;
        self.directory.remove(peer.link.key(), peer.established);
        if peer.receives.hungry {
            self.buffers.hungry.retain(|hungry| *hungry != id);
        }
        if peer.liveness.timed {
            self.timer.disturb();
        }
        let orderly = matches!(reason, CloseReason::Finished | CloseReason::ClosedLocally);
        self.stats.lost.add(u64::from(!orderly && peer.established));
        self.stats.closed.add(u64::from(peer.established));
        self.close_scoped_windows(id, &peer.link);
        self.leave_long(id, &mut peer);
        self.release_drained(&mut peer);
        Some(peer)
    }

    /// Registrations that belong to a connection's endpoint are closed before it, when nothing uses
    /// them any more. Receives are always posted, so theirs are closed behind it.
    fn release_drained(&mut self, peer: &mut Peer<L::Conn>) {
        if peer.link.registrar().is_some() && peer.outbound.in_flight == 0 {
            self.outbound.outgoing.rest();
            peer.outbound.release();
            peer.scoped.close();
        }
    }

    pub(super) fn tell_end(
        &mut self,
        id: ConnectionId,
        addr: Option<PeerAddr>,
        reason: CloseReason,
        (established, dialed): (bool, bool),
        events: &mut Vec<E>,
    ) {
        if established {
            events.tell(ReceiveEvent::Connection(
                id,
                ConnectionEvent::Disconnected(reason),
            ));
            self.log.ended(self.timer.now(), id, addr, &reason);
        } else {
            self.stats.refused.add(u64::from(!dialed));
            self.log.refused(self.timer.now(), addr, &reason);
        }
        if dialed {
            self.on_dialed_over(id, reason, established, events);
        }
    }

    /// Acts on what was touched, and reads on for connections whose end waits for what lies in the
    /// queue: so often at most that a peer that fills it does not keep this poll. What is left
    /// makes the endpoint ready again.
    pub(super) fn act_and_end(&mut self, events: &mut Vec<E>) {
        self.act_on_touched(events);
        for _ in 0..MARK_READS_MAX {
            if self.cq.marks.is_empty() {
                return;
            }
            self.read_completions(events);
            self.feed(events);
            while let Some(mark) = self.cq.marks.take_passed() {
                self.on_mark(mark, events);
            }
            self.act_on_touched(events);
        }
        if !self.cq.marks.is_empty() {
            self.wait.wake();
        }
    }

    /// All that was in the queue when the mark was left has been read.
    fn on_mark(&mut self, mark: Mark, events: &mut Vec<E>) {
        match mark {
            Mark::Gone(id) => {
                if let Some(peer) = self.peers.get_mut(id) {
                    peer.machine.on_lost(None);
                    self.touch(id);
                }
            }
            Mark::Closed(mut closed) => {
                let (id, reason) = (closed.id, closed.reason);
                let never_posted = self.take_unposted(&mut closed.outbound);
                // The slab lets go of what the provider does not report by itself.
                self.forget_ops_of(id, never_posted, reason, events);
                self.retire_windows(id, events);
                if self.link.form() == Form::Rdm {
                    // It had an endpoint of its own, by which peers reached memory.
                    self.release_quarantine(events);
                }
                match closed.held {
                    // Its peer was told that all has arrived.
                    Some(held) if closed.established && reason == CloseReason::Finished => {
                        let ended = EndedConnection {
                            id,
                            addr: closed.addr,
                            dialed: closed.dialed,
                            header_mode: closed.header_mode,
                            held,
                            until: closed.until,
                        };
                        self.end_behind_fences(ended, events);
                    }
                    held => {
                        let state = (closed.header_mode, closed.established);
                        self.hand_out_last(id, held, state, events);
                        let was = (closed.established, closed.dialed);
                        self.tell_end(id, closed.addr, reason, was, events);
                    }
                }
            }
        }
    }

    /// Connections whose endpoint is closed, and whose end is not told yet.
    pub(super) fn ending(&self) -> usize {
        let closed = |mark: &&Mark| matches!(mark, Mark::Closed(_));
        self.cq.marks.iter().filter(closed).count() + self.fencing.ended().count()
    }

    /// Why a connection ended whose endpoint is closed, and whose end is not told yet.
    pub(super) fn ending_reason(&self, id: ConnectionId) -> Option<CloseReason> {
        let mut marks = self.cq.marks.iter();
        let marked = marks.find_map(|mark| match mark {
            Mark::Closed(closed) if closed.id == id => Some(closed.reason),
            _ => None,
        });
        let finished = || self.fencing.ended().any(|ended| ended == id);
        marked.or_else(|| finished().then_some(CloseReason::Finished))
    }

    /// What went out of connections whose endpoint is closed, and whose end is not told yet.
    pub(super) fn ended_outbounds(&self) -> impl Iterator<Item = (ConnectionId, &PeerOutbound)> {
        self.cq.marks.iter().filter_map(|mark| match mark {
            Mark::Closed(closed) => Some((closed.id, &closed.outbound)),
            Mark::Gone(_) => None,
        })
    }

    fn forget_ops_of(
        &mut self,
        id: ConnectionId,
        never_posted: NeverPosted,
        reason: CloseReason,
        events: &mut Vec<E>,
    ) {
        drop(self.in_flight.take_where(|op| op.connection() == id));
        let rma = self.link.limits().rma;
        let Outbound {
            posted, outgoing, ..
        } = &mut self.outbound;
        posted.drop_pieces(Some(id), rma.as_ref());
        let orphan = posted.take_orphans(Some(id)).pop();
        let orphan = orphan.map(|orphan| orphan.send);
        let mut all = NeverPosted {
            messages: posted.take_messages(Some(id), outgoing),
            long: never_posted.long.or(orphan),
            operations: never_posted.operations,
        };
        let unreported = posted.take_one_sided(Some(id));
        all.messages.extend(never_posted.messages);
        self.fail_unposted(all, reason, events);
        for op in unreported {
            self.on_unreported(op, CompletionError::ended(reason), events);
        }
    }

    /// The connection is over: takes what it had waiting, which was never posted and is nobody's
    /// but ours. A long message of which the provider has pieces stays with them.
    fn take_unposted(&mut self, own: &mut PeerOutbound) -> NeverPosted {
        let Outbound {
            posted, outgoing, ..
        } = &mut self.outbound;
        let frame = own.take_frame();
        let frame = frame.and_then(|context| posted.messages.finish(context).ok());
        let frame = frame.into_iter().filter_map(MessageOp::into_data);
        let Some(mut line) = own.take_line() else {
            return NeverPosted {
                messages: frame.collect(),
                ..NeverPosted::default()
            };
        };
        let mut long = line.take_long();
        if let Some(posted_in_part) = long.take_if(|long| long.has_pieces()) {
            posted.adopt_long(posted_in_part);
        }
        NeverPosted {
            messages: {
                let mut messages = line.messages.end(posted, outgoing);
                messages.extend(frame);
                messages
            },
            long,
            operations: line.operations.end(outgoing),
        }
    }

    /// Tells the outcomes of what the provider does not have any more, or never had.
    fn fail_unposted(
        &mut self,
        never_posted: NeverPosted,
        reason: CloseReason,
        events: &mut Vec<E>,
    ) {
        let cancelled = || Some(CompletionError::ended(reason));
        for op in never_posted.messages {
            self.on_sent(op, cancelled(), events);
        }
        if let Some(long) = never_posted.long {
            self.on_long_over(*long, cancelled(), events);
        }
        for op in never_posted.operations {
            self.on_one_sided(op, cancelled(), events);
        }
    }

    /// The operations stay in the slab, which is never freed: the provider may still touch their
    /// memory. One that it reports after all is over, and gives its buffer back.
    pub(super) fn leak_ops_of(
        &mut self,
        id: ConnectionId,
        errno: FabricErrno,
        events: &mut Vec<E>,
    ) {
        let leaked = self
            .in_flight
            .iter()
            .filter(|op| op.connection() == id)
            .count() as u64;
        let leaked = leaked + self.outbound.tell_leaked(id, errno, events);
        // Peers may use the windows for ever.
        let leaked = leaked + self.exposed.leak_all(id);
        self.stats.leaked.add(leaked);
        stats::count_leaked(leaked);
    }

    /// The endpoint is not to be believed any more: every connection is closed, requests are
    /// refused.
    pub(super) fn fail(&mut self, reason: &'static str) {
        if self.state.failed.is_some() {
            return;
        }
        self.state.failed = Some(reason);
        for (id, peer) in self.peers.iter_mut() {
            peer.machine.abort(CloseReason::EndpointFailed(reason));
            self.agenda.touch(id);
        }
        self.wait.wake();
    }
}

impl<L: Link, E: HubEvent> Hub<L, E> {
    /// The provider's endpoint is closed, and nobody hears what became of its operations.
    fn abandon_ops_of(&mut self, id: ConnectionId, own: &mut PeerOutbound) {
        let never_posted = self.take_unposted(own);
        drop(self.in_flight.take_where(|op| op.connection() == id));
        self.abandon_posted(Some(id));
        self.abandon_unposted(id, never_posted);
    }

    /// Nobody hears what becomes of what a connection had waiting.
    fn abandon_unposted(&mut self, id: ConnectionId, never_posted: NeverPosted) {
        let NeverPosted {
            messages,
            long,
            operations,
        } = never_posted;
        let outbound = &mut self.outbound;
        for op in messages {
            outbound.abandon_message(op);
        }
        if let Some(long) = long {
            let (key, _) = long.end(&mut outbound.outgoing);
            outbound.abandon(id, key);
        }
        for op in operations {
            outbound.abandon(id, op.key);
        }
    }

    /// The provider is done with what was posted, on one connection or on all. Slots and payloads
    /// are free again.
    fn abandon_posted(&mut self, of: Option<ConnectionId>) {
        let rma = self.link.limits().rma;
        let outbound = &mut self.outbound;
        outbound.posted.drop_pieces(of, rma.as_ref());
        for op in outbound.posted.take_messages(of, &outbound.outgoing) {
            outbound.abandon_message(op);
        }
        for OrphanedLong { send, told } in outbound.posted.take_orphans(of) {
            let id = send.connection();
            let (key, _) = send.end(&mut outbound.outgoing);
            if !told {
                outbound.abandon(id, key);
            }
        }
        for mut op in outbound.posted.take_one_sided(of) {
            outbound.outgoing.end_one_sided(&mut op);
            if !op.told {
                outbound.abandon(op.connection, op.key);
            }
            // Given up, too, where the provider goes on reading after the close.
            drop(op.give_back(rma.as_ref()));
        }
    }

    /// The same for what the provider may still touch: it stays in the slabs, which are never
    /// freed.
    pub(super) fn abandon_leaked(&mut self, only: Option<ConnectionId>) {
        self.outbound.leak_leases();
        let mut keys = Vec::new();
        for op in self.outbound.posted.timed() {
            if only.is_none_or(|only| only == op.connection) {
                keys.push((op.connection, op.key));
                keys.extend(op.others.iter().map(|message| (op.connection, message.key)));
            }
        }
        for (id, key) in keys {
            self.outbound.abandon(id, key);
        }
    }

    fn close_one(&mut self, id: ConnectionId) {
        let Some(mut peer) = self.peers.remove(id) else {
            return;
        };
        self.close_scoped_windows(id, &peer.link);
        self.leave_long(id, &mut peer);
        self.release_drained(&mut peer);
        match self.link.close(peer.link) {
            // What is in flight on an endpoint that all share is over when that is closed.
            // What was never posted is over now.
            _ if self.shared.is_some() => {
                let never_posted = self.take_unposted(&mut peer.outbound);
                self.abandon_unposted(id, never_posted);
            }
            Ok(()) => {
                self.abandon_held(id, peer.long.held);
                self.abandon_ops_of(id, &mut peer.outbound);
            }
            Err(CloseFailed(errno)) => {
                // As in `close_conn`.
                self.state.leaked = true;
                std::mem::forget(peer.descriptors);
                peer.scoped.leak();
                self.abandon_held(id, peer.long.held);
                peer.outbound.leak();
                let never_posted = self.take_unposted(&mut peer.outbound);
                self.abandon_leaked(Some(id));
                self.leak_ops_of(id, errno, &mut Vec::new());
                self.abandon_unposted(id, never_posted);
            }
        }
    }
}

/// A hub that is dropped: what the provider may still touch is never freed, even if code of others
/// panics as it gets its own back.
struct LeakGuard<'a, L: Link, E: HubEvent>(&'a mut Hub<L, E>);

impl<L: Link, E: HubEvent> Drop for LeakGuard<'_, L, E> {
    fn drop(&mut self) {
        let hub = &mut *self.0;
        if hub.state.leaked {
            hub.outbound.posted.leak();
            let empty = InFlight::new(0, ContextKind::Opaque);
            std::mem::forget(std::mem::replace(&mut hub.in_flight, empty));
        }
    }
}

impl<L: Link, E: HubEvent> Drop for Hub<L, E> {
    /// The rude end: every endpoint is closed, buffers go back to the pool.
    fn drop(&mut self) {
        let guard = LeakGuard(self);
        let hub = &mut *guard.0;
        let abandoned = hub.outbound.account.stats.in_flight.read();
        let ids = hub.peers.ids();
        if hub.link.form() == Form::Rdm {
            hub.tell_peers(&ids);
        }
        for id in ids {
            hub.close_one(id);
        }
        for mark in hub.cq.marks.take_all() {
            if let Mark::Closed(mut closed) = mark {
                hub.abandon_held(closed.id, closed.held.take());
                hub.abandon_ops_of(closed.id, &mut closed.outbound);
            }
        }
        for ended in hub.fencing.take_all_ended() {
            hub.abandon_held(ended.id, Some(ended.held));
        }
        if hub.close_shared() {
            // Operations whose buffers are registered by the pool's, and the header slots',
            // descriptors go first.
            drop(hub.in_flight.take_where(|_| true));
            hub.abandon_posted(None);
        }
        stats::count_abandoned(abandoned);
        hub.outbound.account.stats.abandoned.add(abandoned);
        hub.outbound.account.stats.in_flight.set(0);
        if abandoned > 0 {
            let endpoint = hub.id();
            say(|| {
                tracing::warn!(%endpoint, in_flight = abandoned, "dropped with messages on their \
                    way, which may be lost: `close` has them arrive");
            });
        }
    }
}
