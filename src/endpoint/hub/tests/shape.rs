//! Shapes, batches and injection over the fake link.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::buffer::{Buffer, Payload};
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::event::{ConnectionEvent, Inject, Level, SendEvent};
use crate::endpoint::link::PostRefused;
use crate::endpoint::link::fake::{FakeLink, FakeWait, NetConfig, some_addr};
use crate::endpoint::reconnect::{ReconnectPolicy, Redial};
use crate::endpoint::send::core::SendCore;
use crate::endpoint::testing::hubs::{HubSetup, Hubs};
use crate::endpoint::testing::rig::{FakeGate, Rig, Setup, far_future, panics, send_settings};
use crate::error::{Error, FabricErrno};
use crate::fabric::{EndpointKind, PROVIDERS, Provider, Shape};
use crate::protocol::connection::{CloseReason, Form};
use crate::protocol::wire::HeaderMode;

fn one_segment(shape: Option<Shape>) -> Setup {
    Setup {
        net: NetConfig {
            iov_limit: 1,
            ..NetConfig::default()
        },
        shape,
        headroom: 10,
        ..Setup::default()
    }
}

fn two_messages() -> Rig {
    one_segment(Some(Shape::TwoMessages)).connected()
}

fn refused(errno: i32) -> PostRefused {
    PostRefused::Errno(FabricErrno::new(errno))
}

/// Another sender to the same receiver, over a link of its own.
fn another_sender(rig: &Rig, shape: Option<Shape>) -> Result<SendCore<FakeLink>, Error> {
    let setup = Setup {
        shape,
        ..rig.setup.clone()
    };
    let settings = send_settings(&setup, &Arc::default(), &rig.headers);
    let link = rig.net.link();
    SendCore::connect(
        link,
        Arc::new(FakeWait),
        rig.setup.clock.clone(),
        some_addr(),
        settings,
        Redial::new(ReconnectPolicy::off(), 0),
    )
}

#[test]
fn the_limit_on_segments_chooses_the_shape_and_iov_can_t_be_had_with_one() {
    let mut rig = one_segment(None).connected();
    assert_eq!(rig.sender().info().unwrap().shape, Shape::Headroom);
    let mut rig = Setup::default().connected();
    assert_eq!(rig.sender().info().unwrap().shape, Shape::Iov);
    let rig = one_segment(None).connected();
    let error = another_sender(&rig, Some(Shape::Iov)).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("shape") && text.contains("one segment"),
        "{text}"
    );
}

