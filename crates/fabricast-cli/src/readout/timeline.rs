//! `--timeline`: how a run of a readout went over time, drawn as a page.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::time::Duration;

use fabricast_charts::{Lane, Lanes, Page, Picture, Samples, Section, short};

use crate::failure::{End, Failure};
use crate::readout::detector::Status;
use crate::readout::link::{Link, Stalls};
use crate::stream::measure::Bytes;

/// Seconds of an interval at first.
const INTERVAL: f64 = 0.05;
/// Builders that have a lane of their own, at most.
const BUILDERS_MAX: usize = 16;

/// What is counted: the kinds of [`Samples`].
const BUILT: usize = 0;
const BYTES: usize = 1;
const FULLEST: usize = 2;
const UNDER_WAY: usize = 3;
const WAITS: usize = 4;
const BUILDERS: usize = WAITS + WAIT_NAMES.len();

/// What a send found full, in the order of [`waits`].
const WAIT_NAMES: [&str; 5] = [
    "builder full",
    "credits",
    "depth",
    "header slots",
    "provider",
];

fn waits(stalls: &Stalls) -> [u64; WAIT_NAMES.len()] {
    let Stalls {
        granted,
        credits,
        depth,
        header_slots,
        provider,
    } = *stalls;
    [granted, credits, depth, header_slots, provider]
}

/// A run that is under way.
pub(crate) struct RunTimeline {
    samples: Samples,
    last: f64,
    /// The counts of the last look: kinds that are flows.
    before: Vec<f64>,
    builders: Vec<String>,
}

impl RunTimeline {
    /// Sees that the file can be written, before a run is to be drawn into it.
    ///
    /// # Errors
    /// It can't.
    pub(crate) fn new(path: &Path) -> Result<Self, Failure> {
        let opened = OpenOptions::new().append(true).create(true).open(path);
        opened.map_err(|error| failed(path, &error))?;
        let kinds = BUILDERS + BUILDERS_MAX;
        Ok(Self {
            samples: Samples::new(kinds, INTERVAL),
            last: 0.0,
            before: vec![0.0; kinds],
            builders: Vec::new(),
        })
    }

    /// Looks at all counts. `under_way`: events that are not built yet; `ring`: bytes of one ring.
    pub(crate) fn look(
        &mut self,
        running: Duration,
        links: &[Link],
        statuses: &[std::sync::Arc<Status>],
        (under_way, ring): (usize, u64),
    ) {
        let (from, to) = (self.last, running.as_secs_f64());
        if to <= from {
            return;
        }
        self.last = to;
        let mut stalls = Stalls::default();
        links.iter().for_each(|link| stalls.add(link.stalls));
        self.flow(BUILT, links.iter().map(|link| link.built).sum(), to, from);
        self.flow(
            BYTES,
            links.iter().map(|link| link.sent.bytes).sum(),
            to,
            from,
        );
        for (kind, count) in waits(&stalls).into_iter().enumerate() {
            self.flow(WAITS + kind, count, to, from);
        }
        for (number, link) in links.iter().take(BUILDERS_MAX).enumerate() {
            if number == self.builders.len() {
                self.builders.push(link.to.to_string());
            }
            self.flow(BUILDERS + number, link.sent.bytes, to, from);
        }
        let used = statuses
            .iter()
            .map(|status| Status::get(&status.used))
            .max();
        let fullest = used.unwrap_or(0) as f64 / ring.max(1) as f64;
        self.samples.add(FULLEST, from, to, fullest * (to - from));
        self.samples
            .add(UNDER_WAY, from, to, under_way as f64 * (to - from));
    }

    fn flow(&mut self, kind: usize, count: u64, to: f64, from: f64) {
        let count = count as f64;
        self.samples.add(kind, from, to, count - self.before[kind]);
        self.before[kind] = count;
    }

    /// Draws the run into the file.
    ///
    /// # Errors
    /// It can't be written.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Failure> {
        let pictures = [self.flows(), self.refusals()];
        let page = Page {
            title: "fabricast readout: a run over time".to_owned(),
            text: vec![
                "As the readout saw it. A strip is as high as its greatest value, which the table \
                 below it says."
                    .to_owned(),
            ],
            sections: vec![Section {
                heading: "What went, and what waited".to_owned(),
                pictures: pictures.iter().map(Picture::of_lanes).collect(),
                ..Section::default()
            }],
        };
        fs::write(path, page.html()).map_err(|error| failed(path, &error))
    }

    fn lane(&self, name: &str, look: usize, kind: usize, unit: &str) -> Lane {
        let rates = self.samples.rates(kind);
        let most = rates.iter().copied().fold(0.0, f64::max);
        let shown = |value: f64| match unit {
            "B/s" => format!("{}/s", Bytes(value)),
            unit => format!("{}{unit}", short(value)),
        };
        Lane {
            name: name.to_owned(),
            look,
            shares: rates.iter().map(|rate| rate / most.max(1e-12)).collect(),
            total: shown(self.samples.sum(kind) / self.samples.seconds().max(1e-9)),
            full: shown(most),
        }
    }

    fn flows(&self) -> Lanes {
        let mut lanes = vec![
            self.lane("events built", 0, BUILT, "/s"),
            self.lane("bytes sent", 1, BYTES, "B/s"),
            self.lane("fullest ring", 2, FULLEST, ""),
            self.lane("events under way", 3, UNDER_WAY, ""),
        ];
        if self.builders.len() > 1 {
            for (number, builder) in self.builders.iter().enumerate() {
                lanes.push(self.lane(builder, 4 + number, BUILDERS + number, "B/s"));
            }
        }
        Lanes {
            title: "Events, bytes, rings, and bytes to each builder".to_owned(),
            description: "Events built and bytes sent a second, how full the fullest ring was, \
                          from 0 to 1, and how many events were not built yet."
                .to_owned(),
            seconds: self.samples.seconds(),
            lanes,
        }
    }

    fn refusals(&self) -> Lanes {
        let names = WAIT_NAMES.into_iter().enumerate();
        let lanes = names.map(|(kind, name)| self.lane(name, 1 + kind, WAITS + kind, "/s"));
        Lanes {
            title: "What fragments found full, times a second".to_owned(),
            description: "How many times a second a send had to wait: for the builder, for \
                          credits, for the depth, for a header slot, for the provider."
                .to_owned(),
            seconds: self.samples.seconds(),
            lanes: lanes.collect(),
        }
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::os(format_args!("--timeline: {}", path.display()), error).ends(End::Sink)
}
