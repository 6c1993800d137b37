//! One-sided operations: writes, reads, writes with immediate data, revocations, and those of the
//! receiving side.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use fabricast::buffer::{Payload, RegionSlice, SharedBufferManager};
use fabricast::endpoint::{
    Access, ConnectionId, Destination, LocalWindow, RemoteWindow, SendConfig, SendErrorKind,
    WindowDescriptor, WindowError, WindowEvent,
};
use fabricast::fabric::EndpointKind;
use fabricast::{
    ConnectionEvent, Domain, ReceiveEndpoint, ReceiveEvent, Region, SendEndpointZeroCopy, SendEvent,
};

use crate::common::{SOON, after, buffer, child, drive, pattern, pool, send_end};
use crate::on::{FINISHED, On};
use crate::receiver::listen;
use crate::rows::row_named;
use crate::table::Shown;
use crate::told::Told;

/// Bytes of a window.
const WINDOW: usize = (1 << 20) + 4096;

/// Lengths on both sides of what providers inject, copy and split.
const SIZES: [usize; 7] = [1, 64, 200, 1000, 5000, 100_000, 1 << 20];

/// What is written lies so far into the window.
const OFFSET: u64 = 24;

const BACK: usize = 5000;

pub(crate) fn write(on: &On) -> Shown {
    run(on, "write")
}

pub(crate) fn read(on: &On) -> Shown {
    run(on, "read")
}

pub(crate) fn write_with_data(on: &On) -> Shown {
    if row_named(on.provider).cq_data < size_of::<u64>() {
        run(on, "nodata");
        return Shown::Hole("4 bytes of CQ data: refused in words before anything is posted");
    }
    run(on, "data")
}

pub(crate) fn receiver_writes_and_reads(on: &On) -> Shown {
    run(on, "back")
}

pub(crate) fn revoke(on: &On) -> Shown {
    run(on, "revoke")
}

fn run(on: &On, what: &str) -> Shown {
    let (mut owner, addr) = on.listener("own", "windows=4 slots=48");
    let mut user = on.sender("use", &addr, &format!("do={what}"));
    user.say(&owner.expect("window", 2 * SOON));
    // What the user is told: the owner has looked at the window.
    let (mut used, mut over) = (None, None);
    drive("both ends", 4 * SOON, || {
        match owner.heard() {
            Some(line) if line == "checked" => user.say("checked"),
            Some(line) => over = Some(line),
            None => {}
        }
        used = used.take().or_else(|| user.heard());
        used.is_some() && over.is_some()
    });
    assert_eq!(used.as_deref(), Some(&*format!("used {FINISHED}")));
    assert_eq!(over.as_deref(), Some(&*format!("over {FINISHED}")));
    owner.finish(SOON);
    user.finish(SOON);
    Shown::Works
}

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

/// Bytes of a window that no operation touches now.
fn contents(slice: &RegionSlice, at: usize, len: usize) -> Vec<u8> {
    let part = slice.slice(at..at + len).expect("inside");
    // SAFETY: the memory is mapped, and the peer has said that what it wrote is there.
    unsafe { std::slice::from_raw_parts(part.as_ptr(), len) }.to_vec()
}

// ---- the owner ----------------------------------------------------------------------------------

struct Owner {
    receiver: ReceiveEndpoint,
    memory: RegionSlice,
    window: Option<LocalWindow>,
    /// The peer's window, for its own operations.
    remote: Option<RemoteWindow>,
    over: Option<String>,
    released: bool,
    rdm: bool,
}

fn is_rdm(domain: &Domain) -> bool {
    domain.fabric().endpoint_kind() == EndpointKind::Rdm
}

/// Listens, exposes a window to whoever connects, and does what messages say.
pub(crate) fn own(told: &Told) {
    let domain = told.domain();
    let receiver = listen(told, &domain);
    child::tell(format!("addr {}", receiver.local_addr()));
    let mut owner = Owner {
        receiver,
        memory: memory(&pattern(7, WINDOW)),
        window: None,
        remote: None,
        over: None,
        released: false,
        rdm: is_rdm(&domain),
    };
    let mut events = Vec::new();
    drive("the end", 4 * SOON, || {
        owner.receiver.poll(&mut events).expect("polls");
        for event in events.drain(..) {
            owner.on(event);
        }
        owner.over.is_some()
    });
    // Both said goodbye: the window is back, or, over FI_EP_RDM, comes with the end of the
    // endpoint.
    assert!(owner.released, "not released");
    child::tell(format!("over {}", owner.over.unwrap_or_default()));
}

