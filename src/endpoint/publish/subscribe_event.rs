//! What a subscriber reports.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::wanted::SubscribeError;
use crate::cuda::CudaError;
use crate::endpoint::delivery::{DeviceMessage, MessageEvent};
use crate::endpoint::event::ConnectionEvent;
use crate::endpoint::message::Message;
use crate::protocol::wire::SubscriptionOutcome;

/// A publisher that a [`SubscribeEndpoint`](crate::SubscribeEndpoint) is connected to, or wants to
/// be; also while it connects again. Unique in the process, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublisherId(pub(super) u64);

impl PublisherId {
    pub(super) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The number, for logs and foreign interfaces.
    pub fn as_u64(self) -> u64 {
        self.0
    }

    /// The publisher of a number that [`as_u64`](Self::as_u64) gave. One that was never given is a
    /// publisher that no endpoint has, and is refused as such.
    pub fn from_u64(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Display for PublisherId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What happened at a [`SubscribeEndpoint`](crate::SubscribeEndpoint).
#[derive(Debug)]
#[non_exhaustive]
pub enum SubscribeEvent {
    /// Something happened to the connection with a publisher. What is wanted of it is subscribed to
    /// by itself when it stands.
    Connection(PublisherId, ConnectionEvent),
    /// The publisher has taken a subscription; again after each new connection.
    Subscribed {
        /// Who.
        publisher: PublisherId,
        /// What to.
        tag: u64,
    },
    /// The publisher has refused a subscription: it is not wanted any more.
    Refused {
        /// Who.
        publisher: PublisherId,
        /// What.
        tag: u64,
        /// Why.
        outcome: SubscriptionOutcome,
    },
    /// A subscription is over, as was asked: no publication of the tag comes from there any more.
    Unsubscribed {
        /// Whose.
        publisher: PublisherId,
        /// What.
        tag: u64,
    },
    /// A publication came.
    Publication {
        /// Whose.
        publisher: PublisherId,
        /// Under which tag.
        tag: u64,
        /// Its number among the tag's publications.
        number: u64,
        /// How many publications of the tag the publisher dropped for this subscriber since the
        /// last one that came, or since the subscription.
        missed: u64,
        /// Header and payload. Owned: keep it, or drop it on any thread.
        message: Message,
    },
    /// A publication came, and its payload is in a GPU's memory: with
    /// [`IncomingSettings::deliver_to`](crate::endpoint::IncomingSettings::deliver_to) or, for a
    /// long one, [`LongMessages::on_device`](crate::endpoint::LongMessages::on_device). As
    /// [`Publication`](Self::Publication) in all else.
    DevicePublication {
        /// Whose.
        publisher: PublisherId,
        /// Under which tag.
        tag: u64,
        /// Its number among the tag's publications.
        number: u64,
        /// How many publications of the tag the publisher dropped for this subscriber before it.
        missed: u64,
        /// Header and payload.
        message: DeviceMessage,
    },
    /// A publication came, and could not be copied to the GPU.
    Undelivered {
        /// Whose.
        publisher: PublisherId,
        /// Under which tag.
        tag: u64,
        /// Its number among the tag's publications.
        number: u64,
        /// How many publications of the tag the publisher dropped for this subscriber before it.
        missed: u64,
        /// As it is, in the host's memory.
        message: Message,
        /// What the driver answers.
        error: CudaError,
    },
    /// A connection wants more buffers than the pool has: messages are held, and the publisher's
    /// policy for slow subscribers applies.
    Starved {
        /// Whose.
        publisher: PublisherId,
    },
}

impl SubscribeError {
    /// True where another try, later, can end in another way.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Leaving)
    }
}

/// The publisher, tag and number of a publication, and how many were dropped before it.
#[derive(Clone, Copy)]
pub(crate) struct AboutPublication {
    pub(super) publisher: PublisherId,
    pub(super) tag: u64,
    pub(super) number: u64,
    pub(super) missed: u64,
}

impl MessageEvent for SubscribeEvent {
    type About = AboutPublication;

    fn into_message(self) -> Result<(Message, AboutPublication), Self> {
        match self {
            Self::Publication {
                publisher,
                tag,
                number,
                missed,
                message,
            } => {
                let about = AboutPublication {
                    publisher,
                    tag,
                    number,
                    missed,
                };
                Ok((message, about))
            }
            other => Err(other),
        }
    }

    fn message(message: Message, about: AboutPublication) -> Self {
        Self::Publication {
            publisher: about.publisher,
            tag: about.tag,
            number: about.number,
            missed: about.missed,
            message,
        }
    }

    fn delivered(message: DeviceMessage, about: AboutPublication) -> Self {
        Self::DevicePublication {
            publisher: about.publisher,
            tag: about.tag,
            number: about.number,
            missed: about.missed,
            message,
        }
    }

    fn undelivered(message: Message, error: CudaError, about: AboutPublication) -> Self {
        Self::Undelivered {
            publisher: about.publisher,
            tag: about.tag,
            number: about.number,
            missed: about.missed,
            message,
            error,
        }
    }

    fn comes_behind(&self) -> bool {
        matches!(
            self,
            Self::Unsubscribed { .. }
                | Self::DevicePublication { .. }
                | Self::Connection(
                    _,
                    ConnectionEvent::PeerClosing
                        | ConnectionEvent::Reconnecting { .. }
                        | ConnectionEvent::Disconnected(_)
                )
        )
    }

    fn is_end(&self) -> bool {
        matches!(self, Self::Connection(_, ConnectionEvent::Disconnected(_)))
    }
}
