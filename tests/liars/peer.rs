//! `Liar`: a peer that is no library of ours but a program over libfabric, which says what a test wants when a test wants it.
//!
//! What it does by itself is in [`Manners`], and all of that can be switched off.

use std::collections::{HashMap, VecDeque};
use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;

use fabricast::{Domain, PeerAddr};
use libfabric_sys as sys;

use crate::wire::{self, Control, Target};

/// Receives that are posted at all times.
const RECEIVES: usize = 32;

/// Contexts from here on are operations of the liar's.
const OPERATIONS: usize = 1000;

/// What a liar answers by itself, as an honest peer would.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manners {
    pub(crate) heartbeats: bool,
    pub(crate) revocations: bool,
    pub(crate) fences: bool,
}

impl Manners {
    pub(crate) fn good() -> Self {
        Self {
            heartbeats: true,
            revocations: true,
            fences: true,
        }
    }
}

/// One endpoint with its queues, in a domain that the library opened.
#[derive(Debug)]
pub(crate) struct Liar {
    ep: *mut sys::fid_ep,
    cq: *mut sys::fid_cq,
    eq: *mut sys::fid_eq,
    info: *mut sys::fi_info,
    library: &'static sys::Library,
    /// Where messages are received.
    receives: Vec<Vec<u64>>,
    /// The memory of its operations that are not over, and of reads that are; freed after the endpoint.
    memory: HashMap<usize, Vec<u8>>,
    reads: Vec<usize>,
    next: usize,
    pub(crate) manners: Manners,
    /// What the victim said and the liar did not answer.
    pub(crate) heard: VecDeque<Control>,
    /// Operations that are over.
    pub(crate) done: usize,
    pub(crate) failed: usize,
    pub(crate) connected: bool,
    /// The connection is gone, or never came to be.
    pub(crate) over: bool,
    questions: u64,
    _domain: Arc<Domain>,
}

// SAFETY: the objects are opened with FI_THREAD_SAFE, and one thread at a time has the liar.
unsafe impl Send for Liar {}

fn ok(call: &str, rc: i32) {
    assert_eq!(rc, 0, "{call}");
}

impl Liar {
    /// Starts to connect, with these bytes as private data.
    pub(crate) fn connect(domain: &Arc<Domain>, to: PeerAddr, private: &[u8]) -> Self {
        let library = sys::Library::load().expect("the domain was opened with it");
        let (mut eq, mut cq, mut ep) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        // SAFETY: all objects are opened from a domain and a fabric that `domain` keeps open, and closed in `drop`.
        let info = unsafe {
            let info = find_tcp(library);
            let (fabric, dom) = (domain.fabric().as_raw(), domain.as_raw());
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
            info
        };
        let mut liar = Self {
            ep,
            cq,
            eq,
            info,
            library,
            receives: vec![vec![0; 1024 / 8]; RECEIVES],
            memory: HashMap::new(),
            reads: Vec::new(),
            next: OPERATIONS,
            manners: Manners::good(),
            heard: VecDeque::new(),
            done: 0,
            failed: 0,
            connected: false,
            over: false,
            questions: 0,
            _domain: Arc::clone(domain),
        };
        (0..RECEIVES).for_each(|n| liar.post_receive(n));
        liar.ask(to, private);
        liar
    }

    fn ask(&self, to: PeerAddr, private: &[u8]) {
        let Some(std::net::SocketAddr::V4(v4)) = to.socket_addr() else {
            panic!("tests use IPv4");
        };
        // SAFETY: the address and the private data are read during the call; the endpoint is enabled.
        unsafe {
            let mut addr: libc::sockaddr_in = std::mem::zeroed();
            addr.sin_family = libc::AF_INET as libc::sa_family_t;
            addr.sin_port = v4.port().to_be();
            addr.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
            let data = private.as_ptr().cast();
            let rc = sys::fi_connect(self.ep, (&raw const addr).cast(), data, private.len());
            ok("fi_connect", rc);
        }
    }

    fn post_receive(&mut self, n: usize) {
        let buffer = &mut self.receives[n];
        let (base, len) = (buffer.as_mut_ptr().cast(), buffer.len() * 8);
        // SAFETY: the buffer is the liar's until its completion, and is not freed before the endpoint is closed. Refused: it is over.
        let _ = unsafe {
            let context = ptr::without_provenance_mut(n + 1);
            sys::fi_recv(self.ep, base, len, ptr::null_mut(), 0, context)
        };
    }

