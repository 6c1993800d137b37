//! The command line of `readout`.

use std::net::IpAddr;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use fabricast::PeerAddr;

use crate::failure::Failure;
use crate::metrics::MetricsArgs;
use crate::readout::numbers::Gap;
use crate::readout::size::{Size, parse_bytes};
use crate::readout::wire::{DETECTORS_MAX, HEADER_LEN};

/// Rings are a multiple of this long.
const PAGE: usize = 4096;
/// Bytes of a ring where nobody says how many, at most.
const RING_MAX: usize = 16 << 20;

pub(crate) const EXAMPLES: &str = "Examples:
  fabricast readout demo                  2 detectors, 2 builders, 5 s, this machine
  fabricast readout demo --builders 3 --kill-builder-after 2
                                          a builder is killed: others get its events
  fabricast readout demo --rate 100 --size exp:2K --on-full drop
                                          100 kHz; a detector that cannot wait
  fabricast readout builder --listen 10.0.0.2:7480 --detectors 4
                                          on each machine that builds
  fabricast readout source --detectors 4 --to 10.0.0.2:7480 --to 10.0.0.3:7480 --seconds 60
                                          on the readout machine

Several sources: give each its own --first-detector, all of them the same --events and the same --to
in the same order, and tell the builders the number of all detectors (--detectors) and of sources
(--sources). They start when the last one is there.
Exit code: 0 when every event is accounted for and nothing was lost but what the policy allows, 1
otherwise (one line on stderr says why), 2 for a wrong command line.
FABRICAST_LIBFABRIC=/path/to/libfabric.so.1 chooses the libfabric to use.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start builders and a readout on this machine, and compare what both sides counted
    Demo(DemoArgs),
    /// Fill rings and send the fragments to builders
    Source(SourceArgs),
    /// Build events of what sources send, for one run
    Builder(BuilderArgs),
}

/// What happens to a fragment when its ring is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnFull {
    /// The detector waits (the trigger is held), and the time is counted
    Wait,
    /// The fragment is dropped and counted; its event is built without it
    Drop,
}

/// What happens to the events of a builder that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// Fragments are kept until their event is built, and sent to another builder
    Resend,
    /// Fragments are freed as soon as they are sent; events that were begun are lost, and counted
    Drop,
}

/// How the content of fragments is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Check {
    /// Detectors fill in a pattern, builders check it and a CRC32C
    Crc,
    /// Memory is sent as it is; builders check order, loss and length only
    None,
}

impl Check {
    pub(crate) fn is_on(self) -> bool {
        self == Self::Crc
    }
}

/// What every command takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct CommonArgs {
    /// libfabric provider
    #[arg(long, default_value = "tcp")]
    pub(crate) provider: String,
    /// Give a peer up of which nothing is heard for so many seconds, or that does not do what is
    /// expected of it for twice as long
    #[arg(
        long,
        default_value_t = 10,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    pub(crate) timeout: u64,
    /// Spin always, instead of only for 50 µs after the last work: lowest latency, one core for
    /// each process
    #[arg(long)]
    pub(crate) spin: bool,
    /// Print one JSON object on stdout instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

impl CommonArgs {
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// What a readout does.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReadoutArgs {
    /// Detectors of this readout, a thread and a ring each
    #[arg(
        long,
        default_value_t = 2,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(DETECTORS_MAX))
    )]
    pub(crate) detectors: u16,
    /// Event rate in kHz (each detector has a fragment for each event); 0: as fast as it goes
    #[arg(long, default_value_t = 0.0, value_name = "KHZ", value_parser = parse_rate)]
    pub(crate) rate: f64,
    /// Bytes of a fragment: 4K; 256-8K (uniform); exp:2K (exponential with this mean, cut at 8
    /// times)
    #[arg(long, default_value = "4K")]
    pub(crate) size: Size,
    /// How far event numbers are apart: each by 1, or by up to twice this mean less 1, as a trigger
    /// has them that counts clock cycles. Several sources need the same
    #[arg(long, default_value = "1", value_name = "MEAN")]
    pub(crate) gap: Gap,
    /// Length of the run
    #[arg(long, default_value_t = 5.0, value_parser = parse_seconds)]
    pub(crate) seconds: f64,
    /// Length of the run in events instead: with several sources, all need the same
    #[arg(
        long,
        conflicts_with = "seconds",
        value_parser = clap::value_parser!(u64).range(1..=1 << 48)
    )]
    pub(crate) events: Option<u64>,
    /// Bytes of each detector's ring, rounded up to whole pages [default: room for as many of the
    /// longest fragments as there may be, 16M at most]
    #[arg(long, value_parser = parse_ring)]
    pub(crate) ring: Option<usize>,
    /// Fragments of each ring at most: it is full with these, however short they are
    #[arg(
        long,
        default_value_t = 4096,
        value_parser = clap::value_parser!(u32).range(256..=1 << 20)
    )]
    pub(crate) ring_fragments: u32,
    /// What a detector does that finds its ring full
    #[arg(long, value_enum, default_value_t = OnFull::Wait)]
    pub(crate) on_full: OnFull,
    /// What happens to the events of a builder that is lost
    #[arg(long, value_enum, default_value_t = Policy::Resend)]
    pub(crate) policy: Policy,
    /// How the content is checked
    #[arg(long, value_enum, default_value_t = Check::Crc)]
    pub(crate) check: Check,
    /// Draw into this file of HTML how the run went over time: events and bytes a second, how full
    /// the rings were, what fragments waited for, and bytes to each builder
    #[cfg(feature = "charts")]
    #[arg(long, value_name = "FILE")]
    pub(crate) timeline: Option<std::path::PathBuf>,
}

