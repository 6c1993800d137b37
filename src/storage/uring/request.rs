//! `Progress`: how far one transfer has come, and what follows from what the kernel answered. Pure:
//! no ring, no memory touched.
//!
//! ```text
//!   next ─► Part{file, at, len} ─► kernel ─► answer(res) ─┬─► Step::Over(Moved)
//!    ▲                                                    │   all, end of file, error, cancelled
//!    └─────────────────────────────────── Step::Again ◄───┘
//!                                         short, EINTR, EAGAIN
//! ```

use std::os::fd::RawFd;

use super::fixed::{FileSlot, RegionSlot};
use crate::storage::Direction;

/// The most bytes of one operation: the kernel moves less than 2 GiB at once, and a registered
/// buffer has 1 GiB at most.
const PART_MAX_BYTES: usize = 1 << 30;
/// How often in a row an operation is begun again for EINTR, EAGAIN, or a cancellation that nobody
/// asked for.
const RETRIES_MAX: u16 = 1_000;

/// A file as the kernel is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A descriptor.
    Fd(RawFd),
    /// A place in the ring's table of files.
    Registered(FileSlot),
}

/// One transfer between a file and one run of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) direction: Direction,
    /// Where it begins: the direct descriptor where its part of the file and the memory are aligned
    /// for that.
    pub(crate) file: Target,
    /// Where it goes on after `file` moved less than asked, or refused with EINVAL: the buffered
    /// descriptor. `None`: `file` is that.
    pub(crate) rest: Option<Target>,
    pub(crate) memory: *mut u8,
    pub(crate) len: usize,
    pub(crate) offset: u64,
    /// The registered region that all of the memory lies in.
    pub(crate) region: Option<RegionSlot>,
}

/// What one operation is to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) file: Target,
    /// From the start of the request.
    pub(crate) at: usize,
    pub(crate) len: u32,
    /// By a worker of the kernel from the start: without it, the kernel said that it can't.
    pub(crate) by_worker: bool,
}

impl Part {
    /// What a request begins with.
    #[inline(always)]
    pub(crate) fn first(request: &Request) -> Self {
        Self {
            file: request.file,
            at: 0,
            len: request.len.min(PART_MAX_BYTES) as u32,
            by_worker: false,
        }
    }
}

/// Why a transfer ended before all was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The file has no more.
    EndOfFile,
    /// It was cancelled, and the kernel did as asked.
    Cancelled,
    /// An errno.
    Error(i32),
}

/// What a transfer came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    /// The bytes from the start of the request that were moved.
    pub(crate) bytes: usize,
    /// Those of them that `Request::file` moved where there is a `rest`: the direct ones.
    pub(crate) direct_bytes: usize,
    /// Why it is not all of them.
    pub(crate) stop: Option<Stop>,
    /// `Request::file` answered EINVAL, and `rest` took over.
    pub(crate) direct_refused: bool,
}

/// What to do after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Ask the kernel for the next part.
    Again,
    /// The transfer is over.
    Over(Moved),
}

/// A request and how far it is.
#[derive(Debug)]
pub(crate) struct Progress {
    request: Request,
    moved: Moved,
    on_rest: bool,
    cancelled: bool,
    by_worker: bool,
    retries: u16,
}

impl Progress {
    #[inline(always)]
    pub(crate) fn new(request: Request) -> Self {
        Self {
            request,
            moved: Moved {
                bytes: 0,
                direct_bytes: 0,
                stop: None,
                direct_refused: false,
            },
            on_rest: false,
            cancelled: false,
            by_worker: false,
            retries: 0,
        }
    }

    #[inline]
    pub(crate) fn request(&self) -> &Request {
        &self.request
    }

