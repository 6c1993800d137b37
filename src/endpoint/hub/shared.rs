//! What a listener does otherwise in the RDM form: one endpoint for all connections, whose receives
//! they share.

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use super::feeding::PostedReceive;
use super::long_receive::Due;
use super::outbound::{Outbound, told};
use super::{Hub, Op, Peer};
use crate::Error;
use crate::buffer::{BufferMut, PoolShare};
use crate::endpoint::hub::conn_table::NOBODY;
use crate::endpoint::hub::control::{ControlBuffers, HeldDescriptor};
use crate::endpoint::hub::event::{HubEvent, Tell};
use crate::endpoint::hub::shared_receives::SharedReceives;
use crate::endpoint::link::{ConnKey, Link};
use crate::error::CompletionError;
use crate::id::{ConnectionId, IdMap};
use crate::protocol::connection::{Action, CloseReason, Violation};
use crate::protocol::reorder::Reorder;
use crate::protocol::wire::{self, Control, ControlKind, Counts};
use crate::stats;

/// RDM form: connections that are over while control messages of theirs are not, from which on no
/// new ones are taken. A provider may never report what it sent to a peer that died.
pub(super) const ORPHANS_MAX: usize = 64;

/// RDM form: receives that fail one after the other until the endpoint is given up.
const FAILURES_MAX: u32 = 1000;

/// What a listener has in the RDM form: one endpoint for all connections, whose receives they
/// share.
pub(super) struct Shared<C> {
    pub(super) receives: SharedReceives,
    /// Whose the last message was, by the name in its mark: the next one is often the same
    /// connection's, and needs no search.
    last: (ConnKey, ConnectionId),
    /// Receives that failed since one was good.
    failures: u32,
    /// Connections that are over while so many control messages and sends of theirs are in flight:
    /// their addresses must stay.
    pub(super) orphans: IdMap<ConnectionId, (C, u32)>,
    pool_desc: HeldDescriptor,
    /// Held until the endpoint is closed: control messages may outlive their connections.
    control_desc: HeldDescriptor,
}

/// What a link with one endpoint for all connections has, and others have not.
pub(super) fn share<L: Link>(
    link: &L,
    share: &PoolShare,
    control: &ControlBuffers,
) -> Result<Option<Shared<L::Conn>>, Error> {
    if !link.shares_endpoint() {
        return Ok(None);
    }
    let registrar = link.registrar();
    Ok(Some(Shared {
        receives: SharedReceives::new(share.most(), link.limits().shared_receives),
        last: (0, NOBODY),
        failures: 0,
        orphans: IdMap::default(),
        pool_desc: HeldDescriptor::new(share.pool().region(), registrar)?,
        control_desc: HeldDescriptor::new(control.region(), registrar)?,
    }))
}

/// A message, its length and its mark.
pub(super) type Early = (BufferMut, usize, u32);

/// Before a message is given up for lost, this side looks once more: what came while it did not
/// look may lie in a queue.
const SECOND_LOOK: Duration = Duration::from_millis(100);

/// What came before its turn on one connection, messages and a goodbye, and what is known to come
/// and did not.
pub(super) struct EarlyMessages {
    messages: Reorder<Due<Early>>,
    bye: Option<LateBye>,
    /// The messages that the peer says that it sent, modulo 2^32.
    said: u32,
    owed: Option<Owed>,
}

/// The message that is due was sent: the peer says so, or one behind it is here.
#[derive(Clone, Copy)]
struct Owed {
    number: u32,
    until: Instant,
    is_last_look: bool,
}

impl EarlyMessages {
    pub(super) fn boxed(window: u32) -> Box<Self> {
        Box::new(Self {
            messages: Reorder::new(window),
            bye: None,
            said: 0,
            owed: None,
        })
    }

