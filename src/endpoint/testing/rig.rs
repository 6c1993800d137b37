//! A sender and a receiver over the fake link, with a model of what each key is owed.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::buffer::{
    Buffer, DeviceBufferManager, Gate, GateError, HeaderSlotConfig, HeaderSlotManager, Payload,
    SharedBufferConfig, SharedBufferManager,
};
use crate::clock::Clock;
use crate::endpoint::error::{Blocked, Refused, SendErrorKind};
use crate::endpoint::event::{
    ConnectionEvent, DeadlinePolicy, Inject, Level, Packing, ReceiveEvent, SendEvent,
};
use crate::endpoint::hub::in_flight_max::InFlightMax;
use crate::endpoint::hub::{Hub, HubSettings, OutboundSettings, WindowSettings};
use crate::endpoint::limits::FENCE_TIMEOUT_DEFAULT;
use crate::endpoint::link::fake::{FakeLink, FakeWait, Net, NetConfig, some_addr};
use crate::endpoint::link::socket::TcpWatch;
use crate::endpoint::link::{ConnKey, LinkConn};
use crate::endpoint::long_messages::LongMessages;
use crate::endpoint::message::Message;
use crate::endpoint::reconnect::{ReconnectPolicy, Redial};
use crate::endpoint::send::core::{self, SendCore};
use crate::endpoint::settings::ConnectionSettings;
use crate::endpoint::windows::destination::Destination;
use crate::endpoint::windows::window::WindowEvent;
use crate::fabric::Shape;
use crate::memory::Region;
use crate::protocol::connection::{CloseReason, Form};
use crate::protocol::liveness::LivenessTimeouts;
use crate::protocol::wire::HeaderMode;

/// Longer than any test takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The number of the payload memory in the order log.
pub(crate) const PAYLOAD_MEMORY: usize = 77;

pub(crate) const SLOT_BYTES: usize = 256;

/// The payload of a long message: longer than what a net with `max_message` below it takes.
pub(crate) const LONG_BYTES: usize = 200;

/// What a rig is made with.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) net: NetConfig,
    pub(crate) depth: u32,
    pub(crate) header_slots: u32,
    /// The longest header.
    pub(crate) header_bytes: usize,
    pub(crate) header_mode: HeaderMode,
    pub(crate) shape: Option<Shape>,
    pub(crate) inject: Inject,
    pub(crate) packing: Packing,
    pub(crate) gather: bool,
    pub(crate) level: Level,
    /// Bytes in front of each payload.
    pub(crate) headroom: usize,
    pub(crate) payloads: u32,
    pub(crate) send_deadline: Option<Duration>,
    pub(crate) policy: DeadlinePolicy,
    pub(crate) receive_depth: u32,
    pub(crate) receive_slots: u32,
    pub(crate) max_connections: u32,
    pub(crate) ask: bool,
    pub(crate) handshake_timeout: Duration,
    pub(crate) asked_mode: Option<HeaderMode>,
    pub(crate) reconnect: ReconnectPolicy,
    pub(crate) windows: WindowSettings,
    /// Slots for long messages, and their size.
    pub(crate) long: Option<(u32, usize)>,
    /// How long one may take.
    pub(crate) long_deadline: Option<Duration>,
    /// And where they land in a device's memory.
    pub(crate) long_device: Option<DeviceBufferManager>,
    /// The sender's.
    pub(crate) liveness: LivenessTimeouts,
    /// What both sides judge deadlines by: one that stands still, until a test says otherwise.
    pub(crate) clock: Clock,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            net: NetConfig::default(),
            depth: 8,
            header_slots: 8,
            header_bytes: 64,
            header_mode: HeaderMode::Prefixed,
            shape: None,
            inject: Inject::Auto,
            packing: Packing::Off,
            gather: true,
            level: Level::Sent,
            headroom: 0,
            payloads: 16,
            send_deadline: None,
            policy: DeadlinePolicy::FailConnection,
            receive_depth: 4,
            receive_slots: 16,
            max_connections: 2,
            ask: false,

            handshake_timeout: LONG,
            asked_mode: None,
            reconnect: ReconnectPolicy::off(),
            windows: WindowSettings {
                windows: 0,
                uses_peers: false,
                operations: 8,
                deadline: None,
                policy: DeadlinePolicy::FailConnection,
                long: false,
            },
            long: None,
            long_deadline: None,
            long_device: None,
            liveness: LivenessTimeouts::ENDLESS,
            clock: Clock::held(),
        }
    }
}

