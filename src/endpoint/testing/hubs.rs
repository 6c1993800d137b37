//! Endpoints with many connections that send and receive, over the fake link, with a model of what
//! each key is owed; for tests.

#![allow(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::buffer::{
    Buffer, HeaderSlotConfig, HeaderSlotManager, Payload, PoolShare, SharedBufferManager,
};
use crate::clock::Clock;
use crate::endpoint::error::{Refused, SendErrorKind};
use crate::endpoint::event::{
    ConnectionEvent, DeadlinePolicy, Inject, Level, Packing, ReceiveEvent,
};
use crate::endpoint::hub::in_flight_max::InFlightMax;
use crate::endpoint::hub::{Hub, HubSettings, OutboundSettings, WindowSettings};
use crate::endpoint::inbox::HubInbox;
use crate::endpoint::link::ConnKey;
use crate::endpoint::link::fake::{FakeLink, FakeWait, Net, NetConfig, addr_of};
use crate::endpoint::message::Message;
use crate::endpoint::message_ref::MessageRef;
use crate::endpoint::testing::rig::{
    FakeGate, LONG, LONG_BYTES, SLOT_BYTES, Setup, panics, pool_with_room, receive_settings,
};
use crate::error::CompletionError;
use crate::fabric::Shape;
use crate::id::ConnectionId;
use crate::protocol::connection::{CloseReason, Form};
use crate::protocol::wire::HeaderMode;

/// What all hubs of a net are made with.
#[derive(Clone, Debug)]
pub(crate) struct HubSetup {
    pub(crate) net: NetConfig,
    pub(crate) depth: u32,
    pub(crate) total: u32,
    pub(crate) header_slots: u32,
    pub(crate) receive_depth: u32,
    pub(crate) receive_slots: u32,
    /// One pool of those is for all hubs, of which each has so many at least, and at most.
    pub(crate) share: Option<(u32, u32)>,
    pub(crate) max_connections: u32,
    pub(crate) shape: Option<Shape>,
    pub(crate) packing: Packing,
    pub(crate) deadline: Option<Duration>,
    pub(crate) policy: DeadlinePolicy,
    /// Each has a domain of its own; else one domain serves them all.
    pub(crate) own_domains: bool,
    /// Windows that each may expose at once.
    pub(crate) windows: u32,
    /// They send messages that are too long for a receive.
    pub(crate) sends_long: bool,
    /// Slots for long messages that they take, and their size.
    pub(crate) long: Option<(u32, usize)>,
    /// How long one may take.
    pub(crate) long_deadline: Option<Duration>,
    pub(crate) clock: Clock,
}

impl Default for HubSetup {
    fn default() -> Self {
        Self {
            net: NetConfig::default(),
            depth: 4,
            total: 8,
            header_slots: 8,
            receive_depth: 4,
            receive_slots: 64,
            share: None,
            max_connections: 4,
            shape: None,
            packing: Packing::Off,
            deadline: None,
            policy: DeadlinePolicy::FailConnection,
            own_domains: false,
            windows: 0,
            sends_long: false,
            long: None,
            long_deadline: None,
            clock: Clock::held(),
        }
    }
}

impl HubSetup {
    pub(crate) fn of(form: Form) -> Self {
        Self {
            net: NetConfig {
                form,
                ..NetConfig::default()
            },
            ..Self::default()
        }
    }

    /// What a hub is opened with, for who opens none.
    pub(crate) fn settings_alone(&self) -> HubSettings {
        let headers = HeaderSlotManager::new(HeaderSlotConfig::default()).unwrap();
        self.settings(&headers, &Abandoned::default())
    }

    fn pool(&self) -> SharedBufferManager {
        SharedBufferManager::allocate(self.receive_slots, SLOT_BYTES * 2).unwrap()
    }

    fn share_of(&self, pool: &SharedBufferManager) -> PoolShare {
        match self.share {
            Some((least, most)) => PoolShare::reserve(pool, least, most).unwrap(),
            None => pool.clone().into(),
        }
    }

