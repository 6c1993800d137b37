//! `Settings`: what can be set for all files, with units, defaults, ranges and variables; one table
//! says it all.

use std::ffi::OsString;
use std::fmt;

use super::CompatMode;
use super::thread_pool::{QUEUE_MAX, THREADS_MAX};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// What files, calls and pools do where nothing else was asked for.
///
/// | setting | KvikIO's variables | unit | default | range |
/// |---|---|---|---|---|
/// | `compat_mode` | `KVIKIO_COMPAT_MODE` | | AUTO | AUTO, ON, OFF |
/// | `num_threads` | `KVIKIO_NTHREADS`, `KVIKIO_NUM_THREADS` | threads of a pool | 8 | 1 to 1024 |
/// | `task_size` | `KVIKIO_TASK_SIZE` | bytes | 4194304 | 1 to 1099511627776 |
/// | `gds_threshold` | `KVIKIO_GDS_THRESHOLD` | bytes | 16384 | 0 to 1099511627776 |
/// | `bounce_buffer_size` | `KVIKIO_BOUNCE_BUFFER_SIZE` | bytes | 16777216 | 1 to 1073741824 |
/// | `bounce_pool_size` | | bytes | 268435456 | 1 to 1099511627776 |
/// | `auto_direct_io_read` | `KVIKIO_AUTO_DIRECT_IO_READ` | | off | on, off |
/// | `auto_direct_io_write` | `KVIKIO_AUTO_DIRECT_IO_WRITE` | | on | on, off |
/// | `auto_direct_io_read_overread` | `KVIKIO_AUTO_DIRECT_IO_READ_OVERREAD` | | off | on, off |
/// | `auto_direct_io_threshold` | | bytes | 65536 | 0 to 1099511627776 |
/// | `thread_pool_per_block_device` | `KVIKIO_THREAD_POOL_PER_BLOCK_DEVICE` | | off | on, off |
/// | `thread_pool_queue` | | operations | 4096 | 1 to 1048576 |
/// | `io_uring` | | | on | on, off |
/// | `io_uring_depth` | | pieces in flight on a ring | 32 | 1 to 4096 |
///
/// Each setting has a variable: `FABRICAST_` and its name in capitals, such as
/// `FABRICAST_NUM_THREADS`. Where that is not set, the first of KvikIO's that is set counts.
/// `num_threads` is for each shared pool; `bounce_buffer_size` is rounded up to pages.
///
/// The defaults are KvikIO's, but for `num_threads`: KvikIO has 1, with which nothing is parallel
/// that was asked to be.
///
/// In variables, sizes are whole numbers of bytes; switches are `on`, `true`, `yes` or a number
/// that is not 0, and `off`, `false`, `no` or 0, in any case. An empty value is an error, as is
/// anything else out of the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Whether GPU memory is moved without cuFile. Counts for files that are opened from then on.
    pub compat_mode: CompatMode,
    /// Threads of the pool of the process, and of each block device's.
    pub num_threads: usize,
    /// Into how many bytes a task an operation is cut, for the threads; see
    /// [`IoOptions::task_size`](super::IoOptions::task_size) for what is cut otherwise.
    pub task_size: usize,
    /// Transfers to or from GPU memory that are shorter are done by the calling thread, without
    /// cuFile.
    pub gds_threshold: usize,
    /// The longest bounce buffer. Also of GPU memory that is staged: a task goes through two pieces
    /// of pinned memory, of a quarter of this each, and is as long as this at least.
    pub bounce_buffer_size: usize,
    /// What all bounce buffers of the host's memory together may take; beyond it, tasks wait for
    /// one another's. Of pinned memory, no more than this is kept for the next transfer.
    pub bounce_pool_size: usize,
    /// Whether reads go around the page cache (O_DIRECT) where the handle and the call leave the
    /// choice open.
    pub auto_direct_io_read: bool,
    /// Whether writes do.
    pub auto_direct_io_write: bool,
    /// Whether a direct read into GPU memory reads the whole pages that its edges lie in, instead
    /// of reading the edges through the page cache.
    pub auto_direct_io_read_overread: bool,
    /// Shorter transfers never go around the page cache where the choice is left open.
    pub auto_direct_io_threshold: usize,
    /// Whether each block device has a pool of its own: files on different drives don't wait for
    /// one another then.
    pub thread_pool_per_block_device: bool,
    /// How many operations may wait for the threads of a shared pool; counts for pools that are
    /// made from then on.
    pub thread_pool_queue: usize,
    /// Whether io_uring is used, where the kernel allows it and it serves.
    pub io_uring: bool,
    /// How many pieces of a transfer are in flight on a ring at once.
    pub io_uring_depth: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Settings {
    pub(super) const DEFAULT: Self = Self {
        compat_mode: CompatMode::Auto,
        num_threads: 8,
        task_size: 4 * MIB as usize,
        gds_threshold: 16 * KIB as usize,
        bounce_buffer_size: 16 * MIB as usize,
        bounce_pool_size: 256 * MIB as usize,
        auto_direct_io_read: false,
        auto_direct_io_write: true,
        auto_direct_io_read_overread: false,
        auto_direct_io_threshold: 64 * KIB as usize,
        thread_pool_per_block_device: false,
        thread_pool_queue: 4096,
        io_uring: true,
        io_uring_depth: 32,
    };

    /// # Errors
    ///
    /// The first setting that is out of its range.
    pub(super) fn check(&self) -> Result<(), SettingError> {
        let wrong = SETTINGS.iter().find(|it| !it.kind.allows((it.get)(self)));
        match wrong {
            Some(setting) => Err(SettingError {
                setting: setting.name,
                variable: None,
                value: setting.kind.text((setting.get)(self)),
                problem: Problem::Range(setting.range()),
            }),
            None => Ok(()),
        }
    }

    /// What an environment says, the default where it says nothing; and the first thing in it that
    /// makes no sense, for which the default stands in.
    pub(super) fn from_environment(
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> (Self, Option<SettingError>) {
        let mut settings = Self::DEFAULT;
        let mut first = None;
        for setting in &SETTINGS {
            match setting.look_up(&variable) {
                Ok(Some(value)) => (setting.set)(&mut settings, value),
                Ok(None) => {}
                Err(error) => {
                    first.get_or_insert(error);
                }
            }
        }
        (settings, first)
    }
}

/// A setting that makes no sense: which, from where, its value, and what it may be.
#[derive(Clone, PartialEq, Eq)]
pub struct SettingError {
    setting: &'static str,
    variable: Option<&'static str>,
    value: String,
    problem: Problem,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Problem {
    /// What it may be.
    Range(String),
    /// Another variable for the same setting says something else.
    Contradiction {
        other: &'static str,
        other_value: String,
    },
}

impl SettingError {
    /// The setting, by its name in [`Settings`].
    pub fn setting(&self) -> &'static str {
        self.setting
    }

    /// The variable of the environment that it came from; none where it was set by code.
    pub fn variable(&self) -> Option<&'static str> {
        self.variable
    }

    /// The value, as it was given.
    pub fn value(&self) -> &str {
        &self.value
    }
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setting, value, .. } = self;
        match (self.variable, &self.problem) {
            (None, Problem::Range(range)) => write!(f, "{setting} = {value}: must be {range}"),
            (Some(variable), Problem::Range(range)) => write!(
                f,
                "{setting}, from {variable}={value}: must be {range}; correct the variable, or \
                 unset it"
            ),
            (variable, Problem::Contradiction { other, other_value }) => write!(
                f,
                "{setting}, from {}={value}, but {other}={other_value}: unset one of them",
                variable.unwrap_or("code")
            ),
        }
    }
}

