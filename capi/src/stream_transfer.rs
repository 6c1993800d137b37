//! Transfers of a sender of streams: how far they are, and what came of them.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::c_char;
use std::time::{Duration, Instant};

use fabricast::stream::{PeerOutcome, Transfer};

use crate::call::call;
use crate::pointer::{self, Out};
use crate::status::{FCAST_AGAIN, FCAST_NOT_FOUND, FCAST_TIMED_OUT, Failure, fcast_status};
use crate::stream::fcast_stream_report;
use crate::table::Table;

static TRANSFERS: Table<Transfer> = Table::new(38, "stream transfer");

/// A transfer, which goes on whether the handle is held or not. Any thread may use it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_stream_transfer {
    /// Its number; 0: none.
    pub id: u64,
}

/// How far a transfer is at one peer. Its layout does not change.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_stream_progress {
    /// Bytes that the peer has, those from an earlier stream that was cut included.
    pub written: u64,
    /// Bytes that were sent, those that were sent again included.
    pub sent: u64,
    /// Bytes in all.
    pub total: u64,
    /// 1: it is over, one way or the other.
    pub over: u32,
    /// 0.
    pub reserved: u32,
}

pub(crate) fn insert(transfer: Transfer, out: Out<fcast_stream_transfer>) -> Result<(), Failure> {
    let id = TRANSFERS.insert(transfer)?;
    out.set(fcast_stream_transfer { id });
    Ok(())
}

/// How far each peer is, in the order in which they were given: `*count` of them, of which
/// `capacity` are written. Any thread.
///
/// # Safety
///
/// `peers`: NULL, or room for `capacity` of them; `count`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_stream_transfer_progress(
    transfer: fcast_stream_transfer,
    peers: *mut fcast_stream_progress,
    capacity: usize,
    count: *mut usize,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(count, "count") }?;
        // SAFETY: the caller's promise.
        let places = unsafe { pointer::array_out(peers, capacity, "peers") }?;
        let progress = TRANSFERS.share(transfer.id)?.progress();
        for (place, of) in places.iter_mut().zip(&progress) {
            place.write(fcast_stream_progress {
                written: of.written,
                sent: of.sent,
                total: of.total,
                over: of.over.into(),
                reserved: 0,
            });
        }
        out.set(progress.len());
        Ok(())
    })
}

/// Waits until a transfer is over at every peer, for at most `timeout_ms`. FCAST_OK: every peer has
/// the content, checked. FCAST_AGAIN: not yet, with a timeout of 0; FCAST_TIMED_OUT with another
/// one. Else why the first peer that has not does not have it; fcast_stream_transfer_outcome tells
/// of the others. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_stream_transfer_wait(
    transfer: fcast_stream_transfer,
    timeout_ms: u32,
) -> fcast_status {
    call(|| {
        for outcome in outcomes(transfer, timeout_ms)? {
            result_of(&outcome)?;
        }
        Ok(())
    })
}

/// Waits for what came of each peer.
fn outcomes(transfer: fcast_stream_transfer, timeout_ms: u32) -> Result<Vec<PeerOutcome>, Failure> {
    let deadline = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
    let outcomes = TRANSFERS.share(transfer.id)?.wait(deadline);
    outcomes.ok_or_else(|| match timeout_ms {
        0 => Failure::new(FCAST_AGAIN, "would block: the transfer is under way"),
        ms => {
            let text = format!("the transfer is under way after {ms} ms");
            Failure::new(FCAST_TIMED_OUT, text)
        }
    })
}

fn result_of(outcome: &PeerOutcome) -> Result<(), Failure> {
    outcome.result.clone().map_err(|error| {
        let mut failure = Failure::from(error);
        failure.text = format!("{}: {}", outcome.peer, failure.text).into();
        failure
    })
}

fn outcome_of(transfer: fcast_stream_transfer, peer: usize) -> Result<PeerOutcome, Failure> {
    let mut all = outcomes(transfer, 0)?;
    if peer >= all.len() {
        let text = format!("peer {peer}: the transfer has {}", all.len());
        return Err(Failure::new(FCAST_NOT_FOUND, text));
    }
    Ok(all.swap_remove(peer))
}

/// What came of a transfer that is over at one peer, by its place among those that were given.
/// `*report` is written also where the peer does not have the content, which the status and the
/// words say. The field `size` of the report is set by the caller. FCAST_AGAIN: it is not over.
/// Any thread.
///
/// # Safety
///
/// `report`: NULL, or a writable struct whose size field is right.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_stream_transfer_outcome(
    transfer: fcast_stream_transfer,
    peer: usize,
    report: *mut fcast_stream_report,
) -> fcast_status {
    call(|| {
        let outcome = outcome_of(transfer, peer)?;
        let told = fcast_stream_report::from(&outcome.report);
        // SAFETY: the caller's promise.
        unsafe { pointer::write_sized(report, &told, "report") }?;
        result_of(&outcome)
    })
}

/// All that is known of a transfer that is over at one peer, as a JSON object: times in seconds.
/// `*len`: the bytes that it needs, the zero included; what does not go into `capacity` is cut.
/// FCAST_AGAIN: it is not over. Any thread.
///
/// # Safety
///
/// `text`: NULL, or `capacity` writable bytes; `len`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_stream_transfer_report_text(
    transfer: fcast_stream_transfer,
    peer: usize,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> fcast_status {
    call(|| {
        let json = outcome_of(transfer, peer)?.report.to_json();
        // SAFETY: the caller's promise.
        unsafe { pointer::write_text(&json, text, capacity, len) }
    })
}

/// Sends no further block until fcast_stream_transfer_resume. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_stream_transfer_pause(transfer: fcast_stream_transfer) -> fcast_status {
    call(|| {
        TRANSFERS.share(transfer.id)?.pause();
        Ok(())
    })
}

/// Goes on after fcast_stream_transfer_pause. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_stream_transfer_resume(transfer: fcast_stream_transfer) -> fcast_status {
    call(|| {
        TRANSFERS.share(transfer.id)?.resume();
        Ok(())
    })
}

/// Ends a transfer soon. What peers have they keep, for a later one of the same. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_stream_transfer_cancel(transfer: fcast_stream_transfer) -> fcast_status {
    call(|| {
        TRANSFERS.share(transfer.id)?.cancel();
        Ok(())
    })
}

/// Changes the most bytes a second, all peers together; 0: no limit. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_stream_transfer_set_rate(
    transfer: fcast_stream_transfer,
    bytes_per_second: u64,
) -> fcast_status {
    call(|| {
        let rate = (bytes_per_second != 0).then_some(bytes_per_second);
        TRANSFERS.share(transfer.id)?.set_rate(rate);
        Ok(())
    })
}

/// Gives the handle of a transfer back; the transfer goes on. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_stream_transfer_release(transfer: fcast_stream_transfer) -> fcast_status {
    call(|| TRANSFERS.release(transfer.id))
}
