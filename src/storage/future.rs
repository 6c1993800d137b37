//! `IoFuture`: the outcome of an operation, and the ways to wait for it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use super::operation::Operation;
use super::{FileError, FileErrorKind, Transferred};

/// What came of an operation: the buffer, and how far it got.
#[derive(Debug)]
pub struct IoOutcome<B> {
    /// The buffer that was given.
    pub buffer: B,
    /// What was moved; or what stopped it, with the bytes that were done before
    /// ([`FileError::done`]).
    pub result: Result<Transferred, FileError>,
}

impl<B> IoOutcome<B> {
    /// The buffer and what was moved.
    ///
    /// # Errors
    /// What stopped the operation; the buffer is dropped then.
    pub fn into_result(self) -> Result<(B, Transferred), FileError> {
        self.result.map(|moved| (self.buffer, moved))
    }
}

/// An operation that goes on by itself and owns its buffer, and that ends in exactly one outcome.
///
/// Wait for it, with or without a deadline, ask whether it is done, have a function called, or
/// await it on any runtime. Dropping it is always safe: the buffer is dropped (a pool's goes back
/// to its pool) when nothing touches it any more. Parts of a read that have not begun then are left
/// out; a write goes on to its end.
///
/// ```
/// use fabricast::storage::{FileHandle, IoOptions};
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("run.dat");
/// let file = FileHandle::open(&path, "w+")?;
/// let written = file.pwrite(vec![7u8; 100_000], .., 0, &IoOptions::default());
/// let (buffer, moved) = written.wait().into_result()?;
/// assert_eq!(moved.bytes, 100_000);
///
/// let read = file.pread(buffer, ..1000, 99_500, &IoOptions::default());
/// let outcome = read.wait();
/// assert_eq!(outcome.result?.bytes, 500, "short at the end of the file");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a future that is dropped tells nobody whether the operation failed"]
pub struct IoFuture<B: Send + 'static>(IoFutureState<B>);

enum IoFutureState<B: Send + 'static> {
    /// Over before it began.
    Ready(IoOutcome<B>),
    Running(OperationHold<B>),
    /// Was polled to its end.
    Spent,
}

/// The one hold on an operation that its future has.
struct OperationHold<B: Send + 'static>(Arc<Operation<B>>);

impl<B: Send + 'static> Drop for OperationHold<B> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl<B: Send + 'static> IoFuture<B> {
    pub(crate) fn ready(buffer: B, result: Result<Transferred, FileError>) -> Self {
        Self(IoFutureState::Ready(IoOutcome { buffer, result }))
    }

    pub(crate) fn over(outcome: IoOutcome<B>) -> Self {
        Self(IoFutureState::Ready(outcome))
    }

    pub(crate) fn running(operation: Arc<Operation<B>>) -> Self {
        Self(IoFutureState::Running(OperationHold(operation)))
    }

    /// The outcome, when it was refused for that reason.
    pub(crate) fn refused(self, why: &FileErrorKind) -> Result<IoOutcome<B>, Self> {
        match self.0 {
            IoFutureState::Ready(outcome)
                if outcome
                    .result
                    .as_ref()
                    .is_err_and(|error| error.kind == *why) =>
            {
                Ok(outcome)
            }
            other => Err(Self(other)),
        }
    }

    /// Waits as long as it takes. The calling thread takes part in the work.
    ///
    /// # Panics
    /// When it was awaited to its end before.
    pub fn wait(self) -> IoOutcome<B> {
        match self.0 {
            IoFutureState::Ready(outcome) => outcome,
            IoFutureState::Running(held) => held.0.wait(),
            IoFutureState::Spent => panic!("{SPENT}"),
        }
    }

    /// Waits until the deadline.
    ///
    /// # Errors
    /// The future, when the operation is not over by then; it goes on.
    ///
    /// # Panics
    /// When it was awaited to its end before.
    pub fn wait_until(self, deadline: Instant) -> Result<IoOutcome<B>, Self> {
        match self.0 {
            IoFutureState::Ready(outcome) => Ok(outcome),
            IoFutureState::Running(held) => match held.0.wait_until(deadline) {
                Some(outcome) => Ok(outcome),
                None => Err(Self(IoFutureState::Running(held))),
            },
            IoFutureState::Spent => panic!("{SPENT}"),
        }
    }

