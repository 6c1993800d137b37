//! Every shape on every kind of endpoint that `tcp` has here: what arrives, what is refused, and
//! that each send has one outcome.

use std::sync::Arc;

use fabricast::buffer::{Payload, SharedBufferManager};
use fabricast::coalesce::Format;
use fabricast::endpoint::{
    Blocked, BufferedConfig, CloseReason, HeaderMode, Inject, Level, Packing, ReceiveConfig,
    SendConfig, SendErrorKind,
};
use fabricast::error::Error;
use fabricast::fabric::Shape;
use fabricast::memory::Region;
use fabricast::{
    ConnectionEvent, Domain, PeerAddr, ReceiveEndpoint, ReceiveEvent, SendEndpointBuffered,
    SendEndpointZeroCopy, SendEvent,
};

use crate::common;
use crate::common::child::{self, Child};
use crate::common::{
    Got, Pair, SOON, Watchdog, after, any_port, assert_balanced, buffer, domain_of, drive, got,
    outcomes, pattern, provider::kinds, receive_ends, roomy_pool, send_end, small_receiver,
};

const SHAPES: [Shape; 3] = [Shape::Iov, Shape::Headroom, Shape::TwoMessages];
const HEADROOM: usize = 66;

/// Over FI_EP_MSG, and over FI_EP_RDM, as far as they are here.
fn domains() -> Vec<(String, Arc<Domain>)> {
    let opened = kinds().filter_map(domain_of);
    opened
        .map(|domain| (domain.report().provider, domain))
        .collect()
}

fn roomy(domain: &Arc<Domain>) -> SharedBufferManager {
    roomy_pool(domain, 16, 64 * 1024, HEADROOM)
}

fn shaped(shape: Shape) -> SendConfig {
    common::sending().outgoing(|out| out.shape(Some(shape)))
}

/// What the receiver hands out of such a message.
fn expected(mode: HeaderMode, shape: Shape, header: &[u8], payload: &[u8]) -> Got {
    let alone = shape == Shape::TwoMessages && !header.is_empty() && !payload.is_empty();
    match mode {
        HeaderMode::Raw if !alone => got(&[], &[header, payload].concat()),
        _ => got(header, payload),
    }
}

#[test]
fn messages_arrive_as_they_were_sent_in_every_shape_and_header_mode() {
    let _dog = Watchdog::new("shapes: content");
    for (provider, domain) in domains() {
        let pool = roomy(&domain);
        for shape in SHAPES {
            for mode in [HeaderMode::Prefixed, HeaderMode::Fixed(16), HeaderMode::Raw] {
                let config = shaped(shape).outgoing(|out| out.header_mode(mode));
                let mut pair = Pair::with(&domain, config, small_receiver());
                let info = pair.sender().connection_info().expect("it stands");
                assert_eq!((info.shape, info.credits), (shape, 16), "{provider}");
                let headers: &[usize] = if mode == HeaderMode::Fixed(16) {
                    &[16]
                } else {
                    &[0, 1, 62]
                };
                for (key, size) in [0, 1, 100, 129, 9000, 60_000].into_iter().enumerate() {
                    for &len in headers {
                        let (header, bytes) = (pattern(9, len), pattern(key as u64, size));
                        if mode == HeaderMode::Raw && len + size == 0 {
                            continue;
                        }
                        let arrived = pair.exchange(buffer(&pool, &bytes), &header, key as u64);
                        let want = expected(mode, shape, &header, &bytes);
                        assert!(
                            arrived == want,
                            "{provider} {shape} {mode}: {len} and {size} bytes"
                        );
                    }
                }
                assert_balanced(pair.sender());
                assert_eq!(pool.free_count(), 16);
            }
        }
    }
}

