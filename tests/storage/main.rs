//! Files, with and without io_uring, and the list of what other libraries have for them.

mod file;
mod file_api;
#[path = "../common/names.rs"]
mod names;
mod uring;
