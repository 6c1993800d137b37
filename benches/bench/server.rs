//! The server: runs what a client asks for, one case after the other, until the client leaves.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use clap::ValueEnum;

use crate::case::{Arrived, Case, Operation, Side, Wait};
use crate::control::Control;
use crate::error::{Failure, fail};
use crate::publish::{BareSubscribers, Subscribers};
use crate::{bare, c, coalesced, http, ours};

/// How long to wait for a client, and for its next wish.
const PATIENCE: Duration = Duration::from_secs(120);

/// Serves one client. Says on standard output where it listens.
pub(crate) fn serve(node: &str) -> Result<(), Failure> {
    let listener = TcpListener::bind((node, 0))?;
    println!("listening {}", listener.local_addr()?);
    std::io::stdout().flush()?;
    let mut control = Control::accept(&listener, PATIENCE)?;
    // Open until the client is done with it: over FI_EP_RDM the end of a listener is the end of
    // what is in flight to it.
    let mut last = None;
    while let Some(line) = control.hear(PATIENCE)? {
        drop(last.take());
        let answer = match Wish::parse(&line, node) {
            Ok(wish) => run(&wish, &mut control, &mut last),
            Err(failure) => Err(failure),
        };
        match answer {
            Ok(arrived) => control.say(&format!(
                "arrived {} {} {}",
                arrived.messages, arrived.elapsed_s, arrived.cpu_s
            ))?,
            Err(failure) => {
                control.say(&format!("failed {failure}"))?;
                return Err(failure);
            }
        }
    }
    Ok(())
}

/// What a client wants, as one line.
pub(crate) struct Wish {
    pub(crate) side: Side,
    pub(crate) case: Case,
    /// Where the client listens, if it does.
    pub(crate) back: Option<SocketAddr>,
}

impl Wish {
    pub(crate) fn line(&self) -> String {
        let Self { side, case, back } = self;
        let back = back.map_or_else(|| "-".to_owned(), |addr| addr.to_string());
        format!(
            "run {} {} {} {} {} {} {} {} {} {} {} {} {} {back}",
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
        )
    }

    fn parse(line: &str, node: &str) -> Result<Self, Failure> {
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
            back,
        ] = words[..]
        else {
            return fail(format!("no such wish: {line}"));
        };
        Ok(Self {
            side: Side::from_str(side, false).map_err(Failure)?,
            case: Case {
                operation: Operation::from_str(operation, false).map_err(Failure)?,
                size: size.parse()?,
                depth: depth.parse()?,
                seconds: seconds.parse()?,
                provider: provider.to_owned(),
                node: node.to_owned(),
                wait: Wait::from_str(wait, false).map_err(Failure)?,
                bare_connections: connections.parse()?,
                bare_pause_us: pause.parse()?,
                buffer: buffer.parse()?,
                flush_us: flush_us.parse()?,
                pack: pack.parse()?,
                gather: true,
                subscribers: subscribers.parse()?,
            },
            back: if back == "-" {
                None
            } else {
                Some(back.parse()?)
            },
        })
    }
}

/// What stays open until the client is done with it.
enum Last {
    Server(Box<ours::Server>),
    C(Box<c::Server>),
    Subscribers(Subscribers),
}

impl Last {
    fn receive(&mut self, case: &Case) -> Result<Arrived, Failure> {
        match self {
            Self::Server(server) => server.receive(case),
            Self::C(server) => server.receive(case),
            Self::Subscribers(subscribers) => subscribers.receive(case),
        }
    }
}

/// The server's half of what is measured through the C interface.
fn run_c(wish: &Wish, control: &mut Control, last: &mut Option<Last>) -> Result<Arrived, Failure> {
    let case = &wish.case;
    match (case.operation, wish.back) {
        (Operation::Coalesced, _) => {
            let mut endpoint = c::coalesced::listen(case)?;
            control.say(&format!("ready {}", endpoint.address()?))?;
            c::coalesced::receive(&mut endpoint, case)
        }
        (Operation::RmaWrite, _) => {
            let mut endpoint = c::rma::listen(case)?;
            control.say(&format!("ready {}", endpoint.address()?))?;
            c::rma::expose(&mut endpoint, case, |window| {
                control.say(&format!("window {window}"))
            })
        }
        (_, back) => {
            let server = c::Server::listen(case)?;
            control.say(&format!("ready {}", server.addr))?;
            match back {
                Some(back) => server.echo(case, &back.to_string()),
                None => last.insert(Last::C(Box::new(server))).receive(case),
            }
        }
    }
}

fn run(wish: &Wish, control: &mut Control, last: &mut Option<Last>) -> Result<Arrived, Failure> {
    let case = &wish.case;
    match (wish.side, case.operation) {
        (Side::C, _) => run_c(wish, control, last),
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
            let subscribers = last.insert(Last::Subscribers(Subscribers::connect(case, back)?));
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
            last.insert(Last::Server(Box::new(server))).receive(case)
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
