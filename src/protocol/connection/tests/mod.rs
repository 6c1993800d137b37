//! Directed tests: each way to end, each violation, each timeout.

use std::time::Duration;

use super::*;
use crate::protocol::credit::CreditError;
use crate::protocol::liveness::LivenessTimeouts;
use crate::protocol::wire::{
    ByeReason, Counts, HELLO_LEN, HeaderMode, HelloKind, SubscriptionAnswer, SubscriptionOutcome,
    SubscriptionRequest,
};

const TIMEOUT: Duration = Duration::from_secs(5);
const FENCE_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) fn params(credits: u32) -> LocalParams {
    LocalParams {
        header_mode: HeaderMode::Prefixed,
        require_header_mode: None,
        features: 0b111,
        require_features: 0,
        receive_size: if credits == 0 { 0 } else { 1024 },
        receive_depth: credits,
        credits,
        incarnation: 7,
        connection: 0x0300_0000_0000_0005,
        connect_timeout: TIMEOUT,
        close_timeout: TIMEOUT,
        max_credit_window: 4096,
        liveness: LivenessTimeouts::ENDLESS,
        fence_timeout: FENCE_TIMEOUT,
    }
}

fn errno(code: i32) -> FabricErrno {
    FabricErrno::new(code)
}

pub(super) fn actions(connection: &mut Connection) -> Vec<Action> {
    std::iter::from_fn(|| connection.next_action())
        .take(20)
        .collect()
}

/// The message in an action, with the CQ data that goes with it.
fn message(action: &Action) -> (u32, Vec<u8>) {
    match action {
        Action::SendControl { cq_data, body } => (*cq_data, body.as_slice().to_vec()),
        other => panic!("{other:?} is not a control message"),
    }
}

pub(super) fn hello_of(params: LocalParams, kind: HelloKind) -> [u8; HELLO_LEN] {
    params.hello(kind).encode()
}

fn msg_initiator(now: Instant) -> Connection {
    let mut c = Connection::initiate(Form::Msg, params(4), now);
    let data = hello_of(params(4), HelloKind::Hello);
    assert_eq!(actions(&mut c), [Action::Connect { data }]);
    c
}

fn msg_acceptor(now: Instant) -> Connection {
    let mut c = Connection::accept(
        Form::Msg,
        params(4),
        &hello_of(params(4), HelloKind::Hello),
        now,
    );
    let data = hello_of(params(4), HelloKind::Ack);
    assert_eq!(actions(&mut c), [Action::Accept { data }]);
    c
}

pub(super) fn established(now: Instant) -> Connection {
    let mut c = msg_initiator(now);
    c.on_connected(&hello_of(params(4), HelloKind::Ack));
    assert_eq!(actions(&mut c), [Action::Established]);
    assert_eq!(c.state(), State::Established);
    c
}

pub(super) fn give(c: &mut Connection, control: Control, now: Instant) {
    c.on_control(
        wire::cq_data(control.kind(), 0),
        control.encode().as_slice(),
        now,
    );
}

pub(super) fn bye(last_sequence: u64) -> Control {
    Control::Bye {
        last_sequence,
        reason: ByeReason(9),
    }
}

fn assert_closed(c: &mut Connection, reason: CloseReason) {
    assert_eq!(actions(c), [Action::Close(reason)]);
    assert_eq!(c.state(), State::Closed);
    assert_eq!(c.close_reason(), Some(reason));
    assert_eq!(c.may_send(), Err(SendBlocked::Closed));
    assert_eq!(c.next_deadline(), None);
    // Nothing brings it back, and it says goodbye only once.
    let now = Instant::now();
    c.on_lost(None);
    c.on_connected(&[]);
    c.close(ByeReason::DONE, now);
    c.tick(now + 100 * TIMEOUT);
    give(c, bye(0), now);
    assert_eq!(c.on_data(1), Err(Dropped));
    assert_eq!(actions(c), []);
    assert_eq!(c.close_reason(), Some(reason));
}

pub(super) fn assert_violation(c: &mut Connection, violation: impl Into<Violation>) {
    assert_closed(c, CloseReason::Violation(violation.into()));
}

#[test]
fn handshake_over_cm_data_tells_each_side_of_the_other() {
    let now = Instant::now();
    let mut acceptor = msg_acceptor(now);
    assert_eq!(acceptor.may_send(), Err(SendBlocked::NotConnected));
    acceptor.on_connected(&[0xa5; 256]);
    assert_eq!(actions(&mut acceptor), [Action::Established]);
    assert_eq!(acceptor.next_deadline(), None);
    for c in [&acceptor, &established(now)] {
        assert_eq!((c.version(), c.features()), (Some(2), 0b111));
        assert_eq!((c.peer_receive_size(), c.credits()), (1024, 4));
        assert_eq!(c.peer().map(|peer| peer.incarnation), Some(7));
        assert_eq!(c.may_send(), Ok(()));
    }
}

#[test]
fn handshake_as_messages_uses_the_index_of_the_peer() {
    let now = Instant::now();
    let mine = LocalParams {
        connection: 0xff00_0001,
        ..params(4)
    };
    let mut initiator = Connection::initiate(Form::Rdm, mine, now);
    let (cq_data, hello) = message(&actions(&mut initiator)[0]);
    assert_eq!(cq_data, wire::cq_data(ControlKind::HELLO, 0));
    let mut acceptor = Connection::accept(Form::Rdm, params(4), &hello, now);
    let (cq_data, ack) = message(&actions(&mut acceptor)[0]);
    assert_eq!(cq_data, wire::cq_data(ControlKind::HELLO_ACK, 1));
    initiator.on_control(cq_data, &ack, now);
    assert_eq!(actions(&mut initiator), [Action::Established]);
    acceptor.on_control_done(ControlKind::HELLO_ACK);
    assert_eq!(actions(&mut acceptor), [Action::Established]);
    initiator.close(ByeReason::DONE, now + TIMEOUT);
    let (cq_data, _) = message(&actions(&mut initiator)[0]);
    assert_eq!(cq_data, wire::cq_data(ControlKind::BYE, 5));
}

