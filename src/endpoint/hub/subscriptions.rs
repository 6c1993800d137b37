//! What a layer of publishers and subscribers asks of the hub below it.

use std::time::Instant;

use super::Hub;
use crate::endpoint::hub::event::HubEvent;
use crate::endpoint::link::Link;
use crate::id::ConnectionId;
use crate::protocol::connection::{CloseReason, State};
use crate::protocol::wire::{SubscriptionAnswer, SubscriptionOutcome, SubscriptionRequest};

/// What came from a peer about subscriptions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SubscriptionEvent {
    /// A subscriber asks: to be answered.
    Asked(SubscriptionRequest),
    /// A publisher has answered.
    Answered(SubscriptionRequest, SubscriptionAnswer),
}

impl<L: Link, E: HubEvent> Hub<L, E> {
    /// Moves what came since the last time behind what is in `into`. At most one of each connection
    /// came meanwhile, but the connection may be over.
    pub(crate) fn take_subscription_events(
        &mut self,
        into: &mut Vec<(ConnectionId, SubscriptionEvent)>,
    ) {
        into.append(&mut self.subscription_events);
    }

    /// Publisher: what it says to [`SubscriptionEvent::Asked`], sent at once.
    pub(crate) fn answer_subscription(
        &mut self,
        id: ConnectionId,
        outcome: SubscriptionOutcome,
        next: u64,
        events: &mut Vec<E>,
    ) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.machine.answer_subscription(outcome, next);
            self.act(id, events);
        }
    }

    /// Subscriber: whether a request would be taken now.
    pub(crate) fn may_ask_subscription(&self, id: ConnectionId) -> bool {
        let peer = self.peers.get(id);
        peer.is_some_and(|peer| peer.machine.may_ask_subscription())
    }

    /// Subscriber: sends a request, at once.
    pub(crate) fn ask_subscription(
        &mut self,
        id: ConnectionId,
        request: SubscriptionRequest,
        events: &mut Vec<E>,
    ) {
        if let Some(peer) = self.peers.get_mut(id) {
            let asked = peer.machine.ask_subscription(request);
            debug_assert!(asked, "asked before whether it may");
            self.act(id, events);
        }
    }

    /// Whether there is such a connection that is not over.
    pub(crate) fn is_open(&self, id: ConnectionId) -> bool {
        let peer = self.peers.get(id);
        peer.is_some_and(|peer| peer.machine.state() != State::Closed)
    }

    /// The rude end of a connection, carried out by the next poll.
    pub(crate) fn abort_connection(&mut self, id: ConnectionId, reason: CloseReason) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.machine.abort(reason);
            self.touch(id);
            self.wait.wake();
        }
    }

    /// When the layer above wants to be polled, whatever else happens.
    pub(crate) fn set_layer_deadline(&mut self, at: Option<Instant>) {
        if self.timer.set_layer(at) {
            self.set_timer();
        }
    }
}
