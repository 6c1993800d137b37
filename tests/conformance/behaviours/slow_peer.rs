//! Closing while the peer is slow: within the deadline everything arrives, and the deadline holds.

use std::time::{Duration, Instant};

use crate::common::{SOON, after, child, drive};
use crate::on::{FINISHED, On, assert_all_back, finish_receiver};
use crate::sender::Sender;
use crate::table::Shown;
use crate::told::Told;

pub(crate) fn slow_peer(on: &On) -> Shown {
    let (mut receiver, addr) = on.receiver("slow=25 slots=10 depth=4 peers=1");
    let mut sender = on.sender("close", &addr, "n=20 within=9000 sizes=1000,70000");
    let sent = sender.expect("sent", 2 * SOON);
    assert_eq!(sent, format!("20 20 0 {FINISHED}"));
    finish_receiver(&mut receiver, 20);

    // A peer that is in its handler for longer than the deadline says no goodbye: the close is over
    // by then all the same.
    let (mut receiver, addr) = on.receiver("slow=2000 slots=10 depth=4 peers=1 ends=9");
    let mut sender = on.sender("close", &addr, "n=3 pause=300 within=400 sizes=1000");
    sender.expect("closing", SOON);
    let begun = Instant::now();
    let reason = assert_all_back(&mut sender, SOON);
    assert!(
        begun.elapsed() < Duration::from_millis(1500),
        "{:?}",
        begun.elapsed()
    );
    assert!(
        reason.contains("not complete before its deadline"),
        "{reason}"
    );
    receiver.say("drop");
    Shown::Works
}

/// Sends `n`, as fast as it may, and closes as soon as the last is posted.
pub(crate) fn close(told: &Told) {
    let mut sender = Sender::connect(told);
    sender.endpoint.wait_connected().expect("connects");
    let n = told.number("n", 0);
    drive("all posted", 2 * SOON, || {
        while sender.posted < n && sender.try_send() {}
        sender.poll();
        sender.posted == n
    });
    let until = after(Duration::from_millis(told.number("pause", 0)));
    drive("the pause", SOON, || {
        sender.poll();
        Instant::now() >= until
    });
    let within = Duration::from_millis(told.number("within", 0));
    child::tell("closing");
    sender.endpoint.begin_close(after(within));
    drive("the end", 2 * SOON, || {
        sender.poll();
        sender.ended().is_some()
    });
    sender.report(sender.ended());
}
