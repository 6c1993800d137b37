//! What is special about files: names that try to get out, links, changes behind the store's back.

use std::fs;
use std::os::unix::fs::symlink;

use super::super::contract::{name, put, read, upload};
use super::*;

/// A served directory beside a secret, by openat2 and without.
fn served(check: impl Fn(&FileStore, &Path)) {
    for by_parts in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("secret"), "nobody's").unwrap();
        let root = dir.path().join("served");
        fs::create_dir(&root).unwrap();
        let store = FileStore::open(&root).unwrap();
        if by_parts {
            store.0.beneath.without_openat2();
        }
        check(&store, &root);
        assert_eq!(fs::read(dir.path().join("secret")).unwrap(), b"nobody's");
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            2,
            "nothing beside it"
        );
    }
}

fn all(store: &FileStore) -> Vec<String> {
    let query = ListQuery {
        limit: 100,
        ..ListQuery::default()
    };
    let page = store.list(&query).unwrap();
    page.objects
        .iter()
        .map(|object| object.name.to_string())
        .collect()
}

#[test]
fn links_are_not_followed() {
    served(|store, root| {
        symlink("../secret", root.join("file")).unwrap();
        symlink("..", root.join("up")).unwrap();
        symlink("/", root.join("root")).unwrap();
        fs::create_dir(root.join("d")).unwrap();
        fs::write(root.join("d/inside"), "a").unwrap();
        symlink("d", root.join("sideways")).unwrap();
        for object in ["file", "up/secret", "root/etc/passwd", "sideways/inside"] {
            let refused = store.head(&name(object)).unwrap_err();
            assert!(
                matches!(refused, StoreError::NotAnObject | StoreError::NotFound),
                "{object}: {refused:?}"
            );
            assert!(store.open(&name(object)).is_err(), "{object}");
            assert!(store.delete(&name(object), None).is_err(), "{object}");
        }
        for object in ["up/new", "root/tmp/new", "sideways/new", "up/d/new"] {
            let refused = put(store, object, b"x", &PutCondition::Any).unwrap_err();
            assert!(
                matches!(refused, StoreError::NotAnObject | StoreError::NameTaken),
                "{object}: {refused:?}"
            );
        }
        assert_eq!(all(store), ["d/inside"]);
        // A link as the last part is replaced, not followed.
        put(store, "file", b"new", &PutCondition::Any).unwrap();
        assert_eq!(fs::read(root.join("file")).unwrap(), b"new");
        assert_eq!(all(store), ["d/inside", "file"]);
    });
}

/// Set where this test runs alone in a process, with few descriptors.
const ALONE: &str = "FABRICAST_TEST_FEW_DESCRIPTORS";

#[test]
fn a_list_of_a_deep_name_takes_few_descriptors() {
    if std::env::var_os(ALONE).is_some() {
        return served(lists_with_few_descriptors);
    }
    let (_, module) = module_path!().split_once("::").unwrap();
    let test = format!("{module}::a_list_of_a_deep_name_takes_few_descriptors");
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &test, "--nocapture"])
        .env(ALONE, "1");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{error}");
    assert!(text.contains("1 passed"), "{text}");
}

fn lists_with_few_descriptors(store: &FileStore, _: &Path) {
    // As many parts as a name can have, and something on the way back.
    let deep = format!("{}x", "d/".repeat(511));
    let shallow = format!("{}y", "d/".repeat(20));
    for object in [&deep, &shallow] {
        put(store, object, b"x", &PutCondition::Any).unwrap();
    }
    let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let open = fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let few = rustix::process::Rlimit {
        current: Some(open + 4),
        ..before
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
    let listed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| all(store)));
    rustix::process::setrlimit(rustix::process::Resource::Nofile, before).unwrap();
    assert_eq!(listed.unwrap(), [deep, shallow]);
}

#[test]
fn a_list_has_nothing_from_outside_while_directories_become_links() {
    served(|store, root| {
        let outside = tempfile::tempdir().unwrap();
        fs::create_dir_all(outside.path().join("e/f")).unwrap();
        fs::write(outside.path().join("e/f/stolen"), "x").unwrap();
        fs::write(outside.path().join("stolen"), "x").unwrap();
        // A directory whose place a link takes, again and again, at two depths.
        fs::create_dir_all(root.join("d/e/f")).unwrap();
        for file in ["d/a", "d/e/a", "d/e/f/a", "d/z", "z"] {
            fs::write(root.join(file), "x").unwrap();
        }
        symlink(outside.path(), root.join("link")).unwrap();
        symlink(outside.path().join("e"), root.join("d/link")).unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let over = std::sync::atomic::Ordering::Relaxed;
        let exchange = |one: &str, other: &str| {
            let (one, other) = (root.join(one), root.join(other));
            let flags = rustix::fs::RenameFlags::EXCHANGE;
            rustix::fs::renameat_with(rustix::fs::CWD, one, rustix::fs::CWD, other, flags)
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(over) {
                    exchange("d/e", "d/link").unwrap();
                    exchange("d", "link").unwrap();
                    exchange("link", "d").unwrap();
                    exchange("d/link", "d/e").unwrap();
                }
            });
            let lists: Vec<_> = (0..300).map(|_| all(store)).collect();
            is_over.store(true, over);
            for names in lists {
                assert!(
                    !names.iter().any(|name| name.contains("stolen")),
                    "{names:?}"
                );
                assert!(names.contains(&"z".to_owned()), "{names:?}");
            }
        });
        assert_eq!(all(store), ["d/a", "d/e/a", "d/e/f/a", "d/z", "z"]);
    });
}

