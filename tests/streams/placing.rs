//! What is under its name when a stream ends otherwise than well.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use fabricast::PeerAddr;
use fabricast::stream::{
    Block, BlockPlan, BlockSink, Deletion, DirectorySink, Entry, EntryKind, FileSource, Kept,
    Manifest, Modified, ReadBack, RelativeName, SendOptions, SinkError, SinkFactory, SourceLinks,
    Stop, StreamEvent, StreamIdentity, StreamOffer, StreamSender, crc32c,
};

use crate::transfers::make_tree;
use crate::world::*;

/// Files of these names, each with its name as its content.
fn files(names: &[&str]) -> (tempfile::TempDir, FileSource) {
    let dir = tempfile::tempdir().unwrap();
    let mut source = FileSource::builder();
    for name in names {
        fs::write(dir.path().join(name), format!("new {name}")).unwrap();
        source = source.file(dir.path().join(name));
    }
    (dir, source.build().unwrap())
}

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn one_target_that_cannot_be_replaced_leaves_all_the_others_alone() {
    over_both(|domain| {
        type Prepare = fn(&Path);
        let cases: [(&str, Prepare); 2] = [
            ("a directory", |to| fs::create_dir(to.join("b")).unwrap()),
            ("one that is not empty", |to| {
                fs::create_dir_all(to.join("b/c")).unwrap();
            }),
        ];
        for (what, prepare) in cases {
            println!("{what}");
            let to = tempfile::tempdir().unwrap();
            fs::write(to.path().join("a"), "old").unwrap();
            prepare(to.path());
            let receiver = listen(
                domain,
                receiver_config(DirectorySink::new(to.path()).unwrap()),
            );
            let (_from, source) = files(&["a", "b"]);
            let options = SendOptions::default().reconnects(0);
            let outcome = send(domain, source, &[receiver.local_addr()], options)
                .pop()
                .unwrap();
            let error = outcome.result.unwrap_err().to_string();
            assert!(error.contains("b: Is a directory"), "{error}");
            assert_eq!(outcome.report.sent_bytes, 0, "it is said before");
            let end = next_end(&receiver);
            assert!(matches!(end, StreamEvent::Refused { .. }), "{end:?}");
            assert_eq!(text(to.path().join("a")), "old", "{what}");
            assert_eq!(names(to.path()), ["a", "b"], "nothing else is there");
            // Out of the way, all of it goes there.
            fs::remove_dir_all(to.path().join("b")).unwrap();
            let (_from, source) = files(&["a", "b"]);
            let options = SendOptions::default();
            let outcomes = send(domain, source, &[receiver.local_addr()], options);
            outcomes[0].result.clone().unwrap();
            assert_eq!(text(to.path().join("a")), "new a");
            match next_end(&receiver) {
                StreamEvent::Complete(_, report) => assert_eq!(report.placed, 2),
                other => panic!("{other:?}"),
            }
            receiver.close(by());
        }
    });
}

#[test]
fn a_file_where_a_directory_is_to_be_leaves_all_alone() {
    over_both(|domain| {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let top = from.path().join("tree");
        fs::create_dir_all(top.join("z")).unwrap();
        fs::write(top.join("a"), "new").unwrap();
        fs::write(top.join("z/file"), "new").unwrap();
        fs::create_dir(to.path().join("tree")).unwrap();
        fs::write(to.path().join("tree/a"), "old").unwrap();
        fs::write(to.path().join("tree/z"), "in the way").unwrap();
        let receiver = listen(
            domain,
            receiver_config(DirectorySink::new(to.path()).unwrap()),
        );
        let options = SendOptions::default().reconnects(0);
        let source = FileSource::tree(&top).unwrap();
        let outcomes = send(domain, source, &[receiver.local_addr()], options);
        let error = outcomes[0].result.clone().unwrap_err().to_string();
        assert!(error.contains("tree/z: Not a directory"), "{error}");
        let end = next_end(&receiver);
        assert!(matches!(end, StreamEvent::Refused { .. }), "{end:?}");
        assert_eq!(text(to.path().join("tree/a")), "old");
        assert_eq!(text(to.path().join("tree/z")), "in the way");
        receiver.close(by());
    });
}

