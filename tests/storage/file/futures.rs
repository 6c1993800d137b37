//! `IoFuture`: every way to wait, to be told, and not to wait.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use fabricast::buffer::SharedBufferManager;
use fabricast::future::Executor;
use fabricast::storage::{
    BackEnd, FileErrorKind, FileHandle, IoOptions, ThreadPool, callback_panics, wait_all, wait_any,
};
use tempfile::TempDir;

const SIZE: usize = 300_000;

struct Fixture {
    file: FileHandle,
    pool: ThreadPool,
    options: IoOptions,
    _directory: TempDir,
}

/// A file of `SIZE` bytes, and a pool with room for so many operations.
fn fixture(queue: usize) -> Fixture {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = FileHandle::open(directory.path().join("file"), "w+").unwrap();
    file.write(&vec![4; SIZE], 0).unwrap();
    let pool = ThreadPool::new(2, queue).unwrap();
    let options = IoOptions {
        pool: Some(pool.clone()),
        task_size: Some(65_536),
        ..IoOptions::default()
    };
    Fixture {
        file,
        pool,
        options,
        _directory: directory,
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

#[test]
fn a_deadline_gives_the_future_back() {
    let Fixture {
        file,
        pool,
        options,
        ..
    } = &fixture(8);
    pool.pause();
    let future = file.pread(vec![0; SIZE], .., 0, options);
    let future = future
        .wait_until(Instant::now() + Duration::from_millis(10))
        .unwrap_err();
    assert!(!future.is_done());
    pool.resume();
    let outcome = future.wait_until(soon()).unwrap();
    assert_eq!(outcome.result.unwrap().bytes, SIZE);
    assert!(outcome.buffer.iter().all(|byte| *byte == 4));
}

#[test]
fn who_waits_without_a_deadline_does_the_work() {
    let Fixture {
        file,
        pool,
        options,
        ..
    } = &fixture(8);
    pool.pause();
    let outcome = file.pread(vec![0; SIZE], .., 0, options).wait();
    assert_eq!(outcome.result.unwrap().bytes, SIZE);
    pool.resume();
}

#[test]
fn futures_are_awaited_on_any_executor() {
    let Fixture { file, options, .. } = &fixture(8);
    let executor = Executor::new().unwrap();
    let outcome = executor.block_on(async {
        let written = file.pwrite(vec![6; SIZE], .., 0, options).await;
        file.pread(written.buffer, .., 0, options).await
    });
    assert_eq!(outcome.result.unwrap().bytes, SIZE);
    assert!(outcome.buffer.iter().all(|byte| *byte == 6));
}

/// Polls its future until it is told to stop.
struct Once<F>(F);

impl<F: Future + Unpin> Future for Once<F> {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        Poll::Ready(Pin::new(&mut self.0).poll(cx).is_ready())
    }
}

#[test]
fn a_future_that_was_polled_can_still_be_waited_for() {
    let Fixture {
        file,
        pool,
        options,
        ..
    } = &fixture(8);
    let executor = Executor::new().unwrap();
    pool.pause();
    let mut polled = Once(file.pread(vec![0; 100], .., 0, options));
    assert!(!executor.block_on(&mut polled));
    pool.resume();
    let mut futures = [polled.0];
    assert_eq!(wait_any(&mut futures, soon()), Some(0));
    let [future] = futures;
    assert!(future.is_done());
    assert_eq!(future.wait().result.unwrap().bytes, 100);
}

#[test]
fn all_and_any() {
    let Fixture {
        file,
        pool,
        options,
        ..
    } = &fixture(8);
    pool.pause();
    let begin = |offset| file.pread(vec![0; 1000], .., offset, options);
    let mut futures = vec![begin(0), begin(1000), begin(SIZE as u64 - 10)];
    assert_eq!(
        wait_any(&mut futures, Instant::now() + Duration::from_millis(5)),
        None
    );
    let late = wait_all(futures, Instant::now() + Duration::from_millis(5));
    let futures: Vec<_> = late.into_iter().map(|it| it.unwrap_err()).collect();
    pool.resume();
    let done = wait_all(futures, soon());
    let bytes: Vec<_> = done
        .into_iter()
        .map(|it| it.unwrap().result.unwrap().bytes)
        .collect();
    assert_eq!(bytes, [1000, 1000, 10]);
    assert_eq!(wait_any::<Vec<u8>>(&mut [], soon()), None);
}

#[test]
fn callbacks_are_called_once_and_may_panic() {
    let Fixture {
        file,
        pool,
        options,
        ..
    } = &fixture(8);
    let (told, outcomes) = mpsc::channel();
    pool.pause();
    let later = told.clone();
    file.pread(vec![0; 1000], .., 0, options)
        .on_done(move |outcome| later.send(outcome).unwrap());
    pool.resume();
    let outcome = outcomes.recv_timeout(Duration::from_secs(120)).unwrap();
    assert_eq!(outcome.result.unwrap().bytes, 1000);
    // Over already: at once, on this thread.
    let future = file.pread(outcome.buffer, .., 0, options);
    while !future.is_done() {
        std::thread::sleep(Duration::from_micros(100));
    }
    future.on_done(move |outcome| told.send(outcome).unwrap());
    assert_eq!(outcomes.try_recv().unwrap().result.unwrap().bytes, 1000);
    let before = callback_panics();
    file.pread(vec![0; 1000], .., 0, options)
        .on_done(|_| panic!("as callbacks may"));
    let end = soon();
    while callback_panics() == before {
        assert!(Instant::now() < end, "the panic was not counted");
        std::thread::sleep(Duration::from_micros(100));
    }
    // Nobody is worse off.
    assert_eq!(
        file.pread(vec![0; 1000], .., 0, options)
            .wait()
            .result
            .unwrap()
            .bytes,
        1000
    );
}

#[test]
fn a_full_pool_gives_the_buffer_back() {
    let Fixture {
        file,
        pool,
        options,
        ..
    } = &fixture(2);
    pool.pause();
    let waiting = [0, 1].map(|n| file.pread(vec![n; 1000], .., 0, options));
    let outcome = file.pread(vec![9; 1000], .., 0, options).wait();
    let error = outcome.result.unwrap_err();
    assert!(error.is_would_block(), "{error}");
    assert_eq!(error.kind, FileErrorKind::QueueFull);
    assert_eq!(outcome.buffer, [9; 1000]);
    // Blocking ones need nobody.
    let mut bytes = vec![0; SIZE];
    assert_eq!(
        file.read_parallel(&mut bytes, 0, options).unwrap().bytes,
        SIZE
    );
    pool.resume();
    for future in waiting {
        assert_eq!(
            future.wait_until(soon()).unwrap().result.unwrap().bytes,
            1000
        );
    }
}

#[test]
fn buffers_of_dropped_futures_go_back_to_their_pool() {
    let Fixture {
        file,
        pool,
        options,
        ..
    } = &fixture(64);
    let buffers = SharedBufferManager::allocate(8, SIZE).unwrap();
    let end = soon();
    for round in 0..40 {
        if round % 4 == 0 {
            pool.pause();
        }
        let taken: Vec<_> = std::iter::from_fn(|| buffers.try_acquire()).collect();
        assert_eq!(taken.len(), 8);
        for (n, buffer) in taken.into_iter().enumerate() {
            if n % 2 == 0 {
                drop(file.pread(buffer, .., 0, options));
            } else {
                drop(file.pwrite(buffer.freeze(SIZE), .., 0, options));
            }
            if n == 5 {
                pool.resume();
            }
        }
        pool.resume();
        while buffers.free_count() < 8 {
            assert!(
                Instant::now() < end,
                "{} of 8 buffers came back",
                buffers.free_count()
            );
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

#[test]
fn a_dropped_read_is_left_out_and_a_dropped_write_is_not() {
    let Fixture {
        file,
        pool,
        options,
        ..
    } = &fixture(64);
    pool.pause();
    drop(file.pwrite(vec![8; 1000], .., SIZE as u64, options));
    drop(file.pread(vec![0; SIZE], .., 0, options));
    pool.resume();
    let end = soon();
    while file.stats().read.operations() == 0 || file.stats().write.operations() < 2 {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_micros(100));
    }
    assert_eq!(file.stats().read.bytes(), 0);
    let mut bytes = [0; 1000];
    assert_eq!(file.read(&mut bytes, SIZE as u64).unwrap().bytes, 1000);
    assert_eq!(bytes, [8; 1000]);
}

#[test]
fn a_handle_that_is_dropped_leaves_its_operations_alone() {
    let Fixture {
        file,
        pool,
        options,
        _directory,
    } = fixture(64);
    pool.pause();
    let future = file.pread(vec![0; SIZE], .., 0, &options);
    drop(file);
    pool.resume();
    assert_eq!(future.wait().result.unwrap().bytes, SIZE);
}

#[test]
fn nothing_to_do_is_done_at_once() {
    let Fixture { file, options, .. } = &fixture(1);
    let future = file.pwrite(Vec::new(), .., 0, options);
    assert!(future.is_done());
    assert_eq!(future.wait().result.unwrap().bytes, 0);
    assert_eq!(file.read(&mut [], 0).unwrap().bytes, 0);
    assert_eq!(file.nbytes().unwrap(), SIZE as u64);
}

#[test]
fn a_stream_is_not_needed_where_there_is_no_gpu() {
    let Fixture { file, .. } = &fixture(8);
    let written = file.write_async(vec![9; 100], 10..60, 1000, None);
    assert!(!written.is_asynchronous() && written.is_done().unwrap());
    let outcome = written.check_bytes_done();
    let moved = outcome.result.unwrap();
    assert_eq!((moved.bytes, outcome.buffer.unwrap().len()), (50, 100));
    assert_ne!(moved.back_end, BackEnd::CuFile);
    let outcome = file.read_async(vec![0; 100], .., 1040, None);
    let outcome = outcome.check_bytes_done_within(Duration::ZERO).unwrap();
    assert_eq!(outcome.result.unwrap().bytes, 100);
    let buffer = outcome.buffer.unwrap();
    assert!(buffer[..10] == [9; 10] && buffer[10..] == [4; 90]);
    let outcome = file.read_async(vec![0; 100], 90..101, 0, None);
    let outcome = outcome.check_bytes_done();
    let error = outcome.result.unwrap_err();
    assert!(matches!(error.kind, FileErrorKind::Range { .. }), "{error}");
    assert_eq!(outcome.buffer.unwrap().len(), 100);
}