impl Setup {
    pub(crate) fn rig(self) -> Rig {
        Rig::new(self)
    }

    /// With a connection that stands.
    pub(crate) fn connected(self) -> Rig {
        let mut rig = self.rig();
        rig.settle();
        assert!(rig.connected, "not connected: {:?}", rig.ended);
        rig
    }
}

pub(crate) struct Rig {
    pub(crate) net: Net,
    pub(crate) setup: Setup,
    pub(crate) sender: Option<SendCore<FakeLink>>,
    pub(crate) receiver: Option<Hub<FakeLink>>,
    /// Numbers of their links.
    pub(crate) near: usize,
    pub(crate) far: usize,
    /// The sender's connection at the net.
    pub(crate) conn: ConnKey,
    pub(crate) payloads: SharedBufferManager,
    pub(crate) headers: HeaderSlotManager,
    pub(crate) pool: SharedBufferManager,
    /// Keys that are owed an outcome, with the slot of their payload.
    pub(crate) owed: HashMap<u64, u32>,
    pub(crate) completed: Vec<u64>,
    pub(crate) failed: Vec<(u64, i32)>,
    pub(crate) late: Vec<u64>,
    /// First bytes of what was read, by key.
    pub(crate) reads: Vec<(u64, [u8; 8])>,
    /// What else the sender heard of windows.
    pub(crate) heard: Vec<WindowEvent>,
    pub(crate) writable: usize,
    pub(crate) connected: bool,
    /// The sender says that its peer is.
    pub(crate) silent: bool,
    /// Times that a connection was cut, to be made anew.
    pub(crate) cuts: usize,
    pub(crate) ended: Option<CloseReason>,
    pub(crate) abandoned: Arc<Mutex<Vec<u64>>>,
    /// Messages that the receiver's application holds.
    pub(crate) held: Vec<Message>,
    pub(crate) received: Vec<u64>,
    /// Everything else that the receiver said.
    pub(crate) said: Vec<ReceiveEvent>,
    /// The receiving application lets each message go at once.
    pub(crate) drop_at_once: bool,
}

