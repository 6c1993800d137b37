//! `fcast_settings`: the settings of all endpoints in one struct.

#![allow(unsafe_code)] // What C calls.

use std::sync::Arc;
use std::time::Duration;

use fabricast::Region;
use fabricast::buffer::{HeaderSlotConfig, ZeroCopyBufferManager};
use fabricast::endpoint::{
    AcceptPolicy, ConnectionSettings, DeadlinePolicy, DeviceDelivery, HeaderMode, IncomingSettings,
    Inject, Keepalive, Level, LongMessages, OutgoingSettings, Packing, ReconnectPolicy,
};
use fabricast::fabric::Shape;

use crate::device::{fcast_device_pool, fcast_staging};
use crate::handle::{DEVICE_POOLS, POOLS, REGIONS, STAGINGS};
use crate::headers::{self, fcast_headers};
use crate::pointer::Sized0;
use crate::pool::fcast_pool;
use crate::region::fcast_region;
use crate::settings_of::Whose;
use crate::status::Failure;

/// What goes out, and the region that it goes out of where a send names none.
pub(crate) type Outgoing = (OutgoingSettings, Option<Arc<Region>>);

/// In place of a time: none, never.
pub const FCAST_NEVER: u32 = u32::MAX;
/// In place of a number of bytes: none at all.
pub const FCAST_OFF: u32 = u32::MAX;

/// What a message begins with: the header's length and the header.
pub const FCAST_HEADER_PREFIXED: u32 = 0;
/// Every message begins with a header of `header_fixed` bytes.
pub const FCAST_HEADER_FIXED: u32 = 1;
/// Nothing says where the header ends: the receiver gets header and payload as one run.
pub const FCAST_HEADER_RAW: u32 = 2;

/// Header and payload become a message in the best way that the provider has.
pub const FCAST_SHAPE_AUTO: u32 = 0;
/// One send of several segments.
pub const FCAST_SHAPE_IOV: u32 = 1;
/// The header is written right in front of the payload, whose pool has headroom.
pub const FCAST_SHAPE_HEADROOM: u32 = 2;
/// Header and payload are two messages of the provider's.
pub const FCAST_SHAPE_TWO_MESSAGES: u32 = 3;

