//! `fcast_settings`: the settings of all endpoints in one struct.

#![allow(unsafe_code)] // What C calls.

use std::time::Duration;

use fabricast::buffer::HeaderSlotConfig;
use fabricast::endpoint::{
    AcceptPolicy, ConnectionSettings, DeadlinePolicy, HeaderMode, IncomingSettings, Inject, Level,
    OutgoingSettings, Packing, ReconnectPolicy,
};
use fabricast::fabric::Shape;

use crate::handle::POOLS;
use crate::pointer::Sized0;
use crate::pool::fcast_pool;
use crate::region::fcast_region;
use crate::status::Failure;

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
    /// FCAST_HEADER_PREFIXED, FCAST_HEADER_FIXED or FCAST_HEADER_RAW.
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
    /// Must be 0.
    pub reserved: u32,
    /// A receive pool of the program's instead; {0}: one of the endpoint's own.
    pub pool: fcast_pool,
    /// The memory that is sent where a send names none. It need not be registered: the endpoint
    /// does that, for as long as it lives.
    pub region: fcast_region,
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
        if let Some(timeout) = time(self.tcp_user_timeout_ms) {
            of = of.tcp_user_timeout(Some(timeout));
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

    /// What goes out. `headers`: whether the endpoint's header slots are of its own, so that their
    /// number and size count.
    pub(crate) fn outgoing(
        &self,
        mut of: OutgoingSettings,
        headers: bool,
    ) -> Result<OutgoingSettings, Failure> {
        if self.depth != 0 {
            of = of.depth(self.depth);
        }
        if headers && (self.header_slots != 0 || self.header_slot_size != 0) {
            of = of.headers(self.header_slots());
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
        Ok(of)
    }

    pub(crate) fn header_slots(&self) -> HeaderSlotConfig {
        let default = HeaderSlotConfig::default();
        let or = |value: u32, other: usize| if value == 0 { other } else { value as usize };
        HeaderSlotConfig {
            slots: or(self.header_slots, default.slots as usize) as u32,
            slot_size: or(self.header_slot_size, default.slot_size),
        }
    }

    fn fixed_header(&self) -> Result<u16, Failure> {
        let too_long = |_| out_of_range("header_fixed", self.header_fixed, "0 to 4096");
        u16::try_from(self.header_fixed).map_err(too_long)
    }

    pub(crate) fn incoming(&self, mut of: IncomingSettings) -> Result<IncomingSettings, Failure> {
        if self.max_message != 0 {
            of = of.max_message(self.max_message as usize);
        }
        if self.slots != 0 {
            of = of.slots(self.slots);
        }
        if self.credits != 0 {
            of = of.credits(self.credits);
        }
        if self.pool.id != 0 {
            of = of.pool(&*POOLS.share(self.pool.id)?);
        }
        Ok(of)
    }

    /// What would have no effect is refused: a kind of endpoint has no such setting.
    pub(crate) fn refuse(&self, kind: &str, fields: &[(&str, bool)]) -> Result<(), Failure> {
        let set = fields.iter().find(|(_, is_set)| *is_set);
        set.map_or(Ok(()), |(field, _)| {
            let text = format!("setting {field}: a {kind} has none, leave it 0");
            Err(Failure::invalid(text))
        })
    }

    /// The fields of what comes in, for `refuse`.
    pub(crate) fn incoming_fields(&self) -> [(&'static str, bool); 4] {
        [
            ("max_message", self.max_message != 0),
            ("slots", self.slots != 0),
            ("credits", self.credits != 0),
            ("pool", self.pool.id != 0),
        ]
    }
}

#[cold]
fn out_of_range(field: &str, value: u32, range: &str) -> Failure {
    Failure::invalid(format!("setting {field} = {value}: must be {range}"))
}