    fn settings(&self, headers: &HeaderSlotManager, heard: &Abandoned) -> HubSettings {
        let heard = Arc::clone(heard);
        let on_abandoned = move |conn, key| {
            heard.lock().unwrap().push((conn, key));
            panics();
        };
        let base = Setup::default();
        let setup = Setup {
            receive_depth: self.receive_depth,
            max_connections: self.max_connections,
            windows: WindowSettings {
                windows: self.windows,
                ..base.windows
            },
            long: self.long,
            long_deadline: self.long_deadline,
            ..base
        };
        HubSettings {
            sends: Some(OutboundSettings {
                headers: headers.clone(),
                header_mode: HeaderMode::Prefixed,
                depth: self.depth,
                total: self.total,
                level: Level::Sent,
                shape: self.shape,
                inject: Inject::Auto,
                packing: self.packing,
                gather: true,
                deadline: self.deadline,
                policy: self.policy,
                staging: None,
                long: self.sends_long,
                on_abandoned: Some(Box::new(on_abandoned)),
            }),
            close_timeout: LONG,
            ..receive_settings(&setup)
        }
    }
}

type Abandoned = Arc<Mutex<Vec<(ConnectionId, u64)>>>;

/// One of them, with its application.
pub(crate) struct HubRig {
    pub(crate) core: Option<Hub<FakeLink>>,
    /// What came and was not taken, once it [received](Self::receive) some in batches.
    pub(crate) inbox: HubInbox,
    /// The number of its link.
    pub(crate) link: usize,
    pub(crate) payloads: SharedBufferManager,
    pub(crate) headers: HeaderSlotManager,
    pool: SharedBufferManager,
    /// Keys that are owed an outcome, with the slot of their payload.
    pub(crate) owed: HashMap<u64, (ConnectionId, u32)>,
    /// Keys whose outcome came without their payload.
    pub(crate) kept: HashMap<u64, u32>,
    pub(crate) completed: Vec<u64>,
    pub(crate) failed: Vec<u64>,
    /// Why, by key.
    pub(crate) errors: HashMap<u64, CompletionError>,
    pub(crate) late: Vec<u64>,
    pub(crate) connected: Vec<ConnectionId>,
    pub(crate) ended: HashMap<ConnectionId, CloseReason>,
    pub(crate) received: Vec<u64>,
    /// Messages that the application holds; `None`: it lets each go at once.
    pub(crate) held: Option<Vec<Message>>,
    pub(crate) writable: Vec<ConnectionId>,
    pub(crate) abandoned: Abandoned,
    /// By connection, the key of the last message, and its number.
    last_heard: HashMap<ConnectionId, (u64, u64)>,
}

impl HubRig {
    fn new(net: &Net, setup: &HubSetup, pool: SharedBufferManager) -> Self {
        let machine = setup.own_domains.then(|| net.machine());
        let link = match &machine {
            Some(machine) => net.link_of_machine(machine, true),
            None => net.hub(),
        };
        let number = link.id();
        let share = setup.share_of(&pool);
        // Room for a prefix of 2 bytes and a header of 8.
        let payloads = pool_with_room(net, 1000 + number, 32, 10);
        let domain = machine.as_deref().unwrap_or_else(|| net.near());
        payloads.region().register_with(domain).unwrap();
        let config = HeaderSlotConfig {
            slots: setup.header_slots,
            slot_size: 64,
        };
        let headers = HeaderSlotManager::new(config).unwrap();
        let abandoned = Abandoned::default();
        let settings = setup.settings(&headers, &abandoned);
        let form = setup.net.form;
        // Of two messages each, the second finds room behind the first.
        if form == Form::Msg && setup.shape != Some(Shape::TwoMessages) {
            let most = InFlightMax::of_hub(&settings, form, share.most());
            net.fix_queues(number, most.queue_sizes().each);
        }
        let core = Hub::listen(
            link,
            Arc::new(FakeWait),
            setup.clock.clone(),
            share,
            settings,
        )
        .unwrap();
        Self {
            core: Some(core),
            inbox: HubInbox::new(None),
            link: number,
            payloads,
            headers,
            pool,
            owed: HashMap::new(),
            kept: HashMap::new(),
            completed: Vec::new(),
            failed: Vec::new(),
            errors: HashMap::new(),
            late: Vec::new(),
            connected: Vec::new(),
            ended: HashMap::new(),
            received: Vec::new(),
            held: None,
            writable: Vec::new(),
            abandoned,
            last_heard: HashMap::new(),
        }
    }

