//! Clients of a service of objects: get, put, head, list and delete by name.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::{CString, c_char};
use std::time::{Duration, Instant};

use fabricast::object::{
    ChecksumKind, ListQuery, ListedObject, ObjectEtag, PutCondition, RemoteConfig, RemoteObjects,
};

use crate::call::call;
use crate::endpoint::address;
use crate::fabric::fcast_fabric;
use crate::handle::FABRICS;
use crate::object_client::{CLIENTS, MEMORIES, fcast_object_client, fcast_object_memory};
use crate::object_info::{
    FCAST_CHECKSUM_CRC32C, FCAST_CHECKSUM_CRC64, fcast_object_info, nanoseconds,
};
use crate::pointer::{self, Out, Sized0};
use crate::settings::FCAST_OFF;
use crate::status::{Failure, c_string, fcast_status};
use crate::stream::milliseconds;
use crate::table::Table;

static REMOTES: Table<Remote> = Table::new(45, "connection to a service of objects");

/// A connection to a service of objects: one request at a time. One thread at a time uses it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_object_remote {
    /// Its number; 0: none.
    pub id: u64,
}

/// How a connection to a service is made. 0 in a field is the default.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_object_remote_settings {
    /// sizeof(fcast_object_remote_settings).
    pub size: usize,
    /// FCAST_CHECKSUM_CRC64, FCAST_CHECKSUM_CRC32C, or FCAST_OFF: none.
    pub checksum: u32,
    /// How long making a connection may take. Default 10,000.
    pub connect_timeout_ms: u32,
    /// How long the service may be silent. Default 30,000.
    pub lost_after_ms: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: C's layout, a `usize` first; 0 is a value of all its fields.
unsafe impl Sized0 for fcast_object_remote_settings {}

/// An object of a list. Its layout does not change.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_object_entry {
    /// Its name, valid until the next call of the connection.
    pub name: *const c_char,
    /// The name of this version, valid as long.
    pub etag: *const c_char,
    /// Its bytes.
    pub size: u64,
    /// When it was put, in nanoseconds since 1970; 0: not known.
    pub modified_ns: i64,
    /// 0.
    pub reserved: [u64; 2],
}

/// An object is put whatever is there.
pub const FCAST_PUT_ANY: u32 = 0;
/// An object is put if there is none of its name.
pub const FCAST_PUT_ABSENT: u32 = 1;
/// An object is put if the one that is there has the etag that is given.
pub const FCAST_PUT_MATCHES: u32 = 2;

/// A connection, and the texts of its last list.
struct Remote {
    remote: RemoteObjects,
    texts: Vec<(CString, CString)>,
}

fn deadline_of(timeout_ms: u32) -> Instant {
    Instant::now() + Duration::from_millis(u64::from(timeout_ms))
}

/// Connects to a service at an address, over the fabric `control`; bytes are moved by the client's.
/// Waits for the connection. FCAST_TIMED_OUT, FCAST_CLOSED, FCAST_REFUSED: it could not be made.
/// Any thread.
///
/// # Safety
///
/// `service`: NULL, or a text that ends with a zero; `settings`: NULL, or a struct whose size field
/// is right; `remote`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_remote_connect(
    client: fcast_object_client,
    control: fcast_fabric,
    service: *const c_char,
    settings: *const fcast_object_remote_settings,
    remote: *mut fcast_object_remote,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(remote, "remote") }?;
        // SAFETY: the caller's promise.
        let given: fcast_object_remote_settings = unsafe { pointer::sized(settings, "settings") }?;
        // SAFETY: the caller's promise.
        let service = unsafe { address(service, "service") }?;
        let mut config = RemoteConfig::default().checksum(match given.checksum {
            FCAST_CHECKSUM_CRC64 => Some(ChecksumKind::Crc64Nvme),
            FCAST_CHECKSUM_CRC32C => Some(ChecksumKind::Crc32c),
            FCAST_OFF => None,
            other => {
                let text = format!("setting checksum = {other}: must be 0, 1 or FCAST_OFF");
                return Err(Failure::invalid(text));
            }
        });
        if let Some(timeout) = milliseconds(given.connect_timeout_ms) {
            config = config.connect_timeout(timeout);
        }
        if let Some(silence) = milliseconds(given.lost_after_ms) {
            config = config.lost_after(silence);
        }
        let client = CLIENTS.share(client.id)?.clone();
        let control = FABRICS.share(control.id)?.clone();
        let remote = RemoteObjects::connect(&client, &control, &service, config)?;
        let id = REMOTES.insert(Remote {
            remote,
            texts: Vec::new(),
        })?;
        out.set(fcast_object_remote { id });
        Ok(())
    })
}

