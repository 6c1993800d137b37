//! `InFlight`: the slab that maps the context of a posted operation to what the operation holds.
//! Pure, no FFI.
//!
//! ```text
//! begin(op) ──► context ──► fi_send(.., context) ──► CQ entry ──► finish(context) ──► op
//!                  └─ refused (-FI_EAGAIN): abort(context) ──► op
//! ```
//!
//! A context comes back from a provider, so it is not trusted: whatever its value,
//! [`InFlight::finish`] answers with an operation that was in flight or with a [`ContextError`],
//! and never hands out an operation twice.
//!
//! An endpoint that has kinds of operations of different size keeps a slab for each
//! ([`InFlight::second`], [`InFlight::third`], [`InFlight::fourth`]): no context is of two, and the
//! others say [`ContextError::OutOfRange`].

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// Cells per operation: a cell rests for at least three full rounds of the slab before it is used
/// again, so that a late write or a doubled completion of the provider meets a cell at rest.
const CELLS_PER_OPERATION: usize = 4;
/// The size of `struct fi_context2` (`fi_getinfo.3`, FI_CONTEXT2): eight pointers.
const CELL_WORDS: usize = 8;
const CELL_BYTES: usize = CELL_WORDS * size_of::<usize>();
/// In each opaque context of a second or third slab, and both in that of a fourth: indices that no
/// other one has ([`CAPACITY_MAX`]).
const SECOND: u32 = 1 << 31;
const THIRD: u32 = 1 << 30;
/// With 64 GiB of cells.
const CAPACITY_MAX: u32 = 1 << 28;
/// Marks a cell that belongs to no operation, and an operation that has no cell.
const NONE: u32 = u32::MAX;

const _: () = assert!(
    size_of::<usize>() == 8,
    "a context holds 32 bits of generation and 32 bits of index"
);
const _: () = assert!(size_of::<Cell>() == CELL_BYTES);
const _: () = assert!(CAPACITY_MAX <= THIRD && THIRD < SECOND);

/// What the provider takes as the context of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContextKind {
    /// A number that the provider only stores: generation in the upper 32 bits (never 0), index in
    /// the lower.
    Opaque,
    /// The address of a cell of 64 bytes that the provider writes to (mode FI_CONTEXT or
    /// FI_CONTEXT2).
    Cells,
}

/// Why a context is not that of an operation in flight. The endpoint that got it has to be failed:
/// its provider is not to be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ContextError {
    /// The context is 0.
    #[error("the completion has no context")]
    Null,
    /// The context lies outside of the slab.
    #[error("the completion's context is none of ours")]
    OutOfRange,
    /// The context points into the middle of a cell.
    #[error("the completion's context points into the middle of a cell")]
    Misaligned,
    /// No operation is in flight there: a doubled or invented completion.
    #[error("the completion's context belongs to no operation in flight")]
    Idle,
    /// Another operation is in flight there: a doubled or late completion of an older one.
    #[error("the completion's context belongs to an operation that ended earlier")]
    Stale,
}

/// One `fi_context2`. Atomics, though nobody of us reads or writes them, because they may be
/// written through a shared pointer.
#[derive(Debug, Default)]
struct Cell {
    _words: [AtomicUsize; CELL_WORDS],
}

/// The pinned cells and which operation each belongs to: the provider writes `cells`, only we touch
/// `owner`.
#[derive(Debug)]
struct Cells {
    /// `Arc` and not `Box`, since a `Box` claims to be the only way to its content, and the
    /// provider has another.
    cells: Arc<[Cell]>,
    owner: Box<[u32]>,
    free: VecDeque<u32>,
    base: usize,
}

impl Cells {
    fn new(capacity: u32) -> Self {
        let count = capacity as usize * CELLS_PER_OPERATION;
        let cells: Arc<[Cell]> = (0..count).map(|_| Cell::default()).collect();
        // Exposed from the whole allocation: the provider gets addresses, and may use them for all
        // 64 bytes of a cell.
        let base = Arc::as_ptr(&cells).cast::<Cell>().expose_provenance();
        let free = (0..count)
            .map(|cell| u32::try_from(cell).expect("checked in new"))
            .collect();
        Self {
            cells,
            owner: vec![NONE; count].into_boxed_slice(),
            free,
            base,
        }
    }

