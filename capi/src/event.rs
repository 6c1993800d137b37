//! `fcast_event`: what happened at an endpoint, of whatever kind it is.

use std::ffi::{CString, c_char, c_void};
use std::ptr;

use fabricast::PeerAddr;
use fabricast::buffer::{Buffer, BufferMut, Payload};
use fabricast::cuda::CudaError;
use fabricast::endpoint::{
    CloseReason, ConnectionEvent, ConnectionRequest, DeviceMessage, Message, ReceiveEvent,
    SendEvent, WindowEvent,
};
use fabricast::error::CompletionError;

use crate::message::Kept;
use crate::status::{
    FCAST_CLOSED, FCAST_DEVICE, FCAST_FABRIC, FCAST_OK, FCAST_TOO_LONG, c_string, fcast_status,
    status_of_close,
};
use crate::window_memory;

/// The connection stands. `data`: the peer's address as a text that ends with a zero, such as
/// "192.0.2.1:7000", of `data_len` bytes without it; NULL where the provider does not tell. `text`:
/// what was agreed, in words.
pub const FCAST_EVENT_CONNECTED: u32 = 1;
/// Nothing was heard from the peer for as long as the setting says. Nothing is closed.
pub const FCAST_EVENT_UNRESPONSIVE: u32 = 2;
/// Something was heard from the peer again.
pub const FCAST_EVENT_RESPONSIVE: u32 = 3;
/// The peer closes: nothing new is taken, what is in flight completes.
pub const FCAST_EVENT_PEER_CLOSING: u32 = 4;
/// The connection ended, and another one will be made. `value`: the attempt, from 1; `text`: why.
pub const FCAST_EVENT_RECONNECTING: u32 = 5;
/// The connection is over; every outcome was told before. `status` FCAST_OK: both sides said
/// goodbye and everything arrived; FCAST_REFUSED: the peer refused it; else, and in `text`: why.
pub const FCAST_EVENT_DISCONNECTED: u32 = 6;
/// A peer asks for a connection (setting `ask`): answer with fcast_endpoint_accept or _refuse.
/// `data`: its address, as for FCAST_EVENT_CONNECTED.
pub const FCAST_EVENT_REQUEST: u32 = 7;
/// A send is done. `key`: the one that was given to it.
pub const FCAST_EVENT_COMPLETED: u32 = 8;
/// A send failed, or will never complete. `key`, `status`, `text`, `error`. FCAST_TOO_LONG: longer
/// than the peer's `long_pool` takes, whose limit is in the words.
pub const FCAST_EVENT_FAILED: u32 = 9;
/// An operation is not done within its deadline, and goes on. `key`.
pub const FCAST_EVENT_LATE: u32 = 10;
/// What blocked a refused operation has passed.
pub const FCAST_EVENT_WRITABLE: u32 = 11;
/// The provider is done with the memory of a send that had failed. `key`.
pub const FCAST_EVENT_RELEASED: u32 = 12;
/// A message arrived: `header`, `data`, `sequence`, valid until the next poll of the endpoint.
/// fcast_message_keep keeps it for longer.
pub const FCAST_EVENT_MESSAGE: u32 = 13;
/// A connection wants more buffers than the receive pool has: its peer will stall.
pub const FCAST_EVENT_STARVED: u32 = 14;
/// A one-sided write is done. `key`.
pub const FCAST_EVENT_WRITTEN: u32 = 15;
/// A one-sided write failed. `key`, `status`, `text`, `error`.
pub const FCAST_EVENT_WRITE_FAILED: u32 = 16;
/// A one-sided read is done. `key`.
pub const FCAST_EVENT_READ: u32 = 17;
/// A one-sided read failed. `key`, `status`, `text`, `error`.
pub const FCAST_EVENT_READ_FAILED: u32 = 18;
/// Somebody wrote to a window and says so. `key`: the window's id; `value`: the 32 bits.
pub const FCAST_EVENT_PEER_WROTE: u32 = 19;
/// The peer revoked a window of its own. `key`: the window's id.
pub const FCAST_EVENT_WINDOW_REVOKED: u32 = 20;
/// The provider is done with the memory of a failed one-sided operation. `key`.
pub const FCAST_EVENT_RETURNED: u32 = 21;
/// A window of this side is over; its memory comes back when endpoints are closed. `key`: its id.
pub const FCAST_EVENT_WINDOW_QUARANTINED: u32 = 22;
/// Nobody reaches a window of this side any more. `key`: its id; `data`: the bytes of what was a
/// buffer (fcast_window_expose_buffer), until the next poll; fcast_buffer_keep takes it back.
pub const FCAST_EVENT_WINDOW_RELEASED: u32 = 23;
/// Something that this version of the interface has no word for. `text` says what.
pub const FCAST_EVENT_OTHER: u32 = 24;

