//! Endpoints over the real tcp provider: what arrives, what is refused before it is posted, how
//! connections begin and end.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fabricast::buffer::{
    HeaderSlotConfig, HeaderSlotManager, Payload, RingConfig, RingRegion, Segment,
    ZeroCopyBufferManager,
};
use fabricast::endpoint::{
    AcceptPolicy, Blocked, CloseReason, ConnectionRequest, DeadlinePolicy, HeaderMode, Level,
    Message, MessageLimit, Packing, ReceiveConfig, RefusalCode, SendErrorKind,
};
use fabricast::error::{Error, RegisterError};
use fabricast::event_loop::{EventLoop, LoopConfig, LoopEvent, WaitMode, Waitable};
use fabricast::fabric::EndpointKind;
use fabricast::{
    ConnectionEvent, Domain, Fabric, PeerAddr, ReceiveEndpoint, ReceiveEvent, Region,
    SendEndpointZeroCopy, SendEvent,
};

use crate::common;
use crate::common::child::{self, Child};
use crate::common::{
    Offers, Pair, SOON, Watchdog, after, any_port, assert_balanced, buffer, bytes_of, domain,
    drive, got, messages, millis, nobodys_port, node, outcomes, patient, pattern, pool,
    receive_ends, rounds, send_end, small_receiver,
};

/// No time is too long to ask for: the next event ends it.
#[test]
fn sleeping_for_any_time_ends_with_what_happens_next() {
    let _dog = Watchdog::new("sleeping_for_any_time");
    let Some(domain) = domain() else { return };
    let listening = ReceiveEndpoint::listen(&domain, any_port(), small_receiver());
    let mut receiver = listening.expect("it listens");
    let addr = receiver.local_addr();
    let other = std::thread::spawn(move || {
        let mut sender =
            SendEndpointZeroCopy::connect(&domain, addr, common::sending()).expect("begun");
        sender.wait(Duration::MAX).expect("it sleeps");
        sender.wait_connected().expect("connected");
    });
    let mut events = Vec::new();
    while !matches!(
        events.first(),
        Some(ReceiveEvent::Connection(_, ConnectionEvent::Connected(_)))
    ) {
        receiver.wait(Duration::MAX).expect("it sleeps");
        receiver.poll(&mut events).expect("it works");
    }
    other.join().expect("no overflow");
}

// ---- what arrives -------------------------------------------------------------------------------

#[test]
fn one_segment_arrives_with_its_header() {
    let _dog = Watchdog::new("one_segment");
    let Some(domain) = domain() else { return };
    let mut pair = Pair::open(&domain);
    for len in [1, 100, 4096, 60_000] {
        let bytes = pattern(len as u64, len);
        let payload = pair.buffer(&bytes);
        assert_eq!(pair.exchange(payload, b"header", 7), got(b"header", &bytes));
    }
    assert_balanced(pair.sender());
}

#[test]
fn several_segments_arrive_as_one_message_in_their_order() {
    let _dog = Watchdog::new("several_segments");
    let Some(domain) = domain() else { return };
    let mut pair = Pair::open(&domain);
    let other = pool(&domain, 4, 1000);
    for count in 1..=3 {
        let parts: Vec<_> = (0..count)
            .map(|i| pattern(i, 100 + 10 * i as usize))
            .collect();
        let payload: Payload = parts
            .iter()
            .enumerate()
            // From two regions, so that each segment needs its own descriptor.
            .map(|(i, part)| buffer(if i == 1 { &other } else { &pair.pool }, part))
            .collect();
        assert_eq!(pair.exchange(payload, b"h", 1), got(b"h", &parts.concat()));
    }
}

#[test]
fn slices_of_a_region_arrive() {
    let _dog = Watchdog::new("slices");
    let Some(domain) = domain() else { return };
    let mut pair = Pair::open(&domain);
    let region = Region::host(8192).build().expect("memory");
    region.register(&domain).expect("registered");
    let slice = region.slice(1000..3000).expect("inside");
    // Zeroed when it was made; a slice gives no safe access to its bytes.
    assert_eq!(pair.exchange(slice.clone(), b"s", 1), got(b"s", &[0; 2000]));
    let parts: Payload = [
        slice.slice(0..10).expect("inside"),
        slice.slice(500..700).expect("inside"),
    ]
    .into_iter()
    .collect();
    assert_eq!(pair.exchange(parts, b"", 2), got(b"", &[0; 210]));
}

#[test]
fn ring_fragments_that_wrap_arrive_and_the_tail_follows() {
    let _dog = Watchdog::new("ring");
    let Some(domain) = domain() else { return };
    let mut pair = Pair::open(&domain);
    let region = Region::host(4096).build().expect("memory");
    region.register(&domain).expect("registered");
    let config = RingConfig {
        max_fragments: 64,
        ..RingConfig::default()
    };
    let mut ring = RingRegion::new(region, config).expect("a ring");
    let (mut wrapped, mut sent_bytes) = (0, 0);
    for i in 0..50_u64 {
        let bytes = pattern(i, 700);
        let mut reservation = ring.reserve(bytes.len()).expect("the last one came back");
        let (first, second) = reservation.segments_mut().expect("a host ring");
        wrapped += u32::from(!second.is_empty());
        let cut = first.len();
        first.copy_from_slice(&bytes[..cut]);
        second.copy_from_slice(&bytes[cut..]);
        let fragment = reservation.commit(bytes.len());
        sent_bytes += bytes.len() as u64;
        assert_eq!(pair.exchange(fragment, b"frag", i), got(b"frag", &bytes));
        assert_eq!((ring.tail(), ring.outstanding()), (sent_bytes, 0));
    }
    assert!(wrapped >= 5, "only {wrapped} of 50 wrapped");
}

#[test]
fn empty_headers_and_payloads_arrive_in_each_header_mode() {
    let _dog = Watchdog::new("empty");
    let Some(domain) = domain() else { return };
    let modes = [
        HeaderMode::Prefixed,
        HeaderMode::Raw,
        HeaderMode::Fixed(0),
        HeaderMode::Fixed(4),
    ];
    for mode in modes {
        let config = common::sending().outgoing(|out| out.header_mode(mode));
        let mut pair = Pair::with(&domain, config, small_receiver());
        let headers: &[&[u8]] = match mode {
            HeaderMode::Fixed(0) => &[b""],
            HeaderMode::Fixed(_) => &[b"1234"],
            _ => &[b"", b"1234"],
        };
        for &header in headers {
            for bytes in [&b""[..], b"payload"] {
                let expect = match mode {
                    HeaderMode::Raw => got(b"", &[header, bytes].concat()),
                    _ => got(header, bytes),
                };
                let payload = pair.buffer(bytes);
                assert_eq!(pair.exchange(payload, header, 5), expect, "{mode:?}");
            }
            let expect = match mode {
                HeaderMode::Raw => got(b"", header),
                _ => got(header, b""),
            };
            assert_eq!(
                pair.exchange(Payload::empty(), header, 6),
                expect,
                "{mode:?}"
            );
        }
        let free = pair.sender().headers().free_count();
        assert_eq!(free, pair.sender().headers().capacity(), "{mode:?}");
    }
}

#[test]
fn the_largest_message_arrives_and_one_byte_more_is_refused() {
    let _dog = Watchdog::new("largest");
    let Some(domain) = domain() else { return };
    let max = 1 << 20;
    let receive = ReceiveConfig::default()
        .incoming(|incoming| incoming.max_message(max).slots(16).credits(4))
        .connection(|c| c.max_connections(2));
    let mut pair = Pair::with(&domain, common::sending(), receive);
    let large = pool(&domain, 2, max);
    let header = [9; 62];
    let room = max - 2 - header.len();
    let bytes = pattern(1, room);
    let message = pair.exchange(buffer(&large, &bytes), &header, 1);
    assert_eq!(message, got(&header, &bytes));
    let bytes = pattern(1, room + 1);
    let refused = pair
        .sender()
        .send_data(buffer(&large, &bytes), &header, 2)
        .expect_err("one byte too many");
    let expected = SendErrorKind::TooLong {
        len: max as u64 + 1,
        max: max as u64,
        whose: MessageLimit::Peer,
    };
    assert_eq!((refused.kind, refused.key), (expected, 2));
    assert_eq!(bytes_of(&refused.given), bytes);
}

