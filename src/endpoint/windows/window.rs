//! `LocalWindow` and `RemoteWindow`: memory that a peer may read or write by itself, seen from its
//! owner and from the peer.
//!
//! ```text
//!  owner                                                             peer
//!  expose(memory, rights) ─► LocalWindow ─ descriptor, in a message ─► open_window ─► RemoteWindow
//!     memory is the endpoint's                                           write, read ◄───┘
//!  revoke, or drop ─────────────── Revoke ───────────────────────────► no new operation;
//!  the registration is closed ◄─── RevokeAck ───────────────────────── those in flight are over
//! ```
//!
//! The memory comes back, or is freed, when no peer of the domain can have anything under way with
//! its key.
//!
//! The memory belongs to the endpoint from `expose` until nobody can reach it. Closing a
//! registration fences nothing, providers go on writing, and a key is good over every connection of
//! the domain: `AccessLedger` says when it is over.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::buffer::{Buffer, BufferMut, DeviceBuffer, Payload, RegionSlice};
use crate::endpoint::link::wait::EndpointWait;
use crate::endpoint::windows::destination::Destination;
use crate::endpoint::windows::volatile_buffer::VolatileBuffer;
use crate::errno::CompletionError;
use crate::id::ConnectionId;
use crate::memory::{Access, DeviceRange};
use crate::protocol::wire::{WindowDescriptor, WindowId};

/// The memory behind a window. It moves into the endpoint and comes back when no peer can reach it
/// any more.
///
/// A slice of a GPU's memory can be exposed where the provider reaches that by itself; see
/// [`WindowError::NotDirect`](crate::endpoint::WindowError::NotDirect).
///
/// While it is exposed nobody has a reference to its bytes: a [`RegionSlice`] gives addresses only,
/// a [`BufferMut`] is the endpoint's, and a [`Buffer`] can only be exposed for reading.
pub struct WindowMemory(Memory);

enum Memory {
    Slice(RegionSlice),
    Unique(BufferMut),
    Shared(Buffer),
    Device(DeviceBuffer),
    Volatile(Arc<VolatileBuffer>),
}

impl WindowMemory {
    /// The length in bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Memory::Slice(slice) => slice.len(),
            Memory::Unique(buffer) => buffer.len(),
            Memory::Shared(buffer) => buffer.len(),
            Memory::Device(buffer) => buffer.len(),
            Memory::Volatile(buffer) => buffer.len(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The slice of a region, if it is one.
    ///
    /// # Errors
    /// Gives the memory back when it is something else.
    pub fn into_slice(self) -> Result<RegionSlice, Self> {
        match self.0 {
            Memory::Slice(slice) => Ok(slice),
            other => Err(Self(other)),
        }
    }

    /// The writable buffer, if it is one: its bytes are what the peer wrote.
    ///
    /// # Errors
    /// Gives the memory back when it is something else.
    pub fn into_buffer_mut(self) -> Result<BufferMut, Self> {
        match self.0 {
            Memory::Unique(buffer) => Ok(buffer),
            other => Err(Self(other)),
        }
    }

    /// The frozen buffer, if it is one.
    ///
    /// # Errors
    /// Gives the memory back when it is something else.
    pub fn into_buffer(self) -> Result<Buffer, Self> {
        match self.0 {
            Memory::Shared(buffer) => Ok(buffer),
            other => Err(Self(other)),
        }
    }

    /// The buffer in a device's memory, if it is one.
    ///
    /// # Errors
    /// Gives the memory back when it is something else.
    pub fn into_device_buffer(self) -> Result<DeviceBuffer, Self> {
        match self.0 {
            Memory::Device(buffer) => Ok(buffer),
            other => Err(Self(other)),
        }
    }

    /// Whether nobody else has a reference to it.
    pub(crate) fn is_unique(&self) -> bool {
        matches!(self.0, Memory::Unique(_))
    }

    /// Whether others only read it.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.0, Memory::Shared(_))
    }

    /// What a peer may be allowed at all.
    pub(crate) fn allows(&self, access: Access) -> bool {
        match &self.0 {
            Memory::Slice(_) | Memory::Unique(_) | Memory::Device(_) => true,
            // Others read it.
            Memory::Shared(_) => !access.contains(Access::WRITE),
            // Whoever exposes it copies what comes.
            Memory::Volatile(_) => access == Access::WRITE,
        }
    }

