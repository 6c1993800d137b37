//! Files that are at the target already, with the size and the time that the sender has: they are
//! kept as they are, and not sent.

use std::io;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, chownat, fchmod, fdatasync};

use super::{ids_of, owner_of};
use crate::stream::block_set::BlockSet;
use crate::stream::sink::beneath::{Beneath, OpenDirectories, split};
use crate::stream::sink::{Kept, SinkError, Stop, StreamOffer};
use crate::stream::{Entry, EntryKind, Modified};

/// Whether a file is what an entry says, as far as that can be told without its content. Of an
/// entry without a time, such as a buffer's, nothing can be told: each content of one size would be
/// taken for the one before.
fn is_as(found: &Stat, entry: &Entry<'_>) -> bool {
    let kind = match entry.kind {
        EntryKind::Link => FileType::Symlink,
        _ => FileType::RegularFile,
    };
    entry.modified != Modified::default()
        && FileType::from_raw_mode(found.st_mode) == kind
        && u64::try_from(found.st_size) == Ok(entry.size)
        && found.st_mtime == entry.modified.seconds
        && u64::from(entry.modified.nanoseconds) == found.st_mtime_nsec
}

/// Finds them, and adds them to what is kept, unread. The numbers of their entries.
///
/// # Errors
/// It is to stop.
pub(super) fn find(
    directory: &Beneath,
    offer: &StreamOffer,
    kept: &mut Kept,
    stop: &Stop,
) -> Result<BlockSet, SinkError> {
    let mut unchanged = BlockSet::new(offer.manifest.len() as u64);
    let open = OpenDirectories::default();
    for (number, entry) in offer.manifest.iter().enumerate() {
        stop.check()?;
        let mut blocks = offer.plan.of_entry(number);
        // A stream that was cut has left a part of it: that is gone on with.
        if entry.kind == EntryKind::Directory || blocks.any(|it| kept.blocks().contains(it)) {
            continue;
        }
        if is_there(directory, &open, &entry) {
            kept.add_unread(offer, number);
            unchanged.insert(number as u64);
        }
    }
    Ok(unchanged)
}

/// Whether the file of an entry is there, as the entry says.
fn is_there(directory: &Beneath, open: &OpenDirectories, entry: &Entry<'_>) -> bool {
    let (parent, last) = split(entry.name.as_bytes());
    let parent = open.get(directory, parent, false);
    let found = parent.and_then(|parent| parent.stat_here(last));
    found.is_ok_and(|found| is_as(&found, entry))
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
        let owner = offer.manifest.owner(number as usize);
        let owner = owner.filter(|owner| *owner != owner_of(&found));
        if let Some(owner) = owner {
            let (user, group) = ids_of(owner).map_err(failed)?;
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            let given = chownat(parent.fd(), last, Some(user), Some(group), flags);
            given.map_err(|error| failed(error.into()))?;
        }
        // A link has no rights of its own, and is synced with its directory.
        if entry.kind == EntryKind::Link {
            continue;
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
