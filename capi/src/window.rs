//! Windows: memory that a peer reads and writes by itself.

#![allow(unsafe_code)] // Functions that C calls.

use std::ffi::c_void;
use std::time::{Duration, Instant};

use fabricast::endpoint::{
    Access, ConnectionId, LocalWindow, WINDOW_DESCRIPTOR_LEN, WindowDescriptor, Windows,
};

use crate::call::call;
use crate::endpoint::fcast_endpoint;
use crate::face::Face;
use crate::handle::{ENDPOINTS, REMOTE_WINDOWS, WINDOWS};
use crate::pointer::{self, Out};
use crate::region::fcast_region;
use crate::send::slice_of;
use crate::status::{FCAST_NOT_FOUND, Failure, fcast_status};

/// The peer may read a window.
pub const FCAST_ACCESS_READ: u32 = 1;
/// The peer may write to a window.
pub const FCAST_ACCESS_WRITE: u32 = 2;

/// Bytes of a window's descriptor, which the peer is sent.
pub const FCAST_WINDOW_DESCRIPTOR_LEN: usize = 64;

const _: () = assert!(FCAST_WINDOW_DESCRIPTOR_LEN == WINDOW_DESCRIPTOR_LEN);

/// A window: memory of this side that the peer of one connection may use. Any thread.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_window {
    /// Its number; 0: none.
    pub id: u64,
}

/// A window of the peer, which this side reads and writes. Any thread.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct fcast_remote_window {
    /// Its number; 0: none.
    pub id: u64,
}

/// The windows of one connection. A sender has one connection only.
pub(crate) fn windows(face: &mut Face, connection: ConnectionId) -> Result<Windows<'_>, Failure> {
    match face {
        Face::Send(sender, _) => Ok(sender.windows()),
        Face::Receive(receiver, _) => Ok(receiver.windows(connection)),
        face => Err(face.cannot("have windows")),
    }
}

/// What the peer may do.
pub(crate) fn rights(access: u32) -> Result<Access, Failure> {
    let rights = Access::from_bits(access).filter(|rights| !rights.is_empty());
    rights.ok_or_else(|| Failure::invalid(format!("access = {access}: must be 1 to 3")))
}

/// Puts a window into the table; without room there it is revoked as one that was released.
pub(crate) fn insert(out: Out<fcast_window>, exposed: LocalWindow) -> Result<(), Failure> {
    let id = WINDOWS.insert(exposed)?;
    out.set(fcast_window { id });
    Ok(())
}

/// Lets the peer of a connection use `len` bytes at `base` in a region, which need not be
/// registered. Send it the descriptor in a message. `connection`: the one of the events of a
/// receiver, which needs the setting `windows`; 0 at a sender. `region`: {0} for that of the
/// endpoint's settings. `access`: FCAST_ACCESS_READ, FCAST_ACCESS_WRITE, or their sum. The memory
/// is the endpoint's, and the region stays, until FCAST_EVENT_WINDOW_RELEASED comes with the
/// window's id. One thread at a time.
///
/// FCAST_UNSUPPORTED: provider or peer has no windows; FCAST_CLOSED: not connected;
/// FCAST_NO_RESOURCES: as many are exposed as the setting `windows` allows.
///
/// # Safety
///
/// `window`: NULL, or writable. While the window is exposed for writing, its bytes change at any
/// time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_window_expose(
    endpoint: fcast_endpoint,
    connection: u64,
    region: fcast_region,
    base: *const c_void,
    len: usize,
    access: u32,
    window: *mut fcast_window,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(window, "window") }?;
        let rights = rights(access)?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let slice = slice_of(entry.region.as_ref(), region, base.addr(), len)?;
        let connection = ConnectionId::from_u64(connection);
        let exposed = windows(&mut entry.face, connection)?.expose(slice, rights);
        insert(out, exposed.map_err(|refused| refused.kind)?)
    })
}

