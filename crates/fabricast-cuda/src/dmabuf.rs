//! `DmaBuf`: a device's memory as a descriptor that network cards' drivers take.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_ulonglong};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use super::driver::Cuda;
use super::error::{CudaCode, CudaError, check};

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF_FD: c_int = 1;
/// `CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE`: reached over the PCI bus, where there is another
/// way, too.
const OVER_PCIE: c_ulonglong = 1;

/// A range of a device's memory, exported (`cuMemGetHandleForAddressRange`): whole pages around
/// what was asked for.
#[derive(Debug)]
pub struct DmaBuf {
    fd: OwnedFd,
    base: u64,
    offset: usize,
    len: usize,
    over_pcie: bool,
}

impl DmaBuf {
    /// Exports the pages of the host's size that `len` bytes from `address` on lie in; as memory
    /// that is reached over the PCI bus, or, where the driver does not know that flag, without it.
    ///
    /// The descriptor is closed when this is dropped; whoever imported it by then has a reference
    /// of its own.
    ///
    /// # Errors
    /// [`CudaError`]: no driver, an old one, or memory that it does not export.
    pub fn export(address: u64, len: usize) -> Result<Self, CudaError> {
        let cuda = Cuda::ready()?;
        let function = "cuMemGetHandleForAddressRange";
        let export = cuda.handle_for_range.ok_or(CudaError::Lacks { function })?;
        let page = rustix::param::page_size() as u64;
        let base = address - address % page;
        let offset = (address - base) as usize;
        let whole = offset
            .checked_add(len)
            .and_then(|len| len.checked_next_multiple_of(page as usize));
        let invalid = || CudaError::call(function, CudaCode::INVALID_VALUE.0);
        let whole = whole.ok_or_else(invalid)?;
        let _current = cuda.enter_at(address)?;
        let ask = |flags| {
            let mut fd: c_int = -1;
            // SAFETY: writes one descriptor, which is ours; what is no memory of a device is
            // refused.
            let code = unsafe { export((&raw mut fd).cast(), base, whole, DMA_BUF_FD, flags) };
            check(function, code).map(|()| fd)
        };
        let (fd, over_pcie) = match ask(OVER_PCIE) {
            Ok(fd) => (fd, true),
            Err(error) if is_about_the_flag(&error) => (ask(0)?, false),
            Err(error) => return Err(error),
        };
        if fd < 0 {
            return Err(invalid());
        }
        // SAFETY: just made for us, and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self {
            fd,
            base,
            offset,
            len: whole,
            over_pcie,
        })
    }

    /// Where the exported pages begin.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Where in the exported pages the first byte is that was asked for.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The length of the exported pages in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: what has no bytes is not exported.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the driver was told that it will be reached over the PCI bus.
    pub fn is_over_pcie(&self) -> bool {
        self.over_pcie
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A driver before CUDA 12.8, or a device with no such way.
fn is_about_the_flag(error: &CudaError) -> bool {
    matches!(
        error.code(),
        Some(CudaCode::INVALID_VALUE | CudaCode::NOT_SUPPORTED)
    )
}
