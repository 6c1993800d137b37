//! `RawPeer`: a client that speaks libfabric and says whatever a test wants, through `libfabric-sys`.

#![allow(unsafe_code)]
// A function that opens several objects has several calls and one reason why all are right.
#![allow(clippy::multiple_unsafe_ops_per_block)]

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;

use fabricast::{Domain, PeerAddr};
use libfabric_sys as sys;

/// What the event queue said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RawEvent {
    Connected,
    Shutdown,
    Refused { errno: i32, data: Vec<u8> },
}

/// One endpoint with its queues, in a domain that the library opened.
#[derive(Debug)]
pub(crate) struct RawPeer {
    ep: *mut sys::fid_ep,
    cq: *mut sys::fid_cq,
    eq: *mut sys::fid_eq,
    info: *mut sys::fi_info,
    library: &'static sys::Library,
    /// What was sent; freed after the endpoint.
    sent: Vec<Vec<u8>>,
    _domain: Arc<Domain>,
}

/// A hello as docs/wire.md says: version 2, no receive buffers.
pub(crate) fn hello(header_mode: u8) -> [u8; 48] {
    let mut bytes = [0; 48];
    bytes[..4].copy_from_slice(b"FbCt");
    bytes[4] = 1;
    bytes[5] = header_mode;
    bytes[8] = 2;
    bytes[10] = 2;
    bytes[40] = 77;
    bytes
}

/// A control message as docs/wire.md says.
pub(crate) fn control(kind: u8, value: u64) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(b"fbct");
    bytes[4] = kind;
    bytes[16..24].copy_from_slice(&value.to_le_bytes());
    bytes
}

/// The CQ data of a control message of this kind.
pub(crate) fn cq_data(kind: u8) -> u64 {
    u64::from(kind) << 24
}

fn ok(call: &str, rc: i32) {
    assert_eq!(rc, 0, "{call}");
}

impl RawPeer {
    /// Starts to connect with these bytes as private data.
    pub(crate) fn connect(domain: &Arc<Domain>, to: PeerAddr, private: &[u8]) -> Self {
        let library = sys::Library::load().expect("the domain was opened with it");
        // SAFETY: all objects are opened from a domain and a fabric that `domain` keeps open, and closed in `drop`.
        unsafe {
            let info = find_tcp(library);
            let (fabric, dom) = (domain.fabric().as_raw(), domain.as_raw());
            let (mut eq, mut cq, mut ep) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
            let mut eq_attr: sys::fi_eq_attr = std::mem::zeroed();
            eq_attr.wait_obj = sys::FI_WAIT_NONE;
            let rc = sys::fi_eq_open(fabric, &raw mut eq_attr, &raw mut eq, ptr::null_mut());
            ok("fi_eq_open", rc);
            let mut cq_attr: sys::fi_cq_attr = std::mem::zeroed();
            cq_attr.format = sys::FI_CQ_FORMAT_DATA;
            cq_attr.wait_obj = sys::FI_WAIT_NONE;
            let rc = sys::fi_cq_open(dom, &raw mut cq_attr, &raw mut cq, ptr::null_mut());
            ok("fi_cq_open", rc);
            let rc = sys::fi_endpoint(dom, info, &raw mut ep, ptr::null_mut());
            ok("fi_endpoint", rc);
            ok("fi_ep_bind", sys::fi_ep_bind(ep, eq.cast(), 0));
            let both = sys::FI_TRANSMIT | sys::FI_RECV;
            ok("fi_ep_bind", sys::fi_ep_bind(ep, cq.cast(), both));
            ok("fi_enable", sys::fi_enable(ep));
            let Some(std::net::SocketAddr::V4(v4)) = to.socket_addr() else {
                panic!("tests use IPv4");
            };
            let mut addr: libc::sockaddr_in = std::mem::zeroed();
            addr.sin_family = libc::AF_INET as libc::sa_family_t;
            addr.sin_port = v4.port().to_be();
            addr.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            let rc = sys::fi_connect(
                ep,
                (&raw const addr).cast(),
                private.as_ptr().cast(),
                private.len(),
            );
            ok("fi_connect", rc);
            Self {
                ep,
                cq,
                eq,
                info,
                library,
                sent: Vec::new(),
                _domain: Arc::clone(domain),
            }
        }
    }

