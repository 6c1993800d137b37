//! The far end: what a remote shell starts for the near one. It says where it is, is told what to
//! do, and ends with its input.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use clap::Parser;

use super::message::{Hello, MARK, Request, Role, failure_to_json, lines_of};
use super::{LibraryStart, addresses, key, make_directory, meeting_places};
use crate::failure::{End, Failure};
use crate::interrupt;
use crate::say::say;
use crate::stream::args::{RecvArgs, SendArgs};
use crate::stream::recv::{self, GOODBYE};
use crate::stream::report::Voice;
use crate::stream::send::{self, Named, Sending};

/// How long the near end may take to say what it wants.
const REQUEST: Duration = Duration::from_secs(120);

/// How often what happened at a receiver is thrown away.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug, Parser)]
#[command(name = "recv")]
struct FarRecv {
    #[command(flatten)]
    args: RecvArgs,
}

#[derive(Debug, Parser)]
#[command(name = "send")]
struct FarSend {
    #[command(flatten)]
    args: SendArgs,
}

/// Is what the near end asks for. What fails is told to the near end, which tells people.
pub(crate) fn run() -> Result<(), Failure> {
    match serve() {
        Ok(()) => Ok(()),
        Err(failure) => {
            say(format_args!("{MARK}{}", failure_to_json(&failure)));
            Err(failure.told())
        }
    }
}

fn serve() -> Result<(), Failure> {
    interrupt::leave_to_parent()?;
    let start = LibraryStart::begin();
    let hello = Hello::of_this_end();
    say(format_args!("{MARK}{}", hello.to_json()));
    let lines = lines_of(std::io::stdin())?;
    let line = match lines.recv_timeout(REQUEST) {
        Ok(line) => line,
        Err(RecvTimeoutError::Disconnected) => return Ok(()),
        Err(RecvTimeoutError::Timeout) => {
            return Err(Failure::new("the near end asks for nothing").ends(End::Unreachable));
        }
    };
    let request = serde_json::from_slice(&line).ok();
    let Some(request) = request.as_ref().and_then(Request::from_json) else {
        return Err(Failure::new("what it was asked makes no sense").ends(End::Refused));
    };
    match request.role {
        Role::Receive => receive(&request, &hello, start, &lines),
        Role::Send => send(&request, start, lines),
        Role::Bench => bench(&request, &hello, start, &lines),
    }
}

#[cfg(feature = "bench")]
fn bench(
    request: &Request,
    hello: &Hello,
    start: LibraryStart,
    lines: &Receiver<Vec<u8>>,
) -> Result<(), Failure> {
    // Only its clients' processes need the library.
    drop(start);
    let is_over = || lines.try_recv() == Err(TryRecvError::Disconnected);
    crate::bench::reach::far_server(&request.key, hello.came_in, is_over)
}

#[cfg(not(feature = "bench"))]
fn bench(_: &Request, _: &Hello, _: LibraryStart, _: &Receiver<Vec<u8>>) -> Result<(), Failure> {
    let text = "its fabricast was built without the feature `bench`";
    Err(Failure::new(text).ends(End::Refused))
}

/// What was given as on a command line.
fn parsed<T: Parser>(name: &str, args: &[String]) -> Result<T, Failure> {
    let words = std::iter::once(name).chain(args.iter().map(String::as_str));
    T::try_parse_from(words).map_err(|error| {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default().to_owned();
        let own = env!("CARGO_PKG_VERSION");
        Failure::new(format!("{line} (fabricast {own} there)")).ends(End::Refused)
    })
}

fn receive(
    request: &Request,
    hello: &Hello,
    start: LibraryStart,
    lines: &Receiver<Vec<u8>>,
) -> Result<(), Failure> {
    let FarRecv { args } = parsed("recv", &request.args)?;
    make_directory(&args.dir)?;
    let places = meeting_places(&args.common, &request.meet, hello.came_in)?;
    let own_key = Some(key(&request.key)?);
    let receiver = recv::open(&args, &args.dir, &places, own_key, start).map_err(refused)?;
    let addrs = receiver.local_addrs().iter().map(ToString::to_string);
    let addrs: Vec<_> = addrs.collect();
    say(format_args!(
        "{MARK}{}",
        serde_json::json!({ "listening": addrs })
    ));
    // What becomes of a stream, its sender hears and says.
    let hear = || {
        while let Some(news) = receiver.next(Duration::ZERO) {
            if let Err(failure) = recv::write_sums(&args, &news) {
                eprintln!("fabricast: {failure}");
            }
        }
    };
    while lines.recv_timeout(LOOK) != Err(RecvTimeoutError::Disconnected) {
        hear();
    }
    hear();
    receiver.close(Instant::now() + GOODBYE);
    Ok(())
}

/// A fabric that can't be opened is one that this end lacks.
fn refused(failure: Failure) -> Failure {
    match failure.end() {
        End::Failed => failure.ends(End::Refused),
        _ => failure,
    }
}

fn send(request: &Request, start: LibraryStart, lines: Receiver<Vec<u8>>) -> Result<(), Failure> {
    let FarSend { mut args } = parsed("send", &request.args)?;
    args.common.key = None;
    // Its file is of the machine where it was asked for.
    #[cfg(feature = "charts")]
    drop(args.timeline.take());
    // They are the near end's: this one finds the ways to them.
    args.far.rail.clear();
    let paths: Vec<_> = request.paths.iter().map(PathBuf::from).collect();
    if args.dry_run {
        send::Source::of(&args, &paths)?.list(Voice::NearEnd);
        return Ok(());
    }
    let to = addresses("the near end", &request.to)?;
    let name = request.to.first().cloned().unwrap_or_default();
    let source = send::Source::of(&args, &paths)?;
    start.wait();
    let near_is_gone = move || lines.try_recv() == Err(TryRecvError::Disconnected);
    let sending = Sending {
        args: &args,
        source,
        peers: vec![Named { name, to }],
        key: Some(key(&request.key)?),
        voice: Voice::NearEnd,
    };
    sending.run(|| match near_is_gone() {
        true => Some(End::Interrupted),
        false => interrupt::asked(),
    })
}
