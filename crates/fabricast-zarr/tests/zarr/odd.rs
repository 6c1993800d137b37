//! Keys, ranges and directories that are not as they should be.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use fabricast_zarr::{FileZarrStore, ZarrStoreOptions};
use zarrs_storage::byte_range::ByteRange;
use zarrs_storage::{
    AtomicRenameStorageTraits, ListableStorageTraits, ReadableStorageTraits, StorageError,
    WritableStorageTraits,
};

use super::{empty, key, names, prefix};

#[test]
fn no_key_leads_out_of_the_directory() {
    let outside = tempfile::tempdir().unwrap();
    let inside = outside.path().join("store");
    let store = FileZarrStore::create(&inside).unwrap();
    std::fs::write(outside.path().join("secret"), b"secret").unwrap();
    let fine = key("fine");
    store.set(&fine, vec![1].into()).unwrap();
    for wrong in [
        "../secret",
        "..",
        "a/../../secret",
        "",
        ".",
        "a\0",
        "../store/fine",
    ] {
        let wrong = key(wrong);
        let refused = |error: StorageError| {
            assert!(
                matches!(error, StorageError::InvalidStoreKey(_)),
                "{wrong}: {error:?}"
            );
        };
        refused(store.get(&wrong).unwrap_err());
        refused(store.size_key(&wrong).unwrap_err());
        refused(store.set(&wrong, vec![2].into()).unwrap_err());
        refused(store.set_partial(&wrong, 0, vec![2].into()).unwrap_err());
        refused(store.erase(&wrong).unwrap_err());
        refused(store.rename(&fine, &wrong).unwrap_err());
        refused(store.rename(&wrong, &fine).unwrap_err());
        refused(store.write_from(&wrong, &vec![1], ..).unwrap_err());
        assert!(
            store
                .pread_into(&wrong, (..).into(), vec![0; 9], 0)
                .is_err()
        );
    }
    for wrong in ["../", "a/../../", "./"] {
        assert!(store.erase_prefix(&prefix(wrong)).is_err());
        assert!(store.list_prefix(&prefix(wrong)).is_err());
        assert!(store.list_dir(&prefix(wrong)).is_err());
        assert!(store.size_prefix(&prefix(wrong)).is_err());
    }
    assert_eq!(names(outside.path()), ["secret", "store"]);
    assert_eq!(names(&inside), ["fine"]);
}

#[test]
fn what_is_no_value_is_not_listed_and_not_found() {
    let (directory, store) = empty();
    let at = |name: &str| directory.path().join(name);
    store.set(&key("a/c"), vec![1, 2].into()).unwrap();
    std::fs::create_dir_all(at("hollow/hollow")).unwrap();
    std::fs::write(
        at("a/.c.0123456789abcdef.tmp"),
        b"of a process that was killed",
    )
    .unwrap();
    std::fs::write(at(".hidden"), b"a key").unwrap();
    let listed = store.list().unwrap();
    assert_eq!(listed, [key(".hidden"), key("a/c")]);
    let root = store.list_dir(&prefix("")).unwrap();
    assert_eq!(
        (root.keys(), root.prefixes()),
        (&vec![key(".hidden")], &vec![prefix("a/")])
    );
    assert_eq!(store.size().unwrap(), 7);
    for none in ["a", "hollow", "hollow/hollow", "a/c/d", "nothing/nothing"] {
        assert_eq!(store.get(&key(none)).unwrap(), None, "{none}");
        assert_eq!(store.size_key(&key(none)).unwrap(), None);
        store.erase(&key(none)).unwrap();
    }
    store.erase_prefix(&prefix("a/c/")).unwrap();
    assert_eq!(
        store.size_key(&key("a/c")).unwrap(),
        Some(2),
        "a value, and no prefix"
    );
    store.erase_prefix(&prefix("a/")).unwrap();
    assert_eq!(names(directory.path()), [".hidden", "hollow"]);
}

#[test]
fn links_are_followed_where_they_are_named_and_not_entered_by_lists() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("value"), b"outside").unwrap();
    let (directory, store) = empty();
    let at = |name: &str| directory.path().join(name);
    symlink(outside.path().join("value"), at("to_file")).unwrap();
    symlink(outside.path(), at("to_directory")).unwrap();
    symlink(".", at("to_itself")).unwrap();
    symlink("nowhere", at("to_nothing")).unwrap();
    assert_eq!(store.list().unwrap(), [key("to_file")]);
    assert_eq!(store.size().unwrap(), 7);
    for named in [
        "to_file",
        "to_directory/value",
        "to_itself/to_itself/to_file",
    ] {
        assert_eq!(
            store.get(&key(named)).unwrap().unwrap(),
            b"outside"[..],
            "{named}"
        );
    }
    assert_eq!(store.get(&key("to_nothing")).unwrap(), None);
    store.set(&key("to_file"), b"mine"[..].into()).unwrap();
    store.erase_prefix(&prefix("to_directory/")).unwrap();
    store.erase_prefix(&prefix("")).unwrap();
    assert!(names(directory.path()).is_empty());
    assert_eq!(
        std::fs::read(outside.path().join("value")).unwrap(),
        b"outside"
    );
}

