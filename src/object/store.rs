//! `ObjectStore`: where objects lie; what a service serves.
//!
//! ```text
//!  GET   open ─► StoredObject ── read(at, BufferMut) ─► StoreCompletion ─► RMA write to the client
//!  PUT   begin ─► ObjectUpload ── write(at, Buffer) ─► StoreCompletion, …, commit (drop: abort)
//! ```
//!
//! The buffers are those that the provider reads from and writes to: a store fills and empties them
//! where they are, and nothing is copied in between. Pieces of one object are under way at once and
//! end in any order, on whatever thread.

mod checksum;
mod completion;
mod error;
mod etag;
mod file_store;
mod info;
mod memory_store;
mod name;
mod taken_up;

use std::fmt::Debug;
use std::sync::Arc;

use crate::buffer::{Buffer, BufferMut};

pub(crate) use checksum::RangeChecksum;
pub use checksum::{ChecksumKind, ObjectChecksum};
pub use completion::StoreCompletion;
pub use error::StoreError;
pub use etag::{EtagError, ObjectEtag};
pub use file_store::{FileStore, KeptLimits};
pub use info::{ListPage, ListQuery, ListedObject, ObjectInfo, PutCondition};
pub use memory_store::MemoryStore;
pub use name::{ObjectName, ObjectNameError};
pub(crate) use name::{check_text, text_of};
pub use taken_up::{TakeUp, TakenUp, UploadKey, UploadKeyError};

/// Where objects lie: what an application implements to serve something of its own.
///
/// [`MemoryStore`] and [`FileStore`] are ready. Calls come from several threads.
///
/// ```
/// use fabricast::object::{MemoryStore, ObjectName, ObjectStore, PutCondition};
///
/// let store = MemoryStore::new();
/// let name = ObjectName::new("runs/7/events")?;
/// let stored = store.insert(&name, b"some bytes", &PutCondition::Any)?;
/// assert_eq!(store.head(&name)?.etag, stored.etag);
/// let again = store.insert(&name, b"others", &PutCondition::Absent);
/// assert!(again.is_err(), "there is one already");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait ObjectStore: Send + Sync + Debug + 'static {
    /// Says what there is under a name.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] and others.
    fn head(&self, name: &ObjectName) -> Result<ObjectInfo, StoreError>;

    /// Opens an object: what is read of it is of one version, whatever is put meanwhile.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] and others.
    fn open(&self, name: &ObjectName) -> Result<Arc<dyn StoredObject>, StoreError>;

    /// Begins to put an object of `size` bytes. Nobody sees it before it is
    /// [committed](ObjectUpload::commit); the condition is judged then, and may be judged now, too.
    ///
    /// # Errors
    /// What is in the way of it, as far as that is known already.
    fn begin(
        &self,
        name: &ObjectName,
        size: u64,
        condition: &PutCondition,
    ) -> Result<Box<dyn ObjectUpload>, StoreError>;

    /// Goes on with an upload that was cut, or begins one that can be taken up: what was
    /// [marked](ObjectUpload::mark) of it stays when it is dropped, for as long as the store sees
    /// fit, and nobody sees it. By default nothing stays, and each upload begins at byte 0.
    ///
    /// # Errors
    /// As [`begin`](Self::begin); [`StoreError::UploadTaken`] while somebody has the upload.
    fn take_up(&self, asked: &TakeUp<'_>) -> Result<TakenUp, StoreError> {
        let begun = self.begin(asked.name, asked.size, asked.condition)?;
        Ok(TakenUp::begun(begun))
    }

    /// Lists objects in the order of the bytes of their names: those that begin with the prefix and
    /// come behind `start_after`, at most [`limit`](ListQuery::limit) of them.
    ///
    /// # Errors
    /// What kept the store from looking.
    fn list(&self, query: &ListQuery) -> Result<ListPage, StoreError>;

    /// As [`list`](Self::list), for somebody who may need it no more. A store whose lists take long
    /// asks `is_needed` now and then, and answers with any page when that says no. By default, it
    /// is not asked.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    fn list_while(
        &self,
        query: &ListQuery,
        is_needed: &dyn Fn() -> bool,
    ) -> Result<ListPage, StoreError> {
        let _ = is_needed;
        self.list(query)
    }

    /// Removes an object; where an etag is given, only the version that has it. Who reads it goes
    /// on.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::EtagMismatch`] and others.
    fn delete(&self, name: &ObjectName, etag: Option<&ObjectEtag>) -> Result<(), StoreError>;

    /// Whether calls may wait for a device. Then a service makes them on threads that may wait, and
    /// not on the one that moves bytes. [`StoredObject::read`] and [`ObjectUpload::write`] never
    /// wait, in either case.
    fn may_block(&self) -> bool {
        true
    }
}

/// One version of an object that can be read.
pub trait StoredObject: Send + Sync + Debug {
    /// What it is.
    fn info(&self) -> &ObjectInfo;

    /// Begins to read `len` bytes from byte `at` on to the front of the buffer, and ends the
    /// completion with the number of bytes that were read; fewer are an error for who asked. The
    /// range lies within the object, `len` within the buffer.
    fn read(&self, at: u64, len: usize, buffer: BufferMut, done: StoreCompletion<BufferMut>);
}

/// An object that is being put. Dropped before it is committed, it leaves nothing, but for what was
/// marked of one that was [taken up](ObjectStore::take_up).
pub trait ObjectUpload: Send + Debug {
    /// Begins to write these bytes to byte `at` and what follows, and ends the completion with the
    /// number of bytes that were written. They lie within the size that the upload began with.
    fn write(&mut self, at: u64, bytes: Buffer, done: StoreCompletion<Buffer>);

    /// The first `there` bytes were written, and each write of them is over; `crc64` is their
    /// CRC-64/NVME. Whoever takes the upload up goes on from there.
    fn mark(&mut self, there: u64, crc64: u64) {
        let _ = (there, crc64);
    }

    /// Puts the object in its place, all at once, if its condition holds. All bytes were written,
    /// each once, and each write is over. `crc64` is the CRC-64/NVME of all of them.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::EtagMismatch`] and others: then nothing has changed.
    fn commit(self: Box<Self>, crc64: u64) -> Result<ObjectInfo, StoreError>;
}

#[cfg(all(test, not(loom)))]
#[path = "store/tests/contract.rs"]
mod contract;
