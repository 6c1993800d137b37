//! Files that are at the target already, with the size and the time that the sender has: they are
//! kept as they are, and not sent.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FileType, Mode, OFlags, Stat, fchmod, fdatasync, fstat};

use crate::stream::block_set::BlockSet;
use crate::stream::sink::beneath::{Beneath, OpenDirectories, split};
use crate::stream::sink::{Kept, SinkError, Stop, StreamOffer};
use crate::stream::{Entry, EntryKind, Modified};

/// Whether a file is what an entry says, as far as that can be told without its content. Of an
/// entry without a time, such as a buffer's, nothing can be told: each content of one size would be
/// taken for the one before.
fn is_as(found: &Stat, entry: &Entry<'_>) -> bool {
    entry.modified != Modified::default()
        && FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
        && u64::try_from(found.st_size) == Ok(entry.size)
        && found.st_mtime == entry.modified.seconds
        && u64::from(entry.modified.nanoseconds) == found.st_mtime_nsec
}

/// Finds them, and adds their blocks, which are read for their checksums, to what is kept. The
/// numbers of their entries.
///
/// # Errors
/// A file can't be read.
pub(super) fn find(
    directory: &Beneath,
    offer: &StreamOffer,
    kept: &mut Kept,
    stop: &Stop,
) -> Result<BlockSet, SinkError> {
    let mut unchanged = BlockSet::new(offer.manifest.len() as u64);
    let open = OpenDirectories::default();
    let mut buffer = vec![0; offer.plan.block_bytes() as usize];
    for (number, entry) in offer.manifest.iter().enumerate() {
        stop.check()?;
        let mut blocks = offer.plan.of_entry(number);
        // A stream that was cut has left a part of it: that is gone on with.
        if entry.kind != EntryKind::File || blocks.clone().any(|it| kept.blocks().contains(it)) {
            continue;
        }
        let Ok(Some(file)) = open_as(directory, &open, &entry) else {
            continue;
        };
        let is_whole = blocks.try_fold(true, |_, index| {
            stop.check()?;
            let Some(block) = offer.plan.get(index) else {
                return Ok(false);
            };
            let bytes = &mut buffer[..block.len as usize];
            match file.read_exact_at(bytes, block.offset) {
                Ok(()) => {
                    kept.add(offer, &block, bytes);
                    Ok(true)
                }
                Err(error) => Err(SinkError::os(entry.name.as_bytes(), error)),
            }
        })?;
        if is_whole {
            unchanged.insert(number as u64);
        }
    }
    Ok(unchanged)
}

/// The file of an entry, if it is as the entry says.
fn open_as(
    directory: &Beneath,
    open: &OpenDirectories,
    entry: &Entry<'_>,
) -> io::Result<Option<File>> {
    let (parent, last) = split(entry.name.as_bytes());
    let parent = open.get(directory, parent, false)?;
    // Most of what is not there is found by this, and nothing is opened that is no file.
    if !is_as(&parent.stat_here(last)?, entry) {
        return Ok(None);
    }
    let file = parent.open_here(last, OFlags::RDONLY, Mode::empty())?;
    Ok(is_as(&fstat(&file)?, entry).then(|| file.into()))
}

/// Sees to it that they still are what they were, and have the sender's rights; and, if that is
/// asked for, that each of them is on the device, where whoever wrote it may not have put it.
///
/// # Errors
/// One was changed meanwhile, or can't be given its rights or be synced.
pub(super) fn check(
    directory: &Beneath,
    offer: &StreamOffer,
    unchanged: &BlockSet,
    sync_each: bool,
) -> Result<(), SinkError> {
    let open = OpenDirectories::default();
    for number in unchanged.ranges(0).flatten() {
        let Some(entry) = usize::try_from(number)
            .ok()
            .and_then(|at| offer.manifest.get(at))
        else {
            continue;
        };
        let name = entry.name.as_bytes();
        let failed = |error: io::Error| SinkError::os(name, error);
        let (parent, last) = split(name);
        let parent = open.get(directory, parent, false).map_err(failed)?;
        let found = parent.stat_here(last).map_err(failed)?;
        if !is_as(&found, &entry) {
            let name = &entry.name;
            let text = format!("{name}: it was changed here while the stream came: send it again");
            return Err(SinkError::Other(text));
        }
        let mode = Mode::from_raw_mode(u32::from(entry.mode & 0o777));
        let has_rights = Mode::from_raw_mode(found.st_mode) == mode;
        if has_rights && !sync_each {
            continue;
        }
        let file = parent.open_here(last, OFlags::RDONLY, Mode::empty());
        let file = file.map_err(failed)?;
        if !has_rights {
            fchmod(&file, mode).map_err(|error| failed(error.into()))?;
        }
        if sync_each {
            fdatasync(&file).map_err(|error| failed(error.into()))?;
        }
    }
    Ok(())
}
