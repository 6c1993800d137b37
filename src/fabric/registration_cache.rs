//! The cache of registrations that libfabric keeps for some providers: kept off.
//!
//! Where it is on, the provider registers everything with all rights, whatever was asked
//! (`vrb_mr_cache_add_region`); gives one key for a range and for whatever lies in it; and keeps a
//! registration that was closed, and its key, until the memory is unmapped or room is needed. So
//! who was given a window could write where it may only read, beside the window, and after it was
//! taken back. And what is unmapped behind libc's back stays registered, so that the next mapping
//! at its address gets the pages of the last (`fabricast_process::mapping`). In return it spares
//! those who register per transfer, which nothing here does.
//!
//! It can be switched off by the environment
//! ([`ProcessSettings::registration_cache`](super::ProcessSettings::registration_cache)), which a
//! library can't set for a program that runs. But an application may bring libfabric a monitor of
//! memory of its own (`rdma/fi_ext.h`), and a cache whose monitor does not start is not used: so
//! while a domain is opened, there is one here that does not. libfabric keeps it in mind, without
//! us, for the domains that others open in this process afterwards, and writes one line for each
//! domain to its log (`Failed to start FI_HMEM_SYSTEM memory monitor`).
//!
//! docs/internals/memory.md says what was read and measured.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use libfabric_sys as sys;

use super::provider::Provider;

/// What [`ProcessSettings::registration_cache`](super::ProcessSettings::registration_cache) asks
/// for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegistrationCache {
    /// None. What happens without this setting, too; with it, libfabric needs not be talked out of
    /// it for each domain, and writes nothing to its log about it.
    Off,
    /// One that sees what goes through libc's `mmap`, `munmap`, `mremap` and `madvise`, by patching
    /// them. Bare system calls it does not see, nor a libc that is linked statically.
    Memhooks,
    /// One that the kernel tells (userfaultfd(2)), which may take a privilege
    /// (`vm.unprivileged_userfaultfd`).
    Userfaultfd,
}

/// At 0, it is off.
pub(super) const MAX_COUNT: &str = "FI_MR_CACHE_MAX_COUNT";
pub(super) const MONITOR: &str = "FI_MR_CACHE_MONITOR";

/// Opens something with the cache off; `Err` says why it is on.
pub(super) fn without<T>(
    library: &'static sys::Library,
    provider: &Provider,
    open: impl FnOnce() -> T,
) -> (T, Result<(), &'static str>) {
    if !provider.memory.caches_registrations {
        return (open(), Ok(()));
    }
    let variable = |name| std::env::var(name).ok();
    match asked(variable(MAX_COUNT).as_deref(), variable(MONITOR).as_deref()) {
        Asked::Off => return (open(), Ok(())),
        Asked::On(why) => return (open(), Err(why)),
        Asked::Nothing => {}
    }
    // One at a time: libfabric takes one monitor.
    static OPENING: Mutex<()> = Mutex::new(());
    let _alone = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    let absent = match Absent::import(library) {
        Ok(absent) => absent,
        Err(why) => return (open(), Err(why)),
    };
    let opened = open();
    drop(absent);
    (opened, Ok(()))
}

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Off,
    On(&'static str),
    Nothing,
}

/// What the environment asks for. `disabled` leaves caches for GPU memory on.
fn asked(max_count: Option<&str>, monitor: Option<&str>) -> Asked {
    match (max_count.map(str::trim), monitor.map(str::trim)) {
        (Some("0"), _) => Asked::Off,
        (Some(_), _) => Asked::On("FI_MR_CACHE_MAX_COUNT is set in the environment, and not to 0"),
        (None, Some(monitor)) if monitor != "disabled" => {
            Asked::On("FI_MR_CACHE_MONITOR is set in the environment")
        }
        (None, _) => Asked::Nothing,
    }
}

/// A monitor that does not start, while it lives.
struct Absent(NonNull<sys::fid_mem_monitor>);

