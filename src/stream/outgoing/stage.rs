//! `OutgoingStage`: how far a stream is at its sender.

use super::had_blocks::HadBlocks;

/// How far a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutgoingStage {
    /// What is said of the stream: nothing, or `Open` and the manifest up to this entry.
    Opening {
        is_open: bool,
        next: usize,
    },
    /// The manifest is said, and owners up to this entry.
    Owning {
        next: usize,
    },
    /// All was said; the peer has not accepted.
    Opened,
    /// The peer has accepted, and says what it has.
    Having(HadBlocks),
    /// The peer says the sums of so many blocks, all of them from that one on.
    Comparing {
        left: u64,
        from: u64,
    },
    Sending,
    Over,
}

impl OutgoingStage {
    /// Open was said, and the manifest up to this entry, of so many; owners follow, or not.
    pub(super) fn opened_up_to(next: usize, entries: u64, owned: bool) -> Self {
        match next as u64 == entries {
            true if owned && entries > 0 => Self::Owning { next: 0 },
            true => Self::Opened,
            false => Self::Opening {
                is_open: true,
                next,
            },
        }
    }

    /// The peer has said what it has, and says the sums of so many blocks.
    pub(super) fn comparing(blocks: u64) -> Self {
        match blocks {
            0 => Self::Sending,
            left => Self::Comparing { left, from: 0 },
        }
    }

    /// As it is said in an error.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Opening { .. } | Self::Owning { .. } => "the stream is being opened",
            Self::Opened => "the stream is not accepted yet",
            Self::Having(_) => "the peer says what it has",
            Self::Comparing { .. } => "the peer says what lies in its files",
            Self::Sending => "blocks are sent",
            Self::Over => "the stream is over",
        }
    }
}
