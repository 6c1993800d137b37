//! The command line of `bench`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use fabricast_bench::case::{Operation, RATE_MAX, SIZE_MAX};

use crate::failure::{End, Failure};

/// The port where nobody asks for one.
pub(crate) const PORT: u16 = 7473;

pub(crate) const EXAMPLES: &str = "Examples:
  fabricast bench --local                        two processes on this machine, a short tour
  fabricast bench host1                          this machine and one that ssh reaches
  fabricast bench host1 --op send --size 8..64M --json host1.jsonl
                                                 one operation, from 8 bytes to 64 MiB by powers
                                                 of 4, with everything written to a file
  fabricast bench --print host1                  the two lines to paste where there is no ssh
  fabricast bench --local --op latency --rate 1000,100000
                                                 messages that are due at a fixed rate
  srun -N2 -n2 fabricast bench --slurm /shared   the two tasks of a step of Slurm

Each case is run in pairs, once by the library and once by a bare loop over libfabric, in an order
by chance: figures stand as `ours (bare loop)`, and the ratio is the median of the pairs' with its
95 % interval. Objects, streams and readouts have more to them than one operation: event building
is measured by `fabricast readout demo`.

The server of --listen and of --to talks by TCP, whatever provider is measured; the connections
that are measured take ports that the system chooses. Nothing is encrypted. A key proves who may
have something measured; who can reach the ports that are measured can disturb a measurement.";

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Op {
    /// Messages one way, each by itself
    Send,
    /// Small messages one way, packed several to a frame
    Packed,
    /// One message to and fro at a time
    Pingpong,
    /// Messages that are due at a fixed rate (--rate): how old each is when it is there. No bare
    /// loop
    Latency,
    /// Small messages packed in buffers; beside it, a plain loop over a TCP socket
    Coalesced,
    /// One-sided writes, each confirmed by the provider
    RmaWrite,
    /// One-sided reads
    RmaRead,
    /// One payload to --subscribers
    Publish,
    /// As `send`, over endpoints without connections (FI_EP_RDM)
    Rdm,
    /// A stream from memory to a receiver that drops it, in blocks of --size. No bare loop
    Stream,
    /// Objects by a token that stands, written to the other machine
    ObjectGet,
    /// The same, read from there
    ObjectPut,
    /// One object at a time, each with a request, a token and an answer
    ObjectRequest,
}

impl Op {
    pub(crate) fn operation(self) -> Operation {
        match self {
            Self::Send | Self::Packed => Operation::Send,
            Self::Pingpong => Operation::Pingpong,
            Self::Latency => Operation::Latency,
            Self::Coalesced => Operation::Coalesced,
            Self::RmaWrite => Operation::RmaWrite,
            Self::RmaRead => Operation::RmaRead,
            Self::Publish => Operation::Publish,
            Self::Rdm => Operation::Rdm,
            Self::Stream => Operation::Stream,
            Self::ObjectGet => Operation::ObjectGet,
            Self::ObjectPut => Operation::ObjectPut,
            Self::ObjectRequest => Operation::ObjectRequest,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Packed => "packed",
            other => other.operation().name(),
        }
    }
}

