//! What a bare loop opens: fabric, domain, queues, registered memory, and a connection. Of
//! `stream_bench`, too.

#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::mem::{MaybeUninit, size_of};
use std::net::SocketAddr;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use fabricast::Region;
use libfabric_sys as sys;

use crate::case::Case;
use crate::deadline::Deadline;
use crate::error::{Failure, fail};
use crate::host::ip_of;

/// Completions read at once.
pub(crate) const BATCH: usize = 32;
/// Headers lie in slots of a cache line.
pub(crate) const SLOT: usize = 64;
/// How long making a connection may take.
const CONNECT: Duration = Duration::from_secs(10);
/// What memory is registered for: messages and one-sided operations, on either side.
const ACCESS: u64 = sys::FI_SEND
    | sys::FI_RECV
    | sys::FI_READ
    | sys::FI_WRITE
    | sys::FI_REMOTE_READ
    | sys::FI_REMOTE_WRITE;

pub(crate) fn check(call: &'static str, rc: i32) -> Result<(), Failure> {
    if rc == 0 {
        Ok(())
    } else {
        fail(format!("bare loop: {call} answered {rc}"))
    }
}

/// Completions that may wait for one connection: of its sends, and of the receives that are posted.
/// A card's queue does not grow, and verbs of libfabric 1.17 keeps free as many entries as an
/// endpoint could have receives, out of which it takes those of sends. `tcp` says 65,536, and its
/// queue grows.
fn completions_of(case: &Case, info: *mut sys::fi_info) -> usize {
    // SAFETY: an answer of the library, which has all attributes.
    let receive = unsafe { (*info).rx_attr };
    // SAFETY: as above.
    let opened = unsafe { (*receive).size };
    let kept = if opened <= 1024 { opened } else { 0 };
    2 * case.depth + case.receive_depth().max(kept)
}

/// Fabric, domain and queues, opened once for a run.
pub(crate) struct Net {
    pub(crate) library: &'static sys::Library,
    pub(crate) info: *mut sys::fi_info,
    pub(crate) fabric: *mut sys::fid_fabric,
    pub(crate) domain: *mut sys::fid_domain,
    pub(crate) eq: *mut sys::fid_eq,
    pub(crate) cq: *mut sys::fid_cq,
}

impl Net {
    /// Everything that does not depend on the peer, for so many connections. `dest` is where one of
    /// them will go.
    pub(crate) fn open(
        case: &Case,
        dest: Option<SocketAddr>,
        connections: usize,
    ) -> Result<Self, Failure> {
        let library = sys::Library::load().map_err(|error| Failure::new(error.to_string()))?;
        let info = find(library, case, dest)?;
        let queue = connections * completions_of(case, info) + 64;
        let mut net = Self {
            library,
            info,
            fabric: ptr::null_mut(),
            domain: ptr::null_mut(),
            eq: ptr::null_mut(),
            cq: ptr::null_mut(),
        };
        // SAFETY: `info` is an answer of this library.
        let attr = unsafe { (*info).fabric_attr };
        // SAFETY: as above; the result is writable.
        let rc = unsafe { library.fi_fabric(attr, &raw mut net.fabric, ptr::null_mut()) };
        check("fi_fabric", rc)?;
        // SAFETY: the fabric is open.
        let rc = unsafe { sys::fi_domain(net.fabric, info, &raw mut net.domain, ptr::null_mut()) };
        check("fi_domain", rc)?;
        let mut attr = sys::fi_eq_attr {
            size: 0,
            flags: 0,
            wait_obj: sys::FI_WAIT_NONE,
            signaling_vector: 0,
            wait_set: ptr::null_mut(),
        };
        // SAFETY: the fabric is open, the attributes are writable.
        let rc =
            unsafe { sys::fi_eq_open(net.fabric, &raw mut attr, &raw mut net.eq, ptr::null_mut()) };
        check("fi_eq_open", rc)?;
        let mut attr = sys::fi_cq_attr {
            size: queue,
            flags: 0,
            format: sys::FI_CQ_FORMAT_MSG,
            wait_obj: case.wait_obj(),
            signaling_vector: 0,
            wait_cond: sys::FI_CQ_COND_NONE,
            wait_set: ptr::null_mut(),
        };
        // SAFETY: the domain is open, the attributes are writable.
        let rc =
            unsafe { sys::fi_cq_open(net.domain, &raw mut attr, &raw mut net.cq, ptr::null_mut()) };
        check("fi_cq_open", rc)?;
        Ok(net)
    }

