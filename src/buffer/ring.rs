//! `RingRegion`: a region as a ring, for DMA engines and readers that fill memory in order while
//! the network drains it in any order.
//!
//! ```text
//!             tail                       head
//!  ───────────┼──────┬──────┬─────┬──────┼───────────►  bytes since the start, never going back
//!   released  │ held │ rel. │ held│ held │  free
//! ```
//!
//! Modulo the size, these numbers say where in the region a byte lies.
//!
//! One producer owns the ring. Its pieces are owned by whoever has them, and a dropped one is only
//! marked, by one store; the producer moves the tail over the oldest run of marked ones when it
//! looks at it.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ring_share::{RingCore, RingShare, RingShares};
use super::shared_config::SharedBufferConfig;
use crate::memory::{MemoryError, Purpose, Region};
use crate::metrics::WatchedKind;
use crate::metrics::registry::WatchedCells;
use crate::metrics::stats::RingCells;
use crate::sync::{AtomicBool, Ordering};

/// How a ring is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingConfig {
    /// How many reservations and fragments are out at a time: 1 to 2^24. Default: 65,536. Memory:
    /// 25 bytes each.
    pub max_fragments: u32,
    /// Bytes reserved in front of each piece, for a header that must lie right before the payload
    /// ([`Shape::Headroom`](crate::fabric::Shape::Headroom)). 0 to 65,536. Default: 0. Only over
    /// host memory.
    ///
    /// A ring with headroom gives pieces of one range only: what is left at the end of the region
    /// is skipped where a piece does not fit.
    pub headroom: usize,
}

impl RingConfig {
    /// The largest `max_fragments`.
    pub const FRAGMENTS_MAX: u32 = 1 << 24;
}

impl Default for RingConfig {
    fn default() -> Self {
        Self {
            max_fragments: 65_536,
            headroom: 0,
        }
    }
}

/// Why there is no room in a ring.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// Not enough bytes are free now: back-pressure, not a failure.
    #[error(
        "the ring has {free} bytes free: drop fragments, oldest first, or make the ring larger"
    )]
    Full {
        /// The bytes that are free.
        free: usize,
    },
    /// The ring is smaller than that.
    #[error(
        "{len} bytes are more than the ring's {max}: take several pieces, or make the ring larger"
    )]
    TooLong {
        /// The bytes that were asked for.
        len: usize,
        /// The size of the ring, in bytes.
        max: usize,
    },
    /// As many pieces are out as the setting allows: back-pressure too.
    #[error(
        "{max} fragments are out, as many as may be (setting `max_fragments`): drop some, or raise \
         it"
    )]
    TooManyFragments {
        /// The limit.
        max: u32,
    },
}

fabricast_process::debug_as_words!(RingError);

/// The producer's record of one piece, oldest first.
struct Record {
    end: u64,
    since: Instant,
}

/// A ring over a region. One producer (`&mut self`); what it hands out may be dropped by any
/// thread, in any order.
///
/// ```
/// use fabricast::buffer::{RingConfig, RingRegion};
/// use fabricast::memory::Region;
/// let mut ring = RingRegion::new(Region::host(4096).build()?, RingConfig::default())?;
/// let mut reservation = ring.reserve(100)?;
/// reservation.segments_mut().expect("a host ring").0[..5].copy_from_slice(b"hello");
/// let fragment = reservation.commit(5);
/// assert_eq!((ring.tail(), ring.outstanding()), (0, 1));
/// drop(fragment);
/// assert_eq!((ring.tail(), ring.outstanding()), (100, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RingRegion {
    shared: RingShares,
    records: VecDeque<Record>,
    max_fragments: u32,
    headroom: usize,
    /// The mark of the oldest record; that of the i-th is i further on, modulo the number of marks.
    oldest_mark: u32,
    /// What is watched of it.
    watched: WatchedCells<RingCells>,
    head: u64,
    /// Where in the region the head is.
    head_offset: usize,
    tail: u64,
}

