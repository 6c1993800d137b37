//! `BufferShares`: who may have one more of a worker's buffers. Pure.
//!
//! A client that does not move keeps the buffers that it has until it is cut off. So who has not
//! shown yet that it moves gets one, and the last fourth is for those who have:
//!
//! | who | buffers of each | of all such |
//! |---|---|---|
//! | has moved a piece | a fourth; of the last fourth, one | all |
//! | new | one | of one origin a fourth; an eighth, if one of it was late |
//! | was late, or stands still | one | an eighth |

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::endpoint::origin::Origin;

/// For how long it counts that somebody was late.
pub(super) const LATE_FOR: Duration = Duration::from_secs(60);
/// Who has a buffer and moves nothing for so long stands still, until something moves.
const STILL: Duration = Duration::from_secs(1);
/// Origins that are remembered for it.
const LATE_ORIGINS_MAX: usize = 1024;

/// What is known of how a connection moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// It has moved a piece, and was not late since.
    Proven,
    /// Nothing yet.
    New,
    /// It did not move in time, not long ago; or it has buffers, and does not move now.
    Late,
}

/// What a connection has shown.
#[derive(Debug, Default)]
pub(super) struct Record {
    is_proven: bool,
    /// When it moved last, or had its first buffer.
    moved_at: Option<Instant>,
    late_until: Option<Instant>,
}

impl Record {
    /// It has its first buffer, after it had none.
    pub(super) fn begins(&mut self, now: Instant) {
        self.moved_at = Some(now);
    }

    pub(super) fn moved(&mut self, now: Instant) {
        self.is_proven = true;
        self.moved_at = Some(now);
    }

    pub(super) fn was_late(&mut self, now: Instant) {
        self.is_proven = false;
        self.late_until = Some(now + LATE_FOR);
    }

    /// With how many buffers it has.
    pub(super) fn trust(&self, buffers: u32, now: Instant) -> Trust {
        let is_still = self.moved_at.is_some_and(|moved| moved + STILL <= now);
        if buffers > 0 && is_still {
            return Trust::Late;
        }
        match self.late_until {
            Some(until) if until > now => Trust::Late,
            _ if self.is_proven => Trust::Proven,
            _ => Trust::New,
        }
    }
}

/// Origins of which a connection was late. Connections go, and this stays for a while.
#[derive(Debug, Default)]
pub(super) struct LateOrigins(HashMap<Origin, Instant>);

impl LateOrigins {
    pub(super) fn add(&mut self, origin: Origin, now: Instant) {
        self.0.retain(|_, until| *until > now);
        if self.0.len() >= LATE_ORIGINS_MAX
            && !self.0.contains_key(&origin)
            && let Some(oldest) = self.0.iter().min_by_key(|(_, until)| **until)
        {
            let oldest = *oldest.0;
            self.0.remove(&oldest);
        }
        self.0.insert(origin, now + LATE_FOR);
    }

    pub(super) fn has(&self, origin: Origin, now: Instant) -> bool {
        self.0.get(&origin).is_some_and(|until| *until > now)
    }
}

/// One that wants a buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asking {
    pub(super) trust: Trust,
    pub(super) origin: Origin,
    /// One of its origin was late.
    pub(super) is_origin_late: bool,
    /// Buffers of its connection.
    pub(super) its: u32,
}

/// Who may have one more buffer.
#[derive(Debug, Default)]
pub(super) struct BufferShares {
    slots: u32,
    /// Of those that are new, by origin.
    new: HashMap<Origin, u32>,
    late: u32,
}

impl BufferShares {
    pub(super) fn new(slots: u32) -> Self {
        Self {
            slots,
            ..Self::default()
        }
    }

    /// Somebody has so many.
    pub(super) fn add(&mut self, trust: Trust, origin: Origin, buffers: u32) {
        match trust {
            Trust::Proven => {}
            Trust::New => *self.new.entry(origin).or_default() += buffers,
            Trust::Late => self.late += buffers,
        }
    }

    /// Whether one may have one more of those that are free.
    pub(super) fn may_take(&self, asking: &Asking, free: u32) -> bool {
        let part = |of: u32| (self.slots / of).max(1);
        if asking.trust == Trust::Proven {
            return match free > part(4) {
                // More of a request than one only while others find some, too.
                true => asking.its < part(4),
                false => asking.its == 0,
            };
        }
        let of_its_kind = match asking.trust {
            Trust::Late => self.late < part(8),
            _ => {
                let its = self.new.get(&asking.origin).copied().unwrap_or(0);
                its < part(if asking.is_origin_late { 8 } else { 4 })
            }
        };
        asking.its == 0 && of_its_kind && free > part(4)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SLOTS: u32 = 32;

    fn host(last: u8) -> Origin {
        Origin::Host(std::net::Ipv4Addr::new(10, 0, 0, last).into())
    }

    /// How many buffers these get, one connection after the other, round by round.
    fn taken(trust: Trust, connections: u32, host_of: impl Fn(u32) -> Origin, late: bool) -> u32 {
        let mut shares = BufferShares::new(SLOTS);
        let mut its = vec![0; connections as usize];
        let mut free = SLOTS;
        for _ in 0..SLOTS {
            for index in 0..connections {
                let asking = Asking {
                    trust,
                    origin: host_of(index),
                    is_origin_late: late,
                    its: its[index as usize],
                };
                if free > 0 && shares.may_take(&asking, free) {
                    shares.add(trust, asking.origin, 1);
                    its[index as usize] += 1;
                    free -= 1;
                }
            }
        }
        SLOTS - free
    }

    #[test]
    fn shares_are_as_the_table_says() {
        let one = |_| host(1);
        let each = |index| host(index as u8);
        assert_eq!(taken(Trust::New, 1, one, false), 1);
        assert_eq!(taken(Trust::New, 64, one, false), 8);
        assert_eq!(taken(Trust::New, 64, one, true), 4);
        assert_eq!(taken(Trust::New, 64, each, false), 24);
        assert_eq!(taken(Trust::Late, 64, each, true), 4);
        assert_eq!(taken(Trust::Proven, 1, one, false), 8);
        assert_eq!(taken(Trust::Proven, 2, one, false), 16);
        assert_eq!(taken(Trust::Proven, 64, each, false), 32);
        // Those that take what they can leave some to those that have none.
        assert_eq!(taken(Trust::Proven, 4, one, false), 24);
    }

    #[test]
    fn who_was_late_is_forgiven_after_a_while() {
        let mut record = Record::default();
        let now = Instant::now();
        assert_eq!(record.trust(0, now), Trust::New);
        record.begins(now);
        assert_eq!(record.trust(1, now), Trust::New);
        assert_eq!(record.trust(1, now + STILL), Trust::Late);
        record.moved(now + STILL);
        assert_eq!(record.trust(1, now + STILL), Trust::Proven);
        assert_eq!(record.trust(0, now + 9 * STILL), Trust::Proven);
        record.was_late(now);
        record.moved(now);
        assert_eq!(record.trust(0, now), Trust::Late);
        assert_eq!(record.trust(0, now + LATE_FOR), Trust::Proven);
        let mut origins = LateOrigins::default();
        for index in 0..3000_u32 {
            let ip = std::net::Ipv4Addr::from_bits(index).into();
            origins.add(Origin::Host(ip), now + Duration::from_millis(index.into()));
        }
        assert_eq!(origins.0.len(), LATE_ORIGINS_MAX);
        origins.add(host(1), now);
        assert!(origins.has(host(1), now) && !origins.has(host(2), now));
        assert!(!origins.has(host(1), now + LATE_FOR));
    }
}
