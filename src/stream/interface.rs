//! `Interface`: what the endpoints of a sender or a receiver are opened over: a domain, or, in
//! tests of this crate, a net in memory.

use std::sync::Arc;

use crate::endpoint::duplex::{DuplexConfig, DuplexEndpoint};
use crate::fabric::EndpointKind;
use crate::{Domain, Error, PeerAddr, Region};

#[cfg(all(test, not(loom)))]
use super::rehearsal::TestMachine;

/// One network interface, for one side.
#[derive(Debug, Clone)]
pub(super) enum Interface {
    Domain(Arc<Domain>),
    /// An arm that no program has outside of these tests: a match costs nothing there.
    #[cfg(all(test, not(loom)))]
    Rehearsed(TestMachine),
}

impl From<&Arc<Domain>> for Interface {
    fn from(domain: &Arc<Domain>) -> Self {
        Self::Domain(Arc::clone(domain))
    }
}

impl Interface {
    /// Whether connections have endpoints of their own.
    pub(super) fn kind(&self) -> EndpointKind {
        match self {
            Self::Domain(domain) => domain.fabric().endpoint_kind(),
            #[cfg(all(test, not(loom)))]
            Self::Rehearsed(machine) => machine.kind(),
        }
    }

    /// Whether blocks go better by RMA write than by messages.
    pub(super) fn favours_writes(&self) -> bool {
        match self {
            Self::Domain(domain) => domain.fabric().provider().favours_writes,
            #[cfg(all(test, not(loom)))]
            Self::Rehearsed(_) => false,
        }
    }

    /// Whether what its connections cost is the processor's time, for copies, so that several
    /// threads move more than one.
    pub(super) fn copies(&self) -> bool {
        match self {
            Self::Domain(domain) => domain.fabric().provider().over_tcp,
            #[cfg(all(test, not(loom)))]
            Self::Rehearsed(_) => false,
        }
    }

    /// The same interface so many times, each with a domain of its own, as the thread of each is to
    /// meet no other's locks. Fewer, where a process may have no more domains and it `may_be_fewer`.
    pub(super) fn lanes(self, count: u32, may_be_fewer: bool) -> Result<Vec<Self>, Error> {
        let mut lanes = vec![self];
        while lanes.len() < count as usize {
            let more = match &lanes[0] {
                Self::Domain(domain) => domain.fabric().open_domain().map(Self::Domain),
                #[cfg(all(test, not(loom)))]
                Self::Rehearsed(machine) => Ok(Self::Rehearsed(machine.clone())),
            };
            match more {
                Ok(more) => lanes.push(more),
                Err(error) if may_be_fewer => {
                    tracing::debug!(%error, lanes = lanes.len(), "a stream has fewer threads");
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(lanes)
    }

    /// Its provider, and what that copies, in words.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Domain(domain) => {
                let report = domain.report();
                format!("{}: {}", report.provider, report.copies)
            }
            #[cfg(all(test, not(loom)))]
            Self::Rehearsed(_) => "a net in memory".to_owned(),
        }
    }

    /// Memory that blocks or messages are sent from.
    pub(super) fn register(&self, region: &Region) -> Result<(), Error> {
        match self {
            Self::Domain(domain) => Ok(region.register(domain)?),
            #[cfg(all(test, not(loom)))]
            Self::Rehearsed(machine) => Ok(region.register_with(machine.memory())?),
        }
    }

    /// An endpoint that takes connections.
    pub(super) fn listen(
        &self,
        addr: PeerAddr,
        config: &DuplexConfig,
    ) -> Result<DuplexEndpoint, Error> {
        match self {
            Self::Domain(domain) => DuplexEndpoint::listen(domain, addr, config),
            #[cfg(all(test, not(loom)))]
            Self::Rehearsed(machine) => machine.listen(config),
        }
    }

    /// One that only makes them.
    pub(super) fn dialing(&self, config: &DuplexConfig) -> Result<DuplexEndpoint, Error> {
        match self {
            Self::Domain(domain) => DuplexEndpoint::dialing(domain, config),
            #[cfg(all(test, not(loom)))]
            Self::Rehearsed(machine) => machine.dialing(config),
        }
    }
}

/// What several are called.
pub(super) fn describe<'a>(interfaces: impl Iterator<Item = &'a Interface>) -> String {
    let mut named: Vec<_> = interfaces.map(Interface::describe).collect();
    named.dedup();
    named.join(", ")
}
