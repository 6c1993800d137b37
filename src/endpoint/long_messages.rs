//! `LongMessages`: where messages go that are too long for a receive buffer.

use std::time::{Duration, Instant};

use crate::Error;
use crate::buffer::{DeviceBufferManager, SharedBufferManager};
use crate::endpoint::limits::check_deadline;

/// Bytes in a second by which a long message may take longer than its deadline.
const SLOWEST: u64 = 1 << 20;

/// Where long messages go
/// ([`IncomingSettings::long_messages`](crate::endpoint::IncomingSettings::long_messages)).
/// [`ReceiveConfig`](crate::endpoint::ReceiveConfig),
/// [`SubscribeConfig`](crate::endpoint::SubscribeConfig) and
/// [`ConnectionlessConfig`](crate::endpoint::ConnectionlessConfig) have it; every endpoint that
/// sends sends them to peers that take them.
///
/// A message that is longer than the receive buffers, or than what the provider takes in one piece,
/// is offered by its sender, which writes it into a slot of the pool when there is one: no byte of
/// it is copied by this library on either side, but where peers are late (below). While one is
/// under way, its sender sends nothing else on that connection, so it keeps its place among the
/// others.
///
/// A message is handed out when nobody can write into it any more: when all connections of the
/// domain have confirmed that, or are closed. Where they can't (`FI_EP_RDM`, but for verbs), each
/// is copied once, out of memory of its connection's own (`ReceiveStats::long_copied`); as many
/// connections as the pool has slots get some in the endpoint's life, and long messages of others
/// are refused.
///
/// A peer that confirms late holds nobody's messages up: one that has waited for eight times
/// as long as is usual (1 ms to 10 ms) is copied into another slot of the pool, and handed out
/// ([`Message::is_copied`](crate::endpoint::Message::is_copied), `ReceiveStats::late_copied`). From
/// then on, until all are in time again, messages land in memory of their connections' own, as many
/// bytes as the pool has at most, and are copied out of there without a wait. A sender for which
/// none is left waits until more than half of the slots are free. A message that lies in a GPU's
/// memory, or for which no slot is free, waits on, until those that are late are closed
/// ([`fence_timeout`](crate::endpoint::ConnectionSettings::fence_timeout)).
///
/// A message takes its slot until the application drops it. With no slot free, it waits; its
/// sender's deadline counts. Once it has a slot, [`deadline`](Self::deadline) counts: a sender that
/// is not done by then loses its connection
/// ([`CloseReason::LongDeadline`](crate::endpoint::CloseReason::LongDeadline)), and the slot is
/// free again.
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `deadline` | time | 60 s, and 1 s for each MiB | 1 ms to 24 h, or none |
#[derive(Debug, Clone)]
pub struct LongMessages {
    pub(crate) pool: SharedBufferManager,
    pub(crate) device: Option<DeviceBufferManager>,
    pub(crate) deadline: Option<Duration>,
}

impl LongMessages {
    /// Messages, headers included, up to the slot size of this pool. It must not be used for
    /// anything else, and needs no registration.
    pub fn new(pool: SharedBufferManager) -> Self {
        Self {
            pool,
            device: None,
            deadline: Some(Duration::from_secs(60)),
        }
    }

    /// Has senders write into these buffers in a GPU's memory instead, where the provider lets
    /// them: such a message comes as
    /// [`ReceiveEvent::DeviceMessage`](crate::ReceiveEvent::DeviceMessage), or as the event of that
    /// name that the endpoint has, and no byte of its payload was in the host's memory. Its payload
    /// begins behind its header, at a multiple of 256 bytes where there is room for that and the
    /// header mode is [`Fixed`](crate::endpoint::HeaderMode::Fixed).
    ///
    /// Where the provider does not reach that memory by itself, or nothing but the end of an
    /// endpoint ends what a peer may write (`FI_EP_RDM`, but for verbs), and for messages that are
    /// longer than its slots, the pool of the host is used as without this. The pool must not be
    /// used for anything else, nor for
    /// [`deliver_to`](crate::endpoint::IncomingSettings::deliver_to), and needs no registration.
    #[must_use]
    pub fn on_device(mut self, pool: DeviceBufferManager) -> Self {
        self.device = Some(pool);
        self
    }

    /// How long a sender may take from the moment when its message has a slot until all of it is
    /// there; a second for each MiB of the message is added. `None` waits for as long as the sender
    /// shows signs of life, so that a sender which never writes takes a slot for ever.
    #[must_use]
    pub fn deadline(mut self, deadline: Option<Duration>) -> Self {
        self.deadline = deadline;
        self
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        check_deadline("long_messages.deadline", self.deadline)
    }

    /// Until when a message of so many bytes must be whole that has its slot now.
    pub(crate) fn whole_by(&self, now: Instant, len: u64) -> Option<Instant> {
        let time = self.deadline? + Duration::from_secs(len / SLOWEST);
        now.checked_add(time)
    }

    /// Bytes of the longest message that may come to the host's memory.
    pub(crate) fn host_limit(&self) -> usize {
        self.pool.slot_size()
    }
}

#[cfg(all(test, not(loom)))]
mod documented {
    use super::*;
    use crate::endpoint::testing::documented_settings::{Setting, compare_with};

    #[test]
    fn the_table_of_settings_is_what_the_code_does() {
        let settings: &[Setting<LongMessages>] = &[Setting {
            name: "deadline",
            get: |c| c.deadline.into(),
            set: |c, v| c.deadline(v.limit()),
        }];
        let new = || LongMessages::new(SharedBufferManager::allocate(1, 64).expect("memory"));
        let source = include_str!("long_messages.rs");
        compare_with(source, "LongMessages", settings, new, LongMessages::check);
    }
}
