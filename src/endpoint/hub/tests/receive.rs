//! What a receive endpoint owes its caller and its peers when either the provider or a peer
//! misbehaves.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::Error;
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::event::{ConnectionEvent, ReceiveEvent};
use crate::endpoint::hub::RESERVE;
use crate::endpoint::link::fake::{CloseMode, FakeLink, FakeWait, NetConfig, Step, some_addr};
use crate::endpoint::link::{CmEvent, ConnKey, Link, PostRefused};
use crate::endpoint::reconnect::{ReconnectPolicy, Redial};
use crate::endpoint::send::core::SendCore;
use crate::endpoint::testing::rig::{Rig, SLOT_BYTES, Setup, far_future, send_settings};
use crate::event_loop::WaitSource;
use crate::id::ConnectionId;
use crate::in_flight::ContextKind;
use crate::memory::Registrar;
use crate::protocol::connection::{CloseReason, Form, Violation};
use crate::protocol::wire::{
    self, ControlKind, HeaderMode, Hello, HelloKind, Refusal, RefusalCode,
};

fn disconnected(rig: &Rig) -> Vec<CloseReason> {
    let reasons = rig.said.iter().filter_map(|event| match event {
        ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => Some(*reason),
        _ => None,
    });
    reasons.collect()
}

fn starved(rig: &Rig) -> usize {
    let is_starved = |event: &&ReceiveEvent| matches!(event, ReceiveEvent::Starved { .. });
    rig.said.iter().filter(is_starved).count()
}

fn connection(rig: &Rig) -> ConnectionId {
    let mut ids = rig.said.iter().filter_map(|event| match event {
        ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_)) => Some(*connection),
        _ => None,
    });
    ids.next().expect("connected")
}

fn hello() -> Hello {
    Hello {
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
    }
}

