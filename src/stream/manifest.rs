//! `Manifest`: which files, directories and links a stream has, in an order that both sides agree
//! on.
//!
//! The order is that of the names, component by component: so it is the same for the same tree
//! whoever walks it, and a reader of hostile bytes finds doubled names, and files that are used as
//! directories, by looking at the entry before.

use std::fmt;

use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::attributes::{ATTRIBUTE_BYTES_MAX, Attribute, AttributeList};
use super::name::{NameError, RelativeName};

/// What an entry of a manifest is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory. Those that files lie in need no entry of their own; they have one for their
    /// mode, or because they are empty.
    Directory,
    /// A symbolic link. Its content is what it points to, as readlink(2) says it: 1 to
    /// [`LINK_MAX`](Self::LINK_MAX) bytes.
    Link,
}

impl EntryKind {
    /// Bytes that the content of a link has at most.
    pub const LINK_MAX: u64 = 4095;
}

/// When something was last changed, as stat(2) says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Modified {
    /// Seconds since 1970.
    pub seconds: i64,
    /// The nanoseconds within the second, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// Whose something is, by the numbers that the sender's system has for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The number of the user.
    pub user: u32,
    /// The number of the group.
    pub group: u32,
}

/// One file, directory or link of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Where it lies.
    pub name: RelativeName<'a>,
    /// The kind of entry.
    pub kind: EntryKind,
    /// Its permissions: the nine bits of chmod(2), no others.
    pub mode: u16,
    /// Bytes of its content; 0 for a directory.
    pub size: u64,
    /// When it was last changed.
    pub modified: Modified,
    /// Of a file: whether it has holes, which take no room and are read as zeros. A sink may leave
    /// holes where it is given zeros, then. False for what is no file.
    pub sparse: bool,
}

/// Bits that the mode of an entry may have.
const MODE_MASK: u16 = 0o777;
const NANOSECONDS: u32 = 1_000_000_000;

/// Bytes of an encoded entry, without its name.
pub(crate) const ENTRY_LEN: usize = 28;

const FILE: u8 = 1;
const DIRECTORY: u8 = 2;
const LINK: u8 = 3;

/// The flag of a file with holes.
const SPARSE: u8 = 1;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct EntryWire {
    kind: u8,
    flags: u8,
    mode: U16,
    name_len: U16,
    reserved2: U16,
    nanoseconds: U32,
    seconds: I64,
    size: U64,
}

const _: () = assert!(size_of::<EntryWire>() == ENTRY_LEN);

impl Entry<'_> {
    /// Puts it behind what `out` has, in the form of docs/wire.md.
    /// Whether it has holes is said where the peer knows of them.
    fn encode(&self, out: &mut Vec<u8>, says_sparse: bool) {
        let name = self.name.as_bytes();
        let wire = EntryWire {
            kind: match self.kind {
                EntryKind::File => FILE,
                EntryKind::Directory => DIRECTORY,
                EntryKind::Link => LINK,
            },
            flags: if self.sparse && says_sparse {
                SPARSE
            } else {
                0
            },
            mode: self.mode.into(),
            // A name has at most 4096 bytes.
            name_len: (name.len() as u16).into(),
            reserved2: U16::ZERO,
            nanoseconds: self.modified.nanoseconds.into(),
            seconds: self.modified.seconds.into(),
            size: self.size.into(),
        };
        out.extend_from_slice(wire.as_bytes());
        out.extend_from_slice(name);
    }
}

