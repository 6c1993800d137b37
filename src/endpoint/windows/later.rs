//! What becomes of a one-sided operation that can't be posted as it was given: which way its bytes
//! take, and how it comes into the line of its connection. Both cores do it here.

#![allow(unsafe_code)]

use crate::buffer::{LeasedPayload, Leases, Payload};
use crate::endpoint::core::control::HeldDescriptor;
use crate::endpoint::core::line::Posting;
use crate::endpoint::core::outgoing;
use crate::endpoint::error::{SendErrorKind, WindowError};
use crate::endpoint::event::Level;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{Link, RemoteRange, RmaLimits};
use crate::endpoint::staging::{StagingRing, staged_segment};
use crate::endpoint::windows::destination::Destination;
use crate::endpoint::windows::one_sided::{self, How, Local, OneSidedRequest};
use crate::endpoint::windows::passage::{LocalMemory, Passage, Slots};
use crate::endpoint::windows::window::WindowPlace;
use crate::id::ConnectionId;
use crate::memory::Scope;
use crate::protocol::wire::WindowId;

/// The way of a write.
pub(crate) enum Later {
    /// It is posted at once, as soon as its gate is open; what is staged of it is in slots then.
    Whole(Payload),
    /// It goes piece by piece.
    Pieces(Payload, Slots),
}

impl Later {
    /// That of a payload, in the scope of its connection, to a provider that takes so many bytes at
    /// once.
    ///
    /// # Errors
    /// It has to be staged, and there is no ring; or there is no slot now; or the ring is too
    /// small.
    pub(crate) fn of(
        ring: Option<&StagingRing>,
        payload: Payload,
        scope: Scope,
        max_bytes: u64,
    ) -> Result<Self, (SendErrorKind, Payload)> {
        let Some(segment) = staged_segment(&payload, scope) else {
            return Ok(Self::Whole(payload));
        };
        let Some(ring) = ring else {
            return Err((SendErrorKind::NotStaged { segment }, payload));
        };
        match ring.outward(&payload, max_bytes) {
            None => ring.stage(payload, scope).map(Self::Whole),
            Some(Ok(slots)) => Ok(Self::Pieces(payload, slots)),
            Some(Err(kind)) => Err((kind, payload)),
        }
    }
}

/// What a read into memory goes through that has to be staged.
///
/// # Errors
/// There is no ring, or no slot now.
pub(crate) fn staged_read(
    ring: Option<&StagingRing>,
    into: &Destination,
    max_bytes: u64,
) -> Result<Slots, SendErrorKind> {
    let ring = ring.ok_or(SendErrorKind::NotStaged { segment: 0 })?;
    ring.inward(into, max_bytes)
}

/// Where a write goes, what it tells the peer, and when it is done.
pub(crate) type Target<'a> = (WindowPlace<'a>, Option<u32>, Level);

/// A core whose operations may have to wait: what is its own of that, and what is the same of all.
pub(crate) trait TakesLater {
    type Link: Link;

    /// Of its link; none: there are no windows.
    fn rma_limits(&self) -> Option<RmaLimits>;

