use std::collections::HashMap;
use std::time::Duration;

use fabricast_process::contained;
use proptest::prelude::*;

use super::*;
use crate::buffer::{BufferMut, SharedBufferConfig};
use crate::contain::Panics;
use crate::memory::Region;
use crate::storage::rig::{byte_at, bytes_of, directories, file_of, refusing, soon};
use crate::storage::{FileErrorKind, OpenOptions};

/// io_uring where there is one, and threads.
fn options() -> Vec<BatchOptions> {
    let threads = ThreadPool::new(2, 64).expect("two threads");
    let threads = BatchOptions {
        back_end: BackEndChoice::Posix,
        pool: Some(threads),
        ..BatchOptions::default()
    };
    match probe() {
        Ok(_) => vec![BatchOptions::default(), threads],
        Err(reason) => {
            println!("SKIPPED: io_uring: {reason}");
            vec![threads]
        }
    }
}

fn aligned_pool(slots: u32, size: usize) -> SharedBufferManager {
    let config = SharedBufferConfig {
        slots: Some(slots),
        alignment: 4096,
        ..SharedBufferConfig::new(size)
    };
    let region = Region::host(slots as usize * size.next_multiple_of(4096)).build();
    SharedBufferManager::new(region.expect("memory"), config).expect("it fits")
}

