//! `RailGrowth`: how many connections to each address of a peer pay, found while blocks are sent.
//! `RailRedial`: those that a receiver did not take are made later.

use std::time::{Duration, Instant};

/// A rate is taken over so long, and so many bytes, at least.
const LOOK_MIN: Duration = Duration::from_millis(10);
const BYTES_MIN: u64 = 16 << 20;

/// How long new connections get before the rate with them is taken.
const WARM_UP: Duration = Duration::from_millis(5);

/// So many times the rate that there was before is worth the connections that brought it.
const PAYS: f64 = 1.1;

/// Looks that found the rate no higher before it is believed: others use the machine, too.
const VAIN_MAX: u32 = 3;

/// A rate that is being taken.
#[derive(Debug, Clone, Copy)]
struct Look {
    since: Instant,
    bytes: u64,
}

/// From one connection up, twice as many, until the rate stops growing.
#[derive(Debug, Default)]
pub(super) struct RailGrowth {
    look: Option<Look>,
    /// Bytes a second before the connections that were made last.
    before: f64,
    /// Looks at the rate of now that found it no higher.
    vain: u32,
}

impl RailGrowth {
    /// So many bytes were sent by now, by this many connections to each address, all of which are
    /// ready. How many more make sense; at most `most` in all.
    pub(super) fn more(&mut self, rails: u16, most: u16, bytes: u64, now: Instant) -> u16 {
        if self.vain >= VAIN_MAX || rails >= most {
            return 0;
        }
        let began = Look { since: now, bytes };
        let look = *self.look.get_or_insert(Look {
            since: now + WARM_UP,
            ..began
        });
        let took = now.saturating_duration_since(look.since);
        if took.is_zero() {
            // It is not warm yet.
            self.look = Some(Look { bytes, ..look });
            return 0;
        }
        let moved = bytes.saturating_sub(look.bytes);
        if took < LOOK_MIN || moved < BYTES_MIN {
            return 0;
        }
        let rate = moved as f64 / took.as_secs_f64();
        self.look = None;
        if rate < self.before * PAYS {
            self.vain += 1;
            return 0;
        }
        (self.before, self.vain) = (rate, 0);
        rails.min(most - rails)
    }
}

/// A connection that was refused is made again after this, and after twice as long each time.
const REDIAL: Duration = Duration::from_millis(20);

/// How often that is tried.
const REDIALS_MAX: u32 = 8;

/// Connections beside the first that a receiver did not take: it may have had no room for their
/// receives, as all of it had blocks in it.
#[derive(Debug, Default)]
pub(super) struct RailRedial {
    missing: u16,
    tries: u32,
    at: Option<Instant>,
}

impl RailRedial {
    /// One was not taken.
    pub(super) fn on_refused(&mut self, now: Instant) {
        if self.tries < REDIALS_MAX {
            self.missing += 1;
            let pause = REDIAL * 2_u32.pow(self.tries);
            self.at = self.at.or(Some(now + pause));
        }
    }

    /// How many are to be made by now.
    pub(super) fn due(&mut self, now: Instant) -> u16 {
        if self.at.is_none_or(|at| now < at) {
            return 0;
        }
        self.at = None;
        self.tries += 1;
        std::mem::take(&mut self.missing)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_tried_less_and_less_often_and_not_for_ever() {
        let (mut redial, begin) = (RailRedial::default(), Instant::now());
        let (mut tried, mut waited) = (Vec::new(), 0);
        redial.on_refused(begin);
        redial.on_refused(begin);
        for ms in 0..60_000 {
            let now = begin + Duration::from_millis(ms);
            let due = redial.due(now);
            if due > 0 {
                tried.push((ms - waited, due));
                waited = ms;
                redial.on_refused(now);
            }
        }
        let pauses = [20, 40, 80, 160, 320, 640, 1280, 2560];
        let wanted = pauses.iter().zip([2, 1, 1, 1, 1, 1, 1, 1]);
        let wanted: Vec<_> = wanted.map(|(ms, due)| (*ms, due)).collect();
        assert_eq!(tried, wanted);
    }

    /// The connections in the end, where each of the first `useful` moves a gigabyte a second.
    fn grown(useful: u16, most: u16) -> u16 {
        let (mut growth, mut now) = (RailGrowth::default(), Instant::now());
        let (mut rails, mut bytes) = (1_u16, 0);
        for _ in 0..10_000 {
            now += Duration::from_millis(1);
            bytes += u64::from(rails.min(useful)) * 1_000_000;
            rails += growth.more(rails, most, bytes, now);
        }
        rails
    }

    #[test]
    fn connections_are_made_until_the_rate_stops_growing() {
        assert_eq!(grown(1, 7), 2);
        assert_eq!(grown(2, 7), 4);
        assert_eq!(grown(4, 7), 7);
        assert_eq!(grown(7, 7), 7);
        assert_eq!(grown(7, 3), 3);
        assert_eq!(grown(7, 1), 1);
    }

    #[test]
    fn a_short_stream_has_one_connection() {
        let (mut growth, now) = (RailGrowth::default(), Instant::now());
        for ms in 0..1000 {
            let at = now + Duration::from_millis(ms);
            assert_eq!(growth.more(1, 7, ms * 15_000, at), 0);
        }
    }
}
