//! `LongSend`: a message that is too long for a receive, written into memory that the peer grants,
//! piece by piece, without a copy.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::time::Instant;

use super::{Hub, outbound};
use crate::buffer::{GateError, Payload};
use crate::endpoint::error::SendErrorKind;
use crate::endpoint::event::Level;
use crate::endpoint::hub::control::HeldDescriptor;
use crate::endpoint::hub::data_op::LongOp;
use crate::endpoint::hub::event::HubEvent;
use crate::endpoint::hub::headers::Header;
use crate::endpoint::hub::outgoing::{self, Outgoing};
use crate::endpoint::hub::posted::{LongPiece, PieceOp, TimedOp};
use crate::endpoint::hub::posting::Posting;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{IOV_MAX, Link, PostRefused, RemoteRange, RmaPost};
use crate::endpoint::staging::PIECE_BYTES;
use crate::error::{CompletionError, FabricErrno};
use crate::id::ConnectionId;

/// Pieces of a long message in flight at once, at most. A connection has one message.
pub(crate) const PIECES_MAX: u32 = 4;

/// The long message that is under way.
pub(crate) struct LongSend {
    connection: ConnectionId,
    pub(crate) key: u64,
    /// When it was offered; kept only where there is a deadline, and until it was found late.
    pub(crate) posted: Option<Instant>,
    /// The header's slot and the payload.
    op: LongOp,
    len: u64,
    /// What the peer granted.
    target: Option<(u64, u64)>,
    /// What was posted: whole runs, bytes of the next one, bytes in all.
    run: usize,
    at: usize,
    offset: u64,
    /// Pieces in flight, and those that are copied.
    pieces: u32,
    /// Parts that are copied, and not posted yet.
    copying: VecDeque<CopyingPiece>,
    /// To be looked at again: the provider's queue was full, or the slab of the pieces, or a copy
    /// is under way.
    retry: bool,
}

/// A part of a message in a slot of the staging ring.
struct CopyingPiece {
    /// Where in the message it begins.
    offset: u64,
    payload: Payload,
}

impl LongSend {
    /// Offers a message to the peer, or gives everything back. `posted`: when its deadline begins.
    pub(crate) fn offer<L: Link>(
        way: &mut Posting<'_, L>,
        (payload, header, key, len): (Payload, Header<'_>, u64, u64),
        posted: Option<Instant>,
    ) -> Result<Box<Self>, (SendErrorKind, Payload)> {
        // It is posted piece by piece.
        let mut unused = IovList::new();
        let (outgoing, _, context) = way.loading(posted, &mut unused);
        let op = outgoing.load_long(payload, header, key, context)?;
        if let Err(blocked) = way.machine.offer_long(len) {
            let kind = outgoing::refusal(blocked, way.machine.close_reason());
            return Err((kind, way.outgoing.end_long(op)));
        }
        Ok(Box::new(Self {
            connection: way.connection,
            key,
            posted,
            op,
            len,
            target: None,
            run: 0,
            at: 0,
            offset: 0,
            pieces: 0,
            copying: VecDeque::new(),
            retry: false,
        }))
    }

    pub(crate) fn connection(&self) -> ConnectionId {
        self.connection
    }

    /// The provider has pieces of it.
    pub(crate) fn has_pieces(&self) -> bool {
        self.pieces > 0
    }

    /// Whether the message has to be looked at again though no event will say so.
    pub(crate) fn wants_retry(&self) -> bool {
        self.retry
    }

    /// The message, for the scan of deadlines. A connection has one at most, so it needs no number.
    pub(crate) fn timed(&mut self) -> TimedOp<'_> {
        TimedOp {
            connection: self.connection,
            sequence: 0,
            key: self.key,
            others: &[],
            posted: &mut self.posted,
        }
    }

