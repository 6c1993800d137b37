//! The structs of libfabric in their newest checked layout, that of
//! [`NEWEST`](crate::version::NEWEST).
//!
//! Two directions, two rules:
//!
//! * What we hand in is zeroed first, so that fields we do not know or use are 0. A library reads
//!   no more than the layout of the version that `fi_getinfo` was called with.
//! * What a library hands out may be *shorter* than declared here: behind the pointers of a
//!   `fi_info` made by 1.17 is its small `fi_domain_attr`. Never make a reference to such a struct:
//!   read single fields through the raw pointer (`(*ptr).field`, `&raw const (*ptr).field`), late
//!   ones only where their version was negotiated, or copy it out with [`fi_domain_attr::read`].
//!   The ABI test knows the version in which each late field appeared; so does its comment.
//!
//! Hints come only from [`Library::allocinfo`](crate::library::Library::allocinfo): a library of
//! 2.x looks for its own hidden fields in front of or behind what its own allocator made.

#![allow(non_camel_case_types)]
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::mem;
use std::ptr;

use crate::ops::*;
use crate::version::fi_version_make;

pub use libc::iovec;

/// Address of a peer: an opaque number that an address vector gave.
pub type fi_addr_t = u64;
/// One of `FI_EP_*`.
pub type fi_ep_type = u32;
/// One of `FI_THREAD_*`.
pub type fi_threading = u32;
/// One of `FI_PROGRESS_*`.
pub type fi_progress = u32;
/// One of `FI_RM_*`.
pub type fi_resource_mgmt = u32;
/// One of `FI_AV_*`.
pub type fi_av_type = u32;
/// One of `FI_CQ_FORMAT_*`.
pub type fi_cq_format = u32;
/// One of `FI_CQ_COND_*`.
pub type fi_cq_wait_cond = u32;
/// One of `FI_WAIT_*`.
pub type fi_wait_obj = u32;
/// One of `FI_HMEM_SYSTEM`, `FI_HMEM_CUDA` and so on.
pub type fi_hmem_iface = u32;
/// One of `FI_TYPE_*`.
pub type fi_type = u32;
/// One of `FI_PARAM_*`.
pub type fi_param_type = u32;
/// Kind of bus of a network interface: 0 unknown, 1 PCI.
pub type fi_bus_type = u32;
/// State of a link: 0 unknown, 1 down, 2 up.
pub type fi_link_state = u32;
/// Data type of atomics, which we do not use.
pub type fi_datatype = u32;
/// Operation of atomics, which we do not use.
pub type fi_op = u32;
/// Operation of collectives, which we do not use.
pub type fi_collective_op = u32;

/// Declares a struct that is only ever seen behind a pointer.
macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name {
            _opaque: [u8; 0],
        }
    )*};
}

opaque! {
    /// A counter.
    fid_cntr;
    /// A wait set. Deprecated.
    fid_wait;
    /// A poll set. Deprecated.
    fid_poll;
    /// A multicast group.
    fid_mc;
    /// A set of addresses of an address vector.
    fid_av_set;
    /// Attributes of a counter.
    fi_cntr_attr;
    /// Attributes of a wait set.
    fi_wait_attr;
    /// Attributes of a poll set.
    fi_poll_attr;
    /// Attributes of an address vector set.
    fi_av_set_attr;
    /// Attributes of an atomic.
    fi_atomic_attr;
    /// Attributes of a collective.
    fi_collective_attr;
    /// Operations of tagged messages.
    fi_ops_tagged;
    /// Operations of atomics.
    fi_ops_atomic;
    /// Operations of collectives.
    fi_ops_collective;
}

// What fi_getinfo(3) gives.

