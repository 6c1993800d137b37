//! `WakeList`: who wants to know when a slot becomes free. Costs one load where nobody does.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::contain::contain;
use crate::sync::{AtomicU32, Condvar, Mutex, Ordering, lock, total_order_under_loom};

/// Called when a slot becomes free, on the thread that freed it: it must not block (write to an
/// eventfd, set a flag). A panic of it is logged, and goes no further.
pub type WakeFn = Arc<dyn Fn() + Send + Sync>;

/// Names a wake-up hook of one manager; no other manager of the process has one of this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WakerId(u64);

impl WakerId {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

struct Hook {
    id: WakerId,
    armed: bool,
    wake: WakeFn,
}

#[derive(Default)]
struct Hooks {
    hooks: Vec<Hook>,
}

/// Sleeping threads and armed hooks of one pool of slots.
///
/// No wake-up is lost: who waits counts itself in `interested` and *then* looks for a slot; who
/// frees one puts it on the list and *then* looks at `interested`. All four accesses are in one
/// total order (`SeqCst`), so at least one of the two sees the other.
pub(super) struct WakeList {
    /// Sleeping threads plus armed hooks.
    interested: AtomicU32,
    hooks: Mutex<Hooks>,
    freed: Condvar,
}

impl WakeList {
    pub(super) fn new() -> Self {
        Self {
            interested: AtomicU32::new(0),
            hooks: Mutex::new(Hooks::default()),
            freed: Condvar::new(),
        }
    }

    /// How many hooks there are.
    #[cfg(all(test, not(loom)))]
    pub(super) fn len(&self) -> usize {
        lock(&self.hooks).hooks.len()
    }

    /// To be called after a slot was put on the free list.
    #[inline]
    pub(super) fn notify(&self) {
        if self.interested.load(Ordering::SeqCst) != 0 {
            self.notify_slow();
        }
    }

    #[cold]
    fn notify_slow(&self) {
        let mut wakes: SmallVec<[WakeFn; 4]> = SmallVec::new();
        {
            let mut hooks = lock(&self.hooks);
            for hook in hooks.hooks.iter_mut().filter(|hook| hook.armed) {
                hook.armed = false;
                self.interested.fetch_sub(1, Ordering::SeqCst);
                wakes.push(Arc::clone(&hook.wake));
            }
            self.freed.notify_one();
        }
        // Without the lock: a hook may call back.
        for wake in wakes {
            contain("a wake-up hook", || wake());
        }
    }

    /// Tries until it works or the deadline is over; the error is how long that was.
    pub(super) fn wait_until<T>(
        &self,
        deadline: Instant,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Result<T, Duration> {
        let start = Instant::now();
        let mut hooks = lock(&self.hooks);
        self.interested.fetch_add(1, Ordering::SeqCst);
        total_order_under_loom();
        let result = loop {
            // Under the lock that `notify_slow` takes: a slot freed after this look is told to a
            // thread that already sleeps.
            if let Some(value) = attempt() {
                break Ok(value);
            }
            let now = Instant::now();
            let Some(left) = deadline
                .checked_duration_since(now)
                .filter(|left| !left.is_zero())
            else {
                break Err(now - start);
            };
            hooks = match self.freed.wait_timeout(hooks, left) {
                Ok((hooks, _)) => hooks,
                Err(poisoned) => poisoned.into_inner().0,
            };
        };
        self.interested.fetch_sub(1, Ordering::SeqCst);
        drop(hooks);
        result
    }

    /// Adds a hook, not armed.
    pub(super) fn add(&self, wake: WakeFn) -> WakerId {
        let id = WakerId::next();
        let mut hooks = lock(&self.hooks);
        hooks.hooks.push(Hook {
            id,
            armed: false,
            wake,
        });
        id
    }

    /// Removes a hook; false when there is none of this name. A call that is under way may still
    /// come.
    pub(super) fn remove(&self, id: WakerId) -> bool {
        let mut hooks = lock(&self.hooks);
        let Some(index) = hooks.hooks.iter().position(|hook| hook.id == id) else {
            return false;
        };
        let hook = hooks.hooks.swap_remove(index);
        if hook.armed {
            self.interested.fetch_sub(1, Ordering::SeqCst);
        }
        // The hook may own anything: it is dropped without the lock.
        drop(hooks);
        drop(hook);
        true
    }

    /// Arms a hook for one call; false when there is none of this name. The caller looks for a free
    /// slot once more after this.
    pub(super) fn arm(&self, id: WakerId) -> bool {
        let mut hooks = lock(&self.hooks);
        let Some(hook) = hooks.hooks.iter_mut().find(|hook| hook.id == id) else {
            return false;
        };
        if !hook.armed {
            hook.armed = true;
            self.interested.fetch_add(1, Ordering::SeqCst);
            total_order_under_loom();
        }
        true
    }
}

impl fmt::Debug for WakeList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakeList")
            .field("interested", &self.interested)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "tests/wake_list.rs"]
mod tests;
