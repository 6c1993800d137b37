//! A peer is stopped (SIGSTOP) in the middle of a large one-sided write or read, the window goes,
//! the peer continues.
//!
//! Under AddressSanitizer this finds memory that is reached after it was freed: the windows lie in
//! ordinary heap memory, and the provider writes to them by system calls that the sanitizer
//! watches. 1 GiB with FABRICAST_SOAK=1, else 64 MiB.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use fabricast::buffer::RegionSlice;
use fabricast::endpoint::{
    Access, CloseReason, ConnectionId, LocalWindow, ReceiveConfig, WindowDescriptor, WindowEvent,
};
use fabricast::fabric::EndpointKind;
use fabricast::{
    ConnectionEvent, Domain, ReceiveEndpoint, ReceiveEvent, Region, SendEndpointZeroCopy, SendEvent,
};

use crate::common;
use crate::common::child::{self, Child};
use crate::common::{Offers, Watchdog, after, domain_of, drive, millis, rounds, undisturbed};

/// The two forms of connections. Those over FI_EP_RDM go by sockets, so that a process can be
/// stopped in the middle of an operation.
const MSG: EndpointKind = EndpointKind::Msg;
const RDM: EndpointKind = EndpointKind::Rdm;

/// `None`, after a line that says why, where there is no such thing.
fn domain(kind: EndpointKind) -> Option<Arc<Domain>> {
    domain_of(kind)
}

/// Bytes of the window.
fn window_bytes() -> usize {
    rounds(64 << 20, 1 << 30) as usize
}

/// How long the whole may take: under a sanitizer, a gigabyte does.
const SLOW: Duration = Duration::from_secs(60);

/// Heap memory that says when it is freed.
struct Heap {
    _bytes: Box<[u8]>,
    gone: Arc<AtomicBool>,
}

impl Drop for Heap {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::SeqCst);
    }
}

/// A slice over heap memory that is full of `byte`; the flag says that it is freed.
fn heap(byte: u8) -> (RegionSlice, Arc<AtomicBool>) {
    let mut bytes = vec![byte; window_bytes()].into_boxed_slice();
    let base = NonNull::new(bytes.as_mut_ptr()).expect("a box is not null");
    let gone = Arc::new(AtomicBool::new(false));
    let keep = Heap {
        _bytes: bytes,
        gone: Arc::clone(&gone),
    };
    let len = window_bytes();
    // SAFETY: `keep` owns the memory and is dropped with the region; nobody has a reference to it.
    let region = unsafe { Region::external(base, len, Box::new(keep)) }.expect("a region");
    (region.slice(0..len).expect("inside"), gone)
}

fn first_byte(slice: *const u8) -> u8 {
    // SAFETY: called while the window is open, so that its memory is there; the provider writes to
    // it by system calls only.
    unsafe { slice.read_volatile() }
}

// ---- the peer -----------------------------------------------------------------------------------

/// Connects, writes or reads all of the window that it is told, tells the outcome, and stays until
/// its connection is over.
fn peer(read: bool) {
    let kind = if child::argument() == "rdm" { RDM } else { MSG };
    let domain = domain(kind).expect("the parent has libfabric");
    let addr = child::hear()
        .expect("an address")
        .parse()
        .expect("an address");
    let config = common::sending().outgoing(|out| out.deadline(None));
    let mut sender = SendEndpointZeroCopy::connect(&domain, addr, config).expect("begins");
    sender.wait_connected().expect("connected");
    child::tell("connected");
    let line = child::hear().expect("a descriptor");
    let bytes: Vec<u8> = line
        .split(' ')
        .map(|byte| byte.parse().expect("a byte"))
        .collect();
    let descriptor = WindowDescriptor::parse(&bytes).expect("ours");
    let window = sender.windows().open(&descriptor).expect("opened");
    let region = Region::host(window_bytes()).build().expect("memory");
    region.register(&domain).expect("registered");
    let local = region.slice(0..window_bytes()).expect("inside");
    // SAFETY: nobody else has the memory.
    unsafe { local.as_ptr().write_bytes(0x77, window_bytes()) };
    if read {
        sender.windows().read(local, &window, 1).expect("posted");
    } else {
        sender.windows().write(local, &window, 1).expect("posted");
    }
    child::tell("posted");
    let mut events = Vec::new();
    drive("the end", SLOW, || {
        sender.poll(&mut events).expect("polls");
        let mut over = false;
        for event in events.drain(..) {
            match event {
                SendEvent::Window(WindowEvent::Written { .. } | WindowEvent::Read { .. }) => {
                    child::tell("done")
                }
                SendEvent::Window(
                    WindowEvent::WriteFailed { .. } | WindowEvent::ReadFailed { .. },
                ) => child::tell("failed"),
                SendEvent::Window(WindowEvent::Revoked { .. }) => child::tell("revoked"),
                SendEvent::Connection(ConnectionEvent::Disconnected(_)) => over = true,
                _ => {}
            }
        }
        over
    });
    child::tell("over");
}

