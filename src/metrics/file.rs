//! `MetricsFile`: a file that always has the last text, whole.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::openmetrics_text;
use super::periodic::Periodic;
use crate::storage::AtomicFile;

/// Keeps a file that has the text of [`openmetrics_text`], for whoever collects files (the
/// collector `textfile` of Prometheus' node exporter, or a person). It is written at once, as often
/// as was asked for, and once more when this is dropped: each time under a temporary name beside
/// its place, which it then takes, so whoever reads it sees one text, whole. Its permissions are
/// 0644 less the process's umask.
///
/// ```
/// use std::time::Duration;
/// use fabricast::metrics::MetricsFile;
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("fabricast.prom");
/// let file = MetricsFile::keep(&path, Duration::from_secs(10))?;
/// assert!(std::fs::read_to_string(&path)?.ends_with("# EOF\n"));
/// file.finish()?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct MetricsFile(Periodic);

impl MetricsFile {
    /// Writes the file now, and then again and again, at least 10 ms apart.
    ///
    /// # Errors
    /// The file can't be written, or the thread can't be made.
    pub fn keep(path: impl Into<PathBuf>, every: Duration) -> io::Result<Self> {
        let path = path.into();
        replace(&path, openmetrics_text().as_bytes())?;
        let write = move || replace(&path, openmetrics_text().as_bytes());
        Periodic::start("metrics-file", Some(every), write).map(Self)
    }

    /// Writes it once more, and ends.
    ///
    /// # Errors
    /// The first error of the file; nothing was written behind it.
    pub fn finish(self) -> io::Result<()> {
        self.0.finish()
    }
}

/// Writes a whole file in the place of the one that is there.
pub(crate) fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let new = AtomicFile::create(path, 0o644).map_err(io::Error::other)?;
    new.file().write(text, 0).map_err(io::Error::other)?;
    new.commit_unsynced().map_err(io::Error::other)
}
