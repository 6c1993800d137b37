//! `FarEnd`: what the near end has of a far one: the remote shell, and what is said through it.

use std::io::{self, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::message::{Hello, MARK, Request, failure_from_json, lines_of, texts};
use super::place::FarPlace;
use crate::failure::{End, Failure};
use crate::interrupt;
use crate::stream::args::FarArgs;

/// How long the remote shell may take to start a far end: somebody may have to type a password.
const HELLO: Duration = Duration::from_secs(120);

/// How long a far end may take to start libfabric and to listen.
const ANSWER: Duration = Duration::from_secs(60);

/// How long a far end has to end in good order.
const END: Duration = Duration::from_secs(10);

/// How often it is looked whether somebody asked for an end.
const LOOK: Duration = Duration::from_millis(100);

/// A far end, and the shell that it runs in. Both end when this is dropped.
pub(crate) struct FarEnd {
    name: String,
    shell: String,
    remote_path: String,
    child: Child,
    to: Option<ChildStdin>,
    lines: Receiver<Vec<u8>>,
    /// It has said its first words.
    is_there: bool,
}

impl FarEnd {
    /// Starts the remote shell, and returns at once.
    pub(crate) fn start(place: &FarPlace, how: &FarArgs) -> Result<Self, Failure> {
        let mut words = split_words(&how.rsh).map_err(Failure::new)?.into_iter();
        let Some(shell) = words.next() else {
            return Err(Failure::new(
                "--rsh: want a command, such as \"ssh -p 2222\"",
            ));
        };
        let mut command = Command::new(&shell);
        command.args(words).arg(&place.host);
        // What ssh gives a shell there is one text: a path that needs quotes comes with them.
        command.arg(format!("{} far-end", how.remote_path));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| {
            let failure = Failure::os(format_args!("{place}: {shell}"), &error);
            failure.ends(End::Unreachable)
        })?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let lines = lines_of(from.expect("it was started with a pipe"))?;
        Ok(Self {
            name: place.to_string(),
            shell,
            remote_path: how.remote_path.clone(),
            child,
            to,
            lines,
            is_there: false,
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The far end's first words.
    pub(crate) fn hello(&mut self) -> Result<Hello, Failure> {
        let value = self.wait_for_line(HELLO, "to start")?;
        self.is_there = true;
        Hello::from_json(&value)
            .map_err(|why| Failure::new(format!("{}: {why}", self.name)).ends(End::Refused))
    }

    /// Tells it what to be.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<(), Failure> {
        let Some(to) = &mut self.to else {
            return Err(self.gone());
        };
        let line = format!("{}\n", request.to_json());
        let written = to.write_all(line.as_bytes()).and_then(|()| to.flush());
        match written {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(self.gone()),
            Err(error) => Err(Failure::os(&self.name, &error).ends(End::Unreachable)),
        }
    }

    /// Where it listens.
    pub(crate) fn listening(&mut self) -> Result<Vec<String>, Failure> {
        let value = self.wait_for_line(ANSWER, "to listen")?;
        let found = texts(&value["listening"]).filter(|all| !all.is_empty());
        found.ok_or_else(|| {
            let text = format!("{}: it does not say where it listens", self.name);
            Failure::new(text).ends(End::Refused)
        })
    }

    /// What it says next; `None`: nothing within that time.
    pub(crate) fn next(&mut self, within: Duration) -> Result<Option<Value>, Failure> {
        let until = Instant::now() + within;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => match marked(&line) {
                    Some(value) => {
                        return match failure_from_json(&self.name, &value) {
                            Some(failure) => Err(failure),
                            None => Ok(Some(value)),
                        };
                    }
                    // A greeting of the machine, say: it is for people.
                    None => {
                        eprintln!("{}: {}", self.name, String::from_utf8_lossy(&line));
                        if Instant::now() >= until {
                            return Ok(None);
                        }
                    }
                },
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(self.gone()),
            }
        }
    }

    fn wait_for_line(&mut self, within: Duration, what: &str) -> Result<Value, Failure> {
        let until = Instant::now() + within;
        while Instant::now() < until {
            if let Some(end) = interrupt::asked() {
                return Err(Failure::interrupted(end));
            }
            if let Some(value) = self.next(LOOK)? {
                return Ok(value);
            }
        }
        let text = format!(
            "{}: its fabricast took more than {} s {what}",
            self.name,
            within.as_secs()
        );
        Err(Failure::new(text).ends(End::Unreachable))
    }

    /// It ended though nobody asked it to: why, as far as its exit code says.
    fn gone(&mut self) -> Failure {
        let status = self.end(END);
        // A terminal's Ctrl-C ends the shell, too.
        if let Some(end) = interrupt::asked() {
            return Failure::interrupted(end);
        }
        let Self {
            name,
            shell,
            remote_path,
            ..
        } = self;
        let code = status.and_then(|status| status.code());
        let (text, end) = match code {
            Some(126 | 127) => (
                format!(
                    "there is no {remote_path} that can be run: install fabricast there, or say \
                     where it is with --remote-path"
                ),
                End::Unreachable,
            ),
            Some(2) => (
                format!(
                    "its {remote_path} can't be started from here: it is older than this one \
                     ({}); install the same version at both ends",
                    env!("CARGO_PKG_VERSION")
                ),
                End::Refused,
            ),
            Some(255) => (
                format!("{shell} could not start anything there: see what it says above"),
                End::Unreachable,
            ),
            Some(code) => (
                format!("its fabricast ended with exit code {code}: see what is said above"),
                End::Unreachable,
            ),
            None => ("its fabricast was killed".to_owned(), End::Unreachable),
        };
        Failure::new(format!("{name}: {text}")).ends(end)
    }

    /// Tells the far end that it is over, and waits for its end.
    pub(crate) fn close(mut self) {
        self.end(END);
    }

    fn end(&mut self, within: Duration) -> Option<std::process::ExitStatus> {
        self.to = None;
        let until = Instant::now() + within;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                _ => {
                    // Both do nothing to one that has ended by itself.
                    let _ = self.child.kill();
                    return self.child.wait().ok();
                }
            }
        }
    }
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        // A shell that still asks for a password does not notice that it is over.
        self.end(if self.is_there { END } else { LOOK });
    }
}

/// What a far end says in this line; `None`: it is not of a far end.
fn marked(line: &[u8]) -> Option<Value> {
    let text = line.strip_prefix(MARK.as_bytes())?;
    serde_json::from_slice(text).ok()
}

/// The words of a command, as a shell splits them: quotes keep spaces, nothing is expanded.
fn split_words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for char in text.chars() {
        match (quote, char) {
            (Some(open), char) if char == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            (None, char) if char.is_whitespace() => words.extend(word.take()),
            (_, char) => word.get_or_insert_default().push(char),
        }
    }
    if quote.is_some() {
        return Err(format!("--rsh: {text}: a quote is not closed"));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_split_as_a_shell_does() {
        let split = |text| split_words(text).expect("quotes are closed");
        assert_eq!(split("ssh -p 2222"), ["ssh", "-p", "2222"]);
        assert_eq!(split(" 'a b'\"c\"  '' "), ["a bc", ""]);
        assert!(split("").is_empty());
        assert!(split_words("ssh 'x").is_err());
    }

    #[test]
    fn only_marked_lines_are_of_a_far_end() {
        assert!(marked(b"Welcome").is_none());
        assert!(marked(b"fabricast-far nothing").is_none());
        let value = marked(b"fabricast-far {\"version\":\"1\"}").expect("JSON");
        assert_eq!(value["version"], "1");
    }
}
