//! `PoolShare`: what one endpoint has of a pool of receive buffers: all of it, or a share beside
//! those of others.

use std::fmt;
use std::sync::Arc;

use super::shared::{BufferMut, SharedBufferManager};
use super::slot_homes::ShareAccount;
use super::slot_table::SlotPool;
use super::wake_list::{WakeFn, WakerId};

/// Takes buffers for one owner, and wakes it. What was reserved goes back to the pool when this
/// goes; buffers that are still out then find their way by themselves.
pub(crate) struct PoolShare {
    pool: SharedBufferManager,
    /// `None`: whatever is free.
    account: Option<Arc<ShareAccount>>,
    /// In the pool, and in the account.
    wakers: Option<(WakerId, Option<WakerId>)>,
}

impl From<SharedBufferManager> for PoolShare {
    fn from(pool: SharedBufferManager) -> Self {
        Self {
            pool,
            account: None,
            wakers: None,
        }
    }
}

impl PoolShare {
    /// Reserves `least` buffers, and takes `most` at most. `None`: so many are not free.
    pub(crate) fn reserve(pool: &SharedBufferManager, least: u32, most: u32) -> Option<Self> {
        let account = pool.table().add_share(least, most.saturating_sub(least))?;
        let mut share = Self::from(pool.clone());
        share.account = Some(account);
        Some(share)
    }

    /// The pool.
    pub(crate) fn pool(&self) -> &SharedBufferManager {
        &self.pool
    }

    /// The most buffers that its owner may have at once.
    pub(crate) fn most(&self) -> usize {
        let account = self.account.as_ref();
        account.map_or_else(|| self.pool.slots(), |account| account.most())
    }

    /// How many its owner may take now.
    pub(crate) fn free_count(&self) -> usize {
        let common = self.pool.free_count();
        match &self.account {
            Some(account) => account.reserved() + account.room().min(common),
            None => common,
        }
    }

    /// Those of them that others may take instead.
    pub(crate) fn lendable(&self) -> usize {
        let account = self.account.as_ref();
        account.map_or(0, |account| account.room().min(self.pool.free_count()))
    }

    /// Takes a buffer, a reserved one first.
    #[inline]
    pub(crate) fn try_acquire(&self) -> Option<BufferMut> {
        match &self.account {
            Some(account) => self.pool.try_acquire_of(account),
            None => self.pool.try_acquire(),
        }
    }

    /// Takes a buffer that leaves `kept` of the reserved ones.
    pub(crate) fn try_acquire_beyond(&self, kept: usize) -> Option<BufferMut> {
        match &self.account {
            Some(account) if account.reserved() <= kept => self.pool.try_borrow(account),
            _ => self.try_acquire(),
        }
    }

    /// Has this called when it may be worth to try again; once after each [`arm`](Self::arm).
    pub(crate) fn wake_by(&mut self, wake: &WakeFn) {
        self.forget_wakers();
        let common = self.pool.add_waker(Arc::clone(wake));
        let account = self.account.as_ref();
        let own = account.map(|account| account.wakes().add(Arc::clone(wake)));
        self.wakers = Some((common, own));
    }

    /// Asks for one call; true if there is a buffer already: then nobody need wait.
    pub(crate) fn arm(&self) -> bool {
        let Some((common, own)) = self.wakers else {
            return false;
        };
        let (Some(account), Some(own)) = (&self.account, own) else {
            return self.pool.arm(common);
        };
        // First for those of its own, and for room: a buffer that comes back behind this calls.
        account.wakes().arm(own);
        let is_common_free = account.room() > 0 && self.pool.arm(common);
        is_common_free || account.reserved() > 0
    }

    fn forget_wakers(&mut self) {
        if let Some((common, own)) = self.wakers.take() {
            self.pool.remove_waker(common);
            if let (Some(account), Some(own)) = (&self.account, own) {
                account.wakes().remove(own);
            }
        }
    }
}

impl Drop for PoolShare {
    fn drop(&mut self) {
        self.forget_wakers();
        if let Some(account) = &self.account {
            self.pool.table().end_share(account);
        }
    }
}

impl fmt::Debug for PoolShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolShare")
            .field("most", &self.most())
            .field("free_count", &self.free_count())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/pool_share.rs"]
mod tests;
