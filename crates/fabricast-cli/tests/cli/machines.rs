//! `Machines`: network namespaces joined by pairs of interfaces, as machines are by cables; and
//! which addresses of a machine `fabricast send` uses between them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::program;
use crate::stream::{PATIENCE, Process, Running, content, file, provider, temp};

/// Each has a network of its own, and mounts of its own. All of them end when this is dropped.
struct Machines {
    /// A process in each, which does nothing.
    holders: Vec<Process>,
    /// Options that nsenter needs beside the others.
    of_user: &'static [&'static str],
}

/// Says that it is there, in a machine that knows its own interfaces.
const HOLD: &str = "ip link set lo up; mount -t sysfs none /sys; echo here; exec sleep 600";

impl Machines {
    /// `None`, after a line that says why: there can be none here.
    fn start(count: usize) -> Option<Self> {
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
    fn command(&self, machine: usize, program: impl AsRef<Path>) -> Command {
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
    fn join(&self, [near, far]: [(usize, &str, &str); 2]) {
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
    let sent = Process::start_command(command.arg(&path)).end();
    sent.assert_ok();
    for (receiver, dir) in receivers.into_iter().zip(&dirs) {
        receiver.process.end().assert_ok();
        let arrived = fs::read(dir.join("file")).expect("it arrived");
        assert!(arrived == content(3_000_000), "its content differs");
    }
}
