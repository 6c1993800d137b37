//! `Outbound`: what a hub sends, writes and reads, on all of its connections: one account, with one
//! bound, one deadline and one outcome for each key.
//!
//! Each accepted key has its outcome before its connection's end is reported. In the RDM form the
//! provider may keep what was posted on a connection that is over: its keys come back failed then,
//! without what was given, which follows (`Released`) when the provider is done.

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::account::SendAccount;
use self::refused::RefusedPeers;
use super::frames::Frames;
use super::peer::Peer;
use super::pool_waker::PoolWaker;
use super::sends::{OnAbandoned, OutboundSettings};
use super::{HubSettings, WindowSettings};
use crate::Error;
use crate::buffer::{HeaderSlotConfig, HeaderSlotManager, Payload};
use crate::clock::Clock;
use crate::contain::contain;
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::event::{Inject, Level};
use crate::endpoint::hub::conn_table::ConnTable;
use crate::endpoint::hub::control::HeldDescriptor;
use crate::endpoint::hub::data_op::DataOp;
use crate::endpoint::hub::deadlines::{Deadlines, LateOp};
use crate::endpoint::hub::gathering::GatheredStream;
use crate::endpoint::hub::line::{Driven, Line, LineState};
use crate::endpoint::hub::outgoing::{self, Outgoing};
use crate::endpoint::hub::posted::Posted;
use crate::endpoint::hub::posting::Posting;
use crate::endpoint::hub::scoped::ScopedRegistrations;
use crate::endpoint::link::Link;
use crate::endpoint::link::wait::EndpointWait;
use crate::endpoint::staging::StagingRing;
use crate::endpoint::windows::one_sided::{Local, OneSided};
use crate::fabric::{Packing, Shape};
use crate::id::{ConnectionId, EndpointId};
use crate::memory::{Registrar, Scope};
use crate::metrics::stats::EndpointCells;
use crate::protocol::wire::{HeaderMode, WindowId};

mod account;
mod outcomes;
mod peer_outbound;
mod refused;

pub(super) use outcomes::told;
pub(super) use peer_outbound::PeerOutbound;

/// What goes out on all connections of a hub.
pub(super) struct Outbound {
    /// Messages are sent, too.
    sends_messages: bool,
    /// Those that are too long for a receive, too, where the peer takes them.
    sends_long: bool,
    pub(super) deadlines: Deadlines,
    pub(super) outgoing: Outgoing,
    pub(super) posted: Posted,
    /// One-sided operations so far.
    operations: u64,
    pub(super) account: SendAccount,
    /// Where small messages are packed.
    pub(super) frames: Option<Frames>,
    refused: RefusedPeers,
    /// Connections with something in their line.
    waiting: Vec<ConnectionId>,
    /// The longest messages that the kernel gathers where they stream, if it does.
    gathers_below: Option<u64>,
    /// Connections whose messages it gathers now.
    pub(super) gathering: Vec<ConnectionId>,
    /// The provider took something not, or something waits: the next poll offers it again.
    pub(super) retry: bool,
    headers_waker: PoolWaker<HeaderSlotManager>,
    /// RDM form: held until the endpoint is closed, since sends may outlive their connections.
    shared_desc: Option<HeldDescriptor>,
    on_abandoned: Option<OnAbandoned>,
    pub(super) wait: Arc<EndpointWait>,
}
/// The line of a connection, if it has one, and what it posts with.
#[inline]
pub(super) fn way<'a, L: Link>(
    outbound: &'a mut Outbound,
    link: &'a mut L,
    (connection, peer): (ConnectionId, &'a mut Peer<L::Conn>),
) -> (&'a mut Option<Box<Line>>, Posting<'a, L>) {
    let header_desc = peer.outbound.header_desc();
    let way = Posting {
        link,
        conn: &peer.link,
        connection,
        machine: &mut peer.machine,
        scoped: &mut peer.scoped,
        header_desc,
        outgoing: &mut outbound.outgoing,
        posted: &mut outbound.posted,
        eagain: &outbound.account.stats.eagain,
    };
    (&mut peer.outbound.line, way)
}

