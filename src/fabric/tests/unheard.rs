//! Endpoints that close while peers that they accepted have said nothing, over each provider that
//! keeps those.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::Fabric;
use crate::fabric::{Av, Completions, Cq, Domain, EndpointKind, Ep, PROVIDERS};

/// A machine may be busy.
const LONG: Duration = Duration::from_secs(60);

/// More than the provider looks at in one call.
const CROWD: usize = 150;

/// An endpoint, its queue, and the address beneath it.
struct End {
    ep: Ep,
    cq: Arc<Cq>,
    at: SocketAddr,
}

impl End {
    fn open(domain: &Arc<Domain>) -> Self {
        let cq = Arc::new(Cq::open(domain, 16).unwrap());
        let av = Arc::new(Av::open(domain).unwrap());
        let info = domain.fabric().info();
        let ep = Ep::open_rdm(domain, &mut info.duplicate().unwrap(), (8, 8), &cq, &av).unwrap();
        let at = ep.name(info.addr_format()).unwrap().socket_addr().unwrap();
        Self { ep, cq, at }
    }

    /// Polls until the provider has accepted so many.
    fn accept(&self, count: usize) {
        let deadline = Instant::now() + LONG;
        while AcceptedSockets::of(self.at).all().len() < count {
            assert!(Instant::now() < deadline, "nobody is accepted");
            self.cq.progress();
        }
    }
}

/// A domain of each provider that keeps them and that is here.
fn domains() -> Vec<Arc<Domain>> {
    let rows = PROVIDERS.iter().filter(|row| row.keeps_unheard);
    let open = |name: &'static str| {
        let fabric = Fabric::builder().provider(name).node("127.0.0.1");
        fabric.endpoint_kind(EndpointKind::Rdm).open()
    };
    let domains = rows.filter_map(|row| match open(row.name) {
        Ok(fabric) => Some(fabric.open_domain().unwrap()),
        Err(error) => {
            println!("SKIPPED: {error}");
            None
        }
    });
    domains.collect()
}

/// The other end has let go of the socket.
fn is_cut_off(client: &mut TcpStream) -> bool {
    client.set_read_timeout(Some(LONG)).unwrap();
    match client.read(&mut [0; 256]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

/// A request as the provider's peers make it: version 3, 8 bytes of data behind 32 of a head, in
/// which a number tells the order of bytes.
fn request() -> [u8; 40] {
    let mut request = [0; 40];
    (request[0], request[3]) = (3, 8);
    request[24..32].copy_from_slice(&1u64.to_ne_bytes());
    request
}

/// Nobody is left behind who would speak to a closed endpoint. Otherwise the provider would keep
/// their sockets open, and this test would be a read of freed memory.
#[test]
fn whoever_said_nothing_is_cut_off_with_the_endpoint() {
    for domain in domains() {
        let (closed, stays) = (End::open(&domain), End::open(&domain));
        let mut clients: Vec<_> = (0..CROWD)
            .map(|_| TcpStream::connect(closed.at).unwrap())
            .collect();
        // The others wait to be accepted.
        closed.accept(CROWD - 10);
        closed.ep.close().unwrap();
        assert_eq!(AcceptedSockets::of(closed.at).all(), []);
        for client in &mut clients {
            // Refused by the kernel, where the socket is gone.
            let _ = client.write_all(&request());
        }
        stays.cq.progress();
        assert!(clients.iter_mut().all(is_cut_off));
        drop(stays.ep);
    }
}

/// An endpoint that is dropped is closed as well as one that is closed.
#[test]
fn dropped_is_closed() {
    for domain in domains() {
        let dropped = End::open(&domain);
        let mut client = TcpStream::connect(dropped.at).unwrap();
        dropped.accept(1);
        drop(dropped.ep);
        assert!(is_cut_off(&mut client));
    }
}

/// The other endpoints of the domain, and who waits at them, are left alone.
#[test]
fn who_waits_at_another_endpoint_stays() {
    for domain in domains() {
        let (closed, stays) = (End::open(&domain), End::open(&domain));
        let client = TcpStream::connect(stays.at).unwrap();
        stays.accept(1);
        closed.ep.close().unwrap();
        let mut read = Completions::new();
        assert_eq!(stays.cq.read(&mut read).unwrap(), 0);
        assert_eq!(AcceptedSockets::of(stays.at).all().len(), 1);
        drop(client);
    }
}

/// A peer that has said what it wants has its answer first.
#[test]
fn a_request_is_answered_although_the_endpoint_closes() {
    for domain in domains() {
        let closed = End::open(&domain);
        let mut client = TcpStream::connect(closed.at).unwrap();
        closed.accept(1);
        client.write_all(&request()).unwrap();
        closed.ep.close().unwrap();
        client.set_read_timeout(Some(LONG)).unwrap();
        let mut answer = Vec::new();
        // Whether the connection's end is a reset or not.
        let _ = client.read_to_end(&mut answer);
        assert_eq!(answer.first(), Some(&3), "the version");
    }
}
