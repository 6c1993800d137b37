//! Publications out of a GPU's memory, and into it.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::buffer::{Payload, SharedBufferManager};
use fabricast::endpoint::{
    Blocked, DeviceDelivery, PeerOutcome, PublishConfig, SendErrorKind, SlowPolicy, StagingRing,
    SubscribeConfig,
};
use fabricast::{
    ConnectionEvent, Domain, PublishEndpoint, PublishEvent, SubscribeEndpoint, SubscribeEvent,
};

use super::endpoints::{LIMIT, MIB, any_port, device_pool, device_region, domain, filled, ring};
use super::fake::{Count, on_gpu};
use crate::pattern::pattern;

const TAG: u64 = 7;

/// What a subscriber got: key, and the bytes, wherever they were.
type Got = VecDeque<(u64, Vec<u8>)>;

struct Subscriber {
    endpoint: SubscribeEndpoint,
    stream: fabricast::cuda::Stream,
    got: Got,
    /// What it does not let go.
    held: Vec<SubscribeEvent>,
    holds: bool,
}

impl Subscriber {
    fn poll(&mut self) {
        let mut events = Vec::new();
        self.endpoint.poll(&mut events).expect("polls");
        for event in events {
            self.take(event);
        }
    }

    fn take(&mut self, event: SubscribeEvent) {
        let key = |header: &[u8]| u64::from_le_bytes(header.try_into().expect("a key"));
        match &event {
            SubscribeEvent::Publication { message, .. } => {
                let got = (key(message.header()), message.payload().to_vec());
                self.got.push_back(got);
            }
            SubscribeEvent::DevicePublication { message, .. } => {
                let mut bytes = vec![0; message.payload().len()];
                let payload = message.payload();
                payload
                    .copy_to_host(&mut bytes, &self.stream)
                    .expect("copied");
                self.got.push_back((key(message.header()), bytes));
            }
            SubscribeEvent::Undelivered { error, .. } => panic!("{error}"),
            _ => return,
        }
        if self.holds {
            self.held.push(event);
        }
    }
}

struct Stage {
    domain: Arc<Domain>,
    publisher: Option<PublishEndpoint>,
    subscribers: Vec<Subscriber>,
    told: Vec<PublishEvent>,
    /// Keys, payloads, and how many were sent, dropped and failed.
    over: Vec<(u64, Payload, [u32; 3])>,
}

impl Stage {
    fn new(
        gpu: &super::fake::Gpu,
        publish: PublishConfig,
        subscribe: Vec<SubscribeConfig>,
    ) -> Option<Self> {
        let domain = domain()?;
        let publisher = PublishEndpoint::listen(&domain, any_port(), publish).expect("listens");
        let addr = publisher.local_addr();
        let open = |config: SubscribeConfig| {
            let config = config
                .connection(|c| c.max_connections(1))
                .incoming(|incoming| incoming.credits(4).slots(8));
            let mut endpoint = SubscribeEndpoint::open(&domain, config).expect("opens");
            let at = endpoint.connect(addr).expect("begins");
            endpoint.subscribe(at, TAG).expect("asked");
            Subscriber {
                endpoint,
                stream: gpu.stream(),
                got: VecDeque::new(),
                held: Vec::new(),
                holds: false,
            }
        };
        let mut this = Self {
            subscribers: subscribe.into_iter().map(open).collect(),
            publisher: Some(publisher),
            domain,
            told: Vec::new(),
            over: Vec::new(),
        };
        let count = this.subscribers.len();
        this.until("subscribers", |it| {
            it.publisher_ref().subscribers(TAG) == count
        });
        Some(this)
    }

    fn publisher_ref(&self) -> &PublishEndpoint {
        self.publisher.as_ref().expect("not dropped")
    }

