//! Small messages in buffers, in both formats; a lone one leaves when its time is over.

use std::time::{Duration, Instant};

use fabricast::coalesce::Format;
use fabricast::endpoint::BufferedConfig;
use fabricast::{BufferedEvent, ConnectionEvent, ReceiveEvent, SendEndpointBuffered};

use crate::common::{SOON, after, child, drive, pattern};
use crate::on::On;
use crate::receiver::listen;
use crate::table::Shown;
use crate::told::Told;

const MESSAGES: u64 = 3000;

fn format(told: &Told) -> Format {
    match told.text("format") {
        Some("netio3") => Format::Netio3,
        _ => Format::Compact,
    }
}

/// Tag, status and bytes of a small message, which follow from its number.
fn small(number: u64) -> (u64, u8, Vec<u8>) {
    let len = [8, 0, 1, 40, 200, 1500][number as usize % 6];
    let status = u8::from(number.is_multiple_of(7)) * 3;
    (number / 50, status, pattern(number, len))
}

pub(crate) fn coalesced(on: &On) -> Shown {
    for format in ["compact", "netio3"] {
        let words = format!("format={format} slots=40 depth=8 peers=1");
        let (mut receiver, addr) = on.listener("unpack", &words);
        let mut sender = on.sender("pack", &addr, &words);
        sender.expect("packed", 3 * SOON);
        sender.finish(SOON);
        assert_eq!(receiver.expect("unpacked", SOON), MESSAGES.to_string());
        receiver.finish(SOON);
    }
    Shown::Works
}

/// Checks every small message, borrowed or owned in turn; tells the first one that arrives.
pub(crate) fn unpack(told: &Told) {
    let domain = told.domain();
    let mut receiver = listen(told, &domain);
    child::tell(format!("addr {}", receiver.local_addr()));
    let (mut events, mut number, mut over) = (Vec::new(), 0, false);
    drive("the last message", 3 * SOON, || {
        receiver.poll(&mut events).expect("polls");
        for event in events.drain(..) {
            match event {
                ReceiveEvent::Message(message) if number % 2 == 0 => {
                    for got in message.coalesced(format(told)) {
                        let got = got.expect("well-formed");
                        assert_eq!((got.tag, got.status, got.bytes.to_vec()), small(number));
                        number += 1;
                    }
                }
                ReceiveEvent::Message(message) => {
                    for got in message.into_coalesced(format(told)) {
                        let got = got.expect("well-formed");
                        assert_eq!((got.tag, got.status, got.bytes.to_vec()), small(number));
                        number += 1;
                    }
                }
                ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(_)) => over = true,
                _ => {}
            }
        }
        over
    });
    child::tell(format!("unpacked {number}"));
}

fn connect(told: &Told, config: BufferedConfig) -> SendEndpointBuffered {
    let config = config.format(format(told)).buffers(12).buffer_size(8192);
    let mut endpoint =
        SendEndpointBuffered::connect(&told.domain(), told.to(), config).expect("begins");
    endpoint.wait_connected().expect("connects");
    endpoint
}

pub(crate) fn pack(told: &Told) {
    let mut sender = connect(told, BufferedConfig::default());
    let (mut events, mut next) = (Vec::new(), 0);
    drive("all pushed", 2 * SOON, || {
        // One by itself, then some together, and so on.
        while next < MESSAGES {
            let (tag, status, bytes) = small(next);
            match sender.push(tag, status, &bytes) {
                Ok(number) => assert_eq!(number, next),
                Err(refused) if refused.is_would_block() => break,
                Err(refused) => panic!("{refused}"),
            }
            next += 1;
            let some: Vec<_> = (next..MESSAGES.min(next + next % 20)).map(small).collect();
            let some = some
                .iter()
                .map(|(tag, status, bytes)| (*tag, *status, &bytes[..]));
            match sender.push_batch(some) {
                Ok(pushed) => next += pushed as u64,
                Err(stopped) => {
                    assert!(stopped.error.is_would_block(), "{stopped}");
                    next += stopped.pushed as u64;
                    break;
                }
            }
        }
        sender.poll(&mut events).expect("polls");
        events.clear();
        next == MESSAGES
    });
    sender.begin_close(after(SOON));
    drive("the goodbye", 2 * SOON, || {
        sender.poll(&mut events).expect("polls");
        sender.close_reason().is_some()
    });
    let stats = sender.stats();
    assert_eq!((stats.confirmed, stats.pending), (MESSAGES, 0), "{stats:?}");
    assert!(stats.buffers < MESSAGES / 10, "many in each: {stats:?}");
    child::tell(format!("packed {}", stats.buffers));
}

pub(crate) fn flush_interval(on: &On) -> Shown {
    let words = "slots=12 depth=4 peers=1";
    let (mut receiver, addr) = on.listener("unpack", words);
    let mut sender = on.sender("one message", &addr, words);
    sender.expect("left", SOON);
    sender.finish(SOON);
    assert_eq!(receiver.expect("unpacked", SOON), "2");
    receiver.finish(SOON);
    Shown::Works
}

/// One message that leaves when its time is over, although nobody says so, and one that leaves
/// because somebody does.
pub(crate) fn one_message(told: &Told) {
    const INTERVAL: Duration = Duration::from_millis(150);
    let mut sender = connect(
        told,
        BufferedConfig::default().flush_interval(Some(INTERVAL)),
    );
    let mut events = Vec::new();
    for (number, flushed) in [(0, false), (1, true)] {
        let begun = Instant::now();
        let (tag, status, bytes) = small(number);
        sender.push(tag, status, &bytes).expect("room");
        if flushed {
            sender.flush();
        }
        drive("it has left", SOON, || {
            // The sleep ends when the interval is over.
            sender.wait(SOON).expect("waits");
            sender.poll(&mut events).expect("polls");
            let done = |e: &BufferedEvent| matches!(e, BufferedEvent::Completed { .. });
            events.drain(..).filter(done).count() > 0
        });
        assert_eq!(
            begun.elapsed() >= INTERVAL,
            !flushed,
            "{:?}",
            begun.elapsed()
        );
        assert!(
            begun.elapsed() < INTERVAL + SOON / 5,
            "{:?}",
            begun.elapsed()
        );
    }
    let stats = sender.stats();
    assert_eq!((stats.timed, stats.flushed), (1, 1), "{stats:?}");
    child::tell("left");
    sender.close(after(SOON)).expect("closes");
}
