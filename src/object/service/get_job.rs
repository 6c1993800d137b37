//! `GetJob`: an object on its way into a client's window.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::buffer::Buffer;
use crate::object::RdmaToken;
use crate::object::service::account::BufferHold;
use crate::object::service::job::JobFailure;
use crate::object::service::piece_walk::PieceWalk;
use crate::object::store::{
    ChecksumKind, ObjectEtag, ObjectInfo, RangeChecksum, StoreError, StoredObject,
};
use crate::object::wire::{AnswerHead, ObjectStatus};

/// An object on its way into a client's window.
pub(super) struct GetJob {
    /// None: nothing is to be moved.
    pub(super) token: Option<RdmaToken>,
    pub(super) offset: u64,
    /// Bytes that were asked for.
    asked: u64,
    etag: Option<ObjectEtag>,
    wish: Option<ChecksumKind>,
    /// Once it is open.
    pub(super) object: Option<Arc<dyn StoredObject>>,
    pub(super) walk: PieceWalk,
    sum: Option<RangeChecksum>,
    /// Pieces that wait for room in the channel.
    pub(super) ready: VecDeque<(u64, Buffer, BufferHold)>,
}

impl GetJob {
    pub(super) fn new(
        token: Option<RdmaToken>,
        (offset, asked): (u64, u64),
        etag: Option<ObjectEtag>,
        wish: Option<ChecksumKind>,
    ) -> Self {
        Self {
            token,
            offset,
            asked,
            etag,
            wish,
            object: None,
            walk: PieceWalk::new(offset, 0, 1),
            sum: wish.map(|kind| RangeChecksum::new(kind, offset)),
            ready: VecDeque::new(),
        }
    }

    /// The object is open: what of it is to be moved.
    pub(super) fn opened(
        &mut self,
        object: Arc<dyn StoredObject>,
        piece: usize,
    ) -> Result<(), JobFailure> {
        let info = object.info();
        if self.etag.as_ref().is_some_and(|etag| *etag != info.etag) {
            let found = Some(info.etag.clone());
            return Err(StoreError::EtagMismatch { found }.into());
        }
        let Some(left) = info.size.checked_sub(self.offset) else {
            let (offset, size) = (self.offset, info.size);
            let text = format!("byte {offset} is behind the end of an object of {size} bytes");
            return Err(JobFailure::new(ObjectStatus::RANGE, text));
        };
        let len = left.min(self.asked);
        if len > 0 && self.token.as_ref().is_none_or(|token| token.len() < len) {
            let text = format!("the token names fewer than the {len} bytes that are to be moved");
            return Err(JobFailure::new(ObjectStatus::TOKEN, text));
        }
        self.walk = PieceWalk::new(self.offset, len, piece);
        self.object = Some(object);
        Ok(())
    }

    /// A piece is in memory.
    pub(super) fn read(&mut self, at: u64, piece: Buffer, hold: BufferHold) {
        if let Some(sum) = &mut self.sum {
            sum.add(at, &piece);
        }
        self.ready.push_back((at, piece, hold));
    }

    /// The answer, when all is where it belongs.
    pub(super) fn answer(&self) -> Option<Result<AnswerHead, JobFailure>> {
        let object = self.object.as_ref().filter(|_| self.walk.is_over())?;
        let (info, sum) = (object.info(), self.sum.as_ref().map(RangeChecksum::value));
        if self.walk.moved == info.size
            && let (Some(sum), Some(stored)) = (sum, info.checksum)
            && sum.kind == stored.kind
            && sum != stored
        {
            let text = format!("what was stored had {stored}, what is there has {sum}");
            return Some(Err(JobFailure::new(ObjectStatus::DAMAGED, text)));
        }
        Some(Ok(self.head(info)))
    }

    fn head(&self, info: &ObjectInfo) -> AnswerHead {
        let sum = self.wish.and(self.sum.as_ref()).map(RangeChecksum::value);
        AnswerHead::new(info, self.walk.moved, sum)
    }
}
