//! Signals: told apart, coalesced, in their order, none lost, and none left behind.

use super::*;
use crate::event_loop::LoopSignal;

fn add(event_loop: &mut EventLoop) -> LoopSignal {
    event_loop.add_signal().unwrap()
}

fn sources(event_loop: &EventLoop, signals: &[Token]) -> usize {
    let there = |token: &&Token| event_loop.sources.get(**token).is_some();
    signals.iter().filter(there).count()
}

#[test]
fn handles_go_to_any_thread() {
    fn is_shared<T: Send + Sync + Clone>() {}
    is_shared::<LoopSignal>();
}

#[test]
fn signals_are_told_apart_and_each_is_one_event() {
    let mut event_loop = EventLoop::new().unwrap();
    let signals: Vec<_> = (0..3).map(|_| add(&mut event_loop)).collect();
    let event = |at: usize| LoopEvent::Signal(signals[at].token());
    for at in [2, 0, 2, 2, 0] {
        signals[at].clone().fire();
    }
    assert_eq!(ready_now(&mut event_loop), [event(2), event(0)]);
    assert_eq!(ready_now(&mut event_loop), []);
    signals[1].fire();
    event_loop.waker().wake();
    assert_eq!(ready_now(&mut event_loop), [LoopEvent::Woken, event(1)]);
    assert_eq!(ready_now(&mut event_loop), []);
}

/// Fired by its own handler, it comes again, in the next round; fired while its event waits, it
/// does not.
#[test]
fn a_handler_may_fire_the_signal_that_it_serves() {
    let mut event_loop = EventLoop::new().unwrap();
    let (first, second) = (add(&mut event_loop), add(&mut event_loop));
    first.fire();
    second.fire();
    let mut heard = Vec::new();
    for _ in 0..3 {
        let mut serve = |_: &mut EventLoop, event| {
            if heard.is_empty() {
                first.fire();
                second.fire();
            }
            heard.push(event);
        };
        event_loop
            .run_once(Some(Duration::ZERO), &mut serve)
            .unwrap();
    }
    let [first, second] = [first, second].map(|signal| LoopEvent::Signal(signal.token()));
    assert_eq!(heard, [first, second, first]);
}

#[test]
fn a_signal_that_is_removed_says_nothing_more() {
    let mut event_loop = EventLoop::new().unwrap();
    let (gone, other) = (add(&mut event_loop), add(&mut event_loop));
    gone.fire();
    assert!(event_loop.remove(gone.token()));
    assert!(!event_loop.remove(gone.token()));
    let new = add(&mut event_loop);
    assert_ne!(gone.token(), new.token());
    gone.fire();
    assert_eq!(ready_now(&mut event_loop), []);
    // One that waits in the same round, behind the handler that removes it.
    other.fire();
    new.fire();
    let mut heard = Vec::new();
    event_loop
        .run_once(Some(Duration::ZERO), |event_loop, event| {
            heard.push(event);
            event_loop.remove(new.token());
        })
        .unwrap();
    assert_eq!(heard, [LoopEvent::Signal(other.token())]);
    assert_eq!(ready_now(&mut event_loop), []);
}

#[test]
fn the_last_handle_takes_the_signal_with_it_behind_its_event() {
    let mut event_loop = EventLoop::new().unwrap();
    let (quiet, fired) = (add(&mut event_loop), add(&mut event_loop));
    let tokens = [quiet.token(), fired.token()];
    let clone = fired.clone();
    fired.fire();
    drop((quiet, fired));
    assert_eq!(ready_now(&mut event_loop), [LoopEvent::Signal(tokens[1])]);
    assert_eq!(sources(&event_loop, &tokens), 1, "there is another handle");
    clone.fire();
    drop(clone);
    assert_eq!(ready_now(&mut event_loop), [LoopEvent::Signal(tokens[1])]);
    assert_eq!(sources(&event_loop, &tokens), 0);
    let last = add(&mut event_loop);
    drop(event_loop);
    last.fire();
    last.fire();
}

/// All signals of a loop go by its one eventfd, and what they say is bounded.
#[test]
fn signals_take_no_descriptor_and_no_room_for_each_call() {
    let mut event_loop = EventLoop::new().unwrap();
    let watched = event_loop.watched.owners.len();
    let signals: Vec<_> = (0..100).map(|_| add(&mut event_loop)).collect();
    assert_eq!(event_loop.watched.owners.len(), watched);
    for _ in 0..1000 {
        signals.iter().for_each(LoopSignal::fire);
    }
    assert_eq!(ready_now(&mut event_loop).len(), 100);
    assert!(event_loop.signal_news.capacity() < 1000);
}

/// Each event of a signal sees what was written before the call that it is for; in every mode, with
/// a loop that sleeps now and then.
#[test]
fn no_signal_is_lost() {
    const THREADS: usize = 2;
    const CALLS: u64 = 5_000;
    for mode in all_modes() {
        let mut event_loop = loop_in(mode);
        let sent: Arc<Vec<AtomicU64>> = Arc::new((0..THREADS).map(|_| AtomicU64::new(0)).collect());
        let mut tokens = Vec::new();
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (signal, sent) = (add(&mut event_loop), Arc::clone(&sent));
                tokens.push(signal.token());
                thread::spawn(move || {
                    for count in 0..CALLS {
                        sent[thread].fetch_add(1, Ordering::Relaxed);
                        signal.fire();
                        if count % 64 == 0 {
                            thread::sleep(Duration::from_micros(50));
                        }
                    }
                })
            })
            .collect();
        let mut seen = vec![0; THREADS];
        event_loop
            .run_for(DEADLINE, |event_loop, event| {
                let LoopEvent::Signal(token) = event else {
                    panic!("{event:?}");
                };
                let thread = tokens.iter().position(|other| *other == token).unwrap();
                seen[thread] = sent[thread].load(Ordering::Relaxed);
                if seen.iter().all(|seen| *seen == CALLS) {
                    event_loop.stop();
                }
            })
            .unwrap();
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        assert_eq!(seen, [CALLS; THREADS], "{mode:?}");
        // The handles went with the threads: nothing is left of the signals.
        let _ = ready_now(&mut event_loop);
        assert_eq!(sources(&event_loop, &tokens), 0, "{mode:?}");
    }
}
