//! Sends: of memory by its address, of several pieces, and of payloads.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::c_void;
use std::ops::Deref;
use std::sync::Arc;

use fabricast::Region;
use fabricast::buffer::{Payload, RegionPart, RegionSlice, Segment};
use fabricast::endpoint::SendErrorKind;

use crate::call::call;
use crate::endpoint::{Endpoint, fcast_endpoint};
use crate::face::Face;
use crate::handle::{ENDPOINTS, PAYLOADS, REGIONS};
use crate::payload::fcast_payload;
use crate::pointer;
use crate::region::{fcast_region, offset_of};
use crate::status::{FCAST_NOT_REGISTERED, Failure, fcast_status};
use crate::table::Shared;

/// What senders alone do.
const TO_ONE_PEER: &str = "send to its one peer";

/// A piece of a message.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_iov {
    /// Where it begins: an address in the region.
    pub base: *const c_void,
    /// Its bytes.
    pub len: usize,
    /// The region that it lies in; {0}: the one of the endpoint's settings.
    pub region: fcast_region,
}

/// Sends `len` bytes at `data` with a header in front of them. Returns at once; no byte of the data
/// is copied, and none may change before FCAST_EVENT_COMPLETED or FCAST_EVENT_FAILED comes with the
/// key, which need not be unique. `region`: the one that the data lies in; {0}: that of the
/// endpoint's settings. One thread at a time.
///
/// FCAST_AGAIN: not now, FCAST_EVENT_WRITABLE says when; FCAST_TOO_LONG, FCAST_NOT_REGISTERED,
/// FCAST_NOT_FOUND (data outside of the region), FCAST_CLOSED: nothing was taken.
///
/// # Safety
///
/// `header`: NULL, or `header_len` bytes. `data` is looked up in the region, not read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_send(
    endpoint: fcast_endpoint,
    region: fcast_region,
    data: *const c_void,
    len: usize,
    header: *const c_void,
    header_len: usize,
    key: u64,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let header = unsafe { pointer::bytes(header.cast::<u8>(), header_len, "header") }?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let Endpoint {
            face, region: own, ..
        } = &mut *entry;
        let region = match Named::find(own.as_ref(), region) {
            Ok(region) => region,
            Err(failure) => return Err(or_over(face, failure)),
        };
        let part = match part_at(&region, data.addr(), len) {
            Ok(part) => part,
            Err(failure) => return Err(or_over(face, failure)),
        };
        let Face::Send(sender, _) = face else {
            return Err(face.cannot(TO_ONE_PEER));
        };
        let sent = sender.send_part(part, header, key);
        sent.map_err(|refused| refused.kind.into())
    })
}

/// As fcast_send, of several pieces that become one message.
///
/// # Safety
///
/// `iov`: NULL, or `count` pieces; `header`: NULL, or `header_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_sendv(
    endpoint: fcast_endpoint,
    iov: *const fcast_iov,
    count: usize,
    header: *const c_void,
    header_len: usize,
    key: u64,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let header = unsafe { pointer::bytes(header.cast::<u8>(), header_len, "header") }?;
        // SAFETY: the caller's promise.
        let pieces = unsafe { pointer::array(iov, count, "iov") }?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let payload = gathered(&entry, pieces);
        let payload = payload.map_err(|failure| or_over(&entry.face, failure))?;
        send(&mut entry, payload, header, key).map_err(|(failure, _)| failure)
    })
}

/// Sends a payload with a header in front of it, as fcast_send. Its handle is used up, unless this
/// fails. One thread at a time.
///
/// # Safety
///
/// `header`: NULL, or `header_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_send_payload(
    endpoint: fcast_endpoint,
    payload: fcast_payload,
    header: *const c_void,
    header_len: usize,
    key: u64,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let header = unsafe { pointer::bytes(header.cast::<u8>(), header_len, "header") }?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        using(payload, |given| send(&mut entry, given, header, key))
    })
}

