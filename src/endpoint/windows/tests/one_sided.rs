//! Windows and one-sided operations over the fake link: what a provider and a peer may do wrong,
//! and that no memory goes too early.

#![allow(unsafe_code)]

use std::collections::HashSet;
use std::sync::Arc;

use proptest::prelude::*;

use crate::buffer::{Payload, RegionSlice, SharedBufferManager};
use crate::endpoint::error::{Blocked, SendErrorKind, WindowError};
use crate::endpoint::event::{ConnectionEvent, Level, ReceiveEvent};
use crate::endpoint::hub::WindowSettings;
use crate::endpoint::link::fake::{CloseMode, NetConfig, Step};
use crate::endpoint::link::{PostRefused, RmaLimits};
use crate::endpoint::testing::rig::{FakeGate, LONG, Rig, Setup, far_future};
use crate::endpoint::windows::destination::Destination;
use crate::endpoint::windows::tests::line::{
    self, FakeCopies, read_pieces, slots, write_gated, write_pieces,
};
use crate::endpoint::windows::window::{LocalWindow, RemoteWindow, WindowEvent};
use crate::error::FabricErrno;
use crate::id::ConnectionId;
use crate::in_flight::ContextKind;
use crate::memory::{Access, Region};
use crate::protocol::connection::{CloseReason, Form, Violation};
use crate::protocol::wire::{self, Control, ControlKind, Hello, HelloKind, WindowId};

/// The number of the window memory in the order log.
pub(super) const WINDOW_MEMORY: usize = 33;
const WINDOW_BYTES: usize = 256;

pub(super) fn setup() -> Setup {
    let base = Setup::default();
    Setup {
        windows: WindowSettings {
            windows: 8,
            uses_peers: false,
            ..base.windows
        },
        ..base
    }
}

/// The connection at the receiver.
pub(super) fn connection(rig: &Rig) -> ConnectionId {
    let connected = rig.said.iter().find_map(|event| match event {
        ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_)) => Some(*connection),
        _ => None,
    });
    connected.expect("it stands")
}

/// Memory whose end is logged.
pub(super) fn memory(rig: &Rig, number: usize) -> RegionSlice {
    let (base, keep) = rig.net.keep_alive(number, WINDOW_BYTES);
    // SAFETY: `keep` owns the memory and goes with the region; nobody else has it, and it is
    // initialised.
    let region = unsafe { Region::external(base, WINDOW_BYTES, keep) }.unwrap();
    region.slice(0..WINDOW_BYTES).unwrap()
}

pub(super) fn first_bytes(slice: &RegionSlice) -> u64 {
    // SAFETY: the memory lives, and the fake net moves bytes only while it is asked to.
    unsafe { slice.as_ptr().cast::<u64>().read_unaligned() }
}

/// A window at the receiver over memory of that number, and the sender's view of it.
pub(super) fn far_window(
    rig: &mut Rig,
    number: usize,
    access: Access,
) -> (LocalWindow, RemoteWindow) {
    let slice = memory(rig, number);
    expose(rig, slice, access)
}

pub(super) fn expose(
    rig: &mut Rig,
    slice: RegionSlice,
    access: Access,
) -> (LocalWindow, RemoteWindow) {
    let id = connection(rig);
    let local = rig.receiver().expose(id, slice.into(), access).unwrap();
    let remote = rig.sender().open_window(&local.descriptor()).unwrap();
    (local, remote)
}

/// Posts a write of the key's bytes; everything comes back if it is refused.
pub(super) fn write(
    rig: &mut Rig,
    window: &RemoteWindow,
    key: u64,
    data: Option<u32>,
) -> Result<(), SendErrorKind> {
    let payload = rig.payload(key);
    let index = payload.index();
    match rig
        .sender()
        .write(payload.into(), window.at(8), data, Level::Delivered, key)
    {
        Ok(()) => {
            rig.owed.insert(key, index);
            Ok(())
        }
        Err(refused) => {
            assert_eq!(refused.key, key);
            assert_eq!(refused.given.into_buffer().unwrap().index(), index);
            Err(refused.kind)
        }
    }
}

pub(super) fn read(rig: &mut Rig, window: &RemoteWindow, key: u64) -> Result<(), SendErrorKind> {
    let buffer = rig.payloads.try_acquire().expect("a buffer is free");
    let index = buffer.index();
    let into = Destination::buffer(buffer, 64);
    match rig.sender().read(into, window.at(8), key) {
        Ok(()) => {
            rig.owed.insert(key, index);
            Ok(())
        }
        Err(refused) => {
            assert_eq!(refused.given.into_buffer().unwrap().index(), index);
            Err(refused.kind)
        }
    }
}

fn is_freed(rig: &Rig, number: usize) -> bool {
    rig.net.log().contains(&Step::RegionFreed(number))
}

/// Window events of the receiver.
pub(super) fn far_events(rig: &mut Rig) -> Vec<WindowEvent> {
    let said = std::mem::take(&mut rig.said);
    let (windows, rest): (Vec<_>, Vec<_>) = said
        .into_iter()
        .partition(|event| matches!(event, ReceiveEvent::Window { .. }));
    rig.said = rest;
    let event = |event| match event {
        ReceiveEvent::Window { event, .. } => Some(event),
        _ => None,
    };
    windows.into_iter().filter_map(event).collect()
}

