//! Processes that we start: each ends with us, whatever happens.

#![allow(unsafe_code)]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::deadline::Deadline;
use crate::error::{Failure, fail};
use crate::host;

/// A child, killed by its id unless it ended.
pub(crate) struct Guard(Child);

impl Guard {
    /// Starts it, on this core where one is given.
    pub(crate) fn start(command: &mut Command, core: Option<usize>) -> Result<Self, Failure> {
        // SAFETY: the hook makes two system calls, and takes no lock and no memory.
        unsafe {
            command.pre_exec(move || {
                host::die_with_parent()?;
                core.map_or(Ok(()), host::pin)
            });
        }
        Ok(Self(command.spawn()?))
    }

    /// Its standard output, line by line.
    pub(crate) fn lines(&mut self) -> Result<impl BufRead + use<>, Failure> {
        let out = self.0.stdout.take();
        Ok(BufReader::new(
            out.ok_or_else(|| Failure::of("no output to read"))?,
        ))
    }

    /// Its standard input.
    #[allow(dead_code, reason = "the children of `bench` take their orders by TCP")]
    pub(crate) fn orders(&mut self) -> Result<std::process::ChildStdin, Failure> {
        let orders = self.0.stdin.take();
        orders.ok_or_else(|| Failure::of("no input to write to"))
    }

    /// Has the kernel keep it from running until it is killed.
    #[allow(dead_code, reason = "of `bench stalled` alone")]
    pub(crate) fn stop(&self) -> Result<(), Failure> {
        Ok(host::stop(&self.0)?)
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self, patience: Duration) -> Result<ExitStatus, Failure> {
        let deadline = Deadline::after(patience);
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            deadline.check("a child process to end")?;
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Both fail only when it ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts our own server; where it listens.
pub(crate) fn server(node: &str, pin: bool) -> Result<(Guard, SocketAddr), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["server", "--node", node])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    if !pin {
        command.arg("--no-pin");
    }
    let mut guard = Guard::start(&mut command, pin.then_some(1))?;
    let mut line = String::new();
    guard.lines()?.read_line(&mut line)?;
    match line.trim_end().strip_prefix("listening ") {
        Some(addr) => Ok((guard, addr.parse()?)),
        None => fail("the server did not start"),
    }
}
