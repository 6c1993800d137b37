//! `Case`: one operation at one size, and what a run of it gives; `Pacer`: which message the client
//! sends next.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use libfabric_sys as sys;

use crate::clock::Patience;
use crate::error::{Failure, Kind};
use crate::host::cpu_seconds;
use crate::times::Times;

/// Bytes of a header.
pub const HEADER: usize = 16;
/// Warm-up: at least this long.
const WARM_UP: Duration = Duration::from_millis(200);
/// Payload bytes of the longest message: a receive buffer takes 1 GiB at most, header included.
pub const SIZE_MAX: usize = 1 << 29;
/// Messages a second at most.
pub const RATE_MAX: u32 = 50_000_000;
/// Bytes of a block of a stream, least and most: those of `fabricast send --block`.
const STREAM_BLOCKS: std::ops::RangeInclusive<usize> = 8 << 10..=256 << 20;
/// Memory that a run may take at either end, in bytes.
const MEMORY_MAX: usize = 8 << 30;
/// Or as long as a run, where that is shorter: a trial, of which nobody wants figures.
fn warm_up(case: &Case) -> Duration {
    WARM_UP.min(Duration::from_secs_f64(case.seconds))
}
/// The most round trips whose times are kept, beyond which a run counts no further ones.
const SAMPLES_MAX: usize = 4_000_000;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Operation {
    /// Messages one way, `depth` in flight, dropped by the receiver.
    Send,
    /// One message to and fro at a time; both ends spin.
    Pingpong,
    /// One-sided writes, `depth` in flight, each confirmed by the other side's provider.
    RmaWrite,
    /// One-sided reads, `depth` in flight.
    RmaRead,
    /// As `send`, over endpoints without connections (FI_EP_RDM).
    Rdm,
    /// One payload to several subscribers.
    Publish,
    /// Small messages one way, packed in buffers; the bare side is a TCP socket with a plain loop
    /// of the same format.
    Coalesced,
    /// Objects: writes into a window that a token names, `depth` in flight; the token stands.
    ObjectGet,
    /// The same, reading.
    ObjectPut,
    /// One object at a time: a request with a token of its own, a write by it, an answer.
    ObjectRequest,
    /// The same, beside an object in the body of an HTTP response over a TCP socket.
    ObjectHttp,
    /// A stream from memory to a receiver that drops it, in blocks of the size.
    Stream,
    /// Messages that are due at a fixed rate, whatever became of those before: how old each is when
    /// it is there.
    Latency,
}

impl Operation {
    /// Whether objects are moved into or out of windows by their tokens.
    pub fn is_object(self) -> bool {
        self.is_by_token() || matches!(self, Self::ObjectRequest | Self::ObjectHttp)
    }

    /// Whether one token stands for all of them.
    pub fn is_by_token(self) -> bool {
        matches!(self, Self::ObjectGet | Self::ObjectPut)
    }

    /// Whether it is measured by a bare loop, too.
    pub fn has_bare(self) -> bool {
        !matches!(self, Self::Stream | Self::Latency)
    }

    /// Whether its figure is how long a message takes.
    pub fn is_latency(self) -> bool {
        matches!(self, Self::Pingpong | Self::Latency)
    }

    /// The name of it on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Pingpong => "pingpong",
            Self::RmaWrite => "rma-write",
            Self::RmaRead => "rma-read",
            Self::Rdm => "rdm",
            Self::Publish => "publish",
            Self::Coalesced => "coalesced",
            Self::ObjectGet => "object-get",
            Self::ObjectPut => "object-put",
            Self::ObjectRequest => "object-request",
            Self::ObjectHttp => "object-http",
            Self::Stream => "stream",
            Self::Latency => "latency",
        }
    }
}

/// By what it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Side {
    /// The loop over `libfabric-sys`.
    Bare,
    /// The library.
    Ours,
    /// The library, through its C interface.
    C,
}

impl Side {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Ours => "ours",
            Self::C => "c",
        }
    }
}

/// What the completion queues of both loops can be waited for by. Neither waits; but a queue that
/// could signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Wait {
    /// FI_WAIT_NONE.
    None,
    /// FI_WAIT_FD, the library's default.
    Fd,
}

impl Wait {
    /// As libfabric calls it.
    pub fn wait_obj(self) -> sys::fi_wait_obj {
        match self {
            Self::None => sys::FI_WAIT_NONE,
            Self::Fd => sys::FI_WAIT_FD,
        }
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Fd => "fd",
        }
    }
}

