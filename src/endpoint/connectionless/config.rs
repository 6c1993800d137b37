//! The settings of a connectionless endpoint.

use std::fmt;

use crate::Error;
use crate::buffer::HeaderSlotManager;
use crate::endpoint::connectionless::event::PeerId;
use crate::endpoint::hub::conn_table::CONNECTIONS_MAX;
use crate::endpoint::hub::{HubSettings, OutboundSettings, WindowSettings};
use crate::endpoint::settings::{
    ConnectionSettings, IncomingSettings, OutgoingSettings, SettingsOf,
};

use crate::endpoint::limits::check_count;
use crate::metrics::WatchedKind;
use crate::protocol::connection::Form;

/// Most peers: two connections with each, if both sides begin at once.
const PEERS_MAX: u32 = CONNECTIONS_MAX / 2;

/// The settings of a [`ConnectionlessEndpoint`](crate::ConnectionlessEndpoint): those of the
/// [connections](ConnectionSettings) that it makes with its peers, of [what comes
/// in](IncomingSettings), of [what goes out](OutgoingSettings), and its own:
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `max_peers` | peers at once | 64 | 1 to 32,768 |
/// | `accept_unknown` | | yes | |
/// | `add_on_send` | | yes | |
/// | `total_depth` | sends in flight to all peers together | 256 | 1 to 65,536 |
///
/// The pool takes `slots × max_message` bytes; with long messages, it has 12 × `max_peers` slots at
/// least, and 14 × `max_peers` where nothing is set. Each peer is granted as many messages as
/// `credits` says, but so that those that may still come find room for one, twice: two sides
/// that begin at the same time have two connections.
pub struct ConnectionlessConfig {
    pub(super) connection: ConnectionSettings,
    pub(super) outgoing: OutgoingSettings,
    pub(super) incoming: IncomingSettings,
    pub(super) max_peers: u32,
    pub(super) accept_unknown: bool,
    pub(super) add_on_send: bool,
    pub(super) total_depth: u32,
    pub(super) on_abandoned: Option<OnAbandoned>,
}

pub(super) type OnAbandoned = Box<dyn FnMut(PeerId, u64) + Send>;

impl Default for ConnectionlessConfig {
    fn default() -> Self {
        Self {
            connection: ConnectionSettings::default(),
            outgoing: OutgoingSettings::default(),
            incoming: IncomingSettings::default(),
            max_peers: 64,
            accept_unknown: true,
            add_on_send: true,
            total_depth: 256,
            on_abandoned: None,
        }
    }
}

impl ConnectionlessConfig {
    /// How the connections with peers are made, watched and ended.
    #[must_use]
    pub fn connection(
        mut self,
        set: impl FnOnce(ConnectionSettings) -> ConnectionSettings,
    ) -> Self {
        self.connection = set(self.connection);
        self
    }

    /// What comes in, and into which buffers.
    #[must_use]
    pub fn incoming(mut self, set: impl FnOnce(IncomingSettings) -> IncomingSettings) -> Self {
        self.incoming = set(self.incoming);
        self
    }

    /// What goes out, and how.
    #[must_use]
    pub fn outgoing(mut self, set: impl FnOnce(OutgoingSettings) -> OutgoingSettings) -> Self {
        self.outgoing = set(self.outgoing);
        self
    }

    /// Peers at once, those that came by themselves included; one more is refused.
    #[must_use]
    pub fn max_peers(mut self, peers: u32) -> Self {
        self.max_peers = peers;
        self
    }

    /// Whether a peer that was not added may begin. If not, it is refused.
    #[must_use]
    pub fn accept_unknown(mut self, accept: bool) -> Self {
        self.accept_unknown = accept;
        self
    }

    /// Whether the first send to an address adds the peer. If not, it is refused.
    #[must_use]
    pub fn add_on_send(mut self, add: bool) -> Self {
        self.add_on_send = add;
        self
    }

    /// The most sends in flight to all peers together. What was sent to a peer that is gone counts
    /// until the provider is done with it.
    #[must_use]
    pub fn total_depth(mut self, sends: u32) -> Self {
        self.total_depth = sends;
        self
    }

    /// Called with each key that has no outcome yet when the endpoint is dropped, from within the
    /// drop: a panic of it is logged, and goes no further.
    #[must_use]
    pub fn on_abandoned(mut self, hear: impl FnMut(PeerId, u64) + Send + 'static) -> Self {
        self.on_abandoned = Some(Box::new(hear));
        self
    }

