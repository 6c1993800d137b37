//! What a receiver is opened with.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::stream::sender::{setting, time};
use crate::stream::sink::SinkFactory;
use crate::stream::{Limits, PresharedKey, StreamError};

/// Receives that a connection takes beside its blocks, at most.
pub(super) const RECEIVES_BESIDE: u32 = 11;

/// Receives for messages about windows, where there are some.
pub(super) const RECEIVES_OF_WINDOWS: u32 = 3;

/// The settings of a [`StreamReceiver`](super::StreamReceiver).
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `block_bytes` | bytes of the largest block that is taken | 1 MiB | 8 KiB to 256 MiB |
/// | `connections` | connections at once | 8 | 1 to 1,024 |
/// | `buffers` | blocks that arrive or wait for the sink; see below | 32 | 2 to 65,536 |
/// | `credits` | blocks granted to a stream at once | 16 | 1 to 4,096 |
/// | `rma_slots` | blocks that senders may write by RMA at once | see below | 0 to 65,536 |
/// | `writers` | threads that write | 2 | 1 to 64 |
/// | `handshake_timeout` | time | 5 s | 1 ms to 1 h |
/// | `stalled_after` | time | 60 s | 10 ms to 24 h |
/// | `paused_for` | time | 1 h | 10 ms to 30 days |
/// | `lost_after` | time | 10 s | 10 ms to 24 h |
/// | `pinned` | buffers that CUDA copies from and to without the processor | no | |
/// | `limits` | | | see [`Limits`] |
/// | `key` | a pre-shared key | none | |
///
/// `buffers` counts for all connections together; each connection has 11 more. `rma_slots` counts
/// for all streams together, and with 0 no sender may write by itself; its default is as many as
/// `buffers` where the provider [does that better](crate::fabric::Provider::favours_writes), else
/// 0.
///
/// The pool takes `(buffers + 11 × connections) × (block_bytes + 64)` bytes. With RMA slots, it has
/// 3 more for each connection, there are up to `windows × block_bytes` bytes more, and each thread
/// that writes has a block of its own.
#[derive(Debug, Clone)]
pub struct ReceiverConfig {
    pub(super) sink: Arc<dyn SinkFactory>,
    pub(super) block_bytes: u32,
    pub(super) connections: u32,
    pub(super) buffers: u32,
    pub(super) credits: u32,
    pub(super) rma_slots: Option<u32>,
    pub(super) writers: u32,
    pub(super) handshake_timeout: Duration,
    pub(super) stalled_after: Duration,
    pub(super) paused_for: Duration,
    pub(super) lost_after: Duration,
    pub(super) pinned: bool,
    pub(super) limits: Limits,
    pub(super) key: Option<PresharedKey>,
    /// What everything judges deadlines by.
    pub(super) clock: Clock,
    #[cfg(test)]
    pub(in crate::stream) swallow: Option<crate::stream::outbox::Swallow>,
}

impl ReceiverConfig {
    /// Streams go to sinks of this kind.
    pub fn new(sink: impl SinkFactory) -> Self {
        Self {
            sink: Arc::new(sink),
            block_bytes: 1 << 20,
            connections: 8,
            buffers: 32,
            credits: 16,
            rma_slots: None,
            writers: 2,
            handshake_timeout: Duration::from_secs(5),
            stalled_after: Duration::from_secs(60),
            paused_for: Duration::from_secs(3600),
            lost_after: Duration::from_secs(10),
            pinned: false,
            limits: Limits::default(),
            key: None,
            clock: Clock::system(),
            #[cfg(test)]
            swallow: None,
        }
    }

    /// Bytes of the largest block that is taken. Senders with larger ones take smaller ones, if
    /// this is their first peer to say so.
    #[must_use]
    pub fn block_bytes(mut self, bytes: u32) -> Self {
        self.block_bytes = bytes;
        self
    }

    /// Connections at once; one more is refused.
    #[must_use]
    pub fn connections(mut self, connections: u32) -> Self {
        self.connections = connections;
        self
    }

