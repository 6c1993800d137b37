//! Errors of cuFile: which function, which code, which file and offset, and what to do about it.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::status::{BASE, CuFileStatus};
use super::table::FABRICAST_CUFILE;
use super::version::Version;
use fabricast_cuda::{CudaCode, CudaError, CudaUnavailable, FABRICAST_CUDA};
use fabricast_process::{Attempt, Attempts};

/// Why cuFile can't be used in this process.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// libcufile could not be loaded: most often, it is not installed.
    #[error(
        "cannot load libcufile: tried {} (install NVIDIA GPUDirect Storage, or set \
         {FABRICAST_CUFILE} to the path of a libcufile.so.0)",
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
    /// The CUDA driver could not be loaded: the machine has no NVIDIA GPU, or no driver for it.
    #[error(
        "libcufile needs the CUDA driver, which cannot be loaded: tried {} (set {FABRICAST_CUDA} \
         to the path of a libcuda.so.1 that lies elsewhere)",
        Attempts(tried)
    )]
    Cuda {
        /// What was tried.
        tried: Vec<Attempt>,
    },
    /// `cuInit` failed.
    #[error("the CUDA driver does not start: cuInit answers {}", CudaCode(*code))]
    CudaInit {
        /// What it answered, a `CUresult`.
        code: i32,
    },
    /// The CUDA driver runs, and has no device. cuFile is not asked then: some versions would never
    /// return.
    #[error("there is no CUDA device (CUDA_VISIBLE_DEVICES may hide what there is)")]
    NoDevice,
    /// The CUDA driver can't be used for another reason.
    #[error("libcufile needs the CUDA driver: {0}")]
    CudaOther(CudaUnavailable),
    /// This process was forked from the one that started cuFile, which does not survive that.
    #[error(
        "process {made_by}, which this process was forked from, has started cuFile: it can't be \
         used here"
    )]
    Forked {
        /// The process that started it.
        made_by: u32,
    },
}

fabricast_process::debug_as_words!(Unavailable);

impl From<CudaUnavailable> for Unavailable {
    fn from(why: CudaUnavailable) -> Self {
        match why {
            CudaUnavailable::Library { tried } => Self::Cuda { tried },
            CudaUnavailable::Broken {
                path,
                symbol,
                reason,
            } => Self::Broken {
                path,
                symbol,
                reason,
            },
            CudaUnavailable::Init { code } => Self::CudaInit { code: code.0 },
            CudaUnavailable::NoDevice => Self::NoDevice,
            CudaUnavailable::Forked { made_by } => Self::Forked { made_by },
            why => Self::CudaOther(why),
        }
    }
}

/// What a call of cuFile answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The system's error: what -1 means.
    Errno(i32),
    /// cuFile's own error.
    Status {
        /// The status.
        status: CuFileStatus,
        /// The `CUresult` beside it; it counts with [`CuFileStatus::CUDA_DRIVER_ERROR`].
        cu_err: i32,
    },
    /// -1 where no errno goes with it: an operation that ran elsewhere.
    Unexplained,
    /// The library answered what it can't mean: more bytes than were asked for.
    Nonsense(i64),
}

impl Failure {
    /// From what a blocking read or write returned, where that is no count of bytes.
    pub(crate) fn of_call(answer: isize) -> Self {
        if answer == -1 {
            let errno = io::Error::last_os_error().raw_os_error();
            let errno = errno.filter(|errno| *errno != 0);
            return errno.map_or(Self::Unexplained, Self::Errno);
        }
        Self::of_operation(answer)
    }

    /// From the result of an operation that ran elsewhere: errno of this thread has nothing to do
    /// with it.
    pub(crate) fn of_operation(answer: isize) -> Self {
        match i32::try_from(answer.saturating_neg()) {
            Ok(1) => Self::Unexplained,
            Ok(code) if code > BASE => Self::Status {
                status: CuFileStatus(code),
                cu_err: 0,
            },
            // Not documented, and seen: a negated errno.
            Ok(code) if code > 1 => Self::Errno(code),
            _ => Self::Nonsense(answer as i64),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Errno(errno) => write!(f, "{}", io::Error::from_raw_os_error(errno)),
            Self::Status { status, cu_err } => {
                write!(f, "{status}")?;
                if cu_err != 0 {
                    write!(f, ", CUDA: {}", CudaCode(cu_err))?;
                }
                match status.advice() {
                    Some(advice) => write!(f, "; {advice}"),
                    None => Ok(()),
                }
            }
            Self::Unexplained => {
                f.write_str("failed, and cuFile does not say why (see cufile.log)")
            }
            Self::Nonsense(answer) => write!(f, "answered {answer}, which means nothing"),
        }
    }
}

/// A call of cuFile that failed.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallError {
    /// The C function.
    pub call: &'static str,
    /// What it answered.
    pub failure: Failure,
    /// The file, where there is one.
    pub path: Option<PathBuf>,
    /// The offset in the file, in bytes, where there is one.
    pub offset: Option<u64>,
}

impl CallError {
    /// cuFile's status, where it gave one.
    pub fn status(&self) -> Option<CuFileStatus> {
        match self.failure {
            Failure::Status { status, .. } => Some(status),
            _ => None,
        }
    }

    /// The system's error, where it gave one.
    pub fn errno(&self) -> Option<i32> {
        match self.failure {
            Failure::Errno(errno) => Some(errno),
            _ => None,
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.call)?;
        if let Some(path) = &self.path {
            write!(f, " {}", path.display())?;
        }
        if let Some(offset) = self.offset {
            write!(f, " at {offset}")?;
        }
        write!(f, ": {}", self.failure)
    }
}

