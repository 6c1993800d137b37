//! Messages that are taken in batches, as they lie in the frames that they came in.

use std::collections::{BTreeMap, HashMap, HashSet};

use proptest::prelude::*;

use crate::Error;
use crate::buffer::SharedBufferManager;
use crate::endpoint::error::SendErrorKind;
use crate::endpoint::event::{ConnectionEvent, Packing, ReceiveEvent};
use crate::endpoint::inbox::HubInbox;
use crate::endpoint::link::fake::NetConfig;
use crate::endpoint::message::Message;
use crate::endpoint::message_ref::MessageRef;
use crate::endpoint::testing::hubs::{HubSetup, Hubs};
use crate::endpoint::testing::rig::{Rig, Setup, far_future};
use crate::event_loop::WaitSource;
use crate::id::ConnectionId;
use crate::protocol::connection::Form;
use crate::protocol::wire::ControlKind;

/// A connected rig whose receiver is asked through an inbox.
struct Reader {
    rig: Rig,
    inbox: HubInbox,
    events: Vec<ReceiveEvent>,
}

fn reader() -> Reader {
    reader_with(12)
}

/// With so many credits.
fn reader_with(credits: u32) -> Reader {
    let setup = Setup {
        packing: Packing::UpTo(100),
        payloads: 128,
        receive_depth: credits,
        receive_slots: 40,
        ..Setup::default()
    };
    let mut rig = setup.connected();
    rig.said.clear();
    Reader {
        rig,
        inbox: HubInbox::new(None),
        events: Vec::new(),
    }
}

fn key_of(message: MessageRef<'_>) -> u64 {
    let key = u64::from_le_bytes(message.payload().try_into().unwrap());
    assert_eq!(message.header(), key.to_be_bytes());
    assert_eq!(message.sequence(), key + 1);
    key
}

impl Reader {
    /// Sends these, the first by itself, the others in frames of 23, and has them lie at the
    /// receiver.
    fn send(&mut self, keys: std::ops::Range<u64>) {
        for key in keys {
            self.rig.send(key).unwrap();
        }
        for _ in 0..4 {
            self.rig.poll_sender();
            self.rig.net.deliver(usize::MAX);
        }
    }

    /// The keys of so many messages of the next batch.
    fn receive(&mut self, most: usize) -> Vec<u64> {
        let core = self.rig.receiver.as_mut().unwrap();
        let batch = self.inbox.receive(core, &mut self.events).unwrap();
        batch.messages().take(most).map(key_of).collect()
    }

    /// The next message, kept.
    fn keep(&mut self) -> Message {
        let core = self.rig.receiver.as_mut().unwrap();
        let mut batch = self.inbox.receive(core, &mut self.events).unwrap();
        batch.next_message().expect("one is here").0.to_message()
    }

    fn poll(&mut self) -> Vec<u64> {
        let core = self.rig.receiver.as_mut().unwrap();
        let mut events = Vec::new();
        let told = self.inbox.poll(core, &mut events).unwrap();
        assert_eq!(told, events.len());
        let mut keys = Vec::new();
        for event in events {
            match event {
                ReceiveEvent::Message(message) => keys.push(key_of((&message).into())),
                event => self.events.push(event),
            }
        }
        keys
    }

    /// Nothing is left.
    fn end(mut self) {
        drop(self.inbox);
        self.rig.end();
    }

    /// Frames, and messages of them, that are held.
    fn held(&self) -> (u64, u64) {
        let stats = self.rig.receiver.as_ref().unwrap().stats();
        let stats = self.inbox.correct(stats);
        (stats.packed.frames_held, stats.packed.messages_held)
    }
}

#[test]
fn a_batch_has_what_came_by_itself_and_what_came_in_frames() {
    let mut reader = reader();
    reader.send(0..47);
    assert_eq!(reader.receive(usize::MAX), (0..47).collect::<Vec<_>>());
    assert!(reader.receive(usize::MAX).is_empty(), "each once");
    let stats = reader.rig.receiver().stats();
    assert_eq!(
        (stats.messages, stats.packed.messages, stats.packed.frames),
        (47, 46, 2)
    );
    reader.end();
}

