//! `Frames`: small messages that go out together, copied into one registered buffer.
//!
//! ```text
//!  send ─► nothing in flight: posted by itself
//!        └► something is: copied behind the others of the open frame
//!                             │ full, or the next poll, or a flush
//!                             ▼
//!                         one message: one credit, one completion, one outcome for each key
//! ```
//!
//! An open frame lies in the slab from its first message on, with its credit and its number taken,
//! as a message that waits in a line does; what lies here is where the next one goes.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::time::Instant;

use super::Hub;
use super::outbound::PeerOutbound;
use super::sends::PeerSender;
use crate::buffer::{
    BufferMut, Given, HostBytes, LeasedPayload, Leases, Payload, SharedBufferManager,
};
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::hub::control::HeldDescriptor;
use crate::endpoint::hub::data_op::DataOp;
use crate::endpoint::hub::event::HubEvent;
use crate::endpoint::hub::headers::Header;
use crate::endpoint::hub::line::LineState;
use crate::endpoint::hub::posted::MessageOp;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{Link, LinkConn};
use crate::error::Error;
use crate::fabric::Packing;
use crate::id::ConnectionId;
use crate::memory::{Registrar, Scope};
use crate::protocol::connection::SendBlocked;
use crate::protocol::wire::frame::{self, FRAME_MAX, LENGTH_LEN, MESSAGES_MAX};

/// Buffers for frames that an endpoint has, at most: 4 MiB.
const BUFFERS_MAX: u32 = 128;

/// Fewer bytes than this are no frame: a peer whose receives are smaller gets each message by
/// itself.
const FRAME_MIN: usize = 64;

/// A message that travels in a frame, until that is over.
#[derive(Debug)]
pub(crate) struct PackedMessage {
    pub(crate) key: u64,
    /// What was copied.
    pub(crate) payload: Payload,
}

/// Those of one frame, in their order.
pub(crate) type PackedMessages = Vec<PackedMessage>;

/// What the frames of all connections of a hub have in common.
pub(super) struct Frames {
    /// Made for the first frame: who never packs anything has no memory for it, and registers none.
    buffers: Option<FrameBuffers>,
    /// How many there will be.
    buffer_count: u32,
    /// Bytes of the largest message that is packed.
    below: usize,
    /// Lists to be used again; boxed, as they are in the slab.
    #[expect(clippy::vec_box, reason = "they move to the slab as they are")]
    spare: Vec<Box<PackedMessages>>,
    /// Connections with an open frame.
    open: Vec<ConnectionId>,
}

/// The buffers that messages are copied into.
struct FrameBuffers {
    pool: SharedBufferManager,
    /// RDM form: held until the endpoint is closed, as that of the header slots is.
    _shared_desc: Option<HeldDescriptor>,
}

impl FrameBuffers {
    fn new(count: u32, shared: Option<&dyn Registrar>) -> Result<Self, Error> {
        let pool = SharedBufferManager::allocate(count, FRAME_MAX)?;
        let desc = shared.map(|registrar| HeldDescriptor::new(pool.region(), registrar));
        Ok(Self {
            _shared_desc: desc.transpose()?,
            pool,
        })
    }
}

impl Frames {
    /// For so many messages in flight, over a link for which messages of up to `auto` bytes are
    /// packed where nobody says otherwise; none where nothing is packed.
    pub(super) fn new(packing: Packing, auto: usize, total: u32) -> Option<Self> {
        let below = match packing {
            Packing::Off => 0,
            Packing::Auto => auto,
            Packing::UpTo(bytes) => bytes,
        };
        (below > 0).then(|| Self {
            buffers: None,
            buffer_count: total.clamp(2, BUFFERS_MAX),
            below: below.min(FRAME_MAX - LENGTH_LEN),
            spare: Vec::new(),
            open: Vec::new(),
        })
    }

    /// Some connection has an open frame.
    #[inline]
    pub(super) fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Connections that may have an open frame.
    pub(super) fn take_open(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.open)
    }

    /// The list that [`take_open`](Self::take_open) gave, for the next ones.
    pub(super) fn put_back(&mut self, mut open: Vec<ConnectionId>) {
        open.clear();
        if self.open.is_empty() {
            self.open = open;
        }
    }

    /// A list whose messages had their outcomes.
    #[inline]
    pub(super) fn recycle(&mut self, messages: Box<PackedMessages>) {
        debug_assert!(messages.is_empty());
        self.spare.push(messages);
    }
}

