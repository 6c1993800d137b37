//! `TakeUp`: uploads that go on where they were cut.

use std::fmt;
use std::str::FromStr;

use super::{ObjectName, ObjectUpload, PutCondition};
use crate::random::random_u64;

/// The name of an upload that may be cut and taken up again: 16 random bytes, which its client
/// chose. Whoever knows it can go on with the upload, so it is shown nowhere but by
/// [`to_string`](ToString::to_string), as 32 hexadecimal digits.
///
/// ```
/// use fabricast::object::UploadKey;
/// let key = UploadKey::random();
/// assert_eq!(key.to_string().parse::<UploadKey>(), Ok(key));
/// assert!("12".parse::<UploadKey>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UploadKey(u128);

impl UploadKey {
    /// A new one, from the system's random source.
    pub fn random() -> Self {
        Self(u128::from(random_u64()) << 64 | u128::from(random_u64()))
    }
}

impl fmt::Display for UploadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for UploadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UploadKey(..)")
    }
}

/// A text that is no [`UploadKey`].
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the key of an upload has 32 hexadecimal digits, in lower case")]
pub struct UploadKeyError;

fabricast_process::debug_as_words!(UploadKeyError);

impl FromStr for UploadKey {
    type Err = UploadKeyError;

    fn from_str(text: &str) -> Result<Self, UploadKeyError> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        match text.len() == 32 && text.bytes().all(is_digit) {
            true => u128::from_str_radix(text, 16)
                .map(Self)
                .map_err(|_| UploadKeyError),
            false => Err(UploadKeyError),
        }
    }
}

/// An upload that is to be begun, or gone on with where it was cut.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct TakeUp<'a> {
    /// What its client calls it.
    pub key: &'a UploadKey,
    /// The object that it becomes.
    pub name: &'a ObjectName,
    /// Bytes of the whole object.
    pub size: u64,
    /// What has to hold when it is committed.
    pub condition: &'a PutCondition,
    /// What there is under the key goes; the upload begins at byte 0.
    pub anew: bool,
    /// Whose it is: the host that asks, by which limits are shared.
    pub owner: &'a str,
}

impl<'a> TakeUp<'a> {
    pub(crate) fn new(
        (key, name, size): (&'a UploadKey, &'a ObjectName, u64),
        condition: &'a PutCondition,
        anew: bool,
        owner: &'a str,
    ) -> Self {
        Self {
            key,
            name,
            size,
            condition,
            anew,
            owner,
        }
    }
}

/// An upload that was taken up.
#[derive(Debug)]
pub struct TakenUp {
    /// Where the rest goes.
    pub upload: Box<dyn ObjectUpload>,
    /// Bytes of the object that are there, from the first on.
    pub there: u64,
    /// The CRC-64/NVME of those.
    pub crc64: u64,
}

impl TakenUp {
    /// One that has nothing yet.
    pub fn begun(upload: Box<dyn ObjectUpload>) -> Self {
        Self {
            upload,
            there: 0,
            crc64: 0,
        }
    }
}
