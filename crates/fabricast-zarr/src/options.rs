//! `ZarrStoreOptions`: how a store opens its files.

use std::path::Path;

use fabricast::storage::{BackEndChoice, CompatMode, DirectIo, IoOptions, OpenOptions};
use zarrs_storage::StorageError;

use crate::FileZarrStore;

/// Describes how a store is to be opened.
///
/// ```
/// use fabricast::storage::DirectIo;
/// use fabricast_zarr::ZarrStoreOptions;
/// # let directory = tempfile::tempdir()?;
/// let store = ZarrStoreOptions::new().direct(DirectIo::Off).durable(true).open(directory.path())?;
/// assert!(!store.is_read_only());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "nothing is opened before `open`"]
pub struct ZarrStoreOptions {
    pub(crate) files: OpenOptions,
    pub(crate) io: IoOptions,
    pub(crate) read_only: bool,
    pub(crate) durable: bool,
    make: bool,
}

impl ZarrStoreOptions {
    /// For reading and writing, in a directory that is there, without waiting for the device.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the directory where there is none, and those above it. Default: no.
    pub fn create(mut self, yes: bool) -> Self {
        self.make = yes;
        self
    }

    /// Refuses what writes ([`StorageError::ReadOnly`]). Default: no.
    pub fn read_only(mut self, yes: bool) -> Self {
        self.read_only = yes;
        self
    }

    /// Has what was written on the device, names and bytes, before a call that writes or erases
    /// returns (fsync(2) of the file and its directories). Default: no; [`FileZarrStore::sync`]
    /// does it for all values at once.
    ///
    /// Either way others see a value that is set as a whole or not at all. Without it, a loss of
    /// power may leave the old value, the new one, or an empty one.
    pub fn durable(mut self, yes: bool) -> Self {
        self.durable = yes;
        self
    }

    /// The permissions of files that are made, less the process's umask. Default: 0664. Range: 0 to
    /// 07777.
    pub fn mode(mut self, mode: u32) -> Self {
        self.files = self.files.mode(mode);
        self
    }

    /// Around the page cache or through it. Default: [`DirectIo::Auto`], which writes values of 64
    /// KiB and more around it, so that who reads them next reads from the device; with
    /// [`DirectIo::Off`] they stay in the page cache.
    pub fn direct(mut self, direct: DirectIo) -> Self {
        self.files = self.files.direct(direct);
        self
    }

    /// Which back end moves the bytes. Default: [`BackEndChoice::Auto`].
    pub fn back_end(mut self, back_end: BackEndChoice) -> Self {
        self.files = self.files.back_end(back_end);
        self
    }

    /// Whether GPU memory is moved without cuFile. Default: the setting `compat_mode`.
    pub fn compat_mode(mut self, mode: CompatMode) -> Self {
        self.files = self.files.compat_mode(mode);
        self
    }

    /// What each transfer asks for: bytes of a task, threads. Default: the settings.
    pub fn io(mut self, io: IoOptions) -> Self {
        self.io = io;
        self
    }

    /// Opens the store.
    ///
    /// # Errors
    /// What the system answers to the directory's path; not a directory.
    pub fn open(&self, directory: impl AsRef<Path>) -> Result<FileZarrStore, StorageError> {
        let directory = directory.as_ref();
        let failed = |error: std::io::Error| {
            let said = format!("the store's directory, {}: {error}", directory.display());
            StorageError::from(std::io::Error::new(error.kind(), said))
        };
        if self.make && !self.read_only {
            self.make_directory(directory).map_err(failed)?;
        }
        let root = std::fs::canonicalize(directory).map_err(failed)?;
        // Asks for a directory, and for the right to look into it.
        std::fs::read_dir(&root).map_err(failed)?;
        Ok(FileZarrStore::new(root, self.clone()))
    }

    fn make_directory(&self, directory: &Path) -> std::io::Result<()> {
        let directory = std::path::absolute(directory)?;
        // Each that is missing, and the one that has its name.
        let missing = |path: &&Path| !path.exists();
        let made = directory.ancestors().take_while(missing).count();
        std::fs::create_dir_all(&directory)?;
        if self.durable {
            for changed in directory.ancestors().skip(1).take(made) {
                std::fs::File::open(changed)?.sync_all()?;
            }
        }
        Ok(())
    }
}
