//! The registry: an entry for each thing that lives and is watched, and the sums of those that are
//! gone.

#![allow(unsafe_code)] // What is watched where it lies; the registry of a process.

use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cell::Totals;
use super::stats::{WatchedEntry, WatchedKind, WatchedStats};
use crate::process::Owner;

/// What can be asked what it counted, on any thread.
pub(crate) trait Watch: Send + Sync {
    fn stats(&self) -> WatchedStats;
}

/// A place in the registry: an entry is there as long as this is.
pub(crate) struct WatchedPlace {
    id: u64,
    source: Source,
    owner: Owner,
}

/// Where statistics are read.
#[derive(Clone)]
enum Source {
    /// Cells of their own.
    Shared(Arc<dyn Watch>),
    /// Something that would not be freed in time if the registry had a handle on it. Its lock is
    /// held while it is read.
    Lying(Arc<Mutex<Lying>>),
}

/// Where something lies; when it goes, what it counted.
enum Lying {
    At(NonNull<dyn Watch>),
    Gone(WatchedStats),
}

// SAFETY: what is pointed to is `Sync` (`Watch`), and is reached through a shared reference only.
unsafe impl Send for Lying {}

impl Source {
    fn read(&self) -> WatchedStats {
        match self {
            Self::Shared(cells) => cells.stats(),
            Self::Lying(place) => {
                match &*place.lock().unwrap_or_else(PoisonError::into_inner) {
                    // SAFETY: whoever made the place promised that it lies there until the place
                    // is dropped, which takes the pointer away under the lock that is held here.
                    Lying::At(at) => unsafe { at.as_ref() }.stats(),
                    Lying::Gone(stats) => stats.clone(),
                }
            }
        }
    }
}

impl WatchedPlace {
    /// An entry for these cells; without a name it gets one.
    pub(crate) fn new(kind: WatchedKind, name: Option<&str>, cells: Arc<dyn Watch>) -> Self {
        Self::of(kind, name, Source::Shared(cells))
    }

    /// An entry for what lies in something else.
    ///
    /// # Safety
    ///
    /// It lies there, may be read on any thread, and is not referred to exclusively, until the
    /// place is dropped.
    pub(crate) unsafe fn lying(
        kind: WatchedKind,
        name: Option<&str>,
        at: NonNull<dyn Watch>,
    ) -> Self {
        let place = Arc::new(Mutex::new(Lying::At(at)));
        Self::of(kind, name, Source::Lying(place))
    }

    fn of(kind: WatchedKind, name: Option<&str>, source: Source) -> Self {
        let registry = registry();
        // The models run what is watched, and nobody reads it there.
        if cfg!(loom) {
            return Self {
                id: 0,
                source,
                owner: registry.owner,
            };
        }
        let mut entries = registry.lock();
        entries.last += 1;
        let id = entries.last;
        let name = match name {
            Some(name) => name.into(),
            None => {
                let number = entries.named.entry(kind).or_default();
                *number += 1;
                format!("{kind}-{number}").into()
            }
        };
        let entry = OpenEntry {
            kind,
            name,
            source: source.clone(),
        };
        entries.open.insert(id, entry);
        Self {
            id,
            source,
            owner: registry.owner,
        }
    }

    /// Another entry of what this one is of, by the same name.
    pub(crate) fn beside(&self, cells: Arc<dyn Watch>) -> Self {
        let found = match self.owner.is_here() {
            true => registry().lock().open.get(&self.id).cloned(),
            false => None,
        };
        let (kind, name) = match found {
            Some(entry) => (entry.kind, entry.name),
            None => (WatchedKind::Process, "".into()),
        };
        Self::new(kind, Some(&name), cells)
    }

    /// Its number in the process.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Gives it another name.
    pub(crate) fn rename(&self, name: &str) {
        if self.owner.is_here()
            && let Some(entry) = registry().lock().open.get_mut(&self.id)
        {
            entry.name = name.into();
        }
    }
}

impl fmt::Debug for WatchedPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WatchedPlace").field(&self.id).finish()
    }
}

