//! `Pieces`: an object in pieces, between a store and buffers that the network can use.

use std::ops::Range;
use std::sync::Arc;

use crc_fast::{CrcAlgorithm, Digest};
use fabricast::buffer::{Buffer, BufferMut, SharedBufferManager};
use fabricast::object::{
    ObjectInfo, ObjectUpload, RdmaToken, StoreCompletion, StoreError, StoredObject,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::Failure;
use crate::mover::{Mover, NotMoved};

/// Bytes of a piece.
pub(crate) const PIECE: usize = 1 << 20;

/// Buffers of all requests together. They are waited for when all are in use.
const BUFFERS: u32 = 32;

/// Why an object was not moved.
#[derive(Debug)]
pub(crate) enum NotDone {
    Store(StoreError),
    /// The token can't be used, and nothing went out.
    Declined(String),
    Moved(NotMoved),
    /// The client's body ended early, late, or badly.
    Body(String),
}

impl From<StoreError> for NotDone {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
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
            mover,
        })
    }

    /// A buffer; waits for one.
    pub(crate) async fn slot(&self) -> Slot {
        loop {
            let free = Arc::clone(&self.free);
            let permit = free.acquire_owned().await.expect("it is never closed");
            if let Some(buffer) = self.pool.try_acquire() {
                return Slot { buffer, permit };
            }
            // A transfer that failed left its buffer with the provider for a while.
            drop(permit);
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    /// Reads a piece of an object into a buffer.
    pub(crate) async fn load(
        &self,
        object: &dyn StoredObject,
        at: u64,
        len: usize,
    ) -> Result<(Buffer, OwnedSemaphorePermit), StoreError> {
        let Slot { buffer, permit } = self.slot().await;
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
            let Slot { buffer, permit } = self.slot().await;
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
pub(crate) fn cut(range: Range<u64>) -> impl Iterator<Item = (u64, usize)> {
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
    done: u64,
}

impl SummedUpload {
    pub(crate) fn new(upload: Box<dyn ObjectUpload>) -> Self {
        Self {
            upload,
            digest: Digest::new(CrcAlgorithm::Crc64Nvme),
            done: 0,
        }
    }

    pub(crate) async fn write(&mut self, slot: Slot, len: usize) -> Result<(), NotDone> {
        let Slot { buffer, permit } = slot;
        let buffer = buffer.freeze(len);
        self.digest.update(&buffer);
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

    /// Puts the object in its place. It waits for the device: not for a thread of the runtime.
    pub(crate) fn commit(self) -> Result<ObjectInfo, StoreError> {
        self.upload.commit(self.digest.finalize())
    }
}

impl Slot {
    /// The bytes of the buffer.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
}
