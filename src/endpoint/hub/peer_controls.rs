//! `PeerControls`: control messages of one connection, one after the other.

use super::settings::CONTROLS_AT_ONCE;
use super::{Hub, Op};
use crate::endpoint::hub::control::post_control;
use crate::endpoint::hub::event::HubEvent;
use crate::endpoint::link::{Link, PostRefused};
use crate::error::FabricErrno;
use crate::id::ConnectionId;
use crate::protocol::connection::State;
use crate::protocol::wire::ControlBody;

/// The control messages of a connection that are on the way, and those that wait.
#[derive(Default)]
pub(super) struct PeerControls {
    /// In flight.
    posted: u32,
    /// One that waits: for the last one to be sent, or for room in the provider's full queue.
    unsent: Option<Box<(u32, ControlBody)>>,
}

impl PeerControls {
    /// Control messages in flight.
    pub(super) fn posted(&self) -> u32 {
        self.posted
    }

    /// As many are on the way as there are buffers for.
    fn are_full(&self) -> bool {
        self.posted >= CONTROLS_AT_ONCE
    }

    pub(super) fn on_posted(&mut self) {
        self.posted += 1;
    }

    pub(super) fn on_over(&mut self) {
        self.posted -= 1;
    }

    /// One waits.
    #[inline]
    pub(super) fn have_unsent(&self) -> bool {
        self.unsent.is_some()
    }

    fn wait(&mut self, cq_data: u32, body: &ControlBody) {
        self.unsent = Some(Box::new((cq_data, *body)));
    }

    pub(super) fn take_unsent(&mut self) -> Option<Box<(u32, ControlBody)>> {
        self.unsent.take()
    }
}

impl<L: Link, E: HubEvent> Hub<L, E> {
    pub(super) fn send_control(&mut self, id: ConnectionId, cq_data: u32, body: &ControlBody) {
        if let Some(peer) = self.peers.get_mut(id)
            && peer.controls.are_full()
            && peer.machine.state() != State::Closed
        {
            // Offered again when that is sent (`on_completion`).
            peer.controls.wait(cq_data, body);
            return;
        }
        let sent = self.try_send_control(id, cq_data, body);
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        match sent {
            Err(PostRefused::Again) if peer.machine.state() != State::Closed => {
                peer.controls.wait(cq_data, body);
                self.agenda.wait_for_room(id);
            }
            Err(PostRefused::Errno(errno)) => peer.machine.on_lost(Some(errno)),
            Ok(()) => peer.controls.on_posted(),
            Err(PostRefused::Again) => {}
        }
    }

    pub(super) fn try_send_control(
        &mut self,
        id: ConnectionId,
        cq_data: u32,
        body: &ControlBody,
    ) -> Result<(), PostRefused> {
        let Some(peer) = self.peers.get(id) else {
            return Err(PostRefused::Errno(FabricErrno::new(libc::ENOTCONN)));
        };
        post_control(
            &mut self.link,
            &peer.link,
            &mut self.in_flight,
            (&self.buffers.control, &peer.descriptors.control),
            (cq_data, body),
            |kind, _buffer| Op::ControlSend {
                connection: id,
                kind,
                _buffer,
            },
        )
    }
}
