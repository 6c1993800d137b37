//! `Line`: what was accepted on a connection and can't be posted yet, or not wholly: it waits for a
//! producer's event or a copy out of a GPU's memory, for room in the provider's queue, goes piece
//! by piece through slots of the host's memory, or is behind such a one.
//!
//! ```text
//!  accepted ─► waiting, in order ─ its gate is open, it is the first
//!                │
//!                ├─► posted as a whole: the slab has it
//!                └─► posted piece by piece ─► passing, until all pieces are over
//! ```
//!
//! Each is counted when it is accepted, as one that is posted at once: in flight, with its credit
//! if it takes one, and its deadline. Messages are posted in the order in which they were given,
//! and so are one-sided operations; neither waits for the other. A message lies in the slab while
//! it waits, an operation here. What ends here without having been posted has touched nothing of
//! the peer's.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::c_void;
use std::time::{Duration, Instant};

use crate::buffer::{GateError, Leases, Payload};
use crate::endpoint::error::SendErrorKind;
use crate::endpoint::hub::control::{CONTROL_RETRY, GATE_RETRY};
use crate::endpoint::hub::long_send::LongSend;
use crate::endpoint::hub::outgoing::{self, DataOp, Header, Outgoing, PostingContext};
use crate::endpoint::hub::posted::{MessageOp, PieceOp, Posted, TimedOp};
use crate::endpoint::hub::scoped::ScopedRegistrations;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{Link, LinkConn, PostRefused};
use crate::endpoint::windows::destination::{Destination, DestinationRun, LeasedDestination};
use crate::endpoint::windows::one_sided::{self, How, Local, OneSided};
use crate::endpoint::windows::staged_transfer::{Next, Piece, StagedTransfer, Trailing};
use crate::error::{CompletionError, FabricErrno};
use crate::fabric::Shape;
use crate::id::ConnectionId;
use crate::protocol::connection::{Connection, Form, State};
use crate::protocol::wire::{self, WindowId};

/// Closed gates that are looked at in one go. Copies are done in their order, so looking further
/// brings little; those behind begin theirs in time.
const GATES_AHEAD: usize = 16;

/// Pieces of one-sided operations that an endpoint has in flight at once, at most.
pub(crate) const PIECES_IN_FLIGHT: u32 = 16;

/// Whether what is given now may be posted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineState {
    /// Nothing is in front of it.
    Open,
    /// Others are, for which the provider had no room.
    Full,
    /// Others are, one of which waits for an event or a copy.
    Gated,
}

/// What a line posts with: a connection, and what all connections of its endpoint share.
pub(crate) struct Posting<'a, L: Link> {
    pub(crate) link: &'a mut L,
    pub(crate) conn: &'a L::Conn,
    pub(crate) connection: ConnectionId,
    pub(crate) machine: &'a mut Connection,
    pub(crate) scoped: &'a mut ScopedRegistrations,
    /// Of the header slots, for this connection.
    pub(crate) header_desc: *mut c_void,
    pub(crate) outgoing: &'a mut Outgoing,
    pub(crate) posted: &'a mut Posted,
    /// Counts what the provider had no room for.
    pub(crate) eagain: &'a mut u64,
}

