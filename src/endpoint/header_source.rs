//! `HeaderSource`: where an endpoint's header slots come from, and the data that it registers
//! itself.

use std::fmt;
use std::sync::Arc;

use crate::Error;
use crate::buffer::{HeaderSlotConfig, HeaderSlotManager, ZeroCopyBufferManager};
use crate::fabric::Domain;
use crate::memory::{HeldRegistration, MemoryError};
use crate::process::Here;

/// Where an endpoint's header slots come from
/// ([`OutgoingSettings::headers`](crate::endpoint::OutgoingSettings::headers)). Each of the three
/// is made from what it holds.
#[derive(Clone)]
#[non_exhaustive]
pub enum HeaderSource {
    /// Slots of this endpoint's own.
    Own(HeaderSlotConfig),
    /// Slots shared with other endpoints of the same domain.
    Shared(HeaderSlotManager),
    /// Data and header slots in one: the endpoint registers the data with its domain as it opens,
    /// for as long as it lives, and takes its header slots from there. Both are shared with the
    /// other endpoints that use it.
    WithData(ZeroCopyBufferManager),
}

impl From<HeaderSlotConfig> for HeaderSource {
    fn from(slots: HeaderSlotConfig) -> Self {
        Self::Own(slots)
    }
}

impl From<&HeaderSlotManager> for HeaderSource {
    fn from(headers: &HeaderSlotManager) -> Self {
        Self::Shared(headers.clone())
    }
}

impl From<&ZeroCopyBufferManager> for HeaderSource {
    fn from(buffers: &ZeroCopyBufferManager) -> Self {
        Self::WithData(buffers.clone())
    }
}

impl fmt::Debug for HeaderSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(slots) => fmt::Debug::fmt(slots, f),
            Self::Shared(headers) => write!(f, "shared slots of {} bytes", headers.slot_size()),
            Self::WithData(buffers) => fmt::Debug::fmt(buffers, f),
        }
    }
}

impl HeaderSource {
    /// Slots of the endpoint's own, made when it is; or those that it shares.
    pub(crate) fn manager(&self) -> Result<HeaderSlotManager, MemoryError> {
        match self {
            Self::Own(config) => HeaderSlotManager::new(*config),
            Self::Shared(headers) => Ok(headers.clone()),
            Self::WithData(buffers) => Ok(buffers.headers().clone()),
        }
    }

    /// Registers the data that come with the slots, if any do, for as long as the answer lives.
    pub(crate) fn hold(
        &self,
        domain: &Arc<Domain>,
    ) -> Result<Option<Here<HeldRegistration>>, Error> {
        let Self::WithData(buffers) = self else {
            return Ok(None);
        };
        let domain = Arc::clone(domain);
        let held = HeldRegistration::new(buffers.region(), domain)?;
        Ok(Some(Here::new(held)))
    }
}
