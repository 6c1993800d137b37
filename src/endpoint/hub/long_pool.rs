//! `LongPool`: where long messages go that come in, and who waits for room there.

use std::collections::VecDeque;
use std::sync::Arc;

use super::long_buffer::LongBuffer;
use super::pool_waker::PoolWaker;
use crate::Error;
use crate::buffer::{DeviceBufferManager, SharedBufferManager};
use crate::cuda::Stream;
use crate::endpoint::link::wait::EndpointWait;
use crate::endpoint::long_messages::LongMessages;
use crate::endpoint::windows::volatile_buffer::VolatileBuffer;
use crate::id::ConnectionId;
use crate::memory::MemoryError;

/// Where long messages go, and who waits for room there.
pub(super) struct LongPool {
    pub(super) pool: SharedBufferManager,
    waker: PoolWaker<SharedBufferManager>,
    /// In a device's memory.
    pub(super) device: Option<DevicePool>,
    /// What messages are copied out of, where a sender can't be kept from writing; made when the
    /// first one comes.
    volatile: Option<SharedBufferManager>,
    pub(super) copies: bool,
    /// Offers that found the pool empty; whoever came first is served first.
    pub(super) waiting: VecDeque<(ConnectionId, u64)>,
    pub(super) settings: LongMessages,
}

/// The pool for long messages in a device's memory.
pub(super) struct DevicePool {
    pool: DeviceBufferManager,
    waker: PoolWaker<DeviceBufferManager>,
    /// The stream on which headers are copied to the host.
    pub(super) stream: Stream,
    /// The provider does not write there.
    pub(super) refused: bool,
}

impl DevicePool {
    fn new(pool: DeviceBufferManager, wait: &Arc<EndpointWait>) -> Result<Self, Error> {
        let stream = Stream::new(pool.device()).map_err(|source| MemoryError::Cuda {
            what: "a stream for long messages",
            source,
        })?;
        let waker = PoolWaker::of(&pool, wait);
        Ok(Self {
            pool,
            waker,
            stream,
            refused: false,
        })
    }
}

impl LongPool {
    /// `copies`: nothing ends what a sender may write but the end of the endpoint.
    pub(super) fn new(
        long: LongMessages,
        copies: bool,
        wait: &Arc<EndpointWait>,
    ) -> Result<Self, Error> {
        let settings = long.clone();
        let LongMessages { pool, device, .. } = long;
        let device = device.filter(|_| !copies);
        let device = device.map(|pool| DevicePool::new(pool, wait)).transpose()?;
        let waker = PoolWaker::of(&pool, wait);
        Ok(Self {
            pool,
            waker,
            device,
            volatile: None,
            copies,
            waiting: VecDeque::new(),
            settings,
        })
    }

    /// The longest message that is taken.
    pub(super) fn limit(&self) -> usize {
        let device = self.usable_device().map_or(0, |it| it.pool.slot_size());
        self.pool.slot_size().max(device)
    }

    fn usable_device(&self) -> Option<&DevicePool> {
        self.device.as_ref().filter(|device| !device.refused)
    }

    /// A buffer for a message of so many bytes, which are no more than the limit; `None`: none is
    /// free, and somebody will say so.
    pub(super) fn acquire(&self, len: usize) -> Option<LongBuffer> {
        if let Some(device) = self.usable_device()
            && len <= device.pool.slot_size()
        {
            let acquire = || device.pool.try_acquire().map(LongBuffer::Device);
            return acquire().or_else(|| device.waker.arm().then(acquire)?);
        }
        let acquire = || self.pool.try_acquire().map(LongBuffer::Host);
        acquire().or_else(|| {
            self.waker.arm();
            acquire()
        })
    }

    /// Memory of a connection's own to land in; `None`: as many connections as the pool has slots
    /// have some, or had.
    pub(super) fn volatile_buffer(&mut self) -> Option<Arc<VolatileBuffer>> {
        if self.volatile.is_none() {
            let slots = u32::try_from(self.pool.slots()).unwrap_or(u32::MAX);
            match SharedBufferManager::allocate(slots, self.pool.slot_size()) {
                Ok(volatile) => self.volatile = Some(volatile),
                Err(error) => tracing::warn!(%error, "no memory for long messages to land in"),
            }
        }
        let buffer = self.volatile.as_ref()?.try_acquire()?;
        Some(Arc::new(VolatileBuffer::new(buffer)))
    }

    /// Someone waits for room.
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }
}
