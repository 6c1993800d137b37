//! `Payload`: what goes out in one message; `LeasedPayload`: the same while an operation holds it.

#![allow(unsafe_code)]

use std::ffi::c_void;

use smallvec::SmallVec;

use super::device::DeviceBuffer;
use super::gate::{Gate, GateError, Gated};
use super::ring::RingFragment;
use super::segment::{Kind, RegionSlice, Segment};
use super::shared::Buffer;
use crate::memory::{Region, Scope};

/// Segments that lie in the payload itself. A payload moves some ten times on its way to the
/// provider and back, and is small for that.
const INLINE_SEGMENTS: usize = 1;

/// The payload of one message: owned segments, sent one behind the other. It moves into an endpoint
/// and comes back with the outcome.
///
/// One segment lies in the payload itself, which stays small to move. Several lie in a block on the
/// heap, which comes back with the payload and can be used again: [`into_vec`](Self::into_vec).
#[derive(Debug, Default)]
pub struct Payload(pub(super) SmallVec<[Segment; INLINE_SEGMENTS]>);

impl Payload {
    /// A payload without a byte.
    pub fn empty() -> Self {
        Self::default()
    }

    /// The length in bytes, of all segments.
    #[inline]
    pub fn len_bytes(&self) -> usize {
        self.0.iter().map(Segment::len).sum()
    }

    /// The segments.
    #[inline]
    pub fn segments(&self) -> &[Segment] {
        match self.gated() {
            Some(gated) => &gated.given().0,
            None => &self.0,
        }
    }

    /// The same, where it makes no difference that what is not to be sent yet is one by itself.
    #[inline]
    pub(crate) fn parts(&self) -> &[Segment] {
        &self.0
    }

    /// The segments, owned, in their order. What the payload was to be sent [after](Self::after) is
    /// forgotten.
    pub fn into_segments(self) -> impl ExactSizeIterator<Item = Segment> {
        self.ungated().0.into_iter()
    }

    /// The segments, with the heap block of a payload that has several: clear it, fill it and make
    /// the next payload of it, and sends of several segments allocate nothing.
    pub fn into_vec(self) -> Vec<Segment> {
        self.ungated().0.into_vec()
    }

    /// How many runs of memory the payload takes in an iovec: a fragment that wraps around its ring
    /// takes two, an empty segment none.
    #[inline]
    pub fn run_count(&self) -> usize {
        self.0.iter().map(Segment::run_count).sum()
    }

    /// Its length in bytes, and its runs of memory.
    #[inline(always)]
    pub(crate) fn bytes_and_runs(&self) -> (usize, usize) {
        if let [segment] = &self.0[..]
            && let Some((_, _, len)) = segment.one_run()
        {
            return (len, usize::from(len > 0));
        }
        (self.len_bytes(), self.run_count())
    }

    /// The buffer, if the payload is exactly one.
    ///
    /// # Errors
    /// Gives the payload back when it is something else.
    pub fn into_buffer(self) -> Result<Buffer, Self> {
        self.into_single(Segment::into_buffer)
    }

    /// The slice of a region, if the payload is exactly one.
    ///
    /// # Errors
    /// Gives the payload back when it is something else.
    pub fn into_slice(self) -> Result<RegionSlice, Self> {
        self.into_single(Segment::into_slice)
    }

    /// The ring fragment, if the payload is exactly one.
    ///
    /// # Errors
    /// Gives the payload back when it is something else.
    #[inline]
    pub fn into_fragment(mut self) -> Result<RingFragment, Self> {
        // Each one that was sent comes back this way: it moves once.
        if let [Segment(Kind::Fragment(_))] = self.0[..]
            && let Some(Segment(Kind::Fragment(fragment))) = self.0.pop()
        {
            return Ok(fragment);
        }
        self.into_single(Segment::into_fragment)
    }

    /// The buffer in a device's memory, if the payload is exactly one.
    ///
    /// # Errors
    /// Gives the payload back when it is something else.
    pub fn into_device_buffer(self) -> Result<DeviceBuffer, Self> {
        self.into_single(Segment::into_device_buffer)
    }

    /// Whether any of its bytes lie in a device's memory.
    pub fn is_device(&self) -> bool {
        self.0.iter().any(Segment::is_device)
    }

    fn into_single<T>(mut self, open: fn(Segment) -> Result<T, Segment>) -> Result<T, Self> {
        if self.0.len() != 1 {
            return Err(self);
        }
        match self.0.pop().map(open) {
            Some(Ok(single)) => Ok(single),
            Some(Err(Segment(Kind::Gated(gated)))) => gated.into_given().into_single(open),
            Some(Err(segment)) => Err(Self::from(segment)),
            None => Err(self),
        }
    }

