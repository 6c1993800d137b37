//! Connects and closes, polite and rude, leave no descriptor, no registration and no memory behind.

use std::sync::Arc;
use std::time::Instant;

use fabricast::buffer::{HeaderSlotConfig, HeaderSlotManager, SharedBufferManager};
use fabricast::endpoint::CloseReason;
use fabricast::{ConnectionEvent, Domain, ReceiveEndpoint, ReceiveEvent, SendEndpointZeroCopy};

use crate::common;
use crate::common::{
    Random, SOON, Watchdog, after, alone, any_port, buffer, domain, drive, fd_count, pool,
    receive_ends, rounds, rss_bytes, send_end, small_receiver,
};

/// Memory that may come on top after the warm-up, whatever the number of rounds: the provider's
/// pools grow in steps.
const GROWTH_BYTES: u64 = 24 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The sender says goodbye.
    Sender,
    /// The receiver does.
    Receiver,
    /// The sender is dropped with a send in flight.
    Dropped,
    /// The sender is dropped before it is connected.
    Early,
}

const WAYS: [Way; 4] = [Way::Sender, Way::Receiver, Way::Dropped, Way::Early];

struct Bench {
    domain: Arc<Domain>,
    pool: SharedBufferManager,
    headers: HeaderSlotManager,
    receiver: ReceiveEndpoint,
    received: Vec<ReceiveEvent>,
}

impl Bench {
    fn open() -> Option<Self> {
        let domain = domain()?;
        let pool = pool(&domain, 8, 4096);
        let headers = HeaderSlotManager::new(HeaderSlotConfig::default()).expect("memory");
        let receiver =
            ReceiveEndpoint::listen(&domain, any_port(), small_receiver()).expect("listens");
        Some(Self {
            domain,
            pool,
            headers,
            receiver,
            received: Vec::new(),
        })
    }

    /// One connection from its beginning to its end on both sides.
    fn connect_and_close(&mut self, way: Way) {
        let config = common::sending().outgoing(|out| out.headers(&self.headers));
        let addr = self.receiver.local_addr();
        let mut sender = SendEndpointZeroCopy::connect(&self.domain, addr, config).expect("begins");
        if way == Way::Early {
            drop(sender);
            return self.settle();
        }
        let (mut events, mut id) = (Vec::new(), None);
        drive("connected", SOON, || {
            sender.poll(&mut events).expect("polls");
            self.receiver.poll(&mut self.received).expect("polls");
            for event in self.received.drain(..) {
                if let ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_)) = event {
                    id = Some(connection);
                }
            }
            sender.is_connected() && id.is_some()
        });
        let payload = buffer(&self.pool, b"churn");
        sender.send_data(payload, b"h", 1).expect("room");
        match way {
            Way::Dropped => drop(sender),
            Way::Sender => {
                sender.begin_close(after(SOON));
                self.end(&mut sender);
            }
            Way::Receiver => {
                let id = id.expect("connected");
                assert!(self.receiver.close_connection(id, after(SOON)));
                self.end(&mut sender);
            }
            Way::Early => unreachable!("returned above"),
        }
        self.settle();
    }

    /// Polls both until the sender's connection has ended politely.
    fn end(&mut self, sender: &mut SendEndpointZeroCopy) {
        let mut events = Vec::new();
        drive("the sender's end", SOON, || {
            sender.poll(&mut events).expect("polls");
            self.receiver.poll(&mut self.received).expect("polls");
            send_end(&events).is_some()
        });
        assert_eq!(send_end(&events), Some(CloseReason::Finished));
    }

    /// Until the receiver has no connection left, those that were never established among them.
    fn settle(&mut self) {
        drive("no connection is left", SOON, || {
            self.receiver.poll(&mut self.received).expect("polls");
            self.receiver.connections() == 0
        });
        for (_, reason) in receive_ends(&self.received) {
            let expected = matches!(reason, CloseReason::Finished | CloseReason::PeerLost { .. });
            assert!(expected, "{reason}");
        }
        self.received.clear();
    }
}

#[test]
fn connects_and_closes_leave_nothing_behind() {
    let _alone = alone();
    let _dog = Watchdog::with("churn", 120 * SOON);
    let Some(mut bench) = Bench::open() else {
        return;
    };
    let mut random = Random::from_printed_seed("churn");
    for i in 0..40 {
        bench.connect_and_close(WAYS[i % 4]);
    }
    let (fds, registrations, memory) = (fd_count(), bench.domain.registrations(), rss_bytes());
    let (count, begin) = (rounds(200, 10_000), Instant::now());
    for _ in 0..count {
        bench.connect_and_close(WAYS[random.below(4) as usize]);
    }
    let took = begin.elapsed();
    // The last early one may still be on its way out of the provider's backlog.
    common::assert_fds_back(fds, SOON, || bench.settle());
    assert_eq!(bench.domain.registrations(), registrations);
    let grown = rss_bytes().saturating_sub(memory);
    println!("{count} connections in {took:?}, {grown} bytes more than after the warm-up");
    assert!(grown < GROWTH_BYTES, "{grown} bytes more");
    let slots = bench.receiver.pool().slots();
    assert_eq!(bench.receiver.pool().free_count(), slots);
    assert_eq!(bench.pool.free_count(), 8);
    assert_eq!(bench.headers.free_count(), bench.headers.capacity());
}

#[test]
fn whole_stacks_come_and_go_without_a_trace() {
    let _alone = alone();
    let _dog = Watchdog::with("stacks", 60 * SOON);
    let once = || {
        let mut bench = Bench::open()?;
        bench.connect_and_close(Way::Sender);
        bench.connect_and_close(Way::Dropped);
        let domain = Arc::downgrade(&bench.domain);
        drop(bench);
        assert_eq!(domain.strong_count(), 0);
        Some(())
    };
    for _ in 0..5 {
        if once().is_none() {
            return;
        }
    }
    let (fds, memory) = (fd_count(), rss_bytes());
    let before = fabricast::stats::process();
    for _ in 0..rounds(20, 1000) {
        once();
    }
    common::assert_fds_back(fds, SOON, || ());
    let grown = rss_bytes().saturating_sub(memory);
    assert!(grown < GROWTH_BYTES, "{grown} bytes more");
    let now = fabricast::stats::process();
    assert_eq!(now.close_failures, before.close_failures);
    assert_eq!(now.leaked, before.leaked);
}