impl std::error::Error for CallError {}

fabricast_process::debug_as_words!(CallError);

/// What can go wrong with cuFile.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CuFileError {
    /// It can't be used in this process.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// A call failed.
    #[error(transparent)]
    Call(Box<CallError>),
    /// A call of the CUDA driver failed.
    #[error(transparent)]
    Cuda(CudaError),
    /// The loaded library has no such function.
    #[error("libcufile {version} has no {function}{}", since(*from))]
    Lacks {
        /// The C function, or one of its group.
        function: &'static str,
        /// The version of the library.
        version: Version,
        /// The first version that has it, where that is known.
        from: Option<&'static str>,
    },
    /// A setting or an argument is out of its range; nothing was called.
    #[error("{field} = {value}{}: {reason}", blank(unit))]
    Value {
        /// Its name.
        field: &'static str,
        /// What was given.
        value: String,
        /// The unit of the value, empty where it has none.
        unit: &'static str,
        /// What is wrong with it, with the limit.
        reason: Cow<'static, str>,
    },
    /// The file was opened with a flag that cuFile refuses; nothing was called.
    #[error("{}: opened with {flag}, which cuFile refuses", path.display())]
    OpenFlag {
        /// The file.
        path: PathBuf,
        /// The flag, as open(2) names it.
        flag: &'static str,
    },
    /// The driver is in use, and can't be closed.
    #[error(
        "the cuFile driver is used by {users} handles, registrations or operations, and can't be \
         closed"
    )]
    InUse {
        /// How many.
        users: usize,
    },
    /// As many operations are in flight as there may be.
    #[error("{what}: {limit} operations are in flight, as many as there may be")]
    Full {
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// It did not come in time. What was in flight still is.
    #[error("{what}: not within {waited:?}")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// How long.
        waited: std::time::Duration,
    },
    /// A system call failed.
    #[error("{call}: {}", io::Error::from_raw_os_error(*errno))]
    Os {
        /// The system call.
        call: &'static str,
        /// Its errno.
        errno: i32,
    },
}

fabricast_process::debug_as_words!(CuFileError);

/// ", which came with 1.19".
fn since(from: Option<&'static str>) -> String {
    from.map_or_else(String::new, |from| format!(", which came with {from}"))
}

fn blank(unit: &str) -> String {
    if unit.is_empty() {
        String::new()
    } else {
        format!(" {unit}")
    }
}

impl From<CudaUnavailable> for CuFileError {
    fn from(why: CudaUnavailable) -> Self {
        Self::Unavailable(why.into())
    }
}

impl From<CudaError> for CuFileError {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::Unavailable(why) => why.into(),
            error => Self::Cuda(error),
        }
    }
}

impl CuFileError {
    pub(crate) fn call(call: &'static str, failure: Failure) -> Self {
        Self::Call(Box::new(CallError {
            call,
            failure,
            path: None,
            offset: None,
        }))
    }

    /// The same, with the file and the offset.
    #[must_use]
    pub(crate) fn at(mut self, file: &Path, at: Option<u64>) -> Self {
        if let Self::Call(error) = &mut self {
            error.path = Some(file.to_owned());
            error.offset = at;
        }
        self
    }

    /// A setting or an argument that is out of its range, for whoever checks before cuFile does;
    /// `unit` is empty where the value has none.
    pub fn value(
        field: &'static str,
        value: impl fmt::Display,
        unit: &'static str,
        reason: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::Value {
            field,
            value: value.to_string(),
            unit,
            reason: reason.into(),
        }
    }

    /// cuFile's status, where a call gave one.
    pub fn status(&self) -> Option<CuFileStatus> {
        match self {
            Self::Call(error) => error.status(),
            _ => None,
        }
    }

    /// The system's error, where a call gave one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Call(error) => error.errno(),
            Self::Os { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_operations() {
        let status = |code| Failure::Status {
            status: CuFileStatus(code),
            cu_err: 0,
        };
        assert_eq!(Failure::of_operation(-1), Failure::Unexplained);
        assert_eq!(Failure::of_operation(-5), Failure::Errno(libc::EIO));
        assert_eq!(Failure::of_operation(-5022), status(5022));
        assert_eq!(Failure::of_operation(7), Failure::Nonsense(7));
        assert_eq!(
            Failure::of_operation(isize::MIN),
            Failure::Nonsense(i64::MIN)
        );
        rustix::fs::stat("/nonexistent/file").unwrap_err();
        assert_eq!(Failure::of_call(-5001), status(5001));
    }

    #[test]
    fn an_error_says_where_and_what_to_do() {
        let failure = Failure::Status {
            status: CuFileStatus(5027),
            cu_err: 0,
        };
        let error = CuFileError::call("cuFileHandleRegister", failure).at(Path::new("/d/f"), None);
        let text = error.to_string();
        assert!(text.starts_with("cuFileHandleRegister /d/f: "), "{text}");
        assert!(
            text.contains("CU_FILE_HANDLE_NOT_REGISTERED 5027"),
            "{text}"
        );
        assert!(text.contains("udev"), "{text}");
        let error = CuFileError::call("cuFileRead", Failure::Errno(libc::EIO))
            .at(Path::new("/d/f"), Some(4096));
        let text = error.to_string();
        assert!(text.starts_with("cuFileRead /d/f at 4096: "), "{text}");
        assert_eq!((error.errno(), error.status()), (Some(libc::EIO), None));
    }
}
