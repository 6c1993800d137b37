//! What is written down beside a file that was put: its checksum, and what the file was like then.

use std::os::fd::AsFd;
use std::time::{Duration, SystemTime};

use rustix::fs::{Stat, XattrFlags};

use super::super::{ChecksumKind, ObjectChecksum, ObjectEtag, ObjectInfo};

/// The extended attribute.
const ATTRIBUTE: &str = "user.fabricast.object";
/// The first word of its value.
const VERSION: &str = "1";
/// The longest value that is read, in bytes.
const VALUE_MAX: usize = 128;

/// What a file is as an object.
pub(super) fn info_of(file: impl AsFd, stat: &Stat) -> ObjectInfo {
    let crc64 = read(file, stat);
    info(stat, crc64)
}

fn info(stat: &Stat, crc64: Option<u64>) -> ObjectInfo {
    let size = size_of_file(stat);
    let etag = match crc64 {
        Some(crc64) => ObjectEtag::of_content(crc64, size),
        None => ObjectEtag::of_file(stat.st_ino, modified_ns(stat), size),
    };
    ObjectInfo {
        size,
        etag,
        modified: time_of(modified_ns(stat)),
        checksum: crc64.map(|value| ObjectChecksum {
            kind: ChecksumKind::Crc64Nvme,
            value,
        }),
    }
}

/// Writes down what is in a file that nobody else can write to yet; what it is then.
pub(super) fn write(file: impl AsFd, stat: &Stat, crc64: u64) -> ObjectInfo {
    let (size, modified) = (size_of_file(stat), modified_ns(stat));
    let value = format!("{VERSION} {size} {modified} {crc64:016x}");
    let written =
        rustix::fs::fsetxattr(file, ATTRIBUTE, value.as_bytes(), XattrFlags::empty()).is_ok();
    info(stat, written.then_some(crc64))
}

/// The checksum that was written down, if the file is as it was then.
fn read(file: impl AsFd, stat: &Stat) -> Option<u64> {
    let mut value = [0; VALUE_MAX];
    let len = rustix::fs::fgetxattr(file, ATTRIBUTE, &mut value).ok()?;
    let value = std::str::from_utf8(value.get(..len)?).ok()?;
    let words: Vec<_> = value.split(' ').collect();
    let [VERSION, size, modified, crc64] = words[..] else {
        return None;
    };
    let is_same =
        size.parse() == Ok(size_of_file(stat)) && modified.parse() == Ok(modified_ns(stat));
    u64::from_str_radix(crc64, 16).ok().filter(|_| is_same)
}

pub(super) fn size_of_file(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

pub(super) fn modified_ns(stat: &Stat) -> i128 {
    i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec)
}

pub(super) fn time_of(ns: i128) -> Option<SystemTime> {
    let since = Duration::from_nanos(u64::try_from(ns.unsigned_abs()).ok()?);
    if ns < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(since)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(since)
    }
}
