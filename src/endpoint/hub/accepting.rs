//! How a listener comes by its connections: requests, what is said of them, and what a connection
//! begins with.

use super::cm_queue::WaitingRequest;
use super::feeding::PostedReceive;
use super::long_receive::LongArrivals;
use super::peer::{Peer, PeerLiveness};
use super::peer_controls::PeerControls;
use super::peer_receives::PeerReceives;
use super::shared::{EarlyMessages, ORPHANS_MAX, Shared};
use super::{Hub, Receives};
use crate::Error;
use crate::endpoint::event::{ConnectionEvent, ReceiveEvent};
use crate::endpoint::hub::conn_table::CONNECTIONS_MAX;
use crate::endpoint::hub::event::{HubEvent, Tell};
use crate::endpoint::hub::scoped::ScopedRegistrations;
use crate::endpoint::link::{CmData, ConnKey, Link, LinkConn};
use crate::endpoint::origin::Origin;
use crate::fabric::PeerAddr;
use crate::id::ConnectionId;
use crate::protocol::connection::{CloseReason, Connection, LocalParams};
use crate::protocol::wire::{self, HeaderMode, Refusal, RefusalCode};

impl<L: Link, E: HubEvent> Hub<L, E> {
    pub(super) fn on_request(&mut self, request: L::Request, data: CmData, events: &mut Vec<E>) {
        let from = self.link.peer_of(&request);
        self.end_former_lives(from, &data);
        if let Err(refusal) = self.judge(from, &data) {
            return self.refuse(request, refusal);
        }
        let Some(id) = self.peers.reserve() else {
            let details = [CONNECTIONS_MAX.into(), 0];
            return self.refuse(
                request,
                Refusal::new(RefusalCode::TOO_MANY_CONNECTIONS, details),
            );
        };
        if !self.settings.ask {
            return self.admit(id, request, &data, events);
        }
        let deadline = self.timer.now() + self.settings.handshake_timeout;
        self.timer.disturb();
        let peer = self.link.peer_of(&request);
        self.cm.requests.insert(
            id,
            WaitingRequest {
                request,
                data,
                deadline,
            },
        );
        events.tell(ReceiveEvent::Request(
            crate::endpoint::event::ConnectionRequest {
                connection: id,
                peer,
            },
        ));
    }

    /// Everything that can be said of a request before anything is made for it.
    pub(super) fn judge(&self, from: Option<PeerAddr>, data: &CmData) -> Result<(), Refusal> {
        let limit = self.settings.max_connections;
        let open = (self.peers.len() + self.cm.requests.len()) as u64;
        if self.state.may_connect().is_err() || !self.settings.accepts {
            return Err(Refusal::new(RefusalCode::CLOSING, [0, 0]));
        }
        if open >= u64::from(limit) {
            let details = [limit.into(), 0];
            return Err(Refusal::new(RefusalCode::TOO_MANY_CONNECTIONS, details));
        }
        self.check_host(from)?;
        let params = self.params(0, 0);
        let judge = Connection::accept(self.link.form(), params, data.as_slice(), self.timer.now());
        let free = self.free_receives() as u64;
        let need = self.buffers.receives.with(judge.receives_per_credit()).min;
        if free < need.into() {
            let details = [free, need.into()];
            return Err(Refusal::new(RefusalCode::NO_BUFFERS, details));
        }
        match judge.close_reason() {
            Some(CloseReason::RefusedPeer(refusal)) => Err(refusal),
            _ => Ok(()),
        }
    }

    /// One host never has all connections, where they are shared.
    fn check_host(&self, from: Option<PeerAddr>) -> Result<(), Refusal> {
        let host = Origin::of(from.as_ref());
        let (Some(limit), Origin::Host(_)) = (self.settings.max_of_host, host) else {
            return Ok(());
        };
        let is_its = |addr: Option<PeerAddr>| Origin::of(addr.as_ref()) == host;
        let open = self.peers.iter().map(|(_, peer)| peer.link.peer());
        let asking = self.cm.requests.values();
        let asking = asking.map(|waiting| self.link.peer_of(&waiting.request));
        let its = open.chain(asking).filter(|addr| is_its(*addr)).count();
        match its < limit as usize {
            true => Ok(()),
            false => Err(Refusal::new(
                RefusalCode::TOO_MANY_CONNECTIONS,
                [limit.into(), self.settings.max_connections.into()],
            )),
        }
    }

