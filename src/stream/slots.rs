//! Slots of windows that blocks are written into by RMA: which side has which. Each connection has
//! slots of its own.
//!
//! ```text
//!  receiver: SlotGrants                          sender: SlotBook
//!    grant ───────────── Window ────────────────► add: free
//!                                                 take ─► the write ─► on_placed
//!    take ◄───────────── Placed ─────────────────
//!    copied, checked, written
//!    free ────────────── Freed ─────────────────► on_freed: free again
//! ```

use std::collections::VecDeque;

use super::error::StreamViolation;
use super::wire::{SLOTS_MAX, Window};

fn no_such(slot: u32) -> StreamViolation {
    let what = "the number of a slot";
    let value = slot.into();
    StreamViolation::Count { what, value }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    /// Nothing was said of it.
    Nobody,
    Free,
    Writing,
    /// The receiver was told that there is a block in it.
    Placed,
}

/// Where a slot lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SlotPlace {
    /// The number of the window, in the order in which they were said.
    pub(crate) window: usize,
    /// In the window, in bytes.
    pub(crate) offset: u64,
}

/// What a sender knows of the slots of one connection.
#[derive(Debug, Default)]
pub(crate) struct SlotBook {
    slots: Vec<(Held, SlotPlace)>,
    /// The one that was freed first is the next.
    free: VecDeque<u32>,
    windows: usize,
}

impl SlotBook {
    /// The receiver lets slots be written, in a window of `len` bytes; each has room for a block.
    ///
    /// # Errors
    ///
    /// The slots can't be: too many, too small, beyond the window's end, or said before.
    pub(crate) fn add(
        &mut self,
        window: &Window<'_>,
        len: u64,
        block_bytes: u32,
    ) -> Result<(), StreamViolation> {
        let (first, count) = (window.first_slot, window.slots);
        let end = first.checked_add(count).filter(|end| *end <= SLOTS_MAX);
        let end = end.ok_or_else(|| no_such(first))?;
        let last = u64::from(count - 1).checked_mul(window.stride);
        let last = last.and_then(|at| at.checked_add(block_bytes.into()));
        let overlap = count > 1 && window.stride < u64::from(block_bytes);
        if overlap || last.is_none_or(|last| last > len) {
            let what = "the room of a slot";
            let value = window.stride;
            return Err(StreamViolation::Count { what, value });
        }
        if self.slots.len() < end as usize {
            let nobody = (Held::Nobody, SlotPlace::default());
            self.slots.resize(end as usize, nobody);
        }
        let said = &mut self.slots[first as usize..end as usize];
        if said.iter().any(|(held, _)| *held != Held::Nobody) {
            return Err(no_such(first));
        }
        for (at, slot) in said.iter_mut().enumerate() {
            let place = SlotPlace {
                window: self.windows,
                offset: at as u64 * window.stride,
            };
            *slot = (Held::Free, place);
        }
        self.windows += 1;
        self.free.extend(first..end);
        Ok(())
    }

    /// A slot to be written, and where it lies.
    pub(crate) fn take(&mut self) -> Option<(u32, SlotPlace)> {
        let slot = self.free.pop_front()?;
        let (held, place) = &mut self.slots[slot as usize];
        *held = Held::Writing;
        Some((slot, *place))
    }

    /// One that was taken was not written.
    pub(crate) fn give_back(&mut self, slot: u32) {
        self.slots[slot as usize].0 = Held::Free;
        self.free.push_front(slot);
    }

    /// The receiver is told that a block is in it.
    pub(crate) fn on_placed(&mut self, slot: u32) {
        self.slots[slot as usize].0 = Held::Placed;
    }

    /// The receiver says that it may be written again.
    ///
    /// # Errors
    ///
    /// There was no block in it, as far as the receiver was told.
    pub(crate) fn on_freed(&mut self, slot: u32) -> Result<(), StreamViolation> {
        match self.slots.get_mut(slot as usize) {
            Some((held @ Held::Placed, _)) => *held = Held::Free,
            _ => return Err(no_such(slot)),
        }
        self.free.push_back(slot);
        Ok(())
    }

    /// How many have been granted, and how many can be taken.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.slots.len(), self.free.len())
    }

    /// Whether one can be taken.
    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }
}

/// A receiver's slots of one connection, with what is behind each.
#[derive(Debug)]
pub(crate) struct SlotGrants<T> {
    /// Each slot, and whether the sender may say that there is a block in it.
    slots: Vec<(T, bool)>,
}

impl<T> Default for SlotGrants<T> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

impl<T> SlotGrants<T> {
    /// One more that the sender may write: its number.
    pub(crate) fn grant(&mut self, memory: T) -> u32 {
        self.slots.push((memory, true));
        self.slots.len() as u32 - 1
    }

