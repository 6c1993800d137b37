//! How far each receiver is: for people on stderr, for programs as JSON.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use fabricast::stream::{Manifest, PeerProgress};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::measure::{Bytes, Left};
use super::report::Voice;

/// How often a line is printed where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(1);
/// How often a far end tells the near one.
const FAR_INTERVAL: Duration = Duration::from_millis(200);
/// The rate is that of so long.
const RATE_OVER: Duration = Duration::from_secs(5);
/// Columns, where nobody says how many there are.
const COLUMNS: usize = 80;

/// How far one receiver is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PeerLine {
    pub(crate) peer: String,
    pub(crate) bytes: u64,
    pub(crate) total: u64,
    /// Files and directories whose bytes are all there, and of how many. They go one after the
    /// other: counted by their bytes.
    pub(crate) files: u64,
    pub(crate) of_files: u64,
    /// Bytes a second, lately, of those that were sent.
    pub(crate) rate: f64,
}

impl PeerLine {
    /// Seconds until all is there; `None`: nobody can tell.
    fn left(&self) -> Option<f64> {
        let left = self.total.saturating_sub(self.bytes) as f64;
        (self.rate > 0.0).then(|| left / self.rate)
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "type": "progress",
            "peer": self.peer,
            "bytes": self.bytes,
            "total": self.total,
            "files": self.files,
            "of_files": self.of_files,
            "rate": self.rate,
            "left_seconds": self.left(),
        })
    }

    /// `None`: it is something else.
    pub(crate) fn from_json(value: &Value) -> Option<Self> {
        if value["type"] != "progress" {
            return None;
        }
        Some(Self {
            peer: value["peer"].as_str()?.to_owned(),
            bytes: value["bytes"].as_u64()?,
            total: value["total"].as_u64()?,
            files: value["files"].as_u64()?,
            of_files: value["of_files"].as_u64()?,
            rate: value["rate"].as_f64()?,
        })
    }

    /// One line of so many columns at most: what matters least is left out first.
    pub(crate) fn text(&self, columns: usize) -> String {
        let percent = (self.bytes as f64 / self.total.max(1) as f64 * 100.0).floor();
        let percent = match self.total {
            0 => "100 %".to_owned(),
            _ => format!("{percent:.0} %"),
        };
        let rate = format!("{}/s", Bytes(self.rate));
        let left = self.left().map(|left| format!("{} left", Left(left)));
        let amount = format!(
            "{} of {}",
            Bytes(self.bytes as f64),
            Bytes(self.total as f64)
        );
        let files = format!("{} of {} files", self.files, self.of_files);
        // In the order in which they are shown; the number says what goes first.
        let mut parts = vec![(0, percent), (2, amount), (4, files), (1, rate)];
        parts.extend(left.map(|left| (3, left)));
        let name = shorten(&self.peer, (columns / 3).clamp(4, 30));
        loop {
            let texts: Vec<_> = parts.iter().map(|(_, text)| text.as_str()).collect();
            let line = format!("{name}  {}", texts.join(", "));
            if line.chars().count() <= columns {
                return line;
            }
            let last = parts.iter().enumerate().max_by_key(|(_, (rank, _))| *rank);
            match last {
                Some((at, _)) if parts.len() > 1 => drop(parts.remove(at)),
                _ => return line.chars().take(columns).collect(),
            }
        }
    }
}

/// The beginning of a name that is too long: of a place on another machine the host.
fn shorten(name: &str, most: usize) -> String {
    let len = name.chars().count();
    if len <= most {
        return name.to_owned();
    }
    let begin: String = name.chars().take(most - 1).collect();
    format!("{begin}…")
}

/// Counts what was sent lately.
#[derive(Debug, Default)]
struct Meter(VecDeque<(Instant, u64)>);

impl Meter {
    fn rate(&mut self, now: Instant, sent: u64) -> f64 {
        self.0.push_back((now, sent));
        while self.0.len() > 2 && self.0.get(1).is_some_and(|(at, _)| now - *at > RATE_OVER) {
            self.0.pop_front();
        }
        let (since, before) = self.0.front().copied().unwrap_or((now, sent));
        let seconds = (now - since).as_secs_f64();
        match seconds > 0.0 {
            true => sent.saturating_sub(before) as f64 / seconds,
            false => 0.0,
        }
    }
}

/// Where each file's bytes end in the stream.
#[derive(Debug)]
struct FileEnds(Vec<u64>);

impl FileEnds {
    fn of(manifest: &Manifest) -> Self {
        let ends = manifest.iter().scan(0, |end, entry| {
            *end += entry.size;
            Some(*end)
        });
        Self(ends.collect())
    }

    fn within(&self, bytes: u64, over: bool) -> u64 {
        match over || bytes > 0 {
            true => self.0.partition_point(|end| *end <= bytes) as u64,
            false => 0,
        }
    }
}

/// Measures how far each receiver is.
pub(crate) struct Meters {
    names: Vec<String>,
    meters: Vec<Meter>,
    ends: FileEnds,
}

