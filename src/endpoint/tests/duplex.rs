//! Duplex endpoints over the fake link: messages that are longer than a slot, both ways.

use std::sync::Arc;

use super::*;
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::event::ConnectionEvent;
use crate::endpoint::limits::FENCE_TIMEOUT_DEFAULT;
use crate::endpoint::link::fake::{FakeWait, Net, NetConfig, addr_of};
use crate::endpoint::link::{LinkConn, RmaLimits};
use crate::endpoint::testing::rig::{LONG, LONG_BYTES, far_future, payload_pool};
use crate::protocol::wire::{self, Control};

const FORMS: [Form; 2] = [Form::Msg, Form::Rdm];

/// Its messages have 8 bytes of header.
struct Node {
    end: DuplexEndpoint,
    /// The number of its link.
    link: usize,
    clock: Clock,
    payloads: SharedBufferManager,
    connected: Vec<ConnectionId>,
    ended: Vec<(ConnectionId, CloseReason)>,
    completed: Vec<u64>,
    failed: Vec<u64>,
    received: Vec<u64>,
}

impl Node {
    /// `long`: it takes messages that are longer than a slot, and sends some.
    fn new(net: &Net, long: bool, windows: u32) -> Self {
        let link = net.hub();
        let number = link.id();
        let payloads = payload_pool(net, 1000 + number, 16);
        payloads.region().register_with(net.near()).unwrap();
        let pool = |slots, size| SharedBufferManager::allocate(slots, size).unwrap();
        let clock = Clock::held();
        let config = DuplexConfig {
            header_len: 8,
            pool: pool(64, 128),
            credits: 4,
            depth: 4,
            max_connections: 4,
            max_of_host: None,
            connect_timeout: LONG,
            close_timeout: LONG,
            send_deadline: LONG,
            lost_after: LONG,
            fence_timeout: FENCE_TIMEOUT_DEFAULT,
            windows,
            writes: 0,
            fill_long_ways: false,
            long: long.then(|| LongMessages::new(pool(4, 4096))),
            clock: clock.clone(),
            faults: None,
        };
        let (link, at) = (DuplexLink::Right(link), Some(addr_of(number)));
        Self {
            end: DuplexEndpoint::over(link, Arc::new(FakeWait), at, &config).unwrap(),
            link: number,
            clock,
            payloads,
            connected: Vec::new(),
            ended: Vec::new(),
            completed: Vec::new(),
            failed: Vec::new(),
            received: Vec::new(),
        }
    }

    fn send(&mut self, to: ConnectionId, key: u64, len: usize) -> Result<(), SendErrorKind> {
        let mut buffer = self.payloads.try_acquire().expect("a payload is free");
        buffer[..len].fill(key as u8);
        let payload = buffer.freeze(len).into();
        let sent = self.end.send(to, payload, &key.to_le_bytes(), key);
        sent.map_err(|refused| refused.kind)
    }

    fn poll(&mut self) {
        let mut events = Vec::new();
        self.end.core.wait().wake();
        self.end.poll(&mut events).unwrap();
        for event in events {
            match event {
                ReceiveEvent::Completed { key, .. } => self.completed.push(key),
                ReceiveEvent::Failed { key, .. } => self.failed.push(key),
                ReceiveEvent::Message(message) => {
                    let key = u64::from_le_bytes(message.header().try_into().expect("a key"));
                    assert!(message.payload().iter().all(|byte| *byte == key as u8));
                    self.received.push(key);
                }
                ReceiveEvent::Connection(id, ConnectionEvent::Connected(_)) => {
                    self.connected.push(id);
                }
                ReceiveEvent::Connection(id, ConnectionEvent::Disconnected(reason)) => {
                    self.ended.push((id, reason));
                }
                _ => {}
            }
        }
    }
}

/// The first one, connected with each of the others; by which connection.
fn star(form: Form, long: &[bool]) -> (Net, Vec<Node>, Vec<ConnectionId>) {
    star_with(form, long, 0)
}

/// The same, of nodes that have so many windows.
fn star_with(form: Form, long: &[bool], windows: u32) -> (Net, Vec<Node>, Vec<ConnectionId>) {
    let base = NetConfig::default();
    let rma = base.rma.map(|rma| RmaLimits {
        iov_limit: 2,
        max_bytes: 64,
        ordered: form == Form::Msg,
        ..rma
    });
    let net = Net::new(NetConfig {
        form,
        max_message: 120,
        rma,
        ..base
    });
    let node = |long: &bool| Node::new(&net, *long, windows);
    let mut nodes: Vec<_> = long.iter().map(node).collect();
    let addrs: Vec<_> = nodes[1..].iter().map(|it| addr_of(it.link)).collect();
    let dialed = addrs.iter().map(|addr| nodes[0].end.dial(addr).unwrap());
    let dialed: Vec<_> = dialed.collect();
    settle(&net, &mut nodes);
    assert_eq!(nodes[0].connected.len(), long.len() - 1);
    (net, nodes, dialed)
}

fn settle(net: &Net, nodes: &mut [Node]) {
    let mut quiet = 0;
    while quiet < 4 {
        let moved = net.deliver(usize::MAX);
        nodes.iter_mut().for_each(Node::poll);
        net.check();
        quiet = if moved > 0 { 0 } else { quiet + 1 };
    }
}

fn end(net: Net, nodes: Vec<Node>) {
    let pools: Vec<_> = nodes.iter().map(|node| node.payloads.clone()).collect();
    drop(nodes);
    net.check();
    for pool in pools {
        assert_eq!(pool.free_count(), pool.slots());
    }
}

