//! `SubscriptionTable`: who gets which publications. Pure.
//!
//! ```text
//!  tag ─► topic: number of the next publication, members [connection…]
//!  connection ─► its tags, and where it stands among the members of each
//! ```
//!
//! A publication walks the members of one topic. Adding and removing one subscription takes
//! constant time: the last member takes the place of the one that goes. Emptied topics are used
//! again, so that what comes and goes allocates nothing once it is warm.

use std::collections::HashMap;

use crate::id::{ConnectionId, IdMap};
use crate::protocol::wire::{SubscriptionOutcome, SubscriptionRequest};

/// How many subscriptions there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SubscriptionLimits {
    pub(crate) per_connection: u32,
    pub(crate) in_all: u32,
}

/// One tag with subscribers.
#[derive(Debug, Default)]
struct Topic {
    next: u64,
    members: Vec<ConnectionId>,
}

/// The table.
#[derive(Debug)]
pub(crate) struct SubscriptionTable {
    limits: SubscriptionLimits,
    topics: HashMap<u64, Topic>,
    /// For each connection its tags, and its place among the members of each.
    connections: IdMap<ConnectionId, HashMap<u64, usize>>,
    subscriptions: u32,
    /// Member lists of topics that nobody wants any more.
    spare: Vec<Vec<ConnectionId>>,
}

/// Emptied member lists that are kept, at most.
const SPARE_MAX: usize = 64;

impl SubscriptionTable {
    pub(crate) fn new(limits: SubscriptionLimits) -> Self {
        Self {
            limits,
            topics: HashMap::new(),
            connections: IdMap::default(),
            subscriptions: 0,
            spare: Vec::new(),
        }
    }

    /// Adds a subscription; what the subscriber is answered, with the number of the tag's next
    /// publication.
    pub(crate) fn subscribe(
        &mut self,
        connection: ConnectionId,
        tag: u64,
    ) -> (SubscriptionOutcome, u64) {
        let tags = self.connections.get(&connection);
        if tags.is_some_and(|tags| tags.contains_key(&tag)) {
            return (SubscriptionOutcome::ALREADY, self.next_number(tag));
        }
        if tags.map_or(0, HashMap::len) >= self.limits.per_connection as usize {
            return (SubscriptionOutcome::TOO_MANY_HERE, 0);
        }
        if self.subscriptions >= self.limits.in_all {
            return (SubscriptionOutcome::TOO_MANY_IN_ALL, 0);
        }
        let spare = &mut self.spare;
        let topic = self.topics.entry(tag).or_insert_with(|| Topic {
            next: 0,
            members: spare.pop().unwrap_or_default(),
        });
        let place = topic.members.len();
        topic.members.push(connection);
        let tags = self.connections.entry(connection).or_default();
        tags.insert(tag, place);
        self.subscriptions += 1;
        (SubscriptionOutcome::DONE, topic.next)
    }

    /// Takes a subscription out; what the subscriber is answered.
    pub(crate) fn unsubscribe(
        &mut self,
        connection: ConnectionId,
        tag: u64,
    ) -> SubscriptionOutcome {
        let Some(tags) = self.connections.get_mut(&connection) else {
            return SubscriptionOutcome::ALREADY;
        };
        let Some(place) = tags.remove(&tag) else {
            return SubscriptionOutcome::ALREADY;
        };
        if tags.is_empty() {
            self.connections.remove(&connection);
        }
        self.take_member(tag, place);
        SubscriptionOutcome::DONE
    }

    /// What a subscriber asks: the outcome, and the number of the tag's next publication.
    pub(crate) fn ask(
        &mut self,
        connection: ConnectionId,
        request: SubscriptionRequest,
    ) -> (SubscriptionOutcome, u64) {
        match request.on {
            true => self.subscribe(connection, request.tag),
            false => (self.unsubscribe(connection, request.tag), 0),
        }
    }

    /// A connection is over: how many subscriptions it had.
    pub(crate) fn remove(&mut self, connection: ConnectionId) -> u32 {
        let tags = self.connections.remove(&connection).unwrap_or_default();
        for (&tag, &place) in &tags {
            self.take_member(tag, place);
        }
        tags.len() as u32
    }

    /// The last member takes the free place.
    fn take_member(&mut self, tag: u64, place: usize) {
        let Some(topic) = self.topics.get_mut(&tag) else {
            return;
        };
        topic.members.swap_remove(place);
        self.subscriptions -= 1;
        if let Some(moved) = topic.members.get(place) {
            let tags = self.connections.get_mut(moved);
            if let Some(at) = tags.and_then(|tags| tags.get_mut(&tag)) {
                *at = place;
            }
        }
        if topic.members.is_empty()
            && let Some(topic) = self.topics.remove(&tag)
            && self.spare.len() < SPARE_MAX
        {
            self.spare.push(topic.members);
        }
    }

    /// The subscribers of a tag, and the number of its next publication; `None`: nobody subscribed.
    #[inline]
    pub(crate) fn members(&self, tag: u64) -> Option<(u64, &[ConnectionId])> {
        let topic = self.topics.get(&tag)?;
        Some((topic.next, &topic.members))
    }

    /// The next publication of the tag has another number.
    #[inline]
    pub(crate) fn count_publication(&mut self, tag: u64) {
        if let Some(topic) = self.topics.get_mut(&tag) {
            topic.next += 1;
        }
    }

    fn next_number(&self, tag: u64) -> u64 {
        self.topics.get(&tag).map_or(0, |topic| topic.next)
    }

