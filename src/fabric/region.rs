//! What a [`Region`] does with a [`Domain`]: memory knows none, it registers with whatever is a
//! `Registrar`.

use super::domain::Domain;
use crate::memory::{Path, Region, RegisterError, Registrar};

impl Region {
    /// Registers the region with a domain, so that endpoints of that domain can send from it, until
    /// [`deregister`](Self::deregister) or until the region goes. Again is fine, and does nothing.
    /// An endpoint that was given the region in a
    /// [`ZeroCopyBufferManager`](crate::buffer::ZeroCopyBufferManager) does it by itself, for as
    /// long as it lives.
    ///
    /// # Errors
    /// [`RegisterError`]: the domain's limit, the limit of lockable memory, or what the provider
    /// answers.
    pub fn register(&self, domain: &Domain) -> Result<(), RegisterError> {
        self.register_with(domain)
    }

    /// Ends the registration with a domain, also one that an endpoint made by itself. New sends are
    /// refused at once; operations in flight keep it open until they are done. Without a
    /// registration, it does nothing.
    pub fn deregister(&self, domain: &Domain) {
        self.deregister_from(domain.scope());
    }

    /// Which way the bytes go between the region and that domain's network; `None` where it is not
    /// registered with it.
    pub fn path(&self, domain: &Domain) -> Option<Path> {
        self.path_with(domain)
    }
}
