//! `Failure`: what ends a run, in one line for the user.

use std::fmt;

/// Of which kind a failure is, for exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What has no kind of its own.
    Failed,
    /// What was asked for can't be meant.
    Usage,
    /// The peer is not there, or was lost.
    Unreachable,
    /// The peer is there and does not take it.
    Refused,
}

/// Why it can't go on.
#[derive(Debug)]
pub struct Failure {
    text: String,
    kind: Kind,
}

impl Failure {
    /// One that says this.
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            kind: Kind::Failed,
        }
    }

    /// One that says this.
    pub fn of(text: &str) -> Self {
        Self::new(text)
    }

    /// The same, of this kind.
    #[must_use]
    pub fn is(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Of which kind it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(error.to_string())
    }
}

/// A failure that says this.
///
/// # Errors
///
/// Always.
pub fn fail<T>(text: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::new(text))
}
