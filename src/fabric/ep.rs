//! `Ep`: one endpoint, connected or with an address vector (`fi_endpoint.3`, `fi_cm.3`,
//! `fi_msg.3`).

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use libfabric_sys as sys;

use super::av::{Av, FiAddr};
use super::device_memory;
use super::domain::Domain;
use super::handle;
use super::info::{Info, ProviderAddress, read_address, read_provider_address};
use super::opened_ep::{OpenedEp, connectable};
use super::queue::{Cq, Eq};
use super::shm::new_name;
use super::unheard::Unheard;
use crate::Error;
use crate::errno::FabricErrno;
use crate::fabric::{Level, PeerAddr, PostRefused, Provider, RmaPost, SendPost};
use crate::memory::Participant;

/// The first library with `FI_GET_FD`.
pub(super) const GET_FD_SINCE: u32 = sys::fi_version_make(2, 2);

/// An active endpoint, bound and enabled. Its queues and its domain stay open as long as it is.
pub(crate) struct Ep {
    raw: NonNull<sys::fid_ep>,
    cq: Arc<Cq>,
    /// Of a connected endpoint.
    _eq: Option<Arc<Eq>>,
    /// Of one that reaches its peers by number.
    _av: Option<Arc<Av>>,
    /// Its peers may use the domain's keys as long as it is open.
    participant: Option<Participant>,
    _domain: Arc<Domain>,
}

// SAFETY: the domain is opened with FI_THREAD_SAFE (`builder::hints`), so any thread may call into
// it.
unsafe impl Send for Ep {}
// SAFETY: as above, and at the same time; all else that it has is `Sync`.
unsafe impl Sync for Ep {}

impl Ep {
    /// Makes a connected endpoint (`FI_EP_MSG`) of one that was opened: binds and enables it.
    pub(crate) fn connected(opened: OpenedEp, cq: &Arc<Cq>, eq: &Arc<Eq>) -> Result<Self, Error> {
        let (raw, domain) = opened.into_parts();
        let ep = Self {
            raw,
            cq: Arc::clone(cq),
            _eq: Some(Arc::clone(eq)),
            _av: None,
            participant: Some(domain.ledger().join()),
            _domain: domain,
        };
        cq.on_bound();
        ep.bind("fi_ep_bind(eq)", eq.fid(), 0)?;
        ep.bind("fi_ep_bind(cq)", cq.fid(), sys::FI_TRANSMIT | sys::FI_RECV)?;
        device_memory::set_options(&ep._domain, &ep)?;
        ep.enable()?;
        Ok(ep)
    }

    /// The same for one that connects to a peer.
    pub(crate) fn open_active(
        domain: &Arc<Domain>,
        info: &mut Info,
        peer: &PeerAddr,
        sizes: (usize, usize),
        (cq, eq): (&Arc<Cq>, &Arc<Eq>),
    ) -> Result<Self, Error> {
        Self::connected(OpenedEp::active(domain, info, peer, sizes)?, cq, eq)
    }

    /// The same for the connection request that the info came with.
    pub(crate) fn open_passive(
        domain: &Arc<Domain>,
        request: &mut Info,
        sizes: (usize, usize),
        (cq, eq): (&Arc<Cq>, &Arc<Eq>),
    ) -> Result<Self, Error> {
        Self::connected(OpenedEp::sized(domain, request, sizes)?, cq, eq)
    }

    /// The same for an endpoint that is not connected (`FI_EP_RDM`): it sends to any peer of the
    /// address vector, and receives from everybody. Where endpoints have names, it gets one that no
    /// other has.
    pub(crate) fn open_rdm(
        domain: &Arc<Domain>,
        info: &mut Info,
        sizes: (usize, usize),
        cq: &Arc<Cq>,
        av: &Arc<Av>,
    ) -> Result<Self, Error> {
        if let Some(scheme) = domain.fabric().provider().names {
            info.set_source_name(&new_name(scheme)?)?;
        }
        let (raw, domain) = OpenedEp::sized(domain, info, sizes)?.into_parts();
        let ep = Self {
            raw,
            cq: Arc::clone(cq),
            _eq: None,
            _av: Some(Arc::clone(av)),
            participant: Some(domain.ledger().join()),
            _domain: domain,
        };
        cq.on_bound();
        ep.bind("fi_ep_bind(av)", av.fid(), 0)?;
        ep.bind("fi_ep_bind(cq)", cq.fid(), sys::FI_TRANSMIT | sys::FI_RECV)?;
        device_memory::set_options(&ep._domain, &ep)?;
        ep.enable()?;
        Ok(ep)
    }

