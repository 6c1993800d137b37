//! A device's memory on a domain: registered directly where the provider takes it, else staged, and
//! always with the reason.

#![allow(unsafe_code)]

use std::any::Any;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use super::domain::Domain;
use super::ep::Ep;
use super::{mr, probe};
use crate::Error;
use crate::cuda::{self, Cuda, Device, DeviceAllocation, DmaBuf};
use crate::memory::{Access, DevicePaths, DeviceRange, DirectBy, RawRegistration, RegisterError};

/// The first version whose `fi_mr_attr` can name a dmabuf. An older library takes it for segments.
const DMA_BUF_SINCE: u32 = sys::fi_version_make(1, 20);

/// Who takes a device's memory: a domain, and in the tests of endpoints a fake one.
pub(crate) trait DeviceRegistrar {
    /// What is known of it.
    fn terms(&self) -> Terms;

    /// What keeps its scope from becoming another one's.
    fn scope_kept(&self) -> Box<dyn Any + Send + Sync>;

    /// Whether it really moves such memory when it is told of it so, if that was or can be tried.
    fn prove(
        &self,
        memory: &DeviceRange,
        allocation: DeviceAllocation,
        by: DirectBy,
    ) -> Result<(), String>;

    /// `fi_mr_regattr`, for what this side does with the memory (`rights` is `None`), or for a
    /// peer. Rights and key are put in there.
    ///
    /// # Safety
    /// What `attr` points to is valid until this returns, and the memory that it names until the
    /// registration is dropped.
    unsafe fn register_attr(
        &self,
        attr: sys::fi_mr_attr,
        flags: u64,
        rights: Option<Access>,
        len: usize,
    ) -> Result<RawRegistration, RegisterError>;
}

/// What decides, besides the memory, how a provider is told of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// The version of libfabric that both sides of its interface speak.
    pub(crate) negotiated: u32,
    /// Direct access, or an error.
    pub(crate) required: bool,
    /// Columns of the provider's row.
    pub(crate) cuda_ipc: bool,
    pub(crate) offset_windows: bool,
}

/// Registers a device's memory for what this side does with it (`rights` is `None`), or for a peer.
///
/// `offered`: the provider was found with FI_HMEM, or why not.
pub(crate) fn register(
    registrar: &impl DeviceRegistrar,
    offered: Result<(), &str>,
    memory: &DeviceRange,
    rights: Option<Access>,
) -> Result<RawRegistration, RegisterError> {
    let direct = offered
        .map_err(str::to_owned)
        .and_then(|()| direct(registrar, memory, rights));
    let why = match direct {
        Ok(registration) => return Ok(registration),
        Err(why) => Arc::from(why),
    };
    if registrar.terms().required || rights.is_some() {
        return Err(RegisterError::Device {
            kind: memory.kind(),
            reason: why,
        });
    }
    tracing::info!(kind = %memory.kind(), reason = %why, "staged");
    Ok(RawRegistration::staged(why, registrar.scope_kept()))
}