/// One way to communicate: the hints to, and the answer of, `fi_getinfo`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_info {
    /// The next answer, or null.
    pub next: *mut Self,
    /// Capabilities.
    pub caps: u64,
    /// Mode bits: what the application must do.
    pub mode: u64,
    /// Format of the addresses below.
    pub addr_format: u32,
    /// Length of `src_addr` in bytes.
    pub src_addrlen: usize,
    /// Length of `dest_addr` in bytes.
    pub dest_addrlen: usize,
    /// Local address.
    pub src_addr: *mut c_void,
    /// Address of the peer.
    pub dest_addr: *mut c_void,
    /// Connection request that this info came with, or null.
    pub handle: *mut fid,
    /// Transmit attributes.
    pub tx_attr: *mut fi_tx_attr,
    /// Receive attributes.
    pub rx_attr: *mut fi_rx_attr,
    /// Endpoint attributes.
    pub ep_attr: *mut fi_ep_attr,
    /// Domain attributes. May point to a struct that is shorter than declared here.
    pub domain_attr: *mut fi_domain_attr,
    /// Fabric attributes.
    pub fabric_attr: *mut fi_fabric_attr,
    /// Network interface, or null.
    pub nic: *mut fid_nic,
}

/// Transmit attributes of an endpoint.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_tx_attr {
    /// Capabilities.
    pub caps: u64,
    /// Mode bits.
    pub mode: u64,
    /// Default operation flags.
    pub op_flags: u64,
    /// Message order, `FI_ORDER_*`.
    pub msg_order: u64,
    /// Completion order.
    pub comp_order: u64,
    /// Most bytes of an injected operation.
    pub inject_size: usize,
    /// Depth of the transmit queue.
    pub size: usize,
    /// Most segments of an operation.
    pub iov_limit: usize,
    /// Most remote segments of a one-sided operation.
    pub rma_iov_limit: usize,
    /// Traffic class.
    pub tclass: u32,
}

/// Receive attributes of an endpoint.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_rx_attr {
    /// Capabilities.
    pub caps: u64,
    /// Mode bits.
    pub mode: u64,
    /// Default operation flags.
    pub op_flags: u64,
    /// Message order, `FI_ORDER_*`.
    pub msg_order: u64,
    /// Completion order.
    pub comp_order: u64,
    /// Bytes of unexpected messages that the provider buffers.
    pub total_buffered_recv: usize,
    /// Depth of the receive queue.
    pub size: usize,
    /// Most segments of a receive.
    pub iov_limit: usize,
}

/// Endpoint attributes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_ep_attr {
    /// Endpoint type. C name: `type`.
    pub type_: fi_ep_type,
    /// Protocol, `FI_PROTO_*`.
    pub protocol: u32,
    /// Version of the protocol.
    pub protocol_version: u32,
    /// Longest message in bytes.
    pub max_msg_size: usize,
    /// Room in front of each buffer with FI_MSG_PREFIX, in bytes.
    pub msg_prefix_size: usize,
    /// Longest operation that is ordered read after write, in bytes.
    pub max_order_raw_size: usize,
    /// Longest operation that is ordered write after read, in bytes.
    pub max_order_war_size: usize,
    /// Longest operation that is ordered write after write, in bytes.
    pub max_order_waw_size: usize,
    /// Format of tags.
    pub mem_tag_format: u64,
    /// Transmit contexts, or FI_SHARED_CONTEXT.
    pub tx_ctx_cnt: usize,
    /// Receive contexts, or FI_SHARED_CONTEXT.
    pub rx_ctx_cnt: usize,
    /// Length of the authorization key in bytes.
    pub auth_key_size: usize,
    /// Authorization key.
    pub auth_key: *mut u8,
}

