//! Endpoints that send out of a GPU's memory and deliver into it, over tcp.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::buffer::{
    DeviceBufferManager, Payload, RegionSlice, RingConfig, RingRegion, Segment, SharedBufferConfig,
    SharedBufferManager,
};
use fabricast::cuda::Stream;
use fabricast::endpoint::{
    Blocked, ConnectionlessConfig, ConnectionlessEvent, DeviceDelivery, DeviceMessage,
    LongMessages, ReceiveConfig, SendConfig, SendErrorKind, StagingConfig, StagingRing,
};
use fabricast::fabric::EndpointKind;
use fabricast::{
    ConnectionEvent, ConnectionlessEndpoint, Domain, Fabric, PeerAddr, ReceiveEndpoint,
    ReceiveEvent, Region, SendEndpointZeroCopy, SendEvent,
};

use super::fake::{Count, on_gpu};
use crate::pattern::pattern;

pub(crate) const MIB: usize = 1 << 20;
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn domain() -> Option<Arc<Domain>> {
    match Fabric::builder().provider("tcp").node("127.0.0.1").open() {
        Ok(fabric) => Some(fabric.open_domain().expect("a domain")),
        Err(error) => {
            println!("SKIPPED: {error}");
            None
        }
    }
}

/// The same of endpoints without connections: what 1.17 calls `net` is `tcp` of 2.x.
pub(crate) fn rdm_domain() -> Option<Arc<Domain>> {
    let open = |provider| {
        let fabric = Fabric::builder().provider(provider);
        fabric
            .endpoint_kind(EndpointKind::Rdm)
            .node("127.0.0.1")
            .open()
    };
    match open("net").or_else(|_| open("tcp")) {
        Ok(fabric) => Some(fabric.open_domain().expect("a domain")),
        Err(error) => {
            println!("SKIPPED: {error}");
            None
        }
    }
}

/// A slice of a device's memory with that pattern.
pub(crate) fn filled(
    region: &Arc<Region>,
    at: usize,
    len: usize,
    seed: u64,
    stream: &Stream,
) -> RegionSlice {
    let slice = region.slice(at..at + len).expect("inside");
    slice
        .copy_from_host(&pattern(len, seed), stream)
        .expect("copied");
    slice
}

pub(crate) fn device_region(domain: &Domain, len: usize) -> Arc<Region> {
    let region = Region::device(len).build().expect("device memory");
    region.register(domain).expect("registered");
    region
}

pub(crate) fn ring(slots: u32, slot_bytes: usize) -> StagingRing {
    let config = StagingConfig {
        slots,
        slot_bytes,
        ..StagingConfig::default()
    };
    StagingRing::new(config).expect("a ring")
}

pub(crate) fn device_pool(slots: usize, slot_size: usize) -> DeviceBufferManager {
    let stride = slot_size.next_multiple_of(512);
    let region = Region::device(slots * stride)
        .build()
        .expect("device memory");
    DeviceBufferManager::new(region, slot_size).expect("a pool")
}

/// Endpoints that send to one that receives, and what they said.
pub(crate) struct Setup {
    pub(crate) domain: Arc<Domain>,
    receiver: Option<ReceiveEndpoint>,
    senders: Vec<SendEndpointZeroCopy>,
    pub(crate) arrived: VecDeque<DeviceMessage>,
    received: Vec<ReceiveEvent>,
    sent: Vec<SendEvent>,
    busy: Vec<SendEvent>,
}

impl Setup {
    pub(crate) fn new(receive: ReceiveConfig, senders: Vec<SendConfig>) -> Option<Self> {
        let domain = domain()?;
        let receiver = ReceiveEndpoint::listen(&domain, any_port(), receive).expect("listens");
        let addr = receiver.local_addr();
        let connect = |config| SendEndpointZeroCopy::connect(&domain, addr, config);
        let senders = senders
            .into_iter()
            .map(connect)
            .collect::<Result<Vec<_>, _>>();
        let mut this = Self {
            senders: senders.expect("connects"),
            receiver: Some(receiver),
            domain,
            arrived: VecDeque::new(),
            received: Vec::new(),
            sent: Vec::new(),
            busy: Vec::new(),
        };
        let count = this.senders.len();
        this.until("connections", |it| {
            let connected = |event: &&SendEvent| {
                matches!(event, SendEvent::Connection(ConnectionEvent::Connected(_)))
            };
            it.busy.iter().filter(connected).count() == count
        });
        Some(this)
    }

