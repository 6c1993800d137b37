//! `Transfer` and `Operation`: one accepted transfer, its tasks, who does them, and what becomes of
//! its buffer.
//!
//! ```text
//!  Operation<B> ── tasks 0..n ──► pool: threads take the next task that nobody has begun
//!     │                        ├► bounce helpers, where a copy overlaps with the next transfer
//!     │                        └► whoever waits for it without a deadline
//!     └ the thread that ends the last task makes the outcome:
//!       to the waiter, the waker, the callback, or nobody
//! ```
//!
//! # Safety
//! The memory of a transfer is good until its last task has ended: an operation owns its buffer
//! until then, and a call that borrows memory does not return before.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Instant;

use super::engine::{Task, TaskOutcome};
use super::file::File;
use super::io_buffer::RawMemory;
use super::stats::Record;
use super::thread_pool::{Run, ThreadPool};
use super::transfer_route::TransferRoute;
use super::{BackEnd, Direction, FileError, FileErrorKind, FileOperation, IoOutcome, Transferred};
use fabricast_process::contained;

/// What is transferred.
#[derive(Clone)]
pub(crate) struct Subject {
    pub(crate) file: Arc<File>,
    pub(crate) operation: FileOperation,
    pub(crate) direction: Direction,
    pub(crate) offset: u64,
}

impl Subject {
    /// An error of this transfer, of `len` bytes.
    pub(crate) fn error(&self, len: usize, kind: FileErrorKind) -> FileError {
        FileError::new(self.operation, Arc::clone(self.file.path()), kind)
            .at(self.offset, len as u64)
    }
}

/// What all tasks of one transfer share.
pub(crate) struct Transfer {
    subject: Subject,
    memory: RawMemory,
    route: TransferRoute,
    /// The next task that nobody has begun. More are asked for than there are.
    next: AtomicU64,
    /// Tasks that have not ended.
    left: AtomicU32,
    /// The first byte that was not moved, as far as is known; no task that lies behind it needs to
    /// begin.
    stop: AtomicUsize,
    direct: AtomicUsize,
    bounced: AtomicUsize,
    /// What moved the bytes, where it was not the route's engine.
    instead: OnceLock<BackEnd>,
    /// Why it stopped there.
    error: Mutex<Option<FileErrorKind>>,
    /// Nobody wants what is read.
    cancelled: AtomicBool,
    begun: Instant,
}

impl Transfer {
    /// A transfer of which nothing has begun.
    ///
    /// # Safety
    /// `memory` is good to write, with nobody else reading or writing it (a read), or good to read
    /// (a write), until the last task has ended or the transfer is dropped without a step.
    pub(crate) unsafe fn new(subject: Subject, memory: RawMemory, route: TransferRoute) -> Self {
        Self {
            subject,
            memory,
            route,
            next: AtomicU64::new(0),
            left: AtomicU32::new(route.tasks.count()),
            stop: AtomicUsize::new(usize::MAX),
            direct: AtomicUsize::new(0),
            bounced: AtomicUsize::new(0),
            instead: OnceLock::new(),
            error: Mutex::new(None),
            cancelled: AtomicBool::new(false),
            begun: Instant::now(),
        }
    }

