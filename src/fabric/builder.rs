//! `FabricBuilder`: picks a provider, and says why when there is none.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use libfabric_sys as sys;

use super::Fabric;
use super::info::{Info, MR_MODES};
use super::local_address;
use super::parameters::Parameters;
use super::provider::{EndpointKind, Provider, provider};
use super::report::WaitObject;
use crate::Error;
use crate::errno::FabricErrno;
use crate::error::Diagnosis;
use crate::memory::DevicePaths;

/// Chooses and opens a [`Fabric`].
#[derive(Debug, Clone, Default)]
pub struct FabricBuilder {
    provider: Option<String>,
    node: Option<String>,
    interface: Option<String>,
    endpoint_kind: Option<EndpointKind>,
    settings: Settings,
}

/// What was found: the provider's info and row, and whether it takes a device's memory, or why not.
type Found = (Info, &'static Provider, Result<(), Arc<str>>);

/// The settings that outlive the choice of a provider.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) max_registrations: usize,
    pub(crate) wait_fd: bool,
    /// Bytes of remote CQ data that are used at most.
    pub(crate) cq_data: usize,
    pub(crate) device_paths: DevicePaths,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_registrations: 1024,
            wait_fd: true,
            cq_data: size_of::<u64>(),
            device_paths: DevicePaths::default(),
        }
    }
}

impl FabricBuilder {
    /// The provider, as libfabric spells it (`tcp`, `verbs`, …). Default: the first that this
    /// library can use, in libfabric's order, which is by speed.
    #[must_use]
    pub fn provider(mut self, name: impl Into<String>) -> Self {
        self.provider = Some(name.into());
        self
    }

    /// The address or host name of this machine to use, such as `127.0.0.1`; it chooses the network
    /// interface that endpoints listen at and connect from. It is never the peer's, which
    /// `connect` takes: another machine's is refused by [`open`](Self::open). A listener's address
    /// says the same; a sender needs a node only where the machine has several networks, or none
    /// but the loopback one. Default: the first interface that the provider names, often not the
    /// loopback one; `0.0.0.0` leaves it to the provider, too.
    /// Providers whose endpoints have names instead ([`Provider::names`]: `shm`) refuse it, and
    /// without a provider's name such ones are passed over.
    #[must_use]
    pub fn node(mut self, node: impl Into<String>) -> Self {
        self.node = Some(node.into());
        self
    }

    /// The network interface or device (libfabric's domain name, such as `eth0` or `mlx5_0`).
    /// Default: any.
    #[must_use]
    pub fn interface(mut self, name: impl Into<String>) -> Self {
        self.interface = Some(name.into());
        self
    }

    /// What connections are made of. Default: connected endpoints (`FI_EP_MSG`) where there are
    /// any, else `FI_EP_RDM`, over which the connections are this library's own. Both ends must
    /// have the same.
    #[must_use]
    pub fn endpoint_kind(mut self, kind: EndpointKind) -> Self {
        self.endpoint_kind = Some(kind);
        self
    }

    /// What sleeping threads will wait for. Default [`WaitObject::Fd`], where the provider has one.
    /// With [`WaitObject::None`] a provider need not signal a descriptor for each completion, which
    /// is faster for those who only spin; a sleeping thread then looks every millisecond.
    #[must_use]
    pub fn wait_object(mut self, wait_object: WaitObject) -> Self {
        self.settings.wait_fd = wait_object == WaitObject::Fd;
        self
    }

    /// The most registrations that each domain may hold at once, 1 to 1,048,576. Default 1,024. The
    /// network card's tables are finite, and a leak should fail early.
    #[must_use]
    pub fn max_registrations(mut self, limit: usize) -> Self {
        self.settings.max_registrations = limit;
        self
    }

    /// The most bytes of remote CQ data that a message over `FI_EP_RDM` carries, 4 or 8. Default 8,
    /// or what the provider has. With 4, a listener grants at most 4,096 messages ahead, and has at
    /// most 32,766 connections. To try here what EFA and PSM3 will do; the peer may have another
    /// setting.
    #[must_use]
    pub fn cq_data_limit(mut self, bytes: usize) -> Self {
        self.settings.cq_data = bytes;
        self
    }

    /// What becomes of GPU memory. Default [`DevicePaths::Auto`]: on a machine with an NVIDIA GPU
    /// the provider is asked whether it takes a device's memory (`FI_HMEM`), and each way is tried
    /// with a transfer before it is used; else it is staged. [`Region::path`](crate::Region::path)
    /// says which and why.
    ///
    /// Of `shm` it is only asked where libfabric was built with CUDA: once it is, memory of the
    /// host goes from process to process in two copies instead of one, at half the rate or less.
    /// Who has no memory of a device there says [`DevicePaths::Off`].
    #[must_use]
    pub fn device_memory(mut self, paths: DevicePaths) -> Self {
        self.settings.device_paths = paths;
        self
    }

