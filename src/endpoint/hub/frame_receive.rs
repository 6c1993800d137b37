//! What comes in as a frame: several messages, which share its buffer.

#![allow(unsafe_code)]

use super::Hub;
use crate::buffer::{Buffer, BufferMut, BufferParts};
use crate::endpoint::event::ReceiveEvent;
use crate::endpoint::hub::event::HubEvent;
use crate::endpoint::link::Link;
use crate::endpoint::message::Message;
use crate::id::ConnectionId;
use crate::protocol::wire::frame::{self, FrameMessages};
use crate::protocol::wire::{self, HeaderMode, WireError};

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
        let mut reader = FrameReader::new((id, mode), first, &frame);
        if held {
            while let Some(message) = reader.read() {
                self.hold(id, ReceiveEvent::Message(message));
            }
        } else {
            reader.tell_all(events);
        }
        let FrameReader {
            count,
            bytes,
            wrong,
            ..
        } = reader;
        self.stats.bytes += bytes;
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

/// Takes the messages out of a frame, with what is to be counted of them.
struct FrameReader<'a> {
    connection: ConnectionId,
    mode: HeaderMode,
    /// The number of the message in front of the first.
    before: u64,
    frame: &'a [u8],
    places: FrameMessages<'a>,
    parts: BufferParts<'a>,
    /// How many there were.
    count: u64,
    /// Bytes of them, headers included.
    bytes: u64,
    /// What comes behind them makes no sense.
    wrong: Option<WireError>,
}

impl<'a> FrameReader<'a> {
    fn new((connection, mode): (ConnectionId, HeaderMode), before: u64, frame: &'a Buffer) -> Self {
        // `count_max` is at most 512.
        let most = frame::count_max(frame.len()) as u32;
        Self {
            connection,
            mode,
            before,
            frame,
            places: frame::messages(frame),
            parts: frame.parts(most),
            count: 0,
            bytes: 0,
            wrong: None,
        }
    }

    /// The next message, if there is one.
    #[inline(always)]
    fn read(&mut self) -> Option<Message> {
        let read = self.places.next()?.and_then(|place| {
            let (header, _) = wire::split(self.mode, &self.frame[place.clone()])?;
            Ok((place, header))
        });
        let (place, header) = match read {
            Ok(read) => read,
            Err(error) => return self.fail(error),
        };
        self.bytes += place.len() as u64;
        self.count += 1;
        let (number, buffer) = (self.before + self.count, self.parts.part(place));
        Some(Message::new(self.connection, number, header, buffer, None))
    }

    #[cold]
    fn fail(&mut self, error: WireError) -> Option<Message> {
        self.wrong = Some(error);
        None
    }

    /// Appends all of them. Each is written to its place at once: to put an event together and then
    /// to push it costs as much as all the rest, since there is so little of that.
    fn tell_all<E: HubEvent>(&mut self, events: &mut Vec<E>) {
        // One more, so that the end is read, too.
        events.reserve(frame::count_max(self.frame.len()) + 1);
        let mut told = 0;
        let mut places = events.spare_capacity_mut().iter_mut();
        while let Some(place) = places.next()
            && let Some(message) = self.read()
        {
            match E::message(message) {
                Some(event) => _ = place.write(event),
                // Nobody sends to such an endpoint.
                None => break,
            }
            told += 1;
        }
        let len = events.len() + told;
        // SAFETY: so many places behind the last event were written just now, one after the other,
        // and they are within the capacity, since `spare_capacity_mut` gave them.
        unsafe { events.set_len(len) };
    }
}
