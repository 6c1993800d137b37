//! What endpoints report: tagged events with owned payloads.

use std::time::Duration;

use crate::buffer::Payload;
use crate::cuda::CudaError;
use crate::endpoint::delivery::{DeviceMessage, MessageEvent};
use crate::endpoint::link::socket::KernelWatch;
use crate::endpoint::message::Message;
use crate::endpoint::windows::window::WindowEvent;
use crate::errno::CompletionError;
use crate::fabric::{PeerAddr, Shape};
use crate::id::ConnectionId;
use crate::protocol::connection::CloseReason;
use crate::protocol::wire::HeaderMode;

pub use crate::fabric::{Inject, Level, Packing};

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

/// A peer that asks for a connection. Answer with
/// [`ReceiveEndpoint::accept`](crate::ReceiveEndpoint::accept) or
/// [`ReceiveEndpoint::refuse`](crate::ReceiveEndpoint::refuse).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionRequest {
    /// The connection that it will be, if it is accepted.
    pub connection: ConnectionId,
    /// The peer's address, where the provider tells.
    pub peer: Option<PeerAddr>,
}

impl ConnectionRequest {
    /// The request for this connection, for who kept no more of it than the number. Where nobody
    /// asks for it, it is answered as one that is gone.
    pub fn of(connection: ConnectionId) -> Self {
        Self {
            connection,
            peer: None,
        }
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
    /// Messages that this side sends go out injected up to so many bytes, header included; 0: none
    /// do.
    pub inject: usize,
    /// Whether the kernel watches the connection, as the settings ask.
    pub kernel_watch: KernelWatch,
}

/// What happened to a connection: one variant of each endpoint's events brings it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// It stands: the first one, or one that was made again.
    Connected(ConnectionInfo),
    /// Nothing was heard from the peer for as long as the setting
    /// [`unresponsive_after`](crate::endpoint::ConnectionSettings::unresponsive_after) says: it is
    /// stopped, busy, or cut off. Nothing is closed.
    Unresponsive,
    /// Something was heard from the peer again.
    Responsive,
    /// The peer closes politely: nothing that is sent from now on is taken, what is in flight still
    /// completes. What a buffered endpoint has not sent yet fails; a subscriber that closes gets no
    /// publication any more. Not told by connectionless endpoints.
    PeerClosing,
    /// The connection ended, what was in flight on it came back before this, and another one will
    /// be made; never without a [`ReconnectPolicy`](crate::endpoint::ReconnectPolicy).
    /// [`Connected`](Self::Connected) follows, or this again, or
    /// [`Disconnected`](Self::Disconnected). Nothing is sent again by itself: messages that are
    /// packed and not yet sent wait for it, what a subscriber wants is subscribed to again then,
    /// and what is published meanwhile is lost.
    Reconnecting {
        /// The number of the next attempt, from 1.
        attempt: u32,
        /// How long until it begins.
        after: Duration,
        /// Why the connection ended, or could not be made.
        reason: CloseReason,
    },
    /// Something that was sent has not completed within its deadline, and goes on. Told by
    /// [`AsyncSendEndpoint`](crate::future::AsyncSendEndpoint) alone: elsewhere `Late`, with the
    /// key, is an event of its own.
    Late,
    /// The connection is closed, or could not be made. Its last event, and everything had its
    /// outcome before it, but for payloads that the provider keeps (`Released`). Of an endpoint
    /// with one connection, the last event at all.
    Disconnected(CloseReason),
}

/// What happened at a [`SendEndpointZeroCopy`](crate::SendEndpointZeroCopy).
#[derive(Debug)]
#[non_exhaustive]
pub enum SendEvent {
    /// Something happened to the connection; sends are taken while it stands.
    Connection(ConnectionEvent),
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
        /// The payload that was given to it; empty if it had to be leaked because the provider
        /// would not close.
        payload: Payload,
        /// Why.
        error: CompletionError,
    },
    /// A send has not completed within its deadline (advice, not an outcome; see
    /// [`DeadlinePolicy::Notify`]).
    Late {
        /// The key that was given to `send_data`.
        key: u64,
    },
    /// A one-sided operation is over, or something happened to a window.
    Window(WindowEvent),
    /// What blocked a refused send has passed.
    Writable,
}

