//! What an object is, for C and of C.

use std::ffi::c_char;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fabricast::object::{ChecksumKind, ObjectChecksum, ObjectEtag, ObjectInfo, RemoteObject};

use crate::settings::FCAST_OFF;

/// Both sides compute the CRC-64/NVME of what is moved, where the host can read the memory.
pub const FCAST_CHECKSUM_CRC64: u32 = 0;
/// Both sides compute the CRC32C of it.
pub const FCAST_CHECKSUM_CRC32C: u32 = 1;

/// Bytes of a text of an etag, the zero included.
pub const FCAST_OBJECT_ETAG_LEN: usize = 136;

const _: () = assert!(FCAST_OBJECT_ETAG_LEN > ObjectEtag::LEN_MAX);

/// An object. Its layout does not change.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_object_info {
    /// Its bytes.
    pub size: u64,
    /// Bytes that the call has moved.
    pub moved: u64,
    /// When it was put, in nanoseconds since 1970; 0: not known.
    pub modified_ns: i64,
    /// Its checksum, or that of the bytes that were moved.
    pub checksum: u64,
    /// FCAST_CHECKSUM_CRC64, FCAST_CHECKSUM_CRC32C, or FCAST_OFF: not known.
    pub checksum_kind: u32,
    /// 1: both sides have computed a checksum of what was moved, and it is the same.
    pub is_checked: u32,
    /// The name of this version, as text that ends with a zero.
    pub etag: [c_char; FCAST_OBJECT_ETAG_LEN],
    /// 0.
    pub reserved: [u64; 2],
}

pub(crate) fn nanoseconds(time: Option<SystemTime>) -> i64 {
    let since = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| {
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    })
}

impl From<RemoteObject> for fcast_object_info {
    fn from(object: RemoteObject) -> Self {
        Self {
            size: object.size,
            moved: object.moved,
            modified_ns: nanoseconds(object.modified),
            checksum: object.checksum.map_or(0, |sum| sum.value),
            checksum_kind: match object.checksum.map(|sum| sum.kind) {
                None => FCAST_OFF,
                Some(ChecksumKind::Crc64Nvme) => FCAST_CHECKSUM_CRC64,
                Some(ChecksumKind::Crc32c) => FCAST_CHECKSUM_CRC32C,
            },
            is_checked: object.is_checked.into(),
            etag: etag_text(&object.etag),
            reserved: [0; 2],
        }
    }
}

impl fcast_object_info {
    /// One that a function of the program's is to fill in.
    pub(crate) fn blank() -> Self {
        Self {
            size: 0,
            moved: 0,
            modified_ns: 0,
            checksum: 0,
            checksum_kind: FCAST_OFF,
            is_checked: 0,
            etag: [0; FCAST_OBJECT_ETAG_LEN],
            reserved: [0; 2],
        }
    }

    /// Of a content that is put now.
    pub(crate) fn of_content(size: u64, crc64: u64) -> Self {
        Self {
            size,
            modified_ns: nanoseconds(Some(SystemTime::now())),
            checksum: crc64,
            checksum_kind: FCAST_CHECKSUM_CRC64,
            etag: etag_text(&ObjectEtag::of_content(crc64, size)),
            ..Self::blank()
        }
    }

    /// What the program has filled in, or what is wrong with it.
    pub(crate) fn parse(&self) -> Result<ObjectInfo, String> {
        let bytes: Vec<u8> = self.etag.iter().map(|byte| *byte as u8).collect();
        let len = bytes.iter().position(|byte| *byte == 0);
        let len = len.ok_or("the etag ends with no zero")?;
        let etag = str::from_utf8(&bytes[..len]).map_err(|_| "the etag is not UTF-8")?;
        let since = u64::try_from(self.modified_ns).ok().filter(|ns| *ns > 0);
        Ok(ObjectInfo {
            size: self.size,
            etag: ObjectEtag::new(etag).map_err(|error| error.to_string())?,
            modified: since.map(|ns| UNIX_EPOCH + Duration::from_nanos(ns)),
            checksum: self.known_checksum()?,
        })
    }

    fn known_checksum(&self) -> Result<Option<ObjectChecksum>, String> {
        let value = self.checksum;
        let kind = match self.checksum_kind {
            FCAST_OFF => return Ok(None),
            // A struct that is all zeros but what was set: nobody has computed one.
            FCAST_CHECKSUM_CRC64 if value == 0 => return Ok(None),
            FCAST_CHECKSUM_CRC64 => ChecksumKind::Crc64Nvme,
            FCAST_CHECKSUM_CRC32C if u32::try_from(value).is_ok() => ChecksumKind::Crc32c,
            FCAST_CHECKSUM_CRC32C => return Err(format!("checksum = {value:#x} is no CRC32C")),
            other => {
                return Err(format!(
                    "checksum_kind = {other}: must be 0, 1 or FCAST_OFF"
                ));
            }
        };
        Ok(Some(ObjectChecksum { kind, value }))
    }
}

fn etag_text(etag: &ObjectEtag) -> [c_char; FCAST_OBJECT_ETAG_LEN] {
    let mut text = [0; FCAST_OBJECT_ETAG_LEN];
    for (place, byte) in text.iter_mut().zip(etag.as_str().bytes()) {
        *place = byte as c_char;
    }
    text
}