    /// Drives the endpoint and reads one event, if there is one.
    pub(crate) fn poll(&mut self) -> Option<RawEvent> {
        // SAFETY: the queues are open; the buffers have the sizes that they are said to have.
        unsafe {
            let mut entries = [const { std::mem::zeroed::<sys::fi_cq_data_entry>() }; 8];
            while sys::fi_cq_read(self.cq, entries.as_mut_ptr().cast(), 8) > 0 {}
            let mut error = sys::CqErrEntryBuf::zeroed();
            sys::fi_cq_readerr(self.cq, error.as_mut_ptr(), 0);
            let (mut kind, mut room) = (0_u32, [0_u64; 64]);
            let len = size_of_val(&room);
            let n = sys::fi_eq_read(self.eq, &raw mut kind, room.as_mut_ptr().cast(), len, 0);
            if n > 0 {
                return match kind {
                    sys::FI_CONNECTED => Some(RawEvent::Connected),
                    sys::FI_SHUTDOWN => Some(RawEvent::Shutdown),
                    _ => None,
                };
            }
            if n != -(sys::FI_EAVAIL as isize) {
                return None;
            }
            let mut entry = sys::EqErrEntryBuf::zeroed();
            let mut data = [0_u8; 256];
            entry.entry.err_data = data.as_mut_ptr().cast();
            entry.entry.err_data_size = data.len();
            let n = sys::fi_eq_readerr(self.eq, entry.as_mut_ptr(), 0);
            (n > 0).then(|| RawEvent::Refused {
                errno: entry.entry.err,
                data: data[..entry.entry.err_data_size.min(data.len())].to_vec(),
            })
        }
    }

    /// Posts a message; only after [`RawEvent::Connected`], or the provider crashes.
    pub(crate) fn send(&mut self, bytes: &[u8], data: Option<u64>) {
        self.sent.push(bytes.to_vec());
        let kept = self.sent.last().expect("just pushed");
        let iov = libc::iovec {
            iov_base: kept.as_ptr().cast_mut().cast(),
            iov_len: kept.len(),
        };
        let mut desc: *mut c_void = ptr::null_mut();
        let msg = sys::fi_msg {
            msg_iov: &raw const iov,
            desc: &raw mut desc,
            iov_count: 1,
            addr: 0,
            context: ptr::null_mut(),
            data: data.unwrap_or(0),
        };
        let flags = match data {
            Some(_) => sys::FI_COMPLETION | sys::FI_REMOTE_CQ_DATA,
            None => sys::FI_COMPLETION,
        };
        // SAFETY: connected, by this function's contract; the bytes are kept until the endpoint is closed. tcp needs
        // no descriptor. A refusal means that the connection is gone, which the tests wait for by other means.
        let _ = unsafe { sys::fi_sendmsg(self.ep, &raw const msg, flags) };
    }
}

/// An info of tcp on the loopback interface.
unsafe fn find_tcp(library: &'static sys::Library) -> *mut sys::fi_info {
    let hints = library.allocinfo();
    assert!(!hints.is_null());
    let (name, node) = (
        CString::new("tcp").expect("no zero"),
        CString::new("127.0.0.1").expect("no zero"),
    );
    let mut info = ptr::null_mut();
    // SAFETY: the hints are of this library, which freed with them what is allocated by strdup(3).
    unsafe {
        (*(*hints).fabric_attr).prov_name = libc::strdup(name.as_ptr());
        (*(*hints).ep_attr).type_ = sys::FI_EP_MSG;
        (*hints).caps = sys::FI_MSG;
        let rc = library.fi_getinfo(
            library.negotiated(),
            node.as_ptr(),
            ptr::null(),
            sys::FI_SOURCE,
            hints,
            &raw mut info,
        );
        ok("fi_getinfo", rc);
        library.fi_freeinfo(hints);
    }
    info
}

impl Drop for RawPeer {
    fn drop(&mut self) {
        // SAFETY: open, closed once, in the order that works; the domain is still open.
        unsafe {
            sys::fi_close(self.ep.cast());
            while self.poll_closed() {}
            sys::fi_close(self.cq.cast());
            sys::fi_close(self.eq.cast());
            self.library.fi_freeinfo(self.info);
        }
    }
}

impl RawPeer {
    /// Reads what the closed endpoint left in the completion queue; true when there was something.
    unsafe fn poll_closed(&mut self) -> bool {
        // SAFETY: the queue is open.
        unsafe {
            let mut entries = [const { std::mem::zeroed::<sys::fi_cq_data_entry>() }; 8];
            let mut error = sys::CqErrEntryBuf::zeroed();
            sys::fi_cq_read(self.cq, entries.as_mut_ptr().cast(), 8) > 0
                || sys::fi_cq_readerr(self.cq, error.as_mut_ptr(), 0) > 0
        }
    }
}
