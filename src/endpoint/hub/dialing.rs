//! Connections that an endpoint with many connections makes itself, beside those that it accepts.
//!
//! From the hello-ack on there is no difference between the two.

use super::{Hub, Peer, Receives};
use crate::Error;
use crate::endpoint::event::{ConnectionEvent, ReceiveEvent};
use crate::endpoint::hub::conn_table::CONNECTIONS_MAX;
use crate::endpoint::hub::event::{HubEvent, Tell};
use crate::endpoint::link::{CmData, ConnKey, Link, LinkConn};
use crate::error::FabricErrno;
use crate::fabric::PeerAddr;
use crate::id::ConnectionId;
use crate::protocol::connection::{CloseReason, Connection, LocalParams};
use crate::protocol::wire::{self, Hello};

impl<L: Link, E: HubEvent> Hub<L, E> {
    /// Starts to connect to a peer; `Connected` or `Disconnected` of this connection follows.
    ///
    /// In the RDM form a peer takes a second connection from here for a new life of this endpoint,
    /// and gives the first one up.
    ///
    /// # Errors
    ///
    /// Nothing was begun: the endpoint closes or failed, has as many connections as it may have, or
    /// no receives for one more.
    pub(crate) fn dial(&mut self, addr: &PeerAddr) -> Result<ConnectionId, Error> {
        self.may_dial()?;
        let limit = CONNECTIONS_MAX;
        let id = self
            .peers
            .reserve()
            .ok_or(Error::TooManyConnections { limit })?;
        let made = self.make_dialed(id, addr);
        let peer = made.inspect_err(|_| drop(self.peers.remove(id)))?;
        self.directory.add(peer.link.key(), id);
        self.peers.put(id, peer);
        self.directory.dialed += 1;
        self.touch(id);
        // Its deadline comes before those that the timer knows; the next poll sends the hello.
        self.timer.forget();
        self.wait.wake();
        Ok(id)
    }

    /// Begins at once with what [`dial`](Self::dial) leaves to the next poll.
    pub(crate) fn begin(&mut self, events: &mut Vec<E>) {
        self.act_on_touched(events);
    }

    fn may_dial(&self) -> Result<(), Error> {
        self.state.may_connect()?;
        let limit = self.settings.max_connections;
        if self.peers.len() + self.cm.requests.len() >= limit as usize {
            return Err(Error::TooManyConnections { limit });
        }
        let (free, needed) = (self.free_receives(), self.dialed_receives().min as usize);
        if free < needed {
            return Err(Error::NoReceiveBuffers { free, needed });
        }
        Ok(())
    }

    fn make_dialed(
        &mut self,
        id: ConnectionId,
        addr: &PeerAddr,
    ) -> Result<Box<Peer<L::Conn>>, Error> {
        let link = self.link.prepare_connect(addr)?;
        let form = self.link.form();
        let params = self.dialing_params(0, link.key());
        let machine = Connection::initiate(form, params, self.timer.now());
        let mut peer = Box::new(self.make_conn(link, machine)?);
        let receives = self.dialed_receives();
        self.give_first_receives(&mut peer, id, receives);
        if peer.receives.posted < receives.min {
            return Err(self.give_up_dialed(id, peer));
        }
        peer.dialed = true;
        let credits = peer.receives.begin();
        let params = self.dialing_params(credits, peer.link.key());
        peer.machine = Connection::initiate(form, params, self.timer.now());
        Ok(peer)
    }

    /// Receives that a credit stands for on a connection that this side makes: before the peer has
    /// answered, it says so by itself.
    pub(super) fn per_credit_dialed(&self) -> u32 {
        1 + u32::from(self.outbound.has_two_messages())
    }

    fn dialed_receives(&self) -> Receives {
        self.buffers.receives.with(self.per_credit_dialed())
    }

    /// Headers travel alone on these where this side asks for it, and on no others: the peer has to
    /// agree before it knows how many receives a credit stands for.
    fn dialing_params(&self, credits: u32, key: ConnKey) -> LocalParams {
        let params = self.params(credits, key);
        if self.outbound.has_two_messages() {
            return params;
        }
        LocalParams {
            features: params.features & !wire::FEATURE_TWO_MESSAGES,
            ..params
        }
    }

    /// The provider takes no receives: the connection closes before it was begun.
    #[cold]
    fn give_up_dialed(&mut self, id: ConnectionId, mut peer: Box<Peer<L::Conn>>) -> Error {
        let error = Error::NoReceiveBuffers {
            free: peer.receives.posted as usize,
            needed: self.dialed_receives().min as usize,
        };
        peer.machine.abort(CloseReason::ClosedLocally);
        self.peers.put(id, peer);
        // It was never told of, so nothing is said of its end; the next poll has its receives back.
        self.close_conn(id, CloseReason::ClosedLocally, &mut Vec::new());
        self.wait.wake();
        error
    }

    pub(super) fn start_connecting(&mut self, id: ConnectionId, data: &[u8]) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        let Some(addr) = peer.link.peer() else { return };
        if let Err(error) = self.link.connect(&peer.link, &addr, data) {
            let errno = match error {
                Error::Fabric { errno, .. } => errno,
                _ => FabricErrno::new(libc::EIO),
            };
            peer.machine.on_refused(errno, &[]);
        }
    }

    /// RDM form: a peer says hello that another process had the address of, when this side
    /// connected there. That one is gone.
    pub(super) fn end_former_lives(&mut self, addr: Option<PeerAddr>, hello: &CmData) {
        let (true, Some(addr)) = (self.shared.is_some() && self.directory.dialed > 0, addr) else {
            return;
        };
        let Ok(hello) = Hello::parse(hello.as_slice()) else {
            return;
        };
        for (id, peer) in self.peers.iter_mut() {
            let former = |known: &Hello| known.incarnation != hello.incarnation;
            if peer.dialed
                && peer.link.peer() == Some(addr)
                && peer.machine.peer().is_some_and(former)
            {
                peer.machine.on_lost(None);
                self.agenda.touch(id);
            }
        }
    }

    /// A connection that this side made is over.
    pub(super) fn on_dialed_over(
        &mut self,
        id: ConnectionId,
        reason: CloseReason,
        established: bool,
        events: &mut Vec<E>,
    ) {
        self.directory.dialed -= 1;
        if !established {
            events.tell(ReceiveEvent::Connection(
                id,
                ConnectionEvent::Disconnected(reason),
            ));
        }
    }
}
