//! Random calls, beside the same calls of a store in memory.

use std::ops::Range;

use fabricast::storage::IoOptions;
use fabricast_zarr::{FileZarrStore, ZarrStoreOptions};
use proptest::prelude::*;
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::store::MemoryStore;
use zarrs_storage::{
    AtomicRenameStorageTraits, Bytes, ListableStorageTraits, ReadableStorageTraits, StorageError,
    WritableStorageTraits,
};

use super::{key, prefix};

const KEYS: [&str; 9] = [
    "zarr.json",
    "a",
    "a/zarr.json",
    "a/c",
    "a/c/0",
    "a/c/1",
    "a/c/1/2",
    "b/c/0",
    "...",
];
const PREFIXES: [&str; 9] = [
    "",
    "a/",
    "a/c/",
    "a/c/1/",
    "b/",
    "b/c/",
    "zarr.json/",
    "none/",
    "none/none/",
];

#[derive(Debug, Clone)]
enum Call {
    Set(usize, Vec<u8>),
    SetParts(usize, Vec<(u64, Vec<u8>)>),
    WriteFrom(usize, Vec<u8>, Range<usize>),
    Rename(usize, usize),
    Erase(usize),
    EraseMany(Vec<usize>),
    ErasePrefix(usize),
    Ranges(usize, Vec<(bool, u64, u64)>),
    ReadInto(usize, u64, usize),
}

fn calls() -> impl Strategy<Value = Call> {
    let key = || 0..KEYS.len();
    let bytes = |most| prop::collection::vec(any::<u8>(), 0..most);
    // A part without bytes makes the store in memory longer, and a file not.
    let part = (0..6000u64, prop::collection::vec(any::<u8>(), 1..3000));
    prop_oneof![
        6 => (key(), bytes(9000)).prop_map(|(key, bytes)| Call::Set(key, bytes)),
        4 => (key(), prop::collection::vec(part, 0..4))
            .prop_map(|(key, parts)| Call::SetParts(key, parts)),
        2 => (key(), bytes(5000), 0..5000usize, 0..5000usize).prop_map(|(key, bytes, a, b)| {
            let (a, b) = (a.min(bytes.len()), b.min(bytes.len()));
            Call::WriteFrom(key, bytes, a.min(b)..a.max(b))
        }),
        2 => (key(), key()).prop_map(|(from, to)| Call::Rename(from, to)),
        3 => key().prop_map(Call::Erase),
        1 => prop::collection::vec(key(), 0..3).prop_map(Call::EraseMany),
        1 => (0..PREFIXES.len()).prop_map(Call::ErasePrefix),
        3 => (key(), prop::collection::vec((any::<bool>(), 0..9000u64, 0..9000u64), 0..70))
            .prop_map(|(key, ranges)| Call::Ranges(key, ranges)),
        2 => (key(), 0..9000u64, 0..100usize)
            .prop_map(|(key, from, at)| Call::ReadInto(key, from, at)),
    ]
}

/// Whether a key has no place in a directory: it lies below another, or another below it.
fn is_in_the_way(memory: &MemoryStore, new: &str) -> bool {
    memory.list().unwrap().iter().any(|there| {
        let there = there.as_str();
        there
            .strip_prefix(new)
            .is_some_and(|rest| rest.starts_with('/'))
            || new
                .strip_prefix(there)
                .is_some_and(|rest| rest.starts_with('/'))
    })
}

/// A call that makes a value where there may be no room for it.
fn made(
    memory: &MemoryStore,
    name: &str,
    by_store: Result<(), StorageError>,
    in_memory: impl FnOnce(),
) {
    if is_in_the_way(memory, name) {
        assert!(
            matches!(by_store, Err(StorageError::Unsupported(_))),
            "{by_store:?}"
        );
    } else {
        by_store.unwrap();
        in_memory();
    }
}

fn call(store: &FileZarrStore, memory: &MemoryStore, call: Call) {
    match call {
        Call::Set(name, bytes) => {
            let name = KEYS[name];
            let bytes = Bytes::from(bytes);
            made(memory, name, store.set(&key(name), bytes.clone()), || {
                memory.set(&key(name), bytes).unwrap();
            });
        }
        Call::SetParts(name, parts) => {
            let name = KEYS[name];
            let parts: Vec<(u64, Bytes)> = parts
                .into_iter()
                .map(|(at, part)| (at, part.into()))
                .collect();
            let given = Box::new(parts.clone().into_iter());
            let by_store = store.set_partial_many(&key(name), given);
            if parts.is_empty() {
                return by_store.unwrap();
            }
            made(memory, name, by_store, || {
                memory
                    .set_partial_many(&key(name), Box::new(parts.into_iter()))
                    .unwrap();
            });
        }
        Call::WriteFrom(name, bytes, range) => {
            let name = KEYS[name];
            let by_store = store.write_from(&key(name), &bytes, range.clone());
            let by_store = by_store.map(|moved| assert_eq!(moved.bytes, range.len()));
            made(memory, name, by_store, || {
                let bytes = Bytes::copy_from_slice(&bytes[range]);
                memory.set(&key(name), bytes).unwrap();
            });
        }
        Call::Rename(from, to) => rename(store, memory, KEYS[from], KEYS[to]),
        Call::Erase(name) => {
            store.erase(&key(KEYS[name])).unwrap();
            memory.erase(&key(KEYS[name])).unwrap();
        }
        Call::EraseMany(names) => {
            let keys: Vec<_> = names.into_iter().map(|name| key(KEYS[name])).collect();
            store.erase_many(&keys).unwrap();
            memory.erase_many(&keys).unwrap();
        }
        Call::ErasePrefix(name) => {
            store.erase_prefix(&prefix(PREFIXES[name])).unwrap();
            memory.erase_prefix(&prefix(PREFIXES[name])).unwrap();
        }
        Call::Ranges(name, ranges) => read_ranges(store, memory, KEYS[name], &ranges),
        Call::ReadInto(name, from, at) => read_into(store, memory, KEYS[name], from, at),
    }
}

