//! `AddressedEp`: an endpoint without connections, and what a peer is told to reach it.

use std::sync::Arc;

use crate::Error;
use crate::endpoint::link::rdm_hello::HelloTail;
use crate::fabric::{Av, Cq, Domain, Ep, Info, PeerAddr};

/// An endpoint with its address vector and its address.
pub(crate) struct AddressedEp {
    pub(crate) ep: Ep,
    pub(crate) av: Arc<Av>,
    pub(crate) local: PeerAddr,
    pub(crate) tail: HelloTail,
    /// Receives that it takes.
    pub(crate) receives: u32,
}

impl AddressedEp {
    pub(crate) fn open(
        domain: &Arc<Domain>,
        info: &Info,
        sizes: (usize, usize),
        cq: &Arc<Cq>,
    ) -> Result<Self, Error> {
        let mut info = info.duplicate()?;
        let av = Arc::new(Av::open(domain)?);
        let ep = Ep::open_rdm(domain, &mut info, sizes, cq, &av)?;
        let unnamed = || Error::Unsupported {
            provider: info.provider_name(),
            need: "names its endpoints in a form that no peer can be told",
        };
        let local = ep.name(info.addr_format()).ok_or_else(unnamed)?;
        let tail = HelloTail::new(&local).ok_or_else(unnamed)?;
        Ok(Self {
            ep,
            av,
            local,
            tail,
            receives: u32::try_from(info.rx().size).unwrap_or(u32::MAX),
        })
    }
}
