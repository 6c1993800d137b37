//! One-sided operations over tcp: windows on either side, every level, every refusal, revocation,
//! and what a peer can't do.
//!
//! Run it under AddressSanitizer too: memory that a peer reaches after it was freed is found there.

use std::sync::Arc;
use std::time::Instant;

use fabricast::buffer::{Payload, RegionSlice, SharedBufferManager};
use fabricast::endpoint::{
    Access, CloseReason, ConnectionId, Destination, LocalWindow, ReceiveConfig, RemoteWindow,
    SendConfig, SendErrorKind, WindowDescriptor, WindowError, WindowEvent, WindowId,
};
use fabricast::fabric::AccessEnds;
use fabricast::{
    ConnectionEvent, Domain, ReceiveEndpoint, ReceiveEvent, Region, SendEndpointZeroCopy, SendEvent,
};

use crate::common;
use crate::common::{
    Offers, Pair, SOON, Watchdog, after, domain, drive, millis, send_end, small_receiver,
};

/// A pair whose receiver has windows, in a domain of its own.
pub(crate) struct Both {
    pub(crate) pair: Pair,
    connection: ConnectionId,
    pub(crate) near: Vec<WindowEvent>,
    pub(crate) far: Vec<WindowEvent>,
    ended: Option<CloseReason>,
}

pub(crate) fn with_windows() -> ReceiveConfig {
    small_receiver().connection(|c| c.windows(16))
}

impl Both {
    fn open(domain: &Arc<Domain>) -> Self {
        Self::with(domain, common::sending(), with_windows())
    }

    fn with(domain: &Arc<Domain>, send: SendConfig, receive: ReceiveConfig) -> Self {
        Self::over(Pair::apart(domain, send, receive))
    }

    pub(crate) fn over(pair: Pair) -> Self {
        Self {
            connection: pair.connection.expect("it is connected"),
            pair,
            near: Vec::new(),
            far: Vec::new(),
            ended: None,
        }
    }

    fn step(&mut self) {
        self.pair.step();
        for event in self.pair.sent.drain(..) {
            match event {
                SendEvent::Window(event) => self.near.push(event),
                SendEvent::Connection(ConnectionEvent::Disconnected(reason)) => {
                    self.ended = Some(reason)
                }
                _ => {}
            }
        }
        for event in self.pair.received.drain(..) {
            if let ReceiveEvent::Window { event, connection } = event {
                assert_eq!(connection, self.connection);
                self.far.push(event);
            }
        }
    }

    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        drive(what, SOON, || {
            self.step();
            done(self)
        });
    }

    /// A window at the receiver, and the sender's view of it.
    pub(crate) fn far_window(
        &mut self,
        slice: RegionSlice,
        access: Access,
    ) -> (LocalWindow, RemoteWindow) {
        let local = self
            .pair
            .receiver()
            .windows(self.connection)
            .expose(slice, access)
            .expect("exposed");
        let bytes = local.descriptor().to_bytes();
        let descriptor = WindowDescriptor::parse(&bytes).expect("ours");
        let remote = self
            .pair
            .sender()
            .windows()
            .open(&descriptor)
            .expect("opened");
        (local, remote)
    }
}

/// A slice of memory of its own, with these bytes.
fn memory(bytes: &[u8]) -> RegionSlice {
    let region = Region::host(bytes.len()).build().expect("memory");
    let slice = region.slice(0..bytes.len()).expect("inside");
    // SAFETY: nobody else has the memory yet.
    unsafe {
        slice
            .as_ptr()
            .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
    };
    slice
}

pub(crate) fn contents(slice: &RegionSlice) -> Vec<u8> {
    // SAFETY: the memory is mapped, and no operation on it is in flight when the tests look.
    unsafe { std::slice::from_raw_parts(slice.as_ptr(), slice.len()) }.to_vec()
}

#[test]
fn a_write_lands_and_comes_back() {
    let _watchdog = Watchdog::new("a_write_lands_and_comes_back");
    let Some(domain) = domain() else { return };
    let mut both = Both::open(&domain);
    let target = memory(&[0; 100]);
    let (local, remote) = both.far_window(target.clone(), Access::WRITE);
    assert_eq!(
        (remote.len(), remote.access(), remote.id()),
        (100, Access::WRITE, local.id())
    );
    let payload = both.pair.buffer(b"written");
    both.pair
        .sender()
        .windows()
        .write(payload, remote.at(10), 7)
        .expect("posted");
    assert_eq!(both.pair.sender().pending(), [7]);
    both.until("written", |both| !both.near.is_empty());
    let Some(WindowEvent::Written { key: 7, payload }) = both.near.pop() else {
        panic!("{:?}", both.near);
    };
    assert_eq!(payload.len_bytes(), 7);
    // Delivered: it is there when the event is.
    let mut expected = vec![0; 100];
    expected[10..17].copy_from_slice(b"written");
    assert_eq!(contents(&target), expected);
    common::assert_balanced(both.pair.sender());
    assert!(both.far.is_empty(), "{:?}", both.far);
}

