//! `HalfOpen`: sockets of the listener that never became a connection.
//!
//! A provider accepts whoever connects and then waits for its own handshake, without a limit in
//! number or time, and without telling us. So we look for such sockets among our own descriptors,
//! by their addresses, and shut them down when their time is up; the provider then sees the end of
//! the stream and frees them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use rustix::net::Shutdown;

use crate::fabric::{AcceptedSockets, PeerAddr};

/// The most half-open sockets that are left alone while their time is not up; above it, the oldest
/// go first.
const HALF_OPEN_MAX: usize = 256;

/// The half-open sockets of one listener, since when each is known.
#[derive(Debug)]
pub(crate) struct HalfOpen {
    /// None where listeners have no such address: then there are no such sockets.
    sockets: Option<AcceptedSockets>,
    since: HashMap<(RawFd, SocketAddr), Instant>,
}

impl HalfOpen {
    pub(crate) fn new(listener: PeerAddr) -> Self {
        Self {
            sockets: listener.socket_addr().map(AcceptedSockets::of),
            since: HashMap::new(),
        }
    }

    /// It has said what it is to say, and waits for an answer, or for the rest of one: its time
    /// begins anew.
    pub(crate) fn heard_of(&mut self, peer: &SocketAddr, now: Instant) {
        for ((_, its), since) in &mut self.since {
            if its == peer {
                *since = now;
            }
        }
    }

    /// Looks at this process's sockets, and shuts down those that came to the listener, belong to
    /// no connection (`known`), and are older than `patience` or one too many. Returns how many.
    pub(crate) fn reap(
        &mut self,
        now: Instant,
        patience: Duration,
        known: impl Fn(&SocketAddr) -> bool,
    ) -> u64 {
        let mut seen = HashMap::new();
        let accepted = self.sockets.map(|sockets| sockets.all());
        for (fd, peer) in accepted.unwrap_or_default() {
            if !known(&peer) {
                let since = self.since.get(&(fd, peer)).copied().unwrap_or(now);
                seen.insert((fd, peer), since);
            }
        }
        let mut by_age: Vec<_> = seen
            .iter()
            .map(|(socket, since)| (*since, *socket))
            .collect();
        by_age.sort_unstable();
        let surplus = by_age.len().saturating_sub(HALF_OPEN_MAX);
        let mut reaped = 0;
        for (i, (since, (fd, peer))) in by_age.into_iter().enumerate() {
            if i < surplus || now.saturating_duration_since(since) >= patience {
                reaped += u64::from(self.shut_down(fd, peer));
                seen.remove(&(fd, peer));
            }
        }
        self.since = seen;
        reaped
    }

    /// The provider opens and closes the sockets of its listener only inside our own calls (manual
    /// progress), so the descriptor is still the one that was looked at.
    fn shut_down(&self, fd: RawFd, peer: SocketAddr) -> bool {
        let cut = self
            .sockets
            .is_some_and(|sockets| sockets.shut_down(fd, peer, Shutdown::Both));
        if cut {
            tracing::debug!(%peer, "half-open connection cut off");
        }
        cut
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    const PATIENCE: Duration = Duration::from_secs(10);

    /// A listener, and a client with the socket that was accepted for it.
    fn pair() -> (HalfOpen, TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let client = TcpStream::connect(addr).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        (HalfOpen::new(addr.into()), client, accepted)
    }

    #[test]
    fn who_says_nothing_in_time_is_cut_off() {
        let (mut half_open, mut client, _accepted) = pair();
        let begin = Instant::now();
        assert_eq!(half_open.reap(begin, PATIENCE, |_| false), 0);
        let soon = begin + PATIENCE - Duration::from_millis(1);
        assert_eq!(half_open.reap(soon, PATIENCE, |_| false), 0);
        assert_eq!(half_open.reap(begin + PATIENCE, PATIENCE, |_| false), 1);
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "the end of the stream");
    }

    #[test]
    fn a_connection_is_left_alone() {
        let (mut half_open, client, _accepted) = pair();
        let begin = Instant::now();
        let peer = client.local_addr().unwrap();
        for time in [Duration::ZERO, 3 * PATIENCE] {
            assert_eq!(half_open.reap(begin + time, PATIENCE, |it| *it == peer), 0);
        }
    }

    #[test]
    fn who_asked_late_has_the_time_of_an_answer() {
        let (mut half_open, mut client, _accepted) = pair();
        let begin = Instant::now();
        assert_eq!(half_open.reap(begin, PATIENCE, |_| false), 0);
        let asked = begin + PATIENCE * 3 / 4;
        half_open.heard_of(&client.local_addr().unwrap(), asked);
        assert_eq!(half_open.reap(begin + PATIENCE, PATIENCE, |_| false), 0);
        assert_eq!(half_open.reap(asked + PATIENCE, PATIENCE, |_| false), 1);
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "the end of the stream");
    }
}
