//! `StagedTransfer`: a one-sided operation whose bytes go through slots of the host's memory, piece
//! by piece. It knows no GPU.
//!
//! ```text
//!  write: free slot ─► copy under way ─► posted ─► over: the slot is free, for the next piece
//!  read:  free slot ─► posted ─► over ─► copy under way ─► done: the slot is free, likewise
//! ```
//!
//! It has its slots from its acceptance to its end, so that it never waits for those of others,
//! which may wait for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::{fmt, mem};

use smallvec::SmallVec;

use crate::buffer::{BufferMut, Gate, GateError, LeasedPayload};
use crate::contain::say;
use crate::endpoint::hub::control::HeldDescriptor;
use crate::endpoint::link::RemoteRange;
use crate::endpoint::link::iov::IovList;
use crate::endpoint::windows::destination::Destination;
use crate::error::CompletionError;
use crate::id::ConnectionId;
use crate::memory::Region;
use crate::stats;

/// Slots of one operation, at most: pieces that are copied or in flight at once.
pub(crate) const SLOTS_MAX: usize = 4;

/// How the parts of what an operation moves get into slots, or out of them.
pub(crate) trait PartCopies: Send + fmt::Debug {
    /// A copy between a slot and the part that begins at `at`, which is as long as `slot`. It
    /// begins when its gate is asked first, and nobody else uses either end before that was
    /// settled.
    fn begin(&mut self, at: u64, slot: &mut [u8]) -> Box<dyn Gate>;

    /// Somebody else waits for copies that are under way, so that the outcome need not.
    fn is_told(&self) -> bool {
        false
    }
}

/// What an operation goes through.
#[derive(Debug)]
pub(crate) struct Slots {
    /// One at least.
    pub(crate) free: SmallVec<[BufferMut; SLOTS_MAX]>,
    /// Bytes of a piece, at most.
    pub(crate) piece_bytes: usize,
    pub(crate) copies: Box<dyn PartCopies>,
}

impl Slots {
    /// The region that they lie in.
    pub(crate) fn region(&self) -> Option<&Arc<Region>> {
        self.free.first().map(BufferMut::region)
    }
}

/// What moves: as the caller gave it.
#[derive(Debug)]
pub(crate) enum LocalMemory {
    Write(LeasedPayload),
    Read(Destination),
}

/// A slot with a part of an operation: in flight, or about to be.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) connection: ConnectionId,
    /// The number of its operation.
    pub(crate) of: u64,
    at: u64,
    len: usize,
    slot: BufferMut,
    write: bool,
    /// It may outlive its operation.
    _desc: Arc<HeldDescriptor>,
}

impl Piece {
    /// Whether the provider reads the slot; else it fills it.
    pub(crate) fn is_write(&self) -> bool {
        self.write
    }
}

/// A part whose copy is under way, or done.
#[derive(Debug)]
struct PartCopy {
    at: u64,
    len: usize,
    /// Behind the slot in no order that matters: it is settled before either goes (`settle`).
    gate: Box<dyn Gate>,
    open: bool,
    slot: BufferMut,
}

impl PartCopy {
    fn poll(&mut self) -> Result<bool, GateError> {
        if !self.open {
            self.open = self.gate.poll()?;
        }
        Ok(self.open)
    }

    /// The slot, which nothing of ours uses any more; `None`: that can't be told, and it is leaked.
    fn settle(mut self) -> Option<BufferMut> {
        let Err(error) = self.gate.settle() else {
            return Some(self.slot);
        };
        // A subscriber that panics must free neither this nor what others have to leak behind it.
        mem::forget(self);
        say(|| {
            tracing::error!(%error, "memory of a one-sided operation is leaked: a copy may be \
                under way")
        });
        None
    }
}

/// What is left to be done of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Post what is in the slot now, or is to come there.
    Post,
    /// Nothing for now: a copy is under way, or every slot is in flight.
    Wait,
    /// Nothing any more: all is posted, or will never be.
    Nothing,
}

