//! `Route`: whether cuFile moves the bytes between one file and GPU memory, and why not.

use std::sync::Arc;

use rustix::io::fcntl_dupfd_cloexec;

use crate::storage::compat::{Compat, CompatMode, CompatRefused, Facts, System, decide};
use crate::storage::cufile::config_file::{CompatEffect, ConfigFile, compat_settings};
use crate::storage::cufile::{CuFile, Handle, Unavailable};
use crate::storage::file::File;
use crate::storage::{FileHandle, FileOperation};

/// What was found for one file.
#[derive(Debug)]
pub(crate) struct Route {
    /// The decision, and why.
    pub(crate) compat: Compat,
    /// The file, registered with cuFile; `None` in compatibility mode.
    pub(crate) handle: Option<Handle>,
    /// cuFile itself has no way but a copy through the host's memory: neither nvidia-fs nor PCI
    /// P2PDMA.
    pub(crate) cufile_copies: bool,
}

impl Route {
    /// Looks for it: loads cuFile, opens its driver and registers the file, as far as the mode and
    /// the machine allow.
    ///
    /// # Errors
    /// The mode forbids to do without cuFile, and something forbids cuFile.
    pub(crate) fn find(file: &File, mode: CompatMode) -> Result<Self, CompatRefused> {
        let mut facts = Facts {
            // Off: nobody guesses what cuFile might need, it says so itself.
            system: match mode {
                CompatMode::Off => System::default(),
                CompatMode::Auto | CompatMode::On => System::get(),
            },
            direct: file.direct_refused().map(str::to_owned),
            descriptor_flag: file.used().cufile_refuses,
            ..Facts::default()
        };
        // On: its library is not even loaded.
        let cufile = match mode {
            CompatMode::On => None,
            CompatMode::Auto | CompatMode::Off => gather(&mut facts),
        };
        let registered = match cufile {
            Some(cufile) if facts.may_register() => register(cufile, file),
            _ => Ok(None),
        };
        let handle = registered.unwrap_or_else(|error| {
            facts.registration = Some(error);
            None
        });
        let compat = decide(mode, &facts)?;
        Ok(Self {
            handle: handle.filter(|_| !compat.on),
            cufile_copies: facts.cufile_own.is_some() || cufile.is_some_and(only_copies),
            compat,
        })
    }
}

/// What is known of cuFile on this machine, and cuFile where it can be used.
fn gather(facts: &mut Facts) -> Option<&'static CuFile> {
    let cufile = match CuFile::get() {
        Ok(cufile) => cufile,
        Err(why @ (Unavailable::Library { .. } | Unavailable::Broken { .. })) => {
            facts.library = Some(why.to_string());
            return None;
        }
        Err(why) => {
            facts.cuda = Some(why.to_string());
            return None;
        }
    };
    if !cufile.capabilities().streams {
        let version = cufile.version();
        facts.streams = Some(format!("libcufile {version} has no functions for streams"));
    }
    facts.no_config_file = matches!(ConfigFile::find(), Ok(None));
    match compat_settings() {
        Ok(settings) => {
            let forced = settings.iter().find(|it| it.effect == CompatEffect::Forced);
            facts.cufile_own = forced.map(ToString::to_string);
        }
        Err(error) => tracing::warn!(%error, "cufile.json is not understood"),
    }
    Some(cufile)
}

/// Registers a descriptor of cuFile's own: the one around the page cache where there is one.
fn register(cufile: &'static CuFile, file: &File) -> Result<Option<Handle>, String> {
    let fd = file.direct().unwrap_or_else(|| file.buffered());
    let own = fcntl_dupfd_cloexec(fd, 0).map_err(|errno| format!("fcntl F_DUPFD: {errno}"))?;
    let handle = cufile.register(Arc::new(own));
    handle.map(Some).map_err(|error| error.to_string())
}

fn only_copies(cufile: &'static CuFile) -> bool {
    cufile.driver().is_ok_and(|driver| driver.only_copies())
}