impl Owner {
    fn on(&mut self, event: ReceiveEvent) {
        match event {
            ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_)) => {
                let exposed = self
                    .receiver
                    .windows(connection)
                    .expose(self.memory.clone(), Access::all());
                let window = exposed.expect("exposed");
                child::tell(format!("window {}", words(&window.descriptor())));
                self.window = Some(window);
            }
            ReceiveEvent::Message(message) => {
                self.obey(message.connection(), message.header(), message.payload())
            }
            ReceiveEvent::Window { connection, event } => self.on_window(connection, event),
            ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                self.over = Some(reason.to_string())
            }
            _ => {}
        }
    }

    fn obey(&mut self, connection: ConnectionId, order: &[u8], argument: &[u8]) {
        match order {
            b"check" => {
                let number =
                    |i: usize| u64::from_le_bytes(argument[i * 8..][..8].try_into().expect("8"));
                self.check(number(0), number(1) as usize);
            }
            b"revoke" => {
                let window = self.window.take().expect("once");
                assert!(
                    self.receiver
                        .windows(window.connection())
                        .revoke(window, after(SOON))
                        .expect("its own window")
                );
            }
            b"back" => {
                let descriptor = WindowDescriptor::parse(argument).expect("a descriptor");
                let remote = self.receiver.windows(connection).open(&descriptor);
                let remote = remote.expect("opened");
                let payload = buffer(self.receiver.pool(), &pattern(99, BACK));
                self.receiver
                    .windows(remote.connection())
                    .write(payload, remote.at(OFFSET), 1)
                    .expect("posted");
                self.remote = Some(remote);
            }
            other => panic!("{other:?}"),
        }
    }

    fn check(&self, seed: u64, len: usize) {
        let found = contents(&self.memory, OFFSET as usize, len);
        assert!(found == pattern(seed, len), "{len} bytes of {seed}");
        child::tell("checked");
    }

    fn on_window(&mut self, _connection: ConnectionId, event: WindowEvent) {
        match event {
            WindowEvent::PeerWrote { data, .. } => {
                self.check(data.into(), SIZES[data as usize % SIZES.len()]);
            }
            WindowEvent::Released { memory, .. } => {
                assert_eq!(memory.len(), WINDOW);
                self.released = true;
            }
            // Nothing but the end of this endpoint ends what its peers may have under way.
            WindowEvent::Quarantined { .. } if self.rdm => self.released = true,
            WindowEvent::Written { key: 1, .. } => {
                let into = self.receiver.pool().try_acquire().expect("a buffer");
                let remote = self.remote.as_ref().expect("opened");
                self.receiver
                    .windows(remote.connection())
                    .read(Destination::buffer(into, BACK), remote.at(OFFSET), 2)
                    .expect("posted");
            }
            WindowEvent::Read { key: 2, into } => {
                let buffer = into.into_buffer().expect("a buffer");
                assert!(buffer[..BACK] == pattern(99, BACK));
                self.remote = None;
                child::tell("checked");
            }
            // The user takes back what it offered.
            WindowEvent::Revoked { .. } if self.remote.is_none() => {}
            other => panic!("{other:?}"),
        }
    }
}

fn words(descriptor: &WindowDescriptor) -> String {
    let bytes = descriptor.to_bytes().map(|byte| byte.to_string());
    bytes.join(".")
}

// ---- the user -----------------------------------------------------------------------------------

struct User {
    sender: SendEndpointZeroCopy,
    domain: Arc<Domain>,
    pool: SharedBufferManager,
    window: RemoteWindow,
    events: Vec<SendEvent>,
    heard: Vec<WindowEvent>,
    /// Lines from the parent.
    lines: Receiver<String>,
    next: u64,
}