#[test]
fn what_headroom_can_t_send_is_refused_and_two_messages_can() {
    let _dog = Watchdog::new("shapes: refusals");
    for (_, domain) in domains() {
        let pool = roomy(&domain);
        let region = Region::host(4096).build().expect("memory");
        region.register(&domain).expect("registered");
        let several = || -> Payload {
            let parts = [buffer(&pool, b"one "), buffer(&pool, b"two")];
            parts.into_iter().collect()
        };
        let mut pair = Pair::with(&domain, shaped(Shape::Headroom), small_receiver());
        let refusal = |pair: &mut Pair, payload: Payload, header: &[u8]| {
            let refused = pair.sender().send_data(payload, header, 7).unwrap_err();
            assert_eq!(refused.key, 7);
            refused.kind
        };
        let many = SendErrorKind::TooManySegments { count: 2, max: 1 };
        assert_eq!(refusal(&mut pair, several(), b"h"), many);
        let slice = region.slice(100..200).expect("inside");
        let no_room = |len, room| SendErrorKind::NoHeaderRoom { len, room };
        assert_eq!(refusal(&mut pair, slice.into(), b"h"), no_room(3, 0));
        let plain = pair.buffer(b"of a pool without room");
        assert_eq!(refusal(&mut pair, plain.into(), b"h"), no_room(3, 0));
        let part = buffer(&pool, b"abc").slice(1..);
        let kind = refusal(&mut pair, part.into(), b"h");
        assert!(kind.to_string().contains("headroom"), "{kind}");
        assert_eq!(pair.sender().stats().posted, 0);
        let whole = buffer(&pool, b"abc");
        assert_eq!(pair.exchange(whole, b"h", 1), got(b"h", b"abc"));
        let mut pair = Pair::with(&domain, shaped(Shape::TwoMessages), small_receiver());
        assert_eq!(pair.exchange(several(), b"h", 1), got(b"h", b"one two"));
        let slice = region.slice(100..103).expect("inside");
        assert_eq!(pair.exchange(slice, b"h", 2), got(b"h", &[0; 3]));
    }
}

#[test]
fn a_provider_with_one_segment_a_message_takes_headroom_by_itself() {
    let _dog = Watchdog::new("shapes: one segment");
    for (_, domain) in domains() {
        let settings = fabricast::fabric::EndpointSettings::default().iov_limit(1);
        let config = common::sending().connection(|c| c.endpoint(settings));
        let mut pair = Pair::with(&domain, config, small_receiver());
        let info = pair.sender().connection_info().expect("it stands");
        assert_eq!(info.shape, Shape::Headroom);
        let pool = roomy(&domain);
        assert_eq!(pair.exchange(buffer(&pool, b"p"), b"h", 1), got(b"h", b"p"));
        let config = shaped(Shape::Iov).connection(|c| c.endpoint(settings));
        let to = pair.receiver().local_addr();
        let error = SendEndpointZeroCopy::connect(&domain, to, config).unwrap_err();
        assert!(
            matches!(error, Error::Config { field: "shape", .. }),
            "{error}"
        );
    }
}

#[test]
fn a_buffer_goes_to_two_peers_at_once_with_equal_headers_else_one_after_the_other() {
    let _dog = Watchdog::new("shapes: fan-out");
    for (provider, domain) in domains() {
        let pool = roomy(&domain);
        let mut pairs =
            [0, 1].map(|_| Pair::with(&domain, shaped(Shape::Headroom), small_receiver()));
        let bytes = pattern(3, 60_000);
        let mut turned_away = 0;
        for round in 0..40u64 {
            let shared = buffer(&pool, &bytes);
            // Equal headers in even rounds.
            let headers = [round * 2, round * 2 + round % 2].map(u64::to_le_bytes);
            for to in [0, 1] {
                let mut payload = Some(Payload::from(shared.clone()));
                drive("taken", SOON, || {
                    let given = payload.take().expect("one");
                    let refused = match pairs[to].sender().send_data(given, &headers[to], round) {
                        Ok(()) => return true,
                        Err(refused) => refused,
                    };
                    assert!(refused.is_would_block(), "{refused}");
                    let busy = SendErrorKind::WouldBlock(Blocked::HeaderRoom);
                    turned_away += u64::from(refused.kind == busy);
                    assert!(
                        refused.kind != busy || round % 2 == 1,
                        "equal headers share the room"
                    );
                    payload = Some(refused.given);
                    // The room is free when the other peer's send is over.
                    pairs.iter_mut().for_each(Pair::step);
                    false
                });
            }
            for (pair, header) in pairs.iter_mut().zip(&headers) {
                let mut arrived = Vec::new();
                pair.until("arrived", |pair| {
                    arrived.extend(pair.messages());
                    !arrived.is_empty() && pair.sender().pending().is_empty()
                });
                assert!(arrived == [got(header, &bytes)], "{provider} round {round}");
                pair.sent.clear();
            }
        }
        assert_eq!(pool.free_count(), 16);
        assert!(turned_away >= 20, "other headers wait: {turned_away}");
    }
}

