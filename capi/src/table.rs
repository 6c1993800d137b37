//! `Table`: values that C names by numbers, none of which ever names another value.

#![allow(unsafe_code)] // Values lie in cells, which a state beside them guards.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::status::{FCAST_BUSY, FCAST_NO_RESOURCES, FCAST_STALE, Failure};

/// Entries of a chunk: a chunk is made when it is needed, and never moves or goes.
const CHUNK: usize = 1024;
/// Chunks of a table.
const CHUNKS: usize = 1024;

// An id: 8 bits of the table's kind, 32 of the generation, 24 of the place.
const PLACE_BITS: u32 = 24;
const GENERATION_BITS: u32 = 32;

// A state: 32 bits of the generation, then these, then a count of those who share the value.
const GENERATION_SHIFT: u32 = 32;
const LIVE: u64 = 1 << 31;
const EXCLUSIVE: u64 = 1 << 30;
const USERS: u64 = EXCLUSIVE - 1;

/// Values of one kind, by numbers.
///
/// The state of an entry says who may touch its value: those who share it (a count), or one alone
/// (`EXCLUSIVE`). `release` ends its life: nobody gets in any more, and who leaves last, or
/// `release` itself where nobody is in, takes the value out and gives the place a new generation.
pub(crate) struct Table<T> {
    kind: u8,
    name: &'static str,
    chunks: [OnceLock<Box<[Entry<T>]>>; CHUNKS],
    free: Mutex<Free>,
}

struct Entry<T> {
    state: AtomicU64,
    value: UnsafeCell<Option<T>>,
}

#[derive(Default)]
struct Free {
    places: Vec<u32>,
    /// Places from here on never had a value.
    fresh: u32,
}

// SAFETY: a value is reached by `Shared`, which `share` makes where `T: Sync` alone, or by
// `Exclusive` and `take`, which give it to one thread after another, as `T: Send` allows; the
// states are atomic, and what they order is said at each change.
unsafe impl<T: Send> Sync for Table<T> {}

impl<T> Table<T> {
    /// `kind`: a number that no other table has. `name`: what the values are called in errors.
    pub(crate) const fn new(kind: u8, name: &'static str) -> Self {
        Self {
            kind,
            name,
            chunks: [const { OnceLock::new() }; CHUNKS],
            free: Mutex::new(Free {
                places: Vec::new(),
                fresh: 0,
            }),
        }
    }

    /// Puts a value in; gives its number, which is never 0.
    pub(crate) fn insert(&self, value: T) -> Result<u64, Failure> {
        let place = self.free_place().ok_or_else(|| self.full())?;
        let entry = &self.chunk(place / CHUNK)[place % CHUNK];
        let generation = entry.state.load(Ordering::Acquire) >> GENERATION_SHIFT;
        // SAFETY: the place was on the free list, from which it is taken once, and its state is
        // not `LIVE`: nobody else reaches the cell. What its last user did to it happened before
        // that user put it on the list, which is behind a lock.
        unsafe { *entry.value.get() = Some(value) };
        let state = generation << GENERATION_SHIFT | LIVE;
        // Release: who finds it live finds the value.
        entry.state.store(state, Ordering::Release);
        Ok(self.id(place, generation))
    }

    fn id(&self, place: usize, generation: u64) -> u64 {
        u64::from(self.kind) << (PLACE_BITS + GENERATION_BITS)
            | generation << PLACE_BITS
            | place as u64
    }