    /// Where it lies, if that is a device's memory.
    pub(crate) fn device_range(&self) -> Option<DeviceRange> {
        match &self.0 {
            Memory::Slice(slice) => slice.region().device_part(slice.address(), slice.len()),
            Memory::Device(buffer) => buffer.range(),
            Memory::Unique(_) | Memory::Shared(_) | Memory::Volatile(_) => None,
        }
    }

    /// Its first byte.
    pub(crate) fn base(&mut self) -> Option<NonNull<u8>> {
        NonNull::new(match &mut self.0 {
            Memory::Slice(slice) => slice.as_ptr(),
            Memory::Unique(buffer) => buffer.as_mut_ptr(),
            Memory::Shared(buffer) => buffer.as_ptr().cast_mut(),
            Memory::Device(buffer) => buffer.as_ptr(),
            Memory::Volatile(buffer) => buffer.base().as_ptr(),
        })
    }
}

impl From<RegionSlice> for WindowMemory {
    fn from(slice: RegionSlice) -> Self {
        Self(Memory::Slice(slice))
    }
}

impl From<BufferMut> for WindowMemory {
    fn from(buffer: BufferMut) -> Self {
        Self(Memory::Unique(buffer))
    }
}

impl From<Buffer> for WindowMemory {
    fn from(buffer: Buffer) -> Self {
        Self(Memory::Shared(buffer))
    }
}

impl From<DeviceBuffer> for WindowMemory {
    fn from(buffer: DeviceBuffer) -> Self {
        Self(Memory::Device(buffer))
    }
}

impl From<Arc<VolatileBuffer>> for WindowMemory {
    fn from(buffer: Arc<VolatileBuffer>) -> Self {
        Self(Memory::Volatile(buffer))
    }
}

impl fmt::Debug for WindowMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WindowMemory")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// How an endpoint learns that handles of its windows were dropped, on whatever thread.
#[derive(Debug)]
pub(crate) struct DropSignal {
    is_set: AtomicBool,
    /// Weak: a handle must not keep the queues of a closed endpoint open.
    wait: Weak<EndpointWait>,
}

impl DropSignal {
    pub(crate) fn new(wait: &Arc<EndpointWait>) -> Self {
        Self {
            is_set: AtomicBool::new(false),
            wait: Arc::downgrade(wait),
        }
    }

    /// Whether a handle was dropped since the last call.
    pub(crate) fn take(&self) -> bool {
        // Acquire pairs with the Release of `set`: the flags that were set before are seen.
        self.is_set.load(Ordering::Relaxed) && self.is_set.swap(false, Ordering::Acquire)
    }

    fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        if let Some(wait) = self.wait.upgrade() {
            wait.wake();
        }
    }
}

/// Memory of this side that the peer of one connection may use by itself.
///
/// The memory is the endpoint's. [`revoke`](crate::endpoint::Windows::revoke) asks for it back, and
/// it comes with [`WindowEvent::Released`]. Dropping the handle asks the same of the peer, without
/// a deadline, and the memory is freed when the peer has confirmed, or when the connection is
/// closed; until then the endpoint keeps it.
pub struct LocalWindow {
    descriptor: WindowDescriptor,
    connection: ConnectionId,
    abandoned: Arc<AtomicBool>,
    drops: Arc<DropSignal>,
    /// The drop has nothing to say.
    settled: bool,
}

impl LocalWindow {
    pub(crate) fn new(
        descriptor: WindowDescriptor,
        connection: ConnectionId,
        abandoned: &Arc<AtomicBool>,
        drops: &Arc<DropSignal>,
    ) -> Self {
        Self {
            descriptor,
            connection,
            abandoned: Arc::clone(abandoned),
            drops: Arc::clone(drops),
            settled: false,
        }
    }

    /// Which window of the connection it is.
    pub fn id(&self) -> WindowId {
        self.descriptor.window
    }

    /// Whose peer may use it.
    pub fn connection(&self) -> ConnectionId {
        self.connection
    }

    /// What the peer has to know: send it the bytes in a message.
    pub fn descriptor(&self) -> WindowDescriptor {
        self.descriptor
    }

    /// The same endpoint's, not one of another endpoint with the same numbers.
    pub(crate) fn is_of(&self, drops: &Arc<DropSignal>) -> bool {
        Arc::ptr_eq(&self.drops, drops)
    }

    /// The endpoint knows already what becomes of the window.
    pub(crate) fn settle(mut self) {
        self.settled = true;
    }
}

