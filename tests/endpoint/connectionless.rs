//! The connectionless endpoint over a real provider: `net` of libfabric 1.x, or `tcp` of 2.x.

#![allow(unsafe_code)]

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::{
    Blocked, CloseReason, ConnectionlessConfig, ConnectionlessEvent, Packing, PeerError, PeerId,
    PeerMessage, SendErrorKind,
};
use fabricast::error::Error;
use fabricast::event_loop::{EventLoop, LoopEvent};
use fabricast::fabric::EndpointKind;
use fabricast::{ConnectionEvent, ConnectionlessEndpoint, Domain, PeerAddr};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::common;
use crate::common::child::{Child, argument, hear, role, tell};
use crate::common::{
    Offers, SOON, Watchdog, after, any_port, breathe, connect_limit, domain_of, drive, fd_count,
    millis, nobodys_port, patient, rss_bytes, within,
};

/// `None`, after a line that says why, where there is no libfabric or no provider of this kind.
fn domain() -> Option<Arc<Domain>> {
    domain_of(EndpointKind::Rdm)
}

/// An endpoint with its application.
struct Node {
    end: ConnectionlessEndpoint,
    pool: SharedBufferManager,
    up: HashSet<PeerId>,
    down: Vec<(PeerId, CloseReason)>,
    removed: Vec<PeerId>,
    owed: HashSet<u64>,
    completed: Vec<u64>,
    failed: Vec<u64>,
    kept: usize,
    received: Vec<(PeerId, u64)>,
    hold: bool,
    held: Vec<PeerMessage>,
}

fn config() -> ConnectionlessConfig {
    ConnectionlessConfig::default()
        .max_peers(8)
        .incoming(|incoming| incoming.max_message(4096))
        .outgoing(|out| out.packing(common::packing()))
        .connection(|c| c.connect_timeout(connect_limit()))
}

impl Node {
    fn new(domain: &Arc<Domain>, config: ConnectionlessConfig) -> Self {
        let pool = SharedBufferManager::allocate(64, 4096).unwrap();
        pool.region().register(domain).unwrap();
        Self {
            end: ConnectionlessEndpoint::open(domain, any_port(), config).unwrap(),
            pool,
            up: HashSet::new(),
            down: Vec::new(),
            removed: Vec::new(),
            owed: HashSet::new(),
            completed: Vec::new(),
            failed: Vec::new(),
            kept: 0,
            received: Vec::new(),
            hold: false,
            held: Vec::new(),
        }
    }

    fn addr(&self) -> PeerAddr {
        self.end.local_addr()
    }

    /// Sends a message that says its key; the kind of refusal if it is refused.
    fn send(
        &mut self,
        to: impl Into<fabricast::endpoint::SendTo>,
        key: u64,
    ) -> Result<(), SendErrorKind> {
        let Some(mut buffer) = self.pool.try_acquire() else {
            return Err(SendErrorKind::WouldBlock(Blocked::Buffers));
        };
        buffer[..8].copy_from_slice(&key.to_le_bytes());
        match self
            .end
            .send_data(to, buffer.freeze(8), &key.to_be_bytes(), key)
        {
            Ok(()) => {
                assert!(self.owed.insert(key), "key {key} twice");
                Ok(())
            }
            Err(refused) => {
                assert_eq!((refused.key, refused.given.len_bytes()), (key, 8));
                Err(refused.kind)
            }
        }
    }

    fn poll(&mut self) {
        let mut events = Vec::new();
        self.end.poll(&mut events).unwrap();
        self.absorb(events);
    }

