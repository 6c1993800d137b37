//! Messages that are copied later, among others.

use proptest::prelude::*;

use super::*;
use crate::buffer::BufferMut;
use crate::endpoint::testing::rig::FakeGate;

/// A message that comes by itself when the gate opens.
fn later(pool: &SharedBufferManager, bytes: &[u8]) -> (Payload, FakeGate) {
    let mut buffer: BufferMut = pool.try_acquire().expect("free");
    buffer[..bytes.len()].copy_from_slice(bytes);
    let gate = FakeGate::default();
    let payload = Payload::from(buffer.freeze(bytes.len())).behind(Box::new(gate.clone()));
    (payload, gate)
}

impl Rig {
    fn push_later(&mut self, from: &SharedBufferManager, bytes: &[u8]) -> FakeGate {
        let (payload, gate) = later(from, bytes);
        let number = self.core().push_payload(9, 1, payload).expect("taken");
        self.accepted(number, 9, 1, bytes);
        self.check();
        gate
    }

    /// What the first send in flight waits for.
    fn is_open(&mut self) -> Result<bool, crate::buffer::GateError> {
        self.sender().in_flight[0].1.poll_gate()
    }
}

fn others() -> SharedBufferManager {
    SharedBufferManager::allocate(4, SIZE).unwrap()
}

#[test]
fn it_has_its_place_and_its_buffer_waits_for_it() {
    for format in [Format::Compact, Format::Netio3] {
        let others = others();
        let mut rig = Setup {
            format,
            ..Setup::default()
        }
        .connected();
        rig.push(1, 0, b"in front").unwrap();
        let first = rig.push_later(&others, &[3; 30]);
        rig.push(1, 0, b"between").unwrap();
        let second = rig.push_later(&others, &[4; 31]);
        rig.push(1, 0, b"behind").unwrap();
        assert!(rig.core().flush());
        assert_eq!(rig.is_open(), Ok(false));
        second.open();
        assert_eq!(rig.is_open(), Ok(false));
        assert_eq!(others.free_count(), 3, "what is copied goes back");
        first.open();
        assert_eq!(rig.is_open(), Ok(true));
        assert_eq!(others.free_count(), 4);
        rig.sender().complete(0);
        rig.poll();
        assert_eq!(rig.confirmed, 5);
        rig.end();
    }
}

#[test]
fn what_need_not_wait_is_copied_at_once() {
    let others = others();
    let mut rig = Setup::default().connected();
    let (payload, gate) = later(&others, b"is there");
    gate.open();
    let number = rig.core().push_payload(9, 1, payload).unwrap();
    rig.accepted(number, 9, 1, b"is there");
    rig.core().flush();
    // Asked as soon as it is pushed, then by the poll of the open buffer, then by the send.
    while rig.is_open() != Ok(true) {}
    rig.sender().complete(0);
    rig.poll();
    assert_eq!((rig.confirmed, others.free_count()), (1, 4));
    rig.end();
}

#[test]
fn a_copy_begins_while_its_buffer_is_open() {
    let others = others();
    let mut rig = Setup::default().connected();
    let gate = rig.push_later(&others, b"later");
    gate.open();
    let polls = gate.polls();
    rig.poll();
    assert_eq!(gate.polls(), polls + 1);
    rig.poll();
    assert_eq!(gate.polls(), polls + 1, "once");
    rig.end();
    assert_eq!(others.free_count(), 4);
}

#[test]
fn one_that_fails_fails_its_buffer_and_the_others_can_be_read() {
    let others = others();
    let mut rig = Setup::default().connected();
    rig.push(1, 0, b"in front").unwrap();
    let gate = rig.push_later(&others, b"never");
    rig.core().flush();
    gate.fail();
    assert!(rig.is_open().is_err());
    // Its bytes were never there: what was owed is whatever lay in the buffer.
    let zero = vec![0; 5];
    rig.owed.get_mut(&1).expect("owed").2 = zero;
    rig.sender().fail(0);
    rig.poll();
    assert!(matches!(
        rig.failed[..],
        [(Carried::Messages { first: 0, count: 2 }, _)]
    ));
    assert_eq!(others.free_count(), 4);
    rig.end();
}

#[test]
fn what_the_sender_does_not_take_waits_for_its_copies_too() {
    let others = others();
    let mut rig = Setup::default().connected();
    rig.sender().credits = 0;
    let gate = rig.push_later(&others, b"later");
    assert!(!rig.core().flush());
    rig.poll();
    rig.sender().credits = usize::MAX;
    rig.poll();
    assert_eq!(rig.is_open(), Ok(false), "it is still asked");
    gate.open();
    while rig.is_open() != Ok(true) {}
    rig.sender().complete(0);
    rig.poll();
    assert_eq!(rig.confirmed, 1);
    rig.end();
}

