//! `Answer`: what a service says to a request.

use std::time::SystemTime;

use zerocopy::IntoBytes;

use super::entries::{time_from_wire, time_to_wire};
use super::layout::{AnswerWire, IS_ANSWER, MAGIC, checksum, checksum_code, read};
use super::request::kind;
use super::wire_error::field;
use super::{ANSWER_PAYLOAD_MAX, Entries, HEADER_LEN, ObjectStatus, ObjectWireError, TEXT_MAX};
use crate::object::store::{ChecksumKind, ObjectChecksum, ObjectEtag, ObjectInfo};

/// Flag of a list: there are more behind its last entry.
const MORE: u8 = 1;

/// What a service says to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer<'a> {
    /// The number of the request.
    pub(crate) id: u64,
    /// The kind of the request.
    pub(crate) kind: u8,
    pub(crate) body: AnswerBody<'a>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AnswerBody<'a> {
    /// To head, get, and put: the object as it is.
    Object(AnswerHead),
    /// To a put that does not end its object, and to a delete: it was done.
    Done {
        /// Bytes that were moved by this request.
        moved: u64,
    },
    List {
        entries: Entries<'a>,
        more: bool,
    },
    /// To a request to take an upload up.
    TakenUp {
        /// Bytes of the whole object.
        total: u64,
        /// Those that are there, from the first on.
        there: u64,
        /// The CRC-64/NVME of those.
        crc64: u64,
    },
    /// To any: it was not done.
    Refused {
        status: ObjectStatus,
        /// Bytes that may have been moved before.
        moved: u64,
        /// One line for a person.
        text: String,
    },
}

/// What is said of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AnswerHead {
    /// Bytes of the whole object.
    pub(crate) size: u64,
    /// Bytes that were moved by this request.
    pub(crate) moved: u64,
    pub(crate) etag: ObjectEtag,
    /// Head: of the content, where it is known. Get: of the bytes that were moved. Put: of the
    /// content.
    pub(crate) checksum: Option<ObjectChecksum>,
    pub(crate) modified: Option<SystemTime>,
}

impl AnswerHead {
    pub(crate) fn new(info: &ObjectInfo, moved: u64, checksum: Option<ObjectChecksum>) -> Self {
        Self {
            size: info.size,
            moved,
            etag: info.etag.clone(),
            checksum,
            modified: info.modified,
        }
    }
}

impl<'a> Answer<'a> {
    /// Understands what a service sent.
    ///
    /// # Errors
    /// [`ObjectWireError`], the first thing that is wrong.
    pub(crate) fn parse(header: &[u8], payload: &'a [u8]) -> Result<Self, ObjectWireError> {
        let of = |wire: &AnswerWire| (wire.magic, wire.payload_len.get());
        let wire = read(header, of, payload.len())?;
        if payload.len() > ANSWER_PAYLOAD_MAX {
            let (said, len) = (ANSWER_PAYLOAD_MAX as u64, payload.len());
            return Err(ObjectWireError::PayloadLen { said, len });
        }
        let kind = wire.kind.wrapping_sub(IS_ANSWER);
        if !(kind::HEAD..=kind::DELETE).contains(&kind) && kind != kind::TAKE_UP {
            return Err(ObjectWireError::Kind(wire.kind));
        }
        let answer = Self {
            id: wire.id.get(),
            kind,
            body: body(&wire, kind, payload)?,
        };
        // One encoding: what was not looked at is 0.
        let mut again = [0; HEADER_LEN];
        let len = answer.header(&mut again);
        match again == *header && len == payload.len() {
            true => Ok(answer),
            false => Err(ObjectWireError::Reserved { kind: wire.kind }),
        }
    }

    /// The header, and the payload behind what is in `payload`.
    pub(crate) fn encode(&self, header: &mut [u8; HEADER_LEN], payload: &mut Vec<u8>) {
        self.header(header);
        payload.extend_from_slice(self.payload());
    }

    fn payload(&self) -> &[u8] {
        match &self.body {
            AnswerBody::Object(head) => head.etag.as_str().as_bytes(),
            AnswerBody::Done { .. } | AnswerBody::TakenUp { .. } => &[],
            AnswerBody::List { entries, .. } => entries.as_bytes(),
            AnswerBody::Refused { text, .. } => text.as_bytes(),
        }
    }

