//! What a provider offers for one-sided operations (`fi_rma.3`).

use libfabric_sys as sys;

use super::info::Info;
use super::provider::{AccessEnds, EndpointKind, Provider};

/// The limits of one-sided operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RmaLimits {
    /// Local segments of one operation.
    pub(crate) iov_limit: usize,
    /// Bytes of one operation.
    pub(crate) max_bytes: u64,
    /// Bytes of the immediate data that a write can carry.
    pub(crate) immediate_bytes: usize,
    /// A window is addressed by its virtual address (FI_MR_VIRT_ADDR), else from 0.
    pub(crate) virtual_addresses: bool,
    /// Bytes of a key.
    pub(crate) key_bytes: usize,
    /// No message overtakes a write, as on a connected endpoint. Elsewhere every write is
    /// confirmed: who answers a revocation must know that its writes are over, not only that they
    /// left.
    pub(crate) ordered: bool,
    /// The column `ProviderMemory::reads_outlive_close`.
    pub(crate) reads_outlive_close: bool,
    /// The column `ProviderMemory::holds_registrations`.
    pub(crate) holds_registrations: bool,
    /// The column [`Provider::access_ends`].
    pub(crate) access_ends: AccessEnds,
}

impl RmaLimits {
    /// `None` where the provider has no one-sided operations.
    pub(crate) fn of(info: &Info, row: &Provider, kind: EndpointKind) -> Option<Self> {
        if info.caps() & sys::FI_RMA == 0 {
            return None;
        }
        let (tx, domain) = (info.tx(), info.domain());
        // One without key would let everybody reach everything.
        if row.memory.offset_windows && domain.mr_mode & sys::FI_MR_VIRT_ADDR != 0 {
            return None;
        }
        Some(Self {
            iov_limit: tx.iov_limit,
            max_bytes: info.max_message(),
            immediate_bytes: domain.cq_data_size,
            virtual_addresses: domain.mr_mode & sys::FI_MR_VIRT_ADDR != 0,
            key_bytes: domain.mr_key_size,
            ordered: kind == EndpointKind::Msg,
            reads_outlive_close: row.memory.reads_outlive_close,
            holds_registrations: row.memory.holds_registrations,
            access_ends: row.access_ends(kind),
        })
    }
}