impl Absent {
    fn import(library: &'static sys::Library) -> Result<Self, &'static str> {
        let mut cache = ptr::null_mut();
        // SAFETY: the name is a text, there are no attributes, and `cache` is writable.
        let rc = unsafe {
            library.fi_open(
                library.negotiated(),
                c"mr_cache".as_ptr(),
                ptr::null_mut(),
                0,
                0,
                &raw mut cache,
                ptr::null_mut(),
            )
        };
        if rc != 0 || cache.is_null() {
            return Err("libfabric does not let its monitor of memory be replaced");
        }
        let monitor = NonNull::from(Box::leak(Box::new(sys::fid_mem_monitor {
            fid: sys::fid {
                fclass: sys::FI_CLASS_MEM_MONITOR,
                context: ptr::null_mut(),
                ops: ptr::null_mut(),
            },
            export_ops: (&raw const ABSENT).cast_mut(),
            import_ops: ptr::null_mut(),
        })));
        // SAFETY: the cache is open; the monitor stays where it is until it was closed, in `drop`.
        let rc = unsafe { sys::fi_import_fid(cache, monitor.as_ptr().cast(), 0) };
        // SAFETY: it was just opened, and closing it leaves the monitor in place.
        let _ = unsafe { sys::fi_close(cache) };
        if rc == 0 {
            return Ok(Self(monitor));
        }
        // SAFETY: libfabric refused it, and the box was leaked above.
        drop(unsafe { Box::from_raw(monitor.as_ptr()) });
        Err("another library of this process uses it already")
    }
}

impl Drop for Absent {
    fn drop(&mut self) {
        // SAFETY: it was imported, which filled in its operations, and is closed here alone.
        let rc = unsafe { sys::fi_close(self.0.as_ptr().cast()) };
        if rc == 0 {
            // SAFETY: libfabric has let go of it, and the box was leaked by `import`.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        } else {
            tracing::error!(errno = rc, "a monitor of memory is leaked");
        }
    }
}

static ABSENT: sys::fi_ops_mem_monitor = sys::fi_ops_mem_monitor {
    size: size_of::<sys::fi_ops_mem_monitor>(),
    start: Some(start),
    stop: Some(stop),
    subscribe: Some(subscribe),
    unsubscribe: Some(unsubscribe),
    valid: Some(valid),
};

// Nothing but `start` is called of a monitor that does not start.

extern "C" fn start(_: *mut sys::fid_mem_monitor) -> i32 {
    -sys::FI_ENOSYS
}

extern "C" fn stop(_: *mut sys::fid_mem_monitor) {}

extern "C" fn subscribe(_: *mut sys::fid_mem_monitor, _: *const c_void, _: usize) -> i32 {
    -sys::FI_ENOSYS
}

extern "C" fn unsubscribe(_: *mut sys::fid_mem_monitor, _: *const c_void, _: usize) {}

extern "C" fn valid(_: *mut sys::fid_mem_monitor, _: *const c_void, _: usize) -> bool {
    false
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_starts_the_program_has_the_last_word() {
        for (max_count, monitor, off) in [
            (Some("0"), None, true),
            (Some("0"), Some("memhooks"), true),
            (Some("100"), None, false),
            (Some("100"), Some("disabled"), false),
            (None, Some("memhooks"), false),
            (None, Some("userfaultfd"), false),
        ] {
            let asked = asked(max_count, monitor);
            assert_eq!(asked == Asked::Off, off, "{max_count:?} {monitor:?}");
            assert_eq!(matches!(asked, Asked::On(_)), !off);
        }
        assert_eq!(asked(None, None), Asked::Nothing);
        assert_eq!(asked(None, Some("disabled")), Asked::Nothing);
    }

    /// libfabric takes it and lets it go, as often as domains are opened; while there is one, there
    /// is no second.
    #[test]
    fn a_monitor_that_does_not_start_comes_and_goes() {
        let Ok(library) = sys::Library::load() else {
            println!("SKIPPED: no libfabric");
            return;
        };
        for _ in 0..3 {
            let first = Absent::import(library).expect("nobody else has one");
            assert_eq!(
                Absent::import(library).err(),
                Some("another library of this process uses it already")
            );
            drop(first);
        }
    }
}
