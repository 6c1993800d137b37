//! `StoreError`: why a store did not do what it was asked for.

use rustix::io::Errno;

use super::{ObjectEtag, ObjectNameError};
use crate::storage::FileError;

/// Why a store did not do what it was asked for.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no object of that name.
    #[error("there is no object of that name: list the names to see which there are")]
    NotFound,
    /// There is an object of that name, and it was to be put only if there is none.
    #[error("there is an object of that name already: put it under another, or without condition")]
    Exists,
    /// The object that is there is another version than the one that was named.
    #[error(
        "the object there is not the version that was named{}: read it again first",
        found_text(found.as_ref())
    )]
    EtagMismatch {
        /// The etag of the one that is there; none: there is no object of that name.
        found: Option<ObjectEtag>,
    },
    /// The name is none that this store takes.
    #[error(transparent)]
    Name(#[from] ObjectNameError),
    /// A part of the name has more bytes than the file system takes.
    #[error("a part of the name is longer than the file system takes (255 bytes mostly)")]
    NamePart,
    /// The name is part of another object's name, or the other way round: files and directories
    /// can't have the same name.
    #[error(
        "the name begins with another object's name and `/`, or another one's begins so with it: \
         a directory keeps only one of them, use another name"
    )]
    NameTaken,
    /// The name leads through a symbolic link, or to something that is no regular file.
    #[error(
        "the name leads to no regular file without symbolic links, which is all that is served"
    )]
    NotAnObject,
    /// The store, or the system, does not allow it.
    #[error("not allowed here: the store is for reading, or permissions are missing")]
    Denied,
    /// The object is larger than the store takes.
    #[error("{size} bytes are more than the {limit} that the store has room for")]
    TooLarge {
        /// Bytes of the object.
        size: u64,
        /// Bytes that are left.
        limit: u64,
    },
    /// The device is full, or the quota used up.
    #[error("no space is left for the object: free some, then put it again")]
    NoSpace,
    /// The object became shorter while it was read.
    #[error("the object was changed in its place while it was read: read it again")]
    Changed,
    /// As many operations wait as the store takes.
    #[error("as many operations wait as the store takes: wait for some, or ask for less at once")]
    Busy,
    /// An upload that is to be taken up is under way on another connection.
    #[error("the upload is under way on another connection: ask again when that is over")]
    UploadTaken,
    /// The store gave a completion up without an answer.
    #[error("the store dropped a piece without an answer, which is a bug in the store")]
    Lost,
    /// Something else failed.
    #[error("the store failed: {0}")]
    Failed(String),
}

fabricast_process::debug_as_words!(StoreError);

fn found_text(found: Option<&ObjectEtag>) -> String {
    match found {
        Some(found) => format!(", but {found}"),
        None => ", as there is none".into(),
    }
}

impl StoreError {
    /// What a refusal of the system means.
    pub(super) fn of_errno(errno: i32, text: impl ToString) -> Self {
        match Errno::from_raw_os_error(errno) {
            Errno::NOENT => Self::NotFound,
            Errno::EXIST => Self::Exists,
            Errno::NAMETOOLONG => Self::NamePart,
            Errno::ISDIR | Errno::NOTDIR | Errno::NOTEMPTY => Self::NameTaken,
            Errno::LOOP | Errno::XDEV | Errno::NXIO => Self::NotAnObject,
            Errno::ACCESS | Errno::PERM | Errno::ROFS => Self::Denied,
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Self::NoSpace,
            _ => Self::Failed(text.to_string()),
        }
    }
}

impl From<Errno> for StoreError {
    fn from(errno: Errno) -> Self {
        Self::of_errno(errno.raw_os_error(), errno)
    }
}

impl From<FileError> for StoreError {
    fn from(error: FileError) -> Self {
        match error.errno() {
            Some(errno) => Self::of_errno(errno, &error),
            None if error.is_would_block() => Self::Busy,
            None => Self::Failed(error.to_string()),
        }
    }
}
