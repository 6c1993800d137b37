//! `Outgoing`: how header and payload become one message, and what is held until it is over.
//!
//! ```text
//!  measure ─► load: header slot, leases; a DataOp in the hub's slab ─► post ─► completion ─► end
//!                                  refused: taken out of the slab, end ◄─┘
//! ```
//!
//! At the end, slot and payload are free.
//!
//! The hub has the connection, the slab and the account of what is in flight; what lies between is
//! here.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

use crate::Error;
use crate::buffer::{
    FrontError, GateError, HeaderError, HeaderSlotManager, LeaseError, LeasedPayload, Leases,
    Payload, TakenSlot, WakeFn, WakerId,
};
use crate::cuda::Device;
use crate::endpoint::error::{Blocked, MessageLimit, SendErrorKind};
use crate::endpoint::event::{Inject, Level};
use crate::endpoint::hub::control::HeldDescriptor;
use crate::endpoint::hub::pair::HeaderOp;
use crate::endpoint::hub::posted::MessageOp;
use crate::endpoint::hub::recent_lease::RecentLease;
use crate::endpoint::hub::scoped::ScopedRegistrations;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{IOV_MAX, Link, LinkConn, LinkLimits, PostRefused, SendPost};
use crate::endpoint::staging::{self, StagingRing};
use crate::endpoint::windows::one_sided::OneSided;
use crate::error::FabricErrno;
use crate::fabric::Shape;
use crate::id::{ConnectionId, EndpointId};
use crate::in_flight::InFlight;
use crate::memory::{Region, Scope};
use crate::protocol::connection::{self, CloseReason, Connection};
use crate::protocol::wire::{self, HeaderMode};

/// A data message in flight, with everything that must stay alive until it is over.
///
/// Ended by [`Outgoing::end`]; dropped otherwise, its header slot stays taken.
pub(crate) struct DataOp {
    pub(crate) connection: ConnectionId,
    pub(crate) key: u64,
    payload: LeasedPayload,
    /// Given back to the endpoint's manager by whoever takes the operation out of the slab.
    slot: Option<TakenSlot>,
    /// Its number on the connection: failed sends are reported in the order in which they were
    /// posted.
    pub(crate) sequence: u64,
    /// When it was posted; kept only where there is a deadline, and until it was found late.
    pub(crate) posted: Option<Instant>,
    /// Its outcome was told, as its connection is over, though the provider may still have it.
    pub(crate) told: bool,
    /// Its registration is kept open by the core's [`RecentLease`].
    recent: bool,
    /// Shape `TwoMessages`: the header that travels in front of it, by its context, until that is
    /// over.
    pub(crate) header: Option<NonZeroUsize>,
}

impl DataOp {
    /// Whether it may be posted now, as far as it is concerned. `behind`: others are in front of
    /// it, and what is under way is not asked about.
    ///
    /// # Errors
    /// It never may.
    pub(crate) fn poll_gate(&mut self, behind: bool) -> Result<bool, GateError> {
        match behind {
            true => self.payload.advance_gate(),
            false => self.payload.poll_gate(),
        }
    }
}

#[cfg(all(test, not(loom)))]
impl DataOp {
    /// Of a message without a byte.
    pub(crate) fn empty(key: u64, scope: crate::memory::Scope) -> Self {
        // SAFETY: there is no lease.
        let payload = unsafe { LeasedPayload::new(Payload::empty(), Leases::elsewhere(scope)) };
        Self {
            connection: ConnectionId(0),
            key,
            payload,
            slot: None,
            sequence: 0,
            posted: None,
            told: false,
            recent: false,
            header: None,
        }
    }
}

/// The same for a message that goes piece by piece, with where its bytes lie, in their order.
///
/// Ended by [`Outgoing::end_long`].
pub(crate) struct LongOp {
    payload: LeasedPayload,
    slot: Option<TakenSlot>,
    /// Valid as long as the two above.
    pub(crate) runs: Vec<Run>,
    /// A part of it goes through the staging ring: the registration of that, and then of its other
    /// parts.
    pub(crate) staged: Vec<HeldDescriptor>,
}

impl LongOp {
    /// Whether its pieces may be written now.
    ///
    /// # Errors
    /// They never may.
    pub(crate) fn poll_gate(&mut self) -> Result<bool, GateError> {
        self.payload.poll_gate()
    }
}

/// A part of a message.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) base: *const u8,
    pub(crate) len: usize,
    pub(crate) desc: *mut c_void,
    /// It lies there, and is copied before it is sent.
    pub(crate) device: Option<Device>,
}

// SAFETY: the address is one of a payload or a header slot, which may be sent; the descriptor is an
// opaque value of a provider that was opened with FI_THREAD_SAFE.
unsafe impl Send for Run {}

