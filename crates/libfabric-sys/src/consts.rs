//! Constants of libfabric: capabilities, flags, modes, enumerations, commands and error codes.
//!
//! Each has the width of the C field or argument that it goes into, so no cast is needed where it
//! is used. The ABI test compares every one with the C headers; the version in which a late one
//! appeared is in its comment. A late constant may be used only where that version was
//! [negotiated](crate::library::Library::negotiated): bits were reused between 1.x and 2.x.

use std::ffi::c_int;

use crate::types::*;

// Capabilities, operation flags and completion flags (fi_getinfo(3), fi_msg(3), fi_rma(3),
// fi_cq(3))

/// Capability and completion flag: two-sided messages.
pub const FI_MSG: u64 = 1 << 1;
/// Capability and completion flag: one-sided reads and writes.
pub const FI_RMA: u64 = 1 << 2;
/// Capability and completion flag: tagged messages.
pub const FI_TAGGED: u64 = 1 << 3;
/// Capability and completion flag: atomics.
pub const FI_ATOMIC: u64 = 1 << 4;
/// Capability: multicast.
pub const FI_MULTICAST: u64 = 1 << 5;
/// Capability: collectives.
pub const FI_COLLECTIVE: u64 = 1 << 6;
/// Capability to start reads; access right; completion flag.
pub const FI_READ: u64 = 1 << 8;
/// Capability to start writes; access right; completion flag.
pub const FI_WRITE: u64 = 1 << 9;
/// Capability to receive; access right; completion and bind flag.
pub const FI_RECV: u64 = 1 << 10;
/// Capability to send; access right; completion and bind flag.
pub const FI_SEND: u64 = 1 << 11;
/// Bind flag: completions of everything that the endpoint starts.
pub const FI_TRANSMIT: u64 = FI_SEND;
/// Capability and access right: peers may read this memory.
pub const FI_REMOTE_READ: u64 = 1 << 12;
/// Capability and access right: peers may write this memory; completion flag at the target.
pub const FI_REMOTE_WRITE: u64 = 1 << 13;
/// Capability and flag: one buffer takes several messages.
pub const FI_MULTI_RECV: u64 = 1 << 16;
/// Flag: the operation carries, or the completion holds, immediate data.
pub const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
/// Flag: more operations follow at once. On a completion: more of a message follows.
pub const FI_MORE: u64 = 1 << 18;
/// Flag: look at a tagged message without receiving it.
pub const FI_PEEK: u64 = 1 << 19;
/// Capability and flag: triggered operations.
pub const FI_TRIGGER: u64 = 1 << 20;
/// Capability and flag: start after all earlier operations to the same peer.
pub const FI_FENCE: u64 = 1 << 21;
/// Flag: report a completion, where completions are selective.
pub const FI_COMPLETION: u64 = 1 << 24;
/// Flag of address vectors and registrations: complete through an event queue.
pub const FI_EVENT: u64 = FI_COMPLETION;
/// Flag: the buffer is free when the call returns.
pub const FI_INJECT: u64 = 1 << 25;
/// Flag: complete when the buffer may be reused.
pub const FI_INJECT_COMPLETE: u64 = 1 << 26;
/// Flag: complete when the operation no longer depends on this side.
pub const FI_TRANSMIT_COMPLETE: u64 = 1 << 27;
/// Flag: complete when the peer has the bytes in memory.
pub const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
/// Address vector flag: affinity.
pub const FI_AFFINITY: u64 = 1 << 29;
/// Flag: complete when the bytes are persistent.
pub const FI_COMMIT_COMPLETE: u64 = 1 << 30;
/// Flag: complete when the peer matched the message with a receive.
pub const FI_MATCH_COMPLETE: u64 = 1 << 31;
/// Flag and mode bit of the peer provider interface.
pub const FI_PEER_TRANSFER: u64 = 1 << 36;
/// Capability and flag: the caller names the source addresses of an address vector.
pub const FI_AV_USER_ID: u64 = 1 << 41;
/// Flag: the object is imported from another provider.
pub const FI_PEER: u64 = 1 << 43;
/// Capability: buffers may be in device memory. The bit alone proves nothing.
pub const FI_HMEM: u64 = 1 << 47;
/// Capability: one-sided access to persistent memory.
pub const FI_RMA_PMEM: u64 = 1 << 49;
/// Capability: an unknown source address is reported as FI_EADDRNOTAVAIL.
pub const FI_SOURCE_ERR: u64 = 1 << 50;
/// Capability: reaches peers of the same host.
pub const FI_LOCAL_COMM: u64 = 1 << 51;
/// Capability: reaches peers of other hosts.
pub const FI_REMOTE_COMM: u64 = 1 << 52;
/// Capability: address vectors shared between processes.
pub const FI_SHARED_AV: u64 = 1 << 53;
/// `fi_getinfo` flag: attributes of providers without looking for devices.
pub const FI_PROV_ATTR_ONLY: u64 = 1 << 54;
/// `fi_getinfo` flag: the node is a numeric address, never looked up.
pub const FI_NUMERICHOST: u64 = 1 << 55;
/// Capability: one-sided access is counted at the target. Also a registration flag.
pub const FI_RMA_EVENT: u64 = 1 << 56;
/// Capability: completions know their source. `fi_getinfo` flag: node and service are local.
pub const FI_SOURCE: u64 = 1 << 57;
/// Capability: messages may name a receive context of the peer.
pub const FI_NAMED_RX_CTX: u64 = 1 << 58;
/// Capability: a receive may name its source.
pub const FI_DIRECTED_RECV: u64 = 1 << 59;
/// Flag: the message was claimed earlier.
pub const FI_CLAIM: u64 = 1 << 59;
/// Flag: throw a claimed message away.
pub const FI_DISCARD: u64 = 1 << 58;
/// Bind flag: only operations with FI_COMPLETION report success.
pub const FI_SELECTIVE_COMPLETION: u64 = 1 << 59;
/// Capability: FI_DIRECTED_RECV of tagged messages. Since 2.0.
pub const FI_TAGGED_DIRECTED_RECV: u64 = 1 << 45;
/// Capability: FI_MULTI_RECV of tagged messages. Since 2.0.
pub const FI_TAGGED_MULTI_RECV: u64 = 1 << 46;
/// Capability: FI_DIRECTED_RECV without a wildcard. The bit was FI_VARIABLE_MSG in 1.x. Since 2.0.
pub const FI_EXACT_DIRECTED_RECV: u64 = 1 << 48;
/// Flag: the address vector entry carries an authorization key. Since 1.20.
pub const FI_AUTH_KEY: u64 = 1 << 57;