#[test]
fn a_batch_is_a_loop_on_tcp_and_stops_at_the_first_message_that_is_refused() {
    let _dog = Watchdog::new("shapes: batches");
    for (_, domain) in domains() {
        for shape in SHAPES {
            let pool = roomy(&domain);
            let mut pair = Pair::with(
                &domain,
                shaped(shape).outgoing(|out| out.depth(5).packing(Packing::Off)),
                small_receiver(),
            );
            let payloads: Vec<_> = (0..8).map(|n| buffer(&pool, &pattern(n, 3000))).collect();
            let mut messages = (0..)
                .zip(payloads)
                .map(|(n, payload): (u64, _)| (payload, n.to_be_bytes(), n));
            let stopped = pair.sender().send_batch(&mut messages).unwrap_err();
            assert_eq!(stopped.sent, 5);
            assert_eq!(
                stopped.refused.kind,
                SendErrorKind::WouldBlock(Blocked::Depth)
            );
            assert_eq!(stopped.refused.key, 5);
            pair.until("sent", |pair| pair.sender().pending().is_empty());
            let refused = stopped.refused;
            pair.send(refused.given, &5u64.to_be_bytes(), refused.key);
            assert_eq!(pair.sender().send_batch(messages).expect("room for all"), 2);
            let mut arrived = Vec::new();
            pair.until("all", |pair| {
                arrived.extend(pair.messages());
                arrived.len() == 8
            });
            let want: Vec<_> = (0..8)
                .map(|n: u64| got(&n.to_be_bytes(), &pattern(n, 3000)))
                .collect();
            assert!(arrived == want, "{shape}");
            pair.until("sent", |pair| pair.sender().pending().is_empty());
            assert!(outcomes(&pair.sent).values().all(|all| all == &[true]));
            assert_eq!(outcomes(&pair.sent).len(), 8);
        }
    }
}

#[test]
fn injected_messages_arrive_and_each_has_its_outcome() {
    let _dog = Watchdog::new("shapes: injected");
    for (provider, domain) in domains() {
        let takes = domain.report().inject_size;
        let config = || common::sending().outgoing(|out| out.inject(Inject::UpTo(usize::MAX)));
        let mut pair = Pair::with(&domain, config(), small_receiver());
        assert_eq!(
            pair.sender().connection_info().expect("it stands").inject,
            takes,
            "{provider}"
        );
        for (key, size) in (takes.saturating_sub(20)..takes + 3).enumerate() {
            let bytes = pattern(size as u64, size);
            let arrived = pair.exchange(pair.buffer(&bytes), b"head", key as u64);
            assert!(arrived == got(b"head", &bytes), "{provider}: {size} bytes");
        }
        let delivered = config().outgoing(|out| out.level(Level::Delivered));
        let mut pair = Pair::with(&domain, delivered, small_receiver());
        assert_eq!(
            pair.sender().connection_info().expect("it stands").inject,
            0
        );
        let mut pair = Pair::with(&domain, common::sending(), small_receiver());
        assert_eq!(
            pair.sender().connection_info().expect("it stands").inject,
            // Where sends are copied anyway, none is injected unasked.
            usize::from(domain.fabric().provider().inject_pays) * takes,
            "{provider}: what pays"
        );
    }
}

#[test]
fn small_messages_are_coalesced_over_every_shape() {
    let _dog = Watchdog::new("shapes: coalesced");
    for (_, domain) in domains() {
        for shape in SHAPES {
            let mut receiver =
                ReceiveEndpoint::listen(&domain, any_port(), small_receiver()).expect("listens");
            let config = BufferedConfig::default()
                .buffer_size(2000)
                .outgoing(|out| out.shape(Some(shape)))
                .connection(|c| c.connect_timeout(common::connect_limit()));
            let mut sender = SendEndpointBuffered::connect(&domain, receiver.local_addr(), config)
                .expect("begins");
            let (mut sent, mut received) = (Vec::new(), Vec::new());
            let (mut pushed, mut came) = (0u64, 0u64);
            drive("all messages", SOON, || {
                if pushed < 1000 && sender.push(pushed, 0, &pattern(pushed, 40)).is_ok() {
                    pushed += 1;
                }
                sender.poll(&mut sent).expect("polls");
                // Outcomes hold buffers.
                sent.clear();
                receiver.poll(&mut received).expect("polls");
                for event in received.drain(..) {
                    if let ReceiveEvent::Message(message) = event {
                        for small in message.coalesced(Format::Compact) {
                            let small = small.expect("well formed");
                            assert_eq!((small.tag, small.bytes), (came, &pattern(came, 40)[..]));
                            came += 1;
                        }
                    }
                }
                came == 1000
            });
        }
    }
}

