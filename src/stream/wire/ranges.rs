//! `Ranges`: runs of blocks in a payload, each a first block and a count, in order and apart.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CONTROL_PAYLOAD_MAX, WireError};

/// Bytes of one range.
const RANGE_LEN: usize = 16;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RangeWire {
    first: U64,
    count: U64,
}

const _: () = assert!(size_of::<RangeWire>() == RANGE_LEN);

/// Ranges of blocks as they lie in a payload: checked, and read one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ranges<'a> {
    bytes: &'a [u8],
}

impl<'a> Ranges<'a> {
    /// # Errors
    ///
    /// [`WireError::PayloadLen`] when it is no whole number of ranges, or more than a message may
    /// have; [`WireError::Ranges`] when one is empty, ends beyond the last number that there is, or
    /// does not begin behind the end of the one before, with a gap.
    pub(super) fn parse(kind: u8, bytes: &'a [u8]) -> Result<Self, WireError> {
        let whole = bytes.len() / RANGE_LEN * RANGE_LEN;
        if whole != bytes.len() || bytes.len() > CONTROL_PAYLOAD_MAX {
            return Err(WireError::PayloadLen {
                kind,
                said: CONTROL_PAYLOAD_MAX as u64,
                len: bytes.len(),
            });
        }
        let ranges = Self { bytes };
        let mut free = 0;
        for (index, (first, count)) in ranges.raw().enumerate() {
            let end = first.checked_add(count);
            match end {
                Some(end) if count > 0 && first >= free => free = end.saturating_add(1),
                _ => return Err(WireError::Ranges { index }),
            }
        }
        Ok(ranges)
    }

    fn raw(self) -> impl Iterator<Item = (u64, u64)> + 'a {
        self.bytes.chunks_exact(RANGE_LEN).map(|chunk| {
            let wire = RangeWire::read_from_bytes(chunk).expect("a chunk has its bytes");
            (wire.first.get(), wire.count.get())
        })
    }

    /// The blocks, range by range.
    pub(crate) fn iter(self) -> impl Iterator<Item = std::ops::Range<u64>> + 'a {
        self.raw().map(|(first, count)| first..first + count)
    }

    /// How many there are.
    pub(crate) fn len(self) -> usize {
        self.bytes.len() / RANGE_LEN
    }

    pub(super) fn as_bytes(self) -> &'a [u8] {
        self.bytes
    }
}

/// Ranges for one message.
#[derive(Debug, Default)]
pub(crate) struct RangesBuilder {
    bytes: Vec<u8>,
    free: u64,
}

impl RangesBuilder {
    /// Ranges that a message has room for.
    pub(crate) const ROOM: usize = CONTROL_PAYLOAD_MAX / RANGE_LEN;

    /// Puts a range behind the others.
    ///
    /// # Panics
    ///
    /// When there is no room, or the range is empty, or touches or precedes the last one.
    pub(crate) fn push(&mut self, range: std::ops::Range<u64>) {
        assert!(self.len() < Self::ROOM, "a message has room for so many");
        assert!(
            range.start < range.end && range.start >= self.free,
            "ranges are in order"
        );
        self.free = range.end.saturating_add(1);
        let wire = RangeWire {
            first: range.start.into(),
            count: (range.end - range.start).into(),
        };
        self.bytes.extend_from_slice(wire.as_bytes());
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() / RANGE_LEN
    }

    /// What a message says.
    pub(crate) fn ranges(&self) -> Ranges<'_> {
        Ranges { bytes: &self.bytes }
    }
}
