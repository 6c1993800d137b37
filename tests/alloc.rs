//! The hot path allocates nothing once it is open: counted, for the thread that drives both endpoints.
//!
//! What libfabric allocates for itself (with malloc(3)) is its own and not counted.

#![allow(unsafe_code)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use common::{Pair, Watchdog, domain, small_receiver};
use fabricast::buffer::{Buffer, Payload, Segment};
use fabricast::endpoint::{PublishConfig, SendConfig, SlowPolicy, SubscribeConfig};
use fabricast::stream::{
    BlockPlan, DirectorySink, Entry, EntryKind, Limits, Manifest, Modified, RelativeName,
    SinkFactory, Stop, StreamIdentity, StreamOffer, crc32c,
};
use fabricast::{
    Domain, PublishEndpoint, PublishEvent, ReceiveEvent, SendEvent, SubscribeEndpoint,
    SubscribeEvent,
};

const WARM_UP: u64 = 1_000;
const COUNTED: u64 = 10_000;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// Bytes that were taken and not given back, and the most there were at once.
    static BYTES: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

/// The system's allocator, with a count for each thread.
struct Counting;

fn count(bytes: usize) {
    // A thread that ends allocates after its locals are gone: not ours.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
    change(bytes as isize);
}

fn change(bytes: isize) {
    let _ = BYTES.try_with(|it| {
        let (now, most) = it.get();
        it.set((now + bytes, most.max(now + bytes)));
    });
}

/// The most bytes that this takes at once, on this thread, and what it gives.
fn most_bytes_of<T>(run: impl FnOnce() -> T) -> (u64, T) {
    BYTES.set((0, 0));
    let done = run();
    (BYTES.get().1 as u64, done)
}

// SAFETY: everything is handed to the system's allocator, unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        change(-(layout.size() as isize));
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both are there while the bytes are copied.
        count(size);
        change(-(layout.size() as isize));
        // SAFETY: the caller's promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

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
                Err(refused) if refused.is_would_block() => Some(refused.payload),
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
    let mut pair = Pair::with(&domain, SendConfig::default(), small_receiver());
    // One segment lies in the payload; several lie in a block that comes back with it and is used again.
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
    let before = ALLOCATIONS.get();
    for key in 0..COUNTED {
        send(&mut pair, key);
    }
    Some(ALLOCATIONS.get() - before)
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
fn the_counter_counts() {
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(ALLOCATIONS.get() - before, 1);
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
        let config = PublishConfig::default().slow(SlowPolicy::Wait {
            queue: 4,
            deadline: common::SOON,
        });
        let publisher =
            PublishEndpoint::listen(domain, common::any_port(), config).expect("listens");
        let config = SubscribeConfig::default()
            .max_message(4096)
            .max_publishers(1)
            .slots(64);
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
    let before = ALLOCATIONS.get();
    for key in 0..COUNTED {
        buffer = fan.publish(buffer, key);
    }
    let count = ALLOCATIONS.get() - before;
    assert_eq!(count, 0, "allocations in {COUNTED} publications");
}

/// What a sender announces is what a receiver takes memory for, and no more, whatever is kept of an earlier stream.
#[test]
fn what_a_sink_keeps_takes_no_more_memory_than_its_account_says() {
    const BLOCKS: u64 = 100_000;
    let dir = tempfile::tempdir().expect("a directory");
    let entry = Entry {
        name: RelativeName::new(b"file").expect("a name"),
        kind: EntryKind::File,
        mode: 0o644,
        size: BLOCKS,
        modified: Modified::default(),
    };
    let manifest = Manifest::new([entry]).expect("a manifest");
    let offer = StreamOffer {
        identity: StreamIdentity::default(),
        plan: Arc::new(BlockPlan::new(&manifest, 1)),
        manifest: Arc::new(manifest),
        crc32c: true,
        blake3: false,
        sync: false,
        read_back: true,
        restart: false,
    };
    let factory = DirectorySink::new(dir.path()).expect("it is there");
    let sink = factory.make(&offer).expect("made");
    sink.open(&offer, &Stop::default()).expect("opened");
    for block in offer.plan.iter() {
        let byte = [block.index as u8];
        sink.write(block, crc32c(&byte), &byte).expect("written");
    }
    sink.abandon();
    let account = Limits::memory_of(1, 32, BLOCKS);
    // Buffers for the journal, the directory and the file do not grow with the stream.
    let allowed = account + (160 << 10);
    let sink = factory.make(&offer).expect("made");
    let (most, kept) = most_bytes_of(|| sink.open(&offer, &Stop::default()).expect("opened"));
    println!("{most} bytes to see what is there, the account is {account}");
    assert!(most <= allowed, "{most} bytes, the account is {account}");
    drop(kept);
    let (most, finished) = most_bytes_of(|| sink.finish(&Stop::default()));
    finished.expect("whole");
    println!("{most} bytes to finish");
    assert!(most <= allowed, "{most} bytes, the account is {account}");
    // It is no more than twice what is taken, either: nobody is refused for nothing.
    assert!(
        account <= 2 * most + (160 << 10),
        "{account}, {most} were taken"
    );
}
