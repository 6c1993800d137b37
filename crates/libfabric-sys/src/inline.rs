//! The `static inline` functions of the C headers, under their man-page names.
//!
//! Each calls through the object's table of operations. An operation that the table lacks answers
//! `-FI_ENOSYS`, or null where the function returns a text. No other check is made: libfabric
//! itself makes next to none.
//!
//! Arguments and results are those of the C functions: 0 or a count for success, `-FI_E*` for an
//! error. "As the C function" in a safety section means: every pointer is valid for what the man
//! page says that the call does with it, memory of a posted operation stays valid and untouched
//! until its completion was read, and calls are serialized as far as the threading model of the
//! domain asks.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;
use std::ptr;

use crate::consts::*;
use crate::ops::*;
use crate::types::*;

/// What a call answers whose operation is missing.
trait Missing {
    const MISSING: Self;
}

impl Missing for c_int {
    const MISSING: Self = -FI_ENOSYS;
}

impl Missing for isize {
    const MISSING: Self = -(FI_ENOSYS as Self);
}

impl Missing for *const c_char {
    const MISSING: Self = ptr::null();
}

/// Calls an operation that the oldest accepted library has.
macro_rules! call {
    ($handle:ident . $($table:ident).+ , $op:ident ( $($arg:expr),* )) => {{
        // SAFETY: the caller vouches that the object is open, so its pointer to the table may be
        // read.
        let table = unsafe { (*$handle).$($table).+ };
        if table.is_null() {
            Missing::MISSING
        } else {
            // SAFETY: the table of an open object is valid, and has the operations of the oldest
            // accepted library.
            match unsafe { (*table).$op } {
                // SAFETY: the caller keeps the contract of the C function.
                Some(op) => unsafe { op($($arg),*) },
                None => Missing::MISSING,
            }
        }
    }};
}

/// Calls an operation that came after the oldest accepted library, or that providers may leave out:
/// the C macro `FI_CHECK_OP`.
macro_rules! call_late {
    ($type:ident, $handle:ident . $($table:ident).+ , $op:ident ( $($arg:expr),* )) => {{
        // SAFETY: the caller vouches that the object is open, so its pointer to the table may be
        // read.
        let table: *mut $type = unsafe { (*$handle).$($table).+ };
        // SAFETY: the table of an open object is valid and begins with its size.
        if table.is_null() || !reaches(unsafe { (*table).size }, offset_of!($type, $op)) {
            Missing::MISSING
        } else {
            // SAFETY: the size says that the table has this operation.
            match unsafe { (*table).$op } {
                // SAFETY: the caller keeps the contract of the C function.
                Some(op) => unsafe { op($($arg),*) },
                None => Missing::MISSING,
            }
        }
    }};
}

/// Whether a table of `size` bytes reaches beyond the operation at `offset`.
const fn reaches(size: usize, offset: usize) -> bool {
    size > offset
}

// Every object.

/// Closes an object, fi_fabric(3). An object with children answers `-FI_EBUSY`; a queue that did so
/// is damaged.
///
/// # Safety
///
/// `fid` is valid and open; it is not used again, unless the call failed. Else as the C function.
#[inline]
pub unsafe fn fi_close(fid: *mut fid) -> c_int {
    call!(fid.ops, close(fid))
}

/// Reads or changes a property of an object, fi_control(3).
///
/// # Safety
///
/// `fid` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    call!(fid.ops, control(fid, command, arg))
}

/// Hands the library an object of the caller's, `rdma/fi_ext.h`: such as a monitor of memory, to
/// what [`Library::fi_open`](crate::Library::fi_open) gave.
///
/// # Safety
///
/// `fid` is valid and open. `expfid` is valid until it is closed. Else as the C function.
#[inline]
pub unsafe fn fi_import_fid(fid: *mut fid, expfid: *mut fid, flags: u64) -> c_int {
    call!(fid.ops, bind(fid, expfid, flags))
}

