//! `IncomingSettings`: what a receiver is ready to do for a stream, and what it refuses before the
//! manifest comes.

use super::refusal::Refusal;
use crate::stream::attributes::{ATTRIBUTE_BYTES_MAX, ATTRIBUTE_MEMORY};
use crate::stream::content_hash::ContentHash;
use crate::stream::manifest::ENTRY_LEN;
use crate::stream::wire::{Features, Open, OpenFlags};
use crate::stream::{Limits, Owner, RefusalCode};

/// Bytes that a block takes whose content is compared with a file's: its sums, in two maps.
const COMPARED_BLOCK_MEMORY: u64 = 64;

/// What a receiver is ready to do for a stream.
#[derive(Debug, Clone)]
pub(crate) struct IncomingSettings {
    pub(crate) limits: Limits,
    /// Bytes of memory that streams may still take for their state.
    pub(crate) memory_left: u64,
    /// What was agreed on in the handshake.
    pub(crate) features: Features,
    /// The longest payload that was agreed on.
    pub(crate) payload_max: u32,
    /// Blocks that may be under way at a time; at least 1.
    pub(crate) window: u64,
    /// RMA: slots of the window that blocks are written into.
    pub(crate) slots: u32,
}

/// Judges what can be judged before the manifest comes.
///
/// # Errors
/// Why the stream is not taken.
pub(super) fn admit(open: &Open, settings: &IncomingSettings) -> Result<(), Refusal> {
    let limits = &settings.limits;
    let needed = [
        (OpenFlags::BLAKE3, Features::BLAKE3),
        (OpenFlags::READ_BACK, Features::READ_BACK),
        (OpenFlags::BY_WRITE, Features::BY_WRITE),
        (OpenFlags::SPARSE, Features::SPARSE),
        (OpenFlags::DELETE, Features::DELETE),
        (OpenFlags::COMPARE, Features::COMPARE),
        (OpenFlags::OWNERS, Features::OWNERS),
        (OpenFlags::ATTRIBUTES, Features::ATTRIBUTES),
    ];
    for (flag, feature) in needed {
        if open.flags.contains(flag) && !settings.features.contains(feature) {
            let reason = format!("{flag:?} was not agreed on");
            return Err(Refusal::new(RefusalCode::FEATURE, reason));
        }
    }
    if open.flags.contains(OpenFlags::READ_BACK) && !open.flags.contains(OpenFlags::CRC32C) {
        let reason = "READ_BACK compares with the sums of CRC32C, which was not asked for";
        return Err(Refusal::new(RefusalCode::FEATURE, reason));
    }
    if open.flags.contains(OpenFlags::BLAKE3) && !ContentHash::can_hash(open.block_bytes) {
        let reason = "with BLAKE3, block_bytes is a power of two and at least 1024";
        return Err(Refusal::new(RefusalCode::BLOCKS, reason));
    }
    if open.flags.contains(OpenFlags::BY_WRITE) && settings.slots == 0 {
        let reason = "no window is left to write into";
        return Err(Refusal::new(RefusalCode::BUSY, reason));
    }
    let block_bytes = limits.block_bytes.min(settings.payload_max);
    Refusal::limit(
        RefusalCode::BLOCKS,
        open.block_bytes.into(),
        block_bytes.into(),
    )?;
    Refusal::limit(RefusalCode::BYTES, open.bytes, limits.bytes)?;
    Refusal::limit(RefusalCode::ENTRIES, open.entries, limits.entries)?;
    Refusal::limit(RefusalCode::BLOCKS, open.blocks, limits.blocks)?;
    let least = open.entries.saturating_mul(ENTRY_LEN as u64);
    let names = open.manifest_bytes.saturating_sub(least);
    Refusal::limit(RefusalCode::NAMES, names, limits.name_bytes)?;
    let attributes = u64::from(open.attribute_bytes);
    if attributes > ATTRIBUTE_BYTES_MAX {
        let limit = ATTRIBUTE_BYTES_MAX;
        return Err(Refusal {
            code: RefusalCode::BYTES,
            details: [attributes, limit],
            reason: format!("{attributes} bytes of extended attributes, the limit is {limit}"),
        });
    }
    Refusal::limit(RefusalCode::BUSY, memory_of(open), settings.memory_left)
}

/// Bytes of memory that the state of a stream takes.
pub(super) fn memory_of(open: &Open) -> u64 {
    let mut account = Limits::memory_of(open.entries, open.manifest_bytes, open.blocks);
    if open.flags.contains(OpenFlags::OWNERS) {
        // Where the list has grown to twice what it needs.
        let owners = open.entries.saturating_mul(2 * size_of::<Owner>() as u64);
        account = account.saturating_add(owners);
    }
    let attributes = u64::from(open.attribute_bytes).saturating_mul(ATTRIBUTE_MEMORY);
    account = account.saturating_add(attributes);
    if open.flags.contains(OpenFlags::COMPARE) {
        account = account.saturating_add(open.blocks.saturating_mul(COMPARED_BLOCK_MEMORY));
    }
    match open.flags.contains(OpenFlags::BLAKE3) {
        true => account.saturating_add(ContentHash::memory_of(open.entries, open.blocks)),
        false => account,
    }
}
