//! Connecting again: what was in flight comes back first, nothing is sent again by itself, and the
//! next connection works.

use std::time::{Duration, Instant};

use fabricast::endpoint::{ConnectionId, ReconnectPolicy};
use fabricast::{ConnectionEvent, ReceiveEvent, SendEvent};

use crate::common::{SOON, after, child, drive};
use crate::on::On;
use crate::receiver::listen;
use crate::sender::{Sender, config};
use crate::table::Shown;
use crate::told::Told;

const CUTS: usize = 2;
const BETWEEN_CUTS: u64 = 20;

pub(crate) fn reconnect(on: &On) -> Shown {
    let (mut receiver, addr) = on.listener("cut", "slots=40 depth=8 peers=4");
    let mut sender = on.sender("send again", &addr, "sizes=1000,30000");
    let sent = sender.expect("again", 3 * SOON);
    sender.finish(SOON);
    let received = receiver.expect("received", SOON);
    receiver.finish(SOON);
    // Each was sent once, so no more can arrive; what completed may be lost at a cut, and only
    // there.
    let number = |text: &str, i: usize| text.split(' ').nth(i).and_then(|n| n.parse::<u64>().ok());
    let (posted, received) = (number(&sent, 0), number(&received, 0));
    assert!(
        received <= posted && received >= Some(CUTS as u64 * BETWEEN_CUTS),
        "{sent}; {received:?}"
    );
    Shown::Works
}

/// Ends the first connections without a goodbye, each in the middle of what it gets; the last one
/// may end by itself.
pub(crate) fn cut(told: &Told) {
    let domain = told.domain();
    let mut receiver = listen(told, &domain);
    child::tell(format!("addr {}", receiver.local_addr()));
    let (mut events, mut total, mut here, mut over) = (Vec::new(), 0, 0, false);
    let mut cut: Vec<ConnectionId> = Vec::new();
    drive("the last goodbye", 3 * SOON, || {
        receiver.poll(&mut events).expect("polls");
        for event in events.drain(..) {
            match event {
                ReceiveEvent::Connection(_, ConnectionEvent::Connected(_)) => here = 0,
                ReceiveEvent::Message(message) => {
                    (total, here) = (total + 1, here + 1);
                    let connection = message.connection();
                    let is_due = here == BETWEEN_CUTS && cut.len() < CUTS;
                    if is_due && !cut.contains(&connection) {
                        cut.push(connection);
                    }
                }
                ReceiveEvent::Connection(connection, ConnectionEvent::Disconnected(_)) => {
                    over = !cut.contains(&connection)
                }
                _ => {}
            }
        }
        for connection in &cut {
            receiver.close_connection(*connection, Instant::now());
        }
        over
    });
    child::tell(format!("received {total}"));
}

pub(crate) fn send_again(told: &Told) {
    let policy = ReconnectPolicy::fixed(Duration::from_millis(50));
    let mut sender = Sender::with(told, config(told).connection(|c| c.reconnect(policy)));
    let (mut connections, mut reconnects) = (0, 0);
    let mut goal = u64::MAX;
    drive("two cuts and a good end", 3 * SOON, || {
        while sender.posted < goal && sender.try_send() {}
        sender.endpoint.poll(&mut sender.events).expect("polls");
        for event in &sender.events {
            match event {
                SendEvent::Connection(ConnectionEvent::Connected(_)) => connections += 1,
                SendEvent::Completed { .. } => sender.completed += 1,
                SendEvent::Failed { .. } => sender.failed += 1,
                SendEvent::Connection(ConnectionEvent::Reconnecting { .. }) => {
                    reconnects += 1;
                    assert_eq!(
                        sender.completed + sender.failed,
                        sender.posted,
                        "all came back before"
                    );
                }
                SendEvent::Connection(ConnectionEvent::Disconnected(reason)) => panic!("{reason}"),
                _ => {}
            }
        }
        sender.events.clear();
        if connections == CUTS + 1 && goal == u64::MAX {
            goal = sender.posted + BETWEEN_CUTS;
        }
        sender.completed + sender.failed == goal
    });
    assert!(reconnects >= CUTS, "{reconnects}");
    sender.endpoint.begin_close(after(SOON));
    drive("the goodbye", 2 * SOON, || {
        sender.poll();
        sender.ended().is_some()
    });
    child::tell(format!(
        "again {} {} {}",
        sender.posted, sender.completed, sender.failed
    ));
}
