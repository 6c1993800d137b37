//! `ReceiveSlots`: the slots that the sender of one stream writes its blocks into, and which block
//! is in which.

use std::collections::HashMap;
use std::sync::Arc;

use super::side::ReceiverTools;
use crate::buffer::{BufferMut, SharedBufferManager};
use crate::endpoint::volatile_buffer::VolatileBuffer;
use crate::endpoint::{ConnectionId, LocalWindow, WindowError};
use crate::stream::StreamViolation;
use crate::stream::outbox::Outbox;
use crate::stream::slots::SlotGrants;
use crate::stream::wire::{Freed, Message, Window};

/// A slot, which is a window of its own: what memory of a lost peer can't come back goes slot by
/// slot.
#[derive(Debug)]
struct Slot {
    memory: Arc<VolatileBuffer>,
    /// Not revoked: it ends with its connection.
    _window: LocalWindow,
}

/// The slots of one stream, over all its connections.
#[derive(Debug, Default)]
pub(super) struct ReceiveSlots {
    /// Buffers that no connection has yet.
    spare: Vec<Arc<VolatileBuffer>>,
    /// The slots of each connection, by its number in the session.
    grants: HashMap<u16, SlotGrants<Slot>>,
    /// Where the blocks lie that are being checked and written.
    taken: HashMap<u64, (u16, u32)>,
}

impl ReceiveSlots {
    /// Memory for so many slots, or fewer, if there is not so much.
    pub(super) fn take(pool: &SharedBufferManager, slots: u32) -> Vec<BufferMut> {
        (0..slots).map_while(|_| pool.try_acquire()).collect()
    }

    pub(super) fn new(spare: Vec<Arc<VolatileBuffer>>) -> Self {
        Self {
            spare,
            ..Self::default()
        }
    }

    /// Slots for the next one of so many connections: what is left is for those that have none yet.
    pub(super) fn share(&self, rails: u16) -> usize {
        let waiting = usize::from(rails).saturating_sub(self.grants.len());
        self.spare.len().div_ceil(waiting.max(1))
    }

    /// Lets a sender write slots by one of its connections, and tells it which.
    ///
    /// # Errors
    ///
    /// Why it gets no more. What it does not get is there for its other connections.
    pub(super) fn grant(
        &mut self,
        (rail, stream, slots): (u16, u32, usize),
        outbox: &mut Outbox,
        mut expose: impl FnMut(Arc<VolatileBuffer>) -> Result<LocalWindow, WindowError>,
    ) -> Result<(), WindowError> {
        let grants = self.grants.entry(rail).or_default();
        for _ in 0..slots {
            let Some(memory) = self.spare.pop() else {
                break;
            };
            let window = match expose(Arc::clone(&memory)) {
                Ok(window) => window,
                Err(error) => {
                    self.spare.push(memory);
                    return Err(error);
                }
            };
            let descriptor = window.descriptor().to_bytes();
            let stride = memory.len() as u64;
            let first_slot = grants.grant(Slot {
                memory,
                _window: window,
            });
            outbox.push(&Message::Window(Window {
                stream,
                first_slot,
                slots: 1,
                stride,
                descriptor: &descriptor,
            }));
        }
        Ok(())
    }

    /// Lets a sender write slots by one of its connections: as many as its share.
    pub(super) fn grant_share(
        &mut self,
        (connection, number): (ConnectionId, u16),
        stream: u32,
        tools: &mut ReceiverTools,
    ) {
        let Some(rail) = tools.rails.get_mut(&connection) else {
            return;
        };
        let (network, port) = (&mut tools.network, rail.port);
        let expose = |memory| {
            let exposed = network.call(port, move |it| it.expose(connection, memory));
            exposed.unwrap_or(Err(WindowError::NotConnected))
        };
        let grant = (number, stream, self.share(rail.rails()));
        if let Err(error) = self.grant(grant, &mut rail.outbox, expose) {
            tracing::warn!(%error, "a stream's sender gets fewer slots to write into");
        }
    }

    /// Whether no connection has a slot.
    pub(super) fn has_none(&self) -> bool {
        self.grants.values().all(SlotGrants::is_empty)
    }

    /// The sender says that a block is in a slot.
    ///
    /// # Errors
    ///
    /// The slot is none of the connection's, or there is another block in it.
    pub(super) fn on_placed(
        &mut self,
        rail: u16,
        slot: u32,
    ) -> Result<Arc<VolatileBuffer>, StreamViolation> {
        let grants = self.grants.entry(rail).or_default();
        grants.take(slot).map(|slot| Arc::clone(&slot.memory))
    }

    /// The block in a slot is one that is to be written.
    pub(super) fn keep(&mut self, index: u64, rail: u16, slot: u32) {
        self.taken.insert(index, (rail, slot));
    }

    /// A block is dealt with: its slot, and what its sender is told by which connection.
    pub(super) fn on_done(&mut self, index: u64, stream: u32) -> Option<(u16, Message<'static>)> {
        let (rail, slot) = self.taken.remove(&index)?;
        self.free(rail, slot, stream)
    }

    /// A slot may be written again. None: its connection is gone.
    pub(super) fn free(
        &mut self,
        rail: u16,
        slot: u32,
        stream: u32,
    ) -> Option<(u16, Message<'static>)> {
        self.grants.get_mut(&rail)?.free(slot);
        Some((rail, Message::Freed(Freed { stream, slot })))
    }

    /// A connection is gone. Its memory goes when nobody can reach it and no block in it is being
    /// copied.
    pub(super) fn on_rail_gone(&mut self, rail: u16) {
        self.grants.remove(&rail);
        self.taken.retain(|_, (of, _)| *of != rail);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Fabric;
    use crate::endpoint::duplex::DuplexEndpoint;
    use crate::stream::SenderConfig;
    use crate::stream::sender::duplex;

    #[test]
    fn what_one_connection_can_not_have_is_there_for_the_others() {
        let fabric = Fabric::builder().provider("tcp").node("127.0.0.1").open();
        let domain = match fabric {
            Ok(fabric) => fabric.open_domain().expect("a domain"),
            Err(error) => return println!("SKIPPED: {error}"),
        };
        let pool = SharedBufferManager::allocate(4, 4096).expect("a pool");
        let memory = ReceiveSlots::take(&pool, 4);
        let memory = memory
            .into_iter()
            .map(|it| Arc::new(VolatileBuffer::new(it)));
        let mut slots = ReceiveSlots::new(memory.collect());
        let config = duplex(&(&domain).into(), &SenderConfig::default(), 1).expect("settings");
        let mut endpoint = DuplexEndpoint::dialing(&domain, &config).expect("an endpoint");
        // Nobody answers there, so nothing can be exposed to it.
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let to = nobody.local_addr().expect("an address").into();
        let connection = endpoint.dial(&to).expect("dialed");
        let mut outbox = Outbox::default();
        let expose = |memory| endpoint.expose(connection, memory);
        let granted = slots.grant((0, 1, 2), &mut outbox, expose);
        assert!(granted.is_err());
        assert_eq!((slots.spare.len(), outbox.len()), (4, 0));
        assert!(slots.has_none());
        assert_eq!(slots.share(2), 4);
    }
}
