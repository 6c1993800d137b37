//! `RelativeName`: where below a directory something lies, from a peer that is not trusted.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The longest component of a name, in bytes: what file systems take.
pub const COMPONENT_LEN_MAX: usize = 255;
/// The longest name, in bytes.
pub const NAME_LEN_MAX: usize = 4096;

/// What the names of hidden directories begin with in which [`DirectorySink`](super::DirectorySink)
/// keeps what it has of streams.
pub(crate) const HIDDEN_PREFIX: &str = ".fabricast-";

/// A name that leads to something below a directory, and nowhere else: components with `/` between
/// them, none of them empty, `.` or `..`.
///
/// All bytes but `/` and NUL may be in a component, as on any Unix file system; but none begins
/// with `.fabricast-`, in whatever case: below a name of that kind a
/// [`DirectorySink`](super::DirectorySink) keeps what it has of a stream, this one's or another
/// one's, and what is there counts as received. What [`Display`](fmt::Display) shows has no control
/// characters.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RelativeName<'a> {
    bytes: &'a [u8],
}

/// Why a name can't be in a stream.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name has no bytes.
    #[error("a name without bytes")]
    Empty,
    /// The name is longer than 4096 bytes.
    #[error("a name of {len} bytes, the limit is {NAME_LEN_MAX}")]
    TooLong {
        /// Its bytes.
        len: usize,
    },
    /// One of its components is longer than 255 bytes.
    #[error("a name with a component of {len} bytes, the limit is {COMPONENT_LEN_MAX}")]
    ComponentTooLong {
        /// The component's bytes.
        len: usize,
    },
    /// The name begins or ends with a slash, or has two in a row.
    #[error("a name with an empty component: it begins or ends with a slash, or has two in a row")]
    EmptyComponent,
    /// One of its components is `.` or `..`.
    #[error("a name that leads elsewhere: a component is a dot, or two")]
    Dots,
    /// The name has a NUL byte.
    #[error("a name with a NUL byte")]
    Nul,
    /// One of its components begins as the names of hidden directories do.
    #[error(
        "a name with a component that begins with {HIDDEN_PREFIX}, where receivers keep streams \
         that are not whole: rename it, or leave it out; what is left of cut streams goes with \
         DirectorySink::forget_partials"
    )]
    Hidden,
}

fabricast_process::debug_as_words!(NameError);

impl<'a> RelativeName<'a> {
    /// The name that these bytes are.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn new(bytes: &'a [u8]) -> Result<Self, NameError> {
        if bytes.is_empty() {
            return Err(NameError::Empty);
        }
        if bytes.len() > NAME_LEN_MAX {
            return Err(NameError::TooLong { len: bytes.len() });
        }
        for component in bytes.split(|byte| *byte == b'/') {
            match component {
                [] => return Err(NameError::EmptyComponent),
                b"." | b".." => return Err(NameError::Dots),
                _ if component.contains(&0) => return Err(NameError::Nul),
                _ if component.len() > COMPONENT_LEN_MAX => {
                    let len = component.len();
                    return Err(NameError::ComponentTooLong { len });
                }
                _ if is_hidden(component) => return Err(NameError::Hidden),
                _ => {}
            }
        }
        Ok(Self { bytes })
    }

    /// The name of a path, whose components are joined as they are.
    ///
    /// # Errors
    ///
    /// What is wrong with it; an absolute path has an empty component in front.
    pub fn from_path(path: &'a Path) -> Result<Self, NameError> {
        Self::new(path.as_os_str().as_bytes())
    }

    /// The bytes.
    pub fn as_bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// The name as a path, to be used below a directory only.
    pub fn as_path(self) -> &'a Path {
        Path::new(OsStr::from_bytes(self.bytes))
    }

    /// What is between the slashes; at least one.
    pub fn components(self) -> impl DoubleEndedIterator<Item = &'a OsStr> {
        self.bytes
            .split(|byte| *byte == b'/')
            .map(OsStr::from_bytes)
    }

    /// Whether it leads to something below what `directory` leads to.
    pub fn is_below(self, directory: Self) -> bool {
        self.bytes
            .strip_prefix(directory.bytes)
            .is_some_and(|rest| rest.first() == Some(&b'/'))
    }
}

/// Whether some file system could take this component for one that begins with the prefix of hidden
/// directories. Those that fold case (ext4, f2fs and tmpfs with `casefold`, APFS, SMB) ignore
/// characters without a shape, too, and take a long s for an s.
fn is_hidden(component: &[u8]) -> bool {
    // The path of nearly all names.
    if !matches!(component.first(), Some(b'.' | 0x80..)) {
        return false;
    }
    let text = String::from_utf8_lossy(component);
    let seen = text.chars().filter(|c| !has_no_shape(*c));
    let folded = seen.map(|c| match c {
        'ſ' => 's',
        c => c.to_ascii_lowercase(),
    });
    folded.take(HIDDEN_PREFIX.len()).eq(HIDDEN_PREFIX.chars())
}

