//! `SharedReceives`: the account of receives that all connections of one endpoint share (RDM form).
//!
//! A message takes whichever receive is next, so receives belong to nobody; what a connection has
//! is a promise that so many are there for it. A message counts against the promise of the
//! connection that it names. A few are promised to nobody: for hellos, and for what names no
//! connection.
//!
//! ```text
//!  posted  =  promised (sum over connections)  +  spare  +  surplus
//! ```
//!
//! The surplus is of connections that are over; others take it over.

/// Receives that are kept for hellos, at most.
const SPARE_MAX: u32 = 8;

/// The account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharedReceives {
    posted: u32,
    promised: u32,
    spare: u32,
    limit: u32,
}

impl SharedReceives {
    /// For a pool of so many buffers, and a provider that takes so many receives.
    pub(crate) fn new(pool: usize, provider: u32) -> Self {
        let pool = u32::try_from(pool).unwrap_or(u32::MAX);
        Self {
            posted: 0,
            promised: 0,
            spare: (pool / 16).clamp(1, SPARE_MAX),
            limit: provider,
        }
    }

    /// A receive was posted.
    pub(crate) fn on_posted(&mut self) {
        self.posted += 1;
    }

    /// A receive is over. It may be one that somebody counts on: then the next that is posted takes
    /// its place.
    pub(crate) fn on_over(&mut self) {
        debug_assert!(self.posted > 0, "more receives over than posted");
        self.posted = self.posted.saturating_sub(1);
    }

    /// A connection counts on one more.
    pub(crate) fn promise(&mut self) {
        self.promised += 1;
    }

    /// A connection has used some, or is over: they are nobody's.
    pub(crate) fn release(&mut self, receives: u32) {
        debug_assert!(self.promised >= receives, "more released than promised");
        self.promised = self.promised.saturating_sub(receives);
    }

    /// Receives that are posted and needed for nothing: to be promised without posting.
    pub(crate) fn surplus(&self) -> u32 {
        self.posted
            .saturating_sub(self.promised.saturating_add(self.spare))
    }

    /// Receives that have to be posted for what was promised, and for hellos: a hello that is being
    /// answered has taken one.
    pub(crate) fn gap(&self) -> u32 {
        let needed = self.promised.saturating_add(self.spare);
        needed.saturating_sub(self.posted)
    }

    /// Receives are lacking for what was promised, or for hellos, and the provider takes one more.
    pub(crate) fn lacks(&self) -> bool {
        self.posted < self.promised.saturating_add(self.spare) && self.posted < self.limit
    }

    /// How many more can be promised, as far as the provider goes.
    pub(crate) fn room(&self) -> u32 {
        self.limit
            .saturating_sub(self.promised.saturating_add(self.spare))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_closed_connection_leaves_is_taken_over() {
        let mut receives = SharedReceives::new(256, 100);
        assert_eq!((receives.spare, receives.room()), (8, 92));
        while receives.lacks() {
            receives.on_posted();
        }
        assert_eq!((receives.posted, receives.surplus()), (8, 0));
        for _ in 0..10 {
            receives.promise();
            receives.on_posted();
        }
        assert_eq!((receives.surplus(), receives.room()), (0, 82));
        receives.release(10);
        assert_eq!((receives.surplus(), receives.lacks()), (10, false));
        for _ in 0..4 {
            receives.promise();
        }
        assert_eq!((receives.posted, receives.surplus()), (18, 6));
    }

    #[test]
    fn a_stranger_s_message_leaves_a_gap_that_is_filled() {
        let mut receives = SharedReceives::new(16, 100);
        receives.on_posted();
        receives.promise();
        receives.on_posted();
        assert!(!receives.lacks());
        receives.on_over();
        assert!(receives.lacks());
        receives.on_posted();
        assert!(!receives.lacks());
    }

    #[test]
    fn a_provider_with_a_short_queue_is_not_asked_for_more() {
        let mut receives = SharedReceives::new(256, 4);
        while receives.lacks() {
            receives.on_posted();
        }
        assert_eq!((receives.posted, receives.room()), (4, 0));
    }
}