#[test]
fn writes_and_reads_move_bytes_in_either_way_of_addressing() {
    for virtual_addresses in [false, true] {
        for contexts in [ContextKind::Opaque, ContextKind::Cells] {
            let rma = NetConfig::default().rma.map(|rma| RmaLimits {
                virtual_addresses,
                ..rma
            });
            let net = NetConfig {
                rma,
                contexts,
                ..NetConfig::default()
            };
            let mut rig = Setup { net, ..setup() }.connected();
            let slice = memory(&rig, WINDOW_MEMORY);
            let (_local, remote) = expose(&mut rig, slice.slice(16..200).unwrap(), Access::all());
            write(&mut rig, &remote, 0x1234, None).unwrap();
            read(&mut rig, &remote, 2).unwrap();
            rig.settle();
            assert_eq!(rig.completed, [0x1234, 2]);
            assert_eq!(first_bytes(&slice.slice(24..32).unwrap()), 0x1234);
            assert_eq!(rig.reads, [(2, 0x1234_u64.to_le_bytes())]);
            rig.check_all_back();
        }
    }
}

#[test]
fn immediate_data_use_credits_that_come_back() {
    let mut rig = setup().connected();
    let (local, remote) = far_window(&mut rig, WINDOW_MEMORY, Access::WRITE);
    for key in 0..4 {
        write(&mut rig, &remote, key, Some(77)).unwrap();
    }
    let blocked = SendErrorKind::WouldBlock(Blocked::Credits);
    assert_eq!(write(&mut rig, &remote, 4, Some(77)), Err(blocked));
    assert_eq!(rig.blocked(4), Blocked::Credits, "messages share them");
    write(&mut rig, &remote, 4, None).expect("needs no credit");
    rig.settle();
    let heard = far_events(&mut rig);
    let id = local.id();
    let told = |event: &&WindowEvent| {
        matches!(event, WindowEvent::PeerWrote { window, data: 77 }
            if *window == id)
    };
    assert_eq!(heard.iter().filter(told).count(), 4);
    assert_eq!(rig.writable, 1);
    for key in 5..30 {
        write(&mut rig, &remote, key, Some(1)).unwrap();
        rig.settle();
    }
    // And the goodbye counts them.
    rig.sender().begin_close(far_future());
    rig.settle();
    assert_eq!(rig.ended, Some(CloseReason::Finished));
    rig.check_all_back();
}

#[test]
fn a_refused_post_gives_everything_back() {
    let mut rig = setup().connected();
    let (_local, remote) = far_window(&mut rig, WINDOW_MEMORY, Access::all());
    let near = rig.near;
    for data in [None, Some(1)] {
        rig.net.refuse_sends(near, &[PostRefused::Again]);
        let again = SendErrorKind::WouldBlock(Blocked::Provider);
        assert_eq!(write(&mut rig, &remote, 1, data), Err(again));
        let errno = FabricErrno::new(libc::EINVAL);
        rig.net.refuse_sends(near, &[PostRefused::Errno(errno)]);
        let call = "fi_writemsg";
        let refused = SendErrorKind::Window(WindowError::Fabric { call, errno });
        assert_eq!(write(&mut rig, &remote, 1, data), Err(refused));
    }
    rig.net.refuse_sends(near, &[PostRefused::Again]);
    assert!(read(&mut rig, &remote, 1).is_err());
    rig.check_all_back();
    // No credit was lost.
    for key in 0..4 {
        write(&mut rig, &remote, key, Some(1)).unwrap();
    }
    rig.settle();
    rig.check_all_back();
}

#[test]
fn a_window_dropped_while_a_write_lands_is_kept_until_it_has() {
    let mut rig = setup().connected();
    let (local, remote) = far_window(&mut rig, WINDOW_MEMORY, Access::WRITE);
    write(&mut rig, &remote, 1, None).unwrap();
    // The first half is there; the registration does not matter any more.
    assert!(rig.net.begin_one_sided(rig.conn));
    drop(local);
    for _ in 0..5 {
        rig.poll_receiver();
        rig.poll_sender();
    }
    assert!(
        !is_freed(&rig, WINDOW_MEMORY),
        "freed while a write was landing"
    );
    rig.settle();
    assert_eq!(rig.completed, [1]);
    assert!(is_freed(&rig, WINDOW_MEMORY), "kept for nothing");
    assert_eq!(rig.receiver().windows(), 0);
    assert!(matches!(rig.heard[..], [WindowEvent::Revoked { .. }]));
    let refused = write(&mut rig, &remote, 2, None);
    assert_eq!(refused, Err(WindowError::Revoked.into()));
    rig.net.check();
}

#[test]
fn a_peer_without_an_answer_keeps_the_memory_until_its_connection_is_closed() {
    let mut rig = setup().connected();
    let (local, remote) = far_window(&mut rig, WINDOW_MEMORY, Access::WRITE);
    write(&mut rig, &remote, 1, None).unwrap();
    rig.net.begin_one_sided(rig.conn);
    drop(local);
    // The sender does nothing any more.
    for _ in 0..5 {
        rig.poll_receiver();
        rig.net.deliver(1);
    }
    assert!(!is_freed(&rig, WINDOW_MEMORY));
    let id = connection(&rig);
    let now = rig.now();
    rig.receiver().begin_close(id, now);
    rig.poll_receiver();
    let closed = Step::EpClosed(rig.far_conn());
    let log = rig.net.log();
    let at = |step| {
        log.iter()
            .position(|logged| *logged == step)
            .expect("in the log")
    };
    assert!(at(closed) < at(Step::RegionFreed(WINDOW_MEMORY)), "{log:?}");
    rig.settle();
    rig.net.check();
    rig.check_all_back();
}

