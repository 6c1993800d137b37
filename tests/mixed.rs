//! A sender on one version of libfabric and a receiver on another, in two processes, both ways.
//!
//! FABRICAST_LIBFABRIC_2 names the second library; the first is the one that the other tests use.

mod common;

use std::time::Duration;

use common::child::{self, Child};
use common::{
    SOON, Watchdog, after, any_port, buffer, domain, drive, outcomes, pattern, pool, receive_ends,
    send_end,
};
use fabricast::endpoint::{Level, ReceiveConfig, SendConfig};
use fabricast::{PeerAddr, ReceiveEndpoint, ReceiveEvent, SendEndpointZeroCopy};

const NAME: &str = "sender_and_receiver_may_have_different_versions";

/// Sizes on both sides of what the provider copies, injects and splits.
const SIZES: [usize; 8] = [0, 1, 64, 128, 129, 4096, 65_000, 1_000_000];
const ROUNDS: u64 = 20;
const MAX_MESSAGE: usize = 1 << 20;

fn receive() {
    let domain = domain().expect("a library");
    child::tell(format!("library {}", domain.report().library));
    let config = ReceiveConfig::default()
        .max_message(MAX_MESSAGE)
        .slots(16)
        .depth(8)
        .max_connections(1);
    let mut receiver = ReceiveEndpoint::listen(&domain, any_port(), config).expect("listens");
    child::tell(format!("port {}", receiver.local_addr()));
    let (mut events, mut next) = (Vec::new(), 0_u64);
    drive("the end", 3 * SOON, || {
        receiver.poll(&mut events).expect("polls");
        events.retain(|event| {
            let ReceiveEvent::Message(message) = event else {
                return true;
            };
            let size = SIZES[next as usize % SIZES.len()];
            assert_eq!(message.header(), next.to_le_bytes());
            assert!(message.payload() == pattern(next, size), "message {next}");
            next += 1;
            false
        });
        !receive_ends(&events).is_empty()
    });
    let (_, reason) = receive_ends(&events)[0];
    child::tell(format!("received {next} {reason}"));
}

fn send(addr: PeerAddr, level: Level) {
    let domain = domain().expect("a library");
    child::tell(format!("library {}", domain.report().library));
    let pool = pool(&domain, 8, MAX_MESSAGE);
    let config = SendConfig::default().level(level);
    let mut sender = SendEndpointZeroCopy::connect(&domain, addr, config).expect("begins");
    sender.wait_connected().expect("connects");
    let (mut events, mut done) = (Vec::new(), 0);
    for key in 0..ROUNDS * SIZES.len() as u64 {
        let bytes = pattern(key, SIZES[key as usize % SIZES.len()]);
        let mut payload = None;
        drive("a send", SOON, || {
            sender.poll(&mut events).expect("polls");
            done += outcomes(&events).len();
            events.clear();
            if pool.free_count() > 0 || payload.is_some() {
                let p = payload
                    .take()
                    .unwrap_or_else(|| buffer(&pool, &bytes).into());
                let sent = sender.send_data(p, &key.to_le_bytes(), key);
                payload = sent.err().map(|refused| refused.payload);
                return payload.is_none();
            }
            false
        });
    }
    let ends = sender.close(after(SOON)).expect("closes");
    done += outcomes(&ends).len();
    let reason = send_end(&ends).expect("ended");
    child::tell(format!("sent {done} {reason}"));
}

/// One run; `first` and `second` are values of FABRICAST_LIBFABRIC, empty for the system's library.
fn run(sends: &str, receives: &str, role: &str) {
    let env = |library| [("FABRICAST_LIBFABRIC", library)];
    let mut receiver = Child::with_env(NAME, "receive", "", &env(receives));
    let receiving = receiver.expect("library", SOON);
    let addr = receiver.expect("port", SOON);
    let mut sender = Child::with_env(NAME, role, addr, &env(sends));
    let sending = sender.expect("library", SOON);
    println!("{role}: {sending} to {receiving}");
    assert_ne!(sending, receiving, "two versions");
    let count = ROUNDS * SIZES.len() as u64;
    let finished = "finished: both sides said goodbye";
    let limit = 3 * SOON;
    let received = receiver.expect("received", limit);
    assert_eq!(received, format!("{count} {finished}"));
    assert_eq!(sender.expect("sent", limit), format!("{count} {finished}"));
    receiver.finish(SOON);
    sender.finish(SOON);
}

#[test]
fn sender_and_receiver_may_have_different_versions() {
    let _dog = Watchdog::with(NAME, Duration::from_secs(150));
    let address = || child::argument().parse().expect("an address");
    match child::role().as_deref() {
        Some("receive") => return receive(),
        Some("send") => return send(address(), Level::Sent),
        Some("deliver") => return send(address(), Level::Delivered),
        Some(other) => panic!("no role {other}"),
        None => {}
    }
    let Some(second) = std::env::var("FABRICAST_LIBFABRIC_2")
        .ok()
        .filter(|path| !path.is_empty())
    else {
        println!("SKIPPED: FABRICAST_LIBFABRIC_2 does not name a second libfabric");
        return;
    };
    let first = std::env::var("FABRICAST_LIBFABRIC").unwrap_or_default();
    for role in ["send", "deliver"] {
        run(&first, &second, role);
        run(&second, &first, role);
    }
}
