//! A publisher and its subscribers over the fake link, with a model of what each key is owed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::core::PublishCore;
use super::event::{Publication, PublishEvent};
use super::policy::{DropReason, PeerOutcome, SlowPolicy};
use super::settings::PublishSettings;
use super::subscribe_core::{SubscribeCore, SubscribeSettings};
use super::subscribe_event::{PublisherId, SubscribeEvent};
use super::table::SubscriptionLimits;
use super::wanted::SubscribeError;
use crate::buffer::{
    Buffer, DeviceBufferManager, HeaderSlotConfig, HeaderSlotManager, Payload, SharedBufferManager,
};
use crate::clock::Clock;
use crate::cuda::Stream;
use crate::endpoint::error::{Blocked, SendErrorKind};
use crate::endpoint::event::{ConnectionEvent, DeadlinePolicy, Inject, Level, Packing};
use crate::endpoint::hub::{Hub, HubSettings, OutboundSettings};
use crate::endpoint::link::fake::{CloseMode, FakeLink, FakeWait, Net, NetConfig, addr_of};
use crate::endpoint::link::{PostRefused, RmaLimits};
use crate::endpoint::message::Message;
use crate::endpoint::reconnect::ReconnectPolicy;
use crate::endpoint::testing::rig::{
    FakeGate, LONG, LONG_BYTES, SLOT_BYTES, Setup, far_future, panics, payload_pool,
    receive_settings,
};
use crate::id::ConnectionId;
use crate::protocol::connection::{CloseReason, Form, LONG_MESSAGES_MAX};
use crate::protocol::wire::{HeaderMode, SubscriptionOutcome};

mod batch;
mod gate;
mod long;

const FORMS: [Form; 2] = [Form::Msg, Form::Rdm];
const TAG: u64 = 0x1007;

/// What a stage is made with.
#[derive(Clone, Debug)]
struct Stage {
    net: NetConfig,
    subscribers: usize,
    slow: SlowPolicy,
    publications: u32,
    depth: u32,
    packing: Packing,
    header_slots: u32,
    receive_depth: u32,
    receive_slots: u32,
    limits: SubscriptionLimits,
    deadline: Option<Duration>,
    header_mode: HeaderMode,
    reconnect: ReconnectPolicy,
    /// Slots for long publications, and their size, of all subscribers but the last.
    long: Option<(u32, usize)>,
    /// Where those land in a device's memory.
    long_device: Option<DeviceBufferManager>,
    clock: Clock,
}

impl Stage {
    fn of(form: Form) -> Self {
        let net = NetConfig {
            form,
            ..NetConfig::default()
        };
        Self {
            net,
            subscribers: 3,
            slow: SlowPolicy::Drop,
            publications: 8,
            depth: 4,
            packing: Packing::Off,
            header_slots: 8,
            receive_depth: 4,
            // The depth and the reserve; one more is for hellos that come to whomever.
            receive_slots: if form == Form::Rdm { 8 } else { 7 },
            limits: SubscriptionLimits {
                per_connection: 4,
                in_all: 8,
            },
            deadline: None,
            header_mode: HeaderMode::Prefixed,
            reconnect: ReconnectPolicy::off(),
            long: None,
            long_device: None,
            clock: Clock::held(),
        }
    }

    /// Over a provider whose messages have 100 bytes, and whose pieces of long ones 64.
    fn long(form: Form) -> Self {
        let base = Self::of(form);
        let rma = base.net.rma.map(|rma| RmaLimits {
            iov_limit: 2,
            max_bytes: 64,
            ordered: form == Form::Msg,
            ..rma
        });
        Self {
            net: NetConfig {
                max_message: 100,
                rma,
                ..base.net
            },
            receive_slots: base.receive_slots + LONG_MESSAGES_MAX as u32,
            long: Some((2, 4096)),
            ..base
        }
    }

    fn publisher_settings(&self, headers: &HeaderSlotManager) -> HubSettings {
        let setup = Setup {
            receive_depth: 0,
            max_connections: 4,
            ..Setup::default()
        };
        HubSettings {
            max_message: 0,
            header_mode: None,
            sends: Some(OutboundSettings {
                headers: headers.clone(),
                header_mode: self.header_mode,
                depth: self.depth,
                total: self.depth * 4,
                level: Level::Sent,
                shape: None,
                inject: Inject::Auto,
                packing: self.packing,
                gather: true,
                deadline: self.deadline,
                policy: DeadlinePolicy::FailConnection,
                staging: None,
                long: true,
                on_abandoned: None,
            }),
            publishing: true,
            close_timeout: LONG,
            ..receive_settings(&setup)
        }
    }

    fn subscriber_settings(&self, number: usize) -> HubSettings {
        let setup = Setup {
            receive_depth: self.receive_depth,
            max_connections: 1,
            long: self.long.filter(|_| number + 1 < self.subscribers),
            long_device: self.long_device.clone(),
            ..Setup::default()
        };
        HubSettings {
            accepts: false,
            publishing: true,
            close_timeout: LONG,
            ..receive_settings(&setup)
        }
    }

    fn open(self) -> Play {
        Play::new(self)
    }

    /// All connected, and subscribed to `TAG`.
    fn ready(self) -> Play {
        let mut play = self.open();
        for n in 0..play.subscribers.len() {
            play.subscribe(n, TAG).unwrap();
        }
        play.settle();
        for subscriber in &play.subscribers {
            assert_eq!(subscriber.on, [TAG]);
        }
        assert_eq!(play.publisher().subscribers(TAG), play.subscribers.len());
        play
    }
}

