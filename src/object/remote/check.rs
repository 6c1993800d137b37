//! Checksums of lent memory.

use crate::object::remote::RemoteError;
use crate::object::store::{ChecksumKind, ObjectChecksum, RangeChecksum};
use crate::object::{ObjectError, ObjectMemory};

/// Bytes that are copied out at once.
const PIECE: usize = 64 * 1024;

/// The checksum of what is in the memory now; `None`: the host can't read it.
pub(super) fn sum_of(
    memory: &ObjectMemory,
    start: u64,
    len: u64,
    kind: ChecksumKind,
) -> Result<Option<ObjectChecksum>, RemoteError> {
    let mut sum = RangeChecksum::new(kind, 0);
    let mut room = vec![0; PIECE.min(usize::try_from(len).unwrap_or(PIECE))];
    while sum.done() < len {
        let left = usize::try_from(len - sum.done()).unwrap_or(PIECE);
        let piece = &mut room[..left.min(PIECE)];
        match memory.copy_out(start.saturating_add(sum.done()), piece) {
            Ok(()) => sum.add(sum.done(), piece),
            Err(ObjectError::NotCopied) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some(sum.value()))
}
