//! What the kernel knows of a TCP socket (`TCP_INFO`, tcp(7)).

#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::time::Duration;

/// Bytes of data that the kernel has received on a TCP socket since it was connected: also those
/// that nobody has read, and those of a message that is not whole. Since Linux 4.1.
pub(crate) fn bytes_received(fd: RawFd) -> Option<u64> {
    field::<128, 8>(fd).map(u64::from_ne_bytes)
}

/// How long a round trip takes to the peer of a TCP socket, as the kernel has measured it so far.
pub(crate) fn round_trip(fd: RawFd) -> Option<Duration> {
    let micros = field::<68, 4>(fd).map(u32::from_ne_bytes)?;
    Some(Duration::from_micros(micros.into()))
}

/// The field of so many bytes that lies there in `struct tcp_info` of <linux/tcp.h>.
fn field<const OFFSET: usize, const LEN: usize>(fd: RawFd) -> Option<[u8; LEN]> {
    let mut info = [0u8; 256];
    let mut len = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, and says how many.
    let rc = unsafe {
        libc::getsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    let known = info.get(..len as usize).filter(|_| rc == 0)?;
    known.get(OFFSET..OFFSET + LEN)?.try_into().ok()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn the_kernel_counts_bytes_that_nobody_has_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        assert_eq!(bytes_received(near.as_raw_fd()), Some(0));
        far.write_all(&[7; 1234]).unwrap();
        let come = || bytes_received(near.as_raw_fd()) == Some(1234);
        assert!((0..1000).any(|_| come() || {
            std::thread::sleep(Duration::from_millis(1));
            false
        }));
        assert_eq!(bytes_received(-1), None);
    }
    #[test]
    fn the_kernel_measures_the_way_to_the_peer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let round_trip_of = |fd| round_trip(fd).filter(|time| !time.is_zero());
        let measured = round_trip_of(near.as_raw_fd()).expect("the SYN was answered");
        assert!(measured < Duration::from_secs(60), "{measured:?}");
        assert_eq!(round_trip(-1), None);
        assert_eq!(round_trip_of(listener.as_raw_fd()), None);
    }
}