impl<L: Link> Posting<'_, L> {
    /// The header of a message in the slab, in the slab by itself, if it travels alone.
    #[inline]
    fn begin_header(&mut self, payload: usize, iov: &mut IovList) -> Option<usize> {
        if self.outgoing.shape() != Shape::TwoMessages {
            return None;
        }
        let op = self.posted.data(payload)?;
        let header = self.outgoing.lone_header(op, self.header_desc, iov)?;
        Some(self.posted.begin_header(header, payload))
    }

    /// Makes sure that every segment is registered here, and stays so; true: by the lease that all
    /// share.
    #[inline]
    pub(crate) fn lease(
        &mut self,
        payload: &Payload,
        iov: &mut IovList,
    ) -> Result<(Leases, bool), SendErrorKind> {
        self.outgoing
            .lease(payload, Some(self.conn), self.scoped, iov)
    }

    /// The same for the destination of a read.
    #[inline]
    pub(crate) fn lease_destination(
        &mut self,
        into: Destination,
    ) -> Result<(LeasedDestination, DestinationRun, bool), (SendErrorKind, Destination)> {
        let scope = self.scoped.scope();
        if let Some(desc) = self.outgoing.lease_shared(into.region(), scope) {
            let (into, run) = into.leased_elsewhere(desc);
            return Ok((into, run, true));
        }
        match into.lease(scope) {
            Ok((into, run)) => Ok((into, run, false)),
            Err(into) => self.register_destination(into),
        }
    }

    /// For an endpoint that has registrations of its own, and meets the region for the first time.
    #[cold]
    fn register_destination(
        &mut self,
        into: Destination,
    ) -> Result<(LeasedDestination, DestinationRun, bool), (SendErrorKind, Destination)> {
        let registrar = self.conn.registrar();
        let Some(registrar) = registrar.filter(|_| self.scoped.misses(into.region())) else {
            return Err((outgoing::not_here(into.region(), 0), into));
        };
        if let Err(error) = self.scoped.register(into.region(), registrar) {
            return Err((error.into(), into));
        }
        match into.lease(self.scoped.scope()) {
            Ok((into, run)) => Ok((into, run, false)),
            Err(into) => Err((SendErrorKind::NotRegistered { segment: 0 }, into)),
        }
    }

    /// Takes the credit of a message that was admitted; its CQ data.
    pub(crate) fn take_credit(&mut self) -> Option<u64> {
        let number = self.machine.on_data_admitted();
        outgoing::data_of(self.machine, number)
    }
}

/// A one-sided operation that ended in the line: it was never posted, or went piece by piece. Its
/// connection counts it no more.
#[derive(Debug)]
pub(crate) struct Over {
    pub(crate) op: OneSided,
    pub(crate) error: Option<CompletionError>,
}

/// What became of a line that was looked at.
#[derive(Default)]
pub(crate) struct Driven {
    /// Messages that were never posted, and never will be.
    pub(crate) unposted: Vec<(DataOp, CompletionError)>,
    pub(crate) over: Vec<Over>,
}

/// A message of a batch: all is taken for it, its credit too, and it is not posted.
pub(crate) struct ReadyMessage {
    /// Its context, and its CQ data.
    pub(crate) message: (usize, Option<u64>),
    pub(crate) iov: IovList,
}

/// One that waits.
struct Waiting<T> {
    what: T,
    /// Of one that is posted as a whole.
    iov: IovList,
    /// Its gate is.
    open: bool,
}

// SAFETY: addresses and descriptors of what the operation holds, here or in the slab, which goes to
// another thread together with this; only the link reads them.
unsafe impl<T: Send> Send for Waiting<T> {}

/// A message that waits.
struct WaitingMessage {
    context: usize,
    data: Option<u64>,
    /// The message whose gate it waits for: itself, or that with the payload of this header.
    gate: usize,
}

impl WaitingMessage {
    fn poll_gate(&self, posted: &mut Posted, behind: bool) -> Result<bool, GateError> {
        let op = posted.data(self.gate);
        op.map_or(Ok(true), |op| op.poll_gate(behind))
    }
}

/// An operation that waits, or is passing.
struct WaitingOperation {
    op: OneSided,
    how: How,
}

impl WaitingOperation {
    fn transfer(&mut self) -> Option<&mut StagedTransfer> {
        match &mut self.op.local {
            Local::Staged(transfer) => Some(transfer),
            Local::Write(_) | Local::Read(_) => None,
        }
    }

    fn is_copying(&self) -> bool {
        matches!(&self.op.local, Local::Staged(transfer) if transfer.is_copying())
    }

    /// Nothing of it was posted.
    fn is_untouched(&self) -> bool {
        !matches!(&self.op.local, Local::Staged(transfer) if transfer.has_begun())
    }

    /// It ends here: its connection, and the lease that all share, count it no more.
    fn over<L: Link>(self, error: Option<CompletionError>, way: &mut Posting<'_, L>) -> Over {
        let Self { mut op, how } = self;
        way.outgoing.end_one_sided(&mut op);
        if how.immediate.is_some() {
            // They were not posted.
            way.machine.on_immediate_undone();
        }
        way.machine.on_window_done(op.window);
        Over { op, error }
    }
}

