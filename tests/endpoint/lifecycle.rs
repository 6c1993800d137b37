//! Peers that stop, are busy, come back, or vanish with their network; handles in forked processes;
//! settings of the process.
//!
//! Figures of verdicts are printed: `cargo test --test endpoint lifecycle:: -- --nocapture`.

#![allow(unsafe_code)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::{
    CloseReason, Keepalive, KernelWatch, ReceiveConfig, ReconnectPolicy, SendConfig, SendErrorKind,
};
use fabricast::error::Error;
use fabricast::event_loop::EventLoop;
use fabricast::fabric::{EndpointKind, EndpointSettings, LogLevel, ProcessSettings, SocketAccess};
use fabricast::{
    ConnectionEvent, Domain, PeerAddr, ReceiveEndpoint, ReceiveEvent, SendEndpointZeroCopy,
    SendEvent,
};
use namespaces::{NEAR, in_two_namespaces, ip};

use crate::common;
use crate::common::child::{self, Child};
use crate::common::{
    Offers, SOON, Watchdog, after, drive, millis, node, provider::fabric_at, undisturbed,
};
use crate::namespaces;

const T1: Duration = Duration::from_millis(300);
const T2: Duration = Duration::from_millis(1500);

/// How much later than it is due a verdict may be seen in the soak run: two busy cores.
const LATE: Duration = Duration::from_millis(700);
/// Longer than a machine stands still, for peers that must not be lost.
const NEVER: Duration = Duration::from_secs(300);

fn impatient_sender() -> SendConfig {
    common::sending()
        .connection(|c| c.unresponsive_after(Some(T1)).lost_after(Some(T2)))
        .outgoing(|out| out.deadline(None))
}

fn impatient_receiver() -> ReceiveConfig {
    common::small_receiver().connection(|c| c.unresponsive_after(Some(T1)).lost_after(Some(T2)))
}

fn patient_receiver() -> ReceiveConfig {
    common::small_receiver().connection(|c| c.unresponsive_after(None).lost_after(None))
}

/// A sender, and what it was told and when.
struct Sender {
    endpoint: SendEndpointZeroCopy,
    pool: SharedBufferManager,
    told: Vec<(Instant, SendEvent)>,
    next_key: u64,
}

impl Sender {
    fn connect(domain: &Arc<Domain>, peer: PeerAddr, config: SendConfig) -> Self {
        let endpoint = SendEndpointZeroCopy::connect(domain, peer, config).expect("begins");
        let mut sender = Self {
            endpoint,
            pool: common::pool(domain, 64, 64 * 1024),
            told: Vec::new(),
            next_key: 0,
        };
        sender.until("connected", SOON, |event| {
            matches!(event, SendEvent::Connection(ConnectionEvent::Connected(_)))
        });
        sender
    }

    /// Sleeps and polls until such an event, which it gives with its time; the others are kept.
    fn until(
        &mut self,
        what: &str,
        limit: Duration,
        found: impl Fn(&SendEvent) -> bool,
    ) -> Instant {
        let until = after(limit);
        let mut events = Vec::new();
        loop {
            self.endpoint.poll(&mut events).expect("polls");
            let now = Instant::now();
            let mut at = None;
            for event in events.drain(..) {
                if at.is_none() && found(&event) {
                    at = Some(now);
                }
                self.told.push((now, event));
            }
            if let Some(at) = at {
                return at;
            }
            assert!(now < until, "{what}: not within {limit:?}; {:?}", self.told);
            self.endpoint.wait(millis(50)).expect("waits");
        }
    }

    /// Polls once, and keeps what comes.
    fn poll(&mut self) {
        let mut events = Vec::new();
        self.endpoint.poll(&mut events).expect("polls");
        let now = Instant::now();
        self.told
            .extend(events.into_iter().map(|event| (now, event)));
    }

    /// Sends one message of so many bytes; false for back-pressure.
    fn send(&mut self, len: usize) -> bool {
        let Some(buffer) = self.pool.try_acquire() else {
            return false;
        };
        let key = self.next_key;
        match self
            .endpoint
            .send_data(buffer.freeze(len), &key.to_le_bytes(), key)
        {
            Ok(()) => {
                self.next_key += 1;
                true
            }
            Err(refused) if refused.is_would_block() => false,
            Err(refused) => panic!("{refused}"),
        }
    }

    /// Outcomes so far: completed and failed.
    fn outcomes(&self) -> (u64, u64) {
        let mut outcomes = (0, 0);
        for (_, event) in &self.told {
            match event {
                SendEvent::Completed { .. } => outcomes.0 += 1,
                SendEvent::Failed { .. } => outcomes.1 += 1,
                _ => {}
            }
        }
        outcomes
    }

    /// Every key came back once.
    fn assert_all_back(&self) {
        let (completed, failed) = self.outcomes();
        assert_eq!(completed + failed, self.next_key, "{:?}", self.told);
        common::assert_balanced(&self.endpoint);
    }

    fn verdicts(&self) -> Vec<&SendEvent> {
        let is_outcome = |event: &SendEvent| {
            matches!(
                event,
                SendEvent::Completed { .. } | SendEvent::Failed { .. } | SendEvent::Writable
            )
        };
        self.told
            .iter()
            .map(|(_, event)| event)
            .filter(|event| !is_outcome(event))
            .collect()
    }
}

fn is_lost(event: &SendEvent) -> bool {
    matches!(
        event,
        SendEvent::Connection(ConnectionEvent::Disconnected(_))
    )
}

/// A line that tests print, in whichever process they run.
fn figure(line: &str) {
    if child::role().is_some() {
        child::tell(line);
    } else {
        println!("{line}");
    }
}