/// Finishes when its sender has gone, and says when it is about to.
#[derive(Debug)]
struct Late(DirectorySink, Arc<AtomicBool>);

#[derive(Debug)]
struct LateSink(Box<dyn BlockSink>, Arc<AtomicBool>);

impl SinkFactory for Late {
    fn make(&self, offer: &StreamOffer) -> Result<Box<dyn BlockSink>, SinkError> {
        let inner = self.0.make(offer)?;
        Ok(Box::new(LateSink(inner, Arc::clone(&self.1))))
    }
}

impl BlockSink for LateSink {
    fn open(&self, offer: &StreamOffer, stop: &Stop) -> Result<Kept, SinkError> {
        self.0.open(offer, stop)
    }
    fn write(&self, block: Block, crc: u32, bytes: &[u8]) -> Result<(), SinkError> {
        self.0.write(block, crc, bytes)
    }
    fn finish(&self, stop: &Stop) -> Result<ReadBack, SinkError> {
        self.1.store(true, Ordering::SeqCst);
        let by = by();
        while !stop.is_set() {
            assert!(std::time::Instant::now() < by, "nobody went away");
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        // As if it had begun to rename just before.
        self.0.finish(&Stop::default())
    }
    fn abandon(&self) {
        self.0.abandon();
    }
}

#[test]
fn a_stream_that_is_cut_while_it_finishes_says_that_all_of_it_is_there() {
    over_both(|domain| {
        let to = tempfile::tempdir().unwrap();
        let finishing = Arc::new(AtomicBool::new(false));
        let sink = Late(DirectorySink::new(to.path()).unwrap(), finishing.clone());
        let receiver = listen(domain, receiver_config(sink));
        let sender = StreamSender::open(domain, sender_config()).unwrap();
        let (_from, source) = files(&["a", "b"]);
        sender
            .send(source, [receiver.local_addr()], SendOptions::default())
            .unwrap();
        let until = by();
        while !finishing.load(Ordering::SeqCst) {
            assert!(std::time::Instant::now() < until, "it does not come so far");
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        drop(sender);
        match next_end(&receiver) {
            StreamEvent::Cut(_, _, report) => assert_eq!(report.placed, 2),
            other => panic!("{other:?}"),
        }
        assert_eq!(names(to.path()), ["a", "b"], "and nothing else");
        receiver.close(by());
    });
}

/// What a crash between two renames leaves: the first file under its name, the others where they
/// were written, and the journal.
#[test]
fn after_a_crash_between_renames_what_was_placed_comes_again_and_the_rest_is_kept() {
    let to = tempfile::tempdir().unwrap();
    let entry = |name: &'static [u8]| Entry {
        name: RelativeName::new(name).unwrap(),
        kind: EntryKind::File,
        mode: 0o644,
        size: 6,
        modified: Modified::default(),
        sparse: false,
    };
    let manifest = Manifest::new([entry(b"a"), entry(b"b")]).unwrap();
    let offer = StreamOffer {
        identity: StreamIdentity::default(),
        plan: Arc::new(BlockPlan::new(&manifest, 3)),
        manifest: Arc::new(manifest),
        crc32c: true,
        blake3: false,
        sync: false,
        read_back: false,
        restart: false,
        skip_unchanged: false,
        compare_content: false,
        delete: false,
    };
    let bytes = |block: &Block| [b'a' + block.index as u8; 3];
    let write = |sink: &dyn BlockSink, block: Block| {
        let bytes = bytes(&block);
        sink.write(block, crc32c(&bytes), &bytes).unwrap();
    };
    let factory = DirectorySink::new(to.path()).unwrap();
    let sink = factory.make(&offer).unwrap();
    sink.open(&offer, &Stop::default()).unwrap();
    offer.plan.iter().for_each(|block| write(&*sink, block));
    sink.abandon();
    let hidden = to.path().join(&names(to.path())[0]);
    fs::rename(hidden.join("tree/a"), to.path().join("a")).unwrap();
    let sink = factory.make(&offer).unwrap();
    let kept = sink.open(&offer, &Stop::default()).unwrap();
    let missing: Vec<_> = kept.blocks().missing(0).flatten().collect();
    assert_eq!(missing, [0, 1], "those of the first file");
    for index in missing {
        write(&*sink, offer.plan.get(index).unwrap());
    }
    sink.finish(&Stop::default()).unwrap();
    assert_eq!(text(to.path().join("a")), "aaabbb");
    assert_eq!(text(to.path().join("b")), "cccddd");
    assert_eq!(names(to.path()), ["a", "b"], "and nothing else");
}

/// The numbers of the files below a directory, by their names.
fn inodes(top: &Path) -> BTreeMap<PathBuf, u64> {
    use std::os::unix::fs::MetadataExt;
    let mut found = BTreeMap::new();
    let mut left = vec![top.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            match meta.is_dir() {
                true => left.push(path),
                false => drop(found.insert(path, meta.ino())),
            }
        }
    }
    found
}

