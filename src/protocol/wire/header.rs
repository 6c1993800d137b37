//! How a header lies in front of its payload.

use std::fmt;
use std::ops::Range;

use zerocopy::FromBytes;
use zerocopy::little_endian::U16;

use super::{WireError, field};

const MODE_RAW: u8 = 0;
const MODE_PREFIXED: u8 = 1;
const MODE_FIXED: u8 = 2;

/// Bytes in front of a header in [`HeaderMode::Prefixed`].
pub(crate) const PREFIX_LEN: usize = 2;

/// How a message is divided into a header and a payload on the wire.
///
/// The hello of each side says how it frames what *it* sends; the receiver divides by that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum HeaderMode {
    /// Each message begins with a header of exactly this many bytes.
    Fixed(u16),
    /// Each message begins with the length of its header (two bytes), then the header.
    Prefixed,
    /// Nothing says where the header ends: the receiver gets header and payload as one run.
    #[default]
    Raw,
}

impl HeaderMode {
    /// Bytes that the framing itself puts in front of the header.
    pub fn overhead(self) -> usize {
        match self {
            Self::Prefixed => PREFIX_LEN,
            Self::Fixed(_) | Self::Raw => 0,
        }
    }

    /// Whether a header of `len` bytes can be sent in this mode.
    pub fn admits(self, len: usize) -> bool {
        match self {
            Self::Fixed(n) => len == usize::from(n),
            Self::Prefixed => len <= usize::from(u16::MAX),
            Self::Raw => true,
        }
    }

    pub(super) fn to_wire(self) -> (u8, u16) {
        match self {
            Self::Raw => (MODE_RAW, 0),
            Self::Prefixed => (MODE_PREFIXED, 0),
            Self::Fixed(n) => (MODE_FIXED, n),
        }
    }

    pub(super) fn from_wire(mode: u8, len: u16) -> Result<Self, WireError> {
        match (mode, len) {
            (MODE_RAW, 0) => Ok(Self::Raw),
            (MODE_PREFIXED, 0) => Ok(Self::Prefixed),
            (MODE_FIXED, n) => Ok(Self::Fixed(n)),
            (MODE_RAW | MODE_PREFIXED, n) => Err(field("header_len", n)),
            (other, _) => Err(field("header_mode", other)),
        }
    }

    /// Mode and length in one number, as a refusal carries them.
    pub(crate) fn to_detail(self) -> u64 {
        let (mode, len) = self.to_wire();
        u64::from(mode) << 16 | u64::from(len)
    }

    pub(super) fn from_detail(detail: u64) -> Option<Self> {
        let mode = u8::try_from(detail >> 16).ok()?;
        Self::from_wire(mode, detail as u16).ok()
    }
}

impl fmt::Display for HeaderMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(n) => write!(f, "headers of {n} bytes"),
            Self::Prefixed => f.write_str("headers with a length in front"),
            Self::Raw => f.write_str("no header framing"),
        }
    }
}

/// The two bytes in front of a header in [`HeaderMode::Prefixed`].
pub(crate) fn prefix(header_len: u16) -> [u8; PREFIX_LEN] {
    header_len.to_le_bytes()
}

/// Where header and payload lie in a message that came from a peer.
///
/// # Errors
///
/// [`WireError::Short`] when the message ends before its header does.
#[inline(always)]
pub(crate) fn split(
    mode: HeaderMode,
    message: &[u8],
) -> Result<(Range<usize>, Range<usize>), WireError> {
    let len = message.len();
    let header = match mode {
        HeaderMode::Raw => 0..0,
        HeaderMode::Fixed(n) => 0..usize::from(n),
        HeaderMode::Prefixed => {
            let short = WireError::Short {
                len,
                need: PREFIX_LEN,
            };
            let (n, _) = U16::read_from_prefix(message).map_err(|_| short)?;
            PREFIX_LEN..PREFIX_LEN + usize::from(n.get())
        }
    };
    let need = header.end;
    if len < need {
        return Err(WireError::Short { len, need });
    }
    Ok((header, need..len))
}