#[test]
fn the_end_of_the_connection_settles_what_waits() {
    for flushed in [false, true] {
        let others = others();
        let mut rig = Setup::default().connected();
        let gate = rig.push_later(&others, &[0; 8]);
        if flushed {
            rig.core().flush();
        }
        rig.sender().end(CloseReason::PeerLost { errno: None });
        rig.poll();
        assert!(gate.is_settled());
        assert_eq!((rig.failed.len(), others.free_count()), (1, 4));
        rig.end();
    }
}

#[test]
fn a_drop_settles_what_waits() {
    for step in 0..3 {
        let others = others();
        let mut rig = Setup::default().connected();
        let gate = rig.push_later(&others, b"later");
        if step > 0 {
            rig.sender().credits = step - 1;
            rig.core().flush();
        }
        rig.end();
        assert!(gate.is_settled());
        assert_eq!(others.free_count(), 4);
    }
}

#[test]
fn what_is_refused_comes_back_as_it_was() {
    let others = others();
    let mut rig = Setup::default().connected();
    let (payload, _gate) = later(&others, &[1; SIZE]);
    let refused = rig.core().push_payload(1, 0, payload).unwrap_err();
    assert!(matches!(refused.kind, PushError::TooLong { .. }));
    assert!(refused.given.is_gated());
    rig.sender().credits = 0;
    rig.fill();
    let (payload, _gate) = later(&others, &[1; 60]);
    let refused = rig.core().push_payload(1, 0, payload).unwrap_err();
    assert!(refused.is_would_block());
    assert!(refused.given.is_gated());
    rig.end();
}

#[derive(Debug, Clone)]
enum Step {
    Push(usize),
    Later(usize),
    /// The gate of an earlier one.
    Open(usize),
    Flush,
    Poll,
    Credits(usize),
    /// What is in flight, from the first on, as far as it is open.
    Complete,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..120_usize).prop_map(Step::Push),
        6 => (0..120_usize).prop_map(Step::Later),
        5 => (0..6_usize).prop_map(Step::Open),
        3 => Just(Step::Flush),
        4 => Just(Step::Poll),
        3 => (0..4_usize).prop_map(Step::Credits),
        4 => Just(Step::Complete),
    ]
}

impl Rig {
    fn complete_open(&mut self) {
        while !self.sender().in_flight.is_empty() && self.is_open() == Ok(true) {
            self.sender().complete(0);
        }
        self.poll();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// Whatever is pushed, and whenever it comes: each message has one outcome, with its bytes in
    /// its place, and everything goes back.
    #[test]
    fn each_message_is_there_when_its_buffer_leaves(
        steps in prop::collection::vec(any_step(), 0..80),
        settled in any::<bool>(),
        netio3 in any::<bool>(),
    ) {
        let format = if netio3 {
            Format::Netio3
        } else {
            Format::Compact
        };
        let mut rig = Setup {
            format,
            ..Setup::default()
        }
        .connected();
        let others = SharedBufferManager::allocate(64, SIZE).unwrap();
        let mut gates = Vec::new();
        for (n, step) in steps.into_iter().enumerate() {
            let bytes = |len: usize| vec![n as u8 + 1; len];
            match step {
                Step::Push(len) => drop(rig.push(5, 0, &bytes(len))),
                Step::Later(len) => {
                    if others.free_count() == 0 {
                        continue;
                    }
                    let (payload, gate) = later(&others, &bytes(len));
                    if let Ok(number) = rig.core().push_payload(9, 1, payload) {
                        rig.accepted(number, 9, 1, &bytes(len));
                        gates.push(gate);
                    }
                }
                Step::Open(at) => drop(gates.iter().rev().nth(at).map(FakeGate::open)),
                Step::Flush => drop(rig.core().flush()),
                Step::Poll => rig.poll(),
                Step::Credits(credits) => rig.sender().credits = credits,
                Step::Complete => rig.complete_open(),
            }
        }
        if settled {
            gates.iter().for_each(FakeGate::open);
            rig.sender().credits = usize::MAX;
            let begun = Instant::now();
            while !rig.owed.is_empty() && begun.elapsed() < LONG {
                rig.core().flush();
                rig.complete_open();
            }
            prop_assert_eq!(rig.confirmed, rig.next);
            prop_assert_eq!(others.free_count(), 64);
        }
        rig.end();
        prop_assert!(gates.iter().all(FakeGate::is_settled));
        prop_assert_eq!(others.free_count(), 64);
    }
}
