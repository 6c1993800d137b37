//! `Uring`: moves all of a transfer from the thread that calls, several pieces at a time, through a
//! ring of that thread's own.
//!
//! ```text
//!  plan: head │ middle (direct, or bounced)     │ tail      cut into pieces of PIECE_BYTES
//!              ├──────┬──────┬──────┬──────┤
//!              │ piece│ piece│ piece│ …    │      at most `depth` in the ring
//! ```
//!
//! The copy of a piece that was bounced overlaps with the others.
//!
//! # Safety
//! The task's memory and its file are borrowed until `run` returns or unwinds. Either way nothing
//! is in flight any more then, whatever happened: the drop of a [`RingRun`] sees to it, before its
//! bounce buffer and the caller's memory go back.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::flight::{Completed, Full};
use super::probe::probe;
use super::request::{Moved, Request, Stop, Target};
use super::ring::{Ring, RingConfig};
use crate::storage::bounce::BounceBuffer;
use crate::storage::engine::{Engine, Task, TaskOutcome};
use crate::storage::plan::{How, Piece, Plan, Rules};
use crate::storage::posix::Posix;
use crate::storage::{BackEnd, Defaults, Direction, FileErrorKind};

/// The longest piece, in bytes: long enough to cost the processor nothing, short enough that a few
/// of them keep a device busy.
pub(crate) const PIECE_BYTES: usize = 1 << 20;
/// How often the kernel may refuse to be waited for, a pause between each, before it is believed
/// that it always will.
const REFUSALS_MAX: u32 = 1_000;
const REFUSED_PAUSE: Duration = Duration::from_millis(10);

/// The back end that keeps a device busy from one thread.
#[derive(Debug)]
pub(crate) struct Uring;

impl Uring {
    /// Whether this process may use it.
    pub(crate) fn is_allowed() -> bool {
        Defaults::get().io_uring && probe().is_ok()
    }
}

impl Engine for Uring {
    fn back_end(&self) -> BackEnd {
        BackEnd::IoUring
    }

    unsafe fn run(&self, task: &Task<'_>) -> TaskOutcome {
        let Some(memory) = task.memory.host() else {
            return TaskOutcome::failed(FileErrorKind::Unsupported {
                what: "GPU memory",
                reason: "io_uring moves bytes of the host's memory only".into(),
            });
        };
        let outcome = with_ring(|ring| RingRun::new(task, memory, ring).all());
        outcome.unwrap_or_else(|error| {
            no_ring(&error);
            TaskOutcome {
                instead: Some(BackEnd::Posix),
                // SAFETY: the caller's promise.
                ..unsafe { Posix.run(task) }
            }
        })
    }

    /// All of it, from one thread.
    fn task_size(&self, _asked: usize, len: usize) -> usize {
        len
    }
}

/// Said once: a machine that has no descriptors or memory left for a ring has none for the next
/// either.
fn no_ring(error: &io::Error) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        tracing::warn!(%error, "no ring can be had: pread and pwrite instead (said once)");
    }
}

/// What a request in flight is a part of.
#[derive(Debug, Clone, Copy)]
struct InRing {
    piece: Piece,
    /// The part of the bounce buffer that it goes through.
    slot: Option<usize>,
}

thread_local! {
    static RING: RefCell<Option<Ring<InRing>>> = const { RefCell::new(None) };
}

/// Calls with this thread's ring, which is made at the first use, and anew when the setting says
/// another depth.
fn with_ring<R>(call: impl FnOnce(&mut Ring<InRing>) -> R) -> io::Result<R> {
    let depth = Defaults::get().io_uring_depth;
    let mut call = Some(call);
    let mut with = |ring: &mut Option<Ring<InRing>>| {
        if ring
            .as_ref()
            .is_none_or(|ring| ring.depth() != depth || !ring.is_here())
        {
            *ring = Some(Ring::open(RingConfig {
                depth: u32::try_from(depth).unwrap_or(u32::MAX),
                files: 0,
                buffers: 0,
                one_thread: true,
            })?);
        }
        let call = call.take().ok_or(io::ErrorKind::Other)?;
        ring.as_mut()
            .map(call)
            .ok_or_else(|| io::ErrorKind::Other.into())
    };
    RING.try_with(|ring| match ring.try_borrow_mut() {
        Ok(mut ring) => with(&mut ring),
        Err(_) => with(&mut None),
    })
    // The thread is ending, and its ring is gone.
    .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

/// A bounce buffer, cut into slots of one piece each.
///
/// The kernel uses some slots while others are copied: nobody makes a reference to the buffer.
struct Slots {
    _buffer: BounceBuffer,
    base: NonNull<u8>,
    free: Vec<usize>,
}

impl Slots {
    fn at(&self, slot: usize) -> NonNull<u8> {
        // SAFETY: there are as many slots as fit into the buffer (`slots`), which stays where it
        // is.
        unsafe { self.base.add(slot * PIECE_BYTES) }
    }
}

/// One task while it is done.
struct RingRun<'a> {
    task: &'a Task<'a>,
    memory: NonNull<u8>,
    ring: &'a mut Ring<InRing>,
    plan: Plan,
    /// What is left of the piece of the plan that is being cut.
    left: Option<Piece>,
    slots: Option<Slots>,
    /// Requests of this task in the ring.
    in_flight: usize,
    /// Where the lowest piece stopped that did not move all of its bytes.
    stop: usize,
    outcome: TaskOutcome,
}