/// The same for direct access only, or why not.
fn direct(
    registrar: &impl DeviceRegistrar,
    memory: &DeviceRange,
    rights: Option<Access>,
) -> Result<RawRegistration, String> {
    let Some(allocation) = memory.allocation else {
        return Err("managed memory moves between host and device".to_owned());
    };
    let terms = registrar.terms();
    let mut refused = Vec::new();
    for by in [DirectBy::DmaBuf, DirectBy::Interface] {
        let attempt = || {
            terms.may(allocation, rights, by)?;
            terms.may_arrive(memory.device)?;
            registrar.prove(memory, allocation, by)?;
            registration(registrar, memory, rights, by, terms.flags())
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

impl Terms {
    /// Whether it can be tried at all.
    fn may(
        &self,
        allocation: DeviceAllocation,
        rights: Option<Access>,
        by: DirectBy,
    ) -> Result<(), String> {
        // Whatever it is told of the memory, it is by IPC that the bytes go.
        if self.cuda_ipc && allocation != DeviceAllocation::Plain {
            return Err(format!("CUDA IPC does not take {allocation}"));
        }
        match by {
            DirectBy::DmaBuf if self.negotiated < DMA_BUF_SINCE => Err(format!(
                "libfabric {} has no FI_MR_DMABUF, which came with 1.20",
                sys::version_text(self.negotiated)
            )),
            // libfabric, up to 2.6, takes the descriptor for the address that a window begins at; a
            // peer's write then goes nowhere, and is reported as done.
            DirectBy::DmaBuf if rights.is_some() && self.offset_windows => {
                Err("the provider does not know where a window in a dmabuf begins".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// What arrives is flushed before it is reported, which an old driver can't do; CUDA's own
    /// copies need nothing of the kind.
    fn may_arrive(&self, device: Device) -> Result<(), String> {
        match self.cuda_ipc {
            true => Ok(()),
            false => device.can_flush_writes().map_err(|error| error.to_string()),
        }
    }

    /// What a provider is told besides. `shm` opens memory by CUDA IPC only where it knows that the
    /// host can't touch it; other memory it copies through shared memory of the host.
    fn flags(&self) -> u64 {
        match self.cuda_ipc {
            true => sys::FI_HMEM_DEVICE_ONLY,
            false => 0,
        }
    }

    /// Tells an endpoint what it may do with a device's memory, as far as its provider has words
    /// for that; `set` is `fi_setopt`.
    ///
    /// An error where direct access is required, and the provider says that it can't promise it.
    fn set_options(&self, mut set: impl FnMut(EpOption) -> i32) -> Result<(), EpOption> {
        let p2p = EpOption::PeerToPeer(match self.required {
            true => sys::FI_HMEM_P2P_REQUIRED,
            false => sys::FI_HMEM_P2P_ENABLED,
        });
        let answer = set(p2p);
        tracing::debug!(?p2p, answer, "fi_setopt");
        if self.required && answer == -libc::EOPNOTSUPP {
            return Err(p2p);
        }
        // A provider that calls CUDA by itself may wait for kernels that wait for us. One that has
        // nothing but CUDA's own way has to.
        if !self.cuda_ipc && self.negotiated >= DMA_BUF_SINCE {
            let answer = set(EpOption::CudaApi(false));
            tracing::debug!(answer, "FI_OPT_CUDA_API_PERMITTED");
        }
        Ok(())
    }
}

/// What an endpoint is told of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EpOption {
    /// `FI_OPT_FI_HMEM_P2P`.
    PeerToPeer(i32),
    /// `FI_OPT_CUDA_API_PERMITTED`.
    CudaApi(bool),
}

/// One registration, not believed yet.
pub(super) fn registration(
    registrar: &impl DeviceRegistrar,
    memory: &DeviceRange,
    rights: Option<Access>,
    by: DirectBy,
    flags: u64,
) -> Result<RawRegistration, String> {
    match by {
        DirectBy::DmaBuf => by_dma_buf(registrar, memory, rights, flags),
        DirectBy::Interface => by_interface(registrar, memory, rights, flags),
    }
}

fn by_dma_buf(
    registrar: &impl DeviceRegistrar,
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
    // SAFETY: `range` and the descriptor outlive the call; the memory outlives the registration, as
    // its region does.
    let registered = unsafe {
        registrar.register_attr(
            attr(memory, named),
            sys::FI_MR_DMABUF | flags,
            rights,
            memory.len,
        )
    };
    // fi_mr(3) does not say how long the descriptor is used: verbs and efa have the kernel take a
    // reference, opx keeps the number. So it is closed behind the registration.
    registered
        .map(|registration| registration.keeping(exported))
        .map_err(|error| error.to_string())
}

fn by_interface(
    registrar: &impl DeviceRegistrar,
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
    // SAFETY: `segment` outlives the call; the memory outlives the registration, as its region
    // does.
    unsafe { registrar.register_attr(attr(memory, named), flags, rights, memory.len) }
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

/// Copies that the application makes without a stream are then in order with what the network does
/// to the memory.
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

impl DeviceRegistrar for Arc<Domain> {
    fn terms(&self) -> Terms {
        let fabric = self.fabric();
        Terms {
            negotiated: fabric.info().library().negotiated(),
            required: fabric.settings().device_paths == DevicePaths::RequireDirect,
            cuda_ipc: fabric.provider().memory.cuda_ipc,
            offset_windows: fabric.provider().memory.offset_windows,
        }
    }

    fn scope_kept(&self) -> Box<dyn Any + Send + Sync> {
        Box::new(Self::clone(self))
    }

    fn prove(
        &self,
        memory: &DeviceRange,
        allocation: DeviceAllocation,
        by: DirectBy,
    ) -> Result<(), String> {
        self.probed(allocation, by, || probe::run(self, memory, by))
    }

    unsafe fn register_attr(
        &self,
        attr: sys::fi_mr_attr,
        flags: u64,
        rights: Option<Access>,
        len: usize,
    ) -> Result<RawRegistration, RegisterError> {
        // SAFETY: the caller says so.
        unsafe { mr::register_attr(self, attr, flags, rights, len) }
    }
}

/// Tells an endpoint what it may do with a device's memory, where the fabric was opened with access
/// to that.
pub(super) fn set_options(domain: &Arc<Domain>, ep: &Ep) -> Result<(), Error> {
    if domain.fabric().device_memory().is_err() {
        return Ok(());
    }
    let set = |option| match option {
        EpOption::PeerToPeer(value) => ep.set_option(sys::FI_OPT_FI_HMEM_P2P, value),
        EpOption::CudaApi(value) => ep.set_option(sys::FI_OPT_CUDA_API_PERMITTED, value),
    };
    domain
        .terms()
        .set_options(set)
        .map_err(|_| Error::Unsupported {
            provider: domain.fabric().provider().name.to_owned(),
            need: "can't reach a device's memory without copies (FI_HMEM_P2P_REQUIRED), and direct \
                access is required",
        })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const TERMS: Terms = Terms {
        negotiated: DMA_BUF_SINCE,
        required: false,
        cuda_ipc: false,
        offset_windows: false,
    };

    /// What was set, and what came of it where each is answered so.
    fn set(terms: Terms, p2p: i32, cuda: i32) -> (Vec<EpOption>, Result<(), EpOption>) {
        let mut told = Vec::new();
        let outcome = terms.set_options(|option| {
            told.push(option);
            match option {
                EpOption::PeerToPeer(_) => p2p,
                EpOption::CudaApi(_) => cuda,
            }
        });
        (told, outcome)
    }

    #[test]
    fn endpoints_are_told_what_they_may_do() {
        let enabled = EpOption::PeerToPeer(sys::FI_HMEM_P2P_ENABLED);
        let required = EpOption::PeerToPeer(sys::FI_HMEM_P2P_REQUIRED);
        let no_cuda = EpOption::CudaApi(false);
        assert_eq!(set(TERMS, 0, 0), (vec![enabled, no_cuda], Ok(())));
        // Neither is known to every provider, and the second not to older versions.
        let unknown = -libc::ENOPROTOOPT;
        assert_eq!(
            set(TERMS, unknown, unknown),
            (vec![enabled, no_cuda], Ok(()))
        );
        let old = Terms {
            negotiated: sys::fi_version_make(1, 17),
            ..TERMS
        };
        assert_eq!(set(old, 0, 0), (vec![enabled], Ok(())));
        // Who has nothing but CUDA is not forbidden it.
        let ipc = Terms {
            cuda_ipc: true,
            ..TERMS
        };
        assert_eq!(set(ipc, 0, 0), (vec![enabled], Ok(())));

        let strict = Terms {
            required: true,
            ..TERMS
        };
        assert_eq!(set(strict, 0, 0), (vec![required, no_cuda], Ok(())));
        assert_eq!(set(strict, unknown, 0), (vec![required, no_cuda], Ok(())));
        let cannot = -libc::EOPNOTSUPP;
        assert_eq!(set(strict, cannot, 0), (vec![required], Err(required)));
        assert_eq!(set(TERMS, cannot, cannot).1, Ok(()), "nobody requires it");
    }
}
