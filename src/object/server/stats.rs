//! `ChannelStats`: what a channel counts.

/// Counters of one [`ObjectChannel`](super::ObjectChannel). Transfers:
/// `accepted = done + failed + open`, always.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelStats {
    /// Transfers that were accepted.
    pub accepted: u64,
    /// Of these, those that were done.
    pub done: u64,
    /// Of these, those that failed.
    pub failed: u64,
    /// Of those that failed, those whose deadline passed.
    pub cut_off: u64,
    /// Transfers accepted whose outcome was not told yet.
    pub open: u64,
    /// Transfers whose outcome was told, and whose memory the provider still has.
    pub late: u64,
    /// Bytes of the transfers that were done.
    pub bytes: u64,
    /// Transfers that were refused.
    pub refused: u64,
    /// Posts that the provider answered with `-FI_EAGAIN`.
    pub eagain: u64,
    /// Endpoints given up because of late transfers, or because they broke.
    pub resets: u64,
    /// Endpoints that are open: one, and those that were given up and are not closed yet.
    pub endpoints: u64,
    /// Clients that the channel knows.
    pub peers: u64,
    /// Clients that were asked for, and that the provider has not answered for yet.
    pub contacts: u64,
    /// Transfers whose memory was leaked because the provider would not let go of it.
    pub leaked: u64,
}
