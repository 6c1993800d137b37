//! `Face`: which kind of endpoint it is; what all kinds do.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::{
    BufferedEvent, ConnectionId, ConnectionRequest, ConnectionlessEvent, PeerId, PublishEvent,
    PublisherId, ReceiveEvent, SendEvent, SubscribeEvent,
};
use fabricast::event_loop::{WaitHandle, Waitable};
use fabricast::{
    ConnectionlessEndpoint, Error, PeerAddr, PublishBufferedEvent, PublishEndpoint,
    PublishEndpointBuffered, ReceiveEndpoint, SendEndpointBuffered, SendEndpointZeroCopy,
    SubscribeEndpoint,
};

use crate::event::{Held, Tell, fcast_event};
use crate::status::{FCAST_CLOSED, FCAST_NOT_FOUND, FCAST_UNSUPPORTED, Failure};

/// What an endpoint is, with the events that C has not taken yet. Boxed: a table has many places.
pub(crate) enum Face {
    Send(Box<SendEndpointZeroCopy>, VecDeque<SendEvent>),
    Receive(Box<ReceiveEndpoint>, VecDeque<ReceiveEvent>),
    Buffered(Box<SendEndpointBuffered>, VecDeque<BufferedEvent>),
    Connectionless(Box<ConnectionlessEndpoint>, VecDeque<ConnectionlessEvent>),
    Publish(Box<PublishEndpoint>, VecDeque<PublishEvent>),
    PublishBuffered(Box<PublishEndpointBuffered>, VecDeque<PublishBufferedEvent>),
    Subscribe(Box<SubscribeEndpoint>, VecDeque<SubscribeEvent>),
    /// It was closed: what is left to tell.
    Closed(VecDeque<Untold>),
}

/// An event of an endpoint that is closed.
pub(crate) type Untold = Box<dyn FnOnce() -> (fcast_event, Held) + Send>;

/// An event that is told later.
fn untold<E: Tell + Send + 'static>(event: E) -> Untold {
    Box::new(|| event.tell())
}

/// The same for an endpoint of whatever kind, and for its events; another for a closed one.
macro_rules! of_each {
    ($face:expr, ($endpoint:ident, $events:ident) => $each:expr, $left:pat => $closed:expr) => {
        match $face {
            Face::Send($endpoint, $events) => $each,
            Face::Receive($endpoint, $events) => $each,
            Face::Buffered($endpoint, $events) => $each,
            Face::Connectionless($endpoint, $events) => $each,
            Face::Publish($endpoint, $events) => $each,
            Face::PublishBuffered($endpoint, $events) => $each,
            Face::Subscribe($endpoint, $events) => $each,
            Face::Closed($left) => $closed,
        }
    };
}

impl Face {
    /// The next event; asks the endpoint for more where none is left and `ask` says so.
    #[inline]
    pub(crate) fn next_event(&mut self, ask: bool) -> Result<Option<(fcast_event, Held)>, Failure> {
        of_each!(self, (endpoint, events) => {
            if ask && events.is_empty() {
                refill(events, |into| endpoint.poll(into))?;
            }
            Ok(events.pop_front().map(Tell::tell))
        }, left => Ok(left.pop_front().map(|tell| tell())))
    }

    /// The key of the next event, where that is a send that is done: of those there are many.
    #[inline]
    pub(crate) fn next_completed(&mut self) -> Option<u64> {
        let Self::Send(_, events) = self else {
            return None;
        };
        events
            .front()
            .filter(|event| matches!(event, SendEvent::Completed { .. }))?;
        match events.pop_front() {
            Some(SendEvent::Completed { key, .. }) => Some(key),
            _ => None,
        }
    }

    /// The keys of sends that are done, as long as the next events are such: how many were written.
    pub(crate) fn completed(&mut self, keys: &mut [MaybeUninit<u64>]) -> Result<usize, Failure> {
        let Self::Send(sender, events) = self else {
            return Err(self.cannot("tell keys alone: poll it"));
        };
        if events.is_empty() {
            refill(events, |into| sender.poll(into))?;
        }
        let done = events.iter().map_while(|event| match event {
            SendEvent::Completed { key, .. } => Some(*key),
            _ => None,
        });
        let places = keys.iter_mut().zip(done);
        let written = places.map(|(place, key)| place.write(key)).count();
        events.drain(..written);
        Ok(written)
    }