/// One of the two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Only {
    /// The library
    Ours,
    /// The bare loop over libfabric
    Bare,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,
    /// The other machine: a server is started there over ssh, and ends with this command
    #[arg(
        value_name = "HOST",
        required_unless_present_any = ["local", "listen", "to", "slurm"]
    )]
    pub(crate) host: Option<String>,
    /// Measure between two processes on this machine
    #[arg(long, conflicts_with_all = ["host", "listen", "to", "slurm", "print"])]
    pub(crate) local: bool,
    /// With --local: the address of this machine for both
    #[arg(
        long,
        value_name = "ADDR",
        requires = "local",
        default_value = "127.0.0.1"
    )]
    pub(crate) node: IpAddr,
    /// Be the server, at this address of this machine or host name (`:7473` and `*:7473` are all);
    /// beyond loopback with --key only. It serves one client at a time. Default: 127.0.0.1:7473
    #[arg(
        long,
        value_name = "ADDR[:PORT]",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1",
        conflicts_with_all = [
            "host", "to", "slurm", "print", "op", "size", "depth", "json", "csv", "html"
        ]
    )]
    pub(crate) listen: Option<String>,
    /// With --listen: end after one client
    #[arg(long, requires = "listen")]
    pub(crate) once: bool,
    /// Measure against a server that listens there
    #[arg(long, value_name = "ADDR[:PORT]", conflicts_with_all = ["host", "slurm"])]
    pub(crate) to: Option<String>,
    /// Under srun, of two tasks: task 0 measures against task 1, which it meets in this directory
    /// that both share
    #[arg(long, value_name = "DIR", conflicts_with_all = ["host", "key", "print"])]
    pub(crate) slurm: Option<PathBuf>,
    /// Print the two lines to paste, one on HOST and one here, where ssh does not lead there
    #[arg(long, requires = "host")]
    pub(crate) print: bool,
    /// File with a key of at least 16 bytes that both sides have: each proves to the other that it
    /// does
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// The command that starts a shell on another machine
    #[arg(long, default_value = "ssh", value_name = "COMMAND")]
    pub(crate) rsh: String,
    /// What the shell there runs: the name or path of fabricast, as a shell takes it
    #[arg(long, default_value = "fabricast", value_name = "COMMAND")]
    pub(crate) remote_path: String,
    /// Operations, with commas between. Default: a tour that ends within a minute
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) op: Vec<Op>,
    /// Payload bytes of a message, with K or M for powers of 1024: several with commas between, or
    /// a range such as 8..64M, by powers of 4. Default: two or three that fit the operation
    #[arg(long, value_delimiter = ',', value_parser = parse_sizes)]
    pub(crate) size: Vec<Sizes>,
    /// Messages or operations in flight, several with commas between
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "16",
        value_parser = clap::value_parser!(u16).range(1..=4096)
    )]
    pub(crate) depth: Vec<u16>,
    /// Both directions at once, each with processes of its own; figures are of both together
    #[arg(long)]
    pub(crate) both: bool,
    /// Pairs of processes at once; figures are of all together
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=64)
    )]
    pub(crate) processes: u16,
    /// How long each run is timed, after a warm-up of 0.2 s. Default: 1; of the tour 0.3
    #[arg(long, value_parser = parse_seconds)]
    pub(crate) seconds: Option<f64>,
    /// Pairs of runs for each case; an interval needs six. Default: 6; of the tour 3
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) runs: Option<u16>,
    /// Run one side only: no ratio
    #[arg(long, value_enum)]
    pub(crate) only: Option<Only>,
    /// For latency: messages a second, several with commas between; 0: each 100 us after the one
    /// before was confirmed
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "10000",
        value_parser = clap::value_parser!(u32).range(0..=i64::from(RATE_MAX))
    )]
    pub(crate) rate: Vec<u32>,
    /// For publish: subscribers, all in the server's process
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) subscribers: u8,
    /// For packed and latency: pack messages of up to so many bytes, header included. Default: as
    /// many as the library does; latency: none
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub(crate) pack: Option<usize>,
    /// For coalesced: bytes of a buffer that small messages are packed in
    #[arg(long, value_name = "BYTES", default_value = "64K", value_parser = parse_size)]
    pub(crate) buffer: usize,
    /// For coalesced: how long a message waits for others, in microseconds
    #[arg(
        long,
        default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000)
    )]
    pub(crate) flush_us: u64,
    /// libfabric provider. Default: tcp; for rdm and objects net, where there is one
    #[arg(long)]
    pub(crate) provider: Option<String>,
    /// Leave it to the kernel on which core each process runs; else each keeps to one of its own,
    /// where there are enough
    #[arg(long)]
    pub(crate) no_pin: bool,
    /// Write everything as JSON, one object a line: the facts first, then each case; `-`: to
    /// standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write a table of all cases as comma-separated values, with the facts as comments
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Write one page of HTML with charts of all cases and the facts
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Show what was measured, or what differs between two measurements
    Report(super::report::ReportArgs),
    /// One of several clients, which another one started
    #[command(hide = true)]
    Client,
    /// What a server starts for each client; its connection is standard input
    #[command(hide = true)]
    Server {
        /// Who is to know of failures has been told
        #[arg(long)]
        told: bool,
    },
}

