//! Endpoints of all kinds: how they are opened, driven and closed.

#![allow(unsafe_code)] // Functions that C calls.

use std::collections::VecDeque;
use std::ffi::c_char;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::endpoint::{ConnectionRequest, ReceiveConfig, ReceiveEvent, SendConfig, SendEvent};
use fabricast::{Error, PeerAddr, ReceiveEndpoint, Region, SendEndpointZeroCopy};

use crate::call::call;
use crate::event::{Held, Tell, fcast_event};
use crate::fabric::fcast_domain;
use crate::handle::{DOMAINS, ENDPOINTS, MESSAGES, REGIONS};
use crate::pointer::{self, Out};
use crate::settings::fcast_settings;
use crate::status::{
    FCAST_CLOSED, FCAST_NOT_FOUND, FCAST_STALE, FCAST_UNSUPPORTED, Failure, fcast_status,
};

/// An endpoint: what sends or receives. One thread at a time uses it; another one that calls
/// meanwhile gets FCAST_BUSY.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_endpoint {
    /// Its number; 0: none.
    pub id: u64,
}

/// What an endpoint is, with the events that C has not taken yet.
pub(crate) enum Face {
    Send(SendEndpointZeroCopy, VecDeque<SendEvent>),
    Receive(ReceiveEndpoint, VecDeque<ReceiveEvent>),
    /// It was closed: what is left to tell.
    Closed(VecDeque<Untold>),
}

/// An event of an endpoint that is closed.
type Untold = Box<dyn FnOnce() -> (fcast_event, Held) + Send>;

/// An event that is told later.
fn untold<E: Tell + Send + 'static>(event: E) -> Untold {
    Box::new(|| event.tell())
}

/// An endpoint, and what its last events point to.
pub(crate) struct Endpoint {
    pub(crate) face: Face,
    /// What is sent where a send names no region; registered while the endpoint lives.
    pub(crate) region: Option<Arc<Region>>,
    /// What the events of the last poll point to.
    held: Vec<Held>,
    /// Which poll that was, from 1.
    batch: u64,
    /// Those that were told and not answered.
    requests: Vec<ConnectionRequest>,
}

impl Endpoint {
    pub(crate) fn new(face: Face, region: Option<Arc<Region>>) -> Self {
        Self {
            face,
            region,
            held: Vec::new(),
            batch: 0,
            requests: Vec::new(),
        }
    }

    /// Polls, and writes as many events as there is room for; the others come with the next call.
    fn poll(
        &mut self,
        places: &mut [std::mem::MaybeUninit<fcast_event>],
    ) -> Result<usize, Failure> {
        self.held.clear();
        self.batch += 1;
        let mut written = 0;
        while written < places.len() {
            let Some((mut event, held)) = self.next_event(written == 0)? else {
                break;
            };
            event.index = written as u32;
            event.batch = self.batch;
            held.point(&mut event);
            self.held.push(held);
            places[written].write(event);
            written += 1;
        }
        Ok(written)
    }

    /// The next event; asks the endpoint for more where none is left and `first` says so.
    #[inline]
    fn next_event(&mut self, first: bool) -> Result<Option<(fcast_event, Held)>, Failure> {
        let Self { face, requests, .. } = self;
        Ok(match face {
            Face::Send(endpoint, events) => {
                if first && events.is_empty() {
                    refill(events, |into| endpoint.poll(into))?;
                }
                events.pop_front().map(Tell::tell)
            }
            Face::Receive(endpoint, events) => {
                if first && events.is_empty() {
                    refill(events, |into| endpoint.poll(into))?;
                }
                let event = events.pop_front();
                if let Some(ReceiveEvent::Request(request)) = &event {
                    requests.push(*request);
                }
                event.map(Tell::tell)
            }
            Face::Closed(events) => events.pop_front().map(|tell| tell()),
        })
    }

    /// Where one owner is needed whose name and call don't fit the kind of endpoint.
    #[cold]
    pub(crate) fn cannot(&self, what: &str) -> Failure {
        match &self.face {
            Face::Closed(_) => Failure::new(FCAST_CLOSED, "the endpoint was closed"),
            face => {
                let kind = face.kind();
                Failure::new(FCAST_UNSUPPORTED, format!("a {kind} does not {what}"))
            }
        }
    }

    fn close(&mut self, deadline: Instant) -> Result<(), Failure> {
        let face = std::mem::replace(&mut self.face, Face::Closed(VecDeque::new()));
        let mut left = VecDeque::new();
        let closed = match face {
            Face::Send(endpoint, events) => {
                left.extend(events.into_iter().map(untold));
                endpoint
                    .close(deadline)
                    .map(|came| left.extend(came.into_iter().map(untold)))
            }
            Face::Receive(endpoint, events) => {
                left.extend(events.into_iter().map(untold));
                endpoint
                    .close(deadline)
                    .map(|came| left.extend(came.into_iter().map(untold)))
            }
            Face::Closed(events) => {
                left = events;
                Ok(())
            }
        };
        self.face = Face::Closed(left);
        Ok(closed?)
    }
}

