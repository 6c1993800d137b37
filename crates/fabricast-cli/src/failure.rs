//! `Failure`: why a command ends with an exit code that is not 0, in one line for people. `End`:
//! the exit codes.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use fabricast::stream::{RefusalCode, StreamError};

/// How a command ends that did not succeed: its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// What has no code of its own.
    Failed = 1,
    /// What was asked for can't be meant.
    Usage = 2,
    /// Nobody answers at an address, or a far end was lost and did not come back in time.
    Unreachable = 3,
    /// A far end is there and does not take it: its key, version, provider or limits.
    Refused = 4,
    /// What is to be sent can't be read, or has changed meanwhile.
    Source = 5,
    /// What arrives can't be written: no space, no permission.
    Sink = 6,
    /// There is no such object.
    Absent = 7,
    /// The object is not what a condition asks for.
    Condition = 8,
    /// `--strict`, and there is something that can't be sent.
    Skipped = 9,
    /// `verify`: something is not what its hash says.
    Differs = 10,
    /// Somebody pressed Ctrl-C.
    Interrupted = 130,
    /// Somebody sent SIGTERM.
    Terminated = 143,
}

/// When a command ends with exit code 0.
pub(crate) const SUCCESS: &str = "everything that was asked for is done";

impl End {
    pub(crate) const ALL: [Self; 12] = [
        Self::Failed,
        Self::Usage,
        Self::Unreachable,
        Self::Refused,
        Self::Source,
        Self::Sink,
        Self::Absent,
        Self::Condition,
        Self::Skipped,
        Self::Differs,
        Self::Interrupted,
        Self::Terminated,
    ];

    /// The same as a word, for programs.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Usage => "usage",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::Source => "source",
            Self::Sink => "sink",
            Self::Absent => "absent",
            Self::Condition => "condition",
            Self::Skipped => "skipped",
            Self::Differs => "differs",
            Self::Interrupted => "interrupted",
            Self::Terminated => "terminated",
        }
    }

    /// The end with this exit code.
    pub(crate) fn with_code(code: u64) -> Self {
        let found = Self::ALL.into_iter().find(|end| *end as u64 == code);
        found.unwrap_or(Self::Failed)
    }

    /// When a command ends so.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Failed => {
                "what has no code of its own, or several receivers ended in several ways"
            }
            Self::Usage => "a wrong command line",
            Self::Unreachable => "a receiver is not there, or was lost",
            Self::Refused => "a receiver does not take what is sent",
            Self::Source => "what is sent can't be read, or has changed",
            Self::Sink => "what arrives can't be written",
            Self::Absent => "there is no such object",
            Self::Condition => "a condition (--if-match, --if-none-match) does not hold",
            Self::Skipped => "--strict, and there is something to skip",
            Self::Differs => "verify: a file is not what its hash says, or is not there",
            Self::Interrupted => "after Ctrl-C",
            Self::Terminated => "after SIGTERM",
        }
    }

    /// All exit codes, a line each, as `--help` has them.
    pub(crate) fn list() -> String {
        let head = format!(
            "Exit code, and with all but 0 a line on stderr that says why:\n  {:>3}  {SUCCESS}",
            0
        );
        let lines = Self::ALL.map(|end| format!("\n  {:>3}  {}", end as u8, end.meaning()));
        [head, lines.concat()].concat()
    }

    /// What to do about it, where nothing better is known than the kind of the end.
    pub(crate) fn todo(self) -> &'static str {
        match self {
            Self::Failed | Self::Interrupted | Self::Terminated => {
                "give the same command again: it goes on where it was"
            }
            Self::Usage => "see --help",
            Self::Absent => "see what there is with fabricast ls",
            Self::Condition => "look at the object, and decide anew",
            Self::Differs => "send it anew from where it is whole",
            Self::Skipped => "leave it out with --exclude, or go without --strict",
            Self::Unreachable => {
                "see that fabricast recv runs there and that no firewall is between; then give the \
                 same command again: it goes on where it was"
            }
            Self::Refused => "mend what the receiver names, at the end that it names",
            Self::Source => {
                "see that everything can be read and stays as it is while it is sent; then give \
                 the same command again"
            }
            Self::Sink => {
                "make room or give permission there; then give the same command again: it goes on \
                 where it was"
            }
        }
    }

    /// How a transfer that failed with this ends.
    pub(crate) fn of(error: &StreamError) -> Self {
        match error {
            StreamError::Refused { code, .. }
            | StreamError::Failed { code, .. }
            | StreamError::GivenUp { code, .. } => Self::of_code(*code),
            StreamError::Lost(_) | StreamError::Stalled { .. } | StreamError::Deadline { .. } => {
                Self::Unreachable
            }
            StreamError::Unproven | StreamError::Violation(_) => Self::Refused,
            StreamError::File(_) | StreamError::SourceChanged { .. } => Self::Source,
            _ => Self::Failed,
        }
    }

    /// What to do about this error.
    pub(crate) fn todo_of(error: &StreamError) -> &'static str {
        let code = match error {
            StreamError::Unproven => RefusalCode::KEY,
            StreamError::Refused { code, .. }
            | StreamError::Failed { code, .. }
            | StreamError::GivenUp { code, .. } => *code,
            _ => return Self::of(error).todo(),
        };
        match code {
            RefusalCode::KEY => "give both ends the same --key",
            RefusalCode::VERSION => "install the same version of fabricast at both ends",
            RefusalCode::BYTES => "raise --max-size of the receiver",
            RefusalCode::ENTRIES => "raise --max-files of the receiver",
            RefusalCode::BUSY => "wait until other streams there are over, or raise its --peers",
            RefusalCode::ALREADY => "wait until the same stream that is under way is over",
            RefusalCode::SOURCE_CHANGED => {
                "give the command again with --restart, which throws away the part that is there"
            }
            RefusalCode::EXISTS => "move away what has that name there, or send under another",
            _ => Self::of(error).todo(),
        }
    }

    fn of_code(code: RefusalCode) -> Self {
        match code {
            RefusalCode::SINK | RefusalCode::SPACE | RefusalCode::EXISTS => Self::Sink,
            RefusalCode::SOURCE | RefusalCode::SOURCE_CHANGED => Self::Source,
            RefusalCode::LOST | RefusalCode::STALLED | RefusalCode::CLOSING => Self::Unreachable,
            RefusalCode::DIGEST | RefusalCode::DAMAGED | RefusalCode::CANCELLED => Self::Failed,
            _ => Self::Refused,
        }
    }
}

