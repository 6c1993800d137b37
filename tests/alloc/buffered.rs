//! `SendEndpointBuffered` over tcp: what is pushed arrives, once and in order; a lone message in
//! time; nothing is allocated on the way.

use std::sync::Arc;
use std::time::Instant;

use fabricast::coalesce::{Format, FormatErrorKind};
use fabricast::endpoint::{
    BufferedConfig, Carried, CloseReason, Message, PushError, ReceiveConfig, SmallMessageLimit,
};
use fabricast::event_loop::{EventLoop, LoopEvent};
use fabricast::{BufferedEvent, Domain, ReceiveEndpoint, ReceiveEvent, SendEndpointBuffered};

use crate::HANDSHAKE;
use crate::common;
use crate::common::{SOON, Watchdog, after, any_port, domain, drive, millis, within};
use crate::counting::allocations;

const FORMATS: [Format; 2] = [Format::Compact, Format::Netio3];

/// A buffered sender and a receiver on one thread, connected.
struct Pair {
    sender: SendEndpointBuffered,
    receiver: ReceiveEndpoint,
    sent: Vec<BufferedEvent>,
    received: Vec<ReceiveEvent>,
    confirmed: u64,
    failed: u64,
}

impl Pair {
    fn open(domain: &Arc<Domain>, send: BufferedConfig, receive: ReceiveConfig) -> Self {
        let receive = receive.connection(|c| c.connect_timeout(HANDSHAKE));
        let receiver = ReceiveEndpoint::listen(domain, any_port(), receive).expect("listens");
        let sender = SendEndpointBuffered::connect(domain, receiver.local_addr(), send)
            .expect("begins to connect");
        let mut pair = Self {
            sender,
            receiver,
            sent: Vec::with_capacity(256),
            received: Vec::with_capacity(256),
            confirmed: 0,
            failed: 0,
        };
        drive("connected", SOON, || {
            pair.step(|_| {});
            pair.sender.is_connected() && pair.receiver.connections() == 1
        });
        pair
    }

    /// One poll of each side; messages go to `each`.
    fn step(&mut self, mut each: impl FnMut(Message)) {
        self.sender.poll(&mut self.sent).expect("the sender polls");
        for event in self.sent.drain(..) {
            match event {
                BufferedEvent::Completed { carried, .. } => self.confirmed += carried.messages(),
                BufferedEvent::Failed { carried, .. } => self.failed += carried.messages(),
                _ => {}
            }
        }
        self.receiver
            .poll(&mut self.received)
            .expect("the receiver polls");
        for event in self.received.drain(..) {
            if let ReceiveEvent::Message(message) = event {
                each(message);
            }
        }
        self.check();
    }

    /// Politely; both sides take part.
    fn close(&mut self) {
        self.sender.begin_close(after(SOON));
        drive("the end", SOON, || {
            self.step(drop);
            self.sender.close_reason().is_some()
        });
        assert_eq!(self.sender.close_reason(), Some(CloseReason::Finished));
        assert_eq!(self.sender.stats().pending, 0);
    }

    fn check(&self) {
        let s = self.sender.stats();
        assert_eq!(s.accepted, s.confirmed + s.failed + s.pending, "{s:?}");
        assert_eq!(
            (s.confirmed, s.failed),
            (self.confirmed, self.failed),
            "{s:?}"
        );
    }
}

/// The message of this number: its size, tag, status and bytes follow from the number.
fn expected(number: u64, out: &mut [u8]) -> (u64, u8, usize) {
    let len = (number.wrapping_mul(0x9e37_79b9) >> 7) as usize % 200;
    out[..len].fill(number as u8);
    if len >= 8 {
        out[..8].copy_from_slice(&number.to_le_bytes());
    }
    (
        number / 100 % 5,
        u8::from(number.is_multiple_of(7)) * 9,
        len,
    )
}

