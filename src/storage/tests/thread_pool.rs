use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::forked::in_a_child;

const SOON: Duration = Duration::from_secs(60);

/// A job that says which of its tasks ran, and waits in each for a word where it has a gate.
struct Job {
    done: Mutex<Sender<(u32, bool)>>,
    gate: Option<Gate>,
    panic_in: Range<u32>,
}

#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        *unpoisoned(&self.0.0) = true;
        self.0.1.notify_all();
    }

    fn wait(&self) {
        let guard = unpoisoned(&self.0.0);
        let wait = self.0.1.wait_timeout_while(guard, SOON, |open| !*open);
        assert!(!wait.unwrap().1.timed_out(), "the gate stayed shut");
    }
}

impl Job {
    fn new(gate: Option<Gate>, panic_in: Range<u32>) -> (Arc<Self>, Receiver<(u32, bool)>) {
        let (done, outcomes) = channel();
        let done = Mutex::new(done);
        (
            Arc::new(Self {
                done,
                gate,
                panic_in,
            }),
            outcomes,
        )
    }

    fn say(&self, task: u32, came_back: bool) {
        // The test may have gone.
        let _ = unpoisoned(&self.done).send((task, came_back));
    }
}

impl Run for Job {
    fn run(self: Arc<Self>, task: u32) {
        if let Some(gate) = &self.gate {
            gate.wait();
        }
        // Without a message on the terminal.
        if self.panic_in.contains(&task) {
            std::panic::resume_unwind(Box::new("as asked"));
        }
        self.say(task, true);
    }

    fn panicked(self: Arc<Self>, task: u32) {
        self.say(task, false);
    }
}

/// So many outcomes, sorted; an assertion when they don't come.
fn outcomes(receiver: &Receiver<(u32, bool)>, count: usize) -> Vec<(u32, bool)> {
    let mut all: Vec<_> = (0..count)
        .map(|n| {
            let outcome = receiver.recv_timeout(SOON);
            outcome.unwrap_or_else(|why| panic!("outcome {n} of {count}: {why}"))
        })
        .collect();
    all.sort_unstable();
    all
}

fn came_back(tasks: Range<u32>) -> Vec<(u32, bool)> {
    tasks.map(|task| (task, true)).collect()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < deadline, "not so: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn each_task_is_called_once() {
    let pool = ThreadPool::new(3, 8).unwrap();
    let (job, done) = Job::new(None, 0..0);
    pool.submit(job, 0..1000).unwrap();
    assert_eq!(outcomes(&done, 1000), came_back(0..1000));
    until("all idle", || pool.stats().done == 1000);
    // The job is gone with its last task: nobody can say more.
    assert!(done.recv_timeout(SOON).is_err());
    let stats = pool.stats();
    assert_eq!(
        (stats.threads, stats.running, stats.queued_tasks),
        (3, 0, 0)
    );
}

#[test]
fn tasks_begin_in_their_order_and_jobs_one_after_the_other() {
    let pool = ThreadPool::new(1, 8).unwrap();
    pool.pause();
    assert!(pool.is_paused());
    let (first, done) = Job::new(None, 0..0);
    pool.submit(Arc::clone(&first) as _, 5..8).unwrap();
    pool.submit(first, 0..2).unwrap();
    assert_eq!(pool.stats().queued_operations, 2);
    assert_eq!(pool.stats().queued_tasks, 5);
    pool.resume();
    let order: Vec<_> = (0..5).map(|_| done.recv_timeout(SOON).unwrap().0).collect();
    assert_eq!(order, [5, 6, 7, 0, 1]);
}

#[test]
fn several_tasks_run_at_once() {
    let pool = ThreadPool::new(4, 1).unwrap();
    let gate = Gate::default();
    let (job, done) = Job::new(Some(gate.clone()), 0..0);
    pool.submit(job, 0..4).unwrap();
    until("four tasks run", || pool.stats().running == 4);
    gate.open();
    assert_eq!(outcomes(&done, 4), came_back(0..4));
}

#[test]
fn a_full_queue_gives_the_job_back() {
    let pool = ThreadPool::new(1, 2).unwrap();
    pool.pause();
    let (job, done) = Job::new(None, 0..0);
    pool.submit(Arc::clone(&job) as _, 0..5).unwrap();
    pool.submit(Arc::clone(&job) as _, 5..9).unwrap();
    let refused = pool.submit(Arc::clone(&job) as _, 9..12).unwrap_err();
    assert_eq!(refused.kind, RefusedKind::Full { bound: 2 });
    assert!(format!("{refused:?}").contains("Full"));
    // A job without tasks needs no place.
    pool.submit(Arc::clone(&job) as _, 3..3).unwrap();
    pool.resume();
    assert_eq!(outcomes(&done, 9), came_back(0..9));
    pool.submit(refused.job, 9..12).unwrap();
    assert_eq!(outcomes(&done, 3), came_back(9..12));
}