impl std::error::Error for SettingError {}

fabricast_process::debug_as_words!(SettingError);

/// A row of the table.
pub(super) struct Setting {
    pub(super) name: &'static str,
    /// Ours.
    pub(super) variable: &'static str,
    /// KvikIO's, which mean the same.
    pub(super) kvikio: &'static [&'static str],
    /// As in "1 to 5 …"; empty for switches and modes.
    pub(super) unit: &'static str,
    pub(super) kind: Kind,
    pub(super) get: fn(&Settings) -> u64,
    pub(super) set: fn(&mut Settings, u64),
}

/// What values a setting has. All of them are kept as numbers here, so that one table can hold all
/// settings.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Number {
        least: u64,
        most: u64,
    },
    /// 0 and 1.
    Switch,
    /// See [`mode`].
    Compat,
}

impl Kind {
    fn allows(self, value: u64) -> bool {
        match self {
            Self::Number { least, most } => (least..=most).contains(&value),
            Self::Switch | Self::Compat => true,
        }
    }

    fn parse(self, text: &str) -> Option<u64> {
        let text = text.trim();
        let value = match self {
            Self::Number { .. } => text.parse().ok()?,
            Self::Switch => u64::from(switch(text)?),
            Self::Compat => number(text.parse().ok()?),
        };
        self.allows(value).then_some(value)
    }

