//! Measures all cases against a server, and says what came of each.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fabricast_bench::case::{Operation, Side};
use fabricast_bench::control::Control;
use fabricast_bench::error::{Failure as BenchFailure, Kind};
use fabricast_bench::facts::Node;
use fabricast_bench::gaps::Gaps;
use fabricast_bench::host;
use fabricast_bench::pairs::{self, Alone, Outcome, Runner};
use fabricast_bench::record::{self, About, Facts};
use fabricast_bench::report::Setting;
use fabricast_bench::server::Wish;
use fabricast_bench::session::{Key, Member, join};
use fabricast_bench::team::{self, Start, Team, Together};

use super::args::{BenchArgs, Only};
use super::output::Output;
use super::plan::{Planned, plan, why_not};
use super::reach::{self, Reached};
use super::serve::BUSY_WORDS;
use super::table;
use crate::failure::{End, Failure};
use crate::say::say;

/// How long the server may take for what needs no time, the start of libfabric included.
const ANSWER: Duration = Duration::from_secs(60);

/// How long a server may be busy with a client that has just left.
const BUSY: Duration = Duration::from_secs(3);

/// How long a server that was started by hand a moment ago may take to listen.
const STARTS: Duration = Duration::from_secs(1);

/// What a worker of a team does.
pub(super) fn work() -> Result<(), Failure> {
    team::work(|line| say(line)).map_err(|failure| Failure::from(failure).told())
}

pub(super) fn run(args: &BenchArgs) -> Result<(), Failure> {
    if args.print {
        let host = args.host.as_deref().unwrap_or_default();
        let words = std::env::args().skip_while(|word| word != "bench").skip(1);
        let more: Vec<_> = words
            .filter(|word| word != "--print" && word != host)
            .collect();
        return reach::print(host, &more);
    }
    let mut output = Output::open(args)?;
    let Some(reached) = reach::reach(args)? else {
        return Ok(());
    };
    let measured = Client::join(args, &reached)
        .and_then(|mut client| client.measure(&mut output))
        .map_err(|failure| hint(args, failure));
    reached.close(measured.is_ok());
    // What was measured before it failed is not lost.
    let written = output.close();
    measured.and(written)
}

/// What to do about a server that is not reached.
fn hint(args: &BenchArgs, failure: Failure) -> Failure {
    let end = failure.end();
    match (end, &args.host) {
        (End::Unreachable, Some(host)) => Failure::new(format!(
            "{failure}; where only ssh leads to it, see fabricast bench --print {host}"
        ))
        .ends(end),
        _ => failure,
    }
}

/// The client's end of a session.
struct Client<'a> {
    args: &'a BenchArgs,
    to: std::net::SocketAddr,
    key: Option<&'a [u8]>,
    session: u64,
    control: Control,
    nodes: [Node; 2],
    /// Where each process of this end runs, and which of the server's cores its peer has.
    cores: Vec<(Option<usize>, Option<usize>)>,
    /// The cores that this process could run on before it was pinned.
    allowed: Vec<usize>,
    team: Option<Team>,
    notes: Vec<String>,
    node: String,
}

impl<'a> Client<'a> {
    fn join(args: &'a BenchArgs, reached: &'a Reached) -> Result<Self, Failure> {
        let bytes = reached.key.as_deref();
        let key = bytes.map(Key::from_bytes).transpose()?;
        let session = u64::from_le_bytes(fabricast_bench::session::random_bytes()?);
        let member = Member {
            session,
            number: 0,
            of: processes(args) + 1,
        };
        let (to, mut control) = connect(reached, key.as_ref(), member)?;
        let ip = control.local_ip()?;
        let nodes = [Node::of_this("client", ip), ask_facts(&mut control)?];
        let mut client = Self {
            args,
            to,
            key: bytes,
            session,
            control,
            nodes,
            cores: Vec::new(),
            allowed: host::allowed(),
            team: None,
            notes: Vec::new(),
            node: ip.to_string(),
        };
        client.place()?;
        client.team = client.team()?;
        Ok(client)
    }

