//! Publications at once: what goes to one subscriber is joined, where the provider looks at that.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// Three subscribers, over a provider that joins posts. The fake link counts it as an offence when
/// a flagged post is not followed before the next poll.
fn joining(form: Form, slow: SlowPolicy) -> Play {
    let base = Stage::of(form);
    Stage {
        net: NetConfig {
            uses_more: true,
            ..base.net
        },
        slow,
        ..base
    }
    .ready()
}

fn flagged(play: &Play) -> usize {
    play.net.flagged_and_injected(play.link).0
}

#[test]
fn a_batch_is_joined_for_each_subscriber_but_for_its_last() {
    for form in FORMS {
        let mut play = joining(form, SlowPolicy::Drop);
        let (told, refused) = play.publish_batch(TAG, 0..4);
        assert_eq!((told.len(), refused), (4, None));
        assert!(told.iter().all(|it| (it.posted, it.dropped) == (3, 0)));
        let numbers: Vec<_> = told.iter().map(|it| it.number).collect();
        assert_eq!(numbers, [0, 1, 2, 3]);
        assert_eq!(flagged(&play), 3 * 3, "{form:?}");
        play.settle();
        for subscriber in &play.subscribers {
            assert_eq!(subscriber.keys(), [0, 1, 2, 3]);
        }
        let (told, refused) = play.publish_batch(TAG, 4..5);
        assert_eq!((told.len(), refused), (1, None));
        assert_eq!(flagged(&play), 9, "one is not flagged");
        play.settle();
        let over: Vec<_> = (0..5).map(|key| (key, [3, 0, 0])).collect();
        assert_eq!(play.over, over);
        play.end();
    }
}

/// The policy says what becomes of those that one subscriber has no room for, and who is cut off
/// loses none that was taken for the others.
#[test]
fn a_batch_goes_by_the_policy_of_each_subscriber() {
    let after = LONG;
    for form in FORMS {
        for slow in [
            SlowPolicy::Drop,
            SlowPolicy::Wait {
                queue: 2,
                deadline: after,
            },
            SlowPolicy::Disconnect { queue: 1, after },
        ] {
            let mut play = joining(form, slow);
            // More than the depth of 4.
            let (told, refused) = play.publish_batch(TAG, 0..8);
            assert_eq!((told.len(), refused), (8, None));
            let counts: Vec<_> = told.iter().map(|it| [it.posted, it.waiting]).collect();
            assert_eq!(counts[..4], [[3, 0]; 4], "{form:?} {slow:?}");
            assert_eq!(told[7].dropped, 3);
            assert_eq!(flagged(&play), 9);
            play.settle();
            let waited = match slow {
                SlowPolicy::Wait { .. } => 2,
                _ => 0,
            };
            if let SlowPolicy::Disconnect { .. } = slow {
                let reasons = play.ended.iter().map(|end| end.1);
                let slow = |it: CloseReason| matches!(it, CloseReason::TooSlow { .. });
                assert_eq!(reasons.filter(|it| slow(*it)).count(), 3);
            } else {
                let all: Vec<_> = (0..4 + waited).collect();
                for subscriber in &play.subscribers {
                    assert_eq!(subscriber.keys(), all, "{form:?} {slow:?}");
                }
            }
            assert!(play.owed.is_empty());
            play.end();
        }
    }
}

/// It stops where one is refused, and posts what it took.
#[test]
fn a_batch_stops_at_the_first_that_is_refused() {
    for form in FORMS {
        let mut play = joining(form, SlowPolicy::Drop);
        // As many header slots, and publications, as there may be.
        let (told, refused) = play.publish_batch(TAG, 0..12);
        let blocked = SendErrorKind::WouldBlock(Blocked::Depth);
        assert_eq!((told.len(), refused), (8, Some(blocked)), "{form:?}");
        play.settle();
        assert_eq!(play.over.len(), 8);
        assert_eq!(play.writable, 1);
        let (told, refused) = play.publish_batch(99, 20..22);
        let nobody = SendErrorKind::NoSubscribers { tag: 99 };
        assert_eq!((told.len(), refused), (0, Some(nobody)));
        play.end();
    }
}

/// What was taken before the application's iterator panics is on its way.
#[test]
fn a_batch_whose_iterator_panics_leaves_nothing_behind() {
    for form in FORMS {
        let mut play = joining(form, SlowPolicy::Drop);
        let payloads = [play.payload(1), play.payload(2)];
        let given = payloads.each_ref().map(Buffer::index);
        let mut payloads = payloads.into_iter().zip(1_u64..);
        let batch = std::iter::from_fn(|| {
            let Some((payload, key)) = payloads.next() else {
                panics();
                return None;
            };
            Some((TAG, payload.into(), key.to_be_bytes(), key))
        });
        let mut told = Vec::new();
        let core = play.core.as_mut().expect("not dropped yet");
        let panicked = catch_unwind(AssertUnwindSafe(|| core.publish_batch(batch, &mut told)));
        assert!(panicked.is_err());
        for ((publication, index), key) in told.iter().zip(given).zip(1..) {
            play.owe(publication, key, index);
        }
        play.settle();
        assert_eq!(play.over, [(1, [3, 0, 0]), (2, [3, 0, 0])], "{form:?}");
        play.end();
    }
}
