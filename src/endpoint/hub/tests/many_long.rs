//! Long messages that endpoints with many connections send: each piece by piece, in its place, with
//! one outcome whatever becomes of its connection, and nothing given back that the provider has.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::buffer::{HeaderSlotConfig, HeaderSlotManager, Payload, SharedBufferManager};
use crate::clock::Clock;
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::event::{
    ConnectionEvent, DeadlinePolicy, Inject, Level, Packing, ReceiveEvent,
};
use crate::endpoint::hub::in_flight_max::InFlightMax;
use crate::endpoint::hub::long_send::PIECES_MAX;
use crate::endpoint::hub::{Hub, HubSettings, OutboundSettings};
use crate::endpoint::link::fake::{CloseMode, FakeLink, NetConfig, addr_of};
use crate::endpoint::link::provider::ProviderLink;
use crate::endpoint::link::{ConnKey, PostRefused, RmaLimits};
use crate::endpoint::testing::hubs::{HubRig, HubSetup, Hubs};
use crate::endpoint::testing::rig::{FakeGate, Setup, far_future, receive_settings};
use crate::endpoint::{LongMessages, ReceiveConfig};
use crate::error::FabricErrno;
use crate::fabric::{EndpointKind, EndpointSettings, Shape};
use crate::id::ConnectionId;
use crate::in_flight::ContextKind;
use crate::memory::{Access, Region};
use crate::protocol::connection::{CloseReason, Form};
use crate::protocol::wire::{self, Control, ControlKind, HeaderMode, Hello, HelloKind};
use crate::{Domain, Fabric, ReceiveEndpoint};

const FORMS: [Form; 2] = [Form::Msg, Form::Rdm];

/// A provider whose messages have 100 bytes, and whose pieces 64, of 2 segments: four pieces of a
/// long message.
fn setup(form: Form) -> HubSetup {
    let base = NetConfig::default();
    let rma = base.rma.map(|rma| RmaLimits {
        iov_limit: 2,
        max_bytes: 64,
        ordered: form == Form::Msg,
        ..rma
    });
    HubSetup {
        net: NetConfig {
            form,
            max_message: 100,
            rma,
            ..base
        },
        receive_slots: 160,
        own_domains: true,
        sends_long: true,
        long: Some((2, 4096)),
        ..HubSetup::default()
    }
}

fn would_block(blocked: Blocked) -> Result<(), SendErrorKind> {
    Err(SendErrorKind::WouldBlock(blocked))
}

/// Hub 0 has offered hub 1 a long message, has its grant, and all pieces are at its provider.
fn begin_pieces(hubs: &mut Hubs) -> (ConnKey, ConnKey) {
    let (near, far) = hubs.ends(0, 1);
    hubs.hubs[0].poll();
    hubs.net.deliver_of(&[near]);
    hubs.hubs[1].poll();
    hubs.hubs[1].poll();
    hubs.net.deliver_of(&[far]);
    hubs.hubs[0].poll();
    assert_eq!(hubs.net.sends_of(near).len() as u32, PIECES_MAX);
    (near, far)
}

#[test]
fn long_messages_of_hubs_come_whole_and_in_their_place_both_ways() {
    for form in FORMS {
        for contexts in [ContextKind::Opaque, ContextKind::Cells] {
            let mut setup = setup(form);
            setup.net.contexts = contexts;
            let (mut hubs, ids) = Hubs::star(&setup, 2);
            let ends = [(0, ids[0]), (1, hubs.hubs[1].connected[0])];
            for round in 0..10 {
                let key = round * 10;
                for (hub, id) in ends {
                    let hub = &mut hubs.hubs[hub];
                    hub.send(id, key).unwrap();
                    hub.send_long(id, key + 1).unwrap();
                    assert_eq!(hub.send(id, key + 2), would_block(Blocked::LongMessage));
                    assert_eq!(hub.core().sends_in_flight(id), 2);
                }
                hubs.settle();
                for (hub, id) in ends {
                    let hub = &mut hubs.hubs[hub];
                    assert_eq!(std::mem::take(&mut hub.writable), [id], "{form:?}");
                    hub.send(id, key + 2).unwrap();
                }
                hubs.settle();
            }
            let all: Vec<_> = (0..10)
                .flat_map(|n| [n * 10, n * 10 + 1, n * 10 + 2])
                .collect();
            for hub in &hubs.hubs {
                assert_eq!((&hub.received, &hub.completed), (&all, &all), "{form:?}");
                hub.check_all_back();
            }
            // A goodbye waits for one.
            hubs.hubs[0].send_long(ids[0], 1000).unwrap();
            hubs.hubs[0].core().begin_close(ids[0], far_future());
            hubs.settle();
            assert_eq!(hubs.hubs[1].received.last(), Some(&1000), "{form:?}");
            assert_eq!(hubs.hubs[0].ended[&ids[0]], CloseReason::Finished);
            hubs.end();
        }
    }
}

