//! The command line of `send`, `recv` and `demo`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use fabricast::PeerAddr;

use super::is_own;
use super::name_pattern::NamePattern;
use crate::failure::{End, Failure};
use crate::metrics::MetricsArgs;

/// What both sides can choose.
#[derive(Debug, Clone, Args)]
pub(crate) struct CommonArgs {
    /// Bytes of a block, such as 65536, 256K or 4M: 8K to 256M. The sender takes the smaller of
    /// both sides'
    #[arg(long, default_value = "1M", value_parser = parse_block)]
    pub(crate) block: u32,
    /// Blocks in memory at most; they take `block` times as much memory. Default: 16 for each of
    /// --rail-threads
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=4096))]
    pub(crate) buffers: Option<u32>,
    /// Threads for connections; a receiver listens at a port more for each but the first, which the
    /// system chooses and its senders are told. Default: 1, and over tcp a quarter of the
    /// processors, at most 7
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=7))]
    pub(crate) rail_threads: Option<u32>,
    /// Give up when nothing has moved for so many seconds
    #[arg(
        long,
        default_value_t = 30,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=86400)
    )]
    pub(crate) timeout: u64,
    /// libfabric provider
    #[arg(long, default_value = "tcp")]
    pub(crate) provider: String,
    /// Use FI_EP_RDM, for providers that have no connections of their own (libfabric 1.x: with
    /// --provider net)
    #[arg(long)]
    pub(crate) rdm: bool,
    /// File with a key of at least 16 bytes that both sides have: each proves to the other that it
    /// does
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Take blocks through the memory of a GPU, between file and network: of CUDA device N, or 0
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "0"
    )]
    pub(crate) gpu: Option<u32>,
    /// Print what happens as JSON, one object a line: a sender its progress (`type` is "progress")
    /// and what became of each receiver ("result", with `ok`, `peer` and, on failure, `error`,
    /// `code` and `todo`), a receiver its reports
    #[arg(long)]
    pub(crate) json: bool,
}

