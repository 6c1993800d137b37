//! `MaybeDangling`: a buffer that moves while others know where its bytes are.
//!
//! A box that is moved claims to be the only way to its bytes, as the compiler sees it: addresses
//! that were taken before the move are void then. A buffer that the kernel writes to is therefore
//! moved as bytes of an unknown kind, until it is given back.

#![allow(unsafe_code)]

use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};

/// Holds a buffer. Addresses of the buffer's bytes that were taken while it is in here are good
/// until it is taken out.
pub(super) struct MaybeDangling<B>(MaybeUninit<B>);

impl<B> MaybeDangling<B> {
    #[inline(always)]
    pub(super) fn new(buffer: B) -> Self {
        Self(MaybeUninit::new(buffer))
    }

    /// The buffer. Nobody else uses its bytes, or knows where they are from before.
    #[inline(always)]
    pub(super) fn get_mut(&mut self) -> &mut B {
        // SAFETY: made with a value (`new`), which only leaves with `self` (`into_inner`, `drop`).
        unsafe { self.0.assume_init_mut() }
    }

    /// Takes it out. Nobody else uses its bytes any more.
    #[inline(always)]
    pub(super) fn into_inner(self) -> B {
        let this = ManuallyDrop::new(self);
        // SAFETY: as in `get_mut`; `this` is neither used nor dropped after.
        unsafe { this.0.assume_init_read() }
    }
}

impl<B> Drop for MaybeDangling<B> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: as in `get_mut`; dropped once, here.
        unsafe { self.0.assume_init_drop() };
    }
}

impl<B> fmt::Debug for MaybeDangling<B> {
    /// Not its bytes, which others may be writing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Under Miri, this is an error with the box itself in place of `MaybeDangling`.
    #[test]
    fn an_address_of_a_box_stays_good_while_it_moves() {
        let mut still = MaybeDangling::new(vec![0_u8; 8].into_boxed_slice());
        let address = still.get_mut().as_mut_ptr();
        let moved = Box::new(still);
        // SAFETY: eight bytes, which nobody else uses.
        unsafe { address.write_bytes(7, 8) };
        let still = *moved;
        assert_eq!(*still.into_inner(), [7; 8]);
    }

    #[test]
    fn it_is_dropped_once() {
        let counted = std::rc::Rc::new(());
        let still = MaybeDangling::new(std::rc::Rc::clone(&counted));
        assert_eq!(std::rc::Rc::strong_count(&counted), 2);
        drop(still);
        assert_eq!(std::rc::Rc::strong_count(&counted), 1);
        let out = MaybeDangling::new(std::rc::Rc::clone(&counted)).into_inner();
        assert_eq!(std::rc::Rc::strong_count(&out), 2);
    }
}
