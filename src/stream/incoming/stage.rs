//! `IncomingStage`: how far a stream is at its receiver.

/// How far a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IncomingStage {
    Manifest,
    Deciding,
    Receiving,
    /// All is there; the sink is being finished.
    Whole,
    Over,
}

impl IncomingStage {
    /// As it is said in an error.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Manifest => "the manifest is not whole",
            Self::Deciding => "the stream is not accepted yet",
            Self::Receiving => "blocks are received",
            Self::Whole => "all blocks are there",
            Self::Over => "the stream is over",
        }
    }
}
