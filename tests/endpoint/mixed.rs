//! A sender on one version of libfabric and a receiver on another, in two processes, both ways.
//!
//! FABRICAST_LIBFABRIC_2 names the second library; the first is the one that the other tests use.

use std::time::Duration;

use fabricast::endpoint::{
    Access, Destination, Level, ReceiveConfig, WindowDescriptor, WindowEvent,
};
use fabricast::{
    ConnectionEvent, PeerAddr, ReceiveEndpoint, ReceiveEvent, Region, SendEndpointZeroCopy,
    SendEvent,
};

use crate::common;
use crate::common::child::{self, Child};
use crate::common::{
    SOON, Watchdog, after, any_port, buffer, domain, drive, outcomes, pattern, pool, receive_ends,
    send_end,
};

const NAME: &str = "sender_and_receiver_may_have_different_versions";

/// Sizes on both sides of what the provider copies, injects and splits.
const SIZES: [usize; 8] = [0, 1, 64, 128, 129, 4096, 65_000, 1_000_000];
const ROUNDS: u64 = 20;
const MAX_MESSAGE: usize = 1 << 20;

fn receive() {
    let domain = domain().expect("a library");
    child::tell(format!("library {}", domain.report().library));
    let config = ReceiveConfig::default()
        .incoming(|incoming| incoming.max_message(MAX_MESSAGE).slots(16).credits(8))
        .connection(|c| c.max_connections(1));
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
    let config = common::sending().outgoing(|out| out.level(level));
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
                payload = sent.err().map(|refused| refused.given);
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

/// A window of a megabyte that the other version writes and reads.
fn own() {
    let domain = domain().expect("a library");
    child::tell(format!("library {}", domain.report().library));
    let config = ReceiveConfig::default()
        .incoming(|incoming| incoming.max_message(4096))
        .connection(|c| c.windows(1).max_connections(1));
    let mut receiver = ReceiveEndpoint::listen(&domain, any_port(), config).expect("listens");
    child::tell(format!("port {}", receiver.local_addr()));
    let (mut events, mut window, mut wrote) = (Vec::new(), None, 0_u64);
    drive("the end", 3 * SOON, || {
        receiver.poll(&mut events).expect("polls");
        for event in &events {
            match event {
                ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_)) => {
                    let region = Region::host(MAX_MESSAGE).build().expect("memory");
                    let slice = region.slice(0..MAX_MESSAGE).expect("inside");
                    let exposed = receiver.windows(*connection).expose(slice, Access::all());
                    let exposed = exposed.expect("exposed");
                    let bytes = exposed.descriptor().to_bytes().map(|byte| byte.to_string());
                    child::tell(format!("window {}", bytes.join(".")));
                    window = Some(exposed);
                }
                ReceiveEvent::Window {
                    event: WindowEvent::PeerWrote { data, .. },
                    ..
                } => {
                    assert_eq!(u64::from(*data), wrote);
                    wrote += 1;
                }
                _ => {}
            }
        }
        let over = !receive_ends(&events).is_empty();
        if !over {
            events.clear();
        }
        over
    });
    let (_, reason) = receive_ends(&events)[0];
    child::tell(format!("received {wrote} {reason}"));
}

/// Writes each size with immediate data, reads it back, and compares.
fn operate(addr: PeerAddr) {
    let domain = domain().expect("a library");
    child::tell(format!("library {}", domain.report().library));
    let pool = pool(&domain, 8, MAX_MESSAGE);
    let config = common::sending();
    let mut sender = SendEndpointZeroCopy::connect(&domain, addr, config).expect("begins");
    sender.wait_connected().expect("connects");
    let line = child::hear().expect("a descriptor");
    let bytes = line.split('.').map(|byte| byte.parse().expect("a byte"));
    let descriptor = WindowDescriptor::parse(&bytes.collect::<Vec<u8>>()).expect("ours");
    let window = sender.windows().open(&descriptor).expect("opened");
    let mut events = Vec::new();
    let mut done = 0_u64;
    for (key, size) in (0..).zip(SIZES.into_iter().filter(|size| *size > 0)) {
        let bytes = pattern(key, size);
        let payload = buffer(&pool, &bytes);
        sender
            .windows()
            .write_with_data(payload, window.at(3), key as u32, key)
            .expect("posted");
        let into = pool.try_acquire().expect("a buffer");
        let mut into = Some(Destination::buffer(into, size));
        drive("an operation", SOON, || {
            sender.poll(&mut events).expect("polls");
            let mut over = false;
            for event in events.drain(..) {
                match event {
                    SendEvent::Window(WindowEvent::Written { .. }) => {
                        let into = into.take().expect("one write");
                        sender
                            .windows()
                            .read(into, window.at(3), key)
                            .expect("posted");
                    }
                    SendEvent::Window(WindowEvent::Read { into, .. }) => {
                        let buffer = into.into_buffer().expect("a buffer");
                        assert!(buffer[..size] == bytes, "{size} bytes");
                        over = true;
                    }
                    SendEvent::Connection(ConnectionEvent::Connected(_)) | SendEvent::Writable => {}
                    other => panic!("{other:?}"),
                }
            }
            over
        });
        done += 1;
    }
    let ends = sender.close(after(SOON)).expect("closes");
    let reason = send_end(&ends).expect("ended");
    child::tell(format!("sent {done} {reason}"));
}

fn run_one_sided(uses: &str, owns: &str) {
    let env = |library| [("FABRICAST_LIBFABRIC", library)];
    let mut owner = Child::with_env(NAME, "own", "", &env(owns));
    let owning = owner.expect("library", SOON);
    let addr = owner.expect("port", SOON);
    let mut user = Child::with_env(NAME, "operate", addr, &env(uses));
    let using = user.expect("library", SOON);
    println!("one-sided: {using} to {owning}");
    user.say(&owner.expect("window", SOON));
    let expected = format!("{} finished: both sides said goodbye", SIZES.len() - 1);
    assert_eq!(user.expect("sent", 3 * SOON), expected);
    assert_eq!(owner.expect("received", SOON), expected);
    owner.finish(SOON);
    user.finish(SOON);
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
        Some("own") => return own(),
        Some("operate") => return operate(address()),
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
    run_one_sided(&first, &second);
    run_one_sided(&second, &first);
}
