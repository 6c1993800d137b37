//! Messages one way over endpoints without connections (FI_EP_RDM), bare: the server posts receives
//! and says its address, the client sends with `depth` in flight.

use std::collections::VecDeque;
use std::ffi::{CString, c_void};
use std::mem::{MaybeUninit, size_of};
use std::ptr;

use libfabric_sys as sys;

use super::{BATCH, Memory, SLOT, check, close, header_at};
use crate::case::{Arrived, Case, HEADER, Header, Pacer, Sent};
use crate::clock::{Sampler, spin};
use crate::error::{Failure, fail};

/// Bytes of the longest address.
const NAME_MAX: usize = 256;

/// Fabric, domain, queue, address vector and the one endpoint, opened once for a run. Closed in the
/// order of `drop`.
pub(super) struct Node {
    library: &'static sys::Library,
    pub(super) info: *mut sys::fi_info,
    pub(super) fabric: *mut sys::fid_fabric,
    pub(super) domain: *mut sys::fid_domain,
    pub(super) cq: *mut sys::fid_cq,
    av: *mut sys::fid_av,
    pub(super) ep: *mut sys::fid_ep,
    /// What providers write to that ask for it (FI_CONTEXT2); the place of a cell is the number of
    /// an operation.
    cells: Box<[MaybeUninit<sys::fi_context2>]>,
}

impl Node {
    pub(super) fn open(case: &Case, operations: usize) -> Result<Self, Failure> {
        let library = sys::Library::load().map_err(|error| Failure::new(error.to_string()))?;
        let mut node = Self {
            library,
            info: find(library, case)?,
            fabric: ptr::null_mut(),
            domain: ptr::null_mut(),
            cq: ptr::null_mut(),
            av: ptr::null_mut(),
            ep: ptr::null_mut(),
            cells: (0..operations).map(|_| MaybeUninit::uninit()).collect(),
        };
        // SAFETY: `info` is an answer of this library.
        let attr = unsafe { (*node.info).fabric_attr };
        // SAFETY: as above; the result is writable.
        let rc = unsafe { library.fi_fabric(attr, &raw mut node.fabric, ptr::null_mut()) };
        check("fi_fabric", rc)?;
        // SAFETY: the fabric is open.
        let rc = unsafe {
            sys::fi_domain(
                node.fabric,
                node.info,
                &raw mut node.domain,
                ptr::null_mut(),
            )
        };
        check("fi_domain", rc)?;
        node.open_queue(case, operations)?;
        node.open_endpoint()?;
        Ok(node)
    }

    fn open_queue(&mut self, case: &Case, operations: usize) -> Result<(), Failure> {
        let mut attr = sys::fi_cq_attr {
            size: 2 * operations,
            flags: 0,
            format: sys::FI_CQ_FORMAT_MSG,
            wait_obj: case.wait.wait_obj(),
            signaling_vector: 0,
            wait_cond: sys::FI_CQ_COND_NONE,
            wait_set: ptr::null_mut(),
        };
        // SAFETY: the domain is open, the attributes are writable.
        let rc = unsafe {
            sys::fi_cq_open(
                self.domain,
                &raw mut attr,
                &raw mut self.cq,
                ptr::null_mut(),
            )
        };
        check("fi_cq_open", rc)
    }

    fn open_endpoint(&mut self) -> Result<(), Failure> {
        let mut attr = sys::fi_av_attr {
            type_: sys::FI_AV_TABLE,
            rx_ctx_bits: 0,
            count: 1,
            ep_per_node: 0,
            name: ptr::null(),
            map_addr: ptr::null_mut(),
            flags: 0,
        };
        // SAFETY: the domain is open, the attributes are writable.
        let rc = unsafe {
            sys::fi_av_open(
                self.domain,
                &raw mut attr,
                &raw mut self.av,
                ptr::null_mut(),
            )
        };
        check("fi_av_open", rc)?;
        // SAFETY: the domain is open, the info is of this library.
        let rc =
            unsafe { sys::fi_endpoint(self.domain, self.info, &raw mut self.ep, ptr::null_mut()) };
        check("fi_endpoint", rc)?;
        // SAFETY: both are open.
        let rc = unsafe { sys::fi_ep_bind(self.ep, self.av.cast(), 0) };
        check("fi_ep_bind", rc)?;
        // SAFETY: both are open.
        let rc =
            unsafe { sys::fi_ep_bind(self.ep, self.cq.cast(), sys::FI_TRANSMIT | sys::FI_RECV) };
        check("fi_ep_bind", rc)?;
        // SAFETY: it is open and bound.
        check("fi_enable", unsafe { sys::fi_enable(self.ep) })
    }

