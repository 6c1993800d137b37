//! Ctrl-C: the first one asks for an end, and whoever works ends in good order; a second one ends
//! the process at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::{End, Failure};

/// The signal that came first; 0: none.
static FIRST: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// From now on [`asked`] tells of SIGINT and SIGTERM.
pub(crate) fn watch() -> Result<(), Failure> {
    let first = Arc::clone(FIRST.get_or_init(Arc::default));
    for signal in [SIGINT, SIGTERM] {
        let is_second = Arc::new(AtomicBool::new(false));
        // In this order: the first signal finds that it is no second one, and then says so.
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&is_second))
            .and_then(|_| flag::register(signal, is_second))
            .and_then(|_| flag::register_usize(signal, Arc::clone(&first), signal as usize))
            .map_err(|error| Failure::os("sigaction", &error))?;
    }
    Ok(())
}

/// SIGINT changes nothing from now on: a terminal sends it to this process and to the one that
/// started it, which ends this one in good order.
pub(crate) fn leave_to_parent() -> Result<(), Failure> {
    let unread = Arc::new(AtomicBool::new(false));
    let registered = flag::register(SIGINT, unread);
    registered
        .map(drop)
        .map_err(|error| Failure::os("sigaction", &error))
}

/// How to end, once somebody has asked for an end.
pub(crate) fn asked() -> Option<End> {
    match FIRST.get()?.load(Ordering::Relaxed) as i32 {
        SIGINT => Some(End::Interrupted),
        SIGTERM => Some(End::Terminated),
        _ => None,
    }
}
