//! `WindowDescriptor`: what a peer has to know of a window, as bytes.

use std::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{INDEX_MASK, WireError, field, read};
use crate::memory::Access;

/// Bytes of a [`WindowDescriptor`].
pub const WINDOW_DESCRIPTOR_LEN: usize = 64;

/// First bytes of a descriptor.
const WINDOW_MAGIC: [u8; 4] = *b"FbWd";
/// The layout below.
const WINDOW_VERSION: u8 = 1;

/// Which window of a connection: unique among those that one side exposes on it, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WindowId(pub(crate) u64);

impl WindowId {
    /// The number, for logs and foreign interfaces.
    pub fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for WindowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a peer has to know of a window to use it: 64 bytes, which the application sends it in a
/// message.
///
/// It is good for one connection only, and only as long as the window is not revoked. Whoever has
/// the bytes and that connection has the window's rights: they are a secret between the two. The
/// layout is in docs/wire.md.
///
/// ```
/// use fabricast::endpoint::{WINDOW_DESCRIPTOR_LEN, WindowDescriptor};
///
/// let refused = WindowDescriptor::parse(&[0; WINDOW_DESCRIPTOR_LEN]).unwrap_err();
/// assert_eq!(
///     refused.to_string(),
///     "the first four bytes are [00, 00, 00, 00], not those of fabricast"
/// );
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WindowDescriptor {
    pub(crate) access: Access,
    pub(crate) connection: u64,
    pub(crate) incarnation: u64,
    pub(crate) window: WindowId,
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) key: u64,
    pub(crate) mark: u32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WindowWire {
    magic: [u8; 4],
    version: u8,
    rights: u8,
    reserved: U16,
    connection: U64,
    incarnation: U64,
    window: U64,
    base: U64,
    len: U64,
    key: U64,
    mark: U32,
    reserved2: U32,
}

const _: () = assert!(size_of::<WindowWire>() == WINDOW_DESCRIPTOR_LEN);

impl WindowDescriptor {
    /// The bytes for the peer.
    pub fn to_bytes(&self) -> [u8; WINDOW_DESCRIPTOR_LEN] {
        let wire = WindowWire {
            magic: WINDOW_MAGIC,
            version: WINDOW_VERSION,
            rights: self.access.bits() as u8,
            reserved: 0.into(),
            connection: self.connection.into(),
            incarnation: self.incarnation.into(),
            window: self.window.0.into(),
            base: self.base.into(),
            len: self.len.into(),
            key: self.key.into(),
            mark: self.mark.into(),
            reserved2: 0.into(),
        };
        zerocopy::transmute!(wire)
    }

    /// Reads the bytes that a peer sent; what follows the 64 is ignored.
    ///
    /// # Errors
    ///
    /// Any [`WireError`]. A descriptor that is understood may still be refused by the endpoint,
    /// which knows its connections.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let wire = read::<WindowWire>(bytes)?;
        if wire.magic != WINDOW_MAGIC {
            return Err(WireError::Magic(wire.magic));
        }
        if wire.version != WINDOW_VERSION {
            return Err(field("version", wire.version));
        }
        let access = Access::from_bits(wire.rights.into())
            .filter(|access| !access.is_empty())
            .ok_or_else(|| field("rights", wire.rights))?;
        let (base, len, mark) = (wire.base.get(), wire.len.get(), wire.mark.get());
        if len == 0 || base.checked_add(len).is_none() {
            return Err(field("length", len));
        }
        if mark > INDEX_MASK {
            return Err(field("mark", mark));
        }
        Ok(Self {
            access,
            connection: wire.connection.get(),
            incarnation: wire.incarnation.get(),
            window: WindowId(wire.window.get()),
            base,
            len,
            key: wire.key.get(),
            mark,
        })
    }

    /// What the peer may do.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The length of the window in bytes; `usize` is not meant, the window lies in another process.
    #[expect(clippy::len_without_is_empty, reason = "a window has at least 1 byte")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Which window of its owner's it is.
    pub fn window(&self) -> WindowId {
        self.window
    }

    /// Where the owner's provider wants the window addressed from: an address of the owner's
    /// process, or 0.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn base(&self) -> u64 {
        self.base
    }
}

