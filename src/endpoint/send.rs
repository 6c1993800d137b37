//! `SendEndpointZeroCopy`: sends registered memory to one peer, from where it lies.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use libfabric_sys as sys;

use self::core::SendCore;
use crate::Error;
use crate::buffer::{Given, HeaderSlotManager, Payload, RegionPart};
use crate::clock::Clock;
use crate::endpoint::error::{BatchError, Refused};
use crate::endpoint::event::{ConnectionEvent, ConnectionInfo, SendEvent};
use crate::endpoint::hub::in_flight_max::InFlightMax;
use crate::endpoint::hub::{HubSettings, OnAbandoned, OutboundSettings};
use crate::endpoint::limits::moment_in;
use crate::endpoint::link::fd_limit;
use crate::endpoint::link::provider::ProviderLink;
use crate::endpoint::link::wait::EndpointWait;
use crate::endpoint::reconnect::Redial;
use crate::endpoint::settings::{ConnectionSettings, OutgoingSettings, SettingsOf};
use crate::endpoint::windows::handle::Windows;
use crate::event_loop::{WaitHandle, Waitable};
use crate::fabric::{Domain, EndpointKind, PeerAddr};
use crate::id::EndpointId;
use crate::memory::HeldRegistration;
use crate::metrics::registry::WatchedPlace;
use crate::process::Here;
use crate::protocol::connection::{CloseReason, Form, State};
use crate::stats::SendStats;

pub(crate) mod core;
mod status;

pub use status::SendStatus;

/// The settings of a [`SendEndpointZeroCopy`]: those of its [connection](ConnectionSettings), and
/// of [what goes out](OutgoingSettings).
///
/// ```
/// use std::time::Duration;
/// use fabricast::endpoint::SendConfig;
///
/// let config = SendConfig::default()
///     .outgoing(|out| out.depth(16).deadline(None))
///     .connection(|c| c.lost_after(Some(Duration::from_secs(10))));
/// # let _ = config;
/// ```
#[derive(Default)]
pub struct SendConfig {
    connection: ConnectionSettings,
    outgoing: OutgoingSettings,
    on_abandoned: Option<Box<dyn FnMut(u64) + Send>>,
}

impl SendConfig {
    /// How the connection is made, watched and ended.
    #[must_use]
    pub fn connection(
        mut self,
        set: impl FnOnce(ConnectionSettings) -> ConnectionSettings,
    ) -> Self {
        self.connection = set(self.connection);
        self
    }

    /// What goes out, and how.
    #[must_use]
    pub fn outgoing(mut self, set: impl FnOnce(OutgoingSettings) -> OutgoingSettings) -> Self {
        self.outgoing = set(self.outgoing);
        self
    }

    /// Called with each key that is in flight when the endpoint is dropped, from within the drop: a
    /// panic of it is logged, and goes no further.
    #[must_use]
    pub fn on_abandoned(mut self, hear: impl FnMut(u64) + Send + 'static) -> Self {
        self.on_abandoned = Some(Box::new(hear));
        self
    }

    /// For a layer above, which has checked what it took from its own settings.
    pub(crate) fn of(connection: ConnectionSettings, outgoing: OutgoingSettings) -> Self {
        Self {
            connection,
            outgoing,
            on_abandoned: None,
        }
    }

    fn check(&self) -> Result<(), Error> {
        self.connection.check(SettingsOf::Send)?;
        self.outgoing.check(SettingsOf::Send)
    }

    fn settings(self, headers: HeaderSlotManager) -> HubSettings {
        let sends = OutboundSettings {
            on_abandoned: self.on_abandoned.map(|mut hear| {
                let hear: OnAbandoned = Box::new(move |_, key| hear(key));
                hear
            }),
            ..self.outgoing.outbound_of(SettingsOf::Send, headers)
        };
        core::settings(sends, &self.connection)
    }
}

impl std::fmt::Debug for SendConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendConfig")
            .field("connection", &self.connection)
            .field("outgoing", &self.outgoing)
            .finish_non_exhaustive()
    }
}