    /// Finds the provider and opens it.
    ///
    /// # Errors
    ///
    /// * [`Error::Library`]: no usable libfabric on this machine.
    /// * [`Error::Address`]: `node` is no address of this machine; or the provider has no device
    ///   with it, and would take another, or has no addresses.
    /// * [`Error::NoProvider`]: nothing matches; why the provider that was asked for is not here,
    ///   or what ruled each out, and which there are.
    /// * [`Error::Unsupported`]: the provider exists, but connections can't be made over it.
    /// * [`Error::Config`]: a setting out of range.
    pub fn open(self) -> Result<Arc<Fabric>, Error> {
        if !(1..=1 << 20).contains(&self.settings.max_registrations) {
            return Err(Error::Config {
                field: "max_registrations",
                value: self.settings.max_registrations.to_string(),
                reason: "must be 1 to 1048576",
            });
        }
        if ![4, 8].contains(&self.settings.cq_data) {
            return Err(Error::Config {
                field: "cq_data_limit",
                value: self.settings.cq_data.to_string(),
                reason: "must be 4 or 8 bytes",
            });
        }
        self.refuse_known_unsupported()?;
        if let Some(node) = &self.node {
            local_address::refuse_foreign(node, &self.node_addrs())?;
        }
        let library = sys::Library::load()?;
        let mut refused = Ok(());
        for &kind in self.kinds() {
            match self.find(library, kind)? {
                Ok((info, row, device)) => {
                    return Fabric::open(info, row, kind, (self.settings, device));
                }
                // The first kind is the one that most providers have: its diagnosis says more.
                Err(errno) => refused = refused.and(Err(errno)),
            }
        }
        if let Some(error) = self.elsewhere(library)? {
            return Err(error);
        }
        let errno = refused.err().unwrap_or(sys::FI_ENODATA);
        Err(self.diagnose(library, errno)?.into())
    }

