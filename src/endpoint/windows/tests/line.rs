//! One-sided operations that wait for a gate, and those that go piece by piece: in order, bounded,
//! and with an outcome each, over the fake link.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::buffer::{Gate, GateError, Payload, RegionSlice, SharedBufferManager};
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::event::{DeadlinePolicy, Level, ReceiveEvent, SendEvent};
use crate::endpoint::link::PostRefused;
use crate::endpoint::link::fake::CloseMode;
use crate::endpoint::testing::rig::{FakeGate, Rig, Setup, far_future, pool_with_room};
use crate::endpoint::windows::destination::Destination;
use crate::endpoint::windows::later::Later;
use crate::endpoint::windows::staged_transfer::{PartCopies, Slots};
use crate::endpoint::windows::tests::one_sided::{
    WINDOW_MEMORY, connection, expose, far_events, far_window, first_bytes, memory, rdm_setup,
    read, setup, write,
};
use crate::endpoint::windows::window::{LocalWindow, RemoteWindow, WindowEvent};
use crate::error::FabricErrno;
use crate::event_loop::WaitSource;
use crate::memory::{Access, Region};
use crate::protocol::connection::{CloseReason, Form};

/// Bytes that a test reads into a device.
const READ_BYTES: usize = 64;

/// Copies between slots and a device's memory that is none; a test opens their gates.
#[derive(Clone, Debug)]
pub(super) struct FakeCopies(Arc<FakeDevice>);

#[derive(Debug)]
struct FakeDevice {
    bytes: Mutex<Vec<u8>>,
    gates: Mutex<Vec<FakeGate>>,
    open: AtomicBool,
    /// Whether the copies go into it.
    inward: AtomicBool,
    told: AtomicBool,
}

impl FakeCopies {
    pub(super) fn new(bytes: &[u8]) -> Self {
        Self(Arc::new(FakeDevice {
            bytes: Mutex::new(bytes.to_vec()),
            gates: Mutex::default(),
            open: AtomicBool::new(false),
            inward: AtomicBool::new(false),
            told: AtomicBool::new(false),
        }))
    }

    /// All gates, those of later copies, too.
    pub(super) fn open_all(&self) {
        self.0.open.store(true, Ordering::Relaxed);
        self.gates().iter().for_each(FakeGate::open);
    }

    fn gates(&self) -> Vec<FakeGate> {
        self.0.gates.lock().unwrap().clone()
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.bytes.lock().unwrap().clone()
    }

    fn all_settled(&self) -> bool {
        self.gates().iter().all(FakeGate::is_settled)
    }
}

impl PartCopies for FakeCopies {
    fn begin(&mut self, at: u64, slot: &mut [u8]) -> Box<dyn Gate> {
        let mut bytes = self.0.bytes.lock().unwrap();
        let part = &mut bytes[at as usize..][..slot.len()];
        match self.0.inward.load(Ordering::Relaxed) {
            true => part.copy_from_slice(slot),
            false => slot.copy_from_slice(part),
        }
        let gate = FakeGate::default();
        if self.0.open.load(Ordering::Relaxed) {
            gate.open();
        }
        self.0.gates.lock().unwrap().push(gate.clone());
        Box::new(gate)
    }

    fn is_told(&self) -> bool {
        self.0.told.load(Ordering::Relaxed)
    }
}

/// A ring's slots.
pub(super) fn ring(rig: &Rig, count: u32) -> SharedBufferManager {
    let ring = pool_with_room(&rig.net, 78, count, 0);
    ring.region().register_with(rig.net.near()).unwrap();
    ring.region().register_with(rig.net.far()).unwrap();
    ring
}

/// That many of them, for pieces of that many bytes; `None`: too few are free.
pub(super) fn slots(
    ring: &SharedBufferManager,
    count: usize,
    piece_bytes: usize,
    copies: &FakeCopies,
) -> Option<Slots> {
    let free = (0..count).map(|_| ring.try_acquire());
    Some(Slots {
        free: free.collect::<Option<_>>()?,
        piece_bytes,
        copies: Box::new(copies.clone()),
    })
}

/// Posts a write of the key's bytes that waits for a gate, which this gives.
pub(super) fn write_gated(
    rig: &mut Rig,
    window: &RemoteWindow,
    key: u64,
    data: Option<u32>,
) -> Result<FakeGate, SendErrorKind> {
    let gate = FakeGate::default();
    let payload = rig.payload(key);
    let index = payload.index();
    let payload = Payload::from(payload).behind(Box::new(gate.clone()));
    let written = rig
        .sender()
        .write(payload, window.at(8), data, Level::Delivered, key);
    match written {
        Ok(()) => {
            rig.owed.insert(key, index);
            Ok(gate)
        }
        Err(refused) => {
            assert!(refused.given.is_gated(), "as it was given");
            let payload = refused.given.into_buffer().unwrap();
            assert_eq!((payload.index(), refused.key), (index, key));
            Err(refused.kind)
        }
    }
}