    /// Writes it; the length of the payload.
    fn header(&self, header: &mut [u8; HEADER_LEN]) -> usize {
        let len = self.payload().len();
        let mut wire = AnswerWire {
            magic: MAGIC,
            kind: self.kind | IS_ANSWER,
            flags: 0,
            status: ObjectStatus::OK.0.into(),
            id: self.id.into(),
            payload_len: u32::try_from(len).unwrap_or(u32::MAX).into(),
            entries: 0.into(),
            size: 0.into(),
            moved: 0.into(),
            checksum: 0.into(),
            modified: 0.into(),
            checksum_kind: 0,
            reserved: [0; 7],
        };
        match &self.body {
            AnswerBody::Object(head) => {
                (wire.size, wire.moved) = (head.size.into(), head.moved.into());
                wire.checksum = head.checksum.map_or(0, |sum| sum.value).into();
                wire.checksum_kind = checksum_code(head.checksum.map(|sum| sum.kind));
                wire.modified = time_to_wire(head.modified).into();
            }
            AnswerBody::Done { moved } => wire.moved = (*moved).into(),
            AnswerBody::TakenUp {
                total,
                there,
                crc64,
            } => {
                (wire.size, wire.moved) = ((*total).into(), (*there).into());
                wire.checksum = (*crc64).into();
                wire.checksum_kind = checksum_code(Some(ChecksumKind::Crc64Nvme));
            }
            AnswerBody::List { entries, more } => {
                wire.flags = u8::from(*more) * MORE;
                wire.entries = entries.count().into();
            }
            AnswerBody::Refused { status, moved, .. } => {
                wire.status = status.0.into();
                wire.moved = (*moved).into();
            }
        }
        header.copy_from_slice(wire.as_bytes());
        len
    }
}

fn body<'a>(
    wire: &AnswerWire,
    kind: u8,
    payload: &'a [u8],
) -> Result<AnswerBody<'a>, ObjectWireError> {
    let status = ObjectStatus(wire.status.get());
    let moved = wire.moved.get();
    if status != ObjectStatus::OK {
        return refused(status, moved, payload);
    }
    match kind {
        kind::LIST => Ok(AnswerBody::List {
            entries: Entries::parse(payload, wire.entries.get())?,
            more: wire.flags & MORE != 0,
        }),
        kind::PUT | kind::DELETE if payload.is_empty() => Ok(AnswerBody::Done { moved }),
        kind::DELETE => Err(field("etag_len", payload.len() as u64)),
        kind::TAKE_UP if moved > wire.size.get() => Err(field("moved", moved)),
        kind::TAKE_UP => Ok(AnswerBody::TakenUp {
            total: wire.size.get(),
            there: moved,
            crc64: wire.checksum.get(),
        }),
        _ => Ok(AnswerBody::Object(AnswerHead {
            size: wire.size.get(),
            moved,
            etag: ObjectEtag::from_bytes(payload)?,
            checksum: checksum(wire.checksum_kind, wire.checksum.get())?,
            modified: time_from_wire(wire.modified.get()),
        })),
    }
}

fn refused<'a>(
    status: ObjectStatus,
    moved: u64,
    payload: &[u8],
) -> Result<AnswerBody<'a>, ObjectWireError> {
    let len = payload.len();
    let text = std::str::from_utf8(payload)
        .ok()
        .filter(|text| is_line(text));
    match text {
        Some(text) => Ok(AnswerBody::Refused {
            status,
            moved,
            text: text.into(),
        }),
        None => Err(field("text_len", len as u64)),
    }
}

fn is_line(text: &str) -> bool {
    text.len() <= TEXT_MAX && !text.contains(char::is_control)
}

/// The beginning of a text that fits, in one line.
pub(crate) fn line(text: &str) -> String {
    let mut line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let mut len = line.len().min(TEXT_MAX);
    while !line.is_char_boundary(len) {
        len -= 1;
    }
    line.truncate(len);
    line
}
