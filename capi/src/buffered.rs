//! Buffered senders: many small messages in one buffer.

#![allow(unsafe_code)] // Functions that C calls.

use std::collections::VecDeque;
use std::ffi::{c_char, c_void};
use std::time::Duration;

use fabricast::buffer::Buffer;
use fabricast::endpoint::{BufferError, BufferedConfig, BufferedEvent, Carried, PushError};
use fabricast::{PublishEndpointBuffered, SendEndpointBuffered};

use crate::batch::{count_taken, until_wrong};
use crate::call::call;
use crate::coalesced::{fcast_small_message, format};
use crate::endpoint::{address, fcast_endpoint, open};
use crate::event::{
    FCAST_EVENT_COMPLETED, FCAST_EVENT_FAILED, FCAST_EVENT_LATE, FCAST_EVENT_OTHER,
    FCAST_EVENT_PUSH_FAILED, FCAST_EVENT_PUSHED, FCAST_EVENT_WRITABLE, Held, Tell, failed,
    fcast_event, words,
};
use crate::fabric::fcast_domain;
use crate::face::Face;
use crate::handle::{BUFFERS, DOMAINS, ENDPOINTS, POOLS};
use crate::payload::fcast_payload;
use crate::pointer::{self, Out};
use crate::pool::{fcast_buffer, hand_out, too_long};
use crate::send::using;
use crate::settings::{FCAST_NEVER, fcast_settings, out_of_range};
use crate::settings_of::Whose;
use crate::status::{FCAST_AGAIN, Failure, c_string, fcast_status};

/// Bytes of the program's.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_bytes {
    /// Where they begin.
    pub data: *const c_void,
    /// How many.
    pub len: usize,
}

/// How long messages wait for others, which may be for ever; `None`: it was not set.
pub(crate) fn flush_interval(us: u32) -> Option<Option<Duration>> {
    match us {
        0 => None,
        FCAST_NEVER => Some(None),
        us => Some(Some(Duration::from_micros(u64::from(us)))),
    }
}

impl fcast_settings {
    fn buffered(&self) -> Result<BufferedConfig, Failure> {
        let (outgoing, _) = self.outgoing(Whose::Buffered)?;
        let mut config = BufferedConfig::default()
            .connection(|of| self.connection(of))
            .outgoing(|_| outgoing)
            .format(format(self.format)?);
        if self.buffers != 0 {
            config = config.buffers(self.buffers);
        }
        if self.buffer_size != 0 {
            config = config.buffer_size(self.buffer_size as usize);
        }
        if self.pool.id != 0 {
            config = config.pool(&*POOLS.share(self.pool.id)?);
        }
        if let Some(interval) = flush_interval(self.flush_interval_us) {
            config = config.flush_interval(interval);
        }
        if self.waiting != 0 {
            config = config.waiting(self.waiting);
        }
        Ok(config)
    }
}

/// Starts to connect a buffered sender to a receiver: it copies small messages into buffers, many
/// into one, and sends those. The receiver takes them apart with fcast_coalesced_next, in the same
/// format. Returns at once, as fcast_sender_open. Any thread.
///
/// # Safety
///
/// As fcast_sender_open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_buffered_open(
    domain: fcast_domain,
    peer: *const c_char,
    settings: *const fcast_settings,
    endpoint: *mut fcast_endpoint,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(endpoint, "endpoint") }?;
        // SAFETY: the caller's promise.
        let settings: fcast_settings = unsafe { pointer::sized(settings, "settings") }?;
        // SAFETY: the caller's promise.
        let peer = unsafe { address(peer, "peer") }?;
        settings.refuse_others(Whose::Buffered)?;
        let config = settings.buffered()?;
        let domain = DOMAINS.share(domain.id)?.clone();
        let sender = SendEndpointBuffered::connect(&domain, peer, config)?;
        let face = Face::Buffered(Box::new(sender), VecDeque::new());
        open(out, face, None)
    })
}

/// The buffered sender of an endpoint.
fn sender<'a>(face: &'a mut Face, what: &str) -> Result<&'a mut SendEndpointBuffered, Failure> {
    match face {
        Face::Buffered(sender, _) => Ok(sender),
        face => Err(face.cannot(what)),
    }
}