#[test]
fn queued_tasks_survive_a_change_of_threads() {
    let pool = ThreadPool::new(4, 8).unwrap();
    let gate = Gate::default();
    let (job, done) = Job::new(Some(gate.clone()), 0..0);
    pool.submit(job, 0..50).unwrap();
    until("four tasks run", || pool.stats().running == 4);
    pool.resize(1).unwrap();
    assert_eq!(pool.threads(), 1);
    // Nobody is interrupted: three threads leave when their tasks are done.
    assert_eq!((pool.stats().threads, pool.stats().running), (4, 4));
    gate.open();
    assert_eq!(outcomes(&done, 50), came_back(0..50));
    until("one thread", || pool.stats().threads == 1);

    pool.resize(6).unwrap();
    assert_eq!(pool.stats().threads, 6);
    let gate = Gate::default();
    let (job, done) = Job::new(Some(gate.clone()), 0..0);
    pool.submit(job, 0..6).unwrap();
    until("six tasks run", || pool.stats().running == 6);
    gate.open();
    assert_eq!(outcomes(&done, 6), came_back(0..6));
}

#[test]
fn a_paused_pool_stays_paused_when_it_is_resized() {
    let pool = ThreadPool::new(2, 8).unwrap();
    pool.pause();
    let (job, done) = Job::new(None, 0..0);
    pool.submit(job, 0..3).unwrap();
    pool.resize(4).unwrap();
    assert!(pool.is_paused());
    assert!(done.recv_timeout(Duration::from_millis(20)).is_err());
    pool.resume();
    assert_eq!(outcomes(&done, 3), came_back(0..3));
}

#[test]
fn a_panic_gives_the_task_its_outcome_and_costs_no_thread() {
    let pool = ThreadPool::new(2, 8).unwrap();
    let (job, done) = Job::new(None, 3..6);
    pool.submit(job, 0..10).unwrap();
    let wanted: Vec<_> = (0..10)
        .map(|task| (task, !(3..6).contains(&task)))
        .collect();
    assert_eq!(outcomes(&done, 10), wanted);
    until("all counted", || pool.stats().done == 10);
    let stats = pool.stats();
    assert_eq!((stats.panics, stats.threads, stats.running), (3, 2, 0));
    let (job, done) = Job::new(None, 0..0);
    pool.submit(job, 0..2).unwrap();
    assert_eq!(outcomes(&done, 2), came_back(0..2));
}

#[test]
fn a_job_that_panics_wherever_it_can_costs_no_thread() {
    struct Worst;
    impl Run for Worst {
        fn run(self: Arc<Self>, _: u32) {
            std::panic::resume_unwind(Box::new(Self));
        }
        fn panicked(self: Arc<Self>, _: u32) {
            std::panic::resume_unwind(Box::new(Self));
        }
    }
    impl Drop for Worst {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                std::panic::resume_unwind(Box::new(()));
            }
        }
    }
    let pool = ThreadPool::new(1, 8).unwrap();
    pool.submit(Arc::new(Worst), 0..3).unwrap();
    let (job, done) = Job::new(None, 0..0);
    pool.submit(job, 0..1).unwrap();
    assert_eq!(outcomes(&done, 1), came_back(0..1));
    assert_eq!(pool.stats().threads, 1);
}

#[test]
fn dropping_the_last_handle_runs_what_is_queued_and_waits_for_nobody() {
    let pool = ThreadPool::new(1, 8).unwrap();
    let other = pool.clone();
    let gate = Gate::default();
    let (job, done) = Job::new(Some(gate.clone()), 0..0);
    pool.submit(job, 0..5).unwrap();
    pool.pause();
    drop(pool);
    let left = Arc::downgrade(other.shared());
    drop(other);
    gate.open();
    assert_eq!(outcomes(&done, 5), came_back(0..5));
    until("its thread has left", || left.strong_count() == 0);
}

#[test]
fn the_last_handle_may_be_dropped_on_a_thread_of_the_pool() {
    struct Holder(Mutex<Option<ThreadPool>>, Mutex<Sender<()>>);
    impl Run for Holder {
        fn run(self: Arc<Self>, _: u32) {
            drop(unpoisoned(&self.0).take());
            let _ = unpoisoned(&self.1).send(());
        }
        fn panicked(self: Arc<Self>, _: u32) {}
    }
    let (said, heard) = channel();
    let pool = ThreadPool::new(1, 8).unwrap();
    let left = Arc::downgrade(pool.shared());
    let job = Arc::new(Holder(Mutex::new(Some(pool.clone())), Mutex::new(said)));
    pool.submit(job, 0..1).unwrap();
    drop(pool);
    heard.recv_timeout(SOON).unwrap();
    until("its thread has left", || left.strong_count() == 0);
}

