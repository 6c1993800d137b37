//! `ObjectClient`: lends memory by tokens, and calls the application back for each transfer.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Error;
use crate::endpoint::{Refused, WindowMemory};
use crate::fabric::{Completions, EndpointSettings, Fabric};
use crate::memory::Access;
use crate::object::lender::Lender;
use crate::object::memory::{LentToken, ObjectMemory, ObjectOperation};
use crate::object::progress::{Bell, ProgressThread};
use crate::object::window_body::WindowBody;
use crate::object::{ObjectError, RdmaToken};
use crate::process::{Forked, Here, Owner};

/// How often somebody who waits for memory that is quarantined looks.
const QUARANTINE_LOOK: Duration = Duration::from_millis(1);

/// How an [`ObjectClient`] behaves.
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `callback_bytes` | bytes that one callback is given at most | 1 GiB | at least 1 |
/// | `tokens` | tokens that stand at once | 4,096 | at least 1 |
/// | `quarantine` | how long a transfer waits for memory that is quarantined | 5 s | |
/// | `progress_thread` | a thread serves the endpoint while tokens stand | true | |
/// | `endpoint` | what the endpoint asks of the provider | | see [`EndpointSettings`] |
#[derive(Debug, Clone)]
pub struct ObjectClientConfig {
    callback_bytes: u64,
    tokens: usize,
    quarantine: Duration,
    progress_thread: bool,
    endpoint: EndpointSettings,
}

impl Default for ObjectClientConfig {
    fn default() -> Self {
        Self {
            callback_bytes: 1 << 30,
            tokens: 4096,
            quarantine: Duration::from_secs(5),
            progress_thread: true,
            endpoint: EndpointSettings::default(),
        }
    }
}

impl ObjectClientConfig {
    /// Bytes that one callback is given at most.
    #[must_use]
    pub fn callback_bytes(mut self, bytes: u64) -> Self {
        self.callback_bytes = bytes;
        self
    }

    /// Tokens that stand at once, of all memory together.
    #[must_use]
    pub fn tokens(mut self, tokens: usize) -> Self {
        self.tokens = tokens;
        self
    }

    /// How long a transfer waits until memory is not quarantined any more.
    #[must_use]
    pub fn quarantine(mut self, at_most: Duration) -> Self {
        self.quarantine = at_most;
        self
    }

    /// Whether a thread serves the endpoint while tokens stand. Without it, servers get nowhere
    /// (but where the card does all by itself) while nobody calls [`ObjectClient::progress`].
    #[must_use]
    pub fn progress_thread(mut self, has_one: bool) -> Self {
        self.progress_thread = has_one;
        self
    }

    /// What the endpoint asks of the provider.
    #[must_use]
    pub fn endpoint(mut self, settings: EndpointSettings) -> Self {
        self.endpoint = settings;
        self
    }

    fn check(&self) -> Result<(), Error> {
        let zero = |field| Error::Config {
            field,
            value: "0".to_owned(),
            reason: "must be at least 1".into(),
        };
        match (self.callback_bytes, self.tokens) {
            (0, _) => Err(zero("callback_bytes")),
            (_, 0) => Err(zero("tokens")),
            _ => Ok(()),
        }
    }
}

/// What an application's callbacks get: one part of a request, and the token that a server needs
/// for it.
#[derive(Debug)]
pub struct ObjectChunk<'a> {
    token: &'a RdmaToken,
    offset: u64,
    memory_offset: u64,
}

impl ObjectChunk<'_> {
    /// Names the memory of this part, and nothing else. It is good during the callback only.
    pub fn token(&self) -> &RdmaToken {
        self.token
    }

    /// Where the part begins in the object, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Where the part begins in the memory, in bytes.
    pub fn memory_offset(&self) -> u64 {
        self.memory_offset
    }

    /// How many bytes it has.
    #[expect(clippy::len_without_is_empty, reason = "a part has at least 1 byte")]
    pub fn len(&self) -> u64 {
        self.token.len()
    }
}

/// Why a callback failed: any error of the application's.
pub type CallbackError = Box<dyn std::error::Error + Send + Sync>;

