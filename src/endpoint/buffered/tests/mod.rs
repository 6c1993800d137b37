//! What a buffered endpoint owes its caller, over a sender that does what the test says.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::Error;
use crate::buffer::{Buffer, Payload, SharedBufferManager};
use crate::clock::Clock;
use crate::coalesce::{Format, SmallMessages};
use crate::endpoint::buffered::buffer_sender::BufferSender;
use crate::endpoint::buffered::core::{BufferedCore, BufferedSettings};
use crate::endpoint::buffered::event::{
    BufferError, BufferedEvent, Carried, PushError, SmallMessageLimit,
};
use crate::endpoint::error::{Blocked, Refused, SendErrorKind};
use crate::endpoint::event::{ConnectionEvent, ConnectionInfo, SendEvent};
use crate::endpoint::link::fake::FakeWait;
use crate::endpoint::link::wait::EndpointWait;
use crate::error::CompletionError;
use crate::event_loop::WaitSource;
use crate::fabric::Shape;
use crate::protocol::connection::CloseReason;
use crate::protocol::wire::HeaderMode;

mod fill_gate;

const SIZE: usize = 256;
const LONG: Duration = Duration::from_secs(60);

#[derive(Default)]
struct FakeSender {
    clock: Clock,
    connected: bool,
    ended: Option<CloseReason>,
    /// Sends that are taken until the next refusal.
    credits: usize,
    refusal: Option<SendErrorKind>,
    in_flight: Vec<(u64, Payload)>,
    /// The bytes of all that was taken.
    sent: Vec<Vec<u8>>,
    events: Vec<SendEvent>,
    closing: Option<Instant>,
}

impl FakeSender {
    fn complete(&mut self, at: usize) {
        let (key, mut payload) = self.in_flight.remove(at);
        assert_eq!(payload.poll_gate(), Ok(true), "sent too early");
        let payload = payload.ungated();
        self.events.push(SendEvent::Completed { key, payload });
    }

    fn fail(&mut self, at: usize) {
        let (key, payload) = self.in_flight.remove(at);
        let payload = payload.ungated();
        let error = CompletionError::new(libc::EIO);
        self.events.push(SendEvent::Failed {
            key,
            payload,
            error,
        });
    }

    fn connect(&mut self, max_message: u64) {
        self.connected = true;
        self.events
            .push(SendEvent::Connection(ConnectionEvent::Connected(info(
                max_message,
            ))));
    }

    fn lose(&mut self) {
        self.connected = false;
        while !self.in_flight.is_empty() {
            self.fail(0);
        }
    }

    fn end(&mut self, reason: CloseReason) {
        self.lose();
        self.ended = Some(reason);
        self.events
            .push(SendEvent::Connection(ConnectionEvent::Disconnected(reason)));
    }
}

fn info(max_message: u64) -> ConnectionInfo {
    ConnectionInfo {
        peer: None,
        peer_incarnation: 1,
        max_message,
        credits: 4,
        header_mode: HeaderMode::Raw,
        shape: Shape::Iov,
        inject: 0,
        kernel_watch: crate::endpoint::KernelWatch::NotAsked,
    }
}

impl BufferSender for FakeSender {
    fn send(&mut self, payload: Payload, key: u64) -> Result<(), Refused<Payload>> {
        let kind = match (&self.ended, &self.refusal) {
            (Some(reason), _) => Some(SendErrorKind::Closed(*reason)),
            (None, _) if self.closing.is_some() => Some(SendErrorKind::Closing),
            (None, Some(kind)) => Some(kind.clone()),
            _ if !self.connected => Some(SendErrorKind::WouldBlock(Blocked::Connecting)),
            _ if self.credits == 0 => Some(SendErrorKind::WouldBlock(Blocked::Credits)),
            _ => None,
        };
        if let Some(kind) = kind {
            return Err(Refused::new(kind, payload, key));
        }
        self.credits -= 1;
        let segment = payload.segments().first().and_then(|s| s.as_bytes());
        self.sent.push(segment.expect("one buffer").to_vec());
        self.in_flight.push((key, payload));
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<SendEvent>) -> Result<(), Error> {
        events.append(&mut self.events);
        if let Some(deadline) = self.closing
            && self.ended.is_none()
            && (self.in_flight.is_empty() || self.clock.now() >= deadline)
        {
            self.end(CloseReason::Finished);
            events.append(&mut self.events);
        }
        Ok(())
    }

