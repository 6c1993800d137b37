//! Safe handles over libfabric: what is opened, by which provider, with which limits.
//!
//! ```text
//!  Fabric ◄── Domain ◄── Mr, Cq, Av, Ep    an arrow is an Arc: a child keeps its parent open
//!     ▲─────── Eq, Pep ◄──┘ (Ep)
//! ```
//!
//! Each object has one owner and is closed once, when its last child is gone; the library's own
//! `-FI_EBUSY` protects nothing. Start at [`Fabric::builder`].
//!
//! Everything else is opened on a [`Domain`], so this is where a program begins; and where it asks
//! what the provider can do ([`Domain::report`], [`PROVIDERS`]).
//!
//! ```
//! use fabricast::Fabric;
//!
//! let fabric = Fabric::builder().provider("tcp").node("127.0.0.1").open()?;
//! println!("{}\n{}", fabric.provider(), fabric.open_domain()?.report());
//! # Ok::<(), fabricast::Error>(())
//! ```

#![allow(unsafe_code)]

mod accepted_sockets;
mod address;
mod av;
mod builder;
mod device_memory;
mod diagnose;
mod domain;
mod endpoint_settings;
mod ep;
mod handle;
#[cfg(all(test, not(loom)))]
#[path = "testing/hook.rs"]
pub(crate) mod hook;
mod info;
mod keys;
mod local_address;
mod mr;
mod opened_ep;
mod operation;
mod parameters;
mod pep;
mod probe;
mod process_settings;
mod provider;
mod provider_bytes;
mod queue;
mod region;
mod registration_cache;
mod report;
mod resolver;
mod rma;
mod run;
mod shm;
mod tcp_info;
mod unheard;
mod variable;

use std::ffi::{CStr, c_char};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use libfabric_sys as sys;

pub use crate::error::{Diagnosis, Verdict};
pub use crate::memory::DevicePaths;
pub use address::PeerAddr;
pub use builder::FabricBuilder;
pub use domain::Domain;
pub use endpoint_settings::{EndpointSettings, TrafficClass};
pub use process_settings::{LogLevel, ProcessSettings};
pub use provider::{
    AccessEnds, EndpointKind, Evidence, PROVIDERS, Provider, ProviderMemory, ProviderQueues, Shape,
    provider,
};
pub use registration_cache::RegistrationCache;
pub use report::{Progress, Report, SocketAccess, WaitObject};
pub use variable::Variable;

pub(crate) use accepted_sockets::AcceptedSockets;
pub(crate) use address::{AddrForm, NAME_MAX};
pub(crate) use av::{Av, FiAddr, fits};
#[cfg(all(any(test, fuzzing), not(loom)))]
pub(crate) use device_memory::{DeviceRegistrar, Terms, register as register_device};
pub(crate) use ep::Ep;
pub(crate) use info::Info;
pub(crate) use local_address::{check_local, is_local};
pub(crate) use opened_ep::{OpenedEp, receives_of, unreachable};
pub(crate) use operation::{
    COMPLETION_BATCH, CmData, Completions, LinkCompletion, PEER_WROTE, PostRefused, RemoteRange,
    RmaPost, SendPost,
};
pub use operation::{Inject, Level, Packing};
pub(crate) use pep::{Pep, in_use, local_info};
#[cfg(any(test, fuzzing))]
pub(crate) use provider_bytes::exercise as exercise_provider_bytes;
pub(crate) use queue::{Cq, Eq, RawEvent};
pub(crate) use resolver::JobId;
pub(crate) use rma::RmaLimits;
pub use run::Run;
pub(crate) use shm::check_peer;
pub(crate) use tcp_info::{bytes_received, round_trip};

use self::keys::KeyGuard;
use crate::Error;
use crate::process::Owner;

/// An opened fabric: one provider on one network (`fi_fabric.3`).
///
/// ```
/// use fabricast::Fabric;
///
/// let fabric = Fabric::builder().provider("tcp").node("127.0.0.1").open()?;
/// let domain = fabric.open_domain()?;
/// println!("{}", domain.report());
/// # Ok::<(), fabricast::Error>(())
/// ```
pub struct Fabric {
    raw: NonNull<sys::fid_fabric>,
    info: Info,
    rma: Option<RmaLimits>,
    provider: &'static Provider,
    endpoint_kind: EndpointKind,
    settings: builder::Settings,
    /// Whether a device's memory can be registered, or why not.
    device_memory: Result<(), Arc<str>>,
    owner: Owner,
    keys: KeyGuard,
}

