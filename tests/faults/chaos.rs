//! Peers that die or stop, as real processes: nothing is lost, nothing comes twice, and it ends
//! within a stated time.
//!
//! FABRICAST_SOAK=1 runs the full counts; FABRICAST_SEED repeats a run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast::buffer::{Payload, SharedBufferManager};
use fabricast::endpoint::{CloseReason, ReceiveConfig};
use fabricast::{
    ConnectionEvent, Domain, PeerAddr, ReceiveEndpoint, ReceiveEvent, SendEndpointZeroCopy,
    SendEvent,
};

use crate::common;
use crate::common::child::{self, Child};
use crate::common::{
    Random, SOON, Watchdog, after, alone, any_port, assert_balanced, assert_fds_back, bytes_of,
    domain, drive, fd_count, millis, outcomes, pool, receive_ends, rounds, send_end, within,
};

/// A peer that was killed is noticed by the kernel at once; looked at in the soak run only.
const NOTICED_WITHIN: Duration = Duration::from_secs(2);

/// What a send may take; a peer that was stopped is noticed by nothing else.
const SEND_DEADLINE: Duration = Duration::from_millis(500);

/// Sends in flight when the peer dies: more bytes than the kernel's buffers take.
const SENDS: u64 = 100;
const SEND_SIZE: usize = 256 * 1024;

// ---- roles --------------------------------------------------------------------------------------

/// Listens, tells where, and stops polling once it is connected (`hold`), or goes on until it is
/// killed.
fn receive(what: &str) {
    let domain = domain().expect("the parent has one");
    let config = ReceiveConfig::default()
        .incoming(|incoming| {
            incoming
                .max_message(SEND_SIZE)
                .slots(SENDS as u32 + 10)
                .credits(SENDS as u32)
        })
        .connection(|c| c.max_connections(2));
    let mut receiver = ReceiveEndpoint::listen(&domain, any_port(), config).expect("listens");
    child::tell(format!("port {}", receiver.local_addr()));
    let mut events = Vec::new();
    loop {
        receiver.poll(&mut events).expect("polls");
        for event in events.drain(..) {
            if matches!(
                event,
                ReceiveEvent::Connection(_, ConnectionEvent::Connected(_))
            ) {
                child::tell("connected");
                if what == "hold" {
                    let _ = child::hear();
                    return;
                }
            }
        }
        receiver.wait(millis(20)).expect("waits");
    }
}

/// Sends until it is killed.
fn send_for_ever(addr: &str) {
    let domain = domain().expect("the parent has one");
    let addr: PeerAddr = addr.parse().expect("an address");
    let mut sender =
        SendEndpointZeroCopy::connect(&domain, addr, common::sending()).expect("begins");
    sender.wait_connected().expect("connects");
    child::tell("connected");
    let pool = pool(&domain, 8, 4096);
    let mut events = Vec::new();
    loop {
        if let Some(buffer) = pool.try_acquire() {
            // A refusal gives the buffer back, and it is tried again.
            let _ = sender.send_data(buffer.freeze(4096), b"h", 1);
        }
        sender.poll(&mut events).expect("polls");
        events.clear();
    }
}

/// Sends N numbered messages and closes politely at once. The argument: address, N, payload size.
fn send_and_close(argument: &str) {
    let mut words = argument.split(' ');
    let addr = words.next().expect("address").parse().expect("an address");
    let count = words.next().expect("count").parse().expect("a number");
    let size = words.next().expect("size").parse().expect("a number");
    let domain = domain().expect("the parent has one");
    let reason = run_send_and_close(&domain, addr, count, size);
    child::tell(format!("closed {reason}"));
}

