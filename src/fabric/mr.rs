//! `Mr`: one registration of memory with a domain (`fi_mr.3`).

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libfabric_sys as sys;

use super::domain::Domain;
use super::handle;
use crate::errno::FabricErrno;
use crate::memory::{Access, RawRegistration, RegisterError};

/// Keys that we choose are unique in the process: a provider may refuse a second registration with
/// the same one.
static NEXT_KEY: AtomicU64 = AtomicU64::new(1);

/// How often another random key is tried where one is taken.
const KEY_ATTEMPTS: u32 = 8;

/// A registration. Dropping it closes it: nothing may be in flight on it (the region's table sees
/// to that).
struct Mr {
    raw: NonNull<sys::fid_mr>,
    domain: Arc<Domain>,
}

// SAFETY: the domain is opened with FI_THREAD_SAFE (`builder::hints`), so any thread may call into
// it; what libfabric leaves unguarded of that, `fabric::keys` guards (`open` and `drop`).
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Drop for Mr {
    fn drop(&mut self) {
        let guard = self.domain.fabric().keys().change();
        // SAFETY: the registration table drops this when the last lease ended, so no operation uses
        // it.
        let _ =
            unsafe { handle::close("mr", self.domain.fabric().owner(), self.raw.as_ptr().cast()) };
        drop(guard);
        self.domain.count_registration_closed();
    }
}

/// Registers `len` bytes from `base` for what this side does with them.
///
/// `base` is never null and `len` never 0 ([`crate::memory::Region`] guarantees both): some
/// providers take such a registration and crash later.
pub(super) fn register(
    domain: &Arc<Domain>,
    base: NonNull<u8>,
    len: usize,
) -> Result<RawRegistration, RegisterError> {
    let register = |access| {
        let key = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
        register_for(domain, base, len, access, key)
    };
    match register(own_access(domain)) {
        // Memory that nobody may write, as a file that was mapped for reading: a card can still
        // send it.
        Err(Refused::Code(rc)) if [-libc::EFAULT, -libc::EACCES].contains(&rc) => {
            register(sent_access(domain)).map_err(|_| Refused::Code(rc))
        }
        registered => registered,
    }
    .map_err(|refused| refused.explain("fi_mr_reg", len))
}

/// What this side does with its memory.
fn own_access(domain: &Domain) -> u64 {
    let mut access = sys::FI_SEND | sys::FI_RECV;
    if domain.fabric().rma().is_some() {
        // The local side of one-sided operations.
        access |= sys::FI_READ | sys::FI_WRITE;
    }
    access
}

/// The part of it that only reads the memory.
fn sent_access(domain: &Domain) -> u64 {
    own_access(domain) & (sys::FI_SEND | sys::FI_WRITE)
}

/// What a peer may do.
fn access_of(rights: Access) -> u64 {
    let mut access = 0;
    if rights.contains(Access::READ) {
        access |= sys::FI_REMOTE_READ;
    }
    if rights.contains(Access::WRITE) {
        access |= sys::FI_REMOTE_WRITE;
    }
    access
}

/// Registers `len` bytes from `base` for a peer, with a key that others can't guess.
///
/// A key is good for every endpoint of the domain: who guesses one can do what its peer may.
pub(super) fn register_window(
    domain: &Arc<Domain>,
    base: NonNull<u8>,
    len: usize,
    rights: Access,
) -> Result<RawRegistration, RegisterError> {
    let Some(rma) = domain.fabric().rma() else {
        return Err(RegisterError::Fabric {
            call: "fi_mr_reg",
            errno: FabricErrno::new(sys::FI_ENOSYS),
        });
    };
    let access = access_of(rights);
    let mut attempts = 0;
    loop {
        let key = random_key(rma.key_bytes);
        match register_for(domain, base, len, access, key) {
            // Somebody has that key already.
            Err(Refused::Code(rc)) if rc == -sys::FI_ENOKEY && attempts < KEY_ATTEMPTS => {
                attempts += 1;
            }
            registered => return registered.map_err(|refused| refused.explain("fi_mr_reg", len)),
        }
    }
}

/// A key of so many bytes; where the provider chooses keys, it does not look at it.
fn random_key(bytes: usize) -> u64 {
    let random = crate::random::random_u64();
    match bytes {
        0..8 => random & ((1 << (8 * bytes)) - 1),
        _ => random,
    }
}

/// Why there is no registration.
enum Refused {
    Limit(RegisterError),
    /// What libfabric answered.
    Code(i32),
}

impl Refused {
    fn explain(self, call: &'static str, len: usize) -> RegisterError {
        match self {
            Self::Limit(limit) => limit,
            Self::Code(rc) => refused(call, rc, len),
        }
    }
}

