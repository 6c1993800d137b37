//! Receivers of streams, into a directory, or to where the program has them go.

#![allow(unsafe_code)] // Functions that C calls.

use std::collections::VecDeque;
use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::stream::{
    Arrival, DirectorySink, Limits, ReceiverConfig, SinkFactory, StreamEvent, StreamReceiver,
    StreamReport,
};
use fabricast::{Domain, PeerAddr};

use crate::call::call;
use crate::endpoint::address;
use crate::fabric::fcast_domain;
use crate::inside::refuse_inside;
use crate::pointer::{self, Out};
use crate::status::{FCAST_CLOSED, FCAST_OK, FCAST_REFUSED, Failure, c_string, fcast_status};
use crate::stream::{fcast_stream_settings, milliseconds, nanoseconds};
use crate::stream_send::domains;
use crate::stream_sink::{CallerSinks, fcast_stream_sink_calls};
use crate::table::Table;

static RECEIVERS: Table<Receiver> = Table::new(39, "stream receiver");

/// A receiver of streams, which checks and writes with threads of its own. One thread at a time
/// uses it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_stream_receiver {
    /// Its number; 0: none.
    pub id: u64,
}

/// A stream was accepted.
pub const FCAST_STREAM_BEGAN: u32 = 50;
/// A stream is complete: all of it is in the directory, or the sink has it, checked. `report` says
/// how it went.
pub const FCAST_STREAM_COMPLETE: u32 = 51;
/// A stream was cut, cancelled or failed: `status`, `text`. What came is kept for a later one.
pub const FCAST_STREAM_CUT: u32 = 52;
/// A connection or a stream was not taken: `text` says why.
pub const FCAST_STREAM_REFUSED: u32 = 53;
/// Something that this version of the interface has no word for: `text`.
pub const FCAST_STREAM_OTHER: u32 = 54;

/// Something that happened at a receiver. Its layout does not change. Texts are valid until the
/// next poll of the receiver, and never NULL.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_stream_event {
    /// FCAST_STREAM_BEGAN or another.
    pub kind: u32,
    /// Why, where something failed; else FCAST_OK.
    pub status: fcast_status,
    /// A number of the receiver's own: another one for each attempt.
    pub session: u64,
    /// Files and directories of the stream.
    pub entries: u64,
    /// Bytes of the stream; where it is over, those that are there.
    pub bytes: u64,
    /// Of those, bytes from an earlier stream that was cut.
    pub resumed_bytes: u64,
    /// From the beginning to the end, in nanoseconds.
    pub took_ns: u64,
    /// The peer's address, where the provider tells; else "".
    pub peer: *const c_char,
    /// The name of the first file or directory; "" where it is not known any more.
    pub name: *const c_char,
    /// Why, in words; else "".
    pub text: *const c_char,
    /// How it went, as a JSON object, where it is over; else "".
    pub report: *const c_char,
    /// 0.
    pub reserved: [u64; 4],
}

const _: () = assert!(size_of::<fcast_stream_event>() == 112);

/// The texts of an event.
#[derive(Default)]
struct Texts {
    peer: CString,
    name: CString,
    text: CString,
    report: CString,
}

/// A receiver, and what its last events point to.
struct Receiver {
    /// `None` when it was closed.
    receiver: Option<StreamReceiver>,
    /// Of one that was closed.
    left: VecDeque<StreamEvent>,
    held: Vec<Texts>,
}

impl Receiver {
    fn open(&self) -> Result<&StreamReceiver, Failure> {
        let closed = || Failure::new(FCAST_CLOSED, "the receiver of streams was closed");
        self.receiver.as_ref().ok_or_else(closed)
    }

    fn next(&mut self, timeout: Duration) -> Option<StreamEvent> {
        match &self.receiver {
            Some(receiver) => receiver.next(timeout),
            None => self.left.pop_front(),
        }
    }

    fn poll(
        &mut self,
        mut timeout: Duration,
        places: &mut [std::mem::MaybeUninit<fcast_stream_event>],
    ) -> usize {
        self.held.clear();
        for place in places.iter_mut() {
            let Some(event) = self.next(timeout) else {
                break;
            };
            timeout = Duration::ZERO;
            let (mut event, texts) = told(event);
            // What these point to stays where it is when the texts move.
            event.peer = texts.peer.as_ptr();
            event.name = texts.name.as_ptr();
            event.text = texts.text.as_ptr();
            event.report = texts.report.as_ptr();
            self.held.push(texts);
            place.write(event);
        }
        self.held.len()
    }
}

fn event_of(kind: u32) -> fcast_stream_event {
    fcast_stream_event {
        kind,
        status: FCAST_OK,
        session: 0,
        entries: 0,
        bytes: 0,
        resumed_bytes: 0,
        took_ns: 0,
        peer: ptr::null(),
        name: ptr::null(),
        text: ptr::null(),
        report: ptr::null(),
        reserved: [0; 4],
    }
}

fn words(text: impl ToString) -> CString {
    c_string(text.to_string())
}

