//! Values from and to memory of the caller's own, without a copy.

use std::ops::Range;

use fabricast::object::{ObjectMemory, PutCondition};
use zarrs_storage::byte_range::{ByteRange, InvalidByteRangeError};
use zarrs_storage::{StorageError, StoreKey};

use super::ObjectZarrStore;
use crate::readable::checked;

impl ObjectZarrStore {
    /// Reads a range of a value into memory that is registered with [`client`](Self::client), from
    /// its byte `at` on: how many bytes it read, which are all of the range; `None` where the key
    /// has no value. The service writes them where they belong; no copy is made.
    ///
    /// # Errors
    /// A range that is not inside of the value, memory that is too short or can't be written, and
    /// what the service answers. What is in the memory's range then, is not said.
    pub fn read_into(
        &self,
        key: &StoreKey,
        byte_range: ByteRange,
        memory: &ObjectMemory,
        at: u64,
    ) -> Result<Option<u64>, StorageError> {
        let (start, len) = match byte_range {
            ByteRange::FromStart(start, Some(len)) if start.checked_add(len).is_some() => {
                (start, len)
            }
            _ => match self.head(key)? {
                Some(object) => {
                    let (start, len) = checked(byte_range, object.size)?;
                    (start, len as u64)
                }
                None => return Ok(None),
            },
        };
        let end = at.checked_add(len);
        let Some(end) = end.filter(|end| *end <= memory.len()) else {
            return Err(StorageError::Other(format!(
                "key {key}: {len} bytes at {at} of memory of {}: give it longer memory, or ask for \
                 less",
                memory.len()
            )));
        };
        let name = self.name(key);
        let mut line = self.line()?;
        let deadline = line.deadline;
        let got = line.remote().get(&name, memory, at..end, start, deadline);
        match line.understand(&name, got)? {
            None => Ok(None),
            Some(got) if got.moved == len => Ok(Some(len)),
            // Another version by now, or never inside.
            Some(got) => Err(InvalidByteRangeError::new(byte_range, got.size).into()),
        }
    }

    /// Sets a value to a range of memory that is registered with [`client`](Self::client), as a
    /// whole or not at all. The service reads it where it is; no copy is made.
    ///
    /// # Errors
    /// A range that is not inside of the memory, memory that can't be read, and what the service
    /// answers.
    pub fn write_from(
        &self,
        key: &StoreKey,
        memory: &ObjectMemory,
        range: Range<u64>,
    ) -> Result<(), StorageError> {
        let name = self.name(key);
        let mut line = self.line()?;
        let deadline = line.deadline;
        let put = line
            .remote()
            .put(&name, memory, range, &PutCondition::Any, deadline);
        let lost = || StorageError::Other(format!("object {name}: put, and not found"));
        line.understand(&name, put)?.ok_or_else(lost)?;
        Ok(())
    }
}
