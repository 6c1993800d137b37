//! The bytes of each header: 16 that all have in common, 48 by kind.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{HEADER_LEN, Kind, PORTS_MAX, WireError};

/// First bytes of each message of a stream.
pub(super) const MAGIC: [u8; 4] = *b"FCS2";
/// Bytes of a header that depend on the kind.
const BODY_LEN: usize = 48;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct HeaderWire {
    pub(super) magic: [u8; 4],
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) reserved: U16,
    pub(super) stream: U32,
    pub(super) payload_len: U32,
    pub(super) body: [u8; BODY_LEN],
}

const _: () = assert!(size_of::<HeaderWire>() == HEADER_LEN);

impl HeaderWire {
    /// Everything that must be true of any message.
    pub(super) fn parse(header: &[u8], payload_len: usize) -> Result<Self, WireError> {
        let wire = Self::read_from_bytes(header)
            .map_err(|_| WireError::HeaderLen { len: header.len() })?;
        if wire.magic != MAGIC {
            return Err(WireError::Magic(wire.magic));
        }
        if u64::from(wire.payload_len.get()) != payload_len as u64 {
            return Err(WireError::PayloadLen {
                kind: wire.kind,
                said: wire.payload_len.get().into(),
                len: payload_len,
            });
        }
        Ok(wire)
    }

    pub(super) fn new(kind: Kind, flags: u8, stream: u32, payload_len: usize) -> Self {
        Self {
            magic: MAGIC,
            kind: kind.0,
            flags,
            reserved: U16::ZERO,
            stream: stream.into(),
            payload_len: u32::try_from(payload_len)
                .expect("no payload has 4 GiB")
                .into(),
            body: [0; BODY_LEN],
        }
    }

    /// The part that depends on the kind.
    pub(super) fn body<T: Body>(&self) -> T {
        T::read_from_bytes(&self.body).expect("all bodies have 48 bytes")
    }

    pub(super) fn with<T: Body>(mut self, body: &T) -> Self {
        self.body.copy_from_slice(body.as_bytes());
        self
    }
}

/// What fills the 48 bytes.
pub(super) trait Body: FromBytes + IntoBytes + Immutable + FromZeros {}

macro_rules! bodies {
    ($($name:ident),* $(,)?) => {
        $(
            impl Body for $name {}
            const _: () = assert!(size_of::<$name>() == BODY_LEN);
        )*
    };
}

bodies!(
    HelloWire,
    HelloAckWire,
    OpenWire,
    ManifestWire,
    BlockWire,
    PackWire,
    FinishWire,
    RailLostWire,
    AcceptWire,
    RangesWire,
    ReasonWire,
    CountsWire,
    CompleteWire,
    WindowWire,
);

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct HelloWire {
    pub(super) version: U16,
    pub(super) oldest: U16,
    pub(super) rail: U16,
    pub(super) rails: U16,
    pub(super) features: U64,
    pub(super) session: [u8; 16],
    pub(super) reserved: [u8; 16],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct HelloAckWire {
    pub(super) version: U16,
    pub(super) reserved: U16,
    pub(super) streams: U32,
    pub(super) features: U64,
    pub(super) session: [u8; 16],
    pub(super) payload_max: U32,
    pub(super) ports: [U16; PORTS_MAX],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct OpenWire {
    pub(super) entries: U64,
    pub(super) manifest_bytes: U64,
    pub(super) bytes: U64,
    pub(super) blocks: U64,
    pub(super) block_bytes: U32,
    pub(super) more_flags: u8,
    pub(super) attribute_bytes: U32,
    pub(super) reserved: [u8; 7],
}

/// The layout of `Manifest`, `Owners`, `Attributes` and `Sums`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct ManifestWire {
    pub(super) first: U64,
    pub(super) reserved: [u8; 40],
}

/// The layout of `Block` and `Placed`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct BlockWire {
    pub(super) index: U64,
    pub(super) entry: U64,
    pub(super) offset: U64,
    pub(super) crc: U32,
    /// Placed only: its bytes, which are not the payload then.
    pub(super) len: U32,
    /// Placed only.
    pub(super) slot: U32,
    pub(super) reserved: [u8; 12],
}

impl BlockWire {
    /// Whether it has nothing that only one that was placed has.
    pub(super) fn is_plain(&self) -> bool {
        self.len.get() == 0 && self.slot.get() == 0 && self.reserved == [0; 12]
    }
}

/// The layout of `Pack`, `Zeros` and `Same`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct PackWire {
    pub(super) first: U64,
    pub(super) blocks: U32,
    pub(super) reserved: [u8; 36],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct FinishWire {
    pub(super) sent_here: U64,
    pub(super) sent: U64,
    pub(super) lap: U32,
    pub(super) digest: U32,
    pub(super) reserved: [u8; 24],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RailLostWire {
    pub(super) sent_there: U64,
    pub(super) rail: U16,
    pub(super) reserved: [u8; 38],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct AcceptWire {
    pub(super) granted: U64,
    pub(super) have_blocks: U64,
    pub(super) have_digest: U32,
    pub(super) slots: U32,
    pub(super) unchanged: U64,
    pub(super) compared: U64,
    pub(super) reserved: [u8; 8],
}

/// The layout of `Have` and `Missing`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RangesWire {
    pub(super) lap: U32,
    pub(super) reserved: [u8; 44],
}

/// The layout of `Refuse`, `Cancel` and `Failed`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct ReasonWire {
    /// `Refuse`: by code. `Failed`: the block.
    pub(super) details: [U64; 2],
    pub(super) code: U16,
    pub(super) reserved: [u8; 30],
}

/// The layout of `Credit`, `Written`, `Damaged` and `Freed`: two counts and a smaller number.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct CountsWire {
    pub(super) first: U64,
    pub(super) second: U64,
    pub(super) third: U32,
    pub(super) reserved: [u8; 28],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct CompleteWire {
    pub(super) blocks: U64,
    pub(super) bytes: U64,
    pub(super) digest: U32,
    pub(super) deleted: U64,
    pub(super) reserved: [u8; 20],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct WindowWire {
    pub(super) stride: U64,
    pub(super) first_slot: U32,
    pub(super) slots: U32,
    pub(super) reserved: [u8; 32],
}