    fn poll(&mut self) {
        for sender in &mut self.senders {
            let mut events = Vec::new();
            sender.poll(&mut events).expect("polls");
            for event in events {
                match event {
                    SendEvent::Completed { .. } | SendEvent::Failed { .. } => self.sent.push(event),
                    other => self.busy.push(other),
                }
            }
        }
        let mut events = Vec::new();
        if let Some(receiver) = &mut self.receiver {
            receiver.poll(&mut events).expect("polls");
        }
        for event in events {
            match event {
                ReceiveEvent::DeviceMessage(message) => self.arrived.push_back(message),
                ReceiveEvent::Undelivered { error, .. } => panic!("{error}"),
                other => self.received.push(other),
            }
        }
    }

    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !done(self) {
            assert!(
                Instant::now() < deadline,
                "no {what} within {LIMIT:?}: {:?} {:?} {:?}",
                self.received,
                self.busy,
                self.sent
            );
            self.poll();
        }
    }

    /// For a while, in which nothing is to happen.
    pub(crate) fn idle(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.poll();
        }
    }

    /// Sends, and comes back to it while something stands in the way.
    #[track_caller]
    pub(crate) fn send(&mut self, sender: usize, payload: impl Into<Payload>, key: u64) {
        let mut payload = Some(payload.into());
        self.until_sent(sender, &mut payload, key);
    }

    #[track_caller]
    fn until_sent(&mut self, sender: usize, payload: &mut Option<Payload>, key: u64) {
        let deadline = Instant::now() + LIMIT;
        while let Some(next) = payload.take() {
            match self.senders[sender].send_data(next, &key.to_le_bytes(), key) {
                Ok(()) => return,
                Err(refused) if refused.is_would_block() => *payload = Some(refused.given),
                Err(refused) => panic!("{refused}"),
            }
            assert!(Instant::now() < deadline, "refused for {LIMIT:?}");
            self.poll();
        }
    }

    /// The outcomes of that many sends: keys, and payloads; none failed.
    #[track_caller]
    pub(crate) fn outcomes(&mut self, count: usize) -> Vec<(u64, Payload)> {
        self.until("outcomes", |it| it.sent.len() >= count);
        let done = self.sent.drain(..).map(|event| match event {
            SendEvent::Completed { key, payload } => (key, payload),
            other => panic!("{other:?}"),
        });
        done.collect()
    }

    /// The next message, with its content.
    #[track_caller]
    pub(crate) fn message(&mut self, stream: &Stream) -> (u64, Vec<u8>) {
        self.until("message", |it| !it.arrived.is_empty());
        let message = self.arrived.pop_front().expect("just asked");
        let key = u64::from_le_bytes(message.header().try_into().expect("a key"));
        let mut bytes = vec![0; message.payload().len()];
        let payload = message.into_payload();
        payload.copy_to_host(&mut bytes, stream).expect("copied");
        (key, bytes)
    }
}

pub(crate) fn any_port() -> PeerAddr {
    "127.0.0.1:0".parse().expect("an address")
}

pub(crate) fn receive(max_message: usize, pool: DeviceBufferManager) -> ReceiveConfig {
    ReceiveConfig::default()
        .incoming(|incoming| {
            incoming
                .max_message(max_message)
                .slots(24)
                .credits(8)
                .deliver_to(DeviceDelivery::new(pool))
        })
        .connection(|c| c.max_connections(2))
}

pub(crate) fn staged(ring: &StagingRing) -> SendConfig {
    SendConfig::default().outgoing(|out| out.staging(ring))
}

// ---- content ------------------------------------------------------------------------------------

#[test]
fn every_size_and_offset_arrives_as_it_was() {
    on_gpu(
        "endpoints::every_size_and_offset_arrives_as_it_was",
        &[],
        |gpu| {
            let stream = gpu.stream();
            let ring = ring(8, MIB);
            let config = receive(3 * MIB + 64, device_pool(4, 3 * MIB + 64));
            let Some(mut setup) = Setup::new(config, vec![staged(&ring)]) else {
                return;
            };
            let region = device_region(&setup.domain, 4 * MIB);
            let sizes = [
                0,
                1,
                7,
                64,
                4095,
                4096,
                65_537,
                MIB - 1,
                MIB,
                MIB + 1,
                3 * MIB,
            ];
            let mut key = 0;
            for size in sizes {
                for offset in [0, 1, 4093] {
                    key += 1;
                    let slice = filled(&region, offset, size, key, &stream);
                    setup.send(0, slice, key);
                    let (got, bytes) = setup.message(&stream);
                    assert_eq!(got, key);
                    assert!(
                        bytes == pattern(size, key),
                        "{size} bytes at {offset}: other content"
                    );
                    let (done, payload) = setup.outcomes(1).remove(0);
                    assert_eq!(done, key);
                    let slice = payload.into_slice().expect("what was given");
                    assert_eq!((slice.offset(), slice.len()), (offset, size));
                }
            }
            assert_eq!(ring.free_slots(), 8);
            if let Some(fake) = &gpu.fake {
                assert_eq!(
                    fake.count(Count::Pageable),
                    2 * (key as i64 - 3),
                    "only the test's own"
                );
            }
        },
    );
}