    fn take(&mut self, owner: u32) -> u32 {
        let cell = self
            .free
            .pop_front()
            .expect("four cells an operation: one is free while an operation is");
        self.owner[cell as usize] = owner;
        cell
    }

    fn put(&mut self, cell: u32) {
        self.owner[cell as usize] = NONE;
        self.free.push_back(cell);
    }

    fn address(&self, cell: u32) -> usize {
        self.base + cell as usize * CELL_BYTES
    }

    fn owner_of(&self, context: usize) -> Result<u32, ContextError> {
        let offset = context
            .checked_sub(self.base)
            .ok_or(ContextError::OutOfRange)?;
        if offset >= self.cells.len() * CELL_BYTES {
            return Err(ContextError::OutOfRange);
        }
        if offset % CELL_BYTES != 0 {
            return Err(ContextError::Misaligned);
        }
        match self.owner[offset / CELL_BYTES] {
            NONE => Err(ContextError::Idle),
            index => Ok(index),
        }
    }
}

#[derive(Debug)]
struct Slot<T> {
    op: Option<T>,
    generation: u32,
    cell: u32,
}

/// Operations in flight, a fixed number at most; no call allocates after `new`, and none after the
/// first operation where it was made with `second`, `third` or `fourth`.
///
/// Dropping it drops the operations, and in `Cells` form the memory that the provider writes to:
/// only after the endpoint is closed, else leak it.
#[derive(Debug)]
pub(crate) struct InFlight<T> {
    slots: Box<[Slot<T>]>,
    /// First in, first out: a doubled completion meets an index at rest, not one that was just
    /// begun anew.
    free: VecDeque<u32>,
    cells: Option<Cells>,
    /// What the index of an opaque context is marked with.
    mark: u32,
    /// What is to be allocated with the first operation.
    later: Option<(u32, ContextKind)>,
}

impl<T> InFlight<T> {
    /// A slab for `capacity` operations.
    ///
    /// # Panics
    /// If `capacity` is above 2^28, which would be 64 GiB of cells.
    pub(crate) fn new(capacity: u32, contexts: ContextKind) -> Self {
        let mut this = Self::marked(0, capacity, contexts);
        this.open();
        this
    }

