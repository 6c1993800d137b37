//! The demo: builders as processes of their own, the readout in this one, at one address of this
//! machine.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use fabricast::PeerAddr;

use crate::args::{DemoArgs, SourceArgs};
use crate::failure::Failure;
use crate::open_domain;
use crate::report::Report;
use crate::source::{self, Incident};

/// How long builders may take to end after the run.
const END: Duration = Duration::from_secs(60);

/// Runs builders and a readout, and kills a builder if that was asked for.
pub(crate) fn run(args: DemoArgs) -> Result<Report, Failure> {
    // A provider that is missing is said once, not by every process.
    drop(open_domain(&args.common.provider, args.node)?);
    let start = |_| Builder::start(&args);
    let mut builders = (0..args.builders)
        .map(start)
        .collect::<Result<Vec<_>, _>>()?;
    let addresses = builders.iter_mut().map(Builder::address);
    let source = SourceArgs {
        to: addresses.collect::<Result<_, _>>()?,
        readout: args.readout,
        first_detector: 0,
        common: args.common,
    };
    let mut killed = None;
    let mut kill = || {
        let last = builders.len() - 1;
        eprintln!("readout: killing builder {}", source.to[last]);
        killed = Some(last);
        // It is our child and was not waited for: there is a process of that number, and it is this
        // one.
        let _ = builders[last].child.kill();
    };
    let incident = args.kill_builder_after.map(|seconds| Incident {
        after: Duration::from_secs_f64(seconds),
        happen: &mut kill,
    });
    let report = source::run(&source, incident)?;
    let deadline = Instant::now() + END;
    for (index, builder) in builders.iter_mut().enumerate() {
        builder.wait(deadline, killed == Some(index))?;
    }
    Ok(report)
}

/// A child: this program as a builder. Ended, if it has not ended, when this is dropped.
struct Builder {
    child: Child,
    output: Option<BufReader<ChildStdout>>,
}

impl Builder {
    fn start(args: &DemoArgs) -> Result<Self, Failure> {
        let failed = |error| Failure::os("builder", &error);
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command
            .args(["builder", "--child"])
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
        Ok(Self { child, output })
    }

    /// The address in its first line. It has said why on stderr if there is none.
    fn address(&mut self) -> Result<PeerAddr, Failure> {
        let mut line = String::new();
        if let Some(output) = &mut self.output {
            output
                .read_line(&mut line)
                .map_err(|error| Failure::os("builder", &error))?;
        }
        let address = line.trim_end().strip_prefix("listening on ");
        let address = address.and_then(|address| address.parse().ok());
        address.ok_or_else(|| Failure::new("a builder did not start"))
    }

    /// Waits for its end, which must be a success unless it was killed.
    fn wait(&mut self, deadline: Instant, killed: bool) -> Result<(), Failure> {
        loop {
            let ended = self.child.try_wait();
            match ended.map_err(|error| Failure::os("builder", &error))? {
                Some(status) if status.success() || killed => return Ok(()),
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
