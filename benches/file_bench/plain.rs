//! The plain side: what a C programmer would write, with raw system calls and nothing of ours.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use io_uring::{IoUring, opcode, types};

use crate::case::Bench;
use crate::host::Chance;
use crate::memory::Memory;
use crate::{Failure, disk};

/// Bytes of a random read.
pub(crate) const RANDOM_BYTES: usize = 4096;

/// Opens the test file for both directions.
pub(crate) fn open(bench: &Bench, direct: bool) -> io::Result<File> {
    let flags = if direct { libc::O_DIRECT } else { 0 };
    let file = File::options()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(&bench.path)?;
    if direct {
        disk::drop_cache(&file)?;
    }
    Ok(file)
}

/// One pass over the file: each thread takes the next block until there is none.
pub(crate) fn pass(
    file: &File,
    memory: &mut Memory,
    block: usize,
    threads: usize,
    write: bool,
) -> Result<(), Failure> {
    let bytes = memory.bytes();
    let (base, len) = (bytes.as_mut_ptr().expose_provenance(), bytes.len());
    let next = AtomicUsize::new(0);
    let work = || -> io::Result<()> {
        loop {
            let at = next.fetch_add(block, Ordering::Relaxed);
            if at >= len {
                return Ok(());
            }
            let memory = std::ptr::with_exposed_provenance_mut(base + at);
            let fd = file.as_raw_fd();
            let moved = if write {
                // SAFETY: a block of the memory, which is borrowed for the whole pass; nobody
                // writes to it meanwhile.
                unsafe { libc::pwrite64(fd, memory, block, at as i64) }
            } else {
                // SAFETY: a block of the memory that no other thread takes.
                unsafe { libc::pread64(fd, memory, block, at as i64) }
            };
            if moved < 0 {
                return Err(io::Error::last_os_error());
            }
            if moved as usize != block {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    };
    if threads == 1 {
        return Ok(work()?);
    }
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        all.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
        })
    })?;
    Ok(())
}

/// Random reads with so many in flight, registered file and buffers, until the time is over; how
/// many, and in how many seconds: as fio does, without what it takes to set up and to close.
pub(crate) fn random(bench: &Bench, direct: bool) -> Result<(u64, f64), Failure> {
    let file = open(bench, direct)?;
    let mut memory = Memory::new(bench.depth * RANDOM_BYTES)?;
    let base = memory.bytes().as_mut_ptr();
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(bench.depth as u32)?;
    let buffer = libc::iovec {
        iov_base: base.cast(),
        iov_len: bench.depth * RANDOM_BYTES,
    };
    // SAFETY: the memory outlives the ring: it was made before, and nothing is in flight when this
    // returns.
    unsafe { ring.submitter().register_buffers(&[buffer]) }?;
    ring.submitter().register_files(&[file.as_raw_fd()])?;
    let blocks = (bench.size / RANDOM_BYTES) as u64;
    let mut chance = Chance::new();
    let mut read = |slot: usize| {
        let offset = chance.next() % blocks * RANDOM_BYTES as u64;
        let memory = base.wrapping_add(slot * RANDOM_BYTES);
        opcode::ReadFixed::new(types::Fixed(0), memory, RANDOM_BYTES as u32, 0)
            .offset(offset)
            .build()
            .user_data(slot as u64)
    };
    for slot in 0..bench.depth {
        let entry = read(slot);
        // SAFETY: a slot of its own in the memory, which outlives the operation (see above).
        unsafe { ring.submission().push(&entry) }.map_err(|_| "the ring is full")?;
    }
    let begun = Instant::now();
    let (mut done, mut in_flight) = (0, bench.depth);
    let mut slots = Vec::with_capacity(bench.depth);
    while in_flight > 0 {
        ring.submit_and_wait(1)?;
        for entry in ring.completion() {
            if entry.result() != RANDOM_BYTES as i32 {
                return Err(format!("a random read answered {}", entry.result()).into());
            }
            slots.push(entry.user_data() as usize);
        }
        done += slots.len() as u64;
        in_flight -= slots.len();
        let over = begun.elapsed().as_secs_f64() >= bench.seconds;
        for slot in slots.drain(..).filter(|_| !over) {
            let entry = read(slot);
            // SAFETY: as above; the slot's last read is over.
            unsafe { ring.submission().push(&entry) }.map_err(|_| "the ring is full")?;
            in_flight += 1;
        }
    }
    Ok((done, begun.elapsed().as_secs_f64()))
}