/// Pushes as many, and checks that each arrives, once and in order.
fn stream(pair: &mut Pair, format: Format, from: u64, messages: u64) {
    let (mut pushed, mut arrived) = (from, from);
    let (mut out, mut want) = ([0; 256], [0; 256]);
    let until = after(SOON);
    let confirmed = pair.confirmed + messages;
    while arrived < from + messages || pair.confirmed < confirmed {
        while pushed < from + messages {
            let (tag, status, len) = expected(pushed, &mut out);
            match pair.sender.push(tag, status, &out[..len]) {
                Ok(number) => assert_eq!(number, pushed),
                Err(error) => {
                    assert!(error.is_would_block(), "{error}");
                    break;
                }
            }
            pushed += 1;
        }
        pair.step(|message| {
            let count = message.for_each_coalesced(format, |small| {
                let (tag, status, len) = expected(arrived, &mut want);
                assert_eq!((small.tag, small.status), (tag, status));
                assert_eq!(small.bytes, &want[..len]);
                arrived += 1;
            });
            assert!(count.expect("well-formed") > 0);
        });
        assert!(Instant::now() < until, "{arrived} of {messages} arrived");
    }
}

#[test]
fn what_is_pushed_arrives_once_and_in_order_in_both_formats() {
    let _dog = Watchdog::new("in order");
    let Some(domain) = domain() else { return };
    for format in FORMATS {
        let config = BufferedConfig::default().format(format).buffer_size(4096);
        let mut pair = Pair::open(&domain, config, ReceiveConfig::default());
        stream(&mut pair, format, 0, 50_000);
        let stats = pair.sender.stats();
        assert_eq!((stats.confirmed, stats.pending), (50_000, 0));
        assert!(stats.buffers < 5_000, "coalesced: {stats:?}");
        assert_eq!(
            pair.sender.send_stats().packed.messages,
            0,
            "nor packed once more"
        );
        pair.close();
    }
}

#[test]
fn owned_messages_outlive_their_buffer_and_nothing_is_copied() {
    let _dog = Watchdog::new("owned");
    let Some(domain) = domain() else { return };
    let mut pair = Pair::open(&domain, BufferedConfig::default(), ReceiveConfig::default());
    let segments: [&[u8]; 3] = [b"he", b"", b"llo"];
    pair.sender.push_segments(1, 2, &segments).expect("taken");
    let mut slot = pair.sender.reserve(1, 0, 100).expect("room");
    slot[..5].copy_from_slice(b"world");
    assert_eq!(slot.commit(5), 1);
    drop(pair.sender.reserve(1, 0, 10).expect("room"));
    assert!(pair.sender.flush());
    let mut held = Vec::new();
    let pool = pair.receiver.pool().clone();
    drive("a message", SOON, || {
        pair.step(|message| {
            let payload = message.payload().as_ptr_range();
            for small in message.into_coalesced(Format::Compact) {
                let small = small.expect("well-formed");
                assert!(payload.contains(&small.bytes.as_ptr()), "no copy");
                held.push(small);
            }
        });
        !held.is_empty()
    });
    assert_eq!(
        (&held[0].bytes[..], &held[1].bytes[..]),
        (&b"hello"[..], &b"world"[..])
    );
    assert_eq!((held.len(), held[0].tag, held[0].status), (2, 1, 2));
    let free = pool.free_count();
    let elsewhere = std::thread::spawn(move || drop(held));
    elsewhere.join().expect("dropped on another thread");
    assert_eq!(
        pool.free_count(),
        free + 1,
        "one buffer, given back by the last"
    );
}