/// Without the key, which is a secret.
impl fmt::Debug for WindowDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WindowDescriptor")
            .field("window", &self.window)
            .field("access", &self.access)
            .field("connection", &self.connection)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn descriptor() -> WindowDescriptor {
        WindowDescriptor {
            access: Access::WRITE,
            connection: 0x0102_0304_0506_0708,
            incarnation: 0x1112_1314_1516_1718,
            window: WindowId(0x2122_2324_2526_2728),
            base: 0x3132_3334_3536_3738,
            len: 0x4142_4344_4546_4748,
            key: 0x5152_5354_5556_5758,
            mark: 0x0062_6364,
        }
    }

    #[test]
    fn a_descriptor_has_these_bytes() {
        let expected: [u8; WINDOW_DESCRIPTOR_LEN] = [
            b'F', b'b', b'W', b'd', 1, 2, 0, 0, // magic, version, rights
            0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, // connection
            0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, // incarnation
            0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21, // window
            0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31, // base
            0x48, 0x47, 0x46, 0x45, 0x44, 0x43, 0x42, 0x41, // length
            0x58, 0x57, 0x56, 0x55, 0x54, 0x53, 0x52, 0x51, // key
            0x64, 0x63, 0x62, 0x00, 0, 0, 0, 0, // mark
        ];
        assert_eq!(descriptor().to_bytes(), expected);
        assert_eq!(WindowDescriptor::parse(&expected), Ok(descriptor()));
        let told = format!("{:?}", descriptor());
        assert!(!told.contains("585756"), "the key is in {told}");
    }

    #[test]
    fn each_wrong_field_is_named() {
        let broken = |at: usize, value: u8| {
            let mut bytes = descriptor().to_bytes();
            bytes[at] = value;
            WindowDescriptor::parse(&bytes)
        };
        assert_eq!(broken(0, b'X'), Err(WireError::Magic(*b"XbWd")));
        assert_eq!(broken(4, 2), Err(field("version", 2_u8)));
        assert_eq!(broken(5, 0), Err(field("rights", 0_u8)));
        assert_eq!(broken(5, 4), Err(field("rights", 4_u8)));
        assert_eq!(broken(59, 1), Err(field("mark", 0x0162_6364_u32)));
        let long = broken(39, 0xff);
        assert_eq!(long, Err(field("length", descriptor().len)));
        let short = WindowDescriptor::parse(&descriptor().to_bytes()[..63]);
        assert_eq!(short, Err(WireError::Short { len: 63, need: 64 }));
        let empty = WindowDescriptor {
            len: 0,
            ..descriptor()
        };
        let empty = WindowDescriptor::parse(&empty.to_bytes());
        assert_eq!(empty, Err(field("length", 0_u8)));
    }

    proptest! {
        #[test]
        fn descriptor_round_trip(
            rights in 1_u32..4,
            numbers in any::<[u64; 4]>(),
            base in 0..u64::MAX / 2,
            len in 1..u64::MAX / 2,
            mark in 0..=INDEX_MASK,
            tail in prop::collection::vec(any::<u8>(), 0..8),
        ) {
            let [connection, incarnation, window, key] = numbers;
            let access = Access::from_bits_truncate(rights);
            let given = WindowDescriptor {
                access,
                connection,
                incarnation,
                window: WindowId(window),
                base,
                len,
                key,
                mark,
            };
            let mut bytes = given.to_bytes().to_vec();
            bytes.extend(tail);
            prop_assert_eq!(WindowDescriptor::parse(&bytes), Ok(given));
        }

        #[test]
        fn whatever_is_understood_is_in_range(
            bytes in prop::collection::vec(any::<u8>(), 0..80),
            mend in any::<bool>(),
        ) {
            let mut bytes = bytes;
            if mend && bytes.len() >= 6 {
                bytes[..6].copy_from_slice(&[b'F', b'b', b'W', b'd', 1, 3]);
            }
            if let Ok(window) = WindowDescriptor::parse(&bytes) {
                prop_assert!(window.base.checked_add(window.len).is_some() && window.len > 0);
                prop_assert!(window.mark <= INDEX_MASK && !window.access.is_empty());
            }
        }
    }
}