#[test]
fn a_polite_close_waits_for_posted_data_and_for_both_byes() {
    let now = Instant::now();
    let mut c = established(now);
    assert_eq!(c.on_data_posted(), Ok(0));
    assert_eq!(c.on_data_posted(), Ok(1));
    c.close(ByeReason::CLOSING, now + TIMEOUT);
    assert_eq!(c.on_data_posted(), Err(SendBlocked::Closing));
    c.on_data_done();
    assert_eq!(actions(&mut c), [], "one is still with the provider");
    c.on_data_done();
    let (cq_data, body) = message(&actions(&mut c)[0]);
    let kind = wire::split_cq_data(cq_data).0;
    let said = Control::Bye {
        last_sequence: 2,
        reason: ByeReason::CLOSING,
    };
    assert_eq!(Control::parse(kind, &body), Ok(said));
    // The peer may go on sending until it reads our bye.
    assert_eq!(c.on_data(10), Ok(0));
    c.on_control_done(ControlKind::BYE);
    assert_eq!(actions(&mut c), []);
    give(&mut c, bye(1), now);
    assert_closed(&mut c, CloseReason::Finished);
}

#[test]
fn a_bye_is_answered_without_the_application() {
    let now = Instant::now();
    let mut c = established(now);
    assert_eq!(c.on_data_posted(), Ok(0));
    give(&mut c, bye(0), now);
    assert_eq!(
        actions(&mut c),
        [Action::PeerClosing {
            reason: ByeReason(9)
        }]
    );
    assert_eq!(c.may_send(), Err(SendBlocked::Closing));
    assert_eq!(c.next_deadline(), Some(now + TIMEOUT));
    c.on_data_done();
    assert_eq!(actions(&mut c).len(), 1);
    c.on_control_done(ControlKind::BYE);
    assert_closed(&mut c, CloseReason::Finished);
}

#[test]
fn the_peer_may_leave_before_we_hear_that_our_bye_was_sent() {
    let now = Instant::now();
    let mut c = established(now);
    give(&mut c, bye(0), now);
    assert_eq!(actions(&mut c).len(), 2);
    c.on_lost(Some(errno(107)));
    assert_closed(&mut c, CloseReason::Finished);

    let mut c = established(now);
    give(&mut c, bye(0), now);
    c.on_lost(None);
    assert_eq!(
        actions(&mut c)[0],
        Action::PeerClosing {
            reason: ByeReason(9)
        }
    );
    assert_eq!(
        c.close_reason(),
        Some(CloseReason::PeerLost { errno: None })
    );
}

#[test]
fn what_the_peer_sent_and_did_not_arrive_is_told() {
    let now = Instant::now();
    let mut c = established(now);
    assert_eq!(c.on_data(1), Ok(0));
    give(&mut c, bye(3), now);
    assert_eq!(actions(&mut c).len(), 2);
    c.on_control_done(ControlKind::BYE);
    assert_closed(
        &mut c,
        CloseReason::PeerTruncated {
            expected: 3,
            received: 1,
        },
    );
}

#[test]
fn credits_are_granted_until_a_bye() {
    let now = Instant::now();
    let mut c = established(now);
    assert_eq!((c.on_data(1), c.on_data(1)), (Ok(0), Ok(1)));
    c.on_reposted(1);
    let (cq_data, body) = message(&actions(&mut c)[0]);
    let kind = wire::split_cq_data(cq_data).0;
    assert_eq!(
        Control::parse(kind, &body),
        Ok(Control::Credit { granted: 5 })
    );
    c.on_reposted(1);
    assert_eq!(actions(&mut c), [], "one credit message at a time");
    c.close(ByeReason::DONE, now + TIMEOUT);
    c.on_control_done(ControlKind::CREDIT);
    let kinds: Vec<_> = actions(&mut c)
        .iter()
        .map(|a| wire::split_cq_data(message(a).0).0)
        .collect();
    assert_eq!(kinds, [ControlKind::CREDIT, ControlKind::BYE]);
    assert_eq!(c.on_data(1), Ok(2));
    c.on_reposted(1);
    c.on_control_done(ControlKind::CREDIT);
    assert_eq!(actions(&mut c), [], "no credit after our bye");
}

#[test]
fn sends_stop_without_credit_and_an_undone_post_gives_it_back() {
    let now = Instant::now();
    let mut c = established(now);
    for sequence in 0..4 {
        assert_eq!(c.on_data_posted(), Ok(sequence));
    }
    assert_eq!(c.on_data_posted(), Err(SendBlocked::NoCredit));
    c.on_post_undone();
    assert_eq!((c.posted(), c.sent()), (3, 3));
    assert_eq!(c.on_data_posted(), Ok(3));
    give(&mut c, Control::Credit { granted: 6 }, now);
    assert_eq!((c.on_data_posted(), c.on_data_posted()), (Ok(4), Ok(5)));
    assert_eq!(c.on_data_posted(), Err(SendBlocked::NoCredit));
}

#[test]
fn nothing_answers() {
    let now = Instant::now();
    let mut c = msg_initiator(now);
    assert_eq!(c.next_deadline(), Some(now + TIMEOUT));
    c.tick(now + TIMEOUT - Duration::from_nanos(1));
    assert_eq!(actions(&mut c), []);
    c.tick(now + TIMEOUT);
    assert_closed(&mut c, CloseReason::ConnectTimedOut);
}

