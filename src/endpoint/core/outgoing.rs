//! `Outgoing`: how header and payload become one message, and what is held until it is over. Both cores send with it.
//!
//! ```text
//!  measure ─► load: header slot, leases ─► DataOp, into the core's slab ─► post ─► completion ─► end: slot and payload are free
//!                                             └─ refused: taken out of the slab, end
//! ```
//!
//! The core has the connection, the slab and the account of what is in flight; what lies between, and is the same in both, is here.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Instant;

use crate::buffer::{
    HeaderError, HeaderSlotManager, LeaseError, LeasedPayload, Leases, Payload, TakenSlot,
};
use crate::endpoint::core::iov::IovList;
use crate::endpoint::core::recent_lease::RecentLease;
use crate::endpoint::core::scoped::ScopedRegistrations;
use crate::endpoint::event::Level;
use crate::endpoint::id::EndpointId;
use crate::endpoint::link::{IOV_MAX, Link, LinkConn, LinkLimits, PostRefused, SendPost};
use crate::endpoint::protocol::connection::{self, CloseReason, Connection};
use crate::endpoint::protocol::wire::{self, HeaderMode};
use crate::error::{Blocked, FabricErrno, MessageLimit, SendErrorKind};

/// A data message in flight, with everything that must stay alive until it is over.
///
/// Ended by [`Outgoing::end`]; dropped otherwise, its header slot stays taken.
pub(crate) struct DataOp {
    pub(crate) key: u64,
    payload: LeasedPayload,
    /// Given back to the endpoint's manager by whoever takes the operation out of the slab.
    slot: Option<TakenSlot>,
    /// Its number on the connection: failed sends are reported in the order in which they were posted.
    pub(crate) sequence: u64,
    /// When it was posted; kept only where there is a deadline, and until it was found late.
    pub(crate) posted: Option<Instant>,
    /// Its registration is kept open by the core's [`RecentLease`].
    recent: bool,
}

/// The same for a message that goes piece by piece, with where its bytes lie, in their order.
///
/// Ended by [`Outgoing::end_long`].
pub(crate) struct LongOp {
    payload: LeasedPayload,
    slot: Option<TakenSlot>,
    /// Valid as long as the two above.
    pub(crate) runs: Vec<Run>,
}

/// A part of a message.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) base: *const u8,
    pub(crate) len: usize,
    pub(crate) desc: *mut c_void,
}

// SAFETY: the address is one of a payload or a header slot, which may be sent; the descriptor is an opaque value of a provider that was
// opened with FI_THREAD_SAFE.
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

/// What a message needs of the connection that it goes out on.
pub(crate) struct Lane<'a, C> {
    pub(crate) conn: Option<&'a C>,
    pub(crate) scoped: &'a mut ScopedRegistrations,
    /// Of the header slots, for this connection.
    pub(crate) header_desc: *mut c_void,
    /// The number that the message will have.
    pub(crate) sequence: u64,
}

/// What all connections of a core have in common for what they send.
#[derive(Debug)]
pub(crate) struct Outgoing {
    owner: EndpointId,
    headers: HeaderSlotManager,
    mode: HeaderMode,
    level: Level,
    max_message: u64,
    max_segments: usize,
    recent: RecentLease,
}

impl Outgoing {
    pub(crate) fn new(
        owner: EndpointId,
        headers: HeaderSlotManager,
        mode: HeaderMode,
        level: Level,
        limits: &LinkLimits,
    ) -> Self {
        Self {
            owner,
            headers,
            mode,
            level,
            max_message: limits.max_message,
            max_segments: limits.iov_limit.min(IOV_MAX) - 1,
            recent: RecentLease::default(),
        }
    }

    pub(crate) fn headers(&self) -> &HeaderSlotManager {
        &self.headers
    }

    pub(crate) fn header_mode(&self) -> HeaderMode {
        self.mode
    }

    /// Bytes of the largest message that a peer who takes so many can be sent.
    pub(crate) fn max_message(&self, peer_max: u64) -> u64 {
        peer_max.min(self.max_message)
    }

    // ---- one message ---------------------------------------------------------------------------------------------