/// Posts what was packed and would wait for the next poll, or for the flush interval; what the peer
/// or the provider takes no more of now leaves as soon as it can. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_flush(endpoint: fcast_endpoint) -> fcast_status {
    call(|| ENDPOINTS.enter(endpoint.id)?.face.flush())
}

/// Pieces of a message, as a payload.
fn gathered(entry: &Endpoint, pieces: &[fcast_iov]) -> Result<Payload, Failure> {
    let own = entry.region.as_ref();
    let slice = |piece: &fcast_iov| {
        slice_of(own, piece.region, piece.base.addr(), piece.len).map(Segment::from)
    };
    let segments = pieces.iter().map(slice).collect::<Result<Vec<_>, _>>()?;
    Ok(Payload::from(segments))
}

/// Uses a payload up, unless it comes back.
#[inline]
pub(crate) fn using<T>(
    payload: fcast_payload,
    send: impl FnOnce(Payload) -> Result<T, (Failure, Payload)>,
) -> Result<T, Failure> {
    PAYLOADS.try_take(payload.id, send)
}

/// The region that is sent from: the one that a call names, or else the endpoint's own.
pub(crate) enum Named<'a> {
    Own(&'a Arc<Region>),
    Other(Shared<'static, Arc<Region>>),
}

impl<'a> Named<'a> {
    #[inline]
    pub(crate) fn find(
        own: Option<&'a Arc<Region>>,
        region: fcast_region,
    ) -> Result<Self, Failure> {
        match (own, region.id) {
            (Some(own), 0) => Ok(Self::Own(own)),
            (None, 0) => Err(no_region()),
            (_, id) => Ok(Self::Other(REGIONS.share(id)?)),
        }
    }
}

impl Deref for Named<'_> {
    type Target = Arc<Region>;

    #[inline]
    fn deref(&self) -> &Arc<Region> {
        match self {
            Self::Own(region) => region,
            Self::Other(region) => region,
        }
    }
}

/// The part of a region at an address, for one call.
#[inline]
pub(crate) fn part_at(
    region: &Arc<Region>,
    address: usize,
    len: usize,
) -> Result<RegionPart<'_>, Failure> {
    let offset = offset_of(region, address, len)?;
    Ok(region.part(offset..offset + len)?)
}

/// The part of a region at an address; of the endpoint's own, where none is named.
#[inline]
pub(crate) fn slice_of(
    own: Option<&Arc<Region>>,
    region: fcast_region,
    address: usize,
    len: usize,
) -> Result<RegionSlice, Failure> {
    let region = Named::find(own, region)?;
    Ok(part_at(&region, address, len)?.to_slice())
}

/// The part of a region at an address, where no endpoint has one of its own.
#[inline]
pub(crate) fn slice_in(
    region: fcast_region,
    address: usize,
    len: usize,
) -> Result<RegionSlice, Failure> {
    Ok(part_at(&*REGIONS.share(region.id)?, address, len)?.to_slice())
}

#[cold]
fn no_region() -> Failure {
    let text = "no region was named, and the endpoint was opened without one (setting region)";
    Failure::new(FCAST_NOT_REGISTERED, text)
}

/// Why a sender takes nothing whose memory is wrong: where its connection is over, no other memory
/// would be right.
#[cold]
pub(crate) fn or_over(face: &Face, failure: Failure) -> Failure {
    match face {
        Face::Send(sender, _) => sender
            .close_reason()
            .map_or(failure, |reason| SendErrorKind::Closed(reason).into()),
        Face::Closed(_) => face.cannot(TO_ONE_PEER),
        _ => failure,
    }
}

/// Sends by whatever sends to one peer; a refused payload comes back.
#[inline]
fn send(
    entry: &mut Endpoint,
    payload: Payload,
    header: &[u8],
    key: u64,
) -> Result<(), (Failure, Payload)> {
    match &mut entry.face {
        Face::Send(sender, _) => sender
            .send_data(payload, header, key)
            .map_err(|refused| (refused.kind.into(), refused.given)),
        face => Err((face.cannot(TO_ONE_PEER), payload)),
    }
}