impl ReadoutArgs {
    /// Bytes of each detector's ring. One that is larger than its fragments ever need is written
    /// from end to end all the same, out of the processor's caches.
    pub(crate) fn ring_bytes(&self) -> usize {
        let longest = self.size.max().next_multiple_of(8);
        let fits = longest.saturating_mul(self.ring_fragments as usize);
        self.ring
            .unwrap_or_else(|| fits.min(RING_MAX).next_multiple_of(PAGE))
    }

    /// What one flag alone does not show.
    fn validate(&self) -> Result<(), Failure> {
        if self.size.max() * 2 > self.ring_bytes() {
            let (ring, size) = (self.ring_bytes(), self.size);
            return Err(Failure::new(format!(
                "--ring {ring}: must hold two of the longest fragments (--size {size}: up to {} \
                 bytes)",
                self.size.max()
            )));
        }
        let events = self.events.unwrap_or(0);
        if events
            .checked_mul(self.gap.mean())
            .is_none_or(|last| last >> 62 > 0)
        {
            return Err(Failure::new(
                "--gap: so many events need numbers beyond 2^62; fewer --events, or a shorter gap",
            ));
        }
        if self.rate == 0.0 && self.on_full == OnFull::Drop {
            return Err(Failure::new(
                "--on-full drop: as fast as it goes, nearly everything would be dropped; give a \
                 --rate",
            ));
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
pub(crate) struct SourceArgs {
    #[command(flatten)]
    pub(crate) metrics: MetricsArgs,
    #[command(flatten)]
    pub(crate) readout: ReadoutArgs,
    /// Where a builder listens; once for each. Event n is built by builder n modulo their number
    #[arg(long, required = true, value_name = "ADDR")]
    pub(crate) to: Vec<PeerAddr>,
    /// Number of this readout's first detector, where there are several readouts
    #[arg(
        long,
        default_value_t = 0,
        value_parser = clap::value_parser!(u16).range(..i64::from(DETECTORS_MAX))
    )]
    pub(crate) first_detector: u16,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

impl SourceArgs {
    pub(crate) fn validate(&self) -> Result<(), Failure> {
        let end = self.first_detector + self.readout.detectors;
        if end > DETECTORS_MAX {
            return Err(Failure::new(format!(
                "--first-detector {}: there are {DETECTORS_MAX} detectors at most, this would be \
                 number {}",
                self.first_detector,
                end - 1
            )));
        }
        let twice = |(at, to): (usize, &PeerAddr)| self.to[..at].contains(to);
        if self.to.iter().enumerate().any(twice) {
            return Err(Failure::new("--to: the same builder is named twice"));
        }
        self.readout.validate()
    }
}

/// What a builder does.
#[derive(Debug, Clone, Args)]
pub(crate) struct BuildArgs {
    /// Fragments that each source may send ahead: its credits, of which a quarter is kept for
    /// events of lost builders. Default: what 64M hold, 512 at most, and 32,768 of up to 4096
    /// bytes, which come in frames
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=32_768))]
    pub(crate) credits: Option<u32>,
    /// Microseconds that a builder spends on each event, as if it did something with it
    #[arg(
        long,
        default_value_t = 0,
        value_name = "MICROSECONDS",
        value_parser = clap::value_parser!(u64).range(..=10_000)
    )]
    pub(crate) work: u64,
}

impl BuildArgs {
    /// The fragments of each source. Three quarters are for events in their turn, one of which must
    /// fit.
    pub(crate) fn credits(&self, detectors: u16, max_fragment: usize) -> Result<u32, Failure> {
        const BUFFERS: usize = 64 << 20;
        let least = 2 * u32::from(detectors);
        let most = if is_packed(max_fragment) { 32_768 } else { 512 };
        let fit = (BUFFERS / max_fragment.max(1)).clamp(16, most) as u32;
        let credits = self.credits.unwrap_or_else(|| fit.max(least));
        if credits < least {
            return Err(Failure::new(format!(
                "--credits {credits}: {detectors} detectors need {least} at least"
            )));
        }
        Ok(credits)
    }
}

