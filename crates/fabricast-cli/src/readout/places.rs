//! `Places`: where the event of a number lies. A table of fixed places with a cheap hash: a number
//! next to another one lies somewhere else, so steps of any size between numbers are the same to
//! it.

/// 2^64 divided by the golden ratio: multiples of any step are spread evenly.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
const LEN_MIN: usize = 1024;

/// A number, and its place counted from 1; 0: nothing.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    number: u64,
    place: u32,
}

/// Numbers and their places. Allocates only when it has never had so many.
#[derive(Debug)]
pub(crate) struct Places {
    /// At least twice as many as there are numbers, a power of two.
    slots: Vec<Slot>,
    len: usize,
}

impl Places {
    pub(crate) fn new() -> Self {
        Self {
            slots: vec![Slot::default(); LEN_MIN],
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds a number that is not there.
    pub(crate) fn insert(&mut self, number: u64, place: u32) {
        if 2 * (self.len + 1) > self.slots.len() {
            self.grow();
        }
        self.len += 1;
        let place = place + 1;
        self.put(Slot { number, place });
    }

    /// Takes a number out; gives its place, if it was there.
    pub(crate) fn remove(&mut self, number: u64) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let mask = self.slots.len() - 1;
        let mut at = self.home(number);
        while self.slots[at].number != number || self.slots[at].place == 0 {
            if self.slots[at].place == 0 {
                return None;
            }
            at = (at + 1) & mask;
        }
        let place = self.slots[at].place - 1;
        self.close(at);
        self.len -= 1;
        Some(place)
    }

    /// Takes out what a function says yes to, and gives its places to another one.
    pub(crate) fn extract(&mut self, mut is_out: impl FnMut(u32) -> bool) -> Vec<u32> {
        let live = self.slots.iter().filter(|slot| slot.place != 0);
        let out = live.filter(|slot| is_out(slot.place - 1));
        let numbers: Vec<_> = out.map(|slot| slot.number).collect();
        let remove = |number| self.remove(number);
        numbers.into_iter().filter_map(remove).collect()
    }

    fn home(&self, number: u64) -> usize {
        let bits = self.slots.len().trailing_zeros();
        (number.wrapping_mul(SPREAD) >> (64 - bits)) as usize
    }

    fn put(&mut self, slot: Slot) {
        let mask = self.slots.len() - 1;
        let mut at = self.home(slot.number);
        while self.slots[at].place != 0 {
            at = (at + 1) & mask;
        }
        self.slots[at] = slot;
    }

    /// Empties a slot, and moves those behind it up that would not be found any more.
    fn close(&mut self, mut gap: usize) {
        let mask = self.slots.len() - 1;
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let slot = self.slots[at];
            if slot.place == 0 {
                break;
            }
            let from_home = at.wrapping_sub(self.home(slot.number)) & mask;
            if from_home >= at.wrapping_sub(gap) & mask {
                self.slots[gap] = slot;
                gap = at;
            }
        }
        self.slots[gap] = Slot::default();
    }

    fn grow(&mut self) {
        let twice = vec![Slot::default(); 2 * self.slots.len()];
        for slot in std::mem::replace(&mut self.slots, twice) {
            if slot.place != 0 {
                self.put(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::readout::size::Random;

    #[test]
    fn it_finds_what_a_map_finds_whatever_the_steps() {
        for step in [1, 2, 64, 4096, 1 << 40, SPREAD] {
            let (mut places, mut map) = (Places::new(), HashMap::new());
            let mut random = Random::new(step);
            for round in 0..20_000_u32 {
                let number = (random.next() % 3000).wrapping_mul(step);
                let there = map.remove(&number);
                assert_eq!(places.remove(number), there, "{number} of steps of {step}");
                if there.is_none() {
                    places.insert(number, round);
                    map.insert(number, round);
                }
                assert_eq!(places.len(), map.len());
            }
            let mut odd = places.extract(|place| place % 2 == 1);
            let mut want: Vec<_> = map.values().copied().filter(|p| p % 2 == 1).collect();
            odd.sort_unstable();
            want.sort_unstable();
            assert_eq!(odd, want);
            map.retain(|_, place| *place % 2 == 0);
            for (number, place) in map {
                assert_eq!(places.remove(number), Some(place));
            }
            assert_eq!(places.len(), 0);
        }
    }
}