/// Domain attributes. May be shorter than declared here when a library hands it out: see the
/// module's comment.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_domain_attr {
    /// An open domain, or null.
    pub domain: *mut fid_domain,
    /// Name of the domain.
    pub name: *mut c_char,
    /// Threading model.
    pub threading: fi_threading,
    /// Progress of control operations.
    pub control_progress: fi_progress,
    /// Progress of data operations. The same field is `progress` in 2.x.
    pub data_progress: fi_progress,
    /// Resource management.
    pub resource_mgmt: fi_resource_mgmt,
    /// Address vector type.
    pub av_type: fi_av_type,
    /// Registration modes, `FI_MR_*`.
    pub mr_mode: c_int,
    /// Length of keys in bytes.
    pub mr_key_size: usize,
    /// Length of immediate data in bytes.
    pub cq_data_size: usize,
    /// Best number of completion queues.
    pub cq_cnt: usize,
    /// Best number of endpoints.
    pub ep_cnt: usize,
    /// Best number of transmit contexts.
    pub tx_ctx_cnt: usize,
    /// Best number of receive contexts.
    pub rx_ctx_cnt: usize,
    /// Most transmit contexts of an endpoint.
    pub max_ep_tx_ctx: usize,
    /// Most receive contexts of an endpoint.
    pub max_ep_rx_ctx: usize,
    /// Most endpoints of a shared transmit context.
    pub max_ep_stx_ctx: usize,
    /// Most endpoints of a shared receive context.
    pub max_ep_srx_ctx: usize,
    /// Best number of counters.
    pub cntr_cnt: usize,
    /// Most segments of a registration.
    pub mr_iov_limit: usize,
    /// Capabilities.
    pub caps: u64,
    /// Mode bits.
    pub mode: u64,
    /// Authorization key.
    pub auth_key: *mut u8,
    /// Length of the authorization key in bytes.
    pub auth_key_size: usize,
    /// Most bytes of provider error data.
    pub max_err_data: usize,
    /// Best number of registrations.
    pub mr_cnt: usize,
    /// Traffic class.
    pub tclass: u32,
    /// Most authorization keys of an endpoint. Since 1.20.
    pub max_ep_auth_key: usize,
    /// Highest group of peers. Since 2.0.
    pub max_group_id: u32,
}

impl fi_domain_attr {
    /// Copies the attributes out of a library's memory, only as far as a library of `version`
    /// allocated them. Late fields that are not there are 0.
    ///
    /// # Safety
    ///
    /// * `attr` comes from a `fi_info` that is valid.
    /// * `version` is at most the [`version`](crate::library::Library::version) of the library that
    ///   made it.
    #[must_use]
    pub unsafe fn read(attr: *const Self, version: u32) -> Self {
        let len = if version >= fi_version_make(2, 0) {
            mem::size_of::<Self>()
        } else if version >= fi_version_make(1, 20) {
            mem::offset_of!(Self, max_group_id)
        } else {
            mem::offset_of!(Self, max_ep_auth_key)
        };
        let mut copy = mem::MaybeUninit::<Self>::zeroed();
        // SAFETY: the caller's library allocated at least the layout of `version`, which is `len`
        // bytes long; `copy` has room for the newest layout.
        unsafe { ptr::copy_nonoverlapping(attr.cast::<u8>(), copy.as_mut_ptr().cast::<u8>(), len) };
        // SAFETY: numbers and raw pointers only: each is valid when zeroed or copied.
        unsafe { copy.assume_init() }
    }
}

/// Fabric attributes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_fabric_attr {
    /// An open fabric, or null.
    pub fabric: *mut fid_fabric,
    /// Name of the fabric.
    pub name: *mut c_char,
    /// Name of the provider.
    pub prov_name: *mut c_char,
    /// Version of the provider.
    pub prov_version: u32,
    /// API version that `fi_getinfo` was asked for.
    pub api_version: u32,
}

// The network interface, fi_nic(3).

/// A network interface.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_nic {
    /// The object.
    pub fid: fid,
    /// What the device is, or null.
    pub device_attr: *mut fi_device_attr,
    /// Where the device sits, or null.
    pub bus_attr: *mut fi_bus_attr,
    /// The link, or null.
    pub link_attr: *mut fi_link_attr,
    /// The provider's own, or null.
    pub prov_attr: *mut c_void,
}

/// What a network device is. Texts may be null.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_device_attr {
    /// Name.
    pub name: *mut c_char,
    /// Device identifier.
    pub device_id: *mut c_char,
    /// Version.
    pub device_version: *mut c_char,
    /// Vendor identifier.
    pub vendor_id: *mut c_char,
    /// Driver.
    pub driver: *mut c_char,
    /// Firmware version.
    pub firmware: *mut c_char,
}

/// Address on the PCI bus.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_pci_attr {
    /// Domain.
    pub domain_id: u16,
    /// Bus.
    pub bus_id: u8,
    /// Device.
    pub device_id: u8,
    /// Function.
    pub function_id: u8,
}

/// Where a network device sits. The C union `attr` has one member.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_bus_attr {
    /// Kind of bus.
    pub bus_type: fi_bus_type,
    /// Address, where the bus is PCI. C name: `attr.pci`.
    pub pci: fi_pci_attr,
}

