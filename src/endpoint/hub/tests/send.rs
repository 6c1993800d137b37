//! What a send endpoint owes its caller when the provider misbehaves.

#![allow(unsafe_code)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::buffer::{Payload, RingConfig, RingRegion, Segment};
use crate::endpoint::error::{Blocked, MessageLimit, SendErrorKind};
use crate::endpoint::event::{ConnectionEvent, DeadlinePolicy, SendEvent};
use crate::endpoint::link::PostRefused;
use crate::endpoint::link::fake::{CloseMode, FakeWait, NetConfig, Step, some_addr};
use crate::endpoint::reconnect::{ReconnectPolicy, Redial};
use crate::endpoint::send::core::SendCore;
use crate::endpoint::testing::rig::{
    PAYLOAD_MEMORY, Rig, SLOT_BYTES, Setup, far_future, payload_pool, send_settings,
};
use crate::error::FabricErrno;
use crate::in_flight::ContextKind;
use crate::memory::{Region, Registrar};
use crate::protocol::connection::{CloseReason, Form, State};
use crate::protocol::wire::HeaderMode;

fn again(n: usize) -> Vec<PostRefused> {
    vec![PostRefused::Again; n]
}

fn errno(code: i32) -> PostRefused {
    PostRefused::Errno(FabricErrno::new(code))
}

fn cells() -> Setup {
    Setup {
        net: NetConfig {
            contexts: ContextKind::Cells,
            ..NetConfig::default()
        },
        ..Setup::default()
    }
}

fn both_contexts() -> [Setup; 2] {
    [Setup::default(), cells()]
}

fn failure(rig: &Rig) -> &'static str {
    match rig.ended {
        Some(CloseReason::EndpointFailed(reason)) => reason,
        other => panic!("not failed: {other:?}"),
    }
}

// ---- 1, 2: refused posts ------------------------------------------------------------------------