/// When a verdict came, after its cause; at least `due` less the word that may have come up to a
/// third of T1 before. A claim about an idle machine, and so looked at in the soak run only; with a
/// clock of its own the state machines are tested in `src`.
fn assert_in_time(what: &str, cause: Instant, seen: Instant, due: Duration) {
    let took = seen - cause;
    figure(&format!(
        "{what} after {} ms, due at {}",
        took.as_millis(),
        due.as_millis()
    ));
    if common::soak() {
        let early = took + T1 / 3 + millis(20) < due;
        assert!(!early, "{what} too early: {took:?}");
        assert!(took <= due + LATE, "{what} too late: {took:?}");
    }
}

/// A receiver in another process: listens where the argument says, says where, and polls. Each
/// message begins with what is to be done with it: 1, be busy for three times T1.
fn receiver_role(config: ReceiveConfig) {
    let domain = domain_at(&child::argument());
    let addr = child::argument().parse().expect("an address");
    let mut receiver = listen_again(&domain, addr, config);
    child::tell(format!("listening {}", receiver.local_addr()));
    let mut events = Vec::new();
    loop {
        receiver.poll(&mut events).expect("polls");
        for event in events.drain(..) {
            if let ReceiveEvent::Message(message) = event
                && message.payload().first() == Some(&1)
            {
                std::thread::sleep(3 * T1);
                child::tell("rested");
            }
        }
        receiver.wait(millis(100)).expect("waits");
    }
}

fn domain_at(addr: &str) -> Arc<Domain> {
    let node = addr.rsplit_once(':').expect("host:port").0;
    let fabric = fabric_at(EndpointKind::Msg, node).expect("a fabric");
    fabric.open_domain().expect("a domain")
}

/// A port that a process had until a moment ago.
fn listen_again(domain: &Arc<Domain>, addr: PeerAddr, config: ReceiveConfig) -> ReceiveEndpoint {
    let until = after(SOON);
    loop {
        match ReceiveEndpoint::listen(domain, addr, config.clone()) {
            Ok(receiver) => return receiver,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(millis(20));
    }
}

fn start_receiver(test: &str) -> (Child, PeerAddr) {
    let mut child = Child::start(test, "receiver", common::any_port());
    let addr = child.expect("listening", SOON).parse().expect("an address");
    (child, addr)
}

#[test]
fn a_stopped_receiver_is_unresponsive_then_lost() {
    if child::role().is_some() {
        return receiver_role(patient_receiver());
    }
    let _dog = Watchdog::new("stopped receiver");
    let Some(domain) = common::domain() else {
        return;
    };
    let (_child, mut sender) = undisturbed("heartbeats keep it alive", || {
        let (child, addr) = start_receiver("a_stopped_receiver_is_unresponsive_then_lost");
        let mut sender = Sender::connect(&domain, addr, impatient_sender());
        // Idle for longer than the verdict takes.
        drive_for(2 * T1, || sender.poll());
        child.stop();
        let is_alive = !sender.told.iter().any(|(_, event)| is_lost(event));
        is_alive.then_some((child, sender))
    });
    let stopped = Instant::now();
    while sender.send(60_000) {}
    assert!(sender.next_key > 0);
    let seen = sender.until("lost", SOON, is_lost);
    let unresponsive = |(_, event): &&(Instant, SendEvent)| {
        matches!(event, SendEvent::Connection(ConnectionEvent::Unresponsive))
    };
    let (first, _) = sender.told.iter().rfind(unresponsive).expect("told before");
    assert_in_time("stopped receiver: Unresponsive", stopped, *first, T1);
    assert_in_time("stopped receiver: Lost", stopped, seen, T2);
    let lost = CloseReason::PeerSilent { silence: T2 };
    assert_eq!(sender.endpoint.close_reason(), Some(lost));
    sender.assert_all_back();
    let verdicts = sender.verdicts();
    let [
        SendEvent::Connection(ConnectionEvent::Connected(_)),
        between @ ..,
        SendEvent::Connection(ConnectionEvent::Disconnected(_)),
    ] = &verdicts[..]
    else {
        panic!("{verdicts:?}");
    };
    assert_turns(between, |event| {
        matches!(event, SendEvent::Connection(ConnectionEvent::Unresponsive))
    });
}

/// `Unresponsive` and `Responsive` in turns, the first and the last of them `Unresponsive`. One
/// verdict only in the soak run: a machine that stands still silences a peer that is well.
fn assert_turns<E: std::fmt::Debug>(verdicts: &[E], is_unresponsive: impl Fn(&E) -> bool) {
    let in_turns = verdicts
        .iter()
        .enumerate()
        .all(|(at, event)| is_unresponsive(event) == (at % 2 == 0));
    assert!(in_turns && verdicts.len() % 2 == 1, "{verdicts:?}");
    assert!(verdicts.len() == 1 || !common::soak(), "{verdicts:?}");
}

fn drive_for<T>(time: Duration, mut step: impl FnMut() -> T) {
    let until = after(time);
    while Instant::now() < until {
        step();
        std::thread::sleep(millis(5));
    }
}

#[test]
fn a_stopped_sender_is_unresponsive_then_lost() {
    const TEST: &str = "a_stopped_sender_is_unresponsive_then_lost";
    if child::role().is_some() {
        let addr = child::argument().parse().expect("an address");
        let domain = common::domain().expect("libfabric");
        let config = common::sending().connection(|c| c.unresponsive_after(None).lost_after(None));
        let mut sender = Sender::connect(&domain, addr, config);
        child::tell("connected");
        drive_for(Duration::from_secs(60), || {
            sender.endpoint.poll(&mut Vec::new()).expect("polls")
        });
        return;
    }
    let _dog = Watchdog::new("stopped sender");
    let Some(domain) = common::domain() else {
        return;
    };
    let mut receiver = ReceiveEndpoint::listen(&domain, common::any_port(), impatient_receiver())
        .expect("listens");
    let mut told = Vec::new();
    let mut events = Vec::new();
    let mut poll = |receiver: &mut ReceiveEndpoint, told: &mut Vec<(Instant, ReceiveEvent)>| {
        receiver.poll(&mut events).expect("polls");
        let now = Instant::now();
        told.extend(events.drain(..).map(|event| (now, event)));
        receiver.wait(millis(20)).expect("waits");
    };
    let is_end = |e: &ReceiveEvent| {
        matches!(
            e,
            ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(_))
        )
    };
    let _child = undisturbed("heartbeats keep it alive", || {
        told.clear();
        let child = Child::start(TEST, "sender", receiver.local_addr());
        drive("connected", SOON, || {
            poll(&mut receiver, &mut told);
            !told.is_empty()
        });
        let quiet = after(3 * T1);
        while Instant::now() < quiet {
            poll(&mut receiver, &mut told);
        }
        child.stop();
        let is_alive = told.len() == 1 || (!common::soak() && !told.iter().any(|(_, e)| is_end(e)));
        is_alive.then_some(child)
    });
    let stopped = Instant::now();
    drive("lost", SOON, || {
        poll(&mut receiver, &mut told);
        told.iter().any(|(_, event)| is_end(event))
    });
    let [
        (_, ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_))),
        between @ ..,
        (unresponsive, ReceiveEvent::Connection(first, ConnectionEvent::Unresponsive)),
        (lost, ReceiveEvent::Connection(second, ConnectionEvent::Disconnected(reason))),
    ] = &told[..]
    else {
        panic!("{told:?}");
    };
    assert_eq!([first, second], [connection; 2]);
    let verdicts = &told[1..=between.len() + 1];
    assert_turns(verdicts, |(_, event)| {
        matches!(
            event,
            ReceiveEvent::Connection(_, ConnectionEvent::Unresponsive)
        )
    });
    assert_eq!(*reason, CloseReason::PeerSilent { silence: T2 });
    assert_in_time("stopped sender: Unresponsive", stopped, *unresponsive, T1);
    assert_in_time("stopped sender: Lost", stopped, *lost, T2);
    assert_eq!(receiver.connections(), 0);
}

