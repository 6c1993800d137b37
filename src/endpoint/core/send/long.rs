//! Long messages at a send endpoint: written into memory that the peer grants, piece by piece,
//! without a copy.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::time::Instant;

use super::{PieceOp, SendCore};
use crate::buffer::Payload;
use crate::endpoint::core::control::HeldDescriptor;
use crate::endpoint::core::outgoing::{LongOp, PostingContext};
use crate::endpoint::event::{Level, SendEvent};
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{IOV_MAX, Link, PostRefused, RemoteRange, RmaPost};
use crate::endpoint::staging::PIECE_BYTES;
use crate::error::{Blocked, CompletionError, FabricErrno, Refused, SendErrorKind};

/// Pieces of a long message in flight at once.
pub(crate) const PIECES_MAX: u32 = 4;

/// The long message that is under way.
pub(super) struct LongSend {
    pub(super) key: u64,
    /// When it was offered; kept only where there is a deadline, and until it was found late.
    pub(super) posted: Option<Instant>,
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
    /// To be looked at again: the provider's queue was full, or a copy is under way.
    pub(super) retry: bool,
}

/// A part of a message in a slot of the staging ring.
struct CopyingPiece {
    /// Where in the message it begins.
    offset: u64,
    payload: Payload,
}

impl LongSend {
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

    /// So many bytes more are posted.
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
    pub(super) fn is_copying(&self) -> bool {
        !self.copying.is_empty()
    }

    fn is_written(&self) -> bool {
        self.offset == self.len && self.pieces == 0
    }
}

impl PieceOp {
    fn into_held(self) -> Payload {
        match self {
            Self::Long(held) => held,
            Self::OneSided(_) => Payload::empty(),
        }
    }
}

impl<L: Link> SendCore<L> {
    /// Whether a message that is too long for a receive can go piece by piece.
    pub(super) fn sends_long(&self) -> bool {
        self.machine.has_long_messages() && self.link.limits().rma.is_some()
    }

    /// Offers a message to the peer, or gives everything back.
    #[cold]
    pub(super) fn send_long(
        &mut self,
        payload: Payload,
        header: &[u8],
        key: u64,
        len: u64,
    ) -> Result<(), Refused<Payload>> {
        if self.data_in_flight >= self.settings.depth {
            let kind = SendErrorKind::WouldBlock(Blocked::Depth);
            return Err(self.refuse(kind, payload, key));
        }
        let posted = self.posted_at();
        let lane = PostingContext {
            conn: self.conn.as_ref(),
            scoped: &mut self.scoped,
            header_desc: self.header_desc.desc(),
            sequence: self.machine.sent(),
            posted,
            // It is posted piece by piece.
            iov: &mut IovList::new(),
        };
        let op = match self.outgoing.load_long(payload, header, key, lane) {
            Ok(op) => op,
            Err((kind, payload)) => return Err(self.refuse(kind, payload, key)),
        };
        if let Err(blocked) = self.machine.offer_long(len) {
            let kind = self.blocked(blocked);
            let payload = self.outgoing.end_long(op);
            return Err(self.refuse(kind, payload, key));
        }
        self.long = Some(Box::new(LongSend {
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
        }));
        self.count_posted(len);
        // The next poll makes the offer: have it look.
        self.wait.wake();
        Ok(())
    }

    /// The peer says where the message is to be.
    pub(super) fn on_long_granted(&mut self, base: u64, key: u64) {
        if let Some(long) = &mut self.long {
            long.target = Some((base, key));
        }
        self.write_pieces();
    }

    /// The peer does not take it.
    pub(super) fn on_long_refused(&mut self, limit: Option<u64>, events: &mut Vec<SendEvent>) {
        let error = limit.map_or_else(
            || CompletionError::new(libc::ECANCELED),
            CompletionError::too_long,
        );
        self.end_long(Some(error), events);
    }

    /// Posts as many pieces as may be in flight.
    pub(super) fn write_pieces(&mut self) {
        let Some(long) = self.long.as_mut().filter(|long| long.target.is_some()) else {
            return;
        };
        match long.op.poll_gate() {
            Ok(true) => long.retry = false,
            Ok(false) => return long.retry = true,
            Err(error) => {
                // The peer has granted it room, and waits for it.
                tracing::debug!(%error, "a long message can't be sent");
                return self.machine.on_lost(Some(FabricErrno::new(libc::EIO)));
            }
        }
        if self.write_copied() {
            self.write_more();
        }
    }

