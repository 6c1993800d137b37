//! Endpoints of all kinds: how they are driven and closed.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::c_char;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::buffer::BufferMut;
use fabricast::endpoint::ConnectionId;
use fabricast::{PeerAddr, Region};

use crate::call::call;
use crate::event::{FCAST_EVENT_COMPLETED, Held, fcast_event};
use crate::face::Face;
use crate::handle::ENDPOINTS;
use crate::message::Kept;
use crate::pointer::{self, Out};
use crate::status::{FCAST_NOT_FOUND, Failure, fcast_status};
use crate::untaken::Untaken;

/// An endpoint: what sends or receives. One thread at a time uses it; another one that calls
/// meanwhile gets FCAST_BUSY.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_endpoint {
    /// Its number; 0: none.
    pub id: u64,
}

/// An endpoint, and what its last events point to.
pub(crate) struct Endpoint {
    pub(crate) face: Face,
    /// What is sent where a send names no region; registered while the endpoint lives.
    pub(crate) region: Option<Arc<Region>>,
    /// What events of the last poll point to, with their places in it.
    held: Vec<(u32, Held)>,
    /// Which poll that was, from 1.
    batch: u64,
    /// As the last call left it that took events or had some come.
    pub(crate) untaken: Untaken,
}

impl Endpoint {
    pub(crate) fn new(face: Face, region: Option<Arc<Region>>) -> Self {
        Self {
            face,
            region,
            held: Vec::new(),
            batch: 0,
            untaken: Untaken::default(),
        }
    }

    /// A call that takes events or has some come: what is left is noted, also where it fails.
    #[inline]
    pub(crate) fn with_events<R>(&mut self, call: impl FnOnce(&mut Self) -> R) -> R {
        let result = call(self);
        // Of a closed one no loop tells anything.
        let is_open = !matches!(self.face, Face::Closed(_));
        self.untaken.set(is_open && self.has_events());
        result
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
            match self.face.next_completed() {
                Some(key) => {
                    places[written].write(fcast_event::keyed(FCAST_EVENT_COMPLETED, key));
                }
                None => {
                    let Some(event) = self.next_event(written)? else {
                        break;
                    };
                    places[written].write(event);
                }
            }
            written += 1;
        }
        Ok(written)
    }

    /// The next event of whatever kind, which is the `index`-th of a poll.
    #[inline]
    fn next_event(&mut self, index: usize) -> Result<Option<fcast_event>, Failure> {
        let Some((mut event, held)) = self.face.next_event(index == 0)? else {
            return Ok(None);
        };
        event.index = index as u32;
        event.batch = self.batch;
        held.point(&mut event);
        if !matches!(held, Held::Nothing) {
            self.held.push((event.index, held));
        }
        Ok(Some(event))
    }

    /// The message of an event of the last poll, for who keeps it; once.
    pub(crate) fn keep(&mut self, event: &fcast_event) -> Option<Kept> {
        self.held_for(event)?.keep()
    }

    /// The same for a buffer that was a window.
    pub(crate) fn keep_buffer(&mut self, event: &fcast_event) -> Option<BufferMut> {
        let held = self.held_for(event)?;
        match std::mem::replace(held, Held::Nothing) {
            Held::Buffer(buffer) => Some(buffer),
            other => {
                *held = other;
                None
            }
        }
    }

    fn held_for(&mut self, event: &fcast_event) -> Option<&mut Held> {
        let current = self.batch == event.batch;
        let place = self
            .held
            .binary_search_by_key(&event.index, |(index, _)| *index);
        let (_, held) = &mut self.held[place.ok()?];
        current.then_some(held)
    }
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
        let address = entry.face.local_addr()?;
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
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        out.set(entry.with_events(|entry| entry.poll(places))?);
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
        let connection = ConnectionId::from_u64(connection);
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        match entry.with_events(|entry| entry.face.answer(connection, refuse))? {
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
        ENDPOINTS.enter(endpoint.id)?.face.begin_close(deadline);
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
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        entry.with_events(|entry| entry.face.close(deadline))
    })
}

/// Gives an endpoint back. One that was not closed is closed at once, without a goodbye: what is in
/// flight has no outcome that is told. Any thread; where another one is in a call of it, it goes
/// when that call ends.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_endpoint_release(endpoint: fcast_endpoint) -> fcast_status {
    call(|| ENDPOINTS.release(endpoint.id))
}

/// Begins the polite close of one connection of a receiver, a publisher or a subscriber; of a
/// connectionless endpoint, as fcast_peer_remove. Returns at once; FCAST_EVENT_DISCONNECTED
/// follows, after `timeout_ms` in any case. FCAST_NOT_FOUND: there is no such connection. One
/// thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_endpoint_close_connection(
    endpoint: fcast_endpoint,
    connection: u64,
    timeout_ms: u32,
) -> fcast_status {
    call(|| {
        let deadline = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        entry.face.close_connection(connection, deadline)
    })
}

/// How many connections stand: 0 or 1 of a sender, which takes sends while it is 1; of a receiver,
/// those whose end was not told yet, too; of a subscriber, publishers that are connected or will
/// be. One thread at a time.
///
/// # Safety
///
/// `count`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_endpoint_connected(
    endpoint: fcast_endpoint,
    count: *mut usize,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(count, "count") }?;
        out.set(ENDPOINTS.enter(endpoint.id)?.face.connections());
        Ok(())
    })
}

/// The keys of the sends that have no outcome yet, of a sender or a connectionless endpoint:
/// `*count` of them, of which at most `capacity` are written. Their outcomes are events all the
/// same. One thread at a time.
///
/// # Safety
///
/// `keys`: NULL, or room for `capacity`; `count`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_endpoint_pending(
    endpoint: fcast_endpoint,
    keys: *mut u64,
    capacity: usize,
    count: *mut usize,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(count, "count") }?;
        // SAFETY: the caller's promise.
        let places = unsafe { pointer::array_out(keys, capacity, "keys") }?;
        let pending = ENDPOINTS.enter(endpoint.id)?.face.pending()?;
        for (place, key) in places.iter_mut().zip(&pending) {
            place.write(*key);
        }
        out.set(pending.len());
        Ok(())
    })
}
