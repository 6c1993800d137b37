//! Publications that wait for a gate, or are staged: once for all subscribers, each of whom has
//! them in order.

use super::*;
use crate::memory::Registrar;

/// All that a subscriber got, by key.
fn keys(play: &Play, n: usize) -> Vec<u64> {
    play.subscribers[n].keys()
}

/// One buffer for each publication, registered where the payloads are not.
fn staging(play: &Play, slots: u32) -> SharedBufferManager {
    let pool = payload_pool(&play.net, 2000, slots);
    pool.region().register_with(play.net.near()).unwrap();
    play.payloads
        .region()
        .deregister_from(play.net.near().scope());
    pool
}

#[test]
fn a_publication_waits_for_its_gate_and_holds_its_place() {
    for form in FORMS {
        let mut play = Stage::of(form).ready();
        play.subscribe(0, 9).unwrap();
        play.settle();
        play.counts(0);
        let (gate, told) = play.publish_gated(9, 1, None).unwrap();
        assert_eq!((told.posted, told.waiting, told.dropped), (1, 0, 0));
        assert_eq!(play.counts(2), [3, 0, 0]);
        play.settle();
        assert_eq!(keys(&play, 0), [0], "{form:?}");
        assert_eq!(keys(&play, 1), [0, 2], "who does not get it does not wait");
        assert_eq!(play.over.len(), 1);
        gate.open();
        play.settle();
        assert_eq!(keys(&play, 0), [0, 1, 2]);
        assert_eq!(play.over[1..], [(1, [1, 0, 0]), (2, [3, 0, 0])]);
        play.end();
    }
}

#[test]
fn one_gate_is_asked_for_all() {
    let mut play = Stage::of(Form::Msg).ready();
    let (gate, _) = play.publish_gated(TAG, 1, None).unwrap();
    let asked = gate.polls();
    assert!(asked >= 1, "at once, so that a copy begins");
    gate.open();
    play.settle();
    assert_eq!(gate.polls(), asked + 1, "though there are three");
    assert_eq!(play.over, [(1, [3, 0, 0])]);
    play.end();
}

#[test]
fn what_is_staged_is_copied_once_and_free_after_the_last() {
    for form in FORMS {
        let slow = SlowPolicy::Wait {
            queue: 2,
            deadline: LONG,
        };
        let mut play = Stage {
            slow,
            ..Stage::of(form)
        }
        .ready();
        let staging = staging(&play, 6);
        play.hold(0);
        for key in 0..6 {
            let (gate, told) = play.publish_gated(TAG, key, Some(&staging)).unwrap();
            assert_eq!(told.waiting, u32::from(key >= 4), "{key}");
            gate.open();
            play.settle();
        }
        assert_eq!(keys(&play, 1), [0, 1, 2, 3, 4, 5]);
        assert_eq!(play.over.len(), 4);
        assert_eq!(staging.free_count(), 4, "one slot for each that waits");
        play.let_go(0);
        assert_eq!(keys(&play, 0), [0, 1, 2, 3, 4, 5]);
        assert_eq!(play.over.len(), 6);
        assert_eq!(staging.free_count(), 6);
        play.end();
    }
}

#[test]
fn a_gate_that_fails_is_the_end_of_its_publication_in_words() {
    for form in FORMS {
        let mut play = Stage::of(form).ready();
        play.counts(0);
        let (gate, _) = play.publish_gated(TAG, 1, None).unwrap();
        play.counts(2);
        gate.fail();
        play.settle();
        assert_eq!(play.over, [(0, [3, 0, 0]), (1, [0, 0, 3]), (2, [3, 0, 0])]);
        for (key, _, outcome) in &play.outcomes {
            match outcome {
                PeerOutcome::Failed(error) => {
                    assert_eq!(*key, 1);
                    assert!(error.to_string().contains("the event failed"), "{error}");
                }
                other => assert_eq!((other, *key != 1), (&PeerOutcome::Sent, true)),
            }
        }
        for n in 0..3 {
            assert_eq!(
                (keys(&play, n), play.subscribers[n].missed),
                (vec![0, 2], 1)
            );
        }
        play.end();
    }
}