impl Outbound {
    /// Makes the part of a hub with these settings, and takes `settings.sends`.
    pub(super) fn new<L: Link>(
        settings: &mut HubSettings,
        link: &L,
        wait: &Arc<EndpointWait>,
        clock: &Clock,
        cells: Arc<EndpointCells>,
    ) -> Result<Self, Error> {
        let bounds @ (_, total) = settings.outbound();
        let one_sided_pieces = settings.one_sided_pieces();
        let (limits, sends_messages) = (link.limits(), settings.sends.is_some());
        let (_, long_pieces) = settings.long_pieces();
        let sends_long = long_pieces > 0 && limits.rma.is_some();
        let sends = settings.sends.take();
        let sends = sends.map_or_else(|| OutboundSettings::none(&settings.windows), Ok)?;
        let shape = outgoing::choose_shape(sends.shape, limits)?;
        let (headers, gathers) = (sends.headers, sends.gather);
        let shared_desc = match link.shares_endpoint() && sends_messages {
            true => Some(HeldDescriptor::new(headers.region(), link.registrar())?),
            false => None,
        };
        let frames = Frames::new(sends.packing, limits.pack_below, total);
        let headers_waker = PoolWaker::of(&headers, wait);
        let outgoing = Outgoing::new(
            EndpointId::next(),
            headers,
            sends.header_mode,
            sends.level,
            (shape, sends.inject),
            limits,
        );
        let messages = total * (1 + u32::from(shape == Shape::TwoMessages));
        let pieces = one_sided_pieces + long_pieces;
        let mut outbound = Self {
            sends_messages,
            sends_long,
            deadlines: Deadlines::new(sends.deadline, sends.policy, clock),
            outgoing,
            posted: Posted::new(messages, total, pieces, limits.contexts),
            operations: 0,
            account: SendAccount::new(bounds, cells),
            frames,
            refused: RefusedPeers::default(),
            waiting: Vec::new(),
            gathers_below: limits.gathers_below.filter(|_| gathers),
            gathering: Vec::new(),
            retry: false,
            headers_waker,
            shared_desc,
            on_abandoned: sends.on_abandoned,
            wait: Arc::clone(wait),
        };
        if let Some(ring) = &sends.staging {
            outbound.stage_in(ring);
        }
        Ok(outbound)
    }

    /// Where a GPU's memory goes out by way of the host.
    pub(super) fn stage_in(&mut self, ring: &StagingRing) {
        let waker = Arc::clone(&self.wait);
        self.outgoing
            .staging
            .join(ring, Arc::new(move || waker.wake()));
    }

    /// What a new connection needs.
    pub(super) fn join(
        &self,
        scoped: &mut ScopedRegistrations,
        registrar: &dyn Registrar,
    ) -> Result<PeerOutbound, Error> {
        let region = self.outgoing.headers().region();
        let held = self.sends_messages.then(|| scoped.hold(region, registrar));
        Ok(PeerOutbound {
            frames: self.frames.as_ref().map(|_| Box::default()),
            header_desc: held.transpose()?.map(Box::new),
            stream: self.gathers_below.map(|limit| {
                let now = self.wait.clock().now();
                Box::new(GatheredStream::new(limit, now))
            }),
            in_flight: 0,
            line: None,
            queued: false,
            refused: None,
            listed: false,
        })
    }

    /// The kernel gathers the messages of some connection.
    #[inline]
    pub(super) fn is_gathering(&self) -> bool {
        !self.gathering.is_empty()
    }

    pub(super) fn sends_messages(&self) -> bool {
        self.sends_messages
    }

    pub(super) fn sends_long(&self) -> bool {
        self.sends_long
    }

    /// Headers travel alone.
    pub(super) fn has_two_messages(&self) -> bool {
        self.sends_messages && self.outgoing.shape() == Shape::TwoMessages
    }