/// Those that wait, in the order in which they were given.
struct Queue<T>(VecDeque<Waiting<T>>);

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Queue<T> {
    #[inline]
    fn state(&self) -> LineState {
        match self.0.is_empty() {
            true => LineState::Open,
            false if self.has_closed() => LineState::Gated,
            false => LineState::Full,
        }
    }

    fn has_closed(&self) -> bool {
        self.0.iter().any(|waiting| !waiting.open)
    }

    /// Asks the gates of the first ones, by `poll`, which is told whether others in front of one
    /// are closed: what is under way is not asked about then. The place of the first that will not
    /// open, and why.
    fn poll_gates(
        &mut self,
        mut poll: impl FnMut(&mut T, bool) -> Result<bool, GateError>,
    ) -> Option<(usize, CompletionError)> {
        let (mut asked, mut behind) = (0, false);
        for (at, waiting) in self.0.iter_mut().enumerate() {
            if waiting.open {
                continue;
            }
            if asked == GATES_AHEAD {
                break;
            }
            asked += 1;
            match poll(&mut waiting.what, behind) {
                Ok(open) => waiting.open = open,
                Err(error) => return Some((at, CompletionError::gate(&error))),
            }
            behind |= !waiting.open;
        }
        None
    }

    /// The first, if it may be posted.
    fn pop_open(&mut self) -> Option<Waiting<T>> {
        match self.0.front()?.open {
            true => self.0.pop_front(),
            false => None,
        }
    }
}

/// The line of one connection.
#[derive(Default)]
pub(crate) struct Line {
    messages: Queue<WaitingMessage>,
    operations: Queue<WaitingOperation>,
    /// All their pieces are posted.
    passing: Vec<WaitingOperation>,
    /// Copies behind reads whose outcome was told.
    trailing: Vec<Trailing>,
    /// The long message that is under way.
    long: Option<Box<LongSend>>,
}

impl Line {
    /// Whether a message that is given now may be posted.
    #[inline]
    pub(crate) fn messages(&self) -> LineState {
        self.messages.state()
    }

    /// The same for a one-sided operation.
    #[inline]
    pub(crate) fn operations(&self) -> LineState {
        self.operations.state()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.0.is_empty()
            && self.operations.0.is_empty()
            && self.passing.is_empty()
            && self.trailing.is_empty()
            && self.long.is_none()
    }

    /// How long until it is to be looked at again, if nobody else says so.
    pub(crate) fn pause(&self) -> Option<Duration> {
        let gated = self.messages.has_closed() || self.operations.has_closed();
        let waiting = self.operations.0.iter().map(|waiting| &waiting.what);
        let mut operations = waiting.chain(&self.passing);
        let long = self.long.as_ref();
        if gated
            || operations.any(WaitingOperation::is_copying)
            || long.is_some_and(|long| long.is_copying())
        {
            return Some(GATE_RETRY);
        }
        let waits = !self.messages.0.is_empty()
            || !self.operations.0.is_empty()
            || long.is_some_and(|long| long.wants_retry());
        (waits || !self.trailing.is_empty()).then_some(CONTROL_RETRY)
    }

    // ---- messages -------------------------------------------------------------------------------

    /// Takes a message that lies in the slab, and whose credit is taken. `gate`: the context of
    /// the message whose gate it waits for.
    fn push_message(
        &mut self,
        (context, data): (usize, Option<u64>),
        iov: IovList,
        gate: Option<usize>,
        posted: &mut Posted,
    ) {
        let (gate, open) = (gate.unwrap_or(context), gate.is_none());
        let what = WaitingMessage {
            context,
            data,
            gate,
        };
        if !open {
            // So that a copy begins. What it says is heard at the next look, in the order of all.
            let _ = what.poll_gate(posted, false);
        }
        self.messages.0.push_back(Waiting { what, iov, open });
    }