/// The link of a network device. Texts may be null.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_link_attr {
    /// Address.
    pub address: *mut c_char,
    /// Largest transfer unit in bytes.
    pub mtu: usize,
    /// Speed in bits per second.
    pub speed: usize,
    /// State.
    pub state: fi_link_state,
    /// Kind of network.
    pub network_type: *mut c_char,
}

// Objects. Each begins with a `fid`, so a pointer to it may be cast to `*mut fid`.

/// The head of each object.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid {
    /// One of `FI_CLASS_*`.
    pub fclass: usize,
    /// The caller's context.
    pub context: *mut c_void,
    /// Operations of each object.
    pub ops: *mut fi_ops,
}

/// A fabric.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_fabric {
    /// The object.
    pub fid: fid,
    /// Operations.
    pub ops: *mut fi_ops_fabric,
    /// API version.
    pub api_version: u32,
}

/// A domain.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_domain {
    /// The object.
    pub fid: fid,
    /// Operations.
    pub ops: *mut fi_ops_domain,
    /// Registration.
    pub mr: *mut fi_ops_mr,
}

/// An active endpoint or a shared receive context. A provider may allocate less than this.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_ep {
    /// The object.
    pub fid: fid,
    /// Operations.
    pub ops: *mut fi_ops_ep,
    /// Connection management.
    pub cm: *mut fi_ops_cm,
    /// Messages.
    pub msg: *mut fi_ops_msg,
    /// One-sided operations.
    pub rma: *mut fi_ops_rma,
    /// Tagged messages.
    pub tagged: *mut fi_ops_tagged,
    /// Atomics.
    pub atomic: *mut fi_ops_atomic,
    /// Collectives.
    pub collective: *mut fi_ops_collective,
}

/// A passive endpoint.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_pep {
    /// The object.
    pub fid: fid,
    /// Operations.
    pub ops: *mut fi_ops_ep,
    /// Connection management.
    pub cm: *mut fi_ops_cm,
}

/// A shared transmit context.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_stx {
    /// The object.
    pub fid: fid,
    /// Operations.
    pub ops: *mut fi_ops_ep,
}

/// A completion queue.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_cq {
    /// The object.
    pub fid: fid,
    /// Operations.
    pub ops: *mut fi_ops_cq,
}

/// An event queue.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_eq {
    /// The object.
    pub fid: fid,
    /// Operations.
    pub ops: *mut fi_ops_eq,
}

/// An address vector.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_av {
    /// The object.
    pub fid: fid,
    /// Operations.
    pub ops: *mut fi_ops_av,
}

/// A monitor of memory, which the cache of registrations asks what was unmapped (`rdma/fi_ext.h`,
/// "memory monitor" in fi_mr(3)).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_mem_monitor {
    /// The object. The library fills its context and operations in at the import.
    pub fid: fid,
    /// What whoever made the monitor implements.
    pub export_ops: *mut fi_ops_mem_monitor,
    /// What the library implements; filled in at the import.
    pub import_ops: *mut fi_ops_mem_notify,
}

/// A memory registration.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fid_mr {
    /// The object.
    pub fid: fid,
    /// Descriptor for local operations.
    pub mem_desc: *mut c_void,
    /// Key for peers.
    pub key: u64,
}

// Attributes that open objects.

/// Attributes of a completion queue, fi_cq(3).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_cq_attr {
    /// Least number of entries.
    pub size: usize,
    /// Flags.
    pub flags: u64,
    /// Format of entries.
    pub format: fi_cq_format,
    /// Wait object.
    pub wait_obj: fi_wait_obj,
    /// Core that takes the interrupts, with FI_AFFINITY.
    pub signaling_vector: c_int,
    /// Condition of blocking reads.
    pub wait_cond: fi_cq_wait_cond,
    /// Wait set. Deprecated: null.
    pub wait_set: *mut fid_wait,
}

/// Attributes of an event queue, fi_eq(3).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_eq_attr {
    /// Least number of entries.
    pub size: usize,
    /// Flags.
    pub flags: u64,
    /// Wait object.
    pub wait_obj: fi_wait_obj,
    /// Core that takes the interrupts, with FI_AFFINITY.
    pub signaling_vector: c_int,
    /// Wait set. Deprecated: null.
    pub wait_set: *mut fid_wait,
}