/// Connects, hears of a window, uses it as it is told, and says goodbye.
pub(crate) fn use_it(told: &Told) {
    let domain = told.domain();
    let mut sender =
        SendEndpointZeroCopy::connect(&domain, told.to(), SendConfig::default()).expect("begins");
    sender.wait_connected().expect("connects");
    let line = child::hear().expect("a descriptor");
    let bytes: Vec<u8> = line
        .split('.')
        .map(|byte| byte.parse().expect("a byte"))
        .collect();
    let descriptor = WindowDescriptor::parse(&bytes).expect("ours");
    let window = sender.windows().open(&descriptor).expect("opened");
    let (orders, lines) = channel();
    std::thread::spawn(move || {
        while let Some(line) = child::hear() {
            let _ = orders.send(line);
        }
    });
    let mut user = User {
        sender,
        pool: pool(&domain, 4, WINDOW),
        domain,
        window,
        events: Vec::new(),
        heard: Vec::new(),
        lines,
        next: 100,
    };
    match told.text("do") {
        Some("write") => user.write(),
        Some("read") => user.read(),
        Some("data") => user.write_with_data(),
        Some("nodata") => user.refuse_data(),
        Some("back") => user.offer(),
        _ => user.use_until_revoked(),
    }
    let events = user.sender.close(after(2 * SOON)).expect("closes");
    let end = send_end(&events).map(|reason| reason.to_string());
    child::tell(format!("used {}", end.unwrap_or_default()));
}

impl User {
    fn poll(&mut self) {
        self.sender.poll(&mut self.events).expect("polls");
        for event in self.events.drain(..) {
            match event {
                SendEvent::Window(event) => self.heard.push(event),
                SendEvent::Connection(ConnectionEvent::Disconnected(reason)) => panic!("{reason}"),
                _ => {}
            }
        }
    }

    /// Polls until something is heard of a window.
    fn hear(&mut self) -> WindowEvent {
        drive("an event", 2 * SOON, || {
            self.poll();
            !self.heard.is_empty()
        });
        self.heard.remove(0)
    }

    fn order(&mut self, order: &[u8], argument: &[u8]) {
        let mut payload = Some(Payload::from(buffer(&self.pool, argument)));
        self.next += 1;
        drive("an order", SOON, || {
            let p = payload.take().expect("given back");
            match self.sender.send_data(p, order, self.next) {
                Ok(()) => return true,
                Err(refused) if refused.is_would_block() => payload = Some(refused.given),
                Err(refused) => panic!("{refused}"),
            }
            self.poll();
            false
        });
    }

    fn written(&mut self, key: u64) {
        match self.hear() {
            WindowEvent::Written { key: done, .. } => assert_eq!(done, key),
            other => panic!("{other:?}"),
        }
    }

    /// A payload in as many pieces, registered here.
    fn pieces(&self, bytes: &[u8], count: usize) -> Payload {
        let region = memory(bytes);
        region.region().register(&self.domain).expect("registered");
        let step = bytes.len().div_ceil(count);
        let cuts =
            (0..count).map(|i| (i * step).min(bytes.len())..((i + 1) * step).min(bytes.len()));
        let slices = cuts.filter(|cut| !cut.is_empty());
        let slices = slices.map(|cut| region.slice(cut).expect("inside"));
        Payload::from_iter(slices)
    }

    fn write(&mut self) {
        for (i, len) in SIZES.into_iter().enumerate() {
            for unconfirmed in [false, true] {
                let seed = i as u64 * 2 + u64::from(unconfirmed);
                let bytes = pattern(seed, len);
                let payload = match i % 2 {
                    0 => Payload::from(buffer(&self.pool, &bytes)),
                    _ => self.pieces(&bytes, 3),
                };
                let place = self.window.at(OFFSET);
                match unconfirmed {
                    false => self.sender.windows().write(payload, place, seed),
                    true => self
                        .sender
                        .windows()
                        .write_unconfirmed(payload, place, seed),
                }
                .expect("posted");
                self.written(seed);
                // What is delivered is there; over FI_EP_RDM all of it is.
                if !unconfirmed {
                    self.check(seed, len);
                }
            }
        }
    }

    /// Has the owner look at the window; the next write would change what it looks at.
    fn check(&mut self, seed: u64, len: usize) {
        let argument = [seed.to_le_bytes(), (len as u64).to_le_bytes()].concat();
        self.order(b"check", &argument);
        self.checked();
    }

    fn checked(&mut self) {
        drive("the owner's look", 2 * SOON, || {
            self.poll();
            self.lines.try_recv().is_ok()
        });
    }

