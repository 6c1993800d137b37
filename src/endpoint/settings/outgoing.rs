//! `OutgoingSettings`: what an endpoint sends, and how.

use std::time::Duration;

use crate::Error;
use crate::buffer::{HeaderSlotConfig, HeaderSlotManager};
use crate::endpoint::event::{DeadlinePolicy, Inject, Level, Packing};
use crate::endpoint::header_source::HeaderSource;
use crate::endpoint::hub::OutboundSettings;
use crate::endpoint::limits::{check_count, check_deadline};
use crate::endpoint::settings::SettingsOf;
use crate::endpoint::staging::StagingRing;
use crate::fabric::Shape;
use crate::protocol::wire::HeaderMode;

/// What goes out of an endpoint: messages, and one-sided operations. A config's `outgoing` lends
/// this to a closure, as it was set so far.
///
/// | setting | of | unit | default | range |
/// |---|---|---|---|---|
/// | `depth` | send | sends and one-sided operations in flight | 64 | 1 to 65,536 |
/// | `depth` | buffered | sends in flight | 16 | 1 to 65,536 |
/// | `depth` | publish | sends in flight to one subscriber | 16 | 1 to 65,536 |
/// | `depth` | connectionless | sends in flight to one peer | 64 | 1 to 65,536 |
/// | `depth` | receive | one-sided operations in flight, in all | 64 | 1 to 65,536 |
/// | `headers` | send, connectionless | slots and bytes | 256 of 64 B | see [`HeaderSource`] |
/// | `headers` | publish | slots and bytes | 256 of 128 B | see [`HeaderSource`]; at least 18 B |
/// | `header_mode` | send, publish, connectionless | | `Prefixed` | see [`HeaderMode`] |
/// | `shape` | send, buffered | | what the provider's segments allow | see [`Shape`] |
/// | `inject` | send, buffered | | `Auto` | see [`Inject`] |
/// | `packing` | send, publish, connectionless | | `Auto` | see [`Packing`] |
/// | `gather` | send, publish | | `true` | |
/// | `level` | send, buffered, publish, connectionless | | `Sent` | see [`Level`] |
/// | `deadline` | all | time | 30 s | 1 ms to 24 h, or none |
/// | `deadline_policy` | all | | `FailConnection` | see [`DeadlinePolicy`] |
/// | `staging` | all | a ring for memory of a GPU | none | see [`StagingRing`] |
///
/// A frame of packed messages counts as one send against `depth`.
///
/// "Of" names the endpoints that have the setting: [`SendConfig`](crate::endpoint::SendConfig),
/// [`BufferedConfig`](crate::endpoint::BufferedConfig),
/// [`PublishConfig`](crate::endpoint::PublishConfig),
/// [`ConnectionlessConfig`](crate::endpoint::ConnectionlessConfig) and, of one-sided operations
/// alone, [`ReceiveConfig`](crate::endpoint::ReceiveConfig). The others refuse it as they open.
///
/// ```
/// use fabricast::endpoint::{Level, SendConfig};
///
/// let config = SendConfig::default().outgoing(|out| out.depth(16).level(Level::Delivered));
/// # let _ = config;
/// ```
#[derive(Debug, Clone)]
pub struct OutgoingSettings {
    depth: Option<u32>,
    headers: Option<HeaderSource>,
    header_mode: Option<HeaderMode>,
    pub(crate) shape: Option<Shape>,
    inject: Option<Inject>,
    packing: Option<Packing>,
    gather: Option<bool>,
    level: Option<Level>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) deadline_policy: DeadlinePolicy,
    pub(crate) staging: Option<StagingRing>,
}

/// Nothing is set: each endpoint's defaults.
impl Default for OutgoingSettings {
    fn default() -> Self {
        Self {
            depth: None,
            headers: None,
            header_mode: None,
            shape: None,
            inject: None,
            packing: None,
            gather: None,
            level: None,
            deadline: Some(Duration::from_secs(30)),
            deadline_policy: DeadlinePolicy::FailConnection,
            staging: None,
        }
    }
}