/// How an endpoint is opened, of whatever kind it is. 0 in a field is the default of that kind; a
/// field that the kind does not have must be 0, else opening it fails with FCAST_INVALID and says
/// so. Ranges and defaults are those of fabricast's ConnectionSettings, OutgoingSettings and
/// IncomingSettings, and a value out of range is refused with words that name the field.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_settings {
    /// sizeof(fcast_settings).
    pub size: usize,

    /// How long making a connection may take, in milliseconds. Default 5,000.
    pub connect_timeout_ms: u32,
    /// How long the goodbye may take when the peer begins it. Default 5,000.
    pub close_timeout_ms: u32,
    /// Silence of a peer that is told as FCAST_EVENT_UNRESPONSIVE. Default 5,000; FCAST_NEVER.
    pub unresponsive_after_ms: u32,
    /// Silence of a peer that ends its connection. Default 60,000; FCAST_NEVER.
    pub lost_after_ms: u32,
    /// Time from which the kernel ends a connection whose data is not acknowledged (TCP).
    pub tcp_user_timeout_ms: u32,
    /// Has the kernel probe connections that carry nothing for so many seconds, and end those where
    /// nothing answers (TCP; not of connectionless endpoints). Default 10 where one of the next two
    /// is set; all three 0: it does not.
    pub keepalive_idle_s: u32,
    /// Seconds between probes. Default 5.
    pub keepalive_interval_s: u32,
    /// Probes without an answer that end a connection, 1 to 127. Default 3.
    pub keepalive_probes: u32,
    /// First delay before a connection is made again; 0: it is not.
    pub reconnect_first_ms: u32,
    /// Largest delay, to which it doubles; 0: it stays as the first.
    pub reconnect_max_ms: u32,
    /// Attempts after which it is given up; 0: no limit.
    pub reconnect_attempts: u32,
    /// Connections at once, of those who listen and of subscribers.
    pub max_connections: u32,
    /// Windows that this side exposes at once.
    pub windows: u32,
    /// 1: each connection is asked for by FCAST_EVENT_REQUEST.
    pub ask: u32,

    /// Operations in flight at once.
    pub depth: u32,
    /// Header slots of the endpoint's own. Default 256.
    pub header_slots: u32,
    /// Bytes of a header slot, 1 to 4,096. Default 64.
    pub header_slot_size: u32,
    /// FCAST_HEADER_PREFIXED, FCAST_HEADER_FIXED or FCAST_HEADER_RAW, of who sends. A receiver and
    /// a subscriber refuse it, and learn it from each peer as the connection is made.
    pub header_mode: u32,
    /// Bytes of each header in the mode FCAST_HEADER_FIXED.
    pub header_fixed: u32,
    /// FCAST_SHAPE_AUTO or another.
    pub shape: u32,
    /// Messages of up to so many bytes are copied by the provider as they are posted; FCAST_OFF.
    pub inject: u32,
    /// Messages of up to so many bytes are packed with others; FCAST_OFF.
    pub packing: u32,
    /// 1: the kernel does not gather small messages.
    pub no_gather: u32,
    /// 1: a send completes when the message is in the peer's memory.
    pub delivered: u32,
    /// How long an operation may take. Default 30,000; FCAST_NEVER.
    pub deadline_ms: u32,
    /// 1: an operation that is late is told by FCAST_EVENT_LATE; else its connection ends.
    pub tell_late: u32,

    /// Bytes of the largest message that comes in, header included. Default 65,536.
    pub max_message: u32,
    /// Buffers of the receive pool.
    pub slots: u32,
    /// Messages that each peer may send ahead. Default 32.
    pub credits: u32,

    /// Of a `pool` that several endpoints share: buffers that are kept for this one.
    pub pool_reserved: u32,
    /// The most buffers that it takes of such a `pool`, at least `pool_reserved`; 0: the pool is
    /// this endpoint's alone.
    pub pool_most: u32,

    /// How long a sender may take from when its long message has a slot of `long_pool` until all of
    /// it is there; a second for each MiB is added. Default 60,000; FCAST_NEVER.
    pub long_deadline_ms: u32,

    /// Buffered senders and publishers: FCAST_FORMAT_COMPACT or FCAST_FORMAT_NETIO3; who receives
    /// must know it.
    pub format: u32,
    /// Buffered senders and publishers: how many buffers. Default 32; of publishers 64.
    pub buffers: u32,
    /// Buffered senders and publishers: bytes of a buffer. Default 65,536; of publishers 61,440: a
    /// subscriber's `max_message` has to be 18 more.
    pub buffer_size: u32,
    /// Buffered senders and publishers: how long a message waits for others, in microseconds.
    /// Default 1,000; FCAST_NEVER: until the buffer is full or is flushed.
    pub flush_interval_us: u32,
    /// Buffered senders: packed buffers that wait to be sent. Default 8.
    pub waiting: u32,
    /// Buffered publishers: tags whose messages are being packed at once; for one more, the buffer
    /// that began first leaves before its time. Default 32.
    pub tags: u32,

    /// Connectionless endpoints: peers at once. Default 64.
    pub max_peers: u32,
    /// Connectionless endpoints: 1: peers that were not added are refused.
    pub refuse_unknown: u32,
    /// Connectionless endpoints: 1: a send to an address does not add a peer.
    pub no_add_on_send: u32,
    /// Connectionless endpoints: sends in flight to all peers together. Default 256.
    pub total_depth: u32,

    /// Publishers: publications that are not over for everybody. Default 256.
    pub publications: u32,
    /// Publishers: FCAST_SLOW_DROP or another; what becomes of what a subscriber has no room for.
    pub slow: u32,
    /// Publishers: publications that wait for one subscriber, where `slow` lets them.
    pub slow_queue: u32,
    /// Publishers: how long they wait, in milliseconds.
    pub slow_ms: u32,
    /// Publishers: subscriptions in all; subscribers: tags wanted of one publisher.
    pub subscriptions: u32,
    /// Publishers: subscriptions of one subscriber. Default 1,024.
    pub subscriptions_per_connection: u32,
    /// Publishers: 1: FCAST_EVENT_PUBLISHED_TO comes for those who got it, too.
    pub tell_sent: u32,

    /// A pool of the program's instead of one of the endpoint's own: that of what comes in, or of a
    /// buffered sender's or publisher's buffers. Those that receive and share one say what they
    /// take of it: `pool_most`.
    pub pool: fcast_pool,
    /// The memory that is sent where a send names none. It need not be registered: the endpoint
    /// does that, for as long as it lives.
    pub region: fcast_region,
    /// What a GPU's memory goes out by where the provider can't reach it; {0}: it is refused.
    pub staging: fcast_staging,
    /// The buffers in a GPU's memory to which payloads that come in are copied: they are told by
    /// FCAST_EVENT_DEVICE_MESSAGE. {0}: they stay in the host's memory.
    pub deliver_to: fcast_device_pool,
    /// Takes messages that are longer than `max_message`, up to the slot size of this pool: their
    /// senders write them into it, without a copy. It must be used for nothing else, and needs no
    /// registration. A message has its slot until it is released. Each connection takes two more of
    /// `slots`. {0}: senders may not send them.
    pub long_pool: fcast_pool,
    /// Beside `long_pool`: buffers in a GPU's memory that senders write into instead, where the
    /// provider reaches it: such messages are told as with `deliver_to`, whose buffers must be
    /// others.
    pub long_device: fcast_device_pool,
    /// How long a peer may take to say that nothing is under way any more of what it began, where
    /// memory that peers of the domain could reach is to come back; then its connection ends.
    /// Default 2,000. Not of connectionless endpoints.
    pub fence_timeout_ms: u32,
    /// 0.
    pub reserved: u32,
    /// Header slots that other endpoints of the domain use, too, in place of the endpoint's own:
    /// `header_slots` and `header_slot_size` must be 0 then.
    pub headers: fcast_headers,
}

