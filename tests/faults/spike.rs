//! One test for each crash and false success of libfabric that we know of: this library's API can't
//! reach it.
//!
//! | # | libfabric by itself | here |
//! |---|---|---|
//! | 1 | a send before the connection stands crashes in the provider | a typed error |
//! | 2 | closing a queue twice after `-FI_EBUSY` frees it twice | handles close once, when unused |
//! | 3 | a fabric or receive context closes under what uses it | children hold their parents |
//! | 4 | sends are accepted without a bound, 17 KB each | depth and credits are the bound |
//! | 5 | closing with unread data destroys what was sent | a goodbye on both sides |
//! | 6 | a remote write with a wrong key "succeeds" | there are no remote writes in the API yet |
//! | 7 | a closed registration stops no write | likewise: nothing is registered for remote access |
//! | 8 | a dead peer is not noticed while no receive is posted | two receives are always posted |
//! | 9 | some providers never report what was in flight | every key comes back once |
//! | 10 | loading the library replaces signal handlers | they are as before |
//! | 11 | private data above 256 bytes overflows a buffer | ours is 48 bytes |
//! | 12 | hints of an older layout crash newer libraries | hints come from the loaded library |

#![allow(unsafe_code)]

use std::sync::Arc;

use fabricast::endpoint::{
    AcceptPolicy, Blocked, CloseReason, Packing, ReceiveConfig, SendErrorKind,
};
use fabricast::{ReceiveEndpoint, ReceiveEvent, SendEndpointZeroCopy};

use crate::common;
use crate::common::child::{self, Child};
use crate::common::raw::{RawEvent, RawPeer, hello};
use crate::common::{
    Pair, SOON, Watchdog, after, alone, any_port, assert_balanced, buffer, domain, drive, got,
    millis, outcomes, pool, receive_ends, rss_bytes, send_end, small_receiver,
};

#[test]
fn row_1_a_send_before_the_connection_stands_or_after_it_ended_is_an_error() {
    let _alone = alone();
    let _dog = Watchdog::new("row 1");
    let Some(domain) = domain() else { return };
    let ask = small_receiver().connection(|c| c.accept(AcceptPolicy::Ask));
    let mut pair = Pair::connecting(&domain, common::sending(), ask);
    let mut request = None;
    // At every step on the way, and again after each poll.
    drive("a request", SOON, || {
        let payload = pair.buffer(b"too early");
        let refused = pair
            .sender()
            .send_data(payload, b"h", 1)
            .expect_err("early");
        assert_eq!(refused.kind, SendErrorKind::WouldBlock(Blocked::Connecting));
        pair.step();
        request = pair.received.iter().find_map(|event| match event {
            ReceiveEvent::Request(request) => Some(*request),
            _ => None,
        });
        request.is_some()
    });
    assert!(pair.receiver().refuse(request.expect("found"), [1, 2]));
    pair.until("refused", |pair| send_end(&pair.sent).is_some());
    let payload = pair.buffer(b"too late");
    let refused = pair.sender().send_data(payload, b"h", 2).expect_err("late");
    assert!(
        matches!(refused.kind, SendErrorKind::Closed(CloseReason::Refused(_))),
        "{refused}"
    );

    let mut pair = Pair::open(&domain);
    pair.receiver = None;
    pair.until("lost", |pair| send_end(&pair.sent).is_some());
    let payload = pair.buffer(b"too late");
    let refused = pair.sender().send_data(payload, b"h", 3).expect_err("late");
    assert!(
        matches!(
            refused.kind,
            SendErrorKind::Closed(CloseReason::PeerLost { .. })
        ),
        "{refused}"
    );
    assert_eq!(pair.sender().stats().posted, 0);
}

