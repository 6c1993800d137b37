//! What both ends of a connection do to use a window of the other: the checks, and the operation in
//! flight.

#![allow(unsafe_code)]

use std::time::Instant;

use crate::buffer::{GateError, LeasedPayload, Payload};
use crate::endpoint::error::{Blocked, MessageLimit, SendErrorKind, WindowError};
use crate::endpoint::event::Level;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{IOV_MAX, Link, PostRefused, RemoteRange, RmaLimits, RmaPost};
use crate::endpoint::windows::destination::Destination;
pub(crate) use crate::endpoint::windows::destination::LeasedDestination;
use crate::endpoint::windows::staged_transfer::{LocalMemory, Piece, StagedTransfer};
use crate::endpoint::windows::window::{RemoteWindow, WindowEvent, WindowPlace};
use crate::error::{CompletionError, FabricErrno};
use crate::id::ConnectionId;
use crate::in_flight::InFlight;
use crate::memory::Access;
use crate::protocol::connection::Connection;
use crate::protocol::wire::{self, WindowDescriptor, WindowId};

/// A one-sided operation in flight, with everything that must stay alive until it is over.
#[derive(Debug)]
pub(crate) struct OneSided {
    pub(crate) connection: ConnectionId,
    pub(crate) key: u64,
    pub(crate) window: WindowId,
    pub(crate) local: Local,
    /// Its number among the operations: failed ones are reported in the order in which they were
    /// posted.
    pub(crate) sequence: u64,
    /// When it was posted; kept only where there is a deadline, and until it was found late.
    pub(crate) posted: Option<Instant>,
    /// Its outcome was told, though the provider may still use its memory.
    pub(crate) told: bool,
    /// Its registration is kept open by the hub's `RecentLease`, which counts it until the hub has
    /// said that it is over.
    pub(crate) recent: bool,
}

/// The local side of an operation.
#[derive(Debug)]
pub(crate) enum Local {
    Write(LeasedPayload),
    Read(LeasedDestination),
    /// It goes piece by piece, and is never in the slab.
    Staged(Box<StagedTransfer>),
}

impl Local {
    /// Whether it may be posted now, as far as it is concerned. `behind`: others are in front of
    /// it, and what is under way is not asked about.
    ///
    /// # Errors
    /// It never may.
    pub(crate) fn poll_gate(&mut self, behind: bool) -> Result<bool, GateError> {
        match (self, behind) {
            (Self::Write(payload), true) => payload.advance_gate(),
            (Self::Write(payload), false) => payload.poll_gate(),
            (Self::Read(_), _) => Ok(true),
            (Self::Staged(transfer), behind) => transfer.poll_gate(behind),
        }
    }
}

impl OneSided {
    /// The operation is over, and went well: what the application hears. It is taken out of the
    /// operation, which holds nothing any more.
    #[inline]
    pub(crate) fn take(&mut self) -> WindowEvent {
        let key = self.key;
        match &mut self.local {
            Local::Write(payload) => WindowEvent::Written {
                key,
                payload: payload.take(),
            },
            Local::Read(into) => read(key, into.take(), None),
            Local::Staged(_) => unreachable!("{NOT_POSTED}"),
        }
    }

    /// The operation is over: what the application hears.
    pub(crate) fn finish(self, error: Option<CompletionError>) -> WindowEvent {
        let key = self.key;
        match self.local {
            Local::Write(payload) => written(key, payload.into_payload(), error),
            Local::Read(into) => read(key, into.into_destination(), error),
            Local::Staged(transfer) => passed(key, *transfer, error),
        }
    }

    /// What the application hears of an operation whose memory had to be leaked.
    pub(crate) fn leaked(key: u64, was_write: bool, error: CompletionError) -> WindowEvent {
        if was_write {
            return written(key, Payload::empty(), Some(error));
        }
        WindowEvent::ReadFailed {
            key,
            into: None,
            error,
        }
    }

