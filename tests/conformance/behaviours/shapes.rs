//! Header and payload as one run of memory, and as two messages: what providers need that take one
//! segment a message, asked of all others.

use crate::behaviours::messages::SIZES;
use crate::common::SOON;
use crate::on::{FINISHED, On, expect_sent, finish_receiver};
use crate::table::Shown;

pub(crate) fn headroom(on: &On) -> Shown {
    shaped(on, "headroom")
}

pub(crate) fn two_messages(on: &On) -> Shown {
    shaped(on, "two")
}

/// All sizes in every header mode, then a receiver that holds what it gets, then one that is
/// killed.
fn shaped(on: &On, shape: &str) -> Shown {
    for mode in ["prefixed", "fixed", "raw"] {
        let (mut receiver, addr) = on.receiver("");
        let words = format!("shape={shape} n=48 sizes={SIZES} mode={mode}");
        let mut sender = on.sender("send", &addr, &words);
        expect_sent(&mut sender, 48);
        assert_eq!(receiver.expect("over", SOON), FINISHED);
        finish_receiver(&mut receiver, 48);
    }
    let (mut receiver, addr) = on.receiver("hold=5 slots=20 depth=4 peers=1");
    let words = format!("shape={shape} n=40 sizes=1000,70000");
    let mut sender = on.sender("send", &addr, &words);
    receiver.expect("held 3", SOON);
    receiver.say("release");
    expect_sent(&mut sender, 40);
    finish_receiver(&mut receiver, 40);
    Shown::Works
}
