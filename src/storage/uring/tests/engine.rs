use std::time::Instant;

use super::*;
use crate::contain::Panics;
use crate::memory::Region;
use crate::storage::io_buffer::RawMemory;
use crate::storage::rig::{byte_at, bytes_of, directories, file_of, refusing};
use crate::storage::{BackEndChoice, DirectIo, FileHandle, IoOptions, OpenOptions, Place};
use fabricast_process::contained;
use proptest::prelude::*;

/// Whether there is something to test here.
fn allowed() -> bool {
    match probe() {
        Ok(_) => true,
        Err(reason) => {
            println!("SKIPPED: io_uring: {reason}");
            false
        }
    }
}

fn open(path: &std::path::Path, flags: &str, direct: DirectIo) -> FileHandle {
    let options = OpenOptions::new()
        .flags(flags)
        .direct(direct)
        .back_end(BackEndChoice::IoUring);
    options.open(path).expect("it opens")
}

#[test]
fn short_at_the_end_of_the_file_and_it_says_what_moved_it() {
    if !allowed() {
        return;
    }
    for directory in directories() {
        let len = 5 * PIECE_BYTES as u64 + 777;
        let path = file_of(&directory, len);
        for direct in [DirectIo::Off, DirectIo::On] {
            let file = open(&path, "r", direct);
            let goes_direct = direct == DirectIo::On && file.direct_refused().is_none();
            // The second one is not aligned: it is bounced.
            for shift in [0, 16] {
                let region = Region::host(8 << 20).build().expect("memory");
                // SAFETY: nobody else uses the region.
                let memory = unsafe { std::slice::from_raw_parts_mut(region.as_ptr(), 8 << 20) };
                let moved = file.read(&mut memory[shift..], 0).expect("no error");
                assert_eq!(
                    (moved.bytes as u64, moved.back_end),
                    (len, BackEnd::IoUring)
                );
                assert!(memory[shift..shift + moved.bytes] == bytes_of(0..len));
                if goes_direct {
                    assert!(moved.direct_bytes >= 5 * PIECE_BYTES, "{moved:?}");
                    assert_eq!(moved.bounced_bytes > 0, shift > 0, "{moved:?}");
                } else {
                    assert_eq!((moved.direct_bytes, moved.bounced_bytes), (0, 0));
                }
            }
        }
    }
}

#[test]
fn the_lowest_error_counts_and_what_was_written_before_it_is_there() {
    if !allowed() {
        return;
    }
    let directory = &directories()[0];
    let path = directory.path().join("limited");
    let file = open(&path, "w+", DirectIo::Off);
    // In a child: the limit is the process's.
    let limit = 3 * PIECE_BYTES as u64 + 4096;
    // SAFETY: the child only writes through the handle and a ring of its own, and leaves by
    // `_exit`. No other thread's lock is needed for that.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a plain call; the child ends, whatever it waits for.
        unsafe { libc::alarm(20) };
        let code = std::panic::catch_unwind(|| limited(&path, limit)).unwrap_or(99);
        // SAFETY: ends the child, and runs nothing of the parent's.
        unsafe { libc::_exit(code) }
    }
    let mut status = -1;
    // SAFETY: our own child; `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "exit code {}", status >> 8);
    assert_eq!(file.refresh().expect("it is open"), limit);
}

fn limited(path: &std::path::Path, limit: u64) -> i32 {
    let file = open(path, "r+", DirectIo::Off);
    let rlimit = libc::rlimit {
        rlim_cur: limit,
        rlim_max: limit,
    };
    // SAFETY: plain calls; the signal's default would end the child.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    // SAFETY: as above.
    if unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const rlimit) } != 0 {
        return 1;
    }
    let bytes = vec![1; 8 * PIECE_BYTES];
    match file.write(&bytes, 0) {
        Err(error) if error.errno() == Some(libc::EFBIG) && error.done == limit => 0,
        Err(error) => {
            eprintln!("{error}");
            2
        }
        Ok(_) => 3,
    }
}

#[test]
fn a_thread_keeps_its_ring_and_another_depth_makes_a_new_one() {
    if !allowed() {
        return;
    }
    let depth = || with_ring(|ring| ring.depth()).expect("a ring");
    let wanted = Defaults::get().io_uring_depth;
    assert_eq!(depth(), wanted);
    let descriptor = || with_ring(|ring| ring.descriptor()).expect("a ring");
    let before = descriptor();
    assert_eq!(depth(), wanted);
    assert_eq!(descriptor(), before, "the same");
}