#[test]
fn a_polite_close_in_the_middle_loses_nothing() {
    let _dog = Watchdog::new("shapes: close");
    for (provider, domain) in domains() {
        for shape in SHAPES {
            let pool = roomy(&domain);
            let mut pair = Pair::with(&domain, shaped(shape), small_receiver());
            for key in 0..12 {
                pair.send(buffer(&pool, &pattern(key, 50_000)), b"h", key);
            }
            pair.sender().begin_close(after(SOON));
            let mut arrived = Vec::new();
            pair.until("both ends", |pair| {
                arrived.extend(pair.messages());
                send_end(&pair.sent).is_some() && !receive_ends(&pair.received).is_empty()
            });
            assert_eq!(
                send_end(&pair.sent),
                Some(CloseReason::Finished),
                "{provider} {shape}"
            );
            assert_eq!(receive_ends(&pair.received)[0].1, CloseReason::Finished);
            assert_eq!(arrived.len(), 12);
            assert_eq!(pool.free_count(), 16 - 12, "in the events");
            pair.sent.clear();
            assert_eq!(pool.free_count(), 16);
        }
    }
}

const KILLED: &str = "a_receiver_that_is_killed_leaves_one_outcome_for_each_send";

/// The receiver that is killed: it holds what it gets.
fn hold(provider: &str) {
    let mut domains = domains().into_iter();
    let (_, domain) = match provider {
        "connected" => domains.next(),
        _ => domains.nth(1),
    }
    .expect("the parent looked");
    let config = ReceiveConfig::default()
        .incoming(|incoming| incoming.slots(64).credits(8))
        .connection(|c| c.max_connections(1));
    let mut receiver = ReceiveEndpoint::listen(&domain, any_port(), config).expect("listens");
    child::tell(format!("addr {}", receiver.local_addr()));
    let mut events = Vec::new();
    drive("the kill", 3 * SOON, || {
        receiver.poll(&mut events).expect("polls");
        false
    });
}

#[test]
fn a_receiver_that_is_killed_leaves_one_outcome_for_each_send() {
    if child::role().is_some() {
        return hold(&child::argument());
    }
    let _dog = Watchdog::new("shapes: killed");
    for (number, (provider, domain)) in domains().into_iter().enumerate() {
        for (shape, inject) in [
            (Shape::Headroom, Inject::Off),
            (Shape::TwoMessages, Inject::Off),
            (Shape::TwoMessages, Inject::UpTo(100)),
            (Shape::Iov, Inject::UpTo(100)),
        ] {
            let kind = if number == 0 { "connected" } else { "others" };
            let mut receiver = Child::start(KILLED, "hold", kind);
            let to: PeerAddr = receiver.expect("addr", SOON).parse().expect("an address");
            let pool = roomy(&domain);
            let config = shaped(shape)
                .outgoing(|out| out.inject(inject))
                .connection(|c| {
                    c.lost_after(Some(common::millis(1000)))
                        .unresponsive_after(None)
                });
            let mut sender = SendEndpointZeroCopy::connect(&domain, to, config).expect("begins");
            sender.wait_connected().expect("connects");
            let (mut events, mut keys) = (Vec::new(), 0u64);
            drive("stalled", SOON, || {
                let size = if keys % 2 == 0 { 40 } else { 60_000 };
                if pool.free_count() > 0 {
                    let payload = buffer(&pool, &pattern(keys, size));
                    keys += u64::from(sender.send_data(payload, b"header", keys).is_ok());
                }
                sender.poll(&mut events).expect("polls");
                // A machine that stood still for so long has lost it before.
                keys >= 8 || send_end(&events).is_some()
            });
            receiver.kill();
            drive("the end", SOON, || {
                sender.poll(&mut events).expect("polls");
                send_end(&events).is_some()
            });
            let by_key = outcomes(&events);
            assert_eq!(by_key.len() as u64, keys, "{provider} {shape}");
            assert!(by_key.values().all(|all| all.len() == 1), "{by_key:?}");
            assert!(matches!(
                events.last(),
                Some(SendEvent::Connection(ConnectionEvent::Disconnected(_)))
            ));
            assert_balanced(&sender);
            events.clear();
            assert_eq!(pool.free_count(), 16, "{provider} {shape}");
            assert_eq!(sender.headers().free_count(), 256);
        }
    }
}