#[test]
fn an_acceptor_does_not_wait_for_ever() {
    let now = Instant::now();
    let mut c = msg_acceptor(now);
    c.tick(now + TIMEOUT);
    assert_closed(&mut c, CloseReason::HandshakeTimedOut);

    // Data alone do not stop the clock: FI_CONNECTED must come too.
    let mut c = msg_acceptor(now);
    assert_eq!(c.on_data(1), Ok(0));
    assert_eq!(actions(&mut c), [Action::Established]);
    assert_eq!(c.may_send(), Err(SendBlocked::NotConnected));
    c.tick(now + TIMEOUT);
    assert_closed(&mut c, CloseReason::HandshakeTimedOut);
}

#[test]
fn an_acceptor_may_see_data_before_the_connected_event() {
    let now = Instant::now();
    let mut c = msg_acceptor(now);
    assert_eq!(c.on_data(1), Ok(0));
    c.close(ByeReason::DONE, now + TIMEOUT);
    assert_eq!(
        actions(&mut c),
        [Action::Established],
        "no bye before the provider is ready"
    );
    c.on_connected(&[]);
    assert_eq!(
        wire::split_cq_data(message(&actions(&mut c)[0]).0).0,
        ControlKind::BYE
    );
}

#[test]
fn the_deadline_of_a_goodbye_holds() {
    let now = Instant::now();
    let mut c = established(now);
    c.close(ByeReason::DONE, now + TIMEOUT);
    c.close(ByeReason::DONE, now + 2 * TIMEOUT);
    assert_eq!(
        c.next_deadline(),
        Some(now + TIMEOUT),
        "the earlier one counts"
    );
    assert_eq!(actions(&mut c).len(), 1);
    c.tick(now + TIMEOUT);
    assert_closed(&mut c, CloseReason::ClosedByDeadline);

    // The application's deadline takes the place of the one that the peer's bye set.
    let mut c = established(now);
    assert_eq!(c.on_data_posted(), Ok(0));
    give(&mut c, bye(0), now);
    c.close(ByeReason::DONE, now + 3 * TIMEOUT);
    assert_eq!(c.next_deadline(), Some(now + 3 * TIMEOUT));
    assert_eq!(actions(&mut c).len(), 1);
    c.tick(now + 3 * TIMEOUT);
    assert_closed(&mut c, CloseReason::ClosedByDeadline);
}

#[test]
fn a_refusal_arrives_with_its_reason() {
    let now = Instant::now();
    let refusal = Refusal::new(RefusalCode::TOO_MANY_CONNECTIONS, [3, 0]);
    let mut c = msg_initiator(now);
    c.on_refused(errno(111), &refusal.encode());
    assert_closed(&mut c, CloseReason::Refused(refusal));

    for data in [&[][..], &[0xa5; 48][..]] {
        let mut c = msg_initiator(now);
        c.on_refused(errno(111), data);
        assert_closed(&mut c, CloseReason::ConnectFailed(errno(111)));
    }

    let mut c = Connection::initiate(Form::Rdm, params(4), now);
    assert_eq!(actions(&mut c).len(), 1);
    let cq_data = wire::cq_data(ControlKind::REFUSAL, 5);
    c.on_control(cq_data, &refusal.encode(), now);
    assert_closed(&mut c, CloseReason::Refused(refusal));
}

fn assert_rejects(local: LocalParams, hello: &[u8], code: RefusalCode, details: [u64; 2]) {
    let refusal = Refusal::new(code, details);
    let mut c = Connection::accept(Form::Msg, local, hello, Instant::now());
    let expected = [
        Action::Reject {
            data: refusal.encode(),
        },
        Action::Close(CloseReason::RefusedPeer(refusal)),
    ];
    assert_eq!(actions(&mut c), expected);
    assert_eq!(actions(&mut c), []);
}

#[test]
fn a_fence_has_a_deadline() {
    let now = Instant::now();
    let mut c = established(now);
    c.fence(1, 77, now);
    assert_eq!(actions(&mut c).len(), 1, "the question");
    let limit = FENCE_TIMEOUT;
    for look in [limit / 4, limit / 2, limit] {
        assert_eq!(c.next_deadline(), Some(now + look));
        c.tick(now + look);
    }
    assert_closed(&mut c, CloseReason::FenceDeadline { limit });
}

#[test]
fn fences_out_of_turn_are_violations() {
    let now = Instant::now();
    let fence = |nonce| Control::Fence { nonce };
    let fenced = |nonce| Control::Fenced { nonce };
    let say = |c: &mut Connection, control: Control| {
        let cq_data = wire::cq_data(control.kind(), 0);
        c.on_control(cq_data, control.encode().as_slice(), now);
    };
    let mut c = established(now);
    say(&mut c, fenced(1));
    assert_eq!(c.state(), State::Closed, "an answer to nothing");
    let mut c = established(now);
    c.fence(1, 77, now);
    actions(&mut c);
    say(&mut c, fenced(78));
    assert_eq!(c.state(), State::Closed, "a guess");
    let mut c = established(now);
    say(&mut c, fence(1));
    say(&mut c, fence(2));
    assert_eq!(c.state(), State::Closed, "two questions");
    let mut c = established(now);
    say(
        &mut c,
        Control::Bye {
            last_sequence: 0,
            reason: ByeReason::DONE,
        },
    );
    say(&mut c, fence(1));
    assert_eq!(c.state(), State::Closed, "behind its goodbye");
}

