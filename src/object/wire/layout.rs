//! The bytes of each header.

use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{HEADER_LEN, ObjectWireError};
use crate::object::store::{ChecksumKind, ObjectChecksum};

/// First bytes of each message about objects.
pub(super) const MAGIC: [u8; 4] = *b"FCO1";
/// What an answer's kind has more than its request's.
pub(super) const IS_ANSWER: u8 = 128;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RequestWire {
    pub(super) magic: [u8; 4],
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) reserved: U16,
    pub(super) id: U64,
    pub(super) payload_len: U32,
    pub(super) budget_ms: U32,
    pub(super) offset: U64,
    pub(super) len: U64,
    pub(super) total: U64,
    pub(super) upload: U64,
    pub(super) name_len: U16,
    pub(super) other_len: U16,
    pub(super) etag_len: U16,
    pub(super) condition: u8,
    pub(super) checksum: u8,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct AnswerWire {
    pub(super) magic: [u8; 4],
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) status: U16,
    pub(super) id: U64,
    pub(super) payload_len: U32,
    pub(super) entries: U32,
    pub(super) size: U64,
    pub(super) moved: U64,
    pub(super) checksum: U64,
    pub(super) modified: I64,
    pub(super) checksum_kind: u8,
    pub(super) reserved: [u8; 7],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct EntryWire {
    pub(super) size: U64,
    pub(super) modified: I64,
    pub(super) name_len: U16,
    pub(super) etag_len: U16,
}

const _: () = assert!(size_of::<RequestWire>() == HEADER_LEN);
const _: () = assert!(size_of::<AnswerWire>() == HEADER_LEN);

/// Reads a header whose magic and length are right.
pub(super) fn read<T: FromBytes>(
    header: &[u8],
    magic: impl Fn(&T) -> ([u8; 4], u32),
    payload_len: usize,
) -> Result<T, ObjectWireError> {
    let len = header.len();
    let wire = T::read_from_bytes(header).map_err(|_| ObjectWireError::HeaderLen { len })?;
    let (found, said) = magic(&wire);
    if found != MAGIC {
        return Err(ObjectWireError::Magic(found));
    }
    let said = u64::from(said);
    if said != payload_len as u64 {
        let len = payload_len;
        return Err(ObjectWireError::PayloadLen { said, len });
    }
    Ok(wire)
}

/// 0: none.
pub(super) fn checksum_kind(value: u8) -> Result<Option<ChecksumKind>, ObjectWireError> {
    match value {
        0 => Ok(None),
        1 => Ok(Some(ChecksumKind::Crc64Nvme)),
        2 => Ok(Some(ChecksumKind::Crc32c)),
        other => Err(super::wire_error::field("checksum", other)),
    }
}

pub(super) fn checksum_code(kind: Option<ChecksumKind>) -> u8 {
    match kind {
        None => 0,
        Some(ChecksumKind::Crc64Nvme) => 1,
        Some(ChecksumKind::Crc32c) => 2,
    }
}

/// A checksum and its kind; a value that the kind can't have is none.
pub(super) fn checksum(kind: u8, value: u64) -> Result<Option<ObjectChecksum>, ObjectWireError> {
    let kind = checksum_kind(kind)?;
    let is_too_long = match kind {
        None => value != 0,
        Some(ChecksumKind::Crc64Nvme) => false,
        Some(ChecksumKind::Crc32c) => value > u64::from(u32::MAX),
    };
    match is_too_long {
        true => Err(super::wire_error::field("checksum", value)),
        false => Ok(kind.map(|kind| ObjectChecksum { kind, value })),
    }
}
