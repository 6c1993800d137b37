//! Tensors of other libraries (DLPack) as regions: what `__dlpack__` of an array library hands out.
//!
//! The structs are those of `dlpack.h`, versions 0.2 to 1.x.

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::c_void;
use std::mem::{offset_of, size_of};
use std::ptr::NonNull;
use std::sync::Arc;

use super::{MemoryError, Region, RegionKind};

/// `DLDevice`: where a tensor lies.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DlDevice {
    /// A `DLDeviceType`: 1 the host, 2 CUDA, 3 pinned host memory, 13 CUDA's managed memory.
    pub device_type: i32,
    /// The number of the device.
    pub device_id: i32,
}

/// `DLDataType`: what an element is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DlDataType {
    /// Integer, float and so on; not looked at.
    pub code: u8,
    /// Bits of a lane.
    pub bits: u8,
    /// Lanes of an element.
    pub lanes: u16,
}

/// `DLTensor`: a tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DlTensor {
    /// Where its memory is.
    pub data: *mut c_void,
    /// On which device.
    pub device: DlDevice,
    /// How many dimensions.
    pub ndim: i32,
    /// What an element is.
    pub dtype: DlDataType,
    /// Elements of each dimension.
    pub shape: *mut i64,
    /// Elements between neighbours in each dimension; null: one behind the other, the last
    /// dimension first.
    pub strides: *mut i64,
    /// Where in its memory it begins, in bytes.
    pub byte_offset: u64,
}

/// `DLManagedTensor`: a tensor with who frees it; up to version 0.8, and in newer ones for old
/// consumers.
#[repr(C)]
#[derive(Debug)]
pub struct DlManagedTensor {
    /// The tensor.
    pub dl_tensor: DlTensor,
    /// The producer's own.
    pub manager_ctx: *mut c_void,
    /// Frees it all.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// `DLManagedTensorVersioned`: the same since version 1.0.
#[repr(C)]
#[derive(Debug)]
pub struct DlManagedTensorVersioned {
    /// Of the struct: major and minor.
    pub version: [u32; 2],
    /// The producer's own.
    pub manager_ctx: *mut c_void,
    /// Frees it all.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
    /// Bit 0: nobody may write to it.
    pub flags: u64,
    /// The tensor.
    pub dl_tensor: DlTensor,
}

const _: () = assert!(size_of::<DlTensor>() == 48 && offset_of!(DlTensor, shape) == 24);
const _: () = assert!(size_of::<DlManagedTensor>() == 64);
const _: () = assert!(offset_of!(DlManagedTensorVersioned, dl_tensor) == 32);

/// `kDLCPU`, `kDLCUDA`, `kDLCUDAHost`, `kDLCUDAManaged`.
const HOST: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const CUDA_MANAGED: i32 = 13;
/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
const READ_ONLY: u64 = 1;
/// More dimensions than any library has: what is beyond is no tensor.
const DIMENSIONS_MAX: i32 = 64;

/// A tensor that is given back when this is dropped.
struct Managed(NonNull<DlManagedTensor>);

// SAFETY: only its deleter is called, and who made it a region has promised that any thread may do
// that.
unsafe impl Send for Managed {}
// SAFETY: as above; there is nothing to do with a shared one.
unsafe impl Sync for Managed {}

impl Drop for Managed {
    fn drop(&mut self) {
        // SAFETY: owned by this since `Region::from_dlpack`, which was promised a valid one.
        let deleter = unsafe { (*self.0.as_ptr()).deleter };
        if let Some(deleter) = deleter {
            // SAFETY: called once, and nobody uses the tensor any more.
            unsafe { deleter(self.0.as_ptr()) };
        }
    }
}

/// The same for the newer struct.
struct ManagedVersioned(NonNull<DlManagedTensorVersioned>);

// SAFETY: as for `Managed`.
unsafe impl Send for ManagedVersioned {}
// SAFETY: as for `Managed`.
unsafe impl Sync for ManagedVersioned {}

impl Drop for ManagedVersioned {
    fn drop(&mut self) {
        // SAFETY: as for `Managed`.
        let deleter = unsafe { (*self.0.as_ptr()).deleter };
        if let Some(deleter) = deleter {
            // SAFETY: as for `Managed`.
            unsafe { deleter(self.0.as_ptr()) };
        }
    }
}

impl Region {
    /// A region over a tensor of another library, which must lie in one run: of a GPU, pinned
    /// memory, managed memory, or the host's. The region owns it from here on, and calls its
    /// deleter when the last slice, buffer and registration of it are gone. What the deleter gives
    /// back, and whether its allocator unmaps it and how, matters to nobody then (but see
    /// [`external`](Self::external), "Who unmaps the memory", where libfabric's cache is on).
    ///
    /// # Errors
    /// [`MemoryError::Tensor`] for one that is not contiguous, of an unknown kind of device, or not
    /// where it says; else as [`external_device`](Self::external_device) and
    /// [`external`](Self::external). The deleter has been called then.
    ///
    /// # Safety
    /// * `tensor` is a valid `DLManagedTensor`, which the caller owns; its deleter may be called on
    ///   any thread.
    /// * Work that fills it is done, or what is done with the region is ordered behind it.
    /// * In memory of the host: nobody holds a Rust reference to its bytes until the deleter is
    ///   called.
    pub unsafe fn from_dlpack(tensor: *mut DlManagedTensor) -> Result<Arc<Self>, MemoryError> {
        let owned = NonNull::new(tensor).ok_or_else(|| refused("there is none"))?;
        let keep = Box::new(Managed(owned));
        // SAFETY: the caller vouches for it; the struct is copied.
        let inner = unsafe { (*owned.as_ptr()).dl_tensor };
        // SAFETY: as above.
        let place = unsafe { Place::of(&inner) }?;
        // SAFETY: the caller vouches for the memory, which stays until the keep-alive gives the
        // tensor back.
        unsafe { place.into_region(keep) }
    }

