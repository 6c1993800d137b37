//! `find_local`: an address of this machine, as it was asked for or not at all.
//!
//! `verbs` answers a question for an address that it has no device for with addresses that it has:
//! another one, and another port.

use std::fmt;
use std::net::SocketAddr;

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
