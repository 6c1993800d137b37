//! `ProviderLink`: the link over whichever kind of endpoint the fabric was opened with.

use std::sync::Arc;

use libfabric_sys as sys;

use crate::Error;
use crate::endpoint::link::either::Either;
use crate::endpoint::link::fabric::{FabricConn, FabricLink};
use crate::endpoint::link::queue_sizes::QueueSizes;
use crate::endpoint::link::rdm::{RdmConn, RdmLink};
use crate::endpoint::link::wait::LinkWait;
use crate::fabric::{Domain, EndpointKind, EndpointSettings, PeerAddr};

/// FI_EP_MSG on the left, FI_EP_RDM on the right.
pub(crate) type ProviderLink = Either<FabricLink, RdmLink>;

/// A connection of either kind.
pub(crate) type ProviderConn = Either<FabricConn, RdmConn>;

impl ProviderLink {
    /// A link for connections that this side makes, one after the other.
    pub(crate) fn open(
        domain: &Arc<Domain>,
        sizes: QueueSizes,
        settings: &EndpointSettings,
    ) -> Result<Self, Error> {
        let (tx, rx) = sizes.total;
        match domain.fabric().endpoint_kind() {
            EndpointKind::Msg => FabricLink::open(domain, sizes, settings).map(Self::Left),
            EndpointKind::Rdm => RdmLink::open(domain, tx, rx, settings).map(Self::Right),
        }
    }

    /// A link for many connections that this side makes.
    pub(crate) fn dial(
        domain: &Arc<Domain>,
        sizes: QueueSizes,
        settings: &EndpointSettings,
    ) -> Result<Self, Error> {
        let (tx, rx) = sizes.total;
        match domain.fabric().endpoint_kind() {
            EndpointKind::Msg => FabricLink::open(domain, sizes, settings).map(Self::Left),
            EndpointKind::Rdm => RdmLink::dial(domain, tx, rx, settings).map(Self::Right),
        }
    }

    /// A link that listens.
    pub(crate) fn listen(
        domain: &Arc<Domain>,
        addr: &PeerAddr,
        sizes: QueueSizes,
        settings: &EndpointSettings,
    ) -> Result<Self, Error> {
        let (tx, rx) = sizes.total;
        match domain.fabric().endpoint_kind() {
            EndpointKind::Msg => FabricLink::listen(domain, addr, sizes, settings).map(Self::Left),
            EndpointKind::Rdm => RdmLink::listen(domain, addr, tx, rx, settings).map(Self::Right),
        }
    }

    /// Where it listens.
    pub(crate) fn local_addr(&self) -> Option<PeerAddr> {
        match self {
            Self::Left(link) => link.local_addr(),
            Self::Right(link) => Some(link.local_addr()),
        }
    }

    /// What a sleeping thread watches.
    pub(crate) fn waiter(&self) -> Arc<dyn LinkWait> {
        match self {
            Self::Left(link) => link.waiter(),
            Self::Right(link) => link.waiter(),
        }
    }
}

impl ProviderConn {
    pub(crate) fn as_raw(&self) -> Option<*mut sys::fid_ep> {
        match self {
            Self::Left(conn) => conn.as_raw(),
            Self::Right(conn) => conn.as_raw(),
        }
    }
}
