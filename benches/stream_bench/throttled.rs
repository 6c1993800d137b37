//! `Throttled`: a source that gives so many bytes a second and no more, as a disk does.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use fabricast::stream::{BlockSource, Manifest, SourceError};

/// 500 MB/s.
pub(crate) const RATE: f64 = 500e6;

/// Another source, read at [`RATE`] by however many threads. What was not read in time is not made
/// up for.
#[derive(Debug)]
pub(crate) struct Throttled<S> {
    source: S,
    /// When the next block is there.
    next: Mutex<Instant>,
}

impl<S: BlockSource> Throttled<S> {
    pub(crate) fn new(source: S) -> Self {
        Self {
            source,
            next: Mutex::new(Instant::now()),
        }
    }
}

impl<S: BlockSource> BlockSource for Throttled<S> {
    fn manifest(&self) -> &Manifest {
        self.source.manifest()
    }

    fn stamp(&self) -> [u8; 16] {
        self.source.stamp()
    }

    fn read(&self, entry: usize, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let due = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let takes = Duration::from_secs_f64(into.len() as f64 / RATE);
            *next = (*next).max(Instant::now()) + takes;
            *next
        };
        self.source.read(entry, offset, into)?;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        Ok(())
    }

    fn check_unchanged(&self) -> Result<(), SourceError> {
        self.source.check_unchanged()
    }
}
