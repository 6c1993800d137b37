//! `StagingRing`: pinned memory of the host, through which a GPU's memory goes out where the
//! provider can't read that by itself.
//!
//! ```text
//!  payload in a GPU's memory ─ accepted ─► slots of the ring ─ copy on a stream of the ring ─┐
//!       ▲                                                                                    │
//!       │                          over: slots are free ◄── posted from there ◄──────────────┘
//!       └─ comes back to its owner, as it was given ◄─┘
//! ```
//!
//! While one message is on the wire, the copies of those behind it run:
//! [`StagingStats::overlapped`] counts them. A one-sided read goes the other way: from the wire
//! into slots, and by copies into the GPU's memory.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::{SmallVec, smallvec};

use crate::Error;
use crate::buffer::{
    BufferMut, Payload, Segment, SharedBufferConfig, SharedBufferManager, SlotPool, SlotTable,
};
use crate::cuda::Device;
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::limits::check_count;
use crate::endpoint::windows::destination::Destination;
use crate::endpoint::windows::staged_transfer::{PartCopies, SLOTS_MAX, Slots};
use crate::fabric::Domain;
use crate::memory::{HugePages, Region, RegisterError, Scope};

mod after;
mod copy;
mod lanes;
mod pace;

pub(crate) use copy::{Copies, Copy, CopyGate};
use copy::{Inward, Outward};
pub(crate) use lanes::CopyLanes;
pub(crate) use pace::Pace;

/// Bytes of one piece of what goes piece by piece, at most: what a deadline or the end of a
/// connection may have to wait for.
pub(crate) const PIECE_BYTES: usize = 4 << 20;

/// How large a ring is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingConfig {
    /// How many slots, 1 to 65,536. A message has one or several until it is sent. Default: 32.
    pub slots: u32,
    /// Bytes of a slot, 4 KiB to 1 GiB. A message takes as many as it needs, but no more than the
    /// provider takes segments (3 beside the header on tcp), so a slot is best as long as the
    /// longest message. Default: 1 MiB.
    ///
    /// Memory: `slots` times this, pinned, in huge pages where there are some.
    pub slot_bytes: usize,
    /// Bytes in front of each slot for a header that must lie there, as
    /// [`SharedBufferConfig::headroom`]. Default: 0.
    pub headroom: usize,
    /// The NUMA node that the slots must lie on, best that of the GPU ([`Device::numa_node`]).
    /// Default: `None`, wherever the thread runs that makes the ring.
    pub numa_node: Option<u32>,
}

impl Default for StagingConfig {
    fn default() -> Self {
        Self {
            slots: 32,
            slot_bytes: 1 << 20,
            headroom: 0,
            numa_node: None,
        }
    }
}

impl StagingConfig {
    fn check(&self) -> Result<(), Error> {
        check_count("slots", self.slots, 65_536, "must be 1 to 65536 slots")?;
        if !(4096..=1 << 30).contains(&self.slot_bytes) {
            return Err(Error::Config {
                field: "slot_bytes",
                value: self.slot_bytes.to_string(),
                reason: "must be 4096 bytes to 1 GiB",
            });
        }
        Ok(())
    }
}

/// What went through a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StagingStats {
    /// Payloads that were copied.
    pub payloads: u64,
    /// Bytes of them that came out of devices.
    pub bytes: u64,
    /// Bytes that one-sided reads brought into devices.
    pub bytes_in: u64,
    /// Payloads whose copy began while earlier ones were still copied or sent.
    pub overlapped: u64,
    /// Most slots in use at once.
    pub slots_in_use_max: u64,
}

/// Pinned slots that endpoints share, with streams of their own for the copies. A clone is the same
/// ring.
///
/// An endpoint that has one (for instance by
/// [`OutgoingSettings::staging`](crate::endpoint::OutgoingSettings::staging)) sends payloads that
/// lie in a GPU's memory, where its fabric takes none: see [`Path`](crate::memory::Path).
#[derive(Clone)]
pub struct StagingRing(Arc<Inner>);

struct Inner {
    pool: SharedBufferManager,
    lanes: CopyLanes,
    /// Of copies into devices.
    inward: CopyLanes,
    payloads: AtomicU64,
    bytes: AtomicU64,
    bytes_in: AtomicU64,
    overlapped: AtomicU64,
    in_use_max: AtomicU64,
}

