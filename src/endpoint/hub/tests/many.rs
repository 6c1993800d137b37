//! What an endpoint owes its caller that both sends and receives, on connections that it made and
//! on others.

use std::time::Duration;

use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::event::DeadlinePolicy;
use crate::endpoint::event::ReceiveEvent;
use crate::endpoint::link::PostRefused;
use crate::endpoint::link::fake::{CloseMode, NetConfig, addr_of};
use crate::endpoint::testing::hubs::{HubSetup, Hubs};
use crate::endpoint::testing::rig::far_future;
use crate::error::{Error, FabricErrno};
use crate::protocol::connection::{CloseReason, Form};

const FORMS: [Form; 2] = [Form::Msg, Form::Rdm];

fn would_block(blocked: Blocked) -> Result<(), SendErrorKind> {
    Err(SendErrorKind::WouldBlock(blocked))
}

/// The connection at the other end of one of hub 0's.
fn far_of(hubs: &Hubs, hub: usize) -> crate::endpoint::link::ConnKey {
    let link = hubs.hubs[hub].link;
    let pairs = hubs.net.pairs();
    let its = |(key, _): &&(usize, usize)| hubs.net.link_of(*key) == link;
    pairs.iter().find(its).expect("connected").0
}

#[test]
fn messages_go_both_ways_over_one_connection() {
    for form in FORMS {
        let (mut hubs, ids) = Hubs::star(&HubSetup::of(form), 2);
        let (near, far) = (ids[0], hubs.hubs[1].connected[0]);
        for round in 0..20 {
            for key in 0..4 {
                hubs.hubs[0].send(near, round * 10 + key).unwrap();
                hubs.hubs[1].send(far, round * 10 + key).unwrap();
            }
            hubs.settle();
        }
        for hub in &hubs.hubs {
            assert_eq!((hub.completed.len(), hub.received.len()), (80, 80));
            hub.check_all_back();
        }
        // The goodbye: all that was sent before it arrives.
        hubs.hubs[0].send(near, 1000).unwrap();
        hubs.hubs[1].send(far, 1000).unwrap();
        hubs.hubs[0].core().begin_close(near, far_future());
        assert_eq!(hubs.hubs[0].send(near, 1001), Err(SendErrorKind::Closing));
        hubs.settle();
        for (hub, id) in [(0, near), (1, far)] {
            let hub = &hubs.hubs[hub];
            assert_eq!(hub.ended[&id], CloseReason::Finished, "{form:?}");
            assert_eq!(hub.received.last(), Some(&1000));
            hub.check_all_back();
        }
        assert_eq!(hubs.hubs[0].send(near, 1), Err(SendErrorKind::NoConnection));
        hubs.end();
    }
}

#[test]
fn who_dial_each_other_at_once_have_two_connections() {
    for form in FORMS {
        let mut hubs = Hubs::new(&HubSetup::of(form), 2);
        let a = hubs.dial(0, 1);
        let b = hubs.dial(1, 0);
        assert_eq!(hubs.hubs[0].send(a, 0), would_block(Blocked::Connecting));
        hubs.settle();
        for hub in &hubs.hubs {
            assert_eq!(hub.connected.len(), 2, "{form:?}: {:?}", hub.ended);
        }
        assert_eq!(hubs.hubs[0].writable, [a], "what blocked has passed");
        hubs.hubs[0].send(a, 1).unwrap();
        hubs.hubs[1].send(b, 2).unwrap();
        hubs.settle();
        assert_eq!(
            (&hubs.hubs[1].received[..], &hubs.hubs[0].received[..]),
            (&[1][..], &[2][..])
        );
        hubs.end();
    }
}

#[test]
fn a_peer_that_will_not_is_told_of_by_the_end_of_the_dialed_connection() {
    for form in FORMS {
        let mut hubs = Hubs::new(&HubSetup::of(form), 2);
        hubs.hubs[1].core().begin_close_all(far_future());
        let id = hubs.dial(0, 1);
        hubs.settle();
        assert!(
            matches!(hubs.hubs[0].ended[&id], CloseReason::Refused(_)),
            "{form:?}"
        );
        assert!(hubs.hubs[0].connected.is_empty());
        // Given up by this side.
        hubs.hubs[1].core = None;
        let id = hubs.dial(0, 1);
        hubs.hubs[0].core().begin_close(id, far_future());
        hubs.settle();
        assert!(hubs.hubs[0].ended.contains_key(&id), "{form:?}");
        hubs.end();
    }
}

