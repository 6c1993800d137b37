//! `Failure`: why a command ends with an exit code that is not 0, in one line for people. `End`:
//! the exit codes.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use fabricast::stream::{RefusalCode, StreamError};

/// How a command ends that did not succeed: its exit code. The manual page has the same list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// What has no code of its own.
    Failed = 1,
    /// Nobody answers at an address, or a far end was lost and did not come back in time.
    Unreachable = 3,
    /// A far end is there and does not take it: its key, version, provider or limits.
    Refused = 4,
    /// What is to be sent can't be read, or has changed meanwhile.
    Source = 5,
    /// What arrives can't be written: no space, no permission.
    Sink = 6,
}

impl End {
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
}

impl Failure {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            end: End::Failed,
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
