//! The schedule as a pure thing, and the layer over the fake link.

use proptest::prelude::*;

use super::*;
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::link::LinkConn;
use crate::endpoint::link::fake::{CloseMode, NetConfig};
use crate::endpoint::testing::rig::{Rig, Setup, far_future};
use crate::in_flight::ContextKind;
use crate::protocol::liveness::LivenessTimeouts;
use crate::protocol::wire::Refusal;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[test]
fn off_never_tries() {
    let mut off = Redial::new(ReconnectPolicy::off(), 1);
    assert_eq!(off.on_end(Instant::now(), &CloseReason::Finished), None);
    assert!(off.at().is_none() && !off.stop());
    assert_eq!(
        Schedule::new(ReconnectPolicy::off(), 1).next(Instant::now()),
        None
    );
}

#[test]
fn fixed_delays_are_all_the_same() {
    let now = Instant::now();
    let mut schedule = Schedule::new(ReconnectPolicy::fixed(ms(40)).max_attempts(3), 1);
    for attempt in 1..=3 {
        assert_eq!(schedule.next(now), Some((attempt, ms(40))));
    }
    assert_eq!(schedule.next(now), None, "three were allowed");
    assert_eq!(schedule.next(now), None);
}

#[test]
fn backoff_doubles_up_to_the_longest() {
    let now = Instant::now();
    let mut schedule = Schedule::new(ReconnectPolicy::backoff(ms(10), ms(65)).jitter(0), 1);
    let delays: Vec<_> = (0..40).filter_map(|_| schedule.next(now)).collect();
    let expected = [10, 20, 40, 65, 65].map(ms);
    assert_eq!(delays.len(), 40, "no limit");
    assert!(
        delays
            .iter()
            .zip(expected)
            .all(|((_, delay), wanted)| *delay == wanted)
    );
    assert!(delays[4..].iter().all(|(_, delay)| *delay == ms(65)));
}

#[test]
fn only_a_connection_that_stood_counts_as_a_success() {
    let now = Instant::now();
    let policy = ReconnectPolicy::backoff(ms(10), ms(80))
        .jitter(0)
        .max_attempts(2);
    let mut schedule = Schedule::new(policy, 1);
    assert_eq!(schedule.next(now), Some((1, ms(10))));
    // A peer that takes connections and drops them at once.
    schedule.on_connected(now + ms(20));
    assert_eq!(schedule.next(now + ms(30)), Some((2, ms(20))));
    schedule.on_connected(now + ms(60));
    assert_eq!(schedule.next(now + ms(139)), None);
    schedule.on_connected(now + ms(200));
    assert_eq!(
        schedule.next(now + ms(280)),
        Some((1, ms(10))),
        "it stood for 80 ms"
    );
}

#[test]
fn no_attempt_begins_after_the_longest_time() {
    let now = Instant::now();
    let mut schedule = Schedule::new(ReconnectPolicy::fixed(ms(30)).max_time(ms(100)), 1);
    assert_eq!(schedule.next(now), Some((1, ms(30))));
    assert_eq!(schedule.next(now + ms(35)), Some((2, ms(30))));
    assert_eq!(schedule.next(now + ms(70)), Some((3, ms(30))));
    assert_eq!(schedule.next(now + ms(71)), None);
}

#[test]
fn settings_out_of_range_are_refused() {
    for policy in [
        ReconnectPolicy::fixed(Duration::ZERO),
        ReconnectPolicy::backoff(ms(2), ms(1)),
        ReconnectPolicy::backoff(ms(1), Duration::from_secs(3601)),
        ReconnectPolicy::fixed(ms(1)).jitter(101),
        ReconnectPolicy::fixed(ms(1)).max_attempts(0),
        ReconnectPolicy::fixed(ms(1)).max_time(Duration::ZERO),
    ] {
        let error = policy.check().unwrap_err().to_string();
        assert!(error.contains("reconnect"), "{error}");
    }
    assert!(ReconnectPolicy::off().check().is_ok());
    assert!(ReconnectPolicy::backoff(ms(1), ms(1)).check().is_ok());
}