    /// Until when the goodbye waits, and the message that is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let bye = self.bye.as_ref().map(|bye| bye.until);
        bye.into_iter().chain(self.owed.map(|it| it.until)).min()
    }

    /// The peer has sent so many messages. What it said before is less, and may come later.
    fn on_said(&mut self, said: u32) {
        if is_above(said, self.said) {
            self.said = said;
        }
    }

    /// Whether the message that is due should be here.
    fn is_owed(&self) -> bool {
        self.messages.has_early() || is_above(self.said, self.messages.due())
    }

    /// From now on, the message that is due has so long to come.
    fn expect(&mut self, now: Instant, limit: Option<Duration>) {
        let number = self.messages.due();
        if !self.is_owed() {
            self.owed = None;
        } else if self.owed.is_none_or(|owed| owed.number != number) {
            let until = limit.and_then(|limit| now.checked_add(limit));
            self.owed = until.map(|until| Owed {
                number,
                until,
                is_last_look: false,
            });
        }
    }

    /// Whether it has had its time, and a moment more.
    fn is_lost(&mut self, now: Instant) -> bool {
        let Some(owed) = self.owed.as_mut().filter(|owed| owed.until <= now) else {
            return false;
        };
        let is_last = std::mem::replace(&mut owed.is_last_look, true);
        owed.until = now + SECOND_LOOK;
        is_last
    }
}

/// Whether one count is above another, modulo 2^32.
fn is_above(count: u32, than: u32) -> bool {
    let ahead = count.wrapping_sub(than);
    ahead != 0 && ahead < 1 << 31
}

/// A goodbye whose sender says that it sent more than has come so far.
struct LateBye {
    message: Early,
    claims: u64,
    until: Instant,
}

impl<C> Peer<C> {
    /// What was sent before the goodbye has not come in time: then it never will.
    pub(super) fn give_up_on_early(&mut self, now: Instant) {
        let early = self.early.as_mut();
        if let Some(bye) = early.and_then(|early| early.bye.take_if(|bye| bye.until <= now)) {
            let (buffer, len, mark) = bye.message;
            let body = &buffer[..len.min(wire::CONTROL_LEN_MAX)];
            self.machine.on_control(mark, body, now);
        }
    }

    /// A message that was sent has not come in time: then it never will. `is_read`: what came lies
    /// in no queue.
    pub(super) fn give_up_on_owed(&mut self, now: Instant, limit: Option<Duration>, is_read: bool) {
        let early = self.early.as_mut();
        if early.is_some_and(|early| early.is_lost(now) && is_read) {
            self.machine.on_message_lost(limit.unwrap_or_default());
        }
    }
}

impl<L: Link, E: HubEvent> Hub<L, E> {
    /// RDM form: a message belongs to the connection that it names, whoever posted the receive.
    pub(super) fn on_shared(
        &mut self,
        buffer: BufferMut,
        len: usize,
        data: Option<u64>,
        error: Option<Box<CompletionError>>,
        events: &mut Vec<E>,
    ) {
        let Some(shared) = &mut self.shared else {
            return;
        };
        shared.receives.on_over();
        if let Some(error) = error {
            // Whoever sends can end a receive like this, with a message that is too long: it says
            // nothing of any peer.
            tracing::debug!(%error, "a receive failed");
            self.stats.strays.add(1);
            shared.failures += 1;
            if shared.failures > FAILURES_MAX {
                self.fail("no receive succeeds any more");
            }
            return;
        }
        shared.failures = 0;
        let (mark, number) = data.map_or((0, 0), wire::split_numbered);
        let (kind, index) = wire::split_cq_data(mark);
        if kind == ControlKind::HELLO {
            // The link has a request.
            self.cm.hurry();
            return self.link.take_hello(&buffer[..len.min(buffer.len())]);
        }
        let key = index as ConnKey;
        let (last_key, last) = shared.last;
        let id = if last_key == key && self.peers.get(last).is_some() {
            last
        } else if let Some(id) = self.directory.find(key) {
            shared.last = (key, id);
            id
        } else {
            // For a connection that is over, or of another life of this address, or without any
            // mark.
            self.stats.strays.add(1);
            return;
        };
        self.use_promise(id);
        match kind {
            ControlKind::DATA | ControlKind::HEADER | ControlKind::PAYLOAD | ControlKind::FRAME => {
                self.put_due(id, number, Due::Message((buffer, len, mark)), events);
            }
            ControlKind::BYE => self.on_bye(id, (buffer, len, mark), events),
            ControlKind::HEARTBEAT => {
                let counts = Counts::parse(&buffer[..len.min(wire::CONTROL_LEN_MAX)]);
                self.on_received(id, buffer, len, Some(mark.into()), events);
                self.on_said(id, counts);
            }
            _ => self.on_received(id, buffer, len, Some(mark.into()), events),
        }
    }

