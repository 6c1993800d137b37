//! What C calls for counters: as structs, and as text.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::c_char;
use std::fmt::Write;

use fabricast::object::{TelemetryGroups, TelemetryReport};

use crate::call::call;
use crate::endpoint::fcast_endpoint;
use crate::event_loop::{LOOPS, fcast_loop};
use crate::face::Face;
use crate::handle::ENDPOINTS;
use crate::pointer::{self, Sized0};
use crate::stats::{
    Counters, fcast_buffered_stats, fcast_loop_stats, fcast_process_stats, fcast_publish_stats,
    fcast_receive_stats, fcast_send_stats, fcast_subscribe_stats,
};
use crate::status::{FCAST_NO_RESOURCES, Failure, fcast_status};

impl Face {
    fn send_stats(&self) -> Option<fcast_send_stats> {
        match self {
            Self::Send(endpoint, _) => Some(endpoint.stats().into()),
            Self::Buffered(endpoint, _) => Some(endpoint.send_stats().into()),
            Self::Connectionless(endpoint, _) => Some(endpoint.send_stats().into()),
            _ => None,
        }
    }

    fn receive_stats(&self) -> Option<fcast_receive_stats> {
        match self {
            Self::Receive(endpoint, _) => Some(endpoint.stats().into()),
            Self::Connectionless(endpoint, _) => Some(endpoint.receive_stats().into()),
            _ => None,
        }
    }

    fn buffered_stats(&self) -> Option<fcast_buffered_stats> {
        match self {
            Self::Buffered(endpoint, _) => Some(endpoint.stats().into()),
            Self::PublishBuffered(endpoint, _) => Some(endpoint.stats().into()),
            _ => None,
        }
    }

    fn publish_stats(&self) -> Option<fcast_publish_stats> {
        let endpoint = self.publisher().ok()?;
        Some(endpoint.stats().into())
    }

    fn subscribe_stats(&self) -> Option<fcast_subscribe_stats> {
        match self {
            Self::Subscribe(endpoint, _) => Some(endpoint.stats().into()),
            _ => None,
        }
    }

    /// Calls `tell` with each counter that this kind of endpoint has.
    fn each_counter(&self, tell: &mut dyn FnMut(&str, u64)) -> Result<(), Failure> {
        if matches!(self, Self::Closed(_)) {
            return Err(self.cannot("count"));
        }
        let all: [(&str, Option<Box<dyn Counters>>); 5] = [
            ("fabricast_send_", self.send_stats().map(boxed)),
            ("fabricast_receive_", self.receive_stats().map(boxed)),
            ("fabricast_buffered_", self.buffered_stats().map(boxed)),
            ("fabricast_publish_", self.publish_stats().map(boxed)),
            ("fabricast_subscribe_", self.subscribe_stats().map(boxed)),
        ];
        for (front, counters) in all {
            if let Some(counters) = counters {
                counters.each(front, tell);
            }
        }
        Ok(())
    }
}

fn boxed(counters: impl Counters + 'static) -> Box<dyn Counters> {
    Box::new(counters)
}

/// Writes one kind of counters of an endpoint.
///
/// # Safety
///
/// `stats`: null, or a writable struct whose size field is right.
unsafe fn write_stats<T: Sized0>(
    endpoint: fcast_endpoint,
    stats: *mut T,
    of: impl FnOnce(&Face) -> Option<T>,
    what: &str,
) -> fcast_status {
    call(|| {
        let entry = ENDPOINTS.enter(endpoint.id)?;
        let counted = of(&entry.face).ok_or_else(|| entry.face.cannot(what))?;
        // SAFETY: the caller's promise.
        unsafe { pointer::write_sized(stats, &counted, "stats") }
    })
}

/// The counters of an endpoint that sends: a sender of either kind, or a connectionless one. The
/// field `size` is set by the caller. FCAST_UNSUPPORTED: it is of another kind; FCAST_CLOSED: it
/// was closed. One thread at a time.
///
/// # Safety
///
/// `stats`: NULL, or a writable struct whose size field is right.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_endpoint_send_stats(
    endpoint: fcast_endpoint,
    stats: *mut fcast_send_stats,
) -> fcast_status {
    // SAFETY: the caller's promise.
    unsafe { write_stats(endpoint, stats, Face::send_stats, "count sends") }
}

/// The counters of an endpoint that receives: a receiver, or a connectionless one. The field `size`
/// is set by the caller. FCAST_UNSUPPORTED: it is of another kind; FCAST_CLOSED: it was closed. One
/// thread at a time.
///
/// # Safety
///
/// `stats`: NULL, or a writable struct whose size field is right.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_endpoint_receive_stats(
    endpoint: fcast_endpoint,
    stats: *mut fcast_receive_stats,
) -> fcast_status {
    // SAFETY: the caller's promise.
    unsafe { write_stats(endpoint, stats, Face::receive_stats, "count receives") }
}

/// The counters of an endpoint that buffers small messages. The field `size` is set by the
/// caller. FCAST_UNSUPPORTED: it is of another kind; FCAST_CLOSED: it was closed. One thread at a
/// time.
///
/// # Safety
///
/// `stats`: NULL, or a writable struct whose size field is right.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_endpoint_buffered_stats(
    endpoint: fcast_endpoint,
    stats: *mut fcast_buffered_stats,
) -> fcast_status {
    // SAFETY: the caller's promise.
    unsafe {
        write_stats(
            endpoint,
            stats,
            Face::buffered_stats,
            "count small messages",
        )
    }
}

