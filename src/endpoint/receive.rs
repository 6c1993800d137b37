//! `ReceiveEndpoint`: listens, and receives from every peer that connects.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use libfabric_sys as sys;

use crate::Error;
use crate::buffer::SharedBufferManager;
use crate::clock::Clock;
use crate::endpoint::windows::handle::Windows;

use crate::endpoint::delivery::Deliveries;
use crate::endpoint::event::{ConnectionRequest, ReceiveEvent};
use crate::endpoint::hub::in_flight_max::InFlightMax;
use crate::endpoint::hub::{Hub, HubSettings, WindowSettings};
use crate::endpoint::inbox::HubInbox;
use crate::endpoint::limits::{self, config};
use crate::endpoint::link::fd_limit;
use crate::endpoint::link::provider::ProviderLink;
use crate::endpoint::settings::{
    ConnectionSettings, IncomingSettings, OutgoingSettings, SettingsOf,
};
use crate::id::ConnectionId;

use crate::endpoint::received_messages::ReceivedMessages;
use crate::metrics::WatchedKind;
use crate::protocol::connection::Form;

use crate::endpoint::link::rdm_hello::HELLO_MESSAGE_MAX;
use crate::protocol::wire::{HeaderMode, Refusal, RefusalCode, SHORT_DEPTH_MAX, SHORT_INDEX_MASK};

use crate::event_loop::{WaitHandle, Waitable};
use crate::fabric::{Domain, EndpointKind, PeerAddr};
use crate::process::Here;
use crate::stats::ReceiveStats;

/// Who decides about connection requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum AcceptPolicy {
    /// Every peer that speaks our protocol is accepted, within the limits.
    #[default]
    All,
    /// The application is asked, by [`ReceiveEvent::Request`]; a request that is not answered
    /// within the connect timeout is refused.
    Ask,
}

/// The settings of a [`ReceiveEndpoint`]: those of its [connections](ConnectionSettings), of [what
/// comes in](IncomingSettings), of [what goes out](OutgoingSettings), which is one-sided
/// operations, and its own:
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `header_mode` | what peers must use | any | |
///
/// The pool takes `slots × max_message` bytes. Each connection keeps two receives posted beyond its
/// credits: so a dead peer is noticed while all messages are held. With windows, it keeps two more
/// for what peers say about them, and two with long messages.
///
/// ```
/// use fabricast::endpoint::ReceiveConfig;
///
/// let config = ReceiveConfig::default()
///     .incoming(|incoming| incoming.slots(64).credits(8))
///     .connection(|c| c.max_connections(4));
/// # let _ = config;
/// ```
#[derive(Debug, Clone, Default)]
pub struct ReceiveConfig {
    connection: ConnectionSettings,
    outgoing: OutgoingSettings,
    incoming: IncomingSettings,
    header_mode: Option<HeaderMode>,
}

impl ReceiveConfig {
    /// Which connections there are, and how they are watched and ended.
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

    /// What goes out: one-sided operations of this side.
    #[must_use]
    pub fn outgoing(mut self, set: impl FnOnce(OutgoingSettings) -> OutgoingSettings) -> Self {
        self.outgoing = set(self.outgoing);
        self
    }

    /// Refuse peers whose header mode is another.
    #[must_use]
    pub fn header_mode(mut self, mode: HeaderMode) -> Self {
        self.header_mode = Some(mode);
        self
    }

    fn windows(&self) -> WindowSettings {
        WindowSettings {
            windows: self.connection.windows_of(SettingsOf::Receive),
            uses_peers: false,
            operations: self.outgoing.depth_of(SettingsOf::Receive),
            deadline: self.outgoing.deadline,
            policy: self.outgoing.deadline_policy,
            long: self.incoming.long.is_some(),
        }
    }

    fn max_connections(&self) -> u32 {
        self.connection.max_connections_of(SettingsOf::Receive)
    }

    /// Buffers of the receive pool.
    fn slots(&self) -> usize {
        self.incoming.slots_or(256)
    }

