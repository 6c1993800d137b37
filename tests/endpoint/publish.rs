//! One publisher, and subscribers in processes of their own: content, a stopped one, a killed one,
//! ends of subscriptions, new lives.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use fabricast::buffer::{HeaderSlotConfig, SharedBufferManager, ZeroCopyBufferManager};
use fabricast::endpoint::{
    CloseReason, ConnectionId, DropReason, Outcomes, PeerOutcome, PublishConfig, PublisherId,
    ReconnectPolicy, SlowPolicy, SubscribeConfig,
};
use fabricast::error::Error;
use fabricast::fabric::EndpointKind;
use fabricast::{
    ConnectionEvent, PeerAddr, PublishEndpoint, PublishEvent, SubscribeEndpoint, SubscribeEvent,
};

use crate::common;
use crate::common::child::{self, Child};
use crate::common::{
    SOON, Watchdog, after, any_port, buffer, domain_of as domain, drive, millis, pattern, pool,
    provider::kinds, within,
};

const TAG: u64 = 0xf1d0_0000_0000_0007;
const DEPTH: u32 = 4;
const SIZES: [usize; 4] = [8, 100, 5000, 70_000];

fn size_of(key: u64) -> usize {
    SIZES[(key % SIZES.len() as u64) as usize]
}

fn kind_named(name: &str) -> EndpointKind {
    match name {
        "Msg" => EndpointKind::Msg,
        _ => EndpointKind::Rdm,
    }
}

// ---- the subscribing process --------------------------------------------------------------------

#[derive(Debug, Default)]
struct Got {
    received: u64,
    missed: u64,
    last: HashMap<u64, u64>,
}

fn orders() -> Receiver<String> {
    let (tell, orders) = channel();
    std::thread::spawn(move || {
        while let Some(order) = child::hear() {
            let _ = tell.send(order);
        }
    });
    orders
}

/// Checks all that comes, and does what it is told: `on TAG`, `off TAG`, `count`, `bye`.
fn subscribe() {
    let argument = child::argument();
    let mut words = argument.split(' ');
    let kind = kind_named(words.next().expect("a kind"));
    let addr: PeerAddr = words.next().expect("an address").parse().expect("parses");
    let domain = domain(kind).expect("the parent has one");
    let config = SubscribeConfig::default()
        .incoming(|incoming| {
            incoming
                .max_message(80_000)
                // The depth, the reserve, and one for hellos.
                .slots(DEPTH + 4)
                .credits(DEPTH)
        })
        .connection(|c| c.max_connections(1));
    let mut endpoint = SubscribeEndpoint::open(&domain, config).expect("opens");
    let publisher = endpoint.connect(addr).expect("begins");
    endpoint.subscribe(publisher, TAG).expect("asked");
    let (orders, mut got) = (orders(), Got::default());
    let mut events = Vec::new();
    drive("the end", 6 * SOON, || {
        endpoint.poll(&mut events).expect("polls");
        let over = events.drain(..).any(|event| take(event, &mut got));
        while let Ok(order) = orders.try_recv() {
            obey(&order, &mut endpoint, publisher, &got);
        }
        if events.is_empty() {
            endpoint.wait(millis(1)).expect("sleeps");
        }
        over
    });
}

/// True at the end of the connection.
fn take(event: SubscribeEvent, got: &mut Got) -> bool {
    match event {
        SubscribeEvent::Subscribed { tag, .. } => child::tell(format!("on {tag}")),
        SubscribeEvent::Unsubscribed { tag, .. } => child::tell(format!("off {tag}")),
        SubscribeEvent::Publication {
            tag,
            number,
            missed,
            message,
            ..
        } => {
            let key = u64::from_le_bytes(message.header()[..8].try_into().expect("a key"));
            assert_eq!(message.header()[8..], tag.to_le_bytes());
            assert_eq!(message.payload(), pattern(key, size_of(key)), "key {key}");
            let before = got.last.insert(tag, number);
            assert!(before.is_none_or(|before| number == before + 1 + missed));
            got.received += 1;
            got.missed += missed;
        }
        SubscribeEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
            child::tell(format!("over {} {} {reason}", got.received, got.missed));
            return true;
        }
        _ => {}
    }
    false
}

