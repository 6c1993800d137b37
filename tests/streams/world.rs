//! What the tests of streams have in common: domains of both kinds, files, trees, and a sender and
//! a receiver in one process.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use fabricast::fabric::EndpointKind;
use fabricast::stream::{
    BlockSource, FileSource, Manifest, PeerOutcome, ReceiverConfig, SendOptions, SenderConfig,
    SinkFactory, SourceError, StreamEvent, StreamReceiver, StreamReport, StreamSender, Transfer,
    Transport,
};
use fabricast::{Domain, PeerAddr};

pub(crate) use crate::common::{Offers, any_port, nobodys_port};
use crate::common::{
    domain_of, patient,
    provider::{fabric_at, kinds},
};

pub(crate) use crate::pattern::pattern as content;

/// No transfer of these tests may take longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn by() -> Instant {
    Instant::now() + patient(PATIENCE)
}

/// A domain of this kind; none, after a line that says why, where there is no libfabric or no
/// provider of it.
pub(crate) fn domain(kind: EndpointKind) -> Option<Arc<Domain>> {
    domain_of(kind)
}

/// The same at another address of this machine.
pub(crate) fn domain_at(kind: EndpointKind, node: &str) -> Option<Arc<Domain>> {
    Some(fabric_at(kind, node)?.open_domain().expect("a domain"))
}

/// Runs a test over each kind of connections.
pub(crate) fn over_both(test: impl Fn(&Arc<Domain>)) {
    for kind in kinds() {
        if let Some(domain) = domain(kind) {
            println!("over {kind:?}");
            test(&domain);
        }
    }
}

/// The same by messages, and by RMA writes, for which the receiver needs
/// [RMA slots](ReceiverConfig::rma_slots).
pub(crate) fn over_both_by_both(test: impl Fn(&Arc<Domain>, Transport)) {
    over_both(|domain| {
        for transport in [Transport::Message, Transport::Write] {
            println!("by {transport:?}");
            test(domain, transport);
        }
    });
}

/// After which a silent peer is lost, where nobody is killed or stopped: longer than a machine
/// stands still.
const LOST_AFTER: Duration = Duration::from_secs(30);

/// After which a peer that is there is not: the default, on a machine of usual speed.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// Blocks of 64 KiB.
pub(crate) fn sender_config() -> SenderConfig {
    SenderConfig::default().stream(|s| {
        s.block_bytes(64 << 10)
            .buffers(16)
            .connect_timeout(patient(ANSWERS_WITHIN))
            .lost_after(patient(LOST_AFTER))
    })
}

pub(crate) fn receiver_config(sink: impl SinkFactory) -> ReceiverConfig {
    ReceiverConfig::new(sink).stream(|s| {
        s.block_bytes(64 << 10)
            .connections(4)
            .connect_timeout(patient(ANSWERS_WITHIN))
            .lost_after(patient(LOST_AFTER))
    })
}

pub(crate) fn listen(domain: &Arc<Domain>, config: ReceiverConfig) -> StreamReceiver {
    StreamReceiver::listen(domain, any_port(), config).expect("it listens")
}

/// One transfer with a sender of its own.
pub(crate) fn send(
    domain: &Arc<Domain>,
    source: impl BlockSource,
    peers: &[PeerAddr],
    options: SendOptions,
) -> Vec<PeerOutcome> {
    let sender = StreamSender::open(domain, sender_config()).expect("a sender");
    let transfer = sender.send(source, peers.to_vec(), options).expect("begun");
    let outcomes = transfer.wait(by());
    let outcomes = outcomes.unwrap_or_else(|| panic!("not over in time: {}", of_sender(&sender)));
    sender.close(by());
    outcomes
}

/// Waits for a transfer; if that is not over in time, both sides say what they wait for.
pub(crate) fn over(
    transfer: &Transfer,
    sender: &StreamSender,
    receiver: &StreamReceiver,
) -> Vec<PeerOutcome> {
    let outcomes = transfer.wait(by());
    outcomes.unwrap_or_else(|| {
        let (ours, theirs) = (of_sender(sender), of_receiver(receiver));
        panic!("not over in time: {ours}\n{theirs}")
    })
}