    // ---- what several messages send -------------------------------------------------------------

    /// Another payload of the same bytes, for another message. What is not to be sent yet waits for
    /// the same gates, which are this one's: it has to stay until the others are over.
    #[inline]
    pub(crate) fn share(&mut self) -> Self {
        match &self.0[..] {
            [Segment(Kind::Buffer(buffer))] => Self::from(buffer.clone()),
            _ => self.share_each(),
        }
    }

    #[cold]
    fn share_each(&mut self) -> Self {
        if let Some(gated) = self.gated_mut() {
            return gated.share();
        }
        let (own, others) = std::mem::take(&mut self.0)
            .into_iter()
            .map(Segment::share)
            .unzip();
        self.0 = own;
        Self(others)
    }

    /// Another handle on one segment of what was given.
    ///
    /// # Panics
    /// If there is no such segment.
    pub(crate) fn share_segment(&mut self, index: usize) -> Segment {
        let given = self.inner_mut(Gated::given_mut);
        let (own, other) = given.0.remove(index).share();
        given.0.insert(index, own);
        other
    }

    /// Gives what has one owner back to it, where the others that [share](Self::share) it are gone.
    pub(crate) fn unshared(mut self) -> Self {
        let given = self.inner_mut(Gated::given_mut);
        if given.0.iter().any(Segment::is_shared) {
            let segments = std::mem::take(&mut given.0).into_iter();
            given.0 = segments.map(Segment::unshared).collect();
        }
        self
    }

    // ---- what is not to be sent yet -------------------------------------------------------------

    /// The payload, to be sent when the gate is open, and those that it has already.
    pub(crate) fn behind(mut self, gate: Box<dyn Gate>) -> Self {
        match self.gated_mut() {
            Some(gated) => {
                gated.push(gate);
                self
            }
            None => Self::from(Segment(Kind::Gated(Box::new(Gated::new(self, gate))))),
        }
    }

    /// The payload, of which `wire` is sent in its place, filled by the gate.
    pub(crate) fn staged(self, wire: Self, copy: Box<dyn Gate>) -> Self {
        let mut this = self.behind(copy);
        if let Some(gated) = this.gated_mut() {
            gated.set_wire(wire);
        }
        this
    }

    /// Takes [`staged`](Self::staged) back: it was refused, and its gates were not asked.
    pub(crate) fn unstaged(mut self) -> Self {
        let Some(gated) = self.gated_mut() else {
            return self;
        };
        gated.unstage();
        match gated.is_plain() {
            true => self.ungated(),
            false => self,
        }
    }

    /// Whether it is not to be sent yet.
    pub(crate) fn is_gated(&self) -> bool {
        self.gated().is_some()
    }

    /// Whether it may be sent now.
    ///
    /// # Errors
    /// It never may.
    pub(crate) fn poll_gate(&mut self) -> Result<bool, GateError> {
        self.gated_mut().map_or(Ok(true), Gated::poll)
    }

    /// The same, of one that others are in front of: what is under way is not asked about.
    pub(crate) fn advance_gate(&mut self) -> Result<bool, GateError> {
        self.gated_mut().map_or(Ok(true), Gated::advance)
    }

    /// As it was given, whatever it was to be sent after. Waits for a copy that is under way.
    pub(crate) fn ungated(mut self) -> Self {
        self.ungate();
        self
    }

    fn ungate(&mut self) {
        if self.is_gated()
            && let Some(Segment(Kind::Gated(gated))) = self.0.pop()
        {
            *self = gated.into_given();
        }
    }

    /// What is sent of it, to be leased.
    pub(crate) fn wire(&self) -> &Self {
        self.gated().map_or(self, Gated::wire)
    }

    /// The same, to put a header in front.
    pub(crate) fn wire_mut(&mut self) -> &mut Self {
        self.inner_mut(Gated::wire_mut)
    }

    fn inner_mut(&mut self, of: fn(&mut Gated) -> &mut Self) -> &mut Self {
        // Asked twice, since the borrow of the one would outlast the other.
        match self.is_gated() {
            true => match self.0.last_mut() {
                Some(Segment(Kind::Gated(gated))) => of(gated),
                _ => unreachable!("it was just asked"),
            },
            false => self,
        }
    }