    /// Whether events wait that were polled for and not taken; with a closed one, nothing else
    /// comes.
    pub(crate) fn has_events(&self) -> bool {
        of_each!(self, (_endpoint, events) => !events.is_empty(), _ => true)
    }

    pub(crate) fn wait(&self, timeout: Duration) -> Result<(), Failure> {
        of_each!(self, (endpoint, _events) => Ok(endpoint.wait(timeout)?), _ => Ok(()))
    }

    /// `None`: it is closed.
    pub(crate) fn wait_handle(&self) -> Option<WaitHandle> {
        of_each!(self, (endpoint, _events) => Some(endpoint.wait_handle()), _ => None)
    }

    pub(crate) fn begin_close(&mut self, deadline: Instant) {
        of_each!(self, (endpoint, _events) => endpoint.begin_close(deadline), _ => {});
    }

    /// Closes, and waits for it; what is left is what it had to tell.
    pub(crate) fn close(&mut self, deadline: Instant) -> Result<(), Failure> {
        let mut left = VecDeque::new();
        let face = std::mem::replace(self, Self::Closed(VecDeque::new()));
        let closed = of_each!(face, (endpoint, events) => {
            left.extend(events.into_iter().map(untold));
            let came = endpoint.close(deadline);
            came.map(|came| left.extend(came.into_iter().map(untold)))
        }, events => {
            left = events;
            Ok(())
        });
        *self = Self::Closed(left);
        Ok(closed?)
    }