/// Posts a write of the key's bytes that goes through these slots.
pub(super) fn write_pieces(
    rig: &mut Rig,
    window: &RemoteWindow,
    key: u64,
    data: Option<u32>,
    slots: Slots,
) -> Result<(), SendErrorKind> {
    let payload = rig.payload(key);
    let index = payload.index();
    let target = (window.at(8), data, Level::Delivered);
    let way = |payload| Ok(Later::Pieces(payload, slots));
    match rig
        .sender()
        .hub()
        .queue_write(payload.into(), target, key, way)
    {
        Ok(()) => {
            rig.owed.insert(key, index);
            Ok(())
        }
        Err((kind, payload)) => {
            assert_eq!(payload.into_buffer().unwrap().index(), index);
            Err(kind)
        }
    }
}

/// Posts a read of the window's beginning that comes through these slots.
pub(super) fn read_pieces(
    rig: &mut Rig,
    window: &RemoteWindow,
    key: u64,
    slots: Slots,
) -> Result<(), SendErrorKind> {
    let buffer = rig.payloads.try_acquire().expect("a buffer is free");
    let index = buffer.index();
    let into = Destination::buffer(buffer, READ_BYTES);
    let way = |_: &Destination| Ok(Some(slots));
    match rig.sender().hub().queue_read(into, window.at(0), key, way) {
        Ok(()) => {
            rig.owed.insert(key, index);
            Ok(())
        }
        Err((kind, into)) => {
            assert_eq!(into.into_buffer().unwrap().index(), index);
            Err(kind)
        }
    }
}

fn both() -> [Setup; 2] {
    [setup(), rdm_setup()]
}

/// A window at the receiver, its memory, and the sender's view of it.
fn window(rig: &mut Rig) -> (LocalWindow, RegionSlice, RemoteWindow) {
    let slice = memory(rig, WINDOW_MEMORY);
    let (local, remote) = expose(rig, slice.clone(), Access::all());
    (local, slice, remote)
}

fn failed_keys(rig: &Rig) -> Vec<u64> {
    rig.failed.iter().map(|(key, _)| *key).collect()
}

// ---- gates --------------------------------------------------------------------------------------

#[test]
fn nothing_overtakes_an_operation_that_waits() {
    for setup in both() {
        let mut rig = setup.connected();
        let (_local, slice, remote) = window(&mut rig);
        write(&mut rig, &remote, 1, None).unwrap();
        let gate = write_gated(&mut rig, &remote, 2, None).unwrap();
        write(&mut rig, &remote, 3, None).unwrap();
        read(&mut rig, &remote, 4).unwrap();
        rig.settle();
        assert_eq!(rig.completed, [1]);
        rig.send(9).expect("messages have an order of their own");
        rig.settle();
        assert_eq!((rig.received.clone(), rig.completed.len()), (vec![9], 2));
        gate.open();
        rig.settle();
        assert_eq!(rig.completed, [1, 9, 2, 3, 4]);
        assert_eq!(first_bytes(&slice.slice(8..16).unwrap()), 3);
        assert_eq!(rig.reads, [(4, 3_u64.to_le_bytes())]);
        assert!(gate.is_settled());
        write(&mut rig, &remote, 5, None).unwrap();
        rig.settle();
        assert_eq!(rig.completed.len(), 6, "and on as before");
        rig.check_all_back();
    }
}

#[test]
fn gates_open_in_any_order_and_the_operations_go_in_theirs() {
    for setup in both() {
        let mut rig = setup.connected();
        let (_local, slice, remote) = window(&mut rig);
        let gates: Vec<_> = (0..4)
            .map(|key| write_gated(&mut rig, &remote, key, None).unwrap())
            .collect();
        for opened in [2, 3, 1, 0] {
            assert_eq!(rig.completed.len(), 0);
            gates[opened].open();
            rig.settle();
        }
        assert_eq!(rig.completed, [0, 1, 2, 3]);
        assert_eq!(first_bytes(&slice.slice(8..16).unwrap()), 3);
        rig.check_all_back();
    }
}

#[test]
fn a_gate_that_fails_is_the_end_of_its_operation_alone() {
    for setup in both() {
        for failing in 0..4 {
            let mut rig = setup.clone().connected();
            let (_local, _, remote) = window(&mut rig);
            let gates: Vec<_> = (0..4)
                .map(|key| write_gated(&mut rig, &remote, key, Some(7)).unwrap())
                .collect();
            let blocked = SendErrorKind::WouldBlock(Blocked::Credits);
            assert_eq!(write(&mut rig, &remote, 4, Some(7)), Err(blocked));
            gates[failing].fail();
            rig.settle();
            assert_eq!(rig.failed, [(failing as u64, libc::EIO)]);
            assert_eq!(rig.writable, 1, "its credit is free");
            write(&mut rig, &remote, 5, Some(7)).unwrap();
            gates.iter().for_each(FakeGate::open);
            rig.settle();
            let rest: Vec<_> = (0..4).filter(|&key| key != failing as u64).collect();
            assert_eq!(rig.completed, [&rest[..], &[5]].concat());
            let told = |event: &&WindowEvent| matches!(event, WindowEvent::PeerWrote { .. });
            assert_eq!(far_events(&mut rig).iter().filter(told).count(), 4);
            // Messages are numbered apart from what was not written.
            rig.send(6).unwrap();
            rig.settle();
            assert_eq!(rig.received, [6]);
            rig.sender().begin_close(far_future());
            rig.settle();
            assert_eq!(rig.ended, Some(CloseReason::Finished));
            rig.check_all_back();
        }
    }
}