struct Subscriber {
    core: Option<SubscribeCore<FakeLink>>,
    pool: SharedBufferManager,
    /// For long publications.
    long: Option<SharedBufferManager>,
    publisher: PublisherId,
    /// Tags that it was told it has.
    on: Vec<u64>,
    refused: Vec<(u64, SubscriptionOutcome)>,
    /// Tag, number, key.
    received: Vec<(u64, u64, u64)>,
    missed: u64,
    /// Header and payload of what came to a device's memory.
    landed: Vec<(Vec<u8>, Vec<u8>)>,
    /// Holds what comes.
    holds: bool,
    held: VecDeque<Message>,
    cuts: Vec<CloseReason>,
    ended: Option<CloseReason>,
}

impl Subscriber {
    fn poll(&mut self) {
        let mut events = Vec::new();
        if let Some(core) = &mut self.core {
            core.core().wait().wake();
            let _ = core.poll(&mut events);
        }
        for event in events {
            self.take(event);
        }
    }

    fn take(&mut self, event: SubscribeEvent) {
        match event {
            SubscribeEvent::Subscribed { tag, .. } => self.on.push(tag),
            SubscribeEvent::Unsubscribed { tag, .. } => self.on.retain(|on| *on != tag),
            SubscribeEvent::Refused { tag, outcome, .. } => self.refused.push((tag, outcome)),
            SubscribeEvent::Publication {
                tag,
                number,
                missed,
                message,
                ..
            } => {
                let key = u64::from_le_bytes(message.payload()[..8].try_into().unwrap());
                assert_eq!(message.header(), key.to_be_bytes());
                assert_eq!(message.payload(), bytes_of(key, message.payload().len()));
                self.received.push((tag, number, key));
                self.missed += missed;
                if self.holds {
                    self.held.push_back(message);
                }
            }
            SubscribeEvent::DevicePublication { message, .. } => {
                let payload = message.payload();
                let mut bytes = vec![0; payload.len()];
                let stream = Stream::new(payload.device()).unwrap();
                payload.copy_to_host(&mut bytes, &stream).unwrap();
                self.landed.push((message.header().to_vec(), bytes));
            }
            SubscribeEvent::Connection(_, ConnectionEvent::Reconnecting { reason, .. }) => {
                self.cuts.push(reason);
                self.on.clear();
            }
            SubscribeEvent::Connection(_, ConnectionEvent::Disconnected(reason)) => {
                self.ended = Some(reason)
            }
            _ => {}
        }
    }

    fn keys(&self) -> Vec<u64> {
        self.received.iter().map(|(_, _, key)| *key).collect()
    }
}

/// The payload of a key, of 8 bytes or more.
fn bytes_of(key: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![key as u8; len];
    bytes[..8].copy_from_slice(&key.to_le_bytes());
    bytes[len - 8..].copy_from_slice(&key.to_le_bytes());
    bytes
}

/// A key that was accepted.
#[derive(Debug)]
struct Owed {
    index: u32,
    subscribers: u32,
    outcomes: BTreeMap<ConnectionId, PeerOutcome>,
}

struct Play {
    net: Net,
    core: Option<PublishCore<FakeLink>>,
    /// The number of the publisher's link.
    link: usize,
    clock: Clock,
    payloads: SharedBufferManager,
    headers: HeaderSlotManager,
    owed: HashMap<u64, Owed>,
    /// Key; sent, dropped, failed.
    over: Vec<(u64, [u32; 3])>,
    outcomes: Vec<(u64, ConnectionId, PeerOutcome)>,
    connected: Vec<ConnectionId>,
    ended: Vec<(ConnectionId, CloseReason, u32)>,
    /// Subscriptions that went with a connection whose end comes next.
    gone: HashMap<ConnectionId, u32>,
    late: Vec<u64>,
    writable: usize,
    abandoned: Arc<Mutex<Vec<u64>>>,
    /// Of publications that had one.
    gates: Vec<FakeGate>,
    subscribers: Vec<Subscriber>,
}