/// It stays what it was: its own endpoint brings the memory back.
#[test]
fn a_window_of_another_endpoint_is_not_revoked_and_comes_back() {
    let [mut rig, mut other] = [setup().connected(), setup().connected()];
    let (local, _remote) = far_window(&mut rig, WINDOW_MEMORY, Access::READ);
    let window = local.id();
    let (_its, _remote) = far_window(&mut other, WINDOW_MEMORY, Access::READ);
    let refused = other.receiver().revoke(local, far_future());
    let refused = refused.expect_err("another endpoint's");
    assert_eq!(refused.kind, WindowError::WrongConnection);
    for rig in [&mut rig, &mut other] {
        rig.settle();
        assert_eq!(rig.receiver().windows(), 1, "revoked");
        assert!(rig.heard.is_empty(), "{:?}", rig.heard);
    }
    let revoked = rig.receiver().revoke(refused.given, far_future());
    assert!(revoked.expect("its own window"));
    rig.settle();
    let heard = far_events(&mut rig);
    let released = |event: &WindowEvent| match event {
        WindowEvent::Released { window, .. } => Some(*window),
        _ => None,
    };
    let released: Vec<_> = heard.iter().filter_map(released).collect();
    assert_eq!((released, heard.len()), (vec![window], 1), "{heard:?}");
}

/// The deadline passes: the connection is closed, then the memory is there.
#[test]
fn a_revocation_has_a_deadline() {
    let mut rig = setup().connected();
    let (local, _remote) = far_window(&mut rig, WINDOW_MEMORY, Access::READ);
    let window = local.id();
    let now = rig.now();
    assert!(rig.receiver().revoke(local, now).expect("its own window"));
    rig.poll_receiver();
    rig.poll_receiver();
    let heard = far_events(&mut rig);
    let [
        WindowEvent::Released {
            window: back,
            memory,
        },
    ] = &heard[..]
    else {
        panic!("{heard:?}");
    };
    assert_eq!((*back, memory.len()), (window, WINDOW_BYTES));
    let ended = |event: &ReceiveEvent| {
        matches!(
            event,
            ReceiveEvent::Connection(
                _,
                ConnectionEvent::Disconnected(CloseReason::RevokeDeadline)
            )
        )
    };
    assert!(rig.said.iter().any(ended), "{:?}", rig.said);
}

/// It asks for bytes and acknowledges the revocation at once: the memory outlives the answer that
/// is in the provider's queue.
#[test]
fn a_peer_that_lies_about_a_read_gets_no_freed_memory() {
    let mut rig = setup().rig();
    let hello = Hello {
        kind: HelloKind::Hello,
        header_mode: wire::HeaderMode::Raw,
        version: wire::VERSION,
        oldest: wire::OLDEST,
        features: wire::FEATURE_WINDOWS,
        receive_size: 0,
        receive_depth: 0,
        credits: 0,
        incarnation: 1,
        connection: 9,
    };
    rig.sender = None;
    let (_link, liar) = rig.net.ask(&hello.encode());
    rig.poll_receiver();
    rig.poll_receiver();
    let id = connection(&rig);
    let slice = memory(&rig, WINDOW_MEMORY);
    let local = rig
        .receiver()
        .expose(id, slice.into(), Access::READ)
        .unwrap();
    let descriptor = local.descriptor();
    rig.net
        .read_by_hand(liar, descriptor.base, descriptor.key, 64);
    assert!(rig.net.begin_one_sided(liar), "the answer is in the queue");
    drop(local);
    rig.poll_receiver();
    let ack = Control::RevokeAck {
        window: descriptor.window.as_u64(),
    };
    let mark = wire::cq_data(ControlKind::REVOKE_ACK, 0);
    assert_eq!(
        rig.net.deliver(1),
        1,
        "the read itself, which asks nobody any more"
    );
    rig.net.say(liar, Some(mark), ack.encode().as_slice());
    rig.net
        .read_by_hand(liar, descriptor.base, descriptor.key, 64);
    rig.net.deliver(1);
    rig.poll_receiver();
    assert!(
        !is_freed(&rig, WINDOW_MEMORY),
        "before the fence was answered"
    );
    let closed = |step: &Step| matches!(step, Step::MrClosed { .. });
    assert!(
        rig.net.log().iter().any(closed),
        "the key is good for nothing new"
    );
    // The liar answers no fence: the memory stays until the connection is closed. The second read
    // is denied, which ends it.
    rig.net.deliver(1);
    rig.poll_receiver();
    rig.poll_receiver();
    assert!(is_freed(&rig, WINDOW_MEMORY));
    rig.net.check();
}

fn hello_by_hand() -> [u8; wire::HELLO_LEN] {
    let hello = Hello {
        kind: HelloKind::Hello,
        header_mode: wire::HeaderMode::Raw,
        version: wire::VERSION,
        oldest: wire::OLDEST,
        features: wire::FEATURE_WINDOWS,
        receive_size: 0,
        receive_depth: 0,
        credits: 0,
        incarnation: 1,
        connection: 9,
    };
    hello.encode()
}

/// It writes over its second connection with the key that it was told on the first, which
/// acknowledges or hangs up meanwhile.
#[test]
fn a_peer_with_two_connections_gets_no_memory_that_was_given_back() {
    for hangs_up in [false, true] {
        let mut rig = setup().connected();
        let (_link, second) = rig.net.ask(&hello_by_hand());
        rig.poll_receiver();
        rig.poll_receiver();
        let (local, remote) = far_window(&mut rig, WINDOW_MEMORY, Access::WRITE);
        let (base, key) = (local.descriptor().base, local.descriptor().key);
        write(&mut rig, &remote, 1, None).unwrap();
        rig.settle();
        rig.net.bury_by_hand(second, base, key, 64);
        assert!(rig.net.begin_one_sided(second), "half of it is there");
        if hangs_up {
            drop(local);
            rig.sender = None;
        } else {
            assert!(
                rig.receiver()
                    .revoke(local, far_future())
                    .expect("its own window")
            );
        }
        for _ in 0..10 {
            rig.poll_receiver();
            rig.poll_sender_if_any();
            rig.net.deliver_of(&[rig.conn, rig.far_conn()]);
        }
        let closed = |step: &Step| matches!(step, Step::MrClosed { .. });
        assert!(rig.net.log().iter().any(closed), "nothing new can begin");
        assert!(far_events(&mut rig).is_empty(), "given back too early");
        assert!(!is_freed(&rig, WINDOW_MEMORY), "freed too early");
        assert_eq!(rig.receiver().windows(), 1);
        // The rest of the write lands, and that connection goes.
        rig.net.deliver_of(&[second]);
        rig.net.check();
        rig.net.shut_down(rig.net.peer_of(second));
        rig.poll_receiver();
        rig.poll_receiver();
        match hangs_up {
            true => assert!(is_freed(&rig, WINDOW_MEMORY)),
            false => {
                let back = far_events(&mut rig);
                assert!(
                    matches!(back[..], [WindowEvent::Released { .. }]),
                    "{back:?}"
                );
            }
        }
        rig.net.check();
    }
}

