//! Directed tests of headers that travel alone.

use super::tests::{actions, assert_violation, bye, established, give, hello_of, params};
use super::*;
use crate::protocol::credit::CreditError;
use crate::protocol::wire::{HeaderMode, HelloKind};

/// An established receiver of messages whose headers travel alone, and of headers of 8 bytes.
fn takes_two(now: Instant) -> Connection {
    let two = LocalParams {
        features: 0b10011,
        header_mode: HeaderMode::Fixed(8),
        ..params(2)
    };
    let hello = hello_of(two, HelloKind::Hello);
    let mut c = Connection::accept(Form::Msg, two, &hello, now);
    c.on_connected(&[]);
    assert_eq!(actions(&mut c).len(), 2);
    assert!(c.has_two_messages());
    assert_eq!(c.receives_per_credit(), 2);
    c
}

#[test]
fn a_header_is_paired_with_its_payload_and_uses_no_credit_of_its_own() {
    let now = Instant::now();
    let mut c = takes_two(now);
    assert_eq!(c.on_message(Some(34 << 24)), Some(Arrival::Header));
    assert_eq!(c.on_message(Some(35 << 24)), Some(Arrival::Payload));
    for sequence in 0..2 {
        assert_eq!(c.on_header(8), Ok(()));
        // A control message may come between the two.
        give(&mut c, Control::Credit { granted: 2 }, now);
        assert_eq!(c.on_payload(10), Ok(sequence));
    }
    assert_eq!(c.on_data(10), Err(Dropped), "the third has no credit");
    let mut c = takes_two(now);
    assert_eq!((c.on_data(10), c.on_header(8)), (Ok(0), Ok(())), "mixed");
    assert_eq!(c.on_peer_wrote(), Ok(1), "a write comes between");
    assert_eq!(c.on_payload(10), Err(Dropped), "and took the last credit");
}

#[test]
fn headers_that_travel_alone_have_numbers_and_give_them_back() {
    let mut c = takes_two(Instant::now());
    assert_eq!(c.on_pair_posted(), Ok(0));
    c.on_pair_undone();
    assert_eq!((c.on_pair_posted(), c.sent()), (Ok(0), 1));
    assert_eq!((c.on_data_posted(), c.sent()), (Ok(2), 2));
    assert_eq!(c.on_pair_posted(), Err(SendBlocked::NoCredit));
    assert_eq!(c.posted(), 2);
}

#[test]
fn headers_out_of_turn_are_violations() {
    let now = Instant::now();
    let turn = Violation::OutOfTurn;
    let mut c = takes_two(now);
    assert_eq!((c.on_header(8), c.on_header(8)), (Ok(()), Err(Dropped)));
    assert_violation(&mut c, turn("a header where a payload is due"));
    let mut c = takes_two(now);
    assert_eq!(c.on_header(8), Ok(()));
    give(&mut c, bye(1), now);
    assert_violation(&mut c, turn("a goodbye where a payload is due"));
    let mut c = takes_two(now);
    give(&mut c, bye(0), now);
    assert_eq!(c.on_header(8), Err(Dropped));
    actions(&mut c).pop().expect("the end");
    let after = CloseReason::Violation(turn("a header after its goodbye"));
    assert_eq!(c.close_reason(), Some(after));
    let mut c = takes_two(now);
    assert_eq!(c.on_header(9), Err(Dropped));
    let (name, value) = ("header_len", 9);
    assert_violation(&mut c, WireError::Field { name, value });
    let mut c = takes_two(now);
    assert_eq!((c.on_data(1), c.on_data(1)), (Ok(0), Ok(1)));
    assert_eq!(c.on_header(8), Err(Dropped));
    assert_violation(&mut c, CreditError::Overrun { granted: 2 });
    let mut c = takes_two(now);
    assert_eq!((c.on_header(8), c.on_payload(1017)), (Ok(()), Err(Dropped)));
    let (len_bytes, limit_bytes) = (1025, 1024);
    let too_long = Violation::TooLong {
        len_bytes,
        limit_bytes,
    };
    assert_violation(&mut c, too_long);
    let mut c = takes_two(now);
    assert_eq!(c.on_payload(1), Err(Dropped));
    assert_violation(&mut c, turn("a payload without its header"));
    let mut c = takes_two(now);
    assert_eq!((c.on_header(8), c.on_data(1)), (Ok(()), Err(Dropped)));
    assert_violation(&mut c, turn("data where a payload is due"));
    let mut c = established(now);
    assert_eq!(c.on_header(8), Err(Dropped), "nobody said that it would");
    assert_violation(&mut c, WireError::Kind(34));
}