#[test]
fn what_is_there_unchanged_is_kept_and_not_sent() {
    over_both_by_both(|domain, transport| {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let top = from.path().join("tree");
        make_tree(&top);
        fs::write(top.join("long"), content(1_000_001, 9)).unwrap();
        let there = to.path().join("tree");
        let options = || {
            SendOptions::default()
                .transport(transport)
                .skip_unchanged(true)
        };
        let again = |options: SendOptions| {
            let sink = DirectorySink::new(to.path()).unwrap();
            let receiver = listen(domain, receiver_config(sink).rma_slots(16));
            let source = FileSource::builder().tree(&top).build().unwrap();
            let outcome = send_to(domain, source, &receiver, options);
            outcome.result.unwrap();
            let StreamEvent::Complete(..) = next_end(&receiver) else {
                panic!("the stream did not arrive");
            };
            receiver.close(by());
            assert_same(&top, &there);
            outcome.report
        };
        let first = again(options().sync(true));
        assert_eq!(first.resumed_bytes, 0);
        let before = inodes(&there);
        let second = again(options().sync(true));
        assert_eq!((second.sent_bytes, second.resumed_bytes), (0, first.bytes));
        assert_eq!(inodes(&there), before);
        // One has other content, one another time, one other rights, one is new, and in place of
        // one is a link.
        fs::write(top.join("long"), content(1_000_001, 10)).unwrap();
        fs::write(top.join("new"), b"new").unwrap();
        let small: Vec<_> = before
            .keys()
            .filter(|path| !path.ends_with("long"))
            .collect();
        let (linked, barred) = (small[0], small[1]);
        let elsewhere = to.path().join("elsewhere");
        fs::rename(linked, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, linked).unwrap();
        let kept = fs::read(&elsewhere).unwrap();
        let source = top.join(barred.strip_prefix(&there).unwrap());
        fs::set_permissions(&source, fs::Permissions::from_mode(0o640)).unwrap();
        let third = again(options());
        assert!(
            third.sent_bytes >= 1_000_004 && third.resumed_bytes > 0,
            "{third:?}"
        );
        let after = inodes(&there);
        assert_eq!(after[barred], before[barred]);
        assert_ne!(after[&there.join("long")], before[&there.join("long")]);
        assert!(!fs::symlink_metadata(linked).unwrap().is_symlink());
        assert_eq!(
            fs::read(&elsewhere).unwrap(),
            kept,
            "nothing goes by a link"
        );
        assert_eq!(third.unchanged, after.len() as u64 - 3, "of all but three");
        // What is kept is not what a new start throws away.
        let fourth = again(options().restart(true));
        assert_eq!(
            (fourth.sent_bytes, fourth.unchanged),
            (0, third.unchanged + 3)
        );
        assert_eq!(inodes(&there), after);
        // Unless it is asked for, everything is sent anew.
        let all = again(SendOptions::default().transport(transport));
        assert_eq!((all.sent_bytes, all.resumed_bytes), (all.bytes, 0));
        assert_ne!(inodes(&there), after);
    });
}