    /// Messages that say in 4 bytes of CQ data whose they are and which one (docs/wire.md, short
    /// marks).
    fn check_short_marks(&self) -> Result<(), Error> {
        let (credits, connections) = (self.incoming.credits, self.max_connections());
        if credits > SHORT_DEPTH_MAX {
            let reason = "must be at most 4096 messages, as the provider has 4 bytes of CQ data";
            return Err(config("credits", credits.to_string(), reason));
        }
        if connections > SHORT_INDEX_MASK - 1 {
            let reason = "must be at most 32766, as the provider has 4 bytes of CQ data";
            return Err(config("max_connections", connections.to_string(), reason));
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Error> {
        self.connection.check(SettingsOf::Receive)?;
        self.outgoing.check(SettingsOf::Receive)?;
        let windows = self.windows();
        let reason = match (windows.enabled(), windows.long) {
            (false, false) => "must be 3 for each of max_connections, to 1048576",
            (true, false) => {
                "must be 5 for each of max_connections, as there are windows, to 1048576"
            }
            (false, true) => {
                "must be 5 for each of max_connections, as there are long messages, to 1048576"
            }
            (true, true) => {
                "must be 7 for each of max_connections, as there are windows and long messages, to \
                 1048576"
            }
        };
        let least = (windows.reserve() + 1) * self.max_connections();
        let least = (least as usize, reason);
        self.incoming
            .check(SettingsOf::Receive, self.slots(), least)
    }

    fn settings(self, max_message: usize) -> HubSettings {
        HubSettings {
            credits: self.incoming.credits,
            max_connections: self.max_connections(),
            max_of_host: None,
            max_message: max_message as u64,
            ask: self.connection.asks(),
            accepts: true,
            handshake_timeout: self.connection.connect_timeout,
            close_timeout: self.connection.close_timeout,
            header_mode: self.header_mode,
            windows: self.windows(),
            long: self.incoming.long,
            sends: None,
            publishing: false,
            liveness: self.connection.liveness,
            fence_timeout: self.connection.fence_timeout_of(),
            watch: self.connection.watch,
            watched: self.connection.watched_as(WatchedKind::Receive),
        }
    }
}

/// Listens, and receives from every peer that connects.
///
/// All connections share one pool of registered buffers and one queue: one [`poll`](Self::poll)
/// serves them all, and its events say which connection they are about. A received
/// [`Message`](crate::endpoint::Message) is owned: keep it, or drop it on any thread. See
/// [`SendEndpointZeroCopy`](crate::SendEndpointZeroCopy) for an example of both.
#[derive(Debug)]
pub struct ReceiveEndpoint {
    core: Here<Hub<ProviderLink>>,
    local: PeerAddr,
    /// Behind the core: nothing arrives any more when it goes.
    inbox: HubInbox,
}

impl ReceiveEndpoint {
    /// Listens at an address of this machine. Port 0 and [`PeerAddr::any`] let the system choose;
    /// [`local_addr`](Self::local_addr) says which it is.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a setting out of its range, [`Error::Address`] for one that is not
    /// local or in use, [`Error::TooFewDescriptors`] when the process may not open two for each of
    /// `max_connections`, [`Error::Memory`] and [`Error::Register`] for the pool.
    pub fn listen(
        domain: &Arc<Domain>,
        addr: PeerAddr,
        config: ReceiveConfig,
    ) -> Result<Self, Error> {
        config.check()?;
        domain.fabric().owner().check()?;
        fd_limit::check_listener(config.max_connections())?;
        if domain.fabric().has_short_cq_data() {
            config.check_short_marks()?;
        }
        // Over FI_EP_RDM a hello takes whichever receive is next.
        let (form, slot_min) = match domain.fabric().endpoint_kind() {
            EndpointKind::Msg => (Form::Msg, 0),
            EndpointKind::Rdm => (Form::Rdm, HELLO_MESSAGE_MAX),
        };
        let (share, max_message) = config.incoming.open_pool(config.slots(), slot_min)?;
        let deliveries = config.incoming.delivery.clone();
        let (ring, endpoint) = (config.outgoing.staging.clone(), config.connection.endpoint);
        let settings = config.settings(max_message);
        let sizes = InFlightMax::of_hub(&settings, form, share.most()).queue_sizes();
        let link = ProviderLink::listen(domain, &addr, sizes, &endpoint)?;
        let local = link.local_addr().unwrap_or(addr);
        let deliveries = deliveries.map(Deliveries::new).transpose()?;
        let waiter = link.waiter();
        let mut core = Hub::listen(link, waiter, Clock::system(), share, settings)?;
        if let Some(ring) = &ring {
            ring.register(domain)?;
            core.stage_in(ring);
        }
        Ok(Self {
            core: Here::new(core),
            local,
            inbox: HubInbox::new(deliveries),
        })
    }

    /// Where it listens, with the real port.
    pub fn local_addr(&self) -> PeerAddr {
        self.local
    }

    /// Drives all connections, and appends what happened. Returns how many events were added.
    ///
    /// One call does a bounded amount of work, however fast peers send; what is left makes the
    /// endpoint ready again at once.
    ///
    /// # Errors
    ///
    /// [`Error::EndpointFailed`] when a queue of the endpoint broke, or reported what can't be:
    /// every connection was closed then, which the events say, and requests are refused.
    /// [`Error::Forked`]. What concerns one connection is an event.
    pub fn poll(&mut self, events: &mut Vec<ReceiveEvent>) -> Result<usize, Error> {
        self.core.owner().check()?;
        self.inbox.poll(&mut self.core, events)
    }

    /// Drives all connections, appends the events that are no messages, and gives the messages that
    /// came behind those: each borrowed where it lies, without an event's cost. For many small
    /// messages, which come packed ([`OutgoingSettings::packing`]); others come in the same way.
    ///
    /// Events and messages keep their order: what was appended happened before the messages. An
    /// event that happened behind them ends the batch, and comes with the next call, as does every
    /// message that was not taken. Nothing new is received while such an event waits. What is to be
    /// kept of a message is copied, or counted as one that is [owned][`MessageRef::to_message`];
    /// the buffers of the others go back, and with them the credits of their senders, with the next
    /// call of this or of [`poll`](Self::poll). Until then [`wait`](Self::wait) and event loops say
    /// that the endpoint is ready.
    ///
    /// Both calls may be mixed: each begins where the other one stopped. Where messages go to a
    /// GPU ([`IncomingSettings::deliver_to`]), they are events here, too.
    ///
    /// ```
    /// use fabricast::endpoint::{Packing, ReceiveConfig, SendConfig};
    /// # use fabricast::buffer::SharedBufferManager;
    /// use fabricast::{Fabric, ReceiveEndpoint, SendEndpointZeroCopy};
    ///
    /// # let domain = Fabric::builder().provider("tcp").node("127.0.0.1").open()?.open_domain()?;
    /// # let any = "127.0.0.1:0".parse()?;
    /// let mut receiver = ReceiveEndpoint::listen(&domain, any, ReceiveConfig::default())?;
    /// let config = SendConfig::default().outgoing(|out| out.packing(Packing::Auto));
    /// let mut sender = SendEndpointZeroCopy::connect(&domain, receiver.local_addr(), config)?;
    /// let (mut sent, mut events) = (Vec::new(), Vec::new());
    /// # let pool = SharedBufferManager::allocate(100, 64)?;
    /// # pool.region().register(&domain)?;
    /// # while !sender.is_connected() {
    /// #     sender.poll(&mut sent)?;
    /// #     assert_eq!(receiver.receive(&mut events)?.count(), 0);
    /// # }
    /// for event in 0..100_u64 {
    ///     let payload = pool.try_acquire().expect("100 are free").freeze(64);
    ///     sender.send_data(payload, &event.to_le_bytes(), event)?;
    /// }
    /// let mut kept = None;
    /// let mut next = 0_u64;
    /// while next < 100 {
    ///     sender.poll(&mut sent)?;
    ///     for message in receiver.receive(&mut events)? {
    ///         assert_eq!(message.header(), next.to_le_bytes());
    ///         if next == 7 {
    ///             kept = Some(message.detach());
    ///         }
    ///         next += 1;
    ///     }
    ///     events.clear(); // connected, disconnected, ..
    /// }
    /// assert_eq!(kept.expect("it came").sequence(), 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll). [`Error::EndpointFailed`] comes when all that was received before
    /// is taken, and with the events of the end.
    ///
    /// [`OutgoingSettings::packing`]: crate::endpoint::OutgoingSettings::packing
    /// [`MessageRef::to_message`]: crate::endpoint::MessageRef::to_message
    pub fn receive(
        &mut self,
        events: &mut Vec<ReceiveEvent>,
    ) -> Result<ReceivedMessages<'_>, Error> {
        self.core.owner().check()?;
        let batch = self.inbox.receive(&mut self.core, events)?;
        Ok(ReceivedMessages::new(batch))
    }

    /// Sleeps until there may be something to poll for, or until the time given.
    ///
    /// # Errors
    ///
    /// A system call failed.
    pub fn wait(&self, timeout: Duration) -> Result<(), Error> {
        self.core.owner().check()?;
        self.core
            .wait()
            .sleep(limits::moment_in(self.core.clock(), timeout))
    }

    /// The windows of one connection: memory of its peer that this side writes and reads, and
    /// memory of this side that the peer does. Where there is no such connection, all that is asked
    /// of them is refused.
    #[inline]
    pub fn windows(&mut self, connection: ConnectionId) -> Windows<'_> {
        let owner = self.core.owner();
        Windows::of_connection(owner, &mut self.core, connection)
    }

