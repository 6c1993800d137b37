//! Verdicts against the true time of the last word, with looks at random times.

use proptest::prelude::*;

use super::*;

const T1: Duration = Duration::from_millis(300);
const T2: Duration = Duration::from_millis(1000);
const PATIENCE: LivenessTimeouts = LivenessTimeouts {
    unresponsive: Some(T1),
    lost: Some(T2),
};
/// A quarter of `T1`.
const MOMENT: Duration = Duration::from_millis(75);

fn silence(liveness: LivenessTimeouts, now: Instant) -> SilenceTimer {
    let mut silence = SilenceTimer::new(liveness, now).expect("there is a limit");
    assert_eq!(silence.look(now), None, "the beginning counts as heard");
    silence
}

/// Looks whenever there is something to see, as a thread does that sleeps in between; what it saw,
/// and when.
fn sleep_until(
    silence: &mut SilenceTimer,
    from: Instant,
    until: Instant,
) -> Vec<(Duration, LivenessVerdict)> {
    let mut seen = Vec::new();
    while let Some(at) = silence.next_look().filter(|at| *at <= until) {
        if let Some(verdict) = silence.look(at) {
            seen.push((at - from, verdict));
            if matches!(verdict, LivenessVerdict::Lost { .. }) {
                break;
            }
        }
    }
    seen
}

#[test]
fn a_silent_peer_is_asked_then_unresponsive_then_lost() {
    let now = Instant::now();
    let mut silence = silence(PATIENCE, now);
    let seen = sleep_until(&mut silence, now, now + 2 * T2);
    let lost = LivenessVerdict::Lost { silence: T2 };
    assert_eq!(
        seen,
        [
            (T1 / 3, LivenessVerdict::Ask),
            (T1, LivenessVerdict::Unresponsive),
            (T2, lost)
        ],
        "each in time, since somebody listened all the while"
    );
}

#[test]
fn each_limit_can_be_left_out() {
    let now = Instant::now();
    assert!(SilenceTimer::new(LivenessTimeouts::ENDLESS, now).is_none());
    let only = |unresponsive, lost| LivenessTimeouts { unresponsive, lost };
    let mut told = silence(only(Some(T1), None), now);
    let seen = sleep_until(&mut told, now, now + 10 * T2);
    assert_eq!(
        seen,
        [
            (T1 / 3, LivenessVerdict::Ask),
            (T1, LivenessVerdict::Unresponsive)
        ]
    );
    assert_eq!(told.next_look(), None, "nothing more to say");
    let mut lost = silence(only(None, Some(T2)), now);
    let seen = sleep_until(&mut lost, now, now + 10 * T2);
    assert_eq!(seen[1], (T2, LivenessVerdict::Lost { silence: T2 }));
}

#[test]
fn a_word_ends_it_and_the_next_silence_counts_anew() {
    let now = Instant::now();
    let mut silence = silence(PATIENCE, now);
    sleep_until(&mut silence, now, now + T1);
    assert!(silence.hear(), "it had been unresponsive");
    assert!(!silence.hear(), "told once");
    let back = now + T1 + MOMENT;
    assert_eq!(silence.look(back), None);
    let seen = sleep_until(&mut silence, back, back + T1);
    assert_eq!(
        seen,
        [
            (T1 / 3, LivenessVerdict::Ask),
            (T1, LivenessVerdict::Unresponsive)
        ]
    );
}

#[test]
fn time_that_this_side_was_away_proves_nothing() {
    let now = Instant::now();
    let mut silence = silence(PATIENCE, now);
    // Busy for longer than all limits together: the queue has to be read before anything is said.
    let back = now + 3 * T2;
    assert_eq!(silence.look(back), Some(LivenessVerdict::Ask));
    assert_eq!(silence.look(back), None, "not yet, though it looks twice");
    let mut silence = self::silence(PATIENCE, now);
    assert_eq!(silence.look(now + T1 / 2), Some(LivenessVerdict::Ask));
    assert_eq!(silence.look(back), None, "away: not yet");
    assert_eq!(silence.next_look(), Some(back + MOMENT));
    assert!(!silence.hear());
    assert_eq!(
        silence.look(back + MOMENT),
        None,
        "it had spoken all the time"
    );
    assert_eq!(silence.next_look(), Some(back + MOMENT + T1 / 3));
}

#[test]
fn one_who_looks_seldom_comes_to_a_verdict_too() {
    let now = Instant::now();
    let mut silence = silence(PATIENCE, now);
    let seen: Vec<_> = (1..=8)
        .filter_map(|i| silence.look(now + i * T2).map(|verdict| (i, verdict)))
        .collect();
    let lost = LivenessVerdict::Lost { silence: T2 };
    assert_eq!(
        seen[..3],
        [
            (1, LivenessVerdict::Ask),
            (2, LivenessVerdict::Unresponsive),
            (4, lost)
        ]
    );
}

#[test]
fn a_verdict_waits_for_a_queue_that_is_behind() {
    let now = Instant::now();
    let mut silence = silence(PATIENCE, now);
    assert_eq!(silence.look(now + T1 / 2), Some(LivenessVerdict::Ask));
    let mut at = now + 2 * T2;
    for _ in 0..100 {
        silence.postpone(at);
        assert_eq!(silence.look(at), None);
        at += MOMENT;
    }
    assert_eq!(
        silence.look(at),
        Some(LivenessVerdict::Unresponsive),
        "the queue is read"
    );
}

#[test]
fn bytes_are_compared_within_one_silence() {
    let (now, mut bytes) = (Instant::now(), KernelBytes::default());
    assert!(!bytes.came(now, 100), "the first look");
    assert!(!bytes.came(now, 100), "nothing came");
    assert!(bytes.came(now, 101));
    assert!(
        !bytes.came(now + T1, 999),
        "a new silence: those were whole messages"
    );
    assert!(!bytes.came(now + T1, 999));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// Steps of the clock, with or without a word in them, and with a look at the end of some.
    #[test]
    fn verdicts_are_never_early_and_not_late_by_more_than_two_looks(
        steps in prop::collection::vec(
            (1_u64..120, prop::bool::weighted(0.15), any::<bool>()),
            1..200,
        ),
    ) {
        let start = Instant::now();
        let mut now = start;
        let mut silence = silence(PATIENCE, now);
        let (mut last_word, mut unresponsive) = (now, false);
        // The first look after the last word, and the first one that found a verdict due.
        let (mut noted, mut overdue) = (Some(now), None);
        for (millis, word, look) in steps {
            now += Duration::from_millis(millis);
            if word {
                prop_assert_eq!(silence.hear(), unresponsive);
                (last_word, unresponsive, noted, overdue) = (now, false, None, None);
            }
            if !look {
                continue;
            }
            let quiet = now - last_word;
            match silence.look(now) {
                Some(LivenessVerdict::Unresponsive) => {
                    prop_assert!(quiet >= T1 && !unresponsive);
                    (unresponsive, overdue) = (true, None);
                    continue;
                }
                Some(LivenessVerdict::Lost { silence }) => {
                    prop_assert!(quiet >= T2 && unresponsive && silence == T2);
                    return Ok(());
                }
                Some(LivenessVerdict::Ask) => prop_assert!(quiet >= T1 / 3),
                None => {}
            }
            let since = *noted.get_or_insert(now);
            if now - since >= if unresponsive { T2 } else { T1 } {
                let first = *overdue.get_or_insert(now);
                prop_assert!(now < first + MOMENT, "{:?} without a verdict", quiet);
            }
            prop_assert!(silence.next_look().is_some());
        }
    }
}