#[test]
fn two_connections_of_a_hub_have_a_long_message_each() {
    for form in FORMS {
        let (mut hubs, ids) = Hubs::star(&setup(form), 3);
        for round in 0..5 {
            hubs.hubs[0].send_long(ids[0], round * 10).unwrap();
            hubs.hubs[0].send_long(ids[1], round * 10 + 1).unwrap();
            hubs.hubs[0].check();
            // Neither waits for the other: the second one's peer does not move.
            let [first, second] = [hubs.ends(0, 1), hubs.ends(0, 2)];
            for _ in 0..8 {
                hubs.hubs[0].poll();
                hubs.net.deliver_of(&[first.0, first.1]);
                hubs.hubs[1].poll();
            }
            assert_eq!(hubs.hubs[0].completed.last(), Some(&(round * 10)));
            assert_eq!(hubs.hubs[0].owed.len(), 1, "{form:?}");
            hubs.net.deliver_of(&[second.0, second.1]);
            hubs.settle();
        }
        assert_eq!(hubs.hubs[1].received, [0, 10, 20, 30, 40], "{form:?}");
        assert_eq!(hubs.hubs[2].received, [1, 11, 21, 31, 41]);
        // The loss of one is nothing to the other.
        hubs.hubs[0].send_long(ids[1], 51).unwrap();
        hubs.hubs[0].send_long(ids[0], 50).unwrap();
        let (near, _) = begin_pieces(&mut hubs);
        hubs.net.fail_send(near, libc::EIO);
        hubs.settle();
        assert_eq!(hubs.hubs[0].failed, [50], "{form:?}");
        assert_eq!(hubs.hubs[2].received.last(), Some(&51));
        hubs.hubs[0].check_all_back();
        hubs.end();
    }
}

#[test]
fn what_the_peer_s_pool_is_too_short_for_fails_with_the_limit() {
    for form in FORMS {
        let setup = HubSetup {
            long: Some((2, 150)),
            ..setup(form)
        };
        let (mut hubs, ids) = Hubs::star(&setup, 2);
        let limit = hubs.hubs[1].core().long_limit().expect("it has a pool");
        hubs.hubs[0].send_long(ids[0], 1).unwrap();
        hubs.settle();
        assert_eq!(hubs.hubs[0].failed, [1]);
        assert_eq!(hubs.hubs[0].errors[&1].limit_bytes, Some(limit));
        assert!(hubs.hubs[0].kept.is_empty());
        // Credit and number are back.
        for key in 10..30 {
            hubs.hubs[0].send(ids[0], key).unwrap();
            hubs.settle();
        }
        assert_eq!(hubs.hubs[1].received, (10..30).collect::<Vec<_>>());
        hubs.end();
    }
}

#[test]
fn an_offer_of_a_hub_waits_for_room_and_not_for_ever() {
    for form in FORMS {
        let setup = HubSetup {
            long: Some((1, 4096)),
            deadline: Some(Duration::from_millis(5)),
            ..setup(form)
        };
        let (mut hubs, ids) = Hubs::star(&setup, 2);
        hubs.hubs[1].held = Some(Vec::new());
        hubs.hubs[0].send_long(ids[0], 1).unwrap();
        hubs.settle();
        hubs.hubs[0].send_long(ids[0], 2).unwrap();
        hubs.settle();
        assert_eq!(hubs.hubs[1].received, [1], "the only slot is held");
        hubs.hubs[1].held = Some(Vec::new());
        hubs.settle();
        assert_eq!(hubs.hubs[1].received, [1, 2], "{form:?}");
        hubs.hubs[0].send_long(ids[0], 3).unwrap();
        hubs.settle();
        setup.clock.advance(Duration::from_millis(10));
        hubs.settle();
        let deadline = Duration::from_millis(5);
        let late = CloseReason::SendDeadline { deadline };
        assert_eq!(hubs.hubs[0].ended[&ids[0]], late, "{form:?}");
        assert_eq!(hubs.hubs[0].failed, [3]);
        hubs.hubs[0].check_all_back();
        hubs.end();
    }
}

#[test]
fn a_late_long_message_of_a_hub_is_told_once_where_that_is_asked_for() {
    for form in FORMS {
        let setup = HubSetup {
            deadline: Some(Duration::from_millis(5)),
            policy: DeadlinePolicy::Notify,
            ..setup(form)
        };
        let (mut hubs, ids) = Hubs::star(&setup, 3);
        hubs.hubs[0].send_long(ids[0], 1).unwrap();
        hubs.hubs[0].send_long(ids[1], 2).unwrap();
        for _ in 0..3 {
            setup.clock.advance(Duration::from_millis(5));
            hubs.hubs[0].poll();
        }
        assert_eq!(hubs.hubs[0].late, [1, 2], "{form:?}");
        hubs.settle();
        assert_eq!(hubs.hubs[0].completed.len(), 2);
        hubs.hubs[0].check_all_back();
        hubs.end();
    }
}

#[test]
fn who_was_granted_a_slot_by_a_hub_and_never_writes_loses_it() {
    for form in FORMS {
        let short = Duration::from_millis(1);
        let setup = HubSetup {
            long_deadline: Some(short),
            ..setup(form)
        };
        let (mut hubs, ids) = Hubs::star(&setup, 2);
        let far = hubs.hubs[1].connected[0];
        hubs.hubs[0].send_long(ids[0], 1).unwrap();
        begin_pieces(&mut hubs);
        setup.clock.advance(2 * short);
        hubs.hubs[1].poll();
        assert_eq!(hubs.hubs[1].ended[&far], CloseReason::LongDeadline);
        hubs.settle();
        assert_eq!(hubs.hubs[0].failed, [1], "{form:?}");
        hubs.hubs[0].check_all_back();
        hubs.end();
    }
}