    pub(crate) fn core(&mut self) -> &mut Hub<FakeLink> {
        self.core.as_mut().expect("not dropped yet")
    }

    pub(crate) fn payload(&self, key: u64) -> Buffer {
        let mut buffer = self.payloads.try_acquire().expect("a payload is free");
        buffer[..8].copy_from_slice(&key.to_le_bytes());
        buffer.freeze(8)
    }

    /// The same of `LONG_BYTES` bytes, the key in front and behind.
    pub(crate) fn long_payload(&self, key: u64) -> Buffer {
        let mut buffer = self.payloads.try_acquire().expect("a payload is free");
        buffer[..LONG_BYTES].fill(key as u8);
        buffer[..8].copy_from_slice(&key.to_le_bytes());
        buffer[LONG_BYTES - 8..LONG_BYTES].copy_from_slice(&key.to_le_bytes());
        buffer.freeze(LONG_BYTES)
    }

    /// Sends a message with this key; if it is refused, checks that everything came back.
    pub(crate) fn send(&mut self, id: ConnectionId, key: u64) -> Result<(), SendErrorKind> {
        let payload = self.payload(key);
        self.send_payload(id, key, payload)
    }

    /// The same of one that is too long for a receive, where the net's messages are shorter.
    pub(crate) fn send_long(&mut self, id: ConnectionId, key: u64) -> Result<(), SendErrorKind> {
        let payload = self.long_payload(key);
        self.send_payload(id, key, payload)
    }

    fn send_payload(
        &mut self,
        id: ConnectionId,
        key: u64,
        payload: Buffer,
    ) -> Result<(), SendErrorKind> {
        let index = payload.index();
        let sent = self
            .core()
            .send_data(id, payload.into(), &key.to_be_bytes(), key);
        self.count(id, key, index, sent)
    }

    /// The same of one that waits for a gate, which this gives.
    pub(crate) fn send_gated(
        &mut self,
        id: ConnectionId,
        key: u64,
    ) -> Result<FakeGate, SendErrorKind> {
        let gate = FakeGate::default();
        let payload = self.payload(key);
        let index = payload.index();
        let payload = Payload::from(payload).behind(Box::new(gate.clone()));
        let sent = self.core().send_data(id, payload, &key.to_be_bytes(), key);
        self.count(id, key, index, sent).map(|()| gate)
    }

    /// Sends these at once, until one is refused; gives how many were taken, and what became of the
    /// next.
    pub(crate) fn send_batch(
        &mut self,
        id: ConnectionId,
        keys: std::ops::Range<u64>,
    ) -> (usize, Option<SendErrorKind>) {
        let payloads: Vec<_> = keys.map(|key| (key, self.payload(key))).collect();
        let given: Vec<_> = payloads
            .iter()
            .map(|(key, it)| (*key, it.index()))
            .collect();
        let messages = payloads
            .into_iter()
            .map(|(key, payload)| (Payload::from(payload), key.to_be_bytes(), key));
        let (sent, refused) = self.core().send_batch(id, messages);
        for &(key, index) in &given[..sent] {
            assert!(self.owed.insert(key, (id, index)).is_none(), "{key} in use");
        }
        let refused = refused.map(
            |Refused {
                 kind,
                 given: payload,
                 key,
             }| {
                let index = payload.into_buffer().expect("what was given").index();
                assert_eq!((key, index), given[sent]);
                kind
            },
        );
        (sent, refused)
    }

