//! `ObjectClient`: lends memory by tokens, and calls the application back for each transfer.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::Error;
use crate::endpoint::{Refused, WindowMemory};
use crate::fabric::{Completions, Fabric};
use crate::memory::{Access, Path};
use crate::object::lender::Lender;
use crate::object::parts::Parts;
use crate::object::progress::{Bell, ProgressThread};
use crate::object::staging::StagingPool;
use crate::object::telemetry::Telemetry;
use crate::object::window_body::WindowBody;
use crate::object::{
    AsyncObjectOps, ObjectClientConfig, ObjectError, ObjectMemory, ObjectOperation, ObjectOps,
    ObjectSide, ObjectStats, TransferFailed,
};
use crate::process::{Forked, Here, Owner};

/// What a client and its memory share.
#[derive(Debug)]
pub(super) struct ClientCore {
    owner: Owner,
    /// Ends before the lender goes.
    _thread: Option<Here<ProgressThread>>,
    /// Its buffers go before the domain does.
    staging: Here<StagingPool>,
    lender: Here<Arc<Lender>>,
    telemetry: Arc<Telemetry>,
    pub(super) config: ObjectClientConfig,
}

impl ClientCore {
    pub(super) fn lender(&self) -> &Lender {
        &self.lender
    }

    pub(super) fn telemetry(&self) -> &Arc<Telemetry> {
        &self.telemetry
    }

    pub(super) fn staging(&self) -> &StagingPool {
        &self.staging
    }

    /// Memory to be lent.
    pub(super) fn window_body(
        &self,
        memory: WindowMemory,
    ) -> Result<WindowBody, (ObjectError, WindowMemory)> {
        WindowBody::new(memory, self.lender.domain().ledger(), &self.telemetry)
    }

    /// Which way the bytes of such memory go. Memory that is refused was not lent.
    fn path_of(&self, body: &Arc<WindowBody>, access: Access) -> Result<Path, ObjectError> {
        if body.device().is_none() {
            return Ok(Path::Host);
        }
        // What a callback is given is what has to be registered.
        let len = self.max_callback_size().min(body.len() as u64);
        self.lender.try_path(body, len as usize, access)
    }

    pub(super) fn check_here(&self) -> Result<(), Forked> {
        self.owner.check()
    }

    pub(super) fn max_callback_size(&self) -> u64 {
        self.config
            .callback_bytes
            .min(self.lender.limits().rma.max_bytes)
    }
}

/// A client of objects: it registers memory, lends it by an
/// [`RdmaToken`](crate::object::RdmaToken), and lets servers move the bytes by themselves. Any
/// number of threads may use it at once.
///
/// It has a domain of its own, so its tokens reach nothing but memory that was registered here: who
/// wants memory apart from other memory takes a second client. What the control path is, how a
/// token gets to a server and its answer back, is the application's business ([`ObjectOps`]).
///
/// This is the reference's `cuObjClient`, over any provider with one-sided operations: the guide
/// has the table of its methods.
///
/// ```
/// use fabricast::buffer::SharedBufferManager;
/// use fabricast::fabric::EndpointKind;
/// use fabricast::memory::Access;
/// use fabricast::object::{CallbackError, ObjectChunk, ObjectClient};
/// use fabricast::object::{ObjectClientConfig, ObjectOps};
/// use fabricast::Fabric;
///
/// /// Tells a server, by whatever means.
/// struct ByTelephone;
///
/// impl ObjectOps for ByTelephone {
///     fn get(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
///         println!("write {} bytes to {}, please", chunk.len(), chunk.token());
///         Ok(chunk.len())
///     }
///     fn put(&mut self, _: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
///         Err("read only".into())
///     }
/// }
///
/// # let open = |provider| Fabric::builder()
/// #     .provider(provider).endpoint_kind(EndpointKind::Rdm).node("127.0.0.1").open();
/// # let Ok(fabric) = open("tcp").or_else(|_| open("net")) else { return Ok(()) };
/// let client = ObjectClient::open(&fabric, ObjectClientConfig::default())?;
/// let pool = SharedBufferManager::allocate(1, 1 << 20)?;
/// let memory = client.register(pool.try_acquire().expect("one is free"), Access::all())?;
/// assert_eq!(client.get(&mut ByTelephone, &memory, 0..1 << 20, 0)?, 1 << 20);
/// let failed = client.put(&mut ByTelephone, &memory, 0..1 << 20, 0).unwrap_err();
/// assert_eq!((failed.transferred, failed.cause.to_string().as_str()),
///     (0, "the callback failed: read only"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ObjectClient {
    pub(super) core: Arc<ClientCore>,
}

impl ObjectClient {
    /// Opens a client on a fabric of endpoints without connections.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`]: the fabric was opened for another kind of endpoint, or the provider
    /// has no one-sided operations; [`Error::Config`]; [`Error::Address`] where the endpoint has no
    /// address that a token could name; or what the provider answers.
    pub fn open(fabric: &Arc<Fabric>, config: ObjectClientConfig) -> Result<Self, Error> {
        config.check()?;
        let owner = Owner::current();
        let bell = Bell::new()?;
        let wake = Box::new(Arc::clone(&bell));
        let lender = Lender::open(fabric, config.endpoint, config.tokens, wake)?;
        let thread = match config.progress_thread {
            true => Some(Here::new(ProgressThread::start(&lender, &bell)?)),
            false => None,
        };
        Ok(Self {
            core: Arc::new(ClientCore {
                owner,
                _thread: thread,
                staging: Here::new(StagingPool::new(
                    config.staging_bytes,
                    config.staging_buffers,
                )),
                lender: Here::new(lender),
                telemetry: Telemetry::new(ObjectSide::Client, &config.name),
                config,
            }),
        })
    }

