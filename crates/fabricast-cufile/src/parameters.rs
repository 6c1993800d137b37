//! Parameters: what cufile.json sets, by code. Set before the driver is opened; read at any time.

#![allow(unsafe_code)]

use std::ffi::{CString, c_int};

use super::error::CuFileError;
use super::table::{Parameters, Slabs};
use super::{CuFile, check};

/// Most bytes of a text.
const TEXT_LEN: usize = 4096;
/// Most buffer sizes of a pool.
const SLABS_MAX: usize = 64;

/// A number, `CUFileSizeTConfigParameter_t`. The names are those of the header; a newer library may
/// know more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SizeParameter(pub c_int);

impl SizeParameter {
    /// `CUFILE_PARAM_PROFILE_STATS`: the level of the statistics.
    pub const PROFILE_STATS: Self = Self(0);
    /// `CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH`.
    pub const EXECUTION_MAX_IO_QUEUE_DEPTH: Self = Self(1);
    /// `CUFILE_PARAM_EXECUTION_MAX_IO_THREADS`.
    pub const EXECUTION_MAX_IO_THREADS: Self = Self(2);
    /// `CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB`.
    pub const EXECUTION_MIN_IO_THRESHOLD_SIZE_KB: Self = Self(3);
    /// `CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM`.
    pub const EXECUTION_MAX_REQUEST_PARALLELISM: Self = Self(4);
    /// `CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB`.
    pub const PROPERTIES_MAX_DIRECT_IO_SIZE_KB: Self = Self(5);
    /// `CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB`.
    pub const PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB: Self = Self(6);
    /// `CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB`.
    pub const PROPERTIES_PER_BUFFER_CACHE_SIZE_KB: Self = Self(7);
    /// `CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB`.
    pub const PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB: Self = Self(8);
    /// `CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE`.
    pub const PROPERTIES_IO_BATCHSIZE: Self = Self(9);
    /// `CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB`.
    pub const POLLTHRESHOLD_SIZE_KB: Self = Self(10);
    /// `CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS`.
    pub const PROPERTIES_BATCH_IO_TIMEOUT_MS: Self = Self(11);
}

/// A switch, `CUFileBoolConfigParameter_t`. The names are those of the header; a newer library may
/// know more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BoolParameter(pub c_int);

impl BoolParameter {
    /// `CUFILE_PARAM_PROPERTIES_USE_POLL_MODE`.
    pub const PROPERTIES_USE_POLL_MODE: Self = Self(0);
    /// `CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE`.
    pub const PROPERTIES_ALLOW_COMPAT_MODE: Self = Self(1);
    /// `CUFILE_PARAM_FORCE_COMPAT_MODE`.
    pub const FORCE_COMPAT_MODE: Self = Self(2);
    /// `CUFILE_PARAM_FS_MISC_API_CHECK_AGGRESSIVE`.
    pub const FS_MISC_API_CHECK_AGGRESSIVE: Self = Self(3);
    /// `CUFILE_PARAM_EXECUTION_PARALLEL_IO`.
    pub const EXECUTION_PARALLEL_IO: Self = Self(4);
    /// `CUFILE_PARAM_PROFILE_NVTX`, which later versions advise against.
    pub const PROFILE_NVTX: Self = Self(5);
    /// `CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY`.
    pub const PROPERTIES_ALLOW_SYSTEM_MEMORY: Self = Self(6);
    /// `CUFILE_PARAM_USE_PCIP2PDMA`.
    pub const USE_PCIP2PDMA: Self = Self(7);
    /// `CUFILE_PARAM_PREFER_IO_URING`.
    pub const PREFER_IO_URING: Self = Self(8);
    /// `CUFILE_PARAM_FORCE_ODIRECT_MODE`.
    pub const FORCE_ODIRECT_MODE: Self = Self(9);
    /// `CUFILE_PARAM_SKIP_TOPOLOGY_DETECTION`.
    pub const SKIP_TOPOLOGY_DETECTION: Self = Self(10);
    /// `CUFILE_PARAM_STREAM_MEMOPS_BYPASS`.
    pub const STREAM_MEMOPS_BYPASS: Self = Self(11);
    /// `CUFILE_PARAM_PROPERTIES_POSIX_IO_MODE`, from 1.19 on.
    pub const PROPERTIES_POSIX_IO_MODE: Self = Self(12);
    /// `CUFILE_PARAM_GDS_FALLBACK_IO`, from 1.19 on.
    pub const GDS_FALLBACK_IO: Self = Self(13);
}

/// A text, `CUFileStringConfigParameter_t`. The names are those of the header; a newer library may
/// know more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StringParameter(pub c_int);

impl StringParameter {
    /// `CUFILE_PARAM_LOGGING_LEVEL`.
    pub const LOGGING_LEVEL: Self = Self(0);
    /// `CUFILE_PARAM_ENV_LOGFILE_PATH`.
    pub const ENV_LOGFILE_PATH: Self = Self(1);
    /// `CUFILE_PARAM_LOG_DIR`.
    pub const LOG_DIR: Self = Self(2);
    /// `CUFILE_PARAM_RDMA_TRANSPORT`, from 1.19 on.
    pub const RDMA_TRANSPORT: Self = Self(3);
}

