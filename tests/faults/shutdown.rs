//! Everything is dropped in every order, with operations in flight on both sides.
//!
//! Run it under AddressSanitizer too: what is freed too early is found there. What is freed too
//! late is found here, by counting descriptors, registrations and what the library says it leaked.

use std::sync::{Arc, Weak};

use fabricast::buffer::{
    HeaderSlotConfig, HeaderSlotManager, Payload, RegionSlice, RingConfig, RingRegion,
    SharedBufferManager,
};
use fabricast::endpoint::ReceiveConfig;
use fabricast::{
    Domain, Fabric, ReceiveEndpoint, ReceiveEvent, Region, SendEndpointZeroCopy, SendEvent,
};

use crate::common;
use crate::common::{
    Random, SOON, Watchdog, after, alone, any_port, assert_fds_back, buffer, domain, drive,
    fd_count, pool, receive_ends, rounds, send_end,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Sender,
    Receiver,
    Pool,
    Message,
    Domain,
    Region,
    Ring,
    Headers,
    Outcomes,
    Fabric,
}

const PARTS: [Part; 10] = [
    Part::Sender,
    Part::Receiver,
    Part::Pool,
    Part::Message,
    Part::Domain,
    Part::Region,
    Part::Ring,
    Part::Headers,
    Part::Outcomes,
    Part::Fabric,
];

/// What must be gone when every part is.
struct Ghosts {
    domain: Weak<Domain>,
    fabric: Weak<Fabric>,
    regions: Vec<Weak<Region>>,
}

impl Ghosts {
    fn assert_gone(&self, order: &[Part]) {
        let domain = self.domain.strong_count();
        let fabric = self.fabric.strong_count();
        let regions: Vec<_> = self.regions.iter().map(Weak::strong_count).collect();
        let left = (domain, fabric, regions.iter().sum());
        assert_eq!(left, (0, 0, 0), "regions {regions:?} after {order:?}");
    }
}

/// One of everything, with operations in flight.
struct World {
    sender: Option<SendEndpointZeroCopy>,
    receiver: Option<ReceiveEndpoint>,
    pool: Option<SharedBufferManager>,
    slice: Option<RegionSlice>,
    ring: Option<RingRegion>,
    headers: Option<HeaderSlotManager>,
    messages: Vec<ReceiveEvent>,
    outcomes: Vec<SendEvent>,
    domain: Option<Arc<Domain>>,
    fabric: Option<Arc<Fabric>>,
}

/// Messages of this size do not all fit the kernel's buffers, so some stay in flight until somebody
/// reads.
const LARGE: usize = 1 << 20;

impl World {
    fn new() -> Option<(Self, Ghosts)> {
        let domain = domain()?;
        let fabric = Arc::clone(domain.fabric());
        let headers = HeaderSlotManager::new(HeaderSlotConfig::default()).expect("memory");
        let receive = ReceiveConfig::default()
            .incoming(|incoming| incoming.max_message(LARGE).slots(14).credits(10))
            .connection(|c| c.max_connections(1));
        let mut receiver = ReceiveEndpoint::listen(&domain, any_port(), receive).expect("listens");
        let config = common::sending().outgoing(|out| out.headers(&headers));
        let addr = receiver.local_addr();
        let mut sender = SendEndpointZeroCopy::connect(&domain, addr, config).expect("begins");
        let (mut outcomes, mut messages) = (Vec::new(), Vec::new());
        drive("connected", SOON, || {
            sender.poll(&mut outcomes).expect("polls");
            receiver.poll(&mut messages).expect("polls");
            sender.is_connected() && !messages.is_empty()
        });

        let pool = pool(&domain, 4, LARGE - 100);
        let region = Region::host(16 * 4096).build().expect("memory");
        region.register(&domain).expect("registered");
        let slice = region.slice(4096..2 * 4096).expect("inside");
        let ring_region = Region::host(4096).build().expect("memory");
        ring_region.register(&domain).expect("registered");
        let ring = RingRegion::new(
            ring_region,
            RingConfig {
                max_fragments: 8,
                ..RingConfig::default()
            },
        )
        .expect("a ring");
        let ghosts = Ghosts {
            domain: Arc::downgrade(&domain),
            fabric: Arc::downgrade(&fabric),
            regions: [
                pool.region(),
                &region,
                ring.region(),
                headers.region(),
                receiver.pool().region(),
            ]
            .map(Arc::downgrade)
            .to_vec(),
        };
        let mut world = Self {
            sender: Some(sender),
            receiver: Some(receiver),
            pool: Some(pool),
            slice: Some(slice),
            ring: Some(ring),
            headers: Some(headers),
            messages,
            outcomes,
            domain: Some(domain),
            fabric: Some(fabric),
        };
        world.fill();
        Some((world, ghosts))
    }

