//! `RangeReads`: ranges of one value, some of them ahead of whoever takes them.

use std::collections::VecDeque;

use fabricast::storage::{FileHandle, IoFuture, IoOptions, ReadRequest, read_many};
use zarrs_storage::byte_range::{ByteRange, ByteRangeIterator};
use zarrs_storage::{Bytes, StorageError};

use crate::readable::{check_read, checked, zeros};
use crate::store::failed;

/// Ranges that are read at a time: as many as a disk likes, and no more memory than for these.
const AHEAD: usize = 32;

/// Gives the bytes of each range, in their order.
pub(crate) struct RangeReads<'a> {
    file: FileHandle,
    len: u64,
    ranges: ByteRangeIterator<'a>,
    options: IoOptions,
    begun: VecDeque<Result<IoFuture<Vec<u8>>, StorageError>>,
}

impl<'a> RangeReads<'a> {
    pub(crate) fn new(
        file: FileHandle,
        len: u64,
        ranges: ByteRangeIterator<'a>,
        options: IoOptions,
    ) -> Self {
        Self {
            file,
            len,
            ranges,
            options,
            begun: VecDeque::new(),
        }
    }

    fn begin(&self, range: ByteRange) -> Result<IoFuture<Vec<u8>>, StorageError> {
        let (offset, len) = checked(range, self.len)?;
        let request = ReadRequest {
            file: &self.file,
            offset,
            buffer: zeros(len)?,
            range: 0..len,
        };
        let future = read_many([request], &self.options).pop();
        Ok(future.expect("one for each request"))
    }

    fn end(&self, begun: IoFuture<Vec<u8>>) -> Result<Bytes, StorageError> {
        // This thread takes part in the work.
        let (bytes, moved) = begun.wait().into_result().map_err(failed)?;
        check_read(&self.file, bytes.len(), moved.bytes)?;
        // Takes the allocation over: no copy.
        Ok(Bytes::from(bytes))
    }
}

impl Iterator for RangeReads<'_> {
    type Item = Result<Bytes, StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.begun.len() < AHEAD {
            let Some(range) = self.ranges.next() else {
                break;
            };
            let begun = self.begin(range);
            self.begun.push_back(begun);
        }
        let begun = self.begun.pop_front()?;
        Some(begun.and_then(|future| self.end(future)))
    }
}
