//! Small messages that lie in a GPU's memory, among others in one buffer.

use std::time::{Duration, Instant};

use fabricast::buffer::{Payload, Segment, SharedBufferConfig, SharedBufferManager};
use fabricast::coalesce::{Format, SmallMessages};
use fabricast::endpoint::{BufferedConfig, PushError, ReceiveConfig};
use fabricast::{BufferedEvent, ReceiveEndpoint, ReceiveEvent, Region, SendEndpointBuffered};

use super::endpoints::{LIMIT, any_port, device_pool, device_region, domain, filled};
use super::fake::{Count, Gpu, on_gpu};
use crate::pattern::pattern;

struct Pair {
    sender: Option<SendEndpointBuffered>,
    receiver: ReceiveEndpoint,
    /// Tag and bytes of each small message.
    got: Vec<(u64, Vec<u8>)>,
    told: Vec<BufferedEvent>,
}

impl Pair {
    fn new(config: BufferedConfig) -> Option<Self> {
        let domain = domain()?;
        let receive = ReceiveConfig::default()
            .connection(|c| c.max_connections(1))
            .incoming(|incoming| incoming.slots(16).credits(4));
        let receiver = ReceiveEndpoint::listen(&domain, any_port(), receive).expect("listens");
        let addr = receiver.local_addr();
        let sender = SendEndpointBuffered::connect(&domain, addr, config).expect("begins");
        let mut this = Self {
            sender: Some(sender),
            receiver,
            got: Vec::new(),
            told: Vec::new(),
        };
        this.until("connection", |it| it.sender_ref().is_connected());
        Some(this)
    }

    fn sender_ref(&self) -> &SendEndpointBuffered {
        self.sender.as_ref().expect("not dropped")
    }

    fn sender(&mut self) -> &mut SendEndpointBuffered {
        self.sender.as_mut().expect("not dropped")
    }

    fn poll(&mut self) {
        if let Some(sender) = &mut self.sender {
            sender.poll(&mut self.told).expect("polls");
        }
        // Their buffers go back.
        let is_done = |event: &BufferedEvent| matches!(event, BufferedEvent::Completed { .. });
        self.told.retain(|event| !is_done(event));
        let mut events = Vec::new();
        self.receiver.poll(&mut events).expect("polls");
        for event in events {
            if let ReceiveEvent::Message(message) = event {
                for small in message.coalesced(Format::Compact) {
                    let small = small.expect("well formed");
                    self.got.push((small.tag, small.bytes.to_vec()));
                }
            }
        }
    }

    #[track_caller]
    fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !done(self) {
            assert!(Instant::now() < deadline, "no {what}: {:?}", self.told);
            self.poll();
        }
    }

    #[track_caller]
    fn push(&mut self, tag: u64, payload: impl Into<Payload>) {
        let mut payload = Some(payload.into());
        let deadline = Instant::now() + LIMIT;
        while let Some(next) = payload.take() {
            match self.sender().push_payload(tag, 0, next) {
                Ok(_) => return,
                Err(refused) => {
                    assert!(refused.is_would_block(), "{refused}");
                    assert!(Instant::now() < deadline, "refused for {LIMIT:?}");
                    payload = Some(refused.given);
                }
            }
            self.poll();
        }
    }

    #[track_caller]
    fn push_host(&mut self, tag: u64, bytes: &[u8]) {
        let deadline = Instant::now() + LIMIT;
        while let Err(refused) = self.sender().push(tag, 0, bytes) {
            assert!(
                refused.is_would_block() && Instant::now() < deadline,
                "{refused}"
            );
            self.poll();
        }
    }
}

/// Buffers that copies go to by themselves.
fn pinned(buffers: u32) -> BufferedConfig {
    let settings = SharedBufferConfig {
        slots: Some(buffers),
        ..SharedBufferConfig::new(32 * 1024)
    };
    let region = Region::pinned((buffers as usize + 1) * 33 * 1024).build();
    let pool = SharedBufferManager::new(region.expect("pinned memory"), settings);
    BufferedConfig::default().pool(&pool.expect("a pool"))
}

fn size_of(n: u64) -> usize {
    [0, 1, 7, 100, 1023, 5000][n as usize % 6]
}

