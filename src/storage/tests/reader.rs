use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::buffer::SharedBufferConfig;
use crate::memory::Region;
use crate::storage::rig::{bytes_of, directories, file_of, soon};
use crate::storage::{FileErrorKind, OpenOptions};

fn pool(slots: u32, size: usize) -> SharedBufferManager {
    let config = SharedBufferConfig {
        slots: Some(slots),
        alignment: 4096,
        ..SharedBufferConfig::new(size)
    };
    let region = Region::host(slots as usize * size.next_multiple_of(4096)).build();
    SharedBufferManager::new(region.expect("memory"), config).expect("it fits")
}

/// Both back ends, with threads of their own.
fn both() -> [ReaderOptions; 2] {
    let threads = ThreadPool::new(2, 64).expect("two threads");
    let threads = ReaderOptions {
        back_end: BackEndChoice::Posix,
        pool: Some(threads),
        ..ReaderOptions::default()
    };
    [ReaderOptions::default(), threads]
}

fn wait_for_all(pool: &SharedBufferManager) {
    let deadline = soon();
    while pool.free_count() < pool.slots() {
        assert!(Instant::now() < deadline, "a buffer is lost");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn blocks_come_in_order_or_as_they_come_and_are_the_file() {
    for options in both() {
        for directory in directories() {
            let path = file_of(&directory, 100_000);
            for (direct, order) in [
                (DirectIo::On, BlockOrder::InOrder),
                (DirectIo::Off, BlockOrder::AsCompleted),
            ] {
                let file = OpenOptions::new().flags("r").direct(direct).open(&path);
                let file = file.expect("it opens");
                // Fewer buffers than blocks ahead.
                let pool = pool(3, 8192);
                let options = ReaderOptions {
                    order,
                    direct: Some(direct),
                    ..options.clone()
                };
                let mut reader = BlockReader::new(&file, 100.., &pool, options).expect("a reader");
                // The reader has what it needs.
                drop(file);
                let mut seen = Vec::new();
                while let Some(block) = reader.next(soon()) {
                    let Block {
                        index,
                        offset,
                        buffer,
                        ..
                    } = block.expect("no error");
                    assert_eq!(offset, 100 + index * 8192);
                    assert!(buffer[..] == bytes_of(offset..offset + buffer.len() as u64));
                    assert_eq!(buffer.len() as u64, 8192.min(100_000 - offset));
                    seen.push(index);
                }
                assert!(reader.next(soon()).is_none(), "still over");
                if order == BlockOrder::AsCompleted {
                    seen.sort_unstable();
                }
                assert_eq!(seen, (0..13).collect::<Vec<_>>());
                drop(reader);
                wait_for_all(&pool);
            }
        }
    }
}

#[test]
fn a_file_that_is_shorter_than_the_range_is_an_error_of_exactly_those_blocks() {
    for options in both() {
        let directory = &directories()[0];
        let file = FileHandle::open(file_of(directory, 10_000), "r").expect("it opens");
        let pool = pool(8, 4096);
        let mut reader = BlockReader::new(&file, ..5 * 4096, &pool, options).expect("a reader");
        for (index, missing) in [0, 0, 3 * 4096 - 10_000, 4096, 4096]
            .into_iter()
            .enumerate()
        {
            match reader.next(soon()).expect("five blocks") {
                Ok(block) => assert_eq!((block.index, missing), (index as u64, 0)),
                Err(error) => {
                    assert_eq!(
                        (error.index, error.offset),
                        (index as u64, index as u64 * 4096)
                    );
                    let BlockErrorKind::EndOfFile { missing: there } = error.kind else {
                        panic!("{error}");
                    };
                    assert_eq!(there, missing);
                }
            }
        }
        assert!(reader.next(soon()).is_none());
    }
}

#[test]
fn truncated_while_it_is_read_and_read_on_where_it_has_grown() {
    for options in both() {
        let directory = &directories()[0];
        let path = file_of(directory, 20 * 4096);
        let file = FileHandle::open(&path, "r").expect("it opens");
        let pool = pool(2, 4096);
        let options = ReaderOptions {
            ahead: 2,
            ..options
        };
        let mut reader = BlockReader::new(&file, .., &pool, options).expect("a reader");
        for index in 0..3 {
            let block = reader.next(soon()).expect("a block").expect("no error");
            assert_eq!(block.index, index);
        }
        let other = std::fs::File::options()
            .write(true)
            .open(&path)
            .expect("it is there");
        other.set_len(8 * 4096 + 5).expect("truncated");
        let mut rest = Vec::new();
        while let Some(block) = reader.next(soon()) {
            rest.push(block.expect("no error").buffer.len());
        }
        assert_eq!(rest, [4096, 4096, 4096, 4096, 4096, 5]);
        // From a block's start on it can be read on; what lies between are zeros.
        other.set_len(10 * 4096).expect("grown");
        reader.seek_block(8);
        let block = reader.next(soon()).expect("a block").expect("no error");
        assert_eq!(
            (block.index, block.buffer.len(), block.buffer[4095]),
            (8, 4096, 0)
        );
    }
}

#[test]
fn an_empty_pool_is_waited_for_and_no_error() {
    for options in both() {
        let directory = &directories()[0];
        let file = FileHandle::open(file_of(directory, 4 * 4096), "r").expect("it opens");
        let pool = pool(2, 4096);
        let mut reader = BlockReader::new(&file, .., &pool, options).expect("a reader");
        let first = reader.next(soon()).expect("a block").expect("no error");
        let second = reader.next(soon()).expect("a block").expect("no error");
        let error = reader
            .next(Instant::now() + Duration::from_millis(20))
            .expect("more blocks")
            .expect_err("no buffer");
        assert!(error.is_would_block(), "{error}");
        assert!(
            matches!(error.kind, BlockErrorKind::NoBuffer { .. }),
            "{error}"
        );
        assert_eq!(error.index, 2);
        // Another thread is done with one: the same call goes on with the same block.
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            drop(first);
        });
        let third = reader.next(soon()).expect("a block").expect("no error");
        assert_eq!((third.index, second.index), (2, 1));
        thread.join().expect("it only drops");
    }
}

