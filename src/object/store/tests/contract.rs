//! What every store keeps to, tried on both.

use std::sync::mpsc::channel;
use std::time::Duration;

use super::*;
use crate::buffer::SharedBufferManager;

const LONG: Duration = Duration::from_secs(60);
const PIECE: usize = 4096;

/// A store, and what it needs to stay.
fn stores() -> Vec<(Box<dyn ObjectStore>, Option<tempfile::TempDir>)> {
    let dir = tempfile::tempdir().unwrap();
    let files = FileStore::open(dir.path()).unwrap();
    vec![
        (Box::new(MemoryStore::new()), None),
        (Box::new(files), Some(dir)),
    ]
}

pub(super) fn name(name: &str) -> ObjectName {
    ObjectName::new(name).unwrap()
}

fn pool() -> SharedBufferManager {
    SharedBufferManager::allocate(8, PIECE).unwrap()
}

/// Begins a put, and writes all pieces, the last one first.
pub(super) fn upload(
    store: &dyn ObjectStore,
    object: &str,
    bytes: &[u8],
    condition: &PutCondition,
) -> Result<Box<dyn ObjectUpload>, StoreError> {
    let pool = pool();
    let mut upload = store.begin(&name(object), bytes.len() as u64, condition)?;
    write_pieces(&mut *upload, 0, bytes, &pool);
    Ok(upload)
}

/// Writes these bytes from byte `at` on.
pub(super) fn write(upload: &mut dyn ObjectUpload, at: u64, bytes: &[u8]) {
    write_pieces(upload, at, bytes, &pool());
}

fn write_pieces(upload: &mut dyn ObjectUpload, at: u64, bytes: &[u8], pool: &SharedBufferManager) {
    for (index, piece) in bytes.chunks(PIECE).enumerate().rev() {
        let mut buffer = pool.try_acquire().expect("each comes back");
        buffer[..piece.len()].copy_from_slice(piece);
        let (said, answer) = channel();
        let done = StoreCompletion::new(move |buffer, result| said.send((buffer, result)).unwrap());
        upload.write(
            at + (index * PIECE) as u64,
            buffer.freeze(piece.len()),
            done,
        );
        let (buffer, result) = answer.recv_timeout(LONG).unwrap();
        assert_eq!((buffer.is_some(), result), (true, Ok(piece.len())));
    }
    assert_eq!(pool.free_count(), 8);
}

pub(super) fn put(
    store: &dyn ObjectStore,
    object: &str,
    bytes: &[u8],
    condition: &PutCondition,
) -> Result<ObjectInfo, StoreError> {
    let crc64 = ObjectChecksum::of(ChecksumKind::Crc64Nvme, bytes).value;
    upload(store, object, bytes, condition)?.commit(crc64)
}

