//! `fabricast readout`: real processes, whose counts must agree, and what can
//! go wrong.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use fabricast::buffer::Payload;
use fabricast::endpoint::{HeaderMode, SendConfig};
use fabricast::{Fabric, SendEndpointZeroCopy};

use crate::patience::patient;
use crate::program;
use crate::provider::{any_port, nobodys_port, node};

/// No process of these tests may take longer.
static PATIENCE: LazyLock<Duration> = LazyLock::new(|| patient(Duration::from_secs(60)));

/// The provider to use.
fn provider() -> &'static str {
    crate::over().expect("the program is there")
}

/// A process of ours; ended when it is dropped.
struct Process(Child);

#[derive(Debug)]
struct Ended {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

impl Process {
    fn start(program: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        let command = command.arg("readout").args(arguments);
        let command = command.stdin(Stdio::null());
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().expect("it starts"))
    }

    /// Waits for the end. What it prints in these tests fits into the pipes.
    fn end(mut self) -> Ended {
        let deadline = Instant::now() + *PATIENCE;
        let status = loop {
            if let Some(status) = self.0.try_wait().expect("it is our child") {
                break status;
            }
            assert!(
                Instant::now() < deadline,
                "not ended within {:?}",
                *PATIENCE
            );
            std::thread::sleep(Duration::from_millis(5));
        };
        let (mut stdout, mut stderr) = (String::new(), String::new());
        if let Some(mut pipe) = self.0.stdout.take() {
            pipe.read_to_string(&mut stdout).expect("text");
        }
        if let Some(mut pipe) = self.0.stderr.take() {
            pipe.read_to_string(&mut stderr).expect("text");
        }
        Ended {
            status,
            stdout,
            stderr,
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).expect("it was not waited for");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both do nothing when `end` has seen its end; a stopped process can be killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Ended {
    /// It ended well, and its JSON says that both sides agree.
    #[track_caller]
    fn assert_agrees(self) -> Counts {
        let code = self.status.code();
        assert_eq!(code, Some(0), "{}\n{}", self.stdout, self.stderr);
        let counts = Counts(self.stdout);
        assert_eq!(counts.field("agree"), "true");
        counts
    }

    /// It failed, with one line that says why.
    #[track_caller]
    fn assert_failed(&self, code: i32, why: &str) {
        assert_eq!(self.status.code(), Some(code), "{self:?}");
        let mut lines = self.stderr.lines();
        let lead = if code == 2 { "error: " } else { "fabricast: " };
        let line = lines.find(|line| line.starts_with(lead) && line.contains(why));
        assert!(line.is_some(), "want {why:?}, got {}", self.stderr);
    }
}

/// The JSON object that a run prints.
struct Counts(String);

impl Counts {
    /// The first field of that name: those of the whole run come before those of each builder.
    #[track_caller]
    fn field(&self, name: &str) -> &str {
        let key = format!("\"{name}\":");
        let Some((_, rest)) = self.0.split_once(&key) else {
            panic!("no {name} in {}", self.0);
        };
        rest.split([',', '}']).next().unwrap_or("")
    }

    #[track_caller]
    fn get(&self, name: &str) -> u64 {
        let text = self.field(name);
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is {text}, no count"))
    }

    /// Sums up a field of all builders.
    fn sum(&self, name: &str) -> u64 {
        let key = format!("\"{name}\":");
        let values = self.0.split(&key).skip(1);
        let number = |text: &str| text.split([',', '}']).next()?.parse::<u64>().ok();
        values.filter_map(number).sum()
    }
}

/// A demo of a second with these arguments added.
fn demo(program: &Path, more: &[&str]) -> Ended {
    let mut arguments = vec!["demo", "--json", "--provider", provider(), "--node", node()];
    arguments.extend(more);
    arguments.extend(in_time(more));
    Process::start(program, &arguments).end()
}

/// Where the test does not say for how long others are waited for: for longer than a machine stands
/// still.
fn in_time(arguments: &[&str]) -> &'static [&'static str] {
    match arguments.contains(&"--timeout") {
        true => &[],
        false => &["--timeout", "45"],
    }
}

#[test]
fn a_run_loses_nothing() {
    let Some(program) = program() else { return };
    let sizes = ["--size", "1-9000", "--rate", "3", "--events", "2000"];
    let counts = demo(&program, &sizes).assert_agrees();
    let events = counts.get("events_triggered");
    assert_eq!(events, 2000);
    assert_eq!(counts.get("events_built"), events);
    assert_eq!(counts.get("fragments"), 2 * events);
    assert_eq!(counts.sum("fragments_sent"), 2 * events);
    assert_eq!(counts.sum("fragments_received"), 2 * events);
    assert_eq!(counts.sum("bytes_received"), counts.get("bytes"));
    for none in [
        "events_incomplete",
        "events_dropped_by_detectors",
        "events_lost_with_builder",
        "events_given_up",
        "events_reassigned",
        "fragments_dropped",
        "fragments_lost",
        "fragments_resent",
        "builders_lost",
    ] {
        assert_eq!(counts.get(none), 0, "{none}");
    }
    let p50: f64 = counts.field("latency_us_p50").parse().expect("measured");
    let max: f64 = counts.field("latency_us_max").parse().expect("measured");
    assert!(0.0 < p50 && p50 <= max, "p50 {p50} us, maximum {max} us");
}

#[test]
fn as_fast_as_it_goes_with_more_detectors_than_builders() {
    let Some(program) = program() else { return };
    let more = ["--detectors", "3", "--builders", "2", "--size", "exp:500"];
    let more = [&more[..], &["--events", "5000"]].concat();
    let counts = demo(&program, &more).assert_agrees();
    assert_eq!(counts.get("events_built"), counts.get("events_triggered"));
    assert_eq!(counts.get("fragments"), 15_000);
}

#[test]
fn the_table_names_what_people_look_for() {
    let Some(program) = program() else { return };
    let mut arguments = vec!["demo", "--events", "200", "--rate", "1"];
    arguments.extend(["--provider", provider(), "--node", node()]);
    let ended = Process::start(&program, &arguments).end();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    for words in [
        "libfabric",
        "kHz",
        "GB/s",
        "p99.9 us",
        "back-press.",
        "losses       0 builders lost",
        "a builder's time",
        "both sides agree",
    ] {
        assert!(ended.stdout.contains(words), "{words}: {}", ended.stdout);
    }
}

/// Builders that are slow soon have something under way, and the one is killed when it has.
const BUSY: [&str; 6] = [
    "--work",
    "500",
    "--kill-builder-after",
    "0.4",
    "--seconds",
    "2",
];

#[test]
fn a_killed_builder_costs_nothing_where_fragments_are_kept() {
    let Some(program) = program() else { return };
    let mut more = BUSY.to_vec();
    more.extend(["--builders", "3"]);
    let counts = demo(&program, &more).assert_agrees();
    assert_eq!(counts.get("builders_lost"), 1);
    assert_eq!(counts.get("events_built"), counts.get("events_triggered"));
    assert!(counts.get("events_reassigned") > 0, "{}", counts.0);
    assert_eq!(counts.get("fragments_lost"), 0);
}

#[test]
fn a_killed_builder_costs_what_it_had_where_fragments_are_dropped() {
    let Some(program) = program() else { return };
    let mut more = BUSY.to_vec();
    more.extend(["--policy", "drop"]);
    let counts = demo(&program, &more).assert_agrees();
    assert_eq!(counts.get("builders_lost"), 1);
    let lost = counts.get("events_lost_with_builder");
    let events = counts.get("events_triggered");
    assert_eq!(counts.get("events_built") + lost, events);
    assert!(lost > 0 && lost < events, "{lost} of {events}");
    assert_eq!(counts.get("fragments_lost"), 2 * lost);
    assert_eq!(counts.get("fragments_resent"), 0);
}

/// Hundreds of fragments travel in one message, which is lost or comes as a whole.
#[test]
fn a_killed_builder_costs_nothing_where_fragments_are_packed() {
    let Some(program) = program() else { return };
    let mut more = vec!["--size", "64", "--work", "20", "--seconds", "1"];
    more.extend(["--builders", "3", "--kill-builder-after", "0.4"]);
    let counts = demo(&program, &more).assert_agrees();
    let events = counts.get("events_triggered");
    assert_eq!(counts.get("builders_lost"), 1);
    assert_eq!(counts.get("events_built"), events);
    assert_eq!(counts.get("fragments"), 2 * events);
    assert_eq!(counts.get("events_given_up"), 0);
    assert_eq!(counts.get("fragments_lost"), 0);
    let (reassigned, resent) = (
        counts.get("events_reassigned"),
        counts.get("fragments_resent"),
    );
    assert!(reassigned > 0 && resent > 0, "{}", counts.0);
    // What is in doubt is no more than the window of events.
    assert!(
        reassigned <= 16_384 && resent <= 2 * reassigned,
        "{}",
        counts.0
    );
}

/// What comes later takes the place of what was lost, time and again.
#[test]
fn builders_that_are_killed_and_come_by_turns_cost_nothing() {
    let Some(program) = program() else { return };
    let mut more = vec!["--size", "64-256", "--rate", "20", "--builders", "2"];
    more.extend(["--kill-every", "0.7", "--seconds", "4"]);
    let counts = demo(&program, &more).assert_agrees();
    let (events, killed) = (counts.get("events_triggered"), counts.get("builders_lost"));
    // The next one is killed when another has come in its place.
    assert!((2..=8).contains(&killed), "{killed} were killed");
    assert_eq!(counts.get("events_built"), events);
    assert_eq!(counts.get("fragments"), 2 * events);
    assert_eq!(counts.get("fragments_lost"), 0);
    // With the third kill all of the first builders are gone: others built, and agree.
    let builders = counts.get("builders");
    assert!(
        builders > killed,
        "{builders} builders, {killed} of them killed"
    );
    let all = counts.sum("events_built");
    assert_eq!(all, 2 * events, "the sum, and those of each builder");
    let joined: Vec<_> = counts.0.split("\"address\":").skip(3).collect();
    assert!(!joined.is_empty(), "{}", counts.0);
    for row in joined {
        // But the last one, which may have come with the end.
        let built = Counts(row.to_owned()).get("events_built");
        assert!(built > 0 || counts.0.ends_with(row), "{}", counts.0);
    }
}

/// The last one that was ready is killed when the next one has hardly started: its events wait.
#[test]
fn events_wait_while_no_builder_is_ready() {
    let Some(program) = program() else { return };
    let more = ["--size", "64", "--kill-every", "0.01", "--builders", "2"];
    let counts = demo(&program, &[&more[..], &["--seconds", "3"]].concat()).assert_agrees();
    let events = counts.get("events_triggered");
    assert_eq!(counts.get("events_built"), events);
    assert_eq!(counts.get("fragments_lost"), 0);
    assert!(counts.get("builders_lost") > 1, "{}", counts.0);
}

/// After the start, there is memory for everything on both sides: what a run five times as long
/// allocates more is less than one in a thousand events.
#[test]
fn no_event_costs_an_allocation() {
    let Some(program) = program() else { return };
    // The library's own lists grow to what is needed at most, which is not the same in every run.
    const SETTLING: u64 = 300;
    for (size, short, long) in [("64-256", 40_000, 200_000), ("5000-6000", 4000, 20_000)] {
        let [few, many] = [short, long].map(|events: u64| {
            let events = events.to_string();
            let counts = demo(&program, &["--size", size, "--events", &events]);
            let counts = counts.assert_agrees();
            ["source_allocations", "builders_allocations"].map(|side| counts.get(side))
        });
        for side in 0..2 {
            let more = many[side].saturating_sub(few[side]);
            let allowed = SETTLING + (long - short) / 1000;
            assert!(more <= allowed, "{size}: {few:?} and {many:?}");
        }
    }
}

/// As numbers of clock cycles are: shares are even all the same, and nothing is slow or lost.
#[test]
fn event_numbers_may_have_gaps() {
    let Some(program) = program() else { return };
    for gap in ["3", "4096", "16777216"] {
        let more = ["--gap", gap, "--builders", "3", "--size", "1-600"];
        let more = [&more[..], &["--events", "3000"]].concat();
        let counts = demo(&program, &more).assert_agrees();
        assert_eq!(counts.get("events_built"), 3000);
        let rows = counts.0.matches("\"events_built\":1000,").count();
        assert_eq!(rows, 3, "{}", counts.0);
    }
}

#[test]
fn a_full_ring_drops_and_counts() {
    let Some(program) = program() else { return };
    // Two builders that take a millisecond for each event, and rings of 16 fragments.
    let slow = ["--work", "1000", "--ring", "64K", "--rate", "20"];
    let slow = [&slow[..], &["--seconds", "1"]].concat();
    let mut more = slow;
    more.extend(["--on-full", "drop"]);
    let counts = demo(&program, &more).assert_agrees();
    let (events, built) = (counts.get("events_triggered"), counts.get("events_built"));
    let unseen = counts.get("events_dropped_by_detectors");
    assert_eq!(built + unseen, events);
    let dropped = counts.get("fragments_dropped");
    assert!(dropped > events, "most are: {dropped} of {events} events");
    assert_eq!(counts.get("fragments") + dropped, 2 * events);
}

#[test]
fn a_full_ring_holds_the_trigger() {
    let Some(program) = program() else { return };
    let slow = ["--work", "1000", "--ring", "64K", "--rate", "20"];
    let slow = [&slow[..], &["--seconds", "1"]].concat();
    let counts = demo(&program, &slow).assert_agrees();
    assert_eq!(counts.get("events_built"), counts.get("events_triggered"));
    assert_eq!(counts.get("fragments_dropped"), 0);
    assert!(counts.get("ring_full") > 0);
    let waited: f64 = counts.field("ring_full_s").parse().expect("seconds");
    assert!(waited > 0.2, "{waited} s");
}

/// A builder, and where it listens.
struct Builder {
    process: Process,
    address: String,
    stdout: BufReader<ChildStdout>,
}

impl Builder {
    fn start(program: &Path, more: &[&str]) -> Self {
        let listen = any_port().to_string();
        let mut arguments = vec![
            "builder",
            "--json",
            "--listen",
            &listen,
            "--provider",
            provider(),
        ];
        arguments.extend(more);
        arguments.extend(in_time(more));
        let mut process = Process::start(program, &arguments);
        let mut stdout = BufReader::new(process.0.stdout.take().expect("a pipe"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("text");
        let address = line.trim_end().strip_prefix("listening on ");
        let Some(address) = address.map(str::to_owned) else {
            panic!("it did not start: {:?}", process.end());
        };
        Self {
            process,
            address,
            stdout,
        }
    }

    fn end(mut self) -> Ended {
        let mut ended = self.process.end();
        self.stdout.read_to_string(&mut ended.stdout).expect("text");
        ended
    }
}

/// A source with these builders.
fn source(program: &Path, builders: &[Builder], more: &[&str]) -> Process {
    let mut arguments = vec!["source", "--json", "--provider", provider()];
    for builder in builders {
        arguments.extend(["--to", &builder.address]);
    }
    arguments.extend(more);
    arguments.extend(in_time(more));
    Process::start(program, &arguments)
}

#[test]
fn several_sources_and_builders() {
    let Some(program) = program() else { return };
    let all = ["--detectors", "3", "--sources", "2"];
    let builders = [(); 2].map(|()| Builder::start(&program, &all));
    let run = ["--events", "500", "--rate", "2"];
    let two = [&run[..], &["--detectors", "2"]].concat();
    let one = [&run[..], &["--detectors", "1", "--first-detector", "2"]].concat();
    let first = source(&program, &builders, &two);
    // Not yet complete: the first one waits.
    std::thread::sleep(Duration::from_millis(200));
    let second = source(&program, &builders, &one);
    for (source, detectors) in [(first, 2), (second, 1)] {
        let counts = source.end().assert_agrees();
        assert_eq!(counts.get("events_built"), 500);
        assert_eq!(counts.sum("fragments_received"), detectors * 500);
    }
    let ended = builders.map(Builder::end);
    for builder in &ended {
        assert_eq!(builder.status.code(), Some(0), "{builder:?}");
    }
    let built = ended.map(|builder| Counts(builder.stdout).get("events_built"));
    assert_eq!(built, [250, 250]);
}

/// Each source has a connection to each builder, and the reverse; none is given up while others are
/// being made.
#[test]
fn many_sources_and_many_builders() {
    let Some(program) = program() else { return };
    const EACH: usize = 6;
    let each = EACH.to_string();
    let all = ["--detectors", &each, "--sources", &each];
    let all = [&all[..], &["--max-fragment", "100"]].concat();
    let builders: Vec<_> = (0..EACH).map(|_| Builder::start(&program, &all)).collect();
    let start = |first: usize| {
        let first = first.to_string();
        let run = ["--detectors", "1", "--first-detector", &first];
        let more = ["--events", "600", "--size", "1-100", "--gap", "1000"];
        source(&program, &builders, &[&run[..], &more].concat())
    };
    let sources: Vec<_> = (0..EACH).map(start).collect();
    for source in sources {
        let counts = source.end().assert_agrees();
        assert_eq!(counts.get("events_built"), 600);
        assert_eq!(counts.sum("fragments_received"), 600);
    }
    for builder in builders {
        let ended = builder.end();
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        assert_eq!(Counts(ended.stdout).get("events_built"), 100);
    }
}

/// One source is ahead as far as builders take: what they keep does not hold the frames of the
/// other.
#[test]
fn packed_fragments_of_several_sources() {
    let Some(program) = program() else { return };
    let all = ["--detectors", "3", "--sources", "2", "--max-fragment", "96"];
    let all = [&all[..], &["--credits", "60"]].concat();
    let builders = [(); 2].map(|()| Builder::start(&program, &all));
    let run = ["--events", "5000", "--size", "1-96"];
    let two = [&run[..], &["--detectors", "2"]].concat();
    let one = ["--detectors", "1", "--first-detector", "2", "--rate", "5"];
    let one = [&run[..], &one].concat();
    let sources = [
        (source(&program, &builders, &two), 2),
        (source(&program, &builders, &one), 1),
    ];
    for (source, detectors) in sources {
        let counts = source.end().assert_agrees();
        assert_eq!(counts.get("events_built"), 5000);
        assert_eq!(counts.sum("fragments_received"), detectors * 5000);
        let held_back = counts.get("blocked_builders");
        assert!(detectors == 1 || held_back > 0, "it is ahead: {}", counts.0);
    }
    let ended = builders.map(Builder::end);
    for builder in &ended {
        assert_eq!(builder.status.code(), Some(0), "{builder:?}");
    }
    let built = ended.map(|builder| Counts(builder.stdout).get("events_built"));
    assert_eq!(built, [2500, 2500]);
}

#[test]
fn a_stopped_builder_is_given_up() {
    let Some(program) = program() else { return };
    let builders = [(); 2].map(|()| Builder::start(&program, &[]));
    let run = ["--seconds", "0.5", "--rate", "2", "--timeout", "2"];
    let source = source(&program, &builders, &run);
    wait_for_detectors(&source);
    builders[1].process.signal(rustix::process::Signal::STOP);
    let ended = source.end();
    assert!(ended.stderr.contains("nothing heard for 1s"), "{ended:?}");
    assert!(ended.stderr.contains(" s old: "), "{ended:?}");
    let counts = ended.assert_agrees();
    assert_eq!(counts.get("builders_lost"), 1);
    assert_eq!(counts.get("events_built"), counts.get("events_triggered"));
    let [alive, stopped] = builders;
    assert_eq!(alive.end().status.code(), Some(0));
    stopped.process.signal(rustix::process::Signal::CONT);
    stopped.end().assert_failed(1, "was lost");
}

/// The threads of the detectors are there as soon as the run begins.
fn wait_for_detectors(source: &Process) {
    let tasks = format!("/proc/{}/task", source.0.id());
    let deadline = Instant::now() + *PATIENCE;
    let is_detector = |task: std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm"))
            .is_ok_and(|name| name.starts_with("detector-"))
    };
    while !std::fs::read_dir(&tasks)
        .expect("it runs")
        .flatten()
        .any(is_detector)
    {
        assert!(Instant::now() < deadline, "no detector was started");
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn a_killed_source_is_said() {
    let Some(program) = program() else { return };
    let builders = [Builder::start(&program, &[])];
    let source = source(&program, &builders, &["--rate", "2"]);
    wait_for_detectors(&source);
    source.signal(rustix::process::Signal::KILL);
    drop(source);
    let [builder] = builders;
    builder.end().assert_failed(1, "was lost");
}

#[test]
fn a_stranger_does_not_end_the_run() {
    let Some(program) = program() else { return };
    let builder = Builder::start(&program, &[]);
    for header in [[0; 40], [0xff; 40]] {
        send_as_stranger(&builder.address, &header);
    }
    let builders = [builder];
    let run = ["--events", "50", "--rate", "1"];
    let counts = source(&program, &builders, &run).end().assert_agrees();
    assert_eq!(counts.get("events_built"), 50);
    let [builder] = builders;
    let ended = builder.end();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let told = ended.stderr.matches("its connection is closed").count();
    assert_eq!(told, 2, "{}", ended.stderr);
}

/// Sends one message, and waits until the builder has had enough.
fn send_as_stranger(address: &str, header: &[u8; 40]) {
    let fabric = Fabric::builder().provider(provider()).node(node());
    let domain = fabric.open().expect("it is there").open_domain();
    let domain = domain.expect("a domain");
    let config = SendConfig::default().outgoing(|out| out.header_mode(HeaderMode::Fixed(40)));
    let to = address.parse().expect("an address");
    let mut sender = SendEndpointZeroCopy::connect(&domain, to, config).expect("an endpoint");
    sender.wait_connected().expect("the builder is there");
    sender
        .send_data(Payload::empty(), header, 0)
        .expect("the builder grants some");
    let deadline = Instant::now() + *PATIENCE;
    let mut events = Vec::new();
    while sender.close_reason().is_none() {
        assert!(Instant::now() < deadline, "it keeps the connection");
        sender.poll(&mut events).expect("it works");
        sender.wait(Duration::from_millis(10)).expect("it works");
    }
}

#[test]
fn wrong_command_lines_are_named() {
    let Some(program) = program() else { return };
    let to = ["source", "--to", "127.0.0.1:1"];
    let cases: [(&[&str], i32, &str); 14] = [
        (&["demo", "--size", "0"], 2, "--size"),
        (&["demo", "--size", "9-5"], 2, "shorter first"),
        (&["demo", "--rate", "-1"], 2, "'-1'"),
        (&["demo", "--seconds", "0"], 2, "at least 0.01"),
        (&["demo", "--detectors", "65"], 2, "--detectors"),
        (&["source"], 2, "required"),
        (&["source", "--to", "127.0.0.1"], 2, "port"),
        (&["demo", "--on-full", "drop"], 1, "--rate"),
        (&["demo", "--ring", "4K"], 1, "two of the longest"),
        (
            &["demo", "--builders", "1", "--kill-builder-after", "1"],
            1,
            "nobody would be left",
        ),
        (
            &["demo", "--builders", "1", "--kill-every", "1"],
            1,
            "nobody would be left",
        ),
        (&["demo", "--gap", "0"], 2, "--gap"),
        (
            &["demo", "--gap", "16777216", "--events", "281474976710656"],
            1,
            "--gap",
        ),
        (&["builder", "--credits", "3"], 1, "need 4 at least"),
    ];
    for (arguments, code, why) in cases {
        Process::start(&program, arguments)
            .end()
            .assert_failed(code, why);
    }
    let twice = [&to[..], &to[1..]].concat();
    Process::start(&program, &twice)
        .end()
        .assert_failed(1, "named twice");
    let help = Process::start(&program, &["demo", "--help"]).end();
    assert_eq!(help.status.code(), Some(0));
    assert!(help.stdout.contains("--kill-builder-after"), "{help:?}");
}

#[test]
fn a_peer_or_provider_that_is_not_there_is_named() {
    let Some(program) = program() else { return };
    let to = nobodys_port().to_string();
    let lonely = source(&program, &[], &["--to", &to]).end();
    lonely.assert_failed(1, &to);
    lonely.assert_failed(1, "could not connect");
    Process::start(&program, &["demo", "--provider", "nosuch"])
        .end()
        .assert_failed(1, "nosuch");
    Builder::start(&program, &["--timeout", "1"])
        .end()
        .assert_failed(1, "no source came within 1s");
    let small = Builder::start(&program, &["--max-fragment", "1K"]);
    source(&program, &[small], &[])
        .end()
        .assert_failed(1, "takes fragments of 1024 bytes");
}
