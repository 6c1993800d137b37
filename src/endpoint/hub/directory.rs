//! `Directory`: which connection a key of the link's names, and how connections came about.

use std::collections::HashMap;

use crate::endpoint::link::ConnKey;
use crate::id::ConnectionId;

/// The connections of a hub by the keys that its link has for them.
#[derive(Default)]
pub(super) struct Directory {
    by_key: HashMap<ConnKey, ConnectionId>,
    /// Of the connections, those that are being made.
    handshakes: u32,
    /// Connections that this side made.
    pub(super) dialed: u32,
}

impl Directory {
    pub(super) fn find(&self, key: ConnKey) -> Option<ConnectionId> {
        self.by_key.get(&key).copied()
    }

    /// A connection is being made.
    pub(super) fn add(&mut self, key: ConnKey, id: ConnectionId) {
        let former = self.by_key.insert(key, id);
        debug_assert!(former.is_none(), "the link has one key for each connection");
        self.handshakes += 1;
    }

    /// A connection stands.
    pub(super) fn on_established(&mut self) {
        self.handshakes -= 1;
    }

    /// A connection is over, which was never added if not even its beginning went well.
    pub(super) fn remove(&mut self, key: ConnKey, established: bool) {
        if self.by_key.remove(&key).is_some() && !established {
            self.handshakes -= 1;
        }
    }

    /// Some are being made.
    #[inline]
    pub(super) fn has_handshakes(&self) -> bool {
        self.handshakes > 0
    }
}
