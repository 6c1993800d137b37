//! The hot path allocates nothing once it is open: counted, for the thread that drives both
//! endpoints.
//!
//! What libfabric allocates for itself (with malloc(3)) is its own and not counted.

use std::sync::Arc;

use fabricast::buffer::{Buffer, Payload, Segment};
use fabricast::endpoint::{Packing, PublishConfig, SendConfig, SlowPolicy, SubscribeConfig};
use fabricast::{
    Domain, PublishEndpoint, PublishEvent, ReceiveEvent, SendEvent, SubscribeEndpoint,
    SubscribeEvent,
};

use crate::HANDSHAKE;
use crate::common;
use crate::common::{Pair, Watchdog, domain, small_receiver};
use crate::counting::allocations;

const WARM_UP: u64 = 1_000;
const COUNTED: u64 = 10_000;

/// Sends, polls both sides, receives and drops the message. Gives the payload that came back.
fn round_trip(pair: &mut Pair, payload: Payload, key: u64) -> Payload {
    let mut payload = Some(payload);
    let (mut completed, mut arrived) = (None, false);
    let mut polls = 0_u64;
    loop {
        if arrived && let Some(payload) = completed.take() {
            return payload;
        }
        if let Some(p) = payload.take() {
            payload = match pair.sender().send_data(p, b"header", key) {
                Ok(()) => None,
                Err(refused) if refused.is_would_block() => Some(refused.given),
                Err(refused) => panic!("{refused}"),
            };
        }
        pair.step();
        for event in pair.sent.drain(..) {
            if let SendEvent::Completed { key: done, payload } = event {
                assert_eq!(done, key);
                completed = Some(payload);
            }
        }
        for event in pair.received.drain(..) {
            if let ReceiveEvent::Message(message) = event {
                assert_eq!(message.header(), b"header");
                arrived = true;
            }
        }
        polls += 1;
        assert!(polls < 10_000_000, "message {key} does not arrive");
    }
}

fn allocations_of(segments: usize) -> Option<u64> {
    let domain = domain()?;
    let receive = small_receiver().connection(|c| c.connect_timeout(HANDSHAKE));
    let mut pair = Pair::with(&domain, SendConfig::default(), receive);
    // One segment lies in the payload; several lie in a block that comes back with it and is used
    // again.
    let payload = |pair: &Pair, mut block: Vec<Segment>| -> Payload {
        let take = || -> Buffer { pair.pool.try_acquire().expect("free").freeze(64) };
        if segments == 1 {
            return take().into();
        }
        block.clear();
        block.extend((0..segments).map(|_| Segment::from(take())));
        block.into()
    };
    let mut block = Vec::with_capacity(segments);
    let mut send = |pair: &mut Pair, key| {
        let payload = payload(pair, std::mem::take(&mut block));
        let sent = round_trip(pair, payload, key);
        if segments > 1 {
            block = sent.into_vec();
        }
    };
    for key in 0..WARM_UP {
        send(&mut pair, key);
    }
    let before = allocations();
    for key in 0..COUNTED {
        send(&mut pair, key);
    }
    Some(allocations() - before)
}

#[test]
fn messages_of_one_segment_allocate_nothing() {
    let _dog = Watchdog::new("one segment");
    if let Some(count) = allocations_of(1) {
        assert_eq!(count, 0, "allocations in {COUNTED} messages");
    }
}

#[test]
fn messages_of_three_segments_allocate_nothing() {
    let _dog = Watchdog::new("three segments");
    if let Some(count) = allocations_of(3) {
        assert_eq!(count, 0, "allocations in {COUNTED} messages");
    }
}