    fn is_connected(&self) -> bool {
        self.connected && self.closing.is_none()
    }

    fn close_reason(&self) -> Option<CloseReason> {
        self.ended
    }

    fn begin_close(&mut self, deadline: Instant) {
        self.closing.get_or_insert(deadline);
    }
}

/// A core, and what is owed.
struct Rig {
    clock: Clock,
    core: Option<BufferedCore<FakeSender>>,
    pool: SharedBufferManager,
    format: Format,
    /// Accepted messages without an outcome.
    owed: BTreeMap<u64, (u64, u8, Vec<u8>)>,
    owed_buffers: Vec<u64>,
    next: u64,
    confirmed: u64,
    failed: Vec<(Carried, BufferError)>,
    events: Vec<BufferedEvent>,
    writable: usize,
    ended: Option<CloseReason>,
    abandoned: Arc<Mutex<Vec<Carried>>>,
}

struct Setup {
    format: Format,
    slots: u32,
    depth: u32,
    waiting: u32,
    flush_interval: Option<Duration>,
    clock: Clock,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            format: Format::Compact,
            slots: 8,
            depth: 4,
            waiting: 2,
            flush_interval: Some(LONG),
            clock: Clock::held(),
        }
    }
}

impl Setup {
    fn rig(self) -> Rig {
        let pool = SharedBufferManager::allocate(self.slots, SIZE).unwrap();
        let abandoned = Arc::new(Mutex::new(Vec::new()));
        let hear = Arc::clone(&abandoned);
        let settings = BufferedSettings {
            format: self.format,
            depth: self.depth,
            waiting: self.waiting,
            flush_interval: self.flush_interval,
            on_abandoned: Some(Box::new(move |carried| {
                hear.lock().unwrap().push(carried);
                crate::endpoint::testing::rig::panics();
            })),
        };
        let wait = Arc::new(EndpointWait::new(Arc::new(FakeWait), self.clock.clone()).unwrap());
        let sender = FakeSender {
            clock: self.clock.clone(),
            ..FakeSender::default()
        };
        Rig {
            clock: self.clock,
            core: Some(BufferedCore::new(
                sender,
                wait,
                pool.clone(),
                settings,
                crate::metrics::registry::WatchedCells::new(
                    crate::metrics::WatchedKind::Buffered,
                    None,
                ),
            )),
            pool,
            format: self.format,
            owed: BTreeMap::new(),
            owed_buffers: Vec::new(),
            next: 0,
            confirmed: 0,
            failed: Vec::new(),
            events: Vec::new(),
            writable: 0,
            ended: None,
            abandoned,
        }
    }

    /// With a connection that stands and takes everything.
    fn connected(self) -> Rig {
        let mut rig = self.rig();
        rig.sender().connect(1 << 20);
        rig.sender().credits = usize::MAX;
        rig.poll();
        rig
    }
}

impl Rig {
    fn core(&mut self) -> &mut BufferedCore<FakeSender> {
        self.core.as_mut().expect("not dropped yet")
    }

    fn sender(&mut self) -> &mut FakeSender {
        self.core().sender_mut()
    }

    #[track_caller]
    fn accepted(&mut self, number: u64, tag: u64, status: u8, bytes: &[u8]) {
        assert_eq!(number, self.next, "numbers have no gap");
        self.next += 1;
        self.owed.insert(number, (tag, status, bytes.to_vec()));
    }

    fn push(&mut self, tag: u64, status: u8, bytes: &[u8]) -> Result<(), PushError> {
        let number = self.core().push(tag, status, bytes)?;
        self.accepted(number, tag, status, bytes);
        self.check();
        Ok(())
    }