    fn poll(&mut self) {
        let mut events = Vec::new();
        if let Some(publisher) = &mut self.publisher {
            publisher.poll(&mut events).expect("polls");
        }
        for event in events {
            match event {
                PublishEvent::Published {
                    key,
                    payload,
                    outcomes,
                } => {
                    let counts = [outcomes.sent, outcomes.dropped, outcomes.failed];
                    self.over.push((key, payload, counts));
                }
                other => self.told.push(other),
            }
        }
        self.subscribers.iter_mut().for_each(Subscriber::poll);
    }

    #[track_caller]
    fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !done(self) {
            assert!(Instant::now() < deadline, "no {what}: {:?}", self.told);
            self.poll();
        }
    }

    fn try_publish(&mut self, payload: impl Into<Payload>, key: u64) -> Result<(), SendErrorKind> {
        let publisher = self.publisher.as_mut().expect("not dropped");
        let told = publisher.publish(TAG, payload, &key.to_le_bytes(), key);
        told.map(drop).map_err(|refused| refused.kind)
    }

    /// All subscribers get it; the payload that comes back.
    #[track_caller]
    fn round(&mut self, payload: impl Into<Payload>, key: u64, expected: &[u8]) -> Payload {
        self.try_publish(payload, key).expect("taken");
        self.until("publication", |it| {
            !it.over.is_empty() && it.subscribers.iter().all(|s| !s.got.is_empty())
        });
        for subscriber in &mut self.subscribers {
            let (got, bytes) = subscriber.got.pop_front().expect("just asked");
            assert_eq!(got, key);
            assert!(bytes == expected, "{} bytes: other content", bytes.len());
        }
        let (over, payload, counts) = self.over.remove(0);
        assert_eq!((over, counts), (key, [self.subscribers.len() as u32, 0, 0]));
        payload
    }
}

fn publish(ring: &StagingRing) -> PublishConfig {
    PublishConfig::default()
        .connection(|c| c.max_connections(4))
        .outgoing(|out| out.staging(ring))
}

fn subscribe() -> SubscribeConfig {
    SubscribeConfig::default().incoming(|incoming| incoming.max_message(MIB + 64))
}

#[test]
fn everybody_gets_what_was_copied_once() {
    on_gpu("publish::everybody_gets_what_was_copied_once", &[], |gpu| {
        let stream = gpu.stream();
        let ring = ring(4, MIB);
        let to_gpu = || DeviceDelivery::new(device_pool(2, MIB + 64));
        let consumer = gpu.stream();
        let subscribers = vec![
            subscribe(),
            subscribe().incoming(|incoming| incoming.deliver_to(to_gpu())),
            subscribe().incoming(|incoming| incoming.deliver_to(to_gpu().stream(&consumer))),
        ];
        let Some(mut stage) = Stage::new(gpu, publish(&ring), subscribers) else {
            return;
        };
        stage.subscribers[2].stream = consumer;
        let region = device_region(&stage.domain, 2 * MIB);
        let mut key = 0;
        for size in [0, 1, 64, 4095, 65_537, MIB - 1, MIB] {
            for offset in [0, 1, 4093] {
                key += 1;
                let slice = filled(&region, offset, size, key, &stream);
                let payload = stage.round(slice, key, &pattern(size, key));
                let slice = payload.into_slice().expect("what was given");
                assert_eq!((slice.offset(), slice.len()), (offset, size));
            }
        }
        // Nothing is copied for those without a byte.
        assert_eq!(ring.stats().payloads, key);
        assert_eq!(ring.free_slots(), 4);
        // One owner, and mixed with memory of the host.
        let buffers = device_pool(1, 1000);
        buffers
            .region()
            .register(&stage.domain)
            .expect("registered");
        let mut buffer = buffers.try_acquire().expect("free");
        buffer
            .copy_from_host(&pattern(1000, 1), &stream)
            .expect("copied");
        let host = SharedBufferManager::allocate(1, 100).expect("a pool");
        host.region().register(&stage.domain).expect("registered");
        let mut front = host.try_acquire().expect("free");
        front.copy_from_slice(&pattern(100, 2));
        let payload: Payload = [
            fabricast::buffer::Segment::from(front.freeze(100)),
            buffer.into(),
        ]
        .into_iter()
        .collect();
        let expected = [pattern(100, 2), pattern(1000, 1)].concat();
        let payload = stage.round(payload, 99, &expected);
        let mut segments = payload.into_segments();
        assert!(segments.next().expect("two").into_buffer().is_ok());
        assert!(segments.next().expect("two").into_device_buffer().is_ok());
        assert_eq!(buffers.free_count(), 1);
    });
}

