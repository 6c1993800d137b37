//! A round of the event loop allocates nothing once it is warm. A program of its own, because the allocator is the process's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fabricast::event_loop::{EventLoop, Interest, LoopEvent};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of this very function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above, that is from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// One test only: another one on another thread would be counted too.
#[test]
fn a_warm_loop_allocates_nothing() {
    let mut event_loop = EventLoop::new().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    event_loop.add_fd(&reader, Interest::READ).unwrap();
    event_loop.add_fd(&writer, Interest::WRITE).unwrap();
    event_loop.add_timer(Duration::ZERO, Some(Duration::ZERO));
    let waker = event_loop.waker();
    let mut served = 0;
    let mut rounds = |count: u32| {
        for _ in 0..count {
            waker.wake();
            event_loop
                .run_once(Some(Duration::ZERO), |event_loop, event| {
                    served += 1;
                    if event == LoopEvent::Woken {
                        let token = event_loop.add_timer(Duration::from_secs(9), None);
                        assert!(event_loop.remove(token));
                    }
                })
                .unwrap();
        }
    };
    rounds(200);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    rounds(10_000);
    let after = ALLOCATIONS.load(Ordering::Relaxed);
    assert!(served >= 3 * 10_200, "{served}");
    // The test harness has a thread of its own, which may allocate once or twice meanwhile.
    assert!(
        after - before < 20,
        "{} allocations in 10,000 rounds",
        after - before
    );
}
