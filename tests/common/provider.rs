//! Which provider the tests run on, and at which address of this machine: from the environment.
//!
//! FABRICAST_TEST_PROVIDER is a name, or several with commas between them: a test takes the first
//! that has the kind of endpoint it wants and that opens, and is skipped where none does. Default:
//! `tcp`, and for FI_EP_RDM `net`, which is libfabric 1.17's name for it. FABRICAST_TEST_NODE is
//! the address (127.0.0.1), which must be IPv4: rdma_cm refuses the loopback interface.
//!
//! What else a test assumes of its provider, it asks of the provider's row, or of what was opened
//! ([`Offers`]), never by name.

use std::sync::{Arc, LazyLock};

use fabricast::error::Error;
use fabricast::fabric::{AccessEnds, EndpointKind};
use fabricast::{Domain, Fabric, PeerAddr, fabric};

static PROVIDERS: LazyLock<Option<String>> = LazyLock::new(|| variable("FABRICAST_TEST_PROVIDER"));
static NODE: LazyLock<String> = LazyLock::new(|| {
    let node = variable("FABRICAST_TEST_NODE").unwrap_or_else(|| "127.0.0.1".to_owned());
    let is_ip = node.parse::<std::net::Ipv4Addr>().is_ok();
    assert!(is_ip, "FABRICAST_TEST_NODE is an IPv4 address");
    node
});
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// The address of this machine that tests listen at and connect from.
pub(crate) fn node() -> &'static str {
    &NODE
}

/// Any free port there.
pub(crate) fn any_port() -> PeerAddr {
    let text = format!("{}:0", node());
    text.parse().expect("an address")
}

/// A port there that nobody listens at: some provider had it a moment ago, and it is not given out
/// again at once.
pub(crate) fn nobodys_port() -> PeerAddr {
    let listener = std::net::TcpListener::bind((node(), 0)).expect("a port");
    listener.local_addr().expect("bound").into()
}

/// Where a test listens that is for all providers: at any port there, or wherever one whose
/// endpoints have names does.
pub(crate) fn anywhere(domain: &Domain) -> PeerAddr {
    match domain.fabric().provider().names {
        Some(_) => PeerAddr::any(),
        None => any_port(),
    }
}

/// The providers that tests over this kind of endpoint run on, the best first: those of the
/// environment, else `usual`.
pub(crate) fn asked_or(kind: EndpointKind, usual: &[&'static str]) -> Vec<&'static str> {
    let Some(asked) = PROVIDERS.as_deref() else {
        return usual.to_vec();
    };
    let row = |name| fabric::provider(name).unwrap_or_else(|| panic!("no provider {name}"));
    let rows = asked.split(',').map(row);
    let fit = rows.filter(|row| row.endpoints.contains(&kind));
    fit.map(|row| row.name).collect()
}

/// The kinds of endpoint that tests over both kinds run on: those of the providers that are asked
/// for, else both.
pub(crate) fn kinds() -> impl Iterator<Item = EndpointKind> {
    let both = [EndpointKind::Msg, EndpointKind::Rdm].into_iter();
    both.filter(|kind| !asked_or(*kind, &["tcp"]).is_empty())
}

/// A fabric of the provider that is asked for, at another address of this machine. `None`, after a
/// line that says why, where there is no libfabric, or no provider of that kind.
pub(crate) fn fabric_at(kind: EndpointKind, node: &str) -> Option<Arc<Fabric>> {
    let usual: &[&str] = match kind {
        EndpointKind::Msg => &["tcp"],
        EndpointKind::Rdm => &["tcp", "net"],
    };
    let mut why = format!("no provider of FABRICAST_TEST_PROVIDER has {kind}");
    for name in asked_or(kind, usual) {
        let builder = Fabric::builder().provider(name).endpoint_kind(kind);
        match builder.node(node).open() {
            Ok(fabric) => return Some(fabric),
            Err(error @ Error::Library(_)) if variable("FABRICAST_LIBFABRIC").is_some() => {
                panic!("{error}")
            }
            Err(error @ Error::Library(_)) => why = error.to_string(),
            // Where it is the only one that is meant, it has to be there.
            Err(error) if kind == EndpointKind::Msg => panic!("{error}"),
            Err(error) => why = error.to_string(),
        }
    }
    println!("SKIPPED: {why}");
    None
}

/// The same at [`node`].
pub(crate) fn fabric_of(kind: EndpointKind) -> Option<Arc<Fabric>> {
    fabric_at(kind, node())
}

/// A domain of it.
pub(crate) fn domain_of(kind: EndpointKind) -> Option<Arc<Domain>> {
    Some(fabric_of(kind)?.open_domain().expect("a domain"))
}

/// What not every provider has, and some tests can't do without. Where the answer is no, a line
/// says that the test is skipped for it.
pub(crate) trait Offers {
    /// Connections are sockets of TCP: strangers can speak TCP to them, relays stand between, and
    /// the kernel can cut them.
    fn has_sockets(&self) -> bool;

    /// It works in any network namespace: no device has to be moved there.
    fn works_in_namespaces(&self) -> bool;

    /// Messages wait in the kernel, or nowhere, until the peer's program reads them.
    fn waits_for_programs(&self) -> bool;

    /// One-sided operations go by the peers' programs: who stops one, stops its operations.
    fn stops_with_programs(&self) -> bool;

    /// One-sided writes carry the application's data.
    fn writes_carry_data(&self) -> bool;

    /// So many peers may there be, where the process says so: the provider's queues are made for
    /// them, and have no room for more.
    fn peers_max(&self) -> Option<usize>;

    /// While an endpoint goes on, memory that a lost peer may still reach is kept from other use.
    fn quarantines(&self) -> bool;
}

impl Offers for Arc<Domain> {
    fn has_sockets(&self) -> bool {
        let has = self.fabric().provider().over_tcp;
        told(has, self, "it goes by no sockets of TCP")
    }

    fn works_in_namespaces(&self) -> bool {
        let none = self.fabric().provider().over_tcp;
        told(none, self, "its device is in no namespace of ours")
    }

    fn waits_for_programs(&self) -> bool {
        let alone = self.fabric().provider().delivers_alone;
        told(!alone, self, "it delivers without the peer's program")
    }

    fn stops_with_programs(&self) -> bool {
        let by_card = self.fabric().provider().memory.access_ends == AccessEnds::WithKey;
        told(!by_card, self, "cards go on when programs are stopped")
    }

    fn writes_carry_data(&self) -> bool {
        let report = self.report();
        let has = report.cq_data_size >= 8;
        told(has, self, "its writes carry no data of 8 bytes")
    }

    fn peers_max(&self) -> Option<usize> {
        if !self.fabric().provider().queues.sized_by_universe {
            return None;
        }
        // 256 is what libfabric takes it for where it is not set.
        let universe = variable("FI_UNIVERSE_SIZE").map_or(Ok(256), |text| text.parse());
        Some(universe.expect("FI_UNIVERSE_SIZE is a number"))
    }

    fn quarantines(&self) -> bool {
        let of_endpoint = self.fabric().endpoint_kind() == EndpointKind::Rdm;
        of_endpoint && self.fabric().provider().memory.access_ends != AccessEnds::WithKey
    }
}

fn told(has: bool, domain: &Domain, lacks: &str) -> bool {
    if !has {
        println!("SKIPPED: {}: {lacks}", domain.report().provider);
    }
    has
}
