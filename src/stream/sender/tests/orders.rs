//! What may wait for the thread of a sender: it may be busy, or stuck, for as long as it likes.

use super::*;
use crate::endpoint::link::fake::{Net, NetConfig};
use crate::fabric::EndpointKind;
use crate::stream::BufferSource;
use crate::stream::network::DESCRIPTIONS_MAX;
use crate::stream::rehearsal::TestMachine;

/// Far more often than anybody asks.
const TIMES: u64 = 10_000;

#[test]
fn orders_that_wait_are_no_more_than_what_is_open() {
    let net = Net::new(NetConfig::default());
    let machine = TestMachine::new(&net, EndpointKind::Msg);
    let interface = Interface::Rehearsed(machine);
    let mut sender = SenderByHand::open(interface, SenderConfig::default());
    let transfers = [1_u8, 2].map(|byte| {
        let pool = SharedBufferManager::allocate(1, 100).expect("a pool");
        let buffer = pool.try_acquire().expect("one is free").freeze(100);
        let source = BufferSource::new("file", buffer, [byte; 16]).expect("a name");
        let to: crate::PeerAddr = "192.0.2.2:1".parse().expect("an address");
        let transfer = sender.handle.send(source, [to], SendOptions::default());
        transfer.expect("begun")
    });
    let orders = Arc::clone(&sender.handle.thread.orders);
    assert_eq!(orders.waiting(), 2, "one for each that was begun");
    for most in [4, 2] {
        for n in 0..TIMES {
            let transfer = &transfers[n as usize % 2];
            transfer.pause();
            transfer.resume();
            transfer.set_priority(n as u8);
            transfer.set_rate(Some(n + 1));
            assert!(orders.waiting() <= most, "{} orders", orders.waiting());
        }
        sender.turn();
        assert_eq!(orders.waiting(), 0);
    }
    for _ in 0..2 {
        for _ in 0..TIMES {
            assert_eq!(sender.handle.describe(Duration::ZERO), None);
        }
        assert_eq!(orders.waiting(), DESCRIPTIONS_MAX);
        sender.turn();
        assert_eq!(orders.waiting(), 0);
    }
    // The last word counts, and none is lost.
    transfers[0].pause();
    transfers[0].cancel();
    transfers[0].resume();
    sender.turn();
    assert!(transfers[0].is_over() && !transfers[1].is_over());
    // Of one that is over nothing is wanted, and nothing waits for it.
    transfers[0].pause();
    sender.turn();
    assert_eq!(orders.waiting(), 0);
    assert!(sender.end().is_some());
}
