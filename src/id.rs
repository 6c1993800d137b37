//! Numbers that this process gives to endpoints and connections, and never to two of them. What
//! lies below endpoints keeps them, too.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A map by numbers that this process gives or its application, and no peer: their hash needs no
/// secret, which takes a hundred instructions and more each time.
pub(crate) type IdMap<K, V> = foldhash::HashMap<K, V>;

/// Names one endpoint of this process; never used twice, never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(u64);

impl EndpointId {
    /// An id that no endpoint of this process had before.
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The number, for logs and for C.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A connection of an endpoint: unique in the process, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(crate) u64);

impl ConnectionId {
    /// The connection of a number that [`as_u64`](Self::as_u64) gave, for foreign interfaces. One
    /// that was never given is a connection that no endpoint has, and is refused as such.
    pub fn from_u64(number: u64) -> Self {
        Self(number)
    }

    /// The number, for logs and foreign interfaces.
    pub fn as_u64(self) -> u64 {
        self.0
    }
}

impl std::fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