#[test]
fn a_read_brings_the_bytes_into_a_buffer_or_a_slice() {
    let _watchdog = Watchdog::new("a_read_brings_the_bytes_into_a_buffer_or_a_slice");
    let Some(domain) = domain() else { return };
    let mut both = Both::open(&domain);
    let source = memory(&(0..200).collect::<Vec<u8>>());
    let (_local, remote) = both.far_window(source, Access::READ);

    let buffer = both.pair.pool.try_acquire().expect("a buffer");
    let into = Destination::buffer(buffer, 50);
    both.pair
        .sender()
        .windows()
        .read(into, remote.at(100), 1)
        .expect("posted");
    let slice = memory(&[0; 20]);
    slice.region().register(&domain).expect("registered");
    both.pair
        .sender()
        .windows()
        .read(slice.clone(), &remote, 2)
        .expect("posted");
    both.until("read", |both| both.near.len() == 2);
    for event in both.near.drain(..) {
        match event {
            WindowEvent::Read { key: 1, into } => {
                assert_eq!(into.len(), 50);
                let buffer = into.into_buffer().expect("a buffer");
                assert_eq!(buffer[..50], (100..150).collect::<Vec<u8>>());
            }
            WindowEvent::Read { key: 2, into } => {
                let back = into.into_slice().expect("a slice");
                assert_eq!(contents(&back), (0..20).collect::<Vec<u8>>());
            }
            other => panic!("{other:?}"),
        }
    }
    common::assert_balanced(both.pair.sender());
}

#[test]
fn a_write_with_data_is_heard_of_and_uses_a_credit_that_comes_back() {
    let _watchdog = Watchdog::new("a_write_with_data_is_heard_of");
    let Some(domain) = domain() else { return };
    if !domain.writes_carry_data() {
        return;
    }
    // Two credits: without their return, the third would never be posted.
    let mut both = Both::with(
        &domain,
        common::sending(),
        with_windows().incoming(|incoming| incoming.credits(2)),
    );
    let target = memory(&[0; 64]);
    let (local, remote) = both.far_window(target.clone(), Access::WRITE);
    for n in 0..50_u32 {
        let mut payload = Some(Payload::from(both.pair.buffer(&n.to_le_bytes())));
        both.until("posted", |both| {
            let sender = both.pair.sender();
            match sender.windows().write_with_data(
                payload.take().expect("here"),
                remote.at(8),
                n,
                100 + u64::from(n),
            ) {
                Ok(()) => true,
                Err(refused) => {
                    assert!(refused.is_would_block(), "{refused}");
                    payload = Some(refused.given);
                    false
                }
            }
        });
        both.until("heard of", |both| {
            !both.far.is_empty() && !both.near.is_empty()
        });
        let Some(WindowEvent::PeerWrote { window, data }) = both.far.pop() else {
            panic!("{:?}", both.far);
        };
        assert_eq!((window, data), (local.id(), n));
        assert_eq!(contents(&target)[8..12], n.to_le_bytes());
        assert!(
            matches!(both.near.pop(), Some(WindowEvent::Written { key, .. })
                if key == 100 + u64::from(n))
        );
    }
    assert_eq!(both.pair.receiver().stats().peer_writes, 50);
    // The goodbye counts them as messages: nothing is missing on either side.
    let sender = both.pair.sender.take().expect("open");
    let receiver = both.pair.receiver.take().expect("open");
    let far = std::thread::spawn(move || {
        let mut receiver = receiver;
        let mut events = Vec::new();
        drive("the goodbye", SOON, || {
            receiver.poll(&mut events).expect("polls");
            !common::receive_ends(&events).is_empty()
        });
        common::receive_ends(&events)
    });
    let events = sender.close(after(SOON)).expect("closes");
    assert_eq!(send_end(&events), Some(CloseReason::Finished));
    assert_eq!(far.join().expect("no panic")[0].1, CloseReason::Finished);
}

#[test]
fn a_window_of_another_connection_is_refused_where_there_are_several() {
    let _watchdog = Watchdog::new("a_window_of_another_connection_is_refused");
    let Some(domain) = domain() else { return };
    let mut both = Both::open(&domain);
    let mut windows = both.pair.sender().windows();
    let local = windows.expose(memory(&[0; 32]), Access::all());
    let local = local.expect("exposed");
    let connection = both.connection;
    let receiver = both.pair.receiver();
    let remote = receiver.windows(connection).open(&local.descriptor());
    let remote = remote.expect("opened");
    let to = receiver.local_addr();
    let second = SendEndpointZeroCopy::connect(&domain, to, common::sending());
    let mut second = second.expect("begins");
    let (mut events, mut other) = (Vec::new(), None);
    drive("a second connection", SOON, || {
        second.poll(&mut Vec::new()).expect("polls");
        receiver.poll(&mut events).expect("polls");
        for event in events.drain(..) {
            if let ReceiveEvent::Connection(id, ConnectionEvent::Connected(_)) = event {
                other = Some(id);
            }
        }
        other.is_some()
    });
    let other = other.expect("connected");
    let wrong = SendErrorKind::Window(WindowError::WrongConnection);
    let payload = common::buffer(receiver.pool(), b"astray");
    let refused = receiver.windows(other).write(payload, &remote, 5);
    let refused = refused.expect_err("another one's");
    assert_eq!((refused.kind, refused.key), (wrong.clone(), 5));
    assert_eq!(refused.given.len_bytes(), 6);
    let into = Destination::buffer(receiver.pool().try_acquire().expect("a buffer"), 8);
    let refused = receiver.windows(other).read(into, &remote, 6);
    let refused = refused.expect_err("another one's");
    assert_eq!((refused.kind, refused.key), (wrong, 6));
    let descriptor = local.descriptor();
    assert_eq!(
        receiver.windows(other).open(&descriptor),
        Err(WindowError::WrongConnection)
    );
    // By its own connection it is written.
    let payload = refused
        .given
        .into_buffer()
        .expect("as it was given")
        .freeze(8);
    let written = receiver.windows(connection).write(payload, &remote, 7);
    written.expect("posted");
    both.until("written", |both| !both.far.is_empty());
    // Nor is a window of this side's revoked by another connection than its own, or by another
    // endpoint.
    let receiver = both.pair.receiver();
    let mut windows = receiver.windows(connection);
    let own = windows.expose(memory(&[0; 8]), Access::READ);
    let own = own.expect("exposed");
    let wrong = WindowError::WrongConnection;
    let refused = receiver.windows(other).revoke(own, after(SOON));
    let refused = refused.expect_err("another connection's");
    assert_eq!(refused.kind, wrong);
    let refused = second.windows().revoke(refused.given, after(SOON));
    let refused = refused.expect_err("another endpoint's");
    assert_eq!(refused.kind, wrong);
    let revoked = receiver
        .windows(connection)
        .revoke(refused.given, after(SOON));
    assert!(revoked.expect("its own window"));
    // Memory waits for each connection of the domain, and nobody polls this one any more.
    drop(second);
    both.far.clear();
    both.until("released", |both| !both.far.is_empty());
    let back = |event: &WindowEvent| matches!(event, WindowEvent::Released { .. });
    assert!(
        matches!(&both.far[..], [one] if back(one)),
        "{:?}",
        both.far
    );
}

