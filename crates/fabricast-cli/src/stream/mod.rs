//! Streams files and directories to one receiver or many, over `fabricast::stream`.
//!
//! ```text
//!   fabricast send ── FileSource ── StreamSender ══ libfabric ══╗
//!   fabricast recv ── DirectorySink ── StreamReceiver ◄═════════╝
//! ```

pub(crate) mod args;
pub(crate) mod demo;
mod devices;
mod dry_run;
pub(crate) mod far;
pub(crate) mod measure;
mod name_pattern;
mod progress;
pub(crate) mod recv;
mod report;
mod route;
pub(crate) mod send;
pub(crate) mod slurm;
#[cfg(feature = "charts")]
mod timeline;
mod ways;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use fabricast::buffer::DeviceBufferManager;
use fabricast::fabric::EndpointKind;
use fabricast::stream::StreamSettings;
use fabricast::{Domain, Fabric, Region};

use crate::failure::{Failure, describe};
use args::CommonArgs;

/// What both sides' settings of streams have in common; `threads`: that read, or write.
fn common_settings(
    common: &CommonArgs,
    threads: Option<u32>,
    settings: StreamSettings,
) -> StreamSettings {
    let mut settings = settings
        .block_bytes(common.block)
        .pinned(common.gpu.is_some());
    if let Some(threads) = common.rail_threads {
        settings = settings.rail_threads(threads);
    }
    // Each of them has a buffer in a GPU's memory.
    if let Some(threads) = threads.or_else(|| common.gpu.map(|_| GPU_THREADS)) {
        settings = settings.threads(threads);
    }
    settings
}

/// Threads that take blocks through a GPU's memory, unless it is said how many.
const GPU_THREADS: u32 = 2;

/// Buffers in a GPU's memory for so many threads, where blocks are to pass it.
fn device_buffers(
    common: &CommonArgs,
    threads: Option<u32>,
) -> Result<Option<DeviceBufferManager>, Failure> {
    let Some(ordinal) = common.gpu else {
        return Ok(None);
    };
    let block = common.block as usize;
    let bytes = threads.unwrap_or(GPU_THREADS) as usize * block.next_multiple_of(256);
    let region = Region::device(bytes).device(ordinal).build();
    let pool = region.and_then(|region| DeviceBufferManager::new(region, block));
    pool.map(Some)
        .map_err(|error| Failure::new(format!("--gpu: {error}")))
}

/// The domain of the network interface that has this address; without one (shm, efa, cxi: addresses
/// of the provider's own), of the first that the provider has.
fn open_domain(common: &CommonArgs, local: Option<IpAddr>) -> Result<Arc<Domain>, Failure> {
    let kind = match common.rdm {
        true => EndpointKind::Rdm,
        false => EndpointKind::Msg,
    };
    let mut builder = Fabric::builder()
        .provider(&common.provider)
        .endpoint_kind(kind);
    if let Some(local) = local {
        builder = builder.node(local.to_string());
    }
    Ok(builder.open()?.open_domain()?)
}

/// The address that this machine has towards a peer. No packet is sent: a datagram socket only
/// looks up the route.
pub(crate) fn local_address(peer: SocketAddr) -> Result<IpAddr, Failure> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => [0; 4].into(),
        SocketAddr::V6(_) => [0; 16].into(),
    };
    let found = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(peer)?;
        socket.local_addr()
    });
    found
        .map(|address| address.ip())
        .map_err(|error| Failure::new(format!("{peer}: {}", describe(&error))))
}

/// Whether an address is one of this machine's.
fn is_own(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}