    /// The next piece: its segments, and how many bytes they are.
    fn piece(&self, segments: usize, bytes: u64) -> (IovList, u64) {
        let mut iov = IovList::new();
        let (mut run, mut at, mut room) = (self.run, self.at, bytes);
        while let Some(next) = self
            .op
            .runs
            .get(run)
            .filter(|next| iov.len() < segments && room > 0 && next.device.is_none())
        {
            let len = ((next.len - at) as u64).min(room);
            iov.push(next.base.wrapping_add(at), len as usize, next.desc);
            room -= len;
            at += len as usize;
            if at == next.len {
                (run, at) = (run + 1, 0);
            }
        }
        (iov, bytes - room)
    }

    /// `bytes` more bytes of the message are posted.
    fn advance(&mut self, bytes: u64) {
        self.offset += bytes;
        self.pieces += 1;
        let mut left = bytes as usize;
        while left > 0 {
            let here = (self.op.runs[self.run].len - self.at).min(left);
            left -= here;
            self.at += here;
            if self.at == self.op.runs[self.run].len {
                (self.run, self.at) = (self.run + 1, 0);
            }
        }
    }

    /// A sleeper has to come back soon.
    pub(crate) fn is_copying(&self) -> bool {
        !self.copying.is_empty()
    }

    fn is_written(&self) -> bool {
        self.offset == self.len && self.pieces == 0
    }

    /// The peer says where the message is to be.
    pub(crate) fn on_granted<L: Link>(&mut self, target: (u64, u64), way: &mut Posting<'_, L>) {
        self.target = Some(target);
        self.write(way);
    }

    /// Posts as many pieces as may be in flight.
    pub(crate) fn write<L: Link>(&mut self, way: &mut Posting<'_, L>) {
        if self.target.is_none() {
            return;
        }
        match self.op.poll_gate() {
            Ok(open) => self.retry = !open,
            // The peer has granted it room, and waits for it.
            Err(error) => return lose(way, &error),
        }
        if !self.retry && self.write_copied(way) {
            self.write_more(way);
        }
    }

    /// Posts pieces whose copies are done; false if the provider, or the connection, takes no more.
    fn write_copied<L: Link>(&mut self, way: &mut Posting<'_, L>) -> bool {
        loop {
            let Some(first) = self.copying.front_mut() else {
                return true;
            };
            if !way.machine.may_write_long() {
                return false;
            }
            match first.payload.poll_gate() {
                Ok(true) => {}
                Ok(false) => {
                    self.retry = true;
                    return true;
                }
                Err(error) => {
                    lose(way, &error);
                    return false;
                }
            }
            let Some(piece) = self.copying.pop_front() else {
                return true;
            };
            let desc = self.op.staged.first().map(HeldDescriptor::desc);
            let mut iov = IovList::new();
            for segment in piece.payload.wire().parts() {
                let desc = desc.unwrap_or(std::ptr::null_mut());
                segment.name_runs(desc, &mut |base, len, desc| iov.push(base, len, desc));
            }
            let offset = piece.offset;
            if let Err(payload) = self.post_piece(way, &iov, offset, piece.payload) {
                self.copying.push_front(CopyingPiece { offset, payload });
                return false;
            }
        }
    }

    /// Posts pieces that lie in the host's memory, and begins the copies of others.
    fn write_more<L: Link>(&mut self, way: &mut Posting<'_, L>) {
        let Some(rma) = way.link.limits().rma else {
            return;
        };
        let (segments, bytes) = (
            rma.iov_limit.min(IOV_MAX),
            rma.max_bytes.min(PIECE_BYTES as u64),
        );
        while self.pieces < PIECES_MAX && self.offset < self.len && way.machine.may_write_long() {
            let run = &self.op.runs[self.run];
            if run.device.is_some() {
                let staged = way.outgoing.staging.piece(run, self.at, bytes as usize);
                let Some((mut payload, len)) = staged else {
                    self.retry = true;
                    way.outgoing.staging.arm();
                    return;
                };
                // What it says is heard at the next look.
                let _ = payload.poll_gate();
                let offset = self.offset;
                self.copying.push_back(CopyingPiece { offset, payload });
                self.advance(len as u64);
                self.retry = true;
                continue;
            }
            let (iov, len) = self.piece(segments, bytes);
            let posted = self.post_piece(way, &iov, self.offset, Payload::empty());
            if posted.is_err() {
                return;
            }
            self.advance(len);
        }
    }