#[test]
fn a_peer_that_is_busy_in_its_handler_is_not_lost() {
    const TEST: &str = "a_peer_that_is_busy_in_its_handler_is_not_lost";
    if child::role().is_some() {
        return receiver_role(impatient_receiver().connection(|c| c.lost_after(Some(NEVER))));
    }
    let _dog = Watchdog::new("busy peer");
    let Some(domain) = common::domain() else {
        return;
    };
    let (mut child, addr) = start_receiver(TEST);
    let config = impatient_sender().connection(|c| c.lost_after(Some(NEVER)));
    let mut sender = Sender::connect(&domain, addr, config);
    let mut buffer = sender.pool.try_acquire().expect("free");
    buffer[0] = 1;
    sender
        .endpoint
        .send_data(buffer.freeze(1), b"", 0)
        .expect("connected");
    sender.next_key = 1;
    let begin = Instant::now();
    let seen = sender.until("unresponsive", SOON, |e| {
        matches!(e, SendEvent::Connection(ConnectionEvent::Unresponsive))
    });
    assert_in_time("busy receiver: Unresponsive", begin, seen, T1);
    let seen = sender.until("responsive", SOON, |e| {
        matches!(e, SendEvent::Connection(ConnectionEvent::Responsive))
    });
    assert_in_time("busy receiver: Responsive", begin, seen, 3 * T1);
    child.expect("rested", SOON);
    // It was away itself for so long, and does not hold that against us.
    drive_for(3 * T1, || sender.poll());
    assert!(sender.send(100), "nothing was closed");
    sender.until("completed", SOON, |e| {
        matches!(e, SendEvent::Completed { key: 1, .. })
    });
    sender.assert_all_back();
    assert!(sender.verdicts().iter().all(|e| !is_lost(e)));
}

#[test]
fn a_peer_that_comes_back_is_connected_to_again() {
    const TEST: &str = "a_peer_that_comes_back_is_connected_to_again";
    if child::role().is_some() {
        return receiver_role(impatient_receiver().connection(|c| c.lost_after(Some(NEVER))));
    }
    let _dog = Watchdog::new("reconnect");
    let Some(domain) = common::domain() else {
        return;
    };
    let (child, addr) = start_receiver(TEST);
    let policy = ReconnectPolicy::backoff(millis(20), millis(200)).max_time(2 * SOON);
    // The kernel says that it was killed.
    let config = impatient_sender().connection(|c| c.lost_after(Some(NEVER)).reconnect(policy));
    let mut sender = Sender::connect(&domain, addr, config);
    let id = sender.endpoint.id();
    let first = incarnations(&sender);
    child.stop();
    while sender.send(60_000) {}
    let sent = sender.next_key;
    assert!(sent > 0);
    drop(child);
    sender.until("reconnecting", SOON, |e| {
        matches!(
            e,
            SendEvent::Connection(ConnectionEvent::Reconnecting { attempt: 1, .. })
        )
    });
    // What was in flight came back before that.
    let at = sender.told.iter().position(|(_, e)| {
        matches!(
            e,
            SendEvent::Connection(ConnectionEvent::Reconnecting { .. })
        )
    });
    let before = sender.told[..at.expect("it was told")]
        .iter()
        .filter(|(_, e)| matches!(e, SendEvent::Completed { .. } | SendEvent::Failed { .. }));
    assert_eq!(before.count() as u64, sent);
    sender.assert_all_back();
    // Refused as back-pressure meanwhile, and nothing lost.
    let refused = sender
        .endpoint
        .send_data(common::buffer(&sender.pool, b"x"), b"", 9);
    let refused = refused.expect_err("there is no connection");
    assert!(refused.is_would_block(), "{refused}");
    assert!(!sender.endpoint.is_connected() && sender.endpoint.close_reason().is_none());
    let mut again = Child::start(TEST, "receiver", addr);
    again.expect("listening", SOON);
    let back = Instant::now();
    let seen = sender.until("connected again", SOON, |e| {
        matches!(e, SendEvent::Connection(ConnectionEvent::Connected(_)))
    });
    println!(
        "connected again {:.0?} after the peer was back",
        seen - back
    );
    assert_eq!(sender.endpoint.id(), id);
    let incarnations = incarnations(&sender);
    assert_eq!(incarnations.len(), 2);
    assert_ne!(incarnations[0], incarnations[1], "another life of the peer");
    assert_eq!(first, incarnations[..1]);
    // Nothing is sent again by itself.
    assert_eq!(sender.endpoint.stats().posted, sent);
    let writable = |(_, e): &(Instant, SendEvent)| matches!(e, SendEvent::Writable);
    assert!(
        sender.told.iter().any(writable),
        "what was refused can be sent now"
    );
    assert!(sender.send(100));
    let key = sent;
    sender.until(
        "completed",
        SOON,
        |e| matches!(e, SendEvent::Completed { key: k, .. } if *k == key),
    );
    sender.assert_all_back();
    let events = sender.endpoint.close(after(SOON)).expect("closes");
    assert_eq!(
        common::send_end(&events),
        Some(CloseReason::Finished),
        "{events:?}"
    );
}

