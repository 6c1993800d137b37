//! Streams: settings of both sides, how one went, and why one failed.

#![allow(unsafe_code)] // Promises to `pointer::sized`, and memory that C answers for.

use std::ffi::c_void;
use std::time::Duration;

use fabricast::stream::{
    PresharedKey, RefusalCode, SourceError, StreamError, StreamReport, StreamSettings,
};

use crate::pointer::{self, Sized0};
use crate::status::{
    FCAST_CLOSED, FCAST_DATA, FCAST_DEVICE, FCAST_INVALID, FCAST_NOT_FOUND, FCAST_OK,
    FCAST_REFUSED, FCAST_SYSTEM, FCAST_TIMED_OUT, Failure, fcast_status, status_of_close,
};

/// How a sender or a receiver of streams is opened. 0 in a field is the default; a field that the
/// side does not have must be 0. A value out of its range is refused with words that name it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_stream_settings {
    /// sizeof(fcast_stream_settings).
    pub size: usize,
    /// Bytes of the largest block. Default 1,048,576.
    pub block_bytes: u32,
    /// Buffers of a block each. Default: 16 of a sender, 32 of a receiver, for each of
    /// `rail_threads`.
    pub buffers: u32,
    /// Connections at once. Default: 64 of a sender, 8 of a receiver.
    pub connections: u32,
    /// Threads that read sources, or check and write blocks. Default: 3 for each 2 of
    /// `rail_threads`, and 2 at least.
    pub threads: u32,
    /// How long making a connection may take, in milliseconds. Default 5,000.
    pub connect_timeout_ms: u32,
    /// How long a peer may be silent before its connection is given up. Default 10,000.
    pub lost_after_ms: u32,
    /// 1: the buffers are pinned for CUDA.
    pub pinned: u32,
    /// Of a sender: blocks on their way on one connection, 1 to 256. Default 8.
    pub depth: u32,
    /// Of a receiver: blocks granted to a stream at once. Default: 16 for each of `rail_threads`.
    pub credits: u32,
    /// Of a receiver: a stream of which nothing came for so long is cut. Default 60,000.
    pub stalled_after_ms: u32,
    /// Of a receiver: streams at a time. Default 16.
    pub streams: u32,
    /// Threads for connections, each with a libfabric domain of its own, 1 to 7. Default: 1, and
    /// over providers that copy (tcp) a quarter of the processors.
    pub rail_threads: u32,
    /// Of a receiver: the most bytes of a stream. Default 2^60.
    pub max_bytes: u64,
    /// A key that both sides must have: 16 to 4,096 bytes that nobody can guess; NULL: none. It is
    /// read during the call alone.
    pub key: *const c_void,
    /// Bytes of the key.
    pub key_len: usize,
}

// SAFETY: C's layout, a `usize` first; 0 and null are values of all its fields.
unsafe impl Sized0 for fcast_stream_settings {}

impl fcast_stream_settings {
    /// What both sides have.
    ///
    /// # Safety
    ///
    /// `key`: null, or `key_len` readable bytes.
    pub(crate) unsafe fn both(&self, mut of: StreamSettings) -> Result<StreamSettings, Failure> {
        if self.block_bytes != 0 {
            of = of.block_bytes(self.block_bytes);
        }
        if self.buffers != 0 {
            of = of.buffers(self.buffers);
        }
        if self.connections != 0 {
            of = of.connections(self.connections);
        }
        if self.threads != 0 {
            of = of.threads(self.threads);
        }
        if self.rail_threads != 0 {
            of = of.rail_threads(self.rail_threads);
        }
        if let Some(timeout) = milliseconds(self.connect_timeout_ms) {
            of = of.connect_timeout(timeout);
        }
        if let Some(silence) = milliseconds(self.lost_after_ms) {
            of = of.lost_after(silence);
        }
        if self.pinned != 0 {
            of = of.pinned(true);
        }
        if self.key_len != 0 {
            // SAFETY: the caller's promise.
            let key = unsafe { pointer::bytes(self.key.cast::<u8>(), self.key_len, "key") }?;
            of = of.key(PresharedKey::from_bytes(key)?);
        }
        Ok(of)
    }
}

/// A time, where 0 is the default.
pub(crate) fn milliseconds(ms: u32) -> Option<Duration> {
    (ms != 0).then(|| Duration::from_millis(u64::from(ms)))
}