impl OutgoingSettings {
    /// The most operations in flight at once. One more is refused with `WouldBlock`: the provider
    /// itself may queue without a bound. On the way to a peer, what its credits allow counts, too.
    #[must_use]
    pub fn depth(mut self, operations: u32) -> Self {
        self.depth = Some(operations);
        self
    }

    /// Where header slots come from: a
    /// [`HeaderSlotConfig`] for slots of this endpoint's own, a
    /// [`HeaderSlotManager`] or a
    /// [`ZeroCopyBufferManager`](crate::buffer::ZeroCopyBufferManager) for those that endpoints of
    /// one domain share. The last one brings data, too, which the endpoint registers as it opens.
    ///
    /// A publisher's slot has 16 bytes of the publication, and 2 of its length in mode `Prefixed`,
    /// beside the header.
    #[must_use]
    pub fn headers(mut self, source: impl Into<HeaderSource>) -> Self {
        self.headers = Some(source.into());
        self
    }

    /// How peers tell headers from payloads in what this side sends; they learn it when the
    /// connection is made. The length in `Fixed` is that of the headers that the caller gives.
    #[must_use]
    pub fn header_mode(mut self, mode: HeaderMode) -> Self {
        self.header_mode = Some(mode);
        self
    }

    /// How header and payload become one message. `None`, the default: [`Shape::Iov`] where the
    /// provider takes two segments a message, else [`Shape::Headroom`]. Never a copy of the
    /// payload: what a shape can't do is refused.
    /// [`ConnectionInfo::shape`](crate::endpoint::ConnectionInfo::shape) says which it is.
    ///
    /// Asking for another one is for payloads that can't be had with headroom on a provider of one
    /// segment (then [`Shape::TwoMessages`]), and for trying out on one machine what another one
    /// needs. A peer whose version does not know [`Shape::TwoMessages`] refuses the connection.
    #[must_use]
    pub fn shape(mut self, shape: Option<Shape>) -> Self {
        self.shape = shape;
        self
    }

    /// Which messages are copied by the provider as they are posted. Only at level
    /// [`Sent`](Level::Sent), and never more than the provider takes;
    /// [`ConnectionInfo::inject`](crate::endpoint::ConnectionInfo::inject) says up to how many
    /// bytes. Outcomes and payloads come back as ever.
    #[must_use]
    pub fn inject(mut self, inject: Inject) -> Self {
        self.inject = Some(inject);
        self
    }

    /// Which messages are packed into frames.
    /// [`SendStats::packed`](crate::stats::SendStats::packed) says how many left.
    #[must_use]
    pub fn packing(mut self, packing: Packing) -> Self {
        self.packing = Some(packing);
        self
    }

    /// Whether the kernel may gather small messages while they stream, for providers that are the
    /// faster for it ([`gathers_below`](crate::fabric::Provider::gathers_below)): it sends what
    /// follows a message together, as soon as that one is acknowledged (Nagle's algorithm).
    ///
    /// It does so only while messages follow each other at once. A lone message leaves as it is
    /// sent. The last ones of a stream leave with the acknowledgement, or by the second poll after
    /// them, whichever is first: who sends a burst, and then neither polls nor waits, may have them
    /// leave 40 ms later. [`SendStats::gathered`](crate::stats::SendStats::gathered) says how many
    /// messages were sent so.
    #[must_use]
    pub fn gather(mut self, gather: bool) -> Self {
        self.gather = Some(gather);
        self
    }

    /// What a message's good outcome says.
    #[must_use]
    pub fn level(mut self, level: Level) -> Self {
        self.level = Some(level);
        self
    }

