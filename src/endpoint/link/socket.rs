//! `TcpWatch`: what the kernel is asked for on the socket of a connection, and what it knows of it.
//!
//! The provider owns the socket. libfabric 2.2 and newer say which it is (`FI_GET_FD`, fi_tcp(7));
//! elsewhere it is found among the process's descriptors, by the two addresses that name a
//! connection.

#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use rustix::net::sockopt;

use crate::Error;
use crate::endpoint::limits::config;
use crate::fabric::round_trip;

/// Probes of the kernel on a connection that carries nothing (`SO_KEEPALIVE`, tcp(7)).
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `idle` | time | 10 s | 1 s to 9 h, whole seconds |
/// | `interval` | time | 5 s | 1 s to 9 h, whole seconds |
/// | `probes` | probes | 3 | 1 to 127 |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Keepalive {
    /// How long nothing comes before the first probe.
    pub idle: Duration,
    /// Between probes.
    pub interval: Duration,
    /// Probes without an answer after which the kernel gives the connection up.
    pub probes: u32,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(10),
            interval: Duration::from_secs(5),
            probes: 3,
        }
    }
}

impl Keepalive {
    /// The first probe after `idle`, further ones every `interval`; given up after `probes` of
    /// them.
    pub fn new(idle: Duration, interval: Duration, probes: u32) -> Self {
        Self {
            idle,
            interval,
            probes,
        }
    }
}

/// What the kernel watches for us on a connection's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TcpWatch {
    pub(crate) keepalive: Option<Keepalive>,
    pub(crate) user_timeout: Option<Duration>,
    /// Much is sent: over a long way, the kernel is to hold as much of it as it may.
    pub(crate) fill_long_ways: bool,
}

/// A round trip from which on a way is long: 4 MiB, the most that the kernel holds of a connection
/// by itself where nobody has raised `net.ipv4.tcp_wmem`, are 2 GB/s there.
const LONG_WAY: Duration = Duration::from_millis(2);
/// The kernel is never asked to hold more of one connection: 10 Gb/s over 50 ms.
const SEND_BUFFER_MAX: usize = 64 << 20;

/// Whether the kernel watches a connection as the settings `keepalive` and `tcp_user_timeout` ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum KernelWatch {
    /// Nothing was asked for.
    #[default]
    NotAsked,
    /// It does.
    Set,
    /// The connection has no socket that could be found, or the kernel would not.
    Unavailable,
}

impl TcpWatch {
    pub(crate) fn is_asked(&self) -> bool {
        self.keepalive.is_some() || self.user_timeout.is_some()
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let seconds = Duration::from_secs(1)..=Duration::from_secs(9 * 3600);
        if let Some(Keepalive {
            idle,
            interval,
            probes,
        }) = self.keepalive
        {
            for (field, time) in [("keepalive.idle", idle), ("keepalive.interval", interval)] {
                if !seconds.contains(&time) || time.subsec_nanos() != 0 {
                    let reason = "must be 1 s to 9 h, in whole seconds";
                    return Err(config(field, format!("{time:?}"), reason));
                }
            }
            if !(1..=127).contains(&probes) {
                let reason = "must be 1 to 127 probes";
                return Err(config("keepalive.probes", probes.to_string(), reason));
            }
        }
        let millis = Duration::from_millis(1)..=Duration::from_secs(24 * 3600);
        match self.user_timeout {
            Some(time) if !millis.contains(&time) => Err(config(
                "tcp_user_timeout",
                format!("{time:?}"),
                "must be 1 ms to 24 h",
            )),
            _ => Ok(()),
        }
    }

    /// Tells the kernel.
    pub(crate) fn apply(&self, socket: BorrowedFd<'_>) -> rustix::io::Result<()> {
        if let Some(keepalive) = self.keepalive {
            sockopt::set_tcp_keepidle(socket, keepalive.idle)?;
            sockopt::set_tcp_keepintvl(socket, keepalive.interval)?;
            sockopt::set_tcp_keepcnt(socket, keepalive.probes)?;
            sockopt::set_socket_keepalive(socket, true)?;
        }
        if let Some(time) = self.user_timeout {
            let millis = u32::try_from(time.as_millis()).unwrap_or(u32::MAX).max(1);
            sockopt::set_tcp_user_timeout(socket, millis)?;
        }
        Ok(())
    }
}

