//! What comes in as a frame: several messages, which share its buffer.

use super::Hub;
use crate::buffer::BufferMut;
use crate::endpoint::event::ReceiveEvent;
use crate::endpoint::hub::event::{HubEvent, Tell};
use crate::endpoint::link::Link;
use crate::endpoint::message::Message;
use crate::id::ConnectionId;
use crate::protocol::wire::{self, frame};

impl<L: Link, E: HubEvent> Hub<L, E> {
    /// A frame came: hands out the messages in it, up to the first that makes no sense.
    pub(super) fn on_frame(
        &mut self,
        id: ConnectionId,
        (buffer, len): (BufferMut, usize),
        events: &mut Vec<E>,
    ) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        let Ok(first) = peer.machine.on_frame(len as u64) else {
            return;
        };
        let (mode, held) = (peer.header_mode, peer.long.held.is_some());
        if !peer.established {
            self.tell_established(id, events);
        }
        let frame = buffer.freeze(len);
        let (mut count, mut wrong) = (0, None);
        for place in frame::messages(&frame) {
            let read = place.and_then(|place| {
                let (header, _) = wire::split(mode, &frame[place.clone()])?;
                Ok((place, header))
            });
            let (place, header) = match read {
                Ok(read) => read,
                Err(error) => {
                    wrong = Some(error);
                    break;
                }
            };
            self.stats.bytes += place.len() as u64;
            count += 1;
            // The machine counts what came before.
            let message = Message::new(id, first + count, header, frame.slice(place), None);
            match held {
                false => events.tell(ReceiveEvent::Message(message)),
                true => self.hold(id, ReceiveEvent::Message(message)),
            }
        }
        self.stats.messages += count;
        self.stats.packed += count;
        self.stats.frames += 1;
        if let Some(peer) = self.peers.get_mut(id) {
            peer.machine.on_frame_read(count);
            if let Some(error) = wrong {
                peer.machine.violate(error);
            }
        }
    }
}
