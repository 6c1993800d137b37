//! `Failure`: why a command ends with an exit code that is not 0, in one line for people.

use std::fmt;
use std::io;
use std::path::Path;

/// One line that says what failed.
#[derive(Debug)]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// What an error says.
    pub(crate) fn of(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }

    /// A failed call of the system, with what it was for.
    pub(crate) fn os(what: impl fmt::Display, error: &io::Error) -> Self {
        Self(format!("{what}: {}", describe(error)))
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
        f.write_str(&self.0)
    }
}

impl From<fabricast::Error> for Failure {
    fn from(error: fabricast::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<fabricast::memory::MemoryError> for Failure {
    fn from(error: fabricast::memory::MemoryError) -> Self {
        Self(error.to_string())
    }
}

impl From<fabricast::error::RegisterError> for Failure {
    fn from(error: fabricast::error::RegisterError) -> Self {
        Self(error.to_string())
    }
}