impl Play {
    fn new(stage: Stage) -> Self {
        let net = Net::new(stage.net);
        let link = net.hub();
        let number = link.id();
        let payloads = payload_pool(&net, 1000, 32);
        payloads.region().register_with(net.near()).unwrap();
        let config = HeaderSlotConfig {
            slots: stage.header_slots,
            slot_size: 64,
        };
        let headers = HeaderSlotManager::new(config).unwrap();
        let pool = SharedBufferManager::allocate(128, 128).unwrap();
        let settings = stage.publisher_settings(&headers);
        let core = Hub::listen(
            link,
            Arc::new(FakeWait),
            stage.clock.clone(),
            pool,
            settings,
        )
        .unwrap();
        let abandoned = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&abandoned);
        let settings = PublishSettings {
            publications: stage.publications,
            limits: stage.limits,
            slow: stage.slow,
            tell_sent: true,
            headers: headers.clone(),
            on_abandoned: Some(Box::new(move |key| {
                heard.lock().unwrap().push(key);
                panics();
            })),
        };
        let core = PublishCore::new(core, settings);
        let subscribers = (0..stage.subscribers).map(|n| subscriber(&net, &stage, (n, number)));
        Self {
            core: Some(core),
            link: number,
            clock: stage.clock.clone(),
            payloads,
            headers,
            owed: HashMap::new(),
            over: Vec::new(),
            outcomes: Vec::new(),
            connected: Vec::new(),
            ended: Vec::new(),
            gone: HashMap::new(),
            late: Vec::new(),
            writable: 0,
            abandoned,
            gates: Vec::new(),
            subscribers: subscribers.collect(),
            net,
        }
    }

    fn publisher(&mut self) -> &mut PublishCore<FakeLink> {
        self.core.as_mut().expect("not dropped yet")
    }

    fn subscribe(&mut self, n: usize, tag: u64) -> Result<(), SubscribeError> {
        let subscriber = &mut self.subscribers[n];
        let core = subscriber.core.as_mut().expect("not dropped yet");
        core.subscribe(subscriber.publisher, tag)
    }

    fn unsubscribe(&mut self, n: usize, tag: u64) -> Result<(), SubscribeError> {
        let subscriber = &mut self.subscribers[n];
        let core = subscriber.core.as_mut().expect("not dropped yet");
        core.unsubscribe(subscriber.publisher, tag)
    }

    fn payload(&self, key: u64) -> Buffer {
        self.payload_of(key, 8)
    }

    fn payload_of(&self, key: u64, len: usize) -> Buffer {
        let mut buffer = self.payloads.try_acquire().expect("a payload is free");
        buffer[..len].copy_from_slice(&bytes_of(key, len));
        buffer.freeze(len)
    }

    /// As [`publish`](Self::publish), of more bytes than a message of the net has.
    fn publish_long(&mut self, tag: u64, key: u64) -> Result<Publication, SendErrorKind> {
        let payload = self.payload_of(key, LONG_BYTES);
        let index = payload.index();
        self.publish_payload(tag, payload.into(), index, key)
    }

    /// Publishes with this key; if it is refused, checks that everything came back.
    fn publish(&mut self, tag: u64, key: u64) -> Result<Publication, SendErrorKind> {
        let payload = self.payload(key);
        let index = payload.index();
        self.publish_payload(tag, payload.into(), index, key)
    }

    /// The same behind a gate, which this gives. Staged, what goes out is a buffer of that pool,
    /// with what the gate would have copied.
    fn publish_gated(
        &mut self,
        tag: u64,
        key: u64,
        staging: Option<&SharedBufferManager>,
    ) -> Result<(FakeGate, Publication), SendErrorKind> {
        let payload = self.payload(key);
        let (index, gate) = (payload.index(), FakeGate::default());
        let payload = match staging {
            None => Payload::from(payload).behind(Box::new(gate.clone())),
            Some(staging) => {
                let mut wire = staging.try_acquire().expect("a slot is free");
                wire[..8].copy_from_slice(&key.to_le_bytes());
                Payload::from(payload).staged(wire.freeze(8).into(), Box::new(gate.clone()))
            }
        };
        let told = self.publish_payload(tag, payload, index, key)?;
        self.gates.push(gate.clone());
        Ok((gate, told))
    }

    /// Publishes these at once, until one is refused: what became of each, and why it stopped.
    fn publish_batch(
        &mut self,
        tag: u64,
        keys: std::ops::Range<u64>,
    ) -> (Vec<Publication>, Option<SendErrorKind>) {
        let payloads: Vec<_> = keys.map(|key| (key, self.payload(key))).collect();
        let given: Vec<_> = payloads.iter().map(|it| (it.0, it.1.index())).collect();
        let mut batch = payloads
            .into_iter()
            .map(|(key, payload)| (tag, payload.into(), key.to_be_bytes(), key));
        let mut told = Vec::new();
        let (sent, refused) = self.publisher().publish_batch(&mut batch, &mut told);
        drop(batch);
        assert_eq!(sent, told.len());
        for (publication, &(key, index)) in told.iter().zip(&given) {
            self.owe(publication, key, index);
        }
        let refused = refused.map(|refused| {
            let payload = refused.given.into_buffer().expect("a buffer");
            assert_eq!((refused.key, payload.index()), given[sent]);
            refused.kind
        });
        (told, refused)
    }

    /// A publication was taken: its key is owed an end.
    fn owe(&mut self, told: &Publication, key: u64, index: u32) {
        let owed = Owed {
            index,
            subscribers: told.posted + told.waiting + told.dropped,
            outcomes: BTreeMap::new(),
        };
        assert!(self.owed.insert(key, owed).is_none(), "{key} in use");
    }

    fn publish_payload(
        &mut self,
        tag: u64,
        payload: Payload,
        index: u32,
        key: u64,
    ) -> Result<Publication, SendErrorKind> {
        let header = key.to_be_bytes();
        match self.publisher().publish(tag, payload, &header, key) {
            Ok(told) => {
                self.owe(&told, key, index);
                Ok(told)
            }
            Err(refused) => {
                let payload = refused.given.into_buffer().expect("a buffer");
                assert_eq!((refused.key, payload.index()), (key, index));
                Err(refused.kind)
            }
        }
    }

    /// Posted, waiting, dropped.
    fn counts(&mut self, key: u64) -> [u32; 3] {
        let told = self.publish(TAG, key).unwrap();
        [told.posted, told.waiting, told.dropped]
    }

    fn poll_publisher(&mut self) {
        let mut events = Vec::new();
        if let Some(core) = &mut self.core {
            core.core().wait().wake();
            let _ = core.poll(&mut events);
        }
        for event in events {
            self.take(event);
        }
        self.net.check();
        let Some(core) = &self.core else { return };
        let s = core.stats();
        assert_eq!(s.published, s.over + s.open, "{s:?}");
        assert_eq!(s.open as usize, self.owed.len());
        assert!(s.sent + s.failed <= s.posted, "{s:?}");
    }

    fn take(&mut self, event: PublishEvent) {
        match event {
            PublishEvent::Connection(connection, ConnectionEvent::Connected(_)) => {
                self.connected.push(connection)
            }
            PublishEvent::Peer {
                key,
                connection,
                outcome,
            } => {
                let owed = self.owed.get_mut(&key).expect("an outcome that is owed");
                let before = owed.outcomes.insert(connection, outcome.clone());
                assert_eq!(before, None, "one outcome for each");
                self.outcomes.push((key, connection, outcome));
            }
            PublishEvent::Published {
                key,
                payload,
                outcomes,
            } => {
                let owed = self.owed.remove(&key).expect("one end for each key");
                let payload = payload.into_buffer().expect("a buffer");
                assert_eq!(payload.index(), owed.index, "the buffer that was given");
                assert_eq!(payload[..8], key.to_le_bytes());
                let count = |of: fn(&PeerOutcome) -> bool| {
                    owed.outcomes.values().filter(|it| of(it)).count() as u32
                };
                assert_eq!(outcomes.sent, count(|it| *it == PeerOutcome::Sent));
                let dropped = count(|it| matches!(it, PeerOutcome::Dropped(_)));
                assert_eq!(outcomes.dropped, dropped);
                assert_eq!(outcomes.subscribers(), owed.subscribers);
                let counts = [outcomes.sent, outcomes.dropped, outcomes.failed];
                self.over.push((key, counts));
            }
            PublishEvent::Late { key, .. } => self.late.push(key),
            PublishEvent::Writable => self.writable += 1,
            PublishEvent::SubscriptionsGone { connection, count } => {
                self.gone.insert(connection, count);
            }
            PublishEvent::Connection(connection, ConnectionEvent::Disconnected(reason)) => {
                self.connected.retain(|id| *id != connection);
                let subscriptions = self.gone.remove(&connection).unwrap_or(0);
                self.ended.push((connection, reason, subscriptions));
            }
            _ => {}
        }
    }

    fn poll_all(&mut self) {
        self.poll_publisher();
        self.subscribers.iter_mut().for_each(Subscriber::poll);
    }

    fn progress(&self) -> [usize; 6] {
        let count = |of: fn(&Subscriber) -> usize| self.subscribers.iter().map(of).sum();
        [
            self.over.len(),
            self.outcomes.len(),
            self.connected.len() + self.ended.len(),
            count(|s| s.received.len()),
            count(|s| s.on.len() + s.refused.len()),
            count(|s| s.cuts.len() + usize::from(s.ended.is_some())),
        ]
    }

    /// Delivers and polls until nothing moves.
    fn settle(&mut self) {
        let mut quiet = 0;
        while quiet < 3 {
            let before = self.progress();
            let moved = self.net.deliver(usize::MAX);
            self.poll_all();
            quiet = match moved > 0 || self.progress() != before {
                true => 0,
                false => quiet + 1,
            };
        }
    }

    /// The last outcome of a key for a subscriber.
    fn outcome(&self, key: u64, connection: ConnectionId) -> &PeerOutcome {
        let of = |it: &&(u64, ConnectionId, PeerOutcome)| it.0 == key && it.1 == connection;
        &self.outcomes.iter().find(of).expect("it has one").2
    }

    /// The connection at the publisher on which subscriber `n` is.
    fn connection_of(&mut self, n: usize, tag: u64) -> ConnectionId {
        self.subscribe(n, tag).unwrap();
        self.settle();
        let connected = self.connected.clone();
        let core = self.publisher();
        let of = |id: &ConnectionId| core.tags(*id).any(|its| its == tag);
        let found = connected.into_iter().find(of).expect("connected");
        self.unsubscribe(n, tag).unwrap();
        self.settle();
        found
    }

    fn hold(&mut self, n: usize) {
        self.subscribers[n].holds = true;
    }

    fn let_go(&mut self, n: usize) {
        self.subscribers[n].holds = false;
        self.subscribers[n].held.clear();
        self.settle();
    }

    /// Drops all; nothing may be left.
    #[track_caller]
    fn end(mut self) {
        self.core = None;
        for subscriber in &mut self.subscribers {
            subscriber.core = None;
            subscriber.held.clear();
            assert_eq!(subscriber.pool.free_count(), subscriber.pool.slots());
        }
        // What a peer might still write is kept until all endpoints of the domain are gone.
        for long in self.subscribers.iter().filter_map(|it| it.long.as_ref()) {
            assert_eq!(long.free_count(), long.slots());
        }
        self.net.check();
        assert!(self.gates.iter().all(FakeGate::is_settled));
        assert_eq!(self.payloads.free_count(), self.payloads.slots());
        assert_eq!(self.headers.free_count(), self.headers.capacity());
        let mut owed: Vec<_> = self.owed.keys().copied().collect();
        let mut abandoned = self.abandoned.lock().unwrap().clone();
        owed.sort_unstable();
        abandoned.sort_unstable();
        assert_eq!(abandoned, owed, "each key has an end");
    }
}