#[test]
fn messages_are_numbered_from_one_without_a_gap() {
    let _dog = Watchdog::new("numbers");
    let Some(domain) = domain() else { return };
    let mut pair = Pair::open(&domain);
    for key in 0..40 {
        let payload = pair.buffer(b"x");
        pair.send(payload, b"", key);
    }
    let mut numbers = Vec::new();
    pair.until("40 messages", |pair| {
        for event in pair.received.drain(..) {
            if let ReceiveEvent::Message(message) = event {
                numbers.push(message.sequence());
            }
        }
        numbers.len() == 40
    });
    assert_eq!(numbers, (1..=40).collect::<Vec<_>>());
}

#[test]
fn keys_come_back_unchanged_equal_ones_too() {
    let _dog = Watchdog::new("keys");
    let Some(domain) = domain() else { return };
    let mut pair = Pair::open(&domain);
    let keys = [0, u64::MAX, 42, 42, 42, 1 << 63, 0];
    for (i, &key) in keys.iter().enumerate() {
        let payload = pair.buffer(&[i as u8]);
        pair.send(payload, b"k", key);
    }
    let mut back = Vec::new();
    pair.until("all keys", |pair| {
        for event in pair.sent.drain(..) {
            if let SendEvent::Completed { key, payload } = event {
                back.push((key, bytes_of(&payload)[0]));
            }
        }
        back.len() == keys.len()
    });
    back.sort_unstable_by_key(|(_, i)| *i);
    let expected: Vec<_> = keys.iter().copied().zip(0..).collect();
    assert_eq!(back, expected, "each payload with its own key");
}

// ---- refused before anything is posted ----------------------------------------------------------

#[test]
fn what_cannot_be_sent_is_a_typed_error_and_nothing_is_posted() {
    let _dog = Watchdog::new("typed errors");
    let Some(domain) = domain() else { return };
    let mut pair = Pair::open(&domain);
    let elsewhere = domain.fabric().open_domain().expect("another domain");
    let foreign = pool(&elsewhere, 2, 64);
    let nowhere = fabricast::buffer::SharedBufferManager::allocate(2, 64).expect("memory");
    let ours = pair.pool.clone();
    let four: Payload = (0..4).map(|_| buffer(&ours, b"s")).collect();
    let second_foreign: Payload = [buffer(&ours, b"a"), buffer(&foreign, b"b")]
        .into_iter()
        .collect();
    let cases: Vec<(Payload, Vec<u8>, SendErrorKind)> = vec![
        (
            buffer(&foreign, b"f").into(),
            b"h".to_vec(),
            SendErrorKind::ForeignBuffer { segment: 0 },
        ),
        (
            second_foreign,
            b"h".to_vec(),
            SendErrorKind::ForeignBuffer { segment: 1 },
        ),
        (
            buffer(&nowhere, b"n").into(),
            b"h".to_vec(),
            SendErrorKind::NotRegistered { segment: 0 },
        ),
        (
            buffer(&ours, b"o").into(),
            vec![0; 63],
            SendErrorKind::HeaderTooLong { len: 63, max: 62 },
        ),
        (
            four,
            b"h".to_vec(),
            SendErrorKind::TooManySegments { count: 4, max: 3 },
        ),
    ];
    let count = cases.len() as u64;
    for (i, (payload, header, kind)) in cases.into_iter().enumerate() {
        let bytes = bytes_of(&payload);
        let refused = pair
            .sender()
            .send_data(payload, &header, i as u64)
            .expect_err("refused");
        assert_eq!((refused.kind.clone(), refused.key), (kind, i as u64));
        assert_eq!(bytes_of(&refused.given), bytes, "the payload comes back");
    }
    let stats = pair.sender().stats();
    assert_eq!((stats.posted, stats.refused), (0, count));
    assert_eq!(pair.sender().headers().free_count(), 256);
    let payload = pair.buffer(b"still works");
    assert_eq!(pair.exchange(payload, b"", 1), got(b"", b"still works"));
}

#[test]
fn a_fixed_header_of_another_length_is_refused() {
    let _dog = Watchdog::new("fixed header");
    let Some(domain) = domain() else { return };
    let config = common::sending().outgoing(|out| out.header_mode(HeaderMode::Fixed(8)));
    let mut pair = Pair::with(&domain, config, small_receiver());
    for len in [0, 7, 9] {
        let payload = pair.buffer(b"p");
        let refused = pair
            .sender()
            .send_data(payload, &vec![0; len], 1)
            .expect_err("refused");
        assert_eq!(refused.kind, SendErrorKind::HeaderLength { len, fixed: 8 });
    }
    let payload = pair.buffer(b"p");
    assert_eq!(
        pair.exchange(payload, b"12345678", 1),
        got(b"12345678", b"p")
    );
}

#[test]
fn back_pressure_gives_the_payload_back_and_says_when_it_is_over() {
    let _dog = Watchdog::new("back-pressure");
    let Some(domain) = domain() else { return };
    let mut pair = Pair::connecting(
        &domain,
        common::sending().outgoing(|out| out.depth(4).packing(Packing::Off)),
        small_receiver().incoming(|incoming| incoming.credits(6)),
    );
    let payload = pair.buffer(b"early");
    let refused = pair.sender().send_data(payload, b"", 1).expect_err("early");
    assert_eq!(refused.kind, SendErrorKind::WouldBlock(Blocked::Connecting));
    assert_eq!(bytes_of(&refused.given), b"early");
    pair.until("writable", |pair| {
        pair.sent.iter().any(|e| matches!(e, SendEvent::Writable))
    });
    let mut blocked = Vec::new();
    // The receiver does not poll: the depth is used up first, then, as sends complete, the credits.
    drive("both limits", SOON, || {
        let payload = pair.buffer(b"p");
        match pair.sender().send_data(payload, b"", 1) {
            Ok(()) => {}
            Err(refused) => match refused.kind {
                SendErrorKind::WouldBlock(why) => blocked.push(why),
                other => panic!("{other}"),
            },
        }
        let Pair { sender, sent, .. } = &mut pair;
        if blocked.last() == Some(&Blocked::Depth) {
            sender.as_mut().expect("open").poll(sent).expect("polls");
        }
        blocked.last() == Some(&Blocked::Credits)
    });
    assert_eq!(blocked.first(), Some(&Blocked::Depth));
    assert_eq!(pair.sender().stats().posted, 6);
    pair.sent.clear();
    pair.until("writable again", |pair| {
        pair.sent.iter().any(|e| matches!(e, SendEvent::Writable))
    });
    assert_balanced(pair.sender());
}

// ---- levels and deadlines -----------------------------------------------------------------------

#[test]
fn delivered_completes_only_when_the_peer_has_it() {
    let _dog = Watchdog::new("delivered");
    let Some(domain) = domain() else { return };
    let config = common::sending().outgoing(|out| out.level(Level::Delivered));
    let alone = domain.fabric().provider().delivers_alone;
    let mut pair = Pair::apart(&domain, config, small_receiver());
    let payload = pair.buffer(b"wanted");
    pair.send(payload, b"d", 3);
    let until = after(millis(100));
    drive("the time in which nobody reads it", SOON, || {
        let Pair { sender, sent, .. } = &mut pair;
        sender.as_mut().expect("open").poll(sent).expect("polls");
        assert!(alone || outcomes(sent).is_empty(), "{sent:?}");
        // A card puts it into the peer's buffer by itself.
        Instant::now() >= until && outcomes(sent).len() == usize::from(alone)
    });
    pair.until("delivered", |pair| outcomes(&pair.sent).contains_key(&3));
    assert_eq!(outcomes(&pair.sent)[&3], [true]);
    assert_eq!(messages(&mut pair.received), [got(b"d", b"wanted")]);
}

