//! The server: takes clients that have the key, one at a time, and gives each connection to a
//! process of its own. What a client says is read there; here it only proves that it has the key.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fabricast_bench::child::Guard;
use fabricast_bench::control::Control;
use fabricast_bench::error::{Failure as BenchFailure, Kind};
use fabricast_bench::server::{self, Host};
use fabricast_bench::session::{Key, Member, greet};

use super::args::{BenchArgs, resolve};
use crate::failure::{End, Failure};
use crate::interrupt;
use crate::say::say;

/// How often it is looked whether somebody asked for an end, and whether a client came or left.
const LOOK: Duration = Duration::from_millis(20);

/// What a server says that has a client.
pub(crate) const BUSY_WORDS: &str = "it serves another client";

/// Connections that say who they are, at most; others wait.
const GREETED_MAX: usize = 16;

/// `--listen`.
pub(crate) fn listen(args: &BenchArgs) -> Result<(), Failure> {
    interrupt::watch()?;
    let text = args.listen.as_deref().unwrap_or_default();
    let at = resolve("--listen", text)?;
    let key = read_key(args)?;
    if key.is_none() && !at.iter().all(|at| at.ip().is_loopback()) {
        let text = format!(
            "--listen {text}: whoever reaches it could have this machine measured: give both ends \
             the same --key (fabricast bench --print HOST says how), or listen at a loopback \
             address"
        );
        return Err(Failure::new(text).ends(End::Usage));
    }
    let listener = bind(&at)?;
    let local = listener.local_addr();
    let local = local.map_err(|error| Failure::os("the listener", &error))?;
    say(format_args!("listening on {local}"));
    let serving = Serving {
        listener,
        key: key.as_deref().map(Key::from_bytes).transpose()?,
        is_once: args.once,
        tells: true,
    };
    serving.run(interrupt::asked)
}

pub(crate) fn read_key(args: &BenchArgs) -> Result<Option<Vec<u8>>, Failure> {
    let Some(path) = &args.key else {
        return Ok(None);
    };
    let bytes = std::fs::read(path).map_err(|error| Failure::file(path, &error))?;
    Key::from_bytes(&bytes).map_err(|failure| {
        Failure::new(format!("{}: {failure}", path.display())).ends(End::Usage)
    })?;
    Ok(Some(bytes))
}

/// Listens at the first of these addresses that can be listened at.
pub(crate) fn bind(at: &[SocketAddr]) -> Result<TcpListener, Failure> {
    let bound = TcpListener::bind(at).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.map_err(|error| {
        let all: Vec<_> = at.iter().map(ToString::to_string).collect();
        Failure::os(all.join(", "), &error)
    })
}

/// A server that listens.
pub(crate) struct Serving {
    pub(crate) listener: TcpListener,
    pub(crate) key: Option<Key>,
    /// It ends after one client.
    pub(crate) is_once: bool,
    /// It tells people what became of clients.
    pub(crate) tells: bool,
}

/// The client that is served, whose processes come one by one.
#[derive(Debug, Default)]
struct Current {
    session: Option<u64>,
    joined: HashSet<u16>,
    /// Those that were admitted and have no process yet.
    coming: usize,
    /// Connections that say who they are.
    greeted: usize,
}

impl Current {
    fn admit(&mut self, member: Member) -> Result<(), BenchFailure> {
        let refused = |text: &str| Err(BenchFailure::of(text).is(Kind::Refused));
        match self.session {
            Some(session) if session != member.session => {
                return refused(&format!("{BUSY_WORDS}: try again when that is done"));
            }
            _ => {}
        }
        if !self.joined.insert(member.number) {
            return refused("that process of this client is here already");
        }
        self.session = Some(member.session);
        self.coming += 1;
        Ok(())
    }
}

type Shared = Arc<Mutex<Current>>;