#[test]
fn as_many_wait_as_may_be_in_flight() {
    let mut rig = Setup {
        depth: 3,
        ..setup()
    }
    .connected();
    let (_local, _, remote) = window(&mut rig);
    let gates: Vec<_> = (0..2)
        .map(|key| write_gated(&mut rig, &remote, key, None).unwrap())
        .collect();
    read(&mut rig, &remote, 2).unwrap();
    let blocked = SendErrorKind::WouldBlock(Blocked::Depth);
    assert_eq!(write(&mut rig, &remote, 9, None), Err(blocked.clone()));
    assert_eq!(
        write_gated(&mut rig, &remote, 9, None).unwrap_err(),
        blocked
    );
    assert_eq!(read(&mut rig, &remote, 9), Err(blocked));
    rig.settle();
    assert_eq!(rig.writable, 0);
    gates[0].open();
    rig.settle();
    assert_eq!((rig.completed.len(), rig.writable), (1, 1));
    write(&mut rig, &remote, 3, None).unwrap();
    gates[1].open();
    rig.settle();
    assert_eq!(rig.completed, [0, 1, 2, 3]);
    rig.check_all_back();
}

#[test]
fn an_open_gate_waits_for_the_provider_like_any_operation() {
    let mut rig = setup().connected();
    let (_local, _, remote) = window(&mut rig);
    let near = rig.near;
    let gate = write_gated(&mut rig, &remote, 0, None).unwrap();
    write(&mut rig, &remote, 1, None).unwrap();
    gate.open();
    rig.net.refuse_sends(near, &[PostRefused::Again; 2]);
    rig.poll_sender();
    rig.poll_sender();
    assert_eq!(rig.net.sends_of(rig.conn).len(), 0);
    rig.settle();
    assert_eq!(rig.completed, [0, 1]);
    // One that it does not take at all is over by itself.
    let gate = write_gated(&mut rig, &remote, 2, Some(1)).unwrap();
    write(&mut rig, &remote, 3, None).unwrap();
    gate.open();
    let errno = PostRefused::Errno(FabricErrno::new(libc::EINVAL));
    rig.net.refuse_sends(near, &[errno]);
    rig.settle();
    assert_eq!(rig.failed, [(2, libc::EINVAL)]);
    assert_eq!((rig.completed.len(), rig.ended), (3, None));
    rig.check_all_back();
}

#[test]
fn a_window_that_is_revoked_takes_what_waits_along() {
    for setup in both() {
        let mut rig = setup.connected();
        let (first, first_remote) = far_window(&mut rig, WINDOW_MEMORY, Access::all());
        let (_second, second_remote) = far_window(&mut rig, WINDOW_MEMORY + 1, Access::all());
        let gates = [
            write_gated(&mut rig, &first_remote, 0, Some(1)).unwrap(),
            write_gated(&mut rig, &second_remote, 1, Some(1)).unwrap(),
        ];
        write(&mut rig, &first_remote, 2, None).unwrap();
        write(&mut rig, &second_remote, 3, None).unwrap();
        assert!(
            rig.receiver()
                .revoke(first, far_future())
                .expect("its own window")
        );
        rig.settle();
        assert_eq!(rig.failed, [(0, libc::ECANCELED), (2, libc::ECANCELED)]);
        assert!(matches!(rig.heard[..], [WindowEvent::Revoked { .. }]));
        let back = far_events(&mut rig);
        let rdm = rig.setup.net.form == Form::Rdm;
        let expected = match rdm {
            true => matches!(back[..], [WindowEvent::Quarantined { .. }]),
            false => matches!(back[..], [WindowEvent::Released { .. }]),
        };
        assert!(expected, "{back:?}");
        assert!(gates[0].is_settled() && rig.completed.is_empty());
        gates[1].open();
        rig.settle();
        assert_eq!((rig.completed.clone(), rig.ended), (vec![1, 3], None));
        rig.sender().begin_close(far_future());
        rig.settle();
        assert_eq!(rig.ended, Some(CloseReason::Finished));
        rig.check_all_back();
    }
}

