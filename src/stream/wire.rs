//! What the two sides of a stream say to each other: one header of 64 bytes a message, and a
//! payload behind it.
//!
//! Everything is little-endian and written down byte by byte in `docs/wire.md`, "Streams". A parser
//! trusts nothing: it never panics, never allocates, and says with a [`WireError`] what it did not
//! like. A message has one encoding: what is understood would be written again as it was, so that
//! reserved bytes, unused fields and unknown flags are all errors.
//!
//! ```text
//!  sender                                                 receiver
//!    │ Hello ────────────────────────────────────────────────►│   on each connection (rail)
//!    │◄────────────────────────────────────────────── HelloAck│
//!    │ Proof ────────────────────────────────────────────────►│   where there is a pre-shared key
//!    │◄───────────────────────────────────────────────── Proof│
//!    │ Open, Manifest ×n, Owners ×n, Attributes ×n ──────────►│   on one of them
//!    │◄──────────────── Accept, Have ×n, Sums ×n  (or Refuse) │
//!    │ Block ×n, Pack ×n, Zeros ×n, Same ×n ─────────────────►│   on any
//!    │◄───────────────────────────── Credit, Written, Damaged │
//!    │ Finish ───────────────────────────────────────────────►│   on each that carried blocks
//!    │◄──────────────────────────── Missing ×n, and once more │
//!    │◄────────────────────────────────── Complete, or Failed │
//! ```

use super::blocks::Block;
use super::error::RefusalCode;
use super::sums::ContentSum;
use layout::{BlockWire, HeaderWire};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

/// Bytes of every header.
pub(crate) const HEADER_LEN: usize = 64;
/// The newest version of the stream protocol that is spoken here.
pub(crate) const VERSION: u16 = 1;
/// The oldest version that is spoken here.
pub(crate) const OLDEST: u16 = 1;
/// The longest payload of what a receiver says, in bytes, and of a sender's `Cancel`.
pub(crate) const CONTROL_PAYLOAD_MAX: usize = 4096;
/// The longest text of a reason, in bytes.
pub(crate) const REASON_LEN_MAX: usize = 512;
/// The shortest payload that each receiver must have room for: the longest entry of a manifest
/// fits.
pub(crate) const PAYLOAD_ROOM_MIN: u32 = 8192;
/// The highest number of connections that a session has in its life: rails are numbered 0 to this,
/// less one.
pub(crate) const RAILS_MAX: u16 = 64;
/// The most slots that a connection has: they are numbered 0 to this, less one.
pub(crate) const SLOTS_MAX: u32 = 65_536;
/// The most blocks that a pack has.
pub(crate) const PACK_BLOCKS_MAX: usize = 256;
/// The most blocks that are said to be zeros in one message.
pub(crate) const ZEROS_BLOCKS_MAX: u32 = 256;
/// Bytes of a nonce, a proof, and a BLAKE3 hash.
pub(crate) const HASH_LEN: usize = 32;

bitflags::bitflags! {
    /// What a side can do (`Hello`), and what both do (`HelloAck`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub(crate) struct Features: u64 {
        /// Blocks by RMA write into windows of the receiver.
        const BY_WRITE = 1;
        /// BLAKE3 of the content.
        const BLAKE3 = 1 << 1;
        /// The receiver reads back what it wrote, and checks it.
        const READ_BACK = 1 << 2;
        /// Several connections for one session.
        const RAILS = 1 << 3;
        /// The receiver keeps what it has of a stream that was cut.
        const RESUME = 1 << 4;
        /// The receiver says so while its sink works.
        const WORKING = 1 << 5;
        /// The receiver says when a connection of several is gone.
        const RAIL_GONE = 1 << 6;
        /// Several small blocks in one message.
        const PACKS = 1 << 7;
        /// The receiver says at which ports it listens besides.
        const PORTS = 1 << 8;
        /// The receiver keeps what is there already, and unchanged as far as sizes and times tell.
        const SKIP_UNCHANGED = 1 << 9;
        /// Symbolic links.
        const LINKS = 1 << 10;
        /// Files are said to have holes.
        const SPARSE = 1 << 11;
        /// The receiver removes what is there besides, for who asks for it.
        const DELETE = 1 << 12;
        /// The receiver says what the content is of files that are there with another time.
        const COMPARE = 1 << 13;
        /// The receiver takes owners.
        const OWNERS = 1 << 14;
        /// Blocks of files with holes are said to be zeros, and are not sent.
        const ZEROS = 1 << 15;
        /// The receiver takes extended attributes.
        const ATTRIBUTES = 1 << 16;
    }
}