    // ---- admission ------------------------------------------------------------------------------
    /// Whether a message would be accepted, whatever its size.
    pub(super) fn may_send<C>(&self, peer: &Peer<C>) -> Result<(), SendErrorKind> {
        self.may_take(peer)?;
        self.account.has_room(&peer.outbound)?;
        match peer.outbound.messages() {
            LineState::Open | LineState::Gated => Ok(()),
            LineState::Full => Err(SendErrorKind::WouldBlock(Blocked::Provider)),
        }
    }

    /// Whether a message that is too long for a receive would be offered to the peer, as far as
    /// this side is concerned. It would overtake those that wait, and is not given before they are
    /// gone.
    pub(super) fn may_offer(&self, own: &PeerOutbound) -> Result<(), SendErrorKind> {
        self.account.has_room(own)?;
        match own.messages() {
            LineState::Open => Ok(()),
            LineState::Full => Err(SendErrorKind::WouldBlock(Blocked::Provider)),
            LineState::Gated => Err(SendErrorKind::WouldBlock(Blocked::Gate)),
        }
    }

    #[inline]
    pub(super) fn may_take<C>(&self, peer: &Peer<C>) -> Result<(), SendErrorKind> {
        if !self.sends_messages {
            return Err(SendErrorKind::NoConnection);
        }
        let may = peer.machine.may_send();
        may.map_err(|blocked| outgoing::refusal(blocked, peer.machine.close_reason()))
    }

    /// Everything that can be said of a message before anything is taken for it. Gives its length
    /// in bytes.
    #[inline(always)]
    pub(super) fn admit<C>(
        &self,
        peer: &Peer<C>,
        payload: &Payload,
        header_len: usize,
    ) -> Result<u64, SendErrorKind> {
        self.may_take(peer)?;
        // What can never be is said first: who is blocked tries again.
        let peer_max = peer.machine.peer_receive_size();
        let len = self.outgoing.measure(payload, header_len, peer_max)?;
        self.account.has_room(&peer.outbound)?;
        match peer.outbound.messages() {
            LineState::Open => Ok(len),
            LineState::Full | LineState::Gated => Err(SendErrorKind::WouldBlock(Blocked::Provider)),
        }
    }
    // ---- one-sided operations -------------------------------------------------------------------

    /// The time that a post of now counts its deadline from, where there is one.
    #[inline]
    pub(super) fn stamp(&mut self, clock: &Clock) -> Option<Instant> {
        self.deadlines.stamp(clock)
    }

    /// An operation that is about to be posted, or to wait.
    #[inline(always)]
    pub(super) fn operation(
        &mut self,
        clock: &Clock,
        connection: ConnectionId,
        (key, window): (u64, WindowId),
        (local, recent): (Local, bool),
    ) -> OneSided {
        self.operations += 1;
        OneSided {
            connection,
            key,
            window,
            local,
            sequence: self.operations,
            posted: self.stamp(clock),
            told: false,
            recent,
        }
    }

    /// Something was put into the line of a connection: the next poll looks at it, and sets the
    /// timer.
    pub(super) fn count_waiting(&mut self, id: ConnectionId, own: &mut PeerOutbound) {
        if !std::mem::replace(&mut own.queued, true) {
            self.waiting.push(id);
        }
        self.retry = true;
        self.wait.wake();
    }

    // ---- waiting --------------------------------------------------------------------------------

    /// Connections with something in their line; each is to be [driven](Self::drive), or over.
    pub(super) fn take_waiting(&mut self) -> Vec<ConnectionId> {
        std::mem::take(&mut self.waiting)
    }

