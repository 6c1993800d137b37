//! The compact format, version 1. All integers are little-endian; nothing is aligned.
//!
//! ```text
//!  0  magic "FbCo"        8  count, u32: messages            16  first message
//!  4  version, u8: 1     12  length, u32: the whole buffer
//!  5  reserved, 3 × 0
//!
//!  message   u32: bits 0..22 length, bit 23 tag follows, bits 24..31 status
//!            u64: tag, where bit 23 is set; else it is that of the message before, 0 for the first
//!            the bytes
//! ```

use super::error::FormatErrorKind;
use super::parser::{Extent, Head};

pub(super) const MAGIC: [u8; 4] = *b"FbCo";
pub(super) const VERSION: u8 = 1;
pub(super) const HEADER_LEN: usize = 16;
pub(super) const LEN_MAX: usize = (1 << 23) - 1;
const TAG: u32 = 1 << 23;
const STATUS_SHIFT: u32 = 24;

/// Bytes in front of a message's own.
#[inline]
pub(super) fn head_len(same_tag: bool) -> usize {
    4 + 8 * usize::from(!same_tag)
}

/// Writes a message's header to the front of `out`, which has room for it. `len` is at most
/// [`LEN_MAX`].
#[inline]
pub(super) fn write_head(out: &mut [u8], same_tag: bool, tag: u64, status: u8, len: usize) {
    let flag = if same_tag { 0 } else { TAG };
    let word = len as u32 | flag | u32::from(status) << STATUS_SHIFT;
    out[..4].copy_from_slice(&word.to_le_bytes());
    if !same_tag {
        out[4..12].copy_from_slice(&tag.to_le_bytes());
    }
}

/// Writes the buffer's header. A buffer's length fits 32 bits wherever libfabric's messages do;
/// beyond, `None`.
pub(super) fn write_header(out: &mut [u8], count: u32, len: usize) -> Option<()> {
    let header = out.first_chunk_mut::<HEADER_LEN>()?;
    *header = [0; HEADER_LEN];
    header[..4].copy_from_slice(&MAGIC);
    header[4] = VERSION;
    header[8..12].copy_from_slice(&count.to_le_bytes());
    header[12..].copy_from_slice(&u32::try_from(len).ok()?.to_le_bytes());
    Some(())
}

/// Reads the buffer's header: how many messages and bytes it promises.
pub(super) fn read_header(bytes: &[u8]) -> Result<Extent, (usize, FormatErrorKind)> {
    let Some(header) = bytes.first_chunk::<HEADER_LEN>() else {
        let (need, have) = (HEADER_LEN, bytes.len());
        return Err((0, FormatErrorKind::Truncated { need, have }));
    };
    let [a, b, c, d, version, reserved @ ..] = *header;
    let [r0, r1, r2, n0, n1, n2, n3, l0, l1, l2, l3] = reserved;
    let found = [a, b, c, d];
    if found != MAGIC {
        return Err((0, FormatErrorKind::NotCompact { found }));
    }
    if version != VERSION {
        return Err((4, FormatErrorKind::Version { found: version }));
    }
    if [r0, r1, r2] != [0; 3] {
        return Err((5, FormatErrorKind::Reserved));
    }
    Ok(Extent {
        count: u32::from_le_bytes([n0, n1, n2, n3]),
        len: u32::from_le_bytes([l0, l1, l2, l3]) as usize,
    })
}

/// Reads the header of the message that `rest` begins with; `before` is the tag of the one in front
/// of it.
#[inline]
pub(super) fn read_head(rest: &[u8], before: u64) -> Result<Head, FormatErrorKind> {
    let short = |need| FormatErrorKind::Truncated {
        need,
        have: rest.len(),
    };
    let word = u32::from_le_bytes(*rest.first_chunk().ok_or_else(|| short(4))?);
    let mut head = Head {
        tag: before,
        status: (word >> STATUS_SHIFT) as u8,
        head: 4,
        len: word as usize & LEN_MAX,
    };
    if word & TAG != 0 {
        let tag = rest[4..].first_chunk().ok_or_else(|| short(12))?;
        head.tag = u64::from_le_bytes(*tag);
        head.head = 12;
    }
    Ok(head)
}