/// A pair whose receiver is not polled, with more on the way than the kernel buffers.
fn stalled(domain: &Arc<Domain>, policy: DeadlinePolicy) -> (Pair, u64) {
    let (size, count) = (1 << 20, 24);
    let send =
        common::sending().outgoing(|out| out.deadline(Some(millis(150))).deadline_policy(policy));
    let receive = ReceiveConfig::default()
        .incoming(|incoming| incoming.max_message(size).slots(30).credits(count))
        .connection(|c| c.max_connections(1));
    let mut pair = Pair::apart(domain, send, receive);
    pair.pool = pool(domain, count, size);
    for key in 0..u64::from(count) {
        let payload = pair.pool.try_acquire().expect("free").freeze(size - 100);
        let refused = pair.sender().send_data(payload, b"", key);
        assert!(refused.is_ok(), "{refused:?}");
    }
    (pair, count.into())
}

#[test]
fn a_late_send_is_only_reported_where_that_is_asked_for() {
    let _dog = Watchdog::new("notify");
    let Some(domain) = domain() else { return };
    if !domain.waits_for_programs() {
        return;
    }
    let (mut pair, count) = stalled(&domain, DeadlinePolicy::Notify);
    let is_late = |event: &SendEvent| matches!(event, SendEvent::Late { .. });
    drive("each is late or done", SOON, || {
        let Pair { sender, sent, .. } = &mut pair;
        sender.as_mut().expect("open").poll(sent).expect("polls");
        let late = sent.iter().filter(|event| is_late(event)).count();
        late + outcomes(sent).len() >= count as usize
    });
    let late: Vec<u64> = pair
        .sent
        .iter()
        .filter_map(|event| match event {
            SendEvent::Late { key } => Some(*key),
            _ => None,
        })
        .collect();
    let done = outcomes(&pair.sent);
    assert!(!late.is_empty(), "{:?}", pair.sender().stats());
    for key in 0..count {
        let times = late.iter().filter(|k| **k == key).count();
        // The kernel may take one that was late already.
        let told = times == 1 || (times == 0 && done.contains_key(&key));
        assert!(told, "key {key}: {times} times");
    }
    pair.until("all completed", |pair| {
        pair.received.clear();
        outcomes(&pair.sent).len() as u64 == count
    });
    assert!(outcomes(&pair.sent).values().all(|o| o == &[true]));
}

#[test]
fn a_late_send_fails_the_connection_by_default_and_every_key_comes_back() {
    let _dog = Watchdog::new("fail connection");
    let Some(domain) = domain() else { return };
    if !domain.waits_for_programs() {
        return;
    }
    let begin = Instant::now();
    let (mut pair, count) = stalled(&domain, DeadlinePolicy::FailConnection);
    drive("the end", SOON, || {
        let Pair { sender, sent, .. } = &mut pair;
        sender.as_mut().expect("open").poll(sent).expect("polls");
        send_end(sent).is_some()
    });
    assert!(begin.elapsed() >= millis(150));
    let deadline = millis(150);
    assert_eq!(
        send_end(&pair.sent),
        Some(CloseReason::SendDeadline { deadline })
    );
    let outcomes = outcomes(&pair.sent);
    assert_eq!(outcomes.len() as u64, count);
    assert!(outcomes.values().all(|o| o.len() == 1), "{outcomes:?}");
    assert!(outcomes.values().any(|o| o == &[false]), "{outcomes:?}");
    assert_balanced(pair.sender());
    pair.sent.clear();
    assert_eq!(
        pair.pool.free_count() as u64,
        count,
        "all payloads are back"
    );
}

// ---- the end of a connection --------------------------------------------------------------------

/// Sends 20 messages, ends the connection, and checks that all of them arrived and both sides say
/// Finished.
fn close_politely(domain: &Arc<Domain>, close: impl FnOnce(&mut Pair)) -> Pair {
    let mut pair = Pair::open(domain);
    for key in 0..20 {
        let payload = pair.buffer(&pattern(key, 1000));
        pair.send(payload, b"h", key);
    }
    close(&mut pair);
    pair.until("both ends", |pair| {
        send_end(&pair.sent).is_some() && !receive_ends(&pair.received).is_empty()
    });
    assert_eq!(send_end(&pair.sent), Some(CloseReason::Finished));
    assert_eq!(receive_ends(&pair.received)[0].1, CloseReason::Finished);
    assert!(matches!(
        pair.sent.last(),
        Some(SendEvent::Connection(ConnectionEvent::Disconnected(_)))
    ));
    let outcomes = outcomes(&pair.sent);
    assert_eq!(outcomes.len(), 20);
    assert!(outcomes.values().all(|o| o == &[true]), "{outcomes:?}");
    let arrived = messages(&mut pair.received);
    let expected: Vec<_> = (0..20).map(|k| got(b"h", &pattern(k, 1000))).collect();
    assert_eq!(arrived, expected);
    pair
}

#[test]
fn the_sender_closes_politely() {
    let _dog = Watchdog::new("sender closes");
    let Some(domain) = domain() else { return };
    let mut pair = close_politely(&domain, |pair| pair.sender().begin_close(after(SOON)));
    assert!(
        pair.received
            .iter()
            .any(|e| matches!(e, ReceiveEvent::Connection(_, ConnectionEvent::PeerClosing))),
        "{:?}",
        pair.received
    );
    assert_eq!(pair.receiver().connections(), 0);
    let payload = pair.buffer(b"late");
    let refused = pair.sender().send_data(payload, b"", 1).expect_err("over");
    assert_eq!(refused.kind, SendErrorKind::Closed(CloseReason::Finished));
}

#[test]
fn the_receiver_closes_politely() {
    let _dog = Watchdog::new("receiver closes");
    let Some(domain) = domain() else { return };
    let pair = close_politely(&domain, |pair| {
        let mut connection = None;
        pair.until("a message", |pair| {
            connection = pair.received.iter().find_map(|event| match event {
                ReceiveEvent::Message(message) => Some(message.connection()),
                _ => None,
            });
            connection.is_some()
        });
        let connection = connection.expect("found");
        assert!(pair.receiver().close_connection(connection, after(SOON)));
    });
    assert!(
        pair.sent
            .iter()
            .any(|e| matches!(e, SendEvent::Connection(ConnectionEvent::PeerClosing))),
        "{:?}",
        pair.sent
    );
}

#[test]
fn the_calls_that_wait_for_the_goodbye_return_everything() {
    let _dog = Watchdog::new("close calls");
    let Some(domain) = domain() else { return };
    let mut pair = Pair::open(&domain);
    for key in 0..10 {
        let payload = pair.buffer(b"tail");
        pair.send(payload, b"h", key);
    }
    let sender = pair.sender.take().expect("open");
    let closing = std::thread::spawn(move || sender.close(after(SOON)).expect("closes"));
    let mut events = std::mem::take(&mut pair.received);
    // Begun only when the sender's goodbye is here, or the sends in flight would race with ours.
    drive("the sender's goodbye", SOON, || {
        pair.receiver().poll(&mut events).expect("polls");
        events
            .iter()
            .any(|e| matches!(e, ReceiveEvent::Connection(_, ConnectionEvent::PeerClosing)))
    });
    let receiver = pair.receiver.take().expect("open");
    events.extend(receiver.close(after(SOON)).expect("closes"));
    let mut sent = std::mem::take(&mut pair.sent);
    sent.extend(closing.join().expect("no panic"));
    assert_eq!(messages(&mut events).len(), 10);
    assert_eq!(receive_ends(&events)[0].1, CloseReason::Finished);
    assert_eq!(send_end(&sent), Some(CloseReason::Finished));
    assert_eq!(outcomes(&sent).len(), 10);
}

