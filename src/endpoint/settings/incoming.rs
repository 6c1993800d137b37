//! `IncomingSettings`: what an endpoint receives, and into which buffers.

use std::ops::RangeInclusive;

use crate::Error;
use crate::buffer::{PoolShare, SharedBufferManager};
use crate::endpoint::delivery::{DeviceDelivery, receive_pool};
use crate::endpoint::limits::{check_count, config};
use crate::endpoint::long_messages::LongMessages;
use crate::endpoint::settings::SettingsOf;

/// What comes in: messages, and the buffers for them. A config's `incoming` lends this to a
/// closure, as it was set so far.
///
/// | setting | of | unit | default | range |
/// |---|---|---|---|---|
/// | `max_message` | receive | bytes, header included | 65,536 | 64 to 1 GiB |
/// | `max_message` | subscribe | bytes, with header and 18 more | 65,536 | 64 to 1 GiB |
/// | `max_message` | connectionless | bytes, header included | 65,536 | 114 to 1 GiB |
/// | `slots` | receive | buffers | 256 | 3 × `max_connections` to 1,048,576 |
/// | `slots` | subscribe | buffers | 256 | 4 × `max_connections` to 1,048,576 |
/// | `slots` | connectionless | buffers | 10 × `max_peers` | 8 × `max_peers` to 1,048,576 |
/// | `pool` | all | | one of its own, of the two above | |
/// | `shared_pool` | all | buffers of a pool that others use, too | none | to as many as it has |
/// | `credits` | all | messages granted to each peer at once | 32 | 1 to 65,536 |
/// | `deliver_to` | all | buffers in a GPU's memory | none | see [`DeviceDelivery`] |
/// | `long_messages` | all | a pool for longer messages | none | see [`LongMessages`] |
///
/// "Of" names the endpoints that have the setting:
/// [`ReceiveConfig`](crate::endpoint::ReceiveConfig),
/// [`SubscribeConfig`](crate::endpoint::SubscribeConfig) and
/// [`ConnectionlessConfig`](crate::endpoint::ConnectionlessConfig).
///
/// The pool takes `slots × max_message` bytes. Beside those for its credits, a connection keeps
/// buffers posted for what is no message: each config says how many.
///
/// ```
/// use fabricast::endpoint::ReceiveConfig;
///
/// let config = ReceiveConfig::default().incoming(|incoming| incoming.max_message(1 << 20));
/// # let _ = config;
/// ```
#[derive(Debug, Clone)]
pub struct IncomingSettings {
    pub(crate) max_message: usize,
    slots: Option<u32>,
    pub(crate) pool: Option<SharedBufferManager>,
    /// Of that pool: buffers that are kept for this endpoint, and the most that it takes.
    share: Option<(u32, u32)>,
    pub(crate) credits: u32,
    pub(crate) delivery: Option<DeviceDelivery>,
    pub(crate) long: Option<LongMessages>,
}

/// Nothing is set: each endpoint's defaults.
impl Default for IncomingSettings {
    fn default() -> Self {
        Self {
            max_message: 64 * 1024,
            slots: None,
            pool: None,
            share: None,
            credits: 32,
            delivery: None,
            long: None,
        }
    }
}

impl IncomingSettings {
    /// Bytes of the largest message that this side takes, header included. Peers learn it when the
    /// connection is made.
    ///
    /// A publication has 16 or 18 bytes of its own beside header and payload; one that is longer is
    /// dropped for this subscriber, unless it takes [`long_messages`](Self::long_messages).
    #[must_use]
    pub fn max_message(mut self, bytes: usize) -> Self {
        self.max_message = bytes;
        self
    }