#[test]
fn who_is_slow_keeps_the_copy_and_the_others_go_on() {
    on_gpu(
        "publish::who_is_slow_keeps_the_copy_and_the_others_go_on",
        &[("FAKE_CUDA_DELAY_US", "500")],
        |gpu| {
            let stream = gpu.stream();
            let ring = ring(16, 64 * 1024);
            let slow = SlowPolicy::Wait {
                queue: 8,
                deadline: LIMIT,
            };
            let subscribers = vec![subscribe(), subscribe()];
            let Some(mut stage) = Stage::new(gpu, publish(&ring).slow(slow), subscribers) else {
                return;
            };
            let region = device_region(&stage.domain, MIB);
            stage.subscribers[0].holds = true;
            for key in 0..10 {
                let slice = filled(&region, key as usize * 50_001, 50_001, key, &stream);
                stage.try_publish(slice, key).expect("taken");
                stage.until("publication", |it| it.subscribers[1].got.len() as u64 > key);
            }
            stage.until("publications", |it| it.over.len() >= 4);
            let waiting = 10 - stage.over.len();
            assert!(waiting > 0);
            assert_eq!(ring.free_slots(), 16 - waiting, "one slot for each");
            stage.subscribers[0].holds = false;
            stage.subscribers[0].held.clear();
            stage.until("the rest", |it| {
                it.over.len() == 10 && it.subscribers.iter().all(|s| s.got.len() == 10)
            });
            for subscriber in &stage.subscribers {
                let keys: Vec<_> = subscriber.got.iter().map(|(key, _)| *key).collect();
                assert_eq!(keys, (0..10).collect::<Vec<_>>());
                for (key, bytes) in &subscriber.got {
                    assert!(*bytes == pattern(50_001, *key), "another content");
                }
            }
            assert_eq!((ring.free_slots(), ring.stats().payloads), (16, 10));
        },
    );
}

#[test]
fn what_a_stream_writes_is_published_after_it_was_written() {
    on_gpu(
        "publish::what_a_stream_writes_is_published_after_it_was_written",
        &[],
        |gpu| {
            let stream = gpu.stream();
            let ring = ring(4, MIB);
            let subscribers = vec![subscribe(), subscribe()];
            let Some(mut stage) = Stage::new(gpu, publish(&ring), subscribers) else {
                return;
            };
            let region = device_region(&stage.domain, MIB);
            let first = filled(&region, 0, 1000, 1, &stream);
            let second = filled(&region, 2000, 1000, 2, &stream);
            if let Some(fake) = &gpu.fake {
                fake.block(&stream);
            }
            let event = stream.record().expect("an event");
            stage
                .try_publish(Payload::from(first).after(&event), 1)
                .expect("taken");
            stage.try_publish(second, 2).expect("taken");
            if let Some(fake) = &gpu.fake {
                let until = Instant::now() + Duration::from_millis(50);
                while Instant::now() < until {
                    stage.poll();
                }
                assert!(stage.subscribers[0].got.is_empty(), "before its event");
                fake.unblock();
            }
            stage.until("both", |it| it.over.len() == 2);
            stage.until("all", |it| it.subscribers.iter().all(|s| s.got.len() == 2));
            for subscriber in &stage.subscribers {
                for (got, key) in subscriber.got.iter().zip([1, 2]) {
                    assert!(*got == (key, pattern(1000, key)), "in order, as written");
                }
            }
        },
    );
}