// Mode bits (fi_getinfo(3))

/// Mode bit: each operation context is a `fi_context` that the provider writes to.
pub const FI_CONTEXT: u64 = 1 << 59;
/// Mode bit: buffers begin with room for the provider's header.
pub const FI_MSG_PREFIX: u64 = 1 << 58;
/// Mode bit: iovec arrays stay valid until the operation completes.
pub const FI_ASYNC_IOV: u64 = 1 << 57;
/// Mode bit: immediate data consumes a posted receive.
pub const FI_RX_CQ_DATA: u64 = 1 << 56;
/// Mode bit of old API versions: local buffers are registered. Now FI_MR_LOCAL.
pub const FI_LOCAL_MR: u64 = 1 << 55;
/// Mode bit: each operation context is a `fi_context2` that the provider writes to.
pub const FI_CONTEXT2: u64 = 1 << 52;

// Memory registration modes, `fi_domain_attr::mr_mode` (fi_mr(3))

/// No registration mode.
pub const FI_MR_UNSPEC: i32 = 0;
/// Old mode; exclusive of all bits. Never asked for.
pub const FI_MR_BASIC: i32 = 1 << 0;
/// Old mode; exclusive of all bits. Never asked for.
pub const FI_MR_SCALABLE: i32 = 1 << 1;
/// Local buffers are registered.
pub const FI_MR_LOCAL: i32 = 1 << 2;
/// Keys are longer than 64 bits.
pub const FI_MR_RAW: i32 = 1 << 3;
/// Peers name memory by its virtual address, not by an offset.
pub const FI_MR_VIRT_ADDR: i32 = 1 << 4;
/// Memory is backed by pages before it is registered.
pub const FI_MR_ALLOCATED: i32 = 1 << 5;
/// The provider chooses keys.
pub const FI_MR_PROV_KEY: i32 = 1 << 6;
/// The application announces page changes.
pub const FI_MR_MMU_NOTIFY: i32 = 1 << 7;
/// Registrations that count one-sided access are enabled by hand.
pub const FI_MR_RMA_EVENT: i32 = 1 << 8;
/// Registrations belong to an endpoint, not to the domain.
pub const FI_MR_ENDPOINT: i32 = 1 << 9;
/// Device memory is registered.
pub const FI_MR_HMEM: i32 = 1 << 10;
/// Buffers of collectives are registered.
pub const FI_MR_COLLECTIVE: i32 = 1 << 11;

// Registration flags and options (fi_mr(3))

/// `fi_mr_regattr` flag: the memory is named by a dmabuf. Only if 1.20 was negotiated: an older
/// library takes the pointer for an iovec. Since 1.20.
pub const FI_MR_DMABUF: u64 = 1 << 40;
/// `fi_mr_regattr` flag: one access by a peer, then the key is dead. Since 2.0.
pub const FI_MR_SINGLE_USE: u64 = 1 << 41;
/// `fi_mr_regattr` flag: device memory that was allocated on the host.
pub const FI_HMEM_HOST_ALLOC: u64 = 1 << 45;
/// `fi_mr_regattr` flag: memory that only the device can reach.
pub const FI_HMEM_DEVICE_ONLY: u64 = 1 << 46;

// Memory interfaces, `fi_mr_attr::iface` (fi_mr(3))