    /// Two messages arrive and are held, with the outcomes of their sends; then eight more are
    /// posted, and nobody polls.
    fn fill(&mut self) {
        let sender = self.sender.as_mut().expect("open");
        let receiver = self.receiver.as_mut().expect("open");
        let pool = self.pool.as_ref().expect("there");
        let slice = self.slice.as_ref().expect("there");
        let ring = self.ring.as_mut().expect("there");
        for key in 0..2 {
            sender
                .send_data(buffer(pool, b"held"), b"h", key)
                .expect("room");
        }
        drive("two messages and outcomes", SOON, || {
            sender.poll(&mut self.outcomes).expect("polls");
            receiver.poll(&mut self.messages).expect("polls");
            let held = |e: &&ReceiveEvent| matches!(e, ReceiveEvent::Message(_));
            self.messages.iter().filter(held).count() == 2
                && common::outcomes(&self.outcomes).len() == 2
        });
        let large = pool.try_acquire().expect("free").freeze(LARGE - 100);
        let fragment = |ring: &mut RingRegion| ring.reserve(1000).expect("room").commit(900);
        let payloads: [Payload; 8] = [
            large.clone().into(),
            slice.clone().into(),
            fragment(ring).into(),
            [large.clone().slice(..1000), large.clone().slice(5000..9000)]
                .into_iter()
                .collect(),
            large.clone().into(),
            large.clone().into(),
            large.clone().into(),
            fragment(ring).into(),
        ];
        for (key, payload) in payloads.into_iter().enumerate() {
            sender
                .send_data(payload, b"in flight", 10 + key as u64)
                .expect("room");
        }
    }

    fn discard(&mut self, part: Part) {
        match part {
            Part::Sender => self.sender = None,
            Part::Receiver => self.receiver = None,
            Part::Pool => self.pool = None,
            Part::Message => self.messages.clear(),
            Part::Domain => self.domain = None,
            Part::Region => self.slice = None,
            Part::Ring => self.ring = None,
            Part::Headers => self.headers = None,
            Part::Outcomes => self.outcomes.clear(),
            Part::Fabric => self.fabric = None,
        }
    }

    /// Polls what is left, so that completions come in between.
    fn poll(&mut self) {
        if let Some(sender) = &mut self.sender {
            sender.poll(&mut self.outcomes).expect("polls");
        }
        if let Some(receiver) = &mut self.receiver {
            receiver.poll(&mut self.messages).expect("polls");
        }
    }
}

/// Drops everything in this order; between two drops the rest is polled so many times.
fn shut_down(order: &[Part], polls: u32) -> bool {
    let before = fabricast::stats::process();
    let fds = fd_count();
    let Some((mut world, ghosts)) = World::new() else {
        return false;
    };
    for &part in order {
        for _ in 0..polls {
            world.poll();
        }
        world.discard(part);
    }
    // Polls may have put messages and outcomes into lists that were dropped before.
    drop(world);
    ghosts.assert_gone(order);
    let now = fabricast::stats::process();
    assert_eq!(
        (now.leaked, now.close_failures),
        (before.leaked, before.close_failures),
        "{order:?}"
    );
    assert_fds_back(fds, SOON, || ());
    true
}

/// Every order of the items.
fn permutations<T: Copy>(items: &[T]) -> Vec<Vec<T>> {
    let Some((&first, rest)) = items.split_first() else {
        return vec![Vec::new()];
    };
    let mut all = Vec::new();
    for shorter in permutations(rest) {
        for at in 0..=shorter.len() {
            let mut order = shorter.clone();
            order.insert(at, first);
            all.push(order);
        }
    }
    all
}

