use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::Wake;
use std::time::Duration;

use super::*;
use crate::forked::in_a_child;

const LONG: Duration = Duration::from_secs(60);

/// Counts how often it is woken.
#[derive(Default)]
struct Counted(AtomicUsize, Condvar, Mutex<()>);

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        let _guard = unpoisoned(&self.2);
        self.0.fetch_add(1, Ordering::SeqCst);
        self.1.notify_all();
    }
}

impl Counted {
    fn wait(&self, woken: usize) {
        let guard = unpoisoned(&self.2);
        let short = |_: &mut ()| self.0.load(Ordering::SeqCst) < woken;
        let waited = self.1.wait_timeout_while(guard, LONG, short).unwrap().1;
        assert!(!waited.timed_out(), "woken {} times", woken - 1);
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let executor = fabricast::future::Executor::new().unwrap();
    executor.block_on(future)
}

#[test]
fn a_job_is_done_by_a_thread_and_its_panic_is_the_awaiter_s() {
    let threads = StoreThreads::new(2).unwrap();
    let name = || std::thread::current().name().map(String::from);
    let by = block_on(threads.spawn_blocking(name)).unwrap();
    assert!(by.starts_with("fc-zarr-"), "{by}");
    for _ in 0..4 {
        let future = threads.spawn_blocking(|| -> u8 { resume_unwind(Box::new("on purpose")) });
        let panic = catch_unwind(AssertUnwindSafe(|| block_on(future))).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
    }
    assert_eq!(
        block_on(threads.spawn_blocking(|| 7)),
        7,
        "the threads live on"
    );
}

#[test]
fn a_job_whose_queue_is_full_waits_in_its_future() {
    let threads = StoreThreads::new(1).unwrap();
    let (go, gate) = mpsc::channel::<()>();
    let (begun, has_begun) = mpsc::channel();
    let woken = Arc::new(Counted::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    let mut first = Box::pin(threads.spawn_blocking(move || {
        begun.send(()).unwrap();
        gate.recv_timeout(LONG).unwrap();
    }));
    assert!(first.as_mut().poll(&mut cx).is_pending());
    has_begun.recv_timeout(LONG).unwrap();
    let done = Arc::new(AtomicUsize::new(0));
    for _ in 0..QUEUE_MAX {
        let done = Arc::clone(&done);
        let job = threads.spawn_blocking(move || done.fetch_add(1, Ordering::SeqCst));
        // In the queue, and given up: done all the same.
        assert!(pin!(job).poll(&mut cx).is_pending());
    }
    let waiting = Arc::new(Counted::default());
    let waker = Waker::from(Arc::clone(&waiting));
    let mut cx = Context::from_waker(&waker);
    let counted = Arc::clone(&done);
    let mut one_more = Box::pin(JobFuture::new(Arc::clone(&threads.0), move || {
        counted.load(Ordering::SeqCst)
    }));
    assert!(one_more.as_mut().poll(&mut cx).is_pending());
    assert_eq!(unpoisoned(&threads.0.jobs.queue).jobs.len(), QUEUE_MAX);
    go.send(()).unwrap();
    waiting.wait(1);
    assert!(
        one_more.job.is_some(),
        "not in the queue before it is polled"
    );
    assert_eq!(block_on(one_more), QUEUE_MAX, "after those before it");
    woken.wait(1);
}

#[test]
fn what_is_in_the_queue_is_done_when_the_threads_are_dropped() {
    let threads = StoreThreads::new(1).unwrap();
    let (done, results) = mpsc::channel();
    let mut cx = Context::from_waker(Waker::noop());
    for n in 0..100 {
        let done = done.clone();
        let job = threads.spawn_blocking(move || done.send(n).unwrap());
        let _ = pin!(job).poll(&mut cx);
    }
    drop((threads, done));
    let results: Vec<_> = std::iter::from_fn(|| results.recv_timeout(LONG).ok()).collect();
    assert_eq!(results, (0..100).collect::<Vec<_>>());
}

#[test]
fn in_a_forked_child_whoever_awaits_a_job_does_it() {
    let threads = StoreThreads::new(1).unwrap();
    let code = in_a_child(|| {
        let mut cx = Context::from_waker(Waker::noop());
        let job = JobFuture::new(Arc::clone(&threads.0), || 7);
        match pin!(job).poll(&mut cx) {
            Poll::Ready(code) => code,
            Poll::Pending => 1,
        }
    });
    assert_eq!(code, 7);
    assert_eq!(
        block_on(threads.spawn_blocking(|| 8)),
        8,
        "and here the thread"
    );
}

#[test]
fn threads_are_from_1_to_1024() {
    for wrong in [0, 1025, usize::MAX] {
        let error = StoreThreads::new(wrong).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("1024"), "{error}");
    }
}
