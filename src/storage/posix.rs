//! `Posix`: pread(2) and pwrite(2) of pieces, on the thread that calls.
//!
//! # Safety
//! Each call gets an address and a length that lie within the memory of the task, which whoever
//! calls [`Engine::run`] vouches for.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use super::bounce::BounceBuffer;
use super::engine::{Engine, Task, TaskOutcome};
use super::plan::{How, Piece, Plan, Rules};
use super::{BackEnd, Direction, FileErrorKind};

/// The back end that works everywhere.
#[derive(Debug)]
pub(crate) struct Posix;

impl Engine for Posix {
    fn back_end(&self) -> BackEnd {
        BackEnd::Posix
    }

    unsafe fn run(&self, task: &Task<'_>) -> TaskOutcome {
        let Some(memory) = task.memory.host() else {
            return TaskOutcome::failed(FileErrorKind::Unsupported {
                what: "GPU memory",
                reason: "pread(2) and pwrite(2) move bytes of the host's memory only".into(),
            });
        };
        let mut run = PosixRun {
            task,
            memory,
            outcome: TaskOutcome::default(),
        };
        run.all();
        run.outcome
    }

    fn copies_alternate(&self) -> bool {
        true
    }
}

/// What became of a piece.
enum PieceOutcome {
    /// All of it was moved.
    Whole,
    /// Some of it, or none: what is left of the task has to be planned anew.
    Again,
    /// The file ends here.
    End,
    Failed(FileErrorKind),
}

/// One task while it is done.
struct PosixRun<'a> {
    task: &'a Task<'a>,
    memory: NonNull<u8>,
    outcome: TaskOutcome,
}