/// Attributes of an address vector, fi_av(3).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_av_attr {
    /// Type. C name: `type`.
    pub type_: fi_av_type,
    /// Address bits that select a receive context.
    pub rx_ctx_bits: c_int,
    /// Expected number of addresses.
    pub count: usize,
    /// Expected endpoints of a node.
    pub ep_per_node: usize,
    /// Name of a shared address vector.
    pub name: *const c_char,
    /// Base address of a shared address vector.
    pub map_addr: *mut c_void,
    /// Flags.
    pub flags: u64,
}

/// The memory of a registration: segments, or a dmabuf with FI_MR_DMABUF. Anonymous in C.
#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_mr_attr_memory {
    /// `iov_count` segments.
    pub mr_iov: *const iovec,
    /// `iov_count` dmabufs. Only where 1.20 was negotiated.
    pub dmabuf: *const fi_mr_dmabuf,
}

impl fmt::Debug for fi_mr_attr_memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("fi_mr_attr_memory").finish_non_exhaustive()
    }
}

/// The device of a registration, by memory interface. C name: `device`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_mr_attr_device {
    /// 0 where the interface has no device.
    pub reserved: u64,
    /// CUDA device.
    pub cuda: c_int,
    /// Level Zero device.
    pub ze: c_int,
    /// Neuron device.
    pub neuron: c_int,
    /// Habana device.
    pub synapseai: c_int,
}

impl fmt::Debug for fi_mr_attr_device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("fi_mr_attr_device").finish_non_exhaustive()
    }
}

/// Attributes of a registration, fi_mr(3). Start from a zeroed one.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_mr_attr {
    /// The memory. C names: `mr_iov` and, since 1.20, `dmabuf`.
    pub memory: fi_mr_attr_memory,
    /// Number of segments or dmabufs.
    pub iov_count: usize,
    /// Access rights.
    pub access: u64,
    /// Reserved: 0.
    pub offset: u64,
    /// Key, unless the provider chooses it.
    pub requested_key: u64,
    /// The caller's context.
    pub context: *mut c_void,
    /// Length of the authorization key in bytes.
    pub auth_key_size: usize,
    /// Authorization key.
    pub auth_key: *mut u8,
    /// Memory interface.
    pub iface: fi_hmem_iface,
    /// Device.
    pub device: fi_mr_attr_device,
    /// Data of the interface. Since 1.19.
    pub hmem_data: *mut c_void,
    /// Page size hint in bytes. Since 1.22.
    pub page_size: usize,
    /// Registration that this is a part of. Since 2.0.
    pub base_mr: *const fid_mr,
    /// Expected number of parts. Since 2.0.
    pub sub_mr_cnt: usize,
}

/// Memory named by a dmabuf, fi_mr(3). Since 1.20.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_mr_dmabuf {
    /// File descriptor of the dmabuf.
    pub fd: c_int,
    /// First byte, from the start of the dmabuf.
    pub offset: u64,
    /// Length in bytes.
    pub len: usize,
    /// Address at which the dmabuf starts in this process, or null.
    pub base_addr: *mut c_void,
}

// Completions, fi_cq(3).

/// Completion in the format FI_CQ_FORMAT_CONTEXT.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_cq_entry {
    /// Context of the operation.
    pub op_context: *mut c_void,
}

/// Completion in the format FI_CQ_FORMAT_MSG.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_cq_msg_entry {
    /// Context of the operation.
    pub op_context: *mut c_void,
    /// Completion flags.
    pub flags: u64,
    /// Received bytes. 0 for sends.
    pub len: usize,
}

/// Completion in the format FI_CQ_FORMAT_DATA.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_cq_data_entry {
    /// Context of the operation.
    pub op_context: *mut c_void,
    /// Completion flags.
    pub flags: u64,
    /// Received bytes. 0 for sends.
    pub len: usize,
    /// Buffer, only with FI_MULTI_RECV. Else it may hold anything.
    pub buf: *mut c_void,
    /// Immediate data, only with FI_REMOTE_CQ_DATA.
    pub data: u64,
}

