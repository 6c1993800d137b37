//! The loaded libcufile: the table of its functions, and which optional ones it has.
//!
//! Without the functions that every version has it is no libcufile. The others come in groups,
//! which grew from version to version; a group is there when all of its functions are, and
//! [`Capabilities`] says which are.

#![allow(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use super::abi;
use super::error::Unavailable;
use super::lock;
use super::version::Version;
use fabricast_process::{Missing, SharedObject};

/// The environment variable that names the libcufile to load instead of the system's: a path. Who
/// sets it vouches for the file, as for what `LD_LIBRARY_PATH` leads to.
pub const FABRICAST_CUFILE: &str = "FABRICAST_CUFILE";

/// What is loaded where the variable is not set, in this order. The name is the same for CUDA 12
/// and 13.
const NAMES: [&str; 2] = ["libcufile.so.0", "libcufile.so"];

/// Without these it is no libcufile.
pub(crate) struct Basic {
    pub(crate) driver_open: abi::Plain,
    pub(crate) handle_register: abi::HandleRegister,
    pub(crate) handle_deregister: abi::HandleDeregister,
    pub(crate) buf_register: abi::BufRegister,
    pub(crate) buf_deregister: abi::BufDeregister,
    pub(crate) read: abi::Read,
    pub(crate) write: abi::Write,
    /// `cuFileDriverClose_v2`, which the header makes of `cuFileDriverClose`; the old one where it
    /// is missing.
    pub(crate) driver_close: abi::Plain,
}

impl Basic {
    /// Looks the functions up. Each field's type is that of the C prototype.
    fn find(object: &SharedObject) -> Result<Self, Missing> {
        Ok(Self {
            // SAFETY: the type of the field is that of the function.
            driver_open: unsafe { object.find("cuFileDriverOpen") }?,
            // SAFETY: the type of the field is that of the function.
            handle_register: unsafe { object.find("cuFileHandleRegister") }?,
            // SAFETY: the type of the field is that of the function.
            handle_deregister: unsafe { object.find("cuFileHandleDeregister") }?,
            // SAFETY: the type of the field is that of the function.
            buf_register: unsafe { object.find("cuFileBufRegister") }?,
            // SAFETY: the type of the field is that of the function.
            buf_deregister: unsafe { object.find("cuFileBufDeregister") }?,
            // SAFETY: the type of the field is that of the function.
            read: unsafe { object.find("cuFileRead") }?,
            // SAFETY: the type of the field is that of the function.
            write: unsafe { object.find("cuFileWrite") }?,
            // SAFETY: the type of the field is that of the function.
            driver_close: match unsafe { object.find("cuFileDriverClose_v2") } {
                Ok(close) => close,
                // SAFETY: the type of the field is that of the function.
                Err(_) => unsafe { object.find("cuFileDriverClose") }?,
            },
        })
    }
}

/// The driver's properties and settings.
pub(crate) struct SettingsFunctions {
    pub(crate) get_properties: abi::GetProperties,
    pub(crate) set_poll_mode: abi::SetPollMode,
    pub(crate) set_max_direct_io_size: abi::SetSize,
    pub(crate) set_max_cache_size: abi::SetSize,
    pub(crate) set_max_pinned_mem_size: abi::SetSize,
}

