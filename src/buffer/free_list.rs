//! `FreeList`: which indices are free; last in, first out, lock-free.
//!
//! A linked list through an array. The head is one word, `tag | top`; the tag changes with each pop
//! and push, so a head that was taken and put back in the meantime (ABA) is not mistaken for the
//! old one, unless exactly a multiple of 2^32 operations of others happened between two
//! instructions of ours. Each node knows how many indices are free up to it, so the count needs no
//! word of its own.

use crate::sync::{AtomicU32, AtomicU64, Ordering, total_order_under_loom};

const NONE: u32 = u32::MAX;
/// How often `len` looks again when it is overtaken, before it answers with what it saw last.
const LEN_TRIES: u32 = 8;

fn pack(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn unpack(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

/// The head, on cache lines of its own.
#[repr(align(128))]
struct Head(AtomicU64);

/// Free indices below a fixed capacity.
pub(super) struct FreeList {
    /// `tag | top`. Its accesses are `SeqCst` because of [`WakeList`](super::wake_list::WakeList):
    /// a push comes before the look at who waits, and who waits says so before the pop that finds
    /// nothing.
    head: Head,
    /// `depth | next` of each index; meaningful while the index is free.
    nodes: Box<[AtomicU64]>,
    /// The least number of free indices since the last `take_low_water`.
    low: AtomicU32,
}

impl FreeList {
    /// All indices below `capacity` are free, 0 comes first.
    pub(super) fn full(capacity: u32) -> Self {
        assert!(capacity < NONE, "an index must differ from the end mark");
        let node = |index: u32| {
            pack(
                capacity - index,
                if index + 1 < capacity {
                    index + 1
                } else {
                    NONE
                },
            )
        };
        Self {
            head: Head(AtomicU64::new(pack(0, if capacity > 0 { 0 } else { NONE }))),
            nodes: (0..capacity)
                .map(|index| AtomicU64::new(node(index)))
                .collect(),
            low: AtomicU32::new(capacity),
        }
    }

    /// Takes a free index, which is then the caller's alone.
    #[inline]
    pub(super) fn pop(&self) -> Option<u32> {
        let mut head = self.head.0.load(Ordering::SeqCst);
        loop {
            let (tag, top) = unpack(head);
            if top == NONE {
                return None;
            }
            // Somebody may take `top` meanwhile and the node be rubbish: then the tag has changed
            // and the exchange fails.
            let (depth, next) = unpack(self.nodes[top as usize].load(Ordering::Relaxed));
            let taken = pack(tag.wrapping_add(1), next);
            // Acquire: what the last owner did with the index comes before what we do with it.
            match self
                .head
                .0
                .compare_exchange_weak(head, taken, Ordering::SeqCst, Ordering::SeqCst)
            {
                Ok(_) => {
                    self.note_low(depth - 1);
                    return Some(top);
                }
                Err(now) => head = now,
            }
        }
    }

    /// Gives an index back. It must have come from `pop`, and be given back once.
    #[inline]
    pub(super) fn push(&self, index: u32) {
        let node = &self.nodes[index as usize];
        let mut head = self.head.0.load(Ordering::Relaxed);
        loop {
            let (tag, top) = unpack(head);
            let depth = if top == NONE {
                0
            } else {
                unpack(self.nodes[top as usize].load(Ordering::Relaxed)).0
            };
            node.store(pack(depth.wrapping_add(1), top), Ordering::Relaxed);
            let given = pack(tag.wrapping_add(1), index);
            // Release: our use of the index, and the node, come before the next owner's pop.
            match self.head.0.compare_exchange_weak(
                head,
                given,
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        total_order_under_loom();
    }

    /// How many indices are free; while others pop and push, how many were a moment ago.
    pub(super) fn len(&self) -> u32 {
        let mut head = self.head.0.load(Ordering::Acquire);
        let mut depth = 0;
        for _ in 0..LEN_TRIES {
            let (_, top) = unpack(head);
            if top == NONE {
                return 0;
            }
            depth = unpack(self.nodes[top as usize].load(Ordering::Acquire)).0;
            let now = self.head.0.load(Ordering::Acquire);
            if now == head {
                break;
            }
            head = now;
        }
        depth.min(self.capacity())
    }

    pub(super) fn capacity(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// The least number of free indices since the list was made or `take_low_water` was called.
    pub(super) fn low_water(&self) -> u32 {
        self.low.load(Ordering::Relaxed).min(self.len())
    }

    /// The same, and starts anew.
    pub(super) fn take_low_water(&self) -> u32 {
        // First so high that each pop from here on counts, then down to what is free now.
        let low = self.low.swap(NONE, Ordering::Relaxed);
        let now = self.len();
        self.low.fetch_min(now, Ordering::Relaxed);
        low.min(now)
    }

    #[inline]
    fn note_low(&self, free: u32) {
        // A plain look first: the mark moves seldom, and a write would take the line away from the
        // other threads.
        if free < self.low.load(Ordering::Relaxed) {
            self.low.fetch_min(free, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
#[path = "tests/free_list.rs"]
mod tests;