    fn free_place(&self) -> Option<usize> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = free.places.pop() {
            return Some(place as usize);
        }
        let fresh = free.fresh;
        if fresh as usize == CHUNK * CHUNKS {
            return None;
        }
        free.fresh += 1;
        Some(fresh as usize)
    }

    fn chunk(&self, index: usize) -> &[Entry<T>] {
        self.chunks[index].get_or_init(|| {
            let empty = || Entry {
                // Generations begin at 1, so that no id is 0.
                state: AtomicU64::new(1 << GENERATION_SHIFT),
                value: UnsafeCell::new(None),
            };
            std::iter::repeat_with(empty).take(CHUNK).collect()
        })
    }

    #[inline]
    fn find(&self, id: u64) -> Result<(&Entry<T>, u64), Failure> {
        let place = (id & ((1 << PLACE_BITS) - 1)) as usize;
        let generation = id >> PLACE_BITS & u64::from(u32::MAX);
        let kind = (id >> (PLACE_BITS + GENERATION_BITS)) as u8;
        let chunk = self.chunks.get(place / CHUNK).and_then(OnceLock::get);
        let entry = chunk.and_then(|entries| entries.get(place % CHUNK));
        match entry.filter(|_| kind == self.kind) {
            Some(entry) => Ok((entry, generation)),
            None => Err(self.stale(id)),
        }
    }

    /// Whether a value was put in and not released.
    pub(crate) fn is_live(&self, id: u64) -> bool {
        self.find(id).is_ok_and(|(entry, generation)| {
            let state = entry.state.load(Ordering::Relaxed);
            state >> GENERATION_SHIFT == generation && state & LIVE != 0
        })
    }

    /// Lets a thread in beside others.
    #[inline]
    pub(crate) fn share(&self, id: u64) -> Result<Shared<'_, T>, Failure>
    where
        T: Sync,
    {
        let entry = self.come_in(id, 1)?;
        Ok(Shared {
            table: self,
            entry,
            id,
        })
    }

    /// Lets one thread in, alone.
    #[inline]
    pub(crate) fn enter(&self, id: u64) -> Result<Exclusive<'_, T>, Failure> {
        let entry = self.come_in(id, EXCLUSIVE)?;
        Ok(Exclusive {
            table: self,
            entry,
            id,
        })
    }

    /// Adds `how` to the state: one user more, or one alone.
    #[inline]
    fn come_in(&self, id: u64, how: u64) -> Result<&Entry<T>, Failure> {
        let (entry, generation) = self.find(id)?;
        let mut state = entry.state.load(Ordering::Relaxed);
        loop {
            if state >> GENERATION_SHIFT != generation || state & LIVE == 0 {
                return Err(self.stale(id));
            }
            let alone = how == EXCLUSIVE && state & USERS != 0;
            if alone || state & EXCLUSIVE != 0 || state & USERS == USERS {
                return Err(self.busy());
            }
            // Acquire: what was done to the value before it was left, or put in, is seen.
            let next = state + how;
            let order = (Ordering::Acquire, Ordering::Relaxed);
            match entry
                .state
                .compare_exchange_weak(state, next, order.0, order.1)
            {
                Ok(_) => return Ok(entry),
                Err(now) => state = now,
            }
        }
    }

    /// Ends a value: nobody gets in any more, and it is dropped when the last one has left.
    pub(crate) fn release(&self, id: u64) -> Result<(), Failure> {
        let (entry, generation) = self.find(id)?;
        let mut state = entry.state.load(Ordering::Relaxed);
        loop {
            if state >> GENERATION_SHIFT != generation || state & LIVE == 0 {
                return Err(self.stale(id));
            }
            let next = state & !LIVE;
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            match entry
                .state
                .compare_exchange_weak(state, next, order.0, order.1)
            {
                Ok(_) if next & (USERS | EXCLUSIVE) == 0 => {
                    drop(self.reclaim(entry, id));
                    return Ok(());
                }
                Ok(_) => return Ok(()),
                Err(now) => state = now,
            }
        }
    }

    /// Takes a value that nobody uses out.
    pub(crate) fn take(&self, id: u64) -> Result<T, Failure> {
        self.try_take(id, Ok)
    }

    /// Uses a value up, unless it comes back.
    pub(crate) fn try_take<R>(
        &self,
        id: u64,
        use_up: impl FnOnce(T) -> Result<R, (Failure, T)>,
    ) -> Result<R, Failure> {
        let inside = self.enter(id)?;
        let cell = inside.entry.value.get();
        // SAFETY: the state is `EXCLUSIVE` by `inside`, which is not looked into here.
        let value = unsafe { (*cell).take() };
        match use_up(value.expect("a live entry has a value")) {
            Ok(used) => {
                // `inside` leaves an entry that is dead and empty.
                inside.entry.state.fetch_and(!LIVE, Ordering::AcqRel);
                Ok(used)
            }
            Err((failure, back)) => {
                // SAFETY: as above.
                unsafe { *cell = Some(back) };
                Err(failure)
            }
        }
    }

    /// Takes the value out of an entry that is dead and has nobody in it but the caller, and gives
    /// its place to others.
    fn reclaim(&self, entry: &Entry<T>, id: u64) -> Option<T> {
        // SAFETY: the state is not `LIVE`, so nobody comes in, and nobody is in but the caller, who
        // is the one that made it so: exactly one change leads to a dead state without users.
        let value = unsafe { (*entry.value.get()).take() };
        let generation = (id >> PLACE_BITS & u64::from(u32::MAX)) + 1;
        // A place whose generations are used up is never used again.
        if generation <= u64::from(u32::MAX) {
            // Release: who gets the place finds the cell empty.
            entry
                .state
                .store(generation << GENERATION_SHIFT, Ordering::Release);
            let place = (id & ((1 << PLACE_BITS) - 1)) as u32;
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            free.places.push(place);
        }
        value
    }

    /// Takes one user, or the one alone, from the state.
    #[inline]
    fn leave(&self, entry: &Entry<T>, id: u64, how: u64) {
        // Release: who comes in next sees what was done. Acquire: who leaves last a value that is
        // dead sees what the others did, before it drops it.
        let before = entry.state.fetch_sub(how, Ordering::AcqRel);
        let now = before - how;
        if now & (LIVE | USERS | EXCLUSIVE) == 0 {
            drop(self.reclaim(entry, id));
        }
    }

    #[cold]
    fn stale(&self, id: u64) -> Failure {
        let text = match id {
            0 => format!("no {}: the handle is zero", self.name),
            _ => format!("no such {}: it was released, or never was", self.name),
        };
        Failure::new(FCAST_STALE, text)
    }

    #[cold]
    fn busy(&self) -> Failure {
        let text = format!(
            "this {} is in use by another call: one thread at a time, and not from its callbacks",
            self.name
        );
        Failure::new(FCAST_BUSY, text)
    }

    #[cold]
    fn full(&self) -> Failure {
        let most = CHUNK * CHUNKS;
        let text = format!("{most} of {} are open, as many as there may be", self.name);
        Failure::new(FCAST_NO_RESOURCES, text)
    }
}

