//! What C calls for counters: as structs, and as text.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::c_char;
use std::fmt::Write;

use fabricast::object::{TelemetryGroups, TelemetryReport};

use crate::call::call;
use crate::endpoint::{Endpoint, fcast_endpoint};
use crate::event_loop::{LOOPS, fcast_loop};
use crate::face::Face;
use crate::handle::ENDPOINTS;
use crate::pointer;
use crate::stats::{
    Counters, fcast_buffered_stats, fcast_loop_stats, fcast_process_stats, fcast_publish_stats,
    fcast_receive_stats, fcast_send_stats, fcast_subscribe_stats,
};
use crate::status::{FCAST_NO_RESOURCES, Failure, fcast_status};

impl Endpoint {
    /// Calls `tell` with each counter that this kind of endpoint has.
    fn each_counter(&self, tell: &mut dyn FnMut(&str, u64)) -> Result<(), Failure> {
        match &self.face {
            Face::Send(sender, _) => {
                fcast_send_stats::from(sender.stats()).each("fabricast_send_", tell);
            }
            Face::Receive(receiver, _) => {
                fcast_receive_stats::from(receiver.stats()).each("fabricast_receive_", tell);
            }
            Face::Buffered(sender, _) => {
                fcast_buffered_stats::from(sender.stats()).each("fabricast_buffered_", tell);
                fcast_send_stats::from(sender.send_stats()).each("fabricast_send_", tell);
            }
            Face::Connectionless(endpoint, _) => {
                fcast_send_stats::from(endpoint.send_stats()).each("fabricast_send_", tell);
                let received = fcast_receive_stats::from(endpoint.receive_stats());
                received.each("fabricast_receive_", tell);
            }
            Face::Publish(publisher, _) => {
                fcast_publish_stats::from(publisher.stats()).each("fabricast_publish_", tell);
            }
            Face::Subscribe(subscriber, _) => {
                fcast_subscribe_stats::from(subscriber.stats()).each("fabricast_subscribe_", tell);
            }
            Face::Closed(_) => return Err(self.face.cannot("count")),
        }
        Ok(())
    }
}

/// The counters of an endpoint that sends. Its field `size` is set by the caller.
/// FCAST_UNSUPPORTED: it is of another kind; FCAST_CLOSED: it was closed. One thread at a time.
///
/// # Safety
///
/// `stats`: NULL, or a writable struct whose size field is right.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_endpoint_send_stats(
    endpoint: fcast_endpoint,
    stats: *mut fcast_send_stats,
) -> fcast_status {
    call(|| {
        let entry = ENDPOINTS.enter(endpoint.id)?;
        let counted = match &entry.face {
            Face::Send(sender, _) => sender.stats().into(),
            Face::Buffered(sender, _) => sender.send_stats().into(),
            Face::Connectionless(endpoint, _) => endpoint.send_stats().into(),
            face => return Err(face.cannot("count sends alone")),
        };
        // SAFETY: the caller's promise.
        unsafe { pointer::write_sized(stats, &counted, "stats") }
    })
}

/// The counters of an endpoint that receives. Its field `size` is set by the caller.
/// FCAST_UNSUPPORTED: it is of another kind; FCAST_CLOSED: it was closed. One thread at a time.
///
/// # Safety
///
/// `stats`: NULL, or a writable struct whose size field is right.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_endpoint_receive_stats(
    endpoint: fcast_endpoint,
    stats: *mut fcast_receive_stats,
) -> fcast_status {
    call(|| {
        let entry = ENDPOINTS.enter(endpoint.id)?;
        let counted = match &entry.face {
            Face::Receive(receiver, _) => receiver.stats().into(),
            Face::Connectionless(endpoint, _) => endpoint.receive_stats().into(),
            face => return Err(face.cannot("count receives alone")),
        };
        // SAFETY: the caller's promise.
        unsafe { pointer::write_sized(stats, &counted, "stats") }
    })
}

/// The counters of a buffered sender: of small messages and buffers; fcast_endpoint_send_stats has
/// those of its sends. Its field `size` is set by the caller. FCAST_UNSUPPORTED: it is of another
/// kind; FCAST_CLOSED: it was closed. One thread at a time.
///
/// # Safety
///
/// `stats`: NULL, or a writable struct whose size field is right.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_endpoint_buffered_stats(
    endpoint: fcast_endpoint,
    stats: *mut fcast_buffered_stats,
) -> fcast_status {
    call(|| {
        let entry = ENDPOINTS.enter(endpoint.id)?;
        let counted = match &entry.face {
            Face::Buffered(endpoint, _) => endpoint.stats().into(),
            face => return Err(face.cannot("count small messages")),
        };
        // SAFETY: the caller's promise.
        unsafe { pointer::write_sized(stats, &counted, "stats") }
    })
}

/// The counters of a publisher. Its field `size` is set by the caller.
/// FCAST_UNSUPPORTED: it is of another kind; FCAST_CLOSED: it was closed. One thread at a time.
///
/// # Safety
///
/// `stats`: NULL, or a writable struct whose size field is right.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_endpoint_publish_stats(
    endpoint: fcast_endpoint,
    stats: *mut fcast_publish_stats,
) -> fcast_status {
    call(|| {
        let entry = ENDPOINTS.enter(endpoint.id)?;
        let counted = match &entry.face {
            Face::Publish(endpoint, _) => endpoint.stats().into(),
            face => return Err(face.cannot("count publications")),
        };
        // SAFETY: the caller's promise.
        unsafe { pointer::write_sized(stats, &counted, "stats") }
    })
}

/// The counters of a subscriber. Its field `size` is set by the caller.
/// FCAST_UNSUPPORTED: it is of another kind; FCAST_CLOSED: it was closed. One thread at a time.
///
/// # Safety
///
/// `stats`: NULL, or a writable struct whose size field is right.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_endpoint_subscribe_stats(
    endpoint: fcast_endpoint,
    stats: *mut fcast_subscribe_stats,
) -> fcast_status {
    call(|| {
        let entry = ENDPOINTS.enter(endpoint.id)?;
        let counted = match &entry.face {
            Face::Subscribe(endpoint, _) => endpoint.stats().into(),
            face => return Err(face.cannot("count subscriptions")),
        };
        // SAFETY: the caller's promise.
        unsafe { pointer::write_sized(stats, &counted, "stats") }
    })
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
        ENDPOINTS.enter(id)?.each_counter(&mut tell)?;
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
