//! The settings of a connectionless endpoint.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::buffer::{
    HeaderSlotConfig, HeaderSlotManager, SharedBufferManager, ZeroCopyBufferManager,
};
use crate::endpoint::connectionless::event::PeerId;
use crate::endpoint::core::conn_table::CONNECTIONS_MAX;
use crate::endpoint::delivery::DeviceDelivery;
use crate::endpoint::event::{DeadlinePolicy, Level};
use crate::endpoint::header_source::HeaderSource;
use crate::endpoint::limits::{
    PATIENCE, check_count, check_deadline, check_patience, check_timeout, config,
};
use crate::endpoint::protocol::liveness::Patience;
use crate::endpoint::protocol::wire::HeaderMode;
use crate::endpoint::staging::StagingRing;
use crate::fabric::EndpointSettings;
use crate::memory::Region;

/// Most peers: two connections with each, if both sides begin at once.
const PEERS_MAX: u32 = CONNECTIONS_MAX / 2;

/// The settings of a [`ConnectionlessEndpoint`](crate::ConnectionlessEndpoint).
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `max_peers` | peers at once | 64 | 1 to 32,768 |
/// | `accept_unknown` | | yes | |
/// | `add_on_send` | | yes | |
/// | `max_message` | bytes of the largest message taken, header included | 65,536 | 114 to 1 GiB |
/// | `slots` | buffers of the receive pool | 10 × `max_peers` | 8 × `max_peers` to 1,048,576 |
/// | `receive_depth` | messages granted to each peer at once | 32 | 1 to 65,536 |
/// | `depth` | sends in flight to one peer | 64 | 1 to 65,536 |
/// | `total_depth` | sends in flight to all of them | 256 | 1 to 65,536 |
/// | `header_slots` | slots and bytes | 256 of 64 B | see [`HeaderSlotConfig`] |
/// | `buffers` | | none | in the place of `header_slots`: see [`ZeroCopyBufferManager`] |
/// | `header_mode` | how this side's headers are told from payloads | `Prefixed` | |
/// | `level` | what a completion says | `Sent` | |
/// | `send_deadline` | time | 30 s | 1 ms to 24 h, or none |
/// | `deadline_policy` | | `FailConnection` | |
/// | `connect_timeout` | time | 5 s | 1 ms to 1 h |
/// | `close_timeout` | time | 5 s | 1 ms to 1 h |
/// | `unresponsive_after` | time | 5 s | 10 ms to 1 h, or none |
/// | `lost_after` | time | 60 s | 10 ms to 24 h and above `unresponsive_after`, or none |
/// | `endpoint` | | the provider's own | see [`EndpointSettings`] |
///
/// The pool takes `slots × max_message` bytes. Each peer is granted as many messages as
/// `receive_depth` says, but so that those that may still come find room for one, twice: two sides
/// that begin at the same time have two connections.
pub struct ConnectionlessConfig {
    pub(super) max_peers: u32,
    pub(super) accept_unknown: bool,
    pub(super) add_on_send: bool,
    pub(super) max_message: usize,
    pub(super) slots: Option<u32>,
    pub(super) pool: Option<SharedBufferManager>,
    pub(super) receive_depth: u32,
    pub(super) depth: u32,
    pub(super) total_depth: u32,
    pub(super) data: Option<Arc<Region>>,
    pub(super) headers: HeaderSource,
    pub(super) header_mode: HeaderMode,
    pub(super) level: Level,
    pub(super) send_deadline: Option<Duration>,
    pub(super) deadline_policy: DeadlinePolicy,
    pub(super) connect_timeout: Duration,
    pub(super) close_timeout: Duration,
    pub(super) patience: Patience,
    pub(super) endpoint: EndpointSettings,
    pub(super) staging: Option<StagingRing>,
    pub(super) delivery: Option<DeviceDelivery>,
    pub(super) on_abandoned: Option<OnAbandoned>,
}

pub(super) type OnAbandoned = Box<dyn FnMut(PeerId, u64) + Send>;

impl Default for ConnectionlessConfig {
    fn default() -> Self {
        Self {
            max_peers: 64,
            accept_unknown: true,
            add_on_send: true,
            max_message: 64 * 1024,
            slots: None,
            pool: None,
            receive_depth: 32,
            depth: 64,
            total_depth: 256,
            data: None,
            headers: HeaderSource::Own(HeaderSlotConfig::default()),
            header_mode: HeaderMode::Prefixed,
            level: Level::Sent,
            send_deadline: Some(Duration::from_secs(30)),
            deadline_policy: DeadlinePolicy::FailConnection,
            connect_timeout: Duration::from_secs(5),
            close_timeout: Duration::from_secs(5),
            patience: PATIENCE,
            endpoint: EndpointSettings::default(),
            staging: None,
            delivery: None,
            on_abandoned: None,
        }
    }
}