    /// Whether it is over: then no wait waits.
    pub fn is_done(&self) -> bool {
        match &self.0 {
            IoFutureState::Ready(_) | IoFutureState::Spent => true,
            IoFutureState::Running(held) => held.0.is_over(),
        }
    }

    /// Has a function called with the outcome, on the thread that ends the operation: on this one,
    /// at once, if it is over already. It should be short, as other operations wait for that
    /// thread. A panic in it is caught, logged and counted
    /// ([`callback_panics`](super::callback_panics)).
    ///
    /// # Panics
    /// When it was awaited to its end before.
    pub fn on_done(self, call: impl FnOnce(IoOutcome<B>) + Send + 'static) {
        match self.0 {
            IoFutureState::Ready(outcome) => super::operation::call(call, outcome),
            IoFutureState::Running(held) => held.0.on_done(call),
            IoFutureState::Spent => panic!("{SPENT}"),
        }
    }

    /// Whether it is over; if not, the waker is called when it is.
    fn is_done_or_wakes(&mut self, waker: &Waker) -> bool {
        let IoFutureState::Running(held) = &self.0 else {
            return true;
        };
        match held.0.poll(waker) {
            Some(outcome) => {
                self.0 = IoFutureState::Ready(outcome);
                true
            }
            None => false,
        }
    }
}

const SPENT: &str = "the outcome of this IoFuture was taken already";

// Nothing in it is ever pinned: the buffer moves out by value.
impl<B: Send + 'static> Unpin for IoFuture<B> {}

impl<B: Send + 'static> Future for IoFuture<B> {
    type Output = IoOutcome<B>;

    /// # Panics
    /// When it is polled again after its end.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoOutcome<B>> {
        if !self.is_done_or_wakes(cx.waker()) {
            return Poll::Pending;
        }
        match std::mem::replace(&mut self.0, IoFutureState::Spent) {
            IoFutureState::Ready(outcome) => Poll::Ready(outcome),
            _ => panic!("{SPENT}"),
        }
    }
}

impl<B: Send + 'static> fmt::Debug for IoFuture<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoFuture")
            .field("is_done", &self.is_done())
            .finish_non_exhaustive()
    }
}

/// Waits for all of them, until the deadline: for each, in order, its outcome, or the future of an
/// operation that is not over.
pub fn wait_all<B: Send + 'static>(
    futures: impl IntoIterator<Item = IoFuture<B>>,
    deadline: Instant,
) -> Vec<Result<IoOutcome<B>, IoFuture<B>>> {
    let futures = futures.into_iter();
    futures.map(|future| future.wait_until(deadline)).collect()
}

/// Waits until one of them is over: its index; `None` at the deadline, or when there are none.
///
/// Take it out (`futures.swap_remove(index)`) before waiting for the next: one that is over stays
/// so.
pub fn wait_any<B: Send + 'static>(
    futures: &mut [IoFuture<B>],
    deadline: Instant,
) -> Option<usize> {
    if futures.is_empty() {
        return None;
    }
    let signal = Arc::new(Signal::default());
    let waker = Waker::from(Arc::clone(&signal));
    loop {
        let found = futures
            .iter_mut()
            .position(|future| future.is_done_or_wakes(&waker));
        if found.is_some() {
            return found;
        }
        if !signal.wait(deadline) {
            // The last look: what ended while we gave up.
            return futures.iter().position(IoFuture::is_done);
        }
    }
}

/// One thread that sleeps until it is woken.
#[derive(Default)]
struct Signal {
    is_set: Mutex<bool>,
    set: Condvar,
}

impl Signal {
    /// Waits for a wake, and takes it; false at the deadline.
    fn wait(&self, deadline: Instant) -> bool {
        let mut is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if std::mem::take(&mut *is_set) {
                return true;
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                return false;
            };
            let wait = self.set.wait_timeout(is_set, left);
            is_set = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.set.notify_one();
    }
}