    #[inline]
    fn gated(&self) -> Option<&Gated> {
        match &self.0[..] {
            [Segment(Kind::Gated(gated))] => Some(gated),
            _ => None,
        }
    }

    fn gated_mut(&mut self) -> Option<&mut Gated> {
        match &mut self.0[..] {
            [Segment(Kind::Gated(gated))] => Some(gated),
            _ => None,
        }
    }

    /// Puts a header right in front of the payload's only run of bytes, so that both go out as one,
    /// and claims the place until the operation is over: [`Leases::with_front`] takes the claim on.
    /// Gives the length of the header, in bytes.
    pub(crate) fn begin_front(&mut self, header: &[&[u8]]) -> Result<usize, FrontError> {
        let len = header.iter().map(|part| part.len()).sum();
        let room = match self.front() {
            Some(Kind::Buffer(buffer)) => buffer.headroom(),
            Some(Kind::Fragment(fragment)) => fragment.headroom(),
            Some(Kind::Slice(_) | Kind::Device(_) | Kind::Shared(_) | Kind::Gated(_)) | None => 0,
        };
        if len > room {
            return Err(FrontError::NoRoom { len, room });
        }
        match self.front() {
            Some(Kind::Buffer(buffer)) => buffer
                .begin_front(header, len)
                .map_err(|_| FrontError::Taken)?,
            // SAFETY: a fragment has one owner, this payload, which is borrowed mutably and in no
            // operation.
            Some(Kind::Fragment(fragment)) => unsafe { fragment.put_in_front(header, len) },
            Some(Kind::Slice(_) | Kind::Device(_) | Kind::Shared(_) | Kind::Gated(_)) | None => {}
        }
        Ok(len)
    }

    /// Ends a claim of [`begin_front`](Self::begin_front) that did not get into leases.
    pub(crate) fn end_front(&self) {
        if let Some(Kind::Buffer(buffer)) = self.front() {
            buffer.end_front();
        }
    }

    /// The segment that all bytes of the payload lie in.
    fn front(&self) -> Option<&Kind> {
        let mut with_bytes = self.0.iter().filter(|segment| !segment.is_empty());
        match (with_bytes.next(), with_bytes.next()) {
            (Some(Segment(kind)), None) => Some(kind),
            _ => None,
        }
    }

    /// Keeps the registrations of all segments open for one operation, and names each run: address,
    /// length in bytes, descriptor.
    ///
    /// What it gives goes to [`LeasedPayload::new`] with this same payload. On an error no
    /// registration is kept, and runs that were named by then are void.
    #[inline]
    pub(crate) fn lease(
        &self,
        scope: Scope,
        out: &mut impl FnMut(*const u8, usize, *mut c_void),
    ) -> Result<Leases, LeaseError> {
        let mut leases = Leases {
            scope,
            count: 0,
            marks: 0,
        };
        for segment in &self.0 {
            let Some(desc) = segment.lease(scope) else {
                let at = leases.count as usize;
                let error = match segment.plain_region() {
                    Some(region) => LeaseError::of(region, scope, at),
                    // What is gated is leased by itself.
                    None => LeaseError::NotRegistered { segment: at },
                };
                leases.end_parts(self);
                return Err(error);
            };
            leases.count += 1;
            segment.name_runs(desc, out);
        }
        Ok(leases)
    }
}

impl<T: Into<Segment>> From<T> for Payload {
    fn from(segment: T) -> Self {
        let mut segments = SmallVec::new();
        segments.push(segment.into());
        Self(segments)
    }
}

impl From<Vec<Segment>> for Payload {
    fn from(segments: Vec<Segment>) -> Self {
        Self(SmallVec::from_vec(segments))
    }
}

impl<T: Into<Segment>> FromIterator<T> for Payload {
    fn from_iter<I: IntoIterator<Item = T>>(segments: I) -> Self {
        Self(segments.into_iter().map(Into::into).collect())
    }
}

/// Why a payload can't be posted in a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LeaseError {
    /// The segment's region is registered, but elsewhere.
    #[error(
        "segment {segment} lies in a region that is registered with another domain, not with this \
         one: call Region::register with this one, too"
    )]
    ForeignBuffer {
        /// Its place in the payload, from 0.
        segment: usize,
    },
    /// The segment's region is registered nowhere.
    #[error("segment {segment} lies in a region that is not registered: call Region::register")]
    NotRegistered {
        /// Its place in the payload, from 0.
        segment: usize,
    },
    /// The segment is a device's memory, which the provider can't reach: it has to be copied to
    /// memory of the host first.
    #[error(
        "segment {segment} lies in a device's memory, and has to be staged: give the endpoint a \
         StagingRing (`OutgoingSettings::staging`)"
    )]
    Staged {
        /// Its place in the payload, from 0.
        segment: usize,
    },
}

