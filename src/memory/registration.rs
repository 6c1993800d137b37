//! The registrations of one region: a fixed table, one entry for each scope, looked up without a
//! lock.
//!
//! An entry's state is one word, and who may touch the registration behind it follows from that
//! word:
//!
//! ```text
//!  EMPTY ── register ──► REGISTERED | leases ── deregister ──► REGISTERED | CLOSING | leases
//!    ▲                        │         ▲                            │            │
//!    │                        │         └──────── register again ────┘            │
//!    ├─ no leases: the caller ┘                                                   │
//!    └───────────────────────────────────── last release ─────────────────────────┘
//! ```
//!
//! An entry that is `STAGED` besides has no registration behind it, and is never leased.
//!
//! While `REGISTERED` is set and there are leases or no `CLOSING`, the registration is only read.
//! `CLOSING` without leases is reached by exactly one atomic step, and whoever made that step takes
//! the registration out; nobody leases or registers there meanwhile.

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64 as StdAtomicU64;

use super::Access;
use super::device::DeviceRange;
use super::path::{DirectBy, Path};
use crate::errno::FabricErrno;
use crate::memory::RegisterError;
use crate::sync::{AtomicU32, Mutex, Ordering, UnsafeCell, lock, yield_now};

/// How many scopes (open domains, and endpoints that need registrations of their own) a process has
/// at most.
pub(crate) const MAX_SCOPES: usize = 64;

const EMPTY: u32 = 0;
const REGISTERED: u32 = 1 << 31;
const CLOSING: u32 = 1 << 30;
/// There is no registration behind it: the bytes are copied through other memory. Never leased, so
/// that no provider gets the address.
const STAGED: u32 = 1 << 29;
/// Leases are counted in the bits below; a lease is refused above half of them, far from the flags.
const LEASES: u32 = STAGED - 1;
const LEASES_MAX: u32 = LEASES / 2;

/// Where a registration is valid: a domain, or an endpoint whose provider demands FI_MR_ENDPOINT
/// (`fi_mr.3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Scope(u32);

static SCOPES_TAKEN: StdAtomicU64 = StdAtomicU64::new(0);

impl Scope {
    /// A scope that nobody else in this process has while the guard lives; `None` when all
    /// [`MAX_SCOPES`] are taken.
    pub(crate) fn allocate() -> Option<ScopeGuard> {
        let mut taken = SCOPES_TAKEN.load(Ordering::Relaxed);
        loop {
            let free = taken.trailing_ones();
            if free as usize >= MAX_SCOPES {
                return None;
            }
            // Acquire pairs with the Release of the guard that freed this scope: its registrations
            // are gone for us too.
            match SCOPES_TAKEN.compare_exchange_weak(
                taken,
                taken | 1 << free,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(ScopeGuard { scope: Self(free) }),
                Err(now) => taken = now,
            }
        }
    }

    fn index(self) -> usize {
        self.0 as usize
    }
}

/// Holds a [`Scope`] until it is dropped; whatever a registration's handle keeps alive has to hold
/// it.
#[derive(Debug)]
pub(crate) struct ScopeGuard {
    scope: Scope,
}

impl ScopeGuard {
    pub(crate) fn scope(&self) -> Scope {
        self.scope
    }
}

impl Drop for ScopeGuard {
    fn drop(&mut self) {
        SCOPES_TAKEN.fetch_and(!(1 << self.scope.0), Ordering::Release);
    }
}

/// Who registers memory: a domain or an endpoint.
pub(crate) trait Registrar {
    /// Where its registrations are valid.
    fn scope(&self) -> Scope;
    /// Registers `len` bytes from `base`; the region outlives the returned handle.
    fn register(&self, base: NonNull<u8>, len: usize) -> Result<RawRegistration, RegisterError>;
    /// Registers memory of a device: for this side's operations, or for those of a peer (`rights`).
    /// The region outlives the returned handle.
    ///
    /// What can't be registered is staged, unless a peer is to reach it, or it was required.
    fn register_device(
        &self,
        memory: &DeviceRange,
        rights: Option<Access>,
    ) -> Result<RawRegistration, RegisterError> {
        let _ = rights;
        Err(RegisterError::Device {
            kind: memory.kind(),
            reason: "this provider is not asked for it".into(),
        })
    }
    /// Registers `len` bytes from `base` for one-sided operations of a peer, with a key of its own
    /// and these rights alone; the memory outlives the returned handle. Dropping that refuses new
    /// operations; it does not end those under way.
    fn register_window(
        &self,
        _base: NonNull<u8>,
        _len: usize,
        _access: Access,
    ) -> Result<RawRegistration, RegisterError> {
        Err(RegisterError::Fabric {
            call: "fi_mr_reg",
            errno: FabricErrno::new(libc::ENOSYS),
        })
    }
}

