//! Objects by RDMA token, from the command line: a thin client of `fabricast::object`.
//!
//! ```text
//!   object serve ── FileStore ── ObjectService ◄══ RDMA ══╗
//!   object put, get ── RemoteObjects ── ObjectMemory ═════╝
//! ```

mod args;
mod client;
mod demo;
#[path = "../../crates/fabricast-cli/src/failure.rs"]
#[allow(dead_code, reason = "shared with the command, which uses more of it")]
mod failure;
#[path = "../../crates/fabricast-cli/src/parent.rs"]
mod parent;
mod report;
#[path = "../../crates/fabricast-cli/src/say.rs"]
mod say;
mod serve;
#[path = "../../benches/bench/size.rs"]
mod size;
mod transfer;

use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use fabricast::fabric::EndpointKind;
use fabricast::{Fabric, PeerAddr};

use args::{Cli, Command, CommonArgs};
use failure::Failure;
use say::say;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Put(args) => transfer::put(&args),
        Command::Get(args) => transfer::get(&args),
        Command::Head(args) => client::head(&args),
        Command::List(args) => client::list(&args),
        Command::Delete(args) => client::delete(&args),
        Command::Demo(args) => demo::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("object: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// The fabric of the network interface that has this address; without one, of the first that the
/// provider has.
fn open_fabric(common: &CommonArgs, local: Option<IpAddr>) -> Result<Arc<Fabric>, Failure> {
    let open = |provider: &str| {
        let builder = Fabric::builder()
            .provider(provider)
            .endpoint_kind(EndpointKind::Rdm);
        match local {
            Some(local) => builder.node(local.to_string()).open(),
            None => builder.open(),
        }
    };
    match &common.provider {
        Some(provider) => Ok(open(provider)?),
        None => Ok(open("tcp").or_else(|_| open("net"))?),
    }
}

/// The local address that a server is reached from: loopback for one of this machine.
fn local_for(server: &PeerAddr) -> Option<IpAddr> {
    let server = server.socket_addr()?.ip();
    if server.is_loopback() {
        return Some(server);
    }
    // Which address the system takes to go there; nothing is sent.
    let any: IpAddr = match server {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = std::net::UdpSocket::bind((any, 0)).ok()?;
    socket.connect((server, 9)).ok()?;
    socket.local_addr().ok().map(|local| local.ip())
}
