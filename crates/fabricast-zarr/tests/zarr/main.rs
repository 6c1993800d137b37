//! The stores, by the tests that come with their traits, by `zarrs` itself, beside a store in
//! memory, with many threads, with keys and directories that are not as they should be, and with a
//! GPU.

#[path = "../../../../tests/common/alone.rs"]
mod alone;
mod arrays;
mod buffers;
#[path = "../../../../tests/common/c_library.rs"]
mod c_library;
mod conformance;
// A feature of the crates that it is for.
#[allow(unexpected_cfgs)]
#[path = "../../../../tests/common/fake_cuda.rs"]
mod fake_cuda;
mod gpu;
mod objects;
mod odd;
mod random;
mod telemetry;
mod threads;

use std::future::Future;
use std::path::PathBuf;

use fabricast_zarr::FileZarrStore;
use zarrs_storage::{StoreKey, StorePrefix};

/// An empty store, and the directory that it goes with.
fn empty() -> (tempfile::TempDir, FileZarrStore) {
    let directory = tempfile::tempdir().unwrap();
    let store = FileZarrStore::open(directory.path()).unwrap();
    (directory, store)
}

fn key(text: &str) -> StoreKey {
    StoreKey::new(text).unwrap()
}

fn prefix(text: &str) -> StorePrefix {
    StorePrefix::new(text).unwrap()
}

/// All files and directories in a directory, in order.
fn names(directory: impl Into<PathBuf>) -> Vec<String> {
    let listed = std::fs::read_dir(directory.into()).unwrap();
    let mut names: Vec<String> = listed
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn block_on<F: Future>(future: F) -> F::Output {
    let executor = fabricast::future::Executor::new().unwrap();
    executor.block_on(future)
}
