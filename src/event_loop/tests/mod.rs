//! Tests of the loop with made-up endpoints: eventfds that stand for the descriptors of a
//! completion queue.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::pipe::{PipeFlags, pipe_with};
use smallvec::SmallVec;

use super::*;
use crate::clock::Clock;

mod signals;

const MS: Duration = Duration::from_millis(1);
/// The longest that any test may wait for something that must happen.
const DEADLINE: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct FakeSource {
    fds: Vec<OwnedFd>,
    may_sleep: AtomicBool,
    fails: AtomicBool,
    deadline: Mutex<Option<Instant>>,
    prepared: AtomicU64,
}

impl WaitSource for FakeSource {
    fn fds(&self) -> SmallVec<[RawFd; 3]> {
        self.fds.iter().map(AsRawFd::as_raw_fd).collect()
    }

    fn prepare_wait(&self) -> Result<bool, Error> {
        self.prepared.fetch_add(1, Ordering::Relaxed);
        if self.fails.load(Ordering::Relaxed) {
            let source = io::Error::from_raw_os_error(libc::EIO);
            return Err(Error::Os {
                call: "fi_trywait",
                source,
            });
        }
        Ok(self.may_sleep.load(Ordering::Relaxed))
    }

    fn next_deadline(&self) -> Option<Instant> {
        *self.deadline.lock().unwrap()
    }
}

#[derive(Debug, Clone)]
struct Fake(Arc<FakeSource>);

impl Waitable for Fake {
    fn wait_handle(&self) -> WaitHandle {
        WaitHandle::new(&self.0)
    }
}

impl Fake {
    fn new(fds: Vec<OwnedFd>) -> Self {
        Self(Arc::new(FakeSource {
            fds,
            may_sleep: AtomicBool::new(true),
            fails: AtomicBool::new(false),
            deadline: Mutex::new(None),
            prepared: AtomicU64::new(0),
        }))
    }

    fn with_eventfds(count: usize) -> Self {
        Self::new((0..count).map(|_| new_eventfd()).collect())
    }

    /// A completion comes.
    fn signal(&self) {
        signal(&self.0.fds[0]);
    }

    /// The poll; how many completions there were.
    fn poll(&self) -> u64 {
        self.0.fds.iter().map(drain).sum()
    }

    fn set_deadline(&self, at: Option<Instant>) {
        *self.0.deadline.lock().unwrap() = at;
    }
}

fn new_eventfd() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

fn signal(fd: &OwnedFd) {
    rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
}

fn drain(fd: &OwnedFd) -> u64 {
    let mut counter = [0; 8];
    rustix::io::read(fd, &mut counter).map_or(0, |_| u64::from_ne_bytes(counter))
}

/// Raises the soft limit on descriptors; false = this machine will not give that many.
fn allow_fds(count: u64) -> bool {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    if limit.current.unwrap_or(u64::MAX) >= count {
        return true;
    }
    let raised = Rlimit {
        current: Some(count.min(maximum)),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).is_ok() && maximum >= count
}

/// Delivers what is ready right now and returns it.
fn ready_now(event_loop: &mut EventLoop) -> Vec<LoopEvent> {
    let mut events = Vec::new();
    event_loop
        .run_once(Some(Duration::ZERO), |_, event| events.push(event))
        .unwrap();
    events
}

/// One whose clock stands still, but where it would sleep or the test has time pass.
fn held_loop(config: LoopConfig) -> EventLoop {
    EventLoop::by(config, Clock::held()).unwrap()
}

fn loop_in(mode: WaitMode) -> EventLoop {
    EventLoop::with(LoopConfig::default().mode(mode)).unwrap()
}

fn all_modes() -> [WaitMode; 3] {
    [
        WaitMode::Block,
        WaitMode::Spin,
        WaitMode::Adaptive { window: MS },
    ]
}

