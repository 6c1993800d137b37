//! `DeviceDelivery`: received messages whose payloads are copied to a GPU's memory before they are
//! handed out.
//!
//! ```text
//!  receive slot ─ message ─► waits for a device buffer ─► copy on a stream of the endpoint ─┐
//!                                            DeviceMessage; the slot is posted again ◄──────┘
//! ```
//!
//! With a stream of the caller's, the [`DeviceMessage`] comes at once, and that stream waits for
//! the copy.
//!
//! Without a free device buffer, messages wait; they hold their receive slots, and with them the
//! credits of their senders.
//!
//! A layer above whatever receives: [`MessageEvent`] is what it knows of the events there.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Error;
use crate::buffer::{DeviceBuffer, DeviceBufferManager, SharedBufferConfig, SharedBufferManager};
use crate::clock::Clock;
use crate::contain::say;
use crate::cuda::{CudaError, Event, Stream};
use crate::endpoint::hub::control::{CONTROL_RETRY, GATE_RETRY};
use crate::endpoint::limits::config;
use crate::endpoint::message::Message;
use crate::endpoint::staging::Pace;
use crate::id::ConnectionId;
use crate::memory::{MemoryError, Region};
use crate::stats;

/// Where an endpoint puts the payloads of messages: buffers in a GPU's memory. See
/// [`IncomingSettings::deliver_to`](crate::endpoint::IncomingSettings::deliver_to).
#[derive(Clone, Debug)]
pub struct DeviceDelivery {
    pool: DeviceBufferManager,
    stream: Option<Stream>,
}

impl DeviceDelivery {
    /// Into buffers of this pool, which have room for the endpoint's largest message; a message is
    /// handed out when its bytes are there.
    pub fn new(pool: DeviceBufferManager) -> Self {
        Self { pool, stream: None }
    }

    /// Hands messages out at once, and has this stream wait for their bytes: what is given to it
    /// from then on finds them. A buffer must not be dropped before the work with it is done: the
    /// next message is copied there.
    #[must_use]
    pub fn stream(mut self, stream: &Stream) -> Self {
        self.stream = Some(stream.clone());
        self
    }

    /// Whether its buffers are those of that pool.
    pub(crate) fn is_to(&self, pool: &DeviceBufferManager) -> bool {
        Arc::ptr_eq(self.pool.region(), pool.region())
    }

    /// Whether its buffers have room for messages of so many bytes.
    pub(crate) fn check(&self, largest: usize) -> Result<(), Error> {
        let size = self.pool.slot_size();
        if size < largest {
            let reason = "its buffers must have room for the largest message";
            return Err(config("deliver_to", size.to_string(), reason));
        }
        Ok(())
    }
}

/// A receive pool, where the caller gave none: pinned if messages are copied out of it to a GPU.
pub(crate) fn receive_pool(
    delivery: Option<&DeviceDelivery>,
    slots: u32,
    slot_size: usize,
) -> Result<SharedBufferManager, Error> {
    if delivery.is_none() {
        return Ok(SharedBufferManager::allocate(slots, slot_size)?);
    }
    let settings = SharedBufferConfig {
        slots: Some(slots),
        ..SharedBufferConfig::new(slot_size)
    };
    let region = Region::pinned(settings.region_bytes(slots)?).build()?;
    Ok(SharedBufferManager::new(region, settings)?)
}

/// An event of an endpoint, which may be a message.
pub(crate) trait MessageEvent: Sized {
    /// What it says of a message besides.
    type About;
    /// The message, if it is one.
    fn into_message(self) -> Result<(Message, Self::About), Self>;
    /// It came, and lies in the host's memory.
    fn message(message: Message, about: Self::About) -> Self;
    /// It came, and lies in a device's memory.
    fn delivered(message: DeviceMessage, about: Self::About) -> Self;
    /// It came, and could not be copied.
    fn undelivered(message: Message, error: CudaError, about: Self::About) -> Self;
    /// It keeps its place behind the messages that wait: it is about the end of something whose
    /// messages are told before, or a message that came into a GPU's memory by itself.
    fn comes_behind(&self) -> bool;
    /// It is the last event of a connection that [counts](crate::ReceiveEndpoint::connections)
    /// until it is told.
    fn is_end(&self) -> bool;
}

/// A received message whose payload is in a GPU's memory.
pub struct DeviceMessage {
    connection: ConnectionId,
    sequence: u64,
    header: Box<[u8]>,
    payload: DeviceBuffer,
}

impl DeviceMessage {
    /// The connection that it came by.
    pub fn connection(&self) -> ConnectionId {
        self.connection
    }

    /// Its number on that connection, counted from 1, without a gap: messages of every kind are
    /// counted, and a write with immediate data
    /// ([`WindowEvent::PeerWrote`](crate::endpoint::WindowEvent::PeerWrote)) takes a number, too,
    /// which no message has.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The header as it was sent, in the host's memory; empty with
    /// [`HeaderMode::Raw`](crate::endpoint::HeaderMode::Raw).
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// The payload.
    pub fn payload(&self) -> &DeviceBuffer {
        &self.payload
    }