fn lock(current: &Shared) -> MutexGuard<'_, Current> {
    current.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Serving {
    /// Serves until `asked` says how to end, or with `is_once` until one client is done.
    pub(crate) fn run(&self, asked: impl Fn() -> Option<End>) -> Result<(), Failure> {
        let (give, take) = channel();
        let current = Shared::default();
        let mut processes: Vec<(Guard, IpAddr)> = Vec::new();
        let mut failed = None;
        loop {
            if let Some(end) = asked() {
                return Err(Failure::new("interrupted").ends(end));
            }
            self.accept(&current, &give)?;
            while let Ok((stream, peer)) = take.try_recv() {
                processes.push((start(stream, self.tells)?, peer));
                lock(&current).coming -= 1;
            }
            let mut ended = None;
            let mut at = 0;
            while at < processes.len() {
                let Some(status) = processes[at].0.ended()? else {
                    at += 1;
                    continue;
                };
                let (_, peer) = processes.swap_remove(at);
                if !status.success() {
                    failed = Some(peer);
                }
                ended = Some(peer);
            }
            let mut now = lock(&current);
            if let Some(peer) = ended
                && processes.is_empty()
                && now.coming == 0
            {
                now.session = None;
                now.joined.clear();
                drop(now);
                let text = format!("{peer}: what its client wanted failed");
                match failed.take() {
                    Some(_) if self.is_once => return Err(Failure::new(text)),
                    Some(_) if self.tells => eprintln!("fabricast: {text}"),
                    None if self.tells => say(format_args!("{peer}: done")),
                    _ => {}
                }
                if self.is_once {
                    return Ok(());
                }
            } else {
                drop(now);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Takes who connects, and has each say who it is in a thread of its own.
    fn accept(&self, current: &Shared, give: &Sender<Greeted>) -> Result<(), Failure> {
        while lock(current).greeted < GREETED_MAX {
            let (stream, peer) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if is_for_now(&error) => return Ok(()),
                Err(error) => return Err(Failure::os("the listener", &error)),
            };
            lock(current).greeted += 1;
            let (current, give) = (Arc::clone(current), give.clone());
            let (key, tells) = (self.key.clone(), self.tells);
            let talk = move || {
                let mut admitted = None;
                let greeted = greet(stream, key.as_ref(), |member| {
                    lock(&current).admit(member)?;
                    admitted = Some(member);
                    Ok(())
                });
                let given = greeted.and_then(|(control, _)| control.into_stream());
                match given {
                    // Nobody takes it when this server ends.
                    Ok(stream) => drop(give.send((stream, peer.ip()))),
                    Err(failure) => {
                        if let Some(member) = admitted {
                            let mut current = lock(&current);
                            current.joined.remove(&member.number);
                            current.coming -= 1;
                            if current.joined.is_empty() {
                                current.session = None;
                            }
                        }
                        if tells {
                            eprintln!("fabricast: {peer}: refused: {failure}");
                        }
                    }
                }
                lock(&current).greeted -= 1;
            };
            let thread = std::thread::Builder::new().name("greeting".to_owned());
            let started = thread.spawn(talk);
            started.map_err(|error| Failure::os("a thread", &error))?;
        }
        Ok(())
    }
}

type Greeted = (TcpStream, IpAddr);

fn is_for_now(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted)
}

/// Starts the process of a connection.
fn start(stream: TcpStream, tells: bool) -> Result<Guard, Failure> {
    let own = std::env::current_exe().map_err(|error| Failure::os("fabricast", &error))?;
    let mut command = Command::new(own);
    command.args(["bench", "server"]);
    if !tells {
        command.arg("--told");
    }
    command.stdin(OwnedFd::from(stream)).stdout(Stdio::null());
    Ok(Guard::start(&mut command, None)?)
}

/// That process. Its failures a client has been told.
pub(crate) fn serve_client(is_told: bool) -> Result<(), Failure> {
    interrupt::leave_to_parent()?;
    let stream = std::io::stdin().as_fd().try_clone_to_owned();
    let stream = stream.map_err(|error| Failure::os("standard input", &error))?;
    let mut control = Control::over(TcpStream::from(stream))?;
    control.trust();
    let node = control.local_ip()?.to_string();
    let host = Host {
        node: &node,
        through: None,
    };
    let served = server::serve(&mut control, host).map_err(Failure::from);
    match is_told {
        true => served.map_err(Failure::told),
        false => served,
    }
}