#[test]
fn the_loop_moves_between_threads_and_its_waker_is_shared() {
    fn is_send<T: Send>() {}
    fn is_sync<T: Sync>() {}
    is_send::<EventLoop>();
    is_send::<Waker>();
    is_sync::<Waker>();
    is_send::<WaitHandle>();
    is_sync::<WaitHandle>();
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let window = |window| LoopConfig::default().mode(WaitMode::Adaptive { window });
    let cases = [
        (
            LoopConfig::default().poll_interval(Duration::from_micros(9)),
            "poll_interval",
        ),
        (
            LoopConfig::default().poll_interval(Duration::from_millis(1001)),
            "poll_interval",
        ),
        (LoopConfig::default().events_max(0), "events_max"),
        (LoopConfig::default().events_max(4097), "events_max"),
        (window(Duration::ZERO), "window"),
        (window(Duration::from_secs(2)), "window"),
    ];
    for (config, expected) in cases {
        match EventLoop::with(config) {
            Err(Error::Config { field, .. }) => assert_eq!(field, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
    EventLoop::with(
        LoopConfig::default()
            .poll_interval(Duration::from_micros(10))
            .events_max(4096),
    )
    .unwrap();
}

#[test]
fn a_wake_from_another_thread_ends_the_sleep_in_every_mode() {
    for mode in all_modes() {
        let mut event_loop = loop_in(mode);
        let waker = event_loop.waker();
        // Asked before each sleep; where none sleeps, it is handed out each round.
        let fake = Fake::with_eventfds(1);
        let endpoint = event_loop.add_endpoint(&fake).unwrap();
        let turns = Arc::new(AtomicU64::new(0));
        let thread = thread::spawn({
            let (fake, turns) = (fake.clone(), Arc::clone(&turns));
            move || {
                let of_loop = || fake.0.prepared.load(Ordering::Relaxed);
                while of_loop() + turns.load(Ordering::Relaxed) < 3 {
                    thread::sleep(Duration::from_micros(100));
                }
                waker.wake();
                waker.wake();
            }
        });
        let begin = Instant::now();
        let mut woken = 0;
        event_loop
            .run_for(DEADLINE, |event_loop, event| {
                if event == LoopEvent::Endpoint(endpoint) {
                    turns.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                assert_eq!(event, LoopEvent::Woken);
                woken += 1;
                event_loop.stop();
            })
            .unwrap();
        thread.join().unwrap();
        assert_eq!(woken, 1, "{mode:?}");
        assert!(begin.elapsed() < DEADLINE, "{mode:?}");
    }
}

#[test]
fn wakes_coalesce_and_none_is_left_over() {
    let mut event_loop = EventLoop::new().unwrap();
    let waker = event_loop.waker();
    (0..1000).for_each(|_| waker.wake());
    assert_eq!(ready_now(&mut event_loop), [LoopEvent::Woken]);
    assert_eq!(ready_now(&mut event_loop), []);
    waker.wake();
    assert_eq!(ready_now(&mut event_loop), [LoopEvent::Woken]);
    drop(event_loop);
    waker.wake();
    waker.stop();
}

#[test]
fn no_wake_up_is_lost() {
    const THREADS: u64 = 2;
    const WAKES: u64 = 20_000;
    for mode in all_modes() {
        let mut event_loop = loop_in(mode);
        let sent = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let (waker, sent) = (event_loop.waker(), Arc::clone(&sent));
                thread::spawn(move || {
                    for count in 0..WAKES {
                        sent.fetch_add(1, Ordering::Relaxed);
                        waker.wake();
                        if count % 64 == 0 {
                            // Lets the loop fall asleep now and then.
                            thread::sleep(Duration::from_micros(50));
                        }
                    }
                })
            })
            .collect();
        let mut seen = 0;
        let begin = Instant::now();
        // The last wake must be delivered after the last count: the loop may not sleep on it.
        event_loop
            .run_for(DEADLINE, |event_loop, _| {
                seen = sent.load(Ordering::Relaxed);
                if seen == THREADS * WAKES {
                    event_loop.stop();
                }
            })
            .unwrap();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert_eq!(
            seen,
            THREADS * WAKES,
            "{mode:?} after {:?}",
            begin.elapsed()
        );
    }
}

#[test]
fn stop_works_from_the_handler_another_thread_and_before_the_run() {
    let mut event_loop = EventLoop::new().unwrap();
    event_loop.add_timer(Duration::ZERO, Some(Duration::ZERO));
    let mut count = 0;
    event_loop
        .run(|event_loop, _| {
            count += 1;
            event_loop.stop();
        })
        .unwrap();
    assert_eq!(count, 1, "nothing is delivered after the stop");

    event_loop.stop();
    event_loop
        .run(|_, event| panic!("{event:?} after a stop"))
        .unwrap();

    let waker = event_loop.waker();
    let fake = Fake::with_eventfds(1).keep();
    event_loop.add_endpoint(&fake).unwrap();
    let thread = thread::spawn(move || {
        while fake.0.prepared.load(Ordering::Relaxed) < 2 {
            thread::sleep(Duration::from_micros(100));
        }
        waker.stop();
    });
    let begin = Instant::now();
    event_loop.run_for(DEADLINE, |_, _| {}).unwrap();
    thread.join().unwrap();
    assert!(begin.elapsed() < DEADLINE);

    event_loop.stop();
    assert_eq!(event_loop.run_once(None, |_, _| {}).unwrap(), 0);
    assert!(event_loop.take_stop());
    assert!(!event_loop.take_stop());
}

#[test]
fn what_a_stop_left_undelivered_comes_first_in_the_next_run() {
    let mut event_loop = EventLoop::new().unwrap();
    let timers: Vec<_> = (0..3)
        .map(|_| event_loop.add_timer(Duration::ZERO, None))
        .collect();
    let mut seen = Vec::new();
    for _ in 0..3 {
        event_loop
            .run(|event_loop, event| {
                seen.push(event);
                event_loop.stop();
            })
            .unwrap();
    }
    let expected: Vec<_> = timers.into_iter().map(LoopEvent::Timer).collect();
    assert_eq!(seen, expected);
}

#[test]
fn run_for_and_run_once_end_in_time_in_every_mode() {
    for mode in all_modes() {
        let mut event_loop = loop_in(mode);
        let fake = Fake::with_eventfds(1);
        event_loop.add_endpoint(&fake).unwrap();
        let begin = Instant::now();
        event_loop
            .run_for(30 * MS, |event_loop, _| event_loop.mark_busy())
            .unwrap();
        let elapsed = begin.elapsed();
        assert!(
            elapsed >= 30 * MS && elapsed < DEADLINE,
            "{mode:?}: {elapsed:?}"
        );
    }
    let mut event_loop = EventLoop::new().unwrap();
    let begin = Instant::now();
    assert_eq!(
        event_loop
            .run_once(Some(Duration::from_micros(2300)), |_, _| {})
            .unwrap(),
        0
    );
    assert!(begin.elapsed() >= Duration::from_micros(2300));
    event_loop.run_for(Duration::ZERO, |_, _| {}).unwrap();
}

#[test]
fn timers_come_in_order_once_each() {
    let mut event_loop = EventLoop::new().unwrap();
    let delays = [7, 1, 5, 3, 9, 0];
    let mut timers: Vec<_> = delays
        .map(|ms| (ms, event_loop.add_timer(ms * MS, None)))
        .into();
    event_loop.add_timer(Duration::MAX, None);
    let mut seen = Vec::new();
    event_loop
        .run_for(DEADLINE, |event_loop, event| {
            let LoopEvent::Timer(token) = event else {
                panic!("{event:?}")
            };
            seen.push(token);
            assert!(!event_loop.remove(token), "it was removed by its event");
            if seen.len() == delays.len() {
                event_loop.stop();
            }
        })
        .unwrap();
    timers.sort_by_key(|(ms, _)| *ms);
    assert_eq!(
        seen,
        timers
            .into_iter()
            .map(|(_, token)| token)
            .collect::<Vec<_>>()
    );
}

#[test]
fn a_periodic_timer_neither_drifts_nor_piles_up() {
    let mut event_loop = held_loop(LoopConfig::default());
    let begin = event_loop.clock.now();
    event_loop.add_timer(5 * MS, Some(5 * MS));
    let mut ticks = Vec::new();
    event_loop
        .run_for(53 * MS, |event_loop, _| {
            ticks.push((event_loop.clock.now() - begin).as_millis());
            // A handler that takes longer than a period loses ticks, not the phase.
            if ticks.len() == 3 {
                event_loop.clock.advance(12 * MS);
            }
        })
        .unwrap();
    assert_eq!(ticks, [5, 10, 15, 27, 30, 35, 40, 45, 50]);
}

#[test]
fn a_period_of_zero_ticks_once_a_round() {
    let mut event_loop = EventLoop::new().unwrap();
    let first = event_loop.add_timer(Duration::ZERO, Some(Duration::ZERO));
    let second = event_loop.add_timer(Duration::ZERO, Some(Duration::ZERO));
    for _ in 0..10 {
        let mut events = ready_now(&mut event_loop);
        events.sort_by_key(|event| *event == LoopEvent::Timer(second));
        assert_eq!(events, [LoopEvent::Timer(first), LoopEvent::Timer(second)]);
    }
}

#[test]
fn removed_timers_leave_no_heap_behind() {
    let mut event_loop = EventLoop::new().unwrap();
    let kept = event_loop.add_timer(MS, None);
    for _ in 0..10_000 {
        let token = event_loop.add_timer(DEADLINE, None);
        assert!(event_loop.remove(token));
        assert!(!event_loop.remove(token));
    }
    assert!(event_loop.timers.len() <= 67, "{}", event_loop.timers.len());
    let mut seen = Vec::new();
    event_loop
        .run_for(20 * MS, |_, event| seen.push(event))
        .unwrap();
    assert_eq!(seen, [LoopEvent::Timer(kept)]);
}

#[test]
fn descriptors_tell_what_they_are_ready_for() {
    let mut event_loop = EventLoop::new().unwrap();
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let input = event_loop.add_fd(&reader, Interest::READ).unwrap();
    let output = event_loop.add_fd(&writer, Interest::WRITE).unwrap();
    let is = |token, readiness| LoopEvent::Fd { token, readiness };
    assert_eq!(ready_now(&mut event_loop), [is(output, Readiness::WRITE)]);
    assert!(event_loop.remove(output));
    assert_eq!(ready_now(&mut event_loop), []);
    rustix::io::write(&writer, b"x").unwrap();
    for _ in 0..2 {
        assert_eq!(
            ready_now(&mut event_loop),
            [is(input, Readiness::READ)],
            "level-triggered"
        );
    }
    drop(writer);
    assert_eq!(
        ready_now(&mut event_loop),
        [is(input, Readiness::READ | Readiness::HANGUP)]
    );
}

#[test]
fn a_descriptor_is_refused_twice_without_interest_or_as_a_file() {
    let mut event_loop = EventLoop::new().unwrap();
    let fd = new_eventfd();
    let token = event_loop.add_fd(&fd, Interest::READ).unwrap();
    let os_code = |result: Result<Token, Error>| match result {
        Err(Error::Os {
            call: "epoll_ctl",
            source,
        }) => source.raw_os_error(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        os_code(event_loop.add_fd(&fd, Interest::READ)),
        Some(libc::EEXIST)
    );
    let file = tempfile::tempfile().unwrap();
    assert_eq!(
        os_code(event_loop.add_fd(&file, Interest::READ)),
        Some(libc::EPERM)
    );
    assert!(matches!(
        event_loop.add_fd(&file, Interest::empty()),
        Err(Error::Config { .. })
    ));
    signal(&fd);
    assert_eq!(
        ready_now(&mut event_loop).len(),
        1,
        "the refusals did not disturb the first"
    );
    assert!(event_loop.set_interest(token, Interest::WRITE).unwrap());
    assert_eq!(
        ready_now(&mut event_loop),
        [LoopEvent::Fd {
            token,
            readiness: Readiness::WRITE
        }]
    );
    assert!(event_loop.remove(token));
    assert!(!event_loop.set_interest(token, Interest::READ).unwrap());
}

#[test]
fn a_descriptor_number_that_is_used_again_belongs_to_its_new_source() {
    let mut event_loop = EventLoop::new().unwrap();
    let old_fd = new_eventfd();
    let old = event_loop.add_fd(&old_fd, Interest::READ).unwrap();
    // Another file under the same number, atomically, as after a close and an open.
    let mut new_fd = old_fd;
    rustix::io::dup3(new_eventfd(), &mut new_fd, rustix::io::DupFlags::CLOEXEC).unwrap();
    let new = event_loop.add_fd(&new_fd, Interest::READ).unwrap();
    assert!(!event_loop.set_interest(old, Interest::WRITE).unwrap());
    assert!(event_loop.remove(old));
    signal(&new_fd);
    assert_eq!(
        ready_now(&mut event_loop),
        [LoopEvent::Fd {
            token: new,
            readiness: Readiness::READ
        }]
    );
}

#[test]
fn a_closed_descriptor_is_harmless() {
    let mut event_loop = EventLoop::new().unwrap();
    let fd = new_eventfd();
    let token = event_loop.add_fd(&fd, Interest::READ).unwrap();
    signal(&fd);
    drop(fd);
    assert_eq!(ready_now(&mut event_loop), []);
    assert!(event_loop.remove(token));
}

#[test]
fn a_source_removed_in_a_handler_delivers_nothing_more() {
    let mut event_loop = EventLoop::new().unwrap();
    let fds: Vec<_> = (0..2).map(|_| new_eventfd()).collect();
    fds.iter().for_each(signal);
    let fakes: Vec<_> = (0..2).map(|_| Fake::with_eventfds(1)).collect();
    let mut tokens = Vec::new();
    tokens.extend(
        fds.iter()
            .map(|fd| event_loop.add_fd(fd, Interest::READ).unwrap()),
    );
    tokens.extend(
        fakes
            .iter()
            .map(|fake| event_loop.add_endpoint(fake).unwrap()),
    );
    tokens.extend((0..2).map(|_| event_loop.add_timer(Duration::ZERO, None)));
    let mut seen = 0;
    let mut replacements = Vec::new();
    event_loop
        .run_for(20 * MS, |event_loop, _| {
            seen += 1;
            for token in tokens.drain(..) {
                event_loop.remove(token);
                // Takes over the slot: an event that is queued for the old token must not reach it.
                replacements.push(event_loop.add_timer(DEADLINE, None));
            }
        })
        .unwrap();
    assert_eq!(seen, 1);
    assert_eq!(replacements.iter().collect::<HashSet<_>>().len(), 6);
}

#[test]
fn a_handler_may_add_sources_and_run_the_loop_itself() {
    let mut event_loop = EventLoop::new().unwrap();
    event_loop.add_timer(Duration::ZERO, None);
    let fake = Fake::with_eventfds(1);
    let (mut outer, mut inner) = (0, 0);
    event_loop
        .run_for(DEADLINE, |event_loop, _| {
            outer += 1;
            event_loop.add_endpoint(&fake).unwrap();
            event_loop
                .run_for(DEADLINE, |event_loop, event| {
                    assert!(matches!(event, LoopEvent::Endpoint(_)));
                    inner += 1;
                    event_loop.stop();
                })
                .unwrap();
            event_loop.stop();
        })
        .unwrap();
    assert_eq!((outer, inner), (1, 1));
}

#[test]
fn an_endpoint_is_handed_out_at_the_start_then_by_any_of_its_descriptors_once_a_round() {
    let mut event_loop = EventLoop::new().unwrap();
    let fake = Fake::with_eventfds(3);
    let token = event_loop.add_endpoint(&fake).unwrap();
    assert_eq!(ready_now(&mut event_loop), [LoopEvent::Endpoint(token)]);
    assert_eq!(ready_now(&mut event_loop), []);
    fake.0.fds.iter().for_each(signal);
    assert_eq!(ready_now(&mut event_loop), [LoopEvent::Endpoint(token)]);
    assert_eq!(fake.poll(), 3);
    let prepared = fake.0.prepared.load(Ordering::Relaxed);
    assert_eq!(ready_now(&mut event_loop), []);
    assert_eq!(
        fake.0.prepared.load(Ordering::Relaxed),
        prepared + 1,
        "asked before each wait"
    );
    match event_loop.add_endpoint(&fake) {
        Err(Error::Os { source, .. }) => assert_eq!(source.raw_os_error(), Some(libc::EEXIST)),
        other => panic!("{other:?}"),
    }
    fake.signal();
    assert_eq!(
        ready_now(&mut event_loop),
        [LoopEvent::Endpoint(token)],
        "the refusal changed nothing"
    );
}

#[test]
fn an_endpoint_that_is_not_prepared_keeps_the_loop_awake_and_starves_nobody() {
    let mut event_loop = EventLoop::new().unwrap();
    let fake = Fake::with_eventfds(1);
    fake.0.may_sleep.store(false, Ordering::Relaxed);
    let endpoint = event_loop.add_endpoint(&fake).unwrap();
    let fd = new_eventfd();
    signal(&fd);
    let fd = event_loop
        .add_fd(&fd, Interest::READ)
        .map(|token| (token, fd))
        .unwrap();
    let timer = event_loop.add_timer(Duration::ZERO, Some(Duration::ZERO));
    ready_now(&mut event_loop);
    for _ in 0..100 {
        event_loop.waker().wake();
        let events = ready_now(&mut event_loop);
        assert_eq!(events.len(), 4, "{events:?}");
        assert!(events.contains(&LoopEvent::Endpoint(endpoint)));
        assert!(events.contains(&LoopEvent::Fd {
            token: fd.0,
            readiness: Readiness::READ
        }));
        assert!(events.contains(&LoopEvent::Timer(timer)));
        assert!(events.contains(&LoopEvent::Woken));
    }
    event_loop.remove(timer);
    event_loop.remove(fd.0);
    event_loop
        .run_for(10 * MS, |_, event| {
            assert_eq!(event, LoopEvent::Endpoint(endpoint))
        })
        .unwrap();
    assert_eq!(event_loop.stats().sleeps, 0);
}

#[test]
fn a_few_events_a_round_still_serve_every_descriptor() {
    let mut event_loop = EventLoop::with(LoopConfig::default().events_max(2)).unwrap();
    let fds: Vec<_> = (0..50).map(|_| new_eventfd()).collect();
    fds.iter().for_each(signal);
    let tokens: HashSet<_> = fds
        .iter()
        .map(|fd| event_loop.add_fd(fd, Interest::READ).unwrap())
        .collect();
    event_loop.waker().wake();
    let (mut seen, mut woken) = (HashSet::new(), false);
    // All stay ready for ever: each must have its turn within one lap of the ready list.
    for _ in 0..26 {
        for event in ready_now(&mut event_loop) {
            match event {
                LoopEvent::Fd { token, .. } => _ = seen.insert(token),
                event => woken |= event == LoopEvent::Woken,
            }
        }
    }
    assert_eq!(seen, tokens);
    assert!(woken);
}

/// Runs until `count` events came and returns when; a loop that never sleeps or sleeps too long
/// shows in the gaps.
fn times_of(event_loop: &mut EventLoop, count: usize) -> Vec<Instant> {
    let mut times = Vec::new();
    event_loop
        .run_for(DEADLINE, |event_loop, _| {
            times.push(event_loop.clock.now());
            if times.len() == count {
                event_loop.stop();
            }
        })
        .unwrap();
    assert_eq!(times.len(), count);
    times
}

/// The times between `count` events.
fn gaps_of(event_loop: &mut EventLoop, count: usize) -> Vec<Duration> {
    let times = times_of(event_loop, count);
    times.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn an_endpoint_without_a_descriptor_is_polled_at_the_interval() {
    let config = LoopConfig::default().poll_interval(2 * MS);
    let mut event_loop = held_loop(config);
    event_loop
        .add_endpoint(&Fake::new(Vec::new()).keep())
        .unwrap();
    assert_eq!(gaps_of(&mut event_loop, 12), [2 * MS; 11]);
    assert!(event_loop.stats().sleeps >= 10, "{:?}", event_loop.stats());
}

impl Fake {
    /// For tests that need the endpoint to live as long as the process.
    fn keep(self) -> Self {
        std::mem::forget(self.clone());
        self
    }
}

#[test]
fn a_poll_interval_below_a_millisecond_is_kept() {
    let config = LoopConfig::default().poll_interval(Duration::from_micros(100));
    let mut event_loop = EventLoop::with(config).unwrap();
    event_loop
        .add_endpoint(&Fake::new(Vec::new()).keep())
        .unwrap();
    // By the system's clock, for it is the system that sleeps: one of whole milliseconds gives no
    // gap below one. Other work on the machine stretches some, not all.
    let times = times_of(&mut event_loop, 500);
    let shortest = times
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .min()
        .unwrap();
    assert!(shortest < Duration::from_micros(900), "{shortest:?}");
    assert!(times[499] - times[0] >= 45 * MS, "it does not spin");
}

#[test]
fn an_endpoint_that_can_not_prepare_is_polled_at_the_interval() {
    let mut event_loop = held_loop(LoopConfig::default().poll_interval(5 * MS));
    let fake = Fake::with_eventfds(1);
    fake.0.fails.store(true, Ordering::Relaxed);
    event_loop.add_endpoint(&fake).unwrap();
    assert_eq!(
        gaps_of(&mut event_loop, 8),
        [5 * MS; 7],
        "neither silent nor spinning"
    );
}

#[test]
fn a_deadline_hands_the_endpoint_out() {
    let mut event_loop = held_loop(LoopConfig::default());
    let fake = Fake::with_eventfds(1);
    let token = event_loop.add_endpoint(&fake).unwrap();
    ready_now(&mut event_loop);
    let at = event_loop.clock.now() + 15 * MS;
    fake.set_deadline(Some(at));
    let mut seen = 0;
    event_loop
        .run_for(40 * MS, |event_loop, event| {
            assert_eq!(event, LoopEvent::Endpoint(token));
            assert_eq!(event_loop.clock.now(), at);
            fake.set_deadline(None);
            seen += 1;
        })
        .unwrap();
    assert_eq!(seen, 1);
}

#[test]
fn a_dropped_endpoint_is_forgotten_in_every_mode() {
    for mode in all_modes() {
        let mut event_loop = loop_in(mode);
        let (dies, stays) = (Fake::with_eventfds(2), Fake::with_eventfds(1));
        let dead = event_loop.add_endpoint(&dies).unwrap();
        let alive = event_loop.add_endpoint(&stays).unwrap();
        let handle = dies.wait_handle();
        assert_eq!(handle.fds().len(), 2);
        // Still queued from its start.
        drop(dies);
        assert!(!handle.is_alive() && handle.fds().is_empty() && handle.next_deadline().is_none());
        assert!(handle.prepare_wait().unwrap(), "nothing will come from it");
        assert_eq!(
            ready_now(&mut event_loop),
            [LoopEvent::Endpoint(alive)],
            "{mode:?}"
        );
        assert!(!event_loop.remove(dead));
        drop(stays);
        assert_eq!(ready_now(&mut event_loop), [], "{mode:?}");
        assert!(event_loop.endpoints.is_empty() && event_loop.watched.owners.is_empty());
        let gone = event_loop.add_endpoint(&handle).unwrap();
        assert_eq!(ready_now(&mut event_loop), [], "{mode:?}");
        assert!(!event_loop.remove(gone));
    }
}

#[test]
fn a_thousand_sources_all_come() {
    if !allow_fds(4096) {
        println!("SKIPPED: the limit on descriptors is below 4096");
        return;
    }
    let mut event_loop = EventLoop::new().unwrap();
    let fds: Vec<_> = (0..400).map(|_| new_eventfd()).collect();
    let fakes: Vec<_> = (0..400).map(|n| Fake::with_eventfds(n % 2)).collect();
    let mut missing: HashSet<_> = fds
        .iter()
        .map(|fd| event_loop.add_fd(fd, Interest::READ).unwrap())
        .collect();
    missing.extend(
        fakes
            .iter()
            .map(|fake| event_loop.add_endpoint(fake).unwrap()),
    );
    ready_now(&mut event_loop);
    missing.extend((0..200).map(|n| event_loop.add_timer(n * Duration::from_micros(50), None)));
    assert_eq!(missing.len(), 1000);
    let thread = thread::spawn({
        let fakes = fakes.clone();
        move || {
            fds.iter().for_each(signal);
            fakes
                .iter()
                .filter(|fake| !fake.0.fds.is_empty())
                .for_each(Fake::signal);
            fds
        }
    });
    event_loop
        .run_for(DEADLINE, |event_loop, event| {
            if let LoopEvent::Fd { token, .. }
            | LoopEvent::Timer(token)
            | LoopEvent::Endpoint(token) = event
            {
                missing.remove(&token);
            }
            if missing.is_empty() {
                event_loop.stop();
            }
        })
        .unwrap();
    thread.join().unwrap();
    assert!(missing.is_empty(), "{} never came", missing.len());
}

#[test]
fn spin_never_sleeps_and_still_serves_descriptors_timers_and_wakes() {
    let mut event_loop = loop_in(WaitMode::Spin);
    let fakes: Vec<_> = (0..3).map(|_| Fake::with_eventfds(1)).collect();
    for fake in &fakes {
        event_loop.add_endpoint(fake).unwrap();
    }
    let fd = new_eventfd();
    signal(&fd);
    event_loop.add_fd(&fd, Interest::READ).unwrap();
    event_loop.add_timer(MS, Some(MS));
    event_loop.waker().wake();
    let (mut endpoints, mut fds, mut ticks, mut woken) = (0u64, 0u64, 0u64, 0u64);
    event_loop
        .run_for(DEADLINE, |event_loop, event| {
            match event {
                LoopEvent::Endpoint(_) => endpoints += 1,
                LoopEvent::Fd { .. } => fds += 1,
                LoopEvent::Timer(_) => ticks += 1,
                LoopEvent::Woken => woken += 1,
                LoopEvent::Signal(_) => panic!("nobody has one"),
            }
            if ticks == 5 {
                event_loop.stop();
            }
        })
        .unwrap();
    assert!(
        fds > 0 && woken == 1 && endpoints > 3 * 64,
        "{endpoints} {fds} {ticks} {woken}"
    );
    assert_eq!(event_loop.stats().sleeps, 0);
    assert!(event_loop.stats().rounds >= endpoints / 3);
}

#[test]
fn adaptive_parks_without_work_and_spins_after_it() {
    let adaptive = LoopConfig::default().mode(WaitMode::Adaptive { window: 5 * MS });
    let mut event_loop = held_loop(adaptive);
    let fake = Fake::with_eventfds(1);
    event_loop.add_endpoint(&fake).unwrap();
    event_loop.run_for(20 * MS, |_, _| {}).unwrap();
    let parked = event_loop.stats();
    assert!(parked.sleeps >= 1 && parked.rounds < 100, "{parked:?}");

    // Work keeps it awake: no sleep as long as it comes within the window.
    fake.signal();
    event_loop
        .run_for(30 * MS, |event_loop, _| {
            fake.poll();
            event_loop.mark_busy();
            event_loop.clock.advance(MS / 10);
        })
        .unwrap();
    let spun = event_loop.stats();
    assert!(
        spun.sleeps <= parked.sleeps + 1 && spun.rounds > parked.rounds + 100,
        "{spun:?}"
    );

    // Without work: parked again, and a completion from another thread ends the sleep; unless that
    // thread was late enough, or this one held up for so long, that the completion was there before
    // the sleep.
    let mut event_loop = loop_in(WaitMode::Adaptive { window: MS });
    event_loop.add_endpoint(&fake).unwrap();
    let deadline = Instant::now() + DEADLINE;
    while event_loop.stats().wakes == 0 {
        assert!(Instant::now() < deadline, "{:?}", event_loop.stats());
        let prepared = fake.0.prepared.load(Ordering::Relaxed);
        let thread = thread::spawn({
            let fake = fake.clone();
            move || {
                while fake.0.prepared.load(Ordering::Relaxed) < prepared + 2 {
                    thread::sleep(Duration::from_micros(100));
                }
                fake.signal();
            }
        });
        let mut polled = 0;
        event_loop
            .run_for(DEADLINE, |event_loop, _| {
                polled += fake.poll();
                if polled > 0 {
                    event_loop.stop();
                }
            })
            .unwrap();
        thread.join().unwrap();
        assert_eq!(polled, 1);
    }
    assert!(event_loop.stats().sleeps > 0, "{:?}", event_loop.stats());
}

#[test]
fn no_completion_is_lost_between_the_check_and_the_sleep() {
    const COMPLETIONS: u64 = 20_000;
    for mode in [
        WaitMode::Block,
        WaitMode::Adaptive {
            window: Duration::from_micros(20),
        },
    ] {
        let mut event_loop = loop_in(mode);
        let fakes: Vec<_> = (0..2).map(|_| Fake::with_eventfds(1)).collect();
        let tokens: Vec<_> = fakes
            .iter()
            .map(|fake| event_loop.add_endpoint(fake).unwrap())
            .collect();
        let threads: Vec<_> = fakes
            .iter()
            .map(|fake| {
                let fake = fake.clone();
                thread::spawn(move || (0..COMPLETIONS).for_each(|_| fake.signal()))
            })
            .collect();
        let mut seen = 0;
        event_loop
            .run_for(DEADLINE, |event_loop, event| {
                let LoopEvent::Endpoint(token) = event else {
                    panic!("{event:?}")
                };
                let which = tokens.iter().position(|other| *other == token).unwrap();
                let polled = fakes[which].poll();
                seen += polled;
                if polled > 0 {
                    event_loop.mark_busy();
                }
                if seen == 2 * COMPLETIONS {
                    event_loop.stop();
                }
            })
            .unwrap();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert_eq!(seen, 2 * COMPLETIONS, "{mode:?}");
    }
}

/// An epoll set that watches `inner`, as a provider's completion queue watches its sockets.
fn nest(inner: &OwnedFd) -> OwnedFd {
    let outer = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    epoll::add(
        &outer,
        inner,
        epoll::EventData::new_u64(0),
        epoll::EventFlags::IN,
    )
    .unwrap();
    outer
}

#[test]
fn an_endpoint_too_deep_for_epoll_is_polled_instead() {
    let socket = new_eventfd();
    let mut chain = vec![nest(&socket)];
    // The kernel nests five sets at most, the loop's own among them.
    while chain.len() < 5 {
        chain.push(nest(chain.last().unwrap()));
    }
    let deepest = chain.pop().unwrap();
    let fake = Fake::new(vec![new_eventfd(), deepest]);
    let mut event_loop = held_loop(LoopConfig::default());
    event_loop.add_endpoint(&fake).unwrap();
    assert!(
        event_loop.watched.owners.is_empty(),
        "none of its descriptors is watched"
    );
    let interval = event_loop.config.poll_interval;
    assert_eq!(gaps_of(&mut event_loop, 8), [interval; 7]);
}

#[test]
fn endpoints_that_share_a_socket_beyond_the_kernel_s_paths_are_polled_instead() {
    if !allow_fds(4096) {
        println!("SKIPPED: the limit on descriptors is below 4096");
        return;
    }
    const ENDPOINTS: usize = 510;
    let socket = new_eventfd();
    let fakes: Vec<_> = (0..ENDPOINTS)
        .map(|_| Fake::new(vec![nest(&socket)]))
        .collect();
    let mut event_loop = EventLoop::new().unwrap();
    for fake in &fakes {
        event_loop.add_endpoint(fake).unwrap();
    }
    let watched = event_loop.watched.owners.len();
    assert!(
        (1..ENDPOINTS).contains(&watched),
        "the kernel refuses some: {watched} watched"
    );
    let mut missing: HashSet<_> = event_loop.endpoints.iter().copied().collect();
    ready_now(&mut event_loop);
    signal(&socket);
    event_loop
        .run_for(DEADLINE, |event_loop, event| {
            let LoopEvent::Endpoint(token) = event else {
                panic!("{event:?}")
            };
            missing.remove(&token);
            if missing.is_empty() {
                event_loop.stop();
            }
        })
        .unwrap();
    assert!(missing.is_empty(), "{} never came", missing.len());
}