#[test]
fn on_eagain_the_header_slot_the_credit_and_the_slab_entry_come_back() {
    for setup in both_contexts() {
        let mut rig = setup.connected();
        let near = rig.near;
        let before = rig.sender().stats();
        // More often than there are slots, credits or entries: one that is lost each time would be
        // missed.
        for round in 0..100 {
            rig.net.refuse_sends(near, &again(1));
            assert_eq!(rig.blocked(round), Blocked::Provider);
            rig.check_all_back();
        }
        let after = rig.sender().stats();
        assert_eq!((after.posted, after.eagain), (before.posted, 100));
        assert_eq!(after.would_block, before.would_block + 100);
        for key in 0..4 {
            rig.send(key).unwrap();
        }
        assert_eq!(rig.blocked(9), Blocked::Credits, "4 were granted, no more");
        rig.settle();
        assert_eq!(rig.received, [0, 1, 2, 3]);
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn on_a_refused_post_everything_comes_back() {
    let mut rig = Setup::default().connected();
    let near = rig.near;
    for key in 0..100 {
        rig.net.refuse_sends(near, &[errno(libc::EINVAL)]);
        let refused = rig.send(key).unwrap_err();
        assert_eq!(
            refused,
            SendErrorKind::Fabric(FabricErrno::new(libc::EINVAL))
        );
        rig.check_all_back();
    }
    let stats = rig.sender().stats();
    assert_eq!((stats.posted, stats.refused), (0, 100));
    rig.send(1).unwrap();
    rig.settle();
    assert_eq!(rig.completed, [1]);
    rig.end();
}

#[test]
fn an_eagain_storm_ends_in_progress() {
    let mut rig = Setup::default().connected();
    let near = rig.near;
    for key in 0..50 {
        rig.net.refuse_all_sends(near, Some(PostRefused::Again));
        for _ in 0..20 {
            assert_eq!(rig.blocked(key), Blocked::Provider);
        }
        rig.net.refuse_all_sends(near, None);
        let told = rig.writable;
        rig.poll_sender();
        assert_eq!(rig.writable, told + 1, "once, at {key}");
        rig.send(key).unwrap();
        rig.settle();
    }
    assert_eq!(rig.completed.len(), 50);
    rig.check_all_back();
    rig.end();
}

#[test]
fn a_control_message_waits_out_a_storm() {
    let mut rig = Setup::default().connected();
    let (near, far) = (rig.near, rig.far);
    // The receiver's grants meet a full queue, then the sender's goodbye does.
    rig.net.refuse_all_sends(far, Some(PostRefused::Again));
    for key in 0..4 {
        rig.send(key).unwrap();
    }
    rig.settle();
    assert_eq!(rig.blocked(9), Blocked::Credits);
    assert_eq!((rig.completed.len(), rig.ended), (4, None));
    rig.net.refuse_all_sends(far, None);
    rig.settle();
    rig.send(4).unwrap();
    rig.net.refuse_all_sends(near, Some(PostRefused::Again));
    rig.sender().begin_close(far_future());
    rig.settle();
    assert_eq!(rig.ended, None);
    rig.net.refuse_all_sends(near, None);
    rig.settle();
    assert_eq!(rig.ended, Some(CloseReason::Finished));
    assert_eq!(rig.received.len(), 5);
    rig.end();
}

#[test]
fn a_storm_without_end_ends_at_the_close_deadline() {
    let mut rig = Setup::default().connected();
    let near = rig.near;
    rig.net.refuse_all_sends(near, Some(PostRefused::Again));
    let deadline = rig.now() + Duration::from_millis(50);
    let events = rig.sender().close(deadline).unwrap();
    rig.absorb(events);
    assert_eq!(rig.ended, Some(CloseReason::ClosedByDeadline));
    assert!(rig.now() < deadline + Duration::from_millis(2));
    rig.end();
}

// ---- 3, 4, 5: completions -----------------------------------------------------------------------

#[test]
fn a_failed_send_fails_all_others_once_and_then_the_connection() {
    for position in 0..4 {
        for close in [CloseMode::Reports, CloseMode::Silent] {
            let mut rig = cells().connected();
            let (near, conn) = (rig.near, rig.conn);
            rig.net.set_close(near, close);
            for key in 0..4 {
                rig.send(key).unwrap();
            }
            rig.net.deliver(position);
            rig.net.fail_send(conn, libc::EIO);
            rig.poll_sender();
            let lost = CloseReason::PeerLost {
                errno: Some(FabricErrno::new(libc::EIO)),
            };
            assert_eq!(rig.ended, Some(lost));
            assert_eq!(rig.completed.len(), position);
            let keys: Vec<_> = rig.failed.iter().map(|(key, _)| *key).collect();
            assert_eq!(keys, (position as u64..4).collect::<Vec<_>>(), "in order");
            assert_eq!(rig.failed[0].1, libc::EIO);
            assert!(rig.failed[1..].iter().all(|(_, e)| *e == libc::ECANCELED));
            rig.check_all_back();
            assert_eq!(rig.send(9), Err(SendErrorKind::Closed(lost)));
            rig.settle();
            rig.end();
        }
    }
}

#[test]
fn a_completion_without_an_operation_fails_the_endpoint_for_good() {
    for setup in both_contexts() {
        let opaque = setup.net.contexts == ContextKind::Opaque;
        for bad in 0..6 {
            let mut rig = setup.clone().connected();
            let (near, conn) = (rig.near, rig.conn);
            for key in 0..3 {
                rig.send(key).unwrap();
            }
            let live = rig.net.sends_of(conn)[0];
            let context = match bad {
                0 => 0,
                1 => usize::MAX,
                2 => live + 1_000_000,
                3 if opaque => live - (1 << 32),
                4 if opaque => live + (1 << 32),
                3 => live + 1,
                4 => live - 8,
                _ => 0xdead_beef,
            };
            rig.net
                .inject(near, context, (bad % 2 == 0).then_some(libc::EIO));
            rig.poll_sender();
            assert!(failure(&rig).contains("no operation"));
            assert_eq!(rig.failed.len(), 3);
            assert!(rig.sender().stats().unknown_completions >= 1);
            assert_eq!(rig.sender().state(), State::Closed);
            rig.check_all_back();
            assert!(matches!(rig.send(7), Err(SendErrorKind::Closed(_))));
            rig.settle();
            rig.end();
        }
    }
}

#[test]
fn a_doubled_completion_fails_the_endpoint_and_pays_no_key_twice() {
    for setup in both_contexts() {
        let mut rig = setup.connected();
        let near = rig.near;
        for key in 0..3 {
            rig.send(key).unwrap();
        }
        rig.net.double(near, 1);
        rig.net.deliver(1);
        rig.poll_sender();
        assert!(failure(&rig).contains("no operation"));
        assert_eq!((rig.completed.len(), rig.failed.len()), (1, 2));
        rig.check_all_back();
        rig.settle();
        rig.end();
    }
}

#[test]
fn a_late_completion_finds_nothing_to_free() {
    for setup in both_contexts() {
        let mut rig = setup.connected();
        let (near, conn) = (rig.near, rig.conn);
        rig.send(1).unwrap();
        let context = rig.net.sends_of(conn)[0];
        rig.net.set_close(near, CloseMode::Silent);
        let now = rig.now();
        rig.sender().begin_close(now);
        rig.poll_sender();
        assert_eq!(rig.ended, Some(CloseReason::ClosedByDeadline));
        assert_eq!(rig.failed, [(1, libc::ECANCELED)]);
        rig.net.inject(near, context, None);
        rig.poll_sender();
        rig.check_all_back();
        rig.end();
    }
}

#[test]
fn an_overrun_of_the_completion_queue_fails_everything() {
    let mut rig = Setup::default().connected();
    let near = rig.near;
    for key in 0..4 {
        rig.send(key).unwrap();
    }
    rig.net.deliver(2);
    rig.net.break_cq(near, libc::EOVERFLOW);
    rig.poll_sender();
    assert!(failure(&rig).contains("queue broke"));
    // What was in the queue is gone with it: nobody knows which were sent.
    assert_eq!(rig.failed.len(), 4);
    rig.check_all_back();
    rig.end();
}

#[test]
fn a_broken_event_queue_fails_everything() {
    let mut rig = Setup::default().connected();
    let near = rig.near;
    rig.send(1).unwrap();
    rig.net.break_cm(near, libc::EIO);
    rig.poll_sender();
    assert!(failure(&rig).contains("event queue"));
    assert_eq!(rig.failed.len(), 1);
    rig.end();
}

// ---- 6, 7: the end ------------------------------------------------------------------------------

#[test]
fn keys_in_flight_come_back_at_the_close_deadline() {
    for close in [CloseMode::Reports, CloseMode::Silent] {
        for setup in both_contexts() {
            let mut rig = setup.connected();
            let near = rig.near;
            rig.net.set_close(near, close);
            for key in 0..4 {
                rig.send(key).unwrap();
            }
            let deadline = rig.now() + Duration::from_millis(20);
            let events = rig.sender().close(deadline).unwrap();
            rig.absorb(events);
            assert_eq!(rig.ended, Some(CloseReason::ClosedByDeadline));
            let keys: Vec<_> = rig.failed.iter().map(|(key, _)| *key).collect();
            assert_eq!(keys, [0, 1, 2, 3]);
            rig.check_all_back();
            rig.end();
        }
    }
}

#[test]
fn a_drop_releases_payloads_and_hands_over_the_keys() {
    for close in [CloseMode::Reports, CloseMode::Silent] {
        for setup in both_contexts() {
            let mut rig = setup.connected();
            let near = rig.near;
            rig.net.set_close(near, close);
            for key in 10..14 {
                rig.send(key).unwrap();
            }
            let before = crate::stats::process().abandoned;
            rig.sender = None;
            let mut keys = rig.abandoned.lock().unwrap().clone();
            keys.sort_unstable();
            assert_eq!(keys, [10, 11, 12, 13]);
            // Other tests run in this process, too.
            assert!(crate::stats::process().abandoned >= before + 4);
            rig.settle();
            rig.end();
        }
    }
}

#[test]
fn what_a_failed_close_may_still_touch_is_leaked() {
    for setup in both_contexts() {
        for dropped in [false, true] {
            let mut rig = setup.clone().connected();
            let near = rig.near;
            rig.net.set_close(near, CloseMode::Fails);
            for key in 0..4 {
                rig.send(key).unwrap();
            }
            let before = crate::stats::process().leaked;
            if dropped {
                rig.sender = None;
                assert_eq!(*rig.abandoned.lock().unwrap(), [0, 1, 2, 3]);
            } else {
                let now = rig.now();
                rig.sender().begin_close(now);
                rig.poll_sender();
                assert_eq!(rig.ended, Some(CloseReason::ClosedByDeadline));
                assert_eq!(rig.failed.len(), 4);
                assert!(rig.failed.iter().all(|(_, e)| *e == libc::EBUSY));
                assert!(rig.sender().stats().leaked > 4, "with control receives");
                rig.sender = None;
            }
            assert!(crate::stats::process().leaked > before + 4);
            // The slots are never used again.
            assert_eq!(rig.payloads.free_count(), rig.payloads.slots() - 4);
            assert_eq!(rig.headers.free_count(), rig.headers.capacity() - 4);
            rig.payloads
                .region()
                .deregister_from(rig.net.near().scope());
            let net = rig.net.clone();
            drop(rig);
            assert!(net.use_stuck() > 4, "the provider still works on them");
            net.check();
            assert!(!net.log().contains(&Step::RegionFreed(PAYLOAD_MEMORY)));
        }
    }
}

#[test]
fn a_shutdown_and_the_errors_may_come_in_any_order_and_often() {
    for order in 0..8 {
        let mut rig = Setup::default().connected();
        let conn = rig.conn;
        for key in 0..3 {
            rig.send(key).unwrap();
        }
        for bit in 0..3 {
            if order >> bit & 1 == 0 {
                rig.net.shut_down(conn);
            } else {
                rig.net.flush(conn, libc::ECONNRESET);
            }
            if bit == 1 {
                rig.poll_sender();
            }
        }
        rig.poll_sender();
        rig.poll_sender();
        assert!(
            matches!(rig.ended, Some(CloseReason::PeerLost { .. })),
            "{:?}",
            rig.ended
        );
        assert_eq!(rig.failed.len(), 3);
        rig.check_all_back();
        rig.settle();
        rig.end();
    }
}

fn place(log: &[Step], what: impl Fn(&Step) -> bool) -> usize {
    let found: Vec<_> = (0..log.len()).filter(|&i| what(&log[i])).collect();
    assert_eq!(found.len(), 1, "{log:?}");
    found[0]
}

#[test]
fn with_registrations_of_the_domain_the_endpoint_closes_first() {
    for in_flight in [0, 3] {
        let mut rig = Setup::default().connected();
        for key in 0..in_flight {
            rig.send(key).unwrap();
        }
        let (near, conn, domain) = (rig.near, rig.conn, rig.net.near().id());
        let base = rig.payloads.region().as_ptr().addr();
        let net = rig.net.clone();
        // Refused at once; it closes when the last operation lets go.
        rig.payloads.region().deregister_from(net.near().scope());
        drop(rig);
        net.check();
        let log = net.log();
        let ep = place(&log, |s| *s == Step::EpClosed(conn));
        let mr = place(&log, |s| {
            matches!(s, Step::MrClosed { registrar, base: b }
                if *registrar == domain && *b == base)
        });
        let freed = place(&log, |s| *s == Step::RegionFreed(PAYLOAD_MEMORY));
        let link = place(&log, |s| *s == Step::LinkClosed(near));
        assert!(ep < link && mr < freed, "{log:?}");
        assert_eq!(in_flight > 0, ep < mr, "{log:?}");
        assert_eq!(net.open_mrs(), 0);
    }
}

fn endpoint_scoped() -> Setup {
    let mut setup = Setup::default();
    setup.net.endpoint_scope = true;
    setup
}

#[test]
fn registrations_of_an_endpoint_close_before_it_when_it_is_drained() {
    let mut rig = endpoint_scoped().connected();
    let base = rig.payloads.region().as_ptr().addr();
    let headers = rig.headers.region().as_ptr().addr();
    let (conn, domain) = (rig.conn, rig.net.near().id());
    let own = |log: &[Step], of: usize| {
        place(log, |s| {
            matches!(s, Step::MrClosed { registrar, base }
                if *registrar != domain && *base == of)
        })
    };
    let before = rig.net.open_mrs();
    rig.send(1).unwrap();
    assert_eq!(rig.net.open_mrs(), before + 1, "registered on the way");
    rig.send(2).unwrap();
    assert_eq!(rig.net.open_mrs(), before + 1, "and only once");
    rig.settle();
    assert_eq!(rig.completed, [1, 2]);
    rig.sender().begin_close(far_future());
    rig.settle();
    assert_eq!(rig.ended, Some(CloseReason::Finished));
    let log = rig.net.log();
    let ep = place(&log, |s| *s == Step::EpClosed(conn));
    assert!(own(&log, base) < ep && own(&log, headers) < ep, "{log:?}");
    rig.end();
}

#[test]
fn registrations_of_an_endpoint_close_after_it_when_operations_are_in_flight() {
    for dropped in [false, true] {
        let mut rig = endpoint_scoped().connected();
        let base = rig.payloads.region().as_ptr().addr();
        let (conn, domain) = (rig.conn, rig.net.near().id());
        rig.send(1).unwrap();
        if dropped {
            rig.sender = None;
        } else {
            let now = rig.now();
            rig.sender().begin_close(now);
            rig.poll_sender();
            assert_eq!(rig.failed.len(), 1);
        }
        let log = rig.net.log();
        let ep = place(&log, |s| *s == Step::EpClosed(conn));
        let mr = place(&log, |s| {
            matches!(s, Step::MrClosed { registrar, base: b }
                if *registrar != domain && *b == base)
        });
        assert!(ep < mr, "{log:?}");
        rig.settle();
        rig.end();
    }
}

#[test]
fn a_region_that_the_domain_does_not_have_is_not_registered_with_the_endpoint() {
    let mut rig = endpoint_scoped().connected();
    let other = payload_pool(&rig.net, 5, 2);
    let payload = other.try_acquire().unwrap().freeze(8);
    let refused = rig.sender().send_data(payload.into(), b"", 1).unwrap_err();
    assert_eq!(refused.kind, SendErrorKind::NotRegistered { segment: 0 });
    drop(refused);
    rig.end();
}

// ---- 8: deadlines and wake-ups ------------------------------------------------------------------

#[test]
fn a_send_past_its_deadline_fails_the_connection() {
    let deadline = Duration::from_millis(20);
    let mut rig = Setup {
        send_deadline: Some(deadline),
        ..Setup::default()
    }
    .connected();
    rig.send(1).unwrap();
    rig.poll_sender();
    assert_eq!(rig.ended, None);
    rig.pass(deadline);
    rig.poll_sender();
    assert_eq!(rig.ended, Some(CloseReason::SendDeadline { deadline }));
    assert_eq!(rig.failed, [(1, libc::ECANCELED)]);
    rig.check_all_back();
    rig.settle();
    rig.end();
}

#[test]
fn a_send_past_its_deadline_is_called_late_once_and_still_completes() {
    let deadline = Duration::from_millis(20);
    let mut rig = Setup {
        send_deadline: Some(deadline),
        policy: DeadlinePolicy::Notify,
        ..Setup::default()
    }
    .connected();
    rig.send(1).unwrap();
    rig.send(2).unwrap();
    rig.pass(deadline);
    for _ in 0..3 {
        rig.poll_sender();
    }
    rig.late.sort_unstable();
    assert_eq!(rig.late, [1, 2]);
    // A later one has a deadline of its own.
    rig.send(3).unwrap();
    rig.poll_sender();
    assert_eq!(rig.late.len(), 2);
    rig.pass(deadline);
    rig.poll_sender();
    assert_eq!(rig.late, [1, 2, 3]);
    rig.settle();
    assert_eq!(rig.completed, [1, 2, 3]);
    rig.end();
}

#[test]
fn a_send_of_one_who_polls_seldom_has_all_of_its_deadline() {
    for deadline in [Duration::from_millis(100), Duration::from_secs(1)] {
        let mut rig = Setup {
            send_deadline: Some(deadline),
            policy: DeadlinePolicy::Notify,
            ..Setup::default()
        }
        .connected();
        rig.send(1).unwrap();
        rig.pass(deadline * 8 / 10);
        rig.send(2).unwrap();
        rig.pass(deadline * 3 / 10);
        rig.poll_sender();
        assert_eq!(rig.late, [1], "{deadline:?}");
        rig.pass(deadline);
        rig.poll_sender();
        assert_eq!(rig.late, [1, 2], "{deadline:?}");
        rig.settle();
        rig.end();
    }
}

#[test]
fn the_status_tells_credits_and_how_old_the_oldest_send_is() {
    let deadline = Duration::from_millis(200);
    let mut rig = Setup {
        send_deadline: Some(deadline),
        policy: DeadlinePolicy::Notify,
        ..Setup::default()
    }
    .connected();
    let status = rig.sender().status();
    assert_eq!((status.in_flight, status.credits), (0, 4));
    assert_eq!(
        (status.oldest, status.late, status.blocked),
        (None, 0, None)
    );

    rig.send(1).unwrap();
    let wait = Duration::from_millis(5);
    rig.pass(wait);
    rig.send(2).unwrap();
    let status = rig.sender().status();
    assert_eq!((status.in_flight, status.credits), (2, 2));
    assert!(status.oldest >= Some(wait), "of the first: {status:?}");

    rig.pass(deadline);
    rig.poll_sender();
    let status = rig.sender().status();
    assert_eq!((status.oldest, status.late), (None, 2));
    rig.send(3).unwrap();
    rig.send(4).unwrap();
    assert_eq!(rig.blocked(5), Blocked::Credits);
    let status = rig.sender().status();
    assert_eq!((status.in_flight, status.credits, status.late), (4, 0, 2));
    assert_eq!(status.blocked, Some(Blocked::Credits));
    assert!(
        status.oldest.is_some_and(|age| age < deadline),
        "{status:?}"
    );

    rig.settle();
    let status = rig.sender().status();
    assert_eq!((status.in_flight, status.credits), (0, 4));
    assert_eq!(
        (status.oldest, status.late, status.blocked),
        (None, 0, None)
    );
    rig.end();
}

#[test]
fn without_a_deadline_nothing_is_late_and_ages_are_unknown() {
    let mut rig = Setup {
        send_deadline: None,
        ..Setup::default()
    }
    .connected();
    rig.send(1).unwrap();
    let status = rig.sender().status();
    assert_eq!((status.in_flight, status.oldest, status.late), (1, None, 0));
    rig.settle();
    rig.end();
}

#[test]
fn after_each_kind_of_block_writable_comes_once() {
    let mut rig = Setup {
        depth: 2,
        ..Setup::default()
    }
    .rig();
    assert_eq!(rig.blocked(1), Blocked::Connecting);
    rig.settle();
    assert_eq!(rig.writable, 1);
    rig.send(1).unwrap();
    rig.send(2).unwrap();
    assert_eq!(rig.blocked(3), Blocked::Depth);
    rig.poll_sender();
    assert_eq!(rig.writable, 1);
    rig.net.deliver(1);
    rig.poll_sender();
    assert_eq!(rig.writable, 2);
    rig.send(3).unwrap();
    rig.net.deliver(2);
    rig.poll_sender();
    rig.send(4).unwrap();
    rig.net.deliver(1);
    rig.poll_sender();
    assert_eq!(rig.blocked(5), Blocked::Credits);
    rig.poll_sender();
    assert_eq!(rig.writable, 2);
    rig.settle();
    assert_eq!(rig.writable, 3);
    rig.send(5).unwrap();
    rig.settle();
    assert_eq!(rig.writable, 3);
    rig.end();
}

/// A second endpoint on the rig's headers.
fn neighbour(rig: &Rig) -> SendCore<crate::endpoint::link::fake::FakeLink> {
    let none = Arc::new(Mutex::new(Vec::new()));
    SendCore::connect(
        rig.net.link(),
        Arc::new(FakeWait),
        rig.setup.clock.clone(),
        some_addr(),
        send_settings(&rig.setup, &none, &rig.headers),
        Redial::new(ReconnectPolicy::off(), 0),
    )
    .unwrap()
}

#[test]
fn a_header_slot_of_another_endpoint_wakes_who_waits_for_it() {
    let mut rig = Setup {
        header_slots: 1,
        ..Setup::default()
    }
    .connected();
    let mut other = neighbour(&rig);
    let mut events = Vec::new();
    for _ in 0..3 {
        rig.settle();
        other.wait().wake();
        other.poll(&mut events).unwrap();
    }
    assert!(matches!(
        events[..],
        [SendEvent::Connection(ConnectionEvent::Connected(_))]
    ));
    let payload = rig.payload(50);
    other
        .send_data(payload.into(), &50u64.to_be_bytes(), 50)
        .unwrap();
    assert_eq!(rig.blocked(1), Blocked::HeaderSlots);
    rig.poll_sender();
    assert_eq!(rig.writable, 0);
    assert!(!rig.sender().wait().begin_poll());
    // The slot comes back, and goes again before the woken endpoint looks.
    rig.net.deliver(1);
    other.poll(&mut events).unwrap();
    let payload = rig.payload(51);
    other
        .send_data(payload.into(), &51u64.to_be_bytes(), 51)
        .unwrap();
    let mut quiet = Vec::new();
    assert!(
        rig.sender().wait().begin_poll(),
        "woken by the other's slot"
    );
    rig.sender().wait().wake();
    rig.sender().poll(&mut quiet).unwrap();
    assert!(quiet.is_empty(), "{quiet:?}");
    assert!(!rig.sender().wait().begin_poll());
    // The next time, too, somebody wakes us.
    rig.net.deliver(1);
    other.poll(&mut events).unwrap();
    assert!(rig.sender().wait().begin_poll(), "woken again");
    rig.poll_sender();
    assert_eq!(rig.writable, 1);
    rig.send(1).unwrap();
    drop((other, events));
    rig.settle();
    rig.end();
}

// ---- 9: refused before anything is posted -------------------------------------------------------

fn kind(rig: &mut Rig, payload: impl Into<Payload>, header: &[u8]) -> SendErrorKind {
    let refused = rig
        .sender()
        .send_data(payload.into(), header, 3)
        .unwrap_err();
    assert_eq!(refused.key, 3);
    refused.kind
}

#[test]
fn headers_and_lengths_are_judged_before_anything_is_taken() {
    let mut rig = Setup::default().connected();
    let payload = rig.payload(1);
    let too_long = SendErrorKind::HeaderTooLong { len: 63, max: 62 };
    assert_eq!(kind(&mut rig, payload.clone(), &[0; 63]), too_long);
    let many: Payload = (0..4).map(|_| payload.clone()).collect();
    let segments = SendErrorKind::TooManySegments { count: 4, max: 3 };
    assert_eq!(kind(&mut rig, many, b"h"), segments);
    drop(payload);
    let full = || rig_full(&rig);
    let three: Payload = [full(), full(), full()].into_iter().collect();
    let peer = SendErrorKind::TooLong {
        len: 3 * SLOT_BYTES as u64 + 3,
        max: 2 * SLOT_BYTES as u64,
        whose: MessageLimit::Peer,
    };
    assert_eq!(kind(&mut rig, three, b"h"), peer);
    assert_eq!(rig.sender().stats().refused, 3);
    rig.check_all_back();
    rig.end();

    let mut rig = Setup {
        header_mode: HeaderMode::Fixed(8),
        net: NetConfig {
            max_message: 100,
            ..NetConfig::default()
        },
        ..Setup::default()
    }
    .connected();
    let payload = rig.payload(1);
    let length = SendErrorKind::HeaderLength { len: 7, fixed: 8 };
    assert_eq!(kind(&mut rig, payload, &[0; 7]), length);
    let provider = SendErrorKind::TooLong {
        len: SLOT_BYTES as u64 + 8,
        max: 100,
        whose: MessageLimit::Provider,
    };
    let payload = rig_full(&rig);
    assert_eq!(kind(&mut rig, payload, &[0; 8]), provider);
    rig.check_all_back();
    rig.end();
}

fn rig_full(rig: &Rig) -> crate::buffer::Buffer {
    rig.payloads.try_acquire().unwrap().freeze(SLOT_BYTES)
}

#[test]
fn a_ring_fragment_counts_as_the_runs_it_has() {
    let mut rig = Setup {
        net: NetConfig {
            iov_limit: 2,
            ..NetConfig::default()
        },
        ..Setup::default()
    }
    .connected();
    let region = Region::host(4096).build().unwrap();
    region.register_with(rig.net.near()).unwrap();
    let mut ring = RingRegion::new(region, RingConfig::default()).unwrap();
    let room = ring.capacity() - 10;
    drop(ring.reserve(room).unwrap().commit(room));
    assert_eq!(ring.free_bytes(), ring.capacity());
    let wrapped = ring.reserve(20).unwrap().commit(20);
    let segments = SendErrorKind::TooManySegments { count: 2, max: 1 };
    assert_eq!(kind(&mut rig, wrapped, b"h"), segments);
    rig.end();
}

#[test]
fn buffers_that_are_not_registered_here_are_refused() {
    let mut rig = Setup::default().connected();
    let pool = payload_pool(&rig.net, 5, 2);
    let payload = || Segment::from(pool.try_acquire().unwrap().freeze(8));
    let ours = || Segment::from(rig.payload(1));
    let (a, b) = (ours(), payload());
    let unregistered = SendErrorKind::NotRegistered { segment: 1 };
    assert_eq!(kind(&mut rig, vec![a, b], b"h"), unregistered);
    pool.region().register_with(rig.net.far()).unwrap();
    let foreign = SendErrorKind::ForeignBuffer { segment: 0 };
    let b = payload();
    assert_eq!(kind(&mut rig, b, b"h"), foreign);
    assert_eq!(pool.free_count(), 2);
    rig.check_all_back();
    rig.end();
}

#[test]
fn while_closing_and_when_closed_sends_are_refused() {
    let mut rig = Setup::default().connected();
    rig.send(1).unwrap();
    rig.sender().begin_close(far_future());
    assert_eq!(rig.send(2), Err(SendErrorKind::Closing));
    rig.settle();
    assert_eq!(rig.ended, Some(CloseReason::Finished));
    let closed = SendErrorKind::Closed(CloseReason::Finished);
    assert_eq!(rig.send(2), Err(closed));
    assert_eq!(rig.received, [1]);
    rig.check_all_back();
    rig.end();
}

#[test]
fn nobody_listens() {
    let mut rig = Setup::default().rig();
    rig.receiver = None;
    rig.settle();
    assert!(
        matches!(rig.ended, Some(CloseReason::ConnectFailed(_))),
        "{:?}",
        rig.ended
    );
    rig.end();
}

#[test]
fn nobody_answers() {
    for form in [Form::Msg, Form::Rdm] {
        let mut rig = Setup {
            net: NetConfig {
                form,
                ..NetConfig::default()
            },
            handshake_timeout: Duration::from_millis(20),
            ..Setup::default()
        }
        .rig();
        let sender = rig.sender();
        let mut events = Vec::new();
        while sender.close_reason().is_none() {
            sender.wait().sleep(far_future()).unwrap();
            sender.poll(&mut events).unwrap();
        }
        rig.absorb(events);
        assert_eq!(rig.ended, Some(CloseReason::ConnectTimedOut));
        rig.end();
    }
}