#[test]
fn a_close_waits_for_gates_and_its_deadline_for_none() {
    for opens in [true, false] {
        let mut rig = setup().connected();
        let (_local, _, remote) = window(&mut rig);
        let gate = write_gated(&mut rig, &remote, 0, None).unwrap();
        read(&mut rig, &remote, 1).unwrap();
        let deadline = match opens {
            true => far_future(),
            false => rig.now() + Duration::from_millis(20),
        };
        rig.sender().begin_close(deadline);
        rig.settle();
        assert_eq!(rig.ended, None);
        match opens {
            true => gate.open(),
            false => rig.pass(Duration::from_millis(20)),
        }
        rig.settle();
        if opens {
            assert_eq!(rig.ended, Some(CloseReason::Finished));
            assert_eq!(rig.completed, [0, 1]);
        } else {
            assert_eq!(rig.ended, Some(CloseReason::ClosedByDeadline));
            assert_eq!(failed_keys(&rig), [0, 1]);
        }
        rig.check_all_back();
    }
}

#[test]
fn the_deadline_of_an_operation_counts_while_it_waits() {
    for policy in [DeadlinePolicy::Notify, DeadlinePolicy::FailConnection] {
        let mut rig = Setup {
            send_deadline: Some(Duration::from_millis(20)),
            policy,
            ..setup()
        }
        .connected();
        let (_local, _, remote) = window(&mut rig);
        let gate = write_gated(&mut rig, &remote, 7, None).unwrap();
        rig.settle();
        assert_eq!((rig.late.len(), rig.ended), (0, None));
        rig.pass(Duration::from_millis(20));
        rig.settle();
        if policy == DeadlinePolicy::Notify {
            assert_eq!((rig.late.clone(), rig.ended), (vec![7], None));
            gate.open();
            rig.settle();
            assert_eq!(rig.completed, [7]);
        } else {
            assert!(matches!(rig.ended, Some(CloseReason::SendDeadline { .. })));
            assert_eq!(rig.failed.len(), 1);
        }
        rig.check_all_back();
    }
}

#[test]
fn a_lost_connection_gives_back_what_waits_in_order() {
    for mode in [CloseMode::Reports, CloseMode::Silent, CloseMode::Fails] {
        for setup in both() {
            let mut rig = setup.connected();
            let (_local, _, remote) = window(&mut rig);
            let (near, ring) = (rig.near, ring(&rig, 2));
            rig.net.set_close(near, mode);
            let copies = FakeCopies::new(&[5; 8]);
            let through = slots(&ring, 1, 3, &copies).unwrap();
            let gate = write_gated(&mut rig, &remote, 0, Some(1)).unwrap();
            read(&mut rig, &remote, 1).unwrap();
            write_pieces(&mut rig, &remote, 2, None, through).unwrap();
            rig.poll_sender();
            let now = rig.now();
            rig.sender().begin_close(now);
            rig.poll_sender();
            assert_eq!(failed_keys(&rig), [0, 1, 2], "{mode:?}");
            assert!(gate.is_settled() && copies.all_settled());
            // Though the endpoint may be stuck: the provider had none of it.
            assert_eq!(ring.free_count(), 2);
            rig.check_all_back();
            rig.sender = None;
            rig.receiver = None;
            rig.net.use_stuck();
        }
    }
}

#[test]
fn an_endpoint_that_is_dropped_gives_back_what_waits() {
    let mut rig = setup().connected();
    let (_local, _, remote) = window(&mut rig);
    let ring = ring(&rig, 2);
    let copies = FakeCopies::new(&[5; 8]);
    let through = slots(&ring, 2, 3, &copies).unwrap();
    write_pieces(&mut rig, &remote, 0, None, through).unwrap();
    let gate = write_gated(&mut rig, &remote, 1, None).unwrap();
    rig.sender = None;
    assert!(gate.is_settled() && copies.all_settled());
    let mut keys = rig.abandoned.lock().unwrap().clone();
    keys.sort_unstable();
    assert_eq!(keys, [0, 1]);
    assert_eq!(ring.free_count(), 2);
    assert_eq!(rig.payloads.free_count(), rig.payloads.slots());
}

#[test]
fn a_gate_is_asked_at_once_and_a_sleeper_comes_back_to_it() {
    let mut rig = setup().connected();
    let (_local, _, remote) = window(&mut rig);
    rig.poll_sender();
    let before = rig.sender().wait().next_deadline();
    let gate = write_gated(&mut rig, &remote, 0, None).unwrap();
    assert_eq!(gate.polls(), 1, "so that a copy begins");
    rig.poll_sender();
    assert_eq!(gate.polls(), 2);
    let next = rig.sender().wait().next_deadline().expect("a timer");
    assert!(before.is_none_or(|before| next < before));
    assert!(next < rig.now() + Duration::from_millis(1));
    // A poll that finds nothing looks at it, too.
    let mut events = Vec::new();
    rig.sender().poll(&mut events).unwrap();
    assert_eq!((gate.polls(), events.len()), (3, 0));
    gate.open();
    rig.settle();
    assert_eq!(rig.completed, [0]);
}

// ---- piece by piece -----------------------------------------------------------------------------

