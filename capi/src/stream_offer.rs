//! What a sink of the program's is told of a stream: what it is, its entries, its blocks, and what
//! of it the sink has already.

#![allow(unsafe_code)] // Functions that C calls.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};

use fabricast::stream::{Block, EntryKind, Kept, StreamOffer};

use crate::call::call;
use crate::pointer::{self, Out};
use crate::status::{FCAST_NOT_FOUND, Failure, c_string, fcast_status};
use crate::stream_send::{
    FCAST_STREAM_BLAKE3, FCAST_STREAM_NO_CRC32C, FCAST_STREAM_READ_BACK, FCAST_STREAM_RESTART,
    FCAST_STREAM_SYNC,
};
use crate::table::Table;

static MANIFESTS: Table<OfferedManifest> = Table::new(49, "manifest of a stream");
static KEPT: Table<Keeping> = Table::new(50, "list of blocks that are kept");

/// The files and directories of a stream. It is gone when the function `begin` returns.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_stream_manifest {
    /// Its number; 0: none.
    pub id: u64,
}

/// What a sink has of an earlier stream. It is gone when the function `resume` returns.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_stream_kept {
    /// Its number; 0: none.
    pub id: u64,
}

/// What a stream is, as its sender said and the receiver's limits allow. Its layout does not
/// change.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_stream_offer {
    /// Its files and directories, for fcast_stream_manifest_entry.
    pub manifest: fcast_stream_manifest,
    /// How many there are.
    pub entries: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Blocks of all files.
    pub blocks: u64,
    /// Bytes of a block that is not the last one of its file.
    pub block_bytes: u32,
    /// What its sender asks for: the sum of some of FCAST_STREAM_NO_CRC32C, _BLAKE3, _SYNC,
    /// _READ_BACK and _RESTART.
    pub flags: u32,
    /// Where it goes: the same for each attempt to send it.
    pub key: [u8; 16],
    /// What the content is: another when the source has changed.
    pub stamp: [u8; 16],
    /// 0.
    pub reserved: [u64; 2],
}

/// A file or a directory of a stream. Its layout does not change.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_stream_entry {
    /// Its name: parts with "/" between them, none of which is empty, "." or ".."; of whatever
    /// bytes but zeros. Good until the function `begin` returns, at the same
    /// address however often it is asked for.
    pub name: *const c_char,
    /// Its bytes; 0 for a directory.
    pub size: u64,
    /// Where its bytes begin, where those of all files lie one behind the other.
    pub start: u64,
    /// When it was last changed: seconds since 1970.
    pub modified_s: i64,
    /// And nanoseconds.
    pub modified_ns: u32,
    /// Its permissions: the nine bits of chmod(2).
    pub mode: u32,
    /// 1: it is a directory.
    pub is_directory: u32,
    /// 0.
    pub reserved: u32,
}

/// A part of a file. Its layout does not change.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_stream_block {
    /// Its number in the stream.
    pub index: u64,
    /// The number of its file in the manifest.
    pub entry: u64,
    /// Where in the file it begins.
    pub offset: u64,
    /// The same, where the bytes of all files lie one behind the other.
    pub start: u64,
    /// Its bytes.
    pub len: u32,
    /// Their CRC32C, where blocks carry one.
    pub crc32c: u32,
}

/// A manifest that a sink is shown.
struct OfferedManifest {
    offer: StreamOffer,
    starts: Vec<u64>,
    /// Names that were asked for, by the number of their entry: each is there once, so together
    /// they are no longer than those of the manifest, whatever is asked.
    names: HashMap<usize, CString>,
}

/// What is being gathered of what a sink has.
struct Keeping {
    offer: StreamOffer,
    kept: Kept,
}

/// Where each entry's bytes begin, where they lie one behind the other.
pub(crate) fn starts(offer: &StreamOffer) -> Vec<u64> {
    let sizes = offer.manifest.iter().map(|entry| entry.size);
    let starts = sizes.scan(0, |end, size| {
        *end += size;
        Some(*end - size)
    });
    starts.collect()
}