/// A header in its slot, for sends to several connections. Given back by [`Outgoing::drop_header`].
#[derive(Debug)]
#[must_use = "the slot stays taken until the header is dropped at its endpoint"]
pub(crate) struct PreparedHeader {
    /// None where there is nothing to copy.
    slot: Option<TakenSlot>,
    len: usize,
}

impl PreparedHeader {
    /// Bytes of the header, as it was given.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Where a message's header comes from.
pub(crate) enum Header<'a> {
    Bytes(&'a [u8]),
    /// Other messages have it, too.
    Prepared(&'a mut PreparedHeader),
}

impl Header<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Prepared(header) => header.len(),
        }
    }

    /// The same, to be given twice.
    pub(crate) fn again(&mut self) -> Header<'_> {
        match self {
            Self::Bytes(bytes) => Header::Bytes(bytes),
            Self::Prepared(header) => Header::Prepared(header),
        }
    }
}

/// What a message needs of the connection that it goes out on.
pub(crate) struct PostingContext<'a, C> {
    pub(crate) connection: ConnectionId,
    pub(crate) conn: Option<&'a C>,
    pub(crate) scoped: &'a mut ScopedRegistrations,
    /// Of the header slots, for this connection.
    pub(crate) header_desc: *mut c_void,
    /// The number that the message will have.
    pub(crate) sequence: u64,
    /// The time that its deadline counts from, where it has one.
    pub(crate) posted: Option<Instant>,
    /// Its segments are listed here.
    pub(crate) iov: &'a mut IovList,
}

/// What was taken for a message besides its payload.
struct MessageParts {
    slot: Option<TakenSlot>,
    leases: Leases,
    recent: bool,
}

/// What all connections of a core have in common for what they send.
#[derive(Debug)]
pub(crate) struct Outgoing {
    owner: EndpointId,
    headers: HeaderSlotManager,
    mode: HeaderMode,
    level: Level,
    shape: Shape,
    max_message: u64,
    max_segments: usize,
    /// Messages up to so many bytes are injected.
    inject: usize,
    uses_more: bool,
    recent: RecentLease,
    /// Where a GPU's memory goes out by way of the host, with the endpoint's waker at it.
    staging: Option<(StagingRing, WakerId)>,
}

/// The shape of messages over such a link: the one asked for, or the first that the limit on
/// segments allows.
pub(crate) fn choose_shape(asked: Option<Shape>, limits: &LinkLimits) -> Result<Shape, Error> {
    let first = Shape::for_iov_limit(limits.iov_limit);
    match asked {
        Some(Shape::Iov) if first != Shape::Iov => Err(Error::Config {
            field: "shape",
            value: Shape::Iov.to_string(),
            reason: "the provider takes one segment a message (Headroom and TwoMessages do with \
                that)",
        }),
        asked => Ok(asked.unwrap_or(first)),
    }
}

impl Outgoing {
    pub(crate) fn new(
        owner: EndpointId,
        headers: HeaderSlotManager,
        mode: HeaderMode,
        level: Level,
        (shape, inject): (Shape, Inject),
        limits: &LinkLimits,
        staging: Option<(StagingRing, WakerId)>,
    ) -> Self {
        let segments = limits.iov_limit.min(IOV_MAX);
        let inject = match inject {
            // A copy that was taken says nothing of its delivery. Nor would device memory go this
            // way: regions are host memory.
            _ if level != Level::Sent => 0,
            Inject::Off => 0,
            Inject::Auto if !limits.inject_pays => 0,
            Inject::Auto => limits.inject_size,
            Inject::UpTo(bytes) => bytes.min(limits.inject_size),
        };
        Self {
            owner,
            headers,
            mode,
            level,
            shape,
            max_message: limits.max_message,
            max_segments: match shape {
                Shape::Iov => segments - 1,
                Shape::Headroom => 1,
                Shape::TwoMessages => segments,
            },
            inject,
            uses_more: limits.uses_more,
            recent: RecentLease::default(),
            staging,
        }
    }

    // ---- staging --------------------------------------------------------------------------------

    /// Whether a payload goes out only as a copy.
    ///
    /// # Errors
    /// It does, and there is no ring for it.
    pub(crate) fn must_stage(
        &self,
        payload: &Payload,
        scope: Scope,
    ) -> Result<bool, SendErrorKind> {
        match staging::staged_segment(payload, scope) {
            None => Ok(false),
            Some(_) if self.staging.is_some() => Ok(true),
            Some(segment) => Err(SendErrorKind::NotStaged { segment }),
        }
    }

