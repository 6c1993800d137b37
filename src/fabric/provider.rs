//! What is known of each provider, as data: one row a provider.
//!
//! Facts come from the provider's man page (`fi_tcp.7`, `fi_verbs.7`, …) and from running it, where
//! that was done ([`Provider::ran_on`]). Code asks the row; it never compares provider names.

use std::fmt;

use super::run::Run;
use super::variable::Variable;

/// The kind of libfabric endpoint that connections are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointKind {
    /// `FI_EP_MSG`: connected by the provider.
    Msg,
    /// `FI_EP_RDM`: connections are ours, over one endpoint and an address vector.
    Rdm,
}

impl fmt::Display for EndpointKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Msg => "FI_EP_MSG",
            Self::Rdm => "FI_EP_RDM",
        })
    }
}

/// What ends a peer's access to memory that was registered for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessEnds {
    /// The close of the registration: the card looks at it with each packet.
    WithKey,
    /// An answer on the connection to a question that was asked after that, or the end of the
    /// connection's endpoint: the provider looks a key up when it reads the head of an operation,
    /// serves one after the other, and nothing after that ends what it has begun.
    BehindFence,
    /// The end of the endpoint, and nothing before: a peer can open further connections beneath it,
    /// which nobody sees.
    WithEndpoint,
}

/// How a header and a payload become one message, without a copy of the payload; chosen once, when
/// the endpoint is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shape {
    /// One vectored send: header slot first, payload segments after it. Takes a provider with two
    /// segments a message at least.
    Iov,
    /// The header is written right in front of the payload, and both are one run of bytes: for
    /// providers with one segment a message. The payload is one [`Buffer`](crate::buffer::Buffer)
    /// of a pool with [headroom](crate::buffer::SharedBufferConfig::headroom), from its start, or
    /// one fragment of a [ring with headroom](crate::buffer::RingConfig::headroom). Clones of a
    /// buffer go out at once with equal headers only.
    Headroom,
    /// Header and payload are two messages. Takes any payload, and costs a second operation, a
    /// second receive buffer of the peer's for each of its credits, and both of them as long as the
    /// message is held there.
    TwoMessages,
}

impl Shape {
    /// The shape that a provider's limit on segments allows.
    pub(crate) fn for_iov_limit(iov_limit: usize) -> Self {
        if iov_limit >= 2 {
            Self::Iov
        } else {
            Self::Headroom
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iov => "Iov",
            Self::Headroom => "Headroom",
            Self::TwoMessages => "TwoMessages",
        })
    }
}

/// Where a row's facts come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// Run by our tests, on machines that have it: [`Provider::ran_on`] says which.
    Tested,
    /// From documentation and sources only.
    Documented,
}