impl PosixRun<'_> {
    fn all(&mut self) {
        let len = self.task.memory.len();
        'plan: while self.outcome.moved < len {
            let moved = self.outcome.moved;
            let address = self.memory.addr().get() + moved;
            let offset = self.task.offset + moved as u64;
            for piece in Plan::new(self.rules(), address, offset, len - moved) {
                match self.piece(piece) {
                    PieceOutcome::Whole => {}
                    PieceOutcome::Again => continue 'plan,
                    PieceOutcome::End => return,
                    PieceOutcome::Failed(kind) => {
                        self.outcome.error = Some(kind);
                        return;
                    }
                }
            }
        }
    }

    fn rules(&self) -> Rules {
        Rules {
            direction: self.task.direction,
            direct: self.task.direct && self.task.file.direct().is_some(),
            alignment: self.task.file.alignment(),
            page: rustix::param::page_size(),
        }
    }

    /// Moves the next piece, which begins where the outcome stands.
    fn piece(&mut self, piece: Piece) -> PieceOutcome {
        match piece.how {
            How::Buffered => self.buffered(piece.len),
            How::Direct => self.direct(piece.len),
            How::Bounced => self.bounced(piece.len),
        }
    }

    /// Through the page cache, all `len` bytes.
    fn buffered(&mut self, len: usize) -> PieceOutcome {
        let end = self.outcome.moved + len;
        while self.outcome.moved < end {
            let (memory, offset) = self.here();
            let left = end - self.outcome.moved;
            // SAFETY: `moved + left` is within the task, whose memory may be read or written until
            // `run` returns.
            let moved =
                unsafe { transfer(self.task, self.task.file.buffered(), memory, left, offset) };
            match moved {
                Ok(0) if self.task.direction == Direction::Read => return PieceOutcome::End,
                Ok(0) => return PieceOutcome::Failed(FileErrorKind::WriteZero),
                Ok(moved) => self.outcome.moved += moved,
                Err(error) => return PieceOutcome::Failed(FileErrorKind::os(&error)),
            }
        }
        PieceOutcome::Whole
    }

    /// Around the page cache, from or to the caller's memory.
    fn direct(&mut self, len: usize) -> PieceOutcome {
        let Some(fd) = self.task.file.direct() else {
            // Refused by another task since this one was planned.
            return PieceOutcome::Again;
        };
        let (memory, offset) = self.here();
        // SAFETY: as in `buffered`; pieces lie within their task.
        let moved = unsafe { transfer(self.task, fd, memory, len, offset) };
        match moved {
            Ok(moved) => {
                self.outcome.moved += moved;
                self.outcome.direct += moved;
                self.after_direct(moved, len)
            }
            Err(error) => self.direct_failed(&error),
        }
    }

    /// Around the page cache, from or to buffers of ours, one after the other.
    fn bounced(&mut self, len: usize) -> PieceOutcome {
        let grain = self.rules().boundary();
        let Some(mut bounce) = BounceBuffer::acquire(len, self.task.bounce) else {
            return self.buffered(len);
        };
        let room = bounce.len() / grain * grain;
        if room == 0 {
            return self.buffered(len);
        }
        let end = self.outcome.moved + len;
        while self.outcome.moved < end {
            let part = room.min(end - self.outcome.moved);
            match self.bounce(&mut bounce[..part]) {
                PieceOutcome::Whole => {}
                other => return other,
            }
        }
        PieceOutcome::Whole
    }

    /// One buffer full.
    fn bounce(&mut self, bounce: &mut [u8]) -> PieceOutcome {
        let Some(fd) = self.task.file.direct() else {
            return PieceOutcome::Again;
        };
        let (memory, offset) = self.here();
        let middle = NonNull::from(&mut *bounce).cast::<u8>();
        if self.task.direction == Direction::Write {
            // SAFETY: the part lies within the task's memory, which is good to read; the buffer is
            // ours alone, and so elsewhere.
            unsafe { memory.copy_to_nonoverlapping(middle, bounce.len()) };
        }
        // SAFETY: the whole of a buffer that is ours alone.
        let moved = unsafe { transfer(self.task, fd, middle, bounce.len(), offset) };
        let moved = match moved {
            Ok(moved) => moved,
            Err(error) => return self.direct_failed(&error),
        };
        if self.task.direction == Direction::Read {
            // SAFETY: `moved` bytes lie within the part, which lies within the task's memory, good
            // to write; as above.
            unsafe { middle.copy_to_nonoverlapping(memory, moved) };
        }
        self.outcome.moved += moved;
        self.outcome.direct += moved;
        self.outcome.bounced += moved;
        self.after_direct(moved, bounce.len())
    }

    /// A direct transfer of `len` bytes moved so many.
    fn after_direct(&mut self, moved: usize, len: usize) -> PieceOutcome {
        if moved == len {
            return PieceOutcome::Whole;
        }
        // From where it stopped, the plan begins with a buffered edge, or with another direct
        // piece.
        if moved > 0 {
            return PieceOutcome::Again;
        }
        // Nothing at all: a reader believes in the end of the file when the page cache says so,
        // too.
        let grain = self.rules().boundary();
        let left = self.task.memory.len() - self.outcome.moved;
        match self.buffered(left.min(grain)) {
            PieceOutcome::Whole => PieceOutcome::Again,
            other => other,
        }
    }

    /// A refused alignment sends the file through the page cache for good; anything else is the
    /// task's error.
    #[cold]
    fn direct_failed(&self, error: &io::Error) -> PieceOutcome {
        match error.raw_os_error() {
            Some(libc::EINVAL | libc::EOPNOTSUPP) => {
                let (_, offset) = self.here();
                let direction = self.task.direction;
                let file = self.task.file;
                file.refuse_direct(format!(
                    "a direct {direction} at {offset} was refused: {error}"
                ));
                PieceOutcome::Again
            }
            _ => PieceOutcome::Failed(FileErrorKind::os(error)),
        }
    }

    /// Where the next byte is, in memory and in the file.
    fn here(&self) -> (NonNull<u8>, u64) {
        let moved = self.outcome.moved;
        // SAFETY: `moved` is at most the length of the task's memory, which is one allocation.
        let memory = unsafe { self.memory.add(moved) };
        (memory, self.task.offset + moved as u64)
    }
}

/// One system call, made again when a signal interrupts it.
///
/// # Safety
/// `len` bytes at `memory` are good to write (a read) or to read (a write).
unsafe fn transfer(
    task: &Task<'_>,
    fd: BorrowedFd<'_>,
    memory: NonNull<u8>,
    len: usize,
    offset: u64,
) -> io::Result<usize> {
    let (fd, at) = (fd.as_raw_fd(), memory.as_ptr().cast());
    // Checked when the transfer was accepted (`File::check`).
    let offset = offset as i64;
    loop {
        let moved = match task.direction {
            // SAFETY: the caller's promise.
            Direction::Read => unsafe { libc::pread64(fd, at, len, offset) },
            // SAFETY: the caller's promise.
            Direction::Write => unsafe { libc::pwrite64(fd, at, len, offset) },
        };
        match usize::try_from(moved) {
            Ok(moved) => return Ok(moved),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}