#[test]
fn the_receiver_writes_and_reads_windows_of_the_sender() {
    let _watchdog = Watchdog::new("the_receiver_writes_and_reads_windows_of_the_sender");
    let Some(domain) = domain() else { return };
    let mut both = Both::open(&domain);
    let (put, get) = (memory(&[0; 32]), memory(b"from the sender's memory"));
    let put_window = both
        .pair
        .sender()
        .windows()
        .expose(put.clone(), Access::WRITE)
        .expect("exposed");
    let get_window = both
        .pair
        .sender()
        .windows()
        .expose(get, Access::READ)
        .expect("exposed");
    let connection = both.connection;
    let receiver = both.pair.receiver();
    let pool = receiver.pool().clone();
    let put_remote = receiver
        .windows(connection)
        .open(&put_window.descriptor())
        .expect("opened");
    let get_remote = receiver
        .windows(connection)
        .open(&get_window.descriptor())
        .expect("opened");
    let payload = common::buffer(&pool, b"from the receiver");
    receiver
        .windows(put_remote.connection())
        .write(payload, put_remote.at(3), 1)
        .expect("posted");
    let into = pool.try_acquire().expect("a buffer");
    receiver
        .windows(get_remote.connection())
        .read(Destination::buffer(into, 24), &get_remote, 2)
        .expect("posted");
    both.until("both", |both| both.far.len() == 2);
    for event in both.far.drain(..) {
        match event {
            WindowEvent::Written { key: 1, .. } => {
                assert_eq!(contents(&put)[3..20], *b"from the receiver")
            }
            WindowEvent::Read { key: 2, into } => {
                assert_eq!(
                    into.into_buffer().expect("a buffer")[..24],
                    *b"from the sender's memory"
                );
            }
            other => panic!("{other:?}"),
        }
    }
    let stats = both.pair.receiver().stats();
    assert_eq!(
        (
            stats.one_sided.posted,
            stats.one_sided.completed,
            stats.one_sided.failed,
            stats.one_sided.in_flight
        ),
        (2, 2, 0, 0)
    );
    // The sender grants no messages, so nobody can tell it of a write by immediate data, if there
    // is such a thing.
    let payload = common::buffer(&pool, b"x");
    let refused = both
        .pair
        .receiver()
        .windows(put_remote.connection())
        .write_with_data(payload, &put_remote, 1, 3)
        .expect_err("no credit");
    let carries = domain.report().cq_data_size >= 8;
    assert_eq!(refused.is_would_block(), carries, "{refused}");

    // Both take them back; the memory of the one that is wanted comes.
    assert!(
        both.pair
            .sender()
            .windows()
            .revoke(put_window, after(SOON))
            .expect("its own window")
    );
    drop(get_window);
    both.until("revoked", |both| both.pair.sender().exposed_windows() == 0);
    let [WindowEvent::Released { memory, .. }] = &both.near[..] else {
        panic!("{:?}", both.near);
    };
    assert_eq!(memory.len(), 32);
    both.until("heard of", |both| both.far.len() == 2);
    let payload = common::buffer(&pool, b"late");
    let refused = both
        .pair
        .receiver()
        .windows(put_remote.connection())
        .write(payload, &put_remote, 4)
        .expect_err("revoked");
    assert_eq!(refused.kind, SendErrorKind::Window(WindowError::Revoked));
}

/// A descriptor with some of its bytes changed: what a peer could do that is not ours.
fn forged(window: &LocalWindow, change: impl FnOnce(&mut [u8; 64])) -> WindowDescriptor {
    let mut bytes = window.descriptor().to_bytes();
    change(&mut bytes);
    WindowDescriptor::parse(&bytes).expect("understood")
}

/// Posts a write of 8 bytes that the far provider must refuse; what the near side hears until its
/// connection is over.
fn refused_write(both: &mut Both, remote: &RemoteWindow, confirmed: bool) -> Vec<WindowEvent> {
    let payload = both.pair.buffer(b"attack!!");
    let sender = both.pair.sender();
    let posted = match confirmed {
        true => sender.windows().write(payload, remote, 9),
        false => sender.windows().write_unconfirmed(payload, remote, 9),
    };
    posted.expect("posted");
    both.until("the end", |both| both.ended.is_some());
    both.near.drain(..).collect()
}

/// A card moves the bytes, whatever programs do, and looks at each key: what is closed is closed.
fn by_card(domain: &Domain) -> bool {
    domain.fabric().provider().memory.access_ends == AccessEnds::WithKey
}

