//! `Files`: the file that is sent, and the directories of an operation; all of it goes with this
//! value.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use fabricast::cuda::Device;
use tempfile::TempDir;

use crate::case::{Case, Operation};
use crate::error::Failure;
use crate::{Options, disk};

/// The source file of an operation, and where its sink writes.
pub(crate) struct Files {
    pub(crate) source: PathBuf,
    /// None: everything is dropped.
    pub(crate) sink: Option<PathBuf>,
    pub(crate) sync: bool,
    cold: bool,
    _source: TempDir,
    _sink: Option<TempDir>,
}

impl Files {
    /// `None`, with the reason printed, where there is no room for them.
    pub(crate) fn prepare(
        operation: Operation,
        options: &Options,
    ) -> Result<Option<Self>, Failure> {
        let temporary = std::env::temp_dir();
        let on_disk = options.dir.as_ref().unwrap_or(&temporary);
        let in_memory = &options.memory_dir;
        let (source, sink) = match operation {
            Operation::WarmDiscard
            | Operation::ByWrite
            | Operation::ThrottledDiscard
            | Operation::ColdDiscard => (on_disk, None),
            Operation::DiskTmpfs | Operation::GpuTmpfs => (on_disk, Some(in_memory)),
            Operation::TmpfsDisk => (in_memory, Some(on_disk)),
            Operation::DiskDisk => (on_disk, Some(on_disk)),
        };
        if operation == Operation::GpuTmpfs
            && let Err(why) = Device::new(options.case.device)
        {
            println!("SKIPPED: {}: {why}", operation.name());
            return Ok(None);
        }
        for place in [Some(source), sink].into_iter().flatten() {
            if let Some(reason) = unfit(place, &options.case, (operation, place == on_disk))? {
                println!("SKIPPED: {}: {reason}", operation.name());
                return Ok(None);
            }
        }
        let directory = tempdir(source)?;
        let path = directory.path().join("stream_bench.dat");
        make(&path, &options.case)?;
        let sink = sink.map(|place| tempdir(place)).transpose()?;
        Ok(Some(Self {
            source: path,
            sink: sink.as_ref().map(|sink| sink.path().to_owned()),
            sync: matches!(operation, Operation::TmpfsDisk | Operation::DiskDisk),
            cold: operation.reads_disk(),
            _source: directory,
            _sink: sink,
        }))
    }

    /// Before each run: nothing of the file is in the page cache, or all of it.
    pub(crate) fn ready(&self) -> Result<(), Failure> {
        let mut file = File::open(&self.source)?;
        if self.cold {
            return Ok(disk::drop_cache(&file)?);
        }
        let mut piece = vec![0; 1 << 20];
        while file.read(&mut piece)? > 0 {}
        Ok(())
    }

    /// What the disk or the memory under it is called.
    pub(crate) fn path(&self) -> String {
        let from = disk::file_system(&self.source);
        let cache = match self.cold {
            true => "cold",
            false => "warm",
        };
        let to = self.sink.as_deref().map(disk::file_system);
        format!("{from} ({cache}) to {}", to.as_deref().unwrap_or("discard"))
    }
}

fn tempdir(place: &Path) -> Result<TempDir, Failure> {
    Ok(tempfile::Builder::new()
        .prefix("stream-bench-")
        .tempdir_in(place)?)
}

/// Why an operation can't use this place.
fn unfit(
    place: &Path,
    case: &Case,
    (operation, on_disk): (Operation, bool),
) -> Result<Option<String>, Failure> {
    let system = rustix::fs::statvfs(place)?;
    let free = system.f_bavail * system.f_frsize;
    let files = 1 + u64::from(operation == Operation::DiskDisk);
    let needed = files * (case.size as u64 + case.size as u64 / 8);
    if free < needed {
        return Ok(Some(format!("{} has {free} bytes free", place.display())));
    }
    let kind = disk::file_system(place);
    let in_memory = kind == "tmpfs" || kind == "ramfs";
    let any = matches!(
        operation,
        Operation::WarmDiscard
            | Operation::ByWrite
            | Operation::ThrottledDiscard
            | Operation::GpuTmpfs
    );
    if !any && on_disk == in_memory {
        let path = place.display();
        return Ok(Some(format!("{path} is on {kind} (--dir, --memory-dir)")));
    }
    Ok(None)
}

/// A file without holes, on its device.
fn make(path: &Path, case: &Case) -> Result<(), Failure> {
    let block: Vec<u8> = (0..case.block).map(|at| ((at * 31) >> 3) as u8).collect();
    let mut file = File::create(path)?;
    for index in 0..case.blocks() {
        file.write_all(&block[..case.len(index)])?;
    }
    Ok(file.sync_all()?)
}
