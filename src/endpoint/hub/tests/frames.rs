//! Small messages that go out in frames.

use std::sync::Arc;
use std::time::Duration;

use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::event::{ConnectionEvent, DeadlinePolicy, Packing, ReceiveEvent};
use crate::endpoint::link::PostRefused;
use crate::endpoint::link::fake::NetConfig;
use crate::endpoint::testing::rig::{Rig, Setup, far_future};
use crate::event_loop::WaitSource;
use crate::fabric::Shape;
use crate::protocol::connection::{CloseReason, Form};

fn packing() -> Setup {
    Setup {
        packing: Packing::UpTo(100),
        payloads: 128,
        ..Setup::default()
    }
}

/// Over both forms, with long marks and with short ones, and in each shape.
fn everywhere() -> Vec<Setup> {
    let nets = [(Form::Msg, false), (Form::Rdm, false), (Form::Rdm, true)];
    let mut setups = Vec::new();
    for (form, short_cq_data) in nets {
        for shape in [Shape::Iov, Shape::Headroom, Shape::TwoMessages] {
            let setup = packing();
            setups.push(Setup {
                net: NetConfig {
                    form,
                    short_cq_data,
                    ..setup.net
                },
                shape: Some(shape),
                headroom: 64,
                ..setup
            });
        }
    }
    setups
}

fn send_all(rig: &mut Rig, keys: std::ops::Range<u64>) {
    for key in keys {
        rig.send(key)
            .unwrap_or_else(|refused| panic!("{key}: {refused}"));
    }
}

