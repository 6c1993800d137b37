//! Where headers end: each mode tells the receiver as much as it promises.

use fabricast::endpoint::{HeaderMode, SendErrorKind};
use fabricast::{ConnectionEvent, ReceiveEvent, SendEvent};

use crate::common::{SOON, buffer, child, drive, pattern};
use crate::on::On;
use crate::receiver::listen;
use crate::sender::{Sender, config};
use crate::table::Shown;
use crate::told::Told;

const MESSAGES: u64 = 12;
const FIXED: u16 = 16;

fn mode(told: &Told) -> HeaderMode {
    match told.text("framing") {
        Some("raw") => HeaderMode::Raw,
        Some("fixed") => HeaderMode::Fixed(FIXED),
        _ => HeaderMode::Prefixed,
    }
}

/// The header and the payload of a message, which follow from its number: none, short and long ones
/// of both.
fn message(mode: HeaderMode, number: u64) -> (Vec<u8>, Vec<u8>) {
    let header = match mode {
        HeaderMode::Fixed(len) => usize::from(len),
        _ => [0, 1, 24, 61][number as usize % 4],
    };
    let payload = [0, 1, 3000][number as usize % 3];
    (pattern(number, header), pattern(number + 99, payload))
}

pub(crate) fn headers(on: &On) -> Shown {
    for framing in ["prefixed", "fixed", "raw"] {
        let words = format!("framing={framing} sizes=4096");
        let (mut receiver, addr) = on.listener("framed receive", &words);
        let mut sender = on.sender("framed send", &addr, &words);
        sender.expect("sent", 2 * SOON);
        sender.finish(SOON);
        receiver.finish(SOON);
    }
    Shown::Works
}

pub(crate) fn receive(told: &Told) {
    let domain = told.domain();
    let mut receiver = listen(told, &domain);
    child::tell(format!("addr {}", receiver.local_addr()));
    let (mut events, mut number, mut over) = (Vec::new(), 0, false);
    drive("all messages", 2 * SOON, || {
        receiver.poll(&mut events).expect("polls");
        for event in events.drain(..) {
            match event {
                ReceiveEvent::Message(got) => {
                    let mode = mode(told);
                    let (mut header, mut payload) = message(mode, number);
                    if mode == HeaderMode::Raw {
                        // Nobody says where it ends: all of it is payload.
                        payload.splice(0..0, header.drain(..));
                    }
                    assert_eq!(got.header(), header, "message {number}");
                    assert!(got.payload() == payload, "message {number}");
                    number += 1;
                }
                ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(_)) => over = true,
                _ => {}
            }
        }
        over
    });
    assert_eq!(number, MESSAGES);
}

pub(crate) fn send(told: &Told) {
    let mode = mode(told);
    let mut sender = Sender::with(told, config(told).outgoing(|out| out.header_mode(mode)));
    sender.endpoint.wait_connected().expect("connects");
    if let HeaderMode::Fixed(len) = mode {
        let wrong = vec![0; usize::from(len) - 1];
        let payload = buffer(&sender.pool, b"x");
        let refused = sender.endpoint.send_data(payload, &wrong, 0).unwrap_err();
        assert!(!refused.is_would_block(), "{refused}");
        assert!(
            matches!(refused.kind, SendErrorKind::HeaderLength { .. }),
            "{refused}"
        );
    }
    let (mut next, mut completed) = (0, 0);
    drive("all sends", 2 * SOON, || {
        if next < MESSAGES && sender.pool.free_count() > 0 {
            let (header, payload) = message(mode, next);
            let payload = buffer(&sender.pool, &payload);
            next += u64::from(sender.endpoint.send_data(payload, &header, next).is_ok());
        }
        sender.endpoint.poll(&mut sender.events).expect("polls");
        let done = |event: &SendEvent| matches!(event, SendEvent::Completed { .. });
        completed += sender.events.iter().filter(|e| done(e)).count() as u64;
        sender.events.clear();
        completed == MESSAGES
    });
    sender.finish();
}