impl Drop for LocalWindow {
    fn drop(&mut self) {
        if !self.settled {
            self.abandoned.store(true, Ordering::Relaxed);
            self.drops.set();
        }
    }
}

impl fmt::Debug for LocalWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalWindow")
            .field("connection", &self.connection)
            .field("descriptor", &self.descriptor)
            .finish_non_exhaustive()
    }
}

/// Memory of the peer that this side may use. A plain value; it is good as long as its connection,
/// and until the owner revokes it.
///
/// ```
/// use std::time::{Duration, Instant};
/// use fabricast::buffer::SharedBufferManager;
/// use fabricast::endpoint::{Access, ReceiveConfig, SendConfig, WindowDescriptor, WindowEvent};
/// use fabricast::{ConnectionEvent, Fabric, ReceiveEndpoint, ReceiveEvent};
/// use fabricast::{SendEndpointZeroCopy, SendEvent};
///
/// let domain = Fabric::builder().provider("tcp").node("127.0.0.1").open()?.open_domain()?;
/// let config = ReceiveConfig::default().connection(|c| c.max_connections(4).windows(8));
/// let mut owner = ReceiveEndpoint::listen(&domain, "127.0.0.1:0".parse()?, config)?;
/// let mut peer =
///     SendEndpointZeroCopy::connect(&domain, owner.local_addr(), SendConfig::default())?;
/// let pool = SharedBufferManager::allocate(8, 4096)?;
/// pool.region().register(&domain)?;
///
/// let (mut window, mut written, mut text) = (None, false, None);
/// let (mut heard, mut sent) = (Vec::new(), Vec::new());
/// while text.is_none() {
///     owner.poll(&mut heard)?;
///     peer.poll(&mut sent)?;
///     for event in heard.drain(..) {
///         match event {
///             // The owner lets the peer write to a buffer of its own. The application sends the
///             // descriptor's bytes to the peer.
///             ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_)) => {
///                 let buffer = pool.try_acquire().expect("8 are free");
///                 window = Some(owner.windows(connection).expose(buffer, Access::WRITE)?);
///             }
///             // The peer has confirmed that it does not use the window any more: the buffer is
///             // the owner's again.
///             ReceiveEvent::Window { event: WindowEvent::Released { memory, .. }, .. } => {
///                 let buffer = memory.into_buffer_mut().expect("what was exposed");
///                 text = Some(String::from_utf8_lossy(&buffer[10..20]).into_owned());
///             }
///             _ => {}
///         }
///     }
///     if let (Some(local), false, true) = (&window, written, peer.is_connected()) {
///         let descriptor = WindowDescriptor::parse(&local.descriptor().to_bytes())?;
///         let remote = peer.windows().open(&descriptor)?;
///         let mut buffer = pool.try_acquire().expect("7 are free");
///         buffer[..10].copy_from_slice(b"one-sided!");
///         peer.windows().write(buffer.freeze(10), remote.at(10), 1)?;
///         written = true;
///     }
///     for event in sent.drain(..) {
///         // The bytes are in the owner's memory: it takes the window back.
///         if let SendEvent::Window(WindowEvent::Written { key: 1, .. }) = event {
///             let until = Instant::now() + Duration::from_secs(5);
///             let window = window.take().expect("exposed");
///             owner.windows(window.connection()).revoke(window, until)?;
///         }
///     }
/// }
/// assert_eq!(text.as_deref(), Some("one-sided!"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteWindow {
    pub(crate) descriptor: WindowDescriptor,
    pub(crate) connection: ConnectionId,
}

impl RemoteWindow {
    /// Which window of the owner's it is.
    pub fn id(&self) -> WindowId {
        self.descriptor.window
    }

    /// By which connection it is reached.
    pub fn connection(&self) -> ConnectionId {
        self.connection
    }

    /// The length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a window has at least 1 byte")]
    pub fn len(&self) -> u64 {
        self.descriptor.len
    }

    /// What this side may do.
    pub fn access(&self) -> Access {
        self.descriptor.access
    }

    /// The place `offset` bytes into the window; checked when it is used.
    pub fn at(&self, offset: u64) -> WindowPlace<'_> {
        WindowPlace {
            window: self,
            offset,
        }
    }
}

/// A place in a [`RemoteWindow`], where an operation begins.
#[derive(Debug, Clone, Copy)]
pub struct WindowPlace<'a> {
    pub(crate) window: &'a RemoteWindow,
    pub(crate) offset: u64,
}