    /// The payload, with slots of the ring to be sent in its place, where it has to be.
    pub(crate) fn stage(
        &self,
        payload: Payload,
        scope: Scope,
    ) -> Result<Payload, (SendErrorKind, Payload)> {
        match (self.must_stage(&payload, scope), &self.staging) {
            (Ok(true), Some((ring, _))) => ring.stage(payload, scope),
            (Err(kind), _) => Err((kind, payload)),
            _ => Ok(payload),
        }
    }

    /// From now on a GPU's memory goes out by way of this ring.
    pub(crate) fn stage_in(&mut self, ring: &StagingRing, wake: WakeFn) {
        self.staging = Some((ring.clone(), ring.add_waker(wake)));
    }

    pub(crate) fn ring(&self) -> Option<&StagingRing> {
        self.staging.as_ref().map(|(ring, _)| ring)
    }

    /// Asks the ring to wake the endpoint when a slot is free; true if one is already.
    pub(crate) fn arm_staging(&self) -> bool {
        let ring = self.staging.as_ref();
        ring.is_some_and(|(ring, waker)| ring.arm(*waker))
    }

    /// Whether a slot of the ring is free.
    pub(crate) fn has_staging(&self) -> bool {
        let ring = self.staging.as_ref();
        ring.is_some_and(|(ring, _)| ring.free_slots() > 0)
    }

    /// The endpoint is dropped.
    pub(crate) fn leave_staging(&mut self) {
        if let Some((ring, waker)) = self.staging.take() {
            ring.remove_waker(waker);
        }
    }

    /// Whose messages they are.
    pub(crate) fn owner(&self) -> EndpointId {
        self.owner
    }

    pub(crate) fn headers(&self) -> &HeaderSlotManager {
        &self.headers
    }

