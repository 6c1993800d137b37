//! `CuFileStatus`: the codes of cuFile, what they mean, and what can be done about them.

use std::fmt;

use super::version::Version;

/// The base of cuFile's own error codes, `CUFILEOP_BASE_ERR`.
pub(crate) const BASE: i32 = 5000;

/// A status of cuFile, a `CUfileOpError`: 0, or a code above 5000 (6001 and 6002 for RDMA).
///
/// Never an enum: a library may answer a code that this one has never heard of.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CuFileStatus(pub i32);

/// One row of the table of codes.
struct Row {
    code: i32,
    name: &'static str,
    meaning: &'static str,
}

const fn row(code: i32, name: &'static str, meaning: &'static str) -> Row {
    Row {
        code,
        name,
        meaning,
    }
}

/// All codes up to 1.20. 5021 and 5032 were never given out.
const ROWS: &[Row] = &[
    row(0, "CU_FILE_SUCCESS", "success"),
    row(
        5001,
        "CU_FILE_DRIVER_NOT_INITIALIZED",
        "the driver is not open, or nvidia-fs is not loaded",
    ),
    row(5002, "CU_FILE_DRIVER_INVALID_PROPS", "invalid property"),
    row(
        5003,
        "CU_FILE_DRIVER_UNSUPPORTED_LIMIT",
        "a property is out of its range",
    ),
    row(
        5004,
        "CU_FILE_DRIVER_VERSION_MISMATCH",
        "nvidia-fs does not fit this libcufile",
    ),
    row(
        5005,
        "CU_FILE_DRIVER_VERSION_READ_ERROR",
        "the version of nvidia-fs can't be read",
    ),
    row(5006, "CU_FILE_DRIVER_CLOSING", "the driver is being closed"),
    row(
        5007,
        "CU_FILE_PLATFORM_NOT_SUPPORTED",
        "this platform has no GPUDirect Storage",
    ),
    row(
        5008,
        "CU_FILE_IO_NOT_SUPPORTED",
        "this file has no GPUDirect Storage",
    ),
    row(
        5009,
        "CU_FILE_DEVICE_NOT_SUPPORTED",
        "this GPU has no GPUDirect Storage",
    ),
    row(5010, "CU_FILE_NVFS_DRIVER_ERROR", "nvidia-fs failed"),
    row(5011, "CU_FILE_CUDA_DRIVER_ERROR", "the CUDA driver failed"),
    row(5012, "CU_FILE_CUDA_POINTER_INVALID", "not a device pointer"),
    row(
        5013,
        "CU_FILE_CUDA_MEMORY_TYPE_INVALID",
        "memory of a kind that can't be used",
    ),
    row(
        5014,
        "CU_FILE_CUDA_POINTER_RANGE_ERROR",
        "the range leaves the allocation",
    ),
    row(
        5015,
        "CU_FILE_CUDA_CONTEXT_MISMATCH",
        "the memory is of another CUDA context",
    ),
    row(
        5016,
        "CU_FILE_INVALID_MAPPING_SIZE",
        "more than may be pinned",
    ),
    row(
        5017,
        "CU_FILE_INVALID_MAPPING_RANGE",
        "the range leaves what is registered",
    ),
    row(
        5018,
        "CU_FILE_INVALID_FILE_TYPE",
        "a file of a kind that can't be used",
    ),
    row(
        5019,
        "CU_FILE_INVALID_FILE_OPEN_FLAG",
        "the file was opened with a flag that can't be used",
    ),
    row(
        5020,
        "CU_FILE_DIO_NOT_SET",
        "the file was opened without O_DIRECT",
    ),
    row(5022, "CU_FILE_INVALID_VALUE", "invalid argument"),
    row(
        5023,
        "CU_FILE_MEMORY_ALREADY_REGISTERED",
        "the memory is registered already",
    ),
    row(
        5024,
        "CU_FILE_MEMORY_NOT_REGISTERED",
        "the memory is not registered",
    ),
    row(
        5025,
        "CU_FILE_PERMISSION_DENIED",
        "the driver or the file may not be used",
    ),
    row(
        5026,
        "CU_FILE_DRIVER_ALREADY_OPEN",
        "the driver is open already",
    ),
    row(
        5027,
        "CU_FILE_HANDLE_NOT_REGISTERED",
        "the file is not registered, or can't be",
    ),
    row(
        5028,
        "CU_FILE_HANDLE_ALREADY_REGISTERED",
        "the file is registered already",
    ),
    row(5029, "CU_FILE_DEVICE_NOT_FOUND", "no GPU was found"),
    row(5030, "CU_FILE_INTERNAL_ERROR", "internal error"),
    row(
        5031,
        "CU_FILE_GETNEWFD_FAILED",
        "no new file descriptor could be had",
    ),
    row(
        5033,
        "CU_FILE_NVFS_SETUP_ERROR",
        "nvidia-fs could not be set up",
    ),
    row(
        5034,
        "CU_FILE_IO_DISABLED",
        "the configuration forbids GPUDirect Storage for this file",
    ),
    row(
        5035,
        "CU_FILE_BATCH_SUBMIT_FAILED",
        "the batch could not be submitted",
    ),
    row(
        5036,
        "CU_FILE_GPU_MEMORY_PINNING_FAILED",
        "GPU memory could not be pinned",
    ),
    row(5037, "CU_FILE_BATCH_FULL", "the batch is full"),
    row(
        5038,
        "CU_FILE_ASYNC_NOT_SUPPORTED",
        "no operations on streams",
    ),
    row(
        5039,
        "CU_FILE_INTERNAL_BATCH_SETUP_ERROR",
        "internal error at the set-up of a batch",
    ),
    row(
        5040,
        "CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR",
        "internal error at the submission of a batch",
    ),
    row(
        5041,
        "CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR",
        "internal error at the status of a batch",
    ),
    row(
        5042,
        "CU_FILE_INTERNAL_BATCH_CANCEL_ERROR",
        "internal error at the cancelling of a batch",
    ),
    row(5043, "CU_FILE_NOMEM_ERROR", "out of memory"),
    row(5044, "CU_FILE_IO_ERROR", "input or output failed"),
    row(
        5045,
        "CU_FILE_INTERNAL_BUF_REGISTER_ERROR",
        "internal error at a registration of memory",
    ),
    row(5046, "CU_FILE_HASH_OPR_ERROR", "internal error of a table"),
    row(
        5047,
        "CU_FILE_INVALID_CONTEXT_ERROR",
        "no CUDA context is current, or an invalid one",
    ),
    row(
        5048,
        "CU_FILE_NVFS_INTERNAL_DRIVER_ERROR",
        "internal error of nvidia-fs",
    ),
    row(
        5049,
        "CU_FILE_BATCH_NOCOMPAT_ERROR",
        "the batch needs compatibility mode, which is off",
    ),
    row(5050, "CU_FILE_IO_MAX_ERROR", "the end of cuFile's codes"),
    row(
        6001,
        "CU_FILE_RDMA_RESET_TOKEN",
        "the RDMA connection is to be made anew",
    ),
    row(
        6002,
        "CU_FILE_RDMA_RESET_TOKEN_FAILED",
        "the RDMA connection could not be made anew",
    ),
];

