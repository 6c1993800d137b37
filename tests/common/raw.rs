//! `RawEnd`: an endpoint that a test opens through `libfabric-sys` and does with what it wants; and
//! `RawPeer`, a client on top of it that says anything.

#![allow(unsafe_code)]
// A function that opens several objects has several calls and one reason why all are right.
#![allow(clippy::multiple_unsafe_ops_per_block)]

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::net::{SocketAddr, SocketAddrV4};
use std::ptr;
use std::sync::Arc;

use fabricast::{Domain, PeerAddr};
use libfabric_sys as sys;

use super::node;

/// Contexts from here on are operations; those below are receives, by number.
const OPERATIONS: usize = 1000;

/// Peers that an address vector is made for.
const PEERS: usize = 4;

/// What the event queue said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RawEvent {
    Connected,
    Shutdown,
    Refused { errno: i32, data: Vec<u8> },
}

/// What the completion queue said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RawCompletion {
    /// Something was received: into which buffer, how many bytes, and the CQ data, if there are
    /// any.
    Received(usize, usize, Option<u64>),
    /// A receive failed.
    NotReceived,
    /// A send, write or read is over; its memory, if that was kept.
    Done(usize, Option<Vec<u8>>),
    Failed,
}

/// Memory of a peer's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawRemote {
    pub(crate) addr: u64,
    pub(crate) len: usize,
    pub(crate) key: u64,
}

/// One endpoint with its queues, in a domain that the library opened: with a connection, or one
/// that reaches peers by number.
#[derive(Debug)]
pub(crate) struct RawEnd {
    ep: *mut sys::fid_ep,
    cq: *mut sys::fid_cq,
    /// Of an endpoint with a connection.
    eq: *mut sys::fid_eq,
    /// Of one without.
    av: *mut sys::fid_av,
    info: *mut sys::fi_info,
    library: &'static sys::Library,
    /// The memory of operations that are not over; freed after the endpoint.
    memory: HashMap<usize, Vec<u8>>,
    /// Registrations of what was sent, where the provider wants them; closed after the endpoint.
    registrations: Vec<*mut sys::fid_mr>,
    /// Providers crash who send on a connection that is over, or not there yet.
    is_connected: bool,
    /// Where messages are received, freed after the endpoint, too.
    receives: Vec<Vec<u64>>,
    next: usize,
    domain: Arc<Domain>,
}

// SAFETY: the objects are opened with FI_THREAD_SAFE, and one thread at a time has them.
unsafe impl Send for RawEnd {}

fn ok(call: &str, rc: i32) {
    assert_eq!(rc, 0, "{call}");
}

impl RawEnd {
    /// For a connection to this peer over the domain's provider; not connected yet.
    pub(crate) fn connected(domain: &Arc<Domain>, to: PeerAddr) -> Self {
        let provider = domain.fabric().provider().name;
        Self::open(domain, provider, Some(to))
    }

    /// For any peers, over this provider.
    pub(crate) fn connectionless(domain: &Arc<Domain>, provider: &str) -> Self {
        Self::open(domain, provider, None)
    }

    fn open(domain: &Arc<Domain>, provider: &str, to: Option<PeerAddr>) -> Self {
        let library = sys::Library::load().expect("the domain was opened with it");
        let mut end = Self {
            ep: ptr::null_mut(),
            cq: ptr::null_mut(),
            eq: ptr::null_mut(),
            av: ptr::null_mut(),
            info: find(library, domain, provider, to),
            library,
            memory: HashMap::new(),
            registrations: Vec::new(),
            is_connected: to.is_none(),
            receives: Vec::new(),
            next: OPERATIONS,
            domain: Arc::clone(domain),
        };
        // SAFETY: all objects are opened from a domain and a fabric that `domain` keeps open, and
        // closed in `drop`.
        unsafe {
            let (fabric, dom) = (domain.fabric().as_raw(), domain.as_raw());
            let mut cq_attr: sys::fi_cq_attr = std::mem::zeroed();
            cq_attr.format = sys::FI_CQ_FORMAT_DATA;
            cq_attr.wait_obj = sys::FI_WAIT_NONE;
            let rc = sys::fi_cq_open(dom, &raw mut cq_attr, &raw mut end.cq, ptr::null_mut());
            ok("fi_cq_open", rc);
            let rc = sys::fi_endpoint(dom, end.info, &raw mut end.ep, ptr::null_mut());
            ok("fi_endpoint", rc);
            let other: *mut sys::fid = match to {
                Some(_) => {
                    let mut attr: sys::fi_eq_attr = std::mem::zeroed();
                    attr.wait_obj = sys::FI_WAIT_NONE;
                    let rc =
                        sys::fi_eq_open(fabric, &raw mut attr, &raw mut end.eq, ptr::null_mut());
                    ok("fi_eq_open", rc);
                    end.eq.cast()
                }
                None => {
                    let mut attr: sys::fi_av_attr = std::mem::zeroed();
                    attr.type_ = sys::FI_AV_TABLE;
                    attr.count = PEERS;
                    let rc = sys::fi_av_open(dom, &raw mut attr, &raw mut end.av, ptr::null_mut());
                    ok("fi_av_open", rc);
                    end.av.cast()
                }
            };
            ok("fi_ep_bind", sys::fi_ep_bind(end.ep, other, 0));
            let both = sys::FI_TRANSMIT | sys::FI_RECV;
            ok("fi_ep_bind", sys::fi_ep_bind(end.ep, end.cq.cast(), both));
            ok("fi_enable", sys::fi_enable(end.ep));
        }
        end
    }

