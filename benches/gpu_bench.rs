//! How fast a GPU's memory goes to a GPU's memory over tcp, staged on both sides, beside the host's
//! memory in the same run.
//!
//! ```text
//! gpu_bench                               256 KiB to 16 MiB, 15 pairs of runs each
//! gpu_bench --size 256K,1M --runs 5
//! gpu_bench --set 0                       the same few payloads again and again: the host's come
//!                                         out of the cache
//! ```
//!
//! Two processes on this machine. A pair is a run from host to host and a run from GPU to GPU,
//! which begins first taking turns; both with the same message size, depth and number of messages,
//! timed from the first send until the receiver has handed out the last. What is printed is the
//! median of the ratios of the pairs and its 95 % interval, and how many copies out of the GPU ran
//! behind earlier messages.

use std::collections::VecDeque;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use fabricast::buffer::{DeviceBufferManager, Payload, SharedBufferManager};
use fabricast::cuda::Device;
use fabricast::endpoint::{DeviceDelivery, ReceiveConfig, SendConfig, StagingConfig, StagingRing};
use fabricast::{
    ConnectionEvent, Domain, Fabric, PeerAddr, ReceiveEndpoint, ReceiveEvent, Region,
    SendEndpointZeroCopy, SendEvent,
};
use fabricast_bench::{size, stats};

type Failure = Box<dyn Error>;

/// Messages that the receiver grants, and payloads that are in flight.
const DEPTH: u32 = 8;
/// How long one message may take.
const LIMIT: Duration = Duration::from_secs(30);

/// GPU to GPU, staged, beside host to host.
#[derive(Parser)]
struct Cli {
    /// Bytes of a payload, with K, M or G.
    #[arg(long, value_delimiter = ',', default_value = "256K,1M,4M,16M")]
    size: Vec<String>,
    /// Pairs of runs.
    #[arg(long, default_value_t = 15)]
    runs: usize,
    /// Bytes that the payloads of each side lie in, at least: they are sent in turns. With less
    /// than the cache has, the host's are sent out of the cache, as nothing is that was just made;
    /// `0`: as few as may be in flight.
    #[arg(long, default_value = "256M")]
    set: String,
    /// Bytes of one run.
    #[arg(long, default_value = "2G")]
    bytes: String,
    /// The GPU.
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// The half that receives; started by the other.
    #[arg(long, hide = true)]
    receive: bool,
}

fn main() -> Result<(), Failure> {
    let cli = Cli::parse();
    if cli.receive {
        return receive(cli.device);
    }
    let device = match Device::new(cli.device) {
        Ok(device) => device,
        Err(why) => {
            println!("SKIPPED: {why}");
            return Ok(());
        }
    };
    println!("# {device}, tcp on the loopback interface");
    println!("# size  host GB/s  gpu GB/s  gpu/host  95 % interval  copies overlapped");
    for size in &cli.size {
        measure(&cli, parse(size)?)?;
    }
    Ok(())
}

fn domain() -> Result<Arc<Domain>, Failure> {
    let fabric = Fabric::builder().provider("tcp").node("127.0.0.1").open()?;
    Ok(fabric.open_domain()?)
}

fn parse(text: &str) -> Result<usize, Failure> {
    size::parse(text).ok_or_else(|| format!("{text:?} is no number of bytes").into())
}

// ---- the half that sends ------------------------------------------------------------------------