fn told(event: StreamEvent) -> (fcast_stream_event, Texts) {
    match event {
        StreamEvent::Began(arrival) => of_arrival(FCAST_STREAM_BEGAN, &arrival),
        StreamEvent::Complete(arrival, report) => {
            let told = of_arrival(FCAST_STREAM_COMPLETE, &arrival);
            with_report(told, &report)
        }
        StreamEvent::Cut(arrival, error, report) => {
            let told = of_arrival(FCAST_STREAM_CUT, &arrival);
            let (mut event, mut texts) = with_report(told, &report);
            let failure = Failure::from(error);
            event.status = failure.status;
            texts.text = words(&failure.text);
            (event, texts)
        }
        StreamEvent::Refused { peer, code, reason } => {
            let mut event = event_of(FCAST_STREAM_REFUSED);
            event.status = FCAST_REFUSED;
            let text = match reason.is_empty() {
                true => words(code),
                false => words(format!("{code}: {reason}")),
            };
            let texts = Texts {
                peer: peer_text(peer),
                text,
                ..Texts::default()
            };
            (event, texts)
        }
        other => {
            let texts = Texts {
                text: words(format!("{other:?}")),
                ..Texts::default()
            };
            (event_of(FCAST_STREAM_OTHER), texts)
        }
    }
}

fn peer_text(peer: Option<PeerAddr>) -> CString {
    peer.map_or_else(CString::default, words)
}

fn of_arrival(kind: u32, arrival: &Arrival) -> (fcast_stream_event, Texts) {
    let mut event = event_of(kind);
    event.session = arrival.session;
    event.entries = arrival.entries;
    event.bytes = arrival.bytes;
    let first = arrival.manifest.as_ref().and_then(|all| all.get(0));
    let name = first.map(|entry| c_string(entry.name.as_bytes()));
    let texts = Texts {
        peer: peer_text(arrival.peer),
        name: name.unwrap_or_default(),
        ..Texts::default()
    };
    (event, texts)
}

fn with_report(
    (mut event, mut texts): (fcast_stream_event, Texts),
    report: &StreamReport,
) -> (fcast_stream_event, Texts) {
    event.bytes = report.bytes;
    event.resumed_bytes = report.resumed_bytes;
    event.took_ns = nanoseconds(report.took);
    texts.report = words(report.to_json());
    (event, texts)
}

/// Listens for streams at one address of each of some domains, such as "127.0.0.1:0"; what comes is
/// written into a directory, which exists: into a hidden one below it, and renamed to its name when
/// all of a stream is there and checked. FCAST_INVALID: a setting or an address. FCAST_SYSTEM: the
/// directory; fcast_last_errno() says why. Any thread.
///
/// # Safety
///
/// `domains` and `addresses`: NULL, or `count` each, texts that end with a zero; `directory`: NULL,
/// or such a text; `settings`: NULL, or a struct whose size field is right and whose key has its
/// length; `receiver`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_stream_receiver_open(
    domains: *const fcast_domain,
    addresses: *const *const c_char,
    count: usize,
    directory: *const c_char,
    settings: *const fcast_stream_settings,
    receiver: *mut fcast_stream_receiver,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(receiver, "receiver") }?;
        // SAFETY: the caller's promise.
        let given: fcast_stream_settings = unsafe { pointer::sized(settings, "settings") }?;
        // SAFETY: the caller's promise.
        let domains = unsafe { self::domains(domains, count) }?;
        // SAFETY: the caller's promise.
        let addresses = unsafe { pointer::array(addresses, count, "addresses") }?;
        // SAFETY: the caller's promise.
        let directory = unsafe { pointer::path(directory, "directory") }?;
        // SAFETY: the caller's promise.
        let places = unsafe { places_of(domains, addresses) }?;
        let sink = DirectorySink::new(directory)?;
        // SAFETY: the caller's promise.
        let config = unsafe { receiver_config(&given, sink) }?;
        out.set(listen(&places, config)?);
        Ok(())
    })
}

/// As fcast_stream_receiver_open, with a sink of the program's in place of a directory: `sink` is
/// copied. FCAST_INVALID: the table, too. Its `release` is called after a failure as well, unless
/// the table's field size is wrong. Any thread.
///
/// # Safety
///
/// `sink`: NULL, or a struct whose size field is right, and whose functions may be called, as it
/// says, until `release` is; memory that `begin` gives is used by nobody else until `close`; else
/// as fcast_stream_receiver_open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_stream_receiver_open_sink(
    domains: *const fcast_domain,
    addresses: *const *const c_char,
    count: usize,
    sink: *const fcast_stream_sink_calls,
    settings: *const fcast_stream_settings,
    receiver: *mut fcast_stream_receiver,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let sink = unsafe { CallerSinks::new(sink) }?;
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(receiver, "receiver") }?;
        // SAFETY: the caller's promise.
        let given: fcast_stream_settings = unsafe { pointer::sized(settings, "settings") }?;
        // SAFETY: the caller's promise.
        let domains = unsafe { self::domains(domains, count) }?;
        // SAFETY: the caller's promise.
        let addresses = unsafe { pointer::array(addresses, count, "addresses") }?;
        // SAFETY: the caller's promise.
        let places = unsafe { places_of(domains, addresses) }?;
        // SAFETY: the caller's promise.
        let config = unsafe { receiver_config(&given, sink) }?;
        out.set(listen(&places, config)?);
        Ok(())
    })
}