/// Opens a table of operations of the provider, fi_open_ops(3).
///
/// # Safety
///
/// `fid` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_open_ops(
    fid: *mut fid,
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    call!(fid.ops, ops_open(fid, name, flags, ops, context))
}

/// Sets a table of operations, fi_set_ops(3).
///
/// # Safety
///
/// `fid` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_set_ops(
    fid: *mut fid,
    name: *const c_char,
    flags: u64,
    ops: *mut c_void,
    context: *mut c_void,
) -> c_int {
    call_late!(fi_ops, fid.ops, ops_set(fid, name, flags, ops, context))
}

/// Reads the file descriptor of a queue that was opened with FI_WAIT_FD: `fi_control` with
/// FI_GETWAIT. It belongs to the queue.
///
/// # Safety
///
/// `fid` is valid, open, and a queue that was opened with FI_WAIT_FD. `fd` is valid for a write.
#[inline]
pub unsafe fn fi_getwait_fd(fid: *mut fid, fd: *mut c_int) -> c_int {
    // SAFETY: the caller vouches for both; FI_GETWAIT writes one c_int for this wait object.
    unsafe { fi_control(fid, FI_GETWAIT, fd.cast()) }
}

// Domains, registrations and address vectors.

/// Opens a domain, fi_domain(3).
///
/// # Safety
///
/// `fabric` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_domain(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    call!(fabric.ops, domain(fabric, info, domain, context))
}

/// Opens a domain with flags, fi_domain(3).
///
/// # Safety
///
/// `fabric` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_domain2(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags == 0 {
        // SAFETY: the same contract.
        return unsafe { fi_domain(fabric, info, domain, context) };
    }
    call_late!(
        fi_ops_fabric,
        fabric.ops,
        domain2(fabric, info, domain, flags, context)
    )
}

/// Binds an event queue to a domain, fi_domain(3).
///
/// # Safety
///
/// `domain` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_domain_bind(domain: *mut fid_domain, fid: *mut fid, flags: u64) -> c_int {
    call!(domain.fid.ops, bind(domain.cast(), fid, flags))
}

/// Opens a completion queue, fi_cq(3).
///
/// # Safety
///
/// `domain` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_cq_open(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    cq: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    call!(domain.ops, cq_open(domain, attr, cq, context))
}

/// Opens an address vector, fi_av(3).
///
/// # Safety
///
/// `domain` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_av_open(
    domain: *mut fid_domain,
    attr: *mut fi_av_attr,
    av: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    call!(domain.ops, av_open(domain, attr, av, context))
}

/// Registers one segment, fi_mr(3).
///
/// # Safety
///
/// `domain` is valid and open. Else as the C function.
#[inline]
#[allow(clippy::too_many_arguments)] // the signature of the C function
pub unsafe fn fi_mr_reg(
    domain: *mut fid_domain,
    buf: *const c_void,
    len: usize,
    acs: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    call!(
        domain.mr,
        reg(
            domain.cast(),
            buf,
            len,
            acs,
            offset,
            requested_key,
            flags,
            mr,
            context
        )
    )
}

/// Registers several segments, fi_mr(3).
///
/// # Safety
///
/// `domain` is valid and open. Else as the C function.
#[inline]
#[allow(clippy::too_many_arguments)] // the signature of the C function
pub unsafe fn fi_mr_regv(
    domain: *mut fid_domain,
    iov: *const iovec,
    count: usize,
    acs: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    call!(
        domain.mr,
        regv(
            domain.cast(),
            iov,
            count,
            acs,
            offset,
            requested_key,
            flags,
            mr,
            context
        )
    )
}

/// Registers memory by attributes, fi_mr(3).
///
/// # Safety
///
/// `domain` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_mr_regattr(
    domain: *mut fid_domain,
    attr: *const fi_mr_attr,
    flags: u64,
    mr: *mut *mut fid_mr,
) -> c_int {
    call!(domain.mr, regattr(domain.cast(), attr, flags, mr))
}