    /// A slab beside a `new` one: no context is of both. It takes no memory before its first
    /// operation.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub(crate) fn second(capacity: u32, contexts: ContextKind) -> Self {
        Self::marked(SECOND, capacity, contexts)
    }

    /// One more, beside a `new` one and a `second`.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub(crate) fn third(capacity: u32, contexts: ContextKind) -> Self {
        Self::marked(THIRD, capacity, contexts)
    }

    /// One more, beside the three others.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub(crate) fn fourth(capacity: u32, contexts: ContextKind) -> Self {
        Self::marked(SECOND | THIRD, capacity, contexts)
    }

    fn marked(mark: u32, capacity: u32, contexts: ContextKind) -> Self {
        assert!(
            capacity <= CAPACITY_MAX,
            "in-flight capacity {capacity} is above 2^28"
        );
        Self {
            slots: Box::default(),
            free: VecDeque::new(),
            cells: None,
            mark,
            later: Some((capacity, contexts)),
        }
    }

    #[cold]
    fn open(&mut self) {
        let Some((capacity, contexts)) = self.later.take() else {
            return;
        };
        let slot = |_| Slot {
            op: None,
            generation: 0,
            cell: NONE,
        };
        self.slots = (0..capacity).map(slot).collect();
        self.free = (0..capacity).collect();
        self.cells = match contexts {
            ContextKind::Opaque => None,
            ContextKind::Cells => Some(Cells::new(capacity)),
        };
    }

    /// Stores an operation that is about to be posted, and says which context to post it with.
    ///
    /// # Errors
    /// Gives the operation back when the slab is full.
    #[inline]
    pub(crate) fn begin(&mut self, op: T) -> Result<usize, T> {
        match self.vacant() {
            Some(vacant) => Ok(vacant.fill(op)),
            None => Err(op),
        }
    }

    /// Room for an operation, if there is some: who has it before the operation is made can make it
    /// there, without a move.
    #[inline]
    pub(crate) fn vacant(&mut self) -> Option<Vacant<'_, T>> {
        if self.later.is_some() {
            self.open();
        }
        let index = *self.free.front()?;
        Some(Vacant { slab: self, index })
    }

    /// Takes back an operation whose post was refused.
    ///
    /// # Panics
    /// If `context` is not what `begin` gave for an operation that is still in flight: it never
    /// left our hands, so that is our own mistake.
    pub(crate) fn abort(&mut self, context: usize) -> T {
        self.finish(context)
            .expect("a refused post has the context that `begin` gave")
    }

    /// Takes out the operation whose completion arrived.
    ///
    /// # Errors
    /// [`ContextError`] when the context is not that of an operation in flight; the slab is then
    /// unchanged.
    #[inline(always)]
    pub(crate) fn finish(&mut self, context: usize) -> Result<T, ContextError> {
        self.finish_in_place(context)?
            .into_op()
            .ok_or(ContextError::Idle)
    }

    /// The same, without moving it: the caller takes out of it what lives on.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    #[inline(always)]
    pub(crate) fn finish_in_place(
        &mut self,
        context: usize,
    ) -> Result<Finished<'_, T>, ContextError> {
        let named = self.named_by(context)?;
        let slot = self.slots.get_mut(named.index as usize);
        let slot = slot.ok_or(ContextError::OutOfRange)?;
        named.check(slot)?;
        Ok(Finished {
            slot,
            cells: &mut self.cells,
            free: &mut self.free,
            index: named.index,
        })
    }

    /// The operation in flight with this context.
    pub(crate) fn get(&self, context: usize) -> Option<&T> {
        let named = self.named_by(context).ok()?;
        let slot = self.slots.get(named.index as usize)?;
        slot.op.as_ref().filter(|_| named.check(slot).is_ok())
    }

    /// The operation in flight with this context, to change.
    #[inline]
    pub(crate) fn get_mut(&mut self, context: usize) -> Option<&mut T> {
        let named = self.named_by(context).ok()?;
        let slot = self.slots.get_mut(named.index as usize)?;
        named.check(slot).ok()?;
        slot.op.as_mut()
    }

    /// The operations in flight, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.slots.iter().filter_map(|slot| slot.op.as_ref())
    }

    /// The operations in flight, in no particular order, to change.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| slot.op.as_mut())
    }

    /// The contexts of the operations in flight, in no particular order; of a slab with
    /// [opaque](ContextKind::Opaque) contexts.
    pub(crate) fn contexts(&self) -> impl Iterator<Item = usize> {
        let opaque = self.cells.is_none();
        let busy = move |(index, slot): (usize, &Slot<T>)| {
            let context = (slot.generation as usize) << 32 | (index as u32 | self.mark) as usize;
            (opaque && slot.op.is_some()).then_some(context)
        };
        self.slots.iter().enumerate().filter_map(busy)
    }

    /// Takes out the operations that `wanted` picks, in no particular order.
    ///
    /// Only those whose completions never come: after the provider has closed the endpoint, for a
    /// provider that reports nothing for it.
    pub(crate) fn take_where(&mut self, wanted: impl Fn(&T) -> bool) -> Vec<T> {
        let picked = |slot: &Slot<T>| slot.op.as_ref().is_some_and(&wanted);
        let indices: Vec<_> = (0..self.slots.len())
            .filter(|&index| picked(&self.slots[index]))
            .collect();
        indices
            .into_iter()
            .filter_map(|index| self.take(index as u32))
            .collect()
    }

    /// How many operations are in flight.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether no operation is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many operations fit.
    pub(crate) fn capacity(&self) -> usize {
        match self.later {
            Some((capacity, _)) => capacity as usize,
            None => self.slots.len(),
        }
    }

    /// What a context names; there may be no such slot, and it may be idle.
    #[inline(always)]
    fn named_by(&self, context: usize) -> Result<ContextName, ContextError> {
        if context == 0 {
            return Err(ContextError::Null);
        }
        Ok(match &self.cells {
            Some(cells) => ContextName {
                index: cells.owner_of(context)?,
                generation: None,
            },
            // Another slab's has an index that is out of range.
            None => ContextName {
                index: context as u32 ^ self.mark,
                generation: Some((context >> 32) as u32),
            },
        })
    }

    fn take(&mut self, index: u32) -> Option<T> {
        let slot = &mut self.slots[index as usize];
        let op = slot.op.take()?;
        give_back(slot, &mut self.cells, &mut self.free, index);
        Some(op)
    }
}