#[test]
fn a_write_goes_piece_by_piece_and_tells_the_peer_last() {
    for setup in both() {
        let mut rig = setup.connected();
        let (_local, slice, remote) = window(&mut rig);
        let ring = ring(&rig, 2);
        let bytes = 0x1122_3344_5566_7788_u64;
        let copies = FakeCopies::new(&bytes.to_le_bytes());
        let through = slots(&ring, 2, 3, &copies).unwrap();
        write_pieces(&mut rig, &remote, 1, Some(77), through).unwrap();
        write(&mut rig, &remote, 2, None).unwrap();
        assert_eq!(copies.gates().len(), 2, "as many as there are slots");
        rig.settle();
        assert_eq!((rig.completed.len(), ring.free_count()), (0, 0));
        copies.gates()[1].open();
        rig.settle();
        assert_eq!(copies.gates().len(), 2, "in order");
        copies.gates()[0].open();
        rig.settle();
        assert_eq!(copies.gates().len(), 3);
        assert!(far_events(&mut rig).is_empty());
        copies.open_all();
        rig.poll_sender();
        // The others are over.
        assert_eq!(
            first_bytes(&slice.slice(8..16).unwrap()) & 0xffff_ffff_ffff,
            bytes & 0xffff_ffff_ffff
        );
        rig.net.deliver(1);
        rig.poll_receiver();
        assert_eq!(first_bytes(&slice.slice(8..16).unwrap()), bytes);
        let heard = far_events(&mut rig);
        assert!(
            matches!(heard[..], [WindowEvent::PeerWrote { data: 77, .. }]),
            "{heard:?}"
        );
        rig.settle();
        assert_eq!(rig.completed, [1, 2]);
        assert!(copies.all_settled());
        assert_eq!(ring.free_count(), 2);
        rig.check_all_back();
    }
}

#[test]
fn a_read_comes_piece_by_piece_and_is_told_behind_the_last_copy() {
    for told in [false, true] {
        for setup in both() {
            let mut rig = setup.connected();
            let (_local, slice, remote) = window(&mut rig);
            write(&mut rig, &remote, 0x0102_0304, None).unwrap();
            rig.settle();
            let ring = ring(&rig, 2);
            let copies = FakeCopies::new(&[0xee; READ_BYTES]);
            copies.0.inward.store(true, Ordering::Relaxed);
            copies.0.told.store(told, Ordering::Relaxed);
            let through = slots(&ring, 2, 7, &copies).unwrap();
            read_pieces(&mut rig, &remote, 1, through).unwrap();
            rig.settle();
            assert_eq!(copies.gates().len(), 2, "slots wait for their copies");
            for opened in 0..8 {
                copies.gates()[opened].open();
                rig.settle();
                assert_eq!(copies.gates().len(), (opened + 3).min(10));
                let early = told && opened == 7;
                assert_eq!(rig.reads.len(), usize::from(early), "after {opened}");
            }
            // Those that somebody else waits for are under way behind the outcome.
            assert_eq!(ring.free_count(), 0);
            copies.open_all();
            rig.settle();
            assert_eq!((rig.reads.len(), ring.free_count()), (1, 2));
            // SAFETY: nobody writes there now.
            let there = unsafe { std::slice::from_raw_parts(slice.as_ptr(), READ_BYTES) };
            assert_eq!(copies.bytes(), there);
            assert!(copies.all_settled());
            rig.check_all_back();
        }
    }
}

#[test]
fn a_copy_that_fails_is_the_end_of_its_operation_alone() {
    for outward in [true, false] {
        for failing in 0..2 {
            let mut rig = setup().connected();
            let (_local, _, remote) = window(&mut rig);
            let ring = ring(&rig, 2);
            let copies = FakeCopies::new(&[1; READ_BYTES]);
            copies.0.inward.store(!outward, Ordering::Relaxed);
            let through = slots(&ring, 2, 3, &copies).unwrap();
            match outward {
                true => write_pieces(&mut rig, &remote, 1, Some(1), through).unwrap(),
                false => read_pieces(&mut rig, &remote, 1, through).unwrap(),
            }
            write(&mut rig, &remote, 2, None).unwrap();
            rig.settle();
            copies.gates()[..failing].iter().for_each(FakeGate::open);
            rig.settle();
            copies.gates()[failing].fail();
            rig.settle();
            assert_eq!(rig.failed, [(1, libc::EIO)]);
            assert_eq!((rig.completed.clone(), rig.ended), (vec![2], None));
            assert!(copies.all_settled());
            assert_eq!(ring.free_count(), 2);
            for key in 3..7 {
                write(&mut rig, &remote, key, Some(1)).expect("its credit is free");
            }
            rig.settle();
            rig.check_all_back();
        }
    }
}

