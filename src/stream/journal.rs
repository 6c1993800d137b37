//! The journal of a sink: which blocks of a stream it has written, and what CRC32C each of them
//! has, so that another attempt can go on.
//!
//! A header, then records, each appended after its block was written. A record that says too much
//! is harmless, since the blocks are read back and checked before they are believed; one that is
//! torn ends the journal. Nothing in it is trusted: it may be another program's file, or a hostile
//! one.
//!
//! | header: bytes | field | |
//! |---|---|---|
//! | 0 | magic | `46 43 53 4a` ("FCSJ") |
//! | 4 | version | 2 bytes: 2. Version 1 was that of files that lay under numbers |
//! | 6 | reserved | 2 bytes: 0 |
//! | 8 | block_bytes | 4 bytes |
//! | 12 | reserved | 4 bytes: 0 |
//! | 16 | blocks | 8 bytes |
//! | 24 | bytes | 8 bytes: of the stream |
//! | 32 | key, stamp | 16 bytes each: the identity of the stream |
//! | 64 | fingerprint | 16 bytes: of the manifest |
//! | 80 | reserved | 12 bytes: 0 |
//! | 92 | crc | 4 bytes: CRC32C of the 92 in front |
//!
//! | record: bytes | field | |
//! |---|---|---|
//! | 0 | index | 8 bytes: the number of the block |
//! | 8 | crc | 4 bytes: CRC32C of the block |
//! | 12 | check | 4 bytes: CRC32C of the 12 in front, exclusive-or the crc of the header |

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block_set::BlockSet;
use super::blocks::BlockPlan;
use super::digest::crc32c;
use super::manifest::Manifest;
use super::wire::StreamIdentity;

/// Bytes of the header of a journal.
pub(crate) const JOURNAL_HEADER_LEN: usize = 96;
/// Bytes of each record.
pub(crate) const RECORD_LEN: usize = 16;

const MAGIC: [u8; 4] = *b"FCSJ";
const VERSION: u16 = 2;
/// Records beyond one for each block that a journal may have: blocks are written anew when what was
/// there turned out to be damaged.
const EXTRA_RECORDS: u64 = 65_536;

/// Why a journal is of no use for a stream.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The file has no whole header, or none of a journal's.
    #[error("it is no journal of a stream, or its header is damaged")]
    Header,
    /// The journal is of another version.
    #[error("it is a journal of version {0}")]
    Version(u16),
    /// The journal belongs to another stream: other names, or other blocks.
    #[error("it is the journal of another stream")]
    OtherStream,
    /// The journal belongs to the same stream, but the source was another then.
    #[error("the source has changed since a part of it was received")]
    SourceChanged,
    /// The journal has more records than a stream of this kind can have made.
    #[error("it has more records than the stream can have made")]
    TooLong,
}

fabricast_process::debug_as_words!(JournalError);

/// Which stream a journal is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JournalHeader {
    pub(crate) identity: StreamIdentity,
    /// See [`Manifest::fingerprint`].
    pub(crate) fingerprint: [u8; 16],
    pub(crate) block_bytes: u32,
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct JournalHeaderWire {
    magic: [u8; 4],
    version: U16,
    reserved: U16,
    block_bytes: U32,
    reserved2: U32,
    blocks: U64,
    bytes: U64,
    identity: StreamIdentity,
    fingerprint: [u8; 16],
    reserved3: [u8; 12],
    crc: U32,
}

const _: () = assert!(size_of::<JournalHeaderWire>() == JOURNAL_HEADER_LEN);

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RecordWire {
    index: U64,
    crc: U32,
    check: U32,
}

const _: () = assert!(size_of::<RecordWire>() == RECORD_LEN);

impl JournalHeader {
    /// The header of a stream's journal.
    pub(crate) fn new(identity: StreamIdentity, manifest: &Manifest, plan: &BlockPlan) -> Self {
        Self {
            identity,
            fingerprint: manifest.fingerprint(),
            block_bytes: plan.block_bytes(),
            blocks: plan.blocks(),
            bytes: plan.bytes(),
        }
    }