impl<'a> Entry<'a> {
    /// The entry at the beginning of `bytes`, and what is behind it.
    fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), EntryProblem> {
        let (wire, rest) =
            EntryWire::read_from_prefix(bytes).map_err(|_| EntryProblem::Truncated)?;
        let name_len = usize::from(wire.name_len.get());
        let (name, rest) = rest
            .split_at_checked(name_len)
            .ok_or(EntryProblem::Truncated)?;
        let kind = match wire.kind {
            FILE => EntryKind::File,
            DIRECTORY => EntryKind::Directory,
            LINK => EntryKind::Link,
            _ => return Err(EntryProblem::Field("kind")),
        };
        let entry = Self {
            name: RelativeName::new(name).map_err(EntryProblem::Name)?,
            kind,
            mode: wire.mode.get(),
            size: wire.size.get(),
            modified: Modified {
                seconds: wire.seconds.get(),
                nanoseconds: wire.nanoseconds.get(),
            },
            sparse: wire.flags == SPARSE,
        };
        if wire.flags & !SPARSE != 0 {
            return Err(EntryProblem::Field("flags"));
        }
        if wire.reserved2.get() != 0 {
            return Err(EntryProblem::Field("reserved"));
        }
        entry.check().map(|()| (entry, rest))
    }

    /// What must be true of each entry, wherever it comes from.
    fn check(&self) -> Result<(), EntryProblem> {
        if self.mode & !MODE_MASK != 0 {
            return Err(EntryProblem::Field("mode"));
        }
        if self.modified.nanoseconds >= NANOSECONDS {
            return Err(EntryProblem::Field("nanoseconds"));
        }
        let may_be = match self.kind {
            EntryKind::File => true,
            EntryKind::Directory => self.size == 0,
            EntryKind::Link => (1..=EntryKind::LINK_MAX).contains(&self.size),
        };
        if !may_be {
            return Err(EntryProblem::Field("size"));
        }
        match self.sparse && self.kind != EntryKind::File {
            true => Err(EntryProblem::Field("flags")),
            false => Ok(()),
        }
    }
}

/// What is wrong with an entry of a manifest.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryProblem {
    /// The bytes end within it.
    #[error("it is cut off")]
    Truncated,
    /// A field has a value that it can't have.
    #[error("field {0} can't have that value")]
    Field(&'static str),
    /// Its name.
    #[error(transparent)]
    Name(NameError),
    /// Two entries have one name.
    #[error("its name is there twice")]
    Twice,
    /// Its name is not behind that of the entry before.
    #[error("it is out of order")]
    Order,
    /// Something lies below a file or a link.
    #[error("it lies below a file, or a symbolic link")]
    BelowFile,
    /// A symbolic link, where both sides have not agreed on any.
    #[error("it is a symbolic link, and none is taken here")]
    Link,
    /// All files together have more bytes than 64 bits can count.
    #[error("the sizes add up to more than can be counted")]
    Sizes,
}

fabricast_process::debug_as_words!(EntryProblem);

/// Why a list of files is no manifest, or not the one that was announced, or not one that is taken.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// An entry.
    #[error("entry {index} of the manifest: {problem}")]
    Entry {
        /// Which, from 0.
        index: u64,
        /// The entry's fault.
        problem: EntryProblem,
    },
    /// The manifest is not what was announced.
    #[error("the manifest has {what} {found}, announced were {announced}")]
    NotAsAnnounced {
        /// What of it.
        what: &'static str,
        /// What was said before.
        announced: u64,
        /// What there is.
        found: u64,
    },
    /// The manifest is beyond a limit of the receiver's.
    #[error("{what}: {found}, the limit is {limit}")]
    Limit {
        /// What of it.
        what: &'static str,
        /// What there is.
        found: u64,
        /// The most that is taken.
        limit: u64,
    },
    /// An extended attribute.
    #[error("an extended attribute of entry {entry} of the manifest: {problem}")]
    Attribute {
        /// Whose, counted from 0.
        entry: u64,
        /// Its fault.
        problem: &'static str,
    },
}

fabricast_process::debug_as_words!(ManifestError);

fn wrong(index: u64, problem: EntryProblem) -> ManifestError {
    ManifestError::Entry { index, problem }
}

/// An entry without its name, which lies in the arena.
#[derive(Clone, PartialEq, Eq)]
struct EntryRecord {
    name_end: usize,
    size: u64,
    modified: Modified,
    mode: u16,
    kind: EntryKind,
    sparse: bool,
}

/// The files, directories and links of a stream, in the order of their names.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    records: Vec<EntryRecord>,
    names: Vec<u8>,
    bytes: u64,
    /// Directories that names lead through and that have no entry.
    on_the_way: u64,
    /// Whose each entry is; empty where that is not said.
    owners: Vec<Owner>,
    /// Which extended attributes entries have, where that is said.
    attributes: Option<AttributeList>,
}