impl Rig {
    fn new(setup: Setup) -> Self {
        let net = Net::new(setup.net);
        let listener = net.listen();
        let far = listener.id();
        let pool = SharedBufferManager::allocate(setup.receive_slots, SLOT_BYTES * 2).unwrap();
        let settings = receive_settings(&setup);
        let form = setup.net.form;
        let most = InFlightMax::of_hub(&settings, form, pool.slots());
        if form == Form::Msg {
            net.fix_queues(far, most.queue_sizes().each);
        }
        let receiver = Hub::listen(
            listener,
            Arc::new(FakeWait),
            setup.clock.clone(),
            pool.clone(),
            settings,
        )
        .unwrap();
        let payloads = pool_with_room(&net, PAYLOAD_MEMORY, setup.payloads, setup.headroom);
        payloads.region().register_with(net.near()).unwrap();
        let headers = HeaderSlotManager::new(HeaderSlotConfig {
            slots: setup.header_slots,
            slot_size: setup.header_bytes,
        })
        .unwrap();
        let link = net.link();
        let near = link.id();
        let abandoned = Arc::new(Mutex::new(Vec::new()));
        let settings = send_settings(&setup, &abandoned, &headers);
        if form == Form::Msg {
            let receives = settings.receives(form).max as usize;
            let most = InFlightMax::of_hub(&settings, form, receives);
            net.fix_queues(near, most.queue_sizes().each);
        }
        let sender = SendCore::connect(
            link,
            Arc::new(FakeWait),
            setup.clock.clone(),
            some_addr(),
            settings,
            Redial::new(setup.reconnect, 1),
        )
        .unwrap();
        let conn = sender.conn().map(LinkConn::key).unwrap();
        Self {
            net,
            sender: Some(sender),
            receiver: Some(receiver),
            near,
            far,
            conn,
            payloads,
            headers,
            pool,
            owed: HashMap::new(),
            completed: Vec::new(),
            failed: Vec::new(),
            late: Vec::new(),
            reads: Vec::new(),
            heard: Vec::new(),
            writable: 0,
            connected: false,
            silent: false,
            cuts: 0,
            ended: None,
            abandoned,
            held: Vec::new(),
            received: Vec::new(),
            setup,
            said: Vec::new(),
            drop_at_once: true,
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.setup.clock.now()
    }

    /// So much time passes, for both sides.
    pub(crate) fn pass(&self, time: Duration) {
        self.setup.clock.advance(time);
    }

    pub(crate) fn sender(&mut self) -> &mut SendCore<FakeLink> {
        self.sender.as_mut().expect("not dropped yet")
    }

    pub(crate) fn receiver(&mut self) -> &mut Hub<FakeLink> {
        self.receiver.as_mut().expect("not dropped yet")
    }

    /// A payload that says its key.
    pub(crate) fn payload(&self, key: u64) -> Buffer {
        let mut buffer = self.payloads.try_acquire().expect("a payload is free");
        buffer[..8].copy_from_slice(&key.to_le_bytes());
        buffer.freeze(8)
    }

    /// Sends a message with this key; if it is refused, checks that everything came back.
    pub(crate) fn send(&mut self, key: u64) -> Result<(), SendErrorKind> {
        let payload = self.payload(key);
        self.send_payload(payload, key)
    }

    /// The same with `LONG_BYTES` bytes of payload, the key in front and behind.
    pub(crate) fn send_long(&mut self, key: u64) -> Result<(), SendErrorKind> {
        let mut buffer = self.payloads.try_acquire().expect("a payload is free");
        buffer[..LONG_BYTES].fill(key as u8);
        buffer[..8].copy_from_slice(&key.to_le_bytes());
        buffer[LONG_BYTES - 8..LONG_BYTES].copy_from_slice(&key.to_le_bytes());
        self.send_payload(buffer.freeze(LONG_BYTES), key)
    }

    fn send_payload(&mut self, payload: Buffer, key: u64) -> Result<(), SendErrorKind> {
        let index = payload.index();
        let header = key.to_be_bytes();
        match self.sender().send_data(payload.into(), &header, key) {
            Ok(()) => {
                assert!(self.owed.insert(key, index).is_none(), "key {key} in use");
                Ok(())
            }
            Err(Refused {
                kind,
                given: payload,
                key: back,
            }) => {
                let payload = payload.into_buffer().expect("the buffer that was given");
                assert_eq!((payload.index(), back), (index, key));
                Err(kind)
            }
        }
    }

    /// Sends a message that waits for a gate, which this gives; a staged one goes out of a buffer
    /// of `staging`, which has what the gate would have copied.
    pub(crate) fn send_gated(
        &mut self,
        key: u64,
        staging: Option<&SharedBufferManager>,
    ) -> Result<FakeGate, SendErrorKind> {
        let gate = FakeGate::default();
        let payload = self.payload(key);
        let index = payload.index();
        let payload = match staging {
            None => Payload::from(payload).behind(Box::new(gate.clone())),
            Some(staging) => {
                let mut wire = staging.try_acquire().expect("a slot is free");
                wire[..8].copy_from_slice(&key.to_le_bytes());
                Payload::from(payload).staged(wire.freeze(8).into(), Box::new(gate.clone()))
            }
        };
        match self.sender().send_data(payload, &key.to_be_bytes(), key) {
            Ok(()) => {
                assert!(self.owed.insert(key, index).is_none(), "key {key} in use");
                Ok(gate)
            }
            Err(refused) => {
                let payload = refused.given.unstaged();
                assert_eq!(payload.is_gated(), staging.is_none(), "as it was given");
                let payload = payload.into_buffer().expect("the buffer that was given");
                assert_eq!((payload.index(), refused.key), (index, key));
                Err(refused.kind)
            }
        }
    }

    /// Sends these at once, until one is refused; gives how many were taken, and what became of the
    /// next.
    pub(crate) fn send_batch(
        &mut self,
        keys: std::ops::Range<u64>,
    ) -> (usize, Option<SendErrorKind>) {
        let mut given = HashMap::new();
        let payloads: Vec<_> = keys.map(|key| (key, self.payload(key))).collect();
        let messages = payloads.into_iter().map(|(key, payload)| {
            given.insert(key, payload.index());
            (Payload::from(payload), key.to_be_bytes(), key)
        });
        let sender = self.sender.as_mut().expect("not dropped yet");
        let (sent, refused) = sender.send_batch(messages);
        let refused = refused.map(
            |Refused {
                 kind,
                 given: payload,
                 key,
             }| {
                let index = payload
                    .into_buffer()
                    .expect("the buffer that was given")
                    .index();
                assert_eq!(given.remove(&key), Some(index));
                kind
            },
        );
        assert_eq!(given.len(), sent);
        self.owed.extend(given);
        (sent, refused)
    }

    pub(crate) fn blocked(&mut self, key: u64) -> Blocked {
        match self.send(key) {
            Err(SendErrorKind::WouldBlock(blocked)) => blocked,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn poll_sender(&mut self) {
        let mut events = Vec::new();
        if let Some(sender) = &mut self.sender {
            sender.wait().wake();
            sender.poll(&mut events).unwrap();
        }
        self.absorb(events);
        self.check();
    }

    /// Takes the sender's events into the model: each key once, with its payload, and nothing after
    /// the end. The same where it may be gone.
    pub(crate) fn poll_sender_if_any(&mut self) {
        if self.sender.is_some() {
            self.poll_sender();
        }
    }

    pub(crate) fn absorb(&mut self, events: Vec<SendEvent>) {
        for event in events {
            assert!(self.ended.is_none(), "{event:?} after the end");
            match event {
                SendEvent::Connection(ConnectionEvent::Connected(_)) => self.connected = true,
                SendEvent::Completed { key, payload } => {
                    self.paid(key, payload, false);
                    self.completed.push(key);
                }
                SendEvent::Failed {
                    key,
                    payload,
                    error,
                } => {
                    let leaked = error.provider_message.contains("leaked");
                    self.paid(key, payload, leaked);
                    self.failed.push((key, error.errno.get()));
                }
                SendEvent::Late { key } => {
                    assert!(self.owed.contains_key(&key), "late, but not owed: {key}");
                    self.late.push(key);
                }
                SendEvent::Window(event) => self.absorb_window(event),
                SendEvent::Writable => self.writable += 1,
                SendEvent::Connection(ConnectionEvent::Unresponsive) => self.silent = true,
                SendEvent::Connection(ConnectionEvent::Responsive) => self.silent = false,
                SendEvent::Connection(ConnectionEvent::Reconnecting { .. }) => {
                    assert!(
                        self.owed.is_empty(),
                        "reconnecting, but owed: {:?}",
                        self.owed
                    );
                    self.connected = false;
                    self.cuts += 1;
                }
                SendEvent::Connection(ConnectionEvent::PeerClosing) => {}
                SendEvent::Connection(ConnectionEvent::Late) => panic!("late, without a key"),
                SendEvent::Connection(ConnectionEvent::Disconnected(reason)) => {
                    assert!(self.owed.is_empty(), "the end, but owed: {:?}", self.owed);
                    self.ended = Some(reason);
                }
            }
        }
    }

    fn absorb_window(&mut self, event: WindowEvent) {
        match event {
            WindowEvent::Written { key, payload } => {
                self.paid(key, payload, false);
                self.completed.push(key);
            }
            WindowEvent::WriteFailed {
                key,
                payload,
                error,
            } => {
                let words = ["leaked", "still has"];
                let kept = words.iter().any(|w| error.provider_message.contains(w));
                self.paid(key, payload, kept);
                self.failed.push((key, error.errno.get()));
            }
            WindowEvent::Read { key, into } => {
                self.filled(key, Some(into));
                self.completed.push(key);
            }
            WindowEvent::ReadFailed { key, into, error } => {
                self.filled(key, into);
                self.failed.push((key, error.errno.get()));
            }
            other => self.heard.push(other),
        }
    }

    /// A read's destination is back; `None`: it was leaked.
    fn filled(&mut self, key: u64, into: Option<Destination>) {
        let index = self.owed.remove(&key);
        let index = index.unwrap_or_else(|| panic!("key {key} was not owed"));
        let Some(into) = into else { return };
        let buffer = into.into_buffer().expect("a buffer");
        assert_eq!(buffer.index(), index, "another buffer for key {key}");
        self.reads.push((key, buffer[..8].try_into().unwrap()));
    }

    fn paid(&mut self, key: u64, payload: Payload, leaked: bool) {
        let index = self.owed.remove(&key);
        let index = index.unwrap_or_else(|| panic!("key {key} was not owed"));
        if leaked {
            assert!(payload.segments().is_empty(), "a leaked payload came back");
            return;
        }
        let buffer = payload.into_buffer().expect("one buffer");
        assert_eq!(buffer.index(), index, "another buffer for key {key}");
        assert_eq!(buffer[..8], key.to_le_bytes(), "another content");
    }

    pub(crate) fn poll_receiver(&mut self) {
        let mut events = Vec::new();
        if let Some(receiver) = &mut self.receiver {
            receiver.wait().wake();
            // A failed receiver says so in its events, too.
            let _ = receiver.poll(&mut events);
        }
        for event in events {
            match event {
                ReceiveEvent::Message(message) => {
                    let key = self.check_message(&message);
                    self.received.push(key);
                    if !self.drop_at_once {
                        self.held.push(message);
                    }
                }
                other => self.said.push(other),
            }
        }
    }

    fn check_message(&self, message: &Message) -> u64 {
        let bytes = message.payload();
        let key = &bytes[bytes.len() - 8..];
        let key = u64::from_le_bytes(key.try_into().unwrap());
        let header = key.to_be_bytes();
        if self.setup.header_mode != HeaderMode::Raw {
            assert_eq!(message.header(), header);
            assert!(
                [8, LONG_BYTES].contains(&bytes.len()),
                "{} bytes",
                bytes.len()
            );
        } else {
            // One run, or two messages.
            assert_eq!(
                [message.header(), bytes].concat(),
                [header, key.to_le_bytes()].concat()
            );
        }
        key
    }

    /// Delivers and polls until nothing moves.
    pub(crate) fn settle(&mut self) {
        let mut quiet = 0;
        while quiet < 3 {
            let before = self.progress();
            let moved = self.net.deliver(usize::MAX);
            self.poll_receiver();
            self.poll_sender();
            quiet = if moved > 0 || self.progress() != before {
                0
            } else {
                quiet + 1
            };
        }
    }

    fn progress(&self) -> (usize, usize, usize, bool, bool) {
        let outcomes = self.completed.len() + self.failed.len();
        (
            outcomes,
            self.received.len(),
            self.said.len(),
            self.connected,
            self.ended.is_some(),
        )
    }

    /// The invariant.
    #[track_caller]
    pub(crate) fn check(&self) {
        self.net.check();
        let Some(sender) = &self.sender else { return };
        let s = sender.stats();
        assert_eq!(
            s.posted,
            s.completed + s.failed + s.abandoned + s.in_flight,
            "{s:?}"
        );
        assert_eq!(s.in_flight, self.owed.len() as u64, "{s:?}");
        assert_eq!(s.completed, self.completed.len() as u64);
        assert_eq!(s.failed, self.failed.len() as u64);
        let mut pending = sender.pending();
        pending.sort_unstable();
        let mut owed: Vec<_> = self.owed.keys().copied().collect();
        owed.sort_unstable();
        assert_eq!(pending, owed);
    }

    /// Nothing is out: payloads, header slots.
    #[track_caller]
    pub(crate) fn check_all_back(&self) {
        self.check();
        assert!(self.owed.is_empty(), "owed: {:?}", self.owed);
        assert_eq!(self.payloads.free_count(), self.payloads.slots());
        assert_eq!(self.headers.free_count(), self.headers.capacity());
    }

    /// Drops both endpoints, the sender first; nothing may be left.
    #[track_caller]
    pub(crate) fn end(&mut self) {
        self.sender = None;
        self.receiver = None;
        self.held.clear();
        self.said.clear();
        self.net.check();
        assert_eq!(self.payloads.free_count(), self.payloads.slots());
        assert_eq!(self.headers.free_count(), self.headers.capacity());
        assert_eq!(self.pool.free_count(), self.pool.slots());
    }

    /// The connection at the receiver's end, at the net.
    pub(crate) fn far_conn(&self) -> ConnKey {
        self.conn + 1
    }
}

/// A pool over memory whose end is logged.
pub(crate) fn payload_pool(net: &Net, number: usize, slots: u32) -> SharedBufferManager {
    pool_with_room(net, number, slots, 0)
}

/// The same with room for headers.
pub(crate) fn pool_with_room(
    net: &Net,
    number: usize,
    slots: u32,
    headroom: usize,
) -> SharedBufferManager {
    let stride = (SLOT_BYTES + headroom).next_multiple_of(64);
    let bytes = (slots as usize + 1) * stride + 64;
    let (base, keep) = net.keep_alive(number, bytes);
    // SAFETY: `keep` owns the memory and goes with the region; nobody else has it, and it is
    // initialised.
    let region = unsafe { Region::external(base, bytes, keep) }.unwrap();
    let config = SharedBufferConfig {
        slots: Some(slots),
        headroom,
        ..SharedBufferConfig::new(SLOT_BYTES)
    };
    // SAFETY: as above.
    unsafe { SharedBufferManager::new_external(region, config) }.unwrap()
}

/// What a sender is made with: it has the headers of the rig.
pub(crate) fn send_settings(
    setup: &Setup,
    abandoned: &Arc<Mutex<Vec<u64>>>,
    headers: &HeaderSlotManager,
) -> HubSettings {
    let abandoned = Arc::clone(abandoned);
    let sends = OutboundSettings {
        headers: headers.clone(),
        header_mode: setup.header_mode,
        depth: setup.depth,
        total: setup.depth,
        level: setup.level,
        shape: setup.shape,
        inject: setup.inject,
        packing: setup.packing,
        gather: setup.gather,
        deadline: setup.send_deadline,
        policy: setup.policy,
        staging: None,
        long: true,
        on_abandoned: Some(Box::new(move |_, key| {
            abandoned.lock().unwrap().push(key);
            panics();
        })),
    };
    let mut connection = ConnectionSettings::default()
        .connect_timeout(setup.handshake_timeout)
        .close_timeout(LONG)
        .windows(16);
    connection.liveness = setup.liveness;
    core::settings(sends, &connection)
}

pub(crate) fn receive_settings(setup: &Setup) -> HubSettings {
    HubSettings {
        credits: setup.receive_depth,
        max_connections: setup.max_connections,
        max_of_host: None,
        max_message: SLOT_BYTES as u64 * 2,
        ask: setup.ask,

        accepts: true,
        handshake_timeout: setup.handshake_timeout,
        close_timeout: LONG,
        header_mode: setup.asked_mode,
        windows: WindowSettings {
            long: setup.long.is_some(),
            ..setup.windows
        },
        long: setup.long.map(|(slots, size)| LongMessages {
            device: setup.long_device.clone(),
            ..LongMessages::new(SharedBufferManager::allocate(slots, size).unwrap())
                .deadline(setup.long_deadline)
        }),
        sends: None,
        publishing: false,
        liveness: LivenessTimeouts::ENDLESS,
        fence_timeout: FENCE_TIMEOUT_DEFAULT,
        watch: TcpWatch::default(),
        watched: crate::metrics::registry::WatchedAs::of(crate::metrics::WatchedKind::Duplex),
    }
}

/// A gate that a test opens.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeGate(Arc<GateState>);

#[derive(Debug, Default)]
struct GateState {
    open: AtomicBool,
    failed: AtomicBool,
    polls: AtomicUsize,
    settled: AtomicBool,
}

impl FakeGate {
    pub(crate) fn open(&self) {
        self.0.open.store(true, Ordering::Relaxed);
    }

    pub(crate) fn fail(&self) {
        self.0.failed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn polls(&self) -> usize {
        self.0.polls.load(Ordering::Relaxed)
    }

    /// Its payload went back to its owner.
    pub(crate) fn is_settled(&self) -> bool {
        self.0.settled.load(Ordering::Relaxed)
    }
}

impl Gate for FakeGate {
    fn poll(&mut self) -> Result<bool, GateError> {
        assert!(!self.is_settled(), "asked after its end");
        self.0.polls.fetch_add(1, Ordering::Relaxed);
        match self.0.failed.load(Ordering::Relaxed) {
            true => Err(GateError("the event failed".to_owned())),
            false => Ok(self.0.open.load(Ordering::Relaxed)),
        }
    }

    fn settle(&mut self) -> Result<(), GateError> {
        assert!(!self.0.settled.swap(true, Ordering::Relaxed), "twice");
        Ok(())
    }
}

/// What each hook of a test does behind what it is there for: it must take nothing with it. Without
/// a word of the panic hook's.
pub(crate) fn panics() {
    std::panic::resume_unwind(Box::new("a hook of a test"));
}

/// A time that no test reaches.
pub(crate) fn far_future() -> Instant {
    Instant::now() + LONG
}