/// One provider's row.
#[derive(Debug, Clone, Copy)]
pub struct Provider {
    /// The name as `fi_getinfo` spells it.
    pub name: &'static str,
    /// What its connections can be made of, the kind that is used by default first. An older
    /// library may lack the other.
    pub endpoints: &'static [EndpointKind],
    /// Segments in one send as documented, header included; the opened provider's own answer wins.
    pub iov_limit: usize,
    /// What is sent is in the peer's memory, and delivered, while the peer's program does nothing:
    /// the card puts it into a receive buffer that was posted, up to as many as were. Elsewhere it
    /// waits for the peer's program to poll.
    pub delivers_alone: bool,
    /// Its bytes go by sockets of TCP: any program can reach a listener, a relay can stand between,
    /// and the kernel can cut a connection.
    pub over_tcp: bool,
    /// A peer that an endpoint without connections has accepted, and that has said nothing, stays
    /// when the endpoint is closed, and is answered out of freed memory when it speaks: it is cut
    /// off before.
    pub keeps_unheard: bool,
    /// It looks for the way to a peer while an endpoint is opened, and may take seconds where there
    /// is no such peer. A thread of the domain does that; the connection goes on when it has its
    /// answer, and ends by its `connect_timeout` where that is sooner.
    pub resolves_in_open: bool,
    /// Its endpoints have names of this scheme, in one place that all processes of the machine
    /// share, and whoever opens one at the name of another takes away that one's memory, or shares
    /// it (`shm`): so each gets a name that no other has, and there is no node to choose.
    pub names: Option<&'static str>,
    /// Where the kernel lists its devices: without one there, libfabric has the provider and offers
    /// nothing of it. None where it needs no device.
    pub devices: Option<&'static str>,
    /// `FI_MORE` batches posts: what is flagged waits for the next post, and goes to the card
    /// together with it.
    pub uses_more: bool,
    /// Messages of up to so many bytes, header included, that are sent one right after the other go
    /// better where the kernel gathers them (Nagle's algorithm): measured. `None`: it can't, or was
    /// not measured.
    pub gathers_below: Option<u64>,
    /// `FI_INJECT` saves more than the copy that it takes.
    pub inject_pays: bool,
    /// Bytes of the largest message, header included, that goes faster in a frame with others than
    /// by itself ([`Packing::Auto`](crate::endpoint::Packing)); measured. 0: none does, or nobody
    /// has measured it.
    pub pack_below: usize,
    /// Blocks of streams go better by RMA write than as messages, although the receiver copies each
    /// out of its window: measured, or not said.
    pub favours_writes: bool,
    /// Its queues.
    pub queues: ProviderQueues,
    /// How it registers memory, and what ends the access of peers to it.
    pub memory: ProviderMemory,
    /// Bytes that it copies by itself, in words.
    pub copies: &'static str,
    /// What else to know of it, in words.
    pub remarks: Option<&'static str>,
    /// Why connections can't be made over it yet, if so.
    pub refused: Option<&'static str>,
    /// Variables that libfabric reads when it is first asked, without which it crashes sooner or
    /// later.
    pub environment: &'static [Variable],
}

/// What is known of a provider's queues, and of what completes in them.
#[derive(Debug, Clone, Copy)]
pub struct ProviderQueues {
    /// Its queues have as many entries as they were opened with and never more, and one that
    /// overruns is broken: so completion queues have room for all that the endpoints were opened
    /// with, and endpoints are opened with as many receives as they need.
    pub fixed_queues: bool,
    /// It makes queues of its own that are long enough for `FI_UNIVERSE_SIZE` peers, 256 where the
    /// process was not started with that: more than some devices have (the core provider's,
    /// `fi_rxm.7`).
    pub sized_by_universe: bool,
    /// It has a file descriptor to wait on (`FI_WAIT_FD`).
    pub wait_fd: bool,
    /// `fi_trywait` on a queue looks into the endpoints that were opened with it, into those that
    /// are closed, too, whose memory is somebody else's by then: it is not asked after the first
    /// one was closed, and a sleeper looks each millisecond instead.
    pub waits_on_closed: bool,
    /// After `fi_close(ep)` it reports what was in flight; where it does not, we fail those
    /// operations ourselves.
    pub reports_after_close: bool,
    /// Bytes of remote CQ data that a message can carry, in the newest version that we know; the
    /// opened provider's own answer wins. Connections need 4; with less than 8, one over
    /// `FI_EP_RDM` takes fewer messages ahead, and writes carry no data.
    pub cq_data: usize,
    /// Contexts of operations must be cells that it may write into (`FI_CONTEXT`, `FI_CONTEXT2`).
    pub context_cells: bool,
}

