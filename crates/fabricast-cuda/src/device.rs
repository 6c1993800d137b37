//! `Device`: one GPU that this process sees.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::fs;

use super::driver::Cuda;
use super::error::{CudaError, check};

/// `CUdevice_attribute`.
mod attribute {
    use std::ffi::c_int;

    pub(super) const CAN_FLUSH_REMOTE_WRITES: c_int = 98;
    pub(super) const VIRTUAL_MEMORY: c_int = 102;
    pub(super) const GPU_DIRECT_RDMA_WITH_VIRTUAL_MEMORY: c_int = 110;
    pub(super) const GPU_DIRECT_RDMA: c_int = 116;
    pub(super) const FLUSH_WRITES_OPTIONS: c_int = 117;
    pub(super) const WRITES_ORDERING: c_int = 118;
    pub(super) const DMA_BUF: c_int = 124;
}

const FLUSH: &str = "cuFlushGPUDirectRDMAWrites";
type FlushWrites = unsafe extern "C" fn(c_int, c_int) -> c_int;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST`.
const FLUSH_BY_HOST: c_int = 1;
/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX`.
const FLUSH_CURRENT_CONTEXT: c_int = 0;
/// Who sees what was written: `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER`, and `..._TO_ALL_DEVICES`.
/// The levels of `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_...` have the same numbers.
const READERS_OWNER: c_int = 100;
const READERS_ALL_DEVICES: c_int = 200;

/// A GPU, by its number in this process: what `CUDA_VISIBLE_DEVICES` leaves, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device(u32);

/// What a device can do for network cards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceFeatures {
    /// Its memory can be exported as a dmabuf (`DMA_BUF_SUPPORTED`).
    pub dma_buf: bool,
    /// Network cards can reach its memory (`GPU_DIRECT_RDMA_SUPPORTED`).
    pub gpu_direct_rdma: bool,
    /// CUDA virtual memory, too (`GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`).
    pub gpu_direct_rdma_with_virtual_memory: bool,
    /// It has CUDA virtual memory (`VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`).
    pub virtual_memory: bool,
    /// What a network card wrote can be made visible by a call on the host
    /// (`cuFlushGPUDirectRDMAWrites`).
    pub flush_by_host: bool,
    /// What a network card wrote is visible to work that is given to the device afterwards, without
    /// a flush.
    pub writes_are_ordered: bool,
    /// Streams can wait for remote writes (`CAN_FLUSH_REMOTE_WRITES`).
    pub flush_by_stream: bool,
}

impl Device {
    /// All devices that this process sees; at least one.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`], which says in words what is missing: no driver, no device.
    pub fn all() -> Result<Vec<Self>, CudaError> {
        Ok((0..count()?).map(Self).collect())
    }

    /// The device of that number.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`]; [`CudaError::NoSuchDevice`].
    pub fn new(ordinal: u32) -> Result<Self, CudaError> {
        let count = count()?;
        if ordinal >= count {
            return Err(CudaError::NoSuchDevice { ordinal, count });
        }
        Ok(Self(ordinal))
    }

    /// Its number.
    pub fn ordinal(self) -> u32 {
        self.0
    }

    /// Its name, as the driver has it (`cuDeviceGetName`).
    ///
    /// # Errors
    /// What the driver answers.
    pub fn name(self) -> Result<String, CudaError> {
        let cuda = Cuda::ready()?;
        let ask = cuda.devices()?.name;
        self.text("cuDeviceGetName", ask)
    }

    /// Its place on the PCI bus, as `0000:c3:00.0` (`cuDeviceGetPCIBusId`).
    ///
    /// # Errors
    /// What the driver answers.
    pub fn pci_bus_id(self) -> Result<String, CudaError> {
        let cuda = Cuda::ready()?;
        let ask = cuda.devices()?.pci_bus_id;
        self.text("cuDeviceGetPCIBusId", ask)
            .map(|id| id.to_lowercase())
    }

    /// The NUMA node of the host that it is next to; `None` where the machine has one only, or does
    /// not say.
    pub fn numa_node(self) -> Option<u32> {
        let id = self.pci_bus_id().ok()?;
        let node = fs::read_to_string(format!("/sys/bus/pci/devices/{id}/numa_node")).ok()?;
        // -1 is "not known".
        node.trim().parse().ok()
    }

