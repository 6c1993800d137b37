//! A number names one value, for as long as it lives, whoever asks at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::status::FCAST_INVALID;

/// Counts the values that are alive; with a number, and a flag for who is alone with it.
struct Counted(Arc<AtomicUsize>, u64, AtomicBool);

impl Counted {
    fn new(alive: &Arc<AtomicUsize>, number: u64) -> Self {
        alive.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(alive), number, AtomicBool::new(false))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn status<T>(result: Result<T, Failure>) -> i32 {
    result.err().map_or(0, |failure| failure.status)
}

#[test]
fn a_number_that_was_released_names_nothing_again() {
    let table = Table::new(3, "thing");
    let alive = Arc::new(AtomicUsize::new(0));
    let first = table.insert(Counted::new(&alive, 1)).unwrap();
    assert_ne!(first, 0);
    assert_eq!(table.share(first).unwrap().1, 1);
    table.release(first).unwrap();
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    let second = table.insert(Counted::new(&alive, 2)).unwrap();
    assert_eq!(second & 0xff_ffff, first & 0xff_ffff, "the same place");
    for refused in [first, 0, u64::MAX, second + 1, second ^ 1 << 56] {
        assert_eq!(status(table.share(refused)), FCAST_STALE);
        assert_eq!(status(table.enter(refused)), FCAST_STALE);
        assert_eq!(status(table.take(refused)), FCAST_STALE);
        assert_eq!(status(table.release(refused)), FCAST_STALE);
    }
    assert_eq!(table.take(second).unwrap().1, 2);
    assert_eq!(status(table.release(second)), FCAST_STALE);
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn one_alone_keeps_others_out_and_may_release_what_it_uses() {
    let table = Table::new(3, "thing");
    let alive = Arc::new(AtomicUsize::new(0));
    let id = table.insert(Counted::new(&alive, 1)).unwrap();
    let one = table.share(id).unwrap();
    let other = table.share(id).unwrap();
    assert_eq!(status(table.enter(id)), FCAST_BUSY);
    assert_eq!(status(table.take(id)), FCAST_BUSY);
    drop((one, other));
    let alone = table.enter(id).unwrap();
    assert_eq!(status(table.enter(id)), FCAST_BUSY);
    assert_eq!(status(table.share(id)), FCAST_BUSY);
    table.release(id).unwrap();
    assert_eq!(status(table.enter(id)), FCAST_STALE);
    assert_eq!((alone.1, alive.load(Ordering::SeqCst)), (1, 1));
    drop(alone);
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

/// What is used up is gone, and what comes back is where it was; one that was released meanwhile is
/// gone in either case.
#[test]
fn a_value_is_used_up_unless_it_comes_back() {
    let table = Table::<Counted>::new(9, "thing");
    let alive = Arc::new(AtomicUsize::new(0));
    let count = || alive.load(Ordering::SeqCst);
    let id = table.insert(Counted::new(&alive, 1)).unwrap();
    let refused = table.try_take(id, |value| {
        assert_eq!(status(table.enter(id)), FCAST_BUSY);
        Err::<(), _>((Failure::invalid("not now"), value))
    });
    assert_eq!((status(refused), count()), (FCAST_INVALID, 1));
    assert_eq!(table.enter(id).unwrap().1, 1);
    assert_eq!(table.try_take(id, |value| Ok(value.1)).unwrap(), 1);
    assert_eq!((status(table.enter(id)), count()), (FCAST_STALE, 0));
    let id = table.insert(Counted::new(&alive, 2)).unwrap();
    let refused = table.try_take(id, |value| {
        table.release(id).unwrap();
        Err::<(), _>((Failure::invalid("not now"), value))
    });
    assert_eq!((status(refused), count()), (FCAST_INVALID, 0));
    assert_eq!(status(table.enter(id)), FCAST_STALE);
}

/// Threads that share, enter, release and make at random: each value is dropped once, and nobody is
/// in beside one that is alone.
#[test]
fn threads_agree_on_who_is_in() {
    let table = Table::<Counted>::new(9, "thing");
    let alive = Arc::new(AtomicUsize::new(0));
    let places: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (table, alive, places) = (&table, &alive, &places);
            scope.spawn(move || {
                let mut random = thread + 1;
                for round in 0..20_000_u64 {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let place = &places[(random >> 33) as usize % places.len()];
                    let id = place.load(Ordering::SeqCst);
                    match random >> 60 {
                        0..8 => {
                            if let Ok(value) = table.share(id) {
                                assert!(!value.2.load(Ordering::SeqCst), "somebody is alone");
                            }
                        }
                        8..13 => {
                            if let Ok(value) = table.enter(id) {
                                assert!(!value.2.swap(true, Ordering::SeqCst));
                                std::hint::spin_loop();
                                value.2.store(false, Ordering::SeqCst);
                            }
                        }
                        13 if round % 3 == 0 => drop(table.take(id)),
                        13 => {
                            let back = |value| Err((Failure::invalid("not now"), value));
                            let _: Result<(), _> = match round % 3 {
                                1 => table.try_take(id, |_| Ok(())),
                                _ => table.try_take(id, back),
                            };
                        }
                        _ => {
                            let _ = table.release(id);
                            let new = table.insert(Counted::new(alive, round)).unwrap();
                            let old = place.swap(new, Ordering::SeqCst);
                            let _ = table.release(old);
                        }
                    }
                }
            });
        }
    });
    for place in &places {
        let _ = table.release(place.load(Ordering::SeqCst));
    }
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}