    /// Posts one piece, or gives back what it holds.
    fn post_piece<L: Link>(
        &mut self,
        way: &mut Posting<'_, L>,
        iov: &IovList,
        offset: u64,
        held: Payload,
    ) -> Result<(), Payload> {
        let Some((base, key)) = self.target else {
            return Err(held);
        };
        let connection = self.connection;
        let piece = PieceOp::Long(LongPiece { connection, held });
        let context = match way.posted.pieces.begin(piece) {
            Ok(context) => context,
            Err(piece) => {
                // One-sided operations, or other connections, have them all. Nobody else says when
                // one is free.
                self.retry = true;
                return Err(piece.into_held());
            }
        };
        let post = RmaPost {
            iov: iov.iov(),
            desc: iov.desc(),
            // The machine checked that base and length together are an address.
            remote: RemoteRange {
                addr: base + offset,
                len: iov.len_bytes(),
                key,
            },
            context,
            data: None,
            level: Level::Delivered,
        };
        // SAFETY: this owns slot and payload, or the slab the slot of the ring, which keep the
        // memory alive, registered and unwritten, until no piece is in flight any more (`end`) or
        // the endpoint was closed. Where the connection is over before, `Posted` has this
        // (`Posted::adopt_long`); it is leaked where the endpoint does not close
        // (`Posted::leak`).
        let Err(refused) = (unsafe { way.link.post_write(way.conn, &post) }) else {
            return Ok(());
        };
        if let PostRefused::Errno(errno) = refused {
            way.machine.on_lost(Some(errno));
        }
        way.eagain.add(u64::from(refused == PostRefused::Again));
        self.retry = refused == PostRefused::Again;
        Err(way.posted.pieces.abort(context).into_held())
    }

    /// A piece is over. True: it was the last, and the message is to be [ended](Self::end).
    pub(crate) fn on_piece<L: Link>(
        &mut self,
        error: Option<FabricErrno>,
        way: &mut Posting<'_, L>,
    ) -> bool {
        self.pieces -= 1;
        if error.is_some() {
            way.machine.on_lost(error);
        }
        if !way.machine.may_write_long() {
            // Its end comes with the connection's, also where the pieces behind one that failed are
            // there before that.
            return false;
        }
        if !self.is_written() {
            self.write(way);
            return false;
        }
        way.machine.long_written();
        true
    }

    /// A piece of a message whose connection is over has ended: no other piece follows.
    pub(crate) fn on_orphaned_piece(&mut self) {
        self.pieces = self.pieces.saturating_sub(1);
    }

    /// The message is over, and nothing of it in flight: its key, and what was given.
    pub(crate) fn end(self, outgoing: &mut Outgoing) -> (u64, Payload) {
        let Self {
            key, op, copying, ..
        } = self;
        // They read what goes back to its owner.
        drop(copying);
        (key, outgoing.end_long(op))
    }
}

