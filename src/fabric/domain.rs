//! `Domain`: what registrations and endpoints belong to (`fi_domain.3`).

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use libfabric_sys as sys;

use super::report::Report;
use super::resolver::Resolver;
use super::{Fabric, device_memory, handle, mr, registration_cache};
use crate::Error;
use crate::cuda::DeviceAllocation;
use crate::memory::{
    Access, AccessLedger, DeviceRange, DirectBy, MAX_SCOPES, RawRegistration, RegisterError,
    Registrar, Scope, ScopeGuard,
};

/// An opened domain. Endpoints and registrations keep it open.
///
/// A key of memory that peers may use is good over every connection of its domain, so the memory of
/// a window comes back, and a slot that a long message came in, when every connection of the domain
/// has answered a question that its endpoint asked (a fence), or is closed. That makes the
/// endpoints of a domain wait for one another: one that nobody polls asks nobody and hears nobody,
/// and holds up the revocations of all others for as long as it is neither polled nor closed; a
/// peer that is not polled holds them up until it answers, or its connection is closed
/// ([`fence_timeout`](crate::endpoint::ConnectionSettings::fence_timeout), by default 2 s). Long
/// messages are handed out as copies meanwhile ([`LongMessages`](crate::endpoint::LongMessages)).
/// So poll all of them, an idle one once in a while (an [`EventLoop`](crate::event_loop::EventLoop)
/// does: they wake whoever sleeps on them), and open a domain of its own ([`Fabric::open_domain`])
/// for an endpoint that is polled seldom. Nothing of this counts where no memory is exposed and no
/// long message comes, nor over verbs, whose cards look at the key of each packet.
pub struct Domain {
    raw: NonNull<sys::fid_domain>,
    /// Its place in every region's table of registrations; given back only after every registration
    /// is closed, because each of them holds this domain.
    scope: ScopeGuard,
    registrations: AtomicUsize,
    /// When memory that peers could reach by its keys is free.
    ledger: Arc<AccessLedger>,
    /// Completion queues with a descriptor to wait on, open now.
    wait_queues: AtomicUsize,
    /// Why libfabric caches its registrations, if it does.
    cached: Option<&'static str>,
    /// What came of transfers that tried a device's memory; once for each way.
    probes: Mutex<Vec<Probe>>,
    /// For providers that take their time to open an endpoint.
    resolver: Resolver,
    this: Weak<Self>,
    fabric: Arc<Fabric>,
}

// SAFETY: opened with FI_THREAD_SAFE (`builder::hints`), so any thread may call into it.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

type Probe = (DeviceAllocation, DirectBy, Result<(), String>);

/// So many may watch one descriptor in every kernel and at every depth that a loop of the
/// application's makes of it (500 do, at the first): below, a refusal has another reason.
const WATCHERS_FEW: usize = 50;

impl Domain {
    pub(super) fn open(fabric: &Arc<Fabric>) -> Result<Arc<Self>, Error> {
        let scope = Scope::allocate().ok_or(Error::TooManyDomains { limit: MAX_SCOPES })?;
        let mut raw = ptr::null_mut();
        let open = || {
            let info = fabric.info().as_ptr();
            // SAFETY: the fabric is open, the info is its own, `raw` is writable.
            unsafe { sys::fi_domain(fabric.as_ptr(), info, &raw mut raw, ptr::null_mut()) }
        };
        let library = fabric.info().library();
        let (rc, uncached) = registration_cache::without(library, fabric.provider(), open);
        let raw = NonNull::new(raw)
            .filter(|_| rc == 0)
            .ok_or_else(|| Error::fabric("fi_domain", rc))?;
        Ok(Arc::new_cyclic(|this| Self {
            raw,
            scope,
            registrations: AtomicUsize::new(0),
            ledger: AccessLedger::new(),
            wait_queues: AtomicUsize::new(0),
            cached: uncached.err(),
            probes: Mutex::default(),
            resolver: Resolver::default(),
            this: this.clone(),
            fabric: Arc::clone(fabric),
        }))
    }

