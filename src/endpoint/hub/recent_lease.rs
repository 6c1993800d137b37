//! `RecentLease`: one lease for all sends in flight whose payload lies in the same region.
//!
//! A lease is an atomic count at the region, shared by all threads. Most endpoints send out of one
//! region, so the endpoint takes one lease for those sends together and counts them by itself. It
//! ends when none is in flight, so that a registration is not kept open by an endpoint that rests.

use std::ffi::c_void;
use std::sync::Arc;

use crate::endpoint::hub::control::HeldDescriptor;
use crate::memory::{Region, Scope};

/// The lease, and how many operations in flight live on it.
#[derive(Debug, Default)]
pub(crate) struct RecentLease {
    held: Option<HeldDescriptor>,
    uses: u32,
}

impl RecentLease {
    /// Counts an operation on a region and gives its descriptor; `None` when it needs a lease of
    /// its own, or is not registered.
    #[inline]
    pub(crate) fn begin(&mut self, region: &Arc<Region>, scope: Scope) -> Option<*mut c_void> {
        match &self.held {
            Some(held) if held.is_of(region, scope) => {
                if !region.is_registered(scope) {
                    return None;
                }
            }
            Some(_) if self.uses > 0 => return None,
            Some(_) | None => self.held = HeldDescriptor::lease(region, scope),
        }
        let desc = self.held.as_ref()?.desc();
        self.uses += 1;
        Some(desc)
    }

    /// An operation that `begin` counted is over.
    #[inline]
    pub(crate) fn end(&mut self) {
        debug_assert!(self.uses > 0, "an end without a begin");
        self.uses = self.uses.saturating_sub(1);
    }

    /// Ends the lease if no operation lives on it.
    #[inline]
    pub(crate) fn rest(&mut self) {
        if self.uses == 0 && self.held.is_some() {
            self.held = None;
        }
    }

    /// Keeps the registration open for ever: the provider may still use it.
    pub(crate) fn leak(&mut self) {
        if let Some(held) = &mut self.held {
            held.leak();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::Registrar;
    use crate::memory::fake::FakeRegistrar;

    fn region() -> Arc<Region> {
        Region::host(4096).build().unwrap()
    }

    #[test]
    fn the_registration_closes_when_the_last_operation_rests() {
        let domain = FakeRegistrar::new();
        let region = region();
        region.register_with(&domain).unwrap();
        let mut recent = RecentLease::default();
        let desc = recent.begin(&region, domain.scope()).unwrap();
        assert_eq!(recent.begin(&region, domain.scope()), Some(desc));
        region.deregister_from(domain.scope());
        assert_eq!(recent.begin(&region, domain.scope()), None, "no new ones");
        assert_eq!(domain.closed(), 0);
        recent.end();
        recent.rest();
        assert_eq!(domain.closed(), 0, "one is in flight");
        recent.end();
        recent.rest();
        assert_eq!(domain.closed(), 1);
        assert_eq!(Arc::strong_count(&region), 1, "and the region is let go");
    }

    #[test]
    fn another_region_waits_until_none_is_in_flight() {
        let domain = FakeRegistrar::new();
        let (a, b) = (region(), region());
        a.register_with(&domain).unwrap();
        b.register_with(&domain).unwrap();
        let mut recent = RecentLease::default();
        recent.begin(&a, domain.scope()).unwrap();
        assert_eq!(recent.begin(&b, domain.scope()), None);
        recent.end();
        assert!(recent.begin(&b, domain.scope()).is_some());
        a.deregister_from(domain.scope());
        assert_eq!(domain.closed(), 1, "its lease ended with the change");
    }

    #[test]
    fn a_region_that_is_not_registered_is_not_leased() {
        let domain = FakeRegistrar::new();
        let mut recent = RecentLease::default();
        assert_eq!(recent.begin(&region(), domain.scope()), None);
    }
}
