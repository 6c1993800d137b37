//! `Staged`: between a file and GPU memory through pinned memory of the host, in two halves: while
//! one is copied to or from the GPU, the other is read from the file or written to it.

#![allow(unsafe_code)]

use super::engine::{enter, failed};
use super::lane::{Lane, lane_bytes};
use crate::cuda::{Cuda, CudaError, Current};

use crate::storage::engine::{Engine, Task, TaskOutcome};
use crate::storage::io_buffer::RawMemory;
use crate::storage::posix::Posix;
use crate::storage::{BackEnd, Defaults, Direction, FileErrorKind, Place};

/// The back end for GPU memory that needs no cuFile.
#[derive(Debug)]
pub(crate) struct Staged;

impl Engine for Staged {
    fn back_end(&self) -> BackEnd {
        BackEnd::Staged
    }

    unsafe fn run(&self, task: &Task<'_>) -> TaskOutcome {
        let Place::Device { base, offset, .. } = task.memory.place() else {
            return TaskOutcome::failed(FileErrorKind::Unsupported {
                what: "the host's memory",
                reason: "nothing is staged on its way there".into(),
            });
        };
        let mut run = StagedRun {
            task,
            address: base + offset as u64,
            outcome: TaskOutcome::default(),
        };
        let result = match task.direction {
            Direction::Read => run.read(),
            Direction::Write => run.write(),
        };
        if let Err(error) = result {
            if task.direction == Direction::Read {
                // Which of the copies were over, nobody knows.
                run.outcome.moved = 0;
            }
            run.outcome.error = Some(failed(error.into()));
        }
        run.outcome
    }

    /// A bounce buffer's at least, four lanes: so that there is something to overlap.
    fn task_size(&self, asked: usize, _len: usize) -> usize {
        asked.max(Defaults::get().bounce_buffer_size)
    }
}

/// A part of the task that fits a lane.
#[derive(Clone, Copy)]
struct StagedPart {
    /// Where in the task.
    at: usize,
    /// Where in the lane: as far behind a page as the offset in the file, so that direct I/O needs
    /// no copy of its own.
    skew: usize,
    len: usize,
}

/// One task while it is done.
struct StagedRun<'a> {
    task: &'a Task<'a>,
    /// Of the first byte on the device.
    address: u64,
    outcome: TaskOutcome,
}

impl StagedRun<'_> {
    /// The part that begins there, up to what a lane holds.
    fn part(&self, at: usize) -> Option<StagedPart> {
        let left = self.task.memory.len() - at;
        let offset = self.task.offset + at as u64;
        let skew = (offset % rustix::param::page_size() as u64) as usize;
        (left > 0).then(|| StagedPart {
            at,
            skew,
            len: left.min(lane_bytes(self.task.bounce) - skew),
        })
    }

    fn lanes(&self) -> Result<(Current, [Lane; 2]), CudaError> {
        let cuda = Cuda::ready()?;
        let current = enter(self.task.memory, self.address)?;
        let len = lane_bytes(self.task.bounce);
        let lanes = [
            Lane::acquire(cuda, &current, len)?,
            Lane::acquire(cuda, &current, len)?,
        ];
        Ok((current, lanes))
    }

    fn read(&mut self) -> Result<(), CudaError> {
        let (_current, mut lanes) = self.lanes()?;
        let mut turn = 0;
        while let Some(part) = self.part(self.outcome.moved) {
            let lane = &mut lanes[turn % 2];
            lane.wait()?;
            let moved = self.file(lane, part);
            let to = self.address + part.at as u64;
            // SAFETY: `moved` bytes from there on are in the task's memory, which is ours until
            // `run` returns; both lanes are waited for before, here or when they are dropped.
            unsafe { lane.begin_upload(part.skew, to, moved) }?;
            if moved < part.len {
                break;
            }
            turn += 1;
        }
        let [one, two] = &mut lanes;
        let first = one.wait();
        two.wait().and(first)
    }

    fn write(&mut self) -> Result<(), CudaError> {
        let (_current, mut lanes) = self.lanes()?;
        let mut next = self.part(0);
        if let Some(part) = next {
            self.fetch(&mut lanes[0], part)?;
        }
        let mut turn = 0;
        while let Some(part) = next {
            next = self.part(part.at + part.len);
            if let Some(ahead) = next {
                self.fetch(&mut lanes[(turn + 1) % 2], ahead)?;
            }
            let lane = &mut lanes[turn % 2];
            lane.wait()?;
            if self.file(lane, part) < part.len {
                break;
            }
            turn += 1;
        }
        let [one, two] = &mut lanes;
        let first = one.wait();
        two.wait().and(first)
    }

    /// Begins to bring a part from the device.
    fn fetch(&self, lane: &mut Lane, part: StagedPart) -> Result<(), CudaError> {
        let from = self.address + part.at as u64;
        // SAFETY: in the task's memory, which nobody writes until `run` returns; both lanes are
        // waited for before.
        unsafe { lane.begin_download(part.skew, from, part.len) }
    }

    /// Moves a part between the file and a lane that was waited for, and says how many bytes.
    fn file(&mut self, lane: &Lane, part: StagedPart) -> usize {
        let (before, len) = self.around(part);
        // SAFETY: the part fits the lane, from the page that it begins in to the end of the one
        // that it ends in.
        let ptr = unsafe { lane.memory().add(part.skew - before) };
        let memory = RawMemory::new(Place::Host { ptr, len });
        let task = Task {
            memory,
            offset: self.task.offset + part.at as u64 - before as u64,
            ..*self.task
        };
        // SAFETY: the lane is ours, and no copy is under way in it.
        let outcome = unsafe { Posix.run(&task) };
        // Of what was read around the part, nothing counts.
        let moved = outcome.moved.saturating_sub(before).min(part.len);
        self.outcome.moved += moved;
        self.outcome.direct += outcome.direct.saturating_sub(before).min(moved);
        self.outcome.bounced += outcome.bounced.min(moved);
        // What failed behind the part is no failure of it.
        if moved < part.len {
            self.outcome.error = outcome.error;
        }
        moved
    }

    /// How many bytes before a part are moved with it, and how many in all: where the settings ask
    /// for it, a direct read takes the pages that the part begins and ends in whole, since what is
    /// no whole page would go through the page cache.
    fn around(&self, part: StagedPart) -> (usize, usize) {
        let whole = self.task.direct
            && self.task.direction == Direction::Read
            && Defaults::get().auto_direct_io_read_overread;
        if !whole {
            return (0, part.len);
        }
        let len = (part.skew + part.len).next_multiple_of(rustix::param::page_size());
        (part.skew, len)
    }
}