bitflags::bitflags! {
    /// How a stream is sent and checked (`Open`).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub(crate) struct OpenFlags: u16 {
        /// Each block carries its CRC32C, and the receiver checks it.
        const CRC32C = 1;
        /// Both sides compute the BLAKE3 of the content.
        const BLAKE3 = 1 << 1;
        /// The receiver has the content on its device before it says `Complete`.
        const SYNC = 1 << 2;
        /// The receiver reads back what it wrote, and checks it.
        const READ_BACK = 1 << 3;
        /// What the receiver has of this stream is of no use: it begins anew.
        const RESTART = 1 << 4;
        /// Blocks come by RMA write: `Placed`, not `Block`.
        const BY_WRITE = 1 << 5;
        /// What is there already with the same size and time is kept.
        const SKIP_UNCHANGED = 1 << 6;
        /// Files of the manifest are said to have holes.
        const SPARSE = 1 << 7;
        /// What lies in directories of the stream and is not of it is removed.
        const DELETE = 1 << 8;
        /// Of files that are there with another time the content is compared.
        const COMPARE = 1 << 9;
        /// Owners follow the manifest.
        const OWNERS = 1 << 10;
        /// It is said which extended attributes entries have, behind the manifest and owners.
        const ATTRIBUTES = 1 << 11;
    }
}

bitflags::bitflags! {
    /// What a receiver has done before it said `Complete`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub(crate) struct Checks: u8 {
        /// Each block had the CRC32C that came with it.
        const CRC32C = 1;
        /// The BLAKE3 of the content is the payload.
        const BLAKE3 = 1 << 1;
        /// The content is on the device.
        const SYNC = 1 << 2;
        /// What was written was read back, and was right.
        const READ_BACK = 1 << 3;
    }
}

/// Entries whose owners a message has room for.
pub(crate) const OWNERS_MAX: usize = CONTROL_PAYLOAD_MAX / size_of::<OwnerWire>();

/// Blocks whose sums a message has room for.
pub(crate) const SUMS_MAX: usize = CONTROL_PAYLOAD_MAX / size_of::<ContentSum>();

/// Where the rest of a sender's first message is kept: its payload.
pub(crate) type Nonce = [u8; HASH_LEN];

/// The first message on each connection; the sender dials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Newest version of the sender, at least 1.
    pub(crate) version: u16,
    /// Oldest version of the sender, from 1 to `version`.
    pub(crate) oldest: u16,
    /// The number of this connection in the session; no two in the life of a session have the same.
    pub(crate) rail: u16,
    /// How many connections the sender wants at a time.
    pub(crate) rails: u16,
    pub(crate) features: Features,
    /// A random number that all connections of a session have in common.
    pub(crate) session: [u8; 16],
    pub(crate) nonce: Nonce,
}

/// Further ports that a receiver listens at, at most.
pub(crate) const PORTS_MAX: usize = 6;

/// Ports at the address that a connection was made to, which lead to the same receiver; 0: none.
pub(crate) type Ports = [u16; PORTS_MAX];

/// The answer to a [`Hello`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HelloAck {
    /// The version that both speak.
    pub(crate) version: u16,
    /// The sender must prove that it has the key, and gets a proof.
    pub(crate) needs_proof: bool,
    /// How many streams at a time a session may have.
    pub(crate) streams: u32,
    /// The longest payload that is taken: a block, or a part of a manifest. At least
    /// [`PAYLOAD_ROOM_MIN`].
    pub(crate) payload_max: u32,
    /// What both can do.
    pub(crate) features: Features,
    /// The session that is answered.
    pub(crate) session: [u8; 16],
    /// None but with [`Features::PORTS`].
    pub(crate) ports: Ports,
    pub(crate) nonce: Nonce,
}

/// That the speaker has the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Proof {
    pub(crate) mac: [u8; HASH_LEN],
}

/// Which stream it is, for a receiver that has a part of it already.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Default,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::KnownLayout,
    zerocopy::Immutable,
    zerocopy::Unaligned,
)]
#[repr(C)]
pub struct StreamIdentity {
    /// Where the content goes: the same for each attempt to send it.
    pub key: [u8; 16],
    /// What the content is: another when the source has changed.
    pub stamp: [u8; 16],
}

