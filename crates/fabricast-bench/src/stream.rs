//! A stream from memory to a receiver that drops it: `StreamSender` and `StreamReceiver` as they
//! are without a setting, with blocks of the case's size. There is no bare loop of streams.

use std::time::{Duration, Instant};

use fabricast::PeerAddr;
use fabricast::buffer::{Buffer, SharedBufferManager};
use fabricast::stream::{
    BlockSource, DiscardSink, Entry, EntryKind, Limits, Manifest, Modified, ReceiverConfig,
    RelativeName, SendOptions, SenderConfig, SourceError, StreamReceiver, StreamSender,
};

use crate::case::{Arrived, Case, Sent};
use crate::control::Control;
use crate::error::Failure;
use crate::host::cpu_seconds;
use crate::object::{hear, mark, patience};
use crate::ours;
use crate::server::Wish;

/// Bytes that are sent from, again and again: more than a processor's cache has.
const LENT: usize = 64 << 20;
/// Bytes of the stream before the timed one, which says how many fill the time.
const WARM: u64 = 128 << 20;
/// How long goodbyes may take.
const GOODBYE: Duration = Duration::from_secs(5);
/// The first byte of what is sent: any.
const FILL: u8 = 7;

/// As many bytes as are wanted, out of one buffer.
#[derive(Debug)]
struct Lent {
    manifest: Manifest,
    buffer: Buffer,
}

impl Lent {
    fn new(buffer: Buffer, bytes: u64) -> Result<Self, Failure> {
        let entry = Entry {
            name: RelativeName::new(b"memory")?,
            kind: EntryKind::File,
            mode: 0o600,
            size: bytes,
            modified: Modified::default(),
            sparse: false,
        };
        let manifest = Manifest::new([entry])?;
        Ok(Self { manifest, buffer })
    }

    fn part(&self, offset: u64, len: usize) -> Option<std::ops::Range<usize>> {
        let from = usize::try_from(offset % self.buffer.len() as u64).ok()?;
        (from + len <= self.buffer.len()).then_some(from..from + len)
    }
}

impl BlockSource for Lent {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn stamp(&self) -> [u8; 16] {
        [FILL; 16]
    }

    fn read(&self, _entry: usize, _offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        into.fill(FILL);
        Ok(())
    }

    fn lend(&self, _entry: usize, offset: u64, len: usize) -> Option<Buffer> {
        Some(self.buffer.slice(self.part(offset, len)?))
    }
}

/// The sending half: a short stream, and one of as many bytes as fill the time.
pub(crate) fn send(
    case: &Case,
    wish: &Wish,
    control: &mut Control,
) -> Result<(Sent, Arrived), Failure> {
    let block = u32::try_from(case.size)?;
    control.say(&wish.line())?;
    let to = control.expect("ready", patience(case))?;
    let config = SenderConfig::default().stream(|s| s.block_bytes(block));
    let sender = StreamSender::open(&ours::open(case)?, config)?;
    let lent = (LENT / case.size).max(2) * case.size;
    let pool = SharedBufferManager::allocate(1, lent)?;
    sender.register(&pool)?;
    let mut buffer = pool
        .try_acquire()
        .ok_or_else(|| Failure::of("no buffer in a pool of one"))?;
    buffer[..].fill(FILL);
    let buffer = buffer.freeze(lent);
    let limit = case.limit();
    let run = |bytes: u64| {
        let source = Lent::new(buffer.clone(), bytes)?;
        let transfer = sender.send(source, [to.parse::<PeerAddr>()?], SendOptions::default())?;
        let outcomes = transfer.wait(Instant::now() + limit);
        let outcomes = outcomes.ok_or_else(|| Failure::of("a stream was not done in time"))?;
        for outcome in outcomes {
            outcome.result?;
        }
        Ok::<_, Failure>(())
    };
    let in_blocks = |bytes: u64| bytes.div_ceil(case.size as u64).max(4);
    let warm = in_blocks(WARM) * case.size as u64;
    let from = Instant::now();
    run(warm)?;
    let rate = warm as f64 / from.elapsed().as_secs_f64();
    let blocks = in_blocks((rate * case.seconds) as u64);
    if let Some(begin) = case.begin {
        std::thread::sleep(begin.saturating_duration_since(Instant::now()));
    }
    mark(control, false)?;
    let (from, cpu) = (Instant::now(), cpu_seconds());
    run(blocks * case.size as u64)?;
    let (elapsed_s, cpu_s) = (from.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    mark(control, true)?;
    let theirs = crate::client::arrived(&control.expect("arrived", patience(case))?)?;
    sender.close(Instant::now() + GOODBYE);
    let arrived = Arrived {
        messages: blocks,
        elapsed_s,
        cpu_s: theirs.cpu_s,
    };
    let sent = Sent {
        cpu_s,
        half_ns: Vec::new(),
        times: None,
    };
    Ok((sent, arrived))
}

/// The receiving half, which drops everything.
pub(crate) fn receive(case: &Case, control: &mut Control) -> Result<Arrived, Failure> {
    let block = u32::try_from(case.size)?;
    let config = ReceiverConfig::new(DiscardSink)
        .stream(|s| s.block_bytes(block).connections(8))
        .limits(Limits::default().bytes(1 << 46).block_bytes(1 << 28));
    let receiver = StreamReceiver::listen(&ours::open(case)?, ours::local_addr(case)?, config)?;
    control.say(&format!("ready {}", receiver.local_addr()))?;
    let arrived = hear(case, control);
    receiver.close(Instant::now() + GOODBYE);
    arrived
}
