//! A service of objects, which serves a directory, or a store of the program's.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::c_char;
use std::time::{Duration, Instant};

use fabricast::PeerAddr;
use fabricast::object::{FileStore, ObjectService, ObjectServiceConfig, ObjectStore};

use crate::call::call;
use crate::endpoint::address;
use crate::fabric::fcast_fabric;
use crate::handle::FABRICS;
use crate::inside::refuse_inside;
use crate::object_server::{fcast_object_server_settings, server_config};
use crate::object_store::{CallerStore, fcast_object_store_calls};
use crate::pointer::{self, Out, Sized0};
use crate::status::{Failure, fcast_status};
use crate::stream::milliseconds;
use crate::table::Table;

static SERVICES: Table<ObjectService> = Table::new(46, "service of objects");

/// A service: it serves the files of a directory as objects, or what a store of the program's has,
/// with threads of its own. Any thread may use it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_object_service {
    /// Its number; 0: none.
    pub id: u64,
}

/// How a service is started. 0 in a field is the default. A value out of its range is refused with
/// words that name it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_object_service_settings {
    /// sizeof(fcast_object_service_settings).
    pub size: usize,
    /// 1: nothing can be put or deleted.
    pub read_only: u32,
    /// Threads that move bytes, each with an address of its own. Default 1.
    pub workers: u32,
    /// Threads of a worker that wait for files, or for the program's store. Default 2.
    pub store_threads: u32,
    /// Bytes that are moved at once. Default 1,048,576.
    pub piece_bytes: u32,
    /// Pieces that a worker has memory for. Default 32.
    pub buffers: u32,
    /// Pieces of one request that are under way at once. Default 4.
    pub pieces: u32,
    /// Connections of a worker. Default 64.
    pub connections: u32,
    /// Requests of a worker at once. Default 256.
    pub requests: u32,
    /// How long a request may go without a piece being done. Default 10,000.
    pub stall_ms: u32,
    /// How long a request may take. Default 3,600,000.
    pub budget_ms: u32,
    /// How long a client may be silent. Default 30,000.
    pub lost_after_ms: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Of the channels that move bytes; NULL: the defaults.
    pub server: *const fcast_object_server_settings,
}

// SAFETY: C's layout, a `usize` first; 0 and null are values of all its fields.
unsafe impl Sized0 for fcast_object_service_settings {}

/// Sets something of a service.
type Set<T> = fn(ObjectServiceConfig, T) -> ObjectServiceConfig;

impl fcast_object_service_settings {
    /// # Safety
    ///
    /// `server`: null, or a struct whose size field is right and whose texts end with a zero.
    unsafe fn config(&self) -> Result<ObjectServiceConfig, Failure> {
        let numbers: [(u32, Set<u32>); 7] = [
            (self.workers, ObjectServiceConfig::workers),
            (self.store_threads, ObjectServiceConfig::store_threads),
            (self.piece_bytes, |of, bytes| of.piece_bytes(bytes as usize)),
            (self.buffers, ObjectServiceConfig::buffers),
            (self.pieces, ObjectServiceConfig::pieces),
            (self.connections, ObjectServiceConfig::connections),
            (self.requests, ObjectServiceConfig::requests),
        ];
        let times: [(u32, Set<Duration>); 3] = [
            (self.stall_ms, ObjectServiceConfig::stall),
            (self.budget_ms, ObjectServiceConfig::budget),
            (self.lost_after_ms, ObjectServiceConfig::lost_after),
        ];
        let mut config = ObjectServiceConfig::default();
        for (value, set) in numbers.into_iter().filter(|(value, _)| *value != 0) {
            config = set(config, value);
        }
        for (value, set) in times {
            if let Some(time) = milliseconds(value) {
                config = set(config, time);
            }
        }
        // SAFETY: the caller's promise.
        let server = unsafe { pointer::sized(self.server, "server") }?;
        // SAFETY: the caller's promise.
        Ok(config.server(unsafe { server_config(&server) }?))
    }
}