impl<'a> RingRun<'a> {
    fn new(task: &'a Task<'a>, memory: NonNull<u8>, ring: &'a mut Ring<InRing>) -> Self {
        let rules = Rules {
            direction: task.direction,
            direct: task.direct && task.file.direct().is_some(),
            alignment: task.file.alignment(),
            page: rustix::param::page_size(),
        };
        let plan = Plan::new(rules, memory.addr().get(), task.offset, task.memory.len());
        Self {
            slots: bounces(&plan).and_then(|len| slots(len, ring.depth(), task.bounce)),
            task,
            memory,
            ring,
            plan,
            left: None,
            in_flight: 0,
            stop: task.memory.len(),
            outcome: TaskOutcome::default(),
        }
    }

    fn all(mut self) -> TaskOutcome {
        let mut completed = Vec::with_capacity(self.ring.depth());
        let mut refusals = 0;
        loop {
            self.fill();
            if self.in_flight == 0 {
                break;
            }
            match self.ring.wait(1, None, &mut completed) {
                Ok(()) => refusals = 0,
                Err(error) => self.refused(&error, &mut refusals),
            }
            self.take_in(&mut completed);
        }
        self.outcome.moved = self.stop;
        std::mem::take(&mut self.outcome)
    }

    /// Puts pieces into the ring, as many as there is room for.
    fn fill(&mut self) {
        while let Some(piece) = self.next_piece() {
            let slot = match (piece.how, &mut self.slots) {
                (How::Bounced, Some(slots)) => match slots.free.pop() {
                    Some(slot) => Some(slot),
                    None => return self.put_back(piece),
                },
                _ => None,
            };
            if !self.submit(InRing { piece, slot }) {
                if let (Some(slots), Some(slot)) = (&mut self.slots, slot) {
                    slots.free.push(slot);
                }
                return self.put_back(piece);
            }
            if slot.is_some() {
                // At once: the copy of the next piece takes time. What goes wrong here goes wrong
                // when it is waited for.
                let _ = self.ring.start();
            }
        }
    }

    /// The next piece of at most [`PIECE_BYTES`]; none behind what stopped.
    fn next_piece(&mut self) -> Option<Piece> {
        let piece = match self.left.take() {
            Some(left) => left,
            None => self.plan.next()?,
        };
        if piece.at >= self.stop {
            return None;
        }
        if self.task.is_unwanted() {
            self.stop = piece.at;
            return None;
        }
        let len = piece.len.min(PIECE_BYTES);
        if len < piece.len {
            self.left = Some(Piece {
                at: piece.at + len,
                offset: piece.offset + len as u64,
                len: piece.len - len,
                how: piece.how,
            });
        }
        Some(Piece { len, ..piece })
    }

    /// A piece that there is no room for yet.
    fn put_back(&mut self, piece: Piece) {
        let behind = self.left.take().map_or(0, |left| left.len);
        self.left = Some(Piece {
            len: piece.len + behind,
            ..piece
        });
    }

    /// False when the ring is full.
    fn submit(&mut self, one: InRing) -> bool {
        let InRing { piece, slot } = one;
        // SAFETY: pieces lie within their task, whose memory is one allocation.
        let here = unsafe { self.memory.add(piece.at) };
        let memory = match (slot, &self.slots) {
            (Some(slot), Some(slots)) => {
                let middle = slots.at(slot);
                if self.task.direction == Direction::Write {
                    // SAFETY: the piece's bytes are good to read, the slot is this piece's alone,
                    // and so elsewhere.
                    unsafe { here.copy_to_nonoverlapping(middle, piece.len) };
                }
                middle
            }
            _ => here,
        };
        let buffered = Target::Fd(self.task.file.buffered().as_raw_fd());
        let direct = match piece.how {
            How::Buffered => None,
            // Without a slot, memory that is not aligned goes through the page cache.
            How::Bounced if slot.is_none() => None,
            How::Bounced | How::Direct => self.task.file.direct(),
        };
        let request = Request {
            direction: self.task.direction,
            file: direct.map_or(buffered, |fd| Target::Fd(fd.as_raw_fd())),
            rest: direct.map(|_| buffered),
            memory: memory.as_ptr(),
            len: piece.len,
            offset: piece.offset,
            region: None,
        };
        // SAFETY: the memory is the task's, or that of the bounce buffer, and the descriptors are
        // those of the task's file: all of them are there until this run is over, which is when
        // nothing is in flight.
        match unsafe { self.ring.submit(request, one) } {
            Ok(()) => {
                self.in_flight += 1;
                true
            }
            Err(Full(_)) => false,
        }
    }

