//! The one seam between endpoints and libfabric: what an endpoint core needs of a transport.
//!
//! [`FabricLink`](crate::endpoint::link::fabric::FabricLink) is the real one; a fake one in the
//! tests injects the faults that a real provider will not give on demand. Endpoint cores are
//! generic over this trait and their public wrappers fix it, so the hot path is monomorphic and no
//! public type has a parameter.

#![allow(unsafe_code)]

pub(crate) mod addressed_ep;
pub(crate) mod backlog;
pub(crate) mod either;
mod event_queue;
pub(crate) mod fabric;
mod fabric_conn;
#[cfg(all(any(test, fuzzing), not(loom)))]
#[cfg_attr(
    not(test),
    allow(
        dead_code,
        unused_imports,
        reason = "fuzzing uses a part of what the tests do"
    )
)]
#[path = "testing/fake.rs"]
pub(crate) mod fake;
pub(crate) mod fd_limit;
mod half_open;
mod indices;
pub(crate) mod iov;
mod peer_book;
pub(crate) mod provider;
pub(crate) mod queue_sizes;
mod queue_wait;
pub(crate) mod rdm;
pub(crate) mod rdm_hello;
mod refusal_slot;
mod refusals;
mod resolving_ep;
mod settle;
pub(crate) mod socket;
pub(crate) mod wait;

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Error;
use crate::clock::Clock;
use crate::endpoint::link::socket::{KernelWatch, TcpWatch};
use crate::errno::FabricErrno;
use crate::fabric::PeerAddr;
pub(crate) use crate::fabric::{
    COMPLETION_BATCH, CmData, Completions, LinkCompletion, PEER_WROTE, PostRefused, RemoteRange,
    RmaLimits, RmaPost, SendPost,
};
use crate::in_flight::ContextKind;
use crate::memory::{AccessLedger, Participant, Registrar};
use crate::protocol::connection::Form;
use crate::protocol::wire;
pub(crate) use queue_wait::{Bound, RdmWait};
pub(crate) use settle::settle;

/// The most segments that one message may have, header included; bounds the arrays on the stack of
/// a send.
pub(crate) const IOV_MAX: usize = 32;

/// What a link can do, asked once at open.
#[derive(Clone, Debug)]
pub(crate) struct LinkLimits {
    /// Segments in one send, header included.
    pub(crate) iov_limit: usize,
    /// Bytes in one message.
    pub(crate) max_message: u64,
    /// What an operation context must be.
    pub(crate) contexts: ContextKind,
    /// RDM form: receives that the endpoint takes, for all its connections.
    pub(crate) shared_receives: u32,
    /// RDM form: data messages have short marks, as the provider has no room for long ones in its
    /// CQ data.
    pub(crate) short_marks: bool,
    /// Bytes of the largest message that can be injected.
    pub(crate) inject_size: usize,
    /// Injecting saves more than it costs.
    pub(crate) inject_pays: bool,
    /// Bytes of the largest message that goes faster in a frame than by itself.
    pub(crate) pack_below: usize,
    /// Posts that are followed by another wait for it.
    pub(crate) uses_more: bool,
    /// Bytes of the largest message, header included, that goes better if the kernel gathers it
    /// with others where it is one of many ([`Link::gather`]).
    pub(crate) gathers_below: Option<u64>,
    /// One-sided operations, if there are any.
    pub(crate) rma: Option<RmaLimits>,
}

impl LinkLimits {
    /// Feature bits that follow from them.
    pub(crate) fn features(&self) -> u32 {
        match self.short_marks {
            true => wire::FEATURE_SHORT_MARKS,
            false => 0,
        }
    }
}

/// Names one connection of a link while it lives; a later connection may get the same value.
pub(crate) type ConnKey = usize;

/// What the connection manager reported.
#[derive(Debug)]
pub(crate) enum CmEvent<R> {
    /// A peer asks for a connection. Dropping the request refuses it and frees its socket.
    Request { request: R, data: CmData },
    /// The connection stands.
    Connected { conn: ConnKey, data: CmData },
    /// The connection could not be made, or the peer said no.
    Refused {
        conn: ConnKey,
        errno: FabricErrno,
        data: CmData,
    },
    /// The peer is gone.
    Shutdown { conn: ConnKey },
}