fn obey(order: &str, endpoint: &mut SubscribeEndpoint, publisher: PublisherId, got: &Got) {
    match order.split_once(' ') {
        Some(("on", tag)) => endpoint.subscribe(publisher, tag.parse().expect("a tag")),
        Some(("off", tag)) => endpoint.unsubscribe(publisher, tag.parse().expect("a tag")),
        _ if order == "bye" => {
            endpoint.begin_close(after(SOON));
            Ok(())
        }
        _ => {
            child::tell(format!("count {} {}", got.received, got.missed));
            Ok(())
        }
    }
    .expect("asked");
}

// ---- the publisher ------------------------------------------------------------------------------

struct Publisher {
    endpoint: PublishEndpoint,
    pool: SharedBufferManager,
    kind: EndpointKind,
    /// Keys that are owed an end.
    owed: HashMap<u64, u32>,
    over: HashMap<u64, Outcomes>,
    outcomes: Vec<(u64, ConnectionId, PeerOutcome)>,
    subscribed: Vec<(ConnectionId, u64)>,
    ended: Vec<(ConnectionId, CloseReason, u32)>,
    /// Subscriptions that went with a connection whose end comes next.
    gone: HashMap<ConnectionId, u32>,
    next: u64,
}

impl Publisher {
    fn listen(kind: EndpointKind, slow: SlowPolicy) -> Option<Self> {
        let domain = domain(kind)?;
        let pool = pool(&domain, 64, 70_000);
        let config = PublishConfig::default()
            .slow(slow)
            .publications(32)
            .outgoing(|out| out.depth(DEPTH).packing(common::packing()))
            .connection(|c| c.max_connections(4).close_timeout(SOON));
        let endpoint = PublishEndpoint::listen(&domain, any_port(), config).expect("listens");
        Some(Self {
            endpoint,
            pool,
            kind,
            owed: HashMap::new(),
            over: HashMap::new(),
            outcomes: Vec::new(),
            subscribed: Vec::new(),
            ended: Vec::new(),
            gone: HashMap::new(),
            next: 0,
        })
    }

    fn child(&self) -> Child {
        let argument = format!("{:?} {}", self.kind, self.endpoint.local_addr());
        Child::start("a_child_subscribes", "subscribe", argument)
    }

    /// Children that have subscribed to `TAG`, with their connections.
    fn children(&mut self, count: usize) -> Vec<(Child, ConnectionId)> {
        (0..count)
            .map(|_| {
                let before = self.subscribed.len();
                let mut child = self.child();
                self.until("a subscription", |this| this.subscribed.len() > before);
                child.expect(&format!("on {TAG}"), SOON);
                (child, self.subscribed[before].0)
            })
            .collect()
    }

    fn poll(&mut self) {
        let mut events = Vec::new();
        self.endpoint.poll(&mut events).expect("polls");
        for event in events {
            self.take(event);
        }
    }

    fn take(&mut self, event: PublishEvent) {
        match event {
            PublishEvent::Subscribed { connection, tag } => self.subscribed.push((connection, tag)),
            PublishEvent::Unsubscribed { connection, tag } => {
                self.subscribed.retain(|it| *it != (connection, tag));
            }
            PublishEvent::Peer {
                key,
                connection,
                outcome,
            } => {
                assert!(self.owed.contains_key(&key), "before the end of key {key}");
                self.outcomes.push((key, connection, outcome));
            }
            PublishEvent::Published {
                key,
                payload,
                outcomes,
            } => {
                assert_eq!(self.owed.remove(&key), Some(outcomes.subscribers()));
                let payload = payload.into_buffer().expect("what was published");
                assert_eq!(payload[..], pattern(key, size_of(key)));
                self.over.insert(key, outcomes);
            }
            PublishEvent::SubscriptionsGone { connection, count } => {
                self.gone.insert(connection, count);
            }
            PublishEvent::Connection(connection, ConnectionEvent::Disconnected(reason)) => {
                let subscriptions = self.gone.remove(&connection).unwrap_or(0);
                self.ended.push((connection, reason, subscriptions));
            }
            _ => {}
        }
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        drive(what, 2 * SOON, || {
            self.poll();
            done(self)
        });
    }