proptest! {
    #![proptest_config(crate::soak::cases(8, 100))]

    /// Random reads and writes at any alignment are those of a plain array of bytes.
    #[test]
    fn a_file_is_an_array_of_bytes(
        operations in prop::collection::vec(
            (any::<bool>(), 0u64..6_000_000, 0usize..4_000_000, 0usize..3, any::<bool>()), 1..8),
    ) {
        if !allowed() {
            return Ok(());
        }
        for directory in directories() {
            let path = file_of(&directory, 100_000);
            let mut model = bytes_of(0..100_000);
            let file = open(&path, "r+", DirectIo::Auto);
            for &(is_write, offset, len, shift, direct) in &operations {
                let offset = match shift {
                    0 => offset / 4096 * 4096,
                    _ => offset,
                };
                let region = Region::host(len + 4096).build().expect("memory");
                // SAFETY: nobody else uses the region.
                let memory = unsafe { std::slice::from_raw_parts_mut(region.as_ptr(), len + 4096) };
                let memory = &mut memory[shift * 8..shift * 8 + len];
                let options = IoOptions {
                    direct: Some(if direct { DirectIo::On } else { DirectIo::Off }),
                    ..IoOptions::default()
                };
                let start = offset as usize;
                if is_write {
                    for (at, byte) in memory.iter_mut().enumerate() {
                        *byte = byte_at(at as u64 * 3 + offset);
                    }
                    let moved = file.write_parallel(memory, offset, &options).expect("no error");
                    prop_assert_eq!((moved.bytes, moved.back_end), (len, BackEnd::IoUring));
                    if len > 0 {
                        model.resize(model.len().max(start + len), 0);
                        model[start..start + len].copy_from_slice(memory);
                    }
                } else {
                    let moved = file.read_parallel(memory, offset, &options).expect("no error");
                    let expected = &model[start.min(model.len())..(start + len).min(model.len())];
                    prop_assert_eq!(moved.bytes, expected.len());
                    prop_assert!(&memory[..moved.bytes] == expected);
                }
                prop_assert_eq!(file.nbytes().expect("open"), model.len() as u64);
            }
        }
    }
}

/// Writes so many bytes to a pipe, as its reader takes them; less when it is told to stop.
fn feed(to: &std::os::fd::OwnedFd, mut len: usize, stop: &AtomicBool) {
    rustix::fs::fcntl_setfl(to, rustix::fs::OFlags::NONBLOCK).expect("a flag");
    let bytes = [7; 16_384];
    while len > 0 && !stop.load(Ordering::SeqCst) {
        match rustix::io::write(to, &bytes[..len.min(bytes.len())]) {
            Ok(written) => len -= written,
            Err(rustix::io::Errno::AGAIN) => std::thread::yield_now(),
            Err(errno) => panic!("{errno}"),
        }
    }
}

/// The first piece that is over says that O_DIRECT was refused, and that panics; the other piece
/// still waits for bytes then.
#[test]
fn a_panic_between_submit_and_reap_leaves_nothing_in_flight() {
    if !allowed() {
        return;
    }
    // The second one is not aligned: it is bounced.
    for shift in [0, 16] {
        let directory = tempfile::TempDir::new().expect("a directory");
        let (from, to) = rustix::pipe::pipe().expect("two descriptors");
        let file = refusing(&directory, from);
        let len = 2 * PIECE_BYTES;
        let region = Region::host(len + 4096).build().expect("memory");
        // SAFETY: within the region.
        let start = unsafe { region.as_ptr().add(shift) };
        let task = Task {
            file: &file,
            direction: Direction::Read,
            memory: RawMemory::new(Place::Host {
                ptr: NonNull::new(start).expect("mapped"),
                len,
            }),
            offset: 0,
            direct: true,
            bounce: 4 * PIECE_BYTES,
            unwanted: None,
        };
        let dispatch = tracing::Dispatch::new(Panics);
        let stop = AtomicBool::new(false);
        let said = std::thread::scope(|scope| {
            // One byte is missing: of two pieces, one has all of its bytes in the end, and the
            // other has not. Where nobody panics, it comes after all: else the run had no end, and
            // the test nothing to say.
            scope.spawn(|| {
                feed(&to, len - 1, &stop);
                let begin = Instant::now();
                while !stop.load(Ordering::SeqCst) && begin.elapsed() < Duration::from_secs(60) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                feed(&to, 1, &stop);
            });
            // SAFETY: nobody else uses the region.
            let run = || unsafe { Uring.run(&task) };
            let said = contained(|| tracing::dispatcher::with_default(&dispatch, run));
            stop.store(true, Ordering::SeqCst);
            said.expect_err("the subscriber panics")
        });
        assert_eq!(said, "the log is gone");
        let in_flight = RING.with_borrow(|ring| ring.as_ref().map(Ring::in_flight));
        assert_eq!(in_flight, Some(0), "the memory goes back now");

        // SAFETY: nothing is in flight.
        let memory = unsafe { std::slice::from_raw_parts(start, len) };
        let before = memory.to_vec();
        let unread = || rustix::io::ioctl_fionread(file.buffered()).expect("a number");
        let more = unread() + rustix::io::write(&to, &[8; 100]).unwrap_or(0) as u64;
        // Into the kernel and out again, with whatever it has left to do for this thread.
        with_ring(|ring| ring.wait(0, None, &mut Vec::new()))
            .and_then(|waited| waited)
            .expect("the ring is fine");
        assert_eq!(unread(), more, "nobody reads any more");
        assert!(memory == before, "nobody writes any more");

        // And the ring is as good as new.
        let path = file_of(&directory, 3 * PIECE_BYTES as u64);
        let mut bytes = vec![0; 3 * PIECE_BYTES];
        let moved = open(&path, "r", DirectIo::Off).read(&mut bytes, 0);
        let moved = moved.expect("it reads");
        assert_eq!(
            (moved.bytes, moved.back_end),
            (bytes.len(), BackEnd::IoUring)
        );
        assert!(bytes == bytes_of(0..bytes.len() as u64));
    }
}