    /// Its address, as bytes in hexadecimal.
    pub(super) fn name(&self) -> Result<String, Failure> {
        let mut name = [0_u8; NAME_MAX];
        let mut len = name.len();
        // SAFETY: it is open, the room has that length.
        let rc = unsafe { sys::fi_getname(self.ep.cast(), name.as_mut_ptr().cast(), &raw mut len) };
        check("fi_getname", rc)?;
        let bytes = name[..len.min(NAME_MAX)].iter();
        Ok(bytes.map(|byte| format!("{byte:02x}")).collect())
    }

    /// The number of a peer, from what it said as its name.
    pub(super) fn insert(&self, name: &str) -> Result<sys::fi_addr_t, Failure> {
        // Longer than any address: a provider reads as much as its addresses have.
        let mut bytes = [0_u8; NAME_MAX];
        for (at, byte) in bytes.iter_mut().zip(name.as_bytes().chunks(2)) {
            *at = u8::from_str_radix(std::str::from_utf8(byte)?, 16)?;
        }
        let mut number = 0;
        // SAFETY: the vector is open; the address is one of this provider's, and the result is
        // writable.
        let inserted = unsafe {
            sys::fi_av_insert(
                self.av,
                bytes.as_ptr().cast(),
                1,
                &raw mut number,
                0,
                ptr::null_mut(),
            )
        };
        match inserted {
            1 => Ok(number),
            rc => fail(format!("bare loop: fi_av_insert answered {rc}")),
        }
    }

    #[inline]
    pub(super) fn context(&self, index: usize) -> *mut c_void {
        self.cells.as_ptr().wrapping_add(index).cast_mut().cast()
    }

    /// Reads completions; the number of each operation goes to `each`.
    #[inline]
    pub(super) fn completions(
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
        let first = self.cells.as_ptr() as usize;
        for entry in &entries[..n as usize] {
            // SAFETY: the library wrote the first `n`.
            let context = unsafe { entry.assume_init() }.op_context as usize;
            each((context - first) / size_of::<sys::fi_context2>())?;
        }
        Ok(n as usize)
    }

    /// Posts the receive of this index; false when the provider's queue is full.
    #[inline]
    pub(super) fn receive(&self, memory: &Memory, index: usize) -> Result<bool, Failure> {
        // SAFETY: the endpoint is open; memory and cell are untouched until the completion was
        // read.
        let rc = unsafe {
            sys::fi_recv(
                self.ep,
                memory.at(index).cast(),
                memory.stride,
                memory.desc,
                sys::FI_ADDR_UNSPEC,
                self.context(index),
            )
        };
        taken("fi_recv", rc)
    }

    /// Header slot and payload of this index as one message; false when the provider takes none
    /// now.
    #[inline]
    pub(super) fn send(
        &self,
        to: sys::fi_addr_t,
        (headers, payloads): (&Memory, &Memory),
        size: usize,
        index: usize,
        header: Header,
    ) -> Result<bool, Failure> {
        let slot = headers.at(index);
        // SAFETY: the slot has room for a header, and no send of this index is in flight (the
        // caller's free list).
        unsafe { slot.cast::<[u8; HEADER]>().write(header.to_bytes()) };
        let iov = [
            libc::iovec {
                iov_base: slot.cast(),
                iov_len: HEADER,
            },
            libc::iovec {
                iov_base: payloads.at(index).cast(),
                iov_len: size,
            },
        ];
        let mut desc = [headers.desc, payloads.desc];
        // SAFETY: the peer is in the vector; memory and cell are untouched until the completion was
        // read.
        let rc = unsafe {
            sys::fi_sendv(
                self.ep,
                iov.as_ptr(),
                desc.as_mut_ptr(),
                2,
                to,
                self.context(index),
            )
        };
        taken("fi_sendv", rc)
    }
}

/// Whether the provider took a post.
#[inline]
pub(super) fn taken(call: &str, rc: isize) -> Result<bool, Failure> {
    match rc {
        0 => Ok(true),
        rc if rc == -(sys::FI_EAGAIN as isize) => Ok(false),
        rc => fail(format!("bare loop: {call} answered {rc}")),
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        close(self.ep.cast());
        close(self.av.cast());
        close(self.cq.cast());
        close(self.domain.cast());
        close(self.fabric.cast());
        // SAFETY: it is an answer of this library, and used no more.
        unsafe { self.library.fi_freeinfo(self.info) };
    }
}