/// It waits for room, finds some, and fails then.
#[test]
fn a_gate_that_failed_fails_for_those_who_come_later() {
    for form in FORMS {
        let slow = SlowPolicy::Wait {
            queue: 2,
            deadline: LONG,
        };
        let mut play = Stage {
            slow,
            ..Stage::of(form)
        }
        .ready();
        let id = play.connection_of(0, 77);
        play.hold(0);
        for key in 0..4 {
            play.counts(key);
            play.settle();
        }
        let (gate, told) = play.publish_gated(TAG, 4, None).unwrap();
        assert_eq!((told.posted, told.waiting), (2, 1));
        gate.fail();
        play.settle();
        assert!(!play.over.iter().any(|(key, _)| *key == 4));
        play.let_go(0);
        assert!(matches!(play.outcome(4, id), PeerOutcome::Failed(_)));
        assert_eq!(play.over.last(), Some(&(4, [0, 0, 3])));
        assert_eq!(play.counts(5), [3, 0, 0]);
        play.settle();
        assert_eq!(keys(&play, 0), [0, 1, 2, 3, 5]);
        play.end();
    }
}

#[test]
fn a_subscriber_that_is_lost_takes_nothing_from_the_others() {
    for form in FORMS {
        let mut play = Stage::of(form).ready();
        let staging = staging(&play, 2);
        let id = play.connection_of(0, 77);
        let (gate, _) = play.publish_gated(TAG, 1, Some(&staging)).unwrap();
        play.publisher()
            .abort_for_test(id, CloseReason::PeerLost { errno: None });
        play.settle();
        assert!(matches!(play.outcome(1, id), PeerOutcome::Failed(_)));
        assert!(!gate.is_settled(), "the others wait for it");
        gate.open();
        play.settle();
        assert_eq!(play.over, [(1, [2, 0, 1])]);
        assert_eq!(staging.free_count(), 2);
        play.end();
    }
}

#[test]
fn with_nobody_left_it_is_over_though_its_gate_is_closed() {
    for form in FORMS {
        let mut play = Stage::of(form).ready();
        let staging = staging(&play, 2);
        let (gate, _) = play.publish_gated(TAG, 1, Some(&staging)).unwrap();
        for id in play.connected.clone() {
            let lost = CloseReason::PeerLost { errno: None };
            play.publisher().abort_for_test(id, lost);
        }
        play.settle();
        assert_eq!(play.over, [(1, [0, 0, 3])]);
        assert!(gate.is_settled());
        assert_eq!(staging.free_count(), 2);
        play.end();
    }
}

#[test]
fn a_wait_counts_as_time_on_the_way() {
    for form in FORMS {
        let mut play = Stage {
            deadline: Some(Duration::from_millis(20)),
            ..Stage::of(form)
        }
        .ready();
        play.publish_gated(TAG, 1, None).unwrap();
        play.settle();
        play.clock.advance(Duration::from_millis(20));
        play.settle();
        assert_eq!(play.over, [(1, [0, 0, 3])], "{form:?}");
        for (_, reason, _) in &play.ended {
            assert!(
                matches!(reason, CloseReason::SendDeadline { .. }),
                "{reason}"
            );
        }
        play.end();
    }
}

#[test]
fn a_goodbye_waits_for_what_was_accepted() {
    for form in FORMS {
        let mut play = Stage::of(form).ready();
        let (gate, _) = play.publish_gated(TAG, 1, None).unwrap();
        play.publisher().begin_close_all(far_future());
        play.settle();
        assert!(play.ended.is_empty());
        gate.open();
        play.settle();
        assert_eq!(play.over, [(1, [3, 0, 0])]);
        assert_eq!(play.ended.len(), 3);
        play.end();
    }
}

#[test]
fn a_publisher_that_is_dropped_settles_what_waits() {
    for form in FORMS {
        for staged in [false, true] {
            let mut play = Stage::of(form).ready();
            let staging = staged.then(|| staging(&play, 2));
            play.publish_gated(TAG, 1, staging.as_ref()).unwrap();
            play.publish_gated(TAG, 2, staging.as_ref()).unwrap();
            assert_eq!(play.owed.len(), 2);
            play.end();
            assert!(staging.is_none_or(|staging| staging.free_count() == 2));
        }
    }
}