// ---- the owner ----------------------------------------------------------------------------------

struct Owner {
    receiver: ReceiveEndpoint,
    connection: ConnectionId,
    window: LocalWindow,
    memory: *const u8,
    region: Weak<Region>,
    gone: Arc<AtomicBool>,
    child: Child,
    events: Vec<ReceiveEvent>,
}

impl Owner {
    /// A child that is stopped in the middle of its operation. `None`: there is no libfabric.
    fn with_stopped_peer(test: &'static str, read: bool, kind: EndpointKind) -> Option<Self> {
        let domain = domain(kind)?;
        if !domain.stops_with_programs() {
            return None;
        }
        let attempt = || Self::stopping_a_peer(&domain, test, read, kind);
        Some(undisturbed("stopped in the middle", attempt))
    }

    /// As above; `None`: the peer was done before it was stopped, as on a machine that did not let
    /// this process run meanwhile.
    fn stopping_a_peer(
        domain: &Arc<Domain>,
        test: &'static str,
        read: bool,
        kind: EndpointKind,
    ) -> Option<Self> {
        let config = ReceiveConfig::default()
            .incoming(|incoming| incoming.slots(64).credits(8))
            .connection(|c| c.max_connections(2).windows(4));
        let mut receiver =
            ReceiveEndpoint::listen(domain, common::any_port(), config).expect("listens");
        let mut child = Child::start(
            test,
            if read { "read" } else { "write" },
            if kind == RDM { "rdm" } else { "msg" },
        );
        child.say(&receiver.local_addr().to_string());
        let mut events = Vec::new();
        let mut connection = None;
        // The peer's side of the handshake moves only while this side polls.
        let mut told = false;
        drive("connected", SLOW, || {
            told |= child.heard().is_some_and(|line| line == "connected");
            receiver.poll(&mut events).expect("polls");
            for event in events.drain(..) {
                if let ReceiveEvent::Connection(id, ConnectionEvent::Connected(_)) = event {
                    connection = Some(id);
                }
            }
            told && connection.is_some()
        });
        let connection = connection.expect("just seen");
        let (slice, gone) = heap(0x11);
        let (memory, region) = (slice.as_ptr().cast_const(), Arc::downgrade(slice.region()));
        let access = if read { Access::READ } else { Access::WRITE };
        let window = receiver
            .windows(connection)
            .expose(slice, access)
            .expect("exposed");
        let bytes = window.descriptor().to_bytes().map(|byte| byte.to_string());
        child.say(&bytes.join(" "));
        child.expect("posted", SLOW);
        let mut owner = Self {
            receiver,
            connection,
            window,
            memory,
            region,
            gone,
            child,
            events,
        };
        owner.stop_in_the_middle(read).then_some(owner)
    }

