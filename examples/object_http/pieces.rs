//! `Pieces`: an object in pieces, between a store and buffers that the network can use.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crc_fast::{CrcAlgorithm, Digest};
use fabricast::buffer::{Buffer, BufferMut, SharedBufferManager};
use fabricast::object::{
    ObjectInfo, ObjectUpload, RdmaToken, StoreCompletion, StoreError, StoredObject,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::Failure;
use crate::checks::{Checks, Refused};
use crate::mover::{Mover, NotMoved};

/// Bytes of a piece.
pub(crate) const PIECE: usize = 1 << 20;

/// Buffers of all requests together. They are waited for when all are in use.
const BUFFERS: u32 = 32;

/// Requests by token at once, which have up to 2 buffers each, and for as long as their client
/// likes within its budget. So there are always buffers that only the store is waited for with.
const BY_TOKEN: usize = 12;

/// Those of one address.
const BY_TOKEN_EACH: usize = 4;

/// How long a request waits to go by token.
const TURN: Duration = Duration::from_secs(1);

/// How long a request waits for a buffer.
const BUFFER_WAIT: Duration = Duration::from_secs(30);

/// Why an object was not moved.
#[derive(Debug)]
pub(crate) enum NotDone {
    Store(StoreError),
    /// The token can't be used, and nothing went out.
    Declined(String),
    Moved(NotMoved),
    /// The client's body ended early, late, or badly.
    Body(String),
    /// The client's body came too slowly.
    Slow(Duration),
    /// What came is not what the client said that it sends.
    Check(Refused),
}

impl From<StoreError> for NotDone {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Refused> for NotDone {
    fn from(refused: Refused) -> Self {
        Self::Check(refused)
    }
}

impl From<NotMoved> for NotDone {
    fn from(error: NotMoved) -> Self {
        Self::Moved(error)
    }
}

/// The buffers, and how many are free.
#[derive(Clone)]
pub(crate) struct Pieces {
    pool: Arc<SharedBufferManager>,
    free: Arc<Semaphore>,
    turns: Arc<Turns>,
    mover: Mover,
}

/// A buffer, and the right to have it.
pub(crate) struct Slot {
    buffer: BufferMut,
    permit: OwnedSemaphorePermit,
}

impl Pieces {
    pub(crate) fn new(domain: &Arc<fabricast::Domain>, mover: Mover) -> Result<Self, Failure> {
        let pool = SharedBufferManager::allocate(BUFFERS, PIECE)?;
        pool.region().register(domain)?;
        Ok(Self {
            pool: Arc::new(pool),
            free: Arc::new(Semaphore::new(BUFFERS as usize)),
            turns: Arc::default(),
            mover,
        })
    }

    /// A buffer; waits for one.
    pub(crate) async fn slot(&self) -> Result<Slot, StoreError> {
        let found = async {
            loop {
                let free = Arc::clone(&self.free);
                let permit = free.acquire_owned().await.expect("it is never closed");
                if let Some(buffer) = self.pool.try_acquire() {
                    return Slot { buffer, permit };
                }
                // A transfer that failed left its buffer with the provider for a while.
                drop(permit);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let found = tokio::time::timeout(BUFFER_WAIT, found).await;
        found.map_err(|_| StoreError::Busy)
    }

    /// The right to go by token. A client whose turn does not come soon is declined.
    pub(crate) async fn turn(&self, client: IpAddr) -> Result<Turn, NotDone> {
        let found = async {
            loop {
                if let Some(turn) = self.turns.take(client) {
                    return turn;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let found = tokio::time::timeout(TURN, found).await;
        found.map_err(|_| {
            let reason = "as many requests go by token already as may at once";
            NotDone::Declined(reason.to_owned())
        })
    }

    /// Reads a piece of an object into a buffer.
    pub(crate) async fn load(
        &self,
        object: &dyn StoredObject,
        at: u64,
        len: usize,
    ) -> Result<(Buffer, OwnedSemaphorePermit), StoreError> {
        let Slot { buffer, permit } = self.slot().await?;
        let (done, outcome) = oneshot::channel();
        let end = move |buffer: Option<BufferMut>, result: Result<usize, StoreError>| {
            let read = result.and_then(|read| match (buffer, read == len) {
                (Some(buffer), true) => Ok(buffer),
                (Some(_), false) => Err(StoreError::Changed),
                (None, _) => Err(StoreError::Lost),
            });
            let _ = done.send(read);
        };
        object.read(at, len, buffer, StoreCompletion::new(end));
        let buffer = outcome.await.unwrap_or(Err(StoreError::Lost))?;
        Ok((buffer.freeze(len), permit))
    }

    /// Writes a range of an object into the client's window. The first piece goes alone, so that a
    /// token that can't be used is declined while nothing has gone out; then the next one is read
    /// while one is on its way.
    pub(crate) async fn push(
        &self,
        object: &Arc<dyn StoredObject>,
        range: Range<u64>,
        token: &RdmaToken,
    ) -> Result<(), NotDone> {
        let mut before = None;
        for (at, len) in cut(range.clone()) {
            let loaded = self.load(&**object, at, len).await;
            if let Some(sending) = before.take() {
                join(sending).await?;
            }
            let (buffer, permit) = loaded?;
            let (mover, token) = (self.mover.clone(), token.clone());
            let place = at - range.start;
            let sending = tokio::spawn(async move {
                let _permit = permit;
                mover.write(&token, place, buffer).await
            });
            match place {
                0 => join(sending).await.map_err(NotDone::at_first)?,
                _ => before = Some(sending),
            }
        }
        match before {
            Some(sending) => join(sending).await,
            None => Ok(()),
        }
    }

    /// Reads an object out of the client's window: all of it, which is as long as the token says.
    pub(crate) async fn pull(
        &self,
        upload: &mut SummedUpload,
        token: &RdmaToken,
    ) -> Result<(), NotDone> {
        for (at, len) in cut(0..token.len()) {
            let Slot { buffer, permit } = self.slot().await?;
            let read = self.mover.read(token, at, buffer, len).await;
            let buffer = read.map_err(|error| match at {
                0 => NotDone::from(error).at_first(),
                _ => error.into(),
            })?;
            upload.write(Slot { buffer, permit }, len).await?;
        }
        Ok(())
    }
}

impl NotDone {
    /// What became of a first piece.
    fn at_first(self) -> Self {
        match self {
            Self::Moved(NotMoved {
                reason,
                posted: false,
            }) => Self::Declined(reason),
            other => other,
        }
    }
}

/// Waits for a piece that is on its way.
async fn join(sending: tokio::task::JoinHandle<Result<Buffer, NotMoved>>) -> Result<(), NotDone> {
    let outcome = sending.await.map_err(|error| {
        let (reason, posted) = (error.to_string(), true);
        NotMoved { reason, posted }
    })?;
    outcome.map(drop).map_err(NotDone::from)
}

/// The pieces of a range: where each begins, and its length.
fn cut(range: Range<u64>) -> impl Iterator<Item = (u64, usize)> {
    let Range { mut start, end } = range;
    std::iter::from_fn(move || {
        let len = (end.saturating_sub(start)).min(PIECE as u64);
        let at = start;
        start += len;
        (len > 0).then_some((at, len as usize))
    })
}

/// An upload, written from the front to the back, with the checksum of what was written.
pub(crate) struct SummedUpload {
    upload: Box<dyn ObjectUpload>,
    digest: Digest,
    checks: Checks,
    done: u64,
}

impl SummedUpload {
    pub(crate) fn new(upload: Box<dyn ObjectUpload>, checks: Checks) -> Self {
        Self {
            upload,
            digest: Digest::new(CrcAlgorithm::Crc64Nvme),
            checks,
            done: 0,
        }
    }

    pub(crate) async fn write(&mut self, slot: Slot, len: usize) -> Result<(), NotDone> {
        let Slot { buffer, permit } = slot;
        let buffer = buffer.freeze(len);
        self.digest.update(&buffer);
        self.checks.update(&buffer);
        let (done, outcome) = oneshot::channel();
        let end = move |_: Option<Buffer>, result| {
            let _ = done.send(result);
        };
        let completion = StoreCompletion::new(end);
        self.upload.write(self.done, buffer, completion);
        let written = outcome.await.unwrap_or(Err(StoreError::Lost))?;
        drop(permit);
        match written == len {
            true => self.done += len as u64,
            false => return Err(StoreError::Failed("a short write".to_owned()).into()),
        }
        Ok(())
    }

    /// Bytes that are written.
    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    /// Compares what was written with what the client said of it.
    pub(crate) fn check(&mut self) -> Result<(), Refused> {
        std::mem::take(&mut self.checks).compare()
    }

    /// Puts the object in its place. It waits for the device: not for a thread of the runtime.
    pub(crate) fn commit(self) -> Result<ObjectInfo, StoreError> {
        self.upload.commit(self.digest.finalize())
    }
}

/// Who goes by token.
#[derive(Debug, Default)]
struct Turns(Mutex<HashMap<IpAddr, usize>>);

impl Turns {
    fn take(self: &Arc<Self>, client: IpAddr) -> Option<Turn> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = turns.values().sum();
        let its = turns.get(&client).copied().unwrap_or(0);
        if total >= BY_TOKEN || its >= BY_TOKEN_EACH {
            return None;
        }
        turns.insert(client, its + 1);
        let turns = Arc::clone(self);
        Some(Turn { turns, client })
    }
}

/// The right to go by token; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<Turns>,
    client: IpAddr,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let turns = self.turns.0.lock();
        let mut turns = turns.unwrap_or_else(PoisonError::into_inner);
        if let Some(its) = turns.get_mut(&self.client) {
            *its -= 1;
            if *its == 0 {
                turns.remove(&self.client);
            }
        }
    }
}

impl Slot {
    /// The bytes of the buffer.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
}
