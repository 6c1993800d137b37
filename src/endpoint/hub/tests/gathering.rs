//! Streams of small messages that the kernel gathers: the fake one acknowledges nothing, so what it
//! gathers leaves when it is told to, and not before.

use std::sync::Arc;
use std::time::Duration;

use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::link::fake::NetConfig;
use crate::endpoint::testing::rig::{Rig, Setup};
use crate::event_loop::WaitSource;

/// Messages by which a stream is known.
const STREAM: u64 = 32;
/// Payloads are of 8 bytes or of 200, and headers of 10.
const SMALL: u64 = 100;

fn gathering() -> Setup {
    let setup = Setup {
        depth: 128,
        header_slots: 128,
        payloads: 128,
        receive_depth: 64,
        receive_slots: 160,
        ..Setup::default()
    };
    Setup {
        net: NetConfig {
            gathers_below: Some(SMALL),
            ..setup.net
        },
        ..setup
    }
}

fn send_all(rig: &mut Rig, keys: std::ops::Range<u64>) {
    for key in keys {
        rig.send(key)
            .unwrap_or_else(|refused| panic!("{key}: {refused}"));
    }
}

/// A poll that nobody asked for.
fn poll(rig: &mut Rig) {
    let mut events = Vec::new();
    rig.sender().poll(&mut events).unwrap();
    rig.absorb(events);
}

/// Lets the receiver have what leaves.
fn receive(rig: &mut Rig) {
    rig.net.deliver(usize::MAX);
    for _ in 0..8 {
        rig.poll_receiver();
    }
}

/// How many messages were gathered, in how many streams, and how many of these a poll ended.
fn told(rig: &mut Rig) -> (u64, u64, u64) {
    let stats = rig.sender().stats();
    (
        stats.gathered,
        stats.gathered_streams,
        stats.gathered_let_go,
    )
}

#[test]
fn a_stream_is_gathered_and_the_second_poll_behind_it_lets_it_go() {
    let mut rig = gathering().connected();
    send_all(&mut rig, 0..STREAM + 8);
    assert_eq!(told(&mut rig), (9, 1, 0), "from the 32nd on");
    rig.net.deliver(usize::MAX);
    poll(&mut rig);
    assert_eq!(rig.net.deliver(usize::MAX), 0, "more may come");
    poll(&mut rig);
    assert_eq!(told(&mut rig), (9, 1, 1));
    rig.settle();
    let all: Vec<_> = (0..STREAM + 8).collect();
    assert_eq!((&rig.received, &rig.completed), (&all, &all));
    rig.check_all_back();
    rig.end();
}

#[test]
fn while_polls_find_that_more_was_sent_the_kernel_goes_on() {
    let mut rig = gathering().connected();
    for key in 0..STREAM + 8 {
        rig.send(key).unwrap();
        poll(&mut rig);
    }
    assert_eq!(told(&mut rig), (9, 1, 0));
    rig.settle();
    assert_eq!(rig.received.len() as u64, STREAM + 8);
    rig.end();
}

#[test]
fn a_lone_message_is_never_gathered_however_seldom_anybody_polls() {
    let mut rig = gathering().connected();
    for key in 0..60 {
        rig.pass(Duration::from_micros(9));
        rig.send(key).unwrap();
        assert_eq!(rig.net.deliver(usize::MAX), 1, "{key}");
    }
    assert_eq!(told(&mut rig), (0, 0, 0));
    rig.settle();
    rig.end();
}

#[test]
fn a_lone_message_behind_a_stream_leaves_at_once_with_all_before_it() {
    let mut rig = gathering().connected();
    send_all(&mut rig, 0..STREAM + 8);
    rig.pass(Duration::from_micros(21));
    rig.send(STREAM + 8).unwrap();
    receive(&mut rig);
    assert_eq!(rig.received.len() as u64, STREAM + 9);
    assert_eq!(told(&mut rig), (9, 1, 0), "no poll did");
    rig.settle();
    rig.end();
}

