//! Long publications: to each subscriber that takes some, from the one buffer, piece by piece.

use super::*;
use crate::endpoint::link::LinkConn;
use crate::endpoint::link::fake::DeviceSupport;
use crate::fabric::AccessEnds;
use crate::fake_gpu::over_the_fake;
use crate::memory::Region;
use crate::protocol::wire::{self, Control};

/// The numbers of the connections, in the order of the subscribers.
fn connections(play: &mut Play) -> Vec<ConnectionId> {
    let count = play.subscribers.len();
    (0..count).map(|n| play.connection_of(n, 77)).collect()
}

fn keys(play: &Play) -> Vec<Vec<u64>> {
    play.subscribers.iter().map(Subscriber::keys).collect()
}

fn wait() -> SlowPolicy {
    SlowPolicy::Wait {
        queue: 8,
        deadline: LONG,
    }
}

/// Under each header mode. The last subscriber has no pool, and what is too long for it is dropped
/// for it, as without long messages.
#[test]
fn a_long_publication_goes_to_those_who_take_some() {
    for form in FORMS {
        for header_mode in [HeaderMode::Prefixed, HeaderMode::Fixed(24)] {
            let mut play = Stage {
                header_mode,
                ..Stage::long(form)
            }
            .ready();
            let at = connections(&mut play);
            for round in 0..6 {
                let key = 10 * round;
                let told = play.publish_long(TAG, key).unwrap();
                assert_eq!((told.posted, told.waiting, told.dropped), (2, 0, 1));
                assert_eq!(play.headers.free_count(), 7, "one slot for all");
                assert_eq!(play.payloads.free_count(), 31, "one buffer for all");
                // It keeps its place: the policy says what becomes of the next.
                assert_eq!(play.counts(key + 1), [1, 0, 2], "{form:?}");
                play.settle();
                let blocked = DropReason::NoRoom(Blocked::LongMessage);
                let blocked = PeerOutcome::Dropped(blocked);
                assert_eq!(play.outcome(key + 1, at[0]), &blocked);
                let outcome = play.outcome(key, at[2]).clone();
                let PeerOutcome::Dropped(DropReason::Refused(SendErrorKind::TooLong {
                    max, ..
                })) = outcome
                else {
                    panic!("{outcome:?}");
                };
                assert_eq!(max, 100);
            }
            let long: Vec<_> = (0..6).map(|round| 10 * round).collect();
            let short: Vec<_> = long.iter().map(|key| key + 1).collect();
            assert_eq!(keys(&play), [long.clone(), long, short]);
            let missed: Vec<_> = play.subscribers.iter().map(|it| it.missed).collect();
            assert_eq!(missed, [5, 5, 6], "the last ones are not behind anything");
            assert_eq!(play.ended, []);
            play.end();
        }
    }
}

#[test]
fn what_waits_behind_a_long_publication_goes_out_in_order() {
    for form in FORMS {
        let mut play = Stage {
            slow: wait(),
            ..Stage::long(form)
        }
        .ready();
        for round in 0..5 {
            let key = 10 * round;
            play.publish_long(TAG, key).unwrap();
            assert_eq!(play.counts(key + 1), [1, 2, 0]);
            let told = play.publish_long(TAG, key + 2).unwrap();
            assert_eq!((told.posted, told.waiting, told.dropped), (0, 2, 1));
            assert_eq!(play.counts(key + 3), [1, 2, 0]);
            play.settle();
        }
        let all: Vec<_> = (0..5).flat_map(|n| (10 * n)..(10 * n + 4)).collect();
        let short: Vec<_> = all.iter().copied().filter(|key| key % 2 == 1).collect();
        assert_eq!(keys(&play), [all.clone(), all, short], "{form:?}");
        play.end();
    }
}

/// Whose pool is used up gets no further ones: the others do not wait for it, and the deadline of
/// sends, or its policy, is its end.
#[test]
fn a_subscriber_that_holds_its_pool_holds_up_nobody() {
    let after = Duration::from_millis(50);
    let policies = [
        SlowPolicy::Drop,
        wait(),
        SlowPolicy::Disconnect { queue: 8, after },
    ];
    for form in FORMS {
        for slow in policies {
            let mut play = Stage {
                slow,
                deadline: Some(2 * after),
                long: Some((1, 4096)),
                ..Stage::long(form)
            }
            .ready();
            let at = connections(&mut play);
            play.hold(1);
            for key in 1..6 {
                play.publish_long(TAG, key).unwrap();
                play.settle();
            }
            assert_eq!(keys(&play), [vec![1, 2, 3, 4, 5], vec![1], vec![]]);
            assert_eq!(play.ended, []);
            play.clock.advance(after);
            play.settle();
            if let SlowPolicy::Disconnect { .. } = slow {
                let [(connection, CloseReason::TooSlow { waiting: 4, .. }, 1)] = play.ended[..]
                else {
                    panic!("{:?}", play.ended);
                };
                assert_eq!(connection, at[1]);
            } else {
                assert_eq!(play.ended, []);
                play.clock.advance(after);
                play.settle();
                let late = CloseReason::SendDeadline {
                    deadline: 2 * after,
                };
                assert_eq!(play.ended, [(at[1], late, 1)], "{form:?} {slow:?}");
            }
            assert!(play.owed.is_empty(), "every buffer is back");
            let of = |key| play.outcome(key, at[1]);
            assert_eq!(of(1), &PeerOutcome::Sent);
            assert!(matches!(of(2), PeerOutcome::Failed(_)), "{:?}", of(2));
            for key in 3..6 {
                assert!(matches!(of(key), PeerOutcome::Dropped(_)), "{:?}", of(key));
            }
            play.let_go(1);
            play.end();
        }
    }
}

