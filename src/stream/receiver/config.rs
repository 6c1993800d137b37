//! What a receiver is opened with.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::stream::sender::{setting, time};
use crate::stream::sink::SinkFactory;
use crate::stream::{Limits, StreamError, StreamSettings};

/// Receives that a connection takes beside its blocks, at most.
pub(super) const RECEIVES_BESIDE: u32 = 11;

/// Receives for messages about windows, where there are some.
pub(super) const RECEIVES_OF_WINDOWS: u32 = 3;

/// The settings of a [`StreamReceiver`](super::StreamReceiver): those that both sides have
/// ([`StreamSettings`]), and its own:
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `credits` | blocks granted to a stream at once | see below | 1 to 4,096 |
/// | `rma_slots` | blocks that senders may write by RMA at once | see below | 0 to 65,536 |
/// | `stalled_after` | time | 60 s | 10 ms to 24 h |
/// | `paused_for` | time | 1 h | 10 ms to 30 days |
/// | `limits` | | | see [`Limits`] |
/// | `timeline` | reports say how a stream went over time | no | |
///
/// Unless they are set, there are 16 `credits` for each thread for connections
/// ([`rail_threads`](StreamSettings::rail_threads)).
///
/// `buffers` counts for all connections of such a thread; each connection has 11 more. `rma_slots`
/// counts for all streams together, and with 0 no sender may write by itself; its default is as
/// many as `buffers` where the provider
/// [does that better](crate::fabric::Provider::favours_writes), else 0.
///
/// The pool of each takes `(buffers + 11 × connections) × (block_bytes + 64)` bytes, each rounded
/// up to 4 KiB where blocks have 64 KiB and more: then their payloads are aligned. With RMA slots,
/// it has 3 more for each connection, there are up to `windows × block_bytes` bytes more, and each
/// thread that writes has a block of its own.
#[derive(Debug, Clone)]
pub struct ReceiverConfig {
    pub(super) sink: Arc<dyn SinkFactory>,
    pub(super) takes: SinkTakes,
    pub(super) stream: StreamSettings,
    credits: Option<u32>,
    /// Threads for connections, once it is open.
    pub(super) lanes: u32,
    pub(super) rma_slots: Option<u32>,
    pub(super) stalled_after: Duration,
    pub(super) paused_for: Duration,
    pub(super) limits: Limits,
    pub(super) timeline: bool,
    /// What everything judges deadlines by.
    pub(super) clock: Clock,
    #[cfg(test)]
    pub(in crate::stream) swallow: Option<crate::stream::outbox::Swallow>,
}

/// What a sink answered that was asked what it takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct SinkTakes {
    pub(super) links: bool,
    pub(super) deletions: bool,
    pub(super) owners: bool,
    pub(super) attributes: bool,
}

impl SinkTakes {
    fn of(sink: &impl SinkFactory) -> Self {
        Self {
            links: sink.takes_links(),
            deletions: sink.takes_deletions(),
            owners: sink.takes_owners(),
            attributes: sink.takes_attributes(),
        }
    }
}

impl ReceiverConfig {
    /// Streams go to sinks of this kind.
    pub fn new(sink: impl SinkFactory) -> Self {
        Self {
            takes: SinkTakes::of(&sink),
            sink: Arc::new(sink),
            stream: StreamSettings::of_receiver(),
            credits: None,
            lanes: 1,
            rma_slots: None,
            stalled_after: Duration::from_secs(60),
            paused_for: Duration::from_secs(3600),
            limits: Limits::default(),
            timeline: false,
            clock: Clock::system(),
            #[cfg(test)]
            swallow: None,
        }
    }

    /// Blocks, connections and threads.
    #[must_use]
    pub fn stream(mut self, set: impl FnOnce(StreamSettings) -> StreamSettings) -> Self {
        self.stream = set(self.stream);
        self
    }

    /// What everything judges deadlines by.
    #[cfg(test)]
    pub(in crate::stream) fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Blocks granted to a stream at once: those that are on their way, and those that the sink has
    /// not written. Small ones that come as one message count as one.
    #[must_use]
    pub fn credits(mut self, blocks: u32) -> Self {
        self.credits = Some(blocks);
        self
    }

    /// Blocks granted to a stream at once.
    pub(super) fn window(&self) -> u32 {
        self.credits.unwrap_or_else(|| (16 * self.lanes).min(4096))
    }

    /// Blocks that senders may write by themselves at once, by RMA
    /// ([`Transport::Write`](crate::stream::Transport::Write)): a stream gets up to as many as its
    /// credits, while there are some. Over FI_EP_RDM (but for verbs) what a stream had does not
    /// come back before the receiver ends, since nobody knows what its sender still writes: when
    /// there is none left, streams by write are refused.
    #[must_use]
    pub fn rma_slots(mut self, blocks: u32) -> Self {
        self.rma_slots = Some(blocks);
        self
    }

    /// A stream that waits for its sender, and of which nothing has come for so long, is cut, with
    /// [`StreamError::Stalled`]; not while it is paused. A sender whose source works, or that keeps
    /// to a rate, says so. The sink has ten times this time for each block, and for what it does
    /// before the stream is accepted and at its end.
    #[must_use]
    pub fn stalled_after(mut self, silence: Duration) -> Self {
        self.stalled_after = silence;
        self
    }

    /// A stream whose sender has paused it, and of which no block has come for so long, is cut;
    /// what came is kept for a later one.
    #[must_use]
    pub fn paused_for(mut self, pause: Duration) -> Self {
        self.paused_for = pause;
        self
    }

    /// How much is taken.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The [report](crate::stream::StreamReport::timeline) of each stream says how it went over
    /// time. It takes some 100 KiB for each stream that is under way.
    #[must_use]
    pub fn timeline(mut self, on: bool) -> Self {
        self.timeline = on;
        self
    }

    pub(super) fn check(&self) -> Result<(), StreamError> {
        self.stream.check_receiver()?;
        setting("credits", self.window().into(), 1, 4096, "1 to 4096 blocks")?;
        let windows = self.rma_slots.unwrap_or(0);
        setting("rma_slots", windows.into(), 0, 65_536, "0 to 65536 blocks")?;
        let day = "10 ms to 24 h";
        time("stalled_after", self.stalled_after, 10, 86_400_000, day)?;
        let month = "10 ms to 30 days";
        time("paused_for", self.paused_for, 10, 30 * 86_400_000, month)?;
        self.limits.check()
    }
}

#[cfg(all(test, not(loom)))]
mod documented {
    use super::*;
    use crate::endpoint::testing::documented_settings::{Setting, compare_with};
    use crate::stream::DiscardSink;

    #[test]
    fn the_table_of_settings_is_what_the_code_does() {
        let settings: &[Setting<ReceiverConfig>] = &[
            Setting {
                name: "credits",
                get: |c| c.credits.unwrap_or(0).into(),
                set: |c, v| c.credits(v.count()),
            },
            Setting {
                name: "rma_slots",
                get: |c| c.rma_slots.unwrap_or(0).into(),
                set: |c, v| c.rma_slots(v.count()),
            },
            Setting {
                name: "stalled_after",
                get: |c| c.stalled_after.into(),
                set: |c, v| c.stalled_after(v.time()),
            },
            Setting {
                name: "paused_for",
                get: |c| c.paused_for.into(),
                set: |c, v| c.paused_for(v.time()),
            },
        ];
        let new = || ReceiverConfig::new(DiscardSink);
        let source = include_str!("config.rs");
        compare_with(
            source,
            "ReceiverConfig",
            settings,
            new,
            ReceiverConfig::check,
        );
    }
}