    pub(crate) fn header_mode(&self) -> HeaderMode {
        self.mode
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Messages up to so many bytes are injected.
    pub(crate) fn inject(&self) -> usize {
        self.inject
    }

    /// Posts can be flagged to be followed by others.
    pub(crate) fn uses_more(&self) -> bool {
        self.uses_more
    }

    /// Bytes of the largest message that a peer who takes so many can be sent.
    pub(crate) fn max_message(&self, peer_max: u64) -> u64 {
        peer_max.min(self.max_message)
    }

    // ---- one message ----------------------------------------------------------------------------

    /// Everything that can be said of a message before anything is taken for it. Gives its length
    /// in bytes.
    #[inline]
    pub(crate) fn measure(
        &self,
        payload: &Payload,
        header_len: usize,
        peer_max: u64,
    ) -> Result<u64, SendErrorKind> {
        self.check_header(header_len)?;
        let (bytes, count) = payload.bytes_and_runs();
        let len = (self.mode.overhead() + header_len) as u64 + bytes as u64;
        if len > peer_max.min(self.max_message) {
            let whose = if peer_max <= self.max_message {
                MessageLimit::Peer
            } else {
                MessageLimit::Provider
            };
            return Err(SendErrorKind::TooLong {
                len,
                max: peer_max.min(self.max_message),
                whose,
            });
        }
        if count > self.max_segments {
            return Err(SendErrorKind::TooManySegments {
                count,
                max: self.max_segments,
            });
        }
        Ok(len)
    }

    #[inline]
    fn check_header(&self, len: usize) -> Result<(), SendErrorKind> {
        let slot = self.headers.slot_size();
        let max = slot.saturating_sub(self.mode.overhead());
        match self.mode {
            HeaderMode::Fixed(fixed) if len != usize::from(fixed) => {
                Err(SendErrorKind::HeaderLength {
                    len,
                    fixed: usize::from(fixed),
                })
            }
            _ if len > max => Err(SendErrorKind::HeaderTooLong { len, max }),
            _ => Ok(()),
        }
    }

    /// Takes all that a message needs, or nothing, lists its segments, and puts it into the slab,
    /// which has room for it; its context. Where a header travels alone, the segments are those of
    /// the payload, and [`lone_header`](Self::lone_header) has the header.
    ///
    /// It is made where it stays until it is over: a message that moves through a few functions
    /// costs more than all that they do.
    #[inline(always)]
    pub(crate) fn load<C: LinkConn>(
        &mut self,
        slab: &mut InFlight<MessageOp>,
        mut payload: Payload,
        header: Header<'_>,
        key: u64,
        mut lane: PostingContext<'_, C>,
    ) -> Result<usize, (SendErrorKind, Payload)> {
        let held = match header {
            Header::Bytes(header) => self.hold(&mut payload, header, key, &mut lane),
            Header::Prepared(header) => self.hold_prepared(&mut payload, header, key, &mut lane),
        };
        match held {
            Ok(held) => Ok(place(slab, payload, held, key, &lane)),
            Err(kind) => Err((kind, payload)),
        }
    }

    /// As [`load`](Self::load), for a message that may have to wait for a gate: taken is what is
    /// sent of it.
    #[cold]
    pub(crate) fn load_gated<C: LinkConn>(
        &mut self,
        slab: &mut InFlight<MessageOp>,
        mut payload: Payload,
        mut header: Header<'_>,
        key: u64,
        mut lane: PostingContext<'_, C>,
    ) -> Result<usize, (SendErrorKind, Payload)> {
        let wire = payload.wire_mut();
        let held = match &mut header {
            Header::Bytes(header) => self.hold(wire, header, key, &mut lane),
            Header::Prepared(header) => self.hold_prepared(wire, header, key, &mut lane),
        };
        match held {
            Ok(mut held) => {
                if payload.is_gated() {
                    held.leases = held.leases.of_gated();
                }
                Ok(place(slab, payload, held, key, &lane))
            }
            Err(kind) => Err((kind, payload)),
        }
    }

    #[inline(always)]
    fn hold<C: LinkConn>(
        &mut self,
        payload: &mut Payload,
        header: &[u8],
        key: u64,
        lane: &mut PostingContext<'_, C>,
    ) -> Result<MessageParts, SendErrorKind> {
        if self.goes_in_front(payload, header) {
            let prefix = self.prefix(header);
            return self.hold_behind(&[prefix.as_slice(), header], payload, lane);
        }
        let slot = self.take_slot(header, key, payload)?;
        self.hold_with(slot, payload, lane)
    }

    /// With a header that other messages have, too.
    #[inline(never)]
    fn hold_prepared<C: LinkConn>(
        &mut self,
        payload: &mut Payload,
        header: &mut PreparedHeader,
        key: u64,
        lane: &mut PostingContext<'_, C>,
    ) -> Result<MessageParts, SendErrorKind> {
        let Some(slot) = &mut header.slot else {
            return self.hold(payload, &[], key, lane);
        };
        if self.shape == Shape::Headroom && payload.run_count() > 0 {
            let headers = self.headers.clone();
            return self.hold_behind(&[headers.bytes(slot)], payload, lane);
        }
        if self.shape == Shape::TwoMessages && payload.run_count() == 0 {
            // Framed, and by itself: not what the slot has.
            let headers = self.headers.clone();
            return self.hold(payload, headers.bytes(slot), key, lane);
        }
        let slot = self.headers.share(slot);
        self.hold_with(Some(slot), payload, lane)
    }

    /// The header has to lie right in front of the payload.
    #[inline]
    fn goes_in_front(&self, payload: &Payload, header: &[u8]) -> bool {
        let framed = self.mode.overhead() + header.len() > 0;
        self.shape == Shape::Headroom && framed && payload.run_count() > 0
    }

    /// Header and payload as one run of memory.
    #[cold]
    fn hold_behind<C: LinkConn>(
        &mut self,
        header: &[&[u8]],
        payload: &mut Payload,
        lane: &mut PostingContext<'_, C>,
    ) -> Result<MessageParts, SendErrorKind> {
        let len = match payload.begin_front(header) {
            Ok(len) => len,
            Err(FrontError::NoRoom { len, room }) => {
                return Err(SendErrorKind::NoHeaderRoom { len, room });
            }
            Err(FrontError::Taken) => return Err(SendErrorKind::WouldBlock(Blocked::HeaderRoom)),
        };
        let (leases, recent) = match self.lease(payload, lane.conn, lane.scoped, lane.iov) {
            Ok((leases, recent)) => (leases.with_front(), recent),
            Err(kind) => {
                payload.end_front();
                return Err(kind);
            }
        };
        lane.iov.extend_front(len);
        Ok(MessageParts {
            slot: None,
            leases,
            recent,
        })
    }

    #[inline(always)]
    fn hold_with<C: LinkConn>(
        &mut self,
        slot: Option<TakenSlot>,
        payload: &Payload,
        lane: &mut PostingContext<'_, C>,
    ) -> Result<MessageParts, SendErrorKind> {
        if let Some(slot) = slot.as_ref().filter(|_| !self.travels_alone(payload)) {
            lane.iov
                .push(self.headers.start(slot), slot.len(), lane.header_desc);
        }
        match self.lease(payload, lane.conn, lane.scoped, lane.iov) {
            Ok((leases, recent)) => Ok(MessageParts {
                slot,
                leases,
                recent,
            }),
            Err(kind) => {
                self.give_back(slot);
                Err(kind)
            }
        }
    }

    /// The header is a message of its own.
    #[inline(always)]
    fn travels_alone(&self, payload: &Payload) -> bool {
        self.shape == Shape::TwoMessages && payload.run_count() > 0
    }

    /// As [`load`](Self::load), for a message of any number of segments, which go one after the
    /// other.
    #[cold]
    pub(crate) fn load_long<C: LinkConn>(
        &mut self,
        payload: Payload,
        header: Header<'_>,
        key: u64,
        lane: PostingContext<'_, C>,
    ) -> Result<LongOp, (SendErrorKind, Payload)> {
        let slot = match self.long_header(header, key, payload.parts().is_empty()) {
            Ok(slot) => slot,
            Err(kind) => return Err((kind, payload)),
        };
        let mut runs = Vec::new();
        if let Some(slot) = &slot {
            runs.push(Run {
                base: self.headers.start(slot),
                len: slot.len(),
                desc: lane.header_desc,
                device: None,
            });
        }
        let (mut leases, staged) = match self.lease_long(&payload, lane, &mut runs) {
            Ok(leased) => leased,
            Err(kind) => {
                self.give_back(slot);
                return Err((kind, payload));
            }
        };
        if payload.is_gated() {
            leases = leases.of_gated();
        }
        // SAFETY: the leases are this payload's, or those of what is sent of it.
        let payload = unsafe { LeasedPayload::new(payload, leases) };
        Ok(LongOp {
            payload,
            slot,
            runs,
            staged,
        })
    }

    /// What a long message begins with, whatever the shape is: it is written as one run. `alone`:
    /// there is nothing else of it.
    fn long_header(
        &self,
        header: Header<'_>,
        key: u64,
        alone: bool,
    ) -> Result<Option<TakenSlot>, SendErrorKind> {
        let header = match header {
            Header::Bytes(bytes) => bytes,
            Header::Prepared(prepared) => match &mut prepared.slot {
                None => &[],
                // Nothing is in front of it, since it travels alone as a rule.
                Some(slot) if self.shape == Shape::TwoMessages => self.headers.bytes(slot),
                Some(slot) => return Ok(Some(self.headers.share(slot))),
            },
        };
        let prefix = self.prefix(header);
        let framed = prefix.0.is_some() || !header.is_empty() || alone;
        let parts = [prefix.as_slice(), header];
        framed.then(|| self.fill_slot(&parts, key)).transpose()
    }

    fn lease_long<C: LinkConn>(
        &self,
        payload: &Payload,
        lane: PostingContext<'_, C>,
        runs: &mut Vec<Run>,
    ) -> Result<(Leases, Vec<HeldDescriptor>), SendErrorKind> {
        let scope = lane.scoped.scope();
        if !self.must_stage(payload, scope)? {
            let leases = lease_runs(payload.wire(), lane.conn, lane.scoped, runs)?;
            return Ok((leases, Vec::new()));
        }
        let ring = self.ring().map(StagingRing::region);
        let ring = ring.and_then(|region| hold_region(region, lane.conn, lane.scoped).ok());
        let mut held = vec![ring.ok_or(SendErrorKind::NotStaged { segment: 0 })?];
        for (index, segment) in payload.segments().iter().enumerate() {
            let region = segment.region();
            let device = region.kind().device().filter(|_| region.is_staged(scope));
            let desc = match device {
                Some(_) => std::ptr::null_mut(),
                None => {
                    let one = hold_region(region, lane.conn, lane.scoped)
                        .map_err(|error| error.unwrap_or_else(|| not_here(region, index)))?;
                    let desc = one.desc();
                    held.push(one);
                    desc
                }
            };
            segment.name_runs(desc, &mut |base, len, desc| {
                runs.push(Run {
                    base,
                    len,
                    desc,
                    device,
                });
            });
        }
        Ok((Leases::elsewhere(scope), held))
    }

    /// A slot for a part of a long message, and the gate that fills it.
    pub(crate) fn stage_piece(
        &self,
        run: &Run,
        at: usize,
        room: usize,
    ) -> Option<(Payload, usize)> {
        let (ring, _) = self.staging.as_ref()?;
        let len = (run.len - at).min(room).min(ring.slot_bytes());
        let piece = ring.piece(run.device?, run.base as u64 + at as u64, len)?;
        Some((piece, len))
    }

    /// As [`end`](Self::end).
    pub(crate) fn end_long(&mut self, op: LongOp) -> Payload {
        self.give_back(op.slot);
        op.payload.into_payload()
    }

    /// The header of a message that is about to be posted, if it travels alone, and its only
    /// segment.
    #[inline]
    pub(crate) fn lone_header(
        &self,
        op: &mut DataOp,
        header_desc: *mut c_void,
        iov: &mut IovList,
    ) -> Option<HeaderOp> {
        if self.shape != Shape::TwoMessages || op.payload.run_count() == 0 {
            return None;
        }
        let slot = op.slot.take()?;
        iov.push(self.headers.start(&slot), slot.len(), header_desc);
        Some(HeaderOp::new(op.connection, slot))
    }

    /// What the header mode puts in front of a header.
    #[inline]
    fn prefix(&self, header: &[u8]) -> Prefix {
        match self.mode {
            // `check_header` bounded the length by the slot's, which is at most 4096.
            HeaderMode::Prefixed => Prefix(Some(wire::prefix(header.len() as u16))),
            HeaderMode::Fixed(_) | HeaderMode::Raw => Prefix(None),
        }
    }

    /// Copies the header into a slot, with what the header mode puts in front of it. Nothing to
    /// copy: no slot, unless the message would have no segment at all. A header that travels alone
    /// needs nothing in front of it.
    #[inline(always)]
    fn take_slot(
        &self,
        header: &[u8],
        key: u64,
        payload: &Payload,
    ) -> Result<Option<TakenSlot>, SendErrorKind> {
        let prefix = self.prefix(header);
        if prefix.0.is_none() && header.is_empty() && !payload.parts().is_empty() {
            return Ok(None);
        }
        let prefix = match self.travels_alone(payload) {
            true => &[],
            false => prefix.as_slice(),
        };
        self.fill_slot(&[prefix, header], key).map(Some)
    }

    #[inline]
    fn fill_slot(&self, parts: &[&[u8]], key: u64) -> Result<TakenSlot, SendErrorKind> {
        self.headers
            .take(parts, key, self.owner)
            .map_err(|error| match error {
                HeaderError::TooLong { len, max } => SendErrorKind::HeaderTooLong { len, max },
                HeaderError::NoSlot => SendErrorKind::WouldBlock(Blocked::HeaderSlots),
            })
    }

    /// A header that several messages will have: one slot, filled once.
    pub(crate) fn prepare_header(
        &self,
        header: &[u8],
        key: u64,
    ) -> Result<PreparedHeader, SendErrorKind> {
        self.check_header(header.len())?;
        let prefix = match self.shape {
            // They travel alone, as a rule: a message without a payload is not for many.
            Shape::TwoMessages => Prefix(None),
            Shape::Iov | Shape::Headroom => self.prefix(header),
        };
        let framed = self.mode == HeaderMode::Prefixed || !header.is_empty();
        let parts = [prefix.as_slice(), header];
        let slot = framed.then(|| self.fill_slot(&parts, key)).transpose()?;
        Ok(PreparedHeader {
            slot,
            len: header.len(),
        })
    }

    /// No further message will have this header. Its slot is free when the last one is over.
    pub(crate) fn drop_header(&self, header: PreparedHeader) {
        self.give_back(header.slot);
    }

    /// What the operation held is free again: slot, registration, payload. What stays of it holds
    /// nothing.
    #[inline]
    pub(crate) fn end(&mut self, op: &mut DataOp) -> (u64, Payload) {
        if std::mem::take(&mut op.recent) {
            self.recent.end();
        }
        self.give_back(op.slot.take());
        (op.key, op.payload.take())
    }

    /// As [`end`](Self::end), of what a one-sided operation holds here: the lease of
    /// [`lease`](Self::lease).
    #[inline]
    pub(crate) fn end_one_sided(&mut self, op: &mut OneSided) {
        if std::mem::take(&mut op.recent) {
            self.recent.end();
        }
    }

    #[inline]
    fn give_back(&self, slot: Option<TakenSlot>) {
        if let Some(slot) = slot {
            self.headers.give_back(slot);
        }
    }

    /// Takes the message's credit and hands it to the provider; if that does not take it, the
    /// credit is free again.
    #[inline]
    pub(crate) fn post<L: Link>(
        &self,
        link: &mut L,
        conn: Option<&L::Conn>,
        machine: &mut Connection,
        context: usize,
        iov: &IovList,
    ) -> Result<(), PostRefused> {
        // The credit is taken first, so that a completion can never come before its post is
        // counted.
        let number = machine.on_data_admitted();
        let data = data_of(machine, number);
        let posted = self.hand_over(link, conn, (context, data), iov, false);
        posted.inspect_err(|_| machine.on_post_undone())
    }

    /// The same for a header that travels alone, and for the credit of the whole message. Gives the
    /// CQ data of the payload, which follows.
    pub(crate) fn post_header<L: Link>(
        &self,
        link: &mut L,
        conn: Option<&L::Conn>,
        machine: &mut Connection,
        context: usize,
        iov: &IovList,
    ) -> Result<u64, PostRefused> {
        let taken = machine.on_pair_posted();
        debug_assert!(taken.is_ok(), "the core asked the same");
        let [header, payload] = machine.pair_data(taken.unwrap_or(0));
        match self.hand_over(link, conn, (context, Some(header)), iov, false) {
            Ok(()) => Ok(payload),
            Err(refused) => {
                machine.on_pair_undone();
                Err(refused)
            }
        }
    }

    /// Hands a message to the provider whose credit was taken.
    #[inline]
    pub(crate) fn hand_over<L: Link>(
        &self,
        link: &mut L,
        conn: Option<&L::Conn>,
        (context, data): (usize, Option<u64>),
        iov: &IovList,
        more: bool,
    ) -> Result<(), PostRefused> {
        let inject = self.inject > 0 && iov.may_inject() && iov.len_bytes() <= self.inject;
        let post = SendPost {
            inject,
            more,
            ..SendPost::plain(iov.iov(), iov.desc(), context, data, self.level)
        };
        match conn {
            // SAFETY: the core's slab owns slot and payload, which keep the memory alive,
            // registered and unwritten, until the completion was read or the endpoint was closed.
            Some(conn) => unsafe { link.post_send(conn, &post) },
            None => Err(PostRefused::Errno(FabricErrno::new(libc::ENOTCONN))),
        }
    }

    /// A header that travelled alone is over.
    pub(crate) fn end_header(&self, slot: TakenSlot) {
        self.headers.give_back(slot);
    }

    // ---- registrations --------------------------------------------------------------------------

    /// Makes sure that every segment is registered here, and stays so; true: by the lease that the
    /// sends in flight share.
    #[inline(always)]
    pub(crate) fn lease<C: LinkConn>(
        &mut self,
        payload: &Payload,
        conn: Option<&C>,
        scoped: &mut ScopedRegistrations,
        iov: &mut IovList,
    ) -> Result<(Leases, bool), SendErrorKind> {
        let scope = scoped.scope();
        // The provider would copy it with the processor.
        if self.inject > 0 && payload.is_device() {
            iov.forbid_inject();
        }
        if let [segment] = payload.parts() {
            // What most of them are.
            if let Some((region, start, len)) = segment.one_run()
                && let Some(desc) = self.recent.begin(region, scope)
            {
                if len > 0 {
                    iov.push(region.at(start).as_ptr(), len, desc);
                }
                return Ok((Leases::elsewhere(scope), true));
            }
            if let Some(region) = segment.plain_region()
                && let Some(desc) = self.recent.begin(region, scope)
            {
                segment.name_runs(desc, &mut |base, len, desc| iov.push(base, len, desc));
                return Ok((Leases::elsewhere(scope), true));
            }
        }
        lease_each(payload, conn, scoped, iov).map(|leases| (leases, false))
    }

    /// The same for the one region of a read's destination: its descriptor, if it is kept open by
    /// the lease that all share.
    #[inline]
    pub(crate) fn lease_shared(
        &mut self,
        region: &Arc<Region>,
        scope: Scope,
    ) -> Option<*mut c_void> {
        self.recent.begin(region, scope)
    }

    /// With no send in flight, no registration is kept open.
    #[inline]
    pub(crate) fn rest(&mut self) {
        self.recent.rest();
    }

    /// Keeps the registration of what is in flight open for ever: the provider may still use it.
    pub(crate) fn leak(&mut self) {
        self.recent.leak();
    }
}

/// Puts a message into the slab for which all was taken.
#[inline(always)]
fn place<C>(
    slab: &mut InFlight<MessageOp>,
    payload: Payload,
    held: MessageParts,
    key: u64,
    lane: &PostingContext<'_, C>,
) -> usize {
    let Some(vacant) = slab.vacant() else {
        unreachable!("the core counts what is in flight, and its slab has room for that");
    };
    // SAFETY: the leases were just taken for this payload, or for what is sent of it.
    let payload = unsafe { LeasedPayload::new(payload, held.leases) };
    vacant.fill(MessageOp::Data(DataOp {
        connection: lane.connection,
        key,
        payload,
        slot: held.slot,
        sequence: lane.sequence,
        posted: lane.posted,
        told: false,
        recent: held.recent,
        header: None,
    }))
}

/// The bytes in front of a header, if the mode has any.
struct Prefix(Option<[u8; wire::PREFIX_LEN]>);

impl Prefix {
    #[inline]
    fn as_slice(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |prefix| prefix)
    }
}

