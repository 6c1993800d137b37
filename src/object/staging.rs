//! `StagingPool`: memory of the host that a client lends in place of a device's memory, where its
//! provider can't reach that by itself.
//!
//! ```text
//!  GET  a server ─ RMA ─► staging buffer ─ copy ─► the device's memory
//!  PUT  the device's memory ─ copy ─► staging buffer ─ RMA ─► a server
//! ```
//!
//! A buffer is memory like any other that is lent, and other transfers pass it later: one whose
//! transfer was given up, a PUT too, is quarantined until no server can reach it any more.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::buffer::{SharedBufferConfig, SharedBufferManager};
use crate::cuda::{CudaError, Device, Stream};
use crate::memory::Region;
use crate::object::client::ClientCore;
use crate::object::window_body::WindowBody;
use crate::object::{ObjectError, ObjectMemory};

/// The buffers of one client. They are made when they are needed, and stay.
pub(super) struct StagingPool {
    /// The length of each.
    bytes: usize,
    /// How many there are at most.
    limit: usize,
    buffers: Mutex<StagingBuffers>,
}

#[derive(Default)]
struct StagingBuffers {
    idle: Vec<StagingBuffer>,
    made: usize,
}

/// Pinned memory of the host, and the stream that its copies go by.
struct StagingBuffer {
    body: Arc<WindowBody>,
    stream: Stream,
}

/// A buffer that one part of a request has. Dropped, it is the pool's again.
pub(super) struct StagingLoan {
    /// Taken out once.
    buffer: Option<StagingBuffer>,
    client: Arc<ClientCore>,
}

impl StagingPool {
    pub(super) fn new(bytes: usize, limit: usize) -> Self {
        Self {
            bytes,
            limit,
            buffers: Mutex::default(),
        }
    }

    /// The length of a buffer.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    fn lock(&self) -> MutexGuard<'_, StagingBuffers> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer that nothing lands in; `None`: one may be made, which is counted already.
    fn find(&self, client: &ClientCore) -> Result<Option<StagingBuffer>, ObjectError> {
        let mut buffers = self.lock();
        if let Some(buffer) = buffers.take() {
            return Ok(Some(buffer));
        }
        if !buffers.idle.is_empty() {
            // All of them are quarantined.
            drop(buffers);
            client.lender().retire();
            buffers = self.lock();
            if let Some(buffer) = buffers.take() {
                return Ok(Some(buffer));
            }
        }
        if buffers.made < self.limit {
            buffers.made += 1;
            return Ok(None);
        }
        Err(match buffers.idle.is_empty() {
            true => ObjectError::StagingBusy { limit: self.limit },
            false => ObjectError::Quarantined,
        })
    }

    fn make(&self, client: &ClientCore, device: Device) -> Result<StagingBuffer, ObjectError> {
        let stream = Stream::new(device)?;
        let region = Region::pinned(self.bytes).build()?;
        let pool = SharedBufferManager::new(region, SharedBufferConfig::new(self.bytes))?;
        let buffer = pool.try_acquire().expect("nobody else has the pool");
        let body = client.window_body(buffer.into());
        let body = Arc::new(body.map_err(|(error, _)| error)?);
        Ok(StagingBuffer { body, stream })
    }
}

impl StagingBuffers {
    /// One that nothing lands in.
    fn take(&mut self) -> Option<StagingBuffer> {
        let is_good = |buffer: &StagingBuffer| {
            let body = &buffer.body;
            !body.is_quarantined(&mut body.reach())
        };
        let at = self.idle.iter().position(is_good)?;
        Some(self.idle.swap_remove(at))
    }
}

impl StagingLoan {
    /// A buffer whose copies are from and to that device's memory.
    pub(super) fn take(client: &Arc<ClientCore>, device: Device) -> Result<Self, ObjectError> {
        let pool = client.staging();
        let buffer = match pool.find(client)? {
            Some(buffer) => buffer,
            None => pool
                .make(client, device)
                .inspect_err(|_| pool.lock().made -= 1)?,
        };
        let mut loan = Self {
            buffer: Some(buffer),
            client: Arc::clone(client),
        };
        let buffer = loan.buffer_mut();
        if buffer.stream.device() != device {
            buffer.stream = Stream::new(device)?;
        }
        Ok(loan)
    }

    fn buffer(&self) -> &StagingBuffer {
        self.buffer.as_ref().expect("taken out by drop alone")
    }

    fn buffer_mut(&mut self) -> &mut StagingBuffer {
        self.buffer.as_mut().expect("taken out by drop alone")
    }

    /// What is lent.
    pub(super) fn body(&self) -> &Arc<WindowBody> {
        &self.buffer().body
    }

    /// Copies bytes of a device's memory, from `at` on, to the buffer's begin, and waits until they
    /// are there.
    pub(super) fn copy_out_of(
        &self,
        memory: &ObjectMemory,
        at: usize,
        len: usize,
    ) -> Result<(), CudaError> {
        let Some(from) = memory.device_address(at, len) else {
            return Ok(());
        };
        let StagingBuffer { body, stream } = self.buffer();
        let to = body.first(len);
        // SAFETY: `len` bytes of the buffer (`first`), whose memory nobody takes out of its body,
        // and of the device (`device_address`), whose memory leaves `memory` by value only; nobody
        // here refers to either, and both stay until the stream was waited for: where waiting fails
        // the context is gone, and with it what the stream was given.
        unsafe { stream.copy_to_host(to, from, len) }?;
        stream.synchronize()
    }

    /// Copies the buffer's begin to a device's memory, from `at` on, and waits until it is there.
    pub(super) fn copy_into(
        &self,
        memory: &ObjectMemory,
        at: usize,
        len: usize,
    ) -> Result<(), CudaError> {
        let Some(to) = memory.device_address(at, len) else {
            return Ok(());
        };
        let StagingBuffer { body, stream } = self.buffer();
        let from = body.first(len);
        // SAFETY: as in `copy_out_of`.
        unsafe { stream.copy_to_device(to, from, len) }?;
        stream.synchronize()
    }
}

impl Drop for StagingLoan {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else {
            return;
        };
        match self.client.check_here() {
            Ok(()) => self.client.staging().lock().idle.push(buffer),
            // A child gives nothing back, and touches no lock that another thread may have had.
            Err(_) => std::mem::forget(buffer),
        }
    }
}

impl fmt::Debug for StagingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StagingPool")
            .field("bytes", &self.bytes)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
