//! `Case`: one operation at one size, and what a run of it gives; `Pacer`: which message the client
//! sends next.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use libfabric_sys as sys;

use crate::clock::Patience;
use crate::error::Failure;
use crate::host::cpu_seconds;

/// Bytes of a header.
pub(crate) const HEADER: usize = 16;
/// Warm-up: at least this long.
const WARM_UP: Duration = Duration::from_millis(200);
/// The most round trips whose times are kept, beyond which a run counts no further ones.
const SAMPLES_MAX: usize = 4_000_000;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Operation {
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
}

impl Operation {
    /// Whether objects are moved into or out of windows by their tokens.
    pub(crate) fn is_object(self) -> bool {
        self.is_by_token() || matches!(self, Self::ObjectRequest | Self::ObjectHttp)
    }

    /// Whether one token stands for all of them.
    pub(crate) fn is_by_token(self) -> bool {
        matches!(self, Self::ObjectGet | Self::ObjectPut)
    }

    pub(crate) fn name(self) -> &'static str {
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
        }
    }
}

/// By what it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Side {
    /// The loop over `libfabric-sys`.
    Bare,
    /// The library.
    Ours,
    /// The library, through its C interface.
    C,
}

impl Side {
    pub(crate) fn name(self) -> &'static str {
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
pub(crate) enum Wait {
    /// FI_WAIT_NONE.
    None,
    /// FI_WAIT_FD, the library's default.
    Fd,
}

impl Wait {
    pub(crate) fn wait_obj(self) -> sys::fi_wait_obj {
        match self {
            Self::None => sys::FI_WAIT_NONE,
            Self::Fd => sys::FI_WAIT_FD,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Fd => "fd",
        }
    }
}

/// One operation at one size.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) operation: Operation,
    /// Payload bytes; the header comes on top.
    pub(crate) size: usize,
    pub(crate) depth: usize,
    pub(crate) seconds: f64,
    pub(crate) provider: String,
    pub(crate) node: String,
    pub(crate) wait: Wait,
    /// Connections of the bare ping-pong: one both ways, or one each way, as the library's.
    pub(crate) bare_connections: u8,
    /// How long the bare loop's receiver leaves its queue alone after each read of it, in
    /// microseconds: `send`, `rdm` and `publish`; 0: it reads again at once.
    pub(crate) bare_pause_us: u64,
    /// Bytes of a buffer of small messages.
    pub(crate) buffer: usize,
    /// How long a small message waits for others, in microseconds.
    pub(crate) flush_us: u64,
    /// `send` and `rdm`: the library packs messages up to so many bytes; 0: none.
    pub(crate) pack: usize,
    /// `send` and `publish`: the library may have the kernel gather small messages. The client's.
    pub(crate) gather: bool,
    /// Subscribers of a publisher.
    pub(crate) subscribers: u8,
}

impl Case {
    /// What the completion queues are opened with.
    pub(crate) fn wait_obj(&self) -> sys::fi_wait_obj {
        self.wait.wait_obj()
    }

    /// The same with whole buffers as messages.
    pub(crate) fn of_buffers(&self) -> Self {
        Self {
            operation: Operation::Send,
            size: self.buffer,
            ..self.clone()
        }
    }

    /// The same with a bare loop that reads again at once.
    pub(crate) fn without_pause(&self) -> Self {
        Self {
            bare_pause_us: 0,
            ..self.clone()
        }
    }

    /// Whether the bare loop is run with a pause, beside the one without.
    pub(crate) fn has_pause(&self) -> bool {
        use Operation::{Publish, Rdm, Send};
        self.bare_pause_us > 0 && matches!(self.operation, Send | Rdm | Publish)
    }

    /// The same with one message of the provider's for each small one.
    pub(crate) fn of_single_messages(&self) -> Self {
        Self {
            operation: Operation::Send,
            ..self.clone()
        }
    }

    /// The local address to ask for; none where a provider's endpoints have names.
    pub(crate) fn local_node(&self) -> Option<&str> {
        let row = fabricast::fabric::provider(&self.provider);
        let has_names = row.is_some_and(|row| row.names.is_some());
        (!has_names).then_some(self.node.as_str())
    }