#[test]
fn row_2_no_handle_is_closed_twice_or_refuses_to_close() {
    let _alone = alone();
    let _dog = Watchdog::new("row 2");
    let before = fabricast::stats::process();
    for receiver_first in [true, false] {
        let Some(domain) = domain() else { return };
        let mut pair = Pair::open(&domain);
        let payload = pair.buffer(b"in flight");
        pair.sender().send_data(payload, b"h", 1).expect("room");
        // Neither queue, domain nor fabric may be tried while an endpoint is open: each answers
        // EBUSY and is damaged.
        drop(domain);
        if receiver_first {
            pair.receiver = None;
        } else {
            pair.sender = None;
        }
        pair.step();
    }
    let now = fabricast::stats::process();
    assert_eq!(now.close_failures, before.close_failures);
}

#[test]
fn row_3_what_is_in_use_stays_open() {
    let _alone = alone();
    let _dog = Watchdog::new("row 3");
    let Some(domain) = domain() else { return };
    let (open_domain, open_fabric) = (Arc::downgrade(&domain), Arc::downgrade(domain.fabric()));
    let mut receiver =
        ReceiveEndpoint::listen(&domain, any_port(), small_receiver()).expect("listens");
    drop(domain);
    // A listener alone holds both: it still takes connections.
    let domain = open_domain.upgrade().expect("the listener holds it");
    let mut sender =
        SendEndpointZeroCopy::connect(&domain, receiver.local_addr(), common::sending())
            .expect("begins");
    drop(domain);
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    drive("connected", SOON, || {
        sender.poll(&mut sent).expect("polls");
        receiver.poll(&mut received).expect("polls");
        sender.is_connected()
    });
    drop(receiver);
    assert!(open_fabric.upgrade().is_some(), "the sender holds it");
    drop(sender);
    let left = (open_domain.strong_count(), open_fabric.strong_count());
    assert_eq!(left, (0, 0));
}

#[test]
fn row_4_a_peer_that_does_not_read_is_sent_a_bounded_amount() {
    let _alone = alone();
    let _dog = Watchdog::new("row 4");
    let Some(domain) = domain() else { return };
    // Far more than is granted, and no more than a device's queues hold.
    let config = common::sending().outgoing(|out| out.depth(16_384).packing(Packing::Off));
    let mut pair = Pair::apart(
        &domain,
        config,
        small_receiver().incoming(|incoming| incoming.credits(16)),
    );
    let payload = pair.buffer(b"flood");
    let before = rss_bytes();
    let mut would_block = 0_u64;
    for key in 0..1_000_000 {
        match pair.sender().send_data(payload.clone(), b"h", key) {
            Ok(()) => {}
            Err(refused) => {
                let expected = SendErrorKind::WouldBlock(Blocked::Credits);
                assert_eq!(refused.kind, expected);
                would_block += 1;
            }
        }
    }
    assert_eq!(pair.sender().stats().posted, 16, "what the peer granted");
    assert_eq!(would_block, 1_000_000 - 16);
    let grown = rss_bytes().saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes");
    assert_balanced(pair.sender());
}

#[test]
fn row_5_a_close_with_unread_data_loses_nothing() {
    let _alone = alone();
    let _dog = Watchdog::new("row 5");
    let Some(domain) = domain() else { return };
    let elsewhere = common::domain().expect("there is one already");
    let config = ReceiveConfig::default()
        .incoming(|incoming| incoming.slots(140).credits(64))
        .connection(|c| c.max_connections(1));
    let mut receiver = ReceiveEndpoint::listen(&elsewhere, any_port(), config).expect("listens");
    let addr = receiver.local_addr();
    let worker = std::thread::spawn(move || {
        let pool = pool(&domain, 60, 60_000);
        let mut sender =
            SendEndpointZeroCopy::connect(&domain, addr, common::sending()).expect("begins");
        sender.wait_connected().expect("connects");
        for key in 0..60 {
            let payload = pool.try_acquire().expect("free").freeze(60_000);
            sender.send_data(payload, b"h", key).expect("granted");
        }
        // The receiver's credits come meanwhile and are not read: a bare close would reset the
        // connection.
        std::thread::sleep(millis(100));
        let ends = sender.close(after(SOON)).expect("closes");
        send_end(&ends)
    });
    let (mut events, mut arrived) = (Vec::new(), 0);
    let begin = std::time::Instant::now();
    drive("the end", SOON, || {
        receiver.poll(&mut events).expect("polls");
        arrived += common::messages(&mut events).len();
        // Begins to dawdle when the first are here.
        if arrived > 0 && begin.elapsed() < millis(400) {
            std::thread::sleep(millis(5));
        }
        !receive_ends(&events).is_empty()
    });
    assert_eq!(arrived, 60);
    assert_eq!(receive_ends(&events)[0].1, CloseReason::Finished);
    assert_eq!(
        worker.join().expect("no panic"),
        Some(CloseReason::Finished)
    );
}