    /// Starts to connect with these bytes as private data.
    pub(crate) fn connect(&self, to: PeerAddr, private: &[u8]) {
        let addr = ipv4(to);
        // SAFETY: the address and the private data are read during the call; the endpoint is
        // enabled.
        let rc = unsafe {
            let data = private.as_ptr().cast();
            sys::fi_connect(self.ep, (&raw const addr).cast(), data, private.len())
        };
        ok("fi_connect", rc);
    }

    /// The number of a peer, for an endpoint without a connection.
    pub(crate) fn number_of(&self, peer: PeerAddr) -> u64 {
        let addr = ipv4(peer);
        let mut number = 0;
        // SAFETY: the vector is open; the address is read during the call.
        let inserted = unsafe {
            let (addr, none) = ((&raw const addr).cast(), ptr::null_mut());
            sys::fi_av_insert(self.av, addr, 1, &raw mut number, 0, none)
        };
        assert_eq!(inserted, 1, "fi_av_insert");
        number
    }

    /// Where it is.
    pub(crate) fn addr(&self) -> SocketAddrV4 {
        // SAFETY: plain bytes.
        let mut addr: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        let mut len = size_of_val(&addr);
        // SAFETY: the endpoint is enabled; so many bytes may be written.
        let rc = unsafe { sys::fi_getname(self.ep.cast(), (&raw mut addr).cast(), &raw mut len) };
        ok("fi_getname", rc);
        let ip = u32::from_be(addr.sin_addr.s_addr).into();
        SocketAddrV4::new(ip, u16::from_be(addr.sin_port))
    }

    // ---- receives -------------------------------------------------------------------------------

    /// Posts so many receives of so many bytes.
    pub(crate) fn receive(&mut self, receives: usize, bytes: usize) {
        assert!(self.receives.is_empty() && receives < OPERATIONS);
        self.receives = vec![vec![0; bytes.div_ceil(8)]; receives];
        (0..receives).for_each(|n| self.receive_again(n));
    }

    /// What lies in a buffer.
    pub(crate) fn received(&self, n: usize, len: usize) -> Vec<u8> {
        let words = self.receives[n].iter();
        words
            .flat_map(|word| word.to_ne_bytes())
            .take(len)
            .collect()
    }

    /// The buffer is free again.
    pub(crate) fn receive_again(&mut self, n: usize) {
        let buffer = &mut self.receives[n];
        let (base, len) = (buffer.as_mut_ptr().cast(), buffer.len() * 8);
        let anybody = sys::FI_ADDR_UNSPEC;
        // SAFETY: the buffer is this endpoint's until its completion, and is not freed before it is
        // closed. Refused: it is over.
        let _ = unsafe {
            let context = ptr::without_provenance_mut(n + 1);
            sys::fi_recv(self.ep, base, len, ptr::null_mut(), anybody, context)
        };
    }

    // ---- operations -----------------------------------------------------------------------------

    /// Posts a message to a peer, if the provider takes it; nothing happens on a connection that
    /// does not stand.
    pub(crate) fn send(&mut self, to: u64, bytes: &[u8], data: Option<u64>) -> bool {
        if !self.is_connected {
            return false;
        }
        let kept = bytes.to_vec();
        let iov = iovec(&kept);
        let mut desc = self.descriptor(&kept);
        // verbs looks into a descriptor that is there, also for a message without a byte.
        let descs = match desc.is_null() {
            true => ptr::null_mut(),
            false => &raw mut desc,
        };
        let msg = sys::fi_msg {
            msg_iov: &raw const iov,
            desc: descs,
            iov_count: 1,
            addr: to,
            context: ptr::without_provenance_mut(self.next),
            data: data.unwrap_or(0),
        };
        // SAFETY: connected, or without connections; the bytes are kept until the operation is
        // over, and their registration until the endpoint is closed.
        let rc = unsafe { sys::fi_sendmsg(self.ep, &raw const msg, flags(data)) };
        self.posted(rc, kept).is_some()
    }