fn rename(store: &FileZarrStore, memory: &MemoryStore, from: &str, to: &str) {
    let by_store = store.rename(&key(from), &key(to));
    let Some(value) = memory.get(&key(from)).unwrap() else {
        return assert!(by_store.is_err());
    };
    // The source is a key like any other while the destination is made.
    if is_in_the_way(memory, to) {
        return assert!(by_store.is_err(), "{from} {to}");
    }
    by_store.unwrap();
    memory.erase(&key(from)).unwrap();
    memory.set(&key(to), value).unwrap();
}

fn read_ranges(store: &FileZarrStore, memory: &MemoryStore, name: &str, of: &[(bool, u64, u64)]) {
    let ranges = of.iter().map(|&(suffix, a, b)| match suffix {
        true => ByteRange::Suffix(a),
        false => ByteRange::FromStart(a, (b % 3 > 0).then_some(b)),
    });
    let ranges: Vec<_> = ranges.collect();
    let given = Box::new(ranges.clone().into_iter());
    let found = store.get_partial_many(&key(name), given).unwrap();
    let Some(value) = memory.get(&key(name)).unwrap() else {
        return assert!(found.is_none());
    };
    let found: Vec<_> = found.unwrap().collect();
    assert_eq!(found.len(), ranges.len());
    for (range, found) in ranges.into_iter().zip(found) {
        // The store in memory panics where it is beyond the end.
        let len = value.len() as u64;
        let inside = match range {
            ByteRange::FromStart(start, None) => (start <= len).then_some(start..len),
            ByteRange::FromStart(start, Some(n)) => (start + n <= len).then_some(start..start + n),
            ByteRange::Suffix(n) => (n <= len).then(|| len - n..len),
        };
        let alone = store.get_partial(&key(name), range);
        match inside {
            Some(inside) => {
                let expected = &value[inside.start as usize..inside.end as usize];
                assert_eq!(found.unwrap(), expected);
                assert_eq!(alone.unwrap().unwrap(), expected);
            }
            None => {
                for wrong in [found.map(Some), alone] {
                    let error = wrong.unwrap_err();
                    assert!(
                        matches!(error, StorageError::InvalidByteRangeError(_)),
                        "{error:?}"
                    );
                }
            }
        }
    }
}

fn read_into(store: &FileZarrStore, memory: &MemoryStore, name: &str, from: u64, at: usize) {
    let mut buffer = vec![0xa5; 9000];
    let read = store.read_into(&key(name), (from..).into(), &mut buffer, at);
    let Some(value) = memory.get(&key(name)).unwrap() else {
        return assert!(read.unwrap().is_none());
    };
    let begin = from as usize;
    let fits = begin <= value.len() && at + value.len() - begin <= buffer.len();
    if !fits {
        return assert!(read.is_err());
    }
    let len = value.len() - begin;
    assert_eq!(read.unwrap().unwrap().bytes, len);
    assert_eq!(buffer[at..at + len], value[begin..]);
    assert!(
        buffer[..at]
            .iter()
            .chain(&buffer[at + len..])
            .all(|byte| *byte == 0xa5)
    );
    let begun = store
        .pread_into(&key(name), (from..).into(), buffer, at)
        .unwrap();
    let (buffer, moved) = begun.wait().into_result().unwrap();
    assert_eq!((moved.bytes, &buffer[at..at + len]), (len, &value[begin..]));
}

fn assert_same(store: &FileZarrStore, memory: &MemoryStore) {
    assert_eq!(store.list().unwrap(), memory.list().unwrap());
    assert_eq!(store.size().unwrap(), memory.size().unwrap());
    for name in PREFIXES {
        let prefix = prefix(name);
        assert_eq!(
            store.list_prefix(&prefix).unwrap(),
            memory.list_prefix(&prefix).unwrap()
        );
        assert_eq!(
            store.list_dir(&prefix).unwrap(),
            memory.list_dir(&prefix).unwrap()
        );
        assert_eq!(
            store.size_prefix(&prefix).unwrap(),
            memory.size_prefix(&prefix).unwrap()
        );
    }
    for name in KEYS {
        let key = key(name);
        assert_eq!(store.get(&key).unwrap(), memory.get(&key).unwrap());
        assert_eq!(
            store.size_key(&key).unwrap(),
            memory.size_key(&key).unwrap()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(48)
    })]

    #[test]
    fn random_calls_do_what_they_do_in_memory(calls in prop::collection::vec(calls(), 1..40)) {
        let directory = tempfile::tempdir().unwrap();
        // Values of a few pages are cut in tasks, too.
        let io = IoOptions { task_size: Some(4096), ..IoOptions::default() };
        let store = ZarrStoreOptions::new().io(io).open(directory.path()).unwrap();
        let memory = MemoryStore::new();
        for one in calls {
            call(&store, &memory, one);
            assert_same(&store, &memory);
        }
    }
}