    fn absorb(&mut self, events: Vec<ConnectionlessEvent>) {
        for event in events {
            match event {
                ConnectionlessEvent::Connection(peer, ConnectionEvent::Connected(info)) => {
                    let addr = info.peer.expect("where it is");
                    assert_eq!(self.end.peer_at(&addr), Some(peer));
                    self.up.insert(peer);
                }
                ConnectionlessEvent::Connection(peer, ConnectionEvent::Disconnected(reason)) => {
                    self.up.remove(&peer);
                    self.down.push((peer, reason));
                }
                ConnectionlessEvent::Removed { peer } => {
                    self.up.remove(&peer);
                    self.removed.push(peer);
                }
                ConnectionlessEvent::Completed { key, payload, .. } => {
                    assert!(self.owed.remove(&key) && payload.len_bytes() == 8);
                    self.completed.push(key);
                }
                ConnectionlessEvent::Failed { key, payload, .. } => {
                    assert!(self.owed.remove(&key));
                    self.kept += usize::from(payload.segments().is_empty());
                    self.failed.push(key);
                }
                ConnectionlessEvent::Released { payload, .. } => {
                    assert_eq!(payload.len_bytes(), 8);
                    self.kept -= 1;
                }
                ConnectionlessEvent::Message { peer, message } => {
                    let key = u64::from_le_bytes(message.payload().try_into().unwrap());
                    assert_eq!(message.header(), key.to_be_bytes());
                    self.received.push((peer, key));
                    if self.hold {
                        self.held.push(message);
                    }
                }
                _ => {}
            }
        }
        let stats = self.end.send_stats();
        assert_eq!(
            stats.posted,
            stats.completed + stats.failed + stats.in_flight
        );
        assert_eq!(stats.in_flight, self.owed.len() as u64);
    }

    fn keys_from(&self, peer: PeerId) -> Vec<u64> {
        let its = self.received.iter().filter(|(from, _)| *from == peer);
        its.map(|(_, key)| *key).collect()
    }

    /// Everything is back: payloads and header slots.
    fn check_all_back(&self) {
        assert!(self.owed.is_empty(), "owed: {:?}", self.owed);
        assert_eq!(self.pool.free_count(), self.pool.slots());
        assert_eq!(
            self.end.headers().free_count(),
            self.end.headers().capacity()
        );
    }
}

/// Polls all until something is so.
#[track_caller]
fn until(nodes: &mut [&mut Node], what: &str, mut done: impl FnMut(&mut [&mut Node]) -> bool) {
    drive(what, SOON, || {
        nodes.iter_mut().for_each(|node| node.poll());
        done(nodes)
    });
}

/// Sends as many messages to a peer, with keys from the first on.
#[track_caller]
fn send_all(nodes: &mut [&mut Node], from: usize, to: PeerAddr, keys: std::ops::Range<u64>) {
    let mut next = keys.start;
    until(nodes, "sent", |nodes| {
        while next < keys.end {
            match nodes[from].send(to, next) {
                Ok(()) => next += 1,
                Err(SendErrorKind::WouldBlock(_)) => return false,
                Err(other) => panic!("{other}"),
            }
        }
        nodes[from].owed.is_empty()
    });
}

#[test]
fn two_send_each_other_by_address_and_by_id() {
    let _watchdog = Watchdog::new("two_send_each_other_by_address_and_by_id");
    let Some(domain) = domain() else { return };
    let (mut a, mut b) = (Node::new(&domain, config()), Node::new(&domain, config()));
    let (at_a, at_b) = (a.addr(), b.addr());
    // The first send adds the peer and is refused until it has answered.
    assert_eq!(
        a.send(at_b, 0),
        Err(SendErrorKind::WouldBlock(Blocked::Connecting))
    );
    assert_eq!(a.end.peers(), 1);
    send_all(&mut [&mut a, &mut b], 0, at_b, 0..500);
    // The other way: over what stands already.
    send_all(&mut [&mut b, &mut a], 0, at_a, 0..500);
    until(&mut [&mut a, &mut b], "received", |nodes| {
        nodes.iter().all(|node| node.received.len() == 500)
    });
    let keys: Vec<_> = (0..500).collect();
    for (node, from) in [(&a, at_b), (&b, at_a)] {
        let peer = node.end.peer_at(&from).unwrap();
        assert_eq!(node.keys_from(peer), keys, "in order");
        assert_eq!(
            (node.end.peers(), node.end.peer_addr(peer)),
            (1, Some(from))
        );
        assert_eq!(node.end.receive_stats().connections, 1, "one connection");
        node.check_all_back();
    }
    let peer = a.end.peer_at(&at_b).unwrap();
    a.send(peer, 1000).unwrap();
    // The goodbye: what was sent arrives.
    let end = std::thread::scope(|scope| {
        let Node { end, .. } = a;
        let closing = scope.spawn(move || end.close(after(SOON)).unwrap());
        until(&mut [&mut b], "down", |nodes| nodes[0].down.len() == 1);
        closing.join().unwrap()
    });
    assert!(
        end.iter()
            .any(|e| matches!(e, ConnectionlessEvent::Completed { key: 1000, .. })),
        "{end:?}"
    );
    assert_eq!(b.received.last().map(|(_, key)| *key), Some(1000));
    assert_eq!(b.down[0].1, CloseReason::Finished);
    assert!(!b.end.is_up(b.down[0].0));
}