    fn read(&mut self) {
        let whole = pattern(7, WINDOW);
        for (i, len) in SIZES.into_iter().enumerate() {
            let at = i * 100;
            let into = self.pool.try_acquire().expect("a buffer");
            let place = self.window.at(at as u64);
            self.sender
                .windows()
                .read(Destination::buffer(into, len), place, i as u64)
                .expect("posted");
            let WindowEvent::Read { key, into } = self.hear() else {
                panic!("not read");
            };
            assert_eq!((key, into.len()), (i as u64, len));
            let buffer = into.into_buffer().expect("a buffer");
            assert!(buffer[..len] == whole[at..at + len], "{len} bytes");
        }
    }

    /// More than there are credits, with messages between them: both share the credits, and
    /// messages keep their order.
    fn refuse_data(&mut self) {
        let payload = Payload::from(buffer(&self.pool, &pattern(1, 8)));
        let place = self.window.at(OFFSET);
        let refused = self
            .sender
            .windows()
            .write_with_data(payload, place, 1, 1)
            .unwrap_err();
        let is_it = |kind: &SendErrorKind| {
            matches!(
                kind,
                SendErrorKind::Window(WindowError::NoImmediateData { .. })
            )
        };
        assert!(is_it(&refused.kind), "{refused}");
        assert_eq!(self.sender.stats().posted, 0);
        self.write();
    }

    fn write_with_data(&mut self) {
        for n in 0..40_u32 {
            let bytes = pattern(n.into(), SIZES[n as usize % SIZES.len()]);
            let mut payload = Some(Payload::from(buffer(&self.pool, &bytes)));
            drive("a write", SOON, || {
                let p = payload.take().expect("given back");
                let place = self.window.at(OFFSET);
                match self.sender.windows().write_with_data(p, place, n, n.into()) {
                    Ok(()) => return true,
                    Err(refused) if refused.is_would_block() => payload = Some(refused.given),
                    Err(refused) => panic!("{refused}"),
                }
                self.poll();
                false
            });
            self.written(n.into());
            self.check(n.into(), bytes.len());
            self.checked();
        }
    }

    fn offer(&mut self) {
        let own = memory(&vec![0; BACK + OFFSET as usize]);
        let window = self.sender.windows().expose(own.clone(), Access::all());
        let window = window.expect("exposed");
        self.order(b"back", &window.descriptor().to_bytes());
        self.checked();
        assert!(contents(&own, OFFSET as usize, BACK) == pattern(99, BACK));
        assert!(
            self.sender
                .windows()
                .revoke(window, after(SOON))
                .expect("its own window")
        );
        match self.hear() {
            WindowEvent::Released { memory, .. } => assert_eq!(memory.len(), own.len()),
            // Nothing but the end of this endpoint ends what its peers may have under way.
            WindowEvent::Quarantined { .. } if is_rdm(&self.domain) => {}
            other => panic!("{other:?}"),
        }
    }

    /// Writes all the time, while the owner takes the window back: nothing fails, and nothing is
    /// taken afterwards.
    fn use_until_revoked(&mut self) {
        let (mut posted, mut done) = (0_u64, 0);
        let (mut asked, mut revoked) = (false, false);
        drive("the revocation", 3 * SOON, || {
            if posted == 5 && !std::mem::replace(&mut asked, true) {
                self.order(b"revoke", b"");
            }
            if self.pool.free_count() > 1 && !revoked {
                let payload = buffer(&self.pool, &[0x55; 3000]);
                let sent = self.sender.windows().write(payload, &self.window, posted);
                match sent.map_err(|refused| refused.kind) {
                    Ok(()) => posted += 1,
                    Err(SendErrorKind::Window(WindowError::Revoked)) => {}
                    Err(SendErrorKind::WouldBlock(_)) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            self.poll();
            for event in self.heard.drain(..) {
                match event {
                    WindowEvent::Written { .. } => done += 1,
                    WindowEvent::Revoked { .. } => revoked = true,
                    other => panic!("{other:?}"),
                }
            }
            revoked && done == posted
        });
        let refused = self
            .sender
            .windows()
            .write(buffer(&self.pool, b"late"), &self.window, 1);
        let kind = refused.expect_err("revoked").kind;
        assert_eq!(kind, SendErrorKind::Window(WindowError::Revoked));
    }
}