impl<R> CmEvent<R> {
    /// The same with another form of request.
    pub(crate) fn map_request<S>(self, f: impl FnOnce(R) -> S) -> CmEvent<S> {
        match self {
            Self::Request { request, data } => CmEvent::Request {
                request: f(request),
                data,
            },
            Self::Connected { conn, data } => CmEvent::Connected { conn, data },
            Self::Refused { conn, errno, data } => CmEvent::Refused { conn, errno, data },
            Self::Shutdown { conn } => CmEvent::Shutdown { conn },
        }
    }
}

/// The endpoint could not be closed: the provider may still touch what it was given, which must
/// therefore leak.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CloseFailed(pub(crate) FabricErrno);

/// One connection at the link: owns the provider's endpoint, closes it once.
pub(crate) trait LinkConn: Send + fmt::Debug {
    /// Its name in [`CmEvent`]s.
    fn key(&self) -> ConnKey;
    /// Where registrations for this connection go, if the provider scopes them to endpoints.
    fn registrar(&self) -> Option<&dyn Registrar>;
    /// The peer's address, where the provider tells.
    fn peer(&self) -> Option<PeerAddr>;
    /// What its peer has passed of the domain's epochs, where the connection has an endpoint of its
    /// own and its peer can be asked.
    fn participant(&self) -> Option<&Participant>;
}

/// What an endpoint core asks of a transport. One thread at a time.
///
/// No method has a default: a link that forwards to others can't forget one.
pub(crate) trait Link: Send + fmt::Debug {
    type Conn: LinkConn;
    type Request: Send + fmt::Debug;

    fn form(&self) -> Form;
    /// RDM form, listening: all connections go over one endpoint, which outlives each of them.
    /// Elsewhere the end of a connection is the end of its endpoint.
    fn shares_endpoint(&self) -> bool;
    fn limits(&self) -> &LinkLimits;
    /// Where registrations of the domain go.
    fn registrar(&self) -> &dyn Registrar;

    /// When memory that peers could reach by the domain's keys is free.
    fn ledger(&self) -> &Arc<AccessLedger>;

    /// Makes a connection that is not connected yet, so that receives can be posted first.
    fn prepare_connect(&mut self, peer: &PeerAddr) -> Result<Self::Conn, Error>;
    /// Starts to connect, once; the outcome is a [`CmEvent`].
    fn connect(&mut self, conn: &Self::Conn, peer: &PeerAddr, data: &[u8]) -> Result<(), Error>;
    /// Makes the connection of a request, not accepted yet, so that receives can be posted first.
    fn prepare_accept(
        &mut self,
        request: Self::Request,
    ) -> Result<Self::Conn, (Self::Request, Error)>;
    /// The peer of a request, where the provider tells.
    fn peer_of(&self, request: &Self::Request) -> Option<PeerAddr>;
    /// Accepts with private data.
    fn accept(&mut self, conn: &mut Self::Conn, data: &[u8]) -> Result<(), Error>;
    /// Refuses with private data, and frees what the request holds.
    fn reject(&mut self, request: Self::Request, data: &[u8]);
    /// Closes the provider's endpoint. Never blocks. Afterwards its completions, if the provider
    /// gives any, are in the completion queue; no event names the connection any more.
    ///
    /// A listener of the RDM form closes no endpoint here: what is in flight stays so, and of the
    /// connection's own nothing may be.
    fn close(&mut self, conn: Self::Conn) -> Result<(), CloseFailed>;

    /// # Safety
    ///
    /// * Each `iov` entry points to initialised memory that stays valid, registered (`desc`) and
    ///   unwritten until the completion of `context` was read, or [`Link::close`] returned `Ok` for
    ///   `conn`.
    unsafe fn post_send(
        &mut self,
        conn: &Self::Conn,
        post: &SendPost<'_>,
    ) -> Result<(), PostRefused>;

