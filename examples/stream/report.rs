//! What a person sees: progress while it runs, and a summary when it is done.

use std::fmt;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use fabricast::fabric::Report;
use fabricast::memory::Pages;
use fabricast::stats::SendStats;
use indicatif::{ProgressBar, ProgressStyle};

use crate::source::ReadStats;

/// How often a line is printed where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// A bar on a terminal, else a line a second. On stderr: stdout is for results.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    total: u64,
    started: Instant,
    next_line: Instant,
}

impl Progress {
    pub(crate) fn new(total: u64) -> Self {
        let now = Instant::now();
        Self {
            bar: std::io::stderr().is_terminal().then(|| new_bar(total)),
            total,
            started: now,
            next_line: now + LINE_INTERVAL,
        }
    }

    pub(crate) fn show(&mut self, done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            return;
        }
        let now = Instant::now();
        if now >= self.next_line {
            self.next_line = now + LINE_INTERVAL;
            let percent = done as f64 / self.total.max(1) as f64 * 100.0;
            let rate = gb_per_s(done, now - self.started);
            eprintln!(
                "{done} of {} bytes ({percent:.0} %), {rate:.2} GB/s",
                self.total
            );
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // Whatever is printed next, an error for one, has the line to itself.
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn new_bar(total: u64) -> ProgressBar {
    let template = "{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} to go";
    let style = ProgressStyle::with_template(template).expect("the template is a constant");
    ProgressBar::new(total).with_style(style)
}

/// Why sends were refused for the time being, by what they waited for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stalls {
    /// The receiver had not granted more messages.
    pub(crate) credits: u64,
    /// As many sends were in flight as the depth allows.
    pub(crate) depth: u64,
    /// No header slot was free.
    pub(crate) header_slots: u64,
    /// The provider's queue was full.
    pub(crate) provider: u64,
}

/// What was sent, how fast, and which way.
pub(crate) struct Summary {
    pub(crate) files: usize,
    pub(crate) bytes: u64,
    pub(crate) took: Duration,
    pub(crate) fabric: Report,
    pub(crate) block: usize,
    pub(crate) buffers: usize,
    pub(crate) pages: Option<Pages>,
    pub(crate) reader: ReadStats,
    pub(crate) stalls: Stalls,
    pub(crate) sends: SendStats,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (fabric, stalls, sends) = (&self.fabric, &self.stalls, &self.sends);
        let seconds = self.took.as_secs_f64();
        let rate = gb_per_s(self.bytes, self.took);
        writeln!(f, "files        {}", self.files)?;
        writeln!(f, "bytes        {}", self.bytes)?;
        writeln!(
            f,
            "seconds      {seconds:.3} (until the receiver had written them)"
        )?;
        writeln!(f, "rate         {rate:.2} GB/s")?;
        writeln!(
            f,
            "provider     {} {} on {}",
            fabric.provider, fabric.provider_version, fabric.interface
        )?;
        writeln!(f, "libfabric    {} (API {})", fabric.library, fabric.api)?;
        writeln!(f, "shape        {}", fabric.shape)?;
        writeln!(f, "path         Host ({})", fabric.copies)?;
        writeln!(f, "congestion   {}", congestion_control())?;
        writeln!(
            f,
            "blocks       {} of up to {} bytes, {} buffers in {}",
            self.reader.blocks,
            self.block,
            self.buffers,
            pages_text(self.pages)
        )?;
        write!(
            f,
            "waited for   buffer {}, credits {}, depth {}, header slot {}, provider {} (times); {} in flight at most",
            self.reader.waits,
            stalls.credits,
            stalls.depth,
            stalls.header_slots,
            stalls.provider,
            sends.in_flight_max
        )
    }
}

fn pages_text(pages: Option<Pages>) -> &'static str {
    match pages {
        Some(Pages::Huge2M) => "huge pages",
        Some(Pages::Transparent) => "transparent huge pages",
        Some(Pages::Base) | None => "ordinary pages",
    }
}

/// What the kernel gives new connections; over tcp it decides more than anything else.
fn congestion_control() -> String {
    let read = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    read.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

fn gb_per_s(bytes: u64, took: Duration) -> f64 {
    bytes as f64 / took.as_secs_f64().max(1e-9) / 1e9
}