/// Host memory.
pub const FI_HMEM_SYSTEM: fi_hmem_iface = 0;
/// NVIDIA CUDA memory.
pub const FI_HMEM_CUDA: fi_hmem_iface = 1;
/// AMD ROCm memory.
pub const FI_HMEM_ROCR: fi_hmem_iface = 2;
/// Intel Level Zero memory.
pub const FI_HMEM_ZE: fi_hmem_iface = 3;
/// AWS Neuron memory.
pub const FI_HMEM_NEURON: fi_hmem_iface = 4;
/// Habana memory.
pub const FI_HMEM_SYNAPSEAI: fi_hmem_iface = 5;

// Endpoint types, `fi_ep_attr::type_` (fi_endpoint(3))

/// Any type.
pub const FI_EP_UNSPEC: fi_ep_type = 0;
/// Reliable and connected.
pub const FI_EP_MSG: fi_ep_type = 1;
/// Unreliable datagrams.
pub const FI_EP_DGRAM: fi_ep_type = 2;
/// Reliable and connectionless.
pub const FI_EP_RDM: fi_ep_type = 3;

// Endpoint protocols, `fi_ep_attr::protocol` (fi_endpoint(3))

/// Any protocol.
pub const FI_PROTO_UNSPEC: u32 = 0;
/// InfiniBand reliable connections set up by rdma_cm.
pub const FI_PROTO_RDMA_CM_IB_RC: u32 = 1;
/// iWARP.
pub const FI_PROTO_IWARP: u32 = 2;
/// InfiniBand unreliable datagrams.
pub const FI_PROTO_IB_UD: u32 = 3;
/// PSM; gone.
pub const FI_PROTO_PSMX: u32 = 4;
/// UDP.
pub const FI_PROTO_UDP: u32 = 5;
/// `tcp` connected endpoints, `sockets`.
pub const FI_PROTO_SOCK_TCP: u32 = 6;
/// MXM; gone.
pub const FI_PROTO_MXM: u32 = 7;
/// iWARP, connectionless.
pub const FI_PROTO_IWARP_RDM: u32 = 8;
/// InfiniBand, connectionless.
pub const FI_PROTO_IB_RDM: u32 = 9;
/// Cray GNI.
pub const FI_PROTO_GNI: u32 = 10;
/// `ofi_rxm`: connectionless over connected endpoints.
pub const FI_PROTO_RXM: u32 = 11;
/// `ofi_rxd`: reliable over datagrams.
pub const FI_PROTO_RXD: u32 = 12;
/// Mellanox UCX, old.
pub const FI_PROTO_MLX: u32 = 13;
/// Windows NetworkDirect.
pub const FI_PROTO_NETWORKDIRECT: u32 = 14;
/// PSM2.
pub const FI_PROTO_PSMX2: u32 = 15;
/// `shm`.
pub const FI_PROTO_SHM: u32 = 16;
/// `ofi_mrail`.
pub const FI_PROTO_MRAIL: u32 = 17;
/// Streams; gone.
pub const FI_PROTO_RSTREAM: u32 = 18;
/// InfiniBand extended reliable connections.
pub const FI_PROTO_RDMA_CM_IB_XRC: u32 = 19;
/// AWS EFA.
pub const FI_PROTO_EFA: u32 = 20;
/// PSM3.
pub const FI_PROTO_PSMX3: u32 = 21;
/// `ofi_rxm` over `tcp`.
pub const FI_PROTO_RXM_TCP: u32 = 22;
/// Omni-Path Express.
pub const FI_PROTO_OPX: u32 = 23;
/// HPE Slingshot.
pub const FI_PROTO_CXI: u32 = 24;
/// `tcp` connectionless endpoints of 1.18 and later, `net` of 1.16 and 1.17.
pub const FI_PROTO_XNET: u32 = 25;
/// Collectives. Since 1.18.
pub const FI_PROTO_COLL: u32 = 26;
/// UCX. Since 1.18.
pub const FI_PROTO_UCX: u32 = 27;
/// `sm2`. Since 1.19.
pub const FI_PROTO_SM2: u32 = 28;
/// HPE Slingshot, receiver-not-ready protocol. Since 1.21.
pub const FI_PROTO_CXI_RNR: u32 = 29;
/// Low-latency PCIe. Since 2.0.
pub const FI_PROTO_LPP: u32 = 30;
/// `lnx`: several providers as one. Since 2.0.
pub const FI_PROTO_LNX: u32 = 31;

// Address formats, `fi_info::addr_format` (fi_getinfo(3))