impl LeaseError {
    fn of(region: &Region, scope: Scope, segment: usize) -> Self {
        if region.is_staged(scope) {
            Self::Staged { segment }
        } else if region.is_registered_anywhere() {
            Self::ForeignBuffer { segment }
        } else {
            Self::NotRegistered { segment }
        }
    }
}

/// Why a header can't be put in front of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrontError {
    /// There is less room in front of it, in bytes; none where it is not one buffer's.
    NoRoom { len: usize, room: usize },
    /// Another header is there: a clone of the buffer is on its way with it.
    Taken,
}

/// The leases of a payload's segments, from the first on. Apart from the payload, so that taking
/// them does not move it.
#[derive(Debug)]
#[must_use = "the registrations stay open until the leases are ended"]
pub(crate) struct Leases {
    scope: Scope,
    count: u32,
    /// What else there is to end: [`FRONT`], [`GATED`]. Together, so that a plain send asks once.
    marks: u32,
}

/// The room in front of the payload is claimed, too.
const FRONT: u32 = 1;
/// The payload is gated: the leases are those of what is sent of it.
const GATED: u32 = 2;

impl Leases {
    /// None: somebody else keeps the registrations open, for as long as the operation lives.
    #[inline]
    pub(crate) fn elsewhere(scope: Scope) -> Self {
        Self {
            scope,
            count: 0,
            marks: 0,
        }
    }

    /// Takes over the claim of [`Payload::begin_front`], which was called for the same payload.
    pub(crate) fn with_front(mut self) -> Self {
        self.marks |= FRONT;
        self
    }

    /// They are leases of [`Payload::wire`], for the payload that it is of.
    pub(crate) fn of_gated(mut self) -> Self {
        self.marks |= GATED;
        self
    }

    #[inline]
    fn end(&mut self, payload: &mut Payload) {
        if self.count | self.marks != 0 {
            self.end_all(payload);
        }
    }

    #[inline(never)]
    fn end_all(&mut self, payload: &mut Payload) {
        let gated = self.marks & GATED != 0;
        self.end_parts(payload.wire());
        if gated {
            payload.ungate();
        }
    }

    fn end_parts(&mut self, payload: &Payload) {
        let count = std::mem::take(&mut self.count);
        for segment in &payload.0[..count as usize] {
            // SAFETY: `Payload::lease` took one for each of the first `count` segments of this
            // payload, and that count is 0 from here on.
            unsafe { segment.region().release(self.scope) };
        }
        if std::mem::take(&mut self.marks) & FRONT != 0 {
            payload.end_front();
        }
    }
}

/// A payload in an operation; its registrations stay open while this lives.
#[derive(Debug)]
pub(crate) struct LeasedPayload {
    payload: Payload,
    leases: Leases,
}

impl LeasedPayload {
    /// # Safety
    ///
    /// * `leases` is what [`Payload::lease`] gave for this very payload, or [`Leases::elsewhere`];
    ///   or, [of a gated one](Leases::of_gated), for its [`wire`](Payload::wire).
    #[inline]
    pub(crate) unsafe fn new(payload: Payload, leases: Leases) -> Self {
        Self { payload, leases }
    }

    /// As [`Payload::run_count`].
    #[inline]
    pub(crate) fn run_count(&self) -> usize {
        self.payload.run_count()
    }

    #[cfg(test)]
    pub(crate) fn payload(&self) -> &Payload {
        &self.payload
    }

    /// Ends the leases; to be called when the operation is over.
    #[inline]
    pub(crate) fn into_payload(mut self) -> Payload {
        self.take()
    }

    /// The same where it lies; what stays there is an empty payload without a lease.
    #[inline]
    pub(crate) fn take(&mut self) -> Payload {
        self.leases.end(&mut self.payload);
        std::mem::take(&mut self.payload)
    }

    /// As [`Payload::advance_gate`].
    pub(crate) fn advance_gate(&mut self) -> Result<bool, GateError> {
        self.payload.advance_gate()
    }

    /// As [`Payload::poll_gate`].
    pub(crate) fn poll_gate(&mut self) -> Result<bool, GateError> {
        self.payload.poll_gate()
    }
}

impl Drop for LeasedPayload {
    fn drop(&mut self) {
        self.leases.end(&mut self.payload);
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/payload.rs"]
mod tests;