#[test]
fn a_close_that_nobody_answers_ends_at_its_deadline() {
    let _dog = Watchdog::new("close deadline");
    let Some(domain) = domain() else { return };
    let mut pair = Pair::apart(&domain, common::sending(), small_receiver());
    let payload = pair.buffer(b"p");
    pair.send(payload, b"h", 1);
    let begin = Instant::now();
    let sender = pair.sender.take().expect("open");
    let events = sender.close(after(millis(200))).expect("closes");
    let took = begin.elapsed();
    assert!(took >= millis(190), "{took:?}");
    assert_eq!(send_end(&events), Some(CloseReason::ClosedByDeadline));
    assert_eq!(outcomes(&events)[&1].len(), 1);
}

#[test]
fn a_dropped_sender_gives_its_keys_to_on_abandoned() {
    let _dog = Watchdog::new("abandoned");
    let Some(domain) = domain() else { return };
    let (tell, heard) = std::sync::mpsc::channel();
    let config = common::sending().on_abandoned(move |key| tell.send(key).expect("heard"));
    let mut pair = Pair::with(&domain, config, small_receiver());
    for key in 0..5 {
        let payload = pair.buffer(b"p");
        pair.sender().send_data(payload, b"h", key).expect("room");
    }
    let before = fabricast::stats::process().abandoned;
    pair.sender = None;
    let mut keys: Vec<_> = heard.iter().collect();
    keys.sort_unstable();
    assert_eq!(keys, [0, 1, 2, 3, 4]);
    assert!(fabricast::stats::process().abandoned >= before + 5);
    assert_eq!(pair.pool.free_count(), 64, "the payloads are back");
    pair.until("the receiver hears of it", |pair| {
        !receive_ends(&pair.received).is_empty()
    });
}

// ---- refusals and failures to connect -----------------------------------------------------------

/// Polls both until the sender's connection is refused or lost.
fn end_of(pair: &mut Pair) -> CloseReason {
    pair.until("the end", |pair| send_end(&pair.sent).is_some());
    send_end(&pair.sent).expect("ended")
}

#[test]
fn one_connection_too_many_is_refused_with_the_limit() {
    let _dog = Watchdog::new("too many");
    let Some(domain) = domain() else { return };
    let config = || common::sending();
    let mut pair = Pair::with(
        &domain,
        config(),
        small_receiver().connection(|c| c.max_connections(1)),
    );
    let addr = pair.receiver().local_addr();
    let mut second = SendEndpointZeroCopy::connect(&domain, addr, config()).expect("begins");
    let mut events = Vec::new();
    pair.until("refused", |_| {
        second.poll(&mut events).expect("polls");
        send_end(&events).is_some()
    });
    let Some(CloseReason::Refused(refusal)) = send_end(&events) else {
        panic!("{events:?}");
    };
    assert_eq!(refusal.code(), RefusalCode::TOO_MANY_CONNECTIONS);
    assert_eq!(refusal.details(), [1, 0]);
    assert!(
        refusal.to_string().contains("already has 1 connections"),
        "{refusal}"
    );
    let payload = pair.buffer(b"first");
    assert_eq!(pair.exchange(payload, b"", 1), got(b"", b"first"));
    assert_eq!(pair.receiver().stats().refused, 1);
}

#[test]
fn another_header_mode_is_refused_and_both_are_named() {
    let _dog = Watchdog::new("header mode");
    let Some(domain) = domain() else { return };
    let receive = small_receiver().header_mode(HeaderMode::Fixed(16));
    let mut pair = Pair::connecting(&domain, common::sending(), receive);
    let CloseReason::Refused(refusal) = end_of(&mut pair) else {
        panic!("{:?}", pair.sent);
    };
    assert_eq!(refusal.code(), RefusalCode::HEADER_MODE);
    let text = refusal.to_string();
    assert!(
        text.contains("headers of 16 bytes") && text.contains("length in front"),
        "{text}"
    );
}

/// The request that a pair with [`AcceptPolicy::Ask`] leads to.
fn request_of(pair: &mut Pair) -> ConnectionRequest {
    let mut found = None;
    pair.until("a request", |pair| {
        found = pair.received.iter().find_map(|event| match event {
            ReceiveEvent::Request(request) => Some(*request),
            _ => None,
        });
        found.is_some()
    });
    found.expect("found")
}

#[test]
fn the_application_accepts_refuses_or_lets_a_request_pass() {
    let _dog = Watchdog::new("ask");
    let Some(domain) = domain() else { return };
    let ask = || small_receiver().connection(|c| c.accept(AcceptPolicy::Ask));

    let mut pair = Pair::connecting(&domain, common::sending(), ask());
    let request = request_of(&mut pair);
    assert!(request.peer.is_some(), "{request:?}");
    let Pair {
        receiver, received, ..
    } = &mut pair;
    assert!(receiver.as_mut().expect("open").accept(request, received));
    pair.until("connected", |pair| pair.sender().is_connected());
    assert!(!pair.receiver().refuse(request, [0, 0]), "answered already");

    let mut pair = Pair::connecting(&domain, common::sending(), ask());
    let request = request_of(&mut pair);
    assert!(pair.receiver().refuse(request, [7, 9]));
    let CloseReason::Refused(refusal) = end_of(&mut pair) else {
        panic!("{:?}", pair.sent);
    };
    assert_eq!(
        (refusal.code(), refusal.details()),
        (RefusalCode::BY_APPLICATION, [7, 9])
    );

    let begin = Instant::now();
    // Where the machine stands still for as long as that, the request itself comes too late.
    let (mut pair, request) = common::undisturbed("a request in time", || {
        let short = ask().connection(|c| c.connect_timeout(millis(300)));
        let mut pair = Pair::connecting(&domain, common::sending(), short);
        let is_request = |event: &ReceiveEvent| matches!(event, ReceiveEvent::Request(_));
        pair.until("a request, or the end", |pair| {
            pair.received.iter().any(is_request) || send_end(&pair.sent).is_some()
        });
        let has_come = pair.received.iter().any(is_request);
        has_come.then(|| {
            let request = request_of(&mut pair);
            (pair, request)
        })
    });
    let reason = end_of(&mut pair);
    assert!(matches!(reason, CloseReason::Refused(_)), "{reason}");
    let took = begin.elapsed();
    assert!(took >= millis(290), "{took:?}");
    let Pair {
        receiver, received, ..
    } = &mut pair;
    let gone = !receiver.as_mut().expect("open").accept(request, received);
    assert!(gone, "the request is over");
}

/// Polls a lone sender until its connection ends, which must take no longer than this.
fn lone_end(sender: &mut SendEndpointZeroCopy, limit: Duration) -> CloseReason {
    let mut events = Vec::new();
    drive("the end", limit, || {
        sender.poll(&mut events).expect("polls");
        send_end(&events).is_some()
    });
    let reason = send_end(&events).expect("ended");
    assert_eq!(sender.close_reason(), Some(reason));
    reason
}

#[test]
fn a_silent_server_runs_into_the_connect_timeout() {
    let _dog = Watchdog::new("silent server");
    let Some(domain) = domain() else { return };
    if !domain.has_sockets() {
        return;
    }
    let server = std::net::TcpListener::bind((node(), 0)).expect("binds");
    let addr = PeerAddr::from(server.local_addr().expect("bound"));
    let config = common::sending().connection(|c| c.connect_timeout(millis(200)));
    let begin = Instant::now();
    let mut sender = SendEndpointZeroCopy::connect(&domain, addr, config).expect("begins");
    let reason = lone_end(&mut sender, SOON);
    assert_eq!(reason, CloseReason::ConnectTimedOut);
    assert!(begin.elapsed() >= millis(190));

    let config = common::sending().connection(|c| c.connect_timeout(millis(200)));
    let mut sender = SendEndpointZeroCopy::connect(&domain, addr, config).expect("begins");
    let error = sender.wait_connected().expect_err("silent");
    let reason = CloseReason::ConnectTimedOut;
    assert!(matches!(&error, Error::NotConnected { reason: why, .. } if *why == reason));
}