/// Over a long way, has the kernel hold as much of what is sent as it may ([`hold_more`]).
pub(crate) fn fill_long_way(socket: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let round_trip = round_trip(socket.as_raw_fd());
    if round_trip.is_none_or(|time| time < LONG_WAY) {
        return Ok(false);
    }
    hold_more(socket)
}

/// Has the kernel hold as much as it may of what was sent and is not acknowledged, which bounds the
/// rate of a connection to that for each round trip. True: it is more than it would have held.
///
/// By itself it goes up to the third number of `net.ipv4.tcp_wmem` (tcp(7)); who asks gets twice
/// `net.core.wmem_max` at most (socket(7)), and no more by itself after that. So it is asked only
/// where that is the more.
fn hold_more(socket: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let Ok(limits) = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem") else {
        return Ok(false);
    };
    let by_itself = limits.split_whitespace().nth(2);
    let by_itself = by_itself.and_then(|limit| limit.parse::<usize>().ok());
    // `wmem_max` can't be read in every namespace, but tried.
    let family = rustix::net::AddressFamily::INET;
    let trial = rustix::net::socket(family, rustix::net::SocketType::DGRAM, None)?;
    sockopt::set_socket_send_buffer_size(&trial, SEND_BUFFER_MAX / 2)?;
    let asked = sockopt::socket_send_buffer_size(&trial)?;
    if by_itself.is_none_or(|by_itself| asked <= by_itself) {
        return Ok(false);
    }
    sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER_MAX / 2)?;
    Ok(true)
}

/// Whether the kernel gathers small segments while an earlier one is not acknowledged (the opposite
/// of `TCP_NODELAY`, tcp(7)). When it stops, what it has gathered goes. False: it did all the time,
/// which is left as it is.
pub(crate) fn gather(socket: BorrowedFd<'_>, gather: bool) -> rustix::io::Result<bool> {
    if gather && !sockopt::tcp_nodelay(socket)? {
        return Ok(false);
    }
    sockopt::set_tcp_nodelay(socket, !gather)?;
    Ok(true)
}

/// This process's socket with these two ends; nothing else has both.
pub(crate) fn find(local: SocketAddr, peer: SocketAddr) -> Option<RawFd> {
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    let mut fds = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    fds.find(|fd| is_between(*fd, local, peer))
}

