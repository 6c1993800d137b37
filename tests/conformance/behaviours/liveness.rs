//! A peer that is stopped: unresponsive, responsive when it goes on, lost when it does not.

use std::time::Duration;

use fabricast::{ConnectionEvent, SendEvent};

use crate::common::{SOON, child, drive};
use crate::on::{On, assert_all_back, kill};
use crate::sender::{Sender, config};
use crate::table::Shown;
use crate::told::Told;

const UNRESPONSIVE: Duration = Duration::from_millis(400);
const LOST: Duration = Duration::from_millis(1600);

pub(crate) fn liveness(on: &On) -> Shown {
    let (receiver, addr) = on.receiver("slots=12 depth=4 peers=1");
    let mut sender = on.sender("watch", &addr, "sizes=100");
    sender.expect("connected", SOON);
    // An idle peer is not silent.
    std::thread::sleep(2 * UNRESPONSIVE);
    receiver.stop();
    sender.expect("unresponsive", SOON);
    receiver.go_on();
    sender.expect("responsive", SOON);
    receiver.stop();
    sender.expect("unresponsive", SOON);
    // With sends in flight: they come back.
    sender.say("send");
    let reason = assert_all_back(&mut sender, SOON);
    assert!(reason.contains("silent"), "{reason}");
    kill(receiver);
    Shown::Works
}

/// Tells the verdicts; sends what it may when it is told to.
pub(crate) fn watch(told: &Told) {
    let patience = config(told)
        .connection(|c| {
            c.unresponsive_after(Some(UNRESPONSIVE))
                .lost_after(Some(LOST))
        })
        .outgoing(|out| out.deadline(None));
    let mut sender = Sender::with(told, patience);
    sender.endpoint.wait_connected().expect("connects");
    let (orders, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        while let Some(order) = child::hear() {
            let _ = orders.send(order);
        }
    });
    child::tell("connected");
    drive("the last verdict", 3 * SOON, || {
        sender.poll();
        for event in &sender.events {
            match event {
                SendEvent::Connection(ConnectionEvent::Unresponsive) => child::tell("unresponsive"),
                SendEvent::Connection(ConnectionEvent::Responsive) => child::tell("responsive"),
                _ => {}
            }
        }
        sender
            .events
            .retain(|e| matches!(e, SendEvent::Connection(ConnectionEvent::Disconnected(_))));
        if heard.try_recv().is_ok() {
            while sender.try_send() {}
            assert!(sender.posted > 0, "something was sent");
        }
        sender.ended().is_some()
    });
    sender.report(sender.ended());
}