fn run_send_and_close(domain: &Arc<Domain>, addr: PeerAddr, count: u64, size: usize) -> String {
    let pool = pool(domain, 16, size.max(8));
    let mut sender =
        SendEndpointZeroCopy::connect(domain, addr, common::sending()).expect("begins");
    sender.wait_connected().expect("connects");
    let mut events = Vec::new();
    let mut done = 0;
    for number in 0..count {
        let mut payload = None;
        drive("a send", 3 * SOON, || {
            sender.poll(&mut events).expect("polls");
            done += outcomes(&events).len();
            events.clear();
            if payload.is_none() {
                payload = pool.try_acquire().map(|mut buffer| {
                    buffer[..8].copy_from_slice(&number.to_le_bytes());
                    Payload::from(buffer.freeze(size.max(8)))
                });
            }
            let Some(p) = payload.take() else {
                return false;
            };
            payload = sender
                .send_data(p, b"", number)
                .err()
                .map(|refused| refused.given);
            payload.is_none()
        });
    }
    let ends = sender.close(after(3 * SOON)).expect("closes");
    let completed = done + outcomes(&ends).len();
    assert_eq!(completed as u64, count, "each key once");
    send_end(&ends).map_or_else(|| "no end".to_owned(), |reason| reason.to_string())
}

/// Runs the role if this process has one.
fn in_role() -> bool {
    let argument = child::argument();
    match child::role().as_deref() {
        Some("receive") => receive(&argument),
        Some("send") => send_for_ever(&argument),
        Some("send and close") => send_and_close(&argument),
        Some(other) => panic!("no role {other}"),
        None => return false,
    }
    true
}

// ---- 100 sends in flight ------------------------------------------------------------------------

/// 100 sends to a receiver in another process that has stopped reading; then `end` happens to it.
fn hundred_in_flight(test: &str, domain: &Arc<Domain>, pool: &SharedBufferManager, stop: bool) {
    let mut receiver = Child::start(test, "receive", "hold");
    let addr = receiver.expect("port", SOON).parse().expect("an address");
    // Then all of them are done, sooner or later, and it is silence that tells of the end.
    let alone = domain.fabric().provider().delivers_alone;
    let silence = (stop && alone).then_some(SEND_DEADLINE);
    let config = common::sending()
        .outgoing(|out| {
            out.depth(SENDS as u32)
                // Who is killed is noticed without one, however late; and who is silent, too.
                .deadline((stop && !alone).then_some(SEND_DEADLINE))
        })
        .connection(|c| {
            c.unresponsive_after(silence.map(|limit| limit / 2))
                .lost_after(silence)
        });
    let mut sender = SendEndpointZeroCopy::connect(domain, addr, config).expect("begins");
    sender.wait_connected().expect("connects");
    receiver.expect("connected", SOON);
    for key in 0..SENDS {
        let mut buffer = pool.try_acquire().expect("100 are free");
        buffer[..8].copy_from_slice(&key.to_le_bytes());
        let payload = buffer.freeze(SEND_SIZE - 100);
        sender.send_data(payload, b"header", key).expect("room");
    }
    let mut events = Vec::new();
    sender.poll(&mut events).expect("polls");
    // A machine that stood still meanwhile has had the deadline in that very poll.
    assert!(
        alone || !sender.pending().is_empty() || (stop && send_end(&events).is_some()),
        "the kernel took everything"
    );
    let bound = if stop {
        receiver.stop();
        SEND_DEADLINE + NOTICED_WITHIN
    } else {
        receiver.kill();
        NOTICED_WITHIN
    };
    drive("all 100 outcomes", within(bound), || {
        sender.poll(&mut events).expect("polls");
        send_end(&events).is_some()
    });
    let reason = send_end(&events).expect("ended");
    let expected = match reason {
        CloseReason::PeerLost { .. } => !stop,
        CloseReason::SendDeadline { .. } => stop && !alone,
        CloseReason::PeerSilent { .. } => stop && alone,
        _ => false,
    };
    assert!(expected, "{reason}");
    assert!(matches!(
        events.last(),
        Some(SendEvent::Connection(ConnectionEvent::Disconnected(_)))
    ));
    assert_eq!(check_payloads(&events), SENDS);
    assert_balanced(&sender);
    drop(events);
    assert_eq!(pool.free_count() as u64, SENDS, "all payloads are back");
}

/// Each key has one outcome, with its own payload; gives their number.
fn check_payloads(events: &[SendEvent]) -> u64 {
    for event in events {
        if let SendEvent::Completed { key, payload } | SendEvent::Failed { key, payload, .. } =
            event
        {
            assert_eq!(bytes_of(payload)[..8], key.to_le_bytes());
        }
    }
    let outcomes = outcomes(events);
    assert!(outcomes.values().all(|o| o.len() == 1), "{outcomes:?}");
    outcomes.len() as u64
}