/// What is known of how a provider registers memory.
#[derive(Debug, Clone, Copy)]
pub struct ProviderMemory {
    /// Registrations are bound to endpoints (`FI_MR_ENDPOINT`).
    pub endpoint_scope: bool,
    /// `FI_MR_VIRT_ADDR` is not offered to it: with it, a peer that shares the machine reaches
    /// memory by its address, and no key is looked at (`shm`).
    pub offset_windows: bool,
    /// The owner of a window moves the bytes of a read into the reader's memory by itself, even
    /// after the reader's endpoint was closed: what is read into then must never be freed.
    pub reads_outlive_close: bool,
    /// It goes on using a registration that was closed in the middle of an operation: those of
    /// connections that are over stay open until their endpoint is closed.
    pub holds_registrations: bool,
    /// What ends a peer's access to memory that was registered for it, over connections of the
    /// provider's own (`FI_EP_MSG`). Over `FI_EP_RDM`, [`AccessEnds::BehindFence`] is as good as
    /// [`AccessEnds::WithEndpoint`].
    pub access_ends: AccessEnds,
    /// It moves a device's memory by CUDA IPC, which takes what `cuMemAlloc` gave and nothing else,
    /// and needs the CUDA driver for it.
    pub cuda_ipc: bool,
    /// libfabric keeps a cache of its registrations, unless it is kept from it: see
    /// [`RegistrationCache`](super::RegistrationCache).
    pub caches_registrations: bool,
}

impl Provider {
    /// Where the conformance suite ran it (`make conformance`), the newest for each library and
    /// device: docs/providers.tsv. Nowhere: the row is from documentation and sources.
    pub fn ran_on(&self) -> impl Iterator<Item = Run> {
        Run::all().filter(|run| run.provider == self.name)
    }

    /// Where the row's facts come from.
    pub fn evidence(&self) -> Evidence {
        match self.ran_on().next() {
            Some(_) => Evidence::Tested,
            None => Evidence::Documented,
        }
    }

    /// What ends a peer's access to memory that was registered for it.
    pub(crate) fn access_ends(&self, kind: EndpointKind) -> AccessEnds {
        match (self.memory.access_ends, kind) {
            (AccessEnds::BehindFence, EndpointKind::Rdm) => AccessEnds::WithEndpoint,
            (ends, _) => ends,
        }
    }

    /// Whether a one-sided operation that the peer's card refuses ends the connection that it went
    /// by, which the provider does not make anew: so of all that go to a card as they are.
    pub(crate) fn refusals_end_connections(&self) -> bool {
        self.memory.access_ends == AccessEnds::WithKey
    }

    /// Why connections can't be made over it in this process, if so.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        let met = |needed: &&Variable| {
            let value = std::env::var_os(needed.name);
            needed.is_met_by(
                value
                    .as_deref()
                    .map(|text| text.to_str().unwrap_or_default()),
            )
        };
        let lacks = || self.environment.iter().find(|needed| !met(needed));
        self.refused.or_else(|| Some(lacks()?.without))
    }
}

/// The name, and where it ran.
impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        let mut runs = self.ran_on();
        match runs.next() {
            None => return f.write_str(", from documentation and sources, not run"),
            Some(run) => write!(f, ", ran on {run}")?,
        }
        runs.try_for_each(|run| write!(f, "; and on {run}"))
    }
}

/// libfabric 2.x takes the list of half-received segmented messages for something else when the
/// peer goes, and crashes; 1.17 takes nothing out of it. Without segmenting, longer messages go by
/// rendezvous.
const WITHOUT_SEGMENTS: Variable = Variable {
    name: "FI_OFI_RXM_SAR_LIMIT",
    value: "0",
    is_default: false,
    without: "may crash when a peer is lost in the middle of a segmented message; start the \
              process with FI_OFI_RXM_SAR_LIMIT=0, which turns segmenting off, or use `tcp`",
};

/// When a connection ends, `rxm_close_conn` closes its endpoint and deals with what was received on
/// it behind that: each buffer goes back to the endpoint that it came from, which is freed by then.
/// Up to 2.6 at least; mended after it ("fix the msg_ep use-after-free at connection teardown").
/// Buffers that all connections share go to none of them.
const SHARED_BUFFERS: Variable = Variable {
    name: "FI_OFI_RXM_USE_SRX",
    value: "1",
    is_default: false,
    without: "crashes when a peer hangs up before all that it sent was looked at (libfabric up to \
              2.6); start the process with FI_OFI_RXM_USE_SRX=1, which has all connections share \
              their buffers, or use `verbs`",
};