    /// Posts a message that lies in the slab, and that nobody has counted: takes its credit. A
    /// header that travels alone goes first, and its payload is accepted with it.
    ///
    /// # Errors
    /// The provider did not take it: it is still in the slab, alone, and its credit free.
    pub(crate) fn post_new<L: Link>(
        &mut self,
        way: &mut Posting<'_, L>,
        context: usize,
        iov: IovList,
    ) -> Result<(), PostRefused> {
        let mut header_iov = IovList::new();
        let first = way.begin_header(context, &mut header_iov);
        let (outgoing, conn) = (&*way.outgoing, Some(way.conn));
        let Some(first) = first else {
            return outgoing.post(way.link, conn, way.machine, context, &iov);
        };
        match outgoing.post_header(way.link, conn, way.machine, first, &header_iov) {
            Ok(data) => {
                self.post_or_wait(way, (context, Some(data)), iov, false);
                Ok(())
            }
            Err(refused) => {
                way.posted.abort_header(first, way.outgoing);
                Err(refused)
            }
        }
    }

    /// Takes all that a message needs which has to wait, its credit too, and has it wait, for its
    /// own gate or behind others. `posted`: when its deadline begins.
    #[cold]
    pub(crate) fn accept<L: Link>(
        &mut self,
        way: &mut Posting<'_, L>,
        (payload, header, key): (Payload, Header<'_>, u64),
        posted: Option<Instant>,
    ) -> Result<(), (SendErrorKind, Payload)> {
        let (mut iov, gated) = (IovList::new(), payload.is_gated());
        let lane = PostingContext {
            connection: way.connection,
            conn: Some(way.conn),
            scoped: way.scoped,
            header_desc: way.header_desc,
            sequence: way.machine.sent(),
            posted,
            iov: &mut iov,
        };
        let slab = &mut way.posted.messages;
        let loaded = way.outgoing.load_gated(slab, payload, header, key, lane);
        let context = loaded.map_err(|(kind, payload)| (kind, payload.unstaged()))?;
        let mut gate = gated.then_some(context);
        let mut header_iov = IovList::new();
        let data = match way.begin_header(context, &mut header_iov) {
            Some(first) => {
                let number = way.machine.on_pair_posted();
                debug_assert!(number.is_ok(), "admission asked the same");
                let [data, payload_data] = way.machine.pair_data(number.unwrap_or(0));
                // The gate is the header's, so that nothing is out before it is open.
                let gate = gate.take();
                self.push_message((first, Some(data)), header_iov, gate, way.posted);
                Some(payload_data)
            }
            None => way.take_credit(),
        };
        self.push_message((context, data), iov, gate, way.posted);
        Ok(())
    }

    /// Posts a message whose credit was taken. It waits where others are in front of it, and where
    /// the provider has no room for it; and where the connection is lost, by this or before: then
    /// it has its outcome with that.
    pub(crate) fn post_or_wait<L: Link>(
        &mut self,
        way: &mut Posting<'_, L>,
        message: (usize, Option<u64>),
        iov: IovList,
        more: bool,
    ) {
        if self.messages() == LineState::Open && way.machine.state() != State::Closed {
            let conn = Some(way.conn);
            match way.outgoing.hand_over(way.link, conn, message, &iov, more) {
                Ok(()) => return,
                Err(PostRefused::Again) => *way.eagain += 1,
                Err(PostRefused::Errno(errno)) => way.machine.on_lost(Some(errno)),
            }
        }
        self.push_message(message, iov, None, way.posted);
    }

    fn post_messages<L: Link>(&mut self, way: &mut Posting<'_, L>, driven: &mut Driven) {
        while let Some((at, error)) = self
            .messages
            .poll_gates(|message, behind| message.poll_gate(way.posted, behind))
        {
            let op = self.fail_message(at, way);
            driven.unposted.extend(op.map(|op| (op, error)));
        }
        while let Some(first) = self.messages.pop_open() {
            let WaitingMessage { context, data, .. } = first.what;
            let (message, conn) = ((context, data), Some(way.conn));
            let posted = way
                .outgoing
                .hand_over(way.link, conn, message, &first.iov, false);
            let Err(refused) = posted else { continue };
            self.messages.0.push_front(first);
            match refused {
                PostRefused::Again => *way.eagain += 1,
                PostRefused::Errno(errno) => way.machine.on_lost(Some(errno)),
            }
            return;
        }
    }

    /// The gate of a message will not open: it was never posted, and those behind it take its
    /// number.
    #[cold]
    fn fail_message<L: Link>(&mut self, at: usize, way: &mut Posting<'_, L>) -> Option<DataOp> {
        let WaitingMessage { context, gate, .. } = self.messages.0.remove(at)?.what;
        let alone = context != gate;
        if alone {
            // Its payload is behind it.
            self.messages.0.remove(at);
            way.machine.on_pair_undone();
            way.posted.abort_header(context, way.outgoing);
        } else {
            way.machine.on_post_undone();
        }
        self.move_up(at, 1 + u32::from(alone), way);
        match way.posted.messages.abort(gate) {
            MessageOp::Data(op) => Some(op),
            MessageOp::Header(_) => unreachable!("a header has no gate"),
        }
    }

    /// What waits from there on was numbered when it was accepted, with a message that is gone.
    fn move_up<L: Link>(&mut self, at: usize, by: u32, way: &mut Posting<'_, L>) {
        let numbered = way.link.form() == Form::Rdm;
        for waiting in self.messages.0.range_mut(at..) {
            let message = &mut waiting.what;
            if numbered {
                message.data = message.data.map(|data| wire::renumbered(data, by));
            }
            if let Some(op) = way.posted.data(message.context) {
                op.sequence -= 1;
            }
        }
    }

    /// The connection is over: the messages that wait were never posted, and are nobody's but ours.
    pub(crate) fn end_messages(&mut self, posted: &mut Posted, outgoing: &Outgoing) -> Vec<DataOp> {
        let mut messages = Vec::new();
        for waiting in self.messages.0.drain(..) {
            match posted.messages.finish(waiting.what.context) {
                // Where the header is out, the provider has that alone.
                Ok(MessageOp::Data(op)) => messages.extend(posted.on_payload(op, true)),
                Ok(MessageOp::Header(op)) => outgoing.end_header(posted.on_header(op).0),
                Err(_) => {}
            }
        }
        messages
    }

    // ---- one-sided operations -------------------------------------------------------------------

    /// Takes an operation that was counted as one in flight. Its gate is asked at once, so that a
    /// copy begins; what it says is heard at the next look, in the order of all.
    pub(crate) fn push_operation(&mut self, op: OneSided, iov: IovList, how: How) {
        let mut what = WaitingOperation { op, how };
        let open = matches!(what.op.local.poll_gate(false), Ok(true));
        if open && let Some(transfer) = what.transfer() {
            transfer.prepare();
        }
        self.operations.0.push_back(Waiting { what, iov, open });
    }

    /// The operations, for whoever counts them or looks at their deadlines.
    pub(crate) fn ops(&self) -> impl Iterator<Item = &OneSided> {
        let waiting = self.operations.0.iter().map(|waiting| &waiting.what);
        self.passing.iter().chain(waiting).map(|it| &it.op)
    }

    fn ops_mut(&mut self) -> impl Iterator<Item = &mut OneSided> {
        let all = self.passing.iter_mut();
        let all = all.chain(
            self.operations
                .0
                .iter_mut()
                .map(|waiting| &mut waiting.what),
        );
        all.map(|it| &mut it.op)
    }

    fn post_operations<L: Link>(&mut self, way: &mut Posting<'_, L>, driven: &mut Driven) {
        while let Some((at, error)) = self
            .operations
            .poll_gates(|it, behind| it.op.local.poll_gate(behind))
        {
            driven.over.extend(self.take_operation(at, error, way));
        }
        // What is open begins its copies, though it is not the first.
        for waiting in self.operations.0.iter_mut().take(GATES_AHEAD) {
            if waiting.open
                && let Some(transfer) = waiting.what.transfer()
            {
                transfer.prepare();
            }
        }
        while let Some(first) = self.operations.pop_open() {
            match post_operation(way, first) {
                FirstInLine::Whole => {}
                FirstInLine::Pieces(first) => self.passing.push(first.what),
                FirstInLine::Not(first) => {
                    self.operations.0.push_front(first);
                    break;
                }
                FirstInLine::Failed(failed) => driven.over.push(*failed),
            }
        }
        self.collect(way, &mut driven.over);
        self.trailing.retain_mut(|copies| !copies.is_over());
    }

    /// Takes out one that fails.
    fn take_operation<L: Link>(
        &mut self,
        at: usize,
        error: CompletionError,
        way: &mut Posting<'_, L>,
    ) -> Option<Over> {
        let failed = self.operations.0.remove(at)?.what;
        Some(failed.over(Some(error), way))
    }

    /// Takes out those that went piece by piece and are over.
    fn collect<L: Link>(&mut self, way: &mut Posting<'_, L>, ended: &mut Vec<Over>) {
        let mut at = 0;
        while let Some(transfer) = self
            .passing
            .get_mut(at)
            .and_then(WaitingOperation::transfer)
        {
            if !transfer.is_over() {
                at += 1;
                continue;
            }
            self.trailing.extend(transfer.take_trailing());
            let error = transfer.take_failure();
            ended.push(self.passing.remove(at).over(error, way));
        }
    }

    /// A piece is over, of an operation of this line. The line is to be driven then.
    pub(crate) fn on_piece(&mut self, piece: Piece, error: Option<CompletionError>) {
        let found = self.ops_mut().find(|op| op.sequence == piece.of);
        if let Some(Local::Staged(transfer)) = found.map(|op| &mut op.local) {
            transfer.on_over(piece, error);
        }
    }

    /// The peer revoked a window: what was not begun on it is over, and how many operations go on.
    pub(crate) fn revoke<L: Link>(
        &mut self,
        window: WindowId,
        way: &mut Posting<'_, L>,
    ) -> (Vec<Over>, usize) {
        let (mut over, mut at) = (Vec::new(), 0);
        while let Some(waiting) = self.operations.0.get(at) {
            if waiting.what.op.window != window || !waiting.what.is_untouched() {
                at += 1;
                continue;
            }
            let revoked = CompletionError {
                provider_message: "the window was revoked before anything was posted".to_owned(),
                ..CompletionError::new(libc::ECANCELED)
            };
            over.extend(self.take_operation(at, revoked, way));
        }
        (over, self.ops().filter(|op| op.window == window).count())
    }

    /// The connection is over: so are the operations that are here, in order. Pieces that the
    /// provider has go on without them.
    pub(crate) fn end_operations(&mut self, outgoing: &mut Outgoing) -> Vec<OneSided> {
        let waiting = self.operations.0.drain(..).map(|waiting| waiting.what);
        let all = self.passing.drain(..).chain(waiting).map(|it| it.op);
        let mut all: Vec<_> = all.collect();
        all.sort_unstable_by_key(|op| op.sequence);
        for op in &mut all {
            outgoing.end_one_sided(op);
        }
        all
    }

    // ---- the long message -----------------------------------------------------------------------

    pub(crate) fn long(&self) -> Option<&LongSend> {
        self.long.as_deref()
    }

    /// Keys of what lies here, messages in the slab not counted.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u64> {
        let long = self.long.iter().map(|long| long.key);
        self.ops().map(|op| op.key).chain(long)
    }

