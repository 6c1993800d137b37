//! What a person sees while a run is under way: a line a second on stderr, and what hangs when
//! something does.

use std::sync::Arc;
use std::time::Duration;

use crate::readout::clock::now_ns;
use crate::readout::detector::Status;
use crate::readout::events::{Event, Events};
use crate::readout::link::Link;

/// How often a line is printed.
const INTERVAL: Duration = Duration::from_secs(1);
/// Seconds; what is out for longer is told of.
const STUCK: f64 = 1.0;

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
        self.tell_stuck(links, events);
        (self.events, self.bytes) = (built, bytes);
        self.last = running;
        while self.next <= running {
            self.next += INTERVAL;
        }
    }

    /// Where the oldest event is, if it is that old.
    fn tell_stuck(&self, links: &[Link], events: &Events) {
        let ages = self.statuses.iter().map(|s| Status::get(&s.oldest_us));
        let in_ring = ages.max().unwrap_or(0) as f64 / 1e6;
        let Some((event, parts)) = events.oldest() else {
            if in_ring > STUCK {
                eprintln!(
                    "         a fragment is {in_ring:.1} s old: another detector has not filled \
                     its part"
                );
            }
            return;
        };
        let committed = parts.iter().map(|part| part.committed).min();
        let age = now_ns().saturating_sub(committed.unwrap_or(u64::MAX)) as f64 / 1e9;
        if age > STUCK {
            eprintln!(
                "         event {} of builder {} is {age:.1} s old: {}; the oldest fragment in a \
                 ring {in_ring:.1} s",
                event.number,
                links[event.builder as usize].to,
                where_it_is(event)
            );
        }
    }
}

fn where_it_is(event: &Event) -> &'static str {
    if event.sent < event.count {
        "not wholly sent: the builder grants nothing"
    } else if event.in_flight > 0 {
        "in flight"
    } else {
        "sent, the builder has not answered"
    }
}