#[test]
fn what_can_not_change_is_not_tried_again() {
    let refused = |code| CloseReason::Refused(Refusal::new(code, [0, 0]));
    for reason in [
        refused(RefusalCode::VERSION),
        refused(RefusalCode::BY_APPLICATION),
        CloseReason::ClosedLocally,
        CloseReason::EndpointFailed("broken"),
    ] {
        assert!(!is_worth_a_retry(&reason), "{reason}");
    }
    for reason in [
        refused(RefusalCode::TOO_MANY_CONNECTIONS),
        refused(RefusalCode::CLOSING),
        CloseReason::ConnectTimedOut,
        CloseReason::PeerLost { errno: None },
        CloseReason::PeerSilent { silence: ms(1) },
        CloseReason::Finished,
    ] {
        assert!(is_worth_a_retry(&reason), "{reason}");
    }
}

fn any_policy() -> impl Strategy<Value = ReconnectPolicy> {
    let base = prop_oneof![
        (1..5000_u64).prop_map(|every| ReconnectPolicy::fixed(ms(every))),
        (1..500_u64, 0..10_000_u64)
            .prop_map(|(first, more)| ReconnectPolicy::backoff(ms(first), ms(first + more))),
    ];
    (
        base,
        0..=100_u8,
        prop::option::of(1..20_u32),
        prop::option::of(1..60_000_u64),
    )
        .prop_map(|(policy, jitter, attempts, time)| ReconnectPolicy {
            max_attempts: attempts,
            max_time: time.map(ms),
            ..policy.jitter(jitter)
        })
}

proptest! {
    /// Attempts that all fail, each after some time of its own.
    #[test]
    fn every_limit_holds(
        policy in any_policy(),
        seed in any::<u64>(),
        took in prop::collection::vec(0..3000_u64, 1..60),
    ) {
        prop_assert!(policy.check().is_ok());
        let start = Instant::now();
        let mut schedule = Schedule::new(policy, seed);
        let mut now = start;
        for (i, took) in took.into_iter().enumerate() {
            let Some((attempt, after)) = schedule.next(now) else {
                let attempts_used = policy.max_attempts.is_some_and(|max| i as u32 >= max);
                let longest = policy.delay(i as u32 + 1).unwrap();
                let time_used = policy
                    .max_time
                    .is_some_and(|max| now - start + longest > max);
                prop_assert!(attempts_used || time_used, "gave up for no reason");
                return Ok(());
            };
            let full = policy.delay(attempt).unwrap();
            let least = full.mul_f64(1.0 - f64::from(policy.jitter_percent) / 100.0);
            prop_assert_eq!(attempt, i as u32 + 1);
            prop_assert!(
                after <= full && after + ms(1) >= least,
                "{:?} of {:?}",
                after,
                full
            );
            prop_assert!(full <= policy.longest());
            prop_assert!(policy.max_attempts.is_none_or(|max| attempt <= max));
            now += after;
            prop_assert!(policy.max_time.is_none_or(|max| now - start <= max));
            now += ms(took);
        }
    }

    /// Two endpoints that lost their peer at the same moment do not come back together.
    #[test]
    fn jitter_spreads(seed in any::<u64>()) {
        let policy = ReconnectPolicy::backoff(Duration::from_secs(10), Duration::from_secs(10));
        let now = Instant::now();
        let first = Schedule::new(policy, seed).next(now);
        let second = Schedule::new(policy, seed.wrapping_add(1)).next(now);
        prop_assert_ne!(first, second);
    }
}

// ---- the layer ----------------------------------------------------------------------------------

fn soon() -> Setup {
    Setup {
        reconnect: ReconnectPolicy::fixed(ms(1)),
        max_connections: 4,
        ..Setup::default()
    }
}

/// Both ends hear that the transport is gone.
fn cut(rig: &Rig) {
    rig.net.shut_down(rig.conn);
    rig.net.shut_down(rig.far_conn());
}

/// Lets time pass until there is a connection again.
fn until_connected(rig: &mut Rig) {
    for _ in 0..100 {
        rig.settle();
        if rig.connected {
            rig.conn = rig.sender().conn().map(LinkConn::key).unwrap();
            return;
        }
        rig.pass(ms(1));
    }
    panic!("not connected again: {:?}", rig.ended);
}

