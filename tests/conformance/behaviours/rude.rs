//! Peers that go without a goodbye.

use std::time::Duration;

use fabricast::fabric::EndpointKind;

use crate::common::SOON;
use crate::on::{On, assert_all_back, expect_sent};
use crate::rows::row_named;
use crate::table::Shown;

/// A sender that is dropped without a goodbye is noticed, and the next one is served.
pub(crate) fn rude_sender(on: &On) -> Shown {
    let (mut receiver, addr) = on.receiver("ends=2");
    let mut sender = on.sender("send", &addr, "n=5 sizes=1000 rude=100");
    sender.expect("dropped", 2 * SOON);
    let over = receiver.expect("over", SOON);
    // Over FI_EP_MSG the end of the connection itself says it.
    let said = match row_named(on.provider).kind {
        EndpointKind::Msg => "the peer was lost",
        EndpointKind::Rdm => "given up",
    };
    assert!(over.contains(said), "{over}");
    let mut sender = on.sender("send", &addr, "who=1 n=5 sizes=1000");
    expect_sent(&mut sender, 5);
    let received = receiver.expect("received", SOON);
    assert!(received.starts_with("10 "), "{received}");
    receiver.finish(SOON);
    Shown::Works
}

/// A receiver that goes without a goodbye is noticed: it says so, or, where that gets lost with its
/// endpoint, its silence does.
pub(crate) fn rude_receiver(on: &On) -> Shown {
    let (mut receiver, addr) = on.receiver("");
    let mut sender = on.sender(
        "send",
        &addr,
        "n=1000000 flood=20 sizes=1000,100000 lost=6000",
    );
    sender.expect("flooding", SOON);
    receiver.say("drop");
    receiver.finish(SOON);
    assert_all_back(&mut sender, Duration::from_secs(35));
    Shown::Works
}
