//! Files that are at the target already, with the size and the time that the sender has: they are
//! kept as they are, and not sent.

use std::io;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, chownat, fdatasync, fstat};

use super::{give_owner_and_rights, give_said_attributes, ids_of, owner_of};
use crate::stream::block_set::BlockSet;
use crate::stream::sink::beneath::{Beneath, OpenDirectories, split};
use crate::stream::sink::{Kept, SinkError, StreamOffer};
use crate::stream::{Entry, EntryKind, Modified, Owner};

/// Whether a file is what an entry says, as far as that can be told without its content. Of an
/// entry without a time, such as a buffer's, nothing can be told: each content of one size would be
/// taken for the one before.
pub(super) fn is_as(found: &Stat, entry: &Entry<'_>) -> bool {
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

/// Adds files that are there as their entries say to what is kept, unread; but one of which a
/// stream that was cut has left a part: that is gone on with. The numbers of those that are kept.
pub(super) fn keep(mut alike: BlockSet, offer: &StreamOffer, kept: &mut Kept) -> BlockSet {
    let all: Vec<u64> = alike.ranges(0).flatten().collect();
    for number in all {
        // It is that of an entry.
        let entry = number as usize;
        match offer
            .plan
            .of_entry(entry)
            .any(|it| kept.blocks().contains(it))
        {
            true => drop(alike.remove(number)),
            false => kept.add_unread(offer, entry),
        }
    }
    alike
}

/// Whether the file of an entry, which is still there as the entry says, has the sender's rights,
/// and the owner that the sender says, if it does.
///
/// # Errors
/// It was changed meanwhile.
pub(super) fn check(
    entry: &Entry<'_>,
    owner: Option<Owner>,
    found: Option<&Stat>,
) -> Result<bool, SinkError> {
    let Some(found) = found.filter(|found| is_as(found, entry)) else {
        let name = &entry.name;
        let text = format!("{name}: it was changed here while the stream came: send it again");
        return Err(SinkError::Other(text));
    };
    // A link has no rights of its own.
    let has_rights =
        entry.kind == EntryKind::Link || Mode::from_raw_mode(found.st_mode) == rights_of(entry);
    Ok(has_rights && owner.is_none_or(|owner| owner == owner_of(found)))
}

/// The rights that the file of an entry gets.
pub(super) fn rights_of(entry: &Entry<'_>) -> Mode {
    Mode::from_raw_mode(u32::from(entry.mode & 0o777))
}

/// Gives these files the sender's rights, and owners and extended attributes if it says them; and,
/// if that is asked for, sees to it that each of them is on the device, where whoever wrote it may
/// not have put it.
///
/// # Errors
/// One was changed meanwhile, or can't be given its rights or owner, or be synced.
pub(super) fn settle(
    directory: &Beneath,
    offer: &StreamOffer,
    files: &[usize],
    sync_each: bool,
) -> Result<(), SinkError> {
    let open = OpenDirectories::default();
    for &number in files {
        let Some(entry) = offer.manifest.get(number) else {
            continue;
        };
        let name = entry.name.as_bytes();
        let failed = |error: io::Error| SinkError::os(name, error);
        let owner = offer.manifest.owner(number);
        let (parent, last) = split(name);
        let parent = open.get(directory, parent, false).map_err(failed)?;
        // A link is synced with its directory.
        if entry.kind == EntryKind::Link {
            if let Some(owner) = owner {
                let (user, group) = ids_of(owner).map_err(failed)?;
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                let given = chownat(parent.fd(), last, Some(user), Some(group), flags);
                given.map_err(|error| failed(error.into()))?;
            }
            continue;
        }
        let file = parent.open_here(last, OFlags::RDONLY, Mode::empty());
        let file = file.map_err(failed)?;
        let found = fstat(&file).map_err(|error| failed(error.into()))?;
        check(&entry, None, Some(&found))?;
        give_said_attributes(&file, offer, (number, &entry))?;
        give_owner_and_rights(&file, &entry, owner).map_err(failed)?;
        if sync_each {
            fdatasync(&file).map_err(|error| failed(error.into()))?;
        }
    }
    Ok(())
}
