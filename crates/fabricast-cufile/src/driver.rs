//! `Driver`: cuFile's driver, open; its properties, and what is set before or after it is opened.

#![allow(unsafe_code)]

use std::ffi::{CString, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::abi::{DrvProps, SetSize};
use super::error::CuFileError;
use super::status::CuFileStatus;
use super::table::SettingsFunctions;
use super::version::Version;
use super::{CuFile, check, lock};

/// The unit of cuFile's settings, and what they have to be a multiple of.
const ALIGNMENT_KB: usize = 4;
/// What nvidia-fs takes as its largest operation.
const DIRECT_IO_KB: (usize, usize) = (64, 16 * 1024);
/// The properties count in 32 bits.
const SIZE_KB_MAX: usize = u32::MAX as usize / ALIGNMENT_KB * ALIGNMENT_KB;

/// Whether the driver is open, and who uses it.
#[derive(Debug, Default)]
pub(super) struct DriverSlot {
    open: Option<Arc<Open>>,
}

/// The driver was opened. Every user holds one of these.
#[derive(Debug)]
struct Open {
    /// False where somebody else in this process had opened it: then it is not ours to close.
    ours: bool,
    /// Whether it can only copy, once that was asked.
    only_copies: OnceLock<bool>,
}

/// cuFile's driver, open. A clone is another user of it.
///
/// Dropping it closes nothing: [`CuFile::close_driver`] does, once nobody uses it.
#[derive(Clone, Debug)]
pub struct Driver {
    cufile: &'static CuFile,
    open: Arc<Open>,
}

impl CuFile {
    /// The driver, opened by the first call, `cuFileDriverOpen`: that takes about half a second,
    /// writes `cufile.log` into the working directory (unless CUFILE_LOGFILE_PATH says otherwise),
    /// and may write to standard output.
    ///
    /// # Errors
    ///
    /// What opening it answers.
    pub fn driver(&'static self) -> Result<Driver, CuFileError> {
        self.check_owner()?;
        let mut slot = lock(&self.driver);
        let open = match &slot.open {
            Some(open) => Arc::clone(open),
            None => {
                // SAFETY: takes nothing. A `CuFile` exists, so a CUDA device does: it returns.
                let answer = unsafe { (self.library.basic.driver_open)() };
                let ours = match check("cuFileDriverOpen", answer) {
                    Ok(()) => true,
                    Err(error) if error.status() == Some(CuFileStatus::DRIVER_ALREADY_OPEN) => {
                        false
                    }
                    Err(error) => return Err(error),
                };
                tracing::info!(
                    version = %self.version(),
                    path = %self.path().display(),
                    ours,
                    "cuFile's driver is open"
                );
                let only_copies = OnceLock::new();
                Arc::clone(slot.open.insert(Arc::new(Open { ours, only_copies })))
            }
        };
        Ok(Driver { cufile: self, open })
    }

    /// Whether this library holds the driver open.
    pub fn is_driver_open(&self) -> bool {
        lock(&self.driver).open.is_some()
    }

    /// Closes the driver, `cuFileDriverClose`, once nobody uses it. It may be opened again. Nothing
    /// happens where it is not open, or was open before this library asked for it.
    ///
    /// # Errors
    ///
    /// [`CuFileError::InUse`] while there is a [`Driver`], or a handle, registration, stream or
    /// batch that holds one; what closing answers.
    pub fn close_driver(&self) -> Result<(), CuFileError> {
        self.check_owner()?;
        let mut slot = lock(&self.driver);
        let Some(open) = &slot.open else {
            return Ok(());
        };
        // New users come from this slot, under its lock, or from other users: with none, there is
        // none to come.
        let users = Arc::strong_count(open) - 1;
        if users > 0 {
            return Err(CuFileError::InUse { users });
        }
        if open.ours {
            // SAFETY: takes nothing; no handle, registration or operation of ours is left.
            let answer = unsafe { (self.library.basic.driver_close)() };
            check("cuFileDriverClose", answer)?;
        }
        slot.open = None;
        Ok(())
    }

    /// How many have opened the driver in this process, `cuFileUseCount`. None where the library
    /// has no such function.
    pub fn use_count(&self) -> Option<i64> {
        let use_count = self.library.use_count?;
        // SAFETY: takes nothing and reads a counter.
        Some(unsafe { use_count() })
    }

    /// Whether reads and writes of up to `threshold_kb` poll for their end,
    /// `cuFileDriverSetPollMode`; `properties.use_poll_mode` and `poll_max_size_kb` of cufile.json.
    /// A multiple of 4 KiB; by default 4.
    ///
    /// Up to 1.15 it is set while the driver is open, from then on before it is opened: see
    /// [`settings_before_open`](Self::settings_before_open).
    ///
    /// # Errors
    ///
    /// [`CuFileError::Value`] where the value or the moment is wrong; what the call answers.
    pub fn set_poll_mode(&self, poll: bool, threshold_kb: usize) -> Result<(), CuFileError> {
        let settings = self.settings(
            "poll_threshold_kb",
            threshold_kb,
            (ALIGNMENT_KB, SIZE_KB_MAX),
        )?;
        // SAFETY: takes two values.
        let answer = unsafe { (settings.set_poll_mode)(poll, threshold_kb) };
        check("cuFileDriverSetPollMode", answer)
    }

    /// The largest operation that nvidia-fs gets, or in compatibility mode a read or write of
    /// POSIX, `cuFileDriverSetMaxDirectIOSize`: 64 KiB to 16384 KiB, a multiple of 4; by
    /// default 16384. When: as for [`set_poll_mode`](Self::set_poll_mode).
    ///
    /// # Errors
    ///
    /// As for [`set_poll_mode`](Self::set_poll_mode).
    pub fn set_max_direct_io_size_kb(&self, size_kb: usize) -> Result<(), CuFileError> {
        let settings = self.settings("max_direct_io_size_kb", size_kb, DIRECT_IO_KB)?;
        let call = "cuFileDriverSetMaxDirectIOSize";
        set(call, settings.set_max_direct_io_size, size_kb)
    }

    /// The most GPU memory that cuFile takes for its own buffers, for each device,
    /// `cuFileDriverSetMaxCacheSize`: a multiple of 4 KiB; by default 131072. When: as for
    /// [`set_poll_mode`](Self::set_poll_mode).
    ///
    /// # Errors
    ///
    /// As for [`set_poll_mode`](Self::set_poll_mode).
    pub fn set_max_cache_size_kb(&self, size_kb: usize) -> Result<(), CuFileError> {
        let settings = self.settings("max_cache_size_kb", size_kb, (ALIGNMENT_KB, SIZE_KB_MAX))?;
        let call = "cuFileDriverSetMaxCacheSize";
        set(call, settings.set_max_cache_size, size_kb)
    }

    /// The most memory that may be pinned for registrations, `cuFileDriverSetMaxPinnedMemSize`: a
    /// multiple of 4 KiB, or `None` for no limit; by default all of the device's. When: as for
    /// [`set_poll_mode`](Self::set_poll_mode).
    ///
    /// # Errors
    ///
    /// As for [`set_poll_mode`](Self::set_poll_mode).
    pub fn set_max_pinned_mem_size_kb(&self, size_kb: Option<usize>) -> Result<(), CuFileError> {
        let checked = size_kb.unwrap_or(ALIGNMENT_KB);
        let settings = self.settings(
            "max_pinned_mem_size_kb",
            checked,
            (ALIGNMENT_KB, SIZE_KB_MAX),
        )?;
        let call = "cuFileDriverSetMaxPinnedMemSize";
        set(
            call,
            settings.set_max_pinned_mem_size,
            size_kb.unwrap_or(usize::MAX),
        )
    }

    /// Whether this version takes settings before its driver is opened (and then ignores them), or
    /// only after that.
    pub fn settings_before_open(&self) -> bool {
        self.version() >= Version::SETTINGS_BEFORE_OPEN
    }

    /// The functions for settings, if this value in KiB may be set now.
    fn settings(
        &self,
        field: &'static str,
        value_kb: usize,
        (min, max): (usize, usize),
    ) -> Result<&'static SettingsFunctions, CuFileError> {
        self.check_owner()?;
        let settings = self.library.settings.as_ref();
        let settings = settings.ok_or_else(|| self.lacks("cuFileDriverSetPollMode", None))?;
        if !(min..=max).contains(&value_kb) || !value_kb.is_multiple_of(ALIGNMENT_KB) {
            let reason = format!("it has to be {min} to {max}, and a multiple of {ALIGNMENT_KB}");
            return Err(CuFileError::value(field, value_kb, "KiB", reason));
        }
        match (self.settings_before_open(), self.is_driver_open()) {
            (true, true) => Err(CuFileError::value(
                field,
                value_kb,
                "KiB",
                "this version of libcufile takes it only before the driver is opened",
            )),
            (false, false) => Err(CuFileError::value(
                field,
                value_kb,
                "KiB",
                "this version of libcufile takes it only while the driver is open (CuFile::driver)",
            )),
            _ => Ok(settings),
        }
    }
}