impl CommonArgs {
    /// The numbers that were given, as arguments for another process.
    pub(crate) fn numbers(&self) -> Vec<String> {
        let given = [
            ("--buffers", self.buffers),
            ("--rail-threads", self.rail_threads),
        ];
        let given = given.into_iter().filter_map(|(name, it)| Some((name, it?)));
        given.map(|(name, it)| format!("{name}={it}")).collect()
    }

    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

impl RecvArgs {
    /// The file for a timeline.
    pub(crate) fn timeline(&self) -> Option<&Path> {
        #[cfg(feature = "charts")]
        return self.timeline.as_deref();
        #[cfg(not(feature = "charts"))]
        None
    }
}

impl SendArgs {
    /// The file for a timeline.
    pub(crate) fn timeline(&self) -> Option<&Path> {
        #[cfg(feature = "charts")]
        return self.timeline.as_deref();
        #[cfg(not(feature = "charts"))]
        None
    }
}

#[derive(Debug, Args)]
pub(crate) struct RecvArgs {
    #[command(flatten)]
    pub(crate) metrics: MetricsArgs,
    /// Address of this machine to listen at, or several with commas between them; `:7471` or
    /// `*:7471` are all of this machine's. Port 0 lets the system choose, and the first line of
    /// output says which. `any` for providers whose addresses are no IP addresses (with --rdm: shm,
    /// efa, cxi). Default: 127.0.0.1:7471
    #[arg(
        long,
        value_name = "ADDR",
        value_delimiter = ',',
        value_parser = parse_listen
    )]
    pub(crate) listen: Vec<PeerAddr>,
    /// Directory that files are written below
    #[arg(long, default_value = ".")]
    pub(crate) dir: PathBuf,
    /// Take one stream of the step that Slurm started this task in, from its task 0: see `fabricast
    /// send --help`
    #[arg(long, value_name = "DIR", conflicts_with_all = ["output", "key"])]
    pub(crate) slurm: Option<PathBuf>,
    /// `-`: take one stream, and write the content of its files to standard output, one behind the
    /// other, when all of it is there and checked. Until then it lies in a temporary directory
    /// (TMPDIR), since blocks come in any order
    #[arg(
        short,
        long,
        value_name = "-",
        value_parser = ["-"],
        conflicts_with_all = ["dir", "discard", "json"]
    )]
    pub(crate) output: Option<String>,
    /// When it starts, removes what is left of streams that were cut so many days ago and that
    /// nobody went on with
    #[arg(long, value_name = "DAYS", conflicts_with = "discard")]
    pub(crate) forget_after: Option<u32>,
    /// Make symbolic links that lead out of the directory, too, wherever their sender wants them
    /// to: for senders that are trusted. Else a stream with such a link fails
    #[arg(long, conflicts_with = "discard")]
    pub(crate) any_links: bool,
    /// Give files, directories and links the owners that senders say (`fabricast send --owners`),
    /// by the numbers of users and groups; only root may. Whoever may send here can give files to
    /// any user then
    #[arg(long, conflicts_with_all = ["discard", "output"])]
    pub(crate) owners: bool,
    /// Give files and directories the extended attributes that senders say (`fabricast send
    /// --xattrs`), and no others: those of `user.`, and access control lists. Whoever may send here
    /// can give any user access to what it sends then
    #[arg(long, conflicts_with_all = ["discard", "output"])]
    pub(crate) xattrs: bool,
    /// Let senders have removed what lies in directories that they send and that they don't have
    /// (`fabricast send --delete`): whoever may send here can empty any directory below this one
    #[arg(long, conflicts_with_all = ["discard", "output"])]
    pub(crate) allow_delete: bool,
    /// With --allow-delete: never remove what matches this pattern, nor what lies below it; may
    /// come several times. Patterns are those of `fabricast send --exclude`
    #[arg(
        long,
        value_name = "PATTERN",
        value_parser = NamePattern::parse,
        requires = "allow_delete"
    )]
    pub(crate) protect: Vec<NamePattern>,
    /// Remove what matches this pattern, though --protect matches it, too
    #[arg(
        long,
        value_name = "PATTERN",
        value_parser = NamePattern::parse,
        requires = "protect",
        hide = true
    )]
    pub(crate) unprotect: Vec<NamePattern>,
    /// Beside what arrives with BLAKE3 (`fabricast send --blake3`), write the hashes of all files
    /// of it into NAME.b3, in the form of `b3sum`; `fabricast verify NAME.b3` compares them
    #[arg(long, conflicts_with_all = ["discard", "output"])]
    pub(crate) sums: bool,
    /// Check what arrives, and throw it away
    #[arg(long, conflicts_with = "dir")]
    pub(crate) discard: bool,
    /// Draw into this file of HTML where the time of a stream went: what was waited for, what
    /// threads did, and bytes, over time. Of several streams it has the last one
    #[cfg(feature = "charts")]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["slurm", "output"])]
    pub(crate) timeline: Option<PathBuf>,
    /// End after one stream; the exit code says whether it arrived. Who does not have the key
    /// sends none
    #[arg(long)]
    pub(crate) once: bool,
    /// Connections at once
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) peers: u32,
    /// Threads that write; default: 3 for each 2 of --rail-threads, at least 2
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) writers: Option<u32>,
    /// Blocks that senders may write at once by RMA, all streams together; default: none, but where
    /// the provider does that better
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=65536))]
    pub(crate) windows: Option<u32>,
    /// Bytes of the largest stream to take, such as 10G
    #[arg(long, default_value = "16384G", value_parser = parse_size)]
    pub(crate) max_size: u64,
    /// Files and directories of a stream to take
    #[arg(long, default_value_t = 1 << 20)]
    pub(crate) max_files: u64,
    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    pub(crate) child: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// What happens to a receiver that is slower than the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Slow {
    /// The others wait for it, but no longer than --timeout if nothing of it moves
    Wait,
    /// The others go on, and what it missed is read once more for it
    CatchUp,
    /// The others go on, and it is given up when it has held them up for --timeout
    Drop,
}

/// What becomes of symbolic links in directories that are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Links {
    /// They are sent as links
    Keep,
    /// What they lead to is sent in their place
    Follow,
    /// They are left out, and said to be
    Skip,
}

/// Which files are there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Unchanged {
    /// Those of the same size and time
    Time,
    /// Besides, of those of the same size and another time, what has the same content, by the
    /// hashes of their blocks: it is not sent. Both sides read these files
    Content,
}

/// How blocks go to receivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// What the provider does better, as far as was measured
    Auto,
    /// Messages
    Message,
    /// RMA write; receivers need --windows
    Write,
}