#[test]
fn pieces_wait_for_the_provider_and_for_each_other() {
    let mut rig = setup().connected();
    let (_local, slice, remote) = window(&mut rig);
    let (near, ring) = (rig.near, ring(&rig, 8));
    let copies = [FakeCopies::new(&[1; 8]), FakeCopies::new(&[2; 8])];
    for (key, copies) in copies.iter().enumerate() {
        copies.open_all();
        let through = slots(&ring, 4, 1, copies).unwrap();
        write_pieces(&mut rig, &remote, key as u64, None, through).unwrap();
        assert_eq!(copies.gates().len(), 4, "those behind begin theirs");
    }
    let again = [PostRefused::Again; 3];
    rig.net.refuse_sends(near, &again);
    rig.poll_sender();
    assert_eq!(rig.net.sends_of(rig.conn).len(), 0);
    rig.poll_sender();
    rig.poll_sender();
    rig.poll_sender();
    assert_eq!(
        rig.net.sends_of(rig.conn).len(),
        4,
        "as many as may be in flight"
    );
    rig.settle();
    assert_eq!(rig.completed, [0, 1]);
    assert_eq!(
        first_bytes(&slice.slice(8..16).unwrap()),
        0x0202_0202_0202_0202
    );
    // One that it does not take at all ends the operation.
    let through = slots(&ring, 4, 1, &copies[0]).unwrap();
    write_pieces(&mut rig, &remote, 2, None, through).unwrap();
    let errno = PostRefused::Errno(FabricErrno::new(libc::EINVAL));
    rig.net.refuse_sends(near, &[errno]);
    rig.settle();
    assert_eq!(
        (rig.failed.clone(), rig.ended),
        (vec![(2, libc::EINVAL)], None)
    );
    assert_eq!(ring.free_count(), 8);
    rig.check_all_back();
}

/// The provider has slots, and nothing of what was given.
#[test]
fn what_was_given_is_back_though_the_provider_has_pieces() {
    for mode in [CloseMode::Reports, CloseMode::Silent, CloseMode::Fails] {
        for outlive in [false, true] {
            let mut setup = rdm_setup();
            if let Some(rma) = &mut setup.net.rma {
                rma.reads_outlive_close = outlive;
            }
            let mut rig = setup.connected();
            let (_local, _, remote) = window(&mut rig);
            let (near, ring) = (rig.near, ring(&rig, 2));
            rig.net.set_close(near, mode);
            let copies = FakeCopies::new(&[1; READ_BYTES]);
            copies.open_all();
            let through = slots(&ring, 1, 3, &copies).unwrap();
            write_pieces(&mut rig, &remote, 1, None, through).unwrap();
            let through = slots(&ring, 1, 80, &copies).unwrap();
            read_pieces(&mut rig, &remote, 2, through).unwrap();
            rig.poll_sender();
            assert_eq!(rig.net.sends_of(rig.conn).len(), 1);
            let now = rig.now();
            rig.sender().begin_close(now);
            rig.poll_sender();
            assert_eq!(failed_keys(&rig), [1, 2]);
            rig.check_all_back();
            let free = if mode == CloseMode::Fails { 1 } else { 2 };
            assert_eq!(ring.free_count(), free, "{mode:?}");
            rig.sender = None;
            rig.receiver = None;
            rig.net.use_stuck();
        }
    }
}

/// Dropping memory calls whoever it is of, who may panic.
#[test]
fn what_the_provider_has_is_leaked_although_an_owner_of_what_waits_panics() {
    struct Spiteful;
    impl Drop for Spiteful {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("spite"));
        }
    }
    let mut rig = rdm_setup().connected();
    let (_local, _, remote) = window(&mut rig);
    rig.net.set_close(rig.near, CloseMode::Fails);
    rig.send(1).unwrap();
    let bytes = NonNull::from(Box::leak(vec![0u8; 64].into_boxed_slice())).cast();
    // SAFETY: leaked just above.
    let region = unsafe { Region::external(bytes, 64, Box::new(Spiteful)) }.unwrap();
    region.register_with(rig.net.near()).unwrap();
    let payload = Payload::from(region.slice(0..8).unwrap());
    let payload = payload.behind(Box::new(FakeGate::default()));
    drop(region);
    rig.sender()
        .write(payload, remote.at(8), None, Level::Delivered, 2)
        .unwrap();
    let sender = rig.sender.take();
    let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(sender)));
    assert!(dropped.is_err(), "by the owner of what waited");
    let (free, all) = (rig.payloads.free_count(), rig.payloads.slots());
    assert_eq!(free, all - 1, "the provider may still read it");
    rig.net.use_stuck();
    rig.net.check();
}

#[test]
fn a_slot_that_a_peer_may_fill_after_the_close_is_never_free() {
    let mut setup = rdm_setup();
    if let Some(rma) = &mut setup.net.rma {
        rma.reads_outlive_close = true;
    }
    let mut rig = setup.connected();
    let (_local, _, remote) = window(&mut rig);
    let (near, ring) = (rig.near, ring(&rig, 2));
    rig.net.set_close(near, CloseMode::Silent);
    let copies = FakeCopies::new(&[1; READ_BYTES]);
    let through = slots(&ring, 1, 80, &copies).unwrap();
    read_pieces(&mut rig, &remote, 2, through).unwrap();
    rig.poll_sender();
    let now = rig.now();
    rig.sender().begin_close(now);
    rig.poll_sender();
    assert_eq!(failed_keys(&rig), [2]);
    rig.check_all_back();
    assert_eq!(
        ring.free_count(),
        1,
        "the slot is given up, not the destination"
    );
}

