//! The server: runs what a client asks for, one case after the other, until the client leaves.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::case::{Arrived, Case, Operation, Sent, Side, Wait};
use crate::client::{self, Figures};
use crate::control::Control;
use crate::error::{Failure, fail};
use crate::facts::Node;
use crate::publish::{BareSubscribers, Subscribers};
use crate::{bare, coalesced, host, http, latency, ours, stream};

/// How long to wait for a client's next wish: longer than the longest run, which other processes of
/// its may have meanwhile.
const PATIENCE: Duration = Duration::from_secs(700);

/// What a server received with, which stays open until the client is done with it: over FI_EP_RDM
/// the end of a listener is the end of what is in flight to it.
pub trait Receiving {
    /// Receives and drops until the end mark.
    ///
    /// # Errors
    /// When the connection ends before.
    fn receive(&mut self, case: &Case) -> Result<Arrived, Failure>;
}

/// What stays open until the next wish.
#[derive(Default)]
pub struct Kept(Option<Box<dyn Receiving>>);

impl Kept {
    /// Keeps it instead of what was kept before.
    pub fn keep(&mut self, receiving: impl Receiving + 'static) -> &mut dyn Receiving {
        &mut **self.0.insert(Box::new(receiving))
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kept").field(&self.0.is_some()).finish()
    }
}

/// The operations by [`Side::C`], which this crate does not link: a program that does gives both
/// halves.
#[derive(Clone, Copy, Debug)]
pub struct Through {
    /// Runs a wish, once it has said it to the server.
    pub client: fn(&mut Control, &mut Wish, Duration) -> Result<(Sent, Arrived), Failure>,
    /// Answers it.
    pub server: fn(&Wish, &mut Control, &mut Kept) -> Result<Arrived, Failure>,
}

/// What a server needs to know of itself.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// The local address that its endpoints listen at.
    pub node: &'a str,
    /// The third side, if it has one.
    pub through: Option<Through>,
}

/// Serves one client until it leaves.
///
/// # Errors
/// When the client says nonsense, or a run fails: the client has been told.
pub fn serve(control: &mut Control, host: Host<'_>) -> Result<(), Failure> {
    let mut kept = Kept::default();
    while let Some(line) = control.hear(PATIENCE)? {
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let answer = match word {
            "facts" => facts(host.node),
            "pin" => pin(rest),
            "can" => Ok(can(rest, host.node)),
            "run" => answer(&line, control, host, &mut kept),
            "drive" => drive(rest, control, host),
            _ => fail(format!("no such wish: {word:?}")),
        };
        match answer {
            Ok(answer) => control.say(&answer)?,
            Err(failure) => {
                control.say(&one_line(&format!("failed {failure}")))?;
                return Err(failure);
            }
        }
    }
    Ok(())
}

fn facts(node: &str) -> Result<String, Failure> {
    let node = Node::of_this("server", node.parse()?);
    Ok(one_line(&format!("facts {}", node.value)))
}