/// Unknown format.
pub const FI_FORMAT_UNSPEC: u32 = 0;
/// `sockaddr` of any family.
pub const FI_SOCKADDR: u32 = 1;
/// `sockaddr_in`.
pub const FI_SOCKADDR_IN: u32 = 2;
/// `sockaddr_in6`.
pub const FI_SOCKADDR_IN6: u32 = 3;
/// `sockaddr_ib`.
pub const FI_SOCKADDR_IB: u32 = 4;
/// PSM; gone.
pub const FI_ADDR_PSMX: u32 = 5;
/// Cray GNI.
pub const FI_ADDR_GNI: u32 = 6;
/// Blue Gene/Q.
pub const FI_ADDR_BGQ: u32 = 7;
/// Mellanox UCX, old.
pub const FI_ADDR_MLX: u32 = 8;
/// Text.
pub const FI_ADDR_STR: u32 = 9;
/// PSM2: two u64.
pub const FI_ADDR_PSMX2: u32 = 10;
/// InfiniBand datagrams: four u64.
pub const FI_ADDR_IB_UD: u32 = 11;
/// AWS EFA.
pub const FI_ADDR_EFA: u32 = 12;
/// PSM3: four u64.
pub const FI_ADDR_PSMX3: u32 = 13;
/// Omni-Path Express.
pub const FI_ADDR_OPX: u32 = 14;
/// HPE Slingshot.
pub const FI_ADDR_CXI: u32 = 15;
/// UCX. Since 1.18.
pub const FI_ADDR_UCX: u32 = 16;

// Special values of addresses, keys and counts

/// Any source, or no destination.
pub const FI_ADDR_UNSPEC: u64 = u64::MAX;
/// The address is not known.
pub const FI_ADDR_NOTAVAIL: u64 = u64::MAX;
/// The registration has no key (yet).
pub const FI_KEY_NOTAVAIL: u64 = u64::MAX;
/// `tx_ctx_cnt` or `rx_ctx_cnt`: the endpoint uses a shared context.
pub const FI_SHARED_CONTEXT: usize = usize::MAX;
/// `auth_key_size`: keys come from the address vector. Since 1.20.
pub const FI_AV_AUTH_KEY: usize = usize::MAX;

// Threading models, `fi_domain_attr::threading` (fi_domain(3))

/// Any model.
pub const FI_THREAD_UNSPEC: fi_threading = 0;
/// Every call from any thread.
pub const FI_THREAD_SAFE: fi_threading = 1;
/// One thread at a time per object. 2.x refuses it.
pub const FI_THREAD_FID: fi_threading = 2;
/// One thread at a time per domain.
pub const FI_THREAD_DOMAIN: fi_threading = 3;
/// One thread at a time per completion queue and what is bound to it.
pub const FI_THREAD_COMPLETION: fi_threading = 4;
/// One thread at a time per endpoint. 2.x refuses it.
pub const FI_THREAD_ENDPOINT: fi_threading = 5;

// Progress models, `fi_domain_attr::control_progress` and `data_progress` (fi_domain(3))

/// Any model.
pub const FI_PROGRESS_UNSPEC: fi_progress = 0;
/// Operations progress by themselves.
pub const FI_PROGRESS_AUTO: fi_progress = 1;
/// Operations progress when the application reads a queue.
pub const FI_PROGRESS_MANUAL: fi_progress = 2;
/// Like manual, with control and data progressed together. Since 1.21.
pub const FI_PROGRESS_CONTROL_UNIFIED: fi_progress = 3;

// Resource management, `fi_domain_attr::resource_mgmt` (fi_domain(3))

/// Any.
pub const FI_RM_UNSPEC: fi_resource_mgmt = 0;
/// The application guards queues against overrun.
pub const FI_RM_DISABLED: fi_resource_mgmt = 1;
/// The provider guards queues against overrun.
pub const FI_RM_ENABLED: fi_resource_mgmt = 2;

// Address vector types, `fi_av_attr::type_` (fi_av(3))

/// Any type.
pub const FI_AV_UNSPEC: fi_av_type = 0;
/// Addresses are opaque. Deprecated.
pub const FI_AV_MAP: fi_av_type = 1;
/// Addresses are indices in order of insertion.
pub const FI_AV_TABLE: fi_av_type = 2;
/// `fi_av_attr` flag: the same addresses on each node.
pub const FI_SYMMETRIC: u64 = 1 << 59;
/// `fi_av_insert` flag: the context is an array of error codes, one an address.
pub const FI_SYNC_ERR: u64 = 1 << 58;

// Message ordering, `msg_order` of `fi_tx_attr` and `fi_rx_attr` (fi_endpoint(3))

