//! The same operations through the C interface, as a C program would write them: handles, calls
//! that return a status, events in an array. The functions are those of `libfabricast.so`, called
//! across the same boundary.

#![allow(unsafe_code)] // Functions of C's.

pub(crate) mod coalesced;
pub(crate) mod rma;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

use fabricast_capi::batch::{fcast_outgoing, fcast_send_batch};
use fabricast_capi::completed::fcast_poll_completed;
use fabricast_capi::endpoint::{
    fcast_endpoint, fcast_endpoint_address, fcast_endpoint_poll, fcast_endpoint_release,
};
use fabricast_capi::event::{
    FCAST_EVENT_COMPLETED, FCAST_EVENT_CONNECTED, FCAST_EVENT_DISCONNECTED, FCAST_EVENT_FAILED,
    FCAST_EVENT_MESSAGE, fcast_event,
};
use fabricast_capi::fabric::{
    FCAST_KIND_MSG, FCAST_KIND_RDM, fcast_domain, fcast_domain_open, fcast_domain_release,
    fcast_fabric, fcast_fabric_open, fcast_fabric_release, fcast_fabric_settings,
};
use fabricast_capi::open::{fcast_receiver_open, fcast_sender_open};
use fabricast_capi::receive::{fcast_receive, fcast_received};
use fabricast_capi::region::{
    fcast_region, fcast_region_allocate, fcast_region_memory, fcast_region_release,
};
use fabricast_capi::send::fcast_send;
use fabricast_capi::settings::{FCAST_HEADER_FIXED, FCAST_OFF, fcast_settings};
use fabricast_capi::status::{FCAST_AGAIN, FCAST_OK, fcast_last_error, fcast_status};

use fabricast_bench::case::{Arrived, Case, HEADER, Header, Operation, Pacer, Sent, Wait};
use fabricast_bench::client::arrived;
use fabricast_bench::clock::{Deadline, Sampler};
use fabricast_bench::control::Control;
use fabricast_bench::error::{Failure, fail};
use fabricast_bench::server::{Kept, Receiving, Through, Wish};
use fabricast_bench::{CONNECT, Incoming, payloads};

/// Events that one call gives at most.
const EVENTS: usize = 64;
/// Messages that one call gives at most: as many as come by one read of the queue.
const MESSAGES: usize = 1024;
/// Keys that one call gives at most.
const KEYS: usize = 1024;
/// Messages that one call sends at most.
const BATCH: usize = 32;

/// The operations that are measured so.
pub(crate) const THROUGH: Through = Through { client, server };

/// The client's half.
fn client(
    control: &mut Control,
    wish: &mut Wish,
    patience: Duration,
) -> Result<(Sent, Arrived), Failure> {
    let case = wish.case.clone();
    let listener = match case.operation {
        Operation::Pingpong => Some(Server::listen(&case)?),
        _ => None,
    };
    wish.back = match &listener {
        Some(listener) => Some(listener.addr.parse()?),
        None => None,
    };
    control.say(&wish.line())?;
    let to = control.expect("ready", patience)?;
    let control = RefCell::new(control);
    let window = || control.borrow_mut().expect("window", patience);
    let arrived = || arrived(&control.borrow_mut().expect("arrived", patience)?);
    match (listener, case.operation) {
        (Some(listener), _) => listener.ping(&case, &to, arrived),
        (None, Operation::Send | Operation::Rdm) => send(&case, &to, arrived),
        (None, Operation::Coalesced) => coalesced::send(&case, &to, arrived),
        (None, Operation::RmaWrite) => rma::run(&case, &to, window, arrived),
        (None, operation) => fail(format!("{} is not run through C", operation.name())),
    }
}

/// The server's half.
fn server(wish: &Wish, control: &mut Control, kept: &mut Kept) -> Result<Arrived, Failure> {
    let case = &wish.case;
    match (case.operation, wish.back) {
        (Operation::Coalesced, _) => {
            let mut endpoint = coalesced::listen(case)?;
            control.say(&format!("ready {}", endpoint.address()?))?;
            coalesced::receive(&mut endpoint, case)
        }
        (Operation::RmaWrite, _) => {
            let mut endpoint = rma::listen(case)?;
            control.say(&format!("ready {}", endpoint.address()?))?;
            rma::expose(&mut endpoint, case, |window| {
                control.say(&format!("window {window}"))
            })
        }
        (_, back) => {
            let server = Server::listen(case)?;
            control.say(&format!("ready {}", server.addr))?;
            match back {
                Some(back) => server.echo(case, &back.to_string()),
                None => kept.keep(server).receive(case),
            }
        }
    }
}

