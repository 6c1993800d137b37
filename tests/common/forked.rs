//! A forked child that only looks, and what it answers.

#![allow(unsafe_code)]

/// What `child` answers in a forked process: it does nothing but look, since other threads may hold
/// any lock.
pub(crate) fn in_a_child(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls only what touches no lock and no file, and leaves by `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            let code = child();
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(code) }
        }
        pid => {
            assert!(pid > 0, "fork: {}", std::io::Error::last_os_error());
            let mut status = 0;
            // SAFETY: our own child; `status` is writable.
            let rc = unsafe { libc::waitpid(pid, &raw mut status, 0) };
            assert_eq!(rc, pid);
            assert!(libc::WIFEXITED(status), "status {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}