/// The operation that a context names.
#[derive(Clone, Copy)]
struct ContextName {
    index: u32,
    /// Of an opaque context.
    generation: Option<u32>,
}

impl ContextName {
    /// Whether it is the one in this slot.
    #[inline(always)]
    fn check<T>(self, slot: &Slot<T>) -> Result<(), ContextError> {
        if slot.op.is_none() {
            return Err(ContextError::Idle);
        }
        match self.generation {
            Some(generation) if slot.generation != generation => Err(ContextError::Stale),
            Some(_) | None => Ok(()),
        }
    }
}

/// The index, and its cell, are free again.
#[inline(always)]
fn give_back<T>(
    slot: &mut Slot<T>,
    cells: &mut Option<Cells>,
    free: &mut VecDeque<u32>,
    index: u32,
) {
    if let Some(cells) = cells {
        cells.put(std::mem::replace(&mut slot.cell, NONE));
    }
    free.push_back(index);
}

/// Room for one operation.
#[derive(Debug)]
pub(crate) struct Vacant<'a, T> {
    slab: &'a mut InFlight<T>,
    index: u32,
}

impl<T> Vacant<'_, T> {
    /// Stores an operation that is about to be posted, and says which context to post it with.
    #[inline(always)]
    pub(crate) fn fill(self, op: T) -> usize {
        let Self { slab, index } = self;
        slab.free.pop_front();
        let slot = &mut slab.slots[index as usize];
        debug_assert!(slot.op.is_none(), "a free index holds no operation");
        // There is nothing to drop there, and the compiler need not look.
        std::mem::forget(slot.op.replace(op));
        match &mut slab.cells {
            None => {
                slot.generation = slot.generation.checked_add(1).unwrap_or(1);
                (slot.generation as usize) << 32 | (index | slab.mark) as usize
            }
            Some(cells) => {
                slot.cell = cells.take(index);
                cells.address(slot.cell)
            }
        }
    }
}

/// An operation that is over, still in its place. Dropping this drops what is left of it, and its
/// place is free.
#[derive(Debug)]
pub(crate) struct Finished<'a, T> {
    slot: &'a mut Slot<T>,
    cells: &'a mut Option<Cells>,
    free: &'a mut VecDeque<u32>,
    index: u32,
}

impl<T> Finished<'_, T> {
    /// The operation. It is there: only dropping this takes it away, if nobody did here.
    #[inline(always)]
    pub(crate) fn op(&mut self) -> &mut Option<T> {
        &mut self.slot.op
    }

    /// Takes it out.
    #[inline(always)]
    pub(crate) fn into_op(self) -> Option<T> {
        let mut this = ManuallyDrop::new(self);
        let op = this.op().take();
        this.free();
        op
    }

    /// It is not over after all: it stays in flight, with its context.
    #[inline(always)]
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }

    /// Frees the place of an operation out of which all that it held was taken. What is left is not
    /// dropped.
    #[inline(always)]
    pub(crate) fn clear_away(self) {
        let mut this = ManuallyDrop::new(self);
        std::mem::forget(this.op().take());
        this.free();
    }

    #[inline(always)]
    fn free(&mut self) {
        give_back(self.slot, self.cells, self.free, self.index);
    }
}

impl<T> Drop for Finished<'_, T> {
    #[inline]
    fn drop(&mut self) {
        *self.op() = None;
        self.free();
    }
}

#[cfg(all(test, not(loom)))]
#[path = "tests/in_flight.rs"]
mod tests;