/// Over tcp they do, unless somebody says otherwise.
const SHARED_UNLESS_ASKED: Variable = Variable {
    is_default: true,
    without: "crashes when a peer hangs up before all that it sent was looked at (libfabric up to \
              2.6); start the process without FI_OFI_RXM_USE_SRX, or with 1, or use `tcp`",
    ..SHARED_BUFFERS
};

/// Messages of 8 KiB and a header. Two processes on two cores over loopback, 16 in flight, packed
/// against single, by the bytes of the payload:
///
/// | | 64 | 1 KiB | 4 KiB | 8 KiB | 12 KiB | 16 KiB |
/// |---|---|---|---|---|---|---|
/// | tcp, 1.17 | 91 | 19 | 4.8 | 1.9 | 1.3 | 0.9 |
/// | tcp, 2.5 | | | 4.4 | 2.0 | 1.6 | 0.9 |
/// | net, 1.17 | 118 | 20 | 4.6 | 1.8 | | 0.7 |
/// | tcp without connections, 2.5 | 98 | 20 | 4.6 | 2.1 | | 0.6 |
/// | shm, 1.17 | 4.4 | 5.3 | 3.6 | 2.0 | | 0.8 |
/// | shm, 2.5 | 5.7 | 1.9 | 3.6 | 2.3 | | 1.2 |
const PACK_BELOW: usize = 8192 + 256;

