#![doc = include_str!("../README.md")]
//!
//! # What is here
//!
//! ```text
//!  CuFile::get ── libcufile and a CUDA device, or why not
//!    ├── driver ── Driver          properties, statistics; open from the first use until
//!    │                             CuFile::close_driver
//!    ├── register ── Handle        read, write, readv, writev; keeps the file open
//!    ├── register_memory ── BufferRegistration
//!    ├── stream ── Stream          read_async, write_async ── StreamOperation ── check_bytes_done
//!    └── batch ── CuFileBatch      submit, poll, cancel: one outcome for each entry
//! ```
//!
//! Sizes and offsets are bytes, except where a name ends in `_kb` (1024 bytes, as cuFile counts).
//!
//! Three rules of cuFile shape this module. It may never return from opening its driver on a
//! machine without a GPU, so nothing is opened, also not behind the scenes, before the CUDA driver
//! has said that there is a device. Opening takes about half a second, and closing at the end of a
//! process is known to crash, so the driver stays open until it is closed by hand. And what cuFile
//! still works on (an operation on a stream, an entry of a batch) may not be freed: it is kept
//! until cuFile is known to have let go of it, and leaked where that can't be known ([`leaked`]
//! counts).
//!
//! What cuFile 1.15 and 1.20 were seen to do on an H200 without nvidia-fs, and what is made of it
//! here: without an entry of the disk in the udev database no file can be registered (5027, whose
//! advice says how); streams and batches do not take an offset in memory that is not registered
//! (they get the address of the first byte instead); a stream-ordered read with O_DIRECT over the
//! end of the file says that all was read (counts are cut to the file's size); 1.15 counts each
//! read twice, and crashes where a thread asks for the driver's properties while another does so or
//! registers a file (they take turns).
//!
//! The functions are those of NVIDIA's "cuFile API Reference Guide"; each item names its own.
//!
//! What is not here: `cuFileRDMADescStrGet`, `cuFileRDMADescStrPut` and `cuFileGetRDMAPDList`. They
//! are C++ functions that no header declares, made for cuObject's client and its kind of network
//! cards; their mangled names are no interface to rely on.

#![deny(unsafe_code)]

use std::collections::HashSet;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use fabricast_cuda::Cuda;
use fabricast_process::Owner;

mod abi;
mod batch;
mod buffer;
pub mod config_file;
mod driver;
mod error;
mod handle;
mod io;
mod parameters;
mod stats;
mod status;
mod stream;
mod stream_operation;
mod table;
mod userspace;
mod version;

pub use batch::{BatchError, BatchStatus, CuFileBatch, CuFileBatchEntry, CuFileBatchEvent, Opcode};
pub use buffer::{BufferFlags, BufferRegistration};
pub use driver::{
    ControlFlags, Driver, FeatureFlags, FileSystem, FileSystems, P2pFlags, Properties,
};
pub use error::{CallError, CuFileError, Failure, Unavailable};
pub use fabricast_process::Attempt;
pub use handle::Handle;
pub use io::IoVec;
pub use parameters::{BoolParameter, SizeParameter, Slab, SlabPool, StringParameter};
pub use stats::{
    GpuPaths, GpuStats, OpCounter, PathCounts, StatsLevel, StatsLevel1, StatsLevel2, StatsLevel3,
};
pub use status::CuFileStatus;
pub use stream::{AsyncRequest, RawStream, Stream, StreamFlags};
pub use stream_operation::{StreamOperation, StreamOutcome};
pub use table::{Capabilities, FABRICAST_CUFILE};
pub use userspace::{FsRequest, RdmaInfo, UserspaceFs};
pub use version::Version;

pub use fabricast_cuda::FABRICAST_CUDA;

use driver::DriverSlot;
use table::Library;

/// cuFile in this process: libcufile and a CUDA driver with a device.
pub struct CuFile {
    library: &'static Library,
    cuda: &'static Cuda,
    owner: Owner,
    driver: Mutex<DriverSlot>,
    /// Where the memory begins that is registered.
    registered: Mutex<HashSet<usize>>,
    /// Held while it is asked for its properties, or given a file.
    alone: Mutex<()>,
}

static CUFILE: OnceLock<CuFile> = OnceLock::new();

