//! Streams: files, or other runs of bytes, from storage to one or many peers, checked, and
//! continued where they were cut.

mod attributes;
pub(crate) mod auth;
mod block_set;
mod blocks;
#[cfg(test)]
#[path = "tests/chaos.rs"]
mod chaos;
pub(crate) mod content_hash;
mod copy_streams;
pub(crate) mod digest;
mod error;
mod file_attributes;
pub(crate) mod handshake;
#[cfg(any(test, fuzzing))]
#[path = "testing/hostile.rs"]
pub(crate) mod hostile;
mod identity;
pub(crate) mod incoming;
mod interface;
pub(crate) mod journal;
mod limits;
mod manifest;
mod meter;
mod name;
mod network;
mod open_files;
mod outbox;
pub(crate) mod outgoing;
mod pack;
mod port;
mod rail;
mod rate;
mod receiver;
#[cfg(all(test, not(loom)))]
#[path = "testing/rehearsal/mod.rs"]
mod rehearsal;
mod report;
mod sender;
mod settings;
#[cfg(test)]
#[path = "tests/simulation.rs"]
mod simulation;
mod sink;
mod slots;
mod source;
#[cfg(all(test, not(loom)))]
#[path = "tests/stall.rs"]
mod stall_tests;
pub(crate) mod sums;
mod through_gpu;
mod timeline;
pub(crate) mod wire;
mod workers;

use std::time::Duration;

use crate::event_loop::{LoopConfig, WaitMode};

pub use attributes::Attribute;
pub use auth::{KEY_LEN_MAX, KEY_LEN_MIN, PresharedKey};
pub use block_set::BlockSet;
pub use blocks::{Block, BlockPlan};
pub use content_hash::HASHED_BLOCK_MIN;
pub use digest::{StreamDigest, crc32c};
pub use error::{RefusalCode, StreamError, StreamViolation};
pub use journal::JournalError;
pub use limits::Limits;
pub use manifest::{Entry, EntryKind, EntryProblem, Manifest, ManifestError, Modified, Owner};
pub use name::{COMPONENT_LEN_MAX, NAME_LEN_MAX, NameError, RelativeName};
pub use receiver::{Arrival, ReceiverConfig, StreamEvent, StreamReceiver};
pub use report::{Stalls, StreamReport};
pub use sender::{
    Deletion, Peer, PeerOutcome, PeerProgress, SendOptions, SenderConfig, SlowPeer, StreamSender,
    Transfer, Transport,
};
pub use settings::StreamSettings;
pub use sink::{
    BlockSink, CheckedBlock, DeviceSink, DirectorySink, DiscardSink, InMemory, Kept, LinkTargets,
    MemorySink, OnDevice, ReadBack, SinkError, SinkFactory, Stop, StreamOffer,
};
pub use source::{
    BlockSource, BufferSource, DeviceSource, FileSource, FileSourceBuilder, LeftOut, Skipped,
    SourceError, SourceLinks,
};
pub use through_gpu::{DeviceBlock, HookError, ThroughGpu};
pub use timeline::{Timeline, TimelineSample};
pub use wire::{StreamIdentity, WireError};

/// A loop that looks around for a moment before it sleeps, since while blocks are flowing, the next
/// one is never far; unless there are so few processors that it would do that in place of a thread
/// which reads, or writes, or has the other side.
fn loop_config() -> LoopConfig {
    const THREADS_OF_BOTH_SIDES: usize = 4;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if processors < THREADS_OF_BOTH_SIDES {
        return LoopConfig::default().mode(WaitMode::Block);
    }
    let window = Duration::from_micros(50);
    LoopConfig::default().mode(WaitMode::Adaptive { window })
}
