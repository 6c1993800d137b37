//! Small messages that go out in frames, over the real providers: what arrives is what would arrive
//! without them.

use std::collections::HashMap;
use std::sync::Arc;

use fabricast::buffer::{Payload, SharedBufferManager};
use fabricast::endpoint::{
    BatchError, ConnectionlessConfig, ConnectionlessEvent, Message, MessageRef, Packing,
    PublishConfig, SendConfig, SendErrorKind, SubscribeConfig,
};
use fabricast::fabric::EndpointKind;
use fabricast::{
    ConnectionEvent, ConnectionlessEndpoint, PublishEndpoint, ReceiveEndpoint, ReceiveEvent,
    Region, SendEndpointZeroCopy, SendEvent, SubscribeEndpoint, SubscribeEvent,
};

use crate::common::{
    self, Random, SOON, Watchdog, any_port, connect_limit, domain, domain_of, drive, pattern, pool,
    small_receiver,
};

const MESSAGES: u64 = 4000;
const LONGEST: u64 = 6000;
/// Messages up to so many bytes are packed, whatever the provider.
const SMALL: usize = 4096;

/// A message with a number, of any length: its header says the number, its payload the length.
fn payload(pool: &SharedBufferManager, number: u64, len: usize) -> Option<Payload> {
    let mut buffer = pool.try_acquire()?;
    buffer[..len].copy_from_slice(&pattern(number, len));
    Some(buffer.freeze(len).into())
}

/// The messages of one connection, in their order, each as it was sent.
#[derive(Default)]
struct Heard {
    next: u64,
    held: Vec<Message>,
}

impl Heard {
    fn take(&mut self, message: Message) {
        let number = self.look((&message).into());
        // Some are kept for a while, with the frame that they came in.
        if number.is_multiple_of(97) {
            self.keep(message);
        }
    }

    /// The same of one that is borrowed.
    fn take_borrowed(&mut self, message: MessageRef<'_>) {
        let number = self.look(message);
        if number.is_multiple_of(97) {
            self.keep(message.to_message());
        }
        if number.is_multiple_of(101) {
            let copy = message.detach();
            assert_eq!(copy.header(), number.to_le_bytes());
            assert_eq!(copy.payload(), message.payload());
        }
    }

    fn look(&mut self, message: MessageRef<'_>) -> u64 {
        let number = u64::from_le_bytes(message.header().try_into().expect("a number"));
        assert_eq!(number, self.next, "in order");
        self.next += 1;
        assert_eq!(message.sequence(), self.next, "counted without a gap");
        assert_eq!(message.payload(), pattern(number, message.payload().len()));
        number
    }

    fn keep(&mut self, message: Message) {
        self.held.push(message);
        if self.held.len() > 8 {
            let kept = self.held.remove(0);
            let number = u64::from_le_bytes(kept.header().try_into().expect("a number"));
            assert_eq!(kept.payload(), pattern(number, kept.payload().len()));
        }
    }
}