    /// Decides which process runs where.
    fn place(&mut self) -> Result<(), Failure> {
        let count = usize::from(processes(self.args));
        let is_one_machine = self.nodes[0].shares_machine_with(&self.nodes[1]);
        let here = &self.allowed;
        let there = self.nodes[1].value["usable_cores"]
            .as_u64()
            .unwrap_or_default() as usize;
        let fits = match is_one_machine {
            true => 2 * count <= here.len().min(there),
            false => count <= here.len().min(there),
        };
        self.cores = (0..count)
            .map(|number| match (fits && !self.args.no_pin, is_one_machine) {
                (false, _) => (None, None),
                (true, true) => (Some(here[2 * number]), Some(2 * number + 1)),
                (true, false) => (Some(here[number]), Some(number)),
            })
            .collect();
        if !fits && !self.args.no_pin {
            self.notes.push(format!(
                "not pinned: {count} processes at each end, {} cores here, {there} there",
                here.len()
            ));
        }
        if let ([(own, Some(theirs))], 1) = (&self.cores[..], count) {
            if let Some(own) = own {
                host::pin(*own).map_err(|error| Failure::os("sched_setaffinity", &error))?;
            }
            self.control.say(&format!("pin {theirs}"))?;
            self.control.expect("pinned", ANSWER)?;
            let ip = self.control.local_ip()?;
            self.nodes = [Node::of_this("client", ip), ask_facts(&mut self.control)?];
        }
        self.notes.extend(self.nodes[0].differences(&self.nodes[1]));
        Ok(())
    }

    fn measure(&mut self, output: &mut Output) -> Result<(), Failure> {
        let one_way = self.nodes[0].shares_clock_with(&self.nodes[1]);
        let cases = plan(self.args, &self.node, one_way);
        let spare = self.spare_core();
        let times = cases
            .iter()
            .any(|planned| planned.case.operation == Operation::Latency);
        if times && spare.is_none() {
            self.notes.push(
                "no core is to spare for a thread that sees how long the machine runs nobody"
                    .to_owned(),
            );
        }
        let facts = self.facts(&cases);
        output.put(facts.line())?;
        if output.has_table() {
            say(table::head(&facts));
        }
        for planned in &cases {
            self.one(planned, one_way, spare, output)?;
        }
        if output.has_table() {
            say(table::FOOT);
        }
        match self.team.take() {
            Some(team) => Ok(team.end()?),
            None => Ok(()),
        }
    }

    fn facts(&self, cases: &[Planned]) -> Facts {
        let words: Vec<_> = std::env::args().skip(1).collect();
        let provider = cases.first().map(|planned| planned.case.provider.clone());
        Facts {
            at: now(),
            command: format!("fabricast {}", words.join(" ")),
            nodes: self.nodes.clone(),
            provider: provider.unwrap_or_default(),
            is_loopback: self.nodes[0].shares_machine_with(&self.nodes[1]),
            seconds: self.args.seconds(),
            pairs: self.args.runs(),
            notes: self.notes.clone(),
        }
    }

    /// A core of this machine that nobody measures with.
    fn spare_core(&self) -> Option<usize> {
        let is_one_machine = self.nodes[0].shares_machine_with(&self.nodes[1]);
        let each = if is_one_machine { 2 } else { 1 };
        let used = each * usize::from(processes(self.args));
        let spare = self.allowed.get(used).copied();
        spare.filter(|_| !self.args.no_pin)
    }

    /// One case.
    fn one(
        &mut self,
        planned: &Planned,
        one_way: bool,
        spare: Option<usize>,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let case = &planned.case;
        let is_latency = case.operation == Operation::Latency;
        let mut about = About {
            op: planned.op.name().to_owned(),
            processes: self.args.processes,
            directions: if self.args.both { 2 } else { 1 },
            timed: is_latency.then_some(match one_way {
                true => "one way",
                false => "half of there and back",
            }),
            gaps: None,
        };
        let setting = match self.why_not(planned)? {
            Ok(setting) => setting,
            Err(why) => {
                output.put(record::skipped(case, &about, &why))?;
                if output.has_table() {
                    say(table::skipped(case, &about, &why));
                }
                return Ok(());
            }
        };
        let gaps = match spare.filter(|_| is_latency) {
            Some(core) => Some(Gaps::begin(core)?),
            None => None,
        };
        let outcome = self.run(planned)?;
        about.gaps = gaps.map(Gaps::end).transpose()?;
        output.put(record::case(&setting, case, &about, &outcome))?;
        if output.has_table() {
            say(table::row(case, &about, &outcome));
        }
        Ok(())
    }

