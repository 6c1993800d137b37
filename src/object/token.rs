//! `RdmaToken`: names memory of a client, and who reaches it how, as text (`ofi1`).
//!
//! ```text
//! <base>:<length>:ofi1:<provider>:<name>:<key>
//! 7f0012345000:c00000:ofi1:verbs;ofi_rxm:020012340a00000100ff:deadbeef
//! ```
//!
//! The numbers are hexadecimal, and the name is two digits for each byte.

mod error;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

pub use error::{TokenError, TokenField};

/// The format that is written and read here.
const FORMAT: &str = "ofi1";

/// How many fields it has.
const FIELDS: usize = 6;

/// The most hexadecimal digits of a number.
const DIGITS: usize = u64::BITS as usize / 4;

/// Digits of the fields of cuObject's token: address, length, key, LID, QP, whether there is a GID,
/// and the GID. With the colons they are 81 characters.
const CUOBJECT: [usize; 7] = [16, 8, 8, 4, 6, 1, 32];

/// Memory of a client that a server may write or read, and what the server needs to know for it.
///
/// It is passed on as text: [`Display`](fmt::Display) writes it, [`FromStr`] reads it. Whoever has
/// the text can use it: it belongs on channels that nobody else reads, and
/// [`Debug`](fmt::Debug) leaves the key out, for logs.
///
/// What is written is one text for each token: lower case, no leading zeros. What is read may
/// have upper-case digits, and leading zeros up to 16 digits, since they change no number; nothing
/// else that differs is taken.
///
/// ```
/// use fabricast::object::{RdmaToken, TokenError};
///
/// let text = "7f0012345000:c00000:ofi1:verbs;ofi_rxm:020012340a00000100ff:deadbeef";
/// let token: RdmaToken = text.parse()?;
/// assert_eq!((token.base(), token.len()), (0x7f00_1234_5000, 12 << 20));
/// assert_eq!((token.provider(), token.key()), ("verbs;ofi_rxm", 0xdead_beef));
/// assert_eq!(token.to_string(), text);
///
/// let second = token.part(0x1000..0x2000)?;
/// assert_eq!((second.base(), second.len()), (0x7f00_1234_6000, 0x1000));
///
/// let other = "0:100000:uet1:10.88.0.30:1234".parse::<RdmaToken>();
/// assert!(matches!(other, Err(TokenError::Uet { .. })));
/// # Ok::<(), TokenError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RdmaToken {
    base: u64,
    len: u64,
    provider: Box<str>,
    name: Box<[u8]>,
    key: u64,
}

impl RdmaToken {
    /// The most bytes of the name of an endpoint.
    pub const NAME_MAX: usize = 192;

    /// The most characters of a token.
    pub const TEXT_MAX: usize = 512;

    /// A token of these fields.
    ///
    /// # Errors
    /// They are none of a token: its text would not be read.
    pub(crate) fn new(
        base: u64,
        len: u64,
        provider: &str,
        name: &[u8],
        key: u64,
    ) -> Result<Self, TokenError> {
        check_provider(provider)?;
        check_name(name.len())?;
        if len == 0 || base.checked_add(len).is_none() {
            return Err(TokenError::Window { base, len });
        }
        let token = Self {
            base,
            len,
            provider: provider.into(),
            name: name.into(),
            key,
        };
        check_text(token.text_len())?;
        Ok(token)
    }

    /// What its first byte is addressed by: a virtual address, or an offset.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// How many bytes it names.
    #[expect(clippy::len_without_is_empty, reason = "a token names at least 1 byte")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The provider of both ends, by libfabric's name: 1 or more printable ASCII characters, none
    /// of which is a space or a colon.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// The address of the client's endpoint, in the provider's form: 1 to
    /// [`NAME_MAX`](Self::NAME_MAX) bytes, as `fi_getname(3)` gave them there.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The key of the registration.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// A token for a part of it, which is addressed from its own start. The key is the same one:
    /// this says which bytes are meant, and keeps nobody from the others.
    ///
    /// # Errors
    /// [`TokenError::Part`] for a range that is empty or leaves the window; or
    /// [`TokenError::TooLong`], as its address may take more digits.
    pub fn part(&self, range: Range<u64>) -> Result<Self, TokenError> {
        let Range { start, end } = range;
        if start >= end || end > self.len {
            let len = self.len;
            return Err(TokenError::Part { start, end, len });
        }
        // Both are below the end of the window, which does not wrap around.
        let (base, len) = (self.base + start, end - start);
        Self::new(base, len, &self.provider, &self.name, self.key)
    }

    /// How many characters it is written with.
    fn text_len(&self) -> usize {
        let numbers = [self.base, self.len, self.key].map(digits);
        let texts = FORMAT.len() + self.provider.len() + 2 * self.name.len();
        numbers.iter().sum::<usize>() + texts + FIELDS - 1
    }
}

fn digits(number: u64) -> usize {
    let bits = u64::BITS - number.leading_zeros();
    bits.div_ceil(4).max(1) as usize
}

impl fmt::Display for RdmaToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (base, len) = (self.base, self.len);
        write!(f, "{base:x}:{len:x}:{FORMAT}:{}:", self.provider)?;
        self.name
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, ":{:x}", self.key)
    }
}

impl fmt::Debug for RdmaToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaToken")
            .field("base", &format_args!("{:#x}", self.base))
            .field("len", &self.len)
            .field("provider", &self.provider)
            .field("name", &format_args!("{:02x?}", self.name))
            .finish_non_exhaustive()
    }
}