    /// Everything that can be said of an operation before anything is taken for it. Where it goes.
    fn admit_later(&self, wanted: &OneSidedRequest<'_>) -> Result<RemoteRange, SendErrorKind>;

    /// The connection with what operations on it go through, if it stands.
    fn posting(&mut self, id: ConnectionId) -> Option<Posting<'_, Self::Link>>;

    /// Counts an operation as one that is posted, and has it wait. With its local side: whether the
    /// lease that all share is its.
    fn push_line(
        &mut self,
        id: ConnectionId,
        names: (u64, WindowId),
        local: (Local, bool),
        iov: IovList,
        how: How,
    );

    /// Keeps the registration of the slots open for one operation.
    ///
    /// # Errors
    /// They are not registered with the domain of this connection, or registering them for this
    /// connection alone failed.
    fn hold_slots(
        &mut self,
        id: ConnectionId,
        slots: &Slots,
    ) -> Result<HeldDescriptor, SendErrorKind> {
        let unstaged = || SendErrorKind::NotStaged { segment: 0 };
        let region = slots.region().ok_or_else(unstaged)?;
        let way = self.posting(id).ok_or(WindowError::NotConnected)?;
        let held = outgoing::hold_region(region, Some(way.conn), way.scoped);
        held.map_err(|error| error.unwrap_or_else(unstaged))
    }

    /// Bytes that the provider takes at once.
    fn max_bytes(&self) -> u64 {
        self.rma_limits().map_or(0, |rma| rma.max_bytes)
    }

    /// Has a write wait whose bytes take the way that `way` says.
    fn queue_write(
        &mut self,
        payload: Payload,
        (place, data, level): Target<'_>,
        key: u64,
        way: impl FnOnce(Payload) -> Result<Later, (SendErrorKind, Payload)>,
    ) -> Result<(), (SendErrorKind, Payload)> {
        let id = place.window.connection();
        let wanted = OneSidedRequest::write(place, &payload, data.is_some());
        let remote = match self.admit_later(&wanted) {
            Ok(remote) => remote,
            Err(kind) => return Err((kind, payload)),
        };
        let how = How::write(remote, place, data, level);
        let mut iov = IovList::new();
        let local = match way(payload)? {
            Later::Whole(payload) => self
                .whole(id, payload, &how, &mut iov)
                .map_err(|(kind, payload)| (kind, payload.unstaged()))?,
            Later::Pieces(payload, slots) => match self.hold_slots(id, &slots) {
                Ok(desc) => (pieces_of_write(payload, slots, desc, &how), false),
                Err(kind) => return Err((kind, payload)),
            },
        };
        self.push_line(id, (key, place.window.id()), local, iov, how);
        Ok(())
    }

    /// The local side of a write that is posted as it is, when its gate is open.
    fn whole(
        &mut self,
        id: ConnectionId,
        payload: Payload,
        how: &How,
        iov: &mut IovList,
    ) -> Result<(Local, bool), (SendErrorKind, Payload)> {
        let rma = self.rma_limits();
        let (len, segments) = (how.remote.len as u64, payload.run_count());
        let checked = one_sided::check_whole(rma.as_ref(), len, segments);
        let leased = checked.and_then(|()| {
            let mut way = self.posting(id).ok_or(WindowError::NotConnected)?;
            way.lease(payload.wire(), iov)
        });
        let (mut leases, recent) = match leased {
            Ok(leased) => leased,
            Err(kind) => return Err((kind, payload)),
        };
        if payload.is_gated() {
            leases = leases.of_gated();
        }
        // SAFETY: the leases are this payload's, or those of what is sent of it.
        let payload = unsafe { LeasedPayload::new(payload, leases) };
        Ok((Local::Write(payload), recent))
    }

    /// Has a read wait, which comes into slots if `slots` gives some.
    fn queue_read(
        &mut self,
        into: Destination,
        place: WindowPlace<'_>,
        key: u64,
        slots: impl FnOnce(&Destination) -> Result<Option<Slots>, SendErrorKind>,
    ) -> Result<(), (SendErrorKind, Destination)> {
        let id = place.window.connection();
        let wanted = OneSidedRequest::read(place, &into);
        let admitted = self.admit_later(&wanted);
        let admitted = admitted.and_then(|remote| Ok((remote, slots(&into)?)));
        let mut iov = IovList::new();
        let (remote, local) = match admitted {
            Ok((remote, Some(slots))) => match self.hold_slots(id, &slots) {
                Ok(desc) => (remote, (pieces_of_read(into, slots, desc), false)),
                Err(kind) => return Err((kind, into)),
            },
            Ok((remote, None)) => {
                let rma = self.rma_limits();
                let checked = one_sided::check_whole(rma.as_ref(), wanted.len, wanted.segments);
                if let Err(kind) = checked {
                    return Err((kind, into));
                }
                let Some(mut way) = self.posting(id) else {
                    return Err((WindowError::NotConnected.into(), into));
                };
                let (into, run, recent) = way.lease_destination(into)?;
                iov.push(run.base, run.len, run.desc);
                (remote, (Local::Read(into), recent))
            }
            Err(kind) => return Err((kind, into)),
        };
        let names = (key, place.window.id());
        self.push_line(id, names, local, iov, How::read(remote));
        Ok(())
    }
}

/// The local side of a write that goes piece by piece.
fn pieces_of_write(payload: Payload, slots: Slots, desc: HeldDescriptor, how: &How) -> Local {
    let mut leases = Leases::elsewhere(desc.scope());
    if payload.is_gated() {
        leases = leases.of_gated();
    }
    // SAFETY: there is no lease.
    let payload = unsafe { LeasedPayload::new(payload, leases) };
    let (given, last_alone) = (LocalMemory::Write(payload), how.immediate.is_some());
    Local::Passage(Box::new(Passage::new(
        given,
        how.remote.len,
        slots,
        desc,
        last_alone,
    )))
}

/// The same of a read.
fn pieces_of_read(into: Destination, slots: Slots, desc: HeldDescriptor) -> Local {
    let (len, given) = (into.len(), LocalMemory::Read(into));
    Local::Passage(Box::new(Passage::new(given, len, slots, desc, false)))
}
