//! What a gated payload is to its owner, and what it does when it ends.

use std::sync::{Arc, Mutex};

use super::*;
use crate::buffer::{Buffer, Segment, SharedBufferManager};

/// Opens after so many looks, and writes down what happened.
#[derive(Debug)]
struct Steps {
    name: &'static str,
    closed: u32,
    fails: bool,
    lost: bool,
    log: Arc<Mutex<Vec<String>>>,
}

impl Gate for Steps {
    fn poll(&mut self) -> Result<bool, GateError> {
        self.log.lock().unwrap().push(format!("poll {}", self.name));
        if self.fails {
            return Err(GateError("no".to_owned()));
        }
        if self.closed == 0 {
            return Ok(true);
        }
        self.closed -= 1;
        Ok(false)
    }

    fn settle(&mut self) -> Result<(), GateError> {
        self.log
            .lock()
            .unwrap()
            .push(format!("settle {}", self.name));
        match self.lost {
            true => Err(GateError("the driver is gone".to_owned())),
            false => Ok(()),
        }
    }
}

#[derive(Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn gate(&self, name: &'static str, closed: u32) -> Box<Steps> {
        Box::new(Steps {
            name,
            closed,
            fails: false,
            lost: false,
            log: Arc::clone(&self.0),
        })
    }

    fn take(&self) -> String {
        std::mem::take(&mut *self.0.lock().unwrap()).join(", ")
    }
}

fn pool() -> SharedBufferManager {
    SharedBufferManager::allocate(4, 64).unwrap()
}

fn buffer(pool: &SharedBufferManager, len: usize) -> Buffer {
    pool.try_acquire().expect("free").freeze(len)
}

#[test]
fn a_payload_stays_as_small_as_it_was() {
    assert_eq!(size_of::<Segment>(), size_of::<Option<Segment>>());
    assert!(size_of::<Payload>() <= 56, "{} bytes", size_of::<Payload>());
}

#[test]
fn gates_are_asked_one_after_the_other() {
    let (log, pool) = (Log::default(), pool());
    let payload = Payload::from(buffer(&pool, 9)).behind(log.gate("event", 1));
    let mut payload = payload.staged(buffer(&pool, 9).into(), log.gate("copy", 1));
    assert_eq!(payload.poll_gate(), Ok(false));
    assert_eq!(log.take(), "poll event");
    assert_eq!(payload.poll_gate(), Ok(false));
    assert_eq!(log.take(), "poll event, poll copy");
    assert_eq!(payload.poll_gate(), Ok(true));
    assert_eq!(payload.poll_gate(), Ok(true));
    assert_eq!(log.take(), "poll copy", "none again that is open");
}

#[test]
fn to_its_owner_it_is_what_was_given() {
    let (log, pool) = (Log::default(), pool());
    let given = buffer(&pool, 9);
    let index = given.index();
    let gated = || {
        let payload = Payload::from(given.clone()).behind(log.gate("event", 9));
        payload.staged(buffer(&pool, 7).into(), log.gate("copy", 0))
    };
    let payload = gated();
    assert!(payload.is_gated());
    assert_eq!((payload.len_bytes(), payload.run_count()), (9, 1));
    assert_eq!(payload.segments().len(), 1);
    assert_eq!(payload.segments()[0].len(), 9);
    assert_eq!(payload.wire().len_bytes(), 7);
    assert_eq!(payload.into_buffer().unwrap().index(), index);
    assert_eq!(gated().into_segments().next().unwrap().len(), 9);
    assert_eq!(gated().into_vec().len(), 1);
    assert!(gated().into_slice().is_err());
    assert_eq!(pool.free_count(), 3, "what was staged is free again");
}

#[test]
fn what_was_refused_waits_for_what_it_was_given_with() {
    let (log, pool) = (Log::default(), pool());
    let plain = Payload::from(buffer(&pool, 9));
    let staged = plain.staged(buffer(&pool, 9).into(), log.gate("copy", 0));
    let plain = staged.unstaged();
    assert!(!plain.is_gated() && !plain.is_after());
    assert_eq!(pool.free_count(), 3);
    let event = plain.behind(log.gate("event", 0));
    assert!(event.is_after());
    let staged = event.staged(buffer(&pool, 9).into(), log.gate("copy", 0));
    let mut event = staged.unstaged();
    log.take();
    assert_eq!(event.poll_gate(), Ok(true));
    assert_eq!(log.take(), "poll event");
}

