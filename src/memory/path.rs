//! `Path`: which way the bytes of a region go.

use std::fmt;
use std::sync::Arc;

/// How a provider reaches a device's memory by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DirectBy {
    /// We export the memory as a dmabuf, and register that (`FI_MR_DMABUF`).
    DmaBuf,
    /// The provider is told that the memory is CUDA's, and finds its own way (`FI_HMEM_CUDA`).
    Interface,
}

impl fmt::Display for DirectBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DmaBuf => "as a dmabuf",
            Self::Interface => "by the provider's CUDA interface",
        })
    }
}

/// Which way the bytes of a region go between it and a domain's network. From
/// [`Region::path`](crate::Region::path).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Path {
    /// Memory of the host, as it lies there.
    Host,
    /// Memory of a device, which the provider reaches by itself.
    Direct(DirectBy),
    /// Memory of a device, copied through pinned memory of the host; why, in words.
    Staged(Arc<str>),
}

impl Path {
    /// Whether the bytes are copied through memory of the host.
    pub fn is_staged(&self) -> bool {
        matches!(self, Self::Staged(_))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host memory"),
            Self::Direct(by) => write!(f, "direct, {by}"),
            Self::Staged(why) => write!(f, "staged through the host: {why}"),
        }
    }
}

/// What a fabric does with GPU memory; from
/// [`FabricBuilder::device_memory`](crate::fabric::FabricBuilder::device_memory).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DevicePaths {
    /// It is always staged; the provider is not asked.
    Off,
    /// Direct where the provider offers it on a machine with a GPU and a registration works, else
    /// staged; [`Path`] says which and why.
    #[default]
    Auto,
    /// Direct, or an error: the provider must offer it, and a registration that fails is an error
    /// of `register`.
    RequireDirect,
}
