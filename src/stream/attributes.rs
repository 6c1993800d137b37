//! `AttributeList`: the extended attributes of the files and directories of a stream, as they go
//! behind its manifest.
//!
//! They are in the order of their entries, and of one entry in that of their names: so a reader of
//! hostile bytes finds doubled ones by looking at the one before.

use std::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::manifest::ManifestError;

/// One extended attribute of a file or a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// Its name with its namespace, 1 to 255 bytes: `user.` and something, or that of an access
    /// control list (`system.posix_acl_access`, `system.posix_acl_default`).
    pub name: &'a [u8],
    /// Up to 64 KiB.
    pub value: &'a [u8],
}

/// The longest name of an attribute, in bytes: the kernel's limit.
const NAME_MAX: usize = 255;
/// The longest value of an attribute, in bytes: the kernel's limit.
pub(crate) const VALUE_MAX: usize = 65_536;
/// Bytes of all attributes of a stream, as they are encoded, at most.
pub(crate) const ATTRIBUTE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of memory that a list takes for each encoded byte, where its parts have grown to twice
/// what they need.
pub(crate) const ATTRIBUTE_MEMORY: u64 = 3;

const ACCESS_LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// Whether attributes of this name are sent. Those of `security.` and `trusted.` are between a
/// file and the kernel of one machine: capabilities, labels, what a file system keeps.
pub(crate) fn is_sent(name: &[u8]) -> bool {
    let of_user = name.strip_prefix(b"user.");
    let is_name = name.len() <= NAME_MAX && !name.contains(&0);
    is_name && (of_user.is_some_and(|rest| !rest.is_empty()) || ACCESS_LISTS.contains(&name))
}

/// An encoded attribute, without its name and its value, which follow.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct AttributeWire {
    entry: U64,
    value_len: U32,
    name_len: U16,
    reserved: U16,
}

/// Where an attribute lies. There may be millions.
#[derive(Clone, Copy, PartialEq, Eq)]
struct AttributePlace {
    entry: u32,
    begin: u32,
}

/// The attributes of a stream.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct AttributeList {
    encoded: Vec<u8>,
    /// Those that are whole, in order.
    places: Vec<AttributePlace>,
    /// Bytes of those.
    parsed: usize,
}

impl AttributeList {
    /// Puts one behind the others, if that is where it belongs.
    pub(crate) fn push(
        &mut self,
        entry: u64,
        attribute: Attribute<'_>,
    ) -> Result<(), ManifestError> {
        let Attribute { name, value } = attribute;
        if !is_sent(name) || value.len() > VALUE_MAX {
            return Err(wrong(entry, LENGTHS));
        }
        let wire = AttributeWire {
            entry: entry.into(),
            value_len: (value.len() as u32).into(),
            name_len: (name.len() as u16).into(),
            reserved: U16::ZERO,
        };
        self.encoded.extend_from_slice(wire.as_bytes());
        self.encoded.extend_from_slice(name);
        self.feed(value)
    }

    /// Takes what comes next of the encoded list, whatever it is cut into.
    ///
    /// # Errors
    /// [`ManifestError::Attribute`]. The list is of no use afterwards.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<(), ManifestError> {
        self.encoded.extend_from_slice(bytes);
        while let Some((entry, attribute, len)) = parse(&self.encoded[self.parsed..])? {
            if self.last() >= Some((entry, attribute.name)) {
                return Err(wrong(entry, "it is out of order, or there twice"));
            }
            // A manifest has no more entries, nor more bytes of attributes.
            let place = (u32::try_from(entry), u32::try_from(self.parsed));
            let (Ok(entry), Ok(begin)) = place else {
                return Err(wrong(entry, "there can't be such an entry"));
            };
            self.parsed += len;
            self.places.push(AttributePlace { entry, begin });
        }
        Ok(())
    }

    fn last(&self) -> Option<(u64, &[u8])> {
        let place = self.places.last()?;
        Some((place.entry.into(), self.at(place)?.name))
    }

    fn at(&self, place: &AttributePlace) -> Option<Attribute<'_>> {
        let parsed = parse(&self.encoded[place.begin as usize..]);
        parsed.ok().flatten().map(|(_, attribute, _)| attribute)
    }

    /// All of them, as they are encoded.
    pub(crate) fn encoded(&self) -> &[u8] {
        &self.encoded
    }

    /// Whether there is no part of one behind the last.
    pub(crate) fn is_whole(&self) -> bool {
        self.parsed == self.encoded.len()
    }

    /// The numbers of the entries that have some, as often as they have.
    pub(crate) fn entries(&self) -> impl Iterator<Item = u64> {
        self.places.iter().map(|place| place.entry.into())
    }

    /// Those of an entry.
    pub(crate) fn of(&self, entry: u64) -> impl Iterator<Item = Attribute<'_>> {
        let first = self
            .places
            .partition_point(|place| u64::from(place.entry) < entry);
        let behind = self.places[first..].iter();
        let its = behind.take_while(move |place| u64::from(place.entry) == entry);
        its.filter_map(|place| self.at(place))
    }

    /// Bytes of memory that it takes.
    pub(crate) fn memory(&self) -> usize {
        self.encoded.capacity() + self.places.capacity() * size_of::<AttributePlace>()
    }
}

impl fmt::Debug for AttributeList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttributeList")
            .field("attributes", &self.places.len())
            .field("bytes", &self.encoded.len())
            .finish_non_exhaustive()
    }
}