impl<L: Link, E: HubEvent> Hub<L, E> {
    /// The peer says where the message is to be.
    pub(super) fn on_long_granted(&mut self, id: ConnectionId, target: (u64, u64)) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        let (line, mut way) = outbound::way(&mut self.outbound, &mut self.link, (id, peer));
        if let Some(line) = line {
            line.on_long_granted(target, &mut way);
            self.outbound.retry |= line.pause().is_some();
        }
    }

    /// The peer does not take it.
    pub(super) fn on_long_refused(
        &mut self,
        id: ConnectionId,
        limit: Option<u64>,
        events: &mut Vec<E>,
    ) {
        let error = match limit {
            Some(limit) => CompletionError::too_long(limit),
            None => CompletionError::new(libc::ECANCELED),
        };
        let line = self.peers.get_mut(id).and_then(|it| it.outbound.line());
        if let Some(long) = line.and_then(|line| line.take_long()) {
            self.on_long_over(*long, Some(error), events);
        }
    }

    /// A piece is over.
    pub(super) fn on_long_piece(
        &mut self,
        piece: LongPiece,
        error: Option<CompletionError>,
        events: &mut Vec<E>,
    ) {
        let LongPiece { connection, held } = piece;
        drop(held);
        let Some(peer) = self.peers.get_mut(connection) else {
            return self.on_orphaned_piece(connection, events);
        };
        let to = (connection, peer);
        let (line, mut way) = outbound::way(&mut self.outbound, &mut self.link, to);
        if let Some(line) = line {
            let whole = line.on_long_piece(error.map(|error| error.errno), &mut way);
            let over = if whole { line.take_long() } else { None };
            self.outbound.retry |= line.pause().is_some();
            if let Some(long) = over {
                self.on_long_over(*long, None, events);
            }
        }
        self.touch(connection);
    }

    /// The same where the connection is over. Its message was told of then, and is given back with
    /// its last piece; its address goes with the last thing that the provider has of it.
    fn on_orphaned_piece(&mut self, id: ConnectionId, events: &mut Vec<E>) {
        if let Some(orphan) = self.outbound.posted.on_orphaned_piece(id) {
            self.outbound.on_orphan_over(orphan, None, events);
        }
        self.on_orphan(id);
    }

    /// The message is over, and the provider has nothing of it.
    pub(super) fn on_long_over(
        &mut self,
        long: LongSend,
        error: Option<CompletionError>,
        events: &mut Vec<E>,
    ) {
        let id = long.connection();
        self.outbound.on_long_over(long, error, events);
        if let Some(peer) = self.peers.get_mut(id) {
            peer.outbound.in_flight -= 1;
            self.touch(id);
        }
    }
}

/// Its bytes will never come.
fn lose<L: Link>(way: &mut Posting<'_, L>, error: &GateError) {
    tracing::debug!(%error, "a long message can't be sent");
    way.machine.on_lost(Some(FabricErrno::new(libc::EIO)));
}

impl PieceOp {
    fn into_held(self) -> Payload {
        match self {
            Self::Long(piece) => piece.held,
            Self::OneSided(_) => Payload::empty(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::buffer::Payload;
    use crate::endpoint::hub::conn_table::NOBODY;
    use crate::endpoint::hub::posted::PieceOp;
    use crate::endpoint::link::fake::NetConfig;
    use crate::endpoint::testing::hubs::{HubSetup, Hubs};
    use crate::event_loop::WaitSource;
    use crate::protocol::connection::Form;

    /// One-sided operations may have them all.
    #[test]
    fn a_message_that_finds_no_free_piece_waits_until_there_is_one() {
        for form in [Form::Msg, Form::Rdm] {
            let setup = HubSetup {
                net: NetConfig {
                    form,
                    max_message: 100,
                    ..NetConfig::default()
                },
                receive_slots: 160,
                sends_long: true,
                long: Some((2, 4096)),
                ..HubSetup::default()
            };
            let (mut hubs, ids) = Hubs::star(&setup, 2);
            let mut taken = Vec::new();
            let pieces = &mut hubs.hubs[0].core().outbound.posted.pieces;
            while pieces.vacant().is_some() {
                let held = Payload::empty();
                let connection = NOBODY;
                let piece = PieceOp::Long(LongPiece { connection, held });
                taken.extend(pieces.begin(piece).map_err(drop));
            }
            hubs.hubs[0].send_long(ids[0], 1).unwrap();
            hubs.settle();
            assert!(hubs.hubs[0].completed.is_empty(), "{form:?}");
            let wakes = hubs.hubs[0].core().wait().next_deadline();
            assert!(wakes.is_some(), "nobody would look again");
            for context in taken {
                drop(hubs.hubs[0].core().outbound.posted.pieces.abort(context));
            }
            hubs.settle();
            assert_eq!(hubs.hubs[0].completed, [1], "{form:?}");
            assert_eq!(hubs.hubs[1].received, [1]);
            hubs.end();
        }
    }
}