impl RingRegion {
    /// Makes a ring of all of a region.
    ///
    /// # Errors
    /// [`MemoryError::Setting`] for a setting out of range, [`MemoryError::NotHost`] for headroom
    /// over memory that somebody else writes, [`MemoryError::Claimed`] for a region in use.
    pub fn new(region: Arc<Region>, config: RingConfig) -> Result<Self, MemoryError> {
        let RingConfig {
            max_fragments,
            headroom,
        } = config;
        let setting = |field, value, reason| MemoryError::Setting {
            field,
            value,
            reason,
        };
        if !(1..=RingConfig::FRAGMENTS_MAX).contains(&max_fragments) {
            let value = u64::from(max_fragments);
            return Err(setting("max_fragments", value, "must be 1 to 2^24"));
        }
        if headroom > SharedBufferConfig::HEADROOM_MAX {
            let value = headroom as u64;
            return Err(setting("headroom", value, "must be 0 to 65,536 bytes"));
        }
        if headroom >= region.len() {
            return Err(MemoryError::TooSmall {
                what: "a ring with headroom",
                need_bytes: headroom + 1,
                have_bytes: region.len(),
            });
        }
        // Its fragments are headers' and files', too.
        if region.is_device() {
            return Err(MemoryError::NotHost { what: "rings" });
        }
        if headroom > 0 && !region.is_host() {
            return Err(MemoryError::NotHost {
                what: "a ring with headroom",
            });
        }
        // Over external memory a ring gives addresses only, which it may share with slices; over
        // host memory it gives `&mut [u8]`.
        let host = region.is_host();
        let claim = if host {
            region.claim(Purpose::Ring)?
        } else {
            region.claim_slices()?
        };
        let watched: WatchedCells<RingCells> = WatchedCells::new(WatchedKind::Ring, None);
        watched.capacity.set(region.len() as u64);
        let released = (0..max_fragments).map(|_| AtomicBool::new(false)).collect();
        Ok(Self {
            shared: RingShares::new(RingCore {
                released,
                host,
                claim,
            }),
            records: VecDeque::with_capacity(max_fragments as usize),
            max_fragments,
            headroom,
            oldest_mark: 0,
            watched,
            head: 0,
            head_offset: 0,
            tail: 0,
        })
    }

    /// Takes the next `len` bytes; they may wrap around the end of the region, in a ring without
    /// headroom. Several reservations may be out at a time.
    ///
    /// # Errors
    /// [`RingError`]: no room now, no such room ever, or too many pieces out.
    pub fn reserve(&mut self, len: usize) -> Result<Reservation, RingError> {
        self.reserve_at(len, Instant::now())
    }

    /// As [`reserve`](Self::reserve), by a producer that knows the time: asking for it takes longer
    /// than the rest. `now` is what [`oldest_age`](Self::oldest_age) counts from.
    ///
    /// # Errors
    /// Those of [`reserve`](Self::reserve).
    #[inline(always)]
    pub fn reserve_at(&mut self, len: usize, now: Instant) -> Result<Reservation, RingError> {
        let max = self.capacity().saturating_sub(self.headroom);
        if len > max {
            return Err(RingError::TooLong { len, max });
        }
        let mut skipped = self.skip(len);
        // What was given back is looked at when it is needed: many pieces at once.
        if !self.has_room(skipped, len) {
            self.advance();
            skipped = self.skip(len);
            if !self.has_room(skipped, len) {
                self.watched.full.add(1);
                return Err(self.refusal(skipped + len));
            }
        }
        let mark = self.mark_of(self.records.len());
        let front = skipped + self.headroom;
        let offset = self.wrapped(self.head_offset + front);
        let position = self.head + front as u64;
        self.head = position + len as u64;
        self.head_offset = self.wrapped(offset + len);
        self.records.push_back(Record {
            end: self.head,
            since: now,
        });
        self.watched.reserved.set(self.head);
        Ok(Reservation(Piece {
            shared: self.shared.share(),
            mark,
            position,
            offset,
            len,
            // At most `HEADROOM_MAX`.
            headroom: self.headroom as u32,
        }))
    }

    /// What the ring is called in [`metrics`](crate::metrics), where rings that are called the same
    /// are one series. Until then it is called `ring` with a number.
    pub fn set_name(&self, name: &str) {
        self.watched.place().rename(name);
    }

    /// Whether a piece may be made behind so many bytes that are left out.
    #[inline]
    fn has_room(&self, skipped: usize, len: usize) -> bool {
        skipped + self.headroom + len <= self.free()
            && self.records.len() < self.max_fragments as usize
    }

    /// Why there is no room now.
    #[cold]
    fn refusal(&self, len: usize) -> RingError {
        let (free, max) = (self.free(), self.max_fragments);
        match self.headroom + len > free {
            true => RingError::Full { free },
            false => RingError::TooManyFragments { max },
        }
    }

    /// The bytes that can be reserved, as far as was looked.
    #[inline]
    fn free(&self) -> usize {
        self.capacity() - (self.head - self.tail) as usize
    }

    /// Where in the region something is that lies less than once around behind its start.
    #[inline]
    fn wrapped(&self, offset: usize) -> usize {
        match offset.checked_sub(self.capacity()) {
            Some(around) => around,
            None => offset,
        }
    }

