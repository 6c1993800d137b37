//! `Gaps`: how long this machine lets nobody run. A thread that only reads the clock, on a core
//! that nobody else measures with, sees what the kernel and the machine below it take for
//! themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Failure, fail};
use crate::host;

/// Times between two looks at the clock that are counted one by one.
const LONG: Duration = Duration::from_micros(100);

/// The thread.
#[derive(Debug)]
pub struct Gaps {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<(Duration, u64)>,
}

impl Gaps {
    /// Starts it on this core.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn begin(core: usize) -> Result<Self, Failure> {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let look = move || {
            // Where it can't, it sees the gaps of a core that others use.
            let _ = host::pin(core);
            let (mut longest, mut many) = (Duration::ZERO, 0);
            let mut before = Instant::now();
            while !over.load(Ordering::Relaxed) {
                let now = Instant::now();
                let gap = now - before;
                longest = longest.max(gap);
                many += u64::from(gap > LONG);
                before = now;
            }
            (longest, many)
        };
        let thread = std::thread::Builder::new().name("gaps".to_owned());
        let thread = thread.spawn(look)?;
        Ok(Self { is_over, thread })
    }

    /// Ends it: the longest gap in microseconds, and how many were longer than 100.
    ///
    /// # Errors
    /// When the thread ended by itself.
    pub fn end(self) -> Result<(f64, u64), Failure> {
        self.is_over.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok((longest, many)) => Ok((longest.as_secs_f64() * 1e6, many)),
            Err(_) => fail("the thread that looks for gaps ended"),
        }
    }
}