/// Small messages of a buffered sender were sent. `key`: the number of the first; `value`: how
/// many.
pub const FCAST_EVENT_PUSHED: u32 = 25;
/// Small messages of a buffered sender failed. `key`, `value` as FCAST_EVENT_PUSHED; `status`,
/// `text`, `error`; `data`: the buffer, for fcast_coalesced_next, where it came back. At a buffered
/// publisher: they could not be published to anybody; `tag`, too.
pub const FCAST_EVENT_PUSH_FAILED: u32 = 26;
/// A peer of a connectionless endpoint was removed, or had come by itself and is gone.
pub const FCAST_EVENT_PEER_REMOVED: u32 = 27;
/// At a publisher: a subscriber has subscribed. At a subscriber: the publisher has granted it.
/// `key`: the tag.
pub const FCAST_EVENT_SUBSCRIBED: u32 = 28;
/// A subscription is over. `key`: the tag.
pub const FCAST_EVENT_UNSUBSCRIBED: u32 = 29;
/// The publisher refused a subscription: it is not wanted any more. `key`: the tag; `text`.
pub const FCAST_EVENT_SUBSCRIPTION_REFUSED: u32 = 30;
/// A subscriber's connection is closed, and with it go so many subscriptions (`value`) that it did
/// not give up. Its end comes next.
pub const FCAST_EVENT_SUBSCRIPTIONS_GONE: u32 = 31;
/// A publication is over for everybody. `key`; `value`: who got it; `dropped`, `failed`: who did
/// not. At a buffered publisher `tag` and `count`, too, as in all events about a publication.
pub const FCAST_EVENT_PUBLISHED: u32 = 32;
/// How a publication ended for one subscriber, mostly where it did not get it. `key`, `connection`;
/// `status` FCAST_OK: sent; FCAST_AGAIN: dropped, since it had no room; else it failed; `text`.
pub const FCAST_EVENT_PUBLISHED_TO: u32 = 33;
/// A publication came: `header`, `data` as FCAST_EVENT_MESSAGE; `key`: the tag; `sequence`: its
/// number among the tag's publications; `value`: how many of them were missed before it.
pub const FCAST_EVENT_PUBLICATION: u32 = 34;
/// As FCAST_EVENT_MESSAGE, and `data` is an address in a GPU's memory (setting `deliver_to`).
pub const FCAST_EVENT_DEVICE_MESSAGE: u32 = 35;
/// As FCAST_EVENT_PUBLICATION, and `data` is an address in a GPU's memory (setting `deliver_to`).
pub const FCAST_EVENT_DEVICE_PUBLICATION: u32 = 36;
/// A message or publication came and could not be copied to the GPU: as FCAST_EVENT_MESSAGE, or
/// FCAST_EVENT_PUBLICATION, in the host's memory; `text`: why.
pub const FCAST_EVENT_UNDELIVERED: u32 = 37;