/// A stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Open {
    /// The sender's number for the stream: from 1, never twice in a session.
    pub(crate) stream: u32,
    pub(crate) flags: OpenFlags,
    /// Bytes of a block, but for the last one of a file; at least 1.
    pub(crate) block_bytes: u32,
    /// Entries of the manifest.
    pub(crate) entries: u64,
    /// Bytes of the encoded manifest.
    pub(crate) manifest_bytes: u64,
    /// Bytes of the content.
    pub(crate) bytes: u64,
    /// Blocks of the content.
    pub(crate) blocks: u64,
    /// Bytes of all extended attributes, as they are encoded; 0 without [`OpenFlags::ATTRIBUTES`].
    pub(crate) attribute_bytes: u32,
    pub(crate) identity: StreamIdentity,
}

/// Entries of a manifest, one behind the other; see [`Manifest`](super::Manifest).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ManifestPart<'a> {
    pub(crate) stream: u32,
    /// The number of the first of them.
    pub(crate) first: u64,
    pub(crate) entries: &'a [u8],
}

/// What stands in front of the bytes of a block. The bytes are the payload, and no business of this
/// module's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockHeader {
    pub(crate) stream: u32,
    /// The number of the block in the stream.
    pub(crate) index: u64,
    /// The entry of the manifest that it is of.
    pub(crate) entry: u64,
    /// Where in the entry it begins, in bytes.
    pub(crate) offset: u64,
    /// Its bytes, at least 1.
    pub(crate) len: u32,
    /// The CRC32C of the bytes; 0 in a stream without [`OpenFlags::CRC32C`].
    pub(crate) crc: u32,
}

/// What stands in front of several blocks, which follow each other in the stream. The payload is a
/// CRC32C for each of them, then their bytes, one block behind the other; the bytes are no business
/// of this module's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pack<'a> {
    pub(crate) stream: u32,
    /// The number of the first block.
    pub(crate) first: u64,
    /// The CRC32C of each block: 2 to [`PACK_BLOCKS_MAX`]; 0 in a stream without
    /// [`OpenFlags::CRC32C`].
    pub(crate) crcs: &'a [U32],
    /// Bytes of all blocks: each has at least 1.
    pub(crate) len: u32,
}

/// Blocks that follow each other in the stream, lie in holes of their files, and so have no bytes
/// but zeros, which are not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Zeros {
    pub(crate) stream: u32,
    /// The number of the first block.
    pub(crate) first: u64,
    /// How many there are: 1 to [`ZEROS_BLOCKS_MAX`].
    pub(crate) blocks: u32,
}

/// A block has been written into a slot of the receiver's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) block: BlockHeader,
    pub(crate) slot: u32,
}

/// All blocks of a lap were sent. The last message of the lap on each connection that ever carried
/// blocks of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Finish {
    pub(crate) stream: u32,
    /// How often the sender was told what is missing.
    pub(crate) lap: u32,
    /// Messages with blocks that were sent on this connection, since it began.
    pub(crate) sent_here: u64,
    /// Messages with blocks that were sent on all connections, those that are lost included.
    pub(crate) sent: u64,
    /// The digest of the stream.
    pub(crate) digest: u32,
    /// The BLAKE3 of the content, where the sender has read all of it and was asked for it.
    pub(crate) blake3: Option<[u8; HASH_LEN]>,
}

/// A connection was lost, and with it blocks, maybe. From either side: the other may not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RailLost {
    pub(crate) stream: u32,
    pub(crate) rail: u16,
    /// Messages with blocks that were sent on it; as a receiver says it, those that came.
    pub(crate) sent_there: u64,
}

/// The speaker gives the stream up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cancel<'a> {
    pub(crate) stream: u32,
    pub(crate) code: RefusalCode,
    pub(crate) reason: Reason<'a>,
}

/// The sender sends nothing for a while, or goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) stream: u32,
    pub(crate) on: bool,
}

/// The receiver takes the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Accept {
    pub(crate) stream: u32,
    /// Messages with blocks that may be sent, since the stream began.
    pub(crate) granted: u64,
    /// Blocks that it has. If it has any, [`Message::Have`] follows and says which.
    pub(crate) have_blocks: u64,
    /// The part that those blocks have in the digest of the stream.
    pub(crate) have_digest: u32,
    /// RMA: slots of the window.
    pub(crate) slots: u32,
    /// Files that are kept as they are, whose blocks it has not read.
    pub(crate) unchanged: u64,
    /// Blocks whose sums it says next, in [`Message::Sums`].
    pub(crate) compared: u64,
}