    /// The same for the struct of DLPack 1.0 and later.
    ///
    /// # Errors
    /// As [`from_dlpack`](Self::from_dlpack), and [`MemoryError::Tensor`] for a newer major
    /// version, or a tensor that may not be written to.
    ///
    /// # Safety
    /// As [`from_dlpack`](Self::from_dlpack).
    pub unsafe fn from_dlpack_versioned(
        tensor: *mut DlManagedTensorVersioned,
    ) -> Result<Arc<Self>, MemoryError> {
        let owned = NonNull::new(tensor).ok_or_else(|| refused("there is none"))?;
        let keep = Box::new(ManagedVersioned(owned));
        // SAFETY: the caller vouches for it; the version comes first in every one of them.
        let [major, _] = unsafe { (*owned.as_ptr()).version };
        if major != 1 {
            return Err(refused(format!("DLPack {major} is not known here")));
        }
        // SAFETY: as above.
        if unsafe { (*owned.as_ptr()).flags } & READ_ONLY != 0 {
            return Err(refused(
                "nobody may write to it, and a region is written to",
            ));
        }
        // SAFETY: as above.
        let inner = unsafe { (*owned.as_ptr()).dl_tensor };
        // SAFETY: as above.
        let place = unsafe { Place::of(&inner) }?;
        // SAFETY: the caller vouches for the memory, which stays until the keep-alive gives the
        // tensor back.
        unsafe { place.into_region(keep) }
    }
}

/// Where a tensor's bytes are.
struct Place {
    start: NonNull<u8>,
    len: usize,
    device: DlDevice,
}

impl Place {
    /// # Safety
    /// Shape and strides are as long as it has dimensions, or null.
    unsafe fn of(tensor: &DlTensor) -> Result<Self, MemoryError> {
        let dimensions = tensor.ndim;
        if !(0..=DIMENSIONS_MAX).contains(&dimensions) {
            return Err(refused(format!("{dimensions} dimensions")));
        }
        let list = |at: *mut i64| match NonNull::new(at) {
            Some(at) if dimensions > 0 => {
                // SAFETY: the caller vouches for the length.
                Some(unsafe { std::slice::from_raw_parts(at.as_ptr(), dimensions as usize) })
            }
            _ => None,
        };
        let shape = match list(tensor.shape) {
            Some(shape) => shape,
            None if dimensions == 0 => &[],
            None => return Err(refused("it has no shape")),
        };
        let len = contiguous(shape, list(tensor.strides), tensor.dtype)?;
        if len == 0 {
            return Err(MemoryError::Empty);
        }
        let offset = usize::try_from(tensor.byte_offset)
            .map_err(|_| refused("its offset is out of memory"))?;
        // A number or a pointer, as the device says; nothing is reached by it here.
        let start = NonNull::new(tensor.data.cast::<u8>().wrapping_add(offset));
        Ok(Self {
            start: start.ok_or_else(|| refused("it has no memory"))?,
            len,
            device: tensor.device,
        })
    }

