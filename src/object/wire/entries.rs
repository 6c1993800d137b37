//! The entries of a list, one behind the other.

use std::time::{Duration, SystemTime};

use zerocopy::{FromBytes, IntoBytes};

use super::layout::EntryWire;
use super::{ANSWER_PAYLOAD_MAX, ObjectWireError};
use crate::object::store::{ListedObject, ObjectEtag, ObjectName};

/// What stands for a time that is not known.
const NO_TIME: i64 = i64::MIN;

/// Entries that a service sent, each checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entries<'a> {
    bytes: &'a [u8],
    count: usize,
}

impl<'a> Entries<'a> {
    /// Checks so many entries.
    pub(super) fn parse(bytes: &'a [u8], count: u32) -> Result<Self, ObjectWireError> {
        let count = count as usize;
        let (mut rest, mut last) = (bytes, None);
        for index in 0..count {
            let entry = next(&mut rest, index)?;
            if last.is_some_and(|last| last >= entry.name) {
                return Err(ObjectWireError::Entry { index });
            }
            last = Some(entry.name);
        }
        match rest {
            [] => Ok(Self { bytes, count }),
            _ => Err(ObjectWireError::Entry { index: count }),
        }
    }

    /// Of what an [`EntryWriter`] wrote.
    pub(crate) fn of(writer: &'a EntryWriter) -> Self {
        Self {
            bytes: &writer.bytes,
            count: writer.count,
        }
    }

    pub(super) fn as_bytes(self) -> &'a [u8] {
        self.bytes
    }

    pub(super) fn count(self) -> u32 {
        u32::try_from(self.count).unwrap_or(u32::MAX)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = ListedObject> + 'a {
        let mut rest = self.bytes;
        (0..self.count).map_while(move |index| next(&mut rest, index).ok())
    }
}

/// Puts entries behind each other, as many as an answer takes.
#[derive(Debug, Default)]
pub(crate) struct EntryWriter {
    bytes: Vec<u8>,
    count: usize,
}

impl EntryWriter {
    /// False: it does not fit any more.
    pub(crate) fn push(&mut self, object: &ListedObject) -> bool {
        let (name, etag) = (object.name.as_str(), object.etag.as_str());
        let wire = EntryWire {
            size: object.size.into(),
            modified: time_to_wire(object.modified).into(),
            // At most 1,024 and 128.
            name_len: (name.len() as u16).into(),
            etag_len: (etag.len() as u16).into(),
        };
        let parts = [wire.as_bytes(), name.as_bytes(), etag.as_bytes()];
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if self.bytes.len() + len > ANSWER_PAYLOAD_MAX {
            return false;
        }
        parts
            .iter()
            .for_each(|part| self.bytes.extend_from_slice(part));
        self.count += 1;
        true
    }
}

/// Takes the next entry off the front.
fn next(rest: &mut &[u8], index: usize) -> Result<ListedObject, ObjectWireError> {
    let cut = || ObjectWireError::Entry { index };
    let (wire, behind) = EntryWire::read_from_prefix(rest).map_err(|_| cut())?;
    let (name, etag) = (wire.name_len.get().into(), wire.etag_len.get().into());
    let (name, behind) = behind.split_at_checked(name).ok_or_else(cut)?;
    let (etag, behind) = behind.split_at_checked(etag).ok_or_else(cut)?;
    *rest = behind;
    Ok(ListedObject {
        name: ObjectName::from_bytes(name)?,
        size: wire.size.get(),
        etag: ObjectEtag::from_bytes(etag)?,
        modified: time_from_wire(wire.modified.get()),
    })
}

/// Nanoseconds since 1970.
pub(super) fn time_to_wire(time: Option<SystemTime>) -> i64 {
    let ns = |since: Duration| i64::try_from(since.as_nanos()).ok();
    let time = time.and_then(|time| match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => ns(since),
        Err(before) => ns(before.duration()).map(|ns| -ns),
    });
    time.unwrap_or(NO_TIME)
}

pub(super) fn time_from_wire(ns: i64) -> Option<SystemTime> {
    let since = Duration::from_nanos(ns.unsigned_abs());
    match ns {
        NO_TIME => None,
        0.. => SystemTime::UNIX_EPOCH.checked_add(since),
        _ => SystemTime::UNIX_EPOCH.checked_sub(since),
    }
}
