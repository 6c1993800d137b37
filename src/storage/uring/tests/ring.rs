use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicUsize, Ordering};

use io_uring::opcode;
use proptest::prelude::*;
use tempfile::TempDir;

use super::super::request::{Stop, Target};
use super::*;
use crate::storage::Direction;

const SECOND: Duration = Duration::from_secs(60);

fn config(depth: u32) -> RingConfig {
    RingConfig {
        depth,
        files: 4,
        buffers: 4,
        one_thread: false,
    }
}

/// A ring, or the reason why there is none here.
fn ring<T: Send + 'static>(depth: u32) -> Option<Ring<T>> {
    match Ring::open(config(depth)) {
        Ok(ring) => Some(ring),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            println!("SKIPPED: io_uring: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + SECOND)
}

/// A file with bytes that tell their place.
fn file_of(dir: &TempDir, len: usize) -> (File, Vec<u8>) {
    let path = dir.path().join("file");
    let byte = |at: usize| ((at as u64).pow(3).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u8;
    let bytes: Vec<u8> = (0..len).map(byte).collect();
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .expect("a file");
    file.write_all(&bytes).expect("room for it");
    (file, bytes)
}

fn request(direction: Direction, file: &File, memory: &mut [u8], offset: u64) -> Request {
    Request {
        direction,
        file: Target::Fd(file.as_raw_fd()),
        rest: None,
        memory: memory.as_mut_ptr(),
        len: memory.len(),
        offset,
        region: None,
    }
}

/// Memory of its own for each request.
fn submit_read(
    ring: &mut Ring<Vec<u8>>,
    file: &File,
    len: usize,
    offset: u64,
) -> Result<(), Full<Vec<u8>>> {
    let mut memory = vec![0; len];
    let request = request(Direction::Read, file, &mut memory, offset);
    // SAFETY: the vector is the owner, does not move its bytes, and the file outlives the ring in
    // these tests.
    unsafe { ring.submit(request, memory) }
}

#[test]
fn reads_come_back_with_their_memory_and_more_than_the_depth_are_refused() {
    let Some(mut ring) = ring(4) else { return };
    let dir = TempDir::new().expect("a directory");
    let (file, bytes) = file_of(&dir, 10_000);
    for at in 0..4 {
        submit_read(&mut ring, &file, 3000, at * 3000).expect("four fit");
    }
    let Full(memory) = submit_read(&mut ring, &file, 7, 0).expect_err("the fifth does not");
    assert_eq!(memory.len(), 7);
    let mut over = Vec::new();
    ring.wait(4, soon(), &mut over).expect("no error");
    assert_eq!((over.len(), ring.in_flight()), (4, 0));
    let mut short = 0;
    for Completed { owner, moved } in over {
        let place = bytes.windows(8).position(|window| window == &owner[..8]);
        let place = place.expect("from the file");
        assert!(owner[..moved.bytes] == bytes[place..place + moved.bytes]);
        match moved.stop {
            None => assert_eq!(moved.bytes, 3000),
            Some(stop) => {
                assert_eq!((stop, moved.bytes), (Stop::EndOfFile, 1000));
                short += 1;
            }
        }
    }
    assert_eq!(short, 1, "the file ends within the last one");
}

#[test]
fn writes_arrive_and_errors_are_those_of_the_kernel() {
    let Some(mut ring) = ring::<Vec<u8>>(4) else {
        return;
    };
    let dir = TempDir::new().expect("a directory");
    let (file, _) = file_of(&dir, 0);
    let mut memory = vec![7; 5000];
    let write = request(Direction::Write, &file, &mut memory, 123);
    // SAFETY: as in `submit_read`.
    unsafe { ring.submit(write, memory) }.expect("room");
    let read_only = File::open(dir.path().join("file")).expect("it is there");
    let mut memory = vec![8; 10];
    let refused = request(Direction::Write, &read_only, &mut memory, 0);
    // SAFETY: as in `submit_read`.
    unsafe { ring.submit(refused, memory) }.expect("room");
    let mut over = Vec::new();
    ring.wait(2, soon(), &mut over).expect("no error");
    for one in &over {
        match one.owner.len() {
            5000 => assert_eq!((one.moved.bytes, one.moved.stop), (5000, None)),
            _ => assert_eq!(one.moved.stop, Some(Stop::Error(libc::EBADF))),
        }
    }
    let mut there = vec![0; 5000];
    file.read_exact_at(&mut there, 123).expect("written");
    assert!(there.iter().all(|byte| *byte == 7));
}

#[test]
fn direct_descriptors_hand_unaligned_ends_on_to_the_buffered_one() {
    let Some(mut ring) = ring::<Arc<Region>>(2) else {
        return;
    };
    let dir = TempDir::new().expect("a directory");
    let (file, bytes) = file_of(&dir, 9000);
    let direct = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(dir.path().join("file"));
    let Ok(direct) = direct else {
        println!("SKIPPED: no O_DIRECT in {}", dir.path().display());
        return;
    };
    let region = Region::host(16_384).build().expect("memory");
    for (offset, direct_bytes) in [(0, 9000), (100, 0)] {
        let read = Request {
            direction: Direction::Read,
            file: Target::Fd(direct.as_raw_fd()),
            rest: Some(Target::Fd(file.as_raw_fd())),
            memory: region.as_ptr(),
            len: 16_384,
            offset,
            region: None,
        };
        // SAFETY: nobody else uses the region, and it is the owner; the files outlive the ring.
        unsafe { ring.submit(read, Arc::clone(&region)) }.expect("room");
        let mut over = Vec::new();
        ring.wait(1, soon(), &mut over).expect("no error");
        let moved = over[0].moved;
        assert_eq!(moved.bytes, 9000 - offset as usize);
        assert_eq!(moved.stop, Some(Stop::EndOfFile));
        assert_eq!(moved.direct_refused, offset == 100, "{moved:?}");
        assert_eq!(moved.direct_bytes, direct_bytes);
        // SAFETY: the read is over.
        let there = unsafe { std::slice::from_raw_parts(region.as_ptr(), moved.bytes) };
        assert!(there == &bytes[offset as usize..]);
    }
}

#[test]
fn registered_files_and_regions_are_used_and_kept() {
    let Some(mut ring) = ring::<Arc<Region>>(2) else {
        return;
    };
    let dir = TempDir::new().expect("a directory");
    let (file, bytes) = file_of(&dir, 8192);
    let region = Region::host(8192).build().expect("memory");
    if let Err(error) = ring.register_region(&region) {
        println!("SKIPPED: no registered buffers: {error}");
        return;
    }
    ring.register_region(&region).expect("again is fine");
    assert_eq!(Arc::strong_count(&region), 2);
    let slots: Vec<_> = (0..4)
        .map(|_| ring.register_file(file.as_fd()).expect("four places"))
        .collect();
    assert_eq!(ring.register_file(file.as_fd()), None);
    ring.unregister_file(slots[2]);
    assert_eq!(ring.register_file(file.as_fd()), Some(slots[2]));
    // The kernel has a descriptor of its own.
    drop(file);
    let read = Request {
        direction: Direction::Read,
        file: Target::Registered(slots[2]),
        rest: None,
        memory: region.as_ptr(),
        len: 8192,
        offset: 0,
        region: None,
    };
    // SAFETY: nobody else uses the region, and it is the owner.
    unsafe { ring.submit(read, Arc::clone(&region)) }.expect("room");
    let flight = ring.inner.in_flight.iter().next().expect("in flight");
    assert!(
        flight.progress.request().region.is_some(),
        "found by itself"
    );
    let mut over = Vec::new();
    ring.wait(1, soon(), &mut over).expect("no error");
    assert_eq!((over[0].moved.bytes, over[0].moved.stop), (8192, None));
    // SAFETY: the read is over.
    let there = unsafe { std::slice::from_raw_parts(region.as_ptr(), 8192) };
    assert!(there == &bytes[..]);
    drop((over, ring));
    assert_eq!(Arc::strong_count(&region), 1);
}

/// A pipe that nobody writes to: a read of it stays in flight for as long as a test wants.
fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe().expect("two descriptors")
}

/// Counts its own drop, and keeps the descriptor that its read is from.
struct Counted(Vec<u8>, #[expect(dead_code)] Arc<OwnedFd>, Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fill(0xDD);
        self.2.fetch_add(1, Ordering::SeqCst);
    }
}

