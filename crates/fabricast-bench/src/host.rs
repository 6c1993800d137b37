//! What the machine is asked for: cores, CPU time, a network namespace with a congestion control, a
//! child that dies with us.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs;
use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// User and system time of this process so far.
pub fn cpu_seconds() -> f64 {
    cpu_seconds_of(libc::RUSAGE_SELF)
}

/// The same of this thread.
pub fn thread_cpu_seconds() -> f64 {
    cpu_seconds_of(libc::RUSAGE_THREAD)
}

fn cpu_seconds_of(who: libc::c_int) -> f64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the struct is writable.
    unsafe { libc::getrusage(who, usage.as_mut_ptr()) };
    // SAFETY: zeroed, and any bits are valid.
    let usage = unsafe { usage.assume_init() };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// The number of cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The numbers of the cores that this thread may run on.
pub fn allowed() -> Vec<usize> {
    match rustix::thread::sched_getaffinity(None) {
        Ok(set) => (0..rustix::thread::CpuSet::MAX_CPU)
            .filter(|&core| set.is_set(core))
            .collect(),
        Err(_) => Vec::new(),
    }
}

/// The numbers of this machine's cores, whether this thread may run on them or not.
pub fn cores_of_machine() -> Vec<usize> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let ranges = text.trim().split(',').filter_map(|range| {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        Some(from.parse::<usize>().ok()?..=to.parse::<usize>().ok()?)
    });
    ranges.flatten().collect()
}

/// Those that this thread may run on, if they are fewer than the machine has; none: it is not
/// pinned.
pub fn pinned() -> Vec<usize> {
    let allowed = allowed();
    match allowed.len() < cores_of_machine().len() {
        true => allowed,
        false => Vec::new(),
    }
}

/// The network interface that has this address; none: none has.
pub fn device_of(ip: IpAddr) -> Option<String> {
    let mut first = std::ptr::null_mut();
    // SAFETY: `first` is writable.
    answer(unsafe { libc::getifaddrs(&raw mut first) }).ok()?;
    let (mut found, mut next) = (None, first);
    // SAFETY: the list is as getifaddrs(3) made it, and is freed below only.
    while let (None, Some(entry)) = (&found, unsafe { next.as_ref() }) {
        next = entry.ifa_next;
        // SAFETY: an entry's address is null, or as long as its family says.
        if unsafe { ip_of(entry.ifa_addr) } == Some(ip) {
            // SAFETY: an entry's name ends with 0.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            found = Some(name.to_string_lossy().into_owned());
        }
    }
    // SAFETY: it came from getifaddrs, and nothing of it is kept.
    unsafe { libc::freeifaddrs(first) };
    found
}

/// The IP address of a socket's address, if it is one.
///
/// # Safety
/// The address is null, or as long as its family says.
pub unsafe fn ip_of(addr: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's.
    let family = i32::from(unsafe { addr.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: of this family it is a sockaddr_in.
            let addr = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(addr.sin_addr.s_addr.to_ne_bytes().into())
        }
        libc::AF_INET6 => {
            // SAFETY: of this family it is a sockaddr_in6.
            let addr = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(addr.sin6_addr.s6_addr.into())
        }
        _ => None,
    }
}

/// Keeps this thread, and those and the processes that it starts, on one core.
pub fn pin(core: usize) -> io::Result<()> {
    // SAFETY: a struct of integers.
    let mut set: libc::cpu_set_t = unsafe { zeroed() };
    // SAFETY: writes within the set; a core beyond it is ignored.
    unsafe { libc::CPU_SET(core % libc::CPU_SETSIZE as usize, &mut set) };
    // SAFETY: the set has that size.
    let rc = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    answer(rc)
}

/// Has the kernel kill this process when its parent ends, so that none is left behind.
pub fn die_with_parent() -> io::Result<()> {
    // SAFETY: takes numbers only.
    answer(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })
}

/// Has the kernel keep a process from running until it ends. It is a child of ours that nobody has
/// waited for, so its number is its own.
pub fn stop(child: &std::process::Child) -> io::Result<()> {
    let pid = libc::pid_t::try_from(child.id()).map_err(io::Error::other)?;
    // SAFETY: takes numbers only.
    answer(unsafe { libc::kill(pid, libc::SIGSTOP) })
}

fn answer(rc: i32) -> io::Result<()> {
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The congestion control that new TCP connections get here.
pub fn congestion() -> String {
    fs::read_to_string(CONGESTION)
        .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// The same for connections over this provider; none where they are no connections of TCP.
pub fn congestion_over(provider: &str) -> Option<String> {
    let row = fabricast::fabric::provider(provider)?;
    row.over_tcp.then(congestion)
}

/// Moves this process, and the children that it starts, to a network namespace of its own where
/// only `lo` is up, and sets the congestion control there. Before any thread is started: it is a
/// property of the thread.
pub fn enter_namespace(congestion: &str) -> io::Result<()> {
    // SAFETY: takes a number only.
    let own = answer(unsafe { libc::unshare(libc::CLONE_NEWNET) });
    if own.is_err() {
        // Without the right to, a user namespace of our own may give it.
        // SAFETY: takes a number only.
        answer(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) })?;
    }
    raise_loopback()?;
    fs::write(CONGESTION, congestion)
}

fn raise_loopback() -> io::Result<()> {
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and owned by nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: a struct of integers and a union of such.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the socket is open, the request is one for this call.
    answer(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) })
}
