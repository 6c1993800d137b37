//! Files with holes, which are neither sent nor filled on the way.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::stream::{
    BlockSource, DirectorySink, FileSource, Manifest, SendOptions, SourceError, StreamError,
    StreamEvent, StreamSender,
};

use crate::world::*;

const KIB: u64 = 1024;
const MIB: u64 = KIB * KIB;

/// A file of this size, with data at these offsets, of these lengths, and holes elsewhere.
fn make(path: &Path, size: u64, data: &[(u64, usize)]) {
    let file = File::create(path).unwrap();
    file.set_len(size).unwrap();
    for (offset, len) in data {
        file.write_all_at(&content(*len, *offset), *offset).unwrap();
    }
}

/// Bytes that it takes on its device.
fn room(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn holes_stay_holes() {
    let from = tempfile::tempdir().unwrap();
    let top = from.path().join("tree");
    fs::create_dir(&top).unwrap();
    let data = [(0, 5), (3 * MIB - 7, 100_000), (4 * MIB + 1, 1_000_000)];
    make(&top.join("image"), 8 * MIB, &data);
    make(&top.join("hole"), 8 * MIB, &[]);
    make(&top.join("end"), 5 * MIB + 1, &[(5 * MIB, 1)]);
    make(&top.join("small"), 300 * KIB, &[(200 * KIB, 10)]);
    // What has no holes gets none, though it has zeros.
    fs::write(top.join("zeros"), vec![0; 2 << 20]).unwrap();
    if room(&top.join("hole")) > 0 || room(&top.join("zeros")) < 2 * MIB {
        return println!("SKIPPED: the file system of temporary files has no holes");
    }
    over_both_by_both(|domain, transport| {
        let to = tempfile::tempdir().unwrap();
        for options in [
            SendOptions::default().sync(true).read_back(true),
            SendOptions::default().blake3(true).restart(true),
        ] {
            let sink = DirectorySink::new(to.path()).unwrap();
            let receiver = listen(domain, receiver_config(sink).rma_slots(16));
            let source = FileSource::tree(&top).unwrap();
            let sparse = source
                .manifest()
                .iter()
                .filter(|entry| entry.sparse)
                .count();
            assert_eq!(sparse, 4);
            let outcome = send_to(domain, source, &receiver, options.transport(transport));
            outcome.result.unwrap();
            complete(&receiver);
            assert_same(&top, &to.path().join("tree"));
        }
        let taken = |name: &str| room(&to.path().join("tree").join(name));
        // Data, in pieces of 64 KiB.
        assert!(
            (MIB..2 * MIB).contains(&taken("image")),
            "{}",
            taken("image")
        );
        assert_eq!(taken("hole"), 0);
        assert!(taken("end") <= 64 * KIB && taken("small") <= 64 * KIB);
        assert!(taken("zeros") >= 2 * MIB);
    });
}

#[test]
fn holes_are_known_before_anything_is_read() {
    let from = tempfile::tempdir().unwrap();
    let path = from.path().join("image");
    make(&path, 1 << 40, &[]);
    let source = FileSource::file(&path).unwrap();
    let entry = source.manifest().get(0).unwrap();
    assert!(entry.sparse && entry.size == 1 << 40);
    let ranged = FileSource::builder().range(&path, 0..1000).build().unwrap();
    assert!(ranged.manifest().get(0).unwrap().sparse);
}

/// A source whose last pieces of data can't be read before the gate is open; what is in its holes
/// is not sent.
#[derive(Debug)]
struct GatedHoles {
    file: FileSource,
    from: u64,
    gate: Arc<Gate>,
}

impl BlockSource for GatedHoles {
    fn manifest(&self) -> &Manifest {
        self.file.manifest()
    }

    fn stamp(&self) -> [u8; 16] {
        self.file.stamp()
    }

    fn read(&self, entry: usize, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        if offset >= self.from {
            self.gate.pass();
        }
        self.file.read(entry, offset, into)
    }

    fn is_hole(&self, entry: usize, offset: u64, len: usize) -> bool {
        self.file.is_hole(entry, offset, len)
    }

    fn check_unchanged(&self) -> Result<(), SourceError> {
        self.file.check_unchanged()
    }
}

const LONG: u64 = 8 << 30;
const LONG_DATA: [(u64, usize); 3] = [(5, 100_000), (3 << 30, 70_000), (LONG - 9, 9)];

/// Whether a file is the long one: the data where it is to be, and nothing else.
fn assert_long(path: &Path) {
    let file = File::open(path).unwrap();
    assert_eq!(file.metadata().unwrap().len(), LONG);
    for (offset, len) in LONG_DATA {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, offset).unwrap();
        assert_eq!(bytes, content(len, offset), "at {offset}");
    }
    // Anything else would take room: the data lies in five pieces of 64 KiB.
    assert!(room(path) <= 6 * 64 * KIB, "{}", room(path));
}

