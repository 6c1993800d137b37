//! How long a message takes, one way: lone ones, and messages at a fixed rate, whatever became of
//! those before (an open loop: a message that goes out late is late from when it was due).
//!
//! Both processes read the same clock of one machine, the monotonic one. Both spin.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fabricast::buffer::{HeaderSlotConfig, SharedBufferManager};
use fabricast::endpoint::{HeaderMode, Packing, ReceiveConfig, SendConfig};
use fabricast::fabric::WaitObject;
use fabricast::{
    ConnectionEvent, Domain, Fabric, PeerAddr, ReceiveEndpoint, ReceiveEvent, SendEndpointZeroCopy,
    SendEvent,
};
use rustix::time::{ClockId, clock_gettime};

use crate::child::Guard;
use crate::clock::Patience;
use crate::error::{Failure, fail};
use crate::stats::{median, median_interval, quantile};
use crate::{host, json, ours};

/// Bytes of a header: when the message was due, and whether it is the last one.
const HEADER: usize = 16;
/// Payloads of a sender.
const PAYLOADS: u32 = 4096;
/// Between a lone message's confirmation and the next one: the receiver has nothing for so long.
const PAUSE_NS: u64 = 100_000;
/// At first, while buffers are touched and the network wakes up, nothing is counted.
const WARM_UP_NS: u64 = 100_000_000;
/// Times that are kept, at most.
const SAMPLES_MAX: usize = 8_000_000;
/// A rate that was not reached by more than this: the times are those of a queue that grows.
const HELD: f64 = 0.99;

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    place: crate::Place,
    /// Messages in thousands a second, some with commas between; 0: lone ones, each after the one
    /// before was confirmed and 100 us more
    #[arg(long, value_delimiter = ',', default_value = "0,10,100,1000")]
    rate: Vec<u32>,
    /// Payload sizes in bytes, with K, M or G for powers of 1024
    #[arg(long, value_delimiter = ',', default_value = "64", value_parser = crate::parse_size)]
    size: Vec<usize>,
    /// Whether messages are packed: off, on, or both in turn
    #[arg(long, value_delimiter = ',', default_value = "off,on")]
    pack: Vec<Pack>,
    /// Length of each run
    #[arg(long, default_value_t = 1.0, value_parser = crate::parse_seconds)]
    seconds: f64,
    /// Runs of each, all kinds in turn
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=1000))]
    runs: u16,
    /// libfabric provider with connections
    #[arg(long, default_value = "tcp")]
    provider: String,
    /// Run in a network namespace of its own with this TCP congestion control, where that may be
    /// made
    #[arg(long, value_name = "CONGESTION")]
    pub(crate) netns: Option<String>,
    /// One JSON object a line and case, instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct ReceiverOptions {
    #[command(flatten)]
    place: crate::Place,
    #[arg(long)]
    size: usize,
    #[arg(long)]
    pack: Pack,
    #[arg(long)]
    seconds: f64,
    #[arg(long)]
    provider: String,
}

/// Whether small messages share frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pack {
    Off,
    On,
}

impl Pack {
    fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
        }
    }
}

/// What is measured.
#[derive(Clone, Copy)]
struct Case<'a> {
    options: &'a Options,
    size: usize,
    pack: Pack,
    /// Thousands a second; 0: lone.
    rate: u32,
}

/// What one run gave, in microseconds; `khz`: what was sent.
#[derive(Clone, Copy)]
struct Times {
    khz: f64,
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn open(provider: &str, node: &str) -> Result<Arc<Domain>, Failure> {
    let fabric = Fabric::builder().provider(provider).node(node);
    let fabric = fabric.wait_object(WaitObject::None).open()?;
    Ok(fabric.open_domain()?)
}

fn limit(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds) + Duration::from_secs(20)
}

// ---- the receiver -------------------------------------------------------------------------------