    /// As a variable would have it.
    pub(super) fn text(self, value: u64) -> String {
        match self {
            Self::Number { .. } => value.to_string(),
            Self::Switch => if value == 0 { "off" } else { "on" }.to_owned(),
            Self::Compat => mode(value).to_string(),
        }
    }
}

impl Setting {
    /// In words, with the default.
    fn range(&self) -> String {
        let default = self.kind.text((self.get)(&Settings::DEFAULT));
        format!("{} (default {default})", self.values())
    }

    /// What it may be.
    pub(super) fn values(&self) -> String {
        match self.kind {
            Kind::Number { least, most } => format!("{least} to {most} {}", self.unit),
            Kind::Switch => "on or off".to_owned(),
            Kind::Compat => "AUTO, ON or OFF".to_owned(),
        }
    }

    fn look_up(
        &self,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Option<u64>, SettingError> {
        if let Some(value) = variable(self.variable) {
            return self.parse(self.variable, value).map(Some);
        }
        let mut found: Option<(&'static str, OsString)> = None;
        for &name in self.kvikio {
            let Some(value) = variable(name) else {
                continue;
            };
            match &found {
                // As in KvikIO: neither is the right one.
                Some((other, other_value)) if *other_value != value => {
                    return Err(SettingError {
                        setting: self.name,
                        variable: Some(name),
                        value: value.to_string_lossy().into_owned(),
                        problem: Problem::Contradiction {
                            other,
                            other_value: other_value.to_string_lossy().into_owned(),
                        },
                    });
                }
                Some(_) => {}
                None => found = Some((name, value)),
            }
        }
        found
            .map(|(name, value)| self.parse(name, value))
            .transpose()
    }

    fn parse(&self, variable: &'static str, value: OsString) -> Result<u64, SettingError> {
        let parsed = value.to_str().and_then(|text| self.kind.parse(text));
        parsed.ok_or_else(|| SettingError {
            setting: self.name,
            variable: Some(variable),
            value: value.to_string_lossy().into_owned(),
            problem: Problem::Range(self.range()),
        })
    }
}

/// A switch as KvikIO reads it.
fn switch(text: &str) -> Option<bool> {
    if let Ok(number) = text.parse::<i64>() {
        return Some(number != 0);
    }
    match text.to_ascii_lowercase().as_str() {
        "true" | "on" | "yes" => Some(true),
        "false" | "off" | "no" => Some(false),
        _ => None,
    }
}

fn number(mode: CompatMode) -> u64 {
    match mode {
        CompatMode::Auto => 0,
        CompatMode::On => 1,
        CompatMode::Off => 2,
    }
}

fn mode(number: u64) -> CompatMode {
    match number {
        1 => CompatMode::On,
        2 => CompatMode::Off,
        _ => CompatMode::Auto,
    }
}

/// The ranges of numbers end far below `usize::MAX` on the machines that this library is for (64
/// bits).
const fn size(value: u64) -> usize {
    value as usize
}

pub(super) static SETTINGS: [Setting; 14] = [
    Setting {
        name: "compat_mode",
        variable: "FABRICAST_COMPAT_MODE",
        kvikio: &["KVIKIO_COMPAT_MODE"],
        unit: "",
        kind: Kind::Compat,
        get: |settings| number(settings.compat_mode),
        set: |settings, value| settings.compat_mode = mode(value),
    },
    Setting {
        name: "num_threads",
        variable: "FABRICAST_NUM_THREADS",
        kvikio: &["KVIKIO_NTHREADS", "KVIKIO_NUM_THREADS"],
        unit: "threads",
        kind: Kind::Number {
            least: 1,
            most: THREADS_MAX as u64,
        },
        get: |settings| settings.num_threads as u64,
        set: |settings, value| settings.num_threads = size(value),
    },
    Setting {
        name: "task_size",
        variable: "FABRICAST_TASK_SIZE",
        kvikio: &["KVIKIO_TASK_SIZE"],
        unit: "bytes",
        kind: Kind::Number {
            least: 1,
            most: TIB,
        },
        get: |settings| settings.task_size as u64,
        set: |settings, value| settings.task_size = size(value),
    },
    Setting {
        name: "gds_threshold",
        variable: "FABRICAST_GDS_THRESHOLD",
        kvikio: &["KVIKIO_GDS_THRESHOLD"],
        unit: "bytes",
        kind: Kind::Number {
            least: 0,
            most: TIB,
        },
        get: |settings| settings.gds_threshold as u64,
        set: |settings, value| settings.gds_threshold = size(value),
    },
    Setting {
        name: "bounce_buffer_size",
        variable: "FABRICAST_BOUNCE_BUFFER_SIZE",
        kvikio: &["KVIKIO_BOUNCE_BUFFER_SIZE"],
        unit: "bytes",
        kind: Kind::Number {
            least: 1,
            most: GIB,
        },
        get: |settings| settings.bounce_buffer_size as u64,
        set: |settings, value| settings.bounce_buffer_size = size(value),
    },
    Setting {
        name: "bounce_pool_size",
        variable: "FABRICAST_BOUNCE_POOL_SIZE",
        kvikio: &[],
        unit: "bytes",
        kind: Kind::Number {
            least: 1,
            most: TIB,
        },
        get: |settings| settings.bounce_pool_size as u64,
        set: |settings, value| settings.bounce_pool_size = size(value),
    },
    Setting {
        name: "auto_direct_io_read",
        variable: "FABRICAST_AUTO_DIRECT_IO_READ",
        kvikio: &["KVIKIO_AUTO_DIRECT_IO_READ"],
        unit: "",
        kind: Kind::Switch,
        get: |settings| u64::from(settings.auto_direct_io_read),
        set: |settings, value| settings.auto_direct_io_read = value != 0,
    },
    Setting {
        name: "auto_direct_io_write",
        variable: "FABRICAST_AUTO_DIRECT_IO_WRITE",
        kvikio: &["KVIKIO_AUTO_DIRECT_IO_WRITE"],
        unit: "",
        kind: Kind::Switch,
        get: |settings| u64::from(settings.auto_direct_io_write),
        set: |settings, value| settings.auto_direct_io_write = value != 0,
    },
    Setting {
        name: "auto_direct_io_read_overread",
        variable: "FABRICAST_AUTO_DIRECT_IO_READ_OVERREAD",
        kvikio: &["KVIKIO_AUTO_DIRECT_IO_READ_OVERREAD"],
        unit: "",
        kind: Kind::Switch,
        get: |settings| u64::from(settings.auto_direct_io_read_overread),
        set: |settings, value| settings.auto_direct_io_read_overread = value != 0,
    },
    Setting {
        name: "auto_direct_io_threshold",
        variable: "FABRICAST_AUTO_DIRECT_IO_THRESHOLD",
        kvikio: &[],
        unit: "bytes",
        kind: Kind::Number {
            least: 0,
            most: TIB,
        },
        get: |settings| settings.auto_direct_io_threshold as u64,
        set: |settings, value| settings.auto_direct_io_threshold = size(value),
    },
    Setting {
        name: "thread_pool_per_block_device",
        variable: "FABRICAST_THREAD_POOL_PER_BLOCK_DEVICE",
        kvikio: &["KVIKIO_THREAD_POOL_PER_BLOCK_DEVICE"],
        unit: "",
        kind: Kind::Switch,
        get: |settings| u64::from(settings.thread_pool_per_block_device),
        set: |settings, value| settings.thread_pool_per_block_device = value != 0,
    },
    Setting {
        name: "thread_pool_queue",
        variable: "FABRICAST_THREAD_POOL_QUEUE",
        kvikio: &[],
        unit: "operations",
        kind: Kind::Number {
            least: 1,
            most: QUEUE_MAX as u64,
        },
        get: |settings| settings.thread_pool_queue as u64,
        set: |settings, value| settings.thread_pool_queue = size(value),
    },
    Setting {
        name: "io_uring",
        variable: "FABRICAST_IO_URING",
        kvikio: &[],
        unit: "",
        kind: Kind::Switch,
        get: |settings| u64::from(settings.io_uring),
        set: |settings, value| settings.io_uring = value != 0,
    },
    Setting {
        name: "io_uring_depth",
        variable: "FABRICAST_IO_URING_DEPTH",
        kvikio: &[],
        unit: "pieces",
        kind: Kind::Number {
            least: 1,
            most: 4096,
        },
        get: |settings| settings.io_uring_depth as u64,
        set: |settings, value| settings.io_uring_depth = size(value),
    },
];

#[cfg(all(test, not(loom)))]
#[path = "tests/settings.rs"]
mod tests;

#[cfg(all(test, not(loom)))]
mod documented {
    use super::*;
    use crate::endpoint::testing::documented_settings::{self, compare};

    #[test]
    fn the_table_of_settings_is_what_the_code_does() {
        let settings: &[documented_settings::Setting<Settings>] = &[
            documented_settings::Setting {
                name: "num_threads",
                get: |c| c.num_threads.into(),
                set: |c, v| Settings {
                    num_threads: v.bytes(),
                    ..c
                },
            },
            documented_settings::Setting {
                name: "task_size",
                get: |c| c.task_size.into(),
                set: |c, v| Settings {
                    task_size: v.bytes(),
                    ..c
                },
            },
            documented_settings::Setting {
                name: "gds_threshold",
                get: |c| c.gds_threshold.into(),
                set: |c, v| Settings {
                    gds_threshold: v.bytes(),
                    ..c
                },
            },
            documented_settings::Setting {
                name: "bounce_buffer_size",
                get: |c| c.bounce_buffer_size.into(),
                set: |c, v| Settings {
                    bounce_buffer_size: v.bytes(),
                    ..c
                },
            },
            documented_settings::Setting {
                name: "bounce_pool_size",
                get: |c| c.bounce_pool_size.into(),
                set: |c, v| Settings {
                    bounce_pool_size: v.bytes(),
                    ..c
                },
            },
            documented_settings::Setting {
                name: "auto_direct_io_threshold",
                get: |c| c.auto_direct_io_threshold.into(),
                set: |c, v| Settings {
                    auto_direct_io_threshold: v.bytes(),
                    ..c
                },
            },
            documented_settings::Setting {
                name: "thread_pool_queue",
                get: |c| c.thread_pool_queue.into(),
                set: |c, v| Settings {
                    thread_pool_queue: v.bytes(),
                    ..c
                },
            },
            documented_settings::Setting {
                name: "io_uring_depth",
                get: |c| c.io_uring_depth.into(),
                set: |c, v| Settings {
                    io_uring_depth: v.bytes(),
                    ..c
                },
            },
        ];
        compare(
            include_str!("settings.rs"),
            "Settings",
            settings,
            Settings::check,
        );
    }
}