fn set(call: &'static str, setter: SetSize, size_kb: usize) -> Result<(), CuFileError> {
    // SAFETY: takes one value.
    check(call, unsafe { setter(size_kb) })
}

impl Driver {
    /// Who it belongs to.
    pub fn cufile(&self) -> &'static CuFile {
        self.cufile
    }

    /// The properties, `cuFileDriverGetProperties`.
    ///
    /// # Errors
    ///
    /// [`CuFileError::Lacks`], or what the call answers.
    pub fn properties(&self) -> Result<Properties, CuFileError> {
        let settings = self.cufile.library.settings.as_ref();
        let get = settings
            .ok_or_else(|| self.cufile.lacks("cuFileDriverGetProperties", None))?
            .get_properties;
        let mut raw = DrvProps::default();
        let alone = lock(&self.cufile.alone);
        // SAFETY: writes one struct, which is ours and has the size of the C one in all versions.
        let answer = unsafe { get(&raw mut raw) };
        drop(alone);
        check("cuFileDriverGetProperties", answer)?;
        Ok(Properties::of(&raw))
    }

    /// Whether it can do nothing but copy through the host's memory: it has neither nvidia-fs nor
    /// PCI P2PDMA. Asked once, before the first file that asks is read or written.
    pub fn only_copies(&self) -> bool {
        let ask = || {
            let properties = self.properties();
            properties.is_ok_and(|it| !it.has_nvfs() && !it.features.contains(FeatureFlags::P2P))
        };
        *self.open.only_copies.get_or_init(ask)
    }

    /// The size of a GPU's BAR in KiB, `cuFileGetBARSizeInKB`.
    ///
    /// # Errors
    ///
    /// [`CuFileError::Lacks`], or what the call answers.
    pub fn bar_size_kb(&self, gpu: i32) -> Result<usize, CuFileError> {
        let get = self.cufile.library.get_bar_size;
        let lacks = || self.cufile.lacks("cuFileGetBARSizeInKB", Some("1.15"));
        let get = get.ok_or_else(lacks)?;
        let mut size_kb = 0;
        // SAFETY: writes one number, which is ours.
        check("cuFileGetBARSizeInKB", unsafe {
            get(gpu, &raw mut size_kb)
        })?;
        Ok(size_kb)
    }

    /// By which ways the bytes of that kind of file system reach a GPU, `cuFileDriverGetP2PFlags`.
    ///
    /// # Errors
    ///
    /// [`CuFileError::Lacks`], or what the call answers.
    pub fn p2p_flags(&self, of: FileSystem) -> Result<P2pFlags, CuFileError> {
        let p2p = self.cufile.library.p2p.as_ref();
        let lacks = || self.cufile.lacks("cuFileDriverGetP2PFlags", Some("1.17"));
        let get = p2p.ok_or_else(lacks)?.get_flags;
        let mut flags = 0;
        // SAFETY: writes one number, which is ours.
        check("cuFileDriverGetP2PFlags", unsafe {
            get(of.0, &raw mut flags)
        })?;
        Ok(P2pFlags::from_bits_retain(flags))
    }

    /// Chooses the ways, `cuFileDriverSetP2PFlags`. cuFile takes [`P2pFlags::PCI_P2PDMA`] on x86-64
    /// and [`P2pFlags::C2C`] on Arm, and no others.
    ///
    /// # Errors
    ///
    /// [`CuFileError::Lacks`], or what the call answers.
    pub fn set_p2p_flags(&self, of: FileSystem, flags: P2pFlags) -> Result<(), CuFileError> {
        let p2p = self.cufile.library.p2p.as_ref();
        let lacks = || self.cufile.lacks("cuFileDriverSetP2PFlags", Some("1.17"));
        let set = p2p.ok_or_else(lacks)?.set_flags;
        // SAFETY: takes two values.
        check("cuFileDriverSetP2PFlags", unsafe {
            set(of.0, flags.bits())
        })
    }

    /// Writes the PCIe topology that cuFile has found into a file, as JSON,
    /// `cuFileExportPCIeTopology`.
    ///
    /// # Errors
    ///
    /// [`CuFileError::Lacks`], [`CuFileError::Value`] for a path with a zero byte, or what the call
    /// answers.
    pub fn export_pcie_topology(&self, into: &Path) -> Result<(), CuFileError> {
        let export = self.cufile.library.export_topology;
        let lacks = || self.cufile.lacks("cuFileExportPCIeTopology", Some("1.17"));
        let export = export.ok_or_else(lacks)?;
        let name = CString::new(into.as_os_str().as_bytes())
            .map_err(|_| CuFileError::value("path", into.display(), "", "it has a zero byte"))?;
        // SAFETY: the text lives until the call is over.
        let answer = unsafe { export(name.as_ptr()) };
        check("cuFileExportPCIeTopology", answer).map_err(|error| error.at(into, None))
    }
}

