//! `PutRequest`: what a client asks for that puts an object, or a part of one.

use crate::object::store::{ChecksumKind, ObjectName, PutCondition};

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
