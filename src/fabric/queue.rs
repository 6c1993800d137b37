//! `Cq` and `Eq`: the queues that completions and connection events come by (`fi_cq.3`, `fi_eq.3`).

#![allow(unsafe_code)]

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use libfabric_sys as sys;

use super::domain::Domain;
use super::handle;
use super::info::Info;
use super::{Fabric, text_from};
use crate::Error;
use crate::errno::{CompletionError, FabricErrno};
use crate::fabric::{COMPLETION_BATCH, Completions, LinkCompletion, PEER_WROTE};

/// What a completion has that tells of a peer's write with immediate data.
const WRITTEN: u64 = sys::FI_REMOTE_WRITE | sys::FI_REMOTE_CQ_DATA;

/// A completion queue.
pub(crate) struct Cq {
    raw: NonNull<sys::fid_cq>,
    fd: Option<RawFd>,
    /// Endpoints bound to it and open.
    endpoints: AtomicUsize,
    domain: Arc<Domain>,
}

// SAFETY: the domain is opened with FI_THREAD_SAFE (`builder::hints`), so any thread may call into
// it.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    /// Opens a queue with room for `size` completions, with a descriptor to wait on where the
    /// provider has one.
    pub(crate) fn open(domain: &Arc<Domain>, size: usize) -> Result<Self, Error> {
        let wants_fd = domain.fabric().has_wait_fd();
        let mut attr = sys::fi_cq_attr {
            size,
            flags: 0,
            format: sys::FI_CQ_FORMAT_DATA,
            wait_obj: if wants_fd {
                sys::FI_WAIT_FD
            } else {
                sys::FI_WAIT_NONE
            },
            signaling_vector: 0,
            wait_cond: sys::FI_CQ_COND_NONE,
            wait_set: ptr::null_mut(),
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the domain is open, `attr` and `raw` are writable.
        let rc = unsafe {
            sys::fi_cq_open(
                domain.as_ptr(),
                &raw mut attr,
                &raw mut raw,
                ptr::null_mut(),
            )
        };
        let raw = NonNull::new(raw)
            .filter(|_| rc == 0)
            .ok_or_else(|| Error::fabric("fi_cq_open", rc))?;
        let mut cq = Self {
            raw,
            fd: None,
            endpoints: AtomicUsize::new(0),
            domain: Arc::clone(domain),
        };
        if wants_fd {
            cq.fd = Some(wait_fd(cq.fid())?);
            domain.count_wait_queue();
        }
        Ok(cq)
    }

    pub(crate) fn fid(&self) -> *mut sys::fid {
        self.raw.as_ptr().cast()
    }

    pub(crate) fn fd(&self) -> Option<RawFd> {
        self.fd
    }

    /// Drives progress and reads what completed. An error is the queue's own: it overran or broke.
    pub(crate) fn read(&self, out: &mut Completions) -> Result<usize, Error> {
        let mut entries =
            [const { MaybeUninit::<sys::fi_cq_data_entry>::uninit() }; COMPLETION_BATCH];
        let guard = self.domain.fabric().keys().look();
        // SAFETY: the queue is open and of this format; the array has room for so many entries.
        let n = unsafe {
            sys::fi_cq_read(
                self.raw.as_ptr(),
                entries.as_mut_ptr().cast(),
                COMPLETION_BATCH,
            )
        };
        drop(guard);
        if n == -(sys::FI_EAGAIN as isize) {
            return Ok(0);
        }
        if n == -(sys::FI_EAVAIL as isize) {
            return self.read_error(out);
        }
        let Ok(n) = usize::try_from(n) else {
            return Err(Error::fabric("fi_cq_read", n as i64));
        };
        // `take`: a count is a foreign number.
        out.extend(entries.iter().take(n).map(|entry| {
            // SAFETY: the library wrote the first `n` entries.
            let entry = unsafe { entry.assume_init() };
            let context = if entry.flags & WRITTEN == WRITTEN {
                PEER_WROTE
            } else {
                entry.op_context as usize
            };
            LinkCompletion {
                context,
                len: entry.len,
                data: (entry.flags & sys::FI_REMOTE_CQ_DATA != 0).then_some(entry.data),
                error: None,
            }
        }));
        Ok(n)
    }

    /// Drives progress, and leaves what completed where it is.
    pub(super) fn progress(&self) {
        let _guard = self.domain.fabric().keys().look();
        // SAFETY: the queue is open; no entry is asked for, so none is written.
        unsafe { sys::fi_cq_read(self.raw.as_ptr(), ptr::null_mut(), 0) };
    }

    /// Reads one failed completion (the next read finds the next one).
    fn read_error(&self, out: &mut Completions) -> Result<usize, Error> {
        let mut entry = sys::CqErrEntryBuf::zeroed();
        let mut data = [0u8; 256];
        entry.entry.err_data = data.as_mut_ptr().cast();
        entry.entry.err_data_size = data.len();
        // SAFETY: the queue is open; the entry has room for every version, and names room for its
        // data.
        let n = unsafe { sys::fi_cq_readerr(self.raw.as_ptr(), entry.as_mut_ptr(), 0) };
        if n == -(sys::FI_EAGAIN as isize) {
            return Ok(0);
        }
        if n < 0 {
            return Err(Error::fabric("fi_cq_readerr", n as i64));
        }
        let entry = entry.entry;
        if entry.err == sys::FI_EOVERRUN {
            return Err(Error::fabric("fi_cq_read", sys::FI_EOVERRUN));
        }
        let provider_message = self.describe(&entry);
        out.push(LinkCompletion {
            context: entry.op_context as usize,
            len: 0,
            data: None,
            error: Some(Box::new(CompletionError {
                errno: FabricErrno::new(entry.err),
                provider_errno: entry.prov_errno,
                provider_message,
                limit_bytes: None,
            })),
        });
        Ok(1)
    }

    /// The provider's words for an error. Without an endpoint there are none: layered providers ask
    /// the first endpoint of the queue, and crash where there is none any more (`ofi_rxm`).
    fn describe(&self, entry: &sys::fi_cq_err_entry) -> String {
        if self.endpoints.load(Ordering::Relaxed) == 0 {
            return String::new();
        }
        let mut text = [0u8; 128];
        // SAFETY: the queue is open, with an endpoint; `err_data` is what the entry came with; the
        // buffer has that length.
        let message = unsafe {
            sys::fi_cq_strerror(
                self.raw.as_ptr(),
                entry.prov_errno,
                entry.err_data,
                text.as_mut_ptr().cast(),
                text.len(),
            )
        };
        text_from(message)
    }

    /// Whether a thread may sleep on the descriptors of the queue and of its endpoints' event queue
    /// (`fi_trywait`): if not, there is something to poll for.
    ///
    /// # Safety
    ///
    /// Where the provider looks into closed endpoints (`ProviderQueues::waits_on_closed`), no
    /// endpoint of this queue was closed, and none is before the call has returned.
    pub(crate) unsafe fn try_wait(&self, events: Option<&Eq>) -> Result<bool, Error> {
        let fabric = self.domain.fabric();
        let mut fids = [self.fid(), events.map_or(ptr::null_mut(), Eq::fid)];
        let count = 1 + i32::from(events.is_some());
        let _guard = fabric.keys().look();
        // SAFETY: the fabric and the queues are open, and `fids` has so many entries. What the
        // provider looks into is open, too: the caller's promise.
        let rc = unsafe { sys::fi_trywait(fabric.as_ptr(), fids.as_mut_ptr(), count) };
        match rc {
            0 => Ok(true),
            rc if rc == -sys::FI_EAGAIN => Ok(false),
            rc => Err(Error::fabric("fi_trywait", rc)),
        }
    }

    /// An endpoint was bound.
    pub(super) fn on_bound(&self) {
        // A count only: whoever reads the queue is whoever opens and closes its endpoints.
        self.endpoints.fetch_add(1, Ordering::Relaxed);
    }

    /// An endpoint is about to be closed.
    pub(super) fn on_unbound(&self) {
        self.endpoints.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: the endpoints bound to it hold it by `Arc`, so none is left; the domain is still
        // held.
        let _ = unsafe { handle::close("cq", self.domain.fabric().owner(), self.fid()) };
        if self.fd.is_some() {
            self.domain.count_wait_queue_closed();
        }
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq")
            .field("fd", &self.fd)
            .field("domain", &self.domain)
            .finish_non_exhaustive()
    }
}

