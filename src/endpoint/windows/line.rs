//! `Line`: the one-sided operations of a connection that can't be posted when they are given: they
//! wait for a producer's event or a copy out of a GPU's memory, go piece by piece through slots of
//! the host's memory, or are behind such a one.
//!
//! ```text
//!  accepted ─► waiting, in order ─ its gate is open, it is the first
//!                │
//!                ├─► posted as a whole: the core's slab has it
//!                └─► posted piece by piece ─► passing, until all pieces are over
//! ```
//!
//! Each is counted when it is accepted, as one that is posted at once: in flight, with its credit
//! if it tells the peer, and its deadline. They are posted in the order in which they were given.
//! What ends here without having been posted has touched nothing of the peer's.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::time::Duration;

use crate::endpoint::core::control::{CONTROL_RETRY, GATE_RETRY};
use crate::endpoint::id::ConnectionId;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{Link, PostRefused};
use crate::endpoint::protocol::wire::WindowId;
use crate::endpoint::windows::one_sided::{self, How, Local, OneSided};
use crate::endpoint::windows::passage::{Next, Passage, Piece, Trailing};
use crate::error::{CompletionError, FabricErrno};
use crate::in_flight::InFlight;

/// Gates that are looked at in one go. Copies are done in their order, so looking further brings
/// little; those behind begin theirs in time.
const GATES_AHEAD: usize = 16;

/// Pieces of one-sided operations that an endpoint has in flight at once, at most.
pub(crate) const PIECES_IN_FLIGHT: u32 = 16;

/// What the slab of a core's one-sided operations holds.
pub(crate) trait HoldsOneSided: Sized {
    fn of_one_sided(connection: ConnectionId, op: OneSided) -> Self;
    fn into_one_sided(self) -> Option<OneSided>;
}

/// What the slab of a core's pieces holds.
pub(crate) trait HoldsPiece: Sized {
    fn of_piece(piece: Piece) -> Self;
    fn into_piece(self) -> Option<Piece>;
}

impl HoldsOneSided for OneSided {
    fn of_one_sided(_: ConnectionId, op: OneSided) -> Self {
        op
    }

    fn into_one_sided(self) -> Option<OneSided> {
        Some(self)
    }
}

impl HoldsPiece for Piece {
    fn of_piece(piece: Piece) -> Self {
        piece
    }

    fn into_piece(self) -> Option<Piece> {
        Some(self)
    }
}

/// What a line posts with.
pub(crate) struct Posting<'a, L: Link, T, P> {
    pub(crate) link: &'a mut L,
    pub(crate) conn: &'a L::Conn,
    pub(crate) connection: ConnectionId,
    pub(crate) slab: &'a mut InFlight<T>,
    pub(crate) pieces: &'a mut InFlight<P>,
}

/// An operation that ended in the line: it was never posted, or went piece by piece.
#[derive(Debug)]
pub(crate) struct Over {
    pub(crate) op: OneSided,
    pub(crate) error: Option<CompletionError>,
    /// Its immediate data were not posted: their credit is free again.
    pub(crate) untold: bool,
}

struct WaitingOperation {
    op: OneSided,
    /// Of one that is posted as a whole.
    iov: IovList,
    how: How,
    /// Its gate is.
    open: bool,
}

// SAFETY: addresses and descriptors of what the operation holds, which goes to another thread
// together with this; only the link reads them.
unsafe impl Send for WaitingOperation {}

impl WaitingOperation {
    fn passage(&mut self) -> Option<&mut Passage> {
        match &mut self.op.local {
            Local::Passage(passage) => Some(passage),
            Local::Write(_) | Local::Read(_) => None,
        }
    }

    /// Whether it may be posted, as far as it is concerned. `behind`: others in front of it may
    /// not, and what is under way is not asked about.
    fn poll(&mut self, behind: bool) -> Result<bool, CompletionError> {
        if !self.open {
            let said = match (&mut self.op.local, behind) {
                (Local::Write(payload), true) => payload.advance_gate(),
                (Local::Write(payload), false) => payload.poll_gate(),
                (Local::Read(_), _) => Ok(true),
                (Local::Passage(passage), behind) => passage.poll_gate(behind),
            };
            self.open = said.map_err(|error| CompletionError::gate(&error))?;
        }
        if self.open
            && let Some(passage) = self.passage()
        {
            passage.prepare();
        }
        Ok(self.open)
    }

