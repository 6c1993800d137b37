//! `Team`: several clients at once, each a process of its own with a server of its own, in one
//! direction or in both. Each is told what to run, and says what it measured.
//!
//! ```text
//!   Team ── run 600 … ──► worker ══ control and data ══ server      data goes this way ─►
//!        └─ turn 600 … ─► worker ══ control and data ══ server      ◄─ and this way
//! ```
//!
//! All begin to count at the same time, 600 ms from when they are told: by then all are connected.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::case::{Case, Side};
use crate::child::Guard;
use crate::client::{self, Figures};
use crate::control::Control;
use crate::error::{Failure, Kind, fail};
use crate::pairs::Runner;
use crate::server::{Host, Wish, run_reversed};
use crate::session::{Key, Member, join};

/// How long workers may take to connect before the time begins.
const BEGIN: Duration = Duration::from_millis(600);
/// How long a server may take for what needs no time.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a worker needs to know to begin.
#[derive(Clone, Debug)]
pub struct Start {
    /// Where the server listens.
    pub to: SocketAddr,
    /// The bytes of the key, if there is one.
    pub key: Option<Vec<u8>>,
    /// Which one it is.
    pub member: Member,
    /// It receives, and its server sends.
    pub is_reversed: bool,
    /// Which of the cores that its server may use that one is to keep to, counted from 0.
    pub server_core: Option<usize>,
}

impl Start {
    fn line(&self) -> String {
        let Self {
            to,
            key,
            member,
            is_reversed,
            server_core,
        } = self;
        let hex = |bytes: &Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let key = key.as_ref().map_or_else(|| "-".to_owned(), hex);
        let core = server_core.map_or_else(|| "-".to_owned(), |core| core.to_string());
        format!(
            "{to} {key} {} {} {} {core} {}",
            member.session,
            member.number,
            member.of,
            u8::from(*is_reversed)
        )
    }

    fn parse(line: &str) -> Option<Self> {
        let words: Vec<_> = line.split(' ').collect();
        let [to, key, session, number, of, core, is_reversed] = words[..] else {
            return None;
        };
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        Some(Self {
            to: to.parse().ok()?,
            key: match key {
                "-" => None,
                hex => Some(hex.as_bytes().chunks(2).map(byte).collect::<Option<_>>()?),
            },
            member: Member {
                session: session.parse().ok()?,
                number: number.parse().ok()?,
                of: of.parse().ok()?,
            },
            server_core: match core {
                "-" => None,
                core => Some(core.parse().ok()?),
            },
            is_reversed: is_reversed == "1",
        })
    }
}

/// A worker, as its team sees it.
#[derive(Debug)]
struct Worker {
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    guard: Guard,
    is_reversed: bool,
}

impl Worker {
    fn tell(&mut self, line: &str) -> Result<(), Failure> {
        let told = writeln!(self.to, "{line}").and_then(|()| self.to.flush());
        told.map_err(|error| Failure::new(format!("a client's process is gone: {error}")))
    }

    /// What it answers. It has deadlines of its own, and ends with this process.
    fn hear(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        let line = line.trim_end();
        match line.split_once(' ') {
            Some(("unreachable", why)) => Err(Failure::new(why).is(Kind::Unreachable)),
            Some(("refused", why)) => Err(Failure::new(why).is(Kind::Refused)),
            Some(("failed", why)) => fail(why),
            _ if line.is_empty() => fail("a client's process ended"),
            _ => Ok(line.to_owned()),
        }
    }
}

/// Several clients at once.
#[derive(Debug)]
pub struct Team {
    workers: Vec<Worker>,
}

/// A team, and the connection of who has started it, which the server hears of before each run.
#[derive(Debug)]
pub struct Together<'a> {
    /// The connection.
    pub control: &'a mut Control,
    /// The others.
    pub team: &'a mut Team,
}

