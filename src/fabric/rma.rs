//! What a provider offers for one-sided operations (`fi_rma.3`).

use libfabric_sys as sys;

use super::info::Info;

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
}

impl RmaLimits {
    /// `None` where the provider has no one-sided operations.
    pub(crate) fn of(info: &Info) -> Option<Self> {
        let needed = sys::FI_RMA;
        if info.caps() & needed != needed {
            return None;
        }
        let (tx, domain) = (info.tx(), info.domain());
        Some(Self {
            iov_limit: tx.iov_limit,
            max_bytes: info.max_message(),
            immediate_bytes: domain.cq_data_size,
            virtual_addresses: domain.mr_mode & sys::FI_MR_VIRT_ADDR != 0,
            key_bytes: domain.mr_key_size,
        })
    }
}
