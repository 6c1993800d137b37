//! `StreamSettings`: what senders and receivers of streams have in common.

use std::sync::Arc;
use std::time::Duration;

use crate::endpoint::limits::FENCE_TIMEOUT_DEFAULT;
use crate::stream::sender::{setting, time};
use crate::stream::wire::PORTS_MAX;
use crate::stream::{PresharedKey, StreamError};

/// Threads for connections: as many as a receiver has room for in its answer to tell where they
/// listen, and the first.
const RAIL_THREADS_MAX: u32 = PORTS_MAX as u32 + 1;

/// Buffers of a sender for each of its threads for connections.
const BUFFERS_OF_SENDER: u32 = 16;

/// Buffers of a receiver for each of its threads for connections.
const BUFFERS_OF_RECEIVER: u32 = 32;

/// What both sides of streams have: blocks, connections, threads. A config's `stream` lends this to
/// a closure, as it was set so far.
///
/// | setting | of | unit | default | range |
/// |---|---|---|---|---|
/// | `block_bytes` | sender | bytes of a block | 1 MiB | 4 KiB to 256 MiB |
/// | `block_bytes` | receiver | bytes of the largest block | 1 MiB | 8 KiB to 256 MiB |
/// | `buffers` | sender | blocks that are read, wait, or are on the way | see below | 2 to 4,096 |
/// | `buffers` | receiver | blocks that arrive or wait for the sink | 32 | 2 to 65,536 |
/// | `connections` | sender | connections at once | 64 | 1 to 4,096 |
/// | `connections` | receiver | connections at once | 8 | 1 to 1,024 |
/// | `threads` | all | threads that read, or write | see below | 1 to 64 |
/// | `rail_threads` | all | threads for connections | see below | 1 to 7 |
/// | `connect_timeout` | all | time | 5 s | 1 ms to 1 h |
/// | `lost_after` | all | time | 10 s | 10 ms to 24 h |
/// | `fence_timeout` | all | time | 2 s | 1 ms to 1 h |
/// | `pinned` | all | buffers that CUDA copies from and to without the processor | no | |
/// | `key` | all | a pre-shared key | none | |
/// | `name` | all | a word, in [`metrics`](crate::metrics) | the side and a number | |
///
/// "Of" names the sides: [`SenderConfig`](crate::stream::SenderConfig) and
/// [`ReceiverConfig`](crate::stream::ReceiverConfig).
///
/// With a `rail_threads` of 1, connections have one thread for all of them. Its default is that,
/// and a quarter of the processors where the provider copies (tcp), at most 7. `threads` follows it
/// unless it is set: 3 for each 2 of those, and 2 at least; so do a sender's `buffers`: 16 for
/// each.
///
/// ```
/// use fabricast::stream::SenderConfig;
///
/// let config = SenderConfig::default().stream(|stream| stream.block_bytes(1 << 22).threads(4));
/// # let _ = config;
/// ```
#[derive(Debug, Clone)]
pub struct StreamSettings {
    pub(in crate::stream) block_bytes: u32,
    pub(in crate::stream) buffers: Option<u32>,
    pub(in crate::stream) connections: u32,
    pub(in crate::stream) threads: Option<u32>,
    pub(in crate::stream) rail_threads: Option<u32>,
    pub(in crate::stream) connect_timeout: Duration,
    pub(in crate::stream) lost_after: Duration,
    pub(in crate::stream) fence_timeout: Duration,
    pub(in crate::stream) pinned: bool,
    pub(in crate::stream) key: Option<PresharedKey>,
    pub(in crate::stream) name: Option<Arc<str>>,
}

impl StreamSettings {
    pub(in crate::stream) fn of_sender() -> Self {
        Self::new(None, 64)
    }

    pub(in crate::stream) fn of_receiver() -> Self {
        Self::new(Some(BUFFERS_OF_RECEIVER), 8)
    }

    fn new(buffers: Option<u32>, connections: u32) -> Self {
        Self {
            block_bytes: 1 << 20,
            buffers,
            connections,
            threads: None,
            rail_threads: None,
            connect_timeout: Duration::from_secs(5),
            lost_after: Duration::from_secs(10),
            fence_timeout: FENCE_TIMEOUT_DEFAULT,
            pinned: false,
            key: None,
            name: None,
        }
    }

