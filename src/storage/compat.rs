//! `CompatMode`: whether GPU memory is moved without cuFile, and why.
//!
//! Compatibility mode is about GPU memory only: bytes for the host's memory never go through
//! cuFile. It is not cuFile's own compatibility mode, in which cuFile copies through the host's
//! memory by itself ([`Compat::cufile_own`] says what is known of that one).
//!
//! What is decided is a pure function of [`Facts`]; who gathers them is somebody else.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// Whether GPU memory is moved without cuFile: through pinned host memory and pread(2), pwrite(2)
/// or io_uring(7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CompatMode {
    /// On where cuFile can't be used, off where it can. The default.
    #[default]
    Auto,
    /// Never cuFile: its library is not even loaded.
    On,
    /// Always cuFile: a file for which it can't be used is not opened.
    Off,
}

impl fmt::Display for CompatMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "AUTO",
            Self::On => "ON",
            Self::Off => "OFF",
        })
    }
}

impl FromStr for CompatMode {
    type Err = NoCompatMode;

    /// As KvikIO reads it: `AUTO`; `ON`, `TRUE`, `YES`, `1`; `OFF`, `FALSE`, `NO`, `0`; in any
    /// case.
    fn from_str(text: &str) -> Result<Self, NoCompatMode> {
        match text.to_ascii_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "on" | "true" | "yes" | "1" => Ok(Self::On),
            "off" | "false" | "no" | "0" => Ok(Self::Off),
            _ => Err(NoCompatMode),
        }
    }
}

/// The text is no [`CompatMode`].
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not AUTO, ON (true, yes, 1) or OFF (false, no, 0)")]
pub struct NoCompatMode;

fabricast_process::debug_as_words!(NoCompatMode);

/// What is known of this machine and this file when it is opened. A text says what is wrong, and
/// completes "…, because".
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// libcufile could not be loaded, or lacks a function that every version has.
    pub(crate) library: Option<String>,
    /// CUDA could not be initialised, or has no device.
    pub(crate) cuda: Option<String>,
    /// See [`System`].
    pub(crate) system: System,
    /// O_DIRECT was refused for this file. No obstacle (cuFile takes other descriptors since 1.7),
    /// but said.
    pub(crate) direct: Option<String>,
    /// A flag of the file's descriptor that cuFile refuses.
    pub(crate) descriptor_flag: Option<&'static str>,
    /// `cuFileDriverOpen` or `cuFileHandleRegister` failed for this file. Tried only where nothing
    /// above forbids it.
    pub(crate) registration: Option<String>,
    /// The library lacks the functions for streams.
    pub(crate) streams: Option<String>,
    /// No cufile.json was found. cuFile itself takes its defaults then, but stream-ordered
    /// operations are known not to work.
    pub(crate) no_config_file: bool,
    /// The key of cufile.json, and the file, which makes cuFile copy through the host by itself.
    pub(crate) cufile_own: Option<String>,
}

/// What does not change while the process runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct System {
    /// Windows Subsystem for Linux, which has no GPUDirect.
    pub(crate) wsl: bool,
    /// /run/udev can't be read: cuFile looks there for what a file lies on.
    pub(crate) no_udev: bool,
}

impl System {
    /// This machine's, looked up once.
    pub(crate) fn get() -> Self {
        static SYSTEM: OnceLock<System> = OnceLock::new();
        *SYSTEM.get_or_init(|| {
            let version = std::fs::read_to_string("/proc/sys/kernel/osrelease");
            Self {
                wsl: version.is_ok_and(|version| is_wsl(&version)),
                no_udev: std::fs::read_dir("/run/udev").is_err(),
            }
        })
    }
}

/// From the kernel's release, as `uname -r` says it.
fn is_wsl(release: &str) -> bool {
    let release = release.to_ascii_lowercase();
    release.contains("microsoft") || release.contains("wsl")
}