    /// An endpoint of `info`, bound and enabled.
    pub(crate) fn endpoint(&self, info: *mut sys::fi_info) -> Result<Ep, Failure> {
        let mut raw = ptr::null_mut();
        // SAFETY: the domain is open, the info is of this library.
        let rc = unsafe { sys::fi_endpoint(self.domain, info, &raw mut raw, ptr::null_mut()) };
        check("fi_endpoint", rc)?;
        let ep = Ep(raw);
        // SAFETY: both are open.
        let rc = unsafe { sys::fi_ep_bind(raw, self.eq.cast(), 0) };
        check("fi_ep_bind", rc)?;
        // SAFETY: both are open.
        let rc = unsafe { sys::fi_ep_bind(raw, self.cq.cast(), sys::FI_TRANSMIT | sys::FI_RECV) };
        check("fi_ep_bind", rc)?;
        // SAFETY: it is open and bound.
        let rc = unsafe { sys::fi_enable(raw) };
        check("fi_enable", rc)?;
        Ok(ep)
    }

    /// Waits for an event of this kind. With a connection request comes its info.
    pub(crate) fn expect(&self, kind: u32) -> Result<*mut sys::fi_info, Failure> {
        let deadline = Deadline::after(CONNECT);
        loop {
            let mut got = 0;
            let mut room = MaybeUninit::<[u64; 64]>::uninit();
            // SAFETY: the queue is open, the room has that length.
            let n = unsafe {
                sys::fi_eq_read(
                    self.eq,
                    &raw mut got,
                    room.as_mut_ptr().cast(),
                    size_of::<[u64; 64]>(),
                    0,
                )
            };
            if n >= size_of::<sys::fi_eq_cm_entry>() as isize && got == kind {
                // SAFETY: an event of connection management was written to the room, which is
                // aligned for it.
                let entry = unsafe { room.as_ptr().cast::<sys::fi_eq_cm_entry>().read() };
                return Ok(entry.info);
            }
            if n != -(sys::FI_EAGAIN as isize) {
                return fail(format!(
                    "bare loop: fi_eq_read answered {n}, event {got}, waiting for {kind}"
                ));
            }
            deadline.check("a bare connection")?;
            std::thread::yield_now();
        }
    }

    /// Reads completions into `out`; each context goes to `each`.
    #[inline]
    pub(crate) fn completions(
        &self,
        mut each: impl FnMut(usize) -> Result<(), Failure>,
    ) -> Result<usize, Failure> {
        let mut entries = [const { MaybeUninit::<sys::fi_cq_msg_entry>::uninit() }; BATCH];
        // SAFETY: the queue is open and of this format; the array has that room.
        let n = unsafe { sys::fi_cq_read(self.cq, entries.as_mut_ptr().cast(), BATCH) };
        if n == -(sys::FI_EAGAIN as isize) {
            return Ok(0);
        }
        if n < 0 {
            return fail(format!("bare loop: fi_cq_read answered {n}"));
        }
        for entry in &entries[..n as usize] {
            // SAFETY: the library wrote the first `n`.
            each(unsafe { entry.assume_init() }.op_context as usize)?;
        }
        Ok(n as usize)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        close(self.cq.cast());
        close(self.eq.cast());
        close(self.domain.cast());
        close(self.fabric.cast());
        // SAFETY: it is an answer of this library, and used no more.
        unsafe { self.library.fi_freeinfo(self.info) };
    }
}

pub(crate) fn close(fid: *mut sys::fid) {
    if !fid.is_null() {
        // SAFETY: open, and used no more; what belongs to it is closed (declaration order in each
        // function).
        let _ = unsafe { sys::fi_close(fid) };
    }
}

/// An endpoint, closed when it goes.
pub(crate) struct Ep(pub(crate) *mut sys::fid_ep);

impl Drop for Ep {
    fn drop(&mut self) {
        close(self.0.cast());
    }
}