#[test]
fn connections_and_receives_are_bounded_before_anything_is_sent() {
    let setup = HubSetup {
        max_connections: 1,
        ..HubSetup::of(Form::Rdm)
    };
    let mut hubs = Hubs::new(&setup, 3);
    hubs.dial(0, 1);
    let addr = addr_of(hubs.hubs[2].link);
    let refused = hubs.hubs[0].core().dial(&addr);
    assert!(
        matches!(refused, Err(Error::TooManyConnections { limit: 1 })),
        "{refused:?}"
    );
    hubs.settle();
    // The other side counts, too.
    let addr = addr_of(hubs.hubs[2].link);
    let refused = hubs.hubs[1].core().dial(&addr);
    assert!(
        matches!(refused, Err(Error::TooManyConnections { limit: 1 })),
        "{refused:?}"
    );
    hubs.end();
    let setup = HubSetup {
        receive_slots: 3,
        ..HubSetup::of(Form::Msg)
    };
    let mut hubs = Hubs::new(&setup, 2);
    let addr = addr_of(hubs.hubs[1].link);
    let refused = hubs.hubs[0].core().dial(&addr);
    assert!(
        matches!(refused, Err(Error::NoReceiveBuffers { free: 3, .. })),
        "{refused:?}"
    );
    hubs.end();
}

#[test]
fn on_eagain_all_comes_back_and_writable_follows() {
    for form in FORMS {
        let (mut hubs, ids) = Hubs::star(&HubSetup::of(form), 2);
        let link = hubs.hubs[0].link;
        hubs.net.refuse_sends(link, &[PostRefused::Again]);
        assert_eq!(hubs.hubs[0].send(ids[0], 1), would_block(Blocked::Provider));
        hubs.hubs[0].check_all_back();
        let other = PostRefused::Errno(FabricErrno::new(libc::EINVAL));
        hubs.net.refuse_sends(link, &[other]);
        let refused = hubs.hubs[0].send(ids[0], 1);
        assert!(
            matches!(refused, Err(SendErrorKind::Fabric(_))),
            "{refused:?}"
        );
        hubs.hubs[0].poll();
        assert_eq!(hubs.hubs[0].writable, ids);
        // Credits and numbers were undone: the connection goes on.
        for key in 2..6 {
            hubs.hubs[0].send(ids[0], key).unwrap();
        }
        hubs.settle();
        assert_eq!(hubs.hubs[1].received, [2, 3, 4, 5]);
        hubs.hubs[0].check_all_back();
        hubs.end();
    }
}

#[test]
fn each_bound_blocks_and_says_when_it_has_passed() {
    let setup = HubSetup {
        depth: 2,
        total: 3,
        ..HubSetup::of(Form::Rdm)
    };
    let (mut hubs, ids) = Hubs::star(&setup, 3);
    hubs.hubs[0].send(ids[0], 0).unwrap();
    hubs.hubs[0].send(ids[0], 1).unwrap();
    assert_eq!(hubs.hubs[0].send(ids[0], 2), would_block(Blocked::Depth));
    assert_eq!(hubs.hubs[0].core().sends_in_flight(ids[0]), 2);
    hubs.hubs[0].send(ids[1], 3).unwrap();
    assert_eq!(hubs.hubs[0].send(ids[1], 4), would_block(Blocked::Depth));
    hubs.hubs[0].poll();
    assert!(hubs.hubs[0].writable.is_empty());
    hubs.settle();
    let mut writable = std::mem::take(&mut hubs.hubs[0].writable);
    writable.sort_unstable();
    assert_eq!(writable, ids, "each once");
    hubs.end();

    let setup = HubSetup {
        header_slots: 1,
        receive_depth: 2,
        ..HubSetup::of(Form::Msg)
    };
    let (mut hubs, ids) = Hubs::star(&setup, 3);
    hubs.hubs[0].send(ids[0], 0).unwrap();
    assert_eq!(
        hubs.hubs[0].send(ids[1], 1),
        would_block(Blocked::HeaderSlots)
    );
    hubs.settle();
    assert_eq!(std::mem::take(&mut hubs.hubs[0].writable), [ids[1]]);
    // Credits: two, and the receiver does not poll.
    for key in [2, 3] {
        hubs.hubs[0].send(ids[0], key).unwrap();
        hubs.net.deliver(usize::MAX);
        hubs.hubs[0].poll();
    }
    assert_eq!(hubs.hubs[0].send(ids[0], 4), would_block(Blocked::Credits));
    hubs.settle();
    assert_eq!(hubs.hubs[0].writable, [ids[0]]);
    hubs.end();
}

