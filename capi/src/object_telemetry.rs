//! Statistics of objects, written to a function of the program's.

#![allow(unsafe_code)] // A function of the program's is called here.

use std::ffi::{c_char, c_void};
use std::io;
use std::time::Duration;

use fabricast::object::{TelemetryFormat, TelemetryGroups, TelemetryWriter, TelemetryWriterConfig};

use crate::call::call;
use crate::pointer::{self, Out, Sized0};
use crate::status::{FCAST_OK, FCAST_SYSTEM, Failure, fcast_status, name_of};
use crate::table::Table;

static WRITERS: Table<TelemetryWriter> = Table::new(51, "telemetry writer");

/// Writes statistics of all clients and servers of objects in the process. Any thread.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_object_telemetry {
    /// Its number; 0: none.
    pub id: u64,
}

/// How many transfers there were, and how many bytes they moved.
pub const FCAST_TELEMETRY_TRANSFERS: u32 = 1;
/// How many failed, and why.
pub const FCAST_TELEMETRY_FAILURES: u32 = 2;
/// How long they took.
pub const FCAST_TELEMETRY_LATENCY: u32 = 4;
/// The program's functions that clients call.
pub const FCAST_TELEMETRY_CALLBACKS: u32 = 8;
/// Memory that is lent: tokens, new keys, what is kept back.
pub const FCAST_TELEMETRY_LENDING: u32 = 16;

/// Takes `len` bytes of text, which does not end with a zero; with `len` 0 all was written that
/// there is for now, and is to be flushed. A status but FCAST_OK ends the writer: nothing is
/// written any more. It is called on the writer's thread, by nobody else, and must not throw.
pub type fcast_write_fn = Option<
    unsafe extern "C" fn(context: *mut c_void, text: *const c_char, len: usize) -> fcast_status,
>;

/// What is written, and how often. 0 in a field is the default.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_object_telemetry_settings {
    /// sizeof(fcast_object_telemetry_settings).
    pub size: usize,
    /// The sum of some of FCAST_TELEMETRY_TRANSFERS and the others; unknown bits mean nothing.
    /// Default: all.
    pub groups: u32,
    /// 1: in Prometheus' text format, and not for people.
    pub prometheus: u32,
    /// How often, in milliseconds, at least 10. Default: once, at the end.
    pub every_ms: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: C's layout, a `usize` first; 0 is a value of all its fields.
unsafe impl Sized0 for fcast_object_telemetry_settings {}

/// Where text goes.
struct CallerWriter {
    function: unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> fcast_status,
    context: *mut c_void,
}

// SAFETY: the pointer is not followed here, and the interface says that the function is called on
// the writer's thread.
unsafe impl Send for CallerWriter {}

impl CallerWriter {
    fn give(&self, text: &[u8]) -> io::Result<()> {
        // SAFETY: the program gave both together, until the writer has ended.
        match unsafe { (self.function)(self.context, text.as_ptr().cast(), text.len()) } {
            FCAST_OK => Ok(()),
            status => Err(io::Error::other(format!(
                "the function that takes statistics answered {}",
                name_of(status).to_string_lossy()
            ))),
        }
    }
}

impl io::Write for CallerWriter {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if !text.is_empty() {
            self.give(text)?;
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.give(b"")
    }
}

/// Starts to write statistics of all clients and servers of the process, those that are closed
/// too, with a function of the program's: as often as `settings` say, and once more at the end.
/// Any thread.
///
/// # Safety
///
/// `function` may be called with `context` until the writer was finished or released; `settings`:
/// NULL, or a struct whose size field is right; `telemetry`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_telemetry_start(
    function: fcast_write_fn,
    context: *mut c_void,
    settings: *const fcast_object_telemetry_settings,
    telemetry: *mut fcast_object_telemetry,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(telemetry, "telemetry") }?;
        // SAFETY: the caller's promise.
        let given: fcast_object_telemetry_settings =
            unsafe { pointer::sized(settings, "settings") }?;
        let function = function.ok_or_else(|| pointer::null("function"))?;
        let mut config = TelemetryWriterConfig::default();
        if given.groups != 0 {
            config = config.groups(TelemetryGroups::from_bits_truncate(given.groups));
        }
        if given.prometheus != 0 {
            config = config.format(TelemetryFormat::Prometheus);
        }
        if given.every_ms != 0 {
            config = config.every(Duration::from_millis(u64::from(given.every_ms)));
        }
        let started = TelemetryWriter::start(CallerWriter { function, context }, config);
        let id = WRITERS.insert(started.map_err(system)?)?;
        out.set(fcast_object_telemetry { id });
        Ok(())
    })
}

#[cold]
fn system(error: io::Error) -> Failure {
    let mut failure = Failure::new(FCAST_SYSTEM, error.to_string());
    failure.errno = error.raw_os_error().unwrap_or_default();
    failure
}

/// Writes these groups from now on: the sum of some of FCAST_TELEMETRY_TRANSFERS and the others;
/// unknown bits mean nothing. 0: nothing is written. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_object_telemetry_set_groups(
    telemetry: fcast_object_telemetry,
    groups: u32,
) -> fcast_status {
    call(|| {
        let groups = TelemetryGroups::from_bits_truncate(groups);
        WRITERS.share(telemetry.id)?.set_groups(groups);
        Ok(())
    })
}

/// Has a writer write once more and flush, and ends it: its function is not called any more. The
/// handle is used up, also where this says that the function had failed (FCAST_SYSTEM). Any thread
/// but the writer's.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_object_telemetry_finish(telemetry: fcast_object_telemetry) -> fcast_status {
    call(|| WRITERS.take(telemetry.id)?.finish().map_err(system))
}

/// As fcast_object_telemetry_finish; what the function answers is in the log. Any thread but the
/// writer's.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_object_telemetry_release(
    telemetry: fcast_object_telemetry,
) -> fcast_status {
    call(|| WRITERS.release(telemetry.id))
}
