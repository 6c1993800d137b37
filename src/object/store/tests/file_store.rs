//! What is special about files: names that try to get out, links, changes behind the store's back.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use super::super::contract::{name, put, read, upload, write};
use super::super::{ChecksumKind, ObjectChecksum, UploadKey};
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

fn asked<'a>(key: &'a UploadKey, object: &'a ObjectName, size: u64, owner: &'a str) -> TakeUp<'a> {
    TakeUp::new((key, object, size), &PutCondition::Any, false, owner)
}

/// Takes it up. A thread that wrote for whoever had it may not have let go of the file yet.
fn take_up(store: &FileStore, asked: &TakeUp<'_>) -> TakenUp {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match store.take_up(asked) {
            Err(StoreError::UploadTaken) if Instant::now() < end => std::thread::yield_now(),
            taken => return taken.unwrap(),
        }
    }
}

/// Puts a front of so many bytes, and goes.
fn cut(store: &FileStore, asked: &TakeUp<'_>, bytes: &[u8]) {
    let mut taken = take_up(store, asked);
    assert_eq!(taken.there, 0);
    write(&mut *taken.upload, 0, bytes);
    let sum = ObjectChecksum::of(ChecksumKind::Crc64Nvme, bytes).value;
    taken.upload.mark(bytes.len() as u64, sum);
}

/// How much is there of it; it is let go again.
fn there(store: &FileStore, asked: &TakeUp<'_>) -> u64 {
    take_up(store, asked).there
}

/// Until nobody has any of it; what is too much is gone then.
fn settle(store: &FileStore, kept: &Path) {
    for entry in fs::read_dir(kept).into_iter().flatten().flatten() {
        // It may be gone meanwhile.
        if let Ok(file) = fs::File::open(entry.path()) {
            rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        }
    }
    store.0.kept.sweep(&store.0.beneath);
}

/// What is kept is bounded: by number, by bytes, by age, and each client has half of it at most.
#[test]
fn what_is_kept_of_uploads_is_bounded() {
    let content = vec![7; 64 << 10];
    let object = name("x");
    let keys: Vec<_> = (0..8).map(|_| UploadKey::random()).collect();
    let kept = |limits: KeptLimits, owner_of: fn(usize) -> &'static str| {
        let dir = tempfile::tempdir().unwrap();
        let store = FileStore::open(dir.path()).unwrap();
        store.keep_uploads(limits);
        for (at, key) in keys.iter().enumerate() {
            cut(
                &store,
                &asked(key, &object, 1 << 20, owner_of(at)),
                &content,
            );
            // The file system's clock moves on.
            std::thread::sleep(Duration::from_millis(20));
        }
        let path = dir.path().join(".uploads.0000000000000000.tmp");
        settle(&store, &path);
        let is_kept = |at: &usize| path.join(keys[*at].to_string()).exists();
        let kept: Vec<_> = (0..keys.len()).filter(is_kept).collect();
        let entries = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(entries, usize::from(!kept.is_empty()));
        for at in &kept {
            let again = asked(&keys[*at], &object, 1 << 20, owner_of(*at));
            assert_eq!(there(&store, &again), content.len() as u64);
        }
        assert!(all(&store).is_empty());
        kept
    };
    let (all_are, one): (KeptLimits, fn(usize) -> &'static str) = (KeptLimits::default(), |_| "a");
    assert_eq!(kept(all_are.clone(), one).len(), 8);
    assert_eq!(
        kept(all_are.clone().count(6), one),
        [5, 6, 7],
        "half, the newest"
    );
    let each = |at| ["a", "b", "c", "d", "e", "f", "g", "h"][at];
    assert_eq!(kept(all_are.clone().count(6), each), [2, 3, 4, 5, 6, 7]);
    let bytes = 4 * content.len() as u64;
    assert_eq!(
        kept(all_are.clone().bytes(bytes), one),
        [6, 7],
        "half of the bytes"
    );
    assert_eq!(kept(all_are.clone().bytes(bytes), each), [4, 5, 6, 7]);
    // One who has much takes nothing from one who has little.
    let flood = |at| if at == 0 { "b" } else { "a" };
    assert_eq!(kept(all_are.clone().count(6), flood), [0, 5, 6, 7]);
    assert_eq!(kept(all_are.age(Duration::ZERO), one), [0_usize; 0]);
}

/// A record that is torn, of another run of the kernel, or behind the file's end, says nothing.
#[test]
fn what_is_not_known_to_be_there_is_put_again() {
    let (key, object) = (UploadKey::random(), name("x"));
    let asked = asked(&key, &object, 1 << 20, "a");
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path()).unwrap();
    let kept = dir.path().join(".uploads.0000000000000000.tmp");
    let (bytes, record) = (
        kept.join(key.to_string()),
        kept.join(format!("{key}.record")),
    );
    let content = vec![7; 5000];
    cut(&store, &asked, &content);
    assert_eq!(there(&store, &asked), 5000);
    let text = fs::read_to_string(&record).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let other_boot = {
        let body = text.split_once('\n').unwrap().1;
        let body = body.replace(boot.trim(), "00000000-0000-0000-0000-000000000000");
        let sum = ObjectChecksum::of(ChecksumKind::Crc32c, body.as_bytes()).value;
        format!("fabricast upload 1 {sum:08x}\n{body}")
    };
    settle(&store, &kept);
    for wrong in [
        other_boot,
        text.replace("5000", "5001"),
        text[..50].to_owned(),
        String::new(),
    ] {
        fs::write(&record, &wrong).unwrap();
        // It is swept, or begun anew.
        assert_eq!(there(&store, &asked), 0, "{wrong}");
        cut(&store, &asked, &content);
        settle(&store, &kept);
    }
    fs::OpenOptions::new()
        .write(true)
        .open(&bytes)
        .unwrap()
        .set_len(4999)
        .unwrap();
    assert_eq!(there(&store, &asked), 0, "shorter than said");
    // What nothing came of leaves nothing.
    assert!(!record.exists() && !bytes.exists());
    fs::create_dir_all(&record).unwrap();
    assert!(store.take_up(&asked).is_err());
}

/// Links in the place of what is kept lead nowhere.
#[test]
fn what_is_kept_lies_below_the_directory() {
    served(|store, root| {
        let (key, object) = (UploadKey::random(), name("x"));
        let asked = asked(&key, &object, 10, "a");
        let kept = root.join(".uploads.0000000000000000.tmp");
        symlink("..", &kept).unwrap();
        assert!(store.take_up(&asked).is_err());
        fs::remove_file(&kept).unwrap();
        fs::create_dir(&kept).unwrap();
        symlink("../../secret", kept.join(key.to_string())).unwrap();
        assert!(store.take_up(&asked).is_err());
    });
}
