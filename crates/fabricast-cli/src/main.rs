//! The command `fabricast`: what the library does, from a shell. A thin client of it.

#[cfg(feature = "bench")]
mod bench;
mod doctor;
mod failure;
mod info;
mod interrupt;
mod metrics;
mod object;
#[cfg(feature = "pages")]
mod pages;
mod parent;
mod readout;
mod say;
mod stream;
mod sums;
mod top;
mod verify;

use std::process::ExitCode;

#[cfg(feature = "pages")]
use clap::CommandFactory;
use clap::{Parser, Subcommand};

use failure::{End, Failure};
use object::ObjectCommand;
use stream::args::{DemoArgs, RecvArgs, SendArgs};

/// Moves files and events between machines over libfabric.
#[derive(Debug, Parser)]
#[command(name = "fabricast", version, after_help = format!("{EXAMPLES}\n{}", notes()))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  fabricast demo                                 two processes, a file of 1 GiB, checksums compared
  fabricast send run1.h5 calibration/ host1:/data host2:/data
                                                 a file, and a directory with all files below it, to
                                                 two machines that ssh reaches, in one reading
  fabricast send host1:/data/run1.h5 .           the other way
  fabricast recv --listen 10.0.0.2:7471 --dir /data
                                                 on one machine
  fabricast send run1.h5 calibration/ --to 10.0.0.2:7471
                                                 on another
  fabricast send run1.h5 --to 10.0.0.2:7471 --to 10.0.0.3:7471 --slow catch-up
                                                 one reading, two receivers
  fabricast send run1.h5 --to 10.0.0.2:7471,10.1.0.2:7471
                                                 one receiver by two networks, each address a rail
  fabricast serve /data                          objects, on loopback unless --listen and --anyone
  fabricast put run1.h5 127.0.0.1:7472/runs/     and get, ls and rm
  fabricast demo --gpu                           file, GPU, network, GPU, file; --gpu=1 for the
                                                 second one

A stream that was cut goes on where it was when the same command is given again. Files get their
names only when all of the stream is whole and checked; they replace files of the same names.
Symbolic links in directories are sent as links (--links); FIFOs, sockets and devices are not sent:
stderr says which were skipped, and with --strict they are an error before anything is sent.";

const NOTES: &str = "\
What is sent goes as it is, and is not encrypted: whoever can read packets on the way reads it. A
key proves that both ends have it, and so who may send and receive. Far ends that are started over
ssh get one for this one time over ssh.
FABRICAST_LIBFABRIC=/path/to/libfabric.so.1 chooses the libfabric to use.";

fn notes() -> String {
    format!("{NOTES}\n{}", End::list())
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Listen, and write what arrives
    #[command(after_help = notes())]
    Recv(RecvArgs),
    /// Send files and directories to receivers, or fetch them
    #[command(after_help = notes())]
    Send(SendArgs),
    /// What `send` starts on other machines
    #[command(hide = true)]
    FarEnd,
    /// Serve the files below a directory as objects, whose bytes go by RDMA
    Serve(object::args::ServeArgs),
    /// Get an object, or all whose keys begin alike, into files
    Get(object::args::GetArgs),
    /// Put a file, or all below a directory, as objects
    Put(object::args::PutArgs),
    /// List objects
    Ls(object::args::LsArgs),
    /// Remove an object, or all whose keys begin alike
    Rm(object::args::RmArgs),
    /// Compare files with the hashes that `recv --sums` has written beside them
    Verify(verify::VerifyArgs),
    /// Start a receiver and a sender on this machine, stream a file, and compare checksums
    Demo(DemoArgs),
    /// A small readout and event building: detectors fill rings, builders get every fragment of an
    /// event
    #[command(subcommand, after_help = readout::args::EXAMPLES)]
    Readout(readout::args::Command),
    /// How fast messages and streams are between two processes, here or on two machines, beside a
    /// bare loop over libfabric
    #[cfg(feature = "bench")]
    #[command(after_help = format!("{}\n\n{}", bench::args::EXAMPLES, notes()))]
    Bench(bench::args::BenchArgs),
    /// What a process that serves its metrics does now: rates, in the terminal
    Top(top::TopArgs),
    /// What this machine has, and which way GPU memory takes over each network provider
    Info(info::InfoArgs),
    /// What this machine lacks, one line each, with what mends it; each provider is tried
    Doctor(doctor::DoctorArgs),
    /// Write the manual pages into a directory
    #[cfg(feature = "pages")]
    #[command(hide = true)]
    Man(pages::ManArgs),
    /// Print what a shell completes command lines with
    #[cfg(feature = "pages")]
    #[command(hide = true)]
    Completions(pages::CompletionsArgs),
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_told() {
                eprintln!("fabricast: {failure}");
            }
            failure.code()
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Recv(args) => {
            let _metrics = args.metrics.start()?;
            stream::recv::run(&args)
        }
        Command::Send(args) => {
            let _metrics = args.metrics.start()?;
            stream::send::run(&args)
        }
        Command::FarEnd => stream::far::end::run(),
        Command::Serve(args) => {
            let _metrics = args.metrics.start()?;
            object::run(&ObjectCommand::Serve(&args))
        }
        Command::Get(args) => object::run(&ObjectCommand::Get(&args)),
        Command::Put(args) => object::run(&ObjectCommand::Put(&args)),
        Command::Ls(args) => object::run(&ObjectCommand::Ls(&args)),
        Command::Rm(args) => object::run(&ObjectCommand::Rm(&args)),
        Command::Verify(args) => verify::run(&args),
        Command::Demo(args) => stream::demo::run(&args),
        Command::Readout(command) => readout::run(command),
        #[cfg(feature = "bench")]
        Command::Bench(args) => bench::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        #[cfg(feature = "pages")]
        Command::Man(args) => pages::man(Cli::command(), &args),
        #[cfg(feature = "pages")]
        Command::Completions(args) => pages::completions(&Cli::command(), &args),
        Command::Info(args) => info::run(&args),
    }
}