/// Reads a range through a buffer of a pool.
pub(super) fn read(object: &dyn StoredObject, at: u64, len: usize) -> Result<Vec<u8>, StoreError> {
    let pool = pool();
    let (said, answer) = channel();
    let done = StoreCompletion::new(move |buffer, result| said.send((buffer, result)).unwrap());
    object.read(at, len, pool.try_acquire().unwrap(), done);
    let (buffer, result) = answer.recv_timeout(LONG).unwrap();
    Ok(buffer.expect("it comes back")[..result?].to_vec())
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn what_was_put_is_read_at_any_range() {
    for (store, _dir) in stores() {
        let content = bytes(3 * PIECE + 5);
        let put = put(&*store, "a/b", &content, &PutCondition::Any).unwrap();
        let sum = ObjectChecksum::of(ChecksumKind::Crc64Nvme, &content);
        assert_eq!(
            put.etag,
            ObjectEtag::of_content(sum.value, content.len() as u64)
        );
        assert_eq!((put.size, put.checksum), (content.len() as u64, Some(sum)));
        assert_eq!(store.head(&name("a/b")).unwrap(), put, "{store:?}");
        let object = store.open(&name("a/b")).unwrap();
        assert_eq!(object.info(), &put);
        assert_eq!(read(&*object, 0, PIECE).unwrap(), content[..PIECE]);
        assert_eq!(read(&*object, 4097, 4000).unwrap(), content[4097..8097]);
        let end = content.len() as u64 - 3;
        assert_eq!(
            read(&*object, end, 3).unwrap(),
            content[content.len() - 3..]
        );
        assert_eq!(
            read(&*object, end, 4).unwrap().len(),
            3,
            "short, and not hidden"
        );
    }
}

#[test]
fn an_empty_object_is_one() {
    for (store, _dir) in stores() {
        let put = put(&*store, "empty", b"", &PutCondition::Absent).unwrap();
        assert_eq!((put.size, put.etag.as_str()), (0, "c-0000000000000000-0"));
        assert_eq!(store.head(&name("empty")).unwrap(), put);
    }
}

#[test]
fn nothing_is_seen_before_the_commit_nor_after_a_drop() {
    for (store, dir) in stores() {
        let query = ListQuery {
            limit: 10,
            ..ListQuery::default()
        };
        let begun = upload(&*store, "d/new", b"some", &PutCondition::Any).unwrap();
        assert_eq!(store.head(&name("d/new")), Err(StoreError::NotFound));
        assert_eq!(store.list(&query).unwrap(), ListPage::default());
        drop(begun);
        assert_eq!(store.list(&query).unwrap(), ListPage::default());
        if let Some(dir) = &dir {
            let left = std::fs::read_dir(dir.path()).unwrap().count();
            assert_eq!(left, 0, "neither a temporary file nor its directory stays");
        }
        let old = put(&*store, "d/new", b"old", &PutCondition::Any).unwrap();
        let reader = store.open(&name("d/new")).unwrap();
        let begun = upload(&*store, "d/new", b"newer", &PutCondition::Any).unwrap();
        assert_eq!(store.head(&name("d/new")).unwrap(), old);
        let crc64 = ObjectChecksum::of(ChecksumKind::Crc64Nvme, b"newer").value;
        let new = begun.commit(crc64).unwrap();
        assert_ne!(new.etag, old.etag);
        assert_eq!(
            read(&*reader, 0, 10).unwrap(),
            b"old",
            "who reads, reads one version"
        );
    }
}

#[test]
fn conditions_hold_at_the_commit() {
    for (store, _dir) in stores() {
        let absent = &PutCondition::Absent;
        let late = upload(&*store, "x", b"late", absent).unwrap();
        let first = put(&*store, "x", b"first", absent).unwrap();
        assert_eq!(late.commit(0).unwrap_err(), StoreError::Exists);
        assert_eq!(
            put(&*store, "x", b"y", absent).unwrap_err(),
            StoreError::Exists
        );
        let matches = PutCondition::Matches(first.etag.clone());
        let late = upload(&*store, "x", b"late", &matches).unwrap();
        let second = put(&*store, "x", b"second", &matches).unwrap();
        let found = Some(second.etag.clone());
        let mismatch = StoreError::EtagMismatch { found };
        assert_eq!(late.commit(0).unwrap_err(), mismatch);
        assert_eq!(store.delete(&name("x"), Some(&first.etag)), Err(mismatch));
        assert_eq!(store.head(&name("x")).unwrap(), second);
        store.delete(&name("x"), Some(&second.etag)).unwrap();
        assert_eq!(store.delete(&name("x"), None), Err(StoreError::NotFound));
        let none = StoreError::EtagMismatch { found: None };
        assert_eq!(put(&*store, "x", b"third", &matches).unwrap_err(), none);
    }
}

#[test]
fn lists_are_sorted_by_bytes_and_come_in_pages() {
    let names = [
        "a", "a!x", "b/c", "b/c.d", "b/d/e", "b.x", "b0", "c/ö", "c/z",
    ];
    for (store, _dir) in stores() {
        for object in names {
            put(&*store, object, object.as_bytes(), &PutCondition::Any).unwrap();
        }
        let mut sorted = names;
        sorted.sort_unstable();
        for prefix in ["", "b", "b/", "b/c", "b/d/", "c/ö", "zz", "..", "a"] {
            for limit in [1, 2, 100] {
                let expected: Vec<_> = sorted
                    .iter()
                    .copied()
                    .filter(|name| name.starts_with(prefix))
                    .collect();
                assert_eq!(
                    all_pages(&*store, prefix, limit),
                    expected,
                    "{prefix:?} {store:?}"
                );
            }
        }
        let none = store.list(&ListQuery::default()).unwrap();
        assert_eq!(none, ListPage::default(), "a limit of 0");
    }
}

fn all_pages(store: &dyn ObjectStore, prefix: &str, limit: usize) -> Vec<String> {
    let mut query = ListQuery {
        prefix: prefix.into(),
        start_after: String::new(),
        limit,
    };
    let mut all = Vec::new();
    loop {
        let page = store.list(&query).unwrap();
        assert!(page.objects.len() <= limit);
        for object in &page.objects {
            let info = store.head(&object.name).unwrap();
            assert_eq!((object.size, &object.etag), (info.size, &info.etag));
            all.push(object.name.as_str().to_owned());
        }
        let Some(last) = all.last().filter(|_| page.more) else {
            return all;
        };
        query.start_after.clone_from(last);
    }
}

#[test]
fn names_that_are_none() {
    let cases = [
        ("", ObjectNameError::Empty),
        ("/a", ObjectNameError::Part { at: 0 }),
        ("a//b", ObjectNameError::Part { at: 2 }),
        ("a/", ObjectNameError::Part { at: 2 }),
        ("a/../b", ObjectNameError::Part { at: 2 }),
        ("..", ObjectNameError::Part { at: 0 }),
        ("a/.", ObjectNameError::Part { at: 2 }),
        ("a\0", ObjectNameError::Nul { at: 1 }),
    ];
    for (text, error) in cases {
        assert_eq!(ObjectName::new(text), Err(error), "{text:?}");
    }
    assert!(ObjectName::new(&"n".repeat(1024)).is_ok());
    let long = ObjectNameError::TooLong { len: 1025 };
    assert_eq!(ObjectName::new(&"n".repeat(1025)), Err(long));
    let no_text = ObjectName::from_bytes(b"ab\xff");
    assert_eq!(no_text, Err(ObjectNameError::Encoding { at: 2 }));
    for etag in ["", "a b", "a\"", "é", &"x".repeat(129)] {
        assert!(ObjectEtag::new(etag).is_err(), "{etag:?}");
    }
}

#[test]
fn memory_is_bounded_and_given_back() {
    let store = MemoryStore::with_room(100);
    // Who has sent nothing takes nothing.
    let mut other = store.begin(&name("b"), 41, &PutCondition::Any).unwrap();
    let begun = upload(&store, "a", &[1; 60], &PutCondition::Any).unwrap();
    assert_eq!(store.used_bytes(), 60);
    let pool = pool();
    let piece = pool.try_acquire().expect("a buffer").freeze(41);
    let (said, answer) = channel();
    let done = StoreCompletion::new(move |_, result| said.send(result).unwrap());
    other.write(0, piece, done);
    let written = answer.recv_timeout(LONG).unwrap();
    assert_eq!(written, Err(StoreError::NoSpace));
    other.commit(0).expect_err("nothing of it came");
    assert_eq!(store.used_bytes(), 60);
    let refused = store.begin(&name("b"), 41, &PutCondition::Any).unwrap_err();
    assert_eq!(
        refused,
        StoreError::TooLarge {
            size: 41,
            limit: 40
        }
    );
    drop(begun);
    assert_eq!(store.used_bytes(), 0);
    store
        .insert(&name("a"), &[1; 60], &PutCondition::Any)
        .unwrap();
    store
        .insert(&name("a"), &[2; 10], &PutCondition::Any)
        .unwrap();
    assert_eq!(store.used_bytes(), 10);
    store.delete(&name("a"), None).unwrap();
    assert_eq!(store.used_bytes(), 0);
}

#[test]
fn a_completion_that_is_dropped_is_an_answer() {
    let (said, answer) = channel();
    let done: StoreCompletion<Buffer> =
        StoreCompletion::new(move |buffer, result| said.send((buffer.is_none(), result)).unwrap());
    drop(done);
    assert_eq!(answer.recv().unwrap(), (true, Err(StoreError::Lost)));
}