#[test]
fn a_killed_receiver_gives_all_keys_and_payloads_back() {
    if in_role() {
        return;
    }
    let _alone = alone();
    let _dog = Watchdog::with("killed receiver", 60 * SOON);
    let Some(domain) = domain() else { return };
    let pool = pool(&domain, SENDS as u32, SEND_SIZE);
    for _ in 0..rounds(10, 100) {
        let test = "a_killed_receiver_gives_all_keys_and_payloads_back";
        hundred_in_flight(test, &domain, &pool, false);
    }
}

#[test]
fn a_stopped_receiver_gives_all_keys_and_payloads_back() {
    if in_role() {
        return;
    }
    let _alone = alone();
    let _dog = Watchdog::with("stopped receiver", 60 * SOON);
    let Some(domain) = domain() else { return };
    let pool = pool(&domain, SENDS as u32, SEND_SIZE);
    for _ in 0..rounds(5, 100) {
        let test = "a_stopped_receiver_gives_all_keys_and_payloads_back";
        hundred_in_flight(test, &domain, &pool, true);
    }
}

#[test]
fn a_killed_sender_is_noticed_and_its_buffers_come_back() {
    if in_role() {
        return;
    }
    let _alone = alone();
    let _dog = Watchdog::with("killed sender", 60 * SOON);
    let Some(domain) = domain() else { return };
    let config = ReceiveConfig::default()
        .incoming(|incoming| incoming.slots(64).credits(16))
        .connection(|c| c.max_connections(4));
    let mut receiver = ReceiveEndpoint::listen(&domain, any_port(), config).expect("listens");
    let mut random = Random::from_printed_seed("killed sender");
    for round in 0..rounds(10, 100) {
        let addr = receiver.local_addr();
        let test = "a_killed_sender_is_noticed_and_its_buffers_come_back";
        let sender = Child::start(test, "send", addr);
        let mut events = Vec::new();
        let wanted = 1 + random.below(500) as usize;
        // Every other time all messages are held, so that none but the reserved receives are
        // posted.
        let hold = round % 2 == 1;
        let enough = if hold { 16 } else { wanted };
        let mut arrived = 0;
        drive("messages", SOON, || {
            receiver.poll(&mut events).expect("polls");
            if !hold {
                arrived += common::messages(&mut events).len();
            } else {
                let held = |e: &&ReceiveEvent| matches!(e, ReceiveEvent::Message(_));
                arrived = events.iter().filter(held).count();
            }
            arrived >= enough
        });
        sender.kill();
        drive("the loss", within(NOTICED_WITHIN), || {
            receiver.poll(&mut events).expect("polls");
            !receive_ends(&events).is_empty()
        });
        let (_, reason) = receive_ends(&events)[0];
        assert!(matches!(reason, CloseReason::PeerLost { .. }), "{reason}");
        events.clear();
        assert_eq!(receiver.connections(), 0);
        assert_eq!(receiver.pool().free_count(), 64, "all buffers are back");
    }
}

// ---- the tail of a run --------------------------------------------------------------------------

/// Reads slowly, holds messages for a while, until the connection ended; gives the numbers that
/// arrived.
fn read_slowly(receiver: &mut ReceiveEndpoint, random: &mut Random) -> (Vec<u64>, CloseReason) {
    let (mut numbers, mut held, mut events) = (Vec::new(), Vec::new(), Vec::new());
    let mut end = None;
    drive("the end", 3 * SOON, || {
        receiver.poll(&mut events).expect("polls");
        for event in events.drain(..) {
            match event {
                ReceiveEvent::Message(message) => {
                    let number = message.payload()[..8].try_into().expect("8 bytes");
                    numbers.push(u64::from_le_bytes(number));
                    held.push(message);
                }
                ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                    end = Some(reason)
                }
                _ => {}
            }
        }
        if random.below(3) == 0 {
            std::thread::sleep(Duration::from_micros(random.below(2000)));
        }
        // Dropped later and not in order: credits come in odd portions.
        if random.below(4) == 0 && !held.is_empty() {
            held.swap_remove(random.below(held.len() as u64) as usize);
        }
        if held.len() > 6 {
            held.clear();
        }
        end.is_some()
    });
    (numbers, end.expect("ended"))
}

