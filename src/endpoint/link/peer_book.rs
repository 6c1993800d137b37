//! `PeerBook`: who is in the address vector, and until when.
//!
//! An address leaves the vector only when nothing is outstanding to it, and a little later than
//! that: what the provider calls sent may still be on its way, and some of them cut it off when the
//! address goes.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::Error;
use crate::fabric::{FiAddr, PeerAddr};

/// How long an address stays that nobody uses any more.
const LINGER: Duration = Duration::from_secs(2);

/// Addresses in use and lingering.
#[derive(Debug, Default)]
pub(crate) struct PeerBook {
    entries: HashMap<PeerAddr, Entry>,
    /// When each address had its last user, the oldest first; some have one again.
    leaving: VecDeque<(Instant, PeerAddr)>,
}

#[derive(Debug)]
struct Entry {
    number: FiAddr,
    users: u32,
    /// When it may go; set while there is no user.
    leaves: Option<Instant>,
}

impl PeerBook {
    /// One user more; a peer that is not in the vector is inserted.
    pub(crate) fn take(
        &mut self,
        peer: PeerAddr,
        insert: impl FnOnce() -> Result<FiAddr, Error>,
    ) -> Result<FiAddr, Error> {
        if let Some(entry) = self.entries.get_mut(&peer) {
            entry.users += 1;
            entry.leaves = None;
            return Ok(entry.number);
        }
        let number = insert()?;
        let entry = Entry {
            number,
            users: 1,
            leaves: None,
        };
        self.entries.insert(peer, entry);
        Ok(number)
    }

    /// One user less.
    pub(crate) fn give_back(&mut self, peer: PeerAddr, now: Instant) {
        let Some(entry) = self.entries.get_mut(&peer) else {
            return;
        };
        entry.users = entry.users.saturating_sub(1);
        if entry.users == 0 {
            let at = now + LINGER;
            entry.leaves = Some(at);
            self.leaving.push_back((at, peer));
        }
    }

    /// Removes the addresses whose time has come.
    pub(crate) fn expire(&mut self, now: Instant, mut remove: impl FnMut(FiAddr)) {
        while let Some(&(at, peer)) = self.leaving.front().filter(|(at, _)| *at <= now) {
            self.leaving.pop_front();
            // Used again meanwhile, or again unused and later in the queue.
            if self
                .entries
                .get(&peer)
                .is_some_and(|e| e.leaves == Some(at))
                && let Some(entry) = self.entries.remove(&peer)
            {
                remove(entry.number);
            }
        }
    }

    /// Addresses that nobody uses, roughly: how much of the vector is only lingering.
    pub(crate) fn lingering(&self) -> usize {
        self.leaving.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(port: u16) -> PeerAddr {
        std::net::SocketAddr::from(([10, 0, 0, 1], port)).into()
    }

    #[test]
    fn an_address_is_inserted_once_and_leaves_after_its_last_user() {
        let mut book = PeerBook::default();
        let now = Instant::now();
        let number = FiAddr::UNSPECIFIED;
        let mut removed = 0;
        book.take(peer(1), || Ok(number)).unwrap();
        book.take(peer(1), || unreachable!("it is there")).unwrap();
        book.give_back(peer(1), now);
        book.expire(now + 2 * LINGER, |_| removed += 1);
        assert_eq!(removed, 0, "it has a user");
        book.give_back(peer(1), now);
        book.expire(now + LINGER / 2, |_| removed += 1);
        assert_eq!(removed, 0, "it lingers");
        // Used again while it lingers: the first departure does not count.
        book.take(peer(1), || unreachable!("it is there")).unwrap();
        book.expire(now + LINGER, |_| removed += 1);
        book.give_back(peer(1), now + LINGER);
        book.expire(now + LINGER, |_| removed += 1);
        assert_eq!(removed, 0);
        book.expire(now + 2 * LINGER, |_| removed += 1);
        assert_eq!((removed, book.lingering()), (1, 0));
        let refused = book.take(peer(1), || Err(Error::fabric("fi_av_insert", libc::ENOMEM)));
        assert!(refused.is_err(), "gone, so it is inserted anew");
    }
}