    /// Does the next task that nobody has begun: `None` when there is none, else whether it was the
    /// last of all to end.
    fn step(&self) -> Option<bool> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        if index >= u64::from(self.route.tasks.count()) {
            return None;
        }
        // Below a count that is a `u32`.
        let (start, len) = self.route.tasks.range(index as u32);
        let is_wanted = !self.cancelled.load(Ordering::Relaxed);
        if is_wanted && start < self.stop.load(Ordering::Relaxed) {
            let outcome = self.run(start, len);
            self.add(start, len, outcome);
        } else {
            self.stop.fetch_min(start, Ordering::Relaxed);
        }
        // Release: what this task wrote comes before its end; Acquire: the last one has seen all of
        // them.
        Some(self.left.fetch_sub(1, Ordering::AcqRel) == 1)
    }

    fn run(&self, start: usize, len: usize) -> TaskOutcome {
        let task = Task {
            file: &self.subject.file,
            direction: self.subject.direction,
            memory: self.memory.part(start, len).in_context(self.route.context),
            offset: self.subject.offset + start as u64,
            direct: self.route.direct,
            bounce: self.route.bounce,
            unwanted: Some(&self.cancelled),
        };
        // SAFETY: a part of the memory that `new` was promised, which no other task has (`Tasks`),
        // and this task has not ended.
        let run = || unsafe { self.route.engine.run(&task) };
        contained(run).unwrap_or_else(|said| TaskOutcome::failed(FileErrorKind::Panicked(said)))
    }

    fn add(&self, start: usize, len: usize, outcome: TaskOutcome) {
        if outcome.direct > 0 {
            self.direct.fetch_add(outcome.direct, Ordering::Relaxed);
        }
        if outcome.bounced > 0 {
            self.bounced.fetch_add(outcome.bounced, Ordering::Relaxed);
        }
        if let Some(back_end) = outcome.instead {
            self.instead.get_or_init(|| back_end);
        }
        if outcome.moved == len && outcome.error.is_none() {
            return;
        }
        let stopped = start + outcome.moved;
        let mut error = unpoisoned(&self.error);
        // The lowest one counts, whoever ends first.
        if stopped < self.stop.fetch_min(stopped, Ordering::Relaxed) {
            *error = outcome.error;
        }
    }

    /// What came of it, after the last task; counts it, too. Once.
    fn result(&self) -> Result<Transferred, FileError> {
        let len = self.memory.len();
        let bytes = len.min(self.stop.load(Ordering::Relaxed));
        let error = unpoisoned(&self.error).take();
        let direct_bytes = self.direct.load(Ordering::Relaxed);
        let bounced_bytes = self.bounced.load(Ordering::Relaxed);
        let asked = || self.route.engine.back_end();
        let back_end = self.instead.get().copied().unwrap_or_else(asked);
        let file = &self.subject.file;
        if self.subject.direction == Direction::Write {
            file.forget_size();
        }
        file.counters().record(&Record {
            direction: self.subject.direction,
            back_end,
            bytes: bytes as u64,
            direct_bytes: direct_bytes as u64,
            bounced_bytes: bounced_bytes as u64,
            elapsed: self.begun.elapsed(),
            failed: error.is_some(),
        });
        match error {
            Some(kind) => {
                let mut error = self.subject.error(len, kind);
                error.done = bytes as u64;
                Err(error)
            }
            None => Ok(Transferred {
                bytes,
                back_end,
                direct_bytes: direct_bytes.min(bytes),
                bounced_bytes: bounced_bytes.min(bytes),
            }),
        }
    }
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads that only take part in transfers through bounce buffers, so that one copies while
/// another waits for the device. None where the system gives no threads: then each thread
/// alternates.
fn bounce_helpers() -> Option<&'static ThreadPool> {
    static HELPERS: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let made = HELPERS.get_or_init(|| {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        ThreadPool::named("fc-bounce", threads.clamp(2, 32), 4096).ok()
    });
    made.as_ref()
}

/// A transfer that a call waits for, which borrows its memory.
struct Borrowed {
    transfer: Transfer,
    is_over: Mutex<bool>,
    over: Condvar,
}

impl Borrowed {
    fn step(&self) -> bool {
        let step = self.transfer.step();
        if step == Some(true) {
            *unpoisoned(&self.is_over) = true;
            self.over.notify_all();
        }
        step.is_some()
    }
}

impl Run for Borrowed {
    fn run(self: Arc<Self>, _: u32) {
        self.step();
    }

    fn panicked(self: Arc<Self>, _: u32) {}
}

/// Transfers, on this thread and on the pool's, and returns when all tasks have ended.
///
/// # Safety
/// `memory` is good to write, with nobody else reading or writing it (a read), or good to read (a
/// write), until this returns.
pub(crate) unsafe fn transfer(
    subject: Subject,
    memory: RawMemory,
    route: TransferRoute,
    pool: Option<&ThreadPool>,
) -> Result<Transferred, FileError> {
    // SAFETY: the caller's promise; this waits for the last task below, and nothing before that can
    // unwind (tasks are caught).
    let transfer = unsafe { Transfer::new(subject, memory, route) };
    let others = route.tasks.count() - 1;
    if others == 0 {
        transfer.step();
        return transfer.result();
    }
    let borrowed = Arc::new(Borrowed {
        transfer,
        is_over: Mutex::new(false),
        over: Condvar::new(),
    });
    // Refused, or no threads: this one does it all.
    if let Some(pool) = pool {
        let _ = pool.submit(Arc::clone(&borrowed) as Arc<dyn Run>, 0..others);
    }
    help(&borrowed, route);
    while borrowed.step() {}
    let mut is_over = unpoisoned(&borrowed.is_over);
    while !*is_over {
        is_over = borrowed
            .over
            .wait(is_over)
            .unwrap_or_else(PoisonError::into_inner);
    }
    drop(is_over);
    borrowed.transfer.result()
}

