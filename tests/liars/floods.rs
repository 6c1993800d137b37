//! Messages that say nothing new, as fast as they can be sent, while another connection comes to
//! its end.
//!
//! Counted, not timed: how often one poll reads its queue, and how many such messages a peer gets
//! away with.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use fabricast::endpoint::{CloseReason, ConnectionId};

use crate::common::{Watchdog, alone, breathe};
use crate::victim::{Guest, Victim, config};
use crate::wire::{self, Control};

/// Messages that a liar sends at most.
const FLOOD: u64 = 60_000;

/// Reads of the completion queue that one poll may make, whatever comes meanwhile. Each takes
/// dozens of completions.
const READS: u64 = 64;

/// A liar on a thread of its own, which says one thing over and over.
struct Flood {
    id: ConnectionId,
    stop: Arc<AtomicBool>,
    /// How often it was said.
    said: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Flood {
    /// Says it so often at most.
    fn begin(guest: Guest, control: Control, most: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let said = Arc::new(AtomicU64::new(0));
        let (stopped, count) = (Arc::clone(&stop), Arc::clone(&said));
        let Guest { mut liar, id, .. } = guest;
        let thread = std::thread::spawn(move || {
            let is_stopped = || stopped.load(Ordering::Relaxed);
            while !liar.over && count.load(Ordering::Relaxed) < most && !is_stopped() {
                if liar.try_say(control) {
                    count.fetch_add(1, Ordering::Relaxed);
                } else {
                    liar.poll();
                }
            }
            // Whoever hears of it does so while the liar is there.
            for turn in 0.. {
                if liar.over || is_stopped() {
                    break;
                }
                liar.poll();
                breathe(turn);
            }
        });
        Self {
            id,
            stop,
            said,
            thread,
        }
    }

    fn said(&self) -> u64 {
        self.said.load(Ordering::Relaxed)
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic");
    }
}

fn flood(test: &'static str, control: Control) {
    let _alone = alone();
    let _dog = Watchdog::new(test);
    let Some(mut victim) = Victim::new(1, &config()) else {
        return;
    };
    let mut leaving = Guest::polite(&mut victim, 0, None);
    let flooding = Guest::polite(&mut victim, 0, None);
    let before = victim.polls;
    let flood = Flood::begin(flooding, control, FLOOD);
    let mut left = false;
    let is_over = |victim: &Victim| victim.end_of(0, flood.id).is_some();
    while !(is_over(&victim) && leaving.ended(&victim).is_some()) {
        victim.poll();
        if !left && (victim.polls > before + 20 || is_over(&victim)) {
            left = true;
            leaving.liar.hang_up();
        }
        leaving.liar.poll();
        if flood.said() >= FLOOD {
            break;
        }
    }
    (0..100).for_each(|_| victim.poll());
    let (id, gone) = (flood.id, leaving.ended(&victim).is_some());
    let said = flood.said();
    flood.end();
    let reason = victim.end_of(0, id);
    let (reads, polls) = (victim.most_reads, victim.polls - before);
    println!("{said} said, {polls} polls, at most {reads} reads in one: {reason:?}");
    assert!(gone, "the other connection's end is told");
    assert!(reads <= READS, "{reads} reads of the queue in one poll");
    assert!(
        matches!(reason, Some(CloseReason::Violation(_))),
        "after {said} messages that said nothing new: {reason:?}"
    );
}

#[test]
fn credits_that_grant_nothing() {
    // As many as the hello says.
    flood("credits", Control::new(wire::CREDIT).value(4));
}

/// While the endpoint closes and the others say goodbye.
#[test]
fn a_flood_while_the_endpoint_closes() {
    let _alone = alone();
    let _dog = Watchdog::new("flood and close");
    let Some(mut victim) = Victim::new(1, &config()) else {
        return;
    };
    let mut idle: Vec<_> = (0..4)
        .map(|_| Guest::polite(&mut victim, 0, None))
        .collect();
    let flooding = Guest::polite(&mut victim, 0, None);
    // Until its connection ends: the close does not wait for the flood to be over.
    let flood = Flood::begin(flooding, Control::new(wire::CREDIT).value(4), u64::MAX);
    idle.iter_mut().for_each(|guest| guest.liar.poll());
    (0..20).for_each(|_| victim.poll());
    let endpoint = victim.endpoints[0].take().expect("once");
    let deadline = crate::common::after(crate::common::millis(200));
    let events = endpoint.close(deadline).expect("closes");
    events.into_iter().for_each(|event| victim.take(0, event));
    assert!(victim.end_of(0, flood.id).is_some(), "its end is told");
    flood.end();
}
