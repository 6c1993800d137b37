//! `BounceBuffer`: aligned memory between a file that is read or written directly and memory of the
//! caller's that is not aligned.
//!
//! The pool hands out what came back last, which is most likely still in a cache, and keeps buffers
//! until [`bounce_buffers_clear`] or until others are needed: together they take no more than the
//! setting `bounce_pool_size`. Who finds none waits for one; nobody who holds one waits for
//! another, so that somebody always gets on. No lock is held while bytes move.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::buffer::{BufferMut, SharedBufferConfig, SharedBufferManager};
use crate::memory::{HugePages, MemoryError, Region, round_up};
use crate::process::Owner;

use super::{Defaults, pinned_buffers_clear};

/// Buffers begin at multiples of this, in bytes: the strictest alignment that is believed of a
/// file.
const ALIGNMENT: usize = 1 << 20;
/// So long a transfer waits for a buffer before it goes through the page cache.
const PATIENCE: Duration = Duration::from_secs(10);

struct Pool {
    owner: Owner,
    state: Mutex<BounceState>,
    freed: Condvar,
}

#[derive(Default)]
struct BounceState {
    /// The last one came back last.
    free: Vec<BufferMut>,
    /// Bytes of those that are in use, and of those about to be made.
    in_use: usize,
}

impl BounceState {
    fn free_bytes(&self) -> usize {
        self.free.iter().map(|buffer| buffer.len()).sum()
    }
}

static POOL: OnceLock<Pool> = OnceLock::new();

fn pool() -> &'static Pool {
    POOL.get_or_init(|| Pool {
        owner: Owner::current(),
        state: Mutex::default(),
        freed: Condvar::new(),
    })
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, BounceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of that size at least, or the right to make one; nothing after a long wait.
    fn take(&self, size: usize, limit: usize) -> Option<Option<BufferMut>> {
        let deadline = Instant::now() + PATIENCE;
        // Unmapped when the lock is no longer held.
        let mut too_small = Vec::new();
        let mut state = self.lock();
        loop {
            if let Some(newest) = state.free.iter().rposition(|buffer| buffer.len() >= size) {
                let buffer = state.free.remove(newest);
                state.in_use += buffer.len();
                return Some(Some(buffer));
            }
            while !state.free.is_empty() && state.in_use + state.free_bytes() + size > limit {
                too_small.push(state.free.remove(0));
            }
            // One there is always, however long.
            if state.in_use == 0 || state.in_use + size <= limit {
                state.in_use += size;
                return Some(None);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            let wait = self.freed.wait_timeout(state, left);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A buffer comes back, or none after all; `size` bytes less are in use.
    fn give_back(&self, size: usize, buffer: Option<BufferMut>) {
        let mut state = self.lock();
        state.in_use -= size;
        state.free.extend(buffer);
        drop(state);
        // All: who waits for a long one may not be content with this one.
        self.freed.notify_all();
    }
}

/// A buffer that is used by one transfer. Dropping it gives it back.
pub(crate) struct BounceBuffer {
    /// `None` only while it is dropped.
    buffer: Option<BufferMut>,
    /// Made without the pool, in a forked child, where a thread that is no more may hold the pool's
    /// lock.
    alone: bool,
}

impl BounceBuffer {
    /// A buffer for `len` bytes, or of `most` if that is less: in whole pages. `None` when there is
    /// no memory for it, or none came back for a long time.
    pub(crate) fn acquire(len: usize, most: usize) -> Option<Self> {
        let page = rustix::param::page_size();
        // Few sizes, so that what is free often fits.
        let size = len.max(1).checked_next_power_of_two()?.max(page);
        let size = size.min(round_up(most.max(1), page)?);
        let pool = pool();
        let alone = !pool.owner.is_here();
        let limit = Defaults::get().bounce_pool_size;
        let taken = if alone { None } else { pool.take(size, limit)? };
        let made = match taken {
            Some(buffer) => Ok(buffer),
            None => make(size),
        };
        match made {
            Ok(buffer) => Some(Self {
                buffer: Some(buffer),
                alone,
            }),
            Err(error) => {
                tracing::warn!(%error, size_bytes = size, "no bounce buffer");
                if !alone {
                    pool.give_back(size, None);
                }
                None
            }
        }
    }
}

fn make(size: usize) -> Result<BufferMut, MemoryError> {
    let region = Region::host(size)
        .huge_pages(HugePages::Transparent)
        .alignment(ALIGNMENT)
        .build()?;
    let config = SharedBufferConfig {
        slots: Some(1),
        ..SharedBufferConfig::new(size)
    };
    let pool = SharedBufferManager::new(region, config)?;
    Ok(pool.try_acquire().expect("its only slot is free"))
}

impl Deref for BounceBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_ref().expect("there until it is dropped")
    }
}

