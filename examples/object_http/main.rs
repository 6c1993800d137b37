//! Objects over HTTP: what S3 clients say, with the bytes by RDMA where a client has a token.
//!
//! ```text
//!  client ── GET /objects/name, x-amz-rdma-token: … ──► server ── store ── ObjectChannel
//!    ▲ 200, x-amz-rdma-reply: 200, no body ◄───────────────┘                    │
//!    └ window ◄══════════════════════ RMA write ═════════════════════════════════┘
//! ```
//!
//! Without a token, or with one that the server can't use, the bytes go in the body: `curl` and the
//! S3 clients that there are can put, get, list and delete. Not here: who may do what. Uploads in
//! parts (clients have a size from which on they make those), versions, copies, and bodies in
//! signed chunks are answered with 501, and so is what would be lost without a word: metadata of
//! users, tags, rights, encodings. Content-Type, Cache-Control, Content-Disposition,
//! Content-Language and Expires are taken and not kept. The checksums that a client sends are
//! compared.

mod checks;
mod client;
mod conditions;
mod connections;
mod dates;
mod list;
mod mover;
mod object_body;
mod pace;
mod pieces;
mod reply;
mod request;
#[path = "../../crates/fabricast-cli/src/say.rs"]
mod say;
mod server;
mod service;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};
use fabricast::Fabric;
use fabricast::fabric::EndpointKind;
use fabricast::object::ClientNetworks;
use say::say;

/// Whatever went wrong, told in one line.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Serves a directory as S3 does, and gets and puts by RDMA token.
///
/// Nobody is asked who they are: whoever reaches the port can read, write and delete all that is
/// served. Listen where only they can.
#[derive(Debug, Parser)]
#[command(name = "object_http", after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  object_http serve /data --listen 127.0.0.1:9000
  curl -T events.h5 http://127.0.0.1:9000/objects/runs/7
  curl -r 0-99 http://127.0.0.1:9000/objects/runs/7
  curl 'http://127.0.0.1:9000/objects?list-type=2&prefix=runs/'
  aws --endpoint-url http://127.0.0.1:9000 s3 ls s3://objects/runs/
  object_http get 127.0.0.1:9000 runs/7 copy.h5      by token: no byte of it is in a body
  object_http put 127.0.0.1:9000 copy.h5 runs/8";

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a directory
    Serve(ServeArgs),
    /// Get an object by token
    Get(GetArgs),
    /// Put a file by token
    Put(PutArgs),
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// The directory
    directory: PathBuf,
    /// Where to listen for HTTP; with port 0 the first line on stdout says which one it is
    #[arg(long, default_value = "127.0.0.1:9000")]
    listen: SocketAddr,
    /// What the directory is called as a bucket
    #[arg(long, default_value = "objects")]
    bucket: String,
    /// Seconds after which a client is given up that sends or reads less than 16 KiB in them
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    stall: u64,
    /// Networks that clients may be in whose memory tokens name, such as 10.0.0.0/8, with commas
    /// between them, or `any`: bytes go to and come from nowhere else [default: the address that
    /// asks]
    #[arg(
        long,
        value_name = "NETWORKS",
        default_value = "asker",
        hide_default_value = true
    )]
    clients: ClientNetworks,
    #[command(flatten)]
    rdma: RdmaArgs,
}

#[derive(Debug, Args)]
struct GetArgs {
    /// The server: address and port
    server: SocketAddr,
    /// The object
    name: String,
    /// The file to write
    file: PathBuf,
    #[command(flatten)]
    remote: RemoteArgs,
}

#[derive(Debug, Args)]
struct PutArgs {
    /// The server: address and port
    server: SocketAddr,
    /// The file to read
    file: PathBuf,
    /// The object
    name: String,
    #[command(flatten)]
    remote: RemoteArgs,
}

#[derive(Debug, Args)]
struct RemoteArgs {
    /// The bucket
    #[arg(long, default_value = "objects")]
    bucket: String,
    #[command(flatten)]
    rdma: RdmaArgs,
}

#[derive(Debug, Args)]
struct RdmaArgs {
    /// libfabric's provider
    #[arg(long, default_value = "tcp")]
    provider: String,
    /// The address of this machine that windows are reached at
    #[arg(long, default_value = "127.0.0.1")]
    node: String,
}

impl RdmaArgs {
    fn open(&self) -> Result<Arc<Fabric>, Failure> {
        let open = |provider: &str| {
            let builder = Fabric::builder().provider(provider).node(&*self.node);
            builder.endpoint_kind(EndpointKind::Rdm).open()
        };
        // What libfabric up to 1.17 calls `net` is `tcp` later.
        match open(&self.provider) {
            Err(_) if self.provider == "tcp" => Ok(open("net")?),
            opened => Ok(opened?),
        }
    }
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve(args) => server::run(&args),
        Command::Get(args) => client::get(&args),
        Command::Put(args) => client::put(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("object_http: {failure}");
            ExitCode::FAILURE
        }
    }
}
