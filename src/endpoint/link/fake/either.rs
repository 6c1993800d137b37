//! `EitherLink`: a provider's link or a fake one, so that in tests what is made for providers runs over the net in memory.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{FakeConn, FakeLink, FakeRequest};
use crate::Error;
use crate::endpoint::link::provider::{ProviderConn, ProviderLink, ProviderRequest};
use crate::endpoint::link::socket::{KernelWatch, TcpWatch};
use crate::endpoint::link::{
    CloseFailed, CmEvent, Completions, ConnKey, Link, LinkConn, LinkLimits, PostRefused, RmaPost,
    SendPost,
};
use crate::endpoint::protocol::connection::Form;
use crate::fabric::PeerAddr;
use crate::memory::{AccessLedger, Participant, Registrar};

/// One of the two, for an endpoint's whole life.
#[derive(Debug)]
pub(crate) enum EitherLink {
    Provider(Box<ProviderLink>),
    Fake(FakeLink),
}

/// A connection of a link of the same kind.
#[derive(Debug)]
pub(crate) enum EitherConn {
    Provider(ProviderConn),
    Fake(FakeConn),
}

/// A request to a link of the same kind.
#[derive(Debug)]
pub(crate) enum EitherRequest {
    Provider(ProviderRequest),
    Fake(FakeRequest),
}

impl From<ProviderLink> for EitherLink {
    fn from(link: ProviderLink) -> Self {
        Self::Provider(Box::new(link))
    }
}

impl LinkConn for EitherConn {
    fn key(&self) -> ConnKey {
        match self {
            Self::Provider(conn) => conn.key(),
            Self::Fake(conn) => conn.key(),
        }
    }

    fn registrar(&self) -> Option<&dyn Registrar> {
        match self {
            Self::Provider(conn) => conn.registrar(),
            Self::Fake(conn) => conn.registrar(),
        }
    }

    fn peer(&self) -> Option<PeerAddr> {
        match self {
            Self::Provider(conn) => conn.peer(),
            Self::Fake(conn) => conn.peer(),
        }
    }

    fn participant(&self) -> Option<&Participant> {
        match self {
            Self::Provider(conn) => conn.participant(),
            Self::Fake(conn) => conn.participant(),
        }
    }
}

fn mixed() -> ! {
    panic!("a connection of another kind of link")
}

impl Link for EitherLink {
    type Conn = EitherConn;
    type Request = EitherRequest;

    fn form(&self) -> Form {
        match self {
            Self::Provider(link) => link.form(),
            Self::Fake(link) => link.form(),
        }
    }

    fn limits(&self) -> &LinkLimits {
        match self {
            Self::Provider(link) => link.limits(),
            Self::Fake(link) => link.limits(),
        }
    }

    fn registrar(&self) -> &dyn Registrar {
        match self {
            Self::Provider(link) => link.registrar(),
            Self::Fake(link) => link.registrar(),
        }
    }

    fn ledger(&self) -> &Arc<AccessLedger> {
        match self {
            Self::Provider(link) => link.ledger(),
            Self::Fake(link) => link.ledger(),
        }
    }

    fn prepare_connect(&mut self, peer: &PeerAddr) -> Result<EitherConn, Error> {
        match self {
            Self::Provider(link) => link.prepare_connect(peer).map(EitherConn::Provider),
            Self::Fake(link) => link.prepare_connect(peer).map(EitherConn::Fake),
        }
    }

    fn connect(&mut self, conn: &EitherConn, peer: &PeerAddr, data: &[u8]) -> Result<(), Error> {
        match (self, conn) {
            (Self::Provider(link), EitherConn::Provider(conn)) => link.connect(conn, peer, data),
            (Self::Fake(link), EitherConn::Fake(conn)) => link.connect(conn, peer, data),
            _ => mixed(),
        }
    }

    fn prepare_accept(
        &mut self,
        request: EitherRequest,
    ) -> Result<EitherConn, (EitherRequest, Error)> {
        match (self, request) {
            (Self::Provider(link), EitherRequest::Provider(request)) => link
                .prepare_accept(request)
                .map(EitherConn::Provider)
                .map_err(|(request, error)| (EitherRequest::Provider(request), error)),
            (Self::Fake(link), EitherRequest::Fake(request)) => link
                .prepare_accept(request)
                .map(EitherConn::Fake)
                .map_err(|(request, error)| (EitherRequest::Fake(request), error)),
            _ => mixed(),
        }
    }

    fn peer_of(&self, request: &EitherRequest) -> Option<PeerAddr> {
        match (self, request) {
            (Self::Provider(link), EitherRequest::Provider(request)) => link.peer_of(request),
            (Self::Fake(link), EitherRequest::Fake(request)) => link.peer_of(request),
            _ => mixed(),
        }
    }

    fn accept(&mut self, conn: &mut EitherConn, data: &[u8]) -> Result<(), Error> {
        match (self, conn) {
            (Self::Provider(link), EitherConn::Provider(conn)) => link.accept(conn, data),
            (Self::Fake(link), EitherConn::Fake(conn)) => link.accept(conn, data),
            _ => mixed(),
        }
    }

    fn reject(&mut self, request: EitherRequest, data: &[u8]) {
        match (self, request) {
            (Self::Provider(link), EitherRequest::Provider(request)) => link.reject(request, data),
            (Self::Fake(link), EitherRequest::Fake(request)) => link.reject(request, data),
            _ => mixed(),
        }
    }

