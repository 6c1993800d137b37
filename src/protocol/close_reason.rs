//! How and why a connection ended.

use std::fmt;
use std::time::Duration;

use super::credit::CreditError;
use super::wire::{Refusal, WireError};
use crate::errno::{Advised, FabricErrno};

/// What a peer did that no peer of ours does.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// It sent bytes that make no sense.
    #[error("not understood: {0}")]
    Malformed(#[from] WireError),
    /// It broke the account of credits.
    #[error(transparent)]
    Credit(#[from] CreditError),
    /// It sent a message that is longer than this side said it takes.
    #[error("a message of {len_bytes} bytes where at most {limit_bytes} are taken")]
    TooLong {
        /// Length of the message, in bytes.
        len_bytes: u64,
        /// What this side takes, in bytes.
        limit_bytes: u64,
    },
    /// It said that it had sent fewer messages than arrived.
    #[error("a goodbye after {claimed} messages, but {received} had come")]
    Count {
        /// Messages that the peer says it sent.
        claimed: u64,
        /// Messages that came.
        received: u64,
    },
    /// It sent something that has no place at this moment.
    #[error("{0}")]
    OutOfTurn(&'static str),
}

fabricast_process::debug_as_words!(Violation);

/// How and why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// Both sides said goodbye, and all that the peer had sent arrived.
    #[error("finished: both sides said goodbye")]
    Finished,
    /// The peer refused the connection.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// This side refused the peer; the text speaks of this side as "the endpoint".
    #[error("refused by this side: {0}")]
    RefusedPeer(Refusal),
    /// There is no such peer, or it refused without a reason.
    #[error("could not connect: {}", Advised::of_connecting(.0))]
    ConnectFailed(FabricErrno),
    /// Nothing answered in time.
    #[error("could not connect: {SILENCE}")]
    ConnectTimedOut,
    /// The peer asked for a connection and then did not complete it in time.
    #[error("the peer did not complete the handshake in time")]
    HandshakeTimedOut,
    /// The peer went away without a goodbye.
    #[error("the peer was lost: {}", Cut(*errno))]
    PeerLost {
        /// The first error that told of it; `None` when it was an orderly shutdown of the
        /// transport.
        errno: Option<FabricErrno>,
    },
    /// Nothing came from the peer for longer than it may be silent: its process is stopped, its
    /// machine or the network between is gone.
    #[error("the peer was silent for {silence:?}")]
    PeerSilent {
        /// The setting: it was silent for at least as long.
        silence: Duration,
    },
    /// Over FI_EP_RDM: a message that the peer has sent did not come, though the peer answers and
    /// has been heard of it, or of one behind it, for as long as it may be silent. A provider that
    /// makes a connection of its own anew loses what lay in it, and tells nobody.
    #[error("the provider lost a message: it was sent, and has not come for {waited:?}")]
    MessageLost {
        /// The setting: it was waited for as long, at least.
        waited: Duration,
    },
    /// The peer gave the established connection up and said so.
    #[error("given up by the peer: {0}")]
    PeerAborted(Refusal),
    /// Both sides said goodbye, but some of what the peer had sent did not arrive.
    #[error("the peer sent {expected} messages, {received} arrived")]
    PeerTruncated {
        /// Messages that the peer says it sent.
        expected: u64,
        /// Messages that came.
        received: u64,
    },
    /// The deadline for the goodbye passed.
    #[error("the goodbye was not complete before its deadline")]
    ClosedByDeadline,
    /// This side closed before the connection was established.
    #[error("closed before it was established")]
    ClosedLocally,
    /// The peer did what no peer of ours does.
    #[error("the peer broke the protocol: {0}")]
    Violation(Violation),
    /// A send was not done within its deadline, and the policy is to fail the connection.
    #[error("a send was not done within {deadline:?}")]
    SendDeadline {
        /// The deadline of each send.
        deadline: Duration,
    },
    /// A subscriber fell behind by more than the publisher's policy allows.
    #[error(
        "the subscriber was too slow: {waiting} publications waited for it, the oldest for \
         {waited:?}"
    )]
    TooSlow {
        /// Publications that waited for it, or were on their way to it.
        waiting: u32,
        /// How long the oldest of them had.
        waited: Duration,
    },
    /// The peer did not confirm in time that it does not use a revoked window any more.
    #[error("the peer did not confirm a revoked window before the deadline")]
    RevokeDeadline,
    /// The peer was granted memory for a long message, and was not done with it before the deadline
    /// of [`LongMessages`](crate::endpoint::LongMessages).
    #[error("the peer was not done with a long message before the deadline")]
    LongDeadline,
    /// The peer did not answer a fence in time: memory that peers of this domain could reach was to
    /// come back, and it did not say that what it has under way is over. It answers as long as its
    /// endpoint is polled. Or both sides have said goodbye, and a long message was not handed out,
    /// since other connections of the domain did not pass their fences, or end, for so long.
    #[error("a fence was not answered within {limit:?} (setting `fence_timeout`)")]
    FenceDeadline {
        /// The setting `fence_timeout`; behind both goodbyes, how long a peer may be silent, or
        /// 60 s.
        limit: Duration,
    },
    /// The peer answered fences, but needed more than half of the time for it again and again:
    /// others of this domain wait for that. Its endpoint is polled too seldom.
    #[error(
        "{times} fences within ten minutes were not answered within half of {limit:?} \
         (setting `fence_timeout`)"
    )]
    FencesLate {
        /// How often it was late.
        times: u32,
        /// The setting `fence_timeout`.
        limit: Duration,
    },
    /// This side's endpoint is broken: the provider reported what can't be, or its queue overran.
    #[error("the endpoint failed: {0}")]
    EndpointFailed(&'static str),
}