/// Connects anew where the connection is lost: after FCAST_CLOSED. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_object_remote_reconnect(remote: fcast_object_remote) -> fcast_status {
    call(|| Ok(REMOTES.enter(remote.id)?.remote.reconnect()?))
}

/// Says what there is under a name. FCAST_NOT_FOUND: nothing. FCAST_TIMED_OUT: no answer within
/// `timeout_ms`. One thread at a time.
///
/// # Safety
///
/// `name`: NULL, or a text that ends with a zero; `info`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_remote_head(
    remote: fcast_object_remote,
    name: *const c_char,
    timeout_ms: u32,
    info: *mut fcast_object_info,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(info, "info") }?;
        // SAFETY: the caller's promise.
        let name = unsafe { pointer::needed_text(name, "name") }?;
        let mut entry = REMOTES.enter(remote.id)?;
        out.set(entry.remote.head(name, deadline_of(timeout_ms))?.into());
        Ok(())
    })
}

/// Gets `len` bytes of an object, from `offset` on, into memory from `memory_offset` on, and fewer
/// where the object ends: `info->moved`. FCAST_NOT_FOUND: there is none. FCAST_DATA: what came is
/// not what was sent. After a failure anything may be in the memory. One thread at a time.
///
/// # Safety
///
/// `name`: NULL, or a text that ends with a zero; `info`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_remote_get(
    remote: fcast_object_remote,
    name: *const c_char,
    memory: fcast_object_memory,
    memory_offset: u64,
    len: u64,
    offset: u64,
    timeout_ms: u32,
    info: *mut fcast_object_info,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(info, "info") }?;
        // SAFETY: the caller's promise.
        let name = unsafe { pointer::needed_text(name, "name") }?;
        let memory = MEMORIES.share(memory.id)?;
        let range = memory_offset..memory_offset.saturating_add(len);
        let mut entry = REMOTES.enter(remote.id)?;
        let deadline = deadline_of(timeout_ms);
        let got = entry
            .remote
            .get(name, memory.get()?, range, offset, deadline)?;
        out.set(got.into());
        Ok(())
    })
}

/// Puts `len` bytes of memory, from `memory_offset` on, as an object, all at once. `condition`:
/// FCAST_PUT_ANY or another; `etag`: of FCAST_PUT_MATCHES, else NULL. FCAST_REFUSED: the condition
/// does not hold, or it is not allowed; nothing has changed. After FCAST_TIMED_OUT and FCAST_CLOSED
/// it is not known whether it is there. One thread at a time.
///
/// # Safety
///
/// `name` and `etag`: NULL, or texts that end with a zero; `info`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_remote_put(
    remote: fcast_object_remote,
    name: *const c_char,
    memory: fcast_object_memory,
    memory_offset: u64,
    len: u64,
    condition: u32,
    etag: *const c_char,
    timeout_ms: u32,
    info: *mut fcast_object_info,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(info, "info") }?;
        // SAFETY: the caller's promise.
        let name = unsafe { pointer::needed_text(name, "name") }?;
        // SAFETY: the caller's promise.
        let etag = unsafe { pointer::text(etag, "etag") }?;
        let condition = condition_of(condition, etag)?;
        let memory = MEMORIES.share(memory.id)?;
        let range = memory_offset..memory_offset.saturating_add(len);
        let mut entry = REMOTES.enter(remote.id)?;
        let deadline = deadline_of(timeout_ms);
        let put = entry
            .remote
            .put(name, memory.get()?, range, &condition, deadline)?;
        out.set(put.into());
        Ok(())
    })
}

