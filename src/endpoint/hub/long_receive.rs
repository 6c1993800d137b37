//! Long messages at a receive endpoint. Where its senders' writes can be told to be over, each goes
//! straight into a buffer of a pool of their own, which its sender may write meanwhile; one in a
//! device's memory, where the provider writes there. Where they can't (`AccessEnds::WithEndpoint`),
//! it lands in memory that nobody else ever looks at, and is copied out of that as it is at one
//! moment; a connection has such a buffer for all its life, and nobody has it after that.
//!
//! The header of a message that lands in a device's memory lies there, too, in front of the
//! payload: it is copied out when the message is whole, and what arrived is flushed before.

use std::collections::VecDeque;
use std::sync::Arc;

use super::fencing::last_epoch;
use super::lateness::PATIENCE_MAX;
use super::long_buffer::{LongBuffer, Unread, take_header};
use super::long_pool::LongPool;
use super::{Hub, Peer, SubscriptionEvent};
use crate::buffer::{Buffer, BufferMut};
use crate::endpoint::delivery::DeviceMessage;
use crate::endpoint::event::ReceiveEvent;
use crate::endpoint::hub::event::{HubEvent, Tell};
use crate::endpoint::link::{Link, LinkConn};
use crate::endpoint::message::Message;
use crate::endpoint::windows::volatile_buffer::VolatileBuffer;
use crate::error::FabricErrno;
use crate::id::ConnectionId;
use crate::memory::{Access, RawRegistration, RegisterError, Registrar};
use crate::protocol::connection::CloseReason;
use crate::protocol::wire::{self, HeaderMode, PUBLICATION_LEN};

/// The long messages that one peer sends.
#[derive(Default)]
pub(super) struct LongArrivals {
    /// The message that the peer writes now.
    receive: Option<Box<LongReceive>>,
    /// Where the peer writes them, where each is copied out of there.
    own_window: Option<Box<LongWindow>>,
    /// A message that waits for a fence, and what came behind it.
    pub(super) held: Option<VecDeque<BehindFence>>,
}

impl LongArrivals {
    pub(super) fn has_window(&self) -> bool {
        self.own_window.is_some()
    }

    /// Takes the memory of the connection's own, unless a message is under way there.
    pub(super) fn take_idle_window(&mut self) -> Option<LongWindow> {
        match self.receive {
            None => self.own_window.take().map(|own| *own),
            Some(_) => None,
        }
    }

    /// The last epoch that something of them waits for.
    pub(super) fn last_epoch(&self) -> Option<u64> {
        last_epoch(self.held.as_ref()?)
    }
}

/// A destination that a peer may write now. Field order is drop order: the registration closes
/// before the memory goes.
pub(super) struct LongReceive {
    pub(super) registration: Option<RawRegistration>,
    pub(super) memory: LongBuffer,
    len: usize,
}

/// The memory that a peer writes all its long messages into, one after the other. Nothing keeps the
/// peer from writing there later.
pub(super) struct LongWindow {
    registration: RawRegistration,
    memory: Arc<VolatileBuffer>,
}

impl LongWindow {
    fn open(memory: Arc<VolatileBuffer>, registrar: &dyn Registrar) -> Result<Self, RegisterError> {
        let (base, len) = (memory.base(), memory.len());
        let registration = registrar.register_window(base, len, Access::WRITE)?;
        Ok(Self {
            registration,
            memory,
        })
    }

    pub(super) fn into_parts(self) -> (RawRegistration, Arc<VolatileBuffer>) {
        (self.registration, self.memory)
    }
}

/// A long message that is whole, and waits to be handed out.
pub(super) struct HeldLong {
    /// Its registration was closed before this epoch; 0: nobody else can write it.
    pub(super) epoch: u64,
    sequence: u64,
    pub(super) memory: LongBuffer,
    pub(super) len: usize,
    copied: bool,
}

impl HeldLong {
    /// It lies elsewhere now, where no peer can write.
    pub(super) fn on_copied(&mut self) {
        (self.epoch, self.copied) = (0, true);
    }
}