fn subscriber(net: &Net, stage: &Stage, (number, publisher): (usize, usize)) -> Subscriber {
    let pool = SharedBufferManager::allocate(stage.receive_slots, SLOT_BYTES * 2).unwrap();
    let settings = stage.subscriber_settings(number);
    let long = settings.long.as_ref().map(|long| long.pool.clone());
    let core = Hub::listen(
        net.hub(),
        Arc::new(FakeWait),
        stage.clock.clone(),
        pool.clone(),
        settings,
    )
    .unwrap();
    let settings = SubscribeSettings {
        publishers: 2,
        subscriptions: 6,
        reconnect: stage.reconnect,
    };
    let mut core = SubscribeCore::new(core, settings);
    let publisher = core.connect(addr_of(publisher)).unwrap();
    Subscriber {
        core: Some(core),
        pool,
        long,
        publisher,
        on: Vec::new(),
        refused: Vec::new(),
        received: Vec::new(),
        missed: 0,
        landed: Vec::new(),
        holds: false,
        held: VecDeque::new(),
        cuts: Vec::new(),
        ended: None,
    }
}

#[test]
fn a_subscriber_does_not_know_the_publisher_of_another_one() {
    let mut play = Stage::of(FORMS[0]).ready();
    let [first, second, ..] = &mut play.subscribers[..] else {
        panic!("three of them");
    };
    let core = first.core.as_mut().expect("it is open");
    assert!(core.subscribe(second.publisher, TAG + 7).is_err());
    assert!(!core.close_connection(second.publisher, Instant::now()));
    assert!(core.subscribe(first.publisher, TAG + 7).is_ok());
    play.settle();
    play.end();
}

