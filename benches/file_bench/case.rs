//! `Operation`: what is measured, against what, and what it should come to; `Bench`: the file and
//! the memory of both sides.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use clap::ValueEnum;
use fabricast::storage::ThreadPool;
use tempfile::TempDir;

use crate::disk::{self, Disk};
use crate::gpu::GpuCase;
use crate::{Failure, Options};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Operation {
    /// Reads of the whole file around the page cache, by threads.
    ReadDirect,
    /// Overwrites of the whole file around the page cache, by threads.
    WriteDirect,
    /// The same reads into memory that is off by 16 bytes; the plain side's is aligned.
    ReadOff16,
    /// The same writes from memory that is off by 16 bytes; the plain side's is aligned.
    WriteOff16,
    /// Reads through the page cache, which has the file, by threads.
    ReadCached,
    /// Overwrites through the page cache, by threads.
    WriteCached,
    /// Reads around the page cache by io_uring from one thread, against the thread count that is
    /// best for plain reads.
    UringCold,
    /// The same into memory that is off by 16 bytes; the plain side's is aligned.
    UringOff16,
    /// As uring-cold, block by block into a pool (`BlockReader`).
    ReaderCold,
    /// Reads from the page cache by io_uring from one thread, against one plain thread.
    UringWarm,
    /// Random reads of 4 KiB by io_uring around the page cache, registered file and buffers,
    /// against a plain io_uring loop.
    Random4k,
    /// The same from the page cache: the cost of the software alone.
    RandomCached,
    /// The same as random4k, against fio.
    RandomFio,
    /// Requests of the block layer with buffers in large pages, against buffers in pages of 4 KiB.
    HugePages,
    /// Reads into GPU memory around the page cache, against a plain cuFile program: by cuFile,
    /// staged, and as the library chooses.
    GpuRead,
    /// The same from the page cache.
    GpuReadCached,
    /// Writes of GPU memory around the page cache, against a plain cuFile program.
    GpuWrite,
    /// The same through the page cache.
    GpuWriteCached,
}

impl Operation {
    pub(crate) fn all() -> Vec<Self> {
        Self::value_variants().to_vec()
    }

    pub(crate) fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The least ratio that is good enough; for `huge-pages`, the greatest.
    pub(crate) fn bar(self) -> Option<f64> {
        match self {
            Self::ReadDirect
            | Self::WriteDirect
            | Self::UringCold
            | Self::ReaderCold
            | Self::UringWarm => Some(0.97),
            Self::ReadOff16 | Self::WriteOff16 | Self::UringOff16 => Some(0.90),
            Self::Random4k | Self::RandomFio => Some(0.95),
            Self::HugePages => Some(0.5),
            Self::ReadCached | Self::WriteCached => Some(0.97),
            Self::GpuRead | Self::GpuReadCached | Self::GpuWrite | Self::GpuWriteCached => {
                Some(0.97)
            }
            Self::RandomCached => None,
        }
    }

    /// Whether it has nothing to measure on a file system without direct I/O.
    pub(crate) fn needs_direct(self) -> bool {
        if let Some(case) = self.gpu() {
            return case.direct;
        }
        !matches!(
            self,
            Self::ReadCached | Self::WriteCached | Self::UringWarm | Self::RandomCached
        )
    }

    /// What it does, when it is one with GPU memory.
    pub(crate) fn gpu(self) -> Option<GpuCase> {
        let case = |write, direct| Some(GpuCase { write, direct });
        match self {
            Self::GpuRead => case(false, true),
            Self::GpuReadCached => case(false, false),
            Self::GpuWrite => case(true, true),
            Self::GpuWriteCached => case(true, false),
            _ => None,
        }
    }

    /// Whether its bytes are random reads of 4 KiB.
    pub(crate) fn is_random(self) -> bool {
        matches!(self, Self::Random4k | Self::RandomCached | Self::RandomFio)
    }
}

/// By what it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Side {
    /// The loop of system calls.
    Plain,
    /// The library.
    Ours,
}

/// What a run gave.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) gb_per_s: f64,
    /// Reads of 4 KiB a second, in thousands; NaN for other operations.
    pub(crate) kiops: f64,
    pub(crate) cpu_s_per_gb: f64,
    /// Requests of the block layer for each MiB; NaN where they were not counted.
    pub(crate) requests_per_mib: f64,
}

/// The test file, and what both sides use alike.
pub(crate) struct Bench {
    pub(crate) path: PathBuf,
    pub(crate) file_system: String,
    pub(crate) size: usize,
    pub(crate) block: usize,
    pub(crate) threads: usize,
    pub(crate) depth: usize,
    pub(crate) seconds: f64,
    pub(crate) disk: Option<Disk>,
    /// Why there are no direct operations.
    pub(crate) no_direct: Option<String>,
    pub(crate) pool: ThreadPool,
    _directory: TempDir,
}

impl Bench {
    pub(crate) fn prepare(options: &Options) -> Result<Self, Failure> {
        let directory = match &options.dir {
            Some(dir) => TempDir::new_in(dir)?,
            None => TempDir::new()?,
        };
        let path = directory.path().join("file_bench.dat");
        let mut file = File::create(&path)?;
        let block: Vec<u8> = (0..options.block)
            .map(|at| ((at * 31) >> 3) as u8)
            .collect();
        for _ in 0..options.size / options.block {
            file.write_all(&block)?;
        }
        file.sync_all()?;
        let file_system = disk::file_system(&path);
        let direct = File::options()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(&path);
        let no_direct = match direct {
            Ok(_) if file_system == "tmpfs" => {
                Some("a file system in memory has nothing around the page cache".to_owned())
            }
            Ok(_) => None,
            Err(error) => Some(format!("no O_DIRECT: {error}")),
        };
        let threads = usize::from(options.threads);
        Ok(Self {
            disk: Disk::of(&file),
            file_system,
            path,
            size: options.size,
            block: options.block,
            threads,
            depth: options.depth.into(),
            seconds: options.seconds,
            no_direct,
            pool: ThreadPool::named("bench", threads, 1024)?,
            _directory: directory,
        })
    }
}
