//! What a person sees: progress while it runs, and a summary when it is done.

use std::fmt;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use fabricast::fabric::Report;
use fabricast::stream::{Peer, PeerProgress, StreamReport};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::stream::args::Addresses;

/// How often a line is printed where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// A bar for each receiver on a terminal, else a line a second. On stderr: stdout is for results.
pub(crate) struct Progress {
    bars: Vec<ProgressBar>,
    started: Instant,
    next_line: Instant,
}

impl Progress {
    pub(crate) fn new(totals: impl Iterator<Item = u64>, peers: &[Addresses]) -> Self {
        let now = Instant::now();
        let bars = match std::io::stderr().is_terminal() {
            true => new_bars(totals, peers),
            false => Vec::new(),
        };
        Self {
            bars,
            started: now,
            next_line: now + LINE_INTERVAL,
        }
    }

    pub(crate) fn show(&mut self, peers: &[PeerProgress]) {
        for (bar, peer) in self.bars.iter().zip(peers) {
            bar.set_position(peer.written);
        }
        let now = Instant::now();
        if !self.bars.is_empty() || now < self.next_line {
            return;
        }
        self.next_line = now + LINE_INTERVAL;
        for peer in peers {
            let percent = peer.written as f64 / peer.total.max(1) as f64 * 100.0;
            let rate = peer.written as f64 / (now - self.started).as_secs_f64().max(1e-9) / 1e9;
            eprintln!(
                "{} of {} bytes ({percent:.0} %), {rate:.2} GB/s",
                peer.written, peer.total
            );
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // Whatever is printed next, an error for one, has the lines to itself.
        self.bars.iter().for_each(ProgressBar::finish_and_clear);
    }
}

fn new_bars(totals: impl Iterator<Item = u64>, peers: &[Addresses]) -> Vec<ProgressBar> {
    let template = "{msg:22} {bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} to go";
    let style = ProgressStyle::with_template(template).expect("the template is a constant");
    let all = MultiProgress::new();
    let bars = totals.zip(peers).map(|(total, peer)| {
        let bar = all.add(ProgressBar::new(total).with_style(style.clone()));
        let first = peer.0.first().map(ToString::to_string);
        bar.with_message(first.unwrap_or_default())
    });
    bars.collect()
}

/// What was sent to a receiver, how fast, and which way.
pub(crate) struct Summary<'a> {
    pub(crate) entries: usize,
    pub(crate) block: u32,
    pub(crate) peer: &'a Peer,
    pub(crate) report: &'a StreamReport,
    pub(crate) fabric: &'a Report,
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (fabric, report) = (self.fabric, self.report);
        let seconds = report.took.as_secs_f64();
        writeln!(f, "receiver     {}", self.peer)?;
        writeln!(f, "entries      {} files and directories", self.entries)?;
        writeln!(f, "bytes        {}", report.bytes)?;
        if report.resumed_bytes > 0 {
            writeln!(f, "resumed      {} bytes were there", report.resumed_bytes)?;
        }
        writeln!(
            f,
            "seconds      {seconds:.3} (until the receiver had written them)"
        )?;
        writeln!(f, "rate         {:.2} GB/s", report.rate() / 1e9)?;
        writeln!(
            f,
            "provider     {} {} on {}",
            fabric.provider, fabric.provider_version, fabric.interface
        )?;
        writeln!(f, "libfabric    {} (API {})", fabric.library, fabric.api)?;
        writeln!(f, "shape        {}", fabric.shape)?;
        writeln!(f, "path         {}", report.path)?;
        writeln!(f, "transport    {}", report.transport)?;
        if fabricast::fabric::provider(&fabric.provider).is_some_and(|row| row.over_tcp) {
            writeln!(f, "congestion   {}", congestion_control())?;
        }
        writeln!(
            f,
            "blocks       {} of up to {} bytes",
            report.blocks, self.block
        )?;
        let stalls = report.stalls;
        writeln!(
            f,
            "waited for   disk {:.3}, wire {:.3}, credits {:.3}, sink {:.3}, limits {:.3} \
             (seconds)",
            stalls.disk.as_secs_f64(),
            stalls.wire.as_secs_f64(),
            stalls.credits.as_secs_f64(),
            stalls.sink.as_secs_f64(),
            stalls.limit.as_secs_f64()
        )?;
        if let Some(hash) = report.blake3 {
            let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            let whose = match report.blake3_compared {
                true => "both sides'",
                false => "the receiver's",
            };
            let (took, share) = (report.hash_time.as_secs_f64(), 100.0 / seconds.max(1e-9));
            writeln!(f, "BLAKE3       {hex}, {whose}")?;
            writeln!(
                f,
                "             {took:.3} s of CPU here, {:.0} % of one core",
                took * share
            )?;
        }
        write!(f, "bottleneck   {}", report.bottleneck())
    }
}

/// What the kernel gives new connections; over tcp it decides more than anything else.
fn congestion_control() -> String {
    let read = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    read.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}
