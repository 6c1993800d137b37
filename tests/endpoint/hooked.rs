//! What the library asks of its provider, seen and answered in between: the table of a domain's
//! operations is replaced by one of the test's.
//!
//! `tcp` forgives much that cards do not, and takes no time where they take seconds.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::common;
use common::{Pair, Watchdog, got, small_receiver};
use fabricast::Domain;
use fabricast::buffer::Payload;
use fabricast::endpoint::HeaderMode;
use libfabric_sys as sys;

/// One call of `fi_endpoint`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Opening {
    /// For a connection that a peer asked for.
    accepts: bool,
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
}

/// One call of `fi_sendmsg`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sending {
    segments: usize,
    bytes: usize,
    /// An array of descriptors came along.
    described: bool,
}

#[derive(Debug, Default)]
struct Seen {
    openings: Vec<Opening>,
    sendings: Vec<Sending>,
}

type Open = unsafe extern "C" fn(
    *mut sys::fid_domain,
    *mut sys::fi_info,
    *mut *mut sys::fid_ep,
    *mut c_void,
) -> c_int;
type Send = unsafe extern "C" fn(*mut sys::fid_ep, *const sys::fi_msg, u64) -> isize;

struct Hook {
    open: Open,
    seen: Mutex<Seen>,
}

/// By the domain's address.
static HOOKS: Mutex<BTreeMap<usize, Arc<Hook>>> = Mutex::new(BTreeMap::new());
/// What `fi_sendmsg` was, and whose: by the endpoint's address.
static SENDS: Mutex<BTreeMap<usize, (Send, Arc<Hook>)>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A copy of a table of operations, for ever: as long as the library says that it is.
///
/// # Safety
/// `table` is one of libfabric's, which begin with their length in bytes.
unsafe fn copy_of<T>(table: *mut T) -> *mut T {
    // SAFETY: the caller's promise.
    let bytes = unsafe { table.cast::<usize>().read() };
    let words = bytes.max(size_of::<T>()).div_ceil(8);
    let copy = Box::leak(vec![0u64; words].into_boxed_slice())
        .as_mut_ptr()
        .cast::<T>();
    // SAFETY: both have so many bytes, and the copy was just made.
    unsafe {
        copy.cast::<u8>()
            .copy_from_nonoverlapping(table.cast(), bytes)
    };
    copy
}

/// A domain whose provider is listened to, until this is dropped.
struct Hooked {
    domain: Arc<Domain>,
    hook: Arc<Hook>,
    table: *mut sys::fi_ops_domain,
}

impl Hooked {
    fn new(domain: &Arc<Domain>) -> Self {
        // SAFETY: the domain is kept; its table is replaced by a copy, and comes back before the
        // domain goes.
        let raw = unsafe { domain.as_raw() };
        // SAFETY: as above; nothing else touches the table meanwhile, there is no endpoint yet.
        let table = unsafe { (*raw).ops };
        // SAFETY: a table of libfabric's.
        let copy = unsafe { copy_of(table) };
        // SAFETY: the copy is as long as the original, and nobody else knows it.
        let open = unsafe { (*copy).endpoint.replace(open_endpoint) };
        let hook = Arc::new(Hook {
            open: open.expect("a provider opens endpoints"),
            seen: Mutex::default(),
        });
        lock(&HOOKS).insert(raw as usize, Arc::clone(&hook));
        // SAFETY: as above.
        unsafe { (*raw).ops = copy };
        Self {
            domain: Arc::clone(domain),
            hook,
            table,
        }
    }

    fn openings(&self) -> Vec<Opening> {
        lock(&self.hook.seen).openings.clone()
    }

    fn sendings(&self) -> Vec<Sending> {
        lock(&self.hook.seen).sendings.clone()
    }
}

impl Drop for Hooked {
    fn drop(&mut self) {
        // SAFETY: `self` keeps the domain.
        let raw = unsafe { self.domain.as_raw() };
        // SAFETY: the table that it had.
        unsafe { (*raw).ops = self.table };
        lock(&HOOKS).remove(&(raw as usize));
        lock(&SENDS).retain(|_, (_, hook)| !Arc::ptr_eq(hook, &self.hook));
    }
}

/// # Safety
/// `addr` is null or a socket address of `len` bytes.
unsafe fn address(addr: *const c_void, len: usize) -> Option<SocketAddr> {
    if addr.is_null() || len < size_of::<libc::sockaddr_in>() {
        return None;
    }
    // SAFETY: it is as long.
    let v4 = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
    let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
    (i32::from(v4.sin_family) == libc::AF_INET)
        .then(|| SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)))
}