/// A one-sided operation that goes piece by piece.
#[derive(Debug)]
pub(crate) struct StagedTransfer {
    given: Option<LocalMemory>,
    slots: Slots,
    /// Of the slots.
    desc: Arc<HeldDescriptor>,
    len: u64,
    write: bool,
    /// The last piece is to come behind all others, as it tells the peer.
    last_alone: bool,
    /// So many bytes have a piece, or had one.
    begun: u64,
    copying: VecDeque<PartCopy>,
    in_flight: u32,
    failed: Option<CompletionError>,
    /// What was given can't be given back: a copy may be under way.
    lost: bool,
}

impl StagedTransfer {
    /// Of `len` bytes.
    pub(crate) fn new(
        given: LocalMemory,
        len: usize,
        slots: Slots,
        desc: HeldDescriptor,
        last_alone: bool,
    ) -> Self {
        let write = matches!(given, LocalMemory::Write(_));
        Self {
            given: Some(given),
            slots,
            desc: Arc::new(desc),
            len: len as u64,
            write,
            last_alone,
            begun: 0,
            copying: VecDeque::new(),
            in_flight: 0,
            failed: None,
            lost: false,
        }
    }

    pub(crate) fn is_write(&self) -> bool {
        self.write
    }

    /// Whether it may begin: what was given is not to wait any more.
    pub(crate) fn poll_gate(&mut self, behind: bool) -> Result<bool, GateError> {
        match (&mut self.given, behind) {
            (Some(LocalMemory::Write(payload)), false) => payload.poll_gate(),
            (Some(LocalMemory::Write(payload)), true) => payload.advance_gate(),
            (Some(LocalMemory::Read(_)) | None, _) => Ok(true),
        }
    }

    /// Whether any of it was posted.
    pub(crate) fn has_begun(&self) -> bool {
        let copying = self.copying.iter().map(|copy| copy.len as u64);
        self.begun > if self.write { copying.sum() } else { 0 }
    }

    /// Begins the copies of what is to be written, as far as there are slots.
    pub(crate) fn prepare(&mut self) {
        if !self.write {
            return;
        }
        while let Some((at, len, slot)) = self.next_part() {
            self.copy(at, len, slot);
        }
    }

    /// A slot for the next part.
    fn next_part(&mut self) -> Option<(u64, usize, BufferMut)> {
        let left = self.len - self.begun;
        if left == 0 || self.failed.is_some() {
            return None;
        }
        let slot = self.slots.free.pop()?;
        let len = left.min(self.slots.piece_bytes as u64);
        let at = self.begun;
        self.begun += len;
        Some((at, len as usize, slot))
    }

    fn copy(&mut self, at: u64, len: usize, mut slot: BufferMut) {
        let gate = self.slots.copies.begin(at, &mut slot[..len]);
        let mut copying = PartCopy {
            at,
            len,
            gate,
            open: false,
            slot,
        };
        // So that it begins.
        if let Err(error) = copying.poll() {
            self.fail(CompletionError::gate(&error));
        }
        self.copying.push_back(copying);
    }

    /// What is to be done now. A piece that is to be posted is taken by [`take`](Self::take).
    pub(crate) fn next(&mut self) -> Next {
        self.land();
        match self.write {
            _ if self.failed.is_some() => Next::Nothing,
            true => self.next_write(),
            false if self.begun == self.len => Next::Nothing,
            false if self.slots.free.is_empty() => Next::Wait,
            false => Next::Post,
        }
    }

    fn next_write(&mut self) -> Next {
        self.prepare();
        let Some(front) = self.copying.front_mut() else {
            return match self.begun == self.len {
                true => Next::Nothing,
                false => Next::Wait,
            };
        };
        let last = front.at + front.len as u64 == self.len;
        match front.poll() {
            Ok(true) if last && self.last_alone && self.in_flight > 0 => Next::Wait,
            Ok(true) => Next::Post,
            Ok(false) => Next::Wait,
            Err(error) => {
                self.fail(CompletionError::gate(&error));
                Next::Nothing
            }
        }
    }

