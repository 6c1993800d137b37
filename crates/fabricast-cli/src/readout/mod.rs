//! A small readout with event building: what a data acquisition embeds.
//!
//! ```text
//!   readout process                                              builder processes
//!   ┌ detector 0 ┐   ┌ sender ───────────────────┐               ┌ builder 0 ──────────────┐
//!   │ RingRegion─┼──►│ by event number           │               │ ReceiveEndpoint ► event │
//!   └─────▲──────┘   │   ├ SendEndpointZeroCopy ═╪═ fragments ══►│   check, release        │
//!   ┌ detector 1 ┐   │   └ SendEndpointZeroCopy ═╪══════════╗    └───────────┬─────────────┘
//!   │ RingRegion─┼──►│                           │          ║    ┌ builder 1 ─┼────────────┐
//!   └─────▲──────┘   │ ReceiveEndpoint ◄═ built ═╪══════════╬════╪════════════╝            │
//!         └── memory freed, in any order ─────────┘          ╚═══►│ ...                     │
//!                                                                └─────────────────────────┘
//! ```
//!
//! Every detector has a fragment for each event. Event n belongs to builder n modulo their number,
//! as long as that one lives; the fragments go out from the ring where they were filled, each
//! behind a header of 40 bytes, as far as the builder has granted. The builder keeps the messages
//! as they came until the event is complete, checks them, drops them, and answers. An answer frees
//! the event at the readout; with `--policy drop` its memory was freed before, as soon as it was
//! sent.
//!
//! A builder that is lost is noticed by its endpoint's `Disconnected`, behind the outcome of every
//! send: what was not answered for is then sent to another builder, or counted as lost. At the end
//! both sides compare what they counted.

mod allocations;
mod answers;
pub(crate) mod args;
mod assembler;
mod assembly;
mod builder;
mod clock;
mod counts;
mod demo;
mod detector;
mod events;
mod intake;
mod json;
mod link;
mod links;
mod listening;
mod numbers;
mod pattern;
mod places;
mod progress;
mod report;
mod size;
mod source;
mod summary;
#[cfg(feature = "charts")]
mod timeline;
mod trigger;
mod upstream;
mod usage;
mod wire;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fabricast::endpoint::HeaderMode;
use fabricast::event_loop::{EventLoop, LoopConfig, WaitMode};
use fabricast::{Domain, Fabric, PeerAddr};

use crate::failure::Failure;
use crate::parent::end_with_parent;
use crate::say::say;
use args::Command;
use report::Report;

/// How both sides tell headers from fragments: each message begins with one.
const HEADER_MODE: HeaderMode = HeaderMode::Fixed(wire::HEADER_LEN as u16);

/// Runs one of the readout's commands.
pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Demo(args) => {
            args.validate()?;
            let json = args.common.json;
            conclude(&demo::run(args)?, json)
        }
        Command::Source(args) => {
            args.validate()?;
            let _metrics = args.metrics.start()?;
            conclude(&source::run(&args, None)?, args.common.json)
        }
        Command::Builder(args) => {
            args.validate()?;
            end_with_parent(args.child)?;
            let _metrics = args.metrics.start()?;
            builder::run(&args)
        }
    }
}

/// Prints what a run came to; it failed if something does not add up.
fn conclude(report: &Report, json: bool) -> Result<(), Failure> {
    if json {
        say(report.json());
    } else {
        say(report);
    }
    let problems = report.problems();
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Failure::new(problems.join("; ")))
    }
}

/// The domain of the network interface that has this address.
fn open_domain(provider: &str, local: IpAddr) -> Result<Arc<Domain>, Failure> {
    let fabric = Fabric::builder()
        .provider(provider)
        .node(local.to_string())
        .open()?;
    Ok(fabric.open_domain()?)
}

/// A loop that looks around for a moment before it sleeps, or never sleeps.
fn new_loop(spin: bool) -> Result<EventLoop, Failure> {
    let window = Duration::from_micros(50);
    let mode = if spin {
        WaitMode::Spin
    } else {
        WaitMode::Adaptive { window }
    };
    Ok(EventLoop::with(LoopConfig::default().mode(mode))?)
}

/// An address as this program's own messages carry it.
fn socket_addr(addr: &PeerAddr) -> Result<SocketAddr, Failure> {
    addr.socket_addr()
        .ok_or_else(|| Failure::new(format!("{addr}: want an IP address and a port")))
}
