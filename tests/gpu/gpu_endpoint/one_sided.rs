//! One-sided operations out of a GPU's memory and into it, of both kinds of endpoints, over tcp and
//! over a provider without connections.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::buffer::{DeviceBufferManager, Payload, RegionSlice, SharedBufferManager};
use fabricast::endpoint::{
    Access, Blocked, ConnectionId, Destination, LocalWindow, ReceiveConfig, RemoteWindow,
    SendConfig, SendErrorKind, StagingRing, WindowError, WindowEvent,
};
use fabricast::fabric::EndpointKind;
use fabricast::{
    ConnectionEvent, Domain, ReceiveEndpoint, ReceiveEvent, Region, SendEndpointZeroCopy, SendEvent,
};

use super::endpoints::{LIMIT, any_port, device_region, domain, filled, rdm_domain, ring};
use super::fake::{Count, Gpu, on_gpu};
use crate::pattern::pattern;

const KIB: usize = 1 << 10;
/// Bytes of a slot of the ring.
const SLOT: usize = 64 * KIB;
/// Bytes of each window, and of each region of a device.
const BYTES: usize = 512 * KIB;

/// A sender and a receiver, each with a window of the other's.
struct Pair {
    domain: Arc<Domain>,
    sender: SendEndpointZeroCopy,
    receiver: ReceiveEndpoint,
    connection: ConnectionId,
    ring: StagingRing,
    /// The receiver's window and the sender's, in memory of the host.
    windows: [RegionSlice; 2],
    _locals: [LocalWindow; 2],
    remotes: [RemoteWindow; 2],
    /// Outcomes by key.
    done: HashMap<u64, WindowEvent>,
    told: Vec<u32>,
    other: Vec<String>,
}

/// Which end operates.
#[derive(Clone, Copy, Debug)]
enum End {
    Sender,
    Receiver,
}

impl Pair {
    fn new(kind: EndpointKind, slots: u32) -> Option<Self> {
        let domain = match kind {
            EndpointKind::Msg => domain(),
            EndpointKind::Rdm => rdm_domain(),
        }?;
        let ring = ring(slots, SLOT);
        let config = ReceiveConfig::default()
            .connection(|c| c.max_connections(2).windows(4))
            .outgoing(|out| out.staging(&ring));
        let mut receiver = ReceiveEndpoint::listen(&domain, any_port(), config).expect("listens");
        let config = SendConfig::default()
            .outgoing(|out| out.staging(&ring))
            .connection(|c| c.windows(4));
        let mut sender = SendEndpointZeroCopy::connect(&domain, receiver.local_addr(), config)
            .expect("connects");
        let connection = established(&mut sender, &mut receiver);
        let windows = [host_memory(), host_memory()];
        let theirs = receiver
            .windows(connection)
            .expose(windows[0].clone(), Access::all());
        let ours = sender.windows().expose(windows[1].clone(), Access::all());
        let locals = [theirs.expect("exposed"), ours.expect("exposed")];
        let remotes = [
            sender
                .windows()
                .open(&locals[0].descriptor())
                .expect("opens"),
            receiver
                .windows(connection)
                .open(&locals[1].descriptor())
                .expect("opens"),
        ];
        Some(Self {
            domain,
            sender,
            receiver,
            connection,
            ring,
            windows,
            _locals: locals,
            remotes,
            done: HashMap::new(),
            told: Vec::new(),
            other: Vec::new(),
        })
    }

    fn remote(&self, end: End) -> RemoteWindow {
        self.remotes[end as usize].clone()
    }

    /// What the peer of that end sees in its window.
    fn seen(&self, end: End, at: usize, len: usize) -> Vec<u8> {
        let slice = &self.windows[end as usize];
        let mut bytes = vec![0; len];
        for (offset, byte) in bytes.iter_mut().enumerate() {
            *byte = peek(slice, at + offset);
        }
        bytes
    }