/// Users and groups by their numbers, of files, directories and links, new ones and those that are
/// there.
#[test]
fn owners_are_the_senders_where_a_receiver_takes_them() {
    use std::os::unix::fs::{MetadataExt, chown, lchown};
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root gives files to others");
        return;
    }
    over_both_by_both(|domain, transport| {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let top = from.path().join("tree");
        fs::create_dir_all(top.join("sub")).unwrap();
        for (name, len) in [("small", 100), ("sub/other", 200), ("long", 1_000_001)] {
            fs::write(top.join(name), content(len, 3)).unwrap();
        }
        std::os::unix::fs::symlink("small", top.join("link")).unwrap();
        let there = to.path().join("tree");
        let names = ["", "sub", "small", "sub/other", "long", "link"];
        let own = |user: u32| {
            for (number, name) in (0..).zip(names) {
                match name {
                    "link" => lchown(top.join(name), Some(user), Some(7)).unwrap(),
                    name => chown(top.join(name), Some(user + number), Some(7)).unwrap(),
                }
            }
        };
        let owners = |top: &Path| {
            let of = |name: &&str| {
                let found = fs::symlink_metadata(top.join(name)).unwrap();
                (found.uid(), found.gid(), found.mode() & 0o7777)
            };
            names.iter().map(of).collect::<Vec<_>>()
        };
        let again = |sink: DirectorySink, says: bool, options: SendOptions| {
            let receiver = listen(domain, receiver_config(sink).rma_slots(16));
            let source = FileSource::builder().tree(&top).links(SourceLinks::Keep);
            let source = source.owners(says).build().unwrap();
            let outcome = send_to(domain, source, &receiver, options.transport(transport));
            receiver.close(by());
            outcome
        };
        let sink = || DirectorySink::new(to.path()).unwrap();
        own(1000);
        let refused = again(sink(), true, SendOptions::default());
        let why = refused.result.unwrap_err().to_string();
        assert!(why.contains("recv --owners"), "{why}");
        assert!(!there.exists());
        again(sink().owners(true), true, SendOptions::default())
            .result
            .unwrap();
        assert_eq!(owners(&there), owners(&top));
        // What stays as it is gets them, too.
        let skip = || SendOptions::default().skip_unchanged(true);
        own(2000);
        let kept = again(sink().owners(true), true, skip());
        kept.result.unwrap();
        assert_eq!((kept.report.sent_bytes, kept.report.unchanged), (0, 4));
        assert_eq!(owners(&there), owners(&top));
        own(3000);
        for name in ["small", "long"] {
            let file = fs::File::open(top.join(name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(9))
                .unwrap();
        }
        let equal = again(sink().owners(true), true, skip().compare_content(true));
        equal.result.unwrap();
        assert_eq!(
            (equal.report.sent_bytes, equal.report.equal_bytes),
            (0, 1_000_101)
        );
        assert_eq!(owners(&there), owners(&top));
        // Who does not say them leaves them to the receiver, which is root.
        again(sink().owners(true), false, SendOptions::default())
            .result
            .unwrap();
        let found = owners(&there);
        assert!(found[2..].iter().all(|(user, ..)| *user == 0), "{found:?}");
    });
}

/// Of what its owner may not write, too.
fn set_attribute(path: &Path, name: &str, value: &[u8]) -> rustix::io::Result<()> {
    let had = fs::metadata(path).unwrap().permissions();
    let writable = fs::Permissions::from_mode(had.mode() | 0o600);
    fs::set_permissions(path, writable).unwrap();
    let set = rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty());
    // The list for access is the rights.
    if name != "system.posix_acl_access" {
        fs::set_permissions(path, had).unwrap();
    }
    set
}

fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 65_536];
    let len = rustix::fs::getxattr(path, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

/// Of files and directories, new ones and those that are there; those that the sender does not have
/// are taken away.
#[test]
fn attributes_are_the_senders_where_a_receiver_takes_them() {
    let probe = tempfile::tempdir().unwrap();
    if set_attribute(probe.path(), "user.probe", b"1").is_err() {
        println!(
            "SKIPPED: {} has no extended attributes",
            probe.path().display()
        );
        return;
    }
    over_both_by_both(|domain, transport| {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let top = from.path().join("tree");
        fs::create_dir_all(top.join("sub")).unwrap();
        for (name, len) in [("small", 100), ("sub/empty", 0), ("long", 1_000_001)] {
            fs::write(top.join(name), content(len, 3)).unwrap();
        }
        std::os::unix::fs::symlink("small", top.join("link")).unwrap();
        let there = to.path().join("tree");
        let names = ["", "sub", "small", "sub/empty", "long"];
        let set = |value: &[u8]| {
            for name in names {
                let path = top.join(name);
                set_attribute(&path, "user.note", value).unwrap();
                set_attribute(&path, "user.empty", b"").unwrap();
                let named = [name.as_bytes(), value].concat();
                set_attribute(&path, "user.named", &named).unwrap();
            }
        };
        let read_only = fs::Permissions::from_mode(0o440);
        let all = |top: &Path| {
            let of = |name: &&str| {
                let path = top.join(name);
                let mode = fs::metadata(&path).unwrap().permissions().mode();
                let names = ["user.note", "user.empty", "user.named", "user.other"];
                (mode, names.map(|name| attribute(&path, name)))
            };
            names.iter().map(of).collect::<Vec<_>>()
        };
        let again = |sink: DirectorySink, says: bool, options: SendOptions| {
            let receiver = listen(domain, receiver_config(sink).rma_slots(16));
            let source = FileSource::builder().tree(&top).links(SourceLinks::Keep);
            let source = source.attributes(says).build().unwrap();
            let outcome = send_to(domain, source, &receiver, options.transport(transport));
            receiver.close(by());
            outcome
        };
        let sink = || DirectorySink::new(to.path()).unwrap();
        set(b"first");
        fs::set_permissions(top.join("small"), read_only).unwrap();
        let refused = again(sink(), true, SendOptions::default());
        let why = refused.result.unwrap_err().to_string();
        assert!(why.contains("recv --xattrs"), "{why}");
        assert!(!there.exists());
        let taken = again(sink().attributes(true), true, SendOptions::default());
        taken.result.unwrap();
        assert_eq!(all(&there), all(&top));
        // What stays as it is gets them, too, and loses others.
        let skip = || SendOptions::default().skip_unchanged(true);
        set(b"second");
        for name in names {
            set_attribute(&there.join(name), "user.other", b"here").unwrap();
        }
        let kept = again(sink().attributes(true), true, skip());
        kept.result.unwrap();
        assert_eq!((kept.report.sent_bytes, kept.report.unchanged), (0, 4));
        assert_eq!(all(&there), all(&top));
        set(b"third");
        let file = fs::File::open(top.join("long")).unwrap();
        let later = SystemTime::UNIX_EPOCH + Duration::from_secs(9);
        file.set_modified(later).unwrap();
        let equal = again(sink().attributes(true), true, skip().compare_content(true));
        equal.result.unwrap();
        assert_eq!(
            (equal.report.sent_bytes, equal.report.equal_bytes),
            (0, 1_000_001)
        );
        assert_eq!(all(&there), all(&top));
        // Files come without, from who does not say them.
        let plain = again(sink().attributes(true), false, SendOptions::default());
        plain.result.unwrap();
        assert_eq!(attribute(&there.join("small"), "user.note"), None);
        assert_eq!(
            attribute(&there.join("sub"), "user.note"),
            Some(b"third".to_vec()),
            "it stays as it is"
        );
    });
}

/// Access control lists go, by the numbers of users.
#[test]
fn access_control_lists_are_the_senders() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
    // Version 2; then tag, rights, and number: the owner, user 1234, the group, mask, others.
    let list = |rights: u8| {
        let mut list = vec![2, 0, 0, 0];
        for (tag, rights, id) in [
            (1, 7, u32::MAX),
            (2, rights, 1234),
            (4, 4, u32::MAX),
            (0x10, 7, u32::MAX),
            (0x20, 0, u32::MAX),
        ] {
            list.extend([tag, 0, rights, 0]);
            list.extend(id.to_le_bytes());
        }
        list
    };
    if set_attribute(from.path(), default, &list(4)).is_err() {
        println!("SKIPPED: {} has no lists", from.path().display());
        return;
    }
    let top = from.path().join("tree");
    fs::create_dir_all(top.join("sub")).unwrap();
    fs::write(top.join("sub/file"), content(100, 3)).unwrap();
    set_attribute(&top.join("sub"), default, &list(6)).unwrap();
    set_attribute(&top.join("sub/file"), access, &list(5)).unwrap();
    // Nothing is inherited of this one.
    set_attribute(to.path(), default, &list(1)).unwrap();
    over_both_by_both(|domain, transport| {
        let sink = DirectorySink::new(to.path()).unwrap().attributes(true);
        let receiver = listen(domain, receiver_config(sink).rma_slots(16));
        let source = FileSource::builder().tree(&top).attributes(true);
        let source = source.build().unwrap();
        let options = SendOptions::default().transport(transport);
        send_to(domain, source, &receiver, options).result.unwrap();
        receiver.close(by());
        for name in ["", "sub", "sub/file"] {
            for kind in [access, default] {
                let (here, there) = (top.join(name), to.path().join("tree").join(name));
                assert_eq!(
                    attribute(&there, kind),
                    attribute(&here, kind),
                    "{name} {kind}"
                );
                let mode = |path: &Path| fs::metadata(path).unwrap().permissions();
                assert_eq!(mode(&there), mode(&here), "{name}");
            }
        }
    });
}

