//! What a hello of the RDM form says behind its 48 bytes: where its speaker is, for the answer.
//!
//! ```text
//! 48  form      4: IPv4, 6: IPv6, 1: text, 2: bytes of the provider's
//! 49  length    6, 18, 1 to 64, 1 to 64
//! 50  address   IP address and port in network order; the others as they are
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::fabric::{AddrForm, NAME_MAX, PeerAddr};
use crate::protocol::wire::HELLO_LEN;

/// The longest hello of the RDM form.
pub(crate) const HELLO_MESSAGE_MAX: usize = HELLO_LEN + HEAD + NAME_MAX;

const HEAD: usize = 2;

const FORM_TEXT: u8 = 1;
const FORM_RAW: u8 = 2;
const FORM_IPV4: u8 = 4;
const FORM_IPV6: u8 = 6;

/// The bytes behind the hello; empty where a hello needs none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HelloTail {
    bytes: [u8; HEAD + NAME_MAX],
    len: usize,
}

impl HelloTail {
    /// None for "any", which is no address to answer to.
    pub(crate) fn new(addr: &PeerAddr) -> Option<Self> {
        let mut tail = Self {
            bytes: [0; HEAD + NAME_MAX],
            len: HEAD,
        };
        let form = match addr.form() {
            AddrForm::Any => return None,
            AddrForm::Socket(SocketAddr::V4(v4)) => {
                tail.push(&v4.ip().octets());
                tail.push(&v4.port().to_be_bytes());
                FORM_IPV4
            }
            AddrForm::Socket(SocketAddr::V6(v6)) => {
                tail.push(&v6.ip().octets());
                tail.push(&v6.port().to_be_bytes());
                FORM_IPV6
            }
            AddrForm::Text(name) => {
                tail.push(name.as_slice());
                FORM_TEXT
            }
            AddrForm::Raw(name) => {
                tail.push(name.as_slice());
                FORM_RAW
            }
        };
        tail.bytes[0] = form;
        // At most NAME_MAX, as the array has no room for more.
        tail.bytes[1] = (tail.len - HEAD) as u8;
        Some(tail)
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The speaker's address in a hello of the RDM form, if there is one that can be answered to.
/// Trusts nothing.
pub(crate) fn speaker(message: &[u8]) -> Option<PeerAddr> {
    let tail = message.get(HELLO_LEN..)?;
    let (&[form, len], rest) = tail.split_first_chunk()?;
    let address = rest.get(..usize::from(len))?;
    let peer = match form {
        FORM_IPV4 => {
            let (ip, port) = address.split_first_chunk()?;
            socket(Ipv4Addr::from(*ip).into(), port)
        }
        FORM_IPV6 => {
            let (ip, port) = address.split_first_chunk()?;
            socket(Ipv6Addr::from(*ip).into(), port)
        }
        FORM_TEXT => PeerAddr::from_text(address),
        FORM_RAW => PeerAddr::from_raw(address),
        _ => None,
    };
    peer.filter(PeerAddr::is_answerable)
}

fn socket(ip: IpAddr, port: &[u8]) -> Option<PeerAddr> {
    let port = u16::from_be_bytes(port.try_into().ok()?);
    Some(SocketAddr::new(ip, port).into())
}

/// Checks what is understood of hostile bytes: it is said in the same way again, and is an address
/// to answer to.
///
/// # Panics
///
/// When it is not.
#[cfg(any(test, fuzzing))]
pub(crate) fn exercise(bytes: &[u8]) {
    let Some(peer) = speaker(bytes) else { return };
    let tail = HelloTail::new(&peer).expect("an address to answer to");
    assert!(bytes[HELLO_LEN..].starts_with(tail.as_slice()), "{peer}");
    assert!(tail.as_slice().len() + HELLO_LEN <= HELLO_MESSAGE_MAX);
    if let AddrForm::Text(_) = peer.form() {
        assert_eq!(peer.to_string().parse::<PeerAddr>().ok(), Some(peer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tail: &[u8]) -> Vec<u8> {
        [&[7; HELLO_LEN][..], tail].concat()
    }

    #[test]
    fn every_form_comes_back() {
        for text in [
            "127.0.0.1:7471",
            "[fe80::1]:80",
            "fi_shm://12:0:3",
            "hex:00ff00",
        ] {
            let addr: PeerAddr = text.parse().unwrap();
            let tail = HelloTail::new(&addr).unwrap();
            let bytes = message(tail.as_slice());
            assert!(bytes.len() <= HELLO_MESSAGE_MAX);
            assert_eq!(speaker(&bytes), Some(addr));
            // Providers may pad; one byte less is no address.
            assert_eq!(speaker(&[&bytes[..], &[0; 9]].concat()), Some(addr));
            assert_eq!(speaker(&bytes[..bytes.len() - 1]), None);
        }
        assert!(HelloTail::new(&PeerAddr::any()).is_none());
    }

    #[test]
    fn a_text_without_a_scheme_is_nobody() {
        for text in ["=", "127.0.0.1:80", "host:80"] {
            let tail = [&[FORM_TEXT, text.len() as u8], text.as_bytes()].concat();
            assert_eq!(speaker(&message(&tail)), None, "{text}");
        }
    }

    #[test]
    fn the_bytes_of_the_two_that_are_most_used() {
        let bytes = |text: &str| {
            let tail = HelloTail::new(&text.parse().unwrap()).unwrap();
            tail.as_slice().to_vec()
        };
        assert_eq!(bytes("10.0.0.2:258"), [4, 6, 10, 0, 0, 2, 1, 2]);
        assert_eq!(bytes("a://b"), [1, 5, b'a', b':', b'/', b'/', b'b']);
    }

    #[test]
    fn what_names_nobody_is_not_taken() {
        for tail in [
            &[][..],
            &[4],
            &[4, 6],
            &[4, 5, 10, 0, 0, 2, 1],
            &[4, 7, 10, 0, 0, 2, 1, 2, 3],
            &[4, 6, 0, 0, 0, 0, 1, 2],
            &[4, 6, 255, 255, 255, 255, 1, 2],
            &[4, 6, 224, 0, 0, 1, 1, 2],
            &[4, 6, 10, 0, 0, 2, 0, 0],
            &[1, 0],
            &[1, 2, b'a', 0],
            &[2, 0],
            &[9, 1, 1],
        ] {
            assert_eq!(speaker(&message(tail)), None, "{tail:?}");
        }
        let long = [&[2, 65][..], &[1; 65]].concat();
        assert_eq!(speaker(&message(&long)), None);
    }

    #[test]
    fn no_bytes_panic() {
        use proptest::prelude::*;
        proptest!(|(bytes in proptest::collection::vec(any::<u8>(), 0..200))| {
            let found = speaker(&bytes);
            prop_assert!(found.is_none_or(|addr| HelloTail::new(&addr).is_some()));
        });
    }
}
