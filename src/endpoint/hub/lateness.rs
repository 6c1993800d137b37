//! `Lateness`: long messages whose fences are late.
//!
//! Any connection of the domain may be slow to answer, or lie. So a message that has waited for
//! much longer than fences usually take ([`Lateness::patience`]) is copied into a slot that no peer
//! can reach, and handed out: its sender has said that it is whole, and what others still write
//! does not change the copy. The slot that it landed in stays behind, until the fence is passed.
//!
//! So that slots do not all stay behind, what comes next lands in memory of its connection's own
//! (as where nothing fences at all, see `long_receive`), and is copied out of there at once, with
//! no fence to wait for: as long as the fence is late, and for a while behind that. What one peer
//! writes there late, spoils messages of its own.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::Hub;
use super::long_buffer::LongBuffer;
use super::long_pool::LongPool;
use super::long_receive::BehindFence;
use crate::endpoint::hub::event::HubEvent;
use crate::endpoint::link::Link;
use crate::id::ConnectionId;

/// How long a message waits for fences at most before it is copied; also, as long as none was
/// passed.
pub(super) const PATIENCE_MAX: Duration = Duration::from_millis(10);

/// And at least: a thread that does not run at once makes no peer a late one.
const PATIENCE_MIN: Duration = Duration::from_millis(1);

/// Patience, in times that fences usually take: who is a little late is waited for, as a copy takes
/// more of this side's time.
const USUAL_TIMES: u32 = 8;

/// The weight of what was usual before, beside one more time.
const USUAL_WEIGHT: u32 = 8;

/// Behind a fence that was late, messages land apart for so many times as long as it took: so they
/// wait for another one that is late in a sixteenth of the time at most.
const CAUTION: u32 = 16;

/// And no longer than this.
const CAUTION_MAX: Duration = Duration::from_secs(60);

/// Whether fences are late, or were just now.
#[derive(Default)]
pub(super) struct Lateness {
    /// How long messages waited for fences lately, on average. What took longer than the most
    /// patience does not count: to wait for that was in vain.
    usual: Option<Duration>,
    /// An epoch that is late, and since when it is waited for.
    late: Option<(u64, Instant)>,
    /// Until when fences are not trusted to be in time again.
    until: Option<Instant>,
    /// Messages are late, and there is no slot for a copy.
    starved: bool,
    /// Offers wait for room that nobody tells of.
    look_at: Option<Instant>,
}

impl Lateness {
    /// What comes now lands apart.
    pub(super) fn is_cautious(&self) -> bool {
        self.late.is_some() || self.until.is_some()
    }

    /// Messages are late, and wait for a slot: they come before those that are offered.
    pub(super) fn is_starved(&self) -> bool {
        self.starved
    }

    /// How long a message waits before it is copied.
    pub(super) fn patience(&self) -> Duration {
        self.usual.map_or(PATIENCE_MAX, |usual| {
            (usual * USUAL_TIMES).clamp(PATIENCE_MIN, PATIENCE_MAX)
        })
    }

    /// A message's fence was passed when it had waited for so long, copied or not: who is slow each
    /// time is waited for at last.
    pub(super) fn on_wait(&mut self, took: Duration) {
        if took <= PATIENCE_MAX {
            let before = self.usual.unwrap_or(took);
            self.usual = Some((before * (USUAL_WEIGHT - 1) + took) / USUAL_WEIGHT);
        }
    }

    /// An epoch is late, and not passed yet: later ones are not passed before it.
    pub(super) fn is_late(&self) -> bool {
        self.late.is_some()
    }

    /// Somebody waited for so long.
    pub(super) fn on_late(&mut self, epoch: u64, since: Instant) {
        self.late.get_or_insert((epoch, since));
    }

    /// Epochs up to this one are passed.
    fn on_passed(&mut self, passed: u64, now: Instant) {
        if let Some((_, since)) = self.late.take_if(|(epoch, _)| *epoch <= passed) {
            let took = now.saturating_duration_since(since);
            let until = now + (took * CAUTION).min(CAUTION_MAX);
            self.until = self.until.max(Some(until));
        }
    }

    /// Whether the time is over for which things went apart.
    fn ends(&mut self, now: Instant) -> bool {
        self.late.is_none() && self.until.take_if(|until| *until <= now).is_some()
    }

    /// Offers are looked at again.
    pub(super) fn look_again(&mut self, at: Option<Instant>) {
        self.look_at = at;
    }

    /// When something is to be done.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let until = self.until.filter(|_| self.late.is_none());
        until.into_iter().chain(self.look_at).min()
    }
}

