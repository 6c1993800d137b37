//! One endpoint each, and all send to all.

use std::collections::BTreeMap;
use std::time::Duration;

use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::{ConnectionlessConfig, ConnectionlessEvent, LongMessages, PeerId};
use fabricast::fabric::EndpointKind;
use fabricast::{ConnectionEvent, ConnectionlessEndpoint, PeerAddr};

use crate::common::child::{self, Child};
use crate::common::{SOON, after, anywhere, drive, pattern};
use crate::message::{Checker, HEADER, header};
use crate::on::{On, kill};
use crate::rows;
use crate::table::Shown;
use crate::told::Told;

const SIZES: [usize; 4] = [0, 100, 5_000, 60_000];
const EACH: u64 = 40;
const CONNECTED: &str = "connected endpoints only: refused when it is opened, in words";

/// Starts one for each number and tells each of all; `None` where the row has connected endpoints
/// only, and says so at once.
fn start(on: &On, count: u64, words: &str) -> Option<Vec<(Child, String)>> {
    let begin = |who| on.listener("exchange", &format!("who={who} {words}"));
    let mut all: Vec<_> = (1..=count).map(begin).collect();
    if rows::row_named(on.provider).kind == EndpointKind::Msg {
        for (child, answer) in &mut all {
            assert!(answer.contains("FI_EP_MSG"), "{answer}");
            child.finish(SOON);
        }
        return None;
    }
    let addrs: Vec<_> = all.iter().map(|(_, addr)| addr.clone()).collect();
    for (who, (child, _)) in all.iter_mut().enumerate() {
        let others = addrs.iter().enumerate().filter(|(n, _)| *n != who);
        let others: Vec<_> = others.map(|(_, addr)| addr.as_str()).collect();
        child.say(&others.join(" "));
    }
    Some(all)
}

/// Three send to each other, all at once, and say goodbye.
pub(crate) fn all_to_all(on: &On) -> Shown {
    exchange_all(on, "")
}

/// The same with receive buffers that half of the messages are too long for, both ways.
pub(crate) fn long_to_all(on: &On) -> Shown {
    exchange_all(on, "long=8")
}

fn exchange_all(on: &On, words: &str) -> Shown {
    let Some(mut all) = start(on, 3, words) else {
        return Shown::Hole(CONNECTED);
    };
    for (child, _) in &mut all {
        assert_eq!(
            child.expect("exchanged", 3 * SOON),
            format!("{} {}", 2 * EACH, 2 * EACH)
        );
    }
    for (child, _) in &mut all {
        child.say("close");
    }
    for (child, _) in &mut all {
        assert_eq!(child.expect("failed", SOON), "0");
        child.finish(SOON);
    }
    Shown::Works
}

/// One of three is killed: what was sent to it comes back, and the other two go on.
pub(crate) fn one_is_killed(on: &On) -> Shown {
    let Some(mut all) = start(on, 3, "") else {
        return Shown::Hole(CONNECTED);
    };
    for (child, _) in &mut all {
        child.expect("exchanged", 3 * SOON);
    }
    let (third, addr) = all.pop().expect("three");
    third.stop();
    // Into the void, as far as its credits go.
    for (child, _) in &mut all {
        child.say(&format!("flood {addr}"));
        child.expect("flooded", SOON);
    }
    kill(third);
    for (child, _) in &mut all {
        child.expect("all back", 2 * SOON);
    }
    for (child, _) in &mut all {
        child.say("again");
    }
    for (child, _) in &mut all {
        assert_eq!(
            child.expect("exchanged", 3 * SOON),
            format!("{EACH} {EACH}")
        );
    }
    for (child, _) in &mut all {
        child.say("close");
        child.finish(2 * SOON);
    }
    Shown::Works
}

/// The application of one endpoint.
struct Application {
    end: ConnectionlessEndpoint,
    pool: SharedBufferManager,
    who: u64,
    checker: Checker,
    /// Next number for each peer.
    next: BTreeMap<PeerAddr, u64>,
    owed: u64,
    failed: u64,
    down: Vec<PeerId>,
    /// Messages that are to come, all in all.
    expected: u64,
}

impl Application {
    fn poll(&mut self) {
        let mut events = Vec::new();
        self.end.poll(&mut events).expect("polls");
        events.into_iter().for_each(|event| self.take(event));
    }

    fn take(&mut self, event: ConnectionlessEvent) {
        match event {
            ConnectionlessEvent::Message { message, .. } => {
                self.checker.check(message.header(), message.payload());
            }
            ConnectionlessEvent::Completed { .. } => self.owed -= 1,
            ConnectionlessEvent::Failed { .. } => {
                self.owed -= 1;
                self.failed += 1;
            }
            ConnectionlessEvent::Connection(peer, ConnectionEvent::Disconnected(reason)) => {
                child::tell(format!("down {peer}: {reason}"));
                self.down.push(peer);
            }
            _ => {}
        }
    }

