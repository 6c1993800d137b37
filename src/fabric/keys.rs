//! `KeyGuard`: one thread at a time in a domain's table of keys, where libfabric itself does not
//! see to that.
//!
//! The domains of `net`, and of `tcp` in libfabric 1.x, have no lock of their own
//! (`OFI_LOCK_NONE`). A registration is made under the lock of the progress engine, and closed
//! under none: whoever closes one while another thread registers memory, closes another one, or
//! drives progress (which looks up the key of each write and read of a peer) tears the tree that
//! the keys are in. It has then been searched for ever, by two network threads at once, and freed
//! nodes have been read. libfabric 2.x closes under the lock of the progress engine, too.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::process::Owner;

/// The first version of libfabric whose tcp provider closes registrations under a lock.
const MENDED_SINCE: u32 = libfabric_sys::fi_version_make(2, 0);

/// Who may be in the tables of keys of a fabric's domains.
#[derive(Debug)]
pub(crate) struct KeyGuard {
    /// None: the provider guards them.
    tables: Option<RwLock<()>>,
    /// In a child of this process nothing is done with the tables, and nobody would unlock what was
    /// locked when it was forked.
    owner: Owner,
}

impl KeyGuard {
    /// For a provider of this name, in a libfabric of this version.
    pub(super) fn of(provider: &str, library: u32) -> Self {
        // Layered ones name the provider below: `tcp;ofi_rxm`.
        let mut layers = provider.split(';');
        let is_bare = layers.any(|layer| matches!(layer, "net" | "tcp"));
        let tables = (is_bare && library < MENDED_SINCE).then(RwLock::default);
        Self {
            tables,
            owner: Owner::current(),
        }
    }

    /// While a registration is made or closed: nobody else is in a table.
    pub(crate) fn change(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        let tables = self.tables.as_ref().filter(|_| self.owner.is_here())?;
        Some(tables.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// During a call that may drive progress: no registration is made or closed. Not to be held
    /// beyond that call: threads would wait for it.
    #[inline]
    pub(crate) fn look(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let tables = self.tables.as_ref().filter(|_| self.owner.is_here())?;
        Some(tables.read().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_without_a_lock_of_their_own_are_guarded() {
        let version = libfabric_sys::fi_version_make;
        for (provider, library, is_guarded) in [
            ("net", version(1, 17), true),
            ("tcp", version(1, 22), true),
            ("tcp;ofi_rxm", version(1, 17), true),
            ("tcp", version(2, 0), false),
            ("tcp", version(2, 5), false),
            ("verbs;ofi_rxm", version(1, 17), false),
            ("shm", version(1, 17), false),
        ] {
            let guard = KeyGuard::of(provider, library);
            assert_eq!(guard.change().is_some(), is_guarded, "{provider}");
            assert_eq!(guard.look().is_some(), is_guarded, "{provider}");
        }
    }

    #[test]
    fn a_change_waits_for_looks_and_looks_for_a_change() {
        let guard = KeyGuard::of("net", libfabric_sys::fi_version_make(1, 17));
        let tables = guard.tables.as_ref().expect("it is guarded");
        let look = guard.look();
        assert!(tables.try_write().is_err() && tables.try_read().is_ok());
        drop(look);
        let change = guard.change();
        assert!(tables.try_write().is_err() && tables.try_read().is_err());
        drop(change);
        assert!(tables.try_write().is_ok());
    }
}
