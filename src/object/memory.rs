//! `ObjectMemory`: memory that an `ObjectClient` lends; `LentToken`: one loan.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::Instant;

use crate::endpoint::WindowMemory;
use crate::memory::{Access, Path};
use crate::object::client::ClientCore;
use crate::object::lender::{Ended, Lent};
use crate::object::staging::StagingLoan;
use crate::object::window_body::WindowBody;
use crate::object::{NotReleased, ObjectError, RdmaToken, TransferCause};

/// What a server does with memory that is lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectOperation {
    /// It writes an object into it.
    Get,
    /// It reads an object from it.
    Put,
}

impl ObjectOperation {
    /// The least right that the server needs.
    pub fn access(self) -> Access {
        match self {
            Self::Get => Access::WRITE,
            Self::Put => Access::READ,
        }
    }
}

impl fmt::Display for ObjectOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Get => "GET",
            Self::Put => "PUT",
        })
    }
}

/// Memory that is registered with an [`ObjectClient`](crate::object::ObjectClient), for servers to
/// write or read by themselves.
///
/// Nothing can reach it while no token of it stands. It is the client's until
/// [`release`](Self::release) gives it back, or until it is dropped: then it is freed when nobody
/// can reach it any more, which may be the end of the client.
pub struct ObjectMemory {
    body: Arc<WindowBody>,
    access: Access,
    path: Path,
    client: Arc<ClientCore>,
}

/// A part of a request: the token of it, and the memory of the host that its bytes pass, if they
/// do.
pub(super) struct PartLoan {
    /// Over before the buffer goes back (field order).
    token: LentToken,
    staging: Option<StagingLoan>,
}

impl PartLoan {
    pub(super) fn token(&self) -> &RdmaToken {
        &self.token
    }
}

impl ObjectMemory {
    pub(super) fn new(
        body: Arc<WindowBody>,
        (access, path): (Access, Path),
        client: &Arc<ClientCore>,
    ) -> Self {
        Self {
            body,
            access,
            path,
            client: Arc::clone(client),
        }
    }

    /// The length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "memory has at least 1 byte")]
    pub fn len(&self) -> u64 {
        self.body.len() as u64
    }

    /// What servers may do at most.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Bytes that one callback of a GET or a PUT is given at most: larger requests are several
    /// callbacks. It is the least of the setting
    /// [`callback_bytes`](crate::object::ObjectClientConfig::callback_bytes), of what the provider
    /// moves at once, and of the memory's length; and where the bytes pass the host, of
    /// [`staging_bytes`](crate::object::ObjectClientConfig::staging_bytes).
    pub fn max_callback_size(&self) -> u64 {
        let most = self.client.max_callback_size().min(self.len());
        match &self.path {
            Path::Staged(_) => most.min(self.client.staging().bytes()),
            _ => most,
        }
    }

    /// Which way the bytes go between the memory and servers: [`Path::Staged`], with the reason,
    /// for a device's memory that the provider can't reach by itself. It can be got into and put
    /// from ([`ObjectClient::get`](crate::object::ObjectClient::get)), and no token names it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lends a range for one kind of operation, with the least rights: a key of its own, good until
    /// the token is dropped, for any number of transfers. Give its text to a server.
    ///
    /// # Errors
    ///
    /// [`ObjectError`]: the range does not lie within the memory, or has no byte; the memory was
    /// not registered for that operation; servers can't reach it by themselves ([`path`]); too many
    /// tokens stand; the memory is quarantined; or the provider refuses it.
    ///
    /// [`path`]: Self::path
    pub fn token(
        &self,
        range: Range<u64>,
        operation: ObjectOperation,
    ) -> Result<LentToken, ObjectError> {
        let part = self.check(&range, operation)?;
        match (&self.path, self.body.device()) {
            (Path::Staged(reason), Some(device)) => Err(ObjectError::NotDirect {
                kind: device.kind(),
                reason: Arc::clone(reason),
            }),
            _ => self.lend(&self.body, part, operation),
        }
    }

