//! `Machine`: where `doctor` looks.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The places and numbers of a machine: of this one, or of a test's.
#[derive(Debug)]
pub(super) struct Machine {
    /// Below which `proc`, `sys`, `etc`, `run` and `usr` lie.
    pub(super) root: PathBuf,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) limits: Limits,
}

/// What this process may have.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Limits {
    /// Bytes that may be locked; `None`: any number.
    pub(super) memlock: Option<u64>,
    /// Descriptors; `None`: any number.
    pub(super) nofile: Option<u64>,
    /// Bytes that are free on /dev/shm; `None`: it could not be looked at.
    pub(super) shm_free: Option<u64>,
}

impl Machine {
    /// The one that this runs on.
    pub(super) fn this() -> Self {
        use rustix::process::{Resource, getrlimit};
        let shm = rustix::fs::statvfs("/dev/shm").ok();
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Self {
            root: "/".into(),
            environment: environment.collect(),
            limits: Limits {
                memlock: getrlimit(Resource::Memlock).current,
                nofile: getrlimit(Resource::Nofile).current,
                shm_free: shm.map(|it| it.f_bavail * it.f_frsize),
            },
        }
    }

    /// What a file says, without the white space around it.
    pub(super) fn read(&self, path: &str) -> io::Result<String> {
        Ok(std::fs::read_to_string(self.root.join(path))?
            .trim()
            .to_owned())
    }

    /// A number in a file.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.read(path).ok()?.parse().ok()
    }

    /// What a symbolic link says.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        let link = std::fs::read_link(self.root.join(path)).ok()?;
        link.into_os_string().into_string().ok()
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// The names in a directory, in order; none where it is not there.
    pub(super) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = std::fs::read_dir(self.root.join(path))
            .into_iter()
            .flatten();
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}
