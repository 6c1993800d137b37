//! `HeldRegistration`: keeps a region registered for as long as somebody needs it.

use std::fmt;
use std::sync::Arc;

use super::region::Region;
use super::registration::Registrar;
use crate::memory::RegisterError;

/// A region that is registered while this lives. Several may hold one: the first registers it, and
/// the last one ends that, unless the application [registered](Region::register) it, too.
/// Operations in flight keep the registration open beyond.
pub(crate) struct HeldRegistration {
    region: Arc<Region>,
    /// Kept, so that its scope is nobody else's until this is let go.
    registrar: Arc<dyn Registrar + Send + Sync>,
}

impl HeldRegistration {
    pub(crate) fn new(
        region: &Arc<Region>,
        registrar: Arc<dyn Registrar + Send + Sync>,
    ) -> Result<Self, RegisterError> {
        region.hold(&*registrar)?;
        Ok(Self {
            region: Arc::clone(region),
            registrar,
        })
    }
}

impl Drop for HeldRegistration {
    fn drop(&mut self) {
        self.region.let_go(self.registrar.scope());
    }
}

impl fmt::Debug for HeldRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldRegistration")
            .field("region", &self.region)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::memory::HugePages;
    use crate::memory::fake::FakeRegistrar;

    fn region() -> Arc<Region> {
        let region = Region::host(4096).huge_pages(HugePages::Never);
        region.build().unwrap()
    }

    #[test]
    fn the_first_registers_and_the_last_one_ends_it() {
        let (region, domain) = (region(), Arc::new(FakeRegistrar::new()));
        let hold = || HeldRegistration::new(&region, domain.clone());
        let (first, second) = (hold().unwrap(), hold().unwrap());
        assert_eq!((domain.opened(), domain.closed()), (1, 0));
        drop(first);
        assert!(region.is_registered(domain.scope()));
        drop(second);
        assert_eq!((domain.opened(), domain.closed()), (1, 1));
        // And anew; what is in flight keeps it open a little longer.
        let held = hold().unwrap();
        assert!(region.lease(domain.scope()).is_some());
        drop(held);
        assert!(region.lease(domain.scope()).is_none(), "no new ones");
        assert_eq!(domain.closed(), 1);
        // SAFETY: the one lease taken above.
        #[allow(unsafe_code)]
        unsafe {
            region.release(domain.scope())
        };
        assert_eq!((domain.opened(), domain.closed()), (2, 2));
    }

    #[test]
    fn what_the_application_registered_is_the_applications() {
        let (region, domain) = (region(), Arc::new(FakeRegistrar::new()));
        let hold = || HeldRegistration::new(&region, domain.clone());
        // Before, and while somebody holds it.
        region.register_with(&*domain).unwrap();
        drop(hold().unwrap());
        assert_eq!(domain.closed(), 0);
        region.deregister_from(domain.scope());
        assert_eq!(domain.closed(), 1);
        let held = hold().unwrap();
        region.register_with(&*domain).unwrap();
        drop(held);
        assert_eq!((domain.opened(), domain.closed()), (2, 1));
        // Ended by the application, whoever holds it; the next one that needs it registers it anew.
        let held = hold().unwrap();
        region.deregister_from(domain.scope());
        assert_eq!(domain.closed(), 2);
        let other = hold().unwrap();
        drop(held);
        assert!(region.is_registered(domain.scope()), "one holds it yet");
        drop(other);
        assert_eq!((domain.opened(), domain.closed()), (3, 3));
    }

    #[test]
    fn a_refusal_holds_nothing() {
        let (region, domain) = (region(), Arc::new(FakeRegistrar::new()));
        domain.refuse.store(true, Ordering::SeqCst);
        assert!(HeldRegistration::new(&region, domain.clone()).is_err());
        domain.refuse.store(false, Ordering::SeqCst);
        drop(HeldRegistration::new(&region, domain.clone()).unwrap());
        assert_eq!((domain.opened(), domain.closed()), (1, 1));
    }
}
