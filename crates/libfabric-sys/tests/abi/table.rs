//! What we declare: every constant, struct and field, each with the version of libfabric in which
//! it appeared.

use libfabric_sys::*;
use std::mem::{offset_of, size_of};

/// A constant, widened.
#[derive(Debug)]
pub(crate) struct Constant {
    pub(crate) name: &'static str,
    pub(crate) since: u32,
    pub(crate) value: u64,
}

/// A struct.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    pub(crate) size: usize,
    pub(crate) fields: Vec<Field>,
}

/// A field of a struct.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) since: u32,
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

impl Layout {
    /// The version in which the struct appeared.
    pub(crate) fn since(&self) -> u32 {
        self.fields
            .iter()
            .map(|field| field.since)
            .min()
            .expect("a struct has fields")
    }

    /// The version in which the last of our fields appeared.
    pub(crate) fn complete_since(&self) -> u32 {
        self.fields
            .iter()
            .map(|field| field.since)
            .max()
            .expect("a struct has fields")
    }
}

/// Versions of libfabric with declarations that are not in the oldest headers: functions of the C
/// headers.
pub(crate) fn function_since(name: &str) -> u32 {
    match name {
        "fi_av_insert_auth_key" | "fi_av_lookup_auth_key" | "fi_av_set_user_id" => version("1.20"),
        _ => OLDEST,
    }
}

/// Reads "1.20" as the number of that version.
fn version(text: &str) -> u32 {
    let (major, minor) = text.split_once('.').expect("a version has a dot");
    let [major, minor] = [major, minor].map(|part| part.parse().expect("a version has numbers"));
    fi_version_make(major, minor)
}