    /// When each of them was given, where that is still of interest.
    pub(crate) fn posted_at(&self) -> impl Iterator<Item = Option<Instant>> {
        let long = self.long.iter().map(|long| long.posted);
        self.ops().map(|op| op.posted).chain(long)
    }

    /// Offers a message to the peer that is too long for a receive, or gives everything back. There
    /// is no other one: the machine sees to that.
    #[cold]
    pub(crate) fn offer_long<L: Link>(
        &mut self,
        way: &mut Posting<'_, L>,
        message: (Payload, Header<'_>, u64, u64),
        posted: Option<Instant>,
    ) -> Result<(), (SendErrorKind, Payload)> {
        self.long = Some(LongSend::offer(way, message, posted)?);
        Ok(())
    }

    /// The peer says where the message is to be.
    pub(crate) fn on_long_granted<L: Link>(
        &mut self,
        target: (u64, u64),
        way: &mut Posting<'_, L>,
    ) {
        if let Some(long) = &mut self.long {
            long.on_granted(target, way);
        }
    }

    /// A piece of it is over. True: it was the last one.
    pub(crate) fn on_long_piece<L: Link>(
        &mut self,
        error: Option<FabricErrno>,
        way: &mut Posting<'_, L>,
    ) -> bool {
        let long = self.long.as_mut();
        long.is_some_and(|long| long.on_piece(error, way))
    }

    /// It is over, or its connection is: then the provider may have pieces of it.
    pub(crate) fn take_long(&mut self) -> Option<Box<LongSend>> {
        self.long.take()
    }

    // ---- both -----------------------------------------------------------------------------------

    /// What has a deadline, and lies in no slab.
    pub(crate) fn timed(&mut self) -> impl Iterator<Item = TimedOp<'_>> {
        let waiting = self
            .operations
            .0
            .iter_mut()
            .map(|waiting| &mut waiting.what);
        let operations = self.passing.iter_mut().chain(waiting);
        let long = self.long.iter_mut().map(|long| long.timed());
        operations.map(|it| it.op.timed()).chain(long)
    }