    /// How long what was posted may take, to one peer; `None` waits for ever, and a peer that is
    /// stopped in the middle is then noticed by its silence alone
    /// ([`lost_after`](crate::endpoint::ConnectionSettings::lost_after)), if at all. Deadlines of a
    /// second and more are kept to 10 ms.
    #[must_use]
    pub fn deadline(mut self, deadline: Option<Duration>) -> Self {
        self.deadline = deadline;
        self
    }

    /// What happens when it takes longer: that peer's connection fails, or the application is told
    /// by an event.
    #[must_use]
    pub fn deadline_policy(mut self, policy: DeadlinePolicy) -> Self {
        self.deadline_policy = policy;
        self
    }

    /// What lies in a GPU's memory goes by way of this ring, where the fabric takes none: payloads
    /// of messages, and one-sided operations on such memory. Endpoints may share one. Without it
    /// they are refused. A publication is copied once, for all its subscribers. Messages are
    /// received into a GPU's memory by
    /// [`deliver_to`](crate::endpoint::IncomingSettings::deliver_to).
    #[must_use]
    pub fn staging(mut self, ring: &StagingRing) -> Self {
        self.staging = Some(ring.clone());
        self
    }

    pub(crate) fn depth_of(&self, of: SettingsOf) -> u32 {
        let default = match of {
            SettingsOf::Buffered | SettingsOf::Publish => 16,
            _ => 64,
        };
        self.depth.unwrap_or(default)
    }

    pub(crate) fn headers_of(&self, of: SettingsOf) -> HeaderSource {
        let slot_size = match of {
            SettingsOf::Publish => 128,
            _ => 64,
        };
        let own = || {
            HeaderSource::Own(HeaderSlotConfig {
                slots: 256,
                slot_size,
            })
        };
        self.headers.clone().unwrap_or_else(own)
    }

    pub(crate) fn mode(&self) -> HeaderMode {
        self.header_mode.unwrap_or(HeaderMode::Prefixed)
    }

    /// What a hub needs to know in order to send, with these headers, on one connection.
    pub(crate) fn outbound_of(
        &self,
        of: SettingsOf,
        headers: HeaderSlotManager,
    ) -> OutboundSettings {
        let depth = self.depth_of(of);
        OutboundSettings {
            headers,
            header_mode: self.mode(),
            depth,
            total: depth,
            level: self.level.unwrap_or(Level::Sent),
            shape: self.shape,
            inject: self.inject.unwrap_or(Inject::Auto),
            packing: self.packing.unwrap_or_default(),
            gather: self.gather.unwrap_or(true) && SettingsOf::GATHERING.contains(&of),
            deadline: self.deadline,
            policy: self.deadline_policy,
            staging: self.staging.clone(),
            long: true,
            on_abandoned: None,
        }
    }

    pub(crate) fn check(&self, of: SettingsOf) -> Result<(), Error> {
        self.check_owner(of)?;
        let reason = match of {
            SettingsOf::Receive => "must be 1 to 65536 operations",
            _ => "must be 1 to 65536 sends",
        };
        check_count("depth", self.depth_of(of), 65_536, reason)?;
        check_deadline("deadline", self.deadline)
    }

    /// Nothing is set that the endpoint does not have.
    fn check_owner(&self, of: SettingsOf) -> Result<(), Error> {
        let with_headers = SettingsOf::WITH_HEADERS;
        of.refuse_unless(with_headers, "headers", self.headers.as_ref())?;
        of.refuse_unless(with_headers, "header_mode", self.header_mode.as_ref())?;
        of.refuse_unless(SettingsOf::OF_ONE, "shape", self.shape.as_ref())?;
        of.refuse_unless(SettingsOf::OF_ONE, "inject", self.inject.as_ref())?;
        of.refuse_unless(SettingsOf::PACKING, "packing", self.packing.as_ref())?;
        of.refuse_unless(SettingsOf::GATHERING, "gather", self.gather.as_ref())?;
        of.refuse_unless(SettingsOf::SENDING, "level", self.level.as_ref())
    }
}
