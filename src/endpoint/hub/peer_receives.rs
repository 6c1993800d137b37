//! `PeerReceives`: the receives of one connection, and the credits that they stand for.

/// How many receives a connection has, and should have.
pub(super) struct PeerReceives {
    /// Beyond the credits.
    reserve: u32,
    /// Receives that stand for one credit.
    per_credit: u16,
    /// Posted now; in the RDM form those of the shared ones that were promised to it.
    pub(super) posted: u32,
    /// Receives that should be posted.
    target: u32,
    /// Data messages, from the first on, for which a receive was posted: those received, and those
    /// that may still come.
    covered: u64,
    /// In the list of connections that want buffers.
    pub(super) hungry: bool,
    pub(super) starved: bool,
}

impl PeerReceives {
    /// The account of a new connection: no receive is posted.
    pub(super) fn new(reserve: u32, per_credit: u32) -> Self {
        Self {
            reserve,
            // One, or two with headers that travel alone.
            per_credit: per_credit as u16,
            posted: 0,
            target: 0,
            covered: 0,
            hungry: false,
            starved: false,
        }
    }

    /// Those posted now are what the connection has from now on. The credits promised are receives
    /// that are posted, less the reserve.
    pub(super) fn begin(&mut self) -> u32 {
        self.target = self.posted;
        let credits = self.credits();
        self.covered = u64::from(credits);
        credits
    }

    /// Fewer are posted than should be.
    #[inline]
    pub(super) fn lack(&self) -> bool {
        self.posted < self.target
    }

    /// Data messages that those posted now can hold.
    pub(super) fn credits(&self) -> u32 {
        self.posted.saturating_sub(self.reserve) / u32::from(self.per_credit)
    }

    /// So many data messages were received: how many more can be held than ever before.
    pub(super) fn cover(&mut self, received: u64) -> u64 {
        let covered = received + u64::from(self.credits());
        let new = covered.saturating_sub(self.covered);
        self.covered += new;
        new
    }
}
