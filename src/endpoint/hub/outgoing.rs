//! `Outgoing`: how header and payload become one message, and what is held until it is over.
//!
//! ```text
//!  measure ─► load: header slot, leases; a DataOp in the hub's slab ─► post ─► completion ─► end
//!                                  refused: taken out of the slab, end ◄─┘
//! ```
//!
//! At the end, slot and payload are free. The hub has the connection, the slab and the account of
//! what is in flight; what lies between is here.

#![allow(unsafe_code)]

mod front;
mod long;

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Instant;

use crate::Error;
use crate::buffer::{FrontError, HeaderSlotManager, LeasedPayload, Leases, Payload, TakenSlot};
use crate::endpoint::error::{Blocked, MessageLimit, SendErrorKind};
use crate::endpoint::event::{Inject, Level};
use crate::endpoint::hub::data_op::DataOp;
use crate::endpoint::hub::headers::{Header, HeaderWriter, PreparedHeader};
use crate::endpoint::hub::leases::lease_each;
use crate::endpoint::hub::pair::HeaderOp;
use crate::endpoint::hub::posted::MessageOp;
use crate::endpoint::hub::recent_lease::RecentLease;
use crate::endpoint::hub::scoped::ScopedRegistrations;
use crate::endpoint::hub::staging_client::StagingClient;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{IOV_MAX, Link, LinkConn, LinkLimits, PostRefused, SendPost};
use crate::endpoint::windows::one_sided::OneSided;
use crate::error::FabricErrno;
use crate::fabric::Shape;
use crate::id::{ConnectionId, EndpointId};
use crate::in_flight::InFlight;
use crate::memory::{Region, Scope};
use crate::protocol::connection::{self, CloseReason, Connection};
use crate::protocol::wire::{self, HeaderMode};

/// What a message needs of the connection that it goes out on.
pub(crate) struct PostingContext<'a, C> {
    pub(crate) connection: ConnectionId,
    pub(crate) conn: Option<&'a C>,
    pub(crate) scoped: &'a mut ScopedRegistrations,
    /// The descriptor of the header slots, for this connection.
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
    headers: HeaderWriter,
    level: Level,
    shape: Shape,
    max_message: u64,
    max_segments: usize,
    /// Messages up to so many bytes are injected.
    inject: usize,
    uses_more: bool,
    recent: RecentLease,
    /// Where a GPU's memory goes out by way of the host.
    pub(crate) staging: StagingClient,
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
            headers: HeaderWriter {
                owner,
                slots: headers,
                mode,
            },
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
            staging: StagingClient::default(),
        }
    }

    /// The endpoint that sends.
    pub(crate) fn owner(&self) -> EndpointId {
        self.headers.owner
    }

    pub(crate) fn headers(&self) -> &HeaderSlotManager {
        &self.headers.slots
    }

    pub(crate) fn header_mode(&self) -> HeaderMode {
        self.headers.mode
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
        self.headers.check(header_len)?;
        let (bytes, count) = payload.bytes_and_runs();
        let len = (self.headers.mode.overhead() + header_len) as u64 + bytes as u64;
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
            let prefix = self.headers.prefix(header);
            return self.hold_behind(&[prefix.as_slice(), header], payload, lane);
        }
        let alone = self.travels_alone(payload);
        let is_all = payload.parts().is_empty();
        let slot = self.headers.take(header, key, (alone, is_all))?;
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
            let slots = self.headers.slots.clone();
            return self.hold_behind(&[slots.bytes(slot)], payload, lane);
        }
        if self.shape == Shape::TwoMessages && payload.run_count() == 0 {
            // Framed, and by itself: not what the slot has.
            let slots = self.headers.slots.clone();
            return self.hold(payload, slots.bytes(slot), key, lane);
        }
        let slot = self.headers.slots.share(slot);
        self.hold_with(Some(slot), payload, lane)
    }

    /// The header has to lie right in front of the payload.
    #[inline]
    fn goes_in_front(&self, payload: &Payload, header: &[u8]) -> bool {
        let framed = self.headers.mode.overhead() + header.len() > 0;
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
                .push(self.headers.slots.start(slot), slot.len(), lane.header_desc);
        }
        match self.lease(payload, lane.conn, lane.scoped, lane.iov) {
            Ok((leases, recent)) => Ok(MessageParts {
                slot,
                leases,
                recent,
            }),
            Err(kind) => {
                self.headers.give_back(slot);
                Err(kind)
            }
        }
    }

    /// The header is a message of its own.
    #[inline(always)]
    fn travels_alone(&self, payload: &Payload) -> bool {
        self.shape == Shape::TwoMessages && payload.run_count() > 0
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
        iov.push(self.headers.slots.start(&slot), slot.len(), header_desc);
        Some(HeaderOp::new(op.connection, slot))
    }

    /// A header that several messages will have: one slot, filled once.
    pub(crate) fn prepare_header(
        &self,
        header: &[u8],
        key: u64,
    ) -> Result<PreparedHeader, SendErrorKind> {
        let alone = self.shape == Shape::TwoMessages;
        self.headers.prepare(header, key, alone)
    }

    /// No further message will have this header. Its slot is free when the last one is over.
    pub(crate) fn drop_header(&self, header: PreparedHeader) {
        self.headers.give_back(header.slot);
    }

    /// What the operation held is free again: slot, registration, payload. What stays of it holds
    /// nothing.
    #[inline]
    pub(crate) fn end(&mut self, op: &mut DataOp) -> (u64, Payload) {
        if std::mem::take(&mut op.recent) {
            self.recent.end();
        }
        self.headers.give_back(op.slot.take());
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
        self.headers.slots.give_back(slot);
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
        packed: None,
    }))
}
/// The CQ data of a data message with this number.
#[inline]
pub(crate) fn data_of(machine: &Connection, number: u64) -> Option<u64> {
    let mark = machine.data_mark();
    mark.map(|mark| wire::numbered(mark, number))
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
