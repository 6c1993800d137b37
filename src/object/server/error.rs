//! Why a transfer was refused, or failed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::endpoint::PeerAddr;
use crate::errno::{Advised, CompletionError, FabricErrno};
use crate::process::Forked;

/// Why an [`ObjectChannel`](super::ObjectChannel) refused a transfer, or why one failed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferErrorKind {
    /// Not now: the channel has as many transfers as it may have.
    #[error(
        "{depth} transfers are under way, as many as the setting `depth` allows: poll, and try \
         again"
    )]
    Full {
        /// The setting.
        depth: u32,
    },
    /// Not now: as many clients as the channel knows at once have transfers under way.
    #[error(
        "{limit} clients have transfers under way, as many as the setting `peers` allows: poll, \
         and try again"
    )]
    PeersInUse {
        /// The setting.
        limit: u32,
    },
    /// The token is for another provider.
    #[error(
        "the token is for the provider {token:?}, and this server has {server:?}: both ends need \
         the same one"
    )]
    Provider {
        /// The token's.
        token: Box<str>,
        /// The server's.
        server: &'static str,
    },
    /// The name in the token is no address of this provider, or nobody can be there.
    #[error("the name in the token ({bytes} bytes) is no address of a peer of provider {provider}")]
    Name {
        /// Its length in bytes.
        bytes: usize,
        /// The server's provider.
        provider: &'static str,
    },
    /// The name in the token is well formed, and this server does not talk to whoever has it.
    #[error("the client at {address}: {reason}")]
    Peer {
        /// Where the token says that its client is.
        address: PeerAddr,
        /// Why not, in words.
        reason: Arc<str>,
    },
    /// The name in the token is an address where no client may be.
    #[error(
        "the client at {address} is in none of the networks that clients may be in ({networks}): \
         ask from that address, or set ObjectServerConfig::clients"
    )]
    Network {
        /// Where the token says that its client is.
        address: PeerAddr,
        /// The setting.
        networks: Arc<str>,
    },
    /// The bytes are not inside of the token's window.
    #[error("{len} bytes at {at} are not inside of the token's window of {window_len} bytes")]
    OutOfRange {
        /// Where in the window, in bytes.
        at: u64,
        /// How many bytes.
        len: u64,
        /// The window's length in bytes.
        window_len: u64,
    },
    /// The key has more bytes than the provider's have.
    #[error("the token's key has more than the {key_bytes} bytes of this provider's keys")]
    Key {
        /// Bytes of a key here.
        key_bytes: usize,
    },
    /// There is no byte to move.
    #[error("a transfer moves at least 1 byte")]
    Empty,
    /// There is too little time left to begin.
    #[error(
        "{left:?} are left until the deadline, and a transfer is not begun with less than {min:?} \
         (setting `min_budget`)"
    )]
    Budget {
        /// What is left.
        left: Duration,
        /// The setting.
        min: Duration,
    },
    /// A region is not registered.
    #[error(
        "segment {segment} lies in a region that is not registered: call Region::register with \
         ObjectServer::domain"
    )]
    NotRegistered {
        /// Which segment, from 0.
        segment: usize,
    },
    /// A region is registered, but not with the server's domain.
    #[error(
        "segment {segment} lies in a region that is registered with another domain only: call \
         Region::register with ObjectServer::domain, too"
    )]
    ForeignBuffer {
        /// Which segment, from 0.
        segment: usize,
    },
    /// A region is a device's memory that the provider can't reach.
    #[error(
        "segment {segment} lies in a device's memory that the provider can't reach (Region::path \
         says why): copy it to memory of the host first"
    )]
    NotStaged {
        /// Which segment, from 0.
        segment: usize,
    },
    /// What the payload was to be sent after never came.
    #[error("what the payload was to wait for never came: {reason}")]
    Gate {
        /// Why not, in words.
        reason: Arc<str>,
    },
    /// The deadline passed.
    #[error("the deadline passed")]
    Deadline,
    /// The provider does not take the client's address.
    #[error("the provider does not take the client's address: {reason}")]
    Contact {
        /// Why not, in words.
        reason: Arc<str>,
    },
    /// There is no endpoint for it, and none can be made.
    #[error("no endpoint could be opened: {reason}")]
    Endpoint {
        /// Why not, in words.
        reason: Arc<str>,
    },
    /// The provider refused to begin.
    #[error("{call}: {}", Advised::of(errno))]
    Fabric {
        /// The C function.
        call: &'static str,
        /// Its error.
        errno: FabricErrno,
    },
    /// The provider reported a failure: a window that is not there any more, say, or a client that
    /// went away.
    #[error(transparent)]
    Completion(CompletionError),
    /// The endpoint that it went over was given up.
    #[error("the endpoint that it went over was given up")]
    Reset,
    /// The channel was closed.
    #[error("the channel was closed")]
    Closed,
    /// The channel was made by the process that this one was forked from.
    #[error("{0}: open a server of its own in the child")]
    Forked(Forked),
}

fabricast_process::debug_as_words!(TransferErrorKind);

impl TransferErrorKind {
    /// Whether it is back-pressure: the same may be taken after the next events.
    pub fn is_would_block(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::PeersInUse { .. })
    }
}

/// Why a transfer that was accepted failed.
#[derive(Clone, PartialEq, Eq)]
pub struct TransferError {
    /// Why.
    pub kind: TransferErrorKind,
    /// Whether anything may have gone out. If not, no byte of the client's memory was touched, and
    /// none will be.
    pub posted: bool,
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let posted = match self.posted {
            true => "some of it may have gone out",
            false => "nothing of it went out",
        };
        write!(f, "{}; {posted}", self.kind)
    }
}

impl std::error::Error for TransferError {}

fabricast_process::debug_as_words!(TransferError);
