//! How a hub stands at this moment, and each of its connections.

use std::time::Instant;

use super::outbound::PeerOutbound;
use super::{Hub, Peer};
use crate::buffer::HeaderSlotManager;
use crate::endpoint::event::ConnectionInfo;
use crate::endpoint::hub::data_op::DataOp;
use crate::endpoint::hub::event::HubEvent;
use crate::endpoint::link::{Link, LinkConn};
use crate::endpoint::send::SendStatus;
use crate::fabric::Shape;
use crate::id::{ConnectionId, EndpointId};
use crate::protocol::connection::{CloseReason, State};
use crate::stats::SendStats;

/// Connections whose credits are added up, at most.
const CREDITS_OF_MAX: usize = 64;

impl<L: Link, E: HubEvent> Hub<L, E> {
    pub(crate) fn id(&self) -> EndpointId {
        self.outbound.outgoing.owner()
    }

    /// The slots that headers of messages are copied into.
    pub(crate) fn headers(&self) -> &HeaderSlotManager {
        self.outbound.outgoing.headers()
    }

    /// How a connection stands; closed where there is none.
    pub(crate) fn state(&self, id: ConnectionId) -> State {
        let peer = self.peers.get(id);
        peer.map_or(State::Closed, |peer| peer.machine.state())
    }

    /// Why a connection ends, which is not told yet.
    pub(crate) fn close_reason(&self, id: ConnectionId) -> Option<CloseReason> {
        match self.peers.get(id) {
            Some(peer) => peer.machine.close_reason(),
            None => self.ending_reason(id),
        }
    }

    /// What was agreed as a connection was made; means something once it stands.
    pub(crate) fn info(&self, id: ConnectionId) -> Option<ConnectionInfo> {
        self.peers.get(id).map(|peer| self.info_of(peer))
    }

    pub(super) fn info_of(&self, peer: &Peer<L::Conn>) -> ConnectionInfo {
        let hello = peer.machine.peer();
        // Of an endpoint that also sends, what its peer takes is told.
        let outgoing = &self.outbound.outgoing;
        let sends = self.outbound.sends_messages();
        let (max_message, credits) = match sends {
            false => (self.settings.max_message, peer.receives.credits()),
            true => (
                outgoing.max_message(peer.machine.peer_receive_size()),
                hello.map_or(0, |hello| hello.credits),
            ),
        };
        // What one run of memory was to the peer, nobody sees here.
        let taken = match peer.machine.has_two_messages() {
            true => Shape::TwoMessages,
            false => Shape::Iov,
        };
        ConnectionInfo {
            peer: peer.link.peer(),
            peer_incarnation: hello.map_or(0, |hello| hello.incarnation),
            max_message,
            credits,
            // Where nothing comes in, it is how what goes out is told.
            header_mode: match self.settings.credits {
                0 => outgoing.header_mode(),
                _ => peer.header_mode,
            },
            shape: if sends { outgoing.shape() } else { taken },
            inject: if sends { outgoing.inject() } else { 0 },
            kernel_watch: peer.liveness.kernel_watch,
        }
    }

    /// Keys on a connection that have no outcome yet.
    pub(crate) fn pending_on(&self, id: ConnectionId) -> Vec<u64> {
        let posted = &self.outbound.posted;
        let messages = posted.sends().filter(|op| op.connection == id);
        let one_sided = posted.one_sided.iter();
        let one_sided = one_sided.filter(|op| op.connection == id && !op.told);
        let posted = messages
            .flat_map(DataOp::keys)
            .chain(one_sided.map(|op| op.key));
        let own = self.peers.get(id).map(|peer| &peer.outbound);
        let ended = || self.ended_outbounds().find(|(ended, _)| *ended == id);
        let own = own.or_else(|| ended().map(|(_, own)| own));
        let line = own.and_then(|own| own.waits());
        let line = line.into_iter().flat_map(|line| line.keys());
        posted.chain(line).collect()
    }

    /// Counts what the peers would take now. Of very many it would take longer than the rest of a
    /// poll: those are left out.
    pub(super) fn count_credits(&mut self) {
        if !self.outbound.sends_messages() {
            return;
        }
        let peers = self.peers.iter().take(CREDITS_OF_MAX);
        let standing = peers.filter(|(_, peer)| peer.machine.state() == State::Established);
        let credits = standing.map(|(_, peer)| peer.machine.credits()).sum();
        self.watched.credits.set(credits);
    }

    /// How what goes out on a connection stands.
    pub(crate) fn send_status(&self, id: ConnectionId) -> SendStatus {
        let Some(peer) = self.peers.get(id) else {
            return SendStatus::default();
        };
        let posted = &self.outbound.posted;
        let messages = posted.sends().filter(|op| op.connection == id);
        // A frame is in flight as one.
        let packed = messages.clone().map(|op| op.keys().count() as u32 - 1);
        let packed: u32 = packed.sum();
        let one_sided = posted.one_sided.iter();
        let one_sided = one_sided.filter(|op| op.connection == id && !op.told);
        let posted = messages
            .map(|op| op.posted)
            .chain(one_sided.map(|op| op.posted));
        let line = peer.outbound.waits();
        let line = line.into_iter().flat_map(|line| line.posted_at());
        let limited = self.outbound.deadlines.limit().is_some();
        let (mut oldest, mut late) = (None::<Instant>, 0);
        for posted in posted.chain(line) {
            match posted {
                Some(at) => oldest = Some(oldest.map_or(at, |oldest| oldest.min(at))),
                None => late += u32::from(limited),
            }
        }
        let stands = peer.machine.state() == State::Established;
        SendStatus {
            in_flight: peer.outbound.in_flight + packed,
            credits: if stands { peer.machine.credits() } else { 0 },
            blocked: peer.outbound.blocked(),
            oldest: oldest.map(|at| self.clock().since(at)),
            late,
        }
    }

    pub(crate) fn send_stats(&self) -> SendStats {
        match self.outbound.sends_messages() {
            true => self.outbound.account.stats.read(),
            false => SendStats::default(),
        }
    }

    /// Sends on a connection that have no outcome yet.
    pub(crate) fn sends_in_flight(&self, id: ConnectionId) -> u32 {
        self.peers.get(id).map_or(0, |peer| peer.outbound.in_flight)
    }

    /// Keys of sends that have no outcome yet.
    pub(crate) fn pending_sends(&self) -> Vec<(ConnectionId, u64)> {
        let sends = self.outbound.posted.sends();
        let peers = self.peers.iter().map(|(_, peer)| &peer.outbound);
        let long = peers.chain(self.ended_outbounds().map(|(_, own)| own));
        let long = long.filter_map(PeerOutbound::long);
        let long = long.map(|long| (long.connection(), long.key));
        let sends = sends.flat_map(|op| op.keys().map(|key| (op.connection, key)));
        sends.chain(long).collect()
    }
}
