//! `Segment`: one owned piece of a payload; `RegionSlice`: a range of a region, by address only.

use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::device::DeviceBuffer;
use super::gate::Gated;
use super::ring::RingFragment;
use super::shared::Buffer;
use crate::memory::{MemoryError, Region, Scope};

/// A range of a region, owned: the region lives as long as it does. It gives addresses and no
/// access to bytes.
///
/// For memory whose content the user controls by other means: a DMA engine's, another library's, or
/// a host region filled through its address. What is sent is what lies there while the network
/// reads; who changes it meanwhile sends a mixture.
#[derive(Clone)]
pub struct RegionSlice {
    region: Arc<Region>,
    start: usize,
    len: usize,
}

impl Region {
    /// A part of this region as a payload. From the first slice on, the region is good for slices
    /// only (and for rings, if external).
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`], and [`MemoryError::Claimed`] when the region is in use for
    /// something else.
    pub fn slice(self: &Arc<Self>, range: Range<usize>) -> Result<RegionSlice, MemoryError> {
        Ok(self.part(range)?.to_slice())
    }
}

impl RegionSlice {
    /// A range that lies in the region, which is good for slices.
    #[inline]
    pub(super) fn of(region: Arc<Region>, start: usize, len: usize) -> Self {
        Self { region, start, len }
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where in the region it starts, in bytes.
    pub fn offset(&self) -> usize {
        self.start
    }

    /// Its first byte. Reading or writing there is up to the caller, who has to know that nobody
    /// else does; of a device's memory it is a number that the host can't reach anything by.
    pub fn as_ptr(&self) -> *mut u8 {
        self.region.at(self.start).as_ptr()
    }

    /// Its first byte, as CUDA has it (`CUdeviceptr`); for memory of the host, its address.
    pub fn address(&self) -> u64 {
        self.region.address() + self.start as u64
    }

    /// The region that it is a part of.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// A part of this slice; `range` counts from its start.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn slice(&self, range: Range<usize>) -> Result<Self, MemoryError> {
        if range.start > range.end || range.end > self.len {
            return Err(MemoryError::OutOfRange {
                start: range.start,
                end: range.end,
                len_bytes: self.len,
            });
        }
        Ok(Self {
            region: Arc::clone(&self.region),
            start: self.start + range.start,
            len: range.end - range.start,
        })
    }
}

impl fmt::Debug for RegionSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionSlice")
            .field("start", &self.start)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// One owned piece of a payload: a [`Buffer`], a [`RegionSlice`], a [`RingFragment`] or a
/// [`DeviceBuffer`].
#[derive(Debug)]
pub struct Segment(pub(super) Kind);

#[derive(Debug)]
pub(super) enum Kind {
    Buffer(Buffer),
    Slice(RegionSlice),
    Fragment(RingFragment),
    Device(DeviceBuffer),
    /// A handle on a segment with one owner, while others send it, too.
    Shared(Arc<Segment>),
    /// All that a payload has, which is not to be sent yet. Payloads never hand such a segment out.
    Gated(Box<Gated>),
}

/// What a `Kind::Gated` would have to be for these calls.
const HANDED_OUT: &str = "payloads keep what is gated to themselves";

impl Segment {
    /// The length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            Kind::Buffer(buffer) => buffer.len(),
            Kind::Slice(slice) => slice.len(),
            Kind::Fragment(fragment) => fragment.len(),
            Kind::Device(buffer) => buffer.len(),
            Kind::Shared(one) => one.len(),
            Kind::Gated(gated) => gated.given().len_bytes(),
        }
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The region that its bytes lie in.
    #[inline]
    pub fn region(&self) -> &Arc<Region> {
        match &self.0 {
            Kind::Buffer(buffer) => buffer.region(),
            Kind::Slice(slice) => slice.region(),
            Kind::Fragment(fragment) => fragment.region(),
            Kind::Device(buffer) => buffer.region(),
            Kind::Shared(one) => one.region(),
            Kind::Gated(_) => unreachable!("{HANDED_OUT}"),
        }
    }

    /// The same; none of what is not to be sent yet.
    #[inline]
    pub(crate) fn plain_region(&self) -> Option<&Arc<Region>> {
        match &self.0 {
            Kind::Buffer(buffer) => Some(buffer.region()),
            Kind::Slice(slice) => Some(slice.region()),
            Kind::Fragment(fragment) => Some(fragment.region()),
            Kind::Device(buffer) => Some(buffer.region()),
            Kind::Shared(one) => one.plain_region(),
            Kind::Gated(_) => None,
        }
    }

    /// The one run of the host's memory that it is, as most are: its region, and where in that it
    /// lies. `None` of what may be several, or is not to be sent yet.
    #[inline(always)]
    pub(crate) fn one_run(&self) -> Option<(&Arc<Region>, usize, usize)> {
        match &self.0 {
            Kind::Buffer(buffer) => Some((buffer.region(), buffer.offset(), buffer.len())),
            Kind::Slice(slice) => Some((&slice.region, slice.start, slice.len)),
            Kind::Fragment(fragment) => {
                let (start, len) = fragment.one_range()?;
                Some((fragment.region(), start, len))
            }
            Kind::Device(_) | Kind::Shared(_) | Kind::Gated(_) => None,
        }
    }

    /// Two handles on the same bytes: its own, and another. What has one owner is theirs together,
    /// until [`unshared`](Self::unshared) finds one of them alone.
    pub(super) fn share(self) -> (Self, Self) {
        let other = match &self.0 {
            Kind::Buffer(buffer) => Kind::Buffer(buffer.clone()),
            Kind::Slice(slice) => Kind::Slice(slice.clone()),
            Kind::Shared(one) => Kind::Shared(Arc::clone(one)),
            Kind::Fragment(_) | Kind::Device(_) => {
                let one = Arc::new(self);
                return (
                    Self(Kind::Shared(Arc::clone(&one))),
                    Self(Kind::Shared(one)),
                );
            }
            Kind::Gated(_) => unreachable!("{HANDED_OUT}"),
        };
        (self, Self(other))
    }

    pub(super) fn is_shared(&self) -> bool {
        matches!(self.0, Kind::Shared(_))
    }

    /// As it was before it was [shared](Self::share), if this is the last handle.
    pub(super) fn unshared(self) -> Self {
        match self.0 {
            Kind::Shared(one) => Arc::try_unwrap(one).unwrap_or_else(|one| Self(Kind::Shared(one))),
            kind => Self(kind),
        }
    }

    /// Keeps its region's registration open, and gives the descriptor. None of what is not to be
    /// sent yet.
    #[inline]
    pub(super) fn lease(&self, scope: Scope) -> Option<*mut c_void> {
        self.plain_region()?.lease(scope)
    }

    /// Whether its bytes lie in a device's memory: a [`DeviceBuffer`], or a slice of such a region.
    #[inline]
    pub fn is_device(&self) -> bool {
        match &self.0 {
            Kind::Device(_) => true,
            Kind::Slice(slice) => slice.region.is_device(),
            Kind::Buffer(_) | Kind::Fragment(_) => false,
            Kind::Shared(one) => one.is_device(),
            Kind::Gated(gated) => gated.given().is_device(),
        }
    }

    /// The bytes, where the segment is a [`Buffer`]; the others are memory that somebody else may
    /// write to, or that the host can't touch.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match &self.0 {
            Kind::Buffer(buffer) => Some(buffer),
            Kind::Shared(one) => one.as_bytes(),
            Kind::Slice(_) | Kind::Fragment(_) | Kind::Device(_) | Kind::Gated(_) => None,
        }
    }

    /// The buffer, if it is one.
    ///
    /// # Errors
    /// Gives the segment back when it is something else.
    pub fn into_buffer(self) -> Result<Buffer, Self> {
        match self.0 {
            Kind::Buffer(buffer) => Ok(buffer),
            kind => Err(Self(kind)),
        }
    }

    /// The slice of a region, if it is one.
    ///
    /// # Errors
    /// Gives the segment back when it is something else.
    pub fn into_slice(self) -> Result<RegionSlice, Self> {
        match self.0 {
            Kind::Slice(slice) => Ok(slice),
            kind => Err(Self(kind)),
        }
    }

    /// The ring fragment, if it is one.
    ///
    /// # Errors
    /// Gives the segment back when it is something else.
    pub fn into_fragment(self) -> Result<RingFragment, Self> {
        match self.0 {
            Kind::Fragment(fragment) => Ok(fragment),
            kind => Err(Self(kind)),
        }
    }

    /// The buffer in a device's memory, if it is one.
    ///
    /// # Errors
    /// Gives the segment back when it is something else.
    pub fn into_device_buffer(self) -> Result<DeviceBuffer, Self> {
        match self.0 {
            Kind::Device(buffer) => Ok(buffer),
            kind => Err(Self(kind)),
        }
    }

    /// Names each of its runs: address, length in bytes, and the region's descriptor.
    #[inline]
    pub(crate) fn name_runs(
        &self,
        desc: *mut c_void,
        out: &mut impl FnMut(*const u8, usize, *mut c_void),
    ) {
        let (start, len) = match &self.0 {
            Kind::Buffer(buffer) => (buffer.offset(), buffer.len()),
            Kind::Slice(slice) => (slice.start, slice.len),
            Kind::Device(buffer) => (buffer.offset(), buffer.len()),
            Kind::Fragment(_) | Kind::Shared(_) => return self.name_each(desc, out),
            Kind::Gated(_) => unreachable!("{HANDED_OUT}"),
        };
        if len > 0 {
            out(self.region().at(start).as_ptr(), len, desc);
        }
    }

    fn name_each(&self, desc: *mut c_void, out: &mut impl FnMut(*const u8, usize, *mut c_void)) {
        for run in self.runs() {
            out(self.region().at(run.start).as_ptr(), run.len(), desc);
        }
    }

    /// How many ranges of the region it consists of.
    #[inline]
    pub(super) fn run_count(&self) -> usize {
        match &self.0 {
            Kind::Buffer(buffer) => usize::from(!buffer.is_empty()),
            Kind::Slice(slice) => usize::from(slice.len > 0),
            Kind::Device(buffer) => usize::from(!buffer.is_empty()),
            Kind::Fragment(_) | Kind::Shared(_) => self.runs().count(),
            Kind::Gated(gated) => gated.wire().run_count(),
        }
    }

    /// The ranges of the region that it consists of, those without bytes left out: a fragment that
    /// wraps around has two.
    pub(super) fn runs(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (first, second) = self.ranges();
        [first, second].into_iter().filter(|run| !run.is_empty())
    }

    fn ranges(&self) -> (Range<usize>, Range<usize>) {
        match &self.0 {
            Kind::Buffer(buffer) => (buffer.offset()..buffer.offset() + buffer.len(), 0..0),
            Kind::Slice(slice) => (slice.start..slice.start + slice.len, 0..0),
            Kind::Device(buffer) => (buffer.offset()..buffer.offset() + buffer.len(), 0..0),
            Kind::Fragment(fragment) => fragment.ranges(),
            Kind::Shared(one) => one.ranges(),
            Kind::Gated(_) => unreachable!("{HANDED_OUT}"),
        }
    }
}

impl From<Buffer> for Segment {
    fn from(buffer: Buffer) -> Self {
        Self(Kind::Buffer(buffer))
    }
}

impl From<RegionSlice> for Segment {
    fn from(slice: RegionSlice) -> Self {
        Self(Kind::Slice(slice))
    }
}

impl From<RingFragment> for Segment {
    fn from(fragment: RingFragment) -> Self {
        Self(Kind::Fragment(fragment))
    }
}

impl From<DeviceBuffer> for Segment {
    fn from(buffer: DeviceBuffer) -> Self {
        Self(Kind::Device(buffer))
    }
}
