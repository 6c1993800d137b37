//! Peers of a connectionless endpoint, and what happens with them.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::buffer::Payload;
use crate::cuda::CudaError;
use crate::endpoint::connectionless::peers::Peers;
use crate::endpoint::delivery::{DeviceMessage, MessageEvent};
use crate::endpoint::event::{ConnectionEvent, ReceiveEvent};
use crate::endpoint::message::Message;
use crate::errno::CompletionError;
use crate::fabric::PeerAddr;
use crate::id::ConnectionId;

/// A peer of a [`ConnectionlessEndpoint`](crate::ConnectionlessEndpoint): unique in the process,
/// and never given to another peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub(super) ConnectionId);

impl PeerId {
    /// The number, for logs and foreign interfaces.
    pub fn as_u64(self) -> u64 {
        self.0.as_u64()
    }

    /// The peer of a number that [`as_u64`](Self::as_u64) gave. One that was never given is a peer
    /// that no endpoint has, and is refused as such.
    pub fn from_u64(number: u64) -> Self {
        Self(ConnectionId::from_u64(number))
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Whom a message is for: a peer that is known, or an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendTo {
    /// A peer that was added, or came by itself. Faster: nothing is looked up.
    Peer(PeerId),
    /// Whoever is at an address. The first send adds the peer, unless the settings forbid it.
    Addr(PeerAddr),
}

impl From<PeerId> for SendTo {
    fn from(peer: PeerId) -> Self {
        Self::Peer(peer)
    }
}

impl From<PeerAddr> for SendTo {
    fn from(addr: PeerAddr) -> Self {
        Self::Addr(addr)
    }
}

/// A peer can't be removed now: something is outstanding with it. Nothing was done.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{peer} is in use: {sends} sends are in flight, {payloads_kept} payloads are still with the \
     provider, {messages_held} messages are held"
)]
#[non_exhaustive]
pub struct PeerInUse {
    /// Which.
    pub peer: PeerId,
    /// Sends to it that have no outcome yet.
    pub sends: u32,
    /// Sends to it that failed while the provider kept the payload:
    /// [`ConnectionlessEvent::Released`] has not come yet.
    pub payloads_kept: u32,
    /// Messages from it that the application holds.
    pub messages_held: u32,
}

fabricast_process::debug_as_words!(PeerInUse);

/// A message from a peer; counted as held until it is dropped. A [`Message`] in all else.
#[derive(Debug)]
pub struct PeerMessage {
    message: Message,
    held: Arc<()>,
}

impl PeerMessage {
    pub(super) fn new(message: Message, held: &Arc<()>) -> Self {
        Self {
            message,
            held: Arc::clone(held),
        }
    }

    /// The message without the count: it is not in the way of removing its peer any more.
    pub fn into_message(self) -> Message {
        self.message
    }
}

impl Deref for PeerMessage {
    type Target = Message;

    fn deref(&self) -> &Message {
        &self.message
    }
}

/// What happened at a [`ConnectionlessEndpoint`](crate::ConnectionlessEndpoint).
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectionlessEvent {
    /// Something happened to a peer.
    ///
    /// `Connected`: it has answered, or came by itself, and sends to it are taken from now on;
    /// where it is stands in [`ConnectionInfo::peer`](crate::endpoint::ConnectionInfo::peer), and
    /// sizes and credits are those of the peer. `Disconnected`: it said goodbye, was lost or given
    /// up, or can't be reached, and every key sent to it came back before this. It stays known, and
    /// the next send begins anew, unless it had come by itself: then
    /// [`Removed`](Self::Removed) follows at once.
    Connection(PeerId, ConnectionEvent),
    /// A message arrived.
    Message {
        /// From whom.
        peer: PeerId,
        /// The message.
        message: PeerMessage,
    },
    /// A message arrived, and its payload is in a GPU's memory: with
    /// [`IncomingSettings::deliver_to`](crate::endpoint::IncomingSettings::deliver_to) or, for a
    /// long one, [`LongMessages::on_device`](crate::endpoint::LongMessages::on_device). It is not
    /// counted as held.
    DeviceMessage {
        /// From whom.
        peer: PeerId,
        /// The message.
        message: DeviceMessage,
    },
    /// A message arrived, and could not be copied to the GPU.
    Undelivered {
        /// From whom.
        peer: PeerId,
        /// As it is, in the host's memory.
        message: PeerMessage,
        /// What the driver answers.
        error: CudaError,
    },
    /// A send is done.
    Completed {
        /// To whom.
        peer: PeerId,
        /// The key that was given to it.
        key: u64,
        /// The payload that was given to it.
        payload: Payload,
    },
    /// A send failed, or will never complete.
    Failed {
        /// To whom.
        peer: PeerId,
        /// The key that was given to it.
        key: u64,
        /// The payload that was given to it; empty if the provider still has it, because the peer
        /// was given up while it was in flight. Then [`Released`](Self::Released) follows.
        payload: Payload,
        /// Why.
        error: CompletionError,
    },
    /// The provider is done with a payload whose send came back [`Failed`](Self::Failed) without
    /// it. May come after the end of its connection, and after [`Removed`](Self::Removed), at the
    /// latest when the endpoint is closed.
    Released {
        /// To whom it was sent.
        peer: PeerId,
        /// The key that was given to it.
        key: u64,
        /// The payload that was given to it.
        payload: Payload,
    },
    /// A send has not completed within its deadline (advice, not an outcome; see
    /// [`DeadlinePolicy::Notify`](crate::endpoint::DeadlinePolicy::Notify)).
    Late {
        /// To whom.
        peer: PeerId,
        /// The key that was given to it.
        key: u64,
    },
    /// What blocked a refused send to a peer has passed.
    Writable {
        /// To whom.
        peer: PeerId,
    },
    /// Messages of a peer wait for buffers, since all of the pool are held or granted.
    Starved {
        /// Whose.
        peer: PeerId,
    },
    /// A peer was removed as asked, or had come by itself and is gone. Its id means nothing any
    /// more.
    Removed {
        /// Which.
        peer: PeerId,
    },
}

