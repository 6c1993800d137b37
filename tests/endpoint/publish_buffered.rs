//! A buffered publisher: what subscribers take apart is what was pushed, each message has one
//! outcome, and its bounds hold.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fabricast::coalesce::{Format, SmallMessages};
use fabricast::endpoint::{
    Blocked, Message, MessageLimit, PublishBufferedConfig, PublishedContent, PushError,
    SendErrorKind, SlowPolicy, SmallMessageLimit, SubscribeConfig,
};
use fabricast::{
    Domain, PublishBufferedEvent, PublishEndpointBuffered, SubscribeEndpoint, SubscribeEvent,
};

use crate::common::{
    self, Got, Random, SOON, Watchdog, after, any_port, connect_limit, domain_of, drive, got,
    pattern, provider::kinds,
};

const FORMATS: [Format; 2] = [Format::Compact, Format::Netio3];
const WAITS: SlowPolicy = SlowPolicy::Wait {
    queue: 64,
    deadline: SOON,
};

fn config(format: Format) -> PublishBufferedConfig {
    PublishBufferedConfig::default()
        .format(format)
        .buffers(16)
        .buffer_size(1024)
        .flush_interval(None)
        .publishing(|p| {
            let p = p.slow(WAITS);
            p.connection(|c| c.max_connections(4).connect_timeout(connect_limit()))
        })
}

/// One that takes apart what comes, unless it is to hold it.
struct Listener {
    endpoint: SubscribeEndpoint,
    format: Format,
    holds: bool,
    held: Vec<Message>,
    /// By tag, what came; with the header of those that were not packed.
    came: BTreeMap<u64, Vec<Got>>,
    missed: u64,
    subscribed: usize,
}

impl Listener {
    fn new(
        domain: &Arc<Domain>,
        to: &PublishEndpointBuffered,
        format: Format,
        tags: &[u64],
    ) -> Self {
        let config = SubscribeConfig::default()
            .connection(|c| c.max_connections(1).connect_timeout(connect_limit()))
            .incoming(|incoming| incoming.max_message(2048).slots(16).credits(4));
        let mut endpoint = SubscribeEndpoint::open(domain, config).expect("opens");
        let at = endpoint.connect(to.endpoint().local_addr()).expect("begun");
        tags.iter()
            .for_each(|tag| endpoint.subscribe(at, *tag).expect("asked"));
        Self {
            endpoint,
            format,
            holds: false,
            held: Vec::new(),
            came: BTreeMap::new(),
            missed: 0,
            subscribed: 0,
        }
    }

    fn step(&mut self) {
        let mut events = Vec::new();
        self.endpoint.poll(&mut events).expect("polls");
        for event in events {
            match event {
                SubscribeEvent::Publication {
                    tag,
                    missed,
                    message,
                    ..
                } => self.take(tag, missed, message),
                SubscribeEvent::Subscribed { .. } => self.subscribed += 1,
                _ => {}
            }
        }
    }

    fn take(&mut self, tag: u64, missed: u64, message: Message) {
        self.missed += missed;
        let came = self.came.entry(tag).or_default();
        if !message.header().is_empty() {
            came.push(got(message.header(), message.payload()));
        } else {
            for small in message.coalesced(self.format) {
                let small = small.expect("well formed");
                assert_eq!((small.tag, small.status), (tag, tag as u8));
                came.push(got(b"", small.bytes));
            }
        }
        if self.holds {
            self.held.push(message);
        }
    }

    fn bytes_of(&self, tag: u64) -> Vec<Vec<u8>> {
        let came = self.came.get(&tag).into_iter().flatten();
        came.map(|got| got.payload.clone()).collect()
    }
}

/// A publisher, with what it accepted and what it was told.
struct Rig {
    publisher: PublishEndpointBuffered,
    listeners: Vec<Listener>,
    /// By buffer, messages that were pushed.
    pushed: BTreeMap<u64, u64>,
    /// The same of those that have an outcome.
    told: BTreeMap<u64, u64>,
    keys: Vec<u64>,
    failed: Vec<(u64, u64, SendErrorKind, Vec<Vec<u8>>)>,
    dropped: u32,
    writable: u32,
    format: Format,
}

