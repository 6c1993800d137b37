//! A round of the event loop allocates nothing once it is warm.

use std::time::Duration;

use crate::counting::allocations;
use fabricast::event_loop::{EventLoop, Interest, LoopEvent};

#[test]
fn a_warm_loop_allocates_nothing() {
    let mut event_loop = EventLoop::new().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    event_loop.add_fd(&reader, Interest::READ).unwrap();
    event_loop.add_fd(&writer, Interest::WRITE).unwrap();
    event_loop.add_timer(Duration::ZERO, Some(Duration::ZERO));
    let waker = event_loop.waker();
    let signal = event_loop.add_signal().unwrap();
    let mut served = 0;
    let mut rounds = |count: u32| {
        for _ in 0..count {
            waker.wake();
            signal.fire();
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
    let before = allocations();
    rounds(10_000);
    let count = allocations() - before;
    assert!(served >= 4 * 10_200, "{served}");
    assert_eq!(count, 0, "allocations in 10,000 rounds");
}