    /// A connection has used one of the receives that it was promised.
    fn use_promise(&mut self, id: ConnectionId) {
        let (Some(peer), Some(shared)) = (self.peers.get_mut(id), &mut self.shared) else {
            return;
        };
        // A peer that sends what it may not uses others' receives; they are replaced.
        let promised = peer.receives.posted.min(1);
        peer.receives.posted -= promised;
        shared.receives.release(promised);
        self.buffers.on_hungry(id, &mut peer.receives);
        self.touch(id);
    }

    /// Data, or a long message, handed on in the order in which it was sent.
    pub(super) fn put_due(
        &mut self,
        id: ConnectionId,
        number: u32,
        message: Due<Early>,
        events: &mut Vec<E>,
    ) {
        let Some(Peer {
            machine,
            early: Some(early),
            ..
        }) = self.peers.get_mut(id)
        else {
            return;
        };
        // A long message's number comes whole.
        let is_short = match &message {
            Due::Message((_, _, mark)) => Some(wire::is_short(*mark)),
            Due::Long(..) => None,
        };
        if is_short.is_some_and(|short| short != machine.has_short_marks()) {
            let what = "a message with a mark of the other length";
            return machine.violate(Violation::OutOfTurn(what));
        }
        let put = match is_short {
            Some(false) | None => early.messages.put(number, message),
            Some(true) => early
                .messages
                .put_modulo(number, wire::SHORT_NUMBERS, message),
        };
        if put.is_err() {
            let what = "a message with the number of another, or of one that it may not send yet";
            machine.violate(Violation::OutOfTurn(what));
            return self.touch(id);
        }
        while let Some(due) = self.next_in_turn(id) {
            match due {
                Due::Message((buffer, len, mark)) => {
                    self.on_received(id, buffer, len, Some(mark.into()), events);
                }
                Due::Long(landed, len) => self.hand_out_long(id, landed, len, events),
            }
        }
        self.take_late_bye(id, events);
    }

    fn next_in_turn(&mut self, id: ConnectionId) -> Option<Due<Early>> {
        let early = self.peers.get_mut(id)?.early.as_mut()?;
        let next = early.messages.take_next();
        if next.is_none() && (early.owed.is_some() || early.is_owed()) {
            early.expect(self.timer.now(), self.settings.liveness.lost);
        }
        next
    }

    /// The peer says how much it has sent.
    fn on_said(&mut self, id: ConnectionId, counts: Option<Counts>) {
        let Some(Peer {
            machine,
            early: Some(early),
            ..
        }) = self.peers.get_mut(id)
        else {
            return;
        };
        let Some(Counts { sent, .. }) = counts else {
            return;
        };
        if is_above(sent, early.messages.due()) && !early.messages.may_be(sent) {
            let what = "a count of more messages than it may send";
            return machine.violate(Violation::OutOfTurn(what));
        }
        early.on_said(sent);
        early.expect(self.timer.now(), self.settings.liveness.lost);
    }

    /// The goodbye that waited, if everything is here now that was sent before it.
    pub(super) fn take_late_bye(&mut self, id: ConnectionId, events: &mut Vec<E>) {
        let Some(Peer {
            machine,
            early: Some(early),
            ..
        }) = self.peers.get_mut(id)
        else {
            return;
        };
        let received = machine.received();
        if let Some(bye) = early.bye.take_if(|bye| bye.claims <= received) {
            let (buffer, len, mark) = bye.message;
            self.on_received(id, buffer, len, Some(mark.into()), events);
        }
    }

    /// A goodbye may overtake data that was sent before it: it waits for that, but not for ever.
    fn on_bye(&mut self, id: ConnectionId, (buffer, len, mark): Early, events: &mut Vec<E>) {
        let Some(Peer {
            machine,
            early: Some(early),
            ..
        }) = self.peers.get_mut(id)
        else {
            return;
        };
        let body = &buffer[..len.min(wire::CONTROL_LEN_MAX)];
        match Control::parse(ControlKind::BYE, body) {
            Ok(Control::Bye { last_sequence, .. })
                if last_sequence > machine.received() && early.bye.is_none() =>
            {
                early.bye = Some(LateBye {
                    message: (buffer, len, mark),
                    claims: last_sequence,
                    until: self.timer.now() + self.settings.close_timeout,
                });
            }
            _ => self.on_received(id, buffer, len, Some(mark.into()), events),
        }
    }