/// Whose entries of the manifest are, one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owners<'a> {
    pub(crate) stream: u32,
    /// The number of the first entry.
    pub(crate) first: u64,
    /// One for each entry: 1 to [`OWNERS_MAX`].
    pub(crate) owners: &'a [OwnerWire],
}

/// The owner of an entry, as it lies in a payload.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::KnownLayout,
    zerocopy::Immutable,
    zerocopy::Unaligned,
)]
#[repr(C)]
pub(crate) struct OwnerWire {
    pub(crate) user: U32,
    pub(crate) group: U32,
}

/// A part of the extended attributes of the entries of the manifest, as they are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttributePart<'a> {
    pub(crate) stream: u32,
    /// Bytes that came before it.
    pub(crate) first: u64,
    /// At least one byte; it may begin and end within an attribute.
    pub(crate) bytes: &'a [u8],
}

/// What the receiver has in place of blocks that follow each other, in files of the same names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sums<'a> {
    pub(crate) stream: u32,
    /// The number of the first block.
    pub(crate) first: u64,
    /// One for each block: 1 to [`SUMS_MAX`].
    pub(crate) sums: &'a [ContentSum],
}

/// Blocks that follow each other, of which the receiver has said the sums, are what it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Same<'a> {
    pub(crate) stream: u32,
    /// The number of the first block.
    pub(crate) first: u64,
    /// The CRC32C of each block: 1 to [`PACK_BLOCKS_MAX`].
    pub(crate) crcs: &'a [U32],
}

/// Blocks that the receiver has, or lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RangeList<'a> {
    pub(crate) stream: u32,
    /// `Missing`: the lap whose `Finish` is answered. `Have`: 0.
    pub(crate) lap: u32,
    /// There are further ranges, in another message.
    pub(crate) more: bool,
    pub(crate) ranges: Ranges<'a>,
}

/// The receiver does not take the connection or the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refuse<'a> {
    /// 0: the connection.
    pub(crate) stream: u32,
    pub(crate) code: RefusalCode,
    /// By code.
    pub(crate) details: [u64; 2],
    pub(crate) reason: Reason<'a>,
}

/// More blocks may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Credit {
    pub(crate) stream: u32,
    /// Messages with blocks that may be sent, since the stream began.
    pub(crate) granted: u64,
}

/// How far the receiver's sink is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) stream: u32,
    /// Blocks that it has, those from before included.
    pub(crate) blocks: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
}

/// A block came with bytes that are not those of its CRC32C: it is to be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Damaged {
    pub(crate) stream: u32,
    pub(crate) index: u64,
    /// The CRC32C of the bytes.
    pub(crate) crc: u32,
}

/// The sink has the content, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Complete {
    pub(crate) stream: u32,
    pub(crate) checks: Checks,
    /// The digest of the stream.
    pub(crate) digest: u32,
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    /// What was removed; 0 without [`OpenFlags::DELETE`].
    pub(crate) deleted: u64,
    /// The BLAKE3 of the content; there exactly with [`Checks::BLAKE3`].
    pub(crate) blake3: Option<[u8; HASH_LEN]>,
}

/// The receiver gives the stream up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failed<'a> {
    pub(crate) stream: u32,
    pub(crate) code: RefusalCode,
    /// The block that it is about, if it is about one.
    pub(crate) block: Option<u64>,
    pub(crate) reason: Reason<'a>,
}

/// RMA: where blocks may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window<'a> {
    pub(crate) stream: u32,
    /// Which of the slots this begins with.
    pub(crate) first_slot: u32,
    /// How many lie behind each other.
    pub(crate) slots: u32,
    /// Bytes from one to the next.
    pub(crate) stride: u64,
    /// The descriptor of the window, as the endpoints know it.
    pub(crate) descriptor: &'a [u8; WINDOW_DESCRIPTOR_LEN],
}

/// Bytes of the descriptor of a window.
pub(crate) const WINDOW_DESCRIPTOR_LEN: usize = crate::endpoint::WINDOW_DESCRIPTOR_LEN;

/// RMA: a slot may be written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Freed {
    pub(crate) stream: u32,
    pub(crate) slot: u32,
}

