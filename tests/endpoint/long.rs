//! Messages that are longer than the receive buffers, over every provider that is here: written by
//! their sender into a pool of the receiver's, by one-sided operations.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use fabricast::buffer::{Buffer, Payload, SharedBufferManager};
use fabricast::endpoint::{
    Blocked, BufferedConfig, CloseReason, ConnectionlessConfig, ConnectionlessEvent, LongMessages,
    PublishConfig, ReceiveConfig, SendErrorKind, SlowPolicy, SubscribeConfig,
};
use fabricast::fabric::EndpointKind;
use fabricast::{
    BufferedEvent, ConnectionlessEndpoint, Domain, Fabric, PeerAddr, PublishEndpoint, PublishEvent,
    ReceiveEndpoint, ReceiveEvent, Region, SendEndpointBuffered, SendEndpointZeroCopy, SendEvent,
    SubscribeEndpoint, SubscribeEvent,
};

use crate::common;
use crate::common::child::{self, Child};
use crate::common::{
    Offers, SOON, Watchdog, after, buffer, domain_of, drive, node, pattern, pool,
    provider::{asked_or, kinds},
    receive_ends, rounds, send_end, undisturbed,
};

/// Providers with each kind of endpoint, where none is asked for. `shm` is for two processes:
/// `conformance` has it.
const CONNECTED: &[&str] = &["tcp"];
const CONNECTIONLESS: &[&str] = &["tcp", "net", "tcp;ofi_rxm", "sockets", "udp;ofi_rxd"];

/// The rows that are asked for; else these first ones without connections.
fn rows(connectionless: usize) -> impl Iterator<Item = (&'static str, EndpointKind)> {
    let of = |kind, usual| {
        let asked = asked_or(kind, usual).into_iter();
        asked.map(move |provider| (provider, kind))
    };
    let connected = of(EndpointKind::Msg, CONNECTED);
    connected.chain(of(EndpointKind::Rdm, &CONNECTIONLESS[..connectionless]))
}

const MESSAGE: usize = 64 * 1024;

fn open(provider: &str, kind: EndpointKind) -> Result<Arc<Domain>, fabricast::Error> {
    let builder = Fabric::builder().provider(provider).endpoint_kind(kind);
    builder.node(node()).open()?.open_domain()
}

/// Calls `check` with two domains of each row that is here.
fn on_each_row(mut check: impl FnMut(&Arc<Domain>, &Arc<Domain>)) {
    let mut ran = 0;
    for (provider, kind) in rows(CONNECTIONLESS.len()) {
        match (open(provider, kind), open(provider, kind)) {
            (Ok(near), Ok(far)) => {
                println!("{provider} {kind}");
                check(&near, &far);
                ran += 1;
            }
            (Err(error), _) | (_, Err(error)) => {
                let why = error.to_string();
                println!(
                    "SKIPPED: {provider} {kind}: {}",
                    why.lines().next().unwrap_or("")
                );
            }
        }
    }
    if ran == 0 {
        println!("SKIPPED: no provider");
    }
}

struct Two {
    sender: SendEndpointZeroCopy,
    receiver: ReceiveEndpoint,
    pool: SharedBufferManager,
    sent: Vec<SendEvent>,
    received: Vec<ReceiveEvent>,
}

impl Two {
    fn open(near: &Arc<Domain>, far: &Arc<Domain>, slots: u32, long: usize) -> Self {
        let to = SharedBufferManager::allocate(slots, long).expect("memory");
        let config = ReceiveConfig::default()
            .incoming(|incoming| incoming.max_message(MESSAGE).slots(48).credits(8))
            .connection(|c| c.max_connections(2))
            .incoming(|i| i.long_messages(LongMessages::new(to)));
        let receiver = ReceiveEndpoint::listen(far, common::any_port(), config).expect("listens");
        let config = common::sending();
        let sender =
            SendEndpointZeroCopy::connect(near, receiver.local_addr(), config).expect("begins");
        let mut two = Self {
            sender,
            receiver,
            pool: pool(near, 4, long + 4096),
            sent: Vec::new(),
            received: Vec::new(),
        };
        drive("connected", SOON, || {
            two.step();
            two.sender.is_connected()
        });
        two
    }