impl Rig {
    fn new(
        domain: &Arc<Domain>,
        config: PublishBufferedConfig,
        format: Format,
        of: &[&[u64]],
    ) -> Self {
        let publisher = PublishEndpointBuffered::listen(domain, any_port(), config);
        let publisher = publisher.expect("listens");
        let listen = |tags: &&[u64]| Listener::new(domain, &publisher, format, tags);
        let listeners = of.iter().map(listen).collect();
        let mut rig = Self {
            publisher,
            listeners,
            pushed: BTreeMap::new(),
            told: BTreeMap::new(),
            keys: Vec::new(),
            failed: Vec::new(),
            dropped: 0,
            writable: 0,
            format,
        };
        rig.until("all have subscribed", |rig| {
            let all = rig.listeners.iter().zip(of);
            all.clone()
                .all(|(listener, tags)| listener.subscribed == tags.len())
        });
        rig
    }

    fn step(&mut self) {
        let mut events = Vec::new();
        self.publisher.poll(&mut events).expect("polls");
        self.hear(events);
        self.listeners.iter_mut().for_each(Listener::step);
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        drive(what, SOON, || {
            self.step();
            done(self)
        });
    }

    fn hear(&mut self, events: Vec<PublishBufferedEvent>) {
        for event in events {
            match event {
                PublishBufferedEvent::Published {
                    content, outcomes, ..
                } => {
                    self.dropped += outcomes.dropped;
                    self.count(content);
                }
                PublishBufferedEvent::Failed {
                    tag,
                    content,
                    buffer,
                    error,
                } => {
                    self.count(content);
                    let buffer = buffer.expect("it never left");
                    let small = SmallMessages::new(self.format, &buffer);
                    let small = small.map(|it| it.expect("well formed").bytes.to_vec());
                    self.failed
                        .push((tag, content.messages(), error, small.collect()));
                }
                PublishBufferedEvent::Writable => self.writable += 1,
                _ => {}
            }
        }
    }

    fn count(&mut self, content: PublishedContent) {
        match content {
            PublishedContent::Messages { batch, count } => {
                assert!(self.told.insert(batch, count).is_none(), "{batch} twice");
            }
            PublishedContent::Payload { key } => self.keys.push(key),
        }
    }

    fn push(&mut self, tag: u64, bytes: &[u8]) -> Result<u64, PushError> {
        let pushed = self.publisher.push(tag, tag as u8, bytes);
        if let Ok(batch) = pushed {
            *self.pushed.entry(batch).or_default() += 1;
        }
        pushed
    }

    /// Each message that was accepted has its outcome, and once; buffers are all back.
    fn check_over(&self) {
        assert_eq!(self.pushed, self.told);
        let stats = self.publisher.stats();
        let accepted: u64 = self.pushed.values().sum();
        let failed: u64 = self.failed.iter().map(|(_, count, ..)| count).sum();
        assert_eq!(
            (stats.accepted, stats.failed, stats.pending),
            (accepted, failed, 0)
        );
        assert_eq!(stats.confirmed, accepted - failed);
        let pool = self.publisher.pool();
        assert_eq!(pool.free_count(), pool.slots());
    }
}

fn each(test: impl Fn(&Arc<Domain>, Format)) {
    let _dog = Watchdog::new("publish_buffered");
    for domain in kinds().filter_map(domain_of) {
        FORMATS.into_iter().for_each(|format| test(&domain, format));
    }
}