/// One operation at one size.
#[derive(Clone, Debug)]
pub struct Case {
    /// What is measured.
    pub operation: Operation,
    /// Payload bytes; the header comes on top.
    pub size: usize,
    /// Messages or operations in flight.
    pub depth: usize,
    /// How long a run is timed.
    pub seconds: f64,
    /// The libfabric provider.
    pub provider: String,
    /// The local IP address that this end uses.
    pub node: String,
    /// What queues can be waited for by.
    pub wait: Wait,
    /// Connections of the bare ping-pong: one both ways, or one each way, as the library's.
    pub bare_connections: u8,
    /// How long the bare loop's receiver leaves its queue alone after each read of it, in
    /// microseconds: `send`, `rdm` and `publish`; 0: it reads again at once.
    pub bare_pause_us: u64,
    /// Bytes of a buffer of small messages.
    pub buffer: usize,
    /// How long a small message waits for others, in microseconds.
    pub flush_us: u64,
    /// `send` and `rdm`: the library packs messages up to so many bytes; 0: none.
    pub pack: usize,
    /// `send` and `publish`: the library may have the kernel gather small messages. The client's.
    pub gather: bool,
    /// Subscribers of a publisher.
    pub subscribers: u8,
    /// `latency`: messages a second; 0: each when the one before is confirmed, and a pause later.
    pub rate: u32,
    /// `latency`: both ends read one clock, so that the way there alone is timed; else half of the
    /// way there and back.
    pub one_way: bool,
    /// `send`: both ends have the payloads in the memory of this GPU.
    pub gpu: Option<u32>,
    /// The time does not begin before: several clients begin together. The client's.
    pub begin: Option<Instant>,
}

impl Case {
    /// What the completion queues are opened with.
    pub fn wait_obj(&self) -> sys::fi_wait_obj {
        self.wait.wait_obj()
    }

    /// The same with whole buffers as messages.
    pub fn of_buffers(&self) -> Self {
        Self {
            operation: Operation::Send,
            size: self.buffer,
            ..self.clone()
        }
    }

    /// The same with a bare loop that reads again at once.
    pub fn without_pause(&self) -> Self {
        Self {
            bare_pause_us: 0,
            ..self.clone()
        }
    }

    /// Whether the bare loop is run with a pause, beside the one without.
    pub fn has_pause(&self) -> bool {
        use Operation::{Publish, Rdm, Send};
        self.bare_pause_us > 0 && matches!(self.operation, Send | Rdm | Publish)
    }

    /// The same with one message of the provider's for each small one.
    pub fn of_single_messages(&self) -> Self {
        Self {
            operation: Operation::Send,
            ..self.clone()
        }
    }

    /// The local address to ask for; none where a provider's endpoints have names.
    pub fn local_node(&self) -> Option<&str> {
        let row = fabricast::fabric::provider(&self.provider);
        let has_names = row.is_some_and(|row| row.names.is_some());
        (!has_names).then_some(self.node.as_str())
    }

    /// Messages that the receiver takes ahead: 16 MiB of them, at least twice the depth, and no
    /// more than the receive queue of tcp on libfabric 1.17 holds with the two receives that the
    /// library keeps for itself.
    pub fn window(&self) -> usize {
        ((16 << 20) / self.size.max(1)).clamp(2 * self.depth, (2 * self.depth).max(254))
    }

    /// Bytes of the largest message that the library packs, unless somebody says how many; 0:
    /// messages of this case are not packed.
    pub fn packed(&self, said: Option<usize>) -> usize {
        let sends = [Operation::Send, Operation::Rdm, Operation::Publish].contains(&self.operation);
        let row = fabricast::fabric::provider(&self.provider);
        let below = said.unwrap_or_else(|| row.map_or(0, |row| row.pack_below));
        match sends && self.size + HEADER <= below {
            true => below,
            false => 0,
        }
    }

    /// Receives that are posted, the same for both loops.
    pub fn receive_depth(&self) -> usize {
        self.window() + 2
    }

    /// Operations before the time begins, at least: each buffer of both sides once.
    fn warm_messages(&self) -> usize {
        match self.operation {
            Operation::ObjectRequest | Operation::ObjectHttp => 2,
            operation if operation.is_object() => 2 * self.depth,
            _ => 2 * self.receive_depth(),
        }
    }

