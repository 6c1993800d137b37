//! `TelemetryWriter`: writes the process' statistics into a file or the like, again and again.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::{TelemetryGroups, TelemetryReport};
use crate::metrics;
use crate::metrics::periodic::{Periodic, SHORTEST};

/// What is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TelemetryFormat {
    /// Lines for people.
    #[default]
    Text,
    /// Prometheus' text format, version 0.0.4.
    Prometheus,
}

/// What a [`TelemetryWriter`] writes, and how often.
///
/// | setting | default | what it is |
/// |---|---|---|
/// | `format` | text | for people, or for Prometheus |
/// | `groups` | all | which numbers |
/// | `every` | none | how often; without it once, at the end |
#[derive(Debug, Clone, Default)]
pub struct TelemetryWriterConfig {
    format: TelemetryFormat,
    groups: TelemetryGroups,
    every: Option<Duration>,
}

impl TelemetryWriterConfig {
    /// For people, or for Prometheus.
    #[must_use]
    pub fn format(mut self, format: TelemetryFormat) -> Self {
        self.format = format;
        self
    }

    /// Which numbers are written.
    #[must_use]
    pub fn groups(mut self, groups: TelemetryGroups) -> Self {
        self.groups = groups;
        self
    }

    /// How often it writes; at least 10 ms apart. Without it it writes once, at its end.
    #[must_use]
    pub fn every(mut self, interval: Duration) -> Self {
        self.every = Some(interval.max(SHORTEST));
        self
    }
}

/// Writes what all clients and servers of the process counted, those that are closed too, and once
/// more when it is finished or dropped; then it flushes. It has a thread of its own, and nobody
/// waits for its writer but who ends it.
///
/// [`start`](Self::start) writes one report behind the other, as a log has them;
/// [`replace`](Self::replace) keeps a file that has the last one only, which is what a scraper
/// wants: Prometheus refuses a page that has a metric's HELP twice.
///
/// ```
/// use fabricast::object::{TelemetryGroups, TelemetryWriter, TelemetryWriterConfig};
///
/// let log = std::io::stderr();
/// let config = TelemetryWriterConfig::default().groups(TelemetryGroups::TRANSFERS);
/// let writer = TelemetryWriter::start(log, config)?;
/// // … clients and servers come and go …
/// writer.finish()?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct TelemetryWriter {
    groups: Arc<AtomicU32>,
    periodic: Periodic,
}

impl TelemetryWriter {
    /// Starts to write.
    ///
    /// # Errors
    /// The thread can't be made.
    pub fn start(
        mut out: impl io::Write + Send + 'static,
        config: TelemetryWriterConfig,
    ) -> io::Result<Self> {
        Self::spawn(config, move |format, groups| {
            if !groups.is_empty() {
                write(&mut out, format, groups)?;
            }
            out.flush()
        })
    }

    /// Starts to write a file that always has the last report and nothing else, as a scraper of
    /// files expects it (Prometheus' node exporter, `promtool`). It is written at once, and then as
    /// the settings say: each time under a temporary name beside its place, which it then takes
    /// ([`AtomicFile`](crate::storage::AtomicFile)), so whoever reads it sees one report, whole.
    /// Nothing is brought to the device. Its permissions are 0644 less the process's umask.
    ///
    /// ```
    /// use fabricast::object::{TelemetryFormat, TelemetryWriter, TelemetryWriterConfig};
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("objects.prom");
    /// let config = TelemetryWriterConfig::default().format(TelemetryFormat::Prometheus);
    /// let writer = TelemetryWriter::replace(&path, config)?;
    /// assert!(path.exists());
    /// writer.finish()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// The file can't be written, or the thread can't be made.
    pub fn replace(path: impl Into<PathBuf>, config: TelemetryWriterConfig) -> io::Result<Self> {
        let path = path.into();
        let replace = move |format, groups| replace(&path, format, groups);
        replace(config.format, config.groups)?;
        Self::spawn(config, replace)
    }

    fn spawn(
        config: TelemetryWriterConfig,
        mut report: impl FnMut(TelemetryFormat, TelemetryGroups) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let groups = Arc::new(AtomicU32::new(config.groups.bits()));
        let wanted = Arc::clone(&groups);
        let write = move || {
            let groups = wanted.load(Ordering::Relaxed);
            report(config.format, TelemetryGroups::from_bits_truncate(groups))
        };
        let periodic = Periodic::start("object-telemetry", config.every, write)?;
        Ok(Self { groups, periodic })
    }

    /// Writes these numbers from now on, in place of those of the configuration; of no group,
    /// nothing. Any thread.
    pub fn set_groups(&self, groups: TelemetryGroups) {
        self.groups.store(groups.bits(), Ordering::Relaxed);
    }

    /// Writes once more, flushes, and drops the writer.
    ///
    /// # Errors
    /// The first error that the writer answered with; nothing was written behind it.
    pub fn finish(self) -> io::Result<()> {
        self.periodic.finish()
    }
}

/// Writes a whole file in the place of the one that is there; of no group, an empty one.
fn replace(path: &Path, format: TelemetryFormat, groups: TelemetryGroups) -> io::Result<()> {
    let mut report = Vec::new();
    if !groups.is_empty() {
        write(&mut report, format, groups)?;
    }
    metrics::file::replace(path, &report)
}

fn write(
    out: &mut dyn io::Write,
    format: TelemetryFormat,
    groups: TelemetryGroups,
) -> io::Result<()> {
    let report = TelemetryReport::of_process();
    match format {
        TelemetryFormat::Text => report.write_text_to(out, groups),
        TelemetryFormat::Prometheus => report.write_prometheus_to(out, groups),
    }
}
