//! The log: what the library has to say, given to a function of the program's.
//!
//! It is a collector of `tracing`'s, put in place once; the function may come and go.

#![allow(unsafe_code)] // A function of the program's is called here.

use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tracing_core::field::{Field, Visit};
use tracing_core::span::{Attributes, Id, Record};
use tracing_core::{Dispatch, Event, Level, LevelFilter, Metadata, Subscriber};

use crate::call::call;
use crate::status::{FCAST_BUSY, Failure, c_string, fcast_status};

/// Something failed that nobody else is told.
pub const FCAST_LOG_ERROR: u32 = 1;
/// Something is not as it should be, and it goes on.
pub const FCAST_LOG_WARN: u32 = 2;
/// What happens seldom: what was opened, connected, closed.
pub const FCAST_LOG_INFO: u32 = 3;
/// What helps to find a defect.
pub const FCAST_LOG_DEBUG: u32 = 4;
/// Everything.
pub const FCAST_LOG_TRACE: u32 = 5;

/// Takes a line of the log: its level, which part of the library says it, and the words with their
/// numbers ("name=value"). The texts end with a zero and are valid during the call.
///
/// It is called on the thread that has something to say, by several at once, within a call of this
/// interface or on a thread of the library's. It must be short and must not throw; what it calls of
/// this interface is refused with FCAST_BUSY.
pub type fcast_log_fn = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        level: u32,
        target: *const c_char,
        message: *const c_char,
    ),
>;

/// Where lines go.
struct Hook {
    function: unsafe extern "C" fn(*mut c_void, u32, *const c_char, *const c_char),
    context: *mut c_void,
}

// SAFETY: the pointer is not followed here, and the interface says that the function is called on
// any thread, by several at once.
unsafe impl Send for Hook {}
// SAFETY: as above.
unsafe impl Sync for Hook {}

static HOOK: RwLock<Option<Arc<Hook>>> = RwLock::new(None);
/// The highest level that is wanted; 0: none.
static LEVEL: AtomicU32 = AtomicU32::new(0);
/// Whether the collector was put in place, which it stays; changed by who has `CHANGES` locked.
static IN_PLACE: AtomicBool = AtomicBool::new(false);
/// Held while the hook is changed.
static CHANGES: Mutex<()> = Mutex::new(());

thread_local! {
    /// Whether this thread is in the program's function.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is in the function that takes the log: locks of the library may be held, so
/// that no call can be let in.
#[inline]
pub(crate) fn is_inside() -> bool {
    // Without a log, the look at what is the thread's own is spared.
    IN_PLACE.load(Ordering::Relaxed) && INSIDE.try_with(Cell::get).unwrap_or(false)
}

/// Refuses a call from the function that takes the log.
#[cold]
pub(crate) fn inside() -> Failure {
    let text = "the function that takes the log called the interface: it must not";
    Failure::new(FCAST_BUSY, text)
}

/// Has a function called with each line of the log up to a level: FCAST_LOG_ERROR to
/// FCAST_LOG_TRACE. NULL: nobody is told. When this returns, the function that was set before is
/// not called any more; what it is at is waited for. Any thread.
///
/// FCAST_INVALID: the level. FCAST_BUSY: the program has a collector of Rust's `tracing` in place,
/// which gets the log.
///
/// # Safety
///
/// `function` may be called with `context`, by any thread, until another call of this one returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_log_set(
    function: fcast_log_fn,
    context: *mut c_void,
    level: u32,
) -> fcast_status {
    call(|| {
        if function.is_some() && !(FCAST_LOG_ERROR..=FCAST_LOG_TRACE).contains(&level) {
            return Err(Failure::invalid(format!("level = {level}: must be 1 to 5")));
        }
        let _changes = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        if function.is_some() && !IN_PLACE.load(Ordering::Relaxed) {
            put_in_place()?;
            IN_PLACE.store(true, Ordering::Relaxed);
        }
        let next = function.map(|function| Arc::new(Hook { function, context }));
        let level = next.as_ref().map_or(0, |_| level);
        LEVEL.store(level, Ordering::Relaxed);
        let mut hook = HOOK.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *hook, next);
        drop(hook);
        tracing_core::callsite::rebuild_interest_cache();
        if let Some(before) = before {
            wait_for(&before);
        }
        Ok(())
    })
}

/// Waits until nobody is in a function that is not set any more.
fn wait_for(before: &Arc<Hook>) {
    while Arc::strong_count(before) > 1 {
        std::thread::sleep(Duration::from_micros(50));
    }
    // Who left it last did so before this thread goes on.
    std::sync::atomic::fence(Ordering::Acquire);
}

fn put_in_place() -> Result<(), Failure> {
    tracing_core::dispatcher::set_global_default(Dispatch::new(Collector)).map_err(|_| {
        let text = "the program has a collector of tracing's in place, which gets the log";
        Failure::new(FCAST_BUSY, text)
    })
}

/// Gives lines to the function that is set.
struct Collector;

fn number_of(level: Level) -> u32 {
    match level {
        Level::ERROR => FCAST_LOG_ERROR,
        Level::WARN => FCAST_LOG_WARN,
        Level::INFO => FCAST_LOG_INFO,
        Level::DEBUG => FCAST_LOG_DEBUG,
        Level::TRACE => FCAST_LOG_TRACE,
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && number_of(*metadata.level()) <= LEVEL.load(Ordering::Relaxed)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match LEVEL.load(Ordering::Relaxed) {
            0 => LevelFilter::OFF,
            FCAST_LOG_ERROR => LevelFilter::ERROR,
            FCAST_LOG_WARN => LevelFilter::WARN,
            FCAST_LOG_INFO => LevelFilter::INFO,
            FCAST_LOG_DEBUG => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        })
    }

    fn event(&self, event: &Event<'_>) {
        let hook = HOOK.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(hook) = hook else {
            return;
        };
        let mut line = Line::default();
        event.record(&mut line);
        let target = c_string(event.metadata().target());
        let message = c_string((line.words + &line.fields).trim_start());
        let level = number_of(*event.metadata().level());
        INSIDE.with(|inside| inside.set(true));
        // SAFETY: who set it promised that it may be called until it is set anew, which waits for
        // this clone to be dropped.
        unsafe { (hook.function)(hook.context, level, target.as_ptr(), message.as_ptr()) };
        INSIDE.with(|inside| inside.set(false));
    }

    // The library has no spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The words of an event, and its other fields behind them.
#[derive(Default)]
struct Line {
    words: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // A text takes all that is written to it.
        let _ = match field.name() {
            "message" => write!(self.words, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}
