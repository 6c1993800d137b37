//! Every interleaving of two machines with a few messages, a goodbye from either side, and no
//! deadline to hide behind.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::simulation::{Op, Pair};
use super::*;
use crate::soak::is_soak;

/// States at most; the explorations below need far fewer.
const STATES_MAX: usize = 400_000;

fn fingerprint(pair: &Pair, closed: [bool; 2]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (pair.fingerprint(), closed).hash(&mut hasher);
    hasher.finish()
}

/// Depth first over all orders of what can happen. Where nothing can happen any more, both must be
/// over.
fn explore(
    form: Form,
    credits: [u32; 2],
    messages: [u64; 2],
    questions: [u64; 2],
    requests: u64,
) -> (usize, usize) {
    let requests = ([requests; 2], [0; 2]);
    explore_with(Op::Send, form, credits, messages, questions, requests)
}

/// The same with another way to send, and with requests and fences of each side; a header is
/// followed by its payload in any case.
fn explore_with(
    send: fn(usize) -> Op,
    form: Form,
    credits: [u32; 2],
    messages: [u64; 2],
    questions: [u64; 2],
    requests: ([u64; 2], [u64; 2]),
) -> (usize, usize) {
    let start = Pair::new(form, credits, Instant::now());
    explore_from(start, send, messages, questions, requests)
}

/// The same from a state.
fn explore_from(
    start: Pair,
    send: fn(usize) -> Op,
    messages: [u64; 2],
    questions: [u64; 2],
    requests: ([u64; 2], [u64; 2]),
) -> (usize, usize) {
    let mut seen = HashSet::from([fingerprint(&start, [false; 2])]);
    let mut todo = vec![(start, [false; 2])];
    let mut ends = 0;
    while let Some((pair, closed)) = todo.pop() {
        let mut stuck = true;
        for op in moves(&pair, send, closed, messages, questions, requests) {
            let mut next = pair.clone();
            if !next.step(op) {
                continue;
            }
            stuck = false;
            let mut closed = closed;
            if let Op::Close(at) = op {
                closed[at] = true;
            }
            if seen.insert(fingerprint(&next, closed)) {
                todo.push((next, closed));
            }
        }
        assert!(seen.len() < STATES_MAX, "too many states");
        if stuck {
            pair.assert_over();
            ends += 1;
        }
    }
    (seen.len(), ends)
}

fn moves(
    pair: &Pair,
    send: fn(usize) -> Op,
    closed: [bool; 2],
    messages: [u64; 2],
    questions: [u64; 2],
    (requests, fences): ([u64; 2], [u64; 2]),
) -> Vec<Op> {
    let mut moves = Vec::new();
    for at in [0, 1] {
        moves.extend([
            Op::Act(at),
            Op::Deliver(at),
            Op::Complete(at),
            Op::ConnectedEvent(at),
            Op::SendPayload(at),
            Op::Repost(at),
        ]);
        if pair.sent(at) < messages[at] && !closed[at] {
            moves.push(send(at));
        }
        if pair.asked(at) < questions[at] && pair.both_established() {
            moves.push(Op::Ask(at));
        }
        if pair.requests(at) < requests[at] && pair.both_established() {
            moves.push(Op::Subscribe(at));
        }
        if pair.fences(at) < fences[at] && pair.both_established() {
            moves.push(Op::Fence(at));
        }
        if !closed[at] && pair.both_established() {
            moves.push(Op::Close(at));
        }
    }
    moves
}

#[test]
fn every_order_of_one_message_and_two_goodbyes_ends_well() {
    for form in [Form::Msg, Form::Rdm] {
        let (states, ends) = explore(form, [1, 1], [1, 0], [0, 0], 0);
        assert!(
            states > 100 && ends > 0,
            "{form:?}: {states} states, {ends} ends"
        );
    }
}

#[test]
fn every_order_of_two_messages_over_one_credit_ends_well() {
    let (states, ends) = explore(Form::Msg, [0, 1], [2, 0], [0, 0], 0);
    assert!(states > 100 && ends > 0, "{states} states, {ends} ends");
}

#[test]
fn every_order_of_questions_from_both_sides_and_goodbyes_ends_well() {
    for (messages, questions) in [([0, 0], [1, 1]), ([0, 0], [2, 0]), ([1, 0], [0, 1])] {
        let (states, ends) = explore(Form::Msg, [0, 1], messages, questions, 0);
        println!("{states} states, {ends} ends");
        assert!(states > 100 && ends > 0, "{states} states, {ends} ends");
    }
}

#[test]
fn every_order_of_subscriptions_and_goodbyes_ends_well() {
    for (form, messages, requests) in [
        (Form::Msg, [0, 0], 2),
        (Form::Msg, [0, 1], 1),
        (Form::Rdm, [0, 0], 1),
    ] {
        let (states, ends) = explore(form, [1, 0], messages, [0, 0], requests);
        println!("{states} states, {ends} ends");
        assert!(states > 100 && ends > 0, "{states} states, {ends} ends");
    }
}

#[test]
fn every_order_of_a_message_in_two_and_goodbyes_ends_well() {
    for (form, messages) in [
        (Form::Msg, [1, 0]),
        (Form::Rdm, [1, 0]),
        (Form::Msg, [2, 0]),
    ] {
        let none = ([0; 2], [0; 2]);
        let (states, ends) = explore_with(Op::SendHeader, form, [0, 1], messages, [0, 0], none);
        println!("{states} states, {ends} ends");
        assert!(states > 100 && ends > 0, "{states} states, {ends} ends");
    }
}

/// A fence is answered although the other side has said goodbye, as long as this side has not: else
/// who sends a long message and closes would close before it is handed out.
#[test]
fn every_order_of_fences_and_goodbyes_ends_well() {
    let few = [
        ([0, 1], [0, 0], [1, 1]),
        ([0, 1], [1, 0], [1, 0]),
        ([0, 1], [1, 0], [0, 1]),
        ([0, 0], [0, 0], [2, 0]),
    ];
    // Ten times the states.
    let more = [([0, 1], [1, 0], [1, 1]), ([0, 0], [0, 0], [2, 2])];
    let all = few.iter().chain(more.iter().filter(|_| is_soak()));
    for (credits, messages, fences) in all {
        let requests = ([0; 2], *fences);
        let (states, ends) =
            explore_with(Op::Send, Form::Msg, *credits, *messages, [0, 0], requests);
        println!("{states} states, {ends} ends");
        assert!(states > 100 && ends > 0, "{states} states, {ends} ends");
    }
}

/// The memory may be wanted back by another connection of the domain: no goodbye waits for that
/// fence, and it crosses one nevertheless.
#[test]
fn every_order_of_fences_for_others_and_goodbyes_ends_well() {
    for (messages, fences) in [([0, 0], [1, 1]), ([1, 0], [1, 0]), ([0, 0], [2, 0])] {
        let mut start = Pair::new(Form::Msg, [0, 1], Instant::now());
        start.fences_hold = false;
        let requests = ([0; 2], fences);
        let (states, ends) = explore_from(start, Op::Send, messages, [0, 0], requests);
        println!("{states} states, {ends} ends");
        assert!(states > 100 && ends > 0, "{states} states, {ends} ends");
    }
}
