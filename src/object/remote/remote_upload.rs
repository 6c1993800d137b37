//! `RemoteUpload`: an object that is put in parts, and may be gone on with when it was cut.

use crate::object::ObjectMemory;
use crate::object::remote::{RemoteError, check};
use crate::object::store::{ChecksumKind, ObjectChecksum, ObjectName, PutCondition};

/// An object that is put in parts: from [`RemoteObjects::take_up`](super::RemoteObjects::take_up).
#[derive(Debug)]
pub struct RemoteUpload {
    name: ObjectName,
    total: u64,
    /// The client's number for it.
    number: u64,
    condition: PutCondition,
    there: u64,
    /// Of what is there, and of the part that is under way; `None`: the host can't read some of it.
    sum: Option<ObjectChecksum>,
}

impl RemoteUpload {
    pub(super) fn new(
        (name, total, number): (ObjectName, u64, u64),
        condition: &PutCondition,
        (there, value): (u64, u64),
    ) -> Self {
        let kind = ChecksumKind::Crc64Nvme;
        Self {
            name,
            total,
            number,
            condition: condition.clone(),
            there,
            sum: Some(ObjectChecksum { kind, value }),
        }
    }

    /// Bytes that are there, from the first on: where the next part begins.
    pub fn there(&self) -> u64 {
        self.there
    }

    /// Bytes of the whole object.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The CRC-64/NVME of what is there. After parts out of memory that the host can't read, it is
    /// not known.
    pub fn checksum(&self) -> Option<ObjectChecksum> {
        self.sum
    }

    pub(in crate::object) fn object(&self) -> (ObjectName, u64, u64) {
        (self.name.clone(), self.total, self.number)
    }

    pub(super) fn condition(&self) -> &PutCondition {
        &self.condition
    }

    /// A part is to be put.
    pub(super) fn add(
        &mut self,
        memory: &ObjectMemory,
        start: u64,
        len: u64,
    ) -> Result<(), RemoteError> {
        let Some(sum) = self.sum else {
            return Ok(());
        };
        let part = check::sum_of(memory, start, len, sum.kind)?;
        self.sum = part.map(|part| sum.followed_by(part, len));
        Ok(())
    }

    /// The checksum of everything, where the part that is to be put is the last one.
    pub(super) fn given(&self) -> Option<ObjectChecksum> {
        self.sum
    }

    /// A part is there; whether it was the last one.
    pub(super) fn moved(&mut self, len: u64) -> bool {
        self.there += len;
        self.there == self.total
    }
}