impl Manifest {
    /// The manifest of these entries, in whatever order they are given.
    ///
    /// # Errors
    ///
    /// [`ManifestError::Entry`], counted in the order of the names.
    pub fn new<'a>(entries: impl IntoIterator<Item = Entry<'a>>) -> Result<Self, ManifestError> {
        let mut sorted: Vec<Entry<'a>> = entries.into_iter().collect();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        let mut manifest = Self::default();
        for entry in sorted {
            let index = manifest.len() as u64;
            entry.check().map_err(|problem| wrong(index, problem))?;
            manifest.push(entry)?;
        }
        Ok(manifest)
    }

    /// The same with whose each entry is, in the order of their names.
    ///
    /// # Errors
    ///
    /// [`ManifestError::NotAsAnnounced`]: there are not as many as entries.
    pub fn with_owners(mut self, owners: Vec<Owner>) -> Result<Self, ManifestError> {
        let (announced, found) = (self.len() as u64, owners.len() as u64);
        let what = "owners";
        if announced != found {
            return Err(ManifestError::NotAsAnnounced {
                what,
                announced,
                found,
            });
        }
        self.owners = owners;
        Ok(self)
    }

    /// Whose the entry of this number is, where that is said.
    pub fn owner(&self, index: usize) -> Option<Owner> {
        self.owners.get(index).copied()
    }

    /// Whether it is said whose entries are.
    pub fn has_owners(&self) -> bool {
        !self.owners.is_empty()
    }

    /// The same with the extended attributes of files and directories, each with the number of its
    /// entry: in the order of these, and of one entry in that of their names.
    ///
    /// # Errors
    ///
    /// [`ManifestError::Attribute`], and [`ManifestError::Limit`] where all of them have more than
    /// 64 MiB.
    pub fn with_attributes<'a>(
        self,
        attributes: impl IntoIterator<Item = (usize, Attribute<'a>)>,
    ) -> Result<Self, ManifestError> {
        let mut list = AttributeList::default();
        for (entry, attribute) in attributes {
            list.push(entry as u64, attribute)?;
        }
        self.with_attribute_list(list)
    }

    /// The same with what is encoded.
    pub(crate) fn with_attribute_list(
        mut self,
        list: AttributeList,
    ) -> Result<Self, ManifestError> {
        let (found, limit) = (list.encoded().len() as u64, ATTRIBUTE_BYTES_MAX);
        if found > limit {
            let what = "bytes of extended attributes";
            return Err(ManifestError::Limit { what, found, limit });
        }
        for entry in list.entries() {
            let problem = match self
                .records
                .get(usize::try_from(entry).unwrap_or(usize::MAX))
            {
                None => "there is no such entry",
                Some(record) if record.kind == EntryKind::Link => "links have none",
                Some(_) => continue,
            };
            return Err(ManifestError::Attribute { entry, problem });
        }
        self.attributes = Some(list);
        Ok(self)
    }

    /// The extended attributes of the entry of this number, where it is said which there are: those
    /// that it has, and no others.
    pub fn attributes(&self, index: usize) -> Option<impl Iterator<Item = Attribute<'_>>> {
        Some(self.attributes.as_ref()?.of(index as u64))
    }

    /// Whether it is said which extended attributes entries have.
    pub fn has_attributes(&self) -> bool {
        self.attributes.is_some()
    }

    /// All extended attributes, as they are encoded.
    pub(crate) fn encoded_attributes(&self) -> &[u8] {
        self.attributes.as_ref().map_or(&[], AttributeList::encoded)
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of all names.
    pub fn name_bytes(&self) -> u64 {
        self.names.len() as u64
    }

    /// The entry of this number.
    pub fn get(&self, index: usize) -> Option<Entry<'_>> {
        let record = self.records.get(index)?;
        let begin = match index {
            0 => 0,
            _ => self.records[index - 1].name_end,
        };
        let name = RelativeName::new(&self.names[begin..record.name_end])
            .expect("names were checked when they came in");
        Some(Entry {
            name,
            kind: record.kind,
            mode: record.mode,
            size: record.size,
            modified: record.modified,
            sparse: record.sparse,
        })
    }

    /// The entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = Entry<'_>> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Bytes of the file of this number; 0 for a directory.
    pub(crate) fn size(&self, index: usize) -> Option<u64> {
        self.records.get(index).map(|record| record.size)
    }

    /// Whether the entry of this number is a symbolic link.
    pub(crate) fn is_link(&self, index: usize) -> bool {
        let record = self.records.get(index);
        record.is_some_and(|record| record.kind == EntryKind::Link)
    }

    /// Whether the entry of this number is a file with holes.
    pub(crate) fn is_sparse(&self, index: usize) -> bool {
        self.records.get(index).is_some_and(|record| record.sparse)
    }

    /// Whether there are files with holes.
    pub(crate) fn has_sparse(&self) -> bool {
        self.records.iter().any(|record| record.sparse)
    }

    /// How many symbolic links there are.
    pub(crate) fn links(&self) -> usize {
        let is_link = |record: &&EntryRecord| record.kind == EntryKind::Link;
        self.records.iter().filter(is_link).count()
    }

    /// Whether there is an entry of this name, or of one below it.
    pub(crate) fn leads_to(&self, name: RelativeName<'_>) -> bool {
        let (mut begin, mut end) = (0, self.len());
        while begin < end {
            let middle = begin + (end - begin) / 2;
            match self.get(middle) {
                Some(entry) if entry.name < name => begin = middle + 1,
                _ => end = middle,
            }
        }
        // What is below a name follows it directly.
        let found = self.get(begin).map(|entry| entry.name);
        found.is_some_and(|found| found == name || found.is_below(name))
    }

    /// Bytes of memory that it takes.
    pub(crate) fn memory(&self) -> u64 {
        let records = self.records.capacity() * size_of::<EntryRecord>();
        let owners = self.owners.capacity() * size_of::<Owner>();
        let attributes = self.attributes.as_ref().map_or(0, AttributeList::memory);
        (records + self.names.capacity() + owners + attributes) as u64
    }

    /// Puts an entry behind the others, if that is where it belongs.
    fn push(&mut self, entry: Entry<'_>) -> Result<(), ManifestError> {
        let index = self.len() as u64;
        let mut known = 0;
        if let Some(last) = self
            .records
            .len()
            .checked_sub(1)
            .and_then(|at| self.get(at))
        {
            match last.name.cmp(&entry.name) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => return Err(wrong(index, EntryProblem::Twice)),
                std::cmp::Ordering::Greater => return Err(wrong(index, EntryProblem::Order)),
            }
            // Whatever lies below a file would follow it directly.
            if last.kind != EntryKind::Directory && entry.name.is_below(last.name) {
                return Err(wrong(index, EntryProblem::BelowFile));
            }
            // What lies below a directory follows it at once: what both names begin with was
            // counted with the last one.
            let both = last.name.components().zip(entry.name.components());
            known = both.take_while(|(last, this)| last == this).count();
        }
        let parents = entry.name.components().count() - 1;
        self.bytes = self
            .bytes
            .checked_add(entry.size)
            .ok_or_else(|| wrong(index, EntryProblem::Sizes))?;
        self.on_the_way += parents.saturating_sub(known) as u64;
        self.names.extend_from_slice(entry.name.as_bytes());
        self.records.push(EntryRecord {
            name_end: self.names.len(),
            size: entry.size,
            modified: entry.modified,
            mode: entry.mode,
            kind: entry.kind,
            sparse: entry.sparse,
        });
        Ok(())
    }

    /// Bytes of the encoded manifest.
    pub(crate) fn encoded_len(&self) -> u64 {
        self.names.len() as u64 + (ENTRY_LEN as u64) * self.len() as u64
    }

    /// As many encoded entries from `first` on as fit in `room` bytes, and the number of the next
    /// one.
    ///
    /// # Panics
    ///
    /// When not even one fits: every receiver has room for the longest.
    pub(crate) fn encode_part(
        &self,
        first: usize,
        room: usize,
        says_sparse: bool,
    ) -> (Vec<u8>, usize) {
        let mut bytes = Vec::new();
        let mut next = first;
        while let Some(entry) = self.get(next) {
            if bytes.len() + ENTRY_LEN + entry.name.as_bytes().len() > room {
                break;
            }
            entry.encode(&mut bytes, says_sparse);
            next += 1;
        }
        assert!(
            next > first || first >= self.len(),
            "a receiver has room for an entry"
        );
        (bytes, next)
    }
}

