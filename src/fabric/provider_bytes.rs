//! A `PeerAddr` as the bytes that `fi_getname(3)` gives, and back: what a token or an application
//! carries from the process of an endpoint to that of its peer.
//!
//! ```text
//! FI_SOCKADDR_IN   16  family, port, address, 8 bytes that mean nothing
//! FI_SOCKADDR_IN6  28  family, port, flow, address, scope
//! FI_ADDR_STR          a text, and the 0 behind it
//! others               bytes of the provider's
//! ```
//!
//! The family is in the byte order of the machine, as the system's headers have it: both ends are
//! of one order.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use libfabric_sys as sys;

use super::PeerAddr;
use super::address::AddrForm;

const IPV4_LEN: usize = size_of::<libc::sockaddr_in>();
const IPV6_LEN: usize = size_of::<libc::sockaddr_in6>();

/// Where their fields lie.
const PORT_AT: usize = 2;
const IPV4_AT: usize = 4;
const FLOW_AT: usize = 4;
const IPV6_AT: usize = 8;
const SCOPE_AT: usize = 24;

const _: () = assert!(PORT_AT == std::mem::offset_of!(libc::sockaddr_in, sin_port));
const _: () = assert!(IPV4_AT == std::mem::offset_of!(libc::sockaddr_in, sin_addr));
const _: () = assert!(PORT_AT == std::mem::offset_of!(libc::sockaddr_in6, sin6_port));
const _: () = assert!(FLOW_AT == std::mem::offset_of!(libc::sockaddr_in6, sin6_flowinfo));
const _: () = assert!(IPV6_AT == std::mem::offset_of!(libc::sockaddr_in6, sin6_addr));
const _: () = assert!(SCOPE_AT == std::mem::offset_of!(libc::sockaddr_in6, sin6_scope_id));

impl PeerAddr {
    /// The bytes that the endpoint there says of itself. None for "any", which is nobody.
    pub(crate) fn to_provider_bytes(self) -> Option<Vec<u8>> {
        match self.form() {
            AddrForm::Any => None,
            AddrForm::Socket(addr) => Some(socket_bytes(*addr)),
            AddrForm::Text(name) => Some([name.as_slice(), &[0]].concat()),
            AddrForm::Raw(name) => Some(name.as_slice().to_vec()),
        }
    }

    /// The endpoint that says this of itself, whose provider has addresses of this format. Trusts
    /// nothing: None for what is cut off or too long, is of another format, or names nobody that
    /// could be sent to.
    ///
    /// The scope of an IPv6 address is left out: it is the number of an interface over there.
    pub(crate) fn from_provider_bytes(format: u32, bytes: &[u8]) -> Option<Self> {
        let addr = match format {
            sys::FI_SOCKADDR_IN => socket_of(bytes, &[IPV4_LEN])?,
            sys::FI_SOCKADDR_IN6 => socket_of(bytes, &[IPV6_LEN])?,
            sys::FI_SOCKADDR | sys::FI_FORMAT_UNSPEC => socket_of(bytes, &[IPV4_LEN, IPV6_LEN])?,
            sys::FI_ADDR_STR => {
                let end = bytes.iter().position(|&byte| byte == 0)?;
                // Some providers give all of the array that holds it.
                let (text, rest) = bytes.split_at(end);
                let padding = rest.iter().all(|&byte| byte == 0);
                Self::from_text(text).filter(|_| padding)?
            }
            _ if is_bounded(format) => Self::from_raw(bytes)?,
            _ => return None,
        };
        Some(addr).filter(Self::is_answerable)
    }
}

/// Formats of bytes of which a provider reads fewer than an address has room for (128), however
/// many there are. Others have lengths that nobody tells them: they would read on.
fn is_bounded(format: u32) -> bool {
    matches!(
        format,
        sys::FI_SOCKADDR_IB
            | sys::FI_ADDR_IB_UD
            | sys::FI_ADDR_EFA
            | sys::FI_ADDR_PSMX2
            | sys::FI_ADDR_PSMX3
            | sys::FI_ADDR_OPX
            | sys::FI_ADDR_CXI
    )
}

/// A `sockaddr` that has one of these lengths, and is of the family that it has then.
fn socket_of(bytes: &[u8], lengths: &[usize]) -> Option<PeerAddr> {
    let addr = read_socket(bytes).filter(|_| lengths.contains(&bytes.len()))?;
    let len = socket_len(&addr.socket_addr()?);
    (len == bytes.len()).then_some(addr)
}

/// The address in a `sockaddr`, if it is an IP address and whole; it may have bytes behind it.
pub(super) fn read_socket(bytes: &[u8]) -> Option<PeerAddr> {
    let family = libc::sa_family_t::from_ne_bytes(field(bytes, 0)?);
    let (ip, len): (IpAddr, _) = match i32::from(family) {
        libc::AF_INET => (Ipv4Addr::from(field::<4>(bytes, IPV4_AT)?).into(), IPV4_LEN),
        libc::AF_INET6 => (
            Ipv6Addr::from(field::<16>(bytes, IPV6_AT)?).into(),
            IPV6_LEN,
        ),
        _ => return None,
    };
    let port = u16::from_be_bytes(field(bytes, PORT_AT)?);
    (bytes.len() >= len).then(|| SocketAddr::new(ip, port).into())
}

fn field<const LEN: usize>(bytes: &[u8], at: usize) -> Option<[u8; LEN]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn socket_len(addr: &SocketAddr) -> usize {
    match addr {
        SocketAddr::V4(_) => IPV4_LEN,
        SocketAddr::V6(_) => IPV6_LEN,
    }
}

/// The `sockaddr` of an address.
pub(super) fn socket_bytes(addr: SocketAddr) -> Vec<u8> {
    let family = match addr {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    let mut bytes = vec![0; socket_len(&addr)];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, &(family as libc::sa_family_t).to_ne_bytes());
    put(PORT_AT, &addr.port().to_be_bytes());
    match addr {
        SocketAddr::V4(v4) => put(IPV4_AT, &v4.ip().octets()),
        SocketAddr::V6(v6) => {
            put(FLOW_AT, &v6.flowinfo().to_ne_bytes());
            put(IPV6_AT, &v6.ip().octets());
            put(SCOPE_AT, &v6.scope_id().to_ne_bytes());
        }
    }
    bytes
}

/// Checks what is understood of hostile bytes: a provider takes it, it can be sent to, and its own
/// bytes mean the same.
///
/// # Panics
///
/// When one of these is not so.
#[cfg(any(test, fuzzing))]
pub(crate) fn exercise(format: u32, bytes: &[u8]) {
    let Some(addr) = PeerAddr::from_provider_bytes(format, bytes) else {
        return;
    };
    assert!(super::fits(format, &addr), "{format} {addr}");
    assert_eq!(addr.to_string().parse::<PeerAddr>().ok(), Some(addr));
    let again = addr.to_provider_bytes().expect("it is somebody");
    assert!(again.len() <= bytes.len(), "{addr}");
    assert_eq!(PeerAddr::from_provider_bytes(format, &again), Some(addr));
}

#[cfg(test)]
#[path = "tests/provider_bytes.rs"]
mod tests;
