//! `ConnTable`: the connections of one endpoint, found by their ids without a search.

use slab::Slab;

use crate::id::ConnectionId;

/// Bits of an id that name the place in the table; the others make it unique in the process.
const PLACE_BITS: u32 = 16;

/// No connection has this id.
pub(crate) const NOBODY: ConnectionId = ConnectionId(0);

/// The most connections that one endpoint can have.
pub(crate) const CONNECTIONS_MAX: u32 = 1 << PLACE_BITS;

/// Connections, each at the place that its id names.
///
/// A place is first reserved, so that the application can be asked about a connection that is not
/// made yet. Places are used again, ids never: an old one finds nothing at its place, or another
/// id.
#[derive(Debug)]
pub(crate) struct ConnTable<T> {
    places: Slab<Place<T>>,
    len: usize,
    /// Places looked at, so that a test can say that none is looked at in vain.
    #[cfg(test)]
    looks: std::cell::Cell<u64>,
}

/// Boxed: a connection is taken out and put back without being moved.
#[derive(Debug)]
struct Place<T> {
    id: ConnectionId,
    conn: Option<Box<T>>,
}

impl<T> ConnTable<T> {
    pub(crate) fn new() -> Self {
        Self {
            places: Slab::new(),
            len: 0,
            #[cfg(test)]
            looks: std::cell::Cell::default(),
        }
    }

    #[cfg(test)]
    fn look(&self) {
        self.looks.set(self.looks.get() + 1);
    }

    #[cfg(not(test))]
    #[inline(always)]
    fn look(&self) {}

    #[cfg(all(test, not(loom)))]
    pub(crate) fn looks(&self) -> u64 {
        self.looks.get()
    }

    /// An id that nothing in this process had before, and its place; `None` when all are taken.
    pub(crate) fn reserve(&mut self) -> Option<ConnectionId> {
        let place = self.places.vacant_entry();
        let index = place.key() as u64;
        if index >= u64::from(CONNECTIONS_MAX) {
            return None;
        }
        let id = ConnectionId(crate::endpoint::next_connection() << PLACE_BITS | index);
        place.insert(Place { id, conn: None });
        Some(id)
    }

    /// Fills a reserved place.
    pub(crate) fn put(&mut self, id: ConnectionId, conn: Box<T>) {
        if let Some(place) = self.place_mut(id) {
            debug_assert!(place.conn.is_none(), "one connection a place");
            place.conn = Some(conn);
            self.len += 1;
        }
    }

    /// Takes a connection out; its place stays reserved.
    #[inline]
    pub(crate) fn take(&mut self, id: ConnectionId) -> Option<Box<T>> {
        let conn = self.place_mut(id)?.conn.take()?;
        self.len -= 1;
        Some(conn)
    }

    /// Takes a connection out, if there is one, and ends the reservation.
    pub(crate) fn remove(&mut self, id: ConnectionId) -> Option<Box<T>> {
        self.place_mut(id)?;
        let conn = self.places.remove(place_of(id)).conn;
        self.len -= usize::from(conn.is_some());
        conn
    }

