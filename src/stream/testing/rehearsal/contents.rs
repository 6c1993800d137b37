//! `TestSource` and `TestSinks`: what is sent and where it goes, in memory. Each byte follows from
//! the number of its transfer.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::stream::{
    Block, BlockSink, BlockSource, Entry, EntryKind, Kept, Manifest, Modified, ReadBack,
    RelativeName, SinkError, SinkFactory, SourceError, Stop, StreamOffer,
};

/// The bytes of an entry of a transfer, from an offset on, which is one of a block: eight by eight,
/// another number for each place.
fn fill(transfer: u64, entry: usize, offset: u64, into: &mut [u8]) {
    if is_hole(entry, offset, into.len()) {
        return into.fill(0);
    }
    let salt = transfer.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (entry as u64).rotate_left(40);
    let mut word = salt ^ offset.wrapping_mul(0xff51_afd7_ed55_8ccd);
    for piece in into.chunks_mut(8) {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        piece.copy_from_slice(&word.to_le_bytes()[..piece.len()]);
    }
}

/// Whether these bytes, which are those of a block, lie in a hole: each second entry has some.
fn is_hole(entry: usize, offset: u64, len: usize) -> bool {
    const PART: u64 = 12 << 10;
    let (number, begin) = (offset / PART + entry as u64 / 2, offset % PART);
    entry % 2 == 1 && !number.is_multiple_of(3) && begin + len as u64 <= PART
}

fn is_right(transfer: u64, block: &Block, bytes: &[u8]) -> bool {
    let mut right = vec![0; bytes.len()];
    fill(transfer, block.entry, block.offset, &mut right);
    right == bytes
}

/// A source.
#[derive(Debug)]
pub(super) struct TestSource {
    transfer: u64,
    manifest: Manifest,
}

impl TestSource {
    pub(super) fn new(transfer: u64, sizes: &[u64]) -> Self {
        let names: Vec<_> = (0..sizes.len())
            .map(|entry| format!("{transfer}/{entry}"))
            .collect();
        let entries = names.iter().zip(sizes).map(|(name, size)| Entry {
            name: RelativeName::new(name.as_bytes()).expect("a plain name"),
            kind: EntryKind::File,
            mode: 0o644,
            size: *size,
            modified: Modified::default(),
            sparse: true,
        });
        Self {
            transfer,
            manifest: Manifest::new(entries).expect("different names"),
        }
    }
}

impl BlockSource for TestSource {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn stamp(&self) -> [u8; 16] {
        [self.transfer as u8; 16]
    }

    fn read(&self, entry: usize, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        fill(self.transfer, entry, offset, into);
        Ok(())
    }

    fn is_hole(&self, entry: usize, offset: u64, len: usize) -> bool {
        is_hole(entry, offset, len)
    }

    fn check_unchanged(&self) -> Result<(), SourceError> {
        Ok(())
    }
}

/// What a receiver has: streams that are whole, and parts of those that were cut.
#[derive(Debug, Clone, Default)]
pub(in crate::stream) struct TestSinks(Arc<Mutex<Inside>>);

#[derive(Debug, Default)]
struct Inside {
    parts: HashMap<[u8; 16], Part>,
    /// How often each transfer has become whole.
    whole: BTreeMap<u64, u32>,
    /// What no receiver may do.
    offences: Vec<String>,
}

#[derive(Debug, Default)]
struct Part {
    blocks: BTreeMap<u64, Vec<u8>>,
    /// A sink has it.
    in_use: bool,
}

impl TestSinks {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn offences(&self) -> Vec<String> {
        self.lock().offences.clone()
    }

    /// How often a transfer has become whole.
    pub(in crate::stream) fn whole(&self, transfer: u64) -> u32 {
        self.lock().whole.get(&transfer).copied().unwrap_or(0)
    }

    /// Sinks that were neither finished nor abandoned.
    pub(super) fn in_use(&self) -> usize {
        let inside = self.lock();
        inside.parts.values().filter(|part| part.in_use).count()
    }
}

/// Which transfer a stream is of: the first component of all its names.
fn transfer_of(offer: &StreamOffer) -> u64 {
    let first = offer.manifest.get(0).expect("it has entries");
    let name = String::from_utf8_lossy(first.name.as_bytes()).into_owned();
    let number = name.split('/').next().and_then(|it| it.parse().ok());
    number.expect("a name of a rehearsal")
}

impl SinkFactory for TestSinks {
    fn make(&self, offer: &StreamOffer) -> Result<Box<dyn BlockSink>, SinkError> {
        Ok(Box::new(TestSink {
            sinks: self.clone(),
            transfer: transfer_of(offer),
            offer: offer.clone(),
        }))
    }
}

/// A sink.
#[derive(Debug)]
struct TestSink {
    sinks: TestSinks,
    transfer: u64,
    offer: StreamOffer,
}

impl TestSink {
    /// Does something with the part that this sink has; it must have it.
    fn with<T>(&self, what: &str, act: impl FnOnce(&mut Part) -> T) -> Result<T, SinkError> {
        let mut inside = self.sinks.lock();
        let part = inside.parts.get_mut(&self.offer.identity.key);
        if let Some(part) = part.filter(|part| part.in_use) {
            return Ok(act(part));
        }
        let offence = format!("{what} of transfer {}, which is not open", self.transfer);
        inside.offences.push(offence.clone());
        Err(SinkError::Other(offence))
    }
}

impl BlockSink for TestSink {
    fn open(&self, offer: &StreamOffer, _stop: &Stop) -> Result<Kept, SinkError> {
        let mut inside = self.sinks.lock();
        let part = inside.parts.entry(offer.identity.key).or_default();
        if std::mem::replace(&mut part.in_use, true) {
            let offence = format!("transfer {} is open twice", self.transfer);
            inside.offences.push(offence);
            return Err(SinkError::Busy);
        }
        if !offer.crc32c {
            part.blocks.clear();
        }
        let mut kept = Kept::new(offer);
        for (index, bytes) in &part.blocks {
            if let Some(block) = offer.plan.get(*index) {
                kept.add(offer, &block, bytes);
            }
        }
        Ok(kept)
    }

    fn write(&self, block: Block, _crc: u32, bytes: &[u8]) -> Result<(), SinkError> {
        let twice = self.with("a block", |part| {
            let bytes = bytes.to_vec();
            part.blocks.insert(block.index, bytes).is_some()
        })?;
        if twice || !is_right(self.transfer, &block, bytes) {
            let what = if twice { "comes twice" } else { "is wrong" };
            let offence = format!("block {} of transfer {} {what}", block.index, self.transfer);
            self.sinks.lock().offences.push(offence);
        }
        Ok(())
    }

    fn finish(&self, _stop: &Stop) -> Result<ReadBack, SinkError> {
        let (plan, transfer) = (&self.offer.plan, self.transfer);
        let lacks = self.with("the end", |part| {
            part.in_use = false;
            let blocks = std::mem::take(&mut part.blocks);
            let is_there = |block: &Block| blocks.contains_key(&block.index);
            plan.iter().find(|block| !is_there(block))
        })?;
        let mut inside = self.sinks.lock();
        if let Some(block) = lacks {
            let offence = format!("transfer {transfer} ends without block {}", block.index);
            inside.offences.push(offence);
        }
        *inside.whole.entry(transfer).or_default() += 1;
        Ok(ReadBack::default())
    }

    fn abandon(&self) {
        // After an `open` that failed, there is nothing to give up.
        let mut inside = self.sinks.lock();
        if let Some(part) = inside.parts.get_mut(&self.offer.identity.key) {
            part.in_use = false;
        }
    }
}