/// The CQ data of a data message with this number.
#[inline]
pub(crate) fn data_of(machine: &Connection, number: u64) -> Option<u64> {
    let mark = machine.data_mark();
    mark.map(|mark| wire::numbered(mark, number))
}

/// Keeps a region's registration open for longer than one payload; where the provider scopes
/// registrations to endpoints, it is made. `None`: it is not registered here.
#[cold]
pub(crate) fn hold_region<C: LinkConn>(
    region: &Arc<Region>,
    conn: Option<&C>,
    scoped: &mut ScopedRegistrations,
) -> Result<HeldDescriptor, Option<SendErrorKind>> {
    if let Some(registrar) = conn.and_then(LinkConn::registrar)
        && scoped.misses(region)
    {
        let registered = scoped.register(region, registrar);
        registered.map_err(|error| Some(error.into()))?;
    }
    HeldDescriptor::lease(region, scoped.scope()).ok_or(None)
}

/// What is wrong with a segment whose region has no registration here.
#[cold]
pub(crate) fn not_here(region: &Region, segment: usize) -> SendErrorKind {
    match region.is_registered_anywhere() {
        true => SendErrorKind::ForeignBuffer { segment },
        false => SendErrorKind::NotRegistered { segment },
    }
}

/// A lease for each segment.
#[inline(never)]
pub(crate) fn lease_each<C: LinkConn>(
    payload: &Payload,
    conn: Option<&C>,
    scoped: &mut ScopedRegistrations,
    iov: &mut IovList,
) -> Result<Leases, SendErrorKind> {
    let header_len = iov.len();
    loop {
        let scope = scoped.scope();
        match payload.lease(scope, &mut |base, len, desc| iov.push(base, len, desc)) {
            Ok(leases) => return Ok(leases),
            Err(error) => {
                iov.truncate(header_len);
                // Each round registers one region more, or gives up.
                register_here(payload, error, conn, scoped)?;
            }
        }
    }
}