/// One registration. Dropping it closes it, once.
pub(crate) struct RawRegistration {
    /// What `fi_mr_desc` gave; only handed back to the provider.
    pub(crate) desc: *mut c_void,
    /// What `fi_mr_key` gave.
    pub(crate) key: u64,
    /// Which way the bytes go.
    path: Path,
    /// Owns the registration, and whatever that needs: its domain, and the guard of its scope.
    _handle: Box<dyn Any + Send + Sync>,
}

impl RawRegistration {
    pub(crate) fn new(desc: *mut c_void, key: u64, handle: Box<dyn Any + Send + Sync>) -> Self {
        Self {
            desc,
            key,
            path: Path::Host,
            _handle: handle,
        }
    }

    /// Which way the bytes go.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The provider reaches a device's memory by itself.
    pub(crate) fn direct(mut self, by: DirectBy) -> Self {
        self.path = Path::Direct(by);
        self
    }

    /// Keeps something until the registration was closed.
    pub(crate) fn keeping(self, kept: impl Any + Send + Sync) -> Self {
        Self {
            // Dropped in this order.
            _handle: Box::new((self._handle, kept)),
            ..self
        }
    }

    /// No registration: the bytes are copied through other memory, for that reason. `kept`: as a
    /// handle, it holds the guard of its scope, or the next one with that scope would be taken for
    /// this one.
    pub(crate) fn staged(why: Arc<str>, kept: Box<dyn Any + Send + Sync>) -> Self {
        Self {
            desc: std::ptr::null_mut(),
            key: 0,
            path: Path::Staged(why),
            _handle: kept,
        }
    }
}

// SAFETY: `desc` is a token that nobody here dereferences, and the provider is opened with
// FI_THREAD_SAFE; the handle is Send.
unsafe impl Send for RawRegistration {}
// SAFETY: as above; the handle is Sync.
unsafe impl Sync for RawRegistration {}

impl fmt::Debug for RawRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawRegistration")
            .field("desc", &self.desc)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// One scope's entry; on a cache line of its own, since each scope is used by another thread.
#[repr(align(64))]
pub(super) struct Entry {
    state: AtomicU32,
    cell: UnsafeCell<Option<RawRegistration>>,
}

// SAFETY: the cell is read only under a lease or by the state's exclusive owner, and written only
// by that owner (module text).
unsafe impl Sync for Entry {}
// SAFETY: `RawRegistration` is Send.
unsafe impl Send for Entry {}

impl Entry {
    pub(super) fn new() -> Self {
        Self {
            state: AtomicU32::new(EMPTY),
            cell: UnsafeCell::new(None),
        }
    }

    fn is_live(&self) -> bool {
        is_live(self.state.load(Ordering::Acquire))
    }

    /// Makes the entry live. The caller holds the table's lock, so that nobody else leaves EMPTY.
    fn register(
        &self,
        register: impl FnOnce() -> Result<RawRegistration, RegisterError>,
    ) -> Result<(), RegisterError> {
        loop {
            let state = self.state.load(Ordering::Acquire);
            if is_live(state) {
                return Ok(());
            }
            if state == EMPTY {
                break;
            }
            if state & LEASES == 0 {
                // Somebody is between the last release and EMPTY, a move of three words.
                yield_now();
                continue;
            }
            // Leases keep it registered: it only has to be let live.
            if self
                .state
                .compare_exchange(state, state & !CLOSING, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                return Ok(());
            }
        }
        let registration = register()?;
        let staged = if registration.path.is_staged() {
            STAGED
        } else {
            0
        };
        // SAFETY: the state is EMPTY and only the holder of the table's lock, the caller, leaves
        // it: nobody else touches the cell.
        self.cell
            .with_mut(|cell| unsafe { *cell = Some(registration) });
        // Release pairs with the Acquire of `lease`: who sees REGISTERED sees the cell.
        self.state.store(REGISTERED | staged, Ordering::Release);
        Ok(())
    }