#[test]
fn a_block_that_can_not_be_read_is_named_and_can_be_tried_again() {
    for options in both() {
        let directory = &directories()[0];
        let path = file_of(directory, 4 * 4096);
        let file = OpenOptions::new().flags("r").open(&path).expect("it opens");
        let pool = pool(4, 4096);
        // The last offsets that a file may have.
        let start = i64::MAX as u64 - 2 * 4096 + 1;
        let mut reader =
            BlockReader::new(&file, start..start + 3 * 4096, &pool, options).expect("a reader");
        for index in 0..2 {
            let error = reader
                .next(soon())
                .expect("a block")
                .expect_err("nothing is there");
            assert_eq!(error.index, index);
        }
        let error = reader.next(soon()).expect("a block").expect_err("too far");
        assert_eq!((error.index, error.offset), (2, start + 2 * 4096));
        let BlockErrorKind::File(file_error) = &error.kind else {
            panic!("{error}");
        };
        assert_eq!(file_error.kind, FileErrorKind::TooLarge);
        assert!(reader.next(soon()).is_none());
        reader.seek_block(2);
        assert!(reader.next(soon()).expect("again").is_err());
        drop(reader);
        wait_for_all(&pool);
    }
}

#[test]
fn settings_out_of_their_range_are_named() {
    let directory = &directories()[0];
    let file = FileHandle::open(file_of(directory, 10), "r").expect("it opens");
    let pool = pool(1, 4096);
    for (options, field) in [
        (
            ReaderOptions {
                ahead: 0,
                ..ReaderOptions::default()
            },
            "ahead",
        ),
        (
            ReaderOptions {
                block_size: Some(4097),
                ..ReaderOptions::default()
            },
            "block_size",
        ),
        (
            ReaderOptions {
                block_size: Some(0),
                ..ReaderOptions::default()
            },
            "block_size",
        ),
    ] {
        let error = BlockReader::new(&file, .., &pool, options).expect_err("out of its range");
        assert!(error.to_string().contains(field), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any range, block size, pool and order, with jumps: each block that is handed out is that of
    /// the file.
    #[test]
    fn any_range_with_jumps(
        len in 0u64..60_000,
        start in 0u64..70_000,
        span in prop::option::of(0u64..50_000),
        block_size in 1usize..9000,
        slots in 1u32..6,
        ahead in 1u32..10,
        in_order: bool,
        jumps in prop::collection::vec((1usize..8, 0u64..12), 0..4),
    ) {
        let directory = &directories()[0];
        let file = FileHandle::open(file_of(directory, len), "r").expect("it opens");
        for options in both() {
            let pool = pool(slots, 9000);
            let options = ReaderOptions {
                block_size: Some(block_size),
                ahead,
                order: if in_order {
                    BlockOrder::InOrder
                } else {
                    BlockOrder::AsCompleted
                },
                ..options
            };
            let range = (
                Bound::Included(start),
                span.map_or(Bound::Unbounded, |span| Bound::Excluded(start + span)),
            );
            let mut reader = BlockReader::new(&file, range, &pool, options).expect("a reader");
            let end = span.map_or_else(|| len.max(start), |span| start + span);
            let blocks = (end - start).div_ceil(block_size as u64);
            let mut jumps = jumps.clone().into_iter();
            let mut jump = jumps.next();
            let (mut taken, mut from, mut since) = (0, 0, Vec::new());
            loop {
                if let Some((after, to)) = jump
                    && taken == after
                {
                    reader.seek_block(to);
                    (taken, from, jump) = (0, to, jumps.next());
                    since.clear();
                }
                let Some(outcome) = reader.next(soon()) else {
                    break;
                };
                taken += 1;
                let (index, offset) = match &outcome {
                    Ok(block) => (block.index, block.offset),
                    Err(error) => (error.index, error.offset),
                };
                prop_assert_eq!(offset, start + index * block_size as u64);
                let wanted = (block_size as u64).min(end - offset);
                match outcome {
                    Ok(block) => {
                        prop_assert_eq!(block.buffer.len() as u64, wanted);
                        prop_assert!(block.buffer[..] == bytes_of(offset..offset + wanted));
                    }
                    Err(error) => {
                        let BlockErrorKind::EndOfFile { missing } = error.kind else {
                            panic!("{error}");
                        };
                        prop_assert_eq!(missing, wanted - len.saturating_sub(offset).min(wanted));
                        prop_assert!(missing > 0);
                    }
                }
                since.push(index);
            }
            if in_order {
                prop_assert!(since.is_sorted());
            }
            since.sort_unstable();
            prop_assert_eq!(since, (from..blocks.max(from)).collect::<Vec<_>>());
            drop(reader);
            wait_for_all(&pool);
        }
    }
}