    pub(super) fn refuse(&mut self, request: L::Request, refusal: Refusal) {
        self.stats.refused.add(1);
        let (now, peer) = (self.timer.now(), self.link.peer_of(&request));
        self.log.refused(now, peer, &refusal);
        self.link.reject(request, &refusal.encode());
    }

    /// Makes the connection, posts its receives, and accepts.
    pub(super) fn admit(
        &mut self,
        id: ConnectionId,
        request: L::Request,
        data: &CmData,
        events: &mut Vec<E>,
    ) {
        let link = match self.link.prepare_accept(request) {
            Ok(link) => link,
            Err((request, error)) => {
                self.peers.remove(id);
                tracing::warn!(%error, "a connection could not be made");
                return self.refuse(request, Refusal::new(RefusalCode::ABORTED, [0, 0]));
            }
        };
        let machine = Connection::accept(
            self.link.form(),
            self.params(0, link.key()),
            data.as_slice(),
            self.timer.now(),
        );
        let mut peer = match self.make_conn(link, machine) {
            Ok(peer) => Box::new(peer),
            Err(error) => {
                self.peers.remove(id);
                self.stats.refused.add(1);
                return tracing::warn!(%error, "a connection could not be made");
            }
        };
        let receives = self
            .buffers
            .receives
            .with(peer.machine.receives_per_credit());
        self.give_first_receives(&mut peer, id, receives);
        if peer.receives.posted < receives.min {
            tracing::warn!("a connection could not be made: no receives could be posted for it");
            peer.machine.abort(CloseReason::ClosedLocally);
            self.peers.put(id, peer);
            return self.act(id, events);
        }
        let credits = peer.receives.begin();
        peer.machine = Connection::accept(
            self.link.form(),
            self.params(credits, peer.link.key()),
            data.as_slice(),
            self.timer.now(),
        );
        self.directory.add(peer.link.key(), id);
        self.peers.put(id, peer);
        self.act(id, events);
    }

    pub(super) fn make_conn(
        &mut self,
        link: L::Conn,
        machine: Connection,
    ) -> Result<Peer<L::Conn>, Error> {
        let mut scoped = ScopedRegistrations::new(&link, self.link.registrar());
        let registrar = link.registrar().unwrap_or_else(|| self.link.registrar());
        let buffers = &mut self.buffers;
        let descriptors = buffers.descriptors(&self.link, &link, &mut scoped)?;
        let per_credit = machine.receives_per_credit().max(self.per_credit_dialed());
        let outbound = self.outbound.join(&mut scoped, registrar)?;
        Ok(Peer {
            machine,
            link,
            receives: PeerReceives::new(self.buffers.receives.reserve, per_credit),
            controls: PeerControls::default(),
            liveness: PeerLiveness::default(),
            established: false,
            dialed: false,
            header_mode: HeaderMode::Raw,
            lone_header: None,
            outbound,
            early: self
                .shared
                .as_ref()
                .map(|_| EarlyMessages::boxed(self.settings.credits * per_credit)),
            long: LongArrivals::default(),
            descriptors,
            scoped,
        })
    }

    /// Posts what a new connection begins with: its depth, but so that each further connection can
    /// have the fewest. Of a shared pool, these are among the reserved buffers, as far as those go:
    /// all others may be somebody else's by then.
    pub(super) fn give_first_receives(
        &mut self,
        peer: &mut Peer<L::Conn>,
        id: ConnectionId,
        receives: Receives,
    ) {
        let others = self.settings.max_connections
            - 1
            - (self.peers.len() as u32).min(self.settings.max_connections - 1);
        let kept = (others * self.buffers.receives.min) as usize;
        // Of a shared pool, what is not reserved may be somebody else's when it is wanted again.
        let lent = self.buffers.share.lendable();
        let share = self.free_receives().saturating_sub(kept + lent);
        let share = u32::try_from(share).unwrap_or(u32::MAX);
        let gap = self.shared.as_ref().map_or(0, |it| it.receives.gap());
        let kept = kept + gap as usize;
        let want = receives.max.min(share.max(receives.min));
        loop {
            let is_one_of_the_fewest = peer.receives.posted < receives.min;
            self.buffers.kept = if is_one_of_the_fewest { 0 } else { kept };
            if peer.receives.posted >= want || self.give_receive(peer, id) != PostedReceive::Yes {
                break;
            }
        }
        self.buffers.kept = 0;
    }

