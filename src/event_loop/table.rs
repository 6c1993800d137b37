//! The table of a loop's sources: a slab whose places have generations, so that an old token never
//! names a new source.

use slab::Slab;

/// Names one source of one loop, for good: after the source is removed, its token names nothing.
///
/// Tokens of two loops may be equal; do not mix them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    index: u32,
    generation: u32,
}

impl Token {
    /// The token as the 64 bits that epoll gives back. Never `u64::MAX`: see [`Table::insert`].
    pub(super) fn bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub(super) fn from_bits(bits: u64) -> Self {
        Self {
            index: bits as u32,
            generation: (bits >> 32) as u32,
        }
    }
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    /// `None` in a place that is retired: the slab keeps it, so that nobody gets it again.
    value: Option<T>,
}

/// Values by token.
#[derive(Debug)]
pub(super) struct Table<T> {
    places: Slab<Place<T>>,
    /// Of each place's next value.
    generations: Vec<u32>,
}

impl<T> Table<T> {
    pub(super) fn new() -> Self {
        Self {
            places: Slab::new(),
            generations: Vec::new(),
        }
    }

    /// # Panics
    /// With 2³² − 1 sources; memory ends long before.
    pub(super) fn insert(&mut self, value: T) -> Token {
        let place = self.places.vacant_entry();
        let key = place.key();
        if key == self.generations.len() {
            self.generations.push(0);
        }
        let index = u32::try_from(key).expect("more than 2^32 sources");
        // The bits u64::MAX belong to the waker.
        assert!(index < u32::MAX, "more than 2^32 sources");
        let generation = self.generations[key];
        place.insert(Place {
            generation,
            value: Some(value),
        });
        Token { index, generation }
    }

    pub(super) fn get(&self, token: Token) -> Option<&T> {
        let place = self.places.get(token.index as usize)?;
        let ours = place.generation == token.generation;
        place.value.as_ref().filter(|_| ours)
    }

    pub(super) fn get_mut(&mut self, token: Token) -> Option<&mut T> {
        let place = self.places.get_mut(token.index as usize)?;
        let ours = place.generation == token.generation;
        place.value.as_mut().filter(|_| ours)
    }

    pub(super) fn remove(&mut self, token: Token) -> Option<T> {
        self.get(token)?;
        let key = token.index as usize;
        let Some(next) = token.generation.checked_add(1) else {
            // The generations of this place are used up: its next token would repeat an old one.
            return self.places[key].value.take();
        };
        self.generations[key] = next;
        self.places.remove(key).value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_token_names_nothing() {
        let mut table = Table::new();
        let first = table.insert('a');
        assert_eq!(table.remove(first), Some('a'));
        let second = table.insert('b');
        assert_eq!(second.index, first.index, "the slot is used again");
        assert_ne!(first, second);
        assert_eq!(table.get(first), None);
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get(second), Some(&'b'));
        assert_eq!(Token::from_bits(second.bits()), second);
    }

    #[test]
    fn a_slot_with_no_generation_left_is_retired() {
        let mut table = Table::new();
        table.generations.push(u32::MAX);
        let last = table.insert(1);
        assert_eq!((last.generation, table.remove(last)), (u32::MAX, Some(1)));
        assert_eq!(table.remove(last), None, "once");
        assert_ne!(table.insert(2).index, last.index);
        assert_eq!(table.get(last), None);
    }
}