/// Something that happened. Its layout does not change.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_event {
    /// FCAST_EVENT_CONNECTED or another.
    pub kind: u32,
    /// Why, where something failed or ended; else FCAST_OK.
    pub status: fcast_status,
    /// The connection that it is about; 0 where the endpoint has one only.
    pub connection: u64,
    /// The key of the operation; or see the kind.
    pub key: u64,
    /// The message's number on its connection, from 1.
    pub sequence: u64,
    /// The header as it was sent.
    pub header: *const c_void,
    /// Bytes of the header.
    pub header_len: usize,
    /// The payload.
    pub data: *const c_void,
    /// Bytes of the payload.
    pub data_len: usize,
    /// Words, valid until the next poll of the endpoint; NULL where there are none.
    pub text: *const c_char,
    /// A number; see the kind.
    pub value: u64,
    /// libfabric's number (fi_errno.3), where something failed in it; else 0.
    pub error: i32,
    /// For fcast_message_keep and fcast_buffer_keep.
    pub index: u32,
    /// For fcast_message_keep and fcast_buffer_keep.
    pub batch: u64,
    /// Of a publication: subscribers that did not get it.
    pub dropped: u32,
    /// Of a publication: subscribers whose connections ended with it under way.
    pub failed: u32,
    /// Of a buffered publisher's publication: its tag.
    pub tag: u64,
    /// Of a buffered publisher's publication: how many small messages are in it, and `key` is the
    /// number that fcast_push gave them; 0: it is a payload, and `key` is its key.
    pub count: u32,
    /// 1: the library has copied this message on its way here, a long one whose fence was late or
    /// where nothing fences. No peer can change it, as any other.
    pub copied: u32,
}

const _: () = assert!(size_of::<fcast_event>() == 120);

impl fcast_event {
    pub(crate) fn new(kind: u32) -> Self {
        Self {
            kind,
            status: FCAST_OK,
            connection: 0,
            key: 0,
            sequence: 0,
            header: ptr::null(),
            header_len: 0,
            data: ptr::null(),
            data_len: 0,
            text: ptr::null(),
            value: 0,
            error: 0,
            index: 0,
            batch: 0,
            dropped: 0,
            failed: 0,
            tag: 0,
            count: 0,
            copied: 0,
        }
    }

    #[inline]
    pub(crate) fn keyed(kind: u32, key: u64) -> Self {
        Self {
            key,
            ..Self::new(kind)
        }
    }
}

/// What an event points to, until the next poll.
#[derive(Debug)]
pub(crate) enum Held {
    Nothing,
    Message(Message),
    Device(DeviceMessage),
    /// A message that could not be copied to a GPU, and why.
    Undelivered(Message, CString),
    /// A buffer of small messages that were not sent, and why.
    Packed(Buffer, CString),
    /// The address of a peer, and words.
    Peer(CString, CString),
    /// A buffer that was a window.
    Buffer(BufferMut),
    Text(CString),
}

/// An event of the library's, for C: the event, and what it points to. The pointers are set when
/// what they point to lies where it stays.
pub(crate) trait Tell {
    fn tell(self) -> (fcast_event, Held);
}

#[cold]
pub(crate) fn words(event: fcast_event, text: impl ToString) -> (fcast_event, Held) {
    (event, Held::Text(c_string(text.to_string())))
}

/// An event with the address of a peer, where that is known.
#[cold]
fn with_peer(event: fcast_event, peer: Option<PeerAddr>, text: String) -> (fcast_event, Held) {
    match peer {
        Some(peer) => (
            event,
            Held::Peer(c_string(peer.to_string()), c_string(text)),
        ),
        None => words(event, text),
    }
}

#[cold]
pub(crate) fn failed(kind: u32, key: u64, error: &CompletionError) -> (fcast_event, Held) {
    let mut event = fcast_event::keyed(kind, key);
    // What the end of its connection takes with it is told with this number.
    event.status = match error.errno.get() {
        libc::ECANCELED => FCAST_CLOSED,
        _ if error.limit_bytes.is_some() => FCAST_TOO_LONG,
        _ => FCAST_FABRIC,
    };
    event.error = error.errno.get();
    words(event, error)
}

/// A send, or a one-sided operation, that is done: its payload goes back to where it came from.
#[inline]
pub(crate) fn done(kind: u32, key: u64, payload: Payload) -> (fcast_event, Held) {
    drop(payload);
    (fcast_event::keyed(kind, key), Held::Nothing)
}

