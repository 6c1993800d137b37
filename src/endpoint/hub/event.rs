//! `HubEvent`: what a hub says, in the words of the endpoint above it.

use crate::buffer::Payload;
use crate::endpoint::event::{ReceiveEvent, SendEvent};
use crate::endpoint::message::Message;
use crate::id::ConnectionId;

/// The events of an endpoint that is a hub and little more.
pub(crate) trait HubEvent: Sized {
    /// Appends the same event in the endpoint's words; nothing, if it has none, since that can't
    /// happen there.
    fn tell(event: ReceiveEvent, events: &mut Vec<Self>);

    /// One that there are most of.
    fn completed(connection: ConnectionId, key: u64, payload: Payload) -> Self;

    /// The other one: none where nobody sends to the endpoint.
    fn message(message: Message) -> Option<Self>;
}

impl HubEvent for ReceiveEvent {
    #[inline(always)]
    fn message(message: Message) -> Option<Self> {
        Some(Self::Message(message))
    }

    #[inline(always)]
    fn tell(event: ReceiveEvent, events: &mut Vec<Self>) {
        events.push(event);
    }

    #[inline(always)]
    fn completed(connection: ConnectionId, key: u64, payload: Payload) -> Self {
        Self::Completed {
            connection,
            key,
            payload,
        }
    }
}

impl HubEvent for SendEvent {
    #[inline(always)]
    fn message(_: Message) -> Option<Self> {
        None
    }

    #[inline(always)]
    fn tell(event: ReceiveEvent, events: &mut Vec<Self>) {
        events.push(match event {
            ReceiveEvent::Completed { key, payload, .. } => Self::Completed { key, payload },
            ReceiveEvent::Failed {
                key,
                payload,
                error,
                ..
            } => Self::Failed {
                key,
                payload,
                error,
            },
            ReceiveEvent::Window { event, .. } => Self::Window(event),
            ReceiveEvent::Connection(_, event) => Self::Connection(event),
            ReceiveEvent::Late { key, .. } => Self::Late { key },
            ReceiveEvent::Writable { .. } => Self::Writable,
            // Nobody is accepted, nobody sends to a sender, and its connection's endpoint is closed
            // with the connection.
            ReceiveEvent::Request(_)
            | ReceiveEvent::Message(_)
            | ReceiveEvent::DeviceMessage(_)
            | ReceiveEvent::Undelivered { .. }
            | ReceiveEvent::Released { .. }
            | ReceiveEvent::Starved { .. } => return,
        });
    }

    #[inline(always)]
    fn completed(_: ConnectionId, key: u64, payload: Payload) -> Self {
        Self::Completed { key, payload }
    }
}

/// Takes what a hub says.
pub(crate) trait Tell {
    /// Appends an event, if the endpoint has a word for it.
    fn tell(&mut self, event: ReceiveEvent);
}

impl<E: HubEvent> Tell for Vec<E> {
    #[inline(always)]
    fn tell(&mut self, event: ReceiveEvent) {
        E::tell(event, self);
    }
}