/// The same for any number of segments; those without a byte are left out.
fn lease_runs<C: LinkConn>(
    payload: &Payload,
    conn: Option<&C>,
    scoped: &mut ScopedRegistrations,
    runs: &mut Vec<Run>,
) -> Result<Leases, SendErrorKind> {
    let header_len = runs.len();
    loop {
        let scope = scoped.scope();
        let mut push = |base, len, desc| {
            if len > 0 {
                runs.push(Run {
                    base,
                    len,
                    desc,
                    device: None,
                });
            }
        };
        match payload.lease(scope, &mut push) {
            Ok(leases) => return Ok(leases),
            Err(error) => {
                runs.truncate(header_len);
                register_here(payload, error, conn, scoped)?;
            }
        }
    }
}

/// Where the provider scopes registrations to endpoints: registers a region that this endpoint
/// meets for the first time. Everywhere else, says what is wrong.
#[cold]
fn register_here<C: LinkConn>(
    payload: &Payload,
    error: LeaseError,
    conn: Option<&C>,
    scoped: &mut ScopedRegistrations,
) -> Result<(), SendErrorKind> {
    if payload.is_gated() {
        // It waits: what is sent of it is leased by itself, by whoever sends it later.
        return Err(SendErrorKind::NotRegistered { segment: 0 });
    }
    let (segment, kind) = match error {
        LeaseError::ForeignBuffer { segment } => {
            (segment, SendErrorKind::ForeignBuffer { segment })
        }
        LeaseError::NotRegistered { segment } => {
            (segment, SendErrorKind::NotRegistered { segment })
        }
        LeaseError::Staged { segment } => return Err(SendErrorKind::NotStaged { segment }),
    };
    let region = payload
        .parts()
        .get(segment)
        .and_then(|segment| segment.plain_region().map(Arc::clone));
    let registrar = conn.and_then(LinkConn::registrar);
    match (region, registrar) {
        (Some(region), Some(registrar)) if scoped.misses(&region) => {
            scoped.register(&region, registrar)?;
            Ok(())
        }
        _ => Err(kind),
    }
}

/// What stands in the way of a send, for the caller.
pub(crate) fn refusal(
    blocked: connection::SendBlocked,
    reason: Option<CloseReason>,
) -> SendErrorKind {
    match (blocked, reason) {
        (_, Some(reason)) => SendErrorKind::Closed(reason),
        (connection::SendBlocked::NotConnected, None) => {
            SendErrorKind::WouldBlock(Blocked::Connecting)
        }
        (connection::SendBlocked::NoCredit, None) => SendErrorKind::WouldBlock(Blocked::Credits),
        (connection::SendBlocked::Long, None) => SendErrorKind::WouldBlock(Blocked::LongMessage),
        (_, None) => SendErrorKind::Closing,
    }
}

/// What a refusal by the provider is called.
pub(crate) fn refused_by_provider(refused: PostRefused) -> SendErrorKind {
    match refused {
        PostRefused::Again => SendErrorKind::WouldBlock(Blocked::Provider),
        PostRefused::Errno(errno) => SendErrorKind::Fabric(errno),
    }
}