    /// The descriptor of a registration of these bytes, where the provider wants one.
    fn descriptor(&mut self, bytes: &[u8]) -> *mut c_void {
        if self.domain.report().mr_mode & sys::FI_MR_LOCAL == 0 || bytes.is_empty() {
            return ptr::null_mut();
        }
        let mut mr = ptr::null_mut();
        // SAFETY: the domain is open; the bytes are kept until the operation is over, and nothing
        // is sent from there afterwards.
        let rc = unsafe {
            let (dom, start, len) = (self.domain.as_raw(), bytes.as_ptr().cast(), bytes.len());
            let (to, none) = (&raw mut mr, ptr::null_mut());
            sys::fi_mr_reg(dom, start, len, sys::FI_SEND, 0, 0, 0, to, none)
        };
        ok("fi_mr_reg", rc);
        self.registrations.push(mr);
        // SAFETY: open until the endpoint is closed.
        unsafe { sys::fi_mr_desc(mr) }
    }

    /// Posts a write, whoever's key it is; `data`: and tells the peer's queue. The context of the
    /// operation, if the provider takes it.
    pub(crate) fn write(
        &mut self,
        to: u64,
        at: RawRemote,
        bytes: Vec<u8>,
        data: Option<u64>,
    ) -> Option<usize> {
        self.one_sided(to, at, bytes, data, false)
    }

    /// Posts a read of all of it.
    pub(crate) fn read(&mut self, to: u64, from: RawRemote) -> Option<usize> {
        self.one_sided(to, from, vec![0; from.len], None, true)
    }

    fn one_sided(
        &mut self,
        to: u64,
        at: RawRemote,
        kept: Vec<u8>,
        data: Option<u64>,
        read: bool,
    ) -> Option<usize> {
        let iov = iovec(&kept);
        let remote = sys::fi_rma_iov {
            addr: at.addr,
            len: at.len,
            key: at.key,
        };
        let mut desc: *mut c_void = ptr::null_mut();
        let msg = sys::fi_msg_rma {
            msg_iov: &raw const iov,
            desc: &raw mut desc,
            iov_count: 1,
            addr: to,
            rma_iov: &raw const remote,
            rma_iov_count: 1,
            context: ptr::without_provenance_mut(self.next),
            data: data.unwrap_or(0),
        };
        // SAFETY: as in `send`; the memory of a read is written by the provider only until then.
        let rc = unsafe {
            match read {
                true => sys::fi_readmsg(self.ep, &raw const msg, flags(data)),
                false => sys::fi_writemsg(self.ep, &raw const msg, flags(data)),
            }
        };
        self.posted(rc, kept)
    }

    fn posted(&mut self, rc: isize, kept: Vec<u8>) -> Option<usize> {
        (rc == 0).then(|| {
            self.memory.insert(self.next, kept);
            self.next += 1;
            self.next - 1
        })
    }

    /// What lies in the memory of an operation that is not over.
    pub(crate) fn memory_of(&self, operation: usize) -> Option<&[u8]> {
        self.memory.get(&operation).map(Vec::as_slice)
    }

    /// Ends the connection without a word.
    pub(crate) fn shut_down(&mut self) {
        // SAFETY: the endpoint is open.
        let _ = unsafe { sys::fi_shutdown(self.ep, 0) };
    }

    // ---- queues ---------------------------------------------------------------------------------

    /// Drives the endpoint and reads one completion, if there is one.
    pub(crate) fn completion(&mut self) -> Option<RawCompletion> {
        // SAFETY: the queue is open; the entries have the sizes that they are said to have.
        let (context, entry) = unsafe {
            let mut entry: sys::fi_cq_data_entry = std::mem::zeroed();
            let n = sys::fi_cq_read(self.cq, (&raw mut entry).cast(), 1);
            if n > 0 {
                (entry.op_context.addr(), Some(entry))
            } else {
                let mut error = sys::CqErrEntryBuf::zeroed();
                let available = n == -(sys::FI_EAVAIL as isize);
                if !available || sys::fi_cq_readerr(self.cq, error.as_mut_ptr(), 0) <= 0 {
                    return None;
                }
                (error.entry.op_context.addr(), None)
            }
        };
        let is_operation = context >= OPERATIONS;
        Some(match entry {
            Some(_) if is_operation => RawCompletion::Done(context, self.memory.remove(&context)),
            Some(entry) => {
                let data = entry.flags & sys::FI_REMOTE_CQ_DATA != 0;
                RawCompletion::Received(context - 1, entry.len, data.then_some(entry.data))
            }
            // The memory stays: what is reported as failed may go on.
            None if is_operation => RawCompletion::Failed,
            None => RawCompletion::NotReceived,
        })
    }

