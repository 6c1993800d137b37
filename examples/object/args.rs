//! The command line.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use fabricast::PeerAddr;

/// Serves a directory of objects, and puts, gets, lists and deletes them from another process: the
/// bytes go by RDMA, by token.
#[derive(Debug, Parser)]
#[command(name = "object", after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "Examples:
  object demo                                    a server and a client on this machine: put, list,
                                                 get, compare, delete
  object serve --listen 10.0.0.2:7472 --dir /data on one machine
  object put run1 run1.h5 --to 10.0.0.2:7472     on another
  object get run1 copy.h5 --to 10.0.0.2:7472 --gpu
                                                 into the memory of a GPU, and from there to a file
  object list --to 10.0.0.2:7472 --prefix run --json
Exit code: 0 when it was done, 1 when not (one line on stderr says why), 2 for a wrong command line.
FABRICAST_LIBFABRIC=/path/to/libfabric.so.1 chooses the libfabric to use.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a directory
    Serve(ServeArgs),
    /// Put a file as an object
    Put(PutArgs),
    /// Get an object into a file
    Get(GetArgs),
    /// Say what there is under a name
    Head(NameArgs),
    /// List objects
    List(ListArgs),
    /// Remove an object
    Delete(NameArgs),
    /// Start a server, put a file of so many bytes, list it, get it back, compare, and delete it
    Demo(DemoArgs),
}

/// What both sides can choose.
#[derive(Debug, Clone, Args)]
pub(crate) struct CommonArgs {
    /// libfabric provider, with endpoints without connections [default: tcp, or what libfabric 1.17
    /// calls it: net]
    #[arg(long)]
    pub(crate) provider: Option<String>,
    /// Print reports as JSON, one object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address of this machine to listen at; port 0 lets the system choose, and the first line of
    /// output says which. `any` for providers whose addresses are no IP addresses
    #[arg(long, default_value = "127.0.0.1:7472", value_name = "ADDR")]
    pub(crate) listen: PeerAddr,
    /// Directory of the objects; it is made where it is missing
    #[arg(long, default_value = ".")]
    pub(crate) dir: PathBuf,
    /// Threads that serve
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) workers: u32,
    /// Replace this file every second with what was counted so far, as Prometheus text
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// The demo's: end with the parent
    #[arg(long, hide = true)]
    pub(crate) child: bool,
}

/// What every client's command has.
#[derive(Debug, Clone, Args)]
pub(crate) struct ClientArgs {
    /// The server
    #[arg(long, value_name = "ADDR")]
    pub(crate) to: PeerAddr,
    /// Give up after so many seconds
    #[arg(
        long,
        default_value_t = 60,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=86400)
    )]
    pub(crate) timeout: u64,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Through which memory the bytes go.
#[derive(Debug, Clone, Args)]
pub(crate) struct MemoryArgs {
    /// Bytes of memory that a file goes through, such as 65536, 256K or 64M
    #[arg(long, default_value = "64M", value_parser = parse_bytes)]
    pub(crate) memory: usize,
    /// The memory of a GPU: of CUDA device N, or 0
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "0"
    )]
    pub(crate) gpu: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    /// Name of the object
    pub(crate) name: String,
    /// File to put; it has to fit the memory
    pub(crate) file: PathBuf,
    /// Only if there is no such object yet
    #[arg(long)]
    pub(crate) new: bool,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Name of the object
    pub(crate) name: String,
    /// File to write; it is replaced when all is there
    pub(crate) file: PathBuf,
    /// First byte of the object to get
    #[arg(long, default_value_t = 0)]
    pub(crate) offset: u64,
    /// How many bytes to get [default: all]
    #[arg(long)]
    pub(crate) length: Option<u64>,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// Name of the object
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only names that begin so
    #[arg(long, default_value = "")]
    pub(crate) prefix: String,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Bytes of the file that it makes
    #[arg(long, default_value = "64M", value_parser = parse_bytes)]
    pub(crate) bytes: usize,
    /// Address of this machine at which both meet [default: 127.0.0.1, or that of the provider's
    /// device]
    #[arg(long, value_name = "IP")]
    pub(crate) node: Option<IpAddr>,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// A number of bytes, at least 1.
fn parse_bytes(text: &str) -> Result<usize, String> {
    crate::size::parse(text)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "want a number of bytes, such as 65536, 256K or 64M".to_owned())
}
