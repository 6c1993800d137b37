//! cufile.json: which key makes cuFile use its compatibility mode, by POSIX and a copy.
//!
//! The file is the one that cuFile itself reads: where `CUFILE_ENV_PATH_JSON` points, else
//! `/etc/cufile.json`. It is JSON with comments to the end of the line (`//`). Without one, cuFile
//! has its defaults.

use std::env;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The environment variable that names another file.
pub const CUFILE_ENV_PATH_JSON: &str = "CUFILE_ENV_PATH_JSON";

/// Where it is by default.
const DEFAULT_PATH: &str = "/etc/cufile.json";
/// The longest file that is read.
const LENGTH_MAX: u64 = 1 << 20;

/// A configuration of cuFile.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigFile {
    path: PathBuf,
    values: Value,
}

/// Why a cufile.json can't be used.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConfigFileError {
    /// It can't be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is too long.
    #[error("{}: longer than {LENGTH_MAX} bytes", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// It is no JSON.
    #[error("{}: {reason}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column.
        reason: String,
    },
}

fabricast_process::debug_as_words!(ConfigFileError);

/// A setting that makes cuFile use its compatibility mode, or forbids it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompatSetting {
    /// The key (`properties.force_compat_mode`) or the environment variable
    /// (`CUFILE_FORCE_COMPAT_MODE`).
    pub key: String,
    /// Its value, as it is written.
    pub value: String,
    /// What it does.
    pub effect: CompatEffect,
    /// The file it is in; `None` for the environment.
    pub file: Option<PathBuf>,
}

/// What a setting does to compatibility mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CompatEffect {
    /// Everything goes by compatibility mode.
    Forced,
    /// Nothing does: what can't go GPU-direct fails.
    Forbidden,
    /// All writes do.
    Writes,
    /// Writes do that are no multiples of 4 KiB.
    UnalignedWrites,
    /// Writes to that kind of file system do.
    WritesTo(&'static str),
    /// Short operations on that kind of file system do.
    SmallOn(&'static str),
    /// Everything on network file systems does.
    NetworkFileSystems,
}

impl fmt::Display for CompatEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forced => f.write_str("all of cuFile's operations go through compatibility mode"),
            Self::Forbidden => {
                f.write_str("compatibility mode is off: what can't go GPU-direct fails")
            }
            Self::Writes => f.write_str("all writes go through compatibility mode"),
            Self::UnalignedWrites => {
                f.write_str("writes that are no multiples of 4 KiB go through compatibility mode")
            }
            Self::WritesTo(kind) => write!(f, "writes to {kind} go through compatibility mode"),
            Self::SmallOn(kind) => {
                write!(
                    f,
                    "short operations on {kind} go through compatibility mode"
                )
            }
            Self::NetworkFileSystems => {
                f.write_str("operations on network file systems go through compatibility mode")
            }
        }
    }
}

impl fmt::Display for CompatSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, value) = (&self.key, &self.value);
        match &self.file {
            Some(file) => write!(f, "{}: {key} = {value}: {}", file.display(), self.effect),
            None => write!(f, "environment: {key} = {value}: {}", self.effect),
        }
    }
}

/// Which value of a key means what.
enum Means {
    /// This effect where it is true.
    True(CompatEffect),
    /// This effect where it is false.
    False(CompatEffect),
    /// This effect where it is more than 0.
    Positive(CompatEffect),
}

/// The keys that say something about compatibility mode; those that override others first.
const KEYS: &[(&str, Means)] = &[
    (
        "properties.force_compat_mode",
        Means::True(CompatEffect::Forced),
    ),
    (
        "properties.vanilla_posix_io_mode",
        Means::True(CompatEffect::Forced),
    ),
    (
        "properties.allow_compat_mode",
        Means::False(CompatEffect::Forbidden),
    ),
    (
        "properties.gds_rdma_write_support",
        Means::False(CompatEffect::Writes),
    ),
    (
        "fs.generic.posix_unaligned_writes",
        Means::True(CompatEffect::UnalignedWrites),
    ),
    (
        "fs.weka.rdma_write_support",
        Means::False(CompatEffect::WritesTo("WekaFS")),
    ),
    (
        "fs.gpfs.gds_write_support",
        Means::False(CompatEffect::WritesTo("IBM Spectrum Scale")),
    ),
    (
        "fs.lustre.posix_gds_min_kb",
        Means::Positive(CompatEffect::SmallOn("Lustre")),
    ),
    (
        "fs.beegfs.posix_gds_min_kb",
        Means::Positive(CompatEffect::SmallOn("BeeGFS")),
    ),
    (
        "fs.scatefs.posix_gds_min_kb",
        Means::Positive(CompatEffect::SmallOn("ScateFS")),
    ),
];