#[derive(Debug, Args)]
pub(crate) struct BuilderArgs {
    #[command(flatten)]
    pub(crate) metrics: MetricsArgs,
    /// Address of this machine to listen at; port 0 lets the system choose, and the first line of
    /// output says which
    #[arg(long, default_value = "127.0.0.1:7480", value_name = "ADDR")]
    pub(crate) listen: PeerAddr,
    /// Detectors of all sources together: an event is complete when all have delivered
    #[arg(
        long,
        default_value_t = 2,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(DETECTORS_MAX))
    )]
    pub(crate) detectors: u16,
    /// Sources
    #[arg(
        long,
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(DETECTORS_MAX))
    )]
    pub(crate) sources: u16,
    /// Bytes of the longest fragment
    #[arg(long, default_value = "64K", value_parser = parse_fragment)]
    pub(crate) max_fragment: usize,
    #[command(flatten)]
    pub(crate) build: BuildArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    pub(crate) child: bool,
}

impl BuilderArgs {
    pub(crate) fn validate(&self) -> Result<(), Failure> {
        let detectors = self.detectors;
        self.credits()?;
        if self.sources > detectors {
            return Err(Failure::new(format!(
                "--sources {}: more than the {detectors} detectors",
                self.sources
            )));
        }
        Ok(())
    }

    pub(crate) fn credits(&self) -> Result<u32, Failure> {
        self.build.credits(self.detectors, self.max_fragment)
    }

    /// Whether fragments come in frames, a few of which each source may have under way: builders
    /// copy what they keep then. Else each has a buffer of its own until its event is built.
    pub(crate) fn is_packed(&self) -> bool {
        is_packed(self.max_fragment)
    }

    /// Messages that the connection of each source may have under way, and bytes of the longest.
    pub(crate) fn receives(&self) -> Result<(u32, usize), Failure> {
        let fragments = self.credits()?;
        Ok(match self.is_packed() {
            true => (fragments.min(frames(self.max_fragment)), FRAME_LEN),
            false => (fragments, HEADER_LEN + self.max_fragment),
        })
    }
}

/// Bytes of the longest fragment that is packed by default.
const PACKED_MAX: usize = 4096;
/// Bytes of the longest frame.
const FRAME_LEN: usize = 32_768;

/// Frames that a source may have under way to one builder: of longer fragments more, since what a
/// builder looks at is as many messages, and those of a poll should fit into its core's cache.
fn frames(max_fragment: usize) -> u32 {
    const MESSAGES: usize = 4096;
    let messages = FRAME_LEN / (HEADER_LEN + max_fragment);
    (MESSAGES / messages.max(1)).clamp(16, 32) as u32
}

fn is_packed(max_fragment: usize) -> bool {
    max_fragment <= PACKED_MAX
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    pub(crate) readout: ReadoutArgs,
    /// Builders, a process each
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) builders: u16,
    #[command(flatten)]
    pub(crate) build: BuildArgs,
    /// Address of this machine for all of them; some providers (verbs) take no loopback addresses
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDR")]
    pub(crate) node: IpAddr,
    /// Kill one builder (SIGKILL) so many seconds after the start, when it has work that it can't
    /// have done
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) kill_builder_after: Option<f64>,
    /// Kill the oldest builder (SIGKILL) every so many seconds, and start another in its place
    #[arg(
        long,
        conflicts_with = "kill_builder_after",
        value_name = "SECONDS",
        value_parser = parse_seconds
    )]
    pub(crate) kill_every: Option<f64>,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

impl DemoArgs {
    pub(crate) fn validate(&self) -> Result<(), Failure> {
        for (flag, is_given) in [
            ("--kill-builder-after", self.kill_builder_after.is_some()),
            ("--kill-every", self.kill_every.is_some()),
        ] {
            if is_given && self.builders < 2 {
                return Err(Failure::new(format!(
                    "{flag}: nobody would be left, want two --builders or more"
                )));
            }
        }
        let (detectors, longest) = (self.readout.detectors, self.readout.size.max());
        self.build.credits(detectors, longest)?;
        self.readout.validate()
    }
}

fn parse_number(text: &str, max: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=max).contains(&number) => Ok(number),
        _ => Err(format!("want a number from 0 to {max}")),
    }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    parse_number(text, 1e5)
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match parse_number(text, 1e6) {
        Ok(seconds) if seconds < 0.01 => Err("want at least 0.01".to_owned()),
        other => other,
    }
}

fn parse_ring(text: &str) -> Result<usize, String> {
    match parse_bytes(text)? {
        bytes @ 0x1000..=0x4_0000_0000 => Ok((bytes as usize).next_multiple_of(PAGE)),
        _ => Err("must be 4K to 16G".to_owned()),
    }
}

fn parse_fragment(text: &str) -> Result<usize, String> {
    match parse_bytes(text)? {
        bytes @ 1..=0x100_0000 => Ok(bytes as usize),
        _ => Err("must be 1 byte to 16M".to_owned()),
    }
}