#[test]
fn several_segments_are_one_message() {
    on_gpu("endpoints::several_segments_are_one_message", &[], |gpu| {
        let stream = gpu.stream();
        let ring = ring(4, MIB);
        let config = receive(MIB, device_pool(2, MIB));
        let Some(mut setup) = Setup::new(config, vec![staged(&ring)]) else {
            return;
        };
        let region = device_region(&setup.domain, MIB);
        let pool = SharedBufferManager::allocate(1, 100).expect("a pool");
        pool.region().register(&setup.domain).expect("registered");
        let mut host = pool.try_acquire().expect("free");
        host[..100].copy_from_slice(&pattern(100, 3));
        let payload: Payload = [
            filled(&region, 5, 1000, 1, &stream).into(),
            filled(&region, 3001, 999, 2, &stream).into(),
            fabricast::buffer::Segment::from(host.freeze(100)),
            filled(&region, 8000, 1, 4, &stream).into(),
        ]
        .into_iter()
        .collect();
        setup.send(0, payload, 9);
        let (_, bytes) = setup.message(&stream);
        let whole = [
            pattern(1000, 1),
            pattern(999, 2),
            pattern(100, 3),
            pattern(1, 4),
        ];
        assert!(bytes == whole.concat(), "another content");
        let (_, payload) = setup.outcomes(1).remove(0);
        assert_eq!(payload.segments().len(), 4);
        assert_eq!(ring.stats().payloads, 1);
    });
}

#[test]
fn several_endpoints_share_a_ring_in_both_directions() {
    on_gpu(
        "endpoints::several_endpoints_share_a_ring_in_both_directions",
        &[("FAKE_CUDA_DELAY_US", "200")],
        |gpu| {
            let stream = gpu.stream();
            let ring = ring(6, 256 * 1024);
            let config = || receive(256 * 1024, device_pool(6, 256 * 1024));
            let senders = || vec![staged(&ring), staged(&ring)];
            let (Some(there), Some(back)) = (
                Setup::new(config(), senders()),
                Setup::new(config(), senders()),
            ) else {
                return;
            };
            let mut ways = [there, back];
            let regions: Vec<_> = ways
                .iter()
                .map(|way| device_region(&way.domain, MIB))
                .collect();
            let slices: Vec<Vec<_>> = regions
                .iter()
                .map(|region| {
                    (0..8)
                        .map(|n| filled(region, n * 100_003, 100_003, n as u64, &stream))
                        .collect()
                })
                .collect();
            let rounds = 12;
            for round in 0..rounds {
                for (way, slices) in ways.iter_mut().zip(&slices) {
                    let n = round % 8;
                    way.send(0, slices[n].clone(), n as u64);
                    way.send(1, slices[n].clone(), n as u64);
                }
                // A device's pool has 6: taken out while others are under way.
                for way in &mut ways {
                    for _ in 0..2 {
                        let (key, bytes) = way.message(&stream);
                        assert!(bytes == pattern(100_003, key), "another content");
                    }
                }
            }
            for way in &mut ways {
                assert_eq!(way.outcomes(2 * rounds).len(), 2 * rounds);
            }
            assert_eq!(ring.free_slots(), 6);
            let stats = ring.stats();
            assert_eq!(stats.payloads, 4 * rounds as u64);
            assert!(stats.overlapped > 0, "{stats:?}");
        },
    );
}

#[test]
fn a_message_longer_than_the_receives_goes_piece_by_piece() {
    on_gpu(
        "endpoints::a_message_longer_than_the_receives_goes_piece_by_piece",
        &[],
        |gpu| {
            let stream = gpu.stream();
            let sizes: &[usize] = match gpu.is_fake() {
                true => &[MIB, 5 * MIB + 13, 16 * MIB],
                false => &[MIB, 64 * MIB + 13, 1 << 30],
            };
            let largest = sizes[sizes.len() - 1] + 64;
            let pinned = Region::pinned(largest).build().expect("pinned memory");
            let settings = SharedBufferConfig::new(largest);
            let pool = SharedBufferManager::new(pinned, settings).expect("a pool");
            let ring = ring(8, MIB);
            let config = receive(64 * 1024, device_pool(1, largest))
                .incoming(|i| i.long_messages(LongMessages::new(pool)));
            let Some(mut setup) = Setup::new(config, vec![staged(&ring)]) else {
                return;
            };
            let region = device_region(&setup.domain, largest);
            for (key, &size) in sizes.iter().enumerate() {
                let key = key as u64;
                let slice = filled(&region, 3, size, key, &stream);
                setup.send(0, slice, key);
                let (got, bytes) = setup.message(&stream);
                assert_eq!((got, bytes.len()), (key, size));
                assert!(bytes == pattern(size, key), "{size} bytes: other content");
                assert_eq!(setup.outcomes(1)[0].0, key);
            }
            assert_eq!(ring.free_slots(), 8);
            assert!(ring.stats().overlapped > 0, "{:?}", ring.stats());
        },
    );
}