/// The application's control path: it tells a server what to do with a token, and waits for its
/// answer. One call after the other for one request, on the caller's thread.
pub trait ObjectOps {
    /// Has a server write this part of the object into the memory.
    ///
    /// The answer is how many bytes it wrote, from the part's start on: fewer than asked for where
    /// the object ends.
    ///
    /// # Errors
    ///
    /// Whatever ends the request.
    fn get(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError>;

    /// Has a server read this part of the object from the memory.
    ///
    /// # Errors
    ///
    /// Whatever ends the request.
    fn put(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError>;
}

/// The same for a control path that is awaited.
pub trait AsyncObjectOps {
    /// As [`ObjectOps::get`].
    fn get(
        &mut self,
        chunk: &ObjectChunk<'_>,
    ) -> impl Future<Output = Result<u64, CallbackError>> + Send;

    /// As [`ObjectOps::put`].
    fn put(
        &mut self,
        chunk: &ObjectChunk<'_>,
    ) -> impl Future<Output = Result<u64, CallbackError>> + Send;
}

/// A GET or PUT that did not end well.
#[derive(Debug, thiserror::Error)]
#[error("{operation} ended after {transferred} bytes: {cause}")]
pub struct TransferFailed {
    /// Which.
    pub operation: ObjectOperation,
    /// Bytes that callbacks before had answered for, from the begin of the request on.
    pub transferred: u64,
    /// Why.
    #[source]
    pub cause: TransferCause,
}

/// Why a GET or PUT did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferCause {
    /// The memory can't be lent.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The callback failed.
    #[error("the callback failed: {0}")]
    Callback(CallbackError),
    /// The callback said that more bytes were moved than it was given.
    #[error("the callback answered for {said} bytes of a part of {asked}")]
    TooMany {
        /// What it said.
        said: u64,
        /// What it was given.
        asked: u64,
    },
    /// The memory is another client's.
    #[error("the memory is registered with another client: register it with this one")]
    OtherClient,
    /// What a server wrote into a device's memory can't be made visible.
    #[error("what came can't be made visible in the device's memory: {0}")]
    Device(crate::cuda::CudaError),
}

/// What a client and its memory share.
#[derive(Debug)]
pub(super) struct ClientCore {
    owner: Owner,
    /// Ends before the lender goes.
    _thread: Option<Here<ProgressThread>>,
    lender: Here<Arc<Lender>>,
    config: ObjectClientConfig,
}

impl ClientCore {
    pub(super) fn lender(&self) -> &Lender {
        &self.lender
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

/// A client of objects: it registers memory, lends it by [`RdmaToken`]s, and lets servers move the
/// bytes by themselves. Any number of threads may use it at once.
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
/// use fabricast::object::{CallbackError, ObjectChunk, ObjectClient, ObjectClientConfig, ObjectOps};
/// use fabricast::Fabric;
///
/// /// Tells a server, by whatever means.
/// struct ByTelephone;
///
/// impl ObjectOps for ByTelephone {
///     fn get(&mut self, chunk: &ObjectChunk<'_>) -> Result<u64, CallbackError> {
///         println!("please write {} bytes from {} on to {}", chunk.len(), chunk.offset(), chunk.token());
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
                lender: Here::new(lender),
                config,
            }),
        })
    }

    /// Takes memory of the host or of a device. Nobody can reach it before a token is lent.
    ///
    /// `access` is what tokens of it may allow at most: [`Access::WRITE`] for GET, [`Access::READ`]
    /// for PUT. There is no limit on its length but the machine's.
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
        let ledger = self.core.lender.domain().ledger();
        match WindowBody::new(memory, ledger) {
            Ok(body) => Ok(ObjectMemory::new(body, access, &self.core)),
            Err((error, memory)) => Err(Refused::without_key(error, memory)),
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
    /// began may still land: the memory is quarantined until it can't.
    pub fn get<O: ObjectOps>(
        &self,
        ops: &mut O,
        memory: &ObjectMemory,
        range: Range<u64>,
        offset: u64,
    ) -> Result<u64, TransferFailed> {
        self.transfer(ObjectOperation::Get, memory, range, offset, |chunk| {
            ops.get(chunk)
        })
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
        self.transfer(ObjectOperation::Put, memory, range, offset, |chunk| {
            ops.put(chunk)
        })
    }

    fn transfer(
        &self,
        operation: ObjectOperation,
        memory: &ObjectMemory,
        range: Range<u64>,
        offset: u64,
        mut call: impl FnMut(&ObjectChunk<'_>) -> Result<u64, CallbackError>,
    ) -> Result<u64, TransferFailed> {
        let mut parts = Parts::new(self, operation, memory, range, offset)?;
        while let Some(token) = parts.next_waiting()? {
            let said = call(&parts.chunk(&token));
            parts.end(token, said)?;
        }
        Ok(parts.done)
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
        let mut parts = Parts::new(self, ObjectOperation::Get, memory, range, offset)?;
        while let Some(token) = parts.next()? {
            let said = ops.get(&parts.chunk(&token)).await;
            parts.end(token, said)?;
        }
        Ok(parts.done)
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
        let mut parts = Parts::new(self, ObjectOperation::Put, memory, range, offset)?;
        while let Some(token) = parts.next()? {
            let said = ops.put(&parts.chunk(&token)).await;
            parts.end(token, said)?;
        }
        Ok(parts.done)
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

    /// Whether memory can be lent here: the client was opened in this process. There is no
    /// connection to lose: servers come and go.
    pub fn is_connected(&self) -> bool {
        self.core.check_here().is_ok()
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

/// A request, part by part.
struct Parts<'a> {
    client: &'a ObjectClient,
    memory: &'a ObjectMemory,
    operation: ObjectOperation,
    range: Range<u64>,
    offset: u64,
    done: u64,
    /// A callback answered for less than it was given.
    is_over: bool,
}

impl<'a> Parts<'a> {
    fn new(
        client: &'a ObjectClient,
        operation: ObjectOperation,
        memory: &'a ObjectMemory,
        range: Range<u64>,
        offset: u64,
    ) -> Result<Self, TransferFailed> {
        let parts = Self {
            client,
            memory,
            operation,
            range,
            offset,
            done: 0,
            is_over: false,
        };
        match memory.is_of(&client.core) {
            true => Ok(parts),
            false => Err(parts.failed(TransferCause::OtherClient)),
        }
    }

    /// The token of the next part; `None` when all was asked for.
    fn next(&mut self) -> Result<Option<LentToken>, TransferFailed> {
        let start = self.range.start.saturating_add(self.done);
        // A request without a byte is refused by the memory, once.
        let all = self.done > 0 && start >= self.range.end;
        if self.is_over || all {
            return Ok(None);
        }
        let len = self.range.end.saturating_sub(start);
        let end = start + len.min(self.memory.max_callback_size());
        match self.memory.token(start..end, self.operation) {
            Ok(token) => Ok(Some(token)),
            Err(error) => Err(self.failed(error.into())),
        }
    }

    /// The same, and waits for memory that is quarantined.
    fn next_waiting(&mut self) -> Result<Option<LentToken>, TransferFailed> {
        let begin = Instant::now();
        let at_most = self.client.core.config.quarantine;
        loop {
            match self.next() {
                Err(TransferFailed {
                    cause: TransferCause::Object(ObjectError::Quarantined),
                    ..
                }) if begin.elapsed() < at_most => std::thread::sleep(QUARANTINE_LOOK),
                next => return next,
            }
        }
    }

    fn chunk<'t>(&self, token: &'t LentToken) -> ObjectChunk<'t> {
        ObjectChunk {
            token,
            offset: self.offset.saturating_add(self.done),
            memory_offset: self.range.start + self.done,
        }
    }

    /// The callback has answered.
    fn end(
        &mut self,
        token: LentToken,
        said: Result<u64, CallbackError>,
    ) -> Result<(), TransferFailed> {
        let asked = token.len();
        let said = match said {
            Ok(said) if said <= asked => said,
            Ok(said) => return Err(self.failed(TransferCause::TooMany { said, asked })),
            Err(error) => return Err(self.failed(TransferCause::Callback(error))),
        };
        token.done();
        self.done += said;
        self.is_over = said < asked;
        if self.operation == ObjectOperation::Get
            && let Err(error) = self.memory.see_writes()
        {
            return Err(self.failed(TransferCause::Device(error)));
        }
        Ok(())
    }

    fn failed(&self, cause: TransferCause) -> TransferFailed {
        TransferFailed {
            operation: self.operation,
            transferred: self.done,
            cause,
        }
    }
}
