//! `ObjectService`: serves a store, over connections of our own endpoints.
//!
//! ```text
//!  client ── requests ──► ControlPort ─► intake ─► job ◄─── answers ─── StoreDesk ◄── ObjectStore
//!    ▲ ◄──── answers ───────┘                       │ pieces                              ▲
//!    └──═══ RMA ═══ ObjectChannel ◄────────── moving ───── buffers ───────────────────────┘
//! ```
//!
//! A worker is one thread. It never waits for the store: a store that may block is asked by threads
//! of its own, and pieces are read and written as they come.

mod account;
mod config;
mod errands;
mod fair_lines;
mod get_job;
mod intake;
mod job;
mod moving;
mod piece_walk;
mod put_job;
mod shares;
mod store_desk;
mod worker;

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

pub use config::ObjectServiceConfig;

use crate::event_loop::Waker;
use crate::fabric::{Fabric, PeerAddr};
use crate::object::ObjectServer;
use crate::object::store::ObjectStore;
use crate::process::{Here, contained};
use crate::{Error, object::service::worker::ServiceWorker};
use worker::StopBy;

/// How long what is under way may go on when a service is dropped.
const DROP_TIMEOUT: Duration = Duration::from_secs(1);
/// How long behind the deadline a worker is waited for, which looks at the time now and then.
const GRACE: Duration = Duration::from_millis(500);

/// Serves a store: names, ranges, conditions, lists, checksums; ready to be used with
/// [`RemoteObjects`](crate::object::RemoteObjects).
///
/// Requests come over one fabric, of either kind of endpoint (`control`); the bytes move over one
/// of endpoints without connections (`data`), which may be the same. Each worker is a thread with
/// an address, a channel and buffers of its own.
///
/// A request is answered exactly once, unless its connection ends: then what it moved is given up,
/// and what was half put is gone. What goes wrong in the store
/// is told by a number and a text that has no paths.
///
/// A client that does not progress its window is cut off ([`stall`](ObjectServiceConfig::stall)).
/// Until then it keeps the buffers that it has: one, if it has moved nothing yet or was late in the
/// last 60 s, else at most a fourth of them. The last fourth is for those that have moved something
/// and were not late since; new clients of one host have a fourth together. So one that is new
/// waits where others of its host stall: as a rule for a second, at most until they are cut off. A
/// place for one request is kept for each connection. Several clients that first behave well and
/// then stall together can take all buffers once, until they are cut off.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use fabricast::Fabric;
/// use fabricast::buffer::SharedBufferManager;
/// use fabricast::fabric::EndpointKind;
/// use fabricast::memory::Access;
/// use fabricast::object::{
///     MemoryStore, ObjectClient, ObjectClientConfig, ObjectService, ObjectServiceConfig,
///     PutCondition, RemoteConfig, RemoteObjects,
/// };
///
/// # let open = |provider| Fabric::builder()
/// #     .provider(provider).endpoint_kind(EndpointKind::Rdm).node("127.0.0.1").open();
/// // What libfabric up to 1.17 calls `net` is `tcp` later.
/// # let Ok(fabric) = open("tcp").or_else(|_| open("net")) else { return Ok(()) };
/// let any = "127.0.0.1:0".parse()?;
/// let config = ObjectServiceConfig::default();
/// let service = ObjectService::start(MemoryStore::new(), &fabric, any, &fabric, config)?;
///
/// let client = ObjectClient::open(&fabric, ObjectClientConfig::default())?;
/// let pool = SharedBufferManager::allocate(1, 5)?;
/// let mut buffer = pool.try_acquire().expect("one is free");
/// buffer.copy_from_slice(b"hello");
/// let memory = client.register(buffer, Access::all())?;
///
/// let address = service.local_addr();
/// let mut remote = RemoteObjects::connect(&client, &fabric, &address, RemoteConfig::default())?;
/// let deadline = Instant::now() + Duration::from_secs(60);
/// let put = remote.put("greeting", &memory, 0..5, &PutCondition::Absent, deadline)?;
/// memory.copy_in(0, b".....")?;
/// let got = remote.get("greeting", &memory, 0..5, 0, deadline)?;
/// assert_eq!((got.moved, got.etag), (5, put.etag));
/// let mut bytes = [0; 5];
/// memory.copy_out(0, &mut bytes)?;
/// assert_eq!(&bytes, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ObjectService {
    workers: Here<Vec<WorkerHandle>>,
    addrs: Vec<PeerAddr>,
}

