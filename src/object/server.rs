//! `ObjectServer`: moves bytes into and out of what tokens name.
//!
//! ```text
//!  ObjectServer ── channel() ──► ObjectChannel      one a thread
//!                                 │ admission       what a token says is checked
//!                                 │ core            deadlines, outcomes
//!                                 │  peers, turns   who is known, what waits for each, whose turn
//!                                 │  contacts       who is taken in, by threads where it may block
//!                                 │  lanes          which endpoint takes what is new
//!                                 │  queue_watch    what a thread that sleeps watches
//!                                 └─ engine         endpoints, and what they may touch: all that
//!                                                   is unsafe, with transfer
//! ```

mod admission;
mod channel;
mod config;
mod contacts;
mod core;
mod engine;
mod error;
mod event;
mod lanes;
mod names;
mod networks;
mod outcomes;
mod peers;
mod queue_watch;
mod rest;
mod runs;
mod stats;
mod transfer;
mod turns;

use std::sync::Arc;

pub use channel::ObjectChannel;
pub use config::ObjectServerConfig;
pub use error::{TransferError, TransferErrorKind};
pub use event::ChannelEvent;
pub use networks::ClientNetworks;
pub use stats::ChannelStats;

use self::names::OwnNames;
use crate::Error;
use crate::fabric::{Domain, Fabric, PeerAddr, RmaLimits};
use crate::memory::{Registrar, Scope};
use crate::object::telemetry::Telemetry;
use crate::object::{ObjectSide, ObjectStats, RdmaToken, needs};

/// Moves bytes into and out of the windows that tokens name, with a domain of its own.
///
/// A client's window is reached through an endpoint without connections, so the fabric is one of
/// [`EndpointKind::Rdm`](crate::fabric::EndpointKind::Rdm). Over `tcp` the client's endpoint has to
/// be progressed meanwhile, by whoever has it.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use fabricast::Fabric;
/// use fabricast::buffer::SharedBufferManager;
/// use fabricast::fabric::EndpointKind;
/// use fabricast::object::{ObjectServer, ObjectServerConfig, RdmaToken};
///
/// let fabric = |provider| {
///     let builder = Fabric::builder().provider(provider).node("127.0.0.1");
///     builder.endpoint_kind(EndpointKind::Rdm).open()
/// };
/// // What libfabric up to 1.17 calls `net` is `tcp` later.
/// let fabric = fabric("tcp").or_else(|_| fabric("net"))?;
/// let server = ObjectServer::open(&fabric, ObjectServerConfig::default())?;
/// let mut channel = server.channel()?;
///
/// let pool = SharedBufferManager::allocate(1, 4096)?;
/// pool.region().register(server.domain())?;
/// let payload = pool.try_acquire().expect("it is free").freeze(4096);
///
/// // A token that somebody sent: for another provider.
/// let token: RdmaToken = "0:1000:ofi1:verbs;ofi_rxm:020012340a00000100ff:7".parse()?;
/// let deadline = Instant::now() + Duration::from_secs(1);
/// let refused = channel.handle_get(&token, 0, payload, 1, deadline).unwrap_err();
/// println!("{}", refused.kind);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ObjectServer {
    parts: Arc<ServerParts>,
}

/// What a server and its channels share.
#[derive(Debug)]
struct ServerParts {
    domain: Arc<Domain>,
    rma: RmaLimits,
    config: ObjectServerConfig,
    names: Arc<OwnNames>,
    telemetry: Arc<Telemetry>,
}

impl ServerParts {
    fn scope(&self) -> Scope {
        self.domain.scope()
    }
}

impl ObjectServer {
    /// Opens a domain of its own on the fabric.
    ///
    /// # Errors
    ///
    /// * [`Error::Config`]: a setting out of range.
    /// * [`Error::Unsupported`]: the fabric has connected endpoints, or the provider no one-sided
    ///   operations, or registrations that belong to endpoints.
    /// * What [`Fabric::open_domain`] says.
    pub fn open(fabric: &Arc<Fabric>, config: ObjectServerConfig) -> Result<Self, Error> {
        config.check()?;
        let parts = ServerParts {
            rma: needs::one_sided(fabric)?,
            domain: fabric.open_domain()?,
            telemetry: Telemetry::new(ObjectSide::Server, &config.name),
            config,
            names: Arc::default(),
        };
        Ok(Self {
            parts: Arc::new(parts),
        })
    }

    /// The domain: what payloads and destinations lie in is registered with it
    /// ([`Region::register`](crate::Region::register)).
    pub fn domain(&self) -> &Arc<Domain> {
        &self.parts.domain
    }

    /// Whether the client that a token names may be told of by somebody at `asker`: for an
    /// application that knows where its requests come from, and looks before it uses a token. What
    /// the token says besides is judged when it is used.
    ///
    /// ```
    /// # use fabricast::Fabric;
    /// # use fabricast::fabric::EndpointKind;
    /// # use fabricast::object::{ClientNetworks, ObjectServer, ObjectServerConfig, RdmaToken};
    /// # let open = |provider| Fabric::builder()
    /// #     .provider(provider).endpoint_kind(EndpointKind::Rdm).node("127.0.0.1").open();
    /// # let fabric = open("tcp").or_else(|_| open("net"))?;
    /// # let provider = fabric.provider().name;
    /// let server = ObjectServer::open(&fabric, ObjectServerConfig::default())?;
    /// // Of a client at 10.0.0.1, told by somebody at 10.0.0.9.
    /// let token = format!("0:1000:ofi1:{provider}:020012340a0000010000000000000000:7");
    /// let (token, asker): (RdmaToken, _) = (token.parse()?, "10.0.0.9:4242".parse()?);
    /// assert!(server.check_asker(&ClientNetworks::asker(), &token, &asker).is_err());
    /// assert!(server.check_asker(&"10.0.0.0/8".parse()?, &token, &asker).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TransferErrorKind::Network`]; [`TransferErrorKind::Provider`] and
    /// [`TransferErrorKind::Name`] of a token that is for no server of this provider.
    pub fn check_asker(
        &self,
        networks: &ClientNetworks,
        token: &RdmaToken,
        asker: &PeerAddr,
    ) -> Result<(), TransferErrorKind> {
        self.parts.check_asker(networks, token, Some(asker))
    }

    /// What all channels did so far, and how long it took.
    pub fn stats(&self) -> ObjectStats {
        self.parts.telemetry.stats()
    }

    /// Opens a channel, for one thread.
    ///
    /// # Errors
    ///
    /// What the provider says to an endpoint more.
    pub fn channel(&self) -> Result<ObjectChannel, Error> {
        ObjectChannel::open(&self.parts)
    }
}

#[cfg(all(test, not(loom)))]
#[path = "server/tests/mod.rs"]
mod tests;