/// A batch is taken as far as there is room; what is refused comes back, and the rest follows it.
#[test]
fn batches_arrive_in_their_order() {
    let _watchdog = Watchdog::new("batches_arrive_in_their_order");
    let Some(domain) = domain() else { return };
    let (mut a, mut b) = (Node::new(&domain, config()), Node::new(&domain, config()));
    let to = b.addr();
    let payload = |pool: &SharedBufferManager, key: u64| {
        let mut buffer = pool.try_acquire().expect("a payload is free");
        buffer[..8].copy_from_slice(&key.to_le_bytes());
        (buffer.freeze(8), key.to_be_bytes(), key)
    };
    // The first one adds the peer, and comes back.
    let pool = a.pool.clone();
    let stopped = a.end.send_batch(to, (0..9).map(|key| payload(&pool, key)));
    let stopped = stopped.expect_err("nobody is there yet");
    let connecting = SendErrorKind::WouldBlock(Blocked::Connecting);
    assert_eq!((stopped.sent, stopped.refused.key), (0, 0));
    assert_eq!(stopped.refused.kind, connecting);
    drop(stopped);
    assert_eq!(
        pool.free_count(),
        pool.slots(),
        "the rest was not looked at"
    );
    let mut next = 0;
    until(&mut [&mut a, &mut b], "sent and received", |nodes| {
        while next < 500 {
            let room = (pool.free_count() as u64).min(500 - next);
            let batch = (next..next + room).map(|key| payload(&pool, key));
            let (sent, stopped) = match nodes[0].end.send_batch(to, batch) {
                Ok(sent) => (sent, room == 0),
                Err(stopped) => {
                    assert!(stopped.refused.is_would_block(), "{stopped}");
                    assert_eq!(stopped.refused.key, next + stopped.sent as u64);
                    (stopped.sent, true)
                }
            };
            nodes[0].owed.extend(next..next + sent as u64);
            next += sent as u64;
            if stopped {
                return false;
            }
        }
        nodes[0].owed.is_empty() && nodes[1].received.len() == 500
    });
    let peer = b.end.peer_at(&a.addr()).expect("it came");
    assert_eq!(b.keys_from(peer), (0..500).collect::<Vec<_>>(), "in order");
    a.check_all_back();
}

#[test]
fn three_send_all_to_all() {
    let _watchdog = Watchdog::new("three_send_all_to_all");
    let Some(domain) = domain() else { return };
    let mut nodes: Vec<_> = (0..3).map(|_| Node::new(&domain, config())).collect();
    let addrs: Vec<_> = nodes.iter().map(Node::addr).collect();
    // All at once, so that both sides of each pair begin.
    for node in &mut nodes {
        let own = node.addr();
        for addr in addrs.iter().filter(|addr| **addr != own) {
            node.end.add_peer(*addr).unwrap();
        }
    }
    const EACH: u64 = 200;
    let mut next = [[0; 3]; 3];
    let end = Instant::now() + SOON;
    loop {
        assert!(Instant::now() < end, "not in time: {next:?}");
        for (from, node) in nodes.iter_mut().enumerate() {
            for (to, addr) in addrs.iter().enumerate().filter(|(to, _)| *to != from) {
                let n = &mut next[from][to];
                // A key says who, to whom and which.
                let key = (from as u64) << 40 | (to as u64) << 32 | *n;
                if *n < EACH && node.send(*addr, key).is_ok() {
                    *n += 1;
                }
            }
            node.poll();
        }
        let done = |node: &Node| node.received.len() as u64 == 2 * EACH && node.owed.is_empty();
        if nodes.iter().all(done) {
            break;
        }
    }
    for (to, node) in nodes.iter().enumerate() {
        for (from, addr) in addrs.iter().enumerate().filter(|(from, _)| *from != to) {
            let peer = node.end.peer_at(addr).unwrap();
            let keys: Vec<_> = (0..EACH)
                .map(|n| (from as u64) << 40 | (to as u64) << 32 | n)
                .collect();
            assert_eq!(node.keys_from(peer), keys, "in order");
        }
        assert_eq!(node.end.peers(), 2);
        node.check_all_back();
    }
}

