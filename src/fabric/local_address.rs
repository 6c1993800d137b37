//! `find_local`: an address of this machine, as it was asked for or not at all.
//!
//! `verbs` answers a question for an address that it has no device for with addresses that it has:
//! another one, and another port.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ptr;

use libfabric_sys as sys;

use super::PeerAddr;
use super::info::Info;
use crate::Error;

/// Whether a local address is the one that was asked for: an unspecified address is any, and port 0
/// is any port.
pub(crate) fn is_as_asked(asked: SocketAddr, got: SocketAddr) -> bool {
    let ip = asked.ip().is_unspecified() || asked.ip() == got.ip();
    ip && (asked.port() == 0 || asked.port() == got.port())
}

/// An endpoint or a listener that was asked to be at `asked` is at `got`.
///
/// # Errors
/// It is somewhere else. What has no IP address is where it is.
pub(crate) fn check_local(asked: &PeerAddr, got: Option<PeerAddr>) -> Result<(), Error> {
    let there = got.and_then(|got| got.socket_addr());
    match (asked.socket_addr(), there) {
        (Some(asked), Some(got)) if !is_as_asked(asked, got) => {
            Err(error(asked, format!("the provider took {got} instead")))
        }
        _ => Ok(()),
    }
}

/// Addresses of a list, at most: a machine may have thousands.
const LISTED_MAX: usize = 16;

/// Whether an address is one of this machine's. The kernel is asked, which takes more than
/// interfaces have: all of 127.0.0.0/8, say.
///
/// # Errors
/// The kernel does not say.
pub(crate) fn is_local(ip: IpAddr) -> io::Result<bool> {
    match UdpSocket::bind((ip, 0)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => Ok(false),
        Err(error) => Err(error),
    }
}

/// None of a node's addresses is one of this machine: an error that lists those that are.
pub(super) fn refuse_foreign(node: &str, addrs: &[SocketAddr]) -> Result<(), Error> {
    let is_foreign = |addr: &SocketAddr| is_local(addr.ip()).is_ok_and(|local| !local);
    if addrs.is_empty() || !addrs.iter().all(is_foreign) {
        return Ok(());
    }
    let mut of_node: Vec<_> = addrs.iter().map(|addr| addr.ip().to_string()).collect();
    of_node.dedup();
    let named = match of_node[..] == [node] {
        true => String::new(),
        false => format!(" ({})", of_node.join(", ")),
    };
    let own = local_addresses();
    let mut listed: Vec<_> = own.iter().take(LISTED_MAX).cloned().collect();
    if own.len() > listed.len() {
        listed.push(format!("{} more", own.len() - listed.len()));
    }
    Err(Error::Address {
        address: node.to_owned(),
        reason: format!(
            "that is no address of this machine{named}, which has {}: here goes one \
             of its own, and the peer's where it is connected to",
            listed.join(", ")
        ),
    })
}

/// The addresses of this machine's interfaces that are up, each with its interface.
fn local_addresses() -> BTreeSet<String> {
    let mut first = ptr::null_mut();
    // SAFETY: `first` is writable.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return BTreeSet::new();
    }
    let mut found = BTreeSet::new();
    let mut next = first;
    // SAFETY: the list is as getifaddrs(3) made it, and is freed below only.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as u32 == 0 {
            continue;
        }
        // SAFETY: an entry's address is null, or as long as its family says.
        if let Some(ip) = unsafe { ip_of(entry.ifa_addr) } {
            // SAFETY: an entry's name ends with 0.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            found.insert(format!("{ip} ({})", name.to_string_lossy()));
        }
    }
    // SAFETY: it came from getifaddrs, and nothing of it is kept.
    unsafe { libc::freeifaddrs(first) };
    found
}

/// # Safety
/// The address is null, or as long as its family says.
unsafe fn ip_of(addr: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's.
    let family = i32::from(unsafe { addr.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: of this family it is a sockaddr_in.
            let addr = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::from(addr.sin_addr.s_addr.to_ne_bytes()))
        }
        libc::AF_INET6 => {
            // SAFETY: of this family it is a sockaddr_in6.
            let addr = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::from(addr.sin6_addr.s6_addr))
        }
        _ => None,
    }
}

/// What the provider answers to the hints with this local address.
pub(super) fn find_local(hints: &Info, asked: SocketAddr) -> Result<Info, Error> {
    let why = match ask(hints, asked) {
        Ok(info) => return Ok(info),
        Err(why) => why,
    };
    let any_port = SocketAddr::new(asked.ip(), 0);
    let why = match why {
        // `verbs` binds the port to answer, and says nothing of why it can't.
        _ if asked.port() != 0 && ask(hints, any_port).is_ok() => Lack::Port,
        why => why,
    };
    let provider = hints.provider_name();
    Err(error(asked, format!("provider {provider} {why}")))
}

fn ask(hints: &Info, asked: SocketAddr) -> Result<Info, Lack> {
    let (node, service) = (asked.ip().to_string(), asked.port().to_string());
    let found = Info::find(
        hints.library(),
        Some(&node),
        Some(&service),
        sys::FI_SOURCE,
        Some(hints),
    );
    pick(found.unwrap_or_default(), asked)
}

