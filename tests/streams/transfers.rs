//! Streams that go well.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use fabricast::buffer::SharedBufferManager;
use fabricast::storage::{BackEnd, BackEndChoice, DirectIo, OpenOptions, io_uring_refused};
use fabricast::stream::{
    BlockSource, BufferSource, DirectorySink, FileSource, FileSourceBuilder, MemorySink,
    RefusalCode, SendOptions, SourceError, StreamError, StreamEvent, StreamSender, Transport,
};

use crate::world::*;

#[test]
fn a_file_arrives_whatever_its_size() {
    over_both_by_both(|domain, transport| {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let config = receiver_config(DirectorySink::new(to.path()).unwrap());
        // Over FI_EP_RDM windows do not come back before the receiver ends: enough for each file.
        let receiver = listen(domain, config.rma_slots(128));
        for size in [0, 1, 65_535, 65_536, 65_537, 5_000_001] {
            let name = format!("of {size} bytes");
            let path = from.path().join(&name);
            fs::write(&path, content(size, size as u64)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
            let source = FileSource::file(&path).unwrap();
            let options = SendOptions::default().transport(transport);
            let outcome = send_to(domain, source, &receiver, options);
            let report = &outcome.report;
            println!(
                "{name}: {:?}, {} new attempts",
                report.took, report.reconnects
            );
            outcome
                .result
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(outcome.report.bytes, size as u64);
            assert_same(&path, &to.path().join(&name));
            match next_end(&receiver) {
                StreamEvent::Complete(_, report) => assert_eq!(report.bytes, size as u64),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(
            names(to.path()),
            names(from.path()),
            "nothing else is left there"
        );
        receiver.close(by());
    });
}

/// Empty directories, names with spaces and unicode and of 255 bytes, files of all sizes.
pub(crate) fn make_tree(top: &Path) {
    fs::create_dir_all(top.join("a b/ü/empty")).unwrap();
    fs::create_dir_all(top.join("deep/er/and deeper")).unwrap();
    fs::write(top.join("a b/ü/größe"), content(200_000, 1)).unwrap();
    fs::write(top.join("deep/er/and deeper/end"), content(65_536, 2)).unwrap();
    fs::write(top.join("deep/er/nothing"), b"").unwrap();
    fs::write(top.join("n".repeat(255)), content(3, 3)).unwrap();
    for number in 0..100 {
        fs::write(
            top.join(format!("deep/{number:03}")),
            content(number * 37, number as u64),
        )
        .unwrap();
    }
    fs::set_permissions(
        top.join("deep/er/nothing"),
        fs::Permissions::from_mode(0o400),
    )
    .unwrap();
    fs::set_permissions(top.join("a b/ü/empty"), fs::Permissions::from_mode(0o750)).unwrap();
}

#[test]
fn a_tree_arrives_with_names_rights_and_times() {
    over_both_by_both(|domain, transport| {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let top = from.path().join("the tree");
        make_tree(&top);
        std::os::unix::fs::symlink("/etc/passwd", top.join("link")).unwrap();
        let config = receiver_config(DirectorySink::new(to.path()).unwrap());
        let receiver = listen(domain, config.rma_slots(3));
        let source = FileSource::tree(&top).unwrap();
        assert_eq!(source.skipped(), 1, "the link");
        let options = SendOptions::default().sync(true).read_back(true);
        let options = options.transport(transport);
        let outcomes = send(domain, source, &[receiver.local_addr()], options);
        outcomes[0].result.clone().unwrap();
        fs::remove_file(top.join("link")).unwrap();
        // Removing the link changed the time of the directory that it was in.
        let arrived = to.path().join("the tree");
        let file = fs::File::open(&top).unwrap();
        file.set_modified(fs::metadata(&arrived).unwrap().modified().unwrap())
            .unwrap();
        assert_same(&top, &arrived);
        match next_end(&receiver) {
            StreamEvent::Complete(arrival, report) => {
                assert_eq!(report.read_back.bytes, arrival.bytes);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(names(to.path()).len(), 1, "nothing else is left there");
        receiver.close(by());
    });
}

#[test]
fn both_sides_count_what_they_do_with_files_whatever_moves_the_bytes() {
    let ways = [
        (DirectIo::Auto, BackEndChoice::Auto, BackEnd::Posix),
        (DirectIo::Off, BackEndChoice::Posix, BackEnd::Posix),
        (DirectIo::On, BackEndChoice::IoUring, BackEnd::IoUring),
    ];
    over_both_by_both(|domain, transport| {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let top = from.path().join("tree");
        make_tree(&top);
        fs::write(top.join("long"), content(1_000_001, 9)).unwrap();
        let opened = OpenOptions::new().read(true).direct(DirectIo::On);
        let probe = opened.open(top.join("long")).unwrap();
        for (direct, choice, back_end) in ways {
            let sink = DirectorySink::new(to.path()).unwrap();
            let sink = sink.direct(direct).back_end(choice);
            let receiver = listen(domain, receiver_config(sink).rma_slots(16));
            let source = FileSource::builder().tree(&top);
            let source = source.direct(direct).back_end(choice).build().unwrap();
            let options = SendOptions::default().transport(transport);
            let bytes = source.manifest().bytes();
            // Several small files in one message do not lie as O_DIRECT wants it.
            let small = source.manifest().iter().map(|entry| entry.size);
            let small: u64 = small.filter(|size| *size < 64 << 10).sum();
            let may_bounce = match (direct, transport) {
                (DirectIo::On, Transport::Message) => small,
                _ => 0,
            };
            let outcome = send_to(domain, source, &receiver, options);
            outcome.result.unwrap();
            assert_same(&top, &to.path().join("tree"));
            let StreamEvent::Complete(_, report) = next_end(&receiver) else {
                panic!("the stream did not arrive");
            };
            receiver.close(by());
            let (read, written) = (&outcome.report.io.read, &report.io.write);
            // By themselves, as the settings are, writes go around the page cache.
            let direct_sides = match direct {
                DirectIo::On => [true, true],
                DirectIo::Auto => [false, true],
                DirectIo::Off => [false, false],
            };
            let sides = [(read, "sender"), (written, "receiver")];
            for ((io, side), is_direct) in sides.into_iter().zip(direct_sides) {
                assert_eq!(io.bytes(), bytes, "{side}: {io:?}");
                assert_eq!(io.errors(), 0, "{side}: {io:?}");
                assert!(
                    io.bounced_bytes <= may_bounce,
                    "what lies well is not copied: {side}: {io:?}"
                );
                assert_eq!(io.operations(), io.latency.count(), "{side}: {io:?}");
                if choice != BackEndChoice::IoUring || io_uring_refused().is_none() {
                    assert_eq!(io.back_end(back_end).bytes, bytes, "{side}: {io:?}");
                }
                match probe.direct_refused() {
                    Some(_) => assert_eq!(io.direct_bytes, 0, "{side}: {io:?}"),
                    None => assert_eq!(io.direct_bytes > bytes / 2, is_direct, "{side}: {io:?}"),
                }
            }
            println!("{direct:?} by {choice:?}: {}", report.to_json());
        }
    });
}

#[test]
fn a_list_a_range_and_another_name() {
    over_both(|domain| {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let bytes = content(1_000_000, 7);
        for name in ["one", "two"] {
            fs::write(from.path().join(name), &bytes).unwrap();
        }
        let receiver = listen(
            domain,
            receiver_config(DirectorySink::new(to.path()).unwrap()),
        );
        let source = FileSource::builder()
            .file(from.path().join("one"))
            .range(from.path().join("two"), 12_345..777_777)
            .file_as(from.path().join("two"), "sub/directory/three")
            .build()
            .unwrap();
        let outcomes = send(
            domain,
            source,
            &[receiver.local_addr()],
            SendOptions::default(),
        );
        outcomes[0].result.clone().unwrap();
        let got = |name: &str| fs::read(to.path().join(name)).unwrap();
        assert!(got("one") == bytes);
        assert!(got("two") == bytes[12_345..777_777]);
        assert!(got("sub/directory/three") == bytes);
        receiver.close(by());
    });
    let here = tempfile::tempdir().unwrap();
    let path = here.path().join("file");
    fs::write(&path, b"12345").unwrap();
    let build = |builder: FileSourceBuilder| builder.build().unwrap_err();
    let twice = build(FileSource::builder().file(&path).file(&path));
    assert!(matches!(twice, SourceError::Manifest(_)), "{twice:?}");
    let behind = build(FileSource::builder().range(&path, 3..6));
    assert!(matches!(behind, SourceError::Other(_)), "{behind:?}");
    let escapes = build(FileSource::builder().file_as(&path, "../file"));
    assert!(matches!(escapes, SourceError::Name { .. }), "{escapes:?}");
    assert_eq!(build(FileSource::builder()), SourceError::Empty);
    let device = build(FileSource::builder().file("/dev/null"));
    assert!(matches!(device, SourceError::NoFile { .. }), "{device:?}");
}

#[test]
fn memory_is_sent_from_where_it_lies_and_received_into_memory() {
    over_both(|domain| {
        let sink = MemorySink::new(1 << 20);
        let receiver = listen(domain, receiver_config(sink.clone()));
        let sender = StreamSender::open(domain, sender_config()).unwrap();
        let pool = SharedBufferManager::allocate_with_headroom(1, 300_000, 64).unwrap();
        sender.register(&pool).unwrap();
        let bytes = content(300_000, 9);
        let mut buffer = pool.try_acquire().unwrap();
        buffer[..300_000].copy_from_slice(&bytes);
        let source = BufferSource::new("region", buffer.freeze(300_000), [1; 16]).unwrap();
        let transfer = sender.send(source, [receiver.local_addr()], SendOptions::default());
        let outcomes = transfer.unwrap().wait(by()).unwrap();
        outcomes[0].result.clone().unwrap();
        let arrived = sink.take();
        assert_eq!(arrived.len(), 1);
        assert!(arrived[0].bytes == bytes);
        assert_eq!(
            arrived[0].manifest.get(0).unwrap().name.as_bytes(),
            b"region"
        );
        // What does not fit is refused, with a reason.
        let from = tempfile::tempdir().unwrap();
        let path = from.path().join("large");
        fs::write(&path, content(1 << 21, 1)).unwrap();
        let source = FileSource::file(&path).unwrap();
        let transfer = sender.send(source, [receiver.local_addr()], SendOptions::default());
        let outcomes = transfer.unwrap().wait(by()).unwrap();
        let refused = outcomes[0].result.clone().unwrap_err();
        let StreamError::Refused { code, reason, .. } = &refused else {
            panic!("{refused:?}")
        };
        assert_eq!(*code, RefusalCode::SPACE);
        assert!(reason.contains("room for 1048576"), "{reason}");
        sender.close(by());
        receiver.close(by());
    });
}

/// The plain hash of one entry; that of several is of theirs.
fn blake3_of(contents: &[Vec<u8>]) -> [u8; 32] {
    let each: Vec<_> = contents
        .iter()
        .map(|bytes| *blake3::hash(bytes).as_bytes())
        .collect();
    match &each[..] {
        [one] => *one,
        all => *blake3::hash(&all.concat()).as_bytes(),
    }
}

#[test]
fn both_sides_hash_the_content_and_say_what_that_cost() {
    over_both(|domain| {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let receiver = listen(
            domain,
            receiver_config(DirectorySink::new(to.path()).unwrap()),
        );
        let mut contents = Vec::new();
        for (number, size) in [1_500_001, 0, 65_536, 777].into_iter().enumerate() {
            contents.push(content(size, number as u64));
            fs::write(from.path().join(number.to_string()), &contents[number]).unwrap();
            let mut source = FileSource::builder();
            for sent in 0..=number {
                source = source.file(from.path().join(sent.to_string()));
            }
            let options = SendOptions::default().blake3(true).read_back(true);
            // Not a power of two: blocks are smaller than they could be.
            let sender =
                StreamSender::open(domain, sender_config().stream(|s| s.block_bytes(50_000)))
                    .unwrap();
            let transfer = sender.send(source.build().unwrap(), [receiver.local_addr()], options);
            let outcome = transfer.unwrap().wait(by()).unwrap().pop().unwrap();
            sender.close(by());
            outcome.result.unwrap();
            let expected = Some(blake3_of(&contents));
            let ours = outcome.report;
            assert_eq!((ours.blake3, ours.blake3_compared), (expected, true));
            assert!(!ours.hash_time.is_zero() && ours.hash_time <= ours.read_time);
            match next_end(&receiver) {
                StreamEvent::Complete(_, theirs) => {
                    assert_eq!((theirs.blake3, theirs.blake3_compared), (expected, true));
                    assert!(!theirs.hash_time.is_zero() && theirs.hash_time <= theirs.write_time);
                    assert!(!theirs.read_back.took.is_zero());
                    assert!(theirs.to_string().contains("BLAKE3"), "{theirs}");
                }
                other => panic!("{other:?}"),
            }
        }
        receiver.close(by());
    });
}