#[test]
fn a_failed_send_ends_its_connection_and_no_other() {
    for form in FORMS {
        let (mut hubs, ids) = Hubs::star(&HubSetup::of(form), 3);
        for key in 0..3 {
            hubs.hubs[0].send(ids[0], key).unwrap();
        }
        hubs.hubs[0].send(ids[1], 3).unwrap();
        let far = far_of(&hubs, 1);
        let near = hubs
            .net
            .pairs()
            .iter()
            .find(|(_, peer)| *peer == far)
            .unwrap()
            .0;
        hubs.net.fail_send(near, libc::EIO);
        hubs.hubs[0].poll();
        assert_eq!(
            hubs.hubs[0].failed,
            [0, 1, 2],
            "{form:?}: in the order posted"
        );
        assert!(matches!(
            hubs.hubs[0].ended[&ids[0]],
            CloseReason::PeerLost { .. }
        ));
        assert_eq!(
            hubs.hubs[0].kept.len(),
            if form == Form::Rdm { 2 } else { 0 }
        );
        hubs.settle();
        assert_eq!(hubs.hubs[0].completed, [3]);
        hubs.hubs[0].check_all_back();
        hubs.hubs[0].send(ids[1], 4).unwrap();
        hubs.settle();
        assert_eq!(hubs.hubs[2].received, [3, 4]);
        hubs.end();
    }
}

#[test]
fn a_close_whose_time_is_over_fails_what_is_in_flight() {
    for (form, mode) in [
        (Form::Msg, CloseMode::Reports),
        (Form::Msg, CloseMode::Silent),
        (Form::Rdm, CloseMode::Silent),
    ] {
        let (mut hubs, ids) = Hubs::star(&HubSetup::of(form), 2);
        hubs.net.set_close(hubs.hubs[0].link, mode);
        for key in 0..4 {
            hubs.hubs[0].send(ids[0], key).unwrap();
        }
        let now = hubs.hubs[0].core().clock().now();
        hubs.hubs[0].core().begin_close(ids[0], now);
        hubs.hubs[0].poll();
        assert_eq!(hubs.hubs[0].failed, [0, 1, 2, 3]);
        assert_eq!(hubs.hubs[0].ended[&ids[0]], CloseReason::ClosedByDeadline);
        assert_eq!(
            hubs.hubs[0].kept.len(),
            if form == Form::Rdm { 4 } else { 0 }
        );
        assert_eq!(
            hubs.hubs[0].payloads.free_count(),
            hubs.hubs[0].payloads.slots() - hubs.hubs[0].kept.len(),
            "what the provider has is nobody else's"
        );
        hubs.settle();
        hubs.hubs[0].check_all_back();
        hubs.end();
    }
}

#[test]
fn rdm_what_a_gone_peer_left_in_flight_is_over_with_the_endpoint() {
    let (mut hubs, ids) = Hubs::star(&HubSetup::of(Form::Rdm), 2);
    hubs.hubs[1].core = None;
    for key in 0..3 {
        hubs.hubs[0].send(ids[0], key).unwrap();
    }
    hubs.settle();
    // The peer's last word was heard; what was sent is never reported.
    assert_eq!(hubs.hubs[0].failed, [0, 1, 2]);
    assert_eq!((hubs.hubs[0].kept.len(), hubs.hubs[0].owed.len()), (3, 0));
    let events = hubs.hubs[0].core().close(far_future()).unwrap();
    hubs.hubs[0].absorb(events);
    hubs.hubs[0].check_all_back();
    assert!(hubs.hubs[0].abandoned.lock().unwrap().is_empty());
    hubs.end();
}