    /// The kinds of endpoint to look for, in this order.
    fn kinds(&self) -> &'static [EndpointKind] {
        match (self.endpoint_kind, self.provider.as_deref().map(provider)) {
            (Some(EndpointKind::Msg), _) => &[EndpointKind::Msg],
            (Some(EndpointKind::Rdm), _) => &[EndpointKind::Rdm],
            (None, Some(Some(row))) => row.endpoints,
            (None, _) => &[EndpointKind::Msg, EndpointKind::Rdm],
        }
    }

    /// The first answer that we can use.
    fn find(
        &self,
        library: &'static sys::Library,
        kind: EndpointKind,
    ) -> Result<Result<Found, i32>, Error> {
        let mut hints = self.hints(library, kind)?;
        let flags = if self.node.is_some() {
            sys::FI_SOURCE
        } else {
            0
        };
        let node = self.node.as_deref();
        let find = |hints: &Info| Info::find(library, node, None, flags, Some(hints));
        // One-sided operations where there are some; without them, all else works.
        hints.head_mut().caps |= sys::FI_RMA;
        let found = find(&hints).or_else(|_| {
            hints.head_mut().caps &= !sys::FI_RMA;
            find(&hints)
        });
        let usable = found.map(|found| self.usable(found, kind));
        let mut modes = MR_MODES;
        let usable = match usable {
            Ok(Some((_, row))) if row.memory.offset_windows => {
                modes &= !sys::FI_MR_VIRT_ADDR;
                hints.set_provider(row.name)?;
                hints.set_mr_mode(modes);
                find(&hints).and_then(|found| self.usable(found, kind).ok_or(sys::FI_ENODATA))
            }
            Ok(usable) => usable.ok_or(sys::FI_ENODATA),
            Err(errno) => Err(errno),
        };
        let (info, row) = match usable {
            Ok(usable) => usable,
            Err(errno) => return Ok(Err(errno)),
        };
        if let Err(why) = self.asks_for_device_memory(row, library) {
            return Ok(Ok((info, row, Err(why))));
        }
        hints.set_provider(row.name)?;
        hints.set_mr_mode(modes | sys::FI_MR_HMEM);
        hints.head_mut().caps |= sys::FI_HMEM;
        match find(&hints).and_then(|found| self.usable(found, kind).ok_or(sys::FI_ENODATA)) {
            Ok((info, row)) => Ok(Ok((info, row, Ok(())))),
            Err(errno) => {
                let why = self.without_device_memory(row, FabricErrno::new(errno))?;
                Ok(Ok((info, row, Err(why))))
            }
        }
    }

    /// Why a provider takes no device's memory, where it may do without.
    fn without_device_memory(&self, row: &Provider, errno: FabricErrno) -> Result<Arc<str>, Error> {
        if self.settings.device_paths == DevicePaths::RequireDirect {
            return Err(Error::Unsupported {
                provider: row.name.to_owned(),
                need: "does not take a device's memory (FI_HMEM), and direct access is required",
            });
        }
        let name = row.name;
        Ok(format!("{name} does not take a device's memory (FI_HMEM): {errno}").into())
    }

    /// Whether the provider is asked for access to GPU memory, or why not. A library without CUDA
    /// says yes as well, and `shm` moves no memory of the host from process to process in one copy
    /// then, but piece by piece through a third place: so it is not asked where nothing is won.
    fn asks_for_device_memory(
        &self,
        row: &Provider,
        library: &'static sys::Library,
    ) -> Result<(), Arc<str>> {
        let lacks_cuda = || Parameters::of(library).is_some_and(|it| !it.know_cuda());
        match self.settings.device_paths {
            DevicePaths::Off => Err("the fabric was opened with DevicePaths::Off".into()),
            DevicePaths::RequireDirect => Ok(()),
            DevicePaths::Auto if !crate::cuda::may_be_here() => {
                Err("there is no NVIDIA GPU on this machine".into())
            }
            DevicePaths::Auto if row.memory.cuda_ipc && lacks_cuda() => Err(format!(
                "{} moves a device's memory by CUDA, and this libfabric was built without it",
                row.name
            )
            .into()),
            DevicePaths::Auto => Ok(()),
        }
    }

    /// The first that we know and was asked for, at the address that was asked for.
    fn usable(
        &self,
        found: impl IntoIterator<Item = Info>,
        kind: EndpointKind,
    ) -> Option<(Info, &'static Provider)> {
        let known = self.known(found, kind).into_iter();
        let ips = self.node_ips();
        let mut here = known.filter(|(info, _)| is_one_of(info, &ips));
        here.next()
    }

    /// Providers have what was asked for, and at other addresses only: an error that names both.
    fn elsewhere(&self, library: &'static sys::Library) -> Result<Option<Error>, Error> {
        let Some(node) = &self.node else {
            return Ok(None);
        };
        let ips = self.node_ips();
        for &kind in self.kinds() {
            let hints = self.hints(library, kind)?;
            let found = Info::find(library, Some(node), None, sys::FI_SOURCE, Some(&hints));
            let known = self.known(found.unwrap_or_default(), kind);
            let other = known.into_iter().find(|(info, _)| !is_one_of(info, &ips));
            if let Some((info, row)) = other
                && let Some(ip) = ip_of(&info)
            {
                return Ok(Some(Error::Address {
                    address: node.clone(),
                    reason: format!(
                        "provider {} has no such local address, and offers {ip} instead",
                        row.name
                    ),
                }));
            }
        }
        Ok(None)
    }

    /// The addresses of the node; none where any is as good as another, or where it has none, of
    /// which the provider may know more.
    fn node_ips(&self) -> Vec<IpAddr> {
        let ips: Vec<_> = self.node_addrs().iter().map(SocketAddr::ip).collect();
        match ips.iter().any(IpAddr::is_unspecified) {
            true => Vec::new(),
            false => ips,
        }
    }

    fn node_addrs(&self) -> Vec<SocketAddr> {
        let found = self.node.as_deref().map(|node| (node, 0).to_socket_addrs());
        found.into_iter().flatten().flatten().collect()
    }

    /// Those that we know and that were asked for.
    fn known(
        &self,
        found: impl IntoIterator<Item = Info>,
        kind: EndpointKind,
    ) -> Vec<(Info, &'static Provider)> {
        let usable = |info: Info| {
            // tcp ignores the hint, and answers with whatever interfaces there are.
            let is_wanted = |name: &String| info.domain_name() == *name;
            let name = info.provider_name();
            // A provider's name also matches those that are layered on it.
            let is_named = self.provider.iter().all(|wanted| *wanted == name);
            provider(&name)
                .filter(|row| is_named && row.refusal().is_none() && row.endpoints.contains(&kind))
                .filter(|row| self.node.is_none() || row.names.is_none())
                .filter(|_| self.interface.iter().all(is_wanted))
                .map(|row| (info, row))
        };
        found.into_iter().filter_map(usable).collect()
    }

    /// A provider that we know and can't use is refused in words, before libfabric is asked; so is
    /// a kind of endpoint that it never has, and a node where there are none.
    fn refuse_known_unsupported(&self) -> Result<(), Error> {
        let Some(row) = self.provider.as_deref().and_then(provider) else {
            return Ok(());
        };
        let lacks = match self.endpoint_kind {
            Some(kind) if row.endpoints.contains(&kind) => None,
            Some(EndpointKind::Msg) => Some("has no connected endpoints (FI_EP_MSG)"),
            Some(EndpointKind::Rdm) => Some("has connected endpoints (FI_EP_MSG) only"),
            None => None,
        };
        if let Some(need) = row.refusal().or(lacks) {
            return Err(Error::Unsupported {
                provider: row.name.to_owned(),
                need,
            });
        }
        match (&self.node, row.names) {
            (Some(node), Some(_)) => Err(Error::Address {
                address: node.clone(),
                reason: format!(
                    "endpoints of provider {} have names and no addresses: open it without a node",
                    row.name
                ),
            }),
            _ => Ok(()),
        }
    }

    /// Everything that we ask for. The diagnosis asks for the same, one by one.
    fn hints(&self, library: &'static sys::Library, kind: EndpointKind) -> Result<Info, Error> {
        let mut hints = Info::hints(library)?;
        for requirement in requirements(kind) {
            (requirement.set)(&mut hints);
        }
        if let Some(name) = &self.provider {
            hints.set_provider(name)?;
        }
        if let Some(name) = &self.interface {
            hints.set_domain_name(name)?;
        }
        Ok(hints)
    }

    fn diagnose(
        &self,
        library: &'static sys::Library,
        errno: i32,
    ) -> Result<Box<Diagnosis>, Error> {
        Diagnosis::new(
            library,
            self.provider.as_deref(),
            self.node.as_deref(),
            self.interface.as_deref(),
            self.endpoint_kind,
            errno,
        )
        .map(Box::new)
    }
}

