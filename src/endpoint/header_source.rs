//! Where an endpoint's header slots come from: a setting that several endpoints have.

use crate::buffer::{HeaderSlotConfig, HeaderSlotManager};
use crate::memory::MemoryError;

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