impl Receiving for Server {
    fn receive(&mut self, case: &Case) -> Result<Arrived, Failure> {
        self.receive(case)
    }
}

/// A struct of settings with its size and nothing else set.
fn empty<T: Copy>(set_size: impl FnOnce(&mut T)) -> T {
    // SAFETY: the settings of the C interface are structs of numbers and pointers, of which all
    // zeros are a value.
    let mut settings = unsafe { MaybeUninit::<T>::zeroed().assume_init() };
    set_size(&mut settings);
    settings
}

pub(crate) fn check(status: fcast_status) -> Result<(), Failure> {
    match status {
        FCAST_OK => Ok(()),
        _ => fail(last_error()),
    }
}

#[cold]
fn last_error() -> String {
    // SAFETY: it is a text that is valid until the next failure of this thread.
    let words = unsafe { CStr::from_ptr(fcast_last_error()) };
    words.to_string_lossy().into_owned()
}

pub(crate) fn open(case: &Case) -> Result<fcast_domain, Failure> {
    let provider = CString::new(case.provider.as_str()).unwrap_or_default();
    let node = CString::new(case.local_node().unwrap_or_default()).unwrap_or_default();
    let settings = fcast_fabric_settings {
        provider: provider.as_ptr(),
        node: match case.local_node() {
            Some(_) => node.as_ptr(),
            None => ptr::null(),
        },
        kind: match case.operation {
            Operation::Rdm => FCAST_KIND_RDM,
            _ => FCAST_KIND_MSG,
        },
        no_wait_object: u32::from(case.wait == Wait::None),
        ..empty(|s: &mut fcast_fabric_settings| s.size = size_of::<fcast_fabric_settings>())
    };
    let mut fabric = fcast_fabric { id: 0 };
    // SAFETY: settings and texts live until the call is over, and the result is writable.
    check(unsafe { fcast_fabric_open(&raw const settings, &raw mut fabric) })?;
    let mut domain = fcast_domain { id: 0 };
    // SAFETY: the result is writable.
    check(unsafe { fcast_domain_open(fabric, &raw mut domain) })?;
    check(fcast_fabric_release(fabric))?;
    Ok(domain)
}

/// An endpoint with its domain, and room for its events.
pub(crate) struct Endpoint {
    pub(crate) handle: fcast_endpoint,
    pub(crate) domain: Option<fcast_domain>,
    events: Box<[MaybeUninit<fcast_event>; EVENTS]>,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        fcast_endpoint_release(self.handle);
        self.domain.map(|domain| fcast_domain_release(domain));
    }
}

impl Endpoint {
    pub(crate) fn new(handle: fcast_endpoint) -> Self {
        Self {
            handle,
            domain: None,
            events: Box::new([const { MaybeUninit::uninit() }; EVENTS]),
        }
    }

    pub(crate) fn listen(
        domain: fcast_domain,
        case: &Case,
        settings: &fcast_settings,
    ) -> Result<Self, Failure> {
        let local = case
            .local_node()
            .map_or_else(|| "any".to_owned(), |node| format!("{node}:0"));
        let local = CString::new(local).unwrap_or_default();
        let mut handle = fcast_endpoint { id: 0 };
        // SAFETY: text and settings live until the call is over, and the result is writable.
        let status =
            unsafe { fcast_receiver_open(domain, local.as_ptr(), settings, &raw mut handle) };
        check(status)?;
        Ok(Self::new(handle))
    }

    pub(crate) fn connect(
        domain: fcast_domain,
        to: &str,
        settings: &fcast_settings,
    ) -> Result<Self, Failure> {
        let to = CString::new(to).unwrap_or_default();
        let mut handle = fcast_endpoint { id: 0 };
        // SAFETY: text and settings live until the call is over, and the result is writable.
        let status = unsafe { fcast_sender_open(domain, to.as_ptr(), settings, &raw mut handle) };
        check(status)?;
        Ok(Self::new(handle))
    }