/// One line that says what failed, and how the command ends for it.
#[derive(Debug)]
pub(crate) struct Failure {
    text: String,
    end: End,
    is_told: bool,
}

impl Failure {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            end: End::Failed,
            is_told: false,
        }
    }

    /// The same, with an exit code of its own.
    pub(crate) fn ends(mut self, end: End) -> Self {
        self.end = end;
        self
    }

    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(self.end as u8)
    }

    /// How the command ends for it.
    pub(crate) fn end(&self) -> End {
        self.end
    }

    /// The same, when whoever is to know it has been told.
    pub(crate) fn told(mut self) -> Self {
        self.is_told = true;
        self
    }

    pub(crate) fn is_told(&self) -> bool {
        self.is_told
    }

    /// Somebody asked for an end before it was done.
    pub(crate) fn interrupted(end: End) -> Self {
        Self::new("interrupted: give the same command again, and it goes on where it was").ends(end)
    }

    /// What an error says.
    pub(crate) fn of(error: impl fmt::Display) -> Self {
        Self::new(error.to_string())
    }

    /// A failed call of the system, with what it was for.
    pub(crate) fn os(what: impl fmt::Display, error: &io::Error) -> Self {
        Self::new(format!("{what}: {}", describe(error)))
    }

    /// A failed operation on a file, named as the user named it.
    pub(crate) fn file(path: &Path, error: &io::Error) -> Self {
        Self::os(path.display(), error)
    }
}

/// The system's words for an error, without Rust's "(os error 28)".
pub(crate) fn describe(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_owned(),
        None => text,
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<fabricast::Error> for Failure {
    fn from(error: fabricast::Error) -> Self {
        Self::of(error)
    }
}

impl From<fabricast::memory::MemoryError> for Failure {
    fn from(error: fabricast::memory::MemoryError) -> Self {
        Self::of(error)
    }
}

impl From<fabricast::error::RegisterError> for Failure {
    fn from(error: fabricast::error::RegisterError) -> Self {
        Self::of(error)
    }
}