/// Kinds of operations that the far provider refuses.
const FORGERIES: [&str; 3] = ["another key", "beyond its end", "a right that it has not"];

fn forge(window: &LocalWindow, kind: &str) -> WindowDescriptor {
    forged(window, |bytes| match kind {
        "another key" => bytes[48] ^= 0x55,
        // The base: an offset, or an address.
        "beyond its end" => {
            let base = u64::from_le_bytes(bytes[32..40].try_into().expect("8 bytes"));
            bytes[32..40].copy_from_slice(&(base + 60).to_le_bytes());
        }
        _ => bytes[5] = 2,
    })
}

#[test]
fn a_refused_write_is_a_failure_unless_the_weaker_level_was_chosen() {
    let _watchdog = Watchdog::new("a_refused_write_is_a_failure");
    let Some(domain) = domain() else { return };
    let by_card = by_card(&domain);
    for kind in FORGERIES {
        for confirmed in [true, false] {
            let mut both = Both::open(&domain);
            let access = if kind == "a right that it has not" {
                Access::READ
            } else {
                Access::WRITE
            };
            let target = memory(&[0x11; 64]);
            let (local, _) = both.far_window(target.clone(), access);
            let descriptor = forge(&local, kind);
            let remote = both
                .pair
                .sender()
                .windows()
                .open(&descriptor)
                .expect("this side can't know");
            let heard = refused_write(&mut both, &remote, confirmed);
            match &heard[..] {
                [WindowEvent::WriteFailed { key: 9, .. }] if confirmed => {}
                // The provider's word for "the bytes are in the kernel"; a card waits for the
                // other's in any case.
                [WindowEvent::Written { key: 9, .. }] if !confirmed && !by_card => {}
                [WindowEvent::WriteFailed { key: 9, .. }] if by_card => {}
                other => panic!("{kind}, confirmed {confirmed}: {other:?}"),
            }
            assert_eq!(contents(&target), [0x11; 64], "{kind}: memory changed");
            common::assert_balanced(both.pair.sender());
            // The bad peer has lost its own connection, and the window comes back.
            both.until("released", |both| {
                matches!(both.far.last(), Some(WindowEvent::Released { .. }))
            });
            assert!(
                !both
                    .pair
                    .receiver()
                    .windows(local.connection())
                    .revoke(local, after(SOON))
                    .expect("its own window"),
                "it is back already"
            );
        }
    }
}

/// How a peer uses a window otherwise than it may, although the owner's memory around it is
/// registered as well.
const TRESPASSES: [&str; 3] = ["beside it", "a right that it has not", "taken back"];

/// Where the owner's registrations were cached (`fabric::RegistrationCache`), all three would land:
/// one key for all of the region, with all rights, as long as it is mapped.
#[test]
fn a_key_reaches_its_window_alone_and_ends_with_it() {
    let _watchdog = Watchdog::new("a_key_reaches_its_window_alone");
    let Some(domain) = domain() else { return };
    let page = rustix::param::page_size();
    let mut landed = Vec::new();
    for trespass in TRESPASSES {
        // Of one domain, which is the owner's.
        let pair = Pair::with(&domain, common::sending(), with_windows());
        let mut both = Both::over(pair);
        let whole = memory(&vec![0x11; 4 * page]);
        whole.region().register(&domain).expect("registered");
        let part = whole.slice(page..2 * page).expect("inside");
        let access = if trespass == "a right that it has not" {
            Access::READ
        } else {
            Access::WRITE
        };
        let (local, _) = both.far_window(part, access);
        let descriptor = forged(&local, |bytes| match trespass {
            "beside it" => {
                let base = u64::from_le_bytes(bytes[32..40].try_into().expect("8 bytes"));
                let beside = base + page as u64;
                bytes[32..40].copy_from_slice(&beside.to_le_bytes());
            }
            // Under a number that this side has not heard to be over.
            "taken back" => bytes[24] ^= 0x80,
            _ => bytes[5] = Access::all().bits() as u8,
        });
        if trespass == "taken back" {
            assert!(
                both.pair
                    .receiver()
                    .windows(local.connection())
                    .revoke(local, after(SOON))
                    .expect("its own window")
            );
            both.until("released", |both| !both.far.is_empty());
            assert!(
                matches!(both.far[..], [WindowEvent::Released { .. }]),
                "{:?}",
                both.far
            );
            both.until("heard of", |both| !both.near.is_empty());
            both.near.clear();
        }
        let remote = both.pair.sender().windows().open(&descriptor);
        let remote = remote.expect("this side can't know");
        let payload = both.pair.buffer(b"attack!!");
        let posted = both.pair.sender().windows().write(payload, &remote, 9);
        posted.expect("posted");
        both.until("the outcome", |both| !both.near.is_empty());
        match &both.near[..] {
            [WindowEvent::WriteFailed { key: 9, .. }] => {}
            [WindowEvent::Written { .. }] => landed.push(trespass),
            other => panic!("{trespass}: {other:?}"),
        }
        let untouched = contents(&whole) == vec![0x11; 4 * page];
        assert!(untouched || landed.contains(&trespass), "{trespass}");
    }
    assert!(landed.is_empty(), "landed: {landed:?}");
}

