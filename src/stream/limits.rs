//! `Limits`: what a receiver takes, at most.

use super::error::StreamError;
use super::manifest::ManifestLimits;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

/// What a receiver takes, at most. All of it counts before any memory is taken or any file is made.
///
/// | setting | unit | default | range |
/// |---|---|---|---|
/// | `bytes` | bytes of a stream | 2^60 | 0 and more |
/// | `entries` | files and directories, with those on the way | 1,048,576 | 0 and more |
/// | `name_bytes` | bytes of all names of a stream | 64 MiB | 0 and more |
/// | `blocks` | blocks of a stream; each takes 4.5 bytes of memory | 2^28 | 1 to 2^36 |
/// | `block_bytes` | bytes of a block | 64 MiB | 1 to 1 GiB |
/// | `streams` | streams at a time | 16 | 1 to 4,096 |
/// | `memory` | bytes of all streams' state, besides the buffers | 256 MiB | 64 KiB and more |
/// | `resent` | blocks of a stream that may come damaged or twice | 1,048,576 | 0 and more |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of a stream.
    pub bytes: u64,
    /// Files and directories of a stream, those included that have no entry of their own and are on
    /// the way to others.
    pub entries: u64,
    /// Bytes of all names of a stream.
    pub name_bytes: u64,
    /// Blocks of a stream.
    pub blocks: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Streams at a time, over all connections.
    pub streams: u32,
    /// Bytes that the state of all streams takes: their manifests, and what is known of their
    /// blocks, and the manifests of events that nobody has fetched; those make room for a stream
    /// that needs it.
    pub memory: u64,
    /// Blocks of a stream that may come damaged or twice, before it is given up.
    pub resent: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: TIB << 20,
            entries: MIB,
            name_bytes: 64 * MIB,
            blocks: 1 << 28,
            block_bytes: 64 * MIB as u32,
            streams: 16,
            memory: 256 * MIB,
            resent: MIB,
        }
    }
}

/// Bytes that an entry of a manifest takes in memory, without its name, with its place in the plan,
/// where lists have grown to twice what they need.
const ENTRY_MEMORY: u64 = 128;

/// Bits that a block takes: two sets, of those that are there and those that are being written; and
/// while a sink looks at what it has, two more and the CRC32C that the journal has for it.
const BLOCK_BITS: u64 = 36;

impl Limits {
    /// Sets the bytes that a stream may have.
    pub fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// Sets how many files and directories a stream may have.
    pub fn entries(mut self, entries: u64) -> Self {
        self.entries = entries;
        self
    }

    /// Sets how many bytes all names of a stream may have.
    pub fn name_bytes(mut self, bytes: u64) -> Self {
        self.name_bytes = bytes;
        self
    }

    /// Sets how many blocks a stream may have.
    pub fn blocks(mut self, blocks: u64) -> Self {
        self.blocks = blocks;
        self
    }

    /// Sets how many bytes a block may have.
    pub fn block_bytes(mut self, bytes: u32) -> Self {
        self.block_bytes = bytes;
        self
    }

    /// Sets how many streams there may be at a time.
    pub fn streams(mut self, streams: u32) -> Self {
        self.streams = streams;
        self
    }

    /// Sets how many bytes of memory the state of all streams may take.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// Sets how many blocks of a stream may come damaged or twice.
    pub fn resent(mut self, blocks: u64) -> Self {
        self.resent = blocks;
        self
    }

    /// # Errors
    ///
    /// [`StreamError::Setting`], for the first that is out of its range.
    pub fn check(&self) -> Result<(), StreamError> {
        let check = |name, value, least, most, range| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(StreamError::Setting { name, value, range }),
        };
        check("blocks", self.blocks, 1, 1 << 36, "1 to 2^36")?;
        check(
            "block_bytes",
            self.block_bytes.into(),
            1,
            1 << 30,
            "1 to 1 GiB",
        )?;
        check("streams", self.streams.into(), 1, 4096, "1 to 4096")?;
        check("memory", self.memory, 64 * KIB, u64::MAX, "64 KiB and more")
    }

    pub(crate) fn of_manifest(&self, links: bool, sparse: bool) -> ManifestLimits {
        ManifestLimits {
            entries: self.entries,
            name_bytes: self.name_bytes,
            bytes: self.bytes,
            links,
            sparse,
        }
    }

    /// Bytes of memory that the state of a stream takes, beside its buffers: what was announced,
    /// not what came. With BLAKE3 there is more.
    pub fn memory_of(entries: u64, manifest_bytes: u64, blocks: u64) -> u64 {
        let entries = entries.saturating_mul(ENTRY_MEMORY);
        let sets = u64::try_from((u128::from(blocks) * u128::from(BLOCK_BITS)).div_ceil(8))
            .unwrap_or(u64::MAX);
        let names = manifest_bytes.saturating_mul(2);
        entries.saturating_add(names).saturating_add(sets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_in_range_and_others_are_named() {
        assert!(Limits::default().check().is_ok());
        for (limits, name) in [
            (Limits::default().blocks(0), "blocks"),
            (Limits::default().blocks(1 << 37), "blocks"),
            (Limits::default().block_bytes(0), "block_bytes"),
            (Limits::default().streams(0), "streams"),
            (Limits::default().memory(1), "memory"),
        ] {
            match limits.check() {
                Err(StreamError::Setting { name: found, .. }) => assert_eq!(found, name),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(Limits::memory_of(u64::MAX, u64::MAX, u64::MAX), u64::MAX);
    }
}

#[cfg(all(test, not(loom)))]
mod documented {
    use super::*;
    use crate::endpoint::testing::documented_settings::{Setting, compare};

    #[test]
    fn the_table_of_settings_is_what_the_code_does() {
        let settings: &[Setting<Limits>] = &[
            Setting {
                name: "bytes",
                get: |c| c.bytes.into(),
                set: |c, v| c.bytes(v.number()),
            },
            Setting {
                name: "entries",
                get: |c| c.entries.into(),
                set: |c, v| c.entries(v.number()),
            },
            Setting {
                name: "name_bytes",
                get: |c| c.name_bytes.into(),
                set: |c, v| c.name_bytes(v.number()),
            },
            Setting {
                name: "blocks",
                get: |c| c.blocks.into(),
                set: |c, v| c.blocks(v.number()),
            },
            Setting {
                name: "memory",
                get: |c| c.memory.into(),
                set: |c, v| c.memory(v.number()),
            },
            Setting {
                name: "resent",
                get: |c| c.resent.into(),
                set: |c, v| c.resent(v.number()),
            },
            Setting {
                name: "block_bytes",
                get: |c| c.block_bytes.into(),
                set: |c, v| c.block_bytes(v.count()),
            },
            Setting {
                name: "streams",
                get: |c| c.streams.into(),
                set: |c, v| c.streams(v.count()),
            },
        ];
        compare(include_str!("limits.rs"), "Limits", settings, Limits::check);
    }
}
