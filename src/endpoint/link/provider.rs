//! `ProviderLink`: the link over whichever kind of endpoint the fabric was opened with.
//!
//! An enum, so that no public type has a parameter. The branch is taken the same way for an endpoint's whole life.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libfabric_sys as sys;

use crate::Error;
use crate::endpoint::link::fabric::{self, FabricConn, FabricLink};
use crate::endpoint::link::queue_sizes::QueueSizes;
use crate::endpoint::link::rdm::{RdmConn, RdmLink, RdmRequest};
use crate::endpoint::link::socket::{KernelWatch, TcpWatch};
use crate::endpoint::link::wait::LinkWait;
use crate::endpoint::link::{
    CloseFailed, CmEvent, Completions, ConnKey, Link, LinkConn, LinkLimits, PostRefused, RmaPost,
    SendPost,
};
use crate::endpoint::protocol::connection::Form;
use crate::errno::FabricErrno;
use crate::fabric::{Domain, EndpointKind, EndpointSettings, PeerAddr};
use crate::memory::{AccessLedger, Participant, Registrar};

/// FI_EP_MSG or FI_EP_RDM.
#[derive(Debug)]
pub(crate) enum ProviderLink {
    Msg(FabricLink),
    Rdm(RdmLink),
}

/// A connection of either kind. It belongs to a link of the same kind: cores never mix them.
#[derive(Debug)]
pub(crate) enum ProviderConn {
    Msg(FabricConn),
    Rdm(RdmConn),
}

/// A request of either kind.
#[derive(Debug)]
pub(crate) enum ProviderRequest {
    Msg(fabric::Request),
    Rdm(RdmRequest),
}

impl ProviderLink {
    /// A link for connections that this side makes, one after the other.
    pub(crate) fn open(
        domain: &Arc<Domain>,
        sizes: QueueSizes,
        settings: &EndpointSettings,
    ) -> Result<Self, Error> {
        let (tx, rx) = sizes.total;
        match domain.fabric().endpoint_kind() {
            EndpointKind::Msg => FabricLink::open(domain, sizes, settings).map(Self::Msg),
            EndpointKind::Rdm => RdmLink::open(domain, tx, rx, settings).map(Self::Rdm),
        }
    }

    /// A link for many connections that this side makes.
    pub(crate) fn dial(
        domain: &Arc<Domain>,
        sizes: QueueSizes,
        settings: &EndpointSettings,
    ) -> Result<Self, Error> {
        let (tx, rx) = sizes.total;
        match domain.fabric().endpoint_kind() {
            EndpointKind::Msg => FabricLink::open(domain, sizes, settings).map(Self::Msg),
            EndpointKind::Rdm => RdmLink::dial(domain, tx, rx, settings).map(Self::Rdm),
        }
    }

    /// A link that listens.
    pub(crate) fn listen(
        domain: &Arc<Domain>,
        addr: &PeerAddr,
        sizes: QueueSizes,
        settings: &EndpointSettings,
    ) -> Result<Self, Error> {
        let (tx, rx) = sizes.total;
        match domain.fabric().endpoint_kind() {
            EndpointKind::Msg => FabricLink::listen(domain, addr, sizes, settings).map(Self::Msg),
            EndpointKind::Rdm => RdmLink::listen(domain, addr, tx, rx, settings).map(Self::Rdm),
        }
    }

    /// Where it listens.
    pub(crate) fn local_addr(&self) -> Option<PeerAddr> {
        match self {
            Self::Msg(link) => link.local_addr(),
            Self::Rdm(link) => Some(link.local_addr()),
        }
    }

    /// What a sleeping thread watches.
    pub(crate) fn waiter(&self) -> Arc<dyn LinkWait> {
        match self {
            Self::Msg(link) => link.waiter(),
            Self::Rdm(link) => link.waiter(),
        }
    }
}

impl ProviderConn {
    pub(crate) fn as_raw(&self) -> Option<*mut sys::fid_ep> {
        match self {
            Self::Msg(conn) => conn.as_raw(),
            Self::Rdm(conn) => conn.as_raw(),
        }
    }
}

impl LinkConn for ProviderConn {
    fn key(&self) -> ConnKey {
        match self {
            Self::Msg(conn) => conn.key(),
            Self::Rdm(conn) => conn.key(),
        }
    }

    fn registrar(&self) -> Option<&dyn Registrar> {
        match self {
            Self::Msg(conn) => conn.registrar(),
            Self::Rdm(conn) => conn.registrar(),
        }
    }

    fn peer(&self) -> Option<PeerAddr> {
        match self {
            Self::Msg(conn) => conn.peer(),
            Self::Rdm(conn) => conn.peer(),
        }
    }