/// Keeps this process on one of the cores that it may use, counted from 0.
fn pin(which: &str) -> Result<String, Failure> {
    let which: usize = which.parse()?;
    match host::allowed().get(which) {
        Some(&core) => host::pin(core)?,
        None => return fail(format!("there is no core {which} here")),
    }
    Ok("pinned".to_owned())
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// Whether this end has what a wish needs.
fn can(wish: &str, node: &str) -> String {
    let found = Wish::parse(wish, node).and_then(|wish| {
        let found = ours::describe(&wish.case)?;
        ours::check_gpu(&wish.case)?;
        Ok(found)
    });
    match found {
        Ok((provider, library, _)) => one_line(&format!("can yes {provider} {library}")),
        Err(failure) => one_line(&format!("can no {failure}")),
    }
}

/// Answers one wish, the receiving half; what to say of it.
pub(crate) fn answer(
    line: &str,
    control: &mut Control,
    host: Host<'_>,
    kept: &mut Kept,
) -> Result<String, Failure> {
    *kept = Kept::default();
    let arrived = run(&Wish::parse(line, host.node)?, control, host.through, kept)?;
    Ok(format!(
        "arrived {} {} {}",
        arrived.messages, arrived.elapsed_s, arrived.cpu_s
    ))
}

/// The sending half, for a client that wants to receive: it answers what this end asks for.
fn drive(line: &str, control: &mut Control, host: Host<'_>) -> Result<String, Failure> {
    let (begin_ms, line) = line.split_once(' ').unwrap_or((line, ""));
    let begin = Duration::from_millis(u64::from(begin_ms.parse::<u16>()?));
    let mut wish = Wish::parse(line, host.node)?;
    wish.case.begin = Some(Instant::now() + begin);
    let figures = client::run(control, wish.side, &wish.case, host.through)?;
    Ok(figures.line())
}

/// Has the server send, and receives; what it measured.
///
/// # Errors
/// When either half fails.
pub fn run_reversed(
    control: &mut Control,
    side: Side,
    case: &Case,
    begin: Duration,
    host: Host<'_>,
) -> Result<Figures, Failure> {
    let patience = case.limit() + Duration::from_secs(10);
    let wish = Wish {
        side,
        case: case.clone(),
        back: None,
    };
    control.say(&format!("drive {} {}", begin.as_millis(), wish.line()))?;
    let mut kept = Kept::default();
    let asked = control.expect("run", patience)?;
    let said = answer(&format!("run {asked}"), control, host, &mut kept)?;
    control.say(&said)?;
    Figures::of_line(&control.expect("figures", patience)?)
}

/// What a client wants, as one line.
#[derive(Clone, Debug)]
pub struct Wish {
    /// By what.
    pub side: Side,
    /// What.
    pub case: Case,
    /// Where the client listens, if it does.
    pub back: Option<SocketAddr>,
}

impl Wish {
    /// The line.
    pub fn line(&self) -> String {
        let Self { side, case, back } = self;
        let back = back.map_or_else(|| "-".to_owned(), |addr| addr.to_string());
        format!(
            "run {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {back}",
            side.name(),
            case.operation.name(),
            case.size,
            case.depth,
            case.seconds,
            case.provider,
            case.wait.name(),
            case.bare_connections,
            case.bare_pause_us,
            case.buffer,
            case.flush_us,
            case.pack,
            case.subscribers,
            case.rate,
            u8::from(case.one_way),
            case.gpu
                .map_or_else(|| "-".to_owned(), |gpu| gpu.to_string()),
        )
    }

    /// The wish of a line, for a server at this address. Its numbers are within their limits.
    ///
    /// # Errors
    /// When it is none, or asks for too much.
    pub fn parse(line: &str, node: &str) -> Result<Self, Failure> {
        let words: Vec<_> = line.split(' ').collect();
        let [
            "run",
            side,
            operation,
            size,
            depth,
            seconds,
            provider,
            wait,
            connections,
            pause,
            buffer,
            flush_us,
            pack,
            subscribers,
            rate,
            one_way,
            gpu,
            back,
        ] = words[..]
        else {
            return fail(format!("no such wish: {line:?}"));
        };
        let wish = Self {
            side: Side::from_str(side, false).map_err(Failure::new)?,
            case: Case {
                operation: Operation::from_str(operation, false).map_err(Failure::new)?,
                size: size.parse()?,
                depth: depth.parse()?,
                seconds: seconds.parse()?,
                provider: provider.to_owned(),
                node: node.to_owned(),
                wait: Wait::from_str(wait, false).map_err(Failure::new)?,
                bare_connections: connections.parse()?,
                bare_pause_us: pause.parse()?,
                buffer: buffer.parse()?,
                flush_us: flush_us.parse()?,
                pack: pack.parse()?,
                gather: true,
                subscribers: subscribers.parse()?,
                rate: rate.parse()?,
                one_way: one_way == "1",
                gpu: if gpu == "-" { None } else { Some(gpu.parse()?) },
                begin: None,
            },
            back: if back == "-" {
                None
            } else {
                Some(back.parse()?)
            },
        };
        wish.case.check()?;
        Ok(wish)
    }
}

impl Receiving for ours::Server {
    fn receive(&mut self, case: &Case) -> Result<Arrived, Failure> {
        self.receive(case)
    }
}

impl Receiving for Subscribers {
    fn receive(&mut self, case: &Case) -> Result<Arrived, Failure> {
        self.receive(case)
    }
}

fn run(
    wish: &Wish,
    control: &mut Control,
    through: Option<Through>,
    kept: &mut Kept,
) -> Result<Arrived, Failure> {
    let case = &wish.case;
    match (wish.side, case.operation) {
        (Side::C, _) => match through {
            Some(through) => (through.server)(wish, control, kept),
            None => fail("this end has no C interface"),
        },
        (_, Operation::Stream) => stream::receive(case, control),
        (_, Operation::Latency) => latency::receive(case, wish.back, control),
        (Side::Bare, Operation::RmaWrite | Operation::RmaRead) => {
            let server = bare::Server::listen(case)?;
            control.say(&format!("ready {}", server.addr))?;
            server.expose(case, |window| control.say(&format!("window {window}")))
        }
        (Side::Ours, Operation::RmaWrite | Operation::RmaRead) => {
            let server = ours::Server::with_windows(case)?;
            control.say(&format!("ready {}", server.addr))?;
            server.expose(case, |window| control.say(&format!("window {window}")))
        }
        (Side::Ours, operation) if operation.is_by_token() => ours::object::lend(case, control),
        (Side::Ours, operation) if operation.is_object() => {
            ours::object_request::answer(case, control)
        }
        (Side::Bare, Operation::ObjectGet | Operation::ObjectPut) => {
            bare::object::lend(case, control)
        }
        (Side::Bare, Operation::ObjectRequest) => bare::object_request::answer(case, control),
        (Side::Bare, Operation::ObjectHttp) => http::answer(case, control),
        (Side::Bare, Operation::Coalesced) => {
            let server = coalesced::BareServer::listen(case)?;
            control.say(&format!("ready {}", server.addr))?;
            server.receive(case)
        }
        (Side::Ours, Operation::Coalesced) => {
            let server = coalesced::Server::listen(case)?;
            control.say(&format!("ready {}", server.addr))?;
            server.receive(case)
        }
        (Side::Bare, Operation::Publish) => {
            let subscribers = BareSubscribers::listen(case)?;
            control.say(&format!("ready {}", subscribers.addrs()))?;
            subscribers.receive(case)
        }
        (Side::Ours, Operation::Publish) => {
            let back = wish
                .back
                .ok_or_else(|| Failure::of("where is the publisher?"))?;
            let subscribers = kept.keep(Subscribers::connect(case, back)?);
            control.say("ready subscribed")?;
            subscribers.receive(case)
        }
        (Side::Bare, Operation::Rdm) => {
            let server = bare::rdm::Server::listen(case)?;
            control.say(&format!("ready {}", server.addr))?;
            server.receive(case)
        }
        (Side::Bare, operation) => {
            let server = bare::Server::listen(case)?;
            control.say(&format!("ready {}", server.addr))?;
            match operation {
                Operation::Pingpong => server.echo(case),
                _ => server.receive(case),
            }
        }
        (Side::Ours, Operation::Send | Operation::Rdm) => {
            let server = ours::Server::listen(case)?;
            control.say(&format!("ready {}", server.addr))?;
            kept.keep(server).receive(case)
        }
        (Side::Ours, _) => {
            let back = wish
                .back
                .ok_or_else(|| Failure::of("where to send replies?"))?;
            let server = ours::Server::listen(case)?;
            control.say(&format!("ready {}", server.addr))?;
            server.echo(case, back)
        }
    }
}
