//! Peers that forge windows, over FI_EP_RDM: with another key, beyond a window's end, without the
//! right. Nothing of the owner's memory changes, whoever did it hears of a failure, and the
//! endpoint's other connections go on. Over FI_EP_MSG: `rma.rs`.
//!
//! `shm` is not here: its peers are processes.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use fabricast::buffer::{Payload, RegionSlice, SharedBufferManager};
use fabricast::endpoint::{
    Access, CloseReason, ConnectionId, Destination, LocalWindow, WindowDescriptor, WindowEvent,
};
use fabricast::fabric::EndpointKind;
use fabricast::{
    ConnectionEvent, Domain, Fabric, ReceiveEndpoint, ReceiveEvent, Region, SendEndpointZeroCopy,
    SendEvent,
};

use crate::common;
use crate::common::{
    SOON, Watchdog, any_port, buffer, drive, millis, node, pool, provider::asked_or, send_end,
    small_receiver,
};

/// Providers whose other side refuses such operations. `udp;ofi_rxd` does not answer them at all:
/// there it is the deadline that ends them.
const PROVIDERS: [&str; 5] = ["net", "tcp", "tcp;ofi_rxm", "sockets", "udp;ofi_rxd"];

/// What is forged of a window of 64 bytes, and the right that it really gives.
const FORGERIES: [(&str, Access); 4] = [
    ("another key", Access::WRITE),
    ("beyond its end", Access::WRITE),
    ("all of it beyond its end", Access::WRITE),
    ("a right that it has not", Access::READ),
];

const WINDOW: usize = 64;

/// Where the window lies in its region.
const AT: usize = 1024;

fn open(provider: &str) -> Result<Arc<Domain>, fabricast::Error> {
    let builder = Fabric::builder().endpoint_kind(EndpointKind::Rdm);
    builder
        .provider(provider)
        .node(node())
        .open()?
        .open_domain()
}

/// Calls `check` for each provider that is here.
fn on_each_provider(mut check: impl FnMut(&str)) {
    let mut ran = 0;
    for provider in asked_or(EndpointKind::Rdm, &PROVIDERS) {
        match open(provider) {
            Ok(_) => {
                println!("{provider}");
                check(provider);
                ran += 1;
            }
            Err(error) => {
                let why = error.to_string();
                println!("SKIPPED: {provider}: {}", why.lines().next().unwrap_or(""));
            }
        }
    }
    if ran == 0 {
        println!("SKIPPED: no provider");
    }
}

fn forge(window: &LocalWindow, what: &str) -> WindowDescriptor {
    let mut bytes = window.descriptor().to_bytes();
    let base = u64::from_le_bytes(bytes[32..40].try_into().expect("8 bytes"));
    let moved = |by: usize| (base + by as u64).to_le_bytes();
    match what {
        "another key" => bytes[48] ^= 0x55,
        "beyond its end" => bytes[32..40].copy_from_slice(&moved(WINDOW - 4)),
        "all of it beyond its end" => bytes[32..40].copy_from_slice(&moved(WINDOW + 64)),
        _ => bytes[5] = Access::all().bits() as u8,
    }
    WindowDescriptor::parse(&bytes).expect("understood")
}

/// Memory of its own, all bytes alike.
fn memory(len: usize, byte: u8) -> RegionSlice {
    let region = Region::host(len).build().expect("memory");
    let slice = region.slice(0..len).expect("inside");
    // SAFETY: nobody else has the memory yet.
    unsafe { slice.as_ptr().write_bytes(byte, len) };
    slice
}

fn contents(slice: &RegionSlice) -> Vec<u8> {
    // SAFETY: the memory is mapped, and no operation on it is in flight when the tests look.
    unsafe { std::slice::from_raw_parts(slice.as_ptr(), slice.len()) }.to_vec()
}

/// One sender with what it heard, in a domain of its own.
struct Sender {
    endpoint: SendEndpointZeroCopy,
    pool: SharedBufferManager,
    windows: Vec<WindowEvent>,
    ended: Option<CloseReason>,
}

impl Sender {
    /// One whose operations are given up after `deadline`, where nobody answers them.
    fn connect(provider: &str, owner: &ReceiveEndpoint, deadline: Option<Duration>) -> Self {
        let domain = open(provider).expect("there is one already");
        let config = common::sending()
            .outgoing(|out| out.deadline(deadline))
            .connection(|c| c.lost_after(None));
        let to = owner.local_addr();
        let endpoint = SendEndpointZeroCopy::connect(&domain, to, config).expect("begins");
        Self {
            endpoint,
            pool: pool(&domain, 4, 4096),
            windows: Vec::new(),
            ended: None,
        }
    }

    fn poll(&mut self) {
        let mut events = Vec::new();
        self.endpoint.poll(&mut events).expect("polls");
        self.ended = self.ended.or_else(|| send_end(&events));
        for event in events {
            if let SendEvent::Window(event) = event {
                self.windows.push(event);
            }
        }
    }
}

/// The owner of windows, one who forges, and one who does nothing wrong.
struct Three {
    owner: ReceiveEndpoint,
    forger: Sender,
    other: Sender,
    /// The forger's first connection.
    forgers: ConnectionId,
    messages: Vec<Vec<u8>>,
}

