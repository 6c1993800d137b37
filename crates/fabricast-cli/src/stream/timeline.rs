//! `--timeline`: where the time of a stream went, drawn as a page.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::time::Duration;

use fabricast::stream::{StreamReport, Timeline, TimelineSample};
use fabricast_charts::{Lane, Lanes, Page, Picture, Section};

use super::measure::Bytes;
use crate::failure::{End, Failure};

/// Addresses of a peer that have a lane of their own, at most.
const ADDRESSES_MAX: usize = 16;

/// Which side of a stream drew it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Sender,
    Receiver,
}

/// One stream, and how it went.
pub(crate) struct Drawn<'a> {
    /// The other side, as people know it.
    pub(crate) peer: String,
    pub(crate) report: &'a StreamReport,
    /// The addresses of a receiver, as its sender has them.
    pub(crate) addresses: Vec<String>,
    /// How it ended, if not well.
    pub(crate) error: Option<String>,
}

/// Sees that the file can be written, before hours of work are to be drawn into it.
pub(crate) fn check(path: &Path) -> Result<(), Failure> {
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map(drop).map_err(|error| failed(path, &error))
}

/// Draws these streams into a file.
pub(crate) fn write(path: &Path, side: Side, streams: &[Drawn<'_>]) -> Result<(), Failure> {
    let page = page(side, streams);
    fs::write(path, page.html()).map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::os(format_args!("--timeline: {}", path.display()), error).ends(End::Sink)
}

fn page(side: Side, streams: &[Drawn<'_>]) -> Page {
    let text = match side {
        Side::Sender => {
            "As the sender saw it, one part for each receiver. At each moment it connects, \
             waits for one thing, or bytes are moving: these shares come to 100 % of the time."
        }
        Side::Receiver => {
            "As the receiver saw it. At each moment it connects, waits for one thing, or bytes are \
             moving: these shares come to 100 % of the time."
        }
    };
    Page {
        title: "fabricast: where the time of a stream went".to_owned(),
        text: vec![text.to_owned()],
        sections: streams.iter().map(|stream| section(side, stream)).collect(),
    }
}

fn section(side: Side, stream: &Drawn<'_>) -> Section {
    let report = stream.report;
    let mut text = vec![report.to_string()];
    text.extend(
        stream
            .error
            .iter()
            .map(|error| format!("It failed: {error}")),
    );
    let mut pictures = Vec::new();
    match &report.timeline {
        None => text.push("It ended before anything was recorded.".to_owned()),
        Some(timeline) => {
            let all = [
                waits(side, timeline),
                threads(timeline),
                bytes(side, stream, timeline),
            ];
            text.push(format!("Each step is {}.", seconds(timeline.interval())));
            pictures.extend(all.iter().map(Picture::of_lanes));
        }
    }
    let heading = match side {
        Side::Sender => format!("to {}", stream.peer),
        Side::Receiver => format!("from {}", stream.peer),
    };
    Section {
        heading,
        text,
        pictures,
        ..Section::default()
    }
}

fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        short if short < 1.0 => format!("{:.0} ms", 1000.0 * short),
        long => format!("{long:.1} s"),
    }
}

/// A value of each sample.
fn of_each(timeline: &Timeline, value: impl Fn(usize, &TimelineSample) -> f64) -> Vec<f64> {
    let samples = timeline.samples().iter().enumerate();
    samples
        .map(|(number, sample)| value(number, sample))
        .collect()
}

/// What was waited for: shares of each interval.
fn waits(side: Side, timeline: &Timeline) -> Lanes {
    let source = match side {
        Side::Sender => "reading (source)",
        Side::Receiver => "reading (disk)",
    };
    type Wait = fn(&TimelineSample) -> Duration;
    let causes: [(&str, usize, Wait); 5] = [
        (source, 1, |it| it.stalls.disk),
        ("network (wire)", 2, |it| it.stalls.wire),
        ("credits", 3, |it| it.stalls.credits),
        ("writing (sink)", 4, |it| it.stalls.sink),
        ("limits, pauses", 6, |it| it.stalls.limit),
    ];
    let share = |number: usize, time: Duration| {
        time.as_secs_f64() / timeline.length(number).as_secs_f64().max(1e-9)
    };
    let all = timeline.took().as_secs_f64().max(1e-9);
    let lane = |name: &str, look: usize, times: Vec<Duration>| Lane {
        name: name.to_owned(),
        look,
        shares: times
            .iter()
            .enumerate()
            .map(|(number, time)| share(number, *time))
            .collect(),
        total: {
            let sum: Duration = times.iter().sum();
            format!("{:.1} %", 100.0 * sum.as_secs_f64() / all)
        },
        full: "100 %".to_owned(),
    };
    let numbers = 0..timeline.samples().len();
    let moving = numbers.map(|number| timeline.moving(number)).collect();
    let connecting = timeline.samples().iter().map(|sample| sample.connecting);
    let mut lanes = vec![
        lane("connecting", 5, connecting.collect()),
        lane("bytes moving", 0, moving),
    ];
    for (name, look, wait) in causes {
        let times: Vec<_> = timeline.samples().iter().map(wait).collect();
        // Most streams have no limit, and no pause.
        if name != "limits, pauses" || times.iter().any(|time| !time.is_zero()) {
            lanes.push(lane(name, look, times));
        }
    }
    Lanes {
        title: "What it waited for".to_owned(),
        description:
            "The share of each interval in which there was no connection, bytes moved, or \
                      one thing was waited for: source, network, credits, sink, or a limit."
                .to_owned(),
        seconds: timeline.took().as_secs_f64(),
        lanes,
    }
}

