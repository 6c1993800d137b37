//! Servers of objects by token, and their channels.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::{c_char, c_void};
use std::time::{Duration, Instant};

use fabricast::event_loop::{WaitHandle, Waitable};
use fabricast::object::{
    ChannelEvent, ObjectChannel, ObjectServer, ObjectServerConfig, RdmaToken, TransferError,
};

use crate::call::call;
use crate::event::{Held, Tell, fcast_event, words};
use crate::fabric::{fcast_domain, fcast_fabric};
use crate::handle::{DOMAINS, FABRICS, PAYLOADS};
use crate::payload::fcast_payload;
use crate::pointer::{self, Out, Sized0};
use crate::region::fcast_region;
use crate::send::slice_in;
use crate::status::{FCAST_CLOSED, Failure, fcast_status};
use crate::stream::milliseconds;
use crate::table::Table;
use crate::untaken::Untaken;

static SERVERS: Table<ObjectServer> = Table::new(43, "server of objects");
pub(crate) static CHANNELS: Table<Channel> = Table::new(44, "channel of objects");

/// A server of objects: it moves bytes into and out of memory that tokens name. Any thread.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_object_server {
    /// Its number; 0: none.
    pub id: u64,
}

/// A channel of a server, which does the work. One thread at a time uses it; more threads take more
/// channels.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_object_channel {
    /// Its number; 0: none.
    pub id: u64,
}

/// The bytes are in the client's memory. `key`.
pub const FCAST_EVENT_OBJECT_WRITTEN: u32 = 60;
/// The bytes of the client's memory are in the memory that was given. `key`.
pub const FCAST_EVENT_OBJECT_READ: u32 = 61;
/// A transfer failed: `key`, `status`, `text`. `value` is the sum of 1: bytes may have gone out all
/// the same; 2: the provider still has the memory that was given, FCAST_EVENT_OBJECT_RETURNED says
/// when not any more (never, where the provider does not let go of it).
pub const FCAST_EVENT_OBJECT_FAILED: u32 = 62;
/// The provider is done with the memory of a transfer that failed before. `key`.
pub const FCAST_EVENT_OBJECT_RETURNED: u32 = 63;

/// How a server of objects is opened. 0 in a field is the default.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_object_server_settings {
    /// sizeof(fcast_object_server_settings).
    pub size: usize,
    /// Transfers of a channel at once, 1 to 65,536. Default 256.
    pub depth: u32,
    /// Clients that a channel knows at once, 1 to 65,536. Default 1,024.
    pub peers: u32,
    /// A transfer with less time than this until its deadline is refused. Default 10.
    pub min_budget_ms: u32,
    /// A client that was idle for so long is forgotten. Default 60,000.
    pub idle_after_ms: u32,
    /// What statistics call it; NULL: "server".
    pub name: *const c_char,
    /// The networks that clients may be in, of which tokens tell: "any", or "10.0.0.0/8,fd00::/8".
    /// NULL: any; of a service, where those are who ask ("asker").
    pub clients: *const c_char,
}

// SAFETY: C's layout, a `usize` first; 0 and null are values of all its fields.
unsafe impl Sized0 for fcast_object_server_settings {}

/// A channel, and what its last events point to.
pub(crate) struct Channel {
    /// `None` when it was closed.
    channel: Option<ObjectChannel>,
    /// Told by it, and not taken yet.
    events: Vec<ChannelEvent>,
    held: Vec<Held>,
    /// As the last call left it that took events or had some come.
    pub(crate) untaken: Untaken,
}

impl Channel {
    fn open(&mut self) -> Result<&mut ObjectChannel, Failure> {
        let closed = || Failure::new(FCAST_CLOSED, "the channel was closed");
        self.channel.as_mut().ok_or_else(closed)
    }

    /// Whether events wait that were polled for and not taken.
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub(crate) fn wait_handle(&mut self) -> Result<WaitHandle, Failure> {
        Ok(self.open()?.wait_handle())
    }

    fn poll(
        &mut self,
        places: &mut [std::mem::MaybeUninit<fcast_event>],
    ) -> Result<usize, Failure> {
        self.held.clear();
        if let (Some(channel), true) = (&mut self.channel, self.events.is_empty()) {
            let polled = channel.poll(&mut self.events);
            self.untaken.set(self.has_events());
            polled?;
        }
        let count = self.events.len().min(places.len());
        for (place, event) in places.iter_mut().zip(self.events.drain(..count)) {
            let (mut event, held) = event.tell();
            held.point(&mut event);
            self.held.push(held);
            place.write(event);
        }
        self.untaken.set(self.has_events());
        Ok(count)
    }
}