unsafe extern "C" fn open_endpoint(
    domain: *mut sys::fid_domain,
    info: *mut sys::fi_info,
    ep: *mut *mut sys::fid_ep,
    context: *mut c_void,
) -> c_int {
    let hook = lock(&HOOKS).get(&(domain as usize)).map(Arc::clone);
    let hook = hook.expect("a domain that is hooked");
    // SAFETY: the library's own call, with an info that is whole.
    let head = unsafe { &*info };
    let opening = Opening {
        accepts: !head.handle.is_null(),
        // SAFETY: an info's addresses are as long as it says.
        source: unsafe { address(head.src_addr, head.src_addrlen) },
        // SAFETY: as above.
        destination: unsafe { address(head.dest_addr, head.dest_addrlen) },
    };
    lock(&hook.seen).openings.push(opening);
    // SAFETY: the arguments of this call.
    let rc = unsafe { (hook.open)(domain, info, ep, context) };
    if rc == 0 {
        // SAFETY: the provider has just made it.
        let raw = unsafe { *ep };
        // SAFETY: as above; nobody else has it yet.
        let table = unsafe { (*raw).msg };
        // SAFETY: a table of the provider's.
        let table = unsafe { copy_of(table) };
        // SAFETY: a copy that nobody else knows.
        let send = unsafe { (*table).sendmsg.replace(send_message) };
        lock(&SENDS).insert(raw as usize, (send.expect("it sends"), hook));
        // SAFETY: as above.
        unsafe { (*raw).msg = table };
    }
    rc
}

unsafe extern "C" fn send_message(
    ep: *mut sys::fid_ep,
    msg: *const sys::fi_msg,
    flags: u64,
) -> isize {
    let (send, hook) = {
        let sends = lock(&SENDS);
        let (send, hook) = sends.get(&(ep as usize)).expect("an endpoint of ours");
        (*send, Arc::clone(hook))
    };
    // SAFETY: the library's own call.
    let it = unsafe { &*msg };
    // SAFETY: there are so many segments, and the library always gives an address.
    let segments = unsafe { std::slice::from_raw_parts(it.msg_iov, it.iov_count) };
    let bytes = segments.iter().map(|segment| segment.iov_len).sum();
    lock(&hook.seen).sendings.push(Sending {
        segments: it.iov_count,
        bytes,
        described: !it.desc.is_null(),
    });
    // SAFETY: the arguments of this call.
    unsafe { send(ep, msg, flags) }
}

#[test]
fn endpoints_that_connect_are_opened_for_their_peer() {
    let _dog = Watchdog::new("opened for their peer");
    let Some(domain) = common::domain() else {
        return;
    };
    let hooked = Hooked::new(&domain);
    let mut pair = Pair::open(&domain);
    let listening = pair.receiver().local_addr().socket_addr();
    assert!(listening.is_some());
    let openings = hooked.openings();
    let [active, passive] = openings[..] else {
        panic!("{openings:?}");
    };
    assert!(!active.accepts && passive.accepts, "{openings:?}");
    assert_eq!(active.destination, listening);
    let ip = active.source.map(|source| source.ip());
    assert_eq!(ip, listening.map(|addr| addr.ip()));
    drop(pair);
}

#[test]
fn no_message_is_without_a_segment() {
    let _dog = Watchdog::new("without a segment");
    let Some(domain) = common::domain() else {
        return;
    };
    let hooked = Hooked::new(&domain);
    for mode in [HeaderMode::Raw, HeaderMode::Fixed(0)] {
        let config = common::sending().outgoing(|out| out.header_mode(mode));
        let mut pair = Pair::with(&domain, config, small_receiver());
        let before = hooked.sendings().len();
        // A segment that has no byte, and no segment at all.
        for payload in [pair.buffer(b"").into(), Payload::empty()] {
            assert_eq!(pair.exchange(payload, b"", 1), got(b"", b""), "{mode:?}");
        }
        let sendings = hooked.sendings().split_off(before);
        let empty = sendings.iter().filter(|it| it.bytes == 0);
        assert_eq!(empty.clone().count(), 2, "{mode:?}: {sendings:?}");
        for sending in empty {
            let expected = Sending {
                segments: 1,
                bytes: 0,
                described: false,
            };
            assert_eq!(*sending, expected, "{mode:?}");
        }
        drop(pair);
    }
}