    /// Posts what may be posted, and gives what is over.
    pub(crate) fn drive<L: Link>(&mut self, way: &mut Posting<'_, L>) -> Driven {
        let mut driven = Driven::default();
        self.post_messages(way, &mut driven);
        self.post_operations(way, &mut driven);
        if let Some(long) = self.long.as_mut().filter(|long| long.wants_retry()) {
            long.write(way);
        }
        driven
    }
}

/// What became of the first in a line.
enum FirstInLine {
    Whole,
    /// All its pieces are posted.
    Pieces(Waiting<WaitingOperation>),
    /// Not now, or not all of it.
    Not(Waiting<WaitingOperation>),
    Failed(Box<Over>),
}

fn post_operation<L: Link>(
    way: &mut Posting<'_, L>,
    mut first: Waiting<WaitingOperation>,
) -> FirstInLine {
    let WaitingOperation { op, how } = &mut first.what;
    if let Local::Staged(transfer) = &mut op.local {
        return match post_pieces(way, op.sequence, transfer, how) {
            Next::Nothing => FirstInLine::Pieces(first),
            Next::Post | Next::Wait => FirstInLine::Not(first),
        };
    }
    let Waiting { what, iov, open } = first;
    let WaitingOperation { op, how } = what;
    let slab = &mut way.posted.one_sided;
    let posted = one_sided::hand_over(way.link, way.conn, slab, op, &iov, &how);
    let Err((refused, op)) = posted else {
        return FirstInLine::Whole;
    };
    let what = WaitingOperation { op, how };
    match refused {
        PostRefused::Again => FirstInLine::Not(Waiting { what, iov, open }),
        PostRefused::Errno(errno) => {
            let error = refused_with(errno, what.how.write);
            FirstInLine::Failed(Box::new(what.over(Some(error), way)))
        }
    }
}