/// What waits for a fence, in the order in which it came.
pub(super) enum BehindFence {
    Long(HeldLong),
    /// What came behind one.
    Event(ReceiveEvent),
    Subscription(SubscriptionEvent),
}

/// A message whose turn may not have come yet (RDM form).
pub(super) enum Due<M> {
    Message(M),
    Long(LongBuffer, usize),
}

impl<L: Link, E: HubEvent> Hub<L, E> {
    /// The longest message that is taken, where long ones are.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn long_limit(&self) -> Option<u64> {
        let long = self.long.as_ref()?;
        Some(long.limit() as u64)
    }

    /// Free slots for long messages.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn long_free(&self) -> usize {
        self.long.as_ref().map_or(0, |long| long.pool.free_count())
    }

    /// Takes one of them.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn take_long_slot(&self) -> Option<BufferMut> {
        self.long.as_ref()?.acquire_host()
    }

    /// The peer has a message of `len` bytes.
    pub(super) fn on_long_offered(&mut self, id: ConnectionId, len: u64) {
        let Some(long) = &mut self.long else {
            // This side sends some, and takes none.
            return self.refuse_long(id, 0);
        };
        long.waiting.push_back((id, len));
        self.feed_long();
    }

    fn refuse_long(&mut self, id: ConnectionId, limit: u64) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.machine.refuse_long(limit);
            self.touch(id);
        }
    }

    /// Gives destinations to those who wait, as far as the pool goes.
    pub(super) fn feed_long(&mut self) {
        if !self.long.as_ref().is_some_and(LongPool::is_awaited)
            || self.fencing.lateness.is_starved()
        {
            return;
        }
        let cautious = self.fencing.lateness.is_cautious();
        let mut skipped = 0;
        while let Some(long) = &mut self.long
            && let Some(&(id, len)) = long.waiting.get(skipped)
        {
            let limit = long.limit() as u64;
            if len > limit {
                long.waiting.remove(skipped);
                self.refuse_long(id, limit);
                continue;
            }
            let apart = cautious && !long.goes_to_device(len as usize);
            if apart && !self.may_land(id) {
                skipped += 1;
                continue;
            }
            let Some(long) = &mut self.long else { return };
            let Some(memory) = long.acquire(len as usize) else {
                return;
            };
            long.waiting.remove(skipped);
            self.grant_long(id, memory, len as usize, apart);
        }
        if cautious {
            let again = (skipped > 0).then(|| self.timer.now() + PATIENCE_MAX);
            self.fencing.lateness.look_again(again);
            self.timer.on_deadline(again);
        }
    }

    /// Opens a destination for the peer: the memory, or, apart from it, some of the connection's
    /// own.
    fn grant_long(&mut self, id: ConnectionId, mut memory: LongBuffer, len: usize, apart: bool) {
        let rma = self.link.limits().rma;
        let virt = rma.is_some_and(|rma| rma.virtual_addresses);
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        let registrar = peer
            .link
            .registrar()
            .unwrap_or_else(|| self.link.registrar());
        let copies = self.long.as_ref().is_some_and(|long| long.copies);
        let own = match &mut self.long {
            Some(long) if copies || apart => open_own(&mut peer.long.own_window, long, registrar),
            _ => None,
        };
        let (registration, address, key) = match own {
            Some((address, key)) => (None, address, key),
            None if copies => return self.refuse_long(id, 0),
            None => {
                if let Some(own) = peer.long.take_idle_window() {
                    let (registration, memory) = own.into_parts();
                    self.exposed.keep(id, Some(registration), memory.into());
                }
                match memory.open(registrar, len, peer.header_mode) {
                    Ok((registration, address)) => {
                        let key = registration.key;
                        (Some(registration), address, key)
                    }
                    Err(error) => return self.cannot_open(id, memory, len, &error),
                }
            }
        };
        peer.machine.grant_long(if virt { address } else { 0 }, key);
        if let Some(long) = &self.long {
            let whole_by = long.settings.whole_by(self.timer.now(), len as u64);
            peer.machine.bound_long(whole_by);
        }
        peer.long.receive = Some(Box::new(LongReceive {
            registration,
            memory,
            len,
        }));
        self.touch(id);
    }

    /// A device's memory that the provider does not write: the host's is used from now on. Without
    /// that, the message is refused.
    fn cannot_open(
        &mut self,
        id: ConnectionId,
        memory: LongBuffer,
        len: usize,
        error: &RegisterError,
    ) {
        if let LongBuffer::Device(_) = memory
            && let Some(long) = &mut self.long
            && let Some(device) = &mut long.device
        {
            tracing::warn!(%error, "long messages do not go to the device's memory by themselves");
            device.refused = true;
            return long.waiting.push_front((id, len as u64));
        }
        tracing::warn!(%error, "a long message can't be taken");
        self.refuse_long(id, 0);
    }

    /// The peer says that its long message is whole, and that it writes no more.
    pub(super) fn on_long_whole(&mut self, id: ConnectionId, number: u64, events: &mut Vec<E>) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        let Some(long) = peer.long.receive.take() else {
            return;
        };
        let LongReceive {
            registration,
            mut memory,
            len,
        } = *long;
        drop(registration);
        let copied = peer.long.has_window();
        if let (Some(own), LongBuffer::Host(buffer)) = (&peer.long.own_window, &mut memory) {
            own.memory.copy_out(0, &mut buffer[..len]);
            match self.long.as_ref().is_some_and(|long| long.copies) {
                true => self.stats.long_copied.add(len as u64),
                false => self.stats.late_copied.add(len as u64),
            }
        }
        if self.shared.is_some() {
            return self.put_due(id, number as u32, Due::Long(memory, len), events);
        }
        let Ok(sequence) = peer.machine.on_long_data() else {
            self.exposed.keep(id, None, memory.into());
            return self.touch(id);
        };
        // It took no receive: its credit is free again.
        peer.count_reposted();
        // The peer says that it writes no more. That nothing of what it has begun goes on, on this
        // connection or on another one, the fence says.
        let epoch = if copied { None } else { self.exposed.begin() };
        let long = HeldLong {
            epoch: epoch.unwrap_or(0),
            sequence,
            memory,
            len,
            copied,
        };
        match epoch {
            None if peer.long.held.is_none() => self.finish_long(id, long, events),
            epoch => {
                let held = peer.long.held.get_or_insert_default();
                held.push_back(BehindFence::Long(long));
                peer.machine.hold_goodbye(true);
                if let Some(epoch) = epoch {
                    self.fencing.wait_for(epoch, id, self.timer.now());
                    self.timer.on_deadline(self.fencing.next_deadline());
                }
            }
        }
        self.touch(id);
    }

    /// Something for the application that came behind a long message, which comes first.
    #[cold]
    pub(super) fn hold(&mut self, id: ConnectionId, event: ReceiveEvent) {
        let held = self
            .peers
            .get_mut(id)
            .and_then(|peer| peer.long.held.as_mut());
        if let Some(held) = held {
            held.push_back(BehindFence::Event(event));
        }
    }

    /// An answer of the peer's to a subscription: behind the long messages that came before it.
    pub(super) fn tell_answer(&mut self, id: ConnectionId, answer: SubscriptionEvent) {
        let peer = self.peers.get_mut(id);
        match peer.and_then(|peer| peer.long.held.as_mut()) {
            Some(held) => held.push_back(BehindFence::Subscription(answer)),
            None => self.subscription_events.push((id, answer)),
        }
    }

    /// An epoch was passed that a long message of a connection waited for: it and what is behind it
    /// are handed out, up to the next one.
    pub(super) fn hand_out_held(&mut self, id: ConnectionId, events: &mut Vec<E>) {
        let peer = self.peers.get_mut(id);
        let Some(mut held) = peer.and_then(|peer| peer.long.held.take()) else {
            return self.hand_out_ended(id, events);
        };
        while let Some(next) = self.take_passed(&mut held) {
            match next {
                BehindFence::Event(event) => events.tell(event),
                BehindFence::Subscription(event) => self.subscription_events.push((id, event)),
                BehindFence::Long(long) => self.finish_long(id, long, events),
            }
        }
        let holds = self.holds_goodbye(&held);
        if let Some(peer) = self.peers.get_mut(id) {
            peer.machine.hold_goodbye(holds);
            peer.long.held = Some(held).filter(|held| !held.is_empty());
        }
        self.touch(id);
    }

    fn take_passed(&self, held: &mut VecDeque<BehindFence>) -> Option<BehindFence> {
        match held.front()? {
            BehindFence::Long(long) if !self.exposed.has_passed(long.epoch) => None,
            _ => held.pop_front(),
        }
    }

    /// The connection is over, and its endpoint closed: what is whole, and nobody else can reach,
    /// still arrived. The rest never did.
    pub(super) fn hand_out_last(
        &mut self,
        id: ConnectionId,
        held: Option<VecDeque<BehindFence>>,
        (mode, established): (HeaderMode, bool),
        events: &mut Vec<E>,
    ) {
        let Some(mut held) = held else { return };
        if established {
            // It has a reason to end already.
            let _ = self.hand_out_passed(id, mode, &mut held, events);
        }
        self.abandon_held(id, Some(held));
    }

    /// Hands out what waits no more, of a connection that is over; what the peer's bytes end it
    /// with.
    pub(super) fn hand_out_passed(
        &mut self,
        id: ConnectionId,
        mode: HeaderMode,
        held: &mut VecDeque<BehindFence>,
        events: &mut Vec<E>,
    ) -> Result<(), CloseReason> {
        while let Some(next) = self.take_passed(held) {
            match next {
                BehindFence::Event(event) => events.tell(event),
                BehindFence::Subscription(event) => self.subscription_events.push((id, event)),
                BehindFence::Long(long) => match self.long_event(id, mode, long) {
                    Ok(event) => events.tell(event),
                    Err(Unread::Header(error)) => return Err(CloseReason::Violation(error.into())),
                    Err(Unread::Cuda(error)) => {
                        tracing::error!(%error, "a message in a device's memory can't be read");
                        let errno = Some(FabricErrno::new(libc::EIO));
                        return Err(CloseReason::PeerLost { errno });
                    }
                },
            }
        }
        Ok(())
    }

    /// What waited for a fence never arrived. Its memory is free when others have passed the epoch.
    pub(super) fn abandon_held(&mut self, id: ConnectionId, held: Option<VecDeque<BehindFence>>) {
        for held in held.into_iter().flatten() {
            if let BehindFence::Long(long) = held {
                self.exposed.keep_until(id, long.epoch, long.memory.into());
            }
        }
    }

    /// RDM form: hands a long message out, in its turn.
    pub(super) fn hand_out_long(
        &mut self,
        id: ConnectionId,
        memory: LongBuffer,
        len: usize,
        events: &mut Vec<E>,
    ) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        if let Ok(sequence) = peer.machine.on_long_data() {
            // It took no receive: its credit is free again.
            peer.count_reposted();
            let long = HeldLong {
                epoch: 0,
                sequence,
                memory,
                len,
                copied: self.long.as_ref().is_some_and(|long| long.copies),
            };
            self.finish_long(id, long, events);
        }
        self.touch(id);
    }

    /// Nobody writes a long message any more: it goes to the application, if its bytes make sense.
    fn finish_long(&mut self, id: ConnectionId, long: HeldLong, events: &mut Vec<E>) {
        let Some(peer) = self.peers.get(id) else {
            return;
        };
        let (mode, established) = (peer.header_mode, peer.established);
        match self.long_event(id, mode, long) {
            Ok(event) => {
                if !established {
                    self.tell_established(id, events);
                }
                events.tell(event);
            }
            Err(unread) => {
                let Some(peer) = self.peers.get_mut(id) else {
                    return;
                };
                match unread {
                    Unread::Header(error) => peer.machine.violate(error),
                    Unread::Cuda(error) => {
                        tracing::error!(%error, "a message in a device's memory can't be read");
                        peer.machine.on_lost(Some(FabricErrno::new(libc::EIO)));
                    }
                }
            }
        }
    }

    /// The event of a long message, all of which lies in one memory.
    fn long_event(
        &mut self,
        id: ConnectionId,
        mode: HeaderMode,
        long: HeldLong,
    ) -> Result<ReceiveEvent, Unread> {
        let HeldLong {
            sequence,
            memory,
            len,
            copied,
            ..
        } = long;
        // The machine counts what came before.
        let number = sequence + 1;
        let event = match memory {
            LongBuffer::Host(buffer) => {
                let split = wire::split(mode, &buffer[..len]);
                let (header, _) = split.map_err(Unread::Header)?;
                let message = Message::new(id, number, header, buffer.freeze(len), None);
                ReceiveEvent::Message(message.with_copied(copied))
            }
            LongBuffer::Device(mut buffer) => {
                let Some(device) = self.long.as_ref().and_then(|long| long.device.as_ref()) else {
                    unreachable!("it landed in a buffer of that pool");
                };
                let mode = match (self.settings.publishing, mode) {
                    // What a publication has in front is for the host.
                    (true, HeaderMode::Raw) => HeaderMode::Fixed(PUBLICATION_LEN as u16),
                    _ => mode,
                };
                let header = take_header(&mut buffer, mode, &device.stream)?;
                ReceiveEvent::DeviceMessage(DeviceMessage::new(id, number, &header, buffer))
            }
        };
        self.stats.messages.add(1);
        self.stats.bytes.add(len as u64);
        Ok(event)
    }

    /// A whole message for the application, if its bytes make sense. `lone`: its header came before
    /// it, by itself.
    #[inline]
    pub(super) fn hand_out(
        &mut self,
        id: ConnectionId,
        sequence: u64,
        (buffer, len): (BufferMut, usize),
        lone: Option<Option<Buffer>>,
        events: &mut Vec<E>,
    ) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        let held = peer.long.held.is_some();
        let header = match &lone {
            Some(_) => 0..0,
            None => match wire::split(peer.header_mode, &buffer[..len]) {
                Ok((header, _)) => header,
                Err(error) => return peer.machine.violate(error),
            },
        };
        // The first message may come before the event queue says that the connection stands.
        if !peer.established {
            self.tell_established(id, events);
        }
        let lone_header = lone.flatten();
        let size = lone_header.as_ref().map_or(0, |header| header.len());
        self.stats.messages.add(1);
        self.stats.bytes.add((len + size) as u64);
        // The machine counts what came before.
        let number = sequence + 1;
        let message = Message::new(id, number, header, buffer.freeze(len), lone_header);
        let message = ReceiveEvent::Message(message);
        match held {
            false => events.tell(message),
            true => self.hold(id, message),
        }
    }

    /// The connection ends: nobody waits any more, and a destination that its peer may still write
    /// is kept until the domain's ledger releases it.
    pub(super) fn leave_long(&mut self, id: ConnectionId, peer: &mut Peer<L::Conn>) {
        if let Some(long) = &mut self.long {
            long.waiting.retain(|(waiting, _)| *waiting != id);
        }
        if let Some(own) = peer.long.own_window.take() {
            // Of what was granted, the rest is nobody's but this side's.
            drop(peer.long.receive.take());
            self.exposed
                .keep(id, Some(own.registration), own.memory.into());
        }
        if let Some(long) = peer.long.receive.take() {
            let LongReceive {
                registration,
                memory,
                ..
            } = *long;
            self.exposed.keep(id, registration, memory.into());
        }
    }
}

/// Opens the window of a connection that its long messages are written to, with the first of them.
/// Gives where it lies, and its key.
fn open_own(
    own: &mut Option<Box<LongWindow>>,
    long: &mut LongPool,
    registrar: &dyn Registrar,
) -> Option<(u64, u64)> {
    if own.is_none() {
        let Some(memory) = long.volatile_buffer() else {
            tracing::warn!(
                "a long message can't be taken: as many connections as may have sent some"
            );
            return None;
        };
        match LongWindow::open(memory, registrar) {
            Ok(opened) => *own = Some(Box::new(opened)),
            Err(error) => {
                tracing::warn!(%error, "a long message can't be taken");
                return None;
            }
        }
    }
    let own = own.as_ref()?;
    let address = own.memory.base().as_ptr().addr() as u64;
    Some((address, own.registration.key))
}
