//! `HubSettings`: what a hub needs to know, and how many receives and buffers follow from that.

use std::time::Duration;

use super::line::PIECES_IN_FLIGHT;
use super::long_send::PIECES_MAX;
use super::shared::ORPHANS_MAX;
use super::{OutboundSettings, WindowSettings};
use crate::endpoint::link::Link;
use crate::endpoint::link::socket::TcpWatch;
use crate::endpoint::long_messages::LongMessages;
use crate::metrics::registry::WatchedAs;
use crate::protocol::connection::{Form, SUBSCRIPTION_MESSAGES_MAX};
use crate::protocol::credit::HEARTBEAT_MESSAGES_MAX;
use crate::protocol::liveness::LivenessTimeouts;
use crate::protocol::wire::HeaderMode;

/// Receives that each connection keeps posted beyond the credits it granted: for the peer's control
/// messages, and so that a dead peer is noticed while every message is held.
///
/// Fences have none of their own: they go over providers only that hold back what finds no receive
/// (`AccessEnds::BehindFence`), and the buffer of a control message is posted again by the poll
/// that reads it.
pub(crate) const RESERVE: u32 = 2;

// Grants have receives of their own.
const _: () = assert!(RESERVE as usize >= HEARTBEAT_MESSAGES_MAX);

/// Control messages of one connection that are on the way at once, for which there are buffers: the
/// next one waits until the last one is sent. It costs nothing, since they leave in order, and a
/// thousand connections little memory.
pub(super) const CONTROLS_AT_ONCE: u32 = 1;

/// With the refusal that ends a connection of the RDM form, which waits for nothing.
pub(crate) const CONTROLS_PER_CONNECTION: u32 = CONTROLS_AT_ONCE + 1;

/// What a hub needs to know; checked by the public configuration.
pub(crate) struct HubSettings {
    /// Messages granted to each peer at once.
    pub(crate) credits: u32,
    pub(crate) max_connections: u32,
    /// Of those that come from one host; one whose host is not known counts as none.
    pub(crate) max_of_host: Option<u32>,
    pub(crate) max_message: u64,
    pub(crate) ask: bool,
    /// Takes connections; else it only makes some.
    pub(crate) accepts: bool,
    pub(crate) handshake_timeout: Duration,
    pub(crate) close_timeout: Duration,
    pub(crate) header_mode: Option<HeaderMode>,
    pub(crate) windows: WindowSettings,
    /// Where messages go that are too long for a receive; with `windows.long`.
    pub(crate) long: Option<LongMessages>,
    /// `None`: the hub sends no messages.
    pub(crate) sends: Option<OutboundSettings>,
    /// Its peers subscribe, or publish; others are refused.
    pub(crate) publishing: bool,
    pub(crate) liveness: LivenessTimeouts,
    /// How long a peer may take to answer a fence.
    pub(crate) fence_timeout: Duration,
    pub(crate) watch: TcpWatch,
    pub(crate) watched: WatchedAs,
}

/// Receives of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receives {
    /// Beyond the credits.
    pub(crate) reserve: u32,
    /// The fewest that a connection is worth opening with.
    pub(crate) min: u32,
    /// The most.
    pub(crate) max: u32,
}

impl Receives {
    /// The receives of a connection on which a credit stands for `per_credit` of them.
    pub(crate) fn with(self, per_credit: u32) -> Self {
        let scaled = |receives: u32| self.reserve + (receives - self.reserve) * per_credit;
        Self {
            reserve: self.reserve,
            min: scaled(self.min),
            max: scaled(self.max),
        }
    }
}

impl HubSettings {
    /// How much may be in flight for the application on one connection, and on all of them:
    /// messages, and one-sided operations where there are windows.
    pub(crate) fn outbound(&self) -> (u32, u32) {
        let operations = match self.windows.enabled() {
            true => self.windows.operations,
            false => 0,
        };
        let (depth, total) = self
            .sends
            .as_ref()
            .map_or((0, 0), |it| (it.depth, it.total));
        (
            depth.saturating_add(operations),
            total.saturating_add(operations),
        )
    }

    /// Pieces of one-sided operations in flight at once. An endpoint that has no ring to stage them
    /// in as it opens has none.
    pub(crate) fn one_sided_pieces(&self) -> u32 {
        let sends = self.sends.as_ref();
        let staged = sends.is_none_or(|sends| sends.staging.is_some());
        u32::from(staged || !self.windows.uses_peers) * PIECES_IN_FLIGHT
    }

    /// Pieces of long messages in flight at once: of one connection, which sends one message at a
    /// time, and of all.
    pub(crate) fn long_pieces(&self) -> (u32, u32) {
        let Some(sends) = self.sends.as_ref().filter(|sends| sends.long) else {
            return (0, 0);
        };
        let messages = sends.total.min(self.max_connections);
        (PIECES_MAX, PIECES_MAX.saturating_mul(messages))
    }

    /// Only control messages come in, and the pool that they come into is the one that they are
    /// sent from, too: it has room for both.
    pub(super) fn has_one_pool(&self) -> bool {
        self.credits == 0 && !self.accepts
    }

    /// Control messages that may be on the way at once, on all connections of such a link.
    pub(super) fn controls<L: Link>(&self, link: &L) -> u32 {
        match (link.form(), link.shares_endpoint()) {
            (Form::Msg, _) => CONTROLS_AT_ONCE * self.max_connections,
            (Form::Rdm, false) => CONTROLS_PER_CONNECTION * self.max_connections,
            (Form::Rdm, true) => {
                CONTROLS_PER_CONNECTION * (self.max_connections + ORPHANS_MAX as u32)
            }
        }
    }

    /// Buffers of an endpoint into which only control messages come.
    pub(crate) fn control_buffers<L: Link>(&self, link: &L) -> u32 {
        self.max_connections * self.receives(link.form()).max + self.controls(link)
    }

    /// How many receives a connection has.
    pub(crate) fn receives(&self, form: Form) -> Receives {
        let sends = self.sends.as_ref();
        let grants = sends.map_or(0, |sends| {
            OutboundSettings::grants(form) + sends.long_answers(form)
        });
        let subscriptions = match self.publishing {
            true => SUBSCRIPTION_MESSAGES_MAX as u32,
            false => 0,
        };
        let reserve = self.windows.reserve() + grants + subscriptions;
        Receives {
            reserve,
            min: reserve + self.credits.min(1),
            max: reserve + self.credits,
        }
    }
}
