//! `Posting`: what is posted on one connection, and all that this takes: the link, the connection,
//! and what all connections of its endpoint share.

use std::ffi::c_void;
use std::time::Instant;

use crate::buffer::{Leases, Payload};
use crate::endpoint::error::SendErrorKind;
use crate::endpoint::hub::leases;
use crate::endpoint::hub::outgoing::{self, Outgoing, PostingContext};
use crate::endpoint::hub::posted::Posted;
use crate::endpoint::hub::scoped::ScopedRegistrations;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::link::{Link, LinkConn};
use crate::endpoint::windows::destination::{Destination, DestinationRun, LeasedDestination};
use crate::fabric::Shape;
use crate::id::ConnectionId;
use crate::metrics::cell::Count;
use crate::protocol::connection::Connection;

/// What a line posts with: a connection, and what all connections of its endpoint share.
pub(crate) struct Posting<'a, L: Link> {
    pub(crate) link: &'a mut L,
    pub(crate) conn: &'a L::Conn,
    pub(crate) connection: ConnectionId,
    pub(crate) machine: &'a mut Connection,
    pub(crate) scoped: &'a mut ScopedRegistrations,
    /// The descriptor of the header slots, for this connection.
    pub(crate) header_desc: *mut c_void,
    pub(crate) outgoing: &'a mut Outgoing,
    pub(crate) posted: &'a mut Posted,
    /// Counts what the provider had no room for.
    pub(crate) eagain: &'a Count,
}

impl<L: Link> Posting<'_, L> {
    /// The header of a message in the slab, in the slab by itself, if it travels alone.
    #[inline]
    pub(super) fn begin_header(&mut self, payload: usize, iov: &mut IovList) -> Option<usize> {
        if self.outgoing.shape() != Shape::TwoMessages {
            return None;
        }
        let op = self.posted.data(payload)?;
        let header = self.outgoing.lone_header(op, self.header_desc, iov)?;
        Some(self.posted.begin_header(header, payload))
    }

    /// Makes sure that every segment is registered here, and stays so; true: by the lease that all
    /// share.
    #[inline]
    pub(crate) fn lease(
        &mut self,
        payload: &Payload,
        iov: &mut IovList,
    ) -> Result<(Leases, bool), SendErrorKind> {
        self.outgoing
            .lease(payload, Some(self.conn), self.scoped, iov)
    }

    /// Leases the destination of a read.
    #[inline]
    pub(crate) fn lease_destination(
        &mut self,
        into: Destination,
    ) -> Result<(LeasedDestination, DestinationRun, bool), (SendErrorKind, Destination)> {
        let scope = self.scoped.scope();
        if let Some(desc) = self.outgoing.lease_shared(into.region(), scope) {
            let (into, run) = into.leased_elsewhere(desc);
            return Ok((into, run, true));
        }
        match into.lease(scope) {
            Ok((into, run)) => Ok((into, run, false)),
            Err(into) => self.register_destination(into),
        }
    }

    /// For an endpoint that has registrations of its own, and meets the region for the first time.
    #[cold]
    fn register_destination(
        &mut self,
        into: Destination,
    ) -> Result<(LeasedDestination, DestinationRun, bool), (SendErrorKind, Destination)> {
        let registrar = self.conn.registrar();
        let Some(registrar) = registrar.filter(|_| self.scoped.misses(into.region())) else {
            return Err((leases::not_here(into.region(), 0), into));
        };
        if let Err(error) = self.scoped.register(into.region(), registrar) {
            return Err((error.into(), into));
        }
        match into.lease(self.scoped.scope()) {
            Ok((into, run)) => Ok((into, run, false)),
            Err(into) => Err((SendErrorKind::NotRegistered { segment: 0 }, into)),
        }
    }

    /// What a message is loaded by: what all connections share, and what is of this one. `posted`:
    /// when its deadline begins.
    #[inline]
    pub(super) fn loading<'a>(
        &'a mut self,
        posted: Option<Instant>,
        iov: &'a mut IovList,
    ) -> (
        &'a mut Outgoing,
        &'a mut Posted,
        PostingContext<'a, L::Conn>,
    ) {
        let context = PostingContext {
            connection: self.connection,
            conn: Some(self.conn),
            scoped: self.scoped,
            header_desc: self.header_desc,
            sequence: self.machine.sent(),
            posted,
            iov,
        };
        (self.outgoing, self.posted, context)
    }

    /// Takes the credit of a message that was admitted; its CQ data.
    pub(crate) fn take_credit(&mut self) -> Option<u64> {
        let number = self.machine.on_data_admitted();
        outgoing::data_of(self.machine, number)
    }
}