impl Tell for ChannelEvent {
    fn tell(self) -> (fcast_event, Held) {
        let key = self.key();
        let plain = |kind| (fcast_event::keyed(kind, key), Held::Nothing);
        match self {
            Self::Written { .. } => plain(FCAST_EVENT_OBJECT_WRITTEN),
            Self::Read { .. } => plain(FCAST_EVENT_OBJECT_READ),
            Self::WriteFailed { payload, error, .. } => failed(key, payload.is_none(), &error),
            Self::ReadFailed { into, error, .. } => failed(key, into.is_none(), &error),
            _ => plain(FCAST_EVENT_OBJECT_RETURNED),
        }
    }
}

fn failed(key: u64, is_held: bool, error: &TransferError) -> (fcast_event, Held) {
    let failure = Failure::from(error.kind.clone());
    let mut event = fcast_event::keyed(FCAST_EVENT_OBJECT_FAILED, key);
    event.status = failure.status;
    event.error = failure.errno;
    event.value = u64::from(error.posted) + 2 * u64::from(is_held);
    words(event, error)
}

/// # Safety
///
/// The name and the networks are null, or end with a zero.
pub(crate) unsafe fn server_config(
    given: &fcast_object_server_settings,
) -> Result<ObjectServerConfig, Failure> {
    let mut config = ObjectServerConfig::default();
    if given.depth != 0 {
        config = config.depth(given.depth);
    }
    if given.peers != 0 {
        config = config.peers(given.peers);
    }
    if let Some(least) = milliseconds(given.min_budget_ms) {
        config = config.min_budget(least);
    }
    if let Some(idle) = milliseconds(given.idle_after_ms) {
        config = config.idle_after(idle);
    }
    // SAFETY: the caller's promise.
    if let Some(name) = unsafe { pointer::text(given.name, "name") }? {
        config = config.name(name);
    }
    // SAFETY: the caller's promise.
    if let Some(networks) = unsafe { pointer::text(given.clients, "clients") }? {
        config = config.clients(networks.parse()?);
    }
    Ok(config)
}

/// Opens a server on a fabric of the kind FCAST_KIND_RDM, with a domain of its own.
/// FCAST_UNSUPPORTED: the fabric is of another kind, or its provider has no one-sided operations.
/// Any thread.
///
/// # Safety
///
/// `settings`: NULL, or a struct whose size field is right and whose texts end with a zero;
/// `server`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_server_open(
    fabric: fcast_fabric,
    settings: *const fcast_object_server_settings,
    server: *mut fcast_object_server,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(server, "server") }?;
        // SAFETY: the caller's promise.
        let given: fcast_object_server_settings = unsafe { pointer::sized(settings, "settings") }?;
        // SAFETY: the caller's promise.
        let config = unsafe { server_config(&given) }?;
        let opened = ObjectServer::open(&*FABRICS.share(fabric.id)?, config)?;
        let id = SERVERS.insert(opened)?;
        out.set(fcast_object_server { id });
        Ok(())
    })
}

/// The domain of a server, as a handle of its own: regions that channels move bytes from and to are
/// registered with it. Any thread.
///
/// # Safety
///
/// `domain`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_server_domain(
    server: fcast_object_server,
    domain: *mut fcast_domain,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(domain, "domain") }?;
        let shared = SERVERS.share(server.id)?.domain().clone();
        let id = DOMAINS.insert(shared)?;
        out.set(fcast_domain { id });
        Ok(())
    })
}

/// Opens a channel of a server. Any thread.
///
/// # Safety
///
/// `channel`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_channel_open(
    server: fcast_object_server,
    channel: *mut fcast_object_channel,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(channel, "channel") }?;
        let opened = SERVERS.share(server.id)?.channel()?;
        let id = CHANNELS.insert(Channel {
            channel: Some(opened),
            events: Vec::new(),
            held: Vec::new(),
            untaken: Untaken::default(),
        })?;
        out.set(fcast_object_channel { id });
        Ok(())
    })
}

/// Gives a server back. It goes when its last channel does. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_object_server_release(server: fcast_object_server) -> fcast_status {
    call(|| SERVERS.release(server.id))
}

fn deadline_of(timeout_ms: u32) -> Instant {
    Instant::now() + Duration::from_millis(u64::from(timeout_ms))
}

/// # Safety
///
/// `text`: null, or ends with a zero.
unsafe fn token_of(text: *const c_char) -> Result<RdmaToken, Failure> {
    // SAFETY: the caller's promise.
    let text = unsafe { pointer::needed_text(text, "token") }?;
    Ok(text.parse::<RdmaToken>()?)
}

