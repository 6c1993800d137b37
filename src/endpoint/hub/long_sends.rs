//! Long messages that a hub sends: what the peer answers to an offer, and the pieces that go out
//! then. What is taken for a message, and where it is while it is under way, is `LongSend`'s.

use super::{Hub, outbound};
use crate::endpoint::hub::event::HubEvent;
use crate::endpoint::hub::long_send::LongSend;
use crate::endpoint::hub::posted::LongPiece;
use crate::endpoint::link::Link;
use crate::error::CompletionError;
use crate::id::ConnectionId;

impl<L: Link, E: HubEvent> Hub<L, E> {
    /// The peer says where the message is to be.
    pub(super) fn on_long_granted(&mut self, id: ConnectionId, target: (u64, u64)) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        let (line, mut way) = outbound::way(&mut self.outbound, &mut self.link, (id, peer));
        if let Some(line) = line {
            line.on_long_granted(target, &mut way);
            self.outbound.retry |= line.pause().is_some();
        }
    }

    /// The peer does not take it.
    pub(super) fn on_long_refused(
        &mut self,
        id: ConnectionId,
        limit: Option<u64>,
        events: &mut Vec<E>,
    ) {
        let error = match limit {
            Some(limit) => CompletionError::too_long(limit),
            None => CompletionError::new(libc::ECANCELED),
        };
        let line = self.peers.get_mut(id).and_then(|it| it.outbound.line());
        if let Some(long) = line.and_then(|line| line.take_long()) {
            self.on_long_over(*long, Some(error), events);
        }
    }

    /// A piece is over.
    pub(super) fn on_long_piece(
        &mut self,
        piece: LongPiece,
        error: Option<CompletionError>,
        events: &mut Vec<E>,
    ) {
        let LongPiece { connection, held } = piece;
        drop(held);
        let Some(peer) = self.peers.get_mut(connection) else {
            return self.on_orphaned_piece(connection, events);
        };
        let to = (connection, peer);
        let (line, mut way) = outbound::way(&mut self.outbound, &mut self.link, to);
        if let Some(line) = line {
            let whole = line.on_long_piece(error.map(|error| error.errno), &mut way);
            let over = if whole { line.take_long() } else { None };
            self.outbound.retry |= line.pause().is_some();
            if let Some(long) = over {
                self.on_long_over(*long, None, events);
            }
        }
        self.touch(connection);
    }

    /// The same where the connection is over. Its message was told of then, and is given back with
    /// its last piece; its address goes with the last thing that the provider has of it.
    fn on_orphaned_piece(&mut self, id: ConnectionId, events: &mut Vec<E>) {
        if let Some(orphan) = self.outbound.posted.on_orphaned_piece(id) {
            self.outbound.on_orphan_over(orphan, None, events);
        }
        self.on_orphan(id);
    }

    /// The message is over, and the provider has nothing of it.
    pub(super) fn on_long_over(
        &mut self,
        long: LongSend,
        error: Option<CompletionError>,
        events: &mut Vec<E>,
    ) {
        let id = long.connection();
        self.outbound.on_long_over(long, error, events);
        if let Some(peer) = self.peers.get_mut(id) {
            peer.outbound.in_flight -= 1;
            self.touch(id);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::buffer::Payload;
    use crate::endpoint::hub::conn_table::NOBODY;
    use crate::endpoint::hub::posted::PieceOp;
    use crate::endpoint::link::fake::NetConfig;
    use crate::endpoint::testing::hubs::{HubSetup, Hubs};
    use crate::event_loop::WaitSource;
    use crate::protocol::connection::Form;

    /// One-sided operations may have them all.
    #[test]
    fn a_message_that_finds_no_free_piece_waits_until_there_is_one() {
        for form in [Form::Msg, Form::Rdm] {
            let setup = HubSetup {
                net: NetConfig {
                    form,
                    max_message: 100,
                    ..NetConfig::default()
                },
                receive_slots: 160,
                sends_long: true,
                long: Some((2, 4096)),
                ..HubSetup::default()
            };
            let (mut hubs, ids) = Hubs::star(&setup, 2);
            let mut taken = Vec::new();
            let pieces = &mut hubs.hubs[0].core().outbound.posted.pieces;
            while pieces.vacant().is_some() {
                let held = Payload::empty();
                let connection = NOBODY;
                let piece = PieceOp::Long(LongPiece { connection, held });
                taken.extend(pieces.begin(piece).map_err(drop));
            }
            hubs.hubs[0].send_long(ids[0], 1).unwrap();
            hubs.settle();
            assert!(hubs.hubs[0].completed.is_empty(), "{form:?}");
            let wakes = hubs.hubs[0].core().wait().next_deadline();
            assert!(wakes.is_some(), "nobody would look again");
            for context in taken {
                drop(hubs.hubs[0].core().outbound.posted.pieces.abort(context));
            }
            hubs.settle();
            assert_eq!(hubs.hubs[0].completed, [1], "{form:?}");
            assert_eq!(hubs.hubs[1].received, [1]);
            hubs.end();
        }
    }
}