#[test]
fn an_acceptor_rejects_what_it_can_not_take() {
    let hello = hello_of(params(4), HelloKind::Hello);
    let deep = hello_of(params(5000), HelloKind::Hello);
    assert_rejects(params(4), &deep, RefusalCode::RECEIVE_DEPTH, [5000, 4096]);
    assert_rejects(params(4), &hello[..47], RefusalCode::MALFORMED, [0, 0]);
    assert_rejects(params(4), &[0; 64], RefusalCode::MALFORMED, [0, 0]);
    let ack = hello_of(params(4), HelloKind::Ack);
    assert_rejects(params(4), &ack, RefusalCode::MALFORMED, [0, 0]);
    let picky = LocalParams {
        require_header_mode: Some(HeaderMode::Fixed(16)),
        ..params(4)
    };
    let modes = [
        HeaderMode::Prefixed.to_detail(),
        HeaderMode::Fixed(16).to_detail(),
    ];
    assert_rejects(picky, &hello, RefusalCode::HEADER_MODE, modes);
    let future = Hello {
        version: 4,
        oldest: 3,
        ..params(4).hello(HelloKind::Hello)
    }
    .encode();
    assert_rejects(params(4), &future, RefusalCode::VERSION, [4, 3]);

    // In the RDM form the refusal is a message, where an address for it can be read at all.
    let mut c = Connection::accept(Form::Rdm, params(4), &future, Instant::now());
    let (cq_data, _) = message(&actions(&mut c)[0]);
    assert_eq!(cq_data, wire::cq_data(ControlKind::REFUSAL, 5));
    let mut c = Connection::accept(Form::Rdm, params(4), &[0; 48], Instant::now());
    assert!(matches!(
        actions(&mut c)[..],
        [Action::Close(CloseReason::RefusedPeer(_))]
    ));
}

#[test]
fn a_request_that_was_not_answered_is_rejected_at_the_end() {
    let now = Instant::now();
    let hello = hello_of(params(4), HelloKind::Hello);
    let mut c = Connection::accept(Form::Msg, params(4), &hello, now);
    c.close(ByeReason::DONE, now);
    let data = Refusal::new(RefusalCode::CLOSING, [0, 0]).encode();
    let close = Action::Close(CloseReason::ClosedLocally);
    assert_eq!(actions(&mut c), [Action::Reject { data }, close]);

    let mut c = msg_acceptor(now);
    c.close(ByeReason::DONE, now);
    assert_closed(&mut c, CloseReason::ClosedLocally);
    let mut c = Connection::initiate(Form::Msg, params(4), now);
    c.close(ByeReason::DONE, now);
    assert_closed(&mut c, CloseReason::ClosedLocally);
}

#[test]
fn an_initiator_does_not_take_any_answer() {
    let now = Instant::now();
    let mut c = msg_initiator(now);
    c.on_connected(&[0; 16]);
    assert_violation(
        &mut c,
        WireError::Short {
            len: 16,
            need: HELLO_LEN,
        },
    );
    let mut c = msg_initiator(now);
    c.on_connected(&hello_of(params(4), HelloKind::Hello));
    assert_violation(&mut c, WireError::Kind(1));
    let mut c = msg_initiator(now);
    c.on_connected(&hello_of(params(5000), HelloKind::Ack));
    let refusal = Refusal::new(RefusalCode::RECEIVE_DEPTH, [5000, 4096]);
    assert_closed(&mut c, CloseReason::RefusedPeer(refusal));
}

#[test]
fn loss_is_told_once_with_its_first_cause() {
    let now = Instant::now();
    let mut c = established(now);
    c.on_lost(Some(errno(104)));
    c.on_lost(None);
    c.on_lost(Some(errno(125)));
    assert_closed(
        &mut c,
        CloseReason::PeerLost {
            errno: Some(errno(104)),
        },
    );
    let mut c = msg_initiator(now);
    c.on_lost(Some(errno(92)));
    assert_closed(&mut c, CloseReason::ConnectFailed(errno(92)));
    let mut c = msg_acceptor(now);
    c.on_refused(errno(5), &[]);
    assert_closed(
        &mut c,
        CloseReason::PeerLost {
            errno: Some(errno(5)),
        },
    );
}

#[test]
fn an_rdm_peer_is_told_of_an_abrupt_end() {
    let now = Instant::now();
    let hello = hello_of(params(4), HelloKind::Hello);
    let mut c = Connection::accept(Form::Rdm, params(4), &hello, now);
    assert_eq!(actions(&mut c).len(), 1);
    c.tick(now + TIMEOUT);
    let told = actions(&mut c);
    let (cq_data, body) = message(&told[0]);
    assert_eq!(wire::split_cq_data(cq_data).0, ControlKind::REFUSAL);
    assert_eq!(told[1], Action::Close(CloseReason::HandshakeTimedOut));

    let mut peer = Connection::accept(Form::Rdm, params(4), &hello, now);
    assert_eq!(actions(&mut peer).len(), 1);
    peer.on_control(cq_data, &body, now);
    let refusal = Refusal::new(RefusalCode::ABORTED, [0, 0]);
    assert_closed(&mut peer, CloseReason::PeerAborted(refusal));
}

#[test]
fn control_garbage_is_a_violation() {
    let now = Instant::now();
    let mut c = established(now);
    c.on_control(wire::cq_data(ControlKind::CREDIT, 0), &[0; 32], now);
    assert_violation(&mut c, WireError::Magic([0; 4]));
    let mut c = established(now);
    c.on_control(wire::cq_data(ControlKind(19), 0), &[0; 64], now);
    assert_violation(&mut c, WireError::Kind(19));
    let mut c = established(now);
    let credit = Control::Credit { granted: 5 }.encode();
    c.on_control(
        wire::cq_data(ControlKind::CREDIT, 2),
        credit.as_slice(),
        now,
    );
    assert_violation(
        &mut c,
        WireError::Field {
            name: "connection index",
            value: 2,
        },
    );
}

#[test]
fn credit_out_of_account_is_a_violation() {
    let now = Instant::now();
    let mut c = established(now);
    give(&mut c, Control::Credit { granted: 5 }, now);
    assert_violation(
        &mut c,
        CreditError::TooFar {
            ahead: 5,
            window: 4,
        },
    );
    let mut c = established(now);
    give(&mut c, Control::Credit { granted: 3 }, now);
    assert_violation(
        &mut c,
        CreditError::Backwards {
            granted: 3,
            before: 4,
        },
    );
}

