//! What libfabric says of a failure: a number, and of an operation some words.

use std::fmt;
use std::num::NonZeroI32;

/// A libfabric error number, positive, as `fi_errno.3` counts them.
///
/// Never an enum: a provider may answer a code that this library has never heard of.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FabricErrno(NonZeroI32);

impl FabricErrno {
    /// What stands in for a failure that came with the code 0.
    const UNSPECIFIED: NonZeroI32 = NonZeroI32::new(libc::EIO).expect("EIO is not 0");

    /// From a positive or negative return code; 0, which names no error, becomes `EIO`.
    pub fn new(code: i32) -> Self {
        Self(NonZeroI32::new(code.saturating_abs()).unwrap_or(Self::UNSPECIFIED))
    }

    /// From what an operation returned as `ssize_t`.
    pub(crate) fn from_ssize(code: isize) -> Self {
        Self::new(i32::try_from(code).unwrap_or(libc::EIO))
    }

    /// The positive number.
    pub fn get(self) -> i32 {
        self.0.get()
    }
}

/// An error with what to do about it, for texts of errors that stand by themselves.
pub(crate) struct Advised {
    errno: FabricErrno,
    advice: &'static str,
}

impl Advised {
    /// What mostly causes it, or how to learn more.
    pub(crate) fn of(errno: &FabricErrno) -> Self {
        let advice = match errno.get() {
            libc::ECONNREFUSED => {
                "nobody listens there: does the receiver run, at this address and port?"
            }
            libc::EADDRINUSE => "another endpoint listens there: take another port, or 0 for any",
            libc::EADDRNOTAVAIL => "that is no address of this machine",
            libc::ENETUNREACH | libc::EHOSTUNREACH => "there is no route from here to that address",
            libc::EMFILE | libc::ENFILE => {
                "no file descriptor is left: close some, or raise RLIMIT_NOFILE (`ulimit -n`)"
            }
            libc::ENOMEM => {
                "the system or the provider has no room: use less memory, smaller depths or fewer \
                 slots, or raise RLIMIT_MEMLOCK (`ulimit -l`)"
            }
            libc::EACCES | libc::EPERM => {
                "this user may not: look at the rights of the device's files"
            }
            libc::ENOSYS | libc::EOPNOTSUPP => "the provider does not have it",
            _ => "FI_LOG_LEVEL=info in the environment has libfabric say more",
        };
        let errno = *errno;
        Self { errno, advice }
    }

    /// The same of an attempt to connect, where a peer that is none of ours comes to other numbers:
    /// over tcp, one that hangs up is EINPROGRESS, or EIO where that comes in the middle of reading
    /// its answer; one that says something else is ENOPROTOOPT.
    pub(crate) fn of_connecting(errno: &FabricErrno) -> Self {
        match errno.get() {
            libc::EINPROGRESS
            | libc::EIO
            | libc::ENOPROTOOPT
            | libc::EPROTO
            | libc::EBADMSG
            | libc::ECONNRESET
            | libc::ECONNABORTED
            | libc::EPIPE
            | libc::ENOTCONN
            | libc::ESHUTDOWN => Self {
                errno: *errno,
                advice: "something listens there, and most likely does not speak fabricast: is it \
                         the receiver's address and port?",
            },
            _ => Self::of(errno),
        }
    }
}

impl fmt::Display for Advised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.errno, self.advice)
    }
}

impl fmt::Display for FabricErrno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match libfabric_sys::Library::load() {
            Ok(library) => write!(f, "{} ({})", library.fi_strerror(self.get()), self.get()),
            Err(_) => write!(f, "libfabric error {}", self.get()),
        }
    }
}

impl fmt::Debug for FabricErrno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why one operation that was accepted failed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{errno}{}{provider_message}", if provider_message.is_empty() { "" } else { ": " })]
pub struct CompletionError {
    /// libfabric's error number.
    pub errno: FabricErrno,
    /// The provider's own error number, 0 if it gave none.
    pub provider_errno: i32,
    /// The provider's words for it, may be empty.
    pub provider_message: String,
    /// The peer did not take a long message: the longest that it does, in bytes.
    pub limit_bytes: Option<u64>,
}

fabricast_process::debug_as_words!(CompletionError);

impl CompletionError {
    /// An error that we found ourselves.
    pub(crate) fn new(errno: i32) -> Self {
        Self {
            errno: FabricErrno::new(errno),
            provider_errno: 0,
            provider_message: String::new(),
            limit_bytes: None,
        }
    }
}