#[test]
fn a_refused_read_is_a_failure() {
    let _watchdog = Watchdog::new("a_refused_read_is_a_failure");
    let Some(domain) = domain() else { return };
    let mut both = Both::open(&domain);
    let (local, _) = both.far_window(memory(&[7; 64]), Access::READ);
    let descriptor = forge(&local, "another key");
    let remote = both
        .pair
        .sender()
        .windows()
        .open(&descriptor)
        .expect("this side can't know");
    let into = both.pair.pool.try_acquire().expect("a buffer");
    both.pair
        .sender()
        .windows()
        .read(Destination::buffer(into, 64), &remote, 5)
        .expect("posted");
    both.until("the end", |both| both.ended.is_some());
    let [
        WindowEvent::ReadFailed {
            key: 5,
            into: Some(into),
            ..
        },
    ] = &both.near[..]
    else {
        panic!("{:?}", both.near);
    };
    assert_eq!(into.len(), 64);
}

#[test]
fn what_this_side_knows_is_refused_before_anything_is_posted() {
    let _watchdog = Watchdog::new("what_this_side_knows_is_refused");
    let Some(domain) = domain() else { return };
    let mut both = Both::open(&domain);
    let mut other = Both::open(&domain);
    let (local, remote) = both.far_window(memory(&[0; 64]), Access::WRITE);
    let refused = |both: &mut Both, remote: &RemoteWindow, offset: u64| {
        let payload = both.pair.buffer(b"12345678");
        let refused = both
            .pair
            .sender()
            .windows()
            .write(payload, remote.at(offset), 3)
            .expect_err("refused");
        assert_eq!((refused.key, refused.given.len_bytes()), (3, 8));
        refused.kind
    };
    for offset in [57, 64, 65, u64::MAX - 3, u64::MAX] {
        let range = WindowError::OutOfRange {
            offset,
            len: 8,
            window_len: 64,
        };
        assert_eq!(
            refused(&mut both, &remote, offset),
            SendErrorKind::Window(range)
        );
    }
    let wrong = SendErrorKind::Window(WindowError::WrongConnection);
    assert_eq!(refused(&mut other, &remote, 0), wrong);
    assert_eq!(
        other.pair.sender().windows().open(&local.descriptor()),
        Err(WindowError::WrongConnection)
    );
    let into = both.pair.pool.try_acquire().expect("a buffer");
    let refused_read = both
        .pair
        .sender()
        .windows()
        .read(Destination::buffer(into, 8), &remote, 4)
        .expect_err("refused");
    let has = Access::WRITE;
    let access = WindowError::Access {
        asked: Access::READ,
        has,
    };
    assert_eq!(refused_read.kind, SendErrorKind::Window(access));
    let empty = both.pair.buffer(b"");
    let refused_empty = both
        .pair
        .sender()
        .windows()
        .write(empty, &remote, 4)
        .expect_err("refused");
    assert_eq!(
        refused_empty.kind,
        SendErrorKind::Window(WindowError::Empty)
    );
    let elsewhere = SharedBufferManager::allocate(1, 64).expect("memory");
    let payload = common::buffer(&elsewhere, b"not registered");
    let refused_memory = both
        .pair
        .sender()
        .windows()
        .write(payload, &remote, 4)
        .expect_err("refused");
    assert_eq!(
        refused_memory.kind,
        SendErrorKind::NotRegistered { segment: 0 }
    );
    assert_eq!(both.pair.sender().stats().in_flight, 0);

    // Exposing: no right, a right that shared bytes can't give, one window too many.
    let connection = both.connection;
    let shared = both.pair.buffer(b"others read this");
    let kind = both
        .pair
        .receiver()
        .windows(connection)
        .expose(shared, Access::all())
        .expect_err("refused");
    let access = WindowError::Access {
        asked: Access::all(),
        has: Access::READ,
    };
    assert_eq!((kind.kind, kind.given.len()), (access, 16));
    let kind = both
        .pair
        .receiver()
        .windows(connection)
        .expose(memory(&[0; 8]), Access::empty())
        .expect_err("refused");
    assert!(matches!(kind.kind, WindowError::Access { .. }));
    let mut windows = vec![local];
    while windows.len() < 16 {
        windows.push(
            both.pair
                .receiver()
                .windows(connection)
                .expose(memory(&[0; 8]), Access::READ)
                .expect("exposed"),
        );
    }
    let kind = both
        .pair
        .receiver()
        .windows(connection)
        .expose(memory(&[0; 8]), Access::READ)
        .expect_err("refused");
    assert_eq!(kind.kind, WindowError::TooManyWindows { limit: 16 });
}

#[test]
fn a_receiver_without_windows_says_so() {
    let _watchdog = Watchdog::new("a_receiver_without_windows_says_so");
    let Some(domain) = domain() else { return };
    let mut both = Both::with(&domain, common::sending(), small_receiver());
    let connection = both.connection;
    let refused = both
        .pair
        .receiver()
        .windows(connection)
        .expose(memory(&[0; 8]), Access::READ)
        .expect_err("refused");
    assert_eq!(refused.kind, WindowError::TooManyWindows { limit: 0 });
    let refused = both
        .pair
        .sender()
        .windows()
        .expose(memory(&[0; 8]), Access::READ)
        .expect_err("refused");
    assert_eq!(refused.kind, WindowError::PeerWithoutWindows);
}

