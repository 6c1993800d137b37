//! Values of objects as `Bytes`, set, changed and erased.

use fabricast::object::{ObjectEtag, ObjectStatus, PutCondition, RemoteError, RemoteObject};
use zarrs_storage::byte_range::{ByteRange, ByteRangeIterator, InvalidByteRangeError};
use zarrs_storage::{
    Bytes, ListableStorageTraits, MaybeBytes, MaybeBytesIterator, OffsetBytesIterator,
    ReadableStorageTraits, StorageError, StoreKey, StorePrefix, WritableStorageTraits,
};

use super::{HeldLine, ObjectZarrStore, failed, new_memory};
use crate::readable::{checked, zeros};

/// How often a value may be put by others while it is read in parts, or changed, before that is an
/// error.
const TRIES: u32 = 100;

/// A value, or a range of one, of one version.
struct OneVersion {
    bytes: Vec<u8>,
    etag: ObjectEtag,
}

impl ReadableStorageTraits for ObjectZarrStore {
    /// One request after the other, each for the version that there is then.
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        if self.size_key(key)?.is_none() {
            return Ok(None);
        }
        let key = key.clone();
        Ok(Some(Box::new(byte_ranges.map(move |range| {
            let erased = || StorageError::Other(format!("key {key}: erased while it was read"));
            self.get_partial(&key, range)?.ok_or_else(erased)
        }))))
    }

    fn get_partial(
        &self,
        key: &StoreKey,
        byte_range: ByteRange,
    ) -> Result<MaybeBytes, StorageError> {
        let found = self.read(key, byte_range)?;
        Ok(found.map(|found| found.bytes.into()))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        Ok(self.head(key)?.map(|object| object.size))
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for ObjectZarrStore {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<(), StorageError> {
        let put = self.put(key, &value, &PutCondition::Any)?;
        put.map_err(|error| failed(key.as_str(), error))
    }

    fn set_partial_many(
        &self,
        key: &StoreKey,
        offset_values: OffsetBytesIterator<'_>,
    ) -> Result<(), StorageError> {
        let parts: Vec<(u64, Bytes)> = offset_values.collect();
        if parts.is_empty() {
            return Ok(());
        }
        for _ in 0..TRIES {
            let (mut bytes, condition) = match self.read(key, ByteRange::FromStart(0, None))? {
                Some(found) => (found.bytes, PutCondition::Matches(found.etag)),
                None => (Vec::new(), PutCondition::Absent),
            };
            for (offset, part) in &parts {
                change(&mut bytes, *offset, part)?;
            }
            match self.put(key, &bytes, &condition)? {
                Err(error) if is_overtaken(&error) => {}
                put => return put.map_err(|error| failed(key.as_str(), error)),
            }
        }
        Err(overtaken(key))
    }

    fn erase(&self, key: &StoreKey) -> Result<(), StorageError> {
        let name = self.name(key);
        let mut line = self.line()?;
        let deadline = line.deadline;
        let deleted = line.remote().delete(&name, None, deadline);
        line.understand(&name, deleted)?;
        Ok(())
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<(), StorageError> {
        let keys = self.list_prefix(prefix)?;
        self.erase_many(&keys)
    }

    /// A part is set by putting all of the value.
    fn supports_set_partial(&self) -> bool {
        false
    }
}

impl ObjectZarrStore {
    pub(super) fn head(&self, key: &StoreKey) -> Result<Option<RemoteObject>, StorageError> {
        let name = self.name(key);
        let mut line = self.line()?;
        let deadline = line.deadline;
        let head = line.remote().head(&name, deadline);
        line.understand(&name, head)
    }

    fn read(&self, key: &StoreKey, range: ByteRange) -> Result<Option<OneVersion>, StorageError> {
        let name = self.name(key);
        let mut line = self.line()?;
        for _ in 0..TRIES {
            if let Some(read) = read_once(&mut line, &name, range)? {
                return Ok(read);
            }
        }
        Err(overtaken(key))
    }

    /// Puts a value; what the service said, where it is about the condition.
    fn put(
        &self,
        key: &StoreKey,
        value: &[u8],
        condition: &PutCondition,
    ) -> Result<Result<(), RemoteError>, StorageError> {
        let name = self.name(key);
        let mut line = self.line()?;
        let (deadline, len) = (line.deadline, value.len() as u64);
        let own;
        let (remote, memory) = if value.len() > self.options.buffer {
            own = new_memory(&self.client, value.len())?;
            (line.remote(), &own)
        } else {
            line.with_memory()?
        };
        let copied = memory.copy_in(0, value);
        copied.map_err(|error| failed(&name, error.into()))?;
        let put = remote.put(&name, memory, 0..len, condition, deadline);
        match put {
            Err(error) if is_overtaken(&error) => Ok(Err(error)),
            put => {
                let lost = || StorageError::Other(format!("object {name}: put, and not found"));
                line.understand(&name, put)?.ok_or_else(lost)?;
                Ok(Ok(()))
            }
        }
    }
}

/// Reads a range, in as many requests as it takes: `None` where they were of two versions, and
/// `Some(None)` where there is no value.
fn read_once(
    line: &mut HeldLine<'_>,
    name: &str,
    range: ByteRange,
) -> Result<Option<Option<OneVersion>>, StorageError> {
    let deadline = line.deadline;
    let mut etag = None;
    let mut place = match range {
        // As many bytes as come, until the first answer says how many there are.
        ByteRange::FromStart(start, len) => (start, len.unwrap_or(u64::MAX)),
        ByteRange::Suffix(_) => {
            let head = line.remote().head(name, deadline);
            let Some(head) = line.understand(name, head)? else {
                return Ok(Some(None));
            };
            etag = Some(head.etag);
            let (start, len) = checked(range, head.size)?;
            (start, len as u64)
        }
    };
    let mut bytes: Option<Vec<u8>> = None;
    let mut done = 0;
    loop {
        let room = line.with_memory()?.1.len();
        let asked = (place.1 - done).min(room);
        let got = ask(line, name, range, (place.0.saturating_add(done), asked))?;
        let Some(got) = got else {
            // Erased since the last part.
            return Ok(if done == 0 { Some(None) } else { None });
        };
        if etag.get_or_insert_with(|| got.etag.clone()) != &got.etag {
            return Ok(None);
        }
        if bytes.is_none() {
            let (start, len) = checked(range, got.size)?;
            place = (start, len as u64);
            bytes = Some(zeros(len)?);
        }
        let all = bytes.as_mut().expect("just made");
        // No more than was asked for, and inside of this version.
        let part = &mut all[done as usize..(done + got.moved) as usize];
        let (_, memory) = line.with_memory()?;
        memory
            .copy_out(0, part)
            .map_err(|error| failed(name, error.into()))?;
        done += got.moved;
        if done == place.1 {
            break;
        }
    }
    let bytes = bytes.unwrap_or_default();
    Ok(etag.map(|etag| Some(OneVersion { bytes, etag })))
}

/// Asks for a part of an object. A service may refuse one that begins behind the end, and none has
/// one that no object can have: then it is asked for the size.
fn ask(
    line: &mut HeldLine<'_>,
    name: &str,
    range: ByteRange,
    (start, len): (u64, u64),
) -> Result<Option<RemoteObject>, StorageError> {
    let deadline = line.deadline;
    if start.checked_add(len).is_some() {
        let (remote, memory) = line.with_memory()?;
        let got = remote.get(name, memory, 0..len, start, deadline);
        match got {
            Err(error) if error.status() == Some(ObjectStatus::RANGE) => {}
            got => return line.understand(name, got),
        }
    }
    let head = line.remote().head(name, deadline);
    match line.understand(name, head)? {
        Some(object) => Err(InvalidByteRangeError::new(range, object.size).into()),
        None => Ok(None),
    }
}

/// Puts a part in its place; zeros where nothing was.
fn change(bytes: &mut Vec<u8>, offset: u64, part: &[u8]) -> Result<(), StorageError> {
    let too_long = || StorageError::Other(format!("{} bytes at {offset}: too long", part.len()));
    let start = usize::try_from(offset).map_err(|_| too_long())?;
    let end = start.checked_add(part.len()).ok_or_else(too_long)?;
    if bytes.len() < end {
        let more = end - bytes.len();
        bytes.try_reserve(more).map_err(|_| too_long())?;
        bytes.resize(end, 0);
    }
    bytes[start..end].copy_from_slice(part);
    Ok(())
}

fn is_overtaken(error: &RemoteError) -> bool {
    let status = error.status();
    status == Some(ObjectStatus::EXISTS) || status == Some(ObjectStatus::ETAG_MISMATCH)
}

fn overtaken(key: &StoreKey) -> StorageError {
    StorageError::Other(format!(
        "key {key}: others put it {TRIES} times meanwhile: try again when they are done"
    ))
}