#[test]
fn endpoints_drop_in_any_order_with_sends_in_flight() {
    let _watchdog = Watchdog::new("endpoints_drop_in_any_order_with_sends_in_flight");
    let Some(domain) = domain() else { return };
    for first in 0..3 {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hear = Arc::clone(&heard);
        // A hook that panics takes no other key with it.
        let abandoned = config().on_abandoned(move |_, key| {
            hear.lock().unwrap().push(key);
            std::panic::resume_unwind(Box::new("a hook of a test"));
        });
        let mut a = Node::new(&domain, abandoned);
        let (mut b, mut c) = (Node::new(&domain, config()), Node::new(&domain, config()));
        let (at_b, at_c) = (b.addr(), c.addr());
        send_all(&mut [&mut a, &mut b, &mut c], 0, at_b, 0..10);
        send_all(&mut [&mut a, &mut b, &mut c], 0, at_c, 10..20);
        let mut key = 20;
        while a.send(at_b, key).is_ok() && a.send(at_c, key + 1).is_ok() {
            key += 2;
        }
        let owed = a.owed.len();
        assert!(owed > 0);
        let pool = a.pool.clone();
        let mut all = [Some(a), Some(b), Some(c)];
        for n in 0..3 {
            all[(first + n) % 3] = None;
            if let Some(a) = &mut all[0] {
                a.poll();
            } else {
                assert_eq!(pool.free_count(), pool.slots());
            }
        }
        if first == 0 {
            assert_eq!(heard.lock().unwrap().len(), owed);
        }
    }
}

/// Messages that nobody has looked at when their sender hangs up: more than any provider takes out
/// of its queue at once.
const UNREAD: u64 = 100;
const LESS_THAN_UNREAD: u64 = 40;

/// Turns to peers that are not there while what others sent before they hung up lies in its queue,
/// and those ends beside it.
fn unread() {
    let roomy = || {
        config()
            .incoming(|incoming| incoming.credits(128).slots(1024))
            .outgoing(|out| out.depth(128))
    };
    let mut node = Node::new(&domain().expect("the parent has one"), roomy());
    let at_node = node.addr();
    for round in 0..3 {
        // Whoever polls the peer does not drive the node.
        let mut peer = Node::new(&domain().expect("as above"), roomy());
        send_all(&mut [&mut peer, &mut node], 0, at_node, 0..1);
        let mut next = 1;
        until(&mut [&mut peer], "sent", |nodes| {
            while next < UNREAD && nodes[0].send(at_node, next).is_ok() {
                next += 1;
            }
            nodes[0].owed.is_empty()
        });
        assert!(next > LESS_THAN_UNREAD, "only {next} were taken");
        drop(peer);
        // The provider hears of the end without anybody's poll. Where that takes longer, less is
        // tried, and nothing fails.
        std::thread::sleep(millis(300));
        let nobody = node.send(nobodys_port(), 1000 + round);
        assert_eq!(nobody, Err(SendErrorKind::WouldBlock(Blocked::Connecting)));
        node.poll();
    }
    let mut last = Node::new(&domain().expect("as above"), config());
    send_all(&mut [&mut last, &mut node], 0, at_node, 2000..2001);
    until(&mut [&mut last, &mut node], "received", |nodes| {
        nodes[1]
            .received
            .last()
            .is_some_and(|(_, key)| *key == 2000)
    });
    tell(format!("received {}", node.received.len()));
}

/// `ofi_rxm` puts the buffer of a message back to the endpoint that it came by, which it has just
/// closed and freed, unless all connections share their buffers (the row's `environment`).
#[test]
fn a_peer_may_hang_up_before_its_messages_are_looked_at() {
    const NAME: &str = "a_peer_may_hang_up_before_its_messages_are_looked_at";
    if role().is_some() {
        return unread();
    }
    let _watchdog = Watchdog::new(NAME);
    if domain().is_none() {
        return;
    }
    // A process of its own: what is wrong here ends it.
    let mut child = Child::start(NAME, "unread", "");
    let received = child.expect("received", 2 * SOON);
    println!("{received} messages of {} were received", 3 * UNREAD + 1);
    child.finish(SOON);
}