/// What is behind others would overtake them.
#[test]
fn a_long_message_of_a_hub_waits_for_what_waits_for_a_gate() {
    for form in FORMS {
        let (mut hubs, ids) = Hubs::star(&setup(form), 2);
        let gate = hubs.hubs[0].send_gated(ids[0], 1).unwrap();
        let refused = hubs.hubs[0].send_long(ids[0], 2);
        assert_eq!(refused, would_block(Blocked::Gate));
        hubs.settle();
        assert!(hubs.hubs[0].writable.is_empty(), "told too early");
        gate.open();
        hubs.settle();
        assert_eq!(hubs.hubs[0].writable, ids, "{form:?}");
        hubs.hubs[0].send_long(ids[0], 2).unwrap();
        hubs.settle();
        assert_eq!(hubs.hubs[1].received, [1, 2]);
        // And so where the provider's queue is full.
        let link = hubs.hubs[0].link;
        hubs.net.refuse_all_sends(link, Some(PostRefused::Again));
        let gate = hubs.hubs[0].send_gated(ids[0], 3).unwrap();
        gate.open();
        hubs.hubs[0].poll();
        let refused = hubs.hubs[0].send_long(ids[0], 4);
        assert_eq!(refused, would_block(Blocked::Provider));
        hubs.net.refuse_all_sends(link, None);
        hubs.settle();
        hubs.hubs[0].send_long(ids[0], 4).unwrap();
        hubs.settle();
        assert_eq!(hubs.hubs[1].received, [1, 2, 3, 4]);
        hubs.end();
    }
}

#[test]
fn a_long_message_of_a_hub_takes_a_place_of_the_depth() {
    let setup = HubSetup {
        depth: 2,
        total: 3,
        ..setup(Form::Msg)
    };
    let (mut hubs, ids) = Hubs::star(&setup, 3);
    for key in 0..2 {
        hubs.hubs[0].send(ids[0], key).unwrap();
    }
    assert_eq!(
        hubs.hubs[0].send_long(ids[0], 2),
        would_block(Blocked::Depth)
    );
    hubs.hubs[0].send_long(ids[1], 3).unwrap();
    assert_eq!(
        hubs.hubs[0].send(ids[1], 4),
        would_block(Blocked::LongMessage)
    );
    hubs.settle();
    assert_eq!(hubs.hubs[0].completed.len(), 3);
    hubs.hubs[0].send_long(ids[0], 5).unwrap();
    hubs.settle();
    assert_eq!(hubs.hubs[1].received, [0, 1, 5]);
    hubs.end();
}

#[test]
fn a_header_for_several_connections_begins_long_messages_too() {
    for form in FORMS {
        for (shape, iov_limit) in [
            (Shape::Iov, 4),
            (Shape::Headroom, 1),
            (Shape::TwoMessages, 1),
        ] {
            let mut setup = HubSetup {
                shape: Some(shape),
                ..setup(form)
            };
            setup.net.iov_limit = iov_limit;
            let (mut hubs, ids) = Hubs::star(&setup, 3);
            let key = 7_u64;
            let hub = &mut hubs.hubs[0];
            let mut header = hub.core().prepare_header(&key.to_be_bytes(), key).unwrap();
            for &id in &ids {
                let payload = hub.long_payload(key);
                let sent = hub
                    .core()
                    .send_prepared(id, payload.into(), &mut header, key);
                sent.unwrap_or_else(|refused| panic!("{shape:?}: {refused:?}"));
            }
            hub.core().drop_header(header);
            let mut done = 0;
            for _ in 0..40 {
                hubs.net.deliver(usize::MAX);
                hubs.hubs[1..].iter_mut().for_each(HubRig::poll);
                let mut events = Vec::new();
                let core = hubs.hubs[0].core();
                core.wait().wake();
                core.poll(&mut events).unwrap();
                let is_done =
                    |event: &&ReceiveEvent| matches!(event, ReceiveEvent::Completed { .. });
                done += events.iter().filter(is_done).count();
            }
            assert_eq!(done, 2, "{form:?} {shape:?}");
            for hub in &hubs.hubs[1..] {
                assert_eq!(hub.received, [key], "{form:?} {shape:?}");
            }
            let hub = &hubs.hubs[0];
            assert_eq!(hub.headers.free_count(), hub.headers.capacity());
            assert_eq!(hub.payloads.free_count(), hub.payloads.slots());
            hubs.net.check();
        }
    }
}

#[test]
fn a_batch_of_a_hub_may_end_with_a_long_message() {
    for uses_more in [false, true] {
        let mut setup = setup(Form::Msg);
        setup.net.uses_more = uses_more;
        let (mut hubs, ids) = Hubs::star(&setup, 2);
        let hub = &mut hubs.hubs[0];
        let payloads = [hub.payload(1), hub.payload(2), hub.long_payload(3)];
        let given: Vec<_> = payloads.iter().map(|it| it.index()).collect();
        let messages = payloads.into_iter().zip(1_u64..);
        let messages =
            messages.map(|(payload, key)| (Payload::from(payload), key.to_be_bytes(), key));
        let (sent, refused) = hub.core().send_batch(ids[0], messages);
        assert!(refused.is_none(), "{refused:?}");
        assert_eq!(sent, 3);
        for (index, key) in given.into_iter().zip(1..) {
            hub.count(ids[0], key, index, Ok(())).unwrap();
        }
        hubs.settle();
        assert_eq!(hubs.hubs[1].received, [1, 2, 3]);
        hubs.hubs[0].check_all_back();
        hubs.end();
    }
}

// ---- the end of a connection --------------------------------------------------------------------