struct WorkerHandle {
    stop: StopBy,
    waker: Waker,
    /// Nothing comes of it: it is cut off when the worker has ended.
    ended: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl ObjectService {
    /// Starts to serve. The first worker listens at `listen`, each of the others at the same host
    /// and a port that the system chooses.
    ///
    /// # Errors
    /// [`Error::Config`] for a setting out of its range; [`Error::Unsupported`] where `data` has
    /// connected endpoints, or a provider without one-sided operations; what opening endpoints,
    /// memory and threads says.
    pub fn start(
        store: impl ObjectStore,
        control: &Arc<Fabric>,
        listen: PeerAddr,
        data: &Arc<Fabric>,
        config: ObjectServiceConfig,
    ) -> Result<Self, Error> {
        config.check()?;
        let store: Arc<dyn ObjectStore> = Arc::new(store);
        let control = control.open_domain()?;
        let (channels, networks) = config.server.clone().of_service();
        let server = ObjectServer::open(data, channels)?;
        let mut service = Self {
            workers: Here::new(Vec::new()),
            addrs: Vec::new(),
        };
        for index in 0..config.workers {
            let listen = if index == 0 { listen } else { beside(listen) };
            let worker =
                ServiceWorker::open(&store, &control, listen, &server, &networks, &config)?;
            service.addrs.push(worker.local_addr().unwrap_or(listen));
            service.workers.push(WorkerHandle::spawn(worker)?);
        }
        Ok(service)
    }

    /// Where the first worker listens.
    pub fn local_addr(&self) -> PeerAddr {
        self.addrs[0]
    }

    /// Where each worker listens.
    pub fn local_addrs(&self) -> &[PeerAddr] {
        &self.addrs
    }

    /// Ends it: new requests are refused, those that are served go on until the deadline. Then it
    /// returns, within about half a second: a thread that the store keeps in a call is left, with a
    /// handle on the store, and ends when the call does.
    pub fn close(mut self, deadline: Instant) {
        self.stop(deadline);
    }

    fn stop(&mut self, by: Instant) {
        if !self.workers.owner().is_here() {
            return;
        }
        self.workers.iter().for_each(|worker| worker.tell(by));
        for worker in self.workers.iter_mut() {
            worker.join(by + GRACE);
        }
    }
}

impl Drop for ObjectService {
    fn drop(&mut self) {
        self.stop(Instant::now() + DROP_TIMEOUT);
    }
}

impl fmt::Debug for ObjectService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectService")
            .field("addrs", &self.addrs)
            .finish_non_exhaustive()
    }
}

impl WorkerHandle {
    fn spawn(worker: ServiceWorker) -> Result<Self, Error> {
        let (stop, waker) = worker.stopper();
        let builder = std::thread::Builder::new().name("fabricast-serve".to_owned());
        let (alive, ended) = bounded(0);
        let run = move || {
            let _alive: Sender<()> = alive;
            if let Err(text) = contained(|| worker.run()) {
                tracing::error!(%text, "a worker of a service of objects panicked");
            }
        };
        let thread = builder.spawn(run).map_err(|source| Error::Os {
            call: "pthread_create",
            source,
        })?;
        Ok(Self {
            stop,
            waker,
            ended,
            thread: Some(thread),
        })
    }

    /// Waits until it has ended, at most until then. One that a store keeps longer is left: what it
    /// has, it owns.
    fn join(&mut self, by: Instant) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        match self.ended.recv_deadline(by) {
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!("an object store keeps a service that has ended");
            }
            // Its panic was caught and logged.
            _ => drop(thread.join()),
        }
    }

    fn tell(&self, by: Instant) {
        *self.stop.lock().unwrap_or_else(|it| it.into_inner()) = Some(by);
        self.waker.wake();
    }
}

/// Another port of the same host.
fn beside(listen: PeerAddr) -> PeerAddr {
    match listen.socket_addr() {
        Some(mut addr) => {
            addr.set_port(0);
            addr.into()
        }
        None => PeerAddr::any(),
    }
}