    /// What it is called in errors.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Send(..) => "sender",
            Self::Receive(..) => "receiver",
            Self::Buffered(..) => "buffered sender",
            Self::Connectionless(..) => "connectionless endpoint",
            Self::Publish(..) => "publisher",
            Self::PublishBuffered(..) => "buffered publisher",
            Self::Subscribe(..) => "subscriber",
            Self::Closed(_) => "closed endpoint",
        }
    }

    /// Something was asked that this kind does not do.
    #[cold]
    pub(crate) fn cannot(&self, what: &str) -> Failure {
        match self {
            Self::Closed(_) => Failure::new(FCAST_CLOSED, "the endpoint was closed"),
            face => {
                let kind = face.kind();
                Failure::new(FCAST_UNSUPPORTED, format!("a {kind} does not {what}"))
            }
        }
    }

    pub(crate) fn local_addr(&self) -> Result<PeerAddr, Failure> {
        match self {
            Self::Receive(receiver, _) => Ok(receiver.local_addr()),
            Self::Publish(..) | Self::PublishBuffered(..) => Ok(self.publisher()?.local_addr()),
            Self::Connectionless(endpoint, _) => Ok(endpoint.local_addr()),
            _ => Err(self.cannot("listen")),
        }
    }

    /// What publishes, be it what lies below a buffered publisher.
    pub(crate) fn publisher(&self) -> Result<&PublishEndpoint, Failure> {
        match self {
            Self::Publish(publisher, _) => Ok(publisher),
            Self::PublishBuffered(publisher, _) => Ok(publisher.endpoint()),
            face => Err(face.cannot("publish")),
        }
    }

    /// Answers a request: accepts it, or refuses it with these details. False: it is gone.
    pub(crate) fn answer(
        &mut self,
        connection: ConnectionId,
        refuse: Option<[u64; 2]>,
    ) -> Result<bool, Failure> {
        let request = ConnectionRequest::of(connection);
        match (self, refuse) {
            (Self::Receive(receiver, _), Some(details)) => Ok(receiver.refuse(request, details)),
            (Self::Receive(receiver, events), None) => {
                let mut came = Vec::new();
                let stands = receiver.accept(request, &mut came);
                events.extend(came);
                Ok(stands)
            }
            (Self::Publish(publisher, _), Some(details)) => Ok(publisher.refuse(request, details)),
            (Self::Publish(publisher, _), None) => Ok(publisher.accept(request)),
            (Self::PublishBuffered(publisher, _), Some(details)) => {
                Ok(publisher.refuse(request, details))
            }
            (Self::PublishBuffered(publisher, _), None) => Ok(publisher.accept(request)),
            (face, _) => Err(face.cannot("accept connections")),
        }
    }

    /// Begins the polite close of one connection among several.
    pub(crate) fn close_connection(&mut self, id: u64, deadline: Instant) -> Result<(), Failure> {
        let connection = ConnectionId::from_u64(id);
        let stands = match self {
            Self::Receive(receiver, _) => receiver.close_connection(connection, deadline),
            Self::Publish(publisher, _) => publisher.close_connection(connection, deadline),
            Self::PublishBuffered(publisher, _) => publisher.close_connection(connection, deadline),
            Self::Subscribe(subscriber, _) => {
                subscriber.close_connection(PublisherId::from_u64(id), deadline)
            }
            Self::Connectionless(endpoint, _) => {
                return Ok(endpoint.remove_peer_by(PeerId::from_u64(id), deadline)?);
            }
            face => return Err(face.cannot("have several connections: close the endpoint")),
        };
        match stands {
            true => Ok(()),
            false => Err(Failure::new(FCAST_NOT_FOUND, "there is no such connection")),
        }
    }

    /// The keys of the sends in flight.
    pub(crate) fn pending(&self) -> Result<Vec<u64>, Failure> {
        match self {
            Self::Send(sender, _) => Ok(sender.pending()),
            Self::Connectionless(endpoint, _) => {
                Ok(endpoint.pending().into_iter().map(|(_, key)| key).collect())
            }
            _ => Err(self.cannot("tell the keys in flight")),
        }
    }

    /// Connections that stand; of subscribers, publishers that are connected or will be.
    pub(crate) fn connections(&self) -> usize {
        match self {
            Self::Send(sender, _) => usize::from(sender.is_connected()),
            Self::Buffered(sender, _) => usize::from(sender.is_connected()),
            Self::Receive(receiver, _) => receiver.connections(),
            Self::Connectionless(endpoint, _) => endpoint.connections(),
            Self::Publish(publisher, _) => publisher.connections(),
            Self::PublishBuffered(publisher, _) => publisher.endpoint().connections(),
            Self::Subscribe(subscriber, _) => subscriber.publishers(),
            Self::Closed(_) => 0,
        }
    }

    /// What it receives into, or packs into.
    pub(crate) fn pool(&self) -> Result<SharedBufferManager, Failure> {
        match self {
            Self::Receive(receiver, _) => Ok(receiver.pool().clone()),
            Self::Connectionless(endpoint, _) => Ok(endpoint.pool().clone()),
            Self::Subscribe(subscriber, _) => Ok(subscriber.pool().clone()),
            Self::Buffered(sender, _) => Ok(sender.pool().clone()),
            Self::PublishBuffered(publisher, _) => Ok(publisher.pool().clone()),
            _ => Err(self.cannot("have a pool")),
        }
    }

    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        match self {
            Self::Send(sender, _) => Ok(sender.flush()?),
            Self::Connectionless(endpoint, _) => Ok(endpoint.flush()?),
            Self::Buffered(sender, _) => {
                sender.flush();
                Ok(())
            }
            Self::PublishBuffered(publisher, _) => {
                publisher.flush();
                Ok(())
            }
            face => Err(face.cannot("flush")),
        }
    }
}

/// Has an endpoint append its events to an empty queue, whose memory is used again.
fn refill<E>(
    events: &mut VecDeque<E>,
    poll: impl FnOnce(&mut Vec<E>) -> Result<usize, Error>,
) -> Result<(), Failure> {
    let mut into = Vec::from(std::mem::take(events));
    let polled = poll(&mut into);
    *events = VecDeque::from(into);
    polled?;
    Ok(())
}
