//! `RawPeer`: a client that speaks libfabric and says whatever a test wants, through `libfabric-sys`, over its domain's provider.

#![allow(unsafe_code)]
// A function that opens several objects has several calls and one reason why all are right.
#![allow(clippy::multiple_unsafe_ops_per_block)]

use std::ffi::CString;
use std::ptr;
use std::sync::Arc;

use fabricast::{Domain, PeerAddr};
use libfabric_sys as sys;

use super::node;

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
    /// What was sent, with its registration, if the provider wants one; freed after the endpoint.
    sent: Vec<(Vec<u8>, *mut sys::fid_mr)>,
    is_connected: bool,
    domain: Arc<Domain>,
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
            let info = find(library, domain, to);
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
            let (to, len) = ((*info).dest_addr, private.len());
            let rc = sys::fi_connect(ep, to.cast_const(), private.as_ptr().cast(), len);
            ok("fi_connect", rc);
            Self {
                ep,
                cq,
                eq,
                info,
                library,
                sent: Vec::new(),
                is_connected: false,
                domain: Arc::clone(domain),
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
                self.is_connected = kind == sys::FI_CONNECTED;
                return match kind {
                    sys::FI_CONNECTED => Some(RawEvent::Connected),
                    sys::FI_SHUTDOWN => Some(RawEvent::Shutdown),
                    _ => None,
                };
            }
            if n != -(sys::FI_EAVAIL as isize) {
                return None;
            }
            self.is_connected = false;
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

    /// Posts a message. Nothing happens on a connection that is over: providers crash who post there.
    pub(crate) fn send(&mut self, bytes: &[u8], data: Option<u64>) {
        if !self.is_connected {
            return;
        }
        let kept = bytes.to_vec();
        let mr = self.registered(&kept);
        let iov = libc::iovec {
            iov_base: kept.as_ptr().cast_mut().cast(),
            iov_len: kept.len(),
        };
        self.sent.push((kept, mr));
        let mut desc = ptr::null_mut();
        if !mr.is_null() {
            // SAFETY: open until the endpoint is closed.
            desc = unsafe { sys::fi_mr_desc(mr) };
        }
        // verbs looks into a descriptor that is there, also for a message without a byte.
        let descs = match desc.is_null() {
            true => ptr::null_mut(),
            false => &raw mut desc,
        };
        let msg = sys::fi_msg {
            msg_iov: &raw const iov,
            desc: descs,
            iov_count: 1,
            addr: 0,
            context: ptr::null_mut(),
            data: data.unwrap_or(0),
        };
        let flags = match data {
            Some(_) => sys::FI_COMPLETION | sys::FI_REMOTE_CQ_DATA,
            None => sys::FI_COMPLETION,
        };
        // SAFETY: connected; the bytes and their registration are kept until the endpoint is closed. A refusal means that the connection is
        // gone, which the tests wait for by other means.
        let _ = unsafe { sys::fi_sendmsg(self.ep, &raw const msg, flags) };
    }

    /// A registration of these bytes, where the provider wants one.
    fn registered(&self, bytes: &[u8]) -> *mut sys::fid_mr {
        let mut mr = ptr::null_mut();
        if self.domain.report().mr_mode & sys::FI_MR_LOCAL != 0 && !bytes.is_empty() {
            // SAFETY: the domain is open, and the bytes stay where they are until the registration is closed.
            let rc = unsafe {
                let start = bytes.as_ptr().cast();
                let dom = self.domain.as_raw();
                let to = &raw mut mr;
                sys::fi_mr_reg(
                    dom,
                    start,
                    bytes.len(),
                    sys::FI_SEND,
                    0,
                    0,
                    0,
                    to,
                    ptr::null_mut(),
                )
            };
            ok("fi_mr_reg", rc);
        }
        mr
    }
}

/// An info of the domain's provider at the tests' address, with that destination.
unsafe fn find(library: &'static sys::Library, domain: &Domain, to: PeerAddr) -> *mut sys::fi_info {
    let hints = library.allocinfo();
    assert!(!hints.is_null());
    let name = CString::new(domain.fabric().provider().name).expect("no zero");
    let node = CString::new(node()).expect("no zero");
    let mut info = ptr::null_mut();
    // SAFETY: the hints are of this library, which frees with them what is allocated by strdup(3), as it does with an info's addresses.
    unsafe {
        (*(*hints).fabric_attr).prov_name = libc::strdup(name.as_ptr());
        (*(*hints).ep_attr).type_ = sys::FI_EP_MSG;
        (*(*hints).domain_attr).mr_mode = domain.report().mr_mode;
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
        let addr = libc::malloc(size_of::<libc::sockaddr_in>()).cast::<libc::sockaddr_in>();
        assert!(!addr.is_null(), "memory");
        addr.write(sockaddr(to));
        libc::free((*info).dest_addr);
        (*info).dest_addr = addr.cast();
        (*info).dest_addrlen = size_of::<libc::sockaddr_in>();
    }
    info
}

fn sockaddr(addr: PeerAddr) -> libc::sockaddr_in {
    let Some(std::net::SocketAddr::V4(v4)) = addr.socket_addr() else {
        panic!("tests use IPv4");
    };
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: v4.port().to_be(),
        sin_addr: libc::in_addr {
            s_addr: u32::from(*v4.ip()).to_be(),
        },
        sin_zero: [0; 8],
    }
}

impl Drop for RawPeer {
    fn drop(&mut self) {
        // SAFETY: open, closed once, in the order that works; the domain is still open.
        unsafe {
            sys::fi_close(self.ep.cast());
            while self.poll_closed() {}
            for (_, mr) in self.sent.iter().filter(|(_, mr)| !mr.is_null()) {
                sys::fi_close((*mr).cast());
            }
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