    fn take_in(&mut self, completed: &mut Vec<Completed<InRing>>) {
        self.in_flight -= completed.len();
        for Completed { owner, moved } in completed.iter() {
            self.over(owner.piece, *moved);
        }
        for Completed { owner, moved } in completed.drain(..) {
            let Some(slot) = owner.slot else { continue };
            if self.task.direction == Direction::Read {
                self.copy_out(owner.piece, slot, moved.bytes);
            }
            self.outcome.bounced += moved.direct_bytes;
            if let Some(slots) = &mut self.slots {
                slots.free.push(slot);
            }
            // At once, so that the device has something to do during the next copy.
            self.fill();
        }
    }

    /// From the bounce buffer into the caller's memory.
    fn copy_out(&mut self, piece: Piece, slot: usize, len: usize) {
        let Some(slots) = &self.slots else { return };
        let middle = slots.at(slot);
        // SAFETY: pieces lie within their task.
        let here = unsafe { self.memory.add(piece.at) };
        // SAFETY: `len` is at most the piece, which is good to write; the kernel is done with the
        // slot.
        unsafe { middle.copy_to_nonoverlapping(here, len.min(piece.len)) };
    }

    fn over(&mut self, piece: Piece, moved: Moved) {
        self.outcome.direct += moved.direct_bytes;
        if moved.direct_refused {
            let error = io::Error::from_raw_os_error(libc::EINVAL);
            let (direction, offset) = (self.task.direction, piece.offset);
            let file = self.task.file;
            file.refuse_direct(format!(
                "a direct {direction} at {offset} was refused: {error}"
            ));
        }
        let end = piece.at + moved.bytes;
        if let Some(stop) = moved.stop
            && end < self.stop
        {
            self.stop = end;
            self.outcome.error = match stop {
                Stop::EndOfFile => None,
                // Nobody cancels here.
                Stop::Cancelled => Some(FileErrorKind::Cancelled),
                Stop::Error(errno) => Some(FileErrorKind::Os { errno }),
            };
        }
    }

    /// The kernel can't be waited for. The memory is borrowed, so there is no way out before it is
    /// done with it.
    #[cold]
    fn refused(&mut self, error: &io::Error, refusals: &mut u32) {
        *refusals += 1;
        if *refusals == 1 {
            tracing::error!(%error, "io_uring_enter, with transfers in flight");
        }
        if *refusals > REFUSALS_MAX {
            // To return would be to hand memory back that the kernel may write to.
            tracing::error!(%error, "io_uring: memory that is lent out does not come back, the \
                process ends");
            std::process::abort();
        }
        std::thread::sleep(REFUSED_PAUSE);
    }
}

impl Drop for RingRun<'_> {
    /// Of a run that came to its end, nothing is in flight. One that panics in between (a
    /// subscriber of `tracing` may) cancels what the kernel still has, and waits for it: the panic
    /// is caught further up, and the memory goes back to its owner then. The ring is this thread's,
    /// and these are its only requests.
    fn drop(&mut self) {
        if self.ring.in_flight() == 0 {
            return;
        }
        self.ring.cancel_where(|_| true);
        let mut refusals = 0;
        while self.ring.in_flight() > 0 {
            match self.ring.wait_each(1, None, |ended, _| drop(ended)) {
                Ok(()) => refusals = 0,
                Err(error) => self.refused(&error, &mut refusals),
            }
        }
    }
}

/// The bytes of a plan that go through bounce buffers.
fn bounces(plan: &Plan) -> Option<usize> {
    let bounced = plan.clone().filter(|piece| piece.how == How::Bounced);
    let len: usize = bounced.map(|piece| piece.len).sum();
    (len > 0).then_some(len)
}

/// A slot for each piece in flight and one that is copied meanwhile; none where there is no memory
/// for them.
fn slots(len: usize, depth: usize, most: usize) -> Option<Slots> {
    let wanted = len.div_ceil(PIECE_BYTES).min(depth + 1) * PIECE_BYTES;
    let mut buffer = BounceBuffer::acquire(wanted, most.max(PIECE_BYTES))?;
    let count = buffer.len() / PIECE_BYTES;
    let base = NonNull::from(&mut buffer[..]).cast();
    (count > 0).then(|| Slots {
        _buffer: buffer,
        base,
        free: (0..count).rev().collect(),
    })
}

#[cfg(all(test, not(loom)))]
#[path = "tests/engine.rs"]
mod tests;