    /// Whether none was granted.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The sender says that there is a block in it.
    ///
    /// # Errors
    ///
    /// There is no such slot, or the last block in it was not freed.
    pub(crate) fn take(&mut self, slot: u32) -> Result<&T, StreamViolation> {
        match self.slots.get_mut(slot as usize) {
            Some((memory, granted @ true)) => {
                *granted = false;
                Ok(memory)
            }
            _ => Err(no_such(slot)),
        }
    }

    /// Its block is dealt with: the sender may be told.
    ///
    /// # Panics
    ///
    /// When there was none in it.
    pub(crate) fn free(&mut self, slot: u32) {
        let granted = &mut self.slots[slot as usize].1;
        assert!(!std::mem::replace(granted, true), "it was taken");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::wire::WINDOW_DESCRIPTOR_LEN;
    use super::*;

    const DESCRIPTOR: [u8; WINDOW_DESCRIPTOR_LEN] = [0; WINDOW_DESCRIPTOR_LEN];

    fn window(first_slot: u32, slots: u32, stride: u64) -> Window<'static> {
        Window {
            stream: 1,
            first_slot,
            slots,
            stride,
            descriptor: &DESCRIPTOR,
        }
    }

    #[test]
    fn slots_lie_behind_each_other_and_are_used_in_turn() {
        let mut book = SlotBook::default();
        assert!(!book.has_free() && book.take().is_none());
        book.add(&window(0, 2, 100), 200, 100).unwrap();
        book.add(&window(2, 1, 0), 100, 100).unwrap();
        let places: Vec<_> = std::iter::from_fn(|| book.take()).collect();
        let place = |window, offset| SlotPlace { window, offset };
        assert_eq!(
            places,
            [(0, place(0, 0)), (1, place(0, 100)), (2, place(1, 0))]
        );
        book.on_placed(1);
        book.on_freed(1).unwrap();
        book.give_back(2);
        assert_eq!(book.take().unwrap().0, 2);
        assert_eq!(book.take().unwrap().0, 1);
    }

    #[test]
    fn a_receiver_that_lies_about_slots_is_found_out() {
        let mut book = SlotBook::default();
        for (wrong, len) in [
            (window(SLOTS_MAX, 1, 100), 100),
            (window(u32::MAX, u32::MAX, 100), u64::MAX),
            (window(0, 2, 99), 200),
            (window(0, 2, 100), 199),
            (window(0, 2, u64::MAX), u64::MAX),
            (window(0, 1, 100), 99),
        ] {
            book.add(&wrong, len, 100).expect_err("too many, too small");
        }
        book.add(&window(0, 2, 100), 200, 100).unwrap();
        book.add(&window(1, 2, 100), 200, 100)
            .expect_err("said before");
        let (slot, _) = book.take().unwrap();
        for (slot, why) in [
            (slot, "not placed"),
            (1, "not taken"),
            (2, "none"),
            (u32::MAX, "none"),
        ] {
            book.on_freed(slot).expect_err(why);
        }
        book.on_placed(slot);
        book.on_freed(slot).unwrap();
        book.on_freed(slot).expect_err("freed before");
    }

    #[test]
    fn a_sender_that_lies_about_slots_is_found_out() {
        let mut grants = SlotGrants::default();
        assert_eq!((grants.grant('a'), grants.grant('b')), (0, 1));
        assert_eq!(grants.take(1), Ok(&'b'));
        grants.take(1).expect_err("its block was not dealt with");
        grants.take(2).expect_err("there is none");
        grants.free(1);
        assert_eq!(grants.take(1), Ok(&'b'));
    }

    proptest! {
        /// Both sides always agree on who has which slot.
        #[test]
        fn both_sides_agree(
            slots in 1..9_u32,
            steps in proptest::collection::vec(0..4_u8, 0..200),
        ) {
            let mut book = SlotBook::default();
            let mut grants = SlotGrants::default();
            for number in 0..slots {
                prop_assert_eq!(grants.grant(()), number);
                book.add(&window(number, 1, 10), 10, 10).unwrap();
            }
            let (mut written, mut placed, mut freed) =
                (Vec::new(), VecDeque::new(), VecDeque::new());
            for step in steps {
                match step {
                    0 => written.extend(book.take().map(|(slot, _)| slot)),
                    1 => {
                        if let Some(slot) = written.pop() {
                            book.on_placed(slot);
                            placed.push_back(slot);
                        }
                    }
                    2 => {
                        if let Some(slot) = placed.pop_front() {
                            grants.take(slot).unwrap();
                            grants.free(slot);
                            freed.push_back(slot);
                        }
                    }
                    _ => {
                        if let Some(slot) = freed.pop_front() {
                            book.on_freed(slot).unwrap();
                        }
                    }
                }
                let held = written.len() + placed.len() + freed.len();
                prop_assert_eq!(book.free.len() + held, slots as usize);
            }
        }
    }
}