/// One transfer to one receiver, with a sender of its own.
pub(crate) fn send_to(
    domain: &Arc<Domain>,
    source: impl BlockSource,
    receiver: &StreamReceiver,
    options: SendOptions,
) -> PeerOutcome {
    let sender = StreamSender::open(domain, sender_config()).expect("a sender");
    let transfer = sender.send(source, [receiver.local_addr()], options);
    let mut outcomes = over(&transfer.expect("begun"), &sender, receiver);
    sender.close(by());
    outcomes.pop().expect("of one peer")
}

/// What a sender says of itself.
pub(crate) fn of_sender(sender: &StreamSender) -> String {
    let words = sender.describe(patient(Duration::from_secs(5)));
    words.unwrap_or_else(|| "the sender does not answer".to_owned())
}

/// What a receiver says of itself.
pub(crate) fn of_receiver(receiver: &StreamReceiver) -> String {
    let words = receiver.describe(patient(Duration::from_secs(5)));
    words.unwrap_or_else(|| "the receiver does not answer".to_owned())
}

/// Where threads wait until it is opened, for good.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<bool>, Condvar);

impl Gate {
    pub(crate) fn open(&self) {
        *self.0.lock().expect("no panic") = true;
        self.1.notify_all();
    }

    pub(crate) fn pass(&self) {
        let is_open = self.0.lock().expect("no panic");
        let passed = self.1.wait_while(is_open, |is_open| !*is_open);
        drop(passed.expect("no panic"));
    }
}

/// A source of whose second half nothing can be read before the gate is open.
#[derive(Debug)]
pub(crate) struct Gated(FileSource, Arc<Gate>);

impl Gated {
    pub(crate) fn new(source: FileSource, gate: &Arc<Gate>) -> Self {
        Self(source, Arc::clone(gate))
    }
}

impl BlockSource for Gated {
    fn manifest(&self) -> &Manifest {
        self.0.manifest()
    }

    fn stamp(&self) -> [u8; 16] {
        self.0.stamp()
    }

    fn read(&self, entry: usize, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        if offset >= self.0.manifest().bytes() / 2 {
            self.1.pass();
        }
        self.0.read(entry, offset, into)
    }

    fn check_unchanged(&self) -> Result<(), SourceError> {
        self.0.check_unchanged()
    }
}

/// Waits for the next end of a stream.
pub(crate) fn next_end(receiver: &StreamReceiver) -> StreamEvent {
    let by = by();
    loop {
        let left = by.saturating_duration_since(Instant::now());
        let news = receiver.next(left);
        match news.unwrap_or_else(|| panic!("no news in time: {}", of_receiver(receiver))) {
            StreamEvent::Began(_) => {}
            other => return other,
        }
    }
}

/// Two files, or two trees, are the same: names, bytes, rights, times.
pub(crate) fn assert_same(a: &Path, b: &Path) {
    let (about_a, about_b) = (fs::symlink_metadata(a), fs::symlink_metadata(b));
    let about_a = about_a.unwrap_or_else(|error| panic!("{}: {error}", a.display()));
    let about_b = about_b.unwrap_or_else(|error| panic!("{}: {error}", b.display()));
    assert_eq!(about_a.file_type(), about_b.file_type(), "{}", b.display());
    assert_eq!(
        about_a.mode() & 0o777,
        about_b.mode() & 0o777,
        "{}",
        b.display()
    );
    let times = |about: &fs::Metadata| (about.mtime(), about.mtime_nsec());
    assert_eq!(times(&about_a), times(&about_b), "{}", b.display());
    if about_a.is_symlink() {
        let (to_a, to_b) = (
            fs::read_link(a).expect("read"),
            fs::read_link(b).expect("read"),
        );
        assert_eq!(to_a, to_b, "{}", b.display());
        return;
    }
    if about_a.is_file() {
        let (bytes_a, bytes_b) = (fs::read(a).expect("read"), fs::read(b).expect("read"));
        assert!(bytes_a == bytes_b, "{} has other bytes", b.display());
        return;
    }
    let (names_a, names_b) = (names(a), names(b));
    assert_eq!(names_a, names_b, "{}", b.display());
    for name in names_a {
        assert_same(&a.join(&name), &b.join(&name));
    }
}

/// The report of the stream that ends next, which has arrived.
pub(crate) fn complete(receiver: &StreamReceiver) -> StreamReport {
    match next_end(receiver) {
        StreamEvent::Complete(_, report) => report,
        other => panic!("{other:?}"),
    }
}

/// What is in a directory, sorted.
pub(crate) fn names(dir: &Path) -> Vec<std::ffi::OsString> {
    let entries = fs::read_dir(dir).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}
