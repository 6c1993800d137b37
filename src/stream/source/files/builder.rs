//! `FileSourceBuilder`: what a source of files is to be made of.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::FileSource;
use super::survey::Survey;
use crate::storage::{BackEndChoice, DirectIo};
use crate::stream::{EntryKind, SourceError};

/// What a [`FileSource`] is to be made of.
#[derive(Debug, Clone)]
pub struct FileSourceBuilder {
    parts: Vec<SourcePart>,
    direct: DirectIo,
    back_end: BackEndChoice,
    filter: TreeFilter,
    links: SourceLinks,
    owners: bool,
    attributes: bool,
}

/// What becomes of symbolic links in trees. What is named itself is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum SourceLinks {
    /// They are left out, and counted ([`FileSource::skipped`]).
    #[default]
    Skip,
    /// They are sent as links ([`EntryKind::Link`]).
    Keep,
    /// What they lead to is sent under their names: files, and directories with everything below
    /// them. One that leads nowhere, or to a directory that it lies in, is left out, and counted.
    Follow,
}

impl Default for FileSourceBuilder {
    fn default() -> Self {
        Self {
            parts: Vec::new(),
            direct: DirectIo::Auto,
            back_end: BackEndChoice::Auto,
            filter: TreeFilter::default(),
            links: SourceLinks::default(),
            owners: false,
            attributes: false,
        }
    }
}

/// Which files and directories of trees are sent.
#[derive(Clone, Default)]
pub(super) struct TreeFilter(Option<Arc<Keep>>);

/// Whether what has this path below the tree's directory is sent.
type Keep = dyn Fn(&Path, EntryKind) -> bool + Send + Sync;

impl TreeFilter {
    pub(super) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn takes(&self, below: &Path, kind: EntryKind) -> bool {
        self.0.as_ref().is_none_or(|keep| keep(below, kind))
    }
}

impl fmt::Debug for TreeFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "some" } else { "all" })
    }
}

/// A file or a tree that was asked for.
#[derive(Debug, Clone)]
pub(super) struct SourcePart {
    pub(super) path: PathBuf,
    /// The name in the stream; `None`: the last part of its path.
    pub(super) name: Option<String>,
    pub(super) range: Option<Range<u64>>,
    pub(super) tree: bool,
}

impl FileSourceBuilder {
    /// A file, under the last part of its path.
    #[must_use]
    pub fn file(self, path: impl Into<PathBuf>) -> Self {
        self.part(path.into(), None, None, false)
    }

    /// A file, under another name: relative, with '/' between its parts.
    #[must_use]
    pub fn file_as(self, path: impl Into<PathBuf>, name: impl Into<String>) -> Self {
        self.part(path.into(), Some(name.into()), None, false)
    }

    /// Some bytes of a file, as a file of their own.
    #[must_use]
    pub fn range(self, path: impl Into<PathBuf>, bytes: Range<u64>) -> Self {
        self.part(path.into(), None, Some(bytes), false)
    }

    /// A directory, and everything below it.
    #[must_use]
    pub fn tree(self, path: impl Into<PathBuf>) -> Self {
        self.part(path.into(), None, None, true)
    }

    /// A file or a directory with everything below it, whichever is there.
    #[must_use]
    pub fn path(self, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let tree = path.is_dir();
        self.part(path, None, None, tree)
    }

    /// Whether files are read around the page cache, as far as they are whole pages. Default:
    /// [`DirectIo::Auto`]. Small files that share a message pass a buffer on their way then
    /// ([`IoStats`](crate::storage::IoStats) counts it), since they do not lie at pages in it.
    #[must_use]
    pub fn direct(mut self, direct: DirectIo) -> Self {
        self.direct = direct;
        self
    }

    /// What moves the bytes. Default: [`BackEndChoice::Auto`].
    #[must_use]
    pub fn back_end(mut self, back_end: BackEndChoice) -> Self {
        self.back_end = back_end;
        self
    }

    /// Which files and directories of trees are sent: those for which `keep` is true. It is given
    /// their paths below the tree's directory, and is asked before anything of them is opened; of a
    /// directory that is left out, nothing below it is looked at. Files and trees that are named
    /// themselves are always sent. The last filter counts.
    ///
    /// A symbolic link has the kind of a link, unless it is followed: then that of what it leads
    /// to. For what is no entry, such as a FIFO, it is asked as for a file: where it is false, that
    /// is not [skipped](FileSource::skipped), it is not looked at.
    #[must_use]
    pub fn filter(
        mut self,
        keep: impl Fn(&Path, EntryKind) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.filter = TreeFilter(Some(Arc::new(keep)));
        self
    }

    /// What becomes of symbolic links in trees. Default: [`SourceLinks::Skip`], as a receiver of
    /// an older version, or with a sink of its own, may take none.
    #[must_use]
    pub fn links(mut self, links: SourceLinks) -> Self {
        self.links = links;
        self
    }

    /// Whether it is said whose everything is, by the numbers of users and groups: the receivers
    /// have to [take](crate::stream::DirectorySink::owners) that. Default: no.
    #[must_use]
    pub fn owners(mut self, yes: bool) -> Self {
        self.owners = yes;
        self
    }

    /// Whether it is said which extended attributes files and directories have, as far as this
    /// process may read them: those of `user.`, and access control lists. The receivers have to
    /// [take](crate::stream::DirectorySink::attributes) them; what is kept there as it is gets
    /// them, too, and loses others of these kinds. Those of `security.` and `trusted.` never go,
    /// which are between a file and one machine. Up to 64 MiB of them go in a stream. Default: no.
    #[must_use]
    pub fn attributes(mut self, yes: bool) -> Self {
        self.attributes = yes;
        self
    }

    fn part(
        mut self,
        path: PathBuf,
        name: Option<String>,
        range: Option<Range<u64>>,
        tree: bool,
    ) -> Self {
        self.parts.push(SourcePart {
            path,
            name,
            range,
            tree,
        });
        self
    }

    /// Looks at everything once: sizes, times, names.
    ///
    /// # Errors
    /// A path that is not there or can't be read, a name that can't be sent or comes twice, or
    /// nothing at all.
    pub fn build(self) -> Result<FileSource, SourceError> {
        if self.parts.is_empty() {
            return Err(SourceError::Empty);
        }
        let mut survey = Survey::new(self.filter, self.links, self.attributes);
        for part in &self.parts {
            match part.tree {
                true => survey.add_tree(part)?,
                false => survey.add_file(part)?,
            }
        }
        survey.finish(self.direct, self.back_end, self.owners)
    }
}