impl BenchArgs {
    /// Nothing was said of what is measured.
    pub(crate) fn is_tour(&self) -> bool {
        self.op.is_empty() && self.size.is_empty()
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.seconds
            .unwrap_or(if self.is_tour() { 0.3 } else { 1.0 })
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs
            .unwrap_or(if self.is_tour() { 3 } else { 6 })
            .into()
    }
}

/// Sizes that one word means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<usize>);

fn parse_size(text: &str) -> Result<usize, String> {
    let size = fabricast_bench::size::parse(text);
    size.filter(|size| (1..=SIZE_MAX).contains(size))
        .ok_or_else(|| "want a number of bytes from 1 to 512M, such as 4096, 64K or 1M".to_owned())
}

fn parse_sizes(text: &str) -> Result<Sizes, String> {
    let Some((from, to)) = text.split_once("..") else {
        return Ok(Sizes(vec![parse_size(text)?]));
    };
    let (from, to) = (parse_size(from)?, parse_size(to)?);
    if from > to {
        return Err("a range begins with the smaller size".to_owned());
    }
    let mut all: Vec<_> = std::iter::successors(Some(from), |size| Some(size * 4))
        .take_while(|&size| size < to)
        .collect();
    all.push(to);
    Ok(Sizes(all))
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok();
    seconds
        .filter(|seconds| (0.01..=600.0).contains(seconds))
        .ok_or_else(|| "want a number of seconds from 0.01 to 600".to_owned())
}

/// The addresses of a place, by name or number, with a port or the usual one.
pub(crate) fn resolve(option: &str, text: &str) -> Result<Vec<SocketAddr>, Failure> {
    let wrong = |why: String| Failure::new(format!("{option} {text}: {why}")).ends(End::Usage);
    let all = text.strip_prefix('*').unwrap_or(text);
    if let Some(port) = all.strip_prefix(':')
        && let Ok(port) = port.parse()
    {
        return Ok(vec![SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))]);
    }
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, PORT)]);
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => {
            let port = port.parse::<u16>();
            let port = port.map_err(|_| wrong("want ADDR, or ADDR:PORT".to_owned()))?;
            (host, port)
        }
        None => (text, PORT),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let found = (host, port).to_socket_addrs();
    let found: Vec<_> = found
        .map_err(|error| wrong(format!("{host} is no address and no known host: {error}")))?
        .collect();
    match found.is_empty() {
        true => Err(wrong("it has no address".to_owned())),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_go_by_powers_of_4() {
        let sizes = |text| parse_sizes(text).map(|sizes| sizes.0);
        assert_eq!(sizes("64K"), Ok(vec![65536]));
        assert_eq!(sizes("8..512"), Ok(vec![8, 32, 128, 512]));
        assert_eq!(sizes("8..64"), Ok(vec![8, 32, 64]));
        assert_eq!(sizes("7..7"), Ok(vec![7]));
        let all = sizes("8..64M").expect("a range");
        assert_eq!((all.len(), all[0], all[12]), (13, 8, 64 << 20));
        for text in ["", "0", "8..", "..8", "9..8", "1G", "8...9", "-1"] {
            assert!(sizes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn places_are_names_and_numbers() {
        let one = |text| resolve("--to", text).expect("a place")[0].to_string();
        assert_eq!(one("10.0.0.2"), "10.0.0.2:7473");
        assert_eq!(one("10.0.0.2:1"), "10.0.0.2:1");
        assert_eq!(one("::1"), "[::1]:7473");
        assert_eq!(one("[::1]:9"), "[::1]:9");
        assert_eq!(one(":9"), "0.0.0.0:9");
        assert_eq!(one("*:9"), "0.0.0.0:9");
        let local = resolve("--to", "localhost:8").expect("a place");
        assert!(
            local
                .iter()
                .all(|at| at.ip().is_loopback() && at.port() == 8)
        );
        for text in ["", "a b", "10.0.0.2:x", "no-such-host.invalid"] {
            let failure = resolve("--to", text).expect_err("none");
            assert_eq!(failure.end(), End::Usage, "{text}");
        }
    }
}
