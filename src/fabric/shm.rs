//! Names of `shm`: which one an endpoint gets, and which peers can be talked to: those of other processes, whose shared memory has the same
//! layout. It differs between versions of libfabric, and the provider does not compare it.

use std::fs::File;
use std::io::Read;

use super::address::AddrForm;
use crate::Error;
use crate::fabric::PeerAddr;
use crate::random::random_u64;

/// A name for an endpoint that no other has, behind which the provider puts the user and a number of its own. It begins with the process, which
/// [`check_peer`] looks at. Another process may have that number, too: in another container with the same `/dev/shm`, or one that was killed
/// and left its memory there.
pub(super) fn new_name(scheme: &str) -> String {
    format!("{scheme}{}:{:016x}", std::process::id(), random_u64())
}

/// Refuses a peer of `shm` whose region has another layout than this process's own: neither side would understand what the
/// other writes there. A region that can't be read is left to the provider.
///
/// Refuses one of this process, too: the provider uses its region in place, and goes on doing so when that endpoint was closed and the
/// region unmapped.
pub(crate) fn check_peer(local: &PeerAddr, peer: &PeerAddr) -> Result<(), Error> {
    if process_of(peer) == Some(std::process::id()) {
        return Err(Error::Address {
            address: peer.to_string(),
            reason: "it is this process: shm is for peers in other processes".to_owned(),
        });
    }
    match (layout(local), layout(peer)) {
        (Some(ours), Some(theirs)) if ours != theirs => Err(Error::Address {
            address: peer.to_string(),
            reason: format!(
                "shared memory of layout {theirs}, and this process's libfabric has layout {ours}: \
                 both ends need the same version of libfabric"
            ),
        }),
        _ => Ok(()),
    }
}

/// What an address says behind its scheme: the name of its region, which begins with the process.
fn region(addr: &PeerAddr) -> Option<&str> {
    let AddrForm::Text(name) = addr.form() else {
        return None;
    };
    let text = std::str::from_utf8(name.as_slice()).ok()?;
    text.split_once("fi_shm://").map(|(_, region)| region)
}

fn process_of(addr: &PeerAddr) -> Option<u32> {
    region(addr)?.split(':').next()?.parse().ok()
}

/// The version in the first byte of the region that an address names.
fn layout(addr: &PeerAddr) -> Option<u8> {
    let region = region(addr)?;
    // A peer may have chosen the name.
    if region.contains('/') {
        return None;
    }
    let mut version = [0];
    File::open(format!("/dev/shm/{region}"))
        .and_then(|mut file| file.read_exact(&mut version))
        .ok()?;
    Some(version[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_of_this_process_and_has_room_for_what_the_provider_adds() {
        let (one, other) = (new_name("fi_shm://"), new_name("fi_shm://"));
        assert_ne!(one, other);
        let pid = std::process::id();
        for name in [one, other] {
            // The largest number of a process there is, and the longest user and number of an endpoint.
            let rest = name.replacen(&pid.to_string(), "4194304", 1);
            let longest = format!("{rest}:-2147483648:-2147483648");
            assert!(longest.parse::<PeerAddr>().is_ok(), "{longest}");
            let addr = format!("{name}:0:1").parse().unwrap();
            assert_eq!(process_of(&addr), Some(pid));
        }
    }

    #[test]
    fn regions_of_another_layout_and_of_this_process_are_refused() {
        let name = |n: u8| format!("fabricast-test-{}-{n}", std::process::id());
        let addr = |n: u8| -> PeerAddr { format!("fi_shm://{}", name(n)).parse().unwrap() };
        for n in [6, 7] {
            std::fs::write(format!("/dev/shm/{}", name(n)), [n, 0, 0]).unwrap();
        }
        let error = check_peer(&addr(6), &addr(7)).unwrap_err().to_string();
        let same = check_peer(&addr(6), &addr(6));
        let gone = check_peer(&addr(6), &addr(9));
        for n in [6, 7] {
            std::fs::remove_file(format!("/dev/shm/{}", name(n))).unwrap();
        }
        assert!(
            error.contains("layout 7") && error.contains("layout 6"),
            "{error}"
        );
        assert!(same.is_ok() && gone.is_ok());
        let this = std::process::id();
        let one = |text: String| -> PeerAddr { text.parse().unwrap() };
        let here = one(format!("fi_shm://{this}:0:1"));
        let error = check_peer(&here, &here).unwrap_err().to_string();
        assert!(error.contains("other processes"), "{error}");
        for elsewhere in [
            format!("{}:0:1", this + 1),
            format!("{this}1:0:1"),
            format!("x{this}:0"),
        ] {
            assert!(check_peer(&here, &one(format!("fi_shm://{elsewhere}"))).is_ok());
        }
        let socket = "127.0.0.1:1".parse().unwrap();
        assert!(check_peer(&socket, &socket).is_ok());
        let path = "fi_shm://../../etc/passwd".parse().unwrap();
        assert_eq!(layout(&path), None);
    }
}
