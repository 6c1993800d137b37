//! `Removal`: removes what lies in the directories of a stream and is not of it.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Dir, FileType, Mode, fchmod, fstat, unlinkat};
use rustix::io::Errno;

use crate::stream::sink::SinkError;
use crate::stream::sink::beneath::{Beneath, split};
use crate::stream::{EntryKind, Manifest, RelativeName};

/// Rights that the owner of a directory needs to remove what is in it.
const OWN_MODE: u32 = 0o700;

/// Names that are not removed.
#[derive(Clone, Default)]
pub(super) struct NameFilter(Option<Arc<Keep>>);

/// Whether what has this path below the outermost directory stays.
type Keep = dyn Fn(&Path, EntryKind) -> bool + Send + Sync;

impl NameFilter {
    pub(super) fn new(keep: impl Fn(&Path, EntryKind) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(keep)))
    }

    fn keeps(&self, name: RelativeName<'_>, kind: EntryKind) -> bool {
        let Some(keep) = &self.0 else { return false };
        let name = name.as_bytes();
        let top = name.iter().position(|byte| *byte == b'/');
        let below = top.map_or(name, |top| &name[top + 1..]);
        keep(OsStr::from_bytes(below).as_ref(), kind)
    }
}

impl fmt::Debug for NameFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "some" } else { "none" })
    }
}

/// What lies in the directories of a stream and is not of it, to be removed.
pub(super) struct Removal<'a> {
    directory: &'a Beneath,
    manifest: &'a Manifest,
    protected: &'a NameFilter,
    /// The file system: nothing on another one is touched.
    device: u64,
    failed: u64,
    /// Why the first of them could not be removed.
    first: Option<SinkError>,
}

/// What is to become of a name that a directory has.
enum Fate {
    Stays,
    Goes,
    /// A directory, which goes when it is empty.
    GoesEmptied,
}

impl<'a> Removal<'a> {
    /// # Errors
    /// The directory can't be looked at.
    pub(super) fn new(
        directory: &'a Beneath,
        manifest: &'a Manifest,
        protected: &'a NameFilter,
    ) -> Result<Self, SinkError> {
        let own = fstat(directory.fd()).map_err(|error| SinkError::os(b".", error))?;
        Ok(Self {
            directory,
            manifest,
            protected,
            device: own.st_dev,
            failed: 0,
            first: None,
        })
    }

    /// Removes all of it; an error keeps nothing else from being removed. Each that is gone is
    /// counted.
    ///
    /// # Errors
    /// [`SinkError::Delete`]: some could not be removed.
    pub(super) fn run(mut self, removed: &AtomicU64) -> Result<(), SinkError> {
        for entry in self.manifest.iter() {
            if entry.kind != EntryKind::Directory {
                continue;
            }
            // Directories to be emptied, each behind the one that it lies in. However deep they
            // are, one is open at a time.
            let mut extra = self.empty(entry.name.as_bytes(), false, removed);
            let mut at = 0;
            while at < extra.len() {
                let more = self.empty(&extra[at], true, removed);
                extra.extend(more);
                at += 1;
            }
            for name in extra.iter().rev() {
                let (parent, last) = split(name);
                let gone = self.directory.directory(parent, false);
                let gone = gone.and_then(|parent| Ok(unlinkat(parent, last, AtFlags::REMOVEDIR)?));
                match gone {
                    // It has something that stays.
                    Err(error) if is_not_empty(&error) => {}
                    gone => self.count(name, gone, removed),
                }
            }
        }
        match self.first {
            None => Ok(()),
            Some(error) => Err(SinkError::Delete {
                removed: removed.load(Ordering::Relaxed),
                failed: self.failed,
                error: Box::new(error),
            }),
        }
    }