#[test]
fn endpoints_are_in_the_order_that_they_were_opened_in() {
    let Some(domain) = domain() else { return };
    let open = || {
        let config = common::sending();
        SendEndpointZeroCopy::connect(&domain, nobodys_port(), config).expect("begins")
    };
    let (first, second, third) = (open(), open(), open());
    let ids = [first.id(), second.id(), third.id()];
    assert!(first < second && third > second && first != third);
    assert!(second.cmp(&second).is_eq());
    let mut all = [third, first, second];
    all.sort();
    assert_eq!(all.map(|endpoint| endpoint.id()), ids);
}

#[test]
fn nobody_listening_is_told_at_once() {
    let _dog = Watchdog::new("nobody");
    let Some(domain) = domain() else { return };
    let config = common::sending();
    let mut sender =
        SendEndpointZeroCopy::connect(&domain, nobodys_port(), config).expect("begins");
    let reason = lone_end(&mut sender, SOON);
    let CloseReason::ConnectFailed(errno) = reason else {
        panic!("{reason}");
    };
    assert_eq!(errno.get(), libc::ECONNREFUSED, "{reason}");
}

#[test]
fn an_address_in_use_or_not_of_this_machine_is_an_error_that_names_it() {
    let _dog = Watchdog::new("in use");
    let Some(domain) = domain() else { return };
    let first = ReceiveEndpoint::listen(&domain, any_port(), small_receiver()).expect("listens");
    let foreign: PeerAddr = "192.0.2.1:0".parse().expect("an address");
    for addr in [first.local_addr(), foreign] {
        let error = ReceiveEndpoint::listen(&domain, addr, small_receiver()).expect_err("taken");
        let text = error.to_string();
        assert!(matches!(error, Error::Address { .. }), "{text}");
        assert!(text.contains(&addr.to_string()), "{text}");
    }
}

#[test]
fn a_port_is_free_again_after_the_endpoint() {
    let _dog = Watchdog::new("port");
    let Some(domain) = domain() else { return };
    let mut pair = Pair::open(&domain);
    let addr = pair.receiver().local_addr();
    drop(pair);
    drive("the port is free", SOON, || {
        match ReceiveEndpoint::listen(&domain, addr, small_receiver()) {
            Ok(endpoint) => {
                assert_eq!(endpoint.local_addr(), addr);
                true
            }
            Err(error) => {
                println!("{error}");
                std::thread::sleep(millis(100));
                false
            }
        }
    });
}

// ---- threads and sharing ------------------------------------------------------------------------

#[test]
fn messages_are_held_and_dropped_by_other_threads() {
    let _dog = Watchdog::new("held messages");
    let Some(domain) = domain() else { return };
    let receive = ReceiveConfig::default()
        .incoming(|incoming| incoming.slots(12).credits(8))
        .connection(|c| c.max_connections(1));
    let mut pair = Pair::with(&domain, common::sending(), receive);
    let (give, take) = std::sync::mpsc::channel::<Vec<Message>>();
    let dropper = std::thread::spawn(move || {
        let mut dropped = 0;
        for held in take {
            std::thread::sleep(millis(5));
            dropped += held.len();
        }
        dropped
    });
    let (count, mut posted, mut held, mut arrived) = (100_u64, 0, Vec::new(), 0_u64);
    let mut stalls = 0;
    drive("100 messages", SOON, || {
        if posted < count {
            let payload = pair.buffer(&posted.to_le_bytes());
            match pair.sender().send_data(payload, b"", posted) {
                Ok(()) => posted += 1,
                Err(refused) => {
                    assert!(refused.is_would_block(), "{refused}");
                    // Everything that was granted is held: only other threads get it going again.
                    if held.len() >= 8 {
                        stalls += 1;
                        give.send(std::mem::take(&mut held)).expect("taken");
                    }
                }
            }
        }
        pair.step();
        for event in pair.received.drain(..) {
            if let ReceiveEvent::Message(message) = event {
                assert_eq!(message.payload(), arrived.to_le_bytes());
                arrived += 1;
                held.push(message);
            }
        }
        pair.sent.clear();
        if arrived == count {
            give.send(std::mem::take(&mut held)).expect("taken");
        }
        arrived == count
    });
    drop(give);
    assert_eq!(dropper.join().expect("no panic") as u64, count);
    assert!(stalls >= 5, "stalled {stalls} times");
    let slots = pair.receiver().pool().slots();
    pair.until("every slot is posted again", |pair| {
        pair.receiver().pool().free_count() + 10 == slots
    });
}

#[test]
fn endpoints_on_several_threads_share_headers_and_pool() {
    let _dog = Watchdog::new("shared");
    let Some(domain) = domain() else { return };
    let headers = HeaderSlotManager::new(HeaderSlotConfig {
        slots: 4,
        slot_size: 32,
    })
    .expect("memory");
    let pool = pool(&domain, 6, 4096);
    let mut receiver =
        ReceiveEndpoint::listen(&domain, any_port(), small_receiver()).expect("listens");
    let addr = receiver.local_addr();
    let (threads, count) = (3_u64, 300_u64);
    let workers: Vec<_> = (0..threads)
        .map(|worker| {
            let (domain, pool, headers) = (Arc::clone(&domain), pool.clone(), headers.clone());
            std::thread::spawn(move || {
                let config = common::sending().outgoing(|out| out.headers(&headers));
                let mut sender =
                    SendEndpointZeroCopy::connect(&domain, addr, config).expect("begins");
                sender.wait_connected().expect("connects");
                let mut events = Vec::new();
                for key in 0..count {
                    let mut buffer = pool.acquire(after(SOON)).expect("others give back");
                    buffer[..8].copy_from_slice(&key.to_le_bytes());
                    let mut payload = Some(Payload::from(buffer.freeze(8)));
                    drive("a send", SOON, || {
                        let p = payload.take().expect("given back");
                        let sent = sender.send_data(p, &worker.to_le_bytes(), key);
                        payload = sent.err().map(|refused| {
                            assert!(refused.is_would_block(), "{refused}");
                            refused.given
                        });
                        sender.poll(&mut events).expect("polls");
                        payload.is_none()
                    });
                    // The others wait for these buffers.
                    drive("the completion", SOON, || {
                        sender.poll(&mut events).expect("polls");
                        let done = outcomes(&events).contains_key(&key);
                        events.clear();
                        done || sender.pending().is_empty()
                    });
                }
                let ends = sender.close(after(SOON)).expect("closes");
                send_end(&ends)
            })
        })
        .collect();
    let mut next = vec![0_u64; threads as usize];
    let mut events = Vec::new();
    let mut ended = 0;
    drive("all messages", Duration::from_secs(30), || {
        receiver.poll(&mut events).expect("polls");
        for event in events.drain(..) {
            match event {
                ReceiveEvent::Message(m) => {
                    let worker = u64::from_le_bytes(m.header().try_into().expect("8 bytes"));
                    let number = u64::from_le_bytes(m.payload().try_into().expect("8 bytes"));
                    assert_eq!(number, next[worker as usize], "in order, without a gap");
                    next[worker as usize] += 1;
                }
                ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                    assert_eq!(reason, CloseReason::Finished);
                    ended += 1;
                }
                _ => {}
            }
        }
        ended == threads
    });
    assert_eq!(next, vec![count; threads as usize]);
    for worker in workers {
        let end = worker.join().expect("no panic");
        assert_eq!(end, Some(CloseReason::Finished));
    }
    assert_eq!((headers.free_count(), pool.free_count()), (4, 6));
}

// ---- the shortest way in: a data region and header slots that endpoints register themselves -----