/// The endpoint that owned the window is gone; what its domain's other endpoints' peers may still
/// reach is not.
#[test]
fn memory_outlives_its_endpoint_while_another_endpoint_s_peer_may_reach_it() {
    let mut rig = setup().connected();
    let (_local, _remote) = far_window(&mut rig, WINDOW_MEMORY, Access::WRITE);
    let other = rig.net.far().access_ledger().join();
    rig.receiver = None;
    assert!(!is_freed(&rig, WINDOW_MEMORY), "freed too early");
    let epoch = other.lags().expect("it is to be asked");
    other.pass(epoch);
    assert!(is_freed(&rig, WINDOW_MEMORY), "kept for nothing");
    rig.net.check();
}

/// Who guesses at marks ends the connections that have windows, long before a guess is right.
#[test]
fn writes_that_name_no_window_end_what_could_be_guessed() {
    let mut rig = setup().connected();
    let far = rig.far;
    let (local, _remote) = far_window(&mut rig, WINDOW_MEMORY, Access::WRITE);
    let mark = local.descriptor().mark;
    let retired = {
        let (gone, _) = far_window(&mut rig, 34, Access::WRITE);
        let mark = gone.descriptor().mark;
        drop(gone);
        rig.settle();
        mark
    };
    // What may have been on its way to a window that is over is no guess.
    for _ in 0..100 {
        rig.net.write_by_hand(far, wire::written_data(retired, 7));
    }
    rig.settle();
    assert_eq!(rig.ended, None);
    let guess = |n: u32| (mark + 1 + n) & wire::INDEX_MASK;
    let guesses = (0..).map(guess).filter(|guess| *guess != retired);
    for guess in guesses.take(15) {
        rig.net.write_by_hand(far, wire::written_data(guess, 7));
    }
    rig.settle();
    assert_eq!((rig.ended, rig.receiver().connections()), (None, 1));
    rig.net.write_by_hand(far, u64::MAX);
    rig.settle();
    assert_eq!(rig.receiver().stats().stray_writes, 116);
    let violation = |event: &ReceiveEvent| {
        matches!(
            event,
            ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(CloseReason::Violation(_)))
        )
    };
    assert!(rig.said.iter().any(violation), "{:?}", rig.said);
    drop(local);
}

#[test]
fn failed_and_doubled_completions() {
    let mut rig = setup().connected();
    let (_local, remote) = far_window(&mut rig, WINDOW_MEMORY, Access::all());
    for key in 0..3 {
        write(&mut rig, &remote, key, None).unwrap();
    }
    read(&mut rig, &remote, 3).unwrap();
    rig.net.fail_send(rig.conn, libc::EREMOTEIO);
    rig.poll_sender();
    assert_eq!(rig.failed[0], (0, libc::EREMOTEIO));
    let cancelled: Vec<_> = rig.failed[1..].iter().map(|(key, _)| *key).collect();
    assert_eq!(
        cancelled,
        [1, 2, 3],
        "in the order in which they were posted"
    );
    rig.check_all_back();

    let mut rig = setup().connected();
    let (_local, remote) = far_window(&mut rig, WINDOW_MEMORY, Access::all());
    rig.net.double(rig.near, 1);
    read(&mut rig, &remote, 1).unwrap();
    write(&mut rig, &remote, 2, None).unwrap();
    rig.settle();
    assert!(
        matches!(rig.ended, Some(CloseReason::EndpointFailed(_))),
        "{:?}",
        rig.ended
    );
    rig.check_all_back();
}

#[test]
fn an_endpoint_that_reports_nothing_for_a_closed_connection() {
    let mut rig = setup().connected();
    let (_local, remote) = far_window(&mut rig, WINDOW_MEMORY, Access::all());
    let near = rig.near;
    rig.net.set_close(near, CloseMode::Silent);
    write(&mut rig, &remote, 1, None).unwrap();
    read(&mut rig, &remote, 2).unwrap();
    let now = rig.now();
    rig.sender().begin_close(now);
    rig.poll_sender();
    assert_eq!(rig.failed, [(1, libc::ECANCELED), (2, libc::ECANCELED)]);
    rig.check_all_back();
}

#[test]
fn an_endpoint_that_does_not_close_leaks_windows_and_operations() {
    let mut rig = setup().connected();
    let (local, remote) = far_window(&mut rig, WINDOW_MEMORY, Access::all());
    let (near, far) = (rig.near, rig.far);
    write(&mut rig, &remote, 1, None).unwrap();
    read(&mut rig, &remote, 2).unwrap();
    rig.net.set_close(near, CloseMode::Fails);
    rig.net.set_close(far, CloseMode::Fails);
    let now = rig.now();
    rig.sender().begin_close(now);
    rig.poll_sender();
    assert_eq!(rig.failed.len(), 2);
    let id = connection(&rig);
    let now = rig.now();
    rig.receiver().begin_close(id, now);
    rig.poll_receiver();
    drop(local);
    rig.poll_receiver();
    rig.sender = None;
    rig.receiver = None;
    assert!(rig.net.use_stuck() > 0);
    assert!(
        !is_freed(&rig, WINDOW_MEMORY),
        "a stuck endpoint's peer may still write"
    );
    rig.net.check();
}