    fn poll(&mut self) {
        let mut events = Vec::new();
        self.sender.poll(&mut events).expect("polls");
        for event in events {
            match event {
                SendEvent::Window(event) => self.take(event),
                SendEvent::Writable => {}
                other => self.other.push(format!("{other:?}")),
            }
        }
        let mut events = Vec::new();
        self.receiver.poll(&mut events).expect("polls");
        for event in events {
            match event {
                ReceiveEvent::Window { event, .. } => self.take(event),
                ReceiveEvent::Writable { .. } => {}
                other => self.other.push(format!("{other:?}")),
            }
        }
    }

    fn take(&mut self, event: WindowEvent) {
        match event.outcome_of() {
            Some(key) => assert!(
                self.done.insert(key, event).is_none(),
                "two outcomes of {key}"
            ),
            None => match event {
                WindowEvent::PeerWrote { data, .. } => self.told.push(data),
                other => self.other.push(format!("{other:?}")),
            },
        }
    }

    #[track_caller]
    fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !done(self) {
            assert!(Instant::now() < deadline, "no {what}: {:?}", self.other);
            self.poll();
        }
    }

    /// For a while, in which nothing is to happen.
    fn idle(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.poll();
        }
    }

    /// Writes, and comes back to it while something stands in the way.
    #[track_caller]
    fn write(&mut self, end: End, payload: impl Into<Payload>, at: usize, key: u64) {
        self.write_and_tell(end, payload.into(), at, None, key);
    }

    #[track_caller]
    fn write_and_tell(
        &mut self,
        end: End,
        mut payload: Payload,
        at: usize,
        data: Option<u32>,
        key: u64,
    ) {
        let (remote, deadline) = (self.remote(end), Instant::now() + LIMIT);
        loop {
            let place = remote.at(at as u64);
            let written = match (end, data) {
                (End::Sender, None) => self.sender.windows().write(payload, place, key),
                (End::Sender, Some(data)) => self
                    .sender
                    .windows()
                    .write_with_data(payload, place, data, key),
                // A sender grants nobody a credit, so nobody can tell it.
                (End::Receiver, _) => self
                    .receiver
                    .windows(remote.connection())
                    .write(payload, place, key),
            };
            match written {
                Ok(()) => return,
                Err(refused) if refused.is_would_block() => payload = refused.given,
                Err(refused) => panic!("{refused}"),
            }
            assert!(Instant::now() < deadline, "refused for {LIMIT:?}");
            self.poll();
        }
    }

    #[track_caller]
    fn read(&mut self, end: End, into: impl Into<Destination>, at: usize, key: u64) {
        let (remote, deadline) = (self.remote(end), Instant::now() + LIMIT);
        let mut into = into.into();
        loop {
            let place = remote.at(at as u64);
            let asked = match end {
                End::Sender => self.sender.windows().read(into, place, key),
                End::Receiver => self
                    .receiver
                    .windows(remote.connection())
                    .read(into, place, key),
            };
            match asked {
                Ok(()) => return,
                Err(refused) if refused.is_would_block() => into = refused.given,
                Err(refused) => panic!("{refused}"),
            }
            assert!(Instant::now() < deadline, "refused for {LIMIT:?}");
            self.poll();
        }
    }

    #[track_caller]
    fn outcome(&mut self, key: u64) -> WindowEvent {
        self.until("outcome", |it| it.done.contains_key(&key));
        self.done.remove(&key).expect("just asked")
    }

    #[track_caller]
    fn written(&mut self, key: u64) -> Payload {
        match self.outcome(key) {
            WindowEvent::Written { payload, .. } => payload,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn read_into(&mut self, key: u64) -> Destination {
        match self.outcome(key) {
            WindowEvent::Read { into, .. } => into,
            other => panic!("{other:?}"),
        }
    }

    /// Nothing is left behind.
    #[track_caller]
    fn end(self) {
        assert!(self.other.is_empty(), "{:?}", self.other);
        let slots = self.ring.free_slots();
        assert_eq!(self.ring.region().len() / SLOT, slots, "slots in use");
    }
}

fn established(sender: &mut SendEndpointZeroCopy, receiver: &mut ReceiveEndpoint) -> ConnectionId {
    let deadline = Instant::now() + LIMIT;
    let (mut near, mut far, mut found) = (Vec::new(), Vec::new(), None);
    while found.is_none() || !sender.is_connected() {
        assert!(Instant::now() < deadline, "no connection");
        sender.poll(&mut near).expect("polls");
        receiver.poll(&mut far).expect("polls");
        for event in far.drain(..) {
            if let ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_)) = event {
                found = Some(connection);
            }
        }
    }
    found.expect("just asked")
}

