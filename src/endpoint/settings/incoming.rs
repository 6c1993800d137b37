//! `IncomingSettings`: what an endpoint receives, and into which buffers.

use crate::Error;
use crate::buffer::SharedBufferManager;
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

    /// A pool of the caller's instead: `max_message` and `slots` are its own. It must not be used
    /// for anything else.
    #[must_use]
    pub fn pool(mut self, pool: &SharedBufferManager) -> Self {
        self.pool = Some(pool.clone());
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

    /// Buffers of the pool, of which there are `default` where nothing else was said.
    pub(crate) fn slots_or(&self, default: u32) -> usize {
        let own = || self.slots.unwrap_or(default) as usize;
        self.pool
            .as_ref()
            .map_or_else(own, SharedBufferManager::slots)
    }

    /// Bytes of the largest message, where the pool of the caller's may say it.
    pub(crate) fn largest(&self) -> usize {
        let pool = self.pool.as_ref();
        pool.map_or(self.max_message, SharedBufferManager::slot_size)
    }

    /// The receive pool, of `slots` buffers of `slot_min` bytes at least, and the largest message
    /// that goes into one of them.
    pub(crate) fn open_pool(
        &self,
        slots: usize,
        slot_min: usize,
    ) -> Result<(SharedBufferManager, usize), Error> {
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
        Ok((pool, max_message))
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
            return Err(config("slots", slots.to_string(), reason));
        }
        Ok(())
    }
}
