//! A check in a process of its own: this program, with hidden options of `doctor`.

use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How one ended.
pub(super) struct End {
    status: ExitStatus,
    /// What it said on stdout.
    pub(super) out: String,
    err: String,
}

impl End {
    /// Runs one.
    ///
    /// # Errors
    ///
    /// It could not be started, or was not done in time, in words.
    pub(super) fn of(words: &[&str], patience: Duration) -> Result<Self, String> {
        let child = std::env::current_exe().and_then(|program| {
            Command::new(program)
                .arg("doctor")
                .args(words)
                // Lines of a log fill the pipe, which nobody reads before the end.
                .env_remove("FI_LOG_LEVEL")
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
        });
        let mut child = child.map_err(|error| format!("could not be tried: {error}"))?;
        let end = Instant::now() + patience;
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
                _ => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!("it was not done in {patience:?}"));
                }
            }
        };
        let text = |from: Option<&mut dyn Read>| {
            let mut bytes = Vec::new();
            if let Some(from) = from {
                let _ = from.take(4096).read_to_end(&mut bytes);
            }
            String::from_utf8_lossy(&bytes).trim().to_owned()
        };
        Ok(Self {
            out: text(child.stdout.as_mut().map(|it| it as &mut dyn Read)),
            err: text(child.stderr.as_mut().map(|it| it as &mut dyn Read)),
            status,
        })
    }

    /// Why it failed; `None`: it did not.
    pub(super) fn failure(&self) -> Option<String> {
        if self.status.success() {
            return None;
        }
        Some(match self.err.lines().next_back() {
            Some(line) if self.status.code().is_some() => {
                line.trim_start_matches("fabricast: ").to_owned()
            }
            _ => format!("it ended with {}", self.status),
        })
    }
}