    /// Publishes one, when there is room for it; its key.
    fn publish(&mut self, tag: u64) -> u64 {
        let key = self.next;
        self.next += 1;
        let bytes = pattern(key, size_of(key));
        let header = [key.to_le_bytes(), tag.to_le_bytes()].concat();
        drive("room for a publication", 2 * SOON, || {
            self.poll();
            if self.pool.free_count() == 0 {
                return false;
            }
            let payload = buffer(&self.pool, &bytes);
            match self.endpoint.publish(tag, payload, &header, key) {
                Ok(told) => {
                    let subscribers = told.posted + told.waiting + told.dropped;
                    self.owed.insert(key, subscribers);
                    true
                }
                Err(refused) => {
                    assert!(refused.is_would_block(), "{refused}");
                    let payload = refused.given.into_buffer().expect("what was given");
                    assert_eq!((refused.key, &payload[..]), (key, &bytes[..]));
                    false
                }
            }
        });
        key
    }

    fn settle(&mut self) {
        self.until("the end of every key", |this| this.owed.is_empty());
        assert_eq!(self.over.len() as u64, self.next, "one end for each");
    }

    /// Outcomes of one subscriber.
    fn of(&self, connection: ConnectionId) -> Vec<&PeerOutcome> {
        let its = self.outcomes.iter().filter(|it| it.1 == connection);
        its.map(|it| &it.2).collect()
    }

    /// Polls until the child has said it.
    fn expect(&mut self, child: &mut Child, word: &str) -> String {
        let mut found = None;
        self.until(word, |_| {
            while let Some(line) = child.heard() {
                if let Some(rest) = line.strip_prefix(word) {
                    found = Some(rest.trim().to_owned());
                }
            }
            found.is_some()
        });
        found.expect("it was said")
    }

    /// Received and missed, once nothing more comes.
    fn count(&mut self, child: &mut Child, received: u64) -> (u64, u64) {
        let mut last = (0, 0);
        let until = after(SOON);
        while last.0 < received && Instant::now() < until {
            child.say("count");
            let text = self.expect(child, "count");
            let (a, b) = text.split_once(' ').expect("two numbers");
            last = (a.parse().expect("a number"), b.parse().expect("a number"));
        }
        last
    }

    fn close(mut self) {
        self.settle();
        let events = self.endpoint.close(after(SOON)).expect("closes");
        for event in events {
            if let PublishEvent::Connection(_, ConnectionEvent::Disconnected(reason)) = event {
                assert_eq!(reason, CloseReason::Finished);
            }
        }
        drive("every buffer back", SOON, || {
            self.pool.free_count() == self.pool.slots()
        });
    }
}

fn waits() -> SlowPolicy {
    SlowPolicy::Wait {
        queue: 64,
        deadline: SOON,
    }
}

fn over_each_kind(test: &'static str, run: fn(EndpointKind)) {
    let _dog = Watchdog::with(test, 12 * SOON);
    for kind in kinds() {
        run(kind);
    }
}

#[test]
fn a_child_subscribes() {
    if child::role().as_deref() == Some("subscribe") {
        subscribe();
    }
}

