//! Values and parts of them as `Bytes`.

use fabricast::storage::FileHandle;
use zarrs_storage::byte_range::{ByteRange, ByteRangeIterator, InvalidByteRangeError};
use zarrs_storage::{
    Bytes, MaybeBytes, MaybeBytesIterator, ReadableStorageTraits, StorageError, StoreKey,
};

use crate::FileZarrStore;
use crate::range_reads::RangeReads;
use crate::store::{failed, failed_at};

/// From this many bytes on, it is asked whether there is that much memory: less is taken for
/// granted everywhere.
const ASK_FROM: usize = 64 << 20;

impl ReadableStorageTraits for FileZarrStore {
    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>, StorageError> {
        let Some((file, len)) = self.open_value(key)? else {
            return Ok(None);
        };
        let reads = RangeReads::new(file, len, byte_ranges, self.options.io.clone());
        Ok(Some(Box::new(reads)))
    }

    fn get_partial(
        &self,
        key: &StoreKey,
        byte_range: ByteRange,
    ) -> Result<MaybeBytes, StorageError> {
        let Some((file, len)) = self.open_value(key)? else {
            return Ok(None);
        };
        let (start, len) = checked(byte_range, len)?;
        let mut bytes = zeros(len)?;
        let read = file.read_parallel(&mut bytes, start, &self.options.io);
        check_read(&file, len, read.map_err(failed)?.bytes)?;
        // Takes the allocation over: no copy.
        Ok(Some(Bytes::from(bytes)))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>, StorageError> {
        let path = self.path(key)?;
        match std::fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => Ok(Some(metadata.len())),
            Ok(_) => Ok(None),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => Ok(None),
                _ => Err(failed_at(&path, error)),
            },
        }
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

/// Where a range of a value of `size` bytes begins, and its length.
pub(crate) fn checked(range: ByteRange, size: u64) -> Result<(u64, usize), InvalidByteRangeError> {
    let (start, len) = match range {
        ByteRange::FromStart(start, len) => (
            Some(start),
            len.or_else(|| size.checked_sub(start)).unwrap_or(0),
        ),
        ByteRange::Suffix(len) => (size.checked_sub(len), len),
    };
    let inside = start.filter(|start| start.checked_add(len).is_some_and(|end| end <= size));
    // On a machine with smaller addresses, a value may be longer than they reach.
    match (inside, usize::try_from(len)) {
        (Some(start), Ok(len)) => Ok((start, len)),
        _ => Err(InvalidByteRangeError::new(range, size)),
    }
}

/// Memory to read into. Of the system's, zeroed by it: nothing is written here where it is long.
pub(crate) fn zeros(len: usize) -> Result<Vec<u8>, StorageError> {
    if len >= ASK_FROM {
        let mut asked = Vec::<u8>::new();
        asked
            .try_reserve_exact(len)
            .map_err(|error| StorageError::Other(format!("memory for {len} bytes: {error}")))?;
    }
    Ok(vec![0; len])
}

/// Bytes are missing only where somebody cut the file after its length was asked for.
pub(crate) fn check_read(file: &FileHandle, len: usize, read: usize) -> Result<(), StorageError> {
    if read == len {
        return Ok(());
    }
    let path = file.path().display();
    let said = format!("{path}: {read} of {len} bytes: somebody cut the file while it was read");
    Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, said).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_inside_of_the_value_or_refused() {
        use ByteRange::{FromStart, Suffix};
        for (range, expected) in [
            (FromStart(0, None), (0, 10)),
            (FromStart(10, None), (10, 0)),
            (FromStart(3, Some(7)), (3, 7)),
            (FromStart(10, Some(0)), (10, 0)),
            (Suffix(0), (10, 0)),
            (Suffix(10), (0, 10)),
        ] {
            assert_eq!(checked(range, 10).unwrap(), expected, "{range:?}");
        }
        for range in [
            FromStart(11, None),
            FromStart(3, Some(8)),
            FromStart(11, Some(0)),
            FromStart(u64::MAX, Some(1)),
            FromStart(1, Some(u64::MAX)),
            FromStart(u64::MAX, None),
            Suffix(11),
            Suffix(u64::MAX),
        ] {
            assert!(checked(range, 10).is_err(), "{range:?}");
        }
    }

    #[test]
    fn memory_that_there_can_not_be_is_an_error() {
        assert!(zeros(isize::MAX as usize).is_err());
        assert_eq!(zeros(ASK_FROM).unwrap().len(), ASK_FROM);
    }
}