#[test]
fn rdm_pieces_at_the_provider_keep_the_memory_of_a_message_whose_connection_is_over() {
    let (mut hubs, ids) = Hubs::star(&setup(Form::Rdm), 3);
    hubs.hubs[0].send_long(ids[0], 1).unwrap();
    let (near, _) = begin_pieces(&mut hubs);
    let now = hubs.hubs[0].core().clock().now();
    hubs.hubs[0].core().begin_close(ids[0], now);
    hubs.hubs[0].poll();
    hubs.hubs[0].poll();
    assert_eq!(hubs.hubs[0].ended[&ids[0]], CloseReason::ClosedByDeadline);
    assert_eq!(hubs.hubs[0].failed, [1]);
    let is_kept = |hub: &HubRig| {
        assert_eq!(hub.payloads.free_count(), hub.payloads.slots() - 1);
        assert_eq!(hub.headers.free_count(), hub.headers.capacity() - 1);
        hub.kept.contains_key(&1)
    };
    assert!(is_kept(&hubs.hubs[0]), "its outcome came without it");
    // Others go on meanwhile.
    let (other, back) = hubs.ends(0, 2);
    hubs.hubs[0].send(ids[1], 2).unwrap();
    hubs.net.deliver_of(&[other, back]);
    hubs.hubs[2].poll();
    hubs.hubs[0].poll();
    assert_eq!(hubs.hubs[0].completed, [2]);
    // It is given back with its last piece, whatever becomes of that.
    for left in (0..PIECES_MAX).rev() {
        assert!(is_kept(&hubs.hubs[0]), "{left} pieces and one are out");
        hubs.net.fail_send(near, libc::ECANCELED);
        hubs.hubs[0].poll();
    }
    hubs.hubs[0].check_all_back();
    hubs.settle();
    hubs.hubs[0].send_long(ids[1], 3).unwrap();
    hubs.settle();
    assert_eq!(hubs.hubs[2].received, [2, 3]);
    hubs.end();
}

#[test]
fn rdm_a_long_message_that_the_provider_keeps_comes_back_with_the_endpoint() {
    for told in [true, false] {
        let (mut hubs, ids) = Hubs::star(&setup(Form::Rdm), 2);
        hubs.net.set_close(hubs.hubs[0].link, CloseMode::Silent);
        hubs.hubs[0].send_long(ids[0], 1).unwrap();
        begin_pieces(&mut hubs);
        let now = hubs.hubs[0].core().clock().now();
        if told {
            hubs.hubs[0].core().begin_close(ids[0], now);
            hubs.hubs[0].poll();
            hubs.hubs[0].poll();
            assert_eq!(hubs.hubs[0].kept.len(), 1);
        }
        let events = hubs.hubs[0].core().close(now).unwrap();
        hubs.hubs[0].absorb(events);
        assert_eq!(hubs.hubs[0].failed, [1]);
        hubs.hubs[0].check_all_back();
        assert!(hubs.hubs[0].abandoned.lock().unwrap().is_empty());
        hubs.end();
    }
}

/// How far a long message of hub 0 has come.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LongStage {
    Given,
    Offered,
    InPieces,
}

const STAGES: [LongStage; 3] = [LongStage::Given, LongStage::Offered, LongStage::InPieces];

fn reach(hubs: &mut Hubs, id: ConnectionId, stage: LongStage) {
    hubs.hubs[0].send_long(id, 1).unwrap();
    match stage {
        LongStage::Given => {}
        LongStage::Offered => hubs.hubs[0].poll(),
        LongStage::InPieces => drop(begin_pieces(hubs)),
    }
}

#[test]
fn the_key_of_a_long_message_is_handed_to_the_drop_at_any_stage() {
    for form in FORMS {
        for stage in STAGES {
            let (mut hubs, ids) = Hubs::star(&setup(form), 2);
            reach(&mut hubs, ids[0], stage);
            hubs.hubs[0].core = None;
            let heard = hubs.hubs[0].abandoned.lock().unwrap().clone();
            assert_eq!(heard, [(ids[0], 1)], "{form:?} {stage:?}");
            hubs.end();
        }
    }
}

#[test]
fn what_waits_on_a_connection_is_handed_to_the_drop_behind_what_is_posted() {
    for form in FORMS {
        let (mut hubs, ids) = Hubs::star(&setup(form), 2);
        hubs.hubs[0].send(ids[0], 1).unwrap();
        let _gate = hubs.hubs[0].send_gated(ids[0], 2).unwrap();
        hubs.hubs[0].core = None;
        let mut heard = hubs.hubs[0].abandoned.lock().unwrap().clone();
        heard.sort_unstable();
        assert_eq!(heard, [(ids[0], 1), (ids[0], 2)], "{form:?}");
        hubs.end();
    }
}

/// The same of operations, whose connections share their endpoint or not.
#[test]
fn an_operation_that_waits_at_a_hub_is_handed_to_the_drop() {
    for form in FORMS {
        for stuck in [false, true] {
            let setup = HubSetup {
                windows: 4,
                ..setup(form)
            };
            let (mut hubs, ids) = Hubs::star(&setup, 2);
            let (base, keep) = hubs.net.keep_alive(5, 4096);
            // SAFETY: `keep` owns the memory and goes with the region; nobody else has it, and it
            // is initialised.
            let region = unsafe { Region::external(base, 4096, keep) }.unwrap();
            let memory = region.slice(0..64).unwrap();
            let far = hubs.hubs[1].connected[0];
            let exposed = hubs.hubs[1]
                .core()
                .expose(far, memory.into(), Access::WRITE);
            let local = exposed.unwrap();
            let hub = &mut hubs.hubs[0];
            let window = hub.core().open_window(ids[0], &local.descriptor()).unwrap();
            let gate = FakeGate::default();
            let payload = Payload::from(hub.payload(1)).behind(Box::new(gate.clone()));
            let level = Level::Delivered;
            let taken = hub.core().write(payload, window.at(0), None, level, 1);
            taken.unwrap();
            if stuck {
                hubs.net.set_close(hubs.hubs[0].link, CloseMode::Fails);
            }
            hubs.hubs[0].core = None;
            let heard = hubs.hubs[0].abandoned.lock().unwrap().clone();
            assert_eq!(heard, [(ids[0], 1)], "{form:?} {stuck}");
            let hub = &hubs.hubs[0];
            assert!(gate.is_settled(), "{form:?} {stuck}");
            assert_eq!(hub.payloads.free_count(), hub.payloads.slots());
            drop((local, window));
            hubs.hubs[1].core = None;
            hubs.net.check();
        }
    }
}