#[test]
fn endpoints_register_the_data_region_of_zero_copy_buffers() {
    let _dog = Watchdog::new("zero-copy buffers");
    let Some(domain) = domain() else { return };
    let pool = fabricast::buffer::SharedBufferManager::allocate(4, 4096).expect("memory");
    let data = Arc::clone(pool.region());
    let buffers = ZeroCopyBufferManager::new(Arc::clone(&data), HeaderSlotConfig::default())
        .expect("header slots");
    assert_eq!(data.registration_count(), 0, "nobody has registered it");
    let config = || common::sending().outgoing(|out| out.headers(&buffers));
    let mut pair = Pair::with(&domain, config(), small_receiver());
    assert_eq!(data.registration_count(), 1);
    let first = pair.exchange(buffer(&pool, b"first"), b"header", 1);
    assert_eq!(first, got(b"header", b"first"));
    // Another endpoint of the domain has the same two; when the first one goes, the registration
    // stays.
    let mut other = Pair::with(&domain, config(), small_receiver());
    assert_eq!(data.registration_count(), 1, "registered once");
    assert_eq!(
        buffers.region().purpose(),
        Some(fabricast::memory::Purpose::Buffers)
    );
    drop(pair);
    let second = other.exchange(buffer(&pool, b"second"), b"h", 2);
    assert_eq!(second, got(b"h", b"second"));
    assert_eq!(buffers.free_count(), 256, "every header slot came back");
    drop(other);
    assert_eq!(data.registration_count(), 0, "nobody needs it any more");
    // What the caller has registered is the caller's, whatever endpoints come and go.
    data.register(&domain).expect("registered");
    drop(Pair::with(&domain, config(), small_receiver()));
    assert_eq!(data.registration_count(), 1);
    // And ends when the caller says so, for endpoints, too: what is sent then is refused in words.
    let mut pair = Pair::with(&domain, config(), small_receiver());
    data.deregister(&domain);
    let refused = pair.sender().send_data(buffer(&pool, b"late"), b"", 3);
    let refused = refused.expect_err("not registered any more");
    assert_eq!(refused.kind, SendErrorKind::NotRegistered { segment: 0 });
    let told = refused.to_string();
    for way in ["Region::register", "OutgoingSettings::headers"] {
        assert!(told.contains(way), "{told}");
    }
}

// ---- memory of somebody else --------------------------------------------------------------------

/// What a card's driver gives: memory that this program has no reference to, and that says when it
/// is unmapped.
struct Mapped {
    _bytes: Box<[u8]>,
    unmapped: Arc<AtomicBool>,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.unmapped.store(true, Ordering::SeqCst);
    }
}

/// A region over such memory, and the flag.
fn dma_memory(len: usize) -> (Arc<Region>, Arc<AtomicBool>) {
    let mut bytes = vec![0; len].into_boxed_slice();
    let base = NonNull::new(bytes.as_mut_ptr()).expect("a box is not null");
    let unmapped = Arc::new(AtomicBool::new(false));
    let keep = Mapped {
        _bytes: bytes,
        unmapped: Arc::clone(&unmapped),
    };
    // SAFETY: `keep` owns the memory and is dropped with the region; nobody looks at the bytes but
    // through the region's address.
    let region = unsafe { Region::external(base, len, Box::new(keep)) }.expect("a region");
    (region, unmapped)
}

/// What the card does: writes where it was told to.
fn dma_write(to: *mut u8, bytes: &[u8]) {
    // SAFETY: callers pass an address with as many bytes of a live region behind it, which nobody
    // reads or writes meanwhile.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}

#[test]
fn memory_of_somebody_else_arrives_by_slices_and_by_a_ring() {
    let _dog = Watchdog::new("external memory");
    let Some(domain) = domain() else { return };
    for mode in [HeaderMode::Prefixed, HeaderMode::Raw, HeaderMode::Fixed(4)] {
        let expected = |payload: &[u8]| match mode {
            HeaderMode::Raw => got(b"", &[b"head", payload].concat()),
            _ => got(b"head", payload),
        };
        let (region, unmapped) = dma_memory(8192);
        let headers = HeaderSlotConfig::default();
        let buffers =
            ZeroCopyBufferManager::new(Arc::clone(&region), headers).expect("header slots");
        let config = common::sending().outgoing(|out| out.header_mode(mode).headers(&buffers));
        drop(buffers);
        let mut pair = Pair::with(&domain, config, small_receiver());
        // All of it, and parts of it.
        let whole = pattern(1, 8192);
        dma_write(region.as_ptr(), &whole);
        let slice = region.slice(0..8192).expect("inside");
        assert_eq!(pair.exchange(slice.clone(), b"head", 1), expected(&whole));
        let parts: Payload = [
            slice.slice(8000..8192).expect("inside"),
            slice.slice(5..105).expect("inside"),
        ]
        .into_iter()
        .collect();
        let both = [&whole[8000..], &whole[5..105]].concat();
        assert_eq!(pair.exchange(parts, b"head", 2), expected(&both));
        // A ring that the card fills, by addresses: this side has no `&mut [u8]` of it. Some
        // fragments wrap around the end.
        let mut ring = RingRegion::new(Arc::clone(&region), RingConfig::default()).expect("a ring");
        let mut wrapped = 0;
        for i in 0..30_u64 {
            let bytes = pattern(i, 700);
            let mut reservation = ring.reserve(bytes.len()).expect("the last one came back");
            assert!(reservation.segments_mut().is_none(), "others write there");
            let (first, second) = reservation.ranges();
            let (front, back) = bytes.split_at(first.len());
            dma_write(region.as_ptr().wrapping_add(first.start), front);
            dma_write(region.as_ptr().wrapping_add(second.start), back);
            wrapped += u32::from(!back.is_empty());
            let fragment = reservation.commit(bytes.len());
            assert_eq!(pair.exchange(fragment, b"head", i), expected(&bytes));
        }
        assert_eq!((ring.tail(), wrapped), (30 * 700, 2));
        drop((ring, slice, region));
        assert!(!unmapped.load(Ordering::SeqCst), "the endpoint has it yet");
        drop(pair);
        assert!(unmapped.load(Ordering::SeqCst), "{mode:?}");
    }
}

// ---- what an endpoint tells of itself -----------------------------------------------------------

#[test]
fn the_low_water_mark_of_header_slots_is_the_least_since_it_was_asked_for() {
    let _dog = Watchdog::new("low water");
    let Some(domain) = domain() else { return };
    // Each message takes a slot.
    let alone = common::sending().outgoing(|out| out.packing(Packing::Off));
    let mut pair = Pair::with(&domain, alone, small_receiver());
    assert_eq!(pair.sender().headers().take_low_water(), 256);
    for key in 0..5 {
        let payload = pair.buffer(b"x");
        pair.sender().send_data(payload, b"h", key).expect("sent");
    }
    pair.until("five outcomes", |pair| outcomes(&pair.sent).len() == 5);
    let headers = pair.sender().headers();
    assert_eq!((headers.low_water(), headers.free_count()), (251, 256));
    assert_eq!(headers.take_low_water(), 251);
    assert_eq!((headers.low_water(), headers.take_low_water()), (256, 256));
}

#[test]
fn the_raw_endpoint_is_the_one_that_libfabric_knows() {
    let _dog = Watchdog::new("raw");
    let Some(domain) = domain() else { return };
    let mut pair = Pair::open(&domain);
    // SAFETY: nothing is done with it but to ask for its address, before the sender is used again.
    let ep = unsafe { pair.sender().as_raw() }.expect("it is open");
    assert!(!ep.is_null());
    // SAFETY: a plain struct of integers.
    let mut addr: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&addr);
    // SAFETY: the endpoint is open, and `len` says how much room there is.
    let rc = unsafe { libfabric_sys::fi_getname(ep.cast(), (&raw mut addr).cast(), &raw mut len) };
    assert_eq!((rc, len), (0, size_of_val(&addr)));
    let ip = std::net::Ipv4Addr::from(u32::from_be(addr.sin_addr.s_addr));
    assert_eq!(ip.to_string(), node());
    // SAFETY: it is only compared.
    let again = unsafe { pair.sender().as_raw() };
    assert_eq!(again, Some(ep), "one connection, one endpoint");
    pair.receiver = None;
    pair.until("the end", |pair| send_end(&pair.sent).is_some());
    // SAFETY: it is only compared.
    assert_eq!(unsafe { pair.sender().as_raw() }, None, "closed");
}

