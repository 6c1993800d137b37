//! Frames that come: small messages, many in one receive.

use super::Hub;
use super::frame_reader::FrameReader;
use super::received_frame::{FrameCounts, PlacedFrame, ReceivedFrame};
use crate::Error;
use crate::buffer::BufferMut;
use crate::endpoint::event::ReceiveEvent;
use crate::endpoint::hub::event::HubEvent;
use crate::endpoint::link::Link;
use crate::id::ConnectionId;

impl<L: Link, E: HubEvent> Hub<L, E> {
    /// As [`poll`](Self::poll), but gives frames as they are, and where among the events they came.
    /// Those of connections on which a long message waits for a fence, which comes before them,
    /// come as messages. Both lists are to be empty.
    pub(crate) fn poll_frames(
        &mut self,
        events: &mut Vec<E>,
        frames: &mut Vec<PlacedFrame>,
    ) -> Result<(), Error> {
        debug_assert!(events.is_empty() && frames.is_empty());
        self.buffers.whole_frames = Some(std::mem::take(frames));
        let polled = self.poll(events);
        *frames = self.buffers.whole_frames.take().unwrap_or_default();
        polled
    }

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
        let FrameCounts {
            messages,
            bytes,
            wrong,
        } = match &mut self.buffers.whole_frames {
            Some(frames) if !held => {
                let (frame, counts) = ReceivedFrame::read((id, mode), first, frame);
                if !frame.is_empty() {
                    let behind = events.len();
                    frames.push(PlacedFrame { behind, frame });
                }
                counts
            }
            _ => {
                let mut reader = FrameReader::of_new((id, mode), first, &frame);
                if held {
                    while let Some(message) = reader.read() {
                        self.hold(id, ReceiveEvent::Message(message));
                    }
                } else {
                    reader.tell_all(events);
                }
                reader.into_counts()
            }
        };
        self.stats.bytes.add(bytes);
        self.stats.messages.add(messages);
        self.stats.packed.messages.add(messages);
        self.stats.packed.frames.add(1);
        if let Some(peer) = self.peers.get_mut(id) {
            peer.machine.on_frame_read(messages);
            if let Some(error) = wrong {
                peer.machine.violate(error);
            }
        }
    }
}