#[test]
fn pieces_of_an_endpoint_that_does_not_close_are_leaked_with_their_message() {
    for form in FORMS {
        for stage in STAGES {
            let (mut hubs, ids) = Hubs::star(&setup(form), 2);
            hubs.net.set_close(hubs.hubs[0].link, CloseMode::Fails);
            reach(&mut hubs, ids[0], stage);
            if form == Form::Msg {
                let now = hubs.hubs[0].core().clock().now();
                hubs.hubs[0].core().begin_close(ids[0], now);
                hubs.hubs[0].poll();
                hubs.hubs[0].poll();
                assert_eq!(hubs.hubs[0].failed, [1], "{stage:?}");
                // Of one that is not in pieces, the provider has nothing.
                let leaked = usize::from(stage == LongStage::InPieces);
                assert_eq!(hubs.hubs[0].kept.len(), leaked, "{stage:?}");
            }
            hubs.hubs[0].core = None;
            let heard = hubs.hubs[0].abandoned.lock().unwrap().len();
            assert_eq!(heard, usize::from(form == Form::Rdm), "{form:?} {stage:?}");
            let hub = hubs.hubs.remove(0);
            drop((hub.payloads, hub.headers));
            // What the provider still does, it does to memory that is there.
            assert!(hubs.net.use_stuck() > 0);
            hubs.net.check();
            hubs.settle();
            hubs.end();
        }
    }
}

/// How a connection is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
enum HubLoss {
    SenderGone,
    ReceiverGone,
    Piece,
    Closed,
    Refused,
}

#[test]
fn a_loss_at_any_step_has_one_outcome_at_a_hub() {
    for form in FORMS {
        for silent in [false, true] {
            for loss in [
                HubLoss::SenderGone,
                HubLoss::ReceiverGone,
                HubLoss::Piece,
                HubLoss::Closed,
                HubLoss::Refused,
            ] {
                for steps in 0..24 {
                    lose(form, loss, silent, steps);
                }
            }
        }
    }
}

fn lose(form: Form, loss: HubLoss, silent: bool, steps: usize) {
    let (mut hubs, ids) = Hubs::star(&setup(form), 3);
    let (near, far) = hubs.ends(0, 1);
    if silent {
        hubs.net.set_close(hubs.hubs[0].link, CloseMode::Silent);
    }
    hubs.hubs[0].send(ids[0], 1).unwrap();
    hubs.hubs[0].send_long(ids[0], 2).unwrap();
    for step in 0..steps {
        match step % 3 {
            0 => hubs.hubs[0].poll(),
            1 => hubs.net.deliver_of(&[near, far]),
            _ => hubs.hubs[1].poll(),
        }
    }
    let now = hubs.hubs[0].core().clock().now();
    let link = hubs.hubs[0].link;
    match loss {
        HubLoss::SenderGone => hubs.hubs[0].core = None,
        HubLoss::ReceiverGone => hubs.hubs[1].core = None,
        HubLoss::Piece => drop(hubs.net.fail_send(near, libc::EIO)),
        HubLoss::Closed => drop(hubs.hubs[0].core().begin_close(ids[0], now)),
        HubLoss::Refused => {
            let errno = FabricErrno::new(libc::EINVAL);
            hubs.net.refuse_sends(link, &[PostRefused::Errno(errno)]);
        }
    }
    for _ in 0..3 {
        hubs.settle();
    }
    hubs.net.check();
    let what = format!("{form:?} {loss:?} {silent} after {steps}");
    let abandoned = hubs.hubs[0].abandoned.lock().unwrap().len();
    let hub = &mut hubs.hubs[0];
    let mut sent = 2;
    if hub.core.is_some() {
        // The other connection is as it was, unless that was refused which it had to say.
        if loss != HubLoss::Refused {
            hub.send_long(ids[1], 3).unwrap();
            sent += 1;
            hubs.settle();
            assert_eq!(hubs.hubs[2].received, [3], "{what}");
        }
        let hub = &mut hubs.hubs[0];
        let now = hub.core().clock().now();
        let events = hub.core().close(now).unwrap();
        hub.absorb(events);
        hub.check_all_back();
    }
    let hub = &hubs.hubs[0];
    let told = hub.completed.len() + hub.failed.len() + abandoned;
    assert_eq!(told, sent, "{what}");
    hubs.end();
}

// ---- who takes some, and who does not -----------------------------------------------------------