    // ---- what it says ------------------------------------------------------------------------------------------------

    /// Posts a message, if the provider takes it; only when connected, or the provider crashes.
    pub(crate) fn try_send(&mut self, bytes: &[u8], data: Option<u64>) -> bool {
        assert!(self.connected, "posts nothing before it is connected");
        if self.over {
            return false;
        }
        let kept = bytes.to_vec();
        let iov = iovec(&kept);
        let mut desc: *mut c_void = ptr::null_mut();
        let msg = sys::fi_msg {
            msg_iov: &raw const iov,
            desc: &raw mut desc,
            iov_count: 1,
            addr: 0,
            context: ptr::without_provenance_mut(self.next),
            data: data.unwrap_or(0),
        };
        let flags = sys::FI_COMPLETION | data.map_or(0, |_| sys::FI_REMOTE_CQ_DATA);
        // SAFETY: connected; the bytes are kept until the operation or the endpoint is over. tcp needs no descriptor.
        let rc = unsafe { sys::fi_sendmsg(self.ep, &raw const msg, flags) };
        self.posted(rc, kept)
    }

    fn posted(&mut self, rc: isize, kept: Vec<u8>) -> bool {
        if rc == 0 {
            self.memory.insert(self.next, kept);
            self.next += 1;
        }
        rc == 0
    }

    /// Says something; what the provider refuses is lost, as the connection is then.
    pub(crate) fn say(&mut self, control: Control) {
        self.try_say(control);
    }

    pub(crate) fn try_say(&mut self, control: Control) -> bool {
        self.try_send(&control.encode(), Some(wire::mark(control.kind)))
    }

    /// Asks for a sign of life: its answer says that the victim has read everything before.
    pub(crate) fn ask_for_life(&mut self) -> u64 {
        self.questions += 1;
        self.say(Control::new(wire::HEARTBEAT).value(self.questions));
        self.questions
    }

    /// Whether the victim has answered that question.
    pub(crate) fn is_answered(&self, question: u64) -> bool {
        let answer = Control::new(wire::HEARTBEAT).code(1).value(question);
        self.heard.contains(&answer)
    }

    /// Takes what was heard of this kind, the oldest first.
    pub(crate) fn take(&mut self, kind: u8) -> Option<Control> {
        let at = self.heard.iter().position(|heard| heard.kind == kind)?;
        self.heard.remove(at)
    }

    /// Writes these bytes, whoever's key it is; `immediate`: and tells the victim's queue.
    pub(crate) fn write(&mut self, to: Target, bytes: Vec<u8>, immediate: Option<u64>) -> bool {
        self.one_sided(to, bytes, immediate, false)
    }

    /// Reads all of it; the bytes are [`bytes_read`](Self::bytes_read).
    pub(crate) fn read(&mut self, from: Target) {
        self.reads.push(self.next);
        assert!(
            self.one_sided(from, vec![0; from.len], None, true),
            "posted"
        );
    }

    fn one_sided(&mut self, at: Target, kept: Vec<u8>, data: Option<u64>, read: bool) -> bool {
        assert!(self.connected, "posts nothing before it is connected");
        if self.over {
            return false;
        }
        let iov = iovec(&kept);
        let remote = sys::fi_rma_iov {
            addr: at.base,
            len: at.len,
            key: at.key,
        };
        let mut desc: *mut c_void = ptr::null_mut();
        let msg = sys::fi_msg_rma {
            msg_iov: &raw const iov,
            desc: &raw mut desc,
            iov_count: 1,
            addr: 0,
            rma_iov: &raw const remote,
            rma_iov_count: 1,
            context: ptr::without_provenance_mut(self.next),
            data: data.unwrap_or(0),
        };
        let flags = sys::FI_COMPLETION | data.map_or(0, |_| sys::FI_REMOTE_CQ_DATA);
        // SAFETY: as in `try_send`; the memory of a read is written by the provider only until then.
        let rc = unsafe {
            match read {
                true => sys::fi_readmsg(self.ep, &raw const msg, flags),
                false => sys::fi_writemsg(self.ep, &raw const msg, flags),
            }
        };
        self.posted(rc, kept)
    }

    /// What the first read brought so far.
    pub(crate) fn bytes_read(&self) -> &[u8] {
        &self.memory[&self.reads[0]]
    }

