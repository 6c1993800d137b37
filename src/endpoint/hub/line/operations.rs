//! `OperationLine`: one-sided operations that wait, or go piece by piece.

use super::{Driven, GATES_AHEAD, LineState, Over, Queue, Waiting};
use crate::endpoint::hub::outgoing::Outgoing;
use crate::endpoint::hub::posted::{PieceOp, TimedOp};
use crate::endpoint::hub::posting::Posting;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{Link, PostRefused};
use crate::endpoint::windows::one_sided::{self, Local, OneSided, PostMode};
use crate::endpoint::windows::staged_transfer::{Next, Piece, StagedTransfer, TrailingCopies};
use crate::error::{CompletionError, FabricErrno};
use crate::protocol::wire::WindowId;

/// An operation that waits, or is passing.
struct WaitingOperation {
    op: OneSided,
    how: PostMode,
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

    /// Ends the operation: its connection, and the lease that all share, count it no more.
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

/// The one-sided operations of one connection that are not posted as a whole.
#[derive(Default)]
pub(crate) struct OperationLine {
    waiting: Queue<WaitingOperation>,
    /// All their pieces are posted.
    passing: Vec<WaitingOperation>,
    /// Copies behind reads whose outcome was told.
    trailing: Vec<TrailingCopies>,
}

impl OperationLine {
    /// Whether an operation that is given now may be posted.
    #[inline]
    pub(crate) fn state(&self) -> LineState {
        self.waiting.state()
    }

    /// One waits for a gate, or for a copy.
    pub(super) fn is_gated(&self) -> bool {
        let waiting = self.waiting.0.iter().map(|waiting| &waiting.what);
        let mut operations = waiting.chain(&self.passing);
        self.waiting.has_closed() || operations.any(WaitingOperation::is_copying)
    }

    /// One waits for room at the provider, or a copy is under way whose read was told.
    pub(super) fn wants_retry(&self) -> bool {
        !self.waiting.0.is_empty() || !self.trailing.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.0.is_empty() && self.passing.is_empty() && self.trailing.is_empty()
    }

    /// Takes an operation that was counted as one in flight. Its gate is asked at once, so that a
    /// copy begins; what it says is heard at the next look, in the order of all.
    pub(crate) fn push(&mut self, op: OneSided, iov: IovList, how: PostMode) {
        let mut what = WaitingOperation { op, how };
        let open = matches!(what.op.local.poll_gate(false), Ok(true));
        if open && let Some(transfer) = what.transfer() {
            transfer.prepare();
        }
        self.waiting.0.push_back(Waiting { what, iov, open });
    }

    /// The operations, for whoever counts them or looks at their deadlines.
    pub(super) fn ops(&self) -> impl Iterator<Item = &OneSided> {
        let waiting = self.waiting.0.iter().map(|waiting| &waiting.what);
        self.passing.iter().chain(waiting).map(|it| &it.op)
    }

    fn ops_mut(&mut self) -> impl Iterator<Item = &mut OneSided> {
        let all = self.passing.iter_mut();
        let all = all.chain(self.waiting.0.iter_mut().map(|waiting| &mut waiting.what));
        all.map(|it| &mut it.op)
    }

    pub(super) fn post_open<L: Link>(&mut self, way: &mut Posting<'_, L>, driven: &mut Driven) {
        while let Some((at, error)) = self
            .waiting
            .poll_gates(|it, behind| it.op.local.poll_gate(behind))
        {
            driven.over.extend(self.fail(at, error, way));
        }
        // What is open begins its copies, though it is not the first.
        for waiting in self.waiting.0.iter_mut().take(GATES_AHEAD) {
            if waiting.open
                && let Some(transfer) = waiting.what.transfer()
            {
                transfer.prepare();
            }
        }
        while let Some(first) = self.waiting.pop_open() {
            match post_operation(way, first) {
                FirstInLine::Whole => {}
                FirstInLine::Pieces(first) => self.passing.push(first.what),
                FirstInLine::Not(first) => {
                    self.waiting.0.push_front(first);
                    break;
                }
                FirstInLine::Failed(failed) => driven.over.push(*failed),
            }
        }
        self.collect(way, &mut driven.over);
        self.trailing.retain_mut(|copies| !copies.is_over());
    }

    /// Takes out one that fails.
    fn fail<L: Link>(
        &mut self,
        at: usize,
        error: CompletionError,
        way: &mut Posting<'_, L>,
    ) -> Option<Over> {
        let failed = self.waiting.0.remove(at)?.what;
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
        while let Some(waiting) = self.waiting.0.get(at) {
            if waiting.what.op.window != window || !waiting.what.is_untouched() {
                at += 1;
                continue;
            }
            let revoked = CompletionError {
                provider_message: "the window was revoked before anything was posted".to_owned(),
                ..CompletionError::new(libc::ECANCELED)
            };
            over.extend(self.fail(at, revoked, way));
        }
        (over, self.ops().filter(|op| op.window == window).count())
    }

    /// The connection is over: so are the operations that are here, in order. Pieces that the
    /// provider has go on without them.
    pub(crate) fn end(&mut self, outgoing: &mut Outgoing) -> Vec<OneSided> {
        let waiting = self.waiting.0.drain(..).map(|waiting| waiting.what);
        let all = self.passing.drain(..).chain(waiting).map(|it| it.op);
        let mut all: Vec<_> = all.collect();
        all.sort_unstable_by_key(|op| op.sequence);
        for op in &mut all {
            outgoing.end_one_sided(op);
        }
        all
    }

    /// The operations, for the scan of deadlines.
    pub(super) fn timed(&mut self) -> impl Iterator<Item = TimedOp<'_>> {
        self.ops_mut().map(OneSided::timed)
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
    how: &mut PostMode,
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
        let how_piece = PostMode {
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