/// The descriptor of a registration for local operations, fi_mr(3).
///
/// # Safety
///
/// `mr` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_mr_desc(mr: *mut fid_mr) -> *mut c_void {
    // SAFETY: the caller vouches that `mr` is open.
    unsafe { (*mr).mem_desc }
}

/// The key of a registration for peers, fi_mr(3). FI_KEY_NOTAVAIL while there is none.
///
/// # Safety
///
/// `mr` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_mr_key(mr: *mut fid_mr) -> u64 {
    // SAFETY: the caller vouches that `mr` is open.
    unsafe { (*mr).key }
}

/// Binds a registration to an endpoint or a counter, fi_mr(3).
///
/// # Safety
///
/// `mr` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_mr_bind(mr: *mut fid_mr, bfid: *mut fid, flags: u64) -> c_int {
    call!(mr.fid.ops, bind(mr.cast(), bfid, flags))
}

/// Makes a bound registration ready, fi_mr(3).
///
/// # Safety
///
/// `mr` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_mr_enable(mr: *mut fid_mr) -> c_int {
    call!(mr.fid.ops, control(mr.cast(), FI_ENABLE, ptr::null_mut()))
}

/// Inserts addresses, fi_av(3). Returns how many went in.
///
/// # Safety
///
/// `av` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_av_insert(
    av: *mut fid_av,
    addr: *const c_void,
    count: usize,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    call!(av.ops, insert(av, addr, count, fi_addr, flags, context))
}

/// Inserts the address of a node and service, fi_av(3).
///
/// # Safety
///
/// `av` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_av_insertsvc(
    av: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    call!(
        av.ops,
        insertsvc(av, node, service, fi_addr, flags, context)
    )
}

/// Removes addresses, fi_av(3).
///
/// # Safety
///
/// `av` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_av_remove(
    av: *mut fid_av,
    fi_addr: *mut fi_addr_t,
    count: usize,
    flags: u64,
) -> c_int {
    call!(av.ops, remove(av, fi_addr, count, flags))
}

/// Reads an address back, fi_av(3).
///
/// # Safety
///
/// `av` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_av_lookup(
    av: *mut fid_av,
    fi_addr: fi_addr_t,
    addr: *mut c_void,
    addrlen: *mut usize,
) -> c_int {
    call!(av.ops, lookup(av, fi_addr, addr, addrlen))
}

/// Writes an address as text, fi_av(3).
///
/// # Safety
///
/// `av` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_av_straddr(
    av: *mut fid_av,
    addr: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    call!(av.ops, straddr(av, addr, buf, len))
}

/// Inserts an authorization key, fi_av(3). Since 1.20.
///
/// # Safety
///
/// `av` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_av_insert_auth_key(
    av: *mut fid_av,
    auth_key: *const c_void,
    auth_key_size: usize,
    fi_addr: *mut fi_addr_t,
    flags: u64,
) -> c_int {
    call_late!(
        fi_ops_av,
        av.ops,
        insert_auth_key(av, auth_key, auth_key_size, fi_addr, flags)
    )
}

/// Reads an authorization key back, fi_av(3). Since 1.20.
///
/// # Safety
///
/// `av` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_av_lookup_auth_key(
    av: *mut fid_av,
    addr: fi_addr_t,
    auth_key: *mut c_void,
    auth_key_size: *mut usize,
) -> c_int {
    call_late!(
        fi_ops_av,
        av.ops,
        lookup_auth_key(av, addr, auth_key, auth_key_size)
    )
}

/// Sets the source address that completions report, fi_av(3). Since 1.20.
///
/// # Safety
///
/// `av` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_av_set_user_id(
    av: *mut fid_av,
    fi_addr: fi_addr_t,
    user_id: fi_addr_t,
    flags: u64,
) -> c_int {
    call_late!(fi_ops_av, av.ops, set_user_id(av, fi_addr, user_id, flags))
}