    /// Why a case can't be measured here or there; else what it is measured over.
    fn why_not(&mut self, planned: &Planned) -> Result<Result<Setting, String>, Failure> {
        let case = &planned.case;
        if let Some(why) = why_not(planned) {
            return Ok(Err(why));
        }
        if self.args.only == Some(Only::Bare) && !case.operation.has_bare() {
            return Ok(Err("there is no bare loop for it".to_owned()));
        }
        let setting = match Setting::of(case, false) {
            Ok(setting) => setting,
            Err(failure) => return Ok(Err(format!("here: {failure}"))),
        };
        let wish = Wish {
            side: Side::Ours,
            case: case.clone(),
            back: None,
        };
        self.control.say(&format!("can {}", wish.line()))?;
        let said = self.control.expect("can", ANSWER)?;
        match said.split_once(' ') {
            Some(("yes", _)) => Ok(Ok(setting)),
            Some((_, why)) => Ok(Err(format!("there: {why}"))),
            None => Ok(Err(format!("there: {said}"))),
        }
    }

    fn run(&mut self, planned: &Planned) -> Result<Outcome, Failure> {
        let runs = self.args.runs();
        let only = self.args.only.map(|only| match only {
            Only::Ours => Side::Ours,
            Only::Bare => Side::Bare,
        });
        let outcome = |runner: &mut dyn Runner| {
            let sides = [Side::Bare, Side::Ours];
            pairs::run(runner, &planned.case, runs, sides, only)
        };
        let control = &mut self.control;
        Ok(match &mut self.team {
            Some(team) => outcome(&mut Together { control, team })?,
            None => outcome(&mut Alone {
                control,
                through: None,
            })?,
        })
    }

    /// The other processes of this end, if there are to be several.
    fn team(&self) -> Result<Option<Team>, Failure> {
        if processes(self.args) == 1 {
            return Ok(None);
        }
        let starts: Vec<_> = (0..processes(self.args))
            .map(|number| Start {
                to: self.to,
                key: self.key.map(<[u8]>::to_vec),
                member: Member {
                    session: self.session,
                    number: number + 1,
                    of: processes(self.args) + 1,
                },
                is_reversed: self.args.both && number % 2 == 1,
                server_core: self.cores[usize::from(number)].1,
            })
            .collect();
        let own: Vec<_> = self.cores.iter().map(|(own, _)| *own).collect();
        Ok(Some(Team::start(worker, &starts, &own)?))
    }
}

fn worker() -> Result<Command, BenchFailure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "client"]);
    Ok(command)
}

/// Processes at each end.
fn processes(args: &BenchArgs) -> u16 {
    args.processes * if args.both { 2 } else { 1 }
}

/// Joins at the first address that answers.
fn connect(
    reached: &Reached,
    key: Option<&Key>,
    member: Member,
) -> Result<(std::net::SocketAddr, Control), Failure> {
    let begun = Instant::now();
    loop {
        let mut last = BenchFailure::of("it has no address");
        for &to in &reached.to {
            match join(to, key, member) {
                Ok(control) => return Ok((to, control)),
                Err(failure) => last = failure,
            }
        }
        let patience = match last.kind() {
            Kind::Unreachable => STARTS,
            _ if last.to_string().contains(BUSY_WORDS) => BUSY,
            _ => Duration::ZERO,
        };
        if begun.elapsed() >= patience {
            let failure = Failure::from(last);
            let end = failure.end();
            return Err(Failure::new(format!("{}: {failure}", reached.name)).ends(end));
        }
        std::thread::sleep(Duration::from_millis(300));
    }
}

fn ask_facts(control: &mut Control) -> Result<Node, Failure> {
    control.say("facts")?;
    let said = control.expect("facts", ANSWER)?;
    Node::of_text(&said)
        .ok_or_else(|| Failure::new("the server says nothing of its machine").ends(End::Refused))
}

/// The time of now as RFC 3339 writes it.
fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = since.map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of so many days after the first of 1970.
fn date(mut days: u64) -> (u64, u64, u64) {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for len in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < len {
            break;
        }
        days -= len;
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        for (days, expected) in [
            (0, (1970, 1, 1)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (20_783, (2026, 11, 26)),
            (20_818, (2026, 12, 31)),
        ] {
            assert_eq!(date(days), expected);
        }
    }
}
