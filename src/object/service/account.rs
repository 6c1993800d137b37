//! `Account`: what one connection has of a worker's: places of requests, and buffers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::endpoint::origin::Origin;

/// What one connection has. It outlives the connection, as long as something of it does.
///
/// The counts say who may have more, and order nothing else: all accesses are relaxed.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) origin: Origin,
    places: AtomicU32,
    buffers: AtomicU32,
    /// Places of all connections.
    all: Arc<AtomicU32>,
}

impl Account {
    pub(super) fn new(origin: Origin, all: &Arc<AtomicU32>) -> Arc<Self> {
        Arc::new(Self {
            origin,
            places: AtomicU32::new(0),
            buffers: AtomicU32::new(0),
            all: Arc::clone(all),
        })
    }

    pub(super) fn places(&self) -> u32 {
        self.places.load(Ordering::Relaxed)
    }

    pub(super) fn buffers(&self) -> u32 {
        self.buffers.load(Ordering::Relaxed)
    }

    /// Takes a place, whether there is room or not.
    pub(super) fn place(self: &Arc<Self>) -> Arc<Place> {
        self.places.fetch_add(1, Ordering::Relaxed);
        self.all.fetch_add(1, Ordering::Relaxed);
        Arc::new(Place {
            account: Arc::clone(self),
            is_over: AtomicBool::new(false),
        })
    }

    /// Counts a buffer.
    pub(super) fn buffer(self: &Arc<Self>) -> BufferHold {
        self.buffers.fetch_add(1, Ordering::Relaxed);
        BufferHold(Arc::clone(self))
    }
}

/// The place of one request: of its job, and of what the store was asked for it. It is free when
/// neither is there any more.
#[derive(Debug)]
pub(super) struct Place {
    account: Arc<Account>,
    is_over: AtomicBool,
}

impl Place {
    pub(super) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Nobody waits for the request any more.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.account.places.fetch_sub(1, Ordering::Relaxed);
        self.account.all.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A buffer that is a connection's, wherever it is: it is kept beside the buffer, and dropped with
/// it.
#[derive(Debug)]
pub(super) struct BufferHold(Arc<Account>);

impl BufferHold {
    pub(super) fn account(&self) -> &Arc<Account> {
        &self.0
    }
}

impl Drop for BufferHold {
    fn drop(&mut self) {
        self.0.buffers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_when_nothing_of_its_request_is_there() {
        let all = Arc::new(AtomicU32::new(0));
        let account = Account::new(Origin::Unknown, &all);
        let place = account.place();
        let errand = Arc::clone(&place);
        place.end();
        drop(place);
        assert!(errand.is_over());
        assert_eq!((account.places(), all.load(Ordering::Relaxed)), (1, 1));
        drop(errand);
        assert_eq!((account.places(), all.load(Ordering::Relaxed)), (0, 0));
        let hold = account.buffer();
        assert_eq!(account.buffers(), 1);
        drop(hold);
        assert_eq!(account.buffers(), 0);
    }
}
