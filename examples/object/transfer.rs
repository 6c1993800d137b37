//! `object put` and `object get`: a file, through memory of the host or of a GPU.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use fabricast::Region;
use fabricast::buffer::{RegionSlice, SharedBufferManager};
use fabricast::cuda::{Device, Stream};
use fabricast::memory::Access;
use fabricast::object::{ObjectClient, ObjectMemory, PutCondition};
use fabricast::storage::AtomicFile;
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::{GetArgs, MemoryArgs, PutArgs};
use crate::client::connect;
use crate::failure::Failure;
use crate::report;

/// Bytes that are copied between file and memory at once.
const PIECE: usize = 1 << 20;

/// Memory that servers reach, and how this side does.
enum Lent {
    Host(ObjectMemory),
    Gpu {
        memory: ObjectMemory,
        slice: RegionSlice,
        stream: Stream,
    },
}

impl Lent {
    fn new(client: &ObjectClient, args: &MemoryArgs, access: Access) -> Result<Self, Failure> {
        let Some(ordinal) = args.gpu else {
            let pool = SharedBufferManager::allocate(1, args.memory).map_err(Failure::of)?;
            let buffer = pool.try_acquire().expect("one is free");
            let memory = client.register(buffer, access).map_err(Failure::of)?;
            return Ok(Self::Host(memory));
        };
        let failed =
            |error: fabricast::memory::MemoryError| Failure::new(format!("--gpu: {error}"));
        let region = Region::device(args.memory).device(ordinal).build();
        let region = region.map_err(failed)?;
        let slice = || region.slice(0..args.memory).map_err(failed);
        let memory = client.register(slice()?, access).map_err(Failure::of)?;
        let device = Device::new(ordinal).map_err(Failure::of)?;
        Ok(Self::Gpu {
            memory,
            slice: slice()?,
            stream: Stream::new(device).map_err(Failure::of)?,
        })
    }

    fn memory(&self) -> &ObjectMemory {
        match self {
            Self::Host(memory) | Self::Gpu { memory, .. } => memory,
        }
    }

    fn copy_in(&self, at: usize, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Host(memory) => memory.copy_in(at as u64, bytes).map_err(Failure::of),
            Self::Gpu { slice, stream, .. } => {
                let part = slice.slice(at..at + bytes.len()).map_err(Failure::of)?;
                part.copy_from_host(bytes, stream).map_err(Failure::of)
            }
        }
    }

    fn copy_out(&self, at: usize, bytes: &mut [u8]) -> Result<(), Failure> {
        match self {
            Self::Host(memory) => memory.copy_out(at as u64, bytes).map_err(Failure::of),
            Self::Gpu { slice, stream, .. } => {
                let part = slice.slice(at..at + bytes.len()).map_err(Failure::of)?;
                part.copy_to_host(bytes, stream).map_err(Failure::of)
            }
        }
    }
}

/// Parts of a length, of at most so many bytes.
fn parts(len: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(most).map(move |at| at..len.min(at + most))
}

pub(crate) fn put(args: &PutArgs) -> Result<(), Failure> {
    let in_file = |error: &std::io::Error| Failure::file(&args.file, error);
    let mut file = File::open(&args.file).map_err(|error| in_file(&error))?;
    let len = file.metadata().map_err(|error| in_file(&error))?.len();
    if len > args.memory.memory as u64 {
        return Err(Failure::new(format!(
            "{} has {len} bytes, and the memory {}: give it more with --memory",
            args.file.display(),
            args.memory.memory
        )));
    }
    let mut connected = connect(&args.client)?;
    let lent = Lent::new(connected.remote.client(), &args.memory, Access::READ)?;
    let mut bytes = vec![0; PIECE];
    for part in parts(len as usize, PIECE) {
        let bytes = &mut bytes[..part.len()];
        file.read_exact(bytes).map_err(|error| in_file(&error))?;
        lent.copy_in(part.start, bytes)?;
    }
    let condition = match args.new {
        true => PutCondition::Absent,
        false => PutCondition::Any,
    };
    let begin = Instant::now();
    let (memory, deadline) = (lent.memory(), connected.deadline);
    let put = connected
        .remote
        .put(&args.name, memory, 0..len, &condition, deadline);
    let put = put.map_err(Failure::of)?;
    report::object(
        args.client.common.json,
        "put",
        &args.name,
        &put,
        begin.elapsed(),
    );
    Ok(())
}

pub(crate) fn get(args: &GetArgs) -> Result<(), Failure> {
    let mut connected = connect(&args.client)?;
    let deadline = connected.deadline;
    let head = connected
        .remote
        .head(&args.name, deadline)
        .map_err(Failure::of)?;
    let there = head.size.saturating_sub(args.offset);
    let len = args.length.unwrap_or(there).min(there);
    let lent = Lent::new(connected.remote.client(), &args.memory, Access::WRITE)?;
    let file = AtomicFile::create(&args.file, 0o666).map_err(Failure::of)?;
    let bar = bar(len, args.client.common.json);
    let (mut got, mut all) = (0, head.clone());
    all.is_checked = true;
    let begin = Instant::now();
    while got < len {
        let want = (len - got).min(lent.memory().len());
        let from = args.offset + got;
        let part = connected
            .remote
            .get(&args.name, lent.memory(), 0..want, from, deadline);
        let part = part.map_err(Failure::of)?;
        if part.etag != head.etag || part.moved != want {
            return Err(Failure::new(format!("{}: it changed meanwhile", args.name)));
        }
        write(&lent, want as usize, got, file.file(), &args.file)?;
        got += want;
        all.is_checked &= part.is_checked;
        bar.set_position(got);
    }
    file.commit().map_err(Failure::of)?;
    bar.finish_and_clear();
    all.moved = got;
    report::object(
        args.client.common.json,
        "get",
        &args.name,
        &all,
        begin.elapsed(),
    );
    Ok(())
}

/// Writes the beginning of the memory to a place of the file.
fn write(
    lent: &Lent,
    len: usize,
    at: u64,
    file: &fabricast::storage::FileHandle,
    path: &Path,
) -> Result<(), Failure> {
    let mut bytes = vec![0; PIECE];
    for part in parts(len, PIECE) {
        let bytes = &mut bytes[..part.len()];
        lent.copy_out(part.start, bytes)?;
        let written = file.write(bytes, at + part.start as u64);
        written.map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    }
    Ok(())
}

fn bar(len: u64, json: bool) -> ProgressBar {
    if json {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec}");
    // Drawn where stderr is a terminal only.
    ProgressBar::new(len).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
