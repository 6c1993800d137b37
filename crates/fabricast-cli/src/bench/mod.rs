//! `fabricast bench`: how fast messages, one-sided operations, objects and streams are between two
//! processes, here or on two machines, beside a bare loop over libfabric.
//!
//! ```text
//!   plan ── which cases        reach ── where the server is, and how it was started
//!      └──────────► measure ◄───────┘
//!                      │ fabricast-bench (pairs, team)      serve ── the other end
//!                      ├─► table, on the terminal
//!                      └─► output ── JSON lines, CSV ──► report ── text, charts, what has changed
//! ```

pub(crate) mod args;
mod failure;
mod measure;
mod output;
mod plan;
pub(crate) mod reach;
pub(crate) mod report;
pub(crate) mod serve;
mod table;

use args::{BenchArgs, BenchCommand};

use crate::failure::Failure;

/// Runs the command.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    match &args.command {
        Some(BenchCommand::Report(args)) => report::run(args),
        Some(BenchCommand::Client) => measure::work(),
        Some(BenchCommand::Server { told }) => serve::serve_client(*told),
        None if args.listen.is_some() => serve::listen(args),
        None => measure::run(args),
    }
}
