//! A device's memory on a domain: registered directly where the provider takes it, else staged, and always with the reason.

#![allow(unsafe_code)]

use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use super::domain::Domain;
use super::ep::Ep;
use super::{mr, probe};
use crate::cuda::{self, Cuda, DeviceAllocation, DmaBuf};
use crate::memory::{Access, DevicePaths, DeviceRange, DirectBy, RawRegistration, RegisterError};

/// The first version whose `fi_mr_attr` can name a dmabuf. An older library takes it for segments.
const DMA_BUF_SINCE: u32 = sys::fi_version_make(1, 20);

/// Registers a device's memory for what this side does with it (`rights` is `None`), or for a peer.
pub(super) fn register(
    domain: &Arc<Domain>,
    memory: &DeviceRange,
    rights: Option<Access>,
) -> Result<RawRegistration, RegisterError> {
    let why = match direct(domain, memory, rights) {
        Ok(registration) => return Ok(registration),
        Err(why) => Arc::from(why),
    };
    let required = domain.fabric().settings().device_paths == DevicePaths::RequireDirect;
    if required || rights.is_some() {
        return Err(RegisterError::Device {
            kind: memory.kind(),
            reason: why,
        });
    }
    tracing::info!(kind = %memory.kind(), reason = %why, "staged");
    Ok(RawRegistration::staged(why))
}

/// The same for direct access only, or why not.
fn direct(
    domain: &Arc<Domain>,
    memory: &DeviceRange,
    rights: Option<Access>,
) -> Result<RawRegistration, String> {
    domain
        .fabric()
        .device_memory()
        .map_err(|why| why.to_string())?;
    let Some(allocation) = memory.allocation else {
        return Err("managed memory moves between host and device".to_owned());
    };
    let mut refused = Vec::new();
    for by in [DirectBy::DmaBuf, DirectBy::Interface] {
        let attempt = || {
            may(domain, allocation, rights, by)?;
            domain.probed(allocation, by, || probe::run(domain, memory, by))?;
            registration(domain, memory, rights, by, flags(domain))
        };
        match attempt() {
            Ok(registration) => {
                order_copies(memory, allocation);
                return Ok(registration.direct(by));
            }
            Err(why) => refused.push(format!("{by}: {why}")),
        }
    }
    Err(refused.join("; "))
}

/// Whether it can be tried at all.
fn may(
    domain: &Domain,
    allocation: DeviceAllocation,
    rights: Option<Access>,
    by: DirectBy,
) -> Result<(), String> {
    let negotiated = domain.fabric().info().library().negotiated();
    let provider = domain.fabric().provider();
    // Whatever it is told of the memory, it is by IPC that the bytes go.
    if provider.cuda_ipc && allocation != DeviceAllocation::Plain {
        return Err(format!("CUDA IPC does not take {allocation}"));
    }
    match by {
        DirectBy::DmaBuf if negotiated < DMA_BUF_SINCE => Err(format!(
            "libfabric {} has no FI_MR_DMABUF, which came with 1.20",
            sys::version_text(negotiated)
        )),
        // libfabric, up to 2.6, takes the descriptor for the address that a window begins at; a peer's write then goes nowhere, and is
        // reported as done.
        DirectBy::DmaBuf if rights.is_some() && provider.offset_windows => {
            Err("the provider does not know where a window in a dmabuf begins".to_owned())
        }
        _ => Ok(()),
    }
}

/// What a provider is told besides. `shm` opens memory by CUDA IPC only where it knows that the host can't touch it; other memory it copies
/// through shared memory of the host.
fn flags(domain: &Domain) -> u64 {
    if domain.fabric().provider().cuda_ipc {
        sys::FI_HMEM_DEVICE_ONLY
    } else {
        0
    }
}

/// One registration, not believed yet.
pub(super) fn registration(
    domain: &Arc<Domain>,
    memory: &DeviceRange,
    rights: Option<Access>,
    by: DirectBy,
    flags: u64,
) -> Result<RawRegistration, String> {
    match by {
        DirectBy::DmaBuf => by_dma_buf(domain, memory, rights, flags),
        DirectBy::Interface => by_interface(domain, memory, rights, flags),
    }
}