    /// Removes what a directory has and that does not stay. The directories in it that are to be
    /// emptied first. `is_extra`: nothing of the stream is in it.
    fn empty(&mut self, name: &[u8], is_extra: bool, removed: &AtomicU64) -> Vec<Vec<u8>> {
        let mut directories = Vec::new();
        let names = self.open(name, is_extra).and_then(|directory| {
            let names = directory.as_ref().map(names_in).transpose()?;
            Ok(directory.zip(names))
        });
        let (directory, names) = match names {
            Ok(Some(found)) => found,
            Ok(None) => return directories,
            Err(error) => {
                self.count(name, Err(error), removed);
                return directories;
            }
        };
        for last in names {
            let full = [name, b"/", &last].concat();
            let fate = self.fate(&directory, &full, is_extra);
            let gone = match fate {
                Ok(Fate::Stays) => continue,
                Ok(Fate::GoesEmptied) => {
                    directories.push(full);
                    continue;
                }
                Ok(Fate::Goes) => {
                    let last = OsStr::from_bytes(&last);
                    unlinkat(directory.fd(), last, AtFlags::empty()).map_err(io::Error::from)
                }
                Err(error) => Err(error),
            };
            self.count(&full, gone, removed);
        }
        directories
    }

    /// A directory, and its owner may remove what is in it; `None`: it is on another file system.
    fn open(&self, name: &[u8], is_extra: bool) -> io::Result<Option<Beneath>> {
        let directory = self.directory.directory(name, false)?;
        let own = fstat(&directory)?;
        if own.st_dev != self.device {
            return Ok(None);
        }
        let mode = Mode::from_raw_mode(own.st_mode);
        let needed = Mode::from_raw_mode(OWN_MODE);
        // Those of the stream are given their rights behind this.
        if is_extra && !mode.contains(needed) {
            // Where it is another's, what can't be removed says so.
            let _ = fchmod(&directory, mode | needed);
        }
        Ok(Some(Beneath::of(directory)))
    }

    fn fate(&self, directory: &Beneath, name: &[u8], is_extra: bool) -> io::Result<Fate> {
        // No stream has such a name, and so none says that it is not there: what keeps the rest of
        // cut streams is among these.
        let Ok(name) = RelativeName::new(name) else {
            return Ok(Fate::Stays);
        };
        if !is_extra && self.manifest.leads_to(name) {
            return Ok(Fate::Stays);
        }
        let found = directory.stat_here(split(name.as_bytes()).1)?;
        let kind = match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => EntryKind::Directory,
            FileType::Symlink => EntryKind::Link,
            _ => EntryKind::File,
        };
        if found.st_dev != self.device || self.protected.keeps(name, kind) {
            return Ok(Fate::Stays);
        }
        Ok(match kind {
            EntryKind::Directory => Fate::GoesEmptied,
            _ => Fate::Goes,
        })
    }

    fn count(&mut self, name: &[u8], gone: io::Result<()>, removed: &AtomicU64) {
        match gone {
            Ok(()) => {
                removed.fetch_add(1, Ordering::Relaxed);
            }
            // Somebody else has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                self.failed += 1;
                self.first.get_or_insert_with(|| SinkError::os(name, error));
            }
        }
    }
}