#[test]
fn a_buffer_comes_back_with_what_the_peer_wrote() {
    let _watchdog = Watchdog::new("a_buffer_comes_back_with_what_the_peer_wrote");
    let Some(domain) = domain() else { return };
    let mut both = Both::open(&domain);
    let connection = both.connection;
    let buffer = both.pair.pool.try_acquire().expect("a buffer");
    let index = buffer.index();
    let local = both
        .pair
        .receiver()
        .windows(connection)
        .expose(buffer, Access::all())
        .expect("exposed");
    let remote = both
        .pair
        .sender()
        .windows()
        .open(&local.descriptor())
        .expect("opened");
    let payload = both.pair.buffer(b"a whole buffer");
    both.pair
        .sender()
        .windows()
        .write(payload, &remote, 1)
        .expect("posted");
    // Revoked while the write is on its way: it lands first.
    let id = local.id();
    assert!(
        both.pair
            .receiver()
            .windows(local.connection())
            .revoke(local, after(SOON))
            .expect("its own window")
    );
    both.until("released", |both| !both.far.is_empty());
    let Some(WindowEvent::Released { window, memory }) = both.far.pop() else {
        panic!("{:?}", both.far);
    };
    assert_eq!(window, id);
    let buffer = memory.into_buffer_mut().expect("the buffer");
    assert_eq!(
        (buffer.index(), &buffer[..14]),
        (index, &b"a whole buffer"[..])
    );
    both.until("heard of", |both| both.near.len() == 2);
    assert!(
        matches!(both.near[0], WindowEvent::Written { key: 1, .. }),
        "{:?}",
        both.near
    );
    assert!(
        matches!(both.near[1], WindowEvent::Revoked { window } if window == id),
        "{:?}",
        both.near
    );
}

#[test]
fn hundreds_of_windows_come_and_go() {
    let _watchdog = Watchdog::new("hundreds_of_windows_come_and_go");
    let Some(domain) = domain() else { return };
    let registrations = domain.registrations();
    let mut both = Both::open(&domain);
    let connection = both.connection;
    let far_domain_registrations = |both: &mut Both| both.pair.receiver().exposed_windows();
    let mut released = 0;
    for round in 0..30_usize {
        let mut windows = Vec::new();
        for _ in 0..10 {
            windows.push(
                both.pair
                    .receiver()
                    .windows(connection)
                    .expose(memory(&[0; 4096]), Access::all())
                    .expect("exposed"),
            );
        }
        for (n, window) in windows.into_iter().enumerate() {
            if (n + round) % 3 == 0 {
                drop(window);
            } else {
                released += 1;
                assert!(
                    both.pair
                        .receiver()
                        .windows(window.connection())
                        .revoke(window, after(SOON))
                        .expect("its own window")
                );
            }
        }
        both.until("all back", |both| {
            both.pair.receiver().exposed_windows() == 0
        });
    }
    assert_eq!(far_domain_registrations(&mut both), 0);
    let back = |event: &&WindowEvent| matches!(event, WindowEvent::Released { .. });
    assert_eq!(both.far.iter().filter(back).count(), released);
    let ids: Vec<WindowId> = both
        .near
        .iter()
        .map(|event| match event {
            WindowEvent::Revoked { window } => *window,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ids.len(), 300);
    assert!(
        domain.registrations() <= registrations + 3,
        "what the pair itself has"
    );
}

/// A peer that does nothing at all: its endpoint is open, and nobody polls it.
#[test]
fn a_peer_that_does_not_confirm_loses_the_connection_and_the_memory_comes_back() {
    let _watchdog = Watchdog::new("a_peer_that_does_not_confirm");
    let Some(domain) = domain() else { return };
    let mut both = Both::open(&domain);
    let (local, _remote) = both.far_window(memory(&[0; 64]), Access::WRITE);
    let begin = Instant::now();
    assert!(
        both.pair
            .receiver()
            .windows(local.connection())
            .revoke(local, after(millis(200)))
            .expect("its own window")
    );
    let mut events = Vec::new();
    drive("the deadline", SOON, || {
        both.pair.receiver().poll(&mut events).expect("polls");
        !common::receive_ends(&events).is_empty()
    });
    assert!(begin.elapsed() >= millis(200));
    let [
        ..,
        ReceiveEvent::Window {
            event: WindowEvent::Released { .. },
            ..
        },
        ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)),
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert_eq!(*reason, CloseReason::RevokeDeadline);
}

#[test]
fn a_dropped_window_is_kept_until_its_connection_is_closed() {
    let _watchdog = Watchdog::new("a_dropped_window_is_kept");
    let Some(domain) = domain() else { return };
    let mut both = Both::open(&domain);
    let target = memory(&[0; 1 << 20]);
    let region = Arc::downgrade(target.region());
    let (local, remote) = both.far_window(target, Access::WRITE);
    let big = Region::host(1 << 20).build().expect("memory");
    big.register(&domain).expect("registered");
    let payload = big.slice(0..1 << 20).expect("inside");
    both.pair
        .sender()
        .windows()
        .write(payload, &remote, 1)
        .expect("posted");
    // The write is landing; the handle is dropped; the sender, who would confirm, does nothing.
    let mut events = Vec::new();
    both.pair.receiver().poll(&mut events).expect("polls");
    drop(local);
    for _ in 0..100 {
        both.pair.receiver().poll(&mut events).expect("polls");
    }
    assert!(region.upgrade().is_some(), "freed while a peer could write");
    assert_eq!(both.pair.receiver().exposed_windows(), 1);
    let connection = both.connection;
    assert!(
        both.pair
            .receiver()
            .close_connection(connection, after(millis(50)))
    );
    drive("closed", SOON, || {
        both.pair.receiver().poll(&mut events).expect("polls");
        !common::receive_ends(&events).is_empty()
    });
    assert!(
        region.upgrade().is_none(),
        "kept after its connection was closed"
    );
    let released = |event: &ReceiveEvent| {
        matches!(
            event,
            ReceiveEvent::Window {
                event: WindowEvent::Released { .. },
                ..
            }
        )
    };
    assert!(!events.iter().any(released), "nobody wants it back");
}

