//! `ObjectName`: what an object is called, checked.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The name of an object: 1 to 1,024 bytes of UTF-8 without NUL, in parts with `/` between them.
/// No part is empty, `.` or `..`, so that a name which is used as a path leads nowhere but down.
///
/// ```
/// use fabricast::object::ObjectName;
/// assert!(ObjectName::new("runs/7/events.zarr/c/0").is_ok());
/// for wrong in ["", "/etc/passwd", "a//b", "a/", "../x", "a/./b", "a\0b"] {
///     assert!(ObjectName::new(wrong).is_err());
/// }
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName(Arc<str>);

/// Why some text is no name of an object.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectNameError {
    /// It has no bytes.
    #[error("the name of an object is empty: it takes 1 byte at least")]
    Empty,
    /// It is too long.
    #[error(
        "the name of an object has {len} bytes, {} are taken: use a shorter one",
        ObjectName::LEN_MAX
    )]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// It is not UTF-8.
    #[error("the name of an object is not UTF-8 from byte {at} on: encode it so")]
    Encoding {
        /// The first byte that is wrong.
        at: usize,
    },
    /// It has a NUL byte.
    #[error("the name of an object has a NUL byte at byte {at}: leave it out")]
    Nul {
        /// Where.
        at: usize,
    },
    /// A part is empty, `.` or `..`.
    #[error(
        "the name of an object has a part at byte {at} that is empty, `.` or `..`: it neither \
         begins nor ends with `/`, and leads down only"
    )]
    Part {
        /// Where the part begins.
        at: usize,
    },
    /// A part looks like the name of a file that is being written.
    #[error(
        "the name of an object has a part at byte {at} that is kept for files which are being \
         written (`.NAME.RANDOM.tmp`): use another"
    )]
    Temporary {
        /// Where the part begins.
        at: usize,
    },
}

fabricast_process::debug_as_words!(ObjectNameError);

impl ObjectName {
    /// The longest name, in bytes.
    pub const LEN_MAX: usize = 1024;

    /// Checks a name.
    ///
    /// # Errors
    /// [`ObjectNameError`], the first thing that is wrong.
    pub fn new(name: &str) -> Result<Self, ObjectNameError> {
        if name.is_empty() {
            return Err(ObjectNameError::Empty);
        }
        check_text(name)?;
        let mut at = 0;
        for part in name.split('/') {
            if matches!(part, "" | "." | "..") {
                return Err(ObjectNameError::Part { at });
            }
            at += part.len() + 1;
        }
        Ok(Self(name.into()))
    }

    /// Checks a name that a peer sent.
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`ObjectNameError::Encoding`].
    pub(crate) fn from_bytes(name: &[u8]) -> Result<Self, ObjectNameError> {
        Self::new(text_of(name)?)
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its parts, from the outermost on.
    pub fn parts(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/')
    }
}

/// Text of a peer, checked to be UTF-8.
pub(crate) fn text_of(bytes: &[u8]) -> Result<&str, ObjectNameError> {
    std::str::from_utf8(bytes).map_err(|error| ObjectNameError::Encoding {
        at: error.valid_up_to(),
    })
}

/// What names, prefixes of names, and places in lists have in common.
pub(crate) fn check_text(text: &str) -> Result<(), ObjectNameError> {
    if text.len() > ObjectName::LEN_MAX {
        return Err(ObjectNameError::TooLong { len: text.len() });
    }
    match text.bytes().position(|byte| byte == 0) {
        Some(at) => Err(ObjectNameError::Nul { at }),
        None => Ok(()),
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl FromStr for ObjectName {
    type Err = ObjectNameError;

    fn from_str(name: &str) -> Result<Self, ObjectNameError> {
        Self::new(name)
    }
}

impl AsRef<str> for ObjectName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}