fn host_memory() -> RegionSlice {
    let region = Region::host(BYTES).build().expect("memory");
    region.slice(0..BYTES).expect("all of it")
}

#[allow(unsafe_code)]
fn peek(slice: &RegionSlice, at: usize) -> u8 {
    assert!(at < slice.len());
    // SAFETY: the slice's own memory; what a peer writes there meanwhile is a test that fails.
    unsafe { slice.as_ptr().wrapping_add(at).read_volatile() }
}

/// Each kind of endpoint, with the name of the test.
fn on_each(test: &str, env: &[(&str, &str)], body: impl Fn(&Gpu, EndpointKind)) {
    on_gpu(test, env, |gpu| {
        for kind in [EndpointKind::Msg, EndpointKind::Rdm] {
            body(gpu, kind);
        }
    });
}

#[test]
fn every_size_and_offset_is_written_and_read_as_it_was() {
    on_each(
        "one_sided::every_size_and_offset_is_written_and_read_as_it_was",
        &[],
        |gpu, kind| {
            let stream = gpu.stream();
            let Some(mut pair) = Pair::new(kind, 8) else {
                return;
            };
            let region = device_region(&pair.domain, BYTES);
            let (mut key, mut moved) = (0, 0);
            let sizes = [
                1,
                7,
                4095,
                SLOT - 1,
                SLOT,
                SLOT + 1,
                3 * SLOT + 77,
                6 * SLOT + 5,
            ];
            for end in [End::Sender, End::Receiver] {
                for size in sizes {
                    for offset in [0, 1, 4093] {
                        key += 1;
                        moved += size as u64;
                        let slice = filled(&region, offset, size, key, &stream);
                        pair.write(end, slice, offset + 5, key);
                        let slice = pair.written(key).into_slice().expect("what was given");
                        assert_eq!((slice.offset(), slice.len()), (offset, size));
                        assert!(
                            pair.seen(end, offset + 5, size) == pattern(size, key),
                            "{kind:?} {end:?}: {size} bytes at {offset}: other content"
                        );
                        let into = region.slice(offset + 3..offset + 3 + size).expect("inside");
                        pair.read(end, into, offset + 5, key);
                        let back = pair.read_into(key).into_slice().expect("what was given");
                        let mut bytes = vec![0; size];
                        back.copy_to_host(&mut bytes, &stream).expect("copied");
                        assert!(
                            bytes == pattern(size, key),
                            "{kind:?} {end:?}: {size} bytes read to {offset}: other content"
                        );
                    }
                }
            }
            let stats = pair.ring.stats();
            assert_eq!((stats.bytes, stats.bytes_in), (moved, moved));
            assert!(stats.overlapped > 0, "{stats:?}");
            if let Some(fake) = &gpu.fake {
                let own = fake.count(Count::Pageable);
                assert!(own > 0 && own % 96 == 0, "only the test's own: {own}");
            }
            pair.end();
        },
    );
}