    /// The payload, to keep or to send on.
    pub fn into_payload(self) -> DeviceBuffer {
        self.payload
    }
}

impl DeviceMessage {
    /// A message whose payload is there.
    pub(crate) fn new(
        connection: ConnectionId,
        sequence: u64,
        header: &[u8],
        payload: DeviceBuffer,
    ) -> Self {
        Self {
            connection,
            sequence,
            header: header.into(),
            payload,
        }
    }

    /// Cuts off what a layer of ours wrote in front of the header, which is so many bytes long.
    pub(crate) fn cut_front(&mut self, bytes: usize) {
        self.header = self.header[bytes..].into();
    }
}

impl fmt::Debug for DeviceMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMessage")
            .field("connection", &self.connection)
            .field("sequence", &self.sequence)
            .field("header_bytes", &self.header.len())
            .field("payload_bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// What waits between the core and the application.
pub(crate) struct Deliveries<E: MessageEvent> {
    settings: DeviceDelivery,
    /// Of the copies.
    stream: Stream,
    /// Events that have happened, to be used again: making one costs more than recording it.
    spare: Vec<Event>,
    /// In the order in which it came.
    queue: VecDeque<HeldBack<E>>,
    /// Handed out before their copies were done: what those need.
    in_flight: VecDeque<CopyInFlight>,
}

enum HeldBack<E: MessageEvent> {
    Message(Message, E::About),
    MessageCopy(MessageCopy, E::About),
    /// Of a connection whose messages are in front.
    Event(E),
    Nothing,
}

/// A message on its way to a device buffer.
struct MessageCopy {
    buffer: DeviceBuffer,
    in_flight: CopyInFlight,
}

impl MessageCopy {
    /// Begins the copy, behind which `waits` waits.
    fn begin(
        stream: &Stream,
        event: Option<Event>,
        waits: Option<&Stream>,
        message: Message,
        mut buffer: DeviceBuffer,
    ) -> Result<Self, Box<(Message, CudaError)>> {
        let bytes = message.payload();
        buffer.set_len(bytes.len());
        let from = NonNull::from(bytes).cast();
        let pace = Pace::of(bytes.len());
        let begun = match bytes.len() {
            0 => Ok(()),
            // SAFETY: the buffer has one owner and room for the bytes (`set_len` checked it); its
            // region and the message, which nobody writes to, stay until the copy has waited for
            // the copy.
            len => unsafe { stream.copy_to_device(buffer.address(), from, len) },
        };
        let recorded = begun.and_then(|()| {
            let event = match event {
                Some(event) => event,
                None => stream.event()?,
            };
            stream.record_in(&event).map(|()| event)
        });
        let waited = recorded.and_then(|event| match waits {
            Some(waits) => waits.wait_for(&event).map(|()| event),
            None => Ok(event),
        });
        match waited {
            Ok(event) => Ok(Self {
                in_flight: CopyInFlight {
                    event: Some(event),
                    pace,
                    region: Some(Arc::clone(buffer.region())),
                    message: Some(message),
                },
                buffer,
            }),
            Err(error) => {
                give_up(stream, buffer);
                // The slot is only read by a copy, and nobody writes there while the message lives.
                Err(Box::new((message, error)))
            }
        }
    }

    /// The message, with its payload where it is or will be, and what the copy needs until then.
    fn hand_out(self) -> (DeviceMessage, CopyInFlight) {
        let Some(message) = &self.in_flight.message else {
            unreachable!("taken by the drop only");
        };
        let message = DeviceMessage {
            connection: message.connection(),
            sequence: message.sequence(),
            header: message.header().into(),
            payload: self.buffer,
        };
        (message, self.in_flight)
    }

    /// The copy failed.
    fn fail(mut self) -> Message {
        self.in_flight.event = None;
        match self.in_flight.message.take() {
            Some(message) => message,
            None => unreachable!("taken by the drop only"),
        }
    }
}

/// Something failed behind the beginning of a copy: the buffer goes back when that is over.
fn give_up(stream: &Stream, buffer: DeviceBuffer) {
    if let Err(error) = stream.synchronize() {
        // Before anything is said of it.
        mem::forget(buffer);
        stats::count_leaked(1);
        say(|| tracing::error!(%error, "a device buffer is leaked: a copy may be under way"));
    }
}

/// A copy, and what it reads and writes.
struct CopyInFlight {
    event: Option<Event>,
    pace: Pace,
    /// Its slot is read.
    message: Option<Message>,
    region: Option<Arc<Region>>,
}

impl CopyInFlight {
    fn is_over(&mut self) -> Result<bool, CudaError> {
        if !self.pace.may_ask() {
            return Ok(false);
        }
        self.event.as_ref().map_or(Ok(true), Event::is_done)
    }
}

impl Drop for CopyInFlight {
    fn drop(&mut self) {
        // A copy is over in a moment, and until then its memory may not go back to its owners: so
        // this waits.
        let Some(event) = self.event.take() else {
            return;
        };
        if let Err(error) = event.synchronize() {
            mem::forget((self.message.take(), self.region.take()));
            stats::count_leaked(1);
            say(|| tracing::error!(%error, "a receive slot is leaked: a copy may be under way"));
        }
    }
}

impl<E: MessageEvent> fmt::Debug for Deliveries<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deliveries")
            .field("queued", &self.queue.len())
            .field("in_flight", &self.in_flight.len())
            .finish_non_exhaustive()
    }
}