impl CuFile {
    /// cuFile, if it can be used: libcufile (the one that [`FABRICAST_CUFILE`] names, else the
    /// system's) and the CUDA driver are loaded, and there is a device. Opens nothing yet.
    ///
    /// That libcufile can't be loaded is kept, until [`FABRICAST_CUFILE`] names another one:
    /// looking through the system's folders for each file would take its time. CUDA is asked again.
    ///
    /// # Errors
    ///
    /// [`Unavailable`], which says in words why not.
    pub fn get() -> Result<&'static Self, Unavailable> {
        if let Some(cufile) = CUFILE.get() {
            return cufile.check_owner().map(|()| cufile);
        }
        let library = Library::load()?;
        let cuda = Cuda::ready()?;
        let cufile = CUFILE.get_or_init(|| Self {
            library,
            cuda,
            owner: Owner::current(),
            driver: Mutex::new(DriverSlot::default()),
            registered: Mutex::default(),
            alone: Mutex::default(),
        });
        cufile.check_owner().map(|()| cufile)
    }

    /// What the libcufile of this machine can do. Needs no GPU, and opens nothing.
    ///
    /// # Errors
    ///
    /// Where it can't be loaded.
    pub fn installed() -> Result<Capabilities, Unavailable> {
        Library::load().map(Library::capabilities)
    }

    /// The version of libcufile, `cuFileGetVersion`.
    pub fn version(&self) -> Version {
        self.library.version()
    }

    /// What the library can do.
    pub fn capabilities(&self) -> Capabilities {
        self.library.capabilities()
    }

    /// The path or name that the library was loaded by.
    pub fn path(&self) -> &Path {
        self.library.path()
    }

    /// Makes the primary context of a device current in this thread, where no context is:
    /// operations on GPU memory need one (`cuCtxSetCurrent`). The context is kept for the life of
    /// the process.
    ///
    /// # Errors
    ///
    /// What the CUDA driver answers.
    pub fn ensure_context(&self, ordinal: i32) -> Result<(), CuFileError> {
        self.check_owner()?;
        Ok(self.cuda.ensure_context(ordinal)?)
    }

    /// Registers a file, `cuFileHandleRegister`; opens the driver where it is not. The handle keeps
    /// the file open.
    ///
    /// cuFile may see the file through O_DIRECT or not; before 1.7 it has to be O_DIRECT. A file is
    /// registered once at a time.
    ///
    /// # Errors
    ///
    /// [`CuFileError::OpenFlag`] for O_APPEND, O_NONBLOCK, O_DIRECTORY, O_NOFOLLOW, O_NOATIME,
    /// O_TMPFILE and O_PATH, which cuFile refuses; what the driver's opening or the registration
    /// answers.
    pub fn register(&'static self, file: impl Into<Arc<OwnedFd>>) -> Result<Handle, CuFileError> {
        Handle::register(self, file.into())
    }

    /// Registers a file of a file system of the application's own,
    /// `CU_FILE_HANDLE_TYPE_USERSPACE_FS`: cuFile calls `fs` for its bytes. `name` is what errors
    /// call it.
    ///
    /// # Errors
    ///
    /// What the driver's opening or the registration answers.
    pub fn register_userspace(
        &'static self,
        name: impl AsRef<Path>,
        fs: Arc<dyn UserspaceFs>,
    ) -> Result<Handle, CuFileError> {
        Handle::register_userspace(self, name.as_ref(), fs)
    }

    /// A batch of up to `entries` operations at a time, `cuFileBatchIOSetUp`. Each keeps a `K` for
    /// its caller, the owner of its memory, say, and gives it back when it is over.
    ///
    /// # Errors
    ///
    /// [`CuFileError::Lacks`]; [`CuFileError::Value`] for more entries than
    /// [`Properties::max_batch_io_size`]; what the driver's opening or the set-up answers.
    pub fn batch<K>(&'static self, entries: u32) -> Result<CuFileBatch<K>, CuFileError> {
        CuFileBatch::set_up(self, entries)
    }

    /// # Errors
    ///
    /// [`Unavailable::Forked`] in a child of the process that started cuFile.
    fn check_owner(&self) -> Result<(), Unavailable> {
        if self.owner.is_here() {
            Ok(())
        } else {
            Err(Unavailable::Forked {
                made_by: self.owner.pid(),
            })
        }
    }

    /// A function that the library lacks.
    fn lacks(&self, function: &'static str, from: Option<&'static str>) -> CuFileError {
        CuFileError::Lacks {
            function,
            version: self.version(),
            from,
        }
    }
}

impl fmt::Debug for CuFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CuFile")
            .field("library", &self.library)
            .finish_non_exhaustive()
    }
}

/// What an answer of cuFile means.
fn check(call: &'static str, answer: abi::Answer) -> Result<(), CuFileError> {
    if answer.err == 0 {
        return Ok(());
    }
    let failure = Failure::Status {
        status: CuFileStatus(answer.err.saturating_abs()),
        cu_err: answer.cu_err,
    };
    Err(CuFileError::call(call, failure))
}

/// An offset as C has it.
fn signed(field: &'static str, bytes: u64) -> Result<i64, CuFileError> {
    i64::try_from(bytes)
        .map_err(|_| CuFileError::value(field, bytes, "bytes", "more than 2^63 - 1"))
}

/// Locks, also after another thread panicked while it held the lock: what our locks guard is whole
/// between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was leaked because cuFile may still have used it.
static LEAKED: AtomicU64 = AtomicU64::new(0);

/// How many operations, batches and registrations of this process were leaked, because they were
/// dropped while cuFile may still have used them.
pub fn leaked() -> u64 {
    LEAKED.load(Ordering::Relaxed)
}

/// Counts and reports something that was leaked.
fn count_leak(what: &'static str, count: usize) {
    LEAKED.fetch_add(count as u64, Ordering::Relaxed);
    tracing::error!(what, count, "leaked: cuFile may still use it");
}