/// A value that others may look at, too.
pub(crate) struct Shared<'a, T> {
    table: &'a Table<T>,
    entry: &'a Entry<T>,
    id: u64,
}

impl<T> Deref for Shared<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this user is counted in the state, so nobody is alone with the value, and it is
        // not taken out.
        let value = unsafe { &*self.entry.value.get() };
        value.as_ref().expect("a live entry has a value")
    }
}

impl<T> Drop for Shared<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.table.leave(self.entry, self.id, 1);
    }
}

/// A value that nobody else looks at.
pub(crate) struct Exclusive<'a, T> {
    table: &'a Table<T>,
    entry: &'a Entry<T>,
    id: u64,
}

impl<T> Deref for Exclusive<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the state is `EXCLUSIVE` by this one, and there is one of it.
        let value = unsafe { &*self.entry.value.get() };
        value.as_ref().expect("a live entry has a value")
    }
}

impl<T> DerefMut for Exclusive<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and this one is borrowed mutably.
        let value = unsafe { &mut *self.entry.value.get() };
        value.as_mut().expect("a live entry has a value")
    }
}

impl<T> Drop for Exclusive<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // What a panic left half done is used no more: its entry stays busy, and is leaked.
        if !std::thread::panicking() {
            self.table.leave(self.entry, self.id, EXCLUSIVE);
        }
    }
}

#[cfg(test)]
#[path = "tests/table.rs"]
mod tests;