/// The driver's properties, `CUfileDrvProps_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Properties {
    /// The version of nvidia-fs, major and minor; 0 and 0 where it is not loaded: then nothing goes
    /// GPU-direct by it.
    pub nvfs_version: (u32, u32),
    /// Operations of up to that many KiB poll, where polling is on.
    pub poll_threshold_kb: usize,
    /// The largest operation that nvidia-fs gets, in KiB.
    pub max_direct_io_size_kb: usize,
    /// File systems that GPUDirect Storage works with here.
    pub file_systems: FileSystems,
    /// What is switched on.
    pub control: ControlFlags,
    /// What the library can do.
    pub features: FeatureFlags,
    /// The most GPU memory for buffers of cuFile's own, for each device, in KiB.
    pub max_device_cache_size_kb: u32,
    /// The size of one of those buffers, in KiB.
    pub per_buffer_cache_size_kb: u32,
    /// The most memory that may be pinned, in KiB.
    pub max_device_pinned_mem_size_kb: u32,
    /// The most entries of a batch.
    pub max_batch_io_size: u32,
    /// How long an entry of a batch may take, in milliseconds.
    pub max_batch_io_timeout_ms: u32,
}

impl Properties {
    fn of(raw: &DrvProps) -> Self {
        Self {
            nvfs_version: (raw.nvfs.major_version, raw.nvfs.minor_version),
            poll_threshold_kb: raw.nvfs.poll_thresh_size,
            max_direct_io_size_kb: raw.nvfs.max_direct_io_size,
            file_systems: FileSystems::from_bits_retain(raw.nvfs.dstatusflags),
            control: ControlFlags::from_bits_retain(raw.nvfs.dcontrolflags),
            features: FeatureFlags::from_bits_retain(raw.fflags),
            max_device_cache_size_kb: raw.max_device_cache_size,
            per_buffer_cache_size_kb: raw.per_buffer_cache_size,
            max_device_pinned_mem_size_kb: raw.max_device_pinned_mem_size,
            max_batch_io_size: raw.max_batch_io_size,
            max_batch_io_timeout_ms: raw.max_batch_io_timeout_msecs,
        }
    }

