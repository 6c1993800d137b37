//! How fast `fabricast` is, beside a bare loop over `libfabric-sys` in the same run: what the
//! command `fabricast bench` does not offer, over the same library (crates/fabricast-bench).
//!
//! ```text
//! bench pair --op send,pingpong --size 64,4K,64K,1M,16M [--netns reno] [--json]
//! bench pair --op rdm [--provider shm]   over FI_EP_RDM; default net on libfabric 1.17, tcp on 2.x
//! bench pair --op object-get,object-put,object-request,object-http [--provider shm]
//! bench pair --op publish [--subscribers 4]
//! bench pair --op send --size 4K --bare-pause 10   and beside a bare loop that reads less often
//! bench pair --op send,pingpong --through-c       the C interface beside the Rust one
//! bench pair --op coalesced --size 64,1K [--buffer 64K] [--flush-us 1000]
//! bench server, bench client ADDRESS     the two halves by hand, also on two machines
//! bench stalled --clients 8               what clients of objects cost that are stopped
//! bench fi-pingpong --size 64,64K        the bare loop beside libfabric's own fi_pingpong
//! ```
//!
//! See `benches/README.md` for what is printed.

mod c;
mod pingpong;
mod stalled;

use std::io::{BufRead, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command as Program, ExitCode, Stdio};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use fabricast_bench::case::{Case, Operation, SIZE_MAX, Side, Wait};
use fabricast_bench::child::Guard;
use fabricast_bench::control::Control;
use fabricast_bench::error::{Failure, fail};
use fabricast_bench::pairs::{self, Alone};
use fabricast_bench::report::Setting;
use fabricast_bench::server::Host;
use fabricast_bench::{has_provider, host, server, size};

/// How long a server waits for its client.
const PATIENCE: Duration = Duration::from_secs(120);

/// The speed of fabricast beside a bare loop over libfabric, in interleaved pairs of runs.
#[derive(Parser)]
#[command(name = "bench")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Starts a server on this machine and measures against it.
    Pair(Options),
    /// Waits for one client; prints `listening ADDRESS`.
    Server(Place),
    /// Measures against a server.
    Client {
        /// What the server printed.
        server: SocketAddr,
        #[command(flatten)]
        options: Options,
    },
    /// Compares the bare loop with `fi_pingpong` (Debian's libfabric-bin); sizes are of whole
    /// messages.
    FiPingpong(Options),
    /// What clients of objects cost a server that are stopped.
    Stalled(stalled::Options),
    /// Such a client.
    #[command(hide = true)]
    StalledClient(stalled::ClientOptions),
}

#[derive(Args)]
struct Place {
    /// The local IPv4 address to use.
    #[arg(long, default_value = "127.0.0.1")]
    node: String,
    /// Leave it to the kernel on which core each process runs (else: client on core 0, server on
    /// core 1).
    #[arg(long)]
    no_pin: bool,
}

#[derive(Args)]
struct Options {
    #[command(flatten)]
    place: Place,
    /// Operations.
    #[arg(long, value_delimiter = ',', default_value = "send,pingpong")]
    op: Vec<Operation>,
    /// Payload sizes in bytes, with K, M or G for powers of 1024. Default: 64,4K,64K,1M,16M for
    /// send, 64 for pingpong, 64,1K for coalesced.
    #[arg(long, value_delimiter = ',', value_parser = parse_size)]
    size: Vec<usize>,
    /// Messages in flight; the receiver has 16 MiB of receives posted, at least twice as many, at
    /// most 256 or twice as many.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=4096))]
    depth: u16,
    /// How long each run is timed, after a warm-up.
    #[arg(long, default_value_t = 1.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Pairs of runs for each case.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..=1000))]
    runs: u16,
    /// libfabric provider. Default: tcp; for rdm, net where there is one.
    #[arg(long)]
    provider: Option<String>,
    /// Run in a network namespace of its own with this TCP congestion control (such as reno), where
    /// that may be made.
    #[arg(long, value_name = "CONGESTION")]
    netns: Option<String>,
    /// For coalesced: bytes of a buffer that small messages are packed in.
    #[arg(long, default_value = "64K", value_parser = parse_size)]
    buffer: usize,
    /// For coalesced: how long a message waits for others, in microseconds.
    #[arg(
        long,
        default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000)
    )]
    flush_us: u64,
    /// For send, rdm and publish: the library packs messages of up to so many bytes (header
    /// included), 0 for none. Default: as many as it does without a setting.
    #[arg(long)]
    pack: Option<usize>,
    /// For send and publish: the library has the kernel gather nothing (its setting `gather`).
    #[arg(long)]
    no_gather: bool,
    /// For publish: subscribers, all in the server's process.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    subscribers: u8,
    /// One JSON object a line and case, instead of a table.
    #[arg(long)]
    json: bool,
    /// What the queues of both loops could be waited for by, though both spin.
    #[arg(long, default_value = "none")]
    wait: Wait,
    /// Connections of the bare ping-pong: 1 carries both ways, 2 carry one each, as the library's
    /// do.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    bare_connections: u8,
    /// For send, rdm and publish: run the bare loop a second time in each pair, with a receiver
    /// that leaves its queue alone for so many microseconds after each read of it.
    #[arg(
        long,
        value_name = "MICROSECONDS",
        default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(0..=10_000)
    )]
    bare_pause: u64,
    /// Compare the C interface (called "ours" in the table) with the Rust one ("bare"): send, rdm,
    /// pingpong, coalesced and rma-write.
    #[arg(long)]
    through_c: bool,
    /// Run one side only, for a profiler: no ratio.
    #[arg(long)]
    only: Option<Side>,
}

