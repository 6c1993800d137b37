//! `SenderControl`: which control message a sender says next.

/// A control message that is being sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SenderControl {
    Open,
    Part { next: usize },
    Owners { next: usize },
    Attributes { next: usize },
    Finish,
    RailLost(u16),
    Pause(bool),
    Cancel,
}
