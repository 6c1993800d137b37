//! `Count`: a number that one thread writes and any thread reads; and structs of them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that its owner alone writes, one thread at a time, and any thread reads.
///
/// A change is a load and a store, which the compiler makes one instruction without a lock: it
/// costs what a plain number costs. Two threads that changed it at the same time would lose a
/// change, so it lies in what is not `Sync`, or whoever writes it has a lock.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline(always)]
    pub(crate) fn read(&self) -> u64 {
        // Relaxed, here and below: counters only, nothing is ordered by them.
        self.0.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn add(&self, more: u64) {
        self.set(self.read().wrapping_add(more));
    }

    #[inline(always)]
    pub(crate) fn sub(&self, less: u64) {
        self.set(self.read().wrapping_sub(less));
    }

    /// Sets it where that makes it more.
    #[inline(always)]
    pub(crate) fn raise(&self, value: u64) {
        if value > self.read() {
            self.set(value);
        }
    }
}

impl fmt::Debug for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read().fmt(f)
    }
}

/// Statistics of several, added up.
pub(crate) trait Totals {
    /// Adds what another counted.
    fn add(&mut self, other: &Self);

    /// It is closed: what was so at a moment is no more, what was counted stays.
    fn rest(&mut self);
}

/// The cells behind a struct of statistics: `count` only grows, `gauge` is so at this moment, `max`
/// is the most that there was, and a type in brackets is the cells of a struct within.
macro_rules! cells {
    ($(#[$meta:meta])* $cells:ident of $stats:ident {
        $($field:ident: $what:ident $(($inner:ident))?,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        pub(crate) struct $cells {
            $(pub(crate) $field: $crate::metrics::cell::cells!(@type $what $($inner)?),)*
        }

        impl $cells {
            /// What it is now. Numbers that change meanwhile may be of different moments.
            pub(crate) fn read(&self) -> $stats {
                $stats { $($field: self.$field.read(),)* }
            }
        }

        impl $crate::metrics::cell::Totals for $stats {
            fn add(&mut self, other: &Self) {
                $($crate::metrics::cell::cells!(@add $what self.$field, other.$field);)*
            }

            fn rest(&mut self) {
                $($crate::metrics::cell::cells!(@rest $what self.$field);)*
            }
        }
    };
    (@type within $inner:ident) => { $inner };
    (@type $what:ident) => { $crate::metrics::cell::Count };
    (@add within $own:expr, $other:expr) => {
        $crate::metrics::cell::Totals::add(&mut $own, &$other)
    };
    (@add max $own:expr, $other:expr) => { $own = $own.max($other) };
    (@add $what:ident $own:expr, $other:expr) => { $own = $own.saturating_add($other) };
    (@rest within $own:expr) => { $crate::metrics::cell::Totals::rest(&mut $own) };
    (@rest gauge $own:expr) => { $own = 0 };
    (@rest $what:ident $own:expr) => {};
}
pub(crate) use cells;