#[test]
fn without_a_pool_or_one_sided_operations_a_hub_is_sent_none() {
    for form in FORMS {
        let too_long = |refused: Result<(), SendErrorKind>| {
            matches!(refused, Err(SendErrorKind::TooLong { .. }))
        };
        let without = HubSetup {
            long: None,
            ..setup(form)
        };
        let (mut hubs, ids) = Hubs::star(&without, 2);
        let back = hubs.hubs[1].connected[0];
        assert!(too_long(hubs.hubs[0].send_long(ids[0], 1)), "{form:?}");
        assert!(too_long(hubs.hubs[1].send_long(back, 1)));
        hubs.end();
        let mut none = setup(form);
        none.net.rma = None;
        let (mut hubs, ids) = Hubs::star(&none, 2);
        assert!(too_long(hubs.hubs[0].send_long(ids[0], 1)), "{form:?}");
        hubs.end();
        // It only takes some.
        let quiet = HubSetup {
            sends_long: false,
            ..setup(form)
        };
        let mut hubs = Hubs::with(&[&setup(form), &quiet, &without]);
        let id = hubs.dial(0, 1);
        let other = hubs.dial(2, 1);
        hubs.settle();
        hubs.hubs[0].send_long(id, 1).unwrap();
        hubs.hubs[2].send_long(other, 2).unwrap();
        hubs.settle();
        let mut received = hubs.hubs[1].received.clone();
        received.sort_unstable();
        assert_eq!(received, [1, 2], "{form:?}");
        let back = hubs.hubs[1].connected[0];
        assert!(too_long(hubs.hubs[1].send_long(back, 1)));
        hubs.end();
    }
}

/// A peer by hand, and the hub that has dialed it.
struct PeerByHand {
    hubs: Hubs,
    id: ConnectionId,
    _ears: FakeLink,
    _link: FakeLink,
    conn: ConnKey,
    /// What the hub said of itself.
    hello: Hello,
}

impl PeerByHand {
    fn new(setup: &HubSetup, features: u32) -> Self {
        let mut hubs = Hubs::new(setup, 1);
        let mut ears = hubs.net.listen_by_hand();
        let addr = addr_of(ears.id());
        let id = hubs.hubs[0].core().dial(&addr).unwrap();
        hubs.hubs[0].poll();
        let (initiator, hello) = ears.take_request().expect("it asks");
        let answer = Hello {
            kind: HelloKind::Ack,
            header_mode: HeaderMode::Prefixed,
            version: wire::VERSION,
            oldest: wire::OLDEST,
            features,
            receive_size: 64,
            receive_depth: 4,
            credits: 4,
            incarnation: 1,
            connection: 9,
        };
        let taken = hubs.net.accept_by_hand(initiator, &answer.encode());
        let (link, conn) = taken.expect("it still asks");
        hubs.hubs[0].poll();
        assert_eq!(hubs.hubs[0].connected, [id]);
        Self {
            hubs,
            id,
            _ears: ears,
            _link: link,
            conn,
            hello: Hello::parse(&hello).expect("a hello"),
        }
    }

    fn say(&mut self, control: Control) {
        let mark = wire::cq_data(control.kind(), 0);
        let body = control.encode();
        self.hubs.net.say(self.conn, Some(mark), body.as_slice());
        self.hubs.net.deliver_of(&[self.conn]);
        self.hubs.hubs[0].poll();
    }

    /// What the hub says of long messages, if it says something.
    fn heard(&mut self) -> Option<Control> {
        self.hubs.hubs[0].poll();
        while let Some((mark, body)) = self.hubs.net.hear(self.conn, usize::MAX) {
            for kind in [
                ControlKind::LONG_OFFER,
                ControlKind::LONG_GRANT,
                ControlKind::LONG_REFUSED,
            ] {
                if mark == Some(wire::cq_data(kind, 0).into()) {
                    return Some(Control::parse(kind, &body).expect("it parses"));
                }
            }
        }
        None
    }
}

const OLD: u32 = wire::FEATURE_HEARTBEAT | wire::FEATURE_LONG;

/// Who does not know that some only send long messages offers them some.
#[test]
fn an_offer_to_a_hub_without_a_pool_is_refused() {
    let setup = HubSetup {
        long: None,
        ..setup(Form::Msg)
    };
    let mut peer = PeerByHand::new(&setup, OLD);
    let both = wire::FEATURE_LONG | wire::FEATURE_TAKES_NO_LONG;
    assert_eq!(peer.hello.features & both, both);
    for number in 0..3 {
        peer.say(Control::LongOffer {
            number: 0,
            len: 9 + number,
        });
        let refused = Control::LongRefused {
            number: 0,
            limit: 0,
        };
        assert_eq!(peer.heard(), Some(refused));
    }
    assert!(peer.hubs.hubs[0].ended.is_empty());
    // It takes none itself.
    let mut peer = PeerByHand::new(&setup, OLD | wire::FEATURE_TAKES_NO_LONG);
    let refused = peer.hubs.hubs[0].send_long(peer.id, 1);
    assert!(matches!(refused, Err(SendErrorKind::TooLong { .. })));
}

/// As they were before there was a bit for those who take none.
#[test]
fn a_hub_offers_long_messages_to_who_says_nothing_else_and_hears_the_refusal() {
    for long in [None, Some((2, 4096))] {
        let setup = HubSetup {
            long,
            ..setup(Form::Msg)
        };
        let mut peer = PeerByHand::new(&setup, OLD);
        let takes_none = peer.hello.features & wire::FEATURE_TAKES_NO_LONG != 0;
        assert_eq!(takes_none, long.is_none());
        peer.hubs.hubs[0].send_long(peer.id, 1).unwrap();
        let offer = peer.heard();
        assert!(
            matches!(offer, Some(Control::LongOffer { number: 0, .. })),
            "{offer:?}"
        );
        peer.say(Control::LongRefused {
            number: 0,
            limit: 77,
        });
        let hub = &peer.hubs.hubs[0];
        assert_eq!(hub.failed, [1]);
        assert_eq!(hub.errors[&1].limit_bytes, Some(77));
        hub.check_all_back();
        // Said again, it is a lie.
        peer.say(Control::LongRefused {
            number: 0,
            limit: 77,
        });
        peer.hubs.hubs[0].poll();
        let ended = &peer.hubs.hubs[0].ended[&peer.id];
        assert!(matches!(ended, CloseReason::Violation(_)), "{ended:?}");
    }
}