/// Asks helpers to take part, where the route wants some.
fn help<T: Run + 'static>(operation: &Arc<T>, route: TransferRoute) {
    if !route.helpers || route.tasks.count() == 1 {
        return;
    }
    if let Some(helpers) = bounce_helpers() {
        // Each call does one task, and the first that finds none is the last that costs anything.
        let calls = route.tasks.count() - 1;
        let _ = helpers.submit(Arc::clone(operation) as Arc<dyn Run>, 0..calls);
    }
}

/// What happens when an operation is over.
type OnDone<B> = Box<dyn FnOnce(IoOutcome<B>) + Send>;

enum OperationState<B> {
    Running {
        /// Nobody touches it before the last task has ended.
        buffer: B,
        then: Then<B>,
    },
    Over(IoOutcome<B>),
    /// The outcome was given out, or dropped.
    Taken,
}

enum Then<B> {
    /// Somebody holds the future, and may have left a waker.
    Keep(Option<Waker>),
    Call(OnDone<B>),
    /// The future was dropped.
    Drop,
}

/// A transfer that owns its buffer.
pub(crate) struct Operation<B> {
    transfer: Transfer,
    state: Mutex<OperationState<B>>,
    over: Condvar,
}

impl<B: Send + 'static> Operation<B> {
    /// An operation of which nothing has begun. `place` says where the bytes are, and is asked when
    /// the buffer is where it will stay.
    ///
    /// # Safety
    /// The memory that `place` answers is good to write, with nobody else reading or writing it (a
    /// read), or good to read (a write), until the buffer is dropped or used in any other way.
    pub(crate) unsafe fn new(
        subject: Subject,
        route: TransferRoute,
        buffer: B,
        place: impl FnOnce(&mut B) -> RawMemory,
    ) -> Arc<Self> {
        let nothing = RawMemory::of(&[]);
        // SAFETY: no memory yet, and no task before this returns.
        let transfer = unsafe { Transfer::new(subject, nothing, route) };
        let mut operation = Arc::new(Self {
            transfer,
            state: Mutex::new(OperationState::Running {
                buffer,
                then: Then::Keep(None),
            }),
            over: Condvar::new(),
        });
        let inner = Arc::get_mut(&mut operation).expect("nobody else has it yet");
        let state = inner
            .state
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let OperationState::Running { buffer, .. } = state {
            inner.transfer.memory = place(buffer);
        }
        operation
    }

    /// Gives it to the threads. A pool that is full gives the buffer back.
    pub(crate) fn submit(self: &Arc<Self>, pool: &ThreadPool) -> Result<(), IoOutcome<B>> {
        let route = self.transfer.route;
        let job = Arc::clone(self) as Arc<dyn Run>;
        if let Err(refused) = pool.submit(job, 0..route.tasks.count()) {
            drop(refused.job);
            return match std::mem::replace(&mut *unpoisoned(&self.state), OperationState::Taken) {
                OperationState::Running { buffer, .. } => Err(self.refused(buffer)),
                _ => unreachable!("no task was begun"),
            };
        }
        help(self, route);
        Ok(())
    }

    fn refused(&self, buffer: B) -> IoOutcome<B> {
        let len = self.transfer.memory.len();
        IoOutcome {
            buffer,
            result: Err(self.transfer.subject.error(len, FileErrorKind::QueueFull)),
        }
    }

    /// The last task has ended.
    fn finish(&self) {
        let result = self.transfer.result();
        let mut state = unpoisoned(&self.state);
        let OperationState::Running { buffer, then } =
            std::mem::replace(&mut *state, OperationState::Taken)
        else {
            unreachable!("only the last task ends an operation");
        };
        let outcome = IoOutcome { buffer, result };
        match then {
            Then::Keep(waker) => {
                *state = OperationState::Over(outcome);
                drop(state);
                self.over.notify_all();
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            Then::Call(on_done) => {
                drop(state);
                call(on_done, outcome);
            }
            Then::Drop => {
                drop(state);
                drop(outcome);
            }
        }
    }

    fn step(&self) -> bool {
        let step = self.transfer.step();
        if step == Some(true) {
            self.finish();
        }
        step.is_some()
    }

    pub(crate) fn is_over(&self) -> bool {
        !matches!(*unpoisoned(&self.state), OperationState::Running { .. })
    }

    /// The outcome, if it is there; else leaves the waker for it.
    pub(crate) fn poll(&self, waker: &Waker) -> Option<IoOutcome<B>> {
        let mut state = unpoisoned(&self.state);
        if let OperationState::Running { then, .. } = &mut *state {
            if let Then::Keep(Some(old)) = then
                && old.will_wake(waker)
            {
                return None;
            }
            let old = std::mem::replace(then, Then::Keep(Some(waker.clone())));
            drop(state);
            // A waker may do anything when it is dropped, so not under the lock.
            drop(old);
            return None;
        }
        take(&mut state)
    }

    /// Takes part in the work, then sleeps until the others are done.
    pub(crate) fn wait(&self) -> IoOutcome<B> {
        while self.step() {}
        let mut state = unpoisoned(&self.state);
        loop {
            if let Some(outcome) = take(&mut state) {
                return outcome;
            }
            state = self
                .over
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sleeps until it is over or the deadline is there.
    pub(crate) fn wait_until(&self, deadline: Instant) -> Option<IoOutcome<B>> {
        let mut state = unpoisoned(&self.state);
        loop {
            if let Some(outcome) = take(&mut state) {
                return Some(outcome);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            let wait = self.over.wait_timeout(state, left);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Has the callback called with the outcome, here and now when it is over already.
    pub(crate) fn on_done(&self, on_done: impl FnOnce(IoOutcome<B>) + Send + 'static) {
        let mut state = unpoisoned(&self.state);
        if let OperationState::Running { then, .. } = &mut *state {
            let old = std::mem::replace(then, Then::Call(Box::new(on_done)));
            drop(state);
            drop(old);
            return;
        }
        let outcome = take(&mut state);
        drop(state);
        if let Some(outcome) = outcome {
            call(on_done, outcome);
        }
    }

    /// Nobody waits any more. Tasks of a read that have not begun are left out; a write goes on.
    pub(crate) fn abandon(&self) {
        let mut state = unpoisoned(&self.state);
        let dropped = match &mut *state {
            OperationState::Running { then, .. } => {
                if matches!(then, Then::Call(_)) {
                    return;
                }
                if self.transfer.subject.direction == Direction::Read {
                    self.transfer.cancelled.store(true, Ordering::Relaxed);
                }
                (
                    Some(std::mem::replace(then, Then::Drop)),
                    OperationState::Taken,
                )
            }
            other => (None, std::mem::replace(other, OperationState::Taken)),
        };
        drop(state);
        drop(dropped);
    }
}

fn take<B>(state: &mut OperationState<B>) -> Option<IoOutcome<B>> {
    match std::mem::replace(state, OperationState::Taken) {
        OperationState::Over(outcome) => Some(outcome),
        other => {
            *state = other;
            None
        }
    }
}

impl<B: Send + 'static> Run for Operation<B> {
    fn run(self: Arc<Self>, _: u32) {
        self.step();
    }

    fn panicked(self: Arc<Self>, _: u32) {}
}

static CALLBACK_PANICS: AtomicU64 = AtomicU64::new(0);

/// How many functions that were given to [`IoFuture::on_done`](super::IoFuture::on_done) panicked
/// in this process.
pub fn callback_panics() -> u64 {
    CALLBACK_PANICS.load(Ordering::Relaxed)
}

pub(super) fn call<B>(on_done: impl FnOnce(IoOutcome<B>), outcome: IoOutcome<B>) {
    if let Err(said) = contained(|| on_done(outcome)) {
        CALLBACK_PANICS.fetch_add(1, Ordering::Relaxed);
        tracing::error!(
            said,
            "a function that was given to IoFuture::on_done panicked"
        );
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/operation.rs"]
mod tests;