    /// Binds a queue or an address vector, which `self` keeps open.
    fn bind(&self, call: &'static str, fid: *mut sys::fid, flags: u64) -> Result<(), Error> {
        // SAFETY: both are open, and `self` keeps the other open: its callers pass what it holds.
        check(call, unsafe { sys::fi_ep_bind(self.as_ptr(), fid, flags) })
            .map_err(|error| self._domain.explain_refused(error))
    }

    fn enable(&self) -> Result<(), Error> {
        // SAFETY: the endpoint is open and bound.
        check("fi_enable", unsafe { sys::fi_enable(self.as_ptr()) })
            .map_err(|error| explain_enable(self._domain.fabric().provider(), error))
    }

    /// Sets an option of an `int` or a `bool`; what the provider answers, which may not know it.
    pub(super) fn set_option<T>(&self, option: i32, value: T) -> i32 {
        // SAFETY: the endpoint is open; the value is read during the call, and its length goes with
        // it.
        unsafe {
            sys::fi_setopt(
                self.as_ptr().cast(),
                sys::FI_OPT_ENDPOINT,
                option,
                (&raw const value).cast(),
                size_of::<T>(),
            )
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::fid_ep {
        self.raw.as_ptr()
    }

    /// What it has passed of the domain's epochs.
    pub(crate) fn participant(&self) -> Option<&Participant> {
        self.participant.as_ref()
    }

    /// Starts to connect. Once in an endpoint's life.
    pub(crate) fn connect(&self, peer: &PeerAddr, data: &[u8]) -> Result<(), Error> {
        let address = ProviderAddress::socket(connectable(peer)?);
        // SAFETY: the endpoint is open; the address and the data outlive the call, which copies
        // them.
        let rc = unsafe {
            sys::fi_connect(
                self.as_ptr(),
                address.as_ptr().cast(),
                data.as_ptr().cast(),
                data.len(),
            )
        };
        check("fi_connect", rc)
    }

    /// Accepts the request that the endpoint was made from.
    pub(crate) fn accept(&self, data: &[u8]) -> Result<(), Error> {
        // SAFETY: the endpoint is open; the data outlives the call, which copies it. Its length is
        // bounded by `CM_DATA_MAX`, far below what makes a provider write past its buffer.
        let rc = unsafe { sys::fi_accept(self.as_ptr(), data.as_ptr().cast(), data.len()) };
        check("fi_accept", rc)
    }

    /// The local address, if the provider tells.
    pub(crate) fn local(&self) -> Option<PeerAddr> {
        let mut room = [0u8; size_of::<libc::sockaddr_storage>()];
        let mut len = room.len();
        // SAFETY: the endpoint is open; the room has that length.
        let rc = unsafe {
            sys::fi_getname(self.as_ptr().cast(), room.as_mut_ptr().cast(), &raw mut len)
        };
        if rc != 0 {
            return None;
        }
        // SAFETY: `len`, bounded by the room, bytes were written.
        unsafe { read_address(room.as_ptr(), len.min(room.len())) }
    }

    /// The socket, where the library tells. It belongs to the endpoint.
    ///
    /// The command asks the library itself, and no struct depends on it: so it is gated on the
    /// library's own version, not on the negotiated one. An older library refuses it too, with a
    /// line in its log.
    pub(crate) fn socket(&self) -> Option<RawFd> {
        if self._domain.fabric().info().library().version() < GET_FD_SINCE {
            return None;
        }
        let mut fd: RawFd = -1;
        // SAFETY: the endpoint is open; the command writes one c_int.
        let rc =
            unsafe { sys::fi_control(self.as_ptr().cast(), sys::FI_GET_FD, (&raw mut fd).cast()) };
        (rc == 0 && fd >= 0).then_some(fd)
    }

    /// The peer's address, if the provider tells.
    pub(crate) fn peer(&self) -> Option<PeerAddr> {
        let mut room = [0u8; size_of::<libc::sockaddr_storage>()];
        let mut len = room.len();
        // SAFETY: the endpoint is open; the room has that length.
        let rc = unsafe { sys::fi_getpeer(self.as_ptr(), room.as_mut_ptr().cast(), &raw mut len) };
        if rc != 0 {
            return None;
        }
        // SAFETY: `len`, bounded by the room, bytes were written.
        unsafe { read_address(room.as_ptr(), len.min(room.len())) }
    }

    /// The endpoint's own address, in its provider's format.
    pub(crate) fn name(&self, format: u32) -> Option<PeerAddr> {
        let mut room = [0u8; 256];
        let mut len = room.len();
        // SAFETY: the endpoint is open; the room has that length.
        let rc = unsafe {
            sys::fi_getname(self.as_ptr().cast(), room.as_mut_ptr().cast(), &raw mut len)
        };
        if rc != 0 {
            return None;
        }
        // SAFETY: `len`, bounded by the room, bytes can be read.
        unsafe { read_provider_address(format, room.as_ptr(), len.min(room.len())) }
    }

    /// Sends a few bytes at once, copied by the provider, without a completion: nobody hears
    /// whether they arrived.
    pub(crate) fn inject(&self, peer: FiAddr, data: u32, bytes: &[u8]) -> Result<(), PostRefused> {
        let _guard = self._domain.fabric().keys().look();
        // SAFETY: the endpoint is open and not of a connected type; the bytes are copied before the
        // call returns.
        posted(unsafe {
            sys::fi_injectdata(
                self.as_ptr(),
                bytes.as_ptr().cast(),
                bytes.len(),
                u64::from(data),
                peer.get(),
            )
        })
    }

    /// Posts a send, to a peer of the address vector where there is one.
    ///
    /// # Safety
    ///
    /// * A connected endpoint is connected: providers crash on a send before that.
    /// * Each segment points to initialised memory that stays valid, registered and unwritten until
    ///   the completion of the context was read, or [`close`](Self::close) returned `Ok`.
    #[inline]
    pub(crate) unsafe fn send(&self, peer: FiAddr, post: &SendPost<'_>) -> Result<(), PostRefused> {
        let (msg_iov, desc, iov_count) = segments(post.iov, post.desc);
        let msg = sys::fi_msg {
            msg_iov,
            desc,
            iov_count,
            addr: peer.get(),
            context: post.context as *mut c_void,
            data: post.data.unwrap_or(0),
        };
        let mut flags = sys::FI_COMPLETION;
        if post.data.is_some() {
            flags |= sys::FI_REMOTE_CQ_DATA;
        }
        if post.level == Level::Delivered {
            flags |= sys::FI_DELIVERY_COMPLETE;
        }
        // With FI_COMPLETION: an injected send without one is lost in silence when its peer is.
        if post.inject {
            flags |= sys::FI_INJECT;
        }
        if post.more {
            flags |= sys::FI_MORE;
        }
        let _guard = self._domain.fabric().keys().look();
        // SAFETY: the caller's promises; `msg` and its arrays are read before the call returns.
        posted(unsafe { sys::fi_sendmsg(self.as_ptr(), &raw const msg, flags) })
    }

    /// Posts a receive.
    ///
    /// # Safety
    ///
    /// * `base` points to `len` bytes that stay valid, registered and untouched until the
    ///   completion of the context was read, or [`close`](Self::close) returned `Ok`.
    #[inline]
    pub(crate) unsafe fn receive(
        &self,
        base: *mut u8,
        len: usize,
        desc: *mut c_void,
        context: usize,
    ) -> Result<(), PostRefused> {
        let _guard = self._domain.fabric().keys().look();
        // SAFETY: the caller's promises.
        posted(unsafe {
            sys::fi_recv(
                self.as_ptr(),
                base.cast(),
                len,
                desc,
                FiAddr::UNSPECIFIED.get(),
                context as *mut c_void,
            )
        })
    }

    /// Posts a write to memory of the peer.
    ///
    /// # Safety
    ///
    /// * A connected endpoint is connected: providers crash on a write before that.
    /// * Each segment points to initialised memory that stays valid, registered and unwritten until
    ///   the completion of the context was read, or [`close`](Self::close) returned `Ok`.
    #[inline]
    pub(crate) unsafe fn write(&self, peer: FiAddr, post: &RmaPost<'_>) -> Result<(), PostRefused> {
        let mut flags = sys::FI_COMPLETION;
        if post.data.is_some() {
            flags |= sys::FI_REMOTE_CQ_DATA;
        }
        if post.level == Level::Delivered {
            flags |= sys::FI_DELIVERY_COMPLETE;
        }
        let remote = rma_iov(post);
        let msg = rma_msg(peer, post, &remote);
        let _guard = self._domain.fabric().keys().look();
        // SAFETY: the caller's promises; `msg` and its arrays are read before the call returns.
        posted(unsafe { sys::fi_writemsg(self.as_ptr(), &raw const msg, flags) })
    }

    /// Posts a read of memory of the peer.
    ///
    /// # Safety
    ///
    /// * A connected endpoint is connected: providers crash on a read before that.
    /// * Each segment points to memory that stays valid, registered and untouched until the
    ///   completion of the context was read, or [`close`](Self::close) returned `Ok`.
    #[inline]
    pub(crate) unsafe fn read(&self, peer: FiAddr, post: &RmaPost<'_>) -> Result<(), PostRefused> {
        let remote = rma_iov(post);
        let msg = rma_msg(peer, post, &remote);
        let _guard = self._domain.fabric().keys().look();
        // SAFETY: the caller's promises; `msg` and its arrays are read before the call returns.
        posted(unsafe { sys::fi_readmsg(self.as_ptr(), &raw const msg, sys::FI_COMPLETION) })
    }

    /// Closes the endpoint, whatever is in flight; afterwards the provider touches no buffer of it.
    pub(crate) fn close(self) -> Result<(), i32> {
        let mut this = ManuallyDrop::new(self);
        this.cut_off_unheard();
        this.cq.on_unbound();
        let guard = this._domain.fabric().keys().look();
        // SAFETY: open, owned, and never used again: `this` is not dropped as a whole.
        let closed =
            unsafe { handle::close("ep", this._domain.fabric().owner(), this.as_ptr().cast()) };
        drop(guard);
        if closed.is_ok() {
            // SAFETY: each parent is dropped once, here; when the close failed they are leaked on
            // purpose, because the provider still uses them.
            unsafe { this.drop_parents() };
        }
        closed
    }

    /// Before it is closed: nobody whom the provider has accepted may speak to it afterwards.
    fn cut_off_unheard(&self) {
        let fabric = self._domain.fabric();
        // In a child of the process that opened it, the sockets are the parent's.
        if self._av.is_none() || !fabric.provider().keeps_unheard || !fabric.owner().is_here() {
            return;
        }
        let name = self.name(fabric.info().addr_format());
        if let Some(unheard) = name.as_ref().and_then(Unheard::of) {
            unheard.cut_off(|| self.cq.progress());
        }
    }

    /// # Safety
    ///
    /// Once, and `self` is not used or dropped afterwards.
    unsafe fn drop_parents(&mut self) {
        // SAFETY: the caller's promise.
        unsafe { ptr::drop_in_place(&raw mut self.cq) };
        // SAFETY: the caller's promise.
        unsafe { ptr::drop_in_place(&raw mut self._eq) };
        // SAFETY: the caller's promise.
        unsafe { ptr::drop_in_place(&raw mut self._av) };
        // SAFETY: the caller's promise.
        unsafe { ptr::drop_in_place(&raw mut self.participant) };
        // SAFETY: the caller's promise.
        unsafe { ptr::drop_in_place(&raw mut self._domain) };
    }
}

impl Drop for Ep {
    fn drop(&mut self) {
        self.cut_off_unheard();
        self.cq.on_unbound();
        let _guard = self._domain.fabric().keys().look();
        // SAFETY: open and owned.
        let closed =
            unsafe { handle::close("ep", self._domain.fabric().owner(), self.as_ptr().cast()) };
        if closed.is_err() {
            // Its peer may use the domain's keys for ever.
            std::mem::forget(self.participant.take());
        }
    }
}

impl fmt::Debug for Ep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ep")
            .field("raw", &self.raw)
            .finish_non_exhaustive()
    }
}