fn submit_endless(ring: &mut Ring<Counted>, from: &Arc<OwnedFd>, dropped: &Arc<AtomicUsize>) {
    let mut memory = vec![0; 64];
    let read = Request {
        direction: Direction::Read,
        file: Target::Fd(from.as_raw_fd()),
        rest: None,
        memory: memory.as_mut_ptr(),
        len: 64,
        // The pipe's own way.
        offset: u64::MAX,
        region: None,
    };
    let owner = Counted(memory, Arc::clone(from), Arc::clone(dropped));
    // SAFETY: the owner keeps the memory and the descriptor.
    assert!(unsafe { ring.submit(read, owner) }.is_ok(), "full");
}

#[test]
fn a_wait_ends_at_its_deadline_and_a_cancelled_request_once() {
    let Some(mut ring) = ring::<Counted>(2) else {
        return;
    };
    let (from, _to) = pipe();
    let (from, dropped) = (Arc::new(from), Arc::default());
    submit_endless(&mut ring, &from, &dropped);
    let mut over = Vec::new();
    let begin = Instant::now();
    ring.wait(1, Some(begin + Duration::from_millis(30)), &mut over)
        .expect("no error");
    assert!(over.is_empty() && begin.elapsed() >= Duration::from_millis(30));
    assert_eq!(ring.in_flight(), 1);
    ring.cancel_where(|_| true);
    ring.cancel_where(|_| true);
    ring.wait(1, soon(), &mut over).expect("no error");
    assert_eq!(over[0].moved.stop, Some(Stop::Cancelled));
    assert_eq!((over.len(), ring.in_flight()), (1, 0));
    // Of a request that is over: nothing happens.
    ring.cancel_where(|_| true);
    ring.wait(1, soon(), &mut over).expect("no error");
    assert_eq!((over.len(), dropped.load(Ordering::SeqCst)), (1, 0));
}

