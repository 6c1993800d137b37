//! `OpenedEp`: an endpoint that was opened, and belongs to no queues yet.

#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use libfabric_sys as sys;

use super::domain::Domain;
use super::handle;
use super::info::Info;
use crate::Error;
use crate::errno::FabricErrno;
use crate::fabric::{PeerAddr, Provider};

/// An endpoint that is bound to nothing, so that any thread may open and close it.
pub(crate) struct OpenedEp {
    raw: NonNull<sys::fid_ep>,
    domain: Arc<Domain>,
}

// SAFETY: the domain is opened with FI_THREAD_SAFE (`builder::hints`), so any thread may call into
// it.
unsafe impl Send for OpenedEp {}

impl OpenedEp {
    /// Opens an endpoint that is to connect to a peer, with queues for `sizes` sends and receives
    /// where the provider has such long ones; where not, posts beyond what it has are refused with
    /// `-FI_EAGAIN`. The info names the peer, too: `verbs` looks for the way to it here, which may
    /// take seconds (the column `resolves_in_open`).
    pub(crate) fn active(
        domain: &Arc<Domain>,
        info: &mut Info,
        peer: &PeerAddr,
        sizes: (usize, usize),
    ) -> Result<Self, Error> {
        info.set_destination(connectable(peer)?)?;
        Self::sized(domain, info, sizes)
    }

    pub(super) fn sized(
        domain: &Arc<Domain>,
        info: &mut Info,
        sizes: (usize, usize),
    ) -> Result<Self, Error> {
        let default = (info.tx().size, info.rx().size);
        let mut tx = sizes.0.max(default.0);
        let mut rx = receives_of(domain.fabric().provider(), default.1, sizes.1);
        let shorter = |n: usize, default: usize| if n > default { (n / 2).max(default) } else { n };
        loop {
            info.set_queue_sizes(tx, rx);
            let next = (shorter(tx, default.0), shorter(rx, default.1));
            // A size that is too long is refused before anything is made of the info, so it can be
            // tried again.
            match Self::open(domain, info) {
                Err(error) if (tx, rx) != next && may_be_the_sizes(&error) => (tx, rx) = next,
                opened => return opened,
            }
        }
    }

    fn open(domain: &Arc<Domain>, info: &Info) -> Result<Self, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: the domain is open, the info is of the same library, `raw` is writable.
        let rc = unsafe {
            sys::fi_endpoint(
                domain.as_ptr(),
                info.as_ptr(),
                &raw mut raw,
                ptr::null_mut(),
            )
        };
        let raw = NonNull::new(raw)
            .filter(|_| rc == 0)
            .ok_or_else(|| Error::fabric("fi_endpoint", rc))?;
        Ok(Self {
            raw,
            domain: Arc::clone(domain),
        })
    }

    /// Whoever gets them closes it.
    pub(super) fn into_parts(self) -> (NonNull<sys::fid_ep>, Arc<Domain>) {
        let this = ManuallyDrop::new(self);
        // SAFETY: read once; `this` is never dropped.
        let domain = unsafe { ptr::read(&raw const this.domain) };
        (this.raw, domain)
    }
}

impl Drop for OpenedEp {
    fn drop(&mut self) {
        let fabric = self.domain.fabric();
        let _guard = fabric.keys().look();
        // SAFETY: open and owned; nothing was bound to it.
        let _ = unsafe { handle::close("ep", fabric.owner(), self.raw.as_ptr().cast()) };
    }
}

impl fmt::Debug for OpenedEp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedEp")
            .field("raw", &self.raw)
            .finish_non_exhaustive()
    }
}

/// With how many receives an endpoint is opened that needs so many.
pub(crate) fn receives_of(row: &Provider, default: usize, needed: usize) -> usize {
    match row.queues.fixed_queues {
        // Each of them takes room in the completion queue, too, and on the card. One would leave
        // none to sends (`queue_sizes.rs`).
        true => needed.max(2),
        false => needed.max(default),
    }
}

/// What `fi_endpoint` says of queues that are too long, among other things: `-FI_ENODATA` where the
/// attributes are compared with the provider's (`ofi_check_tx_attr`, `ofi_check_rx_attr`: tcp,
/// verbs, efa), `-FI_EINVAL` where they are looked at one by one, and want of room. Whatever else
/// it says is as true of shorter ones, and may have taken seconds.
fn may_be_the_sizes(error: &Error) -> bool {
    let Error::Fabric { errno, .. } = error else {
        return false;
    };
    matches!(
        errno.get(),
        libc::EINVAL | libc::ENODATA | libc::ENOMEM | libc::ENOSPC
    )
}

/// Why a peer can't be reached, if an error says that and nothing else: a reason for its connection
/// to end, not for an endpoint to be refused.
pub(crate) fn unreachable(error: &Error) -> Option<FabricErrno> {
    let Error::Fabric { errno, .. } = error else {
        return None;
    };
    let of_the_peer = matches!(
        errno.get(),
        libc::ETIMEDOUT
            | libc::EHOSTUNREACH
            | libc::EHOSTDOWN
            | libc::ENETUNREACH
            | libc::ENETDOWN
            | libc::ECONNREFUSED
    );
    of_the_peer.then_some(*errno)
}

/// The address of a peer to whom a connection of the provider's own can be made.
pub(super) fn connectable(peer: &PeerAddr) -> Result<SocketAddr, Error> {
    peer.socket_addr().ok_or_else(|| Error::Address {
        address: peer.to_string(),
        reason: "the provider connects to IP addresses with a port".to_owned(),
    })
}