/// # Safety
///
/// The addresses: null, or texts that end with a zero.
unsafe fn places_of(
    domains: Vec<Arc<Domain>>,
    addresses: &[*const c_char],
) -> Result<Vec<(Arc<Domain>, PeerAddr)>, Failure> {
    if domains.is_empty() {
        return Err(Failure::invalid("count = 0: at least one domain"));
    }
    let mut places = Vec::with_capacity(domains.len());
    for (domain, text) in domains.into_iter().zip(addresses) {
        // SAFETY: the caller's promise.
        places.push((domain, unsafe { address(*text, "address") }?));
    }
    Ok(places)
}

fn listen(
    places: &[(Arc<Domain>, PeerAddr)],
    config: ReceiverConfig,
) -> Result<fcast_stream_receiver, Failure> {
    let id = RECEIVERS.insert(Receiver {
        receiver: Some(StreamReceiver::listen_at(places, config)?),
        left: VecDeque::new(),
        held: Vec::new(),
    })?;
    Ok(fcast_stream_receiver { id })
}

/// # Safety
///
/// The key has its length.
unsafe fn receiver_config(
    given: &fcast_stream_settings,
    sink: impl SinkFactory,
) -> Result<ReceiverConfig, Failure> {
    if given.depth != 0 {
        let text = "setting depth: a receiver of streams has none, leave it 0";
        return Err(Failure::invalid(text));
    }
    let mut failed = None;
    // SAFETY: the caller's promise.
    let of = |of: fabricast::stream::StreamSettings| match unsafe { given.both(of.clone()) } {
        Ok(of) => of,
        Err(failure) => {
            failed = Some(failure);
            of
        }
    };
    let mut config = ReceiverConfig::new(sink).stream(of);
    if let Some(failure) = failed {
        return Err(failure);
    }
    if given.credits != 0 {
        config = config.credits(given.credits);
    }
    if let Some(silence) = milliseconds(given.stalled_after_ms) {
        config = config.stalled_after(silence);
    }
    let mut limits = Limits::default();
    if given.streams != 0 {
        limits = limits.streams(given.streams);
    }
    if given.max_bytes != 0 {
        limits = limits.bytes(given.max_bytes);
    }
    Ok(config.limits(limits))
}

/// Writes where a receiver listens, with real ports: an address for each domain, with commas
/// between them, and a zero. `*len`: the bytes that it needs, the zero included. One thread at a
/// time.
///
/// # Safety
///
/// `text`: NULL, or `capacity` writable bytes; `len`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_stream_receiver_address(
    receiver: fcast_stream_receiver,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> fcast_status {
    call(|| {
        let entry = RECEIVERS.enter(receiver.id)?;
        let addresses = entry.open()?.local_addrs().iter().map(ToString::to_string);
        let joined = addresses.collect::<Vec<_>>().join(",");
        // SAFETY: the caller's promise.
        unsafe { pointer::write_text(&joined, text, capacity, len) }
    })
}

/// Waits for something to happen, for at most `timeout_ms`, and writes what did: at most `capacity`
/// events, `*count` of them. The texts of the last poll are gone from now on. One thread at a time.
///
/// # Safety
///
/// `events`: NULL, or room for `capacity` of them; `count`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_stream_receiver_poll(
    receiver: fcast_stream_receiver,
    timeout_ms: u32,
    events: *mut fcast_stream_event,
    capacity: usize,
    count: *mut usize,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(count, "count") }?;
        // SAFETY: the caller's promise.
        let places = unsafe { pointer::array_out(events, capacity, "events") }?;
        let timeout = Duration::from_millis(u64::from(timeout_ms));
        out.set(RECEIVERS.enter(receiver.id)?.poll(timeout, places));
        Ok(())
    })
}

/// Ends a receiver: streams go on for at most `timeout_ms`, what is left then is cut. What happened
/// meanwhile is told by the polls that follow. The handle is to be released all the same. One
/// thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_stream_receiver_close(
    receiver: fcast_stream_receiver,
    timeout_ms: u32,
) -> fcast_status {
    call(|| {
        let deadline = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
        refuse_inside()?;
        let mut entry = RECEIVERS.enter(receiver.id)?;
        entry.open()?;
        if let Some(receiver) = entry.receiver.take() {
            entry.left.extend(receiver.close(deadline));
        }
        Ok(())
    })
}

/// Gives a receiver back. One that was not closed cuts what is not over. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_stream_receiver_release(receiver: fcast_stream_receiver) -> fcast_status {
    call(|| RECEIVERS.release(receiver.id))
}
