//! Clients of objects, and memory that they lend.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::{c_char, c_void};
use std::time::{Duration, Instant};

use fabricast::endpoint::{Access, WindowMemory};
use fabricast::object::{
    LentToken, NotReleased, ObjectClient, ObjectClientConfig, ObjectMemory, ObjectOperation,
};

use crate::call::call;
use crate::fabric::fcast_fabric;
use crate::handle::{BUFFERS, FABRICS};
use crate::object::{FCAST_OBJECT_GET, FCAST_OBJECT_PUT};
use crate::pointer::{self, Out, Sized0};
use crate::pool::fcast_buffer;
use crate::region::fcast_region;
use crate::send::slice_in;
use crate::status::{FCAST_BUSY, FCAST_TIMED_OUT, Failure, fcast_status};
use crate::stream::milliseconds;
use crate::table::Table;

pub(crate) static CLIENTS: Table<ObjectClient> = Table::new(40, "client of objects");
pub(crate) static MEMORIES: Table<Lendable> = Table::new(41, "memory of objects");
static TOKENS: Table<LentToken> = Table::new(42, "token");

/// A client of objects: it lends memory to servers, which move the bytes by themselves. Any thread
/// may use it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_object_client {
    /// Its number; 0: none.
    pub id: u64,
}

/// Memory that a client lends. Any thread may use it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_object_memory {
    /// Its number; 0: none.
    pub id: u64,
}

/// A token that stands: who knows its text may use the memory that it names. Any thread may use it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_object_token {
    /// Its number; 0: none.
    pub id: u64,
}

/// How a client of objects is opened. 0 in a field is the default.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_object_client_settings {
    /// sizeof(fcast_object_client_settings).
    pub size: usize,
    /// Bytes that one call of fcast_object_get and fcast_object_put gets at most. Default 2^30.
    pub callback_bytes: u64,
    /// Tokens that stand at once. Default 4,096.
    pub tokens: u32,
    /// How long a transfer waits at most for memory that is kept from being lent. Default 5,000.
    pub quarantine_ms: u32,
    /// 1: no thread serves the client: fcast_object_client_progress is called while tokens stand.
    pub no_progress_thread: u32,
    /// Buffers that GPU memory passes where the provider does not reach it. Default 4.
    pub staging_buffers: u32,
    /// Bytes of one of them. Default 8 MiB.
    pub staging_bytes: usize,
    /// What statistics call it; NULL: "client".
    pub name: *const c_char,
}

// SAFETY: C's layout, a `usize` first; 0 and null are values of all its fields.
unsafe impl Sized0 for fcast_object_client_settings {}

/// Memory of a client's; `None` when it was taken back.
pub(crate) struct Lendable(Option<ObjectMemory>);

impl Lendable {
    pub(crate) fn get(&self) -> Result<&ObjectMemory, Failure> {
        self.0.as_ref().ok_or_else(taken_back)
    }
}

#[cold]
fn taken_back() -> Failure {
    Failure::invalid("the memory was taken back: register it again")
}

pub(crate) fn operation_of(value: u32) -> Result<ObjectOperation, Failure> {
    match value {
        FCAST_OBJECT_GET => Ok(ObjectOperation::Get),
        FCAST_OBJECT_PUT => Ok(ObjectOperation::Put),
        other => {
            let text = "must be FCAST_OBJECT_GET or FCAST_OBJECT_PUT";
            Err(Failure::invalid(format!("operation = {other}: {text}")))
        }
    }
}

fn access_of(operations: u32) -> Result<Access, Failure> {
    if operations == 0 || operations & !(FCAST_OBJECT_GET | FCAST_OBJECT_PUT) != 0 {
        let text = "must be FCAST_OBJECT_GET, FCAST_OBJECT_PUT or both";
        return Err(Failure::invalid(format!(
            "operations = {operations}: {text}"
        )));
    }
    let mut access = Access::empty();
    access.set(Access::WRITE, operations & FCAST_OBJECT_GET != 0);
    access.set(Access::READ, operations & FCAST_OBJECT_PUT != 0);
    Ok(access)
}