#[test]
fn keys_come_back_before_the_reconnect_is_told_and_nothing_is_sent_again() {
    for (close, contexts, endpoint_scope) in [
        (CloseMode::Reports, ContextKind::Opaque, false),
        (CloseMode::Silent, ContextKind::Opaque, true),
        (CloseMode::Reports, ContextKind::Cells, true),
        (CloseMode::Silent, ContextKind::Cells, false),
    ] {
        let mut rig = Setup {
            net: NetConfig {
                contexts,
                endpoint_scope,
                ..NetConfig::default()
            },
            ..soon()
        }
        .connected();
        let id = rig.sender().id();
        for round in 1..=3 {
            let near = rig.near;
            rig.net.set_close(near, close);
            for key in 0..4 {
                rig.send(10 * round + key).unwrap();
            }
            cut(&rig);
            // The rig asserts that nothing is owed when the reconnect is told.
            rig.poll_sender();
            assert_eq!((rig.cuts as u64, rig.ended), (round, None));
            assert_eq!(rig.failed.len() as u64, 4 * round);
            rig.check_all_back();
            assert_eq!(
                rig.blocked(99),
                Blocked::Connecting,
                "between two connections"
            );
            let told = rig.writable;
            until_connected(&mut rig);
            assert_eq!(rig.writable, told + 1);
            rig.send(1000 + round).unwrap();
            rig.settle();
            assert_eq!(rig.received.last(), Some(&(1000 + round)));
            assert_eq!(
                rig.received.len() as u64,
                round,
                "what failed did not arrive after all"
            );
        }
        assert_eq!(rig.sender().id(), id);
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn an_endpoint_that_would_not_close_does_not_come_back() {
    let mut rig = soon().connected();
    rig.send(1).unwrap();
    let near = rig.near;
    rig.net.set_close(near, CloseMode::Fails);
    cut(&rig);
    rig.poll_sender();
    assert!(
        matches!(rig.ended, Some(CloseReason::PeerLost { .. })),
        "{:?}",
        rig.ended
    );
    assert_eq!(rig.cuts, 0);
    rig.net.use_stuck();
}

#[test]
fn without_a_policy_the_end_is_the_end() {
    let mut rig = Setup::default().connected();
    cut(&rig);
    rig.poll_sender();
    assert!(rig.ended.is_some());
    assert!(matches!(rig.send(1), Err(SendErrorKind::Closed(_))));
    rig.end();
}

#[test]
fn a_close_while_waiting_is_told_by_the_next_poll() {
    let mut rig = Setup {
        reconnect: ReconnectPolicy::fixed(Duration::from_secs(60)),
        ..soon()
    }
    .connected();
    cut(&rig);
    rig.poll_sender();
    assert_eq!(rig.cuts, 1);
    rig.sender().begin_close(far_future());
    rig.poll_sender();
    assert_eq!(rig.ended, Some(CloseReason::ClosedLocally));
    assert!(matches!(rig.send(1), Err(SendErrorKind::Closed(_))));
    rig.end();
}

// ---- liveness over the fake link ----------------------------------------------------------------

#[test]
fn a_receiver_that_does_not_poll_is_silent_then_lost_and_its_keys_come_back() {
    let (t1, t2) = (ms(60), ms(240));
    let liveness = LivenessTimeouts {
        unresponsive: Some(t1),
        lost: Some(t2),
    };
    let mut rig = Setup {
        liveness,
        ..Setup::default()
    }
    .connected();
    // Both poll, and nobody has anything to send: heartbeats go on.
    for _ in 0..240 {
        rig.settle();
        rig.pass(ms(2));
        assert!(!rig.silent && rig.ended.is_none(), "{:?}", rig.ended);
    }
    rig.send(1).unwrap();
    let stopped = rig.now();
    let mut unresponsive = None;
    while rig.ended.is_none() {
        rig.poll_sender();
        let silent_for = rig.now() - stopped;
        if rig.silent {
            unresponsive.get_or_insert(silent_for);
        }
        assert!(silent_for <= t2 + ms(2), "not lost in time");
        rig.pass(ms(1));
    }
    assert_eq!(rig.ended, Some(CloseReason::PeerSilent { silence: t2 }));
    // Its last word may be older than the stop by the time between two heartbeats.
    let unresponsive = unresponsive.expect("told before");
    assert!(
        (t1 / 2..=t1 + ms(2)).contains(&unresponsive),
        "{unresponsive:?}"
    );
    assert_eq!(rig.failed.len(), 1);
    rig.check_all_back();
    rig.end();
}