fn condition_of(condition: u32, etag: Option<&str>) -> Result<PutCondition, Failure> {
    match (condition, etag) {
        (FCAST_PUT_ANY, None) => Ok(PutCondition::Any),
        (FCAST_PUT_ABSENT, None) => Ok(PutCondition::Absent),
        (FCAST_PUT_MATCHES, Some(etag)) => Ok(PutCondition::Matches(ObjectEtag::new(etag)?)),
        _ => {
            let text = "must be 0 to 2, with an etag for FCAST_PUT_MATCHES, and else with none";
            Err(Failure::invalid(format!("condition = {condition}: {text}")))
        }
    }
}

/// Removes an object. `etag`: only the version that has it; NULL: any. FCAST_NOT_FOUND: there is
/// none. FCAST_REFUSED: another version is there, or it is not allowed. One thread at a time.
///
/// # Safety
///
/// `name` and `etag`: NULL, or texts that end with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_remote_delete(
    remote: fcast_object_remote,
    name: *const c_char,
    etag: *const c_char,
    timeout_ms: u32,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { pointer::needed_text(name, "name") }?;
        // SAFETY: the caller's promise.
        let etag = unsafe { pointer::text(etag, "etag") }?;
        let etag = etag.map(ObjectEtag::new).transpose()?;
        let mut entry = REMOTES.enter(remote.id)?;
        Ok(entry
            .remote
            .delete(name, etag.as_ref(), deadline_of(timeout_ms))?)
    })
}

/// Lists objects whose names begin with a prefix and come behind `start_after`, in the order of
/// their bytes: at most `capacity`, `*count` of them. `*more`: there are more; ask again with the
/// last name. `prefix` and `start_after` may be NULL. One thread at a time.
///
/// # Safety
///
/// `prefix` and `start_after`: NULL, or texts that end with a zero; `entries`: NULL, or room for
/// `capacity` of them; `count` and `more`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_remote_list(
    remote: fcast_object_remote,
    prefix: *const c_char,
    start_after: *const c_char,
    timeout_ms: u32,
    entries: *mut fcast_object_entry,
    capacity: usize,
    count: *mut usize,
    more: *mut bool,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(count, "count") }?;
        // SAFETY: the caller's promise.
        let more = unsafe { Out::new(more, "more") }?;
        // SAFETY: the caller's promise.
        let places = unsafe { pointer::array_out(entries, capacity, "entries") }?;
        // SAFETY: the caller's promise.
        let prefix = unsafe { pointer::text(prefix, "prefix") }?;
        // SAFETY: the caller's promise. The name may be one of the last list.
        let start_after = unsafe { pointer::text(start_after, "start_after") }?;
        let query = ListQuery {
            prefix: prefix.unwrap_or_default().to_owned(),
            start_after: start_after.unwrap_or_default().to_owned(),
            limit: capacity,
        };
        let mut entry = REMOTES.enter(remote.id)?;
        let Remote { remote, texts } = &mut *entry;
        let page = remote.list_page(&query, deadline_of(timeout_ms))?;
        texts.clear();
        for (place, object) in places.iter_mut().zip(&page.objects) {
            place.write(told(object, texts));
        }
        out.set(page.objects.len().min(capacity));
        more.set(page.more);
        Ok(())
    })
}

/// An entry, whose texts lie behind the last ones: where they stay when the list of them grows.
fn told(object: &ListedObject, texts: &mut Vec<(CString, CString)>) -> fcast_object_entry {
    let name = c_string(object.name.as_str());
    let etag = c_string(object.etag.as_str());
    let told = fcast_object_entry {
        name: name.as_ptr(),
        etag: etag.as_ptr(),
        size: object.size,
        modified_ns: nanoseconds(object.modified),
        reserved: [0; 2],
    };
    texts.push((name, etag));
    told
}

/// Gives a connection back. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_object_remote_release(remote: fcast_object_remote) -> fcast_status {
    call(|| REMOTES.release(remote.id))
}
