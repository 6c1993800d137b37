//! `PeerAddr`: where a peer is, in words that people type and programs pass on.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use crate::Error;

/// The most bytes of an address that is no socket address.
pub(crate) const NAME_MAX: usize = 64;

/// The address of a peer or of a listener.
///
/// | form | text | where |
/// |---|---|---|
/// | IP address, port | `127.0.0.1:7471`, `[::1]:7471`, `node7:7471` | tcp, verbs, any over IP |
/// | a provider's text | `fi_shm://4711:0:1` | shm |
/// | a provider's bytes | `hex:fe800000…` | efa, cxi, psm3, opx |
/// | any | `any` | to listen at: the provider chooses |
///
/// The text is whole: what [`Display`](fmt::Display) writes in one process, [`FromStr`] reads in
/// another.
///
/// ```
/// use fabricast::PeerAddr;
///
/// let addr: PeerAddr = "127.0.0.1:7471".parse()?;
/// assert_eq!(addr.to_string(), "127.0.0.1:7471");
/// assert_eq!("any".parse::<PeerAddr>()?, PeerAddr::any());
/// assert!("127.0.0.1".parse::<PeerAddr>().unwrap_err().to_string().contains("port"));
/// # Ok::<(), fabricast::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerAddr(AddrForm);

/// What an address is made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum AddrForm {
    /// Whatever the provider chooses; nobody can connect to it.
    Any,
    Socket(SocketAddr),
    /// Printable ASCII (`FI_ADDR_STR`).
    Text(Name),
    /// Bytes that only the provider understands.
    Raw(Name),
}

/// Up to [`NAME_MAX`] bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Name {
    /// Zero behind the first `len`, so that equal names are equal.
    bytes: [u8; NAME_MAX],
    len: u8,
}

impl Name {
    fn new(name: &[u8]) -> Option<Self> {
        let len = u8::try_from(name.len()).ok()?;
        let mut bytes = [0; NAME_MAX];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(Self { bytes, len })
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl PeerAddr {
    /// To listen where the provider chooses; the listener's own address says where that is.
    pub fn any() -> Self {
        Self(AddrForm::Any)
    }

    /// The IP address and port, if it is one.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self.0 {
            AddrForm::Socket(addr) => Some(addr),
            AddrForm::Any | AddrForm::Text(_) | AddrForm::Raw(_) => None,
        }
    }

    pub(crate) fn form(&self) -> &AddrForm {
        &self.0
    }

    /// Whether it can be sent to: one host and one port, a text with a scheme, or a provider's
    /// bytes. What a peer says of itself may be none of these.
    pub(crate) fn is_answerable(&self) -> bool {
        match self.0 {
            AddrForm::Any => false,
            AddrForm::Socket(addr) => {
                let ip = addr.ip();
                let broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
                !(ip.is_unspecified() || ip.is_multicast() || broadcast || addr.port() == 0)
            }
            // Providers' names have one. Others would not be read back from what is shown of them.
            AddrForm::Text(name) => has_scheme(name.as_slice()),
            AddrForm::Raw(_) => true,
        }
    }

    /// A provider's address text, without its final 0: 1 to 64 printable ASCII characters.
    pub(crate) fn from_text(text: &[u8]) -> Option<Self> {
        let printable = !text.is_empty() && text.iter().all(u8::is_ascii_graphic);
        let name = Name::new(text).filter(|_| printable)?;
        Some(Self(AddrForm::Text(name)))
    }

    /// A provider's address, byte by byte: 1 to 64 of them.
    pub(crate) fn from_raw(bytes: &[u8]) -> Option<Self> {
        let name = Name::new(bytes).filter(|_| !bytes.is_empty())?;
        Some(Self(AddrForm::Raw(name)))
    }

    fn parse_form(text: &str) -> Option<Result<Self, &'static str>> {
        if text == "any" {
            return Some(Ok(Self::any()));
        }
        if let Some(digits) = text.strip_prefix("hex:") {
            let raw = from_hex(digits).and_then(|bytes| Self::from_raw(&bytes));
            return Some(raw.ok_or("want 1 to 64 bytes as two hexadecimal digits each"));
        }
        if text.contains("://") {
            let named = Self::from_text(text.as_bytes());
            return Some(named.ok_or("want at most 64 printable characters without spaces"));
        }
        None
    }
}

fn has_scheme(text: &[u8]) -> bool {
    !text.starts_with(b"hex:") && text.windows(3).any(|part| part == b"://")
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.as_bytes();
    if !digits.len().is_multiple_of(2) || digits.len() > 2 * NAME_MAX {
        return None;
    }
    let digit = |d: &u8| char::from(*d).to_digit(16);
    let pair = |pair: &[u8]| Some((digit(&pair[0])? * 16 + digit(&pair[1])?) as u8);
    digits.chunks_exact(2).map(pair).collect()
}

impl From<SocketAddr> for PeerAddr {
    fn from(addr: SocketAddr) -> Self {
        Self(AddrForm::Socket(addr))
    }
}

impl FromStr for PeerAddr {
    type Err = Error;

    /// Parses `host:port` (a host name is resolved, the first address is taken), a provider's text
    /// such as `fi_shm://4711:0:1`, `hex:` and digits, or `any`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = |reason: String| Error::Address {
            address: text.to_owned(),
            reason,
        };
        if let Ok(addr) = text.parse::<SocketAddr>() {
            return Ok(addr.into());
        }
        if let Some(found) = Self::parse_form(text) {
            return found.map_err(|reason| bad(reason.to_owned()));
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
            .map(Self::from)
            .ok_or_else(|| bad("the name has no address".to_owned()))
    }
}

impl fmt::Display for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            AddrForm::Any => f.write_str("any"),
            AddrForm::Socket(addr) => addr.fmt(f),
            AddrForm::Text(name) => name
                .as_slice()
                .iter()
                .try_for_each(|&byte| write!(f, "{}", char::from(byte))),
            AddrForm::Raw(name) => {
                f.write_str("hex:")?;
                name.as_slice()
                    .iter()
                    .try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

impl fmt::Debug for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
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
        let long = format!("fi_shm://{}", "1".repeat(NAME_MAX));
        for text in [
            "",
            "127.0.0.1",
            "127.0.0.1:",
            "127.0.0.1:65536",
            "::1",
            "localhost:x",
            ":",
            "hex:",
            "hex:0",
            "hex:0g",
            "fi_shm://a b",
            &long,
        ] {
            let error = text.parse::<PeerAddr>().expect_err(text).to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn every_form_survives_its_text() {
        let raw = PeerAddr::from_raw(&[0, 0xfe, 7]).unwrap();
        assert_eq!(raw.to_string(), "hex:00fe07");
        for text in [
            "127.0.0.1:1",
            "[fe80::1]:80",
            "fi_shm://12:0:3",
            "hex:00ff",
            "any",
        ] {
            let addr: PeerAddr = text.parse().unwrap();
            assert_eq!(addr.to_string(), text);
            assert_eq!(addr.to_string().parse::<PeerAddr>().unwrap(), addr);
        }
    }
}