impl ConnectionlessEvent {
    /// What an event of a connection is for its peer. Those of the connection as such, and what
    /// these events are made of by a delivery to a GPU, are none.
    pub(super) fn of(event: ReceiveEvent, peers: &mut Peers) -> Option<Self> {
        match event {
            ReceiveEvent::Message(message) => {
                let peer = peers.of(message.connection())?;
                let message = PeerMessage::new(message, &peers.get(peer)?.held);
                Some(Self::Message { peer, message })
            }
            ReceiveEvent::DeviceMessage(message) => {
                let peer = peers.of(message.connection())?;
                Some(Self::DeviceMessage { peer, message })
            }
            ReceiveEvent::Starved { connection } => {
                let peer = peers.of(connection)?;
                Some(Self::Starved { peer })
            }
            event => Self::of_send(event, peers),
        }
    }

    /// What became of a send.
    fn of_send(event: ReceiveEvent, peers: &mut Peers) -> Option<Self> {
        Some(match event {
            ReceiveEvent::Completed {
                connection,
                key,
                payload,
            } => Self::Completed {
                peer: peers.of(connection)?,
                key,
                payload,
            },
            ReceiveEvent::Failed {
                connection,
                key,
                payload,
                error,
                kept,
            } => {
                let peer = peers.of(connection)?;
                if kept {
                    peers.keep(connection);
                }
                Self::Failed {
                    peer,
                    key,
                    payload,
                    error,
                }
            }
            ReceiveEvent::Released {
                connection,
                key,
                payload,
            } => Self::Released {
                peer: peers.release(connection)?,
                key,
                payload,
            },
            ReceiveEvent::Late { connection, key } => Self::Late {
                peer: peers.of(connection)?,
                key,
            },
            ReceiveEvent::Writable { connection } => Self::Writable {
                peer: peers.of(connection)?,
            },
            ReceiveEvent::Message(_)
            | ReceiveEvent::DeviceMessage(_)
            | ReceiveEvent::Undelivered { .. }
            | ReceiveEvent::Starved { .. }
            | ReceiveEvent::Connection(..)
            | ReceiveEvent::Request(_)
            | ReceiveEvent::Window { .. } => return None,
        })
    }
}

impl MessageEvent for ConnectionlessEvent {
    /// From whom, and the count of what is held: a message that waits for its copy is.
    type About = (PeerId, Arc<()>);

    fn into_message(self) -> Result<(Message, Self::About), Self> {
        match self {
            Self::Message { peer, message } => Ok((message.message, (peer, message.held))),
            other => Err(other),
        }
    }

    fn message(message: Message, (peer, held): Self::About) -> Self {
        let message = PeerMessage { message, held };
        Self::Message { peer, message }
    }

    fn delivered(message: DeviceMessage, (peer, _): Self::About) -> Self {
        Self::DeviceMessage { peer, message }
    }

    fn undelivered(message: Message, error: CudaError, (peer, held): Self::About) -> Self {
        Self::Undelivered {
            peer,
            message: PeerMessage { message, held },
            error,
        }
    }

    fn comes_behind(&self) -> bool {
        let over = |event: &ConnectionEvent| matches!(event, ConnectionEvent::Disconnected(_));
        match self {
            Self::Connection(_, event) => over(event),
            _ => matches!(self, Self::Removed { .. } | Self::DeviceMessage { .. }),
        }
    }

    fn is_end(&self) -> bool {
        matches!(self, Self::Connection(_, ConnectionEvent::Disconnected(_)))
    }
}
