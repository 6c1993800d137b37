//! Many connections, one after the other.

use crate::common::SOON;
use crate::on::{FINISHED, On, expect_sent};
use crate::table::Shown;

/// Many connections, one after the other, some of them rude.
pub(crate) fn churn(on: &On) -> Shown {
    let (mut receiver, addr) = on.receiver("ends=99 slots=48 depth=4 peers=8");
    for round in 0..12 {
        let rude = round % 4 == 3;
        let words = format!("who={round} n=10 sizes=100,50000");
        let words = if rude { words + " rude=1" } else { words };
        let mut sender = on.sender("send", &addr, &words);
        if rude {
            sender.expect("dropped", 2 * SOON);
        } else {
            expect_sent(&mut sender, 10);
            receiver.expect(&format!("over {FINISHED}"), SOON);
        }
    }
    receiver.say("drop");
    let received = receiver.expect("received", 2 * SOON);
    // What a rude one sent last may be lost with it.
    let messages = received
        .split(' ')
        .next()
        .and_then(|n| n.parse::<u64>().ok());
    assert!(
        messages.is_some_and(|n| (90..=120).contains(&n)),
        "{received}"
    );
    receiver.finish(SOON);
    Shown::Works
}