#[test]
fn what_was_not_taken_is_where_the_next_call_begins() {
    let mut reader = reader();
    reader.send(0..47);
    assert!(reader.receive(0).is_empty());
    assert_eq!(reader.receive(1), [0]);
    assert_eq!(reader.receive(3), [1, 2, 3]);
    // To the end of a frame.
    assert_eq!(reader.receive(20), (4..24).collect::<Vec<_>>());
    assert_eq!(reader.receive(2), [24, 25]);
    reader.send(47..50);
    assert_eq!(reader.poll(), (26..50).collect::<Vec<_>>());
    reader.send(50..55);
    assert_eq!(reader.receive(usize::MAX), (50..55).collect::<Vec<_>>());
    reader.end();
}

#[test]
fn the_buffers_of_a_batch_go_back_with_the_next_call() {
    // One by itself, and three frames of 23.
    let mut reader = reader_with(4);
    let pool: SharedBufferManager = reader.rig.pool.clone();
    let free = pool.free_count();
    reader.send(0..70);
    assert_eq!(reader.receive(usize::MAX).len(), 70);
    assert!(reader.receive(usize::MAX).is_empty());
    assert_eq!(pool.free_count(), free, "they are posted again");
    reader.rig.settle();
    reader.send(70..140);
    assert_eq!(
        reader.receive(usize::MAX).len(),
        70,
        "the credits came back"
    );
    reader.end();
}

#[test]
fn nobody_sleeps_while_something_lies_in_the_inbox() {
    let mut reader = reader();
    let wait = reader.rig.receiver().wait().clone();
    reader.send(0..5);
    assert_eq!(reader.receive(2), [0, 1]);
    assert!(!wait.prepare_wait().unwrap(), "three are left");
    assert_eq!(reader.receive(usize::MAX), [2, 3, 4]);
    assert!(!wait.prepare_wait().unwrap(), "their buffer lies here");
    assert!(reader.receive(usize::MAX).is_empty());
    assert!(wait.prepare_wait().unwrap(), "nothing to do");
    reader.send(5..8);
    assert_eq!(reader.receive(1), [5]);
    assert_eq!(reader.poll(), [6, 7]);
    assert!(wait.prepare_wait().unwrap(), "all was told");
    reader.end();
}

#[test]
fn a_kept_message_holds_its_frame_until_it_is_detached() {
    let mut reader = reader();
    let pool: SharedBufferManager = reader.rig.pool.clone();
    let free = pool.free_count();
    reader.send(0..40);
    assert_eq!(reader.receive(1), [0]);
    assert_eq!(reader.held(), (0, 0), "in the inbox");
    let kept = [reader.keep(), reader.keep()];
    assert_eq!(reader.held(), (1, 2));
    assert_eq!(reader.receive(usize::MAX).len(), 37);
    assert_eq!(reader.held(), (1, 2));
    assert!(reader.receive(usize::MAX).is_empty());
    assert_eq!(reader.held(), (1, 2));
    let [first, second] = kept;
    assert_eq!(key_of((&first).into()), 1);
    let payload = second.into_payload();
    assert_eq!(reader.held(), (1, 2), "a payload is as good");
    drop(payload);
    assert_eq!(reader.held(), (1, 1));
    let copy = first.detach();
    assert_eq!(reader.held(), (0, 0));
    assert_eq!(copy.header(), 1_u64.to_be_bytes());
    assert_eq!(copy.payload(), 1_u64.to_le_bytes());
    assert_eq!(copy.sequence(), 2);
    reader.receive(0);
    assert_eq!(pool.free_count(), free);
    reader.end();
}

#[test]
fn messages_of_events_hold_their_frames_too() {
    let mut reader = reader();
    reader.send(0..40);
    reader.rig.drop_at_once = false;
    reader.rig.poll_receiver();
    assert_eq!(reader.held(), (2, 39));
    // The one that came by itself, and one of the first frame.
    reader.rig.held.drain(..2);
    assert_eq!(reader.held(), (2, 38));
    let last = reader.rig.held.pop();
    reader.rig.held.clear();
    assert_eq!(reader.held(), (1, 1));
    drop(last);
    assert_eq!(reader.held(), (0, 0));
    reader.end();
}