/// Every provider that this library knows.
pub const PROVIDERS: &[Provider] = &[
    Provider {
        name: "tcp",
        // FI_EP_RDM since libfabric 1.18.
        endpoints: &[EndpointKind::Msg, EndpointKind::Rdm],
        iov_limit: 4,
        delivers_alone: false,
        over_tcp: true,
        keeps_unheard: true,
        resolves_in_open: false,
        names: None,
        devices: None,
        uses_more: false,
        // 2.0 to 3.5 times as many of 64 B to 4 KiB over loopback (docs/internals/polling.md); at
        // 16 KiB it does not pay.
        gathers_below: Some(8 << 10),
        // It copies sends as short as those that can be injected in any case.
        inject_pays: false,
        pack_below: PACK_BELOW,
        favours_writes: false,
        queues: ProviderQueues {
            fixed_queues: false,
            sized_by_universe: false,
            wait_fd: true,
            waits_on_closed: false,
            reports_after_close: true,
            cq_data: 8,
            context_cells: false,
        },
        memory: ProviderMemory {
            endpoint_scope: false,
            offset_windows: false,
            reads_outlive_close: false,
            holds_registrations: false,
            access_ends: AccessEnds::BehindFence,
            cuda_ipc: false,
            caches_registrations: false,
        },
        copies: "sends up to 128 B always, receives up to 9,000 B sometimes",
        remarks: None,
        refused: None,
        environment: &[],
    },
    // prov/verbs of 1.17 and 2.5: 4 segments unless FI_VERBS_TX_IOV_LIMIT says otherwise, CQ data
    // in the card's immediate data (4 bytes), a closed endpoint's operations reported as cancelled
    // (vrb_flush_sq, vrb_flush_rq), FI_MORE ignored.
    Provider {
        name: "verbs",
        endpoints: &[EndpointKind::Msg],
        iov_limit: 4,
        delivers_alone: true,
        over_tcp: false,
        keeps_unheard: false,
        // vrb_create_ep: rdma_resolve_addr up to 1.20, and rdma_getaddrinfo, which may ask a daemon
        // (ibacm), in all.
        resolves_in_open: true,
        names: None,
        devices: Some("/sys/class/infiniband"),
        // It takes the flag and does not look at it, up to 2.5.
        uses_more: false,
        gathers_below: None,
        // The bytes go to the card with the command (IBV_SEND_INLINE).
        inject_pays: true,
        // What the card takes without the processor costs no more for being short.
        pack_below: 0,
        favours_writes: false,
        queues: ProviderQueues {
            fixed_queues: true,
            sized_by_universe: false,
            wait_fd: true,
            waits_on_closed: false,
            reports_after_close: true,
            cq_data: 4,
            context_cells: false,
        },
        memory: ProviderMemory {
            endpoint_scope: false,
            offset_windows: false,
            reads_outlive_close: false,
            holds_registrations: false,
            // ibv_dereg_mr: the card refuses what comes with the key from then on. Not with the
            // cache: that keeps it.
            access_ends: AccessEnds::WithKey,
            cuda_ipc: false,
            // vrb_domain.
            caches_registrations: true,
        },
        copies: "none",
        remarks: None,
        refused: None,
        environment: &[],
    },
    // rxm_ep_open puts the core provider's queues into the wait set of ours, and rxm_ep_close
    // leaves them there (1.17 to 2.6).
    Provider {
        over_tcp: true,
        pack_below: PACK_BELOW,
        environment: &[WITHOUT_SEGMENTS, SHARED_UNLESS_ASKED],
        queues: ProviderQueues {
            wait_fd: true,
            waits_on_closed: true,
            reports_after_close: false,
            ..QUEUES
        },
        ..rdm("tcp;ofi_rxm", 4, "as tcp, and messages up to 16 KiB")
    },
    // rxm_info_to_rxm: the smaller of its own CQ data (8) and the core provider's (4).
    // rxm_send_connect has vrb_create_ep resolve the address in the first post; not since 1.21.
    Provider {
        remarks: Some("up to libfabric 1.20, the first post to an address of nobody takes 2 s"),
        environment: &[WITHOUT_SEGMENTS, SHARED_BUFFERS],
        queues: ProviderQueues {
            wait_fd: true,
            waits_on_closed: true,
            reports_after_close: false,
            sized_by_universe: true,
            cq_data: 4,
            ..QUEUES
        },
        memory: ProviderMemory {
            caches_registrations: true,
            // One-sided operations go to the card as they are.
            access_ends: AccessEnds::WithKey,
            ..MEMORY
        },
        devices: Some("/sys/class/infiniband"),
        ..rdm("verbs;ofi_rxm", 4, "messages up to 16 KiB")
    },
    // libfabric 1.17's name for what is `tcp` with FI_EP_RDM later; its wait descriptor is always
    // ready.
    Provider {
        over_tcp: true,
        keeps_unheard: true,
        pack_below: PACK_BELOW,
        remarks: Some("what libfabric 1.17 calls `tcp` over FI_EP_RDM"),
        ..rdm("net", 4, "as tcp")
    },
    Provider {
        // smr_endpoint_name puts the user and a number behind it, which begins with 0 in each
        // process; smr_create and smr_retry_map unlink or share what is there already (1.17 to
        // 2.6).
        names: Some("fi_shm://"),
        pack_below: PACK_BELOW,
        remarks: Some(
            "listening at `any`, without a node, between processes of one PID namespace; both \
             ends on one version; on 1.x a peer that is killed may hang those it was sending to, \
             and one that goes before it was heard crashes its listener; on 2.x a write that a \
             window's rights forbid is not done, and said to be",
        ),
        queues: ProviderQueues {
            reports_after_close: false,
            ..QUEUES
        },
        memory: ProviderMemory {
            offset_windows: true,
            reads_outlive_close: true,
            holds_registrations: true,
            cuda_ipc: true,
            ..MEMORY
        },
        ..rdm("shm", 4, "messages up to 4 KiB twice, larger ones once")
    },
    // Its descriptor is written by progress, which with FI_PROGRESS_MANUAL is ours: who sleeps on
    // it, sleeps.
    Provider {
        over_tcp: true,
        ..rdm("sockets", 8, "sends up to 255 B")
    },
    rdm("udp;ofi_rxd", 4, "every message"),
    // fi_efa.7 and prov/efa: RXR_IOV_LIMIT, later EFA_RDM_IOV_LIMIT, 4; CQ data of 8 bytes in 1.17
    // and 4 since 1.18 (EFA_CQ_DATA_SIZE); no wait object in 1.17, later only where its shared
    // memory is off. Of a cache, 1.17 has one of its own for those who don't say FI_MR_LOCAL; we
    // do.
    Provider {
        uses_more: true,
        // Injected messages take a buffer and a copy that others do without.
        inject_pays: false,
        queues: ProviderQueues {
            reports_after_close: false,
            cq_data: 4,
            ..QUEUES
        },
        devices: Some("/sys/class/infiniband"),
        ..rdm("efa", 4, "small messages")
    },
    // fi_cxi.7 and prov/cxi: FI_MR_ENDPOINT always, FI_WAIT_FD, CXIP_REMOTE_CQ_DATA_SZ 8, one
    // segment, injects 192 B.
    Provider {
        // `fi_cxi.7`: queued commands are submitted with the next one that is not flagged, and not
        // before.
        uses_more: true,
        // As efa; short messages go with the command in any case.
        inject_pays: false,
        remarks: Some("one segment a message, so by headroom"),
        queues: ProviderQueues {
            wait_fd: true,
            reports_after_close: false,
            ..QUEUES
        },
        memory: ProviderMemory {
            endpoint_scope: true,
            ..MEMORY
        },
        devices: Some("/sys/class/cxi"),
        ..rdm("cxi", 1, "small messages")
    },
    // fi_psm3.7 and psmx3_attr.c: FI_CONTEXT; PSMX3_IOV_MAX_COUNT 13; 8 bytes of CQ data only
    // without FI_MSG, else 4. Its wait objects are driven by a thread of its own (psmx3_wait.c),
    // which nobody asked for.
    Provider {
        inject_pays: true,
        queues: ProviderQueues {
            reports_after_close: false,
            cq_data: 4,
            context_cells: true,
            ..QUEUES
        },
        ..rdm("psm3", 13, "small messages")
    },
    // fi_opx.7 and fi_opx.h: FI_OPX_IOV_LIMIT 1, FI_OPX_REMOTE_CQ_DATA_SIZE 4, FI_ASYNC_IOV (and
    // FI_CONTEXT2 in 1.17), no FI_ORDER_SAS.
    Provider {
        inject_pays: true,
        refused: Some(
            "promises no order of messages (FI_ORDER_SAS), which connections over FI_EP_RDM need",
        ),
        queues: ProviderQueues {
            reports_after_close: false,
            cq_data: 4,
            context_cells: true,
            ..QUEUES
        },
        devices: Some("/sys/class/infiniband"),
        ..rdm("opx", 1, "small messages")
    },
];