    /// Pushes until it is refused.
    fn fill(&mut self) -> PushError {
        loop {
            if let Err(error) = self.push(7, 0, &[1; 60]) {
                return error;
            }
        }
    }

    fn poll(&mut self) {
        let mut events = Vec::new();
        self.core().poll(&mut events).unwrap();
        for event in events {
            assert!(self.ended.is_none(), "{event:?} after the end");
            match event {
                BufferedEvent::Completed { carried, buffer } => {
                    self.confirmed += carried.messages();
                    self.paid(carried, buffer);
                }
                BufferedEvent::Failed {
                    carried,
                    buffer,
                    error,
                } => {
                    self.paid(carried, buffer);
                    self.failed.push((carried, error));
                }
                BufferedEvent::Writable => self.writable += 1,
                BufferedEvent::Connection(ConnectionEvent::Disconnected(reason)) => {
                    assert!(self.owed.is_empty(), "the end, but owed: {:?}", self.owed);
                    self.ended = Some(reason);
                }
                other => self.events.push(other),
            }
        }
        self.check();
    }

    /// Each message once, with the bytes that were pushed.
    fn paid(&mut self, carried: Carried, buffer: Option<Buffer>) {
        let buffer = buffer.expect("nothing was leaked");
        match carried {
            Carried::Messages { first, count } => {
                let mut number = first;
                for small in SmallMessages::new(self.format, &buffer) {
                    let small = small.unwrap();
                    let owed = self.owed.remove(&number).expect("owed");
                    assert_eq!(
                        (small.tag, small.status, small.bytes),
                        (owed.0, owed.1, &owed.2[..])
                    );
                    number += 1;
                }
                assert_eq!(number - first, count);
            }
            Carried::Buffer { key } => {
                let at = self.owed_buffers.iter().position(|k| *k == key);
                self.owed_buffers.remove(at.expect("owed"));
                assert_eq!(buffer[..8], key.to_le_bytes());
            }
        }
    }

    /// The invariant.
    #[track_caller]
    fn check(&self) {
        let Some(core) = &self.core else { return };
        let s = core.stats();
        assert_eq!(s.accepted, s.confirmed + s.failed + s.pending, "{s:?}");
        assert_eq!(s.accepted, self.next);
        assert_eq!(s.confirmed, self.confirmed);
        // What failed within a call is told by the next poll.
        assert!(s.pending <= self.owed.len() as u64, "{s:?}");
    }

    /// Drops the endpoint: what was owed is abandoned, once, in order; all buffers come back.
    #[track_caller]
    fn end(mut self) {
        let untold = self.core().stats().pending;
        let was_told = self.owed.len() as u64 == untold;
        self.core = None;
        let abandoned = self.abandoned.lock().unwrap().clone();
        let mut messages = 0;
        for carried in abandoned {
            match carried {
                Carried::Messages { first, count } => {
                    messages += count;
                    for number in first..first + count {
                        assert!(self.owed.remove(&number).is_some(), "{number} was not owed");
                    }
                }
                Carried::Buffer { key } => self.owed_buffers.retain(|k| *k != key),
            }
        }
        assert_eq!(messages, untold);
        assert_eq!(self.owed.is_empty(), was_told);
        assert_eq!(self.owed_buffers, [0; 0]);
        assert_eq!(self.pool.free_count(), self.pool.slots());
    }
}

// ---- when buffers leave -------------------------------------------------------------------------

#[test]
fn a_full_buffer_leaves_by_itself_and_the_rest_on_flush() {
    for format in [Format::Compact, Format::Netio3] {
        let mut rig = Setup {
            format,
            ..Setup::default()
        }
        .connected();
        for n in 0..10 {
            rig.push(5, n, &[n; 40]).unwrap();
        }
        // 256 bytes take 5 of them.
        assert_eq!(rig.sender().sent.len(), 1);
        assert!(rig.core().flush());
        assert_eq!(rig.sender().sent.len(), 2);
        assert!(rig.core().flush(), "nothing is left to flush");
        assert_eq!(rig.sender().sent.len(), 2, "an empty buffer is not sent");
        let stats = rig.core().stats();
        assert_eq!(
            (stats.full, stats.flushed, stats.timed, stats.buffers),
            (1, 1, 0, 2)
        );
        for _ in 0..2 {
            rig.sender().complete(0);
        }
        rig.poll();
        assert_eq!(rig.confirmed, 10);
        rig.end();
    }
}