/// No order.
pub const FI_ORDER_NONE: u64 = 0;
/// Read after read.
pub const FI_ORDER_RAR: u64 = 1 << 0;
/// Read after write.
pub const FI_ORDER_RAW: u64 = 1 << 1;
/// Read after send.
pub const FI_ORDER_RAS: u64 = 1 << 2;
/// Write after read.
pub const FI_ORDER_WAR: u64 = 1 << 3;
/// Write after write.
pub const FI_ORDER_WAW: u64 = 1 << 4;
/// Write after send.
pub const FI_ORDER_WAS: u64 = 1 << 5;
/// Send after read.
pub const FI_ORDER_SAR: u64 = 1 << 6;
/// Send after write.
pub const FI_ORDER_SAW: u64 = 1 << 7;
/// Send after send.
pub const FI_ORDER_SAS: u64 = 1 << 8;
/// All of the above. Deprecated.
pub const FI_ORDER_STRICT: u64 = 0x1FF;
/// `comp_order`: bytes are written in order. Deprecated.
pub const FI_ORDER_DATA: u64 = 1 << 16;
/// One-sided read after one-sided read.
pub const FI_ORDER_RMA_RAR: u64 = 1 << 32;
/// One-sided read after one-sided write.
pub const FI_ORDER_RMA_RAW: u64 = 1 << 33;
/// One-sided write after one-sided read.
pub const FI_ORDER_RMA_WAR: u64 = 1 << 34;
/// One-sided write after one-sided write.
pub const FI_ORDER_RMA_WAW: u64 = 1 << 35;

// Traffic classes, `tclass` (fi_endpoint(3))

/// Any class.
pub const FI_TC_UNSPEC: u32 = 0;
/// Bit: the low byte is a DSCP.
pub const FI_TC_DSCP: u32 = 0x100;
/// Bit: the class is one of the labels.
pub const FI_TC_LABEL: u32 = 0x200;
/// Best effort.
pub const FI_TC_BEST_EFFORT: u32 = FI_TC_LABEL;
/// Low latency.
pub const FI_TC_LOW_LATENCY: u32 = 0x201;
/// Dedicated access.
pub const FI_TC_DEDICATED_ACCESS: u32 = 0x202;
/// Bulk data.
pub const FI_TC_BULK_DATA: u32 = 0x203;
/// What is left over.
pub const FI_TC_SCAVENGER: u32 = 0x204;
/// Network control.
pub const FI_TC_NETWORK_CTRL: u32 = 0x205;

// Completion queues (fi_cq(3))

/// The provider chooses.
pub const FI_CQ_FORMAT_UNSPEC: fi_cq_format = 0;
/// `fi_cq_entry`.
pub const FI_CQ_FORMAT_CONTEXT: fi_cq_format = 1;
/// `fi_cq_msg_entry`.
pub const FI_CQ_FORMAT_MSG: fi_cq_format = 2;
/// `fi_cq_data_entry`.
pub const FI_CQ_FORMAT_DATA: fi_cq_format = 3;
/// `fi_cq_tagged_entry`.
pub const FI_CQ_FORMAT_TAGGED: fi_cq_format = 4;
/// A blocking read wakes for any completion.
pub const FI_CQ_COND_NONE: fi_cq_wait_cond = 0;
/// A blocking read wakes for a number of completions.
pub const FI_CQ_COND_THRESHOLD: fi_cq_wait_cond = 1;

// Wait objects, `wait_obj` (fi_cq(3), fi_eq(3))

/// No waiting.
pub const FI_WAIT_NONE: fi_wait_obj = 0;
/// Waiting by blocking reads only.
pub const FI_WAIT_UNSPEC: fi_wait_obj = 1;
/// A wait set. Deprecated.
pub const FI_WAIT_SET: fi_wait_obj = 2;
/// A file descriptor.
pub const FI_WAIT_FD: fi_wait_obj = 3;
/// A mutex and a condition. Deprecated.
pub const FI_WAIT_MUTEX_COND: fi_wait_obj = 4;
/// Blocking reads yield the processor.
pub const FI_WAIT_YIELD: fi_wait_obj = 5;
/// A set of file descriptors.
pub const FI_WAIT_POLLFD: fi_wait_obj = 6;

// Event queues (fi_eq(3), fi_cm(3))

/// Event: something that the application asked to hear about.
pub const FI_NOTIFY: u32 = 0;
/// Event: a peer asks for a connection.
pub const FI_CONNREQ: u32 = 1;
/// Event: a connection is up.
pub const FI_CONNECTED: u32 = 2;
/// Event: a connection is down.
pub const FI_SHUTDOWN: u32 = 3;
/// Event: a registration is done.
pub const FI_MR_COMPLETE: u32 = 4;
/// Event: an address vector insertion is done.
pub const FI_AV_COMPLETE: u32 = 5;
/// Event: a multicast join is done.
pub const FI_JOIN_COMPLETE: u32 = 6;

// Endpoint options (fi_endpoint(3))