    /// Goes away without a word.
    pub(crate) fn hang_up(&mut self) {
        // SAFETY: the endpoint is open.
        let _ = unsafe { sys::fi_shutdown(self.ep, 0) };
        self.over = true;
    }

    // ---- what it hears -----------------------------------------------------------------------------------------------

    /// Drives the endpoint, and takes what came.
    pub(crate) fn poll(&mut self) {
        while let Some(entry) = self.completion() {
            self.on_completion(&entry);
        }
        while let Some(kind) = self.event() {
            match kind {
                sys::FI_CONNECTED => self.connected = true,
                _ => self.over = true,
            }
        }
    }

    fn completion(&mut self) -> Option<sys::fi_cq_data_entry> {
        // SAFETY: the queue is open; the entries have the sizes that they are said to have.
        unsafe {
            let mut entry: sys::fi_cq_data_entry = std::mem::zeroed();
            let n = sys::fi_cq_read(self.cq, (&raw mut entry).cast(), 1);
            if n > 0 {
                return Some(entry);
            }
            let mut error = sys::CqErrEntryBuf::zeroed();
            while n == -(sys::FI_EAVAIL as isize)
                && sys::fi_cq_readerr(self.cq, error.as_mut_ptr(), 0) > 0
            {
                if error.entry.op_context.addr() >= OPERATIONS {
                    self.failed += 1;
                }
            }
            None
        }
    }

    fn on_completion(&mut self, entry: &sys::fi_cq_data_entry) {
        let context = entry.op_context.addr();
        if context >= OPERATIONS {
            self.done += 1;
            if !self.reads.contains(&context) {
                self.memory.remove(&context);
            }
            return;
        }
        let n = context - 1;
        let bytes: Vec<u8> = self.receives[n]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        if entry.flags & sys::FI_REMOTE_CQ_DATA != 0 {
            let control = Control::parse(entry.data, &bytes[..entry.len]);
            self.on_control(control);
        }
        self.post_receive(n);
    }

    fn on_control(&mut self, control: Control) {
        let Manners {
            heartbeats,
            revocations,
            fences,
        } = self.manners;
        match control.kind {
            wire::HEARTBEAT if heartbeats && control.code == 0 => self.say(control.code(1)),
            wire::REVOKE if revocations => {
                self.say(Control::new(wire::REVOKE_ACK).value(control.value));
            }
            wire::FENCE if fences => self.say(wire::fenced(control)),
            _ => self.heard.push_back(control),
        }
    }

    fn event(&mut self) -> Option<u32> {
        // SAFETY: the queue is open; the buffers have the sizes that they are said to have.
        unsafe {
            let (mut kind, mut room) = (0_u32, [0_u64; 64]);
            let len = size_of_val(&room);
            let n = sys::fi_eq_read(self.eq, &raw mut kind, room.as_mut_ptr().cast(), len, 0);
            if n > 0 {
                return Some(kind);
            }
            let mut entry = sys::EqErrEntryBuf::zeroed();
            let refused = n == -(sys::FI_EAVAIL as isize)
                && sys::fi_eq_readerr(self.eq, entry.as_mut_ptr(), 0) > 0;
            refused.then_some(u32::MAX)
        }
    }
}

fn iovec(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

/// An info of tcp on the loopback interface, with one-sided operations.
unsafe fn find_tcp(library: &'static sys::Library) -> *mut sys::fi_info {
    let hints = library.allocinfo();
    assert!(!hints.is_null());
    let (name, node) = (
        CString::new("tcp").expect("no zero"),
        CString::new("127.0.0.1").expect("no zero"),
    );
    let mut info = ptr::null_mut();
    // SAFETY: the hints are of this library, which frees with them what is allocated by strdup(3).
    unsafe {
        (*(*hints).fabric_attr).prov_name = libc::strdup(name.as_ptr());
        (*(*hints).ep_attr).type_ = sys::FI_EP_MSG;
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
    }
    info
}

impl Drop for Liar {
    fn drop(&mut self) {
        // SAFETY: open, closed once, in the order that works; the domain is still open, and memory goes after the endpoint.
        unsafe {
            sys::fi_close(self.ep.cast());
            while self.completion().is_some() {}
            sys::fi_close(self.cq.cast());
            sys::fi_close(self.eq.cast());
            self.library.fi_freeinfo(self.info);
        }
    }
}