    fn participant(&self) -> Option<&Participant> {
        match self {
            Self::Msg(conn) => conn.participant(),
            Self::Rdm(conn) => conn.participant(),
        }
    }
}

/// What a connection of another kind gets: there is none.
fn mixed() -> i32 {
    debug_assert!(false, "a connection of another kind of link");
    libc::EINVAL
}

fn refused() -> PostRefused {
    PostRefused::Errno(FabricErrno::new(mixed()))
}

impl Link for ProviderLink {
    type Conn = ProviderConn;
    type Request = ProviderRequest;

    fn form(&self) -> Form {
        match self {
            Self::Msg(link) => link.form(),
            Self::Rdm(link) => link.form(),
        }
    }

    fn limits(&self) -> &LinkLimits {
        match self {
            Self::Msg(link) => link.limits(),
            Self::Rdm(link) => link.limits(),
        }
    }

    fn registrar(&self) -> &dyn Registrar {
        match self {
            Self::Msg(link) => link.registrar(),
            Self::Rdm(link) => link.registrar(),
        }
    }

    fn ledger(&self) -> &Arc<AccessLedger> {
        match self {
            Self::Msg(link) => link.ledger(),
            Self::Rdm(link) => link.ledger(),
        }
    }

    fn prepare_connect(&mut self, peer: &PeerAddr) -> Result<ProviderConn, Error> {
        match self {
            Self::Msg(link) => link.prepare_connect(peer).map(ProviderConn::Msg),
            Self::Rdm(link) => link.prepare_connect(peer).map(ProviderConn::Rdm),
        }
    }

    fn connect(&mut self, conn: &ProviderConn, peer: &PeerAddr, data: &[u8]) -> Result<(), Error> {
        match (self, conn) {
            (Self::Msg(link), ProviderConn::Msg(conn)) => link.connect(conn, peer, data),
            (Self::Rdm(link), ProviderConn::Rdm(conn)) => link.connect(conn, peer, data),
            _ => Err(Error::fabric("fi_connect", mixed())),
        }
    }

    fn prepare_accept(
        &mut self,
        request: ProviderRequest,
    ) -> Result<ProviderConn, (ProviderRequest, Error)> {
        match (self, request) {
            (Self::Msg(link), ProviderRequest::Msg(request)) => link
                .prepare_accept(request)
                .map(ProviderConn::Msg)
                .map_err(|(request, error)| (ProviderRequest::Msg(request), error)),
            (Self::Rdm(link), ProviderRequest::Rdm(request)) => link
                .prepare_accept(request)
                .map(ProviderConn::Rdm)
                .map_err(|(request, error)| (ProviderRequest::Rdm(request), error)),
            (_, request) => Err((request, Error::fabric("fi_endpoint", mixed()))),
        }
    }

    fn peer_of(&self, request: &ProviderRequest) -> Option<PeerAddr> {
        match (self, request) {
            (Self::Msg(link), ProviderRequest::Msg(request)) => link.peer_of(request),
            (Self::Rdm(link), ProviderRequest::Rdm(request)) => link.peer_of(request),
            _ => None,
        }
    }

    fn accept(&mut self, conn: &mut ProviderConn, data: &[u8]) -> Result<(), Error> {
        match (self, conn) {
            (Self::Msg(link), ProviderConn::Msg(conn)) => link.accept(conn, data),
            (Self::Rdm(link), ProviderConn::Rdm(conn)) => link.accept(conn, data),
            _ => Err(Error::fabric("fi_accept", mixed())),
        }
    }

    fn reject(&mut self, request: ProviderRequest, data: &[u8]) {
        match (self, request) {
            (Self::Msg(link), ProviderRequest::Msg(request)) => link.reject(request, data),
            (Self::Rdm(link), ProviderRequest::Rdm(request)) => link.reject(request, data),
            _ => drop(mixed()),
        }
    }

    fn close(&mut self, conn: ProviderConn) -> Result<(), CloseFailed> {
        match (self, conn) {
            (Self::Msg(link), ProviderConn::Msg(conn)) => link.close(conn),
            (Self::Rdm(link), ProviderConn::Rdm(conn)) => link.close(conn),
            _ => Err(CloseFailed(FabricErrno::new(mixed()))),
        }
    }

    #[inline]
    unsafe fn post_send(
        &mut self,
        conn: &ProviderConn,
        post: &SendPost<'_>,
    ) -> Result<(), PostRefused> {
        match (self, conn) {
            // SAFETY: the caller's promises.
            (Self::Msg(link), ProviderConn::Msg(conn)) => unsafe { link.post_send(conn, post) },
            // SAFETY: the caller's promises.
            (Self::Rdm(link), ProviderConn::Rdm(conn)) => unsafe { link.post_send(conn, post) },
            _ => Err(refused()),
        }
    }

