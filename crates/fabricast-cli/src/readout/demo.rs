//! The demo: builders as processes of their own, the readout in this one, at one address of this
//! machine.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fabricast::PeerAddr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::failure::Failure;
use crate::metrics::MetricsArgs;
use crate::readout::args::{DemoArgs, SourceArgs};
use crate::readout::link::Link;
use crate::readout::open_domain;
use crate::readout::report::Report;
use crate::readout::source::{self, Incidents};

/// How long builders may take to end after the run.
const END: Duration = Duration::from_secs(60);
/// Looks after which everything has come that a builder said before it was stopped.
const LOOKS: u32 = 10;

/// Runs builders and a readout, and kills builders if that was asked for.
pub(crate) fn run(args: DemoArgs) -> Result<Report, Failure> {
    // A provider that is missing is said once, not by every process.
    drop(open_domain(&args.common.provider, args.node)?);
    let start = |_| Builder::start(&args);
    let mut builders = (0..args.builders)
        .map(start)
        .collect::<Result<Vec<_>, _>>()?;
    let addresses = builders.iter_mut().map(Builder::address);
    let source = SourceArgs {
        metrics: MetricsArgs::default(),
        to: addresses.collect::<Result<_, _>>()?,
        readout: args.readout.clone(),
        first_detector: 0,
        common: args.common.clone(),
    };
    let mut killing = Killing::new(&args, builders);
    let report = source::run(&source, Some(&mut killing))?;
    killing.end()?;
    Ok(report)
}

/// The builders of a demo, of which some are killed, and others come.
struct Killing<'a> {
    args: &'a DemoArgs,
    builders: Vec<Builder>,
    /// When the next one is killed; `None`: none is.
    next: Option<Duration>,
    /// What the newest builder says first, which takes some tenths of a second.
    coming: Option<JoinHandle<Result<PeerAddr, Failure>>>,
    fate: Fate,
}

/// How far it is with the one builder that is killed with work under way. One that runs may have
/// answered for everything a moment ago; one that is stopped answers for nothing that it is sent.
#[derive(Clone, Copy)]
enum Fate {
    Runs,
    Stopping,
    /// When so many fragments had been sent to it, and that many looks ago.
    Stopped {
        sent: u64,
        looks: u32,
    },
}

impl<'a> Killing<'a> {
    fn new(args: &'a DemoArgs, builders: Vec<Builder>) -> Self {
        Self {
            args,
            builders,
            next: args
                .kill_builder_after
                .or(args.kill_every)
                .map(Duration::from_secs_f64),
            coming: None,
            fate: Fate::Runs,
        }
    }

    /// Kills the last builder when it has work that it can't have done: it is stopped, and has been
    /// sent something since, or has no room for more.
    fn kill_at_work(&mut self, links: &[Link]) {
        let Some(builder) = self.builders.last() else {
            return;
        };
        let is_its = |link: &&Link| link.to.to_string() == builder.name;
        let Some(link) = links.iter().find(is_its) else {
            return;
        };
        let at_work = link.unanswered > 0;
        self.fate = match self.fate {
            Fate::Runs if at_work => {
                builder.signal(Signal::STOP);
                Fate::Stopping
            }
            Fate::Stopping if builder.is_stopped() => Fate::Stopped {
                sent: link.sent.fragments,
                looks: 0,
            },
            Fate::Stopped { sent, looks }
                if link.sent.fragments > sent || (looks >= LOOKS && at_work) =>
            {
                self.kill();
                self.next = None;
                Fate::Runs
            }
            Fate::Stopped { looks: LOOKS.., .. } => self.resumed(),
            Fate::Stopped { sent, looks } => Fate::Stopped {
                sent,
                looks: looks + 1,
            },
            same => same,
        };
    }

    fn resumed(&self) -> Fate {
        if let Some(builder) = self.builders.last() {
            builder.signal(Signal::CONT);
        }
        Fate::Runs
    }

    /// The last one where only one is killed; else the oldest that lives.
    fn kill(&mut self) {
        let is_once = self.args.kill_every.is_none();
        let mut alive = self.builders.iter_mut().filter(|builder| !builder.killed);
        let found = if is_once {
            alive.next_back()
        } else {
            alive.next()
        };
        if let Some(builder) = found {
            eprintln!("fabricast: killing builder {}", builder.name);
            builder.killed = true;
            builder.signal(Signal::KILL);
        }
    }