#[test]
fn a_ring_that_is_full_missing_or_too_small_says_so() {
    on_gpu(
        "publish::a_ring_that_is_full_missing_or_too_small_says_so",
        &[("FAKE_CUDA_DELAY_US", "20000")],
        |gpu| {
            let stream = gpu.stream();
            let ring = ring(1, 4096);
            let Some(mut stage) = Stage::new(gpu, publish(&ring), vec![subscribe()]) else {
                return;
            };
            let region = device_region(&stage.domain, MIB);
            let slice = filled(&region, 1, 4096, 1, &stream);
            stage.try_publish(slice.clone(), 1).expect("taken");
            if gpu.is_fake() {
                let full = stage.try_publish(slice.clone(), 2);
                assert_eq!(full, Err(SendErrorKind::WouldBlock(Blocked::Staging)));
                stage.until("writable", |it| {
                    let writable = |event: &PublishEvent| matches!(event, PublishEvent::Writable);
                    it.told.iter().any(writable)
                });
            }
            stage.until("the first", |it| it.over.len() == 1);
            stage.try_publish(slice.clone(), 3).expect("taken");
            stage.until("both", |it| it.over.len() == 2);
            let long = region.slice(0..4097).expect("inside");
            let (len, max) = (4097, 4096);
            let too_long = SendErrorKind::StagingTooLong { len, max };
            let refused = stage.try_publish(long, 4);
            assert_eq!(refused, Err(too_long));
            let without = PublishConfig::default().connection(|c| c.max_connections(4));
            let Some(mut stage) = Stage::new(gpu, without, vec![subscribe()]) else {
                return;
            };
            let region = device_region(&stage.domain, 4096);
            let refused = stage.try_publish(region.slice(0..9).expect("inside"), 1);
            let refused = refused.expect_err("no ring");
            let kind = SendErrorKind::NotStaged { segment: 0 };
            assert_eq!(refused, kind);
        },
    );
}

#[test]
fn a_copy_that_fails_is_the_end_of_its_publication_in_words() {
    on_gpu(
        "publish::a_copy_that_fails_is_the_end_of_its_publication_in_words",
        &[],
        |gpu| {
            let Some(fake) = &gpu.fake else { return };
            let stream = gpu.stream();
            let ring = ring(4, MIB);
            let subscribers = vec![subscribe(), subscribe()];
            let Some(mut stage) = Stage::new(gpu, publish(&ring), subscribers) else {
                return;
            };
            let region = device_region(&stage.domain, MIB);
            let slice = filled(&region, 0, 1000, 7, &stream);
            for function in ["cuMemcpyDtoHAsync", "cuEventRecord", "cuEventQuery"] {
                fake.fail(function, 700);
                stage.try_publish(slice.clone(), 1).expect("taken");
                stage.try_publish(slice.clone(), 2).expect("taken");
                stage.until("ends", |it| it.over.len() == 2);
                for (key, _, counts) in stage.over.drain(..) {
                    let expected = if key == 1 { [0, 0, 2] } else { [2, 0, 0] };
                    assert_eq!(counts, expected, "{function}");
                }
                let failed: Vec<_> = stage
                    .told
                    .drain(..)
                    .filter_map(|event| match event {
                        PublishEvent::Peer {
                            outcome: PeerOutcome::Failed(error),
                            ..
                        } => Some(error.to_string()),
                        _ => None,
                    })
                    .collect();
                assert_eq!(failed.len(), 2);
                assert!(failed.iter().all(|it| it.contains("700")), "{failed:?}");
                stage.until("the second", |it| {
                    it.subscribers.iter().all(|s| s.got.len() == 1)
                });
                for subscriber in &mut stage.subscribers {
                    assert_eq!(subscriber.got.pop_front(), Some((2, pattern(1000, 7))));
                }
                assert_eq!(ring.free_slots(), 4);
            }
        },
    );
}