/// The first that is as asked, or what there is instead.
fn pick(found: Vec<Info>, asked: SocketAddr) -> Result<Info, Lack> {
    let mut instead = Lack::All;
    for info in found {
        match info.source().and_then(|addr| addr.socket_addr()) {
            Some(got) if is_as_asked(asked, got) => return Ok(info),
            Some(got) if instead == Lack::All => instead = Lack::Address(got),
            _ => {}
        }
    }
    Err(instead)
}

/// What a provider lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lack {
    /// It answers nothing.
    All,
    /// It answers with another.
    Address(SocketAddr),
    /// It has the address, with another port.
    Port,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("has no such local address"),
            Self::Address(got) => write!(f, "has no such local address, and offers {got} instead"),
            Self::Port => f.write_str(
                "has the address and not the port: it is in use (EADDRINUSE), or this user may not \
                 have it; take another one, or 0 for any",
            ),
        }
    }
}

fn error(asked: SocketAddr, reason: String) -> Error {
    Error::Address {
        address: asked.to_string(),
        reason,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn socket(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn only_what_was_asked_for_is_taken() {
        for (asked, got, taken) in [
            ("127.0.0.1:7471", "127.0.0.1:7471", true),
            ("127.0.0.1:0", "127.0.0.1:7471", true),
            ("0.0.0.0:7471", "10.0.2.15:7471", true),
            ("0.0.0.0:0", "10.0.2.15:43833", true),
            ("127.0.0.1:7471", "10.0.2.15:7471", false),
            ("127.0.0.1:7471", "127.0.0.1:43833", false),
            ("127.0.0.1:7471", "10.0.2.15:43833", false),
            ("0.0.0.0:7471", "10.0.2.15:43833", false),
            ("[::1]:7471", "127.0.0.1:7471", false),
            ("[::]:0", "[fe80::1]:1", true),
        ] {
            let (asked, got) = (socket(asked), socket(got));
            assert_eq!(is_as_asked(asked, got), taken, "{asked}: {got}");
            let checked = check_local(&asked.into(), Some(got.into()));
            assert_eq!(checked.is_ok(), taken);
            if let Err(error) = checked {
                let text = error.to_string();
                assert!(
                    text.contains(&asked.to_string()) && text.contains(&got.to_string()),
                    "{text}"
                );
            }
        }
        let shm = "fi_shm://1:0:0".parse().unwrap();
        assert!(check_local(&PeerAddr::any(), Some(shm)).is_ok());
    }

    #[test]
    fn an_address_of_somebody_else_is_refused_with_those_of_this_machine() {
        for own in ["127.0.0.1:0", "127.9.9.9:0", "0.0.0.0:0"] {
            assert!(refuse_foreign("own", &[socket(own)]).is_ok(), "{own}");
        }
        // One of several is enough; and what has none is for the provider to judge.
        let foreign = socket("192.0.2.77:0");
        assert!(refuse_foreign("both", &[foreign, socket("127.0.0.1:0")]).is_ok());
        assert!(refuse_foreign("none", &[]).is_ok());
        let text = |node: &str, addrs: &[SocketAddr]| {
            refuse_foreign(node, addrs)
                .expect_err("foreign")
                .to_string()
        };
        let by_address = text("192.0.2.77", &[foreign]);
        let begin = "address \"192.0.2.77\": that is no address of this machine, which has ";
        assert!(by_address.starts_with(begin), "{by_address}");
        assert!(by_address.contains("127.0.0.1 (lo)"), "{by_address}");
        let by_name = text("far.example", &[foreign, foreign]);
        assert!(
            by_name.contains("of this machine (192.0.2.77), which has "),
            "{by_name}"
        );
    }

    #[test]
    fn answers_with_other_addresses_are_passed_over_and_named() {
        let Ok(library) = sys::Library::load() else {
            return println!("SKIPPED: there is no libfabric");
        };
        let answers = |texts: &[&str]| -> Vec<Info> {
            let infos = texts.iter().map(|text| {
                let mut info = Info::hints(library).unwrap();
                info.set_source(socket(text)).unwrap();
                info
            });
            infos.collect()
        };
        // What verbs answered on a machine whose one device has the address 10.0.2.15.
        let strange = ["10.0.2.15:43833", "10.0.2.15:0"];
        let asked = socket("127.0.0.1:7471");
        let lack = pick(answers(&strange), asked).unwrap_err();
        assert_eq!(lack, Lack::Address(socket(strange[0])));
        assert!(lack.to_string().contains("offers 10.0.2.15:43833 instead"));
        assert_eq!(pick(Vec::new(), asked).unwrap_err(), Lack::All);
        let found = pick(
            answers(&["10.0.2.15:7471", "127.0.0.1:1", "127.0.0.1:7471"]),
            asked,
        );
        assert_eq!(found.unwrap().source(), Some(asked.into()));
    }
}
