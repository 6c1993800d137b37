//! `MemoryStore`: objects in the process's memory.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::{
    ChecksumKind, ListPage, ListQuery, ListedObject, ObjectChecksum, ObjectEtag, ObjectInfo,
    ObjectName, ObjectStore, ObjectUpload, PutCondition, StoreCompletion, StoreError, StoredObject,
};
use crate::buffer::{Buffer, BufferMut};

/// What a store takes that was told no limit, in bytes.
const ROOM_DEFAULT: u64 = 1 << 30;

/// Objects in the process's memory; clones are handles on the same ones.
///
/// Bytes are copied once, between an object and the buffer that the provider moves. An etag is the
/// CRC-64/NVME and the size of the content.
#[derive(Debug, Clone)]
pub struct MemoryStore(Arc<MemoryShelf>);

#[derive(Debug)]
struct MemoryShelf {
    objects: Mutex<MemoryObjects>,
    room: u64,
}

#[derive(Debug, Default)]
struct MemoryObjects {
    by_name: BTreeMap<ObjectName, Arc<MemoryObject>>,
    /// Bytes of all objects, and those that came for uploads.
    used: u64,
}

#[derive(Debug)]
struct MemoryObject {
    bytes: Box<[u8]>,
    info: ObjectInfo,
}

#[derive(Debug)]
struct MemoryUpload {
    shelf: Arc<MemoryShelf>,
    name: ObjectName,
    condition: PutCondition,
    /// Bytes that the object is to have.
    size: u64,
    /// What came, up to the last byte of it: it is in `used`.
    bytes: Vec<u8>,
}

impl MemoryStore {
    /// A store that has room for 1 GiB.
    pub fn new() -> Self {
        Self::with_room(ROOM_DEFAULT)
    }

    /// A store that has room for so many bytes, in objects and in what came of those that are being
    /// put. It should be less than the process may have.
    pub fn with_room(bytes: u64) -> Self {
        let objects = Mutex::default();
        let room = bytes;
        Self(Arc::new(MemoryShelf { objects, room }))
    }

    /// Puts an object of these bytes.
    ///
    /// # Errors
    /// As [`ObjectStore::begin`] and [`ObjectUpload::commit`].
    pub fn insert(
        &self,
        name: &ObjectName,
        bytes: &[u8],
        condition: &PutCondition,
    ) -> Result<ObjectInfo, StoreError> {
        let mut upload = self.upload(name, bytes.len() as u64, condition)?;
        upload.put(0, bytes)?;
        let crc64 = ObjectChecksum::of(ChecksumKind::Crc64Nvme, bytes).value;
        Box::new(upload).commit(crc64)
    }

    /// The bytes of an object.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    pub fn get(&self, name: &ObjectName) -> Result<Vec<u8>, StoreError> {
        Ok(self.0.find(name)?.bytes.to_vec())
    }

    /// Bytes that are in use, those of uploads included.
    pub fn used_bytes(&self) -> u64 {
        self.0.lock().used
    }

    /// How many have it.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn handles(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    fn upload(
        &self,
        name: &ObjectName,
        size: u64,
        condition: &PutCondition,
    ) -> Result<MemoryUpload, StoreError> {
        let objects = self.0.lock();
        condition.check(objects.etag(name))?;
        let limit = self.0.room.saturating_sub(objects.used);
        if size > limit || usize::try_from(size).is_err() {
            return Err(StoreError::TooLarge { size, limit });
        }
        drop(objects);
        Ok(MemoryUpload {
            shelf: Arc::clone(&self.0),
            name: name.clone(),
            condition: condition.clone(),
            size,
            bytes: Vec::new(),
        })
    }
}

