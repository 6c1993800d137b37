//! The command lines of `serve`, `get`, `put`, `ls` and `rm`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use fabricast::PeerAddr;

use super::url::ObjectUrl;
use crate::metrics::MetricsArgs;
use crate::stream::args::parse_time;

/// What both sides can choose.
#[derive(Debug, Clone, Args)]
pub(crate) struct CommonArgs {
    /// libfabric provider, with endpoints without connections [default: tcp, or what libfabric 1.17
    /// calls it: net]
    #[arg(long)]
    pub(crate) provider: Option<String>,
    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Directory of the objects; it is made where it is missing. A key with slashes is a file below
    /// directories of it
    pub(crate) dir: PathBuf,
    /// Address of this machine to listen at; port 0 lets the system choose, and the first line of
    /// output says which. `any` for providers whose addresses are no IP addresses
    #[arg(long, default_value = "127.0.0.1:7472", value_name = "ADDR")]
    pub(crate) listen: PeerAddr,
    /// Listen at an address that other machines reach, where whoever reaches the port may read,
    /// replace and remove everything below the directory: nobody is asked who they are
    #[arg(long)]
    pub(crate) anyone: bool,
    /// Networks that clients may be in, such as 10.0.0.0/8, with commas between them: bytes go to
    /// and come from nowhere else [default: the address that asks]
    #[arg(long, value_name = "NETWORKS", value_delimiter = ',')]
    pub(crate) clients: Vec<String>,
    /// Serve what is there, and take no put and no removal
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Threads that serve
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) workers: u32,
    #[command(flatten)]
    pub(crate) metrics: MetricsArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// What every client's command has.
#[derive(Debug, Clone, Args)]
pub(crate) struct ClientArgs {
    /// Give up an object after so many seconds
    #[arg(
        long,
        default_value_t = 60,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=86400)
    )]
    pub(crate) timeout: u64,
    /// Show no progress
    #[arg(long, short)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Through which memory the bytes go.
#[derive(Debug, Clone, Args)]
pub(crate) struct MemoryArgs {
    /// Bytes of memory that a file goes through at most, such as 65536, 256K or 64M [default: 64M]
    #[arg(long, value_parser = parse_bytes)]
    pub(crate) memory: Option<usize>,
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
    /// File to put, or a directory with --recursive; `-` is standard input
    pub(crate) from: PathBuf,
    /// Where to: HOST:PORT/KEY; a key that ends in / gets the file's name behind it
    pub(crate) to: ObjectUrl,
    /// Only if there is no such object yet: the value is *
    #[arg(long, value_name = "*", value_parser = ["*"], conflicts_with = "if_match")]
    pub(crate) if_none_match: Option<String>,
    /// Only if the object that is there has this etag
    #[arg(long, value_name = "ETAG")]
    pub(crate) if_match: Option<String>,
    /// Every file below a directory, its path behind the key
    #[arg(long, conflicts_with_all = ["if_match", "if_none_match"])]
    pub(crate) recursive: bool,
    /// Say what would be put, and put nothing
    #[arg(long, alias = "dry-run")]
    pub(crate) dryrun: bool,
    /// For how long to try again when the server is lost, without a byte more being there; such as
    /// 90, 10m or 2h; 0: not at all. A file that is larger than --memory goes on where it was cut,
    /// also with a later put of the same file, unless the server has given it up (after a day)
    #[arg(long, default_value = "30", value_name = "TIME", value_parser = parse_time)]
    pub(crate) retry_for: Duration,
    /// Begin anew, though a part of the file is there from a put that was cut
    #[arg(long)]
    pub(crate) restart: bool,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// The object: HOST:PORT/KEY; with --recursive, what keys begin with
    pub(crate) from: ObjectUrl,
    /// File to write, or a directory; `-` is standard output. A file is replaced when all is there
    #[arg(default_value = ".")]
    pub(crate) to: PathBuf,
    /// Only these bytes: bytes=FIRST-LAST, bytes=FIRST- or bytes=-HOW_MANY_AT_THE_END
    #[arg(long, value_parser = parse_range, conflicts_with = "recursive")]
    pub(crate) range: Option<ByteRange>,
    /// Only if the object has this etag
    #[arg(long, value_name = "ETAG", conflicts_with = "recursive")]
    pub(crate) if_match: Option<String>,
    /// Only if the object has another etag
    #[arg(long, value_name = "ETAG", conflicts_with = "recursive")]
    pub(crate) if_none_match: Option<String>,
    /// Every object whose key begins so, into files below a directory
    #[arg(long)]
    pub(crate) recursive: bool,
    /// Say what would be got, and get nothing
    #[arg(long, alias = "dry-run")]
    pub(crate) dryrun: bool,
    /// Begin anew, though a part of the object is there from a get that was cut
    #[arg(long)]
    pub(crate) restart: bool,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// HOST:PORT/, and what keys begin with
    pub(crate) url: ObjectUrl,
    /// List what is below slashes, too
    #[arg(long)]
    pub(crate) recursive: bool,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// The object: HOST:PORT/KEY; with --recursive, what keys begin with
    pub(crate) url: ObjectUrl,
    /// Remove every object whose key begins so
    #[arg(long, conflicts_with = "if_match")]
    pub(crate) recursive: bool,
    /// Only if the object has this etag
    #[arg(long, value_name = "ETAG")]
    pub(crate) if_match: Option<String>,
    /// Say what would be removed, and remove nothing
    #[arg(long, alias = "dry-run")]
    pub(crate) dryrun: bool,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

/// Bytes of an object, as in HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByteRange {
    /// From the first on, to the last, which is among them, or to the end.
    From(u64, Option<u64>),
    /// So many at the end.
    Last(u64),
}