    /// Whether nvidia-fs is loaded.
    pub fn has_nvfs(&self) -> bool {
        self.nvfs_version != (0, 0)
    }
}

/// A kind of file system or device, `CUfileDriverStatusFlags`: a position in [`FileSystems`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileSystem(pub c_int);

impl FileSystem {
    /// `CU_FILE_LUSTRE_SUPPORTED`.
    pub const LUSTRE: Self = Self(0);
    /// `CU_FILE_WEKAFS_SUPPORTED`.
    pub const WEKAFS: Self = Self(1);
    /// `CU_FILE_NFS_SUPPORTED`.
    pub const NFS: Self = Self(2);
    /// `CU_FILE_GPFS_SUPPORTED`.
    pub const GPFS: Self = Self(3);
    /// `CU_FILE_NVME_SUPPORTED`.
    pub const NVME: Self = Self(4);
    /// `CU_FILE_NVMEOF_SUPPORTED`.
    pub const NVMEOF: Self = Self(5);
    /// `CU_FILE_SCSI_SUPPORTED`.
    pub const SCSI: Self = Self(6);
    /// `CU_FILE_SCALEFLUX_CSD_SUPPORTED`.
    pub const SCALEFLUX_CSD: Self = Self(7);
    /// `CU_FILE_NVMESH_SUPPORTED`.
    pub const NVMESH: Self = Self(8);
    /// `CU_FILE_BEEGFS_SUPPORTED`.
    pub const BEEGFS: Self = Self(9);
    /// `CU_FILE_NVME_P2P_SUPPORTED`, which later versions advise against.
    pub const NVME_P2P: Self = Self(11);
    /// `CU_FILE_SCATEFS_SUPPORTED`.
    pub const SCATEFS: Self = Self(12);
    /// `CU_FILE_VIRTIOFS_SUPPORTED`.
    pub const VIRTIOFS: Self = Self(13);
    /// `CU_FILE_PANFS_SUPPORTED`.
    pub const PANFS: Self = Self(14);
}