// ---- any order ----------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug)]
enum HubMove {
    Send { way: usize, long: bool },
    Deliver(usize),
    Poll(usize),
    Refuse(usize),
    Release,
}

fn any_move() -> impl Strategy<Value = HubMove> {
    prop_oneof![
        8 => (0usize..4, any::<bool>()).prop_map(|(way, long)| HubMove::Send { way, long }),
        6 => (1usize..4).prop_map(HubMove::Deliver),
        10 => (0usize..3).prop_map(HubMove::Poll),
        1 => (0usize..3).prop_map(HubMove::Refuse),
        2 => Just(HubMove::Release),
    ]
}

proptest! {
    #![proptest_config(crate::soak::cases(60, 2000))]

    /// Short and long messages of three hubs on two connections, both ways: all arrive, once, in
    /// their order, which the model checks.
    #[test]
    fn short_and_long_messages_of_hubs_keep_their_order(
        rdm in any::<bool>(),
        steps in prop::collection::vec(any_move(), 0..150),
    ) {
        let setup = setup(if rdm { Form::Rdm } else { Form::Msg });
        let (mut hubs, ids) = Hubs::star(&setup, 3);
        let backs = [hubs.hubs[1].connected[0], hubs.hubs[2].connected[0]];
        let ways = [(0, ids[0]), (0, ids[1]), (1, backs[0]), (2, backs[1])];
        let mut next = [1_u64; 3];
        hubs.hubs.iter_mut().for_each(|hub| hub.held = Some(Vec::new()));
        for step in steps {
            match step {
                HubMove::Send { way, long } => {
                    let (at, id) = ways[way];
                    let (hub, key) = (&mut hubs.hubs[at], next[at]);
                    if hub.payloads.free_count() > 0 {
                        let sent = if long { hub.send_long(id, key) } else { hub.send(id, key) };
                        next[at] += u64::from(sent.is_ok());
                    }
                }
                HubMove::Deliver(n) => drop(hubs.net.deliver(n)),
                HubMove::Poll(at) => hubs.hubs[at].poll(),
                HubMove::Refuse(at) => {
                    hubs.net.refuse_sends(hubs.hubs[at].link, &[PostRefused::Again]);
                }
                HubMove::Release => {
                    hubs.hubs.iter_mut().for_each(|hub| hub.held = Some(Vec::new()));
                }
            }
        }
        hubs.hubs.iter_mut().for_each(|hub| hub.held = None);
        // Refused control messages make pauses that look like the end.
        for _ in 0..20 {
            hubs.settle();
        }
        for (hub, next) in hubs.hubs.iter().zip(next) {
            prop_assert_eq!(hub.completed.len() as u64, next - 1);
            prop_assert!(hub.failed.is_empty());
            hub.check_all_back();
        }
        prop_assert_eq!(hubs.hubs[0].received.len() as u64, next[1] + next[2] - 2);
        let outer = hubs.hubs[1].received.len() + hubs.hubs[2].received.len();
        prop_assert_eq!(outer as u64, next[0] - 1);
        hubs.end();
    }
}

// ---- a real provider ----------------------------------------------------------------------------

/// Bytes of the receivers' buffers.
const BUFFER: usize = 64 << 10;

/// Bytes of the longest message.
const LONGEST: usize = 4 << 20;

fn tcp() -> Option<Arc<Domain>> {
    let fabric = Fabric::builder().provider("tcp").node("127.0.0.1");
    match fabric.endpoint_kind(EndpointKind::Msg).open() {
        Ok(fabric) => Some(fabric.open_domain().unwrap()),
        Err(error) => {
            println!("SKIPPED: {error}");
            None
        }
    }
}

fn hub_over(domain: &Arc<Domain>) -> Hub<ProviderLink> {
    let headers = HeaderSlotManager::new(HeaderSlotConfig::default()).unwrap();
    let settings = HubSettings {
        accepts: false,
        sends: Some(OutboundSettings {
            headers,
            header_mode: HeaderMode::Prefixed,
            depth: 4,
            total: 8,
            level: Level::Sent,
            shape: None,
            inject: Inject::Auto,
            packing: Packing::Off,
            gather: true,
            deadline: Some(Duration::from_secs(60)),
            policy: DeadlinePolicy::FailConnection,
            staging: None,
            long: true,
            on_abandoned: None,
        }),
        ..receive_settings(&Setup::default())
    };
    let pool = SharedBufferManager::allocate(64, 512).unwrap();
    let sizes = InFlightMax::of_hub(&settings, Form::Msg, pool.slots()).queue_sizes();
    let link = ProviderLink::dial(domain, sizes, &EndpointSettings::default()).unwrap();
    let waiter = link.waiter();
    Hub::listen(link, waiter, Clock::system(), pool, settings).unwrap()
}

/// A hub, and the receivers that it sends to, over tcp.
struct OverTcp {
    hub: Hub<ProviderLink>,
    receivers: Vec<ReceiveEndpoint>,
    events: Vec<ReceiveEvent>,
    received: Vec<Vec<ReceiveEvent>>,
    begun: Instant,
}