impl Tell for ConnectionEvent {
    #[cold]
    fn tell(self) -> (fcast_event, Held) {
        let plain = |kind| (fcast_event::new(kind), Held::Nothing);
        match self {
            Self::Connected(info) => {
                let text = format!("{info:?}");
                with_peer(fcast_event::new(FCAST_EVENT_CONNECTED), info.peer, text)
            }
            Self::Unresponsive => plain(FCAST_EVENT_UNRESPONSIVE),
            Self::Responsive => plain(FCAST_EVENT_RESPONSIVE),
            Self::PeerClosing => plain(FCAST_EVENT_PEER_CLOSING),
            Self::Reconnecting {
                attempt, reason, ..
            } => {
                let mut event = fcast_event::new(FCAST_EVENT_RECONNECTING);
                event.value = u64::from(attempt);
                event.status = status_of_close(&reason);
                words(event, reason)
            }
            Self::Late => plain(FCAST_EVENT_LATE),
            Self::Disconnected(reason) => disconnected(&reason),
            other => words(fcast_event::new(FCAST_EVENT_OTHER), format!("{other:?}")),
        }
    }
}

fn disconnected(reason: &CloseReason) -> (fcast_event, Held) {
    let mut event = fcast_event::new(FCAST_EVENT_DISCONNECTED);
    event.status = status_of_close(reason);
    words(event, reason)
}

impl Tell for WindowEvent {
    fn tell(self) -> (fcast_event, Held) {
        match self {
            Self::Written { key, payload } => done(FCAST_EVENT_WRITTEN, key, payload),
            Self::WriteFailed { key, error, .. } => failed(FCAST_EVENT_WRITE_FAILED, key, &error),
            Self::Read { key, .. } => (fcast_event::keyed(FCAST_EVENT_READ, key), Held::Nothing),
            Self::ReadFailed { key, error, .. } => failed(FCAST_EVENT_READ_FAILED, key, &error),
            Self::PeerWrote { window, data } => {
                let mut event = fcast_event::keyed(FCAST_EVENT_PEER_WROTE, window.as_u64());
                event.value = u64::from(data);
                (event, Held::Nothing)
            }
            Self::Revoked { window } => of_window(FCAST_EVENT_WINDOW_REVOKED, window.as_u64()),
            Self::WriteReturned { key, payload } => done(FCAST_EVENT_RETURNED, key, payload),
            Self::ReadReturned { key, .. } => of_window(FCAST_EVENT_RETURNED, key),
            Self::Quarantined { window } => {
                of_window(FCAST_EVENT_WINDOW_QUARANTINED, window.as_u64())
            }
            Self::Released { window, memory } => window_memory::released(window.as_u64(), memory),
            other => words(fcast_event::new(FCAST_EVENT_OTHER), format!("{other:?}")),
        }
    }
}

fn of_window(kind: u32, id: u64) -> (fcast_event, Held) {
    (fcast_event::keyed(kind, id), Held::Nothing)
}

impl Tell for SendEvent {
    #[inline]
    fn tell(self) -> (fcast_event, Held) {
        match self {
            Self::Completed { key, payload } => done(FCAST_EVENT_COMPLETED, key, payload),
            Self::Connection(event) => event.tell(),
            Self::Failed { key, error, .. } => failed(FCAST_EVENT_FAILED, key, &error),
            Self::Late { key } => (fcast_event::keyed(FCAST_EVENT_LATE, key), Held::Nothing),
            Self::Window(event) => event.tell(),
            Self::Writable => (fcast_event::new(FCAST_EVENT_WRITABLE), Held::Nothing),
            other => words(fcast_event::new(FCAST_EVENT_OTHER), format!("{other:?}")),
        }
    }
}

/// A connection that is asked for.
#[cold]
pub(crate) fn request(asked: &ConnectionRequest) -> (fcast_event, Held) {
    let mut event = fcast_event::new(FCAST_EVENT_REQUEST);
    event.connection = asked.connection.as_u64();
    let text = asked.peer.map_or_else(String::new, |peer| peer.to_string());
    with_peer(event, asked.peer, text)
}

/// A message in a GPU's memory.
pub(crate) fn device_message(message: DeviceMessage) -> (fcast_event, Held) {
    let mut event = fcast_event::new(FCAST_EVENT_DEVICE_MESSAGE);
    event.connection = message.connection().as_u64();
    event.sequence = message.sequence();
    (event, Held::Device(message))
}

/// A message that could not be copied to a GPU's memory.
#[cold]
pub(crate) fn undelivered(message: Message, error: &CudaError) -> (fcast_event, Held) {
    let mut event = fcast_event::new(FCAST_EVENT_UNDELIVERED);
    event.connection = message.connection().as_u64();
    event.sequence = message.sequence();
    event.status = FCAST_DEVICE;
    (
        event,
        Held::Undelivered(message, c_string(error.to_string())),
    )
}