impl<E: MessageEvent> Deliveries<E> {
    pub(crate) fn new(settings: DeviceDelivery) -> Result<Self, Error> {
        let region = settings.pool.region();
        let Some(device) = region.kind().device() else {
            return Err(Error::Config {
                field: "deliver_to",
                value: region.kind().to_string(),
                reason: "must be buffers in a GPU's memory",
            });
        };
        Ok(Self {
            stream: Stream::new(device).map_err(|source| MemoryError::Cuda {
                what: "a stream for received messages",
                source,
            })?,
            spare: Vec::new(),
            settings,
            queue: VecDeque::new(),
            in_flight: VecDeque::new(),
        })
    }

    /// Takes the messages out of what was said, from there on, and puts in those whose copies are
    /// done.
    pub(crate) fn pass(&mut self, events: &mut Vec<E>, from: usize) {
        if events.len() > from {
            let new: Vec<_> = events.drain(from..).collect();
            for event in new {
                match event.into_message() {
                    Ok((message, about)) => self.queue.push_back(HeldBack::Message(message, about)),
                    Err(event) if event.comes_behind() && !self.queue.is_empty() => {
                        self.queue.push_back(HeldBack::Event(event));
                    }
                    Err(event) => events.push(event),
                }
            }
        }
        while self
            .in_flight
            .front_mut()
            .is_some_and(|it| it.is_over() == Ok(true))
        {
            if let Some(mut in_flight) = self.in_flight.pop_front() {
                self.spare.extend(in_flight.event.take());
            }
        }
        self.begin();
        self.hand_out(events);
    }

    /// Begins the copies for which there are buffers.
    fn begin(&mut self) {
        let stream = self.settings.stream.as_ref();
        for held in &mut self.queue {
            if !matches!(held, HeldBack::Message(..)) {
                continue;
            }
            let Some(buffer) = self.settings.pool.try_acquire() else {
                return;
            };
            let HeldBack::Message(message, about) = mem::replace(held, HeldBack::Nothing) else {
                unreachable!("just looked at");
            };
            let event = self.spare.pop();
            *held = match MessageCopy::begin(&self.stream, event, stream, message, buffer) {
                Ok(copying) => HeldBack::MessageCopy(copying, about),
                Err(failed) => HeldBack::Event(E::undelivered(failed.0, failed.1, about)),
            };
        }
    }

    fn hand_out(&mut self, events: &mut Vec<E>) {
        while let Some(held) = self.queue.pop_front() {
            match held {
                HeldBack::Nothing => {}
                HeldBack::Message(..) => return self.queue.push_front(held),
                HeldBack::Event(event) => events.push(event),
                HeldBack::MessageCopy(copying, about) if self.settings.stream.is_some() => {
                    let (message, in_flight) = copying.hand_out();
                    events.push(E::delivered(message, about));
                    self.in_flight.push_back(in_flight);
                }
                HeldBack::MessageCopy(mut copying, about) => match copying.in_flight.is_over() {
                    Ok(false) => {
                        return self.queue.push_front(HeldBack::MessageCopy(copying, about));
                    }
                    Ok(true) => {
                        let (message, mut in_flight) = copying.hand_out();
                        self.spare.extend(in_flight.event.take());
                        events.push(E::delivered(message, about));
                    }
                    Err(error) => events.push(E::undelivered(copying.fail(), error, about)),
                },
            }
        }
    }

    /// When to look again, if something waits that tells nobody.
    pub(crate) fn next_look(&self, clock: &Clock) -> Option<Instant> {
        let copies = matches!(self.queue.front(), Some(HeldBack::MessageCopy(..)));
        let pause = match () {
            () if copies => GATE_RETRY,
            () if !self.queue.is_empty() || !self.in_flight.is_empty() => CONTROL_RETRY,
            () => return None,
        };
        Some(clock.now() + pause)
    }

    /// The endpoint is closed, and said this: what is under way is waited for, and what found no
    /// buffer by then comes as it is, in the host's memory.
    pub(crate) fn finish(mut self, events: &mut Vec<E>, clock: &Clock, deadline: Instant) {
        self.pass(events, 0);
        while !self.queue.is_empty() && clock.now() < deadline {
            std::thread::sleep(clock.sleep_for(Duration::from_micros(50)));
            self.pass(events, events.len());
        }
        for held in mem::take(&mut self.queue) {
            match held {
                HeldBack::Nothing => {}
                HeldBack::Message(message, about) => events.push(E::message(message, about)),
                HeldBack::Event(event) => events.push(event),
                HeldBack::MessageCopy(copying, about) => {
                    let (message, in_flight) = copying.hand_out();
                    // Which waits for it.
                    drop(in_flight);
                    events.push(E::delivered(message, about));
                }
            }
        }
    }
}
