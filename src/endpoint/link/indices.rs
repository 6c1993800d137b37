//! `Indices`: by which numbers the connections of an endpoint without connections are told apart.

use std::collections::HashSet;

use crate::protocol::wire;

/// Gives out indices in turn, so that one is not used again soon: a message for a connection that
/// is over names an index that nobody has. Where they begin is drawn at random: a restarted process
/// begins elsewhere.
#[derive(Debug)]
pub(crate) struct Indices {
    last: u32,
    taken: HashSet<u32>,
}

impl Indices {
    pub(crate) fn new(seed: u64) -> Self {
        // Two links of one process begin apart, too.
        let seed =
            seed.rotate_left(24) ^ crate::endpoint::next_connection().wrapping_mul(0x9E37_79B9);
        Self {
            last: (seed ^ (seed >> 32)) as u32 & wire::INDEX_MASK,
            taken: HashSet::new(),
        }
    }

    /// The next one within these bits that is free. Index 0 is nobody's: hellos carry it.
    pub(crate) fn allot(&mut self, mask: u32) -> u32 {
        loop {
            self.last = (self.last + 1) & wire::INDEX_MASK;
            let index = self.last & mask;
            // Fewer connections than indices (`max_connections`): this ends.
            if index != 0 && self.taken.insert(index) {
                return index;
            }
        }
    }

    pub(crate) fn free(&mut self, index: u32) {
        self.taken.remove(&index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_not_used_again_soon_and_never_by_two() {
        let mut indices = Indices {
            last: wire::INDEX_MASK - 2,
            taken: HashSet::from([1]),
        };
        let all = wire::INDEX_MASK;
        let first = indices.allot(all);
        assert_eq!(first, wire::INDEX_MASK - 1);
        assert_eq!(indices.allot(all), wire::INDEX_MASK);
        assert_eq!(indices.allot(all), 2, "0 is nobody's, 1 is taken");
        indices.free(first);
        for _ in 0..100_000 {
            assert_ne!(indices.allot(all), first);
        }
        let begins: std::collections::HashSet<_> =
            (0..100).map(|seed| Indices::new(seed).last).collect();
        assert!(begins.len() > 90, "lives begin apart");
    }
}