/// A pool of buffers whose sizes can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SlabPool {
    /// Of host memory, for compatibility mode: `CUFILE_PARAM_POSIX_POOL_SLAB_SIZE_KB` and
    /// `…_COUNT`.
    Posix,
    /// Of GPU memory: `CUFILE_PARAM_GPU_BOUNCE_BUFFER_SLAB_SIZE_KB` and `…_COUNT`.
    Gpu,
}

impl SlabPool {
    fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Posix => (
                "cuFileGetParameterPosixPoolSlabArray",
                "cuFileSetParameterPosixPoolSlabArray",
                "1.15",
            ),
            Self::Gpu => (
                "cuFileGetParameterGpuBounceBufferSlabArray",
                "cuFileSetParameterGpuBounceBufferSlabArray",
                "1.17",
            ),
        }
    }
}

/// Buffers of one size in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slab {
    /// The size of each, in KiB: a multiple of 4, and more than that of the slab before it.
    pub size_kb: usize,
    /// How many.
    pub count: usize,
}

impl CuFile {
    /// A number that is set, or will be when the driver is opened, `cuFileGetParameterSizeT`.
    ///
    /// # Errors
    ///
    /// [`CuFileError::Lacks`] before 1.14, or what the call answers.
    pub fn size_parameter(&self, parameter: SizeParameter) -> Result<usize, CuFileError> {
        let get = self.parameters()?.get_size;
        let mut value = 0;
        // SAFETY: writes one number, which is ours.
        let answer = unsafe { get(parameter.0, &raw mut value) };
        check("cuFileGetParameterSizeT", answer).map(|()| value)
    }

    /// Sets a number for the next opening of the driver, `cuFileSetParameterSizeT`.
    ///
    /// # Errors
    ///
    /// [`CuFileError::Value`] where it is out of [its range](Self::size_parameter_range) or the
    /// driver is open; [`CuFileError::Lacks`] before 1.14; what the call answers.
    pub fn set_size_parameter(
        &self,
        parameter: SizeParameter,
        value: usize,
    ) -> Result<(), CuFileError> {
        let set = self.parameters_to_set(parameter.0)?.set_size;
        if self.library.get_parameter_limits.is_some() {
            let (min, max) = self.size_parameter_range(parameter)?;
            // A range that is none says nothing.
            if min <= max && !(min..=max).contains(&value) {
                let reason = format!("it has to be {min} to {max}");
                return Err(CuFileError::value("parameter", value, "", reason));
            }
        }
        // SAFETY: takes two values.
        let answer = unsafe { set(parameter.0, value) };
        check("cuFileSetParameterSizeT", answer)
    }

    /// The smallest and the largest value of a number, `cuFileGetParameterMinMaxValue`.
    ///
    /// # Errors
    ///
    /// [`CuFileError::Lacks`] before 1.15, or what the call answers.
    pub fn size_parameter_range(
        &self,
        parameter: SizeParameter,
    ) -> Result<(usize, usize), CuFileError> {
        self.check_owner()?;
        let name = "cuFileGetParameterMinMaxValue";
        let get = self.library.get_parameter_limits;
        let get = get.ok_or_else(|| self.lacks(name, Some("1.15")))?;
        let (mut min, mut max) = (0, 0);
        // SAFETY: writes two numbers, which are ours.
        let answer = unsafe { get(parameter.0, &raw mut min, &raw mut max) };
        check(name, answer).map(|()| (min, max))
    }

    /// A switch, `cuFileGetParameterBool`.
    ///
    /// # Errors
    ///
    /// As for [`size_parameter`](Self::size_parameter).
    pub fn bool_parameter(&self, parameter: BoolParameter) -> Result<bool, CuFileError> {
        let get = self.parameters()?.get_bool;
        let mut value = false;
        // SAFETY: writes one bool, which is ours.
        let answer = unsafe { get(parameter.0, &raw mut value) };
        check("cuFileGetParameterBool", answer).map(|()| value)
    }

    /// Sets a switch for the next opening of the driver, `cuFileSetParameterBool`.
    ///
    /// # Errors
    ///
    /// As for [`set_size_parameter`](Self::set_size_parameter).
    pub fn set_bool_parameter(
        &self,
        parameter: BoolParameter,
        value: bool,
    ) -> Result<(), CuFileError> {
        let set = self.parameters_to_set(parameter.0)?.set_bool;
        // SAFETY: takes two values.
        let answer = unsafe { set(parameter.0, value) };
        check("cuFileSetParameterBool", answer)
    }

