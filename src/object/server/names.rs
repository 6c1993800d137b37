//! `OwnNames`: where the endpoints of a server are, so that no token sends it to itself.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::endpoint::PeerAddr;

/// Addresses of all endpoints of one server that are open.
#[derive(Debug, Default)]
pub(super) struct OwnNames {
    open: Mutex<HashMap<PeerAddr, u32>>,
}

impl OwnNames {
    fn lock(&self) -> MutexGuard<'_, HashMap<PeerAddr, u32>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, name: PeerAddr) {
        *self.lock().entry(name).or_default() += 1;
    }

    pub(super) fn remove(&self, name: &PeerAddr) {
        let mut open = self.lock();
        if let Some(count) = open.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                open.remove(name);
            }
        }
    }

    pub(super) fn has(&self, name: &PeerAddr) -> bool {
        self.lock().contains_key(name)
    }
}