#[test]
fn registrations_of_an_endpoint_close_before_it_and_the_memory_after() {
    let net = NetConfig {
        endpoint_scope: true,
        ..NetConfig::default()
    };
    let mut rig = Setup { net, ..setup() }.connected();
    let slice = memory(&rig, WINDOW_MEMORY);
    let base = slice.as_ptr().addr();
    let (_local, remote) = expose(&mut rig, slice, Access::all());
    write(&mut rig, &remote, 1, None).unwrap();
    read(&mut rig, &remote, 2).unwrap();
    rig.settle();
    assert_eq!(rig.completed, [1, 2]);
    let far = rig.far_conn();
    rig.receiver = None;
    drop(std::mem::take(&mut rig.said));
    let log = rig.net.log();
    let at = |wanted: &dyn Fn(&Step) -> bool| log.iter().position(wanted).expect("in the log");
    let mr = at(&|step| matches!(step, Step::MrClosed { base: of, .. } if *of == base));
    let ep = at(&|step| *step == Step::EpClosed(far));
    let freed = at(&|step| *step == Step::RegionFreed(WINDOW_MEMORY));
    assert!(mr < ep && ep < freed, "{log:?}");
    rig.net.check();
}

#[test]
fn a_denied_write_is_a_failure_unless_the_weaker_level_was_chosen() {
    for level in [Level::Delivered, Level::Sent] {
        let mut rig = setup().connected();
        let (local, _) = far_window(&mut rig, WINDOW_MEMORY, Access::READ);
        let mut descriptor = local.descriptor();
        descriptor.access = Access::all();
        let remote = rig.sender().open_window(&descriptor).unwrap();
        let payload = rig.payload(1);
        rig.owed.insert(1, payload.index());
        rig.sender()
            .write(payload.into(), remote.at(0), None, level, 1)
            .unwrap();
        rig.settle();
        assert_eq!(rig.completed.len(), usize::from(level == Level::Sent));
        assert!(rig.ended.is_some());
        rig.check_all_back();
    }
}

#[test]
fn immediate_data_that_name_nothing_are_counted_and_no_more() {
    let mut rig = setup().connected();
    let (local, _remote) = far_window(&mut rig, WINDOW_MEMORY, Access::WRITE);
    let mark = local.descriptor().mark;
    let far = rig.far;
    for stray in [
        0,
        wire::written_data(mark ^ 1, 5),
        u64::from(mark),
        u64::MAX,
    ] {
        rig.net.write_by_hand(far, stray);
    }
    rig.settle();
    assert_eq!(rig.receiver().stats().stray_writes, 4);
    assert!(far_events(&mut rig).is_empty() && rig.ended.is_none());
    // One that names a window without a credit for it is the peer's end.
    for _ in 0..5 {
        rig.net.write_by_hand(far, wire::written_data(mark, 5));
    }
    rig.settle();
    let broke = |event: &ReceiveEvent| {
        matches!(
            event,
            ReceiveEvent::Connection(
                _,
                ConnectionEvent::Disconnected(CloseReason::Violation(Violation::Credit(_)))
            )
        )
    };
    let credits_returned = far_events(&mut rig).len();
    assert!(
        rig.said.iter().any(broke) || credits_returned >= 5,
        "{:?}",
        rig.said
    );
}

#[test]
fn the_receiver_gets_outcomes_of_its_own_operations_in_every_end() {
    for mode in [CloseMode::Reports, CloseMode::Silent, CloseMode::Fails] {
        let mut rig = setup().connected();
        let id = connection(&rig);
        let slice = memory(&rig, WINDOW_MEMORY);
        let local = rig.sender().expose(slice.into(), Access::all()).unwrap();
        let remote = rig.receiver().open_window(id, &local.descriptor()).unwrap();
        let own = memory(&rig, 34);
        own.region().register_with(rig.net.far()).unwrap();
        for key in 0..2 {
            let payload = Payload::from(own.slice(0..8).unwrap());
            rig.receiver()
                .write(payload, remote.at(0), None, Level::Delivered, key)
                .unwrap();
        }
        rig.receiver()
            .read(own.slice(8..16).unwrap().into(), remote.at(0), 2)
            .unwrap();
        drop(own);
        let far_conn = rig.far_conn();
        rig.net.fail_send(far_conn, libc::EIO);
        let far = rig.far;
        rig.net.set_close(far, mode);
        rig.poll_receiver();
        rig.poll_receiver();
        let heard = far_events(&mut rig);
        let keys: Vec<_> = heard
            .iter()
            .map(|event| match event {
                WindowEvent::WriteFailed { key, .. } | WindowEvent::ReadFailed { key, .. } => *key,
                other => panic!("{mode:?}: {other:?}"),
            })
            .collect();
        assert_eq!(keys, [0, 1, 2], "{mode:?}");
        let stats = rig.receiver().stats();
        assert_eq!(
            (
                stats.one_sided.posted,
                stats.one_sided.failed,
                stats.one_sided.in_flight
            ),
            (3, 3, 0)
        );
        drop(heard);
        rig.receiver = None;
        assert_eq!(is_freed(&rig, 34), mode != CloseMode::Fails, "{mode:?}");
        rig.net.use_stuck();
        rig.net.check();
        // What a stuck endpoint was given is leaked for good.
        drop(Arc::new(local));
    }
}

#[derive(Clone, Copy, Debug)]
enum Move {
    Expose(bool, bool),
    Revoke(usize),
    Drop(usize),
    Write(usize, bool),
    Read(usize),
    /// Behind a gate, which is one of the next two.
    Gated(usize, bool),
    Open(usize),
    Fail(usize),
    /// Through slots: a write, else a read.
    Pieces(usize, bool),
    Begin,
    Deliver(usize),
    Poll(bool),
    Refuse,
    Close(bool),
}

