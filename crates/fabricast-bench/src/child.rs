//! Processes that we start: each ends with us, whatever happens.

#![allow(unsafe_code)]

use std::io::BufReader;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus};
use std::time::Duration;

use crate::deadline::Deadline;
use crate::error::Failure;
use crate::host;

/// A child, killed by its id unless it ended.
#[derive(Debug)]
pub struct Guard(Child);

impl Guard {
    /// Starts it, on this core where one is given.
    pub fn start(command: &mut Command, core: Option<usize>) -> Result<Self, Failure> {
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
    pub fn lines(&mut self) -> Result<BufReader<ChildStdout>, Failure> {
        let out = self.0.stdout.take();
        Ok(BufReader::new(
            out.ok_or_else(|| Failure::of("no output to read"))?,
        ))
    }

    /// Its standard input.
    pub fn orders(&mut self) -> Result<std::process::ChildStdin, Failure> {
        let orders = self.0.stdin.take();
        orders.ok_or_else(|| Failure::of("no input to write to"))
    }

    /// Gives its standard input back, which stays open as long as this.
    pub fn hold(&mut self, orders: std::process::ChildStdin) {
        self.0.stdin = Some(orders);
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, Failure> {
        Ok(self.0.try_wait()?)
    }

    /// Has the kernel keep it from running until it is killed.
    pub fn stop(&self) -> Result<(), Failure> {
        Ok(host::stop(&self.0)?)
    }

    /// Waits for its end.
    pub fn wait(&mut self, patience: Duration) -> Result<ExitStatus, Failure> {
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