#[test]
fn a_peer_in_use_is_not_removed() {
    let _watchdog = Watchdog::new("a_peer_in_use_is_not_removed");
    let Some(domain) = domain() else { return };
    let alone = config().outgoing(|out| out.packing(Packing::Off));
    let (mut a, mut b) = (Node::new(&domain, alone), Node::new(&domain, config()));
    let (at_a, at_b) = (a.addr(), b.addr());
    let peer = a.end.add_peer(at_b).unwrap();
    assert_eq!(a.end.add_peer(at_b).unwrap(), peer, "found again");
    until(&mut [&mut a, &mut b], "up", |nodes| {
        nodes[0].end.is_up(peer)
    });
    for key in 0..3 {
        a.send(peer, key).unwrap();
    }
    let refused = a.end.remove_peer(peer).unwrap_err();
    let PeerError::InUse(in_use) = refused else {
        panic!("{refused}");
    };
    assert_eq!(
        (in_use.sends, in_use.messages_held, in_use.peer),
        (3, 0, peer),
        "{in_use}"
    );
    until(&mut [&mut a, &mut b], "sent", |nodes| {
        nodes[0].owed.is_empty()
    });
    // A message that is held is in the way, too.
    a.hold = true;
    send_all(&mut [&mut b, &mut a], 0, at_a, 0..2);
    until(&mut [&mut a, &mut b], "held", |nodes| {
        nodes[0].held.len() == 2
    });
    let refused = a.end.remove_peer(peer).unwrap_err();
    assert!(
        matches!(refused, PeerError::InUse(in_use) if in_use.messages_held == 2),
        "{refused}"
    );
    a.held.clear();
    a.end.remove_peer(peer).unwrap();
    assert_eq!(a.send(peer, 100), Err(SendErrorKind::Closing));
    until(&mut [&mut a, &mut b], "removed", |nodes| {
        nodes[0].removed == [peer] && nodes[1].down.len() == 1
    });
    assert_eq!(
        a.send(peer, 100),
        Err(SendErrorKind::Peer(PeerError::Unknown))
    );
    assert_eq!(a.end.remove_peer(peer), Err(PeerError::Unknown));
    // Its address is as good as any: it is another peer then.
    send_all(&mut [&mut a, &mut b], 0, at_b, 200..210);
    assert_ne!(a.end.peer_at(&at_b), Some(peer));

    // The polite form takes what is in flight along.
    let again = a.end.peer_at(&at_b).unwrap();
    let mut taken = 0;
    while a.send(again, 300 + taken).is_ok() {
        taken += 1;
    }
    assert!(taken > 0);
    a.end.remove_peer_by(again, after(SOON)).unwrap();
    until(&mut [&mut a, &mut b], "removed", |nodes| {
        nodes[0].removed.len() == 2
    });
    until(&mut [&mut a, &mut b], "received", |nodes| {
        nodes[1].received.len() as u64 == 13 + taken
    });
    assert_eq!((a.failed.len(), a.completed.len() as u64), (0, 13 + taken));
    a.check_all_back();
}

/// Its end is told, and then that its id means nothing any more; who was added stays known.
#[test]
fn who_came_by_itself_is_removed_at_its_end() {
    let _watchdog = Watchdog::new("who_came_by_itself_is_removed_at_its_end");
    let Some(domain) = domain() else { return };
    for added in [false, true] {
        let (mut a, mut b) = (Node::new(&domain, config()), Node::new(&domain, config()));
        let (at_a, at_b) = (a.addr(), b.addr());
        let peer = a.end.add_peer(at_b).unwrap();
        let known = added.then(|| b.end.add_peer(at_a).unwrap());
        until(&mut [&mut a, &mut b], "up", |nodes| {
            nodes.iter().all(|node| node.up.len() == 1)
        });
        a.end.remove_peer(peer).unwrap();
        until(&mut [&mut a, &mut b], "the end", |nodes| {
            nodes[0].removed == [peer] && !nodes[1].down.is_empty()
        });
        // Two that began at once have two connections, and one end.
        (0..1000).for_each(|_| b.poll());
        assert_eq!(b.down.len(), 1, "{:?}", b.down);
        let (gone, reason) = b.down[0];
        assert_eq!(reason, CloseReason::Finished);
        assert_eq!(b.removed, Vec::from_iter((!added).then_some(gone)));
        assert_eq!(b.end.peer_at(&at_a), known);
        if !added {
            let unknown = SendErrorKind::Peer(PeerError::Unknown);
            assert_eq!(b.send(gone, 1), Err(unknown));
        }
    }
}