/// The frames of one connection.
#[derive(Default)]
pub(super) struct PeerFrames {
    /// Of the frames' buffers, for this connection; from its first frame on.
    desc: Option<HeldDescriptor>,
    /// Bytes of the largest message that is packed; 0: none is, the peer takes no frames.
    message_max: usize,
    frame_max: usize,
    open: Option<OpenFrame>,
}

/// A frame that messages are still put into.
struct OpenFrame {
    context: usize,
    data: u64,
    buffer: BufferMut,
    /// Where the next one goes.
    at: usize,
    count: usize,
}

impl PeerFrames {
    /// The connection stands, to a peer that takes messages of so many bytes.
    pub(super) fn begin(&mut self, frames: &Frames, receive_max: u64) {
        let receive_max = usize::try_from(receive_max).unwrap_or(usize::MAX);
        self.frame_max = receive_max.min(FRAME_MAX);
        if self.frame_max >= FRAME_MIN {
            self.message_max = frames.below.min(self.frame_max - LENGTH_LEN);
        }
    }

    fn desc(&self) -> *mut c_void {
        let desc = self.desc.as_ref();
        desc.map_or(std::ptr::null_mut(), HeldDescriptor::desc)
    }

    #[inline]
    fn has_room(&self, len: usize) -> bool {
        self.open.as_ref().is_some_and(|open| {
            open.count < MESSAGES_MAX && open.at + LENGTH_LEN + len <= self.frame_max
        })
    }

    /// Nothing that uses the buffers is posted, or will be.
    pub(super) fn release(&mut self) {
        if let Some(desc) = &mut self.desc {
            desc.release();
        }
    }

    /// The connection's endpoint would not close.
    pub(super) fn leak(&mut self) {
        if let Some(desc) = &mut self.desc {
            desc.leak();
        }
    }
}

impl PeerOutbound {
    /// Small messages may go out in frames on this connection.
    #[inline]
    pub(super) fn packs(&self) -> bool {
        let frames = self.frames.as_ref();
        frames.is_some_and(|frames| frames.message_max > 0)
    }

    /// The context of the open frame, whose connection is over.
    pub(super) fn take_frame(&mut self) -> Option<usize> {
        Some(self.frames.as_mut()?.open.take()?.context)
    }
}

/// Copies a header, which is some words long as a rule: without a call then.
#[inline(always)]
fn copy_header(out: &mut [u8], header: &[u8]) {
    match header.len() {
        len @ 8..=16 if out.len() == len => copy_ends::<8>(out, header),
        len @ 17..=32 if out.len() == len => copy_ends::<16>(out, header),
        len @ 33..=64 if out.len() == len => copy_ends::<32>(out, header),
        _ => out.copy_from_slice(header),
    }
}

/// Copies both ends, which may have bytes in common, and are all there is.
#[inline(always)]
fn copy_ends<const END: usize>(out: &mut [u8], from: &[u8]) {
    let rest = from.len() - END;
    out[..END].copy_from_slice(&from[..END]);
    out[rest..][..END].copy_from_slice(&from[rest..][..END]);
}

/// Appends a message, which is put together where it is to lie: what is put together elsewhere, and
/// then copied in wider words than it was written in, is waited for by the processor.
#[inline(always)]
fn push(packed: &mut PackedMessages, payload: Payload, key: u64) {
    if packed.len() == packed.capacity() {
        grow(packed);
    }
    let Some(place) = packed.spare_capacity_mut().first_mut() else {
        unreachable!("it has just grown");
    };
    place.write(PackedMessage { key, payload });
    let len = packed.len() + 1;
    // SAFETY: the place behind the last one was written just now, and is within the capacity.
    unsafe { packed.set_len(len) };
}

#[cold]
fn grow(packed: &mut PackedMessages) {
    packed.reserve(packed.len().max(32));
}

/// Why a message was not put into a frame.
pub(super) enum NotPacked {
    /// It goes by itself.
    Alone,
    Refused(SendErrorKind),
}

impl From<SendErrorKind> for NotPacked {
    fn from(kind: SendErrorKind) -> Self {
        Self::Refused(kind)
    }
}

