//! `RdmaToken`: names memory of a client, and who reaches it how, as text (`ofi1`).

use std::fmt;

/// Memory of a client that a server may write or read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RdmaToken {
    base: u64,
    len: u64,
    provider: Box<str>,
    name: Box<[u8]>,
    key: u64,
}

/// Why something is no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The window is empty, or wraps around.
    #[error("a token names {len} bytes from {base:#x} on, which is no window")]
    Window {
        /// Its first byte.
        base: u64,
        /// Its length in bytes.
        len: u64,
    },
}

impl RdmaToken {
    /// A token of these fields.
    pub(crate) fn new(
        base: u64,
        len: u64,
        provider: &str,
        name: &[u8],
        key: u64,
    ) -> Result<Self, TokenError> {
        if len == 0 || base.checked_add(len).is_none() {
            return Err(TokenError::Window { base, len });
        }
        Ok(Self {
            base,
            len,
            provider: provider.into(),
            name: name.into(),
            key,
        })
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

    /// The provider of both ends.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// The address of the client's endpoint, in the provider's form.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The key of the registration.
    pub fn key(&self) -> u64 {
        self.key
    }
}

impl fmt::Display for RdmaToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{:x}:ofi1:{}:", self.base, self.len, self.provider)?;
        self.name
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, ":{:x}", self.key)
    }
}
