//! `IdMap`: a hash map by `ConnectionId`, for look-ups on the path of every message.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::endpoint::id::ConnectionId;

/// By connection. The ids are our own consecutive numbers: no peer can choose them to collide.
pub(crate) type IdMap<V> = HashMap<ConnectionId, V, BuildHasherDefault<IdHasher>>;

/// One multiplication: the map takes the place from the low bits, which stay distinct for consecutive numbers, and a mark from the
/// high ones, which it mixes.
#[derive(Debug, Default)]
pub(crate) struct IdHasher(u64);

/// 2^64 divided by the golden ratio, made odd.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(FACTOR);
    }
}