/// Starts to serve a directory: requests come over the fabric `control`, at an address of this
/// machine such as "127.0.0.1:0"; bytes are moved over `data`, which is of the kind FCAST_KIND_RDM
/// and may be the same. Any thread.
///
/// FCAST_NOT_FOUND, FCAST_SYSTEM, FCAST_INVALID: the directory, or a setting. FCAST_UNSUPPORTED:
/// `data` has no one-sided operations.
///
/// # Safety
///
/// `directory` and `listen`: NULL, or texts that end with a zero; `settings`: NULL, or a struct
/// whose size field is right, with one of the server's that is right, too; `service`: NULL, or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_service_start(
    directory: *const c_char,
    control: fcast_fabric,
    listen: *const c_char,
    data: fcast_fabric,
    settings: *const fcast_object_service_settings,
    service: *mut fcast_object_service,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(service, "service") }?;
        // SAFETY: the caller's promise.
        let given: fcast_object_service_settings = unsafe { pointer::sized(settings, "settings") }?;
        // SAFETY: the caller's promise.
        let directory = unsafe { pointer::path(directory, "directory") }?;
        // SAFETY: the caller's promise.
        let listen = unsafe { address(listen, "listen") }?;
        // SAFETY: the caller's promise.
        let config = unsafe { given.config() }?;
        let store = match given.read_only {
            0 => FileStore::open(directory)?,
            _ => FileStore::open_read_only(directory)?,
        };
        out.set(start(store, (control, data), listen, config)?);
        Ok(())
    })
}

fn start(
    store: impl ObjectStore,
    (control, data): (fcast_fabric, fcast_fabric),
    listen: PeerAddr,
    config: ObjectServiceConfig,
) -> Result<fcast_object_service, Failure> {
    let control = FABRICS.share(control.id)?.clone();
    let data = FABRICS.share(data.id)?.clone();
    let started = ObjectService::start(store, &control, listen, &data, config)?;
    let id = SERVICES.insert(started)?;
    Ok(fcast_object_service { id })
}

/// As fcast_object_service_start, of a store of the program's: `store` is copied. With the setting
/// `read_only`, its `begin` and `remove` are not called. Any thread.
///
/// FCAST_INVALID: the table, too. Its `release` is called after a failure as well, unless the
/// table's field size is wrong.
///
/// # Safety
///
/// `store`: NULL, or a struct whose size field is right, and whose functions may be called, as it
/// says, until `release` is; else as fcast_object_service_start.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_service_start_store(
    store: *const fcast_object_store_calls,
    control: fcast_fabric,
    listen: *const c_char,
    data: fcast_fabric,
    settings: *const fcast_object_service_settings,
    service: *mut fcast_object_service,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let store = unsafe { CallerStore::new(store) }?;
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(service, "service") }?;
        // SAFETY: the caller's promise.
        let given: fcast_object_service_settings = unsafe { pointer::sized(settings, "settings") }?;
        // SAFETY: the caller's promise.
        let listen = unsafe { address(listen, "listen") }?;
        // SAFETY: the caller's promise.
        let config = unsafe { given.config() }?;
        let store = match given.read_only {
            0 => store,
            _ => store.read_only(),
        };
        out.set(start(store, (control, data), listen, config)?);
        Ok(())
    })
}

/// Writes where a service listens: the address of each worker, with commas between them, and a
/// zero. `*len`: the bytes that it needs, the zero included. Any thread.
///
/// # Safety
///
/// `text`: NULL, or `capacity` writable bytes; `len`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_object_service_address(
    service: fcast_object_service,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> fcast_status {
    call(|| {
        refuse_inside()?;
        let entry = SERVICES.share(service.id)?;
        let addresses = entry.local_addrs().iter().map(ToString::to_string);
        let joined = addresses.collect::<Vec<_>>().join(",");
        // SAFETY: the caller's promise.
        unsafe { pointer::write_text(&joined, text, capacity, len) }
    })
}

/// Ends a service: new requests are refused, those that are served go on for at most `timeout_ms`.
/// Its handle is used up. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_object_service_close(
    service: fcast_object_service,
    timeout_ms: u32,
) -> fcast_status {
    call(|| {
        refuse_inside()?;
        let deadline = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
        SERVICES.take(service.id)?.close(deadline);
        Ok(())
    })
}

/// Gives a service back that was not closed: what it serves is cut. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_object_service_release(service: fcast_object_service) -> fcast_status {
    call(|| {
        refuse_inside()?;
        SERVICES.release(service.id)
    })
}
