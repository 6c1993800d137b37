//! Where a source takes answers: an address that its builders reach, a port of its own, and a
//! number that nobody guesses.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use fabricast::endpoint::ReceiveConfig;
use fabricast::{Domain, ReceiveEndpoint};

use crate::failure::Failure;
use crate::readout::HEADER_MODE;
use crate::readout::wire::{ANSWER_LEN_MAX, HEADER_LEN};

/// The address that this machine has towards a peer. No packet is sent: a datagram socket only
/// looks up the route.
pub(crate) fn local_address(peer: SocketAddr) -> Result<IpAddr, Failure> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => [0; 4].into(),
        SocketAddr::V6(_) => [0; 16].into(),
    };
    let found = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(peer)?;
        socket.local_addr()
    });
    let failed = |error| Failure::os(format_args!("builder {peer}"), &error);
    found.map(|address| address.ip()).map_err(failed)
}

pub(crate) fn listen_for_answers(
    domain: &Arc<Domain>,
    local: IpAddr,
    builders: u32,
    patience: Duration,
) -> Result<ReceiveEndpoint, Failure> {
    const CREDITS: u32 = 16;
    let config = ReceiveConfig::default()
        .connection(|c| c.max_connections(builders + 2).connect_timeout(patience))
        .incoming(|incoming| {
            incoming
                .slots((builders + 2) * (CREDITS + 2))
                .max_message(HEADER_LEN + ANSWER_LEN_MAX)
                .credits(CREDITS)
        })
        .header_mode(HEADER_MODE);
    let any_port = SocketAddr::new(local, 0);
    Ok(ReceiveEndpoint::listen(domain, any_port.into(), config)?)
}

pub(crate) fn random() -> Result<u64, Failure> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Failure::os("getrandom", &error.into()))?;
    Ok(u64::from_ne_bytes(bytes))
}