// Event queues and completion queues.

/// Opens an event queue, fi_eq(3).
///
/// # Safety
///
/// `fabric` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_eq_open(
    fabric: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    eq: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    call!(fabric.ops, eq_open(fabric, attr, eq, context))
}

/// Whether the wait objects of these queues may be waited for, fi_poll(3). `-FI_EAGAIN`: read the
/// queues first.
///
/// # Safety
///
/// `fabric` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_trywait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    call!(fabric.ops, trywait(fabric, fids, count))
}

/// Reads an event, fi_eq(3). Returns its length in bytes.
///
/// # Safety
///
/// `eq` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_eq_read(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    call!(eq.ops, read(eq, event, buf, len, flags))
}

/// Reads a failure, fi_eq(3).
///
/// # Safety
///
/// `eq` is valid and open; `buf` is from [`EqErrEntryBuf::as_mut_ptr`]. Else as the C function.
#[inline]
pub unsafe fn fi_eq_readerr(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> isize {
    call!(eq.ops, readerr(eq, buf, flags))
}

/// Reads an event and waits for it, in milliseconds, fi_eq(3).
///
/// # Safety
///
/// `eq` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_eq_sread(
    eq: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    call!(eq.ops, sread(eq, event, buf, len, timeout, flags))
}

/// A text for a provider's error code, fi_eq(3).
///
/// # Safety
///
/// `eq` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_eq_strerror(
    eq: *mut fid_eq,
    prov_errno: c_int,
    err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    call!(eq.ops, strerror(eq, prov_errno, err_data, buf, len))
}

/// Reads completions, fi_cq(3). Returns how many.
///
/// # Safety
///
/// `cq` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_cq_read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize {
    call!(cq.ops, read(cq, buf, count))
}

/// Reads completions and their sources, fi_cq(3). Returns how many.
///
/// # Safety
///
/// `cq` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_cq_readfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    src_addr: *mut fi_addr_t,
) -> isize {
    call!(cq.ops, readfrom(cq, buf, count, src_addr))
}

/// Reads a failed completion, fi_cq(3).
///
/// # Safety
///
/// `cq` is valid and open; `buf` is from [`CqErrEntryBuf::as_mut_ptr`]. Else as the C function.
#[inline]
pub unsafe fn fi_cq_readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, flags: u64) -> isize {
    if !buf.is_null() {
        // A library of less than 1.20 does not know this field.
        // SAFETY: the caller vouches for the room of the newest entry.
        unsafe { (*buf).src_addr = FI_ADDR_NOTAVAIL };
    }
    call!(cq.ops, readerr(cq, buf, flags))
}

/// Reads completions and waits for them, in milliseconds, fi_cq(3).
///
/// # Safety
///
/// `cq` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_cq_sread(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    call!(cq.ops, sread(cq, buf, count, cond, timeout))
}

/// Reads completions and their sources and waits for them, in milliseconds, fi_cq(3).
///
/// # Safety
///
/// `cq` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_cq_sreadfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    src_addr: *mut fi_addr_t,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    call!(cq.ops, sreadfrom(cq, buf, count, src_addr, cond, timeout))
}

/// Wakes a blocked reader, fi_cq(3).
///
/// # Safety
///
/// `cq` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_cq_signal(cq: *mut fid_cq) -> c_int {
    call!(cq.ops, signal(cq))
}

/// A text for a provider's error code, fi_cq(3).
///
/// # Safety
///
/// `cq` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_cq_strerror(
    cq: *mut fid_cq,
    prov_errno: c_int,
    err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    call!(cq.ops, strerror(cq, prov_errno, err_data, buf, len))
}

// Endpoints and messages.

/// Opens a passive endpoint, fi_endpoint(3).
///
/// # Safety
///
/// `fabric` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_passive_ep(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    pep: *mut *mut fid_pep,
    context: *mut c_void,
) -> c_int {
    call!(fabric.ops, passive_ep(fabric, info, pep, context))
}

