//! `WindowEp`: an endpoint behind which memory is lent: servers reach it, and it posts nothing.

#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Error;
use crate::endpoint::link::addressed_ep::AddressedEp;
use crate::fabric::{Av, Completions, Cq, Domain, EndpointSettings, Ep, PeerAddr};

/// Completions that its queue has room for. There are none but of those who write with immediate
/// data, which nobody asked for.
const QUEUE_SIZE: usize = 256;

/// Operations that the provider is asked to have room for. Of its own there is none, and those of
/// servers wait where there is no room, or, over UDP, are lost and sent again: so it has what the
/// provider usually has, but where each token has an endpoint, and `shm` makes memory for it anew.
const OPERATIONS: usize = 64;

/// The endpoint, with a queue and an address vector of its own, which no other endpoint is or was
/// bound to.
#[derive(Debug)]
pub(super) struct WindowEp {
    /// Closed first, and before registrations that the provider goes on using.
    ep: Ep,
    cq: Arc<Cq>,
    _av: Arc<Av>,
    address: PeerAddr,
    /// Its queue could not be read the last time.
    failed: AtomicBool,
}

impl WindowEp {
    pub(super) fn open(domain: &Arc<Domain>, settings: &EndpointSettings) -> Result<Self, Error> {
        let mut info = settings.info(domain.fabric())?;
        let cq = Arc::new(Cq::open(domain, QUEUE_SIZE)?);
        let sizes = settings.queue_sizes((OPERATIONS, OPERATIONS));
        if domain.fabric().provider().memory.holds_registrations {
            let (tx, rx) = (info.tx().size, info.rx().size);
            info.set_queue_sizes(tx.min(sizes.0), rx.min(sizes.1));
        }
        let end = AddressedEp::open(domain, &info, sizes, &cq)?;
        settings.check_source(|| Some(end.local))?;
        check_reachable(&end.local)?;
        Ok(Self {
            ep: end.ep,
            cq,
            _av: end.av,
            address: end.local,
            failed: AtomicBool::new(false),
        })
    }

    /// Where servers find it.
    pub(super) fn address(&self) -> &PeerAddr {
        &self.address
    }

    /// Has the provider do what there is to do. Whether there was something that it told of.
    pub(super) fn progress(&self, scratch: &mut Completions) -> bool {
        scratch.clear();
        match self.cq.read(scratch) {
            Ok(read) => {
                if self.failed.load(Ordering::Relaxed) {
                    self.failed.store(false, Ordering::Relaxed);
                }
                read > 0
            }
            Err(error) => {
                tracing::debug!(%error, "the queue behind lent memory can't be read");
                self.failed.store(true, Ordering::Relaxed);
                false
            }
        }
    }

    /// Whether the provider serves it, as far as was seen.
    pub(super) fn is_served(&self) -> bool {
        !self.failed.load(Ordering::Relaxed)
    }

    /// Whether its queue has a descriptor to sleep on.
    pub(super) fn has_fd(&self) -> bool {
        self.cq.fd().is_some()
    }

    /// What to sleep on; `None` where there is no descriptor, or something to do first.
    pub(super) fn sleeps_on(&self) -> Option<RawFd> {
        let fd = self.cq.fd()?;
        self.may_sleep().then_some(fd)
    }

    fn may_sleep(&self) -> bool {
        // SAFETY: the one endpoint that was ever bound to the queue is `self.ep`, which is open as
        // long as `self` is borrowed.
        unsafe { self.cq.try_wait(None) }.unwrap_or(false)
    }

    /// Closes the endpoint: nothing lands behind it any more. `false`: it would not close, and what
    /// was lent behind it may be reached for ever.
    pub(super) fn close(self) -> bool {
        match self.ep.close() {
            Ok(()) => true,
            Err(code) => {
                tracing::error!(code, "an endpoint behind lent memory can't be closed");
                false
            }
        }
    }
}

/// A name that only this machine's kernel knows what to make of is none for a token.
fn check_reachable(address: &PeerAddr) -> Result<(), Error> {
    match address.socket_addr() {
        Some(addr) if addr.ip().is_unspecified() => Err(Error::Address {
            address: address.to_string(),
            reason: "tokens name the endpoint by its address, and this one is any: open the \
                     fabric with `FabricBuilder::node`, or give the endpoint a source address"
                .to_owned(),
        }),
        _ => Ok(()),
    }
}
