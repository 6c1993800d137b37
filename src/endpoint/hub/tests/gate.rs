//! Sends that wait for a gate: in order, bounded, and with an outcome each, whatever becomes of the
//! gate.

use std::time::Duration;

use crate::buffer::Payload;
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::event::DeadlinePolicy;
use crate::endpoint::link::PostRefused;
use crate::endpoint::link::fake::NetConfig;
use crate::endpoint::testing::hubs::{HubSetup, Hubs};
use crate::endpoint::testing::rig::{
    FakeGate, PAYLOAD_MEMORY, Rig, Setup, far_future, pool_with_room,
};
use crate::event_loop::WaitSource;
use crate::fabric::Shape;
use crate::memory::Registrar;
use crate::protocol::connection::{CloseReason, Form};

/// Each form and shape.
fn setups() -> Vec<Setup> {
    let mut setups = Vec::new();
    for form in [Form::Msg, Form::Rdm] {
        for (shape, iov_limit) in [
            (Shape::Iov, 4),
            (Shape::Headroom, 1),
            (Shape::TwoMessages, 1),
        ] {
            for short_cq_data in [false, true] {
                setups.push(Setup {
                    net: NetConfig {
                        form,
                        iov_limit,
                        short_cq_data,
                        ..NetConfig::default()
                    },
                    shape: Some(shape),
                    headroom: 10,
                    receive_slots: 32,
                    receive_depth: 8,
                    ..Setup::default()
                });
            }
        }
    }
    setups
}

fn gated(rig: &mut Rig, key: u64) -> FakeGate {
    rig.send_gated(key, None).unwrap()
}

