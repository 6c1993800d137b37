//! `ObjectZarrOptions`: how a store of objects connects.

use std::time::Duration;

use fabricast::object::RemoteConfig;
use zarrs_storage::StorageError;

/// The most connections that one store may have.
const CONNECTIONS_MAX: usize = 256;
/// The longest that a call may wait.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Describes how a store of objects connects.
///
/// | option | default | range |
/// |---|---|---|
/// | `connections` | 4 | 1 to 256 |
/// | `buffer` | 1 MiB | 1 byte and more |
/// | `timeout` | 60 s | 24 h at most |
/// | `prefix` | none | |
/// | `remote` | [`RemoteConfig::default`] | |
///
/// ```
/// use std::time::Duration;
/// use fabricast_zarr::ObjectZarrOptions;
/// let options = ObjectZarrOptions::default().prefix("run7.zarr/").buffer(8 << 20);
/// assert_ne!(options, ObjectZarrOptions::default().timeout(Duration::from_secs(5)));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "nothing is connected before `ObjectZarrStore::connect`"]
pub struct ObjectZarrOptions {
    pub(super) connections: usize,
    pub(super) buffer: usize,
    pub(super) timeout: Duration,
    pub(super) prefix: String,
    pub(super) remote: RemoteConfig,
}

impl Default for ObjectZarrOptions {
    fn default() -> Self {
        Self {
            connections: 4,
            buffer: 1 << 20,
            timeout: Duration::from_secs(60),
            prefix: String::new(),
            remote: RemoteConfig::default(),
        }
    }
}

impl ObjectZarrOptions {
    /// How many requests there may be at a time, each on a connection of its own.
    pub fn connections(mut self, count: usize) -> Self {
        self.connections = count;
        self
    }

    /// Bytes of registered memory of each connection. What is longer is read in several requests,
    /// and put from memory that is registered for it.
    pub fn buffer(mut self, bytes: usize) -> Self {
        self.buffer = bytes;
        self
    }

    /// How long a call may wait for a connection, and for what it asks the service.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.timeout = time;
        self
    }

    /// What the names of all objects of this store begin with: `run7.zarr/`, say.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// The settings of each connection: checksums, and how long the service may be silent.
    pub fn remote(mut self, config: RemoteConfig) -> Self {
        self.remote = config;
        self
    }

    pub(super) fn check(&self) -> Result<(), StorageError> {
        let wrong = |what: String| Err(StorageError::Other(what));
        if self.connections == 0 || self.connections > CONNECTIONS_MAX {
            let count = self.connections;
            return wrong(format!("connections: {count}, from 1 to {CONNECTIONS_MAX}"));
        }
        if self.buffer == 0 {
            return wrong("buffer: 0 bytes, at least 1".into());
        }
        if self.timeout > TIMEOUT_MAX {
            return wrong(format!("timeout: {:?}, 24 h at most", self.timeout));
        }
        Ok(())
    }
}