#[test]
fn keys_below_keys_have_no_place_in_a_directory() {
    let (_directory, store) = empty();
    store.set(&key("a/b"), vec![1].into()).unwrap();
    for wrong in ["a", "a/b/c", "a/b/c/d"] {
        let set = store.set(&key(wrong), vec![2].into());
        let part = store.set_partial(&key(wrong), 5, vec![2].into());
        for error in [set.unwrap_err(), part.unwrap_err()] {
            assert!(matches!(error, StorageError::Unsupported(_)), "{error:?}");
            let text = error.to_string();
            assert!(text.contains(wrong) && text.contains("below"), "{text}");
        }
    }
    assert_eq!(store.list().unwrap(), [key("a/b")]);
    store.erase(&key("a/b")).unwrap();
    store.set(&key("a"), vec![2].into()).unwrap();
}

#[test]
fn a_store_that_is_read_only_refuses_what_writes() {
    let (directory, store) = empty();
    store.set(&key("a"), vec![1].into()).unwrap();
    let options = ZarrStoreOptions::new().read_only(true).create(true);
    let reader = options.open(directory.path()).unwrap();
    let refused = [
        reader.set(&key("b"), vec![2].into()),
        reader.set_partial(&key("a"), 0, vec![2].into()),
        reader.erase(&key("a")),
        reader.erase_prefix(&prefix("")),
        reader.rename(&key("a"), &key("b")),
        reader.write_from(&key("b"), &vec![2], ..).map(|_| ()),
    ];
    for refused in refused {
        assert!(
            matches!(refused, Err(StorageError::ReadOnly)),
            "{refused:?}"
        );
    }
    assert_eq!(reader.get(&key("a")).unwrap().unwrap(), vec![1]);
    let missing = directory.path().join("missing");
    assert!(options.open(&missing).is_err() && !missing.exists());
}

#[test]
fn a_directory_that_can_not_be_opened_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, b"").unwrap();
    for wrong in [directory.path().join("missing"), file] {
        let error = FileZarrStore::open(&wrong).unwrap_err();
        assert!(
            error.to_string().contains(wrong.to_str().unwrap()),
            "{error}"
        );
    }
    assert!(FileZarrStore::create(directory.path().join("file")).is_err());
    let store = FileZarrStore::create(directory.path().join("a/b")).unwrap();
    assert!(store.directory().is_absolute());
}

#[test]
fn values_that_are_long_and_ranges_that_are_many() {
    let (_directory, store) = empty();
    let long = key("long");
    let byte = |at: usize| (at / 7 % 251) as u8;
    let value: Vec<u8> = (0..9_000_001).map(byte).collect();
    store.set(&long, value.clone().into()).unwrap();
    assert!(store.get(&long).unwrap().unwrap() == value);
    let ranges = (0..1000u64).map(|n| match n % 10 {
        // In its place among the others, and nothing else goes wrong by it.
        9 => ByteRange::FromStart(n * 9000, Some(u64::MAX)),
        _ => ByteRange::FromStart(n * 9000, Some(n)),
    });
    let found = store
        .get_partial_many(&long, Box::new(ranges))
        .unwrap()
        .unwrap();
    let mut count = 0;
    for (n, found) in found.enumerate() {
        count += 1;
        match n % 10 {
            9 => assert!(matches!(found, Err(StorageError::InvalidByteRangeError(_)))),
            _ => assert_eq!(found.unwrap(), value[n * 9000..n * 9000 + n]),
        }
    }
    assert_eq!(count, 1000);
    let endless = std::iter::repeat(ByteRange::Suffix(10));
    let found = store
        .get_partial_many(&long, Box::new(endless))
        .unwrap()
        .unwrap();
    assert_eq!(found.take(100).count(), 100, "only some are read ahead");
    store.set(&long, b"short"[..].into()).unwrap();
    assert_eq!(store.get(&long).unwrap().unwrap(), b"short"[..]);
}

#[test]
fn files_have_the_permissions_that_were_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let store = ZarrStoreOptions::new()
        .mode(0o640)
        .open(directory.path())
        .unwrap();
    store.set(&key("a/b"), vec![1].into()).unwrap();
    store.set_partial(&key("a/c"), 3, vec![1].into()).unwrap();
    for name in ["a/b", "a/c"] {
        let mode = mode_of(&directory.path().join(name));
        assert_eq!(mode & 0o777 & !0o640, 0, "{mode:o}");
    }
}

fn mode_of(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode()
}
