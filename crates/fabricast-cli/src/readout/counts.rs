//! What a source counts of its events.

/// What a session counts beside what its links do.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Events taken from the detectors, and the fragments of them.
    pub(crate) events: u64,
    pub(crate) fragments: u64,
    /// Events without the fragment of some detector.
    pub(crate) incomplete: u64,
    /// Events that went to another builder, because theirs was lost.
    pub(crate) reassigned: u64,
    /// Fragments that were sent once more for that.
    pub(crate) resent: u64,
    /// Events that were lost with their builder, and their fragments.
    pub(crate) lost_events: u64,
    pub(crate) lost_fragments: u64,
    /// Answers for events that were somebody else's by then.
    pub(crate) late_answers: u64,
    /// Times that no event could be taken because too many were out.
    pub(crate) window: u64,
}
