//! `ZeroCopyBufferManager`: a data region and its header slots, as one thing to share.

use std::sync::Arc;

use super::header_slots::{HeaderError, HeaderSlot, HeaderSlotConfig, HeaderSlotManager};
use crate::id::EndpointId;
use crate::memory::{MemoryError, Region};

/// The two regions that zero-copy sending needs: the user's data, and header slots. Clones are
/// handles on the same two.
///
/// An endpoint that is given it ([`headers`](crate::endpoint::OutgoingSettings::headers) of
/// [`SendConfig`](crate::endpoint::SendConfig), [`PublishConfig`](crate::endpoint::PublishConfig)
/// or [`ConnectionlessConfig`](crate::endpoint::ConnectionlessConfig)) registers both with its
/// domain as it opens, so that the first send from the data works without more ado. Endpoints of
/// one domain share one registration of each. That of the data is counted: it ends when the last
/// endpoint that has it is gone, and the last operation in flight; one that the application made
/// ([`Region::register`]) is the application's to end.
///
/// The data are a region of any kind: that of a pool, as here; a ring's; memory of a card
/// ([`Region::external`]); a GPU's. An endpoint sends from other regions, too: register those by
/// [`Region::register`].
///
/// ```
/// use std::time::{Duration, Instant};
/// use fabricast::buffer::{HeaderSlotConfig, SharedBufferManager, ZeroCopyBufferManager};
/// use fabricast::endpoint::{ReceiveConfig, SendConfig};
/// use fabricast::{ConnectionEvent, Fabric, ReceiveEndpoint, ReceiveEvent};
/// use fabricast::{SendEndpointZeroCopy, SendEvent};
///
/// let domain = Fabric::builder().provider("tcp").node("127.0.0.1").open()?.open_domain()?;
/// let mut receiver =
///     ReceiveEndpoint::listen(&domain, "127.0.0.1:0".parse()?, ReceiveConfig::default())?;
///
/// let pool = SharedBufferManager::allocate(16, 64 * 1024)?;
/// let buffers = ZeroCopyBufferManager::new(pool.region().clone(), HeaderSlotConfig::default())?;
/// let config = SendConfig::default().outgoing(|out| out.headers(&buffers));
/// let mut sender = SendEndpointZeroCopy::connect(&domain, receiver.local_addr(), config)?;
/// # let receiving = std::thread::spawn(move || -> Result<Vec<u8>, fabricast::Error> {
/// #     let (mut events, mut got) = (Vec::new(), Vec::new());
/// #     loop {
/// #         receiver.poll(&mut events)?;
/// #         for event in events.drain(..) {
/// #             match event {
/// #                 ReceiveEvent::Message(m) => got = m.payload().to_vec(),
/// #                 ReceiveEvent::Connection(_, event) => match event {
/// #                     ConnectionEvent::Disconnected(_) => return Ok(got),
/// #                     _ => {}
/// #                 },
/// #                 _ => {}
/// #             }
/// #         }
/// #         receiver.wait(Duration::from_millis(100))?;
/// #     }
/// # });
/// sender.wait_connected()?;
/// let mut buffer = pool.try_acquire().expect("16 are free");
/// buffer[..5].copy_from_slice(b"hello");
/// sender.send_data(buffer.freeze(5), b"event 7", 42)?;
/// let outcomes = sender.close(Instant::now() + Duration::from_secs(5))?;
/// assert!(matches!(outcomes[0], SendEvent::Completed { key: 42, .. }));
/// assert_eq!(buffers.take_low_water(), 255); // netio3's get_num_available_buffers
/// assert_eq!(pool.region().registration_count(), 0, "nobody needs it any more");
/// # assert_eq!(receiving.join().unwrap()?, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ZeroCopyBufferManager {
    data: Arc<Region>,
    headers: HeaderSlotManager,
}

impl ZeroCopyBufferManager {
    /// Bundles a region with header slots, which are allocated. Nothing is registered yet:
    /// endpoints do that.
    ///
    /// # Errors
    /// As [`HeaderSlotManager::new`].
    pub fn new(data: Arc<Region>, headers: HeaderSlotConfig) -> Result<Self, MemoryError> {
        Ok(Self {
            data,
            headers: HeaderSlotManager::new(headers)?,
        })
    }

    /// Bundles a region with header slots that others use, too: endpoints that send from other
    /// memory.
    pub fn with_headers(data: Arc<Region>, headers: &HeaderSlotManager) -> Self {
        Self {
            data,
            headers: headers.clone(),
        }
    }

    /// The region of the data.
    pub fn region(&self) -> &Arc<Region> {
        &self.data
    }

    /// The header slots.
    pub fn headers(&self) -> &HeaderSlotManager {
        &self.headers
    }

    /// Copies a header into a free slot: [`HeaderSlotManager::acquire`].
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn acquire(
        &self,
        header: &[u8],
        key: u64,
        endpoint: EndpointId,
    ) -> Result<HeaderSlot, HeaderError> {
        self.headers.acquire(header, key, endpoint)
    }

    /// Gives a slot back and says its key: [`HeaderSlotManager::release`].
    pub fn release(&self, slot: HeaderSlot) -> u64 {
        self.headers.release(slot)
    }

    /// How many header slots are free.
    pub fn free_count(&self) -> usize {
        self.headers.free_count()
    }

    /// The least number of free header slots so far: [`HeaderSlotManager::low_water`].
    pub fn low_water(&self) -> usize {
        self.headers.low_water()
    }

    /// The same, and starts anew: netio3's `get_num_available_buffers`.
    pub fn take_low_water(&self) -> usize {
        self.headers.take_low_water()
    }

    /// The keys that an endpoint waits for: [`HeaderSlotManager::pending`].
    pub fn pending(&self, endpoint: EndpointId) -> Vec<u64> {
        self.headers.pending(endpoint)
    }
}