#[test]
fn limits_are_told_before_anything_is_sent() {
    let _watchdog = Watchdog::new("limits_are_told_before_anything_is_sent");
    let Some(domain) = domain() else { return };
    let mut a = Node::new(&domain, config().max_peers(1).add_on_send(false));
    let (mut b, mut c) = (Node::new(&domain, config()), Node::new(&domain, config()));
    let (at_b, at_c, at_a) = (b.addr(), c.addr(), a.addr());
    assert_eq!(
        a.send(at_b, 0),
        Err(SendErrorKind::Peer(PeerError::Unknown))
    );
    a.end.add_peer(at_b).unwrap();
    assert_eq!(a.end.add_peer(at_c), Err(PeerError::TooMany { limit: 1 }));
    until(&mut [&mut a, &mut b], "up", |nodes| nodes[0].up.len() == 1);
    // Who comes by itself is refused, and hears why.
    c.end.add_peer(at_a).unwrap();
    until(&mut [&mut c, &mut a, &mut b], "refused", |nodes| {
        nodes[0].down.len() == 1
    });
    let reason = c.down[0].1.to_string();
    assert!(
        reason.contains('1') && reason.contains("connections"),
        "{reason}"
    );
    // An endpoint that wants no strangers.
    let mut shy = Node::new(&domain, config().accept_unknown(false));
    c.end.add_peer(shy.addr()).unwrap();
    until(&mut [&mut c, &mut shy], "refused", |nodes| {
        nodes[0].down.len() == 2
    });
    assert_eq!(shy.end.peers(), 0);
    // Out of range.
    for (bad, field) in [
        (config().max_peers(0), "max_peers"),
        (config().incoming(|incoming| incoming.slots(63)), "slots"),
        (
            config().incoming(|incoming| incoming.max_message(100)),
            "max_message",
        ),
        (config().total_depth(0), "total_depth"),
    ] {
        let refused = ConnectionlessEndpoint::open(&domain, any_port(), bad).unwrap_err();
        assert!(
            matches!(refused, Error::Config { field: named, .. } if named == field),
            "{refused}"
        );
    }
}

#[test]
fn connected_endpoints_only_are_an_error_at_once() {
    let Some(domain) = common::domain() else {
        return;
    };
    if domain.fabric().endpoint_kind() != EndpointKind::Msg {
        println!("SKIPPED: tcp has no connected endpoints here");
        return;
    }
    let refused = ConnectionlessEndpoint::open(&domain, any_port(), config()).unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    assert!(
        refused.to_string().contains("EndpointKind::Rdm"),
        "{refused}"
    );
}

#[test]
fn an_event_loop_wakes_it() {
    let _watchdog = Watchdog::new("an_event_loop_wakes_it");
    let Some(domain) = domain() else { return };
    let mut a = Node::new(&domain, config());
    let mut b = Node::new(&domain, config());
    let at_b = b.addr();
    let mut events = EventLoop::new().unwrap();
    let (token_a, token_b) = (
        events.add_endpoint(&a.end).unwrap(),
        events.add_endpoint(&b.end).unwrap(),
    );
    let mut next = 0;
    let end = Instant::now() + SOON;
    while b.received.len() < 50 || !a.owed.is_empty() {
        assert!(Instant::now() < end, "not in time");
        while next < 50 && a.send(at_b, next).is_ok() {
            next += 1;
        }
        let mut ready = Vec::new();
        events
            .run_once(Some(millis(100)), |_, event| ready.push(event))
            .unwrap();
        for event in ready {
            match event {
                LoopEvent::Endpoint(token) if token == token_a => a.poll(),
                LoopEvent::Endpoint(token) if token == token_b => b.poll(),
                other => panic!("{other:?}"),
            }
        }
    }
    a.check_all_back();
}

