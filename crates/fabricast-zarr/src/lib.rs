#![doc = include_str!("../README.md")]
//!
//! # What is here
//!
//! ```text
//!  zarrs ── traits of zarrs_storage ──► FileZarrStore ──► files: FileHandle, AtomicFile
//!                                        │    ▲
//!          read_into, pread_into ────────┘    │ jobs of futures
//!          write_from: buffers of your own    │
//!  zarrs, async ──────────────────────► AsyncFileZarrStore ── StoreThreads
//!
//!  zarrs ── the same traits ──────────► ObjectZarrStore ──► an ObjectService: RemoteObjects
//! ```

#![deny(unsafe_code)]

mod buffers;
mod key_path;
mod listable;
mod objects;
mod options;
mod range_reads;
mod readable;
mod refused;
mod store;
mod threads;
mod walk;
mod writable;

pub use objects::{AsyncObjectZarrStore, ObjectZarrOptions, ObjectZarrStore};
pub use options::ZarrStoreOptions;
pub use refused::{ReadRefusal, ReadRefused};
pub use store::FileZarrStore;
pub use threads::{AsyncFileZarrStore, StoreThreads};

/// What tests of more than one crate share.
#[cfg(test)]
#[path = "../../../tests/common/forked.rs"]
mod forked;

/// The example of the guide, as a test.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../../docs/guide/zarr.md")]
    struct Zarr;
}