    /// The first bytes of the journal.
    pub(crate) fn encode(&self) -> [u8; JOURNAL_HEADER_LEN] {
        let mut wire = JournalHeaderWire {
            magic: MAGIC,
            version: VERSION.into(),
            reserved: U16::ZERO,
            block_bytes: self.block_bytes.into(),
            reserved2: U32::ZERO,
            blocks: self.blocks.into(),
            bytes: self.bytes.into(),
            identity: self.identity,
            fingerprint: self.fingerprint,
            reserved3: [0; 12],
            crc: U32::ZERO,
        };
        wire.crc = crc32c(&wire.as_bytes()[..JOURNAL_HEADER_LEN - 4]).into();
        zerocopy::transmute!(wire)
    }

    /// Reads the first bytes of a journal; the rest is ignored.
    ///
    /// # Errors
    ///
    /// [`JournalError::Header`] and [`JournalError::Version`].
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, JournalError> {
        let (wire, _) =
            JournalHeaderWire::read_from_prefix(bytes).map_err(|_| JournalError::Header)?;
        let crc = crc32c(&wire.as_bytes()[..JOURNAL_HEADER_LEN - 4]);
        if wire.magic != MAGIC || wire.crc.get() != crc {
            return Err(JournalError::Header);
        }
        if wire.version.get() != VERSION {
            return Err(JournalError::Version(wire.version.get()));
        }
        let header = Self {
            identity: wire.identity,
            fingerprint: wire.fingerprint,
            block_bytes: wire.block_bytes.get(),
            blocks: wire.blocks.get(),
            bytes: wire.bytes.get(),
        };
        match header.encode() == wire.as_bytes() {
            true => Ok(header),
            false => Err(JournalError::Header),
        }
    }

    /// Whether a journal with this header is of use for the stream that `wanted` describes.
    ///
    /// # Errors
    ///
    /// [`JournalError::OtherStream`] and [`JournalError::SourceChanged`].
    pub(crate) fn check(&self, wanted: &Self) -> Result<(), JournalError> {
        if self.identity.key != wanted.identity.key || self.block_bytes != wanted.block_bytes {
            return Err(JournalError::OtherStream);
        }
        // A file that has grown has another fingerprint, too: that is a change, not another stream.
        match self == wanted {
            true => Ok(()),
            false => Err(JournalError::SourceChanged),
        }
    }

    /// The record that is appended once a block is written.
    #[cfg(test)]
    fn record(&self, index: u64, crc: u32) -> [u8; RECORD_LEN] {
        record(self.seal(), index, crc)
    }

    /// Makes records of one journal useless in another.
    pub(crate) fn seal(&self) -> u32 {
        let encoded = self.encode();
        let (_, crc) = encoded.split_last_chunk().expect("a header has a crc");
        u32::from_le_bytes(*crc)
    }
}

/// A record of the journal with this seal.
pub(crate) fn record(seal: u32, index: u64, crc: u32) -> [u8; RECORD_LEN] {
    let mut wire = RecordWire {
        index: index.into(),
        crc: crc.into(),
        check: U32::ZERO,
    };
    wire.check = (crc32c(&wire.as_bytes()[..12]) ^ seal).into();
    zerocopy::transmute!(wire)
}

/// What a journal claims: blocks, and the CRC32C of each. To be proven by reading them.
#[derive(Debug, Clone)]
pub(crate) struct Claims {
    blocks: BlockSet,
    /// The CRC32C of the blocks in the set; 4 bytes for each block of the stream.
    crcs: Vec<u32>,
}

impl Claims {
    /// The blocks.
    pub(crate) fn blocks(&self) -> &BlockSet {
        &self.blocks
    }

    /// The CRC32C that a block is said to have.
    pub(crate) fn crc(&self, index: u64) -> Option<u32> {
        let is_claimed = self.blocks.contains(index);
        is_claimed.then(|| self.crcs[index as usize])
    }
}

/// Reads the records of a journal, piece by piece.
#[derive(Debug)]
pub(crate) struct JournalReader {
    seal: u32,
    claims: Claims,
    records: u64,
    records_max: u64,
    /// The bytes of a record that is not whole yet.
    rest: Vec<u8>,
    is_torn: bool,
    /// Where the whole records end, in bytes from the beginning of the journal.
    end: u64,
}

