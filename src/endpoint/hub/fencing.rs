//! `Fencing`: what waits until peers have passed an epoch of the domain.
//!
//! A long message waits for an epoch, and with it what came behind it on its connection: also the
//! goodbye of this side. That goodbye waits for those only that are not leaving. Who leaves can't
//! be asked, passes by its end, and that may wait for this very goodbye, where both ends of a
//! connection are in one domain. A connection that ends well meanwhile keeps what waits
//! ([`EndedConnection`]), and its end is told behind that.

use std::collections::VecDeque;
use std::time::Instant;

use smallvec::SmallVec;

use super::Hub;
use super::lateness::Lateness;
use super::long_receive::BehindFence;
use crate::endpoint::hub::event::{HubEvent, Tell};
use crate::endpoint::hub::outbound::told;
use crate::endpoint::link::{Link, LinkConn};
use crate::fabric::PeerAddr;
use crate::id::ConnectionId;
use crate::memory::Participant;
use crate::protocol::connection::CloseReason;
use crate::protocol::wire::HeaderMode;

/// Epochs that peers were asked to pass, and long messages that wait for that.
#[derive(Default)]
pub(super) struct Fencing {
    /// The last epoch of the domain that the connections were told of.
    asked: u64,
    /// Long messages that wait for an epoch, in the order of those.
    waiting: VecDeque<Waiting>,
    pub(super) lateness: Lateness,
    /// Goodbyes that wait for an epoch up to this one were let go.
    let_go: u64,
    /// The epoch that this endpoint is woken for, for the sake of goodbyes.
    awaited: u64,
    /// Connections that ended well before their long messages could be handed out.
    ended: Vec<EndedConnection>,
    /// When the application wants the end of them all.
    close_by: Option<Instant>,
}

/// A long message that waits for an epoch.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub(super) epoch: u64,
    pub(super) id: ConnectionId,
    pub(super) since: Instant,
    /// It was found to have waited for too long.
    late: bool,
    /// It waits no more: only the memory does that it came in.
    copied: bool,
}

/// A connection that is over for its peer, and whose last messages wait for others of the domain.
pub(super) struct EndedConnection {
    pub(super) id: ConnectionId,
    pub(super) addr: Option<PeerAddr>,
    pub(super) dialed: bool,
    pub(super) header_mode: HeaderMode,
    pub(super) held: VecDeque<BehindFence>,
    /// Until when they wait, and what is told if that passes.
    pub(super) until: (Instant, CloseReason),
}

impl EndedConnection {
    fn bound(&mut self, deadline: Instant) {
        if deadline < self.until.0 {
            self.until = (deadline, CloseReason::ClosedByDeadline);
        }
    }
}

impl Fencing {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A long message of a connection waits for an epoch, which is none before the last one.
    pub(super) fn wait_for(&mut self, epoch: u64, id: ConnectionId, now: Instant) {
        self.waiting.push_back(Waiting {
            epoch,
            id,
            since: now,
            late: false,
            copied: false,
        });
    }

    /// Messages that have waited for too long, and were not copied yet; and all others, while an
    /// epoch is late that comes before theirs.
    pub(super) fn late(&mut self, now: Instant) -> SmallVec<[Waiting; 4]> {
        let patience = self.lateness.patience();
        let known = self.lateness.is_late();
        let mut late = SmallVec::new();
        for waiting in self.waiting.iter_mut().filter(|it| !it.copied) {
            waiting.late |= known || waiting.since + patience <= now;
            if !waiting.late {
                break;
            }
            late.push(*waiting);
        }
        late
    }

    /// What was late of a connection waits no more.
    pub(super) fn on_copied(&mut self, id: ConnectionId) {
        let of_it = self.waiting.iter_mut().filter(|it| it.id == id);
        of_it.for_each(|waiting| waiting.copied |= waiting.late);
    }

    /// What a connection has to hand out that is over.
    pub(super) fn held_of_ended(&mut self, id: ConnectionId) -> Option<&mut VecDeque<BehindFence>> {
        let ended = self.ended.iter_mut().find(|ended| ended.id == id)?;
        Some(&mut ended.held)
    }

    /// The first epoch that is waited for.
    fn first(&self) -> Option<u64> {
        self.waiting.front().map(|waiting| waiting.epoch)
    }

    /// The next connection whose epoch has passed, as `has_passed` says.
    fn take_passed(
        &mut self,
        has_passed: impl FnOnce(u64) -> bool,
        now: impl FnOnce() -> Instant,
    ) -> Option<ConnectionId> {
        let &Waiting {
            epoch, id, since, ..
        } = self.waiting.front()?;
        has_passed(epoch).then(|| {
            self.waiting.pop_front();
            self.lateness
                .on_wait(now().saturating_duration_since(since));
            id
        })
    }