#[test]
fn subscribers_of_overlapping_tags_get_what_was_pushed_in_its_order() {
    const MESSAGES: u64 = 2000;
    let random = Mutex::new(Random::from_printed_seed("publish_buffered"));
    each(|domain, format| {
        let config = config(format).flush_interval(Some(Duration::from_millis(1)));
        let mut rig = Rig::new(domain, config, format, &[&[1, 2], &[2, 3]]);
        let (mut next, mut sent) = (0, HashMap::<u64, Vec<Vec<u8>>>::new());
        let mut random = random.lock().unwrap();
        rig.until("all are pushed", |rig| {
            for _ in 0..random.below(200) {
                let (tag, len) = (1 + random.below(3), random.below(90) as usize);
                let bytes = pattern(next, len);
                match rig.push(tag, &bytes) {
                    Ok(_) => sent.entry(tag).or_default().push(bytes),
                    Err(refused) => assert!(refused.is_would_block(), "{refused}"),
                }
                next += 1;
            }
            next >= MESSAGES
        });
        rig.until("all have come", |rig| {
            let of = |listener: usize, tag| rig.listeners[listener].bytes_of(tag).len();
            let want = |tag| sent[&tag].len();
            rig.pushed == rig.told
                && (of(0, 1), of(0, 2)) == (want(1), want(2))
                && (of(1, 2), of(1, 3)) == (want(2), want(3))
        });
        for (listener, tag) in [(0, 1), (0, 2), (1, 2), (1, 3)] {
            assert!(rig.listeners[listener].bytes_of(tag) == sent[&tag], "{tag}");
        }
        assert_eq!((rig.dropped, rig.listeners[0].came.len()), (0, 2));
        assert!(rig.publisher.stats().buffers < next, "they were packed");
        rig.check_over();
    });
}

#[test]
fn messages_leave_when_their_time_is_over_and_only_then() {
    each(|domain, format| {
        let interval = Some(Duration::from_millis(3));
        let mut rig = Rig::new(
            domain,
            config(format).flush_interval(interval),
            format,
            &[&[7]],
        );
        rig.push(7, b"one").expect("taken");
        // Nothing but the flush interval ends this sleep.
        drive("a message that nobody flushed", SOON, || {
            rig.publisher.wait(SOON).expect("sleeps");
            rig.step();
            rig.publisher.stats().timed == 1
        });
        rig.until("it came", |rig| rig.listeners[0].bytes_of(7) == [b"one"]);
        rig.until("it is over", |rig| rig.pushed == rig.told);
        rig.check_over();

        let mut rig = Rig::new(domain, config(format), format, &[&[7, 8]]);
        rig.push(7, b"two").expect("taken");
        rig.push(8, b"three").expect("taken");
        for _ in 0..50 {
            rig.step();
        }
        let stats = rig.publisher.stats();
        assert_eq!((stats.pending, stats.buffers), (2, 0));
        assert!(rig.publisher.flush_tag(8));
        rig.until("one came", |rig| rig.listeners[0].bytes_of(8) == [b"three"]);
        assert!(rig.listeners[0].bytes_of(7).is_empty());
        assert!(rig.publisher.flush());
        rig.until("the other came", |rig| {
            rig.listeners[0].bytes_of(7) == [b"two"]
        });
        rig.until("all is over", |rig| rig.pushed == rig.told);
        rig.check_over();
    });
}

#[test]
fn what_is_copied_or_not_keeps_its_place_among_what_is_pushed() {
    each(|domain, format| {
        let mut rig = Rig::new(domain, config(format), format, &[&[5]]);
        let payloads = common::pool(domain, 2, 64);
        rig.push(5, b"first").expect("taken");
        let told = rig.publisher.publish_copied(5, b"second", b"copied", 71);
        assert_eq!(told.expect("taken").dropped, 0);
        rig.push(5, b"third").expect("taken");
        let payload = common::buffer(&payloads, b"fourth");
        rig.publisher
            .publish(5, payload, b"from where it lies", 72)
            .expect("taken");
        rig.push(5, b"fifth").expect("taken");
        rig.publisher.flush();
        rig.until("all came", |rig| rig.listeners[0].bytes_of(5).len() == 5);
        let came = [&b"first"[..], b"second", b"third", b"fourth", b"fifth"];
        assert_eq!(rig.listeners[0].bytes_of(5), came);
        rig.until("all is over", |rig| {
            rig.keys.len() == 2 && rig.pushed == rig.told
        });
        rig.keys.sort_unstable();
        assert_eq!(rig.keys, [71, 72]);
        assert_eq!(payloads.free_count(), 2);
        rig.check_over();
    });
}

