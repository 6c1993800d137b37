//! Two machines that talk to each other, and each against bytes.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn key(byte: u8) -> PresharedKey {
    PresharedKey::from_bytes(&[byte; 32]).unwrap()
}

fn dial(now: Instant, key: Option<PresharedKey>) -> DialSettings {
    DialSettings {
        session: [9; 16],
        rail: 2,
        rails: 4,
        features: Features::BLAKE3 | Features::RESUME,
        key,
        nonce: [1; 32],
        deadline: now + Duration::from_secs(1),
    }
}

fn answer(now: Instant, key: Option<PresharedKey>) -> AnswerSettings {
    AnswerSettings {
        features: Features::BLAKE3 | Features::RAILS,
        streams: 3,
        payload_max: 1 << 20,
        ports: [7000, 7001, 0, 0, 0, 0],
        key,
        nonce: [2; 32],
        deadline: now + Duration::from_secs(1),
    }
}

fn bytes(message: &Message<'_>) -> ([u8; HEADER_LEN], Vec<u8>) {
    let mut header = [0; HEADER_LEN];
    let payload = message.encode(&mut header).to_vec();
    (header, payload)
}

/// Lets both talk until neither has anything to say. `change` gets each message on its way, and its
/// number.
fn talk(
    dial: DialSettings,
    answer: AnswerSettings,
    now: Instant,
    mut change: impl FnMut(usize, &mut [u8; HEADER_LEN], &mut Vec<u8>),
) -> [Then; 2] {
    let (mut dialing, hello) = Dialing::new(dial);
    let mut answering = Answering::new(answer);
    let mut ends = [Then::Wait, Then::Wait];
    let mut next = Some(hello);
    let mut number = 0;
    while let Some(message) = next.take() {
        let (mut header, mut payload) = bytes(&message);
        change(number, &mut header, &mut payload);
        let listener = (number + 1) % 2;
        if !matches!(ends[listener], Then::Wait) {
            break;
        }
        let step = match listener {
            0 => dialing.on_message(&header, &payload, now),
            _ => answering.on_message(&header, &payload, now),
        };
        next = step.say;
        ends[listener] = step.then;
        number += 1;
        assert!(number <= 4, "a handshake has four messages");
    }
    ends
}

fn agreed(then: &Then) -> Agreed {
    match then {
        Then::Ready(agreed) => *agreed,
        other => panic!("{other:?}"),
    }
}

fn code(then: &Then) -> RefusalCode {
    match then {
        Then::Over(StreamError::Refused { code, .. } | StreamError::GivenUp { code, .. }) => *code,
        other => panic!("{other:?}"),
    }
}

#[test]
fn both_agree_with_and_without_a_key() {
    let now = Instant::now();
    for secret in [None, Some(key(1))] {
        let ends = talk(
            dial(now, secret.clone()),
            answer(now, secret.clone()),
            now,
            |_, _, _| {},
        );
        let expected = Agreed {
            version: 1,
            features: Features::BLAKE3,
            session: [9; 16],
            rail: 2,
            rails: 4,
            streams: 3,
            payload_max: 1 << 20,
            ports: [0; 6],
            is_proven: secret.is_some(),
        };
        assert_eq!(ends.each_ref().map(agreed), [expected; 2]);
    }
}

#[test]
fn who_lacks_the_key_is_refused() {
    let now = Instant::now();
    let ends = talk(
        dial(now, Some(key(1))),
        answer(now, Some(key(2))),
        now,
        |_, _, _| {},
    );
    assert_eq!(ends.each_ref().map(code), [RefusalCode::KEY; 2]);
    let ends = talk(
        dial(now, None),
        answer(now, Some(key(2))),
        now,
        |_, _, _| {},
    );
    assert_eq!(ends.each_ref().map(code), [RefusalCode::KEY; 2]);
    // The receiver has none, and is ready; the sender closes.
    let ends = talk(
        dial(now, Some(key(1))),
        answer(now, None),
        now,
        |_, _, _| {},
    );
    assert!(matches!(
        ends,
        [Then::Over(StreamError::Unproven), Then::Ready(_)]
    ));
}

/// A peer without the key sends back what it got, or what it heard in another conversation.
#[test]
fn proofs_can_not_be_reflected_or_repeated() {
    let now = Instant::now();
    let (mut dialing, _) = Dialing::new(dial(now, Some(key(1))));
    let ack = HelloAck {
        version: 1,
        needs_proof: true,
        streams: 1,
        payload_max: 8192,
        features: Features::empty(),
        session: [9; 16],
        ports: [0; 6],
        nonce: [2; 32],
    };
    let (header, payload) = bytes(&Message::HelloAck(ack));
    let step = dialing.on_message(&header, &payload, now);
    let proof = step.say.expect("a proof");
    let (header, payload) = bytes(&proof);
    let step = dialing.on_message(&header, &payload, now);
    assert_eq!(code(&step.then), RefusalCode::KEY);

    let mut heard = None;
    let secret = || Some(key(1));
    let _ = talk(
        dial(now, secret()),
        answer(now, secret()),
        now,
        |number, header, payload| {
            if number == 2 {
                heard = Some((*header, payload.clone()));
            }
        },
    );
    let (header, payload) = heard.unwrap();
    let mut again = Answering::new(AnswerSettings {
        nonce: [3; 32],
        ..answer(now, secret())
    });
    let (_, hello) = Dialing::new(dial(now, secret()));
    let (hello, nonce) = bytes(&hello);
    assert!(matches!(
        again.on_message(&hello, &nonce, now).then,
        Then::Wait
    ));
    let step = again.on_message(&header, &payload, now);
    assert_eq!(code(&step.then), RefusalCode::KEY);
}