/// What the file system has no room for is said before anything has its name.
#[test]
fn an_attribute_that_cannot_be_given_ends_a_stream_before_anything_is_placed() {
    let probe = tempfile::tempdir().unwrap();
    let tmpfs = Path::new("/dev/shm");
    let large = vec![7_u8; 60_000];
    let (from, to) = match tempfile::tempdir_in(tmpfs) {
        Ok(from) if set_attribute(from.path(), "user.large", &large).is_ok() => (from, probe),
        _ => {
            println!("SKIPPED: {} takes no large attributes", tmpfs.display());
            return;
        }
    };
    if set_attribute(to.path(), "user.large", &large).is_ok() {
        println!("SKIPPED: {} takes all of them", to.path().display());
        return;
    }
    for name in ["sub", "sub/file"] {
        over_both(|domain| {
            let top = from.path().join("tree");
            let _ = fs::remove_dir_all(&top);
            fs::create_dir_all(top.join("sub")).unwrap();
            fs::write(top.join("sub/file"), content(100, 3)).unwrap();
            set_attribute(&top.join(name), "user.large", &large).unwrap();
            let to = tempfile::tempdir_in(to.path()).unwrap();
            let sink = DirectorySink::new(to.path()).unwrap().attributes(true);
            let receiver = listen(domain, receiver_config(sink));
            let source = FileSource::builder().tree(&top).attributes(true);
            let source = source.build().unwrap();
            let outcome = send_to(domain, source, &receiver, SendOptions::default());
            receiver.close(by());
            let why = outcome.result.unwrap_err().to_string();
            let said = format!("tree/{name}: extended attribute user.large");
            assert!(why.contains(&said) && why.contains("--xattrs"), "{why}");
            assert!(!to.path().join("tree").exists());
        });
    }
}

