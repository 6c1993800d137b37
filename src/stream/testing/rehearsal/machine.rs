//! `TestMachine`: one machine at a net in memory, with all the links that a side opens there.

use std::sync::{Arc, Mutex, PoisonError};

use crate::endpoint::duplex::DuplexLink;
use crate::endpoint::duplex::{DuplexConfig, DuplexEndpoint};
use crate::endpoint::link::fake::{FakeMemory, FakeWait, Net, addr_of};
use crate::fabric::EndpointKind;
use crate::{Error, PeerAddr};

#[derive(Debug, Clone)]
pub(in crate::stream) struct TestMachine {
    net: Net,
    kind: EndpointKind,
    machine: Arc<FakeMemory>,
    links: Arc<Mutex<Vec<usize>>>,
}

impl TestMachine {
    pub(in crate::stream) fn new(net: &Net, kind: EndpointKind) -> Self {
        Self {
            net: net.clone(),
            kind,
            machine: net.machine(),
            links: Arc::default(),
        }
    }

    pub(in crate::stream) fn kind(&self) -> EndpointKind {
        self.kind
    }

    pub(in crate::stream) fn memory(&self) -> &FakeMemory {
        &self.machine
    }

    /// The links that are open here, the oldest first.
    pub(super) fn links(&self) -> Vec<usize> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|link| !self.net.is_gone(*link));
        links.clone()
    }

    fn link(&self, listens: bool) -> (DuplexLink, PeerAddr) {
        let link = self.net.link_of_machine(&self.machine, listens);
        let id = link.id();
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.push(id);
        (DuplexLink::Right(link), addr_of(id))
    }

    /// An endpoint that takes connections, at an address that follows from its link.
    pub(in crate::stream) fn listen(&self, config: &DuplexConfig) -> Result<DuplexEndpoint, Error> {
        let (link, addr) = self.link(true);
        DuplexEndpoint::over(link, Arc::new(FakeWait), Some(addr), config)
    }

    pub(in crate::stream) fn dialing(
        &self,
        config: &DuplexConfig,
    ) -> Result<DuplexEndpoint, Error> {
        let (link, _) = self.link(false);
        DuplexEndpoint::over(link, Arc::new(FakeWait), None, config)
    }
}
