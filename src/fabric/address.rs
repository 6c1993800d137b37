//! `PeerAddr`: where a peer is, in words that people type.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use crate::Error;

/// The address of a peer or of a listener.
///
/// Today an IP address and a port (`127.0.0.1:7471`, `[::1]:7471`, `node7:7471`); addresses of other kinds of
/// fabric will be further forms of the same type.
///
/// ```
/// use fabricast::PeerAddr;
///
/// let addr: PeerAddr = "127.0.0.1:7471".parse()?;
/// assert_eq!(addr.to_string(), "127.0.0.1:7471");
/// assert!("127.0.0.1".parse::<PeerAddr>().unwrap_err().to_string().contains("port"));
/// # Ok::<(), fabricast::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerAddr(SocketAddr);

impl PeerAddr {
    /// The IP address and port.
    pub fn socket_addr(&self) -> SocketAddr {
        self.0
    }
}

impl From<SocketAddr> for PeerAddr {
    fn from(addr: SocketAddr) -> Self {
        Self(addr)
    }
}

impl FromStr for PeerAddr {
    type Err = Error;

    /// Parses `host:port`; a host name is resolved, the first address is taken.
    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = |reason: String| Error::Address {
            address: text.to_owned(),
            reason,
        };
        if let Ok(addr) = text.parse() {
            return Ok(Self(addr));
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            return Err(bad("want host:port, the port is missing".to_owned()));
        };
        let port: u16 = port
            .parse()
            .map_err(|_| bad(format!("{port:?} is no port (0 to 65535)")))?;
        let mut found = (host, port)
            .to_socket_addrs()
            .map_err(|e| bad(e.to_string()))?;
        found
            .next()
            .map(Self)
            .ok_or_else(|| bad("the name has no address".to_owned()))
    }
}

impl fmt::Display for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_people_type() {
        for text in ["127.0.0.1:1", "[::1]:65535", "localhost:80"] {
            assert!(text.parse::<PeerAddr>().is_ok(), "{text}");
        }
        for text in [
            "",
            "127.0.0.1",
            "127.0.0.1:",
            "127.0.0.1:65536",
            "::1",
            "localhost:x",
            ":",
        ] {
            let error = text.parse::<PeerAddr>().expect_err(text).to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