/// Its connection goes on.
#[test]
fn one_that_no_slot_has_room_for_fails_with_the_limit() {
    for form in FORMS {
        let mut play = Stage {
            long: Some((2, 150)),
            ..Stage::long(form)
        }
        .ready();
        let at = connections(&mut play);
        let limit = play.subscribers[0]
            .long
            .as_ref()
            .map(SharedBufferManager::slot_size);
        play.publish_long(TAG, 1).unwrap();
        play.settle();
        for &id in &at[..2] {
            let PeerOutcome::Failed(error) = play.outcome(1, id) else {
                panic!("{:?}", play.outcomes);
            };
            assert_eq!(error.limit_bytes, limit.map(|limit| limit as u64));
        }
        assert_eq!(play.over, [(1, [0, 1, 2])]);
        assert_eq!(play.counts(2), [3, 0, 0]);
        play.settle();
        assert_eq!(keys(&play), [[2], [2], [2]], "{form:?}");
        play.end();
    }
}

#[test]
fn a_long_publication_waits_for_its_event() {
    for form in FORMS {
        let mut play = Stage::long(form).ready();
        let payload = play.payload_of(1, LONG_BYTES);
        let (index, gate) = (payload.index(), FakeGate::default());
        let payload = Payload::from(payload).behind(Box::new(gate.clone()));
        let told = play.publish_payload(TAG, payload, index, 1).unwrap();
        assert_eq!((told.posted, told.dropped), (2, 1));
        play.gates.push(gate.clone());
        play.settle();
        assert!(keys(&play)[0].is_empty(), "{form:?}");
        gate.open();
        play.settle();
        assert_eq!(keys(&play), [vec![1], vec![1], vec![]], "{form:?}");
        play.end();
    }
}

/// A goodbye of either side, and the loss of a connection, in the middle of a message: one outcome
/// for each, and the buffer comes back.
#[test]
fn a_connection_that_ends_in_a_long_publication_takes_nothing_from_the_others() {
    for form in FORMS {
        for steps in 0..24 {
            for cut in [true, false] {
                let mut play = Stage::long(form).ready();
                let at = connections(&mut play);
                play.publish_long(TAG, 1).unwrap();
                for step in 0..steps {
                    match step % 3 {
                        0 => play.poll_publisher(),
                        1 => drop(play.net.deliver(1)),
                        _ => play.subscribers.iter_mut().for_each(Subscriber::poll),
                    }
                }
                match cut {
                    true => {
                        let reason = CloseReason::PeerLost { errno: None };
                        play.publisher().abort_for_test(at[0], reason);
                    }
                    false => drop(play.publisher().begin_close(at[0], far_future())),
                }
                play.settle();
                assert_eq!(play.subscribers[1].keys(), [1], "{form:?} {cut} {steps}");
                let got = play.subscribers[0].keys();
                let outcome = play.outcome(1, at[0]);
                if !cut && got.is_empty() || *outcome == PeerOutcome::Sent {
                    assert_eq!(
                        *outcome == PeerOutcome::Sent,
                        got == [1],
                        "{form:?} {cut} {steps}"
                    );
                }
                play.end();
            }
        }
    }
}

/// The subscriber at this connection of the publisher's says this, honest or not.
fn say(play: &mut Play, connection: ConnectionId, said: Control) {
    let near = play.publisher().core().conn(connection).map(LinkConn::key);
    let far = play.net.peer_of(near.expect("it stands"));
    let mark = wire::cq_data(said.kind(), 0);
    play.net.say(far, Some(mark), said.encode().as_slice());
}