    pub(crate) fn count(
        &mut self,
        id: ConnectionId,
        key: u64,
        index: u32,
        sent: Result<(), Refused<Payload>>,
    ) -> Result<(), SendErrorKind> {
        match sent {
            Ok(()) => {
                assert!(self.owed.insert(key, (id, index)).is_none(), "{key} in use");
                Ok(())
            }
            Err(refused) => {
                assert_eq!(refused.key, key);
                let payload = refused.given.into_buffer().expect("what was given");
                assert_eq!(payload.index(), index);
                Err(refused.kind)
            }
        }
    }

    pub(crate) fn poll(&mut self) {
        let mut events = Vec::new();
        if let Some(core) = &mut self.core {
            core.wait().wake();
            // A failed endpoint says so in its events, too.
            let _ = self.inbox.poll(core, &mut events);
        }
        self.absorb(events);
    }

    /// Takes so many messages at most of the next batch, of which each `keep`th is kept, if that is
    /// asked for; gives how many there were.
    pub(crate) fn receive(&mut self, most: usize, keep: usize) -> usize {
        let Some(mut core) = self.core.take() else {
            return 0;
        };
        core.wait().wake();
        let mut inbox = std::mem::replace(&mut self.inbox, HubInbox::new(None));
        let (mut events, mut taken) = (Vec::new(), 0);
        // A failed endpoint says so in its events, too.
        if let Ok(batch) = inbox.receive(&mut core, &mut events) {
            // What came before the messages.
            events.drain(..).for_each(|event| self.take(event));
            for message in batch.messages().take(most) {
                taken += 1;
                let kept = usize::is_multiple_of(taken, keep.max(1));
                self.take_message(message, || kept.then(|| message.to_message()));
            }
        }
        events.drain(..).for_each(|event| self.take(event));
        (self.core, self.inbox) = (Some(core), inbox);
        self.check();
        taken
    }

    /// Each key once, with its payload, and nothing of a connection after its end but payloads that
    /// were kept.
    pub(crate) fn absorb(&mut self, events: Vec<ReceiveEvent>) {
        for event in events {
            self.take(event);
        }
        self.check();
    }

