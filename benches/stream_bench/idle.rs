//! `Idle`: what the bare loop does when a poll found nothing.

#![allow(unsafe_code)]

use std::time::Duration;

use libfabric_sys as sys;

use crate::case::{BareWait, Case};
use crate::deadline::Patience;
use crate::error::{Failure, fail};
use crate::net::Net;

/// How long a run may take.
const LIMIT: Duration = Duration::from_secs(120);
/// Empty polls in a row before it sleeps.
const LOOKS: u32 = 64;
/// The longest sleep, in milliseconds.
const NAP: i32 = 10;

/// Polls on, or sleeps until the queue's file descriptor says that there is something.
pub(crate) struct Idle<'a> {
    net: &'a Net,
    fd: Option<i32>,
    empty: u32,
    patience: Patience,
}

impl<'a> Idle<'a> {
    pub(crate) fn new(case: &Case, net: &'a Net) -> Result<Self, Failure> {
        let fd = match case.bare_wait {
            BareWait::Spin => None,
            BareWait::Fd => Some(wait_fd(net)?),
        };
        Ok(Self {
            net,
            fd,
            empty: 0,
            patience: Patience::new(LIMIT),
        })
    }

    /// After each poll: what it found.
    #[inline]
    pub(crate) fn on_poll(&mut self, found: usize) -> Result<(), Failure> {
        self.empty = match found {
            0 => self.empty + 1,
            _ => 0,
        };
        if let Some(fd) = self.fd
            && self.empty >= LOOKS
        {
            self.empty = 0;
            self.sleep(fd)?;
        }
        self.patience.on_poll(found)
    }

    #[cold]
    fn sleep(&self, fd: i32) -> Result<(), Failure> {
        let mut fids = [self.net.cq.cast()];
        // SAFETY: fabric and queue are open, and the queue is one of the fabric.
        let rc = unsafe { sys::fi_trywait(self.net.fabric, fids.as_mut_ptr(), 1) };
        if rc == -sys::FI_EAGAIN {
            return Ok(());
        }
        if rc != 0 {
            return fail(format!("bare loop: fi_trywait answered {rc}"));
        }
        let mut event = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry, which is writable. That it woke early does no harm.
        unsafe { libc::poll(&raw mut event, 1, NAP) };
        Ok(())
    }
}

fn wait_fd(net: &Net) -> Result<i32, Failure> {
    let mut fd = -1;
    // SAFETY: the queue is open, and was opened with FI_WAIT_FD (`Case::wait_obj`); the result is
    // writable.
    let rc = unsafe { sys::fi_getwait_fd(net.cq.cast(), &raw mut fd) };
    match rc {
        0 => Ok(fd),
        rc => fail(format!("bare loop: fi_control answered {rc}")),
    }
}
