//! `OpenHook`, `PassiveHook`: what stands in for `fi_endpoint` and `fi_passive_ep` in tests that
//! want them to take long, to fail, or to do something else.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libfabric_sys as sys;

use super::{Domain, Fabric};

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
    /// `call` answers as `fi_endpoint` does: 0, and an endpoint is opened, or an error. Nothing may
    /// be opening one just now.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        call: impl Fn(&sys::fi_info) -> c_int + Send + Sync + 'static,
    ) -> Self {
        let raw = domain.as_ptr();
        // SAFETY: the domain is open.
        let table = unsafe { (*raw).ops };
        // SAFETY: a table of the provider's.
        let copy = unsafe { copy_of(table) };
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

/// A copy of a table of operations. For ever: somebody may be in it when the hook goes.
///
/// # Safety
/// It begins with its length in bytes, as tables of libfabric do.
unsafe fn copy_of<T>(table: *mut T) -> *mut T {
    // SAFETY: the caller's promise.
    let bytes = unsafe { table.cast::<usize>().read() };
    let words = bytes.max(size_of::<T>()).div_ceil(8);
    let copy = Box::leak(vec![0u64; words].into_boxed_slice()).as_mut_ptr();
    // SAFETY: both have so many bytes, and the copy was just made.
    unsafe {
        copy.cast::<u8>()
            .copy_from_nonoverlapping(table.cast(), bytes)
    };
    copy.cast()
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

type Listen = unsafe extern "C" fn(
    *mut sys::fid_fabric,
    *mut sys::fi_info,
    *mut *mut sys::fid_pep,
    *mut c_void,
) -> c_int;

/// By the fabric's address.
static LISTENS: Mutex<BTreeMap<usize, Listen>> = Mutex::new(BTreeMap::new());

/// Until it is dropped, listeners of the fabric are made at any port, whatever is asked for.
pub(crate) struct PassiveHook {
    fabric: Arc<Fabric>,
    table: *mut sys::fi_ops_fabric,
}

impl PassiveHook {
    pub(crate) fn new(fabric: &Arc<Fabric>) -> Self {
        let raw = fabric.as_ptr();
        // SAFETY: the fabric is open.
        let table = unsafe { (*raw).ops };
        // SAFETY: a table of the provider's.
        let copy = unsafe { copy_of(table) };
        // SAFETY: a copy of the whole table, which nobody else knows.
        let listen = unsafe { (*copy).passive_ep.replace(listen_anywhere) };
        let listen = listen.expect("a provider listens");
        let mut listens = LISTENS.lock().unwrap_or_else(PoisonError::into_inner);
        listens.insert(raw as usize, listen);
        // SAFETY: as above; a test's own fabric, which nobody uses meanwhile.
        unsafe { (*raw).ops = copy };
        Self {
            fabric: Arc::clone(fabric),
            table,
        }
    }
}

impl Drop for PassiveHook {
    fn drop(&mut self) {
        let raw = self.fabric.as_ptr();
        // SAFETY: the fabric is open, and this is the table that it had.
        unsafe { (*raw).ops = self.table };
    }
}

unsafe extern "C" fn listen_anywhere(
    fabric: *mut sys::fid_fabric,
    info: *mut sys::fi_info,
    pep: *mut *mut sys::fid_pep,
    context: *mut c_void,
) -> c_int {
    let listens = LISTENS.lock().unwrap_or_else(PoisonError::into_inner);
    let listen = *listens.get(&(fabric as usize)).expect("hooked");
    drop(listens);
    // SAFETY: whoever calls fi_passive_ep gives an info.
    forget_port(unsafe { &*info });
    // SAFETY: the arguments of this call.
    unsafe { listen(fabric, info, pep, context) }
}

/// Any port will do.
pub(crate) fn forget_port(info: &sys::fi_info) {
    let addr = info.src_addr.cast::<libc::sockaddr_in>();
    assert_eq!(info.src_addrlen, size_of::<libc::sockaddr_in>());
    // SAFETY: an address of IPv4, as its length says, of an info that is the caller's alone.
    unsafe { (*addr).sin_port = 0 };
}
