//! `OutgoingStage`: how far a stream is at its sender.

use super::had_blocks::HadBlocks;
use crate::stream::wire::{Open, OpenFlags};

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
    /// The manifest and owners are said, and so many bytes of extended attributes.
    Attributing {
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
    /// Open was said, and the manifest up to this entry.
    pub(super) fn opened_up_to(next: usize, open: &Open) -> Self {
        let is_owned = open.flags.contains(OpenFlags::OWNERS);
        match next as u64 == open.entries {
            true if is_owned => Self::owned_up_to(0, open),
            true => Self::attributed_up_to(0, open),
            false => Self::Opening {
                is_open: true,
                next,
            },
        }
    }

    /// The manifest was said, and owners up to this entry.
    pub(super) fn owned_up_to(next: usize, open: &Open) -> Self {
        match next as u64 == open.entries {
            true => Self::attributed_up_to(0, open),
            false => Self::Owning { next },
        }
    }

    /// The manifest and owners were said, and so many bytes of extended attributes.
    pub(super) fn attributed_up_to(next: usize, open: &Open) -> Self {
        match next as u64 == u64::from(open.attribute_bytes) {
            true => Self::Opened,
            false => Self::Attributing { next },
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
            Self::Opening { .. } | Self::Owning { .. } | Self::Attributing { .. } => {
                "the stream is being opened"
            }
            Self::Opened => "the stream is not accepted yet",
            Self::Having(_) => "the peer says what it has",
            Self::Comparing { .. } => "the peer says what lies in its files",
            Self::Sending => "blocks are sent",
            Self::Over => "the stream is over",
        }
    }
}