// ---- other processes ----------------------------------------------------------------------------

/// A process with one endpoint; it echoes each message to the peer that the argument names, and
/// tells how many it got.
fn echo() {
    let domain = domain().expect("the parent has one");
    let mut node = Node::new(&domain, config());
    let to: PeerAddr = argument().parse().expect("an address");
    node.end.add_peer(to).expect("added");
    tell(format!("at {}", node.addr()));
    let hear = std::thread::spawn(|| while hear().is_some() {});
    let mut echoed = 0;
    for turn in 0.. {
        if hear.is_finished() {
            break;
        }
        node.poll();
        while echoed < node.received.len() {
            let key = node.received[echoed].1;
            if node.send(to, key).is_err() {
                break;
            }
            echoed += 1;
        }
        breathe(turn);
    }
}

fn start_echo(test: &str, to: PeerAddr) -> (Child, PeerAddr) {
    let mut child = Child::start(test, "echo", to);
    let at = child.expect("at", SOON).parse().expect("an address");
    (child, at)
}

/// After which a peer that was killed is given up.
const LOST_AFTER: Duration = Duration::from_secs(4);

#[test]
fn a_killed_peer_s_keys_come_back_and_others_do_not_notice() {
    const NAME: &str = "a_killed_peer_s_keys_come_back_and_others_do_not_notice";
    if role().is_some() {
        return echo();
    }
    let _watchdog = Watchdog::new(NAME);
    let Some(domain) = domain() else { return };
    let patient = config()
        .connection(|c| {
            c.unresponsive_after(Some(millis(300)))
                // The other peer is held to it, too: longer than a machine keeps it from its
                // processors.
                .lost_after(Some(LOST_AFTER))
        })
        .max_peers(8);
    let mut a = Node::new(&domain, patient);
    let (mut first, at_first) = start_echo(NAME, a.addr());
    let (_second, at_second) = start_echo(NAME, a.addr());
    send_all(&mut [&mut a], 0, at_first, 0..20);
    send_all(&mut [&mut a], 0, at_second, 100..120);
    until(&mut [&mut a], "echoed", |nodes| {
        nodes[0].received.len() == 40
    });
    let (peer, other) = (
        a.end.peer_at(&at_first).unwrap(),
        a.end.peer_at(&at_second).unwrap(),
    );

    // Stopped first, so that it takes nothing more: sends pile up until the credits are gone.
    first.stop();
    let mut key = 1000;
    while a.send(peer, key).is_ok() {
        key += 1;
    }
    let sent = key - 1000;
    assert!(sent > 0);
    first.kill();
    first.wait(SOON);
    let killed = Instant::now();
    // The other one goes on meanwhile.
    let mut exchanged = 2000;
    until(&mut [&mut a], "lost", |nodes| {
        if nodes[0].send(other, exchanged).is_ok() {
            exchanged += 1;
        }
        nodes[0].down.iter().any(|(down, _)| *down == peer)
    });
    println!(
        "{NAME}: given up after {:?}: {:?}",
        killed.elapsed(),
        a.down
    );
    assert!(killed.elapsed() < within(LOST_AFTER + millis(3000)));
    let of_it = |keys: &[u64]| {
        keys.iter()
            .filter(|key| (1000..2000).contains(*key))
            .count() as u64
    };
    assert_eq!(
        of_it(&a.completed) + of_it(&a.failed),
        sent,
        "each key once"
    );
    until(&mut [&mut a], "the other one answers", |nodes| {
        nodes[0].keys_from(other).len() as u64 == 20 + exchanged - 2000
    });
    assert!(a.end.is_up(other) && !a.end.is_up(peer));
    assert_eq!(a.down.len(), 1);

    // It comes again, at another address.
    let (_third, at_third) = start_echo(NAME, a.addr());
    assert_ne!(at_third, at_first);
    send_all(&mut [&mut a], 0, at_third, 5000..5020);
    let third = a.end.peer_at(&at_third).unwrap();
    until(&mut [&mut a], "echoed", |nodes| {
        nodes[0].keys_from(third).len() == 20
    });
    // The old one can be removed as soon as the provider gave back what it kept, or politely at
    // once.
    a.end.remove_peer_by(peer, Instant::now()).unwrap();
    until(&mut [&mut a], "removed", |nodes| nodes[0].removed == [peer]);
    let kept = a.kept;
    let pool = a.pool.clone();
    let end = a.end.close(after(millis(500))).unwrap();
    let released = |e: &&ConnectionlessEvent| matches!(e, ConnectionlessEvent::Released { .. });
    assert!(end.iter().filter(released).count() >= kept);
    drop(end);
    assert_eq!(pool.free_count(), pool.slots());
}