/// The size of the field that `field` picks.
fn field_size<S, F>(_field: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// `since: constants;` of each version.
macro_rules! constants {
    ($($since:literal: $($name:ident)*;)*) => {
        vec![$($(Constant {
            name: stringify!($name),
            since: version(stringify!($since)),
            value: $name as u64,
        },)*)*]
    };
}

/// `struct { since: fields; }`.
macro_rules! layouts {
    ($($name:ident { $($since:literal: $($field:ident)*;)* })*) => {
        vec![$(Layout {
            name: stringify!($name),
            size: size_of::<$name>(),
            fields: vec![$($(Field {
                name: stringify!($field),
                since: version(stringify!($since)),
                offset: offset_of!($name, $field),
                size: field_size(|object: &$name| &object.$field),
            },)*)*],
        },)*]
    };
}

/// Every constant of `consts.rs`.
#[allow(trivial_numeric_casts)]
pub(crate) fn constants() -> Vec<Constant> {
    constants! {
        1.17: FI_MSG FI_RMA FI_TAGGED FI_ATOMIC FI_MULTICAST FI_COLLECTIVE FI_READ FI_WRITE FI_RECV
            FI_SEND FI_TRANSMIT FI_REMOTE_READ FI_REMOTE_WRITE FI_MULTI_RECV FI_REMOTE_CQ_DATA
            FI_MORE FI_PEEK FI_TRIGGER FI_FENCE FI_COMPLETION FI_EVENT FI_INJECT FI_INJECT_COMPLETE
            FI_TRANSMIT_COMPLETE FI_DELIVERY_COMPLETE FI_AFFINITY FI_COMMIT_COMPLETE
            FI_MATCH_COMPLETE FI_PEER_TRANSFER FI_AV_USER_ID FI_PEER FI_HMEM FI_RMA_PMEM
            FI_SOURCE_ERR FI_LOCAL_COMM FI_REMOTE_COMM FI_SHARED_AV FI_PROV_ATTR_ONLY FI_NUMERICHOST
            FI_RMA_EVENT FI_SOURCE FI_NAMED_RX_CTX FI_DIRECTED_RECV FI_CLAIM FI_DISCARD
            FI_SELECTIVE_COMPLETION FI_CONTEXT FI_MSG_PREFIX FI_ASYNC_IOV FI_RX_CQ_DATA FI_LOCAL_MR
            FI_CONTEXT2 FI_MR_UNSPEC FI_MR_BASIC FI_MR_SCALABLE FI_MR_LOCAL FI_MR_RAW
            FI_MR_VIRT_ADDR FI_MR_ALLOCATED FI_MR_PROV_KEY FI_MR_MMU_NOTIFY FI_MR_RMA_EVENT
            FI_MR_ENDPOINT FI_MR_HMEM FI_MR_COLLECTIVE FI_HMEM_HOST_ALLOC FI_HMEM_DEVICE_ONLY
            FI_HMEM_SYSTEM FI_HMEM_CUDA FI_HMEM_ROCR FI_HMEM_ZE FI_HMEM_NEURON FI_HMEM_SYNAPSEAI
            FI_EP_UNSPEC FI_EP_MSG FI_EP_DGRAM FI_EP_RDM FI_PROTO_UNSPEC FI_PROTO_RDMA_CM_IB_RC
            FI_PROTO_IWARP FI_PROTO_IB_UD FI_PROTO_PSMX FI_PROTO_UDP FI_PROTO_SOCK_TCP FI_PROTO_MXM
            FI_PROTO_IWARP_RDM FI_PROTO_IB_RDM FI_PROTO_GNI FI_PROTO_RXM FI_PROTO_RXD FI_PROTO_MLX
            FI_PROTO_NETWORKDIRECT FI_PROTO_PSMX2 FI_PROTO_SHM FI_PROTO_MRAIL FI_PROTO_RSTREAM
            FI_PROTO_RDMA_CM_IB_XRC FI_PROTO_EFA FI_PROTO_PSMX3 FI_PROTO_RXM_TCP FI_PROTO_OPX
            FI_PROTO_CXI FI_PROTO_XNET FI_FORMAT_UNSPEC FI_SOCKADDR FI_SOCKADDR_IN FI_SOCKADDR_IN6
            FI_SOCKADDR_IB FI_ADDR_PSMX FI_ADDR_GNI FI_ADDR_BGQ FI_ADDR_MLX FI_ADDR_STR
            FI_ADDR_PSMX2 FI_ADDR_IB_UD FI_ADDR_EFA FI_ADDR_PSMX3 FI_ADDR_OPX FI_ADDR_CXI
            FI_ADDR_UNSPEC FI_ADDR_NOTAVAIL FI_KEY_NOTAVAIL FI_SHARED_CONTEXT FI_THREAD_UNSPEC
            FI_THREAD_SAFE FI_THREAD_FID FI_THREAD_DOMAIN FI_THREAD_COMPLETION FI_THREAD_ENDPOINT
            FI_PROGRESS_UNSPEC FI_PROGRESS_AUTO FI_PROGRESS_MANUAL FI_RM_UNSPEC FI_RM_DISABLED
            FI_RM_ENABLED FI_AV_UNSPEC FI_AV_MAP FI_AV_TABLE FI_SYMMETRIC FI_SYNC_ERR FI_ORDER_NONE
            FI_ORDER_RAR FI_ORDER_RAW FI_ORDER_RAS FI_ORDER_WAR FI_ORDER_WAW FI_ORDER_WAS
            FI_ORDER_SAR FI_ORDER_SAW FI_ORDER_SAS FI_ORDER_STRICT FI_ORDER_DATA FI_ORDER_RMA_RAR
            FI_ORDER_RMA_RAW FI_ORDER_RMA_WAR FI_ORDER_RMA_WAW FI_TC_UNSPEC FI_TC_DSCP FI_TC_LABEL
            FI_TC_BEST_EFFORT FI_TC_LOW_LATENCY FI_TC_DEDICATED_ACCESS FI_TC_BULK_DATA
            FI_TC_SCAVENGER FI_TC_NETWORK_CTRL FI_CQ_FORMAT_UNSPEC FI_CQ_FORMAT_CONTEXT
            FI_CQ_FORMAT_MSG FI_CQ_FORMAT_DATA FI_CQ_FORMAT_TAGGED FI_CQ_COND_NONE
            FI_CQ_COND_THRESHOLD FI_WAIT_NONE FI_WAIT_UNSPEC FI_WAIT_SET FI_WAIT_FD
            FI_WAIT_MUTEX_COND FI_WAIT_YIELD FI_WAIT_POLLFD FI_NOTIFY FI_CONNREQ FI_CONNECTED
            FI_SHUTDOWN FI_MR_COMPLETE FI_AV_COMPLETE FI_JOIN_COMPLETE FI_OPT_ENDPOINT
            FI_OPT_MIN_MULTI_RECV FI_OPT_CM_DATA_SIZE FI_OPT_BUFFERED_MIN FI_OPT_BUFFERED_LIMIT
            FI_OPT_SEND_BUF_SIZE FI_OPT_RECV_BUF_SIZE FI_OPT_TX_SIZE FI_OPT_RX_SIZE
            FI_OPT_FI_HMEM_P2P FI_OPT_XPU_TRIGGER FI_HMEM_P2P_ENABLED FI_HMEM_P2P_REQUIRED
            FI_HMEM_P2P_PREFERRED FI_HMEM_P2P_DISABLED FI_GETFIDFLAG FI_SETFIDFLAG FI_GETOPSFLAG
            FI_SETOPSFLAG FI_ALIAS FI_GETWAIT FI_ENABLE FI_BACKLOG FI_GET_RAW_MR FI_MAP_RAW_MR
            FI_UNMAP_KEY FI_QUEUE_WORK FI_CANCEL_WORK FI_FLUSH_WORK FI_REFRESH FI_DUP FI_GETWAITOBJ
            FI_GET_VAL FI_SET_VAL FI_EXPORT_FID FI_CLASS_UNSPEC FI_CLASS_FABRIC FI_CLASS_DOMAIN
            FI_CLASS_EP FI_CLASS_SEP FI_CLASS_RX_CTX FI_CLASS_SRX_CTX FI_CLASS_TX_CTX
            FI_CLASS_STX_CTX FI_CLASS_PEP FI_CLASS_INTERFACE FI_CLASS_AV FI_CLASS_MR FI_CLASS_EQ
            FI_CLASS_CQ FI_CLASS_CNTR FI_CLASS_WAIT FI_CLASS_POLL FI_CLASS_CONNREQ FI_CLASS_MC
            FI_CLASS_NIC FI_CLASS_AV_SET FI_CLASS_MR_CACHE FI_CLASS_MEM_MONITOR FI_TYPE_INFO
            FI_TYPE_EP_TYPE FI_TYPE_CAPS FI_TYPE_OP_FLAGS
            FI_TYPE_ADDR_FORMAT FI_TYPE_TX_ATTR FI_TYPE_RX_ATTR FI_TYPE_EP_ATTR FI_TYPE_DOMAIN_ATTR
            FI_TYPE_FABRIC_ATTR FI_TYPE_THREADING FI_TYPE_PROGRESS FI_TYPE_PROTOCOL
            FI_TYPE_MSG_ORDER FI_TYPE_MODE FI_TYPE_AV_TYPE FI_TYPE_VERSION FI_TYPE_EQ_EVENT
            FI_TYPE_CQ_EVENT_FLAGS FI_TYPE_MR_MODE FI_TYPE_OP_TYPE FI_TYPE_FID FI_TYPE_HMEM_IFACE
            FI_TYPE_CQ_FORMAT FI_PARAM_STRING FI_PARAM_INT FI_PARAM_BOOL FI_PARAM_SIZE_T FI_SUCCESS
            FI_EPERM FI_ENOENT FI_EINTR FI_EIO FI_E2BIG FI_EBADF FI_EAGAIN FI_ENOMEM FI_EACCES
            FI_EFAULT FI_EBUSY FI_ENODEV FI_EINVAL FI_EMFILE FI_ENOSPC FI_ENOSYS FI_EWOULDBLOCK
            FI_ENOMSG FI_ENODATA FI_EOVERFLOW FI_EMSGSIZE FI_ENOPROTOOPT FI_EOPNOTSUPP FI_EADDRINUSE
            FI_EADDRNOTAVAIL FI_ENETDOWN FI_ENETUNREACH FI_ECONNABORTED FI_ECONNRESET FI_ENOBUFS
            FI_EISCONN FI_ENOTCONN FI_ESHUTDOWN FI_ETIMEDOUT FI_ECONNREFUSED FI_EHOSTDOWN
            FI_EHOSTUNREACH FI_EALREADY FI_EINPROGRESS FI_EREMOTEIO FI_ECANCELED FI_EKEYREJECTED
            FI_ERRNO_OFFSET FI_EOTHER FI_ETOOSMALL FI_EOPBADSTATE FI_EAVAIL FI_EBADFLAGS FI_ENOEQ
            FI_EDOMAIN FI_ENOCQ FI_ECRC FI_ETRUNC FI_ENOKEY FI_ENOAV FI_EOVERRUN FI_ENORX;
        1.18: FI_PROTO_COLL FI_PROTO_UCX FI_ADDR_UCX FI_OPT_CUDA_API_PERMITTED;
        1.19: FI_PROTO_SM2;
        1.20: FI_AUTH_KEY FI_MR_DMABUF FI_AV_AUTH_KEY FI_ENOMR;
        1.21: FI_PROTO_CXI_RNR FI_PROGRESS_CONTROL_UNIFIED FI_OPT_SHARED_MEMORY_PERMITTED;
        1.22: FI_OPT_MAX_MSG_SIZE FI_OPT_MAX_TAGGED_SIZE FI_OPT_MAX_RMA_SIZE FI_OPT_MAX_ATOMIC_SIZE
            FI_OPT_INJECT_MSG_SIZE FI_OPT_INJECT_TAGGED_SIZE FI_OPT_INJECT_RMA_SIZE
            FI_OPT_INJECT_ATOMIC_SIZE;
        2.0: FI_TAGGED_DIRECTED_RECV FI_TAGGED_MULTI_RECV FI_EXACT_DIRECTED_RECV FI_MR_SINGLE_USE
            FI_PROTO_LPP FI_PROTO_LNX FI_EPROTO;
        2.2: FI_GET_FD;
    }
}

/// Every struct of `types.rs` and `ops.rs`.
pub(crate) fn layouts() -> Vec<Layout> {
    layouts! {
        fi_info {
            1.17: next caps mode addr_format src_addrlen dest_addrlen src_addr dest_addr handle
                tx_attr rx_attr ep_attr domain_attr fabric_attr nic;
        }
        fi_tx_attr {
            1.17: caps mode op_flags msg_order comp_order inject_size size iov_limit rma_iov_limit
                tclass;
        }
        fi_rx_attr {
            1.17: caps mode op_flags msg_order comp_order total_buffered_recv size iov_limit;
        }
        fi_ep_attr {
            1.17: type_ protocol protocol_version max_msg_size msg_prefix_size max_order_raw_size
                max_order_war_size max_order_waw_size mem_tag_format tx_ctx_cnt rx_ctx_cnt
                auth_key_size auth_key;
        }
        fi_domain_attr {
            1.17: domain name threading control_progress data_progress resource_mgmt av_type mr_mode
                mr_key_size cq_data_size cq_cnt ep_cnt tx_ctx_cnt rx_ctx_cnt max_ep_tx_ctx
                max_ep_rx_ctx max_ep_stx_ctx max_ep_srx_ctx cntr_cnt mr_iov_limit caps mode auth_key
                auth_key_size max_err_data mr_cnt tclass;
            1.20: max_ep_auth_key;
            2.0: max_group_id;
        }
        fi_fabric_attr {
            1.17: fabric name prov_name prov_version api_version;
        }
        fid_nic {
            1.17: fid device_attr bus_attr link_attr prov_attr;
        }
        fi_device_attr {
            1.17: name device_id device_version vendor_id driver firmware;
        }
        fi_pci_attr {
            1.17: domain_id bus_id device_id function_id;
        }
        fi_bus_attr {
            1.17: bus_type pci;
        }
        fi_link_attr {
            1.17: address mtu speed state network_type;
        }
        fid {
            1.17: fclass context ops;
        }
        fid_fabric {
            1.17: fid ops api_version;
        }
        fid_domain {
            1.17: fid ops mr;
        }
        fid_ep {
            1.17: fid ops cm msg rma tagged atomic collective;
        }
        fid_pep {
            1.17: fid ops cm;
        }
        fid_stx {
            1.17: fid ops;
        }
        fid_cq {
            1.17: fid ops;
        }
        fid_eq {
            1.17: fid ops;
        }
        fid_av {
            1.17: fid ops;
        }
        fid_mem_monitor {
            1.17: fid export_ops import_ops;
        }
        fid_mr {
            1.17: fid mem_desc key;
        }
        fi_cq_attr {
            1.17: size flags format wait_obj signaling_vector wait_cond wait_set;
        }
        fi_eq_attr {
            1.17: size flags wait_obj signaling_vector wait_set;
        }
        fi_av_attr {
            1.17: type_ rx_ctx_bits count ep_per_node name map_addr flags;
        }
        fi_mr_attr {
            1.17: memory iov_count access offset requested_key context auth_key_size auth_key iface
                device;
            1.19: hmem_data;
            1.22: page_size;
            2.0: base_mr sub_mr_cnt;
        }
        fi_mr_dmabuf {
            1.20: fd offset len base_addr;
        }
        fi_cq_entry {
            1.17: op_context;
        }
        fi_cq_msg_entry {
            1.17: op_context flags len;
        }
        fi_cq_data_entry {
            1.17: op_context flags len buf data;
        }
        fi_cq_tagged_entry {
            1.17: op_context flags len buf data tag;
        }
        fi_cq_err_entry {
            1.17: op_context flags len buf data tag olen err prov_errno err_data err_data_size;
            1.20: src_addr;
        }
        fi_eq_entry {
            1.17: fid context data;
        }
        fi_eq_cm_entry {
            1.17: fid info data;
        }
        fi_eq_err_entry {
            1.17: fid context data err prov_errno err_data err_data_size;
        }
        fi_msg {
            1.17: msg_iov desc iov_count addr context data;
        }
        fi_msg_rma {
            1.17: msg_iov desc iov_count addr rma_iov rma_iov_count context data;
        }
        fi_rma_iov {
            1.17: addr len key;
        }
        fi_context {
            1.17: internal;
        }
        fi_context2 {
            1.17: internal;
        }
        fi_param {
            1.17: name type_ help_string value;
        }
        fi_ops {
            1.17: size close bind control ops_open tostr ops_set;
        }
        fi_ops_fabric {
            1.17: size domain passive_ep eq_open wait_open trywait domain2;
        }
        fi_ops_domain {
            1.17: size av_open cq_open endpoint scalable_ep cntr_open poll_open stx_ctx srx_ctx
                query_atomic query_collective endpoint2;
        }
        fi_ops_mr {
            1.17: size reg regv regattr;
        }
        fi_ops_av {
            1.17: size insert insertsvc insertsym remove lookup straddr av_set;
            1.20: insert_auth_key lookup_auth_key set_user_id;
        }
        fi_ops_cq {
            1.17: size read readfrom readerr sread sreadfrom signal strerror;
        }
        fi_ops_mem_monitor {
            1.17: size start stop subscribe unsubscribe valid;
        }
        fi_ops_mem_notify {
            1.17: size notify;
        }
        fi_ops_eq {
            1.17: size read readerr write sread strerror;
        }
        fi_ops_ep {
            1.17: size cancel getopt setopt tx_ctx rx_ctx rx_size_left tx_size_left;
        }
        fi_ops_msg {
            1.17: size recv recvv recvmsg send sendv sendmsg inject senddata injectdata;
        }
        fi_ops_cm {
            1.17: size setname getname getpeer connect listen accept reject shutdown join;
        }
        fi_ops_rma {
            1.17: size read readv readmsg write writev writemsg inject writedata injectdata;
        }
    }
}