#[test]
fn a_message_that_fills_the_buffer_exactly_leaves_at_once() {
    let mut rig = Setup::default().connected();
    rig.push(0, 0, &[9; SIZE - 16 - 4]).unwrap();
    assert_eq!(rig.sender().sent.len(), 1);
    assert_eq!(rig.sender().sent[0].len(), SIZE);
    rig.end();
}

#[test]
fn a_lone_message_leaves_when_the_interval_is_over_and_not_before() {
    let interval = Duration::from_millis(40);
    let mut rig = Setup {
        flush_interval: Some(interval),
        ..Setup::default()
    }
    .connected();
    assert_eq!(rig.core().wait().next_deadline(), None, "nothing is packed");
    let pushed = rig.clock.now();
    rig.push(1, 0, b"lone").unwrap();
    // A loop would wake for it without any poll in between; a second message does not put it off.
    rig.clock.advance(interval / 2);
    rig.push(1, 0, b"not that lone").unwrap();
    let due = rig.core().wait().next_deadline().expect("a deadline");
    let early = (pushed + interval).saturating_duration_since(due);
    assert!(due <= pushed + interval && early <= Duration::from_micros(1));
    rig.clock.advance(interval / 2 - Duration::from_millis(1));
    rig.poll();
    assert_eq!(rig.sender().sent.len(), 0, "not before");
    assert_eq!(rig.core().stats().timed, 0);
    rig.clock.advance(Duration::from_millis(1));
    rig.poll();
    assert_eq!(rig.sender().sent.len(), 1);
    assert_eq!(rig.core().stats().timed, 1);
    rig.poll();
    assert_eq!(
        rig.core().wait().next_deadline(),
        None,
        "no one waits any more"
    );
    rig.end();
}

#[test]
fn without_an_interval_a_message_waits_for_the_flush() {
    let mut rig = Setup {
        flush_interval: None,
        ..Setup::default()
    }
    .connected();
    rig.push(1, 0, b"x").unwrap();
    rig.poll();
    assert_eq!(rig.core().wait().next_deadline(), None);
    assert_eq!(rig.sender().sent.len(), 0);
    assert!(rig.core().flush());
    rig.end();
}

// ---- refusals -----------------------------------------------------------------------------------

#[test]
fn nothing_is_taken_before_the_connection_stands() {
    let mut rig = Setup::default().rig();
    assert_eq!(rig.fill(), PushError::WouldBlock(Blocked::Connecting));
    assert_eq!(rig.next, 0);
    rig.sender().connect(1 << 20);
    rig.sender().credits = 1;
    rig.poll();
    assert_eq!(rig.writable, 1);
    rig.push(1, 1, b"now").unwrap();
    rig.end();
}

#[test]
fn a_message_longer_than_a_buffer_names_the_limit() {
    let too_long = |len, max, whose| PushError::TooLong { len, max, whose };
    let mut rig = Setup::default().rig();
    // Even before the connection stands.
    let error = rig.push(1, 0, &[0; SIZE]).unwrap_err();
    assert_eq!(error, too_long(SIZE, SIZE - 28, SmallMessageLimit::Buffer));
    rig.sender().connect(128);
    rig.sender().credits = usize::MAX;
    rig.poll();
    let error = rig.push(1, 0, &[0; 101]).unwrap_err();
    assert_eq!(error, too_long(101, 100, SmallMessageLimit::Peer));
    let error = rig
        .core()
        .push_segments(1, 0, &[&[0; 50], &[0; 51]])
        .unwrap_err();
    assert_eq!(error, too_long(101, 100, SmallMessageLimit::Peer));
    rig.push(1, 0, &[0; 100]).unwrap();
    assert_eq!(
        rig.sender().sent[0].len(),
        128,
        "what the peer takes, and no more"
    );
    rig.end();
}

