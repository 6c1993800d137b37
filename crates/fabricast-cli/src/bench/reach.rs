//! `Reached`: where the server is, and what must be kept as long as it is needed.

use std::io::{BufRead, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fabricast_bench::child::Guard;
use fabricast_bench::session::Key;

use super::args::{BenchArgs, PORT, resolve};
use super::serve::{Serving, bind, read_key};
use crate::failure::{End, Failure};
use crate::interrupt;
use crate::say::say;
use crate::stream::args::FarArgs;
use crate::stream::far::place::FarPlace;
use crate::stream::far::{self, FarEnd, MARK, Request, Role};
use crate::stream::slurm::{self, Meeting, Task};

/// Bytes of a key for one time.
const KEY_LEN: usize = 32;

/// How long a server on this machine may take to start.
const START: Duration = Duration::from_secs(30);

/// What started the server, and ends it.
enum Held {
    /// Somebody else did.
    Nothing,
    Here(Guard),
    Far(FarEnd),
    Task(Meeting),
}

/// A server.
pub(crate) struct Reached {
    /// Its addresses, of which the first that answers is taken.
    pub(crate) to: Vec<SocketAddr>,
    pub(crate) key: Option<Vec<u8>>,
    /// As people call it.
    pub(crate) name: String,
    held: Held,
}

impl Reached {
    /// Ends what was started, in good order.
    pub(crate) fn close(self, has_succeeded: bool) {
        match self.held {
            Held::Nothing => {}
            // Its input ends with this process; it has nothing to do any more.
            Held::Here(guard) => drop(guard),
            Held::Far(far) => far.close(),
            Held::Task(meeting) => meeting.leave(has_succeeded),
        }
    }
}

/// Finds or starts the server that was asked for; none: this task of Slurm was the server, and is
/// done.
pub(crate) fn reach(args: &BenchArgs) -> Result<Option<Reached>, Failure> {
    if let Some(shared) = &args.slurm {
        return by_slurm(shared);
    }
    if args.local {
        return here(args.node).map(Some);
    }
    if let Some(to) = &args.to {
        return Ok(Some(Reached {
            to: resolve("--to", to)?,
            key: read_key(args)?,
            name: to.clone(),
            held: Held::Nothing,
        }));
    }
    let host = args.host.as_deref().unwrap_or_default();
    by_shell(args, host).map(Some)
}

/// Starts one on this machine, which gets its key by its input.
fn here(node: IpAddr) -> Result<Reached, Failure> {
    let own = std::env::current_exe().map_err(|error| Failure::os("fabricast", &error))?;
    let mut command = Command::new(own);
    command.arg("far-end");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    // So the far end knows where it is to listen.
    command.env("SSH_CONNECTION", format!("{node} 0 {node} 0"));
    let mut guard = Guard::start(&mut command, None)?;
    let (mut to, mut lines) = (guard.orders()?, guard.lines()?);
    let key = far::random_bytes(KEY_LEN)?;
    let request = request(&key).to_json();
    let failed = |error: &std::io::Error| Failure::os("the server", error);
    writeln!(to, "{request}").map_err(|error| failed(&error))?;
    let until = Instant::now() + START;
    loop {
        let mut line = String::new();
        let read = lines.read_line(&mut line).map_err(|error| failed(&error))?;
        let said: serde_json::Value = line
            .strip_prefix(MARK)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        if let Some(text) = said["failed"].as_str() {
            let end = End::with_code(said["exit"].as_u64().unwrap_or_default());
            return Err(Failure::new(text).ends(end));
        }
        if let Some(at) = said["listening"][0].as_str() {
            let to_server = at.parse().map_err(Failure::of)?;
            guard.hold(to);
            return Ok(Reached {
                to: vec![to_server],
                key: Some(key),
                name: "this machine".to_owned(),
                held: Held::Here(guard),
            });
        }
        if read == 0 || Instant::now() > until {
            return Err(Failure::new("the server did not start").ends(End::Unreachable));
        }
    }
}

fn request(key: &[u8]) -> Request {
    Request {
        role: Role::Bench,
        args: Vec::new(),
        key: key.to_vec(),
        meet: Vec::new(),
        paths: Vec::new(),
        to: Vec::new(),
    }
}

/// Starts one on a machine that a shell can be started on.
fn by_shell(args: &BenchArgs, host: &str) -> Result<Reached, Failure> {
    let place = FarPlace::of_host(host)
        .map_err(|why| Failure::new(format!("{why}; an address goes to --to")).ends(End::Usage))?;
    let how = FarArgs {
        rsh: args.rsh.clone(),
        remote_path: args.remote_path.clone(),
        rail: Vec::new(),
    };
    interrupt::watch()?;
    let mut far = FarEnd::start(&place, &how)?;
    let key = match read_key(args)? {
        Some(key) => key,
        None => far::random_bytes(KEY_LEN)?,
    };
    far.hello()?;
    far.ask(&request(&key))?;
    let listening = far.listening()?;
    let to = listening.iter().map(|text| text.parse());
    let to = to
        .collect::<Result<_, _>>()
        .map_err(|error| Failure::new(format!("{host}: {error}")))?;
    Ok(Reached {
        to,
        key: Some(key),
        name: host.to_owned(),
        held: Held::Far(far),
    })
}

/// The server that a shell starts: until its input ends.
pub(crate) fn far_server(
    key: &[u8],
    came_in: Option<IpAddr>,
    is_over: impl Fn() -> bool,
) -> Result<(), Failure> {
    let listener = bind(&[SocketAddr::new(far::listening_ip(came_in), 0)])?;
    let at = listening(&listener)?;
    say(format_args!(
        "{MARK}{}",
        serde_json::json!({ "listening": [at.to_string()] })
    ));
    let serving = Serving {
        listener,
        key: Some(Key::from_bytes(key)?),
        is_once: false,
        tells: false,
    };
    // Its input is over when its client is done.
    let ended = serving.run(|| is_over().then_some(End::Interrupted));
    match ended {
        Err(failure) if failure.end() == End::Interrupted => Ok(()),
        ended => ended,
    }
}

fn listening(listener: &TcpListener) -> Result<SocketAddr, Failure> {
    let at = listener.local_addr();
    at.map_err(|error| Failure::os("the listener", &error))
}

/// This task's part: the client's is to find the server, the server's to serve one client.
fn by_slurm(shared: &Path) -> Result<Option<Reached>, Failure> {
    let task = Task::of_environment()?;
    interrupt::watch()?;
    if !task.is_sender() {
        slurm::serve(shared, &task, |key, ip| {
            let listener = bind(&[SocketAddr::new(ip, 0)])?;
            let at = listening(&listener)?.to_string();
            let serving = Serving {
                listener,
                key: Some(Key::from_bytes(key)?),
                is_once: true,
                tells: false,
            };
            let serve = move |asked: &dyn Fn() -> Option<End>| serving.run(asked);
            Ok((vec![at], serve))
        })?;
        return Ok(None);
    }
    let key = far::random_bytes(KEY_LEN)?;
    let meeting = Meeting::call(shared, &task, &key)?;
    let to = meeting
        .listening()
        .iter()
        .filter_map(fabricast::PeerAddr::socket_addr)
        .collect();
    Ok(Some(Reached {
        to,
        key: Some(key),
        name: "task 1".to_owned(),
        held: Held::Task(meeting),
    }))
}

/// `--print`: the two lines to paste, with a key for this one time.
pub(crate) fn print(host: &str, command: &[String]) -> Result<(), Failure> {
    let key: String = far::to_hex(&far::random_bytes(KEY_LEN)?);
    let file = format!("bench-{}.key", &key[..8]);
    let make = format!("(umask 077; echo {key} >{file})");
    let more: Vec<_> = command.iter().map(|word| format!(" {word}")).collect();
    say(format_args!(
        "On {host}:\n\n  {make}; fabricast bench --listen {host}:{PORT} --key {file} --once\n\nand \
         here:\n\n  {make}; fabricast bench --to {host}:{PORT} --key {file}{}\n\nThe file is of no \
         use afterwards: rm {file}",
        more.concat()
    ));
    Ok(())
}
