//! Streams files and directories to one receiver or many: a thin client of `fabricast::stream`.
//!
//! ```text
//!   stream send ── FileSource ── StreamSender ══ libfabric ══╗
//!   stream recv ── DirectorySink ── StreamReceiver ◄═════════╝
//! ```

mod args;
mod demo;
mod failure;
mod parent;
mod recv;
mod report;
mod say;
mod send;

use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use fabricast::buffer::DeviceBufferManager;
use fabricast::fabric::EndpointKind;
use fabricast::{Domain, Fabric, Region};

use args::{Cli, Command, CommonArgs};
use failure::Failure;
use parent::end_with_parent;
use say::say;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Recv(args) => end_with_parent(args.child).and_then(|()| recv::run(&args)),
        Command::Send(args) => end_with_parent(args.child).and_then(|()| send::run(&args)),
        Command::Demo(args) => demo::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("stream: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Buffers in a GPU's memory for so many threads, where blocks are to pass it.
fn device_buffers(
    common: &CommonArgs,
    threads: u32,
) -> Result<Option<DeviceBufferManager>, Failure> {
    let Some(ordinal) = common.gpu else {
        return Ok(None);
    };
    let block = common.block as usize;
    let bytes = threads as usize * block.next_multiple_of(256);
    let region = Region::device(bytes).device(ordinal).build();
    let pool = region.and_then(|region| DeviceBufferManager::new(region, block));
    pool.map(Some)
        .map_err(|error| Failure::new(format!("--gpu: {error}")))
}

/// The domain of the network interface that has this address; without one (shm, efa, cxi: addresses
/// of the provider's own), of the first that the provider has.
fn open_domain(common: &CommonArgs, local: Option<IpAddr>) -> Result<Arc<Domain>, Failure> {
    let kind = match common.rdm {
        true => EndpointKind::Rdm,
        false => EndpointKind::Msg,
    };
    let mut builder = Fabric::builder()
        .provider(&common.provider)
        .endpoint_kind(kind);
    if let Some(local) = local {
        builder = builder.node(local.to_string());
    }
    Ok(builder.open()?.open_domain()?)
}