/// Opens a client on a fabric of the kind FCAST_KIND_RDM. FCAST_UNSUPPORTED: it is of another kind,
/// or its provider has no one-sided operations. Any thread.
///
/// # Safety
///
/// `settings`: NULL, or a struct whose size field is right and whose name ends with a zero;
/// `client`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_client_open(
    fabric: fcast_fabric,
    settings: *const fcast_object_client_settings,
    client: *mut fcast_object_client,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(client, "client") }?;
        // SAFETY: the caller's promise.
        let given: fcast_object_client_settings = unsafe { pointer::sized(settings, "settings") }?;
        // SAFETY: the caller's promise.
        let name = unsafe { pointer::text(given.name, "name") }?;
        let mut config =
            ObjectClientConfig::default().progress_thread(given.no_progress_thread == 0);
        if given.callback_bytes != 0 {
            config = config.callback_bytes(given.callback_bytes);
        }
        if given.tokens != 0 {
            config = config.tokens(given.tokens as usize);
        }
        if let Some(most) = milliseconds(given.quarantine_ms) {
            config = config.quarantine(most);
        }
        if given.staging_buffers != 0 {
            config = config.staging_buffers(given.staging_buffers as usize);
        }
        if given.staging_bytes != 0 {
            config = config.staging_bytes(given.staging_bytes);
        }
        if let Some(name) = name {
            config = config.name(name);
        }
        let opened = ObjectClient::open(&*FABRICS.share(fabric.id)?, config)?;
        let id = CLIENTS.insert(opened)?;
        out.set(fcast_object_client { id });
        Ok(())
    })
}

/// Has the provider do what there is to do for servers, and returns at once. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_object_client_progress(client: fcast_object_client) -> fcast_status {
    call(|| {
        CLIENTS.share(client.id)?.progress();
        Ok(())
    })
}

/// Whether memory can be lent: `*connected` is false after the client's endpoint was closed behind
/// an abandoned transfer and the next one could not be opened, until one can; while the provider
/// fails to serve an endpoint; and in a forked child. Any thread.
///
/// # Safety
///
/// `connected`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_client_is_connected(
    client: fcast_object_client,
    connected: *mut bool,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(connected, "connected") }?;
        out.set(CLIENTS.share(client.id)?.is_connected());
        Ok(())
    })
}

/// Gives a client back. It goes when the last memory of it does. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_object_client_release(client: fcast_object_client) -> fcast_status {
    call(|| CLIENTS.release(client.id))
}

/// Takes `len` bytes at an address in a region, of the host or of a GPU; the region need not be
/// registered. Nobody reaches them before they are lent. `operations`: FCAST_OBJECT_GET,
/// FCAST_OBJECT_PUT or both: what tokens may allow. The region is kept until nobody can reach the
/// bytes any more. Any thread.
///
/// # Safety
///
/// `memory`: NULL, or writable. `data` is looked up in the region, not read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_memory_register(
    client: fcast_object_client,
    region: fcast_region,
    data: *mut c_void,
    len: usize,
    operations: u32,
    memory: *mut fcast_object_memory,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(memory, "memory") }?;
        let access = access_of(operations)?;
        let client = CLIENTS.share(client.id)?.clone();
        let slice = slice_in(region, data.addr(), len)?;
        let registered = client.register(slice, access);
        insert(registered.map_err(|refused| refused.kind)?, out)
    })
}

/// As fcast_object_memory_register, of a buffer of a pool, all of it. Its handle is used up;
/// fcast_object_memory_reclaim gives another one. The host can read such memory, so checksums of
/// what came can be computed. Any thread.
///
/// # Safety
///
/// `memory`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_memory_register_buffer(
    client: fcast_object_client,
    buffer: fcast_buffer,
    operations: u32,
    memory: *mut fcast_object_memory,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(memory, "memory") }?;
        let access = access_of(operations)?;
        let client = CLIENTS.share(client.id)?.clone();
        let registered = client.register(BUFFERS.take(buffer.id)?, access);
        insert(registered.map_err(|refused| refused.kind)?, out)
    })
}

fn insert(memory: ObjectMemory, out: Out<fcast_object_memory>) -> Result<(), Failure> {
    let id = MEMORIES.insert(Lendable(Some(memory)))?;
    out.set(fcast_object_memory { id });
    Ok(())
}