impl FromStr for RdmaToken {
    type Err = TokenError;

    /// Reads a token. Nothing around it is skipped: neither spaces nor the end of a line.
    fn from_str(text: &str) -> Result<Self, TokenError> {
        if text.is_empty() {
            return Err(TokenError::Empty);
        }
        check_text(text.len())?;
        let fields: Vec<&str> = text.split(':').collect();
        check_format(&fields)?;
        let &[base, len, _, provider, name, key] = &fields[..] else {
            let found = fields.len();
            return Err(TokenError::Fields { found });
        };
        let base = number(TokenField::Base, base)?;
        let len = number(TokenField::Len, len)?;
        check_provider(provider)?;
        let name = bytes(name)?;
        let key = number(TokenField::Key, key)?;
        Self::new(base, len, provider, &name, key)
    }
}

fn check_text(len: usize) -> Result<(), TokenError> {
    match len > RdmaToken::TEXT_MAX {
        true => Err(TokenError::TooLong { len }),
        false => Ok(()),
    }
}

/// Refuses what is known to be something else, by its name.
fn check_format(fields: &[&str]) -> Result<(), TokenError> {
    if is_cuobject(fields) {
        return Err(TokenError::CuObject);
    }
    // A text that is too short for a base and a length may begin with its format.
    let format = *fields.get(2).unwrap_or(&fields[0]);
    let is_of = |family: &str| {
        let version = format.strip_prefix(family);
        version.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let found = || format.chars().take(16).collect();
    if format == FORMAT {
        Ok(())
    } else if is_of("uet") {
        Err(TokenError::Uet { found: found() })
    } else if is_of("ofi") {
        Err(TokenError::Version { found: found() })
    } else if fields.len() > 2 {
        Err(TokenError::Format { found: found() })
    } else {
        let found = fields.len();
        Err(TokenError::Fields { found })
    }
}

fn is_cuobject(fields: &[&str]) -> bool {
    let fits = |(field, len): (&&str, usize)| {
        field.len() == len && field.bytes().all(|c| c.is_ascii_hexdigit())
    };
    fields.len() == CUOBJECT.len() && fields.iter().zip(CUOBJECT).all(fits)
}

fn check_provider(provider: &str) -> Result<(), TokenError> {
    let field = TokenField::Provider;
    if provider.is_empty() {
        return Err(TokenError::Missing { field });
    }
    let bad = |&(_, c): &(usize, char)| !c.is_ascii_graphic() || c == ':';
    match provider.char_indices().find(bad) {
        Some((at, found)) => Err(TokenError::Character { field, at, found }),
        None => Ok(()),
    }
}

fn check_name(len: usize) -> Result<(), TokenError> {
    match len {
        0 => Err(TokenError::Missing {
            field: TokenField::Name,
        }),
        1..=RdmaToken::NAME_MAX => Ok(()),
        _ => Err(TokenError::NameTooLong { len }),
    }
}

/// Only digits, which `u64::from_str_radix` does not ask for: it takes a sign, too.
fn check_digits(field: TokenField, text: &str) -> Result<(), TokenError> {
    if text.is_empty() {
        return Err(TokenError::Missing { field });
    }
    match text.char_indices().find(|(_, c)| !c.is_ascii_hexdigit()) {
        Some((at, found)) => Err(TokenError::Character { field, at, found }),
        None => Ok(()),
    }
}

fn number(field: TokenField, text: &str) -> Result<u64, TokenError> {
    check_digits(field, text)?;
    let found = text.len();
    // So many digits and no others always make a number.
    u64::from_str_radix(text, 16)
        .ok()
        .filter(|_| found <= DIGITS)
        .ok_or(TokenError::TooManyDigits { field, found })
}

fn bytes(text: &str) -> Result<Vec<u8>, TokenError> {
    check_digits(TokenField::Name, text)?;
    if !text.len().is_multiple_of(2) {
        let digits = text.len();
        return Err(TokenError::OddName { digits });
    }
    check_name(text.len() / 2)?;
    let digit = |c: u8| char::from(c).to_digit(16).map_or(0, |value| value as u8);
    let pairs = text.as_bytes().chunks_exact(2);
    Ok(pairs
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect())
}

/// Reads a text of a peer's, and checks what is understood of it: it is written in one way, which
/// is read as the same; a provider takes the name, or it is refused; parts lie within it. The first
/// byte chooses the format of addresses.
///
/// # Panics
///
/// When one of these is not so.
#[cfg(any(test, fuzzing))]
pub(crate) fn exercise(bytes: &[u8]) {
    use crate::fabric::exercise_provider_bytes;

    let Some((&format, bytes)) = bytes.split_first() else {
        return;
    };
    let format = u32::from(format % 18);
    exercise_provider_bytes(format, bytes);
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let token = match text.parse::<RdmaToken>() {
        Ok(token) => token,
        Err(error) => return assert!(error.to_string().len() < 300, "{error}"),
    };
    let again = token.to_string();
    assert_eq!(again.len(), token.text_len());
    assert!(again.len() <= text.len(), "{text}");
    assert_eq!(again.parse::<RdmaToken>(), Ok(token.clone()));
    exercise_provider_bytes(format, token.name());
    let last = token.len() - 1;
    let part = token.part(last..token.len());
    // Its address may have more digits, and then it may be too long.
    if let Ok(part) = part {
        assert_eq!((part.base(), part.len()), (token.base() + last, 1));
    }
    assert!(token.part(last..token.len() + 1).is_err());
}

#[cfg(test)]
#[path = "tests/token.rs"]
mod tests;