#[test]
fn endpoints_without_connections_stage_too() {
    on_gpu(
        "endpoints::endpoints_without_connections_stage_too",
        &[],
        |gpu| {
            let Some(domain) = rdm_domain() else { return };
            let (stream, ring) = (gpu.stream(), ring(4, MIB));
            let config = || {
                ConnectionlessConfig::default()
                    .incoming(|incoming| incoming.max_message(MIB))
                    .max_peers(2)
                    .outgoing(|out| out.staging(&ring))
            };
            let endpoint = || ConnectionlessEndpoint::open(&domain, any_port(), config());
            let (mut a, mut b) = (endpoint().expect("opens"), endpoint().expect("opens"));
            let region = device_region(&domain, MIB);
            let event = stream.record().expect("an event");
            let (mut sent, mut done, mut came) = (0, 0, 0);
            let (mut events, deadline) = (Vec::new(), Instant::now() + LIMIT);
            while done < 10 || came < 10 {
                assert!(Instant::now() < deadline, "{sent} sent, {came} came");
                let payload = filled(&region, 77, 100_000, 5, &stream);
                let payload = Payload::from(payload).after(&event);
                if sent < 10 {
                    match a.send_data(b.local_addr(), payload, b"h", sent) {
                        Ok(()) => sent += 1,
                        Err(refused) => assert!(refused.is_would_block(), "{refused}"),
                    }
                }
                a.poll(&mut events).expect("polls");
                b.poll(&mut events).expect("polls");
                for event in events.drain(..) {
                    match event {
                        ConnectionlessEvent::Completed { payload, .. } => {
                            assert!(payload.into_slice().is_ok(), "as it was given");
                            done += 1;
                        }
                        ConnectionlessEvent::Message { message, .. } => {
                            assert!(message.payload() == pattern(100_000, 5));
                            came += 1;
                        }
                        ConnectionlessEvent::Failed { error, .. } => panic!("{error}"),
                        _ => {}
                    }
                }
            }
            assert_eq!(ring.stats().payloads, 10);
        },
    );
}

fn connectionless(config: ConnectionlessConfig, domain: &Arc<Domain>) -> ConnectionlessEndpoint {
    ConnectionlessEndpoint::open(domain, any_port(), config).expect("opens")
}

#[test]
fn endpoints_without_connections_deliver_to_a_gpu() {
    on_gpu(
        "endpoints::endpoints_without_connections_deliver_to_a_gpu",
        &[("FAKE_CUDA_DELAY_US", "300")],
        |gpu| {
            let Some(domain) = rdm_domain() else { return };
            let (stream, ring) = (gpu.stream(), ring(4, MIB));
            let pool = device_pool(2, MIB);
            let config = || {
                ConnectionlessConfig::default()
                    .incoming(|incoming| incoming.max_message(MIB))
                    .max_peers(2)
            };
            let mut a = connectionless(config().outgoing(|out| out.staging(&ring)), &domain);
            let delivery = DeviceDelivery::new(pool.clone());
            let mut b = connectionless(
                config().incoming(|incoming| incoming.deliver_to(delivery)),
                &domain,
            );
            let region = device_region(&domain, 16 * MIB);
            let (mut sent, mut keys) = (0, Vec::new());
            let (mut events, mut over) = (Vec::new(), false);
            let deadline = Instant::now() + LIMIT;
            while !over {
                assert!(Instant::now() < deadline, "{sent} sent, {keys:?} came");
                if sent < 10 {
                    let slice = filled(&region, sent as usize * MIB + 3, 100_001, sent, &stream);
                    match a.send_data(b.local_addr(), slice, &sent.to_le_bytes(), sent) {
                        Ok(()) => sent += 1,
                        Err(refused) => assert!(refused.is_would_block(), "{refused}"),
                    }
                }
                events.clear();
                a.poll(&mut events).expect("polls");
                for event in events.drain(..) {
                    assert!(
                        !matches!(event, ConnectionlessEvent::Failed { .. }),
                        "{event:?}"
                    );
                }
                b.poll(&mut events).expect("polls");
                for event in events.drain(..) {
                    match event {
                        ConnectionlessEvent::DeviceMessage { message, .. } => {
                            let key = u64::from_le_bytes(message.header().try_into().expect("8"));
                            let mut bytes = vec![0; message.payload().len()];
                            let payload = message.payload();
                            payload.copy_to_host(&mut bytes, &stream).expect("copied");
                            assert!(bytes == pattern(100_001, key), "another content");
                            keys.push(key);
                        }
                        ConnectionlessEvent::Message { .. } => panic!("not delivered"),
                        ConnectionlessEvent::Undelivered { error, .. } => panic!("{error}"),
                        _ => {}
                    }
                }
                over = keys.len() == 10;
            }
            assert_eq!(keys, (0..10).collect::<Vec<_>>());
            assert_eq!(pool.free_count(), 2);
            let too_small = config().incoming(|incoming| {
                incoming.deliver_to(DeviceDelivery::new(device_pool(1, MIB - 1)))
            });
            let refused = ConnectionlessEndpoint::open(&domain, any_port(), too_small);
            let refused = refused.expect_err("too small").to_string();
            assert!(refused.contains("deliver_to"), "{refused}");
        },
    );
}