fn any_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        3 => any::<(bool, bool)>().prop_map(|(read, write)| Move::Expose(read, write)),
        2 => (0_usize..4).prop_map(Move::Revoke),
        2 => (0_usize..4).prop_map(Move::Drop),
        5 => (0_usize..6, any::<bool>()).prop_map(|(n, data)| Move::Write(n, data)),
        4 => (0_usize..6).prop_map(Move::Read),
        3 => (0_usize..6, any::<bool>()).prop_map(|(n, data)| Move::Gated(n, data)),
        3 => (0_usize..4).prop_map(Move::Open),
        1 => (0_usize..4).prop_map(Move::Fail),
        3 => (0_usize..6, any::<bool>()).prop_map(|(n, write)| Move::Pieces(n, write)),
        4 => Just(Move::Begin),
        6 => (1_usize..4).prop_map(Move::Deliver),
        8 => any::<bool>().prop_map(Move::Poll),
        1 => Just(Move::Refuse),
        1 => prop_oneof![9 => Just(false), 1 => Just(true)].prop_map(Move::Close),
    ]
}

/// What the walk knows of windows.
#[derive(Default)]
struct Walk {
    handles: Vec<LocalWindow>,
    remotes: Vec<RemoteWindow>,
    next_key: u64,
    next_memory: usize,
    gates: Vec<FakeGate>,
    staging: Option<SharedBufferManager>,
    /// Those that must come back.
    revoked: Vec<WindowId>,
}

impl Walk {
    fn step(&mut self, rig: &mut Rig, step: Move) {
        match step {
            Move::Expose(read, write) => self.expose(rig, read, write),
            Move::Revoke(n) if n < self.handles.len() => {
                let handle = self.handles.swap_remove(n);
                self.revoked.push(handle.id());
                rig.receiver()
                    .revoke(handle, far_future())
                    .expect("its own window");
            }
            Move::Drop(n) if n < self.handles.len() => drop(self.handles.swap_remove(n)),
            Move::Write(n, data) => self.operate(rig, n, |rig, window, key| {
                drop(write(rig, window, key, data.then_some(9)));
            }),
            Move::Read(n) => self.operate(rig, n, |rig, window, key| drop(read(rig, window, key))),
            Move::Gated(n, data) => {
                let mut gate = None;
                self.operate(rig, n, |rig, window, key| {
                    gate = write_gated(rig, window, key, data.then_some(9)).ok();
                });
                self.gates.extend(gate);
            }
            Move::Open(n) if n < self.gates.len() => self.gates.swap_remove(n).open(),
            Move::Fail(n) if n < self.gates.len() => self.gates.swap_remove(n).fail(),
            Move::Pieces(n, outward) => self.pieces(rig, n, outward),
            Move::Begin => drop(rig.net.begin_one_sided(rig.conn)),
            Move::Deliver(n) => drop(rig.net.deliver(n)),
            Move::Poll(true) => rig.poll_sender(),
            Move::Poll(false) => rig.poll_receiver(),
            Move::Refuse => rig.net.refuse_sends(rig.near, &[PostRefused::Again]),
            Move::Close(true) => rig.sender().begin_close(far_future()),
            Move::Close(false)
            | Move::Revoke(_)
            | Move::Drop(_)
            | Move::Open(_)
            | Move::Fail(_) => {}
        }
        rig.check();
    }

    fn pieces(&mut self, rig: &mut Rig, n: usize, outward: bool) {
        let staging = self.staging.get_or_insert_with(|| line::ring(rig, 4));
        let copies = FakeCopies::new(&[0; 64]);
        copies.open_all();
        let Some(slots) = slots(staging, 2, 5, &copies) else {
            return;
        };
        self.operate(rig, n, |rig, window, key| {
            drop(match outward {
                true => write_pieces(rig, window, key, None, slots),
                false => read_pieces(rig, window, key, slots),
            });
        });
    }

    /// Every gate opens: what waited goes out.
    fn open_all(&mut self) {
        self.gates.drain(..).for_each(|gate| gate.open());
    }

    fn expose(&mut self, rig: &mut Rig, read: bool, write: bool) {
        let id = connection(rig);
        self.next_memory += 1;
        let slice = memory(rig, 1000 + self.next_memory);
        let mut access = Access::empty();
        access.set(Access::READ, read);
        access.set(Access::WRITE, write);
        if let Ok(local) = rig.receiver().expose(id, slice.into(), access) {
            let opened = rig.sender().open_window(&local.descriptor());
            self.remotes.extend(opened);
            self.handles.push(local);
        }
    }

    fn operate(
        &mut self,
        rig: &mut Rig,
        n: usize,
        operate: impl FnOnce(&mut Rig, &RemoteWindow, u64),
    ) {
        let (Some(window), true) = (
            self.remotes.iter().rev().nth(n),
            rig.payloads.free_count() > 0,
        ) else {
            return;
        };
        self.next_key += 1;
        operate(rig, &window.clone(), self.next_key);
    }
}