    /// The piece that is to be posted now, where its bytes are, and where they go or come from in
    /// the window, which begins at `remote`.
    pub(crate) fn take(
        &mut self,
        (connection, of): (ConnectionId, u64),
        remote: &RemoteRange,
    ) -> Option<(Piece, IovList, RemoteRange)> {
        let (at, len, slot) = match self.write {
            true => {
                let copied = self.copying.pop_front()?;
                let (at, len) = (copied.at, copied.len);
                match copied.settle() {
                    Some(slot) => (at, len, slot),
                    None => {
                        self.lose();
                        return None;
                    }
                }
            }
            false => self.next_part()?,
        };
        let mut iov = IovList::new();
        iov.push(slot.as_ptr(), len, self.desc.desc());
        let remote = RemoteRange {
            // The range was checked as a whole, so its end is an address.
            addr: remote.addr + at,
            len,
            key: remote.key,
        };
        self.in_flight += 1;
        let piece = Piece {
            connection,
            of,
            at,
            len,
            slot,
            write: self.write,
            _desc: Arc::clone(&self.desc),
        };
        Some((piece, iov, remote))
    }

    /// Whether this piece is the last one, which carries the immediate data.
    pub(crate) fn is_last(&self, piece: &Piece) -> bool {
        piece.at + piece.len as u64 == self.len
    }

    /// The provider did not take a piece now.
    pub(crate) fn put_back(&mut self, piece: Piece) {
        self.in_flight -= 1;
        let Piece { at, len, slot, .. } = piece;
        if !self.write {
            // Reads are posted in their order, so it was the last.
            self.begun = at;
            return self.slots.free.push(slot);
        }
        self.copying.push_front(PartCopy {
            at,
            len,
            gate: Box::new(OpenGate),
            open: true,
            slot,
        });
    }

    /// A piece is over.
    pub(crate) fn on_over(&mut self, piece: Piece, error: Option<CompletionError>) {
        self.in_flight -= 1;
        let Piece { at, len, slot, .. } = piece;
        match error {
            Some(error) => self.fail(error),
            None if !self.write && self.failed.is_none() => return self.copy(at, len, slot),
            None => {}
        }
        self.slots.free.push(slot);
    }

    /// Nothing further is posted.
    pub(crate) fn fail(&mut self, error: CompletionError) {
        self.failed.get_or_insert(error);
    }

    /// Whether all its pieces are over, and the copies behind those of a read that nobody else
    /// waits for.
    pub(crate) fn is_over(&mut self) -> bool {
        self.land();
        if self.in_flight > 0 {
            return false;
        }
        let all = self.begun == self.len;
        let landed = self.copying.is_empty() || !self.write && self.slots.copies.is_told();
        self.failed.is_some() || all && landed
    }

    /// Frees the slots of a read whose copies are done.
    fn land(&mut self) {
        if self.write || self.failed.is_some() {
            return;
        }
        while let Some(front) = self.copying.front_mut() {
            match front.poll() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.fail(CompletionError::gate(&error)),
            }
            match self.copying.pop_front().and_then(PartCopy::settle) {
                Some(slot) => self.slots.free.push(slot),
                None => self.lose(),
            }
        }
    }

    /// A copy is under way that somebody waits for.
    pub(crate) fn is_copying(&self) -> bool {
        !self.copying.is_empty()
    }

    pub(crate) fn take_failure(&mut self) -> Option<CompletionError> {
        self.failed.take()
    }

    fn lose(&mut self) {
        self.lost = true;
        self.fail(CompletionError::new(libc::EIO));
    }

    /// Copies of a read that somebody else waits for, which go on behind its outcome.
    pub(crate) fn take_trailing(&mut self) -> Option<TrailingCopies> {
        let told = !self.write && self.failed.is_none() && !self.copying.is_empty();
        let Some(LocalMemory::Read(into)) = self.given.as_ref().filter(|_| told) else {
            return None;
        };
        Some(TrailingCopies {
            copying: mem::take(&mut self.copying),
            region: Arc::clone(into.region()),
        })
    }

    /// What was given; nothing of ours touches it any more, but copies that
    /// [`take_trailing`](Self::take_trailing) took. Waits for those that are under way. `None`:
    /// that can't be told, and it is leaked.
    pub(crate) fn into_given(mut self) -> Option<LocalMemory> {
        self.settle();
        self.given.take()
    }

    fn settle(&mut self) {
        for copying in self.copying.drain(..) {
            self.lost |= copying.settle().is_none();
        }
        if self.lost {
            stats::count_leaked(1);
            mem::forget(self.given.take());
        }
    }
}

