//! `ConnectionSettings`: which connections an endpoint has, how they are made, watched and ended.

use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::endpoint::hub::conn_table::CONNECTIONS_MAX;
use crate::endpoint::limits::{
    FENCE_TIMEOUT_DEFAULT, LIVENESS_DEFAULT, check_count, check_liveness, check_timeout,
    check_windows,
};
use crate::endpoint::link::socket::{Keepalive, TcpWatch};
use crate::endpoint::receive::AcceptPolicy;
use crate::endpoint::reconnect::ReconnectPolicy;
use crate::endpoint::settings::SettingsOf;
use crate::fabric::EndpointSettings;
use crate::metrics::WatchedKind;
use crate::metrics::registry::WatchedAs;
use crate::protocol::liveness::LivenessTimeouts;

/// Which connections an endpoint has, and how they are made, watched and ended. A config's
/// `connection` lends this to a closure, as it was set so far.
///
/// | setting | of | unit | default | range |
/// |---|---|---|---|---|
/// | `connect_timeout` | all | time | 5 s | 1 ms to 1 h |
/// | `close_timeout` | all | time | 5 s | 1 ms to 1 h |
/// | `unresponsive_after` | all | time | 5 s | 10 ms to 1 h, or none |
/// | `lost_after` | all | time | 60 s | 10 ms to 24 h and above `unresponsive_after`, or none |
/// | `fence_timeout` | all but connectionless | time | 2 s | 1 ms to 1 h |
/// | `keepalive` | all but connectionless | | none | see [`Keepalive`] |
/// | `tcp_user_timeout` | all but connectionless | time | the system's | 1 ms to 24 h |
/// | `reconnect` | send, buffered, subscribe | | off | see [`ReconnectPolicy`] |
/// | `max_connections` | receive, publish | connections at once | 64 | 1 to 65,536 |
/// | `max_connections` | subscribe | publishers at once | 16 | 1 to 4,096 |
/// | `accept` | receive, publish | | `All` | |
/// | `windows` | send | windows exposed at once | 1,024 | 0 to 65,536 |
/// | `windows` | receive | windows exposed at once | 0 | 0 to 65,536 |
/// | `name` | all | a word, in [`metrics`](crate::metrics) | the kind and a number | |
/// | `endpoint` | all | | the provider's own | see [`EndpointSettings`] |
///
/// "Of" names the endpoints that have the setting: [`SendConfig`](crate::endpoint::SendConfig),
/// [`BufferedConfig`](crate::endpoint::BufferedConfig),
/// [`PublishConfig`](crate::endpoint::PublishConfig),
/// [`ConnectionlessConfig`](crate::endpoint::ConnectionlessConfig),
/// [`ReceiveConfig`](crate::endpoint::ReceiveConfig) and
/// [`SubscribeConfig`](crate::endpoint::SubscribeConfig). The others refuse it as they open.
///
/// A function sets the same for endpoints of any kind:
///
/// ```
/// use std::time::Duration;
/// use fabricast::endpoint::{ConnectionSettings, PublishConfig, SendConfig};
///
/// fn patient(connection: ConnectionSettings) -> ConnectionSettings {
///     connection.unresponsive_after(None).lost_after(Some(Duration::from_secs(600)))
/// }
///
/// let send = SendConfig::default().connection(patient);
/// let publish = PublishConfig::default().connection(patient);
/// # let _ = (send, publish);
/// ```
#[derive(Debug, Clone)]
pub struct ConnectionSettings {
    pub(crate) connect_timeout: Duration,
    pub(crate) close_timeout: Duration,
    pub(crate) liveness: LivenessTimeouts,
    fence_timeout: Option<Duration>,
    pub(crate) watch: TcpWatch,
    pub(crate) reconnect: ReconnectPolicy,
    pub(crate) endpoint: EndpointSettings,
    max_connections: Option<u32>,
    accept: Option<AcceptPolicy>,
    windows: Option<u32>,
    name: Option<Arc<str>>,
    /// What a layer above says that it is.
    pub(crate) kind: Option<WatchedKind>,
}

