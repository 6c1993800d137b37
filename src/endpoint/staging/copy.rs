//! `CopyGate`: copies between a device's memory and slots of the ring, which a gate waits for:
//! those out of it before a message goes out, those into it behind a read. [`Outward`] and
//! [`Inward`] make one for each part of what goes piece by piece.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use smallvec::{SmallVec, smallvec};

use super::{CopyLanes, Pace, StagingRing};
use crate::buffer::{Gate, GateError, Payload};
use crate::cuda::{CudaError, Device, Event, Stream};
use crate::endpoint::windows::staged_transfer::PartCopies;

/// Which way copies go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyDirection {
    /// Out of the device's memory.
    Out,
    /// Into it.
    In,
}

/// One run of a device's memory, and its place in a slot.
#[derive(Debug)]
pub(crate) struct Copy {
    device: Device,
    address: u64,
    slot: NonNull<u8>,
    len: usize,
}

// SAFETY: an address of a slot, which goes to any thread.
unsafe impl Send for Copy {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Copy {}

impl Copy {
    pub(crate) fn new(device: Device, address: u64, slot: &mut [u8]) -> Self {
        Self {
            device,
            address,
            len: slot.len(),
            slot: NonNull::from(slot).cast(),
        }
    }
}

/// Mostly one, in place: a small message is worth no block of its own.
pub(crate) type Copies = SmallVec<[Copy; 1]>;
/// Mostly one device's.
type Streams = SmallVec<[Stream; 1]>;

/// The copies of one payload, or of one piece. Whoever has this gate owns both ends of them, and
/// keeps them until it is settled.
#[derive(Debug)]
pub(crate) struct CopyGate {
    lanes: CopyLanes,
    way: CopyDirection,
    copies: Copies,
    /// Whose slots they go to or come from, and how many: it counts them.
    ring: Option<(StagingRing, usize)>,
    /// A stream of the caller's that waits for them.
    told: Option<Stream>,
    state: CopyState,
}

#[derive(Debug)]
enum CopyState {
    /// Nothing was begun.
    Idle,
    /// Behind each stream's copies.
    Copying(SmallVec<[(Device, Event); 1]>, Pace),
    /// Something failed; these streams may have a copy.
    Torn(Streams),
}

impl CopyGate {
    pub(crate) fn new(
        lanes: CopyLanes,
        copies: Copies,
        ring: Option<(StagingRing, usize)>,
    ) -> Self {
        Self {
            lanes,
            way: CopyDirection::Out,
            copies,
            ring,
            told: None,
            state: CopyState::Idle,
        }
    }

    fn begin(&mut self) -> Result<(), CudaError> {
        let mut streams = Streams::new();
        let begun = begin_each(&self.lanes, self.way, &self.copies, &mut streams);
        let record = |stream: &Stream| {
            let device = stream.device();
            let event = self.lanes.record(device)?;
            if let Some(told) = &self.told {
                told.wait_for(&event)?;
            }
            Ok((device, event))
        };
        match begun.and_then(|()| streams.iter().map(record).collect()) {
            Ok(events) => {
                let bytes = self.copies.iter().map(|copy| copy.len).sum();
                match (&self.ring, self.way) {
                    (Some((ring, slots)), CopyDirection::Out) => ring.count(bytes, *slots),
                    (Some((ring, _)), CopyDirection::In) => ring.count_in(bytes),
                    (None, _) => {}
                }
                self.state = CopyState::Copying(events, Pace::of(bytes));
                Ok(())
            }
            Err(error) => {
                self.state = CopyState::Torn(streams);
                Err(error)
            }
        }
    }
}

fn begin_each(
    lanes: &CopyLanes,
    way: CopyDirection,
    copies: &[Copy],
    streams: &mut Streams,
) -> Result<(), CudaError> {
    for copy in copies {
        let known = streams.iter().position(|it| it.device() == copy.device);
        let at = match known {
            Some(at) => at,
            None => {
                streams.push(lanes.stream(copy.device)?);
                streams.len() - 1
            }
        };
        let stream = &streams[at];
        match way {
            CopyDirection::Out => {
                // SAFETY: whoever has this gate owns the region that the bytes lie in, and the
                // slot, which nobody looks at before the gate is open; both stay until it was
                // settled (`Gated::settle`, `StagedTransfer::settle`), which waits for the stream.
                unsafe { stream.copy_to_host(copy.slot, copy.address, copy.len) }?
            }
            CopyDirection::In => {
                // SAFETY: as above; the bytes of the slot have come, and nobody writes there before
                // it was settled.
                unsafe { stream.copy_to_device(copy.address, copy.slot, copy.len) }?
            }
        }
    }
    Ok(())
}

impl Gate for CopyGate {
    fn poll(&mut self) -> Result<bool, GateError> {
        if matches!(self.state, CopyState::Idle) {
            self.begin().map_err(in_words)?;
        }
        let CopyState::Copying(events, pace) = &mut self.state else {
            return Err(GateError("the copy failed".to_owned()));
        };
        if !events.is_empty() && !pace.may_ask() {
            return Ok(false);
        }
        while let Some((_, event)) = events.last() {
            if !event.is_done().map_err(in_words)? {
                return Ok(false);
            }
            if let Some((device, event)) = events.pop() {
                self.lanes.give_back(device, event);
            }
        }
        Ok(true)
    }