    #[inline]
    unsafe fn post_receive(
        &mut self,
        conn: &ProviderConn,
        base: *mut u8,
        len: usize,
        desc: *mut c_void,
        context: usize,
    ) -> Result<(), PostRefused> {
        match (self, conn) {
            (Self::Msg(link), ProviderConn::Msg(conn)) => {
                // SAFETY: the caller's promises.
                unsafe { link.post_receive(conn, base, len, desc, context) }
            }
            (Self::Rdm(link), ProviderConn::Rdm(conn)) => {
                // SAFETY: the caller's promises.
                unsafe { link.post_receive(conn, base, len, desc, context) }
            }
            _ => Err(refused()),
        }
    }

    #[inline]
    unsafe fn post_write(
        &mut self,
        conn: &ProviderConn,
        post: &RmaPost<'_>,
    ) -> Result<(), PostRefused> {
        match (self, conn) {
            // SAFETY: the caller's promises.
            (Self::Msg(link), ProviderConn::Msg(conn)) => unsafe { link.post_write(conn, post) },
            // SAFETY: the caller's promises.
            (Self::Rdm(link), ProviderConn::Rdm(conn)) => unsafe { link.post_write(conn, post) },
            _ => Err(refused()),
        }
    }

    #[inline]
    unsafe fn post_read(
        &mut self,
        conn: &ProviderConn,
        post: &RmaPost<'_>,
    ) -> Result<(), PostRefused> {
        match (self, conn) {
            // SAFETY: the caller's promises.
            (Self::Msg(link), ProviderConn::Msg(conn)) => unsafe { link.post_read(conn, post) },
            // SAFETY: the caller's promises.
            (Self::Rdm(link), ProviderConn::Rdm(conn)) => unsafe { link.post_read(conn, post) },
            _ => Err(refused()),
        }
    }

    #[inline]
    unsafe fn post_shared_receive(
        &mut self,
        base: *mut u8,
        len: usize,
        desc: *mut c_void,
        context: usize,
    ) -> Result<(), PostRefused> {
        match self {
            // SAFETY: the caller's promises.
            Self::Msg(link) => unsafe { link.post_shared_receive(base, len, desc, context) },
            // SAFETY: the caller's promises.
            Self::Rdm(link) => unsafe { link.post_shared_receive(base, len, desc, context) },
        }
    }

    fn watch(&mut self, conn: &ProviderConn, watch: &TcpWatch) -> KernelWatch {
        match (self, conn) {
            (Self::Msg(link), ProviderConn::Msg(conn)) => link.watch(conn, watch),
            (Self::Rdm(link), ProviderConn::Rdm(conn)) => link.watch(conn, watch),
            _ => KernelWatch::Unavailable,
        }
    }

    fn bytes_received(&mut self, conn: &mut ProviderConn) -> Option<u64> {
        match (self, conn) {
            (Self::Msg(link), ProviderConn::Msg(conn)) => link.bytes_received(conn),
            (Self::Rdm(link), ProviderConn::Rdm(conn)) => link.bytes_received(conn),
            _ => None,
        }
    }

    #[inline]
    fn poll_completions(&mut self, out: &mut Completions) -> Result<usize, Error> {
        match self {
            Self::Msg(link) => link.poll_completions(out),
            Self::Rdm(link) => link.poll_completions(out),
        }
    }

    fn poll_cm(&mut self) -> Result<Option<CmEvent<ProviderRequest>>, Error> {
        Ok(match self {
            Self::Msg(link) => link.poll_cm()?.map(|e| e.map_request(ProviderRequest::Msg)),
            Self::Rdm(link) => link.poll_cm()?.map(|e| e.map_request(ProviderRequest::Rdm)),
        })
    }

    fn hello_tail(&self) -> &[u8] {
        match self {
            Self::Msg(link) => link.hello_tail(),
            Self::Rdm(link) => link.hello_tail(),
        }
    }

    fn take_hello(&mut self, message: &[u8]) {
        match self {
            Self::Msg(link) => link.take_hello(message),
            Self::Rdm(link) => link.take_hello(message),
        }
    }

    fn close_all(&mut self) -> Result<(), CloseFailed> {
        match self {
            Self::Msg(link) => link.close_all(),
            Self::Rdm(link) => link.close_all(),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        match self {
            Self::Msg(link) => link.next_deadline(),
            Self::Rdm(link) => link.next_deadline(),
        }
    }

    fn reap_half_open(&mut self, now: Instant, patience: Duration) -> u64 {
        match self {
            Self::Msg(link) => link.reap_half_open(now, patience),
            Self::Rdm(link) => link.reap_half_open(now, patience),
        }
    }
}
