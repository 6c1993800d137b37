//! `ObjectChecksum`: CRC-64/NVME and CRC32C, of pieces that come in any order.

use std::collections::BTreeMap;
use std::fmt;

use crc_fast::{CrcAlgorithm, Digest};

/// Which checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ChecksumKind {
    /// CRC-64/NVME, 8 bytes. The default.
    #[default]
    Crc64Nvme,
    /// CRC32C (Castagnoli), 4 bytes.
    Crc32c,
}

impl ChecksumKind {
    fn algorithm(self) -> CrcAlgorithm {
        match self {
            Self::Crc64Nvme => CrcAlgorithm::Crc64Nvme,
            Self::Crc32c => CrcAlgorithm::Crc32Iscsi,
        }
    }
}

/// The checksum of some bytes.
///
/// ```
/// use fabricast::object::{ChecksumKind, ObjectChecksum};
/// let check = ObjectChecksum::of(ChecksumKind::Crc64Nvme, b"123456789");
/// assert_eq!(check.to_string(), "crc64nvme:ae8b14860a799888");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObjectChecksum {
    /// Which checksum it is.
    pub kind: ChecksumKind,
    /// Its value; a CRC32C in the lower half.
    pub value: u64,
}

impl ObjectChecksum {
    /// Computes the checksum of these bytes.
    pub fn of(kind: ChecksumKind, bytes: &[u8]) -> Self {
        let value = crc_fast::checksum(kind.algorithm(), bytes);
        Self { kind, value }
    }

    /// That of these bytes and `len` others behind them, which have another of the same kind.
    pub(crate) fn followed_by(self, other: Self, len: u64) -> Self {
        let kind = self.kind;
        let value = crc_fast::checksum_combine(kind.algorithm(), self.value, other.value, len);
        Self { kind, value }
    }
}

impl fmt::Display for ObjectChecksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            ChecksumKind::Crc64Nvme => write!(f, "crc64nvme:{:016x}", self.value),
            ChecksumKind::Crc32c => write!(f, "crc32c:{:08x}", self.value),
        }
    }
}

impl fmt::Debug for ObjectChecksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The checksum of bytes that come in pieces, in any order.
///
/// What comes in order goes on where the last piece ended; what comes early waits as a checksum of
/// its own, and is put behind when the gap is closed. It holds as many as there are gaps, which the
/// pieces in flight bound.
pub(crate) struct RangeChecksum {
    kind: ChecksumKind,
    /// Of everything in front of `done`.
    digest: Digest,
    done: u64,
    early: BTreeMap<u64, Digest>,
}

impl RangeChecksum {
    /// Of bytes from `start` on.
    pub(crate) fn new(kind: ChecksumKind, start: u64) -> Self {
        Self {
            kind,
            digest: Digest::new(kind.algorithm()),
            done: start,
            early: BTreeMap::new(),
        }
    }

    /// Goes on behind `done` bytes that have this CRC-64/NVME.
    pub(crate) fn behind(crc64: u64, done: u64) -> Self {
        let kind = ChecksumKind::Crc64Nvme;
        Self {
            kind,
            // Its state is its value, inverted.
            digest: Digest::new_with_init_state(kind.algorithm(), !crc64),
            done,
            early: BTreeMap::new(),
        }
    }

    /// A piece that begins at byte `at`; none overlaps another.
    pub(crate) fn add(&mut self, at: u64, piece: &[u8]) {
        if at != self.done {
            let mut digest = Digest::new(self.kind.algorithm());
            digest.update(piece);
            self.early.insert(at, digest);
            return;
        }
        self.digest.update(piece);
        self.done += piece.len() as u64;
        while let Some(next) = self.early.remove(&self.done) {
            self.done += next.get_amount();
            self.digest.combine(&next);
        }
    }

    /// Where the first byte is that did not come yet.
    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    /// Of what came without a gap.
    pub(crate) fn value(&self) -> ObjectChecksum {
        ObjectChecksum {
            kind: self.kind,
            value: self.digest.finalize(),
        }
    }
}

impl fmt::Debug for RangeChecksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RangeChecksum")
            .field("kind", &self.kind)
            .field("done", &self.done)
            .field("early", &self.early.len())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/checksum.rs"]
mod tests;