#[test]
fn an_error_is_the_last_word_of_a_gate() {
    let (log, pool) = (Log::default(), pool());
    let mut gate = log.gate("event", 0);
    gate.fails = true;
    let mut payload = Payload::from(buffer(&pool, 9)).behind(gate);
    assert!(payload.poll_gate().is_err());
    assert!(payload.poll_gate().is_err());
    assert_eq!(log.take(), "poll event", "asked once");
    drop(payload);
    assert_eq!(log.take(), "settle event");
}

#[test]
fn what_a_copy_may_still_touch_is_never_free() {
    let (log, pool) = (Log::default(), pool());
    let mut gate = log.gate("copy", 9);
    gate.lost = true;
    let mut payload = Payload::from(buffer(&pool, 9)).staged(buffer(&pool, 9).into(), gate);
    assert_eq!(payload.poll_gate(), Ok(false));
    let back = payload.ungated();
    assert_eq!(back.segments().len(), 0, "it is leaked");
    assert_eq!(pool.free_count(), 2);
    assert_eq!(log.take(), "poll copy, settle copy");
}

#[test]
fn an_empty_payload_may_wait_too() {
    let log = Log::default();
    let mut payload = Payload::empty().behind(log.gate("event", 0));
    assert_eq!((payload.len_bytes(), payload.run_count()), (0, 0));
    assert!(payload.segments().is_empty());
    assert_eq!(payload.poll_gate(), Ok(true));
    assert!(payload.into_vec().is_empty());
}

// ---- one payload, several messages --------------------------------------------------------------

#[test]
fn those_who_share_a_payload_share_its_gates_and_what_is_sent() {
    let (log, pool) = (Log::default(), pool());
    let mut owner = Payload::from(buffer(&pool, 9)).behind(log.gate("event", 0));
    // Each of the three asks once, unless the answer is good for a moment.
    owner = owner.staged(buffer(&pool, 7).into(), log.gate("copy", 3));
    let mut others: Vec<_> = (0..3).map(|_| owner.share()).collect();
    assert!(others.iter().all(|it| it.is_gated() && it.len_bytes() == 7));
    assert_eq!(pool.free_count(), 2, "one copy for all");
    for other in &mut others {
        assert_eq!(other.poll_gate(), Ok(false));
    }
    let said = log.take();
    assert!(said.starts_with("poll event, poll copy"), "{said}");
    while others[0].poll_gate() != Ok(true) {}
    for other in &mut others {
        assert_eq!(other.poll_gate(), Ok(true));
    }
    assert!(!log.take().contains("event"), "none again that is open");
    drop(others);
    assert_eq!(log.take(), "", "their owner settles");
    let given = owner.ungated().into_buffer().unwrap();
    assert_eq!((given.len(), pool.free_count()), (9, 3));
    assert_eq!(log.take(), "settle event, settle copy");
}

#[test]
fn a_gate_that_fails_fails_for_all_who_share_it() {
    let (log, pool) = (Log::default(), pool());
    let mut gate = log.gate("event", 0);
    gate.fails = true;
    let mut owner = Payload::from(buffer(&pool, 9)).behind(gate);
    let mut others = [owner.share(), owner.share()];
    for other in &mut others {
        assert_eq!(other.poll_gate(), Err(GateError("no".to_owned())));
    }
    assert_eq!(log.take(), "poll event", "asked once");
    let mut late = owner.share();
    assert!(late.poll_gate().is_err(), "one that comes later, too");
    drop((late, others, owner));
    assert_eq!(pool.free_count(), 4);
}

#[test]
fn what_can_not_be_told_leaks_the_owners_part() {
    let (log, pool) = (Log::default(), pool());
    let mut gate = log.gate("copy", 9);
    gate.lost = true;
    let mut owner = Payload::from(buffer(&pool, 9)).staged(buffer(&pool, 9).into(), gate);
    let mut other = owner.share();
    assert_eq!(other.poll_gate(), Ok(false));
    drop(owner);
    drop(other);
    assert_eq!(pool.free_count(), 2, "both ends of the copy");
}
