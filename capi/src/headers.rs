//! Header slots that several endpoints share.

#![allow(unsafe_code)] // Functions that C calls.

use fabricast::buffer::{HeaderSlotConfig, HeaderSlotManager};

use crate::call::call;
use crate::pointer::{self, Out};
use crate::status::{Failure, fcast_status};
use crate::table::Table;

pub(crate) static HEADERS: Table<HeaderSlotManager> = Table::new(15, "set of header slots");

/// Header slots for endpoints of one domain, which share them: setting `headers`. Any thread may
/// use it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_headers {
    /// Its number; 0: none.
    pub id: u64,
}

/// Makes header slots. `slots`: how many headers are in flight at once, of all endpoints together,
/// 1 to 65,536; 0: 256. `slot_size`: bytes of the longest header, 1 to 4,096; 0: 64, of which a
/// publisher needs more. Endpoints that have them keep them after the handle is released. A send
/// that finds none free is answered FCAST_AGAIN, and FCAST_EVENT_WRITABLE follows when any of the
/// endpoints gave one back. Any thread.
///
/// # Safety
///
/// `headers`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_headers_create(
    slots: u32,
    slot_size: u32,
    headers: *mut fcast_headers,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(headers, "headers") }?;
        let made = HeaderSlotManager::new(config(slots, slot_size, HeaderSlotConfig::default()))?;
        let id = HEADERS.insert(made)?;
        out.set(fcast_headers { id });
        Ok(())
    })
}

/// How header slots stand: all, those that are free, and the fewest that ever were. Any thread.
///
/// # Safety
///
/// Each pointer: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_headers_status(
    headers: fcast_headers,
    slots: *mut usize,
    free: *mut usize,
    low_water: *mut usize,
) -> fcast_status {
    call(|| {
        let of = HEADERS.share(headers.id)?;
        let values = [of.capacity(), of.free_count(), of.low_water()];
        for (place, value) in [slots, free, low_water].into_iter().zip(values) {
            // SAFETY: the caller's promise.
            unsafe { pointer::put(place, value) };
        }
        Ok(())
    })
}

/// Gives header slots back. They go when the last endpoint does that has them. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_headers_release(headers: fcast_headers) -> fcast_status {
    call(|| HEADERS.release(headers.id))
}

/// How many slots, and how large; 0 is the default.
pub(crate) fn config(slots: u32, slot_size: u32, default: HeaderSlotConfig) -> HeaderSlotConfig {
    let or = |value: u32, other: usize| if value == 0 { other } else { value as usize };
    HeaderSlotConfig {
        slots: or(slots, default.slots as usize) as u32,
        slot_size: or(slot_size, default.slot_size),
    }
}

/// Those that settings name, unless they have slots of their own besides.
pub(crate) fn shared(
    headers: fcast_headers,
    own: [(&str, u32); 2],
) -> Result<Option<HeaderSlotManager>, Failure> {
    if headers.id == 0 {
        return Ok(None);
    }
    let set = own.iter().find(|(_, value)| *value != 0);
    if let Some((field, _)) = set {
        let text = format!("setting {field}: the slots are those of headers, leave it 0");
        return Err(Failure::invalid(text));
    }
    Ok(Some(HEADERS.share(headers.id)?.clone()))
}