    /// False: all was moved before the peer stood still, and the operation is over.
    ///
    /// A read is answered by this process: the peer is stopped before anything is polled here, so
    /// that no more is moved than the kernel's buffers take, a few megabytes. A peer that goes on
    /// reading while this process sends can take all of it in one poll.
    fn stop_in_the_middle(&mut self, read: bool) -> bool {
        if read {
            // The peer's program may have to run once more for its request to leave it.
            std::thread::sleep(millis(20));
            self.child.stop();
            for _ in 0..3 {
                self.poll();
            }
            return self.child.heard().is_none();
        }
        drive("the first bytes", SLOW, || {
            self.poll();
            first_byte(self.memory) == 0x77
        });
        self.child.stop();
        std::thread::sleep(millis(20));
        let last = self.memory.wrapping_add(window_bytes() - 1);
        self.child.heard().is_none() && first_byte(last) == 0x11
    }

    fn poll(&mut self) {
        self.receiver.poll(&mut self.events).expect("polls");
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    fn poll_for(&mut self, time: Duration) {
        let until = after(time);
        while Instant::now() < until {
            self.poll();
            std::thread::sleep(millis(1));
        }
    }
}

/// The handle is dropped while the peer is stopped: the memory stays until the operation is over
/// and the peer has confirmed, and answered a fence; where nothing is fenced, until the endpoint is
/// closed.
fn dropped_window(test: &'static str, read: bool, kind: EndpointKind) {
    let Some(mut owner) = Owner::with_stopped_peer(test, read, kind) else {
        return;
    };
    let Owner {
        receiver,
        connection,
        window,
        region,
        gone,
        mut child,
        mut events,
        ..
    } = {
        owner.poll_for(millis(50));
        owner
    };
    let mut receiver = receiver;
    drop(window);
    let until = after(millis(200));
    while Instant::now() < until {
        receiver.poll(&mut events).expect("polls");
    }
    assert!(
        !gone.load(Ordering::SeqCst) && region.upgrade().is_some(),
        "freed while a peer could reach it"
    );
    child.go_on();
    let fenced = kind == MSG;
    drive("freed", SLOW, || {
        receiver.poll(&mut events).expect("polls");
        gone.load(Ordering::SeqCst) || (!fenced && receiver.stats().quarantined == 1)
    });
    // In which order it hears of the two is the provider's business.
    let mut told = Vec::new();
    drive("told", SLOW, || {
        told.extend(child.heard());
        told.len() == 2
    });
    told.sort_unstable();
    assert_eq!(told, ["done", "revoked"]);
    assert_eq!(receiver.exposed_windows(), usize::from(!fenced));
    assert_eq!(gone.load(Ordering::SeqCst), fenced);
    receiver.close_connection(connection, after(SLOW));
    drive("closed", SLOW, || {
        receiver.poll(&mut events).expect("polls");
        !common::receive_ends(&events).is_empty()
    });
    child.expect("over", SLOW);
    child.finish(SLOW);
    drop(receiver);
    assert!(gone.load(Ordering::SeqCst), "kept for nothing");
}

/// The revocation is not confirmed in time: the connection is closed, the memory is freed while the
/// peer is still stopped, and what the peer does afterwards reaches nobody.
fn revoked_window(test: &'static str, read: bool, kind: EndpointKind) {
    let Some(mut owner) = Owner::with_stopped_peer(test, read, kind) else {
        return;
    };
    let deadline = after(millis(150));
    let placeholder = owner.window;
    assert!(
        owner
            .receiver
            .windows(placeholder.connection())
            .revoke(placeholder, deadline)
            .expect("its own window")
    );
    let mut events = std::mem::take(&mut owner.events);
    let (receiver, child, gone) = (&mut owner.receiver, &mut owner.child, &owner.gone);
    drive("the deadline", SLOW, || {
        receiver.poll(&mut events).expect("polls");
        !common::receive_ends(&events).is_empty()
    });
    assert!(Instant::now() >= deadline);
    assert_eq!(
        common::receive_ends(&events)[0].1,
        CloseReason::RevokeDeadline
    );
    assert!(!gone.load(Ordering::SeqCst), "it is in the event");
    // The memory is the application's again; it frees it.
    events.clear();
    assert!(gone.load(Ordering::SeqCst) && owner.region.upgrade().is_none());
    child.go_on();
    child.expect("failed", SLOW);
    child.expect("over", SLOW);
    let until = after(millis(100));
    while Instant::now() < until {
        receiver.poll(&mut events).expect("polls");
    }
    child.finish(SLOW);
}

/// The same where the endpoint serves other connections, too, and stays: the memory stays with it,
/// until it is closed.
fn quarantined_window(test: &'static str, read: bool, kind: EndpointKind) {
    let Some(owner) = Owner::with_stopped_peer(test, read, kind) else {
        return;
    };
    let Owner {
        mut receiver,
        window,
        region,
        gone,
        mut child,
        mut events,
        ..
    } = owner;
    assert!(
        receiver
            .windows(window.connection())
            .revoke(window, after(millis(150)))
            .expect("its own window")
    );
    drive("the deadline", SLOW, || {
        receiver.poll(&mut events).expect("polls");
        !common::receive_ends(&events).is_empty()
    });
    let kept = |event: &ReceiveEvent| {
        matches!(
            event,
            ReceiveEvent::Window {
                event: WindowEvent::Quarantined { .. },
                ..
            }
        )
    };
    assert!(events.iter().any(kept), "{events:?}");
    events.clear();
    assert_eq!(receiver.stats().quarantined, 1);
    child.go_on();
    // What it had begun may still land. What it hears of it is its provider's business; then its
    // connection is over.
    let mut told = Vec::new();
    drive("its end", SLOW, || {
        receiver.poll(&mut events).expect("polls");
        told.extend(child.heard());
        told.last().is_some_and(|line| line == "over")
    });
    assert!(
        !gone.load(Ordering::SeqCst) && region.upgrade().is_some(),
        "freed while the endpoint is open"
    );
    child.finish(SLOW);
    let last = receiver.close(after(SLOW)).expect("closes");
    assert!(!gone.load(Ordering::SeqCst), "it is in the event");
    drop(last);
    assert!(gone.load(Ordering::SeqCst) && region.upgrade().is_none());
}

/// The owner's endpoint is dropped while the peer is stopped.
fn dropped_endpoint(test: &'static str, read: bool, kind: EndpointKind) {
    let Some(owner) = Owner::with_stopped_peer(test, read, kind) else {
        return;
    };
    assert!(!owner.is_gone() && owner.connection == owner.window.connection());
    let Owner {
        receiver,
        window,
        region,
        gone,
        mut child,
        events,
        ..
    } = owner;
    drop((receiver, window, events));
    assert!(
        gone.load(Ordering::SeqCst) && region.upgrade().is_none(),
        "kept after the endpoint was closed"
    );
    child.go_on();
    child.expect("failed", SLOW);
    child.expect("over", SLOW);
    child.finish(SLOW);
}

macro_rules! stop_tests {
    ($($name:ident: $what:ident, $read:literal, $kind:ident;)*) => {
        $(
            #[test]
            fn $name() {
                if let Some(role) = child::role() {
                    return peer(role == "read");
                }
                let _alone = common::alone();
                let _watchdog = Watchdog::with(stringify!($name), 3 * SLOW);
                $what(stringify!($name), $read, $kind);
            }
        )*
    };
}

stop_tests! {
    stopped_writing_and_the_window_dropped: dropped_window, false, MSG;
    stopped_reading_and_the_window_dropped: dropped_window, true, MSG;
    stopped_writing_and_the_window_revoked: revoked_window, false, MSG;
    stopped_reading_and_the_window_revoked: revoked_window, true, MSG;
    stopped_writing_and_the_endpoint_dropped: dropped_endpoint, false, MSG;
    stopped_reading_and_the_endpoint_dropped: dropped_endpoint, true, MSG;
    rdm_stopped_writing_and_the_window_dropped: dropped_window, false, RDM;
    rdm_stopped_reading_and_the_window_dropped: dropped_window, true, RDM;
    rdm_stopped_writing_and_the_window_revoked: quarantined_window, false, RDM;
    rdm_stopped_reading_and_the_window_revoked: quarantined_window, true, RDM;
    rdm_stopped_writing_and_the_endpoint_dropped: dropped_endpoint, false, RDM;
    rdm_stopped_reading_and_the_endpoint_dropped: dropped_endpoint, true, RDM;
}
