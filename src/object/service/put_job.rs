//! `PutJob`: a client's window on its way into an object; `OpenUpload`: the object, half put.

use std::time::Instant;

use crate::object::RdmaToken;
use crate::object::service::job::JobFailure;
use crate::object::service::piece_walk::PieceWalk;
use crate::object::store::{
    ChecksumKind, ObjectChecksum, ObjectName, ObjectUpload, RangeChecksum, TakenUp,
};
use crate::object::wire::{ObjectStatus, PutRequest, TakeUpRequest};

/// An object that is half put: between the requests that put it, or in one of them.
pub(super) struct OpenUpload {
    pub(super) name: ObjectName,
    /// Bytes of the whole object.
    pub(super) total: u64,
    pub(super) upload: Box<dyn ObjectUpload>,
    crc64: RangeChecksum,
    /// The one that the client asked for, where it is another.
    other: Option<RangeChecksum>,
    /// Somebody may go on with it when it was cut.
    is_kept: bool,
    /// When it is given up, unless a request goes on with it.
    pub(super) expires: Instant,
}

impl OpenUpload {
    /// Of the first request for an object.
    pub(super) fn new(asked: &PutRequest, upload: Box<dyn ObjectUpload>, expires: Instant) -> Self {
        let other = asked
            .checksum
            .filter(|kind| *kind != ChecksumKind::Crc64Nvme);
        Self {
            name: asked.name.clone(),
            total: asked.total,
            upload,
            crc64: RangeChecksum::new(ChecksumKind::Crc64Nvme, 0),
            other: other.map(|kind| RangeChecksum::new(kind, 0)),
            is_kept: false,
            expires,
        }
    }

    /// Of one that was taken up.
    pub(super) fn taken_up(asked: TakeUpRequest, taken: TakenUp, expires: Instant) -> Self {
        Self {
            name: asked.name,
            total: asked.total,
            upload: taken.upload,
            crc64: RangeChecksum::behind(taken.crc64, taken.there),
            other: None,
            is_kept: true,
            expires,
        }
    }

    pub(super) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Has the store write down how far it is. All writes are over.
    pub(super) fn mark(mut self) -> Self {
        let (there, crc64) = (self.next(), self.crc64());
        self.upload.mark(there, crc64);
        self
    }

    /// Where the next request goes on.
    pub(super) fn next(&self) -> u64 {
        self.crc64.done()
    }

    pub(super) fn add(&mut self, at: u64, piece: &[u8]) {
        self.crc64.add(at, piece);
        if let Some(other) = &mut self.other {
            other.add(at, piece);
        }
    }

    pub(super) fn crc64(&self) -> u64 {
        self.crc64.value().value
    }

    fn sum(&self, kind: ChecksumKind) -> Option<ObjectChecksum> {
        let sums = [Some(&self.crc64), self.other.as_ref()];
        let values = sums.into_iter().flatten().map(RangeChecksum::value);
        values.into_iter().find(|sum| sum.kind == kind)
    }
}

/// A client's window on its way into an object.
pub(super) struct PutJob {
    /// None: nothing is to be moved.
    pub(super) token: Option<RdmaToken>,
    pub(super) asked: PutRequest,
    pub(super) walk: PieceWalk,
    /// None before it is begun, and while it is committed.
    pub(super) upload: Option<OpenUpload>,
    /// What the content has, once it is committed.
    pub(super) sum: Option<ObjectChecksum>,
}

impl PutJob {
    /// `upload`: where an earlier request has begun it.
    pub(super) fn new(
        token: Option<RdmaToken>,
        asked: PutRequest,
        upload: Option<OpenUpload>,
        piece_bytes: usize,
    ) -> Self {
        Self {
            walk: PieceWalk::new(asked.offset, asked.len, piece_bytes),
            token,
            asked,
            upload,
            sum: None,
        }
    }

    /// Compares what came with what the client has.
    pub(super) fn check(&mut self) -> Result<(), JobFailure> {
        let upload = self.upload.as_ref();
        let sum = self.asked.checksum.and_then(|kind| upload?.sum(kind));
        let Some(value) = self.asked.given else {
            self.sum = sum;
            return Ok(());
        };
        let other =
            || JobFailure::malformed("the first request of the object named another checksum");
        let sum = sum.ok_or_else(other)?;
        if sum.value != value {
            let given = ObjectChecksum { value, ..sum };
            let text = format!("what came has {sum}, what was to be put has {given}");
            return Err(JobFailure::new(ObjectStatus::DAMAGED, text));
        }
        self.sum = Some(sum);
        Ok(())
    }
}