    /// The bytes to leave out so that a piece and its headroom are one range. With nothing out,
    /// they are passed at once.
    #[inline]
    fn skip(&mut self, len: usize) -> usize {
        if self.headroom == 0 {
            return 0;
        }
        let left = self.capacity() - self.head_offset;
        // A piece without bytes lies somewhere, too: behind its room.
        if self.headroom + len.max(1) <= left {
            return 0;
        }
        self.advance();
        if !self.records.is_empty() {
            return left;
        }
        self.head += left as u64;
        (self.tail, self.head_offset) = (self.head, 0);
        0
    }

    /// As [`Reservation::commit`], and when the reservation is the newest, what it has too much is
    /// free again at once.
    ///
    /// # Panics
    /// If `len` is more than was reserved.
    pub fn commit(&mut self, reservation: Reservation, len: usize) -> RingFragment {
        let is_ours = self.shared.has(&reservation.0.shared);
        let fragment = reservation.commit(len);
        // A piece that is out has its record, so the records are not empty.
        if is_ours && self.mark_of(self.records.len() - 1) == fragment.0.mark {
            self.head = fragment.0.position + len as u64;
            self.head_offset = self.wrapped(fragment.0.offset + len);
            if let Some(newest) = self.records.back_mut() {
                newest.end = self.head;
            }
        }
        fragment
    }

    /// The bytes handed out since the start, less what [`commit`](Self::commit) took back.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// The bytes up to which everything was given back, since the start: a DMA engine may write up
    /// to `tail() + capacity()`.
    pub fn tail(&mut self) -> u64 {
        self.advance();
        self.tail
    }

    /// The bytes that can be reserved now.
    pub fn free_bytes(&mut self) -> usize {
        self.advance();
        self.free()
    }

    /// How many pieces the tail has yet to pass: those out, and those given back behind an older
    /// one that is out.
    pub fn outstanding(&mut self) -> usize {
        self.advance();
        self.records.len()
    }

    /// How long ago the piece that holds the tail was reserved; `None` when nothing is out. A large
    /// one is stuck.
    pub fn oldest_age(&mut self, now: Instant) -> Option<Duration> {
        self.advance();
        self.records
            .front()
            .map(|record| now.saturating_duration_since(record.since))
    }

    /// The size in bytes.
    pub fn capacity(&self) -> usize {
        self.region().len()
    }

    /// The region.
    pub fn region(&self) -> &Arc<Region> {
        self.shared.claim.region()
    }

    /// Of a record that there is, or the next one where there may be one more.
    #[inline]
    fn mark_of(&self, record: usize) -> u32 {
        // Both are at most 2^24, and the record is no further on than there are marks.
        let mark = self.oldest_mark + record as u32;
        match mark.checked_sub(self.max_fragments) {
            Some(around) => around,
            None => mark,
        }
    }

    /// Moves the tail over the oldest run of pieces that were given back.
    fn advance(&mut self) {
        while let Some(record) = self.records.front() {
            let released = &self.shared.released[self.oldest_mark as usize];
            // Acquire pairs with the Release of `Piece::drop`: its owner's accesses come before the
            // bytes are handed out again.
            if !released.load(Ordering::Acquire) {
                break;
            }
            // Relaxed: the mark is ours until a new piece is made with it.
            released.store(false, Ordering::Relaxed);
            self.tail = record.end;
            self.oldest_mark = self.mark_of(1);
            self.records.pop_front();
        }
        self.watched.used.set(self.head - self.tail);
        self.watched.fragments.set(self.records.len() as u64);
    }
}

impl fmt::Debug for RingRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingRegion")
            .field("capacity", &self.capacity())
            .field("head", &self.head)
            .field("tail", &self.tail)
            .field("outstanding", &self.records.len())
            .finish_non_exhaustive()
    }
}

/// Bytes of a ring with one owner.
struct Piece {
    shared: RingShare,
    mark: u32,
    position: u64,
    offset: usize,
    len: usize,
    /// Bytes in front of it that are its own, in the same range.
    headroom: u32,
}

impl Piece {
    /// Where in the region it lies, if that is one range.
    #[inline(always)]
    fn one_range(&self) -> Option<(usize, usize)> {
        let size = self.shared.claim.region().len();
        (self.len <= size - self.offset).then_some((self.offset, self.len))
    }

    /// Where in the region it lies: up to the end, and from the start on.
    fn ranges(&self) -> (Range<usize>, Range<usize>) {
        let size = self.shared.claim.region().len();
        let first = self.len.min(size - self.offset);
        (self.offset..self.offset + first, 0..self.len - first)
    }

    fn start_of(&self, range: &Range<usize>) -> *mut u8 {
        self.shared.claim.region().at(range.start).as_ptr()
    }
}

impl Drop for Piece {
    #[inline]
    fn drop(&mut self) {
        // Release: our accesses come before the producer's, who reads the mark with Acquire.
        self.shared.released[self.mark as usize].store(true, Ordering::Release);
    }
}