/// Whatever a subscriber says of a message that it was offered: its own connection ends, or its own
/// message fails, and the others have it whole.
#[test]
fn a_subscriber_that_lies_about_its_pool_harms_itself_alone() {
    let grant = |number, base, key| Control::LongGrant { number, base, key };
    let lies = [
        // A key that it does not have, a place that ends nowhere, a message that was not offered.
        (grant(0, 0, 0xbad), true),
        (grant(0, u64::MAX - 50, 1), true),
        (grant(7, 0, 1), true),
        // A pool without room, and then a grant all the same.
        (
            Control::LongRefused {
                number: 0,
                limit: 0,
            },
            true,
        ),
        // It is whole before it was written, or it is this side that sends one.
        (Control::LongDone { number: 0 }, false),
        (Control::LongOffer { number: 0, len: 9 }, false),
        (Control::LongOffer { number: 0, len: 9 }, true),
    ];
    for (lie, offered) in lies {
        let mut play = Stage::long(Form::Msg).ready();
        let at = connections(&mut play);
        if offered {
            play.publish_long(TAG, 1).unwrap();
            play.poll_publisher();
        }
        say(&mut play, at[0], lie);
        play.net.deliver(usize::MAX);
        // Before the honest answer.
        play.poll_publisher();
        play.settle();
        let ends: Vec<_> = play.ended.iter().map(|end| end.0).collect();
        assert_eq!(ends, [at[0]], "{lie:?}");
        if offered {
            assert!(matches!(play.outcome(1, at[0]), PeerOutcome::Failed(_)));
            assert_eq!(play.outcome(1, at[1]), &PeerOutcome::Sent, "{lie:?}");
            assert_eq!(keys(&play), [vec![], vec![1], vec![]], "{lie:?}");
        }
        assert_eq!(play.counts(2), [2, 0, 0]);
        play.settle();
        assert_eq!(play.subscribers[1].keys().last(), Some(&2), "{lie:?}");
        play.end();
    }
}

/// A long publication waits at the subscriber until nobody of its domain can write into it any
/// more, and so does the answer behind it that ends its subscription: after that none comes, and
/// the numbers of the next subscription begin anew.
#[test]
fn what_ends_a_subscription_stays_behind_a_long_publication() {
    let mut play = Stage::long(Form::Msg).ready();
    let first = |play: &mut Play| {
        for _ in 0..10 {
            play.net.deliver(usize::MAX);
            play.poll_publisher();
            play.subscribers[0].poll();
        }
    };
    play.unsubscribe(1, TAG).unwrap();
    play.settle();
    for key in 1..4 {
        play.publish(TAG, key).unwrap();
        play.settle();
    }
    play.publish_long(TAG, 4).unwrap();
    first(&mut play);
    assert_eq!(play.outcomes.iter().filter(|it| it.0 == 4).count(), 2);
    // Two others of the domain can't be asked, since nobody polls them.
    assert_eq!(play.subscribers[0].keys(), [1, 2, 3]);
    play.unsubscribe(0, TAG).unwrap();
    first(&mut play);
    assert_eq!(play.subscribers[0].on, [TAG], "its end is told behind it");
    play.settle();
    assert!(play.subscribers[0].on.is_empty());
    play.subscribe(0, TAG).unwrap();
    play.settle();
    assert_eq!(play.counts(5)[0], 2);
    play.settle();
    assert_eq!(play.subscribers[0].keys(), [1, 2, 3, 5]);
    assert_eq!(play.subscribers[0].missed, 0);
    play.end();
}

/// Its tag and number come to the host, whatever the header mode is.
#[test]
fn a_long_publication_lands_in_a_devices_memory() {
    let name = "a_long_publication_lands_in_a_devices_memory";
    over_the_fake(
        &format!("endpoint::publish::tests::long::{name}"),
        &[],
        || {
            for form in FORMS {
                for header_mode in [HeaderMode::Prefixed, HeaderMode::Fixed(24), HeaderMode::Raw] {
                    let region = Region::device(2 * 8192).build().unwrap();
                    let base = Stage::long(form);
                    let rma = base.net.rma.map(|rma| RmaLimits {
                        // As verbs beneath `ofi_rxm`: no other writes a device's memory there.
                        access_ends: match form {
                            Form::Msg => rma.access_ends,
                            Form::Rdm => AccessEnds::WithKey,
                        },
                        ..rma
                    });
                    let mut play = Stage {
                        net: NetConfig {
                            device: Some(DeviceSupport::default()),
                            rma,
                            ..base.net
                        },
                        subscribers: 2,
                        header_mode,
                        long_device: Some(DeviceBufferManager::new(region, 8192).unwrap()),
                        ..base
                    }
                    .ready();
                    for key in 1..4 {
                        let told = play.publish_long(TAG, key).unwrap();
                        assert_eq!((told.posted, told.dropped), (1, 1));
                        play.settle();
                        let bytes = bytes_of(key, LONG_BYTES);
                        let expected = match header_mode {
                            HeaderMode::Raw => {
                                (Vec::new(), [&key.to_be_bytes()[..], &bytes].concat())
                            }
                            _ => (key.to_be_bytes().to_vec(), bytes),
                        };
                        let landed = play.subscribers[0].landed.pop();
                        assert_eq!(landed, Some(expected), "{form:?} {header_mode}");
                        assert_eq!(play.over.last(), Some(&(key, [1, 1, 0])));
                    }
                    play.end();
                }
            }
        },
    );
}
