//! `Clock`: where endpoints and streams read the time.
//!
//! Whoever judges deadlines owns one, given when it is made, and never asks the system by itself:
//! so a test can hold the clock of everything that it drives, and what takes a minute takes no
//! time. Where the library is used there is only the system's clock, and this type has no bytes.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

#[cfg(any(test, fuzzing))]
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The system's clock; or, in tests, one that stands still unless it is told to go on. Clones show
/// the same time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    #[cfg(any(test, fuzzing))]
    held: Option<Arc<Held>>,
}

#[cfg(not(any(test, fuzzing)))]
const _: () = assert!(size_of::<Clock>() == 0);

/// The time of a clock that somebody holds.
#[cfg(any(test, fuzzing))]
#[derive(Debug)]
struct Held {
    base: Instant,
    /// Nanoseconds since then.
    passed: AtomicU64,
}

/// Seconds and nanoseconds of a clock that moves each 1 to 10 ms.
pub(crate) type CoarseTime = (i64, i64);

impl Clock {
    /// The system's.
    pub(crate) const fn system() -> Self {
        Self {
            #[cfg(any(test, fuzzing))]
            held: None,
        }
    }

    #[inline]
    pub(crate) fn now(&self) -> Instant {
        #[cfg(any(test, fuzzing))]
        if let Some(held) = &self.held {
            return held.now();
        }
        Instant::now()
    }

    /// How long ago that was; nothing for what is still to come.
    #[inline]
    pub(crate) fn since(&self, begin: Instant) -> Duration {
        self.now().saturating_duration_since(begin)
    }

    /// What is cheaper to read than the time, and changes with it, a little later.
    #[inline]
    pub(crate) fn coarse(&self) -> CoarseTime {
        #[cfg(any(test, fuzzing))]
        if let Some(held) = &self.held {
            let passed = held.passed();
            return (passed.as_secs().cast_signed(), passed.subsec_nanos().into());
        }
        let now = clock_gettime(ClockId::MonotonicCoarse);
        (now.tv_sec, now.tv_nsec)
    }

    /// How long a thread may really sleep that wants to sleep for so long. One that waits by a held
    /// clock does not: the clock goes on for it, by a step, as it would on a machine where nothing
    /// else happens.
    #[inline]
    pub(crate) fn sleep_for(&self, time: Duration) -> Duration {
        #[cfg(any(test, fuzzing))]
        if self.is_held() {
            self.advance(time.min(STEP));
            return Duration::ZERO;
        }
        time
    }
}

/// What a held clock goes on when somebody would sleep by it.
#[cfg(any(test, fuzzing))]
const STEP: Duration = Duration::from_millis(1);

#[cfg(any(test, fuzzing))]
#[cfg_attr(
    any(not(test), loom),
    allow(dead_code, reason = "fuzzing and loom use a part of what the tests do")
)]
impl Clock {
    /// One that stands still, at the time that it is now.
    pub(crate) fn held() -> Self {
        Self {
            held: Some(Arc::new(Held {
                base: Instant::now(),
                passed: AtomicU64::new(0),
            })),
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// So much time passes.
    ///
    /// # Panics
    /// The system's clock can't be moved.
    pub(crate) fn advance(&self, time: Duration) {
        let held = self.held.as_ref().expect("a clock that is held");
        let nanos = u64::try_from(time.as_nanos()).expect("centuries");
        // AcqRel: what was done before the time passed was done for whoever sees that it has.
        held.passed.fetch_add(nanos, Ordering::AcqRel);
    }

    /// Time passes until then; none if that is over.
    pub(crate) fn advance_to(&self, at: Instant) {
        self.advance(at.saturating_duration_since(self.now()));
    }

    /// The time that has passed since it is held.
    pub(crate) fn passed(&self) -> Duration {
        self.held.as_ref().map_or(Duration::ZERO, |it| it.passed())
    }
}

#[cfg(any(test, fuzzing))]
impl Held {
    fn passed(&self) -> Duration {
        Duration::from_nanos(self.passed.load(Ordering::Acquire))
    }

    fn now(&self) -> Instant {
        self.base + self.passed()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_held_clock_stands_still_until_it_is_told_to_go_on_and_its_clones_go_with_it() {
        let clock = Clock::held();
        let (other, begin, coarse) = (clock.clone(), clock.now(), clock.coarse());
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!((other.now(), other.coarse()), (begin, coarse));
        clock.advance(Duration::from_secs(3));
        assert_eq!(other.since(begin), Duration::from_secs(3));
        assert_ne!(other.coarse(), coarse);
        other.advance_to(begin);
        assert_eq!(clock.passed(), Duration::from_secs(3), "never backwards");
        assert_eq!(clock.since(begin + Duration::from_secs(9)), Duration::ZERO);
    }

    #[test]
    fn who_sleeps_by_a_held_clock_does_not_sleep_and_time_passes() {
        let clock = Clock::held();
        let begin = clock.now();
        let mut left = Duration::from_millis(2500);
        while left > Duration::ZERO {
            assert_eq!(clock.sleep_for(left), Duration::ZERO);
            left = Duration::from_millis(2500).saturating_sub(clock.since(begin));
        }
        assert_eq!(clock.since(begin), Duration::from_millis(2500));
        let system = Clock::system();
        assert_eq!(system.sleep_for(left), left);
    }

    #[test]
    fn the_clock_of_the_system_is_the_systems() {
        let clock = Clock::system();
        let before = Instant::now();
        let read = clock.now();
        assert!(before <= read && read <= Instant::now());
        assert!(!clock.is_held());
    }
}