    /// How many windows this side exposes, all connections together, those not given back yet
    /// included.
    pub fn exposed_windows(&self) -> usize {
        self.core.windows()
    }

    /// Accepts a request ([`AcceptPolicy::Ask`]). False: it is gone.
    pub fn accept(&mut self, request: ConnectionRequest, events: &mut Vec<ReceiveEvent>) -> bool {
        self.core.owner().is_here() && self.core.answer(request.connection, None, events)
    }

    /// Refuses a request; the peer is told so, with two numbers of the application's own. False: it
    /// is gone.
    pub fn refuse(&mut self, request: ConnectionRequest, details: [u64; 2]) -> bool {
        let refusal = Refusal::new(RefusalCode::BY_APPLICATION, details);
        let core = &mut self.core;
        core.owner().is_here() && core.answer(request.connection, Some(refusal), &mut Vec::new())
    }

    /// Begins the polite close of one connection: the peer stops, and what it has sent arrives.
    /// False: there is no such connection.
    pub fn close_connection(&mut self, connection: ConnectionId, deadline: Instant) -> bool {
        self.core.owner().is_here() && self.core.begin_close(connection, deadline)
    }

    /// Begins the polite close of every connection and returns at once: whoever asks for a
    /// connection is refused from now on, and what the peers have sent still arrives. Done when
    /// [`connections`](Self::connections) is 0.
    pub fn begin_close(&mut self, deadline: Instant) {
        self.core.begin_close_all(deadline);
    }

