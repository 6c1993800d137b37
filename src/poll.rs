//! Sleeping in poll(2).

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use smallvec::SmallVec;

use crate::Error;

/// Sleeps until one of these is readable, at most so long; without a time, until one is. Says
/// whether it was woken, by one of them or by a signal.
pub(crate) fn sleep_on<'fd>(
    fds: impl IntoIterator<Item = BorrowedFd<'fd>>,
    longest: Option<Duration>,
) -> Result<bool, Error> {
    let watch = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let mut watched: SmallVec<[PollFd<'_>; 4]> = fds.into_iter().map(watch).collect();
    let timeout = longest.map(|longest| Timespec {
        tv_sec: longest.as_secs().cast_signed(),
        tv_nsec: longest.subsec_nanos().into(),
    });
    match rustix::event::poll(&mut watched, timeout.as_ref()) {
        Ok(readable) => Ok(readable > 0),
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(Error::os("poll", error)),
    }
}