    /// A control message, or an operation, is over whose connection is, too. With its last one, the
    /// address goes.
    pub(super) fn on_orphan(&mut self, id: ConnectionId) {
        let Some(shared) = &mut self.shared else {
            return;
        };
        let Some((_, controls)) = shared.orphans.get_mut(&id) else {
            return;
        };
        *controls -= 1;
        if *controls == 0
            && let Some((link, _)) = shared.orphans.remove(&id)
        {
            // A listener's connection of the RDM form has nothing that could refuse to close.
            let _ = self.link.close(link);
        }
    }

    /// RDM form: its receives stay posted, for others; its control messages and operations in
    /// flight stay in the slab until they are over.
    pub(super) fn leave_shared(
        &mut self,
        id: ConnectionId,
        receives: u32,
        controls: u32,
        link: L::Conn,
    ) {
        let Some(shared) = &mut self.shared else {
            return;
        };
        shared.receives.release(receives);
        if controls > 0 {
            shared.orphans.insert(id, (link, controls));
        } else {
            // A listener's connection of the RDM form has nothing that could refuse to close.
            let _ = self.link.close(link);
        }
    }

    /// RDM form: fills the gaps first that messages left which name no connection, and keeps some
    /// for hellos.
    pub(super) fn feed_shared(&mut self) {
        while self.shared.as_ref().is_some_and(|s| s.receives.lacks()) {
            match self.post_shared() {
                PostedReceive::Yes => {}
                PostedReceive::PoolEmpty => return self.buffers.arm(&self.wait),
                PostedReceive::No => {
                    self.agenda.retry = true;
                    return;
                }
            }
        }
    }

    fn post_shared(&mut self) -> PostedReceive {
        match self.buffers.try_acquire() {
            Some(buffer) => self.post_shared_buffer(buffer),
            None => PostedReceive::PoolEmpty,
        }
    }

    fn post_shared_buffer(&mut self, mut buffer: BufferMut) -> PostedReceive {
        let Some(shared) = &mut self.shared else {
            return PostedReceive::No;
        };
        let (base, len, desc) = (buffer.as_mut_ptr(), buffer.len(), shared.pool_desc.desc());
        let op = Op::Receive {
            connection: NOBODY,
            buffer,
        };
        let Ok(context) = self.in_flight.begin(op) else {
            return PostedReceive::No;
        };
        // SAFETY: the slab owns the buffer, which keeps the memory alive and registered and gives
        // nobody else access, until its completion was read or the endpoint was closed (`drop`).
        if unsafe { self.link.post_shared_receive(base, len, desc, context) }.is_ok() {
            shared.receives.on_posted();
            return PostedReceive::Yes;
        }
        drop(self.in_flight.abort(context));
        PostedReceive::No
    }

    /// One receive more for a connection: posted on it, or promised to it.
    pub(super) fn give_receive(
        &mut self,
        peer: &mut Peer<L::Conn>,
        id: ConnectionId,
    ) -> PostedReceive {
        let Some(shared) = &self.shared else {
            return self.post_receive(peer, id);
        };
        if shared.receives.surplus() == 0 {
            let posted = self.post_shared();
            if posted != PostedReceive::Yes {
                return posted;
            }
        }
        if let Some(shared) = &mut self.shared {
            shared.receives.promise();
            peer.receives.posted += 1;
        }
        PostedReceive::Yes
    }

    /// The buffer of a control message, posted again for its connection.
    pub(super) fn post_shared_again(&mut self, peer: &mut Peer<L::Conn>, buffer: BufferMut) {
        if self.post_shared_buffer(buffer) == PostedReceive::Yes
            && let Some(shared) = &mut self.shared
        {
            shared.receives.promise();
            peer.receives.posted += 1;
        }
    }

