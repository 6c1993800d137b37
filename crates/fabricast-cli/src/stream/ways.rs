//! `Ways`: from which addresses of this machine its peers are reached, and by which domains.

use std::net::IpAddr;
use std::sync::Arc;

use fabricast::fabric::Report;
use fabricast::stream::{Peer, StreamReport};
use fabricast::{Domain, PeerAddr};

use serde_json::{Value, json};

use super::args::CommonArgs;
use super::measure::Bytes;
use super::send::Named;
use super::{local_address, open_domain};
use crate::failure::{End, Failure};

/// The domains of a sender, and how each peer is reached by them.
pub(crate) struct Ways {
    domains: Vec<Arc<Domain>>,
    peers: Vec<Vec<Way>>,
}

/// To one address of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    /// `None`: the provider's addresses are no IP addresses.
    from: Option<IpAddr>,
    to: PeerAddr,
    /// The number of its domain.
    domain: usize,
}

impl Ways {
    /// The n-th address of a peer is reached from the n-th of these addresses, or from the one that
    /// its route begins at. A domain over each of them is opened.
    pub(crate) fn open(
        common: &CommonArgs,
        asked: &[IpAddr],
        peers: &[Named],
    ) -> Result<Self, Failure> {
        let (mut ways, mut why) = (Vec::new(), None);
        for peer in peers {
            let mut of_peer = Vec::new();
            for (number, &to) in peer.to.0.iter().enumerate() {
                let from = match (asked.get(number), to.socket_addr()) {
                    (Some(&asked), _) => Some(asked),
                    (None, None) => None,
                    (None, Some(addr)) => match local_address(addr) {
                        Ok(from) => Some(from),
                        // The others can be reached nevertheless, and this one is tried.
                        Err(failure) => {
                            why.get_or_insert(failure);
                            None
                        }
                    },
                };
                of_peer.push(Way {
                    from,
                    to,
                    domain: 0,
                });
            }
            ways.push(of_peer);
        }
        let is_any_known = ways.iter().flatten().any(|way| way.from.is_some());
        match why {
            Some(failure) if !is_any_known => return Err(failure.ends(End::Unreachable)),
            _ => {}
        }
        let locals = number(&mut ways);
        let opened = locals.into_iter().map(|from| open_domain(common, from));
        Ok(Self {
            domains: opened.collect::<Result<_, _>>()?,
            peers: ways,
        })
    }

    pub(crate) fn domains(&self) -> &[Arc<Domain>] {
        &self.domains
    }

    /// The peers, for a sender over these domains.
    pub(crate) fn peers(&self) -> Vec<Peer> {
        let peer = |ways: &Vec<Way>| {
            let addrs = ways.iter().map(|way| way.to);
            Peer::new(addrs).by_domains(ways.iter().map(|way| way.domain))
        };
        self.peers.iter().map(peer).collect()
    }

    /// How a peer is reached.
    pub(crate) fn of(&self, peer: usize) -> &[Way] {
        &self.peers[peer]
    }

    /// What is known of the fabric that leads to a peer's first address.
    pub(crate) fn fabric(&self, peer: usize) -> Report {
        let first = self.peers[peer].first().map_or(0, |way| way.domain);
        self.domains[first].report()
    }
}

/// Gives each way the number of a domain, and returns where these are: one for each address that
/// ways begin at, and for two ways to one peer two, so that each has a thread of its own.
fn number(peers: &mut [Vec<Way>]) -> Vec<Option<IpAddr>> {
    let known = peers.iter().flatten().find_map(|way| way.from);
    // Each with how many of the same address are before it.
    let mut domains: Vec<(Option<IpAddr>, usize)> = Vec::new();
    for ways in peers {
        for place in 0..ways.len() {
            let from = ways[place].from.or(known);
            let before = &ways[..place];
            let same = before.iter().filter(|way| way.from.or(known) == from);
            let wanted = (from, same.count());
            let found = domains.iter().position(|it| *it == wanted);
            ways[place].domain = found.unwrap_or(domains.len());
            if found.is_none() {
                domains.push(wanted);
            }
        }
    }
    domains.into_iter().map(|(from, _)| from).collect()
}

/// What went by each way to a peer, for programs.
pub(crate) fn rails_to_json(ways: &[Way], report: &StreamReport) -> Value {
    let all = ways.iter().zip(&report.address_bytes);
    let one = |(way, bytes): (&Way, &u64)| {
        json!({
            "from": way.from.map(|ip| ip.to_string()),
            "to": way.to.to_string(),
            "bytes": bytes,
        })
    };
    all.map(one).collect()
}

/// The same as lines for people; none, where there was one way alone.
pub(crate) fn rails_text(rails: &Value) -> String {
    let rails = rails.as_array().map_or(&[][..], Vec::as_slice);
    if rails.len() < 2 {
        return String::new();
    }
    let lines = rails.iter().enumerate().map(|(number, rail)| {
        let name = if number == 0 { "rails" } else { "" };
        let word = |key: &str| rail[key].as_str().unwrap_or("?");
        let bytes = Bytes(rail["bytes"].as_f64().unwrap_or_default());
        let (from, to) = (word("from"), word("to"));
        format!("{name:12} {bytes} from {from} to {to}\n")
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(from: Option<&str>) -> Way {
        Way {
            from: from.map(|it| it.parse().expect("an address")),
            to: "10.0.0.9:1".parse().expect("an address"),
            domain: 0,
        }
    }

    #[test]
    fn each_address_of_this_machine_has_a_domain_and_two_rails_over_one_have_two() {
        let (one, two) = (Some("10.1.0.1"), Some("10.2.0.1"));
        for (peers, domains, numbers) in [
            (&[&[one][..], &[one]][..], &[one][..], &[0, 0][..]),
            (&[&[one], &[two]], &[one, two], &[0, 1]),
            (&[&[one, two], &[two, one]], &[one, two], &[0, 1, 1, 0]),
            (&[&[one, one], &[one]], &[one, one], &[0, 1, 0]),
            // One without a route is tried from where another is reached from.
            (&[&[None], &[two]], &[two], &[0, 0]),
            (&[&[None], &[None]], &[None], &[0, 0]),
        ] {
            let ways = peers.iter().map(|it| it.iter().copied().map(way).collect());
            let mut ways: Vec<Vec<_>> = ways.collect();
            let found: Vec<_> = number(&mut ways);
            let wanted: Vec<_> = domains.iter().map(|it| way(*it).from).collect();
            assert_eq!(found, wanted, "{peers:?}");
            let found: Vec<_> = ways.iter().flatten().map(|way| way.domain).collect();
            assert_eq!(found, numbers, "{peers:?}");
        }
    }
}
