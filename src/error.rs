//! Errors: what went wrong, where, which limit, and what to do.

use std::fmt;
use std::num::NonZeroI32;

/// A libfabric error number, positive, as `fi_errno.3` counts them.
///
/// Never an enum: a provider may answer a code that this library has never heard of.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FabricErrno(NonZeroI32);

impl FabricErrno {
    /// From a positive or negative return code; 0, which is no error, becomes `EIO`-like 5.
    pub fn new(code: i32) -> Self {
        Self(NonZeroI32::new(code.saturating_abs()).unwrap_or(NonZeroI32::new(5).expect("not 0")))
    }

    /// The positive number.
    pub fn get(self) -> i32 {
        self.0.get()
    }
}

impl fmt::Display for FabricErrno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error {}", self.get())
    }
}

impl fmt::Debug for FabricErrno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why memory could not be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The domain already holds as many registrations as its setting allows.
    #[error("this domain already holds {limit} registrations, its limit (setting `max_registrations`)")]
    DomainLimit {
        /// The limit, a number of registrations.
        limit: usize,
    },
    /// The kernel would not lock that much memory.
    #[error(
        "cannot lock {asked_bytes} bytes for registration: RLIMIT_MEMLOCK is {limit_bytes} bytes \
         (raise it with `ulimit -l` or LimitMEMLOCK=)"
    )]
    MemLock {
        /// The soft limit in force, in bytes.
        limit_bytes: u64,
        /// The size of the region that was to be registered, in bytes.
        asked_bytes: u64,
    },
    /// libfabric refused for another reason.
    #[error("{call}: {errno}")]
    Fabric {
        /// The C function.
        call: &'static str,
        /// Its error.
        errno: FabricErrno,
    },
}