#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    #[command(flatten)]
    pub(crate) metrics: MetricsArgs,
    /// Files and directories to send, under the last part of their paths; of directories, all files
    /// and directories below them. `-` is standard input, under --name. The last ones that have a
    /// colon before any slash are directories of other machines, HOST:DIR, where a receiver is
    /// started over ssh. If instead all but the last have one, they are fetched from there into
    /// that directory; patterns (`*`) are not expanded there. A name of this machine with a colon
    /// is written ./a:b
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Where a receiver listens; once for each receiver. Several addresses of the same receiver,
    /// with commas between them, are rails
    #[arg(long, value_name = "ADDR[,ADDR...]", value_parser = parse_peer)]
    pub(crate) to: Vec<Addresses>,
    /// File with more receivers, one a line, as HOST:DIR or as addresses; `#` begins a comment
    #[arg(long, value_name = "FILE")]
    pub(crate) hosts: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) far: FarArgs,
    #[command(flatten)]
    pub(crate) slurm: SlurmArgs,
    /// Leave out what matches this pattern, in directories; may come several times. `*`, `?` and
    /// `[...]` match as in a shell, `**` also across slashes. A pattern without a slash is compared
    /// with the last part of each name, one with a slash with its path below the directory that is
    /// sent; one that ends with a slash matches directories only. Nothing is sent of what is below
    /// a directory that is left out
    #[arg(long, value_name = "PATTERN", value_parser = NamePattern::parse)]
    pub(crate) exclude: Vec<NamePattern>,
    /// Send what matches this pattern, though --exclude matches it, too
    #[arg(long, value_name = "PATTERN", value_parser = NamePattern::parse, requires = "exclude")]
    pub(crate) include: Vec<NamePattern>,
    /// Say whose everything is, by the numbers of users and groups, as rsync does with
    /// --numeric-ids: receivers, which run as root, give it to them. A receiver of --to has to take
    /// that (`fabricast recv --owners`)
    #[arg(long)]
    pub(crate) owners: bool,
    /// Say which extended attributes files and directories have: those of `user.`, and access
    /// control lists, with users and groups by their numbers. Receivers give them these and no
    /// others. A receiver of --to has to take that (`fabricast recv --xattrs`)
    #[arg(long)]
    pub(crate) xattrs: bool,
    /// When all has arrived, remove what receivers have in the directories that are sent, or below
    /// them, and that is not there here. What --exclude leaves out stays, which only receivers know
    /// of that are started over ssh, or this one when fetching: with --to or --slurm the two don't
    /// go together. A receiver of --to has to allow it (`fabricast recv --allow-delete`). Nothing
    /// is removed where something could not be sent, or is skipped
    #[arg(long)]
    pub(crate) delete: bool,
    /// What becomes of symbolic links in directories; those on the command line are followed
    #[arg(long, value_enum, default_value_t = Links::Keep)]
    pub(crate) links: Links,
    /// When fetching: make symbolic links that lead out of the directory, too. Receivers that are
    /// started over ssh make all of them
    #[arg(long)]
    pub(crate) any_links: bool,
    /// Print what would be sent or fetched, and how much it is, and send nothing: no receiver is
    /// reached. --skip-unchanged and --delete, which receivers do, make no difference
    #[arg(short = 'n', long, conflicts_with = "slurm")]
    pub(crate) dry_run: bool,
    /// Name of what standard input gives, at the receivers
    #[arg(long, default_value = "stdin")]
    pub(crate) name: String,
    /// Connections to each address of a receiver; default: from one up, as long as more of them
    /// make it faster
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) rails: Option<u16>,
    /// Threads that read; default: 3 for each 2 of --rail-threads, at least 2
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) readers: Option<u32>,
    /// Bytes a second at most, such as 500M
    #[arg(long, alias = "rate", value_name = "BYTES", value_parser = parse_size)]
    pub(crate) limit_rate: Option<u64>,
    /// For how long to try again to reach a receiver that was lost, with growing pauses, such as
    /// 90, 10m or 2h; 0: not at all
    #[arg(long, default_value = "30", value_name = "TIME", value_parser = parse_time)]
    pub(crate) retry_for: Duration,
    /// For how long to try to reach a receiver at first; one that answers and says nothing has as
    /// long again
    #[arg(long, default_value = "5", value_name = "TIME", value_parser = parse_connect_time)]
    pub(crate) connect_timeout: Duration,
    /// Draw into this file of HTML where the time went: what was waited for (reading, network,
    /// credits, writing), what threads did, and bytes by each rail, over time, a part for each
    /// receiver. When fetching, it is drawn as this side saw it
    #[cfg(feature = "charts")]
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    pub(crate) timeline: Option<PathBuf>,
    /// Print no progress and no report
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// What happens to a receiver that is slower than the others
    #[arg(long, value_enum, default_value_t = Slow::Wait)]
    pub(crate) slow: Slow,
    /// Keep files that are there already with the same size and time of their last change, and send
    /// the others: for a tree that was sent before. With `content`, files of the same size and
    /// another time are compared, too
    #[arg(
        long,
        value_enum,
        value_name = "BY",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "time",
        conflicts_with_all = ["no_crc", "read_back", "blake3", "sums"]
    )]
    pub(crate) skip_unchanged: Option<Unchanged>,
    /// Throw away what receivers have of an earlier, cut stream
    #[arg(long)]
    pub(crate) restart: bool,
    /// Have it written through to the receivers' disks before it gets its names
    #[arg(long)]
    pub(crate) sync: bool,
    /// How blocks go: as messages, by RMA write into windows of the receivers, or by what the
    /// provider does better
    #[arg(long, value_enum, default_value_t = By::Auto)]
    pub(crate) by: By,
    /// Compute the BLAKE3 of the content on both sides, and compare; what that costs is printed
    #[arg(long)]
    pub(crate) blake3: bool,
    /// As --blake3, and have receivers that are started over ssh, or this one when fetching, write
    /// the hashes of all files beside what arrives, as `fabricast recv --sums` does
    #[arg(long)]
    pub(crate) sums: bool,
    /// Send nothing, and end with exit code 9, if there is something to skip: a FIFO, a socket, a
    /// device, or a symbolic link that is not sent (--links)
    #[arg(long)]
    pub(crate) strict: bool,
    /// Have receivers read back what they wrote, and check it
    #[arg(long, conflicts_with = "no_crc")]
    pub(crate) read_back: bool,
    /// Send no checksums: what arrives damaged is not noticed, and what is cut not resumed
    #[arg(long)]
    pub(crate) no_crc: bool,
    /// Read around the page cache (O_DIRECT)
    #[arg(long)]
    pub(crate) direct: bool,
    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    pub(crate) child: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// How tasks of Slurm meet.
