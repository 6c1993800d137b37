//! A registrar without libfabric: counts what is open.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{Access, DeviceRange, RawRegistration, RegisterError, Registrar, Scope, ScopeGuard};

/// Registers by counting; keys count up from 1, descriptors are keys as addresses.
pub(crate) struct FakeRegistrar {
    guard: Arc<ScopeGuard>,
    counts: Arc<Counts>,
    pub(crate) refuse: AtomicBool,
}

#[derive(Default)]
struct Counts {
    opened: AtomicUsize,
    closed: AtomicUsize,
}

struct FakeMr {
    counts: Arc<Counts>,
    _domain: Arc<ScopeGuard>,
}

impl Drop for FakeMr {
    fn drop(&mut self) {
        self.counts.closed.fetch_add(1, Ordering::SeqCst);
    }
}

impl FakeRegistrar {
    pub(crate) fn new() -> Self {
        let guard =
            Scope::allocate().expect("fewer than 64 scopes in the tests that run at a time");
        Self {
            guard: Arc::new(guard),
            counts: Arc::default(),
            refuse: AtomicBool::new(false),
        }
    }

    pub(crate) fn opened(&self) -> usize {
        self.counts.opened.load(Ordering::SeqCst)
    }

    pub(crate) fn closed(&self) -> usize {
        self.counts.closed.load(Ordering::SeqCst)
    }
}

impl Registrar for FakeRegistrar {
    fn scope(&self) -> Scope {
        self.guard.scope()
    }

    fn register_device(
        &self,
        memory: &DeviceRange,
        rights: Option<Access>,
    ) -> Result<RawRegistration, RegisterError> {
        let reason: Arc<str> = "a fake reaches no device".into();
        match rights {
            None => Ok(RawRegistration::staged(
                reason,
                Box::new(Arc::clone(&self.guard)),
            )),
            Some(_) => Err(RegisterError::Device {
                kind: memory.kind(),
                reason,
            }),
        }
    }

    fn register(&self, _base: NonNull<u8>, len: usize) -> Result<RawRegistration, RegisterError> {
        if self.refuse.load(Ordering::SeqCst) {
            return Err(RegisterError::MemLock {
                limit_bytes: 1,
                asked_bytes: len as u64,
            });
        }
        let key = self.counts.opened.fetch_add(1, Ordering::SeqCst) as u64 + 1;
        let handle = Box::new(FakeMr {
            counts: Arc::clone(&self.counts),
            _domain: Arc::clone(&self.guard),
        });
        let desc = std::ptr::without_provenance_mut::<c_void>(key as usize);
        Ok(RawRegistration::new(desc, key, handle))
    }
}
