//! Who is refused, and who is not there.

use std::time::Instant;

use fabricast::endpoint::RefusalCode;

use crate::common::SOON;
use crate::on::{On, expect_sent, finish_receiver};
use crate::table::Shown;

pub(crate) fn refusal(on: &On) -> Shown {
    let (mut receiver, addr) = on.receiver("asks=raw");
    let mut sender = on.sender("send", &addr, "n=1 mode=prefixed");
    sender.expect("no connection", SOON);
    let told = format!("0 0 0 refused {:?}", RefusalCode::HEADER_MODE);
    assert_eq!(sender.expect("sent", SOON), told);
    let mut sender = on.sender("send", &addr, "n=3 mode=raw");
    expect_sent(&mut sender, 3);
    finish_receiver(&mut receiver, 3);
    Shown::Works
}

/// To an address where nobody is any more: an answer within the connect timeout.
pub(crate) fn nobody(on: &On) -> Shown {
    let (mut receiver, addr) = on.receiver("");
    receiver.say("drop");
    receiver.finish(SOON);
    let begun = Instant::now();
    let mut sender = on.sender("send", &addr, "n=1 connect=700");
    let reason = sender.expect("no connection", SOON);
    assert!(begun.elapsed() < SOON, "{reason}");
    sender.finish(SOON);
    Shown::Works
}
