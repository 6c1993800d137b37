//! Channels in loops: ours, and those of applications.

use std::os::fd::BorrowedFd;

use super::*;
use crate::event_loop::{EventLoop, LoopEvent, Waitable};
use crate::poll::sleep_on;

/// How a test sleeps between polls of a channel.
trait Sleeper {
    /// Sleeps until the channel is to be polled; for a minute at most, which is too long.
    fn sleep(&mut self, rig: &Rig);
}

/// Our loop; it knows the channel from the start.
struct Ours(EventLoop);

impl Sleeper for Ours {
    fn sleep(&mut self, _: &Rig) {
        let mut is_told = false;
        let until = Instant::now() + SOON;
        while !is_told {
            assert!(
                Instant::now() < until,
                "the loop says nothing of the channel"
            );
            let told = |_: &mut EventLoop, event| {
                is_told |= matches!(event, LoopEvent::Endpoint(_));
            };
            self.0.run_once(Some(SOON), told).expect("it runs");
        }
    }
}

/// A loop of an application's, which keeps to what `WaitHandle` says.
struct Theirs(Vec<i32>);

impl Sleeper for Theirs {
    #[allow(unsafe_code)]
    fn sleep(&mut self, rig: &Rig) {
        let handle = rig.channel.wait_handle();
        assert_eq!(handle.fds(), self.0, "they stay the same");
        if !handle.prepare_wait().expect("it is asked") {
            return;
        }
        let until = handle.next_deadline();
        let left = until.map_or(SOON, |at| at.saturating_duration_since(Instant::now()));
        let fds = self.0.iter().map(|fd| {
            // SAFETY: the rig's channel keeps it open during this call.
            unsafe { BorrowedFd::borrow_raw(*fd) }
        });
        let woken = sleep_on(fds, Some(left.min(SOON))).expect("it sleeps");
        assert!(woken || until.is_some(), "nothing wakes it");
    }
}

fn next_of(rig: &mut Rig, sleeper: &mut dyn Sleeper) -> ChannelEvent {
    let until = Instant::now() + SOON;
    while rig.events.is_empty() {
        assert!(Instant::now() < until, "no event");
        if rig.channel.poll(&mut rig.events).expect("it polls") == 0 {
            sleeper.sleep(rig);
        }
    }
    rig.events.remove(0)
}

/// What is over wakes it, over whichever endpoint it went; and what is late, by its deadline.
fn check(rig: &mut Rig, sleeper: &mut dyn Sleeper) {
    let client = rig.client(1 << 20);
    let token = client.token();
    let driven = client.drive();
    let stopped = rig.client(1 << 20);
    for round in 0..3 {
        for key in 0..10 {
            let payload = rig.filled(10_000, 1).freeze(10_000);
            let deadline = rig.now() + SOON;
            let get = rig.channel.handle_get(&token, 0, payload, key, deadline);
            get.expect("accepted");
            let event = next_of(rig, sleeper);
            assert!(matches!(event, ChannelEvent::Written { key: it, .. } if it == key));
        }
        // The channel goes on over another endpoint.
        let payload = rig.filled(BUFFER, 1).freeze(BUFFER >> 1);
        let deadline = rig.now() + SHORT;
        let get = rig
            .channel
            .handle_get(&stopped.token(), 0, payload, 99, deadline);
        get.expect("accepted");
        let event = next_of(rig, sleeper);
        assert!(
            matches!(event, ChannelEvent::WriteFailed { key: 99, .. }),
            "{round}: {event:?}"
        );
        // It comes back at once, or when the first endpoint is closed.
        if let ChannelEvent::WriteFailed { payload: None, .. } = event {
            let event = next_of(rig, sleeper);
            assert!(matches!(event, ChannelEvent::WriteReturned { key: 99, .. }));
        }
    }
    driven.stop();
}

#[test]
fn a_loop_hears_of_everything() {
    for fabric in fabrics() {
        let mut rig = Rig::over(&fabric, ObjectServerConfig::default());
        rig.real_time();
        let mut event_loop = EventLoop::new().expect("a loop");
        event_loop.add_endpoint(&rig.channel).expect("added");
        check(&mut rig, &mut Ours(event_loop));
        // Another one, which is closed while it is watched.
        let mut event_loop = EventLoop::new().expect("a loop");
        event_loop.add_endpoint(&rig.channel).expect("added");
        let handle = rig.channel.wait_handle();
        rig.close_within(SHORT);
        assert!(!handle.is_alive() && handle.fds().is_empty());
        let nap = Some(Duration::from_millis(1));
        event_loop.run_once(nap, |_, _| {}).expect("it runs");
    }
}

#[test]
fn a_loop_of_an_application_hears_of_everything() {
    for fabric in fabrics() {
        let mut rig = Rig::over(&fabric, ObjectServerConfig::default());
        rig.real_time();
        let fds = rig.channel.wait_handle().fds();
        if fds.is_empty() {
            println!("SKIPPED: {fabric:?} has no descriptors to wait for");
            continue;
        }
        check(&mut rig, &mut Theirs(fds));
    }
}

/// Where nothing is under way, a loop sleeps, and does not turn in circles.
#[test]
fn a_loop_sleeps_while_nothing_is_under_way() {
    for fabric in fabrics() {
        let mut rig = Rig::over(&fabric, ObjectServerConfig::default());
        rig.real_time();
        if rig.channel.wait_handle().fds().is_empty() {
            println!("SKIPPED: {fabric:?} has no descriptors to wait for");
            continue;
        }
        let mut event_loop = EventLoop::new().expect("a loop");
        event_loop.add_endpoint(&rig.channel).expect("added");
        let mut polls = 0;
        let until = Instant::now() + SHORT;
        while Instant::now() < until {
            let mut is_told = false;
            let nap = Some(Duration::from_millis(50));
            let told = |_: &mut EventLoop, _| is_told = true;
            event_loop.run_once(nap, told).expect("it runs");
            if is_told {
                polls += 1;
                rig.channel.poll(&mut rig.events).expect("it polls");
            }
        }
        assert!(polls < 10, "{polls} polls, and nothing to do");
    }
}