/// Of files with another time, what is equal is not sent.
#[test]
fn what_has_another_time_is_compared_and_only_what_differs_is_sent() {
    use std::os::unix::fs::MetadataExt;
    over_both_by_both(|domain, transport| {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let top = from.path().join("tree");
        make_tree(&top);
        for number in 0..300 {
            fs::write(top.join(format!("small {number:03}")), content(100, number)).unwrap();
        }
        fs::write(top.join("long"), content(1_000_001, 9)).unwrap();
        fs::write(top.join("empty"), "").unwrap();
        let there = to.path().join("tree");
        let options = || {
            SendOptions::default()
                .transport(transport)
                .skip_unchanged(true)
        };
        let again = |options: SendOptions| {
            let sink = DirectorySink::new(to.path()).unwrap();
            let receiver = listen(domain, receiver_config(sink).rma_slots(16));
            let source = FileSource::builder().tree(&top).build().unwrap();
            let outcome = send_to(domain, source, &receiver, options);
            outcome.result.unwrap();
            let StreamEvent::Complete(_, report) = next_end(&receiver) else {
                panic!("the stream did not arrive");
            };
            receiver.close(by());
            assert_same(&top, &there);
            assert_eq!(report.equal_bytes, outcome.report.equal_bytes);
            for path in inodes(&top).keys() {
                let copy = there.join(path.strip_prefix(&top).unwrap());
                let of = |path: &Path| {
                    let found = fs::metadata(path).unwrap();
                    (found.modified().unwrap(), found.mode())
                };
                assert_eq!(of(path), of(&copy), "{}", path.display());
            }
            outcome.report
        };
        let first = again(options().sync(true));
        let before = inodes(&there);
        let touch = |name: &str, second| {
            let file = fs::File::open(top.join(name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(second))
                .unwrap();
        };
        let touch_all = |second| {
            inodes(&top)
                .keys()
                .for_each(|it| touch(it.to_str().unwrap(), second))
        };
        // Nothing but times has changed: nothing is sent, and every file stays.
        touch_all(1_000);
        let compared = || options().compare_content(true);
        let second = again(compared().sync(true));
        assert_eq!((second.sent_bytes, second.unchanged), (0, 0), "{second}");
        assert_eq!(second.equal_bytes, first.bytes);
        assert_eq!(inodes(&there), before);
        // In a long file a part has changed, of the small ones every third; one has other rights,
        // one is longer, and in place of one there is a link there.
        touch_all(2_000);
        let mut long = content(1_000_001, 9);
        long[500_000] ^= 1;
        fs::write(top.join("long"), &long).unwrap();
        for number in (0..300).step_by(3) {
            fs::write(
                top.join(format!("small {number:03}")),
                content(100, 1_000 + number),
            )
            .unwrap();
        }
        fs::write(top.join("small 001"), content(101, 1)).unwrap();
        fs::set_permissions(top.join("small 002"), fs::Permissions::from_mode(0o640)).unwrap();
        let linked = there.join("small 004");
        fs::rename(&linked, to.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("../elsewhere", &linked).unwrap();
        let third = again(compared());
        let block = 64 << 10;
        let sent = 100 * 100 + 101 + 100;
        assert!(
            third.sent_bytes > sent && third.sent_bytes <= sent + block,
            "{third}"
        );
        assert_eq!(third.equal_bytes + third.sent_bytes, third.bytes);
        let after = inodes(&there);
        for name in ["small 002", "small 005", "empty"] {
            assert_eq!(
                after[&there.join(name)],
                before[&there.join(name)],
                "{name}"
            );
        }
        assert_ne!(after[&there.join("long")], before[&there.join("long")]);
        assert_eq!(
            fs::read(to.path().join("elsewhere")).unwrap(),
            content(100, 4)
        );
        // Without it, another time is another file.
        touch("long", 3_000);
        let fourth = again(options());
        assert_eq!((fourth.sent_bytes, fourth.equal_bytes), (1_000_001, 0));
    });
}

/// Of a tree that was sent before, what is not there any more goes; both sides say how much.
#[test]
fn what_is_there_besides_is_removed_where_both_want_it() {
    over_both_by_both(|domain, transport| {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let top = from.path().join("tree");
        make_tree(&top);
        let there = to.path().join("tree");
        let options = || SendOptions::default().transport(transport);
        let again = |source: FileSource, sink: DirectorySink, options| {
            let receiver = listen(domain, receiver_config(sink).rma_slots(16));
            let outcome = send_to(domain, source, &receiver, options);
            let counted = match (&outcome.result, next_end(&receiver)) {
                (Ok(()), StreamEvent::Complete(_, report)) => report.deleted,
                (Err(_), StreamEvent::Cut(_, _, report)) => report.deleted,
                other => panic!("{other:?}"),
            };
            receiver.close(by());
            (outcome, counted)
        };
        let tree = || FileSource::builder().tree(&top);
        let sink = || DirectorySink::new(to.path()).unwrap();
        let (first, _) = again(tree().build().unwrap(), sink(), options());
        first.result.unwrap();
        fs::create_dir_all(there.join("old/er")).unwrap();
        fs::write(there.join("old/er/file"), "old").unwrap();
        let delete = || options().delete(Deletion::Extra);
        // Who is allowed to, and does not ask for it, removes nothing.
        let (kept, 0) = again(
            tree().build().unwrap(),
            sink().allow_delete(true),
            options(),
        ) else {
            panic!("something was removed");
        };
        kept.result.unwrap();
        assert!(there.join("old/er/file").exists());
        let (removed, 3) = again(tree().build().unwrap(), sink().allow_delete(true), delete())
        else {
            panic!("three were to be removed");
        };
        removed.result.unwrap();
        assert_eq!(removed.report.deleted, 3);
        assert_same(&top, &there);
        // A filter's choice is not for receivers to take for all there is.
        let filtered = || {
            tree()
                .filter(|below, _| below != Path::new("mine"))
                .build()
                .unwrap()
        };
        fs::write(there.join("mine"), "theirs").unwrap();
        let sender = StreamSender::open(domain, sender_config()).unwrap();
        let nowhere = [PeerAddr::any()];
        let refused = sender
            .send(filtered(), nowhere, delete())
            .unwrap_err()
            .to_string();
        assert!(refused.contains("ExtraUnlessProtected"), "{refused}");
        let protected = sink().allow_delete(true);
        let protected = protected.protect(|below, _| below == Path::new("mine"));
        let unless = options().delete(Deletion::ExtraUnlessProtected);
        let (protected, 0) = again(filtered(), protected, unless) else {
            panic!("it is protected");
        };
        protected.result.unwrap();
        assert_eq!(text(there.join("mine")), "theirs");
        std::os::unix::net::UnixListener::bind(top.join("socket")).unwrap();
        let skips = tree().build().unwrap();
        let refused = sender
            .send(skips, nowhere, delete())
            .unwrap_err()
            .to_string();
        assert!(refused.contains("has skipped something"), "{refused}");
    });
}

#[test]
fn what_has_no_time_is_sent_though_its_size_is_the_same() {
    over_both_by_both(|domain, transport| {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let name = from.path().join("timeless");
        for text in ["before", "behind"] {
            fs::write(&name, text).unwrap();
            let file = fs::File::options().write(true).open(&name).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
            let sink = DirectorySink::new(to.path()).unwrap();
            let receiver = listen(domain, receiver_config(sink).rma_slots(16));
            let source = FileSource::builder().file(&name).build().unwrap();
            let options = SendOptions::default()
                .transport(transport)
                .skip_unchanged(true)
                .sync(true);
            let outcome = send_to(domain, source, &receiver, options);
            outcome.result.unwrap();
            let StreamEvent::Complete(..) = next_end(&receiver) else {
                panic!("the stream did not arrive");
            };
            receiver.close(by());
            let there = fs::read_to_string(to.path().join("timeless"));
            assert_eq!(there.unwrap(), text);
        }
    });
}