/// A message, whose pointers are set when it lies where it stays (`Held::point`).
#[inline]
pub(crate) fn message(message: Message) -> (fcast_event, Held) {
    let mut event = fcast_event::new(FCAST_EVENT_MESSAGE);
    event.connection = message.connection().as_u64();
    event.sequence = message.sequence();
    event.copied = message.is_copied().into();
    (event, Held::Message(message))
}

impl Tell for ReceiveEvent {
    #[inline]
    fn tell(self) -> (fcast_event, Held) {
        let of = |connection: fabricast::endpoint::ConnectionId, told: (fcast_event, Held)| {
            let mut event = told.0;
            event.connection = connection.as_u64();
            (event, told.1)
        };
        match self {
            Self::Message(received) => message(received),
            Self::Connection(connection, event) => of(connection, event.tell()),
            Self::Request(asked) => request(&asked),
            Self::DeviceMessage(message) => device_message(message),
            Self::Undelivered { message, error } => undelivered(message, &error),
            Self::Window { connection, event } => of(connection, event.tell()),
            Self::Completed {
                connection,
                key,
                payload,
            } => of(connection, done(FCAST_EVENT_COMPLETED, key, payload)),
            Self::Failed {
                connection,
                key,
                error,
                ..
            } => of(connection, failed(FCAST_EVENT_FAILED, key, &error)),
            Self::Released {
                connection,
                key,
                payload,
            } => of(connection, done(FCAST_EVENT_RELEASED, key, payload)),
            Self::Late { connection, key } => of(
                connection,
                (fcast_event::keyed(FCAST_EVENT_LATE, key), Held::Nothing),
            ),
            Self::Writable { connection } => of(
                connection,
                (fcast_event::new(FCAST_EVENT_WRITABLE), Held::Nothing),
            ),
            Self::Starved { connection } => of(
                connection,
                (fcast_event::new(FCAST_EVENT_STARVED), Held::Nothing),
            ),
            other => words(fcast_event::new(FCAST_EVENT_OTHER), format!("{other:?}")),
        }
    }
}

impl Held {
    /// The message, if it is one; words stay until the next poll.
    pub(crate) fn keep(&mut self) -> Option<Kept> {
        match std::mem::replace(self, Self::Nothing) {
            Self::Message(message) => Some(Kept::Host(message)),
            Self::Device(message) => Some(Kept::Device(message)),
            Self::Undelivered(message, text) => {
                *self = Self::Text(text);
                Some(Kept::Host(message))
            }
            other => {
                *self = other;
                None
            }
        }
    }

    /// Sets the pointers of an event to what is held for it.
    #[inline]
    pub(crate) fn point(&self, event: &mut fcast_event) {
        match self {
            Self::Nothing => {}
            Self::Message(message) => point_to(event, message),
            Self::Undelivered(message, text) => {
                point_to(event, message);
                event.text = text.as_ptr();
            }
            Self::Device(message) => {
                let (header, payload) = (message.header(), message.payload());
                event.header = header.as_ptr().cast::<c_void>();
                event.header_len = header.len();
                event.data = ptr::without_provenance(payload.address() as usize);
                event.data_len = payload.len();
            }
            Self::Packed(buffer, text) => {
                event.data = buffer.as_ptr().cast::<c_void>();
                event.data_len = buffer.len();
                event.text = text.as_ptr();
            }
            Self::Peer(peer, text) => {
                event.data = peer.as_ptr().cast::<c_void>();
                event.data_len = peer.as_bytes().len();
                event.text = text.as_ptr();
            }
            Self::Buffer(buffer) => {
                event.data = buffer.as_ptr().cast::<c_void>();
                event.data_len = buffer.len();
            }
            Self::Text(text) => event.text = text.as_ptr(),
        }
    }
}

#[inline]
fn point_to(event: &mut fcast_event, message: &Message) {
    let (header, payload) = (message.header(), message.payload());
    event.header = header.as_ptr().cast::<c_void>();
    event.header_len = header.len();
    event.data = payload.as_ptr().cast::<c_void>();
    event.data_len = payload.len();
}