/// The kernel does not find a request that it moves from one place to another at that moment.
#[test]
fn a_cancellation_that_the_kernel_lost_is_repeated() {
    let Some(mut ring) = ring::<Counted>(2) else {
        return;
    };
    let (from, _to) = pipe();
    let (from, dropped) = (Arc::new(from), Arc::default());
    let mut over = Vec::new();
    for _ in 0..2 {
        submit_endless(&mut ring, &from, &dropped);
        ring.start().expect("no error");
        ring.lose_cancellations(3);
        ring.cancel_where(|_| true);
        over.clear();
        ring.wait(1, soon(), &mut over).expect("no error");
        assert_eq!((over.len(), ring.in_flight()), (1, 0), "it stays for ever");
        assert_eq!(over[0].moved.stop, Some(Stop::Cancelled));
    }
    // One that nobody waits for, and whose ring is gone.
    submit_endless(&mut ring, &from, &dropped);
    ring.start().expect("no error");
    ring.lose_cancellations(3);
    over.clear();
    let before = dropped.load(Ordering::SeqCst);
    drop(ring);
    let deadline = soon().expect("a time");
    while dropped.load(Ordering::SeqCst) == before && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(dropped.load(Ordering::SeqCst), before + 1);
}

#[test]
fn dropped_in_flight_it_frees_nothing_before_the_kernel_is_done() {
    let Some(mut ring) = ring::<Counted>(8) else {
        return;
    };
    let (from, to) = pipe();
    let (from, dropped) = (Arc::new(from), Arc::new(AtomicUsize::new(0)));
    for _ in 0..8 {
        submit_endless(&mut ring, &from, &dropped);
    }
    ring.start().expect("no error");
    drop(ring);
    let deadline = Instant::now() + SECOND;
    while dropped.load(Ordering::SeqCst) < 8 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(dropped.load(Ordering::SeqCst), 8, "each owner once");
    assert_eq!(Arc::strong_count(&from), 1);
    // Nobody reads any more.
    drop(from);
    let written = rustix::io::write(&to, b"late");
    assert_eq!(written, Err(rustix::io::Errno::PIPE));
    assert_eq!(reaper::leaked(), 0);
}