    /// Bytes of the largest block. Senders with larger ones take smaller ones, if the receiver is
    /// their first peer to say so.
    #[must_use]
    pub fn block_bytes(mut self, bytes: u32) -> Self {
        self.block_bytes = bytes;
        self
    }

    /// Buffers of a block each. A sender's transfers share them, and they are its only window; a
    /// receiver has them beside those that connections take, for each of its
    /// [`rail_threads`](Self::rail_threads).
    #[must_use]
    pub fn buffers(mut self, buffers: u32) -> Self {
        self.buffers = Some(buffers);
        self
    }

    /// Connections at once, of all transfers or streams. A receiver refuses one more.
    #[must_use]
    pub fn connections(mut self, connections: u32) -> Self {
        self.connections = connections;
        self
    }

    /// Threads that read a sender's sources, or that check and write a receiver's blocks.
    #[must_use]
    pub fn threads(mut self, threads: u32) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Threads for the connections by each network interface. From 2 on, each has a libfabric
    /// domain and an endpoint of its own, and a receiver listens at further ports, one for each,
    /// which the system chooses and which it tells its senders in the handshake. A stream has a
    /// connection by each thread that pays ([`SendOptions::rails`](super::SendOptions::rails)).
    /// Receivers whose addresses are no IP addresses have one thread, whatever is set.
    #[must_use]
    pub fn rail_threads(mut self, threads: u32) -> Self {
        self.rail_threads = Some(threads);
        self
    }

    /// How long making a connection may take, handshake included. At a receiver it counts from the
    /// peer's first byte, and once more from there to its stream.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long a peer may be silent before its connection is given up.
    #[must_use]
    pub fn lost_after(mut self, silence: Duration) -> Self {
        self.lost_after = silence;
        self
    }

    /// How long a peer may take to say that it writes no more into memory that others wait for: the
    /// slots of a stream that was sent by RMA writes over tcp, once its connection is over. A peer
    /// that has not answered by then, or needed more than half of it three times within ten
    /// minutes, loses its connection, as
    /// [`ConnectionSettings::fence_timeout`](crate::endpoint::ConnectionSettings::fence_timeout)
    /// says; a sender makes it again, as after any loss. It is never longer than
    /// [`lost_after`](Self::lost_after).
    #[must_use]
    pub fn fence_timeout(mut self, timeout: Duration) -> Self {
        self.fence_timeout = timeout;
        self
    }

    /// Whether the buffers are pinned for CUDA, as blocks out of a GPU's memory and into it are
    /// copied fastest. Without a driver, opening fails, and says what is missing.
    #[must_use]
    pub fn pinned(mut self, yes: bool) -> Self {
        self.pinned = yes;
        self
    }

    /// The key that peers must have, too: each side proves to the other that it does, before
    /// anything else is said.
    #[must_use]
    pub fn key(mut self, key: PresharedKey) -> Self {
        self.key = Some(key);
        self
    }