impl JournalReader {
    /// A reader of what follows the header of a journal that was found to be of use.
    pub(crate) fn new(header: &JournalHeader) -> Self {
        let blocks = BlockSet::new(header.blocks);
        Self {
            seal: header.seal(),
            claims: Claims {
                blocks,
                crcs: vec![0; usize::try_from(header.blocks).expect("the set has them all")],
            },
            records: 0,
            records_max: header.blocks.saturating_add(EXTRA_RECORDS),
            rest: Vec::new(),
            is_torn: false,
            end: JOURNAL_HEADER_LEN as u64,
        }
    }

    /// Reads the next bytes. What lies behind a torn record is ignored.
    ///
    /// # Errors
    ///
    /// [`JournalError::TooLong`]. The journal is of no use then.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Result<(), JournalError> {
        if !self.rest.is_empty() {
            let lacking = (RECORD_LEN - self.rest.len()).min(bytes.len());
            let (begin, behind) = bytes.split_at(lacking);
            self.rest.extend_from_slice(begin);
            bytes = behind;
            if self.rest.len() == RECORD_LEN {
                let whole = std::mem::take(&mut self.rest);
                self.read(&whole)?;
            }
        }
        let records = bytes.chunks_exact(RECORD_LEN);
        let rest = records.remainder();
        for record in records {
            self.read(record)?;
        }
        self.rest.extend_from_slice(rest);
        Ok(())
    }

    fn read(&mut self, bytes: &[u8]) -> Result<(), JournalError> {
        if self.is_torn {
            return Ok(());
        }
        let wire = RecordWire::read_from_bytes(bytes).expect("a record has its bytes");
        let (index, crc) = (wire.index.get(), wire.crc.get());
        let is_whole = bytes == record(self.seal, index, crc);
        if !is_whole || index >= self.claims.blocks.blocks() {
            self.is_torn = true;
            return Ok(());
        }
        self.records += 1;
        if self.records > self.records_max {
            return Err(JournalError::TooLong);
        }
        self.claims.blocks.insert(index);
        self.claims.crcs[index as usize] = crc;
        self.end += RECORD_LEN as u64;
        Ok(())
    }

    /// What the journal claims, and where its whole records end: what follows is to be cut off
    /// before more are appended.
    pub(crate) fn finish(self) -> (Claims, u64) {
        (self.claims, self.end)
    }
}