fn names_in(directory: &Beneath) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for found in Dir::read_from(directory.fd())? {
        let found = found?;
        let name = found.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

fn is_not_empty(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::NOTEMPTY | Errno::EXIST))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use proptest::prelude::*;

    use super::*;
    use crate::stream::{Entry, Modified};

    fn manifest(entries: &[(&str, EntryKind)]) -> Manifest {
        let entries = entries.iter().map(|(name, kind)| Entry {
            name: RelativeName::new(name.as_bytes()).expect("a name"),
            kind: *kind,
            mode: 0o755,
            size: u64::from(*kind == EntryKind::Link),
            modified: Modified::default(),
            sparse: false,
        });
        Manifest::new(entries).expect("a manifest")
    }

    fn remove(at: &Path, manifest: &Manifest, protected: &NameFilter) -> (u64, Option<SinkError>) {
        let directory = Beneath::open(at).expect("it is there");
        let removed = AtomicU64::new(0);
        let removal = Removal::new(&directory, manifest, protected).expect("it is there");
        let error = removal.run(&removed).err();
        (removed.into_inner(), error)
    }

    const FILE: EntryKind = EntryKind::File;
    const DIRECTORY: EntryKind = EntryKind::Directory;

    #[test]
    fn nothing_outside_is_reached_and_nothing_of_cut_streams_or_protected_goes() {
        let here = tempfile::tempdir().expect("a directory");
        let at = |name: &str| here.path().join(name);
        for name in [
            "outside/keep",
            "to/tree/sub/old/deep",
            "to/tree/.FABRICAST-x/y",
        ] {
            fs::create_dir_all(at(name)).expect("made");
        }
        fs::create_dir_all(at("to/on/the/way")).expect("made");
        fs::create_dir_all(at("to/tree/cache/x")).expect("made");
        for name in [
            "outside/keep/file",
            "to/beside",
            "to/on/the/other",
            "to/on/the/way/sent",
            "to/on/the/way/unknown",
            "to/tree/sent",
            "to/tree/sub/old/deep/file",
            "to/tree/sub/old/a.o",
            "to/tree/sub-ordinate",
            "to/tree/.fabricast-0",
            "to/tree/cache/x/y",
        ] {
            fs::write(at(name), name).expect("written");
        }
        symlink("../../outside", at("to/tree/out")).expect("linked");
        symlink("../../../outside/keep", at("to/tree/sub/out")).expect("linked");
        symlink("/", at("to/tree/root")).expect("linked");
        fs::set_permissions(
            at("to/tree/sub/old/deep"),
            fs::Permissions::from_mode(0o555),
        )
        .expect("it is ours");
        let manifest = manifest(&[
            ("tree", DIRECTORY),
            ("tree/sent", FILE),
            ("tree/sub", DIRECTORY),
            ("on/the/way/sent", FILE),
        ]);
        let protected = NameFilter::new(|below, kind| {
            below.extension().is_some_and(|it| it == "o")
                || below == Path::new("cache") && kind == DIRECTORY
        });
        let (removed, error) = remove(&at("to"), &manifest, &protected);
        assert!(error.is_none(), "{error:?}");
        // Three links, a file, a directory with a file.
        assert_eq!(removed, 6);
        for name in [
            "outside/keep/file",
            "to/beside",
            "to/on/the/other",
            "to/on/the/way/unknown",
            "to/tree/sent",
            "to/tree/sub/old/a.o",
            "to/tree/.fabricast-0",
            "to/tree/.FABRICAST-x/y",
            "to/tree/cache/x/y",
        ] {
            assert!(at(name).exists(), "{name}");
        }
        assert!(!at("to/tree/sub/old/deep").exists());
        assert!(fs::symlink_metadata(at("to/tree/out")).is_err());
        assert_eq!(remove(&at("to"), &manifest, &protected).0, 0, "again");
    }

    #[test]
    fn what_cannot_be_removed_is_said_and_keeps_nothing_else() {
        if rustix::process::geteuid().is_root() {
            println!("SKIPPED: root may remove everything");
            return;
        }
        let here = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(here.path().join("tree/a")).expect("made");
        for name in ["tree/a/x", "tree/b"] {
            fs::write(here.path().join(name), name).expect("written");
        }
        let closed = here.path().join("tree/a");
        let rights = |mode| fs::set_permissions(&closed, fs::Permissions::from_mode(mode));
        rights(0o555).expect("it is ours");
        let of = [("tree", DIRECTORY), ("tree/a", DIRECTORY)];
        let (removed, error) = remove(here.path(), &manifest(&of), &NameFilter::default());
        rights(0o755).expect("it is ours");
        assert_eq!(removed, 1);
        let text = error.expect("x stays").to_string();
        assert!(text.contains("1 could not be: tree/a/x: "), "{text}");
    }

    /// What a tree has: each name with its kind, and those of directories.
    type Tree = BTreeMap<String, EntryKind>;

    /// A tree below `t`, of names that are short, some of which no stream has.
    fn any_tree() -> impl Strategy<Value = Tree> {
        let part = prop::sample::select(vec!["a", "b", "a-", "A", ".fabricast-1"]);
        let path = prop::collection::vec(part, 1..4);
        let kind = prop::sample::select(vec![FILE, DIRECTORY, EntryKind::Link]);
        prop::collection::vec((path, kind), 0..24).prop_map(|found| {
            let mut tree = Tree::new();
            for (path, kind) in found {
                let above = (1..path.len()).map(|len| format!("t/{}", path[..len].join("/")));
                let above: Vec<_> = above.collect();
                let is_free = |name: &String| tree.get(name).is_none_or(|it| *it == DIRECTORY);
                let name = format!("t/{}", path.join("/"));
                if above.iter().all(is_free) && !tree.contains_key(&name) {
                    tree.extend(above.into_iter().map(|name| (name, DIRECTORY)));
                    tree.insert(name, kind);
                }
            }
            tree
        })
    }

    fn make(tree: &Tree, at: &Path) {
        fs::create_dir(at.join("t")).expect("made");
        for (name, kind) in tree {
            let path = at.join(name);
            match kind {
                EntryKind::Directory => fs::create_dir_all(path),
                EntryKind::Link => symlink("/etc", path),
                _ => fs::write(path, b"x"),
            }
            .expect("made");
        }
    }

    fn found(at: &Path, name: &str, all: &mut BTreeSet<String>) {
        for entry in fs::read_dir(at.join(name)).expect("a directory") {
            let entry = entry.expect("an entry");
            let name = format!("{name}/{}", entry.file_name().to_string_lossy());
            all.insert(name.clone());
            if entry.file_type().expect("a kind").is_dir() {
                found(at, &name, all);
            }
        }
    }

    /// What is to be left of a directory, as the rules say.
    fn left(tree: &Tree, sent: &Tree, at: &str, all: &mut BTreeSet<String>) -> bool {
        let mut any = false;
        let below: Vec<_> = tree
            .iter()
            .filter(|(name, _)| {
                let rest = name
                    .strip_prefix(at)
                    .and_then(|rest| rest.strip_prefix('/'));
                rest.is_some_and(|rest| !rest.contains('/'))
            })
            .collect();
        for (name, kind) in below {
            let last = name.rsplit('/').next().expect("a part");
            let stays = sent.contains_key(name);
            let is_kept = !stays && (last.starts_with(".fabricast-") || last == "A");
            let is_below = |it: &&String| it.starts_with(&format!("{name}/"));
            if is_kept {
                all.extend(tree.keys().filter(is_below).cloned());
            }
            let has_left = *kind == DIRECTORY && !is_kept && left(tree, sent, name, all);
            if !(stays || is_kept || has_left) {
                continue;
            }
            all.insert(name.clone());
            any = true;
        }
        any
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        #[test]
        fn all_and_only_what_is_not_of_the_stream_goes(
            tree in any_tree(),
            chosen in prop::collection::vec(any::<bool>(), 24 * 3),
        ) {
            let here = tempfile::tempdir().expect("a directory");
            make(&tree, here.path());
            let mut sent = Tree::new();
            for ((name, kind), is_chosen) in tree.iter().zip(chosen) {
                let parent = name.rsplit_once('/').expect("it is in t").0;
                let may_be = RelativeName::new(name.as_bytes()).is_ok();
                if is_chosen && may_be && (parent == "t" || sent.contains_key(parent)) {
                    sent.insert(name.clone(), *kind);
                }
            }
            let mut entries = vec![("t", DIRECTORY)];
            entries.extend(sent.iter().map(|(name, kind)| (name.as_str(), *kind)));
            let protected = NameFilter::new(|below, _| below.file_name() == Some("A".as_ref()));
            let (removed, error) = remove(here.path(), &manifest(&entries), &protected);
            prop_assert!(error.is_none(), "{error:?}");
            let (mut is, mut wanted) = (BTreeSet::new(), BTreeSet::new());
            found(here.path(), "t", &mut is);
            left(&tree, &sent, "t", &mut wanted);
            prop_assert_eq!(&is, &wanted);
            prop_assert_eq!(removed as usize, tree.len() - is.len());
        }
    }
}