impl StagingRing {
    /// Allocates and pins the slots, in huge pages where the machine has some. It takes
    /// milliseconds for each 100 MiB.
    ///
    /// # Errors
    /// [`Error::Config`] for a setting out of its range; [`Error::Memory`]: no memory, no such NUMA
    /// node, or no CUDA, in words.
    pub fn new(config: StagingConfig) -> Result<Self, Error> {
        config.check()?;
        let slots = SharedBufferConfig {
            slots: Some(config.slots),
            headroom: config.headroom,
            alignment: 4096,
            ..SharedBufferConfig::new(config.slot_bytes)
        };
        let bytes = slots.region_bytes(config.slots)?;
        let region = Region::pinned(bytes)
            .huge_pages(HugePages::Try)
            .numa_node(config.numa_node)
            .build()?;
        Ok(Self(Arc::new(Inner {
            pool: SharedBufferManager::new(region, slots)?,
            lanes: CopyLanes::default(),
            inward: CopyLanes::default(),
            payloads: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            overlapped: AtomicU64::new(0),
            in_use_max: AtomicU64::new(0),
        })))
    }

    /// Registers the slots with a domain; an endpoint that is given the ring does so by itself.
    ///
    /// # Errors
    /// As [`Region::register`].
    pub fn register(&self, domain: &Domain) -> Result<(), RegisterError> {
        self.0.pool.region().register(domain)
    }

    /// The memory of the slots.
    pub fn region(&self) -> &Arc<Region> {
        self.0.pool.region()
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.0.pool.slot_size()
    }

    /// Slots that are free.
    pub fn free_slots(&self) -> usize {
        self.0.pool.free_count()
    }

    /// What went through it so far.
    pub fn stats(&self) -> StagingStats {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        StagingStats {
            payloads: get(&self.0.payloads),
            bytes: get(&self.0.bytes),
            bytes_in: get(&self.0.bytes_in),
            overlapped: get(&self.0.overlapped),
            slots_in_use_max: get(&self.0.in_use_max),
        }
    }

    /// As [`SharedBufferManager::add_waker`].
    /// The payload with slots to be sent in its place, and the gate that fills them. Nothing is
    /// copied yet.
    pub(crate) fn stage(
        &self,
        mut payload: Payload,
        scope: Scope,
    ) -> Result<Payload, (SendErrorKind, Payload)> {
        let mut plan = Plan {
            ring: self,
            wire: SmallVec::new(),
            copies: Copies::new(),
            open: None,
        };
        for index in 0..payload.segments().len() {
            if let Err(kind) = plan.add(index, &mut payload, scope) {
                let kind = plan.explain(kind, payload.len_bytes());
                // It has handles on segments.
                drop(plan);
                return Err((kind, payload.unshared()));
            }
        }
        plan.close();
        let Plan { wire, copies, .. } = plan;
        self.count_in_use();
        let gate = self.copy_gate(copies, wire.len());
        Ok(payload.staged(wire.into_iter().collect(), Box::new(gate)))
    }

    /// A slot with a part of a longer payload, of which whoever sends it has the rest; `None`: no
    /// slot is free.
    ///
    /// # Panics
    /// If `len` is more than a slot has.
    pub(crate) fn piece(&self, device: Device, from: u64, len: usize) -> Option<Payload> {
        let mut slot = self.0.pool.try_acquire()?;
        let copies = smallvec![Copy::new(device, from, &mut slot[..len])];
        self.count_in_use();
        let gate = self.copy_gate(copies, 1);
        Some(Payload::empty().staged(slot.freeze(len).into(), Box::new(gate)))
    }

    /// What a one-sided write goes through whose payload lies in devices' memory and is longer than
    /// a slot, or than the provider takes at once; `None`: it goes as a message does.
    pub(crate) fn outward(
        &self,
        payload: &Payload,
        max_bytes: u64,
    ) -> Option<Result<Slots, SendErrorKind>> {
        let len = payload.len_bytes();
        if len <= self.slot_bytes() && len as u64 <= max_bytes {
            return None;
        }
        let copies = Outward::of(self, payload)?;
        Some(self.slots_for(len, max_bytes, Box::new(copies)))
    }

    /// What a one-sided read into a device's memory goes through.
    pub(crate) fn inward(
        &self,
        into: &Destination,
        max_bytes: u64,
    ) -> Result<Slots, SendErrorKind> {
        let device = into.region().kind().device();
        let copies = Inward {
            ring: self.clone(),
            device: device.ok_or(SendErrorKind::NotStaged { segment: 0 })?,
            address: into.address(),
            told: into.told().cloned(),
        };
        self.slots_for(into.len(), max_bytes, Box::new(copies))
    }