#[test]
fn a_mismatch_of_formats_is_a_typed_error() {
    let _dog = Watchdog::new("mismatch");
    let Some(domain) = domain() else { return };
    let config = BufferedConfig::default().format(Format::Netio3);
    let mut pair = Pair::open(&domain, config, ReceiveConfig::default());
    pair.sender.push(1, 0, b"abc").expect("taken");
    let mut errors = Vec::new();
    drive("a message", SOON, || {
        pair.step(|message| {
            errors.extend(
                message
                    .coalesced(Format::Compact)
                    .map(|item| item.map(drop)),
            )
        });
        !errors.is_empty()
    });
    let error = errors[0].expect_err("another format");
    assert!(matches!(
        error.kind,
        FormatErrorKind::Truncated { .. } | FormatErrorKind::NotCompact { .. }
    ));
    assert_eq!(errors.len(), 1);
}

#[test]
fn whole_buffers_go_out_in_order_and_come_back_with_their_key() {
    let _dog = Watchdog::new("whole buffers");
    let Some(domain) = domain() else { return };
    let mut pair = Pair::open(&domain, BufferedConfig::default(), ReceiveConfig::default());
    pair.sender.push(9, 0, b"first").expect("taken");
    let mut buffer = pair.sender.get_buffer().expect("a free one");
    buffer[..6].copy_from_slice(b"second");
    pair.sender.send_buffer(buffer, 6, 77).expect("taken");
    let mut got = Vec::new();
    drive("two messages", SOON, || {
        pair.step(|message| got.push(message.payload().to_vec()));
        got.len() == 2
    });
    assert_eq!(&got[0][28..], b"first");
    assert_eq!(got[1], b"second");
    pair.close();
}

#[test]
fn a_lone_message_leaves_within_the_interval_from_a_loop_that_sleeps() {
    let _dog = Watchdog::new("lone");
    let Some(domain) = domain() else { return };
    let interval = millis(20);
    let config = BufferedConfig::default().flush_interval(Some(interval));
    let mut pair = Pair::open(&domain, config, ReceiveConfig::default());
    let mut event_loop = EventLoop::new().expect("a loop");
    let sender = event_loop.add_endpoint(&pair.sender).expect("added");
    let mut times = Vec::new();
    for _ in 0..5 {
        let confirmed = pair.confirmed;
        let pushed = Instant::now();
        pair.sender.push(1, 0, b"lone").expect("taken");
        let mut rounds = 0;
        while pair.confirmed == confirmed {
            let mut poll = false;
            event_loop
                .run_once(Some(SOON), |_, event| {
                    poll |= matches!(event, LoopEvent::Endpoint(token) if token == sender);
                })
                .expect("a round");
            rounds += 1;
            if poll {
                pair.step(drop);
            }
            // Nothing else would have ended the sleep before that.
            assert!(pushed.elapsed() < SOON);
        }
        assert!(
            pushed.elapsed() >= interval,
            "the interval was not waited for"
        );
        assert!(rounds < 1_000, "the loop spins: {rounds} rounds");
        times.push(pushed.elapsed());
    }
    let best = times.iter().min().expect("five");
    assert!(*best < within(interval + millis(200)), "{times:?}");
}

#[test]
fn hand_polling_keeps_the_interval_and_the_wait_wakes_for_it() {
    let _dog = Watchdog::new("lone by hand");
    let Some(domain) = domain() else { return };
    let config = BufferedConfig::default().flush_interval(Some(millis(10)));
    let mut pair = Pair::open(&domain, config, ReceiveConfig::default());
    let pushed = Instant::now();
    pair.sender.push(1, 0, b"lone").expect("taken");
    while pair.confirmed == 0 {
        pair.sender.wait(2 * SOON).expect("waits");
        pair.step(drop);
        assert!(pushed.elapsed() < SOON, "the wait did not end");
    }
    assert!(pushed.elapsed() >= millis(10));
    assert_eq!(pair.sender.stats().timed, 1);
}