#[derive(Debug, Clone, Args)]
pub(crate) struct SlurmArgs {
    /// Under srun: task 0 sends to all others, which run the same command, or `fabricast recv` with
    /// the same --slurm, and meet it in this directory that all of them share
    #[arg(long, value_name = "DIR", conflicts_with_all = ["to", "hosts"])]
    pub(crate) slurm: Option<PathBuf>,
    /// With --slurm: the directory that the other tasks write files below
    #[arg(long, default_value = ".", requires = "slurm")]
    pub(crate) dir: PathBuf,
}

/// How far ends are started.
#[derive(Debug, Clone, Args)]
pub(crate) struct FarArgs {
    /// The command that starts a shell on another machine
    #[arg(long, default_value = "ssh", value_name = "COMMAND")]
    pub(crate) rsh: String,
    /// What the shell there runs: the name or path of fabricast, as a shell takes it
    #[arg(long, default_value = "fabricast", value_name = "COMMAND")]
    pub(crate) remote_path: String,
    /// Address of this machine (with --slurm: of task 0's) that a far end is to be reached from, or
    /// to reach; several are rails, each over the far end's address on that way. `none`: one way
    /// alone, where ssh's connection goes; of a shell that does not say (SSH_CONNECTION), where
    /// packets to everywhere go. Default: if both ends have several network devices of one speed,
    /// the highest, in the same IPv4 networks, all of these are rails (bridges and other virtual
    /// devices don't count); else as with `none`
    #[arg(long, value_name = "ADDR", value_parser = parse_rail)]
    pub(crate) rail: Vec<Rail>,
}

/// What `--rail` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rail {
    /// There are none.
    None,
    From(IpAddr),
}

