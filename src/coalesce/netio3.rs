//! netio3's buffer format, as far as its public documentation tells. Messages one behind the other,
//! with nothing around them:
//!
//! ```text
//!  message   u32: bits 0..29 length, bit 30 status follows, bit 31 tag follows
//!            u8: status, where bit 30 is set; else it is 0
//!            u64: tag, where bit 31 is set; else it is that of the message before;
//!                 the first has one
//!            the bytes
//! ```
//!
//! Assumed, because the documentation does not say: little-endian integers, nothing aligned, no
//! bytes behind the last message.

use super::error::FormatErrorKind;
use super::parser::Head;

pub(super) const LEN_MAX: usize = (1 << 30) - 1;
const STATUS: u32 = 1 << 30;
const TAG: u32 = 1 << 31;

/// Bytes in front of a message's own.
#[inline]
pub(super) fn head_len(same_tag: bool, status: u8) -> usize {
    4 + usize::from(status != 0) + 8 * usize::from(!same_tag)
}

/// Writes a message's header to the front of `out`, which has room for it. `len` is at most
/// [`LEN_MAX`].
#[inline]
pub(super) fn write_head(out: &mut [u8], same_tag: bool, tag: u64, status: u8, len: usize) {
    let tag_flag = if same_tag { 0 } else { TAG };
    let status_flag = if status == 0 { 0 } else { STATUS };
    let word = len as u32 | tag_flag | status_flag;
    out[..4].copy_from_slice(&word.to_le_bytes());
    let mut at = 4;
    if status != 0 {
        out[at] = status;
        at += 1;
    }
    if !same_tag {
        out[at..at + 8].copy_from_slice(&tag.to_le_bytes());
    }
}

/// Reads the header of the message that `rest` begins with; `before` is the tag of the one in front
/// of it.
#[inline]
pub(super) fn read_head(rest: &[u8], before: Option<u64>) -> Result<Head, FormatErrorKind> {
    let short = |need| FormatErrorKind::Truncated {
        need,
        have: rest.len(),
    };
    let word = u32::from_le_bytes(*rest.first_chunk().ok_or_else(|| short(4))?);
    let (has_status, has_tag) = (word & STATUS != 0, word & TAG != 0);
    let mut at = 4;
    let status = if has_status {
        at = 5;
        *rest.get(4).ok_or_else(|| short(5))?
    } else {
        0
    };
    let tag = if has_tag {
        let tag = rest[at..].first_chunk().ok_or_else(|| short(at + 8))?;
        at += 8;
        u64::from_le_bytes(*tag)
    } else {
        before.ok_or(FormatErrorKind::NoTag)?
    };
    Ok(Head {
        tag,
        status,
        head: at,
        len: word as usize & LEN_MAX,
    })
}