/// Nothing is set: each endpoint's defaults.
impl Default for ConnectionSettings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            close_timeout: Duration::from_secs(5),
            liveness: LIVENESS_DEFAULT,
            fence_timeout: None,
            watch: TcpWatch::default(),
            reconnect: ReconnectPolicy::off(),
            endpoint: EndpointSettings::default(),
            max_connections: None,
            accept: None,
            windows: None,
            name: None,
            kind: None,
        }
    }
}

impl ConnectionSettings {
    /// How long making a connection may take: where this side connects, the answer of the peer
    /// included; where peers connect, from a peer's first byte until the connection stands.
    ///
    /// A provider that looks for the peer for longer
    /// ([`resolves_in_open`](crate::fabric::Provider::resolves_in_open)) is not waited for; the
    /// domain stays open until it has answered.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// What it is called in [`metrics`](crate::metrics), where endpoints of one kind that are
    /// called the same are one series. Without it, it is called by its kind and a number.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// What an endpoint of this kind is watched as.
    pub(crate) fn watched_as(&self, kind: WatchedKind) -> WatchedAs {
        WatchedAs {
            kind: self.kind.unwrap_or(kind),
            name: self.name.clone(),
        }
    }

    /// How long the goodbye may take when the peer begins it.
    #[must_use]
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.close_timeout = timeout;
        self
    }

    /// Reports a peer of which nothing was heard for so long as `Unresponsive`, an event; nothing
    /// else follows. A silent peer is asked for a sign of life well before; every byte from it is
    /// one.
    #[must_use]
    pub fn unresponsive_after(mut self, silence: Option<Duration>) -> Self {
        self.liveness.unresponsive = silence;
        self
    }

    /// Closes a connection when nothing was heard from its peer for so long
    /// ([`CloseReason::PeerSilent`](crate::endpoint::CloseReason::PeerSilent)); every key comes
    /// back. A peer whose application polls less often than this is lost although it lives.
    ///
    /// Over FI_EP_RDM, where no provider tells a receiver that a sender died, this does; a receiver
    /// also closes a connection there when a message is known to have been sent and has not come
    /// for so long ([`CloseReason::MessageLost`](crate::endpoint::CloseReason::MessageLost)).
    #[must_use]
    pub fn lost_after(mut self, silence: Option<Duration>) -> Self {
        self.liveness.lost = silence;
        self
    }

    /// How long a peer may take to answer a fence: the question whether all that it began before is
    /// over. It is asked where memory that peers of the domain could reach is to come back, behind
    /// a long message and a revoked window, and a peer answers it when its endpoint is polled. So
    /// this is how long one peer can keep such memory from its owner; long messages wait for some
    /// milliseconds only
    /// ([`LongMessages`](crate::endpoint::LongMessages)).
    ///
    /// A peer that has not answered by then loses its connection
    /// ([`CloseReason::FenceDeadline`](crate::endpoint::CloseReason::FenceDeadline)), and so does
    /// one that needed more than half of it three times within ten minutes
    /// ([`CloseReason::FencesLate`](crate::endpoint::CloseReason::FencesLate)). While at least
    /// 4 MiB a second of what it began before come in, it has more time, up to `lost_after` (60 s
    /// where there is none); it never has more than that.
    ///
    /// Set it above the longest time for which peers do not poll.
    #[must_use]
    pub fn fence_timeout(mut self, timeout: Duration) -> Self {
        self.fence_timeout = Some(timeout);
        self
    }

    /// Has the kernel probe idle connections, and close those where nothing answers: works while
    /// the peer's application is busy. TCP only;
    /// [`ConnectionInfo::kernel_watch`](crate::endpoint::ConnectionInfo::kernel_watch) says whether
    /// it does.
    #[must_use]
    pub fn keepalive(mut self, keepalive: Option<Keepalive>) -> Self {
        self.watch.keepalive = keepalive;
        self
    }

    /// Has the kernel close a connection when data that it sent there is not acknowledged, or not
    /// accepted, for so long (`TCP_USER_TIMEOUT`, tcp(7)); a peer that is alive and does not read
    /// for so long is lost, too. TCP only;
    /// [`ConnectionInfo::kernel_watch`](crate::endpoint::ConnectionInfo::kernel_watch) says whether
    /// it does.
    #[must_use]
    pub fn tcp_user_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.watch.user_timeout = timeout;
        self
    }

    /// What happens when a connection ends, or can't be made. A subscriber subscribes again to what
    /// is wanted, on each new one.
    #[must_use]
    pub fn reconnect(mut self, policy: ReconnectPolicy) -> Self {
        self.reconnect = policy;
        self
    }

    /// Connections at once. One more is refused, where peers connect.
    #[must_use]
    pub fn max_connections(mut self, connections: u32) -> Self {
        self.max_connections = Some(connections);
        self
    }

    /// Who decides about connection requests.
    #[must_use]
    pub fn accept(mut self, policy: AcceptPolicy) -> Self {
        self.accept = Some(policy);
        self
    }

    /// Windows that this side may expose to its peers at once, all connections together.
    ///
    /// At a receive endpoint, above 0, peers and this side can also use the windows of the other;
    /// each connection then keeps two more buffers of the pool.
    #[must_use]
    pub fn windows(mut self, windows: u32) -> Self {
        self.windows = Some(windows);
        self
    }

    /// What each connection asks of the provider: queue sizes, segments, traffic class, source
    /// address.
    #[must_use]
    pub fn endpoint(mut self, settings: EndpointSettings) -> Self {
        self.endpoint = settings;
        self
    }

    pub(crate) fn fence_timeout_of(&self) -> Duration {
        self.fence_timeout.unwrap_or(FENCE_TIMEOUT_DEFAULT)
    }

    pub(crate) fn max_connections_of(&self, of: SettingsOf) -> u32 {
        let default = match of {
            SettingsOf::Subscribe => 16,
            _ => 64,
        };
        self.max_connections.unwrap_or(default)
    }

    pub(crate) fn windows_of(&self, of: SettingsOf) -> u32 {
        let default = match of {
            SettingsOf::Send => 1024,
            _ => 0,
        };
        self.windows.unwrap_or(default)
    }

    /// Whether the application decides.
    pub(crate) fn asks(&self) -> bool {
        self.accept == Some(AcceptPolicy::Ask)
    }

    pub(crate) fn check(&self, of: SettingsOf) -> Result<(), Error> {
        self.check_owner(of)?;
        let (most, reason) = match of {
            SettingsOf::Subscribe => (4096, "must be 1 to 4096"),
            _ => (CONNECTIONS_MAX, "must be 1 to 65536"),
        };
        let connections = self.max_connections_of(of);
        check_count("max_connections", connections, most, reason)?;
        check_windows(self.windows_of(of))?;
        check_timeout("connect_timeout", self.connect_timeout)?;
        check_timeout("close_timeout", self.close_timeout)?;
        check_liveness(&self.liveness)?;
        check_timeout("fence_timeout", self.fence_timeout_of())?;
        self.watch.check()?;
        self.reconnect.check()
    }

    /// Nothing is set that the endpoint does not have.
    fn check_owner(&self, of: SettingsOf) -> Result<(), Error> {
        let connections = self.max_connections.as_ref();
        let reconnect = Some(&self.reconnect).filter(|policy| !policy.is_off());
        of.refuse_unless(SettingsOf::OF_MANY, "max_connections", connections)?;
        of.refuse_unless(SettingsOf::LISTENING, "accept", self.accept.as_ref())?;
        of.refuse_unless(SettingsOf::DIALING, "reconnect", reconnect)?;
        of.refuse_unless(SettingsOf::WITH_WINDOWS, "windows", self.windows.as_ref())?;
        if of == SettingsOf::Connectionless {
            of.refuse_unless(&[], "fence_timeout", self.fence_timeout.as_ref())?;
            of.refuse_unless(&[], "keepalive", self.watch.keepalive.as_ref())?;
            of.refuse_unless(&[], "tcp_user_timeout", self.watch.user_timeout.as_ref())?;
        }
        Ok(())
    }
}
