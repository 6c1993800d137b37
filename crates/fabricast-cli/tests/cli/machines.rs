//! `Machines`: network namespaces joined by pairs of interfaces, as machines are by cables; and
//! which addresses of a machine `fabricast send` uses between them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::far::{far, shell_in};
use crate::program;
use crate::stream::{PATIENCE, Process, Running, content, file, provider, temp};

/// Each has a network of its own, and mounts of its own. All of them end when this is dropped.
pub(crate) struct Machines {
    /// A process in each, which does nothing.
    holders: Vec<Process>,
    /// Options that nsenter needs beside the others.
    of_user: &'static [&'static str],
}

/// Says that it is there, in a machine that knows its own interfaces.
const HOLD: &str = "ip link set lo up; mount -t sysfs none /sys; echo here; exec sleep 600";

impl Machines {
    /// `None`, after a line that says why: there can be none here.
    pub(crate) fn start(count: usize) -> Option<Self> {
        if !fabricast::fabric::provider(provider()).is_some_and(|row| row.over_tcp) {
            println!("SKIPPED: namespaces have devices of this provider's only if given some");
            return None;
        }
        // As root; or as root of a user namespace of our own.
        let ways: [(&[&str], &[&str]); 2] = [
            (&["-m", "-n"], &[]),
            (&["-U", "-r", "-m", "-n"], &["-U", "--preserve-credentials"]),
        ];
        let first = ways.into_iter().find_map(|(unshare, of_user)| {
            let mut command = Command::new("unshare");
            let first = hold(command.args(unshare))?;
            Some((first, of_user))
        });
        let Some((first, of_user)) = first else {
            println!("SKIPPED: no network namespace can be made here (unshare(1), ip(8))");
            return None;
        };
        let mut machines = Self {
            holders: vec![first],
            of_user,
        };
        while machines.holders.len() < count {
            let mut command = machines.command(0, "unshare");
            let next = hold(command.args(["-m", "-n"]));
            machines
                .holders
                .push(next.expect("the first could be made"));
        }
        let mut probe = machines.command(0, "ip");
        probe.args([
            "link", "add", "probe0", "type", "veth", "peer", "name", "probe1",
        ]);
        let made = probe.output();
        if !made.is_ok_and(|output| output.status.success()) {
            println!("SKIPPED: no pair of interfaces can be made here (ip(8))");
            return None;
        }
        machines.ip(0, "link del probe0");
        Some(machines)
    }

    /// A command that runs on one of them.
    pub(crate) fn command(&self, machine: usize, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg("-t")
            .arg(self.holders[machine].0.id().to_string());
        command.args(self.of_user).args(["-m", "-n", "--"]);
        command.arg(program.as_ref());
        command
    }

    fn ip(&self, machine: usize, words: &str) {
        let output = self.command(machine, "ip").args(words.split(' ')).output();
        let output = output.expect("it starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ip {words}: {error}");
    }