bitflags::bitflags! {
    /// File systems and devices that GPUDirect Storage works with on this machine. Bits that are
    /// not named are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct FileSystems: u32 {
        /// DDN EXAScaler (Lustre).
        const LUSTRE = 1 << 0;
        /// WekaFS.
        const WEKAFS = 1 << 1;
        /// NFS.
        const NFS = 1 << 2;
        /// IBM Spectrum Scale.
        const GPFS = 1 << 3;
        /// NVMe.
        const NVME = 1 << 4;
        /// NVMe over Fabrics.
        const NVMEOF = 1 << 5;
        /// SCSI.
        const SCSI = 1 << 6;
        /// ScaleFlux CSD.
        const SCALEFLUX_CSD = 1 << 7;
        /// NVMesh.
        const NVMESH = 1 << 8;
        /// BeeGFS.
        const BEEGFS = 1 << 9;
        /// NVMe by PCI P2PDMA; later versions advise against asking for it.
        const NVME_P2P = 1 << 11;
        /// ScateFS.
        const SCATEFS = 1 << 12;
        /// virtiofs.
        const VIRTIOFS = 1 << 13;
        /// PanFS.
        const PANFS = 1 << 14;
        const _ = !0;
    }

    /// What is switched on, `CUfileDriverControlFlags`. Bits that are not named are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct ControlFlags: u32 {
        /// `CU_FILE_USE_POLL_MODE`.
        const USE_POLL_MODE = 1 << 0;
        /// `CU_FILE_ALLOW_COMPAT_MODE`: files that have no GPUDirect Storage are read and written
        /// by POSIX.
        const ALLOW_COMPAT_MODE = 1 << 1;
        /// `CU_FILE_POSIX_IO_MODE`.
        const POSIX_IO_MODE = 1 << 2;
        /// `CU_FILE_FALLBACK_IO_MODE`.
        const FALLBACK_IO_MODE = 1 << 4;
        const _ = !0;
    }

    /// What the library can do, `CUfileFeatureFlags`. Bits that are not named are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct FeatureFlags: u32 {
        /// `CU_FILE_DYN_ROUTING_SUPPORTED`.
        const DYN_ROUTING = 1 << 0;
        /// `CU_FILE_BATCH_IO_SUPPORTED`.
        const BATCH_IO = 1 << 1;
        /// `CU_FILE_STREAMS_SUPPORTED`.
        const STREAMS = 1 << 2;
        /// `CU_FILE_PARALLEL_IO_SUPPORTED`.
        const PARALLEL_IO = 1 << 3;
        /// `CU_FILE_P2P_SUPPORTED`.
        const P2P = 1 << 4;
        const _ = !0;
    }

    /// Ways by which bytes reach a GPU, `CUfileP2PFlags`. Bits that are not named are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct P2pFlags: c_int {
        /// `CU_FILE_P2P_FLAG_PCI_P2PDMA`.
        const PCI_P2PDMA = 1 << 0;
        /// `CU_FILE_P2P_FLAG_NVFS`.
        const NVFS = 1 << 1;
        /// `CU_FILE_P2P_FLAG_DMABUF`.
        const DMABUF = 1 << 2;
        /// `CU_FILE_P2P_FLAG_C2C`.
        const C2C = 1 << 3;
        /// `CUFILE_NVIDIA_PEERMEM`, of IBM Spectrum Scale and WekaFS alone.
        const NVIDIA_PEERMEM = 1 << 4;
        const _ = !0;
    }
}
