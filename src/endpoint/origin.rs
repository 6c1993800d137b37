//! `Origin`: the host that a connection comes from, by which connections share what there is.

use std::fmt;
use std::net::IpAddr;

use crate::fabric::PeerAddr;

/// Who a client is, as far as a listener knows it: by this, connections share what there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    /// The host at the other end of the control connection; of IPv6, its network of 64 bits, in
    /// which a host may choose its address.
    Host(IpAddr),
    /// The provider says no host: all such clients are one.
    Unknown,
}

impl Origin {
    /// Of a connection's peer.
    pub(crate) fn of(peer: Option<&PeerAddr>) -> Self {
        let Some(addr) = peer.and_then(PeerAddr::socket_addr) else {
            return Self::Unknown;
        };
        Self::Host(match addr.ip().to_canonical() {
            IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() >> 64 << 64).into()),
            ip => ip,
        })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(ip) => ip.fmt(f),
            Self::Unknown => f.write_str("unknown"),
        }
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
}