impl ByteRange {
    /// Where it begins in an object of that size, and how many bytes it has; `None`: it has none.
    pub(crate) fn of(self, size: u64) -> Option<(u64, u64)> {
        let (first, end) = match self {
            Self::From(first, last) => (first, last.map_or(size, |last| size.min(last + 1))),
            Self::Last(count) => (size.saturating_sub(count), size),
        };
        (first < end).then(|| (first, end - first))
    }
}

fn parse_range(text: &str) -> Result<ByteRange, String> {
    let wrong = || "want bytes=FIRST-LAST, bytes=FIRST- or bytes=-COUNT".to_owned();
    let number = |digits: &str| digits.parse::<u64>().ok().filter(|it| *it < u64::MAX);
    let range = text.strip_prefix("bytes=").ok_or_else(wrong)?;
    match range.split_once('-').ok_or_else(wrong)? {
        ("", count) => number(count).map(ByteRange::Last),
        (first, "") => number(first).map(|first| ByteRange::From(first, None)),
        (first, last) => {
            let pair = number(first).zip(number(last)).filter(|(a, b)| a <= b);
            pair.map(|(first, last)| ByteRange::From(first, Some(last)))
        }
    }
    .ok_or_else(wrong)
}

/// A number of bytes, at least 1.
fn parse_bytes(text: &str) -> Result<usize, String> {
    let bytes = crate::stream::args::parse_size(text)?;
    usize::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "want at least one byte".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_what_it_is_in_http() {
        let of = |text: &str, size| parse_range(text).map(|range| range.of(size));
        assert_eq!(of("bytes=0-99", 1000), Ok(Some((0, 100))));
        assert_eq!(of("bytes=990-2000", 1000), Ok(Some((990, 10))));
        assert_eq!(of("bytes=5-", 1000), Ok(Some((5, 995))));
        assert_eq!(of("bytes=-10", 1000), Ok(Some((990, 10))));
        assert_eq!(of("bytes=-10", 4), Ok(Some((0, 4))));
        assert_eq!(of("bytes=1000-", 1000), Ok(None));
        assert_eq!(of("bytes=0-0", 0), Ok(None));
        for wrong in [
            "0-99",
            "bytes=",
            "bytes=9-8",
            "bytes=a-b",
            "bytes=-",
            "bytes=1-2,4-5",
        ] {
            assert!(of(wrong, 10).is_err(), "{wrong}");
        }
    }
}
