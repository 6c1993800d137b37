//! `Kind`: which message a header begins.

use super::{HEADER_LEN, layout};

/// The kind byte of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Kind(pub(crate) u8);

impl Kind {
    pub(crate) const HELLO: Self = Self(1);
    /// From either side.
    pub(crate) const PROOF: Self = Self(2);
    pub(crate) const OPEN: Self = Self(3);
    pub(crate) const MANIFEST: Self = Self(4);
    pub(crate) const BLOCK: Self = Self(5);
    pub(crate) const FINISH: Self = Self(6);
    pub(crate) const RAIL_LOST: Self = Self(7);
    pub(crate) const PLACED: Self = Self(8);
    /// From either side.
    pub(crate) const CANCEL: Self = Self(9);
    pub(crate) const PAUSE: Self = Self(10);
    pub(crate) const PACK: Self = Self(11);
    pub(crate) const ZEROS: Self = Self(12);
    pub(crate) const SAME: Self = Self(13);
    pub(crate) const OWNERS: Self = Self(14);
    pub(crate) const ATTRIBUTES: Self = Self(15);
    pub(crate) const HELLO_ACK: Self = Self(17);
    pub(crate) const ACCEPT: Self = Self(18);
    pub(crate) const HAVE: Self = Self(19);
    /// From either side in a handshake, from a receiver afterwards.
    pub(crate) const REFUSE: Self = Self(20);
    pub(crate) const CREDIT: Self = Self(21);
    pub(crate) const WRITTEN: Self = Self(22);
    pub(crate) const DAMAGED: Self = Self(23);
    pub(crate) const MISSING: Self = Self(24);
    pub(crate) const COMPLETE: Self = Self(25);
    pub(crate) const FAILED: Self = Self(26);
    pub(crate) const WINDOW: Self = Self(27);
    pub(crate) const FREED: Self = Self(28);
    pub(crate) const SUMS: Self = Self(29);

    /// The kind of a header, unless it is none of a stream's.
    pub(crate) fn peek(header: &[u8]) -> Option<Self> {
        (header.len() == HEADER_LEN && header.starts_with(&layout::MAGIC)).then(|| Self(header[4]))
    }
}
