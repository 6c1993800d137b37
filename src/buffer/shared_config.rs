//! `SharedBufferConfig`: how a region is cut into slots.

use crate::memory::{MemoryError, Region, round_up};

/// How a region is cut into slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedBufferConfig {
    /// The bytes of a slot that the user sees; at least 1.
    pub slot_size: usize,
    /// How many slots; `None` (the default): as many as fit into the region.
    pub slots: Option<u32>,
    /// Bytes reserved in front of each slot, for a header that must lie right before the payload:
    /// connections of the shape [`Headroom`](crate::fabric::Shape::Headroom) put it there, with the
    /// two bytes of [`HeaderMode::Prefixed`](crate::endpoint::HeaderMode::Prefixed). 0 to 65,536.
    /// Default: 0.
    ///
    /// Memory: this much a slot, rounded up so that the slots stay aligned. A slot's room holds one
    /// header at a time: clones of one buffer go out at once with equal headers, else one after the
    /// other.
    pub headroom: usize,
    /// Each slot starts at a multiple of this many bytes, a power of two. Default: 64. Direct file
    /// I/O wants 4,096.
    pub alignment: usize,
    /// What is aligned begins so many bytes into each slot instead; less than a slot. Default: 0.
    /// For a pool that messages are received into: the bytes of their headers, with the two of
    /// [`HeaderMode::Prefixed`](crate::endpoint::HeaderMode::Prefixed), where those are always as
    /// many. Then it is their payloads that are aligned, and may be written to files by direct I/O
    /// without a copy.
    pub front: usize,
}

impl SharedBufferConfig {
    /// The largest `headroom`, in bytes.
    pub const HEADROOM_MAX: usize = 65_536;

    /// Slots of `slot_size` bytes, as many as fit, no headroom, aligned to 64 bytes.
    pub fn new(slot_size: usize) -> Self {
        Self {
            slot_size,
            slots: None,
            headroom: 0,
            alignment: 64,
            front: 0,
        }
    }

    /// Bytes of a region that begins at a multiple of the alignment and has just this many slots.
    pub(crate) fn region_bytes(&self, slots: u32) -> Result<usize, MemoryError> {
        let padded = self.slot_size.checked_add(self.headroom);
        let stride = padded.and_then(|bytes| round_up(bytes, self.alignment));
        // The first slot's room is rounded up by itself.
        let before = self.headroom.checked_add(self.front);
        let first = before.and_then(|bytes| round_up(bytes, self.alignment));
        stride
            .and_then(|stride| stride.checked_mul(slots as usize))
            .and_then(|bytes| bytes.checked_add(first?))
            .ok_or(MemoryError::TooLarge {
                asked_bytes: self.slot_size,
            })
    }

    /// Where the slots lie in a region.
    pub(super) fn layout(&self, region: &Region) -> Result<Layout, MemoryError> {
        self.check()?;
        let slot_size = self.slot_size;
        let (first, stride, fit) = self.fit(region).ok_or(MemoryError::TooLarge {
            asked_bytes: slot_size,
        })?;
        let slots = self.slots.unwrap_or(fit);
        if slots == 0 || slots > fit {
            let need_bytes = (slots.max(1) as usize - 1)
                .saturating_mul(stride)
                .saturating_add(first)
                .saturating_add(slot_size);
            return Err(MemoryError::TooSmall {
                what: "the slots",
                need_bytes,
                have_bytes: region.len(),
            });
        }
        Ok(Layout {
            first,
            stride,
            slots,
        })
    }

    fn check(&self) -> Result<(), MemoryError> {
        let wrong = |field, value, reason| {
            Err(MemoryError::Setting {
                field,
                value,
                reason,
            })
        };
        if self.slot_size == 0 {
            return wrong("slot_size", 0, "must be at least 1 byte");
        }
        if !self.alignment.is_power_of_two() {
            let value = self.alignment as u64;
            return wrong("alignment", value, "must be a power of two");
        }
        if self.headroom > Self::HEADROOM_MAX {
            let value = self.headroom as u64;
            return wrong("headroom", value, "must be 0 to 65,536 bytes");
        }
        if self.front >= self.slot_size {
            return wrong("front", self.front as u64, "must be less than slot_size");
        }
        if self.slots == Some(0) {
            return wrong("slots", 0, "must be at least 1");
        }
        Ok(())
    }

    /// Where the first slot's bytes start, how far the next ones' are, and how many slots fit;
    /// `None` when a size overflows.
    fn fit(&self, region: &Region) -> Option<(usize, usize, u32)> {
        let base = region.as_ptr().addr();
        let aligned = base.checked_add(self.headroom)?.checked_add(self.front)?;
        let first = round_up(aligned, self.alignment)? - self.front - base;
        let stride = round_up(self.slot_size.checked_add(self.headroom)?, self.alignment)?;
        let fit = match region.len().checked_sub(first.checked_add(self.slot_size)?) {
            // The last mark of an index is not an index.
            Some(behind_first) => u32::try_from(behind_first / stride + 1)
                .unwrap_or(u32::MAX)
                .min(u32::MAX - 1),
            None => 0,
        };
        Some((first, stride, fit))
    }
}

/// Where the slots of a region lie.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Where the first slot's bytes start, in the region.
    pub(super) first: usize,
    /// From one slot's bytes to the next.
    pub(super) stride: usize,
    pub(super) slots: u32,
}
