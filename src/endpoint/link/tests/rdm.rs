//! The link over a provider of the RDM form, by itself.

use super::*;
use crate::Fabric;

/// Far more than an address lingers.
const LONG: Duration = Duration::from_secs(60);

fn listener() -> Option<RdmLink> {
    let fabric = Fabric::builder().provider("tcp").node("127.0.0.1");
    let fabric = match fabric.endpoint_kind(EndpointKind::Rdm).open() {
        Ok(fabric) => fabric,
        Err(error) => {
            println!("SKIPPED: {error}");
            return None;
        }
    };
    let domain = fabric.open_domain().unwrap();
    let at: PeerAddr = std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into();
    let settings = EndpointSettings::default();
    Some(RdmLink::listen(&domain, &at, 8, 8, &settings).unwrap())
}

/// What waits at a link waits by the clock of its hub, as all else that a hub waits for.
#[test]
fn a_link_reads_the_clock_of_its_hub() {
    let Some(mut link) = listener() else { return };
    let clock = Clock::held();
    link.read_clock(&clock);
    let peer = std::net::SocketAddr::from(([127, 0, 0, 1], 1)).into();
    let hello = RequestHello::default();
    let conn = link.prepare_accept(RdmRequest { peer, hello });
    link.close(conn.expect("made")).expect("closed");
    assert_eq!(link.book.lingering(), 1);
    assert!(link.poll_cm().expect("it works").is_none());
    assert_eq!(link.book.lingering(), 1, "before its time");
    clock.advance(LONG);
    assert!(link.poll_cm().expect("it works").is_none());
    assert_eq!(link.book.lingering(), 0, "the clock said so");
}