/// The counters of an endpoint that publishes. The field `size` is set by the
/// caller. FCAST_UNSUPPORTED: it is of another kind; FCAST_CLOSED: it was closed. One thread at a
/// time.
///
/// # Safety
///
/// `stats`: NULL, or a writable struct whose size field is right.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_endpoint_publish_stats(
    endpoint: fcast_endpoint,
    stats: *mut fcast_publish_stats,
) -> fcast_status {
    // SAFETY: the caller's promise.
    unsafe { write_stats(endpoint, stats, Face::publish_stats, "count publications") }
}

/// The counters of an endpoint that subscribes. The field `size` is set by the
/// caller. FCAST_UNSUPPORTED: it is of another kind; FCAST_CLOSED: it was closed. One thread at a
/// time.
///
/// # Safety
///
/// `stats`: NULL, or a writable struct whose size field is right.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_endpoint_subscribe_stats(
    endpoint: fcast_endpoint,
    stats: *mut fcast_subscribe_stats,
) -> fcast_status {
    // SAFETY: the caller's promise.
    unsafe {
        write_stats(
            endpoint,
            stats,
            Face::subscribe_stats,
            "count subscriptions",
        )
    }
}

/// The counters of a loop. Its field `size` is set by the caller. One thread at a time.
///
/// # Safety
///
/// `stats`: NULL, or a writable struct whose size field is right.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_loop_read_stats(
    in_loop: fcast_loop,
    stats: *mut fcast_loop_stats,
) -> fcast_status {
    call(|| {
        let entry = LOOPS.share(in_loop.id)?;
        let counted = entry.enter()?.event_loop.stats().into();
        // SAFETY: the caller's promise.
        unsafe { pointer::write_sized(stats, &counted, "stats") }
    })
}

/// The counters of the process. Its field `size` is set by the caller. Any thread.
///
/// # Safety
///
/// `stats`: NULL, or a writable struct whose size field is right.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_process_read_stats(stats: *mut fcast_process_stats) -> fcast_status {
    call(|| {
        let counted = fabricast::stats::process().into();
        // SAFETY: the caller's promise.
        unsafe { pointer::write_sized(stats, &counted, "stats") }
    })
}

/// All counters of an endpoint as text, a line each, as Prometheus reads it: "name{endpoint="7"}
/// value". `*len`: the bytes that it needs, the zero included; what does not go into `capacity` is
/// cut. FCAST_CLOSED: it was closed. One thread at a time.
///
/// # Safety
///
/// `text`: NULL, or `capacity` writable bytes; `len`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_endpoint_stats_text(
    endpoint: fcast_endpoint,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> fcast_status {
    call(|| {
        let mut lines = String::new();
        let id = endpoint.id;
        let mut tell = |name: &str, value: u64| {
            // A text takes all that is written to it.
            let _ = writeln!(lines, "{name}{{endpoint=\"{id}\"}} {value}");
        };
        ENDPOINTS.enter(id)?.face.each_counter(&mut tell)?;
        // SAFETY: the caller's promise.
        unsafe { pointer::write_text(&lines, text, capacity, len) }
    })
}

/// The counters of the process, of its files, and of all clients and servers of objects, as text
/// that Prometheus reads. `*len`: the bytes that it needs, the zero included; what does not go into
/// `capacity` is cut. Any thread.
///
/// # Safety
///
/// `text`: NULL, or `capacity` writable bytes; `len`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_process_stats_text(
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> fcast_status {
    call(|| {
        let lines = process_lines().map_err(|_| {
            let text = "no memory for the text of the counters";
            Failure::new(FCAST_NO_RESOURCES, text)
        })?;
        // SAFETY: the caller's promise.
        unsafe { pointer::write_text(&lines, text, capacity, len) }
    })
}

/// All that the process counts, by kind and name, as text of OpenMetrics 1.0, which ends with
/// "# EOF" and a line's end: what Prometheus is to be answered, as the type
/// "application/openmetrics-text; version=1.0.0; charset=utf-8". `*len`: the bytes that it needs,
/// the zero included; what does not go into `capacity` is cut. It grows with what lives: ask with a
/// capacity of 0 first, and again if it has grown meanwhile. Any thread.
///
/// # Safety
///
/// `text`: NULL, or `capacity` writable bytes; `len`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_metrics_text(
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> fcast_status {
    call(|| {
        let metrics = fabricast::metrics::openmetrics_text();
        // SAFETY: the caller's promise.
        unsafe { pointer::write_text(&metrics, text, capacity, len) }
    })
}

fn process_lines() -> Result<String, std::fmt::Error> {
    let mut lines = String::new();
    let mut tell = |name: &str, value: u64| {
        // A text takes all that is written to it.
        let _ = writeln!(lines, "{name} {value}");
    };
    let counted = fcast_process_stats::from(fabricast::stats::process());
    counted.each("fabricast_process_", &mut tell);
    let files = fabricast::storage::stats::process();
    for (name, of) in [("read", files.read), ("write", files.write)] {
        tell(
            &format!("fabricast_file_{name}_operations"),
            of.operations(),
        );
        tell(&format!("fabricast_file_{name}_bytes"), of.bytes());
        tell(&format!("fabricast_file_{name}_errors"), of.errors());
        tell(
            &format!("fabricast_file_{name}_direct_bytes"),
            of.direct_bytes,
        );
        tell(
            &format!("fabricast_file_{name}_bounced_bytes"),
            of.bounced_bytes,
        );
    }
    let objects = TelemetryReport::of_process();
    objects.write_prometheus(&mut lines, TelemetryGroups::all())?;
    Ok(lines)
}