    pub(crate) fn address(&self) -> Result<String, Failure> {
        let mut text = [0; 256];
        let room = text.as_mut_ptr();
        // SAFETY: there is room for 256 bytes.
        let status =
            unsafe { fcast_endpoint_address(self.handle, room, text.len(), ptr::null_mut()) };
        check(status)?;
        // SAFETY: what was written ends with a zero.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        Ok(text.to_string_lossy().into_owned())
    }

    /// Hands each event to `each`; how many there were. The end of a connection is a failure.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        mut each: impl FnMut(&fcast_event) -> Result<(), Failure>,
    ) -> Result<usize, Failure> {
        let (mut count, room) = (0, self.events.as_mut_ptr().cast::<fcast_event>());
        // SAFETY: there is room for so many events, and for their number.
        check(unsafe { fcast_endpoint_poll(self.handle, room, EVENTS, &raw mut count) })?;
        for event in &self.events[..count] {
            // SAFETY: the call wrote the first `count`.
            let event = unsafe { event.assume_init_ref() };
            match event.kind {
                FCAST_EVENT_DISCONNECTED | FCAST_EVENT_FAILED => return fail(words(event)),
                _ => each(event)?,
            }
        }
        Ok(count)
    }
}

#[cold]
fn words(event: &fcast_event) -> String {
    if event.text.is_null() {
        return format!("event {}", event.kind);
    }
    // SAFETY: not null, and valid until the next poll.
    let text = unsafe { CStr::from_ptr(event.text) };
    text.to_string_lossy().into_owned()
}

pub(crate) fn settings() -> fcast_settings {
    empty(|settings: &mut fcast_settings| settings.size = size_of::<fcast_settings>())
}

/// Memory of the library's, and where it begins.
fn memory(len: usize) -> Result<(fcast_region, *const c_void), Failure> {
    let mut region = fcast_region { id: 0 };
    // SAFETY: the result is writable.
    check(unsafe { fcast_region_allocate(len, 0, -1, &raw mut region) })?;
    let mut base = ptr::null_mut();
    // SAFETY: the result is writable.
    check(unsafe { fcast_region_memory(region, &raw mut base, ptr::null_mut()) })?;
    Ok((region, base))
}

/// The header of a message.
#[inline]
fn header(at: *const c_void, len: usize) -> Result<Header, Failure> {
    // SAFETY: the header of a message is valid until the next poll.
    let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) };
    Header::from_slice(bytes)
}

/// A sender with memory of which each message takes the next part.
struct Sender {
    endpoint: Endpoint,
    region: fcast_region,
    base: *const c_void,
    size: usize,
    stride: usize,
    next: usize,
    parts: usize,
    /// Sends that are under way.
    out: usize,
    /// Room for the keys of those that are done.
    keys: Box<[MaybeUninit<u64>; KEYS]>,
    connected: bool,
}

impl Sender {
    fn connect(domain: fcast_domain, case: &Case, to: &str) -> Result<Self, Failure> {
        let stride = case.size.next_multiple_of(64);
        let parts = payloads(case);
        let (region, base) = memory(stride * parts)?;
        let settings = fcast_settings {
            depth: case.depth as u32,
            header_slots: case.depth as u32,
            header_slot_size: 64,
            header_mode: FCAST_HEADER_FIXED,
            header_fixed: HEADER as u32,
            packing: match case.pack {
                0 => FCAST_OFF,
                bytes => bytes as u32,
            },
            no_gather: u32::from(!case.gather),
            region,
            ..settings()
        };
        let endpoint = Endpoint::connect(domain, to, &settings)?;
        // The endpoint has it for as long as it lives.
        check(fcast_region_release(region))?;
        Ok(Self {
            endpoint,
            region: fcast_region { id: 0 },
            base,
            size: case.size,
            stride,
            next: 0,
            parts,
            out: 0,
            keys: Box::new([const { MaybeUninit::uninit() }; KEYS]),
            connected: false,
        })
    }

    /// Sends a message; false when the endpoint takes none now.
    #[inline]
    fn post(&mut self, header: Header) -> Result<bool, Failure> {
        if self.out == self.parts {
            return Ok(false);
        }
        let header = header.to_bytes();
        let data = self.base.wrapping_byte_add(self.next * self.stride);
        let (at, len) = (header.as_ptr().cast::<c_void>(), header.len());
        // SAFETY: the header is read in the call; the data is in the region.
        let status = unsafe {
            fcast_send(
                self.endpoint.handle,
                self.region,
                data,
                self.size,
                at,
                len,
                0,
            )
        };
        if status == FCAST_AGAIN {
            return Ok(false);
        }
        check(status)?;
        self.out += 1;
        self.next += 1;
        if self.next == self.parts {
            self.next = 0;
        }
        Ok(true)
    }