#[test]
fn later_endpoints_have_greater_ids() {
    let _dog = Watchdog::new("ids");
    let Some(domain) = domain() else { return };
    let peer = any_port();
    let ids: Vec<_> = (0..4)
        .map(|_| SendEndpointZeroCopy::connect(&domain, peer, common::sending()))
        .map(|endpoint| endpoint.expect("begins").id())
        .collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    assert!(ids.iter().all(|id| id.get() != 0));
}

// ---- loops --------------------------------------------------------------------------------------

/// 200 messages through an event loop that drives both sides, one at a time.
fn through_a_loop(domain: &Arc<Domain>, mode: WaitMode) {
    // Without heartbeats: nothing but the messages wakes the loop.
    let send = common::sending()
        .connection(|c| c.unresponsive_after(None).lost_after(None))
        .outgoing(|out| out.deadline(None));
    let receive = small_receiver().connection(|c| c.unresponsive_after(None).lost_after(None));
    let mut pair = Pair::connecting(domain, send, receive);
    let mut event_loop = EventLoop::with(LoopConfig::default().mode(mode)).expect("a loop");
    let sender = event_loop.add_endpoint(pair.sender()).expect("added");
    let receiver = event_loop.add_endpoint(pair.receiver()).expect("added");
    let begin = Instant::now();
    let (count, mut posted, mut arrived) = (200_u64, 0_u64, 0_u64);
    let (limit, mut said) = (patient(SOON), Vec::new());
    while arrived < count {
        // A round that a lost wake-up left asleep takes all of that by itself.
        assert!(
            begin.elapsed() < limit,
            "{arrived} of {count} in {mode:?}: {posted} posted, {said:?}"
        );
        // Nothing would ever wake the loop again.
        assert_eq!(send_end(&said), None, "{arrived} of {count} in {mode:?}");
        event_loop
            .run_once(Some(limit), |event_loop, event| {
                match event {
                    LoopEvent::Endpoint(token) if token == sender => {
                        said.retain(|event| !matches!(event, SendEvent::Completed { .. }));
                        let n = pair.sender().poll(&mut said).expect("polls");
                        if n > 0 {
                            event_loop.mark_busy();
                        }
                    }
                    LoopEvent::Endpoint(token) if token == receiver => {
                        let mut events = Vec::new();
                        let n = pair.receiver().poll(&mut events).expect("polls");
                        arrived += messages(&mut events).len() as u64;
                        if n > 0 {
                            event_loop.mark_busy();
                        }
                    }
                    other => panic!("{other:?}"),
                }
                // One at a time, so that each has to wake the loop.
                if posted == arrived && posted < count && pair.sender().is_connected() {
                    let payload = pair.buffer(b"ping");
                    if pair.sender().send_data(payload, b"h", posted).is_ok() {
                        posted += 1;
                    }
                }
            })
            .expect("runs");
    }
}

#[test]
fn an_event_loop_drives_a_pair_in_every_mode() {
    let _dog = Watchdog::new("event loop");
    let Some(domain) = domain() else { return };
    let window = millis(1);
    for mode in [
        WaitMode::Block,
        WaitMode::Spin,
        WaitMode::Adaptive { window },
    ] {
        through_a_loop(&domain, mode);
    }
}

#[test]
fn a_foreign_loop_drives_a_pair_with_prepare_wait() {
    let _dog = Watchdog::new("foreign loop");
    let Some(domain) = domain() else { return };
    let mut pair = Pair::connecting(&domain, common::sending(), small_receiver());
    let handles = [pair.sender().wait_handle(), pair.receiver().wait_handle()];
    // And the bell of a thread that looks for peers, where there is one.
    let each = 3 + usize::from(domain.fabric().provider().resolves_in_open);
    let begin = Instant::now();
    let (count, mut posted, mut arrived, mut timeouts) = (100_u64, 0_u64, 0_u64, 0_u32);
    while arrived < count {
        assert!(begin.elapsed() < SOON, "{arrived} of {count}");
        pair.step();
        pair.sent.clear();
        arrived += messages(&mut pair.received).len() as u64;
        if posted == arrived && posted < count && pair.sender().is_connected() {
            let payload = pair.buffer(b"ping");
            match pair.sender().send_data(payload, b"h", posted) {
                Ok(()) => posted += 1,
                // The message was there before the grant for the next, which is a wake-up, too.
                Err(refused) => assert!(refused.is_would_block(), "{refused}"),
            }
        }
        let may_sleep = handles
            .iter()
            .all(|handle| handle.prepare_wait().expect("asks"));
        if may_sleep && arrived < count {
            let fds: Vec<_> = handles.iter().flat_map(|handle| handle.fds()).collect();
            assert_eq!(fds.len(), 2 * each, "two queues and a waker each");
            // Nothing else wakes it: both ends are of this thread.
            timeouts += u32::from(!sleep_on(&fds, SOON));
        }
    }
    assert_eq!(timeouts, 0, "a wake-up was lost");
    drop(pair);
    assert!(handles.iter().all(|h| !h.is_alive() && h.fds().is_empty()));
}

