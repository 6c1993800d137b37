//! `BufferSource`: memory that is sent from where it lies.

use super::{BlockSource, SourceError};
use crate::buffer::Buffer;
use crate::stream::Manifest;

/// One entry, whose bytes are a [`Buffer`]: nothing is read and nothing copied, they go out from
/// where they lie. The pool's region must be registered with the sender's domains
/// ([`StreamSender::register`](crate::stream::StreamSender::register)).
#[derive(Debug)]
pub struct BufferSource {
    manifest: Manifest,
    buffer: Buffer,
    stamp: [u8; 16],
}

impl BufferSource {
    /// The bytes of a buffer under a name. `stamp` is the caller's own: what tells this content
    /// from another of the same name.
    ///
    /// # Errors
    /// [`SourceError::Name`] for a name that can't be sent.
    pub fn new(name: &str, buffer: Buffer, stamp: [u8; 16]) -> Result<Self, SourceError> {
        let manifest = super::single(name, buffer.len() as u64)?;
        Ok(Self {
            manifest,
            buffer,
            stamp,
        })
    }
}

impl BlockSource for BufferSource {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn stamp(&self) -> [u8; 16] {
        self.stamp
    }

    fn read(&self, _entry: usize, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = self
            .buffer
            .get(from..)
            .and_then(|rest| rest.get(..into.len()));
        let bytes = bytes.ok_or_else(|| SourceError::Other("behind the end".to_owned()))?;
        into.copy_from_slice(bytes);
        Ok(())
    }

    fn lend(&self, _entry: usize, offset: u64, len: usize) -> Option<Buffer> {
        let from = usize::try_from(offset).ok()?;
        let to = from
            .checked_add(len)
            .filter(|to| *to <= self.buffer.len())?;
        Some(self.buffer.slice(from..to))
    }
}
