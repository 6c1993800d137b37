//! Streams files from one process to another: the main job of this library, from end to end.
//!
//! ```text
//!   sender process                                             receiver process
//!   ┌ reader thread ┐   ┌ network thread ─────────┐            ┌ network thread ┐   ┌ writer thread ┐
//!   │ file ─pread─► │   │                         │            │                │   │ ─pwrite─► file│
//!   │   Buffer ─────┼──►│ SendEndpointZeroCopy ═══╪═ blocks ══►│ReceiveEndpoint─┼──►│ Message       │
//!   │   CRC32C      │   │ ReceiveEndpoint ◄═══════╪═ replies ══╡ SendEndpoint.. │   │ CRC32C        │
//!   └──────▲────────┘   └────────┬────────────────┘            └───────▲────────┘   └──────┬────────┘
//!          └─ buffer comes back ─┘                                     └── message dropped ┘
//! ```
//!
//! Two pools of registered buffers are the only windows: a reader that is ahead waits for a buffer, a receiver whose disk
//! is slow grants no more messages. Nothing in between queues without a bound, and nothing spins while it waits.

mod args;
mod demo;
mod failure;
mod receiver;
mod report;
mod sender;
mod source;
mod target;
mod wire;
mod writer;

use std::fmt;
use std::io::Write;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use fabricast::endpoint::HeaderMode;
use fabricast::event_loop::{EventLoop, LoopConfig, WaitMode};
use fabricast::{Domain, Fabric};

use args::{Cli, Command};
use failure::Failure;

/// How both sides tell headers from blocks: each message begins with one.
const HEADER_MODE: HeaderMode = HeaderMode::Fixed(wire::HEADER_LEN as u16);

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Recv(args) => end_with_parent(args.child).and_then(|()| receiver::run(&args)),
        Command::Send(args) => end_with_parent(args.child).and_then(|()| sender::run(args)),
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

/// A line on stdout. That nobody reads it is no reason to stop.
fn say(line: impl fmt::Display) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The demo's children end with it, even when it is killed.
fn end_with_parent(child: bool) -> Result<(), Failure> {
    if child {
        let signal = Some(rustix::process::Signal::KILL);
        rustix::process::set_parent_process_death_signal(signal)
            .map_err(|error| Failure::new(format!("prctl: {error}")))?;
    }
    Ok(())
}

/// The domain of the network interface that has this address.
fn open_domain(provider: &str, local: IpAddr) -> Result<Arc<Domain>, Failure> {
    let fabric = Fabric::builder()
        .provider(provider)
        .node(local.to_string())
        .open()?;
    Ok(fabric.open_domain()?)
}

/// A loop that looks around for a moment before it sleeps: while blocks are flowing, the next one is never far.
fn new_loop() -> Result<EventLoop, Failure> {
    let window = Duration::from_micros(50);
    let config = LoopConfig::default().mode(WaitMode::Adaptive { window });
    Ok(EventLoop::with(config)?)
}
