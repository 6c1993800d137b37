//! `RemoteProgress`: how far the peer of a stream is, as it says.

/// What the peer has said.
#[derive(Debug, Default)]
pub(super) struct RemoteProgress {
    /// Blocks and bytes that it had before the stream began.
    pub(super) had: (u64, u64),
    /// Files that it keeps as they are.
    pub(super) unchanged: u64,
    /// Blocks and bytes that its sink had when it last said so.
    pub(super) written: (u64, u64),
    /// What it has removed.
    pub(super) deleted: u64,
    /// Blocks that came damaged.
    pub(super) damaged: u64,
    /// How often it has said something new.
    pub(super) advances: u64,
}

impl RemoteProgress {
    /// The peer says how much is written. Counts are said anew when a connection was lost: what is
    /// not above the last is old.
    pub(super) fn on_written(&mut self, blocks: u64, bytes: u64) {
        let written = (self.written.0.max(blocks), self.written.1.max(bytes));
        self.advances += u64::from(written != self.written);
        self.written = written;
    }
}