impl SettingsFunctions {
    fn find(object: &SharedObject) -> Option<Self> {
        Some(Self {
            // SAFETY: the type of the field is that of the function.
            get_properties: unsafe { object.find("cuFileDriverGetProperties") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            set_poll_mode: unsafe { object.find("cuFileDriverSetPollMode") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            set_max_direct_io_size: unsafe { object.find("cuFileDriverSetMaxDirectIOSize") }
                .ok()?,
            // SAFETY: the type of the field is that of the function.
            set_max_cache_size: unsafe { object.find("cuFileDriverSetMaxCacheSize") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            set_max_pinned_mem_size: unsafe { object.find("cuFileDriverSetMaxPinnedMemSize") }
                .ok()?,
        })
    }
}

/// Several buffers in one call, from 1.19 on.
pub(crate) struct Vectors {
    pub(crate) readv: abi::Vectored,
    pub(crate) writev: abi::Vectored,
}

impl Vectors {
    fn find(object: &SharedObject) -> Option<Self> {
        Some(Self {
            // SAFETY: the type of the field is that of the function.
            readv: unsafe { object.find("cuFileReadv") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            writev: unsafe { object.find("cuFileWritev") }.ok()?,
        })
    }
}

/// Operations in the order of a CUDA stream, from 1.7 on.
pub(crate) struct Streams {
    pub(crate) read_async: abi::Async,
    pub(crate) write_async: abi::Async,
    pub(crate) register: abi::StreamRegister,
    pub(crate) deregister: abi::StreamDeregister,
}

impl Streams {
    fn find(object: &SharedObject) -> Option<Self> {
        Some(Self {
            // SAFETY: the type of the field is that of the function.
            read_async: unsafe { object.find("cuFileReadAsync") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            write_async: unsafe { object.find("cuFileWriteAsync") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            register: unsafe { object.find("cuFileStreamRegister") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            deregister: unsafe { object.find("cuFileStreamDeregister") }.ok()?,
        })
    }
}

/// Many operations in one call, from 1.6 on.
pub(crate) struct Batches {
    pub(crate) set_up: abi::BatchSetUp,
    pub(crate) submit: abi::BatchSubmit,
    pub(crate) get_status: abi::BatchGetStatus,
    pub(crate) cancel: abi::BatchCancel,
    pub(crate) destroy: abi::BatchDestroy,
}

impl Batches {
    fn find(object: &SharedObject) -> Option<Self> {
        Some(Self {
            // SAFETY: the type of the field is that of the function.
            set_up: unsafe { object.find("cuFileBatchIOSetUp") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            submit: unsafe { object.find("cuFileBatchIOSubmit") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            get_status: unsafe { object.find("cuFileBatchIOGetStatus") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            cancel: unsafe { object.find("cuFileBatchIOCancel") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            destroy: unsafe { object.find("cuFileBatchIODestroy") }.ok()?,
        })
    }
}

/// What cufile.json sets, by code; from 1.14 on.
pub(crate) struct Parameters {
    pub(crate) get_size: abi::GetParameterSize,
    pub(crate) set_size: abi::SetParameterSize,
    pub(crate) get_bool: abi::GetParameterBool,
    pub(crate) set_bool: abi::SetParameterBool,
    pub(crate) get_string: abi::GetParameterString,
    pub(crate) set_string: abi::SetParameterString,
}

impl Parameters {
    fn find(object: &SharedObject) -> Option<Self> {
        Some(Self {
            // SAFETY: the type of the field is that of the function.
            get_size: unsafe { object.find("cuFileGetParameterSizeT") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            set_size: unsafe { object.find("cuFileSetParameterSizeT") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            get_bool: unsafe { object.find("cuFileGetParameterBool") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            set_bool: unsafe { object.find("cuFileSetParameterBool") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            get_string: unsafe { object.find("cuFileGetParameterString") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            set_string: unsafe { object.find("cuFileSetParameterString") }.ok()?,
        })
    }
}

/// The sizes and counts of a pool of buffers, from 1.15 on; for GPU memory from 1.17 on.
pub(crate) struct Slabs {
    pub(crate) get: abi::GetSlabs,
    pub(crate) set: abi::SetSlabs,
}

impl Slabs {
    fn posix(object: &SharedObject) -> Option<Self> {
        Some(Self {
            // SAFETY: the type of the field is that of the function.
            get: unsafe { object.find("cuFileGetParameterPosixPoolSlabArray") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            set: unsafe { object.find("cuFileSetParameterPosixPoolSlabArray") }.ok()?,
        })
    }

    fn gpu(object: &SharedObject) -> Option<Self> {
        Some(Self {
            // SAFETY: the type of the field is that of the function.
            get: unsafe { object.find("cuFileGetParameterGpuBounceBufferSlabArray") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            set: unsafe { object.find("cuFileSetParameterGpuBounceBufferSlabArray") }.ok()?,
        })
    }
}

/// Counters, from 1.15 on.
pub(crate) struct Statistics {
    pub(crate) get_level: abi::GetInt,
    pub(crate) set_level: abi::SetInt,
    pub(crate) start: abi::Plain,
    pub(crate) stop: abi::Plain,
    pub(crate) reset: abi::Plain,
    pub(crate) get_l1: abi::GetStats,
    pub(crate) get_l2: abi::GetStats,
    pub(crate) get_l3: abi::GetStats,
}

impl Statistics {
    fn find(object: &SharedObject) -> Option<Self> {
        Some(Self {
            // SAFETY: the type of the field is that of the function.
            get_level: unsafe { object.find("cuFileGetStatsLevel") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            set_level: unsafe { object.find("cuFileSetStatsLevel") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            start: unsafe { object.find("cuFileStatsStart") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            stop: unsafe { object.find("cuFileStatsStop") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            reset: unsafe { object.find("cuFileStatsReset") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            get_l1: unsafe { object.find("cuFileGetStatsL1") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            get_l2: unsafe { object.find("cuFileGetStatsL2") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            get_l3: unsafe { object.find("cuFileGetStatsL3") }.ok()?,
        })
    }
}

/// How a file system's bytes reach a GPU, from 1.17 on.
pub(crate) struct P2p {
    pub(crate) get_flags: abi::GetP2pFlags,
    pub(crate) set_flags: abi::SetP2pFlags,
}

impl P2p {
    fn find(object: &SharedObject) -> Option<Self> {
        Some(Self {
            // SAFETY: the type of the field is that of the function.
            get_flags: unsafe { object.find("cuFileDriverGetP2PFlags") }.ok()?,
            // SAFETY: the type of the field is that of the function.
            set_flags: unsafe { object.find("cuFileDriverSetP2PFlags") }.ok()?,
        })
    }
}

/// The loaded libcufile. There is one for the process, and it is never unloaded: it leaves threads
/// and exit handlers behind.
pub(crate) struct Library {
    path: PathBuf,
    version: Version,
    pub(crate) basic: Basic,
    pub(crate) use_count: Option<abi::UseCount>,
    pub(crate) settings: Option<SettingsFunctions>,
    pub(crate) vectors: Option<Vectors>,
    pub(crate) streams: Option<Streams>,
    pub(crate) batches: Option<Batches>,
    pub(crate) parameters: Option<Parameters>,
    pub(crate) get_parameter_limits: Option<abi::GetParameterLimits>,
    pub(crate) posix_slabs: Option<Slabs>,
    pub(crate) gpu_slabs: Option<Slabs>,
    pub(crate) statistics: Option<Statistics>,
    pub(crate) get_bar_size: Option<abi::GetBarSize>,
    pub(crate) export_topology: Option<abi::ExportTopology>,
    pub(crate) p2p: Option<P2p>,
}

impl Library {
    /// The library of this process, loaded by the first call. A failure is kept as long as the
    /// environment names the same library.
    ///
    /// Loading alone opens nothing and needs no GPU.
    pub(crate) fn load() -> Result<&'static Self, Unavailable> {
        static LOADED: OnceLock<&'static Library> = OnceLock::new();
        static FAILED: Mutex<Option<(Option<OsString>, Unavailable)>> = Mutex::new(None);
        if let Some(&library) = LOADED.get() {
            return Ok(library);
        }
        let mut failed = lock(&FAILED);
        if let Some(&library) = LOADED.get() {
            return Ok(library);
        }
        let named = env::var_os(FABRICAST_CUFILE);
        if let Some((_, why)) = failed.as_ref().filter(|(before, _)| *before == named) {
            return Err(why.clone());
        }
        // SAFETY: the names are those of NVIDIA's library, trusted as one that is linked.
        let opened = unsafe { SharedObject::open_first(FABRICAST_CUFILE, &NAMES) };
        let opened = opened.map_err(|tried| Unavailable::Library { tried });
        match opened.and_then(|object| Self::find(&object)) {
            Ok(library) => Ok(LOADED.get_or_init(|| Box::leak(Box::new(library)))),
            Err(why) => {
                *failed = Some((named, why.clone()));
                Err(why)
            }
        }
    }

    fn find(object: &SharedObject) -> Result<Self, Unavailable> {
        let basic = Basic::find(object);
        // SAFETY: the type is that of the function.
        let get_version = unsafe { object.find::<abi::GetInt>("cuFileGetVersion") }.ok();
        let library = basic.map(|basic| Self {
            basic,
            version: Version::ask(get_version),
            // SAFETY: the type of the field is that of the function.
            use_count: unsafe { object.find("cuFileUseCount") }.ok(),
            settings: SettingsFunctions::find(object),
            vectors: Vectors::find(object),
            streams: Streams::find(object),
            batches: Batches::find(object),
            parameters: Parameters::find(object),
            // SAFETY: the type of the field is that of the function.
            get_parameter_limits: unsafe { object.find("cuFileGetParameterMinMaxValue") }.ok(),
            posix_slabs: Slabs::posix(object),
            gpu_slabs: Slabs::gpu(object),
            statistics: Statistics::find(object),
            // SAFETY: the type of the field is that of the function.
            get_bar_size: unsafe { object.find("cuFileGetBARSizeInKB") }.ok(),
            // SAFETY: the type of the field is that of the function.
            export_topology: unsafe { object.find("cuFileExportPCIeTopology") }.ok(),
            p2p: P2p::find(object),
            path: object.path().to_owned(),
        });
        library.map_err(|Missing { symbol, reason }| Unavailable::Broken {
            path: object.path().to_owned(),
            symbol,
            reason,
        })
    }

    /// The path or name that it was loaded by.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn version(&self) -> Version {
        self.version
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        Capabilities {
            version: self.version,
            use_count: self.use_count.is_some(),
            settings: self.settings.is_some(),
            vectored: self.vectors.is_some(),
            streams: self.streams.is_some(),
            batches: self.batches.is_some(),
            parameters: self.parameters.is_some(),
            parameter_limits: self.get_parameter_limits.is_some(),
            posix_slabs: self.posix_slabs.is_some(),
            gpu_slabs: self.gpu_slabs.is_some(),
            statistics: self.statistics.is_some(),
            bar_size: self.get_bar_size.is_some(),
            pcie_topology: self.export_topology.is_some(),
            p2p_flags: self.p2p.is_some(),
        }
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library")
            .field("path", &self.path)
            .field("capabilities", &self.capabilities())
            .finish_non_exhaustive()
    }
}

/// What the loaded libcufile can do: each field is a group of functions, there or not.
///
/// Whether an operation then *works* depends on the machine, too: [`Properties`](super::Properties)
/// and the call itself say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The version of the library.
    pub version: Version,
    /// `cuFileUseCount`.
    pub use_count: bool,
    /// `cuFileDriverGetProperties`, `SetPollMode`, `SetMaxDirectIOSize`, `SetMaxCacheSize`,
    /// `SetMaxPinnedMemSize`.
    pub settings: bool,
    /// `cuFileReadv`, `cuFileWritev`: from 1.19 on.
    pub vectored: bool,
    /// `cuFileReadAsync`, `WriteAsync`, `StreamRegister`, `StreamDeregister`.
    pub streams: bool,
    /// `cuFileBatchIOSetUp`, `Submit`, `GetStatus`, `Cancel`, `Destroy`.
    pub batches: bool,
    /// `cuFileGetParameter…`, `cuFileSetParameter…`: from 1.14 on.
    pub parameters: bool,
    /// `cuFileGetParameterMinMaxValue`: from 1.15 on.
    pub parameter_limits: bool,
    /// `cuFileGetParameterPosixPoolSlabArray` and its setter: from 1.15 on.
    pub posix_slabs: bool,
    /// `cuFileGetParameterGpuBounceBufferSlabArray` and its setter: from 1.17 on.
    pub gpu_slabs: bool,
    /// `cuFileStatsStart`, `Stop`, `Reset`, `cuFileGetStatsL1` to `L3`, the level: from 1.15 on.
    pub statistics: bool,
    /// `cuFileGetBARSizeInKB`: from 1.15 on.
    pub bar_size: bool,
    /// `cuFileExportPCIeTopology`: from 1.17 on.
    pub pcie_topology: bool,
    /// `cuFileDriverGetP2PFlags` and its setter: from 1.17 on.
    pub p2p_flags: bool,
}
