//! `ObjectStats`: what a client or a server counted, copied out.

use std::fmt;
use std::ops::AddAssign;

use crate::metrics::{Latencies, WatchedKind};
use crate::object::{ObjectError, ObjectOperation, TransferCause, TransferErrorKind};

/// Which side counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ObjectSide {
    /// One that lends memory.
    Client,
    /// One that moves the bytes.
    Server,
}

impl ObjectSide {
    /// What one of this side is watched as.
    pub(super) fn watched_kind(self) -> WatchedKind {
        match self {
            Self::Client => WatchedKind::ObjectClient,
            Self::Server => WatchedKind::ObjectServer,
        }
    }

    /// The side of what is watched as this.
    pub(super) fn of_kind(kind: WatchedKind) -> Option<Self> {
        let sides = [Self::Client, Self::Server];
        sides.into_iter().find(|side| side.watched_kind() == kind)
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

impl fmt::Display for ObjectSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

pub(super) fn label(operation: ObjectOperation) -> &'static str {
    match operation {
        ObjectOperation::Get => "get",
        ObjectOperation::Put => "put",
    }
}

/// Why a transfer failed, as it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// It was refused before anything was begun: its token, its range, its rights.
    Refused,
    /// It was not taken now, since the limits of what may be under way were reached.
    WouldBlock,
    /// Its deadline passed.
    Deadline,
    /// The provider reported a failure, or the other side went away.
    Peer,
    /// The application's callback failed.
    Callback,
    /// The store failed.
    Store,
    /// What it went over was given up or closed.
    Reset,
    /// Anything else.
    Other,
}

impl FailureKind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Refused,
        Self::WouldBlock,
        Self::Deadline,
        Self::Peer,
        Self::Callback,
        Self::Store,
        Self::Reset,
        Self::Other,
    ];

    /// Its place in [`ALL`](Self::ALL).
    pub(super) fn index(self) -> usize {
        self as usize
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::WouldBlock => "would_block",
            Self::Deadline => "deadline",
            Self::Peer => "peer",
            Self::Callback => "callback",
            Self::Store => "store",
            Self::Reset => "reset",
            Self::Other => "other",
        }
    }
}

impl From<&TransferErrorKind> for FailureKind {
    /// What a server's error counts as.
    fn from(error: &TransferErrorKind) -> Self {
        use TransferErrorKind as Kind;
        match error {
            Kind::Full { .. } | Kind::PeersInUse { .. } => Self::WouldBlock,
            Kind::Deadline | Kind::Budget { .. } => Self::Deadline,
            Kind::Contact { .. } | Kind::Fabric { .. } | Kind::Completion(_) => Self::Peer,
            Kind::Endpoint { .. } | Kind::Reset | Kind::Closed | Kind::Forked(_) => Self::Reset,
            Kind::Gate { .. } => Self::Other,
            Kind::Provider { .. }
            | Kind::Name { .. }
            | Kind::Peer { .. }
            | Kind::Network { .. }
            | Kind::OutOfRange { .. }
            | Kind::Key { .. }
            | Kind::Empty
            | Kind::NotRegistered { .. }
            | Kind::ForeignBuffer { .. }
            | Kind::NotStaged { .. } => Self::Refused,
        }
    }
}

impl From<&TransferCause> for FailureKind {
    /// What a client's error counts as.
    fn from(cause: &TransferCause) -> Self {
        match cause {
            TransferCause::Callback(_) | TransferCause::TooMany { .. } => Self::Callback,
            TransferCause::Object(ObjectError::Quarantined) => Self::Deadline,
            TransferCause::Object(ObjectError::TooManyTokens { .. }) => Self::WouldBlock,
            TransferCause::Object(_)
            | TransferCause::BeyondObjects { .. }
            | TransferCause::OtherClient => Self::Refused,
            TransferCause::Device(_) => Self::Other,
        }
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// Statistics of one client or server, or of several added up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectStats {
    /// Objects that were written into memory of clients.
    pub get: OperationStats,
    /// Objects that were read from memory of clients.
    pub put: OperationStats,
    /// Calls of the application.
    pub callbacks: CallbackStats,
    /// Memory that was lent.
    pub lending: LendingStats,
}

impl ObjectStats {
    /// The part for an operation.
    pub fn operation(&self, operation: ObjectOperation) -> &OperationStats {
        match operation {
            ObjectOperation::Get => &self.get,
            ObjectOperation::Put => &self.put,
        }
    }
}

impl AddAssign<&Self> for ObjectStats {
    fn add_assign(&mut self, other: &Self) {
        self.get += &other.get;
        self.put += &other.put;
        self.callbacks.failed += other.callbacks.failed;
        self.callbacks.latency += &other.callbacks.latency;
        let (sum, it) = (&mut self.lending, &other.lending);
        sum.tokens += it.tokens;
        sum.rekeyed += it.rekeyed;
        sum.quarantines += it.quarantines;
        sum.quarantined_bytes += it.quarantined_bytes;
    }
}

/// Statistics of one operation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationStats {
    /// Transfers that moved all of their bytes.
    pub done: u64,
    /// Bytes that were moved, by transfers that failed too, as far as they got.
    pub bytes: u64,
    /// Transfers that failed, in the order of [`FailureKind::ALL`].
    pub(super) failures: [u64; FailureKind::ALL.len()],
    /// How long transfers took, those that failed too.
    pub latency: Latencies,
}

impl OperationStats {
    /// How many failed for this reason.
    pub fn failures(&self, kind: FailureKind) -> u64 {
        self.failures[kind.index()]
    }

    /// How many failed.
    pub fn failed(&self) -> u64 {
        self.failures.iter().sum()
    }

    /// How many are over, whatever became of them.
    pub fn transfers(&self) -> u64 {
        self.done + self.failed()
    }
}

impl AddAssign<&Self> for OperationStats {
    fn add_assign(&mut self, other: &Self) {
        self.done += other.done;
        self.bytes += other.bytes;
        for (sum, it) in self.failures.iter_mut().zip(other.failures) {
            *sum += it;
        }
        self.latency += &other.latency;
    }
}

/// Statistics of the application's callbacks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallbackStats {
    /// Calls that returned an error.
    pub failed: u64,
    /// How long calls took, those that failed too; how many there were, it says as well.
    pub latency: Latencies,
}

/// Statistics of memory that is lent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LendingStats {
    /// Tokens that were given out.
    pub tokens: u64,
    /// Times that memory got a new key, so that old tokens do not reach it.
    pub rekeyed: u64,
    /// Times that memory was kept back, since something late might still have reached it.
    pub quarantines: u64,
    /// Bytes that are kept back now.
    pub quarantined_bytes: u64,
}
