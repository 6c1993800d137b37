//! `ClientNetworks`: where the clients may be that tokens name.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::Error;
use crate::endpoint::PeerAddr;
use crate::endpoint::limits::config;
use crate::fabric::is_local;

/// What a text of networks may be.
const WANTED: &str = "must be `any`, `asker`, or networks as 10.0.0.0/8,192.168.1.7,fd00::/8";

/// The addresses at which clients may be. A token says where its client is, and a server goes
/// there: whoever may send it tokens could have it connect to any address and port.
///
/// It is read from a text, and written as one:
///
/// ```
/// use fabricast::object::ClientNetworks;
///
/// let networks: ClientNetworks = "10.0.0.0/8, 192.168.1.7".parse()?;
/// assert_eq!(networks.to_string(), "10.0.0.0/8,192.168.1.7/32");
/// assert_eq!("any".parse::<ClientNetworks>()?, ClientNetworks::any());
/// assert!("10.0.0.0/33".parse::<ClientNetworks>().is_err());
/// # Ok::<(), fabricast::Error>(())
/// ```
///
/// Ports are not looked at: a client's endpoint has one that the system chose. Nor are names that
/// are no IP addresses (`shm`, `efa`, `cxi`): they reach nothing but endpoints of that provider, of
/// this machine or of its network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientNetworks(Which);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Which {
    Any,
    Asker,
    These(Vec<IpNetwork>),
}

/// The addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IpNetwork {
    first: IpAddr,
    prefix: u32,
}

impl ClientNetworks {
    /// Anywhere.
    pub fn any() -> Self {
        Self(Which::Any)
    }

    /// Where whoever asks is: at the address of the connection that a request of an
    /// [`ObjectService`](crate::object::ObjectService) came over, or that an application tells
    /// [`ObjectServer::check_asker`](super::ObjectServer::check_asker). One that came over the
    /// loopback interface is a program of this machine: it may be at the machine's other addresses,
    /// too.
    pub fn asker() -> Self {
        Self(Which::Asker)
    }

    pub(crate) fn is_asker(&self) -> bool {
        self.0 == Which::Asker
    }

    /// Whether a client may be there that was told of by somebody at `asker`.
    pub(crate) fn has(&self, client: &PeerAddr, asker: Option<&PeerAddr>) -> bool {
        let Some(client) = ip(client) else {
            return true;
        };
        match &self.0 {
            Which::Any => true,
            Which::Asker => asker.and_then(ip).is_none_or(|asker| is_at(asker, client)),
            Which::These(networks) => networks.iter().any(|network| network.has(client)),
        }
    }
}

fn ip(addr: &PeerAddr) -> Option<IpAddr> {
    addr.socket_addr().map(|addr| addr.ip().to_canonical())
}

/// Whether an address is that of somebody who is at another one.
fn is_at(asker: IpAddr, client: IpAddr) -> bool {
    let is_ours = || is_local(client).unwrap_or(false);
    client == asker || asker.is_loopback() && !client.is_loopback() && is_ours()
}

/// An address as a number, and how many bits it has.
fn bits(ip: IpAddr) -> (u128, u32) {
    match ip {
        IpAddr::V4(ip) => (u32::from(ip).into(), 32),
        IpAddr::V6(ip) => (ip.into(), 128),
    }
}

impl IpNetwork {
    fn has(&self, ip: IpAddr) -> bool {
        let ((ip, width), (first, of)) = (bits(ip), bits(self.first));
        // None is left to compare where the prefix is 0.
        let front = |number: u128| number.checked_shr(width - self.prefix).unwrap_or(0);
        width == of && front(ip) == front(first)
    }
}

impl FromStr for IpNetwork {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (first, prefix) = match text.split_once('/') {
            Some((first, prefix)) => (first, Some(prefix)),
            None => (text, None),
        };
        let first: IpAddr = first.parse().map_err(|_| ())?;
        let (_, width) = bits(first);
        let prefix = prefix.map_or(Ok(width), |prefix| prefix.parse().map_err(|_| ()))?;
        (prefix <= width)
            .then_some(Self { first, prefix })
            .ok_or(())
    }
}

impl FromStr for ClientNetworks {
    type Err = Error;

    /// `any`, `asker`, or networks with commas between them.
    fn from_str(text: &str) -> Result<Self, Error> {
        let networks = match text.trim() {
            "any" => return Ok(Self::any()),
            "asker" => return Ok(Self::asker()),
            text => text.split(',').map(|part| part.trim().parse()),
        };
        let networks: Result<_, ()> = networks.collect();
        let networks = networks.map_err(|()| config("clients", text.to_owned(), WANTED))?;
        Ok(Self(Which::These(networks)))
    }
}

impl fmt::Display for ClientNetworks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Which::Any => f.write_str("any"),
            Which::Asker => f.write_str("asker"),
            Which::These(networks) => {
                for (n, network) in networks.iter().enumerate() {
                    let comma = if n == 0 { "" } else { "," };
                    write!(f, "{comma}{}/{}", network.first, network.prefix)?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ip: &str) -> PeerAddr {
        std::net::SocketAddr::new(ip.parse().expect("an address"), 7).into()
    }

    #[test]
    fn networks_have_what_begins_as_they_do() {
        let networks: ClientNetworks = "10.1.0.0/16, 192.168.1.7,fd00::/8".parse().expect("three");
        for ip in [
            "10.1.0.0",
            "10.1.255.255",
            "192.168.1.7",
            "fd00::1",
            "fdff::",
            "::ffff:10.1.2.3",
        ] {
            assert!(networks.has(&at(ip), None), "{ip}");
        }
        for ip in [
            "10.0.255.255",
            "10.2.0.0",
            "192.168.1.6",
            "fe00::",
            "0.0.253.0",
            "::",
        ] {
            assert!(!networks.has(&at(ip), None), "{ip}");
        }
        let all: ClientNetworks = "0.0.0.0/0,::/0".parse().expect("two");
        assert!(all.has(&at("255.0.0.1"), None) && all.has(&at("ff::1"), None));
        let text = networks.to_string();
        assert_eq!(text, "10.1.0.0/16,192.168.1.7/32,fd00::/8");
        assert_eq!(
            text.parse::<ClientNetworks>().expect("its own text"),
            networks
        );
        assert!(networks.has(&"fi_shm://1".parse().expect("a name"), None));
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in [
            "",
            "10",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/-1",
            "a/8",
            "1.2.3.4,",
            "/8",
        ] {
            let refused = text.parse::<ClientNetworks>();
            assert!(
                matches!(
                    refused,
                    Err(Error::Config {
                        field: "clients",
                        ..
                    })
                ),
                "{text}"
            );
        }
    }

    #[test]
    fn whoever_asks_is_where_it_asks_from() {
        let asker = ClientNetworks::asker();
        let has = |client, from| asker.has(&at(client), Some(&at(from)));
        assert!(has("10.1.2.3", "10.1.2.3") && has("127.0.0.1", "::ffff:127.0.0.1"));
        assert!(!has("10.1.2.4", "10.1.2.3"));
        assert!(
            !has("127.0.0.2", "127.0.0.1"),
            "others of this machine's are not meant"
        );
        assert!(
            !has("127.0.0.1", "10.1.2.3"),
            "what only this machine reaches"
        );
        assert!(!has("192.0.2.1", "127.0.0.1"), "no address of this machine");
    }
}
