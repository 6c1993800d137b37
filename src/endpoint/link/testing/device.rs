//! A device's memory on the fake link: registered by what `fi_mr_regattr` is told, which is looked
//! at byte by byte, and moved by the device, as a network card would. The processor can't touch it
//! (`tests/common/fake_cuda.c`).

use std::any::Any;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;

use libfabric_sys as sys;

use super::{FakeMemory, Ledger, Mr, Net, OpenMr, State, lock};
use crate::cuda::{Device, DeviceAllocation, Stream};
use crate::error::{FabricErrno, RegisterError};
use crate::fabric::{DeviceRegistrar, Terms};
use crate::memory::{Access, DeviceRange, DirectBy, RawRegistration};

/// What the net does with a device's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceSupport {
    pub(crate) terms: Terms,
    /// It takes dmabufs.
    pub(crate) dma_buf: bool,
    /// It has CUDA of its own.
    pub(crate) interface: bool,
    /// A transfer that tries it works.
    pub(crate) proves: bool,
}

impl Default for DeviceSupport {
    fn default() -> Self {
        Self {
            terms: Terms {
                negotiated: sys::fi_version_make(1, 20),
                required: false,
                cuda_ipc: false,
                offset_windows: false,
            },
            dma_buf: true,
            interface: true,
            proves: true,
        }
    }
}

/// What `fi_mr_regattr` was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) by: DirectBy,
    /// Of the dmabuf.
    pub(crate) fd: RawFd,
    /// Of the dmabuf, else of the segment.
    pub(crate) base: u64,
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) flags: u64,
    pub(crate) device: u32,
    pub(crate) rights: Option<Access>,
    pub(crate) taken: bool,
}

impl Offer {
    /// # Safety
    /// `attr` is as `fi_mr_regattr` wants it.
    unsafe fn read(attr: &sys::fi_mr_attr, flags: u64, rights: Option<Access>) -> Self {
        assert_eq!(attr.iface, sys::FI_HMEM_CUDA);
        assert_eq!(attr.iov_count, 1);
        assert!(attr.context.is_null() && attr.offset == 0 && attr.auth_key.is_null());
        // SAFETY: the interface says which of the numbers it is.
        let device = unsafe { attr.device.cuda } as u32;
        let offer = Self {
            by: DirectBy::Interface,
            fd: -1,
            base: 0,
            offset: 0,
            len: 0,
            flags,
            device,
            rights,
            taken: false,
        };
        if flags & sys::FI_MR_DMABUF == 0 {
            // SAFETY: without the flag it is a segment.
            let segment = unsafe { attr.memory.mr_iov }.cast::<libc::iovec>();
            // SAFETY: there is one.
            let segment = unsafe { *segment };
            return Self {
                base: segment.iov_base.addr() as u64,
                len: segment.iov_len,
                ..offer
            };
        }
        // SAFETY: with the flag it is a dmabuf.
        let range = unsafe { attr.memory.dmabuf };
        // SAFETY: it stays for the time of the call.
        let range = unsafe { *range };
        Self {
            by: DirectBy::DmaBuf,
            fd: range.fd,
            base: range.base_addr.addr() as u64,
            offset: range.offset,
            len: range.len,
            ..offer
        }
    }

    /// Where the memory begins that is registered.
    fn address(&self) -> u64 {
        self.base + self.offset
    }

    /// What a network card finds there by the descriptor.
    fn by_descriptor(&self) -> Vec<u8> {
        // SAFETY: the descriptor is open for the time of the call, and stays so: this never closes
        // it.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(self.fd) });
        let mut bytes = vec![0; self.len];
        file.read_exact_at(&mut bytes, self.offset)
            .expect("inside of the dmabuf");
        bytes
    }
}

impl DeviceRegistrar for FakeMemory {
    fn terms(&self) -> Terms {
        self.device.unwrap_or_default().terms
    }

    fn scope_kept(&self) -> Box<dyn Any + Send + Sync> {
        Box::new(Arc::clone(&self.guard))
    }

    fn prove(&self, _: &DeviceRange, _: DeviceAllocation, _: DirectBy) -> Result<(), String> {
        match self.device.is_some_and(|support| support.proves) {
            true => Ok(()),
            false => Err("its bytes are not there".to_owned()),
        }
    }