#[test]
fn a_slow_subscriber_misses_whole_buffers_and_keeps_nobody() {
    const MESSAGES: u64 = 600;
    each(|domain, format| {
        let config = config(format).publishing(|p| p.slow(SlowPolicy::Drop));
        let mut rig = Rig::new(domain, config, format, &[&[1], &[1]]);
        rig.listeners[1].holds = true;
        let mut sent = Vec::new();
        for number in 0..MESSAGES {
            let bytes = pattern(number, 40);
            drive("a message", SOON, || {
                let pushed = rig.push(1, &bytes).is_ok();
                // A buffer each ten, and nothing new before the fast one has it.
                let is_last = number % 10 == 9;
                if pushed && is_last {
                    rig.publisher.flush();
                }
                rig.step();
                pushed
            });
            sent.push(bytes);
            if number % 10 == 9 {
                let so_far = sent.len();
                rig.until("the fast one has it", |rig| {
                    rig.listeners[0].bytes_of(1).len() == so_far && rig.pushed == rig.told
                });
            }
        }
        assert!(rig.listeners[0].bytes_of(1) == sent);
        assert_eq!(rig.listeners[0].missed, 0);
        let slow = &mut rig.listeners[1];
        let got = slow.bytes_of(1).len();
        assert!(got < sent.len() && slow.bytes_of(1) == sent[..got], "{got}");
        slow.holds = false;
        slow.held.clear();
        assert!(rig.dropped > 0);
        // How many buffers it missed is in the next one.
        let mut more = 0_u64;
        rig.until("it hears how many it missed", |rig| {
            if rig.pushed == rig.told {
                more += u64::from(rig.push(1, b"more").is_ok());
                rig.publisher.flush();
            }
            rig.listeners[1].missed > 0
        });
        rig.until("all is over", |rig| rig.pushed == rig.told);
        assert_eq!(rig.listeners[1].missed, u64::from(rig.dropped));
        assert!(more > 0);
        rig.check_over();
    });
}

#[test]
fn closing_publishes_what_is_packed() {
    each(|domain, format| {
        let mut rig = Rig::new(domain, config(format), format, &[&[1, 2]]);
        for tag in [1, 2, 1] {
            rig.push(tag, b"last words").expect("taken");
        }
        rig.publisher.begin_close(after(SOON));
        assert_eq!(rig.push(1, b"too late"), Err(PushError::Closing));
        let copied = rig.publisher.publish_copied(1, b"too late", b"", 1);
        assert_eq!(copied.unwrap_err(), SendErrorKind::Closing);
        rig.until("closed", |rig| rig.publisher.endpoint().connections() == 0);
        rig.until("all came", |rig| {
            let of = |tag| rig.listeners[0].bytes_of(tag).len();
            (of(1), of(2)) == (2, 1)
        });
        rig.check_over();
        let Rig { publisher, .. } = rig;
        assert!(publisher.close(after(SOON)).expect("closed").is_empty());
    });
}

#[test]
fn dropping_tells_what_nobody_will_hear_of() {
    each(|domain, format| {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hook = Arc::clone(&heard);
        let config = config(format)
            .on_abandoned(move |tag, content| hook.lock().unwrap().push((tag, content)));
        let mut rig = Rig::new(domain, config, format, &[&[1, 2]]);
        let batches = [(1, 2), (2, 1)].map(|(tag, count)| {
            let numbers = [(); 2].map(|()| tag).into_iter().take(count);
            let pushed: Vec<_> = numbers
                .map(|tag| rig.push(tag, b"x").expect("taken"))
                .collect();
            (tag, pushed[0], count as u64)
        });
        let pool = rig.publisher.pool().clone();
        drop(rig);
        let want =
            batches.map(|(tag, batch, count)| (tag, PublishedContent::Messages { batch, count }));
        assert_eq!(*heard.lock().unwrap(), want);
        assert_eq!(pool.free_count(), pool.slots());
    });
}