    /// Reads one event, if there is one; only with a connection.
    pub(crate) fn event(&mut self) -> Option<RawEvent> {
        // SAFETY: the queue is open; the buffers have the sizes that they are said to have.
        unsafe {
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
}

impl Drop for RawEnd {
    fn drop(&mut self) {
        // SAFETY: open, closed once, in the order that works; the domain is still open, and memory
        // goes after the endpoint.
        unsafe {
            sys::fi_close(self.ep.cast());
            while self.completion().is_some() {}
            for mr in &self.registrations {
                sys::fi_close((*mr).cast());
            }
            sys::fi_close(self.cq.cast());
            if !self.eq.is_null() {
                sys::fi_close(self.eq.cast());
            }
            if !self.av.is_null() {
                sys::fi_close(self.av.cast());
            }
            self.library.fi_freeinfo(self.info);
        }
    }
}

fn flags(data: Option<u64>) -> u64 {
    sys::FI_COMPLETION | data.map_or(0, |_| sys::FI_REMOTE_CQ_DATA)
}

fn iovec(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

fn ipv4(addr: PeerAddr) -> libc::sockaddr_in {
    let Some(SocketAddr::V4(v4)) = addr.socket_addr() else {
        panic!("tests use IPv4");
    };
    // SAFETY: plain bytes.
    let mut raw: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    raw.sin_family = libc::AF_INET as libc::sa_family_t;
    raw.sin_port = v4.port().to_be();
    raw.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
    raw
}

/// An info of this provider at the tests' address, with one-sided operations: for connections to a
/// peer, or for any peers.
fn find(
    library: &'static sys::Library,
    domain: &Domain,
    provider: &str,
    to: Option<PeerAddr>,
) -> *mut sys::fi_info {
    let hints = library.allocinfo();
    assert!(!hints.is_null());
    let (name, node) = (
        CString::new(provider).expect("no zero"),
        CString::new(node()).expect("no zero"),
    );
    let mut info = ptr::null_mut();
    // SAFETY: the hints are of this library, which frees with them what is allocated by strdup(3),
    // as it does with an info's addresses.
    unsafe {
        (*(*hints).fabric_attr).prov_name = libc::strdup(name.as_ptr());
        (*(*hints).ep_attr).type_ = match to {
            Some(_) => sys::FI_EP_MSG,
            None => sys::FI_EP_RDM,
        };
        (*(*hints).domain_attr).mr_mode = domain.report().mr_mode;
        (*hints).caps = sys::FI_MSG | sys::FI_RMA;
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
        if let Some(to) = to {
            let addr = libc::malloc(size_of::<libc::sockaddr_in>()).cast::<libc::sockaddr_in>();
            assert!(!addr.is_null(), "memory");
            addr.write(ipv4(to));
            libc::free((*info).dest_addr);
            (*info).dest_addr = addr.cast();
            (*info).dest_addrlen = size_of::<libc::sockaddr_in>();
        }
    }
    info
}

// ---- a client -----------------------------------------------------------------------------------

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

/// A client that says whatever a test wants, and hears nothing.
#[derive(Debug)]
pub(crate) struct RawPeer(RawEnd);

impl RawPeer {
    /// The most private data that the provider passes on: what it says itself
    /// (FI_OPT_CM_DATA_SIZE).
    pub(crate) fn private_max(domain: &Arc<Domain>, to: PeerAddr) -> usize {
        let end = RawEnd::connected(domain, to);
        let (mut most, mut len) = (0_usize, size_of::<usize>());
        // SAFETY: the endpoint is open; the option is a `size_t`, of which so many bytes are
        // writable.
        let rc = unsafe {
            let level = sys::FI_OPT_ENDPOINT;
            let (option, value) = (sys::FI_OPT_CM_DATA_SIZE, (&raw mut most).cast());
            sys::fi_getopt(end.ep.cast(), level, option, value, &raw mut len)
        };
        ok("fi_getopt", rc);
        most
    }

    /// Starts to connect with these bytes as private data.
    pub(crate) fn connect(domain: &Arc<Domain>, to: PeerAddr, private: &[u8]) -> Self {
        let end = RawEnd::connected(domain, to);
        end.connect(to, private);
        Self(end)
    }

    /// Drives the endpoint and reads one event, if there is one.
    pub(crate) fn poll(&mut self) -> Option<RawEvent> {
        while self.0.completion().is_some() {}
        self.0.event()
    }

    /// Posts a message. A refusal means that the connection is gone, which the tests wait for by
    /// other means.
    pub(crate) fn send(&mut self, bytes: &[u8], data: Option<u64>) {
        self.0.send(0, bytes, data);
    }
}
