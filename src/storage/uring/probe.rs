//! `probe`: may this process use io_uring, what of it, and why not; asked once.
//!
//! ```text
//!  ENOSYS, EPERM, ENOMEM, too old a kernel ──► Err("… in words")   the POSIX engine takes over
//!  else                                    ──► Ok(RingFeatures)
//! ```
//!
//! Whether it is wanted is another question: the setting `io_uring`.

use std::fmt;
use std::io;
use std::sync::OnceLock;

use io_uring::{IoUring, Probe, opcode};

/// 0: for all, 1: for a group, 2: for nobody. Since Linux 6.6.
const DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";

/// What the kernel's io_uring has, beyond what we can't do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingFeatures {
    /// Completions need not interrupt the thread that submitted (IORING_SETUP_COOP_TASKRUN, Linux
    /// 5.19).
    pub(crate) cooperative: bool,
    /// Completions are made when the one thread that submits asks for them
    /// (IORING_SETUP_DEFER_TASKRUN, Linux 6.1).
    pub(crate) deferred: bool,
}

/// Why this process can't use io_uring, in words for a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoRing(String);

impl fmt::Display for NoRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl NoRing {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// What there is; the first call asks the kernel, all others get the same answer.
pub(crate) fn probe() -> Result<&'static RingFeatures, &'static NoRing> {
    static ANSWER: OnceLock<Result<RingFeatures, NoRing>> = OnceLock::new();
    ANSWER
        .get_or_init(|| {
            let answer = ask();
            match &answer {
                Ok(found) => tracing::debug!(?found, "io_uring"),
                Err(reason) => tracing::info!(%reason, "io_uring is not used"),
            }
            answer
        })
        .as_ref()
}

fn ask() -> Result<RingFeatures, NoRing> {
    let ring = IoUring::new(2).map_err(|error| NoRing(in_words(&error)))?;
    // Waiting with a deadline. What came before it (single mapping, no dropped completions) is
    // there as well.
    if !ring.params().is_feature_ext_arg() {
        return Err(NoRing(too_old("5.11", "can't wait with a deadline")));
    }
    let mut probe = Probe::new();
    ring.submitter()
        .register_probe(&mut probe)
        .map_err(|error| NoRing(format!("the kernel does not say what it can do: {error}")))?;
    let needed = [
        ("READ", opcode::Read::CODE),
        ("WRITE", opcode::Write::CODE),
        ("READ_FIXED", opcode::ReadFixed::CODE),
        ("WRITE_FIXED", opcode::WriteFixed::CODE),
        ("ASYNC_CANCEL", opcode::AsyncCancel::CODE),
    ];
    if let Some((name, _)) = needed.iter().find(|(_, code)| !probe.is_supported(*code)) {
        return Err(NoRing(too_old("5.11", &format!("lacks IORING_OP_{name}"))));
    }
    Ok(RingFeatures {
        cooperative: sets_up(IoUring::builder().setup_coop_taskrun().setup_taskrun_flag()),
        deferred: sets_up(
            IoUring::builder()
                .setup_single_issuer()
                .setup_defer_taskrun(),
        ),
    })
}

fn sets_up(builder: &mut io_uring::Builder) -> bool {
    builder.build(2).is_ok()
}

fn too_old(since: &str, what: &str) -> String {
    format!("this kernel's io_uring {what}; Linux {since} or newer is needed")
}

/// What an answer of io_uring_setup(2) means.
fn in_words(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => "this kernel has no io_uring (ENOSYS)".to_owned(),
        Some(libc::EPERM | libc::EACCES) => denied(std::fs::read_to_string(DISABLED).ok()),
        Some(libc::ENOMEM) => {
            "there is no memory for a ring that may be locked (ENOMEM): raise the limit, `ulimit \
             -l` (RLIMIT_MEMLOCK)"
                .to_owned()
        }
        Some(libc::EMFILE | libc::ENFILE) => {
            format!("there is no descriptor left for a ring: {error}")
        }
        _ => format!("io_uring_setup: {error}"),
    }
}

/// Why a ring may not be made, by what the kernel's own switch says.
fn denied(switch: Option<String>) -> String {
    match switch.as_deref().map(str::trim) {
        Some("2") => "it is turned off on this machine (kernel.io_uring_disabled = 2)".to_owned(),
        Some("1") => {
            "only members of a group may use it on this machine (kernel.io_uring_disabled \
            = 1; kernel.io_uring_group says which)"
                .to_owned()
        }
        _ => {
            "it is forbidden to this process (EPERM), by a seccomp filter as containers have one, \
            or by a security module"
                .to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_answers_is_said_in_words() {
        let words = |errno| in_words(&io::Error::from_raw_os_error(errno));
        assert!(words(libc::ENOSYS).contains("no io_uring"));
        assert!(words(libc::ENOMEM).contains("ulimit -l"));
        assert!(words(libc::EMFILE).contains("descriptor"));
        assert!(words(libc::EINVAL).starts_with("io_uring_setup: "));
        assert!(denied(Some("2\n".to_owned())).contains("= 2"));
        assert!(denied(Some("1\n".to_owned())).contains("group"));
        assert!(denied(Some("0\n".to_owned())).contains("seccomp"));
        assert!(denied(None).contains("seccomp"));
    }

    #[test]
    fn the_answer_stays_the_same() {
        assert_eq!(probe(), probe());
        if let Err(reason) = probe() {
            assert!(!reason.as_str().is_empty());
        }
    }
}