/// The characters that Unicode calls Default_Ignorable_Code_Point.
fn has_no_shape(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
        | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Component by component, so that what lies below a directory directly follows it.
impl Ord for RelativeName<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // The slash counts as less than any byte, which is the same and needs no splitting.
        let rank = |byte: &u8| {
            if *byte == b'/' {
                0
            } else {
                u16::from(*byte) + 1
            }
        };
        self.bytes
            .iter()
            .map(rank)
            .cmp(other.bytes.iter().map(rank))
    }
}

impl PartialOrd for RelativeName<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for RelativeName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for chunk in self.bytes.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c.is_control() {
                    true => write!(f, "{}", c.escape_default())?,
                    false => f.write_char(c)?,
                }
            }
            write!(f, "{}", chunk.invalid().escape_ascii())?;
        }
        Ok(())
    }
}

impl fmt::Debug for RelativeName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ordinary_and_odd_names_are_taken() {
        let longest = vec![b'x'; COMPONENT_LEN_MAX];
        let mut deep = b"ab/".repeat(NAME_LEN_MAX / 3);
        deep.push(b'z');
        for name in [
            b"a".as_slice(),
            b"a b/c  d",
            "grüße/日本".as_bytes(),
            b"...",
            b"a/.hidden/..c",
            b"\xff\xfe",
            b"new\nline",
            &longest,
            &deep,
        ] {
            let parsed = RelativeName::new(name).unwrap();
            assert_eq!(parsed.as_bytes(), name);
            assert_eq!(RelativeName::from_path(parsed.as_path()), Ok(parsed));
            let joined: PathBuf = parsed.components().collect();
            assert_eq!(joined, parsed.as_path());
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_not() {
        let component = vec![b'x'; COMPONENT_LEN_MAX + 1];
        let long = b"a/".repeat(NAME_LEN_MAX);
        for (name, error) in [
            (b"".as_slice(), NameError::Empty),
            (b"/etc/passwd", NameError::EmptyComponent),
            (b"a//b", NameError::EmptyComponent),
            (b"a/", NameError::EmptyComponent),
            (b".", NameError::Dots),
            (b"..", NameError::Dots),
            (b"a/../../b", NameError::Dots),
            (b"a/./b", NameError::Dots),
            (b"a\0b", NameError::Nul),
            (&component, NameError::ComponentTooLong { len: 256 }),
            (&long, NameError::TooLong { len: 8192 }),
        ] {
            assert_eq!(RelativeName::new(name), Err(error), "{name:?}");
        }
    }

    #[test]
    fn names_of_hidden_directories_are_refused_however_they_are_spelt() {
        for name in [
            ".fabricast-",
            ".fabricast-0123456789abcdef0123456789abcdef/journal",
            ".Fabricast-x/0",
            ".FABRICAST-X",
            "a/b/.fabricast-x",
            "a/.fabricast-x/b",
            ".fabrica\u{17f}t-x",
            ".fab\u{200d}ricast-x",
            "\u{feff}.fabricast-x",
        ] {
            let error = RelativeName::new(name.as_bytes());
            assert_eq!(error, Err(NameError::Hidden), "{name:?}");
        }
        assert!(NameError::Hidden.to_string().contains("rename it"));
        for name in [
            "fabricast-x",
            ".fabricast",
            ".fabricastx-",
            "a.fabricast-x",
            "..fabricast-x",
            "x/.fabric-ast",
            " .fabricast-x",
        ] {
            assert!(RelativeName::new(name.as_bytes()).is_ok(), "{name:?}");
        }
        // Not UTF-8, so that no file system folds it.
        assert!(RelativeName::new(b".fabri\xffcast-").is_ok());
    }

    #[test]
    fn what_is_shown_is_one_harmless_line() {
        let name = RelativeName::new(b"a\x1b[2J\n\xff\xc2\x9bz ").unwrap();
        assert_eq!(name.to_string(), "a\\u{1b}[2J\\n\\xff\\u{9b}z ");
    }

    proptest! {
        /// A path that is made of the parsed components stays below where it begins.
        #[test]
        fn no_name_escapes(
            bytes in proptest::collection::vec(
                prop_oneof![Just(b'.'), Just(b'/'), Just(b'a'), any::<u8>()],
                0..24,
            ),
        ) {
            if let Ok(name) = RelativeName::new(&bytes) {
                use std::path::Component;
                prop_assert!(name.as_path().is_relative());
                let parts: Vec<_> = name.as_path().components().collect();
                prop_assert_eq!(parts.len(), name.components().count());
                prop_assert!(
                    parts
                        .iter()
                        .all(|part| matches!(part, Component::Normal(_)))
                );
                prop_assert!(!name.to_string().contains(char::is_control));
            }
        }

        /// The order is that of the lists of components, and what is below something follows it at
        /// once.
        #[test]
        fn order_is_by_component(a in "[a/!0]{1,8}", b in "[a/!0]{1,8}") {
            if let (Ok(a), Ok(b)) = (
                RelativeName::new(a.as_bytes()),
                RelativeName::new(b.as_bytes()),
            ) {
                let lists = a.components().cmp(b.components());
                prop_assert_eq!(a.cmp(&b), lists);
                let starts = b.components().count() > a.components().count()
                    && b.components().zip(a.components()).all(|(b, a)| a == b);
                prop_assert_eq!(b.is_below(a), starts);
            }
        }
    }
}
