//! `Pep`: a passive endpoint, which listens (`fi_passive_ep` of `fi_endpoint.3`, `fi_listen` of
//! `fi_cm.3`).

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use libfabric_sys as sys;

use super::address::AddrForm;
use super::ep::check;
use super::info::{Info, read_address};
use super::local_address::{check_local, find_local};
use super::queue::Eq;
use super::{Fabric, handle};
use crate::Error;
use crate::fabric::PeerAddr;

/// A listener.
pub(crate) struct Pep {
    raw: NonNull<sys::fid_pep>,
    local: PeerAddr,
    _eq: Arc<Eq>,
    _fabric: Arc<Fabric>,
}

// SAFETY: the provider was found with FI_THREAD_SAFE (`builder::hints`), so any thread may call
// into it.
unsafe impl Send for Pep {}
// SAFETY: as above.
unsafe impl Sync for Pep {}

impl Pep {
    /// Listens at an address of this machine; port 0 lets the system choose.
    pub(crate) fn listen(
        fabric: &Arc<Fabric>,
        addr: &PeerAddr,
        eq: &Arc<Eq>,
    ) -> Result<Self, Error> {
        let info = local_info(fabric, addr)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the fabric is open, the info is of the same library, `raw` is writable.
        let rc = unsafe {
            sys::fi_passive_ep(
                fabric.as_ptr(),
                info.as_ptr(),
                &raw mut raw,
                ptr::null_mut(),
            )
        };
        let raw = NonNull::new(raw)
            .filter(|_| rc == 0)
            .ok_or_else(|| in_use(Error::fabric("fi_passive_ep", rc), addr))?;
        let mut pep = Self {
            raw,
            local: *addr,
            _eq: Arc::clone(eq),
            _fabric: Arc::clone(fabric),
        };
        // SAFETY: both are open, and `pep` keeps the queue open.
        let rc = unsafe { sys::fi_pep_bind(pep.as_ptr(), eq.fid(), 0) };
        check("fi_pep_bind", rc)?;
        // SAFETY: the listener is open and bound.
        let rc = unsafe { sys::fi_listen(pep.as_ptr()) };
        check("fi_listen", rc).map_err(|error| in_use(error, addr))?;
        pep.local = pep.read_name()?;
        // Dropped, and closed, where it is not.
        check_local(addr, Some(pep.local))?;
        Ok(pep)
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::fid_pep {
        self.raw.as_ptr()
    }

    /// Where it listens, with the real port.
    pub(crate) fn local(&self) -> PeerAddr {
        self.local
    }

    fn read_name(&self) -> Result<PeerAddr, Error> {
        let mut room = [0u8; size_of::<libc::sockaddr_storage>()];
        let mut len = room.len();
        // SAFETY: the listener is open; the room has that length.
        let rc = unsafe {
            sys::fi_getname(self.as_ptr().cast(), room.as_mut_ptr().cast(), &raw mut len)
        };
        check("fi_getname", rc)?;
        // SAFETY: `len`, bounded by the room, bytes were written.
        let name = unsafe { read_address(room.as_ptr(), len.min(room.len())) };
        name.ok_or_else(|| Error::Address {
            address: self.local.to_string(),
            reason: "the provider names the listener in a form that is no IP address".to_owned(),
        })
    }

    /// Refuses a request, by the handle that came with it.
    pub(crate) fn reject(&self, handle: *mut sys::fid, data: &[u8]) {
        // SAFETY: the listener is open; the handle is of an unanswered request (`Request` owns it,
        // once). The data's length is bounded by `CM_DATA_MAX`, far below what makes a provider
        // write past its buffer.
        let rc = unsafe { sys::fi_reject(self.as_ptr(), handle, data.as_ptr().cast(), data.len()) };
        if rc != 0 {
            tracing::debug!(errno = rc, "fi_reject: the peer is gone already");
        }
    }
}

impl Drop for Pep {
    fn drop(&mut self) {
        // SAFETY: open and owned.
        let _ = unsafe { handle::close("pep", self._fabric.owner(), self.as_ptr().cast()) };
    }
}

impl fmt::Debug for Pep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pep")
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}

/// The fabric's info with another local address.
pub(crate) fn local_info(fabric: &Fabric, addr: &PeerAddr) -> Result<Info, Error> {
    let has_names = fabric.provider().names.is_some();
    let socket = match (addr.form(), addr.socket_addr()) {
        // The address that the fabric was found with names no port: the provider chooses one.
        (AddrForm::Any, _) => return fabric.info().duplicate(),
        (_, Some(socket)) if !has_names => socket,
        _ => {
            return Err(Error::Address {
                address: addr.to_string(),
                reason: "this provider names its listeners itself: listen at \"any\"".to_owned(),
            });
        }
    };
    let hints = fabric.info().duplicate()?;
    let mut hints = hints.without_addresses();
    hints.head_mut().handle = ptr::null_mut();
    find_local(&hints, socket)
}

/// Turns an address that could not be had into an error that names it.
pub(crate) fn in_use(error: Error, addr: &PeerAddr) -> Error {
    let Error::Fabric { errno, .. } = &error else {
        return error;
    };
    let reason = match errno.get() {
        libc::EADDRINUSE => "is in use",
        libc::EADDRNOTAVAIL => "is not an address of this machine",
        _ => return error,
    };
    Error::Address {
        address: addr.to_string(),
        reason: reason.to_owned(),
    }
}
