//! Errors: what went wrong, where, which limit, and what to do.
//!
//! Six kinds of failure have six homes: a programmer's error panics where documented; bad
//! configuration is [`Error::Config`]; a lacking environment is [`Error::NoProvider`],
//! [`Error::Unsupported`] or [`Error::Library`]; back-pressure is
//! [`SendErrorKind::WouldBlock`](crate::endpoint::SendErrorKind::WouldBlock) and gives the payload
//! back; one failed operation is a [`CompletionError`] in its event; a failed endpoint says so in
//! its last event and in [`Error::Closed`] from then on.
//!
//! An error lives with what it is about: those of endpoints in [`endpoint`](crate::endpoint), those
//! of files in [`storage`](crate::storage). Here is what every layer from `fabric` up may answer.
//!
//! An error is a value to be matched where a program can do something, and a text for people
//! otherwise: each text says what was asked for, which limit it met, and what to do.
//!
//! ```
//! use fabricast::{Error, Fabric};
//!
//! match Fabric::builder().provider("no_such_provider").open() {
//!     Err(Error::NoProvider(why)) => println!("{why}"),
//!     Err(other) => println!("{other}"),
//!     Ok(_) => unreachable!("there is no such provider"),
//! }
//! ```

mod diagnosis;
#[cfg(all(test, not(loom)))]
mod tests;

pub use diagnosis::{Diagnosis, Verdict};

use crate::errno::Advised;
use crate::memory::MemoryError;
use crate::process;
use crate::protocol::close_reason::{CloseReason, NotConnected, Over};

pub use crate::errno::{CompletionError, FabricErrno};
pub use crate::memory::RegisterError;
pub use crate::process::Forked;

/// What can go wrong outside a single operation.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// libfabric is missing, too old or broken.
    #[error(transparent)]
    Library(#[from] libfabric_sys::LoadError),
    /// A libfabric call failed.
    #[error("{call}: {}", Advised::of(errno))]
    Fabric {
        /// The C function.
        call: &'static str,
        /// Its error.
        errno: FabricErrno,
    },
    /// No provider does what was asked; which there are, and what ruled each out.
    #[error(transparent)]
    NoProvider(#[from] Box<Diagnosis>),
    /// The provider was found, but can't do what this library needs of it.
    #[error("provider {provider}: {need}")]
    Unsupported {
        /// The provider's name, as libfabric spells it.
        provider: String,
        /// What is missing.
        need: &'static str,
    },
    /// A setting is out of its range.
    #[error("setting {field} = {value}: {reason}")]
    Config {
        /// The setting's name.
        field: &'static str,
        /// Its value, as it was given.
        value: String,
        /// What is wrong with it, with the limit.
        reason: &'static str,
    },
    /// An address was not understood, or names nothing.
    #[error("address {address:?}: {reason}")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A system call failed.
    #[error("{call}: {source}")]
    Os {
        /// The system call.
        call: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// Memory could not be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// As many domains or endpoint scopes are open in this process as there are places for.
    #[error(
        "{limit} domains are open in this process (endpoints that need registrations of their own \
         count, too), as many as there may be: drop some, or share one"
    )]
    TooManyDomains {
        /// The limit.
        limit: usize,
    },
    /// The endpoint has as many connections as it may have.
    #[error(
        "the endpoint has {limit} connections, as many as it may have (setting `max_connections` \
         or `max_peers`): close some, or raise it"
    )]
    TooManyConnections {
        /// The limit.
        limit: u32,
    },
    /// A connection takes receive buffers, and too few are free.
    #[error(
        "{free} receive buffers are free, one connection more takes {needed} at least: let go of \
         messages, close connections, or raise the setting `slots`"
    )]
    NoReceiveBuffers {
        /// Buffers that are free.
        free: usize,
        /// Fewest that a connection takes.
        needed: usize,
    },
    /// As many endpoints of the domain have a descriptor to wait on as the kernel allows to watch
    /// the domain's own (`epoll_ctl(2)`): libfabric 2.x has each of their queues watch it.
    #[error(
        "{open} endpoints with a descriptor to wait on are open in this domain, and the kernel \
         takes no more of them: open another domain, or the fabric with WaitObject::None"
    )]
    TooManyEndpoints {
        /// Endpoints of the domain that are open and have such a descriptor.
        open: usize,
    },
    /// The provider makes no completion queue that is long enough for all that the endpoint may
    /// have in flight.
    #[error(
        "a completion queue of {entries} entries, which the endpoint may need, was refused: \
         {errno}; the device's may be shorter: lower depths, slots or connections, or use several \
         endpoints"
    )]
    CompletionQueue {
        /// Entries that were asked for.
        entries: usize,
        /// What the provider said.
        errno: FabricErrno,
    },
    /// The process may not open as many file descriptors as this needs.
    #[error(
        "{needed} file descriptors are needed and {open} are open, but RLIMIT_NOFILE is {limit} \
         (raise it with `ulimit -n` or LimitNOFILE=, or lower `max_connections`)"
    )]
    TooFewDescriptors {
        /// The soft limit in force.
        limit: u64,
        /// Descriptors that are open now.
        open: u64,
        /// Descriptors that may be needed beside them.
        needed: u64,
    },
    /// The connection that was waited for could not be made, in the last of its attempts.
    #[error("{}", NotConnected(peer, reason))]
    NotConnected {
        /// Whom this side connected to.
        peer: String,
        /// Why not.
        reason: CloseReason,
    },
    /// The connection is closed, or never came to be; the reason is the one of its last event.
    #[error(
        "{}; what is to be sent needs a new endpoint",
        Over("the connection is closed", .0)
    )]
    Closed(CloseReason),
    /// A completion named no operation of ours, or the completion queue broke. The endpoint is
    /// failed, for good.
    #[error("the endpoint failed: {0}")]
    EndpointFailed(&'static str),
    /// The handle was made by the process that this one was forked from. Open what is needed here,
    /// in this process.
    #[error(
        "made by process {made_by}, which this process was forked from: its connections and \
         registrations are not shared; open a fabric of its own in the child"
    )]
    Forked {
        /// The process that made the handle.
        made_by: u32,
    },
    /// Nothing came in time.
    #[error("{what}: not within {waited:?}")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// How long.
        waited: std::time::Duration,
    },
}

fabricast_process::debug_as_words!(Error);

impl Error {
    /// A failed libfabric call, by its return code.
    pub(crate) fn fabric(call: &'static str, code: impl Into<i64>) -> Self {
        let code = i32::try_from(code.into()).unwrap_or(libc::EIO);
        Self::Fabric {
            call,
            errno: FabricErrno::new(code),
        }
    }

    /// A failed system call.
    pub(crate) fn os(call: &'static str, source: impl Into<std::io::Error>) -> Self {
        Self::Os {
            call,
            source: source.into(),
        }
    }
}

impl From<process::Forked> for Error {
    fn from(forked: process::Forked) -> Self {
        Self::Forked {
            made_by: forked.made_by,
        }
    }
}