    /// Posts what may be posted of what waits on a connection.
    pub(super) fn drive<L: Link>(
        &mut self,
        link: &mut L,
        (id, peer): (ConnectionId, &mut Peer<L::Conn>),
    ) -> Driven {
        let (line, mut way) = way(self, link, (id, peer));
        let driven = line.as_mut().map(|line| line.drive(&mut way));
        let driven = driven.unwrap_or_default();
        peer.outbound.in_flight -= (driven.unposted.len() + driven.over.len()) as u32;
        let line = peer.outbound.line.as_ref();
        peer.outbound.queued = line.is_some_and(|line| !line.is_empty());
        if peer.outbound.queued {
            self.waiting.push(id);
        }
        driven
    }
    /// How long until the lines are to be looked at again, if nobody else says so.
    pub(super) fn pause<C>(&self, peers: &ConnTable<Peer<C>>) -> Option<Duration> {
        let waiting = self.waiting.iter().filter_map(|&id| peers.get(id));
        let lines = waiting.filter_map(|peer| peer.outbound.line.as_ref());
        lines.filter_map(|line| line.pause()).min()
    }

    /// Takes the operations whose deadline has passed.
    pub(super) fn take_late<C>(
        &mut self,
        now: Instant,
        peers: &mut ConnTable<Peer<C>>,
    ) -> Vec<LateOp> {
        if !self.deadlines.are_due(now) {
            return Vec::new();
        }
        let mut scan = self.deadlines.scan(now);
        self.posted.timed().for_each(|op| scan.look(op));
        for &id in &self.waiting {
            let peer = peers.get_mut(id);
            if let Some(line) = peer.and_then(|peer| peer.outbound.line()) {
                line.timed().for_each(|op| scan.look(op));
            }
        }
        self.deadlines.end_scan(scan)
    }

    // ---- the end --------------------------------------------------------------------------------

    /// The endpoint would not close: what the provider may still touch stays as it is.
    pub(super) fn leak_leases(&mut self) {
        self.outgoing.leak();
        if let Some(desc) = &mut self.shared_desc {
            desc.leak();
        }
    }

    /// A key is over whose outcome nobody hears.
    pub(super) fn abandon(&mut self, connection: ConnectionId, key: u64) {
        if let Some(hear) = &mut self.on_abandoned {
            contain("on_abandoned", || hear(connection, key));
        }
    }

    /// The same of a message, whose slot and payload are free.
    pub(super) fn abandon_message(&mut self, mut op: DataOp) {
        drop(self.outgoing.end(&mut op));
        if op.told {
            return;
        }
        let (connection, key) = (op.connection, op.key);
        match op.packed.take() {
            None => self.abandon(connection, key),
            Some(packed) => {
                let keys: Vec<_> = packed.iter().map(|message| message.key).collect();
                drop(packed);
                keys.into_iter()
                    .for_each(|key| self.abandon(connection, key));
            }
        }
    }

    /// A payload that goes out on several connections: staged once, where it has to be.
    pub(super) fn stage_for_many(
        &self,
        payload: Payload,
        scope: Scope,
    ) -> Result<Payload, (SendErrorKind, Payload)> {
        if !self.sends_messages || !payload.is_device() {
            return Ok(payload);
        }
        let staged = self.outgoing.staging.stage(payload, scope);
        if let Err((SendErrorKind::WouldBlock(Blocked::Staging), _)) = &staged
            && self.outgoing.staging.arm()
        {
            self.wait.wake();
        }
        staged
    }
}

impl OutboundSettings {
    /// No messages are sent: the account has one-sided operations only.
    fn none(windows: &WindowSettings) -> Result<Self, Error> {
        let headers = HeaderSlotManager::new(HeaderSlotConfig {
            slots: 1,
            ..HeaderSlotConfig::default()
        })?;
        Ok(Self {
            headers,
            header_mode: HeaderMode::Raw,
            depth: 0,
            total: 0,
            level: Level::Sent,
            shape: None,
            inject: Inject::Auto,
            packing: Packing::Off,
            gather: false,
            deadline: windows.deadline,
            policy: windows.policy,
            staging: None,
            long: false,
            on_abandoned: None,
        })
    }
}
