//! `RefusedPeers`: connections on which something was refused for now, and when they are told.

use std::time::Instant;

use super::Outbound;
use super::peer_outbound::{BlockedOn, PeerOutbound};
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::event::ReceiveEvent;
use crate::endpoint::hub::conn_table::ConnTable;
use crate::endpoint::hub::control::CONTROL_RETRY;
use crate::endpoint::hub::event::{HubEvent, Tell};
use crate::endpoint::hub::line::LineState;
use crate::endpoint::hub::peer::Peer;
use crate::endpoint::hub::windows::may_use;
use crate::id::ConnectionId;

/// The connections that wait for something that all of them share.
#[derive(Default)]
pub(super) struct RefusedPeers {
    ids: Vec<ConnectionId>,
    /// When something was refused because another header is in front of its buffer.
    for_room: Option<Instant>,
}

impl Outbound {
    /// Something was refused. `credit`: it needs one.
    pub(in crate::endpoint::hub) fn refuse(
        &mut self,
        of: Option<(ConnectionId, &mut PeerOutbound)>,
        kind: &SendErrorKind,
        credit: bool,
    ) {
        let &SendErrorKind::WouldBlock(why) = kind else {
            self.account.stats.refused.add(1);
            return;
        };
        self.account.stats.would_block.add(1);
        self.account.stats.count_blocked(why);
        if let Some((id, own)) = of {
            own.refused = Some(BlockedOn { why, credit });
            if self.is_shared(why, own) && !std::mem::replace(&mut own.listed, true) {
                self.refused.ids.push(id);
            }
        }
        match why {
            Blocked::Staging if self.outgoing.staging.arm() => self.wait.wake(),
            Blocked::HeaderSlots => self.arm_headers(),
            // There may be nothing in flight whose completion wakes anybody.
            Blocked::Provider => self.retry = true,
            // Another endpoint may hold the room, which tells nobody when it is free. The next poll
            // sets the timer.
            Blocked::HeaderRoom => {
                self.refused.for_room = Some(self.wait.clock().now());
                self.retry = true;
                self.wait.wake();
            }
            _ => {}
        }
    }

    /// Something was refused before a connection was made: it is to be told when it may be taken.
    pub(in crate::endpoint::hub) fn expect_writable(&mut self, own: &mut PeerOutbound) {
        let why = Blocked::Connecting;
        own.refused = Some(BlockedOn { why, credit: true });
    }

    /// Something was refused, for want of what all connections share.
    #[inline]
    pub(in crate::endpoint::hub) fn has_refused(&self) -> bool {
        !self.refused.ids.is_empty()
    }

    /// Whether that waits for what all connections share.
    fn is_shared(&self, why: Blocked, own: &PeerOutbound) -> bool {
        match why {
            Blocked::Credits | Blocked::Connecting | Blocked::LongMessage | Blocked::Gate => false,
            Blocked::Depth => self.account.has_depth(own),
            _ => true,
        }
    }

    /// Another endpoint may hold all the slots: its release must wake us. Released between the
    /// refusal and the arming: nobody would.
    fn arm_headers(&self) {
        if self.headers_waker.arm() {
            self.wait.wake();
        }
    }

    /// Tells a connection on which something was refused that it may be taken, if it may.
    pub(in crate::endpoint::hub) fn tell_writable<C, E: HubEvent>(
        &mut self,
        (id, peer): (ConnectionId, &mut Peer<C>),
        events: &mut Vec<E>,
    ) {
        let was_listed = peer.outbound.listed;
        if self.judge(peer) {
            events.tell(ReceiveEvent::Writable { connection: id });
        }
        if peer.outbound.listed && !was_listed {
            self.refused.ids.push(id);
        }
    }

    /// Something shared may be free again: tells the connections that were refused for it.
    pub(in crate::endpoint::hub) fn tell_shared<C, E: HubEvent>(
        &mut self,
        peers: &mut ConnTable<Peer<C>>,
        events: &mut Vec<E>,
    ) {
        if self.refused.ids.is_empty() || self.account.is_full() {
            return;
        }
        let mut refused = std::mem::take(&mut self.refused.ids);
        let mut waits_for_room = false;
        refused.retain(|&id| {
            let Some(peer) = peers.get_mut(id) else {
                return false;
            };
            if self.judge(peer) {
                events.tell(ReceiveEvent::Writable { connection: id });
            }
            waits_for_room |= peer.outbound.blocked() == Some(Blocked::HeaderRoom);
            peer.outbound.listed
        });
        self.refused.ids = refused;
        self.retry |= waits_for_room;
    }

    /// Whether what was refused on a connection may be taken now; if not, what it waits for.
    fn judge<C>(&self, peer: &mut Peer<C>) -> bool {
        let Some(BlockedOn { why, credit }) = peer.outbound.refused else {
            peer.outbound.listed = false;
            return false;
        };
        let may = match credit {
            true => self.may_send(peer),
            false => may_use(peer, false).and_then(|()| self.account.has_room(&peer.outbound)),
        };
        let own = &mut peer.outbound;
        match may {
            // A slot that woke us may be another endpoint's again: then wait for the next one.
            Ok(()) if why == Blocked::HeaderSlots && self.outgoing.headers().free_count() == 0 => {
                own.listed = true;
                self.arm_headers();
                false
            }
            // Told too early, it would be refused again and again.
            Ok(()) if why == Blocked::HeaderRoom && !self.may_have_room() => {
                own.listed = true;
                false
            }
            Ok(())
                if why == Blocked::Staging
                    && !self.outgoing.staging.has_room()
                    && !self.outgoing.staging.arm() =>
            {
                own.listed = true;
                false
            }
            // A long message waits until all that were before it are gone.
            Ok(()) if why == Blocked::Gate && own.messages() != LineState::Open => {
                own.listed = false;
                false
            }
            Ok(()) => {
                (own.refused, own.listed) = (None, false);
                true
            }
            Err(SendErrorKind::WouldBlock(why)) => {
                own.refused = Some(BlockedOn { why, credit });
                own.listed = self.is_shared(why, own);
                false
            }
            // It is closing: that is told otherwise.
            Err(_) => {
                (own.refused, own.listed) = (None, false);
                false
            }
        }
    }

    /// Whether a buffer may be free of another header: no endpoint tells another.
    fn may_have_room(&self) -> bool {
        let refused = self.refused.for_room;
        refused.is_none_or(|refused| self.wait.clock().now() >= refused + CONTROL_RETRY)
    }
}
