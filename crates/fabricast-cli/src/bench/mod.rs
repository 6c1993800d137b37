//! What messages cost between two processes, beside a bare loop over libfabric.

pub(crate) mod report;

use clap::Subcommand;

use crate::failure::Failure;

/// The commands below `fabricast bench`.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Show what a bench has measured, or what differs between two
    Report(report::ReportArgs),
}

pub(crate) fn run(command: &BenchCommand) -> Result<(), Failure> {
    match command {
        BenchCommand::Report(args) => report::run(args),
    }
}