#[test]
fn everybody_gets_one_buffer_by_one_header_slot() {
    for form in FORMS {
        let mut play = Stage::of(form).ready();
        for key in 0..20 {
            assert_eq!(play.counts(key), [3, 0, 0]);
            assert_eq!(play.headers.free_count(), 7, "one slot for all");
            assert_eq!(play.payloads.free_count(), 31, "one buffer for all");
            play.settle();
        }
        let expected: Vec<_> = (0..20).map(|n| (TAG, n, n)).collect();
        for subscriber in &play.subscribers {
            assert_eq!((&subscriber.received, subscriber.missed), (&expected, 0));
        }
        let over: Vec<_> = (0..20).map(|key| (key, [3, 0, 0])).collect();
        assert_eq!(play.over, over);
        play.end();
    }
}

/// Providers that scope registrations to endpoints, and such that write into contexts.
#[test]
fn providers_with_wishes_of_their_own_get_them() {
    for endpoint_scope in [false, true] {
        let mut stage = Stage::of(Form::Msg);
        stage.net.endpoint_scope = endpoint_scope;
        stage.net.contexts = crate::in_flight::ContextKind::Cells;
        let mut play = stage.ready();
        for key in 0..6 {
            assert_eq!(play.counts(key), [3, 0, 0]);
            play.settle();
        }
        assert_eq!(play.over.len(), 6);
        play.end();
    }
}

#[test]
fn a_subscriber_can_have_a_policy_of_its_own() {
    for form in FORMS {
        let mut play = Stage::of(form).ready();
        let patient = play.connection_of(0, 77);
        let deadline = Duration::from_millis(20);
        let waits = SlowPolicy::Wait { queue: 1, deadline };
        assert!(play.publisher().set_policy(patient, waits));
        assert!(!play.publisher().set_policy(ConnectionId(0), waits));
        for n in [0, 1] {
            play.hold(n);
        }
        for key in 0..4 {
            play.counts(key);
            play.settle();
        }
        assert_eq!(play.counts(4), [1, 1, 1]);
        assert_eq!(play.counts(5), [1, 0, 2]);
        play.clock.advance(deadline);
        play.settle();
        assert!(play.owed.is_empty());
        // It may be changed while something waits.
        assert_eq!(play.counts(6), [1, 1, 1]);
        let slow = SlowPolicy::Disconnect {
            queue: 1,
            after: Duration::from_millis(1),
        };
        play.clock.advance(Duration::from_millis(1));
        play.publisher().set_policy(patient, slow);
        play.settle();
        assert!(matches!(play.ended[..], [(id, CloseReason::TooSlow { .. }, 1)] if id == patient));
        assert!(play.owed.is_empty());
        play.end();
    }
}

#[test]
fn only_those_who_asked_for_it_get_it() {
    for form in FORMS {
        let mut play = Stage::of(form).ready();
        let nobody = SendErrorKind::NoSubscribers { tag: 9 };
        assert_eq!(play.publish(9, 1), Err(nobody));
        play.subscribe(1, 9).unwrap();
        assert_eq!(play.subscribe(1, 9), Err(SubscribeError::Already));
        play.settle();
        assert_eq!(play.publish(9, 2).unwrap().posted, 1);
        play.unsubscribe(0, TAG).unwrap();
        play.settle();
        assert_eq!(play.counts(3), [2, 0, 0]);
        play.settle();
        let keys: Vec<_> = play.subscribers.iter().map(Subscriber::keys).collect();
        assert_eq!(keys, [vec![], vec![2, 3], vec![3]]);
        // Asked for again: the numbers go on, since others had subscribed.
        play.subscribe(0, TAG).unwrap();
        play.settle();
        play.publish(TAG, 4).unwrap();
        play.settle();
        let zero = &play.subscribers[0];
        assert_eq!((&zero.received, zero.missed), (&vec![(TAG, 1, 4)], 0));
        play.end();
    }
}

#[test]
fn what_some_could_not_be_posted_is_dropped_for_them_only() {
    for form in FORMS {
        let mut play = Stage::of(form).ready();
        play.net.refuse_sends(play.link, &[PostRefused::Again]);
        assert_eq!(play.counts(1), [2, 0, 1], "k of n");
        play.settle();
        assert_eq!(play.over, [(1, [2, 1, 0])]);
        let dropped = PeerOutcome::Dropped(DropReason::NoRoom(Blocked::Provider));
        assert!(
            play.outcomes
                .iter()
                .any(|(_, _, outcome)| *outcome == dropped)
        );
        // Nobody: the end is told all the same.
        play.net
            .refuse_all_sends(play.link, Some(PostRefused::Again));
        assert_eq!(play.counts(2), [0, 0, 3]);
        play.poll_publisher();
        assert_eq!(play.over.last(), Some(&(2, [0, 3, 0])));
        play.net.refuse_all_sends(play.link, None);
        assert_eq!(play.counts(3), [3, 0, 0]);
        play.settle();
        let missed: u64 = play.subscribers.iter().map(|s| s.missed).sum();
        assert_eq!(missed, 4, "each one learns of the gap");
        play.end();
    }
}

#[test]
fn a_slow_one_loses_the_newest_and_the_others_nothing() {
    for form in FORMS {
        let mut play = Stage::of(form).ready();
        let slow = play.connection_of(0, 77);
        play.hold(0);
        for key in 0..4 {
            assert_eq!(play.counts(key), [3, 0, 0]);
            play.settle();
        }
        for key in 4..10 {
            assert_eq!(play.counts(key), [2, 0, 1]);
            play.settle();
            let dropped = PeerOutcome::Dropped(DropReason::NoRoom(Blocked::Credits));
            assert_eq!(*play.outcome(key, slow), dropped);
        }
        play.let_go(0);
        assert_eq!(play.counts(10), [3, 0, 0]);
        play.settle();
        let zero = &play.subscribers[0];
        assert_eq!((zero.keys(), zero.missed), (vec![0, 1, 2, 3, 10], 6));
        for n in [1, 2] {
            assert_eq!(play.subscribers[n].keys(), (0..11).collect::<Vec<_>>());
        }
        play.end();
    }
}