#[test]
fn what_makes_sense_of_a_hostile_frame_comes_before_the_end() {
    let mut reader = reader();
    reader.send(0..3);
    let conn = reader.rig.conn;
    // A message of 2 + 8 + 8 bytes, as `HeaderMode::Prefixed` has it; then a length that lies.
    let mut bytes = 18_u32.to_le_bytes().to_vec();
    bytes.extend([8, 0]);
    bytes.extend(3_u64.to_be_bytes());
    bytes.extend(3_u64.to_le_bytes());
    bytes.extend(1000_u32.to_le_bytes());
    bytes.extend([0; 7]);
    let frame = u32::from(ControlKind::FRAME.0) << 24;
    reader.rig.net.say(conn, Some(frame), &bytes);
    reader.rig.net.deliver(usize::MAX);
    assert_eq!(reader.receive(usize::MAX), [0, 1, 2, 3]);
    let mut more = Vec::new();
    while reader.events.is_empty() {
        more.extend(reader.receive(usize::MAX));
    }
    assert!(more.is_empty(), "{more:?}");
    let ended = reader.events.iter().any(|event| {
        let ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(reason)) = event else {
            return false;
        };
        reason.to_string().contains("violat") || reason.to_string().contains("broke")
    });
    assert!(ended, "{:?}", reader.events);
    reader.end();
}

#[test]
fn a_failed_endpoint_says_so_behind_what_was_received() {
    let mut reader = reader();
    reader.send(0..30);
    assert_eq!(reader.receive(4), [0, 1, 2, 3]);
    reader.rig.receiver().fail("a test says so");
    assert_eq!(reader.receive(usize::MAX), (4..30).collect::<Vec<_>>());
    assert!(reader.events.is_empty(), "the end is behind them");
    let core = reader.rig.receiver.as_mut().unwrap();
    let failed = reader.inbox.receive(core, &mut reader.events).err();
    assert!(
        matches!(failed, Some(Error::EndpointFailed(_))),
        "{failed:?}"
    );
    let wait = reader.rig.receiver().wait().clone();
    assert!(wait.prepare_wait().unwrap(), "nothing lies here");
    let ends = reader.events.iter().filter(|event| {
        matches!(
            event,
            ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(_))
        )
    });
    assert_eq!(ends.count(), 1);
    reader.end();
}

// ---- a walk, beside a model that knows nothing of frames ----------------------------------------

/// What a receiver of several connections does.
#[derive(Clone, Debug)]
enum Step {
    /// One of the others sends so many.
    Send {
        from: usize,
        count: u64,
    },
    /// The others post what they packed, and the net delivers.
    Arrive,
    Poll,
    Receive {
        most: usize,
        keep: usize,
    },
    /// Drops some of what is held, on another thread or here, or copies it out.
    LetGo {
        first: usize,
        elsewhere: bool,
        detach: bool,
    },
    /// One of the others closes its connection, or makes one.
    Close(usize),
    Dial(usize),
}

const OTHERS: usize = 3;

fn step() -> impl Strategy<Value = Step> {
    let other = || 0..OTHERS;
    let most = prop_oneof![0usize..4, 4usize..40, Just(usize::MAX)];
    prop_oneof![
        10 => (other(), 1u64..30).prop_map(|(from, count)| Step::Send { from, count }),
        8 => Just(Step::Arrive),
        4 => Just(Step::Poll),
        10 => (most, 1usize..30).prop_map(|(most, keep)| Step::Receive { most, keep }),
        4 => (0usize..40, any::<bool>(), any::<bool>())
            .prop_map(|(first, elsewhere, detach)| Step::LetGo { first, elsewhere, detach }),
        1 => other().prop_map(Step::Close),
        1 => other().prop_map(Step::Dial),
    ]
}

/// Hub 0 receives; the others send, on one connection each at a time.
struct Walk {
    hubs: Hubs,
    /// Connections of the others, at their ends, as long as they may be used.
    conns: [Option<ConnectionId>; OTHERS],
    next_key: u64,
    /// By key, the frame that it went out in: whose, and which of its frames.
    frames: HashMap<u64, (usize, u64)>,
    /// Keys of each that were accepted.
    sent: BTreeMap<u64, usize>,
}

impl Walk {
    fn new(setup: &HubSetup) -> Self {
        let mut hubs = Hubs::new(setup, 1 + OTHERS);
        let conns = [1, 2, 3].map(|from| Some(hubs.dial(from, 0)));
        hubs.settle();
        hubs.hubs[0].held = Some(Vec::new());
        Self {
            hubs,
            conns,
            next_key: 0,
            frames: HashMap::new(),
            sent: BTreeMap::new(),
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Send { from, count } => self.send(from, count),
            Step::Arrive => self.arrive(),
            Step::Poll => self.hubs.hubs[0].poll(),
            Step::Receive { most, keep } => _ = self.hubs.hubs[0].receive(most, keep),
            Step::LetGo {
                first,
                elsewhere,
                detach,
            } => self.let_go(first, elsewhere, detach),
            Step::Close(from) => {
                if let Some(id) = self.conns[from].take() {
                    self.hubs.hubs[1 + from]
                        .core()
                        .begin_close(id, far_future());
                }
            }
            Step::Dial(from) => {
                if self.conns[from].is_none() {
                    self.conns[from] = Some(self.hubs.dial(1 + from, 0));
                }
            }
        }
        self.check_held();
    }