impl<'a> From<&'a RemoteWindow> for WindowPlace<'a> {
    /// Its start.
    fn from(window: &'a RemoteWindow) -> Self {
        window.at(0)
    }
}

/// What happened to windows, and to one-sided operations.
///
/// Each accepted operation has exactly one of the first four events, with its key and what was
/// given to it.
#[derive(Debug)]
#[non_exhaustive]
pub enum WindowEvent {
    /// A write is done. The bytes are in the peer's memory, unless the weaker level was asked for.
    Written {
        /// The key that was given to it.
        key: u64,
        /// The payload that was given to it.
        payload: Payload,
    },
    /// A write failed, or will never complete. Some of it may be in the peer's memory.
    WriteFailed {
        /// The key that was given to it.
        key: u64,
        /// The payload that was given to it; empty if the provider still has it: because its
        /// endpoint would not close, or because it serves other connections, too (FI_EP_RDM, at a
        /// listener). In the latter case it comes with `WriteReturned`.
        payload: Payload,
        /// Why.
        error: CompletionError,
    },
    /// A read is done: the bytes are in the destination.
    Read {
        /// The key that was given to it.
        key: u64,
        /// What was given to it, filled.
        into: Destination,
    },
    /// A read failed, or will never complete. The destination holds some of the bytes, or none.
    ReadFailed {
        /// The key that was given to it.
        key: u64,
        /// What was given to it; `None` if the provider still has it, as in `WriteFailed` (it comes
        /// with `ReadReturned`), or if the peer may fill it at any time (`shm`): then it is leaked.
        into: Option<Destination>,
        /// Why.
        error: CompletionError,
    },
    /// Somebody wrote to a window of this side, and says so with 32 bits of its own. What it wrote
    /// is in the window.
    ///
    /// That it was the peer of the window's connection is not proven: it was somebody who has a
    /// connection to this endpoint and knows the window's mark (24 random bits, which its peer was
    /// told) or guessed it. After 16 wrong guesses all connections that have windows are ended.
    PeerWrote {
        /// Which window.
        window: WindowId,
        /// The peer's 32 bits.
        data: u32,
    },
    /// The peer has revoked a window of its own: no operation on it is taken any more. What was
    /// posted still completes; what waits for an event or a copy, or behind such a one, fails at
    /// once.
    Revoked {
        /// Which of the peer's windows.
        window: WindowId,
    },
    /// What a failed write was given: the provider, which still had it when its connection ended,
    /// is done with it (FI_EP_RDM, at a listener). Not an outcome: that was told.
    WriteReturned {
        /// The key of the write.
        key: u64,
        /// Its payload.
        payload: Payload,
    },
    /// The same for a read.
    ReadReturned {
        /// The key of the read.
        key: u64,
        /// Its destination.
        into: Destination,
    },
    /// A window is over, and its memory does not come back before endpoints are closed, because
    /// nothing else ends what a peer may have under way (FI_EP_RDM, but for verbs). The endpoint
    /// keeps it, and it counts against
    /// [`ConnectionSettings::windows`](crate::endpoint::ConnectionSettings::windows). When the
    /// endpoint is closed, it comes with `Released`; where others of the same domain are open that
    /// stood then, the domain keeps it until these are closed, too, and then drops it: it is told
    /// once more by the close, at most.
    ///
    /// Elsewhere it comes from a `close` only, for what connections of the domain's other endpoints
    /// have not confirmed by then: the domain drops it when they have.
    Quarantined {
        /// Which window.
        window: WindowId,
    },
    /// Nobody can reach a window of this side any more: it was revoked, or its connection is
    /// closed. Its memory is back.
    ///
    /// A key is good over every connection of the domain, so all of them have confirmed that
    /// nothing is under way, or are closed: it comes when every endpoint of the domain was polled,
    /// or closed: one that nobody polls holds it up (see [`Domain`](crate::Domain)). A peer that
    /// does not answer in time loses its connection
    /// ([`fence_timeout`](crate::endpoint::ConnectionSettings::fence_timeout)).
    Released {
        /// Which window.
        window: WindowId,
        /// What was given to `expose`.
        memory: WindowMemory,
    },
}

impl WindowEvent {
    /// The key of the operation whose outcome it is, if it is one.
    pub fn outcome_of(&self) -> Option<u64> {
        match self {
            Self::Written { key, .. }
            | Self::WriteFailed { key, .. }
            | Self::Read { key, .. }
            | Self::ReadFailed { key, .. } => Some(*key),
            _ => None,
        }
    }
}