#[test]
fn what_waits_goes_out_in_order_and_the_newest_is_dropped() {
    for form in FORMS {
        let slow = SlowPolicy::Wait {
            queue: 2,
            deadline: LONG,
        };
        let mut play = Stage {
            slow,
            ..Stage::of(form)
        }
        .ready();
        let id = play.connection_of(0, 77);
        play.hold(0);
        for key in 0..8 {
            let expected = match key {
                0..4 => [3, 0, 0],
                4..6 => [2, 1, 0],
                _ => [2, 0, 1],
            };
            assert_eq!(play.counts(key), expected, "{key}");
            play.settle();
        }
        assert_eq!(play.over.len(), 6, "two wait");
        assert_eq!(play.headers.free_count(), 6);
        let full = PeerOutcome::Dropped(DropReason::QueueFull);
        assert_eq!(*play.outcome(6, id), full);
        play.let_go(0);
        assert_eq!(play.over.len(), 8);
        play.counts(8);
        play.settle();
        let zero = &play.subscribers[0];
        assert_eq!((zero.keys(), zero.missed), (vec![0, 1, 2, 3, 4, 5, 8], 2));
        play.end();
    }
}

#[test]
fn what_waits_for_too_long_is_dropped() {
    for form in FORMS {
        let deadline = Duration::from_millis(100);
        let slow = SlowPolicy::Wait { queue: 5, deadline };
        let mut play = Stage {
            slow,
            ..Stage::of(form)
        }
        .ready();
        let id = play.connection_of(0, 77);
        play.hold(0);
        for key in 0..6 {
            play.counts(key);
            play.settle();
        }
        assert_eq!(play.publisher().waiting(id), 2);
        play.clock.advance(deadline);
        play.poll_publisher();
        assert_eq!(play.over.len(), 6, "no buffer is held for longer");
        for key in [4, 5] {
            let late = PeerOutcome::Dropped(DropReason::Late);
            assert_eq!(*play.outcome(key, id), late);
        }
        play.let_go(0);
        assert_eq!(play.counts(6), [3, 0, 0]);
        play.settle();
        assert_eq!(play.subscribers[0].missed, 2);
        play.end();
    }
}

#[test]
fn a_subscriber_that_is_too_slow_is_cut_off_and_comes_back() {
    for form in FORMS {
        for by_age in [false, true] {
            let after = match by_age {
                true => Duration::from_secs(2),
                false => LONG,
            };
            let slow = SlowPolicy::Disconnect { queue: 2, after };
            let mut play = Stage {
                slow,
                reconnect: ReconnectPolicy::fixed(Duration::from_millis(1)),
                ..Stage::of(form)
            }
            .ready();
            play.hold(0);
            for key in 0..6 {
                play.counts(key);
                play.settle();
            }
            if by_age {
                play.clock.advance(after);
            } else {
                assert_eq!(play.counts(6), [2, 0, 1]);
            }
            play.settle();
            let [(_, CloseReason::TooSlow { waiting, .. }, 1)] = play.ended[..] else {
                panic!("{:?}", play.ended);
            };
            assert_eq!(waiting, 2);
            assert!(play.owed.is_empty(), "nothing is held because of it");
            play.subscribers[0].holds = false;
            play.subscribers[0].held.clear();
            for _ in 0..100 {
                if play.subscribers[0].on == [TAG] {
                    break;
                }
                play.settle();
                play.clock.advance(Duration::from_millis(1));
            }
            assert_eq!(play.counts(20), [3, 0, 0]);
            play.settle();
            let zero = &play.subscribers[0];
            assert_eq!(zero.keys(), [0, 1, 2, 3, 20], "{form:?} {:?}", zero.cuts);
            assert_eq!(
                (zero.cuts.len(), zero.missed),
                (1, 0),
                "numbers of a new life"
            );
            let one = &play.subscribers[1];
            assert_eq!(
                one.keys().len(),
                7 + usize::from(!by_age),
                "the others got all"
            );
            play.end();
        }
    }
}

#[test]
fn a_connection_lost_in_flight_fails_for_that_subscriber() {
    for form in FORMS {
        let mut play = Stage::of(form).ready();
        let id = play.connection_of(0, 77);
        play.counts(1);
        play.publisher()
            .abort_for_test(id, CloseReason::PeerLost { errno: None });
        play.poll_publisher();
        assert!(matches!(play.outcome(1, id), PeerOutcome::Failed(_)));
        play.settle();
        assert_eq!(play.over, [(1, [2, 0, 1])]);
        assert_eq!(play.ended.len(), 1);
        assert_eq!(
            play.publisher().subscribers(TAG),
            2,
            "its subscription is gone"
        );
        assert_eq!(play.counts(2), [2, 0, 0]);
        play.settle();
        play.end();
    }
}

#[test]
fn a_send_over_its_deadline_ends_its_connection_only() {
    for form in FORMS {
        let mut play = Stage {
            deadline: Some(Duration::from_millis(20)),
            ..Stage::of(form)
        }
        .ready();
        let other = play.counts(1);
        assert_eq!(other, [3, 0, 0]);
        // Nothing is delivered meanwhile.
        play.clock.advance(Duration::from_millis(20));
        play.poll_publisher();
        play.poll_publisher();
        assert_eq!(play.over, [(1, [0, 0, 3])], "{form:?}");
        for (_, reason, _) in &play.ended {
            assert!(
                matches!(reason, CloseReason::SendDeadline { .. }),
                "{reason}"
            );
        }
        assert_eq!(play.ended.len(), 3);
        play.end();
    }
}