#[test]
fn back_pressure_loses_nothing_and_is_bounded() {
    let mut rig = Setup::default().connected();
    rig.sender().credits = 1;
    assert_eq!(rig.fill(), PushError::WouldBlock(Blocked::Credits));
    // One in flight, two wait, one is open: 3 messages each.
    assert_eq!(rig.next, 4 * 3);
    for _ in 0..3 {
        rig.poll();
    }
    assert_eq!((rig.writable, rig.sender().sent.len()), (0, 1));
    assert!(!rig.core().flush(), "it can't leave now");
    rig.sender().credits = 1;
    rig.poll();
    assert_eq!((rig.writable, rig.sender().sent.len()), (1, 2));
    rig.sender().credits = 9;
    rig.poll();
    assert_eq!(rig.sender().sent.len(), 4, "the flush was not forgotten");
    while !rig.sender().in_flight.is_empty() {
        rig.sender().complete(0);
    }
    rig.poll();
    assert_eq!(rig.confirmed, 12);
    rig.end();
}

#[test]
fn no_free_buffer_is_back_pressure_that_the_pool_ends() {
    let mut rig = Setup {
        slots: 2,
        ..Setup::default()
    }
    .connected();
    let held = rig.core().get_buffer().expect("two are free");
    assert_eq!(rig.fill(), PushError::WouldBlock(Blocked::Buffers));
    assert_eq!(rig.next, 3);
    assert!(rig.core().get_buffer().is_none());
    rig.poll();
    assert_eq!(rig.writable, 0);
    drop(held);
    rig.poll();
    assert_eq!(rig.writable, 1);
    rig.push(1, 0, b"again").unwrap();
    rig.end();
}

#[test]
fn the_depth_of_the_sender_is_kept() {
    let mut rig = Setup {
        depth: 1,
        ..Setup::default()
    }
    .connected();
    assert_eq!(rig.fill(), PushError::WouldBlock(Blocked::Depth));
    assert_eq!(rig.sender().in_flight.len(), 1);
    rig.end();
}

// ---- whole buffers ------------------------------------------------------------------------------

#[test]
fn whole_buffers_keep_the_order_and_come_back_when_refused() {
    let mut rig = Setup::default().connected();
    rig.push(3, 0, b"before").unwrap();
    let mut buffer = rig.core().get_buffer().unwrap();
    buffer[..8].copy_from_slice(&42u64.to_le_bytes());
    rig.core().send_buffer(buffer, 8, 42).unwrap();
    rig.owed_buffers.push(42);
    assert_eq!(rig.sender().sent[1], 42u64.to_le_bytes());
    rig.sender().credits = 0;
    rig.push(3, 0, b"between").unwrap();
    let buffer = rig.core().get_buffer().unwrap();
    let index = buffer.index();
    let refused = rig.core().send_buffer(buffer, 8, 43).unwrap_err();
    assert!(refused.is_would_block());
    assert_eq!((refused.given.index(), refused.key), (index, 43));
    rig.sender().credits = 2;
    rig.poll();
    assert_eq!((rig.sender().sent.len(), rig.writable), (3, 1));
    rig.sender().fail(1);
    rig.poll();
    let (carried, _) = rig.failed.pop().unwrap();
    assert_eq!(carried, Carried::Buffer { key: 42 });
    drop(refused);
    rig.end();
}

#[test]
fn a_place_that_is_not_used_leaves_nothing_behind() {
    let mut rig = Setup::default().connected();
    let placed = rig.core().place(1, 0, 50).unwrap();
    rig.core().packer().bytes_mut(&placed).fill(7);
    rig.core().discard_place();
    rig.poll();
    assert!(rig.core().flush());
    assert_eq!(rig.pool.free_count(), rig.pool.slots());
    let placed = rig.core().place(1, 0, 50).unwrap();
    rig.core().packer().bytes_mut(&placed)[..2].copy_from_slice(b"ok");
    let number = rig.core().commit(&placed, 2);
    rig.accepted(number, 1, 0, b"ok");
    rig.core().flush();
    rig.sender().complete(0);
    rig.poll();
    assert_eq!(rig.confirmed, 1);
    rig.end();
}