/// A goodbye comes behind the messages before it, also where they wait for the only buffer.
#[test]
fn the_end_of_a_peer_is_told_behind_its_messages() {
    on_gpu(
        "endpoints::the_end_of_a_peer_is_told_behind_its_messages",
        &[("FAKE_CUDA_DELAY_US", "1000")],
        |gpu| {
            let Some(domain) = rdm_domain() else { return };
            let stream = gpu.stream();
            let ring = ring(8, 4096);
            let pool = device_pool(1, MIB);
            let config = || {
                ConnectionlessConfig::default()
                    .incoming(|incoming| incoming.max_message(MIB))
                    .max_peers(2)
            };
            let mut a = connectionless(config().outgoing(|out| out.staging(&ring)), &domain);
            let delivery = DeviceDelivery::new(pool.clone());
            let mut b = connectionless(
                config().incoming(|incoming| incoming.deliver_to(delivery)),
                &domain,
            );
            let region = device_region(&domain, MIB);
            let slice = filled(&region, 0, 4000, 1, &stream);
            let (mut sent, mut events) = (0, Vec::new());
            let (mut held, mut came, mut down) = (Vec::new(), 0, false);
            let deadline = Instant::now() + LIMIT;
            while sent < 6 {
                assert!(Instant::now() < deadline);
                if a.send_data(b.local_addr(), slice.clone(), b"", sent)
                    .is_ok()
                {
                    sent += 1;
                }
                a.poll(&mut Vec::new()).expect("polls");
                b.poll(&mut events).expect("polls");
            }
            let peer = a.peer_at(&b.local_addr()).expect("known");
            a.remove_peer_by(peer, deadline).expect("begins");
            while !down {
                assert!(Instant::now() < deadline, "{came} came");
                a.poll(&mut Vec::new()).expect("polls");
                b.poll(&mut events).expect("polls");
                for event in events.drain(..) {
                    match event {
                        ConnectionlessEvent::DeviceMessage { message, .. } => {
                            came += 1;
                            held.push(message);
                        }
                        ConnectionlessEvent::Connection(_, ConnectionEvent::Disconnected(_)) => {
                            down = true;
                        }
                        _ => {}
                    }
                }
                // One at a time: there is one buffer.
                assert!(held.len() <= 1);
                held.clear();
            }
            assert_eq!(came, 6, "before its end");
        },
    );
}

