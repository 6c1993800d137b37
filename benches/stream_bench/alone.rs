//! What the disk gives, or takes, or both, with no network beside it.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fabricast::stream::BlockSource;

use crate::case::Case;
use crate::error::{Failure, fail};
use crate::ring;
use crate::sending::{Sent, timed};

/// Does nothing too early for a rate.
struct Pace {
    began: Instant,
    /// None: as fast as it goes.
    bytes_per_s: Option<f64>,
}

impl Pace {
    fn new(bytes_per_s: Option<f64>) -> Self {
        let began = Instant::now();
        Self { began, bytes_per_s }
    }

    /// Until the bytes before may have gone.
    fn wait(&self, before: usize) {
        if let Some(rate) = self.bytes_per_s {
            let due = Duration::from_secs_f64(before as f64 / rate);
            std::thread::sleep(due.saturating_sub(self.began.elapsed()));
        }
    }
}

/// The stream's own source, read by as many threads into as much memory.
pub(crate) fn read<S: BlockSource>(
    case: &Case,
    open: impl FnOnce() -> Result<S, Failure>,
) -> Result<Sent, Failure> {
    let mut memory = vec![1; room(case, case.readers)];
    let (sent, ()) = timed(|| read_all(case, &open()?, &mut memory, None))?;
    Ok(sent)
}

/// Bytes of as many blocks as there are buffers, or a few more, so that each thread has as many.
pub(crate) fn room(case: &Case, threads: u32) -> usize {
    case.buffers.next_multiple_of(threads as usize) * case.block
}

/// A source's blocks, read by threads that share the memory.
pub(crate) fn read_all(
    case: &Case,
    source: &impl BlockSource,
    memory: &mut [u8],
    rate: Option<f64>,
) -> Result<(), Failure> {
    let part = memory.len() / case.readers as usize;
    let parts = memory.chunks_exact_mut(part).collect();
    on_threads(case, parts, rate, |index, memory: &mut &mut [u8]| {
        let buffers = memory.len() / case.block;
        let at = index % buffers * case.block;
        let into = &mut memory[at..][..case.len(index)];
        Ok(source.read(0, (index * case.block) as u64, into)?)
    })
}

/// Does something with each block, on a thread for each of these values, no faster than at that
/// rate.
pub(crate) fn on_threads<T: Send>(
    case: &Case,
    threads: Vec<T>,
    rate: Option<f64>,
    work: impl Fn(usize, &mut T) -> Result<(), Failure> + Sync,
) -> Result<(), Failure> {
    let (next, pace) = (AtomicUsize::new(0), Pace::new(rate));
    let all = |mut own: T| -> Result<(), Failure> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= case.blocks() {
                return Ok(());
            }
            pace.wait(index * case.block);
            work(index, &mut own)?;
        }
    };
    std::thread::scope(|scope| {
        let all = &all;
        let threads: Vec<_> = threads
            .into_iter()
            .map(|own| scope.spawn(move || all(own)))
            .collect();
        for thread in threads {
            match thread.join() {
                Ok(result) => result?,
                Err(_) => return fail("a thread panicked"),
            }
        }
        Ok(())
    })
}

/// A new file, written by one thread, block by block, and synced.
pub(crate) fn write(case: &Case, directory: &Path) -> Result<Sent, Failure> {
    let path = directory.join("alone.dat");
    let memory = vec![1; case.buffers * case.block];
    let (sent, ()) = timed(|| {
        let file = File::create(&path)?;
        for index in 0..case.blocks() {
            let from = &memory[index % case.buffers * case.block..][..case.len(index)];
            file.write_all_at(from, (index * case.block) as u64)?;
        }
        Ok(file.sync_all()?)
    })?;
    std::fs::remove_file(&path)?;
    Ok(sent)
}

/// A file read by one thread and written by another, and the new one synced.
pub(crate) fn copy(case: &Case, path: &Path, directory: &Path) -> Result<Sent, Failure> {
    let to = directory.join("alone.dat");
    let memory = ring::memory(case)?;
    let (sent, ()) = timed(|| {
        let (from, mut file) = (File::open(path)?, File::create(&to)?);
        ring::double_buffered(case, &from, &memory, |block| Ok(file.write_all(block)?))?;
        Ok(file.sync_all()?)
    })?;
    std::fs::remove_file(&to)?;
    Ok(sent)
}
