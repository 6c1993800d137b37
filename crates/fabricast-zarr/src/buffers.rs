//! Values from and to buffers of the caller's own: in the host's memory, or in a GPU's.

use std::ops::{Bound, RangeBounds};

use fabricast::storage::{
    FileHandle, IoBuf, IoBufMut, IoFuture, ReadRequest, Transferred, read_many,
};
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{StorageError, StoreKey};

use crate::readable::{check_read, checked};
use crate::store::failed;
use crate::{FileZarrStore, ReadRefusal, ReadRefused};

/// A range of a value, and the file that it is in.
struct Found {
    file: FileHandle,
    start: u64,
    len: usize,
}

impl FileZarrStore {
    /// Reads a range of a value into a buffer, from its byte `at` on, on this thread; `None` where
    /// the key has no value. Returns how many bytes it read, which are all of the range, and which
    /// way they went.
    ///
    /// The buffer may be GPU memory ([`DeviceMemory`](fabricast::storage::DeviceMemory),
    /// [`DeviceBuffer`](fabricast::buffer::DeviceBuffer)): then the bytes go by cuFile where it
    /// works, else through pinned memory, and never through a `Bytes`. Several values at once:
    /// [`pread_into`](Self::pread_into).
    ///
    /// ```
    /// use fabricast_zarr::FileZarrStore;
    /// use zarrs_storage::WritableStorageTraits;
    /// # let directory = tempfile::tempdir()?;
    /// let store = FileZarrStore::open(directory.path())?;
    /// let key = "c/0".try_into()?;
    /// store.set(&key, vec![7; 1000].into())?;
    /// let mut buffer = vec![0; 4096];
    /// let moved = store.read_into(&key, (200..).into(), &mut buffer, 1)?.expect("it was set");
    /// assert_eq!((moved.bytes, buffer[0], buffer[800], buffer[801]), (800, 0, 7, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A range that is not inside of the value, a buffer that is too short, what the system
    /// answers. What is in the buffer's range then, is not said.
    pub fn read_into<B: IoBufMut>(
        &self,
        key: &StoreKey,
        byte_range: ByteRange,
        buffer: &mut B,
        at: usize,
    ) -> Result<Option<Transferred>, StorageError> {
        let Some(found) = self.find(key, byte_range, buffer, at)? else {
            return Ok(None);
        };
        let Found { file, start, len } = found;
        let read = file.read_into(buffer, at..at + len, start, &self.options.io);
        let moved = read.map_err(failed)?;
        check_read(&file, len, moved.bytes)?;
        Ok(Some(moved))
    }

    /// Begins to read a range of a value into a buffer that the operation owns, from its byte `at`
    /// on, by the threads of a pool. The outcome says how many bytes were read: all of the range,
    /// unless somebody cut the file meanwhile.
    ///
    /// Begin as many as you like and wait for them all ([`wait_all`](fabricast::storage::wait_all),
    /// or await each): that is what KvikIO's `GDSStore.getitems` does.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use fabricast::storage::wait_all;
    /// use fabricast_zarr::{FileZarrStore, ReadRefusal};
    /// use zarrs_storage::byte_range::ByteRange;
    /// use zarrs_storage::WritableStorageTraits;
    /// # let directory = tempfile::tempdir()?;
    /// let store = FileZarrStore::open(directory.path())?;
    /// store.set(&"c/0".try_into()?, vec![0; 1000].into())?;
    /// store.set(&"c/2".try_into()?, vec![2; 1000].into())?;
    /// let (mut begun, mut missing) = (Vec::new(), Vec::new());
    /// for chunk in 0..3 {
    ///     let key = format!("c/{chunk}").as_str().try_into()?;
    ///     match store.pread_into(&key, ByteRange::FromStart(0, None), vec![9; 1000], 0) {
    ///         Ok(future) => begun.push(future),
    ///         Err(refused) => match refused.reason {
    ///             ReadRefusal::NotFound => missing.push(chunk),
    ///             ReadRefusal::Storage(error) => return Err(error.into()),
    ///         },
    ///     }
    /// }
    /// assert_eq!(missing, [1]);
    /// for outcome in wait_all(begun, Instant::now() + Duration::from_secs(10)) {
    ///     assert_eq!(outcome.expect("within 10 seconds").result?.bytes, 1000);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The buffer, and why nothing began.
    pub fn pread_into<B: IoBufMut>(
        &self,
        key: &StoreKey,
        byte_range: ByteRange,
        buffer: B,
        at: usize,
    ) -> Result<IoFuture<B>, ReadRefused<B>> {
        let reason = match self.find(key, byte_range, &buffer, at) {
            Ok(Some(found)) => {
                let request = ReadRequest {
                    file: &found.file,
                    offset: found.start,
                    buffer,
                    range: at..at + found.len,
                };
                let future = read_many([request], &self.options.io).pop();
                return Ok(future.expect("one for each request"));
            }
            Ok(None) => ReadRefusal::NotFound,
            Err(error) => error.into(),
        };
        Err(ReadRefused { buffer, reason })
    }

    /// Sets a value to a range of a buffer, which may be GPU memory: as a whole or not at all, as
    /// `set` does, on this thread.
    ///
    /// ```
    /// use fabricast_zarr::FileZarrStore;
    /// use zarrs_storage::ReadableStorageTraits;
    /// # let directory = tempfile::tempdir()?;
    /// let store = FileZarrStore::open(directory.path())?;
    /// let key = "c/0".try_into()?;
    /// let moved = store.write_from(&key, &vec![7; 1000], ..10)?;
    /// assert_eq!(moved.bytes, 10);
    /// assert_eq!(store.get(&key)?, Some(vec![7; 10].into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A range that is not inside of the buffer, and those of `set`; then the value is the old one.
    pub fn write_from<B: IoBuf>(
        &self,
        key: &StoreKey,
        buffer: &B,
        range: impl RangeBounds<usize>,
    ) -> Result<Transferred, StorageError> {
        let range: (Bound<usize>, Bound<usize>) =
            (range.start_bound().cloned(), range.end_bound().cloned());
        self.replace(key, |file| {
            file.write_from(buffer, range, 0, &self.options.io)
        })
    }

    /// The range's file and place; `None` where there is no value.
    fn find<B: IoBuf>(
        &self,
        key: &StoreKey,
        byte_range: ByteRange,
        buffer: &B,
        at: usize,
    ) -> Result<Option<Found>, StorageError> {
        let Some((file, size)) = self.open_value(key)? else {
            return Ok(None);
        };
        let (start, len) = checked(byte_range, size)?;
        let room = buffer.place().len();
        if at.checked_add(len).is_none_or(|end| end > room) {
            return Err(StorageError::Other(format!(
                "key {key}: {len} bytes at {at} of a buffer of {room}: give it a longer one, or \
                 ask for less"
            )));
        }
        Ok(Some(Found { file, start, len }))
    }
}