// ---- ends ---------------------------------------------------------------------------------------

#[test]
fn when_the_connection_ends_everything_fails_in_order_before_the_end() {
    let mut rig = Setup::default().connected();
    rig.sender().credits = 1;
    rig.fill();
    rig.sender().end(CloseReason::ConnectTimedOut);
    rig.poll();
    let firsts: Vec<_> = rig.failed.iter().map(|(carried, _)| *carried).collect();
    let range = |first| Carried::Messages { first, count: 3 };
    assert_eq!(firsts, [range(0), range(3), range(6), range(9)]);
    assert!(matches!(rig.failed[0].1, BufferError::Completion(_)));
    let closed = SendErrorKind::Closed(CloseReason::ConnectTimedOut);
    assert_eq!(rig.failed[3].1, BufferError::Refused(closed));
    assert_eq!(rig.ended, Some(CloseReason::ConnectTimedOut));
    assert_eq!(
        rig.push(1, 0, b"x"),
        Err(PushError::Closed(CloseReason::ConnectTimedOut))
    );
    rig.end();
}

#[test]
fn a_reconnect_keeps_what_was_not_sent() {
    let mut rig = Setup::default().connected();
    rig.sender().credits = 1;
    rig.fill();
    rig.sender().lose();
    let (attempt, after) = (1, Duration::ZERO);
    let reason = CloseReason::ConnectTimedOut;
    rig.sender()
        .events
        .push(SendEvent::Connection(ConnectionEvent::Reconnecting {
            attempt,
            after,
            reason,
        }));
    rig.poll();
    assert_eq!(rig.failed.len(), 1, "only what was in flight");
    rig.sender().connect(1 << 20);
    rig.sender().credits = 9;
    rig.poll();
    rig.core().flush();
    while !rig.sender().in_flight.is_empty() {
        rig.sender().complete(0);
    }
    rig.poll();
    assert_eq!(rig.confirmed, 9);
    rig.end();
}

#[test]
fn when_the_peer_closes_what_was_not_sent_fails_at_once() {
    let mut rig = Setup::default().connected();
    rig.push(1, 0, b"too late").unwrap();
    rig.sender().connected = false;
    rig.sender().refusal = Some(SendErrorKind::Closing);
    rig.sender()
        .events
        .push(SendEvent::Connection(ConnectionEvent::PeerClosing));
    rig.poll();
    assert_eq!(rig.failed.len(), 1);
    assert_eq!(
        rig.failed[0].1,
        BufferError::Refused(SendErrorKind::Closing)
    );
    assert_eq!(rig.push(1, 0, b"x"), Err(PushError::Closing));
    rig.end();
}

#[test]
fn a_polite_close_sends_what_is_packed_first() {
    let mut rig = Setup::default().connected();
    rig.sender().credits = 1;
    rig.fill();
    let deadline = Instant::now() + LONG;
    rig.core().begin_close(deadline);
    rig.poll();
    assert_eq!(rig.push(1, 0, b"x"), Err(PushError::Closing));
    assert!(
        rig.sender().closing.is_none(),
        "three buffers are not sent yet"
    );
    rig.sender().credits = 3;
    rig.poll();
    assert!(rig.sender().closing.is_some());
    while !rig.sender().in_flight.is_empty() {
        rig.sender().complete(0);
    }
    rig.poll();
    assert_eq!(
        (rig.confirmed, rig.ended),
        (12, Some(CloseReason::Finished))
    );
    rig.end();
}