proptest! {
    #![proptest_config(crate::soak::cases(120, 4000))]

    /// Whatever happens in whatever order: no operation touches memory that is gone, each has one
    /// outcome, and each window comes back once or is freed.
    #[test]
    fn windows_in_any_order(steps in prop::collection::vec(any_move(), 0..120)) {
        let mut rig = setup().connected();
        let mut walk = Walk::default();
        for step in steps {
            walk.step(&mut rig, step);
        }
        walk.open_all();
        // Refused control messages make pauses that look like the end.
        for _ in 0..20 {
            rig.settle();
        }
        let back = far_events(&mut rig);
        let released = back.iter().filter_map(|event| match event {
            WindowEvent::Released { window, .. } => Some(*window),
            _ => None,
        });
        let released: Vec<_> = released.collect();
        let unique: HashSet<_> = released.iter().copied().collect();
        prop_assert_eq!(unique.len(), released.len(), "one came back twice");
        let held = walk.handles.iter().map(LocalWindow::id).filter(|_| rig.ended.is_some());
        for id in walk.revoked.iter().copied().chain(held) {
            prop_assert!(unique.contains(&id), "window {} did not come back", id);
        }
        prop_assert!(rig.ended.is_some() || rig.receiver().windows() == walk.handles.len());
        rig.check_all_back();
        prop_assert!(walk.staging.iter().all(|ring| ring.free_count() == ring.slots()));
        drop(back);
        rig.end();
        for number in 1..=walk.next_memory {
            prop_assert!(is_freed(&rig, 1000 + number), "memory {} is kept", number);
        }
    }
}

/// The settings of the tests are what they say.
#[test]
fn the_setup_has_windows() {
    assert!(setup().windows.enabled() && LONG > std::time::Duration::ZERO);
}

// ---- FI_EP_RDM: connections that share an endpoint ----------------------------------------------

pub(super) fn rdm_setup() -> Setup {
    let base = NetConfig::default();
    let rma = base.rma.map(|rma| RmaLimits {
        ordered: false,
        ..rma
    });
    Setup {
        net: NetConfig {
            form: Form::Rdm,
            rma,
            ..base
        },
        receive_slots: 32,
        ..setup()
    }
}

#[test]
fn over_rdm_bytes_move_and_data_keep_their_order_among_writes_with_data() {
    let mut rig = rdm_setup().connected();
    let slice = memory(&rig, WINDOW_MEMORY);
    let (_local, remote) = expose(&mut rig, slice.clone(), Access::all());
    write(&mut rig, &remote, 0x1234, None).unwrap();
    read(&mut rig, &remote, 2).unwrap();
    rig.settle();
    assert_eq!(rig.reads, [(2, 0x1234_u64.to_le_bytes())]);
    // A write with data has no number of its own: were it counted among the messages, those behind
    // it would wait for ever.
    for round in 0..20 {
        write(&mut rig, &remote, 100 + round, Some(5)).unwrap();
        rig.send(200 + round).unwrap();
        rig.settle();
        rig.held.clear();
    }
    assert_eq!(rig.received, (200..220).collect::<Vec<_>>());
    assert_eq!(far_events(&mut rig).len(), 20);
    rig.sender().begin_close(far_future());
    rig.settle();
    assert_eq!(rig.ended, Some(CloseReason::Finished));
    rig.check_all_back();
}

/// It is a promise of the peer's, and no more: somebody else may know the key.
#[test]
fn over_rdm_a_goodbye_gives_no_window_back_before_the_endpoint_is_closed() {
    let mut rig = rdm_setup().connected();
    let (_local, remote) = far_window(&mut rig, WINDOW_MEMORY, Access::all());
    write(&mut rig, &remote, 1, None).unwrap();
    rig.settle();
    rig.sender().begin_close(far_future());
    rig.settle();
    let heard = far_events(&mut rig);
    assert!(
        matches!(heard[..], [WindowEvent::Quarantined { .. }]),
        "{heard:?}"
    );
    assert_eq!(rig.receiver().windows(), 1);
    let last = rig.receiver().close(far_future()).unwrap();
    let back = |event: &ReceiveEvent| {
        matches!(
            event,
            ReceiveEvent::Window {
                event: WindowEvent::Released { .. },
                ..
            }
        )
    };
    assert_eq!(last.iter().filter(|event| back(event)).count(), 1);
}

/// The peer's provider is in the middle of a write when its connection is given up: the endpoint,
/// which serves others, goes on taking it.
#[test]
fn over_rdm_a_lost_peer_s_windows_stay_until_the_endpoint_is_closed() {
    for hold in [false, true] {
        let mut setup = rdm_setup();
        setup.windows.windows = 2;
        if let Some(rma) = &mut setup.net.rma {
            rma.holds_registrations = hold;
        }
        let mut rig = setup.connected();
        let id = connection(&rig);
        let slice = memory(&rig, WINDOW_MEMORY);
        let base = slice.as_ptr().addr();
        let (local, remote) = expose(&mut rig, slice, Access::WRITE);
        let (dropped, _) = far_window(&mut rig, 34, Access::WRITE);
        drop(dropped);
        write(&mut rig, &remote, 1, None).unwrap();
        assert!(rig.net.begin_one_sided(rig.conn));
        let now = rig.now();
        rig.receiver().begin_close(id, now);
        rig.poll_receiver();
        rig.poll_receiver();
        let heard = far_events(&mut rig);
        let kept = |event: &WindowEvent| {
            matches!(event, WindowEvent::Quarantined { window }
                if *window == local.id())
        };
        assert!(matches!(&heard[..], [one] if kept(one)), "{heard:?}");
        let stats = rig.receiver().stats();
        assert_eq!((stats.quarantined, rig.receiver().windows()), (2, 2));
        assert!(
            !rig.receiver()
                .revoke(local, far_future())
                .expect("its own window"),
            "nobody to ask"
        );
        let closed = |step: &Step| matches!(step, Step::MrClosed { base: of, .. } if *of == base);
        assert_eq!(rig.net.log().iter().any(closed), !hold);
        // The rest of the write lands.
        rig.net.deliver(usize::MAX);
        assert!(!is_freed(&rig, WINDOW_MEMORY) && !is_freed(&rig, 34));
        rig.net.check();
        rig.settle();
        let last = rig.receiver().close(far_future()).unwrap();
        let back = last.iter().filter(|event| {
            matches!(
                event,
                ReceiveEvent::Window {
                    event: WindowEvent::Released { .. },
                    ..
                }
            )
        });
        assert_eq!(back.count(), 1, "the one that is wanted: {last:?}");
        assert!(is_freed(&rig, 34) && !is_freed(&rig, WINDOW_MEMORY));
        drop(last);
        assert!(is_freed(&rig, WINDOW_MEMORY));
        rig.end();
    }
}

