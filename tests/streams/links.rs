//! Symbolic links: kept, followed, or left out; and what a receiver takes of them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use fabricast::stream::{
    BlockPlan, DirectorySink, DiscardSink, EntryKind, FileSource, LinkTargets, Manifest,
    MemorySink, PeerOutcome, SendOptions, SinkFactory, SourceLinks, Stop, StreamIdentity,
    StreamOffer, crc32c,
};
use fabricast::stream::{BlockSource, SinkError};

use crate::world::*;

/// A tree with links of all kinds that lead to something in it, or to nothing.
fn make_links(top: &Path) {
    fs::create_dir_all(top.join("a/b")).unwrap();
    fs::create_dir_all(top.join("only links")).unwrap();
    fs::write(top.join("a/file"), content(100_000, 1)).unwrap();
    fs::write(top.join("small"), b"small").unwrap();
    symlink("a/file", top.join("to a file")).unwrap();
    symlink("../small", top.join("a/up")).unwrap();
    symlink("../../a", top.join("a/b/around")).unwrap();
    symlink("no/such/file", top.join("dangling")).unwrap();
    symlink("itself", top.join("itself")).unwrap();
    symlink("../a", top.join("only links/one")).unwrap();
    symlink(OsStr::from_bytes(b"\xff\x01 \n"), top.join("no text")).unwrap();
    let long = ["x/"; 2047].concat() + "y";
    assert_eq!(long.len() as u64, EntryKind::LINK_MAX);
    symlink(long, top.join("long")).unwrap();
}

fn kept(top: &Path) -> FileSource {
    let source = FileSource::builder().tree(top).links(SourceLinks::Keep);
    let source = source.build().unwrap();
    assert_eq!(source.skipped(), 0);
    source
}

#[test]
fn links_arrive_as_links() {
    over_both_by_both(|domain, transport| {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let top = from.path().join("tree");
        make_links(&top);
        let there = to.path().join("tree");
        let again = |options: SendOptions| {
            let sink = DirectorySink::new(to.path()).unwrap();
            let receiver = listen(domain, receiver_config(sink).rma_slots(16));
            let outcome = send_to(domain, kept(&top), &receiver, options.transport(transport));
            outcome.result.unwrap();
            complete(&receiver);
            assert_same(&top, &there);
            outcome.report
        };
        again(SendOptions::default().sync(true).read_back(true));
        // In place of a link comes a file, and of a file a link.
        fs::remove_file(there.join("small")).unwrap();
        symlink("../elsewhere", there.join("small")).unwrap();
        fs::remove_file(there.join("dangling")).unwrap();
        fs::write(there.join("dangling"), b"a file").unwrap();
        again(SendOptions::default().blake3(true));
        assert!(!to.path().join("elsewhere").exists(), "no link is followed");
        // What is unchanged is kept, what is changed is not.
        let options = || SendOptions::default().skip_unchanged(true).sync(true);
        let second = again(options());
        assert_eq!((second.sent_bytes, second.unchanged), (0, 10));
        fs::remove_file(top.join("to a file")).unwrap();
        symlink("a/up", top.join("to a file")).unwrap();
        let third = again(options());
        assert_eq!((third.sent_bytes, third.unchanged), (4, 9));
    });
}

#[test]
fn links_that_lead_out_are_refused_unless_asked_for() {
    over_both(|domain| {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let top = from.path().join("tree");
        fs::create_dir_all(&top).unwrap();
        fs::write(top.join("a"), b"a").unwrap();
        symlink("/etc/passwd", top.join("link")).unwrap();
        let with = |sink| {
            let receiver = listen(domain, sink);
            let options = SendOptions::default().reconnects(0);
            send_to(domain, kept(&top), &receiver, options)
        };
        let refused = |outcome: PeerOutcome, why: &[&str]| {
            let text = outcome.result.unwrap_err().to_string();
            assert!(why.iter().all(|part| text.contains(part)), "{text}");
        };
        let directory = || DirectorySink::new(to.path()).unwrap();
        let outcome = with(receiver_config(directory()));
        let why = ["tree/link: a symbolic link to /etc/passwd", "--any-links"];
        refused(outcome, &why);
        assert!(!to.path().join("tree").exists());
        let why = ["1 of the entries are symbolic links", "takes none"];
        refused(
            with(receiver_config(directory().links(LinkTargets::None))),
            &why,
        );
        refused(with(receiver_config(MemorySink::new(1 << 20))), &why);
        let outcome = with(receiver_config(DiscardSink));
        outcome.result.unwrap();
        // What was refused goes on where it was.
        let outcome = with(receiver_config(directory().links(LinkTargets::Any)));
        outcome.result.unwrap();
        assert_same(&top, &to.path().join("tree"));
    });
}