/// Completion in the format FI_CQ_FORMAT_TAGGED.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_cq_tagged_entry {
    /// Context of the operation.
    pub op_context: *mut c_void,
    /// Completion flags.
    pub flags: u64,
    /// Received bytes. 0 for sends.
    pub len: usize,
    /// Buffer, only with FI_MULTI_RECV. Else it may hold anything.
    pub buf: *mut c_void,
    /// Immediate data, only with FI_REMOTE_CQ_DATA.
    pub data: u64,
    /// Tag.
    pub tag: u64,
}

/// Failed operation. Hand it to a library only inside a [`CqErrEntryBuf`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_cq_err_entry {
    /// Context of the operation.
    pub op_context: *mut c_void,
    /// Completion flags.
    pub flags: u64,
    /// Bytes that arrived.
    pub len: usize,
    /// Buffer.
    pub buf: *mut c_void,
    /// Immediate data.
    pub data: u64,
    /// Tag.
    pub tag: u64,
    /// Bytes that did not fit.
    pub olen: usize,
    /// Error code, positive.
    pub err: c_int,
    /// Error code of the provider.
    pub prov_errno: c_int,
    /// In: buffer for error data, or null. Out: the error data.
    pub err_data: *mut c_void,
    /// In: length of the buffer. Out: length of the error data in bytes.
    pub err_data_size: usize,
    /// Source address. Since 1.20; FI_ADDR_NOTAVAIL from older libraries.
    pub src_addr: fi_addr_t,
}

/// Room for a [`fi_cq_err_entry`] that is larger than we know: 1.20 made the struct longer, and a
/// newer library may again. Zeroed when made, because `err_data` and `err_data_size` are inputs
/// too.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CqErrEntryBuf {
    /// The entry, zeroed until a library filled it.
    pub entry: fi_cq_err_entry,
    reserve: [u64; 16],
}

impl CqErrEntryBuf {
    /// A zeroed buffer.
    #[must_use]
    pub const fn zeroed() -> Self {
        // SAFETY: numbers and raw pointers only: each is valid when zeroed.
        unsafe { mem::zeroed() }
    }

    /// What to hand to `fi_cq_readerr`: a pointer that may write to the reserve, too.
    pub const fn as_mut_ptr(&mut self) -> *mut fi_cq_err_entry {
        ptr::from_mut(self).cast()
    }
}

impl Default for CqErrEntryBuf {
    fn default() -> Self {
        Self::zeroed()
    }
}

// Events, fi_eq(3).

/// Event of a registration or an address vector.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_eq_entry {
    /// Object.
    pub fid: *mut fid,
    /// Context.
    pub context: *mut c_void,
    /// Data.
    pub data: u64,
}

/// Event of connection management. The private data follows it in the caller's buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_eq_cm_entry {
    /// Endpoint.
    pub fid: *mut fid,
    /// With FI_CONNREQ: the request, which the caller frees. Else null.
    pub info: *mut fi_info,
    /// Start of the private data.
    pub data: [u8; 0],
}

/// Failed control operation. Hand it to a library only inside an [`EqErrEntryBuf`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_eq_err_entry {
    /// Object.
    pub fid: *mut fid,
    /// Context.
    pub context: *mut c_void,
    /// Data.
    pub data: u64,
    /// Error code, positive.
    pub err: c_int,
    /// Error code of the provider.
    pub prov_errno: c_int,
    /// In: buffer for error data, or null. Out: the error data.
    pub err_data: *mut c_void,
    /// In: length of the buffer. Out: length of the error data in bytes.
    pub err_data_size: usize,
}

/// Room for a [`fi_eq_err_entry`] that is larger than we know; as [`CqErrEntryBuf`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EqErrEntryBuf {
    /// The entry, zeroed until a library filled it.
    pub entry: fi_eq_err_entry,
    reserve: [u64; 16],
}

impl EqErrEntryBuf {
    /// A zeroed buffer.
    #[must_use]
    pub const fn zeroed() -> Self {
        // SAFETY: numbers and raw pointers only: each is valid when zeroed.
        unsafe { mem::zeroed() }
    }