fn by_dma_buf(
    domain: &Arc<Domain>,
    memory: &DeviceRange,
    rights: Option<Access>,
    flags: u64,
) -> Result<RawRegistration, String> {
    let exported = DmaBuf::export(memory.address, memory.len).map_err(|error| error.to_string())?;
    let range = sys::fi_mr_dmabuf {
        fd: exported.as_fd().as_raw_fd(),
        offset: exported.offset() as u64,
        len: memory.len,
        base_addr: ptr::without_provenance_mut(exported.base() as usize),
    };
    let named = sys::fi_mr_attr_memory {
        dmabuf: &raw const range,
    };
    // The provider has a reference of its own behind the call: the descriptor is closed here.
    // SAFETY: `range` and the descriptor outlive the call; the memory outlives the registration, as its region does.
    unsafe {
        mr::register_attr(
            domain,
            attr(memory, named),
            sys::FI_MR_DMABUF | flags,
            rights,
            memory.len,
        )
    }
    .map_err(|error| error.to_string())
}

fn by_interface(
    domain: &Arc<Domain>,
    memory: &DeviceRange,
    rights: Option<Access>,
    flags: u64,
) -> Result<RawRegistration, String> {
    let segment = libc::iovec {
        iov_base: ptr::without_provenance_mut(memory.address as usize),
        iov_len: memory.len,
    };
    let named = sys::fi_mr_attr_memory {
        mr_iov: (&raw const segment).cast(),
    };
    // Some providers call the CUDA driver here, in whatever context is current.
    let cuda = Cuda::ready().map_err(|why| why.to_string())?;
    let _current = cuda
        .enter_device(memory.device.ordinal())
        .map_err(|error| error.to_string())?;
    // SAFETY: `segment` outlives the call; the memory outlives the registration, as its region does.
    unsafe { mr::register_attr(domain, attr(memory, named), flags, rights, memory.len) }
        .map_err(|error| error.to_string())
}

/// What `fi_mr_regattr` is told of CUDA's memory; rights and key are the caller's.
fn attr(memory: &DeviceRange, named: sys::fi_mr_attr_memory) -> sys::fi_mr_attr {
    // SAFETY: numbers, and pointers that may be null: what fi_mr(3) asks for where nothing is said.
    let mut attr: sys::fi_mr_attr = unsafe { mem::zeroed() };
    attr.memory = named;
    attr.iov_count = 1;
    attr.iface = sys::FI_HMEM_CUDA;
    attr.device = sys::fi_mr_attr_device {
        cuda: memory.device.ordinal() as i32,
    };
    attr
}

/// Copies that the application makes without a stream are then in order with what the network does to the memory.
fn order_copies(memory: &DeviceRange, allocation: DeviceAllocation) {
    if allocation != DeviceAllocation::Plain {
        return;
    }
    let ordered = Cuda::ready()
        .map_err(cuda::CudaError::from)
        .and_then(|cuda| cuda.sync_memory_operations(memory.address));
    if let Err(error) = ordered {
        tracing::debug!(%error, "no SYNC_MEMOPS");
    }
}

/// Tells an endpoint what it may do with a device's memory, as far as its provider has a word for that.
pub(super) fn set_options(domain: &Domain, ep: &Ep) {
    let fabric = domain.fabric();
    if fabric.device_memory().is_err() {
        return;
    }
    let p2p = match fabric.settings().device_paths {
        DevicePaths::RequireDirect => sys::FI_HMEM_P2P_REQUIRED,
        _ => sys::FI_HMEM_P2P_ENABLED,
    };
    let told = ep.set_option(sys::FI_OPT_FI_HMEM_P2P, p2p);
    tracing::debug!(p2p, answer = told, "FI_OPT_FI_HMEM_P2P");
    // A provider that calls CUDA by itself may wait for kernels that wait for us. One that has nothing but CUDA's own way has to.
    if !fabric.provider().cuda_ipc && fabric.info().library().negotiated() >= DMA_BUF_SINCE {
        let told = ep.set_option(sys::FI_OPT_CUDA_API_PERMITTED, false);
        tracing::debug!(answer = told, "FI_OPT_CUDA_API_PERMITTED");
    }
}
