//! Errors of the CUDA driver: which function, which code, and what is missing where there is no
//! driver.

use std::fmt;
use std::path::PathBuf;

use super::FABRICAST_CUDA;
use super::driver::error_name;
use fabricast_process::{Attempt, Attempts};

/// What a function of the CUDA driver answered, a `CUresult`.
///
/// Never an enum: a driver may answer a code that this library has never heard of. Its name is
/// asked of the driver.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CudaCode(pub i32);

impl CudaCode {
    /// `CUDA_ERROR_INVALID_VALUE`.
    pub const INVALID_VALUE: Self = Self(1);
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub const OUT_OF_MEMORY: Self = Self(2);
    /// `CUDA_ERROR_NO_DEVICE`.
    pub const NO_DEVICE: Self = Self(100);
    /// `CUDA_ERROR_INVALID_DEVICE`.
    pub const INVALID_DEVICE: Self = Self(101);
    /// `CUDA_ERROR_NOT_READY`: there is still work to do.
    pub const NOT_READY: Self = Self(600);
    /// `CUDA_ERROR_NOT_SUPPORTED`.
    pub const NOT_SUPPORTED: Self = Self(801);
}

impl fmt::Display for CudaCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&error_name(self.0))
    }
}

impl fmt::Debug for CudaCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why there is no CUDA in this process.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaUnavailable {
    /// The driver could not be loaded: the machine has no NVIDIA GPU, or no driver for it.
    #[error(
        "the CUDA driver cannot be loaded: tried {} (set {FABRICAST_CUDA} to the path of a \
         libcuda.so.1 that lies elsewhere)",
        Attempts(tried)
    )]
    Library {
        /// What was tried.
        tried: Vec<Attempt>,
    },
    /// A library was loaded, but it lacks a function that every version has.
    #[error("{} is broken: no function {symbol} ({reason})", path.display())]
    Broken {
        /// The library.
        path: PathBuf,
        /// The missing function.
        symbol: &'static str,
        /// What the loader said.
        reason: String,
    },
    /// `cuInit` failed.
    #[error("the CUDA driver does not start: cuInit answers {code}")]
    Init {
        /// What it answered.
        code: CudaCode,
    },
    /// The driver runs, and has no device.
    #[error("there is no CUDA device (CUDA_VISIBLE_DEVICES may hide what there is)")]
    NoDevice,
    /// This process was forked from the one that started CUDA, which does not survive that.
    #[error(
        "process {made_by}, which this process was forked from, has started CUDA: it can't be used \
         here"
    )]
    Forked {
        /// The process that started it.
        made_by: u32,
    },
}

fabricast_process::debug_as_words!(CudaUnavailable);

/// What can go wrong with CUDA.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// It can't be used in this process.
    #[error(transparent)]
    Unavailable(#[from] CudaUnavailable),
    /// A call failed.
    #[error("{call}: {code}")]
    Call {
        /// The C function.
        call: &'static str,
        /// What it answered.
        code: CudaCode,
    },
    /// The loaded driver has no such function.
    #[error("the CUDA driver has no {function}: it is too old")]
    Lacks {
        /// The C function, or one of its group.
        function: &'static str,
    },
    /// There is no device of that number.
    #[error("there is no CUDA device {ordinal}: this process sees {count}, counted from 0")]
    NoSuchDevice {
        /// The number that was asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// What cudarc made can't be used here. Feature `cudarc`.
    #[cfg(feature = "cudarc")]
    #[error("cudarc: {reason}")]
    Cudarc {
        /// Why not.
        reason: &'static str,
    },
}

fabricast_process::debug_as_words!(CudaError);

impl CudaError {
    pub(crate) fn call(call: &'static str, code: i32) -> Self {
        Self::Call {
            call,
            code: CudaCode(code),
        }
    }

    /// The driver's code, where a call gave one.
    pub fn code(&self) -> Option<CudaCode> {
        match self {
            Self::Call { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// What a code means.
pub(crate) fn check(call: &'static str, code: i32) -> Result<(), CudaError> {
    match code {
        0 => Ok(()),
        code => Err(CudaError::call(call, code)),
    }
}