#[test]
fn what_an_endpoint_that_does_not_close_may_touch_is_leaked() {
    for form in FORMS {
        let (mut hubs, ids) = Hubs::star(&HubSetup::of(form), 3);
        hubs.net.set_close(hubs.hubs[0].link, CloseMode::Fails);
        for key in 0..2 {
            hubs.hubs[0].send(ids[0], key).unwrap();
        }
        hubs.hubs[0].send(ids[1], 2).unwrap();
        if form == Form::Msg {
            let now = hubs.hubs[0].core().clock().now();
            hubs.hubs[0].core().begin_close(ids[0], now);
            hubs.hubs[0].poll();
            assert_eq!(
                (&hubs.hubs[0].failed[..], hubs.hubs[0].kept.len()),
                (&[0, 1][..], 2)
            );
        }
        let owed: Vec<_> = hubs.hubs[0].owed.keys().copied().collect();
        hubs.hubs[0].core = None;
        let heard = hubs.hubs[0].abandoned.lock().unwrap().clone();
        let mut heard: Vec<_> = heard.into_iter().map(|(_, key)| key).collect();
        heard.sort_unstable();
        let mut owed = owed;
        owed.sort_unstable();
        assert_eq!(heard, owed, "{form:?}");
        let hub = hubs.hubs.remove(0);
        drop((hub.payloads, hub.headers));
        // What the provider still does, it does to memory that is there.
        assert!(hubs.net.use_stuck() > 0);
        hubs.net.check();
        hubs.settle();
        hubs.end();
    }
}

#[test]
fn keys_in_flight_are_handed_to_the_drop() {
    for form in FORMS {
        let (mut hubs, ids) = Hubs::star(&HubSetup::of(form), 2);
        for key in 0..3 {
            hubs.hubs[0].send(ids[0], key).unwrap();
        }
        hubs.hubs[0].core = None;
        let mut heard = hubs.hubs[0].abandoned.lock().unwrap().clone();
        heard.sort_unstable();
        assert_eq!(heard, [(ids[0], 0), (ids[0], 1), (ids[0], 2)]);
        hubs.end();
    }
}

#[test]
fn one_header_slot_serves_the_sends_to_all() {
    for form in FORMS {
        let setup = HubSetup {
            header_slots: 1,
            ..HubSetup::of(form)
        };
        let (mut hubs, ids) = Hubs::star(&setup, 4);
        let hub = &mut hubs.hubs[0];
        let key = 77u64;
        let payload = hub.payload(key);
        let index = payload.index();
        let mut header = hub.core().prepare_header(&key.to_be_bytes(), key).unwrap();
        assert_eq!(
            hub.core().prepare_header(b"x", 0).unwrap_err(),
            SendErrorKind::WouldBlock(Blocked::HeaderSlots)
        );
        for (n, &id) in ids.iter().enumerate() {
            // The model wants keys that differ; the content is one.
            let sent = hub
                .core()
                .send_prepared(id, payload.clone().into(), &mut header, n as u64);
            sent.unwrap();
        }
        hub.core().drop_header(header);
        drop(payload);
        assert_eq!(hub.headers.free_count(), 0, "sends have it");
        let mut done = Vec::new();
        while done.len() < 3 {
            hubs.net.deliver(1);
            hubs.hubs[1..].iter_mut().for_each(|hub| hub.poll());
            let mut events = Vec::new();
            let core = hubs.hubs[0].core();
            core.poll(&mut events).unwrap();
            for event in events {
                if let crate::endpoint::ReceiveEvent::Completed { key, payload, .. } = event {
                    assert_eq!(payload.into_buffer().unwrap().index(), index);
                    done.push(key);
                }
            }
            let free = hubs.hubs[0].headers.free_count();
            assert_eq!(free, usize::from(done.len() == 3), "{done:?}");
        }
        hubs.hubs[1..].iter_mut().for_each(|hub| hub.poll());
        for hub in &hubs.hubs[1..] {
            assert_eq!(hub.received, [key]);
        }
        assert_eq!(
            hubs.hubs[0].payloads.free_count(),
            hubs.hubs[0].payloads.slots()
        );
        hubs.end();
    }
}