const LENGTHS: &str = "its name is none that is taken (user.NAME, or that of an access control \
                       list, up to 255 bytes), or its value has more than 64 KiB";

fn wrong(entry: u64, problem: &'static str) -> ManifestError {
    ManifestError::Attribute { entry, problem }
}

/// The attribute at the beginning of `bytes`, with its entry and its length; `None`: it is not all
/// there yet.
fn parse(bytes: &[u8]) -> Result<Option<(u64, Attribute<'_>, usize)>, ManifestError> {
    let Ok((wire, rest)) = AttributeWire::ref_from_prefix(bytes) else {
        return Ok(None);
    };
    let entry = wire.entry.get();
    let name_len = usize::from(wire.name_len.get());
    // It has 32 bits.
    let value_len = wire.value_len.get() as usize;
    if wire.reserved.get() != 0 {
        return Err(wrong(entry, "field reserved can't have that value"));
    }
    // Said before its bytes are waited for.
    if !(1..=NAME_MAX).contains(&name_len) || value_len > VALUE_MAX {
        return Err(wrong(entry, LENGTHS));
    }
    let Some(both) = rest.get(..name_len + value_len) else {
        return Ok(None);
    };
    let (name, value) = both.split_at(name_len);
    match is_sent(name) {
        true => {
            let len = size_of::<AttributeWire>() + both.len();
            Ok(Some((entry, Attribute { name, value }, len)))
        }
        false => Err(wrong(entry, LENGTHS)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(entry: u64, name: &[u8], value: &[u8]) -> Vec<u8> {
        let mut bytes = entry.to_le_bytes().to_vec();
        bytes.extend((value.len() as u32).to_le_bytes());
        bytes.extend((name.len() as u16).to_le_bytes());
        bytes.extend([0; 2]);
        [&bytes, name, value].concat()
    }

    #[test]
    fn attributes_have_these_bytes_however_they_are_cut() {
        let mut list = AttributeList::default();
        let all: [(u64, &[u8], &[u8]); 4] = [
            (0, b"system.posix_acl_access", b"\x02"),
            (0, b"user.a", b"value"),
            (0, b"user.b", b""),
            (0x0102, b"user.a", &[7; VALUE_MAX]),
        ];
        let mut bytes = Vec::new();
        for (entry, name, value) in all {
            list.push(entry, Attribute { name, value }).unwrap();
            bytes.extend(encoded(entry, name, value));
        }
        assert!(list.encoded() == bytes);
        let golden = b"\0\0\0\0\0\0\0\0\x05\0\0\0\x06\0\0\0user.avalue";
        assert!(bytes.windows(golden.len()).any(|part| part == golden));
        for len in [1, 7, 100, 5000, bytes.len()] {
            let mut read = AttributeList::default();
            for part in bytes.chunks(len) {
                read.feed(part).unwrap();
            }
            assert!(read.is_whole());
            assert!(read == list, "in parts of {len} bytes");
            let found: Vec<_> = read.of(0).map(|it| (it.name, it.value)).collect();
            assert_eq!(
                found,
                [
                    (all[0].1, all[0].2),
                    (all[1].1, all[1].2),
                    (all[2].1, all[2].2)
                ]
            );
            assert_eq!(read.of(1).count(), 0);
            assert!(read.of(0x0102).eq([Attribute {
                name: b"user.a",
                value: &[7; VALUE_MAX]
            }]));
        }
    }

    #[test]
    fn lies_about_attributes_are_found() {
        let two = |first: (u64, &[u8]), second: (u64, &[u8])| {
            let mut list = AttributeList::default();
            list.feed(&encoded(first.0, first.1, b"1")).unwrap();
            list.feed(&encoded(second.0, second.1, b"2"))
        };
        two((1, b"user.b"), (1, b"user.c")).unwrap();
        two((1, b"user.b"), (2, b"user.a")).unwrap();
        for second in [(1, &b"user.b"[..]), (1, b"user.a"), (0, b"user.c")] {
            two((1, b"user.b"), second).expect_err("out of order, or twice");
        }
        let long = [b"user.", &[b'x'; 251][..]].concat();
        for name in [
            &b""[..],
            b"user.",
            b"user",
            b"user.a\0b",
            b"security.capability",
            b"security.selinux",
            b"trusted.overlay.opaque",
            b"system.posix_acl_accesses",
            &long,
        ] {
            let mut list = AttributeList::default();
            list.feed(&encoded(0, name, b""))
                .expect_err("no name that is taken");
            let refused = list.push(0, Attribute { name, value: b"" });
            refused.expect_err("no name that is sent");
        }
        let far = encoded(1 << 32, b"user.a", b"");
        AttributeList::default()
            .feed(&far)
            .expect_err("no such entry");
        // Judged by what is said of it, before it comes.
        let mut bytes = encoded(0, b"user.a", &[0; VALUE_MAX + 1]);
        bytes.truncate(16);
        AttributeList::default().feed(&bytes).expect_err("too long");
        let mut bytes = encoded(0, b"user.a", b"");
        bytes[14] = 1;
        AttributeList::default().feed(&bytes).expect_err("reserved");
        let mut cut = AttributeList::default();
        cut.feed(&encoded(0, b"user.a", b"value")[..20]).unwrap();
        assert!(!cut.is_whole());
    }
}
