//! `RemoteObject`: what a service said of an object.

use std::time::SystemTime;

use crate::object::store::{ObjectChecksum, ObjectEtag};
use crate::object::wire::AnswerHead;

/// What a service said of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteObject {
    /// Its size in bytes.
    pub size: u64,
    /// Bytes that were moved by this call.
    pub moved: u64,
    /// The name of this version.
    pub etag: ObjectEtag,
    /// When it was put, where that is known.
    pub modified: Option<SystemTime>,
    /// Of head: that of the content, where it is known. Of a get in one request: that of the bytes
    /// that came. Of a put: that of the content.
    pub checksum: Option<ObjectChecksum>,
    /// Both sides have computed a checksum of the bytes, and it was the same.
    pub is_checked: bool,
}

impl RemoteObject {
    pub(super) fn new(head: AnswerHead, is_checked: bool) -> Self {
        Self {
            size: head.size,
            moved: head.moved,
            etag: head.etag,
            modified: head.modified,
            checksum: head.checksum,
            is_checked,
        }
    }
}
