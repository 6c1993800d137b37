//! One pool of receive buffers for all connections of a listener.

use crate::common::SOON;
use crate::on::{On, expect_sent, finish_receiver};
use crate::table::Shown;

/// The application keeps what two peers send until the pool is empty: it is told, both stall, and
/// both go on when it lets go.
pub(crate) fn shared_pool(on: &On) -> Shown {
    let (mut receiver, addr) = on.receiver("hold=100 slots=12 depth=8 peers=2 ends=2");
    let words = |who| format!("who={who} n=30 sizes=100,20000 gated=1");
    let mut senders = [1, 2].map(|who| on.sender("send", &addr, &words(who)));
    for sender in &mut senders {
        sender.expect("connected", SOON);
    }
    senders.iter_mut().for_each(|sender| sender.say("go"));
    receiver.expect("starved", SOON);
    receiver.say("release");
    for sender in &mut senders {
        expect_sent(sender, 30);
    }
    finish_receiver(&mut receiver, 60);
    Shown::Works
}
