//! `Region`: one run of memory that can be registered, and who uses it for what.

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use super::MemoryError;
use super::device::{Allocated, Pin, RegionKind};
use super::host::{HostMapping, HostRegionBuilder, Pages};
use super::path::Path;
use super::registration::{RawRegistration, Registrar, RegistrationTable, Scope};
use crate::cuda::DeviceAllocation;
use crate::mapping;
use crate::memory::RegisterError;
use crate::metrics::registry::{Watch, WatchedPlace};
use crate::metrics::{RegionStats, WatchedKind, WatchedStats};
use crate::process::Here;

/// What a region is used for; see the [module's text](crate::memory) for which uses exclude which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum Purpose {
    /// The slots of a [`SharedBufferManager`](crate::buffer::SharedBufferManager).
    Buffers = 1,
    /// The slots of a [`HeaderSlotManager`](crate::buffer::HeaderSlotManager).
    HeaderSlots = 2,
    /// A [`RingRegion`](crate::buffer::RingRegion) over host memory.
    Ring = 3,
    /// [`RegionSlice`](crate::buffer::RegionSlice)s, and rings over external memory: any number of
    /// them.
    Slices = 4,
}

const UNCLAIMED: u8 = 0;

impl Purpose {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Buffers, Self::HeaderSlots, Self::Ring, Self::Slices]
            .into_iter()
            .find(|purpose| *purpose as u8 == byte)
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Buffers => "shared buffers",
            Self::HeaderSlots => "header slots",
            Self::Ring => "a ring",
            Self::Slices => "slices",
        })
    }
}

