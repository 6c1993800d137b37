//! The three groups of settings that endpoints share: of their connections, of what goes out, and
//! of what comes in.
//!
//! An endpoint's config lends a group to a closure, `.outgoing(|out| out.depth(16))`, so what is
//! not set stays as that endpoint has it. Each group's table says what its settings are at which
//! endpoint: unit, default and range, for all endpoints in one place. A setting that has no row for
//! an endpoint is refused there, with its name.

mod connection;
mod incoming;
mod outgoing;

pub use connection::ConnectionSettings;
pub use incoming::IncomingSettings;
pub use outgoing::OutgoingSettings;

use std::fmt::Debug;

use crate::Error;
use crate::endpoint::limits::config;

/// Whose settings a group has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SettingsOf {
    Send,
    Buffered,
    Publish,
    Connectionless,
    Receive,
    Subscribe,
}

impl SettingsOf {
    /// Those that make connections, and may make them again.
    const DIALING: &[Self] = &[Self::Send, Self::Buffered, Self::Subscribe];
    /// Those whose connections are counted.
    const OF_MANY: &[Self] = &[Self::Publish, Self::Receive, Self::Subscribe];
    /// Those that peers connect to.
    const LISTENING: &[Self] = &[Self::Publish, Self::Receive];
    /// Those that have windows.
    const WITH_WINDOWS: &[Self] = &[Self::Send, Self::Receive];
    /// Those of one connection, by which they send.
    const OF_ONE: &[Self] = &[Self::Send, Self::Buffered];
    /// Those that send messages with a header.
    const WITH_HEADERS: &[Self] = &[Self::Send, Self::Publish, Self::Connectionless];
    /// Those that pack small messages.
    const PACKING: &[Self] = &[Self::Send, Self::Publish, Self::Connectionless];
    /// Those that send messages one by one on connections of the provider's.
    const GATHERING: &[Self] = &[Self::Send, Self::Publish];
    /// Those that send messages.
    const SENDING: &[Self] = &[
        Self::Send,
        Self::Buffered,
        Self::Publish,
        Self::Connectionless,
    ];

    fn is_not_its_setting(self) -> &'static str {
        match self {
            Self::Send => "is not a setting of a SendEndpointZeroCopy",
            Self::Buffered => "is not a setting of a SendEndpointBuffered",
            Self::Publish => "is not a setting of a PublishEndpoint",
            Self::Connectionless => "is not a setting of a ConnectionlessEndpoint",
            Self::Receive => "is not a setting of a ReceiveEndpoint",
            Self::Subscribe => "is not a setting of a SubscribeEndpoint",
        }
    }

    /// Refuses a setting of others that was set here, which would have no effect.
    fn refuse_unless<T: Debug>(
        self,
        owners: &[Self],
        field: &'static str,
        set: Option<&T>,
    ) -> Result<(), Error> {
        match set {
            Some(value) if !owners.contains(&self) => Err(config(
                field,
                format!("{value:?}"),
                self.is_not_its_setting(),
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