    fn take(&mut self, event: ReceiveEvent) {
        if let Some(id) = named(&event) {
            assert!(!self.ended.contains_key(&id), "{event:?} after the end");
        }
        match event {
            ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_)) => {
                self.connected.push(connection)
            }
            ReceiveEvent::Completed {
                connection,
                key,
                payload,
            } => {
                let index = self.paid(connection, key);
                came_back(key, index, payload);
                self.completed.push(key);
            }
            ReceiveEvent::Failed {
                connection,
                key,
                payload,
                error,
                ..
            } => {
                let index = self.paid(connection, key);
                self.errors.insert(key, error);
                if payload.segments().is_empty() {
                    self.kept.insert(key, index);
                } else {
                    came_back(key, index, payload);
                }
                self.failed.push(key);
            }
            ReceiveEvent::Released { key, payload, .. } => {
                let index = self.kept.remove(&key).expect("a payload that was kept");
                came_back(key, index, payload);
            }
            ReceiveEvent::Connection(connection, ConnectionEvent::Disconnected(reason)) => {
                let owed: Vec<_> = self
                    .owed
                    .iter()
                    .filter(|(_, (id, _))| *id == connection)
                    .collect();
                assert!(owed.is_empty(), "the end, but owed: {owed:?}");
                self.ended.insert(connection, reason);
            }
            ReceiveEvent::Message(message) => {
                self.take_message((&message).into(), || None);
                if let Some(held) = &mut self.held {
                    held.push(message);
                }
            }
            ReceiveEvent::Late { key, .. } => {
                assert!(self.owed.contains_key(&key), "late, but not owed: {key}");
                self.late.push(key);
            }
            ReceiveEvent::Writable { connection } => self.writable.push(connection),
            _ => {}
        }
    }

    fn take_message(&mut self, message: MessageRef<'_>, keep: impl FnOnce() -> Option<Message>) {
        let (id, bytes) = (message.connection(), message.payload());
        assert!(
            !self.ended.contains_key(&id),
            "{message:?} after the end of its connection"
        );
        let key = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(message.header(), key.to_be_bytes());
        if bytes.len() > 8 {
            assert_eq!(bytes.len(), LONG_BYTES);
            let middle = &bytes[8..LONG_BYTES - 8];
            assert!(middle.iter().all(|byte| *byte == key as u8), "{key}");
            assert_eq!(bytes[LONG_BYTES - 8..], key.to_le_bytes());
        }
        let before = self.last_heard.insert(id, (key, message.sequence()));
        assert!(
            before.is_none_or(|(last, _)| last < key),
            "{key} after {before:?}"
        );
        let number = before.map_or(0, |(_, number)| number);
        assert_eq!(message.sequence(), number + 1, "numbers without a gap");
        self.received.push(key);
        if let Some(held) = &mut self.held {
            held.extend(keep());
        }
    }

    fn paid(&mut self, id: ConnectionId, key: u64) -> u32 {
        let owed = self.owed.remove(&key);
        let (of, index) = owed.unwrap_or_else(|| panic!("key {key} was not owed"));
        assert_eq!(of, id, "another connection's key");
        index
    }

    /// The invariant.
    #[track_caller]
    pub(crate) fn check(&self) {
        let Some(core) = &self.core else { return };
        let s = core.send_stats();
        assert_eq!(s.posted, s.completed + s.failed + s.in_flight, "{s:?}");
        if !self.inbox.has_room() {
            // Outcomes wait behind messages.
            return;
        }
        assert_eq!(s.in_flight, self.owed.len() as u64, "{s:?}");
        assert_eq!(s.completed, self.completed.len() as u64);
        assert_eq!(s.failed, self.failed.len() as u64);
        let pending: HashSet<_> = core.pending_sends().into_iter().collect();
        let owed: HashSet<_> = self.owed.iter().map(|(key, (id, _))| (*id, *key)).collect();
        assert_eq!(pending, owed);
    }

    /// Says goodbye at once; everything that was not told yet is.
    pub(crate) fn close(&mut self) {
        let Some(core) = &mut self.core else { return };
        let now = core.clock().now();
        let came = core.close(now).unwrap();
        let inbox = std::mem::replace(&mut self.inbox, HubInbox::new(None));
        let events = inbox.finish(came, core.clock(), now);
        self.absorb(events);
    }

    /// Drops the endpoint. What waits in its inbox had its outcome.
    pub(crate) fn drop_core(&mut self) {
        self.core = None;
        let rest = self.inbox.take_rest();
        self.absorb(rest);
    }

    /// Payloads and header slots are all there.
    #[track_caller]
    pub(crate) fn check_all_back(&self) {
        assert!(
            self.owed.is_empty() && self.kept.is_empty(),
            "{:?} {:?}",
            self.owed,
            self.kept
        );
        assert_eq!(self.payloads.free_count(), self.payloads.slots());
        assert_eq!(self.headers.free_count(), self.headers.capacity());
    }
}

/// The connection that an event is about, if its end has to come later.
fn named(event: &ReceiveEvent) -> Option<ConnectionId> {
    match event {
        ReceiveEvent::Connection(connection, ConnectionEvent::Connected(_))
        | ReceiveEvent::Completed { connection, .. }
        | ReceiveEvent::Failed { connection, .. }
        | ReceiveEvent::Late { connection, .. }
        | ReceiveEvent::Writable { connection }
        | ReceiveEvent::Connection(connection, ConnectionEvent::PeerClosing)
        | ReceiveEvent::Connection(connection, ConnectionEvent::Disconnected(_)) => {
            Some(*connection)
        }
        ReceiveEvent::Message(message) => Some(message.connection()),
        _ => None,
    }
}

