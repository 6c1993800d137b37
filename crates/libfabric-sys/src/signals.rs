//! Keeps the process's signal handlers over a call that replaces them behind our back.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem;
use std::ptr;

/// Signals are numbered from 1 to this on Linux.
const LAST_SIGNAL: c_int = 64;

/// Runs `call`, then puts back every signal handler that it changed.
///
/// Debian's libfabric 1.17 replaces the handlers of SIGINT, SIGILL, SIGABRT, SIGBUS, SIGSEGV and
/// SIGTERM when it is loaded (a constructor of libinfinipath), which would take a Rust program's
/// stack overflow message and the user's Ctrl-C away. A handler that another thread installs during
/// the call may be put back, too.
pub(crate) fn keep_handlers<T>(call: impl FnOnce() -> T) -> T {
    let before: Vec<_> = (1..=LAST_SIGNAL)
        .map(|signal| (signal, handler(signal)))
        .collect();
    let result = call();
    for (signal, old) in before {
        if let (Some(old), Some(now)) = (old, handler(signal))
            && (old.sa_sigaction != now.sa_sigaction || old.sa_flags != now.sa_flags)
        {
            // SAFETY: `old` is what the system answered for this signal.
            unsafe { libc::sigaction(signal, &old, ptr::null_mut()) };
        }
    }
    result
}

/// The handler of a signal; none for a number that the C library keeps for itself.
fn handler(signal: c_int) -> Option<libc::sigaction> {
    // SAFETY: a struct of integers is valid when zeroed.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: asks only, and `action` is valid for a write.
    let rc = unsafe { libc::sigaction(signal, ptr::null(), &mut action) };
    (rc == 0).then_some(action)
}
