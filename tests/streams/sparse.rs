//! Files with holes, which are not filled on the way.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use fabricast::stream::{BlockSource, DirectorySink, FileSource, SendOptions};

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
