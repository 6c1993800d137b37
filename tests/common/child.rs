//! Child processes: the test's own program again, in another role, so that real processes can be
//! killed and stopped.
//!
//! A test that has roles begins with `if let Some(role) = child::role() { … }`; the parent starts
//! it with [`Child::start`]. The child tells by lines on its standard output that begin with `@`.

#![allow(unsafe_code)]

#[path = "names.rs"]
#[allow(
    clippy::duplicate_mod,
    reason = "whoever needs it has it; programs take these files one by one"
)]
mod names;
#[path = "patience.rs"]
#[allow(
    clippy::duplicate_mod,
    reason = "whoever needs it has it; programs take these files one by one"
)]
mod patience;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use patience::patient;

const ROLE: &str = "FABRICAST_TEST_ROLE";
const ARGUMENT: &str = "FABRICAST_TEST_ARGUMENT";

/// What this process is to be, if a test started it; from then on it dies with its parent.
pub(crate) fn role() -> Option<String> {
    let role = std::env::var(ROLE).ok()?;
    // SAFETY: asks the kernel for a signal when the parent dies; touches no memory.
    let rc = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    assert_eq!(rc, 0, "prctl");
    Some(role)
}

/// What the parent said about the role.
pub(crate) fn argument() -> String {
    std::env::var(ARGUMENT).unwrap_or_default()
}

/// Tells the parent.
pub(crate) fn tell(line: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    // The harness writes to the same stream, and not always whole lines. A parent that is gone is
    // no failure.
    let _ = writeln!(out, "\n@{line}");
    let _ = out.flush();
}

/// The next line from the parent; `None` when it is gone or has closed its end.
pub(crate) fn hear() -> Option<String> {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line) {
        Ok(n) if n > 0 => Some(line.trim().to_owned()),
        _ => None,
    }
}

/// A child; killed and waited for when it is dropped.
#[derive(Debug)]
pub(crate) struct Child {
    process: std::process::Child,
    lines: Receiver<String>,
}

impl Child {
    /// Runs the test of that name of this very program in a role.
    pub(crate) fn start(test: &str, role: &str, argument: impl ToString) -> Self {
        Self::with_env(test, role, argument, &[])
    }

    /// The same with more in its environment; an empty value removes the name.
    pub(crate) fn with_env(
        test: &str,
        role: &str,
        argument: impl ToString,
        env: &[(&str, &str)],
    ) -> Self {
        let program = std::env::current_exe().expect("this program");
        Self::with_command(Command::new(program), test, role, argument, env)
    }

    /// The same by way of another program, which gets this one and its arguments behind its own and
    /// becomes it.
    pub(crate) fn through(
        wrapper: &[&str],
        test: &str,
        role: &str,
        argument: impl ToString,
    ) -> Self {
        let mut command = Command::new(wrapper[0]);
        command
            .args(&wrapper[1..])
            .arg(std::env::current_exe().expect("this program"));
        Self::with_command(command, test, role, argument, &[])
    }

    fn with_command(
        mut command: Command,
        test: &str,
        role: &str,
        argument: impl ToString,
        env: &[(&str, &str)],
    ) -> Self {
        command
            .args([
                names::full_name(test),
                "--exact",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(ROLE, role)
            .env(ARGUMENT, argument.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        for (name, value) in env {
            if value.is_empty() {
                command.env_remove(name);
            } else {
                command.env(name, value);
            }
        }
        let mut process = command.spawn().expect("starts");
        let out = process.stdout.take().expect("piped");
        let (tell, lines) = channel();
        // Ends with the child, whose end of the pipe closes.
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let told = match line.strip_prefix('@') {
                    Some(line) => tell.send(line.to_owned()).is_ok(),
                    None => true,
                };
                if !told {
                    return;
                }
            }
        });
        Self { process, lines }
    }

    /// The next line that begins with this word, the word left out.
    pub(crate) fn expect(&mut self, word: &str, limit: Duration) -> String {
        let limit = patient(limit);
        let until = Instant::now() + limit;
        let mut others = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => match line.strip_prefix(word) {
                    Some(rest) => return rest.trim().to_owned(),
                    None => others.push(line),
                },
                Err(RecvTimeoutError::Timeout) => {
                    panic!("no {word:?} within {limit:?}; said meanwhile: {others:?}")
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.process.wait();
                    panic!(
                        "the child ended before it said {word:?}, with {status:?}; said meanwhile: \
                         {others:?}"
                    )
                }
            }
        }
    }

    /// A line that has come already, if any.
    pub(crate) fn heard(&mut self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    pub(crate) fn say(&mut self, line: &str) {
        let stdin = self.process.stdin.as_mut().expect("piped");
        // A child that died is found out by what it does not say.
        let _ = writeln!(stdin, "{line}");
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, signal).expect("the child was not waited for");
    }

    pub(crate) fn kill(&self) {
        self.signal(rustix::process::Signal::KILL);
    }

    /// Stops it, and waits until that has come about: the signal is for one of its threads, which
    /// stops the others when it is run, and on a busy machine they go on for a while.
    pub(crate) fn stop(&self) {
        use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
        self.signal(Signal::STOP);
        let child = WaitId::Pid(Pid::from_child(&self.process));
        // Its end counts, too; and whoever waits for that finds it as if nobody had looked.
        let looks = WaitIdOptions::STOPPED
            | WaitIdOptions::EXITED
            | WaitIdOptions::NOWAIT
            | WaitIdOptions::NOHANG;
        let limit = patient(Duration::from_secs(60));
        let until = Instant::now() + limit;
        while waitid(child.clone(), looks).expect("our child").is_none() {
            assert!(Instant::now() < until, "it is not stopped after {limit:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn go_on(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self, limit: Duration) -> ExitStatus {
        let limit = patient(limit);
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.process.try_wait().expect("our child") {
                return status;
            }
            assert!(Instant::now() < until, "the child runs after {limit:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end, which must be a success.
    pub(crate) fn finish(&mut self, limit: Duration) {
        let status = self.wait(limit);
        assert!(status.success(), "the child: {status}");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both do nothing when it ended already; a stopped process can be killed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
