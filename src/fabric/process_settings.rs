//! `ProcessSettings`: what libfabric takes from the environment only, once for the whole process.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use super::registration_cache::{MAX_COUNT, MONITOR, RegistrationCache};
use crate::Error;

/// libfabric has been asked for providers: it reads its variables then, and never again.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Called before each question to libfabric.
pub(super) fn close() {
    ASKED.store(true, Ordering::SeqCst);
}

/// How much libfabric writes to its log, which is the standard error stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogLevel {
    /// What went wrong.
    Warn,
    /// How each call went.
    Trace,
    /// What was chosen and why.
    Info,
    /// Everything; only where libfabric was built for it.
    Debug,
}

impl LogLevel {
    fn name(self) -> &'static str {
        match self {
            Self::Warn => "warn",
            Self::Trace => "trace",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

/// Settings of libfabric that are variables of the environment (`fi_provider.7`, `fi_tcp.7`,
/// `fabric.7`).
///
/// * [`tcp_ports`](Self::tcp_ports): the ports that listeners with port 0 get, 1 to 65,535, low at
///   most high; by default the system's. `FI_TCP_PORT_LOW_RANGE`, `FI_TCP_PORT_HIGH_RANGE`.
/// * [`log_level`](Self::log_level): by default `Warn`. `FI_LOG_LEVEL`.
/// * [`registration_cache`](Self::registration_cache): a [`RegistrationCache`]; without a variable
///   it is off. `FI_MR_CACHE_MAX_COUNT`, `FI_MR_CACHE_MONITOR`.
/// * [`fork_safe`](Self::fork_safe): set or not; by default not. `RDMAV_FORK_SAFE`,
///   `RDMAV_HUGEPAGES_SAFE`, `CXI_FORK_SAFE`, `CXI_FORK_SAFE_HP`, which rdma-core and libcxi read.
///
/// Every other one is set by its own name, with [`variable`](Self::variable):
///
/// | variable | unit | default | range |
/// |---|---|---|---|
/// | `FI_TCP_IFACE` | network interface of `tcp`, such as `eth0` | all | |
/// | `FI_TCP_NODELAY` | small messages are sent at once | 1, but for [`BulkData`] | 0, 1 |
/// | `FI_TCP_STAGING_SBUF_SIZE` | bytes in which small sends are gathered | 9,000 | to 1 GiB |
/// | `FI_TCP_PREFETCH_RBUF_SIZE` | bytes that are read ahead, and copied | 9,000 | to 1 GiB |
/// | `FI_LOG_PROV` | providers whose log is written, with commas | all | |
/// | `FI_PROVIDER` | providers that there are at all, with commas | all | |
/// | `FI_PROVIDER_PATH` | directories of providers, with colons | libfabric's | |
/// | `FI_UNIVERSE_SIZE` | peers that libfabric prepares for | 256 | 1 to 2³¹ - 1 |
///
/// [`BulkData`]: super::TrafficClass::BulkData
///
/// libfabric 1.17 and 2.x know all of them, but for those of `fork_safe`. Of a variable that is not
/// named here, libfabric checks the value, or ignores it.
///
/// A variable that is in the environment already stays as it is: who starts the program has the
/// last word.
///
/// ```
/// use fabricast::fabric::{LogLevel, ProcessSettings};
///
/// let settings = ProcessSettings::default().log_level(LogLevel::Warn);
/// // SAFETY: no other thread runs yet.
/// let kept = unsafe { settings.apply() }?;
/// assert!(kept.iter().all(|variable| std::env::var_os(variable).is_some()));
/// # Ok::<(), fabricast::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessSettings {
    variables: Vec<(&'static str, String)>,
}

impl ProcessSettings {
    /// The ports that listeners get who leave the choice to the system (port 0), both ends
    /// included.
    #[must_use]
    pub fn tcp_ports(self, low: u16, high: u16) -> Self {
        self.set("FI_TCP_PORT_LOW_RANGE", low)
            .set("FI_TCP_PORT_HIGH_RANGE", high)
    }

    /// What libfabric writes to the standard error stream.
    #[must_use]
    pub fn log_level(self, level: LogLevel) -> Self {
        self.set("FI_LOG_LEVEL", level.name())
    }

    /// Whether libfabric keeps registrations, with their keys, that were closed (`verbs`,
    /// `verbs;ofi_rxm`). Where it does, nothing can be lent to a peer: windows, and with them long
    /// messages and streams by write, are refused
    /// ([`RegisterError::Cached`](crate::error::RegisterError::Cached)), and memory that was
    /// registered stays pinned until it is unmapped.
    ///
    /// It is off in any case, unless this or the environment says otherwise: fabricast registers a
    /// region once and not per transfer, so it gains nothing by one.
    #[must_use]
    pub fn registration_cache(mut self, cache: RegistrationCache) -> Self {
        self.variables
            .retain(|(name, _)| ![MAX_COUNT, MONITOR].contains(name));
        match cache {
            RegistrationCache::Off => self.set(MAX_COUNT, 0),
            RegistrationCache::Memhooks => self.set(MONITOR, "memhooks"),
            RegistrationCache::Userfaultfd => self.set(MONITOR, "userfaultfd"),
        }
    }

    /// Lets the libraries below verbs, efa and cxi keep what they register from forked children
    /// (`MADV_DONTFORK`), their own queues and copies too.
    ///
    /// Needed on kernels before 5.12 alone, in programs that fork while endpoints are open; since
    /// then the kernel copies pinned pages at the fork. Memory of
    /// [`Region::host`](crate::memory::Region::host) is kept from children in any case
    /// ([`HostRegionBuilder::inherited`](crate::memory::HostRegionBuilder::inherited)). It costs a
    /// look-up and a call of madvise(2) at each registration, and with huge pages the reading of
    /// `/proc/self/smaps`. It works on whole pages, so what lies beside registered bytes on the
    /// same page is missing in the child, too: a child should do nothing but exec or `_exit`.
    #[must_use]
    pub fn fork_safe(self) -> Self {
        self.set("RDMAV_FORK_SAFE", 1)
            .set("RDMAV_HUGEPAGES_SAFE", 1)
            .set("CXI_FORK_SAFE", 1)
            .set("CXI_FORK_SAFE_HP", 1)
    }

    /// Sets a variable of libfabric's by its own name (`fi_info -e` lists them).
    #[must_use]
    pub fn variable(self, name: &'static str, value: impl ToString) -> Self {
        self.set(name, value)
    }

    fn set(mut self, variable: &'static str, value: impl ToString) -> Self {
        self.variables.retain(|(name, _)| *name != variable);
        self.variables.push((variable, value.to_string()));
        self
    }

    /// The variables and their values, as [`apply`](Self::apply) would set them.
    pub fn variables(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.variables.iter().map(|(name, value)| (*name, &**value))
    }

    /// Puts the settings into the environment of this process, and gives the variables that were
    /// there already, which stay as they are. Before the first fabric is opened: libfabric reads
    /// its variables once.
    ///
    /// # Errors
    ///
    /// [`Error::Config`], and nothing is set: a value out of its range, or libfabric has been asked
    /// in this process already.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes the environment meanwhile (setenv(3)); best called first in
    /// `main`.
    pub unsafe fn apply(&self) -> Result<Vec<&'static str>, Error> {
        self.check()?;
        if ASKED.load(Ordering::SeqCst) {
            return Err(refused(
                self.variables.first().map_or("", |(name, _)| name),
                "now",
                "libfabric was asked in this process already, and reads its environment once: \
                 apply before the first fabric is opened",
            ));
        }
        let mut kept = Vec::new();
        for (name, value) in &self.variables {
            if std::env::var_os(name).is_some() {
                kept.push(*name);
            } else {
                // SAFETY: the caller's promise.
                unsafe { std::env::set_var(name, value) };
            }
        }
        Ok(kept)
    }

    fn check(&self) -> Result<(), Error> {
        let mut ports = [None, None];
        for (name, value) in &self.variables {
            let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            if name.is_empty() || !name.chars().all(is_name) {
                let reason = "is no name of a variable: letters, digits and _";
                return Err(refused(name, value, reason));
            }
            if value.is_empty() || value.contains('\0') {
                return Err(refused(name, value, "is empty, or holds a 0 byte"));
            }
            let number = value.parse::<u64>().ok();
            let (range, reason) = match *name {
                "FI_TCP_PORT_LOW_RANGE" | "FI_TCP_PORT_HIGH_RANGE" => {
                    ports[usize::from(name.contains("HIGH"))] = number;
                    (0..=65_535, "must be 1 to 65535")
                }
                "FI_TCP_STAGING_SBUF_SIZE" | "FI_TCP_PREFETCH_RBUF_SIZE" => {
                    (0..=1 << 30, "must be at most 1 GiB")
                }
                "FI_UNIVERSE_SIZE" => (1..=(1 << 31) - 1, "must be 1 to 2147483647"),
                _ => continue,
            };
            if !number.is_some_and(|number| range.contains(&number)) {
                return Err(refused(name, value, reason));
            }
        }
        if let [Some(low), Some(high)] = ports
            && (low == 0 || low > high)
        {
            let reason = "must be 1 to 65535, the low end at most the high one";
            return Err(refused("tcp_ports", &format!("{low} to {high}"), reason));
        }
        Ok(())
    }
}

fn refused(field: &'static str, value: &str, reason: &'static str) -> Error {
    Error::Config {
        field,
        value: value.to_owned(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_is_one_variable_and_the_last_value_counts() {
        let settings = ProcessSettings::default()
            .tcp_ports(1, 2)
            .tcp_ports(30_000, 30_010)
            .log_level(LogLevel::Info)
            .variable("FI_PROVIDER", "tcp,shm")
            .variable("FI_TCP_NODELAY", 0)
            .fork_safe();
        let variables: Vec<_> = settings.variables().collect();
        assert_eq!(
            variables,
            [
                ("FI_TCP_PORT_LOW_RANGE", "30000"),
                ("FI_TCP_PORT_HIGH_RANGE", "30010"),
                ("FI_LOG_LEVEL", "info"),
                ("FI_PROVIDER", "tcp,shm"),
                ("FI_TCP_NODELAY", "0"),
                ("RDMAV_FORK_SAFE", "1"),
                ("RDMAV_HUGEPAGES_SAFE", "1"),
                ("CXI_FORK_SAFE", "1"),
                ("CXI_FORK_SAFE_HP", "1"),
            ]
        );
        assert!(settings.check().is_ok());
    }

    #[test]
    fn the_last_word_on_the_cache_of_registrations_counts() {
        let variables = |caches: &[RegistrationCache]| {
            let settings = caches.iter().fold(ProcessSettings::default(), |s, cache| {
                s.registration_cache(*cache)
            });
            assert!(settings.check().is_ok());
            settings.variables
        };
        let memhooks = [("FI_MR_CACHE_MONITOR", "memhooks".to_owned())];
        let off = [("FI_MR_CACHE_MAX_COUNT", "0".to_owned())];
        use RegistrationCache::{Memhooks, Off, Userfaultfd};
        assert_eq!(variables(&[Off, Memhooks]), memhooks);
        assert_eq!(variables(&[Userfaultfd, Memhooks, Off]), off);
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for (settings, field) in [
            (ProcessSettings::default().tcp_ports(0, 5), "tcp_ports"),
            (ProcessSettings::default().tcp_ports(6, 5), "tcp_ports"),
            (
                ProcessSettings::default().variable("FI_UNIVERSE_SIZE", 0),
                "FI_UNIVERSE_SIZE",
            ),
            (
                ProcessSettings::default().variable("FI_TCP_IFACE", ""),
                "FI_TCP_IFACE",
            ),
            (
                ProcessSettings::default().variable("FI_TCP_IFACE", "a\0b"),
                "FI_TCP_IFACE",
            ),
            (
                ProcessSettings::default().variable("FI_TCP_STAGING_SBUF_SIZE", u32::MAX),
                "FI_TCP_STAGING_SBUF_SIZE",
            ),
            (
                ProcessSettings::default().variable("FI_UNIVERSE_SIZE", "many"),
                "many",
            ),
            (
                ProcessSettings::default().variable("FI_LOG_PROV=tcp", "x"),
                "no name of a variable",
            ),
            (
                ProcessSettings::default().variable("", "x"),
                "no name of a variable",
            ),
        ] {
            let error = settings.check().unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