/// Bytes that one call of the function of fcast_object_transfer gets at most: the least of the
/// setting `callback_bytes`, of what the provider moves at once, and of the memory's length; of a
/// GPU's memory that the provider does not reach, of `staging_bytes`, too. Any thread.
///
/// # Safety
///
/// `bytes`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_memory_max_callback(
    memory: fcast_object_memory,
    bytes: *mut u64,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(bytes, "bytes") }?;
        out.set(MEMORIES.share(memory.id)?.get()?.max_callback_size());
        Ok(())
    })
}

/// Takes memory back: waits until nobody can reach it any more, for at most `timeout_ms`. From then
/// on the handle is good for fcast_object_memory_release alone. `buffer`: where it was a buffer,
/// that; else {0}; may be NULL, then the buffer goes back to its pool. FCAST_BUSY: tokens of it
/// stand, or a call uses it; FCAST_TIMED_OUT: somebody may still reach it. Any thread.
///
/// # Safety
///
/// `buffer`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_memory_reclaim(
    memory: fcast_object_memory,
    timeout_ms: u32,
    buffer: *mut fcast_buffer,
) -> fcast_status {
    call(|| {
        let deadline = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
        let mut entry = MEMORIES.enter(memory.id)?;
        let owned = entry.0.take().ok_or_else(taken_back)?;
        let back = match owned.release(deadline) {
            Ok(back) => back,
            Err(error) => {
                let status = match &error {
                    NotReleased::Lent { .. } => FCAST_BUSY,
                    _ => FCAST_TIMED_OUT,
                };
                let text = error.to_string();
                entry.0 = Some(error.into_memory());
                return Err(Failure::new(status, text));
            }
        };
        if let Some(place) = std::ptr::NonNull::new(buffer) {
            let given = buffer_of(back)?;
            // SAFETY: not null, and writable by the caller's promise.
            unsafe { place.write(given) };
        }
        Ok(())
    })
}

fn buffer_of(memory: WindowMemory) -> Result<fcast_buffer, Failure> {
    match memory.into_buffer_mut() {
        Ok(buffer) => BUFFERS.insert(buffer).map(|id| fcast_buffer { id }),
        Err(_) => Ok(fcast_buffer { id: 0 }),
    }
}

/// Gives memory back: it is freed when nobody can reach it any more. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_object_memory_release(memory: fcast_object_memory) -> fcast_status {
    call(|| MEMORIES.release(memory.id))
}

/// Lends a part of memory for one operation, FCAST_OBJECT_GET or FCAST_OBJECT_PUT: a server is told
/// what fcast_object_token_text says. It is good for any number of transfers until it is done or
/// released. FCAST_AGAIN: a transfer into the memory was given up, and may still land;
/// FCAST_NO_RESOURCES: as many tokens stand as may; FCAST_UNSUPPORTED: a GPU's memory that the
/// provider does not reach. Any thread.
///
/// # Safety
///
/// `token`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_token_lend(
    memory: fcast_object_memory,
    offset: u64,
    len: u64,
    operation: u32,
    token: *mut fcast_object_token,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(token, "token") }?;
        let operation = operation_of(operation)?;
        let end = offset.saturating_add(len);
        let lent = MEMORIES
            .share(memory.id)?
            .get()?
            .token(offset..end, operation)?;
        let id = TOKENS.insert(lent)?;
        out.set(fcast_object_token { id });
        Ok(())
    })
}

/// Writes the text of a token, which ends with a zero. `*len`: the bytes that it needs, the zero
/// included; what does not go into `capacity` is cut. Any thread.
///
/// # Safety
///
/// `text`: NULL, or `capacity` writable bytes; `len`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_token_text(
    token: fcast_object_token,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> fcast_status {
    call(|| {
        let said = TOKENS.share(token.id)?.to_string();
        // SAFETY: the caller's promise.
        unsafe { pointer::write_text(&said, text, capacity, len) }
    })
}

/// Ends a token whose transfers servers have answered for: the memory may be lent again at once.
/// Its handle is used up. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_object_token_done(token: fcast_object_token) -> fcast_status {
    call(|| {
        TOKENS.take(token.id)?.done();
        Ok(())
    })
}

/// Revokes a token, and gives its handle back: a server that uses it is refused. What it began may
/// still land: memory that was lent for a GET is kept from being lent until it can't. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_object_token_release(token: fcast_object_token) -> fcast_status {
    call(|| TOKENS.release(token.id))
}
