//! What happens to a connection and is no outcome of an operation.

use std::time::Duration;

use crate::endpoint::{CloseReason, ConnectionInfo, SendEvent};

/// What happened to the connection of an [`AsyncSendEndpoint`](super::AsyncSendEndpoint); its end
/// is not among these.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionEvent {
    /// It stands: the first one, or one that was made again.
    Connected(ConnectionInfo),
    /// A send or a one-sided operation has not completed within its deadline, and goes on
    /// ([`DeadlinePolicy::Notify`](crate::endpoint::DeadlinePolicy::Notify)).
    Late,
    /// Nothing was heard from the peer for as long as the setting `unresponsive_after` says.
    /// Nothing is closed.
    Unresponsive,
    /// Something was heard from the peer again.
    Responsive,
    /// The peer closes politely: no send is taken any more, those in flight still complete.
    PeerClosing,
    /// It ended, what was in flight on it failed, and another one will be made
    /// ([`ReconnectPolicy`](crate::endpoint::ReconnectPolicy)).
    Reconnecting {
        /// The number of the next attempt, from 1.
        attempt: u32,
        /// How long until it begins.
        after: Duration,
        /// Why the connection ended, or could not be made.
        reason: CloseReason,
    },
}

impl ConnectionEvent {
    /// What an event says about the connection as such.
    pub(super) fn of(event: &SendEvent) -> Option<Self> {
        match event {
            SendEvent::Connected(info) => Some(Self::Connected(info.clone())),
            SendEvent::Late { .. } => Some(Self::Late),
            SendEvent::Unresponsive => Some(Self::Unresponsive),
            SendEvent::Responsive => Some(Self::Responsive),
            SendEvent::PeerClosing => Some(Self::PeerClosing),
            &SendEvent::Reconnecting {
                attempt,
                after,
                reason,
            } => Some(Self::Reconnecting {
                attempt,
                after,
                reason,
            }),
            SendEvent::Completed { .. }
            | SendEvent::Failed { .. }
            | SendEvent::Window(_)
            | SendEvent::Writable
            | SendEvent::Disconnected(_) => None,
        }
    }
}
