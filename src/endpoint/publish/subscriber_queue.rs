//! `SubscriberQueue`: what waits for one subscriber, and what is on its way to it. Pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::account::Ticket;
use super::policy::SlowPolicy;
use crate::protocol::close_reason::CloseReason;

/// A publication, and when it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct QueuedPublication {
    ticket: Ticket,
    since: Instant,
}

/// What became of a publication that could not be posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueOutcome {
    Waits,
    /// The policy has no queue.
    NoQueue,
    Full,
    /// The connection is to be closed.
    TooSlow(Lag),
}

/// How far a subscriber is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lag {
    pub(crate) publications: u32,
    pub(crate) oldest: Duration,
}

impl Lag {
    /// Why the connection of a subscriber ends that is so far behind.
    pub(crate) fn close_reason(self) -> CloseReason {
        CloseReason::TooSlow {
            waiting: self.publications,
            waited: self.oldest,
        }
    }
}

/// The queue of one subscriber. What waits is posted in its order, and nothing new overtakes it.
#[derive(Debug)]
pub(crate) struct SubscriberQueue {
    policy: SlowPolicy,
    waiting: VecDeque<QueuedPublication>,
    flying: VecDeque<QueuedPublication>,
}

impl SubscriberQueue {
    pub(crate) fn new(policy: SlowPolicy) -> Self {
        Self {
            policy,
            waiting: VecDeque::new(),
            flying: VecDeque::new(),
        }
    }

    /// What waits already waits on: a shorter queue takes no more until it fits.
    pub(crate) fn set_policy(&mut self, policy: SlowPolicy) {
        self.policy = policy;
    }

    /// Something waits: what is new goes behind it.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A publication was posted.
    #[inline]
    pub(crate) fn on_posted(&mut self, ticket: Ticket, since: Instant) {
        self.flying.push_back(QueuedPublication { ticket, since });
    }

    /// A posted publication is over; most are in order. False: there was none.
    #[inline]
    pub(crate) fn on_done(&mut self, ticket: Ticket) -> bool {
        if self
            .flying
            .front()
            .is_some_and(|held| held.ticket == ticket)
        {
            self.flying.pop_front();
            return true;
        }
        let at = self.flying.iter().position(|held| held.ticket == ticket);
        at.and_then(|at| self.flying.remove(at)).is_some()
    }

    /// A publication can't be posted now.
    pub(crate) fn park(&mut self, ticket: Ticket, since: Instant) -> QueueOutcome {
        if self.policy.queue() == 0 && self.waiting.is_empty() {
            return QueueOutcome::NoQueue;
        }
        if self.waiting.len() >= self.policy.queue() {
            return match self.policy {
                SlowPolicy::Disconnect { .. } => QueueOutcome::TooSlow(self.lag(since)),
                _ => QueueOutcome::Full,
            };
        }
        self.waiting.push_back(QueuedPublication { ticket, since });
        QueueOutcome::Waits
    }

    /// The next that is to be posted, and when it was made.
    pub(crate) fn next(&self) -> Option<(Ticket, Instant)> {
        self.waiting.front().map(|held| (held.ticket, held.since))
    }

    /// Takes out what `next` gave.
    pub(crate) fn take_next(&mut self) -> Option<Ticket> {
        self.waiting.pop_front().map(|held| held.ticket)
    }

    /// Takes out one that has waited until its deadline.
    pub(crate) fn take_late(&mut self, now: Instant) -> Option<Ticket> {
        let SlowPolicy::Wait { deadline, .. } = self.policy else {
            return None;
        };
        let late = |held: &QueuedPublication| held.since + deadline <= now;
        self.waiting.front().is_some_and(late).then_some(())?;
        self.take_next()
    }

    /// The subscriber has something to come for longer than its policy allows.
    pub(crate) fn too_slow(&self, now: Instant) -> Option<Lag> {
        let SlowPolicy::Disconnect { after, .. } = self.policy else {
            return None;
        };
        let oldest = self.oldest()?;
        (oldest + after <= now).then(|| self.lag(now))
    }

    fn lag(&self, now: Instant) -> Lag {
        let oldest = self.oldest().unwrap_or(now);
        Lag {
            publications: (self.waiting.len() + self.flying.len()) as u32,
            oldest: now.saturating_duration_since(oldest),
        }
    }

    /// When the oldest was made that the subscriber does not have; what waits is younger than what
    /// was posted before.
    fn oldest(&self) -> Option<Instant> {
        let flying = self.flying.front();
        flying
            .or_else(|| self.waiting.front())
            .map(|held| held.since)
    }