/// Opens an endpoint, fi_endpoint(3).
///
/// # Safety
///
/// `domain` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_endpoint(
    domain: *mut fid_domain,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    call!(domain.ops, endpoint(domain, info, ep, context))
}

/// Opens an endpoint with flags, fi_endpoint(3).
///
/// # Safety
///
/// `domain` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_endpoint2(
    domain: *mut fid_domain,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags == 0 {
        // SAFETY: the same contract.
        return unsafe { fi_endpoint(domain, info, ep, context) };
    }
    call_late!(
        fi_ops_domain,
        domain.ops,
        endpoint2(domain, info, ep, flags, context)
    )
}

/// Binds a queue, an address vector or a shared context to an endpoint, fi_endpoint(3).
///
/// # Safety
///
/// `ep` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_ep_bind(ep: *mut fid_ep, bfid: *mut fid, flags: u64) -> c_int {
    call!(ep.fid.ops, bind(ep.cast(), bfid, flags))
}

/// Binds an event queue to a passive endpoint, fi_endpoint(3).
///
/// # Safety
///
/// `pep` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_pep_bind(pep: *mut fid_pep, bfid: *mut fid, flags: u64) -> c_int {
    call!(pep.fid.ops, bind(pep.cast(), bfid, flags))
}

/// Makes a bound endpoint ready, fi_endpoint(3).
///
/// # Safety
///
/// `ep` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_enable(ep: *mut fid_ep) -> c_int {
    call!(ep.fid.ops, control(ep.cast(), FI_ENABLE, ptr::null_mut()))
}

/// Asks to cancel an operation, fi_endpoint(3). The result says nothing; only a completion does.
///
/// # Safety
///
/// `fid` is valid and open and an endpoint. Else as the C function.
#[inline]
pub unsafe fn fi_cancel(fid: *mut fid, context: *mut c_void) -> isize {
    let ep: *mut fid_ep = fid.cast();
    call!(ep.ops, cancel(fid, context))
}

/// Sets an option, fi_endpoint(3).
///
/// # Safety
///
/// `fid` is valid and open and an endpoint or a passive endpoint. Else as the C function.
#[inline]
pub unsafe fn fi_setopt(
    fid: *mut fid,
    level: c_int,
    optname: c_int,
    optval: *const c_void,
    optlen: usize,
) -> c_int {
    let ep: *mut fid_ep = fid.cast();
    call!(ep.ops, setopt(fid, level, optname, optval, optlen))
}

/// Reads an option, fi_endpoint(3).
///
/// # Safety
///
/// `fid` is valid and open and an endpoint or a passive endpoint. Else as the C function.
#[inline]
pub unsafe fn fi_getopt(
    fid: *mut fid,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut usize,
) -> c_int {
    let ep: *mut fid_ep = fid.cast();
    call!(ep.ops, getopt(fid, level, optname, optval, optlen))
}

/// Opens a shared transmit context, fi_endpoint(3).
///
/// # Safety
///
/// `domain` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_stx_context(
    domain: *mut fid_domain,
    attr: *mut fi_tx_attr,
    stx: *mut *mut fid_stx,
    context: *mut c_void,
) -> c_int {
    call!(domain.ops, stx_ctx(domain, attr, stx, context))
}

/// Opens a shared receive context, fi_endpoint(3).
///
/// # Safety
///
/// `domain` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_srx_context(
    domain: *mut fid_domain,
    attr: *mut fi_rx_attr,
    rx_ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    call!(domain.ops, srx_ctx(domain, attr, rx_ep, context))
}

/// Posts a receive, fi_msg(3).
///
/// # Safety
///
/// `ep` is valid and open and was opened with FI_MSG. Else as the C function.
#[inline]
pub unsafe fn fi_recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    call!(ep.msg, recv(ep, buf, len, desc, src_addr, context))
}