/// Says what helps, where a provider makes queues of its own that are longer than the device has.
fn explain_enable(row: &Provider, error: Error) -> Error {
    match error {
        Error::Fabric { errno, .. }
            if row.queues.sized_by_universe
                && matches!(errno.get(), libc::EINVAL | libc::ENOMEM) =>
        {
            Error::Unsupported {
                provider: row.name.to_owned(),
                need: "could not make its own queues (fi_enable), which it makes for \
                       FI_UNIVERSE_SIZE peers, 256 where that is not set, and the device may have \
                       shorter ones: start the process with FI_UNIVERSE_SIZE=16, or as many as \
                       there are",
            }
        }
        other => other,
    }
}

/// The only segment of an operation that moves no byte. No address: nothing looks there.
static NOTHING: Segments = Segments([libc::iovec {
    iov_base: ptr::null_mut(),
    iov_len: 0,
}]);

struct Segments([libc::iovec; 1]);

// SAFETY: it is only read, and its address leads nowhere.
unsafe impl Sync for Segments {}

/// The segments of an operation and their descriptors, as the provider gets them. There is one at
/// least, although libfabric allows for none, and what has no byte has no descriptors: `verbs` and
/// `shm` read the first descriptor whenever there is an array, and `verbs` fills in the first
/// segment.
#[inline]
fn segments(
    iov: &[libc::iovec],
    desc: &[*mut c_void],
) -> (*const libc::iovec, *mut *mut c_void, usize) {
    debug_assert_eq!(iov.len(), desc.len());
    match iov {
        [] | [libc::iovec { iov_len: 0, .. }] => (NOTHING.0.as_ptr(), ptr::null_mut(), 1),
        _ => (iov.as_ptr(), desc.as_ptr().cast_mut(), iov.len()),
    }
}

