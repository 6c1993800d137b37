//! `ObjectZarrStore`: values as objects of a service, and the connections to it.

mod lists;
mod options;
mod own_memory;
mod values;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use fabricast::Fabric;
use fabricast::PeerAddr;
use fabricast::buffer::SharedBufferManager;
use fabricast::memory::Access;
use fabricast::object::{ObjectClient, ObjectMemory, ObjectStatus, RemoteError, RemoteObjects};
use zarrs_storage::storage_adapter::sync_to_async::SyncToAsyncStorageAdapter;
use zarrs_storage::{StorageError, StoreKey, StoreKeyError};

use crate::StoreThreads;
pub use options::ObjectZarrOptions;

/// A Zarr store whose values are objects of an [`ObjectService`](fabricast::object::ObjectService):
/// the value of the key `a/c/0` is the object `a/c/0` behind the store's prefix.
///
/// It is a store of `zarrs`: readable, writable and listable. The service moves the bytes by
/// one-sided operations, to and from memory that each connection has registered; from there they
/// are copied once, into the memory of the `Bytes`. [`read_into`](Self::read_into) and
/// [`write_from`](Self::write_from) make no copy: they move them to and from memory that you have
/// registered with the same client, also a GPU's where the provider reaches it directly.
///
/// A value that is set appears as a whole or not at all. Parts of a value are set by reading it,
/// changing it, and putting it if nobody else has put it meanwhile, again and again where somebody
/// has: so no part that somebody sets is lost. A value that is longer than a connection's memory is
/// read in several requests, all of one version.
///
/// A request that takes longer than [`timeout`](ObjectZarrOptions::timeout) is an error (`TimedOut`
/// of the `io::Error` in it); a connection that is lost is made anew by the next request. Where a
/// `set` ended so, it is not known whether the value is there.
///
/// ```
/// use fabricast::Fabric;
/// use fabricast::fabric::EndpointKind;
/// use fabricast::object::{
///     MemoryStore, ObjectClient, ObjectClientConfig, ObjectService, ObjectServiceConfig,
/// };
/// use fabricast_zarr::{ObjectZarrOptions, ObjectZarrStore};
/// use zarrs_storage::byte_range::ByteRange;
/// use zarrs_storage::{ReadableStorageTraits, WritableStorageTraits};
///
/// # let open = |provider| Fabric::builder()
/// #     .provider(provider).endpoint_kind(EndpointKind::Rdm).node("127.0.0.1").open();
/// // What libfabric up to 1.17 calls `net` is `tcp` later.
/// # let Ok(fabric) = open("tcp").or_else(|_| open("net")) else { return Ok(()) };
/// // On one machine:
/// let any = "127.0.0.1:0".parse()?;
/// let config = ObjectServiceConfig::default();
/// let service = ObjectService::start(MemoryStore::new(), &fabric, any, &fabric, config)?;
/// // On another:
/// let client = ObjectClient::open(&fabric, ObjectClientConfig::default())?;
/// let options = ObjectZarrOptions::default().prefix("run7.zarr/");
/// let store = ObjectZarrStore::connect(&client, &fabric, &service.local_addr(), options)?;
/// let key = "temperature/c/0/0".try_into()?;
/// store.set(&key, vec![1, 2, 3, 4].into())?;
/// assert_eq!(store.get_partial(&key, ByteRange::Suffix(2))?, Some(vec![3, 4].into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ObjectZarrStore {
    client: ObjectClient,
    options: ObjectZarrOptions,
    lines: Mutex<Vec<ObjectLine>>,
    freed: Condvar,
}

/// An [`ObjectZarrStore`] of futures, for any runtime, as
/// [`AsyncFileZarrStore`](crate::AsyncFileZarrStore) is: it takes as many threads as there are
/// connections.
pub type AsyncObjectZarrStore = SyncToAsyncStorageAdapter<ObjectZarrStore, StoreThreads>;

/// A connection, and its memory.
#[derive(Debug)]
struct ObjectLine {
    remote: RemoteObjects,
    /// None at first, and where the last one may still be written to.
    memory: Option<ObjectMemory>,
}

/// A connection that somebody uses, until it is dropped.
struct HeldLine<'s> {
    store: &'s ObjectZarrStore,
    line: Option<ObjectLine>,
    deadline: Instant,
}

