//! `MessageBatch`: the messages in front of an inbox, one after the other.

use super::{Cursor, InboxEntry};
use crate::endpoint::delivery::MessageEvent;
use crate::endpoint::hub::received_frame::FrameView;
use crate::endpoint::message_ref::MessageRef;
use crate::protocol::wire::frame::FramePlace;

/// Gives the messages in front of the next event. What it gave is taken; the rest stays.
pub(crate) struct MessageBatch<'a, E: MessageEvent> {
    entries: &'a [InboxEntry<E>],
    cursor: &'a mut Cursor,
    /// The frame at the cursor, once a message of it was asked for.
    frame: Option<(FrameView<'a>, &'a E::About)>,
}

impl<'a, E: MessageEvent> MessageBatch<'a, E> {
    pub(super) fn new(entries: &'a [InboxEntry<E>], cursor: &'a mut Cursor) -> Self {
        Self {
            entries,
            cursor,
            frame: None,
        }
    }

    /// The next message, and what is said of it besides.
    #[inline(always)]
    pub(crate) fn next_message(&mut self) -> Option<(MessageRef<'a>, &'a E::About)> {
        loop {
            if let Some((frame, about)) = self.frame {
                let message = frame.read(&mut self.cursor.place);
                // At once, or who takes no more would leave a frame behind that has nothing.
                if frame.is_over(self.cursor.place) {
                    self.leave_frame();
                }
                return message.map(|message| (message, about));
            }
            if let Some(message) = self.next_entry()? {
                return Some(message);
            }
        }
    }

    /// The messages alone.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn messages(mut self) -> impl Iterator<Item = MessageRef<'a>> {
        std::iter::from_fn(move || Some(self.next_message()?.0))
    }

    fn leave_frame(&mut self) {
        self.frame = None;
        self.cursor.entry += 1;
        self.cursor.place = FramePlace::default();
    }

    /// The message at the cursor, or none where a frame is; nothing at all where the batch ends.
    fn next_entry(&mut self) -> Option<Option<(MessageRef<'a>, &'a E::About)>> {
        match self.entries.get(self.cursor.entry)? {
            InboxEntry::Event(_) => None,
            InboxEntry::Message(message, about) => {
                self.cursor.entry += 1;
                Some(Some((message.into(), about)))
            }
            InboxEntry::Frame(frame, about) => {
                self.frame = Some((frame.view(), about));
                Some(None)
            }
        }
    }
}