fn incarnations(sender: &Sender) -> Vec<u64> {
    let connected = |(_, event): &(Instant, SendEvent)| match event {
        SendEvent::Connection(ConnectionEvent::Connected(info)) => Some(info.peer_incarnation),
        _ => None,
    };
    sender.told.iter().filter_map(connected).collect()
}

#[test]
fn attempts_end_with_the_last_one() {
    let _dog = Watchdog::new("attempts");
    let Some(domain) = common::domain() else {
        return;
    };
    let nobody = {
        let receiver = ReceiveEndpoint::listen(&domain, common::any_port(), patient_receiver());
        receiver.expect("listens").local_addr()
    };
    let config = common::sending()
        .connection(|c| c.reconnect(ReconnectPolicy::fixed(millis(30)).max_attempts(3)));
    let mut endpoint = SendEndpointZeroCopy::connect(&domain, nobody, config).expect("begins");
    let mut events = Vec::new();
    drive("the end", SOON, || {
        endpoint.poll(&mut events).expect("polls");
        common::send_end(&events).is_some()
    });
    let attempts: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            SendEvent::Connection(ConnectionEvent::Reconnecting { attempt, after, .. }) => {
                Some((*attempt, *after))
            }
            _ => None,
        })
        .collect();
    assert_eq!(attempts, [1, 2, 3].map(|n| (n, millis(30))));
    assert!(matches!(
        endpoint.close_reason(),
        Some(CloseReason::ConnectFailed(_))
    ));
    // Closed while it waits for the next attempt.
    let config = common::sending()
        .connection(|c| c.reconnect(ReconnectPolicy::fixed(Duration::from_secs(60))));
    let mut endpoint = SendEndpointZeroCopy::connect(&domain, nobody, config).expect("begins");
    events.clear();
    drive("an attempt", SOON, || {
        endpoint.poll(&mut events).expect("polls");
        events.iter().any(|e| {
            matches!(
                e,
                SendEvent::Connection(ConnectionEvent::Reconnecting { .. })
            )
        })
    });
    let events = endpoint.close(after(SOON)).expect("closes");
    assert_eq!(common::send_end(&events), Some(CloseReason::ClosedLocally));
}

/// Passes bytes on, at most so many each 10 ms from the sender to the receiver; where it listens,
/// and for how many milliseconds at the most nothing was passed on to the receiver.
fn slow_relay(to: PeerAddr, bytes_each_10_ms: usize) -> (PeerAddr, Arc<AtomicU64>) {
    let longest_pause = Arc::new(AtomicU64::new(0));
    let pause = Arc::clone(&longest_pause);
    let listener = TcpListener::bind((node(), 0)).expect("a port");
    let addr = listener.local_addr().expect("its number");
    std::thread::spawn(move || {
        let (near, _) = listener.accept().expect("the sender connects");
        let far = TcpStream::connect(to.socket_addr().expect("tcp")).expect("the receiver listens");
        for stream in [&near, &far] {
            stream.set_nodelay(true).expect("a socket");
        }
        let back = (
            far.try_clone().expect("a socket"),
            near.try_clone().expect("a socket"),
        );
        std::thread::spawn(move || pass_on(back.0, back.1, usize::MAX, &AtomicU64::new(0)));
        pass_on(near, far, bytes_each_10_ms, &pause);
    });
    (addr.into(), longest_pause)
}