    /// Starts another builder. It ends with the thread that starts it, so that is this one; only
    /// its first line is waited for elsewhere.
    fn start_another(&mut self) -> Result<(), Failure> {
        let mut builder = Builder::start(self.args)?;
        let output = builder.output.take();
        self.builders.push(builder);
        let thread = std::thread::Builder::new().name("coming".to_owned());
        let coming = thread.spawn(move || address_in(output));
        self.coming = Some(coming.map_err(|error| Failure::os("thread", &error))?);
        Ok(())
    }

    /// Waits for the end of all.
    fn end(mut self) -> Result<(), Failure> {
        let deadline = Instant::now() + END;
        if self.coming.is_some() {
            // It came too late for the source to hear of it.
            self.builders.pop();
        }
        self.builders
            .iter_mut()
            .try_for_each(|builder| builder.wait(deadline))
    }
}

impl Incidents for Killing<'_> {
    fn look(&mut self, running: Duration, links: &[Link]) -> Result<Option<PeerAddr>, Failure> {
        let mut came = None;
        if let Some(coming) = self.coming.take_if(|coming| coming.is_finished()) {
            let said = coming.join();
            let address = said.map_err(|_| Failure::new("a thread panicked"))??;
            if let Some(builder) = self.builders.last_mut() {
                builder.name = address.to_string();
            }
            came = Some(address);
        }
        // Not before the last one has come; but that one may not be ready yet.
        let Some(next) = self.next.filter(|next| running >= *next) else {
            return Ok(came);
        };
        match self.args.kill_every.map(Duration::from_secs_f64) {
            None => self.kill_at_work(links),
            Some(every) if self.coming.is_none() => {
                self.kill();
                self.next = Some(next + every);
                self.start_another()?;
            }
            Some(_) => {}
        }
        Ok(came)
    }

    fn over(&mut self) {
        if !matches!(self.fate, Fate::Runs) {
            self.fate = self.resumed();
        }
        self.next = None;
    }
}

/// A child: this program as a builder. Ended, if it has not ended, when this is dropped.
struct Builder {
    child: Child,
    output: Option<Output>,
    /// Its address, once that is known.
    name: String,
    killed: bool,
}

type Output = BufReader<ChildStdout>;

impl Builder {
    fn start(args: &DemoArgs) -> Result<Self, Failure> {
        let failed = |error| Failure::os("builder", &error);
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command
            .args(["readout", "builder", "--child"])
            .arg(format!("--listen={}", SocketAddr::new(args.node, 0)))
            .arg(format!("--detectors={}", args.readout.detectors))
            .arg(format!("--max-fragment={}", args.readout.size.max()))
            .args(
                args.build
                    .credits
                    .map(|credits| format!("--credits={credits}")),
            )
            .arg(format!("--work={}", args.build.work))
            .arg(format!("--timeout={}", args.common.timeout))
            .arg(format!("--provider={}", args.common.provider))
            .args(args.common.spin.then_some("--spin"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let output = child.stdout.take().map(BufReader::new);
        Ok(Self {
            child,
            output,
            name: "that is coming".to_owned(),
            killed: false,
        })
    }

    /// The address in its first line.
    fn address(&mut self) -> Result<PeerAddr, Failure> {
        let address = address_in(self.output.take())?;
        self.name = address.to_string();
        Ok(address)
    }

    /// It is our child and was not waited for: there is a process of that number, and it is this
    /// one.
    fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    fn is_stopped(&self) -> bool {
        let how = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let found = waitid(WaitId::Pid(Pid::from_child(&self.child)), how);
        matches!(found, Ok(Some(_)))
    }

    /// Waits for its end, which must be a success unless it was killed.
    fn wait(&mut self, deadline: Instant) -> Result<(), Failure> {
        loop {
            let ended = self.child.try_wait();
            match ended.map_err(|error| Failure::os("builder", &error))? {
                Some(status) if status.success() || self.killed => return Ok(()),
                Some(status) => return Err(Failure::new(format!("a builder ended with {status}"))),
                None if Instant::now() > deadline => {
                    return Err(Failure::new("a builder did not end"));
                }
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }
}

impl Drop for Builder {
    fn drop(&mut self) {
        // Both do nothing when `wait` has seen its end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address in a builder's first line. It has said why on stderr if there is none.
fn address_in(output: Option<Output>) -> Result<PeerAddr, Failure> {
    let mut line = String::new();
    if let Some(mut output) = output {
        output
            .read_line(&mut line)
            .map_err(|error| Failure::os("builder", &error))?;
    }
    let address = line.trim_end().strip_prefix("listening on ");
    let address = address.and_then(|address| address.parse().ok());
    address.ok_or_else(|| Failure::new("a builder did not start"))
}