/// In each order, with copies in flight on both sides; once in two, a subscriber goes first.
#[test]
fn whatever_goes_first_nothing_that_a_copy_uses_goes_with_it() {
    on_gpu(
        "publish::whatever_goes_first_nothing_that_a_copy_uses_goes_with_it",
        &[],
        |gpu| {
            let stream = gpu.stream();
            for order in 0..12 {
                if let Some(fake) = &gpu.fake {
                    fake.delay(Duration::from_micros(1500));
                }
                let staging = ring(8, 64 * 1024);
                let pool = device_pool(4, MIB + 64);
                let to_gpu = subscribe()
                    .incoming(|incoming| incoming.deliver_to(DeviceDelivery::new(pool.clone())));
                let subscribers = vec![to_gpu, subscribe()];
                let Some(mut stage) = Stage::new(gpu, publish(&staging), subscribers) else {
                    return;
                };
                let region = device_region(&stage.domain, MIB);
                let slice = filled(&region, 0, 60_000, 1, &stream);
                for key in 0..4 {
                    stage.try_publish(slice.clone(), key).expect("taken");
                    stage.poll();
                }
                if order % 2 == 1 {
                    stage.subscribers.pop();
                    stage.until("the end of it", |it| {
                        it.publisher_ref().subscribers(TAG) == 1
                    });
                }
                let until = Instant::now() + Duration::from_millis(order % 7);
                while Instant::now() < until {
                    stage.poll();
                }
                let mut parts: Vec<Box<dyn Any>> = vec![
                    Box::new(std::mem::take(&mut stage.subscribers)),
                    Box::new(stage.publisher.take()),
                    Box::new((staging, pool, slice, region)),
                    Box::new(stage),
                ];
                let mut left = 2 * order as usize;
                for size in (1..=4).rev() {
                    drop(parts.remove(left % size));
                    left /= size;
                }
                gpu.check();
            }
            drop(stream);
            if let Some(fake) = &gpu.fake {
                assert_eq!(fake.count(Count::Events), 0);
                assert_eq!(fake.count(Count::Streams), 0);
                assert_eq!(fake.count(Count::Allocations), 0);
            }
        },
    );
}

#[test]
fn a_close_brings_what_was_published() {
    on_gpu(
        "publish::a_close_brings_what_was_published",
        &[("FAKE_CUDA_DELAY_US", "5000")],
        |gpu| {
            let stream = gpu.stream();
            let ring = ring(8, 64 * 1024);
            let pool = device_pool(4, MIB + 64);
            let to_gpu =
                subscribe().incoming(|incoming| incoming.deliver_to(DeviceDelivery::new(pool)));
            let Some(mut stage) = Stage::new(gpu, publish(&ring), vec![to_gpu]) else {
                return;
            };
            let region = device_region(&stage.domain, MIB);
            for key in 0..4 {
                let slice = filled(&region, key as usize * 60_000, 60_000, key, &stream);
                stage.try_publish(slice, key).expect("taken");
            }
            // Both sides close: what was posted arrives, and is copied before the end is told.
            let deadline = Instant::now() + LIMIT;
            stage
                .publisher
                .as_mut()
                .expect("there")
                .begin_close(deadline);
            let mut subscriber = stage.subscribers.pop().expect("one");
            let mut events = Vec::new();
            while stage.publisher_ref().connections() > 0 {
                assert!(Instant::now() < deadline, "{events:?}");
                stage.poll();
                subscriber.endpoint.poll(&mut events).expect("polls");
            }
            events.extend(subscriber.endpoint.close(deadline).expect("closes"));
            let mut keys = Vec::new();
            for event in events {
                match event {
                    SubscribeEvent::DevicePublication {
                        number, message, ..
                    } => {
                        let mut bytes = vec![0; message.payload().len()];
                        let payload = message.payload();
                        payload.copy_to_host(&mut bytes, &stream).expect("copied");
                        assert!(bytes == pattern(60_000, number), "another content");
                        keys.push(number);
                    }
                    SubscribeEvent::Publication { .. } => panic!("there were enough buffers"),
                    SubscribeEvent::Connection(_, ConnectionEvent::Disconnected(_)) => {
                        keys.push(99)
                    }
                    _ => {}
                }
            }
            assert_eq!(keys, [0, 1, 2, 3, 99], "the end is last");
        },
    );
}