/// Whether a descriptor is a socket with these two ends.
pub(crate) fn is_between(fd: RawFd, local: SocketAddr, peer: SocketAddr) -> bool {
    // SAFETY: only asked for its names; a number that is closed or reused meanwhile answers with an
    // error or with other names.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let name = |answer: rustix::io::Result<rustix::net::SocketAddrAny>| {
        answer.ok().and_then(|name| SocketAddr::try_from(name).ok())
    };
    name(rustix::net::getsockname(socket)) == Some(local)
        && name(
            rustix::net::getpeername(socket)
                .and_then(|name| name.ok_or(rustix::io::Errno::NOTCONN)),
        ) == Some(peer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        (near, far)
    }

    #[test]
    fn the_kernel_gathers_until_it_is_told_not_to() {
        let (near, _far) = pair();
        let told = |gather_it| gather(near.as_fd(), gather_it).unwrap();
        assert!(!told(true), "a socket of the system's gathers as it is");
        assert!(!near.nodelay().unwrap());
        near.set_nodelay(true).unwrap();
        assert!(told(true) && !near.nodelay().unwrap());
        assert!(told(false) && near.nodelay().unwrap());
    }

    #[test]
    fn the_kernel_is_asked_to_hold_more_over_a_long_way_alone() {
        let (near, _far) = pair();
        let held = || sockopt::socket_send_buffer_size(&near).unwrap();
        let before = held();
        assert!(!fill_long_way(near.as_fd()).unwrap());
        assert_eq!(held(), before);
        let limits = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").unwrap();
        let by_itself: usize = limits.split_whitespace().nth(2).unwrap().parse().unwrap();
        if hold_more(near.as_fd()).unwrap() {
            assert!(held() > by_itself, "{} of {limits}", held());
            assert!(held() <= SEND_BUFFER_MAX);
        } else {
            println!("the kernel lets nobody ask for more than {by_itself} bytes");
            assert_eq!(held(), before);
        }
    }

    #[test]
    fn a_socket_is_found_by_its_ends() {
        let (near, far) = pair();
        let (local, peer) = (near.local_addr().unwrap(), near.peer_addr().unwrap());
        assert_eq!(find(local, peer), Some(near.as_raw_fd()));
        assert_eq!(
            find(peer, local),
            Some(far.as_raw_fd()),
            "the other way round"
        );
        assert!(!is_between(far.as_raw_fd(), local, peer));
        drop(near);
        assert_eq!(find(local, peer), None);
    }

    #[test]
    fn the_kernel_is_told() {
        let (near, _far) = pair();
        let watch = TcpWatch {
            keepalive: Some(Keepalive::new(
                Duration::from_secs(7),
                Duration::from_secs(2),
                4,
            )),
            user_timeout: Some(Duration::from_millis(2500)),
            ..TcpWatch::default()
        };
        assert!(watch.is_asked() && watch.check().is_ok());
        watch.apply(near.as_fd()).unwrap();
        assert!(sockopt::socket_keepalive(&near).unwrap());
        assert_eq!(
            sockopt::tcp_keepidle(&near).unwrap(),
            Duration::from_secs(7)
        );
        assert_eq!(
            sockopt::tcp_keepintvl(&near).unwrap(),
            Duration::from_secs(2)
        );
        assert_eq!(sockopt::tcp_keepcnt(&near).unwrap(), 4);
        assert_eq!(sockopt::tcp_user_timeout(&near).unwrap(), 2500);
    }

    #[test]
    fn what_the_kernel_would_not_take_is_refused_by_name() {
        let second = Duration::from_secs(1);
        let keepalive = |idle, probes| TcpWatch {
            keepalive: Some(Keepalive::new(idle, second, probes)),
            user_timeout: None,
            ..TcpWatch::default()
        };
        for (watch, field) in [
            (keepalive(Duration::from_millis(1500), 3), "keepalive"),
            (keepalive(Duration::ZERO, 3), "keepalive"),
            (keepalive(second, 128), "keepalive"),
            (
                TcpWatch {
                    keepalive: None,
                    user_timeout: Some(Duration::ZERO),
                    ..TcpWatch::default()
                },
                "tcp_user_timeout",
            ),
        ] {
            let error = watch.check().unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
        assert!(!TcpWatch::default().is_asked() && TcpWatch::default().check().is_ok());
    }
}

#[cfg(all(test, not(loom)))]
mod documented {
    use super::*;
    use crate::endpoint::testing::documented_settings::{Setting, compare};

    #[test]
    fn the_table_of_settings_is_what_the_code_does() {
        let settings: &[Setting<Keepalive>] = &[
            Setting {
                name: "idle",
                get: |c| c.idle.into(),
                set: |c, v| Keepalive {
                    idle: v.time(),
                    ..c
                },
            },
            Setting {
                name: "interval",
                get: |c| c.interval.into(),
                set: |c, v| Keepalive {
                    interval: v.time(),
                    ..c
                },
            },
            Setting {
                name: "probes",
                get: |c| c.probes.into(),
                set: |c, v| Keepalive {
                    probes: v.count(),
                    ..c
                },
            },
        ];
        let check = |keepalive: &Keepalive| {
            let watch = TcpWatch {
                keepalive: Some(*keepalive),
                user_timeout: None,
                ..TcpWatch::default()
            };
            watch.check()
        };
        compare(include_str!("socket.rs"), "Keepalive", settings, check);
    }
}