#[test]
fn each_subscriber_gets_what_it_asked_for_until_it_asks_no_more() {
    over_each_kind("content", |kind| {
        let Some(mut publisher) = Publisher::listen(kind, waits()) else {
            return;
        };
        let mut children = publisher.children(3);
        for (n, (child, _)) in children.iter_mut().enumerate() {
            let tag = n as u64 + 1;
            child.say(&format!("on {tag}"));
            publisher.expect(child, &format!("on {tag}"));
        }
        for round in 0..100 {
            publisher.publish(TAG);
            publisher.publish(round % 3 + 1);
        }
        publisher.settle();
        for (n, (child, _)) in children.iter_mut().enumerate() {
            let own = if n == 0 { 34 } else { 33 };
            assert_eq!(publisher.count(child, 100 + own), (100 + own, 0));
        }
        assert!(publisher.over.values().all(Outcomes::all_sent));
        // The first wants no more: after its event nothing comes.
        let (first, _) = &mut children[0];
        first.say(&format!("off {TAG}"));
        publisher.expect(first, &format!("off {TAG}"));
        assert_eq!(publisher.endpoint.subscribers(TAG), 2);
        for _ in 0..10 {
            let key = publisher.publish(TAG);
            publisher.settle();
            assert_eq!(publisher.over[&key].subscribers(), 2);
        }
        for (n, (child, _)) in children.iter_mut().enumerate() {
            let expected = [134, 143, 143][n];
            assert_eq!(publisher.count(child, expected), (expected, 0));
        }
        let nobody = publisher
            .endpoint
            .publish(99, buffer(&publisher.pool, b"x"), b"", 7);
        assert!(nobody.expect_err("nobody").is_no_subscribers());
        for (child, _) in &mut children {
            child.say("bye");
        }
        publisher.until("three goodbyes", |this| this.ended.len() == 3);
        for (child, _) in &mut children {
            let over = publisher.expect(child, "over");
            assert!(
                over.ends_with("finished: both sides said goodbye"),
                "{over}"
            );
            child.finish(SOON);
        }
        publisher.close();
    });
}

/// Stops a child, and waits until it stands still.
fn stop(child: &Child) {
    child.stop();
    let stat = format!("/proc/{}/stat", child.id());
    drive("a process that is stopped", SOON, || {
        let stat = std::fs::read_to_string(&stat).expect("it is there");
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| rest.starts_with(" T"))
    });
}

/// Publishes at a steady pace; how long it took.
fn pace(publisher: &mut Publisher, count: u32) -> Duration {
    let begun = Instant::now();
    for n in 0..count {
        publisher.publish(TAG);
        let next = begun + millis(2) * n;
        drive("the pace", SOON, || {
            publisher.poll();
            Instant::now() >= next
        });
    }
    begun.elapsed()
}

#[test]
fn a_stopped_subscriber_misses_what_it_has_no_room_for_and_the_others_nothing() {
    over_each_kind("stopped, drop", |kind| {
        let Some(mut publisher) = Publisher::listen(kind, waits()) else {
            return;
        };
        let mut children = publisher.children(3);
        let slow = children[0].1;
        let told = publisher.endpoint.set_slow_policy(slow, SlowPolicy::Drop);
        assert!(told.expect("in its range"));
        stop(&children[0].0);
        let took = pace(&mut publisher, 150);
        assert!(
            took < within(Duration::from_secs(5)),
            "nobody waited: {took:?}"
        );
        // What is on the way to the stopped one is not over; what came later was dropped for it at
        // once.
        let dropped = publisher.of(slow).len() as u64;
        assert!(dropped >= 140, "{dropped} of 150");
        for outcome in publisher.of(slow) {
            let no_room = matches!(outcome, PeerOutcome::Dropped(DropReason::NoRoom(_)));
            assert!(no_room, "{outcome:?}");
        }
        publisher.until("no more than is on the way to it", |this| {
            this.owed.len() <= DEPTH as usize
        });
        children[0].0.go_on();
        // Room comes back when it has read what was on the way.
        publisher.until("the slow one takes part", |this| {
            let key = this.publish(TAG);
            this.settle();
            this.over[&key].sent == 3
        });
        let all = publisher.next;
        let dropped = publisher.of(slow).len() as u64;
        let arrived = all - dropped;
        let count = publisher.count(&mut children[0].0, arrived);
        assert_eq!(count, (arrived, dropped));
        for (child, id) in &mut children[1..] {
            assert!(publisher.of(*id).is_empty(), "{:?}", publisher.of(*id));
            assert_eq!(publisher.count(child, all), (all, 0));
        }
        publisher.close();
    });
}

