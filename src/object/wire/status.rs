//! `ObjectStatus`: how a request ended, in a number.

use std::fmt;

/// How a request ended. A number, because a newer service may have reasons unknown here.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObjectStatus(pub u16);

impl ObjectStatus {
    /// It was done.
    pub const OK: Self = Self(0);
    /// The request made no sense.
    pub const MALFORMED: Self = Self(1);
    /// The service does not do that.
    pub const UNSUPPORTED: Self = Self(2);
    /// The name is none, or none that the store takes.
    pub const NAME: Self = Self(3);
    /// There is no object of that name.
    pub const NOT_FOUND: Self = Self(4);
    /// There is one already, and it was to be put only if there is none.
    pub const EXISTS: Self = Self(5);
    /// The object there is another version than the one that was named.
    pub const ETAG_MISMATCH: Self = Self(6);
    /// The range is not in the object.
    pub const RANGE: Self = Self(7);
    /// The token is none, or of another provider, or too short.
    pub const TOKEN: Self = Self(8);
    /// The client's window could not be reached.
    pub const TRANSFER: Self = Self(9);
    /// It took longer than it was given.
    pub const TIMED_OUT: Self = Self(10);
    /// The service, or this client, has as many requests as it may have.
    pub const BUSY: Self = Self(11);
    /// The object is larger than is taken.
    pub const TOO_LARGE: Self = Self(12);
    /// No space is left.
    pub const NO_SPACE: Self = Self(13);
    /// The store failed.
    pub const STORE: Self = Self(14);
    /// The content is not what was stored.
    pub const DAMAGED: Self = Self(15);
    /// The object changed while it was read.
    pub const CHANGED: Self = Self(16);
    /// The service is about to end.
    pub const CLOSING: Self = Self(17);
    /// It is not allowed.
    pub const DENIED: Self = Self(18);
    /// The client gave it up.
    pub const CANCELLED: Self = Self(19);

    fn text(self) -> Option<&'static str> {
        Some(match self {
            Self::OK => "it was done",
            Self::MALFORMED => "the request makes no sense there",
            Self::UNSUPPORTED => "the service does not do that",
            Self::NAME => "the name is none that is taken there",
            Self::NOT_FOUND => "there is no object of that name",
            Self::EXISTS => "there is an object of that name already",
            Self::ETAG_MISMATCH => "the object there is another version",
            Self::RANGE => "the range is not in the object",
            Self::TOKEN => "the token is of no use there",
            Self::TRANSFER => "the service could not reach the client's memory",
            Self::TIMED_OUT => "it took longer than it was given",
            Self::BUSY => "too many requests at once: wait for one to end",
            Self::TOO_LARGE => "the object is larger than is taken",
            Self::NO_SPACE => "no space is left",
            Self::STORE => "the store failed, the service's log says how",
            Self::DAMAGED => "what is stored is damaged",
            Self::CHANGED => "the object changed while it was read: read it again",
            Self::CLOSING => "the service is about to end",
            Self::DENIED => "it is not allowed",
            Self::CANCELLED => "it was given up",
            _ => return None,
        })
    }
}

impl fmt::Display for ObjectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text),
            None => write!(f, "status {}", self.0),
        }
    }
}

impl fmt::Debug for ObjectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectStatus({}: {self})", self.0)
    }
}