#[test]
fn everything_sent_before_a_polite_close_arrives() {
    const NAME: &str = "everything_sent_before_a_polite_close_arrives";
    if in_role() {
        return;
    }
    let _alone = alone();
    let _dog = Watchdog::with(NAME, 400 * SOON);
    let Some(domain) = domain() else { return };
    let mut random = Random::from_printed_seed(NAME);
    for round in 0..rounds(10, 1000) {
        let config = ReceiveConfig::default()
            .incoming(|incoming| {
                incoming
                    .slots(10 + random.below(20) as u32)
                    .credits(4 + random.below(8) as u32)
            })
            .connection(|c| c.max_connections(1));
        let mut receiver = ReceiveEndpoint::listen(&domain, any_port(), config).expect("listens");
        let addr = receiver.local_addr();
        let (count, size) = (1 + random.below(150), 8 + random.below(40_000) as usize);
        let reason = if round % 3 == 0 {
            let mut sender = Child::start(NAME, "send and close", format!("{addr} {count} {size}"));
            let (numbers, end) = read_slowly(&mut receiver, &mut random);
            assert_eq!(numbers, (0..count).collect::<Vec<_>>(), "round {round}");
            assert_eq!(end, CloseReason::Finished, "round {round}");
            let reason = sender.expect("closed", SOON);
            sender.finish(SOON);
            reason
        } else {
            let domain = Arc::clone(&domain);
            let sender = std::thread::spawn(move || run_send_and_close(&domain, addr, count, size));
            let (numbers, end) = read_slowly(&mut receiver, &mut random);
            assert_eq!(numbers, (0..count).collect::<Vec<_>>(), "round {round}");
            assert_eq!(end, CloseReason::Finished, "round {round}");
            sender.join().expect("no panic")
        };
        assert_eq!(reason, CloseReason::Finished.to_string(), "round {round}");
    }
}

// ---- random points ------------------------------------------------------------------------------

#[test]
fn a_receiver_that_dies_at_any_point_leaves_nothing_behind() {
    const NAME: &str = "a_receiver_that_dies_at_any_point_leaves_nothing_behind";
    if in_role() {
        return;
    }
    let _alone = alone();
    let _dog = Watchdog::with(NAME, 100 * SOON);
    let Some(domain) = domain() else { return };
    let mut random = Random::from_printed_seed(NAME);
    let pool = pool(&domain, 32, 64 * 1024);
    let fds = fd_count();
    for round in 0..rounds(10, 200) {
        let mut receiver = Child::start(NAME, "receive", "read");
        let addr = receiver.expect("port", SOON).parse().expect("an address");
        let config = common::sending().connection(|c| c.connect_timeout(millis(1000)));
        let mut sender = SendEndpointZeroCopy::connect(&domain, addr, config).expect("begins");
        let dies = Instant::now() + Duration::from_micros(random.below(20_000));
        let (mut events, mut posted, mut reported, mut killed) = (Vec::new(), 0_u64, 0, false);
        drive("the end", within(NOTICED_WITHIN + millis(1020)), || {
            if !killed && Instant::now() >= dies {
                receiver.kill();
                killed = true;
            }
            if let Some(mut buffer) = pool.try_acquire() {
                buffer[..8].copy_from_slice(&posted.to_le_bytes());
                let payload = buffer.freeze(8 + random.below(60_000) as usize);
                posted += u64::from(sender.send_data(payload, b"h", posted).is_ok());
            }
            sender.poll(&mut events).expect("polls");
            if events.len() > 20 && send_end(&events).is_none() {
                // Gives buffers back; what came is checked as it goes.
                reported += check_payloads(&events);
                events.clear();
            }
            send_end(&events).is_some()
        });
        let stats = sender.stats();
        assert_eq!(stats.posted, posted, "round {round}");
        assert_eq!(
            stats.posted,
            stats.completed + stats.failed,
            "round {round}"
        );
        reported += check_payloads(&events);
        assert_eq!(reported, posted, "round {round}: each key once");
        drop((events, sender));
        assert_eq!(pool.free_count(), 32, "round {round}");
        drop(receiver);
        assert_fds_back(fds, SOON, || ());
    }
}