fn rma_iov(post: &RmaPost<'_>) -> sys::fi_rma_iov {
    sys::fi_rma_iov {
        addr: post.remote.addr,
        len: post.remote.len,
        key: post.remote.key,
    }
}

fn rma_msg(peer: FiAddr, post: &RmaPost<'_>, remote: &sys::fi_rma_iov) -> sys::fi_msg_rma {
    let (msg_iov, desc, iov_count) = segments(post.iov, post.desc);
    sys::fi_msg_rma {
        msg_iov,
        desc,
        iov_count,
        addr: peer.get(),
        rma_iov: remote,
        rma_iov_count: 1,
        context: post.context as *mut c_void,
        data: post.data.unwrap_or(0),
    }
}

#[inline]
fn posted(rc: isize) -> Result<(), PostRefused> {
    match rc {
        0 => Ok(()),
        rc if rc == -(sys::FI_EAGAIN as isize) => Err(PostRefused::Again),
        rc => Err(PostRefused::Errno(FabricErrno::from_ssize(rc))),
    }
}

pub(super) fn check(call: &'static str, rc: i32) -> Result<(), Error> {
    if rc == 0 {
        Ok(())
    } else {
        Err(Error::fabric(call, rc))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::fabric::provider;

    #[test]
    fn a_provider_that_makes_its_own_queues_is_said_to() {
        let refused = |name, errno| {
            let row = provider(name).unwrap();
            explain_enable(row, Error::fabric("fi_enable", errno)).to_string()
        };
        let text = refused("verbs;ofi_rxm", libc::EINVAL);
        assert!(text.contains("FI_UNIVERSE_SIZE=16"), "{text}");
        for (name, errno) in [
            ("verbs", libc::EINVAL),
            ("tcp;ofi_rxm", libc::EINVAL),
            ("verbs;ofi_rxm", libc::EACCES),
        ] {
            let text = refused(name, errno);
            assert!(
                text.starts_with("fi_enable: ") && !text.contains("FI_UNIVERSE_SIZE"),
                "{text}"
            );
        }
    }

    #[test]
    fn what_has_no_byte_is_one_segment_without_descriptors() {
        let (mut byte, mut desc) = (7u8, 8u8);
        let full = libc::iovec {
            iov_base: (&raw mut byte).cast(),
            iov_len: 1,
        };
        let empty = libc::iovec { iov_len: 0, ..full };
        let descs = [(&raw mut desc).cast::<c_void>(); 2];
        for iov in [&[][..], &[empty]] {
            let (first, descriptors, count) = segments(iov, &descs[..iov.len()]);
            // SAFETY: there is one at least.
            assert_eq!((count, unsafe { (*first).iov_len }), (1, 0));
            assert!(descriptors.is_null());
        }
        for iov in [&[full][..], &[full, empty], &[empty, full]] {
            let (first, descriptors, count) = segments(iov, &descs[..iov.len()]);
            assert_eq!((first, count), (iov.as_ptr(), iov.len()));
            assert_eq!(descriptors.cast_const(), descs.as_ptr());
        }
    }
}
