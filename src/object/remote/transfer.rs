//! `GetTransfer`, `PutTransfer`: what callbacks of an `ObjectClient` say to a service.

use std::time::Instant;

use crate::object::remote::{RemoteError, RemoteObject, RemoteObjects, check};
use crate::object::store::{ChecksumKind, ObjectChecksum, ObjectEtag, ObjectName, PutCondition};
use crate::object::wire::{AnswerBody, AnswerHead, PutRequest, RequestBody};
use crate::object::{CallbackError, ObjectChunk, ObjectMemory, ObjectOps};

/// A part that a service is asked to move.
pub(super) struct AskedPart {
    /// Where it begins in the object.
    offset: u64,
    len: u64,
    memory_offset: u64,
    /// Empty where there is nothing to move.
    token: String,
}

impl AskedPart {
    /// Without a byte.
    pub(super) fn empty(offset: u64) -> Self {
        Self {
            offset,
            len: 0,
            memory_offset: 0,
            token: String::new(),
        }
    }

    fn of(chunk: &ObjectChunk<'_>) -> Self {
        Self {
            offset: chunk.offset(),
            len: chunk.len(),
            memory_offset: chunk.memory_offset(),
            token: chunk.token().to_string(),
        }
    }
}

/// A part that came.
struct ArrivedPart {
    memory_offset: u64,
    len: u64,
    checksum: Option<ObjectChecksum>,
}

/// A GET, in one part or several.
pub(super) struct GetTransfer<'r> {
    remote: &'r mut RemoteObjects,
    name: ObjectName,
    deadline: Instant,
    /// The version that the first part was of.
    etag: Option<ObjectEtag>,
    parts: Vec<ArrivedPart>,
    head: Option<AnswerHead>,
}

impl<'r> GetTransfer<'r> {
    pub(super) fn new(remote: &'r mut RemoteObjects, name: ObjectName, deadline: Instant) -> Self {
        Self {
            remote,
            name,
            deadline,
            etag: None,
            parts: Vec::new(),
            head: None,
        }
    }

    /// Asks for a part; how many bytes came.
    pub(super) fn ask(&mut self, part: AskedPart) -> Result<u64, RemoteError> {
        let AskedPart { offset, len, .. } = part;
        let checksum = self.remote.config.checksum;
        let body = RequestBody::Get {
            name: self.name.clone(),
            offset,
            len,
            etag: self.etag.clone(),
            checksum,
            token: part.token,
        };
        let head = self.remote.call(body, self.deadline, |body| match body {
            AnswerBody::Object(head) => Ok(head),
            _ => Err(RemoteError::Violation("an answer to get without an object")),
        })?;
        if head.moved != head.size.saturating_sub(offset).min(len) {
            return Err(RemoteError::Violation(
                "a get that moved more or less than there is",
            ));
        }
        if head.checksum.map(|sum| sum.kind) != checksum {
            return Err(RemoteError::Violation(
                "a get without the checksum that was asked for",
            ));
        }
        if self.etag.as_ref().is_some_and(|etag| *etag != head.etag) {
            return Err(RemoteError::Violation(
                "a get of another version than was asked for",
            ));
        }
        let moved = head.moved;
        self.parts.push(ArrivedPart {
            memory_offset: part.memory_offset,
            len: moved,
            checksum: head.checksum,
        });
        self.etag = Some(head.etag.clone());
        self.head = Some(head);
        Ok(moved)
    }

    /// Compares what landed with what was sent, once no token stands any more.
    pub(super) fn finish(self, memory: &ObjectMemory) -> Result<RemoteObject, RemoteError> {
        let mut is_checked = true;
        for part in &self.parts {
            let (offset, len) = (part.memory_offset, part.len);
            let Some(said) = part.checksum else {
                is_checked = false;
                continue;
            };
            match check::sum_of(memory, offset, len, said.kind)? {
                Some(found) if found == said => {}
                Some(found) => {
                    return Err(RemoteError::Checksum {
                        offset,
                        len,
                        said,
                        found,
                    });
                }
                None => is_checked = false,
            }
        }
        let head = self
            .head
            .ok_or(RemoteError::Violation("no answer to a get"))?;
        let one = if self.parts.len() == 1 {
            head.checksum
        } else {
            None
        };
        Ok(RemoteObject {
            moved: self.parts.iter().map(|part| part.len).sum(),
            checksum: one,
            ..RemoteObject::new(head, is_checked)
        })
    }
}

