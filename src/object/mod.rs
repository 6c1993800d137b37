//! Objects by RDMA token: GET and PUT over any provider that has one-sided operations.
//!
//! A client lends memory by a token, and tells a server about it by whatever means it likes. The
//! server moves the bytes by itself: a GET is an RMA write into the client's window, a PUT an RMA
//! read from it.

mod callbacks;
mod client;
mod client_config;
mod control;
mod error;
mod lender;
mod memory;
mod needs;
mod parts;
mod progress;
mod remote;
mod server;
mod service;
mod staging;
mod store;
mod telemetry;
mod token;
mod window_body;
mod window_ep;
pub(crate) mod wire;

pub use callbacks::{
    AsyncObjectOps, CallbackError, ObjectChunk, ObjectOps, TransferCause, TransferFailed,
};
pub use client::ObjectClient;
pub use client_config::ObjectClientConfig;
pub use error::{NotReleased, ObjectError};
pub use memory::{LentToken, ObjectMemory, ObjectOperation};
pub use remote::{
    RemoteConfig, RemoteError, RemoteList, RemoteObject, RemoteObjects, RemoteUpload,
};
pub use server::{
    ChannelEvent, ChannelStats, ClientNetworks, ObjectChannel, ObjectServer, ObjectServerConfig,
    TransferError, TransferErrorKind,
};
pub use service::{ObjectService, ObjectServiceConfig};
pub use store::{
    ChecksumKind, EtagError, FileStore, KeptLimits, ListPage, ListQuery, ListedObject, MemoryStore,
    ObjectChecksum, ObjectEtag, ObjectInfo, ObjectName, ObjectNameError, ObjectStore, ObjectUpload,
    PutCondition, StoreCompletion, StoreError, StoredObject, TakeUp, TakenUp, UploadKey,
    UploadKeyError,
};
pub use telemetry::{
    CallbackStats, FailureKind, Latencies, LendingStats, ObjectSide, ObjectStats, OperationStats,
    TelemetryEntry, TelemetryFormat, TelemetryGroups, TelemetryReport, TelemetryWriter,
    TelemetryWriterConfig,
};
#[cfg(any(test, fuzzing))]
pub(crate) use token::exercise as exercise_token;
pub use token::{RdmaToken, TokenError, TokenField};
pub use wire::{ObjectStatus, ObjectWireError};

#[cfg(all(test, not(loom)))]
pub(crate) mod testing {
    pub(crate) mod fabrics;
    pub(crate) mod raw_server;
}
#[cfg(all(test, not(loom)))]
mod tests {
    mod client;
    mod lies;
    mod neighbours;
    mod service;
    mod stores_of_others;
    mod uploads;
}