/// Until all slots are free: buffers of what was dropped in flight come back later.
fn wait_for_all(pool: &SharedBufferManager) {
    let deadline = soon();
    while pool.free_count() < pool.slots() {
        assert!(
            Instant::now() < deadline,
            "{} of {} came back",
            pool.free_count(),
            pool.slots()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn all<B: IoBuf>(batch: &mut Batch<B>) -> Vec<BatchEvent<B>> {
    let mut events = Vec::new();
    while batch.pending() > 0 {
        let count = batch
            .status(usize::MAX, usize::MAX, soon(), &mut events)
            .expect("no error");
        assert!(count > 0, "nothing within the deadline");
    }
    events
}

#[test]
fn what_is_refused_comes_back_and_a_full_batch_says_so() {
    for options in options() {
        let directory = &directories()[0];
        let path = file_of(directory, 10_000);
        let mut file = FileHandle::open(&path, "r").expect("it opens");
        let mut batch = Batch::new(2, options).expect("a batch");
        let refused = |kind: &BatchRefusedKind| match kind {
            BatchRefusedKind::File(error) => error.kind.clone(),
            kind => panic!("{kind:?}"),
        };
        let error = batch
            .submit(BatchEntry::write(&file, vec![1; 10], 0), 1)
            .expect_err("read only");
        assert!(matches!(
            refused(&error.kind),
            FileErrorKind::NotOpenFor { .. }
        ));
        assert_eq!(error.buffer, vec![1; 10]);
        let beyond = BatchEntry::read(&file, vec![0; 10], 0).range(5..11);
        let error = batch.submit(beyond, 1).expect_err("a range outside");
        assert!(matches!(
            refused(&error.kind),
            FileErrorKind::Range { end: 11, .. }
        ));
        let error = batch
            .submit(BatchEntry::read(&file, vec![0; 10], u64::MAX), 1)
            .expect_err("no such offset");
        assert!(matches!(refused(&error.kind), FileErrorKind::TooLarge));
        for cookie in 0..2 {
            batch
                .submit(BatchEntry::read(&file, vec![0; 10], cookie), cookie)
                .expect("room for two");
        }
        let error = batch
            .submit(BatchEntry::read(&file, vec![0; 7], 0), 3)
            .expect_err("no room");
        assert!(matches!(error.kind, BatchRefusedKind::Full { depth: 2 }));
        assert_eq!(error.buffer.len(), 7);
        // Not before the outcomes are taken.
        let mut events = Vec::new();
        assert_eq!(
            batch.status(2, 1, soon(), &mut events).expect("no error"),
            1
        );
        assert_eq!(batch.pending(), 1);
        file.close();
        let error = batch
            .submit(BatchEntry::read(&file, vec![0; 7], 0), 3)
            .expect_err("closed");
        assert!(matches!(refused(&error.kind), FileErrorKind::Closed));
        events.extend(all(&mut batch));
        events.sort_by_key(|event| event.cookie);
        for (cookie, event) in (0..).zip(&events) {
            assert_eq!(
                (event.cookie, &event.buffer),
                (cookie, &bytes_of(cookie..cookie + 10))
            );
        }
    }
}

#[test]
fn what_a_batch_moved_is_counted_file_by_file_when_its_outcomes_are_given() {
    for options in options() {
        let directory = &directories()[0];
        let path = file_of(directory, 40_000);
        let open = || FileHandle::open(&path, "r+").expect("it opens");
        let (one, other) = (open(), open());
        let mut batch = Batch::new(16, options).expect("a batch");
        let back_end = batch.back_end();
        for cookie in 0..12 {
            let offset = cookie * 1000;
            let entry = match cookie % 4 {
                0 => BatchEntry::write(&one, bytes_of(offset..offset + 1000), offset),
                1 => BatchEntry::read(&other, vec![0; 1000], offset),
                // At the end, which is no error.
                2 => BatchEntry::read(&one, vec![0; 1000], 39_500),
                _ => BatchEntry::read(&one, vec![0; 1000], offset),
            };
            batch.queue(entry, cookie).expect("room");
        }
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(one.nbytes().expect("open"), 40_000);
        // Fewer at a time than there are: those that are kept have been counted, too, and come
        // later, each once.
        let (mut events, mut sum) = (Vec::new(), 0);
        while batch.pending() > 0 {
            let count = batch.status(1, 5, soon(), &mut events).expect("no error");
            assert!((1..=5).contains(&count), "{count}");
            sum += count;
        }
        assert_eq!((sum, events.len()), (12, 12));
        let mut cookies: Vec<_> = events.iter().map(|event| event.cookie).collect();
        cookies.sort_unstable();
        assert!(cookies.into_iter().eq(0..12));
        let (one, other) = (one.stats(), other.stats());
        let counted = |half: &crate::storage::stats::DirectionStats| {
            let by = half.back_end(back_end);
            (by.operations, by.bytes, by.errors, half.latency.count())
        };
        assert_eq!(counted(&one.write), (3, 3000, 0, 3));
        assert_eq!(counted(&one.read), (6, 3 * 500 + 3000, 0, 6));
        assert_eq!(counted(&other.read), (3, 3000, 0, 3));
        assert_eq!(counted(&other.write), (0, 0, 0, 0));
        let mean = one.read.latency.mean().expect("six");
        assert!(mean < Duration::from_secs(20), "{mean:?}");
    }
}

#[test]
fn settings_out_of_their_range_are_named() {
    for depth in [0, 4097] {
        let error =
            Batch::<Vec<u8>>::new(depth, BatchOptions::default()).expect_err("no such depth");
        assert!(error.to_string().contains("depth"), "{error}");
    }
    let options = BatchOptions {
        back_end: BackEndChoice::CuFile,
        ..BatchOptions::default()
    };
    assert!(Batch::<Vec<u8>>::new(1, options).is_err());
}

#[test]
fn the_setting_turns_io_uring_off_and_the_batch_says_why() {
    let options = BatchOptions {
        back_end: BackEndChoice::Posix,
        ..BatchOptions::default()
    };
    let batch = Batch::<Vec<u8>>::new(1, options).expect("threads");
    assert_eq!(batch.back_end(), BackEnd::Posix);
    assert!(batch.io_uring_refused().is_some());
}

#[test]
fn direct_where_all_is_aligned_and_through_the_page_cache_where_not() {
    for options in options() {
        let directory = &directories()[0];
        let path = file_of(directory, 100_000);
        let open = OpenOptions::new().flags("r+").direct(DirectIo::On);
        let file = open.open(&path).expect("it opens");
        if let Some(reason) = file.direct_refused() {
            println!("SKIPPED: {reason}");
            return;
        }
        let pool = aligned_pool(4, 65_536);
        let mut batch = Batch::new(4, options).expect("a batch");
        batch.register_file(&file).expect("open");
        batch.register_pool(&pool).expect("few enough bytes");
        let ranges = [
            (0, 65_536, 65_536),
            (1, 65_536, 0),
            (0, 40_000, 0),
            (0, 65_536, 0),
        ];
        let offsets = [0, 0, 1000, 65_536];
        for (cookie, ((start, end, _), offset)) in ranges.into_iter().zip(offsets).enumerate() {
            let buffer = pool.try_acquire().expect("four slots");
            let entry = BatchEntry::read(&file, buffer, offset).range(start..end);
            batch.submit(entry, cookie as u64).expect("room");
        }
        for event in all(&mut batch) {
            let (start, end, direct) = ranges[event.cookie as usize];
            let offset = offsets[event.cookie as usize];
            let moved = event.result.expect("no error");
            let len = (end - start).min(100_000 - offset as usize);
            assert_eq!(moved.bytes, len);
            assert!(event.buffer[start..start + len] == bytes_of(offset..offset + len as u64));
            match event.cookie {
                0 => assert_eq!(moved.direct_bytes, direct),
                1 => assert_eq!(moved.direct_bytes, 0, "memory not aligned"),
                2 => assert!(moved.direct_bytes < len, "the head is not"),
                _ => assert!(moved.direct_bytes > 0 && moved.bytes == len),
            }
            assert_eq!(moved.bounced_bytes, 0);
        }
        batch.unregister_file(&file).expect("open");
    }
}

#[test]
fn dropped_in_flight_all_buffers_come_back() {
    for options in options() {
        for directory in directories() {
            let path = file_of(&directory, 4 << 20);
            let pool = aligned_pool(16, 1 << 20);
            let open = OpenOptions::new().flags("r+").direct(DirectIo::On);
            for turn in 0..20 {
                let file = open.open(&path).expect("it opens");
                let mut batch = Batch::new(16, options.clone()).expect("a batch");
                while let Some(buffer) = pool.try_acquire() {
                    let offset = (u64::from(buffer.index()) % 4) << 20;
                    let entry = match turn % 2 {
                        0 => BatchEntry::read(&file, buffer, offset),
                        _ => BatchEntry::write(&file, buffer, offset),
                    };
                    batch.queue(entry, 7).expect("room");
                }
                if turn % 3 > 0 {
                    batch.start().expect("no error");
                }
                if turn % 5 > 2 {
                    batch.cancel(7);
                }
                drop(file);
                drop(batch);
                wait_for_all(&pool);
            }
        }
    }
    assert_eq!(crate::storage::io_uring_leaked(), 0);
}

#[test]
fn threads_take_what_a_full_queue_refused_later() {
    let pool = ThreadPool::new(1, 1).expect("a thread");
    let options = BatchOptions {
        back_end: BackEndChoice::Posix,
        pool: Some(pool.clone()),
        ..BatchOptions::default()
    };
    let directory = &directories()[0];
    let file = FileHandle::open(file_of(directory, 1000), "r").expect("it opens");
    let mut batch = Batch::new(32, options).expect("a batch");
    pool.pause();
    for cookie in 0..32 {
        batch
            .submit(BatchEntry::read(&file, vec![0; 10], cookie), cookie)
            .expect("room");
    }
    let mut events = Vec::new();
    let deadline = Instant::now() + Duration::from_millis(20);
    assert_eq!(
        batch
            .status(1, 32, deadline, &mut events)
            .expect("no error"),
        0
    );
    // What no thread has begun ends at once.
    for cookie in 16..24 {
        batch.cancel(cookie);
    }
    assert_eq!(
        batch.status(8, 32, soon(), &mut events).expect("no error"),
        8
    );
    let is_cancelled = |event: &BatchEvent<Vec<u8>>| {
        matches!(&event.result, Err(error)
            if error.kind == FileErrorKind::Cancelled)
    };
    assert!(events.iter().all(is_cancelled));
    pool.resume();
    events.extend(all(&mut batch));
    events.sort_by_key(|event| event.cookie);
    assert_eq!(events.len(), 32);
    for (cookie, event) in (0..).zip(events) {
        assert_eq!(event.cookie, cookie);
        let cancelled = is_cancelled(&event);
        assert_eq!(cancelled, (16..24).contains(&cookie));
        assert!(cancelled || event.buffer == bytes_of(cookie..cookie + 10));
    }
}

/// What a step of the model does.
#[derive(Debug, Clone)]
enum Step {
    Read {
        offset: u64,
        len: usize,
    },
    Write {
        block: u64,
        len: usize,
    },
    Status {
        min: usize,
        max: usize,
        patient: bool,
    },
    Cancel {
        back: u64,
    },
    CancelAll,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = 0usize..20_000;
    let step = prop_oneof![
        4 => (0u64..40_000, len.clone()).prop_map(|(offset, len)| Step::Read { offset, len }),
        3 => (0u64..1000, len).prop_map(|(block, len)| Step::Write { block, len }),
        3 => (0usize..9, 0usize..9, any::<bool>())
            .prop_map(|(min, max, patient)| Step::Status { min, max, patient }),
        1 => (0u64..6).prop_map(|back| Step::Cancel { back }),
        1 => Just(Step::CancelAll),
    ];
    prop::collection::vec(step, 1..60)
}

/// What was asked of an entry.
struct Asked {
    is_write: bool,
    offset: u64,
    len: usize,
    cancelled: bool,
}

/// Where written blocks lie: behind what is read, and each at a place of its own.
const WRITTEN_FROM: u64 = 65_536;

fn judge(event: &BatchEvent<BufferMut>, asked: &Asked) {
    match &event.result {
        Ok(moved) if asked.is_write => assert_eq!(moved.bytes, asked.len),
        Ok(moved) => {
            // What others write lies behind that.
            let there = WRITTEN_FROM
                .saturating_sub(asked.offset)
                .min(asked.len as u64);
            assert_eq!(moved.bytes as u64, there);
            assert!(event.buffer[..moved.bytes] == bytes_of(asked.offset..asked.offset + there));
        }
        Err(error) => {
            assert!(
                error.kind == FileErrorKind::Cancelled && asked.cancelled,
                "{error}"
            );
            assert_eq!(
                (error.offset, error.len),
                (Some(asked.offset), Some(asked.len as u64))
            );
        }
    }
}

fn run(options: BatchOptions, depth: u32, direct: bool, steps: &[Step]) {
    for directory in directories() {
        let path = file_of(&directory, WRITTEN_FROM);
        let open = OpenOptions::new().flags("r+");
        let file = open.direct(if direct { DirectIo::On } else { DirectIo::Off });
        let file = file.open(&path).expect("it opens");
        let pool = aligned_pool(12, 20_480);
        let mut batch = Batch::new(depth, options.clone()).expect("a batch");
        batch.register_pool(&pool).expect("few enough bytes");
        let (mut asked, mut events) = (HashMap::<u64, Asked>::new(), Vec::new());
        let mut written = Vec::new();
        let mut settle = |events: &mut Vec<BatchEvent<BufferMut>>,
                          asked: &mut HashMap<u64, Asked>| {
            for event in events.drain(..) {
                let one = asked.remove(&event.cookie).expect("one outcome a cookie");
                judge(&event, &one);
                if one.is_write && event.result.is_ok() {
                    written.push((one.offset, event.buffer[..one.len].to_vec()));
                }
            }
        };
        for (cookie, step) in (0..).zip(steps) {
            match *step {
                Step::Status { min, max, patient } => {
                    let deadline = if patient { soon() } else { Instant::now() };
                    let count = batch
                        .status(min, max, deadline, &mut events)
                        .expect("no error");
                    assert_eq!(count, events.len());
                    assert!(count <= max);
                    if patient {
                        assert!(count >= min.min(max).min(asked.len()));
                    }
                }
                Step::Cancel { back } => {
                    let wanted = u64::saturating_sub(cookie, back);
                    batch.cancel(wanted);
                    asked.entry(wanted).and_modify(|one| one.cancelled = true);
                }
                Step::CancelAll => {
                    batch.cancel_all();
                    asked.values_mut().for_each(|one| one.cancelled = true);
                }
                Step::Read { .. } | Step::Write { .. } => {
                    let Some(mut buffer) = pool.try_acquire() else {
                        assert_eq!(asked.len(), 12, "a buffer is lost");
                        continue;
                    };
                    let (entry, one) = match *step {
                        Step::Read { offset, len } => {
                            let entry = BatchEntry::read(&file, buffer, offset).range(..len);
                            (
                                entry,
                                Asked {
                                    is_write: false,
                                    offset,
                                    len,
                                    cancelled: false,
                                },
                            )
                        }
                        Step::Write { block, len } => {
                            for (at, byte) in (0..).zip(&mut buffer[..len]) {
                                *byte = byte_at(at + block);
                            }
                            let offset = WRITTEN_FROM + cookie * 20_480;
                            let entry = BatchEntry::write(&file, buffer, offset).range(..len);
                            (
                                entry,
                                Asked {
                                    is_write: true,
                                    offset,
                                    len,
                                    cancelled: false,
                                },
                            )
                        }
                        _ => unreachable!("matched above"),
                    };
                    match batch.submit(entry, cookie) {
                        Ok(()) => assert!(asked.insert(cookie, one).is_none()),
                        Err(refused) => {
                            assert!(matches!(refused.kind, BatchRefusedKind::Full { .. }));
                            assert_eq!(asked.len(), depth as usize);
                        }
                    }
                }
            }
            settle(&mut events, &mut asked);
            assert_eq!(batch.pending(), asked.len());
        }
        events.extend(all(&mut batch));
        settle(&mut events, &mut asked);
        assert!(asked.is_empty());
        wait_for_all(&pool);
        for (offset, bytes) in written {
            let mut there = vec![0; bytes.len()];
            file.read(&mut there, offset).expect("no error");
            assert!(there == bytes, "written at {offset}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever is asked for in whatever order: each entry has one outcome, which is true, and all
    /// buffers come back.
    #[test]
    fn each_entry_has_one_outcome(depth in 1u32..20, direct: bool, steps in steps()) {
        for options in options() {
            run(options, depth, direct, &steps);
        }
    }
}

/// The kernel refuses O_DIRECT, which is told to a subscriber that panics.
#[test]
fn a_subscriber_that_panics_costs_no_buffer() {
    if let Err(reason) = probe() {
        println!("SKIPPED: io_uring: {reason}");
        return;
    }
    let (from, to) = rustix::pipe::pipe().expect("two descriptors");
    let file = FileHandle::new(refusing(&directories()[0], from));
    let pool = aligned_pool(2, 4096);
    let options = BatchOptions {
        direct: Some(DirectIo::On),
        ..BatchOptions::default()
    };
    let mut batch = Batch::new(2, options).expect("a batch");
    for cookie in 0..2 {
        let buffer = pool.try_acquire().expect("two slots");
        let entry = BatchEntry::read(&file, buffer, 0);
        batch.submit(entry, cookie).expect("room");
    }
    assert_eq!(rustix::io::write(&to, &[7; 8192]), Ok(8192));
    let (mut events, mut panics) = (Vec::new(), 0);
    let dispatch = tracing::Dispatch::new(Panics);
    while batch.pending() > 0 {
        let wait = || batch.status(usize::MAX, usize::MAX, soon(), &mut events);
        match contained(|| tracing::dispatcher::with_default(&dispatch, wait)) {
            Ok(count) => assert!(count.expect("no error") > 0, "nothing in time"),
            Err(said) => {
                assert_eq!(said, "the log is gone");
                panics += 1;
            }
        }
    }
    assert_eq!(panics, 1, "a file is refused once");
    assert_eq!(events.len(), 2, "each has its outcome");
    for event in events {
        assert_eq!(event.result.expect("it was read").bytes, 4096);
        assert_eq!(event.buffer[..], [7; 4096]);
    }
}
