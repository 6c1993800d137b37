//! The epoll set of a loop, level-triggered.
//!
//! Descriptors are plain numbers here: the loop owns none of them and their owners may close them
//! at any time, which epoll answers with an error and never with anything worse. That is why
//! registration goes through `libc`: rustix wants a descriptor that is promised to be open.

#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

use crate::error::Error;
use crate::process::Owner;

/// An epoll descriptor and the buffer that its events are read into.
pub(super) struct Poller {
    /// A child shares the epoll set with its parent: what it would add or remove there is the
    /// parent's.
    owner: Owner,
    epoll: OwnedFd,
    /// `libc`'s type: rustix's holds a pointer and would tie the loop to one thread.
    events: Vec<libc::epoll_event>,
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller")
            .field("epoll", &self.epoll)
            .finish_non_exhaustive()
    }
}

impl Poller {
    pub(super) fn new(events_max: usize) -> Result<Self, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|errno| Error::Os {
            call: "epoll_create1",
            source: errno.into(),
        })?;
        Ok(Self {
            owner: Owner::current(),
            epoll,
            events: vec![libc::epoll_event { events: 0, u64: 0 }; events_max],
        })
    }

    pub(super) fn owner(&self) -> Owner {
        self.owner
    }

    pub(super) fn add(&self, fd: RawFd, bits: u64, flags: epoll::EventFlags) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, bits, flags)
    }

    pub(super) fn modify(&self, fd: RawFd, bits: u64, flags: epoll::EventFlags) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, bits, flags)
    }

    /// Forgets `fd`. One that was closed is already forgotten, which is no error.
    pub(super) fn delete(&self, fd: RawFd) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, epoll::EventFlags::empty());
    }

    fn control(
        &self,
        operation: i32,
        fd: RawFd,
        bits: u64,
        flags: epoll::EventFlags,
    ) -> io::Result<()> {
        if !self.owner.is_here() {
            return Err(Errno::PERM.into());
        }
        let mut event = libc::epoll_event {
            events: flags.bits(),
            u64: bits,
        };
        // SAFETY: epoll_ctl(2) only reads `event`, which lives on this stack; it keeps no pointer,
        // and answers EBADF for a number that is not open.
        let answer =
            unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &raw mut event) };
        if answer < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }

    /// Waits until a descriptor is ready or `timeout` is over; returns how many
    /// [`event`](Self::event)s there are.
    pub(super) fn wait(&mut self, timeout: Duration) -> Result<usize, Error> {
        if !timeout.is_zero() && !self.sleep(timeout)? {
            return Ok(0);
        }
        let events_max =
            i32::try_from(self.events.len()).expect("the configuration allows 4096 at most");
        // SAFETY: epoll_wait(2) writes at most `events_max` events, which is the length of
        // `events`, and keeps no pointer.
        let count = unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                self.events.as_mut_ptr(),
                events_max,
                0,
            )
        };
        if count >= 0 {
            return Ok(count as usize);
        }
        let source = io::Error::last_os_error();
        if source.kind() == io::ErrorKind::Interrupted {
            Ok(0)
        } else {
            Err(Error::Os {
                call: "epoll_wait",
                source,
            })
        }
    }

    /// Sleeps in ppoll(2): plain epoll_wait counts whole milliseconds, and epoll_pwait2 is newer
    /// than some of our kernels.
    fn sleep(&self, timeout: Duration) -> Result<bool, Error> {
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        match poll(
            &mut [PollFd::new(&self.epoll, PollFlags::IN)],
            Some(&timeout),
        ) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(Error::Os {
                call: "ppoll",
                source: errno.into(),
            }),
        }
    }

    /// One event of the last wait: the registered bits, and what is ready.
    pub(super) fn event(&self, position: usize) -> (u64, epoll::EventFlags) {
        let event = self.events[position];
        (event.u64, epoll::EventFlags::from_bits_retain(event.events))
    }
}

pub(super) fn epoll_ctl_error(source: io::Error) -> Error {
    Error::Os {
        call: "epoll_ctl",
        source,
    }
}

/// Whether the kernel can't watch this kind of descriptor, or not this deep: EINVAL and ELOOP are
/// its limits on nested epoll sets, EPERM is a file without a poll operation.
pub(super) fn is_unwatchable(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::ELOOP | libc::EPERM)
    )
}
