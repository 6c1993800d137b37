//! A peer on another machine that is cut off for a while, or for good: every key comes back, and
//! the verdicts come in time.
//!
//! `scripts/verbs.sh two` runs both between two machines whose wire it cuts, or one of which it
//! ends: FABRICAST_TEST_FAR is `listen ADDR` on the far one, and on the near one the address there.
//! Without it, the far machine is a process of this one, which is stopped.

use std::time::{Duration, Instant};

use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::{CloseReason, ReconnectPolicy, SendConfig};
use fabricast::{ConnectionEvent, PeerAddr, ReceiveEndpoint, SendEndpointZeroCopy, SendEvent};

use crate::common::child::{self, Child};
use crate::common::{
    SOON, Watchdog, after, any_port, assert_balanced, domain, millis, node, patient, pool,
    small_receiver, soak,
};

const FAR: &str = "FABRICAST_TEST_FAR";
/// A silence that is told of, and one after which nobody is believed to come back.
const UNRESPONSIVE: Duration = Duration::from_secs(1);
const LOST: Duration = Duration::from_secs(5);
/// How much later than it is due a verdict may be seen, on a machine that asks for no patience.
const LATE: Duration = Duration::from_secs(2);
/// In which all is well again when the two are joined.
const BACK: Duration = Duration::from_secs(20);
const SLOTS: u32 = 32;
const SIZE: usize = 4096;

/// The other machine.
enum Far {
    Process(Child),
    /// Someone else cuts it off, when this process says that it is connected, and joins it again.
    Machine,
}

impl Far {
    fn cut_off(&self) {
        match self {
            Self::Process(child) => child.stop(),
            Self::Machine => println!("\ncut"),
        }
    }

    fn join(&self) {
        match self {
            Self::Process(child) => child.go_on(),
            Self::Machine => println!("\njoin"),
        }
    }
}

/// Receives until it is ended.
fn receive(at: PeerAddr) {
    let domain = domain().expect("a domain");
    let config = small_receiver().connection(|c| {
        c.unresponsive_after(None)
            .lost_after(Some(Duration::from_secs(60)))
    });
    let mut receiver = ReceiveEndpoint::listen(&domain, at, config).expect("listens");
    child::tell(format!("listening {}", receiver.local_addr()));
    let mut events = Vec::new();
    loop {
        receiver.poll(&mut events).expect("polls");
        events.clear();
        receiver.wait(millis(50)).expect("waits");
    }
}

/// Where the far one listens; none if this process is the far one, and has ended, or where there is
/// no libfabric.
fn far(test: &str) -> Option<(Far, PeerAddr)> {
    let told = std::env::var(FAR).unwrap_or_default();
    if child::role().is_some() {
        receive(any_port());
    } else if let Some(at) = told.strip_prefix("listen ") {
        receive(at.parse().expect("an address"));
    } else if !told.is_empty() {
        return Some((Far::Machine, told.parse().expect("an address")));
    } else if domain().is_some() {
        let mut child = Child::start(test, "far", node());
        let addr = child.expect("listening", SOON).parse().expect("an address");
        return Some((Far::Process(child), addr));
    }
    None
}

/// A sender that goes on sending, and what came back.
struct Near {
    endpoint: SendEndpointZeroCopy,
    pool: SharedBufferManager,
    next_key: u64,
    sending: bool,
    completed: Vec<u64>,
    failed: Vec<u64>,
    unresponsive: bool,
    /// Connections that were lost and are made again.
    lost: u32,
    ended: Option<CloseReason>,
    /// When something was last seen to arrive.
    alive: Instant,
}

impl Near {
    fn connect(to: PeerAddr, config: SendConfig) -> Self {
        let domain = domain().expect("it was there");
        let config = config
            .connection(|c| {
                c.unresponsive_after(Some(UNRESPONSIVE))
                    .connect_timeout(Duration::from_secs(30))
            })
            .outgoing(|out| out.deadline(None));
        let mut endpoint = SendEndpointZeroCopy::connect(&domain, to, config).expect("begins");
        endpoint.wait_connected().expect("connects");
        Self {
            endpoint,
            pool: pool(&domain, SLOTS, SIZE),
            next_key: 0,
            sending: true,
            completed: Vec::new(),
            failed: Vec::new(),
            unresponsive: false,
            lost: 0,
            ended: None,
            alive: Instant::now(),
        }
    }