fn parse_size(text: &str) -> Result<usize, String> {
    let size = size::parse(text);
    size.filter(|size| (1..=SIZE_MAX).contains(size))
        .ok_or_else(|| "a number of bytes from 1 to 512M".to_owned())
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok();
    seconds
        .filter(|seconds| (0.01..=600.0).contains(seconds))
        .ok_or_else(|| "a number of seconds from 0.01 to 600".to_owned())
}

impl Options {
    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &operation in &self.op {
            let default: &[usize] = match operation {
                Operation::Send => &[64, 4 << 10, 64 << 10, 1 << 20, 16 << 20],
                Operation::Pingpong => &[64],
                Operation::RmaWrite | Operation::RmaRead | Operation::Rdm | Operation::Publish => {
                    &[4 << 10, 64 << 10, 1 << 20]
                }
                Operation::ObjectGet | Operation::ObjectPut => &[4 << 10, 1 << 20, 16 << 20],
                Operation::ObjectRequest | Operation::ObjectHttp => &[4 << 10, 1 << 20],
                Operation::Coalesced => &[64, 1 << 10],
                Operation::Stream | Operation::Latency => &[1 << 20],
            };
            let sizes = if self.size.is_empty() {
                default
            } else {
                &self.size
            };
            cases.extend(sizes.iter().map(|&size| self.case(operation, size)));
        }
        cases
    }

    fn case(&self, operation: Operation, size: usize) -> Case {
        let mut case = self.case_of("net", operation, size);
        // libfabric 1.17 has RDM over TCP as a provider of its own.
        let is_rdm = operation == Operation::Rdm || operation.is_object();
        let has_net = is_rdm && has_provider(&case);
        case.provider = match &self.provider {
            Some(provider) => provider.clone(),
            None if has_net => case.provider,
            None => "tcp".to_owned(),
        };
        if operation.is_object() && !operation.is_by_token() {
            // One after the other.
            case.depth = 1;
        }
        case.pack = case.packed(self.pack);
        case
    }

    fn case_of(&self, provider: &str, operation: Operation, size: usize) -> Case {
        Case {
            operation,
            size,
            depth: self.depth.into(),
            seconds: self.seconds,
            provider: provider.to_owned(),
            node: self.place.node.clone(),
            wait: self.wait,
            bare_connections: self.bare_connections,
            bare_pause_us: self.bare_pause,
            buffer: self.buffer,
            flush_us: self.flush_us,
            pack: 0,
            gather: !self.no_gather,
            subscribers: self.subscribers,
            rate: 0,
            one_way: true,
            gpu: None,
            begin: None,
        }
    }

    /// The baseline, and what is compared with it.
    fn sides(&self) -> [Side; 2] {
        match self.through_c {
            true => [Side::Ours, Side::C],
            false => [Side::Bare, Side::Ours],
        }
    }

    /// Pins this process, if it is to be.
    fn pin(&self, core: usize) -> Result<bool, Failure> {
        let pins = self.place.pins();
        if pins {
            host::pin(core)?;
        }
        Ok(pins)
    }

    /// Enters the namespace, if one is asked for and may be made.
    fn enter_namespace(&self) {
        enter_namespace(self.netns.as_deref());
    }
}