impl<L: Link> PeerSender<'_, L> {
    /// Sees to it that a message has a place in an open frame, and gives its bytes, framing
    /// included, for [`copy_in`](Self::copy_in). Where it says why not, what is in the frame is
    /// posted first.
    #[inline(always)]
    pub(super) fn place_in_frame<'p>(
        &mut self,
        payload: &'p impl Given,
        header: &Header<'_>,
    ) -> Result<(usize, HostBytes<'p>), NotPacked> {
        let Some((len, bytes)) = self.packable(payload, header) else {
            self.post_frame();
            return Err(NotPacked::Alone);
        };
        // A lone message leaves at once, and without a copy.
        if self.peer.outbound.in_flight == 0 {
            return Err(NotPacked::Alone);
        }
        let frames = self.peer.outbound.frames.as_ref();
        if !frames.is_some_and(|frames| frames.has_room(len)) {
            self.next_frame()?;
            return Ok((len, bytes));
        }
        // The frame has its credit.
        match self.peer.machine.may_send() {
            Ok(()) | Err(SendBlocked::NoCredit) => Ok((len, bytes)),
            Err(_) => Err(self.refusal()),
        }
    }

    /// How long a message is, framing included, and the bytes of its payload, if it is one for a
    /// frame.
    #[inline(always)]
    fn packable<'p>(
        &self,
        payload: &'p impl Given,
        header: &Header<'_>,
    ) -> Option<(usize, HostBytes<'p>)> {
        let max = self.peer.outbound.frames.as_ref()?.message_max;
        let [prefix, header] = self.outbound.outgoing.front_len(header)?;
        let bytes = payload.host_bytes()?;
        let len = prefix + header + bytes.len();
        (len <= max).then_some((len, bytes))
    }

    /// Why the connection takes nothing more into its open frame.
    #[cold]
    fn refusal(&self) -> NotPacked {
        let may = self.outbound.may_take(self.peer).err();
        may.map_or(NotPacked::Alone, NotPacked::Refused)
    }

    /// Posts the open frame, if there is one, and opens another.
    #[cold]
    fn next_frame(&mut self) -> Result<(), NotPacked> {
        self.post_frame();
        self.begin_frame()
    }

    /// Opens a frame: takes its credit, its place in the account and a buffer.
    fn begin_frame(&mut self) -> Result<(), NotPacked> {
        let (outbound, peer) = (&mut *self.outbound, &mut *self.peer);
        outbound.may_take(peer)?;
        outbound.account.has_room(&peer.outbound)?;
        if peer.outbound.messages() != LineState::Open {
            return Err(SendErrorKind::WouldBlock(Blocked::Provider).into());
        }
        let own = peer.outbound.frames.as_ref();
        if own.is_some_and(|own| own.desc.is_none()) && !self.register_frames() {
            return Err(NotPacked::Alone);
        }
        let (outbound, peer) = (&mut *self.outbound, &mut *self.peer);
        let Some(frames) = &mut outbound.frames else {
            return Err(NotPacked::Alone);
        };
        // The frames of others have them all; this connection must not wait for those.
        let buffer = frames.buffers.as_ref();
        let Some(buffer) = buffer.and_then(|buffers| buffers.pool.try_acquire()) else {
            return Err(NotPacked::Alone);
        };
        let packed = frames.spare.pop().unwrap_or_default();
        let is_first = frames.open.is_empty();
        frames.open.push(self.id);
        let posted = outbound.stamp(self.clock);
        let op = DataOp::frame(
            (self.id, peer.scoped.scope()),
            peer.machine.sent(),
            posted,
            packed,
        );
        let data = peer.machine.on_frame_begun();
        let Some(vacant) = outbound.posted.messages.vacant() else {
            unreachable!("the hub counts what is in flight, and its slab has room for that");
        };
        let context = vacant.fill(MessageOp::Data(op));
        outbound.account.count_frame(&mut peer.outbound);
        if let Some(frames) = &mut peer.outbound.frames {
            frames.open = Some(OpenFrame {
                context,
                data,
                buffer,
                at: 0,
                count: 0,
            });
        }
        if is_first {
            // Who goes to sleep now has to poll first.
            outbound.wait.set_unsent(true);
        }
        Ok(())
    }

    /// Gets this connection's first frame its memory. Where there is none, or it can't be
    /// registered, the connection's messages go by themselves.
    #[cold]
    fn register_frames(&mut self) -> bool {
        let (outbound, peer) = (&mut *self.outbound, &mut *self.peer);
        let (Some(frames), Some(own)) = (&mut outbound.frames, &mut peer.outbound.frames) else {
            return false;
        };
        let hub = self.link.registrar();
        let shared = self.link.shares_endpoint().then_some(hub);
        let registrar = peer.link.registrar().unwrap_or(hub);
        let made = match frames.buffers.take() {
            Some(buffers) => Ok(buffers),
            None => FrameBuffers::new(frames.buffer_count, shared),
        };
        let desc = made.and_then(|made| {
            let buffers = frames.buffers.insert(made);
            peer.scoped.hold(buffers.pool.region(), registrar)
        });
        match desc {
            Ok(desc) => own.desc = Some(desc),
            Err(error) => {
                tracing::warn!(connection = %self.id, %error, "messages go out by themselves");
                own.message_max = 0;
            }
        }
        own.desc.is_some()
    }

    /// Copies a message behind those of the open frame, which has room for it
    /// ([`place_in_frame`](Self::place_in_frame)); its payload is then to be
    /// [kept](Self::keep_packed).
    #[inline(always)]
    pub(super) fn copy_in(&mut self, (len, bytes): (usize, &HostBytes<'_>), header: &Header<'_>) {
        let open = self.peer.outbound.frames.as_mut();
        let Some(open) = open.and_then(|frames| frames.open.as_mut()) else {
            unreachable!("`place_in_frame` saw to it");
        };
        let end = open.at + LENGTH_LEN + len;
        let out = &mut open.buffer[open.at..end];
        frame::put_length(out, len);
        let (prefix, header) = self.outbound.outgoing.front(header);
        let prefix = prefix.as_slice();
        let out = &mut out[LENGTH_LEN..];
        out[..prefix.len()].copy_from_slice(prefix);
        let out = &mut out[prefix.len()..];
        copy_header(&mut out[..header.len()], header);
        bytes.copy_to(&mut out[header.len()..]);
        (open.at, open.count) = (end, open.count + 1);
        self.outbound.account.count_packed(len as u64);
    }

    /// Keeps the payload of a message that was copied into the open frame.
    #[inline(always)]
    pub(super) fn keep_packed(&mut self, payload: Payload, key: u64) {
        let frames = self.peer.outbound.frames.as_ref();
        let Some(context) = frames.and_then(|frames| Some(frames.open.as_ref()?.context)) else {
            unreachable!("it was just copied there");
        };
        let op = self.outbound.posted.data(context);
        let Some(packed) = op.and_then(|op| op.packed.as_mut()) else {
            unreachable!("an open frame is in the slab");
        };
        push(packed, payload, key);
    }

    /// Posts what is in the open frame, if there is one. It waits in the line where the provider
    /// has no room.
    pub(crate) fn post_frame(&mut self) {
        let Some(frames) = &mut self.peer.outbound.frames else {
            return;
        };
        let Some(open) = frames.open.take() else {
            return;
        };
        let desc = frames.desc();
        let buffer = open.buffer.freeze(open.at);
        let mut iov = IovList::new();
        iov.push(buffer.as_ptr(), buffer.len(), desc);
        let scope = self.peer.scoped.scope();
        if let Some(op) = self.outbound.posted.data(open.context) {
            // SAFETY: the connection holds the registration of the frames' buffers until nothing
            // that uses them is posted (`PeerFrames::desc`), and so does the endpoint where posts
            // outlive connections (`FrameBuffers::_shared_desc`).
            op.payload = unsafe { LeasedPayload::new(buffer.into(), Leases::elsewhere(scope)) };
        }
        let message = (open.context, Some(open.data));
        let (line, mut way) = self.way();
        line.messages.post_or_wait(&mut way, message, iov, false);
        self.on_posted();
    }
}

impl<L: Link, E: HubEvent> Hub<L, E> {
    /// Posts what was packed, on all connections.
    pub(crate) fn flush(&mut self) {
        let Some(frames) = &mut self.outbound.frames else {
            return;
        };
        let open = frames.take_open();
        for &id in &open {
            if let Some(mut sender) = self.sender(id) {
                sender.post_frame();
            }
        }
        if let Some(frames) = &mut self.outbound.frames {
            frames.put_back(open);
        }
        self.wait.set_unsent(false);
    }
}

impl DataOp {
    /// A frame without a message.
    fn frame(
        (connection, scope): (ConnectionId, Scope),
        sequence: u64,
        posted: Option<Instant>,
        packed: Box<PackedMessages>,
    ) -> Self {
        Self {
            connection,
            sequence,
            posted,
            packed: Some(packed),
            ..Self::empty(0, scope)
        }
    }
}
