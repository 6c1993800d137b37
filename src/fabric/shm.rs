//! Names of `shm`: which one an endpoint gets, and which peers can be talked to: those of other
//! processes, in one PID namespace, whose shared memory has the same layout. It differs between
//! versions of libfabric, and the provider does not compare it.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::address::AddrForm;
use crate::Error;
use crate::fabric::PeerAddr;
use crate::random::random_u64;

/// Where regions are: shm_open(3).
const REGIONS: &str = "/dev/shm";

/// A name for an endpoint that no other has, behind which the provider puts the user and a number
/// of its own: `process:namespace:random`. The first two are for [`check_peer`]. They are not
/// enough: in another container with the same `/dev/shm` a process may have the same number, and
/// one that was killed left its region there.
///
/// # Errors
/// No region can be opened: libfabric 2.x makes an endpoint without one then, and crashes.
pub(super) fn new_name(scheme: &str) -> Result<String, Error> {
    let (process, random) = (std::process::id(), random_u64());
    let name = format!("{process}:{:x}:{random:016x}", namespace());
    let path = Path::new(REGIONS).join(&name);
    let mut options = OpenOptions::new();
    let tried = options.write(true).create_new(true).open(&path);
    tried
        .and_then(|_| fs::remove_file(&path))
        .map_err(|source| Error::Os {
            call: "shm_open",
            source,
        })?;
    Ok(format!("{scheme}{name}"))
}

/// The PID namespace of this process; 0 where `/proc` does not say.
fn namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self/ns/pid").map_or(0, |its| its.ino())
}

/// The PID namespace that a region's name says; none in a name that is not of [`new_name`].
fn namespace_of(addr: &PeerAddr) -> Option<u64> {
    let words: Vec<_> = region(addr)?.split(':').collect();
    let [_, namespace, _, _, _] = *words else {
        return None;
    };
    let number = u64::from_str_radix(namespace, 16).ok()?;
    (number != 0).then_some(number)
}

/// The provider reads and writes the memory of other processes by their number
/// (process_vm_readv(2)), also to find out whether it can, unless it is told not to.
fn goes_by_numbers() -> bool {
    let told = std::env::var("FI_SHM_DISABLE_CMA").unwrap_or_default();
    let no = ["1", "yes", "true", "on"];
    !no.iter().any(|word| told.eq_ignore_ascii_case(word))
}