/// Posts a receive into several segments, fi_msg(3).
///
/// # Safety
///
/// `ep` is valid and open and was opened with FI_MSG. Else as the C function.
#[inline]
pub unsafe fn fi_recvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    src_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    call!(ep.msg, recvv(ep, iov, desc, count, src_addr, context))
}

/// Posts a receive with flags, fi_msg(3).
///
/// # Safety
///
/// `ep` is valid and open and was opened with FI_MSG. Else as the C function.
#[inline]
pub unsafe fn fi_recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    call!(ep.msg, recvmsg(ep, msg, flags))
}

/// Posts a send, fi_msg(3).
///
/// # Safety
///
/// `ep` is valid and open and was opened with FI_MSG; on a connected type it is connected
/// (providers crash else). Else as the C function.
#[inline]
pub unsafe fn fi_send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    call!(ep.msg, send(ep, buf, len, desc, dest_addr, context))
}

/// Posts a send of several segments, fi_msg(3).
///
/// # Safety
///
/// `ep` is valid and open and was opened with FI_MSG; on a connected type it is connected
/// (providers crash else). Else as the C function.
#[inline]
pub unsafe fn fi_sendv(
    ep: *mut fid_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    dest_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    call!(ep.msg, sendv(ep, iov, desc, count, dest_addr, context))
}

/// Posts a send with flags, fi_msg(3).
///
/// # Safety
///
/// `ep` is valid and open and was opened with FI_MSG; on a connected type it is connected
/// (providers crash else). Else as the C function.
#[inline]
pub unsafe fn fi_sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    call!(ep.msg, sendmsg(ep, msg, flags))
}

/// Sends a short message without a completion; the buffer is free at once, fi_msg(3).
///
/// # Safety
///
/// `ep` is valid and open and was opened with FI_MSG; on a connected type it is connected
/// (providers crash else). Else as the C function.
#[inline]
pub unsafe fn fi_inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    dest_addr: fi_addr_t,
) -> isize {
    call!(ep.msg, inject(ep, buf, len, dest_addr))
}

/// Posts a send with immediate data, fi_msg(3).
///
/// # Safety
///
/// `ep` is valid and open and was opened with FI_MSG; on a connected type it is connected
/// (providers crash else). Else as the C function.
#[inline]
pub unsafe fn fi_senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest_addr: fi_addr_t,
    context: *mut c_void,
) -> isize {
    call!(
        ep.msg,
        senddata(ep, buf, len, desc, data, dest_addr, context)
    )
}

/// As `fi_inject`, with immediate data, fi_msg(3).
///
/// # Safety
///
/// `ep` is valid and open and was opened with FI_MSG; on a connected type it is connected
/// (providers crash else). Else as the C function.
#[inline]
pub unsafe fn fi_injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest_addr: fi_addr_t,
) -> isize {
    call!(ep.msg, injectdata(ep, buf, len, data, dest_addr))
}

// Connection management.

/// Sets the local address, fi_cm(3).
///
/// # Safety
///
/// `fid` is valid and open and an endpoint or a passive endpoint. Else as the C function.
#[inline]
pub unsafe fn fi_setname(fid: *mut fid, addr: *mut c_void, addrlen: usize) -> c_int {
    let ep: *mut fid_ep = fid.cast();
    call!(ep.cm, setname(fid, addr, addrlen))
}

/// Reads the local address, fi_cm(3).
///
/// # Safety
///
/// `fid` is valid and open and an endpoint or a passive endpoint. Else as the C function.
#[inline]
pub unsafe fn fi_getname(fid: *mut fid, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    let ep: *mut fid_ep = fid.cast();
    call!(ep.cm, getname(fid, addr, addrlen))
}

/// Reads the address of the peer, fi_cm(3).
///
/// # Safety
///
/// `ep` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_getpeer(ep: *mut fid_ep, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    call!(ep.cm, getpeer(ep, addr, addrlen))
}