    /// Posts pieces whose copies are done; false if the provider, or the connection, takes no more.
    fn write_copied(&mut self) -> bool {
        while let Some(long) = &mut self.long {
            let Some(first) = long.copying.front_mut() else {
                return true;
            };
            if !self.machine.may_write_long() {
                return false;
            }
            match first.payload.poll_gate() {
                Ok(true) => {}
                Ok(false) => {
                    long.retry = true;
                    return true;
                }
                Err(error) => {
                    tracing::debug!(%error, "a long message can't be sent");
                    self.machine.on_lost(Some(FabricErrno::new(libc::EIO)));
                    return false;
                }
            }
            let Some(piece) = long.copying.pop_front() else {
                return true;
            };
            let desc = long.op.staged.first().map(HeldDescriptor::desc);
            let mut iov = IovList::new();
            for segment in piece.payload.wire().parts() {
                let desc = desc.unwrap_or(std::ptr::null_mut());
                segment.name_runs(desc, &mut |base, len, desc| iov.push(base, len, desc));
            }
            let offset = piece.offset;
            if let Err(payload) = self.post_piece(&iov, offset, piece.payload) {
                if let Some(long) = &mut self.long {
                    long.copying.push_front(CopyingPiece { offset, payload });
                }
                return false;
            }
        }
        false
    }

    /// Posts pieces that lie in the host's memory, and begins the copies of others.
    fn write_more(&mut self) {
        let Some(rma) = self.link.limits().rma else {
            return;
        };
        let (segments, bytes) = (
            rma.iov_limit.min(IOV_MAX),
            rma.max_bytes.min(PIECE_BYTES as u64),
        );
        while let Some(long) = &mut self.long {
            let more = long.pieces < PIECES_MAX && long.offset < long.len;
            if !more || !self.machine.may_write_long() {
                return;
            }
            let run = &long.op.runs[long.run];
            if run.device.is_some() {
                let staged = self.outgoing.stage_piece(run, long.at, bytes as usize);
                let Some((mut payload, len)) = staged else {
                    long.retry = true;
                    self.outgoing.arm_staging();
                    return;
                };
                // What it says is heard at the next look.
                let _ = payload.poll_gate();
                let offset = long.offset;
                long.copying.push_back(CopyingPiece { offset, payload });
                long.advance(len as u64);
                long.retry = true;
                continue;
            }
            let (iov, len) = long.piece(segments, bytes);
            let offset = long.offset;
            if self.post_piece(&iov, offset, Payload::empty()).is_err() {
                return;
            }
            if let Some(long) = &mut self.long {
                long.advance(len);
            }
        }
    }

    /// Posts one piece, or gives back what it holds.
    fn post_piece(&mut self, iov: &IovList, offset: u64, held: Payload) -> Result<(), Payload> {
        let (Some(long), Some(conn)) = (&mut self.long, &self.conn) else {
            return Err(held);
        };
        let Some((base, key)) = long.target else {
            return Err(held);
        };
        let begun = self.pieces.begin(PieceOp::Long(held));
        let context = begun.map_err(PieceOp::into_held)?;
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
        // SAFETY: `self.long` owns slot and payload, or the slab the slot of the ring, which keep
        // the memory alive, registered and unwritten, until no piece is in flight any more
        // (`end_long`) or the endpoint was closed; they are leaked where that fails.
        let Err(refused) = (unsafe { self.link.post_write(conn, &post) }) else {
            return Ok(());
        };
        if let PostRefused::Errno(errno) = refused {
            self.machine.on_lost(Some(errno));
        }
        self.stats.eagain += u64::from(refused == PostRefused::Again);
        long.retry = refused == PostRefused::Again;
        Err(self.pieces.abort(context).into_held())
    }

    /// A piece is over.
    pub(super) fn on_piece(
        &mut self,
        error: Option<Box<CompletionError>>,
        events: &mut Vec<SendEvent>,
    ) {
        let Some(long) = &mut self.long else { return };
        long.pieces -= 1;
        if let Some(error) = error {
            // Its end comes with the connection's.
            return self.machine.on_lost(Some(error.errno));
        }
        if long.is_written() {
            self.machine.long_written();
            self.end_long(None, events);
        } else {
            self.write_pieces();
        }
    }

    /// The message is over, and nothing of it in flight.
    pub(super) fn end_long(&mut self, error: Option<CompletionError>, events: &mut Vec<SendEvent>) {
        let Some(long) = self.long.take() else { return };
        self.data_in_flight -= 1;
        let LongSend {
            key, op, copying, ..
        } = *long;
        // They read what goes back to its owner.
        drop(copying);
        let payload = self.outgoing.end_long(op);
        events.push(match error {
            None => {
                self.stats.completed += 1;
                SendEvent::Completed { key, payload }
            }
            Some(error) => {
                self.stats.failed += 1;
                SendEvent::Failed {
                    key,
                    payload,
                    error,
                }
            }
        });
    }
}