    /// Buffers of the receive pool.
    pub(super) fn pool_slots(&self) -> usize {
        let each = if self.incoming.long.is_some() { 14 } else { 10 };
        self.incoming.slots_or(self.max_peers.saturating_mul(each))
    }

    /// Its connections have no windows, and no operations on those of peers.
    fn windows(&self) -> WindowSettings {
        WindowSettings {
            operations: 0,
            long: self.incoming.long.is_some(),
            ..WindowSettings::none()
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let peers = "must be 1 to 32768 peers";
        check_count("max_peers", self.max_peers, PEERS_MAX, peers)?;
        self.connection.check(SettingsOf::Connectionless)?;
        self.outgoing.check(SettingsOf::Connectionless)?;
        let sends = "must be 1 to 65536 sends";
        check_count("total_depth", self.total_depth, 65_536, sends)?;
        let reason = match self.incoming.long {
            None => "must be 8 for each of max_peers, to 1048576",
            Some(_) => "must be 12 for each of max_peers, as there are long messages, to 1048576",
        };
        let receives_min = self.windows().reserve() + OutboundSettings::grants(Form::Rdm) + 1;
        let least = ((2 * receives_min * self.max_peers) as usize, reason);
        self.incoming
            .check(SettingsOf::Connectionless, self.pool_slots(), least)
    }

    pub(super) fn settings(&self, headers: HeaderSlotManager, max_message: usize) -> HubSettings {
        let (connection, outgoing) = (&self.connection, &self.outgoing);
        HubSettings {
            credits: self.incoming.credits,
            max_connections: 2 * self.max_peers,
            max_of_host: None,
            max_message: max_message as u64,
            // Who is no peer, and can't be one, is refused here and not by the core.
            ask: true,
            accepts: true,
            publishing: false,
            handshake_timeout: connection.connect_timeout,
            close_timeout: connection.close_timeout,
            header_mode: None,
            windows: self.windows(),
            long: self.incoming.long.clone(),
            sends: Some(OutboundSettings {
                total: self.total_depth,
                ..outgoing.outbound_of(SettingsOf::Connectionless, headers)
            }),
            liveness: connection.liveness,
            fence_timeout: connection.fence_timeout_of(),
            watch: connection.watch,
            watched: connection.watched_as(WatchedKind::Connectionless),
        }
    }
}

impl fmt::Debug for ConnectionlessConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionlessConfig")
            .field("max_peers", &self.max_peers)
            .field("outgoing", &self.outgoing)
            .field("incoming", &self.incoming)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::endpoint::testing::documented_settings::{Setting, compare};

    #[test]
    fn the_table_of_settings_is_what_the_code_does() {
        let settings: &[Setting<ConnectionlessConfig>] = &[
            Setting {
                name: "max_peers",
                get: |c| c.max_peers.into(),
                set: |c, v| {
                    c.incoming(|incoming| incoming.slots(1 << 20))
                        .max_peers(v.count())
                },
            },
            Setting {
                name: "total_depth",
                get: |c| c.total_depth.into(),
                set: |c, v| c.total_depth(v.count()),
            },
        ];
        compare(
            include_str!("config.rs"),
            "ConnectionlessConfig",
            settings,
            ConnectionlessConfig::check,
        );
    }

    /// The ranges themselves are those of the groups' tables.
    #[test]
    fn its_groups_are_checked() {
        let refused = [
            (
                ConnectionlessConfig::default()
                    .connection(|c| c.close_timeout(std::time::Duration::ZERO)),
                "close_timeout",
            ),
            (
                ConnectionlessConfig::default().outgoing(|out| out.depth(0)),
                "depth",
            ),
            (
                ConnectionlessConfig::default().incoming(|incoming| incoming.credits(0)),
                "credits",
            ),
            (
                ConnectionlessConfig::default().incoming(|incoming| incoming.slots(511)),
                "slots",
            ),
            (
                ConnectionlessConfig::default().connection(|c| c.max_connections(1)),
                "max_connections",
            ),
        ];
        for (config, named) in refused {
            let error = config.check().expect_err(named).to_string();
            assert!(error.starts_with(&format!("setting {named} = ")), "{error}");
        }
    }
}