impl ObjectZarrStore {
    /// Connects to a service, as often as the options say. `control` is the fabric of the
    /// connections; what [`RemoteObjects::connect`] takes.
    ///
    /// # Errors
    /// As [`RemoteObjects::connect`]; options out of their ranges.
    pub fn connect(
        client: &ObjectClient,
        control: &Arc<Fabric>,
        address: &PeerAddr,
        options: ObjectZarrOptions,
    ) -> Result<Self, StorageError> {
        options.check()?;
        let mut lines = Vec::with_capacity(options.connections);
        for _ in 0..options.connections {
            let remote = RemoteObjects::connect(client, control, address, options.remote.clone());
            let remote = remote.map_err(|error| failed("connect", error))?;
            lines.push(ObjectLine {
                remote,
                memory: None,
            });
        }
        Ok(Self {
            client: client.clone(),
            options,
            lines: Mutex::new(lines),
            freed: Condvar::new(),
        })
    }

    /// The client whose memory is used: what [`read_into`](Self::read_into) and
    /// [`write_from`](Self::write_from) take is registered with it.
    pub fn client(&self) -> &ObjectClient {
        &self.client
    }

    fn name(&self, key: &StoreKey) -> String {
        format!("{}{key}", self.options.prefix)
    }

    /// A connection that stands, for this thread alone; waits for one that others use.
    fn line(&self) -> Result<HeldLine<'_>, StorageError> {
        let deadline = Instant::now() + self.options.timeout;
        let mut lines = self.lock();
        let line = loop {
            if let Some(line) = lines.pop() {
                break line;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let said = format!("all {} connections are in use", self.options.connections);
                return Err(io::Error::new(io::ErrorKind::TimedOut, said).into());
            }
            let waited = self.freed.wait_timeout(lines, left);
            lines = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(lines);
        let mut held = HeldLine {
            store: self,
            line: Some(line),
            deadline,
        };
        let remote = &mut held.parts().0;
        remote
            .reconnect()
            .map_err(|error| failed("connect", error))?;
        Ok(held)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ObjectLine>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldLine<'_> {
    fn parts(&mut self) -> (&mut RemoteObjects, &mut Option<ObjectMemory>) {
        let line = self.line.as_mut().expect("held until it is dropped");
        (&mut line.remote, &mut line.memory)
    }

    fn remote(&mut self) -> &mut RemoteObjects {
        self.parts().0
    }

    /// The connection and its memory, registered at the first use.
    fn with_memory(&mut self) -> Result<(&mut RemoteObjects, &ObjectMemory), StorageError> {
        let (client, len) = (&self.store.client, self.store.options.buffer);
        let line = self.line.as_mut().expect("held until it is dropped");
        if line.memory.is_none() {
            line.memory = Some(new_memory(client, len)?);
        }
        let memory = line.memory.as_ref().expect("just made");
        Ok((&mut line.remote, memory))
    }

    /// What a request answered. Memory that the service may still reach is no longer used.
    fn understand<T>(
        &mut self,
        what: &str,
        answered: Result<T, RemoteError>,
    ) -> Result<Option<T>, StorageError> {
        match answered {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.status() == Some(ObjectStatus::NOT_FOUND) => Ok(None),
            Err(error) => {
                if error.status().is_none() {
                    *self.parts().1 = None;
                }
                Err(failed(what, error))
            }
        }
    }
}

impl Drop for HeldLine<'_> {
    fn drop(&mut self) {
        if let Some(line) = self.line.take() {
            self.store.lock().push(line);
            self.store.freed.notify_one();
        }
    }
}

/// Memory of the host that a service may read and write.
fn new_memory(client: &ObjectClient, len: usize) -> Result<ObjectMemory, StorageError> {
    let other = |error: String| StorageError::Other(format!("memory for {len} bytes: {error}"));
    let pool = SharedBufferManager::allocate(1, len).map_err(|error| other(error.to_string()))?;
    let buffer = pool.try_acquire().expect("nobody else has the pool");
    let registered = client.register(buffer, Access::all());
    registered.map_err(|refused| other(refused.kind.to_string()))
}

fn failed(what: &str, error: RemoteError) -> StorageError {
    if let RemoteError::Name(why) = &error {
        return StoreKeyError::from(format!("{what:?}: {why}")).into();
    }
    let kind = match &error {
        RemoteError::TimedOut { .. } => io::ErrorKind::TimedOut,
        RemoteError::Closed(_) => io::ErrorKind::NotConnected,
        RemoteError::Checksum { .. } => io::ErrorKind::InvalidData,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, format!("object {what}: {error}")).into()
}