#[test]
fn numbers_out_of_range_are_refused_by_name() {
    for (pool, field) in [
        (ThreadPool::new(0, 1), "threads = 0"),
        (ThreadPool::new(THREADS_MAX + 1, 1), "threads = 1025"),
        (ThreadPool::new(1, 0), "queue = 0"),
        (ThreadPool::new(1, QUEUE_MAX + 1), "queue = 1048577"),
        (ThreadPool::named("longer than that", 1, 1), "name"),
        (ThreadPool::named("a\0b", 1, 1), "name"),
    ] {
        let error = pool.unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
    let pool = ThreadPool::new(2, 1).unwrap();
    assert!(pool.resize(0).is_err());
    assert_eq!(pool.threads(), 2);
}

#[test]
fn threads_bear_the_pools_name() {
    struct Name(Mutex<Sender<String>>);
    impl Run for Name {
        fn run(self: Arc<Self>, _: u32) {
            let name = std::thread::current().name().unwrap_or("").to_owned();
            let _ = unpoisoned(&self.0).send(name);
        }
        fn panicked(self: Arc<Self>, _: u32) {}
    }
    let (said, heard) = channel();
    let pool = ThreadPool::named("fc-test", 1, 1).unwrap();
    pool.submit(Arc::new(Name(Mutex::new(said))), 0..1).unwrap();
    assert_eq!(heard.recv_timeout(SOON).unwrap(), "fc-test-0");
}

#[test]
fn a_forked_child_has_no_threads_and_is_told_so() {
    let pool = ThreadPool::new(1, 1).unwrap();
    let (job, done) = Job::new(None, 0..0);
    let mut jobs = vec![Arc::clone(&job) as Arc<dyn Run>];
    // As a thread of the parent may hold it at the fork.
    let locked = pool.shared().lock();
    let code = in_a_child(|| {
        let refused = pool.submit(jobs.remove(0), 0..1).unwrap_err();
        let forked = matches!(refused.kind, RefusedKind::Forked { .. });
        let nothing = pool.stats() == ThreadPoolStats::default() && pool.threads() == 0;
        let resized = matches!(pool.resize(2), Err(Error::Forked { .. }));
        pool.pause();
        pool.resume();
        i32::from(!forked) | i32::from(!nothing) << 1 | i32::from(!resized) << 2
    });
    assert_eq!(code, 0, "what went wrong, by bits");
    drop(locked);
    pool.submit(job, 0..1).unwrap();
    assert_eq!(outcomes(&done, 1), came_back(0..1));
}

/// What happens to a pool, in random order.
#[derive(Debug, Clone)]
enum Step {
    Submit { tasks: u32, panics: u32 },
    Resize(usize),
    Pause,
    Resume,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0_u32..20, 0_u32..3).prop_map(|(tasks, panics)| Step::Submit { tasks, panics }),
        2 => (1_usize..6).prop_map(Step::Resize),
        1 => Just(Step::Pause),
        1 => Just(Step::Resume),
    ];
    proptest::collection::vec(step, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever happens to a pool, each task of each job that it took has one outcome, and refused
    /// jobs have none.
    #[test]
    fn accepted_tasks_have_one_outcome(steps in steps(), queue in 1_usize..6) {
        let pool = ThreadPool::new(2, queue).unwrap();
        let mut accepted = Vec::new();
        for step in steps {
            match step {
                Step::Submit { tasks, panics } => {
                    let (job, done) = Job::new(None, 0..panics);
                    if pool.submit(job, 0..tasks).is_ok() {
                        accepted.push((tasks, panics, done));
                    } else {
                        prop_assert_eq!(done.recv(), Err(std::sync::mpsc::RecvError));
                    }
                }
                Step::Resize(threads) => pool.resize(threads).unwrap(),
                Step::Pause => pool.pause(),
                Step::Resume => pool.resume(),
            }
        }
        let shared = Arc::downgrade(pool.shared());
        drop(pool);
        for (tasks, panics, done) in accepted {
            let wanted: Vec<_> = (0..tasks).map(|task| (task, task >= panics)).collect();
            prop_assert_eq!(outcomes(&done, tasks as usize), wanted);
            prop_assert!(done.recv_timeout(SOON).is_err(), "the job is gone");
        }
        until("its threads have left", || shared.strong_count() == 0);
    }
}