#[test]
fn too_many_subscriptions_are_refused_in_words() {
    for form in FORMS {
        let mut play = Stage::of(form).open();
        for tag in 0..6 {
            play.subscribe(0, tag).unwrap();
        }
        let full = SubscribeError::TooMany { limit: 6 };
        assert_eq!(play.subscribe(0, 6), Err(full));
        play.settle();
        for tag in 0..5 {
            play.subscribe(1, tag).unwrap();
        }
        play.settle();
        play.subscribe(2, 0).unwrap();
        play.settle();
        let here = SubscriptionOutcome::TOO_MANY_HERE;
        assert_eq!(play.subscribers[0].on, [0, 1, 2, 3]);
        assert_eq!(play.subscribers[0].refused, [(4, here), (5, here)]);
        let in_all = SubscriptionOutcome::TOO_MANY_IN_ALL;
        assert_eq!(play.subscribers[2].refused, [(0, in_all)]);
        play.end();
    }
}

#[test]
fn publications_are_bounded_and_writable_says_when_there_is_room() {
    for form in FORMS {
        let mut play = Stage {
            publications: 2,
            ..Stage::of(form)
        }
        .ready();
        play.counts(1);
        play.counts(2);
        let full = SendErrorKind::WouldBlock(Blocked::Depth);
        assert_eq!(play.publish(TAG, 3), Err(full));
        assert_eq!(play.writable, 0);
        play.settle();
        assert_eq!(play.writable, 1);
        play.counts(3);
        let slots: Vec<_> = (0..7)
            .map(|_| {
                play.headers
                    .acquire(b"", 0, crate::endpoint::EndpointId::next())
                    .unwrap()
            })
            .collect();
        let none = SendErrorKind::WouldBlock(Blocked::HeaderSlots);
        assert_eq!(play.publish(TAG, 4), Err(none));
        drop(slots);
        play.settle();
        assert_eq!(play.writable, 2);
        let long = [0; 64];
        let payload = play.payload(5);
        let refused = play
            .publisher()
            .publish(TAG, payload.into(), &long, 5)
            .unwrap_err();
        let kind = SendErrorKind::HeaderTooLong { len: 64, max: 46 };
        assert_eq!(refused.kind, kind);
        drop(refused);
        play.end();
    }
}

#[test]
fn the_tag_is_in_front_whatever_the_header_mode() {
    for form in FORMS {
        for header_mode in [HeaderMode::Raw, HeaderMode::Fixed(24)] {
            let mut play = Stage {
                header_mode,
                subscribers: 1,
                ..Stage::of(form)
            }
            .ready();
            let payload = play.payload(7);
            let core = play.publisher();
            core.publish(TAG, payload.into(), &7_u64.to_be_bytes(), 7)
                .unwrap();
            play.net.deliver(usize::MAX);
            let mut events = Vec::new();
            let core = play.subscribers[0].core.as_mut().unwrap();
            core.poll(&mut events).unwrap();
            let [SubscribeEvent::Publication { tag, message, .. }, ..] = &events[..] else {
                panic!("{events:?}");
            };
            assert_eq!(*tag, TAG);
            let whole = [message.header(), message.payload()].concat();
            assert_eq!(whole, [7_u64.to_be_bytes(), 7_u64.to_le_bytes()].concat());
            let header = match header_mode {
                HeaderMode::Raw => 0,
                _ => 8,
            };
            assert_eq!(message.header().len(), header);
        }
    }
}

#[test]
fn a_goodbye_lets_what_was_posted_arrive() {
    for form in FORMS {
        let slow = SlowPolicy::Wait {
            queue: 9,
            deadline: LONG,
        };
        let mut play = Stage {
            slow,
            ..Stage::of(form)
        }
        .ready();
        for key in 0..6 {
            play.counts(key);
        }
        play.publisher().begin_close_all(far_future());
        let closing = SendErrorKind::Closing;
        assert_eq!(play.publish(TAG, 9), Err(closing));
        play.settle();
        for subscriber in &play.subscribers {
            assert_eq!(subscriber.keys(), [0, 1, 2, 3], "what waited is dropped");
            assert_eq!(subscriber.ended, Some(CloseReason::Finished));
        }
        assert_eq!(play.over.len(), 6);
        assert!(
            play.ended
                .iter()
                .all(|(_, reason, _)| *reason == CloseReason::Finished)
        );
        play.end();
    }
}

#[test]
fn a_publisher_that_is_dropped_gives_everything_back() {
    for form in FORMS {
        let slow = SlowPolicy::Wait {
            queue: 9,
            deadline: LONG,
        };
        let mut play = Stage {
            slow,
            ..Stage::of(form)
        }
        .ready();
        for key in 0..7 {
            play.counts(key);
        }
        assert_eq!(play.owed.len(), 7);
        play.end();
    }
}

