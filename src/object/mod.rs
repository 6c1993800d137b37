//! Objects by RDMA token: GET and PUT over any provider that has one-sided operations.
//!
//! A client lends memory by a token, and tells a server about it by whatever means it likes. The
//! server moves the bytes by itself: a GET is an RMA write into the client's window, a PUT an RMA
//! read from it.

mod client;
mod memory;
mod remote;
mod server;
mod service;
mod store;
mod telemetry;
mod token;
pub(crate) mod wire;

pub use store::{
    ChecksumKind, EtagError, FileStore, ListPage, ListQuery, ListedObject, MemoryStore,
    ObjectChecksum, ObjectEtag, ObjectInfo, ObjectName, ObjectNameError, ObjectStore, ObjectUpload,
    PutCondition, StoreCompletion, StoreError, StoredObject,
};
pub use token::{RdmaToken, TokenError};
pub use wire::{ObjectStatus, ObjectWireError};