// SAFETY: the provider was found with FI_THREAD_SAFE (`builder::hints`), so any thread may call
// into it.
unsafe impl Send for Fabric {}
// SAFETY: as above.
unsafe impl Sync for Fabric {}

impl Fabric {
    /// Chooses a provider and opens it.
    pub fn builder() -> FabricBuilder {
        FabricBuilder::default()
    }

    /// Opens a domain: what registrations, endpoints and their queues belong to (`fi_domain.3`).
    ///
    /// One domain for each thread that drives endpoints is the fastest arrangement.
    ///
    /// # Errors
    ///
    /// [`Error::TooManyDomains`], [`Error::Forked`], or what the provider answers.
    pub fn open_domain(self: &Arc<Self>) -> Result<Arc<Domain>, Error> {
        self.owner.check()?;
        Domain::open(self)
    }

    /// The provider's row in the table.
    pub fn provider(&self) -> &'static Provider {
        self.provider
    }

    /// What connections are made of.
    pub fn endpoint_kind(&self) -> EndpointKind {
        self.endpoint_kind
    }

    /// What was got: provider, versions, limits.
    pub fn report(&self) -> Report {
        Report::new(self)
    }

    /// The raw `fid_fabric`.
    ///
    /// # Safety
    ///
    /// * It is valid while this value lives: keep the `Arc`.
    /// * It must not be closed, and nothing opened from it may outlive this value.
    pub unsafe fn as_raw(&self) -> *mut sys::fid_fabric {
        self.as_ptr()
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::fid_fabric {
        self.raw.as_ptr()
    }

    pub(crate) fn info(&self) -> &Info {
        &self.info
    }

    /// What one-sided operations it has, if any.
    pub(crate) fn rma(&self) -> Option<&RmaLimits> {
        self.rma.as_ref()
    }

    /// Queues are opened with a descriptor to wait on.
    pub(crate) fn has_wait_fd(&self) -> bool {
        self.provider.queues.wait_fd && self.settings.wait_fd
    }

    /// Messages over FI_EP_RDM carry less than the 8 bytes of CQ data that marks are meant for.
    pub(crate) fn has_short_cq_data(&self) -> bool {
        self.endpoint_kind == EndpointKind::Rdm && self.cq_data() < size_of::<u64>()
    }

    /// Bytes of CQ data that are used.
    pub(crate) fn cq_data(&self) -> usize {
        let bytes = self.info.domain().cq_data_size;
        bytes.min(self.settings.cq_data)
    }

    /// Whether the provider offers to reach a device's memory by itself, or why not. An offer is
    /// tried with a transfer when the first such region is registered; what came of it,
    /// [`Region::path`](crate::Region::path) says.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn device_memory(&self) -> Result<(), &str> {
        match &self.device_memory {
            Ok(()) => Ok(()),
            Err(why) => Err(why),
        }
    }

    /// Who may be in the tables of keys of its domains.
    #[inline]
    pub(crate) fn keys(&self) -> &KeyGuard {
        &self.keys
    }

    /// The process that opened it, and everything under it.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    pub(crate) fn settings(&self) -> &builder::Settings {
        &self.settings
    }

    fn open(
        info: Info,
        provider: &'static Provider,
        endpoint_kind: EndpointKind,
        (settings, device_memory): (builder::Settings, Result<(), Arc<str>>),
    ) -> Result<Arc<Self>, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: the attributes come from an info of this library; `raw` is writable.
        let rc = unsafe {
            info.library()
                .fi_fabric(info.fabric_attr(), &raw mut raw, ptr::null_mut())
        };
        let raw = NonNull::new(raw)
            .filter(|_| rc == 0)
            .ok_or_else(|| Error::fabric("fi_fabric", rc))?;
        let fabric = Self {
            raw,
            rma: RmaLimits::of(&info, provider, endpoint_kind),
            keys: KeyGuard::of(&info.provider_name(), info.library().version()),
            info,
            provider,
            endpoint_kind,
            settings,
            device_memory,
            owner: Owner::current(),
        };
        tracing::info!(report = %fabric.report(), "fabric opened");
        Ok(Arc::new(fabric))
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        // SAFETY: domains, event queues and listeners hold the fabric by `Arc`, so none is left.
        let _ = unsafe { handle::close("fabric", self.owner, self.as_ptr().cast()) };
    }
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

/// Copies a text of the library's, which is only valid until the next call.
fn text_from(raw: *const c_char) -> String {
    if raw.is_null() {
        return String::new();
    }
    // SAFETY: not null, so a text that ends with 0.
    unsafe { CStr::from_ptr(raw) }
        .to_string_lossy()
        .into_owned()
}
