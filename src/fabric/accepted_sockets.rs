//! `AcceptedSockets`: this process's sockets that a listener of the provider's has accepted.
//!
//! The provider tells of none of them, so they are found among our own descriptors, by their
//! addresses.

#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};

use rustix::net::{Shutdown, sockopt};

/// The highest number that is tried where the directory of descriptors can't be read, because there
/// is none left to read it by, or no such directory.
const UNLISTED_MAX: u64 = 1 << 16;

/// The sockets of one listener.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AcceptedSockets {
    listener: SocketAddr,
}

impl AcceptedSockets {
    pub(crate) fn of(listener: SocketAddr) -> Self {
        Self { listener }
    }

    /// Those that are open, and their peers.
    pub(crate) fn all(&self) -> Vec<(RawFd, SocketAddr)> {
        let fds = descriptors().into_iter();
        fds.filter_map(|fd| self.peer_of(fd).map(|peer| (fd, peer)))
            .collect()
    }

    /// The peer of a descriptor, if it is a socket that the listener accepted.
    fn peer_of(&self, fd: RawFd) -> Option<SocketAddr> {
        if !self.is_named_so(fd) {
            return None;
        }
        rustix::net::getpeername(socket(fd)).ok()??.try_into().ok()
    }

    fn is_named_so(&self, fd: RawFd) -> bool {
        let name = rustix::net::getsockname(socket(fd)).ok();
        let Some(local) = name.and_then(|name| SocketAddr::try_from(name).ok()) else {
            return false;
        };
        let same_host = self.listener.ip().is_unspecified() || local.ip() == self.listener.ip();
        local.port() == self.listener.port() && same_host
    }

    /// Shuts one of them down, if it is still the one that was looked at: its owner then sees the
    /// end of the stream.
    pub(crate) fn shut_down(&self, fd: RawFd, peer: SocketAddr, how: Shutdown) -> bool {
        self.peer_of(fd) == Some(peer) && rustix::net::shutdown(socket(fd), how).is_ok()
    }

    /// Has the listener accept nobody any more: who waits is refused, and so is who comes.
    pub(super) fn deafen(&self) {
        for fd in descriptors() {
            let is_it = self.is_named_so(fd)
                && sockopt::socket_acceptconn(socket(fd)).is_ok_and(|listens| listens);
            if is_it {
                let _ = rustix::net::shutdown(socket(fd), Shutdown::Read);
            }
        }
    }
}

/// A descriptor that may be anything, to ask it what it is and to shut it down: to do that leaves
/// it to its owner.
fn socket(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: it is used for one call of the kernel's, here in this file, none of which closes it;
    // a number that is closed or reused meanwhile answers with an error or with other names. No
    // caller has a negative one: they are this process's descriptors.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// The numbers of this process's descriptors.
fn descriptors() -> Vec<RawFd> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let numbers = limit.unwrap_or(UNLISTED_MAX).min(UNLISTED_MAX);
        return (0..numbers as RawFd).collect();
    };
    let names = entries.flatten();
    names
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}