    /// Refuses new leases; gives the registration when there is none left to wait for.
    #[must_use = "dropping it closes the registration, which must happen without the table's lock"]
    fn deregister(&self) -> Option<RawRegistration> {
        let mut state = self.state.load(Ordering::Acquire);
        while is_live(state) {
            match self.state.compare_exchange(
                state,
                state | CLOSING,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) if state & LEASES == 0 => return self.take(),
                Ok(_) => return None,
                Err(now) => state = now,
            }
        }
        None
    }

    /// Which way the bytes go, where it is live. The caller holds the table's lock.
    fn path(&self) -> Option<Path> {
        if !self.is_live() {
            return None;
        }
        // SAFETY: it is live, and only who holds the table's lock, the caller, makes it otherwise;
        // until then the cell is only read.
        self.cell
            .with(|cell| unsafe { (*cell).as_ref().map(|r| r.path.clone()) })
    }

    /// Counts a lease and gives the descriptor and the key, when live.
    fn lease(&self) -> Option<(*mut c_void, u64)> {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            if !is_leasable(state) || state & LEASES >= LEASES_MAX {
                return None;
            }
            match self.state.compare_exchange_weak(
                state,
                state + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => state = now,
            }
        }
        // SAFETY: the lease just counted keeps the cell from being written until it is released.
        let registration = self
            .cell
            .with(|cell| unsafe { (*cell).as_ref().map(|r| (r.desc, r.key)) });
        debug_assert!(
            registration.is_some(),
            "REGISTERED is set after the cell was written"
        );
        registration
    }

    /// Ends one lease; gives the registration when it was the last one of a deregistered entry.
    #[must_use = "dropping it closes the registration"]
    fn release(&self) -> Option<RawRegistration> {
        // Release: our use is over before whoever closes. Acquire: we may be the one, and the
        // others' uses are over.
        let before = self.state.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before & LEASES > 0, "released more often than leased");
        if before == REGISTERED | CLOSING | 1 {
            self.take()
        } else {
            None
        }
    }

    /// Takes the registration out. Only for whoever made the state `REGISTERED | CLOSING` without
    /// leases.
    fn take(&self) -> Option<RawRegistration> {
        // SAFETY: in that state nobody leases or registers, and only the caller made it so: it
        // alone touches the cell.
        let registration = self.cell.with_mut(|cell| unsafe { (*cell).take() });
        self.state.store(EMPTY, Ordering::Release);
        registration
    }
}

fn is_live(state: u32) -> bool {
    state & (REGISTERED | CLOSING) == REGISTERED
}

fn is_leasable(state: u32) -> bool {
    state & (REGISTERED | CLOSING | STAGED) == REGISTERED
}

/// Who wants a scope's registration. When nobody does any more, it ends.
#[derive(Clone, Copy, Default)]
struct Wanted {
    /// The application: it called for it, and did not take that back.
    called: bool,
    /// Those that need it while they live.
    holders: u32,
}

/// The registrations of a region.
pub(super) struct RegistrationTable {
    entries: Box<[Entry]>,
    /// Held while registering and while deciding to deregister; never by `lease` and `release`.
    control: Mutex<Box<[Wanted]>>,
}

impl RegistrationTable {
    pub(super) fn new() -> Self {
        Self {
            entries: (0..MAX_SCOPES).map(|_| Entry::new()).collect(),
            control: Mutex::new(vec![Wanted::default(); MAX_SCOPES].into_boxed_slice()),
        }
    }

    pub(super) fn register(
        &self,
        scope: Scope,
        register: impl FnOnce() -> Result<RawRegistration, RegisterError>,
    ) -> Result<(), RegisterError> {
        let mut wanted = lock(&self.control);
        self.entries[scope.index()].register(register)?;
        wanted[scope.index()].called = true;
        Ok(())
    }

    /// Registers for somebody who needs it until [`let_go`](Self::let_go), which each call has one
    /// of.
    pub(super) fn hold(
        &self,
        scope: Scope,
        register: impl FnOnce() -> Result<RawRegistration, RegisterError>,
    ) -> Result<(), RegisterError> {
        let mut wanted = lock(&self.control);
        self.entries[scope.index()].register(register)?;
        wanted[scope.index()].holders += 1;
        Ok(())
    }

    pub(super) fn let_go(&self, scope: Scope) {
        let registration = {
            let mut wanted = lock(&self.control);
            let wanted = &mut wanted[scope.index()];
            debug_assert!(wanted.holders > 0, "let go more often than held");
            wanted.holders = wanted.holders.saturating_sub(1);
            match (wanted.called, wanted.holders) {
                (false, 0) => self.entries[scope.index()].deregister(),
                _ => None,
            }
        };
        drop(registration);
    }

    pub(super) fn path(&self, scope: Scope) -> Option<Path> {
        let _control = lock(&self.control);
        self.entries[scope.index()].path()
    }

    pub(super) fn is_staged(&self, scope: Scope) -> bool {
        let state = self.entries[scope.index()].state.load(Ordering::Acquire);
        is_live(state) && state & STAGED != 0
    }

    pub(super) fn deregister(&self, scope: Scope) {
        let registration = {
            let mut wanted = lock(&self.control);
            wanted[scope.index()].called = false;
            self.entries[scope.index()].deregister()
        };
        drop(registration);
    }

    pub(super) fn lease(&self, scope: Scope) -> Option<(*mut c_void, u64)> {
        self.entries[scope.index()].lease()
    }

    pub(super) fn release(&self, scope: Scope) {
        drop(self.entries[scope.index()].release());
    }

    pub(super) fn is_registered(&self, scope: Scope) -> bool {
        self.entries[scope.index()].is_live()
    }

    pub(super) fn count(&self) -> usize {
        self.entries.iter().filter(|entry| entry.is_live()).count()
    }
}

#[cfg(test)]
#[path = "tests/registration.rs"]
mod tests;
