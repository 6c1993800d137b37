//! `Account`: what one connection has of a worker's: places of requests, and buffers.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::fabric::PeerAddr;

/// Who a client is, as far as a service knows it: by this, connections share what there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// The host at the other end of the control connection; of IPv6, its network of 64 bits, in
    /// which a host may choose its address.
    Host(IpAddr),
    /// The provider says no host: all such clients are one.
    Unknown,
}

impl Origin {
    /// Of a connection's peer.
    pub(super) fn of(peer: Option<&PeerAddr>) -> Self {
        let Some(addr) = peer.and_then(PeerAddr::socket_addr) else {
            return Self::Unknown;
        };
        Self::Host(match addr.ip().to_canonical() {
            IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() >> 64 << 64).into()),
            ip => ip,
        })
    }
}

/// What one connection has. It outlives the connection, as long as something of it does.
///
/// The counts say who may have more, and order nothing else: all accesses are relaxed.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) origin: Origin,
    places: AtomicU32,
    buffers: AtomicU32,
    /// Places of all connections.
    all: Arc<AtomicU32>,
}

impl Account {
    pub(super) fn new(origin: Origin, all: &Arc<AtomicU32>) -> Arc<Self> {
        Arc::new(Self {
            origin,
            places: AtomicU32::new(0),
            buffers: AtomicU32::new(0),
            all: Arc::clone(all),
        })
    }

    pub(super) fn places(&self) -> u32 {
        self.places.load(Ordering::Relaxed)
    }

    pub(super) fn buffers(&self) -> u32 {
        self.buffers.load(Ordering::Relaxed)
    }

    /// Takes a place, whether there is room or not.
    pub(super) fn place(self: &Arc<Self>) -> Arc<Place> {
        self.places.fetch_add(1, Ordering::Relaxed);
        self.all.fetch_add(1, Ordering::Relaxed);
        Arc::new(Place {
            account: Arc::clone(self),
            is_over: AtomicBool::new(false),
        })
    }

    /// Counts a buffer.
    pub(super) fn buffer(self: &Arc<Self>) -> BufferHold {
        self.buffers.fetch_add(1, Ordering::Relaxed);
        BufferHold(Arc::clone(self))
    }
}

/// The place of one request: of its job, and of what the store was asked for it. It is free when
/// neither is there any more.
#[derive(Debug)]
pub(super) struct Place {
    account: Arc<Account>,
    is_over: AtomicBool,
}

impl Place {
    pub(super) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Nobody waits for the request any more.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.account.places.fetch_sub(1, Ordering::Relaxed);
        self.account.all.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A buffer that is a connection's, wherever it is: it is kept beside the buffer, and dropped with
/// it.
#[derive(Debug)]
pub(super) struct BufferHold(Arc<Account>);

impl BufferHold {
    pub(super) fn account(&self) -> &Arc<Account> {
        &self.0
    }
}

impl Drop for BufferHold {
    fn drop(&mut self) {
        self.0.buffers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_a_host_whatever_its_port() {
        let origin = |text: &str| Origin::of(Some(&text.parse().unwrap()));
        assert_eq!(origin("127.0.0.1:1"), origin("127.0.0.1:2"));
        assert_ne!(origin("127.0.0.1:1"), origin("127.0.0.2:1"));
        assert_eq!(origin("[::ffff:10.0.0.1]:1"), origin("10.0.0.1:1"));
        assert_eq!(origin("[fd00::1]:1"), origin("[fd00::2]:1"));
        assert_ne!(origin("[fd00::1]:1"), origin("[fd00:0:0:1::1]:1"));
        assert_eq!(Origin::of(None), Origin::Unknown);
    }

    #[test]
    fn a_place_is_free_when_nothing_of_its_request_is_there() {
        let all = Arc::new(AtomicU32::new(0));
        let account = Account::new(Origin::Unknown, &all);
        let place = account.place();
        let errand = Arc::clone(&place);
        place.end();
        drop(place);
        assert!(errand.is_over());
        assert_eq!((account.places(), all.load(Ordering::Relaxed)), (1, 1));
        drop(errand);
        assert_eq!((account.places(), all.load(Ordering::Relaxed)), (0, 0));
        let hold = account.buffer();
        assert_eq!(account.buffers(), 1);
        drop(hold);
        assert_eq!(account.buffers(), 0);
    }
}
