//! The pools that operations use where no pool is named: the process's, and each block device's.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::{Defaults, ThreadPool};
use crate::Error;
use crate::process::Owner;

impl ThreadPool {
    /// The pool of the process. It is made at the first use, of as many threads as the setting `num_threads` says, and follows that setting.
    ///
    /// # Errors
    ///
    /// [`Error::Os`]: the system gives no thread. [`Error::Forked`]: it was made by the process that this one was forked from.
    pub fn global() -> Result<Self, Error> {
        if let Some(pool) = GLOBAL.get() {
            return Ok(pool.clone());
        }
        let mut shared = shared()?;
        if GLOBAL.get().is_none() {
            let pool = shared.make("fc-io")?;
            // Nobody else sets it: the lock is held.
            let _ = GLOBAL.set(pool);
        }
        GLOBAL.get().cloned().ok_or(Error::Os {
            call: "pthread_create",
            source: std::io::Error::from_raw_os_error(libc::EAGAIN),
        })
    }
}