impl<L: Link, E: HubEvent> Hub<L, E> {
    /// Copies and hands out what has waited for fences for too long.
    pub(super) fn hand_out_late(&mut self, events: &mut Vec<E>) {
        if self.fencing.is_empty() && !self.fencing.lateness.is_cautious() {
            return;
        }
        let now = self.timer.now();
        self.fencing.lateness.on_passed(self.exposed.passed(), now);
        let mut late = SmallVec::<[ConnectionId; 4]>::new();
        for waiting in self.fencing.late(now) {
            late.push(waiting.id);
            let (epoch, since) = (waiting.epoch, waiting.since);
            self.fencing.lateness.on_late(epoch, since);
        }
        let was_starved = std::mem::take(&mut self.fencing.lateness.starved);
        for id in late {
            if !self.copy_held(id) {
                self.fencing.lateness.starved = true;
                break;
            }
            self.fencing.on_copied(id);
            self.hand_out_held(id, events);
        }
        if was_starved && !self.fencing.lateness.starved {
            self.feed_long();
        }
        if self.fencing.lateness.ends(now) {
            self.give_back_own_windows();
        }
        self.timer.on_deadline(self.fencing.next_deadline());
    }

    /// Has what waits of a connection lie where no peer can write; false: there is no slot for it.
    /// What lies in a device's memory goes on waiting.
    fn copy_held(&mut self, id: ConnectionId) -> bool {
        let Some(long) = &self.long else { return true };
        let held = match self.peers.get_mut(id) {
            Some(peer) => peer.long.held.as_mut(),
            None => self.fencing.held_of_ended(id),
        };
        for held in held.into_iter().flatten() {
            let BehindFence::Long(held) = held else {
                continue;
            };
            let LongBuffer::Host(buffer) = &mut held.memory else {
                continue;
            };
            if self.exposed.has_passed(held.epoch) {
                continue;
            }
            let Some(slot) = long.acquire_host() else {
                return false;
            };
            let landed = LongBuffer::landed(std::mem::replace(buffer, slot));
            landed.copy_out(0, &mut buffer[..held.len]);
            self.stats.late_copied.add(held.len as u64);
            self.exposed.keep_until(id, held.epoch, landed.into());
            held.on_copied();
        }
        true
    }

    /// Fences are in time again: the memory that messages landed in meanwhile is not needed any
    /// more, but where one is under way.
    fn give_back_own_windows(&mut self) {
        let Some(long) = &mut self.long else { return };
        long.forget_volatile();
        for (id, peer) in self.peers.iter_mut() {
            if let Some(own) = peer.long.take_idle_window() {
                let (registration, memory) = own.into_parts();
                self.exposed.keep(id, Some(registration), memory.into());
            }
        }
    }

    /// Whether a message may land now that is offered on a connection, while fences are late: in
    /// memory of the connection's own, or in one of the slots of which half are kept for those
    /// that do.
    pub(super) fn may_land(&self, id: ConnectionId) -> bool {
        let has_own = self
            .peers
            .get(id)
            .is_some_and(|peer| peer.long.has_window());
        has_own || self.long.as_ref().is_some_and(LongPool::has_room_apart)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn after(lateness: &mut Lateness, took: Duration) -> Duration {
        (0..100).for_each(|_| lateness.on_wait(took));
        lateness.patience()
    }

    #[test]
    fn patience_is_learnt_from_those_who_answer() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.patience(), PATIENCE_MAX);
        // Who is waited for in vain teaches nothing.
        assert_eq!(
            after(&mut lateness, Duration::from_millis(900)),
            PATIENCE_MAX
        );
        assert_eq!(
            after(&mut lateness, Duration::from_micros(50)),
            PATIENCE_MIN
        );
        assert_eq!(
            after(&mut lateness, Duration::from_millis(900)),
            PATIENCE_MIN
        );
        let some = after(&mut lateness, Duration::from_micros(400));
        let about = Duration::from_micros(3000)..=Duration::from_micros(3200);
        assert!(about.contains(&some), "{some:?}");
        // Who is slow each time, and was copied at first, is waited for.
        assert_eq!(after(&mut lateness, Duration::from_millis(5)), PATIENCE_MAX);
    }

    #[test]
    fn what_was_late_is_so_until_it_is_passed_and_distrusted_for_a_while() {
        let (mut lateness, began) = (Lateness::default(), Instant::now());
        lateness.on_late(7, began);
        let passed = began + Duration::from_millis(20);
        lateness.on_passed(6, passed);
        assert!(lateness.is_late() && lateness.is_cautious());
        lateness.on_passed(7, passed);
        assert!(!lateness.is_late() && lateness.is_cautious());
        let until = passed + Duration::from_millis(20) * CAUTION;
        assert_eq!(lateness.next_deadline(), Some(until));
        assert!(!lateness.ends(until - Duration::from_millis(1)));
        assert!(lateness.ends(until) && !lateness.is_cautious());
    }
}
