//! `CopyGate`: copies out of a device's memory, after which a message goes out.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use smallvec::SmallVec;

use super::{CopyLanes, Pace, StagingRing};
use crate::buffer::{Gate, GateError};
use crate::cuda::{CudaError, Device, Event, Stream};

/// One run of a device's memory, and where it goes.
#[derive(Debug)]
pub(crate) struct Copy {
    device: Device,
    from: u64,
    to: NonNull<u8>,
    len: usize,
}

// SAFETY: an address of a slot, which goes to any thread.
unsafe impl Send for Copy {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Copy {}

impl Copy {
    pub(crate) fn new(device: Device, from: u64, to: &mut [u8]) -> Self {
        Self {
            device,
            from,
            len: to.len(),
            to: NonNull::from(to).cast(),
        }
    }
}

/// Mostly one, in place: a small message is worth no block of its own.
pub(crate) type Copies = SmallVec<[Copy; 1]>;
/// Mostly one device's.
type Streams = SmallVec<[Stream; 1]>;

/// The copies of one payload. The payload that has this gate owns both ends of them, and keeps them until it is settled.
#[derive(Debug)]
pub(crate) struct CopyGate {
    lanes: CopyLanes,
    copies: Copies,
    /// Whose slots they go to, and how many: it counts them.
    ring: Option<(StagingRing, usize)>,
    state: State,
}

#[derive(Debug)]
enum State {
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
            copies,
            ring,
            state: State::Idle,
        }
    }

    fn begin(&mut self) -> Result<(), CudaError> {
        let mut streams = Streams::new();
        let begun = begin_each(&self.lanes, &self.copies, &mut streams);
        let record = |stream: &Stream| {
            let device = stream.device();
            Ok((device, self.lanes.record(device)?))
        };
        match begun.and_then(|()| streams.iter().map(record).collect()) {
            Ok(events) => {
                let bytes = self.copies.iter().map(|copy| copy.len).sum();
                if let Some((ring, slots)) = &self.ring {
                    ring.count(bytes, *slots);
                }
                self.state = State::Copying(events, Pace::of(bytes));
                Ok(())
            }
            Err(error) => {
                self.state = State::Torn(streams);
                Err(error)
            }
        }
    }
}

fn begin_each(lanes: &CopyLanes, copies: &[Copy], streams: &mut Streams) -> Result<(), CudaError> {
    for copy in copies {
        let known = streams.iter().position(|it| it.device() == copy.device);
        let at = match known {
            Some(at) => at,
            None => {
                streams.push(lanes.stream(copy.device)?);
                streams.len() - 1
            }
        };
        // SAFETY: the payload that has this gate owns the region that the bytes lie in, and the slot, which nobody looks at before the gate
        // is open; both stay until it was settled (`Gated::settle`), which waits for the stream.
        unsafe { streams[at].copy_to_host(copy.to, copy.from, copy.len) }?;
    }
    Ok(())
}

impl Gate for CopyGate {
    fn poll(&mut self) -> Result<bool, GateError> {
        if matches!(self.state, State::Idle) {
            self.begin().map_err(in_words)?;
        }
        let State::Copying(events, pace) = &mut self.state else {
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
        !matches!(self.state, State::Idle)
    }

    fn settle(&mut self) -> Result<(), GateError> {
        match &self.state {
            State::Idle => Ok(()),
            State::Copying(events, _) => events.iter().try_for_each(|(_, it)| it.synchronize()),
            State::Torn(streams) => streams.iter().try_for_each(Stream::synchronize),
        }
        .map_err(in_words)
    }
}

pub(super) fn in_words(error: CudaError) -> GateError {
    GateError(error.to_string())
}