impl Face {
    fn kind(&self) -> &'static str {
        match self {
            Self::Send(..) => "sender",
            Self::Receive(..) => "receiver",
            Self::Closed(_) => "closed endpoint",
        }
    }
}

/// Has an endpoint append its events to an empty queue, whose memory is used again.
fn refill<E>(
    events: &mut VecDeque<E>,
    poll: impl FnOnce(&mut Vec<E>) -> Result<usize, Error>,
) -> Result<(), Failure> {
    let mut into = Vec::from(std::mem::take(events));
    let polled = poll(&mut into);
    *events = VecDeque::from(into);
    polled?;
    Ok(())
}

/// # Safety
///
/// Null, or a text that ends with a zero.
pub(crate) unsafe fn address(text: *const c_char, name: &'static str) -> Result<PeerAddr, Failure> {
    // SAFETY: the caller's promise.
    let text = unsafe { pointer::needed_text(text, name) }?;
    Ok(text.parse::<PeerAddr>()?)
}

/// Puts an endpoint into the table.
pub(crate) fn open(
    out: Out<fcast_endpoint>,
    face: Face,
    region: Option<Arc<Region>>,
) -> Result<(), Failure> {
    let id = ENDPOINTS.insert(Endpoint::new(face, region))?;
    out.set(fcast_endpoint { id });
    Ok(())
}

/// Starts to connect a sender to a receiver at an address such as "192.0.2.1:7000". Returns at
/// once: FCAST_EVENT_CONNECTED or FCAST_EVENT_DISCONNECTED follows. Any thread.
///
/// FCAST_INVALID: a setting, or the address. FCAST_NO_RESOURCES: memory, descriptors, or
/// registrations.
///
/// # Safety
///
/// `peer`: NULL, or a text that ends with a zero; `settings`: NULL, or a struct whose size field is
/// right; `endpoint`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_sender_open(
    domain: fcast_domain,
    peer: *const c_char,
    settings: *const fcast_settings,
    endpoint: *mut fcast_endpoint,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(endpoint, "endpoint") }?;
        // SAFETY: the caller's promise.
        let settings = unsafe { pointer::sized(settings, "settings") }?;
        // SAFETY: the caller's promise.
        let peer = unsafe { address(peer, "peer") }?;
        settings.refuse("sender", &settings.incoming_fields())?;
        let domain = DOMAINS.share(domain.id)?.clone();
        let (region, headers) = with_region(&settings)?;
        let own = headers.is_none();
        let mut outgoing = Ok(());
        let config = SendConfig::default()
            .connection(|of| settings.connection(of))
            .outgoing(|of| match settings.outgoing(of.clone(), own) {
                Ok(of) => match &headers {
                    Some(headers) => of.headers(headers),
                    None => of,
                },
                Err(failure) => {
                    outgoing = Err(failure);
                    of
                }
            });
        outgoing?;
        let sender = SendEndpointZeroCopy::connect(&domain, peer, config)?;
        open(out, Face::Send(sender, VecDeque::new()), region)
    })
}

/// The region of the settings, and the manager that registers it while an endpoint lives.
type WithRegion = (
    Option<Arc<Region>>,
    Option<fabricast::buffer::ZeroCopyBufferManager>,
);

pub(crate) fn with_region(settings: &fcast_settings) -> Result<WithRegion, Failure> {
    if settings.region.id == 0 {
        return Ok((None, None));
    }
    let region = REGIONS.share(settings.region.id)?.clone();
    let slots = settings.header_slots();
    let manager = fabricast::buffer::ZeroCopyBufferManager::new(Arc::clone(&region), slots)?;
    Ok((Some(region), Some(manager)))
}

/// Listens at an address of this machine, such as "127.0.0.1:0"; port 0 lets the system choose, and
/// fcast_endpoint_address says which one it is. Any thread.
///
/// # Safety
///
/// As fcast_sender_open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_receiver_open(
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
        settings.refuse("receiver", &[("region", settings.region.id != 0)])?;
        let domain = DOMAINS.share(domain.id)?.clone();
        let outgoing = settings.outgoing(Default::default(), true)?;
        let incoming = settings.incoming(Default::default())?;
        let config = ReceiveConfig::default()
            .connection(|of| settings.connection(of))
            .outgoing(|_| outgoing)
            .incoming(|_| incoming);
        let receiver = ReceiveEndpoint::listen(&domain, local, config)?;
        open(out, Face::Receive(receiver, VecDeque::new()), None)
    })
}

/// Writes where an endpoint listens, as a text that ends with a zero. `*len`: the bytes that it
/// needs, the zero included.
///
/// # Safety
///
/// `text`: NULL, or `capacity` writable bytes; `len`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_endpoint_address(
    endpoint: fcast_endpoint,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> fcast_status {
    call(|| {
        let entry = ENDPOINTS.enter(endpoint.id)?;
        let address = match &entry.face {
            Face::Receive(receiver, _) => receiver.local_addr(),
            _ => return Err(entry.cannot("listen")),
        };
        // SAFETY: the caller's promise.
        unsafe { pointer::write_text(&address.to_string(), text, capacity, len) }
    })
}

