//! `StreamError`: why a stream ended before it was complete. `RefusalCode`: the same in a number,
//! for the peer.

use std::fmt;

use super::wire::{Cancel, Failed, Refuse};
use super::{ManifestError, NameError, WireError};
use crate::endpoint::CloseReason;
use crate::protocol::close_reason::Over;
use crate::storage::FileError;

/// Why a side did not take a stream, or gave it up. A number, because a newer peer may have reasons
/// unknown here.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RefusalCode(pub u16);

impl RefusalCode {
    /// No version of the stream protocol in common.
    pub const VERSION: Self = Self(1);
    /// What was said made no sense, or had no place there.
    pub const MALFORMED: Self = Self(2);
    /// The peer did not prove that it has the key, or this side was asked for a proof and has none.
    pub const KEY: Self = Self(3);
    /// What was asked for can't be done here.
    pub const FEATURE: Self = Self(4);
    /// As many streams or sessions as there may be are there already.
    pub const BUSY: Self = Self(5);
    /// More bytes than a stream may have.
    pub const BYTES: Self = Self(6);
    /// More files and directories than a stream may have.
    pub const ENTRIES: Self = Self(7);
    /// A name that is not taken, or too many bytes of names.
    pub const NAMES: Self = Self(8);
    /// Blocks of a size that is not taken, or more blocks than a stream may have.
    pub const BLOCKS: Self = Self(9);
    /// The receiver has a part of this stream, but of another content. With `RESTART` it is thrown
    /// away.
    pub const SOURCE_CHANGED: Self = Self(10);
    /// There is something under that name already.
    pub const EXISTS: Self = Self(11);
    /// There is not enough space.
    pub const SPACE: Self = Self(12);
    /// The side is about to end.
    pub const CLOSING: Self = Self(13);
    /// The application did not want it.
    pub const BY_APPLICATION: Self = Self(14);
    /// The same stream is being received already.
    pub const ALREADY: Self = Self(15);
    /// The sink failed.
    pub const SINK: Self = Self(16);
    /// The source failed.
    pub const SOURCE: Self = Self(17);
    /// Nothing moved for too long.
    pub const STALLED: Self = Self(18);
    /// Blocks came damaged again and again.
    pub const DAMAGED: Self = Self(19);
    /// The two sides do not have the same content.
    pub const DIGEST: Self = Self(20);
    /// A person, or the application, ended it.
    pub const CANCELLED: Self = Self(21);
    /// The stream took longer than its deadline.
    pub const DEADLINE: Self = Self(22);
    /// The last connection is gone.
    pub const LOST: Self = Self(23);

    fn text(self) -> Option<&'static str> {
        Some(match self {
            Self::VERSION => "no version of the stream protocol in common",
            Self::MALFORMED => "what was said makes no sense there",
            Self::KEY => "the peer does not have the key",
            Self::FEATURE => "what was asked for can't be done there",
            Self::BUSY => {
                "too many streams already: wait for one to end, or raise Limits::streams or \
                 Limits::memory there"
            }
            Self::BYTES => "more bytes than are taken",
            Self::ENTRIES => "more files than are taken",
            Self::NAMES => "a name that is not taken",
            Self::BLOCKS => "blocks that are not taken",
            Self::SOURCE_CHANGED => "the source has changed since a part of it was sent",
            Self::EXISTS => {
                "there is something under that name: move it away, or send under another"
            }
            Self::SPACE => "not enough space",
            Self::CLOSING => "the side is about to end",
            Self::BY_APPLICATION => "the application did not want it",
            Self::ALREADY => {
                "the same stream is being received already: wait for its end, or cancel it"
            }
            Self::SINK => "the sink failed",
            Self::SOURCE => "the source failed",
            Self::STALLED => "nothing moved for too long",
            Self::DAMAGED => "blocks came damaged again and again",
            Self::DIGEST => "the two sides do not have the same content",
            Self::CANCELLED => "cancelled",
            Self::DEADLINE => "it took longer than it was given",
            Self::LOST => "the connection was lost",
            _ => return None,
        })
    }
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text),
            None => write!(f, "reason {}", self.0),
        }
    }
}

impl fmt::Debug for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RefusalCode({}: {self})", self.0)
    }
}

/// What a peer said that it may not have said.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamViolation {
    /// The message can't be understood.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// A message at a time, or from a side, where it has no place.
    #[error("a message of kind {kind} while {state}")]
    Unexpected {
        /// The kind of the message.
        kind: u8,
        /// What the stream or connection was doing.
        state: &'static str,
    },
    /// A block that the stream does not have, or that lies elsewhere in it.
    #[error("block {index}: there is no such block")]
    NoSuchBlock {
        /// Its number.
        index: u64,
    },
    /// More blocks than were granted.
    #[error("block {sent} was sent, {granted} are granted")]
    OverCredit {
        /// Blocks that were sent.
        sent: u64,
        /// Blocks that may be.
        granted: u64,
    },
    /// A count that goes backwards, or is beyond what there can be.
    #[error("{what} can't be {value}")]
    Count {
        /// Which count.
        what: &'static str,
        /// The value that was given.
        value: u64,
    },
    /// The manifest is not what was announced, or not one that is taken.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