    /// Takes memory of the host or of a device. Nobody can reach it before a token is lent.
    ///
    /// `access` is what tokens of it may allow at most: [`Access::WRITE`] for GET, [`Access::READ`]
    /// for PUT. There is no limit on its length but the machine's.
    ///
    /// A device's memory, and CUDA's managed memory, is lent as it lies where the provider reaches
    /// it by itself. Elsewhere [`get`](Self::get) and [`put`](Self::put) copy through buffers of
    /// the host ([`staging_bytes`](ObjectClientConfig::staging_bytes)), part by part, and no token
    /// can be had of it; [`ObjectMemory::path`] says which it is, and why.
    ///
    /// # Errors
    ///
    /// [`Refused`], with the memory in it.
    pub fn register(
        &self,
        memory: impl Into<WindowMemory>,
        access: Access,
    ) -> Result<ObjectMemory, Refused<WindowMemory, ObjectError>> {
        let memory = memory.into();
        if let Err(forked) = self.core.check_here() {
            return Err(Refused::without_key(forked, memory));
        }
        if access.is_empty() || !memory.allows(access) {
            let has = match access.is_empty() {
                true => Access::all(),
                false => Access::READ,
            };
            let refused = ObjectError::Access { asked: access, has };
            return Err(Refused::without_key(refused, memory));
        }
        let body = match self.core.window_body(memory) {
            Ok(body) => Arc::new(body),
            Err((error, memory)) => return Err(Refused::without_key(error, memory)),
        };
        match self.core.path_of(&body, access) {
            Ok(path) => Ok(ObjectMemory::new(body, (access, path), &self.core)),
            Err(error) => {
                let memory = body.take().expect("nothing of it was lent");
                Err(Refused::without_key(error, memory))
            }
        }
    }

    /// Gets part of an object: has a server write it into a range of the memory.
    ///
    /// The range is cut into parts of at most
    /// [`max_callback_size`](ObjectMemory::max_callback_size), and the callback is called for one
    /// after the other, in ascending order. Each has a token of its own whose key is closed when
    /// the callback returns: one that is used again is refused. `offset` is where the range begins
    /// in the object.
    ///
    /// The answer is how many bytes were moved; a callback that answers for fewer than it was given
    /// ends the request.
    ///
    /// # Errors
    ///
    /// [`TransferFailed`], which says what callbacks before had answered for. What a failed one
    /// began may still land: the memory is quarantined until it can't. A range that is not in the
    /// memory, or in no object, is refused before the first callback.
    pub fn get<O: ObjectOps>(
        &self,
        ops: &mut O,
        memory: &ObjectMemory,
        range: Range<u64>,
        offset: u64,
    ) -> Result<u64, TransferFailed> {
        Parts::new(self, ObjectOperation::Get, memory, range, offset)?.call(ops)
    }

    /// Puts part of an object: has a server read it from a range of the memory. Otherwise as
    /// [`get`](Self::get).
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub fn put<O: ObjectOps>(
        &self,
        ops: &mut O,
        memory: &ObjectMemory,
        range: Range<u64>,
        offset: u64,
    ) -> Result<u64, TransferFailed> {
        Parts::new(self, ObjectOperation::Put, memory, range, offset)?.call(ops)
    }

    /// As [`get`](Self::get), with a control path that is awaited. Dropping the future is an
    /// abandoned transfer. Memory that is quarantined is refused at once.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub async fn get_async<O: AsyncObjectOps>(
        &self,
        ops: &mut O,
        memory: &ObjectMemory,
        range: Range<u64>,
        offset: u64,
    ) -> Result<u64, TransferFailed> {
        let parts = Parts::new(self, ObjectOperation::Get, memory, range, offset)?;
        parts.call_async(ops).await
    }

    /// As [`put`](Self::put), with a control path that is awaited.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub async fn put_async<O: AsyncObjectOps>(
        &self,
        ops: &mut O,
        memory: &ObjectMemory,
        range: Range<u64>,
        offset: u64,
    ) -> Result<u64, TransferFailed> {
        let parts = Parts::new(self, ObjectOperation::Put, memory, range, offset)?;
        parts.call_async(ops).await
    }

    /// Has the provider do what there is to do for servers, and returns at once. For threads that
    /// wait for a server's answer, which is sooner there so; without a
    /// [`progress_thread`](ObjectClientConfig::progress_thread), for somebody at all.
    pub fn progress(&self) {
        if self.core.check_here().is_err() {
            return;
        }
        let mut scratch = Completions::new();
        for endpoint in self.core.lender.in_use() {
            endpoint.progress(&mut scratch);
        }
    }

    /// Whether memory can be lent here. It can't be in a forked child; after the client's endpoint
    /// was closed behind an abandoned transfer, and the next one could not be opened, until one
    /// can; and while the provider fails to serve an endpoint. There is no connection to a server
    /// to lose: servers come and go, and their end is the control path's to notice.
    pub fn is_connected(&self) -> bool {
        self.core.check_here().is_ok() && self.core.lender().is_open()
    }

    /// What was done so far, and how long it took.
    pub fn stats(&self) -> ObjectStats {
        self.core.telemetry.stats()
    }

    /// What stands: tokens, and keys of dropped ones that are closed with their endpoint only.
    pub fn standing(&self) -> (usize, usize) {
        self.core.lender.standing()
    }
}

impl fmt::Debug for ObjectClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectClient")
            .field("config", &self.core.config)
            .field("standing", &self.standing())
            .finish_non_exhaustive()
    }
}