    fn step(&mut self) {
        self.sender.poll(&mut self.sent).expect("polls");
        self.receiver.poll(&mut self.received).expect("polls");
    }

    fn send(&mut self, payload: impl Into<Payload>, key: u64) {
        let mut payload = Some(payload.into());
        drive("a send", 3 * SOON, || {
            let p = payload.take().expect("given back");
            match self.sender.send_data(p, &key.to_le_bytes(), key) {
                Ok(()) => return true,
                Err(refused) if refused.is_would_block() => payload = Some(refused.given),
                Err(refused) => panic!("{refused}"),
            }
            self.step();
            false
        });
    }

    /// The next message: its key, and whether its bytes are those of the key.
    fn expect(&mut self, key: u64, bytes: &[u8]) {
        drive("a message", 3 * SOON, || {
            self.step();
            let is_message = |event: &ReceiveEvent| matches!(event, ReceiveEvent::Message(_));
            self.received.iter().any(is_message)
        });
        let at = self
            .received
            .iter()
            .position(|event| matches!(event, ReceiveEvent::Message(_)));
        let ReceiveEvent::Message(message) = self.received.remove(at.expect("just seen")) else {
            unreachable!("it is one");
        };
        assert_eq!(message.header(), key.to_le_bytes(), "in order");
        assert_eq!(message.payload().len(), bytes.len());
        assert!(message.payload() == bytes, "message {key}");
    }

    fn completed(&mut self, key: u64) {
        drive("its outcome", 3 * SOON, || {
            self.step();
            let mut done = false;
            self.sent.retain(|event| match event {
                SendEvent::Completed { key: k, .. } if *k == key => {
                    done = true;
                    false
                }
                SendEvent::Failed { error, .. } => panic!("{error}"),
                _ => true,
            });
            done
        });
    }

    fn close(mut self) {
        self.sender.begin_close(after(SOON));
        drive("the goodbyes", SOON, || {
            self.step();
            send_end(&self.sent).is_some() && !receive_ends(&self.received).is_empty()
        });
        // What a message was copied out of stays where its sender may reach it.
        let stats = self.receiver.stats();
        assert_eq!(stats.quarantined, u64::from(stats.long_copied > 0));
        common::assert_balanced(&self.sender);
    }
}