/// Level of all options.
pub const FI_OPT_ENDPOINT: c_int = 0;
/// usize: least room left before a multi-receive buffer is given back.
pub const FI_OPT_MIN_MULTI_RECV: c_int = 0;
/// usize: most private data in connection management.
pub const FI_OPT_CM_DATA_SIZE: c_int = 1;
/// usize: threshold of buffered receives.
pub const FI_OPT_BUFFERED_MIN: c_int = 2;
/// usize: limit of buffered receives.
pub const FI_OPT_BUFFERED_LIMIT: c_int = 3;
/// Send buffer of the socket.
pub const FI_OPT_SEND_BUF_SIZE: c_int = 4;
/// Receive buffer of the socket.
pub const FI_OPT_RECV_BUF_SIZE: c_int = 5;
/// Transmit queue depth.
pub const FI_OPT_TX_SIZE: c_int = 6;
/// Receive queue depth.
pub const FI_OPT_RX_SIZE: c_int = 7;
/// int: one of FI_HMEM_P2P_*.
pub const FI_OPT_FI_HMEM_P2P: c_int = 8;
/// Reserved.
pub const FI_OPT_XPU_TRIGGER: c_int = 9;
/// bool: the provider may call CUDA. Since 1.18.
pub const FI_OPT_CUDA_API_PERMITTED: c_int = 10;
/// bool: the provider may use shared memory. Since 1.21.
pub const FI_OPT_SHARED_MEMORY_PERMITTED: c_int = 11;
/// usize: longest message. Since 1.22.
pub const FI_OPT_MAX_MSG_SIZE: c_int = 12;
/// usize: longest tagged message. Since 1.22.
pub const FI_OPT_MAX_TAGGED_SIZE: c_int = 13;
/// usize: longest one-sided operation. Since 1.22.
pub const FI_OPT_MAX_RMA_SIZE: c_int = 14;
/// usize: longest atomic. Since 1.22.
pub const FI_OPT_MAX_ATOMIC_SIZE: c_int = 15;
/// usize: longest injected message. Since 1.22.
pub const FI_OPT_INJECT_MSG_SIZE: c_int = 16;
/// usize: longest injected tagged message. Since 1.22.
pub const FI_OPT_INJECT_TAGGED_SIZE: c_int = 17;
/// usize: longest injected write. Since 1.22.
pub const FI_OPT_INJECT_RMA_SIZE: c_int = 18;
/// usize: longest injected atomic. Since 1.22.
pub const FI_OPT_INJECT_ATOMIC_SIZE: c_int = 19;
/// The provider decides on peer-to-peer access.
pub const FI_HMEM_P2P_ENABLED: c_int = 0;
/// Peer-to-peer access for every transfer, or an error.
pub const FI_HMEM_P2P_REQUIRED: c_int = 1;
/// Peer-to-peer access where possible.
pub const FI_HMEM_P2P_PREFERRED: c_int = 2;
/// No peer-to-peer access.
pub const FI_HMEM_P2P_DISABLED: c_int = 3;

// Commands of `fi_control` (fi_control(3))

/// u64: flags of the object.
pub const FI_GETFIDFLAG: c_int = 0;
/// u64: flags of the object.
pub const FI_SETFIDFLAG: c_int = 1;
/// u64: default operation flags.
pub const FI_GETOPSFLAG: c_int = 2;
/// u64: default operation flags.
pub const FI_SETOPSFLAG: c_int = 3;
/// A second handle of an endpoint.
pub const FI_ALIAS: c_int = 4;
/// The wait object; a c_int for FI_WAIT_FD.
pub const FI_GETWAIT: c_int = 5;
/// Makes the object ready.
pub const FI_ENABLE: c_int = 6;
/// c_int: depth of the queue of connection requests.
pub const FI_BACKLOG: c_int = 7;
/// The raw key of a registration.
pub const FI_GET_RAW_MR: c_int = 8;
/// Maps a raw key of a peer.
pub const FI_MAP_RAW_MR: c_int = 9;
/// Unmaps a raw key of a peer.
pub const FI_UNMAP_KEY: c_int = 10;
/// Queues triggered work.
pub const FI_QUEUE_WORK: c_int = 11;
/// Cancels triggered work.
pub const FI_CANCEL_WORK: c_int = 12;
/// Cancels all triggered work.
pub const FI_FLUSH_WORK: c_int = 13;
/// Announces page changes of a registration.
pub const FI_REFRESH: c_int = 14;
/// Duplicates an object.
pub const FI_DUP: c_int = 15;
/// `fi_wait_obj`: kind of the wait object.
pub const FI_GETWAITOBJ: c_int = 16;
/// Reads a variable of the provider.
pub const FI_GET_VAL: c_int = 17;
/// Sets a variable of the provider.
pub const FI_SET_VAL: c_int = 18;
/// Exports an object to another provider.
pub const FI_EXPORT_FID: c_int = 19;
/// c_int: the socket of a `tcp` endpoint. Since 2.2, which is newer than
/// [`NEWEST`](crate::version::NEWEST): a library that negotiated less may refuse it, and the ABI
/// test compares it only where headers of 2.2 are at hand.
pub const FI_GET_FD: c_int = 20;

// Classes of objects, `fid::fclass`

