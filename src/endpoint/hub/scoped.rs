//! `ScopedRegistrations`: registrations that belong to one endpoint, where the provider wants it so
//! (`FI_MR_ENDPOINT`).

use std::sync::Arc;

use crate::Error;
use crate::endpoint::hub::control::HeldDescriptor;
use crate::endpoint::link::LinkConn;
use crate::memory::RegisterError;
use crate::memory::{Region, Registrar, Scope};

/// The scope that a connection's registrations live in, and the regions that were registered for it
/// alone.
#[derive(Debug)]
pub(crate) struct ScopedRegistrations {
    /// The connection's own scope; `None` where the domain's serves all.
    own: Option<Scope>,
    domain: Scope,
    regions: Vec<Arc<Region>>,
}

impl ScopedRegistrations {
    pub(crate) fn new(conn: &impl LinkConn, domain: &dyn Registrar) -> Self {
        Self {
            own: conn.registrar().map(Registrar::scope),
            domain: domain.scope(),
            regions: Vec::new(),
        }
    }

    /// Where descriptors for this connection are found.
    #[inline]
    pub(crate) fn scope(&self) -> Scope {
        self.own.unwrap_or(self.domain)
    }

    /// Registers a region of our own for this connection, and holds its descriptor.
    pub(crate) fn hold(
        &mut self,
        region: &Arc<Region>,
        registrar: &dyn Registrar,
    ) -> Result<HeldDescriptor, Error> {
        self.register(region, registrar)?;
        HeldDescriptor::new(region, registrar)
    }

    /// True: the region is registered with the domain, and only this endpoint's own registration is
    /// missing.
    pub(crate) fn misses(&self, region: &Region) -> bool {
        self.own
            .is_some_and(|own| region.is_registered(self.domain) && !region.is_registered(own))
    }

    /// Registers a region for this connection.
    pub(crate) fn register(
        &mut self,
        region: &Arc<Region>,
        registrar: &dyn Registrar,
    ) -> Result<(), RegisterError> {
        region.register_with(registrar)?;
        if self.own.is_some() {
            self.regions.push(Arc::clone(region));
        }
        Ok(())
    }

    /// Leaves this connection's own registrations open for ever: the provider may still use them.
    pub(crate) fn leak(&mut self) {
        self.regions.drain(..).for_each(std::mem::forget);
    }

    /// Ends this connection's own registrations: each is closed as soon as nothing in flight uses
    /// it.
    pub(crate) fn close(&mut self) {
        if let Some(own) = self.own {
            for region in self.regions.drain(..) {
                region.deregister_from(own);
            }
        }
    }
}

impl Drop for ScopedRegistrations {
    fn drop(&mut self) {
        self.close();
    }
}
