//! Between a file and GPU memory: a plain cuFile program beside ours, by cuFile and staged. Both
//! sides use the same memory, one thread and the same calls; each has a registration of its own of
//! the same file.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use fabricast::storage::cufile::{CuFile, Driver};
use fabricast::storage::{
    BackEndChoice, DeviceMemory, DirectIo, FileHandle, IoOptions, OpenOptions,
};

use crate::case::{Bench, Figures, Side};
use crate::device::{Device, DeviceBytes};
use crate::plain_cufile::PlainCuFile;
use crate::{Failure, Options, disk, pairs};

/// Bytes of one call.
const CALLS: [usize; 4] = [64 << 10, 1 << 20, 16 << 20, 512 << 20];
/// Calls of one pass at most.
const CALLS_MAX: usize = 256;
/// Bytes that are looked at behind a run.
const LOOKED_AT: usize = 4096;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GpuCase {
    pub(crate) write: bool,
    pub(crate) direct: bool,
}

/// Which way ours goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    CuFile,
    /// Through pinned memory of the host.
    Staged,
    /// What the library takes by itself.
    Auto,
}

impl Way {
    pub(crate) const ALL: [Self; 3] = [Self::CuFile, Self::Staged, Self::Auto];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::CuFile => "cufile",
            Self::Staged => "staged",
            Self::Auto => "auto",
        }
    }

    fn back_end(self) -> BackEndChoice {
        match self {
            Self::CuFile => BackEndChoice::CuFile,
            Self::Staged => BackEndChoice::Posix,
            Self::Auto => BackEndChoice::Auto,
        }
    }
}

/// The sizes of calls that the test file is long enough for.
pub(crate) fn calls(options: &Options) -> impl Iterator<Item = usize> {
    let all = if options.call.is_empty() {
        &CALLS[..]
    } else {
        &options.call
    };
    all.iter().copied().filter(|call| *call <= options.size)
}

/// Both sides, ready to run.
pub(crate) struct Rig {
    case: GpuCase,
    call: usize,
    bytes: usize,
    memory: DeviceBytes,
    plain: PlainCuFile,
    ours: FileHandle,
    options: IoOptions,
    file: File,
    /// Which the memory was filled with before the run.
    value: u8,
    _driver: Driver,
}

impl Rig {
    /// Opens and registers the file twice. What fails here is why the operation can't be run on
    /// this machine.
    pub(crate) fn new(
        bench: &Bench,
        case: GpuCase,
        call: usize,
        no_sync: bool,
    ) -> Result<Self, Failure> {
        let cufile = CuFile::get()?;
        cufile.ensure_context(0)?;
        let driver = cufile.driver()?;
        let mut flags = std::fs::OpenOptions::new();
        let flags = flags.read(true).write(true);
        let file = flags.open(&bench.path)?;
        let extra = if case.direct { libc::O_DIRECT } else { 0 };
        let plain = PlainCuFile::register(flags.custom_flags(extra).open(&bench.path)?)?;
        let ours = OpenOptions::new()
            .flags("r+")
            .direct(if case.direct {
                DirectIo::On
            } else {
                DirectIo::Off
            })
            .open(&bench.path)?;
        if ours.is_compat_mode_preferred() {
            return Err(format!("compatibility mode is {}", ours.compat_reason()).into());
        }
        let options = IoOptions {
            sync_default_stream: no_sync.then_some(false),
            ..IoOptions::default()
        };
        Ok(Self {
            case,
            call,
            bytes: (call * CALLS_MAX).min(bench.size / call * call),
            memory: Device::load()?.memory(call)?,
            plain,
            ours,
            options,
            file,
            value: 0,
            _driver: driver,
        })
    }

    /// The way that ours goes from now on.
    pub(crate) fn go(&mut self, way: Way) {
        self.options.back_end = Some(way.back_end());
    }

    /// One run of one side, and a look at whether the bytes are there.
    pub(crate) fn run(&mut self, bench: &Bench, side: Side) -> Result<Figures, Failure> {
        let warm_up = !self.case.direct;
        if self.case.direct {
            disk::drop_cache(&self.file)?;
        }
        // A value that the end of the file has not.
        let mut last = [0];
        self.file.read_exact_at(&mut last, self.bytes as u64 - 1)?;
        self.value = last[0].wrapping_add(1);
        self.memory.fill(self.value)?;
        let figures = pairs::timed(bench, warm_up, self.bytes, || match side {
            // SAFETY: the memory is that long, its context is current, and both sides run in turns.
            Side::Plain => unsafe {
                let address = self.memory.address();
                self.plain
                    .pass(address, self.call, self.bytes, self.case.write)
            },
            Side::Ours => self.pass(),
        })?;
        self.look()?;
        Ok(figures)
    }

    fn pass(&self) -> Result<(), Failure> {
        // SAFETY: `self` has the memory, and nobody else uses it meanwhile.
        let mut memory = unsafe { DeviceMemory::new(self.memory.address(), 0, self.call, ()) };
        for at in (0..self.bytes as u64).step_by(self.call) {
            let moved = match self.case.write {
                true => self.ours.write_from(&memory, .., at, &self.options)?,
                false => self.ours.read_into(&mut memory, .., at, &self.options)?,
            };
            if moved.bytes != self.call {
                return Err(format!("{} of {} bytes", moved.bytes, self.call).into());
            }
        }
        Ok(())
    }

    /// The end of the last call is in memory as it is in the file.
    fn look(&self) -> Result<(), Failure> {
        let mut there = vec![0; LOOKED_AT];
        let at = self.bytes - LOOKED_AT;
        self.file.read_exact_at(&mut there, at as u64)?;
        if self.memory.last(LOOKED_AT)? != there {
            return Err("the bytes in GPU memory are not those of the file".into());
        }
        if self.case.write && there.iter().any(|byte| *byte != self.value) {
            return Err("the bytes in the file are not those that were written".into());
        }
        Ok(())
    }
}