/// Starts to listen, fi_cm(3).
///
/// # Safety
///
/// `pep` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_listen(pep: *mut fid_pep) -> c_int {
    call!(pep.cm, listen(pep))
}

/// Asks a peer for a connection, fi_cm(3).
///
/// # Safety
///
/// `ep` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_connect(
    ep: *mut fid_ep,
    addr: *const c_void,
    param: *const c_void,
    paramlen: usize,
) -> c_int {
    call!(ep.cm, connect(ep, addr, param, paramlen))
}

/// Accepts a connection request, fi_cm(3).
///
/// # Safety
///
/// `ep` is valid and open; `paramlen` is at most FI_OPT_CM_DATA_SIZE (providers do not check). Else
/// as the C function.
#[inline]
pub unsafe fn fi_accept(ep: *mut fid_ep, param: *const c_void, paramlen: usize) -> c_int {
    call!(ep.cm, accept(ep, param, paramlen))
}

/// Refuses a connection request, fi_cm(3).
///
/// # Safety
///
/// `pep` is valid and open; `paramlen` is at most FI_OPT_CM_DATA_SIZE (providers do not check).
/// Else as the C function.
#[inline]
pub unsafe fn fi_reject(
    pep: *mut fid_pep,
    handle: *mut fid,
    param: *const c_void,
    paramlen: usize,
) -> c_int {
    call!(pep.cm, reject(pep, handle, param, paramlen))
}

/// Ends a connection, fi_cm(3).
///
/// # Safety
///
/// `ep` is valid and open. Else as the C function.
#[inline]
pub unsafe fn fi_shutdown(ep: *mut fid_ep, flags: u64) -> c_int {
    call!(ep.cm, shutdown(ep, flags))
}

// One-sided operations.

/// Posts a read of remote memory, fi_rma(3).
///
/// # Safety
///
/// `ep` is valid and open and was opened with FI_RMA; on a connected type it is connected. Else as
/// the C function.
#[inline]
#[allow(clippy::too_many_arguments)] // the signature of the C function
pub unsafe fn fi_read(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src_addr: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    call!(
        ep.rma,
        read(ep, buf, len, desc, src_addr, addr, key, context)
    )
}

/// Posts a read of remote memory into several segments, fi_rma(3).
///
/// # Safety
///
/// `ep` is valid and open and was opened with FI_RMA; on a connected type it is connected. Else as
/// the C function.
#[inline]
#[allow(clippy::too_many_arguments)] // the signature of the C function
pub unsafe fn fi_readv(
    ep: *mut fid_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    src_addr: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    call!(
        ep.rma,
        readv(ep, iov, desc, count, src_addr, addr, key, context)
    )
}

/// Posts a read of remote memory with flags, fi_rma(3).
///
/// # Safety
///
/// `ep` is valid and open and was opened with FI_RMA; on a connected type it is connected. Else as
/// the C function.
#[inline]
pub unsafe fn fi_readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    call!(ep.rma, readmsg(ep, msg, flags))
}

/// Posts a write to remote memory, fi_rma(3).
///
/// # Safety
///
/// `ep` is valid and open and was opened with FI_RMA; on a connected type it is connected. Else as
/// the C function.
#[inline]
#[allow(clippy::too_many_arguments)] // the signature of the C function
pub unsafe fn fi_write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    call!(
        ep.rma,
        write(ep, buf, len, desc, dest_addr, addr, key, context)
    )
}

/// Posts a write of several segments to remote memory, fi_rma(3).
///
/// # Safety
///
/// `ep` is valid and open and was opened with FI_RMA; on a connected type it is connected. Else as
/// the C function.
#[inline]
#[allow(clippy::too_many_arguments)] // the signature of the C function
pub unsafe fn fi_writev(
    ep: *mut fid_ep,
    iov: *const iovec,
    desc: *mut *mut c_void,
    count: usize,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    call!(
        ep.rma,
        writev(ep, iov, desc, count, dest_addr, addr, key, context)
    )
}