    fn is_copying(&self) -> bool {
        matches!(&self.op.local, Local::Passage(passage) if passage.is_copying())
    }

    /// Nothing of it was posted.
    fn is_untouched(&self) -> bool {
        !matches!(&self.op.local, Local::Passage(passage) if passage.has_begun())
    }

    fn over(self, error: Option<CompletionError>) -> Over {
        Over {
            untold: self.how.immediate.is_some(),
            op: self.op,
            error,
        }
    }
}

/// Those of one connection.
#[derive(Default)]
pub(crate) struct Line {
    /// In the order in which they were given.
    waiting: VecDeque<WaitingOperation>,
    /// All their pieces are posted.
    passing: Vec<WaitingOperation>,
    /// Copies behind reads whose outcome was told.
    trailing: Vec<Trailing>,
}

impl Line {
    /// Takes an operation that was counted as one in flight. Its gate is asked at once, so that a
    /// copy begins.
    pub(crate) fn push(&mut self, op: OneSided, iov: IovList, how: How) {
        let mut waiting = WaitingOperation {
            op,
            iov,
            how,
            open: false,
        };
        // What it says is heard at the next look, in the order of the operations.
        let _ = waiting.poll(false);
        self.waiting.push_back(waiting);
    }

    /// Whether what is given now has to wait behind others.
    pub(crate) fn is_open(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.passing.is_empty() && self.trailing.is_empty()
    }

    /// Its operations, for whoever counts them or looks at their deadlines.
    pub(crate) fn ops(&self) -> impl Iterator<Item = &OneSided> {
        let all = self.passing.iter().chain(&self.waiting);
        all.map(|waiting| &waiting.op)
    }

    pub(crate) fn ops_mut(&mut self) -> impl Iterator<Item = &mut OneSided> {
        let all = self.passing.iter_mut().chain(&mut self.waiting);
        all.map(|waiting| &mut waiting.op)
    }

    /// How long until it is to be looked at again, if nobody else says so.
    pub(crate) fn pause(&self) -> Option<Duration> {
        let mut all = self.waiting.iter().chain(&self.passing);
        if self.waiting.iter().any(|it| !it.open) || all.any(WaitingOperation::is_copying) {
            return Some(GATE_RETRY);
        }
        let rest = !self.waiting.is_empty() || !self.trailing.is_empty();
        rest.then_some(CONTROL_RETRY)
    }

    /// Posts what may be posted, and gives what is over.
    pub(crate) fn drive<L: Link, T: HoldsOneSided, P: HoldsPiece>(
        &mut self,
        mut way: Posting<'_, L, T, P>,
    ) -> Vec<Over> {
        let mut over = Vec::new();
        self.poll_gates(&mut over);
        while self.waiting.front().is_some_and(|first| first.open) {
            let Some(first) = self.waiting.pop_front() else {
                break;
            };
            match post(&mut way, first) {
                FirstInLine::Whole => {}
                FirstInLine::Pieces(passing) => self.passing.push(passing),
                FirstInLine::Not(first) => {
                    self.waiting.push_front(first);
                    break;
                }
                FirstInLine::Failed(failed) => over.push(*failed),
            }
        }
        self.collect(&mut over);
        self.trailing.retain_mut(|copies| !copies.is_over());
        over
    }

    fn poll_gates(&mut self, over: &mut Vec<Over>) {
        let (mut at, mut behind) = (0, false);
        while at < self.waiting.len().min(GATES_AHEAD) {
            match self.waiting[at].poll(behind) {
                Ok(open) => {
                    behind |= !open;
                    at += 1;
                }
                Err(error) => {
                    let failed = self.waiting.remove(at);
                    over.extend(failed.map(|failed| failed.over(Some(error))));
                }
            }
        }
    }

    /// Takes out those that went piece by piece and are over.
    fn collect(&mut self, over: &mut Vec<Over>) {
        let mut at = 0;
        while let Some(passage) = self.passing.get_mut(at).and_then(WaitingOperation::passage) {
            if !passage.is_over() {
                at += 1;
                continue;
            }
            self.trailing.extend(passage.take_trailing());
            let error = passage.take_failure();
            over.push(self.passing.remove(at).over(error));
        }
    }

