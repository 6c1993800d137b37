//! Connections that a receiver does not take: each is told why before it is left.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::*;
use crate::clock::Clock;
use crate::endpoint::duplex::DuplexEndpoint;
use crate::endpoint::{ConnectionEvent, ConnectionId, ReceiveEvent};
use crate::stream::chaos::over_both;
use crate::stream::network::control_pool;
use crate::stream::outbox::Outbox;
use crate::stream::sender::{self, SenderConfig};
use crate::stream::sink::{BlockSink, Kept, ReadBack, SinkError, SinkFactory, Stop, StreamOffer};
use crate::stream::wire::{
    Features, Hello, ManifestPart, Message, OLDEST, Open, OpenFlags, Pause, StreamIdentity, VERSION,
};
use crate::stream::{
    Block, DirectorySink, DiscardSink, Entry, EntryKind, Limits, Manifest, Modified, RefusalCode,
    RelativeName,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// One connection to a receiver, which says what it is told to.
struct Caller {
    endpoint: DuplexEndpoint,
    connection: ConnectionId,
    control: SharedBufferManager,
    outbox: Outbox,
    is_connected: bool,
    /// It was welcomed.
    is_taken: bool,
    refused: Option<(RefusalCode, String)>,
    is_accepted: bool,
    failed: Option<(RefusalCode, String)>,
    is_over: bool,
}

impl Caller {
    fn new(domain: &Arc<Domain>, to: PeerAddr) -> Self {
        let config = sender::duplex(&domain.into(), &SenderConfig::default(), 1).unwrap();
        let mut endpoint = DuplexEndpoint::dialing(domain, &config).unwrap();
        Self {
            connection: endpoint.dial(&to).unwrap(),
            endpoint,
            control: control_pool([domain.into()].iter()).unwrap(),
            outbox: Outbox::default(),
            is_connected: false,
            is_taken: false,
            refused: None,
            is_accepted: false,
            failed: None,
            is_over: false,
        }
    }

    fn hello(domain: &Arc<Domain>, to: PeerAddr, session: u8, rail: u16) -> Self {
        let mut this = Self::new(domain, to);
        this.outbox.push(&Message::Hello(Hello {
            version: VERSION,
            oldest: OLDEST,
            rail,
            rails: 2,
            features: Features::RAILS,
            session: [session; 16],
            nonce: [1; 32],
        }));
        this
    }

    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let (by, mut events) = (Instant::now() + PATIENCE, Vec::new());
        while !done(self) {
            assert!(Instant::now() < by, "{what}: {:?}", self.refused);
            self.endpoint.poll(&mut events).unwrap();
            for event in events.drain(..) {
                self.on_event(event);
            }
            if self.is_connected && !self.is_over {
                self.outbox
                    .pump_by(&mut self.endpoint, self.connection, &self.control);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn on_event(&mut self, event: ReceiveEvent) {
        match event {
            ReceiveEvent::Connection(_, ConnectionEvent::Connected(_)) => self.is_connected = true,
            ReceiveEvent::Connection(_, ConnectionEvent::Disconnected(_)) => self.is_over = true,
            ReceiveEvent::Message(message) => {
                match Message::parse(message.header(), message.payload()).unwrap() {
                    Message::HelloAck(_) => self.is_taken = true,
                    Message::Refuse(it) => self.refused = Some((it.code, it.reason.to_string())),
                    Message::Accept(_) => self.is_accepted = true,
                    Message::Failed(it) => self.failed = Some((it.code, it.reason.to_string())),
                    Message::Credit(_) | Message::Written(_) | Message::Have(_) => {}
                    other => panic!("{other:?}"),
                }
            }
            _ => {}
        }
    }

    /// A session of its own, with a stream of nothing under this key.
    fn with_stream(domain: &Arc<Domain>, to: PeerAddr, session: u8, key: u8) -> Self {
        let mut this = Self::hello(domain, to, session, 0);
        this.outbox.push(&Message::Open(open(key)));
        this
    }

    /// It is told this, and then left.
    fn assert_refused(&mut self, code: RefusalCode) -> String {
        self.until("the end", |it| it.is_over);
        let (said, reason) = self.refused.take().expect("it is told why");
        assert_eq!(said, code, "{reason}");
        reason
    }
}

fn receiver(domain: &Arc<Domain>, config: ReceiverConfig) -> StreamReceiver {
    let addr = "127.0.0.1:0".parse().unwrap();
    StreamReceiver::listen(domain, addr, config).unwrap()
}

/// How many bytes of a pool's memory are there, by the bit of each page that says so.
fn resident_bytes(pool: &SharedBufferManager) -> u64 {
    use std::os::unix::fs::FileExt;

    let page = rustix::param::page_size();
    let first = pool.region().as_ptr().addr() / page;
    let mut entries = vec![0; pool.region().len().div_ceil(page) * 8];
    let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    pagemap
        .read_exact_at(&mut entries, first as u64 * 8)
        .unwrap();
    let is_there = |entry: &&[u8]| u64::from_le_bytes((*entry).try_into().unwrap()) >> 63 == 1;
    (entries.chunks_exact(8).filter(is_there).count() * page) as u64
}

/// Huge pages for all blocks of a receiver may take longer than a short stream: where the kernel
/// copies what arrives, none is there before it is used.
#[test]
fn a_receivers_memory_is_not_there_before_it_is_used() {
    over_both(|domain| {
        let receiver = receiver(domain, ReceiverConfig::new(DiscardSink));
        let bytes: usize = receiver
            .pools()
            .iter()
            .map(|pool| pool.region().len())
            .sum();
        let resident: u64 = receiver.pools().iter().map(resident_bytes).sum();
        // What lies in front of a slot may be written when it is posted.
        assert!(bytes > 16 << 20, "{bytes} bytes");
        assert!(resident < 4 << 20, "{resident} of {bytes} bytes");
        receiver.close(Instant::now() + PATIENCE);
    });
}

fn config() -> ReceiverConfig {
    ReceiverConfig::new(DiscardSink).stream(|s| s.block_bytes(8192))
}

#[test]
fn who_does_not_say_who_it_is_hears_that_its_time_is_over() {
    over_both(|domain| {
        let (time, clock) = (Duration::from_secs(5), Clock::held());
        let config = config()
            .stream(|s| s.connect_timeout(time))
            .clock(clock.clone());
        let receiver = receiver(domain, config);
        let mut silent = Caller::new(domain, receiver.local_addr());
        // Its time begins when the receiver's thread has seen it, which may be later than it sees
        // itself connected.
        silent.until("a connection", |it| {
            let words = receiver.describe(PATIENCE).expect("its thread answers");
            it.is_connected && words.contains("in its handshake")
        });
        assert!(receiver.next(Duration::from_millis(1)).is_none());
        clock.advance(time);
        silent.assert_refused(RefusalCode::DEADLINE);
        match receiver.next(PATIENCE) {
            Some(StreamEvent::Refused { code, .. }) => assert_eq!(code, RefusalCode::DEADLINE),
            other => panic!("{other:?}"),
        }
        receiver.close(Instant::now());
    });
}

#[test]
fn the_number_of_a_rail_is_used_once_and_of_sessions_there_are_as_many_as_may_be() {
    over_both(|domain| {
        let config = config().limits(Limits::default().streams(1));
        let receiver = receiver(domain, config.stalled_after(PATIENCE));
        let to = receiver.local_addr();
        let mut first = Caller::hello(domain, to, 7, 0);
        first.until("a welcome", |it| it.is_taken);
        let mut twin = Caller::hello(domain, to, 7, 0);
        let reason = twin.assert_refused(RefusalCode::ALREADY);
        assert!(reason.contains("of this number"), "{reason}");
        let mut second = Caller::hello(domain, to, 7, 1);
        second.until("a welcome", |it| it.is_taken);
        Caller::hello(domain, to, 8, 0).assert_refused(RefusalCode::BUSY);
        // A number is not used again after its connection has gone.
        second.endpoint.abort_connection(second.connection);
        Caller::hello(domain, to, 7, 1).assert_refused(RefusalCode::ALREADY);
        assert!(
            first.refused.is_none() && !first.is_over,
            "{:?}",
            first.refused
        );
        receiver.close(Instant::now());
    });
}

fn open(key: u8) -> Open {
    Open {
        stream: 1,
        flags: OpenFlags::empty(),
        block_bytes: 8192,
        entries: 0,
        manifest_bytes: 0,
        bytes: 0,
        blocks: 0,
        attribute_bytes: 0,
        identity: StreamIdentity {
            key: [key; 16],
            stamp: [0; 16],
        },
    }
}

/// Counts what sinks are told. They open when they may.
#[derive(Debug, Default)]
struct Counts {
    may_open: Mutex<bool>,
    changed: Condvar,
    made: AtomicUsize,
    opened: AtomicUsize,
    abandoned: AtomicUsize,
    finished: AtomicUsize,
}

#[derive(Debug, Clone, Default)]
struct CountingSink(Arc<Counts>);

impl CountingSink {
    fn open_all(&self) {
        *self.0.may_open.lock().unwrap() = true;
        self.0.changed.notify_all();
    }

    fn until(&self, what: &str, done: impl Fn(&Counts) -> bool) {
        let by = Instant::now() + PATIENCE;
        while !done(&self.0) {
            assert!(Instant::now() < by, "{what}: {:?}", self.0);
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

impl SinkFactory for CountingSink {
    fn make(&self, _offer: &StreamOffer) -> Result<Box<dyn BlockSink>, SinkError> {
        self.0.made.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(self.clone()))
    }
}

impl BlockSink for CountingSink {
    fn open(&self, _offer: &StreamOffer, _stop: &Stop) -> Result<Kept, SinkError> {
        let mut may = self.0.may_open.lock().unwrap();
        while !*may {
            may = self.0.changed.wait(may).unwrap();
        }
        self.0.opened.fetch_add(1, Ordering::SeqCst);
        Ok(Kept::default())
    }

    fn write(&self, _block: Block, _crc: u32, _bytes: &[u8]) -> Result<(), SinkError> {
        Ok(())
    }

    fn finish(&self, _stop: &Stop) -> Result<ReadBack, SinkError> {
        self.0.finished.fetch_add(1, Ordering::SeqCst);
        Ok(ReadBack::default())
    }

    fn abandon(&self) {
        self.0.abandoned.fetch_add(1, Ordering::SeqCst);
    }
}

/// The next end of a stream.
fn next_end(receiver: &StreamReceiver) -> StreamEvent {
    loop {
        match receiver.next(PATIENCE).expect("events in time") {
            StreamEvent::Began(_) => {}
            other => return other,
        }
    }
}

#[test]
fn a_second_open_with_a_key_in_use_ends_the_stream_and_its_sink_is_told() {
    over_both(|domain| {
        let sink = CountingSink::default();
        sink.open_all();
        let config = ReceiverConfig::new(sink.clone()).stream(|s| s.block_bytes(8192));
        let receiver = receiver(domain, config.stalled_after(PATIENCE));
        let to = receiver.local_addr();
        let mut first = Caller::with_stream(domain, to, 1, 1);
        first.until("accepted", |it| it.is_accepted);
        let mut second = Caller::with_stream(domain, to, 2, 2);
        second.until("accepted", |it| it.is_accepted);
        // Of all keys, the one that the first writes under.
        second.outbox.push(&Message::Open(open(1)));
        second.until("the end", |it| it.is_over);
        let (code, reason) = second.failed.take().expect("it is told why");
        assert_eq!(code, RefusalCode::MALFORMED, "{reason}");
        match next_end(&receiver) {
            StreamEvent::Cut(arrival, error, _) => {
                assert_eq!(arrival.identity.key, [2; 16]);
                assert!(matches!(error, StreamError::Violation(_)), "{error:?}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(sink.0.abandoned.load(Ordering::SeqCst), 1);
        assert!(!first.is_over && first.failed.is_none());
        receiver.close(Instant::now());
    });
}

#[test]
fn who_was_refused_gets_no_more_time_by_asking_again() {
    over_both(|domain| {
        let sink = CountingSink::default();
        sink.open_all();
        let config = ReceiverConfig::new(sink.clone()).stream(|s| s.block_bytes(8192));
        let receiver = receiver(domain, config.stalled_after(PATIENCE));
        let to = receiver.local_addr();
        let mut first = Caller::with_stream(domain, to, 1, 1);
        first.until("accepted", |it| it.is_accepted);
        let mut second = Caller::with_stream(domain, to, 2, 1);
        let asked = AtomicUsize::new(0);
        let (by, mut events) = (Instant::now() + PATIENCE, Vec::new());
        // It does not hang up, and asks again and again.
        while !second.is_over && Instant::now() < by {
            second.endpoint.poll(&mut events).unwrap();
            for event in events.drain(..) {
                second.on_event(event);
            }
            if second.refused.is_some() && second.outbox.is_empty() {
                second.outbox.push(&Message::Open(open(1)));
                asked.fetch_add(1, Ordering::SeqCst);
            }
            if second.is_connected && !second.is_over {
                let (connection, control) = (second.connection, second.control.clone());
                second
                    .outbox
                    .pump_by(&mut second.endpoint, connection, &control);
            }
        }
        assert!(second.is_over, "it was asked {asked:?} times");
        let (code, reason) = second.refused.take().expect("it is told why");
        assert_eq!(code, RefusalCode::ALREADY, "{reason}");
        assert!(reason.contains("under way"), "{reason}");
        let mut refused = 0;
        while let Some(event) = receiver.next(Duration::from_millis(1)) {
            refused += usize::from(matches!(event, StreamEvent::Refused { .. }));
        }
        assert_eq!(refused, 1, "it is refused once, and that is said once");
        receiver.close(Instant::now());
    });
}

#[test]
fn every_stream_that_was_cut_leaves_however_slowly_sinks_open() {
    over_both(|domain| {
        const STREAMS: usize = 60;
        let sink = CountingSink::default();
        let config = ReceiverConfig::new(sink.clone()).stream(|s| s.block_bytes(8192));
        let config = config
            .stream(|s| s.connections(2))
            .limits(Limits::default().streams(64));
        let receiver = receiver(domain, config.stalled_after(PATIENCE));
        let to = receiver.local_addr();
        for number in 0..STREAMS {
            let key = number as u8;
            let mut caller = Caller::with_stream(domain, to, key, key);
            let made = || sink.0.made.load(Ordering::SeqCst);
            caller.until("a sink", |it| made() > number || it.is_over);
            assert_eq!(made(), number + 1, "{:?}", caller.refused);
            caller.endpoint.abort_connection(caller.connection);
        }
        sink.open_all();
        sink.until("all leave", |it| {
            it.abandoned.load(Ordering::SeqCst) == STREAMS
        });
        let began = Instant::now();
        let by = began + PATIENCE;
        let events = receiver.close(by);
        assert!(Instant::now() < by, "it ends before its time is over");
        // A sink that opened before the end of its connection was heard of has begun.
        let (cut, others): (Vec<_>, Vec<_>) = events
            .iter()
            .partition(|events| matches!(events, StreamEvent::Cut(..)));
        let begun = |events: &&StreamEvent| matches!(events, StreamEvent::Began(..));
        assert!(others.iter().all(begun), "{others:?}");
        assert_eq!(cut.len(), STREAMS);
    });
}

#[test]
fn a_sender_that_pauses_for_too_long_is_left_and_what_it_sent_is_kept() {
    over_both(|domain| {
        let sink = CountingSink::default();
        sink.open_all();
        let config = ReceiverConfig::new(sink.clone()).stream(|s| s.block_bytes(8192));
        // It is not the limit of silence that ends it.
        let config = config.stalled_after(Duration::from_secs(3600));
        let receiver = receiver(domain, config.paused_for(Duration::from_millis(300)));
        let mut caller = Caller::with_stream(domain, receiver.local_addr(), 1, 1);
        caller.until("accepted", |it| it.is_accepted);
        let pause = |on| Message::Pause(Pause { stream: 1, on });
        caller.outbox.push(&pause(true));
        // Saying it anew wins nothing.
        let (by, mut events) = (Instant::now() + PATIENCE, Vec::new());
        while !caller.is_over {
            assert!(Instant::now() < by, "it may pause for ever");
            caller.endpoint.poll(&mut events).unwrap();
            for event in events.drain(..) {
                caller.on_event(event);
            }
            if caller.is_connected && !caller.is_over {
                if caller.outbox.is_empty() && caller.is_accepted {
                    caller.outbox.push(&pause(false));
                    caller.outbox.push(&pause(true));
                }
                let (connection, control) = (caller.connection, caller.control.clone());
                caller
                    .outbox
                    .pump_by(&mut caller.endpoint, connection, &control);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let (code, reason) = caller.failed.take().expect("it is told why");
        assert_eq!(code, RefusalCode::STALLED, "{reason}");
        assert!(reason.contains("paused"), "{reason}");
        match next_end(&receiver) {
            StreamEvent::Cut(_, StreamError::Deadline { what }, _) => {
                assert!(what.contains("paused"), "{what}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(sink.0.abandoned.load(Ordering::SeqCst), 1);
        receiver.close(Instant::now());
    });
}

/// One file of a byte, under a name that no honest sender can give it.
fn named(name: &str) -> (Open, Vec<u8>) {
    let honest = "x".repeat(name.len() - 2) + "/y";
    let manifest = Manifest::new([Entry {
        name: RelativeName::new(honest.as_bytes()).unwrap(),
        kind: EntryKind::File,
        mode: 0o644,
        size: 1,
        modified: Modified::default(),
        sparse: false,
    }]);
    let manifest = manifest.unwrap();
    let (mut entries, _) = manifest.encode_part(0, 8192, true);
    let at = entries.len() - name.len();
    entries[at..].copy_from_slice(name.as_bytes());
    let open = Open {
        entries: 1,
        manifest_bytes: manifest.encoded_len(),
        bytes: 1,
        blocks: 1,
        ..open(9)
    };
    (open, entries)
}

#[test]
fn nothing_is_put_where_another_stream_keeps_what_it_has() {
    over_both(|domain| {
        let to = tempfile::tempdir().unwrap();
        let config = ReceiverConfig::new(DirectorySink::new(to.path()).unwrap());
        let receiver = receiver(domain, config.stream(|s| s.block_bytes(8192)));
        let key = "0".repeat(32);
        let names = [
            format!(".fabricast-{key}/journal"),
            format!(".fabricast-{key}/0"),
            format!(".FABRICAST-{key}/0"),
            format!("sub/.fabricast-{key}/0"),
            format!("sub/.fabricast-{key}"),
        ];
        // A session each: the last one is there until its connection is gone at the receiver, too.
        for (name, session) in names.iter().zip(1..) {
            let (open, entries) = named(name);
            let mut caller = Caller::hello(domain, receiver.local_addr(), session, 0);
            caller.outbox.push(&Message::Open(open));
            caller.outbox.push(&Message::Manifest(ManifestPart {
                stream: 1,
                first: 0,
                entries: &entries,
            }));
            let reason = caller.assert_refused(RefusalCode::NAMES);
            assert!(reason.contains(".fabricast-"), "{reason}");
            match next_end(&receiver) {
                StreamEvent::Refused { code, .. } => assert_eq!(code, RefusalCode::NAMES),
                other => panic!("{other:?}"),
            }
            assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 0);
        }
        receiver.close(Instant::now());
    });
}

/// Whatever nobody fetches, no more memory is taken than may be; what is left out of events is the
/// manifests of the oldest.
#[test]
fn events_that_nobody_fetches_make_room_for_streams() {
    over_both(|domain| {
        const ENTRIES: usize = 500;
        const STREAMS: usize = 20;
        const MEMORY: u64 = 200 << 10;
        let sink = CountingSink::default();
        sink.open_all();
        let config = ReceiverConfig::new(sink.clone()).stream(|s| s.block_bytes(8192));
        let config = config.limits(Limits::default().memory(MEMORY));
        let receiver = receiver(domain, config.stalled_after(PATIENCE));
        let names: Vec<_> = (0..ENTRIES).map(|n| format!("{n:04}")).collect();
        let manifest = Manifest::new(names.iter().map(|name| Entry {
            name: RelativeName::new(name.as_bytes()).unwrap(),
            kind: EntryKind::Directory,
            mode: 0o755,
            size: 0,
            modified: Modified::default(),
            sparse: false,
        }));
        let manifest = manifest.unwrap();
        assert!(manifest.memory() * STREAMS as u64 > 2 * MEMORY);
        for number in 0..STREAMS {
            let key = number as u8;
            let mut caller = Caller::hello(domain, receiver.local_addr(), key, 0);
            caller.outbox.push(&Message::Open(Open {
                entries: ENTRIES as u64,
                manifest_bytes: manifest.encoded_len(),
                ..open(key)
            }));
            let mut next = 0;
            while next < ENTRIES {
                let (entries, end) = manifest.encode_part(next, 4096, true);
                caller.outbox.push(&Message::Manifest(ManifestPart {
                    stream: 1,
                    first: next as u64,
                    entries: &entries,
                }));
                next = end;
            }
            caller.until("accepted", |it| it.is_accepted || it.refused.is_some());
            assert_eq!(caller.refused, None, "stream {number}");
            drop(caller);
            sink.until("it is cut", |it| {
                it.abandoned.load(Ordering::SeqCst) > number
            });
        }
        let (mut bytes, mut ended, mut last) = (0, Vec::new(), 0);
        for events in receiver.close(Instant::now() + PATIENCE) {
            let (StreamEvent::Began(arrival) | StreamEvent::Cut(arrival, ..)) = events else {
                panic!("{events:?}");
            };
            assert_eq!(arrival.entries, ENTRIES as u64);
            if let Some(manifest) = &arrival.manifest
                && std::mem::replace(&mut last, arrival.session) != arrival.session
            {
                bytes += manifest.memory();
            }
            ended.push(arrival.manifest.is_some());
        }
        assert!(bytes <= MEMORY, "{bytes} bytes of manifests");
        assert_eq!(ended.len(), 2 * STREAMS);
        assert!(ended[2 * STREAMS - 1] && !ended[0], "{ended:?}");
        assert!(ended.is_sorted(), "the oldest go first: {ended:?}");
    });
}