impl MemoryUpload {
    /// Puts bytes in their place; how many. Room is taken for what came, not for what is to come.
    fn put(&mut self, at: u64, bytes: &[u8]) -> Result<usize, StoreError> {
        let left = usize::try_from(self.size.saturating_sub(at)).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(left)];
        let start = usize::try_from(at).map_err(|_| StoreError::NoSpace)?;
        let end = start + bytes.len();
        if let Some(more) = end.checked_sub(self.bytes.len()).filter(|more| *more > 0) {
            self.grow(more)?;
        }
        let len = self.bytes.len();
        if start == len {
            self.bytes.extend_from_slice(bytes);
        } else {
            // Pieces come in any order: those before it come later.
            self.bytes.resize(len.max(end), 0);
            self.bytes[start..end].copy_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn grow(&mut self, more: usize) -> Result<(), StoreError> {
        let mut objects = self.shelf.lock();
        if more as u64 > self.shelf.room.saturating_sub(objects.used) {
            return Err(StoreError::NoSpace);
        }
        let reserved = self.bytes.try_reserve(more);
        reserved.map_err(|_| StoreError::NoSpace)?;
        objects.used += more as u64;
        Ok(())
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryShelf {
    fn lock(&self) -> MutexGuard<'_, MemoryObjects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, name: &ObjectName) -> Result<Arc<MemoryObject>, StoreError> {
        let objects = self.lock();
        let found = objects.by_name.get(name).ok_or(StoreError::NotFound)?;
        Ok(Arc::clone(found))
    }
}

impl MemoryObjects {
    fn etag(&self, name: &ObjectName) -> Option<&ObjectEtag> {
        Some(&self.by_name.get(name)?.info.etag)
    }
}

impl ObjectStore for MemoryStore {
    fn head(&self, name: &ObjectName) -> Result<ObjectInfo, StoreError> {
        Ok(self.0.find(name)?.info.clone())
    }

    fn open(&self, name: &ObjectName) -> Result<Arc<dyn StoredObject>, StoreError> {
        Ok(self.0.find(name)?)
    }

    fn begin(
        &self,
        name: &ObjectName,
        size: u64,
        condition: &PutCondition,
    ) -> Result<Box<dyn ObjectUpload>, StoreError> {
        Ok(Box::new(self.upload(name, size, condition)?))
    }

    fn list(&self, query: &ListQuery) -> Result<ListPage, StoreError> {
        let objects = self.0.lock();
        // The first name that can be in it.
        let from = query.prefix.as_str().max(&query.start_after);
        let from = match ObjectName::new(from.trim_end_matches('/')) {
            Ok(name) => Bound::Included(name),
            Err(_) => Bound::Unbounded,
        };
        let mut page = ListPage::default();
        for (name, object) in objects.by_name.range((from, Bound::Unbounded)) {
            if !query.takes(name.as_str()) {
                // Names that begin with the prefix lie beside each other.
                if *name.as_str() > *query.prefix && !name.as_str().starts_with(&query.prefix) {
                    break;
                }
                continue;
            }
            if page.objects.len() == query.limit {
                page.more = query.limit > 0;
                break;
            }
            page.objects.push(ListedObject {
                name: name.clone(),
                size: object.info.size,
                etag: object.info.etag.clone(),
                modified: object.info.modified,
            });
        }
        Ok(page)
    }

    fn delete(&self, name: &ObjectName, etag: Option<&ObjectEtag>) -> Result<(), StoreError> {
        let mut objects = self.0.lock();
        let found = objects.etag(name).ok_or(StoreError::NotFound)?;
        if etag.is_some_and(|etag| etag != found) {
            let found = Some(found.clone());
            return Err(StoreError::EtagMismatch { found });
        }
        if let Some(gone) = objects.by_name.remove(name) {
            objects.used -= gone.info.size;
        }
        Ok(())
    }

    fn may_block(&self) -> bool {
        false
    }
}

impl StoredObject for MemoryObject {
    fn info(&self) -> &ObjectInfo {
        &self.info
    }

    fn read(&self, at: u64, len: usize, mut buffer: BufferMut, done: StoreCompletion<BufferMut>) {
        let start = usize::try_from(at)
            .unwrap_or(usize::MAX)
            .min(self.bytes.len());
        let bytes = &self.bytes[start..];
        let len = len.min(bytes.len()).min(buffer.len());
        buffer[..len].copy_from_slice(&bytes[..len]);
        done.end(buffer, Ok(len));
    }
}

impl ObjectUpload for MemoryUpload {
    fn write(&mut self, at: u64, bytes: Buffer, done: StoreCompletion<Buffer>) {
        let put = self.put(at, &bytes);
        done.end(bytes, put);
    }

    fn commit(mut self: Box<Self>, crc64: u64) -> Result<ObjectInfo, StoreError> {
        let shelf = Arc::clone(&self.shelf);
        let mut objects = shelf.lock();
        self.condition.check(objects.etag(&self.name))?;
        let (size, came) = (self.size, self.bytes.len());
        if came as u64 != size {
            let text = format!("{came} bytes were written of {size}");
            return Err(StoreError::Failed(text));
        }
        let info = ObjectInfo {
            size,
            etag: ObjectEtag::of_content(crc64, size),
            modified: Some(SystemTime::now()),
            checksum: Some(ObjectChecksum {
                kind: ChecksumKind::Crc64Nvme,
                value: crc64,
            }),
        };
        let object = Arc::new(MemoryObject {
            bytes: std::mem::take(&mut self.bytes).into_boxed_slice(),
            info: info.clone(),
        });
        if let Some(old) = objects.by_name.insert(self.name.clone(), object) {
            objects.used -= old.info.size;
        }
        drop(objects);
        Ok(info)
    }
}

impl Drop for MemoryUpload {
    fn drop(&mut self) {
        // None, where they are an object's by now.
        if !self.bytes.is_empty() {
            self.shelf.lock().used -= self.bytes.len() as u64;
        }
    }
}