/// Takes messages until the last one, and prints how old they were.
pub(crate) fn receive(options: &ReceiverOptions) -> Result<(), Failure> {
    if options.place.pins() {
        host::pin(1)?;
    }
    let domain = open(&options.provider, &options.place.node)?;
    let config = ReceiveConfig::default()
        .incoming(|incoming| match options.pack {
            Pack::Off => {
                let message = (HEADER + options.size).next_multiple_of(64);
                incoming.max_message(message).credits(254).slots(300)
            }
            Pack::On => incoming
                .max_message(ours::FRAME)
                .credits(ours::FRAMES)
                .slots(ours::FRAMES + 2 + 16),
        })
        .connection(|c| c.max_connections(1))
        .header_mode(HeaderMode::Fixed(HEADER as u16));
    let any = SocketAddr::new(options.place.node.parse()?, 0);
    let mut endpoint = ReceiveEndpoint::listen(&domain, any.into(), config)?;
    println!("listening {}", endpoint.local_addr());
    std::io::stdout().flush()?;
    let mut ages = ages(&mut endpoint, limit(options.seconds))?;
    ages.sort_unstable();
    let at = |share| quantile(&ages, share) / 1e3;
    println!("{} {} {} {}", at(0.5), at(0.99), at(0.999), at(1.0));
    Ok(())
}

/// The ages of all messages up to the last one, in nanoseconds.
fn ages(endpoint: &mut ReceiveEndpoint, limit: Duration) -> Result<Vec<u32>, Failure> {
    let mut ages = Vec::with_capacity(SAMPLES_MAX);
    // Touched now, not while it is filled.
    ages.resize(SAMPLES_MAX, 1_u32);
    ages.clear();
    let mut patience = Patience::new(limit);
    let mut events = Vec::with_capacity(256);
    loop {
        let found = endpoint.poll(&mut events)?;
        for event in events.drain(..) {
            match event {
                ReceiveEvent::Message(message) => {
                    let Ok([due, last]) = words(message.header()) else {
                        return fail("a header of another length");
                    };
                    if last == 1 {
                        return Ok(ages);
                    }
                    if due > 0 && ages.len() < SAMPLES_MAX {
                        let age = now_ns().saturating_sub(due);
                        ages.push(u32::try_from(age).unwrap_or(u32::MAX));
                    }
                }
                ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                    return fail(reason.to_string());
                }
                _ => {}
            }
        }
        patience.on_poll(found)?;
    }
}

/// Two words; an error for a header that is not as long.
fn words(header: &[u8]) -> Result<[u64; 2], std::array::TryFromSliceError> {
    let bytes: [u8; HEADER] = header.try_into()?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok([0, 1].map(|at| u64::from_le_bytes(words[at])))
}

// ---- the sender ---------------------------------------------------------------------------------

struct Sender {
    endpoint: SendEndpointZeroCopy,
    payloads: SharedBufferManager,
    size: usize,
    events: Vec<SendEvent>,
    completed: u64,
    posted: u64,
    patience: Patience,
}

impl Sender {
    fn connect(case: &Case<'_>, to: PeerAddr) -> Result<Self, Failure> {
        let domain = open(&case.options.provider, &case.options.place.node)?;
        let payloads = SharedBufferManager::allocate(PAYLOADS, case.size)?;
        payloads.region().register(&domain)?;
        let config = SendConfig::default().outgoing(|out| {
            out.depth(64)
                .packing(match case.pack {
                    Pack::Off => Packing::Off,
                    Pack::On => Packing::Auto,
                })
                .header_mode(HeaderMode::Fixed(HEADER as u16))
                .headers(HeaderSlotConfig {
                    slots: 64,
                    slot_size: 64,
                })
        });
        let mut endpoint = SendEndpointZeroCopy::connect(&domain, to, config)?;
        endpoint.wait_connected()?;
        Ok(Self {
            endpoint,
            payloads,
            size: case.size,
            events: Vec::with_capacity(256),
            completed: 0,
            posted: 0,
            patience: Patience::new(limit(case.options.seconds)),
        })
    }

