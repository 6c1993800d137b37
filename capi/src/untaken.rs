//! `Untaken`: whether a handle has events that were polled for and not taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What an endpoint or a channel keeps of it, for the loops that it is in: they read it without
/// entering the handle, which may be another thread's.
#[derive(Clone, Default)]
pub(crate) struct Untaken(Arc<AtomicBool>);

impl Untaken {
    /// Relaxed: who reads it learns whether to poll, and gets the events by that.
    pub(crate) fn set(&self, is_so: bool) {
        self.0.store(is_so, Ordering::Relaxed);
    }

    pub(crate) fn is_so(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
