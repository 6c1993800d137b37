//! `ObjectInfo` and what lists are made of.

use std::time::SystemTime;

use super::{ObjectChecksum, ObjectEtag, ObjectName};

/// What an object is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its size in bytes.
    pub size: u64,
    /// The name of this version.
    pub etag: ObjectEtag,
    /// When it was put, where that is known.
    pub modified: Option<SystemTime>,
    /// The checksum of the content, where it was written down when the object was put.
    pub checksum: Option<ObjectChecksum>,
}

/// When an object may be put.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PutCondition {
    /// Always: what is there is replaced. The default.
    #[default]
    Any,
    /// If there is none of that name (HTTP: `If-None-Match: *`).
    Absent,
    /// If the one that is there has this etag (HTTP: `If-Match`).
    Matches(ObjectEtag),
}

impl PutCondition {
    /// Judges it by what is there.
    ///
    /// # Errors
    /// [`Exists`](super::StoreError::Exists) or [`EtagMismatch`](super::StoreError::EtagMismatch).
    pub fn check(&self, found: Option<&ObjectEtag>) -> Result<(), super::StoreError> {
        match (self, found) {
            (Self::Any, _) | (Self::Absent, None) => Ok(()),
            (Self::Absent, Some(_)) => Err(super::StoreError::Exists),
            (Self::Matches(wanted), Some(found)) if wanted == found => Ok(()),
            (Self::Matches(_), found) => Err(super::StoreError::EtagMismatch {
                found: found.cloned(),
            }),
        }
    }
}

/// Which objects a list is to have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListQuery {
    /// What their names begin with; empty: anything.
    pub prefix: String,
    /// Only names behind this one, in the order of their bytes; empty: all.
    pub start_after: String,
    /// How many at most. With 0, the list is empty.
    pub limit: usize,
}

impl ListQuery {
    /// Whether a name belongs to the list.
    pub fn takes(&self, name: &str) -> bool {
        name.starts_with(&self.prefix) && (self.start_after.is_empty() || *name > *self.start_after)
    }
}

/// One object of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedObject {
    /// Its name.
    pub name: ObjectName,
    /// Its size in bytes.
    pub size: u64,
    /// The name of this version.
    pub etag: ObjectEtag,
    /// When it was put, where that is known.
    pub modified: Option<SystemTime>,
}

/// A part of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListPage {
    /// Objects, in the order of the bytes of their names.
    pub objects: Vec<ListedObject>,
    /// There are more behind the last of them.
    pub more: bool,
}