/// Opened once so that what a provider keeps for the process is there before descriptors are
/// counted.
fn warm_up() {
    drop(World::new());
}

#[test]
fn every_order_of_the_five_that_hold_each_other() {
    let _alone = alone();
    let _dog = Watchdog::with("every order", 4 * SOON);
    warm_up();
    let orders = permutations(&PARTS[..5]);
    assert_eq!(orders.len(), 120);
    for (i, mut order) in orders.into_iter().enumerate() {
        // The other parts in between, at places that differ from order to order.
        for (j, &part) in PARTS[5..].iter().enumerate() {
            let at = (i * (2 * j + 3) + j) % (order.len() + 1);
            order.insert(at, part);
        }
        if !shut_down(&order, i as u32 % 3) {
            return;
        }
    }
}

#[test]
fn every_part_first_and_every_part_last() {
    let _alone = alone();
    let _dog = Watchdog::with("first and last", 4 * SOON);
    warm_up();
    for turn in 0..PARTS.len() {
        let mut order = PARTS.to_vec();
        order.rotate_left(turn);
        for polls in [0, 4] {
            if !shut_down(&order, polls) {
                return;
            }
        }
        order.reverse();
        shut_down(&order, 0);
    }
}

#[test]
fn random_orders_of_everything() {
    let _alone = alone();
    let _dog = Watchdog::with("random orders", 60 * SOON);
    warm_up();
    let mut random = Random::from_printed_seed("random_orders_of_everything");
    for _ in 0..rounds(20, 2000) {
        let mut order = PARTS.to_vec();
        for i in (1..order.len()).rev() {
            order.swap(i, random.below(i as u64 + 1) as usize);
        }
        if !shut_down(&order, random.below(6) as u32) {
            return;
        }
    }
}

#[test]
fn parts_are_dropped_by_several_threads_at_once() {
    let _alone = alone();
    let _dog = Watchdog::new("threads");
    warm_up();
    for _ in 0..rounds(10, 200) {
        let Some((world, ghosts)) = World::new() else {
            return;
        };
        let World {
            sender,
            receiver,
            pool,
            slice,
            ring,
            headers,
            messages,
            outcomes,
            domain,
            fabric,
        } = world;
        std::thread::scope(|scope| {
            scope.spawn(move || drop((sender, pool)));
            scope.spawn(move || drop((receiver, domain)));
            scope.spawn(move || drop((messages, slice, fabric)));
            scope.spawn(move || drop((outcomes, ring, headers)));
        });
        ghosts.assert_gone(&[]);
    }
}

#[test]
fn a_polite_close_outlives_everything_else() {
    let _alone = alone();
    let _dog = Watchdog::new("polite close");
    let Some((mut world, ghosts)) = World::new() else {
        return;
    };
    for part in [
        Part::Fabric,
        Part::Domain,
        Part::Pool,
        Part::Region,
        Part::Ring,
        Part::Headers,
        Part::Message,
        Part::Outcomes,
    ] {
        world.discard(part);
    }
    world
        .sender
        .as_mut()
        .expect("open")
        .begin_close(after(SOON));
    drive("both ends", SOON, || {
        world.poll();
        send_end(&world.outcomes).is_some() && !receive_ends(&world.messages).is_empty()
    });
    let outcomes = common::outcomes(&world.outcomes);
    assert_eq!(outcomes.len(), 8);
    assert!(outcomes.values().all(|o| o == &[true]), "{outcomes:?}");
    let arrived = common::messages(&mut world.messages);
    assert_eq!(arrived.len(), 8);
    drop(world);
    ghosts.assert_gone(&PARTS);
}

#[test]
fn what_is_forgotten_is_leaked_and_does_no_harm() {
    let _alone = alone();
    let _dog = Watchdog::new("forgotten");
    let Some((mut world, _)) = World::new() else {
        return;
    };
    drive("outcomes", SOON, || {
        world.poll();
        common::outcomes(&world.outcomes).len() == 10
    });
    std::mem::forget(world.outcomes.drain(..2).collect::<Vec<_>>());
    std::mem::forget(world.messages.pop());
    std::mem::forget(world.pool.as_ref().expect("there").try_acquire());
    std::mem::forget(world.sender.take());
    drop(world);
}
