//! `Periodic`: a thread that writes something again and again, and once more at its end.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::process::Owner;

/// The shortest pause between two times.
pub(crate) const SHORTEST: Duration = Duration::from_millis(10);

/// Whoever has it has the thread ended and waited for, by [`finish`](Self::finish) or a drop.
#[derive(Debug)]
pub(crate) struct Periodic {
    stop: Arc<StopSignal>,
    thread: Option<JoinHandle<io::Result<()>>>,
    owner: Owner,
}

impl Periodic {
    /// Calls `write` as often as that; without it once, at the end. An error ends it.
    pub(crate) fn start(
        name: &str,
        every: Option<Duration>,
        mut write: impl FnMut() -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let every = every.map(|every| every.max(SHORTEST));
        let stop = Arc::new(StopSignal::default());
        let seen = Arc::clone(&stop);
        let run = move || {
            loop {
                let is_last = seen.wait(every);
                write()?;
                if is_last {
                    return Ok(());
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(run)?;
        Ok(Self {
            stop,
            thread: Some(thread),
            owner: Owner::current(),
        })
    }

    /// Has it write once more, and ends it: the first error that there was.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        // A forked child has no such thread, and its locks may be held for ever.
        let Some(thread) = self.thread.take().filter(|_| self.owner.is_here()) else {
            return Ok(());
        };
        self.stop.set();
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the writer panicked")))
    }
}

impl Drop for Periodic {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(%error, "statistics could not be written");
        }
    }
}

/// Set once, by who ends the thread.
#[derive(Debug, Default)]
struct StopSignal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl StopSignal {
    fn set(&self) {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Until it is set, or so long. Whether it is set.
    fn wait(&self, at_most: Option<Duration>) -> bool {
        let end = at_most.and_then(|time| Instant::now().checked_add(time));
        let mut is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        while !*is_set {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            is_set = match left {
                None => self.changed.wait(is_set),
                Some(Duration::ZERO) => return false,
                Some(left) => {
                    let waited = self.changed.wait_timeout(is_set, left);
                    waited
                        .map(|(guard, _)| guard)
                        .map_err(|poisoned| PoisonError::new(poisoned.into_inner().0))
                }
            }
            .unwrap_or_else(PoisonError::into_inner);
        }
        true
    }
}
