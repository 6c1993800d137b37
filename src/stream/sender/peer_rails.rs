//! `PeerRails`: the connections of one peer in a session.

use std::ops::{Deref, DerefMut};

use super::config::Peer;
use super::rail::{RailBlocks, SenderRail};
use super::side::{Route, SenderTools};
use crate::PeerAddr;
use crate::random::random_u64;
use crate::stream::handshake::DialSettings;
use crate::stream::rail::Rail;
use crate::stream::wire::{Features, Ports};
use crate::stream::{StreamError, StreamViolation, auth};

/// The connections of a session. It is used as a slice of them, in the order in which they were
/// dialed.
#[derive(Default)]
pub(super) struct PeerRails {
    rails: Vec<SenderRail>,
    session: [u8; 16],
    /// Rails that were dialed in this session.
    dialed: u16,
}

/// Which rail of which transfer is dialed, and of how many.
pub(super) struct RailDial<'a> {
    pub(super) transfer: u64,
    pub(super) peer: usize,
    pub(super) to: &'a Peer,
    /// At most, in all.
    pub(super) wanted: u16,
    pub(super) by_write: bool,
}

impl PeerRails {
    /// A new session begins. The connections of the last one have been left.
    pub(super) fn begin_session(&mut self) {
        let halves = [random_u64().to_le_bytes(), random_u64().to_le_bytes()];
        self.session = halves.concat().try_into().expect("twice 8 bytes are 16");
        self.dialed = 0;
    }

    /// Rails that were dialed in this session.
    pub(super) fn dialed(&self) -> u16 {
        self.dialed
    }

    /// Starts the next rail.
    ///
    /// # Errors
    /// It can't be dialed.
    pub(super) fn dial(
        &mut self,
        with: &RailDial<'_>,
        tools: &mut SenderTools,
    ) -> Result<(), StreamError> {
        let addrs = &with.to.addrs;
        let (number, lane) = self.next_place(addrs.len());
        let dialer = with.to.domain(number, tools.dialers.len());
        let addr = self.addr(addrs[number], (number, lane), addrs.len());
        let route = Route {
            transfer: with.transfer,
            peer: with.peer,
            rail: self.rails.len(),
        };
        let settings = DialSettings {
            session: self.session,
            rail: self.dialed,
            rails: with.wanted,
            features: Features::all(),
            key: tools.config.stream.key.clone(),
            nonce: auth::nonce()?,
            deadline: tools.now() + tools.config.stream.connect_timeout,
        };
        let dialed = tools.dial((dialer, lane), &addr, route)?;
        let mut rail = SenderRail::dialing(dialed, settings, tools.now(), RailBlocks::default());
        rail.local.slot_writer = with.by_write.then(Box::default);
        #[cfg(test)]
        rail.outbox.swallow(tools.config.swallow.clone());
        self.rails.push(rail);
        self.dialed += 1;
        Ok(())
    }

    /// Which of so many addresses the next rail is made to, and how many there are to it.
    fn next_place(&self, addrs: usize) -> (usize, usize) {
        let dialed = usize::from(self.dialed);
        (dialed % addrs, dialed / addrs)
    }

    /// Where a rail is dialed: at the peer's address, or at one of the ports beside it that the
    /// first rail to that address was told of, in turn.
    fn addr(&self, addr: PeerAddr, (number, lane): (usize, usize), addrs: usize) -> PeerAddr {
        let of_address = |rail: &&SenderRail| usize::from(rail.number) % addrs == number;
        let told = self.iter().filter(of_address).find_map(Rail::agreed);
        let told = told.map_or_else(Ports::default, |agreed| agreed.ports);
        let ports: Vec<_> = told.into_iter().filter(|port| *port != 0).collect();
        match (addr.socket_addr(), lane % (ports.len() + 1)) {
            (_, 0) | (None, _) => addr,
            (Some(mut at), beside) => {
                at.set_port(ports[beside - 1]);
                at.into()
            }
        }
    }

    /// How many threads the receiver has for connections to an address, as the first rail was
    /// told.
    pub(super) fn lanes(&self) -> usize {
        let told = self.iter().find_map(Rail::agreed);
        let ports = told.map_or_else(Ports::default, |agreed| agreed.ports);
        1 + ports.iter().filter(|port| **port != 0).count()
    }

    /// Whether both sides can do this, as the first rail was told.
    pub(super) fn first_can(&self, feature: Features) -> bool {
        self.first().is_some_and(|rail| rail.can(feature))
    }

    /// Whether each connection that is not gone is ready.
    pub(super) fn are_ready(&self) -> bool {
        self.iter().all(|rail| rail.is_ready() || rail.is_gone())
    }

    /// All connections are left.
    pub(super) fn leave(&mut self, politely: bool, tools: &mut SenderTools) {
        for mut rail in self.rails.drain(..) {
            tools.leave(&mut rail, politely);
        }
    }

    /// Where the rail of a number is.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn find(&self, number: u16) -> Result<usize, StreamViolation> {
        let found = self.iter().position(|rail| rail.number == number);
        let (what, value) = ("the number of a connection", number.into());
        found.ok_or(StreamViolation::Count { what, value })
    }

    /// Whether any has had its handshake, and is there.
    pub(super) fn any_ready(&self) -> bool {
        self.iter().any(SenderRail::is_ready)
    }

    /// Whether a block could be written into a slot.
    pub(super) fn any_slot(&self) -> bool {
        self.iter().any(SenderRail::has_slot)
    }

    /// Blocks on their way.
    pub(super) fn in_flight(&self) -> usize {
        self.iter().map(|rail| rail.local.in_flight).sum()
    }

    /// Blocks that were written, or are, and that the peer was not told of.
    pub(super) fn unplaced(&self) -> usize {
        self.iter().map(SenderRail::unplaced).sum()
    }

    /// The rail that has the most room for a block, if any has.
    pub(super) fn with_room(&mut self, depth: usize) -> Option<&mut SenderRail> {
        let able = self.iter_mut().filter(|rail| rail.may_send(depth));
        able.min_by_key(|rail| rail.local.in_flight)
    }
}

impl Deref for PeerRails {
    type Target = [SenderRail];

    fn deref(&self) -> &[SenderRail] {
        &self.rails
    }
}

impl DerefMut for PeerRails {
    fn deref_mut(&mut self) -> &mut [SenderRail] {
        &mut self.rails
    }
}