#[test]
fn links_are_followed_but_not_around() {
    let from = tempfile::tempdir().unwrap();
    let top = from.path().join("tree");
    make_links(&top);
    let outside = from.path().join("outside");
    fs::create_dir_all(outside.join("sub")).unwrap();
    fs::write(outside.join("sub/x"), b"outside").unwrap();
    symlink("..", outside.join("sub/up")).unwrap();
    symlink("../../tree", outside.join("sub/tree")).unwrap();
    symlink("../outside", top.join("out")).unwrap();
    symlink("/dev/null", top.join("device")).unwrap();
    let source = FileSource::builder().tree(&top).links(SourceLinks::Follow);
    let source = source.filter(|below, kind| {
        assert_ne!((kind, below.ends_with("out")), (EntryKind::File, true));
        !below.ends_with("only links")
    });
    let source = source.build().unwrap();
    let names: Vec<_> = source
        .manifest()
        .iter()
        .map(|it| it.name.to_string())
        .collect();
    let wanted = [
        "tree",
        "tree/a",
        "tree/a/b",
        "tree/a/file",
        "tree/a/up",
        "tree/out",
        "tree/out/sub",
        "tree/out/sub/x",
        "tree/small",
        "tree/to a file",
    ];
    assert_eq!(names, wanted);
    let skipped = source.skipped_paths().iter();
    let mut skipped: Vec<_> = skipped
        .map(|it| {
            (
                it.path
                    .strip_prefix(from.path())
                    .unwrap()
                    .display()
                    .to_string(),
                it.what,
            )
        })
        .collect();
    skipped.sort_unstable();
    let around = "a symbolic link to a directory that it lies in";
    let nowhere = "a symbolic link that leads nowhere";
    let wanted = [
        ("tree/a/b/around".to_owned(), around),
        ("tree/dangling".to_owned(), nowhere),
        ("tree/device".to_owned(), "a device"),
        ("tree/itself".to_owned(), nowhere),
        ("tree/long".to_owned(), nowhere),
        ("tree/no text".to_owned(), nowhere),
        ("tree/out/sub/tree".to_owned(), around),
        ("tree/out/sub/up".to_owned(), around),
    ];
    assert_eq!(skipped, wanted);
    over_both(|domain| {
        let to = tempfile::tempdir().unwrap();
        let receiver = listen(
            domain,
            receiver_config(DirectorySink::new(to.path()).unwrap()),
        );
        let source = FileSource::builder().tree(&top).links(SourceLinks::Follow);
        let outcome = send_to(
            domain,
            source.build().unwrap(),
            &receiver,
            SendOptions::default(),
        );
        outcome.result.unwrap();
        let there = to.path().join("tree");
        assert_eq!(fs::read(there.join("out/sub/x")).unwrap(), b"outside");
        assert_eq!(
            fs::read(there.join("to a file")).unwrap(),
            content(100_000, 1)
        );
        assert_eq!(fs::read(there.join("only links/one/up")).unwrap(), b"small");
    });
}

/// Another link, or something else in its place, since the source was built.
#[test]
fn a_link_that_changes_is_found_out() {
    let from = tempfile::tempdir().unwrap();
    let top = from.path().join("tree");
    fs::create_dir_all(&top).unwrap();
    let link = top.join("link");
    let with = |change: &dyn Fn()| {
        let _ = fs::remove_file(&link);
        symlink("first", &link).unwrap();
        let source = kept(&top);
        let mut target = [0; 5];
        source.read(1, 0, &mut target).unwrap();
        assert_eq!(&target, b"first");
        change();
        let read = source.read(1, 0, &mut target).unwrap_err().to_string();
        let end = source.check_unchanged().unwrap_err().to_string();
        for text in [read, end] {
            assert!(text.contains("link: it was "), "{text}");
        }
    };
    let gone = || fs::remove_file(&link).unwrap();
    with(&gone);
    with(&|| {
        gone();
        symlink("other", &link).unwrap();
    });
    with(&|| {
        gone();
        fs::write(&link, b"first").unwrap();
    });
}

/// A stream that was cut when its links were made, and nothing was placed yet.
#[test]
fn a_finished_link_is_made_again_where_it_could_not_be_placed() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(from.path().join("d")).unwrap();
    symlink("b", from.path().join("d/a")).unwrap();
    fs::write(from.path().join("d/b"), b"b").unwrap();
    let source = kept(&from.path().join("d"));
    let manifest = Manifest::new(source.manifest().iter()).unwrap();
    let offer = StreamOffer {
        identity: StreamIdentity::default(),
        plan: Arc::new(BlockPlan::new(&manifest, 4096)),
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
    let factory = DirectorySink::new(to.path()).unwrap();
    let stop = Stop::default();
    let write = |missing: &[u64]| {
        let sink = factory.make(&offer).unwrap();
        let kept = sink.open(&offer, &stop).unwrap();
        let blocks: Vec<_> = kept.blocks().missing(0).flatten().collect();
        assert_eq!(blocks, missing);
        for block in blocks.iter().filter_map(|index| offer.plan.get(*index)) {
            sink.write(block, crc32c(b"b"), b"b").unwrap();
        }
        sink
    };
    // It becomes a link, and a directory takes its place when it is to be placed.
    let sink = write(&[0, 1]);
    fs::create_dir_all(to.path().join("d")).unwrap();
    let hidden = to.path().join(&names(to.path())[0]).join("tree/d/a");
    assert!(hidden.is_file());
    fs::create_dir_all(to.path().join("d/b")).unwrap();
    let error = sink.finish(&stop).unwrap_err();
    assert!(matches!(error, SinkError::Os { .. }), "{error}");
    sink.abandon();
    fs::remove_file(&hidden).unwrap();
    symlink("b", &hidden).unwrap();
    fs::remove_dir(to.path().join("d/b")).unwrap();
    let sink = write(&[0]);
    sink.finish(&stop).unwrap();
    assert_same(&from.path().join("d"), &to.path().join("d"));
}