/// A fragment of a ring, and a buffer, between parts that are copied; as one message, and piece by
/// piece.
#[test]
fn fragments_of_rings_go_among_what_is_staged() {
    on_gpu(
        "endpoints::fragments_of_rings_go_among_what_is_staged",
        &[],
        |gpu| {
            let stream = gpu.stream();
            let staging = ring(8, MIB);
            let largest = 6 * MIB;
            let pinned = Region::pinned(largest).build().expect("pinned memory");
            let long = SharedBufferManager::new(pinned, SharedBufferConfig::new(largest));
            let config = receive(64 * 1024, device_pool(1, largest))
                .incoming(|i| i.long_messages(LongMessages::new(long.expect("a pool"))));
            let Some(mut setup) = Setup::new(config, vec![staged(&staging)]) else {
                return;
            };
            let region = device_region(&setup.domain, largest);
            for (key, size) in [(1, 1000), (2, 2 * MIB + 5)] {
                let memory = Region::host(size + 4096).build().expect("memory");
                memory.register(&setup.domain).expect("registered");
                let mut ring = RingRegion::new(memory, RingConfig::default()).expect("a ring");
                // So that the next one wraps around.
                drop(ring.reserve(size).expect("room"));
                let mut reservation = ring.reserve(size).expect("room");
                let (first, second) = reservation.segments_mut().expect("of the host");
                let bytes = pattern(size, 100 + key);
                let (head, tail) = bytes.split_at(first.len());
                first.copy_from_slice(head);
                second.copy_from_slice(tail);
                let fragment = ring.commit(reservation, size);
                let payload: Payload = [
                    Segment::from(fragment),
                    filled(&region, 7, size + 1, key, &stream).into(),
                ]
                .into_iter()
                .collect();
                setup.send(0, payload, key);
                let (got, came) = setup.message(&stream);
                assert_eq!(got, key);
                let expected = [bytes, pattern(size + 1, key)].concat();
                assert!(came == expected, "{size}: another content");
                let (_, payload) = setup.outcomes(1).remove(0);
                let first = payload.into_segments().next().expect("two");
                assert_eq!(first.into_fragment().expect("as it was").len(), size);
                assert_eq!(ring.outstanding(), 0);
            }
            assert_eq!(staging.free_slots(), 8);
        },
    );
}

// ---- order with streams -------------------------------------------------------------------------

#[test]
fn what_a_stream_writes_is_sent_after_it_was_written() {
    on_gpu(
        "endpoints::what_a_stream_writes_is_sent_after_it_was_written",
        &[],
        |gpu| {
            let stream = gpu.stream();
            let ring = ring(4, MIB);
            let config = receive(MIB, device_pool(4, MIB));
            let Some(mut setup) = Setup::new(config, vec![staged(&ring)]) else {
                return;
            };
            let region = device_region(&setup.domain, MIB);
            let first = filled(&region, 0, 1000, 1, &stream);
            let second = filled(&region, 2000, 1000, 2, &stream);
            if let Some(fake) = &gpu.fake {
                fake.block(&stream);
            }
            let event = stream.record().expect("an event");
            setup.send(0, Payload::from(first).after(&event), 1);
            setup.send(0, second, 2);
            setup.send(0, Payload::empty().after(&event), 3);
            if let Some(fake) = &gpu.fake {
                setup.idle(Duration::from_millis(50));
                assert!(setup.arrived.is_empty(), "before its event");
                assert_eq!(
                    ring.stats().payloads,
                    1,
                    "only the second, which waits for none"
                );
                fake.unblock();
            }
            for key in 1..4 {
                let (got, bytes) = setup.message(&gpu.stream());
                assert_eq!(got, key, "in order");
                assert!(bytes.is_empty() == (key == 3));
            }
            assert_eq!(setup.outcomes(3).len(), 3);
        },
    );
}

#[test]
fn a_stream_that_is_named_finds_what_arrived() {
    on_gpu(
        "endpoints::a_stream_that_is_named_finds_what_arrived",
        &[("FAKE_CUDA_DELAY_US", "3000")],
        |gpu| {
            let stream = gpu.stream();
            let ring = ring(4, MIB);
            let consumer = gpu.stream();
            let delivery = DeviceDelivery::new(device_pool(4, MIB)).stream(&consumer);
            let config = receive(MIB, device_pool(1, MIB))
                .incoming(|incoming| incoming.deliver_to(delivery));
            let Some(mut setup) = Setup::new(config, vec![staged(&ring)]) else {
                return;
            };
            let region = device_region(&setup.domain, MIB);
            for key in 0..6 {
                let slice = filled(&region, 17, 300_000, key, &stream);
                setup.send(0, slice, key);
                setup.until("message", |it| !it.arrived.is_empty());
                // In the order of the consumer's stream, which waits by itself.
                let (got, bytes) = setup.message(&consumer);
                assert_eq!(got, key);
                assert!(bytes == pattern(300_000, key), "read before it was there");
                setup.outcomes(1);
            }
        },
    );
}

// ---- bounds -------------------------------------------------------------------------------------