    /// Buffers of the receive pool, which all connections share.
    #[must_use]
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = Some(slots);
        self
    }

    /// A pool of the caller's instead: `max_message` and `slots` are its own. The endpoint takes
    /// all that is free, so nothing else should use the pool: where several endpoints do, each says
    /// what it takes by [`shared_pool`](Self::shared_pool).
    #[must_use]
    pub fn pool(mut self, pool: &SharedBufferManager) -> Self {
        self.pool = Some(pool.clone());
        self.share = None;
        self
    }

    /// A pool of the caller's that other endpoints use, too, of this domain or of others, on any
    /// thread. The range is how many buffers this endpoint has at once, those that are posted and
    /// those of messages that the application holds:
    ///
    /// * its start is reserved: so many are there for this endpoint whatever the others do. They
    ///   must be free as it opens. Peers are granted messages ahead as far as these go, and one
    ///   each beyond. 0 is good, and no promise.
    /// * its end is the most that it takes, `slots` to the rest of the settings: those beyond the
    ///   reserved ones are taken from what is free of the pool. Whoever polls first gets them.
    ///
    /// An endpoint that finds neither says [`ReceiveEvent::Starved`] and goes on with the buffers
    /// that it has: a peer is granted a message only when a buffer is posted for it, so its peers
    /// wait. When a buffer comes back, the endpoints that may take it are woken: one that is
    /// reserved, its owner, another one all that wait. A request that finds too few buffers is
    /// refused ([`RefusalCode::NO_BUFFERS`]). When an endpoint is closed or dropped, what it had is
    /// everybody's, but for messages that are still held: they follow when they are dropped. A
    /// connection keeps the number of messages that it was granted as it began.
    ///
    /// What else takes buffers of the pool takes what is not reserved.
    ///
    /// Over one such pool, memory is registered once in a domain, and sized for what comes in at
    /// all rather than for the worst of each listener.
    ///
    /// ```
    /// use fabricast::buffer::SharedBufferManager;
    /// use fabricast::endpoint::ReceiveConfig;
    /// use fabricast::{Fabric, ReceiveEndpoint};
    ///
    /// # let domain = Fabric::builder().provider("tcp").node("127.0.0.1").open()?.open_domain()?;
    /// # let any: fabricast::PeerAddr = "127.0.0.1:0".parse()?;
    /// let pool = SharedBufferManager::allocate(256, 64 * 1024)?;
    /// let listen = |share| {
    ///     let config = ReceiveConfig::default()
    ///         .connection(|c| c.max_connections(16))
    ///         .incoming(|incoming| incoming.shared_pool(&pool, share));
    ///     ReceiveEndpoint::listen(&domain, any.clone(), config)
    /// };
    /// // Slow control never waits for data: 48 buffers are its own, and it takes no others.
    /// let control = listen(48..=48)?;
    /// let data = [listen(32..=256)?, listen(32..=256)?];
    /// assert_eq!(pool.free_count(), 256 - 48 - 2 * 32); // for either of the two
    /// # drop((control, data));
    /// # assert_eq!(pool.free_count(), 256);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// [`ReceiveEvent::Starved`]: crate::ReceiveEvent::Starved
    /// [`RefusalCode::NO_BUFFERS`]: crate::endpoint::RefusalCode::NO_BUFFERS
    #[must_use]
    pub fn shared_pool(mut self, pool: &SharedBufferManager, buffers: RangeInclusive<u32>) -> Self {
        self.pool = Some(pool.clone());
        self.share = Some((*buffers.start(), *buffers.end()));
        self
    }

    /// Messages that each peer may send ahead. A publication that comes when they are
    /// used up is dealt with by the publisher's policy for slow subscribers.
    #[must_use]
    pub fn credits(mut self, messages: u32) -> Self {
        self.credits = messages;
        self
    }

    /// Copies the payloads of messages to a GPU's memory: they come as
    /// [`ReceiveEvent::DeviceMessage`](crate::ReceiveEvent::DeviceMessage),
    /// [`SubscribeEvent::DevicePublication`](crate::SubscribeEvent::DevicePublication) or
    /// [`ConnectionlessEvent::DeviceMessage`](crate::endpoint::ConnectionlessEvent::DeviceMessage).
    /// The buffers must have room for the largest message. The pool is pinned then, for fast
    /// copies; one of the caller's should lie in a [pinned region](crate::Region::pinned).
    #[must_use]
    pub fn deliver_to(mut self, delivery: DeviceDelivery) -> Self {
        self.delivery = Some(delivery);
        self
    }

    /// Takes messages that are longer than [`max_message`](Self::max_message), too: each goes
    /// straight into a slot of this pool, by one-sided operations of its sender, and comes as one
    /// [`Message`](crate::endpoint::Message). Peers whose messages are longer than its slots are
    /// told so. Each connection keeps two more receives posted, for what peers say about them.
    /// Where the provider has no one-sided operations, it has no effect.
    #[must_use]
    pub fn long_messages(mut self, long: LongMessages) -> Self {
        self.long = Some(long);
        self
    }

    /// Buffers that the endpoint may have, `default` of them where nothing else was said.
    pub(crate) fn slots_or(&self, default: u32) -> usize {
        match (&self.pool, self.share) {
            (_, Some((_, most))) => most as usize,
            (Some(pool), None) => pool.slots(),
            (None, None) => self.slots.unwrap_or(default) as usize,
        }
    }

    /// Bytes of the largest message, where the pool of the caller's may say it.
    pub(crate) fn largest(&self) -> usize {
        let pool = self.pool.as_ref();
        pool.map_or(self.max_message, SharedBufferManager::slot_size)
    }

    /// What the endpoint has of the receive pool, which is of `slots` buffers of `slot_min` bytes
    /// at least, and the largest message that goes into one of them.
    pub(crate) fn open_pool(
        &self,
        slots: usize,
        slot_min: usize,
    ) -> Result<(PoolShare, usize), Error> {
        let (pool, max_message) = match &self.pool {
            Some(pool) => (pool.clone(), pool.slot_size()),
            None => {
                let slot_size = self.max_message.max(slot_min);
                let pool = receive_pool(self.delivery.as_ref(), slots as u32, slot_size)?;
                let max_message = self.max_message.min(pool.slot_size());
                (pool, max_message)
            }
        };
        if pool.slot_size() < slot_min {
            let reason = "over FI_EP_RDM its slots must have 114 bytes, for hellos";
            return Err(config("pool", pool.slot_size().to_string(), reason));
        }
        Ok((self.share_of(pool)?, max_message))
    }

    /// What this endpoint may take of the pool.
    fn share_of(&self, pool: SharedBufferManager) -> Result<PoolShare, Error> {
        let Some((least, most)) = self.share else {
            return Ok(pool.into());
        };
        PoolShare::reserve(&pool, least, most).ok_or_else(|| {
            let value = format!("{least}..={most}, with {} free", pool.free_count());
            let reason = "as many buffers as the range begins with must be free as it opens";
            config("shared_pool", value, reason)
        })
    }

    /// The share is a range, and within its pool.
    fn check_share(&self) -> Result<(), Error> {
        let (Some((least, most)), Some(pool)) = (self.share, &self.pool) else {
            return Ok(());
        };
        if least <= most && most as usize <= pool.slots() {
            return Ok(());
        }
        let value = format!("{least}..={most} of {}", pool.slots());
        let reason = "must be a range of buffers, to as many as the pool has";
        Err(config("shared_pool", value, reason))
    }

    /// The buffers in a GPU's memory have room for the largest message, and are nobody else's.
    fn check_delivery(&self) -> Result<(), Error> {
        let Some(delivery) = &self.delivery else {
            return Ok(());
        };
        let pool_of_long = self.long.as_ref().and_then(|long| long.device.as_ref());
        if pool_of_long.is_some_and(|pool| delivery.is_to(pool)) {
            let reason = "must be other buffers than those where long messages land";
            return Err(config("deliver_to", "the same pool".to_owned(), reason));
        }
        let long = self.long.as_ref().map_or(0, LongMessages::host_limit);
        delivery.check(self.largest().max(long))
    }

    /// `slots`: buffers that the pool will have, which must be `least` at least, as `reason` says.
    pub(crate) fn check(
        &self,
        of: SettingsOf,
        slots: usize,
        (least, reason): (usize, &'static str),
    ) -> Result<(), Error> {
        self.long.as_ref().map_or(Ok(()), LongMessages::check)?;
        self.check_delivery()?;
        self.check_share()?;
        // A pool of the caller's is as it is, but where hellos come into it.
        let (bytes, low, said) = match of {
            SettingsOf::Connectionless => (
                self.largest(),
                114,
                "must be 114 bytes, for hellos, to 1 GiB",
            ),
            _ => (self.max_message, 64, "must be 64 bytes to 1 GiB"),
        };
        if !(low..=1 << 30).contains(&bytes) {
            return Err(config("max_message", bytes.to_string(), said));
        }
        let said = match of {
            SettingsOf::Subscribe => "must be 1 to 65536 publications",
            _ => "must be 1 to 65536 messages",
        };
        check_count("credits", self.credits, 65_536, said)?;
        if slots < least || slots > 1 << 20 {
            let setting = match self.share {
                Some(_) => "shared_pool",
                None => "slots",
            };
            return Err(config(setting, slots.to_string(), reason));
        }
        Ok(())
    }
}