    /// Looks at all numbers: what a peer asks for has the limits that the command line has.
    ///
    /// # Errors
    /// When one is beyond its limit, or all together need too much memory.
    pub fn check(&self) -> Result<(), Failure> {
        let refused = |what: String| Err(Failure::new(what).is(Kind::Refused));
        let within = [
            ("size", self.size as f64, 1.0, SIZE_MAX as f64),
            ("depth", self.depth as f64, 1.0, 4096.0),
            ("seconds", self.seconds, 0.001, 600.0),
            ("bare-pause", self.bare_pause_us as f64, 0.0, 10_000.0),
            ("bare-connections", self.bare_connections.into(), 1.0, 2.0),
            ("buffer", self.buffer as f64, 64.0, (1 << 28) as f64),
            ("flush-us", self.flush_us as f64, 1.0, 1e6),
            ("pack", self.pack as f64, 0.0, (1 << 20) as f64),
            ("subscribers", self.subscribers.into(), 1.0, 64.0),
            ("rate", self.rate.into(), 0.0, RATE_MAX.into()),
        ];
        for (name, value, low, high) in within {
            if !(low..=high).contains(&value) {
                return refused(format!("{name} {value}: must be {low} to {high}"));
            }
        }
        let is_name = |text: &str| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_;-".contains(&byte);
            (1..=64).contains(&text.len()) && text.bytes().all(fits)
        };
        if !is_name(&self.provider) {
            return refused(format!("provider {:?}: that is no name", self.provider));
        }
        if self.operation == Operation::Coalesced && self.size + 28 > self.buffer {
            return refused(format!(
                "a small message of {} bytes does not fit a buffer of {}",
                self.size, self.buffer
            ));
        }
        if self.operation == Operation::Stream && !STREAM_BLOCKS.contains(&self.size) {
            return refused(format!(
                "a block of a stream has {} to {} bytes",
                STREAM_BLOCKS.start(),
                STREAM_BLOCKS.end()
            ));
        }
        let messages = self.receive_depth() + 32;
        let ends = match self.operation {
            Operation::Publish => usize::from(self.subscribers),
            _ => 1,
        };
        let need = ends * messages * (self.size.max(self.buffer_bytes()) + HEADER);
        if need > MEMORY_MAX {
            return refused(format!(
                "{messages} messages of {} bytes in flight to {ends} need {need} bytes of memory, \
                 and at most {MEMORY_MAX} are taken: take a smaller size or depth",
                self.size
            ));
        }
        Ok(())
    }

    fn buffer_bytes(&self) -> usize {
        match self.operation {
            Operation::Coalesced => self.buffer,
            _ => 0,
        }
    }

    /// How long a run may take at most.
    pub fn limit(&self) -> Duration {
        Duration::from_secs_f64(self.seconds) + Duration::from_secs(20)
    }
}

/// What a receiver counted between the marks.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// Messages.
    pub messages: u64,
    /// The time between the marks, in seconds.
    pub elapsed_s: f64,
    /// Processor seconds of this process between the marks.
    pub cpu_s: f64,
}

/// What a client measured between the marks.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Processor seconds of this process between the marks.
    pub cpu_s: f64,
    /// Half round trips, or the times of lone small messages; none for an operation that has
    /// neither.
    pub half_ns: Vec<u32>,
    /// Times that were counted as they came.
    pub times: Option<Times>,
}

/// The header of each message: a kind, and padding to the 16 bytes of a real one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header(u64);

impl Header {
    const DATA: Self = Self(0);
    const BEGIN: Self = Self(1);
    const END: Self = Self(2);

    /// Whether it begins or ends the time.
    #[inline]
    pub fn is_mark(self) -> bool {
        self != Self::DATA
    }

    /// Whether it ends it.
    #[inline]
    pub fn is_end(self) -> bool {
        self == Self::END
    }

    /// As the tag of a small message.
    #[inline]
    pub fn to_tag(self) -> u64 {
        self.0
    }

    /// That of a small message with this tag.
    #[inline]
    pub fn from_tag(tag: u64) -> Self {
        Self(tag)
    }

    /// As bytes of a message.
    #[inline]
    pub fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&self.0.to_le_bytes());
        bytes
    }

    /// The one with these bytes.
    #[inline]
    pub fn from_bytes(bytes: [u8; HEADER]) -> Self {
        let mut kind = [0; 8];
        kind.copy_from_slice(&bytes[..8]);
        Self(u64::from_le_bytes(kind))
    }

    /// The header of a message that a library handed out.
    #[inline]
    pub fn from_slice(bytes: &[u8]) -> Result<Self, Failure> {
        let bytes = bytes
            .try_into()
            .map_err(|_| Failure::new(format!("a header of {} bytes", bytes.len())))?;
        Ok(Self::from_bytes(bytes))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    WarmUp,
    Timed,
    Over,
}

