//! `fcast_status`: what a call came to, and the words of its failure.

#![allow(unsafe_code)] // Functions that C calls by name.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use fabricast::Error;
use fabricast::endpoint::{CloseReason, SendErrorKind};
use fabricast::memory::{MemoryError, RegisterError};

/// What a call came to: FCAST_OK, or why not.
pub type fcast_status = i32;

/// It is done, or was accepted.
pub const FCAST_OK: fcast_status = 0;
/// Not now: back-pressure. Nothing was taken; an event of the kind FCAST_EVENT_WRITABLE says when.
pub const FCAST_AGAIN: fcast_status = 1;
/// An argument or a setting is wrong; the words say which, and its limits.
pub const FCAST_INVALID: fcast_status = 2;
/// The handle names nothing: it was released, or never was.
pub const FCAST_STALE: fcast_status = 3;
/// Another call uses the handle: of another thread, or of the one that this one was called from.
pub const FCAST_BUSY: fcast_status = 4;
/// It was not done in time.
pub const FCAST_TIMED_OUT: fcast_status = 5;
/// The connection is over, or could not be made.
pub const FCAST_CLOSED: fcast_status = 6;
/// The peer refused the connection.
pub const FCAST_REFUSED: fcast_status = 7;
/// The message, or its header, is longer than what may be sent.
pub const FCAST_TOO_LONG: fcast_status = 8;
/// The memory is not registered with the domain of the endpoint.
pub const FCAST_NOT_REGISTERED: fcast_status = 9;
/// No memory, no descriptor, or no place in a table of limited size.
pub const FCAST_NO_RESOURCES: fcast_status = 10;
/// The provider, the machine or this handle can't do it.
pub const FCAST_UNSUPPORTED: fcast_status = 11;
/// libfabric failed; fcast_last_errno() has its number.
pub const FCAST_FABRIC: fcast_status = 12;
/// A call of the system failed; fcast_last_errno() has its number.
pub const FCAST_SYSTEM: fcast_status = 13;
/// CUDA or cuFile failed.
pub const FCAST_DEVICE: fcast_status = 14;
/// There is nothing, or nobody, by this name.
pub const FCAST_NOT_FOUND: fcast_status = 15;
/// The process is a fork of the one that made the handle.
pub const FCAST_FORKED: fcast_status = 16;
/// The file is not one, or its contents are not what was promised.
pub const FCAST_DATA: fcast_status = 17;
/// The library has a defect: what it was doing was given up. Please report it.
pub const FCAST_PANIC: fcast_status = 18;

/// Why a call failed: its status, its words, and a number of libfabric's or the system's.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: fcast_status,
    pub(crate) errno: i32,
    pub(crate) text: Cow<'static, str>,
}

impl Failure {
    #[cold]
    pub(crate) fn new(status: fcast_status, text: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            errno: 0,
            text: text.into(),
        }
    }

    #[cold]
    pub(crate) fn invalid(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(FCAST_INVALID, text)
    }

    pub(crate) fn with_errno(mut self, errno: i32) -> Self {
        self.errno = errno;
        self
    }
}

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last { failure: None, words: None }) };
}

/// The last failure of a thread, and its words once they were asked for.
struct Last {
    failure: Option<Failure>,
    words: Option<CString>,
}

/// Keeps a failure for `fcast_last_error`.
#[cold]
pub(crate) fn remember(failure: Failure) -> fcast_status {
    let status = failure.status;
    // A thread that ends has no such place any more, and nobody who asks.
    let _ = LAST.try_with(|last| last.borrow_mut().failure = Some(failure));
    status
}

/// A text without zeros, for C.
pub(crate) fn c_string(text: impl Into<Vec<u8>>) -> CString {
    let mut bytes = text.into();
    bytes.retain(|byte| *byte != 0);
    CString::new(bytes).unwrap_or_default()
}

/// The words of the last failure of this thread, with what to do about it; "" if there was none.
/// Valid until the next failure of this thread is asked for. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_last_error() -> *const c_char {
    let words = |last: &RefCell<Last>| {
        let mut last = last.borrow_mut();
        let text = last.failure.as_ref().map(|failure| failure.text.clone());
        let words = c_string(text.unwrap_or_default().into_owned());
        last.words.insert(words).as_ptr()
    };
    LAST.try_with(words).unwrap_or(c"".as_ptr())
}

/// The number of libfabric (fi_errno.3) or of the system (errno.3) that belongs to the last failure
/// of this thread; 0 where there is none. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_last_errno() -> i32 {
    let errno = |last: &RefCell<Last>| last.borrow().failure.as_ref().map_or(0, |f| f.errno);
    LAST.try_with(errno).unwrap_or(0)
}

/// The name of a status, such as "FCAST_AGAIN"; "unknown" for a number that is none. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_status_name(status: fcast_status) -> *const c_char {
    name_of(status).as_ptr()
}

pub(crate) fn name_of(status: fcast_status) -> &'static CStr {
    let names = [
        c"FCAST_OK",
        c"FCAST_AGAIN",
        c"FCAST_INVALID",
        c"FCAST_STALE",
        c"FCAST_BUSY",
        c"FCAST_TIMED_OUT",
        c"FCAST_CLOSED",
        c"FCAST_REFUSED",
        c"FCAST_TOO_LONG",
        c"FCAST_NOT_REGISTERED",
        c"FCAST_NO_RESOURCES",
        c"FCAST_UNSUPPORTED",
        c"FCAST_FABRIC",
        c"FCAST_SYSTEM",
        c"FCAST_DEVICE",
        c"FCAST_NOT_FOUND",
        c"FCAST_FORKED",
        c"FCAST_DATA",
        c"FCAST_PANIC",
    ];
    let index = usize::try_from(status).unwrap_or(usize::MAX);
    names.get(index).copied().unwrap_or(c"unknown")
}

