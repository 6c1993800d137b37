//! The layout of `shm`'s shared memory, which differs between versions of libfabric and which the provider does not compare.

use std::fs::File;
use std::io::Read;

use super::address::AddrForm;
use crate::Error;
use crate::fabric::PeerAddr;

/// Refuses a peer of `shm` whose region has another layout than this process's own: neither side would understand what the
/// other writes there. A region that can't be read is left to the provider.
pub(crate) fn check_layout(local: &PeerAddr, peer: &PeerAddr) -> Result<(), Error> {
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

/// The version in the first byte of the region that an address names.
fn layout(addr: &PeerAddr) -> Option<u8> {
    let AddrForm::Text(name) = addr.form() else {
        return None;
    };
    let text = std::str::from_utf8(name.as_slice()).ok()?;
    let (_, region) = text.split_once("fi_shm://")?;
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
    fn regions_of_another_layout_are_refused() {
        let name = |n: u8| format!("fabricast-test-{}-{n}", std::process::id());
        let addr = |n: u8| -> PeerAddr { format!("fi_shm://{}", name(n)).parse().unwrap() };
        for n in [6, 7] {
            std::fs::write(format!("/dev/shm/{}", name(n)), [n, 0, 0]).unwrap();
        }
        let error = check_layout(&addr(6), &addr(7)).unwrap_err().to_string();
        let same = check_layout(&addr(6), &addr(6));
        let gone = check_layout(&addr(6), &addr(9));
        for n in [6, 7] {
            std::fs::remove_file(format!("/dev/shm/{}", name(n))).unwrap();
        }
        assert!(
            error.contains("layout 7") && error.contains("layout 6"),
            "{error}"
        );
        assert!(same.is_ok() && gone.is_ok());
        let socket = "127.0.0.1:1".parse().unwrap();
        assert!(check_layout(&socket, &socket).is_ok());
        let path = "fi_shm://../../etc/passwd".parse().unwrap();
        assert_eq!(layout(&path), None);
    }
}