    #[inline]
    pub(crate) fn get(&self, id: ConnectionId) -> Option<&T> {
        self.look();
        let place = self.places.get(place_of(id))?;
        place.conn.as_deref().filter(|_| place.id == id)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut T> {
        self.place_mut(id)?.conn.as_deref_mut()
    }

    #[inline]
    fn place_mut(&mut self, id: ConnectionId) -> Option<&mut Place<T>> {
        self.look();
        let place = self.places.get_mut(place_of(id))?;
        (place.id == id).then_some(place)
    }

    /// Connections, reserved places not counted.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ConnectionId, &T)> {
        self.places
            .iter()
            .inspect(|_| self.look())
            .filter_map(|(_, place)| Some((place.id, place.conn.as_deref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (ConnectionId, &mut T)> {
        #[cfg(test)]
        self.looks.set(self.looks.get() + self.places.len() as u64);
        self.places
            .iter_mut()
            .filter_map(|(_, place)| Some((place.id, place.conn.as_deref_mut()?)))
    }

    pub(crate) fn ids(&self) -> Vec<ConnectionId> {
        self.iter().map(|(id, _)| id).collect()
    }
}

fn place_of(id: ConnectionId) -> usize {
    (id.0 as u32 & (CONNECTIONS_MAX - 1)) as usize
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_id_finds_its_connection_and_no_later_one() {
        let mut table = ConnTable::new();
        let a = table.reserve().unwrap();
        let b = table.reserve().unwrap();
        assert!(table.get(a).is_none() && table.is_empty());
        table.put(a, Box::new('a'));
        table.put(b, Box::new('b'));
        assert_eq!((table.get(a), table.get(b)), (Some(&'a'), Some(&'b')));
        assert_eq!(table.remove(a).as_deref(), Some(&'a'));
        assert!(table.remove(a).is_none(), "once");
        let c = table.reserve().unwrap();
        table.put(c, Box::new('c'));
        assert_eq!(place_of(a), place_of(c), "the place is used again");
        assert!(table.get(a).is_none() && table.get_mut(a).is_none());
        assert!(table.take(a).is_none());
        table.put(a, Box::new('x'));
        assert_eq!((table.get(c), table.len()), (Some(&'c'), 2));
        assert_eq!(table.ids(), [c, b]);
    }

    #[test]
    fn a_connection_taken_out_keeps_its_place() {
        let mut table = ConnTable::new();
        let a = table.reserve().unwrap();
        table.put(a, Box::new(1));
        let conn = table.take(a).unwrap();
        assert!(table.is_empty() && table.take(a).is_none());
        let b = table.reserve().unwrap();
        assert_ne!(place_of(a), place_of(b));
        table.put(a, conn);
        *table.get_mut(a).unwrap() += 1;
        assert_eq!(table.iter().collect::<Vec<_>>(), [(a, &2)]);
        for (_, conn) in table.iter_mut() {
            *conn = 7;
        }
        assert_eq!(table.remove(a).as_deref(), Some(&7));
        assert!(table.remove(b).is_none(), "a reservation can be given up");
        assert!(table.places.is_empty(), "both places are free");
    }

    #[test]
    fn nobody_is_found_nowhere_and_no_more_than_the_limit_are_reserved() {
        let mut table = ConnTable::<u8>::new();
        let ids: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| table.reserve().expect("a place"))
            .collect();
        assert!(table.get(NOBODY).is_none() && table.remove(NOBODY).is_none());
        assert_eq!(table.reserve(), None);
        table.remove(ids[7]);
        let again = table.reserve().expect("one place is free again");
        assert_eq!((place_of(again), table.reserve()), (7, None));
        assert!(again > ids[CONNECTIONS_MAX as usize - 1], "ids go up");
    }

    /// What a table of connections is: a map whose ids are never used again.
    #[test]
    fn it_is_a_map_whatever_comes_and_goes() {
        let steps = proptest::collection::vec((0..4u8, any::<usize>()), 0..200);
        proptest!(|(steps in steps)| {
            let mut table = ConnTable::new();
            let mut model = std::collections::BTreeMap::new();
            let mut ids = Vec::new();
            for (step, n) in steps {
                let known = ids.get(n % ids.len().max(1)).copied().unwrap_or(NOBODY);
                match step {
                    0 => {
                        let id = table.reserve().expect("few are out");
                        prop_assert!(!ids.contains(&id));
                        ids.push(id);
                        model.insert(id, None);
                    }
                    1 => {
                        if model.get(&known) == Some(&None) {
                            model.insert(known, Some(n));
                            table.put(known, Box::new(n));
                        }
                    }
                    2 => {
                        let had = model.get_mut(&known).and_then(Option::take);
                        prop_assert_eq!(table.take(known).map(|conn| *conn), had);
                    }
                    _ => {
                        let had = model.remove(&known).flatten();
                        prop_assert_eq!(table.remove(known).map(|conn| *conn), had);
                    }
                }
                for id in &ids {
                    prop_assert_eq!(table.get(*id).copied(), model.get(id).copied().flatten());
                }
                prop_assert_eq!(table.len(), model.values().flatten().count());
                prop_assert!(table.iter().all(|(id, conn)| model[&id] == Some(*conn)));
            }
        });
    }
}