    fn send(&mut self, from: usize, count: u64) {
        let Some(id) = self.conns[from] else { return };
        let of = &mut self.hubs.hubs[1 + from];
        for _ in 0..count {
            if of.payloads.free_count() == 0 {
                return;
            }
            self.next_key += 1;
            let before = of.core().send_stats();
            match of.send(id, self.next_key) {
                Ok(()) => {}
                Err(SendErrorKind::WouldBlock(_)) => return,
                Err(other) => panic!("{other}"),
            }
            let after = of.core().send_stats();
            self.sent.insert(self.next_key, from);
            if after.packed.messages > before.packed.messages {
                self.frames
                    .insert(self.next_key, (from, after.packed.frames));
            }
        }
    }

    fn arrive(&mut self) {
        for other in &mut self.hubs.hubs[1..] {
            other.poll();
        }
        self.hubs.net.deliver(usize::MAX);
    }

    fn let_go(&mut self, first: usize, elsewhere: bool, detach: bool) {
        let held = self.hubs.hubs[0].held.as_mut().expect("it holds some");
        let gone: Vec<Message> = held.drain(first.min(held.len())..).collect();
        let let_go = move || {
            for message in gone {
                let view: MessageRef<'_> = (&message).into();
                let (key, header) = (view.payload().to_vec(), view.header().to_vec());
                if detach {
                    let copy = message.detach();
                    assert_eq!((copy.payload(), copy.header()), (&key[..], &header[..]));
                }
            }
        };
        match elsewhere {
            true => std::thread::spawn(let_go).join().expect("no panic"),
            false => let_go(),
        }
    }

    /// What the statistics say of held messages is what the application holds.
    fn check_held(&self) {
        let hub = &self.hubs.hubs[0];
        let Some(core) = &hub.core else { return };
        let stats = hub.inbox.correct(core.stats());
        let held = hub.held.iter().flatten();
        let keys = held.map(|message| u64::from_le_bytes(message.payload().try_into().unwrap()));
        let framed: Vec<_> = keys.filter_map(|key| self.frames.get(&key)).collect();
        let frames: HashSet<_> = framed.iter().collect();
        assert_eq!(
            (stats.packed.frames_held, stats.packed.messages_held),
            (frames.len() as u64, framed.len() as u64)
        );
    }

    /// Everything that was sent came, each once, in order (`HubRig` sees to that), and every buffer
    /// is free.
    fn end(mut self) {
        let batches = self.next_key.is_multiple_of(2);
        for _ in 0..400 {
            self.hubs.hubs[0].held = Some(Vec::new());
            self.arrive();
            match batches {
                true => _ = self.hubs.hubs[0].receive(7, 2),
                false => self.hubs.hubs[0].poll(),
            }
        }
        self.hubs.hubs[0].poll();
        let mut received = self.hubs.hubs[0].received.clone();
        received.sort_unstable();
        assert_eq!(received, self.sent.keys().copied().collect::<Vec<_>>());
        self.hubs.hubs[0].held = None;
        self.check_held();
        for hub in &mut self.hubs.hubs {
            hub.close();
            hub.check_all_back();
        }
        self.hubs.end();
    }
}

proptest! {
    #![proptest_config(crate::soak::cases(150, 4000))]

    #[test]
    fn no_walk_of_batches_and_events_loses_a_message_or_a_buffer(
        rdm in any::<bool>(),
        packing in prop_oneof![Just(Packing::Off), Just(Packing::UpTo(100))],
        credits in 1u32..6,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let form = if rdm { Form::Rdm } else { Form::Msg };
        let setup = HubSetup {
            net: NetConfig { form, ..NetConfig::default() },
            packing,
            depth: 8,
            total: 24,
            header_slots: 24,
            receive_depth: credits,
            receive_slots: 80,
            max_connections: 6,
            ..HubSetup::default()
        };
        let mut walk = Walk::new(&setup);
        for step in &steps {
            setup.clock.advance(std::time::Duration::from_micros(100));
            walk.take(step);
        }
        walk.end();
    }
}
