//! `Publications`: the account of what was published and is not over for every subscriber. Pure.
//!
//! A publication is opened, has an outcome for each subscriber at once or later, and is over with
//! the last one. What it holds (the buffer, the header) stays until then; its place is used again,
//! so that nothing is allocated once the account is warm.

/// Names one publication of an account while it is open, and none later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Ticket {
    place: u32,
    life: u32,
}

impl Ticket {
    /// As a key of an operation.
    pub(crate) fn key(self) -> u64 {
        u64::from(self.life) << 32 | u64::from(self.place)
    }

    pub(crate) fn from_key(key: u64) -> Self {
        Self {
            place: key as u32,
            life: (key >> 32) as u32,
        }
    }
}

/// How many subscribers a publication had, by how it ended for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcomes {
    /// Subscribers to which the publication was sent.
    pub sent: u32,
    /// Subscribers that did not get it: they had no room, and the policy is to drop.
    pub dropped: u32,
    /// Subscribers whose connection ended while it was on its way.
    pub failed: u32,
}

impl Outcomes {
    /// Subscribers that there were when it was published.
    pub fn subscribers(&self) -> u32 {
        self.sent + self.dropped + self.failed
    }

    /// Whether every subscriber was sent it.
    pub fn all_sent(&self) -> bool {
        self.dropped == 0 && self.failed == 0
    }
}

/// One of the three.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Sent,
    Dropped,
    Failed,
}

#[derive(Debug)]
struct OpenPublication<T> {
    key: u64,
    held: T,
    outcomes: Outcomes,
    /// Subscribers that it is on its way to, or waits for.
    pending: u32,
    /// Of these, subscribers in whose queue the publication waits.
    waiting: u32,
    /// More subscribers may be added.
    unsealed: bool,
}

#[derive(Debug)]
struct PublicationPlace<T> {
    life: u32,
    open: Option<OpenPublication<T>>,
}

/// A publication that is over.
#[derive(Debug)]
pub(crate) struct PublicationOver<T> {
    pub(crate) key: u64,
    pub(crate) held: T,
    pub(crate) outcomes: Outcomes,
}

/// The account. Bounded: a publication counts until it was reported.
#[derive(Debug)]
pub(crate) struct Publications<T> {
    limit: usize,
    places: Vec<PublicationPlace<T>>,
    free: Vec<u32>,
    /// Over, and not reported yet; in the order in which they ended.
    over: std::collections::VecDeque<Ticket>,
}

impl<T> Publications<T> {
    pub(crate) fn new(limit: u32) -> Self {
        Self {
            limit: limit as usize,
            places: Vec::new(),
            free: Vec::new(),
            over: std::collections::VecDeque::new(),
        }
    }

    /// Publications that were not reported yet.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    /// Opens a publication. The caller asked `is_full`.
    pub(crate) fn open(&mut self, key: u64, held: T) -> Ticket {
        debug_assert!(!self.is_full(), "asked first");
        let open = Some(OpenPublication {
            key,
            held,
            outcomes: Outcomes::default(),
            pending: 0,
            waiting: 0,
            unsealed: true,
        });
        let Some(place) = self.free.pop() else {
            self.places.push(PublicationPlace { life: 1, open });
            return Ticket {
                place: self.places.len() as u32 - 1,
                life: 1,
            };
        };
        let found = &mut self.places[place as usize];
        found.life = found.life.wrapping_add(1);
        found.open = open;
        Ticket {
            place,
            life: found.life,
        }
    }

    fn get_mut(&mut self, ticket: Ticket) -> Option<&mut OpenPublication<T>> {
        let place = self.places.get_mut(ticket.place as usize)?;
        place.open.as_mut().filter(|_| place.life == ticket.life)
    }

    /// The key, and what is held.
    pub(crate) fn get(&mut self, ticket: Ticket) -> Option<(u64, &mut T)> {
        self.get_mut(ticket).map(|open| (open.key, &mut open.held))
    }

