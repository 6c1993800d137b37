//! The journal of a sink: which blocks are written, with their checksums.

use super::StreamIdentity;
use super::digest::crc32c;

const HEADER_LEN: usize = 56;
const RECORD_LEN: usize = 16;
const MAGIC: [u8; 8] = *b"FCSJ\x01\0\0\0";

/// What the journal is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JournalHeader {
    pub(crate) identity: StreamIdentity,
    pub(crate) block_bytes: u32,
    pub(crate) blocks: u64,
}

/// A block that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JournalRecord {
    pub(crate) index: u64,
    pub(crate) crc: u32,
}

/// What a journal says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Journal {
    pub(crate) header: JournalHeader,
    pub(crate) records: Vec<JournalRecord>,
    /// Bytes up to the end of the last whole record.
    pub(crate) valid_len: u64,
}

impl JournalHeader {
    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.identity.key);
        bytes[24..40].copy_from_slice(&self.identity.stamp);
        bytes[40..44].copy_from_slice(&self.block_bytes.to_le_bytes());
        bytes[44..52].copy_from_slice(&self.blocks.to_le_bytes());
        let check = crc32c(&bytes[..52]);
        bytes[52..].copy_from_slice(&check.to_le_bytes());
        bytes
    }
}

impl JournalRecord {
    pub(crate) fn encode(&self) -> [u8; RECORD_LEN] {
        let mut bytes = [0; RECORD_LEN];
        bytes[..8].copy_from_slice(&self.index.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.crc.to_le_bytes());
        let check = crc32c(&bytes[..12]);
        bytes[12..].copy_from_slice(&check.to_le_bytes());
        bytes
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

impl Journal {
    /// None: it is no journal, or of another version, or damaged at its beginning.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let head = bytes.get(..HEADER_LEN)?;
        if head[..8] != MAGIC || crc32c(&head[..52]) != u32_at(head, 52) {
            return None;
        }
        let header = JournalHeader {
            identity: StreamIdentity {
                key: head[8..24].try_into().ok()?,
                stamp: head[24..40].try_into().ok()?,
            },
            block_bytes: u32_at(head, 40),
            blocks: u64_at(head, 44),
        };
        let mut records = Vec::new();
        for record in bytes[HEADER_LEN..].chunks_exact(RECORD_LEN) {
            if crc32c(&record[..12]) != u32_at(record, 12) {
                break;
            }
            let index = u64_at(record, 0);
            if index >= header.blocks {
                break;
            }
            let crc = u32_at(record, 8);
            records.push(JournalRecord { index, crc });
        }
        let valid_len = (HEADER_LEN + records.len() * RECORD_LEN) as u64;
        Some(Self {
            header,
            records,
            valid_len,
        })
    }
}