#[test]
fn holes_are_not_sent() {
    let from = tempfile::tempdir().unwrap();
    let path = from.path().join("image");
    make(&path, LONG, &LONG_DATA);
    if room(&path) > MIB {
        return println!("SKIPPED: the file system of temporary files has no holes");
    }
    over_both(|domain| {
        let to = tempfile::tempdir().unwrap();
        let receiver = listen(
            domain,
            receiver_config(DirectorySink::new(to.path()).unwrap()),
        );
        let source = FileSource::file(&path).unwrap();
        let outcome = send_to(domain, source, &receiver, SendOptions::default());
        outcome.result.unwrap();
        let report = outcome.report;
        assert_eq!(report.bytes, LONG);
        // Blocks with data, of which there are three.
        assert!(report.sent_bytes <= 3 * MIB, "{}", report.sent_bytes);
        let received = complete(&receiver);
        assert_eq!(received.bytes, LONG);
        assert_long(&to.path().join("image"));
    });
}

/// Zeros are hashed by both sides as any other bytes.
#[test]
fn holes_are_hashed() {
    let from = tempfile::tempdir().unwrap();
    let path = from.path().join("image");
    make(&path, 40 * MIB, &[(7, 5), (30 * MIB, 100_000)]);
    over_both(|domain| {
        let to = tempfile::tempdir().unwrap();
        let receiver = listen(
            domain,
            receiver_config(DirectorySink::new(to.path()).unwrap()),
        );
        let source = FileSource::file(&path).unwrap();
        let options = SendOptions::default().blake3(true).read_back(true);
        let outcome = send_to(domain, source, &receiver, options);
        outcome.result.unwrap();
        let report = outcome.report;
        let whole = *blake3::hash(&fs::read(&path).unwrap()).as_bytes();
        assert_eq!((report.blake3, report.blake3_compared), (Some(whole), true));
        complete(&receiver);
        assert_same(&path, &to.path().join("image"));
    });
}

/// What was announced before the end is kept, as what was sent is.
#[test]
fn a_cut_stream_with_holes_goes_on_where_it_was() {
    let from = tempfile::tempdir().unwrap();
    let path = from.path().join("image");
    make(&path, LONG, &LONG_DATA);
    if room(&path) > MIB {
        return println!("SKIPPED: the file system of temporary files has no holes");
    }
    over_both(|domain| {
        let to = tempfile::tempdir().unwrap();
        let sink = DirectorySink::new(to.path()).unwrap();
        let receiver = listen(domain, receiver_config(sink));
        let sender = StreamSender::open(domain, sender_config()).unwrap();
        let gate = Arc::new(Gate::default());
        let source = GatedHoles {
            file: FileSource::file(&path).unwrap(),
            from: 1 << 30,
            gate: Arc::clone(&gate),
        };
        let peers = [receiver.local_addr()];
        let transfer = sender.send(source, peers, SendOptions::default()).unwrap();
        let by = by();
        while transfer.progress()[0].written < LONG / 4 {
            assert!(Instant::now() < by, "{:?}", transfer.progress());
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(sender);
        gate.open();
        let outcome = transfer.wait(by).unwrap().pop().unwrap();
        outcome.result.expect_err("it was cut");
        match next_end(&receiver) {
            StreamEvent::Cut(..) => {}
            other => panic!("{other:?}"),
        }
        let source = FileSource::file(&path).unwrap();
        let outcome = send_to(domain, source, &receiver, SendOptions::default());
        outcome.result.unwrap();
        let report = outcome.report;
        assert!(report.resumed_bytes >= LONG / 8, "{report}");
        assert!(report.sent_bytes <= 3 * MIB, "{}", report.sent_bytes);
        complete(&receiver);
        assert_long(&to.path().join("image"));
    });
}

/// Nothing of it appears: what was announced as zeros is not zeros any more.
#[test]
fn a_hole_that_is_filled_meanwhile_is_found_out() {
    let from = tempfile::tempdir().unwrap();
    let path = from.path().join("image");
    over_both(|domain| {
        make(&path, 64 * MIB, &[(0, 5), (64 * MIB - 5, 5)]);
        let to = tempfile::tempdir().unwrap();
        let sink = DirectorySink::new(to.path()).unwrap();
        let receiver = listen(domain, receiver_config(sink));
        let sender = StreamSender::open(domain, sender_config()).unwrap();
        let gate = Arc::new(Gate::default());
        let source = GatedHoles {
            file: FileSource::file(&path).unwrap(),
            from: 1,
            gate: Arc::clone(&gate),
        };
        let peers = [receiver.local_addr()];
        let transfer = sender.send(source, peers, SendOptions::default()).unwrap();
        let by = by();
        while transfer.progress()[0].written < 32 * MIB {
            assert!(Instant::now() < by, "{:?}", transfer.progress());
            std::thread::sleep(Duration::from_millis(5));
        }
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"no hole", 16 * MIB).unwrap();
        gate.open();
        let outcome = transfer.wait(by).unwrap().pop().unwrap();
        match outcome.result {
            Err(StreamError::SourceChanged { what }) => {
                assert!(what.contains("it was written to"), "{what}")
            }
            other => panic!("{other:?}"),
        }
        assert!(!to.path().join("image").exists());
        sender.close(by);
    });
}
