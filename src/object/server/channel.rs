//! `ObjectChannel`: moves bytes into and out of clients' windows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Error;
use crate::buffer::Payload;
use crate::endpoint::{Destination, PeerAddr, Refused};
use crate::event_loop::{WaitHandle, Waitable};
use crate::object::RdmaToken;
use crate::object::server::core::ChannelCore;
use crate::object::server::error::TransferErrorKind;
use crate::object::server::event::ChannelEvent;
use crate::object::server::stats::ChannelStats;
use crate::object::server::{ClientNetworks, ServerParts};
use crate::process::Here;

/// Moves bytes into and out of the windows that tokens name. From
/// [`ObjectServer::channel`](super::ObjectServer::channel).
///
/// One thread has a channel, and drives it with [`poll`](Self::poll); more threads take more
/// channels. Every transfer that is accepted has exactly one outcome, at its deadline at the
/// latest, and what was given comes back with it, or behind it: a provider can't be made to let go
/// of what it has begun, but by closing its endpoint. So where a client does not answer in time,
/// the channel tells so, goes on over another endpoint, and gives the memory back when the first
/// one is closed, which is as soon as nothing of others is in flight there.
///
/// A thread that has nothing else to do sleeps in [`wait`](Self::wait); an
/// [`EventLoop`](crate::event_loop::EventLoop), or a loop of the application's, watches a channel
/// as it does an endpoint ([`Waitable`]).
#[derive(Debug)]
pub struct ObjectChannel {
    pub(super) core: Here<ChannelCore>,
}

impl ObjectChannel {
    pub(super) fn open(parts: &Arc<ServerParts>) -> Result<Self, Error> {
        let core = Here::new(ChannelCore::open(parts)?);
        Ok(Self { core })
    }

    /// Serves a GET: writes the payload into the client's window, from `at` on, in bytes. It is
    /// done when the bytes are there ([`ChannelEvent::Written`]), or at the deadline.
    ///
    /// The payload may be of many segments, and may lie in a device's memory that the provider
    /// reaches by itself.
    ///
    /// # Errors
    ///
    /// Why nothing was begun, with what was given: see [`TransferErrorKind`]. Back-pressure is
    /// among it ([`TransferErrorKind::is_would_block`]).
    pub fn handle_get(
        &mut self,
        token: &RdmaToken,
        at: u64,
        payload: impl Into<Payload>,
        key: u64,
        deadline: Instant,
    ) -> Result<(), Refused<Payload, TransferErrorKind>> {
        let payload = payload.into();
        let admitted = self
            .core
            .admit(token, at, payload.len_bytes() as u64, deadline);
        let written = match admitted {
            Ok(to) => self.core.write(&to, payload, (key, deadline)),
            Err(kind) => Err((kind, payload)),
        };
        self.core.announce();
        written.map_err(|(kind, given)| self.refused(kind, given, key))
    }

    /// Serves a PUT: reads the client's window from `at` on, in bytes, until the destination is
    /// full ([`ChannelEvent::Read`]), or until the deadline.
    ///
    /// # Errors
    ///
    /// As [`handle_get`](Self::handle_get).
    pub fn handle_put(
        &mut self,
        token: &RdmaToken,
        at: u64,
        into: impl Into<Destination>,
        key: u64,
        deadline: Instant,
    ) -> Result<(), Refused<Destination, TransferErrorKind>> {
        let into = into.into();
        let read = match self.core.admit(token, at, into.len() as u64, deadline) {
            Ok(from) => self.core.read(&from, into, (key, deadline)),
            Err(kind) => Err((kind, into)),
        };
        self.core.announce();
        read.map_err(|(kind, given)| self.refused(kind, given, key))
    }

    /// Whether somebody at an address may send a token: see [`ClientNetworks`].
    pub(in crate::object) fn check_asker(
        &self,
        networks: &ClientNetworks,
        token: &RdmaToken,
        asker: Option<&PeerAddr>,
    ) -> Result<(), TransferErrorKind> {
        self.core.parts.check_asker(networks, token, asker)
    }

    #[cold]
    fn refused<T>(
        &mut self,
        kind: TransferErrorKind,
        given: T,
        key: u64,
    ) -> Refused<T, TransferErrorKind> {
        self.core.counts.refused += 1;
        Refused::new(kind, given, key)
    }

    /// Does what there is to do, and adds what became of transfers; how many events. Never waits.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`], in a child of the process that opened the channel.
    pub fn poll(&mut self, events: &mut Vec<ChannelEvent>) -> Result<usize, Error> {
        self.core.owner().check()?;
        // All is looked at in any case.
        let _ = self.core.wait.begin_poll();
        self.core.turn();
        let count = self.core.outbox.len();
        events.extend(self.core.outbox.drain(..));
        self.core.announce();
        Ok(count)
    }

    /// Sleeps until there may be something to poll for, at most so long. It may wake early.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`], as [`poll`](Self::poll), and what poll(2) or the provider says.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        self.core.owner().check()?;
        self.core.sleep(timeout)
    }

    /// Counters.
    pub fn stats(&self) -> ChannelStats {
        self.core.stats()
    }

    /// Waits for what is in flight, at most until then, and closes the channel. What became of all
    /// transfers whose outcome was not told before, and what comes back of others; what is not over
    /// by then fails.
    ///
    /// A channel that is dropped closes at once, and tells nobody.
    pub fn close(mut self, deadline: Instant) -> Vec<ChannelEvent> {
        let mut events = Vec::new();
        while self.poll(&mut events).is_ok() {
            let left = deadline.saturating_duration_since(self.core.clock.now());
            let open = self.core.deadlines.len();
            if open == 0 || left.is_zero() || self.wait(left).is_err() {
                break;
            }
        }
        if self.core.owner().is_here() {
            self.core.end();
            events.extend(self.core.outbox.drain(..));
        }
        events
    }
}

impl Waitable for ObjectChannel {
    fn wait_handle(&self) -> WaitHandle {
        WaitHandle::new(&self.core.wait)
    }
}
