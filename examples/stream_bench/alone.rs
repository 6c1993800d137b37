//! One end alone: what the disk gives, or takes, with no network beside it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use fabricast::stream::{BlockSource, FileSource};

use crate::case::Case;
use crate::error::{Failure, fail};
use crate::sending::{Sent, timed};

/// The stream's own source, read by as many threads into as much memory.
pub(crate) fn read(case: &Case, path: &Path) -> Result<Sent, Failure> {
    let readers = case.readers as usize;
    let each = case.buffers.div_ceil(readers);
    let mut memory = vec![1; readers * each * case.block];
    let (sent, ()) = timed(|| {
        let source = FileSource::file(path)?;
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let (source, next) = (&source, &next);
            let parts = memory.chunks_exact_mut(each * case.block);
            let readers: Vec<_> = parts
                .map(|part| scope.spawn(move || read_blocks(case, source, next, part)))
                .collect();
            for reader in readers {
                match reader.join() {
                    Ok(result) => result?,
                    Err(_) => return fail("a reader panicked"),
                }
            }
            Ok(())
        })
    })?;
    Ok(sent)
}

fn read_blocks(
    case: &Case,
    source: &FileSource,
    next: &AtomicUsize,
    memory: &mut [u8],
) -> Result<(), Failure> {
    for block in (0..memory.len() / case.block).cycle() {
        let index = next.fetch_add(1, Ordering::Relaxed);
        if index >= case.blocks() {
            break;
        }
        let into = &mut memory[block * case.block..][..case.len(index)];
        source.read(0, (index * case.block) as u64, into)?;
    }
    Ok(())
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