/// What the client sends next: data for the warm-up, a begin mark, data for the time of the case,
/// an end mark.
#[derive(Debug)]
pub struct Pacer {
    phase: Phase,
    next: Header,
    warm_messages: usize,
    seconds: Duration,
    until: Instant,
    cpu_from: f64,
    posted: Instant,
    /// Messages until the next look at the clock, and those between two looks.
    unread: u32,
    unread_max: u32,
    half_ns: Vec<u32>,
    /// Operations posted between the marks.
    timed: u64,
    patience: Patience,
}

impl Pacer {
    /// At the beginning of a run, with its warm-up before it.
    pub fn new(case: &Case) -> Self {
        let samples = match case.operation {
            Operation::Send
            | Operation::Coalesced
            | Operation::RmaWrite
            | Operation::RmaRead
            | Operation::Rdm
            | Operation::Publish
            | Operation::ObjectGet
            | Operation::ObjectPut
            | Operation::Stream
            | Operation::Latency => 0,
            Operation::Pingpong | Operation::ObjectRequest | Operation::ObjectHttp => {
                SAMPLES_MAX.min((case.seconds * 1e6) as usize + 1)
            }
        };
        let now = Instant::now();
        Self {
            phase: Phase::WarmUp,
            next: Header::DATA,
            warm_messages: case.warm_messages(),
            seconds: Duration::from_secs_f64(case.seconds),
            until: (now + warm_up(case)).max(case.begin.unwrap_or(now)),
            cpu_from: 0.0,
            posted: now,
            unread: 0,
            // A look at the clock costs as much as a packed message.
            unread_max: if case.pack > 0 { 63 } else { 0 },
            half_ns: Vec::with_capacity(samples),
            timed: 0,
            patience: Patience::new(case.limit()),
        }
    }

    /// The header of the next message; none when the end mark was sent.
    #[inline]
    pub fn next(&mut self) -> Option<Header> {
        if self.phase == Phase::Over {
            return None;
        }
        if self.unread > 0 {
            self.unread -= 1;
            return Some(self.next);
        }
        self.unread = self.unread_max;
        self.posted = Instant::now();
        if self.posted >= self.until && self.next == Header::DATA {
            self.turn();
        }
        Some(self.next)
    }

    /// The time of a phase is up: its mark goes out next.
    #[cold]
    fn turn(&mut self) {
        self.next = match self.phase {
            Phase::WarmUp if self.warm_messages > 0 => Header::DATA,
            Phase::WarmUp => Header::BEGIN,
            Phase::Timed | Phase::Over => Header::END,
        };
    }

    /// The message of `next` was posted.
    #[inline]
    pub fn sent(&mut self) {
        self.warm_messages = self.warm_messages.saturating_sub(1);
        if self.next.is_mark() {
            self.marked();
        } else if self.phase == Phase::Timed {
            self.timed += 1;
        }
    }

    /// A mark was sent. What scripts/instructions.py counts lies between two calls of it.
    #[cold]
    #[inline(never)]
    fn marked(&mut self) {
        if self.next == Header::BEGIN {
            self.phase = Phase::Timed;
            self.cpu_from = cpu_seconds();
            self.until = Instant::now() + self.seconds;
        } else {
            self.phase = Phase::Over;
        }
        self.next = Header::DATA;
    }

    /// The message of `next` came back.
    #[inline]
    pub fn returned(&mut self) {
        if self.phase == Phase::Timed && self.half_ns.len() < self.half_ns.capacity() {
            let half = self.posted.elapsed().as_nanos() / 2;
            self.half_ns.push(u32::try_from(half).unwrap_or(u32::MAX));
        }
    }

    /// After each poll: what it found.
    ///
    /// # Errors
    /// When the case's limit is over.
    #[inline]
    pub fn on_poll(&mut self, found: usize) -> Result<(), Failure> {
        self.patience.on_poll(found)
    }

    /// The end mark is posted.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// To be called when all one-sided operations are complete, which the server does not see: what
    /// it says of the marks, with what this side counted between them.
    pub fn finish_with(self, marks: Arrived) -> Result<(Sent, Arrived), Failure> {
        let arrived = Arrived {
            messages: self.timed,
            ..marks
        };
        Ok((self.finish(), arrived))
    }

    /// To be called when all sends are complete.
    pub fn finish(self) -> Sent {
        Sent {
            cpu_s: cpu_seconds() - self.cpu_from,
            half_ns: self.half_ns,
            times: None,
        }
    }
}