impl Drop for StagedTransfer {
    fn drop(&mut self) {
        // As a payload that is staged: a copy is over in a moment, and until then its memory may
        // not go back to its owners.
        self.settle();
    }
}

/// Of a piece that was copied before.
#[derive(Debug)]
struct OpenGate;

impl Gate for OpenGate {
    fn poll(&mut self) -> Result<bool, GateError> {
        Ok(true)
    }
}

/// Copies into memory that was handed out already: what they need, until they are done.
#[derive(Debug)]
pub(crate) struct TrailingCopies {
    copying: VecDeque<PartCopy>,
    region: Arc<Region>,
}

impl TrailingCopies {
    /// Whether they are done. One that fails is waited for by the drop.
    pub(crate) fn is_over(&mut self) -> bool {
        while let Some(front) = self.copying.front_mut() {
            if front.poll() == Ok(false) {
                return false;
            }
            self.settle_first();
        }
        true
    }

    fn settle_first(&mut self) {
        if let Some(copying) = self.copying.pop_front()
            && copying.settle().is_none()
        {
            stats::count_leaked(1);
            mem::forget(Arc::clone(&self.region));
        }
    }
}

impl Drop for TrailingCopies {
    fn drop(&mut self) {
        while !self.copying.is_empty() {
            self.settle_first();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::buffer::SharedBufferManager;
    use crate::contain::{Panics, contain};
    use crate::memory::fake::FakeRegistrar;

    /// Nobody can tell what became of the copy.
    #[derive(Debug)]
    struct Lost;

    impl Gate for Lost {
        fn poll(&mut self) -> Result<bool, GateError> {
            Ok(false)
        }

        fn settle(&mut self) -> Result<(), GateError> {
            Err(GateError("the driver is gone".to_owned()))
        }
    }

    #[derive(Debug)]
    struct NoCopies;

    impl PartCopies for NoCopies {
        fn begin(&mut self, _: u64, _: &mut [u8]) -> Box<dyn Gate> {
            Box::new(Lost)
        }
    }

    #[test]
    fn what_copies_may_touch_is_leaked_although_the_log_is_gone() {
        let given = SharedBufferManager::allocate(1, 64).expect("memory");
        let slots = SharedBufferManager::allocate(2, 64).expect("memory");
        let slot = || slots.try_acquire().expect("free");
        let registrar = FakeRegistrar::new();
        let desc = HeldDescriptor::new(slots.region(), &registrar).expect("registered");
        let into = Destination::from(given.try_acquire().expect("free"));
        let through = Slots {
            free: SmallVec::new(),
            piece_bytes: 64,
            copies: Box::new(NoCopies),
        };
        let mut transfer = StagedTransfer::new(LocalMemory::Read(into), 64, through, desc, false);
        transfer.copying.extend([0, 32].map(|at| PartCopy {
            at,
            len: 32,
            gate: Box::new(Lost),
            open: false,
            slot: slot(),
        }));
        let dispatch = tracing::Dispatch::new(Panics);
        // So that the rest of the test sees what a panic would have freed.
        contain("the drop", || {
            tracing::dispatcher::with_default(&dispatch, || drop(transfer));
        });
        assert_eq!((given.free_count(), slots.free_count()), (0, 0));
    }
}
