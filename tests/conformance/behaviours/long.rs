//! Messages that are longer than the receive buffers.

use std::time::Duration;

use fabricast::SendEvent;

use crate::common::{SOON, buffer, child, drive, pattern};
use crate::message::header;
use crate::on::{FINISHED, On, expect_sent, finish_receiver};
use crate::sender::Sender;
use crate::table::Shown;
use crate::told::Told;

/// Bytes of a receive buffer.
const MAX: usize = 4096;

/// Bytes of a slot for long messages.
const LONGEST: usize = (1 << 20) + 100;

/// Payloads that fit the buffers and such that don't, in turn; 24 bytes of header and 2 of its
/// length belong to the message.
const SIZES: &str = "100,4070,4071,1,5000,100000,0,1048576,4096";

/// Each keeps its place and its bytes; one that finds no slot waits; one that is longer than the
/// slots is refused, and says what fits.
pub(crate) fn long_messages(on: &On) -> Shown {
    let listens = format!("max={MAX} long={LONGEST} longslots=2");
    for level in ["sent", "delivered"] {
        let (mut receiver, addr) = on.receiver(&listens);
        let mut sender = on.sender("send", &addr, &format!("n=36 sizes={SIZES} level={level}"));
        expect_sent(&mut sender, 36);
        assert_eq!(receiver.expect("over", SOON), FINISHED);
        finish_receiver(&mut receiver, 36);
    }

    let (mut receiver, addr) = on.receiver(&format!("hold=2 {listens}"));
    let mut sender = on.sender("send", &addr, "n=5 sizes=300000");
    sender.expect("connected", SOON);
    for held in ["1", "2"] {
        assert_eq!(receiver.expect("held", 2 * SOON), held);
    }
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(sender.heard(), None, "both slots are held");
    assert_eq!(receiver.heard(), None, "both slots are held");
    receiver.say("release");
    expect_sent(&mut sender, 5);
    finish_receiver(&mut receiver, 5);

    let (mut receiver, addr) = on.receiver(&listens);
    let mut sender = on.sender("too long", &addr, &format!("sizes={}", LONGEST + 1));
    assert_eq!(sender.expect("limit", 2 * SOON), LONGEST.to_string());
    sender.expect("sent", SOON);
    sender.finish(SOON);
    assert_eq!(receiver.expect("over", SOON), FINISHED);
    finish_receiver(&mut receiver, 1);
    Shown::Works
}

/// Sends one message that is longer than the peer takes, tells the limit that it hears of, and
/// sends one that fits.
pub(crate) fn send_too_long(told: &Told) {
    let mut sender = Sender::connect(told);
    sender.endpoint.wait_connected().expect("connects");
    let too_long = buffer(&sender.pool, &pattern(0, LONGEST + 1));
    let sent = sender.endpoint.send_data(too_long, &[], 7);
    sent.expect("offered");
    let mut limit = None;
    drive("the refusal", SOON, || {
        sender.endpoint.poll(&mut sender.events).expect("polls");
        for event in sender.events.drain(..) {
            if let SendEvent::Failed {
                key: 7,
                error,
                payload,
            } = event
            {
                assert_eq!(payload.len_bytes(), LONGEST + 1, "given back");
                limit = Some(error.limit_bytes.expect("a limit"));
            }
        }
        limit.is_some()
    });
    child::tell(format!("limit {}", limit.unwrap_or_default()));
    let fits = LONGEST - 2 - crate::message::HEADER;
    let payload = buffer(&sender.pool, &pattern(0, fits));
    let sent = sender.endpoint.send_data(payload, &header(0, 0, fits), 8);
    sent.expect("the connection stands");
    sender.finish();
}