    /// Sends a message; false: not now.
    fn post(&mut self, due: u64, last: u64) -> Result<bool, Failure> {
        let Some(payload) = self.payloads.try_acquire() else {
            return Ok(false);
        };
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&due.to_le_bytes());
        header[8..].copy_from_slice(&last.to_le_bytes());
        match self
            .endpoint
            .send_data(payload.freeze(self.size), &header, 0)
        {
            Ok(()) => {
                self.posted += 1;
                Ok(true)
            }
            Err(refused) if refused.is_would_block() => Ok(false),
            Err(refused) => fail(refused.to_string()),
        }
    }

    fn poll(&mut self) -> Result<(), Failure> {
        let found = self.endpoint.poll(&mut self.events)?;
        for event in self.events.drain(..) {
            match event {
                // Its payload goes back to the pool.
                SendEvent::Completed { .. } => self.completed += 1,
                SendEvent::Failed { error, .. } => return fail(error.to_string()),
                SendEvent::Connection(ConnectionEvent::Disconnected(reason)) => {
                    return fail(reason.to_string());
                }
                _ => {}
            }
        }
        self.patience.on_poll(found)
    }

    /// One at a time, up to some time.
    fn lone(&mut self, counted: u64, until: u64) -> Result<(), Failure> {
        loop {
            let now = now_ns();
            if now >= until {
                return Ok(());
            }
            while !self.post(if now < counted { 0 } else { now }, 0)? {
                self.poll()?;
            }
            while self.completed < self.posted {
                self.poll()?;
            }
            let next = now_ns() + PAUSE_NS;
            while now_ns() < next {
                self.poll()?;
            }
        }
    }

    /// Messages that are due every so many nanoseconds, up to some time.
    fn paced(&mut self, period: f64, counted: u64, until: u64) -> Result<(), Failure> {
        let begun = now_ns();
        let mut sent = 0_u64;
        loop {
            let now = now_ns();
            if now >= until {
                return Ok(());
            }
            loop {
                let due = begun + (sent as f64 * period) as u64;
                if due > now || !self.post(if due < counted { 0 } else { due }, 0)? {
                    break;
                }
                sent += 1;
            }
            self.poll()?;
        }
    }

    /// All of it; thousands of messages a second that were sent.
    fn run(&mut self, case: &Case<'_>) -> Result<f64, Failure> {
        let begun = now_ns();
        let counted = begun + WARM_UP_NS;
        let until = counted + (case.options.seconds * 1e9) as u64;
        match case.rate {
            0 => self.lone(counted, until)?,
            rate => self.paced(1e6 / f64::from(rate), counted, until)?,
        }
        let khz = self.posted as f64 / (now_ns() - begun) as f64 * 1e6;
        while !self.post(0, 1)? {
            self.poll()?;
        }
        while self.completed < self.posted {
            self.poll()?;
        }
        Ok(khz)
    }
}

// ---- runs ---------------------------------------------------------------------------------------