    /// The provider's endpoint is closed, and it never said what became of the operation: it is
    /// over, and so is the use of its memory. Not so where the peer moves the bytes of a read by
    /// itself ([`RmaLimits::reads_outlive_close`]): its memory is given up, for ever.
    pub(crate) fn finish_unreported(
        self,
        rma: Option<&RmaLimits>,
        error: CompletionError,
    ) -> WindowEvent {
        if self.outlives_close(rma) {
            let key = self.key;
            self.leak();
            return Self::leaked(key, false, error);
        }
        self.finish(Some(error))
    }

    /// The provider is done with an operation whose outcome was told when its connection ended:
    /// what is given back. With `rma`, it is done because its endpoint is closed.
    pub(crate) fn give_back(self, rma: Option<&RmaLimits>) -> Option<WindowEvent> {
        if self.outlives_close(rma) {
            self.leak();
            return None;
        }
        let key = self.key;
        self.told.then(|| match self.local {
            Local::Write(payload) => WindowEvent::WriteReturned {
                key,
                payload: payload.into_payload(),
            },
            Local::Read(into) => WindowEvent::ReadReturned {
                key,
                into: into.into_destination(),
            },
            Local::Staged(_) => unreachable!("{NOT_POSTED}"),
        })
    }

    fn outlives_close(&self, rma: Option<&RmaLimits>) -> bool {
        !self.is_write() && rma.is_some_and(|rma| rma.reads_outlive_close)
    }

    fn leak(self) {
        std::mem::forget(self);
        crate::stats::count_leaked(1);
    }

    pub(crate) fn is_write(&self) -> bool {
        match &self.local {
            Local::Write(_) => true,
            Local::Read(_) => false,
            Local::Staged(transfer) => transfer.is_write(),
        }
    }
}

/// Whatever a slab of operations has was posted as a whole.
const NOT_POSTED: &str = "a line keeps what goes piece by piece";

fn passed(key: u64, transfer: StagedTransfer, error: Option<CompletionError>) -> WindowEvent {
    let write = transfer.is_write();
    match transfer.into_given() {
        Some(LocalMemory::Write(payload)) => written(key, payload.into_payload(), error),
        // By copies, which are in order with what the application does there.
        Some(LocalMemory::Read(into)) => seen(key, into, error),
        None => {
            let error = error.unwrap_or_else(|| CompletionError::new(libc::EIO));
            OneSided::leaked(key, write, error)
        }
    }
}

fn written(key: u64, payload: Payload, error: Option<CompletionError>) -> WindowEvent {
    match error {
        None => WindowEvent::Written { key, payload },
        Some(error) => WindowEvent::WriteFailed {
            key,
            payload,
            error,
        },
    }
}

fn read(key: u64, into: Destination, error: Option<CompletionError>) -> WindowEvent {
    let error = error.or_else(|| into.unseen());
    seen(key, into, error)
}

/// The same of one that the provider did not bring there by itself.
fn seen(key: u64, into: Destination, error: Option<CompletionError>) -> WindowEvent {
    match error {
        None => WindowEvent::Read { key, into },
        Some(error) => WindowEvent::ReadFailed {
            key,
            into: Some(into),
            error,
        },
    }
}

/// What an operation wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OneSidedRequest<'a> {
    pub(crate) place: WindowPlace<'a>,
    pub(crate) len: u64,
    pub(crate) access: Access,
    pub(crate) segments: usize,
    /// A write with immediate data.
    pub(crate) immediate: bool,
}

impl<'a> OneSidedRequest<'a> {
    #[inline]
    pub(crate) fn write(place: WindowPlace<'a>, payload: &Payload, immediate: bool) -> Self {
        Self {
            place,
            len: payload.len_bytes() as u64,
            access: Access::WRITE,
            segments: payload.run_count(),
            immediate,
        }
    }

    #[inline]
    pub(crate) fn read(place: WindowPlace<'a>, into: &Destination) -> Self {
        Self {
            place,
            len: into.len() as u64,
            access: Access::READ,
            segments: 1,
            immediate: false,
        }
    }
}

