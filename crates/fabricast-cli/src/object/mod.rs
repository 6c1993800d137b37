//! Objects by RDMA token: `serve`, `get`, `put`, `ls`, `rm`, over `fabricast::object`.
//!
//! ```text
//!   fabricast serve ── FileStore ── ObjectService ◄══ RDMA ══╗
//!   fabricast get, put ── RemoteObjects ── ObjectMemory ═════╝
//! ```

pub(crate) mod args;
mod client;
mod listing;
mod partial;
mod put;
mod report;
mod serve;
mod transfer;
mod upload_state;
mod url;

use std::net::IpAddr;
use std::sync::Arc;

use fabricast::Fabric;
use fabricast::fabric::EndpointKind;

use crate::failure::{End, Failure};
use args::CommonArgs;

/// A command of this family.
pub(crate) enum ObjectCommand<'a> {
    Serve(&'a args::ServeArgs),
    Get(&'a args::GetArgs),
    Put(&'a args::PutArgs),
    Ls(&'a args::LsArgs),
    Rm(&'a args::RmArgs),
}

pub(crate) fn run(command: &ObjectCommand<'_>) -> Result<(), Failure> {
    let (common, result) = match command {
        ObjectCommand::Serve(args) => (&args.common, serve::run(args)),
        ObjectCommand::Get(args) => (&args.client.common, transfer::get(args)),
        ObjectCommand::Put(args) => (&args.client.common, put::put(args)),
        ObjectCommand::Ls(args) => (&args.client.common, listing::ls(args)),
        ObjectCommand::Rm(args) => (&args.client.common, listing::rm(args)),
    };
    report::ended(common.json, result)
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
    let opened = match &common.provider {
        Some(provider) => open(provider),
        // libfabric 1.x has endpoints without connections over TCP by the name net.
        None => open("tcp").or_else(|_| open("net")),
    };
    opened.map_err(|error| Failure::from(error).ends(End::Refused))
}
