//! `PoolWaker`: the waker of an endpoint in a pool whose slots it waits for. It goes with its
//! owner, also where that was never made whole.

use std::sync::Arc;

use crate::buffer::{DeviceBufferManager, HeaderSlotManager, SharedBufferManager, WakeFn, WakerId};
use crate::endpoint::link::wait::EndpointWait;
use crate::endpoint::staging::StagingRing;

/// What wakes who waits for a slot of it.
pub(crate) trait WakingPool: Clone {
    /// Adds what is called when a slot becomes free, once each time that it is armed.
    fn add_waker(&self, wake: WakeFn) -> WakerId;
    /// Removes that.
    fn remove_waker(&self, id: WakerId);
    /// Arms it for one call; true if a slot is free already.
    fn arm(&self, id: WakerId) -> bool;
}

/// A waker in a pool.
#[derive(Debug)]
pub(crate) struct PoolWaker<P: WakingPool> {
    pool: P,
    id: WakerId,
}

impl<P: WakingPool> PoolWaker<P> {
    /// Has the pool call this.
    pub(crate) fn new(pool: &P, wake: WakeFn) -> Self {
        Self {
            id: pool.add_waker(wake),
            pool: pool.clone(),
        }
    }

    /// Has the pool wake an endpoint.
    pub(crate) fn of(pool: &P, wait: &Arc<EndpointWait>) -> Self {
        let wait = Arc::clone(wait);
        Self::new(pool, Arc::new(move || wait.wake()))
    }

    /// The pool whose slots are waited for.
    pub(crate) fn pool(&self) -> &P {
        &self.pool
    }

    /// Asks for one call when a slot becomes free; true if one is already: then nobody need wait.
    pub(crate) fn arm(&self) -> bool {
        self.pool.arm(self.id)
    }
}

impl<P: WakingPool> Drop for PoolWaker<P> {
    fn drop(&mut self) {
        self.pool.remove_waker(self.id);
    }
}

impl WakingPool for SharedBufferManager {
    fn add_waker(&self, wake: WakeFn) -> WakerId {
        self.add_waker(wake)
    }

    fn remove_waker(&self, id: WakerId) {
        self.remove_waker(id);
    }

    fn arm(&self, id: WakerId) -> bool {
        self.arm(id)
    }
}

impl WakingPool for HeaderSlotManager {
    fn add_waker(&self, wake: WakeFn) -> WakerId {
        self.add_waker(wake)
    }

    fn remove_waker(&self, id: WakerId) {
        self.remove_waker(id);
    }

    fn arm(&self, id: WakerId) -> bool {
        self.arm(id)
    }
}

impl WakingPool for DeviceBufferManager {
    fn add_waker(&self, wake: WakeFn) -> WakerId {
        self.add_waker(wake)
    }

    fn remove_waker(&self, id: WakerId) {
        self.remove_waker(id);
    }

    fn arm(&self, id: WakerId) -> bool {
        self.arm(id)
    }
}

impl WakingPool for StagingRing {
    fn add_waker(&self, wake: WakeFn) -> WakerId {
        self.add_waker(wake)
    }

    fn remove_waker(&self, id: WakerId) {
        self.remove_waker(id);
    }

    fn arm(&self, id: WakerId) -> bool {
        self.arm(id)
    }
}