/// Everything that can be said of an operation before anything is taken for it, but for what the
/// machine says. Where it goes.
#[inline]
pub(crate) fn check(
    machine: &Connection,
    connection: ConnectionId,
    rma: Option<&RmaLimits>,
    wanted: &OneSidedRequest<'_>,
) -> Result<RemoteRange, SendErrorKind> {
    let remote = check_in_pieces(machine, connection, rma, wanted)?;
    check_whole(rma, wanted.len, wanted.segments)?;
    Ok(remote)
}

/// What one operation of the provider can be.
#[inline]
pub(crate) fn check_whole(
    rma: Option<&RmaLimits>,
    len: u64,
    segments: usize,
) -> Result<(), SendErrorKind> {
    let (iov_limit, max) = rma.map_or((0, 0), |rma| (rma.iov_limit.min(IOV_MAX), rma.max_bytes));
    if segments > iov_limit {
        return Err(SendErrorKind::TooManySegments {
            count: segments,
            max: iov_limit,
        });
    }
    if len > max {
        let whose = MessageLimit::Provider;
        return Err(SendErrorKind::TooLong { len, max, whose });
    }
    Ok(())
}

/// The same of one that goes piece by piece: as long as the window, in as many segments as it
/// likes.
#[inline]
pub(crate) fn check_in_pieces(
    machine: &Connection,
    connection: ConnectionId,
    rma: Option<&RmaLimits>,
    wanted: &OneSidedRequest<'_>,
) -> Result<RemoteRange, SendErrorKind> {
    let WindowPlace { window, offset } = wanted.place;
    if window.connection != connection {
        return Err(WindowError::WrongConnection.into());
    }
    let rma = rma.ok_or(WindowError::Unsupported)?;
    if machine.is_window_revoked(window.id()) {
        return Err(WindowError::Revoked.into());
    }
    if !window.access().contains(wanted.access) {
        return Err(WindowError::Access {
            asked: wanted.access,
            has: window.access(),
        }
        .into());
    }
    if wanted.immediate && rma.immediate_bytes < size_of::<u64>() {
        return Err(WindowError::NoImmediateData {
            bytes: rma.immediate_bytes,
        }
        .into());
    }
    range(&window.descriptor, offset, wanted.len)
}

/// Where `len` bytes at `offset` of the window are for the provider.
fn range(window: &WindowDescriptor, offset: u64, len: u64) -> Result<RemoteRange, SendErrorKind> {
    if len == 0 {
        return Err(WindowError::Empty.into());
    }
    let inside = offset.checked_add(len).is_some_and(|end| end <= window.len);
    // The descriptor was parsed, so its end is an address; ours come from memory.
    let addr = window.base.checked_add(offset).filter(|_| inside);
    let (Some(addr), Ok(len)) = (addr, usize::try_from(len)) else {
        return Err(WindowError::OutOfRange {
            offset,
            len,
            window_len: window.len,
        }
        .into());
    };
    Ok(RemoteRange {
        addr,
        len,
        key: window.key,
    })
}

/// A window of the peer, from its descriptor, which came from the peer and is not trusted.
pub(crate) fn open_window(
    machine: &Connection,
    connection: ConnectionId,
    rma: Option<&RmaLimits>,
    descriptor: &WindowDescriptor,
) -> Result<RemoteWindow, WindowError> {
    rma.ok_or(WindowError::Unsupported)?;
    let peer = machine.peer().ok_or(WindowError::NotConnected)?;
    if machine.close_reason().is_some() {
        return Err(WindowError::NotConnected);
    }
    if (descriptor.connection, descriptor.incarnation) != (peer.connection, peer.incarnation) {
        return Err(WindowError::WrongConnection);
    }
    if !machine.has_windows() {
        return Err(WindowError::PeerWithoutWindows);
    }
    if machine.is_window_revoked(descriptor.window) {
        return Err(WindowError::Revoked);
    }
    Ok(RemoteWindow {
        descriptor: *descriptor,
        connection,
    })
}

