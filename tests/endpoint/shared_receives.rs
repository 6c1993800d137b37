//! Several endpoints that receive into one pool: each has what is reserved for it, the rest goes to
//! whoever comes first, and what one leaves is for the others.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::{
    ConnectionlessConfig, ConnectionlessEvent, Message, Packing, PublishConfig, ReceiveConfig,
    SendErrorKind, SubscribeConfig,
};
use fabricast::error::Error;
use fabricast::fabric::EndpointKind;
use fabricast::{
    ConnectionlessEndpoint, Domain, PublishEndpoint, PublishEvent, ReceiveEndpoint, ReceiveEvent,
    SendEndpointZeroCopy, SubscribeEndpoint, SubscribeEvent,
};

use crate::common::{
    self, SOON, Watchdog, any_port, buffer, connect_limit, domain_of, drive, pattern, pool,
    provider::kinds,
};

const MESSAGE_BYTES: usize = 4096;
const CONNECTIONS: u32 = 4;

fn receive_pool(slots: u32) -> SharedBufferManager {
    SharedBufferManager::allocate(slots, MESSAGE_BYTES).expect("memory")
}

fn config(pool: &SharedBufferManager, share: RangeInclusive<u32>) -> ReceiveConfig {
    ReceiveConfig::default()
        .connection(|c| {
            let patient = c
                .max_connections(CONNECTIONS)
                .connect_timeout(connect_limit());
            patient.unresponsive_after(None).lost_after(None)
        })
        .incoming(|incoming| incoming.shared_pool(pool, share).credits(8))
}

/// Sends numbered messages, each in a buffer of the receiver's, to one listener.
struct Source {
    endpoint: SendEndpointZeroCopy,
    name: u64,
    next: u64,
    count: u64,
    over: bool,
}

impl Source {
    fn new(domain: &Arc<Domain>, to: &ReceiveEndpoint, name: u64, count: u64) -> Self {
        let config = common::sending().outgoing(|out| out.packing(Packing::Off));
        let endpoint = SendEndpointZeroCopy::connect(domain, to.local_addr(), config);
        Self {
            endpoint: endpoint.expect("begun"),
            name,
            next: 0,
            count,
            over: false,
        }
    }

    fn header(&self) -> Vec<u8> {
        [self.name.to_le_bytes(), self.next.to_le_bytes()].concat()
    }

    fn step(&mut self, payloads: &SharedBufferManager) {
        let mut events = Vec::new();
        self.endpoint.poll(&mut events).expect("polls");
        while self.next < self.count && !self.over && payloads.free_count() > 0 {
            let payload = buffer(payloads, &pattern(self.next, 600));
            let header = self.header();
            match self.endpoint.send_data(payload, &header, self.next) {
                Ok(()) => self.next += 1,
                Err(refused) => match refused.kind {
                    SendErrorKind::WouldBlock(_) => break,
                    _ => self.over = true,
                },
            }
        }
    }
}

/// A listener whose application keeps some messages.
struct Sink {
    endpoint: ReceiveEndpoint,
    /// By source, how many came.
    came: HashMap<u64, u64>,
    held: Vec<Message>,
    /// So many are kept until there are more, or until a connection starves.
    keep: usize,
    lets_go: bool,
    starved: bool,
}

impl Sink {
    fn new(domain: &Arc<Domain>, config: ReceiveConfig, keep: usize) -> Self {
        Self {
            endpoint: ReceiveEndpoint::listen(domain, any_port(), config).expect("listens"),
            came: HashMap::new(),
            held: Vec::new(),
            keep,
            lets_go: true,
            starved: false,
        }
    }

    fn step(&mut self) {
        let mut events = Vec::new();
        self.endpoint.poll(&mut events).expect("polls");
        for event in events {
            match event {
                ReceiveEvent::Message(message) => self.take(message),
                ReceiveEvent::Starved { .. } => self.starved = true,
                _ => {}
            }
        }
        if self.held.len() > self.keep || self.starved && self.lets_go {
            self.held.drain(..self.held.len().saturating_sub(1));
            self.starved = false;
        }
    }

    fn take(&mut self, message: Message) {
        let word = |at: usize| {
            let bytes = message.header()[at..at + 8].try_into();
            u64::from_le_bytes(bytes.expect("8 bytes"))
        };
        let (name, number) = (word(0), word(8));
        let next = self.came.entry(name).or_default();
        assert_eq!(number, *next, "of {name}, in order");
        assert!(message.payload() == pattern(number, 600));
        *next += 1;
        self.held.push(message);
    }

    fn total(&self) -> u64 {
        self.came.values().sum()
    }
}