    // ---- connections that ended -----------------------------------------------------------------

    /// Keeps what a connection has to hand out; when it is looked at again at the latest.
    pub(super) fn keep(&mut self, mut ended: EndedConnection) -> Instant {
        if let Some(deadline) = self.close_by {
            ended.bound(deadline);
        }
        let until = ended.until.0;
        self.ended.push(ended);
        until
    }

    /// The application wants all of them to be over by then; whether there are any.
    pub(super) fn close_by(&mut self, deadline: Instant) -> bool {
        let earlier = self.close_by.map_or(deadline, |at| at.min(deadline));
        self.close_by = Some(earlier);
        self.ended.iter_mut().for_each(|it| it.bound(deadline));
        !self.ended.is_empty()
    }

    /// Those connections, which are not told to be over yet.
    pub(super) fn ended(&self) -> impl Iterator<Item = ConnectionId> {
        self.ended.iter().map(|ended| ended.id)
    }

    /// When the first of them, or of the messages, has waited for long enough.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let message = self.waiting.iter().find(|it| !it.late);
        let message = message.map(|waiting| waiting.since + self.lateness.patience());
        let ended = self.ended.iter().map(|ended| ended.until.0);
        let others = [message, self.lateness.next_deadline()];
        ended.chain(others.into_iter().flatten()).min()
    }

    fn take_ended(&mut self, id: ConnectionId) -> Option<EndedConnection> {
        let at = self.ended.iter().position(|ended| ended.id == id)?;
        Some(self.ended.remove(at))
    }

    fn take_late(&mut self, now: Instant) -> Vec<EndedConnection> {
        self.ended.extract_if(.., |it| it.until.0 <= now).collect()
    }

    pub(super) fn take_all_ended(&mut self) -> Vec<EndedConnection> {
        std::mem::take(&mut self.ended)
    }
}