#[test]
fn everything_dropped_in_the_middle_frees_everything() {
    let _watchdog = Watchdog::new("everything_dropped_in_the_middle");
    let Some(domain) = domain() else { return };
    for order in 0..6 {
        let mut both = Both::open(&domain);
        let target = memory(&[0; 1 << 20]);
        let region = Arc::downgrade(target.region());
        let (local, remote) = both.far_window(target, Access::all());
        let own = Region::host(2 << 20).build().expect("memory");
        own.register(&domain).expect("registered");
        let own_region = Arc::downgrade(&own);
        let half = |n: usize| own.slice(n << 20..(n + 1) << 20).expect("inside");
        both.pair
            .sender()
            .windows()
            .write(half(0), &remote, 1)
            .expect("posted");
        both.pair
            .sender()
            .windows()
            .read(half(1), &remote, 2)
            .expect("posted");
        drop(own);
        let mut events = Vec::new();
        both.pair.receiver().poll(&mut events).expect("polls");
        let mut local = Some(local);
        for step in 0..3 {
            match (order + step * (1 + order % 2)) % 3 {
                0 => drop(local.take()),
                1 => drop(both.pair.sender.take()),
                _ => drop(both.pair.receiver.take()),
            }
        }
        drop(both);
        assert!(
            region.upgrade().is_none(),
            "order {order}: the window's memory is kept"
        );
        assert!(
            own_region.upgrade().is_none(),
            "order {order}: the operations' memory is kept"
        );
    }
    assert_eq!(fabricast::stats::process().leaked, 0);
}

#[test]
fn an_operation_that_takes_too_long_fails_the_connection_or_is_told() {
    let _watchdog = Watchdog::new("an_operation_that_takes_too_long");
    let Some(domain) = domain() else { return };
    if !domain.stops_with_programs() {
        return;
    }
    let send = common::sending().outgoing(|out| out.deadline(Some(millis(100))));
    let mut both = Both::with(&domain, send, with_windows());
    let (_local, remote) = both.far_window(memory(&[0; 64]), Access::READ);
    let into = both.pair.pool.try_acquire().expect("a buffer");
    both.pair
        .sender()
        .windows()
        .read(Destination::buffer(into, 64), &remote, 5)
        .expect("posted");
    // The far side does not poll, so nothing answers.
    let mut events = Vec::new();
    drive("the deadline", SOON, || {
        both.pair.sender().poll(&mut events).expect("polls");
        send_end(&events).is_some()
    });
    assert!(matches!(
        send_end(&events),
        Some(CloseReason::SendDeadline { .. })
    ));
    let failed = |event: &SendEvent| {
        matches!(
            event,
            SendEvent::Window(WindowEvent::ReadFailed {
                key: 5,
                into: Some(_),
                ..
            })
        )
    };
    assert!(events.iter().any(failed), "{events:?}");
    common::assert_balanced(both.pair.sender());
}

#[test]
fn the_depth_bounds_operations_and_says_when_there_is_room() {
    let _watchdog = Watchdog::new("the_depth_bounds_operations");
    let Some(domain) = domain() else { return };
    let mut both = Both::with(
        &domain,
        common::sending().outgoing(|out| out.depth(2)),
        with_windows().outgoing(|out| out.depth(2)),
    );
    let (_local, remote) = both.far_window(memory(&[0; 64]), Access::WRITE);
    for key in 0..2 {
        let payload = both.pair.buffer(b"x");
        both.pair
            .sender()
            .windows()
            .write(payload, &remote, key)
            .expect("posted");
    }
    let payload = both.pair.buffer(b"x");
    let refused = both
        .pair
        .sender()
        .windows()
        .write(payload, &remote, 2)
        .expect_err("full");
    assert!(refused.is_would_block(), "{refused}");
    let mut writable = false;
    drive("writable", SOON, || {
        both.pair.step();
        writable |= both
            .pair
            .sent
            .iter()
            .any(|event| matches!(event, SendEvent::Writable));
        writable
    });

    let window = both
        .pair
        .sender()
        .windows()
        .expose(memory(&[0; 64]), Access::WRITE)
        .expect("exposed");
    let connection = both.connection;
    let remote = both
        .pair
        .receiver()
        .windows(connection)
        .open(&window.descriptor())
        .expect("opened");
    let pool = both.pair.receiver().pool().clone();
    for key in 0..2 {
        both.pair
            .receiver()
            .windows(remote.connection())
            .write(common::buffer(&pool, b"x"), &remote, key)
            .expect("posted");
    }
    let refused = both
        .pair
        .receiver()
        .windows(remote.connection())
        .write(common::buffer(&pool, b"x"), &remote, 2)
        .expect_err("full");
    assert!(refused.is_would_block(), "{refused}");
    let mut writable = false;
    drive("writable", SOON, || {
        both.pair.step();
        writable |= both
            .pair
            .received
            .iter()
            .any(|event| matches!(event, ReceiveEvent::Writable { .. }));
        writable
    });
}

/// Two listeners of one domain with three connections to them, from another domain.
struct Many {
    owner: Option<ReceiveEndpoint>,
    other: Option<ReceiveEndpoint>,
    /// Two of the owner's, and one of the other's.
    senders: Vec<Option<SendEndpointZeroCopy>>,
    heard: Vec<ReceiveEvent>,
    ignored: (Vec<ReceiveEvent>, Vec<SendEvent>),
}

