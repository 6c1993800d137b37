//! How publications are posted to each subscriber: one by one, or as a batch, of which those of one
//! subscriber go to the provider together.

use super::account::Ticket;
use super::core::PublishCore;
use super::event::Publication;
use super::policy::{DropReason, Offered};
use super::subscriber_queue::QueueOutcome;
use crate::buffer::Payload;
use crate::endpoint::error::{Blocked, Refused, SendErrorKind};
use crate::endpoint::hub::batch::JoinedMessages;
use crate::endpoint::hub::headers::PreparedHeader;
use crate::endpoint::link::Link;
use crate::id::ConnectionId;

/// A batch of publications that is under way. Whatever ends it, what it took is posted.
struct OpenPublications<'a, L: Link>(&'a mut PublishCore<L>);

impl<L: Link> Drop for OpenPublications<'_, L> {
    fn drop(&mut self) {
        if let Some(joined) = self.0.joined.take() {
            self.0.core.post_joined(joined);
        }
    }
}

impl<L: Link> PublishCore<L> {
    /// Publishes until one is refused; to each subscriber, all but the last tell the provider that
    /// another follows, where it looks at that. Appends what became of each.
    pub(crate) fn publish_batch<H: AsRef<[u8]>>(
        &mut self,
        publications: impl Iterator<Item = (u64, Payload, H, u64)>,
        told: &mut Vec<Publication>,
    ) -> (usize, Option<Refused<Payload>>) {
        let before = told.len();
        // A subscriber for which something waits has nothing here: it was refused a message, and
        // that posted the one before. So whoever is cut off loses nothing that was taken.
        self.joined = Some(JoinedMessages::default());
        let open = OpenPublications(self);
        for (tag, payload, header, key) in publications {
            match open.0.publish(tag, payload, header.as_ref(), key) {
                Ok(publication) => told.push(publication),
                Err(refused) => return (told.len() - before, Some(refused)),
            }
        }
        (told.len() - before, None)
    }

    /// Posts a publication to one subscriber; in a batch, joined with the one before. What can't be
    /// posted waits, or is dropped.
    pub(super) fn post_or_park(
        &mut self,
        connection: ConnectionId,
        payload: &mut Payload,
        header: &mut PreparedHeader,
        ticket: Ticket,
    ) -> Offered {
        let Some((queue, due)) = self.queues.get_mut(connection) else {
            return Offered::Dropped(DropReason::Closing);
        };
        let mut blocked = Blocked::Depth;
        if !queue.is_waiting() {
            let (payload, key) = (payload.share(), ticket.key());
            let posted = match &mut self.joined {
                None => self.core.send_prepared(connection, payload, header, key),
                Some(joined) => {
                    let message = (payload, header);
                    self.core.send_joined(joined, connection, message, key)
                }
            };
            match posted.map_err(|refused| refused.kind) {
                Ok(()) => {
                    queue.on_posted(ticket, self.now);
                    due.note(queue);
                    self.account.add_posted(ticket);
                    return Offered::Posted;
                }
                Err(SendErrorKind::WouldBlock(why)) => blocked = why,
                Err(kind) => return Offered::Dropped(DropReason::of(kind)),
            }
        }
        let parked = queue.park(ticket, self.now);
        due.note(queue);
        match parked {
            QueueOutcome::Waits => {
                self.account.add_waiting(ticket);
                Offered::Waits
            }
            QueueOutcome::NoQueue => Offered::Dropped(DropReason::NoRoom(blocked)),
            QueueOutcome::Full => Offered::Dropped(DropReason::QueueFull),
            QueueOutcome::TooSlow(lag) => {
                self.cut_off(connection, lag);
                Offered::Dropped(DropReason::QueueFull)
            }
        }
    }
}