/// The same of the environment, which goes before the file.
const VARIABLES: &[(&str, Means)] = &[
    (
        "CUFILE_FORCE_COMPAT_MODE",
        Means::True(CompatEffect::Forced),
    ),
    (
        "CUFILE_ALLOW_COMPAT_MODE",
        Means::False(CompatEffect::Forbidden),
    ),
];

impl ConfigFile {
    /// The file that cuFile reads in this process, if there is one.
    ///
    /// # Errors
    ///
    /// [`ConfigFileError`]: it is there but can't be read, or the environment names one that is not
    /// there.
    pub fn find() -> Result<Option<Self>, ConfigFileError> {
        let named = env::var_os(CUFILE_ENV_PATH_JSON).filter(|path| !path.is_empty());
        let is_named = named.is_some();
        let path = named.map_or_else(|| PathBuf::from(DEFAULT_PATH), PathBuf::from);
        match Self::read(&path) {
            Err(ConfigFileError::Read { source, .. })
                if source.kind() == io::ErrorKind::NotFound && !is_named =>
            {
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`ConfigFileError`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ConfigFileError> {
        let path = path.as_ref();
        let failed = |source| ConfigFileError::Read {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(failed)?;
        let mut text = String::new();
        let mut limited = file.take(LENGTH_MAX + 1);
        limited.read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > LENGTH_MAX {
            let path = path.to_owned();
            return Err(ConfigFileError::TooLong { path });
        }
        Self::parse(path, &text)
    }

    /// Understands a text. `path` is what errors call it.
    ///
    /// # Errors
    ///
    /// [`ConfigFileError::Syntax`].
    pub fn parse(path: impl AsRef<Path>, text: &str) -> Result<Self, ConfigFileError> {
        let values = serde_json::from_str(&without_comments(text));
        let path = path.as_ref().to_owned();
        match values {
            Ok(values) => Ok(Self { path, values }),
            Err(error) => Err(ConfigFileError::Syntax {
                path,
                reason: error.to_string(),
            }),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The value of a key, its parts parted by dots (`properties.io_batchsize`), as JSON writes it;
    /// texts without their quotes.
    pub fn value(&self, key: &str) -> Option<String> {
        self.lookup(key).map(plain)
    }

    /// The settings that say something about compatibility mode, those that override others first.
    pub fn compat_settings(&self) -> Vec<CompatSetting> {
        let mut settings: Vec<_> = KEYS
            .iter()
            .filter_map(|(key, means)| {
                let value = plain(self.lookup(key)?);
                let effect = means.effect(&value)?;
                Some(self.setting(key, value, effect))
            })
            .collect();
        settings.extend(self.routed_through_memory());
        settings
    }

    /// Dynamic routing through system memory alone.
    fn routed_through_memory(&self) -> Option<CompatSetting> {
        let routing = self.lookup("properties.rdma_dynamic_routing")?;
        let key = "properties.rdma_dynamic_routing_order";
        let order = self.lookup(key)?;
        let only_memory = order
            .as_array()
            .is_some_and(|order| order.len() == 1 && order[0].as_str() == Some("SYS_MEM"));
        let forces = only_memory && is_true(&plain(routing));
        let effect = CompatEffect::NetworkFileSystems;
        forces.then(|| self.setting(key, plain(order), effect))
    }

    fn setting(&self, key: &str, value: String, effect: CompatEffect) -> CompatSetting {
        CompatSetting {
            key: key.to_owned(),
            value,
            effect,
            file: Some(self.path.clone()),
        }
    }

    fn lookup(&self, key: &str) -> Option<&Value> {
        let mut value = &self.values;
        for part in key.split('.') {
            value = value.get(part)?;
        }
        Some(value)
    }
}

/// All settings of this process that say something about compatibility mode: of the environment,
/// then of the file.
///
/// # Errors
///
/// As for [`ConfigFile::find`].
pub fn compat_settings() -> Result<Vec<CompatSetting>, ConfigFileError> {
    let from_environment = VARIABLES.iter().filter_map(|(key, means)| {
        let value = env::var(key).ok()?;
        let effect = means.effect(&value)?;
        Some(CompatSetting {
            key: (*key).to_owned(),
            value,
            effect,
            file: None,
        })
    });
    let mut settings: Vec<_> = from_environment.collect();
    if let Some(file) = ConfigFile::find()? {
        settings.extend(file.compat_settings());
    }
    Ok(settings)
}

impl Means {
    fn effect(&self, value: &str) -> Option<CompatEffect> {
        match *self {
            Self::True(effect) => is_true(value).then_some(effect),
            Self::False(effect) => is_false(value).then_some(effect),
            Self::Positive(effect) => {
                let kib: Option<f64> = value.trim().parse().ok();
                kib.is_some_and(|kib| kib > 0.0).then_some(effect)
            }
        }
    }
}

fn is_true(value: &str) -> bool {
    ["true", "1"]
        .iter()
        .any(|it| value.trim().eq_ignore_ascii_case(it))
}

fn is_false(value: &str) -> bool {
    ["false", "0"]
        .iter()
        .any(|it| value.trim().eq_ignore_ascii_case(it))
}

/// The value as JSON writes it; texts without their quotes.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The text with blanks for its comments: from `//` to the end of the line, where that is not in a
/// text. Lines and columns stay what they were.
fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let (mut in_text, mut in_comment) = (false, false);
    while let Some(c) = chars.next() {
        if in_comment {
            in_comment = c != '\n';
            out.push(if in_comment { ' ' } else { c });
        } else if in_text {
            out.push(c);
            if c == '\\' {
                out.extend(chars.next());
            } else {
                in_text = c != '"';
            }
        } else if c == '/' && chars.peek() == Some(&'/') {
            in_comment = true;
            out.push(' ');
        } else {
            in_text = c == '"';
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r#"
{
    // NOTE : Application can override custom configuration via export CUFILE_ENV_PATH_JSON=<path>
    "logging": { "level": "ERROR" /* not a comment */ },
}
"#;

    fn parse(text: &str) -> ConfigFile {
        ConfigFile::parse("/test/cufile.json", text).unwrap()
    }

    #[test]
    fn comments_are_blanks() {
        let text = "{ // one\n\"a\": \"http://x\\\"//y\", // two \"\n\"b\": {\"c\": 1}}//";
        let file = parse(text);
        assert_eq!(file.value("a").as_deref(), Some("http://x\"//y"));
        assert_eq!(file.value("b.c").as_deref(), Some("1"));
        assert_eq!(file.value("b.d"), None);
        assert_eq!(without_comments(text).len(), text.len());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let error = ConfigFile::parse("/test/cufile.json", SAMPLE).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("/test/cufile.json: "), "{text}");
        assert!(text.contains("line 4"), "{text}");
    }

    #[test]
    fn keys_that_decide_are_named() {
        let file = parse(
            r#"{"properties": {"allow_compat_mode": false, "force_compat_mode": true,
                "gds_rdma_write_support": true, "rdma_dynamic_routing": true,
                "rdma_dynamic_routing_order": ["SYS_MEM"]},
                "fs": {"generic": {"posix_unaligned_writes": "true"},
                "weka": {"rdma_write_support": false},
                "lustre": {"posix_gds_min_kb": 16}, "beegfs": {"posix_gds_min_kb": 0}}}"#,
        );
        let settings = file.compat_settings();
        let found: Vec<_> = settings
            .iter()
            .map(|it| (it.key.as_str(), it.effect))
            .collect();
        assert_eq!(
            found,
            [
                ("properties.force_compat_mode", CompatEffect::Forced),
                ("properties.allow_compat_mode", CompatEffect::Forbidden),
                (
                    "fs.generic.posix_unaligned_writes",
                    CompatEffect::UnalignedWrites
                ),
                (
                    "fs.weka.rdma_write_support",
                    CompatEffect::WritesTo("WekaFS")
                ),
                (
                    "fs.lustre.posix_gds_min_kb",
                    CompatEffect::SmallOn("Lustre")
                ),
                (
                    "properties.rdma_dynamic_routing_order",
                    CompatEffect::NetworkFileSystems
                ),
            ]
        );
        let text = settings[0].to_string();
        assert!(text.starts_with("/test/cufile.json: properties.force_compat_mode = true: "));
    }

    #[test]
    fn defaults_say_nothing() {
        let file = parse(
            r#"{"properties": {"allow_compat_mode": true, "force_compat_mode": false,
                "rdma_dynamic_routing": false, "rdma_dynamic_routing_order": ["SYS_MEM"]}}"#,
        );
        assert_eq!(file.compat_settings(), []);
        assert_eq!(parse("{}").compat_settings(), []);
        assert_eq!(parse("[]").compat_settings(), []);
    }

    #[test]
    fn a_file_that_is_too_long_or_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cufile.json");
        let error = ConfigFile::read(&path).unwrap_err();
        assert!(matches!(error, ConfigFileError::Read { .. }), "{error}");
        std::fs::write(&path, vec![b' '; LENGTH_MAX as usize + 1]).unwrap();
        let error = ConfigFile::read(&path).unwrap_err();
        assert!(matches!(error, ConfigFileError::TooLong { .. }), "{error}");
    }
}