/// Drives an endpoint and writes what happened: at most `capacity` events, `*count` of them. What
/// the events of the last poll point to is gone from now on. One thread at a time.
///
/// FCAST_CLOSED: the endpoint failed; FCAST_SYSTEM: a call of the system did.
///
/// # Safety
///
/// `events`: NULL, or room for `capacity` of them; `count`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_endpoint_poll(
    endpoint: fcast_endpoint,
    events: *mut fcast_event,
    capacity: usize,
    count: *mut usize,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(count, "count") }?;
        // SAFETY: the caller's promise.
        let places = unsafe { pointer::array_out(events, capacity, "events") }?;
        out.set(ENDPOINTS.enter(endpoint.id)?.poll(places)?);
        Ok(())
    })
}

/// Answers a connection that an endpoint with the setting `ask` was asked for.
/// FCAST_NOT_FOUND: the peer gave up, or it was answered. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_endpoint_accept(endpoint: fcast_endpoint, connection: u64) -> fcast_status {
    answer(endpoint, connection, None)
}

/// Refuses a connection, with two numbers of the program's own that the peer is told.
/// FCAST_NOT_FOUND: the peer gave up, or it was answered. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_endpoint_refuse(
    endpoint: fcast_endpoint,
    connection: u64,
    detail: u64,
    more: u64,
) -> fcast_status {
    answer(endpoint, connection, Some([detail, more]))
}

fn answer(endpoint: fcast_endpoint, connection: u64, refuse: Option<[u64; 2]>) -> fcast_status {
    call(|| {
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let Endpoint { face, requests, .. } = &mut *entry;
        let position = requests
            .iter()
            .position(|asked| asked.connection.as_u64() == connection);
        let request = position.map(|at| requests.swap_remove(at));
        let stands = match (face, request) {
            (_, None) => false,
            (Face::Receive(receiver, events), Some(request)) => match refuse {
                Some(details) => receiver.refuse(request, details),
                None => {
                    let mut came = Vec::new();
                    let stands = receiver.accept(request, &mut came);
                    events.extend(came);
                    stands
                }
            },
            _ => return Err(entry.cannot("accept connections")),
        };
        match stands {
            true => Ok(()),
            false => Err(Failure::new(
                FCAST_NOT_FOUND,
                "nobody asks for this connection any more",
            )),
        }
    })
}

/// Begins the polite close: nothing new is taken, what is in flight completes, both sides say
/// goodbye. Returns at once; FCAST_EVENT_DISCONNECTED is the last event of each connection, and
/// comes after `timeout_ms` in any case. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_endpoint_begin_close(
    endpoint: fcast_endpoint,
    timeout_ms: u32,
) -> fcast_status {
    call(|| {
        let deadline = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
        match &mut ENDPOINTS.enter(endpoint.id)?.face {
            Face::Send(sender, _) => sender.begin_close(deadline),
            Face::Receive(receiver, _) => receiver.begin_close(deadline),
            Face::Closed(_) => {}
        }
        Ok(())
    })
}

/// Closes an endpoint politely and waits for it, for at most `timeout_ms`: all that was sent
/// arrives, unless the time is up first. What happened meanwhile is told by the polls that follow.
/// The handle is to be released all the same. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_endpoint_close(endpoint: fcast_endpoint, timeout_ms: u32) -> fcast_status {
    call(|| {
        let deadline = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
        ENDPOINTS.enter(endpoint.id)?.close(deadline)
    })
}

/// Gives an endpoint back. One that was not closed is closed at once, without a goodbye: what is in
/// flight has no outcome that is told. Any thread; where another one is in a call of it, it goes
/// when that call ends.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_endpoint_release(endpoint: fcast_endpoint) -> fcast_status {
    call(|| ENDPOINTS.release(endpoint.id))
}

/// A message that is kept. Any thread may use it; while it is held, its buffer is not received into
/// again.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_message {
    /// Its number; 0: none.
    pub id: u64,
}

/// Keeps the message of an event of the endpoint's last poll: header and data stay where they are
/// until it is released. FCAST_STALE: the event is of an earlier poll, or no message, or was kept.
///
/// # Safety
///
/// `event`: NULL, or readable; `message`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_message_keep(
    endpoint: fcast_endpoint,
    event: *const fcast_event,
    message: *mut fcast_message,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(message, "message") }?;
        // SAFETY: the caller's promise.
        let event = unsafe { event.as_ref() }.ok_or_else(|| pointer::null("event"))?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let current = entry.batch == event.batch;
        let held = entry.held.get_mut(event.index as usize).filter(|_| current);
        match held.map(|held| std::mem::replace(held, Held::Nothing)) {
            Some(Held::Message(message)) => {
                let id = MESSAGES.insert(message)?;
                out.set(fcast_message { id });
                Ok(())
            }
            _ => {
                let text = "the event has no message, or is of an earlier poll, or was kept";
                Err(Failure::new(FCAST_STALE, text))
            }
        }
    })
}

/// Gives a kept message back, and its buffer to the endpoint. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_message_release(message: fcast_message) -> fcast_status {
    call(|| MESSAGES.release(message.id))
}
