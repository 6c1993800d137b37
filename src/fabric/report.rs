//! `Report`: what was got.

use std::fmt;
use std::net::IpAddr;

use libfabric_sys as sys;

use super::Fabric;
use super::ep::GET_FD_SINCE;
use super::provider::{EndpointKind, Shape};

/// Who drives the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// We do, by polling: no thread of the provider's.
    Manual,
    /// The provider does as well, maybe by a thread of its own.
    Auto,
}

/// What a sleeping thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitObject {
    /// A file descriptor (`FI_WAIT_FD`).
    Fd,
    /// Nothing: endpoints are polled at an interval.
    None,
}

/// How the sockets of connections are found, for the kernel's watch over them (settings `keepalive`
/// and `tcp_user_timeout`) and its count of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketAccess {
    /// The library says (`FI_GET_FD`, since 2.2).
    Library,
    /// They are looked for among the process's descriptors.
    Search,
    /// Connections have none.
    None,
}

/// What was got when a fabric was opened. `Display` is one line.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The provider, as libfabric spells it.
    pub provider: String,
    /// The provider's own version.
    pub provider_version: String,
    /// The version of the library.
    pub library: String,
    /// The API version in use: the older of the library's and the newest that we have checked.
    pub api: String,
    /// Network interface or device.
    pub interface: String,
    /// Its address of this machine, where it has an IP address: the one that was asked for, else
    /// one that the provider chose.
    pub address: Option<IpAddr>,
    /// What connections are made of; both ends must have the same.
    pub endpoint: EndpointKind,
    /// Wire protocol, libfabric's number (`FI_PROTO_*`): both ends must have the same.
    pub protocol: u32,
    /// Registration mode bits that the provider asked for (`FI_MR_*`).
    pub mr_mode: i32,
    /// Bytes of the longest message that the provider takes.
    pub max_message: u64,
    /// Segments of a send, header included.
    pub iov_limit: usize,
    /// Bytes that can be injected.
    pub inject_size: usize,
    /// Sends that the provider queues, by default.
    pub tx_size: usize,
    /// Receives that the provider queues, by default.
    pub rx_size: usize,
    /// Bytes of remote CQ data.
    pub cq_data_size: usize,
    /// Who drives it.
    pub progress: Progress,
    /// What a sleeping thread waits for.
    pub wait_object: WaitObject,
    /// How the sockets of connections are found.
    pub sockets: SocketAccess,
    /// How header and payload become one message.
    pub shape: Shape,
    /// What the provider copies by itself, in words.
    pub copies: &'static str,
}

impl Report {
    pub(super) fn new(fabric: &Fabric) -> Self {
        let info = fabric.info();
        let (tx, rx, domain) = (info.tx(), info.rx(), info.domain());
        let manual = domain.data_progress == sys::FI_PROGRESS_MANUAL;
        Self {
            provider: info.provider_name(),
            provider_version: sys::version_text(info.provider_version()),
            library: sys::version_text(info.library().version()),
            api: sys::version_text(info.library().negotiated()),
            interface: info.domain_name(),
            address: info
                .source()
                .and_then(|addr| Some(addr.socket_addr()?.ip())),
            endpoint: fabric.endpoint_kind(),
            protocol: info.protocol(),
            mr_mode: domain.mr_mode,
            max_message: info.max_message(),
            iov_limit: tx.iov_limit,
            inject_size: tx.inject_size,
            tx_size: tx.size,
            rx_size: rx.size,
            cq_data_size: domain.cq_data_size,
            progress: if manual {
                Progress::Manual
            } else {
                Progress::Auto
            },
            wait_object: if fabric.has_wait_fd() {
                WaitObject::Fd
            } else {
                WaitObject::None
            },
            sockets: match info.protocol() {
                sys::FI_PROTO_SOCK_TCP if info.library().version() >= GET_FD_SINCE => {
                    SocketAccess::Library
                }
                sys::FI_PROTO_SOCK_TCP => SocketAccess::Search,
                _ => SocketAccess::None,
            },
            shape: Shape::for_iov_limit(tx.iov_limit),
            copies: fabric.provider().copies,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            provider,
            library,
            api,
            interface,
            shape,
            progress,
            wait_object,
            endpoint,
            sockets,
            ..
        } = self;
        write!(
            f,
            "{provider} {} on {interface}, libfabric {library} (API {api}), ",
            self.provider_version
        )?;
        write!(
            f,
            "{endpoint}, shape {shape}, iov limit {}, queues {}/{}, ",
            self.iov_limit, self.tx_size, self.rx_size
        )?;
        write!(
            f,
            "mr_mode {:#x}, protocol {}, ",
            self.mr_mode, self.protocol
        )?;
        write!(
            f,
            "progress {progress:?}, wait object {wait_object:?}, sockets {sockets:?}"
        )
    }
}