    /// Sends so many messages of one header, in one call; how many were taken.
    #[inline]
    fn post_batch(&mut self, header: Header, count: usize) -> Result<usize, Failure> {
        let header = header.to_bytes();
        let mut messages = [const { MaybeUninit::<fcast_outgoing>::uninit() }; BATCH];
        let count = count.min(BATCH).min(self.parts - self.out);
        let mut next = self.next;
        for message in &mut messages[..count] {
            message.write(fcast_outgoing {
                data: self.base.wrapping_byte_add(next * self.stride),
                len: self.size,
                region: self.region,
                header: header.as_ptr().cast::<c_void>(),
                header_len: header.len(),
                key: 0,
            });
            next += 1;
            if next == self.parts {
                next = 0;
            }
        }
        let (mut sent, first) = (0, messages.as_ptr().cast::<fcast_outgoing>());
        // SAFETY: `count` of them were written, and their headers are here.
        let status = unsafe { fcast_send_batch(self.endpoint.handle, first, count, &raw mut sent) };
        if status == FCAST_AGAIN {
            return Ok(0);
        }
        check(status)?;
        self.out += sent;
        self.next = (self.next + sent) % self.parts;
        Ok(sent)
    }

    /// Takes what completed, by keys alone, and then what else happened.
    #[inline]
    fn poll(&mut self) -> Result<usize, Failure> {
        let (mut done, mut has_events) = (0, false);
        let room = self.keys.as_mut_ptr().cast::<u64>();
        let (count, more) = (&raw mut done, &raw mut has_events);
        let of = self.endpoint.handle;
        // SAFETY: there is room for so many keys; the other two are writable.
        check(unsafe { fcast_poll_completed(of, room, KEYS, count, more) })?;
        self.out -= done;
        match has_events {
            true => Ok(done + self.poll_events()?),
            false => Ok(done),
        }
    }

    fn poll_events(&mut self) -> Result<usize, Failure> {
        let Self {
            endpoint,
            out,
            connected,
            ..
        } = self;
        endpoint.poll(|event| {
            match event.kind {
                FCAST_EVENT_COMPLETED => *out -= 1,
                FCAST_EVENT_CONNECTED => *connected = true,
                _ => {}
            }
            Ok(())
        })
    }

    /// As the library's own: most round trips poll one endpoint only.
    #[inline]
    fn poll_if_low(&mut self) -> Result<(), Failure> {
        if self.out * 2 >= self.parts {
            self.poll()?;
        }
        Ok(())
    }
}

/// A listener with its address.
pub(crate) struct Server {
    domain: fcast_domain,
    endpoint: Endpoint,
    pub(crate) addr: String,
    connected: bool,
}

impl Server {
    pub(crate) fn listen(case: &Case) -> Result<Self, Failure> {
        let domain = open(case)?;
        let incoming = Incoming::of(case);
        let settings = fcast_settings {
            max_message: incoming.max_message as u32,
            credits: incoming.credits,
            slots: incoming.slots,
            max_connections: 1,
            ..settings()
        };
        let mut endpoint = Endpoint::listen(domain, case, &settings)?;
        endpoint.domain = Some(domain);
        let addr = endpoint.address()?;
        Ok(Self {
            domain,
            endpoint,
            addr,
            connected: false,
        })
    }

    #[inline]
    fn poll(
        &mut self,
        mut each: impl FnMut(Header) -> Result<(), Failure>,
    ) -> Result<usize, Failure> {
        let Self {
            endpoint,
            connected,
            ..
        } = self;
        endpoint.poll(|event| match event.kind {
            FCAST_EVENT_MESSAGE => each(header(event.header, event.header_len)?),
            FCAST_EVENT_CONNECTED => {
                *connected = true;
                Ok(())
            }
            _ => Ok(()),
        })
    }