/// Who packs small messages.
enum Pusher<'a> {
    Sender(&'a mut SendEndpointBuffered),
    Publisher(&'a mut PublishEndpointBuffered),
}

impl<'a> Pusher<'a> {
    #[inline]
    fn of(face: &'a mut Face) -> Result<Self, Failure> {
        match face {
            Face::Buffered(sender, _) => Ok(Self::Sender(sender)),
            Face::PublishBuffered(publisher, _) => Ok(Self::Publisher(publisher)),
            face => Err(face.cannot("push")),
        }
    }

    #[inline]
    fn push(&mut self, tag: u64, status: u8, bytes: &[u8]) -> Result<u64, PushError> {
        match self {
            Self::Sender(sender) => sender.push(tag, status, bytes),
            Self::Publisher(publisher) => publisher.push(tag, status, bytes),
        }
    }
}

/// Packs a small message behind the others: a tag (whose it is), a status (0: fine) and bytes,
/// which are copied. `*number`: the one that FCAST_EVENT_PUSHED or FCAST_EVENT_PUSH_FAILED has it
/// by; they count from 0. The buffer leaves when it is full, with fcast_flush, or when the flush
/// interval is over, which takes polls. One thread at a time.
///
/// At a buffered publisher a buffer has messages of one tag, and `*number` is the buffer's, which
/// FCAST_EVENT_PUBLISHED or FCAST_EVENT_PUSH_FAILED has.
///
/// FCAST_AGAIN: not now, FCAST_EVENT_WRITABLE says when; FCAST_TOO_LONG; FCAST_NOT_FOUND: nobody
/// has subscribed to the tag; FCAST_CLOSED: nothing was taken.
///
/// # Safety
///
/// `data`: NULL, or `len` bytes; `number`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_push(
    endpoint: fcast_endpoint,
    tag: u64,
    status: u8,
    data: *const c_void,
    len: usize,
    number: *mut u64,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let bytes = unsafe { pointer::bytes(data.cast::<u8>(), len, "data") }?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let pushed = Pusher::of(&mut entry.face)?.push(tag, status, bytes)?;
        // SAFETY: the caller's promise.
        unsafe { pointer::put(number, pushed) };
        Ok(())
    })
}

/// Packs several small messages, as fcast_push each: `*pushed` of them, from the first on. Where it
/// stops early, the next call says why with its first message. FCAST_AGAIN and the other failures
/// of fcast_push: the first message was not taken, and no other one. One thread at a time.
///
/// # Safety
///
/// `messages`: NULL, or `count` of them, whose bytes are readable; `pushed`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_push_batch(
    endpoint: fcast_endpoint,
    messages: *const fcast_small_message,
    count: usize,
    pushed: *mut usize,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(pushed, "pushed") }?;
        // SAFETY: the caller's promise.
        let messages = unsafe { pointer::array(messages, count, "messages") }?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let pusher = Pusher::of(&mut entry.face)?;
        let mut wrong = None;
        let good = until_wrong(messages, &mut wrong, |message| {
            // SAFETY: the caller's promise.
            unsafe { read(message) }
        });
        let batch = match pusher {
            Pusher::Sender(sender) => sender.push_batch(good),
            Pusher::Publisher(publisher) => publisher.push_batch(good),
        };
        let taken = match batch {
            Ok(pushed) => (pushed, wrong),
            Err(stopped) => (stopped.pushed, Some(stopped.error.into())),
        };
        out.set(count_taken(taken)?);
        Ok(())
    })
}

/// # Safety
///
/// The bytes are readable, for as long as `'m`.
#[inline(always)]
unsafe fn read<'m>(message: &fcast_small_message) -> Result<(u64, u8, &'m [u8]), Failure> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { pointer::bytes(message.data.cast::<u8>(), message.len, "data") }?;
    let status = u8::try_from(message.status);
    let status = status.map_err(|_| out_of_range("status", message.status, "0 to 255"))?;
    Ok((message.tag, status, bytes))
}

/// As fcast_push, of a message that lies in several pieces, which are copied one behind the other.
///
/// # Safety
///
/// `pieces`: NULL, or `count` of them, whose bytes are readable; `number`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_pushv(
    endpoint: fcast_endpoint,
    tag: u64,
    status: u8,
    pieces: *const fcast_bytes,
    count: usize,
    number: *mut u64,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let pieces = unsafe { pointer::array(pieces, count, "pieces") }?;
        let read = |piece: &fcast_bytes| {
            // SAFETY: the caller's promise.
            unsafe { pointer::bytes(piece.data.cast::<u8>(), piece.len, "a piece") }
        };
        let segments = pieces.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let pushed = match Pusher::of(&mut entry.face)? {
            Pusher::Sender(sender) => sender.push_segments(tag, status, &segments)?,
            Pusher::Publisher(publisher) => publisher.push_segments(tag, status, &segments)?,
        };
        // SAFETY: the caller's promise.
        unsafe { pointer::put(number, pushed) };
        Ok(())
    })
}

