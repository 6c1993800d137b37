//! The system's allocator, with a count for each thread.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// Bytes that were taken and not given back, and the most there were at once.
    static BYTES: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

/// How often this thread has allocated.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// The most bytes that this takes at once, on this thread, and what it gives.
pub(crate) fn most_bytes_of<T>(run: impl FnOnce() -> T) -> (u64, T) {
    BYTES.set((0, 0));
    let done = run();
    (BYTES.get().1 as u64, done)
}

struct Counting;

fn count(bytes: usize) {
    // A thread that ends allocates after its locals are gone: not ours.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
    change(bytes as isize);
}

fn change(bytes: isize) {
    let _ = BYTES.try_with(|it| {
        let (now, most) = it.get();
        it.set((now + bytes, most.max(now + bytes)));
    });
}

// SAFETY: everything is handed to the system's allocator, unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        change(-(layout.size() as isize));
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both are there while the bytes are copied.
        count(size);
        change(-(layout.size() as isize));
        // SAFETY: the caller's promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;