/// The peer revokes a window that an operation is in the middle of: that goes on, since it depends
/// on nobody.
#[test]
fn what_has_begun_goes_on_when_its_window_is_revoked() {
    let mut rig = setup().connected();
    let (local, remote) = far_window(&mut rig, WINDOW_MEMORY, Access::all());
    let ring = ring(&rig, 1);
    let copies = FakeCopies::new(&[1; 8]);
    let through = slots(&ring, 1, 3, &copies).unwrap();
    write_pieces(&mut rig, &remote, 1, None, through).unwrap();
    copies.gates()[0].open();
    rig.settle();
    assert!(
        rig.receiver()
            .revoke(local, far_future())
            .expect("its own window")
    );
    rig.settle();
    assert!(far_events(&mut rig).is_empty(), "in use");
    copies.open_all();
    rig.settle();
    assert_eq!(rig.completed, [1]);
    let back = far_events(&mut rig);
    assert!(
        matches!(back[..], [WindowEvent::Released { .. }]),
        "{back:?}"
    );
    rig.check_all_back();
}

// ---- endpoints with many connections ------------------------------------------------------------

/// The receiver's view of a window of the sender's, and memory of its own.
fn own_window(rig: &mut Rig) -> (LocalWindow, RemoteWindow, RegionSlice) {
    let id = connection(rig);
    let slice = memory(rig, WINDOW_MEMORY);
    let local = rig.sender().expose(slice.into(), Access::all()).unwrap();
    let remote = rig.receiver().open_window(id, &local.descriptor());
    let own = memory(rig, 34);
    own.region().register_with(rig.net.far()).unwrap();
    (local, remote.unwrap(), own)
}

fn gated_at_receiver(
    rig: &mut Rig,
    remote: &RemoteWindow,
    own: &RegionSlice,
    key: u64,
) -> FakeGate {
    let gate = FakeGate::default();
    let payload = Payload::from(own.slice(0..8).unwrap()).behind(Box::new(gate.clone()));
    rig.receiver()
        .write(payload, remote.at(0), None, Level::Delivered, key)
        .unwrap();
    gate
}

/// Outcomes at the receiver: keys, and whether they are good.
fn outcomes(rig: &mut Rig) -> Vec<(u64, bool)> {
    let heard = far_events(rig);
    let told = heard.into_iter().filter_map(|event| {
        let good = matches!(
            event,
            WindowEvent::Written { .. } | WindowEvent::Read { .. }
        );
        match &event {
            WindowEvent::WriteFailed { payload, .. } => assert!(!payload.segments().is_empty()),
            WindowEvent::ReadFailed { into, .. } => assert!(into.is_some()),
            _ => {}
        }
        Some((event.outcome_of()?, good))
    });
    told.collect()
}

#[test]
fn a_receiver_keeps_the_order_and_bound_of_its_operations() {
    for setup in both() {
        let mut setup = setup;
        setup.windows.operations = 4;
        let mut rig = setup.connected();
        let (_local, remote, own) = own_window(&mut rig);
        let gates: Vec<_> = (0..2)
            .map(|key| gated_at_receiver(&mut rig, &remote, &own, key))
            .collect();
        let into = || own.slice(8..16).unwrap().into();
        rig.receiver().read(into(), remote.at(0), 2).unwrap();
        let payload = Payload::from(own.slice(0..8).unwrap());
        rig.receiver()
            .write(payload, remote.at(0), None, Level::Sent, 3)
            .unwrap();
        let refused = rig.receiver().read(into(), remote.at(0), 9).unwrap_err();
        assert_eq!(refused.kind, SendErrorKind::WouldBlock(Blocked::Depth));
        rig.settle();
        assert!(outcomes(&mut rig).is_empty());
        gates[1].open();
        gates[0].fail();
        rig.settle();
        let told = outcomes(&mut rig);
        assert_eq!(told, [(0, false), (1, true), (2, true), (3, true)]);
        let writable = |event: &ReceiveEvent| matches!(event, ReceiveEvent::Writable { .. });
        assert!(rig.said.iter().any(writable));
        rig.receiver().read(into(), remote.at(0), 4).unwrap();
        rig.settle();
        assert_eq!(outcomes(&mut rig), [(4, true)]);
        let stats = rig.receiver().stats();
        assert_eq!((stats.one_sided.posted, stats.one_sided.in_flight), (5, 0));
        rig.net.check();
    }
}