/// Ends with either socket.
fn pass_on(
    mut from: TcpStream,
    mut to: TcpStream,
    bytes_each_10_ms: usize,
    longest_pause: &AtomicU64,
) {
    let mut room = vec![0; bytes_each_10_ms.min(64 * 1024)];
    let mut last = Instant::now();
    loop {
        match from.read(&mut room) {
            Ok(n) if n > 0 && to.write_all(&room[..n]).is_ok() => {}
            _ => break,
        }
        longest_pause.fetch_max(last.elapsed().as_millis() as u64, Relaxed);
        last = Instant::now();
        if bytes_each_10_ms != usize::MAX {
            std::thread::sleep(millis(10));
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

#[test]
fn a_message_that_takes_long_to_arrive_is_life() {
    let _dog = Watchdog::new("slow message");
    let Some(domain) = common::domain() else {
        return;
    };
    if !domain.has_sockets() {
        return;
    }
    let told = undisturbed("a message that takes long", || slow_message(&domain));
    assert_eq!(told.len(), 2, "connected, and the message: {told:?}");
}

/// What a receiver with little patience hears of a message that takes longer than its patience,
/// without what a machine that stands still brings about. `None`: nothing was passed on for so long
/// that, with what the kernel takes, the silence may have been real.
fn slow_message(domain: &Arc<Domain>) -> Option<Vec<ReceiveEvent>> {
    const LEN: usize = 4 << 20;
    let elsewhere = common::domain().expect("there is one already");
    let config = ReceiveConfig::default()
        .incoming(|incoming| incoming.max_message(LEN + 64).slots(8).credits(2))
        .connection(|c| {
            c.max_connections(2)
                .unresponsive_after(Some(T1))
                .lost_after(Some(T2))
        });
    let mut receiver =
        ReceiveEndpoint::listen(&elsewhere, common::any_port(), config).expect("listens");
    // About 2 s for the message; nothing else can pass it.
    let (relay, longest_pause) = slow_relay(receiver.local_addr(), LEN / 200);
    let send = common::sending().connection(|c| c.unresponsive_after(None).lost_after(None));
    let mut sender = SendEndpointZeroCopy::connect(domain, relay, send).expect("begins");
    let pool = common::pool(domain, 1, LEN);
    let mut payload = Some(pool.try_acquire().expect("free").freeze(LEN).into());
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    let begin = Instant::now();
    drive("the message", SOON, || {
        sender.poll(&mut sent).expect("polls");
        receiver.poll(&mut received).expect("polls");
        if let Some(p) = payload.take()
            && let Err(refused) = sender.send_data(p, b"", 1)
        {
            payload = Some(refused.given);
        }
        received.iter().any(|event| {
            matches!(
                event,
                ReceiveEvent::Message(_)
                    | ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(_))
            )
        })
    });
    figure(&format!(
        "one message took {} ms, never silent",
        begin.elapsed().as_millis()
    ));
    let pause = millis(longest_pause.load(Relaxed));
    let silent_for = if common::soak() { T1 } else { T2 };
    if pause > silent_for / 2 {
        println!("nothing was passed on for {pause:?}");
        return None;
    }
    assert!(begin.elapsed() > T2, "longer than any limit: {received:?}");
    received.retain(|event| {
        common::soak()
            || !matches!(
                event,
                ReceiveEvent::Connection(_, ConnectionEvent::Unresponsive)
                    | ReceiveEvent::Connection(_, ConnectionEvent::Responsive)
            )
    });
    Some(received)
}

#[test]
fn heartbeats_are_answered_while_every_message_is_held() {
    let _dog = Watchdog::new("held messages");
    let Some(domain) = common::domain() else {
        return;
    };
    let elsewhere = common::domain().expect("there is one already");
    // Two connections want more buffers than there are: what a heartbeat uses must not go to the
    // other one.
    let config = patient_receiver()
        .incoming(|incoming| incoming.slots(12).credits(8))
        .connection(|c| c.max_connections(2));
    let mut receiver =
        ReceiveEndpoint::listen(&elsewhere, common::any_port(), config).expect("listens");
    let peer = receiver.local_addr();
    let connect = || SendEndpointZeroCopy::connect(&domain, peer, impatient_sender());
    let mut senders = [connect().expect("begins"), connect().expect("begins")];
    let pool = common::pool(&domain, 64, 1024);
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    let until = after(8 * T1);
    while Instant::now() < until {
        for sender in &mut senders {
            if let Some(buffer) = pool.try_acquire() {
                // Refused when the receiver grants no more, which is soon.
                let _ = sender.send_data(buffer.freeze(100), b"", 0);
            }
            sender.poll(&mut sent).expect("polls");
        }
        receiver.poll(&mut received).expect("polls");
        std::thread::sleep(millis(2));
    }
    let starved = |e: &ReceiveEvent| matches!(e, ReceiveEvent::Starved { .. });
    assert!(received.iter().any(starved), "the pool was empty");
    let silent = |e: &&SendEvent| match e {
        SendEvent::Connection(ConnectionEvent::Unresponsive) => common::soak(),
        event => matches!(
            event,
            SendEvent::Connection(ConnectionEvent::Disconnected(_))
        ),
    };
    assert_eq!(sent.iter().filter(silent).count(), 0, "{sent:?}");
    assert!(senders.iter().all(SendEndpointZeroCopy::is_connected));
    // And a peer that dies is noticed all the same.
    drop(senders);
    let lost = |e: &ReceiveEvent| {
        matches!(
            e,
            ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(_))
        )
    };
    drive("both lost", SOON, || {
        receiver.poll(&mut received).expect("polls");
        received.iter().filter(|e| lost(e)).count() == 2
    });
}

#[test]
fn attempts_need_nobody_to_poll_in_between() {
    let _dog = Watchdog::new("event loop");
    let Some(domain) = common::domain() else {
        return;
    };
    let nobody = {
        let receiver = ReceiveEndpoint::listen(&domain, common::any_port(), patient_receiver());
        receiver.expect("listens").local_addr()
    };
    let policy = ReconnectPolicy::fixed(millis(100)).max_attempts(3);
    let mut endpoint = SendEndpointZeroCopy::connect(
        &domain,
        nobody,
        common::sending().connection(|c| c.reconnect(policy)),
    )
    .expect("begins");
    let mut event_loop = EventLoop::new().expect("a loop");
    event_loop.add_endpoint(&endpoint).expect("watched");
    let (mut events, mut polls) = (Vec::new(), 0);
    let begin = Instant::now();
    event_loop
        .run_for(SOON, |event_loop, _| {
            polls += 1;
            endpoint.poll(&mut events).expect("polls");
            if common::send_end(&events).is_some() {
                event_loop.stop();
            }
        })
        .expect("runs");
    assert!(common::send_end(&events).is_some(), "{events:?}");
    let took = begin.elapsed();
    assert!(took >= millis(300), "{took:?}");
    assert!(polls < 200, "the loop slept in between: {polls} polls");
}

// ---- two network namespaces ---------------------------------------------------------------------

/// Joins the near side, and receives.
fn far_receiver() {
    namespaces::join_far();
    receiver_role(impatient_receiver().connection(|c| c.lost_after(Some(NEVER))));
}

fn start_far(test: &str) -> (Child, PeerAddr) {
    let (far, addr) = namespaces::start_far(test);
    (far, addr.parse().expect("an address"))
}

/// The pair is up when a connection can be made; a link that was just raised takes a moment.
fn connect_far(domain: &Arc<Domain>, addr: PeerAddr, config: SendConfig) -> Sender {
    Sender::connect(domain, addr, config)
}

fn near_domain() -> Arc<Domain> {
    domain_at(&format!("{NEAR}:0"))
}

#[test]
fn a_link_that_is_down_for_a_while_is_survived_or_noticed_in_time() {
    fn near(test: &str) {
        let (_far, addr) = start_far(test);
        let domain = near_domain();
        let policy = ReconnectPolicy::backoff(millis(50), millis(200));
        let survives = impatient_sender().connection(|c| c.lost_after(Some(NEVER)));
        let mut sender = connect_far(&domain, addr, survives);
        let mut sent = 0;
        // Shorter than what it takes to be lost: everything arrives in the end.
        drive_for(millis(200), || sent += u32::from(sender.send(20_000)));
        ip("link set fbnear0 down");
        let down = Instant::now();
        let seen = sender.until("unresponsive", SOON, |e| {
            matches!(e, SendEvent::Connection(ConnectionEvent::Unresponsive))
        });
        assert_in_time("link down: Unresponsive", down, seen, T1);
        ip("link set fbnear0 up");
        let up = Instant::now();
        let seen = sender.until("responsive", SOON, |e| {
            matches!(e, SendEvent::Connection(ConnectionEvent::Responsive))
        });
        figure(&format!(
            "link up: Responsive after {} ms",
            (seen - up).as_millis()
        ));
        while sender.outcomes().0 < sender.next_key {
            sender.until("completed", SOON, |e| {
                matches!(e, SendEvent::Completed { .. })
            });
        }
        assert_eq!(sender.outcomes(), (sender.next_key, 0));
        assert!(sender.verdicts().iter().all(|e| !is_lost(e)));
        // Longer than T2: lost in time, every key back, and connected again when the link is.
        let mut sender = connect_far(
            &domain,
            addr,
            impatient_sender().connection(|c| c.reconnect(policy)),
        );
        while sender.send(60_000) {}
        ip("link set fbnear0 down");
        let down = Instant::now();
        let seen = sender.until("reconnecting", SOON, |e| {
            matches!(
                e,
                SendEvent::Connection(ConnectionEvent::Reconnecting { attempt: 1, .. })
            )
        });
        assert_in_time("link down: Lost", down, seen, T2);
        sender.assert_all_back();
        std::thread::sleep(millis(300));
        ip("link set fbnear0 up");
        let up = Instant::now();
        let seen = sender.until("connected again", 2 * SOON, |e| {
            matches!(e, SendEvent::Connection(ConnectionEvent::Connected(_)))
        });
        figure(&format!(
            "link up: connected again after {} ms",
            (seen - up).as_millis()
        ));
        assert!(sender.send(100));
        let key = sender.next_key - 1;
        sender.until(
            "completed",
            SOON,
            |e| matches!(e, SendEvent::Completed { key: k, .. } if *k == key),
        );
        sender.assert_all_back();
    }
    in_two_namespaces(
        "a_link_that_is_down_for_a_while_is_survived_or_noticed_in_time",
        near,
        far_receiver,
    );
}

#[test]
fn a_peer_that_vanishes_without_a_word_is_lost_in_time() {
    fn near(test: &str) {
        let (far, addr) = start_far(test);
        let domain = near_domain();
        let mut sender = connect_far(&domain, addr, impatient_sender());
        while sender.send(60_000) {}
        // Gone with its network: no FIN, no RST, nothing.
        ip("link del fbnear0");
        let gone = Instant::now();
        drop(far);
        let seen = sender.until("unresponsive", SOON, |e| {
            matches!(e, SendEvent::Connection(ConnectionEvent::Unresponsive))
        });
        assert_in_time("vanished peer: Unresponsive", gone, seen, T1);
        let seen = sender.until("lost", SOON, is_lost);
        assert_in_time("vanished peer: Lost", gone, seen, T2);
        sender.assert_all_back();
        let lost = CloseReason::PeerSilent { silence: T2 };
        assert_eq!(sender.endpoint.close_reason(), Some(lost));
    }
    in_two_namespaces(
        "a_peer_that_vanishes_without_a_word_is_lost_in_time",
        near,
        far_receiver,
    );
}

#[test]
fn the_kernel_notices_a_vanished_peer_where_it_was_asked_to() {
    fn near(test: &str) {
        let (_far, addr) = start_far(test);
        let domain = near_domain();
        let second = Duration::from_secs(1);
        let config = || {
            common::sending()
                .connection(|c| c.unresponsive_after(None).lost_after(None))
                .outgoing(|out| out.deadline(None))
        };
        let probes = config().connection(|c| c.keepalive(Some(Keepalive::new(second, second, 2))));
        let mut idle = connect_far(&domain, addr, probes);
        let timed = config().connection(|c| c.tcp_user_timeout(Some(second)));
        let mut sending = connect_far(&domain, addr, timed);
        for sender in [&idle, &sending] {
            let (_, SendEvent::Connection(ConnectionEvent::Connected(info))) = &sender.told[0]
            else {
                panic!("{:?}", sender.told);
            };
            assert_eq!(info.kernel_watch, KernelWatch::Set);
        }
        let report = domain.report();
        let told = report.library.as_str() >= "2.2";
        let sockets = if told {
            SocketAccess::Library
        } else {
            SocketAccess::Search
        };
        assert_eq!(report.sockets, sockets, "{report}");
        ip("link set fbnear0 down");
        let down = Instant::now();
        while sending.send(60_000) {}
        let seen = sending.until("lost by TCP_USER_TIMEOUT", 2 * SOON, is_lost);
        figure(&format!(
            "TCP_USER_TIMEOUT of 1 s: lost after {} ms",
            (seen - down).as_millis()
        ));
        sending.assert_all_back();
        idle.until("lost by keepalive", 2 * SOON, is_lost);
        // The last probe of the two is given a second, too.
        let took = Instant::now() - down;
        figure(&format!(
            "keepalive of 1 s + 2 x 1 s: lost after {} ms",
            took.as_millis()
        ));
        for sender in [&idle, &sending] {
            let reason = sender.endpoint.close_reason();
            assert!(
                matches!(reason, Some(CloseReason::PeerLost { .. })),
                "{reason:?}"
            );
        }
    }
    in_two_namespaces(
        "the_kernel_notices_a_vanished_peer_where_it_was_asked_to",
        near,
        far_receiver,
    );
}

// ---- forked processes ---------------------------------------------------------------------------

/// Forks; the child leaves with what `child` gives. It must do nothing that could wait for another
/// thread.
fn fork(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child uses only what `child` does, and leaves by `_exit`: nothing of the parent's
    // runs in it.
    match unsafe { libc::fork() } {
        0 => {
            let code = child();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) }
        }
        pid => {
            assert!(pid > 0, "fork: {}", std::io::Error::last_os_error());
            let mut status = 0;
            // SAFETY: our own child; `status` is writable.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            assert!(libc::WIFEXITED(status), "status {status:#x}");
            libc::WEXITSTATUS(status)
        }
    }
}