#[test]
fn a_burst_leaves_in_frames_and_arrives_in_order() {
    for setup in everywhere() {
        let said = format!("{setup:?}");
        let mut rig = setup.connected();
        send_all(&mut rig, 0..40);
        rig.settle();
        let all: Vec<_> = (0..40).collect();
        assert_eq!(rig.received, all, "{said}");
        assert_eq!(rig.completed, all, "{said}");
        let (sent, came) = (rig.sender().stats(), rig.receiver().stats());
        assert_eq!(
            (sent.packed.messages, came.packed.messages),
            (39, 39),
            "all but the first: {said}"
        );
        assert_eq!(sent.packed.frames, came.packed.frames);
        assert_eq!(sent.packed.frames, 2, "512 bytes each: {said}");
        assert_eq!(came.messages, 40);
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn who_packs_nothing_registers_nothing_for_it() {
    for setup in everywhere() {
        let said = format!("{setup:?}");
        let mut rig = setup.connected();
        let before = rig.net.open_mrs();
        rig.send(0).unwrap();
        rig.settle();
        assert_eq!(rig.net.open_mrs(), before, "it left by itself: {said}");
        send_all(&mut rig, 1..40);
        rig.settle();
        assert!(rig.net.open_mrs() > before, "{said}");
        assert_eq!(rig.completed, (0..40).collect::<Vec<_>>(), "{said}");
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn messages_go_by_themselves_where_no_memory_for_frames_can_be_registered() {
    for setup in everywhere() {
        let said = format!("{setup:?}");
        let mut rig = setup.connected();
        rig.net.refuse_registrations(true);
        for burst in 0..4 {
            // As many as may be in flight.
            send_all(&mut rig, burst * 4..burst * 4 + 4);
            rig.settle();
        }
        let all: Vec<_> = (0..16).collect();
        assert_eq!((&rig.received, &rig.completed), (&all, &all), "{said}");
        let stats = rig.sender().stats();
        assert_eq!(
            (stats.packed.messages, stats.packed.frames),
            (0, 0),
            "{said}"
        );
        rig.net.refuse_registrations(false);
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn a_lone_message_leaves_by_itself() {
    let mut rig = packing().connected();
    for key in 0..5 {
        rig.send(key).unwrap();
        rig.settle();
    }
    assert_eq!(rig.received, [0, 1, 2, 3, 4]);
    assert_eq!(rig.sender().stats().packed.frames, 0);
    rig.end();
}

#[test]
fn what_goes_by_itself_keeps_its_order_among_the_packed() {
    for setup in everywhere() {
        let mut rig = setup.connected();
        for key in 0..16 {
            // A message of 210 bytes is not packed.
            let sent = match key % 4 {
                3 => rig.send_long(key),
                _ => rig.send(key),
            };
            if let Err(refused) = sent {
                assert_eq!(refused, SendErrorKind::WouldBlock(Blocked::Credits));
                rig.settle();
                match key % 4 {
                    3 => rig.send_long(key).unwrap(),
                    _ => rig.send(key).unwrap(),
                }
            }
        }
        rig.settle();
        let all: Vec<_> = (0..16).collect();
        assert_eq!((&rig.received, &rig.completed), (&all, &all));
        assert!(rig.sender().stats().packed.frames > 0);
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn frames_are_what_credits_and_depth_count() {
    for setup in everywhere() {
        let mut rig = Setup { depth: 3, ..setup }.connected();
        rig.drop_at_once = false;
        // One by itself, and two frames of 23.
        send_all(&mut rig, 0..47);
        assert_eq!(rig.blocked(47), Blocked::Depth);
        assert_eq!(rig.sender().stats().in_flight, 47);
        let status = rig.sender().status();
        assert_eq!(status.in_flight, 47);
        rig.settle();
        assert_eq!(rig.completed.len(), 47);
        rig.held.clear();
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn a_frame_takes_one_credit() {
    for setup in everywhere() {
        let mut rig = setup.connected();
        // Four receives: one by itself, and three frames of 23.
        send_all(&mut rig, 0..70);
        assert_eq!(rig.blocked(70), Blocked::Credits);
        rig.settle();
        send_all(&mut rig, 70..80);
        rig.settle();
        assert_eq!(rig.received, (0..80).collect::<Vec<_>>());
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn the_close_takes_the_open_frame_along() {
    for setup in everywhere() {
        let mut rig = setup.connected();
        send_all(&mut rig, 0..5);
        let deadline = far_future();
        rig.sender().begin_close(deadline);
        assert_eq!(rig.send(5), Err(SendErrorKind::Closing));
        rig.settle();
        assert_eq!(rig.received, [0, 1, 2, 3, 4]);
        assert_eq!(rig.completed, [0, 1, 2, 3, 4]);
        assert_eq!(rig.ended, Some(CloseReason::Finished));
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn a_goodbye_of_the_peer_s_does_not_lose_the_open_frame() {
    for setup in everywhere() {
        let mut rig = setup.connected();
        send_all(&mut rig, 0..5);
        let deadline = far_future();
        let said = rig.said.iter();
        let mut id = said.filter_map(|event| match event {
            ReceiveEvent::Connection(id, ConnectionEvent::Connected(_)) => Some(*id),
            _ => None,
        });
        let id = id.next_back().unwrap();
        rig.receiver().begin_close(id, deadline);
        rig.settle();
        assert_eq!(rig.received, [0, 1, 2, 3, 4]);
        assert_eq!(rig.completed, [0, 1, 2, 3, 4]);
        rig.end();
    }
}

#[test]
fn a_lost_connection_fails_each_key_with_its_payload() {
    for setup in everywhere() {
        let mut rig = setup.connected();
        send_all(&mut rig, 0..30);
        let conn = rig.conn;
        rig.net.flush(conn, libc::ECONNRESET);
        rig.net.shut_down(conn);
        rig.settle();
        let mut over: Vec<_> = rig.failed.iter().map(|(key, _)| *key).collect();
        over.extend(&rig.completed);
        over.sort_unstable();
        assert_eq!(over, (0..30).collect::<Vec<_>>(), "each once");
        assert!(rig.owed.is_empty());
        rig.end();
    }
}

#[test]
fn a_dropped_endpoint_abandons_each_key() {
    for setup in everywhere() {
        let mut rig = setup.connected();
        send_all(&mut rig, 0..30);
        rig.sender = None;
        let abandoned = rig.abandoned.lock().unwrap().clone();
        let mut sorted = abandoned.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..30).collect::<Vec<_>>());
        rig.end();
    }
}

#[test]
fn a_frame_that_the_provider_has_no_room_for_waits_in_its_place() {
    for setup in everywhere() {
        let mut rig = setup.connected();
        let near = rig.near;
        send_all(&mut rig, 0..3);
        rig.net.refuse_sends(near, &[PostRefused::Again; 3]);
        rig.poll_sender();
        assert_eq!(rig.blocked(3), Blocked::Provider);
        rig.settle();
        assert_eq!(rig.received, [0, 1, 2]);
        send_all(&mut rig, 3..6);
        rig.settle();
        assert_eq!(rig.received, [0, 1, 2, 3, 4, 5]);
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn each_message_of_a_late_frame_is_late() {
    let mut rig = Setup {
        send_deadline: Some(Duration::from_millis(100)),
        policy: DeadlinePolicy::Notify,
        ..packing()
    }
    .connected();
    send_all(&mut rig, 0..5);
    rig.poll_sender();
    rig.pass(Duration::from_millis(200));
    rig.poll_sender();
    assert_eq!(rig.late, [0, 1, 2, 3, 4]);
    rig.settle();
    assert_eq!(rig.completed, [0, 1, 2, 3, 4]);
    rig.end();
}

#[test]
fn the_open_frame_keeps_a_thread_awake_until_the_next_poll() {
    let mut rig = packing().connected();
    let wait = Arc::clone(rig.sender().wait());
    let mut events = Vec::new();
    rig.sender().poll(&mut events).unwrap();
    assert!(wait.prepare_wait().unwrap(), "nothing to do");
    rig.sender().poll(&mut events).unwrap();
    send_all(&mut rig, 0..2);
    assert!(!wait.prepare_wait().unwrap(), "a frame is open");
    rig.sender().poll(&mut events).unwrap();
    rig.absorb(events);
    assert!(wait.prepare_wait().unwrap(), "it left");
    // Somebody sleeps: they are woken.
    send_all(&mut rig, 2..4);
    assert!(!wait.prepare_wait().unwrap());
    rig.settle();
    assert_eq!(rig.received, [0, 1, 2, 3]);
    rig.end();
}

#[test]
fn an_endpoint_that_failed_with_an_open_frame_lets_its_thread_sleep() {
    let mut rig = packing().connected();
    let wait = Arc::clone(rig.sender().wait());
    send_all(&mut rig, 0..3);
    rig.sender().hub().fail("as a test says, between two polls");
    rig.poll_sender();
    rig.poll_sender();
    assert!(rig.owed.is_empty() && rig.ended.is_some());
    // `poll_sender` wakes before it polls; this poll was not asked for.
    rig.sender().poll(&mut Vec::new()).unwrap();
    assert!(wait.prepare_wait().unwrap(), "nothing is to be posted");
    rig.end();
}

#[test]
fn a_flush_posts_what_is_packed() {
    let mut rig = packing().connected();
    send_all(&mut rig, 0..4);
    rig.sender().flush();
    rig.net.deliver(usize::MAX);
    rig.poll_receiver();
    assert_eq!(rig.received, [0, 1, 2, 3]);
    rig.settle();
    rig.end();
}

#[test]
fn a_peer_that_takes_no_frames_gets_each_message_by_itself() {
    let mut rig = Setup {
        receive_depth: 0,
        ..packing()
    }
    .connected();
    assert!(rig.send(0).is_err(), "it takes no messages at all");
    assert_eq!(rig.sender().stats().packed.frames, 0);
    rig.end();
}