    /// The fabric that it belongs to.
    pub fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }

    /// What was got: provider, versions, limits.
    pub fn report(&self) -> Report {
        self.fabric.report()
    }

    /// Registrations open now.
    pub fn registrations(&self) -> usize {
        self.registrations.load(Ordering::Relaxed)
    }

    /// The raw `fid_domain`.
    ///
    /// # Safety
    ///
    /// * It is valid while this value lives: keep the `Arc`.
    /// * It must not be closed, and nothing opened from it may outlive this value.
    pub unsafe fn as_raw(&self) -> *mut sys::fid_domain {
        self.as_ptr()
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::fid_domain {
        self.raw.as_ptr()
    }

    /// When memory that peers could reach by its keys is free.
    pub(crate) fn ledger(&self) -> &Arc<AccessLedger> {
        &self.ledger
    }

    /// Threads that open endpoints where that takes long.
    pub(crate) fn resolver(&self) -> &Resolver {
        &self.resolver
    }

    pub(super) fn count_registration(&self) -> Result<(), RegisterError> {
        let limit = self.fabric.settings().max_registrations;
        let add = |n: usize| (n < limit).then_some(n + 1);
        // A counter only: nothing is ordered by it.
        self.registrations
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .map(drop)
            .map_err(|_| RegisterError::DomainLimit { limit })
    }

    pub(super) fn count_registration_closed(&self) {
        self.registrations.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn count_wait_queue(&self) {
        self.wait_queues.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_wait_queue_closed(&self) {
        self.wait_queues.fetch_sub(1, Ordering::Relaxed);
    }

    /// What came of a transfer that tried a device's memory so; it is made once.
    pub(super) fn probed(
        &self,
        allocation: DeviceAllocation,
        by: DirectBy,
        probe: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        let known = |probes: &[Probe]| {
            let same = |probe: &&Probe| (probe.0, probe.1) == (allocation, by);
            probes.iter().find(same).map(|probe| probe.2.clone())
        };
        if let Some(result) = known(&lock(&self.probes)) {
            return result;
        }
        // Not under the lock: it may take seconds. Two threads may both try; the first to finish is
        // believed.
        let result = probe();
        let mut probes = lock(&self.probes);
        if let Some(result) = known(&probes) {
            return result;
        }
        probes.push((allocation, by, result.clone()));
        result
    }

    /// Says it, where a queue was refused because the kernel lets no more of them watch the
    /// domain's descriptor.
    pub(super) fn explain_refused(&self, error: Error) -> Error {
        // The one that was refused is open, too.
        let open = self.wait_queues.load(Ordering::Relaxed).saturating_sub(1);
        match error {
            Error::Fabric { errno, .. } if errno.get() == libc::EINVAL && open >= WATCHERS_FEW => {
                Error::TooManyEndpoints { open }
            }
            other => other,
        }
    }
}

impl Domain {
    /// No key for a peer where libfabric caches registrations.
    fn check_uncached(&self) -> Result<(), RegisterError> {
        self.cached
            .map_or(Ok(()), |reason| Err(RegisterError::Cached { reason }))
    }

    /// Itself, in the process that opened it.
    fn here(&self) -> Result<Arc<Self>, RegisterError> {
        let owner = self.fabric.owner();
        if !owner.is_here() {
            return Err(RegisterError::Forked {
                made_by: owner.pid(),
            });
        }
        let this = self.this.upgrade();
        Ok(this.expect("a domain that is borrowed is alive"))
    }
}

impl Registrar for Domain {
    fn scope(&self) -> Scope {
        self.scope.scope()
    }

    fn register(&self, base: NonNull<u8>, len: usize) -> Result<RawRegistration, RegisterError> {
        mr::register(&self.here()?, base, len)
    }

    fn register_device(
        &self,
        memory: &DeviceRange,
        rights: Option<Access>,
    ) -> Result<RawRegistration, RegisterError> {
        if rights.is_some() {
            self.check_uncached()?;
        }
        let offered = self.fabric.device_memory();
        device_memory::register(&self.here()?, offered, memory, rights)
    }

    fn register_window(
        &self,
        base: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<RawRegistration, RegisterError> {
        self.check_uncached()?;
        let this = self
            .this
            .upgrade()
            .expect("a domain that is borrowed is alive");
        mr::register_window(&this, base, len, access)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: registrations, queues and endpoints hold the domain by `Arc`, so none is left.
        let _ = unsafe { handle::close("domain", self.fabric.owner(), self.as_ptr().cast()) };
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain")
            .field("fabric", &self.fabric)
            .field("registrations", &self.registrations())
            .field("cached", &self.cached)
            .finish_non_exhaustive()
    }
}