fn enter_namespace(congestion: Option<&str>) {
    if let Some(congestion) = congestion
        && let Err(error) = host::enter_namespace(congestion)
    {
        eprintln!(
            "SKIPPED: the namespace with {congestion} ({error}); the congestion control in force \
             is {}",
            host::congestion()
        );
    }
}

impl Place {
    fn pins(&self) -> bool {
        !self.no_pin && host::cores() >= 2
    }
}

/// Runs all cases against a server.
fn measure(options: &Options, server: SocketAddr, pinned: bool) -> Result<(), Failure> {
    let cases = options.cases();
    for case in &cases {
        case.check()?;
        if !case.operation.has_bare() {
            let name = case.operation.name();
            return fail(format!("{name} is an operation of fabricast bench"));
        }
    }
    let mut control = connect(server)?;
    let mut last: Option<Setting> = None;
    for case in &cases {
        let setting = Setting::of(case, options.json)?;
        if last.as_ref() != Some(&setting) {
            setting.print_head(pinned);
        }
        let setting = last.insert(setting);
        let sides = options.sides();
        let mut alone = Alone {
            control: &mut control,
            through: Some(c::THROUGH),
        };
        let outcome = pairs::run(&mut alone, case, options.runs.into(), sides, options.only)?;
        setting.print(case, &outcome);
    }
    Ok(())
}

fn connect(server: SocketAddr) -> Result<Control, Failure> {
    let mut control = Control::connect(server)?;
    control.trust();
    Ok(control)
}

/// Serves one client. Says on standard output where it listens.
fn serve(node: &str) -> Result<(), Failure> {
    let listener = TcpListener::bind((node, 0))?;
    println!("listening {}", listener.local_addr()?);
    std::io::stdout().flush()?;
    let mut control = Control::accept(&listener, PATIENCE)?;
    control.trust();
    let host = Host {
        node,
        through: Some(c::THROUGH),
    };
    server::serve(&mut control, host)
}

/// Starts our own server; where it listens.
fn start_server(node: &str, pin: bool) -> Result<(Guard, SocketAddr), Failure> {
    let mut command = Program::new(std::env::current_exe()?);
    command
        .args(["server", "--node", node])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    if !pin {
        command.arg("--no-pin");
    }
    let mut guard = Guard::start(&mut command, pin.then_some(1))?;
    let mut line = String::new();
    guard.lines()?.read_line(&mut line)?;
    match line.trim_end().strip_prefix("listening ") {
        Some(addr) => Ok((guard, addr.parse()?)),
        None => fail("the server did not start"),
    }
}

fn pair(options: &Options) -> Result<(), Failure> {
    options.enter_namespace();
    // Before we are pinned: a child inherits that.
    let pins = options.place.pins();
    let (mut guard, server) = start_server(&options.place.node, pins)?;
    options.pin(0)?;
    measure(options, server, pins)?;
    guard.wait(Duration::from_secs(10))?;
    Ok(())
}

fn fi_pingpong(options: &Options) -> Result<(), Failure> {
    options.enter_namespace();
    let pins = options.place.pins();
    let (mut guard, server) = start_server(&options.place.node, pins)?;
    options.pin(0)?;
    if let Some(congestion) = host::congestion_over(&options.case(Operation::Pingpong, 64).provider)
    {
        println!("congestion control {congestion}");
    }
    let mut control = connect(server)?;
    let sizes = if options.size.is_empty() {
        &[64][..]
    } else {
        &options.size
    };
    for &size in sizes {
        let case = options.case(Operation::Pingpong, size);
        pingpong::compare(&mut control, &case, options.runs.into(), pins)?;
    }
    drop(control);
    guard.wait(Duration::from_secs(10))?;
    Ok(())
}

fn run(cli: &Cli) -> Result<(), Failure> {
    match &cli.command {
        Command::Pair(options) => pair(options),
        Command::FiPingpong(options) => fi_pingpong(options),
        Command::Stalled(options) => stalled::run(options),
        Command::StalledClient(options) => stalled::lend(options),
        Command::Client { server, options } => {
            let pinned = options.pin(0)?;
            measure(options, *server, pinned)
        }
        Command::Server(place) => {
            if place.pins() {
                host::pin(1)?;
            }
            serve(&place.node)
        }
    }
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("bench: {failure}");
            ExitCode::FAILURE
        }
    }
}