/// Posts a write to remote memory with flags, fi_rma(3).
///
/// # Safety
///
/// `ep` is valid and open and was opened with FI_RMA; on a connected type it is connected. Else as
/// the C function.
#[inline]
pub unsafe fn fi_writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    call!(ep.rma, writemsg(ep, msg, flags))
}

/// Writes a short piece to remote memory without a completion, fi_rma(3).
///
/// # Safety
///
/// `ep` is valid and open and was opened with FI_RMA; on a connected type it is connected. Else as
/// the C function.
#[inline]
pub unsafe fn fi_inject_write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    call!(ep.rma, inject(ep, buf, len, dest_addr, addr, key))
}

/// Posts a write with immediate data, fi_rma(3).
///
/// # Safety
///
/// `ep` is valid and open and was opened with FI_RMA; on a connected type it is connected. Else as
/// the C function.
#[inline]
#[allow(clippy::too_many_arguments)] // the signature of the C function
pub unsafe fn fi_writedata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    call!(
        ep.rma,
        writedata(ep, buf, len, desc, data, dest_addr, addr, key, context)
    )
}

/// As `fi_inject_write`, with immediate data, fi_rma(3).
///
/// # Safety
///
/// `ep` is valid and open and was opened with FI_RMA; on a connected type it is connected. Else as
/// the C function.
#[inline]
pub unsafe fn fi_inject_writedata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest_addr: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    call!(ep.rma, injectdata(ep, buf, len, data, dest_addr, addr, key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem;

    unsafe extern "C" fn user_id(
        _: *mut fid_av,
        _: fi_addr_t,
        user_id: fi_addr_t,
        _: u64,
    ) -> c_int {
        user_id as c_int
    }

    fn open_av(ops: &mut fi_ops_av) -> fid_av {
        fid_av {
            fid: fid {
                fclass: FI_CLASS_AV,
                context: ptr::null_mut(),
                ops: ptr::null_mut(),
            },
            ops,
        }
    }

    fn empty_ops() -> fi_ops_av {
        // SAFETY: a size and absent function pointers are valid when zeroed.
        unsafe { mem::zeroed() }
    }

    #[test]
    fn a_late_operation_beyond_the_table_is_not_called() {
        let mut ops = empty_ops();
        ops.set_user_id = Some(user_id);
        ops.size = offset_of!(fi_ops_av, set_user_id);
        let mut av = open_av(&mut ops);
        // SAFETY: the object is a stand-in with a valid table.
        assert_eq!(unsafe { fi_av_set_user_id(&mut av, 0, 7, 0) }, -FI_ENOSYS);
        ops.size = mem::size_of::<fi_ops_av>();
        let mut av = open_av(&mut ops);
        // SAFETY: the object is a stand-in with a valid table.
        assert_eq!(unsafe { fi_av_set_user_id(&mut av, 0, 7, 0) }, 7);
    }

    #[test]
    fn a_missing_operation_and_a_missing_table_answer_enosys() {
        let mut ops = empty_ops();
        ops.size = mem::size_of::<fi_ops_av>();
        let mut av = open_av(&mut ops);
        let av = &raw mut av;
        // SAFETY: the object is a stand-in with a valid table, which has no operation.
        let rc = unsafe { fi_av_remove(av, ptr::null_mut(), 0, 0) };
        assert_eq!(rc, -FI_ENOSYS);
        // SAFETY: the same.
        let text = unsafe { fi_av_straddr(av, ptr::null(), ptr::null_mut(), ptr::null_mut()) };
        assert!(text.is_null());
        // SAFETY: the object is a stand-in without a table of its own.
        let rc = unsafe { fi_close(av.cast()) };
        assert_eq!(rc, -FI_ENOSYS);
    }
}