#[test]
fn a_forked_child_can_not_disturb_its_parent() {
    const TEST: &str = "a_forked_child_can_not_disturb_its_parent";
    // In a process of its own, where no other test's thread is in the middle of anything.
    if child::role().is_none() {
        let _dog = Watchdog::new(TEST);
        return Child::start(TEST, "parent", "").finish(2 * SOON);
    }
    let Some(domain) = common::domain() else {
        return;
    };
    let mut pair = common::Pair::open(&domain);
    let payload = pair.buffer(b"before");
    pair.exchange(payload, b"h", 1);
    // A message on its way, so that a child that reads the queues or the sockets would steal
    // something.
    let payload = pair.buffer(b"during");
    pair.send(payload, b"h", 2);
    let payload = pair.buffer(b"by the child");
    let unregistered = SharedBufferManager::allocate(1, 64).expect("memory");
    let kept = Arc::downgrade(&domain);
    let sender = pair.sender.as_mut().expect("open");
    let receiver = pair.receiver.as_mut().expect("open");
    let (sent, received) = (&mut pair.sent, &mut pair.received);
    let code = fork(|| {
        let forked = |result: Result<usize, Error>| matches!(result, Err(Error::Forked { .. }));
        let refused = sender.send_data(payload, b"h", 3);
        let checks = [
            forked(sender.poll(sent)),
            forked(receiver.poll(received)),
            forked(sender.wait(SOON).map(|()| 0)),
            matches!(
                refused,
                Err(e) if matches!(e.kind, SendErrorKind::Forked { .. }) && e.key == 3
            ),
            forked(domain.fabric().open_domain().map(|_| 0)),
            forked(
                SendEndpointZeroCopy::connect(&domain, receiver.local_addr(), common::sending())
                    .map(|_| 0),
            ),
            unregistered.region().register(&domain).is_err(),
            sent.is_empty() && received.is_empty(),
        ];
        checks
            .iter()
            .enumerate()
            .filter(|(_, ok)| !**ok)
            .fold(0, |bits, (i, _)| bits | 1 << i)
    });
    assert_eq!(code, 0, "what was not refused, by bits");
    // Dropped by the child, everything: the parent's is untouched.
    let mut pair = Some(pair);
    let code = fork(|| {
        drop(pair.take());
        i32::from(kept.upgrade().is_none())
    });
    assert_eq!(code, 0);
    let mut pair = pair.expect("only the child dropped it");
    pair.until("the message that was on its way", |pair| {
        common::outcomes(&pair.sent).contains_key(&2)
            && pair
                .received
                .iter()
                .any(|e| matches!(e, ReceiveEvent::Message(_)))
    });
    assert_eq!(pair.messages(), [common::got(b"h", b"during")]);
    pair.sent.clear();
    let payload = pair.buffer(b"after");
    assert_eq!(pair.exchange(payload, b"h", 4), common::got(b"h", b"after"));
    common::assert_balanced(pair.sender());
}