/// The hints that `fabricast` gives for either kind of endpoint.
pub(crate) fn hints(
    library: &'static sys::Library,
    case: &Case,
    kind: sys::fi_ep_type,
) -> Result<*mut sys::fi_info, Failure> {
    let hints = library.allocinfo();
    if hints.is_null() {
        return fail("no memory for hints");
    }
    // SAFETY: allocated by the library, with all attributes.
    let head = unsafe { &mut *hints };
    head.caps = sys::FI_MSG;
    let (ep, domain, fabric) = (head.ep_attr, head.domain_attr, head.fabric_attr);
    // SAFETY: as above.
    unsafe { (*ep).type_ = kind };
    // SAFETY: as above.
    unsafe { (*domain).threading = sys::FI_THREAD_SAFE };
    // SAFETY: as above.
    unsafe { (*domain).control_progress = sys::FI_PROGRESS_MANUAL };
    // SAFETY: as above.
    unsafe { (*domain).data_progress = sys::FI_PROGRESS_MANUAL };
    // SAFETY: as above.
    unsafe {
        (*domain).mr_mode =
            sys::FI_MR_LOCAL | sys::FI_MR_VIRT_ADDR | sys::FI_MR_ALLOCATED | sys::FI_MR_PROV_KEY;
    }
    let provider =
        CString::new(case.provider.as_str()).map_err(|error| Failure::new(error.to_string()))?;
    // SAFETY: a text that ends with 0.
    let provider = unsafe { libc::strdup(provider.as_ptr()) };
    // SAFETY: as above; the library frees the copy with the hints.
    unsafe { (*fabric).prov_name = provider };
    Ok(hints)
}

/// The first answer of `fi_getinfo` for connected endpoints.
pub(crate) fn find(
    library: &'static sys::Library,
    case: &Case,
    dest: Option<SocketAddr>,
) -> Result<*mut sys::fi_info, Failure> {
    let text = |text: &str| CString::new(text).map_err(|error| Failure::new(error.to_string()));
    let hints = hints(library, case, sys::FI_EP_MSG)?;
    // SAFETY: allocated by the library.
    unsafe { (*hints).caps |= sys::FI_RMA };
    let (node, service, flags) = match dest {
        Some(dest) => (dest.ip().to_string(), Some(dest.port().to_string()), 0),
        None => (case.node.clone(), Some("0".to_owned()), sys::FI_SOURCE),
    };
    let (node, service) = (text(&node)?, text(service.as_deref().unwrap_or("0"))?);
    let mut info = ptr::null_mut();
    // SAFETY: texts and hints outlive the call, the result is writable.
    let rc = unsafe {
        library.fi_getinfo(
            library.negotiated(),
            node.as_ptr(),
            service.as_ptr(),
            flags,
            hints,
            &raw mut info,
        )
    };
    // SAFETY: allocated by this library, and used no more.
    unsafe { library.fi_freeinfo(hints) };
    check("fi_getinfo", rc)?;
    Ok(info)
}

/// Registered memory: equal pieces.
pub(crate) struct Memory {
    pub(crate) region: Arc<Region>,
    pub(crate) mr: *mut sys::fid_mr,
    pub(crate) desc: *mut c_void,
    pub(crate) stride: usize,
}

impl Memory {
    pub(crate) fn new(
        domain: *mut sys::fid_domain,
        pieces: usize,
        bytes: usize,
    ) -> Result<Self, Failure> {
        let stride = bytes.next_multiple_of(SLOT);
        let region = Region::host(pieces * stride)
            .build()
            .map_err(|error| Failure::new(error.to_string()))?;
        let mut mr = ptr::null_mut();
        // SAFETY: the domain is open; the memory stays mapped longer than the registration
        // (`drop`).
        let rc = unsafe {
            sys::fi_mr_reg(
                domain,
                region.as_ptr().cast(),
                region.len(),
                ACCESS,
                0,
                region.as_ptr() as u64,
                0,
                &raw mut mr,
                ptr::null_mut(),
            )
        };
        check("fi_mr_reg", rc)?;
        // SAFETY: it is open.
        let desc = unsafe { sys::fi_mr_desc(mr) };
        Ok(Self {
            region,
            mr,
            desc,
            stride,
        })
    }

    #[inline]
    pub(crate) fn at(&self, index: usize) -> *mut u8 {
        self.region.as_ptr().wrapping_add(index * self.stride)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        close(self.mr.cast());
    }
}

