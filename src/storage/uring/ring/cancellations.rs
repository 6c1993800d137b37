//! Cancellations of requests in flight, and that the kernel may lose one.

use std::io;
use std::time::{Duration, Instant};

use io_uring::opcode;

use super::{CANCELLATION, RingParts};

/// How long a request may stay in flight that was cancelled, before it is cancelled again.
const CANCEL_AGAIN: Duration = Duration::from_millis(10);

impl<T> RingParts<T> {
    pub(super) fn cancel_where(&mut self, mut wanted: impl FnMut(&mut T) -> bool) {
        let contexts: Vec<_> = self.in_flight.contexts().collect();
        for context in contexts {
            if let Some(flight) = self.in_flight.get_mut(context)
                && wanted(&mut flight.owner)
            {
                flight.progress.cancel();
                self.cancelled_at = Some(Instant::now());
                self.cancel(context);
            }
        }
    }

    /// Once more, of all that was cancelled and is in flight.
    fn cancel_again(&mut self) {
        self.cancelled_at = None;
        let contexts: Vec<_> = self.in_flight.contexts().collect();
        for context in contexts {
            let flight = self.in_flight.get(context);
            if flight.is_some_and(|flight| flight.progress.is_cancelled()) {
                self.cancelled_at = Some(Instant::now());
                self.cancel(context);
            }
        }
    }

    /// As `enter`; while something was cancelled that is in flight, for a while at most, and it is
    /// cancelled again. A cancellation that comes while the kernel moves a request from one place
    /// to another, such as from a worker to a poll, is without effect (EALREADY, or ENOENT): a read
    /// of a pipe would stay for ever.
    pub(super) fn enter_patiently(
        &mut self,
        want: usize,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let Some(at) = self.cancelled_at else {
            return self.enter(want, timeout);
        };
        let mut left = CANCEL_AGAIN.saturating_sub(at.elapsed());
        if left.is_zero() {
            self.cancel_again();
            left = CANCEL_AGAIN;
        }
        self.enter(
            want,
            Some(timeout.map_or(left, |timeout| timeout.min(left))),
        )
    }

    fn cancel(&mut self, context: usize) {
        // As many cancellations as requests: that is what the completion queue has room for. Beyond
        // that, a cancelled request is at least not begun again.
        if self.cancellations as usize >= self.in_flight.capacity() {
            return;
        }
        #[cfg(test)]
        if self.lost_cancellations > 0 {
            self.lost_cancellations -= 1;
            return;
        }
        let entry = opcode::AsyncCancel::new(context as u64)
            .build()
            .user_data(CANCELLATION);
        if self.push(&entry) {
            self.cancellations += 1;
        }
    }
}