    /// Messages that the receiver takes ahead: 16 MiB of them, at least twice the depth, and no
    /// more than the receive queue of tcp on libfabric 1.17 holds with the two receives that the
    /// library keeps for itself.
    pub(crate) fn window(&self) -> usize {
        ((16 << 20) / self.size.max(1)).clamp(2 * self.depth, (2 * self.depth).max(254))
    }

    /// Bytes of the largest message that the library packs, unless somebody says how many; 0:
    /// messages of this case are not packed.
    pub(crate) fn packed(&self, said: Option<usize>) -> usize {
        let sends = [Operation::Send, Operation::Rdm, Operation::Publish].contains(&self.operation);
        let row = fabricast::fabric::provider(&self.provider);
        let below = said.unwrap_or_else(|| row.map_or(0, |row| row.pack_below));
        match sends && self.size + HEADER <= below {
            true => below,
            false => 0,
        }
    }

    /// Receives that are posted, the same for both loops.
    pub(crate) fn receive_depth(&self) -> usize {
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

    /// How long a run may take at most.
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_secs_f64(self.seconds) + Duration::from_secs(20)
    }
}

/// What a receiver counted between the marks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    pub(crate) messages: u64,
    pub(crate) elapsed_s: f64,
    pub(crate) cpu_s: f64,
}

/// What a client measured between the marks.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) cpu_s: f64,
    /// Half round trips, or the times of lone small messages; none for an operation that has
    /// neither.
    pub(crate) half_ns: Vec<u32>,
}

/// The header of each message: a kind, and padding to the 16 bytes of a real one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header(u64);

impl Header {
    const DATA: Self = Self(0);
    const BEGIN: Self = Self(1);
    const END: Self = Self(2);

    #[inline]
    pub(crate) fn is_mark(self) -> bool {
        self != Self::DATA
    }

    #[inline]
    pub(crate) fn is_end(self) -> bool {
        self == Self::END
    }

    /// As the tag of a small message.
    #[inline]
    pub(crate) fn to_tag(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) fn from_tag(tag: u64) -> Self {
        Self(tag)
    }

    #[inline]
    pub(crate) fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&self.0.to_le_bytes());
        bytes
    }

    #[inline]
    pub(crate) fn from_bytes(bytes: [u8; HEADER]) -> Self {
        let mut kind = [0; 8];
        kind.copy_from_slice(&bytes[..8]);
        Self(u64::from_le_bytes(kind))
    }

    /// The header of a message that a library handed out.
    #[inline]
    pub(crate) fn from_slice(bytes: &[u8]) -> Result<Self, Failure> {
        let bytes = bytes
            .try_into()
            .map_err(|_| Failure(format!("a header of {} bytes", bytes.len())))?;
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
pub(crate) struct Pacer {
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
    pub(crate) fn new(case: &Case) -> Self {
        let samples = match case.operation {
            Operation::Send
            | Operation::Coalesced
            | Operation::RmaWrite
            | Operation::RmaRead
            | Operation::Rdm
            | Operation::Publish
            | Operation::ObjectGet
            | Operation::ObjectPut => 0,
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
            until: now + WARM_UP,
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
    pub(crate) fn next(&mut self) -> Option<Header> {
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
    pub(crate) fn sent(&mut self) {
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
    pub(crate) fn returned(&mut self) {
        if self.phase == Phase::Timed && self.half_ns.len() < self.half_ns.capacity() {
            let half = self.posted.elapsed().as_nanos() / 2;
            self.half_ns.push(u32::try_from(half).unwrap_or(u32::MAX));
        }
    }

    #[inline]
    pub(crate) fn on_poll(&mut self, found: usize) -> Result<(), Failure> {
        self.patience.on_poll(found)
    }

    /// The end mark is posted.
    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// To be called when all one-sided operations are complete, which the server does not see: what
    /// it says of the marks, with what this side counted between them.
    pub(crate) fn finish_with(self, marks: Arrived) -> Result<(Sent, Arrived), Failure> {
        let arrived = Arrived {
            messages: self.timed,
            ..marks
        };
        Ok((self.finish(), arrived))
    }

    /// To be called when all sends are complete.
    pub(crate) fn finish(self) -> Sent {
        Sent {
            cpu_s: cpu_seconds() - self.cpu_from,
            half_ns: self.half_ns,
        }
    }
}