// SAFETY: C's layout, a `usize` first; 0 is a value of all its fields.
unsafe impl Sized0 for fcast_settings {}

/// A time, where 0 is what was set so far.
fn time(ms: u32) -> Option<Duration> {
    (ms != 0).then(|| Duration::from_millis(u64::from(ms)))
}

/// A time that may be none, where 0 is what was set so far.
fn or_never(ms: u32) -> Option<Option<Duration>> {
    match ms {
        0 => None,
        FCAST_NEVER => Some(None),
        ms => Some(Some(Duration::from_millis(u64::from(ms)))),
    }
}

impl fcast_settings {
    pub(crate) fn connection(&self, mut of: ConnectionSettings) -> ConnectionSettings {
        if let Some(timeout) = time(self.connect_timeout_ms) {
            of = of.connect_timeout(timeout);
        }
        if let Some(timeout) = time(self.close_timeout_ms) {
            of = of.close_timeout(timeout);
        }
        if let Some(silence) = or_never(self.unresponsive_after_ms) {
            of = of.unresponsive_after(silence);
        }
        if let Some(silence) = or_never(self.lost_after_ms) {
            of = of.lost_after(silence);
        }
        if let Some(timeout) = time(self.fence_timeout_ms) {
            of = of.fence_timeout(timeout);
        }
        if let Some(timeout) = time(self.tcp_user_timeout_ms) {
            of = of.tcp_user_timeout(Some(timeout));
        }
        if let Some(keepalive) = self.keepalive() {
            of = of.keepalive(Some(keepalive));
        }
        if let Some(policy) = self.reconnect() {
            of = of.reconnect(policy);
        }
        if self.max_connections != 0 {
            of = of.max_connections(self.max_connections);
        }
        if self.windows != 0 {
            of = of.windows(self.windows);
        }
        if self.ask != 0 {
            of = of.accept(AcceptPolicy::Ask);
        }
        of
    }

    /// The kernel's probes, if one of their settings is set.
    fn keepalive(&self) -> Option<Keepalive> {
        let default = Keepalive::default();
        let or = |seconds: u32, other: Duration| match seconds {
            0 => other,
            seconds => Duration::from_secs(u64::from(seconds)),
        };
        let probes = match self.keepalive_probes {
            0 => default.probes,
            probes => probes,
        };
        let idle = or(self.keepalive_idle_s, default.idle);
        let interval = or(self.keepalive_interval_s, default.interval);
        let is_set = self.keepalive_idle_s | self.keepalive_interval_s | self.keepalive_probes != 0;
        is_set.then(|| Keepalive::new(idle, interval, probes))
    }

    fn reconnect(&self) -> Option<ReconnectPolicy> {
        let first = time(self.reconnect_first_ms)?;
        let policy = match time(self.reconnect_max_ms) {
            None => ReconnectPolicy::fixed(first),
            Some(max) => ReconnectPolicy::backoff(first, max),
        };
        Some(match self.reconnect_attempts {
            0 => policy,
            attempts => policy.max_attempts(attempts),
        })
    }

    /// What goes out, and the region of the settings, which headers and data go out of.
    pub(crate) fn outgoing(&self, whose: Whose) -> Result<Outgoing, Failure> {
        let (mut of, region) = self.headers(whose)?;
        if self.depth != 0 {
            of = of.depth(self.depth);
        }
        of = match self.header_mode {
            FCAST_HEADER_PREFIXED => of,
            FCAST_HEADER_FIXED => of.header_mode(HeaderMode::Fixed(self.fixed_header()?)),
            FCAST_HEADER_RAW => of.header_mode(HeaderMode::Raw),
            other => return Err(out_of_range("header_mode", other, "0 to 2")),
        };
        of = match self.shape {
            FCAST_SHAPE_AUTO => of,
            FCAST_SHAPE_IOV => of.shape(Some(Shape::Iov)),
            FCAST_SHAPE_HEADROOM => of.shape(Some(Shape::Headroom)),
            FCAST_SHAPE_TWO_MESSAGES => of.shape(Some(Shape::TwoMessages)),
            other => return Err(out_of_range("shape", other, "0 to 3")),
        };
        of = match self.inject {
            0 => of,
            FCAST_OFF => of.inject(Inject::Off),
            bytes => of.inject(Inject::UpTo(bytes as usize)),
        };
        of = match self.packing {
            0 => of,
            FCAST_OFF => of.packing(Packing::Off),
            bytes => of.packing(Packing::UpTo(bytes as usize)),
        };
        if self.no_gather != 0 {
            of = of.gather(false);
        }
        if self.delivered != 0 {
            of = of.level(Level::Delivered);
        }
        if let Some(deadline) = or_never(self.deadline_ms) {
            of = of.deadline(deadline);
        }
        if self.tell_late != 0 {
            of = of.deadline_policy(DeadlinePolicy::Notify);
        }
        if self.staging.id != 0 {
            of = of.staging(&*STAGINGS.share(self.staging.id)?);
        }
        Ok((of, region))
    }

