//! `Owner`: the process that made a handle. In a child that was forked from it, the handle is of no
//! use and does nothing.
//!
//! A forked child has a copy of the memory and shares the sockets: a queue that it reads, or a
//! handle that it closes, takes from its parent what the parent waits for. So each handle remembers
//! who made it; used elsewhere it answers [`Forked`], and dropped elsewhere it is leaked.
//!
//! Asking the kernel for the process's number costs a system call. Instead, a page that the kernel
//! empties in a child (`MADV_WIPEONFORK`, madvise(2)) says whose it is: one load.

#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::mapping;

/// The process that made something.
#[derive(Clone, Copy)]
pub struct Owner {
    pid: u32,
    /// The number of the process that this memory is in; 0 in a child that has made nothing of its
    /// own yet.
    here: &'static AtomicU32,
}

impl Owner {
    /// This process.
    pub fn current() -> Self {
        let (here, pid) = (mark(), std::process::id());
        // Relaxed: a fork orders everything before it, and within a process the value does not
        // change.
        here.store(pid, Ordering::Relaxed);
        Self { pid, here }
    }

    /// Whether this is the process that made it.
    #[inline]
    pub fn is_here(self) -> bool {
        self.here.load(Ordering::Relaxed) == self.pid
    }

    /// # Errors
    ///
    /// [`Forked`] in any other process than the one that made it.
    #[inline]
    pub fn check(self) -> Result<(), Forked> {
        if self.is_here() {
            Ok(())
        } else {
            Err(Forked { made_by: self.pid })
        }
    }

    /// Its number.
    pub fn pid(self) -> u32 {
        self.pid
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owner").field(&self.pid).finish()
    }
}

/// A handle was used by another process than the one that made it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Forked {
    /// The process that made it.
    pub made_by: u32,
}

/// The fact alone: what to do about it depends on what was made.
impl fmt::Display for Forked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { made_by } = self;
        write!(
            f,
            "made by process {made_by}, which this process was forked from"
        )
    }
}

impl std::error::Error for Forked {}

crate::debug_as_words!(Forked);

/// What must not be dropped by another process than the one that made it: there it is leaked.
///
/// Reading it through `Deref` is the caller's to decide: [`owner`](Self::owner) tells whether this
/// is its process.
pub struct Here<T> {
    value: ManuallyDrop<T>,
    owner: Owner,
}

impl<T> Here<T> {
    /// Made by this process.
    pub fn new(value: T) -> Self {
        Self {
            value: ManuallyDrop::new(value),
            owner: Owner::current(),
        }
    }

    /// The process that made it.
    #[inline]
    pub fn owner(&self) -> Owner {
        self.owner
    }
}

impl<T> Deref for Here<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Here<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Here<T> {
    fn drop(&mut self) {
        if self.owner.is_here() {
            // SAFETY: this is the only place that drops it, and `self` is not used again.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Here<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

fn mark() -> &'static AtomicU32 {
    static MARK: OnceLock<&'static AtomicU32> = OnceLock::new();
    MARK.get_or_init(|| wiped_page().unwrap_or_else(wiped_by_handler))
}

/// A page of its own, never unmapped; none where the kernel can't empty it (before Linux 4.14).
fn wiped_page() -> Option<&'static AtomicU32> {
    let bytes = rustix::param::page_size();
    let page = mapping::anonymous(bytes, 0).ok()?;
    // SAFETY: the page was just mapped, is as long as that, and nobody else knows it.
    let wiped = unsafe { mapping::advise(page, bytes, libc::MADV_WIPEONFORK) };
    if wiped.is_err() {
        // SAFETY: as above.
        let _ = unsafe { mapping::unmap(page, bytes) };
        return None;
    }
    // SAFETY: mapped for ever, zeroed, aligned to a page, and only ever used as this atomic.
    Some(unsafe { AtomicU32::from_ptr(page.as_ptr().cast()) })
}

static WIPED_BY_HANDLER: AtomicU32 = AtomicU32::new(0);

extern "C" fn wipe() {
    WIPED_BY_HANDLER.store(0, Ordering::Relaxed);
}

/// The same for old kernels; it misses a child that was made by a bare clone(2).
fn wiped_by_handler() -> &'static AtomicU32 {
    // SAFETY: the handler stores to an atomic, which a child may do after a fork.
    let rc = unsafe { libc::pthread_atfork(None, None, Some(wipe)) };
    if rc != 0 {
        tracing::warn!(errno = rc, "forked children are not told from this process");
    }
    &WIPED_BY_HANDLER
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::forked::in_a_child;

    #[test]
    fn a_child_is_told_from_its_parent() {
        let owner = Owner::current();
        assert!(owner.is_here() && owner.check().is_ok());
        let kept = Arc::new(());
        let here = Here::new(Arc::clone(&kept));
        let code = in_a_child(|| {
            let stranger = i32::from(owner.is_here());
            drop(here);
            // Leaked: the count is as it was.
            let leaked = i32::from(Arc::strong_count(&kept) != 2) << 1;
            let own = Owner::current();
            stranger | leaked | i32::from(!own.is_here()) << 2 | i32::from(owner.is_here()) << 3
        });
        assert_eq!(code, 0, "what went wrong, by bits");
        assert!(owner.is_here(), "the parent is still the parent");
    }

    #[test]
    fn what_was_made_elsewhere_says_by_whom() {
        let owner = Owner::current();
        let parent = std::process::id();
        let code = in_a_child(|| i32::from(owner.check() != Err(Forked { made_by: parent })));
        assert_eq!(code, 0);
        let said = Forked { made_by: 7 }.to_string();
        assert!(said.contains("process 7"), "{said}");
    }

    #[test]
    fn in_its_own_process_it_is_dropped() {
        let kept = Arc::new(());
        let here = Here::new(Arc::clone(&kept));
        assert_eq!(Arc::strong_count(&here), 2);
        drop(here);
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