#[test]
fn data_out_of_account_is_a_violation() {
    let now = Instant::now();
    let mut c = established(now);
    for sequence in 0..4 {
        assert_eq!(c.on_data(1024), Ok(sequence));
    }
    assert_eq!(c.on_data(1), Err(Dropped));
    assert_violation(&mut c, CreditError::Overrun { granted: 4 });
    let mut c = established(now);
    assert_eq!(c.on_data(1025), Err(Dropped));
    assert_violation(
        &mut c,
        Violation::TooLong {
            len_bytes: 1025,
            limit_bytes: 1024,
        },
    );
}

#[test]
fn messages_out_of_turn_are_violations() {
    let now = Instant::now();
    let mut c = msg_initiator(now);
    assert_eq!(c.on_data(1), Err(Dropped));
    assert_violation(
        &mut c,
        Violation::OutOfTurn("data before the connection was established"),
    );
    let mut c = msg_initiator(now);
    give(&mut c, bye(0), now);
    assert_violation(
        &mut c,
        Violation::OutOfTurn("a goodbye before the connection was established"),
    );
    let mut c = msg_initiator(now);
    give(&mut c, Control::Credit { granted: 1 }, now);
    assert_violation(
        &mut c,
        Violation::OutOfTurn("credit before the connection was established"),
    );

    let hello = params(4).hello(HelloKind::Hello);
    let ack = params(4).hello(HelloKind::Ack);
    for again in [hello, ack] {
        let mut c = established(now);
        give(&mut c, Control::Hello(again), now);
        assert_violation(&mut c, Violation::OutOfTurn("a hello where none is due"));
    }
    let mut c = established(now);
    give(
        &mut c,
        Control::Refusal(Refusal::new(RefusalCode::CLOSING, [0, 0])),
        now,
    );
    assert_violation(&mut c, Violation::OutOfTurn("a refusal as a message"));
}

#[test]
fn data_before_an_rdm_answer_went_out_is_a_violation() {
    let hello = hello_of(params(4), HelloKind::Hello);
    let mut c = Connection::accept(Form::Rdm, params(4), &hello, Instant::now());
    assert_eq!(c.on_data(1), Err(Dropped));
    let violation = Violation::OutOfTurn("data before the connection was established");
    assert_eq!(c.close_reason(), Some(CloseReason::Violation(violation)));
}

#[test]
fn after_its_goodbye_a_peer_is_silent() {
    let now = Instant::now();
    let after_bye = || {
        let mut c = established(now);
        give(&mut c, bye(0), now);
        assert_eq!(actions(&mut c).len(), 2);
        c
    };
    let mut c = after_bye();
    assert_eq!(c.on_data(1), Err(Dropped));
    assert_violation(&mut c, Violation::OutOfTurn("data after its goodbye"));
    let mut c = after_bye();
    give(&mut c, bye(0), now);
    assert_violation(&mut c, Violation::OutOfTurn("a second goodbye"));
    let mut c = after_bye();
    give(&mut c, Control::Credit { granted: 4 }, now);
    assert_violation(&mut c, Violation::OutOfTurn("credit after its goodbye"));
    let mut c = established(now);
    assert_eq!(c.on_data(1), Ok(0));
    give(&mut c, bye(0), now);
    assert_violation(
        &mut c,
        Violation::Count {
            claimed: 0,
            received: 1,
        },
    );
}

#[test]
fn reasons_read_as_sentences() {
    let refusal = Refusal::new(RefusalCode::TOO_MANY_CONNECTIONS, [3, 0]);
    let told = CloseReason::Refused(refusal).to_string();
    assert_eq!(
        told,
        "refused: the endpoint already has 3 connections, its limit"
    );
    let lost = CloseReason::PeerLost {
        errno: Some(errno(104)),
    }
    .to_string();
    assert!(
        lost.starts_with("the peer was lost: the connection was cut") && lost.contains("104"),
        "{lost}"
    );
    let told = "the peer was lost: the connection was cut, as its process ended or its network \
                failed";
    for errno in [None, Some(errno(libc::ECANCELED))] {
        assert_eq!(CloseReason::PeerLost { errno }.to_string(), told);
    }
    let waited = Duration::from_secs(30);
    assert_eq!(
        CloseReason::MessageLost { waited }.to_string(),
        "the provider lost a message: it was sent, and has not come for 30s"
    );
    let violation = Violation::from(CreditError::Overrun { granted: 4 });
    let told = CloseReason::Violation(violation).to_string();
    assert_eq!(
        told,
        "the peer broke the protocol: a message beyond the 4 that were granted"
    );
}

const T1: Duration = Duration::from_millis(300);
const T2: Duration = Duration::from_secs(1);

fn impatient() -> LocalParams {
    LocalParams {
        liveness: LivenessTimeouts {
            unresponsive: Some(T1),
            lost: Some(T2),
        },
        ..params(4)
    }
}

fn impatient_one(now: Instant) -> Connection {
    let mut c = Connection::initiate(Form::Msg, impatient(), now);
    assert_eq!(actions(&mut c).len(), 1);
    c.on_connected(&hello_of(params(4), HelloKind::Ack));
    assert_eq!(actions(&mut c), [Action::Established]);
    c.tick(now);
    c
}

fn heartbeat(number: u64, answer: bool) -> Control {
    Control::Heartbeat { number, answer }
}

/// The control message in an action, understood.
fn said(action: &Action) -> Control {
    let (cq_data, body) = message(action);
    Control::parse(wire::split_cq_data(cq_data).0, &body).unwrap()
}

/// Lets time pass as a thread does that sleeps until there is something to do.
fn sleep(c: &mut Connection, until: Instant) -> Vec<Action> {
    let mut done = Vec::new();
    while let Some(at) = c.next_deadline().filter(|at| *at <= until) {
        c.tick(at);
        done.extend(actions(c));
    }
    done
}