#[test]
fn messages_of_any_length_arrive_in_order_and_each_key_has_one_outcome() {
    let _dog = Watchdog::new("packed");
    let Some(domain) = domain() else { return };
    let mut random = Random::from_printed_seed("packed");
    let listening = ReceiveEndpoint::listen(&domain, any_port(), small_receiver());
    let mut receiver = listening.expect("it listens");
    let config = common::sending().outgoing(|out| out.packing(Packing::UpTo(SMALL)).depth(8));
    let connecting = SendEndpointZeroCopy::connect(&domain, receiver.local_addr(), config);
    let mut sender = connecting.expect("begun");
    let pool = pool(&domain, 512, LONGEST as usize);
    let (mut sent, mut came) = (Vec::new(), Vec::new());
    let (mut next, mut owed, mut heard) = (0, HashMap::new(), Heard::default());
    drive("all messages", SOON, || {
        for _ in 0..random.below(300) {
            // Mostly small ones; one in 16 goes by itself.
            let most = if random.below(16) == 0 { LONGEST } else { 200 };
            let len = random.below(most) as usize;
            if next == MESSAGES {
                break;
            }
            let Some(payload) = payload(&pool, next, len) else {
                break;
            };
            match sender.send_data(payload, &next.to_le_bytes(), next) {
                Ok(()) => {
                    owed.insert(next, len);
                    next += 1;
                }
                Err(refused) => {
                    assert!(refused.is_would_block(), "{refused}");
                    break;
                }
            }
        }
        if random.below(8) == 0 {
            sender.flush().expect("not forked");
        }
        sender.poll(&mut sent).expect("it works");
        for event in sent.drain(..) {
            match event {
                SendEvent::Completed { key, payload } => {
                    let len = owed.remove(&key).expect("one outcome");
                    assert_eq!(payload.len_bytes(), len, "its payload comes back");
                }
                SendEvent::Failed { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
        receiver.poll(&mut came).expect("it works");
        for event in came.drain(..) {
            if let ReceiveEvent::Message(message) = event {
                heard.take(message);
            }
        }
        heard.next == MESSAGES && owed.is_empty()
    });
    let (sending, receiving) = (sender.stats(), receiver.stats());
    assert_eq!((sending.posted, receiving.messages), (MESSAGES, MESSAGES));
    assert!(sending.packed.messages > MESSAGES / 2, "{sending:?}");
    assert!(
        sending.packed.frames < sending.packed.messages / 10,
        "{sending:?}"
    );
    assert_eq!(
        (sending.packed.messages, sending.packed.frames),
        (receiving.packed.messages, receiving.packed.frames)
    );
    assert_eq!(sending.bytes, receiving.bytes);
    drop(heard);
    assert_eq!(pool.free_count(), pool.slots());
}

/// Parts of a region, whose bytes are zeros: the outcome of one that was copied has no payload, the
/// others come back as slices.
#[test]
fn parts_of_a_region_come_back_where_they_were_not_copied() {
    let _dog = Watchdog::new("packed parts");
    let Some(domain) = domain() else { return };
    let listening = ReceiveEndpoint::listen(&domain, any_port(), small_receiver());
    let mut receiver = listening.expect("it listens");
    let config = common::sending().outgoing(|out| out.packing(Packing::UpTo(SMALL)).depth(8));
    let connecting = SendEndpointZeroCopy::connect(&domain, receiver.local_addr(), config);
    let mut sender = connecting.expect("begun");
    let region = Region::host(2 * LONGEST as usize).build().expect("memory");
    region.register(&domain).expect("registered");
    // One in seven is too long for a frame.
    let len = |number: u64| {
        if number.is_multiple_of(7) {
            LONGEST as usize
        } else {
            number as usize % 200
        }
    };
    let part = |number: u64| {
        let start = number as usize % 5000;
        (
            region.part(start..start + len(number)).expect("inside"),
            number.to_le_bytes(),
            number,
        )
    };
    let (mut sent, mut came) = (Vec::new(), Vec::new());
    let (mut next, mut owed, mut copied, mut heard) = (0, HashMap::new(), 0, 0);
    drive("all parts", SOON, || {
        let taken = match next % 2 {
            0 => sender.send_part_batch((next..MESSAGES.min(next + 20)).map(part)),
            _ => {
                let (part, header, key) = part(next);
                let sent = sender.send_part(part, &header, key).map(|()| 1);
                sent.map_err(|refused| BatchError { sent: 0, refused })
            }
        };
        let taken = match taken {
            Ok(taken) => taken as u64,
            Err(stopped) => {
                assert!(stopped.refused.is_would_block(), "{stopped}");
                let number = next + stopped.sent as u64;
                assert_eq!(stopped.refused.key, number);
                let slice = stopped.refused.given.into_slice().expect("a slice");
                assert_eq!(
                    (slice.offset(), slice.len()),
                    (number as usize % 5000, len(number))
                );
                stopped.sent as u64
            }
        };
        let new = (next..next + taken).map(|number| (number, len(number)));
        owed.extend(new);
        next += taken;
        sender.poll(&mut sent).expect("it works");
        for event in sent.drain(..) {
            let SendEvent::Completed { key, payload } = event else {
                assert!(!matches!(event, SendEvent::Failed { .. }), "{event:?}");
                continue;
            };
            let len = owed.remove(&key).expect("one outcome");
            match payload.into_slice() {
                Ok(slice) => assert_eq!(slice.len(), len),
                Err(empty) => {
                    assert_eq!(empty.segments().len(), 0);
                    assert!(len < SMALL);
                    copied += 1;
                }
            }
        }
        receiver.poll(&mut came).expect("it works");
        for event in came.drain(..) {
            if let ReceiveEvent::Message(message) = event {
                assert_eq!(message.header(), u64::to_le_bytes(heard));
                assert_eq!(message.payload().len(), len(heard));
                assert!(message.payload().iter().all(|&byte| byte == 0));
                heard += 1;
            }
        }
        heard == MESSAGES && owed.is_empty()
    });
    assert_eq!(copied, sender.stats().packed.messages);
    assert!(copied > MESSAGES / 2, "{copied}");
    assert!(region.part(0..2 * LONGEST as usize + 1).is_err());
    drop((sender, receiver));
    region.deregister(&domain);
    assert_eq!(Arc::strong_count(&region), 1, "nobody keeps it");
}

#[test]
fn without_a_setting_messages_are_packed_where_the_row_says_so() {
    let _dog = Watchdog::new("packed by default");
    let Some(domain) = domain() else { return };
    let listening = ReceiveEndpoint::listen(&domain, any_port(), small_receiver());
    let mut receiver = listening.expect("it listens");
    let config = SendConfig::default().connection(|c| c.connect_timeout(connect_limit()));
    let connecting = SendEndpointZeroCopy::connect(&domain, receiver.local_addr(), config);
    let mut sender = connecting.expect("begun");
    let below = domain.fabric().provider().pack_below;
    // Header and framing are part of a message.
    let lengths = [8, below.saturating_sub(64), below + 1];
    let pool = pool(&domain, 8, lengths[2].max(lengths[0]));
    let (mut sent, mut came, mut next, mut heard) = (Vec::new(), Vec::new(), 0, Heard::default());
    drive("three messages", SOON, || {
        // None of them is over before the last one was given: there is no poll in between.
        while let Some(&len) = lengths.get(next as usize) {
            let given = payload(&pool, next, len).expect("one is free");
            let Ok(()) = sender.send_data(given, &next.to_le_bytes(), next) else {
                break;
            };
            next += 1;
        }
        sender.poll(&mut sent).expect("it works");
        receiver.poll(&mut came).expect("it works");
        for event in came.drain(..) {
            if let ReceiveEvent::Message(message) = event {
                heard.take(message);
            }
        }
        heard.next == 3
    });
    let stats = sender.stats();
    let packed = u64::from(below > 0);
    assert_eq!(
        (stats.packed.messages, stats.packed.frames),
        (packed, packed),
        "{stats:?}"
    );
    let copied = (lengths[1] + 8) as u64;
    assert!(
        (packed * copied..=packed * (copied + 64)).contains(&stats.packed.bytes),
        "{stats:?}"
    );
}

#[test]
fn what_is_packed_leaves_before_the_goodbye() {
    let _dog = Watchdog::new("packed goodbye");
    let Some(domain) = domain() else { return };
    let listening = ReceiveEndpoint::listen(&domain, any_port(), small_receiver());
    let mut receiver = listening.expect("it listens");
    let addr = receiver.local_addr();
    let other = std::thread::spawn({
        let domain = domain.clone();
        move || {
            let config = common::sending().outgoing(|out| out.packing(Packing::UpTo(SMALL)));
            let connecting = SendEndpointZeroCopy::connect(&domain, addr, config);
            let mut sender = connecting.expect("begun");
            sender.wait_connected().expect("connected");
            let pool = pool(&domain, 100, 64);
            for number in 0..100_u64 {
                let payload = payload(&pool, number, 64).expect("100 are free");
                let sent = sender.send_data(payload, &number.to_le_bytes(), number);
                sent.expect("there is room");
            }
            let events = sender.close(common::after(SOON)).expect("closed");
            let done = |event: &&SendEvent| matches!(event, SendEvent::Completed { .. });
            assert_eq!(events.iter().filter(done).count(), 100);
        }
    });
    let (mut came, mut heard) = (Vec::new(), Heard::default());
    drive("all messages", SOON, || {
        receiver.poll(&mut came).expect("it works");
        for event in came.drain(..) {
            if let ReceiveEvent::Message(message) = event {
                heard.take(message);
            }
        }
        heard.next == 100 && receiver.connections() == 0
    });
    other.join().expect("the sender is done");
}

#[test]
fn endpoints_without_connections_pack_for_each_peer() {
    let _dog = Watchdog::new("packed connectionless");
    let Some(domain) = domain_of(EndpointKind::Rdm) else {
        return;
    };
    let open = || {
        let config = ConnectionlessConfig::default()
            .max_peers(4)
            .outgoing(|out| out.packing(Packing::UpTo(SMALL)))
            .connection(|c| c.connect_timeout(connect_limit()));
        ConnectionlessEndpoint::open(&domain, any_port(), config).expect("open")
    };
    let (mut sender, mut receivers) = (open(), [open(), open()]);
    let peers = [0, 1].map(|n: usize| sender.add_peer(receivers[n].local_addr()).expect("added"));
    let pool = pool(&domain, 512, 256);
    let (mut next, mut done) = ([0_u64; 2], [0_u64; 2]);
    let mut heard = [Heard::default(), Heard::default()];
    let mut events = Vec::new();
    drive("all messages", SOON, || {
        for n in 0..2 {
            for _ in 0..50 {
                let number = next[n];
                if number == MESSAGES {
                    break;
                }
                let Some(payload) = payload(&pool, number, (number % 200) as usize) else {
                    break;
                };
                match sender.send_data(peers[n], payload, &number.to_le_bytes(), number) {
                    Ok(()) => next[n] += 1,
                    Err(refused) => {
                        let waits = matches!(refused.kind, SendErrorKind::WouldBlock(_));
                        assert!(waits, "{refused}");
                        break;
                    }
                }
            }
        }
        sender.poll(&mut events).expect("it works");
        for event in events.drain(..) {
            match event {
                ConnectionlessEvent::Completed { peer, key, .. } => {
                    let n = usize::from(peer == peers[1]);
                    assert_eq!(key, done[n], "in order");
                    done[n] += 1;
                }
                ConnectionlessEvent::Failed { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
        for (receiver, heard) in receivers.iter_mut().zip(&mut heard) {
            receiver.poll(&mut events).expect("it works");
            for event in events.drain(..) {
                if let ConnectionlessEvent::Message { message, .. } = event {
                    heard.take(message.into_message());
                }
            }
        }
        heard.iter().all(|heard| heard.next == MESSAGES) && done == [MESSAGES; 2]
    });
    let stats = sender.send_stats();
    assert!(
        stats.packed.messages > MESSAGES && stats.packed.frames < stats.packed.messages / 4,
        "{stats:?}"
    );
}

/// Sends numbered messages as fast as they are taken.
struct Source {
    endpoint: SendEndpointZeroCopy,
    pool: SharedBufferManager,
    next: u64,
    events: Vec<SendEvent>,
}

impl Source {
    /// Sends some, up to so many in all.
    fn pump(&mut self, most: u64) {
        while self.next < most
            && let Some(payload) = payload(&self.pool, self.next, (self.next % 200) as usize)
        {
            let sent = self
                .endpoint
                .send_data(payload, &self.next.to_le_bytes(), self.next);
            match sent {
                Ok(()) => self.next += 1,
                Err(refused) => {
                    assert!(refused.is_would_block(), "{refused}");
                    break;
                }
            }
        }
        self.endpoint.poll(&mut self.events).expect("it works");
        for event in self.events.drain(..) {
            if let SendEvent::Failed { error, .. } = event {
                panic!("{error}");
            }
        }
    }
}

/// Two senders, of which one ends while the other goes on: what is taken as events and what is
/// taken in batches is together what was sent, and each connection's words keep their places.
#[test]
fn batches_and_events_give_each_message_once_and_in_order() {
    let _dog = Watchdog::new("packed batches");
    let Some(domain) = domain() else { return };
    let mut random = Random::from_printed_seed("packed batches");
    let listening = ReceiveEndpoint::listen(&domain, any_port(), small_receiver());
    let mut receiver = listening.expect("it listens");
    let mut sources = [0, 1].map(|_| {
        let config = common::sending().outgoing(|out| out.packing(Packing::UpTo(SMALL)).depth(8));
        let connecting = SendEndpointZeroCopy::connect(&domain, receiver.local_addr(), config);
        Source {
            endpoint: connecting.expect("begun"),
            pool: pool(&domain, 512, 256),
            next: 0,
            events: Vec::new(),
        }
    });
    let mut heard: HashMap<_, Heard> = HashMap::new();
    let (mut events, mut ended, mut batches) = (Vec::new(), 0, 0);
    drive("all messages, and the ends", 2 * SOON, || {
        for (source, most) in sources.iter_mut().zip([MESSAGES / 2, MESSAGES]) {
            source.pump(most);
            if source.next == most && source.endpoint.stats().in_flight == 0 {
                source.endpoint.begin_close(common::after(SOON));
            }
        }
        let mut taken = Vec::new();
        if random.below(4) == 0 {
            let told = receiver.poll(&mut events).expect("it works");
            assert_eq!(told, events.len());
        } else {
            let most = random.below(600) as usize;
            let messages = receiver.receive(&mut events).expect("it works");
            for message in messages.take(most) {
                // The events come first: they are looked at below.
                taken.push(message.to_message());
                batches += 1;
            }
        }
        for event in events.drain(..) {
            match event {
                ReceiveEvent::Message(message) => {
                    heard.entry(message.connection()).or_default().take(message);
                }
                ReceiveEvent::Connection(id, ConnectionEvent::Connected(_)) => {
                    assert!(heard.insert(id, Heard::default()).is_none(), "first of all");
                }
                ReceiveEvent::Connection(id, ConnectionEvent::Disconnected(_)) => {
                    let next = heard[&id].next;
                    assert!(
                        [MESSAGES / 2, MESSAGES].contains(&next),
                        "{next} at the end"
                    );
                    ended += 1;
                }
                _ => {}
            }
        }
        for message in taken {
            let heard = heard
                .get_mut(&message.connection())
                .expect("it is connected");
            heard.take_borrowed((&message).into());
        }
        assert_eq!(receiver.connections() == 0 && heard.len() == 2, ended == 2);
        ended == 2
    });
    assert!(batches > 0);
    let stats = receiver.stats();
    assert_eq!(stats.messages, MESSAGES + MESSAGES / 2);
    assert!(
        stats.packed.frames > 0 && stats.packed.messages > stats.messages / 2,
        "{stats:?}"
    );
    let held: usize = heard.values().map(|heard| heard.held.len()).sum();
    assert!(
        stats.packed.messages_held <= held as u64
            && stats.packed.frames_held <= stats.packed.messages_held
    );
    // On another thread, as any message.
    std::thread::spawn(move || drop(heard))
        .join()
        .expect("dropped");
    assert!(
        receiver
            .receive(&mut events)
            .expect("it works")
            .next()
            .is_none()
    );
    let stats = receiver.stats();
    assert_eq!(
        (stats.packed.frames_held, stats.packed.messages_held),
        (0, 0)
    );
    assert_eq!(receiver.pool().free_count(), receiver.pool().slots());
}

#[test]
fn batches_of_endpoints_without_connections_say_from_whom() {
    let _dog = Watchdog::new("packed connectionless batches");
    let Some(domain) = domain_of(EndpointKind::Rdm) else {
        return;
    };
    let open = || {
        let config = ConnectionlessConfig::default()
            .max_peers(4)
            .outgoing(|out| out.packing(Packing::UpTo(SMALL)))
            .connection(|c| c.connect_timeout(connect_limit()));
        ConnectionlessEndpoint::open(&domain, any_port(), config).expect("open")
    };
    let (mut senders, mut receiver) = ([open(), open()], open());
    let (to, addrs) = (
        receiver.local_addr(),
        [0, 1].map(|n: usize| senders[n].local_addr()),
    );
    let pool = pool(&domain, 512, 256);
    let (mut next, mut heard) = ([0_u64; 2], [Heard::default(), Heard::default()]);
    let (mut events, mut polls, mut kept) = (Vec::new(), 0, Vec::new());
    drive("all messages", 2 * SOON, || {
        for n in 0..2 {
            while next[n] < MESSAGES
                && let Some(payload) = payload(&pool, next[n], (next[n] % 200) as usize)
            {
                let header = next[n].to_le_bytes();
                match senders[n].send_data(to, payload, &header, next[n]) {
                    Ok(()) => next[n] += 1,
                    Err(refused) => {
                        assert!(refused.is_would_block(), "{refused}");
                        break;
                    }
                }
            }
            senders[n].poll(&mut events).expect("it works");
            events.clear();
        }
        polls += 1;
        if u64::is_multiple_of(polls, 5) {
            receiver.poll(&mut events).expect("it works");
            for event in events.drain(..) {
                if let ConnectionlessEvent::Message { peer, message } = event {
                    let n = usize::from(receiver.peer_addr(peer) == Some(addrs[1]));
                    heard[n].take(message.into_message());
                }
            }
            return heard.iter().all(|heard| heard.next == MESSAGES);
        }
        let batch = receiver.receive(&mut events).expect("it works").take(300);
        let taken: Vec<_> = batch
            .map(|message| (message.peer(), message.to_message()))
            .collect();
        for (peer, message) in taken {
            let n = usize::from(receiver.peer_addr(peer) == Some(addrs[1]));
            heard[n].take_borrowed((&*message).into());
            if message.sequence().is_multiple_of(1000) {
                kept.push(message);
            }
        }
        let messages =
            |event: &ConnectionlessEvent| matches!(event, ConnectionlessEvent::Message { .. });
        assert!(!events.iter().any(messages), "not as events");
        let known = addrs.iter().filter_map(|addr| receiver.peer_at(addr));
        let held = known.map(|peer| receiver.outstanding(peer).expect("known").messages_held);
        assert_eq!(held.sum::<u32>() as usize, kept.len());
        heard.iter().all(|heard| heard.next == MESSAGES)
    });
    assert!(receiver.receive_stats().packed.frames > 0 && !kept.is_empty());
}

#[test]
fn batches_of_publications_have_their_numbers() {
    let _dog = Watchdog::new("packed publications");
    let Some(domain) = domain() else { return };
    let config = PublishConfig::default().outgoing(|out| out.packing(Packing::UpTo(SMALL)));
    let mut publisher = PublishEndpoint::listen(&domain, any_port(), config).expect("it listens");
    let mut subscriber =
        SubscribeEndpoint::open(&domain, SubscribeConfig::default()).expect("it opens");
    let at = subscriber.connect(publisher.local_addr()).expect("begun");
    subscriber.subscribe(at, 7).expect("asked");
    let pool = pool(&domain, 64, 64);
    let (mut told, mut events, mut next, mut came) = (Vec::new(), Vec::new(), 0_u64, 0);
    drive("all publications", SOON, || {
        if publisher.subscribers(7) == 1 {
            while next < 1000
                && let Some(payload) = payload(&pool, next, 32)
                && publisher
                    .publish(7, payload, &next.to_le_bytes(), next)
                    .is_ok()
            {
                next += 1;
            }
        }
        publisher.poll(&mut told).expect("it works");
        told.clear();
        let publications = subscriber.receive(&mut events).expect("it works");
        for publication in publications.take(100) {
            assert_eq!((publication.publisher, publication.tag), (at, 7));
            assert_eq!((publication.number, publication.missed), (came, 0));
            assert_eq!(publication.header(), came.to_le_bytes());
            assert_eq!(publication.payload(), pattern(came, 32));
            came += 1;
        }
        let publication =
            |event: SubscribeEvent| matches!(event, SubscribeEvent::Publication { .. });
        assert!(!events.drain(..).any(publication), "not as events");
        came == 1000
    });
    assert_eq!(subscriber.stats().received, 1000);
}

/// An outcome that waits behind messages is not told yet: its key is pending, and abandoned where
/// the endpoint is dropped.
#[test]
fn outcomes_that_wait_behind_messages_are_pending_until_they_are_told() {
    let _dog = Watchdog::new("packed outcomes");
    let Some(domain) = domain_of(EndpointKind::Rdm) else {
        return;
    };
    let (abandoned, hears) = std::sync::mpsc::channel();
    let config = || {
        ConnectionlessConfig::default()
            .max_peers(4)
            .outgoing(|out| out.packing(Packing::Auto))
            .connection(|c| c.connect_timeout(connect_limit()))
    };
    let open = |config| ConnectionlessEndpoint::open(&domain, any_port(), config).expect("open");
    let (mut other, mut both) = (
        open(config()),
        open(config().on_abandoned(move |_, key| abandoned.send(key).expect("heard"))),
    );
    let peer = other.add_peer(both.local_addr()).expect("added");
    let pool = pool(&domain, 512, 64);
    let (mut events, mut told, mut key, mut number) = (Vec::new(), Vec::new(), 0, 0_u64);
    let mut owed: Vec<u64> = Vec::new();
    let mut hidden = 0;
    drive("outcomes behind messages", SOON, || {
        for _ in 0..20 {
            if let Some(payload) = payload(&pool, number, 16)
                && other
                    .send_data(peer, payload, &number.to_le_bytes(), 0)
                    .is_ok()
            {
                number += 1;
            }
        }
        if let Some(back) = both.peer_at(&other.local_addr())
            && let Some(payload) = payload(&pool, key, 16)
            && both
                .send_data(back, payload, &key.to_le_bytes(), key)
                .is_ok()
        {
            owed.push(key);
            key += 1;
        }
        other.poll(&mut events).expect("it works");
        events.clear();
        both.receive(&mut told)
            .expect("it works")
            .take(5)
            .for_each(drop);
        for event in told.drain(..) {
            match event {
                ConnectionlessEvent::Completed { key, .. } => owed.retain(|owed| *owed != key),
                ConnectionlessEvent::Failed { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
        let mut pending: Vec<_> = both.pending().into_iter().map(|(_, key)| key).collect();
        pending.sort_unstable();
        assert_eq!(pending, owed);
        hidden += usize::from(both.send_stats().in_flight < owed.len() as u64);
        hidden > 20 && both.send_stats().in_flight < owed.len() as u64
    });
    drop(both);
    let mut heard: Vec<_> = hears.iter().collect();
    heard.sort_unstable();
    assert_eq!(heard, owed);
}