impl ObjectOps for GetTransfer<'_> {
    fn get(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        Ok(self.ask(AskedPart::of(chunk))?)
    }

    fn put(&mut self, _: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        Err("a get puts nothing".into())
    }
}

/// A PUT, in one part or several.
pub(super) struct PutTransfer<'r> {
    remote: &'r mut RemoteObjects,
    name: ObjectName,
    total: u64,
    condition: PutCondition,
    /// The checksum of everything, where it is known.
    given: Option<ObjectChecksum>,
    upload: u64,
    /// The first part does not begin the object: that was done before.
    goes_on: bool,
    deadline: Instant,
    head: Option<AnswerHead>,
}

impl<'r> PutTransfer<'r> {
    /// Of an object: its name, its bytes, and the client's number for it.
    pub(super) fn new(
        remote: &'r mut RemoteObjects,
        (name, total, upload): (ObjectName, u64, u64),
        condition: &PutCondition,
        given: Option<ObjectChecksum>,
        deadline: Instant,
    ) -> Self {
        Self {
            remote,
            name,
            total,
            condition: condition.clone(),
            given,
            upload,
            goes_on: false,
            deadline,
            head: None,
        }
    }

    /// It was begun before.
    pub(super) fn goes_on(&mut self) {
        self.goes_on = true;
    }

    /// Which one the answer is to have. What was begun before has one of a kind alone.
    fn checksum(&self) -> Option<ChecksumKind> {
        match self.goes_on {
            true => Some(ChecksumKind::Crc64Nvme),
            false => self.remote.config.checksum,
        }
    }

    /// Has the service take a part; how many bytes it took.
    pub(super) fn ask(&mut self, part: AskedPart) -> Result<u64, RemoteError> {
        let AskedPart { offset, len, .. } = part;
        let ends = offset + len == self.total;
        let body = RequestBody::Put(PutRequest {
            name: self.name.clone(),
            offset,
            len,
            total: self.total,
            upload: self.upload,
            begins: offset == 0 && !self.goes_on,
            ends,
            condition: self.condition.clone(),
            checksum: self.checksum(),
            given: self.given.filter(|_| ends).map(|sum| sum.value),
            token: part.token,
        });
        let head = self.remote.call(body, self.deadline, |body| match body {
            AnswerBody::Object(head) if ends => Ok(Some(head)),
            AnswerBody::Done { moved } if !ends && moved == len => Ok(None),
            _ => Err(RemoteError::Violation("an answer to put that does not fit")),
        })?;
        if head
            .as_ref()
            .is_some_and(|head| head.moved != len || head.size != self.total)
        {
            return Err(RemoteError::Violation(
                "a put that took more or less than there is",
            ));
        }
        self.head = head;
        Ok(len)
    }

    pub(super) fn finish(self) -> Result<RemoteObject, RemoteError> {
        let head = self
            .head
            .ok_or(RemoteError::Violation("no answer to a put"))?;
        let is_checked = self.given.is_some() && head.checksum == self.given;
        if self.given.is_some() && !is_checked {
            return Err(RemoteError::Violation(
                "a put whose answer has another checksum",
            ));
        }
        Ok(RemoteObject {
            moved: self.total,
            ..RemoteObject::new(head, is_checked)
        })
    }
}

impl ObjectOps for PutTransfer<'_> {
    fn get(&mut self, _: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        Err("a put gets nothing".into())
    }

    fn put(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
        Ok(self.ask(AskedPart::of(chunk))?)
    }
}
