//! `LongPool`: where long messages go that come in, and who waits for room there.

use std::collections::VecDeque;
use std::sync::Arc;

use super::long_buffer::LongBuffer;
use super::pool_waker::PoolWaker;
use crate::Error;
use crate::buffer::{BufferMut, DeviceBufferManager, SharedBufferManager};
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
    /// What messages are copied out of, where a sender can't be kept from writing, or where that
    /// takes long; made when the first one comes.
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
            && self.goes_to_device(len)
        {
            let acquire = || device.pool.try_acquire().map(LongBuffer::Device);
            return acquire().or_else(|| device.waker.arm().then(acquire)?);
        }
        self.acquire_host().map(LongBuffer::Host)
    }

    /// A buffer in the host's memory, as [`acquire`](Self::acquire).
    pub(super) fn acquire_host(&self) -> Option<BufferMut> {
        self.pool.try_acquire().or_else(|| {
            self.waker.arm();
            self.pool.try_acquire()
        })
    }

    /// Whether a message of so many bytes goes to a device's memory.
    pub(super) fn goes_to_device(&self, len: usize) -> bool {
        self.usable_device()
            .is_some_and(|it| len <= it.pool.slot_size())
    }

    /// Whether a message may land now without taking what those need that land apart: there is
    /// memory to land in apart, or more than half of the slots are free. Else somebody will say so.
    pub(super) fn has_room_apart(&self) -> bool {
        let apart = self.volatile.as_ref();
        apart.is_none_or(|volatile| volatile.free_count() > 0)
            || self.pool.free_count() * 2 > self.pool.slots()
    }

    /// What connections land in is theirs, and goes when they are done.
    pub(super) fn forget_volatile(&mut self) {
        self.volatile = None;
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