/// How an operation is posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostMode {
    pub(crate) remote: RemoteRange,
    /// Else it is a read.
    pub(crate) write: bool,
    pub(crate) immediate: Option<u64>,
    pub(crate) level: Level,
}

impl PostMode {
    /// A write to a place that was checked; with `data`, which its owner hears of.
    #[inline]
    pub(crate) fn write(
        remote: RemoteRange,
        place: WindowPlace<'_>,
        data: Option<u32>,
        level: Level,
    ) -> Self {
        let mark = place.window.descriptor.mark;
        Self {
            remote,
            write: true,
            immediate: data.map(|data| wire::written_data(mark, data)),
            level,
        }
    }

    /// A read.
    #[inline]
    pub(crate) fn read(remote: RemoteRange) -> Self {
        Self {
            remote,
            write: false,
            immediate: None,
            level: Level::Delivered,
        }
    }
}

/// Posts an operation, which the slab keeps until it is over; gives it back if the provider does
/// not take it.
#[inline(always)]
pub(crate) fn post<L: Link, T>(
    link: &mut L,
    conn: &L::Conn,
    machine: &mut Connection,
    in_flight: &mut InFlight<T>,
    op: T,
    iov: &IovList,
    how: &PostMode,
) -> Result<(), (PostRefused, T)> {
    // Counted first, so that a completion can never come before its post is counted.
    if machine.on_window_posted(how.immediate.is_some()).is_err() {
        let refused = PostRefused::Errno(FabricErrno::new(libc::ENOTCONN));
        return Err((refused, op));
    }
    hand_over(link, conn, in_flight, op, iov, how).inspect_err(|_| {
        machine.on_window_undone(how.immediate.is_some());
    })
}

/// The same for one that was counted when it was accepted.
#[inline(always)]
pub(crate) fn hand_over<L: Link, T>(
    link: &mut L,
    conn: &L::Conn,
    in_flight: &mut InFlight<T>,
    op: T,
    iov: &IovList,
    how: &PostMode,
) -> Result<(), (PostRefused, T)> {
    let full = || PostRefused::Errno(FabricErrno::new(libc::ENOBUFS));
    let context = match in_flight.vacant() {
        Some(vacant) => vacant.fill(op),
        None => return Err((full(), op)),
    };
    let ordered = link.limits().rma.as_ref().is_some_and(|rma| rma.ordered);
    let level = if ordered { how.level } else { Level::Delivered };
    let post = RmaPost {
        iov: iov.iov(),
        desc: iov.desc(),
        remote: how.remote,
        context,
        data: how.immediate,
        level,
    };
    let posted = if how.write {
        // SAFETY: the slab owns the payload, or the slot, which keeps the memory alive, registered
        // and unwritten, until the completion was read or the endpoint was closed.
        unsafe { link.post_write(conn, &post) }
    } else {
        // SAFETY: the slab owns the destination, or the slot, which keeps the memory alive,
        // registered and for nobody else, until the completion was read or the endpoint was closed.
        unsafe { link.post_read(conn, &post) }
    };
    posted.map_err(|refused| (refused, in_flight.abort(context)))
}

/// The endpoint is closed, and it never said what became of a piece: the slot is free, unless the
/// peer moves the bytes of reads by itself.
pub(crate) fn drop_piece(piece: Piece, rma: Option<&RmaLimits>) {
    if !piece.is_write() && rma.is_some_and(|rma| rma.reads_outlive_close) {
        std::mem::forget(piece);
        crate::stats::count_leaked(1);
    }
}

/// What a refusal by the provider is called.
pub(crate) fn refused_by_provider(refused: PostRefused, write: bool) -> SendErrorKind {
    match refused {
        PostRefused::Again => SendErrorKind::WouldBlock(Blocked::Provider),
        PostRefused::Errno(errno) => WindowError::Fabric {
            call: if write { "fi_writemsg" } else { "fi_readmsg" },
            errno,
        }
        .into(),
    }
}