#[test]
fn a_late_send_is_told_or_ends_its_connection() {
    for (form, policy) in [
        (Form::Msg, DeadlinePolicy::Notify),
        (Form::Rdm, DeadlinePolicy::Notify),
        (Form::Msg, DeadlinePolicy::FailConnection),
        (Form::Rdm, DeadlinePolicy::FailConnection),
    ] {
        let setup = HubSetup {
            deadline: Some(Duration::from_millis(5)),
            policy,
            ..HubSetup::of(form)
        };
        let (mut hubs, ids) = Hubs::star(&setup, 3);
        hubs.hubs[0].send(ids[0], 0).unwrap();
        hubs.hubs[0].send(ids[0], 1).unwrap();
        setup.clock.advance(Duration::from_millis(5));
        hubs.hubs[0].poll();
        hubs.hubs[0].poll();
        if policy == DeadlinePolicy::Notify {
            assert_eq!(hubs.hubs[0].late, [0, 1]);
            hubs.settle();
            assert_eq!(hubs.hubs[0].completed, [0, 1]);
        } else {
            let ended = &hubs.hubs[0].ended;
            assert!(
                matches!(ended[&ids[0]], CloseReason::SendDeadline { .. }),
                "{ended:?}"
            );
            assert_eq!((&hubs.hubs[0].failed[..], ended.len()), (&[0, 1][..], 1));
        }
        hubs.settle();
        hubs.hubs[0].check_all_back();
        hubs.end();
    }
}

#[test]
fn registrations_of_connections_serve_their_own_sends() {
    let setup = HubSetup {
        net: NetConfig {
            endpoint_scope: true,
            ..NetConfig::default()
        },
        ..HubSetup::default()
    };
    let (mut hubs, ids) = Hubs::star(&setup, 3);
    for key in 0..4 {
        hubs.hubs[0].send(ids[0], key).unwrap();
        hubs.hubs[0].send(ids[1], 10 + key).unwrap();
    }
    hubs.settle();
    assert_eq!(hubs.hubs[0].completed.len(), 8);
    hubs.hubs[0].core().begin_close(ids[0], far_future());
    hubs.settle();
    hubs.hubs[0].send(ids[1], 20).unwrap();
    hubs.settle();
    hubs.hubs[0].check_all_back();
    hubs.end();
}

/// A provider with one segment a message: the header lies in front of the payload, and clones with
/// the same header go out at once.
#[test]
fn an_endpoint_with_many_connections_puts_headers_in_front_of_payloads() {
    for form in FORMS {
        let setup = HubSetup {
            net: NetConfig {
                form,
                iov_limit: 1,
                ..NetConfig::default()
            },
            ..HubSetup::default()
        };
        let (mut hubs, ids) = Hubs::star(&setup, 3);
        for key in 0..3 {
            hubs.hubs[0].send(ids[0], key).unwrap();
        }
        hubs.settle();
        assert_eq!(hubs.hubs[0].completed, [0, 1, 2]);
        let hub = &mut hubs.hubs[0];
        let payload = hub.payload(9);
        let mut header = hub.core().prepare_header(&9u64.to_be_bytes(), 9).unwrap();
        for &id in &ids {
            let clone = payload.clone().into();
            hub.core().send_prepared(id, clone, &mut header, 9).unwrap();
        }
        let refused = hub.core().send_data(ids[0], payload.into(), b"other", 9);
        let taken = SendErrorKind::WouldBlock(Blocked::HeaderRoom);
        assert_eq!(refused.unwrap_err().kind, taken);
        hub.core().drop_header(header);
        let mut over = 0;
        while over < 2 {
            hubs.net.deliver(usize::MAX);
            hubs.hubs[1..].iter_mut().for_each(|hub| hub.poll());
            let mut events = Vec::new();
            hubs.hubs[0].core().poll(&mut events).unwrap();
            let done = |event: &&ReceiveEvent| matches!(event, ReceiveEvent::Completed { .. });
            over += events.iter().filter(done).count();
        }
        assert!(
            hubs.hubs[1..]
                .iter()
                .all(|hub| hub.received.last() == Some(&9))
        );
        hubs.net.check();
    }
}
