//! `Either`: one of two links, and its connections and requests.
//!
//! An enum, so that no public type has a parameter. The branch is taken the same way for an
//! endpoint's whole life.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Error;
use crate::clock::Clock;
use crate::endpoint::link::socket::{KernelWatch, TcpWatch};
use crate::endpoint::link::{
    CloseFailed, CmEvent, Completions, ConnKey, Link, LinkConn, LinkLimits, PostRefused, RmaPost,
    SendPost,
};
use crate::errno::FabricErrno;
use crate::fabric::PeerAddr;
use crate::memory::{AccessLedger, Participant, Registrar};
use crate::protocol::connection::Form;

/// A link of one kind or of another, or what belongs to one: its connections and requests are of
/// the same side, and cores never mix those of two links.
#[derive(Debug)]
pub(crate) enum Either<A, B> {
    Left(A),
    Right(B),
}

impl<A: LinkConn, B: LinkConn> LinkConn for Either<A, B> {
    fn key(&self) -> ConnKey {
        match self {
            Self::Left(conn) => conn.key(),
            Self::Right(conn) => conn.key(),
        }
    }

    fn registrar(&self) -> Option<&dyn Registrar> {
        match self {
            Self::Left(conn) => conn.registrar(),
            Self::Right(conn) => conn.registrar(),
        }
    }

    fn peer(&self) -> Option<PeerAddr> {
        match self {
            Self::Left(conn) => conn.peer(),
            Self::Right(conn) => conn.peer(),
        }
    }