    /// RDM form: no transport tells the peers that this side is gone, so last messages do, if they
    /// are taken at once.
    pub(super) fn tell_peers(&mut self, ids: &[ConnectionId]) {
        for &id in ids {
            let refusal = self.peers.get_mut(id).and_then(|peer| {
                peer.machine.abort(CloseReason::ClosedLocally);
                peer.next_action()
            });
            if let Some(Action::SendControl { cq_data, body }) = refusal {
                let _ = self.try_send_control(id, cq_data, &body);
            }
        }
    }

    /// RDM form: closes the endpoint of all connections. False: there is none, or it does not
    /// close, and what is in flight is leaked.
    pub(super) fn close_shared(&mut self) -> bool {
        let Some(mut shared) = self.shared.take() else {
            return false;
        };
        for (_, (link, _)) in shared.orphans.drain() {
            let _ = self.link.close(link);
        }
        if self.link.close_all().is_ok() {
            return true;
        }
        // Before code of others can be called, which may panic: the slabs are never freed.
        self.state.leaked = true;
        shared.pool_desc.leak();
        shared.control_desc.leak();
        let posted = &self.outbound.posted;
        let operations = self.in_flight.len() + posted.messages.len() + posted.one_sided.len();
        let operations = (operations + posted.orphans.len()) as u64;
        self.abandon_leaked(None);
        stats::count_leaked(operations + self.exposed.leak_everything());
        false
    }

    /// RDM form: the endpoint of all connections is closed, and what it still had of those that are
    /// over is free.
    pub(super) fn release_shared(&mut self, events: &mut Vec<E>) {
        if !self.close_shared() {
            return;
        }
        // What the provider still reports must be found in the slab. Nothing is posted any more, so
        // this is all that there can be.
        let most = self.in_flight.len() + self.outbound.posted.len();
        for _ in 0..=most {
            if self.read_completions(events) == 0 {
                break;
            }
        }
        // Operations whose buffers are registered by descriptors of the endpoint's go first.
        drop(self.in_flight.take_where(|_| true));
        let rma = self.link.limits().rma;
        let Outbound {
            posted, outgoing, ..
        } = &mut self.outbound;
        posted.drop_pieces(None, rma.as_ref());
        let messages = posted.take_messages(None, outgoing);
        let operations = posted.take_one_sided(None);
        let orphans = posted.take_orphans(None);
        let cancelled = || Some(CompletionError::new(libc::ECANCELED));
        for op in messages {
            self.on_sent(op, cancelled(), events);
        }
        for orphan in orphans {
            self.outbound.on_orphan_over(orphan, cancelled(), events);
        }
        for mut op in operations {
            let id = op.connection;
            self.outbound.on_told_over(&mut op);
            let returned = op.give_back(rma.as_ref());
            if let Some(event) = returned {
                events.tell(told(id, event));
            }
        }
        self.release_quarantine(events);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    fn a_message_that_is_owed_has_its_time_and_one_more_look() {
        let now = Instant::now();
        let mut early = EarlyMessages::boxed(8);
        early.expect(now, Some(LIMIT));
        assert_eq!(early.deadline(), None, "nothing is owed");
        early.on_said(2);
        early.expect(now, Some(LIMIT));
        assert_eq!(early.deadline(), Some(now + LIMIT));
        // Hearing of more, and of less, which comes late, gives it no more time.
        early.on_said(3);
        early.on_said(1);
        early.expect(now + LIMIT / 2, Some(LIMIT));
        assert_eq!(early.deadline(), Some(now + LIMIT));
        assert!(!early.is_lost(now + LIMIT / 2));
        assert!(!early.is_lost(now + LIMIT), "it may lie in a queue");
        assert_eq!(early.deadline(), Some(now + LIMIT + SECOND_LOOK));
        assert!(!early.is_lost(now + LIMIT));
        assert!(early.is_lost(now + LIMIT + SECOND_LOOK));
    }

    #[test]
    fn without_a_limit_of_silence_nothing_is_given_up() {
        let mut early = EarlyMessages::boxed(8);
        early.on_said(1);
        early.expect(Instant::now(), None);
        assert_eq!(early.deadline(), None);
    }

    #[test]
    fn counts_are_compared_around_their_end() {
        assert!(is_above(1, 0) && is_above(3, u32::MAX));
        assert!(!is_above(0, 0) && !is_above(u32::MAX, 3));
        let none = EarlyMessages::boxed(8);
        assert!(none.messages.may_be(8) && !none.messages.may_be(9));
    }
}