#[test]
fn long_messages_go_both_ways_and_keep_their_place() {
    for form in FORMS {
        let (net, mut nodes, dialed) = star(form, &[true, true]);
        let ends = [(0, dialed[0]), (1, nodes[1].connected[0])];
        for round in 0..10 {
            let key = 10 * round;
            for (at, to) in ends {
                nodes[at].send(to, key, 8).unwrap();
                nodes[at].send(to, key + 1, LONG_BYTES).unwrap();
                let behind = nodes[at].send(to, key + 2, 8).unwrap_err();
                assert_eq!(behind, SendErrorKind::WouldBlock(Blocked::LongMessage));
            }
            settle(&net, &mut nodes);
            for (at, to) in ends {
                nodes[at].send(to, key + 2, 8).unwrap();
            }
            settle(&net, &mut nodes);
        }
        let all: Vec<_> = (0..10).flat_map(|n| 10 * n..10 * n + 3).collect();
        for node in &nodes {
            assert_eq!((&node.received, &node.completed), (&all, &all), "{form:?}");
        }
        // A goodbye waits for one.
        nodes[0].send(dialed[0], 200, LONG_BYTES).unwrap();
        nodes[0].end.close_connection(dialed[0], far_future());
        settle(&net, &mut nodes);
        assert_eq!(nodes[1].received.last(), Some(&200), "{form:?}");
        assert_eq!(nodes[0].ended, [(dialed[0], CloseReason::Finished)]);
        end(net, nodes);
    }
}

/// Neither to one that takes none, nor from one that sends none.
#[test]
fn without_a_pool_on_both_sides_they_are_too_long() {
    for form in FORMS {
        for sides in [[true, false], [false, true], [false, false]] {
            let (net, mut nodes, dialed) = star(form, &sides);
            let refused = nodes[0].send(dialed[0], 1, LONG_BYTES).unwrap_err();
            assert!(
                matches!(refused, SendErrorKind::TooLong { .. }),
                "{refused}"
            );
            nodes[0].send(dialed[0], 2, 8).unwrap();
            settle(&net, &mut nodes);
            assert_eq!(nodes[1].received, [2], "{form:?} {sides:?}");
            end(net, nodes);
        }
    }
}

/// A peer that says of a message that it was offered what no honest one says loses its connection,
/// and the other one has its message.
#[test]
fn a_peer_that_lies_about_its_pool_harms_itself_alone() {
    let grant = |number, base, key| Control::LongGrant { number, base, key };
    let lies = [
        grant(0, 0, 0xbad),
        grant(0, u64::MAX - 50, 1),
        grant(9, 0, 1),
        Control::LongRefused {
            number: 9,
            limit: 0,
        },
        Control::LongDone { number: 0 },
    ];
    for lie in lies {
        let (net, mut nodes, dialed) = star(Form::Msg, &[true, true, true]);
        nodes[0].send(dialed[0], 1, LONG_BYTES).unwrap();
        nodes[0].send(dialed[1], 2, LONG_BYTES).unwrap();
        nodes[0].poll();
        let near = nodes[0].end.core.conn(dialed[0]).map(LinkConn::key);
        let far = net.peer_of(near.expect("it stands"));
        let mark = wire::cq_data(lie.kind(), 0);
        net.say(far, Some(mark), lie.encode().as_slice());
        net.deliver(usize::MAX);
        // Before the honest answer.
        nodes[0].poll();
        settle(&net, &mut nodes);
        let ended: Vec<_> = nodes[0].ended.iter().map(|end| end.0).collect();
        assert_eq!(ended, [dialed[0]], "{lie:?}");
        assert_eq!(
            (&nodes[0].failed[..], &nodes[0].completed[..]),
            (&[1][..], &[2][..])
        );
        assert_eq!(
            (&nodes[1].received[..], &nodes[2].received[..]),
            (&[][..], &[2][..])
        );
        end(net, nodes);
    }
}

/// The memory of another peer's window waits for everybody of the domain. One that answers nothing
/// is given up after the fence's own limit, long before it counts as silent.
#[test]
fn who_does_not_answer_a_fence_is_given_up_after_the_limit_of_fences() {
    let (net, mut nodes, dialed) = star_with(Form::Msg, &[false; 3], 1);
    let pool = SharedBufferManager::allocate(1, 4096).unwrap();
    pool.region().register_with(net.near()).unwrap();
    let memory = Arc::new(VolatileBuffer::new(
        pool.try_acquire().expect("one is free"),
    ));
    let window = nodes[0].end.expose(dialed[0], memory).unwrap();
    settle(&net, &mut nodes);
    nodes[0].end.abort_connection(dialed[0]);
    drop(window);
    let limit = FENCE_TIMEOUT_DEFAULT;
    // The third node does not poll.
    let mut begun = Duration::ZERO;
    while nodes[0].ended.iter().all(|(id, _)| *id != dialed[1]) {
        assert!(begun <= 2 * limit, "it is waited for {begun:?} and longer");
        net.deliver(usize::MAX);
        nodes[..2].iter_mut().for_each(Node::poll);
        nodes[0].clock.advance(limit / 100);
        begun += limit / 100;
    }
    let reason = CloseReason::FenceDeadline { limit };
    assert!(
        nodes[0].ended.contains(&(dialed[1], reason)),
        "{:?}",
        nodes[0].ended
    );
    assert!(begun >= limit, "{begun:?}");
    settle(&net, &mut nodes);
    assert_eq!(pool.free_count(), 1, "its memory is back");
    end(net, nodes);
}