#[test]
fn files_that_are_none_are_no_objects() {
    served(|store, root| {
        let fifo = root.join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert_eq!(store.head(&name("fifo")), Err(StoreError::NotAnObject));
        fs::create_dir(root.join("d")).unwrap();
        assert_eq!(store.head(&name("d")), Err(StoreError::NotFound));
        assert_eq!(store.delete(&name("d"), None), Err(StoreError::NotFound));
        assert!(all(store).is_empty());
    });
}

#[test]
fn names_of_temporary_files_are_kept() {
    served(|store, root| {
        let begun = upload(store, "half", b"half of it", &PutCondition::Any).unwrap();
        let entries = fs::read_dir(root).unwrap();
        let there: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        let [temporary] = &there[..] else {
            panic!("{there:?}");
        };
        let temporary = name(temporary.to_str().unwrap());
        let kept = StoreError::Name(ObjectNameError::Temporary { at: 0 });
        assert_eq!(store.head(&temporary), Err(kept.clone()));
        assert_eq!(
            store.begin(&temporary, 1, &PutCondition::Any).unwrap_err(),
            kept
        );
        drop(begun);
        assert_eq!(fs::read_dir(root).unwrap().count(), 0);
        for fine in [
            ".tmp",
            ".x.0123456789abcde.tmp",
            "x.0123456789abcdef.tmp",
            ".hidden",
        ] {
            put(store, fine, b"x", &PutCondition::Any).unwrap();
        }
    });
}

#[test]
fn directories_come_and_go_with_their_objects() {
    served(|store, root| {
        put(store, "a/b/c", b"1", &PutCondition::Any).unwrap();
        put(store, "a/d", b"2", &PutCondition::Any).unwrap();
        let taken = Err(StoreError::NameTaken);
        assert_eq!(
            put(store, "a/d/e", b"3", &PutCondition::Any).map(drop),
            taken
        );
        assert_eq!(put(store, "a/b", b"3", &PutCondition::Any).map(drop), taken);
        assert_eq!(store.head(&name("a/d/e")), Err(StoreError::NotFound));
        store.delete(&name("a/b/c"), None).unwrap();
        assert!(!root.join("a/b").exists());
        put(store, "a/b", b"3", &PutCondition::Any).unwrap();
        store.delete(&name("a/b"), None).unwrap();
        store.delete(&name("a/d"), None).unwrap();
        assert_eq!(fs::read_dir(root).unwrap().count(), 0);
    });
}

#[test]
fn what_others_write_changes_the_etag() {
    served(|store, root| {
        let stored = put(store, "x", b"ours", &PutCondition::Any).unwrap();
        fs::write(root.join("x"), "theirs, longer").unwrap();
        let found = store.head(&name("x")).unwrap();
        assert_ne!(found.etag, stored.etag);
        assert_eq!((found.size, found.checksum), (14, None));
        assert!(found.etag.as_str().starts_with("m-"));
        let condition = PutCondition::Matches(stored.etag);
        assert!(put(store, "x", b"again", &condition).is_err());
        put(store, "x", b"again", &PutCondition::Matches(found.etag)).unwrap();
        fs::write(root.join("x"), "1").unwrap();
        let object = store.open(&name("x")).unwrap();
        assert_eq!(read(&*object, 0, 9).unwrap(), b"1");
    });
}

#[test]
fn a_store_for_reading_takes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("x"), "1").unwrap();
    let store = FileStore::open_read_only(dir.path()).unwrap();
    assert_eq!(store.head(&name("x")).unwrap().size, 1);
    assert_eq!(store.delete(&name("x"), None), Err(StoreError::Denied));
    let refused = put(&store, "y", b"1", &PutCondition::Any);
    assert_eq!(refused.unwrap_err(), StoreError::Denied);
    assert!(FileStore::open(dir.path().join("x")).is_err());
    assert_eq!(
        FileStore::open(dir.path().join("no")).unwrap_err(),
        StoreError::NotFound
    );
}

#[test]
fn long_parts_are_refused_by_name() {
    served(|store, _| {
        let object = "n".repeat(256);
        assert_eq!(store.head(&name(&object)), Err(StoreError::NamePart));
        let refused = put(store, &object, b"1", &PutCondition::Any).unwrap_err();
        assert_eq!(refused, StoreError::NamePart);
        put(store, &"n".repeat(255), b"1", &PutCondition::Any).unwrap();
    });
}

#[test]
fn eight_threads_put_and_delete_in_one_directory() {
    served(|store, root| {
        std::thread::scope(|scope| {
            for thread in 0..8 {
                scope.spawn(move || {
                    for round in 0..20 {
                        let object = format!("d/e/{}", (thread + round) % 4);
                        put(store, &object, b"some", &PutCondition::Any).unwrap();
                        match store.delete(&name(&object), None) {
                            Ok(()) | Err(StoreError::NotFound) => {}
                            Err(other) => panic!("{other}"),
                        }
                    }
                });
            }
        });
        assert!(all(store).is_empty());
        assert_eq!(fs::read_dir(root).unwrap().count(), 0);
    });
}