#[test]
fn row_8_a_peer_that_dies_is_noticed_while_every_message_is_held() {
    const NAME: &str = "row_8_a_peer_that_dies_is_noticed_while_every_message_is_held";
    if child::role().is_some() {
        let domain = domain().expect("the parent has one");
        let addr = child::argument().parse().expect("an address");
        let mut sender =
            SendEndpointZeroCopy::connect(&domain, addr, common::sending()).expect("begins");
        sender.wait_connected().expect("connects");
        let pool = pool(&domain, 64, 1000);
        let mut events = Vec::new();
        loop {
            let payload = buffer(&pool, b"held");
            let stuck = sender.send_data(payload, b"h", 1).is_err();
            sender.poll(&mut events).expect("polls");
            events.clear();
            if stuck {
                child::tell("stuck");
                std::thread::sleep(SOON);
            }
        }
    }
    let _alone = alone();
    let _dog = Watchdog::new("row 8");
    let Some(domain) = domain() else { return };
    // The smallest pool there can be: one message and the reserve.
    let config = ReceiveConfig::default()
        .incoming(|incoming| incoming.slots(3).credits(8))
        .connection(|c| c.max_connections(1));
    let mut receiver = ReceiveEndpoint::listen(&domain, any_port(), config).expect("listens");
    let mut sender = Child::start(NAME, "sender", receiver.local_addr());
    let mut events = Vec::new();
    drive("the pool is exhausted", SOON, || {
        receiver.poll(&mut events).expect("polls");
        events
            .iter()
            .any(|e| matches!(e, ReceiveEvent::Starved { .. }))
    });
    sender.expect("stuck", SOON);
    assert_eq!(receiver.pool().free_count(), 0);
    sender.kill();
    drive("the loss", SOON, || {
        receiver.poll(&mut events).expect("polls");
        !receive_ends(&events).is_empty()
    });
    let (_, reason) = receive_ends(&events)[0];
    assert!(matches!(reason, CloseReason::PeerLost { .. }), "{reason}");
    let held = common::messages(&mut events);
    assert_eq!(held, [got(b"h", b"held")]);
    assert_eq!(receiver.pool().free_count(), 3);
}

#[test]
fn row_9_every_send_in_flight_is_reported_once_when_the_peer_goes() {
    let _alone = alone();
    let _dog = Watchdog::new("row 9");
    let Some(domain) = domain() else { return };
    let size = 1 << 20;
    let receive = ReceiveConfig::default()
        .incoming(|incoming| incoming.max_message(size).slots(20).credits(16))
        .connection(|c| c.max_connections(1));
    let mut pair = Pair::apart(&domain, common::sending(), receive);
    let pool = pool(&domain, 1, size - 100);
    let large = pool.try_acquire().expect("free").freeze(size - 100);
    for key in 0..16 {
        let sent = pair.sender().send_data(large.clone(), b"h", key);
        sent.expect("granted");
    }
    pair.receiver = None;
    pair.until("the end", |pair| send_end(&pair.sent).is_some());
    let outcomes = outcomes(&pair.sent);
    assert_eq!(
        outcomes.keys().copied().collect::<Vec<_>>(),
        (0..16).collect::<Vec<_>>()
    );
    assert!(outcomes.values().all(|o| o.len() == 1), "{outcomes:?}");
    // A card delivers all that was granted, whatever the peer's program does.
    let alone = domain.fabric().provider().delivers_alone;
    assert!(
        alone || outcomes.values().any(|o| o == &[false]),
        "{outcomes:?}"
    );
    assert_balanced(pair.sender());
}