    /// What to hand to `fi_eq_readerr`: a pointer that may write to the reserve, too.
    pub const fn as_mut_ptr(&mut self) -> *mut fi_eq_err_entry {
        ptr::from_mut(self).cast()
    }
}

impl Default for EqErrEntryBuf {
    fn default() -> Self {
        Self::zeroed()
    }
}

// Operations, fi_msg(3) and fi_rma(3).

/// A message.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_msg {
    /// Segments.
    pub msg_iov: *const iovec,
    /// Descriptors of the segments, or null.
    pub desc: *mut *mut c_void,
    /// Number of segments.
    pub iov_count: usize,
    /// Peer.
    pub addr: fi_addr_t,
    /// Context of the operation.
    pub context: *mut c_void,
    /// Immediate data, with FI_REMOTE_CQ_DATA.
    pub data: u64,
}

/// A one-sided operation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_msg_rma {
    /// Local segments.
    pub msg_iov: *const iovec,
    /// Descriptors of the local segments, or null.
    pub desc: *mut *mut c_void,
    /// Number of local segments.
    pub iov_count: usize,
    /// Peer.
    pub addr: fi_addr_t,
    /// Remote segments.
    pub rma_iov: *const fi_rma_iov,
    /// Number of remote segments.
    pub rma_iov_count: usize,
    /// Context of the operation.
    pub context: *mut c_void,
    /// Immediate data, with FI_REMOTE_CQ_DATA.
    pub data: u64,
}

/// A remote segment.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_rma_iov {
    /// Virtual address with FI_MR_VIRT_ADDR, else offset in the registration.
    pub addr: u64,
    /// Length in bytes.
    pub len: usize,
    /// Key of the registration.
    pub key: u64,
}

/// Operation context that a provider writes to, with the mode bit FI_CONTEXT.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_context {
    /// The provider's.
    pub internal: [*mut c_void; 4],
}

/// Operation context that a provider writes to, with the mode bit FI_CONTEXT2.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_context2 {
    /// The provider's.
    pub internal: [*mut c_void; 8],
}

/// A run-time parameter, an environment variable of the library or a provider.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fi_param {
    /// Name of the variable.
    pub name: *const c_char,
    /// Type of the value. C name: `type`.
    pub type_: fi_param_type,
    /// What it does.
    pub help_string: *const c_char,
    /// Its value, or null.
    pub value: *const c_char,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::{NEWEST, OLDEST};

    /// The attributes as a library of 1.17 allocates them: 192 bytes, not one more.
    #[test]
    fn short_attributes_are_read_without_their_late_fields() {
        let short = Box::new([u64::MAX; 24]);
        let attr = short.as_ptr().cast();
        // SAFETY: the allocation is as long as the layout of this version.
        let copy = unsafe { fi_domain_attr::read(attr, OLDEST) };
        assert_eq!((copy.mr_cnt, copy.tclass), (usize::MAX, u32::MAX));
        assert_eq!((copy.max_ep_auth_key, copy.max_group_id), (0, 0));
    }

    #[test]
    fn longer_attributes_are_read_as_far_as_their_version_goes() {
        let long = Box::new([u64::MAX; 26]);
        assert_eq!(size_of_val(&*long), size_of::<fi_domain_attr>());
        let attr = long.as_ptr().cast();
        // SAFETY: the allocation is as long as the newest layout.
        let copy = unsafe { fi_domain_attr::read(attr, fi_version_make(1, 22)) };
        assert_eq!((copy.max_ep_auth_key, copy.max_group_id), (usize::MAX, 0));
        // SAFETY: the same.
        let copy = unsafe { fi_domain_attr::read(attr, NEWEST) };
        assert_eq!(
            (copy.max_ep_auth_key, copy.max_group_id),
            (usize::MAX, u32::MAX)
        );
    }

    #[test]
    fn error_buffers_have_room_for_growth() {
        let mut buf = CqErrEntryBuf::zeroed();
        assert!(size_of_val(&buf) >= size_of::<fi_cq_err_entry>() + 128);
        assert!(
            buf.entry.op_context.is_null() && buf.entry.err == 0 && buf.entry.err_data_size == 0
        );
        assert_eq!(buf.as_mut_ptr(), &raw mut buf.entry);
    }
}