/// A lane as high as its greatest value; `shown` says a value in words.
fn scaled(
    name: String,
    look: usize,
    values: Vec<f64>,
    total: f64,
    shown: impl Fn(f64) -> String,
) -> Lane {
    let most = values.iter().copied().fold(0.0, f64::max);
    Lane {
        name,
        look,
        shares: values.iter().map(|value| value / most.max(1e-9)).collect(),
        total: shown(total),
        full: shown(most),
    }
}

/// How many threads were at work.
fn threads(timeline: &Timeline) -> Lanes {
    let lane = |name: &str, look: usize, work: fn(&TimelineSample) -> Duration| {
        let busy = |number: usize, sample: &TimelineSample| {
            work(sample).as_secs_f64() / timeline.length(number).as_secs_f64().max(1e-9)
        };
        let sum: Duration = timeline.samples().iter().map(work).sum();
        let total = sum.as_secs_f64() / timeline.took().as_secs_f64().max(1e-9);
        let values = of_each(timeline, busy);
        (!sum.is_zero()).then(|| {
            let shown = |threads: f64| format!("{threads:.2}");
            scaled(name.to_owned(), look, values, total, shown)
        })
    };
    let lanes = [
        lane("reading", 0, |it| it.read_time),
        lane("writing", 4, |it| it.write_time),
        lane("of it hashing", 2, |it| it.hash_time),
    ];
    Lanes {
        title: "Threads at work on this side, on average".to_owned(),
        description: "How many threads were reading, writing and hashing in each interval. A \
                      strip is as high as its greatest value."
            .to_owned(),
        seconds: timeline.took().as_secs_f64(),
        lanes: lanes.into_iter().flatten().collect(),
    }
}

/// Bytes a second, and by which address of the receiver.
fn bytes(side: Side, stream: &Drawn<'_>, timeline: &Timeline) -> Lanes {
    let rate =
        |number: usize, bytes: u64| bytes as f64 / timeline.length(number).as_secs_f64().max(1e-9);
    let shown = |rate: f64| format!("{}/s", Bytes(rate));
    let lane = |name: String, look: usize, bytes: Vec<u64>| {
        let sum: u64 = bytes.iter().sum();
        let total = sum as f64 / timeline.took().as_secs_f64().max(1e-9);
        let rates = bytes
            .iter()
            .enumerate()
            .map(|(number, it)| rate(number, *it));
        scaled(name, look, rates.collect(), total, shown)
    };
    let name = match side {
        Side::Sender => "sent",
        Side::Receiver => "written",
    };
    let all = timeline
        .samples()
        .iter()
        .map(|sample| sample.bytes)
        .collect();
    let mut lanes = vec![lane(name.to_owned(), 0, all)];
    if timeline.addresses() > 1 {
        for address in 0..timeline.addresses().min(ADDRESSES_MAX) {
            let name = stream.addresses.get(address);
            let name = name
                .cloned()
                .unwrap_or_else(|| format!("rail {}", address + 1));
            let bytes = timeline.address_bytes(address).collect();
            lanes.push(lane(name, 1 + address, bytes));
        }
    }
    Lanes {
        title: match lanes.len() {
            1 => "Bytes".to_owned(),
            _ => "Bytes, in all and by each rail".to_owned(),
        },
        description: "Bytes a second in each interval. A strip is as high as its greatest value."
            .to_owned(),
        seconds: timeline.took().as_secs_f64(),
        lanes,
    }
}