impl FileHandle {
    /// Whether GPU memory is moved without cuFile, for this file; why,
    /// [`compat_reason`](Self::compat_reason) says. Yes when it was closed.
    ///
    /// The first of these questions, as the first transfer to or from GPU memory, opens cuFile's
    /// driver where there is one.
    pub fn is_compat_mode_preferred(&self) -> bool {
        self.compat().is_none_or(|compat| compat.on)
    }

    /// Whether stream-ordered operations on this file are done without cuFile. Yes when it was
    /// closed.
    pub fn is_compat_mode_preferred_for_async(&self) -> bool {
        self.compat().is_none_or(|compat| compat.for_async)
    }

    /// Why compatibility mode is on or off for this file, in words.
    pub fn compat_reason(&self) -> &str {
        self.compat()
            .map_or("on: the handle is closed", |compat| &compat.reason)
    }

    /// The file as it is registered with cuFile, for calls that this handle has not: batches and
    /// stream-ordered transfers of [`cufile`](crate::storage::cufile). `None` in compatibility mode
    /// (why, [`compat_reason`](Self::compat_reason) says), and when the handle is closed.
    ///
    /// It is the registration that this handle uses itself, of a descriptor of its own, which stays
    /// open as long as a clone of the handle lives: also after [`close`](Self::close). As with the
    /// questions above, the first call opens cuFile's driver.
    pub fn cufile_handle(&self) -> Option<Handle> {
        let file = self.file(FileOperation::Stat).ok()?;
        file.route().ok()?.handle.clone()
    }

    /// With the mode `Off`, the file was not opened where nothing was found.
    fn compat(&self) -> Option<&Compat> {
        let route = self.file(FileOperation::Stat).ok()?.route().ok()?;
        Some(&route.compat)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::storage::{FileErrorKind, OpenOptions};

    fn open(mode: CompatMode) -> Result<FileHandle, crate::storage::FileError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        OpenOptions::new()
            .flags("r+")
            .compat_mode(mode)
            .open(file.path())
    }

    #[test]
    fn on_loads_nothing_and_says_that_it_was_asked_for() {
        let mut file = open(CompatMode::On).unwrap();
        assert!(file.is_compat_mode_preferred() && file.is_compat_mode_preferred_for_async());
        assert!(file.compat_reason().contains("asked for"));
        file.close();
        assert!(file.is_compat_mode_preferred() && file.is_compat_mode_preferred_for_async());
        assert!(file.compat_reason().contains("closed"));
    }

    #[test]
    fn a_descriptor_that_cufile_refuses_is_in_compatibility_mode_or_an_error() {
        use std::os::unix::fs::OpenOptionsExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        let fd = || {
            let mut options = std::fs::OpenOptions::new();
            let opened = options
                .read(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(file.path());
            std::os::fd::OwnedFd::from(opened.unwrap())
        };
        let with = |mode| OpenOptions::new().compat_mode(mode).from_fd(fd());
        let auto = with(CompatMode::Auto).unwrap();
        assert!(auto.is_compat_mode_preferred() && auto.compat_reason().starts_with("on: "));
        let error = with(CompatMode::Off).unwrap_err();
        let FileErrorKind::DescriptorFlag { flag, .. } = error.kind else {
            panic!("{error}");
        };
        assert_eq!(flag, "O_NONBLOCK");
    }

    #[test]
    fn without_cufile_auto_is_on_with_the_reason_and_off_opens_nothing() {
        let Err(unavailable) = CuFile::get() else {
            println!("SKIPPED: cuFile can be used here");
            return;
        };
        let file = open(CompatMode::Auto).unwrap();
        assert!(file.is_compat_mode_preferred());
        let reason = file.compat_reason();
        assert!(
            reason.contains(&unavailable.to_string()) || System::get().wsl,
            "{reason}"
        );
        // The host's memory does not care.
        file.write(b"host", 0).unwrap();

        let error = open(CompatMode::Off).unwrap_err();
        let FileErrorKind::Unsupported { reason, .. } = &error.kind else {
            panic!("{error}");
        };
        assert!(reason.contains("OFF") && reason.contains("AUTO"), "{error}");
    }
}