    /// Sends what there is room for, and takes what came back.
    fn step(&mut self) {
        while self.sending
            && self.ended.is_none()
            && let Some(buffer) = self.pool.try_acquire()
        {
            let key = self.next_key;
            let sent = self.endpoint.send_data(buffer.freeze(SIZE), b"", key);
            match sent {
                Ok(()) => self.next_key += 1,
                Err(refused) if refused.is_would_block() => break,
                // The next poll says why.
                Err(_) => break,
            }
        }
        let mut events = Vec::new();
        self.endpoint.poll(&mut events).expect("polls");
        for event in events {
            match event {
                SendEvent::Completed { key, .. } => {
                    self.completed.push(key);
                    self.alive = Instant::now();
                }
                SendEvent::Failed { key, .. } => self.failed.push(key),
                SendEvent::Connection(ConnectionEvent::Unresponsive) => self.unresponsive = true,
                SendEvent::Connection(ConnectionEvent::Responsive) => self.unresponsive = false,
                SendEvent::Connection(ConnectionEvent::Reconnecting { attempt: 1, .. }) => {
                    self.lost += 1
                }
                SendEvent::Connection(ConnectionEvent::Disconnected(reason)) => {
                    self.ended = Some(reason)
                }
                _ => {}
            }
        }
        // Not as fast as it can: an emulated machine has other things to do, too.
        std::thread::sleep(millis(5));
    }

    fn until(&mut self, what: &str, limit: Duration, done: impl Fn(&Self) -> bool) {
        let until = after(patient(limit));
        while !done(self) {
            assert!(
                Instant::now() < until,
                "{what}: not within {limit:?}; {} sent, {} completed, {} failed, ended {:?}, \
                 unresponsive {}; {:?}",
                self.next_key,
                self.completed.len(),
                self.failed.len(),
                self.ended,
                self.unresponsive,
                self.endpoint.stats()
            );
            self.step();
        }
    }

    /// Each key came back once, and each buffer.
    fn assert_all_back(&self) {
        let mut keys: Vec<_> = self.completed.iter().chain(&self.failed).copied().collect();
        keys.sort_unstable();
        assert!(keys.iter().copied().eq(0..self.next_key), "{keys:?}");
        assert_balanced(&self.endpoint);
        assert_eq!(
            self.pool.free_count(),
            SLOTS as usize,
            "all buffers are back"
        );
    }
}

#[test]
fn a_far_peer_that_is_gone_gives_every_key_back_in_time() {
    let Some((far, addr)) = far("a_far_peer_that_is_gone_gives_every_key_back_in_time") else {
        return;
    };
    // The far one, which lives as long as it is wanted, has none.
    let _dog = Watchdog::new("far peer gone");
    let mut near = Near::connect(
        addr,
        SendConfig::default().connection(|c| c.lost_after(Some(LOST))),
    );
    near.until("messages arrive", SOON, |near| near.completed.len() > 100);
    far.cut_off();
    near.until("a verdict", 3 * SOON, |near| near.ended.is_some());
    let silence = near.alive.elapsed();
    let reason = near.ended.expect("just seen");
    let expected = matches!(
        reason,
        CloseReason::PeerSilent { .. } | CloseReason::PeerLost { .. }
    );
    assert!(expected, "{reason}");
    println!(
        "lost after {} ms without an arrival: {reason}; {} completed, {} failed",
        silence.as_millis(),
        near.completed.len(),
        near.failed.len()
    );
    near.assert_all_back();
    // Between two processes of a busy machine, that is a claim of the soak run.
    if matches!(far, Far::Machine) || soak() {
        assert!(silence <= LOST + patient(LATE), "{silence:?}");
    }
}

#[test]
fn a_far_peer_that_is_cut_off_for_a_while_is_sent_to_again() {
    let Some((far, addr)) = far("a_far_peer_that_is_cut_off_for_a_while_is_sent_to_again") else {
        return;
    };
    // The far one, which lives as long as it is wanted, has none.
    let _dog = Watchdog::new("far peer cut off");
    let config = SendConfig::default().connection(|c| {
        c.lost_after(Some(Duration::from_secs(300)))
            .reconnect(ReconnectPolicy::fixed(millis(500)))
    });
    let mut near = Near::connect(addr, config);
    near.until("messages arrive", SOON, |near| near.completed.len() > 100);
    far.cut_off();
    near.until("unresponsive", SOON, |near| {
        near.unresponsive || near.lost > 0
    });
    far.join();
    // Accepted before the two were joined again, or after: what a key of later shows is that they
    // are.
    let so_far = near.next_key;
    near.until("what is sent now arrives", BACK, |near| {
        near.completed.last().is_some_and(|key| *key >= so_far)
    });
    near.sending = false;
    near.until("the rest is answered for", BACK, |near| {
        (near.completed.len() + near.failed.len()) as u64 == near.next_key
    });
    // A card gives a connection up by itself, when its retries are used up; else everything
    // arrives.
    assert!(near.lost > 0 || near.failed.is_empty(), "{:?}", near.failed);
    near.assert_all_back();
    println!(
        "all of {} back, {} failed; connections lost: {}",
        near.next_key,
        near.failed.len(),
        near.lost
    );
}
