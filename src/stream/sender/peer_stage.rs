//! `PeerStage`: how far the transfer to one peer is, and who has to do something before it goes on.

use std::time::Instant;

use super::outgoing_transfer::TransferState;
use super::peer_session::PeerSession;
use crate::stream::outgoing::OutgoingStream;
use crate::stream::report::Stall;

/// How far the transfer to one peer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerStage {
    /// The first connection is being made, or has a handshake.
    Connecting,
    /// Until the size of blocks is known.
    Ready,
    /// Until the peer has accepted, and said what it has.
    Opening,
    Sending,
    /// Finish was said.
    Finishing,
    /// Until the next attempt.
    Resting {
        until: Instant,
    },
    Over,
}

/// Who has to do something before the transfer goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerWait {
    /// The peer, or the way to it: this.
    Peer(&'static str),
    /// The source, which is being read or checked.
    Source,
    /// A buffer, or a thread: those that there are hold reads which have not come back since then.
    Readers(Instant),
    /// This side: a pause, a rate, other transfers' turns.
    Own,
}

impl PeerStage {
    /// Who has to do something, now.
    pub(super) fn wait(
        self,
        session: &PeerSession,
        transfer: &TransferState,
        now: Instant,
    ) -> PeerWait {
        let (unplaced, in_flight) = (session.rails.unplaced(), session.rails.in_flight());
        match self {
            Self::Ready => PeerWait::Peer("the peers' handshakes"),
            Self::Opening => PeerWait::Peer("the peer to accept the stream"),
            Self::Finishing => {
                PeerWait::Peer("the peer to say that all is there, or what is missing")
            }
            Self::Sending if transfer.paused => PeerWait::Own,
            Self::Sending if in_flight > 0 => {
                PeerWait::Peer("the network to take the blocks in flight")
            }
            Self::Sending if unplaced > 0 => {
                PeerWait::Peer("room to tell of blocks that were written")
            }
            Self::Sending if session.blocks.waiting() == 0 => match session.blocks.is_empty() {
                // Its turn, a buffer, or the check of the source.
                true if !session.has_sent_all() => transfer
                    .reads_since
                    .map_or(PeerWait::Own, PeerWait::Readers),
                _ => PeerWait::Source,
            },
            Self::Sending if !transfer.rate.may(now) => PeerWait::Own,
            Self::Sending if !session.has_slot() => {
                PeerWait::Peer("a slot to write into (window, freed)")
            }
            Self::Sending => PeerWait::Peer("blocks to be granted (credit)"),
            Self::Connecting | Self::Resting { .. } | Self::Over => PeerWait::Own,
        }
    }

    /// What is waited for, for the report.
    pub(super) fn stall(
        self,
        session: &PeerSession,
        transfer: &TransferState,
        now: Instant,
    ) -> Stall {
        let is_idle = session.rails.in_flight() == 0;
        let has_none = session.blocks.waiting() == 0;
        let outgoing = session.outgoing.as_ref();
        let may = session.has_slot() && outgoing.is_some_and(OutgoingStream::may_send);
        match self {
            Self::Sending if transfer.paused || !transfer.rate.may(now) => Stall::Limit,
            Self::Sending if has_none && is_idle => Stall::Disk,
            Self::Sending if has_none => Stall::None,
            Self::Sending if !may && is_idle => Stall::Sink,
            Self::Sending if !may => Stall::Credits,
            Self::Sending => Stall::Wire,
            Self::Finishing | Self::Opening => Stall::Sink,
            Self::Connecting | Self::Ready | Self::Resting { .. } => Stall::Connecting,
            Self::Over => Stall::None,
        }
    }
}

impl PeerWait {
    /// In words.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Peer(what) => what,
            Self::Source => "its source",
            Self::Readers(_) => "a buffer to read into: what is being read does not come back",
            Self::Own => "its turn, a limit or the end of a pause",
        }
    }
}