impl Facts {
    /// The first thing that keeps cuFile from being used for this file at all.
    fn obstacle(&self) -> Option<String> {
        let wsl = "this is Windows Subsystem for Linux, which has no GPUDirect";
        let udev = "/run/udev can't be read, where cuFile looks up what a file lies on (in a \
                    container: --volume /run/udev:/run/udev:ro)";
        let flag = |flag| format!("the descriptor was opened with {flag}, which cuFile refuses");
        self.system
            .wsl
            .then(|| wsl.to_owned())
            .or_else(|| self.library.clone())
            .or_else(|| self.cuda.clone())
            .or_else(|| self.system.no_udev.then(|| udev.to_owned()))
            .or_else(|| self.descriptor_flag.map(flag))
            .or_else(|| self.registration.clone())
    }

    /// Whether it is worth to try to register a file: not before everything else is known to be
    /// fine.
    pub(crate) fn may_register(&self) -> bool {
        let before = Self {
            registration: None,
            ..self.clone()
        };
        before.obstacle().is_none()
    }

    fn obstacle_for_async(&self) -> Option<String> {
        let config = "no cufile.json was found, without which stream-ordered operations of cuFile \
                      are known to fail silently (install one as /etc/cufile.json, or name it in \
                      CUFILE_ENV_PATH_JSON)";
        self.streams
            .clone()
            .or_else(|| self.no_config_file.then(|| config.to_owned()))
    }
}

/// What was decided for one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Compat {
    /// GPU memory is moved without cuFile.
    pub(crate) on: bool,
    /// Stream-ordered operations are done without cuFile.
    pub(crate) for_async: bool,
    /// Why, in words.
    pub(crate) reason: String,
    /// cuFile itself copies through the host's memory, by this key of its configuration.
    pub(crate) cufile_own: Option<String>,
}

impl Compat {
    pub(super) fn on(reason: impl fmt::Display) -> Self {
        Self {
            on: true,
            for_async: true,
            reason: format!("on: {reason}"),
            cufile_own: None,
        }
    }
}

/// Compatibility mode is `Off`, and cuFile can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "compatibility mode is OFF, and cuFile can't be used: {obstacle}; set compat_mode to AUTO or \
     ON to do without"
)]
pub(crate) struct CompatRefused {
    obstacle: String,
}

/// Decides for one file.
///
/// # Errors
///
/// The mode is `Off`, and something forbids cuFile.
pub(crate) fn decide(mode: CompatMode, facts: &Facts) -> Result<Compat, CompatRefused> {
    match (mode, facts.obstacle()) {
        (CompatMode::On, _) => Ok(Compat::on("it was asked for (compat_mode ON)")),
        (CompatMode::Auto, Some(obstacle)) => Ok(Compat::on(obstacle)),
        (CompatMode::Off, Some(obstacle)) => Err(CompatRefused { obstacle }),
        (CompatMode::Auto | CompatMode::Off, None) => Ok(off(mode, facts)),
    }
}