    /// One message more to a peer, if it is taken.
    fn send(&mut self, to: PeerAddr) -> bool {
        let number = self.next.get(&to).copied().unwrap_or_default();
        let Some(mut buffer) = self.pool.try_acquire() else {
            return false;
        };
        let len = SIZES[number as usize % SIZES.len()];
        buffer[..len].copy_from_slice(&pattern(number, len));
        let header = header(self.who, number, len);
        match self.end.send_data(to, buffer.freeze(len), &header, number) {
            Ok(()) => {
                self.next.insert(to, number + 1);
                self.owed += 1;
                true
            }
            Err(refused) => {
                assert!(refused.is_would_block(), "{refused}");
                false
            }
        }
    }

    /// Sends and receives so many to and from each.
    fn exchange(&mut self, peers: &[PeerAddr]) {
        let ends: Vec<_> = peers
            .iter()
            .map(|to| (*to, self.next.get(to).copied().unwrap_or_default() + EACH))
            .collect();
        // The others may have begun before.
        let wanted = EACH * peers.len() as u64;
        self.expected += wanted;
        drive("the exchange", 3 * SOON, || {
            for (to, end) in &ends {
                let done = |this: &Self| this.next.get(to).is_some_and(|next| next >= end);
                while !done(self) && self.send(*to) {}
            }
            self.poll();
            let sent = ends.iter().all(|(to, end)| self.next.get(to) == Some(end));
            sent && self.owed == 0 && self.checker.messages >= self.expected
        });
        let got = wanted + self.checker.messages - self.expected;
        child::tell(format!("exchanged {wanted} {got}"));
    }
}

/// The role: exchanges with those that it is told of, then does as it is told.
pub(crate) fn exchange(told: &Told) {
    let domain = told.domain();
    let config = ConnectionlessConfig::default()
        .outgoing(|out| out.packing(crate::common::packing()))
        .max_peers(4)
        .incoming(|incoming| match told.text("long") {
            None => incoming.max_message(64 * 1024 + HEADER).credits(6),
            Some(_) => {
                let slots = told.number("long", 0) as u32;
                let pool = SharedBufferManager::allocate(slots, 64 * 1024 + HEADER);
                let long = LongMessages::new(pool.expect("memory"));
                incoming.max_message(4096).credits(6).long_messages(long)
            }
        })
        .connection(|c| {
            c.unresponsive_after(Some(Duration::from_millis(700)))
                .lost_after(Some(Duration::from_millis(2500)))
        });
    let at = anywhere(&domain);
    let end = match ConnectionlessEndpoint::open(&domain, at, config) {
        Ok(end) => end,
        Err(error) => return child::tell(format!("addr {error}").replace('\n', " ")),
    };
    let pool = SharedBufferManager::allocate(32, 64 * 1024).expect("a pool");
    pool.region().register(&domain).expect("registered");
    child::tell(format!("addr {}", end.local_addr()));
    let mut this = Application {
        end,
        pool,
        who: told.number("who", 1),
        checker: Checker::default(),
        next: BTreeMap::new(),
        owed: 0,
        failed: 0,
        down: Vec::new(),
        expected: 0,
    };
    let (orders, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        while let Some(order) = child::hear() {
            let _ = orders.send(order);
        }
    });
    let next_order = |this: &mut Application| {
        let mut order = None;
        drive("an order", 6 * SOON, || {
            this.poll();
            order = heard.try_recv().ok();
            order.is_some()
        });
        order.expect("driven until then")
    };
    let order = next_order(&mut this);
    let mut peers: Vec<PeerAddr> = order
        .split(' ')
        .map(|at| at.parse().expect("an address"))
        .collect();
    this.exchange(&peers);
    loop {
        let order = next_order(&mut this);
        match order.split_once(' ') {
            Some(("flood", addr)) => {
                let addr: PeerAddr = addr.parse().expect("an address");
                peers.retain(|peer| *peer != addr);
                let peer = this.end.peer_at(&addr).expect("known");
                while this.send(addr) {}
                child::tell("flooded");
                drive("it is given up", 2 * SOON, || {
                    this.poll();
                    this.down.contains(&peer)
                });
                assert_eq!((this.owed, this.down.len()), (0, 1));
                child::tell("all back");
            }
            _ if order == "again" => this.exchange(&peers),
            _ => break,
        }
    }
    let Application { end, failed, .. } = this;
    let events = end.close(after(SOON)).expect("closes");
    let is_failed = |e: &&ConnectionlessEvent| matches!(e, ConnectionlessEvent::Failed { .. });
    child::tell(format!(
        "failed {}",
        failed + events.iter().filter(is_failed).count() as u64
    ));
}