/// Registers what `attr` names, with `fi_mr_regattr`; rights and key are put in here.
///
/// # Safety
/// What `attr` points to is valid until this returns, and the memory that it names until the
/// registration is dropped.
pub(super) unsafe fn register_attr(
    domain: &Arc<Domain>,
    mut attr: sys::fi_mr_attr,
    flags: u64,
    rights: Option<Access>,
    len: usize,
) -> Result<RawRegistration, RegisterError> {
    let unsupported = || RegisterError::Fabric {
        call: "fi_mr_regattr",
        errno: FabricErrno::new(sys::FI_ENOSYS),
    };
    let mut attempts = 0;
    loop {
        (attr.access, attr.requested_key) = match (rights, domain.fabric().rma()) {
            (None, _) => (own_access(domain), NEXT_KEY.fetch_add(1, Ordering::Relaxed)),
            (Some(rights), Some(rma)) => (access_of(rights), random_key(rma.key_bytes)),
            (Some(_), None) => return Err(unsupported()),
        };
        let registered = open(domain, |raw| {
            // SAFETY: the domain is open, `raw` is writable, and the caller vouches for the
            // attributes.
            unsafe { sys::fi_mr_regattr(domain.as_ptr(), &raw const attr, flags, raw) }
        });
        match registered {
            // Somebody has that key already.
            Err(Refused::Code(rc)) if rc == -sys::FI_ENOKEY && attempts < KEY_ATTEMPTS => {
                attempts += 1;
            }
            registered => {
                return registered.map_err(|refused| refused.explain("fi_mr_regattr", len));
            }
        }
    }
}

fn register_for(
    domain: &Arc<Domain>,
    base: NonNull<u8>,
    len: usize,
    access: u64,
    key: u64,
) -> Result<RawRegistration, Refused> {
    open(domain, |raw| {
        // SAFETY: the domain is open; who asks keeps `base` and `len` valid until the handle is
        // dropped.
        unsafe {
            sys::fi_mr_reg(
                domain.as_ptr(),
                base.as_ptr().cast_const().cast(),
                len,
                access,
                0,
                key,
                0,
                raw,
                ptr::null_mut(),
            )
        }
    })
}

/// Counts a registration and opens it.
fn open(
    domain: &Arc<Domain>,
    register: impl FnOnce(*mut *mut sys::fid_mr) -> i32,
) -> Result<RawRegistration, Refused> {
    domain.count_registration().map_err(Refused::Limit)?;
    let mut raw = ptr::null_mut();
    let guard = domain.fabric().keys().change();
    let rc = register(&raw mut raw);
    drop(guard);
    let Some(raw) = NonNull::new(raw).filter(|_| rc == 0) else {
        domain.count_registration_closed();
        return Err(Refused::Code(rc));
    };
    let mr = Mr {
        raw,
        domain: Arc::clone(domain),
    };
    // SAFETY: the registration is open.
    let desc: *mut c_void = unsafe { sys::fi_mr_desc(mr.raw.as_ptr()) };
    // SAFETY: the registration is open.
    let key = unsafe { sys::fi_mr_key(mr.raw.as_ptr()) };
    Ok(RawRegistration::new(desc, key, Box::new(mr)))
}

/// Turns a refusal into its cause.
fn refused(call: &'static str, rc: i32, len: usize) -> RegisterError {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    refused_under(call, limit, rc, len)
}

/// Memory that may not be locked looks like `ENOMEM` or `EPERM`; `limit` is RLIMIT_MEMLOCK in
/// bytes, `None` for no limit.
fn refused_under(call: &'static str, limit: Option<u64>, rc: i32, len: usize) -> RegisterError {
    let errno = FabricErrno::new(rc);
    match (errno.get(), limit) {
        (libc::ENOMEM | libc::EPERM, Some(limit_bytes)) if limit_bytes < len as u64 => {
            RegisterError::MemLock {
                limit_bytes,
                asked_bytes: len as u64,
            }
        }
        _ => RegisterError::Fabric { call, errno },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_for_lack_of_lockable_memory_names_limit_and_size() {
        let told = |limit| refused_under("fi_mr_reg", limit, -libc::ENOMEM, 1 << 30);
        assert_eq!(
            told(Some(8 << 20)),
            RegisterError::MemLock {
                limit_bytes: 8 << 20,
                asked_bytes: 1 << 30,
            }
        );
        let text = told(Some(8 << 20)).to_string();
        assert!(
            text.contains("8388608") && text.contains("1073741824"),
            "{text}"
        );
        // With room enough, or without a limit, it is something else that is lacking.
        for limit in [Some(2 << 30), None] {
            let RegisterError::Fabric { call, errno } = told(limit) else {
                panic!("{:?}", told(limit));
            };
            assert_eq!((call, errno.get()), ("fi_mr_reg", libc::ENOMEM));
        }
        let other = refused_under("fi_mr_reg", Some(1), -libc::EINVAL, 1 << 30);
        assert!(matches!(other, RegisterError::Fabric { .. }), "{other}");
    }
}