fn off(mode: CompatMode, facts: &Facts) -> Compat {
    let mut reason = match mode {
        CompatMode::Off => {
            "off: it was forbidden (compat_mode OFF), and cuFile took the file".to_owned()
        }
        CompatMode::Auto | CompatMode::On => "off: cuFile took the file".to_owned(),
    };
    // OFF forbids for asynchronous operations, too: cuFile then says for itself what it can't do.
    let for_async = match mode {
        CompatMode::Off => None,
        CompatMode::Auto | CompatMode::On => facts.obstacle_for_async(),
    };
    if let Some(obstacle) = &for_async {
        reason.push_str("; on for stream-ordered operations: ");
        reason.push_str(obstacle);
    }
    if let Some(direct) = &facts.direct {
        reason.push_str("; without O_DIRECT: ");
        reason.push_str(direct);
    }
    if let Some(key) = &facts.cufile_own {
        reason.push_str("; but cuFile copies through the host's memory by itself: ");
        reason.push_str(key);
    }
    Compat {
        on: false,
        for_async: for_async.is_some(),
        reason,
        cufile_own: facts.cufile_own.clone(),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_kvikio_reads_it() {
        for (texts, mode) in [
            (&["AUTO", "auto", "Auto"][..], CompatMode::Auto),
            (&["ON", "on", "True", "YES", "1"], CompatMode::On),
            (&["off", "FALSE", "no", "0"], CompatMode::Off),
        ] {
            for text in texts {
                assert_eq!(text.parse(), Ok(mode), "{text}");
            }
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        for text in ["", "2", "maybe", " on", "on "] {
            assert_eq!(text.parse::<CompatMode>(), Err(NoCompatMode), "{text:?}");
        }
    }

    fn obstacles() -> Vec<(Facts, &'static str)> {
        let facts = Facts::default;
        let system = System::default;
        vec![
            (
                Facts {
                    system: System {
                        wsl: true,
                        ..system()
                    },
                    ..facts()
                },
                "Windows",
            ),
            (
                Facts {
                    library: Some("libcufile.so.0 was not found".to_owned()),
                    ..facts()
                },
                "libcufile.so.0",
            ),
            (
                Facts {
                    cuda: Some("there is no CUDA device".to_owned()),
                    ..facts()
                },
                "no CUDA device",
            ),
            (
                Facts {
                    system: System {
                        no_udev: true,
                        ..system()
                    },
                    ..facts()
                },
                "--volume /run/udev",
            ),
            (
                Facts {
                    descriptor_flag: Some("O_NOATIME"),
                    ..facts()
                },
                "O_NOATIME",
            ),
            (
                Facts {
                    registration: Some("cuFileHandleRegister: 5027".to_owned()),
                    ..facts()
                },
                "5027",
            ),
        ]
    }

    #[test]
    fn each_obstacle_is_named_and_off_refuses_it() {
        for (facts, word) in obstacles() {
            let auto = decide(CompatMode::Auto, &facts).unwrap();
            assert!(auto.on && auto.for_async, "{word}");
            assert!(auto.reason.starts_with("on: "), "{}", auto.reason);
            assert!(auto.reason.contains(word), "{}", auto.reason);
            let on = decide(CompatMode::On, &facts).unwrap();
            assert!(on.on && on.reason.contains("asked for"), "{}", on.reason);
            let refused = decide(CompatMode::Off, &facts).unwrap_err().to_string();
            assert!(
                refused.contains(word) && refused.contains("AUTO"),
                "{refused}"
            );
            assert_eq!(facts.may_register(), facts.registration.is_some(), "{word}");
        }
    }

    #[test]
    fn without_an_obstacle_it_is_off_unless_it_was_asked_for() {
        let facts = Facts::default();
        assert!(facts.may_register());
        for (mode, on) in [
            (CompatMode::Auto, false),
            (CompatMode::Off, false),
            (CompatMode::On, true),
        ] {
            let compat = decide(mode, &facts).unwrap();
            assert_eq!((compat.on, compat.for_async), (on, on), "{mode}");
        }
    }

    #[test]
    fn what_only_streams_lack_is_on_for_them_only_and_off_forbids_even_that() {
        for (facts, word) in [
            (
                Facts {
                    streams: Some("this libcufile has no cuFileReadAsync".to_owned()),
                    ..Facts::default()
                },
                "cuFileReadAsync",
            ),
            (
                Facts {
                    no_config_file: true,
                    ..Facts::default()
                },
                "CUFILE_ENV_PATH_JSON",
            ),
        ] {
            let auto = decide(CompatMode::Auto, &facts).unwrap();
            assert_eq!((auto.on, auto.for_async), (false, true));
            assert!(auto.reason.contains(word), "{}", auto.reason);
            let off = decide(CompatMode::Off, &facts).unwrap();
            assert_eq!((off.on, off.for_async), (false, false));
        }
    }

    #[test]
    fn the_key_of_cufiles_own_mode_and_a_missing_o_direct_are_said() {
        let facts = Facts {
            direct: Some("overlayfs".to_owned()),
            cufile_own: Some("properties.force_compat_mode in /etc/cufile.json".to_owned()),
            ..Facts::default()
        };
        let compat = decide(CompatMode::Auto, &facts).unwrap();
        assert!(!compat.on);
        for word in ["force_compat_mode", "/etc/cufile.json", "without O_DIRECT"] {
            assert!(compat.reason.contains(word), "{}", compat.reason);
        }
        assert_eq!(compat.cufile_own, facts.cufile_own);
        assert_eq!(decide(CompatMode::On, &facts).unwrap().cufile_own, None);
    }

    #[test]
    fn the_kernels_release_tells_wsl() {
        assert!(is_wsl("5.15.90.1-microsoft-standard-WSL2"));
        assert!(!is_wsl("6.1.0-18-amd64"));
        assert_eq!(System::get(), System::get());
    }
}