    /// The token of a part of a request. What a server is to read was copied to where it reads.
    pub(super) fn loan(
        &self,
        range: Range<u64>,
        operation: ObjectOperation,
    ) -> Result<PartLoan, ObjectError> {
        let (Path::Staged(_), Some(device)) = (&self.path, self.body.device()) else {
            let token = self.token(range, operation)?;
            let staging = None;
            return Ok(PartLoan { token, staging });
        };
        let (at, len) = self.check(&range, operation)?;
        let staging = StagingLoan::take(&self.client, device.device)?;
        if operation == ObjectOperation::Put {
            staging.copy_out_of(self, at, len)?;
        }
        let token = self.lend(staging.body(), (0, len), operation)?;
        let staging = Some(staging);
        Ok(PartLoan { token, staging })
    }

    /// A server has answered for the first `said` bytes of a part, which begins at `at`: its token
    /// is over, and what was written is in the memory.
    pub(super) fn end_loan(&self, loan: PartLoan, at: u64, said: u64) -> Result<(), TransferCause> {
        let PartLoan { token, staging } = loan;
        let operation = token.operation();
        token.done();
        match (operation, staging) {
            (ObjectOperation::Put, _) => Ok(()),
            (ObjectOperation::Get, None) => self.see_writes().map_err(TransferCause::Device),
            (ObjectOperation::Get, Some(staging)) => {
                // Both are within the memory, as the part was.
                let copied = staging.copy_into(self, at as usize, said as usize);
                copied.map_err(|error| ObjectError::Copy(error).into())
            }
        }
    }

    /// Lends a part of the memory, or of the buffer that its bytes pass.
    fn lend(
        &self,
        body: &Arc<WindowBody>,
        part: (usize, usize),
        operation: ObjectOperation,
    ) -> Result<LentToken, ObjectError> {
        let access = operation.access();
        let (lent, token) = self.client.lender().lend(body, part, access)?;
        self.client.telemetry().on_token();
        Ok(LentToken {
            token,
            operation,
            lent: Some(lent),
            is_staged: self.path.is_staged(),
            client: Arc::clone(&self.client),
        })
    }

    /// Where a range begins, and how long it is, if it can be lent for that.
    pub(super) fn check(
        &self,
        range: &Range<u64>,
        operation: ObjectOperation,
    ) -> Result<(usize, usize), ObjectError> {
        self.client.check_here()?;
        let asked = operation.access();
        if !self.access.contains(asked) {
            let has = self.access;
            return Err(ObjectError::Access { asked, has });
        }
        let (start, end) = (range.start, range.end);
        let len = end
            .checked_sub(start)
            .ok_or(ObjectError::Reversed { start, end })?;
        if len == 0 {
            return Err(ObjectError::Empty);
        }
        if end > self.len() {
            return Err(ObjectError::OutOfRange {
                offset: start,
                len,
                memory_len: self.len(),
            });
        }
        // Both are at most the memory's length.
        Ok((start as usize, len as usize))
    }

    /// Where the bytes of a range lie in a device's memory; `None`: in no device's, or there are
    /// none.
    ///
    /// # Panics
    /// If the range does not lie within the memory.
    pub(super) fn device_address(&self, at: usize, len: usize) -> Option<u64> {
        let fits = at
            .checked_add(len)
            .is_some_and(|end| end <= self.body.len());
        assert!(fits, "{len} bytes at {at} of {}", self.len());
        let range = self.body.device()?;
        (len > 0).then_some(range.address + at as u64)
    }

    /// Copies bytes as they are at this moment: a server that holds a token may write meanwhile.
    ///
    /// # Errors
    ///
    /// [`ObjectError::NotCopied`] for memory of a device and for slices of a region, which their
    /// owner reads; [`ObjectError::OutOfRange`].
    pub fn copy_out(&self, from: u64, into: &mut [u8]) -> Result<(), ObjectError> {
        self.body.copy_out(from, into)
    }

    /// Copies bytes into the memory. What a server reads meanwhile is some of the old ones and some
    /// of the new ones.
    ///
    /// # Errors
    ///
    /// As [`copy_out`](Self::copy_out), and [`ObjectError::NotCopied`] for a shared buffer.
    pub fn copy_in(&self, at: u64, bytes: &[u8]) -> Result<(), ObjectError> {
        self.body.copy_in(at, bytes)
    }

