use super::*;
use crate::buffer::SharedBufferConfig;
use crate::memory::Region;
use crate::storage::rig::{byte_at, bytes_of, directories, soon};
use crate::storage::{BatchRefusedKind, OpenOptions};

fn both() -> [WriterOptions; 2] {
    let threads = ThreadPool::new(2, 64).expect("two threads");
    let threads = WriterOptions {
        back_end: BackEndChoice::Posix,
        pool: Some(threads),
        ..WriterOptions::default()
    };
    [WriterOptions::default(), threads]
}

fn pool(slots: u32, size: usize) -> SharedBufferManager {
    let config = SharedBufferConfig {
        slots: Some(slots),
        alignment: 4096,
        ..SharedBufferConfig::new(size)
    };
    let region = Region::host(slots as usize * size).build().expect("memory");
    SharedBufferManager::new(region, config).expect("it fits")
}

fn block(pool: &SharedBufferManager, offset: u64, len: usize) -> Option<Buffer> {
    let mut buffer = pool.try_acquire()?;
    for (at, byte) in (offset..).zip(&mut buffer[..len]) {
        *byte = byte_at(at);
    }
    Some(buffer.freeze(len))
}

#[test]
fn blocks_land_at_their_offsets_whatever_their_order() {
    for options in both() {
        for directory in directories() {
            for direct in [DirectIo::On, DirectIo::Off] {
                let path = directory.path().join("written");
                let file = OpenOptions::new().flags("w").direct(direct).open(&path);
                let file = file.expect("it opens");
                let pool = pool(4, 8192);
                let options = WriterOptions {
                    direct: Some(direct),
                    depth: 3,
                    sync: true,
                    ..options.clone()
                };
                let mut writer = BlockWriter::new(&file, options).expect("a writer");
                writer.register_pool(&pool).expect("few enough bytes");
                drop(file);
                let mut written = Vec::new();
                // From the back to the front; the last one is short.
                for index in (0..20).rev() {
                    let len = if index == 19 { 1000 } else { 8192 };
                    let mut next = block(&pool, index * 8192, len);
                    while let Some(buffer) = next.take() {
                        match writer.write(index, index * 8192, buffer) {
                            Ok(()) => {}
                            Err(refused) => {
                                assert!(matches!(
                                    refused.kind,
                                    BatchRefusedKind::Full { depth: 3 }
                                ));
                                next = Some(refused.buffer);
                                assert!(
                                    writer.wait(1, soon(), &mut written).expect("no error") > 0
                                );
                            }
                        }
                    }
                    written.retain(|one| {
                        one.result
                            .as_ref()
                            .is_ok_and(|moved| moved.bytes != one.buffer.len())
                    });
                    assert!(written.is_empty(), "all of a block or an error");
                }
                let report = writer.finish(soon(), &mut written).expect("no error");
                assert_eq!(
                    (report.blocks, report.failed, report.bytes),
                    (20, 0, 19 * 8192 + 1000)
                );
                let there = std::fs::read(&path).expect("it is there");
                assert!(there == bytes_of(0..19 * 8192 + 1000));
                drop(written);
                assert_eq!(pool.free_count(), 4);
            }
        }
    }
}

#[test]
fn a_block_that_fails_is_named_comes_back_and_ends_the_finish() {
    for options in both() {
        let directory = &directories()[0];
        let path = directory.path().join("written");
        let file = FileHandle::open(&path, "w").expect("it opens");
        let pool = pool(4, 4096);
        let mut writer = BlockWriter::new(&file, options).expect("a writer");
        let too_far = i64::MAX as u64 - 4096;
        writer
            .write(0, 0, block(&pool, 0, 4096).expect("a slot"))
            .expect("room");
        // Accepted, and refused by the file system: beyond its largest file.
        writer
            .write(1, too_far, block(&pool, 0, 4096).expect("a slot"))
            .expect("room");
        // Refused at once.
        let error = writer
            .write(2, too_far + 1, block(&pool, 0, 4096).expect("a slot"))
            .expect_err("no such offset");
        assert!(matches!(error.kind, BatchRefusedKind::File(_)), "{error}");
        drop(error);
        let mut written = Vec::new();
        let error = writer
            .finish(soon(), &mut written)
            .expect_err("block 1 is not there");
        let FinishError::Blocks {
            failed: 1,
            index: 1,
            first,
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!(
            (first.errno(), first.offset),
            (Some(libc::EFBIG), Some(too_far))
        );
        written.sort_by_key(|one| one.index);
        assert!(written[0].result.is_ok());
        let failed = written[1].result.as_ref().expect_err("named");
        assert_eq!(
            (failed.index, failed.offset, written[1].buffer.len()),
            (1, too_far, 4096)
        );
        assert_eq!(writer.report().bytes, 4096);
        drop(written);
        assert_eq!(pool.free_count(), 4);
    }
}