/// Serves a GET: writes `len` bytes at an address in a region into the client's memory, from `at`
/// on in what the token names. FCAST_EVENT_OBJECT_WRITTEN or _FAILED comes with the key, at the
/// latest after `timeout_ms`; the bytes must not change before. The region is registered with the
/// server's domain. One thread at a time.
///
/// FCAST_AGAIN: poll first. FCAST_INVALID: the token, or bytes that are not in what it names.
/// FCAST_UNSUPPORTED: the token is of another provider. FCAST_NOT_REGISTERED: the region.
///
/// # Safety
///
/// `token`: NULL, or a text that ends with a zero. `data` is looked up in the region, not read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_channel_write(
    channel: fcast_object_channel,
    token: *const c_char,
    at: u64,
    region: fcast_region,
    data: *const c_void,
    len: usize,
    key: u64,
    timeout_ms: u32,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let token = unsafe { token_of(token) }?;
        let slice = slice_in(region, data.addr(), len)?;
        let mut entry = CHANNELS.enter(channel.id)?;
        let deadline = deadline_of(timeout_ms);
        let begun = entry.open()?.handle_get(&token, at, slice, key, deadline);
        begun.map_err(|refused| refused.kind.into())
    })
}

/// As fcast_object_channel_write, of a payload, whose handle is used up. One thread at a time.
///
/// # Safety
///
/// `token`: NULL, or a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_channel_write_payload(
    channel: fcast_object_channel,
    token: *const c_char,
    at: u64,
    payload: fcast_payload,
    key: u64,
    timeout_ms: u32,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let token = unsafe { token_of(token) }?;
        let mut entry = CHANNELS.enter(channel.id)?;
        let channel = entry.open()?;
        let mut taken = PAYLOADS.enter(payload.id)?;
        let given = std::mem::take(&mut *taken);
        match channel.handle_get(&token, at, given, key, deadline_of(timeout_ms)) {
            Ok(()) => {
                drop(taken);
                PAYLOADS.release(payload.id)
            }
            Err(refused) => {
                *taken = refused.given;
                Err(refused.kind.into())
            }
        }
    })
}

/// Serves a PUT: reads `len` bytes of the client's memory, from `at` on in what the token names,
/// into an address in a region. FCAST_EVENT_OBJECT_READ or _FAILED comes with the key, at the
/// latest after `timeout_ms`; nobody else uses the bytes before. Else as
/// fcast_object_channel_write. One thread at a time.
///
/// # Safety
///
/// `token`: NULL, or a text that ends with a zero. `data` is an address in the region, and its
/// bytes may be written by any thread until the event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_channel_read(
    channel: fcast_object_channel,
    token: *const c_char,
    at: u64,
    region: fcast_region,
    data: *mut c_void,
    len: usize,
    key: u64,
    timeout_ms: u32,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let token = unsafe { token_of(token) }?;
        let slice = slice_in(region, data.addr(), len)?;
        let mut entry = CHANNELS.enter(channel.id)?;
        let deadline = deadline_of(timeout_ms);
        let begun = entry.open()?.handle_put(&token, at, slice, key, deadline);
        begun.map_err(|refused| refused.kind.into())
    })
}

/// Drives a channel and writes what became of transfers: at most `capacity` events, `*count` of
/// them. What the events of the last poll point to is gone from now on. One thread at a time.
///
/// # Safety
///
/// `events`: NULL, or room for `capacity` of them; `count`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_channel_poll(
    channel: fcast_object_channel,
    events: *mut fcast_event,
    capacity: usize,
    count: *mut usize,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(count, "count") }?;
        // SAFETY: the caller's promise.
        let places = unsafe { pointer::array_out(events, capacity, "events") }?;
        out.set(CHANNELS.enter(channel.id)?.poll(places)?);
        Ok(())
    })
}

/// Sleeps until there may be something to poll for, for at most `timeout_ms`. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_object_channel_wait(
    channel: fcast_object_channel,
    timeout_ms: u32,
) -> fcast_status {
    call(|| {
        let mut entry = CHANNELS.enter(channel.id)?;
        if entry.events.is_empty() {
            let timeout = Duration::from_millis(u64::from(timeout_ms));
            entry.open()?.wait(timeout)?;
        }
        Ok(())
    })
}

/// Waits for what is under way, for at most `timeout_ms`, and closes a channel; what is not over
/// then fails. What became of transfers is told by the polls that follow. The handle is to be
/// released all the same. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_object_channel_close(
    channel: fcast_object_channel,
    timeout_ms: u32,
) -> fcast_status {
    call(|| {
        let mut entry = CHANNELS.enter(channel.id)?;
        entry.open()?;
        if let Some(channel) = entry.channel.take() {
            entry.events.extend(channel.close(deadline_of(timeout_ms)));
            entry.untaken.set(entry.has_events());
        }
        Ok(())
    })
}

/// Gives a channel back. One that was not closed ends what is under way, and tells nobody. Any
/// thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_object_channel_release(channel: fcast_object_channel) -> fcast_status {
    call(|| CHANNELS.release(channel.id))
}