/// Writes what the peer has to know of a window: FCAST_WINDOW_DESCRIPTOR_LEN bytes, to be sent in a
/// message. Whoever has them and a connection to this process's domain can use the window. Any
/// thread.
///
/// # Safety
///
/// `bytes`: NULL, or room for FCAST_WINDOW_DESCRIPTOR_LEN bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_window_descriptor(
    window: fcast_window,
    bytes: *mut c_void,
) -> fcast_status {
    call(|| {
        let out = bytes.cast::<[u8; FCAST_WINDOW_DESCRIPTOR_LEN]>();
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(out, "bytes") }?;
        out.set(WINDOWS.share(window.id)?.descriptor().to_bytes());
        Ok(())
    })
}

/// The id of a window, which its events have as key. Any thread.
///
/// # Safety
///
/// `id`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_window_id(window: fcast_window, id: *mut u64) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(id, "id") }?;
        out.set(WINDOWS.share(window.id)?.id().as_u64());
        Ok(())
    })
}

/// Takes a window back: the peer is told, ends what it has in flight and confirms;
/// FCAST_EVENT_WINDOW_RELEASED follows. A peer that has not confirmed after `timeout_ms` loses the
/// connection. The handle is used up, unless this fails. FCAST_NOT_FOUND: there was nothing to take
/// back any more, and the handle is used up. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_window_revoke(
    endpoint: fcast_endpoint,
    window: fcast_window,
    timeout_ms: u32,
) -> fcast_status {
    call(|| {
        let deadline = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let stood = WINDOWS.try_take(window.id, |local| {
            let mut of = match windows(&mut entry.face, local.connection()) {
                Ok(of) => of,
                Err(failure) => return Err((failure, local)),
            };
            let revoked = of.revoke(local, deadline);
            revoked.map_err(|refused| (refused.kind.into(), refused.given))
        })?;
        let gone = || Failure::new(FCAST_NOT_FOUND, "its memory came back already");
        stood.then_some(()).ok_or_else(gone)
    })
}

/// Gives a window back without a deadline: the peer is asked to use it no more, and the endpoint
/// has the memory until it has confirmed, or until the connection is over. No event says when: who
/// needs the memory again revokes the window. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_window_release(window: fcast_window) -> fcast_status {
    call(|| WINDOWS.release(window.id))
}

/// Opens a window of the peer by the descriptor that it sent. `connection`: the one that it came
/// by; 0 at a sender. FCAST_INVALID: no descriptor, or of another connection; FCAST_CLOSED: it was
/// revoked, or there is no connection. One thread at a time.
///
/// # Safety
///
/// `descriptor`: NULL, or `len` bytes; `window`: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_remote_window_open(
    endpoint: fcast_endpoint,
    connection: u64,
    descriptor: *const c_void,
    len: usize,
    window: *mut fcast_remote_window,
) -> fcast_status {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(window, "window") }?;
        // SAFETY: the caller's promise.
        let bytes = unsafe { pointer::bytes(descriptor.cast::<u8>(), len, "descriptor") }?;
        let parsed = WindowDescriptor::parse(bytes)
            .map_err(|error| Failure::invalid(format!("descriptor: {error}")))?;
        let mut entry = ENDPOINTS.enter(endpoint.id)?;
        let connection = ConnectionId::from_u64(connection);
        let remote = windows(&mut entry.face, connection)?.open(&parsed)?;
        let id = REMOTE_WINDOWS.insert(remote)?;
        out.set(fcast_remote_window { id });
        Ok(())
    })
}

/// What is known of a window of the peer: its id, its length in bytes, and what this side may do,
/// as FCAST_ACCESS_READ and FCAST_ACCESS_WRITE. Any thread.
///
/// # Safety
///
/// Each pointer: NULL, or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcast_remote_window_info(
    window: fcast_remote_window,
    id: *mut u64,
    len: *mut u64,
    access: *mut u32,
) -> fcast_status {
    call(|| {
        let remote = REMOTE_WINDOWS.share(window.id)?;
        // SAFETY: the caller's promise.
        unsafe { pointer::put(id, remote.id().as_u64()) };
        // SAFETY: the caller's promise.
        unsafe { pointer::put(len, remote.len()) };
        // SAFETY: the caller's promise.
        unsafe { pointer::put(access, remote.access().bits()) };
        Ok(())
    })
}

/// Gives the handle of a peer's window back; operations under way go on. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn fcast_remote_window_release(window: fcast_remote_window) -> fcast_status {
    call(|| REMOTE_WINDOWS.release(window.id))
}