/// Posts the first receives, as many as the provider takes.
pub(crate) fn post_receives(ep: &Ep, memory: &Memory, receives: usize) -> Result<(), Failure> {
    for index in 0..receives {
        if !try_post_receive(ep, memory, index)? {
            break;
        }
    }
    Ok(())
}

/// Posts the receive of this index.
#[inline]
pub(crate) fn post_receive(ep: &Ep, memory: &Memory, index: usize) -> Result<(), Failure> {
    if try_post_receive(ep, memory, index)? {
        Ok(())
    } else {
        fail("bare loop: no room to post a receive again")
    }
}

/// Posts the receive of this index; false when the provider's queue is full.
#[inline]
pub(crate) fn try_post_receive(ep: &Ep, memory: &Memory, index: usize) -> Result<bool, Failure> {
    let base = memory.at(index).cast();
    // SAFETY: the endpoint is open; the memory is registered and untouched until its completion was
    // read.
    let rc = unsafe {
        sys::fi_recv(
            ep.0,
            base,
            memory.stride,
            memory.desc,
            0,
            index as *mut c_void,
        )
    };
    match rc {
        0 => Ok(true),
        rc if rc == -(sys::FI_EAGAIN as isize) => Ok(false),
        rc => fail(format!("bare loop: fi_recv answered {rc}")),
    }
}

/// A listener with its address.
pub(crate) struct Server {
    pub(crate) net: Net,
    pub(crate) pep: *mut sys::fid_pep,
    pub(crate) addr: SocketAddr,
}

impl Server {
    pub(crate) fn listen(case: &Case) -> Result<Self, Failure> {
        let net = Net::open(case, None, 1)?;
        let mut pep = ptr::null_mut();
        // SAFETY: the fabric is open, the info is of this library.
        let rc = unsafe { sys::fi_passive_ep(net.fabric, net.info, &raw mut pep, ptr::null_mut()) };
        check("fi_passive_ep", rc)?;
        // SAFETY: both are open.
        check("fi_pep_bind", unsafe {
            sys::fi_pep_bind(pep, net.eq.cast(), 0)
        })?;
        // SAFETY: it is open and bound.
        check("fi_listen", unsafe { sys::fi_listen(pep) })?;
        let mut name = MaybeUninit::<libc::sockaddr_in6>::zeroed();
        let mut len = size_of::<libc::sockaddr_in6>();
        // SAFETY: it is open, the room has that length.
        let rc = unsafe { sys::fi_getname(pep.cast(), name.as_mut_ptr().cast(), &raw mut len) };
        check("fi_getname", rc)?;
        // SAFETY: zeroed, and any bits are valid.
        let name = unsafe { name.assume_init() };
        // SAFETY: of either family it is as long as that says, or shorter than the room.
        let ip = unsafe { ip_of((&raw const name).cast()) };
        let ip = ip.ok_or_else(|| Failure::of("the bare loop's listener has no IP address"))?;
        // The port is at the same place in both.
        let addr = SocketAddr::new(ip, u16::from_be(name.sin6_port));
        Ok(Self { net, pep, addr })
    }

    pub(crate) fn accept(&self, memory: &Memory, receives: usize) -> Result<Ep, Failure> {
        let info = self.net.expect(sys::FI_CONNREQ)?;
        let ep = self.net.endpoint(info);
        // SAFETY: the request's info is ours to free, and the endpoint has its own copy.
        unsafe { self.net.library.fi_freeinfo(info) };
        let ep = ep?;
        post_receives(&ep, memory, receives)?;
        // SAFETY: the endpoint is open and came from a request.
        check("fi_accept", unsafe { sys::fi_accept(ep.0, ptr::null(), 0) })?;
        self.net.expect(sys::FI_CONNECTED)?;
        Ok(ep)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        close(self.pep.cast());
    }
}

/// Connects, with `receives` posted.
pub(crate) fn connect(net: &Net, memory: &Memory, receives: usize) -> Result<Ep, Failure> {
    let ep = net.endpoint(net.info)?;
    post_receives(&ep, memory, receives)?;
    // SAFETY: the endpoint is open; its info names the peer's address.
    let dest = unsafe { (*net.info).dest_addr };
    // SAFETY: as above.
    let rc = unsafe { sys::fi_connect(ep.0, dest, ptr::null(), 0) };
    check("fi_connect", rc)?;
    net.expect(sys::FI_CONNECTED)?;
    Ok(ep)
}
