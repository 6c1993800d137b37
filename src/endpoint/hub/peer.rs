//! `Peer`: what a hub keeps of one connection.

use std::sync::Arc;
use std::time::Instant;

use super::long_receive::LongArrivals;
use super::outbound::PeerOutbound;
use super::peer_controls::PeerControls;
use super::peer_receives::PeerReceives;
use super::shared::EarlyMessages;
use crate::buffer::{Buffer, BufferMut};
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
    pub(super) receives: PeerReceives,
    pub(super) controls: PeerControls,
    pub(super) liveness: PeerLiveness,
    pub(super) established: bool,
    /// This side made it.
    pub(super) dialed: bool,
    pub(super) header_mode: HeaderMode,
    /// A header that came by itself, and waits for its payload.
    pub(super) lone_header: Option<Box<Option<Buffer>>>,
    pub(super) outbound: PeerOutbound,
    /// In the RDM form.
    pub(super) early: Option<Box<EarlyMessages>>,
    pub(super) long: LongArrivals,
    pub(super) descriptors: Arc<Descriptors>,
    pub(super) scoped: ScopedRegistrations,
}

/// What a hub knows of the life of a peer, besides what its machine does.
pub(super) struct PeerLiveness {
    /// Its machine wants to be looked at some time.
    pub(super) timed: bool,
    /// In the list of connections that were heard since the last look at the clock.
    pub(super) heard: bool,
    kernel_bytes: KernelBytes,
    pub(super) kernel_watch: KernelWatch,
}

impl Default for PeerLiveness {
    fn default() -> Self {
        Self {
            timed: false,
            heard: false,
            kernel_bytes: KernelBytes::default(),
            kernel_watch: KernelWatch::NotAsked,
        }
    }
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
        match self.controls.have_unsent() {
            true => self.machine.next_urgent(),
            false => self.machine.next_action(),
        }
    }

    /// What waited and can be offered again; it is of no use any more when the connection is over.
    pub(super) fn take_unsent(&mut self) -> Option<Box<(u32, ControlBody)>> {
        let unsent = self.controls.take_unsent();
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

    /// Keeps a header that came by itself for its payload: two receives stand for a credit of such
    /// a peer.
    pub(super) fn keep_header(&mut self, buffer: BufferMut, len: usize) {
        let taken = self.machine.on_header(len as u64);
        **self.lone_header.get_or_insert_default() = taken.ok().map(|()| buffer.freeze(len));
    }

    /// Tells the machine of receives that can hold data messages again; the reserve is none of
    /// them.
    pub(super) fn count_reposted(&mut self) {
        let new = self.receives.cover(self.machine.received());
        if new > 0 {
            self.machine.on_reposted(new);
        }
    }
}

impl<C: LinkConn> Peer<C> {
    /// Before a silent peer is judged: part of a message may have come.
    pub(super) fn ask_kernel<L: Link<Conn = C>>(&mut self, link: &mut L) {
        if let Some(since) = self.machine.silent_since()
            && let Some(count) = link.bytes_received(&mut self.link)
            && self.liveness.kernel_bytes.came(since, count)
        {
            self.machine.on_bytes();
        }
    }

    /// Before a fence that is open is judged: what the peer began before it may be coming.
    pub(super) fn look_at_fence<L: Link<Conn = C>>(&mut self, link: &mut L, now: Instant) {
        if self.machine.is_fence_due(now) {
            let bytes = link.bytes_received(&mut self.link);
            self.machine.look_at_fence(now, bytes);
        }
    }
}