fn mixed(gpu: &Gpu, config: BufferedConfig) {
    let stream = gpu.stream();
    let Some(mut pair) = Pair::new(config) else {
        return;
    };
    let pageable = gpu.fake.as_ref().map(|fake| fake.count(Count::Pageable));
    let region = Region::device(1 << 20).build().expect("device memory");
    let (count, mut own) = (200, 0);
    for n in 0..count {
        let len = size_of(n);
        if n % 3 == 0 {
            pair.push_host(n, &pattern(len, n));
            continue;
        }
        // Not registered: it is copied.
        let at = n as usize * 5003 + n as usize % 7;
        own += i64::from(len > 0);
        let slice = filled(&region, at, len, n, &stream);
        let payload = Payload::from(slice);
        match n % 3 {
            1 => pair.push(n, payload),
            _ => pair.push(n, payload.after(&stream.record().expect("an event"))),
        }
    }
    pair.sender().flush();
    pair.until("messages", |it| it.got.len() as u64 == count);
    for (n, (tag, bytes)) in pair.got.iter().enumerate() {
        assert_eq!(*tag, n as u64, "in order");
        assert!(
            *bytes == pattern(size_of(*tag), *tag),
            "{n}: another content"
        );
    }
    pair.until("confirmations", |it| {
        it.sender_ref().stats().confirmed == count
    });
    if let (Some(fake), Some(before)) = (&gpu.fake, pageable) {
        let pinned =
            pair.sender_ref().pool().region().kind() != fabricast::memory::RegionKind::Host;
        let copies = fake.count(Count::Pageable) - before;
        let expected = if pinned { own } else { 2 * own };
        assert_eq!(
            copies, expected,
            "those of the test, and ours if not pinned"
        );
    }
}

#[test]
fn messages_of_both_kinds_arrive_in_order() {
    on_gpu(
        "coalesced::messages_of_both_kinds_arrive_in_order",
        &[("FAKE_CUDA_DELAY_US", "50")],
        |gpu| mixed(gpu, pinned(4)),
    );
}

#[test]
fn memory_that_is_not_pinned_does_too() {
    on_gpu(
        "coalesced::memory_that_is_not_pinned_does_too",
        &[],
        |gpu| {
            mixed(
                gpu,
                BufferedConfig::default().buffer_size(32 * 1024).buffers(4),
            );
        },
    );
}

#[test]
fn a_buffer_leaves_when_its_last_copy_is_there() {
    on_gpu(
        "coalesced::a_buffer_leaves_when_its_last_copy_is_there",
        &[],
        |gpu| {
            let stream = gpu.stream();
            let Some(mut pair) = Pair::new(pinned(4)) else {
                return;
            };
            let pool = device_pool(2, 1000);
            let mut buffer = pool.try_acquire().expect("free");
            buffer
                .copy_from_host(&pattern(1000, 1), &stream)
                .expect("copied");
            if let Some(fake) = &gpu.fake {
                fake.block(&stream);
            }
            let event = stream.record().expect("an event");
            pair.push_host(0, b"in front");
            pair.push(1, Payload::from(buffer).after(&event));
            pair.push_host(2, b"behind");
            assert!(pair.sender().flush(), "it waits where all sends do");
            pair.push_host(3, b"in the next buffer");
            pair.sender().flush();
            if let Some(fake) = &gpu.fake {
                let until = Instant::now() + Duration::from_millis(30);
                while Instant::now() < until {
                    pair.poll();
                }
                assert!(pair.got.is_empty(), "before the event");
                assert_eq!(pool.free_count(), 1, "kept until it is copied");
                fake.unblock();
            }
            pair.until("messages", |it| it.got.len() == 4);
            let tags: Vec<_> = pair.got.iter().map(|(tag, _)| *tag).collect();
            assert_eq!(tags, [0, 1, 2, 3]);
            assert!(pair.got[1].1 == pattern(1000, 1), "another content");
            assert_eq!(pool.free_count(), 2);
        },
    );
}