    fn participant(&self) -> Option<&Participant> {
        match self {
            Self::Left(conn) => conn.participant(),
            Self::Right(conn) => conn.participant(),
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

impl<A: Link, B: Link> Link for Either<A, B> {
    type Conn = Either<A::Conn, B::Conn>;
    type Request = Either<A::Request, B::Request>;

    fn form(&self) -> Form {
        match self {
            Self::Left(link) => link.form(),
            Self::Right(link) => link.form(),
        }
    }

    fn shares_endpoint(&self) -> bool {
        match self {
            Self::Left(link) => link.shares_endpoint(),
            Self::Right(link) => link.shares_endpoint(),
        }
    }

    fn limits(&self) -> &LinkLimits {
        match self {
            Self::Left(link) => link.limits(),
            Self::Right(link) => link.limits(),
        }
    }

    fn registrar(&self) -> &dyn Registrar {
        match self {
            Self::Left(link) => link.registrar(),
            Self::Right(link) => link.registrar(),
        }
    }

    fn ledger(&self) -> &Arc<AccessLedger> {
        match self {
            Self::Left(link) => link.ledger(),
            Self::Right(link) => link.ledger(),
        }
    }

    fn prepare_connect(&mut self, peer: &PeerAddr) -> Result<Self::Conn, Error> {
        match self {
            Self::Left(link) => link.prepare_connect(peer).map(Either::Left),
            Self::Right(link) => link.prepare_connect(peer).map(Either::Right),
        }
    }

    fn connect(&mut self, conn: &Self::Conn, peer: &PeerAddr, data: &[u8]) -> Result<(), Error> {
        match (self, conn) {
            (Self::Left(link), Either::Left(conn)) => link.connect(conn, peer, data),
            (Self::Right(link), Either::Right(conn)) => link.connect(conn, peer, data),
            _ => Err(Error::fabric("fi_connect", mixed())),
        }
    }

    fn prepare_accept(
        &mut self,
        request: Self::Request,
    ) -> Result<Self::Conn, (Self::Request, Error)> {
        match (self, request) {
            (Self::Left(link), Either::Left(request)) => link
                .prepare_accept(request)
                .map(Either::Left)
                .map_err(|(request, error)| (Either::Left(request), error)),
            (Self::Right(link), Either::Right(request)) => link
                .prepare_accept(request)
                .map(Either::Right)
                .map_err(|(request, error)| (Either::Right(request), error)),
            (_, request) => Err((request, Error::fabric("fi_endpoint", mixed()))),
        }
    }

    fn peer_of(&self, request: &Self::Request) -> Option<PeerAddr> {
        match (self, request) {
            (Self::Left(link), Either::Left(request)) => link.peer_of(request),
            (Self::Right(link), Either::Right(request)) => link.peer_of(request),
            _ => None,
        }
    }

    fn accept(&mut self, conn: &mut Self::Conn, data: &[u8]) -> Result<(), Error> {
        match (self, conn) {
            (Self::Left(link), Either::Left(conn)) => link.accept(conn, data),
            (Self::Right(link), Either::Right(conn)) => link.accept(conn, data),
            _ => Err(Error::fabric("fi_accept", mixed())),
        }
    }

    fn reject(&mut self, request: Self::Request, data: &[u8]) {
        match (self, request) {
            (Self::Left(link), Either::Left(request)) => link.reject(request, data),
            (Self::Right(link), Either::Right(request)) => link.reject(request, data),
            _ => drop(mixed()),
        }
    }

    fn close(&mut self, conn: Self::Conn) -> Result<(), CloseFailed> {
        match (self, conn) {
            (Self::Left(link), Either::Left(conn)) => link.close(conn),
            (Self::Right(link), Either::Right(conn)) => link.close(conn),
            _ => Err(CloseFailed(FabricErrno::new(mixed()))),
        }
    }

    #[inline]
    unsafe fn post_send(
        &mut self,
        conn: &Self::Conn,
        post: &SendPost<'_>,
    ) -> Result<(), PostRefused> {
        match (self, conn) {
            // SAFETY: the caller's promises.
            (Self::Left(link), Either::Left(conn)) => unsafe { link.post_send(conn, post) },
            // SAFETY: the caller's promises.
            (Self::Right(link), Either::Right(conn)) => unsafe { link.post_send(conn, post) },
            _ => Err(refused()),
        }
    }

    #[inline]
    unsafe fn post_receive(
        &mut self,
        conn: &Self::Conn,
        base: *mut u8,
        len: usize,
        desc: *mut c_void,
        context: usize,
    ) -> Result<(), PostRefused> {
        match (self, conn) {
            (Self::Left(link), Either::Left(conn)) => {
                // SAFETY: the caller's promises.
                unsafe { link.post_receive(conn, base, len, desc, context) }
            }
            (Self::Right(link), Either::Right(conn)) => {
                // SAFETY: the caller's promises.
                unsafe { link.post_receive(conn, base, len, desc, context) }
            }
            _ => Err(refused()),
        }
    }

    #[inline]
    unsafe fn post_write(
        &mut self,
        conn: &Self::Conn,
        post: &RmaPost<'_>,
    ) -> Result<(), PostRefused> {
        match (self, conn) {
            // SAFETY: the caller's promises.
            (Self::Left(link), Either::Left(conn)) => unsafe { link.post_write(conn, post) },
            // SAFETY: the caller's promises.
            (Self::Right(link), Either::Right(conn)) => unsafe { link.post_write(conn, post) },
            _ => Err(refused()),
        }
    }

    #[inline]
    unsafe fn post_read(
        &mut self,
        conn: &Self::Conn,
        post: &RmaPost<'_>,
    ) -> Result<(), PostRefused> {
        match (self, conn) {
            // SAFETY: the caller's promises.
            (Self::Left(link), Either::Left(conn)) => unsafe { link.post_read(conn, post) },
            // SAFETY: the caller's promises.
            (Self::Right(link), Either::Right(conn)) => unsafe { link.post_read(conn, post) },
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
            Self::Left(link) => unsafe { link.post_shared_receive(base, len, desc, context) },
            // SAFETY: the caller's promises.
            Self::Right(link) => unsafe { link.post_shared_receive(base, len, desc, context) },
        }
    }

    fn watch(&mut self, conn: &Self::Conn, watch: &TcpWatch) -> KernelWatch {
        match (self, conn) {
            (Self::Left(link), Either::Left(conn)) => link.watch(conn, watch),
            (Self::Right(link), Either::Right(conn)) => link.watch(conn, watch),
            _ => KernelWatch::Unavailable,
        }
    }

    fn gather(&mut self, conn: &mut Self::Conn, gather: bool) -> bool {
        match (self, conn) {
            (Self::Left(link), Either::Left(conn)) => link.gather(conn, gather),
            (Self::Right(link), Either::Right(conn)) => link.gather(conn, gather),
            _ => false,
        }
    }

    fn push_gathered(&mut self, conn: &mut Self::Conn) -> bool {
        match (self, conn) {
            (Self::Left(link), Either::Left(conn)) => link.push_gathered(conn),
            (Self::Right(link), Either::Right(conn)) => link.push_gathered(conn),
            _ => false,
        }
    }

    fn bytes_received(&mut self, conn: &mut Self::Conn) -> Option<u64> {
        match (self, conn) {
            (Self::Left(link), Either::Left(conn)) => link.bytes_received(conn),
            (Self::Right(link), Either::Right(conn)) => link.bytes_received(conn),
            _ => None,
        }
    }

    #[inline]
    fn poll_completions(&mut self, out: &mut Completions) -> Result<usize, Error> {
        match self {
            Self::Left(link) => link.poll_completions(out),
            Self::Right(link) => link.poll_completions(out),
        }
    }

    fn poll_cm(&mut self) -> Result<Option<CmEvent<Self::Request>>, Error> {
        Ok(match self {
            Self::Left(link) => link.poll_cm()?.map(|e| e.map_request(Either::Left)),
            Self::Right(link) => link.poll_cm()?.map(|e| e.map_request(Either::Right)),
        })
    }

    fn hello_tail(&self) -> &[u8] {
        match self {
            Self::Left(link) => link.hello_tail(),
            Self::Right(link) => link.hello_tail(),
        }
    }

    fn take_hello(&mut self, message: &[u8]) {
        match self {
            Self::Left(link) => link.take_hello(message),
            Self::Right(link) => link.take_hello(message),
        }
    }

    fn close_all(&mut self) -> Result<(), CloseFailed> {
        match self {
            Self::Left(link) => link.close_all(),
            Self::Right(link) => link.close_all(),
        }
    }

    fn read_clock(&mut self, clock: &Clock) {
        match self {
            Self::Left(link) => link.read_clock(clock),
            Self::Right(link) => link.read_clock(clock),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        match self {
            Self::Left(link) => link.next_deadline(),
            Self::Right(link) => link.next_deadline(),
        }
    }

    fn reap_half_open(&mut self, now: Instant, patience: Duration) -> u64 {
        match self {
            Self::Left(link) => link.reap_half_open(now, patience),
            Self::Right(link) => link.reap_half_open(now, patience),
        }
    }
}
