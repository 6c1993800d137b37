//! `FillGate`: the messages of a buffer that have their places, and whose bytes are not there yet.
//!
//! ```text
//!  pushed ─► place in the open buffer ─► its event happened ─► copied to its place ─┐
//!  pushed ─► place behind it, filled at once                                        ├─► it is sent
//!                                      full, flushed or due: the buffer is closed ──┘
//! ```

#![allow(unsafe_code)]

use std::ptr::NonNull;

use crate::buffer::{BufferMut, Gate, GateError, Payload};
use crate::coalesce::{Packer, Placed};
use crate::endpoint::staging::{Copies, Copy, CopyGate, CopyLanes};

/// The gate of a buffer that is packed before all of it is there.
#[derive(Debug)]
pub(super) struct FillGate {
    lanes: CopyLanes,
    /// Those that are not there yet.
    parts: Vec<Part>,
    /// What the first said that never will be; to be heard by whoever sends the buffer.
    failed: Option<GateError>,
}

/// One message.
#[derive(Debug)]
struct Part {
    /// Kept until its bytes are copied.
    given: Payload,
    to: NonNull<u8>,
    /// Once it has begun.
    copy: Option<CopyGate>,
}

// SAFETY: an address in a buffer, which goes to any thread.
unsafe impl Send for Part {}
// SAFETY: as above; nothing is done with it by a shared reference.
unsafe impl Sync for Part {}

/// The first segment that can't be copied by a push: memory of the host that others may write to.
pub(super) fn not_copied(payload: &Payload) -> Option<usize> {
    let segments = payload.segments();
    let copied =
        |segment: &crate::buffer::Segment| segment.is_device() || segment.as_bytes().is_some();
    segments.iter().position(|segment| !copied(segment))
}

impl FillGate {
    pub(super) fn new(lanes: CopyLanes) -> Self {
        Self {
            lanes,
            parts: Vec::new(),
            failed: None,
        }
    }

    /// Nothing is missing.
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// One message more, of which all segments can be [copied](not_copied), and its place, which is
    /// as long. Its copy begins, unless it waits for an event. Errors are heard later.
    ///
    /// # Panics
    ///
    /// If the place is not as long.
    pub(super) fn add(&mut self, given: Payload, packer: &mut Packer<BufferMut>, placed: &Placed) {
        assert_eq!(given.len_bytes(), placed.range().len());
        let mut part = Part {
            given,
            to: packer.address_of(placed),
            copy: None,
        };
        match part.poll(&self.lanes) {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => self.failed = self.failed.take().or(Some(error)),
        }
        self.parts.push(part);
    }

    /// Begins the copies whose events have happened meanwhile.
    pub(super) fn begin(&mut self) {
        for part in self.parts.iter_mut().filter(|part| part.copy.is_none()) {
            if let Err(error) = part.poll(&self.lanes) {
                self.failed = self.failed.take().or(Some(error));
            }
        }
    }
}

impl Part {
    fn poll(&mut self, lanes: &CopyLanes) -> Result<bool, GateError> {
        let copy = match &mut self.copy {
            Some(copy) => copy,
            None => {
                if !self.given.poll_gate()? {
                    return Ok(false);
                }
                let copies = self.copies();
                self.copy.insert(CopyGate::new(lanes.clone(), copies, None))
            }
        };
        copy.poll()
    }

    /// Copies what lies in the host's memory, and lists the copies out of devices.
    fn copies(&self) -> Copies {
        let (mut copies, mut at) = (Copies::new(), 0);
        for segment in self.given.segments() {
            let len = segment.len();
            // SAFETY: the place is as long as all segments together (`add`), and in it nobody else
            // reads or writes: the packer goes on behind it, and the buffer is neither sent nor
            // handed out before the gate is open or settled. The packer's own references to the
            // whole slot come and go meanwhile: the address is derived from none of them
            // (`BufferMut::place`), and none lives while this one does. A device that copies does
            // so by the address alone.
            let to =
                unsafe { std::slice::from_raw_parts_mut(self.to.as_ptr().wrapping_add(at), len) };
            at += len;
            match (segment.as_bytes(), segment.region().kind().device()) {
                (Some(bytes), _) => to.copy_from_slice(bytes),
                (None, Some(device)) => {
                    let mut rest = to;
                    segment.name_runs(std::ptr::null_mut(), &mut |base, len, _| {
                        let (here, behind) = std::mem::take(&mut rest).split_at_mut(len);
                        copies.push(Copy::new(device, base as u64, here));
                        rest = behind;
                    });
                }
                (None, None) => unreachable!("`not_copied` asked"),
            }
        }
        copies
    }
}

impl Gate for FillGate {
    fn poll(&mut self) -> Result<bool, GateError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let lanes = &self.lanes;
        let mut said = Ok(true);
        self.parts.retain_mut(|part| {
            // What is under way behind one that is not done is not asked: copies are done in their
            // order.
            if said != Ok(true) && part.copy.is_some() {
                return true;
            }
            match (part.poll(lanes), &said) {
                (Ok(true), _) => return false,
                (Err(error), Ok(_)) => said = Err(error),
                (Ok(false), Ok(true)) => said = Ok(false),
                _ => {}
            }
            true
        });
        said
    }

    fn has_begun(&self) -> bool {
        self.parts.iter().all(|part| part.copy.is_some())
    }

    fn settle(&mut self) -> Result<(), GateError> {
        let copies = self.parts.iter_mut().filter_map(|part| part.copy.as_mut());
        let mut settled = Ok(());
        for copy in copies {
            // Each of them, whatever those before it said.
            let this = copy.settle();
            settled = settled.and(this);
        }
        settled
    }
}
