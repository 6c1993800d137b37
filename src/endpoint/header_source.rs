//! Where an endpoint's header slots come from, and the data that it registers itself: settings that
//! several endpoints have.

use std::sync::Arc;

use crate::buffer::{HeaderSlotConfig, HeaderSlotManager};
use crate::fabric::Domain;
use crate::memory::{HeldRegistration, MemoryError, Region, RegisterError};
use crate::process::Here;

/// Slots of the endpoint's own, or some that it shares with others.
pub(crate) enum HeaderSource {
    Own(HeaderSlotConfig),
    Shared(HeaderSlotManager),
}

impl HeaderSource {
    /// Slots of the endpoint's own, made when it is.
    pub(crate) fn manager(&self) -> Result<HeaderSlotManager, MemoryError> {
        match self {
            Self::Own(config) => HeaderSlotManager::new(*config),
            Self::Shared(headers) => Ok(headers.clone()),
        }
    }
}

/// Registers the region of a [`ZeroCopyBufferManager`](crate::buffer::ZeroCopyBufferManager) for as
/// long as the answer lives.
pub(crate) fn hold(
    data: Option<&Arc<Region>>,
    domain: &Arc<Domain>,
) -> Result<Option<Here<HeldRegistration>>, RegisterError> {
    let hold = |region| {
        let domain = Arc::clone(domain);
        HeldRegistration::new(region, domain).map(Here::new)
    };
    data.map(hold).transpose()
}