/// Two listeners that want 40 buffers each have 32 together; one goes in the middle, while its
/// application holds messages.
#[test]
fn one_pool_serves_two_listeners_and_the_other_goes_on_when_one_is_gone() {
    const EACH: u64 = 300;
    let _dog = Watchdog::new("shared_receives");
    for kind in kinds() {
        let Some(domain) = domain_of(kind) else {
            continue;
        };
        let (shared, payloads) = (receive_pool(32), pool(&domain, 64, 600));
        // Over FI_EP_RDM, one receive is for hellos.
        let listen = |_| Sink::new(&domain, config(&shared, 13..=28), 2);
        let mut sinks: Vec<_> = (0..2).map(listen).collect();
        let start = |name: u64| {
            let to = &sinks[name as usize / 4].endpoint;
            Source::new(&domain, to, name, EACH)
        };
        let mut sources: Vec<_> = (0..8).map(start).collect();
        drive("each has what its connections need at least", SOON, || {
            let mut events = Vec::new();
            for source in &mut sources {
                source.endpoint.poll(&mut events).expect("polls");
            }
            sinks.iter_mut().for_each(Sink::step);
            sources.iter().all(|it| it.endpoint.is_connected())
        });
        drive("half of it", SOON, || {
            sources.iter_mut().for_each(|it| it.step(&payloads));
            sinks.iter_mut().for_each(Sink::step);
            sinks[0].total() >= 2 * EACH && !sinks[0].held.is_empty()
        });
        let Sink { endpoint, held, .. } = sinks.remove(0);
        drop(endpoint);
        drive("the rest of the other's", SOON, || {
            sources.iter_mut().for_each(|it| it.step(&payloads));
            sinks[0].step();
            sinks[0].total() == 4 * EACH
        });
        assert_eq!(sinks[0].came.len(), 4);
        let mut sink = sinks.remove(0);
        sink.held.clear();
        drop(sink);
        assert_eq!(shared.free_count(), 32 - held.len(), "what is held is held");
        drop(held);
        assert_eq!(shared.free_count(), 32);
    }
}

#[test]
fn a_listener_whose_messages_are_kept_takes_nothing_of_what_another_has_reserved() {
    const EACH: u64 = 200;
    let _dog = Watchdog::new("shared_receives");
    for kind in kinds() {
        let Some(domain) = domain_of(kind) else {
            continue;
        };
        let (shared, payloads) = (receive_pool(48), pool(&domain, 64, 600));
        let mut greedy = Sink::new(&domain, config(&shared, 0..=48), usize::MAX);
        greedy.lets_go = false;
        let mut modest = Sink::new(&domain, config(&shared, 16..=16), 2);
        let mut sources = [
            Source::new(&domain, &greedy.endpoint, 0, EACH),
            Source::new(&domain, &modest.endpoint, 1, EACH),
        ];
        drive("the one starves, the other has all", SOON, || {
            sources.iter_mut().for_each(|it| it.step(&payloads));
            greedy.step();
            modest.step();
            greedy.starved && modest.total() == EACH
        });
        assert!(greedy.total() < EACH, "it held them all");
        greedy.lets_go = true;
        greedy.keep = 0;
        greedy.held.clear();
        drive("the rest of the first one's", SOON, || {
            sources.iter_mut().for_each(|it| it.step(&payloads));
            greedy.step();
            greedy.total() == EACH
        });
    }
}

/// One endpoint sleeps for a buffer that another one's application has; nothing else wakes it.
#[test]
fn a_buffer_that_one_lets_go_wakes_the_other_that_waits_for_it() {
    let _dog = Watchdog::new("shared_receives");
    let Some(domain) = domain_of(EndpointKind::Msg) else {
        return;
    };
    let (shared, payloads) = (receive_pool(32), pool(&domain, 64, 600));
    let one = |config: ReceiveConfig| config.connection(|c| c.max_connections(1));
    let mut sleeper = Sink::new(&domain, one(config(&shared, 3..=4)), usize::MAX);
    let greedy = one(config(&shared, 0..=29)).incoming(|incoming| incoming.credits(64));
    let mut greedy = Sink::new(&domain, greedy, usize::MAX);
    (sleeper.lets_go, greedy.lets_go) = (false, false);
    let mut first = Source::new(&domain, &greedy.endpoint, 0, 100);
    drive("all that nobody has reserved is held", SOON, || {
        first.step(&payloads);
        greedy.step();
        greedy.starved && shared.free_count() == 0
    });
    let mut second = Source::new(&domain, &sleeper.endpoint, 1, 2);
    drive("a message that is held", SOON, || {
        second.step(&payloads);
        sleeper.step();
        sleeper.total() == 1 && sleeper.starved
    });
    let thread = std::thread::spawn(move || {
        while sleeper.total() < 2 {
            sleeper.endpoint.wait(5 * SOON).expect("sleeps");
            sleeper.step();
        }
    });
    greedy.held.pop();
    drive("the second message", SOON, || {
        second.step(&payloads);
        thread.is_finished()
    });
    thread.join().expect("it got it");
}