fn measure(cli: &Cli, size: usize) -> Result<(), Failure> {
    let domain = domain()?;
    let mut receiver = Receiver::start(size, cli.device)?;
    let ring = StagingRing::new(StagingConfig {
        slots: 2 * DEPTH,
        slot_bytes: size,
        ..StagingConfig::default()
    })?;
    let count = (parse(&cli.set)? / size).max(DEPTH as usize);
    let host = payloads(&domain, (count, size), None)?;
    let device = payloads(&domain, (count, size), Some(cli.device))?;
    let mut host = Way::new(&domain, receiver.addrs[0], None, host)?;
    let mut gpu = Way::new(&domain, receiver.addrs[1], Some(&ring), device)?;
    let count = (parse(&cli.bytes)? / size).max(16) as u64;
    // To warm up.
    for way in [&mut host, &mut gpu] {
        way.run(&mut receiver, count / 4)?;
    }
    let (mut rates, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
    for run in 0..cli.runs {
        let mut pair = [0.0; 2];
        for turn in 0..2 {
            let which = (run + turn) % 2;
            let way = if which == 0 { &mut host } else { &mut gpu };
            let took = way.run(&mut receiver, count)?;
            pair[which] = (count as f64 * size as f64) / took.as_secs_f64() / 1e9;
            rates[which].push(pair[which]);
        }
        ratios.push(pair[1] / pair[0]);
    }
    let (low, high) = stats::median_interval(&ratios);
    let staged = ring.stats();
    println!(
        "{size:>9} {:>8.2} {:>8.2} {:>8.3}   [{low:.3}, {high:.3}]   {} of {}",
        stats::median(&rates[0]),
        stats::median(&rates[1]),
        stats::median(&ratios),
        staged.overlapped,
        staged.payloads,
    );
    Ok(())
}

/// As many as may be in flight.
fn payloads(
    domain: &Domain,
    (count, size): (usize, usize),
    device: Option<u32>,
) -> Result<VecDeque<Payload>, Failure> {
    let Some(ordinal) = device else {
        let pool = SharedBufferManager::allocate(count as u32, size)?;
        pool.region().register(domain)?;
        let mut buffers = VecDeque::new();
        while let Some(mut buffer) = pool.try_acquire() {
            // Else all of it would be the kernel's one page of zeros.
            buffer.fill(1);
            buffers.push_back(buffer.freeze(size).into());
        }
        return Ok(buffers);
    };
    let region = Region::device(count * size).device(ordinal).build()?;
    region.register(domain)?;
    let slices = (0..count).map(|n| region.slice(n * size..(n + 1) * size));
    Ok(slices
        .map(|slice| slice.map(Payload::from))
        .collect::<Result<_, _>>()?)
}

/// A connection, and the payloads that go by it.
struct Way {
    sender: SendEndpointZeroCopy,
    /// The longest unused one is next.
    free: VecDeque<Payload>,
    events: Vec<SendEvent>,
}

impl Way {
    fn new(
        domain: &Arc<Domain>,
        peer: PeerAddr,
        ring: Option<&StagingRing>,
        free: VecDeque<Payload>,
    ) -> Result<Self, Failure> {
        let mut config = SendConfig::default().outgoing(|out| out.depth(DEPTH));
        if let Some(ring) = ring {
            config = config.outgoing(|out| out.staging(ring));
        }
        let mut sender = SendEndpointZeroCopy::connect(domain, peer, config)?;
        let (mut events, begun) = (Vec::new(), Instant::now());
        while !matches!(
            events.first(),
            Some(SendEvent::Connection(ConnectionEvent::Connected(_)))
        ) {
            sender.poll(&mut events)?;
            if begun.elapsed() > LIMIT
                || matches!(
                    events.first(),
                    Some(SendEvent::Connection(ConnectionEvent::Disconnected(_)))
                )
            {
                return Err(format!("no connection: {events:?}").into());
            }
        }
        events.clear();
        Ok(Self {
            sender,
            free,
            events,
        })
    }

    /// Sends so many messages; the last one says so.
    fn run(&mut self, receiver: &mut Receiver, count: u64) -> Result<Duration, Failure> {
        let begun = Instant::now();
        let (mut sent, mut done) = (0, 0);
        while done < count {
            while sent < count
                && sent - done < u64::from(DEPTH)
                && let Some(payload) = self.free.pop_front()
            {
                let last = [u8::from(sent + 1 == count)];
                match self.sender.send_data(payload, &last, sent) {
                    Ok(()) => sent += 1,
                    Err(refused) if refused.is_would_block() => {
                        self.free.push_front(refused.given);
                        break;
                    }
                    Err(refused) => return Err(refused.into()),
                }
            }
            self.sender.poll(&mut self.events)?;
            for event in self.events.drain(..) {
                match event {
                    SendEvent::Completed { payload, .. } => {
                        self.free.push_back(payload);
                        done += 1;
                    }
                    SendEvent::Writable => {}
                    other => return Err(format!("{other:?}").into()),
                }
            }
        }
        receiver.wait()?;
        Ok(begun.elapsed())
    }
}

/// The other process.
struct Receiver {
    process: Child,
    /// It ends when this is closed.
    _stdin: ChildStdin,
    lines: BufReader<ChildStdout>,
    /// To the host's memory, and to the GPU's.
    addrs: [PeerAddr; 2],
}

impl Receiver {
    fn start(size: usize, device: u32) -> Result<Self, Failure> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["--receive", "--device", &device.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
        let (Some(mut stdin), Some(stdout)) = (stdin, stdout) else {
            return Err("no pipes".into());
        };
        writeln!(stdin, "{size}")?;
        let mut lines = BufReader::new(stdout);
        let mut addrs = [PeerAddr::any(); 2];
        for addr in &mut addrs {
            let mut line = String::new();
            lines.read_line(&mut line)?;
            *addr = line.trim().parse()?;
        }
        Ok(Self {
            process,
            _stdin: stdin,
            lines,
            addrs,
        })
    }

    /// Until it has the last message of a run.
    fn wait(&mut self) -> Result<(), Failure> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        match line.trim() {
            "done" => Ok(()),
            other => Err(format!("the receiver says {other:?}").into()),
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // Our own child.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

// ---- the half that receives ---------------------------------------------------------------------

fn receive(ordinal: u32) -> Result<(), Failure> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let size: usize = line.trim().parse()?;
    let domain = domain()?;
    let (slots, max_message) = (2 * DEPTH + 4, size + 64);
    let config = || {
        ReceiveConfig::default()
            .incoming(|incoming| {
                incoming
                    .max_message(max_message)
                    .slots(slots)
                    .credits(DEPTH)
            })
            .connection(|c| c.max_connections(1))
    };
    let stride = max_message.next_multiple_of(512);
    let region = Region::device(DEPTH as usize * stride)
        .device(ordinal)
        .build()?;
    let pool = DeviceBufferManager::new(region, max_message)?;
    let any: PeerAddr = "127.0.0.1:0".parse()?;
    let to_host = ReceiveEndpoint::listen(&domain, any, config())?;
    let to_gpu = config().incoming(|incoming| incoming.deliver_to(DeviceDelivery::new(pool)));
    let to_gpu = ReceiveEndpoint::listen(&domain, any, to_gpu)?;
    let mut both = [to_host, to_gpu];
    for endpoint in &both {
        println!("{}", endpoint.local_addr());
    }
    // Ends with its parent, which ends it.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_line(&mut String::new());
        std::process::exit(0);
    });
    let mut events = Vec::new();
    loop {
        for endpoint in &mut both {
            endpoint.poll(&mut events)?;
        }
        for event in events.drain(..) {
            let last = match event {
                ReceiveEvent::Message(message) => message.header() == [1],
                ReceiveEvent::DeviceMessage(message) => message.header() == [1],
                ReceiveEvent::Undelivered { error, .. } => return Err(error.into()),
                _ => false,
            };
            if last {
                println!("done");
            }
        }
    }
}