/// A flag of the kernel's that the C library keeps to itself.
const SA_RESTORER: i32 = 0x0400_0000;

/// What this process does at each signal: handler and flags.
fn signal_handlers() -> Vec<(usize, i32)> {
    (1..32)
        .map(|signal| {
            // SAFETY: a struct of integers and addresses is valid when zeroed.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: asks only; the struct is writable.
            let rc = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
            assert_eq!(rc, 0, "signal {signal}");
            // The C library sets this one whenever it sets a handler.
            (action.sa_sigaction, action.sa_flags & !SA_RESTORER)
        })
        .collect()
}

#[test]
fn row_10_signal_handlers_are_as_before() {
    const NAME: &str = "row_10_signal_handlers_are_as_before";
    let _alone = alone();
    let _dog = Watchdog::new("row 10");
    // In a process of its own: here the library may be loaded already.
    if child::role().is_none() {
        if domain().is_some() {
            let mut child = Child::start(NAME, "look", "");
            child.expect("looked", SOON);
            child.finish(SOON);
        }
        return;
    }
    let before = signal_handlers();
    let domain = domain().expect("the parent opened one");
    assert_eq!(signal_handlers(), before, "after loading");
    let mut pair = Pair::open(&domain);
    let payload = pair.buffer(b"x");
    pair.exchange(payload, b"h", 1);
    drop((pair, domain));
    assert_eq!(signal_handlers(), before, "after everything");
    child::tell("looked");
}

#[test]
fn row_11_private_data_is_small_and_long_private_data_does_no_harm() {
    let _alone = alone();
    let _dog = Watchdog::new("row 11");
    let Some(domain) = domain() else { return };
    let elsewhere = common::domain().expect("there is one already");
    let config = small_receiver().connection(|c| c.max_connections(1));
    let mut receiver = ReceiveEndpoint::listen(&domain, any_port(), config).expect("listens");
    let receiver_addr = receiver.local_addr();
    let mut events = Vec::new();
    let mut ask = |private: &[u8]| {
        let mut peer = RawPeer::connect(&elsewhere, receiver_addr, private);
        let mut answer = None;
        drive("an answer", SOON, || {
            receiver.poll(&mut events).expect("polls");
            answer = peer.poll();
            answer.is_some()
        });
        (peer, answer.expect("an answer"))
    };
    let most = RawPeer::private_max(&elsewhere, receiver_addr);
    let mut padded = hello(0).to_vec();
    assert!(most >= padded.len(), "{most} bytes");
    padded.resize(most, 0xcc);
    let (_held, answer) = ask(&padded);
    assert_eq!(answer, RawEvent::Connected);
    for (what, private) in [("too many", padded), ("malformed", vec![0xee; most])] {
        let (_, answer) = ask(&private);
        let RawEvent::Refused { data, .. } = answer else {
            panic!("{what}: {answer:?}");
        };
        assert!(
            (32..most.min(64)).contains(&data.len()),
            "{what}: {} bytes of {most}",
            data.len()
        );
    }
}

#[test]
fn row_12_hints_have_the_layout_of_the_loaded_library() {
    let _alone = alone();
    let _dog = Watchdog::new("row 12");
    let Some(domain) = domain() else { return };
    let report = domain.report();
    let number = |text: &str| -> (u32, u32) {
        let mut parts = text.split('.').map(|n| n.parse().expect("a number"));
        (parts.next().expect("major"), parts.next().expect("minor"))
    };
    let (library, api) = (number(&report.library), number(&report.api));
    assert!(library >= (1, 17), "{}", report.library);
    assert!(api <= library && api >= (1, 17), "{report}");
    // Every hint there is, and each diagnosis asks with some of them; on 2.x each would crash if it
    // were too short.
    for _ in 0..20 {
        let builder = fabricast::Fabric::builder()
            .provider("tcp")
            .node("127.0.0.1");
        drop(builder.open().expect("opens"));
        let nothing = fabricast::Fabric::builder().provider("nonsense").open();
        assert!(nothing.is_err());
    }
}