/// The code whose meaning changed with 1.15.
const MEANING_CHANGED: i32 = 5039;
const CHANGED_WITH: i32 = 1150;

impl CuFileStatus {
    /// `CU_FILE_SUCCESS`.
    pub const SUCCESS: Self = Self(0);
    /// `CU_FILE_CUDA_DRIVER_ERROR`: the CUDA driver's own code goes with it.
    pub const CUDA_DRIVER_ERROR: Self = Self(5011);
    /// `CU_FILE_DRIVER_ALREADY_OPEN`.
    pub const DRIVER_ALREADY_OPEN: Self = Self(5026);
    /// `CU_FILE_HANDLE_NOT_REGISTERED`.
    pub const HANDLE_NOT_REGISTERED: Self = Self(5027);

    /// The name of the code in the header of cuFile, as the newest known version has it.
    pub fn name(self) -> Option<&'static str> {
        self.row().map(|row| row.name)
    }

    /// The name of the code in that version: 5039 ended the codes up to 1.14, and is an error of
    /// batches from 1.15 on.
    pub fn name_in(self, version: Version) -> Option<&'static str> {
        if self.0 == MEANING_CHANGED && version.is_known() && version.code() < CHANGED_WITH {
            return Some("CU_FILE_IO_MAX_ERROR");
        }
        self.name()
    }

    /// All codes that are known, with their names and meanings.
    pub fn known() -> impl Iterator<Item = (Self, &'static str, &'static str)> {
        ROWS.iter()
            .map(|row| (Self(row.code), row.name, row.meaning))
    }

    /// What can be done about it, where there is something.
    pub fn advice(self) -> Option<&'static str> {
        Some(match self.0 {
            5001 => "load nvidia-fs, or set properties.allow_compat_mode to true in cufile.json",
            5004 | 5005 => "install the nvidia-fs that belongs to this libcufile, or unload it",
            5008 | 5034 => {
                "use another file system, or let cuFile use its compatibility mode: \
                 properties.allow_compat_mode in cufile.json"
            }
            5012 | 5015 | 5047 => {
                "make the CUDA context of the memory current in the thread that calls"
            }
            5016 | 5036 => {
                "register less memory, or raise properties.max_device_pinned_mem_size_kb in \
                 cufile.json"
            }
            5019 => {
                "open the file without O_APPEND, O_NONBLOCK, O_NOFOLLOW, O_NOATIME and O_TMPFILE"
            }
            5020 => "open the file with O_DIRECT (before cuFile 1.7 it has to be)",
            5025 => {
                "let the process read /dev/nvidia-fs*, and open the file for what is done with it"
            }
            5027 => {
                "cuFile asks the udev database what file system is on the disk, and knows no file \
                 without it: run udevd, in a container mount /run/udev into it, or give \
                 /run/udev/data/b<major>:<minor> of the disk the lines E:ID_FS_USAGE=filesystem \
                 and E:ID_FS_TYPE=<type>"
            }
            5030 | 5033 | 5039..=5042 | 5045 | 5046 | 5048 => {
                "cuFile wrote more about it to cufile.log (CUFILE_LOGFILE_PATH says where, \
                 CUFILE_LOGGING_LEVEL how much)"
            }
            5037 => "submit fewer, or collect the status of some first",
            5049 => "set properties.allow_compat_mode to true in cufile.json",
            _ => return None,
        })
    }

    fn row(self) -> Option<&'static Row> {
        ROWS.iter().find(|row| row.code == self.0)
    }
}

