//! Directed tests of frames.

use super::tests::{actions, assert_violation, bye, established, give, hello_of, params};
use super::*;
use crate::protocol::credit::CreditError;
use crate::protocol::wire::HelloKind;

/// The mark of a frame, without an index.
const FRAME: u64 = 37 << 24;

/// An established receiver of frames.
fn takes_frames(form: Form, now: Instant) -> Connection {
    let frames = LocalParams {
        features: 1 << 7,
        ..params(2)
    };
    let hello = hello_of(frames, HelloKind::Hello);
    let mut c = Connection::accept(form, frames, &hello, now);
    c.on_connected(&[]);
    while c.next_action().is_some() {}
    assert!(c.has_frames());
    c
}

#[test]
fn the_messages_of_frames_are_counted_and_their_credits_are_not() {
    let now = Instant::now();
    let mut c = takes_frames(Form::Msg, now);
    assert_eq!(c.on_message(Some(FRAME)), Some(Arrival::Frame));
    assert_eq!(c.on_frame(1024), Ok(0));
    c.on_frame_read(10);
    assert_eq!(c.on_data(10), Ok(10), "the eleventh message");
    assert_eq!(c.received(), 2);
    assert_eq!(c.on_frame(10), Err(Dropped), "there were two credits");
    assert_violation(&mut c, CreditError::Overrun { granted: 2 });
}

#[test]
fn a_frame_takes_a_credit_and_a_number() {
    let mut c = takes_frames(Form::Msg, Instant::now());
    assert_eq!(c.on_frame_begun(), FRAME, "the MSG form has no numbers");
    assert_eq!((c.credits(), c.posted(), c.sent()), (1, 1, 1));
    let mut c = takes_frames(Form::Rdm, Instant::now());
    let index = u64::from(index_of(params(2).connection));
    assert_eq!(c.on_frame_begun(), FRAME | index);
    assert_eq!(c.on_data_posted(), Ok(1));
}

#[test]
fn frames_out_of_turn_are_violations() {
    let now = Instant::now();
    let mut c = established(now);
    assert_eq!(c.on_frame(10), Err(Dropped));
    assert_violation(&mut c, WireError::Kind(37));
    let mut c = takes_frames(Form::Msg, now);
    assert_eq!(c.on_frame(1025), Err(Dropped));
    let (len_bytes, limit_bytes) = (1025, 1024);
    let long = Violation::TooLong {
        len_bytes,
        limit_bytes,
    };
    assert_violation(&mut c, long);
    let mut c = takes_frames(Form::Msg, now);
    give(&mut c, bye(0), now);
    drop(actions(&mut c));
    assert_eq!(c.on_frame(10), Err(Dropped));
    let behind = Violation::OutOfTurn("data after its goodbye");
    assert_eq!(c.close_reason(), Some(CloseReason::Violation(behind)));
}
