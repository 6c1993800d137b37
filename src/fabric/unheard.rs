//! `Unheard`: peers of an endpoint without connections that the provider has accepted, and that
//! have said nothing.
//!
//! The tcp provider keeps each of them beside the domain's other sockets, with a pointer to what
//! listens beneath the endpoint. To close the endpoint frees that and forgets none of them
//! (`xnet_pep_close`, which says so; 1.17, as `net`, to 2.6 at least). When such a peer speaks or
//! hangs up, whoever polls another endpoint of the domain reads freed memory, and calls where it
//! points to. So they are cut off before: the provider sees the end of the streams, and lets go.

use rustix::net::Shutdown;

use super::accepted_sockets::AcceptedSockets;
use super::tcp_info::bytes_received;
use crate::fabric::PeerAddr;

/// Looks at the sockets, at most; one finds them, one that they are gone.
const ROUNDS_MAX: usize = 16;

/// So many sockets the provider looks at in one call, and more (128 in 2.x, 1,024 in 1.17).
const SOCKETS_PER_CALL: usize = 64;

/// Those of one endpoint.
pub(super) struct Unheard {
    sockets: AcceptedSockets,
}

impl Unheard {
    /// Those of the endpoint of this name.
    pub(super) fn of(name: &PeerAddr) -> Option<Self> {
        let sockets = AcceptedSockets::of(name.socket_addr()?);
        Some(Self { sockets })
    }

    /// Cuts them off, and whoever would be accepted; connections that stand are left alone.
    /// `progress` has the provider look at its sockets once. The endpoint can only be closed
    /// afterwards. Never blocks; bounded.
    pub(super) fn cut_off(&self, progress: impl Fn()) {
        self.sockets.deafen();
        // Other threads may be at it: what they were accepting is accepted afterwards.
        progress();
        for _ in 0..ROUNDS_MAX {
            let (open, cut) = self.shut_silent();
            // Whoever has said something is dealt with, too.
            for _ in 0..=open / SOCKETS_PER_CALL {
                progress();
            }
            if cut == 0 {
                return;
            }
        }
    }

    /// How many sockets there are, and how many of them had said nothing.
    fn shut_silent(&self) -> (usize, usize) {
        let open = self.sockets.all();
        let silent = open
            .iter()
            .filter(|(fd, _)| bytes_received(*fd).is_none_or(|bytes| bytes == 0));
        // What it has to say all the same can still be answered.
        let cut = silent.filter(|(fd, peer)| self.sockets.shut_down(*fd, *peer, Shutdown::Read));
        (open.len(), cut.count())
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/unheard.rs"]
mod tests;