#[test]
fn a_full_ring_is_back_pressure_and_says_when_it_is_over() {
    on_gpu(
        "endpoints::a_full_ring_is_back_pressure_and_says_when_it_is_over",
        &[("FAKE_CUDA_DELAY_US", "20000")],
        |gpu| {
            let stream = gpu.stream();
            let ring = ring(2, 4096);
            let config = receive(64 * 1024, device_pool(4, 64 * 1024));
            let Some(mut setup) = Setup::new(config, vec![staged(&ring)]) else {
                return;
            };
            let region = device_region(&setup.domain, MIB);
            let slice = filled(&region, 1, 4096, 1, &stream);
            setup.send(0, slice.clone(), 1);
            setup.send(0, slice.clone(), 1);
            if gpu.is_fake() {
                let refused = setup.senders[0].send_data(slice.clone(), &[0; 8], 9);
                let refused = refused.expect_err("no slot is free");
                assert_eq!(refused.kind, SendErrorKind::WouldBlock(Blocked::Staging));
                assert!(refused.given.into_slice().is_ok(), "as it was given");
                setup.until("writable", |it| {
                    it.busy
                        .iter()
                        .any(|event| matches!(event, SendEvent::Writable))
                });
            }
            setup.send(0, slice, 1);
            for _ in 0..3 {
                let (_, bytes) = setup.message(&stream);
                assert!(bytes == pattern(4096, 1), "another content");
            }
            setup.outcomes(3);
            let long = region.slice(0..8193).expect("inside");
            let refused = setup.senders[0].send_data(long, &[0; 8], 9);
            assert_eq!(
                refused.expect_err("too long").kind,
                SendErrorKind::StagingTooLong {
                    len: 8193,
                    max: 8192
                }
            );
        },
    );
}

#[test]
fn without_a_free_device_buffer_messages_wait_in_order() {
    on_gpu(
        "endpoints::without_a_free_device_buffer_messages_wait_in_order",
        &[],
        |gpu| {
            let stream = gpu.stream();
            let ring = ring(4, MIB);
            let config = receive(MIB, device_pool(1, MIB));
            let Some(mut setup) = Setup::new(config, vec![staged(&ring)]) else {
                return;
            };
            let region = device_region(&setup.domain, MIB);
            for key in 0..20 {
                let slice = filled(&region, 0, 50_000, key, &stream);
                setup.send(0, slice, key);
                // What was sent may be overwritten.
                setup.outcomes(1);
                if key == 0 {
                    setup.until("message", |it| it.arrived.len() == 1);
                }
                if key >= 8 {
                    setup.message(&stream);
                }
            }
            assert_eq!(setup.arrived.len(), 0, "one buffer, one message");
            for _ in 0..8 {
                setup.message(&stream);
            }
            setup.idle(Duration::from_millis(5));
            assert!(setup.arrived.is_empty());
        },
    );
}

#[test]
fn without_a_ring_it_is_refused_in_words() {
    on_gpu(
        "endpoints::without_a_ring_it_is_refused_in_words",
        &[],
        |_| {
            let config = receive(MIB, device_pool(1, MIB));
            let Some(mut setup) = Setup::new(config, vec![SendConfig::default()]) else {
                return;
            };
            let region = device_region(&setup.domain, 4096);
            let slice = region.slice(0..100).expect("inside");
            let refused = setup.senders[0].send_data(slice, &[0; 8], 1);
            let refused = refused.expect_err("no ring");
            assert_eq!(refused.kind, SendErrorKind::NotStaged { segment: 0 });
            assert!(refused.to_string().contains("StagingRing"), "{refused}");
        },
    );
}

#[test]
fn buffers_that_are_too_small_are_refused() {
    on_gpu(
        "endpoints::buffers_that_are_too_small_are_refused",
        &[],
        |_| {
            let Some(domain) = domain() else { return };
            let config = receive(MIB, device_pool(1, MIB - 1));
            let refused = ReceiveEndpoint::listen(&domain, any_port(), config);
            assert!(
                refused
                    .expect_err("too small")
                    .to_string()
                    .contains("deliver_to")
            );
        },
    );
}

// ---- what fails, and what goes ------------------------------------------------------------------

#[test]
fn a_copy_that_fails_is_the_end_of_its_send_alone() {
    on_gpu(
        "endpoints::a_copy_that_fails_is_the_end_of_its_send_alone",
        &[],
        |gpu| {
            let Some(fake) = &gpu.fake else { return };
            let stream = gpu.stream();
            let ring = ring(4, MIB);
            let config = receive(MIB, device_pool(2, MIB));
            let Some(mut setup) = Setup::new(config, vec![staged(&ring)]) else {
                return;
            };
            let region = device_region(&setup.domain, MIB);
            let slice = filled(&region, 0, 1000, 7, &stream);
            for function in ["cuMemcpyDtoHAsync", "cuEventRecord", "cuEventQuery"] {
                fake.fail(function, 700);
                setup.send(0, slice.clone(), 1);
                setup.send(0, slice.clone(), 2);
                setup.until("outcomes", |it| it.sent.len() == 2);
                let (mut failed, mut completed) = (0, 0);
                for event in setup.sent.drain(..) {
                    match event {
                        SendEvent::Failed {
                            key,
                            payload,
                            error,
                        } => {
                            failed = key;
                            assert!(payload.into_slice().is_ok(), "as it was given");
                            assert!(error.to_string().contains("700"), "{error}");
                        }
                        SendEvent::Completed { key, .. } => completed = key,
                        other => panic!("{other:?}"),
                    }
                }
                // Copies are begun in order; which of them is asked about first is not said.
                let first = failed == 1 || function == "cuEventQuery";
                assert!(first, "{function}: {failed}");
                assert_eq!(failed + completed, 3, "{function}: one of both failed");
                let (key, bytes) = setup.message(&stream);
                assert_eq!(key, completed);
                assert!(bytes == pattern(1000, 7));
                assert_eq!(ring.free_slots(), 4);
            }
        },
    );
}

