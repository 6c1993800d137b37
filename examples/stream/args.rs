//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use fabricast::PeerAddr;

/// Streams files from one process to another over libfabric, without a copy of its own.
#[derive(Debug, Parser)]
#[command(name = "stream", after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "Examples:
  stream demo                                         two processes, a file of 1 GiB, checksums compared
  stream recv --listen 10.0.0.2:7471 --dir /data      on one machine
  stream send run1.h5 run2.h5 --to 10.0.0.2:7471      on another

The receiver connects back to the sender to answer, to a port that the system chooses.
A file gets its name only when it is whole and its CRC32C is right; it replaces a file of the same name.
Exit code: 0 when every file has arrived, 1 when one has not (one line on stderr says why), 2 for a wrong command line.
FABRICAST_LIBFABRIC=/path/to/libfabric.so.1 chooses the libfabric to use.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Listen, and write the files that arrive
    Recv(RecvArgs),
    /// Send files to a receiver
    Send(SendArgs),
    /// Start a receiver and a sender on this machine, stream a file, and compare checksums
    Demo(DemoArgs),
}

/// What both sides can choose.
#[derive(Debug, Clone, Args)]
pub(crate) struct CommonArgs {
    /// Bytes of a block, such as 65536, 256K or 4M: 4K to 256M. The sender takes the smaller of both sides'
    #[arg(long, default_value = "1M", value_parser = parse_block)]
    pub(crate) block: usize,
    /// Blocks on their way at most; they take `block` times as much memory
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=4096))]
    pub(crate) buffers: u32,
    /// Give up when nothing has moved for so many seconds
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub(crate) timeout: u64,
    /// libfabric provider
    #[arg(long, default_value = "tcp")]
    pub(crate) provider: String,
}

impl CommonArgs {
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

#[derive(Debug, Args)]
pub(crate) struct RecvArgs {
    /// Address of this machine to listen at; port 0 lets the system choose, and the first line of output says which
    #[arg(long, default_value = "127.0.0.1:7471", value_name = "ADDR")]
    pub(crate) listen: PeerAddr,
    /// Directory that files are written to
    #[arg(long, default_value = ".")]
    pub(crate) dir: PathBuf,
    /// End after one sender; the exit code says whether all its files arrived
    #[arg(long)]
    pub(crate) once: bool,
    /// Senders at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) peers: u32,
    /// Bytes of the largest file to take, such as 10G
    #[arg(long, default_value = "16384G", value_parser = parse_size)]
    pub(crate) max_size: u64,
    /// Write each file through to the disk before it gets its name
    #[arg(long)]
    pub(crate) sync: bool,
    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    pub(crate) child: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    /// Files to send, under the last part of their paths
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Where the receiver listens
    #[arg(long, value_name = "ADDR")]
    pub(crate) to: PeerAddr,
    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    pub(crate) child: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// File to stream; without it, one is made
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Bytes of the file that is made
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    pub(crate) size: u64,
    /// Directory for the temporary one that the files lie in; default: the system's
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// A number of bytes, with K, M or G for powers of 1024.
fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "want a number of bytes, with K, M or G behind it or nothing".to_owned())?;
    number
        .checked_mul(unit)
        .ok_or_else(|| "too large".to_owned())
}

fn parse_block(text: &str) -> Result<usize, String> {
    match parse_size(text)? {
        bytes @ 0x1000..=0x1000_0000 => Ok(bytes as usize),
        _ => Err("must be 4K to 256M".to_owned()),
    }
}
