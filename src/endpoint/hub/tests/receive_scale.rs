//! What a poll costs does not grow with the number of connections: counted, as looks at
//! connections.

use crate::endpoint::event::ReceiveEvent;
use crate::endpoint::hub::RESERVE;
use crate::endpoint::link::fake::FakeLink;
use crate::endpoint::testing::rig::{Rig, Setup};
use crate::protocol::wire::{self, HeaderMode, Hello, HelloKind};

fn hello(connection: u64) -> Hello {
    Hello {
        kind: HelloKind::Hello,
        header_mode: HeaderMode::Prefixed,
        version: wire::VERSION,
        oldest: wire::OLDEST,
        features: 0,
        receive_size: 0,
        receive_depth: 0,
        credits: 0,
        incarnation: 1,
        connection,
    }
}

/// A rig whose receiver has so many connections beside the sender's, and the peers, which say
/// nothing.
fn crowd(others: u32, setup: Setup) -> (Rig, Vec<FakeLink>) {
    let mut rig = Setup {
        max_connections: others + 1,
        ..setup
    }
    .connected();
    let peers = (0..others)
        .map(|i| rig.net.ask(&hello(u64::from(i) + 1000).encode()).0)
        .collect();
    // One poll takes a bounded number of requests.
    for _ in 0..=others / 64 {
        rig.poll_receiver();
    }
    rig.settle();
    assert_eq!(rig.receiver().connections(), others as usize + 1);
    (rig, peers)
}

/// Looks that a message costs, with a poll of its own.
fn looks_for_messages(others: u32) -> u64 {
    let slots = (others + 1) * (RESERVE + 1) + 8;
    let (mut rig, _peers) = crowd(
        others,
        Setup {
            receive_slots: slots,
            ..Setup::default()
        },
    );
    let before = rig.receiver().looks();
    for key in 0..64 {
        rig.send(key).expect("there is credit");
        rig.net.deliver(usize::MAX);
        // As after a sleep: everything is looked at that a wake calls for.
        rig.poll_receiver();
        rig.net.deliver(usize::MAX);
        rig.poll_sender();
    }
    assert_eq!(rig.received.len(), 64);
    let looks = rig.receiver().looks() - before;
    rig.end();
    looks
}

#[test]
fn a_message_costs_the_same_among_a_thousand_connections() {
    let (few, many) = (looks_for_messages(2), looks_for_messages(1000));
    assert_eq!(few, many, "looks at connections for 64 messages");
}

#[test]
fn a_starving_listener_does_not_look_at_all_who_starve() {
    let others = 300;
    let (mut rig, _peers) = crowd(
        others,
        Setup {
            // Each other one has the fewest there can be.
            receive_slots: (others + 1) * (RESERVE + 1),
            ..Setup::default()
        },
    );
    rig.drop_at_once = false;
    rig.send(1).expect("there is credit");
    rig.settle();
    let starved = |rig: &Rig| {
        let is = |event: &&ReceiveEvent| matches!(event, ReceiveEvent::Starved { .. });
        rig.said.iter().filter(is).count()
    };
    assert_eq!(starved(&rig), 1);
    let before = rig.receiver().looks();
    for _ in 0..100 {
        rig.poll_receiver();
    }
    let looks = rig.receiver().looks() - before;
    assert!(looks <= 100 * 4, "{looks} looks in 100 polls");
    assert_eq!(starved(&rig), 1, "told once");
    rig.held.clear();
    rig.settle();
    assert_eq!(rig.pool.free_count(), 0, "fed again");
    rig.end();
}
