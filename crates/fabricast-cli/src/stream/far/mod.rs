//! The two ends of a transfer that is started from one of them, over a remote shell.

pub(crate) mod end;
mod message;
mod near;
pub(crate) mod place;
pub(crate) mod pull;
mod warm;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use clap::Parser;
use fabricast::PeerAddr;
use fabricast::stream::PresharedKey;

pub(crate) use message::{Hello, MARK, Request, Role, from_hex, texts, to_hex};
pub(crate) use near::FarEnd;
pub(crate) use warm::LibraryStart;

use crate::failure::{End, Failure};
use crate::stream::args::{Addresses, CommonArgs, RecvArgs, SendArgs};
use crate::stream::devices::{NetworkDevice, rails_to, shared_network};
use crate::stream::{is_own, local_address};

/// Where a machine without a way out is met.
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Bytes of a key for one time.
const KEY_LEN: usize = 32;

/// The bytes that both ends prove they have: those of the file that was named, or new ones for this
/// one time.
pub(crate) fn key_bytes(common: &CommonArgs) -> Result<Vec<u8>, Failure> {
    if let Some(path) = &common.key {
        return std::fs::read(path).map_err(|error| Failure::file(path, &error));
    }
    random_bytes(KEY_LEN)
}

/// So many bytes that nobody can guess, 256 at most.
pub(crate) fn random_bytes(len: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = vec![0; len];
    let flags = rustix::rand::GetRandomFlags::empty();
    match rustix::rand::getrandom(&mut bytes, flags) {
        Ok(got) if got == len => Ok(bytes),
        _ => Err(Failure::new("the system has no random numbers for a key")),
    }
}

pub(crate) fn key(bytes: &[u8]) -> Result<PresharedKey, Failure> {
    PresharedKey::from_bytes(bytes).map_err(Failure::of)
}

/// The arguments of a far end's `recv`, or of this end's.
fn recv_args(common: &CommonArgs, dir: &str) -> Vec<String> {
    let mut args = vec![
        format!("--dir={dir}"),
        format!("--block={}", common.block),
        format!("--timeout={}", common.timeout),
        format!("--provider={}", common.provider),
    ];
    args.extend(common.numbers());
    if common.rdm {
        args.push("--rdm".to_owned());
    }
    args
}

#[derive(Debug, Parser)]
#[command(name = "recv")]
struct RecvLine {
    #[command(flatten)]
    args: RecvArgs,
}

/// What a far end's `recv` is told. Both ends are of whoever gave the command, and so are all
/// links.
pub(crate) fn far_recv(common: &CommonArgs, dir: &str) -> Vec<String> {
    let mut args = recv_args(common, dir);
    args.push("--any-links".to_owned());
    args
}

/// What this end's `recv` is told when another command starts it.
pub(crate) fn near_recv(common: &CommonArgs, dir: &Path) -> Result<RecvArgs, Failure> {
    let words = std::iter::once("recv".to_owned()).chain(recv_args(common, "."));
    let mut args = RecvLine::try_parse_from(words).map_err(Failure::of)?.args;
    dir.clone_into(&mut args.dir);
    Ok(args)
}

/// Makes a directory that files go to: the last part of its path may be missing, as it may for
/// rsync.
pub(crate) fn make_directory(dir: &Path) -> Result<(), Failure> {
    match std::fs::create_dir(dir) {
        Ok(()) => Ok(()),
        Err(_) if dir.is_dir() => Ok(()),
        Err(error) => Err(Failure::file(dir, &error).ends(End::Sink)),
    }
}

/// Where a receiver listens, port and all left to the system: at the addresses from which it
/// reaches those of the other end, else where the shell's connection came in.
pub(crate) fn meeting_places(
    common: &CommonArgs,
    meet: &[IpAddr],
    came_in: Option<IpAddr>,
) -> Result<Vec<PeerAddr>, Failure> {
    let row = fabricast::fabric::provider(&common.provider);
    if row.is_some_and(|row| row.names.is_some()) {
        return Ok(vec![PeerAddr::any()]);
    }
    let ips = match meet {
        [] => vec![listening_ip(came_in)],
        meet => {
            let towards = |ip: &IpAddr| local_address(SocketAddr::new(*ip, 9));
            meet.iter().map(towards).collect::<Result<_, _>>()?
        }
    };
    Ok(ips
        .into_iter()
        .map(|ip| SocketAddr::new(ip, 0).into())
        .collect())
}

/// Where a far end listens that was told no address to meet: where the shell's connection came in,
/// unless something on the way has put that there; else at loopback.
pub(crate) fn listening_ip(came_in: Option<IpAddr>) -> IpAddr {
    came_in.filter(|ip| is_own(*ip)).unwrap_or(LOOPBACK)
}

/// An address of this machine that a peer may reach, whose devices may be known: where packets to
/// everywhere go, or in a machine without such a way, where it is in one network with the peer;
/// else loopback.
pub(crate) fn way_out(peer: &[NetworkDevice]) -> IpAddr {
    // No packet is sent. These addresses are of nobody (RFC 5737, RFC 3849).
    let others: [SocketAddr; 2] = [
        ([192, 0, 2, 1], 9).into(),
        ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 9).into(),
    ];
    let found = others
        .into_iter()
        .find_map(|other| local_address(other).ok());
    found.or_else(|| shared_network(peer)).unwrap_or(LOOPBACK)
}

/// The addresses of this machine that rails to one with these devices begin at: those that were
/// asked for, or if nothing was said of rails, those that pay; none, if there is one way alone.
/// `usual`: the one that is taken then.
pub(crate) fn rails(
    args: &SendArgs,
    devices: &[NetworkDevice],
    usual: Option<IpAddr>,
) -> Vec<IpAddr> {
    match args.far.chooses_rails() {
        true => rails_to(&args.common, devices, usual),
        false => args.far.rails(),
    }
}

/// The addresses in what a far end says of itself.
pub(crate) fn addresses(name: &str, texts: &[String]) -> Result<Addresses, Failure> {
    let parsed = texts.iter().map(|text| text.parse::<PeerAddr>());
    match parsed.collect::<Result<Vec<_>, _>>() {
        Ok(addrs) => Ok(Addresses(addrs)),
        Err(error) => Err(Failure::new(format!("{name}: {error}"))),
    }
}
