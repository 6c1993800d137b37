//! What the kernel knows of a TCP socket (`TCP_INFO`, tcp(7)).

#![allow(unsafe_code)]

use std::os::fd::RawFd;

/// Bytes of data that the kernel has received on a TCP socket since it was connected (`TCP_INFO`,
/// tcp(7)): also those that nobody has read, and those of a message that is not whole.
pub(crate) fn bytes_received(fd: RawFd) -> Option<u64> {
    /// Where `tcpi_bytes_received` lies in `struct tcp_info` of <linux/tcp.h>; since Linux 4.1.
    const OFFSET: usize = 128;
    let mut info = [0u8; OFFSET + 8];
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
    if rc != 0 || (len as usize) < info.len() {
        return None;
    }
    let bytes = info[OFFSET..].try_into().ok()?;
    Some(u64::from_ne_bytes(bytes))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::time::Duration;

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
}