    /// A text, `cuFileGetParameterString`; bytes that are no UTF-8 are replaced.
    ///
    /// # Errors
    ///
    /// As for [`size_parameter`](Self::size_parameter).
    pub fn string_parameter(&self, parameter: StringParameter) -> Result<String, CuFileError> {
        let get = self.parameters()?.get_string;
        let mut text = vec![0_u8; TEXT_LEN];
        // The last byte stays 0, whatever the library makes of a text that does not fit.
        // SAFETY: there is room for more bytes than are said.
        let answer = unsafe { get(parameter.0, text.as_mut_ptr().cast(), TEXT_LEN as c_int - 1) };
        check("cuFileGetParameterString", answer)?;
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(TEXT_LEN);
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }

    /// Sets a text for the next opening of the driver, `cuFileSetParameterString`.
    ///
    /// # Errors
    ///
    /// As for [`set_size_parameter`](Self::set_size_parameter).
    pub fn set_string_parameter(
        &self,
        parameter: StringParameter,
        value: &str,
    ) -> Result<(), CuFileError> {
        let set = self.parameters_to_set(parameter.0)?.set_string;
        let text = CString::new(value)
            .ok()
            .filter(|text| text.count_bytes() < TEXT_LEN - 1)
            .ok_or_else(|| {
                CuFileError::value(
                    "parameter",
                    value,
                    "",
                    "it has a zero byte or is longer than 4094",
                )
            })?;
        // SAFETY: the text lives until the call is over.
        let answer = unsafe { set(parameter.0, text.as_ptr()) };
        check("cuFileSetParameterString", answer)
    }

    /// The buffers of a pool. `count` is how many sizes it has: cuFile answers only to the right
    /// number.
    ///
    /// # Errors
    ///
    /// [`CuFileError::Lacks`], [`CuFileError::Value`] for a count of 0 or more than 64, or what the
    /// call answers.
    pub fn slabs(&self, pool: SlabPool, count: usize) -> Result<Vec<Slab>, CuFileError> {
        let get = self.slab_functions(pool)?.get;
        let len = slab_count(count)?;
        let (mut sizes, mut counts) = (vec![0; count], vec![0; count]);
        // SAFETY: both arrays have the length that is said.
        let answer = unsafe { get(sizes.as_mut_ptr(), counts.as_mut_ptr(), len) };
        check(pool.names().0, answer)?;
        let slabs = sizes.into_iter().zip(counts);
        Ok(slabs
            .map(|(size_kb, count)| Slab { size_kb, count })
            .collect())
    }

    /// Sets the buffers of a pool for the next opening of the driver.
    ///
    /// # Errors
    ///
    /// [`CuFileError::Value`] for sizes that are no ascending multiples of 4 KiB, for none or more
    /// than 64, and while the driver is open; [`CuFileError::Lacks`]; what the call answers.
    pub fn set_slabs(&self, pool: SlabPool, slabs: &[Slab]) -> Result<(), CuFileError> {
        let set = self.slab_functions(pool)?.set;
        let len = slab_count(slabs.len())?;
        let mut before = 0;
        for slab in slabs {
            if slab.size_kb <= before || !slab.size_kb.is_multiple_of(4) {
                let reason = format!("it has to be a multiple of 4, and more than {before}");
                return Err(CuFileError::value("size_kb", slab.size_kb, "KiB", reason));
            }
            before = slab.size_kb;
        }
        self.refuse_while_open("slabs", slabs.len())?;
        let sizes: Vec<usize> = slabs.iter().map(|slab| slab.size_kb).collect();
        let counts: Vec<usize> = slabs.iter().map(|slab| slab.count).collect();
        // SAFETY: both arrays have the length that is said, and live until the call is over.
        let answer = unsafe { set(sizes.as_ptr(), counts.as_ptr(), len) };
        check(pool.names().1, answer)
    }

    fn slab_functions(&self, pool: SlabPool) -> Result<&'static Slabs, CuFileError> {
        self.check_owner()?;
        let slabs = match pool {
            SlabPool::Posix => self.library.posix_slabs.as_ref(),
            SlabPool::Gpu => self.library.gpu_slabs.as_ref(),
        };
        let (name, _, from) = pool.names();
        slabs.ok_or_else(|| self.lacks(name, Some(from)))
    }

    fn parameters(&self) -> Result<&'static Parameters, CuFileError> {
        self.check_owner()?;
        let parameters = self.library.parameters.as_ref();
        parameters.ok_or_else(|| self.lacks("cuFileGetParameterSizeT", Some("1.14")))
    }

    fn parameters_to_set(&self, number: c_int) -> Result<&'static Parameters, CuFileError> {
        let parameters = self.parameters()?;
        self.refuse_while_open("parameter", number)?;
        Ok(parameters)
    }

    fn refuse_while_open(
        &self,
        field: &'static str,
        value: impl std::fmt::Display,
    ) -> Result<(), CuFileError> {
        if self.is_driver_open() {
            let reason = "parameters are set before the driver is opened";
            return Err(CuFileError::value(field, value, "", reason));
        }
        Ok(())
    }
}

fn slab_count(count: usize) -> Result<c_int, CuFileError> {
    c_int::try_from(count)
        .ok()
        .filter(|_| (1..=SLABS_MAX).contains(&count))
        .ok_or_else(|| CuFileError::value("slabs", count, "", "there are 1 to 64"))
}