#[test]
fn a_copy_that_fails_fails_its_buffer_in_words() {
    on_gpu(
        "coalesced::a_copy_that_fails_fails_its_buffer_in_words",
        &[],
        |gpu| {
            let Some(fake) = &gpu.fake else { return };
            let stream = gpu.stream();
            let Some(mut pair) = Pair::new(pinned(4).flush_interval(None)) else {
                return;
            };
            let region = Region::device(4096).build().expect("device memory");
            let slice = filled(&region, 3, 1000, 1, &stream);
            for function in ["cuMemcpyDtoHAsync", "cuEventRecord", "cuEventQuery"] {
                pair.push_host(0, b"a message of the host");
                fake.fail(function, 700);
                pair.push(1, slice.clone());
                pair.sender().flush();
                pair.push(2, slice.clone());
                pair.sender().flush();
                pair.until("outcomes", |it| {
                    it.got.len() == 1 && it.sender_ref().stats().pending == 0
                });
                let failed = pair.told.iter().find_map(|event| match event {
                    BufferedEvent::Failed {
                        carried,
                        buffer,
                        error,
                    } => Some((carried.messages(), buffer, error.to_string())),
                    _ => None,
                });
                let (messages, buffer, error) = failed.expect("one failed");
                assert_eq!(messages, 2, "{function}");
                assert!(error.contains("700"), "{error}");
                let buffer = buffer.as_ref().expect("with its buffer");
                let first = SmallMessages::new(Format::Compact, buffer).next();
                assert_eq!(
                    first.expect("one").expect("whole").bytes,
                    b"a message of the host"
                );
                assert!(pair.got.remove(0) == (2, pattern(1000, 1)));
                pair.told.clear();
            }
        },
    );
}

#[test]
fn what_can_not_be_copied_comes_back_in_words() {
    on_gpu(
        "coalesced::what_can_not_be_copied_comes_back_in_words",
        &[],
        |_| {
            let Some(mut pair) = Pair::new(pinned(1)) else {
                return;
            };
            let region = Region::device(64 * 1024).build().expect("device memory");
            let host = Region::host(100).build().expect("memory");
            let of_others = host.slice(0..10).expect("inside");
            let payload: Payload = [
                Segment::from(region.slice(0..10).expect("inside")),
                of_others.into(),
            ]
            .into_iter()
            .collect();
            let refused = pair.sender().push_payload(1, 0, payload);
            let refused = refused.expect_err("memory of others");
            assert_eq!(refused.kind, PushError::NotCopied { segment: 1 });
            assert_eq!(refused.given.segments().len(), 2);
            let long = region.slice(0..64 * 1024).expect("inside");
            let refused = pair
                .sender()
                .push_payload(1, 0, long)
                .expect_err("too long");
            assert!(
                matches!(refused.kind, PushError::TooLong { .. }),
                "{refused}"
            );
            assert!(refused.given.into_slice().is_ok());
        },
    );
}

/// With copies in flight, and with a producer that never ends.
#[test]
fn a_sender_that_is_dropped_waits_for_copies_only() {
    on_gpu(
        "coalesced::a_sender_that_is_dropped_waits_for_copies_only",
        &[("FAKE_CUDA_DELAY_US", "3000")],
        |gpu| {
            let stream = gpu.stream();
            for flushed in [false, true] {
                let Some(mut pair) = Pair::new(pinned(2).flush_interval(None)) else {
                    return;
                };
                let domain = domain().expect("there was one");
                let region = device_region(&domain, 4096);
                let slice = filled(&region, 0, 1000, 1, &stream);
                if let Some(fake) = &gpu.fake {
                    fake.block(&stream);
                }
                let event = stream.record().expect("an event");
                pair.push(0, slice.clone());
                pair.push(1, Payload::from(slice.clone()).after(&event));
                if flushed {
                    pair.sender().flush();
                }
                let pool = pair.sender_ref().pool().clone();
                let begun = Instant::now();
                drop(pair.sender.take());
                // The stream is blocked until below: a drop that waited for it would not end before
                // the fake gives up.
                assert!(begun.elapsed() < LIMIT);
                assert_eq!(pool.free_count(), 2);
                if let Some(fake) = &gpu.fake {
                    fake.unblock();
                }
                stream.synchronize().expect("waits");
                gpu.check();
            }
        },
    );
}