/// What happened at a [`ReceiveEndpoint`](crate::ReceiveEndpoint).
#[derive(Debug)]
#[non_exhaustive]
pub enum ReceiveEvent {
    /// A peer asks for a connection (with [`AcceptPolicy::Ask`](crate::endpoint::AcceptPolicy::Ask)
    /// only).
    Request(ConnectionRequest),
    /// Something happened to a connection.
    Connection(ConnectionId, ConnectionEvent),
    /// A message arrived.
    Message(Message),
    /// A message arrived, and its payload is in a GPU's memory: with
    /// [`IncomingSettings::deliver_to`](crate::endpoint::IncomingSettings::deliver_to) or
    /// [`LongMessages::on_device`](crate::endpoint::LongMessages::on_device).
    DeviceMessage(DeviceMessage),
    /// A message arrived, and could not be copied to the GPU.
    Undelivered {
        /// As it is, in the host's memory.
        message: Message,
        /// What the driver answers.
        error: CudaError,
    },
    /// A one-sided operation of this side is over, or something happened to a window.
    Window {
        /// Whose.
        connection: ConnectionId,
        /// What.
        event: WindowEvent,
    },
    /// A send is done. Only of endpoints with many connections that send, too: no
    /// [`ReceiveEndpoint`](crate::ReceiveEndpoint) does.
    Completed {
        /// Whose.
        connection: ConnectionId,
        /// The key that was given to it.
        key: u64,
        /// The payload that was given to it.
        payload: Payload,
    },
    /// A send failed, or will never complete. As [`Completed`](Self::Completed).
    Failed {
        /// Whose.
        connection: ConnectionId,
        /// The key that was given to it.
        key: u64,
        /// The payload that was given to it; empty if the provider still has it: then
        /// [`Released`](Self::Released) follows, or it had to be leaked because the provider would
        /// not close.
        payload: Payload,
        /// Why.
        error: CompletionError,
        /// The provider still has the payload: [`Released`](Self::Released) follows.
        kept: bool,
    },
    /// The provider is done with a payload whose send came back [`Failed`](Self::Failed) without
    /// it, because its connection ended. The one thing that is told of a connection after its
    /// end.
    Released {
        /// Whose.
        connection: ConnectionId,
        /// The key that was given to it.
        key: u64,
        /// The payload that was given to it.
        payload: Payload,
    },
    /// An operation has not completed within its deadline (advice, not an outcome; see
    /// [`DeadlinePolicy::Notify`]).
    Late {
        /// Whose.
        connection: ConnectionId,
        /// The key that was given to it.
        key: u64,
    },
    /// What blocked a refused operation has passed.
    Writable {
        /// Whose.
        connection: ConnectionId,
    },
    /// A connection wants more buffers than the pool has, or than are left to this endpoint of one
    /// that is [shared](crate::endpoint::IncomingSettings::shared_pool): messages are held, and its
    /// peer will stall.
    Starved {
        /// Which.
        connection: ConnectionId,
    },
}

impl MessageEvent for ReceiveEvent {
    type About = ();

    fn into_message(self) -> Result<(Message, ()), Self> {
        match self {
            Self::Message(message) => Ok((message, ())),
            other => Err(other),
        }
    }

    fn message(message: Message, (): ()) -> Self {
        Self::Message(message)
    }

    fn delivered(message: DeviceMessage, (): ()) -> Self {
        Self::DeviceMessage(message)
    }

    fn undelivered(message: Message, error: CudaError, (): ()) -> Self {
        Self::Undelivered { message, error }
    }

    fn comes_behind(&self) -> bool {
        matches!(
            self,
            Self::DeviceMessage(_)
                | Self::Connection(
                    _,
                    ConnectionEvent::PeerClosing | ConnectionEvent::Disconnected(_)
                )
        )
    }

    fn is_end(&self) -> bool {
        matches!(self, Self::Connection(_, ConnectionEvent::Disconnected(_)))
    }
}
