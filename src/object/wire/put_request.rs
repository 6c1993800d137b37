//! `PutRequest`: what a client asks for that puts an object, or a part of one; `TakeUpRequest`:
//! what it asks for before it goes on with one that was cut.

use crate::object::store::{ChecksumKind, ObjectName, PutCondition, UploadKey};

/// The first `len` bytes of the window become bytes `offset .. offset + len` of the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PutRequest {
    pub(crate) name: ObjectName,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Bytes of the whole object.
    pub(crate) total: u64,
    /// The client's number for the object that it puts, in one request or several.
    pub(crate) upload: u64,
    pub(crate) begins: bool,
    pub(crate) ends: bool,
    pub(crate) condition: PutCondition,
    pub(crate) checksum: Option<ChecksumKind>,
    /// What it is, of the whole content, where the client knows; only with a kind.
    pub(crate) given: Option<u64>,
    /// Empty where there is nothing to read.
    pub(crate) token: String,
}

/// The object of this key is to be gone on with, in requests that put parts of it: what is there of
/// it is the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TakeUpRequest {
    pub(crate) name: ObjectName,
    /// Bytes of the whole object.
    pub(crate) total: u64,
    /// The client's number for the object, in the requests that follow.
    pub(crate) upload: u64,
    pub(crate) key: UploadKey,
    /// What is there goes.
    pub(crate) anew: bool,
    pub(crate) condition: PutCondition,
}
