//! Files: blocks between storage and memory, through the page cache or around it, by threads,
//! io_uring or cuFile.
//!
//! ```text
//!  FileHandle ── read, write ──────► this thread ─┐            ┌─ page cache ── file
//!     │                                           ├─ back end ─┤
//!     └──── pread, pwrite, append ─┐              │            └─ O_DIRECT ──── file
//!             buffer moves in      ▼              │                 ▲ memory that is not aligned:
//!       IoFuture ◄── operation: tasks ── threads ─┘                 └ bounce buffers, copied while
//!         IoOutcome{buffer, result}                                   the next one moves
//! ```
//!
//! A call that blocks borrows its memory. What goes on after a call owns its buffer ([`IoBuf`],
//! [`IoBufMut`]) and gives it back with the outcome, exactly once; who drops the future gets the
//! buffer dropped when the operation is over, never before.
//!
//! Nothing is hidden: [`Transferred`] says what went around the page cache and what was copied,
//! [`FileError`] says which bytes of which file, how far it got, and why it stopped.
//!
//! Start with [`FileHandle`]; [`BlockReader`] and [`BlockWriter`] go through a file block by block.
//!
//! ```
//! use fabricast::storage::{FileHandle, IoOptions};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("run.dat");
//! let file = FileHandle::open(&path, "w+")?;
//! let written = file.pwrite(vec![7u8; 4096], .., 0, &IoOptions::default());
//! let (_buffer, moved) = written.wait().into_result()?;
//! assert_eq!(moved.bytes, 4096);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod atomic_file;
mod back_end;
mod batch;
mod block;
pub mod block_device;
mod bounce;
mod compat;
mod transfer_route;
pub mod cufile {
    //! cuFile, NVIDIA's GPUDirect Storage, which [`FileHandle`](super::FileHandle) uses by itself:
    //! the crate `fabricast-cufile`, whole.

    pub use fabricast_cufile::*;
}
mod defaults;
mod device;
mod engine;
mod error;
mod file;
mod future;
mod handle;
mod io_buffer;
mod open;
mod operation;
mod options;
pub mod page_cache;
mod plan;
mod posix;
mod read_many;
mod reader;
mod region_run;
#[cfg(all(test, not(loom)))]
#[path = "testing/rig.rs"]
mod rig;
mod settings;
mod shared_pools;
mod space;
pub mod stats;
mod thread_pool;
mod transferred;
mod uring;
mod vectored;
mod writer;

pub use atomic_file::AtomicFile;
pub use back_end::{BackEnd, Direction};
pub use batch::{Batch, BatchEntry, BatchEvent, BatchOptions, BatchRefused, BatchRefusedKind};
pub use block::{Block, BlockError, BlockErrorKind, Written};
pub use block_device::{BlockDevice, BlockDeviceError};
pub use bounce::bounce_buffers_clear;
pub use compat::{CompatMode, NoCompatMode};
pub use defaults::{Defaults, DefaultsScope};
pub use device::{DeviceMemory, StreamFuture, pinned_buffers_clear};
pub use error::{FileError, FileErrorKind, FileOperation};
pub use file::DirectAlignment;
pub use future::{IoFuture, IoOutcome, wait_all, wait_any};
pub use handle::FileHandle;
pub use io_buffer::{IoBuf, IoBufMut, Place};
pub(crate) use open::retry;
pub use open::{OpenFlags, OpenOptions};
pub use operation::callback_panics;
pub use options::{BackEndChoice, DirectIo, IoOptions};
pub use read_many::{ReadRequest, read_many};
pub use reader::{BlockOrder, BlockReader, ReaderOptions};
pub use region_run::RegionRun;
pub use settings::{SettingError, Settings};
pub use space::AllocateMode;
pub use stats::IoStats;
pub use thread_pool::{ThreadPool, ThreadPoolStats};
pub use transferred::Transferred;
pub use uring::{io_uring_leaked, io_uring_refused};
pub use writer::{BlockWriter, FinishError, WriterOptions, WriterReport};
