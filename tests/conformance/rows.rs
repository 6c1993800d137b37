//! The rows of the table: a provider with one kind of endpoint.

use std::sync::Arc;

use fabricast::error::Error;
use fabricast::fabric::{EndpointKind, provider};
use fabricast::{Domain, Fabric};

use crate::common::{SOON, child, node};
use crate::on;
use crate::told::Told;

/// A provider with one kind of endpoint.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) provider: &'static str,
    pub(crate) kind: EndpointKind,
    /// Bytes of CQ data that it may use: 4 is what efa and psm3 have.
    pub(crate) cq_data: usize,
}

pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "tcp(MSG)",
        kind: EndpointKind::Msg,
        ..row("tcp")
    },
    Row {
        name: "tcp(RDM)",
        ..row("tcp")
    },
    row("tcp;ofi_rxm"),
    row("net"),
    Row {
        name: "tcp(RDM,4)",
        cq_data: 4,
        ..row("tcp")
    },
    Row {
        name: "net(4)",
        cq_data: 4,
        ..row("net")
    },
    row("shm"),
    row("sockets"),
    row("udp;ofi_rxd"),
    Row {
        name: "verbs(MSG)",
        kind: EndpointKind::Msg,
        // What a card's immediate data holds.
        cq_data: 4,
        ..row("verbs")
    },
    Row {
        cq_data: 4,
        ..row("verbs;ofi_rxm")
    },
];

const fn row(provider: &'static str) -> Row {
    Row {
        name: provider,
        provider,
        kind: EndpointKind::Rdm,
        cq_data: 8,
    }
}

pub(crate) fn row_named(name: &str) -> &'static Row {
    let is_it = |row: &&Row| row.name == name;
    ROWS.iter().find(is_it).expect("a row of the table")
}

pub(crate) fn open(row: &Row) -> Result<Arc<Domain>, Error> {
    let builder = Fabric::builder()
        .provider(row.provider)
        .endpoint_kind(row.kind)
        .cq_data_limit(row.cq_data);
    let has_names = provider(row.provider).is_some_and(|it| it.names.is_some());
    let builder = match has_names {
        true => builder,
        false => builder.node(node()),
    };
    builder.open()?.open_domain()
}

/// Whether the library has the row, asked in a process of its own: its version and what device the
/// row is on, or why not.
pub(crate) fn probe(row: &str, library: &str) -> Result<(String, String), String> {
    let mut child = on::start("probe", row, library, "");
    let answer = child.expect("probed", 2 * SOON);
    child.finish(SOON);
    match answer.split_once(' ') {
        Some(("yes", found)) => {
            let (version, device) = found.split_once(' ').unwrap_or((found, ""));
            Ok((version.to_owned(), device.to_owned()))
        }
        Some((_, reason)) => Err(reason.to_owned()),
        None => Err(answer),
    }
}

/// The role of that process.
pub(crate) fn tell_probe(told: &Told) {
    match open(told.row()) {
        Ok(domain) => {
            let report = domain.report();
            let (library, device) = (report.library, report.interface);
            child::tell(format!("probed yes {library} {device}"));
        }
        Err(error) => child::tell(format!("probed no {error}").replace('\n', " ")),
    }
}

/// What fails for a reason of the provider's own: row with version, behaviour, reason.
pub(crate) const KNOWN: &[(&str, &str, &str)] = &[
    ("udp;ofi_rxd 1.17", "restart", RXD_RESTART),
    ("udp;ofi_rxd 2.5", "restart", RXD_RESTART),
    ("shm 1.17", "peer killed", SHM_LOCK),
];

/// `smr_generic_sendmsg` and others of 1.17 take a spin lock in the receiver's memory, and spin
/// themselves; 2.x has none.
const SHM_LOCK: &str = "whoever is killed while it sends may hold a lock in the receiver's memory, \
    on which others then spin for ever";

const RXD_RESTART: &str =
    "takes packets of the old sender for the new one's, and the new connection times out";

/// Which row of one library talks to which of the other.
pub(crate) const PAIRS: &[(&str, &str)] = &[
    ("tcp(MSG)", "tcp(MSG)"),
    ("net", "tcp(RDM)"),
    ("net(4)", "tcp(RDM)"),
    ("tcp;ofi_rxm", "tcp;ofi_rxm"),
    ("shm", "shm"),
    ("sockets", "sockets"),
    ("udp;ofi_rxd", "udp;ofi_rxd"),
];