/// In each order, with copies in flight on both sides.
#[test]
fn whatever_goes_first_nothing_that_a_copy_uses_goes_with_it() {
    on_gpu(
        "endpoints::whatever_goes_first_nothing_that_a_copy_uses_goes_with_it",
        &[],
        |gpu| {
            let stream = gpu.stream();
            for order in 0..24 {
                if let Some(fake) = &gpu.fake {
                    fake.delay(Duration::from_micros(1500));
                }
                let staging = ring(8, 64 * 1024);
                let pool = device_pool(4, 64 * 1024);
                let config = receive(64 * 1024, pool.clone());
                let Some(mut setup) = Setup::new(config, vec![staged(&staging)]) else {
                    return;
                };
                let region = device_region(&setup.domain, MIB);
                let slice = filled(&region, 0, 60_000, 1, &stream);
                for key in 0..6 {
                    setup.send(0, slice.clone(), key);
                    setup.poll();
                }
                setup.idle(Duration::from_millis(order % 7));
                let mut parts: Vec<Box<dyn Any>> = vec![
                    Box::new(std::mem::take(&mut setup.senders)),
                    Box::new(setup.receiver.take()),
                    Box::new((staging, pool, slice, region)),
                    Box::new(setup),
                ];
                let mut left = order as usize;
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
fn a_close_brings_what_was_sent() {
    on_gpu(
        "endpoints::a_close_brings_what_was_sent",
        &[("FAKE_CUDA_DELAY_US", "5000")],
        |gpu| {
            let stream = gpu.stream();
            let ring = ring(8, 64 * 1024);
            let config = receive(64 * 1024, device_pool(8, 64 * 1024));
            let Some(mut setup) = Setup::new(config, vec![staged(&ring)]) else {
                return;
            };
            let region = device_region(&setup.domain, MIB);
            for key in 0..6 {
                let slice = filled(&region, key as usize * 70_000, 60_000, key, &stream);
                setup.send(0, slice, key);
            }
            for sender in &mut setup.senders {
                sender.begin_close(Instant::now() + LIMIT);
            }
            setup.until("end", |it| {
                it.received.iter().any(|event| {
                    matches!(
                        event,
                        ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(_))
                    )
                })
            });
            assert_eq!(setup.arrived.len(), 6, "before the end was told");
            for key in 0..6 {
                let (got, bytes) = setup.message(&stream);
                assert_eq!(got, key);
                assert!(bytes == pattern(60_000, key));
            }
        },
    );
}

/// A sleeper finds its way through copies, though nobody tells it that they are done.
#[test]
fn waiting_endpoints_get_on() {
    on_gpu(
        "endpoints::waiting_endpoints_get_on",
        &[("FAKE_CUDA_DELAY_US", "2000")],
        |gpu| {
            let stream = gpu.stream();
            let ring = ring(2, 64 * 1024);
            let config = receive(64 * 1024, device_pool(2, 64 * 1024));
            let Some(mut setup) = Setup::new(config, vec![staged(&ring)]) else {
                return;
            };
            let region = device_region(&setup.domain, MIB);
            let slice = filled(&region, 0, 60_000, 1, &stream);
            let begun = Instant::now();
            for key in 0..5 {
                setup.send(0, slice.clone(), key);
                while setup.sent.is_empty() {
                    setup.senders[0].wait(LIMIT).expect("waits");
                    setup.poll();
                }
                setup.sent.clear();
                while setup.arrived.is_empty() {
                    let receiver = setup.receiver.as_ref().expect("there");
                    receiver.wait(LIMIT).expect("waits");
                    setup.poll();
                }
                setup.arrived.clear();
            }
            // A wait that nothing ended would have taken all of it.
            assert!(begun.elapsed() < LIMIT, "slept too long");
        },
    );
}
