//! `BufferShares`: who may have one more of a worker's buffers. Pure.
//!
//! A client that does not move keeps the buffers that it has until it is cut off. So who has not
//! shown yet that it moves gets one, and all of these together leave a half to the others:
//!
//! | who | buffers of each | of all such |
//! |---|---|---|
//! | moved a piece, and was not late since | a fourth; of the last fourth, one | all |
//! | new | one | a half, those of one origin a fourth; an eighth, if one of it was late |
//! | was late | one | an eighth, and together with new ones a half |

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::object::service::account::Origin;

/// For how long it counts that somebody was late.
pub(super) const LATE_FOR: Duration = Duration::from_secs(60);
/// Origins that are remembered for it.
const LATE_ORIGINS_MAX: usize = 1024;

/// What is known of how a connection moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// It has moved a piece, and was not late since.
    Proven,
    /// Nothing yet.
    New,
    /// It did not move in time, not long ago.
    Late,
}

/// What a connection has shown.
#[derive(Debug, Default)]
pub(super) struct Record {
    is_proven: bool,
    late_until: Option<Instant>,
}

impl Record {
    pub(super) fn moved(&mut self) {
        self.is_proven = true;
    }

    pub(super) fn was_late(&mut self, now: Instant) {
        self.is_proven = false;
        self.late_until = Some(now + LATE_FOR);
    }

    pub(super) fn trust(&self, now: Instant) -> Trust {
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
    /// Of both.
    unproven: u32,
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
            Trust::Proven => return,
            Trust::New => *self.new.entry(origin).or_default() += buffers,
            Trust::Late => self.late += buffers,
        }
        self.unproven += buffers;
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
        asking.its == 0 && of_its_kind && self.unproven < part(2)
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
        assert_eq!(taken(Trust::New, 64, each, false), 16);
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
        assert_eq!(record.trust(now), Trust::New);
        record.moved();
        assert_eq!(record.trust(now), Trust::Proven);
        record.was_late(now);
        record.moved();
        assert_eq!(record.trust(now), Trust::Late);
        assert_eq!(record.trust(now + LATE_FOR), Trust::Proven);
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