#[test]
fn without_subscribers_nothing_is_taken_and_what_was_packed_fails() {
    each(|domain, format| {
        let mut rig = Rig::new(domain, config(format), format, &[&[1]]);
        assert_eq!(rig.push(9, b"x"), Err(PushError::NoSubscribers { tag: 9 }));
        let copied = rig.publisher.publish_copied(9, b"x", b"", 1);
        assert_eq!(copied.unwrap_err(), SendErrorKind::NoSubscribers { tag: 9 });
        rig.push(1, b"for nobody").expect("taken");
        rig.push(1, b"in the end").expect("taken");
        drop(rig.listeners.pop());
        rig.until("it is gone", |rig| {
            rig.publisher.endpoint().connections() == 0
        });
        assert!(rig.publisher.flush(), "nothing is left here");
        rig.until("they failed", |rig| !rig.failed.is_empty());
        let messages = vec![b"for nobody".to_vec(), b"in the end".to_vec()];
        let error = SendErrorKind::NoSubscribers { tag: 1 };
        assert_eq!(rig.failed, [(1, 2, error, messages)]);
        rig.check_over();
    });
}

/// As many publications as may be wait for a subscriber: what is packed stays, keeps its place, and
/// leaves by itself.
#[test]
fn what_can_not_leave_yet_waits_and_nothing_is_lost() {
    each(|domain, format| {
        let config = config(format).publishing(|p| p.publications(1));
        let mut rig = Rig::new(domain, config, format, &[&[1, 2]]);
        rig.listeners[0].holds = true;
        let mut sent = Vec::new();
        rig.until("a flush that has to wait", |rig| {
            let bytes = (sent.len() as u64).to_le_bytes();
            if rig.push(1, &bytes).is_ok() {
                sent.push(bytes.to_vec());
            }
            !rig.publisher.flush()
        });
        assert!(rig.push(1, b"behind it").unwrap_err().is_would_block());
        let copied = rig.publisher.publish_copied(1, b"behind it", b"", 1);
        let copied = copied.unwrap_err();
        assert!(matches!(copied, SendErrorKind::WouldBlock(_)), "{copied}");
        rig.push(2, b"of another tag")
            .expect("it has a buffer of its own");
        assert!(!rig.publisher.flush());
        assert_eq!(rig.writable, 0);
        rig.listeners[0].holds = false;
        rig.listeners[0].held.clear();
        rig.until("all came", |rig| {
            rig.listeners[0].bytes_of(2).len() == 1 && rig.pushed == rig.told
        });
        assert_eq!(rig.listeners[0].bytes_of(1), sent);
        rig.until("it may go on", |rig| rig.writable > 0);
        rig.check_over();
    });
}

#[test]
fn tags_buffers_and_lengths_have_their_bounds() {
    each(|domain, format| {
        let config = config(format).tags(2).buffers(3);
        let mut rig = Rig::new(domain, config, format, &[&[1, 2, 3]]);
        rig.push(1, b"one").expect("taken");
        rig.push(2, b"two").expect("taken");
        rig.push(3, b"three").expect("the oldest leaves for it");
        rig.until("the oldest came", |rig| {
            rig.listeners[0].bytes_of(1) == [b"one"]
        });
        rig.until("it is over", |rig| rig.told.len() == 1);

        let long = vec![0; 1024];
        let limit = SmallMessageLimit::Buffer;
        let refused = rig.push(1, &long).unwrap_err();
        assert!(
            matches!(refused, PushError::TooLong { len: 1024, whose, .. } if whose == limit),
            "{refused}"
        );
        let copied = rig
            .publisher
            .publish_copied(1, &[0; 1025], b"", 1)
            .unwrap_err();
        let (len, max, whose) = (1025, 1024, MessageLimit::Buffer);
        assert_eq!(copied, SendErrorKind::TooLong { len, max, whose });
        assert_eq!(rig.publisher.stats().pending, 2, "nothing left for those");

        // All buffers are somewhere else.
        let pool = rig.publisher.pool().clone();
        let taken: Vec<_> = std::iter::from_fn(|| pool.try_acquire()).collect();
        assert!(rig.publisher.flush());
        let refused = rig.push(1, b"x").unwrap_err();
        assert!(
            matches!(refused, PushError::WouldBlock(Blocked::Buffers)),
            "{refused}"
        );
        drop(taken);
        rig.until("it may go on", |rig| rig.writable == 1);
        rig.push(1, b"x").expect("taken");
        rig.publisher.flush();
        rig.until("all is over", |rig| rig.pushed == rig.told);
        rig.check_over();
    });
}