impl Drop for WatchedPlace {
    fn drop(&mut self) {
        // A forked child has a registry of its own, and may have inherited a lock that is held.
        if cfg!(loom) || !self.owner.is_here() {
            return;
        }
        let mut stats = self.source.read();
        if let Source::Lying(place) = &self.source {
            // Whoever reads the registry meanwhile finds it here.
            let gone = Lying::Gone(stats.clone());
            *place.lock().unwrap_or_else(PoisonError::into_inner) = gone;
        }
        stats.rest();
        let mut entries = registry().lock();
        let Some(entry) = entries.open.remove(&self.id) else {
            return;
        };
        let place = (entry.kind, stats.page());
        match entries.closed.get_mut(&place) {
            Some(sum) => sum.add(&stats),
            None => {
                entries.closed.insert(place, stats);
            }
        }
    }
}

/// What something is watched as.
#[derive(Debug, Clone)]
pub(crate) struct WatchedAs {
    pub(crate) kind: WatchedKind,
    pub(crate) name: Option<Arc<str>>,
}

impl WatchedAs {
    /// By a name that it gets.
    pub(crate) fn of(kind: WatchedKind) -> Self {
        Self { kind, name: None }
    }
}

/// Cells, with their entry: it is there as long as these are.
#[derive(Debug)]
pub(crate) struct WatchedCells<C> {
    cells: Arc<C>,
    place: WatchedPlace,
}

impl<C: Watch + Default + 'static> WatchedCells<C> {
    pub(crate) fn new(kind: WatchedKind, name: Option<&str>) -> Self {
        let cells = Arc::new(C::default());
        let place = WatchedPlace::new(kind, name, Arc::clone(&cells) as Arc<dyn Watch>);
        Self { cells, place }
    }

    /// Of what has an entry already.
    pub(crate) fn beside(other: &WatchedPlace) -> Self {
        let cells = Arc::new(C::default());
        let place = other.beside(Arc::clone(&cells) as Arc<dyn Watch>);
        Self { cells, place }
    }

    pub(crate) fn share(&self) -> Arc<C> {
        Arc::clone(&self.cells)
    }

    pub(crate) fn place(&self) -> &WatchedPlace {
        &self.place
    }
}

impl<C> std::ops::Deref for WatchedCells<C> {
    type Target = C;

    #[inline(always)]
    fn deref(&self) -> &C {
        &self.cells
    }
}

/// What there is in a process.
struct Registry {
    owner: Owner,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    last: u64,
    /// How many of each kind were named here.
    named: BTreeMap<WatchedKind, u64>,
    open: BTreeMap<u64, OpenEntry>,
    /// By kind, and by the page of statistics: some have several.
    closed: BTreeMap<(WatchedKind, u8), WatchedStats>,
}

#[derive(Clone)]
struct OpenEntry {
    kind: WatchedKind,
    name: Arc<str>,
    source: Source,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(std::ptr::null_mut());

/// The registry of this process. A forked child has one of its own, which is empty: its parent's
/// may have been locked by a thread that the child has not.
fn registry() -> &'static Registry {
    let mut found = REGISTRY.load(Ordering::Acquire);
    loop {
        // SAFETY: null, or a registry that was leaked below and is never freed.
        if let Some(registry) = unsafe { found.as_ref() }
            && registry.owner.is_here()
        {
            return registry;
        }
        let new = Box::into_raw(Box::new(Registry {
            owner: Owner::current(),
            entries: Mutex::default(),
        }));
        // Release pairs with the Acquire of whoever finds it.
        match REGISTRY.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => found = new,
            Err(other) => {
                // SAFETY: made right above, and nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
                found = other;
            }
        }
    }
}

/// The sums of what is closed, then what lives, in the order in which it was made. What is read is
/// read without the lock of the registry, so that who opens and closes does not wait for it.
pub(super) fn snapshot() -> Vec<WatchedEntry> {
    let (closed, open) = {
        let entries = registry().lock();
        (entries.closed.clone(), entries.open.clone())
    };
    let closed = closed.into_iter().map(|((kind, _), stats)| WatchedEntry {
        kind,
        name: "".into(),
        id: 0,
        stats,
    });
    let open = open.into_iter().map(|(id, entry)| WatchedEntry {
        kind: entry.kind,
        name: entry.name,
        id,
        stats: entry.source.read(),
    });
    closed.chain(open).collect()
}

/// Whether there is such an entry.
#[cfg(all(test, not(loom)))]
pub(crate) fn has(id: u64) -> bool {
    registry().lock().open.contains_key(&id)
}