/// The first answer of `fi_getinfo`, with the hints that `fabricast` gives.
fn find(library: &'static sys::Library, case: &Case) -> Result<*mut sys::fi_info, Failure> {
    let text = |text: &str| CString::new(text).map_err(|error| Failure::new(error.to_string()));
    let hints = super::hints(library, case, sys::FI_EP_RDM)?;
    // SAFETY: allocated by the library, with all attributes.
    let head = unsafe { &mut *hints };
    if case.operation.is_object() {
        head.caps |= sys::FI_RMA;
    }
    let row = fabricast::fabric::provider(&case.provider);
    let offset_windows = row.is_some_and(|row| row.memory.offset_windows);
    head.mode = sys::FI_CONTEXT | sys::FI_CONTEXT2;
    let (domain, tx, rx) = (head.domain_attr, head.tx_attr, head.rx_attr);
    if case.operation.is_object() && offset_windows {
        // As the library asks: with virtual addresses no key is looked at.
        // SAFETY: as above.
        unsafe { (*domain).mr_mode &= !sys::FI_MR_VIRT_ADDR };
    }
    // SAFETY: as above.
    unsafe { (*domain).cq_data_size = size_of::<u64>() };
    // SAFETY: as above.
    unsafe { (*tx).msg_order = sys::FI_ORDER_SAS };
    // SAFETY: as above.
    unsafe { (*rx).msg_order = sys::FI_ORDER_SAS };
    let node = case.local_node().map(text).transpose()?;
    let (node, flags) = match &node {
        Some(node) => (node.as_ptr(), sys::FI_SOURCE),
        None => (ptr::null(), 0),
    };
    let mut info = ptr::null_mut();
    // SAFETY: text and hints outlive the call, the result is writable.
    let rc = unsafe {
        library.fi_getinfo(
            library.negotiated(),
            node,
            ptr::null(),
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

/// A server with its address.
pub(crate) struct Server {
    node: Node,
    pub(crate) addr: String,
}

impl Server {
    pub(crate) fn listen(case: &Case) -> Result<Self, Failure> {
        let node = Node::open(case, case.receive_depth())?;
        let addr = node.name()?;
        Ok(Self { node, addr })
    }

    /// Receives and drops until the end mark.
    pub(crate) fn receive(self, case: &Case) -> Result<Arrived, Failure> {
        let node = &self.node;
        let receives = case.receive_depth();
        let memory = Memory::new(node.domain, receives, HEADER + case.size)?;
        let mut posted = 0;
        while posted < receives && node.receive(&memory, posted)? {
            posted += 1;
        }
        let mut sampler = Sampler::new(case.limit());
        // What the provider had no room for when it was free again.
        let mut spare = Vec::new();
        while !sampler.done() {
            let found = node.completions(|index| {
                sampler.on_message(header_at(&memory, index));
                if !node.receive(&memory, index)? {
                    spare.push(index);
                }
                Ok(())
            })?;
            while let Some(index) = spare.pop() {
                if !node.receive(&memory, index)? {
                    spare.push(index);
                    break;
                }
            }
            sampler.on_poll(found)?;
            spin(case.bare_pause_us);
        }
        sampler.arrived()
    }
}

/// Sends with `depth` in flight for the time of the case. The endpoint stays open until the server
/// has `arrived`.
pub(crate) fn send<T>(
    case: &Case,
    to: &str,
    arrived: impl FnOnce() -> Result<T, Failure>,
) -> Result<(Sent, T), Failure> {
    let node = Node::open(case, case.depth)?;
    let to = node.insert(to)?;
    let headers = Memory::new(node.domain, case.depth, SLOT)?;
    let payloads = Memory::new(node.domain, case.depth, case.size)?;
    let mut free: VecDeque<usize> = (0..case.depth).collect();
    let mut pacer = Pacer::new(case);
    loop {
        while let Some(&index) = free.front() {
            let Some(header) = pacer.next() else { break };
            if !node.send(to, (&headers, &payloads), case.size, index, header)? {
                break;
            }
            free.pop_front();
            pacer.sent();
        }
        let found = node.completions(|index| {
            free.push_back(index);
            Ok(())
        })?;
        pacer.on_poll(found)?;
        if pacer.is_over() && free.len() == case.depth {
            return Ok((pacer.finish(), arrived()?));
        }
    }
}