    /// When `take_late` or `too_slow` will have something, unless it is done by then.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match self.policy {
            SlowPolicy::Drop => None,
            SlowPolicy::Wait { deadline, .. } => {
                self.waiting.front().map(|held| held.since + deadline)
            }
            SlowPolicy::Disconnect { after, .. } => self.oldest().map(|oldest| oldest + after),
        }
    }

    /// Publications that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ticket(n: u64) -> Ticket {
        Ticket::from_key(n)
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        New,
        /// The subscriber has room for so many.
        Room(usize),
        Done(usize),
        Wait(u64),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => Just(Step::New),
            3 => (0_usize..3).prop_map(Step::Room),
            3 => (0_usize..3).prop_map(Step::Done),
            2 => (1_u64..30).prop_map(Step::Wait),
        ]
    }

    fn any_policy() -> impl Strategy<Value = SlowPolicy> {
        let (queue, time) = (1_u32..5, 5_u64..50);
        prop_oneof![
            Just(SlowPolicy::Drop),
            (queue.clone(), time.clone()).prop_map(|(queue, ms)| SlowPolicy::Wait {
                queue,
                deadline: Duration::from_millis(ms),
            }),
            (queue, time).prop_map(|(queue, ms)| SlowPolicy::Disconnect {
                queue,
                after: Duration::from_millis(ms),
            }),
        ]
    }

    proptest! {
        /// Each publication has one end, those that are posted are posted in order, and none stays
        /// longer than the policy says.
        #[test]
        fn a_lane_keeps_its_policy(
            policy in any_policy(),
            steps in prop::collection::vec(any_step(), 0..80),
        ) {
            let start = Instant::now();
            let (mut queue, mut now, mut made) = (SubscriberQueue::new(policy), start, 0_u64);
            // The same, as plain lists: number, when it was made.
            let (mut waiting, mut flying) =
                (Vec::<(u64, Instant)>::new(), Vec::<(u64, Instant)>::new());
            let (mut room, mut last_posted) = (0_usize, 0_u64);
            for step in steps {
                match step {
                    Step::New => {
                        made += 1;
                        prop_assert_eq!(queue.is_waiting(), !waiting.is_empty());
                        if !queue.is_waiting() && room > 0 {
                            room -= 1;
                            queue.on_posted(ticket(made), now);
                            flying.push((made, now));
                            last_posted = made;
                        } else {
                            let full = waiting.len() == policy.queue();
                            let expected = match policy {
                                SlowPolicy::Drop => QueueOutcome::NoQueue,
                                _ if !full => QueueOutcome::Waits,
                                SlowPolicy::Wait { .. } => QueueOutcome::Full,
                                SlowPolicy::Disconnect { .. } => {
                                    let oldest = flying
                                        .iter()
                                        .chain(&waiting)
                                        .next()
                                        .map(|(_, at)| now - *at);
                                    let publications = (flying.len() + waiting.len()) as u32;
                                    QueueOutcome::TooSlow(Lag {
                                        publications,
                                        oldest: oldest.unwrap_or_default(),
                                    })
                                }
                            };
                            prop_assert_eq!(queue.park(ticket(made), now), expected);
                            if expected == QueueOutcome::Waits {
                                waiting.push((made, now));
                            }
                        }
                    }
                    Step::Room(n) => {
                        room += n;
                        while room > 0 && queue.is_waiting() {
                            let (number, since) = waiting.remove(0);
                            prop_assert_eq!(queue.next(), Some((ticket(number), since)));
                            prop_assert!(number > last_posted, "out of order");
                            queue.take_next();
                            queue.on_posted(ticket(number), since);
                            flying.push((number, since));
                            (room, last_posted) = (room - 1, number);
                        }
                    }
                    Step::Done(n) if n < flying.len() => {
                        let (number, _) = flying.remove(n);
                        prop_assert!(queue.on_done(ticket(number)));
                        prop_assert!(!queue.on_done(ticket(number)), "once");
                    }
                    Step::Done(_) => {}
                    Step::Wait(ms) => now += Duration::from_millis(ms),
                }
                let due = queue.next_deadline().is_some_and(|at| at <= now);
                let mut late = Vec::new();
                late.extend(std::iter::from_fn(|| queue.take_late(now)));
                match policy {
                    SlowPolicy::Wait { deadline, .. } => {
                        let expected = waiting
                            .iter()
                            .filter(|(_, at)| *at + deadline <= now)
                            .map(|(n, _)| ticket(*n));
                        prop_assert_eq!(&late, &expected.collect::<Vec<_>>());
                        waiting.retain(|(_, at)| *at + deadline > now);
                        prop_assert_eq!(due, !late.is_empty());
                    }
                    SlowPolicy::Disconnect { after, .. } => {
                        // What was posted out of order of its end is not looked for.
                        let first = flying.iter().chain(&waiting).next();
                        let slow = first.is_some_and(|(_, at)| *at + after <= now);
                        prop_assert_eq!(queue.too_slow(now).is_some(), slow);
                        prop_assert_eq!(due, slow);
                    }
                    SlowPolicy::Drop => prop_assert!(!due && late.is_empty()),
                }
                prop_assert_eq!(queue.waiting(), waiting.len());
            }
        }
    }
}
