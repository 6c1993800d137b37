//! Files without io_uring, and with transfers in flight when their owners go.

use std::process::Command;
use std::time::{Duration, Instant};

use fabricast::buffer::{BufferMut, SharedBufferConfig, SharedBufferManager};
use fabricast::memory::Region;
use fabricast::storage::{
    BackEnd, BackEndChoice, Batch, BatchEntry, BatchOptions, BlockReader, BlockWriter, DirectIo,
    FileHandle, IoOptions, OpenOptions, ReaderOptions, Transferred, WriterOptions, io_uring_leaked,
    io_uring_refused,
};
use tempfile::TempDir;

use crate::names::full_name;

/// Tells a process that it is to be the inside of a test.
const INSIDE: &str = "FABRICAST_TEST_INSIDE";

/// Runs `test` in a process of its own, with this in its environment.
fn inside(name: &str, environment: &[(&str, &str)], test: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return test();
    }
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program)
        .args([
            full_name(name),
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(INSIDE, "1")
        .envs(environment.iter().copied())
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}\n{errors}"
    );
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

fn file(directory: &TempDir) -> FileHandle {
    let path = directory.path().join("file");
    std::fs::write(&path, vec![7; 1 << 20]).expect("room for it");
    let options = OpenOptions::new()
        .flags("r+")
        .back_end(BackEndChoice::IoUring);
    options.open(path).expect("it opens")
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

/// A file that is to go around the page cache, with the back end left open.
fn long_file(directory: &TempDir, len: usize) -> FileHandle {
    let path = directory.path().join("long");
    let bytes: Vec<u8> = (0..len).map(|at| (at / 4096 * 7) as u8).collect();
    std::fs::write(&path, bytes).expect("room for it");
    let options = OpenOptions::new().flags("r+").direct(DirectIo::On);
    options.open(path).expect("it opens")
}

/// Reads from the start on, by threads if need be, into memory that is aligned; checks what came.
fn read_long(file: &FileHandle, len: usize, options: &IoOptions) -> (Transferred, BufferMut) {
    let mut buffer = pool(1, len).try_acquire().expect("a slot");
    let moved = file
        .read_parallel(&mut buffer, 0, options)
        .expect("it is read");
    let pages = buffer[..moved.bytes].chunks(4096).enumerate();
    for (page, bytes) in pages {
        assert!(
            bytes.iter().all(|byte| *byte == (page * 7) as u8),
            "page {page}"
        );
    }
    (moved, buffer)
}

/// All ways go by threads, and say so; `reason` is what a batch gives as its own.
fn all_goes_by_threads(reason: &str) {
    let directory = TempDir::new().expect("a directory");
    let file = file(&directory);
    let mut memory = vec![0; 1 << 20];
    let moved = file.read(&mut memory, 0).expect("it falls back");
    assert_eq!((moved.back_end, moved.bytes), (BackEnd::Posix, 1 << 20));
    let long = long_file(&directory, 8 << 20);
    let (moved, _) = read_long(&long, 8 << 20, &IoOptions::default());
    assert_eq!((moved.back_end, moved.bytes), (BackEnd::Posix, 8 << 20));
    let mut batch = Batch::new(4, BatchOptions::default()).expect("over threads");
    assert_eq!(batch.back_end(), BackEnd::Posix);
    let why = batch.io_uring_refused().expect("a reason");
    assert!(why.contains(reason), "{why}");
    batch
        .submit(BatchEntry::read(&file, memory, 0), 1)
        .expect("room");
    let mut events = Vec::new();
    assert_eq!(
        batch.status(1, 1, soon(), &mut events).expect("no error"),
        1
    );
    let moved = events[0].result.as_ref().expect("no error");
    assert_eq!((moved.back_end, moved.bytes), (BackEnd::Posix, 1 << 20));
    assert!(events[0].buffer.iter().all(|byte| *byte == 7));
    let mut reader = BlockReader::new(&file, .., &pool(2, 8192), ReaderOptions::default())
        .expect("over threads");
    let mut blocks = 0;
    while let Some(block) = reader.next(soon()) {
        assert_eq!(block.expect("no error").buffer.len(), 8192);
        blocks += 1;
    }
    assert_eq!(blocks, 128);
}

#[test]
fn a_seccomp_filter_that_forbids_rings_is_named_and_threads_take_over() {
    inside(
        "a_seccomp_filter_that_forbids_rings_is_named_and_threads_take_over",
        &[],
        || {
            forbid_rings();
            let why = io_uring_refused().expect("forbidden");
            assert!(
                why.contains("seccomp") || why.contains("io_uring_disabled"),
                "{why}"
            );
            all_goes_by_threads("EPERM");
        },
    );
}

#[test]
fn left_open_it_takes_long_direct_reads_that_threads_would_share_and_nothing_else() {
    if let Some(reason) = io_uring_refused() {
        println!("SKIPPED: {reason}");
        return;
    }
    let directory = TempDir::new().expect("a directory");
    let len = 9 << 20;
    let file = long_file(&directory, len);
    if let Some(reason) = file.direct_refused() {
        println!("SKIPPED: {reason}");
        return;
    }
    let auto = IoOptions::default();
    let (moved, mut buffer) = read_long(&file, len, &auto);
    assert_eq!((moved.back_end, moved.bytes), (BackEnd::IoUring, len));
    assert_eq!((moved.direct_bytes, moved.bounced_bytes), (len, 0));
    let counted = file.stats().read;
    assert_eq!(counted.back_end(BackEnd::IoUring).bytes, len as u64);
    // Behind the end of the file, too, and by a future.
    let far = file.pread(buffer, .., 8 << 20, &auto).wait();
    let moved = far.result.expect("it is read");
    assert_eq!((moved.back_end, moved.bytes), (BackEnd::IoUring, 1 << 20));
    buffer = far.buffer;

    let by_posix = |moved: Transferred, what| assert_eq!(moved.back_end, BackEnd::Posix, "{what}");
    let read = |memory: &mut [u8], options: &IoOptions| {
        file.read_parallel(memory, 0, options).expect("it is read")
    };
    by_posix(file.read(&mut buffer, 0).expect("it is read"), "one thread");
    by_posix(read(&mut buffer[..4 << 20], &auto), "one task");
    let small = IoOptions {
        task_size: Some(64 << 10),
        ..auto.clone()
    };
    by_posix(read(&mut buffer[..2 << 20], &small), "short");
    let moved = read(&mut buffer[16..8 << 20], &auto);
    by_posix(moved, "not aligned");
    assert!(moved.bounced_bytes > 0, "{moved:?}");
    let cached = IoOptions {
        direct: Some(DirectIo::Off),
        ..auto.clone()
    };
    by_posix(read(&mut buffer, &cached), "through the page cache");
    let named = IoOptions {
        back_end: Some(BackEndChoice::Posix),
        ..auto.clone()
    };
    by_posix(read(&mut buffer, &named), "as was asked for");
    let moved = file.write_parallel(&buffer, 0, &auto);
    by_posix(moved.expect("it is written"), "a write");
    // Dropped: at most what was begun goes on, and the buffer comes back when nothing touches it.
    let blocks = pool(1, len);
    drop(file.pread(blocks.try_acquire().expect("a slot"), .., 0, &auto));
    let deadline = soon();
    while blocks.free_count() == 0 {
        assert!(Instant::now() < deadline, "the buffer came back");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn where_no_descriptor_is_left_for_a_ring_pread_reads_and_says_so() {
    inside(
        "where_no_descriptor_is_left_for_a_ring_pread_reads_and_says_so",
        &[],
        || {
            if let Some(reason) = io_uring_refused() {
                println!("SKIPPED: {reason}");
                return;
            }
            let directory = TempDir::new().expect("a directory");
            let file = long_file(&directory, 8 << 20);
            let ring = IoOptions {
                back_end: Some(BackEndChoice::IoUring),
                ..IoOptions::default()
            };
            let mut memory = vec![0; 4096];
            let mut rows = Vec::new();
            while let Ok(row) = std::fs::File::open("/dev/null") {
                rows.push(row);
            }
            for options in [&ring, &IoOptions::default()] {
                let moved = file.read_into(&mut memory, .., 4096, options);
                let moved = moved.expect("pread needs none");
                assert_eq!((moved.back_end, moved.bytes), (BackEnd::Posix, 4096));
                assert!(memory.iter().all(|byte| *byte == 7));
            }
            drop(rows);
            let moved = file.read_into(&mut memory, .., 4096, &ring);
            assert_eq!(moved.expect("there are some").back_end, BackEnd::IoUring);
        },
    );
}

#[test]
fn the_environment_turns_it_off() {
    inside(
        "the_environment_turns_it_off",
        &[("FABRICAST_IO_URING", "off")],
        || {
            all_goes_by_threads("setting");
        },
    );
}

/// From here on, io_uring_setup(2) answers EPERM to this thread and those that it makes: what
/// container runtimes do.
fn forbid_rings() {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let filter = [
        step(LOAD, 0, 0, 0),
        step(EQUAL, libc::SYS_io_uring_setup as u32, 0, 1),
        step(RETURN, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: plain numbers.
    let rc = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(rc, 0);
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the program and its filter outlive the call.
    let rc = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

/// Under AddressSanitizer, a transfer into memory that was freed too early is found.
#[test]
fn whatever_is_dropped_in_flight_nothing_is_freed_too_early() {
    if let Some(reason) = io_uring_refused() {
        println!("SKIPPED: {reason}");
        return;
    }
    for directory in [TempDir::new(), TempDir::new_in("/dev/shm")] {
        let Ok(directory) = directory else {
            println!("SKIPPED: no /dev/shm");
            continue;
        };
        let blocks = pool(8, 128 << 10);
        for turn in 0..40 {
            let file = file(&directory);
            let direct = Some([DirectIo::On, DirectIo::Off][turn % 2]);
            let options = BatchOptions {
                direct,
                ..BatchOptions::default()
            };
            let mut batch = Batch::new(16, options).expect("a ring");
            for at in 0..16u64 {
                let buffer = vec![1; 64 << 10];
                let entry = match turn % 3 {
                    0 => BatchEntry::write(&file, buffer, at << 16),
                    _ => BatchEntry::read(&file, buffer, at << 16),
                };
                batch.submit(entry, at).expect("room");
            }
            let options = ReaderOptions {
                direct,
                ..ReaderOptions::default()
            };
            let mut reader = BlockReader::new(&file, .., &blocks, options).expect("a ring");
            let first = reader.next(soon()).expect("a block").expect("no error");
            let options = WriterOptions {
                direct,
                ..WriterOptions::default()
            };
            let mut writer = BlockWriter::new(&file, options).expect("a ring");
            writer.write(0, 1 << 20, first.buffer).expect("room");
            if turn % 2 == 0 {
                reader.seek_block(4);
                batch.cancel_all();
            }
            drop(file);
            drop((writer, batch, reader));
            let deadline = soon();
            while blocks.free_count() < blocks.slots() {
                assert!(
                    Instant::now() < deadline,
                    "{} of 8 came back",
                    blocks.free_count()
                );
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    assert_eq!(io_uring_leaked(), 0);
}

#[test]
fn moved_to_another_thread_a_batch_goes_on_when_the_first_one_has_ended() {
    if let Some(reason) = io_uring_refused() {
        println!("SKIPPED: {reason}");
        return;
    }
    let directory = TempDir::new().expect("a directory");
    let file = file(&directory);
    for direct in [DirectIo::On, DirectIo::Off] {
        let started = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let options = BatchOptions {
                    direct: Some(direct),
                    ..BatchOptions::default()
                };
                let mut batch = Batch::new(16, options).expect("a ring");
                for at in 0..16u64 {
                    let entry = BatchEntry::read(&file, vec![0; 64 << 10], at << 16);
                    batch.submit(entry, at).expect("room");
                }
                batch
            });
            thread.join().expect("it only submits")
        });
        let mut batch = started;
        let mut events = Vec::new();
        while batch.pending() > 0 {
            let count = batch.status(16, 16, soon(), &mut events).expect("no error");
            assert!(count > 0, "nothing within the deadline");
        }
        assert_eq!(events.len(), 16);
        for event in events {
            assert_eq!(event.result.expect("no error").bytes, 64 << 10);
            assert!(event.buffer.iter().all(|byte| *byte == 7));
        }
    }
}
