//! `Inbox`: what came at an endpoint and was not taken yet, in its order.
//!
//! ```text
//!  Hub::poll_frames ─► events, and frames with their places among them
//!                        │ the face's word for each
//!                        ▼
//!  Inbox       event │ frame (512 messages) │ message │ frame │ event │ message
//!                ▼      └────────── one batch ──────────┘         └ stay for the next call
//!             told first      MessageRef, MessageRef, ..
//! ```
//!
//! A frame is one entry: its buffer, and how much of it makes sense, since all of it was read when
//! it came. Its messages are found when they are asked for, and cost no event, no count and no
//! memory of their own. The entries own the buffers; a batch borrows them, and moves the cursor as
//! it goes, so what was not taken is where the next call begins, whichever that is. Entries that
//! were taken are dropped by the next call: what a batch gave may be looked at until then. So
//! nobody sleeps in between (`EndpointWait::set_unread`): buffers that a starving connection waits
//! for may lie here.
//!
//! What is here is bounded: messages lie in buffers of the pool, and nothing new is asked for while
//! an event waits behind messages that are not taken.

mod batch;
mod hub_inbox;

use std::fmt;

use super::delivery::MessageEvent;
use super::hub::received_frame::ReceivedFrame;
use super::link::wait::EndpointWait;
use super::message::Message;
use crate::Error;
use crate::protocol::wire::frame::FramePlace;
use crate::stats::ReceiveStats;

pub(crate) use batch::MessageBatch;
pub(crate) use hub_inbox::HubInbox;

/// One thing that came.
enum InboxEntry<E: MessageEvent> {
    Event(E),
    /// It came by itself.
    Message(Message, E::About),
    Frame(ReceivedFrame, E::About),
}

/// What of it was taken.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    /// Entries.
    entry: usize,
    /// Of the frame behind those.
    place: FramePlace,
}

/// What came and was not taken yet.
pub(crate) struct Inbox<E: MessageEvent> {
    entries: Vec<InboxEntry<E>>,
    cursor: Cursor,
    /// How many of the entries are events.
    events: usize,
}

impl<E: MessageEvent> Inbox<E> {
    pub(crate) fn new() -> Self {
        Self {
            entries: Vec::new(),
            cursor: Cursor::default(),
            events: 0,
        }
    }

    /// Whether more may be asked of the endpoint.
    pub(crate) fn has_room(&self) -> bool {
        self.events == 0
    }

    /// Appends what came.
    pub(crate) fn push(&mut self, event: E) {
        self.entries.push(match event.into_message() {
            Ok((message, about)) => InboxEntry::Message(message, about),
            Err(event) => {
                self.events += 1;
                InboxEntry::Event(event)
            }
        });
    }

    /// The same of several.
    pub(crate) fn push_all(&mut self, events: &mut Vec<E>) {
        for event in events.drain(..) {
            self.push(event);
        }
    }

    /// The same of a frame.
    pub(crate) fn push_frame(&mut self, frame: ReceivedFrame, about: E::About) {
        self.entries.push(InboxEntry::Frame(frame, about));
    }

    /// Lets go of what was taken, and tells the events that come before the next message.
    pub(crate) fn begin(&mut self, events: &mut Vec<E>) {
        let taken = self.cursor.entry;
        let rest = self.entries[taken..].iter();
        let told = rest
            .take_while(|entry| matches!(entry, InboxEntry::Event(_)))
            .count();
        if taken + told == 0 {
            return;
        }
        for entry in self.entries.drain(..taken + told) {
            if let InboxEntry::Event(event) = entry {
                events.push(event);
            }
        }
        self.events -= told;
        self.cursor.entry = 0;
    }

    /// The endpoint was polled, or was not to be, as there is [no room](Self::has_room): tells the
    /// events in front, and gives the messages behind them, up to the next event. While something
    /// is here, nobody sleeps; what the poll failed with is said when nothing is.
    pub(crate) fn go_on(
        &mut self,
        events: &mut Vec<E>,
        wait: &EndpointWait,
        polled: Result<(), Error>,
    ) -> Result<MessageBatch<'_, E>, Error> {
        self.begin(events);
        wait.set_unread(!self.entries.is_empty());
        if self.entries.is_empty() {
            polled?;
        }
        Ok(MessageBatch::new(&self.entries, &mut self.cursor))
    }

    /// Tells everything that was not taken, each message as an event.
    pub(crate) fn tell_all(&mut self, events: &mut Vec<E>)
    where
        E::About: Clone,
    {
        let cursor = std::mem::take(&mut self.cursor);
        let mut place = cursor.place;
        for entry in self.entries.drain(..).skip(cursor.entry) {
            match entry {
                InboxEntry::Event(event) => events.push(event),
                InboxEntry::Message(message, about) => events.push(E::message(message, about)),
                InboxEntry::Frame(frame, about) => {
                    let mut rest = frame.rest(std::mem::take(&mut place));
                    while let Some(message) = rest.read() {
                        events.push(E::message(message, about.clone()));
                    }
                }
            }
        }
        self.events = 0;
    }

    /// The same, of an endpoint that is about to be polled: nobody has to stay awake for it.
    #[inline]
    pub(crate) fn tell_rest(&mut self, events: &mut Vec<E>, wait: &EndpointWait)
    where
        E::About: Clone,
    {
        if !self.entries.is_empty() {
            self.tell_all(events);
            wait.set_unread(false);
        }
    }

    /// Ends of connections that are not told yet.
    pub(crate) fn ends(&self) -> usize {
        self.events().filter(|event| event.is_end()).count()
    }

    /// Events that wait behind messages.
    pub(crate) fn events(&self) -> impl Iterator<Item = &E> {
        let most = self.events;
        let events = self.entries.iter().filter_map(|entry| match entry {
            InboxEntry::Event(event) => Some(event),
            _ => None,
        });
        events.take(most)
    }

    /// Messages and frames here that this is about, those included that were taken since the last
    /// call.
    pub(crate) fn count_about(&self, is_about: impl Fn(&E::About) -> bool) -> usize {
        let about = |entry: &&InboxEntry<E>| match entry {
            InboxEntry::Message(_, about) | InboxEntry::Frame(_, about) => is_about(about),
            InboxEntry::Event(_) => false,
        };
        self.entries.iter().filter(about).count()
    }

    /// Takes out of the counters what is held by nobody but this.
    pub(crate) fn correct(&self, mut stats: ReceiveStats) -> ReceiveStats {
        for entry in &self.entries {
            if let InboxEntry::Frame(frame, _) = entry
                && frame.buffer().is_parted()
            {
                stats.packed.messages_held = stats.packed.messages_held.saturating_sub(1);
                let alone = u64::from(frame.buffer().is_unique());
                stats.packed.frames_held = stats.packed.frames_held.saturating_sub(alone);
            }
        }
        stats
    }
}

impl<E: MessageEvent> fmt::Debug for Inbox<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox")
            .field("entries", &self.entries.len())
            .field("cursor", &self.cursor)
            .finish_non_exhaustive()
    }
}
