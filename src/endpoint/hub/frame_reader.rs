//! `FrameReader`: takes the messages out of a frame, each with a handle of its own on the buffer.

#![allow(unsafe_code)]

use super::received_frame::FrameCounts;
use crate::buffer::{Buffer, BufferParts};
use crate::endpoint::hub::event::HubEvent;
use crate::endpoint::message::Message;
use crate::id::ConnectionId;
use crate::protocol::wire::frame::{self, FrameMessages, FramePlace};
use crate::protocol::wire::{self, HeaderMode, WireError};

/// Takes the messages out of a frame, with what is to be counted of them.
pub(crate) struct FrameReader<'a> {
    connection: ConnectionId,
    mode: HeaderMode,
    /// The number of the message in front of the first.
    before: u64,
    frame: &'a [u8],
    places: FrameMessages<'a>,
    parts: BufferParts<'a>,
    /// How many more are read.
    left: usize,
    counts: FrameCounts,
}

impl<'a> FrameReader<'a> {
    /// Of a frame that nobody has read.
    pub(super) fn of_new(
        about: (ConnectionId, HeaderMode),
        before: u64,
        frame: &'a Buffer,
    ) -> Self {
        // One more than there may be, so that the end is read, too.
        let (begin, most) = (FramePlace::default(), frame::count_max(frame.len()) + 1);
        Self::new(about, before, frame, (begin, most))
    }

    /// From a place on, so many at most.
    pub(super) fn new(
        (connection, mode): (ConnectionId, HeaderMode),
        before: u64,
        frame: &'a Buffer,
        (place, left): (FramePlace, usize),
    ) -> Self {
        // `count_max` is at most 512.
        let most = frame::count_max(frame.len()).min(left) as u32;
        Self {
            connection,
            mode,
            before,
            frame,
            places: frame::messages_from(frame, place),
            parts: frame.parts(most),
            left,
            counts: FrameCounts::default(),
        }
    }

    /// The next message, if there is one.
    #[inline(always)]
    pub(crate) fn read(&mut self) -> Option<Message> {
        self.left = self.left.checked_sub(1)?;
        let read = self.places.next()?.and_then(|place| {
            let (header, _) = wire::split(self.mode, &self.frame[place.clone()])?;
            Ok((place, header))
        });
        let (place, header) = match read {
            Ok(read) => read,
            Err(error) => return self.fail(error),
        };
        self.counts.bytes += place.len() as u64;
        self.counts.messages += 1;
        let number = self.before + self.places.place().count as u64;
        let buffer = self.parts.part(place);
        Some(Message::new(self.connection, number, header, buffer, None))
    }

    #[cold]
    fn fail(&mut self, error: WireError) -> Option<Message> {
        self.left = 0;
        self.counts.wrong = Some(error);
        None
    }

    /// What was read.
    pub(super) fn into_counts(self) -> FrameCounts {
        self.counts
    }

    /// Appends all of them. Each is written to its place at once: to put an event together and then
    /// to push it costs as much as all the rest, since there is so little of that.
    pub(super) fn tell_all<E: HubEvent>(&mut self, events: &mut Vec<E>) {
        events.reserve(self.left);
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