/// Reads any bytes as a journal. The fuzz target and the tests call it.
///
/// # Panics
///
/// When what is understood would not be written again as it was.
#[cfg(any(test, fuzzing))]
pub(crate) fn exercise(bytes: &[u8]) {
    let Ok(header) = JournalHeader::parse(bytes) else {
        return;
    };
    assert_eq!(header.encode(), bytes[..JOURNAL_HEADER_LEN]);
    assert_eq!(header.check(&header), Ok(()));
    if header.blocks > 1 << 16 {
        return;
    }
    let mut reader = JournalReader::new(&header);
    if reader.feed(&bytes[JOURNAL_HEADER_LEN..]).is_ok() {
        let (claims, end) = reader.finish();
        assert!(end <= bytes.len() as u64);
        assert!(claims.blocks.count() <= (end - JOURNAL_HEADER_LEN as u64) / RECORD_LEN as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn header(blocks: u64) -> JournalHeader {
        JournalHeader {
            identity: StreamIdentity {
                key: [1; 16],
                stamp: [2; 16],
            },
            fingerprint: [3; 16],
            block_bytes: 0x1000,
            blocks,
            bytes: blocks * 0x1000,
        }
    }

    #[test]
    fn a_journal_has_these_bytes() {
        let header = header(0x0102);
        let mut expected = [0; JOURNAL_HEADER_LEN];
        expected[..8].copy_from_slice(&[b'F', b'C', b'S', b'J', 2, 0, 0, 0]);
        expected[8..12].copy_from_slice(&[0, 0x10, 0, 0]);
        expected[16..18].copy_from_slice(&[2, 1]);
        expected[24..28].copy_from_slice(&[0, 0x20, 0x10, 0]);
        expected[32..48].fill(1);
        expected[48..64].fill(2);
        expected[64..80].fill(3);
        let crc = crc32c(&expected[..92]);
        expected[92..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(header.encode(), expected);
        assert_eq!(JournalHeader::parse(&expected), Ok(header));
        let mut record = [5, 0, 0, 0, 0, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0];
        let check = crc32c(&record[..12]) ^ crc;
        record[12..].copy_from_slice(&check.to_le_bytes());
        assert_eq!(header.record(5, 0x0102_0304), record);
    }

    #[test]
    fn another_stream_and_another_source_are_told_apart() {
        let wanted = header(7);
        assert_eq!(wanted.check(&wanted), Ok(()));
        let mut other = wanted;
        other.identity.key[0] ^= 1;
        assert_eq!(other.check(&wanted), Err(JournalError::OtherStream));
        let other = JournalHeader {
            block_bytes: 1,
            ..wanted
        };
        assert_eq!(other.check(&wanted), Err(JournalError::OtherStream));
        let mut changed = [wanted; 4];
        changed[0].identity.stamp[0] ^= 1;
        changed[1].fingerprint[0] ^= 1;
        changed[2].bytes += 1;
        changed[3].blocks += 1;
        for other in changed {
            assert_eq!(other.check(&wanted), Err(JournalError::SourceChanged));
        }
    }

    #[test]
    fn each_bit_of_the_header_counts() {
        let encoded = header(7).encode();
        for bit in 0..JOURNAL_HEADER_LEN * 8 {
            let mut other = encoded;
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(JournalHeader::parse(&other), Err(JournalError::Header));
        }
        let mut later = encoded;
        later[4] = 3;
        let crc = crc32c(&later[..92]);
        later[92..].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(JournalHeader::parse(&later), Err(JournalError::Version(3)));
        assert_eq!(
            JournalHeader::parse(&encoded[..95]),
            Err(JournalError::Header)
        );
    }

    #[test]
    fn a_journal_without_end_is_given_up() {
        let header = header(1);
        let record = header.record(0, 1);
        let mut reader = JournalReader::new(&header);
        for _ in 0..EXTRA_RECORDS + 1 {
            reader.feed(&record).unwrap();
        }
        assert_eq!(reader.feed(&record), Err(JournalError::TooLong));
    }

    proptest! {
        /// Whatever was appended before the end was torn is claimed, the last word on each block;
        /// nothing behind it is; in pieces of any size.
        #[test]
        fn whole_records_count_up_to_the_first_that_is_not(
            records in proptest::collection::vec((0..20_u64, any::<u32>()), 0..40),
            cut in any::<prop::sample::Index>(),
            flip in proptest::option::of((any::<prop::sample::Index>(), 0..8_u32)),
            piece in 1..50_usize,
        ) {
            let header = header(20);
            let mut bytes: Vec<u8> = records
                .iter()
                .flat_map(|(index, crc)| header.record(*index, *crc))
                .collect();
            bytes.truncate(cut.index(bytes.len() + 1));
            let mut whole = bytes.len() / RECORD_LEN;
            if let Some((at, bit)) = flip
                && !bytes.is_empty()
            {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
                whole = whole.min(at / RECORD_LEN);
            }
            let mut reader = JournalReader::new(&header);
            for piece in bytes.chunks(piece) {
                reader.feed(piece).unwrap();
            }
            let (claims, end) = reader.finish();
            prop_assert_eq!(end, (JOURNAL_HEADER_LEN + whole * RECORD_LEN) as u64);
            let oracle: BTreeMap<u64, u32> = records[..whole].iter().copied().collect();
            for index in 0..25 {
                prop_assert_eq!(claims.crc(index), oracle.get(&index).copied());
            }
            let whole = [&header.encode()[..], &bytes].concat();
            exercise(&whole);
        }

        #[test]
        fn records_of_another_journal_are_none(index in 0..20_u64, crc in any::<u32>()) {
            let (ours, theirs) = (header(20), header(21));
            let mut reader = JournalReader::new(&ours);
            reader.feed(&theirs.record(index, crc)).unwrap();
            prop_assert!(reader.finish().0.blocks().is_empty());
        }
    }
}
