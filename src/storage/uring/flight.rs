//! `Flight`: a request between its submission and its end, with the owner of its memory.

use super::request::{Moved, Progress};
use crate::in_flight::Finished;

/// What a ring keeps of a request.
pub(super) struct Flight<T> {
    pub(super) progress: Progress,
    pub(super) owner: T,
}

/// A request that was not taken: the ring is full.
#[derive(Debug)]
pub(crate) struct Full<T>(pub(crate) T);

/// A request that is over, with the owner of its memory.
#[derive(Debug)]
pub(crate) struct Completed<T> {
    pub(crate) owner: T,
    pub(crate) moved: Moved,
}

/// A request that is over, with the owner of its memory still in its place. Dropping this drops
/// what is left of the owner.
pub(crate) struct Ended<'a, T>(pub(super) Finished<'a, Flight<T>>);

impl<T> Ended<'_, T> {
    /// The owner, out of which may be taken what lives on. It is there.
    #[inline]
    pub(crate) fn owner(&mut self) -> Option<&mut T> {
        self.0.op().as_mut().map(|flight| &mut flight.owner)
    }

    /// Of an owner out of which all was taken that is to be dropped.
    #[inline(always)]
    pub(crate) fn clear_away(self) {
        self.0.clear_away();
    }

    /// Takes it out. It is there.
    #[inline]
    pub(crate) fn into_owner(self) -> Option<T> {
        self.0.into_op().map(|flight| flight.owner)
    }
}