/// The queues of most providers without connections.
const QUEUES: ProviderQueues = ProviderQueues {
    fixed_queues: false,
    sized_by_universe: false,
    wait_fd: false,
    waits_on_closed: false,
    reports_after_close: true,
    cq_data: 8,
    context_cells: false,
};

/// The memory of most providers without connections.
const MEMORY: ProviderMemory = ProviderMemory {
    endpoint_scope: false,
    offset_windows: false,
    reads_outlive_close: false,
    holds_registrations: false,
    access_ends: AccessEnds::WithEndpoint,
    cuda_ipc: false,
    caches_registrations: false,
};

const fn rdm(name: &'static str, iov_limit: usize, copies: &'static str) -> Provider {
    Provider {
        name,
        endpoints: &[EndpointKind::Rdm],
        iov_limit,
        // Their messages wait in software, with which the two sides agree what is delivered.
        delivers_alone: false,
        over_tcp: false,
        keeps_unheard: false,
        resolves_in_open: false,
        names: None,
        devices: None,
        uses_more: false,
        gathers_below: None,
        inject_pays: false,
        pack_below: 0,
        favours_writes: false,
        queues: QUEUES,
        memory: MEMORY,
        copies,
        remarks: None,
        refused: None,
        environment: &[],
    }
}

/// The row of a provider, by the name that `fi_getinfo` gives.
pub fn provider(name: &str) -> Option<&'static Provider> {
    PROVIDERS.iter().find(|row| row.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for (i, row) in PROVIDERS.iter().enumerate() {
            assert_eq!(
                PROVIDERS.iter().position(|r| r.name == row.name),
                Some(i),
                "{}",
                row.name
            );
            assert_eq!(provider(row.name).map(|r| r.name), Some(row.name));
        }
        assert!(provider("no such provider").is_none());
    }

    #[test]
    fn a_variable_is_as_it_must_be_or_left_to_a_library_that_knows() {
        for (needed, value, is_met) in [
            (WITHOUT_SEGMENTS, None, false),
            (WITHOUT_SEGMENTS, Some("0"), true),
            (WITHOUT_SEGMENTS, Some("65536"), false),
            (SHARED_BUFFERS, None, false),
            (SHARED_BUFFERS, Some("1"), true),
            (SHARED_UNLESS_ASKED, None, true),
            (SHARED_UNLESS_ASKED, Some("1"), true),
            (SHARED_UNLESS_ASKED, Some("0"), false),
        ] {
            assert_eq!(needed.is_met_by(value), is_met, "{needed:?} {value:?}");
            assert!(needed.without.contains(needed.name), "it says what helps");
        }
    }

    #[test]
    fn a_row_says_where_it_ran() {
        let tcp = provider("tcp").unwrap();
        assert_eq!(tcp.evidence(), Evidence::Tested);
        let text = tcp.to_string();
        assert!(
            text.starts_with("tcp, ran on FI_EP_MSG, libfabric "),
            "{text}"
        );
        assert!(text.contains("; and on FI_EP_RDM, "), "{text}");
        let efa = provider("efa").unwrap();
        assert_eq!(efa.evidence(), Evidence::Documented);
        assert_eq!(
            efa.to_string(),
            "efa, from documentation and sources, not run"
        );
    }

    #[test]
    fn a_row_with_one_segment_takes_headroom() {
        for row in PROVIDERS {
            let shape = Shape::for_iov_limit(row.iov_limit);
            assert_eq!(shape == Shape::Iov, row.iov_limit >= 2, "{}", row.name);
        }
        assert_eq!(
            Shape::for_iov_limit(provider("cxi").unwrap().iov_limit),
            Shape::Headroom
        );
    }

    #[test]
    fn an_answer_fences_connections_of_the_provider_only() {
        let ends = |name, kind| provider(name).unwrap().access_ends(kind);
        assert_eq!(ends("tcp", EndpointKind::Msg), AccessEnds::BehindFence);
        assert_eq!(ends("tcp", EndpointKind::Rdm), AccessEnds::WithEndpoint);
        assert_eq!(ends("verbs", EndpointKind::Msg), AccessEnds::WithKey);
        assert_eq!(
            ends("verbs;ofi_rxm", EndpointKind::Rdm),
            AccessEnds::WithKey
        );
        let others = PROVIDERS
            .iter()
            .filter(|row| row.endpoints == [EndpointKind::Rdm] && row.name != "verbs;ofi_rxm");
        for row in others {
            let ends = row.access_ends(EndpointKind::Rdm);
            assert_eq!(ends, AccessEnds::WithEndpoint, "{}", row.name);
        }
    }

    #[test]
    fn every_row_has_a_kind_of_endpoint_and_a_default() {
        for row in PROVIDERS {
            assert!(!row.endpoints.is_empty(), "{}", row.name);
            assert!(
                !row.queues.waits_on_closed || row.endpoints == [EndpointKind::Rdm],
                "{}: `FabricWait` asks at any time",
                row.name
            );
            let layered = row.name.contains(";ofi_rx");
            assert!(
                !layered || row.endpoints == [EndpointKind::Rdm],
                "{}",
                row.name
            );
        }
        assert_eq!(
            provider("tcp").unwrap().endpoints[0],
            EndpointKind::Msg,
            "connections of the provider's own are the default where there are both"
        );
    }
}