    /// Subscribers of a tag.
    pub(crate) fn subscribers(&self, tag: u64) -> usize {
        self.topics.get(&tag).map_or(0, |topic| topic.members.len())
    }

    /// Subscriptions, of all connections together.
    pub(crate) fn len(&self) -> u32 {
        self.subscriptions
    }

    /// The tags of a connection.
    pub(crate) fn tags(&self, connection: ConnectionId) -> impl Iterator<Item = u64> {
        let tags = self.connections.get(&connection);
        tags.into_iter().flat_map(|tags| tags.keys().copied())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    const LIMITS: SubscriptionLimits = SubscriptionLimits {
        per_connection: 4,
        in_all: 10,
    };

    #[derive(Debug, Clone, Copy)]
    enum Step {
        On(u64, u64),
        Off(u64, u64),
        Gone(u64),
        Publish(u64),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let (conn, tag) = (0..5_u64, 0..7_u64);
        prop_oneof![
            5 => (conn.clone(), tag.clone()).prop_map(|(c, t)| Step::On(c, t)),
            3 => (conn.clone(), tag.clone()).prop_map(|(c, t)| Step::Off(c, t)),
            1 => conn.prop_map(Step::Gone),
            2 => tag.prop_map(Step::Publish),
        ]
    }

    /// The table as a plain set of pairs.
    #[derive(Default)]
    struct Model {
        pairs: BTreeSet<(u64, u64)>,
        numbers: BTreeMap<u64, u64>,
    }

    impl Model {
        fn tidy(&mut self) {
            let pairs = &self.pairs;
            let wanted = |tag: u64| pairs.iter().any(|pair| pair.1 == tag);
            self.numbers.retain(|tag, _| wanted(*tag));
        }

        fn on(&mut self, conn: u64, tag: u64) -> (SubscriptionOutcome, u64) {
            let next = self.numbers.get(&tag).copied().unwrap_or(0);
            let here = self.pairs.iter().filter(|pair| pair.0 == conn).count();
            if self.pairs.contains(&(conn, tag)) {
                (SubscriptionOutcome::ALREADY, next)
            } else if here == 4 {
                (SubscriptionOutcome::TOO_MANY_HERE, 0)
            } else if self.pairs.len() == 10 {
                (SubscriptionOutcome::TOO_MANY_IN_ALL, 0)
            } else {
                self.pairs.insert((conn, tag));
                (SubscriptionOutcome::DONE, next)
            }
        }
    }

    proptest! {
        #[test]
        fn the_table_is_a_set_of_pairs(steps in prop::collection::vec(any_step(), 0..120)) {
            let (mut table, mut model) = (SubscriptionTable::new(LIMITS), Model::default());
            for step in steps {
                match step {
                    Step::On(conn, tag) => {
                        prop_assert_eq!(
                            table.subscribe(ConnectionId(conn), tag),
                            model.on(conn, tag)
                        );
                    }
                    Step::Off(conn, tag) => {
                        let was = model.pairs.remove(&(conn, tag));
                        let told = table.unsubscribe(ConnectionId(conn), tag);
                        prop_assert_eq!(told == SubscriptionOutcome::DONE, was);
                    }
                    Step::Gone(conn) => {
                        let before = model.pairs.len();
                        model.pairs.retain(|pair| pair.0 != conn);
                        prop_assert_eq!(
                            table.remove(ConnectionId(conn)) as usize,
                            before - model.pairs.len()
                        );
                    }
                    Step::Publish(tag) => {
                        table.count_publication(tag);
                        if model.pairs.iter().any(|pair| pair.1 == tag) {
                            *model.numbers.entry(tag).or_default() += 1;
                        }
                    }
                }
                model.tidy();
                prop_assert_eq!(table.len() as usize, model.pairs.len());
                for tag in 0..7 {
                    let wanted: BTreeSet<_> = model
                        .pairs
                        .iter()
                        .filter(|p| p.1 == tag)
                        .map(|p| ConnectionId(p.0))
                        .collect();
                    let found = table.members(tag);
                    prop_assert_eq!(found.is_some(), !wanted.is_empty());
                    prop_assert_eq!(table.subscribers(tag), wanted.len());
                    if let Some((number, members)) = found {
                        prop_assert_eq!(number, model.numbers.get(&tag).copied().unwrap_or(0));
                        prop_assert_eq!(members.len(), wanted.len(), "nobody twice");
                        prop_assert_eq!(members.iter().copied().collect::<BTreeSet<_>>(), wanted);
                    }
                }
                for conn in 0..5 {
                    let wanted: BTreeSet<_> = model
                        .pairs
                        .iter()
                        .filter(|p| p.0 == conn)
                        .map(|p| p.1)
                        .collect();
                    prop_assert_eq!(
                        table.tags(ConnectionId(conn)).collect::<BTreeSet<_>>(),
                        wanted
                    );
                }
            }
        }
    }

    #[test]
    fn a_tag_that_nobody_wants_any_more_is_forgotten() {
        let mut table = SubscriptionTable::new(LIMITS);
        table.subscribe(ConnectionId(1), 7);
        table.count_publication(7);
        assert_eq!(table.members(7), Some((1, &[ConnectionId(1)][..])));
        table.unsubscribe(ConnectionId(1), 7);
        assert_eq!((table.members(7), table.topics.len()), (None, 0));
        assert_eq!(table.connections.len(), 0);
        assert_eq!(table.subscribe(ConnectionId(2), 7).1, 0, "counted anew");
    }
}
