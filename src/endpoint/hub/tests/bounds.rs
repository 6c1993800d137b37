//! What one poll does at most, whatever peers do meanwhile; and that what is left is done by the
//! next ones.

use crate::endpoint::event::{ConnectionEvent, ReceiveEvent};
use crate::endpoint::link::fake::FakeLink;
use crate::endpoint::link::{COMPLETION_BATCH, PostRefused};
use crate::endpoint::testing::rig::{Rig, Setup, far_future};
use crate::protocol::connection::CloseReason;
use crate::protocol::wire::{self, HeaderMode, Hello, HelloKind};

/// Reads of the completion queue in one poll, at most: its own, and those for connections that end.
const READS_MAX: u64 = 20;

/// Events of the event queue in one poll, at most.
const EVENTS_MAX: u64 = 64;

/// More than any poll may read.
const FLOOD: usize = 100_000;

fn ended(rig: &Rig) -> Vec<CloseReason> {
    let reasons = rig.said.iter().filter_map(|event| match event {
        ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => Some(*reason),
        _ => None,
    });
    reasons.collect()
}

fn hello() -> [u8; wire::HELLO_LEN] {
    let hello = Hello {
        kind: HelloKind::Hello,
        header_mode: HeaderMode::Prefixed,
        version: wire::VERSION,
        oldest: wire::OLDEST,
        features: 0,
        receive_size: 0,
        receive_depth: 0,
        credits: 0,
        incarnation: 1,
        connection: 99,
    };
    hello.encode()
}

/// Polls the receiver once; how many times it read the completion queue.
fn reads(rig: &mut Rig) -> u64 {
    let before = rig.receiver().stats().cq_reads;
    rig.poll_receiver();
    rig.receiver().stats().cq_reads - before
}

#[test]
fn a_queue_that_never_ends_does_not_keep_a_poll_when_a_peer_hangs_up() {
    let mut rig = Setup::default().connected();
    let far = rig.far;
    rig.net.flood(far, FLOOD);
    rig.sender = None;
    let mut polls = 0;
    while ended(&rig).is_empty() {
        let reads = reads(&mut rig);
        assert!(reads <= READS_MAX, "{reads} reads in one poll");
        polls += 1;
        if ended(&rig).is_empty() {
            assert_eq!(rig.receiver().connections(), 1, "it has not ended");
            assert!(
                rig.receiver().wait().begin_poll(),
                "and is looked at at once"
            );
        }
    }
    assert!(polls > 1, "the flood was longer than a poll");
    assert_eq!(ended(&rig), [CloseReason::PeerLost { errno: None }]);
    assert_eq!(rig.receiver().connections(), 0);
    rig.end();
}

#[test]
fn a_queue_that_never_ends_does_not_keep_a_poll_that_closes_a_connection() {
    let mut rig = Setup::default().connected();
    let far = rig.far;
    for key in 0..2 {
        rig.send(key).unwrap();
    }
    rig.net.flood(far, FLOOD);
    let now = rig.now();
    rig.receiver().begin_close_all(now);
    let reads_at_first = reads(&mut rig);
    assert!(
        reads_at_first <= READS_MAX,
        "{reads_at_first} reads in one poll"
    );
    // Dropped in the middle, it gives all back.
    assert!(rig.net.flood_left(far) > 0);
    rig.end();

    let mut rig = Setup::default().connected();
    let far = rig.far;
    rig.net.flood(far, FLOOD);
    // And who only waits for the end gets there when the flood does.
    let now = rig.now();
    let events = rig.receiver().close(now).unwrap();
    assert!(
        matches!(
            events[..],
            [ReceiveEvent::Connection(
                _,
                ConnectionEvent::Disconnected(_)
            )]
        ),
        "{events:?}"
    );
    assert_eq!(rig.net.flood_left(far), 0);
    rig.settle();
    rig.end();
}

#[test]
fn a_sender_whose_queue_never_ends_closes_all_the_same() {
    let mut rig = Setup::default().connected();
    let near = rig.near;
    rig.send(1).unwrap();
    rig.net.flood(near, FLOOD);
    rig.receiver = None;
    let (mut polls, mut left) = (0, rig.net.flood_left(near));
    while rig.ended.is_none() {
        rig.poll_sender();
        let now = rig.net.flood_left(near);
        let reads = (left - now).div_ceil(COMPLETION_BATCH) as u64;
        assert!(reads <= READS_MAX, "{reads} reads in one poll");
        (polls, left) = (polls + 1, now);
        assert!(polls <= FLOOD, "its end never comes");
    }
    assert!(polls > 1, "the flood was longer than a poll");
    rig.check_all_back();
    rig.end();
}

#[test]
fn a_flood_of_requests_does_not_keep_a_poll() {
    let mut rig = Setup::default().connected();
    let strangers: Vec<(FakeLink, _)> = (0..300).map(|_| rig.net.ask(&hello())).collect();
    let handled =
        |rig: &mut Rig| rig.receiver().stats().refused + rig.receiver().stats().connections;
    let mut before = handled(&mut rig);
    let mut polls = 0;
    while handled(&mut rig) < 300 {
        rig.poll_receiver();
        let now = handled(&mut rig);
        assert!(
            now - before <= EVENTS_MAX,
            "{} requests in one poll",
            now - before
        );
        if now < 300 {
            assert!(
                now > before && rig.receiver().wait().begin_poll(),
                "at once"
            );
        }
        before = now;
        polls += 1;
    }
    assert!(polls >= 4, "{polls} polls");
    // The first one that had a place, and those that had none.
    assert_eq!(rig.receiver().stats().refused, 299);
    rig.send(1).unwrap();
    rig.settle();
    assert_eq!(rig.completed, [1]);
    drop(strangers);
    rig.settle();
    rig.end();
}

#[test]
fn an_endpoint_that_fails_outside_a_poll_closes() {
    let setup = Setup {
        ask: true,
        ..Setup::default()
    };
    let mut rig = setup.rig();
    rig.settle();
    let asked = |rig: &mut Rig| {
        let mut asked = rig.said.iter().filter_map(|event| match event {
            ReceiveEvent::Request(request) => Some(request.connection),
            _ => None,
        });
        asked.next_back().expect("a request")
    };
    let first = asked(&mut rig);
    rig.receiver().answer(first, None, &mut Vec::new());
    rig.settle();
    assert!(rig.connected);
    let (_link, _) = rig.net.ask(&hello());
    rig.poll_receiver();
    let second = asked(&mut rig);
    assert_ne!(first, second);
    let far = rig.far;
    rig.net.refuse_all_receives(far, Some(PostRefused::Again));
    rig.net.break_cq(far, libc::EIO);
    // Its connection can't be made, and what that reads is broken.
    rig.receiver().answer(second, None, &mut Vec::new());
    rig.receiver().begin_close_all(far_future());
    for _ in 0..10 {
        rig.poll_receiver();
    }
    assert_eq!(rig.receiver().connections(), 0, "a close would never end");
    assert!(
        matches!(ended(&rig)[..], [CloseReason::EndpointFailed(_)]),
        "{:?}",
        ended(&rig)
    );
    rig.settle();
    rig.end();
}