/// As fcast_push, of a payload, of which all or some may lie in a GPU's memory, and which may wait
/// for work there (fcast_payload_after_event). Its message has its place at once; its bytes are
/// copied there meanwhile, and the buffer is sent when they have come. Nothing needs a
/// registration. The payload's handle is used up, unless this fails; it is kept until it was
/// copied. Who keeps the memory otherwise may change it when FCAST_EVENT_PUSHED or
/// FCAST_EVENT_PUSH_FAILED comes; work of the GPU or a copy that fails, fails all messages of the
/// buffer. A setting `pool` of a region of FCAST_REGION_PINNED lets the copies be asynchronous. One
/// thread at a time.
///
/// FCAST_INVALID, too: a part of a region of the host's memory: push it by its address.
///
/// # Safety
///
/// `number`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_push_payload(
    endpoint: fcast_endpoint,
    tag: u64,
    status: u8,
    payload: fcast_payload,
    number: *mut u64,
) -> fcast_status {
    call(|| {
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let sender = sender(&mut entry.face, "push payloads")?;
        let pushed = using(payload, |given| {
            let pushed = sender.push_payload(tag, status, given);
            pushed.map_err(|refused| (Failure::from(refused.kind), refused.given))
        })?;
        // SAFETY: the caller's promise.
        unsafe { pointer::put(number, pushed) };
        Ok(())
    })
}

/// Takes a whole buffer of a buffered sender, to fill and to send with fcast_buffered_send.
/// FCAST_AGAIN: all are in flight or held; FCAST_EVENT_WRITABLE says when there is one. One thread
/// at a time.
///
/// # Safety
///
/// Each pointer: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_buffered_acquire(
    endpoint: fcast_endpoint,
    buffer: *mut fcast_buffer,
    data: *mut *mut c_void,
    capacity: *mut usize,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(buffer, "buffer") }?;
        // SAFETY: the caller's promise.
        let data = unsafe { Out::new(data, "data") }?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let taken = sender(&mut entry.face, "send buffers of its own")?.get_buffer();
        let taken = taken.ok_or_else(|| Failure::new(FCAST_AGAIN, "no buffer is free"))?;
        // SAFETY: the caller's promise.
        unsafe { hand_out(taken, out, data, capacity) }
    })
}

/// Sends the first `len` bytes of a buffer of fcast_buffered_acquire as one message, behind all
/// that was pushed before. Its outcome is FCAST_EVENT_COMPLETED or FCAST_EVENT_FAILED, with the
/// key. The buffer's handle is used up, unless this fails. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_buffered_send(
    endpoint: fcast_endpoint,
    buffer: fcast_buffer,
    len: usize,
    key: u64,
) -> fcast_status {
    call(|| {
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let sender = sender(&mut entry.face, "send buffers of its own")?;
        let capacity = BUFFERS.enter(buffer.id)?.len();
        if len > capacity {
            return Err(too_long(len, capacity));
        }
        BUFFERS.try_take(buffer.id, |taken| {
            let sent = sender.send_buffer(taken, len, key);
            sent.map_err(|refused| (Failure::from(refused.kind), refused.given))
        })
    })
}

/// What a buffer carried: small messages, or a whole one of the program's.
fn carried(of_messages: u32, of_buffer: u32, carried: Carried) -> fcast_event {
    match carried {
        Carried::Messages { first, count } => {
            let mut event = fcast_event::keyed(of_messages, first);
            event.value = count;
            event
        }
        Carried::Buffer { key } => fcast_event::keyed(of_buffer, key),
    }
}

/// Why a buffer failed; the event gives its bytes, too.
#[cold]
fn buffer_failed(
    event: fcast_event,
    buffer: Option<Buffer>,
    error: BufferError,
) -> (fcast_event, Held) {
    let mut event = event;
    let text = error.to_string();
    match error {
        BufferError::Completion(error) => {
            let (told, _) = failed(event.kind, event.key, &error);
            (event.status, event.error) = (told.status, told.error);
        }
        BufferError::Refused(kind) => event.status = Failure::from(kind).status,
        _ => {}
    }
    match buffer {
        Some(buffer) => (event, Held::Packed(buffer, c_string(text))),
        None => words(event, text),
    }
}

impl Tell for BufferedEvent {
    #[inline]
    fn tell(self) -> (fcast_event, Held) {
        match self {
            Self::Completed { carried: what, .. } => {
                let event = carried(FCAST_EVENT_PUSHED, FCAST_EVENT_COMPLETED, what);
                (event, Held::Nothing)
            }
            Self::Connection(event) => event.tell(),
            Self::Failed {
                carried: what,
                buffer,
                error,
            } => {
                let event = carried(FCAST_EVENT_PUSH_FAILED, FCAST_EVENT_FAILED, what);
                buffer_failed(event, buffer, error)
            }
            Self::Late { carried: what } => (
                carried(FCAST_EVENT_LATE, FCAST_EVENT_LATE, what),
                Held::Nothing,
            ),
            Self::Writable => (fcast_event::new(FCAST_EVENT_WRITABLE), Held::Nothing),
            other => words(fcast_event::new(FCAST_EVENT_OTHER), format!("{other:?}")),
        }
    }
}