/// Sends registered memory to one peer, from where it lies.
///
/// A message is a header and a payload. The header is copied into a registered slot; the payload
/// goes out from where it lies, moves into the endpoint while it is in flight, and comes back in
/// the event that says how it went, with the key that was given. Each accepted send has exactly one
/// such event: [`SendEvent::Completed`] or [`SendEvent::Failed`].
///
/// [`close`](Self::close) says goodbye, and all that was sent arrives. Dropping the endpoint is
/// rude: what is in flight is lost, and what had completed at level
/// [`Sent`](crate::endpoint::Level::Sent) may be lost too, as with any socket that is closed
/// without a word.
///
/// Where a provider takes as long for a short message as for some kilobytes, short ones travel
/// together, copied ([`Packing`](crate::endpoint::Packing)): they leave at the next poll at the
/// latest, and [`SendStats::packed`](crate::stats::SendStats::packed) counts them.
/// What is longer is never copied here.
///
/// One thread at a time; [`poll`](Self::poll) drives it, by hand or from an
/// [`EventLoop`](crate::event_loop::EventLoop). The published interface that it follows:
/// netio3-backend's `SendEndpointZeroCopy`.
///
/// ```
/// use std::time::Duration;
/// use fabricast::buffer::SharedBufferManager;
/// use fabricast::endpoint::{ReceiveConfig, SendConfig};
/// use fabricast::{Fabric, ReceiveEndpoint, ReceiveEvent, SendEndpointZeroCopy, SendEvent};
///
/// let domain = Fabric::builder().provider("tcp").node("127.0.0.1").open()?.open_domain()?;
/// let mut receiver =
///     ReceiveEndpoint::listen(&domain, "127.0.0.1:0".parse()?, ReceiveConfig::default())?;
///
/// let pool = SharedBufferManager::allocate(16, 64 * 1024)?;
/// pool.region().register(&domain)?;
/// let mut sender =
///     SendEndpointZeroCopy::connect(&domain, receiver.local_addr(), SendConfig::default())?;
///
/// let mut buffer = pool.try_acquire().expect("16 are free");
/// buffer[..5].copy_from_slice(b"hello");
/// let mut payload = Some(buffer.freeze(5).into());
/// let (mut sent, mut received) = (Vec::new(), Vec::new());
/// let mut done = 0;
/// while done < 2 {
///     // Refused while the connection is being made: the payload comes back.
///     if let Some(p) = payload.take()
///         && let Err(refused) = sender.send_data(p, b"event 7", 42)
///     {
///         assert!(refused.is_would_block(), "{refused}");
///         payload = Some(refused.given);
///     }
///     sender.poll(&mut sent)?;
///     receiver.poll(&mut received)?;
///     for event in sent.drain(..) {
///         if let SendEvent::Completed { key, .. } = event {
///             assert_eq!(key, 42);
///             done += 1;
///         }
///     }
///     for event in received.drain(..) {
///         if let ReceiveEvent::Message(message) = event {
///             assert_eq!((message.header(), message.payload()), (&b"event 7"[..], &b"hello"[..]));
///             done += 1;
///         }
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SendEndpointZeroCopy {
    core: Here<SendCore<ProviderLink>>,
    /// The region of [`HeaderSource::WithData`](crate::endpoint::HeaderSource::WithData).
    _data: Option<Here<HeldRegistration>>,
}