/// A process with many endpoints that each send some messages to one.
fn crowd() {
    let text = argument();
    let (count, to) = text.split_once(' ').expect("a number and an address");
    let (count, to): (usize, PeerAddr) = (count.parse().unwrap(), to.parse().unwrap());
    raise_fd_limit();
    let domain = domain().expect("the parent has one");
    let small = || {
        config()
            .max_peers(1)
            .incoming(|incoming| incoming.credits(2))
            .total_depth(8)
    };
    let mut nodes: Vec<_> = (0..count).map(|_| Node::new(&domain, small())).collect();
    let mut next = vec![0; count];
    let end = Instant::now() + patient(SOON * 4);
    while !(nodes
        .iter()
        .all(|node| node.owed.is_empty() && node.received.len() as u64 == CROWD_MESSAGES)
        && next.iter().all(|n| *n == CROWD_MESSAGES))
    {
        assert!(Instant::now() < end, "the crowd: not in time");
        for (node, next) in nodes.iter_mut().zip(&mut next) {
            if *next < CROWD_MESSAGES && node.send(to, *next).is_ok() {
                *next += 1;
            }
            node.poll();
        }
    }
    tell("done");
    // Until the parent has seen enough.
    hear();
}

const CROWD_MESSAGES: u64 = 4;

fn raise_fd_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: maximum,
        maximum,
    };
    let _ = setrlimit(Resource::Nofile, limit);
}

#[test]
fn one_endpoint_has_256_peers() {
    const NAME: &str = "one_endpoint_has_256_peers";
    const PROCESSES: usize = 4;
    if role().is_some() {
        return crowd();
    }
    let _watchdog = Watchdog::new(NAME);
    raise_fd_limit();
    let Some(domain) = domain() else { return };
    let peers = domain.peers_max().map_or(256, |most| most.min(256));
    let many = config()
        .max_peers(peers as u32)
        .incoming(|incoming| incoming.credits(2));
    let mut hub = Node::new(&domain, many);
    let (fds, resident) = (fd_count(), rss_bytes());
    let argument = format!("{} {}", peers / PROCESSES, hub.addr());
    let mut children: Vec<_> = (0..PROCESSES)
        .map(|_| Child::start(NAME, "crowd", &argument))
        .collect();
    let mut echoed = 0;
    let end = Instant::now() + patient(SOON * 4);
    while echoed < peers * CROWD_MESSAGES as usize || !hub.owed.is_empty() {
        assert!(
            Instant::now() < end,
            "not in time: {echoed} echoed, {} up",
            hub.up.len()
        );
        hub.poll();
        while echoed < hub.received.len() {
            let (peer, key) = hub.received[echoed];
            // A key of its own for each.
            if hub.send(peer, (echoed as u64) << 8 | key).is_err() {
                break;
            }
            echoed += 1;
        }
    }
    for child in &mut children {
        child.expect("done", SOON);
    }
    assert_eq!((hub.up.len(), hub.end.peers()), (peers, peers));
    println!(
        "{NAME}: {} descriptors and {} KiB more than without, {} connections",
        fd_count() - fds,
        (rss_bytes().saturating_sub(resident)) >> 10,
        hub.end.receive_stats().connections,
    );
    // One more is refused, with the number.
    assert_eq!(
        hub.end.add_peer(any_port()),
        Err(PeerError::TooMany {
            limit: peers as u32
        })
    );
    children.iter_mut().for_each(|child| child.say("enough"));
    children.iter_mut().for_each(|child| child.finish(SOON));
    until(&mut [&mut hub], "all went", |nodes| {
        nodes[0].end.peers() == 0
    });
    hub.check_all_back();
}