impl Team {
    /// Starts a process for each: `command` is one that calls [`work`]. `cores`: where each runs,
    /// if that is said.
    ///
    /// # Errors
    /// When one can't be started, or does not reach its server.
    pub fn start(
        mut command: impl FnMut() -> Result<Command, Failure>,
        starts: &[Start],
        cores: &[Option<usize>],
    ) -> Result<Self, Failure> {
        let mut workers = Vec::new();
        for (start, core) in starts.iter().zip(cores) {
            let mut command = command()?;
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut guard = Guard::start(&mut command, *core)?;
            let mut worker = Worker {
                to: guard.orders()?,
                from: guard.lines()?,
                guard,
                is_reversed: start.is_reversed,
            };
            worker.tell(&start.line())?;
            workers.push(worker);
        }
        for worker in &mut workers {
            if worker.hear()? != "here" {
                return fail("a client's process said something else than that it is there");
            }
        }
        Ok(Self { workers })
    }

    /// Ends all of them.
    ///
    /// # Errors
    /// When one does not end.
    pub fn end(self) -> Result<(), Failure> {
        for worker in self.workers {
            let Worker { to, mut guard, .. } = worker;
            drop(to);
            guard.wait(Duration::from_secs(20))?;
        }
        Ok(())
    }
}

impl Runner for Together<'_> {
    fn run(&mut self, side: Side, case: &Case) -> Result<Figures, Failure> {
        let wish = Wish {
            side,
            case: case.clone(),
            back: None,
        };
        self.control.say("facts")?;
        self.control.expect("facts", PATIENCE)?;
        let workers = &mut self.team.workers;
        for worker in &mut *workers {
            let word = if worker.is_reversed { "turn" } else { "go" };
            worker.tell(&format!("{word} {} {}", BEGIN.as_millis(), wish.line()))?;
        }
        let mut all = Vec::new();
        for worker in workers {
            let line = worker.hear()?;
            match line.split_once(' ') {
                Some(("figures", figures)) => all.push(Figures::of_line(figures)?),
                _ => return fail("a client's process said no figures"),
            }
        }
        Ok(Figures::sum(&all))
    }
}

// ---- in the worker's process --------------------------------------------------------------------

/// Is a worker: reads what to do from standard input, and writes what it measured to `say`.
///
/// # Errors
/// When a run fails: the team has been told.
pub fn work(mut say: impl FnMut(&str)) -> Result<(), Failure> {
    let done = serve_team(&mut say);
    if let Err(failure) = &done {
        let word = match failure.kind() {
            Kind::Unreachable => "unreachable",
            Kind::Refused => "refused",
            Kind::Failed | Kind::Usage => "failed",
        };
        say(&format!("{word} {failure}").replace('\n', " "));
    }
    done
}

fn serve_team(say: &mut impl FnMut(&str)) -> Result<(), Failure> {
    let mut lines = std::io::stdin().lines();
    let Some(first) = lines.next() else {
        return Ok(());
    };
    let start = Start::parse(&first?).ok_or_else(|| Failure::of("no line to begin with"))?;
    let key = start.key.as_deref().map(Key::from_bytes).transpose()?;
    let mut control = join(start.to, key.as_ref(), start.member)?;
    if let Some(core) = start.server_core {
        control.say(&format!("pin {core}"))?;
        control.expect("pinned", PATIENCE)?;
    }
    let node = control.local_ip()?.to_string();
    let host = Host {
        node: &node,
        through: None,
    };
    say("here");
    for line in lines {
        let line = line?;
        let words: Vec<_> = line.splitn(3, ' ').collect();
        let [word, begin_ms, wish] = words[..] else {
            return fail("orders of another kind");
        };
        let begin = Duration::from_millis(begin_ms.parse()?);
        let mut wish = Wish::parse(wish, &node)?;
        let figures = match word {
            "turn" => run_reversed(&mut control, wish.side, &wish.case, begin, host)?,
            _ => {
                wish.case.begin = Some(Instant::now() + begin);
                client::run(&mut control, wish.side, &wish.case, None)?
            }
        };
        say(&figures.line());
    }
    Ok(())
}
