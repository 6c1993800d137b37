//! `OpenHook`: what stands in for `fi_endpoint` in tests that want it to take long, or to fail.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libfabric_sys as sys;

use super::Domain;

type Open = unsafe extern "C" fn(
    *mut sys::fid_domain,
    *mut sys::fi_info,
    *mut *mut sys::fid_ep,
    *mut c_void,
) -> c_int;
type Call = dyn Fn(&sys::fi_info) -> c_int + Send + Sync;

/// By the domain's address.
static HOOKS: Mutex<BTreeMap<usize, (Open, Arc<Call>)>> = Mutex::new(BTreeMap::new());

fn hooks() -> MutexGuard<'static, BTreeMap<usize, (Open, Arc<Call>)>> {
    HOOKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Until it is dropped, the domain's `fi_endpoint` calls something first, which may refuse.
pub(crate) struct OpenHook {
    domain: Arc<Domain>,
    table: *mut sys::fi_ops_domain,
}

impl OpenHook {
    /// `call` answers as `fi_endpoint` does: 0, and an endpoint is opened, or an error. Nothing may be opening one just now.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        call: impl Fn(&sys::fi_info) -> c_int + Send + Sync + 'static,
    ) -> Self {
        let raw = domain.as_ptr();
        // SAFETY: the domain is open.
        let table = unsafe { (*raw).ops };
        // SAFETY: tables of operations begin with their length.
        let bytes = unsafe { table.cast::<usize>().read() };
        let words = bytes.max(size_of::<sys::fi_ops_domain>()).div_ceil(8);
        // For ever: somebody may be in it when the hook goes.
        let copy = Box::leak(vec![0u64; words].into_boxed_slice()).as_mut_ptr();
        // SAFETY: both have so many bytes, and the copy was just made.
        unsafe {
            copy.cast::<u8>()
                .copy_from_nonoverlapping(table.cast(), bytes)
        };
        let copy = copy.cast::<sys::fi_ops_domain>();
        // SAFETY: a copy of the whole table, which nobody else knows.
        let open = unsafe { (*copy).endpoint.replace(open_endpoint) };
        let open = open.expect("a provider opens endpoints");
        hooks().insert(raw as usize, (open, Arc::new(call)));
        // SAFETY: as above; the caller says that nobody reads it.
        unsafe { (*raw).ops = copy };
        Self {
            domain: Arc::clone(domain),
            table,
        }
    }
}

impl Drop for OpenHook {
    fn drop(&mut self) {
        let raw = self.domain.as_ptr();
        // SAFETY: the domain is open, and this is the table that it had.
        unsafe { (*raw).ops = self.table };
        hooks().remove(&(raw as usize));
    }
}

unsafe extern "C" fn open_endpoint(
    domain: *mut sys::fid_domain,
    info: *mut sys::fi_info,
    ep: *mut *mut sys::fid_ep,
    context: *mut c_void,
) -> c_int {
    let (open, call) = hooks().get(&(domain as usize)).expect("hooked").clone();
    // SAFETY: whoever calls fi_endpoint gives an info.
    match call(unsafe { &*info }) {
        // SAFETY: the arguments of this call.
        0 => unsafe { open(domain, info, ep, context) },
        refused => refused,
    }
}