#[test]
fn a_stopped_subscriber_is_cut_off_where_the_policy_says_so() {
    over_each_kind("stopped, cut off", |kind| {
        let limit = Duration::from_secs(1);
        let policy = SlowPolicy::Disconnect {
            queue: 1000,
            after: limit,
        };
        let Some(mut publisher) = Publisher::listen(kind, waits()) else {
            return;
        };
        let mut children = publisher.children(3);
        let slow = children[0].1;
        // The others live, and are waited for as long as it takes.
        let told = publisher.endpoint.set_slow_policy(slow, policy);
        assert!(told.expect("in its range"));
        stop(&children[0].0);
        let mut published = 0;
        publisher.until("something that waits", |this| {
            this.publish(TAG);
            published += 1;
            this.endpoint.waiting(slow) > 0
        });
        let begun = Instant::now();
        publisher.until("the end of the slow one", |this| !this.ended.is_empty());
        let took = begun.elapsed();
        assert!(took < within(limit + Duration::from_secs(2)), "{took:?}");
        let (id, reason, subscriptions) = publisher.ended[0];
        assert_eq!((id, subscriptions), (slow, 1));
        assert!(matches!(reason, CloseReason::TooSlow { .. }), "{reason}");
        // Nothing is held because of it.
        publisher.settle();
        for outcome in publisher.of(slow) {
            assert_ne!(*outcome, PeerOutcome::Sent);
        }
        for _ in 0..8 {
            publisher.publish(TAG);
        }
        publisher.settle();
        for (child, id) in &mut children[1..] {
            assert!(publisher.of(*id).is_empty());
            assert_eq!(publisher.count(child, published + 8), (published + 8, 0));
        }
        children[0].0.kill();
        publisher.close();
    });
}

#[test]
fn a_killed_subscriber_takes_its_subscriptions_with_it() {
    over_each_kind("killed", |kind| {
        let Some(mut publisher) = Publisher::listen(kind, waits()) else {
            return;
        };
        let mut children = publisher.children(3);
        let killed = children[0].1;
        // Over FI_EP_RDM the dead one is waited for as long as that; the living as long as it
        // takes.
        let policy = SlowPolicy::Wait {
            queue: 64,
            deadline: Duration::from_secs(1),
        };
        let told = publisher.endpoint.set_slow_policy(killed, policy);
        assert!(told.expect("in its range"));
        pace(&mut publisher, 20);
        children[0].0.kill();
        pace(&mut publisher, 100);
        publisher.settle();
        for (child, id) in &mut children[1..] {
            assert!(publisher.of(*id).is_empty(), "{:?}", publisher.of(*id));
            assert_eq!(publisher.count(child, 120), (120, 0));
        }
        if kind == EndpointKind::Msg {
            publisher.until("its end", |this| !this.ended.is_empty());
            let (id, reason, subscriptions) = publisher.ended[0];
            assert_eq!((id, subscriptions), (killed, 1));
            assert!(matches!(reason, CloseReason::PeerLost { .. }), "{reason}");
            assert_eq!(publisher.endpoint.subscribers(TAG), 2);
        }
        // Over FI_EP_RDM nobody says that a peer died: its silence does, later.
        drop(children);
        publisher.settle();
        let stats = publisher.endpoint.stats();
        assert_eq!((stats.published, stats.over, stats.open), (120, 120, 0));
    });
}