    unsafe fn register_attr(
        &self,
        attr: sys::fi_mr_attr,
        flags: u64,
        rights: Option<Access>,
        len: usize,
    ) -> Result<RawRegistration, RegisterError> {
        // SAFETY: the caller says so.
        let mut offer = unsafe { Offer::read(&attr, flags, rights) };
        assert_eq!(offer.len, len);
        let device = Device::new(offer.device).expect("a device of this process");
        if offer.by == DirectBy::DmaBuf {
            assert_eq!(offer.base % 4096, 0, "fi_mr(3): page-aligned");
            let there = read_device(device, offer.address(), len);
            assert!(offer.by_descriptor() == there, "another place: {offer:?}");
        }
        let support = self.device.expect("only asked where there is any");
        offer.taken = match offer.by {
            DirectBy::DmaBuf => support.dma_buf,
            DirectBy::Interface => support.interface,
        };
        let mut ledger = lock(&self.ledger);
        ledger.offers.push(offer);
        if !offer.taken {
            return Err(RegisterError::Fabric {
                call: "fi_mr_regattr",
                errno: FabricErrno::new(libc::EOPNOTSUPP),
            });
        }
        Ok(self.open_device(&mut ledger, &offer))
    }
}

impl FakeMemory {
    fn open_device(&self, ledger: &mut Ledger, offer: &Offer) -> RawRegistration {
        ledger.next_mr += 1;
        let id = ledger.next_mr;
        let mr = Mr {
            registrar: self.id,
            base: offer.address() as usize,
            len: offer.len,
            access: offer.rights.unwrap_or(Access::empty()),
        };
        ledger.mrs.insert(id, mr);
        let open = OpenDevice {
            fd: offer.fd,
            _open: OpenMr {
                id,
                ledger: Arc::clone(&self.ledger),
                _guard: Arc::clone(&self.guard),
            },
        };
        let desc = std::ptr::without_provenance_mut(id);
        RawRegistration::new(desc, id as u64, Box::new(open))
    }
}

/// Uses its descriptor to the last.
struct OpenDevice {
    fd: RawFd,
    _open: OpenMr,
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        assert!(
            self.fd < 0 || is_open(self.fd),
            "the descriptor was closed before the registration"
        );
    }
}

/// Whether a descriptor is open in this process.
pub(crate) fn is_open(fd: RawFd) -> bool {
    // SAFETY: asks for flags, and changes nothing.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

fn read_device(device: Device, address: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let stream = Stream::new(device).expect("a stream");
    // SAFETY: the bytes are ours until the stream was waited for; the caller says that the device's
    // are there.
    unsafe { stream.copy_to_host(NonNull::from(bytes.as_mut_slice()).cast(), address, len) }
        .expect("copied");
    stream.synchronize().expect("copied");
    bytes
}

impl Ledger {
    /// The device that has something at that address.
    fn device_at(&self, address: usize) -> Option<Device> {
        let here = |offer: &&Offer| {
            let base = offer.address() as usize;
            offer.taken && (base..base + offer.len).contains(&address)
        };
        let offer = self.offers.iter().find(here)?;
        Some(Device::new(offer.device).expect("it was there before"))
    }
}

impl State {
    /// Whether that is a device's memory.
    pub(super) fn is_device(&self, address: usize) -> bool {
        lock(&self.ledger).device_at(address).is_some()
    }

    /// Reads memory as a network card does, the host's or a device's.
    ///
    /// # Safety
    /// It is there.
    pub(super) unsafe fn load(&self, address: usize, len: usize) -> Vec<u8> {
        let device = lock(&self.ledger).device_at(address);
        if let Some(device) = device {
            return read_device(device, address as u64, len);
        }
        let from = std::ptr::with_exposed_provenance::<u8>(address);
        // SAFETY: the caller says so.
        unsafe { std::slice::from_raw_parts(from, len) }.to_vec()
    }

    /// Writes memory as a network card does.
    ///
    /// # Safety
    /// As [`load`](Self::load).
    pub(super) unsafe fn store(&self, address: usize, bytes: &[u8]) {
        let device = lock(&self.ledger).device_at(address);
        let Some(device) = device else {
            let to = std::ptr::with_exposed_provenance_mut::<u8>(address);
            // SAFETY: the caller says so; what was loaded is nobody else's.
            return unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        };
        if bytes.is_empty() {
            return;
        }
        let stream = Stream::new(device).expect("a stream");
        let from = NonNull::from(bytes).cast();
        // SAFETY: the bytes stay until the stream was waited for; the caller says that the device's
        // are there.
        unsafe { stream.copy_to_device(address as u64, from, bytes.len()) }.expect("copied");
        stream.synchronize().expect("copied");
    }
}

impl Net {
    /// What providers were told of a device's memory so far.
    pub(crate) fn offers(&self) -> Vec<Offer> {
        lock(&self.ledger).offers.clone()
    }
}
