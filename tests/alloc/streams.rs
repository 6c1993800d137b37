//! What is kept of streams takes no more memory than its account says.

use std::sync::Arc;

use fabricast::stream::{
    BlockPlan, DirectorySink, Entry, EntryKind, Limits, Manifest, Modified, RelativeName,
    SinkFactory, Stop, StreamIdentity, StreamOffer, crc32c,
};

use crate::counting::most_bytes_of;

/// What a sender announces is what a receiver takes memory for, and no more, whatever is kept of an
/// earlier stream.
#[test]
fn what_a_sink_keeps_takes_no_more_memory_than_its_account_says() {
    const BLOCKS: u64 = 100_000;
    let dir = tempfile::tempdir().expect("a directory");
    let entry = Entry {
        name: RelativeName::new(b"file").expect("a name"),
        kind: EntryKind::File,
        mode: 0o644,
        size: BLOCKS,
        modified: Modified::default(),
        sparse: false,
    };
    let manifest = Manifest::new([entry]).expect("a manifest");
    let offer = StreamOffer {
        identity: StreamIdentity::default(),
        plan: Arc::new(BlockPlan::new(&manifest, 1)),
        manifest: Arc::new(manifest),
        crc32c: true,
        blake3: false,
        sync: false,
        read_back: true,
        restart: false,
        skip_unchanged: false,
        compare_content: false,
        delete: false,
    };
    let factory = DirectorySink::new(dir.path()).expect("it is there");
    let sink = factory.make(&offer).expect("made");
    sink.open(&offer, &Stop::default()).expect("opened");
    for block in offer.plan.iter() {
        let byte = [block.index as u8];
        sink.write(block, crc32c(&byte), &byte).expect("written");
    }
    sink.abandon();
    let account = Limits::memory_of(1, 32, BLOCKS);
    // Buffers for the journal, the directory and the file do not grow with the stream.
    let allowed = account + (160 << 10);
    let sink = factory.make(&offer).expect("made");
    let (most, kept) = most_bytes_of(|| sink.open(&offer, &Stop::default()).expect("opened"));
    println!("{most} bytes to see what is there, the account is {account}");
    assert!(most <= allowed, "{most} bytes, the account is {account}");
    drop(kept);
    let (most, finished) = most_bytes_of(|| sink.finish(&Stop::default()));
    finished.expect("whole");
    println!("{most} bytes to finish");
    assert!(most <= allowed, "{most} bytes, the account is {account}");
    // It is no more than twice what is taken, either: nobody is refused for nothing.
    assert!(
        account <= 2 * most + (160 << 10),
        "{account}, {most} were taken"
    );
}
