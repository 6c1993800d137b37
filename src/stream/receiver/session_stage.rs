//! `SessionStage`: how far a session is, what it waits for, and for how long it may.

use std::time::Duration;

use super::config::ReceiverConfig;
use crate::stream::report::Stall;

/// What the sink does may take so many times as long as what the sender does.
const LONG_WORK: u32 = 10;

/// How far a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionStage {
    /// Open, or the rest of the manifest, is still to come.
    Opening,
    /// The sink looks for what it has.
    Proving,
    Receiving,
    /// The sink makes everything appear.
    Finishing,
    /// The sink is told to give it up, when it has done what it was given.
    Leaving,
    Over,
}

impl SessionStage {
    /// Whether nothing more is taken.
    pub(super) fn is_ending(self) -> bool {
        matches!(self, Self::Leaving | Self::Over)
    }

    /// Whether the sink works on the stream as a whole, and the sender has nothing to say.
    pub(super) fn is_of_sink(self) -> bool {
        matches!(self, Self::Proving | Self::Finishing)
    }

    /// For how long nothing may move; `None`: for ever. `sink_works`: the sink has jobs.
    pub(super) fn limit(
        self,
        config: &ReceiverConfig,
        is_paused: bool,
        sink_works: bool,
    ) -> Option<Duration> {
        let long = config.stalled_after.saturating_mul(LONG_WORK);
        match self {
            Self::Opening => Some(config.stream.connect_timeout.max(config.stalled_after)),
            // A pause has a limit of its own.
            Self::Receiving if is_paused => None,
            Self::Receiving if !sink_works => Some(config.stalled_after),
            // It is the sink that works: it has its time, and the sender hears of it.
            Self::Receiving | Self::Proving | Self::Finishing => Some(long),
            Self::Leaving | Self::Over => None,
        }
    }

    /// The reason for waiting, for the report.
    pub(super) fn stall(self, sink_works: bool) -> Stall {
        match self {
            Self::Receiving if !sink_works => Stall::Wire,
            Self::Finishing => Stall::Sink,
            Self::Opening => Stall::Connecting,
            _ => Stall::None,
        }
    }

    /// The reason for waiting, in words.
    pub(super) fn waits_for(self, sink_works: bool) -> &'static str {
        match self {
            Self::Opening => "the sender to open the stream",
            _ if sink_works => "its sink",
            _ => "blocks, or the sender to say that it has sent all",
        }
    }
}