    /// Gives the memory back when nobody can reach it any more.
    ///
    /// Where the close of a registration ends all access (`verbs`, [`AccessEnds::WithKey`]), that
    /// is at once. Elsewhere the endpoint that servers reached it by is closed first, if there was
    /// a token; which waits for tokens of other memory behind the same endpoint.
    ///
    /// [`AccessEnds::WithKey`]: crate::fabric::AccessEnds::WithKey
    ///
    /// # Errors
    ///
    /// [`NotReleased`], with the memory as it was.
    pub fn release(self, deadline: Instant) -> Result<WindowMemory, NotReleased> {
        let tokens = self.body.reach().tokens;
        if tokens > 0 {
            return Err(NotReleased::Lent {
                tokens,
                memory: self,
            });
        }
        self.client.lender().wait_free(&self.body, deadline);
        match self.body.take() {
            Some(memory) => Ok(memory),
            None => Err(NotReleased::Deadline { memory: self }),
        }
    }

    /// Whether it is this client's.
    pub(super) fn is_of(&self, client: &Arc<ClientCore>) -> bool {
        Arc::ptr_eq(&self.client, client)
    }

    /// Makes what a server wrote visible, where the memory is a device's.
    fn see_writes(&self) -> Result<(), crate::cuda::CudaError> {
        match self.body.device() {
            Some(range) => range.device.see_writes(),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for ObjectMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectMemory")
            .field("len", &self.len())
            .field("access", &self.access)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// A token that stands: whoever knows its text may use the memory that it names. Dropped, its key
/// is closed and names nothing any more.
///
/// The token is good for any number of transfers until then. Dropping it abandons what may be under
/// way: memory that was lent for a GET is quarantined where the provider may still finish a write
/// that it has begun. [`done`](Self::done) says that every transfer has been answered for.
///
/// ```
/// use fabricast::buffer::SharedBufferManager;
/// use fabricast::fabric::EndpointKind;
/// use fabricast::memory::Access;
/// use fabricast::object::{ObjectClient, ObjectClientConfig, ObjectOperation};
/// use fabricast::Fabric;
///
/// # let open = |provider| Fabric::builder()
/// #     .provider(provider).endpoint_kind(EndpointKind::Rdm).node("127.0.0.1").open();
/// # let Ok(fabric) = open("tcp").or_else(|_| open("net")) else { return Ok(()) };
/// let client = ObjectClient::open(&fabric, ObjectClientConfig::default())?;
/// let pool = SharedBufferManager::allocate(1, 1 << 20)?;
/// let memory = client.register(pool.try_acquire().expect("one is free"), Access::WRITE)?;
/// // 4 KiB from 1 KiB on, for a server to write to.
/// let token = memory.token(1024..5120, ObjectOperation::Get)?;
/// println!("{token}");
/// token.done();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LentToken {
    token: RdmaToken,
    operation: ObjectOperation,
    /// Taken out once.
    lent: Option<Lent>,
    /// Other transfers pass the memory later.
    is_staged: bool,
    client: Arc<ClientCore>,
}

impl LentToken {
    /// What it was lent for.
    pub fn operation(&self) -> ObjectOperation {
        self.operation
    }

    /// Ends the loan: servers have answered for every transfer, and nothing is under way. A server
    /// that lied may still write what it had begun, as [`ObjectMemory::release`] knows.
    pub fn done(mut self) {
        self.end(Ended::Done);
    }

    fn end(&mut self, ended: Ended) {
        let Some(lent) = self.lent.take() else {
            return;
        };
        if self.client.check_here().is_err() {
            std::mem::forget(lent);
            return;
        }
        let ended = match self.operation {
            ObjectOperation::Get => ended,
            // What a server goes on reading must not be what others put there.
            ObjectOperation::Put if self.is_staged => ended,
            // Nothing lands.
            ObjectOperation::Put => Ended::Done,
        };
        self.client.lender().end(lent, ended);
        self.client.telemetry().on_rekey();
    }
}

impl Deref for LentToken {
    type Target = RdmaToken;

    fn deref(&self) -> &RdmaToken {
        &self.token
    }
}

impl Drop for LentToken {
    fn drop(&mut self) {
        self.end(Ended::Abandoned);
    }
}

impl fmt::Display for LentToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.token, f)
    }
}

impl fmt::Debug for LentToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentToken")
            .field("token", &self.token)
            .field("operation", &self.operation)
            .finish_non_exhaustive()
    }
}