    /// Its memory in bytes.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn total_memory(self) -> Result<usize, CudaError> {
        let cuda = Cuda::ready()?;
        let mut bytes = 0;
        let ask = cuda.devices()?.total_memory;
        // SAFETY: writes one number, which is ours.
        let code = unsafe { ask(&raw mut bytes, cuda.device(self.0)?) };
        check("cuDeviceTotalMem", code).map(|()| bytes)
    }

    /// What it can do for network cards. What an older driver can't be asked, it can't.
    ///
    /// # Errors
    /// [`CudaError::Unavailable`], or what the driver answers when it is asked for the device.
    pub fn features(self) -> Result<DeviceFeatures, CudaError> {
        let cuda = Cuda::ready()?;
        let attribute = |attribute| self.attribute(cuda, attribute);
        Ok(DeviceFeatures {
            dma_buf: attribute(attribute::DMA_BUF)? != 0,
            gpu_direct_rdma: attribute(attribute::GPU_DIRECT_RDMA)? != 0,
            gpu_direct_rdma_with_virtual_memory: attribute(
                attribute::GPU_DIRECT_RDMA_WITH_VIRTUAL_MEMORY,
            )? != 0,
            virtual_memory: attribute(attribute::VIRTUAL_MEMORY)? != 0,
            flush_by_host: attribute(attribute::FLUSH_WRITES_OPTIONS)? & FLUSH_BY_HOST != 0,
            writes_are_ordered: attribute(attribute::WRITES_ORDERING)? >= READERS_OWNER,
            flush_by_stream: attribute(attribute::CAN_FLUSH_REMOTE_WRITES)? != 0,
        })
    }

    /// Makes what network cards have written to its memory visible to work that is given afterwards
    /// to it, and, where this process sees several devices, to all of them
    /// (`cuFlushGPUDirectRDMAWrites`). Nothing, where the device orders such writes by itself.
    ///
    /// # Errors
    /// [`CudaError::Lacks`] where neither is so; what the driver answers.
    pub fn flush_writes(self) -> Result<(), CudaError> {
        let cuda = Cuda::ready()?;
        let Some((flush, readers)) = self.flush(cuda)? else {
            return Ok(());
        };
        let _current = cuda.enter_device(self.0)?;
        // SAFETY: takes no memory; the context of the device is current.
        let code = unsafe { flush(FLUSH_CURRENT_CONTEXT, readers) };
        check(FLUSH, code)
    }

    /// Before anybody is told of what a peer wrote, or was read from one, by the provider itself.
    ///
    /// # Errors
    /// What the driver answers; [`CudaError::Lacks`] where it has no such function.
    pub fn see_writes(self) -> Result<(), CudaError> {
        match self.flush_writes() {
            // Where that can't be, only what CUDA itself moves goes directly
            // (`fabric/device_memory.rs`).
            Err(CudaError::Lacks { .. }) => Ok(()),
            flushed => flushed,
        }
    }

    /// Whether what a network card wrote can be made visible, or is.
    ///
    /// # Errors
    /// As [`flush_writes`](Self::flush_writes), which this does not do.
    pub fn can_flush_writes(self) -> Result<(), CudaError> {
        self.flush(Cuda::ready()?).map(drop)
    }

    /// What flushes, and for whom; `None` where nothing has to.
    fn flush(self, cuda: &Cuda) -> Result<Option<(FlushWrites, c_int)>, CudaError> {
        let readers = match count()? {
            1 => READERS_OWNER,
            _ => READERS_ALL_DEVICES,
        };
        if self.attribute(cuda, attribute::WRITES_ORDERING)? >= readers {
            return Ok(None);
        }
        let by_host = self.attribute(cuda, attribute::FLUSH_WRITES_OPTIONS)? & FLUSH_BY_HOST != 0;
        let flush = cuda.flush_writes.filter(|_| by_host);
        let flush = flush.ok_or(CudaError::Lacks { function: FLUSH })?;
        Ok(Some((flush, readers)))
    }

    /// 0 where the driver does not know the attribute.
    fn attribute(self, cuda: &Cuda, attribute: c_int) -> Result<c_int, CudaError> {
        let device = cuda.device(self.0)?;
        let ask = cuda.devices()?.attribute;
        let mut value: c_int = 0;
        // SAFETY: writes one number, which is ours; any attribute may be asked for.
        let code = unsafe { ask(&raw mut value, attribute, device) };
        Ok(if code == 0 { value } else { 0 })
    }

    fn text(
        self,
        call: &'static str,
        ask: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int,
    ) -> Result<String, CudaError> {
        let mut text: [c_char; 256] = [0; 256];
        let device = Cuda::ready()?.device(self.0)?;
        // SAFETY: writes at most as many bytes as it is told, one less than there are.
        let code = unsafe { ask(text.as_mut_ptr(), text.len() as c_int - 1, device) };
        check(call, code)?;
        // SAFETY: the last byte was never written, so it ends there at the latest.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        Ok(text.to_string_lossy().into_owned())
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CUDA device {}", self.0)
    }
}

fn count() -> Result<u32, CudaError> {
    let cuda = Cuda::ready()?;
    let mut count = 0;
    // SAFETY: writes one number, which is ours.
    let code = unsafe { (cuda.basic.device_get_count)(&raw mut count) };
    check("cuDeviceGetCount", code)?;
    Ok(u32::try_from(count).unwrap_or_default())
}
