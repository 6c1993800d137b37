//! `ObjectServerConfig`: the settings of a server.

use std::time::Duration;

use crate::Error;
use crate::endpoint::limits::{check_count, check_range, config};
use crate::object::server::ClientNetworks;

/// The settings of an [`ObjectServer`](super::ObjectServer), of each of its channels:
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `depth` | transfers | 256 | 1 to 65,536 |
/// | `peers` | clients | 1,024 | 1 to 65,536 |
/// | `first_contacts` | clients | 64 | 1 to 65,536 |
/// | `retiring` | endpoints | 4 | 1 to 64 |
/// | `min_budget` | time | 10 ms | 1 µs to 1 h |
/// | `idle_after` | time | 60 s | 1 ms to 24 h |
///
/// `clients`, the networks that clients may be in, are `any` unless they are said
/// ([`ClientNetworks`]). `name`, which statistics call it by, is `server` unless it is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectServerConfig {
    pub(super) depth: u32,
    pub(super) peers: u32,
    pub(super) first_contacts: u32,
    pub(super) retiring: u32,
    pub(super) min_budget: Duration,
    pub(super) idle_after: Duration,
    pub(super) name: String,
    clients: Option<ClientNetworks>,
}

impl Default for ObjectServerConfig {
    fn default() -> Self {
        Self {
            depth: 256,
            peers: 1024,
            first_contacts: 64,
            retiring: 4,
            min_budget: Duration::from_millis(10),
            idle_after: Duration::from_secs(60),
            name: "server".to_owned(),
            clients: None,
        }
    }
}

impl ObjectServerConfig {
    /// Transfers that a channel has at once, those among them whose clients are late.
    #[must_use]
    pub fn depth(mut self, transfers: u32) -> Self {
        self.depth = transfers;
        self
    }

    /// What statistics call it ([`TelemetryReport`](crate::object::TelemetryReport)).
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The networks that clients may be in: a token that names an address elsewhere is refused
    /// before anything is sent ([`TransferErrorKind::Network`](super::TransferErrorKind::Network)).
    ///
    /// A server that an application drives takes any, unless this is set: it does not know who
    /// tells it tokens. Where those are not trusted, set it, or ask
    /// [`ObjectServer::check_asker`](super::ObjectServer::check_asker) before a token is used. An
    /// [`ObjectService`](crate::object::ObjectService) knows: without this, its clients are where
    /// they ask from ([`ClientNetworks::asker`]).
    #[must_use]
    pub fn clients(mut self, networks: ClientNetworks) -> Self {
        self.clients = Some(networks);
        self
    }

    /// The networks of a server whose applications ask.
    pub(super) fn networks(&self) -> ClientNetworks {
        self.clients.clone().unwrap_or_else(ClientNetworks::any)
    }

    /// Those of a service, and what is left of them for its channels.
    pub(in crate::object) fn of_service(mut self) -> (Self, ClientNetworks) {
        let networks = self.clients.unwrap_or_else(ClientNetworks::asker);
        // Who asks, the service looks at by itself.
        self.clients = Some(networks.clone()).filter(|it| !it.is_asker());
        (self, networks)
    }

    /// Clients that a channel knows at once. Where one more comes, the one that was idle longest
    /// leaves.
    #[must_use]
    pub fn peers(mut self, clients: u32) -> Self {
        self.peers = clients;
        self
    }

    /// Clients that the provider is asked for at once, where that takes time; others wait.
    #[must_use]
    pub fn first_contacts(mut self, clients: u32) -> Self {
        self.first_contacts = clients;
        self
    }

    /// Endpoints that wait for late transfers beside those that take new ones.
    #[must_use]
    pub fn retiring(mut self, endpoints: u32) -> Self {
        self.retiring = endpoints;
        self
    }

    /// A transfer with less time than this until its deadline is refused, before anything is sent.
    #[must_use]
    pub fn min_budget(mut self, time: Duration) -> Self {
        self.min_budget = time;
        self
    }

    /// A client leaves that had no transfer for so long.
    #[must_use]
    pub fn idle_after(mut self, time: Duration) -> Self {
        self.idle_after = time;
        self
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        const MANY: u32 = 1 << 16;
        if let Some(networks) = self.clients.as_ref().filter(|it| it.is_asker()) {
            let reason = "only an ObjectService knows who asks: say `any`, or networks";
            return Err(config("clients", networks.to_string(), reason));
        }
        check_count("depth", self.depth, MANY, "must be 1 to 65536 transfers")?;
        check_count("peers", self.peers, MANY, "must be 1 to 65536 clients")?;
        let contacts = "must be 1 to 65536 clients";
        check_count("first_contacts", self.first_contacts, MANY, contacts)?;
        check_count("retiring", self.retiring, 64, "must be 1 to 64 endpoints")?;
        let budgets = Duration::from_micros(1)..=Duration::from_secs(3600);
        let budget = "must be 1 µs to 1 h";
        check_range("min_budget", self.min_budget, budgets, budget)?;
        let times = Duration::from_millis(1)..=Duration::from_secs(24 * 3600);
        check_range("idle_after", self.idle_after, times, "must be 1 ms to 24 h")
    }
}

#[cfg(all(test, not(loom)))]
mod documented {
    use super::*;
    use crate::endpoint::testing::documented_settings::{Setting, compare};

    #[test]
    fn the_table_of_settings_is_what_the_code_does() {
        let settings: &[Setting<ObjectServerConfig>] = &[
            Setting {
                name: "depth",
                get: |c| c.depth.into(),
                set: |c, v| c.depth(v.count()),
            },
            Setting {
                name: "peers",
                get: |c| c.peers.into(),
                set: |c, v| c.peers(v.count()),
            },
            Setting {
                name: "first_contacts",
                get: |c| c.first_contacts.into(),
                set: |c, v| c.first_contacts(v.count()),
            },
            Setting {
                name: "retiring",
                get: |c| c.retiring.into(),
                set: |c, v| c.retiring(v.count()),
            },
            Setting {
                name: "min_budget",
                get: |c| c.min_budget.into(),
                set: |c, v| c.min_budget(v.time()),
            },
            Setting {
                name: "idle_after",
                get: |c| c.idle_after.into(),
                set: |c, v| c.idle_after(v.time()),
            },
        ];
        let source = include_str!("config.rs");
        compare(
            source,
            "ObjectServerConfig",
            settings,
            ObjectServerConfig::check,
        );
    }
}