    /// Buffers of a block each, beside those that connections take.
    #[must_use]
    pub fn buffers(mut self, buffers: u32) -> Self {
        self.buffers = buffers;
        self
    }

    /// What everything judges deadlines by.
    #[cfg(test)]
    pub(in crate::stream) fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Blocks granted to a stream at once: those that are on their way, and those that the sink has
    /// not written.
    #[must_use]
    pub fn credits(mut self, blocks: u32) -> Self {
        self.credits = blocks;
        self
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

    /// Threads that check and write blocks.
    #[must_use]
    pub fn writers(mut self, threads: u32) -> Self {
        self.writers = threads;
        self
    }

    /// How long a peer may take from its first byte to the end of the handshake, and from there to
    /// its stream.
    #[must_use]
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake_timeout = timeout;
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

    /// How long a peer may be silent before its connection is given up.
    #[must_use]
    pub fn lost_after(mut self, silence: Duration) -> Self {
        self.lost_after = silence;
        self
    }

    /// How much is taken.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Whether the buffers are pinned for CUDA, as blocks out of a GPU's memory and into it are
    /// copied fastest. Without a driver, opening fails, and says what is missing.
    #[must_use]
    pub fn pinned(mut self, yes: bool) -> Self {
        self.pinned = yes;
        self
    }

    /// The key that senders must have, too: each side proves to the other that it does, before
    /// anything else is said.
    #[must_use]
    pub fn key(mut self, key: PresharedKey) -> Self {
        self.key = Some(key);
        self
    }

    pub(super) fn check(&self) -> Result<(), StreamError> {
        let range = "8192 to 268435456 bytes";
        setting("block_bytes", self.block_bytes.into(), 8192, 1 << 28, range)?;
        setting("connections", self.connections.into(), 1, 1024, "1 to 1024")?;
        setting("buffers", self.buffers.into(), 2, 65_536, "2 to 65536")?;
        setting("credits", self.credits.into(), 1, 4096, "1 to 4096 blocks")?;
        let windows = self.rma_slots.unwrap_or(0);
        setting("rma_slots", windows.into(), 0, 65_536, "0 to 65536 blocks")?;
        setting("writers", self.writers.into(), 1, 64, "1 to 64 threads")?;
        let hour = "1 ms to 1 h";
        time(
            "handshake_timeout",
            self.handshake_timeout,
            1,
            3_600_000,
            hour,
        )?;
        let day = "10 ms to 24 h";
        time("stalled_after", self.stalled_after, 10, 86_400_000, day)?;
        let month = "10 ms to 30 days";
        time("paused_for", self.paused_for, 10, 30 * 86_400_000, month)?;
        time("lost_after", self.lost_after, 10, 86_400_000, day)?;
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
                name: "block_bytes",
                get: |c| c.block_bytes.into(),
                set: |c, v| c.block_bytes(v.count()),
            },
            Setting {
                name: "connections",
                get: |c| c.connections.into(),
                set: |c, v| c.connections(v.count()),
            },
            Setting {
                name: "buffers",
                get: |c| c.buffers.into(),
                set: |c, v| c.buffers(v.count()),
            },
            Setting {
                name: "credits",
                get: |c| c.credits.into(),
                set: |c, v| c.credits(v.count()),
            },
            Setting {
                name: "writers",
                get: |c| c.writers.into(),
                set: |c, v| c.writers(v.count()),
            },
            Setting {
                name: "rma_slots",
                get: |c| c.rma_slots.unwrap_or(0).into(),
                set: |c, v| c.rma_slots(v.count()),
            },
            Setting {
                name: "handshake_timeout",
                get: |c| c.handshake_timeout.into(),
                set: |c, v| c.handshake_timeout(v.time()),
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
            Setting {
                name: "lost_after",
                get: |c| c.lost_after.into(),
                set: |c, v| c.lost_after(v.time()),
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
