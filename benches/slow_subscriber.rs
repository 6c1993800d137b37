//! What a slow subscriber costs the others: a publisher that publishes as fast as it can, and
//! subscribers that count what they get, of which one may sleep after each publication.
//! `benches/peers/peers.py` starts them, and the same over ZeroMQ (`zmq_messages pub`, `watch`).

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use fabricast::buffer::{HeaderSlotConfig, SharedBufferManager};
use fabricast::endpoint::{PublishConfig, SlowPolicy, SubscribeConfig};
use fabricast::{
    ConnectionEvent, Domain, Fabric, PublishEndpoint, PublishEvent, SubscribeEndpoint,
    SubscribeEvent,
};

const TAG: u64 = 1;
/// As many as ZeroMQ keeps for a subscriber by default.
const QUEUE: u32 = 1000;
const PUBLICATIONS: u32 = 4 * QUEUE;
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Parser)]
#[command(about = "A publisher, or a subscriber that may be slow")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// libfabric provider.
    #[arg(long, default_value = "tcp", global = true)]
    provider: String,
    /// The local address to use.
    #[arg(long, default_value = "127.0.0.1", global = true)]
    node: IpAddr,
}

#[derive(Subcommand)]
enum Command {
    /// Publishes until it is ended.
    Pub {
        #[arg(long)]
        subscribers: usize,
        /// Bytes of a publication.
        #[arg(long)]
        size: usize,
    },
    /// Counts what one subscriber gets in a time, behind a fifth of it for warming up.
    Watch {
        #[arg(long)]
        to: SocketAddr,
        #[arg(long)]
        size: usize,
        #[arg(long)]
        seconds: f64,
        /// Microseconds to sleep after each publication.
        #[arg(long, default_value_t = 0)]
        sleep_us: u64,
    },
}

fn open(cli: &Cli) -> Result<Arc<Domain>, fabricast::Error> {
    let builder = Fabric::builder().provider(&cli.provider);
    builder.node(cli.node.to_string()).open()?.open_domain()
}

fn publish(cli: &Cli, subscribers: usize, size: usize) -> Result<(), Box<dyn Error>> {
    let domain = open(cli)?;
    let pool = SharedBufferManager::allocate(1, size)?;
    pool.region().register(&domain)?;
    let payload = pool.try_acquire().ok_or("the pool has one")?.freeze(size);
    let slow = SlowPolicy::Wait {
        queue: QUEUE,
        deadline: Duration::from_millis(100),
    };
    // Those that wait for the slow one must not be all that there may be: each has a header slot.
    let headers = HeaderSlotConfig {
        slots: PUBLICATIONS,
        slot_size: 64,
    };
    let config = PublishConfig::default()
        .publications(PUBLICATIONS)
        .slow(slow)
        .outgoing(|outgoing| outgoing.headers(headers));
    let address = SocketAddr::new(cli.node, 0).into();
    let mut endpoint = PublishEndpoint::listen(&domain, address, config)?;
    println!("listening on {}", endpoint.local_addr());
    let mut events = Vec::new();
    let begun = Instant::now();
    while endpoint.subscribers(TAG) < subscribers {
        endpoint.poll(&mut events)?;
        endpoint.wait(Duration::from_millis(1))?;
        if begun.elapsed() > PATIENCE {
            return Err("the subscribers did not come".into());
        }
    }
    loop {
        for _ in 0..16 {
            match endpoint.publish(TAG, payload.clone(), b"", 0) {
                Ok(_) => {}
                Err(refused) if refused.is_would_block() => break,
                Err(refused) => return Err(refused.to_string().into()),
            }
        }
        if endpoint.poll(&mut events)? == 0 {
            std::thread::yield_now();
        }
        let left = |event: &PublishEvent| {
            matches!(
                event,
                PublishEvent::Connection(_, ConnectionEvent::Disconnected(_))
            )
        };
        // All who watched are done.
        if events.drain(..).any(|event| left(&event)) && endpoint.subscribers(TAG) == 0 {
            return Ok(());
        }
    }
}

fn watch(
    cli: &Cli,
    (to, size): (SocketAddr, usize),
    seconds: f64,
    sleep: Duration,
) -> Result<(), Box<dyn Error>> {
    let domain = open(cli)?;
    // As the subscribers of `bench` have: frames of small ones, as many as may be in flight.
    let max = (size + 64).max(32 << 10);
    let config = SubscribeConfig::default()
        .incoming(|incoming| incoming.max_message(max).credits(64).slots(64 + 18));
    let mut endpoint = SubscribeEndpoint::open(&domain, config)?;
    let publisher = endpoint.connect(to.into())?;
    endpoint
        .subscribe(publisher, TAG)
        .map_err(|error| error.to_string())?;
    let (run, mut events) = (Duration::from_secs_f64(seconds), Vec::new());
    let (opened, mut begun, mut messages, mut missed_all) = (Instant::now(), None, 0_u64, 0_u64);
    loop {
        if endpoint.poll(&mut events)? == 0 {
            endpoint.wait(Duration::from_millis(100))?;
        }
        for event in events.drain(..) {
            match event {
                SubscribeEvent::Publication {
                    message, missed, ..
                } => {
                    let now = Instant::now();
                    let since = *begun.get_or_insert(now + run / 5);
                    if now >= since {
                        messages += 1;
                        missed_all += missed;
                    }
                    drop(message);
                    if !sleep.is_zero() {
                        std::thread::sleep(sleep);
                    }
                }
                SubscribeEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                    return Err(reason.to_string().into());
                }
                _ => {}
            }
        }
        let now = Instant::now();
        match begun {
            Some(begun) if now >= begun + run => {
                let took = (now - begun).as_secs_f64();
                println!(
                    "{{\"messages\":{messages},\"missed\":{missed_all},\"seconds\":{took:.6}}}"
                );
                return Ok(());
            }
            None if now > opened + PATIENCE => return Err("nothing came".into()),
            _ => {}
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Command::Pub { subscribers, size } => publish(&cli, subscribers, size),
        Command::Watch {
            to,
            size,
            seconds,
            sleep_us,
        } => watch(&cli, (to, size), seconds, Duration::from_micros(sleep_us)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slow_subscriber: {error}");
            ExitCode::FAILURE
        }
    }
}