impl fmt::Debug for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manifest")
            .field("entries", &self.len())
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// What a manifest may be, at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ManifestLimits {
    pub(crate) entries: u64,
    pub(crate) name_bytes: u64,
    pub(crate) bytes: u64,
    /// Whether there may be symbolic links.
    pub(crate) links: bool,
    /// Whether files may be said to have holes.
    pub(crate) sparse: bool,
}

/// What was said of a manifest before it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Announced {
    pub(crate) entries: u64,
    pub(crate) manifest_bytes: u64,
    pub(crate) bytes: u64,
}

/// Puts a manifest together from the parts that a peer sends. It never takes more memory than the
/// limits allow, nor any before it is needed.
#[derive(Debug)]
pub(crate) struct ManifestParser {
    announced: Announced,
    limits: ManifestLimits,
    manifest: Manifest,
}

impl ManifestParser {
    /// # Errors
    ///
    /// [`ManifestError::Limit`] when what was announced is beyond a limit, and
    /// [`ManifestError::NotAsAnnounced`] when it is contradictory.
    pub(crate) fn new(
        announced: Announced,
        limits: &ManifestLimits,
    ) -> Result<Self, ManifestError> {
        let limit = |what, found, limit| match found <= limit {
            true => Ok(()),
            false => Err(ManifestError::Limit { what, found, limit }),
        };
        limit("bytes of the stream", announced.bytes, limits.bytes)?;
        limit("entries", announced.entries, limits.entries)?;
        // Each has a name of a byte at least.
        let least = announced.entries.checked_mul(ENTRY_LEN as u64 + 1);
        let least = least.unwrap_or(u64::MAX);
        if announced.manifest_bytes < least || least == u64::MAX {
            return Err(ManifestError::NotAsAnnounced {
                what: "bytes",
                announced: announced.manifest_bytes,
                found: least,
            });
        }
        let names = announced.manifest_bytes - announced.entries * ENTRY_LEN as u64;
        limit("bytes of names", names, limits.name_bytes)?;
        Ok(Self {
            announced,
            limits: *limits,
            manifest: Manifest::default(),
        })
    }