/// Posts the pieces of an operation as far as that is possible now.
fn post_pieces<L: Link>(
    way: &mut Posting<'_, L>,
    sequence: u64,
    transfer: &mut StagedTransfer,
    how: &mut How,
) -> Next {
    let slab = &mut way.posted.pieces;
    loop {
        match transfer.next() {
            Next::Post if slab.vacant().is_none() => return Next::Wait,
            Next::Post => {}
            next => return next,
        }
        let of = (way.connection, sequence);
        let Some((piece, iov, remote)) = transfer.take(of, &how.remote) else {
            continue;
        };
        let last = transfer.is_last(&piece);
        let how_piece = How {
            remote,
            immediate: how.immediate.filter(|_| last),
            ..*how
        };
        let piece = PieceOp::OneSided(piece);
        let posted = one_sided::hand_over(way.link, way.conn, slab, piece, &iov, &how_piece);
        let Err((refused, piece)) = posted else {
            if last {
                // It is the peer's to hear.
                how.immediate = None;
            }
            continue;
        };
        if let PieceOp::OneSided(piece) = piece {
            transfer.put_back(piece);
        }
        match refused {
            PostRefused::Again => return Next::Wait,
            PostRefused::Errno(errno) => transfer.fail(refused_with(errno, how.write)),
        }
    }
}

fn refused_with(errno: FabricErrno, write: bool) -> CompletionError {
    let call = if write { "fi_writemsg" } else { "fi_readmsg" };
    CompletionError {
        provider_message: format!("{call}: {errno}"),
        ..CompletionError::new(errno.get())
    }
}
