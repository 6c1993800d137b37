//! One-sided operations over tcp: windows on either side, every level, every refusal, revocation, and what a peer can't do.
//!
//! Run it under AddressSanitizer too: memory that a peer reaches after it was freed is found there.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Pair, SOON, Watchdog, after, domain, drive, millis, send_end, small_receiver};
use fabricast::buffer::{Payload, RegionSlice, SharedBufferManager};
use fabricast::endpoint::{
    Access, CloseReason, ConnectionId, Destination, LocalWindow, ReceiveConfig, RemoteWindow,
    SendConfig, WindowDescriptor, WindowError, WindowEvent, WindowId,
};
use fabricast::error::SendErrorKind;
use fabricast::{Domain, ReceiveEvent, Region, SendEvent};

/// A pair whose receiver has windows, in a domain of its own.
struct Both {
    pair: Pair,
    connection: ConnectionId,
    near: Vec<WindowEvent>,
    far: Vec<WindowEvent>,
    ended: Option<CloseReason>,
}

fn with_windows() -> ReceiveConfig {
    small_receiver().windows(16)
}

impl Both {
    fn open(domain: &Arc<Domain>) -> Self {
        Self::with(domain, SendConfig::default(), with_windows())
    }

    fn with(domain: &Arc<Domain>, send: SendConfig, receive: ReceiveConfig) -> Self {
        let mut pair = Pair::apart(domain, send, receive);
        // A first message says which connection it is.
        let payload = pair.buffer(b"hello");
        pair.send(payload, b"", 0);
        let mut connection = None;
        pair.until("a first message", |pair| {
            for event in pair.received.drain(..) {
                if let ReceiveEvent::Message(message) = event {
                    connection = Some(message.connection());
                }
            }
            connection.is_some() && !pair.sent.is_empty()
        });
        pair.sent.clear();
        Self {
            pair,
            connection: connection.expect("it is there"),
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
                SendEvent::Disconnected(reason) => self.ended = Some(reason),
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

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        drive(what, SOON, || {
            self.step();
            done(self)
        });
    }

    /// A window at the receiver, and the sender's view of it.
    fn far_window(&mut self, slice: RegionSlice, access: Access) -> (LocalWindow, RemoteWindow) {
        let local = self
            .pair
            .receiver()
            .expose(self.connection, slice, access)
            .expect("exposed");
        let bytes = local.descriptor().to_bytes();
        let descriptor = WindowDescriptor::parse(&bytes).expect("ours");
        let remote = self.pair.sender().open_window(&descriptor).expect("opened");
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

fn contents(slice: &RegionSlice) -> Vec<u8> {
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