#[test]
fn packed_messages_that_are_taken_in_batches_allocate_nothing() {
    let _dog = Watchdog::new("batches");
    let Some(domain) = domain() else { return };
    let receive = small_receiver().connection(|c| c.connect_timeout(HANDSHAKE));
    let send = SendConfig::default().outgoing(|out| out.packing(Packing::Auto));
    let mut pair = Pair::with(&domain, send, receive);
    let burst = pair.pool.free_count().min(100) as u64;
    let mut bursts = |count: u64| {
        for _ in 0..count {
            for key in 0..burst {
                let payload: Payload = pair.pool.try_acquire().expect("free").freeze(64).into();
                let sent = pair.sender().send_data(payload, b"header", key);
                sent.expect("there is room");
            }
            let (mut done, mut came) = (0, 0);
            common::drive("a burst", common::SOON, || {
                pair.sender
                    .as_mut()
                    .expect("open")
                    .poll(&mut pair.sent)
                    .expect("works");
                done += pair
                    .sent
                    .drain(..)
                    .filter(|event| matches!(event, SendEvent::Completed { .. }))
                    .count() as u64;
                let receiver = pair.receiver.as_mut().expect("open");
                for message in receiver.receive(&mut pair.received).expect("works") {
                    assert_eq!(message.header(), b"header");
                    came += 1;
                }
                (done, came) == (burst, burst)
            });
        }
    };
    bursts(100);
    let before = allocations();
    bursts(100);
    assert_eq!(allocations() - before, 0, "allocations in 100 bursts");
}

#[test]
fn the_counter_counts() {
    let before = allocations();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(allocations() - before, 1);
}

/// A publisher with three subscribers, all on this thread.
struct Fan {
    publisher: PublishEndpoint,
    subscribers: Vec<SubscribeEndpoint>,
    told: Vec<PublishEvent>,
    came: Vec<SubscribeEvent>,
}

impl Fan {
    fn open(domain: &Arc<Domain>) -> Self {
        let config = PublishConfig::default().connection(|c| c.connect_timeout(HANDSHAKE));
        let config = config.slow(SlowPolicy::Wait {
            queue: 4,
            deadline: common::SOON,
        });
        let publisher =
            PublishEndpoint::listen(domain, common::any_port(), config).expect("listens");
        let config = SubscribeConfig::default()
            .incoming(|incoming| incoming.max_message(4096).slots(64))
            .connection(|c| c.max_connections(1));
        let subscribe = |_| {
            let mut subscriber = SubscribeEndpoint::open(domain, config.clone()).expect("opens");
            let at = subscriber.connect(publisher.local_addr()).expect("begins");
            subscriber.subscribe(at, 7).expect("asked");
            subscriber
        };
        let mut fan = Self {
            subscribers: (0..3).map(subscribe).collect(),
            publisher,
            told: Vec::new(),
            came: Vec::new(),
        };
        common::drive("three subscriptions", common::SOON, || {
            fan.poll();
            fan.told.clear();
            fan.publisher.subscribers(7) == 3
        });
        fan
    }

    fn poll(&mut self) {
        self.publisher.poll(&mut self.told).expect("polls");
        for subscriber in &mut self.subscribers {
            subscriber.poll(&mut self.came).expect("polls");
        }
    }

    /// Publishes, and polls until all have it and the buffer is back.
    fn publish(&mut self, payload: Buffer, key: u64) -> Buffer {
        let told = self.publisher.publish(7, payload, b"header", key);
        assert_eq!(told.expect("taken").posted, 3);
        let (mut back, mut arrived, mut polls) = (None, 0, 0_u64);
        loop {
            self.poll();
            for event in self.told.drain(..) {
                if let PublishEvent::Published {
                    key: over, payload, ..
                } = event
                {
                    assert_eq!(over, key);
                    back = payload.into_buffer().ok();
                }
            }
            for event in self.came.drain(..) {
                arrived += u32::from(matches!(event, SubscribeEvent::Publication { .. }));
            }
            if arrived == 3
                && let Some(payload) = back.take()
            {
                return payload;
            }
            polls += 1;
            assert!(polls < 10_000_000, "publication {key} does not arrive");
        }
    }
}

#[test]
fn publications_to_three_allocate_nothing() {
    let _dog = Watchdog::new("publications");
    let Some(domain) = domain() else { return };
    let pool = common::pool(&domain, 4, 4096);
    let mut fan = Fan::open(&domain);
    let mut buffer = pool.try_acquire().expect("free").freeze(64);
    for key in 0..WARM_UP {
        buffer = fan.publish(buffer, key);
    }
    let before = allocations();
    for key in 0..COUNTED {
        buffer = fan.publish(buffer, key);
    }
    let count = allocations() - before;
    assert_eq!(count, 0, "allocations in {COUNTED} publications");
}