impl Three {
    fn open(provider: &str) -> Self {
        let far = open(provider).expect("there is one already");
        let config = small_receiver().connection(|c| c.windows(4));
        let mut owner = ReceiveEndpoint::listen(&far, any_port(), config).expect("listens");
        // Its one operation fails, be it by this. It sends nothing else: the deadline is no
        // other's.
        let mut forger = Sender::connect(provider, &owner, Some(millis(400)));
        let mut events = Vec::new();
        drive("the forger is connected", SOON, || {
            owner.poll(&mut events).expect("polls");
            forger.poll();
            forger.endpoint.is_connected() && !events.is_empty()
        });
        let ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_)) = events[0] else {
            panic!("{events:?}");
        };
        let mut three = Self {
            other: Sender::connect(provider, &owner, None),
            owner,
            forger,
            forgers: connection,
            messages: Vec::new(),
        };
        three.until("connected", |three| three.other.endpoint.is_connected());
        three
    }

    fn step(&mut self) {
        let mut events = Vec::new();
        self.owner.poll(&mut events).expect("polls");
        for event in events {
            if let ReceiveEvent::Message(message) = event {
                self.messages.push(message.payload().to_vec());
            }
        }
        self.forger.poll();
        self.other.poll();
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        drive(what, SOON, || {
            self.step();
            done(self)
        });
    }

    /// A message from the forger, or from the other one, that comes.
    fn hear(&mut self, forger: bool, bytes: &[u8]) {
        let sender = if forger {
            &mut self.forger
        } else {
            &mut self.other
        };
        let payload = Payload::from(buffer(&sender.pool, bytes));
        let sent = sender.endpoint.send_data(payload, &[], 1);
        sent.expect("taken");
        self.until("a message", |three| !three.messages.is_empty());
        assert_eq!(self.messages.remove(0), bytes);
    }

    /// What the forger hears of its one operation.
    fn outcome(&mut self) -> WindowEvent {
        self.until("the outcome and the end", |three| {
            !three.forger.windows.is_empty() && three.forger.ended.is_some()
        });
        assert_eq!(self.forger.windows.len(), 1, "{:?}", self.forger.windows);
        common::assert_balanced(&self.forger.endpoint);
        self.forger.windows.remove(0)
    }

    /// The owner still serves the other one, and lets the forger in again.
    fn goes_on(&mut self, provider: &str) {
        self.hear(false, b"still here");
        assert_eq!(self.other.ended, None);
        self.forger = Sender::connect(provider, &self.owner, None);
        self.until("connected again", |three| {
            three.forger.endpoint.is_connected()
        });
        self.hear(true, b"here again");
    }
}

#[test]
fn a_forged_write_changes_nothing_and_fails() {
    let _dog = Watchdog::with("a_forged_write_changes_nothing", 8 * SOON);
    on_each_provider(|provider| {
        for (what, access) in FORGERIES {
            let mut three = Three::open(provider);
            let whole = memory(4 * AT, 0x11);
            let part = whole.slice(AT..AT + WINDOW).expect("inside");
            let window = three.owner.windows(three.forgers).expose(part, access);
            let window = window.expect("exposed");
            let forger = &mut three.forger;
            let remote = forger.endpoint.windows().open(&forge(&window, what));
            let remote = remote.expect("this side can't know");
            let payload = buffer(&forger.pool, b"attack!!");
            forger
                .endpoint
                .windows()
                .write(payload, &remote, 9)
                .expect("posted");
            let outcome = three.outcome();
            let WindowEvent::WriteFailed {
                key: 9,
                payload,
                error,
            } = &outcome
            else {
                panic!("{provider}, {what}: {outcome:?}");
            };
            assert_eq!(payload.len_bytes(), 8, "given back");
            println!(
                "  {what}: {error}; {}",
                three.forger.ended.expect("it ended")
            );
            three.goes_on(provider);
            assert_eq!(contents(&whole), [0x11; 4 * AT], "{provider}, {what}");
        }
    });
}

#[test]
fn a_forged_read_brings_nothing_and_fails() {
    let _dog = Watchdog::with("a_forged_read_brings_nothing", 8 * SOON);
    on_each_provider(|provider| {
        for (what, access) in FORGERIES {
            // The right that it has not is now the other one.
            let access = access ^ Access::all();
            let mut three = Three::open(provider);
            let whole = memory(4 * AT, 0x11);
            let part = whole.slice(AT..AT + WINDOW).expect("inside");
            let window = three.owner.windows(three.forgers).expose(part, access);
            let window = window.expect("exposed");
            let forger = &mut three.forger;
            let remote = forger.endpoint.windows().open(&forge(&window, what));
            let remote = remote.expect("this side can't know");
            let mut into = forger.pool.try_acquire().expect("a buffer");
            into.fill(0x22);
            let into = Destination::buffer(into, WINDOW);
            forger
                .endpoint
                .windows()
                .read(into, &remote, 5)
                .expect("posted");
            let outcome = three.outcome();
            let WindowEvent::ReadFailed {
                key: 5,
                into,
                error,
            } = outcome
            else {
                panic!("{provider}, {what}: {outcome:?}");
            };
            println!(
                "  {what}: {error}; {}",
                three.forger.ended.expect("it ended")
            );
            three.goes_on(provider);
            // Where the provider may still write there, it is kept until the endpoint is closed.
            if let Some(into) = into {
                let into = into.into_buffer().expect("a buffer");
                assert_eq!(into[..WINDOW], [0x22; WINDOW], "{provider}, {what}");
            }
        }
    });
}