#[test]
fn versions_that_do_not_overlap_are_named() {
    let now = Instant::now();
    let later = |_: usize, header: &mut [u8; HEADER_LEN], _: &mut Vec<u8>| {
        if header[4] == 1 {
            (header[16], header[18]) = (7, 5);
        }
    };
    let ends = talk(dial(now, None), answer(now, None), now, later);
    match &ends[0] {
        Then::Over(StreamError::Refused { code, details, .. }) => {
            assert_eq!((*code, *details), (RefusalCode::VERSION, [1, 1]));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(code(&ends[1]), RefusalCode::VERSION);
    // One that can speak version 1, too, is talked to.
    let newer = |_: usize, header: &mut [u8; HEADER_LEN], _: &mut Vec<u8>| {
        if header[4] == 1 {
            header[16] = 7;
        }
    };
    let ends = talk(dial(now, None), answer(now, None), now, newer);
    assert_eq!(agreed(&ends[1]).version, 1);
}

#[test]
fn time_ends_it() {
    let now = Instant::now();
    let (mut dialing, hello) = Dialing::new(dial(now, None));
    let mut answering = Answering::new(answer(now, None));
    assert!(dialing.on_time(now).is_none() && answering.on_time(now).is_none());
    let late = dialing.deadline().max(answering.deadline());
    let (header, payload) = bytes(&hello);
    for step in [
        dialing.on_time(late).unwrap(),
        answering.on_message(&header, &payload, late),
    ] {
        assert!(matches!(
            step.then,
            Then::Over(StreamError::Deadline { .. })
        ));
        match step.say {
            Some(Message::Refuse(refuse)) => assert_eq!(refuse.code, RefusalCode::DEADLINE),
            other => panic!("{other:?}"),
        }
    }
    assert!(dialing.on_time(late).is_none(), "it has ended already");
}

#[test]
fn nothing_but_a_handshake_is_read_before_it_is_over() {
    let now = Instant::now();
    for kind in 0..=u8::MAX {
        let mut answering = Answering::new(answer(now, Some(key(1))));
        let mut header = [0; HEADER_LEN];
        header[..5].copy_from_slice(&[b'F', b'C', b'S', b'2', kind]);
        let step = answering.on_message(&header, &[], now);
        assert!(matches!(
            step.then,
            Then::Over(StreamError::Violation(_) | StreamError::Refused { .. })
        ));
    }
}

/// Kind, what follows it in the header, and the payload.
fn any_message() -> impl Strategy<Value = (u8, Vec<u8>, Vec<u8>)> {
    let any_bytes = |len| proptest::collection::vec(any::<u8>(), len);
    let kind = proptest::sample::select(vec![1_u8, 2, 3, 17, 20]);
    let payload = prop_oneof![any_bytes(0..1), any_bytes(32..33), any_bytes(0..600)];
    (kind, any_bytes(59..60), payload)
}

proptest! {
    /// Whatever is changed on the way: with a key, either nothing of it mattered or it ends in an
    /// error on the side that could know; never in two sides that believe in different things.
    #[test]
    fn whatever_is_changed_both_ends_are_safe(
        number in 0..4_usize,
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
        keyed in any::<bool>(),
    ) {
        let now = Instant::now();
        let secret = keyed.then(|| key(1));
        let mut changed = false;
        let ends = talk(
            dial(now, secret.clone()),
            answer(now, secret),
            now,
            |n, header, payload| {
                if n == number {
                    let at = at.index(HEADER_LEN + payload.len());
                    let byte = if at < HEADER_LEN {
                        &mut header[at]
                    } else {
                        &mut payload[at - HEADER_LEN]
                    };
                    changed = *byte != value;
                    *byte = value;
                }
            },
        );
        for end in &ends {
            if let Then::Ready(agreed) = end {
                prop_assert_eq!(agreed.is_proven, keyed);
                prop_assert!(
                    !(keyed && changed && number < 2),
                    "a hello was changed, and it was \
                    not noticed"
                );
            }
        }
    }

    /// Any bytes in any order, in each state.
    #[test]
    fn hostile_bytes_end_it(
        messages in proptest::collection::vec(any_message(), 1..4),
        keyed in any::<bool>(),
    ) {
        let now = Instant::now();
        let secret = keyed.then(|| key(1));
        let (mut dialing, _) = Dialing::new(dial(now, secret.clone()));
        let mut answering = Answering::new(answer(now, secret));
        for (kind, body, payload) in &messages {
            let mut header = [0; HEADER_LEN];
            header[..5].copy_from_slice(&[b'F', b'C', b'S', b'2', *kind]);
            header[5..].copy_from_slice(body);
            header[12..16].copy_from_slice(&(payload.len() as u32).to_le_bytes());
            for step in [
                dialing.on_message(&header, payload, now),
                answering.on_message(&header, payload, now),
            ] {
                match step.then {
                    Then::Ready(agreed) => prop_assert!(!keyed && !agreed.is_proven),
                    Then::Over(error) => {
                        prop_assert!(!error.to_string().contains(char::is_control))
                    }
                    Then::Wait => {}
                }
            }
        }
    }
}
