//! `BounceBuffer`: aligned memory between a file that is read or written directly and memory of the caller's that is not aligned.
//!
//! The pool hands out what came back last, which is most likely still in a cache, keeps buffers until they are of another size or [`clear`] is
//! called, and never has more than [`BUFFERS_MAX`]. Who needs one more waits for one; nobody who holds one waits for another, so that
//! somebody always gets on. No lock is held while bytes move.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::buffer::{BufferMut, SharedBufferConfig, SharedBufferManager};
use crate::memory::{HugePages, MemoryError, Region, round_up};
use crate::process::Owner;

/// Buffers of the process, in use and free.
pub(crate) const BUFFERS_MAX: usize = 64;
/// Buffers begin at multiples of this, in bytes: the strictest alignment that is believed of a file.
const ALIGNMENT: usize = 1 << 20;
/// So long a transfer waits for a buffer before it goes through the page cache.
const PATIENCE: Duration = Duration::from_secs(10);

struct Pool {
    owner: Owner,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Default)]
struct State {
    /// The last one is the next to be used.
    free: Vec<BufferMut>,
    in_use: usize,
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
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of that size that is free, or the right to make one; nothing after a long wait.
    fn take(&self, size: usize) -> Option<Option<BufferMut>> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.lock();
        let mut others = Vec::new();
        loop {
            while let Some(buffer) = state.free.pop() {
                if buffer.len() == size {
                    state.in_use += 1;
                    return Some(Some(buffer));
                }
                // Of a size that is no longer asked for; unmapped after the lock.
                others.push(buffer);
            }
            if state.in_use < BUFFERS_MAX {
                state.in_use += 1;
                return Some(None);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            let wait = self.freed.wait_timeout(state, left);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn give_back(&self, buffer: Option<BufferMut>) {
        let mut state = self.lock();
        state.in_use -= 1;
        state.free.extend(buffer);
        drop(state);
        self.freed.notify_one();
    }
}

/// A buffer that is used by one transfer. Dropping it gives it back.
pub(crate) struct BounceBuffer {
    /// `None` only while it is dropped.
    buffer: Option<BufferMut>,
    /// Made without the pool, in a forked child, where a thread that is no more may hold the pool's lock.
    alone: bool,
}

impl BounceBuffer {
    /// A buffer of `size` bytes, rounded up to pages; `None` when there is no memory for it, or none was free for a long time.
    pub(crate) fn acquire(size: usize) -> Option<Self> {
        let size = round_up(size.max(1), rustix::param::page_size())?;
        let pool = pool();
        let alone = !pool.owner.is_here();
        let taken = if alone { None } else { pool.take(size)? };
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
                    pool.give_back(None);
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
        let buffer = self.buffer.take();
        let pool = pool();
        if !self.alone && pool.owner.is_here() {
            pool.give_back(buffer);
        }
    }
}

/// Unmaps the bounce buffers that are not in use, and says how many bytes that were. Others are kept when they come back.
pub fn bounce_buffers_clear() -> usize {
    let pool = pool();
    if !pool.owner.is_here() {
        return 0;
    }
    let free = std::mem::take(&mut pool.lock().free);
    free.iter().map(|buffer| buffer.len()).sum()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The pool is the process's, and other tests use it: sizes of its own, and only what is true beside them.
    #[test]
    fn buffers_are_aligned_kept_and_used_again() {
        let size = 3 << 20;
        let mut buffer = BounceBuffer::acquire(size - 100).unwrap();
        assert_eq!(buffer.len(), size, "whole pages");
        assert!(buffer.as_ptr().addr().is_multiple_of(ALIGNMENT));
        buffer.fill(7);
        let other = BounceBuffer::acquire(size).unwrap();
        assert_ne!(other.as_ptr(), buffer.as_ptr());
        drop((buffer, other));
        // What another test leaves there meanwhile only makes it more.
        let _ = bounce_buffers_clear();
        let small = BounceBuffer::acquire(1).unwrap();
        assert_eq!(small.len(), rustix::param::page_size());
    }

    #[test]
    fn a_pool_of_its_own_hands_out_what_came_last() {
        let pool = Pool {
            owner: Owner::current(),
            state: Mutex::default(),
            freed: Condvar::new(),
        };
        let first = make(4096).unwrap();
        let second = make(4096).unwrap();
        let address = second.as_ptr();
        for _ in 0..2 {
            assert!(pool.take(4096).unwrap().is_none(), "none is free, one may be made");
        }
        pool.give_back(Some(first));
        pool.give_back(Some(second));
        let again = pool.take(4096).unwrap().expect("one that is free");
        assert_eq!(again.as_ptr(), address);
        assert!(pool.take(8192).unwrap().is_none(), "the other is of another size");
        assert_eq!((pool.lock().free.len(), pool.lock().in_use), (0, 2));
    }

    #[test]
    fn there_are_no_more_than_the_bound_and_one_that_comes_back_is_waited_for() {
        let pool = Pool {
            owner: Owner::current(),
            state: Mutex::default(),
            freed: Condvar::new(),
        };
        for _ in 0..BUFFERS_MAX {
            assert!(pool.take(4096).unwrap().is_none());
        }
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| pool.take(4096));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiter.is_finished(), "all are in use");
            pool.give_back(Some(make(4096).unwrap()));
            assert!(waiter.join().unwrap().unwrap().is_some());
        });
    }
}