    /// Everything that can be said of a message before anything is taken for it. Gives its length in bytes.
    #[inline]
    pub(crate) fn measure(
        &self,
        payload: &Payload,
        header_len: usize,
        peer_max: u64,
    ) -> Result<u64, SendErrorKind> {
        self.check_header(header_len)?;
        let len = (self.mode.overhead() + header_len) as u64 + payload.len_bytes() as u64;
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
        let count = payload.run_count();
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
        let max = self.headers.slot_size() - self.mode.overhead();
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

    /// Takes all that a message needs, or nothing, and lists its segments.
    #[inline]
    pub(crate) fn load<C: LinkConn>(
        &mut self,
        payload: Payload,
        header: &[u8],
        key: u64,
        lane: Lane<'_, C>,
        iov: &mut IovList,
    ) -> Result<DataOp, (SendErrorKind, Payload)> {
        match self.take_slot(header, key, payload.segments().is_empty()) {
            Ok(slot) => self.load_with(slot, payload, key, lane, iov),
            Err(kind) => Err((kind, payload)),
        }
    }

    /// As [`load`](Self::load), with a header that other messages have, too.
    pub(crate) fn load_prepared<C: LinkConn>(
        &mut self,
        payload: Payload,
        header: &mut PreparedHeader,
        key: u64,
        lane: Lane<'_, C>,
        iov: &mut IovList,
    ) -> Result<DataOp, (SendErrorKind, Payload)> {
        match &mut header.slot {
            Some(slot) => {
                let slot = self.headers.share(slot);
                self.load_with(Some(slot), payload, key, lane, iov)
            }
            None => self.load(payload, &[], key, lane, iov),
        }
    }

    #[inline]
    fn load_with<C: LinkConn>(
        &mut self,
        slot: Option<TakenSlot>,
        payload: Payload,
        key: u64,
        lane: Lane<'_, C>,
        iov: &mut IovList,
    ) -> Result<DataOp, (SendErrorKind, Payload)> {
        if let Some(slot) = &slot {
            iov.push(self.headers.start(slot), slot.len(), lane.header_desc);
        }
        let (leases, recent) = match self.lease(&payload, lane.conn, lane.scoped, iov) {
            Ok(leases) => leases,
            Err(kind) => {
                self.give_back(slot);
                return Err((kind, payload));
            }
        };
        // SAFETY: the leases are this payload's.
        let payload = unsafe { LeasedPayload::new(payload, leases) };
        Ok(DataOp {
            key,
            payload,
            slot,
            sequence: lane.sequence,
            posted: None,
            recent,
        })
    }

    /// As [`load`](Self::load), for a message of any number of segments, which go one after the other.
    #[cold]
    pub(crate) fn load_long<C: LinkConn>(
        &mut self,
        payload: Payload,
        header: &[u8],
        key: u64,
        lane: Lane<'_, C>,
    ) -> Result<LongOp, (SendErrorKind, Payload)> {
        let slot = match self.take_slot(header, key, payload.segments().is_empty()) {
            Ok(slot) => slot,
            Err(kind) => return Err((kind, payload)),
        };
        let mut runs = Vec::new();
        if let Some(slot) = &slot {
            runs.push(Run {
                base: self.headers.start(slot),
                len: slot.len(),
                desc: lane.header_desc,
            });
        }
        let leases = match lease_runs(&payload, lane.conn, lane.scoped, &mut runs) {
            Ok(leases) => leases,
            Err(kind) => {
                self.give_back(slot);
                return Err((kind, payload));
            }
        };
        // SAFETY: the leases are this payload's.
        let payload = unsafe { LeasedPayload::new(payload, leases) };
        Ok(LongOp {
            payload,
            slot,
            runs,
        })
    }

    /// As [`end`](Self::end).
    pub(crate) fn end_long(&mut self, op: LongOp) -> Payload {
        self.give_back(op.slot);
        op.payload.into_payload()
    }

    /// Copies the header into a slot, with what the header mode puts in front of it. Nothing to copy: no slot, unless
    /// the message would have no segment at all.
    #[inline]
    fn take_slot(
        &self,
        header: &[u8],
        key: u64,
        only_segment: bool,
    ) -> Result<Option<TakenSlot>, SendErrorKind> {
        let prefix = match self.mode {
            // `check_header` bounded the length by the slot's, which is at most 4096.
            HeaderMode::Prefixed => Some(wire::prefix(header.len() as u16)),
            HeaderMode::Fixed(_) | HeaderMode::Raw => None,
        };
        if prefix.is_none() && header.is_empty() && !only_segment {
            return Ok(None);
        }
        let prefix = prefix.as_ref().map_or(&[][..], |prefix| &prefix[..]);
        let slot = self
            .headers
            .take(&[prefix, header], key, self.owner)
            .map_err(|error| match error {
                HeaderError::TooLong { len, max } => SendErrorKind::HeaderTooLong { len, max },
                HeaderError::NoSlot => SendErrorKind::WouldBlock(Blocked::HeaderSlots),
            })?;
        Ok(Some(slot))
    }

    /// A header that several messages will have: one slot, filled once.
    pub(crate) fn prepare_header(
        &self,
        header: &[u8],
        key: u64,
    ) -> Result<PreparedHeader, SendErrorKind> {
        self.check_header(header.len())?;
        let slot = self.take_slot(header, key, false)?;
        Ok(PreparedHeader {
            slot,
            len: header.len(),
        })
    }

    /// No further message will have this header. Its slot is free when the last one is over.
    pub(crate) fn drop_header(&self, header: PreparedHeader) {
        self.give_back(header.slot);
    }

    /// What the operation held is free again: slot, registration, payload.
    #[inline]
    pub(crate) fn end(&mut self, op: DataOp) -> (u64, Payload) {
        if op.recent {
            self.recent.end();
        }
        let payload = op.payload.into_payload();
        self.give_back(op.slot);
        (op.key, payload)
    }

    #[inline]
    fn give_back(&self, slot: Option<TakenSlot>) {
        if let Some(slot) = slot {
            self.headers.give_back(slot);
        }
    }

    /// Takes the message's credit and hands it to the provider; if that does not take it, the credit is free again.
    #[inline]
    pub(crate) fn post<L: Link>(
        &self,
        link: &mut L,
        conn: Option<&L::Conn>,
        machine: &mut Connection,
        context: usize,
        iov: &IovList,
    ) -> Result<(), PostRefused> {
        // The credit is taken first, so that a completion can never come before its post is counted.
        let taken = machine.on_data_posted();
        debug_assert!(taken.is_ok(), "the core asked the same");
        let post = SendPost {
            iov: iov.iov(),
            desc: iov.desc(),
            context,
            data: machine
                .data_mark()
                .map(|mark| wire::numbered(mark, taken.unwrap_or(0))),
            level: self.level,
        };
        let posted = match conn {
            // SAFETY: the core's slab owns slot and payload, which keep the memory alive, registered and unwritten, until the
            // completion was read or the endpoint was closed.
            Some(conn) => unsafe { link.post_send(conn, &post) },
            None => Err(PostRefused::Errno(FabricErrno::new(libc::ENOTCONN))),
        };
        posted.inspect_err(|_| machine.on_post_undone())
    }

    // ---- registrations -------------------------------------------------------------------------------------------

    /// Makes sure that every segment is registered here, and stays so; true: by the lease that the sends in flight share.
    #[inline]
    fn lease<C: LinkConn>(
        &mut self,
        payload: &Payload,
        conn: Option<&C>,
        scoped: &mut ScopedRegistrations,
        iov: &mut IovList,
    ) -> Result<(Leases, bool), SendErrorKind> {
        let scope = scoped.scope();
        if let [segment] = payload.segments()
            && let Some(desc) = self.recent.begin(segment.region(), scope)
        {
            segment.name_runs(desc, &mut |base, len, desc| iov.push(base, len, desc));
            return Ok((Leases::elsewhere(scope), true));
        }
        lease_each(payload, conn, scoped, iov).map(|leases| (leases, false))
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

/// A lease for each segment.
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
                runs.push(Run { base, len, desc });
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

/// Where the provider scopes registrations to endpoints: registers a region that this endpoint meets for the first
/// time. Everywhere else, says what is wrong.
#[cold]
fn register_here<C: LinkConn>(
    payload: &Payload,
    error: LeaseError,
    conn: Option<&C>,
    scoped: &mut ScopedRegistrations,
) -> Result<(), SendErrorKind> {
    let (segment, kind) = match error {
        LeaseError::ForeignBuffer { segment } => {
            (segment, SendErrorKind::ForeignBuffer { segment })
        }
        LeaseError::NotRegistered { segment } => {
            (segment, SendErrorKind::NotRegistered { segment })
        }
    };
    let region = payload
        .segments()
        .get(segment)
        .map(|segment| Arc::clone(segment.region()));
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
pub(crate) fn refusal(blocked: connection::Blocked, reason: Option<CloseReason>) -> SendErrorKind {
    match (blocked, reason) {
        (_, Some(reason)) => SendErrorKind::Closed(reason),
        (connection::Blocked::NotConnected, None) => SendErrorKind::WouldBlock(Blocked::Connecting),
        (connection::Blocked::NoCredit, None) => SendErrorKind::WouldBlock(Blocked::Credits),
        (connection::Blocked::Long, None) => SendErrorKind::WouldBlock(Blocked::LongMessage),
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