#[test]
fn a_peer_that_says_nothing_is_asked_then_told_of_then_lost() {
    let now = Instant::now();
    let mut c = impatient_one(now);
    let asked = sleep(&mut c, now + T1 - Duration::from_nanos(1));
    assert_eq!(asked.len(), 1, "asked once");
    assert_eq!(said(&asked[0]), heartbeat(1, false));
    assert_eq!(sleep(&mut c, now + T1), [Action::Unresponsive]);
    assert_eq!(c.may_send(), Ok(()), "nothing is closed");
    // Late, but not too late: nothing more is heard of it, and the next silence counts anew.
    let back = now + T2 - Duration::from_millis(1);
    assert_eq!(sleep(&mut c, back), []);
    give(&mut c, heartbeat(1, true), back);
    assert_eq!(actions(&mut c), [Action::Responsive]);
    c.on_control_done(ControlKind::HEARTBEAT);
    c.tick(back);
    let told = sleep(&mut c, back + T2 - Duration::from_nanos(1));
    assert_eq!(said(&told[0]), heartbeat(2, false));
    assert_eq!(told[1..], [Action::Unresponsive]);
    c.tick(back + T2);
    assert_closed(&mut c, CloseReason::PeerSilent { silence: T2 });
}

#[test]
fn what_is_heard_after_the_end_is_no_news() {
    let now = Instant::now();
    let mut c = impatient_one(now);
    assert_eq!(sleep(&mut c, now + T1).last(), Some(&Action::Unresponsive));
    c.abort(CloseReason::EndpointFailed("test"));
    assert_closed(&mut c, CloseReason::EndpointFailed("test"));
    c.on_bytes();
    assert_eq!(actions(&mut c), [], "the end is the last action");
    assert_eq!(c.next_deadline(), None);
}

#[test]
fn anything_that_comes_is_life() {
    let now = Instant::now();
    let mut c = impatient_one(now);
    let signs: [fn(&mut Connection, Instant); 4] = [
        |c, _| assert!(c.on_data(1).is_ok()),
        |c, at| give(c, Control::Credit { granted: 4 }, at),
        |c, at| {
            let number = c.heartbeats.heard + 1;
            give(c, heartbeat(number, false), at);
        },
        |c, _| c.on_bytes(),
    ];
    let mut at = now;
    for i in 0..20 {
        at += T1 / 4;
        signs[i % signs.len()](&mut c, at);
        c.on_reposted(c.received() - i.min(c.received() as usize) as u64);
        c.tick(at);
        for action in actions(&mut c) {
            let (cq_data, _) = message(&action);
            c.on_control_done(wire::split_cq_data(cq_data).0);
            assert_ne!(said(&action), heartbeat(1, false), "asked one that speaks");
        }
    }
    assert_eq!(c.state(), State::Established);
}

#[test]
fn a_question_is_answered_once_and_only_one_is_out_at_a_time() {
    let now = Instant::now();
    let mut c = impatient_one(now);
    give(&mut c, heartbeat(1, false), now);
    let answered = actions(&mut c);
    assert_eq!(said(&answered[0]), heartbeat(1, true));
    assert_eq!(answered.len(), 1);
    // The next question may come before we hear that the answer was sent.
    give(&mut c, heartbeat(2, false), now);
    assert_eq!(said(&actions(&mut c)[0]), heartbeat(2, true));
    give(&mut c, heartbeat(3, false), now);
    assert_eq!(actions(&mut c), [], "two are with the provider");
    c.on_control_done(ControlKind::HEARTBEAT);
    assert_eq!(said(&actions(&mut c)[0]), heartbeat(3, true));
    c.on_control_done(ControlKind::HEARTBEAT);
    c.on_control_done(ControlKind::HEARTBEAT);
    // Nothing heard for long: still only one question.
    c.tick(now);
    let questions = sleep(&mut c, now + T2 - Duration::from_nanos(1));
    assert_eq!(questions.len(), 2, "{questions:?}");
    give(&mut c, heartbeat(4, false), now + T1);
    assert_eq!(actions(&mut c)[0], Action::Responsive);
    assert_eq!(
        sleep(&mut c, now + 3 * T1)
            .iter()
            .filter(|action| **action != Action::Unresponsive)
            .count(),
        0,
        "the first question was not answered: no second one"
    );
}

#[test]
fn heartbeats_out_of_turn_are_violations() {
    let now = Instant::now();
    let early = Violation::OutOfTurn("a heartbeat before the last one was answered");
    let stray = Violation::OutOfTurn("an answer to a heartbeat that was not sent");
    let after = Violation::OutOfTurn("a heartbeat after its goodbye");
    for (beats, violation) in [
        (&[heartbeat(1, false), heartbeat(2, false)][..], early),
        (&[heartbeat(2, false)], early),
        (&[heartbeat(1, true)], stray),
        (&[bye(0), heartbeat(1, false)], after),
    ] {
        let mut c = impatient_one(now);
        for beat in beats {
            give(&mut c, *beat, now);
        }
        assert_eq!(c.close_reason(), Some(CloseReason::Violation(violation)));
    }
    let deaf = LocalParams {
        features: 0,
        ..impatient()
    };
    let mut c = Connection::initiate(Form::Msg, deaf, now);
    c.on_connected(&hello_of(params(4), HelloKind::Ack));
    assert_eq!(actions(&mut c).len(), 2);
    give(&mut c, heartbeat(1, false), now);
    let offered = Violation::OutOfTurn("a heartbeat that nobody offered to answer");
    assert_violation(&mut c, offered);
}

