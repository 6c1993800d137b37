//! What clients cost a server that are stopped (SIGSTOP), each with a GET begun against it: the
//! processor time of the server's thread, which polls and waits as applications do.

use std::io::{BufRead, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use fabricast::fabric::EndpointKind;
use fabricast::object::{
    ChannelEvent, ObjectChannel, ObjectClient, ObjectClientConfig, ObjectOperation, ObjectServer,
    ObjectServerConfig, RdmaToken,
};
use fabricast::{Fabric, Region};

use crate::parse_size;
use fabricast_bench::child::Guard;
use fabricast_bench::clock::Deadline;
use fabricast_bench::error::{Failure, fail};
use fabricast_bench::host::{cpu_seconds, thread_cpu_seconds};
use fabricast_bench::json::{number, text};

/// Longer than any measurement: no transfer is cut off.
const BUDGET: Duration = Duration::from_secs(1800);
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    client: ClientOptions,
    /// Clients.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    clients: u16,
    /// How long the processor's time is measured.
    #[arg(long, default_value_t = 5.0, value_parser = crate::parse_seconds)]
    seconds: f64,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct ClientOptions {
    /// libfabric provider. Default: net where there is one, else tcp.
    #[arg(long)]
    provider: Option<String>,
    /// The local IPv4 address to use.
    #[arg(long, default_value = "127.0.0.1")]
    node: String,
    /// Bytes that each client lends, and is sent.
    #[arg(long, default_value = "16M", value_parser = parse_size)]
    size: usize,
}

impl ClientOptions {
    fn fabric(&self) -> Result<Arc<Fabric>, Failure> {
        match &self.provider {
            Some(provider) => self.open(provider),
            // libfabric 1.17 has RDM over TCP as a provider of its own.
            None => self.open("net").or_else(|_| self.open("tcp")),
        }
    }

    fn open(&self, provider: &str) -> Result<Arc<Fabric>, Failure> {
        let builder = Fabric::builder()
            .provider(provider)
            .endpoint_kind(EndpointKind::Rdm);
        let row = fabricast::fabric::provider(provider);
        Ok(match row.is_some_and(|row| row.names.is_some()) {
            true => builder.open()?,
            false => builder.node(&self.node).open()?,
        })
    }
}

/// A client: lends memory, says the token, and waits to be killed.
pub(crate) fn lend(options: &ClientOptions) -> Result<(), Failure> {
    let client = ObjectClient::open(&options.fabric()?, ObjectClientConfig::default())?;
    let region = Region::host(options.size).build()?;
    let access = ObjectOperation::Get.access();
    let memory = client.register(region.slice(0..options.size)?, access);
    let memory = memory.map_err(|error| Failure::new(error.to_string()))?;
    let token = memory.token(0..memory.len(), ObjectOperation::Get);
    let token = token.map_err(|error| Failure::new(error.to_string()))?;
    println!("{token}");
    std::io::stdout().flush()?;
    loop {
        std::thread::park();
    }
}

fn start(options: &ClientOptions, fabric: &Fabric) -> Result<(Guard, RdmaToken), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["stalled-client", "--provider", fabric.provider().name])
        .args(["--node", &options.node, "--size"])
        .arg(options.size.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut guard = Guard::start(&mut command, None)?;
    let mut line = String::new();
    guard.lines()?.read_line(&mut line)?;
    Ok((guard, line.trim_end().parse()?))
}

/// The server's thread.
struct Serving {
    channel: ObjectChannel,
    region: Arc<Region>,
    size: usize,
    events: Vec<ChannelEvent>,
    turns: u64,
}

impl Serving {
    fn get(&mut self, token: &RdmaToken, key: u64) -> Result<(), Failure> {
        // All are sent the same bytes.
        let slice = self.region.slice(0..self.size)?;
        let deadline = Instant::now() + BUDGET;
        let accepted = self.channel.handle_get(token, 0, slice, key, deadline);
        accepted.map_err(|refused| Failure::new(refused.to_string()))
    }

    /// Polls and waits once; how many GETs are over.
    fn turn(&mut self) -> Result<usize, Failure> {
        self.turns += 1;
        let found = self.channel.poll(&mut self.events)?;
        for event in self.events.drain(..) {
            if let ChannelEvent::WriteFailed { error, .. } = event {
                return fail(error.to_string());
            }
        }
        if found == 0 {
            self.channel.wait(Duration::from_millis(100))?;
        }
        Ok(found)
    }
}

/// Measures clients that were never heard of before they stopped, and clients that were served.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    for served in [false, true] {
        measure(options, served)?;
    }
    Ok(())
}

fn measure(options: &Options, served: bool) -> Result<(), Failure> {
    let fabric = options.client.fabric()?;
    let server = ObjectServer::open(&fabric, ObjectServerConfig::default())?;
    let region = Region::host(options.client.size).build()?;
    region
        .register(server.domain())
        .map_err(|error| Failure::new(error.to_string()))?;
    let mut serving = Serving {
        channel: server.channel()?,
        region,
        size: options.client.size,
        events: Vec::new(),
        turns: 0,
    };
    let clients: Result<Vec<_>, _> = (0..options.clients)
        .map(|_| start(&options.client, &fabric))
        .collect();
    let clients = clients?;
    if served {
        for (key, (_, token)) in clients.iter().enumerate() {
            serving.get(token, key as u64)?;
        }
        let (mut over, deadline) = (0, Deadline::after(PATIENCE));
        while over < clients.len() {
            over += serving.turn()?;
            deadline.check("clients that are not stopped")?;
        }
    }
    for (key, (client, token)) in clients.iter().enumerate() {
        client.stop()?;
        serving.get(token, key as u64)?;
    }
    report(options, served, &mut serving, &fabric)
}

/// What the thread takes while all wait.
fn report(
    options: &Options,
    served: bool,
    serving: &mut Serving,
    fabric: &Fabric,
) -> Result<(), Failure> {
    serving.turns = 0;
    let (thread, process) = (thread_cpu_seconds(), cpu_seconds());
    let (from, mut over) = (Instant::now(), 0);
    while from.elapsed().as_secs_f64() < options.seconds {
        over += serving.turn()?;
    }
    let elapsed = from.elapsed().as_secs_f64();
    let thread = (thread_cpu_seconds() - thread) / elapsed;
    let process = (cpu_seconds() - process) / elapsed;
    let turns = serving.turns as f64 / elapsed;
    let library = fabric.report().library;
    let provider = fabric.provider().name;
    if !options.json {
        println!(
            "{provider}, libfabric {library}: {} stopped clients ({}), a GET of {} bytes begun \
             against each, {over} over: the server's thread takes {:.1} % of a core, its process \
             {:.1} %, {turns:.0} turns a second",
            options.clients,
            if served { "served before" } else { "strangers" },
            options.client.size,
            100.0 * thread,
            100.0 * process,
        );
        return Ok(());
    }
    let mut line = String::from("{");
    text(&mut line, "op", "stalled");
    text(&mut line, "provider", provider);
    text(&mut line, "libfabric", &library);
    number(&mut line, "clients", options.clients.into());
    number(&mut line, "served_before", f64::from(u8::from(served)));
    number(&mut line, "size_bytes", options.client.size as f64);
    number(&mut line, "over", over as f64);
    number(&mut line, "thread_cores", thread);
    number(&mut line, "process_cores", process);
    number(&mut line, "turns_per_s", turns);
    line.push('}');
    println!("{line}");
    Ok(())
}
