//! `PresharedKey`: what both sides must have, and how each proves that it does.
//!
//! A proof is a keyed BLAKE3 hash over the role of the speaker and all bytes of the two hellos, and
//! so over versions, features, session, connection and both nonces: it is good for this connection
//! only, from this side only, and nothing that was agreed on can have been changed on the way. It
//! protects who may send and receive, not the bytes of the blocks from somebody who can change
//! packets between the two.

use std::fmt;
use std::io::Read;
use std::path::Path;

use super::error::StreamError;
use super::wire::HASH_LEN;

/// The shortest key, in bytes.
pub const KEY_LEN_MIN: usize = 16;
/// The longest key, in bytes.
pub const KEY_LEN_MAX: usize = 4096;

/// Separates this use of the key's bytes from any other.
const CONTEXT: &str = "fabricast 2026-11-21 streams, pre-shared key, version 1";

/// A key that sender and receiver have in common: 16 to 4096 bytes that nobody can guess, best 32
/// random ones.
#[derive(Clone)]
pub struct PresharedKey {
    key: [u8; HASH_LEN],
}

impl PresharedKey {
    /// The key of these bytes, all of which count.
    ///
    /// # Errors
    ///
    /// [`StreamError::Setting`] when they are too few or too many.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, StreamError> {
        if !(KEY_LEN_MIN..=KEY_LEN_MAX).contains(&bytes.len()) {
            return Err(StreamError::Setting {
                name: "key",
                value: bytes.len() as u64,
                range: "16 to 4096 bytes",
            });
        }
        Ok(Self {
            key: blake3::derive_key(CONTEXT, bytes),
        })
    }

    /// The key in a file: all its bytes, a newline at its end included.
    ///
    /// # Errors
    ///
    /// [`StreamError::KeyFile`] when it can't be read, [`StreamError::Setting`] when it is too
    /// short or too long.
    pub fn from_file(path: &Path) -> Result<Self, StreamError> {
        let mut bytes = Vec::new();
        // One byte more than is taken tells that there are more, however many.
        let read = std::fs::File::open(path)
            .and_then(|file| file.take(KEY_LEN_MAX as u64 + 1).read_to_end(&mut bytes));
        match read {
            Ok(_) => Self::from_bytes(&bytes),
            Err(error) => Err(StreamError::KeyFile {
                path: path.into(),
                error: std::sync::Arc::new(error),
            }),
        }
    }

    /// What the side of this role says.
    pub(crate) fn proof(&self, role: Role, transcript: &Transcript) -> [u8; HASH_LEN] {
        *self.hash(role, transcript).as_bytes()
    }

    /// Whether the side of this role has the key. Takes as long for a wrong proof as for the right
    /// one.
    pub(crate) fn is_proven(
        &self,
        role: Role,
        transcript: &Transcript,
        mac: &[u8; HASH_LEN],
    ) -> bool {
        self.hash(role, transcript) == blake3::Hash::from_bytes(*mac)
    }

    fn hash(&self, role: Role, transcript: &Transcript) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&[role as u8]);
        hasher.update(transcript.hasher.finalize().as_bytes());
        hasher.finalize()
    }
}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(..)")
    }
}

/// The side that proves that it has the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Role {
    Sender = 1,
    Receiver = 2,
}

/// The bytes of the two hellos.
#[derive(Debug, Clone, Default)]
pub(crate) struct Transcript {
    hasher: blake3::Hasher,
}

impl Transcript {
    /// Adds a message as it was sent.
    pub(crate) fn add(&mut self, header: &[u8], payload: &[u8]) {
        for part in [header, payload] {
            self.hasher.update(&(part.len() as u64).to_le_bytes());
            self.hasher.update(part);
        }
    }
}

/// A nonce: random, and never the same twice.
///
/// # Errors
///
/// When the system has no random numbers: without them nothing proves anything.
pub(crate) fn nonce() -> Result<[u8; HASH_LEN], StreamError> {
    random_bytes()
}

/// Random bytes that nobody can guess.
///
/// # Errors
///
/// [`StreamError::Random`].
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], StreamError> {
    let mut bytes = [0; N];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        // Up to 256 bytes come in one piece.
        Ok(len) if len == N => Ok(bytes),
        _ => Err(StreamError::Random),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn transcript(header: &[u8], payload: &[u8]) -> Transcript {
        let mut transcript = Transcript::default();
        transcript.add(header, payload);
        transcript
    }

    #[test]
    fn a_proof_is_good_for_one_key_one_role_and_one_conversation() {
        let key = PresharedKey::from_bytes(&[1; 32]).unwrap();
        let said = transcript(b"header", b"payload");
        let mac = key.proof(Role::Sender, &said);
        assert!(key.is_proven(Role::Sender, &said, &mac));
        assert!(!key.is_proven(Role::Receiver, &said, &mac));
        let other = PresharedKey::from_bytes(&[2; 32]).unwrap();
        assert!(!other.is_proven(Role::Sender, &said, &mac));
        for other in [
            transcript(b"headerp", b"ayload"),
            transcript(b"header", b"payloae"),
            transcript(b"", b"headerpayload"),
        ] {
            assert!(!key.is_proven(Role::Sender, &other, &mac));
        }
        for bit in 0..256 {
            let mut wrong = mac;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.is_proven(Role::Sender, &said, &wrong));
        }
    }

    /// So that a later version of the library understands this one.
    #[test]
    fn a_proof_has_these_bytes() {
        let key = PresharedKey::from_bytes(b"sixteen bytes ok").unwrap();
        let mac = key.proof(Role::Receiver, &transcript(b"a", b"bc"));
        let oracle = {
            let key = blake3::derive_key(CONTEXT, b"sixteen bytes ok");
            let hellos = [
                &[1, 0, 0, 0, 0, 0, 0, 0, b'a'][..],
                &[2, 0, 0, 0, 0, 0, 0, 0, b'b', b'c'],
            ];
            let inner = blake3::hash(&hellos.concat());
            blake3::keyed_hash(&key, &[&[2][..], inner.as_bytes()].concat())
        };
        assert_eq!(mac, *oracle.as_bytes());
    }

    #[test]
    fn keys_have_16_to_4096_bytes() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let from_file = |file: &tempfile::NamedTempFile| PresharedKey::from_file(file.path());
        assert!(matches!(
            from_file(&file),
            Err(StreamError::Setting { value: 0, .. })
        ));
        file.write_all(&[7; 16]).unwrap();
        assert_eq!(
            from_file(&file).unwrap().key,
            PresharedKey::from_bytes(&[7; 16]).unwrap().key
        );
        file.write_all(&[7; 5000]).unwrap();
        assert!(matches!(
            from_file(&file),
            Err(StreamError::Setting { value: 4097, .. })
        ));
        assert!(PresharedKey::from_bytes(&[0; 15]).is_err());
        let gone = PresharedKey::from_file(Path::new("/nonexistent/key"));
        assert!(matches!(gone, Err(StreamError::KeyFile { .. })));
        let shown = format!("{:?}", PresharedKey::from_bytes(&[7; 16]).unwrap());
        assert_eq!(shown, "PresharedKey(..)");
    }

    #[test]
    fn nonces_differ() {
        assert_ne!(nonce().unwrap(), nonce().unwrap());
    }
}
