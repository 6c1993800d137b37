//! The receiving process.

use std::sync::Arc;
use std::time::Duration;

use fabricast::buffer::SharedBufferManager;
use fabricast::endpoint::{ConnectionId, ConnectionInfo, LongMessages, ReceiveConfig};
use fabricast::{ConnectionEvent, Domain, ReceiveEndpoint, ReceiveEvent};

use crate::NAP;
use crate::common::{SOON, anywhere, child, drive};
use crate::message::{Checker, MAX_MESSAGE};
use crate::told::{Told, mode};

pub(crate) fn listen(told: &Told, domain: &Arc<Domain>) -> ReceiveEndpoint {
    let mut config = ReceiveConfig::default()
        .incoming(|incoming| {
            incoming
                .max_message(told.number("max", MAX_MESSAGE as u64) as usize)
                .slots(told.number("slots", 32) as u32)
                .credits(told.number("depth", 8) as u32)
        })
        .connection(|c| {
            c.max_connections(told.number("peers", 4) as u32)
                .windows(told.number("windows", 0) as u32)
                .connect_timeout(Duration::from_secs(2))
        });
    if told.text("long").is_some() {
        let (slots, size) = (told.number("longslots", 2), told.number("long", 0));
        let pool = SharedBufferManager::allocate(slots as u32, size as usize).expect("memory");
        config = config.incoming(|i| i.long_messages(LongMessages::new(pool)));
    }
    if let Some(asked) = told.text("asks") {
        config = config.header_mode(mode(asked));
    }
    let at = told.text("at");
    let at = at.map_or_else(|| anywhere(domain), |at| at.parse().expect("an address"));
    ReceiveEndpoint::listen(domain, at, config).expect("listens")
}

/// Receives until so many connections (`ends`) are over, keeping the first `hold` messages until
/// then or until told.
pub(crate) fn receive(told: &Told) {
    let domain = told.domain();
    let mut receiver = listen(told, &domain);
    child::tell(format!("addr {}", receiver.local_addr()));
    let (orders, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        while let Some(order) = child::hear() {
            let _ = orders.send(order);
        }
    });
    let (mut checker, mut held, mut ends) = (Checker::default(), Vec::new(), 0);
    let (mut events, mut hold) = (Vec::new(), told.number("hold", 0) as usize);
    let slowness = Duration::from_millis(told.number("slow", 0));
    drive("the ends of all connections", 3 * SOON, || {
        if receiver.poll(&mut events).expect("polls") == 0 {
            receiver.wait(NAP).expect("sleeps");
        }
        for event in events.drain(..) {
            match event {
                ReceiveEvent::Message(message) => {
                    checker.check(message.header(), message.payload());
                    std::thread::sleep(slowness);
                    if held.len() < hold {
                        held.push(message);
                        child::tell(format!("held {}", held.len()));
                    }
                }
                ReceiveEvent::Connection(connection, ConnectionEvent::Connected(info)) => {
                    tell_connected(connection, &info)
                }
                ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                    child::tell(format!("over {reason}"));
                    ends += 1;
                }
                ReceiveEvent::Starved { .. } => child::tell("starved"),
                _ => {}
            }
        }
        match heard.try_recv().as_deref() {
            Ok("release") => (hold, held) = (0, Vec::new()),
            Ok("drop") => return true,
            _ => {}
        }
        ends == told.number("ends", 1)
    });
    let stats = receiver.stats();
    child::tell(format!(
        "received {} strays {}",
        checker.messages, stats.strays
    ));
    drop(receiver);
    child::tell(format!(
        "failures {}",
        fabricast::stats::process().close_failures
    ));
}

fn tell_connected(connection: ConnectionId, info: &ConnectionInfo) {
    let peer = info.peer.map(|peer| peer.to_string());
    child::tell(format!(
        "connected {connection} {}",
        peer.unwrap_or_default()
    ));
}