/// The refusal that a peer made by hand was given.
fn refusal_to(link: &mut FakeLink) -> Refusal {
    match link.poll_cm().unwrap() {
        Some(CmEvent::Refused { data, .. }) => Refusal::parse(data.as_slice()).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// A peer made by hand, accepted.
fn stranger(rig: &mut Rig) -> (FakeLink, ConnKey) {
    let (link, conn) = rig.net.ask(&hello().encode());
    rig.poll_receiver();
    rig.poll_receiver();
    assert_eq!(rig.receiver().connections(), 2);
    (link, conn)
}

// ---- 10: credits --------------------------------------------------------------------------------

#[test]
fn a_peer_sends_what_it_was_granted_and_the_reserve_stays_posted() {
    let mut rig = Setup {
        receive_slots: 6,
        max_connections: 1,
        ..Setup::default()
    }
    .connected();
    rig.drop_at_once = false;
    let far = rig.far_conn();
    assert_eq!(rig.net.receives_of(far), 6);
    for key in 0..4 {
        rig.send(key).unwrap();
    }
    assert_eq!(rig.blocked(9), Blocked::Credits);
    rig.settle();
    assert_eq!(rig.held.len(), 4);
    assert_eq!(rig.blocked(9), Blocked::Credits);
    assert_eq!(rig.net.receives_of(far), RESERVE as usize);
    assert_eq!((starved(&rig), rig.pool.free_count()), (1, 0));
    let told = rig.writable;

    // The pool recovers as messages are dropped, on whatever thread, and that wakes the endpoint.
    rig.poll_receiver();
    assert!(!rig.receiver().wait().begin_poll());
    let held = std::mem::take(&mut rig.held);
    std::thread::spawn(move || drop(held)).join().unwrap();
    assert!(rig.receiver().wait().begin_poll(), "woken by the pool");
    rig.settle();
    assert_eq!(rig.net.receives_of(far), 6);
    assert_eq!(rig.writable, told + 1);
    for key in 10..14 {
        rig.send(key).unwrap();
    }
    assert_eq!(rig.blocked(9), Blocked::Credits);
    rig.settle();
    rig.held.clear();
    rig.settle();
    assert_eq!(rig.received, [0, 1, 2, 3, 10, 11, 12, 13]);
    assert_eq!(starved(&rig), 2);
    rig.check_all_back();
    rig.end();
}

#[test]
fn a_dead_peer_is_noticed_while_all_messages_are_held() {
    let mut rig = Setup {
        receive_slots: 6,
        max_connections: 1,
        ..Setup::default()
    }
    .connected();
    rig.drop_at_once = false;
    for key in 0..4 {
        rig.send(key).unwrap();
    }
    rig.settle();
    let far = rig.far_conn();
    rig.net.flush(far, libc::ECONNRESET);
    rig.poll_receiver();
    assert!(matches!(
        disconnected(&rig)[..],
        [CloseReason::PeerLost { errno: Some(_) }]
    ));
    assert_eq!(rig.held.len(), 4);
    rig.settle();
    rig.end();
}

#[test]
fn receives_that_the_provider_did_not_take_are_offered_again() {
    let mut rig = Setup::default().connected();
    let (far, far_conn) = (rig.far, rig.far_conn());
    rig.net.refuse_all_receives(far, Some(PostRefused::Again));
    for key in 0..4 {
        rig.send(key).unwrap();
    }
    rig.settle();
    assert_eq!(rig.blocked(9), Blocked::Credits);
    assert_eq!(rig.net.receives_of(far_conn), RESERVE as usize);
    rig.net.refuse_all_receives(far, None);
    rig.settle();
    assert_eq!(rig.net.receives_of(far_conn), 6);
    rig.send(4).unwrap();
    rig.settle();
    assert_eq!(rig.received.len(), 5);
    rig.end();
}

#[test]
fn a_connection_without_receives_is_refused() {
    let mut rig = Setup::default().rig();
    let far = rig.far;
    rig.net.refuse_all_receives(far, Some(PostRefused::Again));
    rig.settle();
    assert!(rig.ended.is_some() && !rig.connected, "{:?}", rig.ended);
    assert_eq!(rig.receiver().connections(), 0);
    assert_eq!(rig.receiver().stats().refused, 1);
    rig.end();
}

// ---- 11: requests -------------------------------------------------------------------------------

#[test]
fn one_connection_too_many_is_refused_with_the_limit() {
    let mut rig = Setup {
        max_connections: 1,
        ..Setup::default()
    }
    .connected();
    let (mut link, _) = rig.net.ask(&hello().encode());
    rig.poll_receiver();
    let refusal = refusal_to(&mut link);
    assert_eq!(refusal.code(), RefusalCode::TOO_MANY_CONNECTIONS);
    assert_eq!(refusal.details(), [1, 0]);
    rig.send(1).unwrap();
    rig.settle();
    assert_eq!(rig.completed, [1]);
    rig.end();
}

#[test]
fn hellos_that_make_no_sense_are_refused_with_a_reason() {
    let future = Hello {
        version: 9,
        oldest: 9,
        ..hello()
    };
    let greedy = Hello {
        receive_size: 1,
        receive_depth: u32::MAX,
        ..hello()
    };
    let ack = Hello {
        kind: HelloKind::Ack,
        ..hello()
    };
    let cases: [(&[u8], RefusalCode); 7] = [
        (b"", RefusalCode::MALFORMED),
        (
            b"GET / HTTP/1.1\r\nHost: somewhere.example.org\r\nAccept: */*",
            RefusalCode::MALFORMED,
        ),
        (&hello().encode()[..47], RefusalCode::MALFORMED),
        (&[0xff; 64], RefusalCode::MALFORMED),
        (&ack.encode(), RefusalCode::MALFORMED),
        (&future.encode(), RefusalCode::VERSION),
        (&greedy.encode(), RefusalCode::RECEIVE_DEPTH),
    ];
    let mut rig = Setup::default().connected();
    for (i, (bytes, code)) in cases.into_iter().enumerate() {
        let (mut link, _) = rig.net.ask(bytes);
        rig.poll_receiver();
        assert_eq!(refusal_to(&mut link).code(), code, "case {i}");
        assert_eq!(rig.receiver().stats().refused, i as u64 + 1);
    }
    rig.send(1).unwrap();
    rig.settle();
    assert_eq!(rig.received, [1]);
    rig.end();
}

#[test]
fn another_header_mode_is_refused() {
    let mut rig = Setup {
        asked_mode: Some(HeaderMode::Fixed(16)),
        ..Setup::default()
    }
    .rig();
    rig.settle();
    match rig.ended {
        Some(CloseReason::Refused(refusal)) => {
            assert_eq!(refusal.code(), RefusalCode::HEADER_MODE);
            assert!(refusal.to_string().contains("16 bytes"), "{refusal}");
        }
        other => panic!("{other:?}"),
    }
    rig.end();
}

fn asked(rig: &mut Rig) -> ConnectionId {
    rig.settle();
    assert!(!rig.connected && rig.ended.is_none());
    match rig.said[..] {
        [ReceiveEvent::Request(request)] => request.connection,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn the_application_accepts_or_refuses_or_says_nothing() {
    let setup = Setup {
        ask: true,
        ..Setup::default()
    };
    let mut rig = setup.clone().rig();
    let id = asked(&mut rig);
    assert!(rig.receiver().answer(id, None, &mut Vec::new()));
    assert!(!rig.receiver().answer(id, None, &mut Vec::new()), "once");
    rig.settle();
    assert!(rig.connected);
    assert_eq!(connection(&rig), id);
    rig.end();

    let mut rig = setup.clone().rig();
    let id = asked(&mut rig);
    let no = Refusal::new(RefusalCode::BY_APPLICATION, [7, 8]);
    assert!(rig.receiver().answer(id, Some(no), &mut Vec::new()));
    rig.settle();
    assert_eq!(rig.ended, Some(CloseReason::Refused(no)));
    rig.end();

    let mut rig = Setup {
        handshake_timeout: Duration::from_millis(20),
        ..setup.clone()
    }
    .rig();
    // The sender's own timeout is as long: look at what the receiver does.
    rig.poll_receiver();
    rig.pass(Duration::from_millis(20));
    rig.poll_receiver();
    assert_eq!(rig.receiver().stats().refused, 1);
    assert_eq!(rig.receiver().connections(), 0);
    rig.settle();
    assert!(!rig.connected && rig.ended.is_some());
    rig.end();

    let mut rig = setup.rig();
    asked(&mut rig);
    let said = rig.receiver().close(far_future()).unwrap();
    assert!(said.is_empty(), "{said:?}");
    rig.settle();
    match rig.ended {
        Some(CloseReason::Refused(r)) => assert_eq!(r.code(), RefusalCode::CLOSING),
        other => panic!("{other:?}"),
    }
    rig.end();
}

#[test]
fn a_peer_that_went_before_it_was_accepted_leaves_nothing() {
    let mut rig = Setup::default().rig();
    rig.sender = None;
    rig.settle();
    assert_eq!(rig.receiver().connections(), 0);
    assert!(rig.said.is_empty(), "{:?}", rig.said);
    rig.end();
}

// ---- peers that break the protocol --------------------------------------------------------------

fn only_violation(rig: &Rig) -> Violation {
    match disconnected(rig)[..] {
        [CloseReason::Violation(violation)] => violation,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn what_no_peer_of_ours_does_ends_its_connection_only() {
    let wrong_index = wire::cq_data(ControlKind::BYE, 5);
    let bye = wire::cq_data(ControlKind::BYE, 0);
    let cases: [(Option<u32>, &[u8], usize); 6] = [
        (None, b"\0\0message", 5),
        (None, b"\xff\xffshorter than its header", 1),
        (None, b"", 1),
        (Some(bye), b"no goodbye", 1),
        (Some(wrong_index), b"", 1),
        (Some(0), &[0; 64], 1),
    ];
    for (data, bytes, times) in cases {
        let mut rig = Setup {
            receive_slots: 32,
            ..Setup::default()
        }
        .connected();
        let (_link, conn) = stranger(&mut rig);
        rig.drop_at_once = false;
        rig.receiver().wait().wake();
        for _ in 0..times {
            rig.net.say(conn, data, bytes);
        }
        rig.net.deliver(times);
        let mut events = Vec::new();
        rig.receiver().poll(&mut events).unwrap();
        rig.said.extend(events);
        only_violation(&rig);
        rig.drop_at_once = true;
        rig.send(1).unwrap();
        rig.settle();
        assert_eq!(rig.completed, [1], "the other connection lives");
        rig.end();
    }
}

#[test]
fn a_message_longer_than_its_buffer_ends_the_connection() {
    let mut rig = Setup {
        receive_slots: 32,
        ..Setup::default()
    }
    .connected();
    let (_link, conn) = stranger(&mut rig);
    rig.net.say(conn, None, &[0; SLOT_BYTES * 2 + 1]);
    rig.net.deliver(1);
    rig.poll_receiver();
    assert!(matches!(
        disconnected(&rig)[..],
        [CloseReason::PeerLost { errno: Some(_) }]
    ));
    rig.settle();
    rig.end();
}

// ---- 4, 5: completions --------------------------------------------------------------------------

#[test]
fn an_endpoint_that_failed_closes_everything_and_takes_nobody() {
    for contexts in [ContextKind::Opaque, ContextKind::Cells] {
        for fault in 0..4 {
            let mut rig = Setup {
                net: NetConfig {
                    contexts,
                    ..NetConfig::default()
                },
                ..Setup::default()
            }
            .connected();
            let far = rig.far;
            match fault {
                0 => rig.net.break_cq(far, libc::EOVERFLOW),
                1 => rig.net.inject(far, 0xdead_beef, None),
                2 => rig.net.inject(far, 0, Some(libc::EIO)),
                _ => {
                    rig.net.double(far, 1);
                    rig.send(1).unwrap();
                    rig.net.deliver(1);
                }
            }
            let mut events = Vec::new();
            let failed = rig.receiver().poll(&mut events).unwrap_err();
            assert!(matches!(failed, Error::EndpointFailed(_)), "{failed}");
            rig.said.extend(events);
            assert!(matches!(
                disconnected(&rig)[..],
                [CloseReason::EndpointFailed(_)]
            ));
            assert_eq!(rig.receiver().connections(), 0);
            let (mut link, _) = rig.net.ask(&hello().encode());
            let mut events = Vec::new();
            rig.receiver().poll(&mut events).unwrap_err();
            assert_eq!(refusal_to(&mut link).code(), RefusalCode::CLOSING);
            // An event loop that waits for it does not turn for ever.
            assert_eq!(rig.receiver().wait().next_deadline(), None);
            assert!(rig.receiver().close(far_future()).unwrap().is_empty());
            rig.settle();
            assert!(rig.ended.is_some());
            rig.said.clear();
            rig.end();
        }
    }
}

#[test]
fn a_broken_event_queue_closes_everything() {
    let mut rig = Setup::default().connected();
    let far = rig.far;
    rig.net.break_cm(far, libc::EIO);
    rig.poll_receiver();
    assert!(matches!(
        disconnected(&rig)[..],
        [CloseReason::EndpointFailed(_)]
    ));
    rig.settle();
    rig.end();
}

// ---- 6, 7: the end ------------------------------------------------------------------------------

#[test]
fn receives_in_flight_come_back_however_the_provider_closes() {
    for close in [CloseMode::Reports, CloseMode::Silent] {
        for dropped in [false, true] {
            let mut rig = Setup::default().connected();
            let far = rig.far;
            rig.net.set_close(far, close);
            if dropped {
                rig.receiver = None;
            } else {
                let id = connection(&rig);
                let now = rig.now();
                assert!(rig.receiver().begin_close(id, now));
                rig.poll_receiver();
                assert_eq!(disconnected(&rig), [CloseReason::ClosedByDeadline]);
                let now = rig.now();
                assert!(!rig.receiver().begin_close(id, now));
            }
            assert_eq!(rig.pool.free_count(), rig.pool.slots());
            rig.settle();
            rig.end();
        }
    }
}

#[test]
fn what_a_failed_close_may_still_write_to_is_leaked() {
    for contexts in [ContextKind::Opaque, ContextKind::Cells] {
        for dropped in [false, true] {
            let mut rig = Setup {
                net: NetConfig {
                    contexts,
                    ..NetConfig::default()
                },
                ..Setup::default()
            }
            .connected();
            let far = rig.far;
            rig.net.set_close(far, CloseMode::Fails);
            let before = crate::stats::process().leaked;
            if !dropped {
                let id = connection(&rig);
                let now = rig.now();
                rig.receiver().begin_close(id, now);
                rig.poll_receiver();
                assert_eq!(disconnected(&rig), [CloseReason::ClosedByDeadline]);
                assert!(rig.receiver().stats().leaked >= 6);
                // Others are served meanwhile.
                rig.net.set_close(far, CloseMode::Reports);
                let (link, _) = rig.net.ask(&hello().encode());
                rig.poll_receiver();
                assert_eq!(rig.receiver().connections(), 1);
                drop(link);
            }
            rig.receiver = None;
            assert!(crate::stats::process().leaked >= before + 6);
            assert_eq!(rig.pool.free_count(), rig.pool.slots() - 6);
            rig.pool.region().deregister_from(rig.net.far().scope());
            rig.sender = None;
            let net = rig.net.clone();
            drop(rig);
            assert!(net.use_stuck() >= 6);
            net.check();
        }
    }
}

#[test]
fn registrations_of_a_connection_close_behind_it() {
    let mut setup = Setup::default();
    setup.net.endpoint_scope = true;
    let mut rig = setup.connected();
    let (far, conn, domain) = (rig.far, rig.far_conn(), rig.net.far().id());
    let pool = rig.pool.region().as_ptr().addr();
    rig.receiver = None;
    let log = rig.net.log();
    let at = |step: Step| log.iter().position(|s| *s == step).expect("logged");
    let mr = log.iter().position(|s| {
        matches!(s, Step::MrClosed { registrar, base }
            if *registrar != domain && *base == pool)
    });
    assert!(at(Step::EpClosed(conn)) < mr.unwrap(), "{log:?}");
    assert!(mr.unwrap() < at(Step::LinkClosed(far)), "{log:?}");
    rig.settle();
    rig.end();
}

#[test]
fn a_polite_close_from_the_receiver_ends_well_on_both_sides() {
    let mut rig = Setup::default().connected();
    for key in 0..3 {
        rig.send(key).unwrap();
    }
    let id = connection(&rig);
    rig.receiver().begin_close(id, far_future());
    rig.settle();
    assert_eq!(rig.received, [0, 1, 2]);
    assert_eq!(rig.ended, Some(CloseReason::Finished));
    assert_eq!(disconnected(&rig), [CloseReason::Finished]);
    rig.end();
}

// ---- 12: the RDM form ---------------------------------------------------------------------------

fn rdm() -> Setup {
    Setup {
        net: NetConfig {
            form: Form::Rdm,
            ..NetConfig::default()
        },
        ..Setup::default()
    }
}

#[test]
fn rdm_messages_credits_and_goodbyes() {
    let mut rig = rdm().connected();
    for key in 0..50 {
        if rig.send(key).is_err() {
            rig.settle();
            rig.send(key).unwrap();
        }
    }
    rig.settle();
    assert_eq!(rig.received, (0..50).collect::<Vec<_>>());
    rig.drop_at_once = false;
    for key in 50..54 {
        rig.send(key).unwrap();
    }
    assert_eq!(rig.blocked(99), Blocked::Credits);
    rig.settle();
    rig.sender().begin_close(far_future());
    rig.settle();
    assert_eq!(rig.ended, Some(CloseReason::Finished));
    assert_eq!(disconnected(&rig), [CloseReason::Finished]);
    assert_eq!(rig.held.len(), 4);
    rig.check_all_back();
    rig.end();
}

#[test]
fn rdm_refusals_are_messages() {
    let mut rig = Setup {
        asked_mode: Some(HeaderMode::Raw),
        ..rdm()
    }
    .rig();
    rig.settle();
    match rig.ended {
        Some(CloseReason::Refused(r)) => assert_eq!(r.code(), RefusalCode::HEADER_MODE),
        other => panic!("{other:?}"),
    }
    rig.end();
}

#[test]
fn rdm_one_of_two_connections_is_given_up_and_told_so() {
    let deadline = Duration::from_millis(10);
    let mut rig = Setup {
        receive_slots: 32,
        send_deadline: Some(deadline),
        ..rdm()
    }
    .connected();
    let none = Arc::new(Mutex::new(Vec::new()));
    let settings = send_settings(
        &Setup {
            send_deadline: None,
            ..rig.setup.clone()
        },
        &none,
        &rig.headers,
    );
    let link = rig.net.link();
    let mut other = SendCore::connect(
        link,
        Arc::new(FakeWait),
        rig.setup.clock.clone(),
        some_addr(),
        settings,
        Redial::new(ReconnectPolicy::off(), 0),
    )
    .unwrap();
    let mut events = Vec::new();
    for _ in 0..3 {
        rig.settle();
        other.wait().wake();
        other.poll(&mut events).unwrap();
    }
    assert_eq!(rig.receiver().connections(), 2);
    rig.send(1).unwrap();
    rig.pass(deadline);
    rig.poll_sender();
    assert_eq!(rig.ended, Some(CloseReason::SendDeadline { deadline }));
    rig.settle();
    assert!(matches!(
        disconnected(&rig)[..],
        [CloseReason::PeerAborted(_)]
    ));
    assert_eq!(rig.receiver().connections(), 1);
    let payload = rig.payload(5);
    other
        .send_data(payload.into(), &5u64.to_be_bytes(), 5)
        .unwrap();
    rig.settle();
    assert_eq!(rig.received, [5]);
    drop((other, events));
    rig.end();
}

#[test]
fn rdm_a_message_that_names_no_connection_is_dropped_and_its_receive_replaced() {
    let mut rig = Setup {
        receive_slots: 32,
        ..rdm()
    }
    .connected();
    let (_link, conn) = stranger(&mut rig);
    let far_conn = rig.far_conn();
    let posted = rig.net.receives_of(far_conn);
    for data in [
        Some(wire::cq_data(ControlKind::DATA, 0)),
        Some(wire::cq_data(ControlKind::BYE, wire::INDEX_MASK)),
        None,
    ] {
        rig.net.say(conn, data, b"\0\0hello");
    }
    rig.net.deliver(usize::MAX);
    rig.poll_receiver();
    assert_eq!(rig.receiver().stats().strays, 3);
    assert_eq!(rig.receiver().connections(), 2);
    assert_eq!(rig.net.receives_of(far_conn), posted);
    rig.send(1).unwrap();
    rig.settle();
    assert_eq!(rig.received, [1]);
    rig.end();
}

#[test]
fn rdm_what_a_closed_connection_had_posted_serves_the_next() {
    let mut rig = Setup {
        receive_slots: 12,
        max_connections: 2,
        ..rdm()
    }
    .connected();
    let far_conn = rig.far_conn();
    let posted = rig.net.receives_of(far_conn);
    let none = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..20 {
        let mut other = SendCore::connect(
            rig.net.link(),
            Arc::new(FakeWait),
            rig.setup.clock.clone(),
            some_addr(),
            send_settings(&rig.setup, &none, &rig.headers),
            Redial::new(ReconnectPolicy::off(), 0),
        )
        .unwrap();
        let mut events = Vec::new();
        for _ in 0..3 {
            rig.settle();
            other.wait().wake();
            other.poll(&mut events).unwrap();
        }
        assert_eq!(rig.receiver().connections(), 2, "{events:?}");
        // Gone without a goodbye, but for its last word.
        drop(other);
        rig.settle();
        assert_eq!(rig.receiver().connections(), 1);
        assert!(rig.net.receives_of(far_conn) >= posted);
    }
    for key in 0..10 {
        rig.send(key).unwrap();
        rig.settle();
    }
    assert_eq!(rig.received, (0..10).collect::<Vec<_>>());
    rig.end();
}

#[test]
fn rdm_a_listener_that_does_not_close_leaks_what_is_posted() {
    let mut rig = rdm().connected();
    rig.net.set_close(rig.far, CloseMode::Fails);
    let posted = rig.pool.slots() - rig.pool.free_count();
    assert!(posted > 0);
    rig.receiver = None;
    assert_eq!(rig.pool.slots() - rig.pool.free_count(), posted);
    rig.pool.region().deregister_from(rig.net.far().scope());
    rig.sender = None;
    let net = rig.net.clone();
    drop(rig);
    assert!(net.use_stuck() >= posted);
    net.check();
}

#[test]
fn a_closed_receiver_refuses_the_next_send() {
    let mut rig = Setup::default().connected();
    rig.receiver = None;
    rig.settle();
    assert_eq!(rig.ended, Some(CloseReason::PeerLost { errno: None }));
    assert!(matches!(rig.send(1), Err(SendErrorKind::Closed(_))));
    rig.end();
}