    /// A piece is over, of an operation of this line. The line is to be driven then.
    pub(crate) fn on_piece(&mut self, piece: Piece, error: Option<CompletionError>) {
        let mut all = self.passing.iter_mut().chain(&mut self.waiting);
        let found = all.find(|it| it.op.sequence == piece.of);
        if let Some(passage) = found.and_then(WaitingOperation::passage) {
            passage.on_over(piece, error);
        }
    }

    /// The peer revoked a window: what was not begun on it is over, and how many operations go on.
    pub(crate) fn revoke(&mut self, window: WindowId) -> (Vec<Over>, usize) {
        let (mut over, mut at) = (Vec::new(), 0);
        while let Some(waiting) = self.waiting.get(at) {
            if waiting.op.window != window || !waiting.is_untouched() {
                at += 1;
                continue;
            }
            let revoked = CompletionError {
                provider_message: "the window was revoked before anything was posted".to_owned(),
                ..CompletionError::new(libc::ECANCELED)
            };
            let waiting = self.waiting.remove(at);
            over.extend(waiting.map(|waiting| waiting.over(Some(revoked))));
        }
        (over, self.ops().filter(|op| op.window == window).count())
    }

    /// The connection is over: so is all that is here, in order. Pieces that the provider has go on
    /// without it.
    pub(crate) fn end(&mut self) -> Vec<OneSided> {
        let passing = self.passing.drain(..);
        let mut all: Vec<_> = passing.chain(self.waiting.drain(..)).collect();
        all.sort_unstable_by_key(|it| it.op.sequence);
        all.into_iter().map(|it| it.op).collect()
    }
}

/// What became of the first in a line.
enum FirstInLine {
    Whole,
    Pieces(WaitingOperation),
    /// Not now, or not all of it.
    Not(WaitingOperation),
    Failed(Box<Over>),
}

fn post<L: Link, T: HoldsOneSided, P: HoldsPiece>(
    way: &mut Posting<'_, L, T, P>,
    mut first: WaitingOperation,
) -> FirstInLine {
    let (of, how) = ((way.connection, first.op.sequence), &mut first.how);
    if let Local::Passage(passage) = &mut first.op.local {
        return match post_pieces(way, of, passage, how) {
            Next::Nothing => FirstInLine::Pieces(first),
            Next::Post | Next::Wait => FirstInLine::Not(first),
        };
    }
    let WaitingOperation { op, iov, how, open } = first;
    let op = T::of_one_sided(way.connection, op);
    let posted = one_sided::hand_over(way.link, way.conn, way.slab, op, &iov, &how);
    let Err((refused, op)) = posted else {
        return FirstInLine::Whole;
    };
    let Some(op) = op.into_one_sided() else {
        unreachable!("what was given to the slab");
    };
    let waiting = WaitingOperation { op, iov, how, open };
    match refused {
        PostRefused::Again => FirstInLine::Not(waiting),
        PostRefused::Errno(errno) => {
            let error = refused_with(errno, waiting.how.write);
            FirstInLine::Failed(Box::new(waiting.over(Some(error))))
        }
    }
}

/// Posts the pieces of an operation as far as that is possible now.
fn post_pieces<L: Link, T, P: HoldsPiece>(
    way: &mut Posting<'_, L, T, P>,
    of: (ConnectionId, u64),
    passage: &mut Passage,
    how: &mut How,
) -> Next {
    loop {
        match passage.next() {
            Next::Post if way.pieces.vacant().is_none() => return Next::Wait,
            Next::Post => {}
            next => return next,
        }
        let Some((piece, iov, remote)) = passage.take(of, &how.remote) else {
            continue;
        };
        let last = passage.is_last(&piece);
        let how_piece = How {
            remote,
            immediate: how.immediate.filter(|_| last),
            ..*how
        };
        let piece = P::of_piece(piece);
        let posted = one_sided::hand_over(way.link, way.conn, way.pieces, piece, &iov, &how_piece);
        let Err((refused, piece)) = posted else {
            if last {
                // It is the peer's to hear.
                how.immediate = None;
            }
            continue;
        };
        if let Some(piece) = piece.into_piece() {
            passage.put_back(piece);
        }
        match refused {
            PostRefused::Again => return Next::Wait,
            PostRefused::Errno(errno) => passage.fail(refused_with(errno, how.write)),
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