#[test]
fn nothing_overtakes_a_send_that_waits() {
    for setup in setups() {
        let mut rig = setup.clone().connected();
        rig.send(0).unwrap();
        let gate = gated(&mut rig, 1);
        rig.send(2).unwrap();
        let (sent, refused) = rig.send_batch(3..5);
        assert_eq!((sent, refused), (2, None));
        rig.settle();
        assert_eq!(rig.received, [0], "{setup:?}");
        gate.open();
        rig.settle();
        assert_eq!(rig.received, [0, 1, 2, 3, 4], "{setup:?}");
        assert_eq!(rig.completed.len(), 5);
        assert!(gate.is_settled());
        rig.send(5).unwrap();
        rig.settle();
        assert_eq!(rig.received.len(), 6, "and on as before");
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn what_is_staged_goes_out_and_what_was_given_comes_back() {
    for setup in setups() {
        let mut rig = setup.connected();
        let staging = pool_with_room(&rig.net, PAYLOAD_MEMORY + 1, 2, 10);
        staging.region().register_with(rig.net.near()).unwrap();
        // Given is what the domain does not know.
        let known = rig.payloads.clone();
        known.region().deregister_from(rig.net.near().scope());
        let gates: Vec<_> = (0..2)
            .map(|key| rig.send_gated(key, Some(&staging)).unwrap())
            .collect();
        assert_eq!(staging.free_count(), 0);
        gates.iter().for_each(FakeGate::open);
        rig.settle();
        assert_eq!((rig.received.clone(), rig.completed.len()), (vec![0, 1], 2));
        assert_eq!(staging.free_count(), 2);
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn gates_open_in_any_order_and_the_messages_go_in_theirs() {
    for setup in setups() {
        let mut rig = setup.connected();
        let gates: Vec<_> = (0..4).map(|key| gated(&mut rig, key)).collect();
        for (at, opened) in [2, 3, 1, 0].into_iter().enumerate() {
            assert_eq!(rig.received.len(), 0, "after {at}");
            gates[opened].open();
            rig.settle();
        }
        assert_eq!(rig.received, [0, 1, 2, 3]);
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn a_gate_that_fails_is_the_end_of_its_send_alone() {
    for setup in setups() {
        for failing in 0..4 {
            let mut rig = setup.clone().connected();
            let gates: Vec<_> = (0..4).map(|key| gated(&mut rig, key)).collect();
            rig.send(4).unwrap();
            gates[failing].fail();
            rig.settle();
            assert_eq!(rig.failed, [(failing as u64, libc::EIO)]);
            gates.iter().for_each(FakeGate::open);
            rig.send(5).unwrap();
            rig.settle();
            let rest: Vec<_> = (0..6).filter(|&key| key != failing as u64).collect();
            assert_eq!(rig.received, rest, "{setup:?}");
            rig.check_all_back();
            // The count in the goodbye is that of what came.
            rig.sender().begin_close(far_future());
            rig.settle();
            assert_eq!(rig.ended, Some(CloseReason::Finished));
            rig.end();
        }
    }
}

#[test]
fn as_many_wait_as_may_be_in_flight() {
    let mut rig = Setup {
        depth: 3,
        ..Setup::default()
    }
    .connected();
    let gates: Vec<_> = (0..3).map(|key| gated(&mut rig, key)).collect();
    assert_eq!(rig.blocked(9), Blocked::Depth);
    assert_eq!(
        rig.send_gated(9, None).unwrap_err(),
        SendErrorKind::WouldBlock(Blocked::Depth)
    );
    rig.settle();
    assert_eq!(rig.writable, 0);
    gates[0].open();
    rig.settle();
    assert_eq!(
        (rig.received.len(), rig.writable),
        (1, 1),
        "though others wait"
    );
    rig.send(3).unwrap();
    gates.iter().for_each(FakeGate::open);
    rig.settle();
    assert_eq!(rig.received, [0, 1, 2, 3]);
    rig.end();
}

#[test]
fn credits_bound_what_waits_too() {
    let mut rig = Setup::default().connected();
    let gate = gated(&mut rig, 0);
    for key in 1..4 {
        rig.send(key).unwrap();
    }
    assert_eq!(rig.blocked(4), Blocked::Credits, "4 were granted");
    rig.settle();
    assert_eq!(rig.writable, 0);
    gate.open();
    rig.settle();
    assert_eq!((rig.received.len(), rig.writable), (4, 1));
    rig.end();
}

#[test]
fn an_open_gate_waits_for_the_provider_like_any_message() {
    for setup in setups() {
        let mut rig = setup.connected();
        let near = rig.near;
        let gate = gated(&mut rig, 0);
        rig.send(1).unwrap();
        rig.net.refuse_all_sends(near, Some(PostRefused::Again));
        gate.open();
        rig.settle();
        assert_eq!(rig.received.len(), 0);
        assert_eq!(rig.blocked(2), Blocked::Provider, "no gate is closed");
        rig.net.refuse_all_sends(near, None);
        rig.settle();
        assert_eq!((rig.received.clone(), rig.writable), (vec![0, 1], 1));
        rig.end();
    }
}

#[test]
fn a_close_waits_for_gates_and_its_deadline_for_none() {
    for opens in [true, false] {
        let mut rig = Setup::default().connected();
        let gate = gated(&mut rig, 0);
        rig.send(1).unwrap();
        let deadline = match opens {
            true => far_future(),
            false => rig.now() + Duration::from_millis(20),
        };
        rig.sender().begin_close(deadline);
        rig.settle();
        assert_eq!(rig.ended, None);
        if opens {
            gate.open();
        } else {
            rig.pass(Duration::from_millis(20));
        }
        rig.settle();
        if opens {
            assert_eq!(rig.ended, Some(CloseReason::Finished));
            assert_eq!(rig.received, [0, 1]);
        } else {
            assert_eq!(rig.ended, Some(CloseReason::ClosedByDeadline));
            let keys: Vec<_> = rig.failed.iter().map(|(key, _)| *key).collect();
            assert_eq!(keys, [0, 1]);
        }
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn a_lost_connection_gives_back_what_waits_in_order() {
    for setup in setups() {
        let mut rig = setup.connected();
        let gates: Vec<_> = (0..3).map(|key| gated(&mut rig, key)).collect();
        rig.send(3).unwrap();
        rig.net.shut_down(rig.conn);
        rig.settle();
        let keys: Vec<_> = rig.failed.iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, [0, 1, 2, 3]);
        assert!(gates.iter().all(FakeGate::is_settled));
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn the_deadline_of_a_send_counts_while_it_waits() {
    for policy in [DeadlinePolicy::Notify, DeadlinePolicy::FailConnection] {
        let mut rig = Setup {
            send_deadline: Some(Duration::from_millis(20)),
            policy,
            ..Setup::default()
        }
        .connected();
        let gate = gated(&mut rig, 7);
        rig.settle();
        assert_eq!((rig.late.len(), rig.ended), (0, None));
        rig.pass(Duration::from_millis(20));
        rig.settle();
        if policy == DeadlinePolicy::Notify {
            assert_eq!((rig.late.clone(), rig.ended), (vec![7], None));
            gate.open();
            rig.settle();
            assert_eq!(rig.received, [7]);
        } else {
            assert!(matches!(rig.ended, Some(CloseReason::SendDeadline { .. })));
            assert_eq!(rig.failed.len(), 1);
        }
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn an_endpoint_that_is_dropped_gives_back_what_waits() {
    let mut rig = Setup::default().connected();
    let gate = gated(&mut rig, 0);
    rig.sender = None;
    assert!(gate.is_settled());
    assert_eq!(*rig.abandoned.lock().unwrap(), [0]);
    rig.end();
}

#[test]
fn a_gate_is_asked_at_once_and_a_sleeper_comes_back_to_it() {
    let mut rig = Setup::default().connected();
    rig.poll_sender();
    let before = rig.sender().wait().next_deadline();
    let gate = gated(&mut rig, 0);
    assert_eq!(gate.polls(), 1, "so that a copy begins");
    rig.poll_sender();
    assert_eq!(gate.polls(), 2);
    let next = rig.sender().wait().next_deadline().expect("a timer");
    assert!(before.is_none_or(|before| next < before));
    assert!(next < rig.now() + Duration::from_millis(1));
    gate.open();
    rig.settle();
    assert_eq!(rig.received, [0]);
    rig.end();
}

#[test]
fn an_empty_message_can_wait() {
    let mut rig = Setup::default().connected();
    let gate = FakeGate::default();
    let payload = Payload::empty().behind(Box::new(gate.clone()));
    rig.sender().send_data(payload, b"12345678", 1).unwrap();
    let mut events = Vec::new();
    rig.sender().poll(&mut events).unwrap();
    assert!(events.is_empty());
    gate.open();
    while events.is_empty() {
        rig.sender().poll(&mut events).unwrap();
        rig.net.deliver(usize::MAX);
    }
    assert_eq!(events.len(), 1);
    assert!(gate.is_settled());
}

// ---- endpoints with many connections ------------------------------------------------------------

#[test]
fn a_gate_holds_back_its_own_connection_only() {
    for form in [Form::Msg, Form::Rdm] {
        let (mut hubs, ids) = Hubs::star(&HubSetup::of(form), 3);
        let gate = hubs.hubs[0].send_gated(ids[0], 1).unwrap();
        hubs.hubs[0].send(ids[0], 2).unwrap();
        hubs.hubs[0].send(ids[1], 3).unwrap();
        hubs.settle();
        assert!(hubs.hubs[1].received.is_empty());
        assert_eq!(hubs.hubs[2].received, [3]);
        gate.open();
        hubs.settle();
        assert_eq!(hubs.hubs[1].received, [1, 2]);
        hubs.hubs[0].send(ids[0], 4).unwrap();
        hubs.settle();
        assert_eq!(hubs.hubs[1].received, [1, 2, 4]);
        hubs.hubs[0].check_all_back();
        hubs.end();
    }
}

#[test]
fn of_many_sends_that_wait_the_one_whose_gate_fails_is_over() {
    for form in [Form::Msg, Form::Rdm] {
        for failing in 0..3 {
            let setup = HubSetup {
                receive_depth: 8,
                ..HubSetup::of(form)
            };
            let (mut hubs, ids) = Hubs::star(&setup, 2);
            let gates: Vec<_> = (0..3)
                .map(|key| hubs.hubs[0].send_gated(ids[0], key).unwrap())
                .collect();
            hubs.hubs[0].send(ids[0], 3).unwrap();
            assert_eq!(
                hubs.hubs[0].send(ids[0], 9),
                Err(SendErrorKind::WouldBlock(Blocked::Depth))
            );
            gates[failing].fail();
            hubs.settle();
            assert_eq!(hubs.hubs[0].failed, [failing as u64]);
            assert_eq!(hubs.hubs[0].writable, ids, "one place is free");
            hubs.hubs[0].send(ids[0], 4).unwrap();
            gates.iter().for_each(FakeGate::open);
            hubs.settle();
            let rest: Vec<_> = (0..5).filter(|&key| key != failing as u64).collect();
            assert_eq!(hubs.hubs[1].received, rest);
            assert!(hubs.hubs[0].ended.is_empty());
            hubs.hubs[0].check_all_back();
            hubs.end();
        }
    }
}

#[test]
fn a_connection_that_ends_gives_back_what_waited_on_it() {
    for form in [Form::Msg, Form::Rdm] {
        let (mut hubs, ids) = Hubs::star(&HubSetup::of(form), 2);
        hubs.hubs[0].send(ids[0], 1).unwrap();
        let gate = hubs.hubs[0].send_gated(ids[0], 2).unwrap();
        hubs.hubs[0].send(ids[0], 3).unwrap();
        hubs.hubs[1].core = None;
        hubs.settle();
        if hubs.hubs[0].ended.is_empty() {
            let now = hubs.hubs[0].core().clock().now();
            hubs.hubs[0].core().begin_close(ids[0], now);
            hubs.settle();
        }
        assert!(gate.is_settled(), "{form:?}");
        assert!(hubs.hubs[0].failed.ends_with(&[2, 3]));
        assert!(!hubs.hubs[0].kept.contains_key(&2));
        assert!(!hubs.hubs[0].kept.contains_key(&3));
        hubs.end();
    }
}
