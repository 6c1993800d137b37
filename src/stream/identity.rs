//! `StreamIdentity`: which stream it is, so that what a receiver has of it can be told from what it
//! has of another.

use super::manifest::{EntryKind, Manifest};
use super::wire::StreamIdentity;

/// Separate the hashes from one another, and from any other use of the same bytes.
const KEY: &str = "fabricast 2026-11-21 streams, key of an identity, version 1";
const STAMP: &str = "fabricast 2026-11-21 streams, stamp of an identity, version 1";
const FINGERPRINT: &str = "fabricast 2026-11-21 streams, fingerprint of a manifest, version 1";

impl StreamIdentity {
    /// The identity of a stream of these files in blocks of this size. `source` is what else tells
    /// one state of the source from another: inode numbers, for example.
    ///
    /// The key depends on names, kinds and the size of the blocks; the stamp on sizes, on when
    /// files were changed, and on `source`. Permissions are in neither.
    pub fn of(manifest: &Manifest, block_bytes: u32, source: &[u8]) -> Self {
        let mut key = blake3::Hasher::new_derive_key(KEY);
        let mut stamp = blake3::Hasher::new_derive_key(STAMP);
        key.update(&block_bytes.to_le_bytes());
        for entry in manifest.iter() {
            let name = entry.name.as_bytes();
            key.update(&[kind(entry.kind)]);
            key.update(&(name.len() as u64).to_le_bytes());
            key.update(name);
            stamp.update(&entry.size.to_le_bytes());
            stamp.update(&entry.modified.seconds.to_le_bytes());
            stamp.update(&entry.modified.nanoseconds.to_le_bytes());
        }
        stamp.update(source);
        Self {
            key: first_half(&key),
            stamp: first_half(&stamp),
        }
    }
}

impl Manifest {
    /// A hash of everything that the content is made of: names, kinds and sizes. What a receiver
    /// keeps is of use only where this is the same, whatever identity a sender claims.
    pub(crate) fn fingerprint(&self) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_derive_key(FINGERPRINT);
        for entry in self.iter() {
            let name = entry.name.as_bytes();
            hasher.update(&[kind(entry.kind)]);
            hasher.update(&entry.size.to_le_bytes());
            hasher.update(&(name.len() as u64).to_le_bytes());
            hasher.update(name);
        }
        first_half(&hasher)
    }
}

fn kind(kind: EntryKind) -> u8 {
    match kind {
        EntryKind::File => 1,
        EntryKind::Directory => 2,
        EntryKind::Link => 3,
    }
}

fn first_half(hasher: &blake3::Hasher) -> [u8; 16] {
    let mut half = [0; 16];
    hasher.finalize_xof().fill(&mut half);
    half
}

#[cfg(test)]
mod tests {
    use super::super::manifest::{Entry, Modified};
    use super::super::name::RelativeName;
    use super::*;

    fn manifest(name: &str, kind: EntryKind, size: u64, seconds: i64, mode: u16) -> Manifest {
        let entry = |name, size| Entry {
            name: RelativeName::new(name).unwrap(),
            kind,
            mode,
            size,
            modified: Modified {
                seconds,
                nanoseconds: 5,
            },
            sparse: false,
        };
        Manifest::new([entry(name.as_bytes(), size), entry(b"zz", 0)]).unwrap()
    }

    #[test]
    fn what_is_asked_where_and_what_are_told_apart() {
        use EntryKind::{Directory, File};
        let base = manifest("a", File, 10, 1, 0o644);
        let of = |manifest: &Manifest| StreamIdentity::of(manifest, 4096, b"inode 7");
        let first = of(&base);
        assert_eq!(of(&manifest("a", File, 10, 1, 0o600)), first);
        // Elsewhere.
        assert_ne!(of(&manifest("b", File, 10, 1, 0o644)).key, first.key);
        assert_ne!(StreamIdentity::of(&base, 8192, b"inode 7").key, first.key);
        let (file, directory) = (
            manifest("a", File, 0, 1, 0),
            manifest("a", Directory, 0, 1, 0),
        );
        assert_ne!(of(&file).key, of(&directory).key);
        // Something else.
        let inode = StreamIdentity::of(&base, 4096, b"inode 8");
        for other in [
            of(&manifest("a", File, 11, 1, 0o644)),
            of(&manifest("a", File, 10, 2, 0o644)),
            inode,
        ] {
            assert_eq!(other.key, first.key);
            assert_ne!(other.stamp, first.stamp);
        }
        let print = base.fingerprint();
        assert_eq!(manifest("a", File, 10, 9, 0o600).fingerprint(), print);
        assert_ne!(manifest("a", File, 11, 1, 0o644).fingerprint(), print);
        assert_ne!(manifest("b", File, 10, 1, 0o644).fingerprint(), print);
        assert_ne!(file.fingerprint(), directory.fingerprint());
    }
}