impl OverTcp {
    fn new(near: &Arc<Domain>, far: &Arc<Domain>, pools: &[bool]) -> Self {
        let receivers = pools.iter().map(|&pool| {
            let config = ReceiveConfig::default()
                .incoming(|incoming| incoming.max_message(BUFFER).slots(48).credits(8))
                .connection(|c| c.max_connections(2));
            let config = match pool {
                true => config.incoming(|i| {
                    i.long_messages(LongMessages::new(
                        SharedBufferManager::allocate(2, LONGEST).unwrap(),
                    ))
                }),
                false => config,
            };
            ReceiveEndpoint::listen(far, "127.0.0.1:0".parse().unwrap(), config).unwrap()
        });
        Self {
            hub: hub_over(near),
            receivers: receivers.collect(),
            events: Vec::new(),
            received: Vec::new(),
            begun: Instant::now(),
        }
    }

    fn step(&mut self) {
        assert!(self.begun.elapsed() < Duration::from_secs(120), "no end");
        self.hub.poll(&mut self.events).unwrap();
        self.received.resize_with(self.receivers.len(), Vec::new);
        for (receiver, received) in self.receivers.iter_mut().zip(&mut self.received) {
            receiver.poll(received).unwrap();
        }
    }

    fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        while !done(self) {
            self.step();
        }
    }

    fn dial(&mut self, to: usize) -> ConnectionId {
        let id = self.hub.dial(&self.receivers[to].local_addr()).unwrap();
        self.until(|this| this.hub.conn(id).is_some() && this.is_connected(id));
        id
    }

    fn is_connected(&self, id: ConnectionId) -> bool {
        self.events.iter().any(|event| match event {
            ReceiveEvent::Connection(of, ConnectionEvent::Connected(_)) => *of == id,
            _ => false,
        })
    }

    fn send(&mut self, id: ConnectionId, payload: Payload, key: u64) {
        let mut payload = Some(payload);
        self.until(|this| {
            let given = payload.take().expect("given back");
            match this.hub.send_data(id, given, &key.to_le_bytes(), key) {
                Ok(()) => true,
                Err(refused) if matches!(refused.kind, SendErrorKind::WouldBlock(_)) => {
                    payload = Some(refused.given);
                    false
                }
                Err(refused) => panic!("{refused:?}"),
            }
        });
    }

    fn messages(&self, at: usize) -> usize {
        let is_message = |event: &&ReceiveEvent| matches!(event, ReceiveEvent::Message(_));
        self.received[at].iter().filter(is_message).count()
    }
}

/// So many bytes, which differ with the key.
fn bytes(key: u64, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u64 * 31 + (at as u64 >> 9) + key) as u8)
        .collect()
}

#[test]
fn over_tcp_a_hub_sends_long_messages_on_two_connections() {
    let (Some(near), Some(far)) = (tcp(), tcp()) else {
        return;
    };
    let mut two = OverTcp::new(&near, &far, &[true, true]);
    let ids = [two.dial(0), two.dial(1)];
    // Each goes back with its outcome, which is looked at in the end.
    let payloads = SharedBufferManager::allocate(12, LONGEST).unwrap();
    payloads.region().register(&near).unwrap();
    let payload = |key: u64, len: usize| {
        let mut buffer = payloads.try_acquire().unwrap();
        buffer[..len].copy_from_slice(&bytes(key, len));
        Payload::from(buffer.freeze(len))
    };
    // Prefix and header belong to the message.
    let lens = [100, LONGEST - 10, 100, BUFFER - 9];
    for (key, len) in lens.into_iter().enumerate() {
        for (at, id) in ids.into_iter().enumerate() {
            let key = (key * 10 + at) as u64;
            let payload = payload(key, len);
            two.send(id, payload, key);
        }
    }
    two.until(|two| two.received.len() == 2 && (0..2).all(|at| two.messages(at) == lens.len()));
    for (at, received) in two.received.iter().enumerate() {
        let messages = received.iter().filter_map(|event| match event {
            ReceiveEvent::Message(message) => Some(message),
            _ => None,
        });
        for ((number, message), len) in messages.enumerate().zip(lens) {
            let key = (number * 10 + at) as u64;
            assert_eq!(message.header(), key.to_le_bytes(), "in order");
            assert!(message.payload() == bytes(key, len), "message {key}");
        }
    }
    let is_done = |event: &&ReceiveEvent| matches!(event, ReceiveEvent::Completed { .. });
    two.until(|two| two.events.iter().filter(is_done).count() == 2 * lens.len());
    // One byte more than the pool has room for.
    two.send(ids[0], payload(1, LONGEST - 9), 1000);
    let failed = |event: &ReceiveEvent| match event {
        ReceiveEvent::Failed {
            key: 1000, error, ..
        } => error.limit_bytes,
        _ => None,
    };
    two.until(|two| two.events.iter().any(|event| failed(event).is_some()));
    let limit = two.events.iter().find_map(failed);
    assert_eq!(limit, Some(LONGEST as u64));
    let stats = two.hub.send_stats();
    assert_eq!((stats.failed, stats.in_flight), (1, 0));
    two.events.clear();
    assert_eq!(payloads.free_count(), payloads.slots());
}

#[test]
fn over_tcp_a_hub_s_message_is_too_long_for_who_has_no_pool() {
    let (Some(near), Some(far)) = (tcp(), tcp()) else {
        return;
    };
    let mut two = OverTcp::new(&near, &far, &[false]);
    let id = two.dial(0);
    let payloads = SharedBufferManager::allocate(1, LONGEST).unwrap();
    payloads.region().register(&near).unwrap();
    let payload = payloads.try_acquire().unwrap().freeze(LONGEST);
    let refused = two.hub.send_data(id, payload.into(), &[], 1).unwrap_err();
    assert!(
        matches!(refused.kind, SendErrorKind::TooLong { .. }),
        "{refused:?}"
    );
    assert_eq!(refused.given.len_bytes(), LONGEST);
}