#[test]
fn a_receiver_s_connection_that_ends_gives_back_what_waited() {
    for setup in both() {
        let mut rig = setup.connected();
        let id = connection(&rig);
        let (_local, remote, own) = own_window(&mut rig);
        let (ring, copies) = (ring(&rig, 2), FakeCopies::new(&[1; 64]));
        copies.open_all();
        let through = slots(&ring, 1, 3, &copies).unwrap();
        let target = (remote.at(0), None, Level::Delivered);
        let way = |payload| Ok(Later::Pieces(payload, through));
        let payload = own.slice(0..8).unwrap().into();
        let queued = rig.receiver().queue_write(payload, target, 0, way);
        assert!(queued.is_ok());
        rig.poll_receiver();
        let gate = gated_at_receiver(&mut rig, &remote, &own, 1);
        let now = rig.now();
        rig.receiver().begin_close(id, now);
        rig.poll_receiver();
        rig.poll_receiver();
        // Also where the provider still has a slot of theirs.
        assert_eq!(outcomes(&mut rig), [(0, false), (1, false)]);
        assert!(gate.is_settled() && copies.all_settled());
        assert_eq!(rig.receiver().stats().one_sided.in_flight, 0);
        rig.net.deliver(usize::MAX);
        rig.poll_receiver();
        assert_eq!(ring.free_count(), 2);
        rig.receiver = None;
        rig.net.check();
    }
}

#[test]
fn a_receiver_reads_piece_by_piece() {
    for setup in both() {
        let mut rig = setup.connected();
        let (_local, remote, own) = own_window(&mut rig);
        let (ring, copies) = (ring(&rig, 2), FakeCopies::new(&[1; 64]));
        copies.0.inward.store(true, Ordering::Relaxed);
        let through = slots(&ring, 2, 7, &copies).unwrap();
        let into = own.slice(0..64).unwrap().into();
        let way = |_: &Destination| Ok(Some(through));
        let queued = rig.receiver().queue_read(into, remote.at(3), 5, way);
        assert!(queued.is_ok());
        rig.settle();
        assert!(outcomes(&mut rig).is_empty());
        copies.open_all();
        rig.settle();
        assert_eq!(outcomes(&mut rig), [(5, true)]);
        assert_eq!((copies.bytes(), ring.free_count()), (vec![0; 64], 2));
        rig.net.check();
    }
}

#[test]
fn a_receiver_registers_what_its_operations_need_for_an_endpoint_with_registrations_of_its_own() {
    let mut setup = setup();
    setup.net.endpoint_scope = true;
    let mut rig = setup.connected();
    let (_local, remote, own) = own_window(&mut rig);
    let payload = Payload::from(own.slice(0..8).unwrap());
    rig.receiver()
        .write(payload, remote.at(0), None, Level::Delivered, 1)
        .unwrap();
    rig.settle();
    let more = memory(&rig, 35);
    more.region().register_with(rig.net.far()).unwrap();
    let into = more.slice(0..8).unwrap().into();
    rig.receiver().read(into, remote.at(0), 2).unwrap();
    rig.settle();
    assert_eq!(outcomes(&mut rig), [(1, true), (2, true)]);
}

#[test]
fn a_late_operation_at_a_receiver_that_waits_is_told() {
    let mut setup = setup();
    setup.windows.deadline = Some(Duration::from_millis(20));
    setup.windows.policy = DeadlinePolicy::Notify;
    let mut rig = setup.connected();
    let (_local, remote, own) = own_window(&mut rig);
    let gate = gated_at_receiver(&mut rig, &remote, &own, 3);
    rig.settle();
    rig.pass(Duration::from_millis(20));
    rig.settle();
    let late = |event: &ReceiveEvent| matches!(event, ReceiveEvent::Late { key: 3, .. });
    assert!(rig.said.iter().any(late), "{:?}", rig.said);
    gate.open();
    rig.settle();
    assert_eq!(outcomes(&mut rig), [(3, true)]);
}

/// A slot whose gate does not settle is leaked, and so is what its copy may still use.
#[test]
fn what_a_copy_may_still_use_is_leaked() {
    #[derive(Debug)]
    struct Stuck;
    impl Gate for Stuck {
        fn poll(&mut self) -> Result<bool, GateError> {
            Err(GateError("no more".to_owned()))
        }
        fn settle(&mut self) -> Result<(), GateError> {
            Err(GateError("nobody can tell".to_owned()))
        }
    }
    #[derive(Debug)]
    struct StuckCopies;
    impl PartCopies for StuckCopies {
        fn begin(&mut self, _: u64, _: &mut [u8]) -> Box<dyn Gate> {
            Box::new(Stuck)
        }
    }
    let mut rig = setup().connected();
    let (_local, _, remote) = window(&mut rig);
    let ring = ring(&rig, 2);
    let through = Slots {
        copies: Box::new(StuckCopies),
        ..slots(&ring, 1, 3, &FakeCopies::new(&[])).unwrap()
    };
    let payload = rig.payload(1);
    let target = (remote.at(8), None, Level::Delivered);
    let way = |payload| Ok(Later::Pieces(payload, through));
    assert!(
        rig.sender()
            .hub()
            .queue_write(payload.into(), target, 1, way)
            .is_ok()
    );
    let mut events = Vec::new();
    rig.sender().poll(&mut events).unwrap();
    let [SendEvent::Window(WindowEvent::WriteFailed { payload, .. })] = &events[..] else {
        panic!("{events:?}");
    };
    assert!(payload.segments().is_empty());
    assert_eq!(ring.free_count(), 1);
    assert_eq!(rig.payloads.free_count(), rig.payloads.slots() - 1);
}
