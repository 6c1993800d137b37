//! The table of a loop's sources: slots with generations, so that an old token never names a new source.

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
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Values by token.
#[derive(Debug)]
pub(super) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Table<T> {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// # Panics
    /// With 2³² − 1 sources; memory ends long before.
    pub(super) fn insert(&mut self, value: T) -> Token {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.slots.len()).expect("more than 2^32 sources");
            // The bits u64::MAX belong to the waker.
            assert!(index < u32::MAX, "more than 2^32 sources");
            self.slots.push(Slot {
                generation: 0,
                value: None,
            });
            index
        });
        let slot = &mut self.slots[index as usize];
        slot.value = Some(value);
        Token {
            index,
            generation: slot.generation,
        }
    }

    pub(super) fn get(&self, token: Token) -> Option<&T> {
        let slot = self.slots.get(token.index as usize)?;
        slot.value
            .as_ref()
            .filter(|_| slot.generation == token.generation)
    }

    pub(super) fn get_mut(&mut self, token: Token) -> Option<&mut T> {
        let slot = self.slots.get_mut(token.index as usize)?;
        slot.value
            .as_mut()
            .filter(|_| slot.generation == token.generation)
    }

    pub(super) fn remove(&mut self, token: Token) -> Option<T> {
        let slot = self.slots.get_mut(token.index as usize)?;
        if slot.generation != token.generation {
            return None;
        }
        let value = slot.value.take()?;
        // A slot whose generations are used up is retired: its next token would repeat an old one.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.free.push(token.index);
        }
        Some(value)
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
        table.slots.push(Slot {
            generation: u32::MAX,
            value: None,
        });
        table.free.push(0);
        let last = table.insert(1);
        assert_eq!(table.remove(last), Some(1));
        assert_ne!(table.insert(2).index, last.index);
    }
}