impl SendEndpointZeroCopy {
    /// Starts to connect to a [`ReceiveEndpoint`](crate::ReceiveEndpoint). Returns at once;
    /// [`ConnectionEvent::Connected`] or
    /// [`ConnectionEvent::Disconnected`] follows,
    /// within the connect timeout.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a setting out of its range, [`Error::Register`] when the region of
    /// [`HeaderSource::WithData`](crate::endpoint::HeaderSource::WithData) can't be registered,
    /// [`Error::TooFewDescriptors`] when the process may open no more, and what libfabric answers.
    /// Whatever concerns the peer is reported by an event instead.
    pub fn connect(
        domain: &Arc<Domain>,
        peer: PeerAddr,
        config: SendConfig,
    ) -> Result<Self, Error> {
        config.check()?;
        domain.fabric().owner().check()?;
        let source = config.outgoing.headers_of(SettingsOf::Send);
        let headers = source.manager()?;
        if let Some(ring) = &config.outgoing.staging {
            ring.register(domain)?;
        }
        let data = source.hold(domain)?;
        let redial = Redial::new(config.connection.reconnect, crate::endpoint::seed());
        let endpoint = config.connection.endpoint;
        let settings = config.settings(headers);
        let form = match domain.fabric().endpoint_kind() {
            EndpointKind::Msg => Form::Msg,
            EndpointKind::Rdm => Form::Rdm,
        };
        let receives = settings.receives(form).max as usize;
        let sizes = InFlightMax::of_hub(&settings, form, receives).queue_sizes();
        let link = ProviderLink::open(domain, sizes, &endpoint).map_err(fd_limit::explain)?;
        let waiter = link.waiter();
        let core = SendCore::connect(link, waiter, Clock::system(), peer, settings, redial)
            .map_err(fd_limit::explain)?;
        Ok(Self {
            core: Here::new(core),
            _data: data,
        })
    }

    /// This endpoint's identity: unique in the process.
    pub fn id(&self) -> EndpointId {
        self.core.id()
    }

    /// Sends a header and a payload of one or several registered segments. Returns at once.
    ///
    /// `key` is the caller's own, comes back unchanged, and need not be unique.
    ///
    /// # Errors
    ///
    /// Nothing was posted, and payload and key are in the error: back-pressure
    /// ([`Refused::is_would_block`]; [`SendEvent::Writable`] says when to try again), or a message
    /// that can't be sent ([`SendErrorKind`](crate::endpoint::SendErrorKind) says which limit it
    /// exceeds).
    #[inline]
    pub fn send_data(
        &mut self,
        payload: impl Into<Payload>,
        header: &[u8],
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        match self.core.owner().check() {
            Ok(()) => self.core.send_data(payload.into(), header, key),
            Err(forked) => Err(Refused::new(forked, payload.into(), key)),
        }
    }

