//! What endpoints report: tagged events with owned payloads.

use crate::buffer::Payload;
use crate::endpoint::address::PeerAddr;
use crate::endpoint::connection::CloseReason;
use crate::endpoint::message::Message;
use crate::endpoint::receive::ConnectionRequest;
use crate::endpoint::wire::HeaderMode;
use crate::error::CompletionError;
use crate::fabric::Shape;

/// What a completion of a send says.
///
/// The levels of `fi_msg.3`: `FI_TRANSMIT_COMPLETE`-like or `FI_DELIVERY_COMPLETE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Level {
    /// The provider is done with the buffer, which may be reused. Over tcp: the bytes are in the kernel. Says
    /// nothing of the peer.
    #[default]
    Sent,
    /// The message is in a receive buffer of the peer.
    Delivered,
}

/// What to do when a posted send has not completed within its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum DeadlinePolicy {
    /// Close the connection: every key in flight comes back failed, with its payload.
    #[default]
    FailConnection,
    /// Report [`SendEvent::Late`] once, and go on waiting.
    Notify,
}

/// A connection of an endpoint: unique in the process, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(crate) u64);

impl ConnectionId {
    /// The number, for logs and foreign interfaces.
    pub fn as_u64(self) -> u64 {
        self.0
    }
}

impl std::fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What both sides agreed on when the connection was made.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// The peer's address, where the provider tells.
    pub peer: Option<PeerAddr>,
    /// The peer process's incarnation: a restarted peer has another.
    pub peer_incarnation: u64,
    /// Bytes of the largest message, header included, that the receiving side takes.
    pub max_message: u64,
    /// Messages that the receiving side granted to begin with.
    pub credits: u32,
    /// How headers are told from payloads.
    pub header_mode: HeaderMode,
    /// How header and payload become one message.
    pub shape: Shape,
}

/// What happened at a [`SendEndpointZeroCopy`](crate::SendEndpointZeroCopy).
#[derive(Debug)]
#[non_exhaustive]
pub enum SendEvent {
    /// The connection stands: sends are taken from now on.
    Connected(ConnectionInfo),
    /// A send is done.
    Completed {
        /// The key that was given to `send_data`.
        key: u64,
        /// The payload that was given to it.
        payload: Payload,
    },
    /// A send failed, or will never complete.
    Failed {
        /// The key that was given to `send_data`.
        key: u64,
        /// The payload that was given to it; empty if it had to be leaked because the provider would not close.
        payload: Payload,
        /// Why.
        error: CompletionError,
    },
    /// A send has not completed within its deadline (advice, not an outcome; see [`DeadlinePolicy::Notify`]).
    Late {
        /// The key that was given to `send_data`.
        key: u64,
    },
    /// What blocked a refused send has passed.
    Writable,
    /// The peer closes politely: no send is taken any more, those in flight still complete.
    PeerClosing,
    /// The connection is closed, or could not be made. The last event; every key came back before it.
    Disconnected(CloseReason),
}

/// What happened at a [`ReceiveEndpoint`](crate::ReceiveEndpoint).
#[derive(Debug)]
#[non_exhaustive]
pub enum ReceiveEvent {
    /// A peer asks for a connection (with [`AcceptPolicy::Ask`](crate::endpoint::AcceptPolicy::Ask) only).
    Request(ConnectionRequest),
    /// A connection stands.
    Connected {
        /// Which.
        connection: ConnectionId,
        /// What was agreed.
        info: ConnectionInfo,
    },
    /// A message arrived.
    Message(Message),
    /// A connection wants more buffers than the pool has: messages are held, and its peer will stall.
    Starved {
        /// Which.
        connection: ConnectionId,
    },
    /// The peer sent all it will send, and closes.
    PeerClosing {
        /// Which.
        connection: ConnectionId,
    },
    /// A connection is closed. Its last event.
    Disconnected {
        /// Which.
        connection: ConnectionId,
        /// Why.
        reason: CloseReason,
    },
}
