use std::os::fd::OwnedFd;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::storage::engine::Engine;
use crate::storage::file::FileUse;
use crate::storage::plan::Tasks;
use crate::storage::{BackEnd, BackEndChoice, DirectIo, IoFuture};

/// A payload that panics when it is dropped, as code of others may throw one.
struct Spiteful;

impl Drop for Spiteful {
    fn drop(&mut self) {
        panic!("dropped what was thrown");
    }
}

/// What a task does, by the offset that it begins at.
#[derive(Debug, Clone, Copy)]
enum Act {
    Whole,
    /// So many bytes, then the end of the file.
    Short(usize),
    /// So many bytes, then an error.
    Fail(usize, i32),
    Panic,
    /// A panic whose payload panics when it is dropped.
    PanicTwice,
}

/// An engine that plays parts: tasks of 100 bytes, of which the n-th does the n-th act.
struct Played(Vec<Act>);

impl Engine for Played {
    fn back_end(&self) -> BackEnd {
        BackEnd::Posix
    }

    unsafe fn run(&self, task: &Task<'_>) -> TaskOutcome {
        let index = (task.offset / 100) as usize;
        let fill = |bytes: usize| {
            let start = task.memory.host().expect("the host's memory").as_ptr();
            // SAFETY: within the task's memory, which is good to write.
            unsafe { start.write_bytes(index as u8 + 1, bytes) };
        };
        // Out of order, now and then.
        if index.is_multiple_of(3) {
            std::thread::yield_now();
        }
        let (moved, error) = match self.0[index] {
            Act::Whole => (task.memory.len(), None),
            Act::Short(bytes) => (bytes, None),
            Act::Fail(bytes, errno) => (bytes, Some(FileErrorKind::Os { errno })),
            Act::Panic => panic!("a part that was played"),
            Act::PanicTwice => std::panic::panic_any(Spiteful),
        };
        fill(moved);
        TaskOutcome {
            moved,
            error,
            ..TaskOutcome::default()
        }
    }
}

fn subject() -> Subject {
    let fd: OwnedFd = tempfile::tempfile().unwrap().into();
    let used = FileUse {
        readable: true,
        writable: true,
        direct: DirectIo::Off,
        back_end: BackEndChoice::Posix,
        compat_mode: crate::storage::CompatMode::On,
        cufile_refuses: None,
    };
    let path: Arc<std::path::Path> = std::path::Path::new("played").into();
    Subject {
        file: Arc::new(File::new(path, fd, used).unwrap()),
        operation: FileOperation::Read,
        direction: Direction::Read,
        offset: 0,
    }
}

fn route(acts: &[Act]) -> TransferRoute {
    TransferRoute {
        // One for each case of a test.
        engine: Box::leak(Box::new(Played(acts.to_vec()))),
        context: None,
        tasks: Tasks::new(1, 0, 100 * acts.len(), 100),
        direct: false,
        bounce: 4096,
        helpers: false,
    }
}

fn begin(acts: &[Act], pool: &ThreadPool) -> IoFuture<Vec<u8>> {
    let buffer = vec![0; 100 * acts.len()];
    let place = |buffer: &mut Vec<u8>| RawMemory::of_mut(buffer);
    // SAFETY: a vector's own bytes, until it is dropped or used.
    let operation = unsafe { Operation::new(subject(), route(acts), buffer, place) };
    match operation.submit(pool) {
        Ok(()) => IoFuture::running(operation),
        Err(outcome) => IoFuture::over(outcome),
    }
}

/// What has to come of it, worked out task by task.
fn expected(acts: &[Act]) -> (usize, Option<FileErrorKind>) {
    for (index, act) in acts.iter().enumerate() {
        match *act {
            Act::Whole => {}
            Act::Short(bytes) => return (100 * index + bytes, None),
            Act::Fail(bytes, errno) => {
                return (100 * index + bytes, Some(FileErrorKind::Os { errno }));
            }
            Act::Panic => {
                let said = "a part that was played".to_owned();
                return (100 * index, Some(FileErrorKind::Panicked(said)));
            }
            Act::PanicTwice => {
                return (100 * index, Some(FileErrorKind::Panicked(String::new())));
            }
        }
    }
    (100 * acts.len(), None)
}