    /// Where headers lie: in slots of the endpoint's own, or beside those of the region.
    fn headers(&self, whose: Whose) -> Result<Outgoing, Failure> {
        let of = OutgoingSettings::default();
        let own = [
            ("header_slots", self.header_slots),
            ("header_slot_size", self.header_slot_size),
        ];
        let shared = headers::shared(self.headers, own)?;
        if self.region.id != 0 {
            let region = REGIONS.share(self.region.id)?.clone();
            let data = Arc::clone(&region);
            let manager = match &shared {
                Some(slots) => ZeroCopyBufferManager::with_headers(data, slots),
                None => ZeroCopyBufferManager::new(data, self.header_slots(whose))?,
            };
            return Ok((of.headers(&manager), Some(region)));
        }
        let is_set = own.iter().any(|(_, value)| *value != 0);
        let of = match &shared {
            Some(slots) => of.headers(slots),
            None if is_set => of.headers(self.header_slots(whose)),
            None => of,
        };
        Ok((of, None))
    }

    fn header_slots(&self, whose: Whose) -> HeaderSlotConfig {
        let publishes = matches!(whose, Whose::Publisher | Whose::BufferedPublisher);
        let default = HeaderSlotConfig {
            slot_size: if publishes { 128 } else { 64 },
            ..HeaderSlotConfig::default()
        };
        headers::config(self.header_slots, self.header_slot_size, default)
    }

    fn fixed_header(&self) -> Result<u16, Failure> {
        let too_long = |_| out_of_range("header_fixed", self.header_fixed, "0 to 4096");
        u16::try_from(self.header_fixed).map_err(too_long)
    }

    pub(crate) fn incoming(&self) -> Result<IncomingSettings, Failure> {
        let mut of = IncomingSettings::default();
        if self.max_message != 0 {
            of = of.max_message(self.max_message as usize);
        }
        if self.slots != 0 {
            of = of.slots(self.slots);
        }
        if self.credits != 0 {
            of = of.credits(self.credits);
        }
        let share = self.pool_reserved..=self.pool_most;
        of = match (self.pool.id, self.pool_reserved | self.pool_most) {
            (0, 0) => of,
            (0, _) => {
                return Err(Failure::invalid(
                    "setting pool_most: it is of a pool, give one",
                ));
            }
            (id, 0) => of.pool(&*POOLS.share(id)?),
            (id, _) => of.shared_pool(&*POOLS.share(id)?, share),
        };
        if self.deliver_to.id != 0 {
            let pool = DEVICE_POOLS.share(self.deliver_to.id)?.clone();
            of = of.deliver_to(DeviceDelivery::new(pool));
        }
        if let Some(long) = self.long_messages()? {
            of = of.long_messages(long);
        }
        Ok(of)
    }

    /// Where messages go that are longer than a receive buffer.
    fn long_messages(&self) -> Result<Option<LongMessages>, Failure> {
        if self.long_pool.id == 0 {
            let others = [
                ("long_device", self.long_device.id != 0),
                ("long_deadline_ms", self.long_deadline_ms != 0),
            ];
            return match others.iter().find(|(_, is_set)| *is_set) {
                None => Ok(None),
                Some((field, _)) => {
                    let text = format!("setting {field}: it is of a long_pool, give one");
                    Err(Failure::invalid(text))
                }
            };
        }
        let mut long = LongMessages::new(POOLS.share(self.long_pool.id)?.clone());
        if self.long_device.id != 0 {
            long = long.on_device(DEVICE_POOLS.share(self.long_device.id)?.clone());
        }
        if let Some(deadline) = or_never(self.long_deadline_ms) {
            long = long.deadline(deadline);
        }
        Ok(Some(long))
    }
}

#[cold]
pub(crate) fn out_of_range(field: &str, value: u32, range: &str) -> Failure {
    Failure::invalid(format!("setting {field} = {value}: must be {range}"))
}