fn came_back(key: u64, index: u32, payload: Payload) {
    let buffer = payload.into_buffer().expect("one buffer");
    assert_eq!(buffer.index(), index, "another buffer for key {key}");
    assert_eq!(buffer[..8], key.to_le_bytes(), "another content");
}

/// Hubs on one net.
pub(crate) struct Hubs {
    pub(crate) net: Net,
    pub(crate) hubs: Vec<HubRig>,
}

impl Hubs {
    pub(crate) fn new(setup: &HubSetup, count: usize) -> Self {
        Self::with(&vec![setup; count])
    }

    /// Each with settings of its own; the net is that of the first.
    pub(crate) fn with(setups: &[&HubSetup]) -> Self {
        let net = Net::new(setups[0].net);
        let shared = setups[0].pool();
        let hubs = setups
            .iter()
            .map(|setup| {
                let own = setup.share.is_none().then(|| setup.pool());
                HubRig::new(&net, setup, own.unwrap_or_else(|| shared.clone()))
            })
            .collect();
        Self { net, hubs }
    }

    /// Hub 0 connected to each of the others, with the ids at its end.
    pub(crate) fn star(setup: &HubSetup, count: usize) -> (Self, Vec<ConnectionId>) {
        let mut hubs = Self::new(setup, count);
        let ids: Vec<_> = (1..count).map(|to| hubs.dial(0, to)).collect();
        hubs.settle();
        hubs.hubs[0].connected.sort_unstable();
        assert_eq!(hubs.hubs[0].connected, ids, "{:?}", hubs.hubs[0].ended);
        (hubs, ids)
    }

    pub(crate) fn dial(&mut self, from: usize, to: usize) -> ConnectionId {
        let addr = addr_of(self.hubs[to].link);
        self.hubs[from].core().dial(&addr).unwrap()
    }

    /// The two ends, at the net, of the connection of two hubs that have one: the first one's end,
    /// and the second one's.
    pub(crate) fn ends(&self, near: usize, far: usize) -> (ConnKey, ConnKey) {
        let of = |conn: ConnKey, hub: usize| self.net.link_of(conn) == self.hubs[hub].link;
        let pairs = self.net.pairs();
        let found = pairs.iter().find(|(a, b)| of(*a, near) && of(*b, far));
        *found.expect("they are connected")
    }

    pub(crate) fn poll_all(&mut self) {
        self.hubs.iter_mut().for_each(HubRig::poll);
        self.net.check();
    }

    /// Delivers and polls until nothing moves.
    pub(crate) fn settle(&mut self) {
        let mut quiet = 0;
        while quiet < 3 {
            let before = self.progress();
            let moved = self.net.deliver(usize::MAX);
            self.poll_all();
            quiet = if moved > 0 || self.progress() != before {
                0
            } else {
                quiet + 1
            };
        }
    }

    fn progress(&self) -> Vec<[usize; 6]> {
        let of = |hub: &HubRig| {
            [
                hub.completed.len(),
                hub.failed.len(),
                hub.received.len(),
                hub.connected.len(),
                hub.ended.len(),
                hub.kept.len(),
            ]
        };
        self.hubs.iter().map(of).collect()
    }

    /// Drops all; nothing may be left.
    #[track_caller]
    pub(crate) fn end(mut self) {
        for hub in &mut self.hubs {
            (hub.core, hub.held) = (None, None);
            hub.inbox = HubInbox::new(None);
            self.net.check();
            assert_eq!(hub.payloads.free_count(), hub.payloads.slots());
            assert_eq!(hub.headers.free_count(), hub.headers.capacity());
        }
        for hub in &self.hubs {
            assert_eq!(hub.pool.free_count(), hub.pool.slots());
        }
    }
}