fabricast_process::debug_as_words!(CloseReason);

/// What nothing but a clock tells.
const SILENCE: &str = "no answer within the connect timeout (setting `connect_timeout`): what \
                       listens there, if anything, does not speak fabricast, or its program does \
                       not poll; or a firewall drops what is sent there";

impl CloseReason {
    /// Whether it ends what never was a connection: one that could not be made.
    pub fn is_of_connecting(&self) -> bool {
        matches!(
            self,
            Self::Refused(_)
                | Self::RefusedPeer(_)
                | Self::ConnectFailed(_)
                | Self::ConnectTimedOut
                | Self::HandshakeTimedOut
                | Self::ClosedLocally
        )
    }
}

/// A connection that could not be made, to this peer: one sentence.
pub(crate) struct NotConnected<'a>(pub(crate) &'a str, pub(crate) &'a CloseReason);

impl fmt::Display for NotConnected<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(peer, reason) = self;
        write!(f, "could not connect to {peer}: ")?;
        match reason {
            CloseReason::ConnectFailed(errno) => Advised::of_connecting(errno).fmt(f),
            CloseReason::ConnectTimedOut => f.write_str(SILENCE),
            reason => fmt::Display::fmt(reason, f),
        }
    }
}

/// A connection that is over, or that could not be made: one sentence, which begins with these
/// words where the reason does not say as much.
pub(crate) struct Over<'a>(pub(crate) &'static str, pub(crate) &'a CloseReason);

impl fmt::Display for Over<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(over, reason) = self;
        match reason {
            CloseReason::ConnectFailed(_)
            | CloseReason::ConnectTimedOut
            | CloseReason::PeerLost { .. } => {}
            CloseReason::ClosedLocally => f.write_str("the connection was ")?,
            reason if reason.is_of_connecting() => f.write_str("could not connect: ")?,
            _ => write!(f, "{over}: ")?,
        }
        fmt::Display::fmt(reason, f)
    }
}

/// How a peer was lost. Most providers have no word for it but the error of what was in flight.
struct Cut(Option<FabricErrno>);

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const CUT: &str = "the connection was cut, as its process ended or its network failed";
        let Some(errno) = self.0 else {
            return f.write_str(CUT);
        };
        match errno.get() {
            // What was in flight on a connection that is over.
            libc::ECANCELED => f.write_str(CUT),
            libc::ECONNRESET
            | libc::ECONNABORTED
            | libc::EPIPE
            | libc::ENOTCONN
            | libc::ESHUTDOWN => write!(f, "{CUT}: {errno}"),
            _ => fmt::Display::fmt(&errno, f),
        }
    }
}