    /// Joins two of them by a network: each is (machine, device, address).
    pub(crate) fn join(&self, [near, far]: [(usize, &str, &str); 2]) {
        let pid = self.holders[far.0].0.id();
        let (near_device, far_device) = (near.1, far.1);
        self.ip(
            near.0,
            &format!("link add {near_device} type veth peer name {far_device} netns {pid}"),
        );
        for (machine, device, addr) in [near, far] {
            self.ip(machine, &format!("addr add {addr}/24 dev {device}"));
            self.ip(machine, &format!("link set {device} up"));
        }
        let deadline = Instant::now() + *PATIENCE;
        for (machine, device, _) in [near, far] {
            // libfabric 2.x looks at the interfaces once.
            let is_up = || {
                let shown = self
                    .command(machine, "ip")
                    .args(["link", "show", device])
                    .output();
                String::from_utf8_lossy(&shown.expect("it starts").stdout).contains("state UP")
            };
            while !is_up() {
                assert!(Instant::now() < deadline, "{device} does not come up");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    /// A receiver of one stream there.
    fn receiver(&self, machine: usize, listen: &str, dir: &Path) -> Running {
        let mut command = self.command(machine, program().expect("it is there"));
        command.args([
            "recv",
            "--once",
            "--provider",
            provider(),
            "--listen",
            listen,
        ]);
        Running::start_command(command.arg("--dir").arg(dir))
    }
}

impl Machines {
    /// Two of them, in two networks.
    fn in_two_networks() -> Option<Self> {
        let machines = Self::start(2)?;
        machines.join([(0, "one", "10.81.0.1"), (1, "one", "10.81.0.2")]);
        machines.join([(0, "two", "10.82.0.1"), (1, "two", "10.82.0.2")]);
        Some(machines)
    }

    /// `fabricast send` on the first, with a remote shell to the second.
    fn send_by_shell(&self, dir: &Path) -> Command {
        let program = program().expect("it is there");
        let body = format!(
            r#"shift; export SSH_CONNECTION="10.82.0.1 50000 10.82.0.2 22"
            exec nsenter -t {} -m -n -- sh -c "$*""#,
            self.holders[1].0.id()
        );
        let mut command = self.command(0, &program);
        command.args(["send", "--provider", provider(), "--rsh"]);
        command
            .arg(shell_in(dir, &body))
            .arg("--remote-path")
            .arg(&program);
        command
    }

    /// Has the devices of a machine look as if they had wires of these speeds, in Mb/s.
    fn set_speeds(&self, machine: usize, dir: &Path, devices: &[(&str, &str)]) {
        let all = dir.join(machine.to_string());
        for (device, speed) in devices {
            let of = all.join(device);
            fs::create_dir_all(of.join("device")).expect("room");
            fs::write(of.join("operstate"), "up\n").expect("room");
            fs::write(of.join("speed"), format!("{speed}\n")).expect("room");
        }
        let mut mount = self.command(machine, "mount");
        let mounted = mount.arg("--bind").arg(&all).arg("/sys/class/net").output();
        let mounted = mounted.expect("it starts");
        assert!(mounted.status.success(), "{mounted:?}");
    }

    /// Bytes that went out by a device.
    fn sent_by(&self, machine: usize, device: &str) -> u64 {
        let mut command = self.command(machine, "cat");
        let output = command.arg("/proc/net/dev").output().expect("it starts");
        let text = String::from_utf8(output.stdout).expect("text");
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix(&format!("{device}:")));
        let sent = line.and_then(|line| line.split_whitespace().nth(8)?.parse().ok());
        sent.unwrap_or_else(|| panic!("no {device} in {text}"))
    }
}

/// Starts what this command wraps, and waits until it says that it is there. `None`: it is not.
fn hold(command: &mut Command) -> Option<Process> {
    command.args(["sh", "-c", HOLD]).stdin(Stdio::null());
    let command = command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut holder = Process(command.spawn().ok()?);
    let mut line = String::new();
    let stdout = holder.0.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).ok()?;
    (line == "here\n").then_some(holder)
}

#[test]
fn receivers_on_different_networks_are_each_reached_from_the_address_on_theirs() {
    let Some(program) = program() else { return };
    let Some(machines) = Machines::start(3) else {
        return;
    };
    let (from, to) = (temp(), temp());
    machines.join([(0, "one", "10.81.0.1"), (1, "near", "10.81.0.2")]);
    machines.join([(0, "two", "10.82.0.1"), (2, "near", "10.82.0.2")]);
    let path = file(&from, "file", 3_000_000);
    let dirs = ["1", "2"].map(|name| to.path().join(name));
    let receivers = [(1, "10.81.0.2:0"), (2, "10.82.0.2:0")].map(|(machine, listen)| {
        let dir = &dirs[machine - 1];
        fs::create_dir(dir).expect("room");
        machines.receiver(machine, listen, dir)
    });
    let mut command = machines.command(0, program);
    command.args(["send", "--provider", provider(), "--connect-timeout", "10"]);
    for receiver in &receivers {
        command.args(["--to", &receiver.address]);
    }
    // One without a route is no reason that the others have nothing.
    command.args(["--to", "10.99.0.9:1"]);
    let sent = Process::start_command(command.arg(&path)).end();
    sent.assert_failed(3, "10.99.0.9:1: could not connect");
    assert_eq!(sent.stdout.matches("bytes        3000000").count(), 2);
    for (receiver, dir) in receivers.into_iter().zip(&dirs) {
        receiver.process.end().assert_ok();
        let arrived = fs::read(dir.join("file")).expect("it arrived");
        assert!(arrived == content(3_000_000), "its content differs");
    }
}

/// The addresses behind `rails` in a report; with one way, there is no such line.
fn rails_in(report: &str) -> Vec<String> {
    let mut lines = report
        .lines()
        .skip_while(|line| !line.starts_with("rails "));
    let first = lines.next().and_then(|line| line.strip_prefix("rails "));
    let more = lines.take_while(|line| line.starts_with("   "));
    let all = first.into_iter().chain(more);
    let all = all.map(|line| line.split_once(" from ").expect("bytes before it").1);
    let without_port = all.map(|way| way.rsplit_once(':').expect("a port").0.to_owned());
    without_port.collect()
}

#[test]
fn rails_between_two_machines_carry_what_is_sent_and_what_is_fetched() {
    if program().is_none() {
        return;
    }
    let Some(machines) = Machines::in_two_networks() else {
        return;
    };
    let (from, to) = (temp(), temp());
    let path = file(&from, "file", 32 << 20);
    let (path, source) = (path.to_str().expect("text"), far("host1", &path));
    let into = |name: &str| to.path().join(name).to_str().expect("text").to_owned();
    let pushed = format!("host1:{}", into("pushed"));
    let there = ["10.81.0.1 to 10.81.0.2", "10.82.0.1 to 10.82.0.2"];
    let back = ["10.81.0.2 to 10.81.0.1", "10.82.0.2 to 10.82.0.1"];
    let both = ["--rail", "10.81.0.1", "--rail", "10.82.0.1"];
    for (rails, words, sender, ways) in [
        (&both[..], [path, pushed.as_str()], 0, &there[..]),
        (&both[..], [source.as_str(), &into("fetched")], 1, &back),
        // Where the remote shell comes in, without a choice.
        (&["--rail", "none"], [path, pushed.as_str()], 0, &[]),
    ] {
        let before = ["one", "two"].map(|device| machines.sent_by(sender, device));
        let mut command = machines.send_by_shell(from.path());
        let ended = Process::start_command(command.args(rails).args(words)).end();
        ended.assert_ok();
        assert_eq!(rails_in(&ended.stdout), ways, "{}", ended.stdout);
        assert!(!ended.stdout.contains(" 0 B from"), "{}", ended.stdout);
        for (device, before) in ["one", "two"].into_iter().zip(before) {
            let sent = machines.sent_by(sender, device) - before;
            let carries = ways.len() == 2 || device == "two";
            assert_eq!(
                sent > 1 << 20,
                carries,
                "{device}: {sent} bytes by {rails:?}"
            );
        }
    }
    for name in ["pushed", "fetched"] {
        let arrived = fs::read(to.path().join(name).join("file")).expect("it arrived");
        assert!(arrived == content(32 << 20), "its content differs");
    }
    let mut command = machines.send_by_shell(from.path());
    command.args(["--rail", "none", "--rail", "10.81.0.1", path, &pushed]);
    Process::start_command(&mut command)
        .end()
        .assert_failed(2, "--rail none");
}

#[test]
fn devices_of_one_speed_between_two_machines_are_rails_by_themselves() {
    if program().is_none() {
        return;
    }
    let Some(machines) = Machines::in_two_networks() else {
        return;
    };
    machines.join([(0, "slow", "10.83.0.1"), (1, "slow", "10.83.0.2")]);
    let (from, to) = (temp(), temp());
    let path = file(&from, "file", 100_000);
    let speeds = [("one", "100000"), ("two", "100000"), ("slow", "1000")];
    machines.set_speeds(0, from.path(), &speeds);
    let path = path.to_str().expect("text");
    let place = far("host1", to.path());
    // Where the shell comes in is first.
    let both = ["10.82.0.1 to 10.82.0.2", "10.81.0.1 to 10.81.0.2"];
    let send = |ways: &[&str]| {
        let mut command = machines.send_by_shell(from.path());
        let ended = Process::start_command(command.args([path, &place])).end();
        ended.assert_ok();
        assert_eq!(rails_in(&ended.stdout), ways, "{}", ended.stdout);
    };
    // The other one's have no speed.
    send(&[]);
    machines.set_speeds(1, from.path(), &speeds);
    send(&both);
    let mut command = machines.send_by_shell(from.path());
    command.args([
        &far("host1", Path::new(path)),
        to.path().to_str().expect("text"),
    ]);
    let fetched = Process::start_command(&mut command).end();
    fetched.assert_ok();
    let back = ["10.82.0.2 to 10.82.0.1", "10.81.0.2 to 10.81.0.1"];
    assert_eq!(rails_in(&fetched.stdout), back, "{}", fetched.stdout);
    // Nobody answers by one of them: it is none.
    machines.ip(1, "addr del 10.81.0.2/24 dev one");
    machines.ip(1, "addr add 10.81.0.3/24 dev one");
    machines.ip(0, "route add blackhole 10.81.0.3");
    send(&[]);
}

/// The same tasks' places are far ones' by Slurm's variables.
#[test]
fn tasks_of_a_step_on_two_machines_meet_by_rails() {
    let Some(program) = program() else { return };
    let Some(machines) = Machines::in_two_networks() else {
        return;
    };
    let (from, to, shared) = (temp(), temp(), temp());
    let path = file(&from, "file", 100_000);
    let two = ["10.81.0.1 to 10.81.0.2", "10.82.0.1 to 10.82.0.2"];
    let speeds = [("one", "100000"), ("two", "100000")];
    let given = ["--rail", "10.81.0.1", "--rail", "10.82.0.1"];
    for (number, (rails, ways)) in [
        // Without a way to everywhere it is a network that both are in.
        (&[][..], &[][..]),
        (&given[..], &two[..]),
        (&[][..], &two[..]),
        (&["--rail", "none"], &[]),
    ]
    .into_iter()
    .enumerate()
    {
        if number == 2 {
            machines.set_speeds(0, from.path(), &speeds);
            machines.set_speeds(1, from.path(), &speeds);
        }
        let task = |number: usize| {
            let mut command = machines.command(number, &program);
            command.args(["send", "--provider", provider(), "--slurm"]);
            command.arg(shared.path()).arg("--dir").arg(to.path());
            command.args(rails).arg(&path);
            command.env("SLURM_PROCID", number.to_string());
            for (name, value) in [("NTASKS", "2"), ("JOB_ID", "4712"), ("STEP_ID", "0")] {
                command.env(format!("SLURM_{name}"), value);
            }
            Process::start_command(command.env_remove("SLURM_RESTART_COUNT"))
        };
        let receiver = task(1);
        let sent = task(0).end();
        sent.assert_ok();
        receiver.end().assert_ok();
        assert_eq!(rails_in(&sent.stdout), ways, "{}", sent.stdout);
        let arrived = fs::read(to.path().join("file")).expect("it arrived");
        assert!(arrived == content(100_000), "its content differs");
    }
}
