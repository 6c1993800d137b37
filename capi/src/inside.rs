//! Whether a thread is in a function of the program's that threads of the library wait for.

use std::cell::Cell;

use crate::status::{FCAST_BUSY, Failure};

thread_local! {
    /// How many such functions this thread is in.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
}

/// Runs a function of the program's.
pub(crate) fn inside<R>(function: impl FnOnce() -> R) -> R {
    let add = |more: u32| {
        // A thread that ends has no such place any more.
        let _ = INSIDE.try_with(|inside| inside.set(inside.get().wrapping_add(more)));
    };
    add(1);
    let result = function();
    add(1_u32.wrapping_neg());
    result
}

/// Refuses what would wait for the function that it was called from.
pub(crate) fn refuse_inside() -> Result<(), Failure> {
    if INSIDE.try_with(Cell::get).unwrap_or(0) == 0 {
        return Ok(());
    }
    let text = "a function of a store or of a sink called what may wait for its end";
    Err(Failure::new(FCAST_BUSY, text))
}