/// Refuses a peer of `shm` in another PID namespace: its number is that of another process here, or
/// of none.
///
/// Refuses one whose region has another layout than this process's own: neither side would
/// understand what the other writes there. A region that can't be read is left to the provider.
///
/// Refuses one whose file is shorter than it says: a byte behind its end is SIGBUS. It may be cut
/// afterwards all the same, and what else stands in it, the provider believes.
///
/// Refuses one of this process, too: the provider uses its region in place, and goes on doing so
/// when that endpoint was closed and the region unmapped.
pub(crate) fn check_peer(local: &PeerAddr, peer: &PeerAddr) -> Result<(), Error> {
    let bad = |reason: &str| Error::Address {
        address: peer.to_string(),
        reason: reason.to_owned(),
    };
    let apart = match (namespace_of(local), namespace_of(peer)) {
        (Some(ours), Some(theirs)) => ours != theirs,
        _ => false,
    };
    if apart && goes_by_numbers() {
        return Err(bad(
            "it is in another PID namespace (another container): share one, or start both \
             processes with FI_SHM_DISABLE_CMA=1",
        ));
    }
    if !apart && process_of(peer) == Some(std::process::id()) {
        return Err(bad(
            "it is this process: shm is for peers in other processes",
        ));
    }
    let (Some(ours), Some(theirs)) = (RegionHead::read(local), RegionHead::read(peer)) else {
        return Ok(());
    };
    let (layout, other) = (ours.layout(), theirs.layout());
    if layout != other {
        return Err(bad(&format!(
            "shared memory of layout {other}, and this process's libfabric has layout {layout}: \
             both ends need the same version of libfabric"
        )));
    }
    match ours.length_at().map(|at| theirs.word(at)) {
        Some(said) if said > theirs.file_len => Err(bad(&format!(
            "its shared memory has {} bytes, and says {said}: its process was killed while it made \
             it, or lies",
            theirs.file_len
        ))),
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

/// The beginning of the region that an address names, and the length of its file.
struct RegionHead {
    bytes: [u8; HEAD_LEN],
    file_len: u64,
}

/// Bytes in which a region says what it is: its layout's number first, and how long it is.
const HEAD_LEN: usize = 512;

impl RegionHead {
    fn read(addr: &PeerAddr) -> Option<Self> {
        let region = region(addr)?;
        // A peer may have chosen the name.
        if region.contains('/') {
            return None;
        }
        // Somebody may have put a pipe there, which would wait for its other end.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK);
        let mut file = options.open(Path::new(REGIONS).join(region)).ok()?;
        let file_len = file.metadata().ok()?.len();
        let mut bytes = [0; HEAD_LEN];
        // What is shorter ends in zeros; what has no byte says nothing.
        let mut read = 0;
        while read < HEAD_LEN {
            match file.read(&mut bytes[read..]).ok()? {
                0 => break,
                some => read += some,
            }
        }
        (read > 0).then_some(Self { bytes, file_len })
    }

    fn layout(&self) -> u8 {
        self.bytes[0]
    }

    fn word(&self, at: usize) -> u64 {
        let bytes = self.bytes[at..at + size_of::<u64>()].try_into();
        u64::from_ne_bytes(bytes.unwrap_or_default())
    }

    /// Where regions of this layout say how long they are: in one whose length is known, that of an
    /// endpoint of this process.
    fn length_at(&self) -> Option<usize> {
        let mut places = (0..HEAD_LEN).step_by(size_of::<u64>());
        places.find(|at| self.file_len > 0 && self.word(*at) == self.file_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_of_this_process_and_has_room_for_what_the_provider_adds() {
        let new = || new_name("fi_shm://").unwrap();
        let (one, other) = (new(), new());
        assert_ne!(one, other);
        let pid = std::process::id();
        for name in [one, other] {
            // The largest number that there is of a process, the largest user, and more endpoints
            // than a process lives to open.
            let rest = name.replacen(&pid.to_string(), "4194304", 1);
            let longest = format!("{rest}:-2:999999999");
            assert!(longest.parse::<PeerAddr>().is_ok(), "{longest}");
            let addr: PeerAddr = format!("{name}:0:1").parse().unwrap();
            assert_eq!(process_of(&addr), Some(pid));
            assert_eq!(namespace_of(&addr), Some(namespace()));
            let left = region(&addr).unwrap().trim_end_matches(":0:1");
            assert!(!Path::new(REGIONS).join(left).exists(), "{left}");
        }
        for old in ["fi_shm://12:0:3", "fi_shm://12:0:3:4711"] {
            assert_eq!(namespace_of(&old.parse().unwrap()), None, "{old}");
        }
    }

    #[test]
    fn a_peer_of_another_namespace_is_refused_before_its_number_is_looked_at() {
        let this = std::process::id();
        let at = |namespace: u64| -> PeerAddr {
            let name = format!("fi_shm://{this}:{namespace:x}:0123456789abcdef:0:1");
            name.parse().unwrap()
        };
        let (here, there) = (at(namespace()), at(namespace() ^ 1));
        for (peer, what) in [(here, "other processes"), (there, "PID namespace")] {
            let error = check_peer(&here, &peer).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
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
        assert!(RegionHead::read(&path).is_none());
    }

    /// Whoever talks to it would wait for somebody to write there.
    #[test]
    fn a_pipe_in_the_place_of_a_region_holds_up_nobody() {
        let name = format!("fabricast-test-{}-pipe", std::process::id());
        let path = Path::new(REGIONS).join(&name);
        let made = rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        );
        made.unwrap();
        let addr = format!("fi_shm://{name}").parse().unwrap();
        let found = RegionHead::read(&addr).map(|head| head.layout());
        std::fs::remove_file(path).unwrap();
        assert_eq!(found, None);
    }
}
