//! The pools that operations use where none was named: the process's, and each drive's.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::block_device::{self, BlockDevice};
use super::{Defaults, ThreadPool};
use crate::Error;
use crate::process::Owner;

/// Drives that have a pool of their own; the files of any more use the process's. Each pool has
/// threads.
const DRIVES_MAX: usize = 256;

impl ThreadPool {
    /// The pool of the process. It is made at the first use, of as many threads as the setting
    /// `num_threads` says, and follows that setting.
    ///
    /// # Errors
    ///
    /// [`Error::Os`]: the system gives no thread. [`Error::Forked`]: it was made by the process
    /// that this one was forked from.
    pub fn global() -> Result<Self, Error> {
        shared()?.process()
    }

    /// The pool of the drive that a device is on (its numbers as stat(2) gives them): partitions
    /// share their disk's, the namespaces of an NVMe controller their controller's. Made and kept
    /// as the process's pool, which it is where there is no drive: for files in memory, on a
    /// server, or on a file system with a device number of its own.
    ///
    /// # Errors
    ///
    /// As [`global`](Self::global).
    pub fn for_device(major: u32, minor: u32) -> Result<Self, Error> {
        shared()?.of_device((major, minor))
    }

    /// The pool for a file on this device, as the settings say.
    pub(crate) fn for_file(device: (u32, u32)) -> Result<Self, Error> {
        if Defaults::get().thread_pool_per_block_device {
            Self::for_device(device.0, device.1)
        } else {
            Self::global()
        }
    }
}

/// Gives all shared pools so many threads.
pub(super) fn resize(threads: usize) {
    // A forked child has no pool to resize.
    let Ok(shared) = shared() else { return };
    let pools: Vec<_> = shared
        .process
        .iter()
        .chain(shared.drives.values())
        .cloned()
        .collect();
    drop(shared);
    for pool in pools {
        if pool.threads() == threads {
            continue;
        }
        if let Err(error) = pool.resize(threads) {
            tracing::warn!(%error, threads, has = pool.threads(), "fewer threads than asked for");
        }
    }
}

#[derive(Default)]
struct PoolsShared {
    process: Option<ThreadPool>,
    /// By [`BlockDevice::drive`].
    drives: BTreeMap<String, ThreadPool>,
    /// What was looked up before.
    devices: BTreeMap<(u32, u32), ThreadPool>,
}

/// # Errors
///
/// [`Error::Forked`]: another thread of the parent may have held the lock when this process was
/// forked.
fn shared() -> Result<MutexGuard<'static, PoolsShared>, Error> {
    static OWNER: OnceLock<Owner> = OnceLock::new();
    static SHARED: OnceLock<Mutex<PoolsShared>> = OnceLock::new();
    OWNER.get_or_init(Owner::current).check()?;
    let shared = SHARED.get_or_init(Mutex::default);
    Ok(shared.lock().unwrap_or_else(PoisonError::into_inner))
}

fn make(name: &str) -> Result<ThreadPool, Error> {
    let settings = Defaults::get();
    ThreadPool::named(name, settings.num_threads, settings.thread_pool_queue)
}

impl PoolsShared {
    fn process(&mut self) -> Result<ThreadPool, Error> {
        match &self.process {
            Some(pool) => Ok(pool.clone()),
            None => Ok(self.process.insert(make("fc-io")?).clone()),
        }
    }

    fn of_device(&mut self, device: (u32, u32)) -> Result<ThreadPool, Error> {
        if let Some(pool) = self.devices.get(&device) {
            return Ok(pool.clone());
        }
        let drive =
            BlockDevice::of_device(device.0, device.1).map(|found| found.drive().to_owned());
        let pool = match drive {
            Ok(drive) => self.of_drive(drive)?,
            Err(error) => {
                tracing::debug!(%error, "its files use the pool of the process");
                self.process()?
            }
        };
        if self.devices.len() < DRIVES_MAX {
            self.devices.insert(device, pool.clone());
        }
        Ok(pool)
    }

    fn of_drive(&mut self, drive: String) -> Result<ThreadPool, Error> {
        if let Some(pool) = self.drives.get(&drive) {
            return Ok(pool.clone());
        }
        if self.drives.len() >= DRIVES_MAX {
            return self.process();
        }
        let pool = make(block_device::short_name(&drive))?;
        self.drives.insert(drive, pool.clone());
        Ok(pool)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn shared_pools_follow_the_setting_and_drives_have_their_own() {
        let _alone = crate::storage::defaults::alone();
        let pool = ThreadPool::global().unwrap();
        assert!(pool.is_same(&ThreadPool::global().unwrap()));
        assert_eq!(pool.threads(), Defaults::get().num_threads);
        {
            let _scope = Defaults::scoped(|settings| settings.num_threads = 3).unwrap();
            assert_eq!(pool.threads(), 3);
        }
        assert_eq!(pool.threads(), Defaults::get().num_threads);

        // Nothing lies on device 0:0.
        assert!(pool.is_same(&ThreadPool::for_device(0, 0).unwrap()));
        let Some((major, minor)) = block_device::any_of_this_machine() else {
            println!("SKIPPED: no block device here");
            return;
        };
        let of_device = ThreadPool::for_device(major, minor).unwrap();
        assert!(!of_device.is_same(&pool));
        assert!(of_device.is_same(&ThreadPool::for_device(major, minor).unwrap()));
        assert!(pool.is_same(&ThreadPool::for_file((major, minor)).unwrap()));
        let scope = Defaults::scoped(|settings| {
            settings.thread_pool_per_block_device = true;
            settings.num_threads = 2;
        });
        assert!(of_device.is_same(&ThreadPool::for_file((major, minor)).unwrap()));
        assert_eq!(of_device.threads(), 2);
        drop(scope);
        assert_eq!(of_device.threads(), Defaults::get().num_threads);
    }
}