#[test]
fn what_will_not_close_is_leaked_and_counted_and_told() {
    let mut play = Stage::of(Form::Msg).ready();
    let id = play.connection_of(0, 77);
    play.counts(1);
    play.net.set_close(play.link, CloseMode::Fails);
    play.publisher()
        .abort_for_test(id, CloseReason::PeerLost { errno: None });
    play.poll_publisher();
    assert!(matches!(play.outcome(1, id), PeerOutcome::Failed(_)));
    play.net.set_close(play.link, CloseMode::Reports);
    drop(play.core.take());
    assert_eq!(
        play.payloads.free_count(),
        31,
        "its clone of the buffer is leaked"
    );
    assert_eq!(play.headers.free_count(), 7, "and its share of the slot");
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Publish(u64),
    PublishLong(u64),
    /// So many at once.
    PublishBatch(u64, u64),
    PublishGated(u64),
    /// The gate of an earlier publication; true: it opens.
    Gate(usize, bool),
    On(usize, u64),
    Off(usize, u64),
    Hold(usize, bool),
    LetOne(usize),
    Deliver(usize),
    PollPublisher,
    PollSubscriber(usize),
    Refuse,
    Cut(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    let (who, tag) = (0..3_usize, 0..3_u64);
    prop_oneof![
        12 => tag.clone().prop_map(Step::Publish),
        4 => tag.clone().prop_map(Step::PublishLong),
        4 => (tag.clone(), 1..6_u64).prop_map(|(tag, n)| Step::PublishBatch(tag, n)),
        4 => tag.clone().prop_map(Step::PublishGated),
        4 => (0..4_usize, prop::bool::weighted(0.8)).prop_map(|(n, opens)| Step::Gate(n, opens)),
        4 => (who.clone(), tag.clone()).prop_map(|(n, tag)| Step::On(n, tag)),
        2 => (who.clone(), tag).prop_map(|(n, tag)| Step::Off(n, tag)),
        2 => (who.clone(), any::<bool>()).prop_map(|(n, hold)| Step::Hold(n, hold)),
        4 => who.clone().prop_map(Step::LetOne),
        10 => (1..6_usize).prop_map(Step::Deliver),
        10 => Just(Step::PollPublisher),
        10 => who.clone().prop_map(Step::PollSubscriber),
        2 => Just(Step::Refuse),
        1 => who.prop_map(Step::Cut),
    ]
}

fn any_policy() -> impl Strategy<Value = SlowPolicy> {
    let after = Duration::from_millis(3);
    prop_oneof![
        Just(SlowPolicy::Drop),
        Just(SlowPolicy::Wait {
            queue: 2,
            deadline: LONG
        }),
        Just(SlowPolicy::Wait {
            queue: 3,
            deadline: after
        }),
        Just(SlowPolicy::Disconnect { queue: 2, after }),
    ]
}

impl Play {
    fn step(&mut self, step: Step, next: &mut u64) {
        self.clock.advance(Duration::from_micros(100));
        match step {
            Step::Publish(tag) => {
                if self.payloads.free_count() > 0 && self.publish(tag, *next).is_ok() {
                    *next += 1;
                }
            }
            Step::PublishLong(tag) => {
                if self.payloads.free_count() > 0 && self.publish_long(tag, *next).is_ok() {
                    *next += 1;
                }
            }
            Step::PublishBatch(tag, count) => {
                if self.payloads.free_count() >= count as usize {
                    *next += self.publish_batch(tag, *next..*next + count).0.len() as u64;
                }
            }
            Step::PublishGated(tag) => {
                if self.payloads.free_count() > 0 && self.publish_gated(tag, *next, None).is_ok() {
                    *next += 1;
                }
            }
            Step::Gate(n, opens) => match self.gates.iter().rev().nth(n) {
                Some(gate) if opens => gate.open(),
                Some(gate) => gate.fail(),
                None => {}
            },
            Step::On(n, tag) => drop(self.subscribe(n, tag)),
            Step::Off(n, tag) => drop(self.unsubscribe(n, tag)),
            Step::Hold(n, hold) => self.subscribers[n].holds = hold,
            Step::LetOne(n) => drop(self.subscribers[n].held.pop_front()),
            Step::Deliver(limit) => drop(self.net.deliver(limit)),
            Step::PollPublisher => self.poll_publisher(),
            Step::PollSubscriber(n) => self.subscribers[n].poll(),
            Step::Refuse => self.net.refuse_sends(self.link, &[PostRefused::Again]),
            Step::Cut(n) => {
                if let Some(&id) = self.connected.get(n) {
                    let reason = CloseReason::PeerLost { errno: None };
                    self.publisher().abort_for_test(id, reason);
                }
            }
        }
    }

    /// Numbers of each tag rise, with as many gaps as were told, in each life of a subscription.
    fn check_numbers(&self) {
        for subscriber in self.subscribers.iter().filter(|s| s.cuts.is_empty()) {
            for tag in 0..3 {
                let numbers = subscriber.received.iter().filter(|it| it.0 == tag);
                let keys: Vec<_> = numbers.map(|it| it.2).collect();
                assert!(
                    keys.is_sorted_by(|a, b| a < b),
                    "in order, none twice: {keys:?}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(crate::soak::cases(75, 2000))]
    /// Whatever happens in whatever order: each key has one end with one outcome for each
    /// subscriber, and everything comes back.
    #[test]
    fn each_key_has_one_end(
        rdm in any::<bool>(),
        slow in any_policy(),
        steps in prop::collection::vec(any_step(), 0..150),
        settled in any::<bool>(),
        packed in any::<bool>(),
        long in any::<bool>(),
        uses_more in any::<bool>(),
    ) {
        let form = if rdm { Form::Rdm } else { Form::Msg };
        let reconnect = ReconnectPolicy::fixed(Duration::from_millis(1));
        let stage = if long { Stage::long(form) } else { Stage::of(form) };
        let mut play = Stage {
            net: NetConfig { uses_more, ..stage.net },
            slow,
            reconnect,
            receive_depth: 2,
            packing: if packed { Packing::UpTo(100) } else { Packing::Off },
            ..stage
        }
        .open();
        play.settle();
        let mut next = 1;
        for step in steps {
            play.step(step, &mut next);
        }
        if settled {
            play.gates.iter().for_each(FakeGate::open);
            for n in 0..3 {
                play.let_go(n);
            }
            play.settle();
            for _ in 0..100 {
                if play.owed.is_empty() {
                    break;
                }
                play.settle();
                play.clock.advance(Duration::from_millis(1));
            }
            prop_assert!(play.owed.is_empty());
        }
        play.check_numbers();
        play.end();
    }
}