fn check(acts: &[Act], result: &Result<Transferred, FileError>, buffer: &[u8]) {
    let (bytes, error) = expected(acts);
    match (result, error) {
        (Ok(moved), None) => assert_eq!(moved.bytes, bytes),
        (Err(found), Some(kind)) => assert_eq!((found.done, &found.kind), (bytes as u64, &kind)),
        (found, error) => panic!("{found:?}, expected {bytes} bytes and {error:?}"),
    }
    for (at, byte) in buffer[..bytes].iter().enumerate() {
        assert_eq!(usize::from(*byte), at / 100 + 1, "byte {at}");
    }
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        12 => Just(Act::Whole),
        1 => (0..100usize).prop_map(Act::Short),
        1 => ((0..100usize), (1..30i32)).prop_map(|(bytes, errno)| Act::Fail(bytes, errno)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_first_task_that_stops_decides(acts in proptest::collection::vec(act(), 1..40)) {
        static POOL: OnceLock<ThreadPool> = OnceLock::new();
        // Room for what comes too late: who waits takes part, and may do all of it before a thread
        // wakes up.
        let pool = POOL.get_or_init(|| ThreadPool::new(3, 4096).unwrap());
        let outcome = begin(&acts, pool).wait();
        check(&acts, &outcome.result, &outcome.buffer);
        let mut bytes = vec![0; 100 * acts.len()];
        let memory = RawMemory::of_mut(&mut bytes);
        // SAFETY: borrowed for us alone.
        let result = unsafe { transfer(subject(), memory, route(&acts), Some(pool)) };
        check(&acts, &result, &bytes);
    }
}

#[test]
fn a_task_that_panics_is_an_error_and_the_buffer_comes_back() {
    let pool = ThreadPool::new(2, 8).unwrap();
    let acts = [Act::Whole, Act::Whole, Act::Panic, Act::Whole];
    let deadline = Instant::now() + Duration::from_secs(120);
    let outcome = begin(&acts, &pool).wait_until(deadline).unwrap();
    check(&acts, &outcome.result, &outcome.buffer);
    let mut bytes = vec![0; 400];
    let memory = RawMemory::of_mut(&mut bytes);
    // SAFETY: borrowed for us alone.
    let result = unsafe { transfer(subject(), memory, route(&acts), Some(&pool)) };
    check(&acts, &result, &bytes);
    assert_eq!(pool.stats().panics, 0, "the pool never sees it");
}

#[test]
fn what_a_panic_carries_costs_neither_the_outcome_nor_the_thread() {
    let pool = ThreadPool::new(2, 8).unwrap();
    let acts = [Act::Whole, Act::PanicTwice, Act::Whole];
    let deadline = Instant::now() + Duration::from_secs(30);
    let outcome = begin(&acts, &pool).wait_until(deadline);
    let outcome = outcome.expect("it ends");
    check(&acts, &outcome.result, &outcome.buffer);
    let mut bytes = vec![0; 300];
    let memory = RawMemory::of_mut(&mut bytes);
    // SAFETY: borrowed for us alone.
    let result = unsafe { transfer(subject(), memory, route(&acts), Some(&pool)) };
    check(&acts, &result, &bytes);
    assert_eq!((pool.stats().panics, pool.threads()), (0, 2));
}

#[test]
fn what_has_not_begun_behind_an_error_is_left_out() {
    let pool = ThreadPool::new(1, 8).unwrap();
    let mut acts = vec![Act::Whole; 50];
    acts[1] = Act::Fail(10, libc::EIO);
    let deadline = Instant::now() + Duration::from_secs(120);
    let outcome = begin(&acts, &pool).wait_until(deadline).unwrap();
    check(&acts, &outcome.result, &outcome.buffer);
    assert!(
        outcome.buffer[200..].iter().all(|byte| *byte == 0),
        "one thread: in order"
    );
}

/// Tells when it is dropped.
struct Told(Vec<u8>, std::sync::mpsc::Sender<()>);

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.1.send(());
    }
}

#[test]
fn a_buffer_is_dropped_once_and_only_when_its_operation_is_over() {
    let pool = ThreadPool::new(2, 8).unwrap();
    pool.pause();
    let (sender, told) = std::sync::mpsc::channel();
    let place = |buffer: &mut Told| RawMemory::of_mut(&mut buffer.0);
    let buffer = Told(vec![0; 300], sender);
    // SAFETY: a vector's own bytes, until it is dropped or used.
    let operation = unsafe { Operation::new(subject(), route(&[Act::Whole; 3]), buffer, place) };
    assert!(operation.submit(&pool).is_ok());
    let future = IoFuture::running(operation);
    drop(future);
    assert!(
        told.try_recv().is_err(),
        "tasks are queued that know where it is"
    );
    pool.resume();
    told.recv_timeout(Duration::from_secs(120)).unwrap();
    assert!(
        told.recv_timeout(Duration::from_millis(20)).is_err(),
        "once"
    );
}