#[test]
fn operations_keep_their_order_behind_an_event() {
    on_each(
        "one_sided::operations_keep_their_order_behind_an_event",
        &[("FAKE_CUDA_DELAY_US", "300")],
        |gpu, kind| {
            let stream = gpu.stream();
            let Some(mut pair) = Pair::new(kind, 8) else {
                return;
            };
            let region = device_region(&pair.domain, BYTES);
            let pool = SharedBufferManager::allocate(2, SLOT).expect("a pool");
            pool.region().register(&pair.domain).expect("registered");
            for end in [End::Sender, End::Receiver] {
                let first = filled(&region, 1, 1000, 1, &stream);
                let long = filled(&region, 5000, 2 * SLOT, 2, &stream);
                if let Some(fake) = &gpu.fake {
                    fake.block(&stream);
                }
                let event = stream.record().expect("an event");
                let waits = Payload::from(first).after(&event);
                pair.write_and_tell(end, waits, 0, Some(41), 1);
                pair.write(end, long, 500, 2);
                let mut host = pool.try_acquire().expect("free");
                host[..100].copy_from_slice(&pattern(100, 3));
                pair.write_and_tell(end, host.freeze(100).into(), 900, Some(43), 3);
                pair.read(end, pool.try_acquire().expect("free"), 400, 4);
                if let Some(fake) = &gpu.fake {
                    pair.idle(Duration::from_millis(30));
                    assert!(pair.done.is_empty(), "{kind:?} {end:?}: before the event");
                    fake.unblock();
                }
                for key in 1..4 {
                    pair.written(key);
                }
                let read = pair.read_into(4).into_buffer().expect("a buffer");
                // 400 of the first, 400 of the second, then the third, then the rest of the second.
                let (first, second) = (pattern(1000, 1), pattern(2 * SLOT, 2));
                let whole = [
                    &first[400..500],
                    &second[..400],
                    &pattern(100, 3),
                    &second[500..SLOT - 100],
                ]
                .concat();
                assert!(read[..] == whole, "{kind:?} {end:?}: out of order");
                if matches!(end, End::Sender) {
                    pair.until("word of the writes", |it| it.told.len() == 2);
                    assert_eq!(std::mem::take(&mut pair.told), [41, 43]);
                }
            }
            pair.end();
        },
    );
}

#[test]
fn a_write_in_pieces_tells_the_peer_when_all_of_it_is_there() {
    on_each(
        "one_sided::a_write_in_pieces_tells_the_peer_when_all_of_it_is_there",
        &[("FAKE_CUDA_DELAY_US", "200")],
        |gpu, kind| {
            let stream = gpu.stream();
            let Some(mut pair) = Pair::new(kind, 3) else {
                return;
            };
            let region = device_region(&pair.domain, BYTES);
            for round in 0..4 {
                let slice = filled(&region, 9, 7 * SLOT, round, &stream);
                pair.write_and_tell(End::Sender, slice.into(), 3, Some(round as u32), round);
                pair.until("word of it", |it| !it.told.is_empty());
                assert_eq!(pair.told.pop(), Some(round as u32));
                assert!(pair.seen(End::Sender, 3, 7 * SLOT) == pattern(7 * SLOT, round));
                pair.written(round);
            }
            pair.end();
        },
    );
}