impl Many {
    fn open(far: &Arc<Domain>, near: &Arc<Domain>) -> Self {
        let listen = || {
            let config = ReceiveConfig::default().connection(|c| c.max_connections(4).windows(8));
            ReceiveEndpoint::listen(far, common::any_port(), config).expect("listens")
        };
        let (owner, other) = (listen(), listen());
        let connect = |to: &ReceiveEndpoint| {
            let config = common::sending();
            SendEndpointZeroCopy::connect(near, to.local_addr(), config).expect("begins")
        };
        let senders = [&owner, &owner, &other].map(|to| Some(connect(to)));
        let mut this = Self {
            owner: Some(owner),
            other: Some(other),
            senders: senders.into_iter().collect(),
            heard: Vec::new(),
            ignored: (Vec::new(), Vec::new()),
        };
        drive("connected", SOON, || {
            this.step(&[0, 1, 2]);
            let connected = |sender: &Option<SendEndpointZeroCopy>| {
                sender
                    .as_ref()
                    .is_some_and(SendEndpointZeroCopy::is_connected)
            };
            this.senders.iter().all(connected) && this.connections().len() == 2
        });
        this
    }

    /// Polls the listeners that are there, and these senders.
    fn step(&mut self, senders: &[usize]) {
        if let Some(owner) = &mut self.owner {
            owner.poll(&mut self.heard).expect("polls");
        }
        if let Some(other) = &mut self.other {
            other.poll(&mut self.ignored.0).expect("polls");
        }
        for &at in senders {
            if let Some(sender) = &mut self.senders[at] {
                sender.poll(&mut self.ignored.1).expect("polls");
            }
        }
    }

    fn connections(&self) -> Vec<ConnectionId> {
        let connected = |event: &ReceiveEvent| match event {
            ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_)) => {
                Some(*connection)
            }
            _ => None,
        };
        self.heard.iter().filter_map(connected).collect()
    }

    /// A window for somebody's use, taken back at once.
    fn revoke_one(&mut self) {
        let connection = self.connections()[0];
        let owner = self.owner.as_mut().expect("it is open");
        let window = owner
            .windows(connection)
            .expose(memory(&[0; 64]), Access::all())
            .expect("exposed");
        assert!(
            owner
                .windows(window.connection())
                .revoke(window, after(SOON))
                .expect("its own window")
        );
    }

    fn released(&self) -> usize {
        let back = |event: &&ReceiveEvent| {
            matches!(
                event,
                ReceiveEvent::Window {
                    event: WindowEvent::Released { .. },
                    ..
                }
            )
        };
        self.heard.iter().filter(back).count()
    }

    /// As many steps as would be more than enough, if nobody lagged.
    fn steps(&mut self, senders: &[usize]) {
        for _ in 0..5000 {
            self.step(senders);
        }
    }
}

/// A key is good over every connection of its domain, so the memory comes back when each of them
/// has answered, or is closed: also those of another endpoint.
#[test]
fn a_window_comes_back_when_every_connection_of_its_domain_has_answered() {
    let _watchdog = Watchdog::new("a_window_comes_back_when_every_connection");
    let (Some(far), Some(near)) = (domain(), domain()) else {
        return;
    };
    let mut many = Many::open(&far, &near);
    many.revoke_one();
    drive("released", SOON, || {
        many.step(&[0, 1, 2]);
        many.released() == 1
    });
    if by_card(&far) {
        // What is closed there is closed for everybody: nobody at another endpoint is asked.
        many.revoke_one();
        return drive("released", SOON, || {
            many.step(&[0, 1]);
            many.released() == 2
        });
    }
    // One that does not answer, at the same endpoint and at another one.
    for (lag, others) in [(1, [0, 2]), (2, [0, 1])] {
        let before = many.released();
        many.revoke_one();
        many.steps(&others);
        assert_eq!(many.released(), before, "connection {lag} has not answered");
        drive("released", SOON, || {
            many.step(&[0, 1, 2]);
            many.released() == before + 1
        });
    }
    // Its end is as good as an answer.
    let before = many.released();
    many.revoke_one();
    many.steps(&[0, 1]);
    assert_eq!(many.released(), before);
    many.senders[2] = None;
    drive("released", SOON, || {
        many.step(&[0, 1]);
        many.released() == before + 1
    });
}

#[test]
fn memory_of_an_endpoint_that_is_gone_waits_for_the_others_of_its_domain() {
    let _watchdog = Watchdog::new("memory_of_an_endpoint_that_is_gone");
    let (Some(far), Some(near)) = (domain(), domain()) else {
        return;
    };
    for polite in [false, true] {
        let mut many = Many::open(&far, &near);
        let target = memory(&[0; 64]);
        let region = Arc::downgrade(target.region());
        let connection = many.connections()[0];
        let mut owner = many.owner.take().expect("it is open");
        let window = owner
            .windows(connection)
            .expose(target, Access::all())
            .expect("exposed");
        if by_card(&far) {
            drop((owner, window));
            assert!(region.upgrade().is_none(), "its key is closed");
            continue;
        }
        if polite {
            many.senders[0] = None;
            many.senders[1] = None;
            let last = owner.close(after(SOON)).expect("closes");
            let told = |event: &ReceiveEvent| {
                matches!(
                    event,
                    ReceiveEvent::Window {
                        event: WindowEvent::Quarantined { .. },
                        ..
                    }
                )
            };
            assert!(last.iter().any(told), "{last:?}");
        } else {
            drop(owner);
        }
        drop(window);
        many.steps(&[]);
        assert!(region.upgrade().is_some(), "freed while a peer could write");
        drive("freed", SOON, || {
            many.step(&[2]);
            region.upgrade().is_none()
        });
    }
    // Nothing holds the domain that it would not have held before.
    let weak = Arc::downgrade(&far);
    drop(far);
    assert!(weak.upgrade().is_none(), "the domain is kept");
}