/// The flags of the mapping that an address lies in (`VmFlags` in /proc/self/smaps).
fn vm_flags(address: usize) -> Vec<String> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("readable");
    let starts_here = |line: &str| {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        let parse = |text| usize::from_str_radix(text, 16).ok();
        Some((parse(from)?..parse(to)?).contains(&address))
    };
    let mut lines = smaps
        .lines()
        .skip_while(|line| starts_here(line) != Some(true));
    let flags = lines.find_map(|line| line.strip_prefix("VmFlags:"));
    let flags = flags.expect("the address is mapped");
    flags.split_whitespace().map(str::to_owned).collect()
}

/// Whether this process has the page of an address; without touching it.
fn has_page(address: usize) -> bool {
    let page = address - address % 4096;
    let mut resident = 0_u8;
    // SAFETY: asks for one page, and writes one byte, which is ours.
    let rc = unsafe { libc::mincore(std::ptr::without_provenance_mut(page), 1, &raw mut resident) };
    rc == 0
}

/// A card would go on reading and writing the pages that were registered, whatever a fork does to
/// them.
#[test]
fn registered_memory_survives_a_fork() {
    const TEST: &str = "registered_memory_survives_a_fork";
    // In a process of its own, where no other test's thread is in the middle of anything.
    if child::role().is_none() {
        let _dog = Watchdog::new(TEST);
        return Child::start(TEST, "parent", "").finish(2 * SOON);
    }
    let Some(domain) = common::domain() else {
        return;
    };
    let mut pair = common::Pair::open(&domain);
    let region = Arc::clone(pair.pool.region());
    let start = region.as_ptr().addr();
    let own = Box::new(1_u8);
    let own = (&raw const *own).addr();
    for address in [start, start + region.len() - 1] {
        let flags = vm_flags(address);
        assert!(flags.iter().any(|flag| flag == "dc"), "{flags:?}");
    }
    let forks: [(&str, &dyn Fn()); 2] = [
        ("exits", &|| {
            let code = fork(|| i32::from(has_page(start)) | i32::from(!has_page(own)) << 1);
            assert_eq!(code, 0, "what the child has of the memory, by bits");
        }),
        ("executes another program", &|| {
            use std::os::unix::process::CommandExt;
            let mut program = std::process::Command::new("true");
            let look = move || match has_page(start) {
                true => Err(std::io::ErrorKind::AlreadyExists.into()),
                false => Ok(()),
            };
            // SAFETY: it makes a system call, and allocates nothing.
            let program = unsafe { program.pre_exec(look) };
            let status = program.status().expect("it begins, without the memory");
            assert!(status.success(), "{status}");
        }),
    ];
    for (number, (child, fork)) in forks.into_iter().enumerate() {
        let seed = 10 * number as u64;
        let sizes = [1, 50_000, 4096, 60_000];
        let patterns: Vec<_> = sizes
            .iter()
            .zip(seed..)
            .map(|(len, seed)| common::pattern(seed, *len))
            .collect();
        // On their way: given to the provider, and not taken in by the other side.
        for (key, bytes) in (seed..).zip(&patterns) {
            let payload = pair.buffer(bytes);
            pair.send(payload, b"before", key);
        }
        // Filled before the fork and changed behind it: the pages move, where they can.
        let mut late = pair.pool.try_acquire().expect("a free buffer");
        late.fill(0xEE);
        fork();
        let bytes = common::pattern(seed + 9, 60_000);
        late[..bytes.len()].copy_from_slice(&bytes);
        pair.send(late.freeze(bytes.len()), b"after", seed + 9);
        pair.until(child, |pair| {
            let is_message = |event: &&ReceiveEvent| matches!(event, ReceiveEvent::Message(_));
            pair.received.iter().filter(is_message).count() == 5
                && common::outcomes(&pair.sent).len() == 5
        });
        let mut expected: Vec<_> = patterns
            .iter()
            .map(|bytes| common::got(b"before", bytes))
            .collect();
        expected.push(common::got(b"after", &bytes));
        assert!(pair.messages() == expected, "{child}");
        pair.sent.clear();
    }
    common::assert_balanced(pair.sender());
}