impl<L: Link, E: HubEvent> Hub<L, E> {
    /// Memory that peers could reach is to come back, here or at another endpoint of the domain:
    /// each peer is asked whether it is done.
    pub(super) fn ask_fences(&mut self) {
        let epoch = self.exposed.epoch();
        if self.fencing.asked == epoch || self.shared.is_some() {
            return;
        }
        self.fencing.asked = epoch;
        let now = self.timer.now();
        for (id, peer) in self.peers.iter_mut() {
            if let Some(epoch) = peer.link.participant().and_then(Participant::lags) {
                let nonce = crate::random::random_u64();
                peer.machine.fence(epoch, nonce, now);
                self.agenda.touch(id);
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
    pub(super) fn release_passed(&mut self, events: &mut Vec<E>) {
        while let Some(id) = self
            .fencing
            .take_passed(|epoch| self.exposed.has_passed(epoch), || self.timer.now())
        {
            self.hand_out_held(id, events);
        }
        self.release_goodbyes();
        let long = self.fencing.first();
        self.exposed
            .release_passed(long, |id, event| events.tell(told(id, event)));
    }

    /// What polls have to do with fences: nothing, most of the time.
    #[inline]
    pub(super) fn mind_fences(&mut self, look_everywhere: bool, events: &mut Vec<E>) {
        let waits = self.exposed.has_unreleased()
            || !self.fencing.is_empty()
            || self.fencing.lateness.is_cautious();
        if look_everywhere || waits {
            self.ask_fences();
            self.act_on_touched(events);
        }
        if waits {
            self.release_passed(events);
            self.hand_out_late(events);
            self.act_on_touched(events);
            self.give_up_late(events);
        }
    }

    /// Goodbyes that wait for long messages are said when only those have not passed that are
    /// leaving.
    fn release_goodbyes(&mut self) {
        while let Some(next) = self.next_goodbye() {
            if next == self.fencing.awaited || self.exposed.wait_for_staying(next) {
                self.fencing.awaited = next;
                return;
            }
        }
    }

    /// Lets those goodbyes go that may be said now; the first epoch that one of the others waits
    /// for.
    fn next_goodbye(&mut self) -> Option<u64> {
        let let_go = self.fencing.let_go;
        let waiting = self.fencing.waiting.iter();
        let waiting = waiting.filter(|it| it.epoch > let_go);
        for &Waiting { epoch, id, .. } in waiting {
            if !self.exposed.has_passed_by_staying(epoch) {
                return Some(epoch);
            }
            self.fencing.let_go = epoch;
            if let Some(peer) = self.peers.get_mut(id)
                && peer.long.last_epoch().is_none_or(|last| last <= epoch)
            {
                peer.machine.hold_goodbye(false);
                self.agenda.touch(id);
            }
        }
        None
    }

    /// A goodbye waits for what a connection has to hand out.
    pub(super) fn holds_goodbye(&self, held: &VecDeque<BehindFence>) -> bool {
        last_epoch(held).is_some_and(|epoch| !self.exposed.has_passed_by_staying(epoch))
    }

    /// Nobody asks the peer of a connection anything any more that has said its goodbye.
    #[inline]
    pub(super) fn leave_domain(&self, id: ConnectionId) {
        if let Some(peer) = self.peers.get(id)
            && peer.machine.has_said_goodbye()
            && let Some(participant) = peer.link.participant()
        {
            participant.leave();
        }
    }

    /// Hands out what a connection that ended well has waiting, as far as it is passed.
    pub(super) fn hand_out_ended(&mut self, id: ConnectionId, events: &mut Vec<E>) {
        if let Some(ended) = self.fencing.take_ended(id) {
            self.end_behind_fences(ended, events);
        }
    }

    /// The connection is over, and ended well: its end is told behind what it has to hand out.
    pub(super) fn end_behind_fences(&mut self, mut ended: EndedConnection, events: &mut Vec<E>) {
        let (id, mode) = (ended.id, ended.header_mode);
        let reason = match self.hand_out_passed(id, mode, &mut ended.held, events) {
            Ok(()) if !ended.held.is_empty() => {
                let until = self.fencing.keep(ended);
                return self.timer.on_deadline(Some(until));
            }
            Ok(()) => CloseReason::Finished,
            Err(reason) => reason,
        };
        self.give_up_held(ended, reason, events);
    }

    /// The connection ends, and what it has waiting is not handed out.
    fn give_up_held(&mut self, ended: EndedConnection, reason: CloseReason, events: &mut Vec<E>) {
        self.abandon_held(ended.id, Some(ended.held));
        self.tell_end(ended.id, ended.addr, reason, (true, ended.dialed), events);
    }

    /// Connections whose last messages have waited for long enough.
    fn give_up_late(&mut self, events: &mut Vec<E>) {
        if self.fencing.ended.is_empty() {
            return;
        }
        for ended in self.fencing.take_late(self.timer.now()) {
            let reason = ended.until.1;
            self.give_up_held(ended, reason, events);
        }
    }

    /// The endpoint has failed: nobody is asked any more.
    pub(super) fn give_up_ended(&mut self, reason: &'static str, events: &mut Vec<E>) {
        for ended in self.fencing.take_all_ended() {
            self.give_up_held(ended, CloseReason::EndpointFailed(reason), events);
        }
    }
}

/// The last epoch that something waits for.
pub(super) fn last_epoch(held: &VecDeque<BehindFence>) -> Option<u64> {
    let epochs = held.iter().filter_map(|held| match held {
        BehindFence::Long(long) => Some(long.epoch),
        BehindFence::Event(_) | BehindFence::Subscription(_) => None,
    });
    epochs.max()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn behind_one_that_is_late_all_are_late_at_once() {
        let mut fencing = Fencing::default();
        let (began, patience) = (Instant::now(), fencing.lateness.patience());
        let [first, second] = [1, 2].map(ConnectionId::from_u64);
        fencing.wait_for(1, first, began);
        fencing.wait_for(2, second, began + patience / 2);
        let late = |fencing: &mut Fencing, now| -> Vec<_> {
            fencing.late(now).iter().map(|it| it.epoch).collect()
        };
        assert!(late(&mut fencing, began + patience / 2).is_empty());
        assert_eq!(fencing.next_deadline(), Some(began + patience));
        assert_eq!(late(&mut fencing, began + patience), [1]);
        fencing.lateness.on_late(1, began);
        assert_eq!(late(&mut fencing, began + patience), [1, 2]);
        fencing.on_copied(second);
        assert_eq!(late(&mut fencing, began + patience), [1]);
    }

    #[test]
    fn waits_that_end_teach_patience() {
        let mut fencing = Fencing::default();
        let began = Instant::now();
        let most = fencing.lateness.patience();
        for epoch in 0..100 {
            fencing.wait_for(epoch, ConnectionId::from_u64(1), began);
        }
        let soon = began + Duration::from_micros(20);
        assert_eq!(fencing.take_passed(|_| false, || soon), None);
        assert_eq!(fencing.lateness.patience(), most);
        while fencing.take_passed(|_| true, || soon).is_some() {}
        assert!(fencing.is_empty() && fencing.lateness.patience() < most);
    }
}