#[test]
fn a_subscriber_and_a_listener_share_a_pool() {
    let _dog = Watchdog::new("shared_receives");
    for kind in kinds() {
        let Some(domain) = domain_of(kind) else {
            continue;
        };
        let (shared, payloads) = (receive_pool(24), pool(&domain, 64, 600));
        let mut sink = Sink::new(&domain, config(&shared, 12..=16), 0);
        let subscribing = SubscribeConfig::default()
            .connection(|c| c.max_connections(1).connect_timeout(connect_limit()))
            .incoming(|incoming| incoming.shared_pool(&shared, 8..=12).credits(2));
        let mut subscriber = SubscribeEndpoint::open(&domain, subscribing).expect("opens");
        let publishing = PublishConfig::default().connection(|c| c.max_connections(1));
        let publisher = PublishEndpoint::listen(&domain, any_port(), publishing);
        let mut publisher = publisher.expect("listens");
        let at = subscriber.connect(publisher.local_addr()).expect("begun");
        subscriber.subscribe(at, 7).expect("asked");
        let mut source = Source::new(&domain, &sink.endpoint, 0, 50);
        let (mut told, mut came, mut got) = (Vec::new(), Vec::new(), 0);
        drive("both", SOON, || {
            source.step(&payloads);
            sink.step();
            publisher.poll(&mut told).expect("polls");
            subscriber.poll(&mut came).expect("polls");
            for event in told.drain(..) {
                if let PublishEvent::Subscribed { tag, .. } = event {
                    let payload = buffer(&payloads, b"all");
                    publisher.publish(tag, payload, b"", 1).expect("taken");
                }
            }
            let publications = came
                .drain(..)
                .filter(|event| matches!(event, SubscribeEvent::Publication { .. }));
            got += publications.count();
            got == 1 && sink.total() == 50
        });
        drop((subscriber, sink));
        assert_eq!(shared.free_count(), 24);
    }
}

#[test]
fn connectionless_endpoints_share_a_pool() {
    let _dog = Watchdog::new("shared_receives");
    let Some(domain) = domain_of(EndpointKind::Rdm) else {
        return;
    };
    let (shared, payloads) = (receive_pool(64), pool(&domain, 64, 600));
    let open = || {
        let config = ConnectionlessConfig::default()
            .max_peers(2)
            .connection(|c| c.connect_timeout(connect_limit()))
            .incoming(|incoming| incoming.shared_pool(&shared, 16..=48).credits(8));
        ConnectionlessEndpoint::open(&domain, any_port(), config).expect("opens")
    };
    let (mut a, mut b) = (open(), open());
    let to = b.local_addr();
    let (mut of_a, mut of_b, mut next, mut got) = (Vec::new(), Vec::new(), 0_u64, 0_u64);
    drive("200 messages", SOON, || {
        a.poll(&mut of_a).expect("polls");
        of_a.clear();
        while next < 200 && payloads.free_count() > 0 {
            let payload = buffer(&payloads, &next.to_le_bytes());
            if a.send_data(to, payload, b"", next).is_err() {
                break;
            }
            next += 1;
        }
        b.poll(&mut of_b).expect("polls");
        for event in of_b.drain(..) {
            if let ConnectionlessEvent::Message { message, .. } = event {
                assert_eq!(message.payload(), got.to_le_bytes());
                got += 1;
            }
        }
        got == 200
    });
    drop((a, b));
    assert_eq!(shared.free_count(), 64);
}

#[test]
fn a_share_that_can_not_be_is_refused_by_name() {
    let Some(domain) = common::domain() else {
        return;
    };
    let shared = receive_pool(32);
    #[allow(clippy::reversed_empty_ranges, reason = "what is refused")]
    let refused = [
        (12..=33, "to as many as the pool has"),
        (20..=12, "must be a range of buffers"),
        (0..=11, "must be 3 for each of max_connections"),
    ];
    let check = |share: RangeInclusive<u32>, said: &str| {
        let listening = ReceiveEndpoint::listen(&domain, any_port(), config(&shared, share));
        let error = listening.expect_err("out of range");
        assert!(
            matches!(error, Error::Config { field, .. } if field == "shared_pool"),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains(said), "{text}");
    };
    for (share, said) in refused {
        check(share, said);
    }
    let first = Sink::new(&domain, config(&shared, 20..=32), 0);
    check(13..=32, "must be free as it opens");
    drop(first);
    drop(Sink::new(&domain, config(&shared, 32..=32), 0));
}