    fn close(&mut self, conn: EitherConn) -> Result<(), CloseFailed> {
        match (self, conn) {
            (Self::Provider(link), EitherConn::Provider(conn)) => link.close(conn),
            (Self::Fake(link), EitherConn::Fake(conn)) => link.close(conn),
            _ => mixed(),
        }
    }

    unsafe fn post_send(
        &mut self,
        conn: &EitherConn,
        post: &SendPost<'_>,
    ) -> Result<(), PostRefused> {
        match (self, conn) {
            // SAFETY: the caller's promises.
            (Self::Provider(link), EitherConn::Provider(conn)) => unsafe {
                link.post_send(conn, post)
            },
            // SAFETY: the caller's promises.
            (Self::Fake(link), EitherConn::Fake(conn)) => unsafe { link.post_send(conn, post) },
            _ => mixed(),
        }
    }

    unsafe fn post_receive(
        &mut self,
        conn: &EitherConn,
        base: *mut u8,
        len: usize,
        desc: *mut c_void,
        context: usize,
    ) -> Result<(), PostRefused> {
        match (self, conn) {
            (Self::Provider(link), EitherConn::Provider(conn)) => {
                // SAFETY: the caller's promises.
                unsafe { link.post_receive(conn, base, len, desc, context) }
            }
            (Self::Fake(link), EitherConn::Fake(conn)) => {
                // SAFETY: the caller's promises.
                unsafe { link.post_receive(conn, base, len, desc, context) }
            }
            _ => mixed(),
        }
    }

    unsafe fn post_write(
        &mut self,
        conn: &EitherConn,
        post: &RmaPost<'_>,
    ) -> Result<(), PostRefused> {
        match (self, conn) {
            // SAFETY: the caller's promises.
            (Self::Provider(link), EitherConn::Provider(conn)) => unsafe {
                link.post_write(conn, post)
            },
            // SAFETY: the caller's promises.
            (Self::Fake(link), EitherConn::Fake(conn)) => unsafe { link.post_write(conn, post) },
            _ => mixed(),
        }
    }

    unsafe fn post_read(
        &mut self,
        conn: &EitherConn,
        post: &RmaPost<'_>,
    ) -> Result<(), PostRefused> {
        match (self, conn) {
            // SAFETY: the caller's promises.
            (Self::Provider(link), EitherConn::Provider(conn)) => unsafe {
                link.post_read(conn, post)
            },
            // SAFETY: the caller's promises.
            (Self::Fake(link), EitherConn::Fake(conn)) => unsafe { link.post_read(conn, post) },
            _ => mixed(),
        }
    }

    unsafe fn post_shared_receive(
        &mut self,
        base: *mut u8,
        len: usize,
        desc: *mut c_void,
        context: usize,
    ) -> Result<(), PostRefused> {
        match self {
            // SAFETY: the caller's promises.
            Self::Provider(link) => unsafe { link.post_shared_receive(base, len, desc, context) },
            // SAFETY: the caller's promises.
            Self::Fake(link) => unsafe { link.post_shared_receive(base, len, desc, context) },
        }
    }

    fn watch(&mut self, conn: &EitherConn, watch: &TcpWatch) -> KernelWatch {
        match (self, conn) {
            (Self::Provider(link), EitherConn::Provider(conn)) => link.watch(conn, watch),
            (Self::Fake(link), EitherConn::Fake(conn)) => link.watch(conn, watch),
            _ => mixed(),
        }
    }

    fn bytes_received(&mut self, conn: &mut EitherConn) -> Option<u64> {
        match (self, conn) {
            (Self::Provider(link), EitherConn::Provider(conn)) => link.bytes_received(conn),
            (Self::Fake(link), EitherConn::Fake(conn)) => link.bytes_received(conn),
            _ => mixed(),
        }
    }

    fn poll_completions(&mut self, out: &mut Completions) -> Result<usize, Error> {
        match self {
            Self::Provider(link) => link.poll_completions(out),
            Self::Fake(link) => link.poll_completions(out),
        }
    }

    fn poll_cm(&mut self) -> Result<Option<CmEvent<EitherRequest>>, Error> {
        Ok(match self {
            Self::Provider(link) => {
                let event = link.poll_cm()?;
                event.map(|event| event.map_request(EitherRequest::Provider))
            }
            Self::Fake(link) => {
                let event = link.poll_cm()?;
                event.map(|event| event.map_request(EitherRequest::Fake))
            }
        })
    }

    fn hello_tail(&self) -> &[u8] {
        match self {
            Self::Provider(link) => link.hello_tail(),
            Self::Fake(link) => link.hello_tail(),
        }
    }

    fn take_hello(&mut self, message: &[u8]) {
        match self {
            Self::Provider(link) => link.take_hello(message),
            Self::Fake(link) => link.take_hello(message),
        }
    }

    fn close_all(&mut self) -> Result<(), CloseFailed> {
        match self {
            Self::Provider(link) => link.close_all(),
            Self::Fake(link) => link.close_all(),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        match self {
            Self::Provider(link) => link.next_deadline(),
            Self::Fake(link) => link.next_deadline(),
        }
    }

    fn reap_half_open(&mut self, now: Instant, patience: Duration) -> u64 {
        match self {
            Self::Provider(link) => link.reap_half_open(now, patience),
            Self::Fake(link) => link.reap_half_open(now, patience),
        }
    }
}