    fn has_begun(&self) -> bool {
        !matches!(self.state, CopyState::Idle)
    }

    fn settle(&mut self) -> Result<(), GateError> {
        match &self.state {
            CopyState::Idle => Ok(()),
            CopyState::Copying(events, _) => events.iter().try_for_each(|(_, it)| it.synchronize()),
            CopyState::Torn(streams) => streams.iter().try_for_each(Stream::synchronize),
        }
        .map_err(in_words)
    }
}

pub(super) fn in_words(error: CudaError) -> GateError {
    GateError(error.to_string())
}

/// The parts of a payload in devices' memory, copied to slots.
#[derive(Debug)]
pub(super) struct Outward {
    ring: StagingRing,
    /// Where its bytes lie, in their order.
    runs: Vec<(Device, u64, usize)>,
}

impl Outward {
    /// `None`: some of it lies in memory of the host.
    pub(super) fn of(ring: &StagingRing, payload: &Payload) -> Option<Self> {
        let mut runs = Vec::new();
        for segment in payload.segments() {
            let device = segment.region().kind().device()?;
            segment.name_runs(std::ptr::null_mut(), &mut |base, len, _| {
                runs.push((device, base as u64, len));
            });
        }
        let ring = ring.clone();
        Some(Self { ring, runs })
    }
}

impl PartCopies for Outward {
    fn begin(&mut self, at: u64, slot: &mut [u8]) -> Box<dyn Gate> {
        let (mut skip, mut used) = (at, 0);
        let mut copies = Copies::new();
        for &(device, address, len) in &self.runs {
            let from = skip.min(len as u64);
            skip -= from;
            let bytes = (len - from as usize).min(slot.len() - used);
            if bytes > 0 {
                let room = &mut slot[used..used + bytes];
                copies.push(Copy::new(device, address + from, room));
                used += bytes;
            }
        }
        debug_assert_eq!(used, slot.len(), "a part lies within the payload");
        Box::new(self.ring.copy_gate(copies, 1))
    }
}

/// The parts of a device's memory that a read fills, copied from slots.
#[derive(Debug)]
pub(super) struct Inward {
    pub(super) ring: StagingRing,
    pub(super) device: Device,
    pub(super) address: u64,
    pub(super) told: Option<Stream>,
}

impl PartCopies for Inward {
    fn begin(&mut self, at: u64, slot: &mut [u8]) -> Box<dyn Gate> {
        let copy = Copy::new(self.device, self.address + at, slot);
        let (lanes, ring) = (self.ring.0.inward.clone(), self.ring.clone());
        Box::new(CopyGate {
            way: CopyDirection::In,
            told: self.told.clone(),
            ..CopyGate::new(lanes, smallvec![copy], Some((ring, 1)))
        })
    }

    fn is_told(&self) -> bool {
        self.told.is_some()
    }
}
