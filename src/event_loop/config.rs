//! Settings of an event loop.

use std::time::Duration;

use crate::error::Error;

/// What the loop does while nothing happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WaitMode {
    /// Sleep in the kernel. No processor time while idle; a wake-up costs tens of microseconds on a
    /// virtual machine.
    #[default]
    Block,
    /// Never sleep: every round hands out every endpoint. Lowest latency, one core for good.
    ///
    /// Wake-ups are seen in the next round; timers, descriptors and the end of `run_for` whenever
    /// 64 endpoints were handed out.
    Spin,
    /// Spin until no work was reported ([`EventLoop::mark_busy`](super::EventLoop::mark_busy)) for
    /// `window`, then sleep.
    Adaptive {
        /// How long to spin after the last work. 1 µs to 1 s.
        window: Duration,
    },
}

/// Settings of an [`EventLoop`](super::EventLoop), checked when the loop is made.
#[derive(Debug, Clone)]
pub struct LoopConfig {
    pub(super) mode: WaitMode,
    pub(super) poll_interval: Duration,
    pub(super) events_max: usize,
    pub(super) name: Option<std::sync::Arc<str>>,
}

impl Default for LoopConfig {
    fn default() -> Self {
        Self {
            mode: WaitMode::Block,
            poll_interval: Duration::from_millis(1),
            events_max: 64,
            name: None,
        }
    }
}

impl LoopConfig {
    /// What to do while nothing happens. Default [`WaitMode::Block`].
    #[must_use]
    pub fn mode(mut self, mode: WaitMode) -> Self {
        self.mode = mode;
        self
    }

    /// How often to hand out an endpoint whose provider has no descriptor to sleep on (shm).
    /// Default 1 ms, 10 µs to 1 s.
    ///
    /// This is the worst latency of such an endpoint; each interval costs one wake-up.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval;
        self
    }

    /// What it is called in [`metrics`](crate::metrics). Default: `event_loop` and a number.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How many descriptors one round looks at, a count. Default 64, 1 to 4096; 12 to 16 bytes of
    /// memory each.
    ///
    /// The others that are ready have their turn in the next rounds.
    #[must_use]
    pub fn events_max(mut self, count: usize) -> Self {
        self.events_max = count;
        self
    }

    /// # Errors
    /// [`Error::Config`] names the setting that is out of its range.
    pub(super) fn validate(&self) -> Result<(), Error> {
        if let WaitMode::Adaptive { window } = self.mode {
            check_duration(
                "window",
                window,
                Duration::from_micros(1),
                "must be 1 µs to 1 s",
            )?;
        }
        check_duration(
            "poll_interval",
            self.poll_interval,
            Duration::from_micros(10),
            "must be 10 µs to 1 s",
        )?;
        if !(1..=4096).contains(&self.events_max) {
            return Err(Error::Config {
                field: "events_max",
                value: self.events_max.to_string(),
                reason: "must be 1 to 4096",
            });
        }
        Ok(())
    }
}

fn check_duration(
    field: &'static str,
    value: Duration,
    least: Duration,
    reason: &'static str,
) -> Result<(), Error> {
    if (least..=Duration::from_secs(1)).contains(&value) {
        return Ok(());
    }
    Err(Error::Config {
        field,
        value: format!("{value:?}"),
        reason,
    })
}