#[test]
fn what_is_too_long_for_buffer_or_peer_is_refused_with_the_limit() {
    let _dog = Watchdog::new("too long");
    let Some(domain) = domain() else { return };
    let receive = ReceiveConfig::default().incoming(|incoming| incoming.max_message(1024));
    let mut pair = Pair::open(&domain, BufferedConfig::default(), receive);
    let error = pair.sender.push(1, 0, &[0; 1000]).expect_err("too long");
    let (len, max, whose) = (1000, 1024 - 28, SmallMessageLimit::Peer);
    assert_eq!(error, PushError::TooLong { len, max, whose });
    pair.sender.push(1, 0, &[0; 996]).expect("fits exactly");
    // A batch ends in front of it, and takes nothing from behind it.
    let mut messages = [10, 20, 1000, 30]
        .map(|len| (1, 0, &[0; 1000][..len]))
        .into_iter();
    let stopped = pair
        .sender
        .push_batch(&mut messages)
        .expect_err("one is too long");
    assert_eq!((stopped.pushed, stopped.error), (2, error));
    assert_eq!(pair.sender.push_batch(messages), Ok(1));
    assert_eq!(pair.sender.stats().accepted, 4);
}

#[test]
fn a_peer_that_goes_leaves_every_message_with_an_outcome() {
    let _dog = Watchdog::new("gone");
    let Some(domain) = domain() else { return };
    let elsewhere = common::domain().expect("there is one already");
    let receiver = ReceiveEndpoint::listen(&elsewhere, any_port(), ReceiveConfig::default());
    let mut receiver = receiver.expect("listens");
    let config = BufferedConfig::default().buffer_size(4096);
    let mut sender = SendEndpointBuffered::connect(&domain, receiver.local_addr(), config)
        .expect("begins to connect");
    let (mut events, mut received) = (Vec::new(), Vec::new());
    drive("connected", SOON, || {
        sender.poll(&mut events).expect("polls");
        receiver.poll(&mut received).expect("polls");
        sender.is_connected() && receiver.connections() == 1
    });
    events.clear();
    let (mut next, mut failed) = (0, 0);
    let mut account = |events: &mut Vec<BufferedEvent>| {
        for event in events.drain(..) {
            let (carried, lost) = match event {
                BufferedEvent::Completed { carried, .. } => (carried, false),
                BufferedEvent::Failed { carried, .. } => (carried, true),
                _ => continue,
            };
            let Carried::Messages { first, count } = carried else {
                panic!("{carried:?}");
            };
            assert_eq!(first, next, "in order, without a gap");
            next += count;
            failed += count * u64::from(lost);
        }
    };
    // Nobody reads: it blocks in the end.
    drive("back-pressure", SOON, || {
        let refused = loop {
            if let Err(error) = sender.push(1, 0, &[5; 100]) {
                break error;
            }
        };
        assert!(refused.is_would_block(), "{refused}");
        sender.poll(&mut events).expect("polls");
        account(&mut events);
        sender.stats().would_block > 100
    });
    drop(receiver);
    drive("the end", SOON, || {
        sender.poll(&mut events).expect("polls");
        account(&mut events);
        sender.close_reason().is_some()
    });
    let stats = sender.stats();
    assert_eq!((next, failed), (stats.accepted, stats.failed), "{stats:?}");
    assert!(stats.failed > 0 && stats.pending == 0, "{stats:?}");
    let reason = sender.close_reason();
    assert!(
        matches!(reason, Some(CloseReason::PeerLost { .. })),
        "{reason:?}"
    );
    assert_eq!(sender.pool().free_count(), sender.pool().slots());
}

#[test]
fn a_small_message_allocates_nothing_on_either_side() {
    let _dog = Watchdog::new("allocations");
    let Some(domain) = domain() else { return };
    for format in FORMATS {
        let config = BufferedConfig::default().format(format).buffer_size(4096);
        let mut pair = Pair::open(&domain, config, ReceiveConfig::default());
        stream(&mut pair, format, 0, 20_000);
        let before = allocations();
        stream(&mut pair, format, 20_000, 20_000);
        assert_eq!(allocations() - before, 0, "allocations in 20,000 messages");
    }
    let before = allocations();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(allocations() - before, 1, "the counter counts");
}
