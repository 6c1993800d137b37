//! Connectionless endpoints: many peers over one endpoint (FI_EP_RDM).

#![allow(unsafe_code)] // Functions that C calls.

use std::collections::VecDeque;
use std::ffi::{c_char, c_void};
use std::time::{Duration, Instant};

use fabricast::ConnectionlessEndpoint;
use fabricast::buffer::Payload;
use fabricast::endpoint::{ConnectionlessConfig, ConnectionlessEvent, PeerId, SendTo};

use crate::call::call;
use crate::endpoint::{Endpoint, address, fcast_endpoint, open};
use crate::event::{
    FCAST_EVENT_COMPLETED, FCAST_EVENT_FAILED, FCAST_EVENT_LATE, FCAST_EVENT_OTHER,
    FCAST_EVENT_PEER_REMOVED, FCAST_EVENT_RELEASED, FCAST_EVENT_STARVED, FCAST_EVENT_WRITABLE,
    Held, Tell, device_message, done, failed, fcast_event, message, undelivered, words,
};
use crate::fabric::fcast_domain;
use crate::face::Face;
use crate::handle::{DOMAINS, ENDPOINTS};
use crate::payload::fcast_payload;
use crate::pointer::{self, Out};
use crate::region::fcast_region;
use crate::send::{slice_of, using};
use crate::settings::fcast_settings;
use crate::settings_of::Whose;
use crate::status::{FCAST_NOT_FOUND, Failure, fcast_status};

/// Opens an endpoint that sends to and receives from many peers, at an address of this machine, of
/// a fabric that was opened with FCAST_KIND_RDM. Peers are named by numbers, which events have as
/// `connection`. Any thread.
///
/// FCAST_UNSUPPORTED: the fabric has connected endpoints.
///
/// # Safety
///
/// As fcast_sender_open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_connectionless_open(
    domain: fcast_domain,
    local: *const c_char,
    settings: *const fcast_settings,
    endpoint: *mut fcast_endpoint,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(endpoint, "endpoint") }?;
        // SAFETY: the caller's promise.
        let settings: fcast_settings = unsafe { pointer::sized(settings, "settings") }?;
        // SAFETY: the caller's promise.
        let local = unsafe { address(local, "local") }?;
        settings.refuse_others(Whose::Connectionless)?;
        let domain = DOMAINS.share(domain.id)?.clone();
        let (outgoing, region) = settings.outgoing(Whose::Connectionless)?;
        let incoming = settings.incoming()?;
        let config = settings
            .connectionless()
            .outgoing(|_| outgoing)
            .incoming(|_| incoming);
        let opened = ConnectionlessEndpoint::open(&domain, local, config)?;
        let face = Face::Connectionless(Box::new(opened), VecDeque::new());
        open(out, face, region)
    })
}

impl fcast_settings {
    fn connectionless(&self) -> ConnectionlessConfig {
        let mut config = ConnectionlessConfig::default()
            .connection(|of| self.connection(of))
            .accept_unknown(self.refuse_unknown == 0)
            .add_on_send(self.no_add_on_send == 0);
        if self.max_peers != 0 {
            config = config.max_peers(self.max_peers);
        }
        if self.total_depth != 0 {
            config = config.total_depth(self.total_depth);
        }
        config
    }
}

/// The connectionless endpoint of an endpoint.
fn connectionless(face: &mut Face) -> Result<&mut ConnectionlessEndpoint, Failure> {
    match face {
        Face::Connectionless(endpoint, _) => Ok(endpoint),
        face => Err(face.cannot("have peers")),
    }
}

/// Adds a peer by its address, and says hello to it: FCAST_EVENT_CONNECTED or
/// FCAST_EVENT_DISCONNECTED follows, with the peer's number as `connection`. One that is known is
/// found. FCAST_NO_RESOURCES: as many as max_peers; FCAST_INVALID, FCAST_FABRIC: no address that
/// can be reached. One thread at a time.
///
/// # Safety
///
/// `peer_address`: NULL, or a text that ends with a zero; `peer`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_peer_add(
    endpoint: fcast_endpoint,
    peer_address: *const c_char,
    peer: *mut u64,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(peer, "peer") }?;
        // SAFETY: the caller's promise.
        let at = unsafe { address(peer_address, "peer_address") }?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        out.set(connectionless(&mut entry.face)?.add_peer(at)?.as_u64());
        Ok(())
    })
}

/// Removes a peer politely: no send to it is taken any more, those in flight complete, both sides
/// say goodbye. FCAST_EVENT_PEER_REMOVED is the last of it, after `timeout_ms` in any case.
/// FCAST_NOT_FOUND: there is no such peer. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_peer_remove(
    endpoint: fcast_endpoint,
    peer: u64,
    timeout_ms: u32,
) -> fcast_status {
    call(|| {
        let deadline = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let endpoint = connectionless(&mut entry.face)?;
        Ok(endpoint.remove_peer_by(PeerId::from_u64(peer), deadline)?)
    })
}

/// The peer at an address, if it is known; else FCAST_NOT_FOUND. One thread at a time.
///
/// # Safety
///
/// `peer_address`: NULL, or a text that ends with a zero; `peer`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_peer_at(
    endpoint: fcast_endpoint,
    peer_address: *const c_char,
    peer: *mut u64,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(peer, "peer") }?;
        // SAFETY: the caller's promise.
        let at = unsafe { address(peer_address, "peer_address") }?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let found = connectionless(&mut entry.face)?.peer_at(&at);
        out.set(found.ok_or_else(no_peer)?.as_u64());
        Ok(())
    })
}