/// What documentation says of providers that are not here: what an endpoint makes of it.
#[test]
fn each_row_of_the_table_has_its_consequences() {
    for row in PROVIDERS {
        let Provider {
            iov_limit,
            inject_pays,
            uses_more,
            ..
        } = *row;
        let net = NetConfig {
            form: match row.endpoints[0] {
                EndpointKind::Msg => Form::Msg,
                EndpointKind::Rdm => Form::Rdm,
            },
            iov_limit,
            endpoint_scope: row.memory.endpoint_scope,
            inject_pays,
            uses_more,
            ..NetConfig::default()
        };
        let mut rig = Setup {
            net,
            headroom: 10,
            ..Setup::default()
        }
        .connected();
        let info = rig.sender().info().unwrap();
        let shape = if iov_limit > 1 {
            Shape::Iov
        } else {
            Shape::Headroom
        };
        assert_eq!(info.shape, shape, "{}", row.name);
        assert_eq!(
            info.inject,
            if inject_pays { 64 } else { 0 },
            "{}",
            row.name
        );
        assert_eq!(rig.send_batch(0..3), (3, None), "{}", row.name);
        let (flagged, injected) = rig.net.flagged_and_injected(rig.near);
        assert_eq!(flagged, if uses_more { 2 } else { 0 }, "{}", row.name);
        assert_eq!(injected, if inject_pays { 3 } else { 0 }, "{}", row.name);
        rig.settle();
        assert_eq!(rig.received, [0, 1, 2], "{}", row.name);
        assert_eq!(rig.completed.len(), 3, "{}", row.name);
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn headroom_takes_one_whole_buffer_with_room_and_says_what_else_to_do() {
    let mut rig = one_segment(None).connected();
    let whole = rig.payload(1);
    let send = |rig: &mut Rig, payload: Payload, header: &[u8]| {
        let refused = rig.sender().send_data(payload, header, 1);
        refused.map_err(|error| error.kind)
    };
    let two: Payload = [whole.clone(), rig.payload(2)].into_iter().collect();
    let many = SendErrorKind::TooManySegments { count: 2, max: 1 };
    assert_eq!(send(&mut rig, two, b"h"), Err(many));
    let no_room = |len, room| Err(SendErrorKind::NoHeaderRoom { len, room });
    assert_eq!(send(&mut rig, whole.slice(1..).into(), b"h"), no_room(3, 0));
    assert_eq!(
        send(&mut rig, whole.clone().into(), b"123456789"),
        no_room(11, 10)
    );
    let text = send(&mut rig, whole.slice(1..).into(), b"h")
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("headroom") && text.contains("TwoMessages"),
        "{text}"
    );
    drop(whole);
    rig.check_all_back();
    // A header alone needs no room.
    assert!(
        rig.sender()
            .send_data(Payload::empty(), b"alone", 5)
            .is_ok()
    );
    rig.net.deliver(1);
    let mut events = Vec::new();
    rig.sender().poll(&mut events).unwrap();
    assert!(
        matches!(events[..], [SendEvent::Completed { key: 5, .. }]),
        "{events:?}"
    );
}

fn connect_both(rig: &mut Rig, other: &mut SendCore<FakeLink>) {
    let mut events = Vec::new();
    while !events
        .iter()
        .any(|event| matches!(event, SendEvent::Connection(ConnectionEvent::Connected(_))))
    {
        rig.settle();
        other.wait().wake();
        other.poll(&mut events).unwrap();
    }
}

#[test]
fn clones_of_a_buffer_go_out_at_once_with_equal_headers_only() {
    let mut rig = one_segment(None).connected();
    let mut other = another_sender(&rig, rig.setup.shape).unwrap();
    connect_both(&mut rig, &mut other);
    let buffer: Buffer = rig.payload(9);
    let header = 9u64.to_be_bytes();
    rig.owed.insert(9, buffer.index());
    rig.sender()
        .send_data(buffer.clone().into(), &header, 9)
        .unwrap();
    let blocked = other
        .send_data(buffer.clone().into(), b"another!", 1)
        .unwrap_err();
    assert_eq!(blocked.kind, SendErrorKind::WouldBlock(Blocked::HeaderRoom));
    assert_eq!(blocked.given.len_bytes(), 8, "it is back");
    other.send_data(buffer.clone().into(), &header, 2).unwrap();
    // Another length would lie elsewhere in the room, over the first one.
    let blocked = other
        .send_data(buffer.clone().into(), b"short", 3)
        .unwrap_err();
    assert_eq!(blocked.kind, SendErrorKind::WouldBlock(Blocked::HeaderRoom));
    rig.settle();
    let mut events = Vec::new();
    other.poll(&mut events).unwrap();
    assert!(
        events
            .iter()
            .any(|e| matches!(e, SendEvent::Completed { key: 2, .. }))
    );
    assert_eq!(rig.received, [9, 9]);
    events.clear();
    // It looks again after a moment.
    rig.pass(Duration::from_millis(10));
    other.poll(&mut events).unwrap();
    assert!(
        events.iter().any(|e| matches!(e, SendEvent::Writable)),
        "never told"
    );
    other.send_data(buffer.into(), b"another!", 3).unwrap();
    drop(other);
    rig.net.check();
}

#[test]
fn two_messages_arrive_as_one_and_hold_two_receives_for_a_credit() {
    for mode in [HeaderMode::Raw, HeaderMode::Prefixed, HeaderMode::Fixed(8)] {
        let mut rig = Setup {
            header_mode: mode,
            receive_depth: 3,
            ..one_segment(Some(Shape::TwoMessages))
        }
        .connected();
        assert_eq!(rig.sender().info().unwrap().shape, Shape::TwoMessages);
        assert_eq!(rig.sender().info().unwrap().credits, 3);
        rig.drop_at_once = false;
        for key in 0..3 {
            rig.send(key).unwrap();
        }
        assert_eq!(rig.blocked(3), Blocked::Credits);
        rig.settle();
        assert_eq!(
            (rig.received.as_slice(), rig.completed.as_slice()),
            (&[0, 1, 2][..], &[0, 1, 2][..])
        );
        let held = &rig.held[1];
        assert_eq!(
            (held.header(), held.payload()),
            (&1u64.to_be_bytes()[..], &1u64.to_le_bytes()[..])
        );
        assert_eq!(
            rig.pool.free_count(),
            16 - 6 - 8,
            "two for each message, and as many posted again with the reserve"
        );
        rig.held.clear();
        rig.settle();
        for key in 3..20 {
            rig.send(key).unwrap();
            rig.held.clear();
            rig.settle();
        }
        assert_eq!(rig.received.len(), 20);
        rig.held.clear();
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn a_header_that_the_provider_does_not_take_leaves_nothing() {
    let mut rig = two_messages();
    rig.net.refuse_sends(rig.near, &[PostRefused::Again]);
    assert_eq!(rig.blocked(1), Blocked::Provider);
    rig.check_all_back();
    rig.net.refuse_sends(rig.near, &[refused(libc::EINVAL)]);
    assert!(matches!(rig.send(1), Err(SendErrorKind::Fabric(_))));
    rig.check_all_back();
    rig.send(1).unwrap();
    rig.settle();
    assert_eq!(
        (rig.received.as_slice(), rig.completed.as_slice()),
        (&[1][..], &[1][..])
    );
    rig.end();
}

#[test]
fn a_payload_that_the_provider_has_no_room_for_follows_its_header_before_anything_else() {
    let mut rig = two_messages();
    rig.net.refuse_all_sends(rig.near, None);
    rig.send(0).unwrap();
    // The header is taken, the payload is not.
    let near = rig.near;
    rig.net.refuse_second_send(near);
    rig.send(1).unwrap();
    assert_eq!(rig.blocked(2), Blocked::Provider);
    rig.net.deliver(usize::MAX);
    rig.poll_receiver();
    assert_eq!(rig.received, [0], "half a message is none");
    rig.settle();
    assert_eq!(
        (rig.received.as_slice(), rig.completed.as_slice()),
        (&[0, 1][..], &[0, 1][..])
    );
    assert!(rig.writable > 0);
    // At the end of the connection, too, there is an outcome for half a message.
    rig.net.refuse_second_send(near);
    rig.send(2).unwrap();
    rig.net.refuse_all_sends(near, Some(PostRefused::Again));
    rig.net.shut_down(rig.conn);
    rig.poll_sender();
    assert_eq!(rig.failed.len(), 1);
    rig.check_all_back();
}

#[test]
fn a_payload_that_the_provider_refuses_ends_the_connection_with_an_outcome() {
    let mut rig = two_messages();
    rig.net
        .refuse_second_send_with(rig.near, refused(libc::EIO));
    rig.send(1).unwrap();
    rig.poll_sender();
    assert_eq!(rig.failed.len(), 1);
    assert!(
        matches!(rig.ended, Some(CloseReason::PeerLost { .. })),
        "{:?}",
        rig.ended
    );
    rig.check_all_back();
    rig.end();
}

#[test]
fn a_message_without_payload_or_header_is_one_message() {
    let mut rig = Setup {
        header_mode: HeaderMode::Raw,
        ..one_segment(Some(Shape::TwoMessages))
    }
    .connected();
    let payload = rig.payload(1);
    let index = payload.index();
    rig.owed.insert(1, index);
    rig.sender().send_data(payload.into(), b"", 1).unwrap();
    assert_eq!(rig.net.deliver(usize::MAX), 1);
    let mut rig = two_messages();
    rig.sender()
        .send_data(Payload::empty(), b"alone", 1)
        .unwrap();
    assert_eq!(rig.net.deliver(usize::MAX), 1);
}

#[test]
fn short_messages_are_injected_as_asked_and_each_has_its_outcome() {
    for (inject, level, count, up_to) in [
        (Inject::Auto, Level::Sent, 0, 0),
        (Inject::UpTo(17), Level::Sent, 0, 17),
        (Inject::UpTo(18), Level::Sent, 1, 18),
        (Inject::UpTo(1000), Level::Sent, 1, 64),
        (Inject::UpTo(1000), Level::Delivered, 0, 0),
        (Inject::Off, Level::Sent, 0, 0),
    ] {
        let mut rig = Setup {
            inject,
            level,
            ..Setup::default()
        }
        .connected();
        assert_eq!(rig.sender().info().unwrap().inject, up_to);
        // 2 bytes of framing, 8 each of header and payload.
        rig.send(1).unwrap();
        assert_eq!(
            rig.net.flagged_and_injected(rig.near),
            (0, count),
            "{inject:?}"
        );
        rig.check();
        rig.settle();
        assert_eq!(
            (rig.received.as_slice(), rig.completed.as_slice()),
            (&[1][..], &[1][..])
        );
        rig.send(2).unwrap();
        rig.net.shut_down(rig.conn);
        rig.poll_sender();
        assert_eq!(
            rig.completed.len() + rig.failed.len(),
            2,
            "exactly one outcome"
        );
        rig.check_all_back();
        rig.end();
    }
}

fn joining(depth: u32) -> Rig {
    Setup {
        net: NetConfig {
            uses_more: true,
            ..NetConfig::default()
        },
        depth,
        receive_depth: 8,
        ..Setup::default()
    }
    .connected()
}

/// The fake link counts it as an offence when a flagged post is not followed before the next poll.
#[test]
fn a_batch_is_joined_but_for_its_last_message() {
    let mut rig = joining(8);
    assert_eq!(rig.send_batch(0..5), (5, None));
    assert_eq!(rig.net.flagged_and_injected(rig.near).0, 4);
    rig.settle();
    assert_eq!(
        (rig.received.as_slice(), rig.completed.len()),
        (&[0, 1, 2, 3, 4][..], 5)
    );
    assert_eq!(rig.send_batch(5..6), (1, None));
    assert_eq!(rig.send_batch(6..6), (0, None));
    assert_eq!(
        rig.net.flagged_and_injected(rig.near).0,
        4,
        "one is not flagged"
    );
    rig.settle();
    rig.check_all_back();
    rig.end();
}

#[test]
fn a_batch_that_stops_early_leaves_no_flagged_post() {
    let mut rig = joining(3);
    let (sent, stopped) = rig.send_batch(0..5);
    assert_eq!(
        (sent, stopped),
        (3, Some(SendErrorKind::WouldBlock(Blocked::Depth)))
    );
    assert_eq!(rig.net.flagged_and_injected(rig.near).0, 2);
    rig.settle();
    assert_eq!(rig.received, [0, 1, 2]);
    rig.check_all_back();
    // The provider's queue is full behind the first: what was prepared is accepted, and follows.
    let mut rig = joining(8);
    rig.net.refuse_second_send(rig.near);
    let (sent, stopped) = rig.send_batch(0..5);
    let full = SendErrorKind::WouldBlock(Blocked::Provider);
    assert_eq!((sent, stopped), (3, Some(full)));
    assert_eq!(rig.blocked(9), Blocked::Provider);
    rig.settle();
    assert_eq!(
        (rig.received.as_slice(), rig.completed.len()),
        (&[0, 1, 2][..], 3)
    );
    rig.check_all_back();
    rig.end();
    // Another error: the connection ends, and every message that was taken has its outcome.
    let mut rig = joining(8);
    rig.net
        .refuse_second_send_with(rig.near, refused(libc::EIO));
    let (sent, _) = rig.send_batch(0..5);
    rig.poll_sender();
    assert_eq!(rig.failed.len() + rig.completed.len(), sent);
    assert!(rig.ended.is_some());
    rig.check_all_back();
    rig.end();
}

/// What was taken before the application's iterator panics is on its way, and has its outcome.
#[test]
fn a_batch_whose_iterator_panics_leaves_nothing_unposted() {
    let mut rig = joining(8);
    let payloads = [rig.payload(1), rig.payload(2)];
    let given = payloads.each_ref().map(Buffer::index);
    let mut payloads = payloads.into_iter().zip(1_u64..);
    let batch = std::iter::from_fn(|| {
        let Some((payload, key)) = payloads.next() else {
            panics();
            return None;
        };
        Some((Payload::from(payload), key.to_be_bytes(), key))
    });
    let sender = rig.sender.as_mut().expect("not dropped yet");
    let panicked = catch_unwind(AssertUnwindSafe(|| sender.send_batch(batch)));
    assert!(panicked.is_err());
    rig.owed.extend([(1, given[0]), (2, given[1])]);
    rig.settle();
    assert_eq!(
        (&rig.received[..], &rig.completed[..]),
        (&[1, 2][..], &[1, 2][..])
    );
    rig.check_all_back();
    rig.end();
}

// ---- endpoints with many connections ------------------------------------------------------------

/// In both forms, with marks of either length.
fn hubs_of(shape: Shape) -> Vec<HubSetup> {
    let mut setups = Vec::new();
    for form in [Form::Msg, Form::Rdm] {
        for short_cq_data in [false, true] {
            setups.push(HubSetup {
                net: NetConfig {
                    form,
                    short_cq_data,
                    iov_limit: 1,
                    ..NetConfig::default()
                },
                shape: Some(shape),
                receive_depth: 6,
                ..HubSetup::default()
            });
        }
    }
    setups
}

#[test]
fn hubs_send_in_two_messages_both_ways() {
    for setup in hubs_of(Shape::TwoMessages) {
        let (mut hubs, ids) = Hubs::star(&setup, 3);
        let far = hubs.hubs[1].connected[0];
        for round in 0..10 {
            for key in 0..4 {
                let to = ids[(key % 2) as usize];
                hubs.hubs[0].send(to, round * 10 + key).unwrap();
                hubs.hubs[1].send(far, round * 10 + key).unwrap();
            }
            hubs.settle();
        }
        assert_eq!(hubs.hubs[0].received.len(), 40, "{setup:?}");
        assert_eq!(hubs.hubs[0].completed.len(), 40);
        assert_eq!(hubs.hubs[1].received.len(), 20);
        assert_eq!(hubs.hubs[2].received.len(), 20);
        hubs.hubs.iter().for_each(|hub| hub.check_all_back());
        // The goodbye counts both.
        hubs.hubs[0].send(ids[0], 1000).unwrap();
        hubs.hubs[0].core().begin_close(ids[0], far_future());
        hubs.settle();
        assert_eq!(hubs.hubs[1].received.last(), Some(&1000));
        assert_eq!(hubs.hubs[1].ended[&far], CloseReason::Finished);
        hubs.end();
    }
}

#[test]
fn who_sends_in_two_messages_takes_no_peer_that_does_not_know_them() {
    for setup in hubs_of(Shape::TwoMessages) {
        // A dialer does not offer them, unless it asks for them.
        let other = HubSetup {
            shape: Some(Shape::Headroom),
            ..setup.clone()
        };
        let mut hubs = Hubs::with(&[&setup, &other]);
        let to_other = hubs.dial(0, 1);
        hubs.settle();
        assert_eq!(hubs.hubs[0].connected, [to_other], "an acceptor knows them");
        let back = hubs.dial(1, 0);
        hubs.settle();
        let ended = &hubs.hubs[1].ended[&back];
        assert!(matches!(ended, CloseReason::Refused(_)), "{ended:?}");
        hubs.hubs[0].send(to_other, 1).unwrap();
        let near = hubs.hubs[1].connected[0];
        hubs.hubs[1].send(near, 2).unwrap();
        hubs.settle();
        assert_eq!(
            (&hubs.hubs[1].received[..], &hubs.hubs[0].received[..]),
            (&[1][..], &[2][..])
        );
        hubs.end();
    }
}

#[test]
fn a_hub_s_payload_that_finds_no_room_follows_its_header_before_anything_else() {
    for setup in hubs_of(Shape::TwoMessages) {
        let (mut hubs, ids) = Hubs::star(&setup, 3);
        let link = hubs.hubs[0].link;
        hubs.net.refuse_second_send(link);
        hubs.hubs[0].send(ids[0], 1).unwrap();
        assert_eq!(
            hubs.hubs[0].send(ids[0], 2),
            Err(SendErrorKind::WouldBlock(Blocked::Provider))
        );
        hubs.hubs[0].send(ids[1], 3).expect("another connection's");
        hubs.settle();
        assert_eq!(hubs.hubs[1].received, [1], "{setup:?}");
        assert_eq!(hubs.hubs[0].writable, [ids[0]]);
        hubs.hubs[0].send(ids[0], 2).unwrap();
        hubs.settle();
        assert_eq!(hubs.hubs[1].received, [1, 2]);
        // Refused for good, it is the end of its connection and of no other.
        hubs.net.refuse_second_send_with(link, refused(libc::EIO));
        hubs.hubs[0].send(ids[0], 4).unwrap();
        hubs.settle();
        assert_eq!(hubs.hubs[0].failed, [4]);
        let ended = &hubs.hubs[0].ended[&ids[0]];
        assert!(matches!(ended, CloseReason::PeerLost { .. }), "{ended:?}");
        hubs.hubs[0].send(ids[1], 5).unwrap();
        hubs.settle();
        assert_eq!(hubs.hubs[2].received, [3, 5]);
        hubs.hubs[0].check_all_back();
        hubs.end();
    }
}

#[test]
fn a_gate_at_a_hub_holds_back_the_header_that_travels_alone() {
    for setup in hubs_of(Shape::TwoMessages) {
        for failing in 0..3 {
            let (mut hubs, ids) = Hubs::star(&setup, 2);
            let gates: Vec<_> = (0..3)
                .map(|key| hubs.hubs[0].send_gated(ids[0], key).unwrap())
                .collect();
            hubs.hubs[0].send(ids[0], 3).unwrap();
            hubs.settle();
            assert!(hubs.hubs[1].received.is_empty());
            gates[failing].fail();
            gates.iter().for_each(FakeGate::open);
            hubs.settle();
            let rest: Vec<_> = (0..4).filter(|&key| key != failing as u64).collect();
            assert_eq!(hubs.hubs[1].received, rest, "{setup:?}");
            assert_eq!(hubs.hubs[0].failed, [failing as u64]);
            hubs.hubs[0].check_all_back();
            hubs.end();
        }
    }
}

#[test]
fn half_a_message_of_a_hub_comes_back_with_the_end_of_its_connection() {
    for setup in hubs_of(Shape::TwoMessages) {
        let (mut hubs, ids) = Hubs::star(&setup, 2);
        let link = hubs.hubs[0].link;
        hubs.net.refuse_second_send(link);
        hubs.hubs[0].send(ids[0], 1).unwrap();
        hubs.net.refuse_all_sends(link, Some(PostRefused::Again));
        let now = hubs.hubs[0].core().clock().now();
        hubs.hubs[0].core().begin_close(ids[0], now);
        hubs.hubs[0].poll();
        hubs.hubs[0].poll();
        assert_eq!(hubs.hubs[0].failed, [1], "{setup:?}");
        assert!(hubs.hubs[0].kept.is_empty(), "the payload was never posted");
        hubs.net.refuse_all_sends(link, None);
        hubs.settle();
        hubs.end();
    }
}

#[test]
fn a_hub_s_batch_is_joined_but_for_its_last_message() {
    for setup in hubs_of(Shape::Headroom) {
        let setup = HubSetup {
            net: NetConfig {
                uses_more: true,
                ..setup.net
            },
            ..setup
        };
        let (mut hubs, ids) = Hubs::star(&setup, 2);
        let link = hubs.hubs[0].link;
        assert_eq!(hubs.hubs[0].send_batch(ids[0], 0..3), (3, None));
        assert_eq!(hubs.net.flagged_and_injected(link).0, 2);
        hubs.settle();
        assert_eq!(hubs.hubs[1].received, [0, 1, 2]);
        // It stops at the depth, and leaves no flagged post.
        let (sent, stopped) = hubs.hubs[0].send_batch(ids[0], 3..9);
        let full = SendErrorKind::WouldBlock(Blocked::Depth);
        assert_eq!((sent, stopped), (4, Some(full)));
        hubs.settle();
        // The provider's queue is full behind the first: what was prepared is accepted, and
        // follows.
        hubs.net.refuse_second_send(link);
        let (sent, stopped) = hubs.hubs[0].send_batch(ids[0], 9..13);
        let full = SendErrorKind::WouldBlock(Blocked::Provider);
        assert_eq!((sent, stopped), (3, Some(full)));
        hubs.settle();
        assert_eq!(hubs.hubs[1].received.len(), 10, "{setup:?}");
        // Another error: the connection ends, and every message that was taken has its outcome.
        hubs.net.refuse_second_send_with(link, refused(libc::EIO));
        let (sent, _) = hubs.hubs[0].send_batch(ids[0], 20..24);
        hubs.settle();
        let hub = &hubs.hubs[0];
        assert_eq!(hub.failed.len() + hub.completed.len(), 10 + sent);
        assert!(hub.ended.contains_key(&ids[0]));
        hub.check_all_back();
        hubs.end();
    }
}