/// The receiver's own operations outlive their connection; each has its outcome at once, and its
/// memory comes when it is over.
#[test]
fn over_rdm_operations_are_failed_at_once_and_given_back_later() {
    for by_close in [false, true] {
        let mut rig = rdm_setup().connected();
        let id = connection(&rig);
        let slice = memory(&rig, WINDOW_MEMORY);
        let local = rig.sender().expose(slice.into(), Access::all()).unwrap();
        let remote = rig.receiver().open_window(id, &local.descriptor()).unwrap();
        let own = memory(&rig, 34);
        own.region().register_with(rig.net.far()).unwrap();
        let payload = Payload::from(own.slice(0..8).unwrap());
        rig.receiver()
            .write(payload, remote.at(0), None, Level::Delivered, 7)
            .unwrap();
        rig.receiver()
            .read(own.slice(8..16).unwrap().into(), remote.at(0), 8)
            .unwrap();
        drop(own);
        let now = rig.now();
        rig.receiver().begin_close(id, now);
        rig.poll_receiver();
        rig.poll_receiver();
        let heard = far_events(&mut rig);
        let [
            WindowEvent::WriteFailed {
                key: 7, payload, ..
            },
            WindowEvent::ReadFailed {
                key: 8, into: None, ..
            },
        ] = &heard[..]
        else {
            panic!("{heard:?}");
        };
        assert!(payload.segments().is_empty());
        let stats = rig.receiver().stats();
        assert_eq!(
            (
                stats.one_sided.posted,
                stats.one_sided.failed,
                stats.one_sided.in_flight
            ),
            (2, 2, 0)
        );
        assert!(!is_freed(&rig, 34), "the provider has it");
        let returned = if by_close {
            let last = rig.receiver().close(far_future()).unwrap();
            last.into_iter()
                .filter_map(|event| match event {
                    ReceiveEvent::Window { event, .. } => Some(event),
                    _ => None,
                })
                .collect()
        } else {
            rig.net.deliver(usize::MAX);
            rig.poll_receiver();
            far_events(&mut rig)
        };
        assert!(
            matches!(
                returned[..],
                [
                    WindowEvent::WriteReturned { key: 7, .. },
                    WindowEvent::ReadReturned { key: 8, .. }
                ]
            ),
            "{returned:?}"
        );
        drop(returned);
        rig.receiver = None;
        assert!(is_freed(&rig, 34));
        rig.net.check();
        drop(local);
    }
}

#[test]
fn what_a_peer_may_fill_after_the_close_is_never_freed() {
    for dropped in [false, true] {
        let mut setup = rdm_setup();
        if let Some(rma) = &mut setup.net.rma {
            rma.reads_outlive_close = true;
        }
        let mut rig = setup.connected();
        let near = rig.near;
        rig.net.set_close(near, CloseMode::Silent);
        let (_local, remote) = far_window(&mut rig, WINDOW_MEMORY, Access::all());
        let own = memory(&rig, 34);
        own.region().register_with(rig.net.near()).unwrap();
        let into = own.slice(0..64).unwrap();
        rig.sender().read(into.into(), remote.at(0), 5).unwrap();
        let other = memory(&rig, 35);
        other.region().register_with(rig.net.near()).unwrap();
        let payload = Payload::from(other.slice(0..8).unwrap());
        rig.sender()
            .write(payload, remote.at(0), None, Level::Delivered, 6)
            .unwrap();
        drop((own, other));
        if dropped {
            rig.sender = None;
        } else {
            let mut events = Vec::new();
            let now = rig.now();
            rig.sender().begin_close(now);
            rig.sender().poll(&mut events).unwrap();
            let leaked = |event: &&crate::endpoint::event::SendEvent| {
                matches!(
                    event,
                    crate::endpoint::event::SendEvent::Window(WindowEvent::ReadFailed {
                        key: 5,
                        into: None,
                        ..
                    })
                )
            };
            assert_eq!(events.iter().filter(leaked).count(), 1, "{events:?}");
            drop(events);
            rig.sender = None;
        }
        assert!(!is_freed(&rig, 34), "a read may still land");
        assert!(is_freed(&rig, 35), "a write does not");
        rig.receiver = None;
    }
}

proptest! {
    #![proptest_config(crate::soak::cases(80, 2000))]

    /// The same over connections that share an endpoint: a window comes back, or is kept until the
    /// endpoint is closed.
    #[test]
    fn windows_in_any_order_over_rdm(steps in prop::collection::vec(any_move(), 0..120)) {
        let mut rig = rdm_setup().connected();
        let mut walk = Walk::default();
        for step in steps {
            walk.step(&mut rig, step);
        }
        walk.open_all();
        for _ in 0..20 {
            rig.settle();
        }
        let back = far_events(&mut rig);
        let ends = back.iter().filter_map(|event| match event {
            WindowEvent::Released { window, .. } | WindowEvent::Quarantined { window } => {
                Some(*window)
            }
            _ => None,
        });
        let ends: Vec<_> = ends.collect();
        let unique: HashSet<_> = ends.iter().copied().collect();
        prop_assert_eq!(unique.len(), ends.len(), "one ended twice");
        for id in &walk.revoked {
            prop_assert!(unique.contains(id), "window {} did not come back", id);
        }
        rig.check_all_back();
        drop(back);
        rig.end();
        for number in 1..=walk.next_memory {
            prop_assert!(is_freed(&rig, 1000 + number), "memory {} is kept", number);
        }
    }
}