/// Unknown.
pub const FI_CLASS_UNSPEC: usize = 0;
/// Fabric.
pub const FI_CLASS_FABRIC: usize = 1;
/// Domain.
pub const FI_CLASS_DOMAIN: usize = 2;
/// Endpoint.
pub const FI_CLASS_EP: usize = 3;
/// Scalable endpoint.
pub const FI_CLASS_SEP: usize = 4;
/// Receive context.
pub const FI_CLASS_RX_CTX: usize = 5;
/// Shared receive context.
pub const FI_CLASS_SRX_CTX: usize = 6;
/// Transmit context.
pub const FI_CLASS_TX_CTX: usize = 7;
/// Shared transmit context.
pub const FI_CLASS_STX_CTX: usize = 8;
/// Passive endpoint.
pub const FI_CLASS_PEP: usize = 9;
/// Interface.
pub const FI_CLASS_INTERFACE: usize = 10;
/// Address vector.
pub const FI_CLASS_AV: usize = 11;
/// Memory registration.
pub const FI_CLASS_MR: usize = 12;
/// Event queue.
pub const FI_CLASS_EQ: usize = 13;
/// Completion queue.
pub const FI_CLASS_CQ: usize = 14;
/// Counter.
pub const FI_CLASS_CNTR: usize = 15;
/// Wait set.
pub const FI_CLASS_WAIT: usize = 16;
/// Poll set.
pub const FI_CLASS_POLL: usize = 17;
/// Connection request.
pub const FI_CLASS_CONNREQ: usize = 18;
/// Multicast group.
pub const FI_CLASS_MC: usize = 19;
/// Network interface.
pub const FI_CLASS_NIC: usize = 20;
/// Address vector set.
pub const FI_CLASS_AV_SET: usize = 21;
/// The cache of registrations, as `fi_open` opens it.
pub const FI_CLASS_MR_CACHE: usize = 22;
/// A monitor of memory, for that cache.
pub const FI_CLASS_MEM_MONITOR: usize = 23;

// Data types of `fi_tostr_r` (fi_tostr(3))

/// `fi_info`.
pub const FI_TYPE_INFO: fi_type = 0;
/// u32: endpoint type.
pub const FI_TYPE_EP_TYPE: fi_type = 1;
/// u64: capabilities.
pub const FI_TYPE_CAPS: fi_type = 2;
/// u64: operation flags.
pub const FI_TYPE_OP_FLAGS: fi_type = 3;
/// u32: address format.
pub const FI_TYPE_ADDR_FORMAT: fi_type = 4;
/// `fi_tx_attr`.
pub const FI_TYPE_TX_ATTR: fi_type = 5;
/// `fi_rx_attr`.
pub const FI_TYPE_RX_ATTR: fi_type = 6;
/// `fi_ep_attr`.
pub const FI_TYPE_EP_ATTR: fi_type = 7;
/// `fi_domain_attr`.
pub const FI_TYPE_DOMAIN_ATTR: fi_type = 8;
/// `fi_fabric_attr`.
pub const FI_TYPE_FABRIC_ATTR: fi_type = 9;
/// u32: threading model.
pub const FI_TYPE_THREADING: fi_type = 10;
/// u32: progress model.
pub const FI_TYPE_PROGRESS: fi_type = 11;
/// u32: endpoint protocol.
pub const FI_TYPE_PROTOCOL: fi_type = 12;
/// u64: message order.
pub const FI_TYPE_MSG_ORDER: fi_type = 13;
/// u64: mode bits.
pub const FI_TYPE_MODE: fi_type = 14;
/// u32: address vector type.
pub const FI_TYPE_AV_TYPE: fi_type = 15;
/// Text: version of the library.
pub const FI_TYPE_VERSION: fi_type = 18;
/// u32: event.
pub const FI_TYPE_EQ_EVENT: fi_type = 19;
/// u64: completion flags.
pub const FI_TYPE_CQ_EVENT_FLAGS: fi_type = 20;
/// c_int: registration modes.
pub const FI_TYPE_MR_MODE: fi_type = 21;
/// Operation type.
pub const FI_TYPE_OP_TYPE: fi_type = 22;
/// `fid`.
pub const FI_TYPE_FID: fi_type = 23;
/// u32: memory interface.
pub const FI_TYPE_HMEM_IFACE: fi_type = 25;
/// u32: completion format.
pub const FI_TYPE_CQ_FORMAT: fi_type = 26;

// Types of `fi_param::type_` (fi_getinfo(3))

/// Text.
pub const FI_PARAM_STRING: fi_param_type = 0;
/// int.
pub const FI_PARAM_INT: fi_param_type = 1;
/// Truth value.
pub const FI_PARAM_BOOL: fi_param_type = 2;
/// size_t.
pub const FI_PARAM_SIZE_T: fi_param_type = 3;

// Error codes, positive (fi_errno(3)). Calls return them negated.