#[test]
fn a_subscriber_subscribes_again_to_a_publisher_that_came_back() {
    let _dog = Watchdog::new("comes back");
    let Some(mut publisher) = Publisher::listen(EndpointKind::Msg, waits()) else {
        return;
    };
    let addr = publisher.endpoint.local_addr();
    let own = domain(EndpointKind::Msg).expect("as the publisher's");
    let config =
        SubscribeConfig::default().connection(|c| c.reconnect(ReconnectPolicy::fixed(millis(20))));
    // However long it takes until the port is free again.
    let config = config.connection(|c| c.unresponsive_after(None));
    let mut subscriber = SubscribeEndpoint::open(&own, config).expect("opens");
    let at = subscriber.connect(addr).expect("begins");
    let twice = subscriber.connect(addr).expect_err("once each");
    assert!(matches!(twice, Error::Address { .. }), "{twice}");
    subscriber.subscribe(at, TAG).expect("asked");
    let mut log = Vec::new();
    let hear = |subscriber: &mut SubscribeEndpoint, log: &mut Vec<String>| {
        let mut events = Vec::new();
        subscriber.poll(&mut events).expect("polls");
        log.extend(events.into_iter().map(|event| match event {
            SubscribeEvent::Publication { number, missed, .. } => format!("{number} {missed}"),
            SubscribeEvent::Connection(_, ConnectionEvent::Connected(_)) => "connected".to_owned(),
            SubscribeEvent::Subscribed { .. } => "on".to_owned(),
            SubscribeEvent::Connection(_, ConnectionEvent::Reconnecting { .. }) => {
                "again".to_owned()
            }
            other => format!("{other:?}"),
        }));
    };
    publisher.until("a publication", |this| {
        hear(&mut subscriber, &mut log);
        if this.subscribed.len() == 1 && this.next == 0 {
            this.publish(TAG);
        }
        log.last().is_some_and(|last| last == "0 0")
    });
    drop(publisher);
    let mut endpoint = None;
    drive("the port again", SOON, || {
        hear(&mut subscriber, &mut log);
        let again = domain(EndpointKind::Msg).expect("as before");
        endpoint = PublishEndpoint::listen(&again, addr, PublishConfig::default()).ok();
        endpoint.is_some()
    });
    let mut endpoint = endpoint.expect("listens");
    let mut events = Vec::new();
    drive("subscribed again", SOON, || {
        endpoint.poll(&mut events).expect("polls");
        hear(&mut subscriber, &mut log);
        endpoint.subscribers(TAG) == 1 && log.last().is_some_and(|last| last == "on")
    });
    log.retain(|line| line != "again");
    assert_eq!(log, ["connected", "on", "0 0", "connected", "on"]);
    assert_eq!(subscriber.stats().reconnects, 1);
}

#[test]
fn a_publisher_registers_the_data_region_of_zero_copy_buffers() {
    let _dog = Watchdog::new("zero-copy buffers");
    let Some(own) = domain(EndpointKind::Msg) else {
        return;
    };
    let pool = SharedBufferManager::allocate(2, 4096).expect("memory");
    let slots = HeaderSlotConfig::default();
    let buffers = ZeroCopyBufferManager::new(Arc::clone(pool.region()), slots).expect("slots");
    let config = PublishConfig::default().outgoing(|out| out.headers(&buffers));
    let mut publisher = PublishEndpoint::listen(&own, any_port(), config).expect("listens");
    assert_eq!(pool.region().registration_count(), 1);
    let mut subscriber = SubscribeEndpoint::open(&own, SubscribeConfig::default()).expect("opens");
    let at = subscriber.connect(publisher.local_addr()).expect("begins");
    subscriber.subscribe(at, TAG).expect("asked");
    let (mut told, mut came) = (Vec::new(), Vec::new());
    let (mut published, mut got) = (false, None);
    drive("the publication", SOON, || {
        publisher.poll(&mut told).expect("polls");
        subscriber.poll(&mut came).expect("polls");
        if publisher.subscribers(TAG) == 1 && !published {
            let payload = buffer(&pool, b"payload");
            publisher.publish(TAG, payload, b"h", 1).expect("published");
            published = true;
        }
        for event in came.drain(..) {
            if let SubscribeEvent::Publication { message, .. } = event {
                got = Some((message.header().to_vec(), message.payload().to_vec()));
            }
        }
        got.is_some()
    });
    assert_eq!(got, Some((b"h".to_vec(), b"payload".to_vec())));
    drop(publisher);
    assert_eq!(pool.region().registration_count(), 0);
}

