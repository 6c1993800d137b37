//! The small registered buffers that control messages are sent from and received into, and the
//! registrations that a connection needs of its own.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::buffer::{BufferMut, SharedBufferConfig, SharedBufferManager};
use crate::endpoint::event::Level;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::rdm_hello::HELLO_MESSAGE_MAX;
use crate::endpoint::link::{Link, PostRefused, SendPost};
use crate::errno::FabricErrno;
use crate::in_flight::InFlight;
use crate::memory::{Region, Registrar, Scope};
use crate::protocol::wire::{self, ControlBody, ControlKind, HELLO_LEN};

/// Control messages of ours that may be on the way at once, for one connection.
pub(crate) const CONTROL_SENDS: u32 = 16;

/// How long a control message that the provider would not take waits before it is offered again.
pub(crate) const CONTROL_RETRY: Duration = Duration::from_millis(1);

/// How long a sleeper waits before it looks at a closed gate again: nobody tells it that a copy or
/// an event is done. A copy of 1 MiB takes about as long; shorter would cost more looks than time.
pub(crate) const GATE_RETRY: Duration = Duration::from_micros(50);

/// A pool of control buffers.
#[derive(Debug)]
pub(crate) struct ControlBuffers {
    pool: SharedBufferManager,
}

impl ControlBuffers {
    /// So many of them, to send from: each has room for a body, and no more, for a listener has
    /// many.
    pub(crate) fn new(buffers: u32) -> Result<Self, Error> {
        let config = SharedBufferConfig {
            slots: Some(buffers),
            alignment: 16,
            ..SharedBufferConfig::new(HELLO_LEN)
        };
        let region = Region::host(buffers as usize * HELLO_LEN).build()?;
        Ok(Self {
            pool: SharedBufferManager::new(region, config)?,
        })
    }

    /// Control buffers out of a pool that has other users, too.
    pub(crate) fn of(pool: &SharedBufferManager) -> Self {
        Self { pool: pool.clone() }
    }

    /// Makes `buffers` buffers, each with room for a hello that says where it comes from.
    pub(crate) fn for_hellos(buffers: u32) -> Result<Self, Error> {
        Ok(Self {
            pool: SharedBufferManager::allocate(buffers, HELLO_MESSAGE_MAX)?,
        })
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        self.pool.region()
    }

    /// A buffer for one control message, if one is free.
    pub(crate) fn take(&self) -> Option<BufferMut> {
        self.pool.try_acquire()
    }
}

/// Posts a control message of its own buffer; `op` makes the operation that keeps the buffer. None
/// free: as if the provider's queue were full.
pub(crate) fn post_control<L: Link, T>(
    link: &mut L,
    conn: &L::Conn,
    in_flight: &mut InFlight<T>,
    (buffers, desc): (&ControlBuffers, &HeldDescriptor),
    (cq_data, body): (u32, &ControlBody),
    op: impl FnOnce(ControlKind, BufferMut) -> T,
) -> Result<(), PostRefused> {
    let full = || PostRefused::Errno(FabricErrno::new(libc::ENOBUFS));
    let mut buffer = buffers.take().ok_or(PostRefused::Again)?;
    let kind = wire::split_cq_data(cq_data).0;
    let bytes = body.as_slice();
    let mut len = bytes.len();
    buffer[..len].copy_from_slice(bytes);
    if kind == ControlKind::HELLO {
        let tail = link.hello_tail();
        let room = buffer.get_mut(len..len + tail.len()).ok_or_else(full)?;
        room.copy_from_slice(tail);
        len += tail.len();
    }
    let mut iov = IovList::new();
    iov.push(buffer.as_ptr(), len, desc.desc());
    let context = in_flight.begin(op(kind, buffer)).map_err(|_| full())?;
    let data = Some(u64::from(cq_data));
    let post = SendPost::plain(iov.iov(), iov.desc(), context, data, Level::Sent);
    // SAFETY: the slab owns the buffer until its completion was read or the endpoint was closed.
    unsafe { link.post_send(conn, &post) }.inspect_err(|_| drop(in_flight.abort(context)))
}

/// A region's descriptor, held: the region stays registered in this scope until this is dropped.
pub(crate) struct HeldDescriptor {
    region: Arc<Region>,
    scope: Scope,
    desc: *mut c_void,
    held: bool,
}

// SAFETY: `desc` is an opaque value of the provider, which is opened with FI_THREAD_SAFE; we never
// dereference it.
unsafe impl Send for HeldDescriptor {}

// SAFETY: as above; a shared reference only reads it.
unsafe impl Sync for HeldDescriptor {}

impl HeldDescriptor {
    /// Registers the region, if it is not yet, and holds its descriptor.
    pub(crate) fn new(region: &Arc<Region>, registrar: &dyn Registrar) -> Result<Self, Error> {
        region.register_with(registrar)?;
        let closing = crate::error::RegisterError::Closing;
        Ok(Self::lease(region, registrar.scope()).ok_or(closing)?)
    }

    /// Holds the descriptor of a region that is registered there.
    pub(crate) fn lease(region: &Arc<Region>, scope: Scope) -> Option<Self> {
        let desc = region.lease(scope)?;
        Some(Self {
            region: Arc::clone(region),
            scope,
            desc,
            held: true,
        })
    }

    /// Whether it is this region's, in this scope.
    #[inline]
    pub(crate) fn is_of(&self, region: &Arc<Region>, scope: Scope) -> bool {
        Arc::ptr_eq(&self.region, region) && self.scope == scope
    }

    pub(crate) fn desc(&self) -> *mut c_void {
        self.desc
    }

    pub(crate) fn scope(&self) -> Scope {
        self.scope
    }

    /// Lets go of the registration before the drop does: nothing that uses the descriptor is
    /// posted, or will be.
    pub(crate) fn release(&mut self) {
        if std::mem::take(&mut self.held) {
            // SAFETY: taken once, in `lease`; `held` is false from here on.
            unsafe { self.region.release(self.scope) };
        }
    }

    /// Holds the registration for ever: the provider may still use it.
    pub(crate) fn leak(&mut self) {
        if std::mem::take(&mut self.held) {
            std::mem::forget(Arc::clone(&self.region));
        }
    }
}

impl Drop for HeldDescriptor {
    fn drop(&mut self) {
        self.release();
    }
}

impl fmt::Debug for HeldDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldDescriptor")
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}