/// `poll(2)`, as a foreign loop would. False: the time was over.
fn sleep_on(fds: &[i32], time: Duration) -> bool {
    let mut polled: Vec<_> = fds
        .iter()
        .map(|&fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    // SAFETY: the array has as many entries as it is said to have.
    let ready = unsafe {
        libc::poll(
            polled.as_mut_ptr(),
            polled.len() as libc::nfds_t,
            time.as_millis() as i32,
        )
    };
    ready > 0
}

// ---- reports, registrations, threads ------------------------------------------------------------

#[test]
fn the_report_says_what_was_got() {
    let Some(domain) = domain() else { return };
    let report = domain.report();
    assert_eq!(report.provider, domain.fabric().provider().name);
    assert!(report.iov_limit >= 2 && report.max_message >= 1 << 20);
    let text = report.to_string();
    for part in [&*report.provider, &report.library, "shape Iov", "Manual"] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

/// The provider goes on using the memory of a peer in its own process when that is closed: a drop
/// in the wrong order would crash.
#[test]
fn peers_over_shm_are_other_processes() {
    let open = || Fabric::builder().provider("shm").open()?.open_domain();
    let (near, far) = match (open(), open()) {
        (Ok(near), Ok(far)) => (near, far),
        (Err(error), _) | (_, Err(error)) => return println!("SKIPPED: {error}"),
    };
    let at = "any".parse().expect("an address");
    let listener = ReceiveEndpoint::listen(&far, at, small_receiver()).expect("listens");
    let to = listener.local_addr();
    let refused = SendEndpointZeroCopy::connect(&near, to, common::sending());
    let error = refused.expect_err("the same process");
    assert!(matches!(error, Error::Address { .. }), "{error}");
    assert!(error.to_string().contains("other processes"), "{error}");
}

#[test]
fn a_provider_that_cannot_serve_is_diagnosed() {
    if domain().is_none() {
        return;
    }
    let error = |provider: &str, interface: Option<&str>| {
        let mut builder = Fabric::builder().provider(provider);
        if let Some(interface) = interface {
            builder = builder.interface(interface);
        }
        builder.open().expect_err("not possible")
    };
    let shm = Fabric::builder()
        .provider("shm")
        .endpoint_kind(EndpointKind::Msg);
    let shm = shm.open().expect_err("it has none");
    assert!(matches!(shm, Error::Unsupported { .. }), "{shm}");
    assert!(shm.to_string().contains("shm") && shm.to_string().contains("FI_EP_MSG"));
    if std::env::var_os("FI_OFI_RXM_SAR_LIMIT").is_none() {
        let rxm = error("tcp;ofi_rxm", None);
        assert!(matches!(rxm, Error::Unsupported { .. }), "{rxm}");
        assert!(rxm.to_string().contains("FI_OFI_RXM_SAR_LIMIT=0"), "{rxm}");
    }

    let nonsense = error("nonsense", None);
    let text = nonsense.to_string();
    let Error::NoProvider(diagnosis) = nonsense else {
        panic!("{text}");
    };
    assert!(text.contains("nonsense"), "{text}");
    assert_eq!(diagnosis.verdicts[0].provider, "nonsense");
    assert!(diagnosis.present.iter().any(|name| name == "tcp"), "{text}");

    let interface = error("tcp", Some("nosuch0")).to_string();
    assert!(
        interface.contains("tcp: no interface nosuch0"),
        "{interface}"
    );
    let lo = Fabric::builder().provider("tcp").interface("lo").open();
    assert_eq!(lo.expect("every machine has it").report().interface, "lo");
}

/// The build is the test.
#[test]
fn every_endpoint_goes_to_any_thread() {
    fn is_send<T: Send>() {}
    is_send::<SendEndpointZeroCopy>();
    is_send::<fabricast::SendEndpointBuffered>();
    is_send::<ReceiveEndpoint>();
    is_send::<fabricast::ConnectionlessEndpoint>();
    is_send::<fabricast::PublishEndpoint>();
    is_send::<fabricast::SubscribeEndpoint>();
    is_send::<Message>();
    is_send::<fabricast::endpoint::DetachedMessage>();
}

#[test]
fn settings_out_of_range_are_named() {
    let Some(domain) = domain() else { return };
    let addr = "127.0.0.1:1".parse().expect("an address");
    let send = common::sending().outgoing(|out| out.depth(0));
    let error = SendEndpointZeroCopy::connect(&domain, addr, send).expect_err("depth");
    assert!(
        matches!(error, Error::Config { field: "depth", .. }),
        "{error}"
    );
    let receive = ReceiveConfig::default().incoming(|incoming| incoming.slots(1));
    let error = ReceiveEndpoint::listen(&domain, any_port(), receive).expect_err("slots");
    assert!(
        matches!(error, Error::Config { field: "slots", .. }),
        "{error}"
    );
}

#[test]
fn a_region_is_deregistered_while_sends_are_in_flight() {
    let _dog = Watchdog::new("deregister");
    let Some(domain) = domain() else { return };
    // Each of them is to be posted from the region: frames would have a registration of their own.
    let alone = common::sending().outgoing(|out| out.packing(Packing::Off));
    let mut pair = Pair::with(&domain, alone, small_receiver());
    let pool = pool(&domain, 4, 64);
    let before = domain.registrations();
    for key in 0..4 {
        let payload = buffer(&pool, b"in flight");
        pair.sender().send_data(payload, b"h", key).expect("room");
    }
    pool.region().deregister(&domain);
    assert_eq!(domain.registrations(), before, "four operations use it");
    pair.until("all of them", |pair| {
        messages(&mut pair.received.split_off(0));
        outcomes(&pair.sent).len() == 4
    });
    assert!(outcomes(&pair.sent).values().all(|o| o == &[true]));
    assert_eq!(domain.registrations(), before - 1);
    pair.sent.clear();

    let payload = buffer(&pool, b"again");
    let refused = pair.sender().send_data(payload, b"h", 9).expect_err("gone");
    assert_eq!(refused.kind, SendErrorKind::NotRegistered { segment: 0 });
    pool.region().register(&domain).expect("registered again");
    assert_eq!(pair.exchange(refused.given, b"h", 9), got(b"h", b"again"));
}

#[test]
fn a_domain_holds_no_more_registrations_than_its_limit() {
    let Some(domain) = domain() else { return };
    let provider = domain.fabric().provider().name;
    let builder = Fabric::builder().provider(provider).node(node());
    let fabric = builder.max_registrations(3).open().expect("opens");
    let domain = fabric.open_domain().expect("a domain");
    let regions: Vec<_> = (0..4)
        .map(|_| Region::host(4096).build().expect("memory"))
        .collect();
    for region in &regions[..3] {
        region.register(&domain).expect("within the limit");
    }
    let error = regions[3].register(&domain).expect_err("above it");
    assert_eq!(error, RegisterError::DomainLimit { limit: 3 });
    regions[0].deregister(&domain);
    regions[3].register(&domain).expect("room again");
    assert_eq!(domain.registrations(), 3);
    drop(regions);
    assert_eq!(domain.registrations(), 0, "regions take theirs with them");
}

#[test]
fn a_payload_may_be_sent_to_several_peers_at_once() {
    let _dog = Watchdog::new("fan-out");
    let Some(domain) = domain() else { return };
    let mut pairs = [
        Pair::open(&domain),
        Pair::open(&domain),
        Pair::open(&domain),
    ];
    let bytes = pattern(3, 5000);
    let pool = pool(&domain, 1, 8192);
    let shared = buffer(&pool, &bytes);
    for (key, pair) in pairs.iter_mut().enumerate() {
        let segments: Vec<Segment> = vec![shared.clone().into()];
        let message = pair.exchange(Payload::from(segments), b"all", key as u64);
        assert_eq!(message, got(b"all", &bytes));
    }
    drop(shared);
    assert_eq!(pool.free_count(), 1);
}

/// libfabric's cache of registrations, where it is on, patches libc's `munmap` when a process's
/// first domain is opened, and takes the patch out with the last one: a thread that is in that
/// function then comes back into the middle of other instructions.
#[test]
fn domains_come_and_go_while_other_threads_unmap_memory() {
    const NAME: &str = "domains_come_and_go_while_other_threads_unmap_memory";
    const PAGE: usize = 4096;
    let _dog = Watchdog::new(NAME);
    // In a process of its own: other tests' domains would keep the patch in.
    if child::role().is_none() {
        if domain().is_some() {
            let mut child = Child::start(NAME, "churn", "");
            child.expect("unmapped", SOON);
            child.finish(SOON);
        }
        return;
    }
    let (over, unmapped) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let (rights, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANON);
                    // SAFETY: a new mapping at an address of the kernel's choice.
                    let at =
                        unsafe { libc::mmap(std::ptr::null_mut(), PAGE, rights, flags, -1, 0) };
                    assert_ne!(at, libc::MAP_FAILED);
                    // SAFETY: it was just mapped, and nobody else knows of it.
                    assert_eq!(unsafe { libc::munmap(at, PAGE) }, 0);
                    unmapped.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..rounds(8, 500) {
            let domain = domain().expect("the parent has one");
            let pool = pool(&domain, 4, 4096);
            drop((pool, domain));
        }
        over.store(true, Ordering::Relaxed);
    });
    child::tell(format!("unmapped {}", unmapped.load(Ordering::Relaxed)));
}

#[test]
fn no_thread_exists_that_the_user_did_not_start() {
    const NAME: &str = "no_thread_exists_that_the_user_did_not_start";
    let _dog = Watchdog::new(NAME);
    // In a process of its own: the other tests of this one have threads.
    if child::role().is_none() {
        if domain().is_some() {
            let mut child = Child::start(NAME, "count", "");
            child.expect("counted", SOON);
            child.finish(SOON);
        }
        return;
    }
    let before = common::thread_count();
    let domain = domain().expect("the parent opened one");
    let mut pair = Pair::open(&domain);
    for key in 0..200 {
        let payload = pair.buffer(&pattern(key, 3000));
        pair.exchange(payload, b"h", key);
    }
    assert_eq!(common::thread_count(), before, "with open endpoints");
    pair.sender().begin_close(after(SOON));
    pair.until("closed", |pair| !receive_ends(&pair.received).is_empty());
    drop((pair, domain));
    assert_eq!(common::thread_count(), before, "after everything");
    child::tell("counted");
}