/// A batch is taken as far as there is room; each of what was taken has its outcome.
#[test]
fn batches_of_publications_arrive_in_their_order() {
    over_each_kind("batches_of_publications", |kind| {
        let (Some(near), Some(far)) = (domain(kind), domain(kind)) else {
            return;
        };
        let pool = pool(&near, 40, 64);
        let config = PublishConfig::default().slow(waits()).publications(32);
        let mut publisher = PublishEndpoint::listen(&near, any_port(), config).expect("listens");
        let mut subscribers = [(); 2].map(|()| {
            let config = SubscribeConfig::default().connection(|c| c.max_connections(1));
            let mut subscriber = SubscribeEndpoint::open(&far, config).expect("opens");
            let at = subscriber.connect(publisher.local_addr()).expect("begins");
            subscriber.subscribe(at, TAG).expect("asked");
            subscriber
        });
        let (mut next, mut over, mut got) = (0_u64, 0, [const { Vec::new() }; 2]);
        drive("all publications", 2 * SOON, || {
            let mut told = Vec::new();
            publisher.poll(&mut told).expect("polls");
            over += told
                .iter()
                .filter(|event| match event {
                    PublishEvent::Published { outcomes, .. } => outcomes.sent == 2,
                    _ => false,
                })
                .count();
            if publisher.subscribers(TAG) == 2 && next < 100 {
                let room = (pool.free_count() as u64).min(100 - next);
                let batch = (next..next + room).map(|key| {
                    let payload = buffer(&pool, &pattern(key, 40));
                    (TAG, payload, key.to_le_bytes(), key)
                });
                let mut accepted = Vec::new();
                let sent = match publisher.publish_batch(batch, &mut accepted) {
                    Ok(sent) => sent,
                    Err(stopped) => {
                        assert!(stopped.refused.is_would_block(), "{stopped}");
                        stopped.sent
                    }
                };
                let numbers: Vec<_> = accepted.iter().map(|it| it.number).collect();
                assert_eq!(numbers, (next..next + sent as u64).collect::<Vec<_>>());
                next += sent as u64;
            }
            for (subscriber, got) in subscribers.iter_mut().zip(&mut got) {
                let mut came = Vec::new();
                subscriber.poll(&mut came).expect("polls");
                got.extend(came.into_iter().filter_map(|event| match event {
                    SubscribeEvent::Publication {
                        missed: 0, message, ..
                    } => {
                        let key = message.header().try_into().map(u64::from_le_bytes);
                        let key = key.expect("a key");
                        assert_eq!(message.payload(), pattern(key, 40));
                        Some(key)
                    }
                    _ => None,
                }));
            }
            over == 100 && got.iter().all(|got| got.len() == 100)
        });
        let all: Vec<_> = (0..100).collect();
        assert_eq!(got, [all.clone(), all]);
        assert_eq!(pool.free_count(), pool.slots());
    });
}

#[test]
fn who_does_not_subscribe_is_refused_in_words() {
    let _dog = Watchdog::new("refused");
    let Some(own) = domain(EndpointKind::Msg) else {
        return;
    };
    let mut publisher =
        PublishEndpoint::listen(&own, any_port(), PublishConfig::default()).expect("listens");
    let config = common::sending();
    let mut sender = fabricast::SendEndpointZeroCopy::connect(&own, publisher.local_addr(), config)
        .expect("begins");
    let (mut told, mut events) = (Vec::new(), Vec::new());
    drive("the refusal", SOON, || {
        publisher.poll(&mut told).expect("polls");
        sender.poll(&mut events).expect("polls");
        matches!(
            events.last(),
            Some(fabricast::SendEvent::Connection(
                ConnectionEvent::Disconnected(_)
            ))
        )
    });
    let Some(fabricast::SendEvent::Connection(ConnectionEvent::Disconnected(reason))) =
        events.last()
    else {
        panic!("{events:?}");
    };
    let words = reason.to_string();
    assert!(words.contains("publish and subscribe"), "{words}");
    // And a receiver is no publisher.
    let config = fabricast::endpoint::ReceiveConfig::default();
    let mut receiver =
        fabricast::ReceiveEndpoint::listen(&own, any_port(), config).expect("listens");
    let mut subscriber = SubscribeEndpoint::open(&own, SubscribeConfig::default()).expect("opens");
    subscriber.connect(receiver.local_addr()).expect("begins");
    let (mut told, mut events) = (Vec::new(), Vec::new());
    drive("the refusal", SOON, || {
        receiver.poll(&mut told).expect("polls");
        subscriber.poll(&mut events).expect("polls");
        matches!(
            events.last(),
            Some(SubscribeEvent::Connection(
                _,
                ConnectionEvent::Disconnected(_)
            ))
        )
    });
    let Some(SubscribeEvent::Connection(_, ConnectionEvent::Disconnected(reason))) = events.last()
    else {
        panic!("{events:?}");
    };
    let words = reason.to_string();
    assert!(words.contains("publish and subscribe"), "{words}");
}