fn ip_of(info: &Info) -> Option<IpAddr> {
    let addr = info.source()?.socket_addr()?;
    Some(addr.ip())
}

/// Whether an answer is at one of these addresses; those without an IP address are everywhere.
fn is_one_of(info: &Info, ips: &[IpAddr]) -> bool {
    ips.is_empty() || ip_of(info).is_none_or(|ip| ip.is_unspecified() || ips.contains(&ip))
}

/// One thing that we need of a provider, as a hint.
pub(super) struct Requirement {
    pub(super) what: &'static str,
    pub(super) set: fn(&mut Info),
}

/// What connections over this kind of endpoint need. `FI_THREAD_SAFE`: no call of ours is undefined
/// behaviour in the provider, whatever thread it comes from; every tested provider grants it, on
/// libfabric 1.17 and 2.5, and one that does not is not used. `FI_PROGRESS_MANUAL`: no thread that
/// the user did not start.
pub(super) fn requirements(kind: EndpointKind) -> impl Iterator<Item = &'static Requirement> {
    let of_kind = match kind {
        EndpointKind::Msg => MSG_REQUIREMENTS,
        EndpointKind::Rdm => RDM_REQUIREMENTS,
    };
    of_kind.iter().chain(REQUIREMENTS)
}

const MSG_REQUIREMENTS: &[Requirement] = &[
    MESSAGES,
    Requirement {
        what: "connected endpoints (FI_EP_MSG)",
        set: |hints| hints.set_endpoint_type(sys::FI_EP_MSG),
    },
    // `verbs` has them only for who says that a peer's write may use up a receive (FI_RX_CQ_DATA,
    // fi_getinfo.3).
    Requirement {
        what: "4 bytes of CQ data",
        set: |hints| {
            hints.set_cq_data_size(size_of::<u32>());
            hints.head_mut().mode |= sys::FI_RX_CQ_DATA;
        },
    },
];

const RDM_REQUIREMENTS: &[Requirement] = &[
    MESSAGES,
    Requirement {
        what: "reliable endpoints without connections (FI_EP_RDM)",
        set: |hints| hints.set_endpoint_type(sys::FI_EP_RDM),
    },
    Requirement {
        what: "messages in order (FI_ORDER_SAS)",
        set: Info::set_message_order,
    },
    Requirement {
        what: "4 bytes of CQ data",
        set: |hints| hints.set_cq_data_size(size_of::<u32>()),
    },
];

const MESSAGES: Requirement = Requirement {
    what: "messages (FI_MSG)",
    set: |hints| hints.head_mut().caps = sys::FI_MSG,
};

const REQUIREMENTS: &[Requirement] = &[
    Requirement {
        what: "the registration modes LOCAL, VIRT_ADDR, ALLOCATED, PROV_KEY, ENDPOINT and no other",
        set: |hints| hints.set_mr_mode(MR_MODES),
    },
    Requirement {
        what: "the modes FI_CONTEXT, FI_CONTEXT2 and no other",
        set: |hints| hints.head_mut().mode |= sys::FI_CONTEXT | sys::FI_CONTEXT2,
    },
    Requirement {
        what: "thread safety (FI_THREAD_SAFE)",
        set: |hints| hints.set_threading(sys::FI_THREAD_SAFE),
    },
    Requirement {
        what: "manual progress (FI_PROGRESS_MANUAL)",
        set: |hints| hints.set_progress(sys::FI_PROGRESS_MANUAL),
    },
];
