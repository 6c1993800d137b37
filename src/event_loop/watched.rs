//! `Watched`: the descriptors that a loop watches, and for which source.

use std::collections::HashMap;
use std::io;
use std::os::fd::RawFd;

use rustix::event::epoll::EventFlags;

use super::poller::Poller;
use super::table::Token;

/// The epoll set with what is in it.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) poller: Poller,
    /// Which source a descriptor number belongs to; a number that was closed may since name another
    /// file.
    pub(super) owners: HashMap<RawFd, Token>,
}

impl Watched {
    pub(super) fn new(poller: Poller) -> Self {
        Self {
            poller,
            owners: HashMap::new(),
        }
    }

    /// Whether a descriptor number is, as far as the loop knows, still that source's.
    pub(super) fn is_of(&self, token: Token, fd: RawFd) -> bool {
        self.owners.get(&fd) == Some(&token)
    }

    /// Watches all of `fds` for reading, or none.
    pub(super) fn watch_all(&mut self, token: Token, fds: &[RawFd]) -> io::Result<()> {
        for (position, fd) in fds.iter().enumerate() {
            if let Err(error) = self.watch(token, *fd, EventFlags::IN) {
                self.unwatch(token, &fds[..position]);
                return Err(error);
            }
        }
        Ok(())
    }

    pub(super) fn watch(&mut self, token: Token, fd: RawFd, flags: EventFlags) -> io::Result<()> {
        self.poller.add(fd, token.bits(), flags)?;
        self.owners.insert(fd, token);
        Ok(())
    }

    /// Forgets the descriptors of a source, except numbers that were closed and used again for
    /// another source.
    pub(super) fn unwatch(&mut self, token: Token, fds: &[RawFd]) {
        for fd in fds {
            if self.is_of(token, *fd) {
                self.owners.remove(fd);
                self.poller.delete(*fd);
            }
        }
    }
}