impl FarArgs {
    /// The addresses that were given.
    pub(crate) fn rails(&self) -> Vec<IpAddr> {
        let given = self.rail.iter().filter_map(|rail| match rail {
            Rail::None => None,
            Rail::From(ip) => Some(*ip),
        });
        given.collect()
    }

    /// Nothing was said of rails: they are chosen.
    pub(crate) fn chooses_rails(&self) -> bool {
        self.rail.is_empty()
    }

    /// That rails begin at this machine.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let foreign = self.rails().into_iter().find(|ip| !is_own(*ip));
        let text = match foreign {
            _ if self.rail.len() > 1 && self.rail.contains(&Rail::None) => {
                "--rail none: there can't be other rails beside it".to_owned()
            }
            Some(ip) => format!(
                "--rail {ip}: that is no address of this machine, where a rail begins (ip addr)"
            ),
            None => return Ok(()),
        };
        Err(Failure::new(text).ends(End::Usage))
    }
}

fn parse_rail(text: &str) -> Result<Rail, String> {
    match text {
        "none" => Ok(Rail::None),
        text => {
            let parsed = text.parse().map(Rail::From);
            parsed.map_err(|_| "want an IP address of this machine, or none".to_owned())
        }
    }
}

/// The addresses of one receiver.
#[derive(Debug, Clone)]
pub(crate) struct Addresses(pub(crate) Vec<PeerAddr>);

pub(crate) fn parse_peer(text: &str) -> Result<Addresses, String> {
    let addrs = text
        .split(',')
        .map(|addr| addr.parse::<PeerAddr>().map_err(|e| e.to_string()));
    Ok(Addresses(addrs.collect::<Result<_, _>>()?))
}

/// `:7471` and `*:7471` are all addresses of this machine.
fn parse_listen(text: &str) -> Result<PeerAddr, String> {
    let all = text.strip_prefix('*').unwrap_or(text).strip_prefix(':');
    let parsed = match all {
        Some(port) if !port.starts_with(':') => format!("0.0.0.0:{port}").parse(),
        _ => text.parse(),
    };
    parsed.map_err(|error: fabricast::Error| error.to_string())
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// File to stream; without it, one is made
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Bytes of the file that is made
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    pub(crate) size: u64,
    /// Address of this machine for both; default: 127.0.0.1, or what the provider has where it
    /// takes no loopback addresses (verbs)
    #[arg(long, value_name = "ADDR")]
    pub(crate) node: Option<IpAddr>,
    /// Directory for the temporary one that the files lie in; default: the system's
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// A number of bytes, with K, M or G for powers of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
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

/// Seconds, or a number with ms, s, m or h.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
    let of_unit = units
        .into_iter()
        .find_map(|(unit, ms)| Some((text.strip_suffix(unit)?, ms)));
    let (digits, ms) = of_unit.unwrap_or((text, 1000));
    let number: u64 = digits
        .parse()
        .map_err(|_| "want a number of seconds, or one with ms, s, m or h behind it".to_owned())?;
    match number.checked_mul(ms) {
        Some(ms @ 0..=86_400_000) => Ok(Duration::from_millis(ms)),
        _ => Err("must be 24 h at most".to_owned()),
    }
}

fn parse_connect_time(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    match (Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&time) {
        true => Ok(time),
        false => Err("must be 1 ms to 1 h".to_owned()),
    }
}

fn parse_block(text: &str) -> Result<u32, String> {
    match parse_size(text)? {
        bytes @ 0x2000..=0x1000_0000 => Ok(bytes as u32),
        _ => Err("must be 8K to 256M".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, ms) in [
            ("30", 30_000),
            ("5s", 5000),
            ("250ms", 250),
            ("2m", 120_000),
            ("0", 0),
        ] {
            assert_eq!(parse_time(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "-1", "1.5", "25h", "3d", "99999999999999999999h"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
        assert!(parse_connect_time("0").is_err());
    }

    #[test]
    fn a_port_alone_is_all_addresses() {
        for text in [":7471", "*:7471", "0.0.0.0:7471"] {
            let addr = parse_listen(text).expect("an address");
            assert_eq!(addr.to_string(), "0.0.0.0:7471", "{text}");
        }
        let own = parse_listen("[::1]:7471").expect("an address");
        assert_eq!(own.to_string(), "[::1]:7471");
        assert!(parse_listen(":").is_err() && parse_listen("::").is_err());
    }
}
