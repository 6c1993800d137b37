//! `PoolWaker`: the waker of an endpoint in a pool whose slots it waits for. It goes with its
//! owner, also where that was never made whole.

use std::sync::Arc;

use crate::buffer::{SlotPool, WakeFn, WakerId};
use crate::endpoint::link::wait::EndpointWait;

/// A waker in a pool.
#[derive(Debug)]
pub(crate) struct PoolWaker<P: SlotPool> {
    pool: P,
    id: WakerId,
}

impl<P: SlotPool> PoolWaker<P> {
    /// Has the pool call this.
    pub(crate) fn new(pool: &P, wake: WakeFn) -> Self {
        Self {
            id: pool.table().add_waker(wake),
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
        self.pool.table().arm(self.id)
    }
}

impl<P: SlotPool> Drop for PoolWaker<P> {
    fn drop(&mut self) {
        self.pool.table().remove_waker(self.id);
    }
}