    /// # Safety
    ///
    /// * `base` points to `len` bytes that stay valid, registered (`desc`) and untouched until the
    ///   completion of `context` was read, or [`Link::close`] returned `Ok` for `conn`.
    unsafe fn post_receive(
        &mut self,
        conn: &Self::Conn,
        base: *mut u8,
        len: usize,
        desc: *mut c_void,
        context: usize,
    ) -> Result<(), PostRefused>;

    /// Posts a one-sided write.
    ///
    /// # Safety
    ///
    /// * As [`Link::post_send`].
    unsafe fn post_write(
        &mut self,
        conn: &Self::Conn,
        post: &RmaPost<'_>,
    ) -> Result<(), PostRefused>;

    /// Posts a one-sided read.
    ///
    /// # Safety
    ///
    /// * Each `iov` entry points to memory that stays valid, registered (`desc`) and untouched
    ///   until the completion of `context` was read, or [`Link::close`] returned `Ok` for `conn`.
    unsafe fn post_read(
        &mut self,
        conn: &Self::Conn,
        post: &RmaPost<'_>,
    ) -> Result<(), PostRefused>;

    /// Has the kernel watch the connection, which stands; whether it does.
    fn watch(&mut self, conn: &Self::Conn, watch: &TcpWatch) -> KernelWatch;

    /// Whether the kernel gathers small messages on the connection while an earlier one is not
    /// acknowledged (Nagle's algorithm). When it stops, what it has gathered goes. False: it can't
    /// be told, and does not gather, or gathers all the time, as the process asked libfabric for.
    fn gather(&mut self, conn: &mut Self::Conn, gather: bool) -> bool;

    /// What the kernel has gathered goes, and it gathers what follows. False: as at
    /// [`gather`](Link::gather).
    fn push_gathered(&mut self, conn: &mut Self::Conn) -> bool {
        self.gather(conn, false) && self.gather(conn, true)
    }

    /// Bytes that the kernel has received on the connection, read or not, whole messages or not;
    /// where it tells.
    fn bytes_received(&mut self, conn: &mut Self::Conn) -> Option<u64>;

    /// Drives progress and reads completions into the spare room of `out`, in order; how many were
    /// added.
    ///
    /// An error means that the completion queue itself broke (an overrun, say): fatal for the
    /// endpoint.
    fn poll_completions(&mut self, out: &mut Completions) -> Result<usize, Error>;

    /// The next event of the connection manager.
    fn poll_cm(&mut self) -> Result<Option<CmEvent<Self::Request>>, Error>;

    /// RDM form: what is said behind the 48 bytes of a hello (this side's address). MSG form:
    /// nothing.
    fn hello_tail(&self) -> &[u8];

    /// RDM form: a hello came as a message. If it can be answered, a [`CmEvent::Request`] follows.
    fn take_hello(&mut self, message: &[u8]);

    /// RDM form, listening: posts a receive that takes whatever comes next, from whomever.
    ///
    /// # Safety
    ///
    /// * `base` points to `len` bytes that stay valid, registered (`desc`) and untouched until the
    ///   completion of `context` was read, or [`Link::close_all`] returned `Ok`.
    unsafe fn post_shared_receive(
        &mut self,
        base: *mut u8,
        len: usize,
        desc: *mut c_void,
        context: usize,
    ) -> Result<(), PostRefused>;

    /// RDM form, listening: closes the endpoint that all connections share. Afterwards the provider
    /// touches nothing of it. Once; every connection is closed.
    fn close_all(&mut self) -> Result<(), CloseFailed>;

    /// The clock that the link reads from now on: its hub's.
    fn read_clock(&mut self, clock: &Clock);

    /// When the link wants to be polled, whatever else happens.
    fn next_deadline(&self) -> Option<Instant>;

    /// Cuts off sockets that came to the listener and have not said a hello for so long; how many.
    fn reap_half_open(&mut self, now: Instant, patience: Duration) -> u64;
}