fabricast_process::debug_as_words!(StreamViolation);

/// Why a stream ended before it was complete.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// A setting has a value that it can't have.
    #[error("setting `{name}` can't be {value}: {range}")]
    Setting {
        /// Its name.
        name: &'static str,
        /// What was asked for.
        value: u64,
        /// The values that are allowed.
        range: &'static str,
    },
    /// A name that a stream can't carry.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A list of files that a stream can't carry.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A file of the source or the sink.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file with the key.
    #[error("{}: {error}", path.display())]
    KeyFile {
        /// Where it is.
        path: std::path::PathBuf,
        /// What stopped it.
        error: std::sync::Arc<std::io::Error>,
    },
    /// The system gives no random numbers, without which nobody can prove anything.
    #[error("the system has no random numbers")]
    Random,
    /// The peer has no key where this side has one: it can't prove who it is.
    #[error(
        "the peer asks for no proof, and gives none: it has no key; give it the same one, or this \
         side none"
    )]
    Unproven,
    /// The endpoint, the fabric, or memory.
    #[error("{0}")]
    Endpoint(std::sync::Arc<crate::Error>),
    /// The peer did not take the stream, or the connection.
    #[error("refused: {}", RefusalText(.code, .reason))]
    Refused {
        /// Why.
        code: RefusalCode,
        /// By code; see docs/wire.md.
        details: [u64; 2],
        /// In the peer's words; may be empty.
        reason: String,
    },
    /// The peer gave the stream up.
    #[error("given up by the peer: {}", RefusalText(.code, .reason))]
    Failed {
        /// Why.
        code: RefusalCode,
        /// Which block it is about, if it is about one.
        block: Option<u64>,
        /// In the peer's words; may be empty.
        reason: String,
    },
    /// This side gave the stream up.
    #[error("given up: {}", RefusalText(.code, .reason))]
    GivenUp {
        /// Why.
        code: RefusalCode,
        /// In words; may be empty.
        reason: String,
    },
    /// The peer does not keep to the protocol.
    #[error("the peer does not keep to the protocol: {0}")]
    Violation(#[from] StreamViolation),
    /// The connection ended.
    #[error("{}", Over("the connection was lost", .0))]
    Lost(CloseReason),
    /// The source is not what it was when the stream began.
    #[error("the source has changed: {what}")]
    SourceChanged {
        /// What of it.
        what: String,
    },
    /// Nothing moved for as long as may be, though both sides were there.
    #[error("nothing moved for {after:.1?}: {waits}")]
    Stalled {
        /// How long nothing moved.
        after: std::time::Duration,
        /// What this side waited for, and how it stood, in words.
        waits: String,
    },
    /// Something took longer than it may.
    #[error("not done in time: {what}")]
    Deadline {
        /// What took so long.
        what: &'static str,
    },
}

fabricast_process::debug_as_words!(StreamError);

impl From<&Refuse<'_>> for StreamError {
    fn from(refuse: &Refuse<'_>) -> Self {
        Self::Refused {
            code: refuse.code,
            details: refuse.details,
            reason: refuse.reason.to_string(),
        }
    }
}

impl From<&Failed<'_>> for StreamError {
    fn from(failed: &Failed<'_>) -> Self {
        Self::Failed {
            code: failed.code,
            block: failed.block,
            reason: failed.reason.to_string(),
        }
    }
}

impl From<&Cancel<'_>> for StreamError {
    fn from(cancel: &Cancel<'_>) -> Self {
        Self::Failed {
            code: cancel.code,
            block: None,
            reason: cancel.reason.to_string(),
        }
    }
}

impl StreamError {
    /// What the peer says of a stream that stood still, and beside it what this side was waiting
    /// for.
    pub(super) fn with_this_side(self, waits: impl FnOnce() -> String) -> Self {
        match self {
            Self::Failed {
                code: code @ RefusalCode::STALLED,
                block,
                reason,
            } => Self::Failed {
                code,
                block,
                reason: format!("{reason}; {}", waits()),
            },
            other => other,
        }
    }
}

/// A code, and what the peer adds to it.
struct RefusalText<'a>(&'a RefusalCode, &'a str);

impl fmt::Display for RefusalText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            "" => self.0.fmt(f),
            reason => write!(f, "{}: {reason}", self.0),
        }
    }
}

impl From<crate::Error> for StreamError {
    fn from(error: crate::Error) -> Self {
        Self::Endpoint(std::sync::Arc::new(error))
    }
}