/// The version of the library that was loaded: major * 1,000,000 + minor * 1,000 + patch. A program
/// compares it with FCAST_VERSION, which it was built with. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_version() -> u32 {
    FCAST_VERSION
}

/// The version of this header: major * 1,000,000 + minor * 1,000 + patch.
pub const FCAST_VERSION: u32 = 1_000;

impl From<Error> for Failure {
    #[cold]
    fn from(error: Error) -> Self {
        Self::of(&error)
    }
}

impl Failure {
    /// Of an error that others have, too.
    #[cold]
    pub(crate) fn of(error: &Error) -> Self {
        let (status, errno) = match error {
            Error::Library(_) | Error::NoProvider(_) | Error::Unsupported { .. } => {
                (FCAST_UNSUPPORTED, 0)
            }
            Error::Fabric { errno, .. } | Error::CompletionQueue { errno, .. } => {
                (FCAST_FABRIC, errno.get())
            }
            Error::Config { .. } | Error::Address { .. } => (FCAST_INVALID, 0),
            Error::Os { source, .. } => (FCAST_SYSTEM, source.raw_os_error().unwrap_or(0)),
            Error::Memory(MemoryError::Cuda { .. }) => (FCAST_DEVICE, 0),
            Error::Memory(_) | Error::Register(_) => (FCAST_NO_RESOURCES, 0),
            Error::Closed(reason) | Error::NotConnected { reason, .. } => {
                (status_of_close(reason), 0)
            }
            Error::EndpointFailed(_) => (FCAST_CLOSED, 0),
            Error::Forked { .. } => (FCAST_FORKED, 0),
            Error::TimedOut { .. } => (FCAST_TIMED_OUT, 0),
            _ => (FCAST_NO_RESOURCES, 0),
        };
        Self::new(status, error.to_string()).with_errno(errno)
    }
}

impl From<MemoryError> for Failure {
    #[cold]
    fn from(error: MemoryError) -> Self {
        let status = match &error {
            MemoryError::Cuda { .. } => FCAST_DEVICE,
            MemoryError::Map { .. } => FCAST_NO_RESOURCES,
            _ => FCAST_INVALID,
        };
        Self::new(status, error.to_string())
    }
}

impl From<RegisterError> for Failure {
    #[cold]
    fn from(error: RegisterError) -> Self {
        Self::new(FCAST_NO_RESOURCES, error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    #[cold]
    fn from(error: std::io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(0);
        Self::new(FCAST_SYSTEM, error.to_string()).with_errno(errno)
    }
}

/// The status of a connection's end.
pub(crate) fn status_of_close(reason: &CloseReason) -> fcast_status {
    match reason {
        CloseReason::Finished => FCAST_OK,
        CloseReason::Refused(_) => FCAST_REFUSED,
        CloseReason::ConnectTimedOut | CloseReason::HandshakeTimedOut => FCAST_TIMED_OUT,
        _ => FCAST_CLOSED,
    }
}

impl From<SendErrorKind> for Failure {
    #[cold]
    fn from(kind: SendErrorKind) -> Self {
        let status = match &kind {
            // Often, and at once again: no text is made before it is asked for.
            SendErrorKind::WouldBlock(blocked) => return Self::new(FCAST_AGAIN, again(*blocked)),
            SendErrorKind::HeaderTooLong { .. }
            | SendErrorKind::TooLong { .. }
            | SendErrorKind::StagingTooLong { .. } => FCAST_TOO_LONG,
            SendErrorKind::ForeignBuffer { .. } | SendErrorKind::NotRegistered { .. } => {
                FCAST_NOT_REGISTERED
            }
            SendErrorKind::NotStaged { .. } => FCAST_UNSUPPORTED,
            SendErrorKind::Register(_) => FCAST_NO_RESOURCES,
            SendErrorKind::Forked(_) => FCAST_FORKED,
            SendErrorKind::NoConnection | SendErrorKind::NoSubscribers { .. } => FCAST_NOT_FOUND,
            SendErrorKind::Closing | SendErrorKind::Closed(_) => FCAST_CLOSED,
            SendErrorKind::Window(error) => return error.clone().into(),
            SendErrorKind::Peer(error) => return error.clone().into(),
            SendErrorKind::Fabric(errno) => {
                let failure = Self::new(FCAST_FABRIC, kind.to_string());
                return failure.with_errno(errno.get());
            }
            _ => FCAST_INVALID,
        };
        Self::new(status, kind.to_string())
    }
}

/// What back-pressure waits for, in words that need not be made.
pub(crate) fn again(blocked: fabricast::endpoint::Blocked) -> &'static str {
    use fabricast::endpoint::Blocked;
    match blocked {
        Blocked::HeaderSlots => "would block: no header slot is free (header_slots)",
        Blocked::Depth => "would block: as many sends are in flight as depth allows",
        Blocked::Credits => "would block: the peer has granted no more messages",
        Blocked::Provider => "would block: the provider's queue is full",
        Blocked::Connecting => "would block: the connection is not established yet",
        Blocked::Buffers => "would block: no buffer is free",
        Blocked::LongMessage => "would block: a long message is under way",
        Blocked::HeaderRoom => "would block: another header is in front of this buffer",
        Blocked::Staging => "would block: no slot of the staging ring is free",
        Blocked::Gate => "would block: messages before it wait for an event or a copy",
        _ => "would block",
    }
}