    /// Takes the next part, whose first entry has this number.
    ///
    /// # Errors
    ///
    /// [`ManifestError::Entry`] or [`ManifestError::NotAsAnnounced`]. The parser is of no use
    /// afterwards.
    pub(crate) fn feed(&mut self, first: u64, mut bytes: &[u8]) -> Result<(), ManifestError> {
        self.expect(
            "a part that begins with entry",
            self.manifest.len() as u64,
            first,
        )?;
        while !bytes.is_empty() {
            let index = self.manifest.len() as u64;
            if index == self.announced.entries {
                return self.expect("entries", index, index + 1);
            }
            let (entry, rest) = Entry::parse(bytes).map_err(|problem| wrong(index, problem))?;
            if entry.kind == EntryKind::Link && !self.limits.links {
                return Err(wrong(index, EntryProblem::Link));
            }
            if entry.sparse && !self.limits.sparse {
                return Err(wrong(index, EntryProblem::Field("flags")));
            }
            self.manifest.push(entry)?;
            bytes = rest;
            let made = self.manifest.len() as u64 + self.manifest.on_the_way;
            if made > self.limits.entries {
                return Err(ManifestError::Limit {
                    what: "files and directories, those included that names lead through",
                    found: made,
                    limit: self.limits.entries,
                });
            }
            let so_far = self.manifest.encoded_len();
            if so_far > self.announced.manifest_bytes {
                return self.expect("bytes", self.announced.manifest_bytes, so_far);
            }
            if self.manifest.bytes() > self.announced.bytes {
                return self.expect(
                    "bytes of files",
                    self.announced.bytes,
                    self.manifest.bytes(),
                );
            }
        }
        Ok(())
    }

    /// Whether all entries are there.
    pub(crate) fn is_whole(&self) -> bool {
        self.manifest.len() as u64 == self.announced.entries
    }

    /// The manifest.
    ///
    /// # Errors
    ///
    /// [`ManifestError::NotAsAnnounced`].
    pub(crate) fn finish(self) -> Result<Manifest, ManifestError> {
        let Announced {
            entries,
            manifest_bytes,
            bytes,
        } = self.announced;
        self.expect("entries", entries, self.manifest.len() as u64)?;
        self.expect("bytes", manifest_bytes, self.manifest.encoded_len())?;
        self.expect("bytes of files", bytes, self.manifest.bytes())?;
        Ok(self.manifest)
    }

    fn expect(&self, what: &'static str, announced: u64, found: u64) -> Result<(), ManifestError> {
        match announced == found {
            true => Ok(()),
            false => Err(ManifestError::NotAsAnnounced {
                what,
                announced,
                found,
            }),
        }
    }
}

#[cfg(test)]
mod tests;
