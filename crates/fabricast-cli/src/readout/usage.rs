//! What a process has used of its machine since some moment.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::readout::allocations::allocations;

/// What was used: time, the processor, and the allocator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) time: Duration,
    /// Nanoseconds of the processor, user and system, of all threads.
    pub(crate) cpu_ns: u64,
    /// Calls of the allocator.
    pub(crate) allocations: u64,
}

/// A moment, from which usage is counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Since {
    at: Instant,
    cpu_ns: u64,
    allocations: u64,
}

impl Since {
    pub(crate) fn now() -> Self {
        Self {
            at: Instant::now(),
            cpu_ns: cpu_ns(),
            allocations: allocations(),
        }
    }

    /// What was used up to now.
    pub(crate) fn used(&self) -> Usage {
        Usage {
            time: self.at.elapsed(),
            cpu_ns: cpu_ns() - self.cpu_ns,
            allocations: allocations() - self.allocations,
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }
}

fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_and_allocations_are_counted() {
        let since = Since::now();
        let first = since.used();
        let kept: Vec<Box<u64>> = (0..1000).map(Box::new).collect();
        while since.used().cpu_ns < first.cpu_ns + 1_000_000 {
            std::hint::spin_loop();
        }
        let used = since.used();
        assert!(used.allocations >= first.allocations + kept.len() as u64);
        assert!(used.time > first.time);
    }
}