    /// What the side is called in [`metrics`](crate::metrics). Without it, it is called
    /// `stream_sender` or `stream_receiver` with a number.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    pub(in crate::stream) fn check_sender(&self) -> Result<(), StreamError> {
        let block = "4096 to 268435456 bytes";
        setting("block_bytes", self.block_bytes.into(), 4096, 1 << 28, block)?;
        let buffers = self.buffers.unwrap_or(BUFFERS_OF_SENDER);
        setting("buffers", buffers.into(), 2, 4096, "2 to 4096")?;
        setting("connections", self.connections.into(), 1, 4096, "1 to 4096")?;
        self.check()
    }

    pub(in crate::stream) fn check_receiver(&self) -> Result<(), StreamError> {
        let block = "8192 to 268435456 bytes";
        setting("block_bytes", self.block_bytes.into(), 8192, 1 << 28, block)?;
        let buffers = self.buffers_of_receiver();
        setting("buffers", buffers.into(), 2, 65_536, "2 to 65536")?;
        setting("connections", self.connections.into(), 1, 1024, "1 to 1024")?;
        self.check()
    }

    /// Threads that read or write, beside so many for connections.
    pub(in crate::stream) fn workers(&self, lanes: u32) -> u32 {
        self.threads.unwrap_or_else(|| (lanes * 3 / 2).clamp(2, 64))
    }

    /// Buffers of a sender that has so many threads for connections.
    pub(in crate::stream) fn buffers_of_sender(&self, lanes: u32) -> u32 {
        self.buffers
            .unwrap_or_else(|| (BUFFERS_OF_SENDER * lanes).min(4096))
    }

    /// Buffers of each endpoint of a receiver.
    pub(in crate::stream) fn buffers_of_receiver(&self) -> u32 {
        self.buffers.unwrap_or(BUFFERS_OF_RECEIVER)
    }

    /// Threads for connections, by interfaces of this kind. `copies`: what they cost is the
    /// processor's time.
    pub(in crate::stream) fn lanes(&self, copies: bool) -> u32 {
        self.rail_threads.unwrap_or_else(|| match copies {
            true => {
                let processors = std::thread::available_parallelism().map_or(1, usize::from);
                let quarter = u32::try_from(processors / 4).unwrap_or(u32::MAX);
                quarter.clamp(1, RAIL_THREADS_MAX)
            }
            false => 1,
        })
    }

    fn check(&self) -> Result<(), StreamError> {
        let threads = self.workers(1);
        setting("threads", threads.into(), 1, 64, "1 to 64 threads")?;
        let rails = self.rail_threads.unwrap_or(1);
        setting(
            "rail_threads",
            rails.into(),
            1,
            RAIL_THREADS_MAX.into(),
            "1 to 7 threads",
        )?;
        let hour = "1 ms to 1 h";
        time("connect_timeout", self.connect_timeout, 1, 3_600_000, hour)?;
        let day = "10 ms to 24 h";
        time("lost_after", self.lost_after, 10, 86_400_000, day)?;
        time("fence_timeout", self.fence_timeout, 1, 3_600_000, hour)
    }
}

#[cfg(all(test, not(loom)))]
mod documented {
    use super::*;
    use crate::endpoint::testing::documented_settings::{Other, Setting, compare_group};

    #[test]
    fn the_table_of_settings_is_what_the_code_does() {
        let settings: &[Setting<StreamSettings>] = &[
            Setting {
                name: "block_bytes",
                get: |c| c.block_bytes.into(),
                set: |c, v| c.block_bytes(v.count()),
            },
            Setting {
                name: "buffers",
                get: |c| c.buffers.unwrap_or(0).into(),
                set: |c, v| c.buffers(v.count()),
            },
            Setting {
                name: "connections",
                get: |c| c.connections.into(),
                set: |c, v| c.connections(v.count()),
            },
            Setting {
                name: "threads",
                get: |c| c.threads.unwrap_or(0).into(),
                set: |c, v| c.threads(v.count()),
            },
            Setting {
                name: "rail_threads",
                get: |c| c.rail_threads.unwrap_or(0).into(),
                set: |c, v| c.rail_threads(v.count()),
            },
            Setting {
                name: "connect_timeout",
                get: |c| c.connect_timeout.into(),
                set: |c, v| c.connect_timeout(v.time()),
            },
            Setting {
                name: "lost_after",
                get: |c| c.lost_after.into(),
                set: |c, v| c.lost_after(v.time()),
            },
            Setting {
                name: "fence_timeout",
                get: |c| c.fence_timeout.into(),
                set: |c, v| c.fence_timeout(v.time()),
            },
        ];
        let others: &[Other<StreamSettings>] = &[
            ("pinned", |c| c.pinned(true)),
            ("name", |c| c.name("one of many")),
            ("key", |c| {
                let key = PresharedKey::from_bytes(&[7; 16]).expect("long enough");
                c.key(key)
            }),
        ];
        let source = include_str!("settings.rs");
        compare_group(
            source,
            ("StreamSettings", "sender"),
            settings,
            others,
            StreamSettings::of_sender,
            StreamSettings::check_sender,
        );
        compare_group(
            source,
            ("StreamSettings", "receiver"),
            settings,
            others,
            StreamSettings::of_receiver,
            StreamSettings::check_receiver,
        );
    }
}