#[test]
fn a_stream_that_is_named_finds_what_was_read() {
    on_each(
        "one_sided::a_stream_that_is_named_finds_what_was_read",
        &[("FAKE_CUDA_DELAY_US", "3000")],
        |gpu, kind| {
            let (stream, consumer) = (gpu.stream(), gpu.stream());
            let Some(mut pair) = Pair::new(kind, 4) else {
                return;
            };
            let region = device_region(&pair.domain, 2 * BYTES);
            let pool_region = device_region(&pair.domain, 2 * BYTES);
            let pool = DeviceBufferManager::new(pool_region, 5 * SLOT).expect("a pool");
            for (round, end) in [End::Sender, End::Receiver, End::Sender]
                .into_iter()
                .enumerate()
            {
                let (round, size) = (round as u64, 4 * SLOT + 13);
                let slice = filled(&region, 7, size, round, &stream);
                pair.write(end, slice, 11, 1);
                pair.written(1);
                let mut buffer = pool.try_acquire().expect("free");
                buffer.set_len(size);
                pair.read(end, Destination::from(buffer).stream(&consumer), 11, 2);
                let buffer = pair.read_into(2).into_device_buffer().expect("a buffer");
                // In the order of the consumer's stream, which waits by itself.
                let mut bytes = vec![0; size];
                buffer.copy_to_host(&mut bytes, &consumer).expect("copied");
                assert!(bytes == pattern(size, round), "read before it was there");
            }
            pair.until("free slots", |it| it.ring.free_slots() == 4);
            pair.end();
        },
    );
}

#[test]
fn what_an_operation_can_t_have_is_said_in_words() {
    on_gpu(
        "one_sided::what_an_operation_can_t_have_is_said_in_words",
        &[("FAKE_CUDA_DELAY_US", "20000")],
        |gpu| {
            let stream = gpu.stream();
            let Some(mut pair) = Pair::new(EndpointKind::Msg, 1) else {
                return;
            };
            let region = device_region(&pair.domain, BYTES);
            let slice = filled(&region, 0, 3 * SLOT, 1, &stream);
            // A window can't be staged.
            let refused = pair.sender.windows().expose(slice.clone(), Access::WRITE);
            let refused = refused.expect_err("tcp does not reach it");
            let words = refused.to_string();
            assert!(
                matches!(refused.kind, WindowError::NotDirect { .. }),
                "{words}"
            );
            assert!(words.contains("can't be staged") && words.contains("deliver_to"));
            assert_eq!(refused.given.len(), 3 * SLOT);
            let connection = pair.connection;
            let refused = pair
                .receiver
                .windows(connection)
                .expose(slice.clone(), Access::READ);
            assert!(refused.is_err());
            // No slot is free.
            if gpu.is_fake() {
                let place = pair.remote(End::Sender);
                pair.sender
                    .windows()
                    .write(slice.clone(), &place, 1)
                    .expect("taken");
                let kind = SendErrorKind::WouldBlock(Blocked::Staging);
                let refused = pair.sender.windows().write(slice.clone(), &place, 9);
                assert_eq!(refused.expect_err("no slot").kind, kind);
                let refused = pair.sender.windows().read(slice.clone(), &place, 9);
                assert_eq!(refused.expect_err("no slot").kind, kind);
                let place = pair.remote(End::Receiver);
                let refused =
                    pair.receiver
                        .windows(place.connection())
                        .read(slice.clone(), &place, 9);
                assert_eq!(refused.expect_err("no slot").kind, kind);
                pair.written(1);
            }
            pair.write(End::Receiver, slice.clone(), 0, 2);
            pair.written(2);
            // Beyond the window.
            let place = pair.remote(End::Sender);
            let refused = pair
                .sender
                .windows()
                .write(slice, place.at(6 * SLOT as u64), 9);
            assert!(matches!(
                refused.expect_err("too far").kind,
                SendErrorKind::Window(WindowError::OutOfRange { .. })
            ));
            pair.end();
        },
    );
}

