//! The double buffer of the bare loop, of the socket loop and of the copy: a thread fills blocks,
//! the caller's takes them, and gives them back.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use fabricast::Region;

use crate::case::Case;
use crate::error::{Failure, fail};

/// Equal pieces of memory, a block each.
#[derive(Clone, Copy)]
pub(crate) struct Slots {
    base: *mut u8,
    stride: usize,
}

// SAFETY: it is an address. A slot belongs to the thread that was given its number (`with_reader`).
unsafe impl Send for Slots {}

impl Slots {
    /// # Safety
    /// `case.buffers` pieces of this stride must be there for as long as this is used, and be used
    /// by nobody else. Each has room for a block.
    pub(crate) unsafe fn new(base: *mut u8, stride: usize) -> Self {
        Self { base, stride }
    }

    fn at(self, slot: usize) -> *mut u8 {
        self.base.wrapping_add(slot * self.stride)
    }
}

/// A block that was read.
pub(crate) struct Filled {
    pub(crate) slot: usize,
    pub(crate) len: usize,
}

/// Runs `send` while a thread reads the file, block by block. `send` gets what is filled, and gives
/// back the slots that it needs no more.
pub(crate) fn with_reader<T>(
    case: &Case,
    file: &File,
    slots: Slots,
    send: impl FnOnce(Receiver<Filled>, SyncSender<usize>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (filled_way, filled) = sync_channel(case.buffers);
    let (free_way, free) = sync_channel(case.buffers);
    for slot in 0..case.buffers {
        free_way.send(slot)?;
    }
    std::thread::scope(|scope| {
        // The reader ends when its file does, or when `send` has dropped its ends of the channels.
        let reader = scope.spawn(move || {
            for index in 0..case.blocks() {
                let Ok(slot) = free.recv() else { break };
                let len = case.len(index);
                fill(file, slots.at(slot), len, index * case.block)?;
                if filled_way.send(Filled { slot, len }).is_err() {
                    break;
                }
            }
            Ok::<(), Failure>(())
        });
        let result = send(filled, free_way);
        match reader.join() {
            Ok(Ok(())) => result,
            Ok(Err(failure)) => Err(failure),
            Err(_) => fail("the reader panicked"),
        }
    })
}

/// Memory for the blocks, every page of which is there.
pub(crate) fn memory(case: &Case) -> Result<Arc<Region>, Failure> {
    let memory = Region::host(case.buffers * case.block).build()?;
    // SAFETY: the whole region, of which nothing is in use yet.
    unsafe { memory.as_ptr().write_bytes(1, memory.len()) };
    Ok(memory)
}

/// Reads the file into the memory on a thread, while `take` is given one block after the other
/// here.
pub(crate) fn double_buffered(
    case: &Case,
    file: &File,
    memory: &Region,
    mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // SAFETY: the region has as many blocks, outlives the reader, and only the two threads of the
    // ring use it.
    let slots = unsafe { Slots::new(memory.as_ptr(), case.block) };
    with_reader(case, file, slots, |filled, free| {
        // It ends when the reader has: then the last block was taken.
        for block in filled {
            // SAFETY: filled with so many bytes, and this thread's until it is given back below.
            take(unsafe { std::slice::from_raw_parts(slots.at(block.slot), block.len) })?;
            // Nobody listens when the whole file is read.
            let _ = free.send(block.slot);
        }
        Ok(())
    })
}

/// Reads `len` bytes from an offset on to memory that nobody else uses now.
fn fill(file: &File, to: *mut u8, len: usize, offset: usize) -> Result<(), Failure> {
    let mut done = 0;
    while done < len {
        let to = to.wrapping_add(done).cast();
        // SAFETY: the slot has room for the block, and is the reader's until it is sent to the
        // other thread.
        let n = unsafe { libc::pread(file.as_raw_fd(), to, len - done, (offset + done) as i64) };
        match n {
            1.. => done += n as usize,
            0 => return fail("the file is shorter than it was"),
            _ => return Err(std::io::Error::last_os_error().into()),
        }
    }
    Ok(())
}