#[test]
fn a_message_above_the_size_leaves_at_once_with_all_before_it() {
    let mut rig = gathering().connected();
    for key in 0..STREAM + 1 {
        rig.send_long(key).unwrap();
        assert_eq!(rig.net.deliver(usize::MAX), 1);
    }
    rig.settle();
    assert_eq!(told(&mut rig), (0, 0, 0));
    send_all(&mut rig, 100..100 + STREAM + 8);
    rig.send_long(200).unwrap();
    receive(&mut rig);
    assert_eq!(rig.received.last(), Some(&200));
    rig.settle();
    rig.end();
}

#[test]
fn a_stream_that_the_peer_has_no_credits_for_goes_as_far_as_they_do() {
    let mut rig = Setup {
        receive_depth: 40,
        ..gathering()
    }
    .connected();
    send_all(&mut rig, 0..40);
    let blocked = SendErrorKind::WouldBlock(Blocked::Credits);
    assert_eq!(rig.send(40), Err(blocked));
    rig.net.deliver(usize::MAX);
    poll(&mut rig);
    poll(&mut rig);
    receive(&mut rig);
    assert_eq!(rig.received.len(), 40, "or there would be no grant, ever");
    rig.settle();
    send_all(&mut rig, 40..50);
    assert_eq!(
        told(&mut rig),
        (9 + 9, 2, 1),
        "it goes on, but for one message"
    );
    rig.settle();
    assert_eq!(rig.received.len(), 50);
    rig.end();
}

#[test]
fn nobody_sleeps_while_the_kernel_gathers() {
    let mut rig = gathering().connected();
    let wait = Arc::clone(rig.sender().wait());
    poll(&mut rig);
    assert!(wait.prepare_wait().unwrap(), "nothing to do");
    send_all(&mut rig, 0..STREAM);
    assert!(!wait.prepare_wait().unwrap());
    poll(&mut rig);
    assert!(!wait.prepare_wait().unwrap(), "it may be gathering yet");
    poll(&mut rig);
    assert!(wait.prepare_wait().unwrap(), "all went");
    // Somebody sleeps: they are woken.
    send_all(&mut rig, STREAM..STREAM + 2);
    assert!(!wait.prepare_wait().unwrap());
    rig.settle();
    assert_eq!(rig.received.len() as u64, STREAM + 2);
    rig.end();
}

#[test]
fn a_connection_that_ends_while_its_messages_are_gathered_lets_its_thread_sleep() {
    for fails in [false, true] {
        let mut rig = gathering().connected();
        let wait = Arc::clone(rig.sender().wait());
        send_all(&mut rig, 0..STREAM + 8);
        if fails {
            rig.sender().hub().fail("as a test says, between two polls");
        } else {
            rig.receiver = None;
        }
        for _ in 0..3 {
            rig.poll_sender();
            rig.net.deliver(usize::MAX);
        }
        // `poll_sender` wakes before it polls; this poll was not asked for.
        rig.sender().poll(&mut Vec::new()).unwrap();
        assert!(rig.owed.is_empty() && rig.ended.is_some(), "{fails}");
        assert!(wait.prepare_wait().unwrap(), "{fails}");
        rig.end();
    }
}

#[test]
fn nothing_is_gathered_where_the_setting_says_so_or_the_kernel_can_t_be_told() {
    let off = Setup {
        gather: false,
        ..gathering()
    };
    let mut cannot = gathering();
    cannot.net.can_gather = false;
    for setup in [off, cannot] {
        let mut rig = setup.connected();
        send_all(&mut rig, 0..60);
        receive(&mut rig);
        assert_eq!(rig.received.len(), 60);
        assert_eq!(told(&mut rig).1, 0);
        let wait = Arc::clone(rig.sender().wait());
        poll(&mut rig);
        poll(&mut rig);
        assert!(wait.prepare_wait().unwrap());
        rig.settle();
        rig.end();
    }
}
