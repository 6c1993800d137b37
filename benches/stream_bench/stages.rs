//! The chain from a file to a GPU, to the peer, to its GPU, to a file in memory; and its stages,
//! each by itself while the others run.
//!
//! ```text
//!  read stage                                    wire stage                   write stage
//!  file ─ GPU ─ buffers that blocks are sent from ══ libfabric ══► buffers ─ discard
//!                                                                  buffers ─ GPU ─ file in memory
//! ```

use std::path::Path;
use std::sync::Arc;

use fabricast::Region;
use fabricast::buffer::{
    Buffer, BufferMut, DeviceBufferManager, SharedBufferConfig, SharedBufferManager,
};
use fabricast::stream::{
    BlockPlan, BufferSource, DirectorySink, DiscardSink, FileSource, SendOptions, SinkFactory,
    Stop, StreamIdentity, StreamOffer, StreamReceiver, StreamSender, ThroughGpu,
};

use crate::alone::{on_threads, read_all, room};
use crate::case::{Case, Way};
use crate::error::{Failure, fail};
use crate::ours;
use crate::sending::{Sent, timed};

/// A device buffer of a block for each thread.
fn device_buffers(case: &Case, threads: u32) -> Result<DeviceBufferManager, Failure> {
    let bytes = threads as usize * case.block.next_multiple_of(256);
    let region = Region::device(bytes).device(case.device).build()?;
    Ok(DeviceBufferManager::new(region, case.block)?)
}

/// Pinned memory in one piece.
fn pinned(bytes: usize) -> Result<BufferMut, Failure> {
    let layout = SharedBufferConfig {
        slots: Some(1),
        alignment: 4096,
        ..SharedBufferConfig::new(bytes)
    };
    let pool = SharedBufferManager::new(Region::pinned(bytes).build()?, layout)?;
    pool.try_acquire().ok_or_else(|| Failure::of("no memory"))
}

/// None for the stage that is measured: it goes as fast as it can.
fn rate_of(stage: Way, measured: Way, others: f64) -> Option<f64> {
    (stage != measured).then_some(others)
}

/// The sending process.
pub(crate) struct Near<'a> {
    case: &'a Case,
    sender: StreamSender,
    gpu: DeviceBufferManager,
    /// What the read stage reads into.
    slots: BufferMut,
    /// What the wire stage sends: more than caches have, as nothing is in them that a GPU has just
    /// copied to memory.
    memory: Buffer,
    told: bool,
}

impl<'a> Near<'a> {
    pub(crate) fn open(case: &'a Case) -> Result<Self, Failure> {
        let sender = ours::sender(case, true)?;
        let pool = SharedBufferManager::allocate(1, case.size)?;
        sender.register(&pool)?;
        let memory = pool.try_acquire();
        let mut memory = memory.ok_or_else(|| Failure::of("no memory"))?;
        // Else all of it would be the kernel's one page of zeros.
        memory.fill(1);
        Ok(Self {
            case,
            sender,
            gpu: device_buffers(case, 2 * case.readers)?,
            slots: pinned(room(case, case.readers))?,
            memory: memory.freeze(case.size),
            told: false,
        })
    }

    fn source(&self, path: &Path) -> Result<ThroughGpu<FileSource>, Failure> {
        Ok(ThroughGpu::new(FileSource::file(path)?, self.gpu.clone()))
    }

    /// The whole chain.
    pub(crate) fn send(&mut self, to: &str, crc: bool, path: &Path) -> Result<Sent, Failure> {
        let options = SendOptions::default().crc32c(crc);
        let sent = ours::send(&self.sender, to, options, || self.source(path))?;
        if !std::mem::replace(&mut self.told, true) {
            eprintln!("# path: {}", sent.path);
        }
        Ok(sent)
    }