/// Who owns the bytes.
pub(super) enum Memory {
    Host {
        /// Of pinned memory; it goes before the mapping does (field order).
        #[expect(dead_code, reason = "held for its drop")]
        pin: Option<Pin>,
        mapping: HostMapping,
    },
    /// Memory of a device, ours.
    Device(#[expect(dead_code, reason = "held for its drop")] Allocated),
    /// Only kept: dropping it is the owner's business.
    External(#[expect(dead_code, reason = "held for its drop")] Box<dyn Any + Send + Sync>),
}

/// A run of memory that can be registered with any number of domains while it is in use.
///
/// Always held in an [`Arc`]: buffers, slices and operations in flight hold it too, so the memory
/// is unmapped (or its keep-alive dropped) when the last of them is gone, after the last
/// registration was closed. It gives no safe access to its bytes.
pub struct Region {
    /// In front: it reads the rest until it is gone.
    watched: OnceLock<WatchedPlace>,
    // Field order is drop order: registrations close before the memory goes.
    registrations: RegistrationTable,
    base: NonNull<u8>,
    len: usize,
    pub(super) kind: RegionKind,
    /// How memory of a device was allocated.
    pub(super) allocation: Option<DeviceAllocation>,
    purpose: AtomicU8,
    /// Not given back by a child: a keep-alive may tell a device.
    memory: Here<Memory>,
}

// SAFETY: `base` is only handed out as an address here; who turns it into references holds a claim
// (`Purpose`) that keeps others out.
unsafe impl Send for Region {}
// SAFETY: as above; the table and the claim are made of atomics and a mutex.
unsafe impl Sync for Region {}

impl Region {
    /// Starts to describe `len` bytes of host memory of our own, zeroed, with pages behind it.
    pub fn host(len: usize) -> HostRegionBuilder {
        HostRegionBuilder::new(len)
    }

    pub(super) fn new(
        base: NonNull<u8>,
        len: usize,
        kind: RegionKind,
        allocation: Option<DeviceAllocation>,
        memory: Memory,
    ) -> Arc<Self> {
        let region = Arc::new(Self {
            watched: OnceLock::new(),
            registrations: RegistrationTable::new(),
            base,
            len,
            kind,
            allocation,
            purpose: AtomicU8::new(UNCLAIMED),
            memory: Here::new(memory),
        });
        let at: NonNull<dyn Watch> = NonNull::from(&*region);
        // SAFETY: it lies in the `Arc` and is only ever shared; its place is its first field, and
        // is dropped before the others.
        let place = unsafe { WatchedPlace::lying(WatchedKind::Region, None, at) };
        let _ = region.watched.set(place);
        region
    }

    /// What the region is called in [`metrics`](crate::metrics), where regions that are called the
    /// same are one series. Until then it is called `region` with a number.
    pub fn set_name(&self, name: &str) {
        if let Some(place) = self.watched.get() {
            place.rename(name);
        }
    }

    pub(super) fn from_mapping(mapping: HostMapping, pin: Option<Pin>, len: usize) -> Arc<Self> {
        let kind = match pin {
            Some(_) => RegionKind::PinnedHost,
            None => RegionKind::Host,
        };
        let base = mapping.base();
        Self::new(base, len, kind, None, Memory::Host { pin, mapping })
    }

    /// A region over memory that a DMA engine, a driver or another library owns.
    ///
    /// `keep_alive` is dropped when the region and everything made from it is gone and
    /// deregistered; give it whatever unmaps the memory. What lies there is sent by
    /// [`slice`](Self::slice), or, where the engine writes round and round, by a
    /// [`RingRegion`](crate::buffer::RingRegion): its reservations say by
    /// [`ranges`](crate::buffer::Reservation::ranges) where the engine is to write, and its
    /// fragments are sent.
    ///
    /// ```
    /// use std::ptr::NonNull;
    /// use std::time::{Duration, Instant};
    /// use fabricast::buffer::{HeaderSlotConfig, ZeroCopyBufferManager};
    /// use fabricast::endpoint::{ReceiveConfig, SendConfig};
    /// use fabricast::{ConnectionEvent, Fabric, ReceiveEndpoint, ReceiveEvent, Region};
    /// use fabricast::SendEndpointZeroCopy;
    ///
    /// /// What a card's driver gives: memory that it maps, writes to, and unmaps in `drop`.
    /// struct Card(NonNull<u8>);
    /// # impl Card {
    /// #     fn map() -> Self {
    /// #         Self(NonNull::from(Box::leak(Box::new([7u8; 8192]))).cast())
    /// #     }
    /// # }
    /// # impl Drop for Card {
    /// #     fn drop(&mut self) {
    /// #         drop(unsafe { Box::from_raw(self.0.cast::<[u8; 8192]>().as_ptr()) });
    /// #     }
    /// # }
    /// // SAFETY: whoever has it only unmaps it.
    /// unsafe impl Send for Card {}
    /// unsafe impl Sync for Card {}
    ///
    /// let card = Card::map();
    /// // SAFETY: 8 KiB are mapped until the card is dropped, and nobody here has a reference to
    /// // them.
    /// let region = unsafe { Region::external(card.0, 8192, Box::new(card)) }?;
    ///
    /// let domain = Fabric::builder().provider("tcp").node("127.0.0.1").open()?.open_domain()?;
    /// let mut receiver =
    ///     ReceiveEndpoint::listen(&domain, "127.0.0.1:0".parse()?, ReceiveConfig::default())?;
    /// # let address = receiver.local_addr();
    /// # let receiving = std::thread::spawn(move || -> Result<Vec<u8>, fabricast::Error> {
    /// #     let (mut events, mut got) = (Vec::new(), Vec::new());
    /// #     loop {
    /// #         receiver.poll(&mut events)?;
    /// #         for event in events.drain(..) {
    /// #             match event {
    /// #                 ReceiveEvent::Message(m) => got = m.payload().to_vec(),
    /// #                 ReceiveEvent::Connection(_, event) => match event {
    /// #                     ConnectionEvent::Disconnected(_) => return Ok(got),
    /// #                     _ => {}
    /// #                 },
    /// #                 _ => {}
    /// #             }
    /// #         }
    /// #         receiver.wait(Duration::from_millis(100))?;
    /// #     }
    /// # });
    /// // The endpoint registers the memory.
    /// let buffers = ZeroCopyBufferManager::new(region.clone(), HeaderSlotConfig::default())?;
    /// let config = SendConfig::default().outgoing(|out| out.headers(&buffers));
    /// let mut sender = SendEndpointZeroCopy::connect(&domain, address, config)?;
    /// sender.wait_connected()?;
    /// // The card has written 1,000 bytes at 4,096.
    /// sender.send_data(region.slice(4096..5096)?, b"event 7", 42)?;
    /// sender.close(Instant::now() + Duration::from_secs(5))?;
    /// # assert_eq!(receiving.join().unwrap()?, [7; 1000]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Who unmaps the memory, and how
    ///
    /// `keep_alive` alone, in its `drop`. It runs behind the end of the last registration, which
    /// takes the pages from the card: so how it unmaps, by munmap(2) of libc or by a bare system
    /// call, does not matter. It does where the process has libfabric's cache of registrations
    /// switched on ([`RegistrationCache`](crate::fabric::RegistrationCache); it is off without a
    /// setting). That one keeps a registration beyond its end, and hears of what libc's `munmap`,
    /// `mremap`, `madvise` and `mmap` with `MAP_FIXED` do, by patching them, and of nothing else:
    /// not of rustix' system calls, nor of those of a libc that is linked statically. What is
    /// mapped at the address next would be sent from the pages that lay there before.
    ///
    /// Memory that is unmapped too early breaks the promise below. Nobody is told: `tcp` fails the
    /// next send from it (EFAULT), and with it the connection; a card goes on with the pages, which
    /// it holds, and what it sends from them is no longer what lies at the address. Where it is
    /// seen, registering says so ([`RegisterError::NotMapped`]).
    ///
    /// Whether a forked child gets a copy is the owner's business: with `madvise(MADV_DONTFORK)` it
    /// does not, and what is registered survives a fork on any kernel, as memory of our own does
    /// ([`HostRegionBuilder::inherited`]).
    ///
    /// # Errors
    /// [`MemoryError::Empty`] for 0 bytes, [`MemoryError::TooLarge`] when `len` is above
    /// `isize::MAX` or wraps around the address space.
    ///
    /// # Safety
    /// * All of `base .. base + len` is mapped, readable (and writable if something is received
    ///   into it) until `keep_alive` is dropped; and to the same pages: neither unmapped, nor
    ///   mapped anew, nor emptied (`MADV_DONTNEED`, `MADV_FREE`).
    /// * Nobody holds a Rust reference to any of these bytes that reads or writes by peers or
    ///   devices would violate, from now until `keep_alive` is dropped; they are shared with the
    ///   network, as with a device.
    pub unsafe fn external(
        base: NonNull<u8>,
        len: usize,
        keep_alive: Box<dyn Any + Send + Sync>,
    ) -> Result<Arc<Self>, MemoryError> {
        if len == 0 {
            return Err(MemoryError::Empty);
        }
        if len > isize::MAX as usize || base.addr().get().checked_add(len).is_none() {
            return Err(MemoryError::TooLarge { asked_bytes: len });
        }
        let memory = Memory::External(keep_alive);
        Ok(Self::new(base, len, RegionKind::External, None, memory))
    }

    /// Starts to describe `len` bytes of host memory of our own that are pinned for CUDA: copies
    /// from and to devices are asynchronous.
    ///
    /// Where there is no CUDA, `build` says so ([`MemoryError::Cuda`]).
    pub fn pinned(len: usize) -> HostRegionBuilder {
        HostRegionBuilder::new(len).pinned(true)
    }

    /// Where the region starts. Reading or writing there is up to the caller, who has to know that
    /// nobody else does; of a device's memory ([`is_device`](Self::is_device)) it is a number that
    /// the host can't reach anything by.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The size in bytes, as it was asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: a region has at least 1 byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether the memory is our own host memory, not somebody else's.
    pub fn is_host(&self) -> bool {
        matches!(*self.memory, Memory::Host { .. })
    }

    /// Which pages were mapped; `None` for memory of a device, and for an external region, whose
    /// owner knows.
    pub fn pages(&self) -> Option<Pages> {
        match &*self.memory {
            Memory::Host { mapping, .. } => Some(mapping.pages()),
            Memory::Device(_) | Memory::External(_) => None,
        }
    }

    /// How many of the region's bytes lie in huge pages right now, as `/proc/self/smaps` says.
    ///
    /// The kernel reports whole mappings, and may join neighbours into one: the answer is then an
    /// upper bound. Slow (it reads the whole table of mappings); for reports, not for loops.
    ///
    /// # Errors
    /// [`MemoryError::Smaps`] when that file can't be read.
    pub fn huge_bytes(&self) -> Result<usize, MemoryError> {
        super::host::huge_bytes(self.base.addr().get(), self.len)
    }

    /// With how many domains (or endpoints, where the provider demands that) the region is
    /// registered.
    pub fn registration_count(&self) -> usize {
        self.registrations.count()
    }

    /// What the region is in use for; `None` when nobody uses it.
    pub fn purpose(&self) -> Option<Purpose> {
        Purpose::from_byte(self.purpose.load(Ordering::Relaxed))
    }

    /// Registers the region with a domain or an endpoint; again is no change. Blocks while the
    /// kernel locks the pages.
    pub(crate) fn register_with(&self, registrar: &dyn Registrar) -> Result<(), RegisterError> {
        self.registrations
            .register(registrar.scope(), || self.ask(registrar))
    }

    /// As [`register_with`](Self::register_with), for somebody who needs it until
    /// [`let_go`](Self::let_go), which each call has one of.
    pub(super) fn hold(&self, registrar: &dyn Registrar) -> Result<(), RegisterError> {
        self.registrations
            .hold(registrar.scope(), || self.ask(registrar))
    }

    /// Deregisters when this was the last who [holds](Self::hold) it, unless the application has
    /// registered it, too.
    pub(super) fn let_go(&self, scope: Scope) {
        self.registrations.let_go(scope);
    }

    fn ask(&self, registrar: &dyn Registrar) -> Result<RawRegistration, RegisterError> {
        match self.device_range() {
            // The address of a device's memory never gets into a call for the host's.
            Some(range) => registrar.register_device(&range, None),
            None if self.has_gone() => Err(RegisterError::NotMapped {
                len_bytes: self.len,
            }),
            None => registrar.register(self.base, self.len),
        }
    }

    /// The memory is somebody else's, who has unmapped it although this region still lives.
    fn has_gone(&self) -> bool {
        matches!(*self.memory, Memory::External(_)) && !mapping::is_mapped(self.base, self.len)
    }

    /// Which way the bytes go between the region and that registrar's network; `None` where it is
    /// not registered there.
    pub(crate) fn path_with(&self, registrar: &dyn Registrar) -> Option<Path> {
        self.registrations.path(registrar.scope())
    }

    /// Whether the region is registered there, and its bytes have to be copied through memory of
    /// the host.
    pub(crate) fn is_staged(&self, scope: Scope) -> bool {
        self.registrations.is_staged(scope)
    }

    /// Refuses new leases at once; the registration closes when the last lease ends, here if there
    /// is none.
    pub(crate) fn deregister_from(&self, scope: Scope) {
        self.registrations.deregister(scope);
    }

    /// Whether new leases are given there.
    pub(crate) fn is_registered(&self, scope: Scope) -> bool {
        self.registrations.is_registered(scope)
    }

    /// Whether the region is registered with anybody: tells a foreign buffer from one that nobody
    /// registered.
    pub(crate) fn is_registered_anywhere(&self) -> bool {
        self.registrations.count() > 0
    }

    /// Keeps the registration open for one operation, and gives its descriptor; `None` when it is
    /// not registered there, or is [staged](Self::is_staged): no provider gets its address then.
    ///
    /// Each lease is ended by [`release`](Self::release), once.
    pub(crate) fn lease(&self, scope: Scope) -> Option<*mut c_void> {
        self.registrations.lease(scope).map(|(desc, _)| desc)
    }

    /// As [`lease`](Self::lease), with the key of the registration.
    #[cfg(test)]
    pub(crate) fn lease_with_key(&self, scope: Scope) -> Option<(*mut c_void, u64)> {
        self.registrations.lease(scope)
    }

    /// Ends a lease.
    ///
    /// # Safety
    /// The caller got a lease of this scope and ends it now, for the first time: one too many would
    /// close a registration in use.
    pub(crate) unsafe fn release(&self, scope: Scope) {
        self.registrations.release(scope);
    }

    /// The address `offset` bytes in, derived from the whole region; `offset` may be the end.
    #[inline(always)]
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(
            offset <= self.len,
            "offset {offset} is outside a region of {} bytes",
            self.len
        );
        // Memory of a device is a number only, so nothing is said here of an allocation.
        let at = self.base.as_ptr().wrapping_add(offset);
        // SAFETY: `offset <= len`, just asserted, and `base + len` does not wrap around
        // (`external`, `device::address_of`; mappings don't).
        unsafe { NonNull::new_unchecked(at) }
    }

    /// Takes the region for a use that shares it with nobody; it ends when the claim is dropped.
    pub(crate) fn claim(self: &Arc<Self>, purpose: Purpose) -> Result<Claim, MemoryError> {
        // Acquire pairs with the Release of `Claim::drop`: the last user's accesses are over.
        match self.purpose.compare_exchange(
            UNCLAIMED,
            purpose as u8,
            Ordering::Acquire,
            Ordering::Relaxed,
        ) {
            Ok(_) => Ok(Claim {
                region: Arc::clone(self),
                exclusive: true,
            }),
            Err(by) => Err(claimed(by, purpose)),
        }
    }

    /// Makes the region one for addresses without access, for good; any number of times.
    #[inline]
    pub(crate) fn give_to_slices(&self) -> Result<(), MemoryError> {
        let slices = Purpose::Slices as u8;
        // It is so for all slices but the first, and a look costs less than a change.
        if self.purpose.load(Ordering::Acquire) == slices {
            return Ok(());
        }
        let order = (Ordering::Acquire, Ordering::Acquire);
        match self
            .purpose
            .compare_exchange(UNCLAIMED, slices, order.0, order.1)
        {
            Err(by) if by != slices => Err(claimed(by, Purpose::Slices)),
            _ => Ok(()),
        }
    }

    /// The same, for who keeps it.
    pub(crate) fn claim_slices(self: &Arc<Self>) -> Result<Claim, MemoryError> {
        self.give_to_slices()?;
        Ok(Claim {
            region: Arc::clone(self),
            exclusive: false,
        })
    }
}

fn claimed(by: u8, wanted: Purpose) -> MemoryError {
    MemoryError::Claimed {
        by: Purpose::from_byte(by).unwrap_or(wanted),
        wanted,
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("base", &self.base)
            .field("len", &self.len)
            .field("kind", &self.kind)
            .field("pages", &self.pages())
            .field("purpose", &self.purpose())
            .field("registrations", &self.registration_count())
            .finish()
    }
}

impl Watch for Region {
    fn stats(&self) -> WatchedStats {
        let (host, device) = match self.is_device() {
            true => (0, self.len as u64),
            false => (self.len as u64, 0),
        };
        WatchedStats::Region(RegionStats {
            regions: 1,
            host_bytes: host,
            device_bytes: device,
            registrations: self.registration_count() as u64,
        })
    }
}

/// The right to use a region for its [`Purpose`].
#[derive(Debug)]
pub(crate) struct Claim {
    region: Arc<Region>,
    exclusive: bool,
}

impl Claim {
    #[inline]
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.exclusive {
            self.region.purpose.store(UNCLAIMED, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/region.rs"]
mod tests;
