//! `Peer`: what a hub keeps of one connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::long_receive::{BehindFence, LongReceive, OwnLanding};
use super::outbound::PeerOutbound;
use super::shared::EarlyMessages;
use crate::buffer::Buffer;
use crate::endpoint::hub::control::HeldDescriptor;
use crate::endpoint::hub::scoped::ScopedRegistrations;
use crate::endpoint::link::socket::KernelWatch;
use crate::endpoint::link::{Link, LinkConn};
use crate::protocol::connection::{Action, Connection, State};
use crate::protocol::liveness::KernelBytes;
use crate::protocol::wire::{ControlBody, HeaderMode};

/// The other end of one connection, and what this end keeps of it.
pub(super) struct Peer<C> {
    pub(super) machine: Connection,
    pub(super) link: C,
    /// Receives beyond the credits.
    pub(super) reserve: u32,
    /// Receives that a credit stands for.
    pub(super) per_credit: u32,
    /// Receives posted now; in the RDM form those of the shared ones that were promised to it.
    pub(super) posted: u32,
    /// Control messages in flight.
    pub(super) controls: u32,
    /// Receives that this connection should have posted.
    pub(super) target: u32,
    /// In the list of connections that want buffers.
    pub(super) hungry: bool,
    pub(super) starved: bool,
    pub(super) established: bool,
    /// This side made it.
    pub(super) dialed: bool,
    /// Its machine wants to be looked at some time.
    pub(super) timed: bool,
    /// In the list of connections that were heard since the last look at the clock.
    pub(super) heard: bool,
    pub(super) kernel_bytes: KernelBytes,
    pub(super) kernel_watch: KernelWatch,
    /// Data messages, from the first on, for which a receive was posted: those received, and those
    /// that may still come.
    pub(super) covered: u64,
    /// A control message that waits: for the last one to be sent, or for room in the provider's
    /// full queue.
    pub(super) unsent: Option<Box<(u32, ControlBody)>>,
    pub(super) header_mode: HeaderMode,
    /// A header that came by itself, and waits for its payload.
    pub(super) lone_header: Option<Box<Option<Buffer>>>,
    pub(super) outbound: PeerOutbound,
    /// In the RDM form.
    pub(super) early: Option<Box<EarlyMessages>>,
    /// The long message that the peer writes.
    pub(super) long: Option<Box<LongReceive>>,
    /// Where its long messages land, where each is copied out.
    pub(super) own_landing: Option<Box<OwnLanding>>,
    /// What comes behind a long message that waits for a fence, and that message.
    pub(super) held: Option<VecDeque<BehindFence>>,
    pub(super) descriptors: Arc<Descriptors>,
    pub(super) scoped: ScopedRegistrations,
}

/// Of the regions that connections receive into and send control messages from: those of the domain
/// serve all connections.
pub(super) struct Descriptors {
    pub(super) pool: HeldDescriptor,
    pub(super) control: HeldDescriptor,
}

impl<C> Peer<C> {
    /// While one control message waits there is no next one.
    pub(super) fn next_action(&mut self) -> Option<Action> {
        match self.unsent {
            Some(_) => self.machine.next_news(),
            None => self.machine.next_action(),
        }
    }

    /// What waited and can be offered again; it is of no use any more when the connection is over.
    pub(super) fn take_unsent(&mut self) -> Option<Box<(u32, ControlBody)>> {
        let unsent = self.unsent.take();
        unsent.filter(|_| self.machine.state() != State::Closed)
    }

    /// How the peer tells headers from payloads, as it said in its hello or its answer.
    pub(super) fn learn_header_mode(&mut self) {
        if let Some(hello) = self.machine.peer() {
            self.header_mode = hello.header_mode;
        }
    }

    /// When it wants to be looked at.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let bye = self.early.as_ref().and_then(|early| early.deadline());
        let machine = self.machine.next_deadline();
        [machine, bye].into_iter().flatten().min()
    }

    /// Data messages that the receives posted now can hold.
    pub(super) fn credits(&self) -> u32 {
        self.posted.saturating_sub(self.reserve) / self.per_credit
    }

    /// Tells the machine of receives that can hold data messages again; the reserve is none of
    /// them.
    pub(super) fn count_reposted(&mut self) {
        let covered = self.machine.received() + u64::from(self.credits());
        let new = covered.saturating_sub(self.covered);
        if new > 0 {
            self.covered = covered;
            self.machine.on_reposted(new);
        }
    }
}

impl<C: LinkConn> Peer<C> {
    /// Before a silent peer is judged: part of a message may have come.
    pub(super) fn ask_kernel<L: Link<Conn = C>>(&mut self, link: &mut L) {
        if let Some(since) = self.machine.silent_since()
            && let Some(count) = link.bytes_received(&mut self.link)
            && self.kernel_bytes.came(since, count)
        {
            self.machine.on_bytes();
        }
    }
}