    /// Receives until the end mark, without an event for each message.
    pub(crate) fn receive(&mut self, case: &Case) -> Result<Arrived, Failure> {
        let mut sampler = Sampler::new(case.limit());
        let mut messages = vec![MaybeUninit::<fcast_received>::uninit(); MESSAGES];
        while !sampler.done() {
            let (mut found, mut has_events) = (0, false);
            let room = messages.as_mut_ptr().cast::<fcast_received>();
            let (count, more) = (&raw mut found, &raw mut has_events);
            // SAFETY: there is room for so many messages; the other two are writable.
            check(unsafe { fcast_receive(self.endpoint.handle, room, MESSAGES, count, more) })?;
            for message in &messages[..found] {
                // SAFETY: the call wrote the first `found`.
                let message = unsafe { message.assume_init_ref() };
                sampler.on_message(header(message.header, message.header_len)?);
            }
            if has_events {
                found += self.poll(|header| {
                    sampler.on_message(header);
                    Ok(())
                })?;
            }
            sampler.on_poll(found)?;
        }
        sampler.arrived()
    }

    /// Sends each message back until the end mark.
    pub(crate) fn echo(mut self, case: &Case, to: &str) -> Result<Arrived, Failure> {
        let mut sender = Sender::connect(self.domain, case, to)?;
        let mut sampler = Sampler::new(case.limit());
        for header in self.connect_both(&mut sender)? {
            sampler.on_message(header);
            if !sender.post(header)? {
                return fail("a reply was refused");
            }
        }
        while !sampler.done() {
            let mut replied = false;
            let found = self.poll(|header| {
                sampler.on_message(header);
                replied = true;
                if !header.is_end() && !sender.post(header)? {
                    return fail("a reply was refused");
                }
                Ok(())
            })?;
            if replied {
                sender.poll_if_low()?;
            }
            sampler.on_poll(found)?;
        }
        sampler.arrived()
    }

    /// Polls until the sender's connection and this side's stand; what arrived meanwhile.
    fn connect_both(&mut self, sender: &mut Sender) -> Result<Vec<Header>, Failure> {
        let mut early = Vec::new();
        let deadline = Deadline::after(CONNECT);
        while !sender.connected || !self.connected {
            sender.poll()?;
            self.poll(|header| {
                early.push(header);
                Ok(())
            })?;
            deadline.check("a connection")?;
            std::thread::yield_now();
        }
        Ok(early)
    }

    /// One message to and fro at a time, for the time of the case.
    pub(crate) fn ping<T>(
        mut self,
        case: &Case,
        to: &str,
        arrived: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<(Sent, T), Failure> {
        let mut sender = Sender::connect(self.domain, case, to)?;
        self.connect_both(&mut sender)?;
        let mut pacer = Pacer::new(case);
        while let Some(header) = pacer.next() {
            if !sender.post(header)? {
                return fail("a ping was refused");
            }
            pacer.sent();
            sender.poll_if_low()?;
            let mut back = header.is_end();
            while !back {
                let found = self.poll(|_| {
                    back = true;
                    Ok(())
                })?;
                pacer.on_poll(found)?;
            }
            pacer.returned();
        }
        Ok((pacer.finish(), arrived()?))
    }
}

/// Sends with `depth` in flight for the time of the case.
pub(crate) fn send<T>(
    case: &Case,
    to: &str,
    arrived: impl FnOnce() -> Result<T, Failure>,
) -> Result<(Sent, T), Failure> {
    let domain = open(case)?;
    let mut sender = Sender::connect(domain, case, to)?;
    sender.endpoint.domain = Some(domain);
    let deadline = Deadline::after(CONNECT);
    while !sender.connected {
        sender.poll()?;
        deadline.check("a connection")?;
    }
    let mut pacer = Pacer::new(case);
    // Data that the pacer has given, and that is not sent yet.
    let mut waiting = 0;
    loop {
        let before = sender.out;
        while waiting < BATCH && sender.out + waiting < sender.parts {
            let Some(header) = pacer.next() else { break };
            if !header.is_mark() {
                waiting += 1;
            } else if waiting > 0 || !sender.post(header)? {
                break;
            }
            pacer.sent();
        }
        if waiting > 0 {
            waiting -= sender.post_batch(Header::from_tag(0), waiting)?;
        }
        if waiting > 0 || sender.out == before {
            let found = sender.poll()?;
            pacer.on_poll(found)?;
        }
        if pacer.is_over() && sender.out == 0 {
            return Ok((pacer.finish(), arrived()?));
        }
    }
}