#[test]
fn what_was_never_started_is_dropped_at_once() {
    let Some(mut ring) = ring::<Counted>(8) else {
        return;
    };
    let (from, _to) = pipe();
    let (from, dropped) = (Arc::new(from), Arc::new(AtomicUsize::new(0)));
    submit_endless(&mut ring, &from, &dropped);
    drop(ring);
    let deadline = Instant::now() + SECOND;
    while dropped.load(Ordering::SeqCst) < 1 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

#[test]
fn an_answer_that_belongs_to_nobody_ends_the_ring() {
    let Some(mut ring) = ring::<Vec<u8>>(2) else {
        return;
    };
    let entry = opcode::Nop::new().build().user_data(0xDEAD_0000_0001);
    assert!(ring.inner.push(&entry));
    let mut over = Vec::new();
    let error = ring.wait(1, soon(), &mut over);
    // Nothing is in flight, so nothing is waited for; but it is seen.
    let error = error.and_then(|()| ring.wait(1, soon(), &mut over));
    assert!(error.is_err() && over.is_empty());
    assert!(ring.wait(0, soon(), &mut over).is_err(), "for good");
    let dir = TempDir::new().expect("a directory");
    let (file, _) = file_of(&dir, 10);
    assert!(submit_read(&mut ring, &file, 10, 0).is_err());
}

#[test]
fn in_a_forked_child_it_does_nothing() {
    let Some(mut ring) = ring::<Vec<u8>>(2) else {
        return;
    };
    let dir = TempDir::new().expect("a directory");
    let (file, bytes) = file_of(&dir, 10);
    submit_read(&mut ring, &file, 10, 0).expect("room");
    // SAFETY: the child makes no call that takes a lock of the parent's, and leaves by `_exit`.
    match unsafe { libc::fork() } {
        0 => {
            let refused = !ring.is_here();
            ring.cancel_where(|_| true);
            drop(ring);
            // SAFETY: ends the child, and runs nothing of the parent's.
            unsafe { libc::_exit(i32::from(!refused)) }
        }
        child => {
            let mut status = -1;
            // SAFETY: our own child; `status` is writable.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
    }
    let mut over = Vec::new();
    ring.wait(1, soon(), &mut over).expect("the parent's");
    assert_eq!(over[0].owner, bytes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Random reads and writes of disjoint memory at any depth, with cancellations: each ends once,
    /// with its own memory, and what it says it moved is there.
    #[test]
    fn every_request_ends_once(
        depth in 1u32..9,
        one_thread: bool,
        steps in prop::collection::vec(
            (0usize..3, 0u64..20_000, 1usize..6000, any::<bool>()),
            1..60,
        ),
    ) {
        let Ok(mut ring) = Ring::<(usize, Vec<u8>)>::open(RingConfig {
            one_thread,
            ..config(depth)
        }) else {
            return Ok(());
        };
        let dir = TempDir::new().expect("a directory");
        let (file, bytes) = file_of(&dir, 16_000);
        let (mut over, mut submitted, mut ended) = (Vec::new(), 0, vec![]);
        let end = |over: &mut Vec<Completed<(usize, Vec<u8>)>>, ended: &mut Vec<usize>| {
            for Completed {
                owner: (number, memory),
                moved,
            } in over.drain(..)
            {
                ended.push(number);
                let (_, offset, len, _) = steps[number];
                assert_eq!(memory.len(), len);
                let offset = (offset as usize).min(bytes.len());
                assert!(memory[..moved.bytes] == bytes[offset..offset + moved.bytes]);
                match moved.stop {
                    None => assert_eq!(moved.bytes, len),
                    Some(Stop::EndOfFile) => assert_eq!(offset + moved.bytes, bytes.len()),
                    Some(Stop::Cancelled) => {}
                    Some(stop) => panic!("{stop:?}"),
                }
            }
        };
        for (number, &(kind, offset, len, cancel)) in steps.iter().enumerate() {
            let mut memory = vec![0; len];
            let read = request(Direction::Read, &file, &mut memory, offset);
            // SAFETY: the vector is the owner, and the file outlives the ring.
            let answer = unsafe { ring.submit(read, (number, memory)) };
            match answer {
                Ok(()) => {
                    submitted += 1;
                    if cancel {
                        ring.cancel_where(|(other, _)| *other == number);
                    }
                }
                Err(Full((number, _))) => {
                    prop_assert_eq!(ring.in_flight(), depth as usize);
                    ended.push(number);
                    submitted += 1;
                }
            }
            ring.wait(kind, soon(), &mut over).expect("no error");
            end(&mut over, &mut ended);
        }
        ring.wait(usize::MAX, soon(), &mut over).expect("no error");
        end(&mut over, &mut ended);
        prop_assert_eq!(ring.in_flight(), 0);
        ended.sort_unstable();
        prop_assert_eq!(ended, (0..submitted).collect::<Vec<_>>());
    }
}