#[test]
fn silence_of_a_peer_that_does_not_answer_heartbeats_is_silence() {
    let now = Instant::now();
    let mut c = Connection::initiate(Form::Msg, impatient(), now);
    let old = LocalParams {
        features: 0,
        ..params(4)
    };
    c.on_connected(&hello_of(old, HelloKind::Ack));
    assert_eq!(actions(&mut c).len(), 2);
    c.tick(now);
    // Nobody can be asked: what comes by itself counts.
    let half = now + T2 - Duration::from_millis(1);
    assert_eq!(sleep(&mut c, half), [Action::Unresponsive]);
    assert!(c.on_data(1).is_ok());
    assert_eq!(actions(&mut c), [Action::Responsive]);
    c.tick(half);
    let last = half + T2;
    assert_eq!(
        sleep(&mut c, last - Duration::from_nanos(1)),
        [Action::Unresponsive]
    );
    c.tick(last);
    assert_closed(&mut c, CloseReason::PeerSilent { silence: T2 });
}

#[test]
fn a_grant_that_grants_nothing_is_taken_a_few_times() {
    let now = Instant::now();
    let mut c = established(now);
    for _ in 0..16 {
        give(&mut c, Control::Credit { granted: 4 }, now);
        assert_eq!(actions(&mut c), []);
    }
    give(&mut c, Control::Credit { granted: 4 }, now);
    assert!(
        matches!(
            c.close_reason(),
            Some(CloseReason::Violation(Violation::Credit(_)))
        ),
        "{:?}",
        c.close_reason()
    );
}

#[test]
fn questions_without_a_pause_are_a_violation() {
    let now = Instant::now();
    let ask = |c: &mut Connection, number, at| {
        give(c, heartbeat(number, false), at);
        let answered = actions(c);
        if c.state() == State::Closed {
            return false;
        }
        assert_eq!(said(&answered[0]), heartbeat(number, true));
        c.on_control_done(ControlKind::HEARTBEAT);
        true
    };
    // Twice as often as the shortest limit of silence asks for.
    let mut c = impatient_one(now);
    for number in 1..=10_000 {
        let at = now + Duration::from_micros(1500) * number as u32;
        assert!(ask(&mut c, number, at), "{:?}", c.close_reason());
    }
    let mut c = impatient_one(now);
    let mut number = 1;
    while ask(&mut c, number, now) {
        number += 1;
        assert!(number < 1000, "asked for ever");
    }
    assert!(number > 32, "a few that come at once are nothing");
    let often = Violation::OutOfTurn("heartbeats without a pause");
    assert_eq!(c.close_reason(), Some(CloseReason::Violation(often)));
}

#[test]
fn nobody_is_judged_during_the_goodbye() {
    let now = Instant::now();
    let mut c = impatient_one(now);
    c.close(ByeReason::DONE, now + 10 * T2);
    assert_eq!(actions(&mut c).len(), 1, "our bye");
    assert_eq!(c.next_deadline(), Some(now + 10 * T2));
    c.tick(now + 5 * T2);
    assert_eq!(actions(&mut c), []);
    // A question that was on its way is taken, and not answered after the bye.
    give(&mut c, heartbeat(1, false), now);
    assert_eq!(actions(&mut c), []);

    let mut c = impatient_one(now);
    assert_eq!(c.on_data_posted(), Ok(0));
    give(&mut c, bye(0), now);
    assert_eq!(actions(&mut c).len(), 1);
    c.tick(now + 5 * T2 - Duration::from_nanos(1));
    assert_eq!(actions(&mut c), [], "our data is still with the provider");
    assert_eq!(c.state(), State::Closing);
    // Our own goodbye waits for posted data: until then the peer is judged.
    let mut c = impatient_one(now);
    assert_eq!(c.on_data_posted(), Ok(0));
    c.close(ByeReason::DONE, now + 10 * T2);
    let told = sleep(&mut c, now + T2);
    let lost = Action::Close(CloseReason::PeerSilent { silence: T2 });
    assert_eq!(told[1..], [Action::Unresponsive, lost]);
}

fn subscribe(number: u64) -> Control {
    let request = SubscriptionRequest { tag: 9, on: true };
    Control::Subscription { number, request }
}

fn accepted(now: Instant) -> Connection {
    let mut c = msg_acceptor(now);
    c.on_connected(&[]);
    assert_eq!(actions(&mut c), [Action::Established]);
    c
}

#[test]
fn an_acceptor_answers_a_subscription_when_its_endpoint_did() {
    let now = Instant::now();
    let mut c = accepted(now);
    give(&mut c, subscribe(1), now);
    let request = SubscriptionRequest { tag: 9, on: true };
    assert_eq!(actions(&mut c), [Action::SubscriptionAsked(request)]);
    c.answer_subscription(SubscriptionOutcome::DONE, 77);
    let (word, body) = message(&actions(&mut c)[0]);
    assert_eq!(word, wire::cq_data(ControlKind::SUBSCRIPTION, 0));
    let answer = SubscriptionAnswer {
        tag: 9,
        outcome: SubscriptionOutcome::DONE,
        next: 77,
    };
    let expected = Control::SubscriptionAnswer { number: 1, answer };
    assert_eq!(
        Control::parse(ControlKind::SUBSCRIPTION, &body),
        Ok(expected)
    );
    // A second one before the first was answered.
    give(&mut c, subscribe(2), now);
    give(&mut c, subscribe(3), now);
    assert_violation(
        &mut c,
        Violation::OutOfTurn("a subscription before the last one was answered"),
    );
}