fn run_once(case: &Case<'_>) -> Result<Times, Failure> {
    let options = case.options;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["latency-receiver", "--node", &options.place.node])
        .args(["--provider", &options.provider])
        .args(["--size", &case.size.to_string()])
        .args(["--seconds", &options.seconds.to_string()])
        .args(["--pack", case.pack.name()])
        .args((!options.place.pins()).then_some("--no-pin"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut receiver = Guard::start(&mut command, options.place.pins().then_some(1))?;
    let mut lines = BufReader::new(receiver.lines()?).lines();
    let mut line = || lines.next().unwrap_or(Ok(String::new()));
    let first = line()?;
    let to = first.strip_prefix("listening ");
    let to = to.ok_or_else(|| Failure::of("the receiver did not start"))?;
    let mut sender = Sender::connect(case, to.parse()?)?;
    let khz = sender.run(case)?;
    let answer = line()?;
    let words = answer.split(' ').map(str::parse);
    let [p50, p99, p999, max] = words.collect::<Result<Vec<f64>, _>>()?[..] else {
        return fail("the receiver did not say what it saw");
    };
    receiver.wait(Duration::from_secs(10))?;
    Ok(Times {
        khz,
        p50,
        p99,
        p999,
        max,
    })
}

/// All cases, each so many times, in turn.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    if options.place.pins() {
        host::pin(0)?;
    }
    let mut cases = Vec::new();
    for &size in &options.size {
        for &rate in &options.rate {
            let case = |&pack| Case {
                options,
                size,
                pack,
                rate,
            };
            cases.extend(options.pack.iter().map(case));
        }
    }
    let mut found = vec![Vec::new(); cases.len()];
    for _ in 0..options.runs {
        for (case, times) in cases.iter().zip(&mut found) {
            times.push(run_once(case)?);
        }
    }
    let report = open(&options.provider, &options.place.node)?.report();
    let congestion = host::congestion_over(&options.provider);
    let congestion = congestion.as_deref().unwrap_or("none");
    if !options.json {
        println!(
            "{} of libfabric {}, congestion control {congestion}; microseconds one way, medians \
             of {} runs of {} s [95 % interval]",
            report.provider, report.library, options.runs, options.seconds
        );
        println!("| bytes | kHz | packing | sent kHz | p50 | p99 | p99.9 | max |");
        println!("|---|---|---|---|---|---|---|---|");
    }
    for (case, times) in cases.iter().zip(&found) {
        match options.json {
            true => case.print_json(times, &report.provider, &report.library, congestion),
            false => case.print(times),
        }
    }
    Ok(())
}

/// One of the figures of a run.
type Field = fn(&Times) -> f64;

fn column(times: &[Times], of: Field) -> Vec<f64> {
    times.iter().map(of).collect()
}

impl Case<'_> {
    fn is_held(&self, khz: f64) -> bool {
        self.rate == 0 || khz >= f64::from(self.rate) * HELD
    }

    fn print(&self, times: &[Times]) {
        let khz = median(&column(times, |times| times.khz));
        let shown = |of: Field| {
            let values = column(times, of);
            let (low, high) = median_interval(&values);
            format!("{:.1} [{low:.1}, {high:.1}]", median(&values))
        };
        let rate = match self.rate {
            0 => "lone".to_owned(),
            rate => rate.to_string(),
        };
        let (size, pack) = (self.size, self.pack.name());
        if !self.is_held(khz) {
            println!("| {size} | {rate} | {pack} | {khz:.1}: not reached | - | - | - | - |");
            return;
        }
        println!(
            "| {size} | {rate} | {pack} | {khz:.1} | {} | {} | {} | {:.0} |",
            shown(|times| times.p50),
            shown(|times| times.p99),
            shown(|times| times.p999),
            median(&column(times, |times| times.max)),
        );
    }

    fn print_json(&self, times: &[Times], provider: &str, libfabric: &str, congestion: &str) {
        let mut line = "{".to_owned();
        json::text(&mut line, "op", "latency");
        json::text(&mut line, "provider", provider);
        json::text(&mut line, "libfabric", libfabric);
        json::text(&mut line, "congestion", congestion);
        json::text(&mut line, "packing", self.pack.name());
        json::number(&mut line, "size_bytes", self.size as f64);
        json::number(&mut line, "rate_khz", self.rate.into());
        json::number(&mut line, "runs", times.len() as f64);
        let fields: [(&str, Field); 5] = [
            ("sent_khz", |times| times.khz),
            ("p50_us", |times| times.p50),
            ("p99_us", |times| times.p99),
            ("p999_us", |times| times.p999),
            ("max_us", |times| times.max),
        ];
        for (name, of) in fields {
            let values = column(times, of);
            let (low, high) = median_interval(&values);
            json::number(&mut line, name, median(&values));
            json::number(&mut line, &format!("{name}_lo"), low);
            json::number(&mut line, &format!("{name}_hi"), high);
        }
        line.push('}');
        println!("{line}");
    }
}