#[test]
fn without_a_ring_operations_are_refused() {
    on_gpu(
        "one_sided::without_a_ring_operations_are_refused",
        &[],
        |_| {
            let Some(domain) = domain() else { return };
            let config = ReceiveConfig::default().connection(|c| c.max_connections(2).windows(2));
            let mut receiver =
                ReceiveEndpoint::listen(&domain, any_port(), config).expect("listens");
            let mut sender = SendEndpointZeroCopy::connect(
                &domain,
                receiver.local_addr(),
                SendConfig::default(),
            )
            .expect("connects");
            let connection = established(&mut sender, &mut receiver);
            let local = receiver
                .windows(connection)
                .expose(host_memory(), Access::all());
            let local = local.expect("exposed");
            let remote = sender.windows().open(&local.descriptor()).expect("opens");
            let region = device_region(&domain, 4096);
            let slice = || region.slice(0..100).expect("inside");
            let kind = SendErrorKind::NotStaged { segment: 0 };
            let refused = sender
                .windows()
                .write(slice(), &remote, 1)
                .expect_err("no ring");
            assert_eq!(refused.kind, kind);
            assert!(refused.given.into_slice().is_ok(), "as it was given");
            let refused = sender
                .windows()
                .read(slice(), &remote, 1)
                .expect_err("no ring");
            assert_eq!(refused.kind, kind);
            assert!(refused.given.into_slice().is_ok(), "as it was given");
        },
    );
}

#[test]
fn a_copy_that_fails_is_the_end_of_its_operation_alone() {
    on_each(
        "one_sided::a_copy_that_fails_is_the_end_of_its_operation_alone",
        &[],
        |gpu, kind| {
            let Some(fake) = &gpu.fake else { return };
            let stream = gpu.stream();
            let Some(mut pair) = Pair::new(kind, 8) else {
                return;
            };
            let region = device_region(&pair.domain, BYTES);
            for end in [End::Sender, End::Receiver] {
                for size in [1000, 3 * SLOT] {
                    let slice = filled(&region, 0, size, 7, &stream);
                    fake.fail("cuMemcpyDtoHAsync", 700);
                    pair.write(end, slice.clone(), 0, 1);
                    pair.write(end, slice.clone(), 0, 2);
                    match pair.outcome(1) {
                        WindowEvent::WriteFailed { payload, error, .. } => {
                            assert!(payload.into_slice().is_ok(), "as it was given");
                            assert!(error.to_string().contains("700"), "{error}");
                        }
                        other => panic!("{other:?}"),
                    }
                    pair.written(2);
                    fake.fail("cuMemcpyHtoDAsync", 700);
                    pair.read(end, slice.clone(), 0, 3);
                    match pair.outcome(3) {
                        WindowEvent::ReadFailed { into, error, .. } => {
                            assert!(into.is_some(), "as it was given");
                            assert!(error.to_string().contains("700"), "{error}");
                        }
                        other => panic!("{other:?}"),
                    }
                    pair.read(end, slice, 0, 4);
                    pair.read_into(4);
                }
            }
            pair.end();
        },
    );
}

/// In each order, with copies in flight both ways.
#[test]
fn whatever_goes_first_nothing_that_an_operation_uses_goes_with_it() {
    on_gpu(
        "one_sided::whatever_goes_first_nothing_that_an_operation_uses_goes_with_it",
        &[("FAKE_CUDA_DELAY_US", "700")],
        |gpu| {
            let stream = gpu.stream();
            for order in 0..12 {
                let kind = [EndpointKind::Msg, EndpointKind::Rdm][order % 2];
                let Some(mut pair) = Pair::new(kind, 8) else {
                    return;
                };
                let region = device_region(&pair.domain, BYTES);
                for (key, end) in [End::Sender, End::Receiver].into_iter().enumerate() {
                    let slice = filled(&region, key * 200, 3 * SLOT, 1, &stream);
                    pair.write(end, slice, 0, 2 * key as u64);
                    let into = region.slice(4 * SLOT..7 * SLOT).expect("inside");
                    pair.read(end, into.clone(), 0, 2 * key as u64 + 1);
                    let named = Destination::from(into).stream(&stream);
                    pair.read(end, named, 0, 10 + key as u64);
                }
                drop(region);
                pair.idle(Duration::from_micros(300 * order as u64));
                let Pair {
                    sender, receiver, ..
                } = pair;
                if order % 4 < 2 {
                    drop((sender, receiver));
                } else {
                    drop((receiver, sender));
                }
                gpu.check();
            }
        },
    );
}