    /// As many slots as that needs, or as one operation may have, or as are free.
    fn slots_for(
        &self,
        len: usize,
        max_bytes: u64,
        copies: Box<dyn PartCopies>,
    ) -> Result<Slots, SendErrorKind> {
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        let piece_bytes = self.slot_bytes().min(PIECE_BYTES).min(max_bytes);
        let wanted = len.div_ceil(piece_bytes).min(SLOTS_MAX);
        let slots = (0..wanted).map_while(|_| self.0.pool.try_acquire());
        let free: SmallVec<[BufferMut; SLOTS_MAX]> = slots.collect();
        if free.is_empty() {
            return Err(SendErrorKind::WouldBlock(Blocked::Staging));
        }
        self.count_in_use();
        Ok(Slots {
            free,
            piece_bytes,
            copies,
        })
    }

    fn count_in_use(&self) {
        let in_use = (self.0.pool.slots() - self.0.pool.free_count()) as u64;
        self.0.in_use_max.fetch_max(in_use, Ordering::Relaxed);
    }

    /// Bytes on their way into a device.
    fn count_in(&self, bytes: usize) {
        self.0.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Copies into so many slots.
    fn copy_gate(&self, copies: Copies, slots: usize) -> CopyGate {
        CopyGate::new(self.0.lanes.clone(), copies, Some((self.clone(), slots)))
    }

    /// A payload's copy begins, into so many slots.
    fn count(&self, bytes: usize, slots: usize) {
        let in_use = self.0.pool.slots() - self.0.pool.free_count();
        self.0.payloads.fetch_add(1, Ordering::Relaxed);
        self.0.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if in_use > slots {
            self.0.overlapped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The first segment that the domain takes only as a copy, if there is one.
pub(crate) fn staged_segment(payload: &Payload, scope: Scope) -> Option<usize> {
    payload
        .segments()
        .iter()
        .position(|segment| segment.region().is_staged(scope))
}

impl SlotPool for StagingRing {
    fn table(&self) -> &SlotTable {
        self.0.pool.table()
    }
}

/// Which bytes go where.
struct Plan<'a> {
    ring: &'a StagingRing,
    wire: SmallVec<[Segment; 1]>,
    copies: Copies,
    /// A slot that is not full, and how many bytes it has.
    open: Option<(crate::buffer::BufferMut, usize)>,
}

impl Plan<'_> {
    fn add(
        &mut self,
        index: usize,
        payload: &mut Payload,
        scope: Scope,
    ) -> Result<(), SendErrorKind> {
        let segment = &payload.segments()[index];
        let region = segment.region();
        let device = region.kind().device().filter(|_| region.is_staged(scope));
        let Some(device) = device else {
            self.close();
            self.wire.push(payload.share_segment(index));
            return Ok(());
        };
        let mut runs = SmallVec::<[_; 2]>::new();
        segment.name_runs(std::ptr::null_mut(), &mut |base, len, _| {
            runs.push((base as u64, len));
        });
        runs.into_iter()
            .try_for_each(|(from, len)| self.add_run(device, from, len))
    }

    fn add_run(
        &mut self,
        device: Device,
        mut from: u64,
        mut len: usize,
    ) -> Result<(), SendErrorKind> {
        while len > 0 {
            let full = self
                .open
                .as_ref()
                .is_some_and(|(slot, used)| *used == slot.len());
            if full {
                self.close();
            }
            if self.open.is_none() {
                let slot = self.ring.0.pool.try_acquire();
                let slot = slot.ok_or(SendErrorKind::WouldBlock(Blocked::Staging))?;
                self.open = Some((slot, 0));
            }
            let Some((slot, used)) = &mut self.open else {
                unreachable!("just opened");
            };
            let bytes = len.min(slot.len() - *used);
            self.copies
                .push(Copy::new(device, from, &mut slot[*used..][..bytes]));
            *used += bytes;
            from += bytes as u64;
            len -= bytes;
        }
        Ok(())
    }

    /// The open slot is part of the message. Its bytes are written by the copy, which has their
    /// address; nobody looks at them before.
    fn close(&mut self) {
        if let Some((slot, used)) = self.open.take() {
            self.wire.push(slot.freeze(used).into());
        }
    }

    /// What will never fit is not back-pressure.
    fn explain(&self, kind: SendErrorKind, len: usize) -> SendErrorKind {
        let max = self.ring.0.pool.slots() * self.ring.slot_bytes();
        match kind {
            SendErrorKind::WouldBlock(Blocked::Staging) if len > max => {
                SendErrorKind::StagingTooLong { len, max }
            }
            kind => kind,
        }
    }
}

impl fmt::Debug for StagingRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StagingRing")
            .field("slots", &self.0.pool.slots())
            .field("slot_bytes", &self.slot_bytes())
            .field("free", &self.free_slots())
            .finish_non_exhaustive()
    }
}