impl Meters {
    pub(crate) fn new(names: Vec<String>, manifest: &Manifest) -> Self {
        Self {
            meters: names.iter().map(|_| Meter::default()).collect(),
            names,
            ends: FileEnds::of(manifest),
        }
    }

    pub(crate) fn measure(&mut self, peers: &[PeerProgress]) -> Vec<PeerLine> {
        let now = Instant::now();
        let all = self.names.iter().zip(&mut self.meters).zip(peers);
        let lines = all.map(|((name, meter), peer)| PeerLine {
            peer: name.clone(),
            bytes: peer.written,
            total: peer.total,
            files: self.ends.within(peer.written, peer.over),
            of_files: self.ends.0.len() as u64,
            rate: meter.rate(now, peer.sent),
        });
        lines.collect()
    }
}

/// Shows lines: on a terminal one for each receiver that changes, else one a second. On stderr:
/// stdout is for results.
pub(crate) struct Progress {
    voice: Voice,
    bars: Option<(MultiProgress, Vec<ProgressBar>)>,
    next_line: Instant,
}

impl Progress {
    pub(crate) fn new(voice: Voice) -> Self {
        let is_drawn = voice == Voice::People && std::io::stderr().is_terminal();
        Self {
            voice,
            bars: is_drawn.then(|| (MultiProgress::new(), Vec::new())),
            next_line: Instant::now() + Self::interval(voice),
        }
    }

    fn interval(voice: Voice) -> Duration {
        match voice {
            Voice::NearEnd => FAR_INTERVAL,
            _ => LINE_INTERVAL,
        }
    }

    pub(crate) fn show(&mut self, lines: &[PeerLine]) {
        if let Some((all, bars)) = &mut self.bars {
            while bars.len() < lines.len() {
                let style = ProgressStyle::with_template("{msg}").expect("it is a constant");
                bars.push(all.add(ProgressBar::new(0).with_style(style)));
            }
            // One column less: some terminals go to the next line behind the last.
            let columns = columns().saturating_sub(1);
            for (bar, line) in bars.iter().zip(lines) {
                bar.set_message(line.text(columns));
            }
            return;
        }
        let now = Instant::now();
        if now < self.next_line {
            return;
        }
        self.next_line = now + Self::interval(self.voice);
        for line in lines {
            match self.voice {
                Voice::People => eprintln!("{}", line.text(COLUMNS)),
                voice => voice.say_json(&line.to_json()),
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // Whatever is printed next, an error for one, has the lines to itself.
        if let Some((_, bars)) = &self.bars {
            bars.iter().for_each(ProgressBar::finish_and_clear);
        }
    }
}

/// Of the terminal that stderr is.
fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr());
    match size.map(|size| usize::from(size.ws_col)) {
        Ok(0) | Err(_) => COLUMNS,
        Ok(columns) => columns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> PeerLine {
        PeerLine {
            peer: "someone@a-long-name.of-a-host.example.org:/data/of/a/run".to_owned(),
            bytes: 1_234_567_890,
            total: 2_700_000_000_000,
            files: 12_345,
            of_files: 1_000_000,
            rate: 512e6,
        }
    }

    #[test]
    fn a_line_fits_any_width_and_keeps_what_matters_most() {
        for columns in 1..200 {
            let text = line().text(columns);
            assert!(text.chars().count() <= columns, "{columns}: {text}");
        }
        let wide = line().text(120);
        for part in [
            "0 %",
            "1.23 GB of 2.70 TB",
            "12345 of 1000000 files",
            "512 MB/s",
            "1:27:52 left",
        ] {
            assert!(wide.contains(part), "{part}: {wide}");
        }
        let narrow = line().text(40);
        assert!(narrow.contains("0 %, 512 MB/s"), "{narrow}");
        let short = PeerLine {
            peer: "host1:/data".to_owned(),
            total: 2_700_000_000,
            of_files: 20_205,
            files: 123,
            ..line()
        };
        let text = short.text(80);
        assert!(
            text.ends_with("left") && text.contains("123 of 20205 files"),
            "{text}"
        );
    }

    #[test]
    fn a_line_is_the_same_behind_json() {
        assert_eq!(PeerLine::from_json(&line().to_json()), Some(line()));
        assert_eq!(PeerLine::from_json(&json!({ "type": "result" })), None);
        let nothing = PeerLine {
            total: 0,
            rate: 0.0,
            ..line()
        };
        assert!(nothing.text(80).contains("100 %"));
        assert!(nothing.to_json()["left_seconds"].is_null());
    }

    #[test]
    fn a_rate_is_that_of_the_last_seconds() {
        let mut meter = Meter::default();
        let begin = Instant::now();
        assert_eq!(meter.rate(begin, 0), 0.0);
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(meter.rate(at(1), 100), 100.0);
        for second in 2..=20 {
            meter.rate(at(second), 100 * second);
        }
        // Then nothing.
        for second in 21..=40 {
            meter.rate(at(second), 2000);
        }
        assert_eq!(meter.rate(at(41), 2000), 0.0);
    }
}