/// One message of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    Hello(Hello),
    Proof(Proof),
    Open(Open),
    Manifest(ManifestPart<'a>),
    Block(BlockHeader),
    Pack(Pack<'a>),
    Zeros(Zeros),
    Finish(Finish),
    RailLost(RailLost),
    Placed(Placed),
    Cancel(Cancel<'a>),
    Pause(Pause),
    HelloAck(HelloAck),
    Accept(Accept),
    Have(RangeList<'a>),
    Refuse(Refuse<'a>),
    Credit(Credit),
    Written(Written),
    Damaged(Damaged),
    Missing(RangeList<'a>),
    Complete(Complete),
    Failed(Failed<'a>),
    Window(Window<'a>),
    Freed(Freed),
    Sums(Sums<'a>),
    Same(Same<'a>),
    Owners(Owners<'a>),
    Attributes(AttributePart<'a>),
}

impl<'a> Message<'a> {
    /// Reads a message. Of the bytes of blocks only the length is looked at.
    ///
    /// # Errors
    ///
    /// Any [`WireError`].
    pub(crate) fn parse(header: &[u8], payload: &'a [u8]) -> Result<Self, WireError> {
        let wire = HeaderWire::parse(header, payload.len())?;
        let message = read::message(&wire, payload)?;
        if let Self::Hello(hello) = &message
            && hello.version > VERSION
        {
            // What is reserved here may have a meaning there.
            return Ok(message);
        }
        let mut again = [0; HEADER_LEN];
        message.encode(&mut again);
        if again != header {
            return Err(WireError::Reserved { kind: wire.kind });
        }
        Ok(message)
    }

    /// Writes the header, and gives the payload that is to follow. The payload of a block or a pack
    /// is the caller's: what is given is empty.
    ///
    /// # Panics
    ///
    /// When a field is longer than it may be: a list of ranges, a part of a manifest.
    pub(crate) fn encode<'s>(&'s self, header: &mut [u8; HEADER_LEN]) -> &'s [u8]
    where
        'a: 's,
    {
        write::message(self, header)
    }

    /// The kind byte.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Hello(_) => Kind::HELLO,
            Self::Proof(_) => Kind::PROOF,
            Self::Open(_) => Kind::OPEN,
            Self::Manifest(_) => Kind::MANIFEST,
            Self::Block(_) => Kind::BLOCK,
            Self::Pack(_) => Kind::PACK,
            Self::Zeros(_) => Kind::ZEROS,
            Self::Finish(_) => Kind::FINISH,
            Self::RailLost(_) => Kind::RAIL_LOST,
            Self::Placed(_) => Kind::PLACED,
            Self::Cancel(_) => Kind::CANCEL,
            Self::Pause(_) => Kind::PAUSE,
            Self::HelloAck(_) => Kind::HELLO_ACK,
            Self::Accept(_) => Kind::ACCEPT,
            Self::Have(_) => Kind::HAVE,
            Self::Refuse(_) => Kind::REFUSE,
            Self::Credit(_) => Kind::CREDIT,
            Self::Written(_) => Kind::WRITTEN,
            Self::Damaged(_) => Kind::DAMAGED,
            Self::Missing(_) => Kind::MISSING,
            Self::Complete(_) => Kind::COMPLETE,
            Self::Failed(_) => Kind::FAILED,
            Self::Window(_) => Kind::WINDOW,
            Self::Freed(_) => Kind::FREED,
            Self::Sums(_) => Kind::SUMS,
            Self::Same(_) => Kind::SAME,
            Self::Owners(_) => Kind::OWNERS,
            Self::Attributes(_) => Kind::ATTRIBUTES,
        }
    }

    /// The stream that it is about; 0 for what is about the connection.
    pub(crate) fn stream(&self) -> u32 {
        match self {
            Self::Hello(_) | Self::HelloAck(_) | Self::Proof(_) => 0,
            Self::Open(it) => it.stream,
            Self::Manifest(it) => it.stream,
            Self::Block(it) => it.stream,
            Self::Pack(it) => it.stream,
            Self::Zeros(it) => it.stream,
            Self::Finish(it) => it.stream,
            Self::RailLost(it) => it.stream,
            Self::Placed(it) => it.block.stream,
            Self::Cancel(it) => it.stream,
            Self::Pause(it) => it.stream,
            Self::Accept(it) => it.stream,
            Self::Have(it) | Self::Missing(it) => it.stream,
            Self::Refuse(it) => it.stream,
            Self::Credit(it) => it.stream,
            Self::Written(it) => it.stream,
            Self::Damaged(it) => it.stream,
            Self::Complete(it) => it.stream,
            Self::Failed(it) => it.stream,
            Self::Window(it) => it.stream,
            Self::Freed(it) => it.stream,
            Self::Sums(it) => it.stream,
            Self::Same(it) => it.stream,
            Self::Owners(it) => it.stream,
            Self::Attributes(it) => it.stream,
        }
    }
}

impl BlockHeader {
    /// The header of a block of a stream.
    pub(crate) fn new(stream: u32, block: &Block, crc: u32) -> Self {
        Self {
            stream,
            index: block.index,
            entry: block.entry as u64,
            offset: block.offset,
            len: block.len,
            crc,
        }
    }

    /// The header of a block whose payload has `len` bytes, wherever they are. What
    /// [`Message::parse`] does for a `Block`, and faster.
    ///
    /// # Errors
    ///
    /// Any [`WireError`]; [`WireError::Kind`] when it is no block's.
    pub(crate) fn parse(header: &[u8], len: usize) -> Result<Self, WireError> {
        let wire = HeaderWire::parse(header, len)?;
        if wire.kind != Kind::BLOCK.0 {
            return Err(WireError::Kind(wire.kind));
        }
        let body = wire.body::<BlockWire>();
        if wire.flags != 0 || wire.reserved.get() != 0 || !body.is_plain() {
            return Err(WireError::Reserved { kind: wire.kind });
        }
        read::block(&wire, &body, len)
    }

    /// The header.
    pub(crate) fn encode(&self, header: &mut [u8; HEADER_LEN]) {
        write::block(self, header);
    }
}

/// Bytes of a checksum in front of the blocks of a pack.
const CRC_LEN: usize = size_of::<U32>();

impl<'a> Pack<'a> {
    /// Bytes of the payload of so many blocks, which have so many bytes.
    pub(crate) fn payload_len(blocks: usize, bytes: usize) -> usize {
        blocks * CRC_LEN + bytes
    }

    /// Puts checksums where a payload begins.
    pub(crate) fn put_crcs(payload: &mut [u8], crcs: impl Iterator<Item = u32>) {
        for (place, crc) in payload.chunks_exact_mut(CRC_LEN).zip(crcs) {
            place.copy_from_slice(&crc.to_le_bytes());
        }
    }

    /// The checksums at the beginning of a payload, and the bytes behind them; `None`: it is
    /// shorter.
    pub(crate) fn split(payload: &'a [u8], blocks: usize) -> Option<(&'a [U32], &'a [u8])> {
        <[U32]>::ref_from_prefix_with_elems(payload, blocks).ok()
    }
}

/// Runs the parsers over a message and checks that what is understood is written again as it was.
/// The fuzz target and the tests call it.
///
/// # Panics
///
/// When a parser and its writer disagree.
#[cfg(any(test, fuzzing))]
pub(crate) fn exercise(header: &[u8], payload: &[u8]) {
    let block = BlockHeader::parse(header, payload.len());
    let message = match Message::parse(header, payload) {
        Ok(message) => message,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(block.is_err(), "one parser takes what the other refuses");
            return;
        }
    };
    assert_eq!(Kind::peek(header), Some(message.kind()));
    let mut again = [0; HEADER_LEN];
    let said = message.encode(&mut again);
    match message {
        Message::Hello(hello) if hello.version > VERSION => return,
        Message::Block(it) => assert_eq!(block, Ok(it)),
        Message::Pack(_) => assert!(block.is_err() && said.is_empty()),
        _ => assert_eq!((said, block.is_ok()), (payload, false)),
    }
    assert_eq!(again, header, "a header has one meaning");
    match message {
        Message::Have(list) | Message::Missing(list) => {
            assert_eq!(list.ranges.iter().count(), list.ranges.len());
            assert!(list.ranges.iter().all(|range| range.start < range.end));
        }
        Message::Refuse(it) => assert!(!it.reason.to_string().contains(char::is_control)),
        _ => {}
    }
}

mod error;
mod kind;
mod layout;
mod ranges;
mod read;
mod reason;
mod write;

use error::field;

pub use error::WireError;
pub(crate) use kind::Kind;
pub(crate) use ranges::{Ranges, RangesBuilder};
pub(crate) use reason::Reason;

#[cfg(test)]
mod tests;