#[test]
fn a_polite_close_ends_at_its_deadline_with_an_outcome_for_all() {
    let mut rig = Setup::default().connected();
    rig.sender().credits = 1;
    rig.fill();
    let deadline = rig.clock.now() + Duration::from_millis(20);
    rig.core().begin_close(deadline);
    rig.clock.advance(Duration::from_millis(19));
    let mut early = Vec::new();
    rig.core().poll(&mut early).unwrap();
    assert!(early.is_empty(), "{early:?}");
    rig.clock.advance(Duration::from_millis(1));
    let events = rig.core().close(deadline).unwrap();
    assert!(matches!(
        events.last(),
        Some(BufferedEvent::Connection(ConnectionEvent::Disconnected(_)))
    ));
    let failed = events.iter().map(|event| match event {
        BufferedEvent::Failed { carried, .. } => carried.messages(),
        _ => 0,
    });
    assert_eq!(failed.sum::<u64>(), 12);
}

// ---- a random walk ------------------------------------------------------------------------------

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}

fn step(rig: &mut Rig, random: &mut Random) {
    let message = vec![random.below(256) as u8; random.below(120)];
    let (tag, status) = (random.below(3) as u64, random.below(2) as u8);
    match random.below(12) {
        0..=4 => drop(rig.push(tag, status, &message)),
        5 => {
            let (a, b) = message.split_at(message.len() / 2);
            if let Ok(number) = rig.core().push_segments(tag, status, &[a, b]) {
                rig.accepted(number, tag, status, &message);
            }
        }
        6 => {
            if let Ok(placed) = rig.core().place(tag, status, message.len() + 9) {
                if random.below(3) == 0 {
                    rig.core().discard_place();
                } else {
                    let out = rig.core().packer().bytes_mut(&placed);
                    out[..message.len()].copy_from_slice(&message);
                    let number = rig.core().commit(&placed, message.len());
                    rig.accepted(number, tag, status, &message);
                }
            }
        }
        7 => drop(rig.core().flush()),
        8 => {
            if let Some(mut buffer) = rig.core().get_buffer() {
                let key = random.below(1 << 30) as u64;
                buffer[..8].copy_from_slice(&key.to_le_bytes());
                if rig.core().send_buffer(buffer, 8, key).is_ok() {
                    rig.owed_buffers.push(key);
                }
            }
        }
        9 => {
            let n = rig.sender().in_flight.len();
            if n > 0 {
                let at = random.below(n);
                match random.below(4) {
                    0 => rig.sender().fail(at),
                    _ => rig.sender().complete(at),
                }
            }
        }
        10 => rig.sender().credits = random.below(4),
        _ => {
            let sender = rig.sender();
            sender.refusal = match random.below(8) {
                0 => Some(SendErrorKind::WouldBlock(Blocked::Provider)),
                1 => Some(SendErrorKind::Fabric(crate::error::FabricErrno::new(
                    libc::EINVAL,
                ))),
                _ => None,
            };
        }
    }
}

#[test]
fn every_accepted_message_has_one_outcome_whatever_happens() {
    for seed in 1..400_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut rig = Setup {
            format: [Format::Compact, Format::Netio3][random.below(2)],
            slots: 2 + random.below(6) as u32,
            depth: 1 + random.below(4) as u32,
            waiting: 1 + random.below(3) as u32,
            flush_interval: [None, Some(Duration::from_micros(20))][random.below(2)],
            clock: Clock::held(),
        }
        .connected();
        for _ in 0..300 {
            rig.clock
                .advance(Duration::from_micros(random.below(10) as u64));
            step(&mut rig, &mut random);
            if random.below(3) == 0 {
                rig.poll();
            }
            rig.check();
        }
        match random.below(4) {
            0 => {
                rig.sender().end(CloseReason::ConnectTimedOut);
                rig.poll();
                assert!(rig.owed.is_empty() && rig.owed_buffers.is_empty());
            }
            1 => {
                rig.poll();
                rig.sender().refusal = None;
                rig.sender().credits = usize::MAX;
                rig.core().begin_close(Instant::now() + LONG);
                while rig.ended.is_none() {
                    if !rig.sender().in_flight.is_empty() {
                        rig.sender().complete(0);
                    }
                    rig.poll();
                }
                assert!(rig.owed.is_empty() && rig.owed_buffers.is_empty());
            }
            _ => {}
        }
        rig.end();
    }
}
