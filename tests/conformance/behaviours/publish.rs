//! One buffer to several subscribers, until they want no more.

use std::time::Duration;

use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::{CloseReason, LongMessages, PublishConfig, SlowPolicy, SubscribeConfig};
use fabricast::{
    ConnectionEvent, PublishEndpoint, PublishEvent, SubscribeEndpoint, SubscribeEvent,
};

use crate::common::{SOON, after, anywhere, buffer, child, drive, pattern, pool};
use crate::message::{Checker, header};
use crate::on::On;
use crate::table::Shown;
use crate::told::Told;

const TAG: u64 = 7;
const PEERS: usize = 2;
const N: u64 = 30;
const SIZES: [usize; 3] = [1, 100, 20_000];

/// Of which the third is longer than a receive buffer.
const LONG_SIZES: [usize; 3] = [1, 100, 300_000];

/// Bytes of a receive buffer.
const MAX: usize = 32 * 1024;

fn sizes(told: &Told) -> [usize; 3] {
    match told.text("long") {
        Some(_) => LONG_SIZES,
        None => SIZES,
    }
}

pub(crate) fn publish(on: &On) -> Shown {
    to_all(on, "")
}

/// Each goes to both piece by piece, from the one buffer, and keeps its place.
pub(crate) fn long_publications(on: &On) -> Shown {
    to_all(on, "long=2")
}

fn to_all(on: &On, words: &str) -> Shown {
    let (mut publisher, addr) = on.listener("publish", words);
    let mut subscribers = [(); PEERS].map(|()| on.sender("subscribe", &addr, words));
    for subscriber in &mut subscribers {
        subscriber.expect("on", SOON);
        let got = subscriber.expect("got", 2 * SOON);
        assert_eq!(got, format!("{N} missed 0"));
        subscriber.finish(2 * SOON);
    }
    let over = publisher.expect("over", 2 * SOON);
    assert_eq!(over, format!("{N} sent {}", N * PEERS as u64));
    publisher.finish(SOON);
    Shown::Works
}

/// Publishes to both, hears them unsubscribe, and that they leave.
pub(crate) fn publisher(told: &Told) {
    let (domain, sizes) = (told.domain(), sizes(told));
    let pool = pool(&domain, 8, sizes[2]);
    let config = PublishConfig::default()
        .outgoing(|out| out.packing(crate::common::packing()))
        .connection(|c| c.max_connections(4))
        .slow(SlowPolicy::Wait {
            queue: 64,
            deadline: SOON,
        });
    let at = anywhere(&domain);
    let mut endpoint = PublishEndpoint::listen(&domain, at, config).expect("listens");
    child::tell(format!("addr {}", endpoint.local_addr()));
    let (mut next, mut over, mut sent, mut left) = (0, 0, 0, 0);
    let (mut events, mut ready) = (Vec::new(), false);
    drive("the ends of all connections", 3 * SOON, || {
        endpoint.poll(&mut events).expect("polls");
        for event in events.drain(..) {
            match event {
                PublishEvent::Published {
                    key,
                    payload,
                    outcomes,
                } => {
                    let payload = payload.into_buffer().expect("what was published");
                    assert_eq!(payload[..], pattern(key, sizes[key as usize % 3]));
                    assert!(outcomes.all_sent(), "{outcomes:?}");
                    sent += u64::from(outcomes.sent);
                    over += 1;
                }
                PublishEvent::SubscriptionsGone { count, .. } => panic!("{count} subscriptions"),
                PublishEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                    assert_eq!(reason, CloseReason::Finished);
                    left += 1;
                }
                _ => {}
            }
        }
        ready |= endpoint.subscribers(TAG) == PEERS;
        while ready && next < N && pool.free_count() > 0 {
            let size = sizes[next as usize % 3];
            let payload = buffer(&pool, &pattern(next, size));
            let header = header(1, next, size);
            match endpoint.publish(TAG, payload, &header, next) {
                Ok(told) => assert_eq!(told.posted + told.waiting, PEERS as u32),
                Err(refused) => {
                    assert!(refused.is_would_block(), "{refused}");
                    break;
                }
            }
            next += 1;
        }
        left == PEERS
    });
    let nobody = endpoint.publish(TAG, buffer(&pool, b"x"), b"", 0);
    assert!(nobody.expect_err("all are gone").is_no_subscribers());
    child::tell(format!("over {over} sent {sent}"));
}

/// Gets all, gives the tag up, and leaves.
pub(crate) fn subscriber(told: &Told) {
    let domain = told.domain();
    let config = SubscribeConfig::default()
        .incoming(|incoming| {
            let incoming = incoming.max_message(MAX).slots(24).credits(4);
            match told.text("long") {
                None => incoming,
                Some(_) => {
                    let size = LONG_SIZES[2] + 100;
                    let pool = SharedBufferManager::allocate(told.number("long", 0) as u32, size);
                    incoming.long_messages(LongMessages::new(pool.expect("memory")))
                }
            }
        })
        .connection(|c| c.max_connections(1));
    let mut endpoint = SubscribeEndpoint::open(&domain, config).expect("opens");
    let publisher = endpoint.connect(told.to()).expect("begins");
    endpoint.subscribe(publisher, TAG).expect("asked");
    let (mut checker, mut missed, mut events) = (Checker::default(), 0, Vec::new());
    let mut off = false;
    drive("the end", 3 * SOON, || {
        endpoint.poll(&mut events).expect("polls");
        let mut over = false;
        for event in events.drain(..) {
            match event {
                SubscribeEvent::Subscribed { .. } => child::tell("on"),
                SubscribeEvent::Publication {
                    message,
                    missed: more,
                    ..
                } => {
                    checker.check(message.header(), message.payload());
                    missed += more;
                }
                SubscribeEvent::Unsubscribed { .. } => endpoint.begin_close(after(SOON)),
                SubscribeEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                    assert_eq!(reason, CloseReason::Finished);
                    over = true;
                }
                _ => {}
            }
        }
        if checker.messages == N && !std::mem::replace(&mut off, true) {
            endpoint.unsubscribe(publisher, TAG).expect("asked");
        }
        over
    });
    child::tell(format!("got {} missed {missed}", checker.messages));
    // What the provider has yet to send leaves before the process does.
    std::thread::sleep(Duration::from_millis(20));
}