/// How a stream went, at one peer.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct fcast_stream_report {
    /// sizeof(fcast_stream_report), set by the caller.
    pub size: usize,
    /// Bytes that the receiver has.
    pub bytes: u64,
    /// Of those, bytes that it had before, from a stream that was cut.
    pub resumed_bytes: u64,
    /// Bytes that were sent, those that were sent again included. At a receiver 0.
    pub sent_bytes: u64,
    /// Blocks that were sent, or at a receiver: of the stream.
    pub blocks: u64,
    /// From the beginning to the end, in nanoseconds.
    pub took_ns: u64,
    /// Time in which the network was idle, since the source was being read.
    pub waited_disk_ns: u64,
    /// Time in which blocks were ready, and the network took no more.
    pub waited_wire_ns: u64,
    /// Time in which blocks were ready, and the peer had granted no more.
    pub waited_credits_ns: u64,
    /// Time in which all was sent that was granted, and the receiver was writing.
    pub waited_sink_ns: u64,
    /// Time of a limit of rate, a pause, or other peers that were waited for.
    pub waited_limit_ns: u64,
    /// Blocks that came damaged, and were sent again.
    pub damaged: u64,
    /// Attempts to connect again.
    pub reconnects: u64,
    /// At a receiver: files and directories that are under their names.
    pub placed: u64,
    /// 1: `blake3` is the hash of the content.
    pub has_blake3: u32,
    /// 1: both sides have computed it, and it is the same.
    pub blake3_compared: u32,
    /// Of one file its hash; of several the hash of their hashes, one behind the other.
    pub blake3: [u8; 32],
}

// SAFETY: C's layout, a `usize` first; 0 is a value of all its fields.
unsafe impl Sized0 for fcast_stream_report {}

impl From<&StreamReport> for fcast_stream_report {
    fn from(of: &StreamReport) -> Self {
        Self {
            size: 0,
            bytes: of.bytes,
            resumed_bytes: of.resumed_bytes,
            sent_bytes: of.sent_bytes,
            blocks: of.blocks,
            took_ns: nanoseconds(of.took),
            waited_disk_ns: nanoseconds(of.stalls.disk),
            waited_wire_ns: nanoseconds(of.stalls.wire),
            waited_credits_ns: nanoseconds(of.stalls.credits),
            waited_sink_ns: nanoseconds(of.stalls.sink),
            waited_limit_ns: nanoseconds(of.stalls.limit),
            damaged: of.damaged,
            reconnects: of.reconnects,
            placed: of.placed,
            has_blake3: of.blake3.is_some().into(),
            blake3_compared: of.blake3_compared.into(),
            blake3: of.blake3.unwrap_or_default(),
        }
    }
}

pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl From<StreamError> for Failure {
    #[cold]
    fn from(error: StreamError) -> Self {
        let text = error.to_string();
        let status = match error {
            StreamError::Setting { .. } | StreamError::Name(_) | StreamError::Manifest(_) => {
                FCAST_INVALID
            }
            StreamError::File(error) => return error.into(),
            StreamError::KeyFile { .. } | StreamError::Random => FCAST_SYSTEM,
            StreamError::Endpoint(error) => return Self::of(&error),
            StreamError::Unproven | StreamError::Refused { .. } => FCAST_REFUSED,
            StreamError::Failed { code, .. } | StreamError::GivenUp { code, .. } => of_code(code),
            StreamError::Lost(reason) => match status_of_close(&reason) {
                FCAST_OK => FCAST_CLOSED,
                status => status,
            },
            StreamError::SourceChanged { .. } => FCAST_DATA,
            StreamError::Stalled { .. } | StreamError::Deadline { .. } => FCAST_TIMED_OUT,
            _ => FCAST_CLOSED,
        };
        Self::new(status, text)
    }
}

/// Why a side gave a stream up.
fn of_code(code: RefusalCode) -> fcast_status {
    match code {
        RefusalCode::STALLED | RefusalCode::DEADLINE => FCAST_TIMED_OUT,
        RefusalCode::SOURCE_CHANGED | RefusalCode::DAMAGED | RefusalCode::DIGEST => FCAST_DATA,
        RefusalCode::SINK | RefusalCode::SOURCE | RefusalCode::SPACE => FCAST_SYSTEM,
        _ => FCAST_CLOSED,
    }
}

impl From<SourceError> for Failure {
    #[cold]
    fn from(error: SourceError) -> Self {
        let text = error.to_string();
        let (status, errno) = match error {
            SourceError::File(error) => return error.into(),
            SourceError::Os { errno, .. } if errno == libc::ENOENT => (FCAST_NOT_FOUND, errno),
            SourceError::Os { errno, .. } => (FCAST_SYSTEM, errno),
            SourceError::Changed { .. } => (FCAST_DATA, 0),
            SourceError::Cuda(_) => (FCAST_DEVICE, 0),
            _ => (FCAST_INVALID, 0),
        };
        let mut failure = Self::new(status, text);
        failure.errno = errno;
        failure
    }
}