    /// Counts one more subscriber to which the publication is on its way.
    #[inline]
    pub(crate) fn add_posted(&mut self, ticket: Ticket) {
        if let Some(open) = self.get_mut(ticket) {
            open.pending += 1;
        }
    }

    /// Counts one more subscriber in whose queue the publication waits.
    pub(crate) fn add_waiting(&mut self, ticket: Ticket) {
        if let Some(open) = self.get_mut(ticket) {
            open.pending += 1;
            open.waiting += 1;
        }
    }

    /// One subscriber more does not get it, and it waits for none.
    pub(crate) fn add_dropped(&mut self, ticket: Ticket) {
        if let Some(open) = self.get_mut(ticket) {
            open.outcomes.dropped += 1;
        }
    }

    /// It waits for a subscriber no more. What is held, when it waits for no other.
    pub(crate) fn wait_over(&mut self, ticket: Ticket) -> Option<&mut T> {
        let open = self.get_mut(ticket)?;
        open.waiting -= 1;
        (open.waiting == 0 && !open.unsealed).then_some(&mut open.held)
    }

    /// Every subscriber was added. What is held, when it waits for none.
    pub(crate) fn seal(&mut self, ticket: Ticket) -> Option<&mut T> {
        self.get_mut(ticket)?.unsealed = false;
        self.close_if_over(ticket);
        let open = self.get_mut(ticket)?;
        (open.waiting == 0).then_some(&mut open.held)
    }

    /// How it ended for a subscriber that was added as posted, or as waiting (after `wait_over`).
    #[inline]
    pub(crate) fn settle(&mut self, ticket: Ticket, outcome: Outcome) {
        let Some(open) = self.get_mut(ticket) else {
            return;
        };
        debug_assert!(open.pending > 0, "more outcomes than subscribers");
        open.pending = open.pending.saturating_sub(1);
        match outcome {
            Outcome::Sent => open.outcomes.sent += 1,
            Outcome::Dropped => open.outcomes.dropped += 1,
            Outcome::Failed => open.outcomes.failed += 1,
        }
        self.close_if_over(ticket);
    }

    fn close_if_over(&mut self, ticket: Ticket) {
        if let Some(open) = self.get_mut(ticket)
            && open.pending == 0
            && !open.unsealed
        {
            self.over.push_back(ticket);
        }
    }

    /// The next that is over; its place is free then.
    pub(crate) fn report(&mut self) -> Option<PublicationOver<T>> {
        let ticket = self.over.pop_front()?;
        let open = self.places[ticket.place as usize].open.take()?;
        self.free.push(ticket.place);
        Some(PublicationOver {
            key: open.key,
            held: open.held,
            outcomes: open.outcomes,
        })
    }