/// Bytes of a ring that are to be filled. Dropping it gives them back.
pub struct Reservation(Piece);

impl Reservation {
    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Where in the region it lies: one range, and after a wrap-around a second one from the start
    /// of the region (else empty).
    pub fn ranges(&self) -> (Range<usize>, Range<usize>) {
        self.0.ranges()
    }

    /// Its first byte, counted since the ring was made.
    pub fn position(&self) -> u64 {
        self.0.position
    }

    /// The region of the ring.
    pub fn region(&self) -> &Arc<Region> {
        self.0.shared.claim.region()
    }

    /// The bytes, to fill; `None` over external memory, which others write to: use
    /// [`ranges`](Self::ranges) there.
    pub fn segments_mut(&mut self) -> Option<(&mut [u8], &mut [u8])> {
        if !self.0.shared.host {
            return None;
        }
        let (first, second) = self.0.ranges();
        // SAFETY: within the region (`ranges`), which is host memory, mapped zeroed, and claimed
        // for this ring; the ring hands out each byte to one piece at a time, and this is that
        // piece, borrowed mutably.
        let head = unsafe { std::slice::from_raw_parts_mut(self.0.start_of(&first), first.len()) };
        // SAFETY: as above; the two ranges don't overlap, since a piece is at most as long as the
        // ring.
        let rest =
            unsafe { std::slice::from_raw_parts_mut(self.0.start_of(&second), second.len()) };
        Some((head, rest))
    }

    /// Ends filling: the first `len` bytes become a fragment; the rest comes back together with it,
    /// or at once with [`RingRegion::commit`].
    ///
    /// # Panics
    /// If `len` is more than was reserved.
    #[inline]
    pub fn commit(self, len: usize) -> RingFragment {
        let mut piece = self.0;
        let reserved = piece.len;
        assert!(
            len <= reserved,
            "commit({len}) of a reservation of {reserved} bytes"
        );
        piece.len = len;
        RingFragment(piece)
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("position", &self.0.position)
            .field("len", &self.0.len)
            .finish()
    }
}

/// Bytes of a ring that were filled, on their way out. Dropping it, on any thread, gives them back.
pub struct RingFragment(Piece);

impl RingFragment {
    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Where in the region it lies: one range, and after a wrap-around a second one from the start
    /// of the region (else empty).
    pub fn ranges(&self) -> (Range<usize>, Range<usize>) {
        self.0.ranges()
    }

    /// Its start in the region and its length, if it does not wrap around.
    #[inline(always)]
    pub(super) fn one_range(&self) -> Option<(usize, usize)> {
        self.0.one_range()
    }

    /// Its first byte, counted since the ring was made.
    pub fn position(&self) -> u64 {
        self.0.position
    }

    /// The bytes; `None` over external memory, which others may write to.
    pub fn as_slices(&self) -> Option<(&[u8], &[u8])> {
        if !self.0.shared.host {
            return None;
        }
        let (first, second) = self.0.ranges();
        // SAFETY: within the region, which is host memory, mapped zeroed, and claimed for this
        // ring; nobody writes to a piece that was committed, and the ring hands its bytes out again
        // only after it was dropped.
        let head = unsafe { std::slice::from_raw_parts(self.0.start_of(&first), first.len()) };
        // SAFETY: as above.
        let rest = unsafe { std::slice::from_raw_parts(self.0.start_of(&second), second.len()) };
        Some((head, rest))
    }

    /// The region of the ring.
    pub fn region(&self) -> &Arc<Region> {
        self.0.shared.claim.region()
    }

    /// The bytes right in front of it that a header may be put into: the ring's
    /// [`headroom`](RingConfig::headroom).
    pub fn headroom(&self) -> usize {
        self.0.headroom as usize
    }

    /// Puts a header right in front of the fragment. `header` is no longer than the
    /// [headroom](Self::headroom).
    ///
    /// # Safety
    /// Nobody else does so, or sends the fragment, meanwhile: the caller owns it.
    pub(super) unsafe fn put_in_front(&self, header: &[&[u8]], len: usize) {
        assert!(len <= self.headroom(), "a header longer than its room");
        let mut to = self.region().at(self.0.offset - len).as_ptr();
        for part in header {
            // SAFETY: `reserve` took `headroom` bytes for this piece in front of it, in the same
            // range of a region that is claimed for this ring; no reference is ever made to them,
            // and the caller keeps others out.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len()) };
            // SAFETY: at most the end of the room, as above.
            to = unsafe { to.add(part.len()) };
        }
    }
}

impl fmt::Debug for RingFragment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingFragment")
            .field("position", &self.0.position)
            .field("len", &self.0.len)
            .finish()
    }
}

#[cfg(test)]
#[path = "tests/ring.rs"]
mod tests;