// ---- settings -----------------------------------------------------------------------------------

#[test]
fn a_connection_comes_from_where_it_was_told_to() {
    let _dog = Watchdog::new("source");
    let Some(domain) = common::domain() else {
        return;
    };
    let source = TcpListener::bind((node(), 0)).expect("a port").local_addr();
    let source: PeerAddr = source.expect("its number").into();
    let endpoint = EndpointSettings::default()
        .source(source)
        .tx_size(80)
        .rx_size(20);
    let send = common::sending().connection(|c| c.endpoint(endpoint));
    let mut receiver =
        ReceiveEndpoint::listen(&domain, common::any_port(), patient_receiver()).expect("listens");
    let mut sender =
        SendEndpointZeroCopy::connect(&domain, receiver.local_addr(), send).expect("begins");
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    drive("connected", SOON, || {
        sender.poll(&mut sent).expect("polls");
        receiver.poll(&mut received).expect("polls");
        !received.is_empty() && sender.is_connected()
    });
    let ReceiveEvent::Connection(_, ConnectionEvent::Connected(info)) = &received[0] else {
        panic!("{received:?}");
    };
    assert_eq!(info.peer, Some(source));
    // The same connection a second time is refused by the kernel; an address of somebody else is no
    // source.
    let from = |addr| {
        common::sending().connection(|c| c.endpoint(EndpointSettings::default().source(addr)))
    };
    let second = SendEndpointZeroCopy::connect(&domain, receiver.local_addr(), from(source));
    match second.and_then(|mut second| second.wait_connected()) {
        Err(Error::NotConnected {
            reason: CloseReason::ConnectFailed(errno),
            ..
        }) => {
            let expected = [libc::EADDRNOTAVAIL, libc::EADDRINUSE];
            assert!(expected.contains(&errno.get()), "{errno}");
        }
        // `verbs` looks at the port before anything is begun.
        Err(Error::Address { address, reason }) => {
            assert_eq!(address, source.to_string());
            assert!(reason.contains("EADDRINUSE"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    let foreign: PeerAddr = "192.0.2.1:0".parse().expect("an address");
    match SendEndpointZeroCopy::connect(&domain, receiver.local_addr(), from(foreign)) {
        Err(Error::Address { address, reason }) => {
            assert_eq!(address, foreign.to_string());
            assert!(reason.contains("address"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_process_is_set_up_before_the_first_fabric_and_not_after() {
    const TEST: &str = "the_process_is_set_up_before_the_first_fabric_and_not_after";
    if child::role().is_none() {
        let _dog = Watchdog::new(TEST);
        let env = [
            ("FI_LOG_LEVEL", "warn"),
            ("FI_TCP_PORT_LOW_RANGE", ""),
            ("FI_TCP_PORT_HIGH_RANGE", ""),
        ];
        return Child::with_env(TEST, "settings", "", &env).finish(SOON);
    }
    // A range around a port that was free a moment ago.
    let free = TcpListener::bind((node(), 0)).expect("a port").local_addr();
    let low = free.expect("its number").port().min(65_000);
    let settings = ProcessSettings::default()
        .tcp_ports(low, low + 200)
        .log_level(LogLevel::Info);
    // SAFETY: the other thread of this process, the test harness's, only waits for this one.
    let kept = unsafe { settings.apply() }.expect("in time");
    assert_eq!(
        kept,
        ["FI_LOG_LEVEL"],
        "the one who started us has the last word"
    );
    let Some(domain) = common::domain() else {
        return;
    };
    // The ports are those of tcp's sockets.
    if !domain.has_sockets() {
        return;
    }
    let receiver =
        ReceiveEndpoint::listen(&domain, common::any_port(), patient_receiver()).expect("listens");
    let port = receiver.local_addr().socket_addr().expect("tcp").port();
    assert!((low..=low + 200).contains(&port), "{port}");
    // SAFETY: as above.
    let late = unsafe { settings.apply() }.expect_err("too late");
    assert!(
        late.to_string().contains("before the first fabric"),
        "{late}"
    );
}