    /// # Safety
    /// As [`Region::external`], where it is memory of the host; else as
    /// [`Region::external_device`].
    unsafe fn into_region(
        self,
        keep_alive: Box<dyn Any + Send + Sync>,
    ) -> Result<Arc<Region>, MemoryError> {
        let Self { start, len, device } = self;
        if device.device_type == HOST {
            // SAFETY: the caller vouches for it.
            return unsafe { Region::external(start, len, keep_alive) };
        }
        let asked = device.device_type;
        if ![CUDA, CUDA_HOST, CUDA_MANAGED].contains(&asked) {
            return Err(refused(format!("it lies on a device of type {asked}")));
        }
        let address = start.as_ptr().expose_provenance() as u64;
        // SAFETY: the caller vouches for it.
        let region = unsafe { Region::external_device(address, len, keep_alive) }?;
        let is_there = match region.kind() {
            RegionKind::Device(on) => asked == CUDA && on.ordinal() as i32 == device.device_id,
            RegionKind::Managed(_) => asked == CUDA_MANAGED,
            RegionKind::PinnedHost => asked == CUDA_HOST,
            RegionKind::Host | RegionKind::External => false,
        };
        if is_there {
            return Ok(region);
        }
        let DlDevice { device_id, .. } = device;
        let kind = region.kind();
        let reason = format!("it says type {asked}, device {device_id}, and is {kind}");
        Err(refused(reason))
    }
}

/// How many bytes, if they lie in one run.
fn contiguous(
    shape: &[i64],
    strides: Option<&[i64]>,
    dtype: DlDataType,
) -> Result<usize, MemoryError> {
    let too_large = || MemoryError::TooLarge {
        asked_bytes: usize::MAX,
    };
    let mut elements = 1_usize;
    for dimension in (0..shape.len()).rev() {
        let size = usize::try_from(shape[dimension])
            .map_err(|_| refused(format!("a dimension of {}", shape[dimension])))?;
        // Where there is one element at most, its stride says nothing.
        let stride = strides
            .map(|strides| strides[dimension])
            .filter(|_| size > 1);
        if stride.is_some_and(|stride| usize::try_from(stride) != Ok(elements)) {
            return Err(refused(
                "it does not lie in one run: copy it to one that does",
            ));
        }
        elements = elements.checked_mul(size).ok_or_else(too_large)?;
    }
    let bits = usize::from(dtype.bits) * usize::from(dtype.lanes);
    let bits = elements.checked_mul(bits).ok_or_else(too_large)?;
    Ok(bits.div_ceil(8))
}

fn refused(reason: impl Into<String>) -> MemoryError {
    MemoryError::Tensor {
        reason: reason.into(),
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/dlpack.rs"]
mod tests;