impl ConnectionlessConfig {
    /// Peers at once, those that came by themselves included; one more is refused.
    #[must_use]
    pub fn max_peers(mut self, peers: u32) -> Self {
        self.max_peers = peers;
        self
    }

    /// Whether a peer that was not added may begin. If not, it is refused.
    #[must_use]
    pub fn accept_unknown(mut self, accept: bool) -> Self {
        self.accept_unknown = accept;
        self
    }

    /// Whether the first send to an address adds the peer. If not, it is refused.
    #[must_use]
    pub fn add_on_send(mut self, add: bool) -> Self {
        self.add_on_send = add;
        self
    }

    /// Bytes of the largest message that this side takes, header included. Peers learn it.
    #[must_use]
    pub fn max_message(mut self, bytes: usize) -> Self {
        self.max_message = bytes;
        self
    }

    /// Buffers of the receive pool, which all peers share.
    #[must_use]
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = Some(slots);
        self
    }

    /// A pool of the caller's instead: `max_message` and `slots` are its own. It must not be used
    /// for anything else.
    #[must_use]
    pub fn pool(mut self, pool: &SharedBufferManager) -> Self {
        self.pool = Some(pool.clone());
        self
    }

    /// Messages that each peer may send ahead: its credits.
    #[must_use]
    pub fn receive_depth(mut self, messages: u32) -> Self {
        self.receive_depth = messages;
        self
    }

    /// The most sends in flight to one peer; one more is refused with `WouldBlock`.
    #[must_use]
    pub fn depth(mut self, sends: u32) -> Self {
        self.depth = sends;
        self
    }

    /// The most sends in flight to all peers together. What was sent to a peer that is gone counts
    /// until the provider is done with it.
    #[must_use]
    pub fn total_depth(mut self, sends: u32) -> Self {
        self.total_depth = sends;
        self
    }

    /// Header slots of this endpoint's own.
    #[must_use]
    pub fn header_slots(mut self, config: HeaderSlotConfig) -> Self {
        self.headers = HeaderSource::Own(config);
        self
    }

    /// Header slots shared with other endpoints of the same domain.
    #[must_use]
    pub fn shared_headers(mut self, headers: &HeaderSlotManager) -> Self {
        self.headers = HeaderSource::Shared(headers.clone());
        self
    }

    /// Data and header slots in one: the endpoint registers the data with its domain as it opens,
    /// for as long as it lives, and takes its header slots from there. Both are shared with the
    /// other endpoints that use it.
    #[must_use]
    pub fn buffers(mut self, buffers: &ZeroCopyBufferManager) -> Self {
        self.data = Some(Arc::clone(buffers.region()));
        self.shared_headers(buffers.headers())
    }

    /// Sends payloads that lie in a GPU's memory by way of this ring, where the fabric takes none;
    /// endpoints may share one. Without it such a payload is refused.
    #[must_use]
    pub fn staging(mut self, ring: &StagingRing) -> Self {
        self.staging = Some(ring.clone());
        self
    }

    /// Copies the payloads of messages to a GPU's memory: they come as
    /// [`ConnectionlessEvent::DeviceMessage`](crate::endpoint::ConnectionlessEvent::DeviceMessage).
    /// As [`ReceiveConfig::deliver_to`](crate::endpoint::ReceiveConfig::deliver_to).
    #[must_use]
    pub fn deliver_to(mut self, delivery: DeviceDelivery) -> Self {
        self.delivery = Some(delivery);
        self
    }

    /// How peers tell headers from payloads in what this side sends; they learn it when they are
    /// first met.
    #[must_use]
    pub fn header_mode(mut self, mode: HeaderMode) -> Self {
        self.header_mode = mode;
        self
    }

    /// What a completion says.
    #[must_use]
    pub fn level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    /// How long a posted send may take; `None` waits for ever.
    #[must_use]
    pub fn send_deadline(mut self, deadline: Option<Duration>) -> Self {
        self.send_deadline = deadline;
        self
    }

    /// What happens when a posted send takes longer: the peer is given up, or the application is
    /// told.
    #[must_use]
    pub fn deadline_policy(mut self, policy: DeadlinePolicy) -> Self {
        self.deadline_policy = policy;
        self
    }

    /// How long a peer may take to answer the first time, on either side.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long a goodbye may take.
    #[must_use]
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.close_timeout = timeout;
        self
    }

    /// Reports a peer of which nothing was heard for so long; nothing else follows.
    #[must_use]
    pub fn unresponsive_after(mut self, silence: Option<Duration>) -> Self {
        self.patience.unresponsive = silence;
        self
    }

    /// Gives a peer up of which nothing was heard for so long. No provider of this kind tells a
    /// receiver that a sender died: this does.
    #[must_use]
    pub fn lost_after(mut self, silence: Option<Duration>) -> Self {
        self.patience.lost = silence;
        self
    }

    /// What the endpoint asks of the provider: queue sizes, segments, traffic class.
    #[must_use]
    pub fn endpoint(mut self, settings: EndpointSettings) -> Self {
        self.endpoint = settings;
        self
    }

    /// Called with each key that has no outcome yet when the endpoint is dropped, from within the
    /// drop: a panic of it is logged, and goes no further.
    #[must_use]
    pub fn on_abandoned(mut self, hear: impl FnMut(PeerId, u64) + Send + 'static) -> Self {
        self.on_abandoned = Some(Box::new(hear));
        self
    }

    /// Buffers of the receive pool.
    pub(super) fn pool_slots(&self) -> usize {
        match (&self.pool, self.slots) {
            (Some(pool), _) => pool.slots(),
            (None, Some(slots)) => slots as usize,
            (None, None) => 10 * self.max_peers as usize,
        }
    }

    pub(super) fn check(&self, receives_min: u32) -> Result<(), Error> {
        let peers = "must be 1 to 32768 peers";
        check_count("max_peers", self.max_peers, PEERS_MAX, peers)?;
        let sends = "must be 1 to 65536 sends";
        check_count("depth", self.depth, 65_536, sends)?;
        check_count("total_depth", self.total_depth, 65_536, sends)?;
        let messages = "must be 1 to 65536 messages";
        check_count("receive_depth", self.receive_depth, 65_536, messages)?;
        let slots = self.pool_slots();
        if slots < (2 * receives_min * self.max_peers) as usize || slots > 1 << 20 {
            let reason = "must be 8 for each of max_peers, to 1048576";
            return Err(config("slots", slots.to_string(), reason));
        }
        let bytes = self
            .pool
            .as_ref()
            .map_or(self.max_message, SharedBufferManager::slot_size);
        if !(114..=1 << 30).contains(&bytes) {
            let reason = "must be 114 bytes, for hellos, to 1 GiB";
            return Err(config("max_message", bytes.to_string(), reason));
        }
        if let Some(delivery) = &self.delivery {
            delivery.check(bytes)?;
        }
        check_timeout("connect_timeout", self.connect_timeout)?;
        check_timeout("close_timeout", self.close_timeout)?;
        check_patience(&self.patience)?;
        check_deadline("send_deadline", self.send_deadline)
    }
}