/// An event of an event queue, its private data copied.
#[derive(Debug)]
pub(crate) struct RawEvent {
    pub(crate) kind: u32,
    /// The object it is about, as a number: never dereferenced, it may be closed.
    pub(crate) fid: usize,
    /// With a connection request: its info, to be freed.
    pub(crate) info: Option<Info>,
    /// Positive for a failure.
    pub(crate) errno: i32,
    pub(crate) data: crate::fabric::CmData,
}

/// An event queue.
pub(crate) struct Eq {
    raw: NonNull<sys::fid_eq>,
    fd: Option<RawFd>,
    fabric: Arc<Fabric>,
}

// SAFETY: event queues are thread safe at the threading level that the fabric was found with
// (FI_THREAD_SAFE).
unsafe impl Send for Eq {}
// SAFETY: as above.
unsafe impl Sync for Eq {}

/// Larger than any private data that a provider delivers: a shorter buffer would lose the rest
/// without a word.
const EVENT_BYTES: usize = 2048;

#[repr(C, align(8))]
struct EventBuffer([u8; EVENT_BYTES]);

impl Eq {
    pub(crate) fn open(fabric: &Arc<Fabric>) -> Result<Self, Error> {
        let wants_fd = fabric.has_wait_fd();
        let mut attr = sys::fi_eq_attr {
            size: 0,
            flags: 0,
            wait_obj: if wants_fd {
                sys::FI_WAIT_FD
            } else {
                sys::FI_WAIT_NONE
            },
            signaling_vector: 0,
            wait_set: ptr::null_mut(),
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the fabric is open, `attr` and `raw` are writable.
        let rc = unsafe {
            sys::fi_eq_open(
                fabric.as_ptr(),
                &raw mut attr,
                &raw mut raw,
                ptr::null_mut(),
            )
        };
        let raw = NonNull::new(raw)
            .filter(|_| rc == 0)
            .ok_or_else(|| Error::fabric("fi_eq_open", rc))?;
        let mut eq = Self {
            raw,
            fd: None,
            fabric: Arc::clone(fabric),
        };
        if wants_fd {
            eq.fd = Some(wait_fd(eq.fid())?);
        }
        Ok(eq)
    }

    pub(crate) fn fid(&self) -> *mut sys::fid {
        self.raw.as_ptr().cast()
    }

    pub(crate) fn fd(&self) -> Option<RawFd> {
        self.fd
    }

    /// Drives connection management and reads the next event.
    pub(crate) fn read(&self) -> Result<Option<RawEvent>, Error> {
        let mut buffer = EventBuffer([0; EVENT_BYTES]);
        let mut kind = 0;
        let guard = self.fabric.keys().look();
        // SAFETY: the queue is open; the buffer has that length and alignment.
        let n = unsafe {
            sys::fi_eq_read(
                self.raw.as_ptr(),
                &raw mut kind,
                (&raw mut buffer).cast(),
                EVENT_BYTES,
                0,
            )
        };
        drop(guard);
        if n == -(sys::FI_EAGAIN as isize) {
            return Ok(None);
        }
        if n == -(sys::FI_EAVAIL as isize) {
            return self.read_error();
        }
        let head = size_of::<sys::fi_eq_cm_entry>();
        let Ok(n) = usize::try_from(n) else {
            return Err(Error::fabric("fi_eq_read", n as i64));
        };
        if n < head {
            return Ok(None);
        }
        // SAFETY: the buffer is aligned, zeroed where not written, and longer than the struct.
        let entry = unsafe { (&raw const buffer).cast::<sys::fi_eq_cm_entry>().read() };
        let data = &buffer.0[head..n.min(EVENT_BYTES)];
        Ok(Some(RawEvent {
            kind,
            fid: entry.fid as usize,
            info: self.owned_info(kind, entry.info),
            errno: 0,
            data: crate::fabric::CmData::new(data),
        }))
    }

    /// A connection request's info is ours to free.
    fn owned_info(&self, kind: u32, info: *mut sys::fi_info) -> Option<Info> {
        let info = if kind == sys::FI_CONNREQ {
            info
        } else {
            ptr::null_mut()
        };
        Info::from_raw(self.fabric.info().library(), info)
    }

    fn read_error(&self) -> Result<Option<RawEvent>, Error> {
        let mut entry = sys::EqErrEntryBuf::zeroed();
        let mut data = [0u8; EVENT_BYTES];
        entry.entry.err_data = data.as_mut_ptr().cast();
        entry.entry.err_data_size = data.len();
        // SAFETY: the queue is open; the entry has room for every version, and names room for its
        // data.
        let n = unsafe { sys::fi_eq_readerr(self.raw.as_ptr(), entry.as_mut_ptr(), 0) };
        if n == -(sys::FI_EAGAIN as isize) {
            return Ok(None);
        }
        if n < 0 {
            return Err(Error::fabric("fi_eq_readerr", n as i64));
        }
        let entry = entry.entry;
        // Data that did not go into our buffer is the provider's, and valid to the next read only:
        // not looked at.
        let ours = ptr::eq(entry.err_data.cast(), data.as_ptr());
        let len = if ours {
            entry.err_data_size.min(EVENT_BYTES)
        } else {
            0
        };
        Ok(Some(RawEvent {
            kind: 0,
            fid: entry.fid as usize,
            info: None,
            errno: entry.err.saturating_abs().max(1),
            data: crate::fabric::CmData::new(&data[..len]),
        }))
    }
}

impl Drop for Eq {
    fn drop(&mut self) {
        // SAFETY: the endpoints bound to it hold it by `Arc`, so none is left; the fabric is still
        // held.
        let _ = unsafe { handle::close("eq", self.fabric.owner(), self.fid()) };
    }
}

impl fmt::Debug for Eq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Eq")
            .field("fd", &self.fd)
            .field("fabric", &self.fabric)
            .finish_non_exhaustive()
    }
}

/// The descriptor of a queue that was opened with FI_WAIT_FD. It belongs to the queue.
fn wait_fd(fid: *mut sys::fid) -> Result<RawFd, Error> {
    let mut fd = -1;
    // SAFETY: the queue is open and has this wait object; `fd` is writable.
    let rc = unsafe { sys::fi_getwait_fd(fid, &raw mut fd) };
    if rc == 0 && fd >= 0 {
        Ok(fd)
    } else {
        Err(Error::fabric("fi_control(FI_GETWAIT)", rc))
    }
}