    /// All that is not reported, taken out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (u64, T)> {
        self.over.clear();
        let places = self.places.iter_mut();
        places.filter_map(|place| place.open.take().map(|open| (open.key, open.held)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        /// Posted, waiting, dropped subscribers.
        Publish(u32, u32, u32),
        /// The nth open one has an outcome for a subscriber that it was posted to.
        Settle(usize, Outcome),
        /// The nth open one waits no more for a subscriber: posted, or dropped.
        Unpark(usize, bool),
        Report,
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let outcome = prop_oneof![
            Just(Outcome::Sent),
            Just(Outcome::Failed),
            Just(Outcome::Dropped)
        ];
        prop_oneof![
            3 => (0_u32..4, 0_u32..3, 0_u32..3).prop_map(|(p, w, d)| Step::Publish(p, w, d)),
            6 => (0_usize..4, outcome).prop_map(|(n, outcome)| Step::Settle(n, outcome)),
            3 => (0_usize..4, any::<bool>()).prop_map(|(n, posted)| Step::Unpark(n, posted)),
            2 => Just(Step::Report),
        ]
    }

    #[derive(Debug, Default, Clone)]
    struct Model {
        posted: u32,
        waiting: u32,
        outcomes: Outcomes,
    }

    proptest! {
        /// Each publication is reported once, with what became of each subscriber, when none is
        /// left.
        #[test]
        fn the_account_is_right(steps in prop::collection::vec(any_step(), 0..150)) {
            let mut account = Publications::new(4);
            let (mut next, mut reported) = (0_u64, Vec::new());
            let mut model: BTreeMap<u64, (Ticket, Model)> = BTreeMap::new();
            let mut ended = Vec::new();
            for step in steps {
                let nth = |n: usize| model.keys().nth(n).copied();
                let mut touched = None;
                match step {
                    Step::Publish(..) if account.is_full() => {}
                    Step::Publish(posted, waiting, dropped) => {
                        next += 1;
                        let ticket = account.open(next, format!("{next}"));
                        (0..posted).for_each(|_| account.add_posted(ticket));
                        (0..waiting).for_each(|_| account.add_waiting(ticket));
                        (0..dropped).for_each(|_| account.add_dropped(ticket));
                        prop_assert_eq!(account.seal(ticket).is_some(), waiting == 0);
                        let outcomes = Outcomes { dropped, ..Outcomes::default() };
                        model.insert(next, (ticket, Model { posted, waiting, outcomes }));
                        touched = Some(next);
                    }
                    Step::Settle(n, outcome) => if let Some(key) = nth(n) {
                        let (ticket, it) = model.get_mut(&key).unwrap();
                        if it.posted > 0 {
                            it.posted -= 1;
                            account.settle(*ticket, outcome);
                            match outcome {
                                Outcome::Sent => it.outcomes.sent += 1,
                                Outcome::Dropped => it.outcomes.dropped += 1,
                                Outcome::Failed => it.outcomes.failed += 1,
                            }
                            touched = Some(key);
                        }
                    },
                    Step::Unpark(n, posted) => if let Some(key) = nth(n) {
                        let (ticket, it) = model.get_mut(&key).unwrap();
                        if it.waiting > 0 {
                            it.waiting -= 1;
                            prop_assert_eq!(account.wait_over(*ticket).is_some(), it.waiting == 0);
                            if posted {
                                it.posted += 1;
                            } else {
                                account.settle(*ticket, Outcome::Dropped);
                                it.outcomes.dropped += 1;
                            }
                            touched = Some(key);
                        }
                    },
                    Step::Report => {
                        let expected = ended.first().copied();
                        let over = account.report();
                        prop_assert_eq!(over.as_ref().map(|over| over.key), expected);
                        if let Some(over) = over {
                            ended.remove(0);
                            let (ticket, it): (Ticket, Model) = model.remove(&over.key).unwrap();
                            prop_assert_eq!(over.outcomes, it.outcomes);
                            prop_assert_eq!(over.held, over.key.to_string());
                            prop_assert!(account.get(ticket).is_none(), "its ticket is void");
                            reported.push(over.key);
                        }
                    }
                }
                if let Some(key) = touched {
                    let it = &model[&key].1;
                    if it.posted + it.waiting == 0 {
                        ended.push(key);
                    }
                }
                prop_assert_eq!(account.len(), model.len());
                prop_assert!(account.len() <= 4);
            }
            let left: Vec<_> = account.drain().map(|(key, _)| key).collect();
            prop_assert_eq!(left.len() + reported.len(), next as usize, "none is lost");
        }
    }

    #[test]
    fn a_ticket_is_a_key() {
        let mut account = Publications::new(1);
        let first = account.open(7, ());
        account.seal(first);
        assert_eq!(account.report().map(|over| over.key), Some(7));
        let second = account.open(8, ());
        assert_eq!(Ticket::from_key(second.key()), second);
        assert_ne!(first, second);
        assert!(account.get(first).is_none() && account.get(second).is_some());
    }
}
