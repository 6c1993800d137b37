//! Peers that are killed, and come back.

use std::time::Duration;

use crate::common::SOON;
use crate::on::{FINISHED, On, assert_all_back, expect_sent, kill};
use crate::table::Shown;

/// With sends in flight, small and large, every key comes back within the send deadline.
pub(crate) fn killed_receiver(on: &On) -> Shown {
    for sizes in ["1000", "1048576"] {
        let (receiver, addr) = on.receiver("hold=6 slots=10 depth=4 peers=1");
        let words = format!("n=1000000 flood=4 deadline=1500 idle=2500 sizes={sizes}");
        let mut sender = on.sender("send", &addr, &words);
        sender.expect("flooding", SOON);
        kill(receiver);
        if sizes == "1000" {
            // All may have completed; then only liveness tells.
            std::thread::sleep(Duration::from_millis(200));
            if let Some(line) = sender.heard() {
                assert!(line.starts_with("sent"), "{line}");
            }
            kill(sender);
        } else {
            let reason = assert_all_back(&mut sender, SOON);
            // "none": all had completed; only liveness would tell.
            let told = ["lost", "not done within", "none"];
            assert!(told.iter().any(|words| reason.contains(words)), "{reason}");
        }
    }
    Shown::Works
}

/// A sender that is killed holds nobody up.
pub(crate) fn killed_sender(on: &On) -> Shown {
    let (mut receiver, addr) = on.receiver("ends=99 peers=3");
    let mut first = on.sender(
        "send",
        &addr,
        "n=1000000 flood=20 who=7 sizes=1000,100000,200000",
    );
    first.expect("flooding", SOON);
    kill(first);
    let mut second = on.sender("send", &addr, "who=1 n=100 sizes=1000,200000");
    expect_sent(&mut second, 100);
    receiver.say("drop");
    let received = receiver.expect("received", SOON);
    let messages: u64 = received
        .split(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a count");
    assert!(messages >= 100, "{received}");
    receiver.finish(SOON);
    Shown::Works
}

/// The address is used again by another process: it is not taken for the old one.
pub(crate) fn restarted_receiver(on: &On) -> Shown {
    if on.provider == "shm" {
        return Shown::Hole("addresses carry the process id and are not used again");
    }
    let (first, addr) = on.receiver("hold=6 slots=10 depth=4 peers=1");
    let mut old = on.sender(
        "send",
        &addr,
        "n=1000000 flood=4 deadline=1500 idle=2500 who=9 sizes=300000",
    );
    old.expect("flooding", SOON);
    kill(first);
    let (mut second, again) = on.receiver(&format!("at={addr} ends=1"));
    assert_eq!(again, addr);
    let mut new = on.sender("send", &addr, "n=50 sizes=1,3000,100000");
    let sent = new.expect("sent", 3 * SOON);
    assert_eq!(sent, format!("50 50 0 {FINISHED}"));
    let received = second.expect("received", 2 * SOON);
    assert!(received.starts_with("50 "), "only the new one: {received}");
    // Where the provider connects again by itself, only liveness would tell; but every key is back.
    assert_all_back(&mut old, SOON);
    Shown::Works
}