    /// One stage, the others beside it at that rate; this process has two of the three.
    pub(crate) fn stage(
        &mut self,
        stage: Way,
        to: &str,
        others: f64,
        path: &Path,
    ) -> Result<Sent, Failure> {
        let rate = |of| rate_of(of, stage, others);
        let (case, source) = (self.case, self.source(path)?);
        let (slots, sender, memory) = (&mut self.slots, &self.sender, &self.memory);
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let own = rate(Way::ReadStage);
                timed(|| read_all(case, &source, slots, own))
            });
            let options = SendOptions::default().crc32c(false);
            let options = options.rate(rate(Way::WireStage).map(|rate| rate as u64));
            let buffer = || Ok(BufferSource::new("memory", memory.clone(), [0; 16])?);
            let sent = ours::send(sender, to, options, buffer);
            let Ok(read) = reading.join() else {
                return fail("the read stage panicked");
            };
            let (read, sent) = (read?.0, sent?);
            Ok(if stage == Way::ReadStage { read } else { sent })
        })
    }
}

/// What the receiving process took for a stage.
pub(crate) struct Written {
    pub(crate) cpu: f64,
    /// Of the write stage.
    pub(crate) seconds: f64,
}

/// The receiving process.
pub(crate) struct Far<'a> {
    case: &'a Case,
    discards: StreamReceiver,
    gpu: DeviceBufferManager,
    /// What the write stage writes.
    slots: BufferMut,
}

impl<'a> Far<'a> {
    pub(crate) fn open(case: &'a Case) -> Result<Self, Failure> {
        Ok(Self {
            case,
            discards: ours::receiver(case, DiscardSink, (true, 0))?,
            gpu: device_buffers(case, 2 * case.writers)?,
            slots: pinned(room(case, case.writers))?,
        })
    }

    fn sink(&self, directory: &Path) -> Result<ThroughGpu<DirectorySink>, Failure> {
        let sink = DirectorySink::new(directory)?;
        Ok(ThroughGpu::new(sink, self.gpu.clone()))
    }

    /// The whole chain; processor seconds.
    pub(crate) fn receive(&self, directory: &Path) -> Result<f64, Failure> {
        let receiver = ours::receiver(self.case, self.sink(directory)?, (true, 0))?;
        let cpu = ours::receive(&receiver)?;
        receiver.close(ours::goodbye());
        Ok(cpu)
    }

    /// This process's part of a stage's run: what arrives is dropped, and a file is written beside
    /// it.
    pub(crate) fn stage(
        &self,
        stage: Way,
        others: f64,
        directory: &Path,
    ) -> Result<Written, Failure> {
        let rate = rate_of(Way::WriteStage, stage, others);
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| timed(|| self.write(directory, rate)));
            let cpu = ours::receive(&self.discards);
            let Ok(written) = writing.join() else {
                return fail("the write stage panicked");
            };
            let seconds = written?.0.seconds;
            Ok(Written { cpu: cpu?, seconds })
        })
    }

    /// As a stream's writers do, with blocks that are there.
    fn write(&self, directory: &Path, rate: Option<f64>) -> Result<(), Failure> {
        let case = self.case;
        let bytes = self.slots.len();
        let offer = offer(case)?;
        let sink = self.sink(directory)?.make(&offer)?;
        sink.open(&offer, &Stop::default())?;
        let threads = vec![(); case.writers as usize];
        on_threads(case, threads, rate, |index, ()| {
            let Some(block) = offer.plan.get(index as u64) else {
                return fail("no such block");
            };
            let at = index % (bytes / case.block) * case.block;
            Ok(sink.write(block, 0, &self.slots[at..][..case.len(index)])?)
        })?;
        sink.finish(&Stop::default())?;
        Ok(())
    }
}

/// What a sender would say of the file.
fn offer(case: &Case) -> Result<StreamOffer, Failure> {
    use fabricast::stream::{Entry, EntryKind, Manifest, Modified, RelativeName};
    let entry = Entry {
        kind: EntryKind::File,
        mode: 0o644,
        size: case.size as u64,
        modified: Modified::default(),
        name: RelativeName::new(b"stage.dat")?,
        sparse: false,
    };
    let manifest = Manifest::new([entry])?;
    Ok(StreamOffer {
        identity: StreamIdentity::default(),
        plan: Arc::new(BlockPlan::new(&manifest, u32::try_from(case.block)?)),
        manifest: Arc::new(manifest),
        crc32c: false,
        blake3: false,
        sync: false,
        read_back: false,
        skip_unchanged: false,
        compare_content: false,
        delete: false,
        restart: true,
    })
}