/// No error.
pub const FI_SUCCESS: c_int = 0;
/// Operation not permitted.
pub const FI_EPERM: c_int = libc::EPERM;
/// No such file or directory.
pub const FI_ENOENT: c_int = libc::ENOENT;
/// Interrupted.
pub const FI_EINTR: c_int = libc::EINTR;
/// Input or output error.
pub const FI_EIO: c_int = libc::EIO;
/// Argument list too long.
pub const FI_E2BIG: c_int = libc::E2BIG;
/// Bad file number.
pub const FI_EBADF: c_int = libc::EBADF;
/// Try again.
pub const FI_EAGAIN: c_int = libc::EAGAIN;
/// Out of memory.
pub const FI_ENOMEM: c_int = libc::ENOMEM;
/// Permission denied.
pub const FI_EACCES: c_int = libc::EACCES;
/// Bad address.
pub const FI_EFAULT: c_int = libc::EFAULT;
/// Busy.
pub const FI_EBUSY: c_int = libc::EBUSY;
/// No such device.
pub const FI_ENODEV: c_int = libc::ENODEV;
/// Invalid argument.
pub const FI_EINVAL: c_int = libc::EINVAL;
/// Too many open files.
pub const FI_EMFILE: c_int = libc::EMFILE;
/// No space left.
pub const FI_ENOSPC: c_int = libc::ENOSPC;
/// Not implemented.
pub const FI_ENOSYS: c_int = libc::ENOSYS;
/// Would block.
pub const FI_EWOULDBLOCK: c_int = libc::EWOULDBLOCK;
/// No message of that type.
pub const FI_ENOMSG: c_int = libc::ENOMSG;
/// Nothing fits (`fi_getinfo`), or no data.
pub const FI_ENODATA: c_int = libc::ENODATA;
/// Value too large.
pub const FI_EOVERFLOW: c_int = libc::EOVERFLOW;
/// Message too long.
pub const FI_EMSGSIZE: c_int = libc::EMSGSIZE;
/// Protocol or option not available.
pub const FI_ENOPROTOOPT: c_int = libc::ENOPROTOOPT;
/// Not supported.
pub const FI_EOPNOTSUPP: c_int = libc::EOPNOTSUPP;
/// Address in use.
pub const FI_EADDRINUSE: c_int = libc::EADDRINUSE;
/// Address not available.
pub const FI_EADDRNOTAVAIL: c_int = libc::EADDRNOTAVAIL;
/// Network down.
pub const FI_ENETDOWN: c_int = libc::ENETDOWN;
/// Network unreachable.
pub const FI_ENETUNREACH: c_int = libc::ENETUNREACH;
/// Connection aborted.
pub const FI_ECONNABORTED: c_int = libc::ECONNABORTED;
/// Connection reset by the peer.
pub const FI_ECONNRESET: c_int = libc::ECONNRESET;
/// No buffer space.
pub const FI_ENOBUFS: c_int = libc::ENOBUFS;
/// Already connected.
pub const FI_EISCONN: c_int = libc::EISCONN;
/// Not connected.
pub const FI_ENOTCONN: c_int = libc::ENOTCONN;
/// Shut down.
pub const FI_ESHUTDOWN: c_int = libc::ESHUTDOWN;
/// Timed out.
pub const FI_ETIMEDOUT: c_int = libc::ETIMEDOUT;
/// Connection refused.
pub const FI_ECONNREFUSED: c_int = libc::ECONNREFUSED;
/// Host down.
pub const FI_EHOSTDOWN: c_int = libc::EHOSTDOWN;
/// No route to host.
pub const FI_EHOSTUNREACH: c_int = libc::EHOSTUNREACH;
/// Already in progress.
pub const FI_EALREADY: c_int = libc::EALREADY;
/// In progress.
pub const FI_EINPROGRESS: c_int = libc::EINPROGRESS;
/// Remote input or output error.
pub const FI_EREMOTEIO: c_int = libc::EREMOTEIO;
/// Cancelled.
pub const FI_ECANCELED: c_int = libc::ECANCELED;
/// Key rejected.
pub const FI_EKEYREJECTED: c_int = libc::EKEYREJECTED;
/// Protocol error. Since 2.0.
pub const FI_EPROTO: c_int = libc::EPROTO;
/// First code of libfabric's own.
pub const FI_ERRNO_OFFSET: c_int = 256;
/// Unspecified error.
pub const FI_EOTHER: c_int = 256;
/// Buffer too small.
pub const FI_ETOOSMALL: c_int = 257;
/// Not permitted in this state.
pub const FI_EOPBADSTATE: c_int = 258;
/// An error entry waits in the queue.
pub const FI_EAVAIL: c_int = 259;
/// Flags not supported.
pub const FI_EBADFLAGS: c_int = 260;
/// No event queue.
pub const FI_ENOEQ: c_int = 261;
/// Wrong domain.
pub const FI_EDOMAIN: c_int = 262;
/// No completion queue.
pub const FI_ENOCQ: c_int = 263;
/// Checksum error.
pub const FI_ECRC: c_int = 264;
/// Truncated.
pub const FI_ETRUNC: c_int = 265;
/// Key not available.
pub const FI_ENOKEY: c_int = 266;
/// No address vector.
pub const FI_ENOAV: c_int = 267;
/// Queue overrun.
pub const FI_EOVERRUN: c_int = 268;
/// The receiver had no buffer posted.
pub const FI_ENORX: c_int = 269;
/// No more registrations. Since 1.20.
pub const FI_ENOMR: c_int = 270;