impl DerefMut for BounceBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().expect("there until it is dropped")
    }
}

impl Drop for BounceBuffer {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else {
            return;
        };
        let pool = pool();
        if !self.alone && pool.owner.is_here() {
            pool.give_back(buffer.len(), Some(buffer));
        }
    }
}

/// Gives the bounce buffers back that are not in use, and says how many bytes that were: those of
/// the host's memory, and the pinned ones of staged transfers of GPU memory
/// ([`pinned_buffers_clear`]). Others are kept when they come back.
pub fn bounce_buffers_clear() -> usize {
    let pool = pool();
    if !pool.owner.is_here() {
        return 0;
    }
    let free = std::mem::take(&mut pool.lock().free);
    let unmapped: usize = free.iter().map(|buffer| buffer.len()).sum();
    unmapped + pinned_buffers_clear()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn own_pool() -> Pool {
        Pool {
            owner: Owner::current(),
            state: Mutex::default(),
            freed: Condvar::new(),
        }
    }

    /// The pool is the process's, and other tests use it: only what is true beside them.
    #[test]
    fn buffers_are_aligned_and_in_whole_pages() {
        let mut buffer = BounceBuffer::acquire(3 << 20, (3 << 20) - 100).unwrap();
        assert!(buffer.len() >= 3 << 20);
        assert!(buffer.as_ptr().addr().is_multiple_of(ALIGNMENT));
        buffer.fill(7);
        let other = BounceBuffer::acquire(100, 1 << 20).unwrap();
        assert_ne!(other.as_ptr(), buffer.as_ptr());
        assert!(other.len().is_multiple_of(rustix::param::page_size()));
        drop((buffer, other));
        let _ = bounce_buffers_clear();
    }

    #[test]
    fn what_came_back_last_is_used_next_if_it_is_long_enough() {
        let pool = own_pool();
        for _ in 0..3 {
            assert!(
                pool.take(4096, 1 << 20).unwrap().is_none(),
                "one may be made"
            );
        }
        let buffers = [8192, 4096, 4096].map(|size| make(size).unwrap());
        let addresses = [0, 1, 2].map(|n: usize| buffers[n].as_ptr());
        for buffer in buffers {
            pool.give_back(4096, Some(buffer));
        }
        let last = pool.take(4096, 1 << 20).unwrap().expect("a free one");
        assert_eq!(last.as_ptr(), addresses[2]);
        let long = pool.take(8192, 1 << 20).unwrap().expect("a free one");
        assert_eq!(long.as_ptr(), addresses[0]);
        assert_eq!(pool.lock().in_use, 4096 + 8192);
    }

    #[test]
    fn what_does_not_fit_makes_room() {
        let pool = own_pool();
        assert!(pool.take(4096, 16384).unwrap().is_none());
        pool.give_back(4096, Some(make(4096).unwrap()));
        assert!(pool.take(16384, 16384).unwrap().is_none());
        assert_eq!(pool.lock().free.len(), 0, "the short one had to go");
        pool.give_back(16384, None);
        assert!(
            pool.take(1 << 20, 16384).unwrap().is_none(),
            "one there is always"
        );
    }

    #[test]
    fn who_finds_none_waits_for_one() {
        let pool = own_pool();
        for _ in 0..4 {
            assert!(pool.take(4096, 16384).unwrap().is_none());
        }
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| pool.take(4096, 16384));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiter.is_finished(), "all are in use");
            pool.give_back(4096, Some(make(4096).unwrap()));
            assert!(waiter.join().unwrap().unwrap().is_some());
        });
    }
}