impl fmt::Display for CuFileStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.row() {
            Some(row) => write!(f, "{} ({} {})", row.meaning, row.name, self.0),
            None => write!(f, "cuFile error {}", self.0),
        }
    }
}

impl fmt::Debug for CuFileStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_in_order_and_all_there() {
        assert!(ROWS.is_sorted_by_key(|row| row.code));
        let codes: Vec<_> = ROWS.iter().map(|row| row.code).collect();
        let expected = (5001..=5050).filter(|code| ![5021, 5032].contains(code));
        let expected: Vec<_> = std::iter::once(0)
            .chain(expected)
            .chain([6001, 6002])
            .collect();
        assert_eq!(codes, expected);
    }

    #[test]
    fn an_unknown_code_is_kept() {
        let status = CuFileStatus(5777);
        assert_eq!(status.name(), None);
        assert_eq!(status.to_string(), "cuFile error 5777");
    }

    #[test]
    fn the_code_that_changed_its_meaning() {
        let status = CuFileStatus(5039);
        assert_eq!(
            status.name_in(Version::from_code(1140)),
            Some("CU_FILE_IO_MAX_ERROR")
        );
        for version in [Version::from_code(1150), Version::UNKNOWN] {
            assert_eq!(
                status.name_in(version),
                Some("CU_FILE_INTERNAL_BATCH_SETUP_ERROR")
            );
        }
    }
}