    /// Receives that a new connection could have.
    pub(super) fn free_receives(&self) -> usize {
        match &self.shared {
            None => self.buffers.share.free_count(),
            Some(shared) if shared.orphans.len() >= ORPHANS_MAX => 0,
            Some(Shared { receives, .. }) => {
                let free = self.buffers.share.free_count() + receives.surplus() as usize;
                let free = free.saturating_sub(receives.gap() as usize);
                free.min(receives.room() as usize)
            }
        }
    }

    pub(super) fn params(&self, credits: u32, key: ConnKey) -> LocalParams {
        LocalParams {
            header_mode: self.outbound.outgoing.header_mode(),
            require_header_mode: self.settings.header_mode,
            features: self.features(),
            require_features: self.required_features(),
            receive_size: match self.settings.credits {
                0 => 0,
                _ => self.settings.max_message,
            },
            receive_depth: self.settings.credits,
            credits,
            incarnation: crate::endpoint::incarnation(),
            connection: crate::endpoint::hello_connection(self.link.form(), key),
            connect_timeout: self.settings.handshake_timeout,
            close_timeout: self.settings.close_timeout,
            max_credit_window: wire::CREDIT_WINDOW_MAX,
            liveness: self.settings.liveness,
            fence_timeout: self.settings.fence_timeout,
        }
    }

    fn required_features(&self) -> u32 {
        let publish = match self.settings.publishing {
            true => wire::FEATURE_PUBLISH,
            false => 0,
        };
        match self.outbound.has_two_messages() {
            true => publish | wire::FEATURE_TWO_MESSAGES,
            false => publish,
        }
    }

    /// Windows take receives that only an endpoint with windows has.
    pub(super) fn features(&self) -> u32 {
        let mut features =
            wire::FEATURE_HEARTBEAT | wire::FEATURE_TWO_MESSAGES | self.link.limits().features();
        if self.settings.windows.enabled() {
            features |= wire::FEATURE_WINDOWS;
        }
        features |= match (self.long.is_some(), self.outbound.sends_long()) {
            (true, _) => wire::FEATURE_LONG,
            (false, true) => wire::FEATURE_LONG | wire::FEATURE_TAKES_NO_LONG,
            (false, false) => 0,
        };
        if self.settings.publishing {
            features |= wire::FEATURE_PUBLISH;
        }
        if self.settings.credits > 0 || self.outbound.frames.is_some() {
            features |= wire::FEATURE_FRAMES;
        }
        features
    }

    pub(super) fn accept_link(&mut self, id: ConnectionId, data: &[u8]) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        if let Err(error) = self.link.accept(&mut peer.link, data) {
            tracing::debug!(%error, "the peer went before it was accepted");
            peer.machine.on_lost(None);
        }
    }

    /// Once in a connection's life.
    #[inline]
    pub(super) fn tell_established(&mut self, id: ConnectionId, events: &mut Vec<E>) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        if std::mem::replace(&mut peer.established, true) {
            return;
        }
        self.directory.on_established();
        self.stats.connections.add(1);
        peer.liveness.kernel_watch = self.link.watch(&peer.link, &self.settings.watch);
        peer.learn_header_mode();
        if let (Some(own), Some(frames)) = (&mut peer.outbound.frames, &self.outbound.frames)
            && peer.machine.has_frames()
        {
            let max = self
                .outbound
                .outgoing
                .max_message(peer.machine.peer_receive_size());
            own.begin(frames, max);
        }
        let Some(info) = self.info(id) else { return };
        self.log.connected(self.timer.now(), id, info.peer);
        events.tell(ReceiveEvent::Connection(
            id,
            ConnectionEvent::Connected(info),
        ));
    }

    /// Answers a request that waited: true if it was still there.
    pub(crate) fn answer(
        &mut self,
        id: ConnectionId,
        refusal: Option<Refusal>,
        events: &mut Vec<E>,
    ) -> bool {
        let Some(WaitingRequest { request, data, .. }) = self.cm.requests.remove(&id) else {
            return false;
        };
        match refusal {
            Some(refusal) => {
                self.peers.remove(id);
                self.refuse(request, refusal);
            }
            None => self.admit(id, request, &data, events),
        }
        if !self.cq.marks.is_empty() {
            self.wait.wake();
        }
        true
    }
}