    /// Closes every connection politely, and stops listening. Returns what arrived meanwhile,
    /// messages included.
    ///
    /// # Errors
    ///
    /// A system call failed.
    pub fn close(mut self, deadline: Instant) -> Result<Vec<ReceiveEvent>, Error> {
        self.core.owner().check()?;
        let came = self.core.close(deadline)?;
        Ok(self.inbox.finish(came, self.core.clock(), deadline))
    }

    /// Connections open now, those included whose end is not told yet.
    pub fn connections(&self) -> usize {
        self.core.connections() + self.inbox.ends()
    }

    /// The receive pool, with its counters. Register its region with a domain to send messages on
    /// without a copy.
    pub fn pool(&self) -> &SharedBufferManager {
        self.core.pool()
    }

    /// Counters. Looks at each buffer of the pool, while frames are held.
    pub fn stats(&self) -> ReceiveStats {
        self.inbox.correct(self.core.stats())
    }

    /// The raw `fid_ep` of a connection; `None` when there is no such connection, and while the
    /// provider looks for its peer.
    ///
    /// # Safety
    ///
    /// * It is valid until the next call of a method with `&mut self`, and until this value is
    ///   dropped.
    /// * It must not be closed, and nothing may be posted on it whose completion this endpoint
    ///   would read.
    pub unsafe fn as_raw(&self, connection: ConnectionId) -> Option<*mut sys::fid_ep> {
        self.core.conn(connection).and_then(|conn| conn.as_raw())
    }
}

impl Waitable for ReceiveEndpoint {
    fn wait_handle(&self) -> WaitHandle {
        WaitHandle::new(self.core.wait())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::endpoint::LongMessages;

    /// The ranges themselves are those of the groups' tables.
    #[test]
    fn its_groups_are_checked() {
        let refused = [
            (
                ReceiveConfig::default().connection(|c| c.close_timeout(Duration::ZERO)),
                "close_timeout",
            ),
            (
                ReceiveConfig::default().outgoing(|out| out.depth(0)),
                "depth",
            ),
            (
                ReceiveConfig::default().incoming(|incoming| incoming.credits(0)),
                "credits",
            ),
            (
                ReceiveConfig::default().incoming(|incoming| incoming.slots(191)),
                "slots",
            ),
            (
                ReceiveConfig::default().outgoing(|out| out.level(crate::endpoint::Level::Sent)),
                "level",
            ),
        ];
        for (config, named) in refused {
            let error = config.check().expect_err(named).to_string();
            assert!(error.starts_with(&format!("setting {named} = ")), "{error}");
        }
    }

    /// As many buffers for each connection as the reason says, and not one less.
    #[test]
    fn too_few_slots_are_refused_with_the_number_that_is_needed() {
        let long = || {
            let pool = SharedBufferManager::allocate(1, 1 << 17).expect("memory");
            LongMessages::new(pool)
        };
        let config = |windows| ReceiveConfig::default().connection(|c| c.windows(windows));
        let needed = [
            (config(0), 3),
            (config(1), 5),
            (config(0).incoming(|i| i.long_messages(long())), 5),
            (config(1).incoming(|i| i.long_messages(long())), 7),
        ];
        for (config, each) in needed {
            let with = |slots| {
                config
                    .clone()
                    .incoming(|incoming| incoming.slots(slots))
                    .check()
            };
            with(64 * each).expect("enough");
            let error = with(64 * each - 1).expect_err("too few").to_string();
            let said = format!(
                "setting slots = {}: must be {each} for each of ",
                64 * each - 1
            );
            assert!(error.starts_with(&said), "{error}");
        }
    }
}