/// One byte more than a receive buffer takes, short ones before and behind it, and much longer ones
/// of many segments.
#[test]
fn long_messages_keep_their_place_on_every_provider() {
    let _dog = Watchdog::with("long_messages_keep_their_place", Duration::from_secs(150));
    on_each_row(|near, far| {
        let longest = 4 << 20;
        let mut two = Two::open(near, far, 2, longest);
        // Prefix and header belong to the message.
        let limit = MESSAGE - 2 - 8;
        for (round, len) in [limit, limit + 1, limit + 4097, 3 << 20]
            .into_iter()
            .enumerate()
        {
            let key = round as u64 * 10;
            let bytes = pattern(key, len);
            let short = pattern(key + 1, 100);
            let before = buffer(&two.pool, &short);
            two.send(before, key);
            let long = buffer(&two.pool, &bytes);
            two.send(long, key + 1);
            let behind = buffer(&two.pool, &short);
            if len > limit {
                let refused = two
                    .sender
                    .send_data(behind.clone(), &[], 99)
                    .expect_err("it would overtake");
                let blocked = SendErrorKind::WouldBlock(Blocked::LongMessage);
                assert_eq!(refused.kind, blocked);
            }
            two.send(behind, key + 2);
            two.expect(key, &short);
            two.expect(key + 1, &bytes);
            two.expect(key + 2, &short);
            for key in key..key + 3 {
                two.completed(key);
            }
        }
        // Many segments, of odd lengths.
        let region = Region::host(1 << 20).build().expect("memory");
        region.register(near).expect("registered");
        let whole = region.slice(0..1 << 20).expect("inside");
        let bytes = pattern(5, 1 << 20);
        // SAFETY: nobody else has the memory yet.
        unsafe {
            whole
                .as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        let cut = |i: usize| i * 5003;
        let parts = (0..200).map(|i| region.slice(cut(i)..cut(i + 1)).expect("inside"));
        two.send(Payload::from_iter(parts), 500);
        two.expect(500, &bytes[..cut(200)]);
        two.completed(500);
        let too_long = buffer(&two.pool, &pattern(1, longest + 1));
        two.send(too_long, 600);
        let mut failed = None;
        drive("the refusal", SOON, || {
            two.step();
            two.sent.retain(|event| match event {
                SendEvent::Failed {
                    key: 600, error, ..
                } => {
                    failed = error.limit_bytes;
                    false
                }
                _ => true,
            });
            failed.is_some()
        });
        assert_eq!(failed, Some(longest as u64));
        two.close();
    });
}

/// 64 MiB into a pool of its own, with buffers of a megabyte for all else.
#[test]
fn tens_of_megabytes() {
    let _dog = Watchdog::with("tens_of_megabytes", Duration::from_secs(120));
    let len = rounds(64 << 20, 512 << 20) as usize;
    for (provider, kind) in rows(2) {
        let (Ok(near), Ok(far)) = (open(provider, kind), open(provider, kind)) else {
            println!("SKIPPED: no {provider} {kind}");
            continue;
        };
        let mut two = Two::open(&near, &far, 1, len + 64);
        let bytes = pattern(3, len);
        let payload = buffer(&two.pool, &bytes);
        two.send(payload, 1);
        two.expect(1, &bytes);
        two.completed(1);
        two.close();
    }
}

/// Both ends in one domain, as in one process: the sender's goodbye is behind the message, and the
/// message comes back when nobody in the domain can write into it any more.
#[test]
fn a_goodbye_right_behind_one_in_the_same_domain_keeps_nobody() {
    let _dog = Watchdog::new("a_goodbye_right_behind_one_in_the_same_domain_keeps_nobody");
    on_each_row(|near, _| {
        let mut two = Two::open(near, near, 2, 1 << 20);
        let bytes = pattern(1, 100_000);
        let payload = buffer(&two.pool, &bytes);
        two.send(payload, 7);
        two.sender.begin_close(after(SOON));
        two.expect(7, &bytes);
        drive("the goodbyes", SOON, || {
            two.step();
            send_end(&two.sent).is_some() && !receive_ends(&two.received).is_empty()
        });
        assert_eq!(send_end(&two.sent), Some(CloseReason::Finished));
    });
}

#[test]
fn without_a_pool_it_is_refused_at_once_with_the_reason() {
    let Some(domain) = common::domain() else {
        return;
    };
    let mut pair = common::Pair::open(&domain);
    let region = Region::host(1 << 20).build().expect("memory");
    region.register(&domain).expect("registered");
    let payload = region.slice(0..1 << 20).expect("inside");
    let refused = pair
        .sender()
        .send_data(payload, &[], 1)
        .expect_err("too long");
    assert!(matches!(refused.kind, SendErrorKind::TooLong { .. }));
    let text = refused.to_string();
    assert!(text.contains("long_messages"), "{text}");
}

// ---- of an endpoint with many peers -------------------------------------------------------------

/// A connectionless endpoint, and receivers that it sends to.
struct Crowd {
    end: ConnectionlessEndpoint,
    receivers: Vec<ReceiveEndpoint>,
    sent: Vec<ConnectionlessEvent>,
    received: Vec<Vec<ReceiveEvent>>,
}

impl Crowd {
    /// Those that have a pool take messages of up to so many bytes.
    fn open(near: &Arc<Domain>, far: &Arc<Domain>, pools: &[bool], long: usize) -> Self {
        let config = ConnectionlessConfig::default()
            .incoming(|incoming| incoming.max_message(4096))
            .connection(|c| c.connect_timeout(common::connect_limit()));
        let end = ConnectionlessEndpoint::open(near, common::any_port(), config).expect("opens");
        let receivers = pools.iter().map(|pool| {
            let config = ReceiveConfig::default()
                .incoming(|incoming| incoming.max_message(MESSAGE).slots(48).credits(8))
                .connection(|c| c.max_connections(2));
            let config = match pool {
                true => {
                    let to = SharedBufferManager::allocate(2, long).expect("memory");
                    config.incoming(|i| i.long_messages(LongMessages::new(to)))
                }
                false => config,
            };
            ReceiveEndpoint::listen(far, common::any_port(), config).expect("listens")
        });
        Self {
            end,
            receivers: receivers.collect(),
            sent: Vec::new(),
            received: pools.iter().map(|_| Vec::new()).collect(),
        }
    }

    fn step(&mut self) {
        self.end.poll(&mut self.sent).expect("polls");
        for (receiver, events) in self.receivers.iter_mut().zip(&mut self.received) {
            receiver.poll(events).expect("polls");
        }
    }

    /// Sends it as soon as it is taken; else why it is refused.
    fn send(&mut self, to: usize, payload: Buffer, key: u64) -> Result<(), SendErrorKind> {
        let addr = self.receivers[to].local_addr();
        let (mut payload, mut taken) = (Some(Payload::from(payload)), Ok(()));
        drive("a send", 3 * SOON, || {
            let given = payload.take().expect("given back");
            match self.end.send_data(addr, given, &key.to_le_bytes(), key) {
                Ok(()) => return true,
                Err(refused) if refused.is_would_block() => payload = Some(refused.given),
                Err(refused) => {
                    taken = Err(refused.kind);
                    return true;
                }
            }
            self.step();
            false
        });
        taken
    }
}

/// To two peers at once, each in its order; one that has no pool is sent none.
#[test]
fn a_connectionless_endpoint_sends_long_messages_to_each_of_its_peers() {
    let name = "a_connectionless_endpoint_sends_long_messages";
    let _dog = Watchdog::with(name, Duration::from_secs(120));
    for provider in asked_or(EndpointKind::Rdm, &CONNECTIONLESS[..3]) {
        let kind = EndpointKind::Rdm;
        let (Ok(near), Ok(far)) = (open(provider, kind), open(provider, kind)) else {
            println!("SKIPPED: no {provider} {kind}");
            continue;
        };
        println!("{provider} {kind}");
        let longest = 3 << 20;
        let mut crowd = Crowd::open(&near, &far, &[true, true, false], longest);
        let pool = pool(&near, 9, longest + 4096);
        let lens = [100, longest - 10, 200, MESSAGE];
        for (round, len) in lens.into_iter().enumerate() {
            for to in 0..2 {
                let key = (round * 10 + to) as u64;
                let payload = buffer(&pool, &pattern(key, len));
                crowd.send(to, payload, key).expect("taken");
            }
        }
        let refused = crowd.send(2, buffer(&pool, &pattern(9, longest)), 99);
        assert!(
            matches!(refused, Err(SendErrorKind::TooLong { .. })),
            "{refused:?}"
        );
        drive("all messages and outcomes", 6 * SOON, || {
            crowd.step();
            let is_message = |event: &&ReceiveEvent| matches!(event, ReceiveEvent::Message(_));
            let here = |events: &Vec<ReceiveEvent>| events.iter().filter(is_message).count();
            let done = |event: &&ConnectionlessEvent| {
                matches!(event, ConnectionlessEvent::Completed { .. })
            };
            let outcomes = crowd.sent.iter().filter(done).count();
            let all = crowd.received[..2].iter().all(|it| here(it) == lens.len());
            all && outcomes == 2 * lens.len()
        });
        for (to, events) in crowd.received[..2].iter().enumerate() {
            let messages = events.iter().filter_map(|event| match event {
                ReceiveEvent::Message(message) => Some(message),
                _ => None,
            });
            for ((round, message), len) in messages.enumerate().zip(lens) {
                let key = (round * 10 + to) as u64;
                assert_eq!(message.header(), key.to_le_bytes(), "in order");
                assert!(message.payload() == pattern(key, len), "message {key}");
            }
        }
        let stats = crowd.end.send_stats();
        assert_eq!((stats.posted, stats.completed), (8, 8));
        assert_eq!(crowd.end.pending(), []);
        crowd.sent.clear();
        assert_eq!(pool.free_count(), pool.slots());
    }
}

/// Both ways at once, and each in its order.
#[test]
fn two_connectionless_endpoints_send_each_other_long_messages() {
    let name = "two_connectionless_endpoints_send_each_other_long_messages";
    let _dog = Watchdog::with(name, Duration::from_secs(120));
    for provider in asked_or(EndpointKind::Rdm, &CONNECTIONLESS[..3]) {
        let kind = EndpointKind::Rdm;
        let (Ok(near), Ok(far)) = (open(provider, kind), open(provider, kind)) else {
            println!("SKIPPED: no {provider} {kind}");
            continue;
        };
        println!("{provider} {kind}");
        let longest = 1 << 20;
        let mut ends = [&near, &far].map(|domain| {
            let to = SharedBufferManager::allocate(4, longest).expect("memory");
            let config = ConnectionlessConfig::default()
                .max_peers(2)
                .incoming(|i| i.max_message(4096).long_messages(LongMessages::new(to)))
                .connection(|c| c.connect_timeout(common::connect_limit()));
            let at = common::any_port();
            ConnectionlessEndpoint::open(domain, at, config).expect("opens")
        });
        let pools = [&near, &far].map(|domain| pool(domain, 9, longest));
        let addrs = ends.each_ref().map(ConnectionlessEndpoint::local_addr);
        let lens = [100, longest - 10, 200, 5000, longest - 10, 300];
        let (mut next, mut done, mut got) = ([0; 2], [0; 2], [0; 2]);
        drive("all messages and outcomes", 6 * SOON, || {
            for at in 0..2 {
                while let Some(&len) = lens.get(next[at]) {
                    let key = (next[at] * 10 + at) as u64;
                    let payload = buffer(&pools[at], &pattern(key, len));
                    let header = key.to_le_bytes();
                    match ends[at].send_data(addrs[1 - at], payload, &header, key) {
                        Ok(()) => next[at] += 1,
                        Err(refused) if refused.is_would_block() => break,
                        Err(refused) => panic!("{refused}"),
                    }
                }
                let mut events = Vec::new();
                ends[at].poll(&mut events).expect("polls");
                for event in events {
                    match event {
                        ConnectionlessEvent::Completed { .. } => done[at] += 1,
                        ConnectionlessEvent::Message { message, .. } => {
                            let key = (got[at] * 10 + 1 - at) as u64;
                            assert_eq!(message.header(), key.to_le_bytes(), "in order");
                            assert!(message.payload() == pattern(key, lens[got[at]]));
                            got[at] += 1;
                        }
                        ConnectionlessEvent::Failed { error, .. } => panic!("{error}"),
                        _ => {}
                    }
                }
            }
            done == [lens.len(); 2] && got == done
        });
        for (end, pool) in ends.iter().zip(&pools) {
            assert_eq!(end.pending(), []);
            assert_eq!(pool.free_count(), pool.slots());
        }
    }
}

// ---- published ----------------------------------------------------------------------------------

/// One buffer to those who take long messages; who takes none gets the others.
#[test]
fn a_publisher_sends_long_publications_to_those_who_take_some() {
    let name = "a_publisher_sends_long_publications_to_those_who_take_some";
    let _dog = Watchdog::with(name, Duration::from_secs(120));
    for (provider, kind) in rows(3) {
        let (Ok(near), Ok(far)) = (open(provider, kind), open(provider, kind)) else {
            println!("SKIPPED: no {provider} {kind}");
            continue;
        };
        println!("{provider} {kind}");
        let longest = 1 << 20;
        let config = PublishConfig::default().slow(SlowPolicy::Wait {
            queue: 16,
            deadline: 6 * SOON,
        });
        let config = config.connection(|c| c.connect_timeout(common::connect_limit()));
        let at = common::any_port();
        let mut publisher = PublishEndpoint::listen(&near, at, config).expect("listens");
        let mut subscribers = [true, true, false].map(|takes_long| {
            let config = SubscribeConfig::default()
                .connection(|c| {
                    c.max_connections(1)
                        .connect_timeout(common::connect_limit())
                })
                .incoming(|incoming| {
                    let incoming = incoming.max_message(MESSAGE).slots(24).credits(4);
                    match takes_long {
                        false => incoming,
                        true => {
                            let to = SharedBufferManager::allocate(2, longest).expect("memory");
                            incoming.long_messages(LongMessages::new(to))
                        }
                    }
                });
            let mut subscriber = SubscribeEndpoint::open(&far, config).expect("opens");
            let to = subscriber.connect(publisher.local_addr()).expect("begins");
            subscriber.subscribe(to, 7).expect("asked");
            subscriber
        });
        let pool = pool(&near, 9, longest);
        let lens = [100, longest - 40, 200, MESSAGE, longest - 40, 300];
        let (mut next, mut over) = (0, Vec::new());
        let mut got = [const { Vec::new() }; 3];
        drive("all publications and outcomes", 6 * SOON, || {
            let mut told = Vec::new();
            publisher.poll(&mut told).expect("polls");
            while publisher.subscribers(7) == 3 && next < lens.len() {
                let payload = buffer(&pool, &pattern(next as u64, lens[next]));
                let header = (next as u64).to_le_bytes();
                let sent = publisher.publish(7, payload, &header, next as u64);
                sent.expect("what has no room waits");
                next += 1;
            }
            over.extend(told.into_iter().filter_map(|event| match event {
                PublishEvent::Published { key, outcomes, .. } => Some((key, outcomes)),
                _ => None,
            }));
            for (subscriber, got) in subscribers.iter_mut().zip(&mut got) {
                let mut came = Vec::new();
                subscriber.poll(&mut came).expect("polls");
                for event in came {
                    if let SubscribeEvent::Publication {
                        missed, message, ..
                    } = event
                    {
                        let key = u64::from_le_bytes(message.header().try_into().expect("a key"));
                        let bytes = pattern(key, lens[key as usize]);
                        assert!(message.payload() == bytes, "publication {key}");
                        got.push((key, missed));
                    }
                }
            }
            over.len() == lens.len() && got[0].len() + got[1].len() == 2 * lens.len()
        });
        let all: Vec<_> = (0..lens.len() as u64).map(|key| (key, 0)).collect();
        assert_eq!(got, [all.clone(), all, vec![(0, 0), (2, 1), (5, 2)]]);
        over.sort_unstable_by_key(|(key, _)| *key);
        let counts = over.iter().map(|(_, it)| (it.sent, it.dropped, it.failed));
        let counts: Vec<_> = counts.collect();
        assert_eq!(
            counts,
            [
                (3, 0, 0),
                (2, 1, 0),
                (3, 0, 0),
                (2, 1, 0),
                (2, 1, 0),
                (3, 0, 0)
            ]
        );
        assert_eq!(pool.free_count(), pool.slots());
    }
}

/// A whole buffer that is longer than the peer's, among small messages.
#[test]
fn a_buffered_endpoint_sends_whole_buffers_that_are_long() {
    let _dog = Watchdog::new("a_buffered_endpoint_sends_whole_buffers_that_are_long");
    on_each_row(|near, far| {
        let to = SharedBufferManager::allocate(2, 1 << 20).expect("memory");
        let config = ReceiveConfig::default().incoming(|incoming| {
            let incoming = incoming.max_message(4096).slots(48).credits(8);
            incoming.long_messages(LongMessages::new(to))
        });
        let config = config.connection(|c| c.max_connections(2));
        let mut receiver =
            ReceiveEndpoint::listen(far, common::any_port(), config).expect("listens");
        let config = BufferedConfig::default()
            .connection(|c| c.connect_timeout(common::connect_limit()))
            .buffers(4)
            .buffer_size(1 << 20);
        let mut sender =
            SendEndpointBuffered::connect(near, receiver.local_addr(), config).expect("begins");
        let bytes = pattern(7, 1 << 20);
        let mut whole = None;
        let (mut pushed, mut sent, mut got) = (0, Vec::new(), Vec::new());
        let mut received = Vec::new();
        drive("a message, a buffer and a message", 3 * SOON, || {
            let mut events = Vec::new();
            sender.poll(&mut events).expect("polls");
            for event in events {
                match event {
                    BufferedEvent::Completed { carried, .. } => sent.push(carried),
                    BufferedEvent::Failed { error, .. } => panic!("{error}"),
                    _ => {}
                }
            }
            if pushed != 1 {
                pushed += u64::from(pushed < 3 && sender.push(1, 0, b"small").is_ok());
            } else {
                let taken = whole.take().or_else(|| {
                    let mut buffer = sender.get_buffer()?;
                    buffer.copy_from_slice(&bytes);
                    Some(buffer)
                });
                match taken.map(|buffer| sender.send_buffer(buffer, bytes.len(), 9)) {
                    Some(Ok(())) => pushed += 1,
                    Some(Err(refused)) if refused.is_would_block() => whole = Some(refused.given),
                    Some(Err(refused)) => panic!("{refused}"),
                    None => {}
                }
            }
            receiver.poll(&mut received).expect("polls");
            got.extend(common::messages(&mut received));
            sent.len() == 3 && got.len() == 3
        });
        assert!(got[1].payload == bytes, "the whole buffer, in its place");
    });
}

// ---- killed in the middle -----------------------------------------------------------------------

const KILLED: &str = "either_side_killed_in_the_middle";
const HUGE: usize = 48 << 20;

fn rdm() -> bool {
    child::argument().starts_with("rdm")
}

fn killed_domain(rdm: bool) -> Option<Arc<Domain>> {
    domain_of(match rdm {
        true => EndpointKind::Rdm,
        false => EndpointKind::Msg,
    })
}

fn receive_huge() {
    let domain = killed_domain(rdm()).expect("the parent has it");
    let to = SharedBufferManager::allocate(1, HUGE + 64).expect("memory");
    let config = ReceiveConfig::default()
        .incoming(|incoming| incoming.slots(32).credits(4))
        .connection(|c| c.max_connections(2))
        .incoming(|i| i.long_messages(LongMessages::new(to.clone())));
    let mut receiver =
        ReceiveEndpoint::listen(&domain, common::any_port(), config).expect("listens");
    child::tell(format!("addr {}", receiver.local_addr()));
    let mut events = Vec::new();
    drive("granted", 3 * SOON, || {
        receiver.poll(&mut events).expect("polls");
        to.free_count() == 0
    });
    // Nobody drives progress any more: what fits the sockets is written, and no more.
    std::thread::sleep(3 * SOON);
}

fn send_huge() {
    let domain = killed_domain(rdm()).expect("the parent has it");
    let argument = child::argument();
    let addr: PeerAddr = argument
        .split(' ')
        .nth(1)
        .and_then(|addr| addr.parse().ok())
        .expect("an address");
    // Before it is connected: from then on it must not be silent.
    let region = Region::host(HUGE).build().expect("memory");
    region.register(&domain).expect("registered");
    let payload = region.slice(0..HUGE).expect("inside");
    let mut sender =
        SendEndpointZeroCopy::connect(&domain, addr, common::sending()).expect("begins");
    sender.wait_connected().expect("connects");
    sender.send_data(payload, &[], 1).expect("offered");
    child::tell("offered");
    let mut events = Vec::new();
    drive("killed", 3 * SOON, || {
        sender.poll(&mut events).expect("polls");
        std::thread::sleep(Duration::from_micros(300));
        send_end(&events).is_some()
    });
}

fn kill_the_receiver(rdm: bool) {
    let Some(domain) = killed_domain(rdm) else {
        return println!("SKIPPED: no such provider");
    };
    let form = if rdm { "rdm" } else { "msg" };
    let mut child = Child::start(KILLED, "receive", form);
    let addr: PeerAddr = child.expect("addr", SOON).parse().expect("an address");
    let config = common::sending().connection(|c| {
        c.unresponsive_after(Some(Duration::from_millis(500)))
            .lost_after(Some(Duration::from_secs(2)))
    });
    let mut sender = SendEndpointZeroCopy::connect(&domain, addr, config).expect("begins");
    sender.wait_connected().expect("connects");
    let region = Region::host(HUGE).build().expect("memory");
    region.register(&domain).expect("registered");
    let payload = region.slice(0..HUGE).expect("inside");
    sender.send_data(payload, &[], 1).expect("offered");
    let mut events = Vec::new();
    for _ in 0..40 {
        sender.poll(&mut events).expect("polls");
        std::thread::sleep(Duration::from_micros(500));
    }
    // It can't be done: the receiver rests. To a machine that stood still meanwhile, that is a peer
    // that is lost already.
    assert!(
        sender.pending() == [1] || send_end(&events).is_some(),
        "{events:?}"
    );
    child.kill();
    drive("the end", 2 * SOON, || {
        sender.poll(&mut events).expect("polls");
        send_end(&events).is_some()
    });
    let failed = events.iter().filter(|event| {
        matches!(event, SendEvent::Failed { key: 1, payload, .. } if payload.len_bytes() == HUGE)
    });
    assert_eq!(failed.count(), 1, "{form}: {events:?}");
    common::assert_balanced(&sender);
}

fn kill_the_sender(rdm: bool) {
    let Some(domain) = killed_domain(rdm) else {
        return println!("SKIPPED: no such provider");
    };
    let form = if rdm { "rdm" } else { "msg" };
    let to = SharedBufferManager::allocate(1, HUGE + 64).expect("memory");
    let config = ReceiveConfig::default()
        .incoming(|incoming| incoming.slots(32).credits(4))
        .connection(|c| {
            c.max_connections(2)
                .unresponsive_after(Some(Duration::from_millis(500)))
                .lost_after(Some(Duration::from_secs(2)))
        })
        .incoming(|i| i.long_messages(LongMessages::new(to.clone())));
    let mut receiver =
        ReceiveEndpoint::listen(&domain, common::any_port(), config).expect("listens");
    let argument = format!("{form} {}", receiver.local_addr());
    let mut events = Vec::new();
    let child = undisturbed("the sender lives until it is killed", || {
        events.clear();
        let child = Child::start(KILLED, "send", &argument);
        drive("granted", SOON, || {
            receiver.poll(&mut events).expect("polls");
            to.free_count() == 0 || !receive_ends(&events).is_empty()
        });
        receive_ends(&events).is_empty().then_some(child)
    });
    // Once, so that something is written, and not all of it.
    receiver.poll(&mut events).expect("polls");
    child.kill();
    drive("the end", 2 * SOON, || {
        receiver.poll(&mut events).expect("polls");
        !receive_ends(&events).is_empty()
    });
    let whole = |event: &&ReceiveEvent| matches!(event, ReceiveEvent::Message(_));
    assert_eq!(events.iter().filter(whole).count(), 0, "half a message");
    // Where the endpoint goes on, so does what a lost peer may still do to it, unless a card looks
    // at keys: to memory that is nobody else's.
    assert_eq!(to.free_count(), 1);
    assert_eq!(
        receiver.stats().quarantined,
        u64::from(domain.quarantines()),
        "{form}"
    );
    drop((receiver, events));
    assert_eq!(to.free_count(), 1);
}

#[test]
fn either_side_killed_in_the_middle() {
    match child::role().as_deref() {
        Some("receive") => return receive_huge(),
        Some("send") => return send_huge(),
        Some(other) => panic!("no role {other}"),
        None => {}
    }
    let _dog = Watchdog::with(KILLED, Duration::from_secs(120));
    for kind in kinds() {
        let rdm = kind == EndpointKind::Rdm;
        kill_the_receiver(rdm);
        kill_the_sender(rdm);
    }
}