impl fmt::Debug for ConnectionlessConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionlessConfig")
            .field("max_peers", &self.max_peers)
            .field("depth", &self.depth)
            .field("receive_depth", &self.receive_depth)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::endpoint::documented_settings::{Setting, compare};

    #[test]
    fn the_table_of_settings_is_what_the_code_does() {
        let settings: &[Setting<ConnectionlessConfig>] = &[
            Setting {
                name: "max_peers",
                get: |c| c.max_peers.into(),
                set: |c, v| c.slots(1 << 20).max_peers(v.count()),
            },
            Setting {
                name: "max_message",
                get: |c| c.max_message.into(),
                set: |c, v| c.max_message(v.bytes()),
            },
            Setting {
                name: "slots",
                get: |c| c.pool_slots().into(),
                set: |c, v| c.slots(v.count()),
            },
            Setting {
                name: "receive_depth",
                get: |c| c.receive_depth.into(),
                set: |c, v| c.receive_depth(v.count()),
            },
            Setting {
                name: "depth",
                get: |c| c.depth.into(),
                set: |c, v| c.depth(v.count()),
            },
            Setting {
                name: "total_depth",
                get: |c| c.total_depth.into(),
                set: |c, v| c.total_depth(v.count()),
            },
            Setting {
                name: "send_deadline",
                get: |c| c.send_deadline.into(),
                set: |c, v| c.send_deadline(v.limit()),
            },
            Setting {
                name: "connect_timeout",
                get: |c| c.connect_timeout.into(),
                set: |c, v| c.connect_timeout(v.time()),
            },
            Setting {
                name: "close_timeout",
                get: |c| c.close_timeout.into(),
                set: |c, v| c.close_timeout(v.time()),
            },
            Setting {
                name: "unresponsive_after",
                get: |c| c.patience.unresponsive.into(),
                set: |c, v| c.lost_after(None).unresponsive_after(v.limit()),
            },
            Setting {
                name: "lost_after",
                get: |c| c.patience.lost.into(),
                set: |c, v| c.unresponsive_after(None).lost_after(v.limit()),
            },
        ];
        compare(
            include_str!("config.rs"),
            "ConnectionlessConfig",
            settings,
            |config| config.check(4),
        );
    }
}