    /// Sends several messages, as [`send_data`](Self::send_data) each: payload, header, key. Where
    /// the provider joins posts ([`Provider::uses_more`](crate::fabric::Provider::uses_more)), they
    /// go to the card together; everywhere else this is a loop.
    ///
    /// All of them are taken, or all in front of the first one that is refused: that one comes back
    /// in the error, and the rest was not taken from the iterator (pass it by reference, and go on
    /// with it later). What was taken is on its way when this returns, or lies in a frame
    /// ([`Packing`](crate::endpoint::Packing)), and each message has its one outcome. A provider
    /// that refuses one with another error than a full queue loses the connection.
    ///
    /// ```no_run
    /// # use fabricast::buffer::RingFragment;
    /// # fn send(sender: &mut fabricast::SendEndpointZeroCopy, fragments: Vec<RingFragment>) {
    /// let mut messages =
    ///     (0..).zip(fragments).map(|(number, f): (u64, _)| (f, number.to_le_bytes(), number));
    /// if let Err(stopped) = sender.send_batch(&mut messages) {
    ///     assert!(stopped.refused.is_would_block(), "{stopped}");
    ///     // later: `stopped.refused.given`, then the rest of `messages`
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`BatchError`]: why it stopped, with the message that was refused, and how many were sent
    /// before it.
    pub fn send_batch<P: Into<Payload>, H: AsRef<[u8]>>(
        &mut self,
        messages: impl IntoIterator<Item = (P, H, u64)>,
    ) -> Result<usize, BatchError> {
        let messages = messages
            .into_iter()
            .map(|(payload, header, key)| (payload.into(), header, key));
        self.send_given(messages)
    }

    /// As [`send_data`](Self::send_data), of a part of a region that is named for this call. Where
    /// the message is packed ([`OutgoingSettings::packing`]), its outcome has an empty payload.
    ///
    /// # Errors
    ///
    /// As [`send_data`](Self::send_data); what comes back is a slice of the region.
    #[inline]
    pub fn send_part(
        &mut self,
        part: RegionPart<'_>,
        header: &[u8],
        key: u64,
    ) -> Result<(), Refused<Payload>> {
        match self.core.owner().check() {
            Ok(()) => self.core.send_given(part, header, key),
            Err(forked) => Err(Refused::new(forked, part.to_slice().into(), key)),
        }
    }

    /// As [`send_batch`](Self::send_batch), of parts of regions: [`send_part`](Self::send_part).
    ///
    /// # Errors
    ///
    /// As [`send_batch`](Self::send_batch).
    pub fn send_part_batch<'a, H: AsRef<[u8]>>(
        &mut self,
        parts: impl IntoIterator<Item = (RegionPart<'a>, H, u64)>,
    ) -> Result<usize, BatchError> {
        self.send_given(parts.into_iter())
    }

    fn send_given<G: Given, H: AsRef<[u8]>>(
        &mut self,
        messages: impl Iterator<Item = (G, H, u64)>,
    ) -> Result<usize, BatchError> {
        match self.core.owner().check() {
            Ok(()) => BatchError::or_sent(self.core.send_batch(messages)),
            Err(forked) => BatchError::at_first(forked, messages),
        }
    }

    /// Posts what was packed ([`OutgoingSettings::packing`]) and would wait for the next poll.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`].
    pub fn flush(&mut self) -> Result<(), Error> {
        self.core.owner().check()?;
        self.core.flush();
        Ok(())
    }

    /// The windows of the connection: memory of the peer that this side writes and reads, and
    /// memory of this side that the peer does.
    #[inline]
    pub fn windows(&mut self) -> Windows<'_> {
        let owner = self.core.owner();
        Windows::of_one(owner, &mut self.core)
    }

    /// How many windows this side exposes, those not given back yet included.
    pub fn exposed_windows(&self) -> usize {
        self.core.windows()
    }

    /// What a layer above sleeps on.
    pub(crate) fn endpoint_wait(&self) -> Arc<EndpointWait> {
        Arc::clone(self.core.wait())
    }

    /// Its entry among all that is watched.
    pub(crate) fn watched(&self) -> &WatchedPlace {
        self.core.watched()
    }

    /// Drives the endpoint, and appends what happened: up to 32 completions, and a few events more;
    /// when the connection ends, every outcome that is still owed. Returns how many events were
    /// added.
    ///
    /// # Errors
    ///
    /// A system call failed, or [`Error::Forked`]. What concerns the connection is an event.
    pub fn poll(&mut self, events: &mut Vec<SendEvent>) -> Result<usize, Error> {
        self.core.owner().check()?;
        let before = events.len();
        self.core.poll(events)?;
        Ok(events.len() - before)
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
            .sleep(moment_in(self.core.clock(), timeout))
    }

    /// Polls until the connection stands; with a
    /// [`ReconnectPolicy`](crate::endpoint::ReconnectPolicy), through all its attempts.
    ///
    /// # Errors
    ///
    /// [`Error::NotConnected`] with the reason, within the connect timeout; [`Error::Closed`] where
    /// the connection stood, and is over.
    pub fn wait_connected(&mut self) -> Result<ConnectionInfo, Error> {
        let mut events = Vec::new();
        loop {
            self.poll(&mut events)?;
            for event in events.drain(..) {
                match event {
                    SendEvent::Connection(ConnectionEvent::Connected(info)) => return Ok(info),
                    SendEvent::Connection(ConnectionEvent::Disconnected(reason)) => {
                        return Err(self.core.error_of_end(reason));
                    }
                    _ => {}
                }
            }
            if let Some(reason) = self.close_reason() {
                return Err(self.core.error_of_end(reason));
            }
            self.wait(Duration::from_millis(100))?;
        }
    }

    /// True while sends are taken (back-pressure apart).
    pub fn is_connected(&self) -> bool {
        self.core.state() == State::Established
    }

    /// What was agreed when the connection was made, as long as it stands.
    pub fn connection_info(&self) -> Option<ConnectionInfo> {
        let stands = matches!(self.core.state(), State::Established | State::Closing);
        self.core.info().filter(|_| stands)
    }

    /// Why the connection is closed, once it is, for good.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.core.close_reason()
    }

    pub(crate) fn error_of_end(&self, reason: CloseReason) -> Error {
        self.core.error_of_end(reason)
    }

    /// Begins the polite close and returns at once: no new sends; those in flight complete, both
    /// sides say goodbye, and
    /// [`ConnectionEvent::Disconnected`] is the
    /// last event of [`poll`](Self::poll). At the deadline it comes in any case.
    pub fn begin_close(&mut self, deadline: Instant) {
        if self.core.owner().is_here() {
            self.core.begin_close(deadline);
        }
    }

    /// Closes politely and waits for it: all that was sent arrives, unless the deadline passes
    /// first. Returns the outcomes of what was in flight; the last event is
    /// [`ConnectionEvent::Disconnected`], whose
    /// reason is [`CloseReason::Finished`] when the peer has everything.
    ///
    /// # Errors
    ///
    /// A system call failed.
    pub fn close(mut self, deadline: Instant) -> Result<Vec<SendEvent>, Error> {
        self.core.owner().check()?;
        self.core.close(deadline)
    }

    /// The keys of the sends in flight (netio3's `get_pending_sends`). They will come back in
    /// events, too.
    pub fn pending(&self) -> Vec<u64> {
        self.core.pending()
    }

    /// The header slots, with their counters.
    pub fn headers(&self) -> &HeaderSlotManager {
        self.core.headers()
    }

    /// Counters.
    pub fn stats(&self) -> SendStats {
        self.core.stats()
    }

    /// How it stands at this moment: credits, and the age of the oldest send. Looks at each
    /// operation in flight.
    pub fn status(&self) -> SendStatus {
        self.core.status()
    }

    /// The raw `fid_ep`; `None` when it is closed, and while the provider looks for the peer.
    ///
    /// # Safety
    ///
    /// * It is valid until the next call of a method with `&mut self`, and until this value is
    ///   dropped.
    /// * It must not be closed, and nothing may be posted on it whose completion this endpoint
    ///   would read.
    pub unsafe fn as_raw(&self) -> Option<*mut sys::fid_ep> {
        self.core.conn().and_then(|conn| conn.as_raw())
    }
}

/// An endpoint is equal to itself alone.
impl PartialEq for SendEndpointZeroCopy {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for SendEndpointZeroCopy {}

/// In the order of their [ids](SendEndpointZeroCopy::id): an older one comes first.
impl Ord for SendEndpointZeroCopy {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.id().cmp(&other.id())
    }
}

impl PartialOrd for SendEndpointZeroCopy {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Waitable for SendEndpointZeroCopy {
    fn wait_handle(&self) -> WaitHandle {
        WaitHandle::new(self.core.wait())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The ranges themselves are those of the groups' tables.
    #[test]
    fn its_groups_are_checked() {
        let refused = [
            (
                SendConfig::default().connection(|c| c.close_timeout(Duration::ZERO)),
                "close_timeout",
            ),
            (SendConfig::default().outgoing(|out| out.depth(0)), "depth"),
            (
                SendConfig::default().connection(|c| c.accept(crate::endpoint::AcceptPolicy::Ask)),
                "accept",
            ),
        ];
        for (config, named) in refused {
            let error = config.check().expect_err(named).to_string();
            assert!(error.starts_with(&format!("setting {named} = ")), "{error}");
        }
    }
}
