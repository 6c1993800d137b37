//! Messages of all sizes and header modes, back-pressure, several senders.

use crate::common::SOON;
use crate::on::{FINISHED, On, expect_sent, finish_receiver};
use crate::table::Shown;

/// Sizes around what providers inject, copy, split and handle by rendezvous.
pub(crate) const SIZES: &str =
    "0,1,40,64,104,200,1000,4000,4096,9000,16360,16400,65000,262144,1048576,1048500";

pub(crate) fn sizes(on: &On) -> Shown {
    for (mode, level) in [
        ("prefixed", "sent"),
        ("fixed", "sent"),
        ("raw", "delivered"),
    ] {
        let (mut receiver, addr) = on.receiver("");
        let words = format!("n=64 sizes={SIZES} mode={mode} level={level}");
        let mut sender = on.sender("send", &addr, &words);
        expect_sent(&mut sender, 64);
        assert_eq!(receiver.expect("over", SOON), FINISHED);
        finish_receiver(&mut receiver, 64);
    }
    Shown::Works
}

pub(crate) fn back_pressure(on: &On) -> Shown {
    let (mut receiver, addr) = on.receiver("hold=100 slots=10 depth=4 peers=1");
    let mut sender = on.sender("stall", &addr, "n=40 credits=10 sizes=1000,70000");
    sender.expect("stalled", 2 * SOON);
    receiver.say("release");
    expect_sent(&mut sender, 40);
    finish_receiver(&mut receiver, 40);
    Shown::Works
}

pub(crate) fn two_senders(on: &On) -> Shown {
    let (mut receiver, addr) = on.receiver("ends=2");
    let words = |who| format!("who={who} n=200 sizes=1,3000,100000");
    let mut senders = [1, 2].map(|who| on.sender("send", &addr, &words(who)));
    for sender in &mut senders {
        expect_sent(sender, 200);
    }
    finish_receiver(&mut receiver, 400);
    Shown::Works
}