#[cold]
fn no_peer() -> Failure {
    Failure::new(FCAST_NOT_FOUND, "there is no such peer")
}

/// Where a peer is, as a text that ends with a zero, and whether it has answered and is not lost.
/// `*len`: the bytes that the text needs, the zero included. One thread at a time.
///
/// # Safety
///
/// `text`: NULL, or `capacity` writable bytes; `len` and `is_up`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_peer_info(
    endpoint: fcast_endpoint,
    peer: u64,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
    is_up: *mut bool,
) -> fcast_status {
    call(|| {
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let endpoint = connectionless(&mut entry.face)?;
        let peer = PeerId::from_u64(peer);
        let at = endpoint.peer_addr(peer).ok_or_else(no_peer)?;
        // SAFETY: the caller's promise.
        unsafe { pointer::put(is_up, endpoint.is_up(peer)) };
        // SAFETY: the caller's promise.
        unsafe { pointer::write_text(&at.to_string(), text, capacity, len) }
    })
}

/// Sends to a peer, as fcast_send. FCAST_NOT_FOUND: there is no such peer, or the data are outside
/// of the region. One thread at a time.
///
/// # Safety
///
/// As fcast_send.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_send_to(
    endpoint: fcast_endpoint,
    peer: u64,
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
        let slice = slice_of(entry.region.as_ref(), region, data.addr(), len)?;
        let to = PeerId::from_u64(peer).into();
        send_to(&mut entry, to, slice.into(), header, key).map_err(|(failure, _)| failure)
    })
}

/// Sends to whoever is at an address, as fcast_send. The first send adds the peer, and gets
/// FCAST_AGAIN: FCAST_EVENT_WRITABLE says when it has answered, FCAST_EVENT_DISCONNECTED that it
/// will not. Faster, once the peer is known: fcast_send_to. One thread at a time.
///
/// # Safety
///
/// As fcast_send; `peer_address`: NULL, or a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_send_to_address(
    endpoint: fcast_endpoint,
    peer_address: *const c_char,
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
        // SAFETY: the caller's promise.
        let to = unsafe { address(peer_address, "peer_address") }?.into();
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let slice = slice_of(entry.region.as_ref(), region, data.addr(), len)?;
        send_to(&mut entry, to, slice.into(), header, key).map_err(|(failure, _)| failure)
    })
}

/// Sends a payload to a peer, as fcast_send_to. Its handle is used up, unless this fails. One
/// thread at a time.
///
/// # Safety
///
/// `header`: NULL, or `header_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_send_payload_to(
    endpoint: fcast_endpoint,
    peer: u64,
    payload: fcast_payload,
    header: *const c_void,
    header_len: usize,
    key: u64,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let header = unsafe { pointer::bytes(header.cast::<u8>(), header_len, "header") }?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let to = PeerId::from_u64(peer).into();
        using(payload, |given| send_to(&mut entry, to, given, header, key))
    })
}

/// Sends by a connectionless endpoint; a refused payload comes back.
#[inline]
fn send_to(
    entry: &mut Endpoint,
    to: SendTo,
    payload: Payload,
    header: &[u8],
    key: u64,
) -> Result<(), (Failure, Payload)> {
    match &mut entry.face {
        Face::Connectionless(endpoint, _) => endpoint
            .send_data(to, payload, header, key)
            .map_err(|refused| (refused.kind.into(), refused.given)),
        face => Err((face.cannot("have peers"), payload)),
    }
}

/// Says of an event whose it is.
#[inline]
fn of(peer: PeerId, told: (fcast_event, Held)) -> (fcast_event, Held) {
    let (mut event, held) = told;
    event.connection = peer.as_u64();
    (event, held)
}

impl Tell for ConnectionlessEvent {
    #[inline]
    fn tell(self) -> (fcast_event, Held) {
        let plain = |peer, kind| of(peer, (fcast_event::new(kind), Held::Nothing));
        match self {
            Self::Message {
                peer,
                message: received,
            } => of(peer, message(received.into_message())),
            Self::Completed { peer, key, payload } => {
                of(peer, done(FCAST_EVENT_COMPLETED, key, payload))
            }
            Self::Connection(peer, event) => of(peer, event.tell()),
            Self::Failed {
                peer, key, error, ..
            } => of(peer, failed(FCAST_EVENT_FAILED, key, &error)),
            Self::Released { peer, key, payload } => {
                of(peer, done(FCAST_EVENT_RELEASED, key, payload))
            }
            Self::Late { peer, key } => of(
                peer,
                (fcast_event::keyed(FCAST_EVENT_LATE, key), Held::Nothing),
            ),
            Self::Writable { peer } => plain(peer, FCAST_EVENT_WRITABLE),
            Self::Starved { peer } => plain(peer, FCAST_EVENT_STARVED),
            Self::Removed { peer } => plain(peer, FCAST_EVENT_PEER_REMOVED),
            Self::DeviceMessage { peer, message } => of(peer, device_message(message)),
            Self::Undelivered {
                peer,
                message,
                error,
            } => of(peer, undelivered(message.into_message(), &error)),
            other => words(fcast_event::new(FCAST_EVENT_OTHER), format!("{other:?}")),
        }
    }
}