/// Shows an offer to a function.
pub(crate) fn shown<R>(
    offer: &StreamOffer,
    starts: &[u64],
    function: impl FnOnce(&fcast_stream_offer) -> R,
) -> Result<R, Failure> {
    let id = MANIFESTS.insert(OfferedManifest {
        offer: offer.clone(),
        starts: starts.to_vec(),
        names: HashMap::new(),
    })?;
    let flags = [
        (!offer.crc32c, FCAST_STREAM_NO_CRC32C),
        (offer.blake3, FCAST_STREAM_BLAKE3),
        (offer.sync, FCAST_STREAM_SYNC),
        (offer.read_back, FCAST_STREAM_READ_BACK),
        (offer.restart, FCAST_STREAM_RESTART),
    ];
    let flags = flags.iter().filter(|(is_set, _)| *is_set);
    let result = function(&fcast_stream_offer {
        manifest: fcast_stream_manifest { id },
        entries: offer.manifest.len() as u64,
        bytes: offer.manifest.bytes(),
        blocks: offer.plan.blocks(),
        block_bytes: offer.plan.block_bytes(),
        flags: flags.map(|(_, flag)| flag).sum(),
        key: offer.identity.key,
        stamp: offer.identity.stamp,
        reserved: [0; 2],
    });
    MANIFESTS.release(id)?;
    Ok(result)
}

/// Has a function say what a sink has of an earlier stream.
pub(crate) fn gathered(
    offer: &StreamOffer,
    function: impl FnOnce(fcast_stream_kept) -> fcast_status,
) -> Result<(fcast_status, Kept), Failure> {
    let id = KEPT.insert(Keeping {
        offer: offer.clone(),
        kept: Kept::new(offer),
    })?;
    let status = function(fcast_stream_kept { id });
    let taken = KEPT.take(id);
    if taken.is_err() {
        // Another thread is in a call of it, with which it goes.
        let _ = KEPT.release(id);
    }
    Ok((status, taken?.kept))
}

impl fcast_stream_block {
    pub(crate) fn new(block: &Block, crc32c: u32, start: u64) -> Self {
        Self {
            index: block.index,
            entry: block.entry as u64,
            offset: block.offset,
            start,
            len: block.len,
            crc32c,
        }
    }
}

/// Says what the entry of this number is, from 0 on. FCAST_NOT_FOUND: there are not so many. One
/// thread at a time, within the function `begin` of a sink.
///
/// # Safety
///
/// `entry`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_stream_manifest_entry(
    manifest: fcast_stream_manifest,
    index: u64,
    entry: *mut fcast_stream_entry,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(entry, "entry") }?;
        let mut shown = MANIFESTS.enter(manifest.id)?;
        let place = usize::try_from(index).unwrap_or(usize::MAX);
        let OfferedManifest {
            offer,
            starts,
            names,
        } = &mut *shown;
        let (Some(entry), Some(start)) = (offer.manifest.get(place), starts.get(place)) else {
            let count = starts.len();
            let text = format!("index = {index}: the stream has {count} entries");
            return Err(Failure::new(FCAST_NOT_FOUND, text));
        };
        let name = names
            .entry(place)
            .or_insert_with(|| c_string(entry.name.as_bytes()));
        out.set(fcast_stream_entry {
            name: name.as_ptr(),
            size: entry.size,
            start: *start,
            modified_s: entry.modified.seconds,
            modified_ns: entry.modified.nanoseconds,
            mode: entry.mode.into(),
            is_directory: (entry.kind == EntryKind::Directory).into(),
            reserved: 0,
        });
        Ok(())
    })
}

/// Says that a sink has a block of the stream already, which then is not sent: these are its bytes,
/// which were just read and found right. FCAST_NOT_FOUND: there is no block of this number;
/// FCAST_INVALID: it has another length. One thread at a time, within the function `resume`.
///
/// # Safety
///
/// `data`: NULL, or `len` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_stream_kept_add(
    kept: fcast_stream_kept,
    block: u64,
    data: *const c_void,
    len: usize,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let bytes = unsafe { pointer::bytes(data.cast::<u8>(), len, "data") }?;
        let mut entry = KEPT.enter(kept.id)?;
        let Keeping { offer, kept } = &mut *entry;
        let Some(found) = offer.plan.get(block) else {
            let blocks = offer.plan.blocks();
            let text = format!("block = {block}: the stream has {blocks} blocks");
            return Err(Failure::new(FCAST_NOT_FOUND, text));
        };
        if bytes.len() != found.len as usize {
            let text = format!("len = {len}: block {block} has {} bytes", found.len);
            return Err(Failure::invalid(text));
        }
        kept.add(offer, &found, bytes);
        Ok(())
    })
}