    /// From here on the transfer is not begun again, and a refusal of the kernel is a cancellation.
    pub(crate) fn cancel(&mut self) {
        self.cancelled = true;
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    /// What to ask the kernel for.
    #[inline]
    pub(crate) fn next(&self) -> Part {
        let left = self.request.len - self.moved.bytes;
        let file = match self.request.rest {
            Some(rest) if self.on_rest => rest,
            _ => self.request.file,
        };
        Part {
            file,
            at: self.moved.bytes,
            len: left.min(PART_MAX_BYTES) as u32,
            by_worker: self.by_worker,
        }
    }

    /// Takes in what the kernel answered to the part that [`next`](Self::next) named.
    #[inline]
    pub(crate) fn answer(&mut self, result: i32) -> Step {
        match result {
            ..0 => self.refused(-result),
            0 => self.nothing(),
            _ => self.some(result as usize),
        }
    }

    #[inline]
    fn some(&mut self, bytes: usize) -> Step {
        let asked = self.next().len as usize;
        debug_assert!(
            bytes <= asked,
            "the kernel moved more than it was asked for"
        );
        let bytes = bytes.min(asked);
        self.moved.bytes += bytes;
        if self.request.rest.is_some() && !self.on_rest {
            self.moved.direct_bytes += bytes;
        }
        self.retries = 0;
        if self.moved.bytes == self.request.len {
            return self.over(None);
        }
        if bytes < asked {
            // What follows need not be aligned any more.
            self.on_rest = true;
        }
        self.again()
    }

    /// A read is at the end of the file if the buffered descriptor says so; a write that moves
    /// nothing never ends.
    fn nothing(&mut self) -> Step {
        if self.request.rest.is_some() && !self.on_rest {
            self.on_rest = true;
            return self.again();
        }
        match self.request.direction {
            _ if self.request.len == 0 => self.over(None),
            Direction::Read => self.over(Some(Stop::EndOfFile)),
            Direction::Write => self.over(Some(Stop::Error(libc::EIO))),
        }
    }

    fn refused(&mut self, errno: i32) -> Step {
        match errno {
            // An operation under way in a worker is interrupted by its cancellation.
            libc::ECANCELED | libc::EINTR if self.cancelled => self.over(Some(Stop::Cancelled)),
            libc::EINVAL if self.request.rest.is_some() && !self.on_rest => {
                self.on_rest = true;
                self.moved.direct_refused = true;
                self.again()
            }
            // ECANCELED that nobody asked for: the thread that submitted it has ended.
            libc::EINTR | libc::EAGAIN | libc::ECANCELED if self.retries < RETRIES_MAX => {
                self.retries += 1;
                self.by_worker |= errno == libc::EAGAIN;
                self.again()
            }
            _ => self.over(Some(Stop::Error(errno))),
        }
    }

    fn again(&self) -> Step {
        if self.cancelled {
            self.over(Some(Stop::Cancelled))
        } else {
            Step::Again
        }
    }

    fn over(&self, stop: Option<Stop>) -> Step {
        Step::Over(Moved { stop, ..self.moved })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DIRECT: Target = Target::Fd(3);
    const BUFFERED: Target = Target::Fd(4);

    fn request(direction: Direction, len: usize, direct: bool) -> Progress {
        Progress::new(Request {
            direction,
            file: if direct { DIRECT } else { BUFFERED },
            rest: direct.then_some(BUFFERED),
            memory: std::ptr::null_mut(),
            len,
            offset: 0,
            region: None,
        })
    }

    fn over(bytes: usize, direct_bytes: usize, stop: Option<Stop>) -> Step {
        Step::Over(Moved {
            bytes,
            direct_bytes,
            stop,
            direct_refused: false,
        })
    }

    #[test]
    fn a_short_direct_read_is_the_end_only_when_the_buffered_descriptor_agrees() {
        let mut progress = request(Direction::Read, 8192, true);
        assert_eq!(progress.answer(5000), Step::Again);
        let next = progress.next();
        assert_eq!((next.file, next.at, next.len), (BUFFERED, 5000, 3192));
        assert_eq!(progress.answer(0), over(5000, 5000, Some(Stop::EndOfFile)));

        let mut progress = request(Direction::Read, 8192, true);
        assert_eq!(progress.answer(0), Step::Again);
        assert_eq!(progress.next().file, BUFFERED);
        assert_eq!(progress.answer(8192), over(8192, 0, None));
    }

    #[test]
    fn refused_alignment_goes_by_the_buffered_descriptor_and_says_so() {
        let mut progress = request(Direction::Write, 4096, true);
        assert_eq!(progress.answer(-libc::EINVAL), Step::Again);
        assert_eq!(progress.next().file, BUFFERED);
        let Step::Over(moved) = progress.answer(4096) else {
            panic!("all was moved");
        };
        assert!(moved.direct_refused && moved.direct_bytes == 0 && moved.bytes == 4096);
        // The buffered descriptor has nobody to hand it on to.
        let mut progress = request(Direction::Write, 4096, false);
        let end = Stop::Error(libc::EINVAL);
        assert_eq!(progress.answer(-libc::EINVAL), over(0, 0, Some(end)));
    }

    #[test]
    fn an_error_behind_a_short_write_says_how_much_was_written() {
        let mut progress = request(Direction::Write, 100, false);
        assert_eq!(progress.answer(60), Step::Again);
        let end = Stop::Error(libc::ENOSPC);
        assert_eq!(progress.answer(-libc::ENOSPC), over(60, 0, Some(end)));
        let mut progress = request(Direction::Write, 100, false);
        assert_eq!(progress.answer(0), over(0, 0, Some(Stop::Error(libc::EIO))));
    }

    #[test]
    fn what_was_cancelled_is_not_begun_again() {
        let mut progress = request(Direction::Read, 100, false);
        progress.cancel();
        assert_eq!(progress.answer(60), over(60, 0, Some(Stop::Cancelled)));
        for errno in [libc::ECANCELED, libc::EINTR] {
            let mut progress = request(Direction::Read, 100, false);
            progress.cancel();
            assert_eq!(progress.answer(-errno), over(0, 0, Some(Stop::Cancelled)));
        }
        // Too late: it was done.
        let mut progress = request(Direction::Read, 100, false);
        progress.cancel();
        assert_eq!(progress.answer(100), over(100, 0, None));
    }

    #[test]
    fn interruptions_are_not_the_callers_business_but_have_a_bound() {
        for errno in [libc::EINTR, libc::EAGAIN, libc::ECANCELED] {
            let mut progress = request(Direction::Read, 100, false);
            for _ in 0..RETRIES_MAX {
                assert_eq!(progress.answer(-errno), Step::Again);
            }
            assert_eq!(progress.next().by_worker, errno == libc::EAGAIN);
            let end = over(0, 0, Some(Stop::Error(errno)));
            assert_eq!(progress.answer(-errno), end);
        }
    }

    #[test]
    fn a_long_transfer_goes_in_parts() {
        let mut progress = request(Direction::Write, PART_MAX_BYTES + 4096, true);
        assert_eq!(progress.next().len as usize, PART_MAX_BYTES);
        assert_eq!(progress.answer(PART_MAX_BYTES as i32), Step::Again);
        let next = progress.next();
        assert_eq!((next.file, next.len), (DIRECT, 4096));
        let all = PART_MAX_BYTES + 4096;
        assert_eq!(progress.answer(4096), over(all, all, None));
    }

    #[test]
    fn nothing_asked_is_all_moved() {
        assert_eq!(
            request(Direction::Write, 0, false).answer(0),
            over(0, 0, None)
        );
        assert_eq!(
            request(Direction::Read, 0, false).answer(0),
            over(0, 0, None)
        );
    }

    proptest! {
        /// Whatever the kernel answers, what was moved only grows, is never more than asked, and
        /// the end comes.
        #[test]
        fn any_answers_end(
            len in 1usize..10_000,
            direct: bool,
            write: bool,
            cancel_at in 0usize..20,
            answers in prop::collection::vec(-130i32..4000, 0..200),
        ) {
            let direction = if write {
                Direction::Write
            } else {
                Direction::Read
            };
            let mut progress = request(direction, len, direct);
            let mut sum = 0;
            for (turn, answer) in answers.into_iter().enumerate() {
                if turn == cancel_at {
                    progress.cancel();
                }
                let part = progress.next();
                prop_assert_eq!(part.at, sum);
                prop_assert!(part.len > 0 && sum + part.len as usize <= len);
                let answer = answer.min(part.len as i32);
                sum += answer.max(0) as usize;
                match progress.answer(answer) {
                    Step::Again => prop_assert!(turn < cancel_at),
                    Step::Over(moved) => {
                        prop_assert_eq!(moved.bytes, sum);
                        prop_assert!(moved.direct_bytes <= moved.bytes);
                        prop_assert_eq!(moved.stop.is_none(), moved.bytes == len);
                        return Ok(());
                    }
                }
            }
        }
    }
}