#[test]
fn subscriptions_out_of_place_are_violations() {
    let now = Instant::now();
    // To a side that does not publish.
    let mut c = established(now);
    give(&mut c, subscribe(1), now);
    let what = "a subscription at a side that does not publish";
    assert_violation(&mut c, Violation::OutOfTurn(what));
    // To one that never offered it.
    let deaf = LocalParams {
        features: 0b11,
        ..params(4)
    };
    let hello = hello_of(params(4), HelloKind::Hello);
    let mut c = Connection::accept(Form::Msg, deaf, &hello, now);
    actions(&mut c);
    c.on_connected(&[]);
    assert!(!c.may_ask_subscription());
    actions(&mut c);
    give(&mut c, subscribe(1), now);
    assert_violation(&mut c, WireError::Kind(6));
    // An answer to nothing, and a request after a goodbye.
    let mut c = established(now);
    let answer = SubscriptionAnswer {
        tag: 9,
        outcome: SubscriptionOutcome::DONE,
        next: 0,
    };
    give(
        &mut c,
        Control::SubscriptionAnswer { number: 0, answer },
        now,
    );
    assert_violation(&mut c, Violation::OutOfTurn("an answer to no subscription"));
    let mut c = accepted(now);
    give(&mut c, bye(0), now);
    actions(&mut c);
    give(&mut c, subscribe(1), now);
    let what = "a subscription after its goodbye";
    assert_violation(&mut c, Violation::OutOfTurn(what));
}

#[test]
fn a_peer_without_the_features_asked_for_is_refused() {
    let now = Instant::now();
    let publisher = LocalParams {
        require_features: wire::FEATURE_PUBLISH,
        ..params(4)
    };
    let plain = LocalParams {
        features: 0b11,
        ..params(4)
    };
    let hello = hello_of(plain, HelloKind::Hello);
    let mut c = Connection::accept(Form::Msg, publisher, &hello, now);
    let refusal = Refusal::new(RefusalCode::FEATURES, [0b11, 0b100]);
    let data = refusal.encode();
    let close = Action::Close(CloseReason::RefusedPeer(refusal));
    assert_eq!(actions(&mut c), [Action::Reject { data }, close]);
    assert_eq!(
        refusal.to_string(),
        "the endpoint asks for features 0b100 (bit 2: publish and subscribe), it was offered 0b11"
    );
    let mut c = Connection::initiate(Form::Msg, publisher, now);
    actions(&mut c);
    c.on_connected(&hello_of(plain, HelloKind::Ack));
    assert_closed(&mut c, CloseReason::RefusedPeer(refusal));
}

/// Two sides of the RDM form.
fn rdm_pair(local: LocalParams, now: Instant) -> (Connection, Connection) {
    let mut initiator = Connection::initiate(Form::Rdm, local, now);
    let (_, hello) = message(&actions(&mut initiator)[0]);
    let mut acceptor = Connection::accept(Form::Rdm, local, &hello, now);
    let (cq_data, ack) = message(&actions(&mut acceptor)[0]);
    initiator.on_control(cq_data, &ack, now);
    acceptor.on_control_done(ControlKind::HELLO_ACK);
    for side in [&mut initiator, &mut acceptor] {
        assert_eq!(actions(side), [Action::Established]);
        side.tick(now);
    }
    (initiator, acceptor)
}

/// A provider that makes a connection of its own anew loses what lay in it: the next heartbeat says
/// it again.
#[test]
fn a_grant_that_was_lost_is_said_again_beside_a_heartbeat() {
    let now = Instant::now();
    let (mut sender, mut receiver) = rdm_pair(impatient(), now);
    for _ in 0..4 {
        sender.on_data_posted().unwrap();
        receiver.on_data(1).unwrap();
    }
    assert_eq!(sender.may_send(), Err(SendBlocked::NoCredit));
    receiver.on_reposted(4);
    // This one never comes.
    assert_eq!(
        said(&actions(&mut receiver)[0]),
        Control::Credit { granted: 8 }
    );
    receiver.on_control_done(ControlKind::CREDIT);
    let asked = sleep(&mut receiver, now + T1);
    let (cq_data, question) = message(&asked[0]);
    let counts = Counts {
        sent: 0,
        granted: 8,
    };
    assert_eq!(Counts::parse(&question), Some(counts));
    sender.on_control(cq_data, &question, now);
    assert_eq!(sender.may_send(), Ok(()));
    assert_eq!(sender.credits(), 4);
    // While some are in flight, its own count is that of before; then it is of all.
    let (_, answer) = message(&actions(&mut sender)[0]);
    assert_eq!(Counts::parse(&answer).map(|it| it.sent), Some(0));
    for _ in 0..4 {
        sender.on_data_done();
    }
    sender.on_control_done(ControlKind::HEARTBEAT);
    let asked = sleep(&mut sender, now + T1);
    let (_, question) = message(&asked[0]);
    assert_eq!(Counts::parse(&question).map(|it| it.sent), Some(4));
    // More than it may ever have.
    let too_many = heartbeat(2, false).encode();
    let too_many = too_many.with_counts(Counts {
        sent: 0,
        granted: 99,
    });
    sender.on_control(cq_data, too_many.as_slice(), now);
    assert!(
        matches!(
            sender.close_reason(),
            Some(CloseReason::Violation(Violation::Credit(_)))
        ),
        "{:?}",
        sender.close_reason()
    );
}

#[test]
fn a_message_that_is_lost_ends_the_connection_and_the_peer_is_told() {
    let now = Instant::now();
    let (mut sender, mut receiver) = rdm_pair(impatient(), now);
    receiver.on_message_lost(T2);
    let told = actions(&mut receiver);
    let (cq_data, body) = message(&told[0]);
    assert_eq!(
        told[1],
        Action::Close(CloseReason::MessageLost { waited: T2 })
    );
    sender.on_control(cq_data, &body, now);
    let refusal = Refusal::new(RefusalCode::ABORTED, [0, 0]);
    assert_closed(&mut sender, CloseReason::PeerAborted(refusal));
    // Behind a goodbye, that counts what was sent.
    let (_, mut receiver) = rdm_pair(impatient(), now);
    let goodbye = bye(1).encode();
    receiver.on_control(wire::cq_data(ControlKind::BYE, 5), goodbye.as_slice(), now);
    receiver.on_message_lost(T2);
    assert_eq!(receiver.close_reason(), None);
}
