//! The wire as a liar speaks it: written from docs/wire.md alone, so that it is a second opinion on
//! the library's own code.

use std::net::SocketAddrV4;

/// Feature bits of a hello.
pub(crate) const HEARTBEATS: u32 = 1;
pub(crate) const WINDOWS: u32 = 1 << 1;
pub(crate) const LONG: u32 = 1 << 3;

/// Kinds of control messages.
pub(crate) const CREDIT: u8 = 1;
pub(crate) const BYE: u8 = 2;
pub(crate) const HEARTBEAT: u8 = 3;
pub(crate) const REVOKE: u8 = 4;
pub(crate) const REVOKE_ACK: u8 = 5;
pub(crate) const LONG_OFFER: u8 = 9;
pub(crate) const LONG_GRANT: u8 = 10;
pub(crate) const LONG_DONE: u8 = 11;
pub(crate) const FENCE: u8 = 14;
pub(crate) const FENCED: u8 = 15;

/// The same for endpoints without connections.
pub(crate) const HELLO: u8 = 16;
pub(crate) const HELLO_ACK: u8 = 17;
pub(crate) const REFUSAL: u8 = 18;

/// The index by which a liar wants to be addressed, where endpoints have no connections: what its
/// hello says.
pub(crate) const INDEX: u32 = 77;

/// The kind of immediate data.
const WRITTEN: u64 = 33;

/// A hello of any wire version up to 2, which has fences, that takes `depth` messages of up to
/// 1,024 bytes.
pub(crate) fn hello(features: u32, depth: u32) -> [u8; 48] {
    let mut bytes = [0; 48];
    bytes[..4].copy_from_slice(b"FbCt");
    bytes[4] = 1;
    bytes[8] = 2;
    bytes[10] = 1;
    bytes[12..16].copy_from_slice(&features.to_le_bytes());
    if depth > 0 {
        bytes[16..24].copy_from_slice(&1024_u64.to_le_bytes());
    }
    bytes[24..28].copy_from_slice(&depth.to_le_bytes());
    bytes[28..32].copy_from_slice(&depth.to_le_bytes());
    bytes[32] = 9;
    bytes[40] = INDEX as u8;
    bytes
}

/// A control message, whatever its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) kind: u8,
    pub(crate) code: u16,
    pub(crate) number: u64,
    pub(crate) value: u64,
    pub(crate) value2: u64,
}

impl Control {
    /// One of this kind that says nothing.
    pub(crate) fn new(kind: u8) -> Self {
        Self {
            kind,
            code: 0,
            number: 0,
            value: 0,
            value2: 0,
        }
    }

    pub(crate) fn value(self, value: u64) -> Self {
        Self { value, ..self }
    }

    pub(crate) fn number(self, number: u64) -> Self {
        Self { number, ..self }
    }

    pub(crate) fn code(self, code: u16) -> Self {
        Self { code, ..self }
    }

    pub(crate) fn encode(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(b"fbct");
        bytes[4] = self.kind;
        bytes[6..8].copy_from_slice(&self.code.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.value.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.value2.to_le_bytes());
        bytes
    }

    /// What the library said; its own messages must be as the page says.
    pub(crate) fn parse(cq_data: u64, bytes: &[u8]) -> Self {
        assert!(bytes.len() >= 32, "{} bytes of control", bytes.len());
        assert_eq!(&bytes[..4], b"fbct");
        assert_eq!(
            cq_data,
            mark(bytes[4]),
            "kind in the CQ data and in the body"
        );
        Self {
            kind: bytes[4],
            code: u16::from_le_bytes([bytes[6], bytes[7]]),
            number: word(bytes, 8),
            value: word(bytes, 16),
            value2: word(bytes, 24),
        }
    }
}

/// The CQ data of a control message, over FI_EP_MSG.
pub(crate) fn mark(kind: u8) -> u64 {
    u64::from(kind) << 24
}

/// What the CQ data of a message say, where endpoints have no connections: its kind, and whom it is
/// for.
pub(crate) fn kind_of(cq_data: u64) -> u8 {
    (cq_data >> 24) as u8
}

pub(crate) fn index_of(cq_data: u64) -> u32 {
    cq_data as u32 & 0x00ff_ffff
}

/// The index by which the speaker of a hello-ack wants to be addressed.
pub(crate) fn connection_of(ack: &[u8]) -> u32 {
    word(ack, 40) as u32 & 0x00ff_ffff
}

/// What stands behind the hello of an endpoint without connections: where it is.
pub(crate) fn speaker(addr: SocketAddrV4) -> Vec<u8> {
    let mut bytes = vec![4, 6];
    bytes.extend(addr.ip().octets());
    bytes.extend(addr.port().to_be_bytes());
    bytes
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// Memory of the victim's, as whoever has its descriptor reaches it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) base: u64,
    pub(crate) len: usize,
    pub(crate) key: u64,
    pub(crate) mark: u32,
}

impl Target {
    pub(crate) fn of(descriptor: &[u8]) -> Self {
        assert_eq!(&descriptor[..4], b"FbWd");
        let mark = descriptor[56..60].try_into().expect("4 bytes");
        Self {
            base: word(descriptor, 32),
            len: word(descriptor, 40) as usize,
            key: word(descriptor, 48),
            mark: u32::from_le_bytes(mark),
        }
    }

    /// Its first bytes.
    pub(crate) fn first(self, len: usize) -> Self {
        Self { len, ..self }
    }
}

/// The immediate data of a write that names a window by its mark.
pub(crate) fn written(mark: u32, data: u32) -> u64 {
    (u64::from(data) << 32) | (WRITTEN << 24) | u64::from(mark & 0x00ff_ffff)
}

/// The honest answer to a fence: its nonce.
pub(crate) fn fenced(fence: Control) -> Control {
    assert_eq!(fence.kind, FENCE);
    Control {
        kind: FENCED,
        ..fence
    }
}
