//! `FabricConn`: one connection over a connected endpoint, and the request that it was made from.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use libfabric_sys as sys;

use crate::endpoint::link::resolving_ep::ResolvingEp;
use crate::endpoint::link::{ConnKey, LinkConn, socket};
use crate::fabric::{Ep, Info, PeerAddr, Pep};
use crate::memory::{Participant, Registrar};

/// A connection.
#[derive(Debug)]
pub(crate) struct FabricConn {
    pub(super) end: ConnEp,
    /// As known before it is connected. Providers of connected endpoints that have other addresses
    /// are asked.
    pub(crate) peer: Option<SocketAddr>,
    /// Its socket, once it was looked for.
    pub(crate) socket: Option<RawFd>,
    /// Until it is accepted: what it was made from. Dropped after the endpoint, which has taken
    /// over the socket.
    pub(crate) request: Option<Request>,
}

/// The endpoint of a connection.
#[derive(Debug)]
pub(super) enum ConnEp {
    Here(Ep),
    ResolvingEp(Arc<ResolvingEp>),
}

impl LinkConn for FabricConn {
    fn key(&self) -> ConnKey {
        match &self.end {
            ConnEp::Here(ep) => ep.as_ptr() as ConnKey,
            ConnEp::ResolvingEp(resolving) => resolving.key(),
        }
    }

    fn registrar(&self) -> Option<&dyn Registrar> {
        None
    }

    fn peer(&self) -> Option<PeerAddr> {
        let known = self.peer.map(PeerAddr::from);
        known.or_else(|| self.ep()?.peer())
    }

    fn participant(&self) -> Option<&Participant> {
        self.ep().and_then(Ep::participant)
    }
}

impl FabricConn {
    /// None while the provider looks for the peer.
    #[inline]
    pub(crate) fn ep(&self) -> Option<&Ep> {
        match &self.end {
            ConnEp::Here(ep) => Some(ep),
            ConnEp::ResolvingEp(resolving) => resolving.ep(),
        }
    }

    /// Local address and peer.
    pub(crate) fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        let ep = self.ep()?;
        Some((ep.local()?.socket_addr()?, ep.peer()?.socket_addr()?))
    }

    /// The socket of a connection that stands: the library says which, or it is looked for.
    pub(crate) fn socket(&self) -> Option<RawFd> {
        self.ep()?.socket().or_else(|| {
            let (local, peer) = self.ends()?;
            socket::find(local, peer)
        })
    }

    /// As [`socket`](Self::socket): the one that was found before, if it still is the connection's.
    pub(crate) fn known_socket(&mut self) -> Option<RawFd> {
        let (local, peer) = self.ends()?;
        let known = self.socket;
        if !known.is_some_and(|fd| socket::is_between(fd, local, peer)) {
            self.socket = self.socket();
        }
        self.socket
    }

    /// None while the provider looks for the peer.
    pub(crate) fn as_raw(&self) -> Option<*mut sys::fid_ep> {
        self.ep().map(Ep::as_ptr)
    }
}

/// A connection request that was not answered yet. Dropping it refuses it: the provider holds a
/// socket for it, and memory, until it is accepted or refused; also when an endpoint was made from
/// it.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) info: Option<Info>,
    pub(crate) pep: Arc<Pep>,
}

impl Request {
    pub(crate) fn refuse(&mut self, data: &[u8]) {
        if let Some(info) = self.info.take() {
            self.pep.reject(info.handle(), data);
        }
    }

    /// The provider has freed what it held for the request.
    pub(crate) fn accepted(mut self) {
        self.info = None;
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.refuse(&[]);
    }
}
