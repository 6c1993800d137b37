//! What a person sees while a run is under way: a line a second on stderr, and what hangs when something does.

use std::sync::Arc;
use std::time::Duration;

use crate::detector::Status;
use crate::events::{Event, Events};
use crate::link::Link;

/// How often a line is printed.
const INTERVAL: Duration = Duration::from_secs(1);
/// A fragment that is out for longer is told of.
const STUCK_US: u64 = 1_000_000;

/// Counts of the last line.
pub(crate) struct Progress {
    statuses: Vec<Arc<Status>>,
    ring: u64,
    next: Duration,
    last: Duration,
    events: u64,
    bytes: u64,
}

impl Progress {
    pub(crate) fn new(statuses: Vec<Arc<Status>>, ring: u64) -> Self {
        Self {
            statuses,
            ring,
            next: INTERVAL,
            last: Duration::ZERO,
            events: 0,
            bytes: 0,
        }
    }

    /// Prints a line if it is time for one.
    pub(crate) fn show(&mut self, running: Duration, links: &[Link], events: &Events) {
        if running < self.next {
            return;
        }
        let built = links.iter().map(|link| link.built).sum();
        let bytes = links.iter().map(|link| link.sent.bytes).sum();
        let seconds = (running - self.last).as_secs_f64();
        let used = self.statuses.iter().map(|s| Status::get(&s.used));
        let fullest = used.max().unwrap_or(0) as f64 / self.ring as f64;
        eprintln!(
            "{:5.1} s  {:8.1} kHz  {:6.3} GB/s  {} events under way, fullest ring {:.0} %",
            running.as_secs_f64(),
            (built - self.events) as f64 / seconds / 1e3,
            (bytes - self.bytes) as f64 / seconds / 1e9,
            events.len(),
            fullest * 100.0
        );
        if built == self.events {
            self.tell_stuck(links, events);
        }
        (self.events, self.bytes) = (built, bytes);
        self.last = running;
        while self.next <= running {
            self.next += INTERVAL;
        }
    }

    /// Nothing was built for a second: where the oldest fragment is.
    fn tell_stuck(&self, links: &[Link], events: &Events) {
        let ages = self.statuses.iter().map(|s| Status::get(&s.oldest_us));
        let age = ages.max().unwrap_or(0);
        let Some(event) = events.oldest() else {
            if age > STUCK_US {
                eprintln!(
                    "         a fragment is {} ms old, and some detector has not filled its part",
                    age / 1000
                );
            }
            return;
        };
        eprintln!(
            "         nothing was built: event {} of builder {} is {}; the oldest fragment in a ring is {} ms old",
            event.number,
            links[event.builder].to,
            where_it_is(event),
            age / 1000
        );
    }
}

fn where_it_is(event: &Event) -> &'static str {
    if event.sent < event.parts.len() {
        "not wholly sent: the builder grants nothing"
    } else if event.in_flight > 0 {
        "in flight"
    } else {
        "sent, the builder has not answered"
    }
}
