//! Fabrics of endpoints without connections, for tests within one process.

use std::sync::Arc;

use crate::fabric::{EndpointKind, Fabric};

/// Of each of these providers that opens here. Those that this machine's library lacks are skipped.
pub(crate) fn fabrics_of<'n>(names: impl Iterator<Item = &'n str> + Clone) -> Vec<Arc<Fabric>> {
    let opened: Vec<_> = names.clone().filter_map(open).collect();
    if opened.is_empty() {
        println!("SKIPPED: none of {:?} opens", names.collect::<Vec<_>>());
    }
    opened
}

fn open(name: &str) -> Option<Arc<Fabric>> {
    let builder = Fabric::builder()
        .provider(name)
        .endpoint_kind(EndpointKind::Rdm);
    let node = std::env::var("FABRICAST_TEST_NODE");
    let opened = builder.node(node.as_deref().unwrap_or("127.0.0.1")).open();
    opened
        .map_err(|error| println!("without {name}: {error}"))
        .ok()
}

/// Of each provider that opens here and talks within a process, or of those that are asked for.
pub(crate) fn fabrics() -> Vec<Arc<Fabric>> {
    let asked = std::env::var("FABRICAST_TEST_PROVIDER").unwrap_or_default();
    match asked.as_str() {
        "" => fabrics_of(["tcp", "net"].into_iter()),
        asked => fabrics_of(asked.split(',')),
    }
}
